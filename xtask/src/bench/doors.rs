//! `bench doors`: every hostile party at once, for as long as it is told, beside those who behave well; what they waited,
//! and whether anything of theirs was lost or wrong.

use crate::guest;
use crate::paths::workspace;
use crate::report::say;
use crate::setup::Series;
use crate::vm::{self, Added, Job, Ringfence};
use anyhow::{Result, bail};
use std::process::ExitCode;
use std::time::Duration;

/// Where the guest finds the scripts.
const GUEST_DIR: &str = "/opt/vm-tests";
/// How long the guest may be silent: it says how it goes once a minute, and nothing while it reads the record at the end.
const SILENCE: Duration = Duration::from_secs(40 * 60);

/// Presses every door of the daemon at once, in the guest, under systemd, beside those who behave well.
///
/// Hostile containers, users, an owner of agents, a provider and web pages; beside them an agent, an MCP session whose calls
/// its user decides, a reader of the dashboard and a user of the command line, first alone and then among them. Prints
/// what each waited, which is told and not judged. Fails if an answer, a decision, a row or a denial was lost or wrong, an
/// event is another call's, a process of the daemon's ended, or one has grown beyond its bound.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  cargo xtask bench doors --minutes 60")]
pub(crate) struct Args {
    /// How long all of them at once.
    #[arg(long, value_name = "N", default_value_t = 3)]
    minutes: u32,
    /// Seconds without the hostile, before them.
    #[arg(long, value_name = "N", default_value_t = 60)]
    quiet: u32,
    /// The kernel to boot.
    #[arg(long, value_name = "K", default_value = "6.12")]
    kernel: Series,
}

pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let (minutes, quiet) = (args.minutes.to_string(), args.quiet.to_string());
    let mut job =
        Job::new(args.kernel, &["python3", "-u", &format!("{GUEST_DIR}/doors/main.py"), &minutes, &quiet]);
    job.as_it_ships = true;
    job.append = "ringfence.systemd".to_owned();
    job.ringfence = Ringfence::Installed;
    for name in ["doors", "lib", "cases"] {
        let host = workspace().join("vm-tests").join(name);
        job.added.push(Added { host, guest: format!("{GUEST_DIR}/{name}").into() });
    }
    let runtime = guest::runtime()?;
    job.added.push(Added { host: runtime, guest: format!("{GUEST_DIR}/bin/ringfence-runtime").into() });
    let status = vm::lines(&job, SILENCE, say)?;
    if status != 0 {
        bail!("the guest's run ended with status {status}; its last lines say why");
    }
    Ok(ExitCode::SUCCESS)
}
