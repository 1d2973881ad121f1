//! `ringfence agent start`, `init` and `stop`: the service that serves this user's agents.

use super::{home, owner::Owner};
use crate::cli::{log, output::print};
use ringfence_base::client;
use ringfence_llm_worker::{
    control::{self, ControlRequest},
    unit, user,
};
use ringfence_wire::message::{AdminRequest, Stopping};
use std::process::ExitCode;

/// Serves this user's agents, in the foreground.
///
/// Each agent gets a socket; its credentials stay on the host. Agents are the profiles in ~/.config/ringfence/agents with an
/// `[llm.NAME]` section, or those in ~/.config/tightbeam if there are none. A changed profile is read again at once; SIGHUP
/// reads profiles and credentials again. SIGTERM and Ctrl-C stop it after the running turns; a second Ctrl-C cuts them
/// off. It logs to standard error, needs no root and uses no eBPF; the agents of the daemon do.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  ringfence agent start
  RUST_LOG=debug ringfence agent start
  ringfence agent init   # as a service of this user")]
pub(crate) struct StartArgs {}

/// Installs and starts `ringfence agent start` as a systemd service of this user.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  ringfence agent init
  ringfence agent init --uninstall
  loginctl enable-linger   # keeps the service running when you log out")]
pub(crate) struct InitArgs {
    /// Stop the service and remove it.
    #[arg(long)]
    uninstall: bool,
}

/// Stops one agent, or all agents of this user.
///
/// An agent finishes its turn, then its socket is removed. To start it again, send SIGHUP to `ringfence agent start`, or run
/// `systemctl reload ringfence` for an agent of the daemon.
#[derive(Debug, clap::Args)]
#[command(group = clap::ArgGroup::new("which").required(true).args(["name", "all"]))]
#[command(after_help = "Examples:
  ringfence agent stop reviewer
  ringfence agent stop --all")]
pub(crate) struct StopArgs {
    /// The agent.
    name: Option<String>,
    /// Stop `ringfence agent start` with all of this user's agents, and uninstall its service.
    #[arg(long)]
    all: bool,
}

/// Stops all agents of this user, and uninstalls their service.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  ringfence agent stop --all")]
pub(crate) struct StopAllArgs {}

impl From<StopAllArgs> for StopArgs {
    fn from(_: StopAllArgs) -> Self {
        Self { name: None, all: true }
    }
}

pub(super) fn start(_: &StartArgs) -> anyhow::Result<ExitCode> {
    // The MCP library's warnings quote what servers say; the worker logs what matters of it.
    log::start("info,rmcp=off");
    user::run()?;
    Ok(ExitCode::SUCCESS)
}

pub(super) fn init(args: &InitArgs) -> anyhow::Result<ExitCode> {
    if args.uninstall {
        return print(if unit::uninstall()? {
            "the service is stopped and removed\n"
        } else {
            "no service was installed\n"
        });
    }
    let path = unit::install()?;
    print(&format!(
        "the service runs: {}\n  ringfence status                   shows it\n  journalctl --user -u ringfence    has its log\n",
        path.display()
    ))
}

/// Stops one agent or all; clap ensures that exactly one of the two is given.
pub(super) fn stop(args: &StopArgs) -> anyhow::Result<ExitCode> {
    match &args.name {
        Some(name) => stop_one(name),
        None => stop_all(),
    }
}

fn stop_all() -> anyhow::Result<ExitCode> {
    let home = home()?;
    let removed = unit::uninstall();
    let stopped = match control::ask(&home, &ControlRequest::Stop) {
        Ok(_) => true,
        // The service was the only thing that ran.
        Err(control::Error::NotRunning(_)) if !matches!(removed, Ok(false)) => false,
        Err(error) => return Err(error.into()),
    };
    let removed = removed.inspect_err(|_| {
        if stopped {
            // The unit's error matters more than whether anybody reads this.
            let _ = print("`ringfence agent start` is stopping; the service's unit is still installed\n");
        }
    })?;
    let what = match (removed, stopped) {
        (true, true) => "the service is stopped and removed, and so is the `ringfence agent start` beside it",
        (true, false) => "the service is stopped and removed",
        _ => "`ringfence agent start` is stopping, after the running turns",
    };
    print(&format!("{what}\n"))
}

fn stop_one(name: &str) -> anyhow::Result<ExitCode> {
    match Owner::find(name) {
        Ok(Owner::Daemon(paths)) => {
            let request = AdminRequest::StopAgent { name: name.to_owned() };
            client::admin::<Stopping>(&paths.admin_socket(), &request, &[])?;
        }
        // The server may still know the name of an agent whose profile is gone.
        _ => drop(control::ask(&home()?, &ControlRequest::StopAgent { name: name.to_owned() })?),
    }
    print(&format!("{name} is stopping, after the running turn\n"))
}
