//! The net trie: its keys and values, from a policy's net rules, and the kernel's map of them.

use std::io;

use aya::maps::{LpmTrie, MapData, MapError, lpm_trie};
use ringfence_common::net::{ALLOW, DENY, FIXED_BITS, NetKey, NetVerdict};

use super::policies::NetTrie;
use ringfence_policy::compiled::NetRule;

/// A key: prefix length in bits, and the bytes of a [`NetKey`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Key {
    /// Bits of `bytes` that count.
    pub bits: u32,
    /// The key.
    pub bytes: [u8; size_of::<NetKey>()],
}

/// The bytes of a [`NetVerdict`].
pub(crate) type Verdict = [u8; size_of::<NetVerdict>()];

impl Key {
    /// The key of a rule of the policy with this seed.
    pub(crate) fn of(seed: u64, rule: &NetRule) -> Self {
        let mut bytes = [0; size_of::<NetKey>()];
        bytes[..8].copy_from_slice(&seed.to_ne_bytes());
        bytes[8..10].copy_from_slice(&rule.port.unwrap_or(0).to_be_bytes());
        bytes[10..].copy_from_slice(&rule.addr.octets());
        Self { bits: FIXED_BITS + u32::from(rule.prefix.min(128)), bytes }
    }

    /// The seed of the policy that the key belongs to.
    pub(crate) fn seed(&self) -> u64 {
        self.bytes.first_chunk().map_or(0, |seed| u64::from_ne_bytes(*seed))
    }
}

/// The verdict of a rule.
pub(crate) fn verdict(rule: &NetRule) -> Verdict {
    let mut bytes = [0; size_of::<NetVerdict>()];
    let verdict: u32 = if rule.allow { ALLOW } else { DENY };
    bytes[..4].copy_from_slice(&verdict.to_ne_bytes());
    bytes[4..].copy_from_slice(&rule.rule.to_ne_bytes());
    bytes
}

/// The kernel's net trie.
#[derive(Debug)]
pub(crate) struct KernelTrie(pub LpmTrie<MapData, [u8; size_of::<NetKey>()], Verdict>);

impl NetTrie for KernelTrie {
    fn insert(&mut self, key: &Key, verdict: &Verdict) -> io::Result<()> {
        self.0.insert(&lpm_trie::Key::new(key.bits, key.bytes), verdict, 0).map_err(to_io)
    }

    fn remove(&mut self, key: &Key) -> io::Result<()> {
        match self.0.remove(&lpm_trie::Key::new(key.bits, key.bytes)).map_err(to_io) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            other => other,
        }
    }

    fn keys(&self) -> io::Result<Vec<Key>> {
        let key = |key: lpm_trie::Key<_>| Key { bits: key.prefix_len(), bytes: key.data() };
        self.0.keys().map(|found| found.map(key).map_err(to_io)).collect()
    }
}

fn to_io(error: MapError) -> io::Error {
    match error {
        MapError::SyscallError(error) => error.io_error,
        MapError::KeyNotFound => io::ErrorKind::NotFound.into(),
        other => io::Error::other(other),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::mem::offset_of;

    #[test]
    fn bytes_are_where_the_programs_look() {
        let rule = NetRule {
            addr: "::ffff:10.0.0.0".parse().unwrap(),
            prefix: 104,
            port: Some(443),
            allow: true,
            rule: 3,
        };
        let key = Key::of(0x1122_3344_5566_7788, &rule);
        assert_eq!(key.bits, 64 + 16 + 104);
        assert_eq!(key.seed(), 0x1122_3344_5566_7788);
        let port = offset_of!(NetKey, port);
        assert_eq!(key.bytes[port..port + 2], [0x01, 0xbb]);
        let addr = offset_of!(NetKey, addr);
        assert_eq!(key.bytes[addr..], [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 0, 0, 0]);

        let at = offset_of!(NetVerdict, verdict);
        assert_eq!(verdict(&rule)[at..at + 4], ALLOW.to_ne_bytes());
        assert_eq!(verdict(&NetRule { allow: false, ..rule.clone() })[at..at + 4], DENY.to_ne_bytes());
        let at = offset_of!(NetVerdict, rule);
        assert_eq!(verdict(&rule)[at..at + 4], 3u32.to_ne_bytes());
    }

    #[test]
    fn no_port_is_port_zero() {
        let rule = NetRule { addr: "::1".parse().unwrap(), prefix: 128, port: None, allow: false, rule: 0 };
        assert_eq!(Key::of(9, &rule).bytes[8..10], [0, 0]);
    }
}
