//! The read-only globals that the agent sets before it loads the object. Names and meaning: `ringfence_common::layout`.
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
    TASK_FS TASK_STORAGE TASK_MM TASK_LEADER TASK_PARENT TASK_TGID TASK_START TASK_SIGNAL TASK_FILES SIGNAL_TTY
    TASK_PID PID_LEVEL PID_NUMBERS
    FS_ROOT MM_EXE PATH_MOUNT PATH_DENTRY FILE_PATH FILE_MODE FILE_FLAGS FILE_INODE FILE_OPS FILE_PRIVATE OPS_IOCTL
    FILES_TABLE TABLE_FILES TTY_FILE_TTY TTY_LINK TTY_DATA TTY_IOCTL URING_FILE URING_COMMAND
    BPRM_FILE VMA_FILE VMA_FLAGS VFSMOUNT_ROOT VFSMOUNT_SB
    MOUNT_PARENT MOUNT_POINT MOUNT_VFSMOUNT MOUNT_NS MOUNT_NEXT SB_MOUNTS SB_MAGIC
    DENTRY_PARENT DENTRY_LEN DENTRY_NAME DENTRY_SHORT DENTRY_INODE DENTRY_SB DENTRY_HASHED DENTRY_DATA
    INODE_MODE INODE_SB INODE_DEVICE IATTR_VALID
    SOCKET_SK SK_FAMILY SK_TYPE SK_PORT SK_ADDR4 SK_ADDR6 MSG_NAME MSG_NAMELEN MSG_FLAGS MSG_CONTROLLEN MSG_CONTROL
    UNIX_ADDRESS UNIX_PATH UNIX_LEN UNIX_NAME
    RENAME_LOCK MOUNT_LOCK
    K0 K1 K2
    LEGACY SETATTR_DENTRY
}

/// The value that the agent set. Read once per use: the compiler must not fold the 0 that it sees.
#[inline(always)]
pub fn get(global: &'static u64) -> u64 {
    // SAFETY: a reference is valid for reads; volatile only keeps the compiler from knowing the value.
    unsafe { core::ptr::read_volatile(global) }
}
