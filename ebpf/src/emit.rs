//! From a decision to what the hook returns, and to a record where one is due. The verdict comes first and does not
//! depend on anything here. What gets no record of its own (the container is over its rate, or over its share of a ring
//! that nobody reads) is folded into an entry of `REPEATS`; what finds no room there either is counted as lost. So
//! each denial is in an event or in `lost`, and no container takes another's room.

use aya_ebpf::helpers::generated::{bpf_get_current_uid_gid, bpf_ktime_get_boot_ns};
use aya_ebpf::helpers::{bpf_get_current_pid_tgid, bpf_get_current_task_btf};
use aya_ebpf::maps::RingBuf;
use ringfence_common::ABI_VERSION;
use ringfence_common::event::{
    FLAG_CUT, FLAG_DEBUGGED, FLAG_EXE_CUT, FLAG_RACED, FOLDED_ALLOWED, FOLDED_EACH, Header, LARGE_SECTION,
    Record, Repeat, RepeatKey, SMALL_SECTION, rule, verdict,
};
use ringfence_common::hash::mum;
use ringfence_common::policy::{BURST_NS, Counters, FLAG_AUDIT, RECORD_NS, Unread};
use ringfence_common::task::{Request, Task};

use crate::calls::is_debugged;
use crate::decide::Weighing;
use crate::explain::explain;
use crate::globals::{
    FILE_PATH, K2, MM_EXE, PATH_DENTRY, PATH_MOUNT, RENAME_LOCK, TASK_LEADER, TASK_MM, TASK_PARENT,
    TASK_START, TASK_TGID, get,
};
use crate::identity::counters;
use crate::memory::{add, fetch, load, probe_word, put, sequence};
use crate::storage::{ALLOWED, CALLS, DENIED, FOLDING, REPEATS, RING};
use crate::text::{CUT, Text, text_large, text_small};

/// What a refused path operation returns.
pub const EACCES: i32 = -13;
/// What a refused move returns: programs take it for a move between file systems, and copy.
pub const EXDEV: i32 = -18;
/// What an operation returns that is refused whatever the grant says.
pub const EPERM: i32 = -1;
/// `BPF_NOEXIST`.
const NOEXIST: u64 = 1;
/// `BPF_RB_CONS_POS`: up to where a ring was read.
const READ_TO: u64 = 2;
/// `BPF_RB_PROD_POS`: up to where it is written.
const WRITTEN_TO: u64 = 3;
/// Most bytes of a ring that one container fills while nobody reads it.
const RING_SHARE: u64 = RING as u64 / 8;

/// Whether the policy wants allowed operations of a class (`RECORD_*`) recorded.
///
/// # Safety
/// `task` is a tag whose policy was taken.
#[inline(always)]
pub unsafe fn wants_record(task: *mut Task, class: u32) -> bool {
    // SAFETY: as above.
    unsafe { (*task).scratch.policy.record & class != 0 }
}

/// Begins a request: what is asked for, nothing else known yet. The hook adds paths, address or target, then calls
/// [`finish_weighed`] (a path was weighed) or [`finish`] (it decided by itself).
///
/// # Safety
/// `task` is a tag.
#[inline(always)]
pub unsafe fn begin_request(task: *mut Task, op: u8, axes: u16, detail: u32) -> *mut Request {
    // SAFETY: as above.
    unsafe {
        let request = &raw mut (*task).scratch.request;
        (*request).path.dentry = 0;
        (*request).path2.dentry = 0;
        (*request).op = u32::from(op);
        (*request).axes = u32::from(axes);
        (*request).detail = detail;
        (*request).target = 0;
        (*request).flags = 0;
        (*request).rule_kind = rule::DEFAULT;
        (*request).rule = 0;
        (*request).family = 0;
        (*request).port = 0;
        (*request).addr = [0; 2];
        (*request).name_len = 0;
        request
    }
}

/// Ends a request about the path that was weighed last: notes the rule, records, returns what the hook returns.
///
/// # Safety
/// `task` is a tag whose policy was taken and whose request was begun.
#[inline(always)]
pub unsafe fn finish_weighed(task: *mut Task, weighing: Weighing, allowed: bool) -> i32 {
    // SAFETY: as above.
    unsafe {
        if weighing.fixed() != 0 {
            (*task).scratch.request.rule_kind = rule::FIXED;
            (*task).scratch.request.rule = weighing.fixed();
        } else {
            explain(task);
        }
        finish(task, allowed, EACCES)
    }
}

/// Ends a request with a fixed refusal.
///
/// # Safety
/// `task` is a tag whose policy was taken and whose request was begun.
#[inline(always)]
pub unsafe fn refuse(task: *mut Task, why: u32, errno: i32) -> i32 {
    // SAFETY: as above.
    unsafe {
        (*task).scratch.request.rule_kind = rule::FIXED;
        (*task).scratch.request.rule = why;
        finish(task, false, errno)
    }
}

/// Ends a request whose rule is noted: records, returns what the hook returns.
///
/// # Safety
/// `task` is a tag whose policy was taken and whose request was begun.
#[inline(always)]
pub unsafe fn finish(task: *mut Task, allowed: bool, errno: i32) -> i32 {
    // SAFETY: as above.
    unsafe {
        record(task, u64::from(allowed));
        if allowed || (*task).scratch.policy.flags & FLAG_AUDIT != 0 { 0 } else { errno }
    }
}

/// Records the request, or counts it.
///
/// # Safety
/// `task` is a tag or null.
#[unsafe(no_mangle)]
#[inline(never)]
pub unsafe extern "C" fn record(task: *mut Task, allowed: u64) -> u32 {
    if task.is_null() {
        return 0;
    }
    // SAFETY: `task` is the value of a map, as are the counters.
    unsafe {
        let Some(counters) = counters((*task).scratch.container) else { return 0 };
        let verdict = if allowed != 0 {
            verdict::ALLOWED
        } else if (*task).scratch.policy.flags & FLAG_AUDIT != 0 {
            verdict::WOULD_DENY
        } else {
            add(&raw mut (*counters).denied, 1);
            verdict::DENIED
        };
        let now = bpf_ktime_get_boot_ns();
        let verdict = u64::from(verdict);
        if within_rate(counters, now) && write_record(task, counters, verdict, now) {
            return 0;
        }
        if fold_event(task, verdict, now) == 0 {
            add(&raw mut (*counters).aggregated, 1);
        } else if verdict == u64::from(verdict::DENIED) {
            add(&raw mut (*counters).lost_denied, 1);
        } else {
            add(&raw mut (*counters).lost_allowed, 1);
        }
        0
    }
}

/// Writes a record of its own into the ring. False: there is no room, or the container has more than its share of it
/// already.
#[inline(always)]
unsafe fn write_record(task: *mut Task, counters: *mut Counters, verdict: u64, now: u64) -> bool {
    // SAFETY: the values of maps.
    unsafe {
        let allowed = verdict == u64::from(verdict::ALLOWED);
        let ring = if allowed { &ALLOWED } else { &DENIED };
        let unread =
            if allowed { &raw mut (*counters).allowed_unread } else { &raw mut (*counters).denied_unread };
        if !within_share(ring, unread, size_of::<Record<SMALL_SECTION>>() as u64) {
            return false;
        }
        let Some(mut small) = ring.reserve::<Record<SMALL_SECTION>>(0) else { return false };
        if fill_small(task, small.as_mut_ptr(), verdict, now) & FLAG_CUT == 0 {
            small.submit(0);
            return true;
        }
        small.discard(0);
        if !within_share(ring, unread, size_of::<Record<LARGE_SECTION>>() as u64) {
            return false;
        }
        let Some(mut large) = ring.reserve::<Record<LARGE_SECTION>>(0) else { return false };
        fill_large(task, large.as_mut_ptr(), verdict, now);
        large.submit(0);
        true
    }
}

/// Takes room for one record out of the container's share of a ring. Where nobody reads the ring, that is all the
/// container gets of it; where somebody does, it may have twice as much unread for a moment, because what it wrote while
/// the reader came to its mark is not counted again. Two CPUs at once may take one for two.
#[inline(always)]
unsafe fn within_share(ring: &RingBuf, unread: *mut Unread, size: u64) -> bool {
    // SAFETY: the value of a map.
    unsafe {
        if ring.query(READ_TO) >= fetch(&raw const (*unread).mark) {
            put(&raw mut (*unread).mark, ring.query(WRITTEN_TO) + size);
            put(&raw mut (*unread).bytes, size);
            return true;
        }
        let bytes = fetch(&raw const (*unread).bytes) + size;
        if bytes > RING_SHARE {
            return false;
        }
        put(&raw mut (*unread).bytes, bytes);
        true
    }
}

/// Takes one record out of the container's rate. Two CPUs at once may take one for two: it is a rate, not a limit.
///
/// # Safety
/// `counters` is the value of a map.
#[inline(always)]
pub unsafe fn within_rate(counters: *mut Counters, now: u64) -> bool {
    // SAFETY: the value of a map.
    unsafe {
        let due = fetch(&raw const (*counters).due);
        let due = if due < now { now } else { due };
        if due - now > BURST_NS {
            return false;
        }
        put(&raw mut (*counters).due, due + RECORD_NS);
        true
    }
}

/// An empty entry, to be filled where it will stay.
static NO_REPEAT: Repeat = Repeat {
    count: 0,
    record: Record {
        header: Header {
            version: 0,
            op: 0,
            verdict: 0,
            flags: 0,
            time: 0,
            container: 0,
            call: 0,
            start: 0,
            lineage: [0; ringfence_common::task::LINEAGE],
            generation: 0,
            pid: 0,
            tgid: 0,
            ppid: 0,
            uid: 0,
            detail: 0,
            repeats: 0,
            rule_kind: 0,
            rule: 0,
            axes: 0,
            family: 0,
            port: 0,
            addr: [0; 16],
            path_len: 0,
            path2_len: 0,
            exe_len: 0,
            section: 0,
            target: 0,
        },
        path: [0; SMALL_SECTION],
        path2: [0; SMALL_SECTION],
        exe: [0; SMALL_SECTION],
        slack: [0; ringfence_common::event::SLACK],
    },
};

/// Counts a request that gets no record of its own: the first of its kind is kept whole, the others only counted.
/// 0: it was counted; otherwise there is no room for one more kind.
///
/// # Safety
/// `task` is a tag or null.
#[unsafe(no_mangle)]
#[inline(never)]
pub unsafe extern "C" fn fold_event(task: *mut Task, verdict: u64, now: u64) -> u32 {
    if task.is_null() {
        return 1;
    }
    // SAFETY: `task` is the value of a map, as are the others.
    unsafe {
        let scratch = &raw const (*task).scratch;
        let request = &raw const (*scratch).request;
        let k2 = get(&K2);
        // A path that was weighed is known by its hash; one that was not, by where it is.
        let path = if (*request).axes != 0 { (*scratch).prefix } else { (*request).path.dentry };
        let mut target = mum(path ^ (*request).path2.dentry, k2);
        target = mum(target ^ (*request).addr[0], k2);
        target = mum(target ^ (*request).addr[1] ^ u64::from((*request).port), k2);
        target = mum(target ^ u64::from((*request).target) << 32 ^ u64::from((*request).axes), k2);
        target = mum(target ^ u64::from((*request).detail), k2);
        // What one tool call's tree does is not folded into another's.
        let call = CALLS.of(bpf_get_current_task_btf().cast());
        let call = if call.is_null() { 0 } else { *call };
        // Nor what it did for itself into what another may have had it do.
        let debugged = u64::from(is_debugged(fetch(&raw const (*task).container), call));
        target = mum(target ^ call, k2 ^ debugged);
        let Some(folding) = FOLDING.get_ptr_mut(0) else { return 1 };
        // Read once: the agent waits for whoever read it.
        let epoch = fetch(&raw const (*folding).epoch) & 1;
        let key = RepeatKey {
            container: (*scratch).container,
            target,
            kind: u64::from((*request).op) | verdict << 8 | epoch << 16,
        };
        if let Some(entry) = REPEATS.get_ptr_mut(&key) {
            add(&raw mut (*entry).count, 1);
            return 0;
        }
        let Some(counters) = counters((*scratch).container) else { return 1 };
        let folded = if epoch == 0 { &raw mut (*counters).folded[0] } else { &raw mut (*counters).folded[1] };
        let most = if verdict == u64::from(verdict::ALLOWED) { FOLDED_ALLOWED } else { FOLDED_EACH };
        if fetch(folded) >= most {
            return 1;
        }
        let made = REPEATS.insert(&key, &NO_REPEAT, NOEXIST).is_ok();
        // Another CPU may have made it just now: then it is there, and only to be counted.
        let Some(entry) = REPEATS.get_ptr_mut(&key) else { return 1 };
        if made {
            add(folded, 1);
            let entries =
                if epoch == 0 { &raw mut (*folding).entries[0] } else { &raw mut (*folding).entries[1] };
            add(entries, 1);
            fill_small(task, &raw mut (*entry).record, verdict, now);
            // Before 6.2 one lookup may fail where the other does not: the key's is what the others are counted by.
            (*entry).record.header.call = call;
        }
        add(&raw mut (*entry).count, 1);
        0
    }
}

/// Fills a small record. Returns the flags that its header got.
///
/// # Safety
/// `task` is a tag, `record` points into a ring or a map; either may be null.
#[unsafe(no_mangle)]
#[inline(never)]
pub unsafe extern "C" fn fill_small(
    task: *mut Task,
    record: *mut Record<SMALL_SECTION>,
    verdict: u64,
    now: u64,
) -> u32 {
    if task.is_null() || record.is_null() {
        return 0;
    }
    // SAFETY: sections are followed by as much as `Text` claims of the record.
    unsafe {
        let renames = sequence(get(&RENAME_LOCK));
        head(task, &raw mut (*record).header, verdict, now);
        (*record).header.section = SMALL_SECTION as u16;
        (*task).scratch.start = (*task).scratch.request.path;
        let path = text_small(task, (&raw mut (*record).path).cast::<Text<{ SMALL_SECTION * 2 }>>(), 1);
        (*task).scratch.start = (*task).scratch.request.path2;
        let path2 = text_small(task, (&raw mut (*record).path2).cast::<Text<{ SMALL_SECTION * 2 }>>(), 0);
        start_at_executable(task);
        let exe = text_small(task, (&raw mut (*record).exe).cast::<Text<{ SMALL_SECTION * 2 }>>(), 0);
        sections(&raw mut (*record).header, path, path2, exe, renames)
    }
}

/// Fills a large record.
///
/// # Safety
/// As for [`fill_small`].
#[unsafe(no_mangle)]
#[inline(never)]
pub unsafe extern "C" fn fill_large(
    task: *mut Task,
    record: *mut Record<LARGE_SECTION>,
    verdict: u64,
    now: u64,
) -> u32 {
    if task.is_null() || record.is_null() {
        return 0;
    }
    // SAFETY: sections are followed by as much as `Text` claims of the record.
    unsafe {
        let renames = sequence(get(&RENAME_LOCK));
        head(task, &raw mut (*record).header, verdict, now);
        (*record).header.section = LARGE_SECTION as u16;
        (*task).scratch.start = (*task).scratch.request.path;
        let path = text_large(task, (&raw mut (*record).path).cast::<Text<{ LARGE_SECTION + 256 }>>(), 1);
        (*task).scratch.start = (*task).scratch.request.path2;
        let path2 = text_large(task, (&raw mut (*record).path2).cast::<Text<{ LARGE_SECTION + 256 }>>(), 0);
        start_at_executable(task);
        let exe = text_large(task, (&raw mut (*record).exe).cast::<Text<{ LARGE_SECTION + 256 }>>(), 0);
        sections(&raw mut (*record).header, path, path2, exe, renames)
    }
}

#[inline(always)]
unsafe fn sections(header: *mut Header, path: u64, path2: u64, exe: u64, renames: u32) -> u32 {
    // SAFETY: the caller's header.
    unsafe {
        (*header).path_len = path as u16;
        (*header).path2_len = path2 as u16;
        (*header).exe_len = exe as u16;
        let mut flags = (*header).flags | (path >> 16) as u32 | ((path2 >> 16) as u32 & FLAG_CUT);
        if exe >> 16 & CUT != 0 {
            flags |= FLAG_EXE_CUT;
        }
        if renames & 1 != 0 || renames != sequence(get(&RENAME_LOCK)) {
            flags |= FLAG_RACED;
        }
        (*header).flags = flags;
        flags
    }
}

/// All of the header that does not depend on the texts.
#[inline(always)]
unsafe fn head(task: *mut Task, header: *mut Header, verdict: u64, now: u64) {
    // SAFETY: `task` is the value of a map; the header is the caller's; the current task's fields are typed loads.
    unsafe {
        let scratch = &raw const (*task).scratch;
        let request = &raw const (*scratch).request;
        let me = bpf_get_current_task_btf().cast::<u8>().cast_const();
        let leader: *const u8 = load(me, get(&TASK_LEADER));
        let parent: *const u8 = load(me, get(&TASK_PARENT));
        let ids = bpf_get_current_pid_tgid();
        let call = CALLS.of(me.cast_mut().cast());
        (*header).version = ABI_VERSION as u16;
        (*header).op = (*request).op as u8;
        (*header).verdict = verdict as u8;
        let call = if call.is_null() { 0 } else { *call };
        let debugged = is_debugged(fetch(&raw const (*task).container), call);
        (*header).flags = (*request).flags | if debugged { FLAG_DEBUGGED } else { 0 };
        (*header).time = now;
        (*header).container = (*scratch).container;
        (*header).call = call;
        (*header).start = load(leader, get(&TASK_START));
        (*header).lineage = (*task).lineage;
        (*header).generation = (*scratch).policy.generation;
        (*header).pid = ids as u32;
        (*header).tgid = (ids >> 32) as u32;
        (*header).ppid = load(parent, get(&TASK_TGID));
        (*header).uid = bpf_get_current_uid_gid() as u32;
        (*header).detail = (*request).detail;
        (*header).repeats = 1;
        (*header).rule_kind = (*request).rule_kind;
        (*header).rule = (*request).rule;
        (*header).axes = (*request).axes;
        (*header).family = (*request).family;
        (*header).port = (*request).port;
        let addr = (&raw mut (*header).addr).cast::<u64>();
        put(addr, (*request).addr[0]);
        put(addr.add(1), (*request).addr[1]);
        (*header).target = (*request).target;
    }
}

/// Puts the current executable's place where a text begins. A thread without memory of its own (io_uring) is its
/// leader's.
#[inline(always)]
unsafe fn start_at_executable(task: *mut Task) {
    // SAFETY: `task` is the value of a map; the current task's fields are typed loads.
    unsafe {
        let scratch = &raw mut (*task).scratch;
        let me = bpf_get_current_task_btf().cast::<u8>().cast_const();
        put(&raw mut (*scratch).opaque_word, load::<u64>(me, get(&TASK_MM)));
        let mut memory = fetch(&raw const (*scratch).opaque_word);
        if memory == 0 {
            let leader: *const u8 = load(me, get(&TASK_LEADER));
            put(&raw mut (*scratch).opaque_word, load::<u64>(leader, get(&TASK_MM)));
            memory = fetch(&raw const (*scratch).opaque_word);
        }
        let file = if memory == 0 { 0 } else { probe_word(memory + get(&MM_EXE)) };
        if file == 0 {
            (*scratch).start.dentry = 0;
            return;
        }
        (*scratch).start.dentry = probe_word(file + get(&FILE_PATH) + get(&PATH_DENTRY));
        (*scratch).start.mount = probe_word(file + get(&FILE_PATH) + get(&PATH_MOUNT));
    }
}
