//! What one agent's LLM worker and its supervisor say to each other, over a stream socketpair made by the supervisor: the
//! core, or the service of one user (`ringfence agent start`).
//!
//! The worker's end is its standard input. The supervisor says [`ToWorker::Start`] and then one [`ToWorker::Credential`]
//! for each that the configuration wants; from then on the worker asks, and each question that has an answer gets one
//! [`ToWorker::Answer`] with the question's number. The end of the stream is the end of the supervisor, and the worker's.
//!
//! A user's service has no part in the kernel: its workers report nothing, and ask it for a line to the auditor alone
//! ([`ToCore::ToolsLine`]). It changes what a worker that
//! runs works with ([`ToWorker::Replace`], [`ToWorker::Listen`]), where the core starts another worker. `ringfence run` is such
//! a service for one worker, and where the core took the run's container in, it hands the worker a line on which the core takes
//! reports about that container ([`ToWorker::ReportTo`]) and ties its processes to calls ([`ToCore::Tie`]), and nothing else.
//! What a tool's shell runs, and what the kernel denied a call, the worker asks of its supervisor, which is not confined
//! ([`ToCore::CommandLine`], [`ToCore::DenialsOf`]).
//!
//! The worker reads what agents and providers say, and may be subverted: the core parses nothing of theirs. What is for
//! the auditor ([`ToCore::Report`]) passes through the core as raw JSON.

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use std::path::PathBuf;

/// Most bytes of a message of the core's: a configuration is the longest.
pub const MAX_ORDER: usize = 1 << 20;
/// Most bytes of a message of the worker's.
pub const MAX_QUESTION: usize = 64 << 10;
/// Most bytes of a report.
pub const MAX_REPORT: usize = 16 << 10;
/// Messages that the core takes on a run's line at once, and in a second from then on. What is beyond waits with its sender.
pub const LINE_BURST: u32 = 512;
/// See [`LINE_BURST`].
pub const LINE_PER_SECOND: u32 = 64;
/// Most denials of a call that are told one by one.
pub const MAX_DENIALS: usize = 3;
/// Most bytes of each text in a [`Denial`].
pub const MAX_DENIAL_TEXT: usize = 4 << 10;

/// What the supervisor says.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ToWorker {
    /// The first message; beside it the listening socket, and behind that those of the HTTP endpoint, if there are any:
    /// the unix socket, loopback's.
    Start(Start),
    /// A credential; beside it a descriptor to read it from. They come in the order of [`Start::credentials`], or of
    /// [`Replacement::credentials`].
    Credential,
    /// Another configuration, in force from the next turn on. Of a user's service; answered by [`ToCore::Ready`] or
    /// [`ToCore::Failed`].
    Replace(Replacement),
    /// The HTTP endpoint's clients connect to the sockets beside this from now on, in the order of [`ToWorker::Start`], and
    /// no more to those of before. Of a user's service; answered as [`ToWorker::Replace`].
    Listen {
        /// The unix socket is there; without it the endpoint ends.
        http: bool,
        /// And loopback's.
        loopback: bool,
    },
    /// Report over the socket beside this what the HTTP endpoint's clients are asked and call: its other end is the core's. Of
    /// `ringfence run`, at most once; answered by [`ToCore::Ready`].
    ReportTo {
        /// Behind it comes the listening socket of the run's ties ([`crate::tie`]), for processes of this user.
        ties: Option<u32>,
        /// The model is to hear what the kernel denied its calls: [`ToCore::DeniedSoFar`] and [`ToCore::DenialsOf`] are
        /// answered.
        #[serde(default)]
        denials: bool,
    },
    /// Say what you are doing. Of a user's service; answered by one [`ToCore::Status`].
    Count,
    /// The answer to a question.
    Answer {
        /// The question's number.
        number: u64,
        /// What is said.
        answer: Answer,
    },
    /// End when nothing is under way any more, and soon.
    Stop,
}

/// What a worker is started with.
#[derive(Debug, Serialize, Deserialize)]
pub struct Start {
    /// The agent's configuration, without credentials.
    pub config: Box<RawValue>,
    /// Who supervises it.
    pub by: Supervisor,
    /// Whose each credential is.
    pub credentials: Vec<CredentialOwner>,
    /// The HTTP endpoint's listening socket comes, too.
    pub http: bool,
    /// And behind it one on loopback.
    pub loopback: bool,
}

/// Who supervises a worker, and so where the worker keeps its files.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Supervisor {
    /// The core: it knows peers, tags processes and passes reports on.
    Core {
        /// The worker's own directory: its conversation's log and what it keeps besides.
        dir: PathBuf,
    },
    /// The service of one user, which does none of that. Both directories are there.
    User {
        /// For the conversation's log and that of HTTP calls.
        logs: PathBuf,
        /// For what it keeps besides.
        state: PathBuf,
    },
}

/// What a worker that runs is to work with.
#[derive(Debug, Serialize, Deserialize)]
pub struct Replacement {
    /// The agent's configuration, without credentials.
    pub config: Box<RawValue>,
    /// Whose each credential is.
    pub credentials: Vec<CredentialOwner>,
}

/// Whose a credential is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CredentialOwner {
    /// The language model's.
    Llm,
    /// The id of the account that the language model's is of, where its provider wants that beside it.
    Account,
    /// An MCP server's, by the name of its section.
    Mcp(String),
}

/// What the worker says.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ToCore {
    /// What it was told last is in force; at first: the log is read, the socket is served. No answer.
    Ready,
    /// What it was told last cannot be done, and why. At first: it ends. No answer.
    Failed(String),
    /// Who is at the other end of the connection beside this? Answered by [`Answer::Speaker`].
    Speaker {
        /// The worker's own number for the question, never used twice.
        number: u64,
    },
    /// Tie the process behind the pidfd beside this to a tool call; beside it, too, the connection of the runtime whose
    /// child it is. Answered by [`Answer::Tagged`].
    Tag {
        /// As a speaker's.
        number: u64,
    },
    /// What does the parent of the process at the other end of the connection beside this run? Of a run's worker, to `ringfence
    /// run`. Answered by [`Answer::CommandLine`].
    CommandLine {
        /// As a speaker's.
        number: u64,
    },
    /// Tie the parent of the process at the other end of the connection beside this to a tool call. Of a run's worker, on the
    /// run's own line. Answered by [`Answer::Tagged`] or [`Answer::NotTied`].
    Tie {
        /// As a speaker's.
        number: u64,
        /// Process id of that parent, as [`Answer::CommandLine`] has it: it is not tied where it is another by now.
        parent: u32,
    },
    /// Could it be tied? Answered by [`Answer::CouldBeTied`] or [`Answer::NotTied`].
    CouldBeTied {
        /// As a speaker's.
        number: u64,
        /// As in [`ToCore::Tie`].
        parent: u32,
    },
    /// How many operations of the run's container were denied up to now? Of a run's worker, on the run's own line. Answered by
    /// [`Answer::DeniedSoFar`].
    DeniedSoFar {
        /// As a speaker's.
        number: u64,
    },
    /// What was denied to this call? Of a run's worker, to `ringfence run`. Answered by [`Answer::Denials`].
    DenialsOf {
        /// As a speaker's.
        number: u64,
        /// The call's key, as in [`crate::trace::AgentEvent::Call`]: ids are given twice.
        key: String,
    },
    /// A connection to the auditor, to tell it of the tools of this agent's MCP servers. Answered by [`Answer::ToolsLine`].
    ToolsLine {
        /// As a speaker's.
        number: u64,
    },
    /// What it is doing, for `ringfence status`. No answer.
    Status(AgentCounts),
    /// The provider refused its key: there may be a fresh one. A user's service answers with [`ToWorker::Replace`] where it could
    /// be read; the core has given what there is.
    KeyRefused,
    /// A [`crate::trace::AgentEvent`] for the auditor, unread by the core, which adds whose it is. No answer.
    Report(Box<RawValue>),
    /// More reports wait than may be written now. Of a run's worker, on the run's own line: if the line ends, they are lost. No
    /// answer.
    Behind {
        /// Nothing that they are about began before this, ns since boot; `None`: none wait any more.
        since: Option<u64>,
    },
}

/// An answer of the core's.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Answer {
    /// Who it is.
    Speaker(PeerIdentity),
    /// The process has this tag, and so will all that it starts. Random, not 0.
    Tagged {
        /// The tag, as in events.
        tag: u64,
        /// The public id of the container that the process is in.
        container: String,
    },
    /// What a process runs.
    CommandLine {
        /// Process id, in the host's namespace.
        pid: u32,
        /// Its arguments, the first being its name. One that is not UTF-8 is empty here.
        arguments: Vec<String>,
    },
    /// The process has no tag, and would have been given one.
    CouldBeTied,
    /// It is not tied, or could not be.
    NotTied {
        /// What that says of the call.
        kind: NotTied,
        /// Why.
        why: String,
    },
    /// So many operations of the container were denied since it began, recorded or not.
    DeniedSoFar(u64),
    /// What was denied to a call, as far as that is certain.
    Denials(Denials),
    /// The connection is beside this; what is said there is in [`crate::agent_tools`].
    ToolsLine,
    /// No, and why.
    Refused(String),
}

/// What it says of a call that a process which runs its words is not tied to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NotTied {
    /// Nothing: the process is not of the run's container, or works for a call already.
    Excused,
    /// It may be the call's own all the same.
    Unfit,
    /// It has this tag, and so will all that it starts; but who asked has ended, and the command may have begun before.
    Late(u64),
}

/// What the kernel denied to one tool call.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Denials {
    /// Those that differ, at most [`MAX_DENIALS`]: first what a line of the profile can change, oldest first.
    pub first: Vec<Denial>,
    /// How many others there are.
    pub more: u64,
}

/// One denial, for who is not there to ask. Each text has at most [`MAX_DENIAL_TEXT`] bytes, and is as it is on record: who
/// shows it escapes it, and takes credentials out of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Denial {
    /// The operation.
    pub what: String,
    /// What it was done to, in the words of whoever did it: data, and no sentence. `None`: nothing that has a name.
    pub target: Option<String>,
    /// What decided, and where that stands. A sentence.
    pub why: String,
    /// What a person could change. A sentence.
    pub advice: String,
}

/// Who made a connection, in the kernel's terms.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PeerIdentity {
    /// Process id, in the host's namespace.
    pub pid: u32,
    /// User id, in the host's namespace.
    pub uid: u32,
    /// The container that it belongs to; `None`: it is ungoverned.
    pub container: Option<PeerContainer>,
}

/// A container, as far as a worker needs to know it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PeerContainer {
    /// Its public id, or the kernel's where no record says.
    pub id: String,
    /// It is the asking agent's own: of the same profile.
    pub own: bool,
}

/// What an agent's worker is doing, and what it counted of that.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct WorkerCounts {
    /// Whether a runtime is registered.
    pub runtime: bool,
    /// Whether it works on something.
    pub busy: bool,
    /// Messages that wait.
    pub waiting: u64,
    /// Turns, failed ones included.
    pub turns: u64,
    /// Turns that failed.
    pub failed: u64,
    /// Tokens that went to the provider.
    pub input_tokens: u64,
    /// Tokens that came from it.
    pub output_tokens: u64,
    /// Tokens that the provider read from its cache.
    pub cache_read_tokens: u64,
    /// Tokens that it wrote there.
    pub cache_write_tokens: u64,
    /// Bytes that the provider is sent of the conversation.
    pub conversation_bytes: u64,
    /// Peers hung up on because they did not read.
    pub slow_peers: u64,
    /// Connections refused because there were too many.
    pub refused_connections: u64,
    /// Frames and requests that were none.
    pub malformed: u64,
    /// HTTP calls; they are counted as turns, too.
    pub http_calls: u64,
}

/// What an agent's worker counted, with what it counted of its link to the core.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct AgentCounts {
    /// Beside the link.
    #[serde(flatten)]
    pub worker: WorkerCounts,
    /// Tool calls whose processes were tagged.
    pub tags: u64,
    /// Tags that were refused.
    pub refused_tags: u64,
    /// Peers that may not say what they said.
    pub refused_peers: u64,
    /// Reports that were dropped, since the core took too few of them.
    pub lost_reports: u64,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::audit::{AgentReport, Payload};

    #[test]
    fn a_report_passes_through_the_core_as_the_worker_wrote_it() {
        let event = r#"{ "said":"of a later version", "more":[1, 2] }"#;
        let sent = format!(r#"{{"report":{event}}}"#);
        let ToCore::Report(json) = serde_json::from_str(&sent).unwrap() else { panic!("not a report") };
        let report =
            AgentReport { agent: "a".into(), uid: 0, container: None, at: 1, payload: Payload::Event(json) };
        let passed_on = serde_json::to_string(&report).unwrap();
        assert_eq!(passed_on, format!(r#"{{"agent":"a","uid":0,"at":1,"what":{{"said":{event}}}}}"#));
        for broken in ["", "{", r#"{"said":}"#] {
            assert!(
                serde_json::from_str::<ToCore>(&format!(r#"{{"report":{broken}}}"#)).is_err(),
                "{broken}"
            );
        }
    }
}
