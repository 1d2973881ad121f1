//! The record of one event, as the programs put it into a ring.
//!
//! A record is a [`Header`] and three sections: the path, the second path (rename, link), the path of the task's
//! executable. A section is a run of components, **leaf first**, each one length byte and that many bytes; joined in
//! reverse with slashes they are the path below the container's root. Records come in two sizes, so that both can be
//! reserved with a constant size.

use crate::task::LINEAGE;

/// Bytes of a section in a small record.
pub const SMALL_SECTION: usize = 256;
/// Bytes of a section in a large record: the longest path and one component's slack.
pub const LARGE_SECTION: usize = crate::MAX_PATH + 256;
/// Bytes behind the last section.
pub const SLACK: usize = 256;

/// Fixed part of a record.
///
/// A new field is filled in `ebpf/src/emit.rs` (`head`) and in `ebpf/src/egress.rs` (`record`): what is not filled there is
/// what the ring held before. The compiler names its readers: `decode.rs` and `present.rs` in `agent/events`, then `read.rs`
/// and `write.rs` in `agent/store`, where it gets a column. Records are an ABI: change [`crate::ABI_VERSION`].
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// [`crate::ABI_VERSION`] of the program that wrote it.
    pub version: u16,
    /// One of [`op`].
    pub op: u8,
    /// One of [`verdict`].
    pub verdict: u8,
    /// `FLAG_*` of this module.
    pub flags: u32,
    /// When, ns since boot including suspend (`CLOCK_BOOTTIME`).
    pub time: u64,
    /// The container's id.
    pub container: u64,
    /// The call tag; 0: none.
    pub call: u64,
    /// Start of the thread group leader, ns since boot. With `tgid` it is the exec id.
    pub start: u64,
    /// The births of its process's eldest ancestors in the container, see [`crate::task::Task::lineage`]; 1 at first: not known.
    pub lineage: [u64; LINEAGE],
    /// The policy's generation.
    pub generation: u32,
    /// Thread id, in the initial pid namespace, as all ids here.
    pub pid: u32,
    /// Process id.
    pub tgid: u32,
    /// Process id of the real parent.
    pub ppid: u32,
    /// User id, in the initial user namespace.
    pub uid: u32,
    /// Operation-specific: open flags, mode bits, socket family and type (`family << 16 | type`), protection, signal,
    /// command of bpf(2) and ioctl(2), capability, kind of IPC object, number of a system call.
    pub detail: u32,
    /// How many times this happened since the last record of the same (1: just this once).
    pub repeats: u32,
    /// What `rule` means: one of [`rule`].
    pub rule_kind: u32,
    /// The rule that decided.
    pub rule: u32,
    /// Axes that were asked for ([`crate::policy::axis`]); 0 for operations outside the table.
    pub axes: u32,
    /// Address family of `addr` (`AF_*`), or 0.
    pub family: u16,
    /// Port, host byte order.
    pub port: u16,
    /// Internet address, network byte order, v4 as v4-mapped v6.
    pub addr: [u8; 16],
    /// Bytes used of the path section.
    pub path_len: u16,
    /// Bytes used of the second path section.
    pub path2_len: u16,
    /// Bytes used of the executable section.
    pub exe_len: u16,
    /// Bytes of every section in this record: [`SMALL_SECTION`] or [`LARGE_SECTION`].
    pub section: u16,
    /// Operation-specific: target process of ptrace and signals, socket option, system call that asked for a capability,
    /// id of an IPC object, serial of a key.
    pub target: u32,
}

/// A record with sections of `N` bytes.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Record<const N: usize> {
    /// The fixed part.
    pub header: Header,
    /// The path, leaf first.
    pub path: [u8; N],
    /// The second path, leaf first.
    pub path2: [u8; N],
    /// The executable's path, leaf first.
    pub exe: [u8; N],
    /// Never used. It lets the verifier see that a name of any length fits behind any position in a section.
    pub slack: [u8; SLACK],
}

/// Most distinct events of one container that are folded at once, see [`Folding`]; what comes then is counted as lost.
pub const FOLDED_EACH: u64 = 64;
/// How many of them may be allowed ones: a flood of what is allowed takes no place from denials.
pub const FOLDED_ALLOWED: u64 = FOLDED_EACH / 2;

/// Which folded events are being counted, and which are being taken out.
///
/// An entry of the map of repeats belongs to the epoch that its key names. The agent changes `epoch`, waits until every
/// program that may have read the old value has ended, and only then takes out what belongs to it: no count can move
/// under its hands, and none is lost between the reading of an entry and its removal.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Folding {
    /// 0 or 1.
    pub epoch: u64,
    /// Entries that were made in each epoch since it was emptied.
    pub entries: [u64; 2],
}

/// Key of the map of aggregated events.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RepeatKey {
    /// The container's id.
    pub container: u64,
    /// Hash of what was asked for: path, second path, address, target; and of the call tag.
    pub target: u64,
    /// `op | verdict << 8 | epoch << 16`.
    pub kind: u64,
}

/// What a flooding container did, once per [`RepeatKey`]: counted here, taken out by the agent.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Repeat {
    /// How many times.
    pub count: u64,
    /// The first of them; its `repeats` is 1.
    pub record: Record<SMALL_SECTION>,
}

/// [`Header::flags`]: the path section is one abstract unix socket name, not a path.
pub const FLAG_ABSTRACT: u32 = 1 << 0;
/// [`Header::flags`]: the path was cut, its beginning is missing.
pub const FLAG_CUT: u32 = 1 << 1;
/// [`Header::flags`]: the executable's path was cut.
pub const FLAG_EXE_CUT: u32 = 1 << 2;
/// [`Header::flags`]: a rename or mount ran while the text was taken; it may mix two moments. The verdict does not.
pub const FLAG_RACED: u32 = 1 << 3;
/// [`Header::flags`]: the path does not end at the container's root (a detached, internal or foreign mount).
pub const FLAG_OUTSIDE: u32 = 1 << 4;
/// [`Header::flags`]: the object has no name any more, or never had one (memfd, deleted).
pub const FLAG_UNLINKED: u32 = 1 << 5;
/// [`Header::flags`]: before this, a process of another tool call traced, read or signalled one of the call's, which may
/// since do what the other wants.
pub const FLAG_DEBUGGED: u32 = 1 << 6;

/// [`Header::verdict`].
pub mod verdict {
    /// Done.
    pub const ALLOWED: u8 = 1;
    /// Refused.
    pub const DENIED: u8 = 2;
    /// Would have been refused; the policy is in audit mode.
    pub const WOULD_DENY: u8 = 3;
}

/// [`Header::rule_kind`]: how to read [`Header::rule`].
pub mod rule {
    /// No rule allows it: the axis's default.
    pub const DEFAULT: u32 = 0;
    /// A slot of the rule table: `bucket * 8 + slot`.
    pub const SLOT: u32 = 1;
    /// An index into the policy's rule list (net).
    pub const INDEX: u32 = 2;
    /// Fixed, whatever the grant: `rule` is one of [`super::fixed`].
    pub const FIXED: u32 = 3;
    /// The axis's scope is `all` and no rule is against it.
    pub const ALL: u32 = 4;
}

/// Numbers that the programs write, each with its name in events: constants for the programs, and an enum for whoever
/// reads a number, so that a new one is a compile error wherever there is something to say about it.
macro_rules! numbers {
    (
        $(#[$about:meta])* mod $module:ident: $number:ty;
        $(#[$about_enum:meta])* enum $Enum:ident;
        $($(#[$doc:meta])* $id:ident $Variant:ident = $n:literal, $name:literal;)*
    ) => {
        $(#[$about])*
        pub mod $module {
            $($(#[$doc])* pub const $id: $number = $n;)*
        }

        $(#[$about_enum])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum $Enum { $($(#[$doc])* $Variant),* }

        impl $Enum {
            /// What a number means, if this version knows it.
            #[must_use]
            pub const fn of(number: $number) -> Option<Self> {
                match number {
                    $($n => Some(Self::$Variant),)*
                    _ => None,
                }
            }

            /// Its name in events.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$Variant => $name,)*
                }
            }
        }
    };
}

numbers! {
    /// [`Header::rule`] with [`rule::FIXED`]: why something is refused whatever the grant says.
    mod fixed: u32;
    /// See [`fixed`].
    enum Fixed;
    /// The container has no policy.
    NO_POLICY NoPolicy = 1, "no_policy";
    /// The path is too long or too deep.
    TOO_LONG TooLong = 2, "too_long";
    /// The path does not end at the container's root.
    OUTSIDE Outside = 3, "outside";
    /// Renames and mounts ran beside every try to read the path.
    RACED Raced = 4, "raced";
    /// The path could not be read.
    UNREADABLE Unreadable = 5, "unreadable";
    /// Mounts, pivot_root and the like are never granted.
    MOUNT Mount = 6, "mount";
    /// A device node is never created.
    DEVICE Device = 7, "device";
    /// A socket family, type or protocol that no grant covers.
    FAMILY Family = 8, "family";
    /// bpf(2), perf_event_open(2), a user namespace.
    PRIVILEGE Privilege = 9, "privilege";
    /// A process outside the container (ptrace, signals).
    OTHER_CONTAINER OtherContainer = 10, "other_container";
    /// A file without a name: a memfd or a deleted file, executed or mapped executable.
    UNLINKED Unlinked = 11, "unlinked";
    /// A unix socket whose peer has no name that a rule could grant.
    UNNAMED_PEER UnnamedPeer = 12, "unnamed_peer";
    /// A kernel-internal file (pipe, anonymous inode): always allowed to be opened.
    INTERNAL Internal = 13, "internal";
    /// A directory is not renamed while something below it is denied or protected by its path.
    PINNED Pinned = 14, "pinned";
    /// An ioctl that is not on the list for this kind of file.
    COMMAND Command = 15, "command";
    /// A socket option that is not on the list.
    OPTION Option = 16, "option";
    /// A capability that the profile does not name.
    CAPABILITY Capability = 17, "capability";
    /// A message queue, semaphore set, shared memory segment or key that another container, or nobody governed, made.
    OTHER_IPC OtherIpc = 18, "other_ipc";
    /// A terminal that the container neither opened nor was given.
    TERMINAL Terminal = 19, "terminal";
    /// A packet, an option or control data that leads by way of hosts no rule was asked about.
    ROUTE Route = 20, "route";
    /// On a file system that does not tell case apart: a name that may be another spelling of one that a rule denies, or
    /// a move whose new name may be.
    CASE Case = 21, "case";
    /// A move after which something below the directory would have more rights than before.
    WIDENS Widens = 22, "widens";
    /// A mode or attribute that gives whoever runs the file rights of another (setuid, setgid, file capabilities).
    SETUID Setuid = 23, "setuid";
    /// A process of another tool call, or of what starts the calls (ptrace, signals, limits).
    OTHER_CALL OtherCall = 24, "other_call";
    /// An address that stands for a host's name, and leads somewhere by TCP and for one container alone.
    NAMED_ADDRESS NamedAddress = 25, "named_address";
    /// What is sent to a nameserver of a container's that hosts are granted to by name: allowed, and answered by its own.
    RESOLVER Resolver = 26, "resolver";
}

numbers! {
    /// [`Header::op`]. The names are those of `ringfence events`.
    mod op: u8;
    /// See [`op`].
    enum Op;
    /// Execution of a file, its interpreter included.
    EXEC Exec = 1, "exec";
    /// A file mapped executable.
    MAP_EXEC MapExec = 2, "map_exec";
    /// A file mapping made executable.
    PROTECT_EXEC ProtectExec = 3, "protect_exec";
    /// Open for reading, writing or appending.
    OPEN Open = 4, "open";
    /// Creation of a regular file, socket or fifo.
    CREATE Create = 5, "create";
    /// Truncation.
    TRUNCATE Truncate = 6, "truncate";
    /// Removal of a file.
    UNLINK Unlink = 7, "unlink";
    /// Rename, either end; the second path is the new one.
    RENAME Rename = 8, "rename";
    /// Hard link; the second path is the new one.
    LINK Link = 9, "link";
    /// Creation of a directory.
    MKDIR Mkdir = 10, "mkdir";
    /// Removal of a directory.
    RMDIR Rmdir = 11, "rmdir";
    /// Creation of a device node.
    MKNOD Mknod = 12, "mknod";
    /// Creation of a symbolic link.
    SYMLINK Symlink = 13, "symlink";
    /// Change of mode.
    CHMOD Chmod = 14, "chmod";
    /// Change of owner.
    CHOWN Chown = 15, "chown";
    /// Change of times.
    UTIMES Utimes = 16, "utimes";
    /// Change of an extended attribute.
    SETXATTR Setxattr = 17, "setxattr";
    /// A mount, remount or unmount.
    MOUNT Mount = 18, "mount";
    /// A mount moved or a detached tree attached.
    MOVE_MOUNT MoveMount = 19, "move_mount";
    /// pivot_root(2).
    PIVOT_ROOT PivotRoot = 20, "pivot_root";
    /// chroot(2).
    CHROOT Chroot = 21, "chroot";
    /// Creation of a socket.
    SOCKET Socket = 22, "socket";
    /// Connection to an address or socket file.
    CONNECT Connect = 23, "connect";
    /// Binding to an address.
    BIND Bind = 24, "bind";
    /// Listening.
    LISTEN Listen = 25, "listen";
    /// A datagram or TCP Fast Open to an address or socket file.
    SEND Send = 26, "send";
    /// ptrace and its kin, either direction.
    PTRACE Ptrace = 27, "ptrace";
    /// bpf(2).
    BPF Bpf = 28, "bpf";
    /// perf_event_open(2).
    PERF Perf = 29, "perf_event_open";
    /// Creation of a user namespace.
    USERNS Userns = 30, "userns_create";
    /// A signal to a process outside the container.
    SIGNAL Signal = 31, "signal";
    /// Unmount.
    UMOUNT Umount = 32, "umount";
    /// Limits, scheduling or memory placement of a process outside the container.
    CONTROL Control = 33, "control";
    /// ioctl(2).
    IOCTL Ioctl = 34, "ioctl";
    /// setsockopt(2).
    SETSOCKOPT Setsockopt = 35, "setsockopt";
    /// Use of a capability.
    CAPABILITY Capability = 36, "capability";
    /// System V or POSIX message queue, semaphore set, shared memory segment.
    IPC Ipc = 37, "ipc";
    /// A key or keyring.
    KEY Key = 38, "key";
    /// A socket that another process passes in.
    RECEIVE Receive = 39, "receive";
    /// A system call that is refused as such.
    SYSCALL Syscall = 40, "syscall";
    /// A connection by name, as a container's egress worker tells of it. No program writes it.
    NET_CONNECTION NetConnection = 200, "net.connection";
    /// A question for a name, as that worker tells of it. No program writes it.
    NET_NAME NetName = 201, "net.name";
}

const _: () = assert!(size_of::<Header>() == 144);
const _: () = assert!(size_of::<Record<SMALL_SECTION>>() == 1168);
const _: () = assert!(size_of::<Record<LARGE_SECTION>>() == 13456);
const _: () = assert!(size_of::<RepeatKey>() == 24);
