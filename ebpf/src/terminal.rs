//! Whose a pseudo-terminal is. A container uses those that it opened and those among its three standard descriptors,
//! no other: what is read there is what somebody types, what is written there is what somebody believes.
//!
//! Paths do not tell: all of /dev/pts is one directory, and numbers are used again. A pseudo-terminal is known by the
//! inode of its slave, which the kernel makes while a master is opened, and by the moment when that was: the next
//! inode at the same address is another terminal.

use aya_ebpf::helpers::bpf_get_current_task_btf;
use aya_ebpf::helpers::generated::bpf_ktime_get_boot_ns;
use aya_ebpf::macros::lsm;
use aya_ebpf::programs::LsmContext;
use ringfence_common::event::fixed;
use ringfence_common::task::{Task, Terminal};

use crate::decide::take_policy;
use crate::emit::{EACCES, begin_request, refuse};
use crate::globals::{
    DENTRY_DATA, DENTRY_INODE, DENTRY_SB, FILE_INODE, FILE_PATH, FILE_PRIVATE, FILES_TABLE, INODE_DEVICE,
    INODE_SB, PATH_DENTRY, SB_MAGIC, SIGNAL_TTY, TABLE_FILES, TASK_FILES, TASK_SIGNAL, TTY_DATA,
    TTY_FILE_TTY, TTY_LINK, get,
};
use crate::identity::governed;
use crate::memory::{fetch, load, number_of, probe_word, put};
use crate::storage::{SLAVES, TERMINALS};

/// `DEVPTS_SUPER_MAGIC`.
const DEVPTS: u64 = 0x1cd1;
/// The device number of /dev/ptmx: who opens it gets the master of a new terminal.
const PTMX: u64 = 5 << 20 | 2;
/// The device number of /dev/tty: its open file is that of the caller's controlling terminal.
const TTY: u64 = 5 << 20;
/// The first and the last major number of slaves.
const SLAVE_MAJORS: (u64, u64) = (136, 143);
/// In the lowest bit of a [`TERMINALS`] value: the container opened it. Otherwise it was given.
const OPENED: u64 = 1;
/// Standard input, output and error.
const STANDARD: u64 = 3;
const ENOMEM: i32 = -12;

/// A new slave's inode, in the middle of the open of its master. (Every other inode as well: that costs a look at its
/// file system.)
#[lsm(hook = "inode_alloc_security")]
pub fn inode_alloc_security(ctx: LsmContext) -> i32 {
    // SAFETY: the inode is the hook's argument; typed loads.
    unsafe {
        let inode: *const u8 = ctx.arg(0);
        let sb: *const u8 = load(inode, get(&INODE_SB));
        if load::<u64>(sb, get(&SB_MAGIC)) != DEVPTS {
            return 0;
        }
        let address = inode as u64;
        let serial = bpf_ktime_get_boot_ns() << 1;
        // Whoever opened it: what was known of an earlier inode at this address must not hold for this one.
        if SLAVES.insert(&address, &serial, 0).is_err() {
            let _ = SLAVES.remove(&address);
        }
        let task = governed();
        if task.is_null() {
            return 0;
        }
        let key = Terminal { container: (*task).container, inode: address };
        if TERMINALS.insert(&key, &(serial | OPENED), 0).is_err() { ENOMEM } else { 0 }
    }
}

/// What a container has to do with the terminal of a slave's inode: 0: nothing. Otherwise [`OPENED`] says whether it
/// opened it or was given it.
#[inline(always)]
fn known(container: u64, inode: u64) -> u64 {
    let key = Terminal { container, inode };
    // SAFETY: words, each read at once.
    unsafe {
        match (TERMINALS.get(&key), SLAVES.get(&inode)) {
            (Some(mine), Some(now)) if *mine & !OPENED == *now => *mine,
            _ => 0,
        }
    }
}

/// The inode of the slave of the pseudo-terminal that a file is an end of; 0: it is none.
#[inline(always)]
fn slave_of(file: u64) -> u64 {
    let inode = probe_word(file + get(&FILE_INODE));
    let device = probe_word(inode + get(&INODE_DEVICE)) & 0xffff_ffff;
    if device == PTMX {
        let tty = probe_word(probe_word(file + get(&FILE_PRIVATE)) + get(&TTY_FILE_TTY));
        let dentry = probe_word(probe_word(tty + get(&TTY_LINK)) + get(&TTY_DATA));
        return probe_word(dentry + get(&DENTRY_INODE));
    }
    if device == TTY {
        // Of a terminal that is no slave of a pseudo-terminal this is a driver's own, and leads to no inode there.
        let tty = probe_word(probe_word(file + get(&FILE_PRIVATE)) + get(&TTY_FILE_TTY));
        let inode = probe_word(probe_word(tty + get(&TTY_DATA)) + get(&DENTRY_INODE));
        return if is_slave_inode(inode) { inode } else { 0 };
    }
    if is_slave_inode(inode) { inode } else { 0 }
}

#[inline(always)]
fn is_slave_inode(inode: u64) -> bool {
    let devpts = probe_word(probe_word(inode + get(&INODE_SB)) + get(&SB_MAGIC)) == DEVPTS;
    devpts && is_slave(probe_word(inode + get(&INODE_DEVICE)) & 0xffff_ffff)
}

#[inline(always)]
const fn is_slave(device: u64) -> bool {
    let major = device >> 20;
    major >= SLAVE_MAJORS.0 && major <= SLAVE_MAJORS.1
}

/// Whether a file is an end of a pseudo-terminal that the container opened.
///
/// # Safety
/// `task` is a tag or null; `file` the address of a file.
#[unsafe(no_mangle)]
#[inline(never)]
pub unsafe extern "C" fn is_opened_here(task: *mut Task, file: u64) -> u32 {
    if task.is_null() {
        return 0;
    }
    // SAFETY: `task` is the value of a map.
    let container = unsafe { (*task).container };
    let slave = slave_of(file);
    u32::from(slave != 0 && known(container, slave) & OPENED != 0)
}

/// Whether a file that is opened or received is an end of a pseudo-terminal that is none of the container's. The master
/// of a terminal that does not exist yet is not.
///
/// # Safety
/// `task` is a tag or null; `file` the address of a file, `tty` that of the caller's controlling terminal.
#[unsafe(no_mangle)]
#[inline(never)]
pub unsafe extern "C" fn is_foreign(task: *mut Task, file: u64, tty: u64) -> u32 {
    if task.is_null() {
        return 1;
    }
    // SAFETY: `task` is the value of a map.
    let container = unsafe { (*task).container };
    let slave = slave_of(file);
    if slave == 0 || known(container, slave) != 0 {
        return 0;
    }
    // A dentry of devpts has its slave's terminal.
    let dentry = probe_word(file + get(&FILE_PATH) + get(&PATH_DENTRY));
    let of_dentry = probe_word(dentry + get(&DENTRY_DATA));
    let is_master =
        probe_word(probe_word(file + get(&FILE_INODE)) + get(&INODE_DEVICE)) as u32 == PTMX as u32;
    u32::from(is_master || tty == 0 || of_dentry != tty)
}

/// The current task's controlling terminal; 0: none.
///
/// # Safety
/// `task` is a tag.
#[inline(always)]
unsafe fn controlling(task: *mut Task) -> u64 {
    // SAFETY: the current task, typed loads.
    unsafe {
        let me = bpf_get_current_task_btf().cast::<u8>().cast_const();
        let signal: *const u8 = load(me, get(&TASK_SIGNAL));
        number_of(&raw mut (*task).scratch.opaque_word, load(signal, get(&SIGNAL_TTY)))
    }
}

/// Judges a terminal that is opened or received, before its path is; 0: it is the container's, or none at all.
///
/// # Safety
/// `task` is a tag; `file` is a hook's argument, `dentry` and `mount` its path.
#[inline(always)]
pub unsafe fn judge(
    task: *mut Task,
    op: u8,
    file: *const u8,
    dentry: *const u8,
    mount: *const u8,
    detail: u32,
) -> i32 {
    // SAFETY: as above.
    unsafe {
        // Devices only: a typed look that leaves most files out.
        let inode: *const u8 = load(file, get(&FILE_INODE));
        if load::<u32>(inode, get(&INODE_DEVICE)) == 0 {
            return 0;
        }
        let tty = controlling(task);
        if is_foreign(task, number_of(&raw mut (*task).scratch.opaque_word, file as u64), tty) == 0 {
            return 0;
        }
        refuse_terminal(task, op, dentry as u64, mount as u64, detail)
    }
}

/// # Safety
/// `task` is a tag; `dentry` and `mount` belong together.
#[inline(always)]
unsafe fn refuse_terminal(task: *mut Task, op: u8, dentry: u64, mount: u64, detail: u32) -> i32 {
    // SAFETY: as above.
    unsafe {
        let has_policy = take_policy(task, fetch(&raw const (*task).container));
        let request = begin_request(task, op, 0, detail);
        put(&raw mut (*request).path.dentry, dentry);
        put(&raw mut (*request).path.mount, mount);
        refuse(task, if has_policy { fixed::TERMINAL } else { fixed::NO_POLICY }, EACCES)
    }
}

/// Judges a change of mode, owner, times or attributes: of a slave that the container did not open there is none,
/// whatever may be written. 0: it is no such slave.
///
/// # Safety
/// `task` is a tag; `dentry` and `mount` belong together.
#[inline(always)]
pub unsafe fn judge_change(task: *mut Task, op: u8, dentry: u64, mount: u64, detail: u32) -> i32 {
    // SAFETY: as above.
    unsafe {
        let dentry = number_of(&raw mut (*task).scratch.opaque_word, dentry);
        if probe_word(probe_word(dentry + get(&DENTRY_SB)) + get(&SB_MAGIC)) != DEVPTS {
            return 0;
        }
        let inode = probe_word(dentry + get(&DENTRY_INODE));
        if known((*task).container, inode) & OPENED != 0 {
            return 0;
        }
        refuse_terminal(task, op, dentry, mount, detail)
    }
}

/// Gives a container the terminals among a task's three standard descriptors: it may open them again, and hand them on.
///
/// # Safety
/// `task` is a task that the verifier has a type for, `tag` its tag.
#[inline(always)]
pub unsafe fn give_terminals(tag: *mut Task, task: *const u8) {
    // SAFETY: as above; typed loads.
    unsafe {
        let files: u64 = load(task, get(&TASK_FILES));
        give_standard((*tag).container, number_of(&raw mut (*tag).scratch.opaque_word, files));
    }
}

/// # Safety
/// `files` is the address of a task's `files_struct`, or 0.
#[unsafe(no_mangle)]
#[inline(never)]
unsafe extern "C" fn give_standard(container: u64, files: u64) -> u32 {
    // A table of descriptors has room for 64 at least.
    let table = probe_word(probe_word(files + get(&FILES_TABLE)) + get(&TABLE_FILES));
    let mut number = 0;
    while number < STANDARD {
        give(container, probe_word(table + number * 8));
        number += 1;
    }
    0
}

#[inline(always)]
fn give(container: u64, file: u64) {
    let slave = if file == 0 { 0 } else { slave_of(file) };
    if slave == 0 || known(container, slave) != 0 {
        return;
    }
    // SAFETY: one word, read at once, and the kernel's clock.
    let serial = unsafe {
        match SLAVES.get(&slave) {
            Some(serial) => *serial,
            None => {
                let serial = bpf_ktime_get_boot_ns() << 1;
                if SLAVES.insert(&slave, &serial, 0).is_err() {
                    return;
                }
                serial
            }
        }
    };
    // Where there is no room, the terminal can be used and not opened again.
    let _ = TERMINALS.insert(&Terminal { container, inode: slave }, &serial, 0);
}
