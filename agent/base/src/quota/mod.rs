//! Who may have how much of what users share: connections, pages, tokens, questions under way.
//!
//! | what | file |
//! |---|---|
//! | permits for connections: a share for each user, a reserve for root, eviction | this one |
//! | whose a user id is: subordinate ids count as their owner's | `owners` |
//! | one of a user at a time, for as long as it has its permit | `lanes` |
//! | refusals on record, without filling it | `refusals` |
//!
//! A limit by user id alone is none: `/etc/subuid` gives every user 65536 ids. And a limit without eviction is a way to
//! keep others out: whoever comes first, and stays.

mod lanes;
mod owners;
mod refusals;

pub use lanes::{Lane, Lanes};
pub use owners::Owners;
pub use refusals::Refusals;

use std::{
    cmp::Reverse,
    collections::{BTreeSet, HashMap},
    fmt,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
};

/// How many permits there are.
#[derive(Debug, Clone, Copy)]
pub struct Bounds {
    /// Of all users but root together; root has as many of its own.
    pub all: usize,
    /// Of one user but root, subordinate ids included.
    pub each: usize,
    /// Of those whose user is not known, beside those of all users.
    pub unknown: usize,
}

impl Bounds {
    /// Where the kernel says whose each connection is.
    pub fn of(all: usize, each: usize) -> Self {
        Self { all, each, unknown: 0 }
    }
}

/// Permits of one kind.
#[derive(Debug, Clone)]
pub struct Permits {
    held: Arc<Mutex<Held>>,
    bounds: Bounds,
    owners: Owners,
}

/// Those that are out. Whoever connects again and again asks here each time: what is looked at does not grow with the permits
/// but with the users who have some.
#[derive(Debug, Default)]
struct Held {
    entries: HashMap<u64, Entry>,
    shares: HashMap<Option<u32>, Share>,
    next: u64,
}

/// The permits of one user, or of those who are not known: their numbers, the oldest first.
#[derive(Debug, Default)]
struct Share {
    idle: BTreeSet<u64>,
    busy: BTreeSet<u64>,
    /// Those that were taken away and not dropped yet: whatever they were for is still ending, and may take its time.
    leaving: BTreeSet<u64>,
}

impl Share {
    /// Those that are held.
    fn count(&self) -> usize {
        self.idle.len() + self.busy.len()
    }

    fn is_empty(&self) -> bool {
        self.count() + self.leaving.len() == 0
    }
}

struct Entry {
    uid: Option<u32>,
    /// Whose the id was when the permit was taken; `None`: not known yet.
    owner: Option<u32>,
    end: Box<dyn Fn() + Send>,
    is_taken_away: Arc<AtomicBool>,
}

impl fmt::Debug for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Entry").field("uid", &self.uid).finish_non_exhaustive()
    }
}

impl Permits {
    /// None is out yet.
    pub fn within(bounds: Bounds, owners: Owners) -> Self {
        Self { held: Arc::default(), bounds, owners }
    }

    /// One for a user, until it is dropped. `end` ends what it is for, without waiting: it is called if others need the
    /// permit more. `None`: the user has its share and all of it is busy, or nobody has more than this user who could be asked
    /// to go; or as many as a share were taken away from the user, and what they were for has not ended.
    pub fn take(&self, uid: u32, end: impl Fn() + Send + 'static) -> Option<Permit> {
        self.take_as(Some(uid), Box::new(end))
    }

    /// One for somebody who has not said who it is. When there are too many of those, the oldest of them is ended.
    /// `None` only where there are none for such.
    pub fn take_unknown(&self, end: impl Fn() + Send + 'static) -> Option<Permit> {
        self.take_as(None, Box::new(end))
    }

    fn take_as(&self, uid: Option<u32>, end: Box<dyn Fn() + Send>) -> Option<Permit> {
        let owner = uid.map(|uid| self.owners.of(uid));
        let mut held = self.lock();
        let evicted = held.room_for(owner, self.bounds)?;
        let evicted = evicted.and_then(|number| held.evict(number));
        let number = held.next;
        held.next += 1;
        let is_taken_away = Arc::new(AtomicBool::new(false));
        let entry = Entry { uid, owner, end, is_taken_away: Arc::clone(&is_taken_away) };
        held.entries.insert(number, entry);
        held.shares.entry(owner).or_default().idle.insert(number);
        drop(held);
        if let Some(evicted) = evicted {
            (evicted.end)();
        }
        Some(Permit { permits: self.clone(), number, is_taken_away })
    }

    /// How many `uid` has; for root, how many there are.
    pub fn count(&self, uid: u32) -> usize {
        self.lock().entries.values().filter(|entry| uid == 0 || entry.uid == Some(uid)).count()
    }

    fn lock(&self) -> MutexGuard<'_, Held> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Held {
    /// Whether there is room for one more of `owner`, and which permit has to go for it.
    #[expect(clippy::option_option, reason = "no room; room; room if that one goes")]
    fn room_for(&self, owner: Option<u32>, bounds: Bounds) -> Option<Option<u64>> {
        let count = |owner: Option<u32>| self.shares.get(&owner).map_or(0, Share::count);
        let own = count(owner);
        // What does not end holds a thread, and whoever sees to that must not have any number of them.
        let leaving = self.shares.get(&owner).map_or(0, |share| share.leaving.len());
        if owner.is_some_and(|owner| owner != 0) && leaving >= bounds.each {
            return None;
        }
        // Somebody's own that is idle goes for the next: what a user forgot does not keep that user out.
        let own_idle = || self.shares.get(&owner)?.idle.first().copied().map(Some);
        if owner == Some(0) {
            return if own < bounds.all { Some(None) } else { own_idle() };
        }
        match owner {
            None if own < bounds.unknown => return Some(None),
            None => {
                let share = self.shares.get(&None)?;
                return share.idle.first().into_iter().chain(share.busy.first()).min().copied().map(Some);
            }
            Some(_) if own >= bounds.each => return own_idle(),
            Some(_) => {}
        }
        if self.entries.len() - count(None) - count(Some(0)) < bounds.all {
            return Some(None);
        }
        let is_user =
            |owner: &Option<u32>, share: &Share| owner.is_some_and(|owner| owner != 0) && share.count() > 0;
        let users = || self.shares.iter().filter(|(owner, share)| is_user(owner, share));
        // Who waits for nothing goes first, and of those who has the most.
        let idle = users().filter_map(|(_, share)| Some((share.count(), *share.idle.first()?)));
        if let Some((_, number)) = most(idle.filter(|(count, _)| *count > own)) {
            return Some(Some(number));
        }
        // Work is broken off only for somebody with less than a fair share, and of somebody with more.
        let fair = bounds.all / (users().count() + usize::from(own == 0)).max(1);
        let busy = users().filter_map(|(_, share)| Some((share.count(), *share.busy.first()?)));
        most(busy.filter(|(count, _)| own < fair && *count > fair))
            .map(|(_, number)| Some(number))
            .or_else(own_idle)
    }

    /// Takes one away from whoever has it.
    fn evict(&mut self, number: u64) -> Option<Entry> {
        let entry = self.remove(number)?;
        entry.is_taken_away.store(true, Ordering::Release);
        self.shares.entry(entry.owner).or_default().leaving.insert(number);
        Some(entry)
    }

    fn remove(&mut self, number: u64) -> Option<Entry> {
        let entry = self.entries.remove(&number)?;
        if let Some(share) = self.shares.get_mut(&entry.owner) {
            share.idle.remove(&number);
            share.busy.remove(&number);
            if share.is_empty() {
                self.shares.remove(&entry.owner);
            }
        }
        Some(entry)
    }

    /// What one that was taken away was for has ended.
    fn left(&mut self, number: u64) {
        self.shares.retain(|_, share| !share.leaving.remove(&number) || !share.is_empty());
    }

    /// False: it was taken away.
    fn set_busy(&mut self, number: u64, busy: bool) -> bool {
        let Some(entry) = self.entries.get(&number) else { return false };
        let share = self.shares.entry(entry.owner).or_default();
        let (from, to) =
            if busy { (&mut share.idle, &mut share.busy) } else { (&mut share.busy, &mut share.idle) };
        if from.remove(&number) {
            to.insert(number);
        }
        true
    }

    /// From now on it is this user's. False: it was taken away.
    fn hand_to(&mut self, number: u64, uid: u32, owner: Option<u32>) -> bool {
        let Some(mut entry) = self.remove(number) else { return false };
        (entry.uid, entry.owner) = (Some(uid), owner);
        self.entries.insert(number, entry);
        self.shares.entry(owner).or_default().busy.insert(number);
        true
    }
}

/// Of the one with the most, and of several the oldest.
fn most(each: impl Iterator<Item = (usize, u64)>) -> Option<(usize, u64)> {
    each.min_by_key(|(count, number)| (Reverse(*count), *number))
}

/// One of what users share; given back when dropped.
#[derive(Debug)]
pub struct Permit {
    permits: Permits,
    number: u64,
    is_taken_away: Arc<AtomicBool>,
}

impl Permit {
    /// It is in use from now on: somebody waits for what it is for. Before, it is the first to go. False: it went already, and
    /// whatever it was for has no place here any more, though more of it may be there to be read.
    #[must_use = "without the permit there is no bound"]
    pub fn busy(&self) -> bool {
        self.set_busy(true)
    }

    /// Nobody waits for it any more: it is among the first to go again.
    pub fn idle(&self) {
        self.set_busy(false);
    }

    fn set_busy(&self, busy: bool) -> bool {
        self.permits.lock().set_busy(self.number, busy)
    }

    /// It is this user's, and busy. False: there is no room for one more of this user's, or the permit was taken away, be it to
    /// make that room.
    #[must_use = "without the permit there is no bound"]
    pub fn identify(&self, uid: u32) -> bool {
        let owner = Some(self.permits.owners.of(uid));
        let mut held = self.permits.lock();
        match held.entries.get(&self.number) {
            None => return false,
            Some(entry) if entry.owner == owner => return held.set_busy(self.number, true),
            Some(_) => {}
        }
        let Some(evicted) = held.room_for(owner, self.permits.bounds) else { return false };
        let evicted = evicted.and_then(|number| held.evict(number));
        let is_held = held.hand_to(self.number, uid, owner);
        drop(held);
        if let Some(evicted) = evicted {
            (evicted.end)();
        }
        is_held
    }

    /// Whether it was not taken away. Takes no lock: hundreds who wait for something ask again and again.
    pub fn is_held(&self) -> bool {
        !self.is_taken_away.load(Ordering::Acquire)
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        let mut held = self.permits.lock();
        let _entry = held.remove(self.number);
        if !self.is_held() {
            held.left(self.number);
        }
        // Before the entry, whose end may do anything.
        drop(held);
    }
}

#[cfg(test)]
mod tests;
