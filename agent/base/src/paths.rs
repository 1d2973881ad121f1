//! Where things live on this host, and the environment variables that move them (for tests).

use std::{env, path::PathBuf};

/// The agent's socket, in its directory.
pub const AGENT_SOCKET: &str = "agent.sock";
/// The provider's own API, beside it.
pub const HTTP_SOCKET: &str = "http.sock";
/// The token of an agent's HTTP endpoint on loopback, in the directory of what its worker keeps.
pub const HTTP_TOKEN: &str = "http-token";

/// The directories that Ringfence uses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Paths {
    /// Sockets and the containers' records: `/run/ringfence`, or `RINGFENCE_RUNTIME_DIR`.
    pub runtime: PathBuf,
    /// What survives a boot: `/var/lib/ringfence`, or `RINGFENCE_STATE_DIR`.
    pub state: PathBuf,
    /// Configuration: `/etc/ringfence`, or `RINGFENCE_CONFIG_DIR`.
    pub config: PathBuf,
    /// Pinned programs, links and maps: `/sys/fs/bpf/ringfence`.
    pub pins: PathBuf,
}

impl Paths {
    /// The host's directories, moved by the environment where it says so.
    pub fn from_env() -> Self {
        let dir = |variable: &str, default: &str| {
            env::var_os(variable)
                .filter(|value| !value.is_empty())
                .map_or_else(|| default.into(), PathBuf::from)
        };
        Self {
            runtime: dir("RINGFENCE_RUNTIME_DIR", ringfence_wire::message::RUNTIME_DIR),
            state: dir("RINGFENCE_STATE_DIR", "/var/lib/ringfence"),
            config: dir("RINGFENCE_CONFIG_DIR", "/etc/ringfence"),
            pins: PathBuf::from("/sys/fs/bpf/ringfence"),
        }
    }

    /// The admin socket.
    pub fn admin_socket(&self) -> PathBuf {
        self.runtime.join(ringfence_wire::message::ADMIN_SOCKET)
    }

    /// The enrolment socket.
    pub fn enroll_socket(&self) -> PathBuf {
        self.runtime.join(ringfence_wire::message::ENROLL_SOCKET)
    }

    /// The query socket, the auditor's.
    pub fn query_socket(&self) -> PathBuf {
        self.runtime.join(ringfence_wire::message::QUERY_SOCKET)
    }

    /// The socket of MCP sessions, the auditor's.
    pub fn mcp_socket(&self) -> PathBuf {
        self.runtime.join(ringfence_wire::mcp::MCP_SOCKET)
    }

    /// One record for each container, so that a restarted core adopts it.
    pub fn containers(&self) -> PathBuf {
        self.runtime.join("containers")
    }

    /// Certificates that programs of containers with credentials trust: a directory for each container.
    pub fn bundles(&self) -> PathBuf {
        self.runtime.join("ca")
    }

    /// Sockets of agents: a directory for each.
    pub fn agent_sockets(&self) -> PathBuf {
        self.runtime.join("sockets")
    }

    /// An agent's socket, in the directory that its container mounts.
    pub fn agent_socket(&self, name: &str) -> PathBuf {
        self.agent_sockets().join(name).join(AGENT_SOCKET)
    }

    /// The provider's own API for an agent, beside its socket.
    pub fn agent_http_socket(&self, name: &str) -> PathBuf {
        self.agent_sockets().join(name).join(HTTP_SOCKET)
    }

    /// Conversations of agents: a directory for each, its worker's own. Not below the state directory, which is the
    /// auditor's and closed to everybody else.
    pub fn agents(&self) -> PathBuf {
        let mut name = self.state.clone().into_os_string();
        name.push("-agents");
        name.into()
    }

    /// An agent's conversation.
    pub fn agent_log(&self, name: &str) -> PathBuf {
        self.agents().join(name).join("log/conversation.ndjson")
    }

    /// What an agent's MCP tools looked like when they were first used.
    pub fn agent_pins(&self, name: &str) -> PathBuf {
        self.agents().join(name).join("state/mcp-pins.json")
    }

    /// The token of its HTTP endpoint on loopback.
    pub fn agent_http_token(&self, name: &str) -> PathBuf {
        self.agents().join(name).join("state").join(HTTP_TOKEN)
    }

    /// Language models and MCP servers for all agents of this host.
    pub fn registry(&self) -> PathBuf {
        self.config.join("registry.toml")
    }

    /// The profiles of this host.
    pub fn profiles(&self) -> PathBuf {
        self.config.join("profiles")
    }
}
