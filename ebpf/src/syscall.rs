//! Which system call the current task is in.
//!
//! The number is what the task entered the kernel with. While it is in the kernel only the kernel writes there: a tracer
//! reaches it where the task is stopped, which is before a call, after it, or in `execve` and `fork` behind all that is
//! judged.

use aya_ebpf::helpers::bpf_get_current_task_btf;
use aya_ebpf::helpers::generated::bpf_task_pt_regs;

use crate::globals::{REGS_FIRST, REGS_FIRST_32, REGS_NUMBER, get};
use crate::memory::load;

/// The bit that marks a call of the x32 table.
const X32: u32 = 1 << 30;

/// `execve` and `execveat`, 64 and 32 bits. No other call of either table with one of these numbers opens a file with
/// flags of its caller's.
const EXECUTE: [u32; 4] = [59, 322, 11, 358];

/// The number of the system call, of whichever table.
#[inline(always)]
pub fn number() -> u32 {
    // SAFETY: the current task's registers, as the kernel saved them.
    unsafe { load::<u64>(registers(), get(&REGS_NUMBER)) as u32 & !X32 }
}

/// The call's first argument, 32 bits of it; `compat`: it came by the 32-bit table.
#[inline(always)]
pub fn first(compat: bool) -> u32 {
    // SAFETY: as above.
    unsafe {
        let (native, narrow): (u64, u64) =
            (load(registers(), get(&REGS_FIRST)), load(registers(), get(&REGS_FIRST_32)));
        if compat { narrow as u32 } else { native as u32 }
    }
}

/// Whether the task is executing a program.
#[inline(always)]
pub fn executes() -> bool {
    EXECUTE.contains(&number())
}

#[inline(always)]
unsafe fn registers() -> *const u8 {
    // SAFETY: the current task, which the verifier trusts.
    unsafe { bpf_task_pt_regs(bpf_get_current_task_btf()) as *const u8 }
}
