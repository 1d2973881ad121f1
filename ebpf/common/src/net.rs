//! The net trie: one longest-prefix map for all policies.
//!
//! A key is `policy seed, port, address`, v4 as v4-mapped v6. The agent pushes verdicts down when it compiles: the
//! longest prefix's value already holds the denies and allows of every shorter one, so two lookups decide (the
//! exact port, then port 0, which stands for any): a deny in either denies, an allow in either allows.

/// Most rules over addresses, all policies together.
pub const MAX_NETS: usize = 1 << 16;
/// Bits of a key before the address: seed and port.
pub const FIXED_BITS: u32 = 64 + 16;

/// Data of an LPM key (`bpf_lpm_trie_key` puts the prefix length before it). Packed by its field order: 26 bytes.
#[repr(C, packed)]
#[derive(Clone, Copy)]
pub struct NetKey {
    /// [`crate::policy::Policy::seed`].
    pub seed: u64,
    /// Port in network byte order; 0: any.
    pub port: u16,
    /// Address, network byte order, v4 as `::ffff:a.b.c.d`.
    pub addr: [u8; 16],
}

/// A net rule's verdict.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NetVerdict {
    /// 1: allowed by `rule`; 2: denied by `rule`; 0: neither.
    pub verdict: u32,
    /// Index of the deciding rule in the policy's rule list.
    pub rule: u32,
}

/// [`NetVerdict::verdict`]: allowed.
pub const ALLOW: u32 = 1;
/// [`NetVerdict::verdict`]: denied.
pub const DENY: u32 = 2;

const _: () = assert!(size_of::<NetKey>() == 26);
const _: () = assert!(size_of::<NetVerdict>() == 8);

/// Whose a socket is, kept with the socket itself and copied to each connection that it accepts.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Owner {
    /// The container whose task made, received or first used it; 0: nobody governed.
    pub container: u64,
    /// Start of that task's thread group leader, ns since boot.
    pub start: u64,
    /// Thread id of that task.
    pub pid: u32,
    /// Its process id.
    pub tgid: u32,
    /// Its user id.
    pub uid: u32,
    /// The socket's type (`SOCK_*`).
    pub kind: u32,
    /// 1: another process passed it in.
    pub received: u32,
    /// Room.
    pub reserved: u32,
}

/// Name of the program that judges outgoing packets, and of the pin of its link. What changes addresses beside it:
/// [`crate::egress::REWRITERS`].
pub const EGRESS: &str = "outgoing_packet";

const _: () = assert!(size_of::<Owner>() == 40);
