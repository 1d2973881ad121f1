//! Hooks of a newer kernel that nobody has decided about: refused.
//!
//! The agent loads this program once for each hook that the coverage table does not name. Nobody knows where such a hook is
//! called, perhaps in an interrupt in the middle of another program of the same task, so nothing here touches the task's
//! scratch: a refusal is no event, it is counted as a denial that was lost.

use aya_ebpf::macros::lsm;
use aya_ebpf::programs::LsmContext;
use ringfence_common::MAX_CONTAINERS;
use ringfence_common::policy::FLAG_AUDIT;

use crate::emit::EPERM;
use crate::identity::{counters, governed};
use crate::memory::{add, fetch};
use crate::storage::{CONTAINERS, POLICIES};

/// Refuses a governed task; in audit mode, lets pass. The hook named here is a placeholder.
#[lsm(hook = "file_open")]
pub fn unknown_hook(_ctx: LsmContext) -> i32 {
    let task = governed();
    if task.is_null() {
        return 0;
    }
    // SAFETY: `task` is a tag, all else the values of maps.
    unsafe {
        let container = fetch(&raw const (*task).container);
        let Some(counters) = counters(container) else { return EPERM };
        add(&raw mut (*counters).denied, 1);
        add(&raw mut (*counters).lost_denied, 1);
        if only_audits(container) { 0 } else { EPERM }
    }
}

/// Whether a container's policy records and does not enforce; no, where it has none.
#[inline(always)]
fn only_audits(container: u64) -> bool {
    let index = (container & (MAX_CONTAINERS as u64 - 1)) as u32;
    // SAFETY: the values of maps.
    unsafe {
        if let Some(entry) = CONTAINERS.get_ptr(index)
            && fetch(&raw const (*entry).id) == container
            && let Some(policy) = POLICIES.get_ptr(fetch(&raw const (*entry).policy) as u32)
        {
            return fetch(&raw const (*policy).seed) != 0
                && fetch(&raw const (*policy).flags) & FLAG_AUDIT != 0;
        }
        false
    }
}
