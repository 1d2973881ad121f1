//! `ringfence daemon`.

use ringfence_base::paths::Paths;
use ringfence_core::daemon;
use ringfence_process::listen_fds;
use std::process::ExitCode;

/// Runs the daemon: it loads the eBPF programs, manages containers and starts the other processes.
///
/// It stays in the foreground and logs to standard error. It reads profiles again when they change, and at SIGHUP. SIGTERM stops
/// it; containers stay confined, and the next daemon adopts them. `ringfence uninstall` ends enforcement.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  systemctl start ringfence   # as a service, after `ringfence install`
  sudo ringfence daemon
  sudo RUST_LOG=debug ringfence daemon")]
pub(crate) struct Args {
    /// Port of the dashboard on loopback: the next free one if it is taken, any free one for 0.
    #[arg(long, value_name = "P", default_value_t = ringfence_client::sessions::DEFAULT_PORT)]
    port: u16,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    // Before anything else is opened.
    let handed = listen_fds::take();
    crate::cli::log::start("info");
    daemon::run(&Paths::from_env(), args.port, handed)?;
    Ok(ExitCode::SUCCESS)
}
