//! What of a session is on record, and what the link hears of that.

use super::{Report, Session, lock, now, since_boot};
use crate::mcp::{
    journal::{self, Direction, Entry, Judged},
    notice, redact,
};
use std::{
    borrow::Cow,
    io::{self, Write},
    iter,
    sync::{atomic::Ordering, mpsc},
};

impl<S: Write, C: Write> Session<S, C> {
    /// Writes an entry. A failure is the caller's to say.
    ///
    /// # Errors
    /// The journal's; nothing is written then.
    pub(crate) fn record(&self, entry: &Entry) -> io::Result<()> {
        self.record_all(iter::once(entry))
    }

    /// Writes several entries at once: all of them or none.
    ///
    /// # Errors
    /// The journal's.
    pub(super) fn record_all<'a>(&self, entries: impl IntoIterator<Item = &'a Entry>) -> io::Result<()> {
        let mut journal = lock(&self.journal);
        if self.gap.load(Ordering::Relaxed) {
            journal.append(&Entry::Gap { at: now() })?;
            self.gap.store(false, Ordering::Relaxed);
        }
        journal.append_all(entries)?;
        drop(journal);
        self.grown();
        Ok(())
    }

    /// Records what is not a call: its loss is said, not answered.
    pub(super) fn record_softly(&self, entry: &Entry) {
        if let Err(error) = self.record(entry) {
            notice::say(&format!("a message is not on record: {error}"));
        }
    }

    /// The entry of one line, without its end.
    pub(super) fn message(
        &self,
        direction: Direction,
        body: &[u8],
        calls: Vec<Judged>,
        refused: Option<String>,
    ) -> Entry {
        let text = String::from_utf8_lossy(body);
        let raw = if self.options.store_raw { text } else { redacted(text) };
        let (raw, outline) = journal::fitting(raw);
        Entry::Message {
            // In the order of time: the database's index of messages grows at its end.
            id: uuid::Uuid::now_v7().to_string(),
            at: now(),
            boot: since_boot(),
            direction,
            raw,
            bytes: body.len() as u64,
            sha256: journal::sha256(body),
            calls,
            refused,
            outline,
        }
    }

    fn grown(&self) {
        if !self.grew.swap(true, Ordering::AcqRel) {
            self.report(Report::Grew);
        }
    }

    /// The link is about to say that the journal grew: what is written from now on is news again.
    pub(crate) fn told(&self) {
        self.grew.store(false, Ordering::Release);
    }

    /// Forwarding never waits for the link: a report that finds no room is lost, and the link hears that some were
    /// (see [`Self::missed`]).
    pub(crate) fn report(&self, report: Report) {
        if matches!(self.reports.try_send(report), Err(mpsc::TrySendError::Full(_))) {
            self.missed.store(true, Ordering::Release);
        }
    }

    /// Whether reports were lost since this was asked last: then what waits is what [`Self::waiting`] says, and the
    /// journal may have grown.
    pub(crate) fn missed(&self) -> bool {
        self.missed.swap(false, Ordering::AcqRel)
    }

    /// The journal has its last line: the link may finish.
    pub(crate) fn finish(&self) {
        self.over.store(true, Ordering::Release);
        self.report(Report::Look);
    }

    /// Whether the journal has its last line.
    pub(crate) fn is_over(&self) -> bool {
        self.over.load(Ordering::Acquire)
    }
}

fn redacted(text: Cow<'_, str>) -> Cow<'_, str> {
    match redact::message(&text) {
        Cow::Borrowed(_) => text,
        Cow::Owned(redacted) => Cow::Owned(redacted),
    }
}
