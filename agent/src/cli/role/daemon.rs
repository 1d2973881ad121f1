//! `ringfence daemon`.

use crate::{
    core::{daemon, paths::Paths},
    kernel::handed,
};
use std::process::ExitCode;

/// The privileged core: loads the eBPF programs, holds the containers, starts the other roles.
///
/// It stays in the foreground and logs to standard error. SIGHUP reads the profiles again, as does a change of their files.
/// SIGTERM stops it; containers stay enforced, and the next daemon adopts them. `ringfence uninstall` ends enforcement.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  systemctl start ringfence          as a service (after `ringfence install`)
  sudo ringfence daemon              in the foreground
  sudo RUST_LOG=debug ringfence daemon")]
pub(crate) struct Args {
    /// Port of the dashboard on loopback; the next free one if it is taken, any free one for 0.
    #[arg(long, value_name = "P", default_value_t = crate::mcp::client::DEFAULT_PORT)]
    port: u16,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    // Before anything else is opened.
    let handed = handed::take();
    crate::cli::log::start("info");
    daemon::run(&Paths::from_env(), args.port, handed)?;
    Ok(ExitCode::SUCCESS)
}
