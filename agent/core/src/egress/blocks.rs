//! Blocks of addresses: `198.18.0.0/15` (RFC 2544, so that nobody's hosts are there) as 512 /24s, one for each container that may
//! reach names.

use ipnet::Ipv4Net;
use std::{
    collections::{BTreeMap, VecDeque},
    net::Ipv4Addr,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

/// The first address of the network that all blocks are of.
const NETWORK: Ipv4Addr = Ipv4Addr::new(198, 18, 0, 0);
/// The blocks that are given out: neither the network's first nor its last.
const USED: std::ops::RangeInclusive<u16> = 1..=510;
/// So many are kept for root's containers.
const ROOTS: usize = 128;
/// So many of a user's containers have one whoever else has.
const SHARE: usize = 32;
/// Who has that many gets more only while there are so many besides, for those who have fewer.
const OTHERS: usize = 128;
/// User id of the worker of block 0; that of block N is N more. Beside the agents' (`agents/sockets.rs`).
const FIRST_UID: u32 = 74_096;
/// The same for the process that has a container's credentials: behind all of those.
const FIRST_CREDENTIALS_UID: u32 = FIRST_UID + 512;

/// All blocks that nobody has, the longest unused first.
#[derive(Debug, Clone)]
pub(crate) struct Blocks {
    shared: Arc<Mutex<Shared>>,
}

#[derive(Debug)]
struct Shared {
    free: VecDeque<u16>,
    /// How many each user has, by whose the user id is.
    lent: BTreeMap<u32, usize>,
}

impl Blocks {
    /// All of them, `start` blocks later: what an earlier daemon gave out last is not known, and not to be the next.
    pub(crate) fn new(start: usize) -> Self {
        let mut free: VecDeque<u16> = USED.collect();
        let start = start % free.len().max(1);
        free.rotate_left(start);
        Self { shared: Arc::new(Mutex::new(Shared { free, lent: BTreeMap::new() })) }
    }

    fn shared(&self) -> MutexGuard<'_, Shared> {
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The one that nobody has had for longest, for a container of `owner`'s. `None`: there is none, or none for that user.
    pub(crate) fn take(&self, owner: u32) -> Option<Arc<Block>> {
        let mut shared = self.shared();
        if owner != 0 {
            let has = shared.lent.get(&owner).copied().unwrap_or(0);
            let kept = if has < SHARE { ROOTS } else { ROOTS + OTHERS };
            if shared.free.len() <= kept {
                return None;
            }
        }
        let index = shared.free.pop_front()?;
        Some(self.lend(&mut shared, index, owner))
    }

    /// This very one: a container of an earlier daemon's has it. `None`: it is no block, or somebody else has it.
    pub(crate) fn take_again(&self, net: Ipv4Net, owner: u32) -> Option<Arc<Block>> {
        let mut shared = self.shared();
        let at = shared.free.iter().position(|index| net_of(*index) == net)?;
        let index = shared.free.remove(at)?;
        Some(self.lend(&mut shared, index, owner))
    }

    fn lend(&self, shared: &mut Shared, index: u16, owner: u32) -> Arc<Block> {
        *shared.lent.entry(owner).or_default() += 1;
        Arc::new(Block { index, owner, all: self.clone() })
    }
}

fn net_of(index: u16) -> Ipv4Net {
    let first = NETWORK.to_bits() + (u32::from(index) << 8);
    Ipv4Net::new_assert(Ipv4Addr::from_bits(first), 24)
}

/// One of them. It is free again when the last copy is dropped: a worker that still ends has it as well.
#[derive(Debug)]
pub struct Block {
    index: u16,
    owner: u32,
    all: Blocks,
}

impl Block {
    /// Its addresses: a /24.
    pub(crate) fn net(&self) -> Ipv4Net {
        net_of(self.index)
    }

    /// The user id of the worker that serves it. No two workers have the same.
    pub(super) fn uid(&self) -> u32 {
        FIRST_UID + u32::from(self.index)
    }

    /// The user id of the process with its container's credentials. No two processes have the same, whatever they are.
    pub(super) fn credentials_uid(&self) -> u32 {
        FIRST_CREDENTIALS_UID + u32::from(self.index)
    }

    /// Whether it is root's, or a user's.
    pub(super) fn is_root_s(&self) -> bool {
        self.owner == 0
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        let mut shared = self.all.shared();
        shared.free.push_back(self.index);
        if let Some(has) = shared.lent.get_mut(&self.owner) {
            *has = has.saturating_sub(1);
            if *has == 0 {
                shared.lent.remove(&self.owner);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_block_is_one_container_s_until_it_is_given_back() {
        let blocks = Blocks::new(0);
        let all: Vec<_> = std::iter::from_fn(|| blocks.take(0)).collect();
        assert_eq!(all.len(), 510);
        let nets: std::collections::BTreeSet<Ipv4Net> = all.iter().map(|block| block.net()).collect();
        assert_eq!(nets.len(), 510);
        let whole: Ipv4Net = "198.18.0.0/15".parse().unwrap();
        let edges: [Ipv4Net; 2] = ["198.18.0.0/24".parse().unwrap(), "198.19.255.0/24".parse().unwrap()];
        assert!(nets.iter().all(|net| whole.contains(net) && !edges.contains(net)));
        let uids: std::collections::BTreeSet<u32> = all.iter().map(|block| block.uid()).collect();
        assert_eq!((uids.len(), uids.first(), uids.last()), (510, Some(&74_097), Some(&74_606)));
        let others: std::collections::BTreeSet<u32> =
            all.iter().map(|block| block.credentials_uid()).collect();
        assert_eq!((others.len(), others.is_disjoint(&uids)), (510, true));
        assert_eq!((others.first(), others.last()), (Some(&74_609), Some(&75_118)));
    }

    #[test]
    fn what_was_given_back_comes_last() {
        let blocks = Blocks::new(7);
        let first = blocks.take(0).unwrap();
        let net = first.net();
        let held = first.clone();
        drop(first);
        let others: Vec<_> =
            std::iter::from_fn(|| blocks.take(0)).map(|block| block.net()).take(509).collect();
        assert!(!others.contains(&net), "a worker that still ends has it");
        drop(held);
        let last: Vec<_> = std::iter::from_fn(|| blocks.take(0)).collect();
        assert_eq!(last.last().map(|block| block.net()), Some(net));
    }

    #[test]
    fn root_has_a_reserve_and_each_user_a_share() {
        let blocks = Blocks::new(0);
        let all_of = |owner| std::iter::from_fn(|| blocks.take(owner)).collect::<Vec<_>>();
        let greedy = all_of(1000);
        assert_eq!(greedy.len(), 510 - ROOTS - OTHERS);
        assert!(blocks.take(1000).is_none(), "what is left is for others");
        let others: Vec<usize> = (1001..1006)
            .map(|owner| {
                let taken = all_of(owner);
                let count = taken.len();
                std::mem::forget(taken);
                count
            })
            .collect();
        assert_eq!(others, [SHARE, SHARE, SHARE, SHARE, 0]);
        assert!(blocks.take(0).is_some());
        drop(greedy);
        let again = all_of(1000);
        assert_eq!(again.len(), 510 - ROOTS - OTHERS - 4 * SHARE, "what was given back counts no more");
    }

    #[test]
    fn a_restarted_core_gives_a_container_its_own_and_nobody_else_that() {
        let blocks = Blocks::new(0);
        let net: Ipv4Net = "198.18.1.0/24".parse().unwrap();
        let mine = blocks.take_again(net, 0).unwrap();
        assert_eq!(mine.net(), net);
        assert!(blocks.take_again(net, 0).is_none());
        assert_ne!(blocks.take(0).unwrap().net(), net);
        for strange in ["198.18.0.0/24", "198.18.2.0/25", "10.0.0.0/24", "198.19.255.0/24"] {
            assert!(blocks.take_again(strange.parse().unwrap(), 0).is_none(), "{strange}");
        }
    }
}
