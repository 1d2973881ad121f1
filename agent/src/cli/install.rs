//! `ringfence install` and `ringfence uninstall`.

use super::output::print;
use crate::install::{Host, Profile};
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
const SHIPPED: &[Profile] = &[
    Profile { file: "coder.toml", text: include_str!("../../../profiles/coder.toml") },
    Profile { file: "reader.toml", text: include_str!("../../../profiles/reader.toml") },
    Profile { file: "shell.toml", text: include_str!("../../../profiles/shell.toml") },
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
        bail!("installing makes a user and a service and needs root: sudo ringfence install");
    }
    let host = Host::new(Paths::from_env());
    for done in host.install(SHIPPED)? {
        print(&format!("{done}\n"))?;
    }
    if !host.has_systemd() {
        return print("systemd does not run here: start the daemon with `ringfence daemon`\n");
    }
    host.enable(!args.no_start)?;
    print(if args.no_start { "the daemon starts at the next boot\n" } else { "the daemon runs\n" })
}

pub(crate) fn uninstall(args: &UninstallArgs) -> anyhow::Result<ExitCode> {
    if !geteuid().is_root() {
        bail!("uninstalling ends enforcement and needs root: sudo ringfence uninstall");
    }
    let host = Host::new(Paths::from_env());
    let removed = match client::admin::<Detached>(&host.paths.admin_socket(), &AdminRequest::Detach, &[]) {
        Ok(Detached { removed }) => {
            host.wait_for_daemon();
            removed
        }
        Err(ClientError::NoDaemon { .. }) => match daemon::detach_without_daemon(&host.paths)? {
            Ok(removed) => removed,
            Err(running) => bail!(
                "{} containers run and would be left without enforcement: {}; end them first",
                running.len(),
                running.join(", ")
            ),
        },
        Err(error) => return Err(error).context("nothing was removed"),
    };
    print(&format!("detached and unpinned {removed} objects\n"))?;
    for done in host.uninstall(args.purge)? {
        print(&format!("{done}\n"))?;
    }
    if !args.purge {
        print(&format!(
            "profiles and events are kept in {} and {}\n",
            host.paths.config.display(),
            host.paths.state.display()
        ))?;
    }
    Ok(ExitCode::SUCCESS)
}
