//! The LSM hooks that have a program. A new hook begins here: its line in the table, then its program in `ebpf/src`, a case
//! in `vm-tests/cases` that is tagged with it, and in `ebpf/coverage/coverage.toml` its group and its case under `shown`.

/// One program, called as the LSM hook that it is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hook {
    /// Name of the hook and of the program.
    pub name: &'static str,
    /// The axes that the kernel does not hold without it.
    pub axes: &'static [Axis],
    /// Empty: refuse to load where the kernel lacks the hook. Otherwise: who does its work on such a kernel.
    pub without: &'static str,
}

/// An axis of the grant that programs hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Axis {
    /// Reading files.
    FsRead,
    /// Changing files.
    FsWrite,
    /// Running programs and mapping code.
    Exec,
    /// Sockets.
    Net,
}

impl Axis {
    /// Every axis, in the order in which they are reported.
    pub const ALL: [Self; 4] = [Self::FsRead, Self::FsWrite, Self::Exec, Self::Net];

    /// The key in a profile's `[grant]`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::FsRead => "fs_read",
            Self::FsWrite => "fs_write",
            Self::Exec => "exec",
            Self::Net => "net",
        }
    }
}

/// The program that is attached to each hook of the running kernel that the coverage table does not name.
pub const UNKNOWN_HOOK: &str = "unknown_hook";

macro_rules! hooks {
    ($($name:ident [$($axis:ident)*] $(: $without:literal)?;)*) => {
        /// Every program, in the order in which they are attached: identity first, so that no task that is enrolled
        /// between two attachments can have a child without a tag.
        pub const HOOKS: &[Hook] = &[$(Hook {
            name: stringify!($name),
            axes: &[$(Axis::$axis),*],
            without: concat!("" $(, $without)?),
        }),*];
    };
}

hooks! {
    // Who is governed.
    task_alloc [];
    task_free [];
    bprm_check_security [Exec];
    bprm_committed_creds [];
    mmap_file [Exec];
    file_mprotect [Exec];
    file_open [FsRead FsWrite];
    file_receive [Net];
    file_ioctl [];
    file_ioctl_compat []: "before 6.8 and its backports file_ioctl is called for 32-bit programs as well";
    uring_cmd [];
    inode_alloc_security [];
    path_mknod [FsWrite];
    path_mkdir [FsWrite];
    path_symlink [FsWrite];
    path_link [FsWrite];
    path_rename [FsWrite];
    path_unlink [FsWrite];
    path_rmdir [FsWrite];
    path_truncate [FsWrite];
    file_truncate [FsWrite]: "up to 6.1 path_truncate is called for ftruncate as well";
    path_chmod [FsWrite];
    path_chown [FsWrite];
    path_chroot [];
    inode_setattr [FsWrite];
    inode_setxattr [FsWrite];
    inode_removexattr [FsWrite];
    inode_set_acl [FsWrite]: "up to 6.1 inode_setxattr is called for access control lists as well";
    inode_remove_acl [FsWrite]: "up to 6.1 inode_removexattr is called for access control lists as well";
    inode_file_setattr [FsWrite]: "up to 6.16 there is no such system call";
    inode_create [];
    inode_unlink [];
    msg_queue_alloc_security [];
    msg_queue_free_security [];
    sem_alloc_security [];
    sem_free_security [];
    shm_alloc_security [];
    shm_free_security [];
    ipc_permission [];
    msg_queue_msgctl [];
    sem_semctl [];
    shm_shmctl [];
    key_alloc [];
    key_permission [];
    sb_mount [];
    sb_umount [];
    sb_remount [];
    move_mount [];
    sb_pivotroot [];
    socket_create [Net];
    socket_post_create [Net];
    socket_connect [Net];
    socket_bind [Net];
    socket_listen [Net];
    socket_sendmsg [Net];
    socket_setsockopt [Net];
    inet_conn_established [Net];
    unix_stream_connect [Net];
    unix_may_send [Net];
    ptrace_access_check [];
    ptrace_traceme [];
    task_kill [];
    task_setpgid [];
    file_fcntl [];
    task_setrlimit [];
    task_setnice [];
    task_setioprio [];
    task_setscheduler [];
    task_movememory [];
    bpf [];
    perf_event_open [];
    userns_create [];
    capable [];
    syslog [];
}
