//! State that the auditor's threads share: how far the store is, its health, what was lost.

use super::queue::{Item, NotSent, Sender};
use ringfence_events::{
    decode::DecodeError,
    manifests::{Identity, Manifests},
};
use ringfence_store::{Event, Incoming, is_denied};
use ringfence_wire::audit::Answer;
use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    io::Write as _,
    os::unix::net::UnixStream,
    sync::{
        Arc, Condvar, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

/// Containers whose drops are counted separately while nothing can be stored; beyond it they are counted together.
const MAX_DROPPING: usize = 8192;

/// Bytes that may wait of what egress workers tell, of all containers together.
const TOLD: usize = 2 << 20;

/// Users whose events are followed apart; those beyond it are followed together.
const MAX_FOLLOWED: usize = 4096;

/// Requests to the core to hand over what its rings hold, at once.
const MAX_REQUESTS: u64 = 8;
/// When an answer that did not come is not waited for any more by those who ask next.
const LOST: Duration = Duration::from_secs(10);

/// Shared by all threads.
#[derive(Debug)]
pub struct Shared {
    core: Mutex<UnixStream>,
    progress: Mutex<Progress>,
    newest: Mutex<Newest>,
    changed: Condvar,
    health: Mutex<Health>,
    dropped: Mutex<HashMap<u64, Dropped>>,
    dropped_to: AtomicU64,
    suspect: AtomicBool,
    manifests: Mutex<Manifests>,
    told: Mutex<Option<Sender>>,
}

/// How far the store is.
#[derive(Debug, Clone, Default)]
pub struct Progress {
    /// Highest id that can be read.
    pub last: u64,
    /// Highest token up to which everything is stored.
    flushed: u64,
    /// Highest token given out.
    requested: u64,
    /// When that was.
    sent: Option<Instant>,
    /// Tokens of which nothing will come: the core was not reached, or what came could not be stored.
    lost: BTreeSet<u64>,
    /// The core is gone.
    pub closed: bool,
}

/// The newest event of each user's containers: whoever follows others' events need not look for each of them.
#[derive(Debug, Default)]
struct Newest {
    of: HashMap<u32, u64>,
    of_others: u64,
}

impl Newest {
    fn of(&self, uid: u32) -> u64 {
        *self.of.get(&uid).unwrap_or(&self.of_others)
    }
}

/// The store's health.
#[derive(Debug, Clone, Default)]
pub(crate) struct Health {
    /// Why nothing can be stored.
    pub failing: Option<String>,
    /// Where a corrupt database went.
    pub moved_to: Option<String>,
    /// Events stored since the start.
    pub stored: u64,
    /// Records and reports that are not in the store, by reason; events that cannot be stored are counted by container.
    pub undecodable: BTreeMap<&'static str, u64>,
    /// The agents of which a report was refused.
    pub misreporting: BTreeSet<String>,
}

/// Events of one container that could not be stored.
#[derive(Debug, Clone, Default)]
pub struct Dropped {
    /// Who it is.
    pub identity: Option<Arc<Identity>>,
    /// Denials.
    pub denied: u64,
    /// Others: allowed, also because of audit mode.
    pub allowed: u64,
}

impl Progress {
    /// How many requests to the core are not answered yet.
    fn under_way(&self) -> u64 {
        let lost = self.lost.range(self.flushed + 1..).count();
        (self.requested - self.flushed).saturating_sub(lost as u64)
    }
}

impl Shared {
    /// `core` is where answers go.
    pub fn new(core: UnixStream) -> Self {
        Self {
            core: Mutex::new(core),
            progress: Mutex::default(),
            newest: Mutex::default(),
            changed: Condvar::new(),
            health: Mutex::default(),
            dropped: Mutex::default(),
            dropped_to: AtomicU64::new(0),
            suspect: AtomicBool::new(false),
            manifests: Mutex::default(),
            told: Mutex::default(),
        }
    }

    /// Sends the core an answer. One small write, so it is never cut; a core that does not read misses it.
    pub fn answer(&self, answer: Answer) -> bool {
        let body = answer.to_body();
        let mut frame = (body.len() as u32).to_be_bytes().to_vec();
        frame.extend(body);
        lock(&self.core).write_all(&frame).is_ok()
    }

    /// Has everything stored that happened before now. False: not within `limit`. However many ask, the core is asked a few
    /// times at once: it ends an auditor that asks for too much.
    pub fn flush(&self, limit: Duration) -> bool {
        let until = Instant::now() + limit;
        let (token, sends) = {
            let mut progress = lock(&self.progress);
            let wanted = progress.requested + 1;
            loop {
                // Somebody else has asked since: that is for us, too.
                if progress.requested >= wanted {
                    break (wanted, false);
                }
                let under_way = progress.under_way();
                let is_lost = progress.sent.is_none_or(|sent| sent.elapsed() >= LOST);
                if under_way < MAX_REQUESTS || (is_lost && under_way < 4 * MAX_REQUESTS) {
                    progress.requested = wanted;
                    progress.sent = Some(Instant::now());
                    break (wanted, true);
                }
                let left = until.saturating_duration_since(Instant::now());
                if left.is_zero() || progress.closed {
                    return false;
                }
                progress = wait(&self.changed, progress, left);
            }
        };
        if sends && !self.answer(Answer::Flush(token)) {
            self.lose_token(token);
            return false;
        }
        let mut progress = lock(&self.progress);
        while progress.flushed < token && !progress.closed {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            progress = wait(&self.changed, progress, left);
        }
        progress.flushed >= token
    }

    /// Everything up to a token is stored. A token that was never given out counts for nothing.
    pub fn flushed(&self, token: u64) {
        let mut progress = lock(&self.progress);
        if token <= progress.requested {
            progress.flushed = progress.flushed.max(token);
            progress.lost = progress.lost.split_off(&(token + 1));
        }
        self.changed.notify_all();
    }

    /// Nothing will come of a token: those who wait for it wait on for a later one, and it keeps nobody from asking.
    pub(crate) fn lose_token(&self, token: u64) {
        let mut progress = lock(&self.progress);
        if token > progress.flushed && token <= progress.requested {
            progress.lost.insert(token);
        }
        self.changed.notify_all();
    }

    /// Events up to `last` can be read; those that were added are of these users' containers. `None`: it is not known whose one
    /// is, as with an event that comes after its container's end, and everybody looks.
    pub fn stored(&self, last: u64, users: impl IntoIterator<Item = Option<u32>>) {
        let mut newest = lock(&self.newest);
        for uid in users {
            let Some(uid) = uid else {
                *newest = Newest { of_others: last, ..Newest::default() };
                continue;
            };
            if newest.of.len() < MAX_FOLLOWED || newest.of.contains_key(&uid) {
                newest.of.insert(uid, last);
            } else {
                newest.of_others = last;
            }
        }
        drop(newest);
        lock(&self.progress).last = last;
        self.changed.notify_all();
    }

    /// Which rule is which, and who a container is.
    pub(crate) fn manifests(&self) -> MutexGuard<'_, Manifests> {
        lock(&self.manifests)
    }

    /// The core has said which boot it is: from now on what egress workers tell is taken, beside what `link` sends.
    pub(crate) fn open_to_workers(&self, link: &Sender) {
        *lock(&self.told) = Some(link.beside(TOLD));
    }

    /// Hands over what an egress worker told, in a frame of so many bytes.
    ///
    /// # Errors
    /// [`NotSent::Full`], also before the core has said anything: try again. [`NotSent::Closed`]: the core is gone.
    pub(crate) fn tell(&self, item: Item, frame: usize) -> Result<(), NotSent> {
        match &*lock(&self.told) {
            Some(sender) => sender.send(item, frame),
            None if self.progress().closed => Err(NotSent::Closed),
            None => Err(NotSent::Full(item)),
        }
    }

    /// The core is gone.
    pub fn close(&self) {
        lock(&self.progress).closed = true;
        *lock(&self.told) = None;
        self.changed.notify_all();
    }

    /// How far the store is, now.
    pub fn progress(&self) -> Progress {
        lock(&self.progress).clone()
    }

    /// Waits until there is something after `after` that this user may see (root sees all), at most for `limit`. Up to where there
    /// is; `None`: there will be no more, for the core is gone.
    pub(crate) fn wait_after(&self, uid: u32, after: u64, limit: Duration) -> Option<u64> {
        let until = Instant::now() + limit;
        let mut progress = lock(&self.progress);
        loop {
            let newest = if uid == 0 { progress.last } else { lock(&self.newest).of(uid) };
            if newest > after {
                return Some(progress.last);
            }
            let left = until.saturating_duration_since(Instant::now());
            if progress.closed {
                return None;
            }
            if left.is_zero() {
                return Some(after);
            }
            progress = wait(&self.changed, progress, left);
        }
    }

    /// Changes the health.
    pub(crate) fn health(&self) -> MutexGuard<'_, Health> {
        lock(&self.health)
    }

    /// Whether nothing can be stored at the moment.
    pub(crate) fn is_failing(&self) -> bool {
        lock(&self.health).failing.is_some()
    }

    /// A reader found the database corrupt.
    pub(crate) fn suspect(&self) {
        self.suspect.store(true, Ordering::SeqCst);
    }

    /// Whether a reader found the database corrupt; asked once.
    pub(crate) fn take_suspect(&self) -> bool {
        self.suspect.swap(false, Ordering::SeqCst)
    }

    /// Counts a record that was refused.
    pub fn undecodable(&self, error: DecodeError) {
        let mut health = lock(&self.health);
        let count = health.undecodable.entry(error.reason()).or_default();
        if *count == 0 {
            tracing::error!("{error}; counted from now on, see `ringfence status`");
        }
        *count += 1;
    }

    /// Counts a report of an agent's worker that was refused: a subverted one would fill the log. The first of each agent is
    /// logged, so that none hides another's.
    pub(crate) fn report_refused(&self, agent: &str) {
        let mut health = lock(&self.health);
        *health.undecodable.entry("report").or_default() += 1;
        if health.misreporting.insert(agent.to_owned()) {
            tracing::error!(
                "the worker of agent {agent:?} reports what this auditor does not understand; counted from now on, see `ringfence status`"
            );
        }
    }

    /// Counts what cannot be stored: an event, or a report about an agent.
    pub(crate) fn drop_incoming(&self, incoming: Incoming) {
        match incoming {
            Incoming::Event(event) => self.drop_event(*event),
            Incoming::Report(_) => {
                *lock(&self.health).undecodable.entry("unstored_report").or_default() += 1;
            }
            _ => {}
        }
    }

    /// Counts an event that cannot be stored, as often as it happened.
    pub(crate) fn drop_event(&self, Event { record, identity, .. }: Event) {
        let container = record.container;
        let mut all = lock(&self.dropped);
        let key = if all.len() < MAX_DROPPING || all.contains_key(&container) { container } else { 0 };
        let dropped = all.entry(key).or_default();
        dropped.identity = identity.filter(|_| key == container);
        *(if is_denied(&record) { &mut dropped.denied } else { &mut dropped.allowed }) +=
            u64::from(record.repeats);
    }

    /// The batch of this number was dropped, its events counted.
    pub(crate) fn drop_batch(&self, sequence: u64) {
        self.dropped_to.store(sequence, Ordering::SeqCst);
    }

    /// The last batch that was dropped; 0: none.
    pub(crate) fn dropped_to(&self) -> u64 {
        self.dropped_to.load(Ordering::SeqCst)
    }

    /// What was dropped and is not in the store yet.
    pub fn dropped(&self) -> Vec<Dropped> {
        lock(&self.dropped).values().cloned().collect()
    }

    /// The same, to be put into the store.
    pub(crate) fn take_dropped(&self) -> HashMap<u64, Dropped> {
        std::mem::take(&mut *lock(&self.dropped))
    }
}

/// Behind a lock nothing is half done: a panic elsewhere is no reason to stop.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn wait<'a, T>(changed: &Condvar, guard: MutexGuard<'a, T>, limit: Duration) -> MutexGuard<'a, T> {
    changed.wait_timeout(guard, limit).map_or_else(|e| e.into_inner().0, |(guard, _)| guard)
}

#[cfg(test)]
mod tests;
