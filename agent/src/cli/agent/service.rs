//! `ringfence agent start`, `init` and `stop`: the service that serves this user's agents.

use super::{home, owner::Owner};
use crate::{
    cli::{log, output::print},
    core::client,
    llm::{
        control::{self, ControlRequest},
        unit, user,
    },
};
use ringfence_wire::message::{AdminRequest, Stopping};
use std::process::ExitCode;

/// Serves this user's agents: one socket each, the credentials on this side of it.
///
/// It stays in the foreground and logs to standard error. Agents are the profiles in ~/.config/ringfence/agents that have
/// an `[llm.NAME]` section (or those of ~/.config/tightbeam, where there are none of ours). SIGHUP reads profiles and
/// credentials again; a change of a profile is noticed by itself. SIGTERM and Ctrl-C let what is under way finish. No root
/// and no kernel part: `ringfence daemon` is that.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  ringfence start                    in the foreground
  RUST_LOG=debug ringfence start
  ringfence init                     as a service of this user")]
pub(crate) struct StartArgs {}

/// Installs `ringfence start` as a systemd service of this user, and starts it.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  ringfence init
  ringfence init --uninstall
  loginctl enable-linger             keeps the service when you log out")]
pub(crate) struct InitArgs {
    /// Stop the service and remove it.
    #[arg(long)]
    uninstall: bool,
}

/// Stops this user's agents, and the service with them: it is uninstalled. `ringfence agent stop NAME` stops one agent.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  ringfence stop")]
pub(crate) struct StopArgs {}

pub(crate) fn start(_: &StartArgs) -> anyhow::Result<ExitCode> {
    // The MCP library's warnings hold what servers say; what matters of it is told by us.
    log::start("info,rmcp=off");
    user::run()?;
    Ok(ExitCode::SUCCESS)
}

pub(crate) fn init(args: &InitArgs) -> anyhow::Result<ExitCode> {
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

pub(crate) fn stop(_: &StopArgs) -> anyhow::Result<ExitCode> {
    let home = home()?;
    let removed = unit::uninstall();
    let stopped = match control::ask(&home, &ControlRequest::Stop) {
        Ok(_) => true,
        // The service was all there was.
        Err(control::Error::NotRunning(_)) if !matches!(removed, Ok(false)) => false,
        Err(error) => return Err(error.into()),
    };
    let removed = removed.inspect_err(|_| {
        if stopped {
            // What went wrong with the unit matters more than whether this was read.
            let _ = print("`ringfence start` is told to stop; the service's unit is still there\n");
        }
    })?;
    let what = match (removed, stopped) {
        (true, true) => "the service is stopped and removed, and so is the `ringfence start` beside it",
        (true, false) => "the service is stopped and removed",
        _ => "`ringfence start` is told to stop; it lets what is under way finish",
    };
    print(&format!("{what}\n"))
}

pub(super) fn stop_one(name: &str) -> anyhow::Result<ExitCode> {
    match Owner::find(name) {
        Ok(Owner::Daemon(paths)) => {
            let request = AdminRequest::StopAgent { name: name.to_owned() };
            client::admin::<Stopping>(&paths.admin_socket(), &request, &[])?;
        }
        // Whoever serves it knows its name, though the profile may be gone.
        _ => drop(control::ask(&home()?, &ControlRequest::StopAgent { name: name.to_owned() })?),
    }
    print(&format!("{name} is told to stop; it lets what is under way finish\n"))
}
