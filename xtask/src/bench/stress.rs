//! `bench stress`: stress-ng in a governed container for a while; what it cost the record, and what the kernel said.

use crate::paths::workspace;
use crate::report::say;
use crate::setup::{self, Series};
use crate::vm::{self, Added, Job};
use anyhow::{Result, bail};
use std::process::ExitCode;
use std::time::Duration;

/// Where the guest finds the tests, the script of this one among them.
const GUEST_DIR: &str = "/opt/vm-tests";
/// How long the guest may be silent: a class with many stressors says nothing until it is through.
const SILENCE: Duration = Duration::from_secs(30 * 60);

/// Runs every class of stress-ng in a governed container, in the guest, for some minutes.
///
/// Fails if the kernel warned, if a denied file was read or a granted one was not, or if denials are in no event and in
/// no count of losses. Needs Debian's stress-ng, which it downloads. No part of the tests: it takes as long as it is told.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  cargo xtask bench stress --minutes 10 --kernel 6.1")]
pub(crate) struct Args {
    /// How long
    #[arg(long, value_name = "N", default_value_t = 10)]
    minutes: u32,
    /// The kernel to boot
    #[arg(long, value_name = "K", default_value = "6.12")]
    kernel: Series,
}

pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let minutes = args.minutes.to_string();
    let mut job = Job::new(args.kernel, &["python3", &format!("{GUEST_DIR}/bench/stress.py"), &minutes]);
    for name in ["bench", "lib", "cases"] {
        let host = workspace().join("vm-tests").join(name);
        job.added.push(Added { host, guest: format!("{GUEST_DIR}/{name}").into() });
    }
    job.added.push(Added { host: setup::stress_ng()?, guest: "/opt/stress-ng".into() });
    let status = vm::lines(&job, SILENCE, say)?;
    if status != 0 {
        bail!("the guest's run ended with status {status}; its last lines say why");
    }
    Ok(ExitCode::SUCCESS)
}
