//! The audit store: one SQLite database, and the only SQL there is. One [`Writer`], any number of [`Reader`]s.
//!
//! | file | what |
//! |---|---|
//! | `schema`, `mcp_schema` | the tables, as numbered migrations; the tables of MCP sessions |
//! | `connection`, `error` | connections, and reading rows; why the store cannot do something |
//! | `write`, `read` | events: one transaction per batch; questions, each on a read-only connection of its own |
//! | `turn` | whose turn it is to write |
//! | `client_groups` | what is remembered of each client's calls between two writes |
//! | `session_writer`, `mcp_write`, `mcp_read`, `session_readers` | MCP sessions: the writer; a journal's entries to rows; rows as JSON; readers that are used again |
//! | `filter` | which calls are asked for |
//! | `ledger` | the ledger of sessions |
//! | `policy_rules`, `condition_columns` | rules of the database; the columns of their conditions |
//! | `rule_changes`, `rule_trials` | changing one rule, and its entry of the ledger; what a change would have meant |
//! | `standing_approvals` | approvals of more than one call: given, used, ended |
//! | `rule_hits` | how often verdicts name each rule |
//! | `rule_files` | which rule file is in force, and changes that wait for a person |
//! | `agents`, `agent_bytes` | agents: requests, tool calls, tags; a bound on the bytes of their rows |
//! | `hooks`, `refusals` | what agents' hooks say of calls; what was refused on agents' sockets |
//! | `call_list` | one list of tool calls, whatever carried them |
//! | `intents`, `spans` | which intent a call belongs to; which calls were in flight, for attribution |
//! | `tools`, `tool_reads`, `tool_decisions` | the inventory of servers and their tools, and what is pinned; reading it; what a person decides |
//! | `stderr` | what servers wrote to standard error |
//! | `retention` | how long and how much of the record is kept |
//! | `event_retention`, `session_retention`, `session_removal` | deleting events; choosing whole MCP sessions to remove, and removing one in small steps |

// A path may be somebody else's by the time it is used: files by descriptor (`ringfence-files`). Tests set their scenes.
#![cfg_attr(not(test), deny(clippy::disallowed_methods))]
// Where nobody reads standard output any more (`| head`), `println!` panics.
#![cfg_attr(not(test), deny(clippy::print_stdout))]

mod agent_bytes;
mod agent_tools;
mod agents;
mod call_list;
mod client_groups;
mod condition_columns;
mod connection;
mod error;
mod event_retention;
mod filter;
mod hooks;
mod intents;
mod ledger;
mod mcp_read;
mod mcp_schema;
mod mcp_write;
mod name_approvals;
mod policy_rules;
mod read;
mod refusals;
mod retention;
mod rule_changes;
mod rule_files;
mod rule_hits;
mod rule_trials;
mod run_lines;
mod schema;
mod session_readers;
mod session_removal;
mod session_retention;
mod session_writer;
mod spans;
mod standing_approvals;
mod stderr;
#[cfg(test)]
mod tests;
mod tool_decisions;
mod tool_reads;
mod tools;
mod turn;
mod unvouched;
mod vouched;
mod write;

pub use agent_tools::{AgentServer, OfAgent};
pub use agents::{AgentCall, AgentIntent, TraceTarget};
pub use condition_columns::mcp_schema_sql;
pub use error::Error;
pub use filter::CallFilter;
pub use hooks::HookWord;
pub use mcp_read::{SessionReader, Shown};
pub use mcp_schema::TABLES as MCP_TABLES;
pub use name_approvals::NameFacts;
pub use read::{Filter, Losses, Reader, Viewer};
pub use retention::Retention;
pub use rule_changes::Changed;
pub use rule_files::{Compared, Standing};
pub use rule_trials::MOST_PATTERNS;
pub use session_readers::SessionReaders;
pub use session_writer::{Position, SessionWriter};
pub use spans::{Inside, MOST_SPANS, RunCalls};
pub use standing_approvals::{ActiveApproval, CallFacts, Given};
pub use tool_decisions::Decided;
pub use tools::CONTAINED;
pub use write::{Event, Incoming, Writer, is_denied};

use connection::open_existing;
use error::sql;
use ringfence_files::Dir;
use std::{
    ffi::OsString,
    io,
    path::{Path, PathBuf},
    thread,
    time::{Duration, Instant},
};

/// The database's file name within the daemon's state directory.
pub const FILE: &str = "audit.db";

/// How long readers that open the new file at the same moment may be in the way, and how often it is tried meanwhile.
const IN_THE_WAY: Duration = Duration::from_secs(5);
const RETRY: Duration = Duration::from_millis(20);

/// A database ready for writing, and what had to be done for it.
#[derive(Debug)]
pub struct Opened {
    /// The connection.
    pub writer: Writer,
    /// Where the file that was here was moved to, because it was corrupt.
    pub moved_to: Option<PathBuf>,
}

/// Opens a database for writing; creates it, brings it up to date, and replaces it by a new
/// one if it is corrupt. New events get ids above `after`.
///
/// # Errors
/// [`Error`]; see [`Error::may_pass`].
pub fn open(path: &Path, after: u64) -> Result<Opened, Error> {
    match open_existing(path).and_then(|connection| Writer::new(connection, after)) {
        Ok(writer) => Ok(Opened { writer, moved_to: None }),
        Err(error) if error.is_corrupt() => replace(path, after),
        Err(error) => Err(error),
    }
}

/// Moves the database aside, because it is corrupt, and starts a new one. New events get ids above `after`.
///
/// # Errors
/// [`Error`]; see [`Error::may_pass`].
pub fn replace(path: &Path, after: u64) -> Result<Opened, Error> {
    let moved_to = move_aside(path)?;
    let until = Instant::now() + IN_THE_WAY;
    loop {
        match open_existing(path).and_then(|connection| Writer::new(connection, after)) {
            Ok(writer) => return Ok(Opened { writer, moved_to: Some(moved_to) }),
            // A later try would find a database that is whole, and nobody would say that another one was moved.
            Err(error) if error.may_pass() && Instant::now() < until => thread::sleep(RETRY),
            Err(error) => return Err(error),
        }
    }
}

/// Renames in the store's own directory.
fn rename(from: &Path, to: &Path) -> io::Result<()> {
    let (dir, name) = Dir::of(from)?;
    dir.rename(&name, to.file_name().unwrap_or_default())
}

/// Moves a corrupt database and its write-ahead log out of the way, to `audit.db.corrupt-TIME`.
fn move_aside(path: &Path) -> Result<PathBuf, Error> {
    let with = |suffix: &str| {
        let mut name = OsString::from(path);
        name.push(suffix);
        PathBuf::from(name)
    };
    let time = jiff::Timestamp::now().strftime("%Y%m%dT%H%M%S%.6fZ");
    let target = with(&format!(".corrupt-{time}"));
    rename(path, &target).map_err(|source| Error::MoveAside { path: path.to_owned(), source })?;
    for suffix in ["-wal", "-shm"] {
        let mut name = target.clone().into_os_string();
        name.push(suffix);
        match rename(&with(suffix), Path::new(&name)) {
            Err(source) if source.kind() != io::ErrorKind::NotFound => {
                return Err(Error::MoveAside { path: with(suffix), source });
            }
            _ => {}
        }
    }
    Ok(target)
}
