//! The read-only globals that the agent sets before it loads the object. Names and meaning: `ringfence_common::fields`.
//!
//! The verifier knows the values of read-only globals, so an offset in one is as good as a constant, and code behind
//! a global that is 0 is dropped.

macro_rules! globals {
    ($($name:ident)*) => {
        $(
            #[unsafe(no_mangle)]
            pub static $name: u64 = 0;
        )*
    };
}

globals! {
    TASK_FS TASK_STORAGE TASK_MM TASK_LEADER TASK_PARENT TASK_TGID TASK_START TASK_PID
    TASK_THREAD_PID TASK_SIGNAL PID_LEVEL PID_NUMBER SIGNAL_PIDS TASK_CRED TASK_REAL_CRED TASK_COMPAT
    REGS_CALL PID_NUMBERS FS_ROOT MM_EXE PATH_MOUNT PATH_DENTRY FILE_PATH FILE_MODE FILE_FLAGS
    BPRM_FILE VMA_FILE VMA_FLAGS VFSMOUNT_ROOT VFSMOUNT_SB MOUNT_PARENT MOUNT_POINT MOUNT_VFSMOUNT
    MOUNT_NS MOUNT_NEXT SB_MOUNTS SB_MAGIC SB_FLAGS SB_ROOT SB_DEVICE SB_ENCODING DENTRY_FLAGS DENTRY_PARENT DENTRY_LEN DENTRY_NAME DENTRY_SHORT
    DENTRY_INODE DENTRY_SB DENTRY_HASHED INODE_MODE IATTR_VALID REGS_NUMBER REGS_FIRST REGS_FIRST_32
    IPC_ID KEY_USAGE KEY_SERIAL KEY_TYPE KEY_DESCRIPTION KEY_TYPE_NAME SOCKET_SK SK_FAMILY SK_TYPE
    SK_PORT SK_ADDR4 SK_ADDR6 SK_DADDR4 SK_DADDR6 SK_DPORT SK_STATE SK_DEVICE SK_PROTOCOL SK_NET NET_COOKIE MSG_NAME MSG_NAMELEN
    MSG_FLAGS MSG_CONTROLLEN MSG_CONTROL UNIX_ADDRESS UNIX_PEER UNIX_PATH UNIX_LEN UNIX_NAME
    TASK_FILES SIGNAL_TTY FILE_INODE FILE_OPS FILE_PRIVATE FILE_OWNER OWNER_PID OWNER_POINTED OPS_IOCTL FILES_TABLE TABLE_FILES
    TTY_FILE_TTY TTY_LINK TTY_DATA TTY_IOCTL URING_FILE URING_COMMAND DENTRY_DATA INODE_SB
    INODE_DEVICE
    RENAME_LOCK MOUNT_LOCK
    K0 K1 K2
    LEGACY TASK_MARK SETATTR_DENTRY
}

/// The value that the agent set. Read once per use: the compiler must not fold the 0 that it sees.
#[inline(always)]
pub fn get(global: &'static u64) -> u64 {
    // SAFETY: a reference is valid for reads; volatile only keeps the compiler from knowing the value.
    unsafe { core::ptr::read_volatile(global) }
}
