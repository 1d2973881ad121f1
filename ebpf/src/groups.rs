//! Process groups: a signal to one's own group, the terminal's included, must not reach a process outside.

use aya_ebpf::helpers::bpf_get_current_task_btf;
use aya_ebpf::macros::lsm;
use aya_ebpf::programs::LsmContext;
use ringfence_common::event::{fixed, op};

use crate::escape::deny;
use crate::globals::{PID_LEVEL, PID_NUMBER, SIGNAL_PIDS, TASK_SIGNAL, TASK_TGID, TASK_THREAD_PID, get};
use crate::identity::governed;
use crate::memory::{fetch, load, probe_word};
use crate::storage::GROUPS;

/// `PIDTYPE_PGID`.
const OF_GROUP: u64 = 2;

/// setpgid(2). The launcher and the user's other jobs may be in the same session: their groups are not joined.
#[lsm(hook = "task_setpgid")]
pub fn task_setpgid(ctx: LsmContext) -> i32 {
    let task = governed();
    if task.is_null() {
        return 0;
    }
    // SAFETY: `task` is a tag; the current task's fields and the hook's argument's are typed loads.
    unsafe {
        let (target, group): (*const u8, u32) = (ctx.arg(0), ctx.arg(1));
        let me = bpf_get_current_task_btf().cast::<u8>().cast_const();
        let own: *const u8 = load(me, get(&TASK_THREAD_PID));
        if load::<u32>(own, get(&PID_LEVEL)) != 0 {
            return 0; // in a pid namespace of its own: a group outside has no number there
        }
        let container = fetch(&raw const (*task).container);
        let leader: u32 = load(target, get(&TASK_TGID));
        if group == leader {
            if GROUPS.insert(&group, &container, 0).is_ok() {
                return 0;
            }
            return deny(task, op::CONTROL, 0, group, fixed::OTHER_CONTAINER);
        }
        let signal: *const u8 = load(me, get(&TASK_SIGNAL));
        let current = load::<u64>(signal, get(&SIGNAL_PIDS) + OF_GROUP * 8);
        if probe_word(current + get(&PID_NUMBER)) as u32 == group
            || GROUPS.get(&group).is_some_and(|found| *found == container)
        {
            return 0;
        }
        deny(task, op::CONTROL, 0, group, fixed::OTHER_CONTAINER)
    }
}
