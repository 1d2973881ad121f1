//! `ringfence install` and `ringfence uninstall`.

use super::output::print;
use crate::install::{Installation, ShippedProfile};
use anyhow::{Context as _, bail};
use nix::unistd::geteuid;
use ringfence_base::{
    client::{self, ClientError},
    paths::Paths,
};
use ringfence_core::daemon;
use ringfence_wire::message::{AdminRequest, Detached};
use std::process::ExitCode;

/// Profiles that come with the binary.
const SHIPPED: &[ShippedProfile] = &[
    ShippedProfile { file: "coder.toml", text: include_str!("../../../profiles/coder.toml") },
    ShippedProfile { file: "reader.toml", text: include_str!("../../../profiles/reader.toml") },
    ShippedProfile { file: "shell.toml", text: include_str!("../../../profiles/shell.toml") },
];

/// Installs the daemon: its user, group, directories, unit and profiles.
///
/// You can run it again: it keeps what exists, edited profiles and units included. It works without systemd, and then tells you
/// how to start the daemon.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  sudo ringfence install              # and start the daemon
  sudo ringfence install --no-start   # the daemon starts at the next boot")]
pub(crate) struct InstallArgs {
    /// Do not start the daemon now.
    #[arg(long)]
    no_start: bool,
}

/// Ends enforcement and removes the daemon; refuses while containers run.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  sudo ringfence uninstall           # keeps profiles and events
  sudo ringfence uninstall --purge   # removes them, too")]
pub(crate) struct UninstallArgs {
    /// Remove profiles, stored events, the user and the group, too.
    #[arg(long)]
    purge: bool,
}

pub(crate) fn install(args: &InstallArgs) -> anyhow::Result<ExitCode> {
    if !geteuid().is_root() {
        bail!("installing creates a user and a service, which needs root: sudo ringfence install");
    }
    let installation = Installation::new(Paths::from_env());
    for done in installation.install(SHIPPED)? {
        print(&format!("{done}\n"))?;
    }
    if !installation.has_systemd() {
        return print("systemd is not running here: start the daemon with `ringfence daemon`\n");
    }
    installation.enable(!args.no_start)?;
    print(if args.no_start { "the daemon starts at the next boot\n" } else { "the daemon runs\n" })
}

pub(crate) fn uninstall(args: &UninstallArgs) -> anyhow::Result<ExitCode> {
    if !geteuid().is_root() {
        bail!("uninstalling ends enforcement, which needs root: sudo ringfence uninstall");
    }
    let installation = Installation::new(Paths::from_env());
    let removed =
        match client::admin::<Detached>(&installation.paths.admin_socket(), &AdminRequest::Detach, &[]) {
            Ok(Detached { removed }) => {
                installation.wait_for_daemon();
                removed
            }
            Err(ClientError::NoDaemon { .. }) => match daemon::detach_without_daemon(&installation.paths)? {
                Ok(removed) => removed,
                Err(running) => bail!(
                    "{} containers are running and would lose enforcement: {}; end them first",
                    running.len(),
                    running.join(", ")
                ),
            },
            Err(error) => return Err(error).context("nothing was removed"),
        };
    print(&format!("detached and unpinned {removed} objects\n"))?;
    for done in installation.uninstall(args.purge)? {
        print(&format!("{done}\n"))?;
    }
    if !args.purge {
        print(&format!(
            "profiles and events are kept in {} and {}\n",
            installation.paths.config.display(),
            installation.paths.state.display()
        ))?;
    }
    Ok(ExitCode::SUCCESS)
}
