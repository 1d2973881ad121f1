//! What an agent's worker reports about it, and the trace that the auditor makes of that and of the kernel's events.
//!
//! What is in a report was chosen by a worker from what an agent, its provider and its owner said: texts are cut and
//! stripped of the agent's credentials there, and bounded again where they are stored.

use crate::event::Event;
use serde::{Deserialize, Serialize};

/// Most characters of a text in a report.
pub const MAX_TEXT: usize = 2000;
/// Most bytes of an id, and of a tool's name, that a report can carry.
pub const MAX_ID: usize = 256;
/// Most bytes of the id of a client's session.
pub const MAX_SESSION: usize = 128;
/// Most bytes of an id of the provider's that was replaced by another.
pub const MAX_GIVEN: usize = 80;
/// Most paths that a call's arguments name in a report.
pub const MAX_PATHS: usize = 16;
/// Most bytes of them together.
pub const MAX_PATHS_BYTES: usize = 4096;

/// Who asked an agent for something.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Via {
    /// Its owner: a `send` from the host.
    #[default]
    Send,
    /// A client of its HTTP endpoint, which speaks from the container: what was asked is the client's own word.
    Http,
}

/// What a worker reports, as JSON in [`crate::audit::Payload::Event`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "said", rename_all = "snake_case", deny_unknown_fields)]
pub enum AgentEvent {
    /// The worker began. Whatever an earlier one left under way is over.
    Began {
        /// When, by the clock of the kernel's events: ns since boot.
        moment: u64,
    },
    /// A message went to the runtime, or a client asks for something; said again of one that had failed, it goes on.
    Intent {
        /// Its id: 12 hex digits, random.
        id: String,
        /// User id of the sender, where the kernel said.
        uid: Option<u32>,
        /// The beginning of its text.
        text: String,
        /// Who asked.
        #[serde(default)]
        via: Via,
        /// The session that a client over HTTP says it belongs to.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        session: Option<String>,
    },
    /// The agent is done with it: its calls that have no result get none any more.
    IntentEnded {
        /// Its id.
        id: String,
        /// Why it failed; `None`: it did not.
        error: Option<String>,
        /// When, ns since boot.
        moment: u64,
    },
    /// The model wants a tool called.
    Call {
        /// The worker's own name for it: 16 hex digits, random. Everything that is said of the call later names this.
        key: String,
        /// What the runtime or the client calls it: the provider's id, or one that replaces it.
        id: String,
        /// The provider's id, where it was replaced.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        renamed: Option<Renamed>,
        /// The message that it is for; `None`: the runtime spoke on its own account.
        intent: Option<String>,
        /// The tool.
        tool: String,
        /// The MCP server that has it; `None`: the runtime.
        server: Option<String>,
        /// The beginning of its arguments' JSON.
        input: String,
        /// The files that its arguments name; none, of a shell's. `None`: not known, or more than [`MAX_PATHS`] or
        /// [`MAX_PATHS_BYTES`].
        #[serde(default, skip_serializing_if = "Option::is_none")]
        paths: Option<Vec<String>>,
        /// When it was asked for, by the clock of the kernel's events: ns since boot.
        moment: u64,
    },
    /// Its result came.
    CallEnded {
        /// The call's key.
        key: String,
        /// Whether it failed.
        is_error: bool,
        /// The beginning of its text.
        output: String,
        /// When, ns since boot.
        moment: u64,
    },
    /// A process of the runtime's was tagged for a call.
    Tagged {
        /// The call's key.
        key: String,
        /// The tag, as the core gave it.
        tag: u64,
        /// Nothing named the call: the process runs what it alone says.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        matched: bool,
    },
    /// Another process than the one that was tagged for a call says that it is the call's: which of them is, nobody knows.
    Contested {
        /// The call's key.
        key: String,
    },
    /// A call is over, as a hook of the agent's says: its container's own word.
    HookDone {
        /// The call's key.
        key: String,
        /// The agent's session.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        session: Option<String>,
        /// Whether it failed; `None`: the agent does not say.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        failed: Option<bool>,
        /// When the hook said it, ns since boot.
        moment: u64,
    },
    /// Of a run: reports of it are lost, and with them what a call was, or its end. What was in flight in that time is not known.
    Lost {
        /// How many, at least.
        count: u64,
        /// Since when, ns since boot; 0: at any time.
        from: u64,
        /// Until when; `None`: it goes on.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        to: Option<u64>,
    },
    /// Somebody was refused something.
    Refused(Refusal),
}

/// A tool call's id that the provider chose and nobody could use.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Renamed {
    /// Its beginning: at most [`MAX_GIVEN`] bytes, as the provider wrote them.
    pub given: String,
    /// What was wrong with it.
    pub why: String,
}

/// A refusal on an agent's socket.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Refusal {
    /// `register`, `send`, `tag`, `tie` or `connect`.
    pub what: String,
    /// Why.
    pub why: String,
    /// Process id of the peer, in the host's namespace.
    pub pid: Option<u32>,
    /// User id of the peer.
    pub uid: Option<u32>,
    /// Public id of its container.
    pub container: Option<String>,
}

/// What is asked for.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TraceQuery {
    /// An agent's name, an intent's id (or its beginning), a call's id; `None`: the newest intents of all agents.
    #[serde(default)]
    pub what: Option<String>,
    /// At most so many intents, the newest.
    #[serde(default)]
    pub limit: Option<u32>,
}

/// The answer: intents, oldest first.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Trace {
    /// The intents.
    pub intents: Vec<TracedIntent>,
    /// Refusals on the agents' sockets in the same time, oldest first.
    pub refusals: Vec<TracedRefusal>,
    /// Something was left out because there is too much of it.
    pub more: bool,
}

/// What a human asked for, and what came of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TracedIntent {
    /// Its id; `None`: calls that no message asked for.
    pub intent: Option<String>,
    /// The agent; of a run, `PROFILE@UID` ([`crate::audit::run_agent`]).
    pub agent: String,
    /// The run's container: all of this is the word of the run's user about it. `None`: an agent of the daemon's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub container: Option<String>,
    /// When it was delivered: RFC 3339, UTC.
    pub ts: String,
    /// When the agent was done with it.
    pub ended: Option<String>,
    /// User id of the sender.
    pub uid: Option<u32>,
    /// Who asked.
    #[serde(default)]
    pub via: Via,
    /// The session that a client over HTTP says it belongs to: its own word.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session: Option<String>,
    /// The beginning of its text.
    pub text: String,
    /// Why it failed.
    pub error: Option<String>,
    /// What the model wanted called, oldest first.
    pub calls: Vec<TracedCall>,
}

/// One tool call.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TracedCall {
    /// The provider's id, or the one that replaces it: no two calls of an agent's have the same.
    pub call: String,
    /// The worker's own name for it; `None`: from before there was one.
    #[serde(default)]
    pub key: Option<String>,
    /// The provider's id, where it was replaced.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub renamed: Option<Renamed>,
    /// When the model asked for it: RFC 3339, UTC.
    pub ts: String,
    /// When its result came.
    pub ended: Option<String>,
    /// The tool.
    pub tool: String,
    /// The MCP server that has it; `None`: the runtime.
    pub server: Option<String>,
    /// The beginning of its arguments' JSON.
    pub input: String,
    /// Whether it failed; `None`: no result came yet.
    pub is_error: Option<bool>,
    /// The beginning of its result's text.
    pub output: Option<String>,
    /// What a hook of the agent's says of it; `None`: nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hook: Option<TracedHook>,
    /// Whether its process tree was tagged in the kernel.
    pub tagged: bool,
    /// What the kernel saw of it, oldest first; each says how sure it is.
    pub events: Vec<Event>,
    /// There are more events than are shown.
    pub more: bool,
}

/// What a hook of the agent's says of a call: its container's own word.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TracedHook {
    /// When it said that the call is over: RFC 3339, UTC.
    pub ts: String,
    /// Whether the call failed; `None`: the agent does not say.
    pub failed: Option<bool>,
    /// The agent's session.
    pub session: Option<String>,
}

/// A refusal, with its agent and time.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TracedRefusal {
    /// The agent.
    pub agent: String,
    /// When: RFC 3339, UTC.
    pub ts: String,
    /// What was refused.
    #[serde(flatten)]
    pub refusal: Refusal,
}
