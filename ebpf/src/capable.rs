//! Capabilities: those that the profile does not name are not the container's, whoever gave them to it. And system calls
//! that no profile allows and that have no hook of their own: they ask for a capability first.
//!
//! The hook is asked after the kernel's own check, so only about capabilities that the caller does hold: what root may do
//! less than an ordinary check of permissions asks for is not on record.

use aya_ebpf::helpers::bpf_get_current_task_btf;
use aya_ebpf::helpers::generated::bpf_task_pt_regs;
use aya_ebpf::macros::lsm;
use aya_ebpf::programs::LsmContext;
use ringfence_common::MAX_CONTAINERS;
use ringfence_common::event::{fixed, op};
use ringfence_common::syscalls::{WORDS, bitmap};
use ringfence_common::task::Task;

use crate::escape::{deny, deny_quietly};
use crate::globals::{REGS_CALL, TASK_COMPAT, TASK_CRED, TASK_REAL_CRED, get};
use crate::identity::governed;
use crate::memory::{fetch, load};
use crate::storage::{CONTAINERS, POLICIES};

/// `CAP_OPT_NOAUDIT`: the caller asks for itself, nothing is refused to anybody.
const NOAUDIT: u32 = 2;
/// `TS_COMPAT`: the current system call is of i386's table.
const COMPAT: u32 = 2;
/// The bit that a number of x32's table has.
const X32: u64 = 1 << 30;
const DAC_OVERRIDE: u32 = 1;
const DAC_READ_SEARCH: u32 = 2;

/// What an overlay's own work on its layers may need. The kernel does that work in the caller's task, under the
/// credentials of whoever mounted the overlay: CHOWN, DAC_OVERRIDE, DAC_READ_SEARCH, FOWNER, FSETID, LINUX_IMMUTABLE,
/// SYS_ADMIN (its attributes), SYS_RESOURCE, MKNOD (its whiteouts), LEASE, SETFCAP, MAC_OVERRIDE, MAC_ADMIN.
const OF_FILE_SYSTEMS: u64 = 1
    | 1 << 1
    | 1 << 2
    | 1 << 3
    | 1 << 4
    | 1 << 9
    | 1 << 21
    | 1 << 24
    | 1 << 27
    | 1 << 28
    | 1 << 31
    | 1 << 32
    | 1 << 33;

static REFUSED: [u64; WORDS] = bitmap(false);
static REFUSED_I386: [u64; WORDS] = bitmap(true);

/// The use of a capability, in whatever user namespace.
#[lsm(hook = "capable")]
pub fn capable(ctx: LsmContext) -> i32 {
    let task = governed();
    if task.is_null() {
        return 0;
    }
    let (credentials, capability, options): (u64, u32, u32) = (ctx.arg(0), ctx.arg(2), ctx.arg(3));
    let bit = if capability < 64 { 1 << capability } else { 0 };
    // SAFETY: `task` is a tag; the current task's fields are typed loads.
    unsafe {
        let me = bpf_get_current_task_btf().cast::<u8>().cast_const();
        if bit & OF_FILE_SYSTEMS != 0
            && credentials != load::<u64>(me, get(&TASK_REAL_CRED))
            && credentials == load::<u64>(me, get(&TASK_CRED))
        {
            return 0; // not the task's own credentials: the kernel acts with others for a while
        }
        let call = SystemCall::current(me);
        if call.is_refused() {
            return if options & NOAUDIT != 0 {
                deny_quietly(task)
            } else {
                deny(task, op::SYSCALL, call.number as u32, capability, fixed::PRIVILEGE)
            };
        }
        let held = held(task);
        if held & bit != 0 {
            return 0;
        }
        // A lookup asks for the lesser one first.
        let asks_on = capability == DAC_READ_SEARCH && held & 1 << DAC_OVERRIDE != 0;
        if options & NOAUDIT != 0 || asks_on {
            return deny_quietly(task);
        }
        deny(task, op::CAPABILITY, capability, call.number as u32, fixed::CAPABILITY)
    }
}

/// Capabilities that the policy of a task's container names. No policy: none.
///
/// # Safety
/// `task` is a tag.
#[inline(always)]
unsafe fn held(task: *mut Task) -> u64 {
    // SAFETY: `task` and what the arrays return are values of maps, see `decide::take_policy`.
    unsafe {
        let container = fetch(&raw const (*task).container);
        let index = (container & (MAX_CONTAINERS as u64 - 1)) as u32;
        if let Some(entry) = CONTAINERS.get_ptr(index)
            && fetch(&raw const (*entry).id) == container
            && let Some(policy) = POLICIES.get_ptr(fetch(&raw const (*entry).policy) as u32)
            && fetch(&raw const (*policy).seed) != 0
        {
            return fetch(&raw const (*policy).capabilities);
        }
        0
    }
}

/// The system call that a task is in.
struct SystemCall {
    number: u64,
    i386: bool,
}

impl SystemCall {
    /// # Safety
    /// `me` is the current task.
    #[inline(always)]
    unsafe fn current(me: *const u8) -> Self {
        // SAFETY: as above; what the helper returns is typed.
        unsafe {
            let registers = bpf_task_pt_regs(me.cast_mut().cast()) as *const u8;
            let number = load::<u64>(registers, get(&REGS_CALL)) & !X32;
            Self { number, i386: load::<u32>(me, get(&TASK_COMPAT)) & COMPAT != 0 }
        }
    }

    #[inline(always)]
    fn is_refused(&self) -> bool {
        if self.number >= WORDS as u64 * 64 {
            return false;
        }
        let word = (self.number >> 6) as usize & (WORDS - 1);
        let words = if self.i386 { &REFUSED_I386 } else { &REFUSED };
        // SAFETY: the index is masked; volatile, or the compiler would know the words and make code of them.
        unsafe { fetch(words.as_ptr().add(word)) >> (self.number & 63) & 1 != 0 }
    }
}

/// Reading the kernel's log.
#[lsm(hook = "syslog")]
pub fn syslog(_ctx: LsmContext) -> i32 {
    let task = governed();
    if task.is_null() {
        return 0;
    }
    // SAFETY: `task` is a tag; the current task.
    unsafe {
        let call = SystemCall::current(bpf_get_current_task_btf().cast::<u8>().cast_const());
        deny(task, op::SYSCALL, call.number as u32, 0, fixed::PRIVILEGE)
    }
}
