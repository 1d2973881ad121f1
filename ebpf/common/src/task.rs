//! What is known of a governed task: its tag, kept in the task's own storage and copied to each child at fork.

use crate::policy::Policy;

/// Words of path hash that the scratch holds; twice [`crate::MAX_COMPONENTS`], so that a masked index is always inside.
pub const HASH_WORDS: usize = 2 * crate::MAX_COMPONENTS;
/// [`Scratch::casing`].
pub mod casing {
    /// The walk came by a file system that does not tell case apart: every component is hashed in lower case, too.
    pub const FOLDED: u64 = 1 << 0;
    /// The mount where the walk stands is on such a file system.
    pub const HERE: u64 = 1 << 1;
    /// And that file system has more names for a file than differ in case: short ones, ones with dots behind.
    pub const FOREIGN: u64 = 1 << 2;
}

/// How many of a process's ancestors are kept in [`Task::lineage`].
pub const LINEAGE: usize = 4;

/// Words of the scratch's name buffer: 255 bytes and slack for masked reads.
pub const NAME_WORDS: usize = 40;

/// The tag of a governed task and the working memory of the programs that judge it.
///
/// The scratch is here because per-CPU memory is not safe on a preemptible kernel, and the stack is too small.
///
/// | `container` | `next` | the task |
/// |---|---|---|
/// | 0 | C | is pending: the launcher's own code runs and is not judged; its next exec is judged by C's policy and enters C |
/// | C | 0 | is governed by C |
/// | C | D | is governed by C; its next exec must be allowed by both and enters D (a nested grant) |
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Task {
    /// The id of the container that the task belongs to; 0: none yet.
    pub container: u64,
    /// The id of the container that the next exec enters; 0: it stays where it is.
    pub next: u64,
    /// The container's root as it was at the exec that entered it: kernel address of the dentry. A walk ends here only.
    pub root_dentry: u64,
    /// The container's root: kernel address of the `vfsmount`.
    pub root_mount: u64,
    /// The same, if its file system tells case apart: names on it can be judged as they are. Else 0.
    pub plain_mount: u64,
    /// When the container's first process forked the ancestor of this process that is below it, when that one forked the
    /// next, and so on to this process, ns since boot; 0: there are no more. What a process leaves running keeps its birth
    /// here, whoever becomes its parent. A thread has its process's.
    pub lineage: [u64; LINEAGE],
    /// Working memory, meaningless between two hooks.
    pub scratch: Scratch,
}

/// A place in the tree of mounts: kernel addresses of a dentry and a `vfsmount`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Place {
    /// The dentry; 0: no place.
    pub dentry: u64,
    /// The `vfsmount`.
    pub mount: u64,
}

/// Working memory of the programs. See `ebpf/src/walk.rs`, `decide.rs` and `emit.rs`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Scratch {
    /// Components found so far.
    pub count: u64,
    /// Bytes of the path so far, slashes included.
    pub bytes: u64,
    /// Where the walk stands: dentry.
    pub dentry: u64,
    /// Where the walk stands: `vfsmount`.
    pub mount: u64,
    /// Root dentry of that mount.
    pub mount_root: u64,
    /// Count of `mount_lock` before the walk.
    pub mounts: u64,
    /// Count of `rename_lock` before the walk.
    pub renames: u64,
    /// How far beyond the path the last fold looked (0: the path itself).
    pub further: u64,
    /// How the walk ended: 0, or one of [`crate::event::fixed`].
    pub outcome: u64,
    /// Bytes written of a record's section, and the flags that it got.
    pub used: u64,
    /// See `used`.
    pub flags: u64,
    /// A value on its way through memory, so that the verifier forgets what it knew of it.
    pub opaque_word: u64,
    /// Whether names are compared without regard to case as well, and how the file system of the walk's mount does: bits of
    /// [`casing`].
    pub casing: u64,
    /// Axes that a pattern denies to the components found so far.
    pub patterned: u64,
    /// The slots of those patterns: for reading, writing, executing.
    pub pattern_slots: [u64; 3],
    /// A dentry's parent and name, as the walk reads them: the stack is too small for them.
    pub window: [u64; 8],
    /// Where a search through the mounts of a file system stands: `ebpf/src/search.rs`.
    pub search: [u64; 5],
    /// Where the walk starts.
    pub start: Place,
    /// Prefix hash of the whole path, after a fold.
    pub prefix: u64,
    /// The container whose policy judges: the task's own, or the one that its exec enters.
    pub container: u64,
    /// The policy that judges, copied once per hook, but for its capabilities. Its patterns are copied by a walk.
    pub policy: Policy,
    /// What is being judged, for the record.
    pub request: Request,
    /// Component hashes, leaf first. From [`crate::MAX_COMPONENTS`] on, those of the same components in lower case, if
    /// [`Scratch::casing`] asks for them.
    pub hashes: [u64; HASH_WORDS],
    /// A long name, or a small record under construction.
    pub name: [u64; NAME_WORDS],
}

/// What is being judged: everything of an event that only the hook knows. Fields as in [`crate::event::Header`].
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Request {
    /// The path; no place: none.
    pub path: Place,
    /// The second path; no place: none.
    pub path2: Place,
    /// One of [`crate::event::op`].
    pub op: u32,
    /// Axes asked for.
    pub axes: u32,
    /// Operation-specific number.
    pub detail: u32,
    /// Operation-specific target.
    pub target: u32,
    /// `FLAG_*` of [`crate::event`].
    pub flags: u32,
    /// What `rule` means.
    pub rule_kind: u32,
    /// The rule that decided.
    pub rule: u32,
    /// Address family, or 0.
    pub family: u16,
    /// Port, host byte order.
    pub port: u16,
    /// Internet address, network byte order, v4 as v4-mapped v6.
    pub addr: [u64; 2],
    /// Bytes of an abstract socket name in `name`; 0: none.
    pub name_len: u32,
    /// Room.
    pub reserved: u32,
    /// An abstract socket name.
    pub name: [u64; 14],
}

/// A pseudo-terminal that a container opened or was given, as the key of a map.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Terminal {
    /// The container's id.
    pub container: u64,
    /// Kernel address of the slave's inode.
    pub inode: u64,
}

impl Task {
    /// The tag of a task whose next exec enters `container`, as the agent writes it at enrolment.
    pub const fn pending(container: u64) -> Self {
        const NOWHERE: Place = Place { dentry: 0, mount: 0 };
        Self {
            container: 0,
            next: container,
            root_dentry: 0,
            root_mount: 0,
            plain_mount: 0,
            lineage: [0; LINEAGE],
            scratch: Scratch {
                count: 0,
                bytes: 0,
                dentry: 0,
                mount: 0,
                mount_root: 0,
                mounts: 0,
                renames: 0,
                further: 0,
                outcome: 0,
                used: 0,
                flags: 0,
                opaque_word: 0,
                casing: 0,
                patterned: 0,
                pattern_slots: [0; 3],
                window: [0; 8],
                search: [0; 5],
                start: NOWHERE,
                prefix: 0,
                container: 0,
                policy: Policy::NONE,
                request: Request {
                    path: NOWHERE,
                    path2: NOWHERE,
                    op: 0,
                    axes: 0,
                    detail: 0,
                    target: 0,
                    flags: 0,
                    rule_kind: 0,
                    rule: 0,
                    family: 0,
                    port: 0,
                    addr: [0; 2],
                    name_len: 0,
                    reserved: 0,
                    name: [0; 14],
                },
                hashes: [0; HASH_WORDS],
                name: [0; NAME_WORDS],
            },
        }
    }
}

const _: () = assert!(size_of::<Request>() == 200);
const _: () = assert!(size_of::<Task>() == 72 + 328 + 200 + 8 * HASH_WORDS + 8 * NAME_WORDS);
