//! One session's journal on its way into the store: read as it grows, folded, written in batches.

use super::{origin::Origin, writer::SharedWriter};
use ringfence_base::{
    clock,
    quota::{Lane, Lanes},
};
use ringfence_session::journal::{Broken, Entry, GENESIS, LONGEST, Reader, SHORT, Step};
use ringfence_session::rows::{
    ingest::{Fold, Row},
    row::LONGEST_TEXT,
};
use ringfence_store::{self as store, Position};
use std::{
    fs::File,
    io::BufReader,
    mem,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

/// Rows that are read before they are written, about; and the bytes of the journal that they are made from, but for one long
/// line.
const BATCH: usize = 2048;
const BATCH_BYTES: u64 = 4 << 20;
/// Rows written in one transaction, and the bytes of their texts, but for one row. Everybody else's rows and the kernel's events
/// wait for it, and one line may have rows without number.
const STEP: usize = 1024;
const STEP_BYTES: usize = 4 << 20;
/// How long such a transaction is to take, and the fewest rows of one: rows differ in what they cost, and so do disks. Forty
/// users whose journals have no end keep another waiting for forty of them.
const STEP_TIME: Duration = Duration::from_millis(20);
const LEAST: usize = 128;

/// Why a journal cannot be taken in.
#[derive(Debug, thiserror::Error)]
pub(super) enum Error {
    /// The journal.
    #[error("the session's journal is not whole")]
    Journal(#[from] Broken),
    /// A session of that id is another user's.
    #[error("a session of this id belongs to another user")]
    NotYours,
    /// Retention removed the session.
    #[error("retention removed this session; its journal is not taken in again")]
    Removed,
    /// Something in it is named by what is no name.
    #[error("line {0} of the session's journal names a call or a message by something that is no UUID")]
    Name(u64),
    /// It is another session's journal.
    #[error("line {0} of the session's journal begins another session")]
    OtherSession(u64),
    /// Whoever gave the journal lost its place here.
    #[error("the connection had to go for another one")]
    Evicted,
    /// The store.
    #[error(transparent)]
    Store(#[from] store::Error),
}

/// The intake of one session.
#[derive(Debug)]
pub(super) struct Intake {
    session: String,
    uid: u32,
    path: String,
    reader: Reader<BufReader<File>>,
    /// The last line that was taken in. The reader may be one further: at one that cannot be.
    taken: Taken,
    fold: Fold,
    /// Lines that are in the store; those before are folded, not written.
    stored: u64,
    /// Which store that is.
    epoch: u64,
    /// The latest time of its entries so far, ns since boot.
    read_to: u64,
    /// For a line that is long: one of a user's sessions at a time has room for it, until nothing is left of it here.
    long: Lanes,
    alone: Option<Lane>,
    progress: Arc<Progress>,
    /// Rows that could not be written yet, and the position behind them.
    unwritten: Vec<Row>,
    /// Rows that are in the store, and that nobody was notified of yet.
    written: Vec<Row>,
    /// Rows of the next transaction, at most.
    pace: usize,
    server: String,
    /// The journal says which server that is, as far as it was read.
    names_server: bool,
    /// Whose word its rows are.
    origin: Origin,
    ended: bool,
    /// The line that no journal of this session has, and what is wrong with it: nothing behind it is taken in.
    refused: Option<(Refused, u64)>,
}

/// What is wrong with a line that is chained as it should be.
#[derive(Debug, Clone, Copy)]
enum Refused {
    /// It names something by what is no name.
    Name,
    /// It begins another session.
    OtherSession,
}

impl Refused {
    fn at(self, line: u64) -> Error {
        match self {
            Self::Name => Error::Name(line),
            Self::OtherSession => Error::OtherSession(line),
        }
    }
}

/// How far an intake is: for other threads, which never wait for one. A journal is a user's file, and reading it may take
/// as long as that user likes.
#[derive(Debug, Default)]
pub(crate) struct Progress {
    /// Whatever was journalled before this time is in the store; ns since boot.
    pub looked: AtomicU64,
    /// The session's server is in a container, as far as the journal was read.
    pub governed: AtomicBool,
    /// Rows that wait to be written.
    pub unwritten: AtomicUsize,
}

/// How far a journal is taken in.
#[derive(Debug)]
struct Taken {
    head: String,
    lines: u64,
    bytes: u64,
}

/// What writes, and whether whoever has something to be written still has a place here.
pub(super) type Writer<'a> = (&'a SharedWriter, &'a dyn Fn() -> bool);

/// A batch of what was new in a journal.
#[derive(Debug, Default)]
pub(super) struct Batch {
    /// Rows that are in the store now.
    pub rows: Vec<Row>,
    /// The journal's end was not reached.
    pub more: bool,
    /// The user's room for a long line, to be given back when nothing of these rows is left.
    pub long: Option<Lane>,
}

impl Intake {
    /// The intake of a journal, from its start.
    ///
    /// # Errors
    /// [`Error::Store`].
    pub(super) fn new(
        (shared, still): Writer<'_>,
        (session, path): (String, String),
        (uid, long): (u32, Lanes),
        (journal, origin): (File, Origin),
    ) -> Result<Self, Error> {
        let (stored, epoch) = {
            let mut writer = shared.lock(uid, still).ok_or(Error::Evicted)?;
            if writer.is_removed(&session)? {
                return Err(Error::Removed);
            }
            writer.lines(&session, uid)?.ok_or(Error::NotYours)?
        };
        let reader = Reader::new(BufReader::with_capacity(64 << 10, journal));
        let (fold, unwritten, server) = (Fold::default(), Vec::new(), String::new());
        Ok(Self {
            session,
            uid,
            path,
            reader,
            taken: Taken { head: GENESIS.to_owned(), lines: 0, bytes: 0 },
            fold,
            stored,
            epoch,
            read_to: 0,
            long,
            alone: None,
            progress: Arc::default(),
            unwritten,
            written: Vec::new(),
            pace: LEAST,
            server,
            names_server: false,
            origin,
            ended: false,
            refused: None,
        })
    }

    /// What others may see of it.
    pub(super) fn progress(&self) -> Arc<Progress> {
        Arc::clone(&self.progress)
    }

    /// Whose session it is.
    pub(super) fn uid(&self) -> u32 {
        self.uid
    }

    /// Name of the server, once the journal's first line is read.
    pub(super) fn server(&self) -> &str {
        &self.server
    }

    /// Whether the store knows what the journal says of the session's server: which one it is, if there was room for it.
    pub(super) fn knows_server(&self) -> bool {
        self.names_server && self.unwritten.is_empty()
    }

    /// Whether the journal has its last line.
    pub(super) fn ended(&self) -> bool {
        self.ended
    }

    /// Rows that are in the store, and that nobody was notified of yet: after an error of [`Self::advance`].
    pub(super) fn take_written(&mut self) -> Vec<Row> {
        mem::take(&mut self.written)
    }

    /// Takes in a batch of what the journal has more than last time; [`Batch::more`]: call it again. Rows that could not
    /// be written are kept and tried again, and until they are written no more is read.
    ///
    /// # Errors
    /// [`Error`]; of the store, it may be called again.
    pub(super) fn advance(&mut self, writer: Writer<'_>) -> Result<Batch, Error> {
        if !self.unwritten.is_empty() {
            self.write(writer)?;
        }
        if self.unwritten.is_empty() && self.written.is_empty() {
            // Of an advance that failed: all of it is written, and watchers were notified.
            self.alone = None;
        }
        if let Some((refused, line)) = self.refused {
            return Err(refused.at(line));
        }
        // Before the reading: what is written after this may be missed.
        let begun = clock::since_boot();
        let read = self.read(writer.1);
        self.progress.unwritten.store(self.unwritten.len(), Ordering::Relaxed);
        // Whatever is wrong with a line, those before it are on record.
        if self.taken.lines > self.stored {
            self.write(writer)?;
        }
        let at_end = read?;
        if at_end {
            self.progress.looked.store(begun, Ordering::Release);
        }
        Ok(Batch { rows: self.take_written(), more: !at_end, long: self.alone.take() })
    }

    /// Reads a batch. Whether that was the end of the journal.
    fn read(&mut self, still: &dyn Fn() -> bool) -> Result<bool, Error> {
        let from = self.taken.bytes;
        while self.unwritten.len() < BATCH
            && self.taken.bytes - from < BATCH_BYTES
            // What ends a session is the last of what is written with it.
            && !matches!(self.unwritten.last(), Some(Row::End { .. }))
        {
            match self.reader.step(SHORT)? {
                Step::Entry(entry) => self.take(entry)?,
                Step::End => return Ok(true),
                Step::Long => {
                    // Its rows are as long as it is. They wait until they are written, and the lane is kept for as long: whoever
                    // writes never waits for it.
                    if self.alone.is_none() {
                        self.alone = Some(self.long.wait(self.uid, still).ok_or(Error::Evicted)?);
                    }
                    if !still() {
                        return Err(Error::Evicted);
                    }
                    match self.reader.step(LONGEST)? {
                        Step::Entry(entry) => self.take(entry)?,
                        Step::End | Step::Long => return Ok(true),
                    }
                }
            }
        }
        Ok(false)
    }

    /// Writes the rows that were read, in steps for which others do not wait long, and with the last step how far that is: read
    /// again from before, they are the same rows, and change nothing.
    fn write(&mut self, (shared, still): Writer<'_>) -> Result<(), Error> {
        let mut done = 0;
        let outcome = loop {
            let rest = &self.unwritten[done..];
            let (step, is_last) = match step(rest, self.pace) {
                step if step < rest.len() => (&rest[..step], false),
                _ => (rest, true),
            };
            let turn = shared.lock(self.uid, still);
            let begun = Instant::now();
            let outcome = match turn {
                None => Err(Error::Evicted),
                Some(mut writer) if is_last => writer.write(&self.position(), step).map_err(Error::Store),
                Some(mut writer) => writer.write_some(&self.position(), step).map_err(Error::Store),
            };
            if outcome.is_ok() {
                done += step.len();
                self.pace = paced(self.pace, begun.elapsed());
            }
            if is_last || outcome.is_err() {
                break outcome;
            }
        };
        self.written.extend(self.unwritten.drain(..done));
        self.progress.unwritten.store(self.unwritten.len(), Ordering::Relaxed);
        outcome?;
        self.stored = self.taken.lines;
        Ok(())
    }

    fn position(&self) -> Position<'_> {
        let Taken { head, lines, bytes } = &self.taken;
        Position {
            session: &self.session,
            uid: self.uid,
            journal: &self.path,
            lines: *lines,
            head,
            bytes: *bytes,
            read_to: self.read_to,
            epoch: self.epoch,
        }
    }

    /// Folds an entry.
    fn take(&mut self, entry: Entry) -> Result<(), Error> {
        let (head, line) = self.reader.position();
        let refused = match &entry {
            Entry::Start { session, .. } if *session != self.session => Some(Refused::OtherSession),
            entry if !entry.is_well_named() => Some(Refused::Name),
            _ => None,
        };
        if let Some(refused) = refused {
            self.refused = Some((refused, line));
            return Err(refused.at(line));
        }
        self.taken.head.replace_range(.., head);
        (self.taken.lines, self.taken.bytes) = (line, self.reader.bytes());
        match &entry {
            Entry::Start { server_name, .. } => {
                self.server = server_name[..server_name.floor_char_boundary(LONGEST_TEXT)].to_owned();
            }
            Entry::Server { key: Some(_), .. } => self.names_server = true,
            Entry::End { .. } => self.ended = true,
            Entry::Governed { container, .. } => {
                self.progress.governed.store(container.is_some(), Ordering::Relaxed);
            }
            // The two directions take their times before they write: a later entry may have an earlier one.
            Entry::Message { boot, .. } | Entry::Decision { boot, .. } => {
                self.read_to = self.read_to.max(*boot)
            }
            _ => {}
        }
        let mut rows = self.fold.next(entry);
        if line > self.stored {
            rows.iter_mut().for_each(|row| self.origin.apply(row));
            self.unwritten.extend(rows);
        }
        Ok(())
    }

    /// The interceptor is gone without a word: the session ended now, with nobody knows what status.
    ///
    /// # Errors
    /// [`Error::Store`].
    pub(crate) fn abandon(&mut self, (shared, still): Writer<'_>, now: i64) -> Result<(), Error> {
        if self.ended || self.taken.lines == 0 {
            return Ok(());
        }
        let row = Row::End { at: now, status: None };
        let mut writer = shared.lock(self.uid, still).ok_or(Error::Evicted)?;
        Ok(writer.write(&self.position(), &[row])?)
    }
}

/// How many of these rows are written together, `most` of them and a like share of the bytes at most.
fn step(rows: &[Row], most: usize) -> usize {
    let mut bytes = 0;
    let fits = |row: &&Row| {
        bytes += row.bytes();
        bytes <= most * (STEP_BYTES / STEP)
    };
    rows.iter().take(most).take_while(fits).count().max(1)
}

/// How many rows the next transaction has, after one of so many took so long.
fn paced(rows: usize, took: Duration) -> usize {
    let micros = usize::try_from(took.as_micros()).unwrap_or(usize::MAX).max(1);
    let fit = rows.saturating_mul(STEP_TIME.as_micros() as usize) / micros;
    // Not at once: the next rows may be dearer.
    fit.min(rows * 2).clamp(LEAST, STEP)
}

#[cfg(test)]
mod tests;
