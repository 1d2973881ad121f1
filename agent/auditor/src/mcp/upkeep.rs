//! What is done for MCP sessions while nobody asks: heads go to the host's journal, and retention removes sessions.

use super::{sessions::Sessions, writer::Turn};
use crate::journald::Journald;
use ringfence_base::{clock, error::chain};
use ringfence_client::places::Places;
use ringfence_session::{
    heads::{self, Head, Of},
    journal,
    ledger::{Checkpoint, Entry, Row},
};
use ringfence_store::{Error, Retention, SessionReader, Viewer};
use std::{
    collections::HashMap,
    fs,
    io::ErrorKind,
    sync::Arc,
    time::{Duration, Instant},
};

/// How often new entries of ledgers go to the host's journal.
const PUBLISH_EVERY: Duration = Duration::from_secs(1);
/// How often the heads of sessions that run go there.
const HEADS_EVERY: Duration = Duration::from_secs(300);
/// How often old sessions are looked for.
const RETAIN_EVERY: Duration = Duration::from_secs(10);
/// How long one look may remove.
const AT_ONCE: Duration = Duration::from_millis(100);
/// Entries published at once.
const MOST_PUBLISHED: u32 = 200;

/// The upkeep of one database's sessions.
#[derive(Debug)]
pub(crate) struct Upkeep {
    sessions: Arc<Sessions>,
    retention: Retention,
    /// Where the journals are ours to delete.
    places: Option<Places>,
    journald: Journald,
    db: String,
    published: Option<Instant>,
    published_running: Instant,
    retained: Option<Instant>,
    /// Lines of running sessions that were published last.
    heads: HashMap<String, u64>,
    /// Rows of before there were copies have theirs.
    is_copied: bool,
}

impl Upkeep {
    /// `places` are those whose journals this process may delete: a user's auditor's own.
    pub(crate) fn new(sessions: Arc<Sessions>, retention: Retention, places: Option<Places>) -> Self {
        let db = heads::database(&sessions.db);
        Self {
            sessions,
            retention,
            places,
            journald: Journald::of_host(),
            db,
            published: None,
            published_running: Instant::now(),
            retained: None,
            heads: HashMap::new(),
            is_copied: false,
        }
    }

    /// Uses a connection to the host's journal that exists already.
    pub(crate) fn with_journald(self, journald: Journald) -> Self {
        Self { journald, ..self }
    }

    /// Does what is due. Call it often; it returns soon.
    pub(crate) fn look(&mut self, now: Instant) {
        let due = |last: Option<Instant>, every| last.is_none_or(|last| now.duration_since(last) >= every);
        if due(self.published, PUBLISH_EVERY) {
            self.published = Some(now);
            self.sessions.log_refusals(now, false);
            self.run(|upkeep| upkeep.sessions.send_unsent());
            self.run(Self::publish);
        }
        if due(Some(self.published_running), HEADS_EVERY) {
            self.published_running = now;
            self.run(Self::publish_running);
        }
        if !self.is_copied {
            self.is_copied = self.run(Self::copy) == Some(true);
        }
        if due(self.retained, RETAIN_EVERY) && self.run(Self::retain) != Some(true) {
            self.retained = Some(now);
        }
    }

    /// Publishes what is left: the auditor ends.
    pub(crate) fn finish(mut self) {
        self.sessions.log_refusals(Instant::now(), true);
        self.run(Self::publish);
        self.run(Self::publish_running);
    }

    fn run<T>(&mut self, job: impl FnOnce(&mut Self) -> Result<T, Error>) -> Option<T> {
        job(self).map_err(|error| tracing::warn!("{}", chain(&error))).ok()
    }

    fn writer(&self) -> Turn<'_> {
        self.sessions.writer.ours()
    }

    /// Sends what ledgers have and the host's journal has not.
    fn publish(&mut self) -> Result<(), Error> {
        if !self.journald.is_there() {
            return Ok(());
        }
        let unpublished = self.writer().unpublished(MOST_PUBLISHED)?;
        for row in unpublished {
            let taken = heads_of(&self.db, &row).iter().all(|head| self.journald.send(&head.to_string()));
            if !taken {
                break;
            }
            self.writer().mark_published(row.uid, row.seq)?;
        }
        Ok(())
    }

    /// Sends how far the journals of running sessions are.
    fn publish_running(&mut self) -> Result<(), Error> {
        if !self.journald.is_there() {
            return Ok(());
        }
        let running = SessionReader::open(&self.sessions.db)?.heads(Viewer(0), &self.db, true)?;
        let mut published = HashMap::new();
        for head in running {
            let Of::Session(session) = &head.of else { continue };
            if self.heads.get(session) == Some(&head.lines) || self.journald.send(&head.to_string()) {
                published.insert(session.clone(), head.lines);
            }
        }
        self.heads = published;
        Ok(())
    }

    /// Copies rows of before there were copies, for a while. True: all have theirs.
    fn copy(&mut self) -> Result<bool, Error> {
        let began = Instant::now();
        while self.writer().copy_older()? {
            if began.elapsed() >= AT_ONCE {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Removes sessions that are beyond the bounds, for a while. True: there is more to remove.
    fn retain(&mut self) -> Result<bool, Error> {
        let began = Instant::now();
        let now = clock::now_micros();
        while began.elapsed() < AT_ONCE {
            // One that a connection has may be written, also where its interceptor is gone: rows that come while others
            // go would keep the removal from its end, and all removals behind it.
            let runs = |session: &str| {
                !self.sessions.claims.is_free(session)
                    || self.places.as_ref().is_some_and(|places| journal::is_held(&places.journal(session)))
            };
            let Some(removal) = self.writer().begin_removal(&self.retention, now, runs)? else {
                self.writer().fold_ledgers(&self.retention, now)?;
                self.writer().forget_hits(&self.retention, now)?;
                self.writer().forget_approvals(now)?;
                return Ok(false);
            };
            if removal.fresh {
                tracing::info!("removing session {}, which is beyond the bounds", removal.session);
            }
            // The journal first: once the rows are gone nothing would name it.
            if let Some(places) = &self.places
                && let Err(error) = fs::remove_file(places.journal(&removal.session))
                && error.kind() != ErrorKind::NotFound
            {
                tracing::warn!("the journal of session {} cannot be removed: {error}", removal.session);
            }
            while self.writer().remove_rows(&removal)? {
                if began.elapsed() >= AT_ONCE {
                    return Ok(true);
                }
            }
        }
        Ok(true)
    }
}

/// The heads of a ledger's entry: its own hash, and that of the journal that it names.
fn heads_of(db: &str, row: &Row) -> Vec<Head> {
    let head =
        |of, lines, hash: &str| Head { db: db.to_owned(), uid: row.uid, of, lines, hash: hash.to_owned() };
    let own = head(Of::Ledger, row.seq, &row.hash);
    let named = match serde_json::from_str(&row.entry) {
        Ok(Entry::Reached { session, lines, head: hash, .. }) => {
            Some(head(Of::Session(session), lines, &hash))
        }
        Ok(Entry::Removed(Checkpoint { session, last, head: hash, .. })) => {
            Some(head(Of::Session(session), last, &hash))
        }
        Ok(Entry::Rule(_) | Entry::Tool(_) | Entry::Approval(_) | Entry::Folded { .. }) | Err(_) => None,
    };
    named.into_iter().chain([own]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mcp::sessions::Serving;
    use ringfence_session::journal::{Entry as Line, Journal};
    use std::{fs::File, os::unix::net::UnixStream};

    #[test]
    fn a_session_whose_journal_is_being_read_is_not_removed_whatever_that_says_of_its_end() {
        let folder = tempfile::tempdir().expect("a folder");
        let sessions = Arc::new(Sessions::new(folder.path().join("audit.db"), Serving::Own));
        let session = uuid::Uuid::new_v4().to_string();
        let path = folder.path().join(&session);
        let start = Line::Start {
            session: session.clone(),
            at: 1,
            server_name: "fs".into(),
            server_command: vec!["fs".into()],
            pid: 1,
            version: "1".into(),
            client: None,
        };
        let mut journal = Journal::create(&path).expect("a journal");
        let lines = [start, Line::End { at: 2, status: None }];
        lines.iter().for_each(|line| journal.append(line).expect("written"));
        let file = File::open(&path).expect("the journal");
        sessions.catch_up((session.clone(), "j".into()), 1000, file, &|| true).expect("taken in");
        let is_there = || {
            let reader = SessionReader::open(&sessions.db).expect("opens");
            reader.session(Viewer(1000), &session).expect("reads").is_some()
        };
        let mut upkeep = Upkeep::new(Arc::clone(&sessions), Retention::default(), None);
        let (reads, _interceptor) = UnixStream::pair().expect("a pair");
        let claim = sessions.claims.claim(&session, 1000, &reads, &|| true).expect("a descriptor");
        assert!(claim.is_some());
        while upkeep.retain().expect("looked for") {}
        assert!(is_there(), "a connection has it");
        drop(claim);
        while upkeep.retain().expect("looked for") {}
        assert!(!is_there(), "the control");
    }
}
