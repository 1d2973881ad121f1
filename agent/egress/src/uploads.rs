//! How much was sent to what each entry of the profile grants. That is the container's, and no worker's: where `max_upload` bounds
//! it, the core is told before it is sent, and tells the next worker. So one that dies, or that is made to, gives nothing back.

use ringfence_wire::egress::{Names, UPLOADS_AT_ONCE, Upload};
use std::{
    cell::{Cell, RefCell},
    collections::{HashMap, HashSet, VecDeque},
    rc::Rc,
};
use tokio::sync::Notify;

/// The core is told in so many steps, of so many bytes at most. Two of them may be lost to a container whose worker dies.
const STEPS: u64 = 64;
const MOST_STEP: u64 = 1 << 20;
/// Entries of earlier policies that are kept, with those of this one, and names that no entry has.
const MOST_ENTRIES: usize = 4096;
const MOST_STRAYS: usize = 1024;

/// See the module.
pub(crate) struct Uploads {
    by_host: RefCell<HashMap<String, Rc<Entry>>>,
}

/// What one entry grants.
struct Entry {
    host: String,
    /// Bytes that were sent.
    sent: Cell<u64>,
    /// What the core is to be told, and what it was.
    due: Cell<u64>,
    told: Cell<u64>,
    /// It waits to be told.
    is_due: Cell<bool>,
    /// It is a name that no entry has, of audit mode or approved by a person: the core does not know it.
    is_stray: Cell<bool>,
}

/// What a connection's bytes are counted to: each entry that names its host.
pub(crate) struct Spent(Vec<Rc<Entry>>);

/// How much may be sent.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum May {
    /// So many bytes, at least one.
    Send(usize),
    /// Some, once the core [was told](Untold::told).
    Later,
    /// None any more.
    No,
}

/// What the core is to be told.
#[derive(Default)]
pub(crate) struct Untold {
    waiting: RefCell<VecDeque<Rc<Entry>>>,
    /// What is being said.
    saying: RefCell<Vec<(Rc<Entry>, u64)>>,
    more: Notify,
    said: Notify,
}

impl Uploads {
    /// Goes on from what the core says that workers before this one sent.
    pub(crate) fn new(before: Vec<Upload>, names: &Names) -> Self {
        let entry = |Upload { host, bytes }| (host.clone(), Rc::new(Entry::new(host, bytes, false)));
        let uploads = Self { by_host: RefCell::new(before.into_iter().map(entry).collect()) };
        uploads.adopt(names);
        uploads
    }

    /// Another policy is to be in force: what its entries grant begins where any entry is that grants some of it, or did.
    pub(crate) fn adopt(&self, names: &Names) {
        let mut by_host = self.by_host.borrow_mut();
        let hosts: HashSet<&str> = names.rules.iter().map(|rule| rule.host.as_str()).collect();
        if by_host.len() > MOST_ENTRIES {
            by_host.retain(|host, entry| hosts.contains(host.as_str()) || Rc::strong_count(entry) > 1);
        }
        let before: Vec<(String, u64)> = by_host
            .iter()
            .map(|(host, entry)| (host.clone(), entry.sent.get()))
            .filter(|(_, sent)| *sent > 0)
            .collect();
        for host in hosts {
            let sent = before.iter().filter(|(of, _)| overlap(of, host)).map(|(_, sent)| *sent).max();
            let entry = by_host
                .entry(host.to_owned())
                .or_insert_with(|| Rc::new(Entry::new(host.to_owned(), 0, false)));
            entry.sent.set(entry.sent.get().max(sent.unwrap_or_default()));
            entry.is_stray.set(false);
        }
    }

    /// Each entry that names a host, at whatever port. In audit mode, or where a person approved it, there may be none: then it is
    /// counted by itself.
    pub(crate) fn of(&self, names: &Names, name: &str) -> Rc<Spent> {
        let rules = names.rules.iter().filter(|rule| rule.names(name));
        let mut hosts: Vec<&str> = rules.map(|rule| rule.host.as_str()).collect();
        hosts.sort_unstable();
        hosts.dedup();
        let is_stray = hosts.is_empty();
        if is_stray {
            hosts.push(name);
        }
        let mut by_host = self.by_host.borrow_mut();
        if is_stray && !by_host.contains_key(name) {
            let strays = by_host.values().filter(|entry| entry.is_stray.get()).count();
            if strays >= MOST_STRAYS {
                // Those of audit mode are held to nothing, and each of the others was approved.
                by_host.retain(|_, entry| !entry.is_stray.get() || Rc::strong_count(entry) > 1);
            }
        }
        let of_host = |host: &str| {
            let new = || Rc::new(Entry::new(host.to_owned(), 0, is_stray));
            Rc::clone(by_host.entry(host.to_owned()).or_insert_with(new))
        };
        Rc::new(Spent(hosts.into_iter().map(of_host).collect()))
    }

    /// Has the core be told of what no bound held up.
    pub(crate) fn tell(&self, untold: &Untold) {
        for entry in self.by_host.borrow().values().filter(|entry| !entry.is_stray.get()) {
            if entry.sent.get() > entry.due.get() {
                untold.add(entry, entry.sent.get());
            }
        }
    }
}

impl Entry {
    fn new(host: String, sent: u64, is_stray: bool) -> Self {
        let at = || Cell::new(sent);
        Self {
            host,
            sent: at(),
            due: at(),
            told: at(),
            is_due: Cell::new(false),
            is_stray: Cell::new(is_stray),
        }
    }
}

impl Spent {
    /// How much may be sent where `most` bytes may be in all.
    pub(crate) fn may_send(&self, most: u64, untold: &Untold) -> May {
        let mut may = most.saturating_sub(self.bytes());
        if may == 0 {
            return May::No;
        }
        let step = (most / STEPS).clamp(1, MOST_STEP);
        for entry in self.0.iter().filter(|entry| !entry.is_stray.get()) {
            let sent = entry.sent.get();
            if entry.due.get() < sent.saturating_add(step).min(most) {
                untold.add(entry, sent.saturating_add(2 * step).min(most));
            }
            may = may.min(entry.told.get().saturating_sub(sent));
        }
        match usize::try_from(may).unwrap_or(usize::MAX) {
            0 => May::Later,
            may => May::Send(may),
        }
    }

    /// So much was sent.
    pub(crate) fn spend(&self, bytes: u64) {
        self.0.iter().for_each(|entry| entry.sent.set(entry.sent.get().saturating_add(bytes)));
    }

    /// How much was, to the entry with most.
    fn bytes(&self) -> u64 {
        self.0.iter().map(|entry| entry.sent.get()).max().unwrap_or_default()
    }
}

impl Untold {
    fn add(&self, entry: &Rc<Entry>, due: u64) {
        entry.due.set(due);
        if !entry.is_due.replace(true) {
            self.waiting.borrow_mut().push_back(Rc::clone(entry));
            self.more.notify_one();
        }
    }

    /// What is to be said next, if there is anything: [`Self::was_said`] when it was.
    pub(crate) fn next(&self) -> Option<Vec<Upload>> {
        let mut waiting = self.waiting.borrow_mut();
        let count = waiting.len().min(UPLOADS_AT_ONCE);
        let said = waiting.drain(..count).map(|entry| {
            entry.is_due.set(false);
            let due = entry.due.get();
            (entry, due)
        });
        let mut saying = self.saying.borrow_mut();
        *saying = said.collect();
        let upload = |(entry, bytes): &(Rc<Entry>, u64)| Upload { host: entry.host.clone(), bytes: *bytes };
        (!saying.is_empty()).then(|| saying.iter().map(upload).collect())
    }

    /// The core has it, or finds it in the link when this worker is no more.
    pub(crate) fn was_said(&self) {
        for (entry, bytes) in self.saying.take() {
            entry.told.set(entry.told.get().max(bytes));
        }
        self.said.notify_waiters();
    }

    /// Waits until there is something to be said.
    pub(crate) async fn more(&self) {
        self.more.notified().await;
    }

    /// Waits until something was said.
    pub(crate) async fn told(&self) {
        self.said.notified().await;
    }
}

/// Whether two entries may grant the same host.
fn overlap(one: &str, other: &str) -> bool {
    let is_below = |name: &str, above: &str| name.strip_suffix(above).is_some_and(|rest| rest.ends_with('.'));
    match (one.strip_prefix("*."), other.strip_prefix("*.")) {
        (None, None) => one == other,
        (Some(above), None) => is_below(other, above),
        (None, Some(above)) => is_below(one, above),
        (Some(one), Some(other)) => one == other || is_below(one, other) || is_below(other, one),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ringfence_wire::egress::NameRule;

    fn names(granted: &[&str]) -> Names {
        let rule = |host: &&str| NameRule { host: (*host).to_owned(), port: None, tcp: false, rule: 0 };
        Names { rules: granted.iter().map(rule).collect(), ..Names::default() }
    }

    fn sent(uploads: &Uploads, names: &Names, name: &str) -> u64 {
        uploads.of(names, name).bytes()
    }

    #[test]
    fn a_name_has_one_budget_whatever_entries_name_it() {
        let names = names(&["*.a.org", "x.a.org", "x.a.org", "b.org"]);
        let uploads = Uploads::new(Vec::new(), &names);
        uploads.of(&names, "x.a.org").spend(3);
        assert_eq!(sent(&uploads, &names, "y.a.org"), 3, "what a wildcard grants shares it");
        uploads.of(&names, "y.a.org").spend(4);
        assert_eq!(sent(&uploads, &names, "x.a.org"), 7, "and what an exact name sends counts there");
        assert_eq!(sent(&uploads, &names, "b.org"), 0);
        uploads.of(&names, "other.example").spend(5);
        assert_eq!(
            (sent(&uploads, &names, "other.example"), sent(&uploads, &names, "b.org")),
            (5, 0),
            "of audit mode"
        );
        for at in 0..5000 {
            uploads.of(&names, &format!("{at}.example"));
        }
        assert!(uploads.by_host.borrow().len() <= MOST_STRAYS + 3);
    }

    #[test]
    fn entries_of_another_policy_begin_where_those_of_before_are() {
        let (wild, exact) = (names(&["*.a.org", "b.org"]), names(&["x.a.org", "y.b.org", "*.c.x.a.org"]));
        let uploads = Uploads::new(Vec::new(), &wild);
        let open = uploads.of(&wild, "x.a.org");
        open.spend(7);
        uploads.adopt(&exact);
        assert_eq!(sent(&uploads, &exact, "x.a.org"), 7);
        assert_eq!(sent(&uploads, &exact, "z.c.x.a.org"), 7, "which the wildcard named, too");
        assert_eq!(sent(&uploads, &exact, "y.b.org"), 0, "the control");
        uploads.of(&exact, "x.a.org").spend(2);
        uploads.adopt(&wild);
        assert_eq!(sent(&uploads, &wild, "other.a.org"), 9, "and back again");
        let nested = names(&["*.org"]);
        uploads.adopt(&nested);
        assert_eq!(sent(&uploads, &nested, "d.org"), 9);
        // The same again changes nothing.
        uploads.adopt(&nested);
        assert_eq!(sent(&uploads, &nested, "d.org"), 9);
        for (one, other, expected) in [
            ("a.org", "a.org", true),
            ("*.a.org", "a.org", false),
            ("*.a.org", "xa.org", false),
            ("*.a.org", "*.b.a.org", true),
            ("*.a.org", "*.b.org", false),
        ] {
            assert_eq!((overlap(one, other), overlap(other, one)), (expected, expected), "{one} {other}");
        }
        // Policies that change without end.
        for at in 0..20 {
            let many: Vec<String> = (0..1000).map(|host| format!("{host}.{at}.example")).collect();
            uploads.adopt(&names(&many.iter().map(String::as_str).collect::<Vec<_>>()));
        }
        assert!(uploads.by_host.borrow().len() <= MOST_ENTRIES + 1000);
    }

    #[test]
    fn nothing_is_sent_before_the_core_has_it_and_the_next_worker_goes_on_from_there() {
        let names = names(&["*.a.org", "x.a.org"]);
        let uploads = Uploads::new(Vec::new(), &names);
        let (untold, most) = (Untold::default(), 64_000);
        let spent = uploads.of(&names, "x.a.org");
        assert_eq!(spent.may_send(most, &untold), May::Later);
        let mut core = HashMap::new();
        let hear = |core: &mut HashMap<String, u64>| {
            let said = untold.next().unwrap();
            core.extend(said.into_iter().map(|Upload { host, bytes }| (host, bytes)));
        };
        hear(&mut core);
        assert_eq!(spent.may_send(most, &untold), May::Later, "it is not written yet");
        untold.was_said();
        assert!(untold.next().is_none());
        let mut all = 0;
        loop {
            match spent.may_send(most, &untold) {
                May::Send(count) => {
                    assert!(count <= 2000, "{count}");
                    // Another connection does the same.
                    let other = uploads.of(&names, "y.a.org");
                    for (by, count) in [(&spent, count / 2), (&other, count - count / 2)] {
                        by.spend(count as u64);
                        all += count as u64;
                    }
                    assert!(core["*.a.org"] >= all, "{core:?} {all}");
                    // Whatever moment it dies at, it has told what it sent, and not much more.
                    assert!(core["*.a.org"] <= all + 2000, "{core:?} {all}");
                }
                May::Later => {
                    hear(&mut core);
                    untold.was_said();
                }
                May::No => break,
            }
        }
        assert_eq!((all, core["*.a.org"]), (most, most));
        let before = core.into_iter().map(|(host, bytes)| Upload { host, bytes }).collect();
        let next = Uploads::new(before, &names);
        assert_eq!(next.of(&names, "y.a.org").may_send(most, &untold), May::No);
        assert_ne!(next.of(&names, "y.a.org").may_send(most + 1, &untold), May::No, "the control");
    }

    #[test]
    fn what_no_bound_holds_up_is_told_now_and_then_and_nothing_of_audit_mode_s_names() {
        let names = names(&["a.org"]);
        let (uploads, untold) = (Uploads::new(Vec::new(), &names), Untold::default());
        uploads.of(&names, "a.org").spend(7);
        uploads.of(&names, "stray.example").spend(8);
        let stray = uploads.of(&names, "stray.example");
        assert_eq!(stray.may_send(10, &untold), May::Send(2));
        uploads.tell(&untold);
        assert_eq!(untold.next().unwrap(), [Upload { host: "a.org".into(), bytes: 7 }]);
        untold.was_said();
        uploads.tell(&untold);
        assert!(untold.next().is_none());
        for at in 0..3 * UPLOADS_AT_ONCE {
            untold.add(&Rc::new(Entry::new(at.to_string(), 0, false)), 1);
        }
        assert_eq!(untold.next().unwrap().len(), UPLOADS_AT_ONCE);
    }
}
