//! The words of a path, for a record: components from the leaf up, each one length byte and its bytes.
//!
//! Nothing is decided by them. They are read after the decision, without the care that the decision took; a record
//! says so (`FLAG_RACED`) when renames ran beside the reading.

use core::ffi::c_void;
use core::mem::MaybeUninit;

use ringfence_common::event::{FLAG_ABSTRACT, FLAG_CUT, FLAG_OUTSIDE, LARGE_SECTION, SMALL_SECTION};
use ringfence_common::task::{Scratch, Task};

use crate::globals::{DENTRY_LEN, DENTRY_NAME, DENTRY_PARENT, VFSMOUNT_ROOT, get};
use crate::memory::{fetch, load, opaque, probe, probe_name, probe_word, put, repeat};
use crate::walk::{STEPS, cross};

/// A section and what follows it in the record: room for a name behind any position in the section.
#[repr(C)]
pub struct Text<const N: usize> {
    bytes: [u8; N],
}

/// In the upper half of what the functions here return: the text was cut.
pub const CUT: u64 = FLAG_CUT as u64;

/// Bytes of `d_parent` and the name behind it.
const WINDOW: usize = 48;

/// Writes the path at `scratch.start` into a small section: its length in the low 16 bits, `FLAG_*` above.
/// `named` is 1 for the section that an abstract socket's name goes to.
///
/// # Safety
/// `task` is a tag, `out` points into a record; either may be null.
#[unsafe(no_mangle)]
#[inline(never)]
pub unsafe extern "C" fn text_small(
    task: *mut Task,
    out: *mut Text<{ SMALL_SECTION * 2 }>,
    named: u64,
) -> u64 {
    if task.is_null() || out.is_null() {
        return 0;
    }
    // SAFETY: the section has SMALL_SECTION bytes and as many behind it.
    unsafe { text::<{ SMALL_SECTION as u64 }>(task, out.cast(), named) }
}

/// Writes the path at `scratch.start` into a large section. See [`text_small`].
///
/// # Safety
/// As for [`text_small`].
#[unsafe(no_mangle)]
#[inline(never)]
pub unsafe extern "C" fn text_large(
    task: *mut Task,
    out: *mut Text<{ LARGE_SECTION + 256 }>,
    named: u64,
) -> u64 {
    if task.is_null() || out.is_null() {
        return 0;
    }
    // SAFETY: the section has LARGE_SECTION bytes and 256 behind it.
    unsafe { text::<{ LARGE_SECTION as u64 }>(task, out.cast(), named) }
}

/// Where a step of the text works.
#[repr(C)]
struct Place {
    task: *mut Task,
    out: *mut u8,
}

#[inline(always)]
unsafe fn text<const SECTION: u64>(task: *mut Task, out: *mut u8, named: u64) -> u64 {
    // SAFETY: `task` is the value of a map; `out` has `SECTION` bytes and 256 more.
    unsafe {
        let scratch = &raw mut (*task).scratch;
        if named != 0 && (*scratch).request.name_len != 0 {
            return abstract_name(task, out);
        }
        let dentry = fetch(&raw const (*scratch).start.dentry);
        let mount = fetch(&raw const (*scratch).start.mount);
        if dentry == 0 {
            return 0;
        }
        put(&raw mut (*scratch).dentry, dentry);
        put(&raw mut (*scratch).mount, mount);
        put(&raw mut (*scratch).mount_root, probe_word(mount + get(&VFSMOUNT_ROOT)));
        put(&raw mut (*scratch).used, 0);
        put(&raw mut (*scratch).flags, CUT);
        let mut place = Place { task, out };
        repeat(STEPS, text_step::<SECTION>, (&raw mut place).cast());
        (fetch(&raw const (*scratch).used) & 0xffff) | fetch(&raw const (*scratch).flags) << 16
    }
}

/// Notes how the text ended, and ends it.
#[inline(always)]
unsafe fn end(scratch: *mut Scratch, flags: u64) -> i64 {
    // SAFETY: the caller's tag.
    unsafe { put(&raw mut (*scratch).flags, flags) };
    1
}

/// One component of the text, or one crossing of a mount.
///
/// # Safety
/// `context` points to a [`Place`] whose section has `SECTION` bytes and 256 more.
unsafe extern "C" fn text_step<const SECTION: u64>(_step: u64, context: *mut c_void) -> i64 {
    // SAFETY: the tag is the value of a map, the section lies in a record; all else is read by `probe`.
    unsafe {
        let Place { task, out } = context.cast::<Place>().read();
        let scratch = &raw mut (*task).scratch;
        let dentry = fetch(&raw const (*scratch).dentry);
        let mount = fetch(&raw const (*scratch).mount);
        if dentry == (*task).root_dentry && mount == (*task).root_mount {
            return end(scratch, 0);
        }
        if dentry == fetch(&raw const (*scratch).mount_root) {
            let Some((upper, point)) = cross(mount) else { return end(scratch, u64::from(FLAG_OUTSIDE)) };
            put(&raw mut (*scratch).mount, upper);
            put(&raw mut (*scratch).dentry, point);
            put(&raw mut (*scratch).mount_root, probe_word(upper + get(&VFSMOUNT_ROOT)));
            return 0;
        }
        let parent_at = get(&DENTRY_PARENT);
        let mut window = MaybeUninit::<[u64; WINDOW / 8]>::uninit();
        let window = window.as_mut_ptr().cast::<u8>();
        if !probe(window, WINDOW as u64, dentry + parent_at) {
            return end(scratch, CUT);
        }
        let parent: u64 = load(window, 0);
        let used = opaque(fetch(&raw const (*scratch).used));
        // The top of a tree has no name, except one without any tree: a pipe's, a memfd's.
        if parent == dentry && used != 0 {
            return end(scratch, u64::from(FLAG_OUTSIDE));
        }
        let len = u64::from(load::<u32>(window, get(&DENTRY_LEN) - parent_at));
        if len == 0 || len > 255 || used >= SECTION || used + 1 + len > SECTION {
            return end(scratch, CUT);
        }
        let to = out.add(used as usize);
        put(to, len as u8);
        if !probe_name(to.add(1), len, load(window, get(&DENTRY_NAME) - parent_at)) {
            return end(scratch, CUT);
        }
        put(&raw mut (*scratch).used, used + 1 + len);
        if parent == dentry {
            return end(scratch, u64::from(FLAG_OUTSIDE));
        }
        put(&raw mut (*scratch).dentry, parent);
        0
    }
}

/// An abstract socket's name, as one component.
#[inline(always)]
unsafe fn abstract_name(task: *mut Task, out: *mut u8) -> u64 {
    // SAFETY: `task` is the value of a map; `out` has more than 113 bytes.
    unsafe {
        let request = &raw const (*task).scratch.request;
        let len = u64::from((*request).name_len);
        let len = if len > 108 { 108 } else { len };
        put(out, len as u8);
        let from = (&raw const (*request).name).cast::<u8>();
        let mut index = 0;
        while index < 108 {
            put(out.add(index + 1), fetch(from.add(index)));
            index += 1;
        }
        (len + 1) | u64::from(FLAG_ABSTRACT) << 16
    }
}
