//! Who serves an agent: this user, by `ringfence agent start`, or the daemon; and where its files are.

use super::{home, name};
use anyhow::{Context, bail};
use nix::unistd::{Gid, Uid, geteuid, setgid, setgroups, setuid};
use ringfence_base::paths::Paths;
use ringfence_core::agents;
use ringfence_policy::{
    self as profile, Dirs, LoadErrors,
    agents::{
        home::Home,
        registry::{self, AgentConfig, Registry},
    },
};
use std::{fs, io, os::unix::fs::MetadataExt, path::PathBuf};

/// Who serves an agent.
pub(super) enum Owner {
    /// This user.
    User(Home),
    /// The daemon.
    Daemon(Paths),
}

impl Owner {
    /// Looks for a profile of that name: this user's first, then the host's.
    pub(super) fn find(agent: &str) -> anyhow::Result<Self> {
        let home = home()?;
        if home.agent(name(agent)?).exists() {
            return Ok(Self::User(home));
        }
        let paths = Paths::from_env();
        if paths.profiles().join(format!("{agent}.toml")).exists() {
            return Ok(Self::Daemon(paths));
        }
        let known = registry::names(&home);
        let known =
            if known.is_empty() { String::new() } else { format!("; there are: {}", known.join(", ")) };
        bail!(
            "no profile named {agent:?} is in {} or {}{known}",
            home.agents().display(),
            paths.profiles().display()
        );
    }

    /// Its configuration, as it would be started now.
    pub(super) fn load(&self, agent: &str) -> Result<AgentConfig, LoadErrors> {
        match self {
            Self::User(home) => registry::load(home, agent),
            Self::Daemon(paths) => {
                let dirs = Dirs { system: paths.profiles(), user: None };
                registry::agent(&profile::load(agent, &dirs)?, &Registry::load(&paths.registry())?)
            }
        }
    }

    pub(super) fn socket(&self, agent: &str) -> PathBuf {
        match self {
            Self::User(home) => home.socket(agent),
            Self::Daemon(paths) => paths.agent_socket(agent),
        }
    }

    pub(super) fn http_socket(&self, agent: &str) -> PathBuf {
        match self {
            Self::User(home) => home.http_socket(agent),
            Self::Daemon(paths) => paths.agent_http_socket(agent),
        }
    }

    /// The port of loopback where its HTTP endpoint is served, and where the token for it is.
    pub(super) fn loopback(&self, config: &AgentConfig) -> Option<(u16, PathBuf)> {
        match self {
            Self::User(home) => Some((config.http?.port?, home.http_token(&config.name))),
            Self::Daemon(paths) => Some((agents::loopback(config)?, paths.agent_http_token(&config.name))),
        }
    }

    pub(super) fn log(&self, agent: &str) -> PathBuf {
        match self {
            Self::User(home) => home.log(agent),
            Self::Daemon(paths) => paths.agent_log(agent),
        }
    }

    pub(super) fn pins(&self, agent: &str) -> PathBuf {
        match self {
            Self::User(home) => home.pins(agent),
            Self::Daemon(paths) => paths.agent_pins(agent),
        }
    }

    /// Becomes the user who owns the agent's files. A worker of the daemon reads what agents and providers send and owns its
    /// directory, so root must not follow a link that the worker may have put there.
    pub(super) fn enter(&self, agent: &str) -> anyhow::Result<()> {
        let Self::Daemon(paths) = self else { return Ok(()) };
        let dir = paths.agents().join(agent);
        let found = match fs::symlink_metadata(&dir) {
            Ok(found) => found,
            // The agent was never started.
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            Err(error) => return Err(error).with_context(|| format!("cannot read {}", dir.display())),
        };
        if !geteuid().is_root() {
            bail!("{agent} is an agent of the daemon, and only root may read its files; try again with sudo");
        }
        become_user(found.uid()).with_context(|| format!("cannot become the owner of {}", dir.display()))
    }
}

fn become_user(uid: u32) -> nix::Result<()> {
    setgroups(&[])?;
    setgid(Gid::from_raw(uid))?;
    setuid(Uid::from_raw(uid))
}
