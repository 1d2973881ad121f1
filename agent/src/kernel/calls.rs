//! System calls that the coverage table does not name are refused to governed tasks, by a small program on the call's entry.
//!
//! The loading library has no programs that change what a function returns (`fmod_ret`), so this one is written out here. It
//! is the same for each call: is the current task governed, and not by a policy that only audits? Then the call is answered
//! with ENOSYS. Unlike LSM programs such a program is left out where it is preempted by itself on the same processor, which
//! is why nothing else rests on one: it is for the time until somebody has decided about a new call, and for containers that
//! have no list of system calls of their own.

use std::{
    ffi::CString,
    io,
    mem::offset_of,
    os::{
        fd::{AsFd, AsRawFd, BorrowedFd},
        unix::ffi::OsStrExt,
    },
    path::Path,
};

use ringfence_common::{
    MAX_CONTAINERS,
    policy::{Container, Counters, FLAG_AUDIT, Policy},
    task::Task,
};

use super::sys::{self, Instruction};

const GET_CURRENT_TASK_BTF: i32 = 158;
const TASK_STORAGE_GET: i32 = 156;
const MAP_LOOKUP: i32 = 1;
const ENOSYS: i32 = 38;

/// The maps that the program looks into.
pub(super) struct Maps<'a> {
    /// Tags of tasks in their storage, and by address where that cannot be relied on.
    pub(super) tasks: BorrowedFd<'a>,
    pub(super) by_address: BorrowedFd<'a>,
    pub(super) containers: BorrowedFd<'a>,
    pub(super) policies: BorrowedFd<'a>,
    pub(super) counters: BorrowedFd<'a>,
}

/// What the program needs to know of the kernel.
#[derive(Debug, Clone, Copy)]
pub(super) struct Kernel {
    /// Offset of `task_struct.bpf_storage`, bytes.
    pub(super) storage: u64,
    /// Whether tags are found by address.
    pub(super) legacy: bool,
}

/// Refuses a call to governed tasks, and pins that.
///
/// # Errors
/// Those of bpf(2); a call whose entry takes no such program gives `EINVAL`.
pub(super) fn refuse(maps: &Maps<'_>, kernel: Kernel, entry: u32, pin: &Path) -> io::Result<()> {
    let link = sys::modify_return(&program(maps, kernel), entry)?;
    sys::pin(link.as_fd(), &CString::new(pin.as_os_str().as_bytes())?)
}

/// Where a jump goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Label {
    Pass,
    Deny,
    /// To the end of counting.
    Counted,
}

/// A program that is being written.
#[derive(Default)]
struct Writer {
    code: Vec<Instruction>,
    jumps: Vec<(usize, Label)>,
    labels: Vec<(Label, usize)>,
}

impl Writer {
    fn push(&mut self, code: u8, to: u8, from: u8, offset: i16, immediate: i32) {
        self.code.push(Instruction { code, registers: to | from << 4, offset, immediate });
    }

    fn set(&mut self, register: u8, value: i32) {
        self.push(0xb7, register, 0, 0, value);
    }

    fn copy(&mut self, to: u8, from: u8) {
        self.push(0xbf, to, from, 0, 0);
    }

    /// `to = *(u64 *)(from + offset)`
    fn load(&mut self, to: u8, from: u8, offset: usize) {
        self.push(0x79, to, from, offset as i16, 0);
    }

    /// `if register == value goto label`, or `!=`.
    fn jump(&mut self, equal: bool, register: u8, value: i32, label: Label) {
        self.jumps.push((self.code.len(), label));
        self.push(if equal { 0x15 } else { 0x55 }, register, 0, 0, value);
    }

    fn call(&mut self, helper: i32) {
        self.push(0x85, 0, 0, 0, helper);
    }

    fn map(&mut self, register: u8, map: BorrowedFd<'_>) {
        self.push(0x18, register, 1, 0, map.as_raw_fd());
        self.push(0, 0, 0, 0, 0);
    }

    /// `r0 = lookup(map, stack + at)`
    fn look_up(&mut self, map: BorrowedFd<'_>, at: i16) {
        self.map(1, map);
        self.copy(2, 10);
        self.push(0x07, 2, 0, 0, i32::from(at));
        self.call(MAP_LOOKUP);
    }

    fn label(&mut self, label: Label) {
        self.labels.push((label, self.code.len()));
    }

    fn finish(mut self) -> Vec<Instruction> {
        for (at, label) in &self.jumps {
            if let Some((_, target)) = self.labels.iter().find(|(found, _)| found == label) {
                self.code[*at].offset = (*target as i64 - *at as i64 - 1) as i16;
            }
        }
        self.code
    }
}

fn program(maps: &Maps<'_>, kernel: Kernel) -> Vec<Instruction> {
    /// Where in the stack the key of an array is, and the address of the task.
    const INDEX: i16 = -12;
    const ADDRESS: i16 = -8;
    let mut w = Writer::default();
    w.call(GET_CURRENT_TASK_BTF);
    w.copy(6, 0);
    if kernel.legacy {
        w.push(0x7b, 10, 6, ADDRESS, 0); // *(u64 *)(r10 - 8) = r6
        w.look_up(maps.by_address, ADDRESS);
    } else {
        w.load(1, 6, kernel.storage as usize);
        w.jump(true, 1, 0, Label::Pass);
        w.map(1, maps.tasks);
        w.copy(2, 6);
        w.set(3, 0);
        w.set(4, 0);
        w.call(TASK_STORAGE_GET);
    }
    w.jump(true, 0, 0, Label::Pass);
    w.load(7, 0, offset_of!(Task, container));
    w.jump(true, 7, 0, Label::Pass); // pending: not governed yet
    w.copy(1, 7);
    w.push(0x57, 1, 0, 0, MAX_CONTAINERS as i32 - 1); // r1 &= ...
    w.push(0x63, 10, 1, INDEX, 0); // *(u32 *)(r10 - 12) = r1
    // Counted as a denial that is in no event: a record needs the scratch, which another program may be using.
    w.look_up(maps.counters, INDEX);
    w.jump(true, 0, 0, Label::Counted);
    w.set(1, 1);
    for counter in [offset_of!(Counters, denied), offset_of!(Counters, lost_denied)] {
        w.push(0xdb, 0, 1, counter as i16, 0); // lock *(u64 *)(r0 + counter) += r1
    }
    w.label(Label::Counted);
    w.look_up(maps.containers, INDEX);
    w.jump(true, 0, 0, Label::Deny);
    w.load(1, 0, offset_of!(Container, id));
    w.jumps.push((w.code.len(), Label::Deny));
    w.push(0x5d, 1, 7, 0, 0); // if r1 != r7
    w.load(1, 0, offset_of!(Container, policy));
    w.push(0x63, 10, 1, INDEX, 0);
    w.look_up(maps.policies, INDEX);
    w.jump(true, 0, 0, Label::Deny);
    w.load(1, 0, offset_of!(Policy, seed));
    w.jump(true, 1, 0, Label::Deny);
    w.push(0x61, 1, 0, offset_of!(Policy, flags) as i16, 0); // r1 = *(u32 *)(r0 + flags)
    w.push(0x57, 1, 0, 0, FLAG_AUDIT as i32);
    w.jump(false, 1, 0, Label::Pass);
    w.label(Label::Deny);
    w.set(0, -ENOSYS);
    w.push(0x95, 0, 0, 0, 0);
    w.label(Label::Pass);
    w.set(0, 0);
    w.push(0x95, 0, 0, 0, 0);
    w.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_jump_lands_on_an_instruction_further_down() {
        let file = tempfile::tempfile().unwrap();
        let fd = file.as_fd();
        let maps = Maps { tasks: fd, by_address: fd, containers: fd, policies: fd, counters: fd };
        for legacy in [false, true] {
            let code = program(&maps, Kernel { storage: 3000, legacy });
            for (at, one) in code.iter().enumerate().filter(|(_, one)| [0x15, 0x55, 0x5d].contains(&one.code))
            {
                let target = at + 1 + usize::try_from(one.offset).unwrap();
                assert!(one.offset > 0 && target < code.len(), "{at}: {one:?}");
            }
            assert_eq!(code.last().unwrap().code, 0x95);
        }
    }
}
