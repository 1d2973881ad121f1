//! The thread that owns the store: writes what arrives in batches, keeps trying when it cannot, deletes what is old.

use super::{
    queue::{Item, Receiver},
    shared::Shared,
};
use ringfence_base::clock;
use ringfence_base::error::chain;
use ringfence_store::{self as store, Error, Incoming, Retention, Writer};
use ringfence_wire::audit::Answer;
use std::{
    path::PathBuf,
    sync::{
        Arc,
        mpsc::{RecvTimeoutError, TryRecvError},
    },
    thread,
    time::{Duration, Instant},
};

/// Things written in one transaction, about.
const BATCH: usize = 8_192;
/// How often old events are looked for.
const RETAIN_EVERY: Duration = Duration::from_secs(10);
/// Longest pause between two tries.
const MAX_PAUSE: Duration = Duration::from_secs(2);
/// How long a store that fails is tried once the core is gone.
const LAST_TRIES: Duration = Duration::from_secs(5);

/// The thread's state.
#[derive(Debug)]
pub(crate) struct StoreWriter {
    db: PathBuf,
    shared: Arc<Shared>,
    retention: Retention,
    writer: Option<Writer>,
    session: Option<(String, String)>,
    /// Last batch of the session that is stored.
    done: u64,
    pending: Vec<Incoming>,
    sequence: Option<u64>,
    tokens: Vec<u64>,
    retained: Instant,
}

/// Whose container an event is of, if that is known; `None`: it is no event.
#[expect(clippy::option_option, reason = "no event; an event of nobody known; a user's")]
fn owner(incoming: &Incoming) -> Option<Option<u32>> {
    let Incoming::Event(event) = incoming else { return None };
    Some(event.identity.as_ref().map(|identity| identity.uid))
}

impl StoreWriter {
    /// Opens the store. A failure that may pass, such as a full disk, is no error: it is tried again.
    ///
    /// # Errors
    /// Those of the store for which waiting does not help.
    pub(crate) fn open(db: PathBuf, shared: Arc<Shared>, retention: Retention) -> Result<Self, Error> {
        let mut this = Self {
            db,
            shared,
            retention,
            writer: None,
            session: None,
            done: 0,
            pending: Vec::new(),
            sequence: None,
            tokens: Vec::new(),
            retained: Instant::now(),
        };
        match store::open(&this.db, 0) {
            Ok(opened) => {
                let last = opened.writer.last_id()?;
                this.adopt(opened)?;
                this.shared.stored(last, []);
            }
            Err(error) if error.may_pass() => this.failed(chain(&error)),
            Err(error) => return Err(error),
        }
        Ok(this)
    }

    /// Works until the link's end is dropped; then stores what is left. False: some of it could not be stored.
    pub(crate) fn run(mut self, items: &Receiver) -> bool {
        loop {
            match items.recv_timeout(Duration::from_secs(1)) {
                Ok(item) => self.take(item),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => break,
            }
            self.drain(items);
            if self.shared.take_suspect() {
                self.replace("a reader found the audit database corrupt");
            }
            self.settle();
            self.retain();
        }
        self.drain(items);
        let whole = self.settle() && self.shared.dropped().is_empty();
        if let Some(writer) = self.writer {
            writer.finish();
        }
        whole
    }

    /// Takes what waits, up to a batch. Once the queue is empty, batches that were dropped are done with too: whatever
    /// came before them has been taken.
    fn drain(&mut self, items: &Receiver) {
        let dropped_to = self.shared.dropped_to();
        while self.pending.len() < BATCH {
            match items.try_recv() {
                Ok(item) => self.take(item),
                Err(TryRecvError::Empty | TryRecvError::Disconnected) => {
                    if dropped_to > self.done {
                        self.done = dropped_to;
                        self.sequence = Some(dropped_to);
                    }
                    return;
                }
            }
        }
    }

    fn take(&mut self, item: Item) {
        match item {
            Item::Hello { session, boot } => {
                self.settle();
                self.session = Some((session, boot));
                self.done = 0;
                // The core waits for an answer. A store that cannot be asked yet is as good as one that knows nothing:
                // what is sent twice is left out once it can.
                if self.reopen().is_err() {
                    self.shared.answer(Answer::Stored(0));
                }
                let known = self.persist(|writer, session| match session {
                    Some((session, boot)) => writer.hello(session, boot),
                    None => Ok(0),
                });
                self.done = known.unwrap_or(0);
                self.shared.answer(Answer::Stored(self.done));
            }
            Item::Batch { sequence: Some(sequence), .. } if sequence <= self.done => {}
            Item::Batch { sequence, incoming } => {
                self.pending.extend(incoming);
                if let Some(sequence) = sequence {
                    self.done = sequence;
                    self.sequence = Some(sequence);
                }
            }
            Item::Flushed(token) => self.tokens.push(token),
        }
    }

    /// Writes what is pending. False: given up, because the core is gone and the store still fails.
    fn settle(&mut self) -> bool {
        for (kernel, dropped) in self.shared.take_dropped() {
            if let Some(identity) = dropped.identity {
                self.pending.push(Incoming::Container { kernel, identity });
            }
            self.pending.push(Incoming::Dropped { kernel, denied: dropped.denied, allowed: dropped.allowed });
        }
        if let Some(sequence) = self.sequence {
            self.pending.push(Incoming::Sequence(sequence));
        }
        let mut whole = true;
        if !self.pending.is_empty() {
            let pending = std::mem::take(&mut self.pending);
            let events = pending.iter().filter(|i| matches!(i, Incoming::Event(_))).count() as u64;
            let last = self.persist(|writer, _| {
                writer.write(&pending)?;
                writer.last_id()
            });
            whole = last.is_some();
            if let Some(last) = last {
                self.shared.health().stored += events;
                self.shared.stored(last, pending.iter().filter_map(owner));
                if let Some(sequence) = self.sequence.take() {
                    self.shared.answer(Answer::Stored(sequence));
                }
            } else {
                tracing::error!("{events} events cannot be stored; they are counted as lost");
                for incoming in pending {
                    self.shared.drop_incoming(incoming);
                }
            }
        }
        if !self.tokens.is_empty() {
            self.look_after();
        }
        for token in self.tokens.drain(..) {
            self.shared.flushed(token);
        }
        whole
    }

    /// Opens the store anew if its file is gone: whoever asks next opens it by name.
    fn look_after(&mut self) {
        if self.writer.is_some() && !self.db.exists() {
            tracing::error!("the audit database was removed: a new one is started");
            self.writer = None;
            self.persist(|_, _| Ok(()));
        }
    }

    /// Does something to the store, again and again until it works. `None`: it never will, or the core is gone and it
    /// still does not.
    fn persist<T>(
        &mut self,
        mut job: impl FnMut(&mut Writer, Option<&(String, String)>) -> Result<T, Error>,
    ) -> Option<T> {
        let mut pause = Duration::from_millis(50);
        let mut gone_since = None;
        loop {
            let result = self.reopen().and_then(|()| match &mut self.writer {
                Some(writer) => job(writer, self.session.as_ref()).map(Some),
                None => Ok(None),
            });
            match result {
                Ok(Some(done)) => {
                    self.recovered();
                    return Some(done);
                }
                Ok(None) => {}
                Err(error) if error.is_corrupt() => self.replace(&chain(&error)),
                Err(error) if error.is_hopeless() => {
                    self.failed(chain(&error));
                    return None;
                }
                Err(error) => {
                    self.failed(chain(&error));
                    // The next try opens the file by its name: it may have been removed or replaced.
                    self.writer = None;
                }
            }
            if self.shared.progress().closed
                && gone_since.get_or_insert_with(Instant::now).elapsed() > LAST_TRIES
            {
                return None;
            }
            thread::sleep(pause);
            pause = (pause * 2).min(MAX_PAUSE);
        }
    }

    /// Opens the store if it is not.
    fn reopen(&mut self) -> Result<(), Error> {
        if self.writer.is_none() {
            let opened = store::open(&self.db, self.shared.progress().last)?;
            self.adopt(opened)?;
        }
        Ok(())
    }

    fn adopt(&mut self, opened: store::Opened) -> Result<(), Error> {
        if let Some(moved_to) = opened.moved_to {
            let moved_to = moved_to.display().to_string();
            tracing::error!("the audit database was corrupt: moved to {moved_to}, a new one is in use");
            self.shared.health().moved_to = Some(moved_to);
        }
        let mut writer = opened.writer;
        if let Some((session, boot)) = &self.session {
            writer.hello(session, boot)?;
        }
        self.writer = Some(writer);
        Ok(())
    }

    /// A store that broke while it was in use.
    fn replace(&mut self, why: &str) {
        self.failed(why.to_owned());
        self.writer = None;
        match store::replace(&self.db, self.shared.progress().last).and_then(|opened| self.adopt(opened)) {
            Ok(()) => {}
            Err(error) => self.failed(chain(&error)),
        }
    }

    fn failed(&self, text: String) {
        let before = self.shared.health().failing.replace(text.clone());
        if before.is_none_or(|b| b != text) {
            tracing::error!("{text}; trying again, events that cannot wait are counted as lost");
        }
    }

    fn recovered(&self) {
        if self.shared.health().failing.take().is_some() {
            tracing::info!("the audit database works again");
        }
    }

    fn retain(&mut self) {
        if self.retained.elapsed() < RETAIN_EVERY {
            return;
        }
        let retention = self.retention;
        let again = match &mut self.writer {
            Some(writer) => writer.retain(&retention, clock::now_micros()),
            None => return,
        };
        match again {
            // More to delete: once more after the next batch.
            Ok(true) => {}
            Ok(false) => self.retained = Instant::now(),
            Err(error) if error.is_corrupt() => self.replace(&chain(&error)),
            Err(error) => {
                self.retained = Instant::now();
                tracing::warn!("{}", chain(&error));
            }
        }
    }
}
