//! Recording what happens in a session, and reporting it to the link.

use super::{Body, Report, Session, Time, lock};
use ringfence_base::clock::now_micros as now;
use ringfence_redact as redact;
use ringfence_session::{
    draft::{Draft, Message, Verdict},
    journal::{self, Direction, Entry},
    line::{Id, Outline},
    notice,
};
use std::{
    borrow::Cow,
    io::{self, Write},
    ops::Range,
    sync::{atomic::Ordering, mpsc},
};

impl<S: Write, C: Write> Session<S, C> {
    /// Writes an entry. The caller reports a failure.
    ///
    /// # Errors
    /// The journal's; nothing is written then.
    pub fn record(&self, entry: &Entry) -> io::Result<()> {
        let mut draft = Draft::default();
        draft.entry(entry);
        self.record_lines(&mut draft, 0..1)
    }

    /// Writes several lines at once: all of them or none.
    ///
    /// # Errors
    /// The journal's.
    pub(super) fn record_lines(&self, draft: &mut Draft, lines: Range<usize>) -> io::Result<()> {
        let mut journal = lock(&self.journal);
        if self.gap.load(Ordering::Relaxed) {
            journal.append(&Entry::Gap { at: now() })?;
            self.gap.store(false, Ordering::Relaxed);
        }
        journal.append_lines(draft, lines)?;
        drop(journal);
        self.report_growth();
        Ok(())
    }

    /// Records what is not a call: a failure is only warned about.
    pub(super) fn record_or_warn(&self, entry: &Entry) {
        warn_unless_recorded(self.record(entry));
    }

    /// Records the lines of a draft, each by itself if not together. None is a call's: a failure is only warned about.
    pub(super) fn record_lines_or_warn(&self, draft: &mut Draft) {
        let lines = draft.len();
        if self.record_lines(draft, 0..lines).is_err() {
            (0..lines).for_each(|line| warn_unless_recorded(self.record_lines(draft, line..line + 1)));
        }
    }

    /// Records one line that went by, without its end.
    ///
    /// # Errors
    /// The journal's.
    pub(super) fn record_message<'a>(
        &self,
        direction: Direction,
        body: impl Into<Body<'a>>,
        calls: &[Verdict<'_>],
        refused: Option<&str>,
    ) -> io::Result<()> {
        let mut draft = Draft::default();
        self.draft(&mut draft, Time::now(), direction, body, calls, refused);
        self.record_lines(&mut draft, 0..1)
    }

    /// The same of what is no call.
    pub(super) fn record_message_or_warn<'a>(
        &self,
        direction: Direction,
        body: impl Into<Body<'a>>,
        refused: Option<&str>,
    ) {
        warn_unless_recorded(self.record_message(direction, body, &[], refused));
    }

    /// The entry of one line, without its end. `time`: when it went by, taken before it could have any effect.
    pub(super) fn draft<'a>(
        &self,
        draft: &mut Draft,
        time: Time,
        direction: Direction,
        body: impl Into<Body<'a>>,
        calls: &[Verdict<'_>],
        refused: Option<&str>,
    ) {
        self.draft_as(draft, self.message_id(time.at), time, direction, body, calls, refused);
    }

    /// The same under an id that another entry has as well.
    #[expect(clippy::too_many_arguments, reason = "a message's parts, and where they go")]
    pub(super) fn draft_as<'a>(
        &self,
        draft: &mut Draft,
        id: uuid::Uuid,
        Time { at, boot }: Time,
        direction: Direction,
        body: impl Into<Body<'a>>,
        calls: &[Verdict<'_>],
        refused: Option<&str>,
    ) {
        let Body { text, came } = body.into();
        let (came, repaired) = came.unwrap_or((text, 0));
        // Nearly all of it is UTF-8, and telling that is quicker than mending what is not.
        let text = str::from_utf8(text).map_or_else(|_| String::from_utf8_lossy(text), Cow::Borrowed);
        let raw = if self.options.store_raw { text } else { redacted(text) };
        let (raw, outline) = journal::fitting(raw);
        draft.message(&Message {
            id,
            at,
            boot,
            direction,
            raw: &raw,
            bytes: came.len() as u64,
            sha256: &journal::digest(came),
            calls,
            refused,
            outline: outline.as_ref(),
            repaired,
        });
    }

    /// A name of a message that went by `at` that time. In the order of time: the database's index of messages grows at its
    /// end.
    pub(super) fn message_id(&self, at: i64) -> uuid::Uuid {
        let (seconds, micros) = (at.unsigned_abs() / 1_000_000, at.unsigned_abs() % 1_000_000);
        let nanos = u32::try_from(micros * 1000).unwrap_or_default();
        uuid::Uuid::new_v7(uuid::Timestamp::from_unix(&self.ids, seconds, nanos))
    }

    /// A line of the server's was not passed on that is too long to be judged. Nothing of it is kept; where it is known which
    /// request it answers, that one has its answer.
    pub(super) fn record_overlong(&self, answers: Option<&Id>, why: &str) {
        let Time { at, boot } = Time::now();
        let text = format!("a line of the server's was {why}");
        self.record_or_warn(&Entry::Note { at, text: text.clone() });
        let Some(id) = answers else { return };
        self.record_or_warn(&Entry::Message {
            id: self.message_id(at).to_string(),
            at,
            boot,
            direction: Direction::ServerToClient,
            bytes: text.len() as u64,
            sha256: journal::sha256(text.as_bytes()),
            raw: text,
            calls: Vec::new(),
            refused: None,
            // The client gets an error in its place.
            outline: Some(Outline { id: id.to_json(), member: "error".to_owned() }),
            repaired: 0,
        });
    }

    /// Whether secrets stay in what is recorded.
    pub(crate) fn stores_raw(&self) -> bool {
        self.options.store_raw
    }

    fn report_growth(&self) {
        if !self.grew.swap(true, Ordering::AcqRel) {
            self.report(Report::Grew);
        }
    }

    /// The link is about to report that the journal grew: what is written from now on is reported again.
    pub fn mark_reported(&self) {
        self.grew.store(false, Ordering::Release);
    }

    /// Forwarding never waits for the link: a report that finds no room is lost, and
    /// [`Self::take_missed`] tells the link.
    pub fn report(&self, report: Report) {
        if matches!(self.reports.try_send(report), Err(mpsc::TrySendError::Full(_))) {
            self.missed.store(true, Ordering::Release);
        }
    }

    /// Whether reports were lost since the last call: then [`Self::waiting`] has the calls that wait, and the journal may
    /// have grown.
    pub(crate) fn take_missed(&self) -> bool {
        self.missed.swap(false, Ordering::AcqRel)
    }

    /// The journal has its last line: the link may finish.
    pub fn finish(&self) {
        self.over.store(true, Ordering::Release);
        self.report(Report::Wake);
    }

    /// Whether the journal has its last line.
    pub fn is_over(&self) -> bool {
        self.over.load(Ordering::Acquire)
    }
}

fn warn_unless_recorded(recorded: io::Result<()>) {
    if let Err(error) = recorded {
        notice::print(&format!("a message is not on record: {error}"));
    }
}

fn redacted(text: Cow<'_, str>) -> Cow<'_, str> {
    match redact::message(&text) {
        Cow::Borrowed(_) => text,
        Cow::Owned(redacted) => Cow::Owned(redacted),
    }
}
