//! Who gets a permit, and who goes for it.

use super::*;
use proptest::{collection::vec, prelude::*, sample::Index};
use std::sync::atomic::{AtomicUsize, Ordering};

/// Permits, and how many were taken away.
struct Scene {
    permits: Permits,
    ended: Arc<AtomicUsize>,
}

impl Scene {
    fn new(bounds: Bounds, owners: &str) -> Self {
        let owners = Owners::parse(owners, |name| name.parse().ok());
        Self { permits: Permits::within(bounds, owners), ended: Arc::default() }
    }

    fn take(&self, uid: u32) -> Option<Permit> {
        let ended = Arc::clone(&self.ended);
        self.permits.take(uid, move || {
            ended.fetch_add(1, Ordering::SeqCst);
        })
    }

    /// One that is in use at once.
    fn busy(&self, uid: u32) -> Option<Permit> {
        self.take(uid).filter(Permit::busy)
    }

    fn unknown(&self) -> Option<Permit> {
        let ended = Arc::clone(&self.ended);
        self.permits.take_unknown(move || {
            ended.fetch_add(1, Ordering::SeqCst);
        })
    }

    fn ended(&self) -> usize {
        self.ended.load(Ordering::SeqCst)
    }
}

#[test]
fn one_user_has_a_share_and_root_a_reserve() {
    let scene = Scene::new(Bounds::of(5, 3), "");
    let first: Vec<_> = (0..9).map_while(|_| scene.busy(1000)).collect();
    assert_eq!(first.len(), 3);
    let second: Vec<_> = (0..2).map_while(|_| scene.busy(1001)).collect();
    assert_eq!(second.len(), 2);
    let root: Vec<_> = (0..9).map_while(|_| scene.busy(0)).collect();
    assert_eq!((root.len(), scene.ended()), (5, 0), "as many as all users, and nobody has to go for it");
    assert_eq!((scene.permits.count(1000), scene.permits.count(0)), (3, 10));
    drop(first);
    assert!(scene.take(1000).is_some());
}

#[test]
fn subordinate_ids_are_their_owner_s() {
    let scene = Scene::new(Bounds::of(50, 3), "1000:100000:65536\n");
    let many: Vec<_> = (0..40).map_while(|n| scene.busy(100_000 + n)).collect();
    assert_eq!(many.len(), 3, "other ids of the same user");
    assert!(scene.take(1000).is_none(), "and the user itself");
    let other: Vec<_> = (0..40).map_while(|n| scene.take(200_000 + n)).collect();
    assert_eq!(other.len(), 40, "the control: ids that are nobody's");
}

#[test]
fn idle_permits_of_who_has_the_most_go_for_who_has_fewer() {
    let scene = Scene::new(Bounds::of(6, 4), "");
    let hog: Vec<_> = (0..4).filter_map(|_| scene.take(1)).collect();
    let few: Vec<_> = (0..2).filter_map(|_| scene.take(2)).collect();
    assert!(hog[0].busy());
    few.iter().for_each(|permit| assert!(permit.busy()));
    let third = scene.take(3).expect("room is made");
    let held: Vec<_> = hog.iter().map(Permit::is_held).collect();
    assert_eq!(held, [true, false, true, true], "the oldest that is idle");
    assert!(few.iter().chain([&third]).all(Permit::is_held));
    assert_eq!(scene.ended(), 1);
}

#[test]
fn work_is_broken_off_only_above_a_fair_share() {
    let scene = Scene::new(Bounds::of(6, 6), "");
    let hog: Vec<_> = (0..4).filter_map(|_| scene.take(1)).collect();
    let few: Vec<_> = (0..2).filter_map(|_| scene.take(2)).collect();
    hog.iter().chain(&few).for_each(|permit| assert!(permit.busy()));
    let mut newcomer = Vec::new();
    for _ in 0..2 {
        newcomer.push(scene.take(3).expect("room is made"));
        newcomer.iter().for_each(|permit| assert!(permit.busy()));
    }
    assert!(scene.take(3).is_none(), "everybody has two of six");
    assert_eq!(hog.iter().filter(|permit| permit.is_held()).count(), 2);
    assert!(few.iter().all(Permit::is_held));
    assert!(scene.take(1).is_none(), "who was asked to go does not come back by it");
}

#[test]
fn a_user_with_a_full_share_loses_its_own_oldest_idle_and_nobody_else_s() {
    // Of a user, of root, of a user's subordinate id; of who has a share of all, and of who is not bounded but by all.
    for (bounds, uid, again) in [
        (Bounds::of(9, 4), 1, 1),
        (Bounds::of(4, 4), 0, 0),
        (Bounds::of(9, 4), 1, 105),
        (Bounds::of(5, 5), 1, 1),
        (Bounds { all: 5, each: 5, unknown: 3 }, 1, 1),
    ] {
        let scene = Scene::new(bounds, "1:100:10\n");
        let other = scene.take(2).expect("somebody else's");
        let own: Vec<_> = (0..4).filter_map(|_| scene.take(uid)).collect();
        assert!(own[0].busy());
        assert!(own[2].busy());
        let held = || own.iter().map(Permit::is_held).collect::<Vec<_>>();
        let next = scene.take(again).expect("room is made");
        assert_eq!(held(), [true, false, true, true], "the oldest that is idle");
        assert!(next.busy());
        assert!(own[3].busy());
        assert!(scene.take(uid).is_none(), "all of its share is busy");
        own[2].idle();
        assert!(scene.take(uid).is_some());
        assert_eq!(held(), [true, false, false, true], "what is over is idle again");
        assert!(other.is_held() && next.is_held());
        assert_eq!(scene.ended(), 2);
    }
}

#[test]
fn who_does_not_end_what_was_taken_away_gets_no_more_than_another_share() {
    let scene = Scene::new(Bounds::of(9, 2), "");
    let mut all: Vec<_> = (0..4).filter_map(|_| scene.take(1)).collect();
    assert_eq!((all.len(), scene.ended(), scene.permits.count(1)), (4, 2, 2), "two went for the next two");
    assert!(scene.take(1).is_none(), "they are not gone");
    assert!(all[2..].iter().all(Permit::is_held), "and nothing goes for nothing");
    assert!(scene.take(2).is_some(), "the control: another user");
    drop(all.remove(0));
    assert!(scene.take(1).is_some());
    // The others as well: nothing is left of any of them.
    drop(all);
    assert!(scene.permits.lock().shares.is_empty());
    // Root's services are bounded by what they hold alone.
    let root: Vec<_> = (0..40).filter_map(|_| scene.take(0)).collect();
    assert_eq!(root.len(), 40);
}

#[test]
fn who_says_who_it_is_gets_the_place_of_its_own_oldest_idle() {
    let scene = Scene::new(Bounds { all: 6, each: 2, unknown: 3 }, "");
    let own: Vec<_> = (0..2).filter_map(|_| scene.take(7)).collect();
    assert!(own[0].busy());
    let next = scene.unknown().expect("one");
    assert!(next.identify(7) && next.is_held());
    assert_eq!((own[0].is_held(), own[1].is_held()), (true, false));
    assert!(!scene.unknown().expect("one").identify(7), "now all are busy");
    // A second message on a connection that rested is work as the first was.
    next.idle();
    assert!(next.identify(7));
    assert!(scene.take(7).is_none() && next.is_held(), "it does not go for the next one");
}

#[test]
fn the_oldest_unknown_goes_and_who_identifies_stays() {
    let scene = Scene::new(Bounds { all: 6, each: 2, unknown: 3 }, "");
    let first = scene.unknown().expect("one");
    assert!(first.identify(7) && first.identify(7), "said twice is said once");
    let unknown: Vec<_> = (0..5).filter_map(|_| scene.unknown()).collect();
    let held: Vec<_> = unknown.iter().map(Permit::is_held).collect();
    assert_eq!(held, [false, false, true, true, true]);
    assert!(first.is_held() && !unknown[0].identify(7));
    assert!(unknown[2].identify(7) && !unknown[3].identify(7), "a share for each user");
    assert!(unknown[3].identify(8) && unknown[4].identify(0));
}

#[test]
fn who_was_taken_away_is_told_so() {
    let scene = Scene::new(Bounds::of(4, 2), "");
    let [evicted, stays] = [scene.take(1), scene.take(1)].map(|permit| permit.expect("room"));
    let _next = scene.take(1).expect("room is made");
    assert_eq!((evicted.is_held(), stays.is_held()), (false, true));
    assert!(!evicted.busy() && stays.busy(), "and no word of its own gives it back");
    assert!(!evicted.is_held());
}

#[test]
fn whoever_goes_for_its_own_new_place_does_not_have_it() {
    // Two of three are user 1's, and idle: when the older of them says that it is user 2's, the one who goes is itself.
    let scene = Scene::new(Bounds::of(3, 3), "");
    let own: Vec<_> = (0..2).filter_map(|_| scene.take(1)).collect();
    let _other = scene.busy(3).expect("room");
    assert!(!own[0].identify(2) && !own[0].is_held());
    assert_eq!(scene.ended(), 1);
    // The control: one that stays.
    assert!(own[1].identify(2) && own[1].is_held());
}

proptest! {
    /// The shares are counted as permits come, change and go: whatever the order, they are those of the permits that are out.
    #[test]
    fn shares_are_what_is_out(steps in vec((0..5_u8, 0..4_u32, any::<Index>()), 0..120)) {
        let scene = Scene::new(Bounds { all: 6, each: 3, unknown: 2 }, "");
        let mut out = Vec::new();
        for (step, uid, which) in steps {
            match step {
                0 => out.extend(scene.take(uid)),
                1 => out.extend(scene.unknown()),
                _ if out.is_empty() => {}
                2 => drop(out.swap_remove(which.index(out.len()))),
                3 => {
                    let permit = &out[which.index(out.len())];
                    prop_assert_eq!(permit.set_busy(uid % 2 == 0), permit.is_held());
                }
                _ => {
                    let permit = &out[which.index(out.len())];
                    prop_assert!(!permit.identify(uid) || permit.is_held());
                }
            }
            let held = scene.permits.lock();
            let mut counted: HashMap<Option<u32>, usize> = HashMap::new();
            for (number, entry) in &held.entries {
                *counted.entry(entry.owner).or_default() += 1;
                let share = &held.shares[&entry.owner];
                prop_assert!(share.idle.contains(number) != share.busy.contains(number));
            }
            let shares = held.shares.iter().map(|(owner, share)| (*owner, share.count()));
            let shares: HashMap<_, _> = shares.filter(|(_, count)| *count > 0).collect();
            prop_assert_eq!(&shares, &counted);
            let of = |owner| counted.get(&owner).copied().unwrap_or(0);
            prop_assert!(of(None) <= 2 && of(Some(0)) <= 6 && (1..4).all(|uid| of(Some(uid)) <= 3));
            prop_assert!((1..4).map(|uid| of(Some(uid))).sum::<usize>() <= 6);
            let leaving = |owner| held.shares.get(&owner).map_or(0, |share| share.leaving.len());
            // What others need is taken away from a user whatever is leaving.
            prop_assert!((1..4).all(|uid| leaving(Some(uid)) < 2 * 3));
            let all: usize = held.shares.values().map(|share| share.leaving.len()).sum();
            prop_assert_eq!(all, out.iter().filter(|permit| !permit.is_held()).count());
            prop_assert!(held.shares.values().all(|share| !share.is_empty()));
        }
    }
}
