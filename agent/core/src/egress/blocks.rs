//! Blocks of addresses: `198.18.0.0/15` (RFC 2544, so that nobody's hosts are there) as 512 /24s, one for each container that may
//! reach names.

use ipnet::Ipv4Net;
use std::{
    collections::VecDeque,
    net::Ipv4Addr,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

/// The first address of the network that all blocks are of.
const NETWORK: Ipv4Addr = Ipv4Addr::new(198, 18, 0, 0);
/// The blocks that are given out: neither the network's first nor its last.
const USED: std::ops::RangeInclusive<u16> = 1..=510;
/// So many are kept for root's containers.
const ROOTS: usize = 128;
/// User id of the worker of block 0; that of block N is N more. Beside the agents' (`agents/sockets.rs`).
const FIRST_UID: u32 = 74_096;

/// All blocks that nobody has, the longest unused first.
#[derive(Debug, Clone)]
pub(crate) struct Blocks {
    free: Arc<Mutex<VecDeque<u16>>>,
}

impl Blocks {
    /// All of them, `start` blocks later: what an earlier daemon gave out last is not known, and not to be the next.
    pub(crate) fn new(start: usize) -> Self {
        let mut free: VecDeque<u16> = USED.collect();
        let start = start % free.len().max(1);
        free.rotate_left(start);
        Self { free: Arc::new(Mutex::new(free)) }
    }

    fn free(&self) -> MutexGuard<'_, VecDeque<u16>> {
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The one that nobody has had for longest. `None`: there is none, or none for who is not root.
    pub(crate) fn take(&self, for_root: bool) -> Option<Arc<Block>> {
        let mut free = self.free();
        if !for_root && free.len() <= ROOTS {
            return None;
        }
        let index = free.pop_front()?;
        Some(self.lend(index))
    }

    /// This very one: a container of an earlier daemon's has it. `None`: it is no block, or somebody else has it.
    pub(crate) fn take_again(&self, net: Ipv4Net) -> Option<Arc<Block>> {
        let mut free = self.free();
        let at = free.iter().position(|index| net_of(*index) == net)?;
        let index = free.remove(at)?;
        Some(self.lend(index))
    }

    fn lend(&self, index: u16) -> Arc<Block> {
        Arc::new(Block { index, all: self.clone() })
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
}

impl Drop for Block {
    fn drop(&mut self) {
        self.all.free().push_back(self.index);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_block_is_one_container_s_until_it_is_given_back() {
        let blocks = Blocks::new(0);
        let all: Vec<_> = std::iter::from_fn(|| blocks.take(true)).collect();
        assert_eq!(all.len(), 510);
        let nets: std::collections::BTreeSet<Ipv4Net> = all.iter().map(|block| block.net()).collect();
        assert_eq!(nets.len(), 510);
        let whole: Ipv4Net = "198.18.0.0/15".parse().unwrap();
        let edges: [Ipv4Net; 2] = ["198.18.0.0/24".parse().unwrap(), "198.19.255.0/24".parse().unwrap()];
        assert!(nets.iter().all(|net| whole.contains(net) && !edges.contains(net)));
        let uids: std::collections::BTreeSet<u32> = all.iter().map(|block| block.uid()).collect();
        assert_eq!((uids.len(), uids.first(), uids.last()), (510, Some(&74_097), Some(&74_606)));
    }

    #[test]
    fn what_was_given_back_comes_last() {
        let blocks = Blocks::new(7);
        let first = blocks.take(true).unwrap();
        let net = first.net();
        let held = first.clone();
        drop(first);
        let others: Vec<_> =
            std::iter::from_fn(|| blocks.take(true)).map(|block| block.net()).take(509).collect();
        assert!(!others.contains(&net), "a worker that still ends has it");
        drop(held);
        let last: Vec<_> = std::iter::from_fn(|| blocks.take(true)).collect();
        assert_eq!(last.last().map(|block| block.net()), Some(net));
    }

    #[test]
    fn root_has_a_reserve() {
        let blocks = Blocks::new(0);
        let users: Vec<_> = std::iter::from_fn(|| blocks.take(false)).collect();
        assert_eq!(users.len(), 510 - ROOTS);
        assert!(blocks.take(true).is_some());
    }

    #[test]
    fn a_restarted_core_gives_a_container_its_own_and_nobody_else_that() {
        let blocks = Blocks::new(0);
        let net: Ipv4Net = "198.18.1.0/24".parse().unwrap();
        let mine = blocks.take_again(net).unwrap();
        assert_eq!(mine.net(), net);
        assert!(blocks.take_again(net).is_none());
        assert_ne!(blocks.take(true).unwrap().net(), net);
        for strange in ["198.18.0.0/24", "198.18.2.0/25", "10.0.0.0/24", "198.19.255.0/24"] {
            assert!(blocks.take_again(strange.parse().unwrap()).is_none(), "{strange}");
        }
    }
}
