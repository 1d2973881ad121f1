//! A policy as the kernel holds it: one [`Policy`] record, its slots in the rule table, its entries in the net trie.
//!
//! A container's entry names its policy with one word, so a reload is one store. A policy record and its slots are
//! never changed while a container names them; they are reused after a grace period (the core waits with
//! `membarrier`, which is an RCU synchronisation).

use crate::patterns::Patterns;

/// Buckets of the rule table. A power of two: the top 16 bits of a prefix hash choose the bucket.
pub const TABLE_BUCKETS: usize = 1 << 16;
/// Slots of a bucket: 64 bytes, one cache line.
pub const BUCKET_SLOTS: usize = 8;

/// One bucket. A slot is `tag48 << 16 | bits16`; an empty slot is 0 and ends the search in its bucket, so that a
/// removed slot becomes [`TOMBSTONE`], never 0.
#[repr(C, align(64))]
#[derive(Clone, Copy)]
pub struct Bucket {
    /// The slots, filled from the first.
    pub slots: [u64; BUCKET_SLOTS],
}

/// A removed slot: matches nothing that matters (no bits), and does not end the search.
pub const TOMBSTONE: u64 = 1 << 16;

/// The bucket of a prefix hash.
#[inline(always)]
pub const fn bucket_of(prefix: u64) -> usize {
    (prefix >> 48) as usize & (TABLE_BUCKETS - 1)
}

/// The slot for a prefix hash and its bits. With [`bucket_of`] all 64 bits of the hash take part.
#[inline(always)]
pub const fn slot(prefix: u64, bits: u16) -> u64 {
    prefix << 16 | bits as u64
}

/// Axes of the rule table, as bit positions within the allow and deny groups.
pub mod axis {
    /// Open for reading, read a directory.
    pub const READ: u16 = 1 << 0;
    /// Open for writing, create, remove, rename, change attributes.
    pub const WRITE: u16 = 1 << 1;
    /// Execute.
    pub const EXEC: u16 = 1 << 2;
    /// Map executable (libraries, and everything that may be executed).
    pub const MAP: u16 = 1 << 3;
    /// Connect or send to the unix socket at this path.
    pub const UNIX: u16 = 1 << 4;
    /// All of them.
    pub const ALL: u16 = 0x1f;
}

/// Numbers that `[kernel]` of a profile names: a slot at `hash::named` that allows [`axis::READ`], of kind
/// [`bits::KIND_EXACT`].
pub mod named {
    /// An ioctl command, on any file.
    pub const COMMAND: u32 = 1;
    /// Every ioctl command of a device: its number as the kernel has it, `major << 20 | minor`, and [`BLOCK`].
    pub const DEVICE: u32 = 2;
    /// A socket option, as [`crate::unlisted::value`] has it.
    pub const OPTION: u32 = 3;
    /// The file system at `/dev/shm`: its device number, as of [`DEVICE`].
    pub const SHARED_MEMORY: u32 = 4;
    /// In a device's number: it is a block device.
    pub const BLOCK: u64 = 1 << 32;
}

/// Layout of a slot's 16 bits: `allow` (5), `deny` (5), `reset` (4), `kind` (2).
pub mod bits {
    /// Bits 0..5: axes this rule allows, see [`super::axis`].
    pub const ALLOW_SHIFT: u16 = 0;
    /// Bits 5..10: axes this rule denies. A deny at any depth beats every allow.
    pub const DENY_SHIFT: u16 = 5;
    /// Bit 10: forget an inherited allow of READ (a protected place; an allow here or below gives it back).
    pub const RESET_READ: u16 = 1 << 10;
    /// Bit 11: forget an inherited allow of WRITE.
    pub const RESET_WRITE: u16 = 1 << 11;
    /// Bit 12: forget an inherited allow of EXEC and MAP.
    pub const RESET_EXEC: u16 = 1 << 12;
    /// Bit 13: forget an inherited allow of UNIX.
    pub const RESET_UNIX: u16 = 1 << 13;
    /// Bits 14..16: which paths a slot is about, relative to the path it is filed under.
    pub const KIND_MASK: u16 = 3 << 14;
    /// The path itself and all below it.
    pub const KIND_TREE: u16 = 0;
    /// All below the path, not the path itself: `/dir/**`.
    pub const KIND_BELOW: u16 = 1 << 14;
    /// The direct children of the path only: `/dir/*`.
    pub const KIND_CHILDREN: u16 = 2 << 14;
    /// The path itself and nothing else: what `base` needs of a directory on the way (`/`).
    pub const KIND_EXACT: u16 = 3 << 14;
}

/// Bits of a mark: a slot that is no rule, filed under [`crate::hash::mark`] of a directory's prefix, where no fold looks.
/// What is below that directory depends on where it is, so that a move of it may change what holds there. The agent
/// files one for every ancestor of each path that a rule names, the container's root excepted.
pub mod marks {
    /// Something below this directory is denied or protected by its path. The directory may not be moved away, which
    /// would take the denied file out from under its rule.
    pub const DENIES_BELOW: u16 = 1 << 0;
    /// Something below this directory is granted by its path. No directory may be moved to here, which would put what it
    /// holds under that rule.
    pub const GRANTS_BELOW: u16 = 1 << 1;
}

/// [`Policy::flags`]: denials are recorded as `would_deny` and not enforced.
pub const FLAG_AUDIT: u32 = 1 << 0;
/// [`Policy::flags`]: there are `**/NAME` rules; each component is also looked up alone.
pub const FLAG_NAMES: u32 = 1 << 1;
/// [`Policy::flags`]: internet sockets may be created (the net axis names at least one address, or is `all`).
pub const FLAG_INET: u32 = 1 << 2;
/// [`Policy::flags`]: files may be given setuid and setgid bits and file capabilities.
pub const FLAG_SETUID_FILES: u32 = 1 << 3;
/// [`Policy::flags`]: there are `**/NAME*` or `**/*NAME` rules; see [`crate::patterns`].
pub const FLAG_PATTERNS: u32 = 1 << 4;
/// [`Policy::flags`]: sockets may be bound to devices ([`crate::unlisted::DEVICES`]). The unspecified address then stands for
/// whatever address the device has, so that nothing is sent or connected to it.
pub const FLAG_DEVICES: u32 = 1 << 5;
/// [`Policy::flags`]: files may be made in `/dev/shm`, and used by the container that made them ([`named::SHARED_MEMORY`]).
pub const FLAG_SHARED_MEMORY: u32 = 1 << 6;
/// [`Policy::flags`]: a process of one tool call may trace, read and signal another's; see [`Counters::debugged`].
pub const FLAG_DEBUG_CALLS: u32 = 1 << 7;
/// [`Policy::flags`]: hosts are granted by name; see [`crate::egress`]. What goes to a nameserver that is not granted by its
/// address goes to the container's own instead.
pub const FLAG_EGRESS: u32 = 1 << 8;

/// [`Policy::record`]: record allowed exec events.
pub const RECORD_EXEC: u32 = 1 << 0;
/// [`Policy::record`]: record allowed network events.
pub const RECORD_NET: u32 = 1 << 1;
/// [`Policy::record`]: record allowed file events.
pub const RECORD_FILE: u32 = 1 << 2;
/// [`Policy::record`]: record everything else that is allowed.
pub const RECORD_OTHER: u32 = 1 << 3;

/// One policy, at its index of the policy array.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Policy {
    /// Random; the prefix hash of `/`, and the policy's name in the net trie. 0: no policy here, deny.
    pub seed: u64,
    /// Counts up with each policy of a container; carried by every event.
    pub generation: u32,
    /// `FLAG_*`.
    pub flags: u32,
    /// `RECORD_*`: which allowed operations are recorded. Denials always are.
    pub record: u32,
    /// Axes ([`axis`]) allowed before any rule: those whose scope is `all`.
    pub initial: u16,
    /// Room.
    pub reserved: u16,
    /// Bit N: capability N may be used. Read by the program for the hook `capable` alone.
    pub capabilities: u64,
    /// Which names a rule over patterns may match. Read by the programs with [`FLAG_PATTERNS`] alone.
    pub patterns: Patterns,
}

impl Policy {
    /// No policy: allows, audits and records nothing.
    pub const NONE: Self = Self {
        seed: 0,
        generation: 0,
        flags: 0,
        record: 0,
        initial: 0,
        reserved: 0,
        capabilities: 0,
        patterns: Patterns::NONE,
    };
}

/// The index of a container's record and counters: the low bits of its id; the rest is a random serial.
#[inline(always)]
pub const fn container_index(id: u64) -> usize {
    id as usize & (crate::MAX_CONTAINERS - 1)
}

/// One container, at [`container_index`] of its id in the container array.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Container {
    /// The whole id (a serial number above the index). An id that differs from the task's denies. 0: free.
    pub id: u64,
    /// Index into the policy array. Written with one store.
    pub policy: u64,
}

/// One record's share of a container's rate: 512 records a second.
pub const RECORD_NS: u64 = 1_000_000_000 / 512;
/// How far a container may run ahead of its rate: 1024 records.
pub const BURST_NS: u64 = 1024 * RECORD_NS;

/// Most System V message queues, semaphore sets and shared memory segments, together, that one container may have.
pub const MAX_IPC: u64 = 1024;
/// Most keys that one container may have.
pub const MAX_KEYS: usize = 256;

/// What one container's programs counted, at the same index as [`Container`]. Only ever added to, but for `tasks` and
/// the token bucket.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Denied operations, recorded or not.
    pub denied: u64,
    /// Denied operations that are in no event: there was no room to write or to fold them.
    pub lost_denied: u64,
    /// Other operations that should have been recorded and are in no event: allowed ones, and what audit mode would have
    /// denied.
    pub lost_allowed: u64,
    /// Operations folded into an event with `repeats`, because the container flooded or its ring was full.
    pub aggregated: u64,
    /// Walks tried again because a rename or mount ran beside them.
    pub retried: u64,
    /// Forks refused because a tag could not be given.
    pub fork_failed: u64,
    /// Token bucket for records, as a time (ns since boot): each record moves it [`RECORD_NS`] on, and it is full when
    /// it is [`BURST_NS`] ahead of the clock.
    pub due: u64,
    /// Live tasks, counted by the programs alone: up when a pending task's exec enters the container and at each
    /// fork inside it, down when a task is freed (zombies count until they are reaped). A pending task does not count.
    pub tasks: u64,
    /// System V objects that it made and that still exist.
    pub ipc: u64,
    /// Distinct events that are folded now, in each epoch: [`crate::event::Folding`].
    pub folded: [u64; 2],
    /// The container's unread bytes in the ring of denials.
    pub denied_unread: Unread,
    /// The container's unread bytes in the ring of allowed events.
    pub allowed_unread: Unread,
    /// Index of the user who answers for the container's tasks in the array of [`Owner`]s.
    pub owner: u64,
    /// Not 0: a process without a tag was traced or read by one that the barrier between calls would have refused. It may
    /// be what starts the calls, so that nothing is any call's for sure.
    pub debugged_untagged: u64,
    /// The tool calls whose processes another call traced, read or signalled: not 0 at a hash of their tags.
    /// Two tags in one place count as one; that takes certainty from a call and never gives it.
    pub debugged: [[u8; 32]; DEBUGGED_SLOTS / 32],
}

/// Bytes of [`Counters::debugged`].
pub const DEBUGGED_SLOTS: usize = 512;

/// What one container has in a ring that was not read yet.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Unread {
    /// The ring's position behind the first record that `bytes` counts. When the reader is past it, all that the container
    /// wrote before has been read, and the count begins anew.
    pub mark: u64,
    /// Bytes written since.
    pub bytes: u64,
}

/// Who answers for containers: a user, and how many tasks live in all of that user's containers.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Owner {
    /// User id + 1; 0: a free entry.
    pub user: u64,
    /// Live tasks of all their containers. Counted by the programs alone.
    pub tasks: u64,
}

/// Most governed tasks on the host.
pub const MAX_TASKS: u64 = 1 << 16;
/// Most tasks of one container.
pub const TASKS_EACH: u64 = MAX_TASKS / 4;
/// Most tasks in all containers of one user who is not root. A fork beyond fails, as it does beyond a limit of the
/// kernel's own.
pub const TASKS_OF_USER: u64 = MAX_TASKS / 8;
/// Most tasks in the containers of all users who are not root: root's can always start some.
pub const TASKS_OF_USERS: u64 = MAX_TASKS / 4 * 3;
/// The entry of the array of [`Owner`]s that belongs to root, whose tasks no sum limits.
pub const OWNER_ROOT: u64 = 0;
/// The entry that counts the tasks of all users who are not root.
pub const OWNER_USERS: u64 = 1;
/// Entries of the array of [`Owner`]s: one for each container that there may be, and the two above.
pub const MAX_OWNERS: usize = 2 * crate::MAX_CONTAINERS;

const _: () = assert!(size_of::<Bucket>() == 64);
const _: () = assert!(size_of::<Policy>() == 56);
const _: () = assert!(size_of::<Container>() == 16);
const _: () = assert!(size_of::<Counters>() == 136 + DEBUGGED_SLOTS);
const _: () = assert!(size_of::<Owner>() == 16);
