//! The writer of MCP sessions: its connection, and what it remembers between two writes.

use super::{Error, client_groups::Groups, connection::open_existing};
use ringfence_base::quota::Owners;
use rusqlite::Connection;
use std::{
    collections::HashMap,
    fs,
    os::unix::fs::MetadataExt,
    path::PathBuf,
    time::{Duration, Instant},
};

/// How long one transaction writes: the kernel's events wait for it.
const PATIENCE: Duration = Duration::from_millis(20);

/// What writes MCP sessions. SQLite orders its connection with the one that writes events. It opens the database when it
/// is first used, and again when it was replaced, by whoever found it corrupt.
#[derive(Debug)]
pub struct SessionWriter {
    pub(crate) path: PathBuf,
    open: Option<(Connection, u64)>,
    /// Counts the databases that were behind the path.
    pub(crate) epoch: u64,
    pub(crate) groups: Groups,
    /// Bytes of all sessions that the database is kept within, where users share it.
    pub(crate) bound: Option<u64>,
    /// Who has to wait, and when that was found out.
    pub(crate) crowded: Option<(Instant, Option<u32>)>,
    /// Whose subordinate ids are: what bounds are about.
    pub owners: Owners,
    /// Ledgers that could not be folded, and when.
    pub(crate) unfoldable: HashMap<u32, Instant>,
    /// How long one transaction writes.
    pub(crate) patience: Duration,
}

/// A session and how far its journal is read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Position<'a> {
    /// The session's id.
    pub session: &'a str,
    /// Whose it is.
    pub uid: u32,
    /// The journal's path, for people.
    pub journal: &'a str,
    /// Lines read, these rows included.
    pub lines: u64,
    /// Hash of the last of them.
    pub head: &'a str,
    /// Bytes of the lines read.
    pub bytes: u64,
    /// When the last of them was written, ns since boot.
    pub read_to: u64,
    /// The database that the lines before these are in.
    pub epoch: u64,
}

impl SessionWriter {
    /// A writer of the database at `path`. Where several users share it, `bound` is what retention keeps it within, bytes.
    pub fn new(path: PathBuf, bound: Option<u64>) -> Self {
        Self {
            path,
            open: None,
            epoch: 0,
            groups: Groups::default(),
            bound,
            crowded: None,
            owners: Owners::default(),
            unfoldable: HashMap::new(),
            patience: PATIENCE,
        }
    }

    /// The same, for which a user's subordinate ids count as that user.
    pub fn with_owners(self, owners: Owners) -> Self {
        Self { owners, ..self }
    }

    pub(crate) fn connection(&mut self) -> Result<&mut Connection, Error> {
        let there = fs::metadata(&self.path).map_or(0, |file| file.ino());
        if self.open.as_ref().is_some_and(|(_, inode)| *inode != there) {
            self.open = None;
        }
        if self.open.is_none() {
            let connection = open_existing(&self.path)?;
            connection.set_prepared_statement_cache_capacity(32);
            let inode = fs::metadata(&self.path).map_or(0, |file| file.ino());
            self.open = Some((connection, inode));
            self.epoch += 1;
            self.groups = Groups::default();
        }
        match &mut self.open {
            Some((connection, _)) => Ok(connection),
            None => Err(Error::Replaced),
        }
    }
}

/// How many of something the ids of one user have together, of a query that counts it for each id.
pub(crate) fn of_user(
    connection: &Connection,
    owners: &Owners,
    owner: u32,
    by_uid: &str,
) -> rusqlite::Result<u64> {
    let mut statement = connection.prepare_cached(by_uid)?;
    let mut rows = statement.query([])?;
    let mut sum = 0u64;
    while let Some(row) = rows.next()? {
        if owners.of(row.get(0)?) == owner {
            sum = sum.saturating_add(row.get::<_, i64>(1)?.max(0).cast_unsigned());
        }
    }
    Ok(sum)
}
