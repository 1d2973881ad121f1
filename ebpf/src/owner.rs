//! Signals that the kernel sends because something can be read or written: F_SETOWN says to whom, F_SETSIG which, O_ASYNC
//! that it does. A lease (F_SETLEASE) and a watch (F_NOTIFY) send them, too.

use aya_ebpf::helpers::bpf_get_current_task_btf;
use aya_ebpf::macros::lsm;
use aya_ebpf::programs::LsmContext;
use ringfence_common::event::{fixed, op};
use ringfence_common::task::Task;

use crate::escape::deny;
use crate::globals::{
    FILE_OWNER, OWNER_PID, OWNER_POINTED, PID_LEVEL, PID_NUMBERS, TASK_LEADER, TASK_THREAD_PID, get,
};
use crate::identity::governed;
use crate::ioctl::{is_given, is_terminal};
use crate::memory::{load, number_of, probe_word};

const SIGIO: u32 = 29;
const F_SETFL: u32 = 4;
const F_SETOWN: u32 = 8;
const F_SETSIG: u32 = 10;
const F_SETOWN_EX: u32 = 15;
const F_SETLEASE: u32 = 1024;
const F_NOTIFY: u32 = 1026;
/// From Linux 6.19 on.
const F_SETDELEG: u32 = 1040;
const O_ASYNC: u32 = 0o20000;

/// The owner of a descriptor, to whom the kernel sends signals later, from whatever task: only the process itself. Of
/// another it would have to be known then whose it is. Which signal is sent, and that one is: not where a process outside
/// made itself the owner of what it then shared.
#[lsm(hook = "file_fcntl")]
pub fn file_fcntl(ctx: LsmContext) -> i32 {
    let task = governed();
    if task.is_null() {
        return 0;
    }
    let (command, argument) = (ctx.arg::<u64>(1) as u32, ctx.arg::<u64>(2) as u32);
    // SAFETY: `task` is a tag; the file is the hook's argument.
    unsafe {
        let file: *const u8 = ctx.arg(0);
        match command {
            F_SETSIG | F_SETLEASE | F_SETDELEG | F_NOTIFY => {}
            // Also where the flag is there already: open(2) sets it without asking for signals, and another thread may take it
            // away between this and the change.
            F_SETFL if argument & O_ASYNC != 0 => {}
            F_SETOWN if argument == 0 || argument == own_number(task) => return 0,
            F_SETOWN | F_SETOWN_EX => {
                return deny(task, op::SIGNAL, SIGIO, argument, fixed::OTHER_CONTAINER);
            }
            _ => return 0,
        }
        let why = signals_others(task, file);
        if why == 0 { 0 } else { deny(task, op::SIGNAL, SIGIO, 0, why) }
    }
}

/// Why signals of a file are not for the current task to turn on or to choose; 0: they are its own. A terminal has an
/// owner without being asked, its foreground group, which may be the user's shell.
///
/// # Safety
/// `task` is a tag; `file` is a hook's argument.
#[inline(always)]
pub unsafe fn signals_others(task: *mut Task, file: *const u8) -> u32 {
    // SAFETY: as above.
    unsafe {
        if is_terminal(file) {
            return if is_given(task, file) { fixed::TERMINAL } else { 0 };
        }
        let address = number_of(&raw mut (*task).scratch.opaque_word, file as u64);
        let mut owner = address + get(&FILE_OWNER);
        if get(&OWNER_POINTED) != 0 {
            owner = probe_word(owner);
        }
        let pid = if owner == 0 { 0 } else { probe_word(owner + get(&OWNER_PID)) };
        if pid == 0 || pid == own_pid(task) { 0 } else { fixed::OTHER_CONTAINER }
    }
}

/// The address of the current process's `struct pid`.
#[inline(always)]
unsafe fn own_pid(task: *mut Task) -> u64 {
    // SAFETY: the current task and its leader, typed loads; `task` is its tag.
    unsafe {
        let me = bpf_get_current_task_btf().cast::<u8>().cast_const();
        let leader: *const u8 = load(me, get(&TASK_LEADER));
        // Through memory: to the verifier it is no pointer from here on.
        number_of(&raw mut (*task).scratch.opaque_word, load::<u64>(leader, get(&TASK_THREAD_PID)))
    }
}

/// The current process's id in its own pid namespace.
#[inline(always)]
unsafe fn own_number(task: *mut Task) -> u32 {
    /// Bytes of `struct upid`: the number, and its namespace.
    const UPID: u64 = 16;
    // SAFETY: `task` is the current task's tag.
    let pid = unsafe { own_pid(task) };
    let level = probe_word(pid + get(&PID_LEVEL)) & 0xffff_ffff;
    probe_word(pid + get(&PID_NUMBERS) + level * UPID) as u32
}
