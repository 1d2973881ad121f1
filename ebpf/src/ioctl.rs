//! ioctl(2), and the commands of io_uring that go to a file's driver: by a list of what is allowed on each kind of file
//! (`ringfence_common::ioctls`) and what the profile names. All else is refused, also what no driver here knows.
//!
//! A refusal is EPERM, which a program sees for the same command where it lacks the capability: it then does without, as
//! without root. ENOTTY would say that the file has no such command, and programs report that as a broken system.

use aya_ebpf::helpers::bpf_get_current_task_btf;
use aya_ebpf::macros::lsm;
use aya_ebpf::programs::LsmContext;
use ringfence_common::event::{fixed, op};
use ringfence_common::ioctls::{
    ANONYMOUS, ANY, FILE, FIOASYNC, RANDOM, SOCKET, TCSBRK, TERMINAL, TIOCSCTTY, WRITABLE, kinds,
};
use ringfence_common::policy::{RECORD_FILE, axis, named};
use ringfence_common::task::Task;

use crate::calls::call_of;
use crate::decide::take_policy;
use crate::emit::{EPERM, begin_request, refuse};
use crate::files::judge;
use crate::fold::is_named;
use crate::globals::{
    FILE_INODE, FILE_OPS, FILE_PATH, INODE_DEVICE, INODE_MODE, INODE_SB, OPS_IOCTL, PATH_DENTRY, PATH_MOUNT,
    SB_MAGIC, TTY_IOCTL, URING_COMMAND, URING_FILE, get,
};
use crate::identity::governed;
use crate::memory::{fetch, load, number_of, put};
use crate::owner::signals_others;
use crate::terminal::is_opened_here;

const S_IFMT: u16 = 0o170000;
const S_IFSOCK: u16 = 0o140000;
const S_IFREG: u16 = 0o100000;
const S_IFDIR: u16 = 0o040000;
const S_IFCHR: u16 = 0o020000;
const S_IFBLK: u16 = 0o060000;
/// `ANON_INODE_FS_MAGIC`.
const ANON_INODES: u64 = 0x0904_1934;
/// The device numbers of /dev/random and /dev/urandom.
const DEV_RANDOM: u32 = 1 << 20 | 8;
const DEV_URANDOM: u32 = 1 << 20 | 9;

/// What kind of file a command is for. A kind that no command is for is none: only [`ANY`] is allowed there.
///
/// # Safety
/// `file` is a hook's argument.
#[inline(always)]
unsafe fn kind_of(file: *const u8) -> u16 {
    // SAFETY: typed loads.
    unsafe {
        let inode: *const u8 = load(file, get(&FILE_INODE));
        match load::<u16>(inode, get(&INODE_MODE)) & S_IFMT {
            S_IFREG | S_IFDIR | 0 => {
                // Older kernels' anonymous inodes have no type, newer ones' are regular files.
                let sb: *const u8 = load(inode, get(&INODE_SB));
                if load::<u64>(sb, get(&SB_MAGIC)) == ANON_INODES { ANONYMOUS } else { FILE }
            }
            S_IFSOCK => SOCKET,
            S_IFCHR => {
                // Whatever its number: /dev/tty, consoles and serial lines are terminals too.
                let ops: *const u8 = load(file, get(&FILE_OPS));
                if load::<u64>(ops, get(&OPS_IOCTL)) == get(&TTY_IOCTL) {
                    return TERMINAL;
                }
                match load::<u32>(inode, get(&INODE_DEVICE)) {
                    DEV_RANDOM | DEV_URANDOM => RANDOM,
                    _ => 0,
                }
            }
            _ => 0,
        }
    }
}

/// Whether an argument turns an allowed command into another one. The kernel looks at as many bits as here.
///
/// # Safety
/// `task` is a tag; `file` is a hook's argument.
#[inline(always)]
unsafe fn is_misused(task: *mut Task, file: *const u8, command: u32, argument: u64) -> bool {
    match command {
        TCSBRK => argument == 0,
        // SAFETY: as above.
        TIOCSCTTY if argument as u32 == 1 => unsafe {
            is_opened_here(task, number_of(&raw mut (*task).scratch.opaque_word, file as u64)) == 0
        },
        _ => false,
    }
}

/// Whether a file is a terminal, or the master of one.
///
/// # Safety
/// `file` is a hook's argument.
#[inline(always)]
pub unsafe fn is_terminal(file: *const u8) -> bool {
    // SAFETY: as above.
    unsafe { kind_of(file) == TERMINAL }
}

/// Whether a terminal's input concerns others: the container did not open it, or it may be another call's.
///
/// # Safety
/// `task` is a tag; `file` is a hook's argument.
#[inline(always)]
pub unsafe fn is_given(task: *mut Task, file: *const u8) -> bool {
    // SAFETY: as above.
    unsafe {
        call_of(bpf_get_current_task_btf().cast()) != 0
            || is_opened_here(task, number_of(&raw mut (*task).scratch.opaque_word, file as u64)) == 0
    }
}

/// Judges a command.
///
/// # Safety
/// `ctx` is that of `file_ioctl` or `file_ioctl_compat`.
#[inline(always)]
unsafe fn judge_command(ctx: &LsmContext) -> i32 {
    let task = governed();
    if task.is_null() {
        return 0;
    }
    // SAFETY: `task` is a tag; the rest are the hook's arguments.
    unsafe {
        let file: *const u8 = ctx.arg(0);
        let (command, argument): (u32, u64) = (ctx.arg(1), ctx.arg(2));
        let allowed = kinds(command);
        if allowed & ANY != 0 && !(command == FIOASYNC && signals_others(task, file) != 0) {
            return 0;
        }
        let kind = kind_of(file);
        if allowed & kind != 0 && !is_misused(task, file, command, argument) {
            return 0;
        }
        if allowed & WRITABLE != 0 && kind == FILE {
            let dentry: *const u8 = load(file, get(&FILE_PATH) + get(&PATH_DENTRY));
            let mount: *const u8 = load(file, get(&FILE_PATH) + get(&PATH_MOUNT));
            return judge(task, op::IOCTL, axis::WRITE, RECORD_FILE, dentry, mount, command);
        }
        judge_named(task, file, command)
    }
}

/// Refuses a command, unless the profile names it or the device.
///
/// # Safety
/// `task` is a tag; `file` is a hook's argument.
#[inline(always)]
unsafe fn judge_named(task: *mut Task, file: *const u8, command: u32) -> i32 {
    // SAFETY: as above.
    unsafe {
        let known = take_policy(task, fetch(&raw const (*task).container));
        if known {
            let inode: *const u8 = load(file, get(&FILE_INODE));
            let mut device = u64::from(load::<u32>(inode, get(&INODE_DEVICE)));
            if load::<u16>(inode, get(&INODE_MODE)) & S_IFMT == S_IFBLK {
                device |= named::BLOCK;
            }
            if is_named(task, named::COMMAND, u64::from(command))
                || device != 0 && is_named(task, named::DEVICE, device)
            {
                return 0;
            }
        }
        let dentry: *const u8 = load(file, get(&FILE_PATH) + get(&PATH_DENTRY));
        let mount: *const u8 = load(file, get(&FILE_PATH) + get(&PATH_MOUNT));
        let request = begin_request(task, op::IOCTL, 0, command);
        put(&raw mut (*request).path.dentry, dentry as u64);
        put(&raw mut (*request).path.mount, mount as u64);
        refuse(task, if known { fixed::COMMAND } else { fixed::NO_POLICY }, EPERM)
    }
}

/// ioctl(2).
#[lsm(hook = "file_ioctl")]
pub fn file_ioctl(ctx: LsmContext) -> i32 {
    // SAFETY: the hook's own context.
    unsafe { judge_command(&ctx) }
}

/// ioctl(2) of a 32-bit program.
#[lsm(hook = "file_ioctl_compat")]
pub fn file_ioctl_compat(ctx: LsmContext) -> i32 {
    // SAFETY: the hook's own context.
    unsafe { judge_command(&ctx) }
}

/// `IORING_OP_URING_CMD`: of a socket it is getsockopt, setsockopt and two counts, which are judged as such or harmless;
/// of everything else, commands to a driver.
#[lsm(hook = "uring_cmd")]
pub fn uring_cmd(ctx: LsmContext) -> i32 {
    let task = governed();
    if task.is_null() {
        return 0;
    }
    // SAFETY: `task` is a tag; the command is the hook's argument.
    unsafe {
        let request: *const u8 = ctx.arg(0);
        let file: *const u8 = load(request, get(&URING_FILE));
        if kind_of(file) == SOCKET {
            return 0;
        }
        judge_named(task, file, load(request, get(&URING_COMMAND)))
    }
}
