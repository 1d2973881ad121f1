//! What is said on the admin, enrolment and query sockets. One request and one [`Reply`] a message, except where a
//! request says otherwise.
//!
//! | socket | who may connect | asks for |
//! |---|---|---|
//! | `/run/ringfence/admin.sock` (0600 root) | ungoverned root | [`AdminRequest`] |
//! | `/run/ringfence/enroll.sock` (0660 root:ringfence) | group `ringfence`, own children only | [`EnrollRequest`] |
//! | `/run/ringfence/query.sock` (0666, the auditor's) | anyone; a uid sees its own, root all | [`QueryRequest`] |

use crate::{
    calls::{CallList, CallsQuery},
    credentials::SecretFor,
    event::{Event, Explanation},
    status::Mode,
    trace::{Trace, TraceQuery},
};
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// Where the daemon's sockets live, unless `RINGFENCE_RUNTIME_DIR` says otherwise (tests).
pub const RUNTIME_DIR: &str = "/run/ringfence";
/// Name of the admin socket in the runtime directory.
pub const ADMIN_SOCKET: &str = "admin.sock";
/// Name of the enrolment socket in the runtime directory.
pub const ENROLL_SOCKET: &str = "enroll.sock";
/// Name of the query socket in the runtime directory.
pub const QUERY_SOCKET: &str = "query.sock";

/// Most bytes of a request on any of these sockets. Answers may be longer.
pub const MAX_REQUEST: usize = 64 << 10;

/// Most bytes of the certificates that a command's programs trust ([`EnrollRequest::Trusted`]).
pub const MAX_TRUSTED: usize = 2 << 20;

/// An answer: what was asked for, or why not.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reply<T> {
    /// It was done.
    Ok(T),
    /// It was not.
    Failed(Failure),
}

impl<T> Reply<T> {
    /// The answer as a `Result`.
    ///
    /// # Errors
    /// The peer's failure.
    pub fn into_result(self) -> Result<T, Failure> {
        match self {
            Self::Ok(value) => Ok(value),
            Self::Failed(failure) => Err(failure),
        }
    }
}

/// A failure, said in full: what happened, to what, why, what to do.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("{error}")]
pub struct Failure {
    /// The whole message.
    pub error: String,
}

impl Failure {
    /// A failure from its message.
    pub fn new(error: impl Into<String>) -> Self {
        Self { error: error.into() }
    }
}

// Admin

/// A request on the admin socket.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "request", rename_all = "snake_case", deny_unknown_fields)]
pub enum AdminRequest {
    /// Govern a process that already runs, with all its threads and descendants. The pidfd travels beside the message (SCM_RIGHTS).
    /// Answer: [`Enrolled`].
    EnrollPid {
        /// Profile name or absolute path.
        profile: String,
    },
    /// Govern every process in a cgroup and below. Answer: [`Enrolled`].
    EnrollCgroup {
        /// Absolute path below the mount of cgroup v2.
        path: String,
        /// Profile name or absolute path.
        profile: String,
    },
    /// What is loaded, which containers there are, what was counted. Answer: [`crate::status::Status`].
    Status,
    /// Read the profiles again, as SIGHUP does. Answer: [`Reloaded`].
    Reload,
    /// Stop an agent until SIGHUP: its worker finishes what it does, and its sockets go. Answer: [`Stopping`].
    StopAgent {
        /// Its name.
        name: String,
    },
    /// Detach and unpin everything and stop. Refused while containers run. Answer: [`Detached`].
    Detach,
}

/// The answer to a reload.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reloaded {
    /// Public ids of the containers that have a new generation.
    pub changed: Vec<String>,
    /// Every profile that was left as it was, and why.
    pub errors: Vec<String>,
    /// What changed in a file but takes effect at a container's next start.
    pub notes: Vec<String>,
}

/// The answer to an agent's stop: its worker was told.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stopping {}

/// The answer to a detach.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Detached {
    /// Pinned objects that were removed.
    pub removed: u32,
}

// Enrolment

/// What the name of a profile begins with where an address is granted beside it: that of a listening socket on loopback, which is
/// the caller's and comes behind the pidfd. An address and a colon follow, and then the profile, which has to have a `[kit]`.
/// Between them may be `@`, the name of an abstract unix socket ([`crate::tie::is_name`]) and a colon: that of a listening one of the
/// caller's, which comes behind the other and is granted, too.
pub const ENDPOINT: &str = "endpoint:";

/// A request on the enrolment socket.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "request", rename_all = "snake_case", deny_unknown_fields)]
pub enum EnrollRequest {
    /// Govern the child behind the pidfd, which travels beside the message (SCM_RIGHTS), from its next exec on. Answer:
    /// [`Enrolled`].
    Enroll {
        /// Profile name (root-owned files only) or, for root, an absolute path.
        profile: String,
        /// What `${WORKDIR}` in the profile stands for: an absolute path.
        #[serde(default)]
        workdir: Option<String>,
        /// Record what would have been denied, deny nothing: only where the profile says so or root asks.
        #[serde(default)]
        audit: bool,
    },
    /// Before [`EnrollRequest::Enroll`], on the same connection: beside it a credential that the profile puts into requests to this
    /// host, as a memfd that is sealed against every change. One message for each, and no answer to it: the profile that the core
    /// reads has to have these very ones ([`crate::credentials::MAX_HOSTS`] at most).
    Credential {
        /// Which one.
        of: SecretFor,
    },
    /// Behind the last of [`EnrollRequest::Credential`]: beside it, as such a memfd, the certificates that the command's programs
    /// trust, as PEM, at most [`MAX_TRUSTED`] bytes. No answer.
    Trusted,
    /// After [`EnrollRequest::Enroll`], on the same connection: what the container's agent is asked and calls will be told here.
    /// It names no container: it is the one that this connection enrolled. Answer: [`Reporting`]. From then on nothing comes
    /// but [`crate::agent::ToCore::Report`], which has no answer, and [`crate::agent::ToCore::Tie`],
    /// [`crate::agent::ToCore::CouldBeTied`] and, where it says so, [`crate::agent::ToCore::DeniedSoFar`], which have. A daemon of before this request ends the connection instead.
    Report,
}

/// The answer to [`EnrollRequest::Report`]: go on.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reporting {
    /// It may be asked how much was denied ([`crate::agent::ToCore::DeniedSoFar`]). A daemon of before ends the line at that.
    #[serde(default)]
    pub counts_denials: bool,
}

/// The answer to an enrolment.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Enrolled {
    /// The container's public id: 12 hex digits.
    pub container: String,
    /// The profile's name.
    pub profile: String,
    /// Whether denials are enforced.
    pub mode: Mode,
    /// Where credentials are put into its requests: the file with the certificates that its programs are to trust.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bundle: Option<PathBuf>,
}

// Queries

/// A request on the query socket. The auditor answers with one or more [`QueryReply`] frames.
///
/// A connection carries one request; closing it ends a `follow`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "request", rename_all = "snake_case", deny_unknown_fields)]
pub enum QueryRequest {
    /// Events, oldest first: [`QueryReply::Events`] frames, then [`QueryReply::End`]; with `follow`, events go on
    /// after it.
    Events(EventsQuery),
    /// One event and what decided it: [`QueryReply::Why`].
    Why {
        /// [`Event::id`].
        event: u64,
    },
    /// What the auditor stored, lost and suffers from: [`QueryReply::Status`].
    Status,
    /// What agents were asked, the tool calls that came of it, and what the kernel saw of them: [`QueryReply::Trace`].
    Trace(TraceQuery),
    /// Tool calls, whatever carried them, the newest first: [`QueryReply::Calls`].
    Calls(CallsQuery),
}

/// Which events are asked for.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EventsQuery {
    /// Only what was denied, or would have been.
    #[serde(default)]
    pub denied: bool,
    /// Only containers whose public id begins with this, or whose profile is this.
    #[serde(default)]
    pub container: Option<String>,
    /// Only connections by name, and questions for names.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub egress: bool,
    /// Of those, only the ones of this host; `*.HOST`: of what is below it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Only events at or after this time: microseconds since 1970, UTC.
    #[serde(default)]
    pub since: Option<i64>,
    /// Only events whose id is above this: where another connection was cut.
    #[serde(default)]
    pub after: Option<u64>,
    /// Only the newest so many of what is already there.
    #[serde(default)]
    pub limit: Option<u32>,
    /// Stay, and send what happens from now on.
    #[serde(default)]
    pub follow: bool,
}

/// An answer on the query socket.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "reply", rename_all = "snake_case")]
pub enum QueryReply {
    /// Some events, in the order of their ids.
    Events {
        /// The events.
        events: Vec<Event>,
    },
    /// Everything that had happened when the request came has been sent.
    End {
        /// Highest id that was looked at.
        last: u64,
        /// The daemon did not answer in time, so some of the last moments' events may be missing.
        behind: bool,
    },
    /// The explanation of one event.
    Why(Box<Explanation>),
    /// The auditor's own state.
    Status(AuditorStatus),
    /// Intents, oldest first.
    Trace(Box<Trace>),
    /// Tool calls, newest first.
    Calls(CallList),
    /// The request cannot be answered.
    Failed(Failure),
}

/// What the auditor says of itself. Rows and losses are the caller's own containers', or everyone's for root.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AuditorStatus {
    /// The database file.
    pub database: String,
    /// Size of the database in bytes, free pages not counted.
    pub bytes: u64,
    /// Events in the database.
    pub rows: u64,
    /// Events stored since the auditor started.
    pub stored: u64,
    /// Why nothing can be stored at the moment (a full disk, say); `None`: all is well.
    pub failing: Option<String>,
    /// Where a corrupt database was moved to when this auditor started.
    pub corrupt_moved_to: Option<String>,
    /// Records of the kernel that could not be decoded, and reports about agents that were refused (`report`) or could not be
    /// stored (`unstored_report`), by reason. Always 0 unless programs and auditor differ in version, a worker was taken over, or
    /// the disk was full.
    pub undecodable: Vec<(String, u64)>,
    /// What was lost, per container; containers that lost nothing are left out.
    pub lost: Vec<Lost>,
    /// MCP sessions: the caller's own, or everyone's for root.
    #[serde(default)]
    pub mcp: McpStatus,
}

/// How an auditor fares with MCP sessions.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct McpStatus {
    /// Sessions that are linked.
    pub sessions: u64,
    /// Connections to the socket, the links among them.
    pub connections: u64,
    /// Calls that wait for a person.
    pub waiting: u64,
    /// Rows read from journals and not in the database yet.
    pub unstored: u64,
    /// Connections and links turned away since the auditor started, since somebody had too many.
    pub turned_away: u64,
    /// The dashboard's port on loopback; 0: none.
    pub dashboard: u16,
}

/// What a container's audit lost on the way, counted where it was lost.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lost {
    /// The container's public id.
    pub container: String,
    /// Its profile.
    pub profile: String,
    /// Denials that the kernel had no room for.
    pub ring_denied: u64,
    /// Other operations that the kernel had no room for.
    pub ring_allowed: u64,
    /// Denials the auditor could not store (full disk).
    pub store_denied: u64,
    /// Other operations the auditor could not store.
    pub store_allowed: u64,
    /// Denials that the kernel counted, and that are neither in an event nor in one of the above: they are on their way, or
    /// were in the memory of a core that was killed.
    #[serde(default)]
    pub missing_denied: u64,
    /// Connections by name and questions for names that are in no event: its egress worker had more than it could tell, or they could
    /// not be stored.
    #[serde(default)]
    pub egress: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_have_the_documented_shape() {
        let request =
            EnrollRequest::Enroll { profile: "coder".into(), workdir: Some("/srv".into()), audit: false };
        let json = serde_json::to_string(&request).unwrap();
        assert_eq!(json, r#"{"request":"enroll","profile":"coder","workdir":"/srv","audit":false}"#);
        assert_eq!(serde_json::from_str::<EnrollRequest>(&json).unwrap(), request);
        let short = r#"{"request":"enroll","profile":"coder"}"#;
        assert!(serde_json::from_str::<EnrollRequest>(short).is_ok());
        let unknown = r#"{"request":"enroll","profile":"coder","as_root":true}"#;
        assert!(serde_json::from_str::<EnrollRequest>(unknown).is_err());
    }

    #[test]
    fn a_reply_is_ok_or_failed() {
        let ok: Reply<u32> = serde_json::from_str(r#"{"ok":7}"#).unwrap();
        assert_eq!(ok.into_result(), Ok(7));
        let failed: Reply<u32> = serde_json::from_str(r#"{"failed":{"error":"no"}}"#).unwrap();
        assert_eq!(failed.into_result(), Err(Failure::new("no")));
    }

    /// It would end the line at a question that it does not know.
    #[test]
    fn a_daemon_that_does_not_say_so_is_not_asked_how_much_was_denied() {
        let says = |text| serde_json::from_str::<Reporting>(text).unwrap().counts_denials;
        assert!(!says("{}"));
        assert!(says(r#"{"counts_denials":true,"more":1}"#));
        assert!(says(&serde_json::to_string(&Reporting { counts_denials: true }).unwrap()));
    }
}
