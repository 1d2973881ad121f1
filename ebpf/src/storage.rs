//! The maps. Their layouts are the ABI with the agent, see `ringfence_common`.

use core::ffi::c_void;
use core::ptr::null_mut;

use aya_ebpf::helpers::generated::{bpf_inode_storage_get, bpf_sk_storage_get, bpf_task_storage_get};
use aya_ebpf::macros::{btf_map, map};
use aya_ebpf::maps::lpm_trie::LpmTrie;
use aya_ebpf::maps::{Array, HashMap, LruHashMap, RingBuf};
use ringfence_common::egress::{
    BLOCKS, FLOWS_EACH, FlowKey, Judged, PORT_WORDS, Redirect, Redirected, RedirectedFlow,
};
use ringfence_common::enroll::{Listed, Outcome};
use ringfence_common::event::{FOLDED_EACH, Folding, Repeat, RepeatKey};
use ringfence_common::net::{MAX_NETS, NetKey, NetVerdict, Owner as SocketOwner};
use ringfence_common::policy::{
    Bucket, Container, Counters, MAX_KEYS, MAX_OWNERS, MAX_TASKS, Owner, Policy, TABLE_BUCKETS,
};
use ringfence_common::task::{Task, Terminal};
use ringfence_common::{MAX_CONTAINERS, MAX_POLICIES};

/// `BPF_F_NO_PREALLOC`.
const NO_PREALLOC: u32 = 1;
/// `BPF_F_CLONE`: what a listening socket has is copied to each connection that it accepts.
const CLONE: u32 = 1 << 9;
/// `BPF_F_MMAPABLE`: the agent writes these arrays through its own mapping.
const MMAPABLE: u32 = 1 << 10;
/// `BPF_LOCAL_STORAGE_GET_F_CREATE`.
const CREATE: u64 = 1;
/// Bytes of each ring.
pub const RING: u32 = 4 << 20;
/// Most process groups that governed processes made and that others of theirs may join; the oldest is forgotten.
const MAX_GROUPS: u32 = 1 << 14;
/// Most System V objects and keys of all containers.
const MAX_OBJECTS: u32 = 1 << 16;
/// Most pseudo-terminals that are known at once; the kernel's own limit is half of it. What goes for lack of room can be
/// used still, and not opened again.
const MAX_TERMINALS: u32 = 1 << 13;
/// Most processes that are taken in at once.
const MAX_LISTED: u32 = 1 << 14;
/// Most distinct events that are folded at once: the share of every container that there may be, so that none takes
/// another's. An entry takes memory only while it is there.
const MAX_REPEATS: u32 = MAX_CONTAINERS as u32 * FOLDED_EACH as u32;

/// A map of type `BPF_MAP_TYPE_TASK_STORAGE`. Its fields are read from BTF by the loader, never at run time.
#[repr(C)]
pub struct TaskStorage<T> {
    r#type: *const [i32; 29],
    key: *const i32,
    value: *const T,
    max_entries: *const [i32; 0],
    map_flags: *const [i32; NO_PREALLOC as usize],
}

// SAFETY: the struct is a description without contents; the kernel's map behind it is made for concurrent use.
unsafe impl<T> Sync for TaskStorage<T> {}

impl<T> TaskStorage<T> {
    const fn new() -> Self {
        use core::ptr::null;
        Self { r#type: null(), key: null(), value: null(), max_entries: null(), map_flags: null() }
    }

    #[inline(always)]
    unsafe fn lookup(&self, task: *mut c_void, flags: u64) -> *mut T {
        let map = (&raw const *self).cast_mut().cast();
        // SAFETY: the caller's promise about `task`; the verifier holds us to it.
        unsafe { bpf_task_storage_get(map, task.cast(), null_mut(), flags).cast() }
    }

    /// The task's entry, or null. Before 6.2 null also means that this CPU's storage is busy.
    ///
    /// # Safety
    /// `task` must be a task that the verifier trusts: the current one, or `task_alloc`'s argument.
    #[inline(always)]
    pub unsafe fn of(&self, task: *mut c_void) -> *mut T {
        // SAFETY: as above.
        unsafe { self.lookup(task, 0) }
    }

    /// The task's entry, made (all zero) where there is none. Null: out of memory or, before 6.2, busy.
    ///
    /// # Safety
    /// As for [`Self::of`].
    #[inline(always)]
    pub unsafe fn make(&self, task: *mut c_void) -> *mut T {
        // SAFETY: as above.
        unsafe { self.lookup(task, CREATE) }
    }
}

/// A map of type `BPF_MAP_TYPE_SK_STORAGE`. Its fields are read from BTF by the loader, never at run time.
#[repr(C)]
pub struct SocketStorage<T, const FLAGS: usize> {
    r#type: *const [i32; 24],
    key: *const i32,
    value: *const T,
    max_entries: *const [i32; 0],
    map_flags: *const [i32; FLAGS],
}

// SAFETY: as for `TaskStorage`.
unsafe impl<T, const FLAGS: usize> Sync for SocketStorage<T, FLAGS> {}

impl<T, const FLAGS: usize> SocketStorage<T, FLAGS> {
    const fn new() -> Self {
        use core::ptr::null;
        Self { r#type: null(), key: null(), value: null(), max_entries: null(), map_flags: null() }
    }

    #[inline(always)]
    unsafe fn lookup(&self, sk: *mut c_void, flags: u64) -> *mut T {
        let map = (&raw const *self).cast_mut().cast();
        // SAFETY: the caller's promise about `sk`; the verifier holds us to it.
        unsafe { bpf_sk_storage_get(map, sk, null_mut(), flags).cast() }
    }

    /// The socket's entry, or null.
    ///
    /// # Safety
    /// `sk` must be a `struct sock` that the verifier knows: of a hook's argument, of a packet.
    #[inline(always)]
    pub unsafe fn of(&self, sk: *mut c_void) -> *mut T {
        // SAFETY: as above.
        unsafe { self.lookup(sk, 0) }
    }

    /// The socket's entry, made (all zero) where there is none. Null: out of memory.
    ///
    /// # Safety
    /// As for [`Self::of`].
    #[inline(always)]
    pub unsafe fn make(&self, sk: *mut c_void) -> *mut T {
        // SAFETY: as above.
        unsafe { self.lookup(sk, CREATE) }
    }
}

/// A map of type `BPF_MAP_TYPE_INODE_STORAGE`.
#[repr(C)]
pub struct InodeStorage<T> {
    r#type: *const [i32; 28],
    key: *const i32,
    value: *const T,
    max_entries: *const [i32; 0],
    map_flags: *const [i32; NO_PREALLOC as usize],
}

// SAFETY: as for `TaskStorage`.
unsafe impl<T> Sync for InodeStorage<T> {}

impl<T> InodeStorage<T> {
    const fn new() -> Self {
        use core::ptr::null;
        Self { r#type: null(), key: null(), value: null(), max_entries: null(), map_flags: null() }
    }

    #[inline(always)]
    unsafe fn lookup(&self, inode: *mut c_void, flags: u64) -> *mut T {
        let map = (&raw const *self).cast_mut().cast();
        // SAFETY: the caller's promise about `inode`; the verifier holds us to it.
        unsafe { bpf_inode_storage_get(map, inode, null_mut(), flags).cast() }
    }

    /// The inode's entry, or null.
    ///
    /// # Safety
    /// `inode` must be null or an inode that the verifier trusts: of a hook's argument.
    #[inline(always)]
    pub unsafe fn of(&self, inode: *mut c_void) -> *mut T {
        // SAFETY: as above.
        unsafe { self.lookup(inode, 0) }
    }

    /// The inode's entry, made (all zero) where there is none. Null: out of memory.
    ///
    /// # Safety
    /// As for [`Self::of`].
    #[inline(always)]
    pub unsafe fn make(&self, inode: *mut c_void) -> *mut T {
        // SAFETY: as above.
        unsafe { self.lookup(inode, CREATE) }
    }
}

/// The container that made a file in `/dev/shm`, kept with its inode.
#[btf_map]
pub static SHARED: InodeStorage<u64> = InodeStorage::new();

/// The tag of each governed task.
#[btf_map]
pub static TASKS: TaskStorage<Task> = TaskStorage::new();

/// The tool call that a task tree was started for.
#[btf_map]
pub static CALLS: TaskStorage<u64> = TaskStorage::new();

/// The container whose task made a connection, kept with the socket that `accept` returns.
#[btf_map]
pub static CALLERS: SocketStorage<u64, { NO_PREALLOC as usize }> = SocketStorage::new();

/// Whose each socket is that a governed task made, received or used; a connection has what its listener has.
#[btf_map]
pub static SOCKETS: SocketStorage<SocketOwner, { (NO_PREALLOC | CLONE) as usize }> = SocketStorage::new();

/// The container that each socket of an egress worker serves. The agent writes it, by descriptor.
#[btf_map]
pub static LISTENERS: SocketStorage<u64, { NO_PREALLOC as usize }> = SocketStorage::new();

/// Where what was sent with a socket was meant to go, if it went to an egress worker.
#[btf_map]
pub static REDIRECTED: SocketStorage<Redirected, { NO_PREALLOC as usize }> = SocketStorage::new();

/// The tag of each governed task by the task's address, where [`TASKS`] cannot be relied on (`LEGACY`).
#[map]
pub static TASKS_BY_ADDR: HashMap<u64, Task> = HashMap::with_max_entries(MAX_TASKS as u32, NO_PREALLOC);

/// The container of each task that counts in it, by the task's address.
#[map]
pub static MEMBERS: HashMap<u64, u64> = HashMap::with_max_entries(MAX_TASKS as u32, 0);

/// What a task's present call was let go to, to be sent elsewhere, by the task's address.
#[map]
pub static JUDGED: HashMap<u64, Judged> = HashMap::with_max_entries(MAX_TASKS as u32, NO_PREALLOC);

/// The container of each process group that a governed process made, by the group's number, which is its first process's.
#[map]
pub static GROUPS: LruHashMap<u32, u64> = LruHashMap::with_max_entries(MAX_GROUPS, 0);

/// Containers.
#[map]
pub static CONTAINERS: Array<Container> = Array::with_max_entries(MAX_CONTAINERS as u32, MMAPABLE);

/// Policies.
#[map]
pub static POLICIES: Array<Policy> = Array::with_max_entries(MAX_POLICIES as u32, MMAPABLE);

/// Counters, by container.
#[map]
pub static COUNTERS: Array<Counters> = Array::with_max_entries(MAX_CONTAINERS as u32, MMAPABLE);

/// The rules of all policies: one value that holds all buckets, so that a fold looks the map up once.
#[map]
pub static TABLE: Array<[Bucket; TABLE_BUCKETS]> = Array::with_max_entries(1, MMAPABLE);

/// Records of denials, and of what would have been denied.
#[map]
pub static DENIED: RingBuf = RingBuf::with_byte_size(RING, 0);

/// Records of what was allowed.
#[map]
pub static ALLOWED: RingBuf = RingBuf::with_byte_size(RING, 0);

/// Events of containers that are over their rate or their share of a ring: counted, not recorded one by one.
#[map]
pub static REPEATS: HashMap<RepeatKey, Repeat> = HashMap::with_max_entries(MAX_REPEATS, NO_PREALLOC);

/// Which of [`REPEATS`] are being counted.
#[map]
pub static FOLDING: Array<Folding> = Array::with_max_entries(1, MMAPABLE);

/// Users who own containers, and how many tasks they have in them.
#[map]
pub static USERS: Array<Owner> = Array::with_max_entries(MAX_OWNERS as u32, MMAPABLE);

/// The container that made a System V object or a key, by the address of its `kern_ipc_perm` or `key`.
#[map]
pub static OBJECTS: HashMap<u64, u64> = HashMap::with_max_entries(MAX_OBJECTS, NO_PREALLOC);

/// The keys that a container made, at its index: each one's address (0: a free slot) and its type's.
#[map]
pub static KEYS_OF: Array<[[u64; 2]; MAX_KEYS]> = Array::with_max_entries(MAX_CONTAINERS as u32, 0);

/// The rules over internet addresses, of all policies.
#[map]
pub static NET: LpmTrie<NetKey, NetVerdict> = LpmTrie::with_max_entries(MAX_NETS as u32, 0);

/// Where each container's egress worker listens.
#[map]
pub static REDIRECTS: Array<Redirect> = Array::with_max_entries(MAX_CONTAINERS as u32, MMAPABLE);

/// The ports that are in [`REDIRECTS`] or were, a bit each.
#[map]
pub static PORTS: Array<u64> = Array::with_max_entries(PORT_WORDS as u32, MMAPABLE);

/// Connections to egress workers that nobody has asked about yet. It has room for all that [`UNTAKEN`] names.
#[map]
pub static FLOWS: HashMap<FlowKey, RedirectedFlow> =
    HashMap::with_max_entries((BLOCKS * FLOWS_EACH) as u32, NO_PREALLOC);

/// The keys of the last flows of each block, whether they were taken or not, as one number each.
#[map]
pub static UNTAKEN: Array<u64> = Array::with_max_entries((BLOCKS * FLOWS_EACH) as u32, 0);

/// How many flows each block has had.
#[map]
pub static TURNS: Array<u64> = Array::with_max_entries(BLOCKS as u32, 0);

/// Processes to take in, by process id.
#[map]
pub static LISTED: HashMap<u32, Listed> = HashMap::with_max_entries(MAX_LISTED, NO_PREALLOC);

/// What the last pass of the iterator did.
#[map]
pub static OUTCOME: Array<Outcome> = Array::with_max_entries(1, MMAPABLE);

/// When the slave's inode of each pseudo-terminal was made, in twice the nanoseconds since boot, by its address.
#[map]
pub static SLAVES: LruHashMap<u64, u64> = LruHashMap::with_max_entries(MAX_TERMINALS, 0);

/// The pseudo-terminals that each container opened or was given: the word in [`SLAVES`], and whether it opened it.
#[map]
pub static TERMINALS: LruHashMap<Terminal, u64> = LruHashMap::with_max_entries(MAX_TERMINALS, 0);
