//! What the programs need to know of the running kernel: where fields are, and where two locks are.
//!
//! The programs read all of it from read-only globals that the agent sets before it loads them, under the names in
//! these tables. A field or symbol that the kernel lacks is a refusal to load, never a default. A field that was renamed
//! gets its other name here: `mount.mnt_instance | mnt_next_for_sb`.

/// A global that holds the offset of a field: the sum over `steps`.
#[derive(Clone, Copy, Debug)]
pub struct Field {
    /// Name of the global.
    pub global: &'static str,
    /// Structs and fields, outermost first; of several names of one field the first that exists counts (it was renamed).
    pub steps: &'static [(&'static str, &'static [&'static str])],
}

macro_rules! fields {
    ($($global:ident = $($of:ident . $field:ident $(| $other:ident)*)/ +;)*) => {
        /// Every field offset that the programs use.
        pub const FIELDS: &[Field] = &[$(Field {
            global: stringify!($global),
            steps: &[$((stringify!($of), &[stringify!($field) $(, stringify!($other))*])),+],
        }),*];
    };
}

fields! {
    TASK_FS = task_struct.fs;
    TASK_STORAGE = task_struct.bpf_storage;
    TASK_MM = task_struct.mm;
    TASK_LEADER = task_struct.group_leader;
    TASK_PARENT = task_struct.real_parent;
    TASK_TGID = task_struct.tgid;
    TASK_START = task_struct.start_boottime;
    TASK_PID = task_struct.pid;
    TASK_THREAD_PID = task_struct.thread_pid;
    TASK_SIGNAL = task_struct.signal;
    PID_LEVEL = pid.level;
    PID_NUMBER = pid.numbers / upid.nr;
    SIGNAL_PIDS = signal_struct.pids;
    TASK_CRED = task_struct.cred;
    TASK_REAL_CRED = task_struct.real_cred;
    TASK_COMPAT = task_struct.thread_info / thread_info.status;
    REGS_CALL = pt_regs.orig_ax;
    PID_NUMBERS = pid.numbers;
    TASK_FILES = task_struct.files;
    SIGNAL_TTY = signal_struct.tty;
    FILES_TABLE = files_struct.fdt;
    TABLE_FILES = fdtable.fd;
    FS_ROOT = fs_struct.root;
    MM_EXE = mm_struct.exe_file;
    PATH_MOUNT = path.mnt;
    PATH_DENTRY = path.dentry;
    FILE_PATH = file.f_path;
    FILE_MODE = file.f_mode;
    FILE_FLAGS = file.f_flags;
    FILE_INODE = file.f_inode;
    FILE_OPS = file.f_op;
    FILE_PRIVATE = file.private_data;
    FILE_OWNER = file.f_owner;
    OWNER_PID = fown_struct.pid;
    OPS_IOCTL = file_operations.unlocked_ioctl;
    TTY_FILE_TTY = tty_file_private.tty;
    TTY_LINK = tty_struct.link;
    TTY_DATA = tty_struct.driver_data;
    URING_FILE = io_uring_cmd.file;
    URING_COMMAND = io_uring_cmd.cmd_op;
    BPRM_FILE = linux_binprm.file;
    VMA_FILE = vm_area_struct.vm_file;
    VMA_FLAGS = vm_area_struct.vm_flags;
    VFSMOUNT_ROOT = vfsmount.mnt_root;
    VFSMOUNT_SB = vfsmount.mnt_sb;
    MOUNT_PARENT = mount.mnt_parent;
    MOUNT_POINT = mount.mnt_mountpoint;
    MOUNT_VFSMOUNT = mount.mnt;
    MOUNT_NS = mount.mnt_ns;
    MOUNT_NEXT = mount.mnt_instance | mnt_next_for_sb;
    SB_MOUNTS = super_block.s_mounts;
    SB_MAGIC = super_block.s_magic;
    SB_FLAGS = super_block.s_flags;
    SB_ROOT = super_block.s_root;
    SB_DEVICE = super_block.s_dev;
    DENTRY_PARENT = dentry.d_parent;
    DENTRY_LEN = dentry.d_name / qstr.len;
    DENTRY_NAME = dentry.d_name / qstr.name;
    DENTRY_SHORT = dentry.d_iname | d_shortname;
    DENTRY_INODE = dentry.d_inode;
    DENTRY_SB = dentry.d_sb;
    DENTRY_DATA = dentry.d_fsdata;
    DENTRY_FLAGS = dentry.d_flags;
    DENTRY_HASHED = dentry.d_hash / hlist_bl_node.pprev;
    INODE_MODE = inode.i_mode;
    INODE_SB = inode.i_sb;
    INODE_DEVICE = inode.i_rdev;
    IATTR_VALID = iattr.ia_valid;
    REGS_NUMBER = pt_regs.orig_ax;
    REGS_FIRST = pt_regs.di;
    REGS_FIRST_32 = pt_regs.bx;
    IPC_ID = kern_ipc_perm.id;
    KEY_USAGE = key.usage;
    KEY_SERIAL = key.serial;
    KEY_TYPE = key.type;
    KEY_DESCRIPTION = key.description;
    KEY_TYPE_NAME = key_type.name;
    SOCKET_SK = socket.sk;
    SK_FAMILY = sock.__sk_common / sock_common.skc_family;
    SK_TYPE = sock.sk_type;
    SK_PORT = sock.__sk_common / sock_common.skc_num;
    SK_ADDR4 = sock.__sk_common / sock_common.skc_rcv_saddr;
    SK_ADDR6 = sock.__sk_common / sock_common.skc_v6_rcv_saddr;
    SK_DADDR4 = sock.__sk_common / sock_common.skc_daddr;
    SK_DADDR6 = sock.__sk_common / sock_common.skc_v6_daddr;
    SK_DPORT = sock.__sk_common / sock_common.skc_dport;
    SK_STATE = sock.__sk_common / sock_common.skc_state;
    SK_DEVICE = sock.__sk_common / sock_common.skc_bound_dev_if;
    SK_PROTOCOL = sock.sk_protocol;
    SK_NET = sock.__sk_common / sock_common.skc_net;
    NET_COOKIE = net.net_cookie;
    MSG_NAME = msghdr.msg_name;
    MSG_NAMELEN = msghdr.msg_namelen;
    MSG_FLAGS = msghdr.msg_flags;
    MSG_CONTROLLEN = msghdr.msg_controllen;
    MSG_CONTROL = msghdr.msg_control;
    UNIX_ADDRESS = unix_sock.addr;
    UNIX_PEER = unix_sock.peer;
    UNIX_PATH = unix_sock.path;
    UNIX_LEN = unix_address.len;
    UNIX_NAME = unix_address.name;
}

/// Global: the offset of `super_block.s_encoding`. 0: the kernel was built without it, and so without the file systems of
/// its own that do not tell case apart.
pub const SB_ENCODING: &str = "SB_ENCODING";

/// Global: 1 on kernels (from 6.12 on) whose files point to who owns their signals, instead of holding it.
pub const OWNER_POINTED: &str = "OWNER_POINTED";

/// Globals that hold the address of a kernel symbol: name of the global, name of the symbol.
pub const SYMBOLS: &[(&str, &str)] =
    &[("RENAME_LOCK", "rename_lock"), ("MOUNT_LOCK", "mount_lock"), ("TTY_IOCTL", "tty_ioctl")];

/// Globals that hold the multipliers of [`crate::hash::Keys`], in its order of fields.
pub const KEYS: [&str; 3] = ["K0", "K1", "K2"];

/// Global: 1 on kernels before 6.2, where a lookup in task storage fails while the CPU's storage is busy.
pub const LEGACY: &str = "LEGACY";

/// Global: the offset of a pointer in a task without which it has no tag: that of its own storage; with [`LEGACY`], where a
/// tag may be elsewhere, one that every task has (`cred`).
pub const TASK_MARK: &str = "TASK_MARK";

/// Global: the index of the dentry among the arguments of the hook `inode_setattr` (it is the last but one: 0 up to
/// 6.8, later 1, behind the idmap). That of `inode_setxattr` and `inode_removexattr` has always been 1.
pub const SETATTR_DENTRY: &str = "SETATTR_DENTRY";

/// What else the programs take for granted of the layout: `(a, b, distance)`, offset a + distance == offset b.
/// Between a socket's state and its device there is one byte, whose bits say how it shares its port: bits have no offset.
pub const PAIRS: &[(&str, &str, u64)] = &[("MOUNT_PARENT", "MOUNT_POINT", 8), ("SK_STATE", "SK_DEVICE", 2)];

/// The walker reads a dentry in one go from [`DENTRY_WINDOW`]`.0` on: these many bytes must reach to the end of the
/// first 32 bytes of the short name.
pub const DENTRY_WINDOW: (&str, u64) = ("DENTRY_PARENT", 64);
