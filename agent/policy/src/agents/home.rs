//! Where a user's registry, profiles, sockets and logs are.
//!
//! Ours if there is any of it, else those of Tightbeam, whole: a container that mounts its sockets and logs finds them
//! where they were.

use ringfence_base::paths::HTTP_TOKEN;
use std::{
    env,
    fs::DirBuilder,
    io,
    os::unix::fs::DirBuilderExt,
    path::{Path, PathBuf},
};

/// An agent's conversation, in its log directory.
pub const CONVERSATION: &str = "conversation.ndjson";
/// The log of HTTP calls, beside it.
pub const HTTP_LOG: &str = "http.ndjson";
/// What its MCP tools looked like when they were first used, beside that.
pub const PINS: &str = "mcp-pins.json";
/// Held by the worker that has an agent's log and what it keeps.
pub const LOCK: &str = ".lock";

/// The directories of one user.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Home {
    config: PathBuf,
    data: PathBuf,
}

impl Home {
    /// From `XDG_CONFIG_HOME`, `XDG_DATA_HOME` and `HOME`; none where they say nothing.
    pub fn from_env() -> Option<Self> {
        let dir = |variable: &str| env::var_os(variable).map(PathBuf::from).filter(|p| p.is_absolute());
        let home = env::home_dir().filter(|home| home.is_absolute());
        let below = |path: &str| home.as_ref().map(|home| home.join(path));
        let config = dir("XDG_CONFIG_HOME").or_else(|| below(".config"))?;
        let data = dir("XDG_DATA_HOME").or_else(|| below(".local/share"))?;
        Some(Self::choose(&config, &data))
    }

    /// Ours below two directories, or Tightbeam's.
    pub fn choose(config: &Path, data: &Path) -> Self {
        let of = |name: &str| Self { config: config.join(name), data: data.join(name) };
        let used = |home: &Self| home.registry().exists() || home.agents().exists();
        let theirs = of("tightbeam");
        let ours = of("ringfence");
        if !used(&ours) && used(&theirs) { theirs } else { ours }
    }

    /// Makes the directories that the service writes in, and below, and gives them: where symlinks lead, too.
    ///
    /// # Errors
    /// As mkdir(2).
    pub fn writable(&self) -> io::Result<Vec<PathBuf>> {
        let dirs = [self.sockets(), self.data.clone(), self.data.join("logs"), self.data.join("state")];
        dirs.into_iter()
            .map(|dir| {
                DirBuilder::new().recursive(true).mode(0o700).create(&dir)?;
                dir.canonicalize()
            })
            .collect()
    }

    /// LLM providers and MCP servers for all agents.
    pub fn registry(&self) -> PathBuf {
        self.config.join("registry.toml")
    }

    /// One profile for each agent.
    pub fn agents(&self) -> PathBuf {
        self.config.join("agents")
    }

    /// An agent's profile.
    pub fn agent(&self, name: &str) -> PathBuf {
        self.agents().join(format!("{name}.toml"))
    }

    /// One directory for each agent's socket.
    pub fn sockets(&self) -> PathBuf {
        self.config.join("sockets")
    }

    /// An agent's socket. The directory is what a container mounts, so its name there is the same for every agent.
    pub fn socket(&self, name: &str) -> PathBuf {
        self.sockets().join(name).join("agent.sock")
    }

    /// The link to it, where the seed's clients look.
    pub fn socket_link(&self, name: &str) -> PathBuf {
        self.sockets().join(format!("{name}.sock"))
    }

    /// The control socket of `ringfence agent start`. No agent's name begins with a dot.
    pub fn control(&self) -> PathBuf {
        self.sockets().join(".control")
    }

    /// Held by the one `ringfence agent start`.
    pub fn lock(&self) -> PathBuf {
        self.sockets().join(".lock")
    }

    /// The provider's own API for an agent, in the directory that a container mounts.
    pub fn http_socket(&self, name: &str) -> PathBuf {
        self.sockets().join(name).join("http.sock")
    }

    /// The token of an agent's HTTP endpoint on loopback.
    pub fn http_token(&self, name: &str) -> PathBuf {
        self.state(name).join(HTTP_TOKEN)
    }

    /// What an agent's worker keeps beside its log: not in the log's directory, which is mounted in containers.
    pub fn state(&self, name: &str) -> PathBuf {
        self.data.join("state").join(name)
    }

    /// An agent's log directory.
    pub fn logs(&self, name: &str) -> PathBuf {
        self.data.join("logs").join(name)
    }

    /// What an agent's MCP tools looked like when they were first used.
    pub fn pins(&self, name: &str) -> PathBuf {
        self.state(name).join(PINS)
    }

    /// An agent's conversation.
    pub fn log(&self, name: &str) -> PathBuf {
        self.logs(name).join(CONVERSATION)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn tightbeams_directories_are_used_where_ours_are_absent() {
        let dir = tempfile::tempdir().unwrap();
        let choose = || Home::choose(dir.path(), Path::new("/data"));
        assert_eq!(choose().agents(), dir.path().join("ringfence/agents"), "nothing anywhere");
        fs::create_dir_all(dir.path().join("tightbeam/agents")).unwrap();
        // The MCP rules alone are no registry.
        fs::create_dir_all(dir.path().join("ringfence")).unwrap();
        fs::write(dir.path().join("ringfence/rules.yaml"), "").unwrap();
        let theirs = choose();
        assert_eq!(theirs.socket_link("a"), dir.path().join("tightbeam/sockets/a.sock"));
        assert_eq!(theirs.log("a"), Path::new("/data/tightbeam/logs/a/conversation.ndjson"));
        fs::write(dir.path().join("ringfence/registry.toml"), "").unwrap();
        assert_eq!(choose().socket("a"), dir.path().join("ringfence/sockets/a/agent.sock"));
    }
}
