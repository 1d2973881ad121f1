//! `demo`: real programs under the profile `coder`, and what the kernel let them do.

use crate::build;
use crate::guest;
use crate::paths::workspace;
use crate::setup::{self, Series};
use crate::vm::{self, Added, Job};
use anyhow::{Context, Result, bail};
use std::io::IsTerminal;
use std::path::Path;
use std::process::{Command, ExitCode};
use std::time::Duration;

const GUEST_DIR: &str = "/opt/ringfence-demo";

/// Shows an agent's shell, git and Python under the profile `coder`: what was allowed, what was denied, and by which rule;
/// and an agent whose model obeys a file that it reads: who asked for what, and what the kernel refused.
///
/// Sets up, builds and boots a VM, so nothing happens to this machine's kernel. 15 minutes the first time on a bare
/// machine, half a minute after that.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  cargo xtask demo\n  \
                        sudo -E cargo xtask demo --native  on this machine, where `ringfence doctor` finds everything")]
pub(crate) struct Args {
    /// On this machine's own kernel instead of a VM's; needs root and a running `ringfence daemon`.
    #[arg(long)]
    native: bool,
}

pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let folder = workspace().join("vm-tests/demo");
    if args.native { native(&folder) } else { in_vm(&folder) }
}

fn in_vm(folder: &Path) -> Result<ExitCode> {
    let script = format!("{GUEST_DIR}/demo.sh");
    let runtime = format!("{GUEST_DIR}/bin/ringfence-runtime");
    let mut command = vec![script.as_str(), runtime.as_str()];
    if std::io::stdout().is_terminal() {
        command.push("--color");
    }
    let mut job = Job::new(Series::V6_12, &command);
    job.added.push(Added { host: folder.to_owned(), guest: GUEST_DIR.into() });
    job.added.push(Added { host: guest::runtime()?, guest: runtime.clone().into() });
    let status = vm::lines(&job, Duration::from_secs(600), |line| println!("{line}"))?;
    Ok(ExitCode::from(u8::try_from(status).unwrap_or(1)))
}

fn native(folder: &Path) -> Result<ExitCode> {
    setup::for_building()?;
    let binary = build::shipped()?;
    let doctor = Command::new(&binary).arg("doctor").output().context("cannot start ringfence doctor")?;
    if !doctor.status.success() {
        let said = String::from_utf8_lossy(&doctor.stdout);
        bail!("this machine's kernel cannot hold everything; without --native the demo runs in a VM\n{said}");
    }
    // The script calls `ringfence`; the one just built comes first.
    let beside = binary.parent().unwrap_or(Path::new("/"));
    let path = std::env::var_os("PATH").unwrap_or_default();
    let path = std::env::join_paths(std::iter::once(beside.to_owned()).chain(std::env::split_paths(&path)))
        .context("PATH cannot be extended")?;
    let mut demo = Command::new(folder.join("demo.sh"));
    demo.arg(guest::runtime()?);
    if std::io::stdout().is_terminal() {
        demo.arg("--color");
    }
    let status = demo.env("PATH", path).status().context("cannot start the demo")?;
    Ok(ExitCode::from(status.code().and_then(|code| u8::try_from(code).ok()).unwrap_or(1)))
}
