//! Which address of a container's block stands for which name.
//!
//! | last byte | what |
//! |---|---|
//! | 0, 255 | never given out: some programs take them for the network and for everybody |
//! | 1-127 | names that a profile grants whole, in the policy's order, which the kernel and a restarted worker go by, too |
//! | 128-254 | names under a wildcard, as they are asked for |
//! | of those 192-254 | names that are not granted, and that a person would be asked about: any number of them leaves room for others |
//!
//! An address that a client still remembers must not lead to another name. So names under a wildcard give theirs back only
//! after an hour ([`IDLE`]) without question and connection, far more than [`TTL`](crate::dns::TTL) tells clients to remember
//! it. One that is not granted, and to which nobody let a connection go, does after five minutes ([`IDLE_ASKED`]): whoever makes up
//! names keeps those from having an address that are wanted no longer than that. Where a name stands that is granted whole says the policy, as the kernel goes by that, too: whoever changes a policy
//! leaves those names where they are.

use ipnet::Ipv4Net;
use std::{
    collections::{HashMap, HashSet},
    net::Ipv4Addr,
    ops::RangeInclusive,
    time::{Duration, Instant},
};

/// How long nobody must have asked for a name or used it before another name may have its address.
pub const IDLE: Duration = Duration::from_secs(60 * 60);
/// The same of a name that is not granted, and to which nobody let a connection go. Far more than [`TTL`](crate::dns::TTL) as well.
pub const IDLE_ASKED: Duration = Duration::from_secs(5 * 60);
/// Most names that a profile grants whole.
pub const MAX_EXACT: usize = 127;

/// The last bytes for names that are granted whole, and for those under wildcards.
const EXACT: RangeInclusive<u8> = 1..=127;
const GIVEN: RangeInclusive<u8> = 128..=254;
/// Of those, the ones for names that are not granted.
const ASKED: RangeInclusive<u8> = 192..=254;

/// A block that is not one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{0} is not a block of names: those have 256 addresses")]
pub struct NotABlock(Ipv4Net);

/// No address is free.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("every address for names under wildcards stands for a name that was used within the last hour")]
pub struct NoRoom;

/// The names of one container.
#[derive(Debug)]
pub struct Table {
    block: Ipv4Net,
    /// By the address's last byte.
    slots: HashMap<u8, Slot>,
    by_name: HashMap<String, u8>,
}

#[derive(Debug)]
struct Slot {
    name: String,
    connections: u32,
    /// When it was last asked for, or a connection began or ended; none: not yet.
    used: Option<Instant>,
    /// It is granted, or somebody let a connection go there.
    is_kept: bool,
}

impl Slot {
    fn idle(&self) -> Duration {
        if self.is_kept { IDLE } else { IDLE_ASKED }
    }
}

impl Table {
    /// A table of `block` with the names that are granted whole, in the policy's order; each counts once. Those after the first
    /// [`MAX_EXACT`] are treated as names under a wildcard.
    ///
    /// # Errors
    /// [`NotABlock`] if `block` has not 256 addresses.
    pub fn new(block: Ipv4Net, exact: impl IntoIterator<Item = String>) -> Result<Self, NotABlock> {
        if block.prefix_len() != 24 {
            return Err(NotABlock(block));
        }
        let mut table = Self { block: block.trunc(), slots: HashMap::new(), by_name: HashMap::new() };
        table.reload(exact);
        Ok(table)
    }

    /// Goes by another policy's names: each has the address of its position, also where a wildcard gave it another before, which
    /// leads to it all the same. What stood for a name that is granted whole no more leads nowhere.
    pub fn reload(&mut self, exact: impl IntoIterator<Item = String>) {
        let mut seen = HashSet::new();
        let names: Vec<String> = exact.into_iter().filter(|name| seen.insert(name.clone())).collect();
        for last in EXACT {
            if let Some(name) = names.get(usize::from(last - 1)) {
                let is_there = self.slots.get(&last).is_some_and(|slot| slot.name == *name);
                if !is_there {
                    self.put(last, Slot { name: name.clone(), connections: 0, used: None, is_kept: true });
                }
            } else if let Some(gone) = self.slots.remove(&last) {
                self.forget(&gone.name, last);
            }
        }
        // Of two addresses of a name the policy's is the one that is told.
        for last in EXACT {
            if let Some(slot) = self.slots.get(&last) {
                self.by_name.insert(slot.name.clone(), last);
            }
        }
    }

    /// The address of a name that the policy grants, whole or by a wildcard: its own, or a free one.
    ///
    /// # Errors
    /// [`NoRoom`]: nothing is free, and everything was used within [`IDLE`] before `now`.
    pub fn for_name(&mut self, name: &str, now: Instant) -> Result<Ipv4Addr, NoRoom> {
        let address = self.found(name, GIVEN, now)?;
        self.keep(address);
        Ok(address)
    }

    /// The same of a name that is not granted, and that a person would be asked about.
    ///
    /// # Errors
    /// [`NoRoom`]: nothing is free of what such names may have, though others may find room.
    pub fn for_asked(&mut self, name: &str, now: Instant) -> Result<Ipv4Addr, NoRoom> {
        self.found(name, ASKED, now)
    }

    /// Somebody let a connection go to this address: its name is another's only after [`IDLE`].
    pub fn keep(&mut self, address: Ipv4Addr) {
        if let Some(slot) = self.slot(address) {
            slot.is_kept = true;
        }
    }

    fn found(&mut self, name: &str, of: RangeInclusive<u8>, now: Instant) -> Result<Ipv4Addr, NoRoom> {
        let last = match self.by_name.get(name) {
            Some(last) => *last,
            None => self.give(name, of, now)?,
        };
        if let Some(slot) = self.slots.get_mut(&last) {
            slot.used = Some(now);
        }
        Ok(self.address(last))
    }

    /// The name that an address of the block stands for.
    pub fn name_of(&self, address: Ipv4Addr) -> Option<&str> {
        Some(self.slots.get(&self.last(address)?)?.name.as_str())
    }

    /// A connection to this address began.
    pub fn opened(&mut self, address: Ipv4Addr, now: Instant) {
        if let Some(slot) = self.slot(address) {
            slot.connections = slot.connections.saturating_add(1);
            slot.used = Some(now);
        }
    }

    /// A connection to this address ended: once for each [`opened`](Self::opened).
    pub fn closed(&mut self, address: Ipv4Addr, now: Instant) {
        if let Some(slot) = self.slot(address) {
            slot.connections = slot.connections.saturating_sub(1);
            slot.used = Some(now);
        }
    }

    /// The last byte of an address that was free, or of the name's that was longest without use.
    fn give(&mut self, name: &str, of: RangeInclusive<u8>, now: Instant) -> Result<u8, NoRoom> {
        let last = match of.clone().find(|last| !self.slots.contains_key(last)) {
            Some(free) => free,
            None => self.longest_idle(&of, now).ok_or(NoRoom)?,
        };
        self.put(last, Slot { name: name.to_owned(), connections: 0, used: Some(now), is_kept: false });
        Ok(last)
    }

    fn longest_idle(&self, of: &RangeInclusive<u8>, now: Instant) -> Option<u8> {
        let is_idle = |last: u8, slot: &Slot| {
            of.contains(&last)
                && slot.connections == 0
                && slot.used.is_some_and(|used| now.saturating_duration_since(used) >= slot.idle())
        };
        let idle = self.slots.iter().filter(|(last, slot)| is_idle(**last, slot));
        idle.min_by_key(|(last, slot)| (slot.used, **last)).map(|(last, _)| *last)
    }

    fn put(&mut self, last: u8, slot: Slot) {
        let name = slot.name.clone();
        if let Some(before) = self.slots.insert(last, slot) {
            self.forget(&before.name, last);
        }
        self.by_name.insert(name, last);
    }

    /// A name does not have this address any more; it may still have another.
    fn forget(&mut self, name: &str, last: u8) {
        if self.by_name.get(name) == Some(&last) {
            self.by_name.remove(name);
            let other =
                GIVEN.into_iter().find(|last| self.slots.get(last).is_some_and(|slot| slot.name == name));
            self.by_name.extend(other.map(|last| (name.to_owned(), last)));
        }
    }

    fn slot(&mut self, address: Ipv4Addr) -> Option<&mut Slot> {
        let last = self.last(address)?;
        self.slots.get_mut(&last)
    }

    fn last(&self, address: Ipv4Addr) -> Option<u8> {
        self.block.contains(&address).then(|| address.octets()[3])
    }

    fn address(&self, last: u8) -> Ipv4Addr {
        let [a, b, c, _] = self.block.network().octets();
        Ipv4Addr::new(a, b, c, last)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn block() -> Ipv4Net {
        "198.18.7.0/24".parse().unwrap()
    }

    fn table(exact: &[&str]) -> Table {
        Table::new(block(), exact.iter().map(|name| (*name).to_owned())).unwrap()
    }

    fn address(last: u8) -> Ipv4Addr {
        Ipv4Addr::new(198, 18, 7, last)
    }

    #[test]
    fn a_name_granted_whole_has_the_address_of_its_position() {
        let (mut names, now) = (table(&["a.example", "b.example", "a.example", "c.example"]), Instant::now());
        for (name, last) in [("c.example", 3), ("a.example", 1), ("b.example", 2)] {
            assert_eq!(
                names.name_of(address(last)),
                Some(name),
                "before anybody asked: a client may remember it"
            );
            assert_eq!(names.for_name(name, now), Ok(address(last)));
        }
        for nobody in [address(0), address(4), address(128), address(255), Ipv4Addr::new(198, 18, 8, 1)] {
            assert_eq!(names.name_of(nobody), None);
        }
    }

    #[test]
    fn a_block_has_256_addresses() {
        for net in ["198.18.0.0/15", "198.18.7.0/25", "0.0.0.0/0"] {
            assert!(Table::new(net.parse().unwrap(), []).is_err());
        }
        let names = Table::new("198.18.7.9/24".parse().unwrap(), ["a.example".to_owned()]).unwrap();
        assert_eq!(names.name_of(address(1)), Some("a.example"));
    }

    #[test]
    fn names_under_wildcards_are_given_what_is_free_and_keep_it() {
        let (mut names, now) = (table(&["a.example"]), Instant::now());
        assert_eq!(names.for_name("x.b.example", now), Ok(address(128)));
        assert_eq!(names.for_name("y.b.example", now), Ok(address(129)));
        assert_eq!(names.for_name("x.b.example", now), Ok(address(128)));
        assert_eq!(names.name_of(address(129)), Some("y.b.example"));
    }

    #[test]
    fn names_that_are_not_granted_leave_half_of_the_addresses_to_others() {
        let (mut names, now) = (table(&["a.example"]), Instant::now());
        let given = (0..200).filter(|at| names.for_asked(&format!("{at}.evil.example"), now).is_ok()).count();
        assert_eq!(given, 63);
        assert_eq!(names.for_asked("0.evil.example", now), Ok(address(192)), "who has one keeps it");
        let granted = (0..200).filter(|at| names.for_name(&format!("{at}.b.example"), now).is_ok()).count();
        assert_eq!(granted, 64);
        // A person let one go, and did not use it since.
        names.keep(address(192));
        let soon = now + IDLE_ASKED;
        assert_eq!(names.for_asked("early.example", soon - Duration::from_millis(1)), Err(NoRoom));
        assert_eq!(names.for_asked("wanted.example", soon), Ok(address(193)), "after five minutes");
        assert_eq!(names.name_of(address(192)), Some("0.evil.example"), "not that one");
        assert_eq!(names.name_of(address(128)), Some("0.b.example"), "in the place of another such");
        assert_eq!(names.for_name("more.b.example", soon), Ok(address(194)), "as for one that is granted");
        let an_hour_later = now + IDLE;
        let given: Vec<_> =
            (0..62).map(|at| names.for_asked(&format!("{at}.other"), an_hour_later)).collect();
        assert!(given.contains(&Ok(address(192))), "an hour is over for that, too");
    }

    #[test]
    fn the_name_that_was_longest_without_use_gives_way_after_an_hour_and_no_earlier() {
        let (mut names, start) = (table(&[]), Instant::now());
        for (number, last) in GIVEN.enumerate() {
            let asked = start + Duration::from_secs(number as u64);
            assert_eq!(names.for_name(&format!("{number}.b.example"), asked), Ok(address(last)));
        }
        names.opened(address(128), start);
        let just_before = start + Duration::from_secs(1) + IDLE - Duration::from_millis(1);
        assert_eq!(names.for_name("new.b.example", just_before), Err(NoRoom));
        assert_eq!(names.for_name("5.b.example", just_before), Ok(address(133)), "who has one keeps it");
        let an_hour_later = start + Duration::from_secs(1) + IDLE;
        assert_eq!(names.for_name("new.b.example", an_hour_later), Ok(address(129)), "128 has a connection");
        assert_eq!(names.name_of(address(129)), Some("new.b.example"));
        assert_eq!(names.for_name("1.b.example", an_hour_later), Err(NoRoom), "its address is gone");
        // A connection that ended counts as use.
        let later = start + 2 * IDLE;
        names.closed(address(128), later);
        for number in 2..=5 {
            assert_ne!(names.for_name(&format!("{number}th.b.example"), later), Ok(address(128)));
        }
        assert_eq!(names.name_of(address(128)), Some("0.b.example"));
    }

    #[test]
    fn another_policy_s_positions_are_the_addresses_of_its_names() {
        let (mut names, now) = (table(&["a.example", "b.example", "c.example"]), Instant::now());
        assert_eq!(names.for_name("x.example", now), Ok(address(128)));
        names.reload(["a.example", "b.example", "c.example", "x.example"].map(str::to_owned));
        for (name, last) in [("a.example", 1), ("b.example", 2), ("c.example", 3), ("x.example", 4)] {
            assert_eq!(names.for_name(name, now), Ok(address(last)));
        }
        assert_eq!(names.name_of(address(128)), Some("x.example"), "a client may remember it");
        names.reload(["a.example", "new.example"].map(str::to_owned));
        assert_eq!(names.name_of(address(2)), Some("new.example"), "the policy says so");
        assert_eq!((names.name_of(address(3)), names.name_of(address(4))), (None, None));
        assert_eq!(names.for_name("x.example", now), Ok(address(128)), "a wildcard grants it: where it was");
        assert_eq!(names.for_name("b.example", now), Ok(address(129)));
        assert_eq!(names.for_name("new.example", now), Ok(address(2)));
    }

    #[test]
    fn more_names_than_there_are_addresses_for_are_given_one_when_they_are_asked_for() {
        let many: Vec<String> = (0..200).map(|number| format!("{number}.example")).collect();
        let (mut names, now) = (Table::new(block(), many.clone()).unwrap(), Instant::now());
        assert_eq!(names.for_name("126.example", now), Ok(address(127)));
        assert_eq!(names.for_name("127.example", now), Ok(address(128)));
        assert_eq!(MAX_EXACT, EXACT.count());
    }

    /// What a worker does with its table.
    #[derive(Debug, Clone)]
    enum Act {
        Ask(u8),
        Open(u8),
        Close(u8),
        Wait(u16),
        Reload(Vec<u8>),
    }

    fn act() -> impl Strategy<Value = Act> {
        prop_oneof![
            6 => any::<u8>().prop_map(Act::Ask),
            2 => any::<u8>().prop_map(Act::Open),
            2 => any::<u8>().prop_map(Act::Close),
            2 => any::<u16>().prop_map(Act::Wait),
            1 => prop::collection::vec(any::<u8>(), 0..150).prop_map(Act::Reload),
        ]
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(60))]

        /// Whatever happens: a name that the policy grants whole has its place, and an address of the others stands for another
        /// name only after an hour in which it was neither asked for nor connected to.
        #[test]
        fn an_address_changes_its_name_only_after_an_idle_hour(
            first in prop::collection::vec(any::<u8>(), 0..140),
            acts in prop::collection::vec(act(), 1..400),
        ) {
            let name = |number: &u8| format!("{number}.example");
            let places = |numbers: &[u8]| {
                let mut places: Vec<u8> = Vec::new();
                numbers.iter().for_each(|number| if !places.contains(number) { places.push(*number) });
                places.truncate(MAX_EXACT);
                places
            };
            let mut names = Table::new(block(), first.iter().map(name)).unwrap();
            let mut exact = places(&first);
            let mut now = Instant::now();
            // By address: the name, the last use, the connections.
            let mut model: HashMap<Ipv4Addr, (String, Instant, u32)> = HashMap::new();
            for act in acts {
                match act {
                    Act::Ask(number) => match names.for_name(&name(&number), now) {
                        Ok(addr) => {
                            let last = addr.octets()[3];
                            prop_assert_eq!(names.name_of(addr).map(str::to_owned), Some(name(&number)));
                            match exact.iter().position(|one| *one == number) {
                                Some(at) => prop_assert_eq!(usize::from(last), at + 1),
                                None => {
                                    prop_assert!(GIVEN.contains(&last));
                                    let entry = model.entry(addr).or_insert_with(|| (name(&number), now, 0));
                                    if entry.0 != name(&number) {
                                        prop_assert!(now - entry.1 >= IDLE && entry.2 == 0, "{addr} was {entry:?}");
                                        *entry = (name(&number), now, 0);
                                    }
                                    entry.1 = now;
                                }
                            }
                        }
                        Err(NoRoom) => prop_assert_eq!(model.len(), GIVEN.count(), "there was room"),
                    },
                    Act::Open(last) => {
                        names.opened(address(last), now);
                        if let Some(entry) = model.get_mut(&address(last)) {
                            (entry.1, entry.2) = (now, entry.2 + 1);
                        }
                    }
                    Act::Close(last) => {
                        names.closed(address(last), now);
                        if let Some(entry) = model.get_mut(&address(last)) {
                            (entry.1, entry.2) = (now, entry.2.saturating_sub(1));
                        }
                    }
                    Act::Wait(seconds) => now += Duration::from_secs(u64::from(seconds) / 8),
                    Act::Reload(numbers) => {
                        names.reload(numbers.iter().map(name));
                        exact = places(&numbers);
                    }
                }
                for last in EXACT {
                    let there = exact.get(usize::from(last) - 1).map(name);
                    prop_assert_eq!(names.name_of(address(last)).map(str::to_owned), there);
                }
                for (addr, (name, ..)) in &model {
                    prop_assert_eq!(names.name_of(*addr), Some(name.as_str()));
                }
            }
        }
    }
}
