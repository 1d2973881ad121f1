//! The audit store: one SQLite database, and the only SQL there is. One [`Writer`], any number of [`Reader`]s.
//!
//! | file | what |
//! |---|---|
//! | `schema`, `mcp_schema` | the tables, as numbered migrations; the tables of MCP sessions |
//! | `write`, `read` | events: one transaction per batch; questions, each on a read-only connection of its own |
//! | `turn` | whose turn it is to write |
//! | `mcp_write`, `mcp_read` | MCP sessions: a journal's entries to rows; rows as JSON |
//! | `filter` | which calls are asked for |
//! | `ledger`, `rule_files` | the ledger of sessions; which rule file is in force, and changes that wait for a person |
//! | `agents`, `agent_bytes` | agents: requests, tool calls, tags, refusals; a bound on the bytes of their rows |
//! | `intents`, `spans` | which intent a call belongs to; which calls were in flight, for attribution |
//! | `stderr` | what servers wrote to standard error |
//! | `retention` | how long and how much of the record is kept |
//! | `event_retention`, `session_retention`, `session_removal` | deleting events; choosing whole MCP sessions to remove, and removing one in small steps |

// A path may be somebody else's by the time it is used: files by descriptor (`ringfence-files`). Tests set their scenes.
#![cfg_attr(not(test), deny(clippy::disallowed_methods))]
// Where nobody reads standard output any more (`| head`), `println!` panics.
#![cfg_attr(not(test), deny(clippy::print_stdout))]

mod agent_bytes;
mod agents;
mod event_retention;
mod filter;
mod intents;
mod ledger;
mod mcp_read;
mod mcp_schema;
mod mcp_write;
mod read;
mod retention;
mod rule_files;
mod schema;
mod session_removal;
mod session_retention;
mod spans;
mod stderr;
#[cfg(test)]
mod tests;
mod turn;
mod write;

pub use agents::{AgentCall, AgentIntent, TraceTarget};
pub use filter::CallFilter;
pub use mcp_read::{SessionReader, Shown};
pub use mcp_schema::{SCHEMA as MCP_SCHEMA, TABLES as MCP_TABLES};
pub use mcp_write::{Position, SessionWriter};
pub use read::{Filter, Losses, Reader, Viewer};
pub use retention::Retention;
pub use rule_files::{Compared, Standing};
pub use spans::{Inside, MOST_SPANS};
pub use write::{Event, Incoming, Writer, is_denied};

use ringfence_files::Dir;
use rusqlite::{Connection, ErrorCode, OpenFlags};
use std::{
    ffi::OsString,
    fs, io,
    path::{Path, PathBuf},
    time::Duration,
};

/// The database's file name within the daemon's state directory.
pub const FILE: &str = "audit.db";

/// A database up to this size is checked page by page when it is opened; a bigger one where it is read.
const CHECK_BELOW: u64 = 64 << 20;

/// Why the store cannot do what was asked.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The file cannot be opened or created.
    #[error("cannot open the audit database {}; the directory must exist and be writable for this user", path.display())]
    Open {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: rusqlite::Error,
    },
    /// A later version wrote it.
    #[error("the audit database {} is of a later Ringfence (schema {found}, this one knows {known}); run that one, or move the file away", path.display())]
    Newer {
        /// The file.
        path: PathBuf,
        /// Its version.
        found: usize,
        /// Ours.
        known: usize,
    },
    /// A corrupt file could not be moved aside.
    #[error("the audit database {} is corrupt and cannot be moved aside", path.display())]
    MoveAside {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// A user names ever new rule files.
    #[error(
        "this user has more rule files than the audit database remembers; name one of those that are in use"
    )]
    TooManyRuleFiles,
    /// A user's rule file is another one each time.
    #[error("the rule file in force was changed again and again while a new one was compared with it")]
    ChangingRuleFile,
    /// A rule file that no interceptor reads.
    #[error(
        "the rule file is not taken: {0}, and it would be kept for as long as it is in use, in a database that all users share"
    )]
    LongRuleFile(String),
    /// A user adds ever new rules.
    #[error(
        "the database holds {} rules of this user's already, those of subordinate ids included; put more into a rule file",
        ringfence_wire::mcp::MAX_STORED_RULES
    )]
    TooManyRules,
    /// The file was exchanged for another one while it was in use.
    #[error("the audit database was replaced; sessions are read again from their journals")]
    Replaced,
    /// The database is as full as it may be, and most of it is this user's.
    #[error(
        "the sessions of uid {uid} fill the audit database; their journals wait until retention has made room"
    )]
    Crowded {
        /// The user.
        uid: u32,
    },
    /// A statement failed.
    #[error("the audit database cannot {what}")]
    Sql {
        /// What was tried.
        what: &'static str,
        /// Why.
        #[source]
        source: rusqlite::Error,
    },
}

impl Error {
    /// Whether the file's content is broken, so that only a new one helps.
    pub fn is_corrupt(&self) -> bool {
        let (Self::Open { source, .. } | Self::Sql { source, .. }) = self else { return false };
        matches!(source.sqlite_error_code(), Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase))
    }

    /// Whether what was to be written can never be written, now or later, to this or a new file.
    pub fn is_hopeless(&self) -> bool {
        let Self::Sql { source, .. } = self else { return false };
        matches!(
            source.sqlite_error_code(),
            Some(
                ErrorCode::ConstraintViolation
                    | ErrorCode::TooBig
                    | ErrorCode::TypeMismatch
                    | ErrorCode::ApiMisuse
                    | ErrorCode::ParameterOutOfRange
            )
        )
    }

    /// Whether trying again later may help: a full disk, a failing or busy one.
    pub fn may_pass(&self) -> bool {
        let (Self::Open { source, .. } | Self::Sql { source, .. }) = self else { return false };
        matches!(
            source.sqlite_error_code(),
            Some(
                ErrorCode::DiskFull
                    | ErrorCode::SystemIoFailure
                    | ErrorCode::DatabaseBusy
                    | ErrorCode::DatabaseLocked
            )
        )
    }
}

fn sql(what: &'static str) -> impl Fn(rusqlite::Error) -> Error {
    move |source| Error::Sql { what, source }
}

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
    let writer = Writer::new(open_existing(path)?, after)?;
    Ok(Opened { writer, moved_to: Some(moved_to) })
}

fn open_existing(path: &Path) -> Result<Connection, Error> {
    let fail = |source| Error::Open { path: path.to_owned(), source };
    let flags =
        OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_CREATE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let mut connection = Connection::open_with_flags(path, flags).map_err(fail)?;
    connection.busy_timeout(Duration::from_secs(5)).map_err(fail)?;
    // auto_vacuum must come before the first table; it lets retention give pages back. The cache, 16 MiB, holds the indexes
    // over ids, which grow everywhere at once; the log is written back when it is about as long.
    connection
        .execute_batch(
            "PRAGMA auto_vacuum = INCREMENTAL;
             PRAGMA journal_mode = WAL;
             PRAGMA synchronous = NORMAL;
             PRAGMA foreign_keys = ON;
             PRAGMA temp_store = MEMORY;
             PRAGMA journal_size_limit = 16777216;
             PRAGMA wal_autocheckpoint = 4000;
             PRAGMA cache_size = -16384;
             PRAGMA trusted_schema = OFF;",
        )
        .map_err(fail)?;
    let number =
        |pragma: &str| connection.pragma_query_value(None, pragma, |row| row.get::<_, i64>(0)).map_err(fail);
    let (application, version) = (number("application_id")?, number("user_version")?);
    let tables: i64 =
        connection.query_row("SELECT count(*) FROM sqlite_schema", [], |row| row.get(0)).map_err(fail)?;
    if tables > 0 && application != i64::from(schema::APPLICATION_ID) {
        return Err(not_ours(path));
    }
    let version = usize::try_from(version).map_err(|_| not_ours(path))?;
    if version > schema::MIGRATIONS.len() {
        return Err(Error::Newer { path: path.to_owned(), found: version, known: schema::MIGRATIONS.len() });
    }
    if fs::metadata(path).map_or(0, |m| m.len()) < CHECK_BELOW {
        let verdict: String =
            connection.query_row("PRAGMA quick_check(1)", [], |row| row.get(0)).map_err(fail)?;
        if verdict != "ok" {
            return Err(not_ours(path));
        }
    }
    for (done, migration) in schema::MIGRATIONS.iter().enumerate().skip(version) {
        let step = connection.transaction().map_err(fail)?;
        step.execute_batch(migration).map_err(fail)?;
        step.pragma_update(None, "application_id", schema::APPLICATION_ID).map_err(fail)?;
        step.pragma_update(None, "user_version", (done + 1) as i64).map_err(fail)?;
        step.commit().map_err(fail)?;
    }
    Ok(connection)
}

/// The error for a file that SQLite can read but that is not this store: as corrupt as any other.
fn not_ours(path: &Path) -> Error {
    let code = rusqlite::ffi::Error::new(rusqlite::ffi::SQLITE_NOTADB);
    Error::Open { path: path.to_owned(), source: rusqlite::Error::SqliteFailure(code, None) }
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
