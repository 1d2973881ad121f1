//! System calls that no library here covers: bpf(2) on task storage, shared mappings of array maps, membarrier(2).
//!
//! Every bpf(2) call of ours goes through [`bpf`]; the rest of the room calls only the safe functions below.
#![expect(unsafe_code, reason = "raw system calls and shared memory; each block names what its callee needs")]

use std::{
    io,
    num::NonZeroUsize,
    ops::Deref,
    os::fd::{AsFd, AsRawFd, BorrowedFd},
    ptr::NonNull,
    sync::atomic::{AtomicU16, AtomicU64},
};

use nix::{
    libc,
    sys::mman::{MapFlags, ProtFlags, mmap, munmap},
};
use ringfence_common::task::Task;

const BPF_MAP_LOOKUP_ELEM: libc::c_int = 1;
const BPF_MAP_UPDATE_ELEM: libc::c_int = 2;
const BPF_MAP_LOOKUP_AND_DELETE_ELEM: libc::c_int = 21;

/// What an update expects of the entry that it writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u64)]
pub(crate) enum Expect {
    /// There is none yet (`BPF_NOEXIST`).
    Absent = 1,
    /// There is one (`BPF_EXIST`).
    Present = 2,
}

/// The part of `union bpf_attr` that element operations read.
#[repr(C)]
struct ElementAttr {
    map_fd: u32,
    pad: u32,
    key: u64,
    value: u64,
    flags: u64,
}

impl ElementAttr {
    /// Of one element: where its key is, and its value, which a look-up writes.
    fn new<K, V>(map: BorrowedFd<'_>, key: *const K, value: *const V, flags: u64) -> Self {
        let map_fd = map.as_raw_fd() as u32;
        Self { map_fd, pad: 0, key: key as u64, value: value as u64, flags }
    }
}

/// bpf(2).
///
/// # Safety
/// `T` must be `repr(C)`, without padding, and begin as `union bpf_attr` begins for `command`; every address in it
/// must stay valid for what that command reads and writes there.
unsafe fn bpf<T>(command: libc::c_int, attr: &mut T) -> io::Result<libc::c_long> {
    // SAFETY: bpf(2) wants a pointer to `size` readable and writable bytes laid out for `command`: `attr` is a live
    // exclusive reference of exactly that size, and the caller vouches for layout and inner addresses.
    let result = unsafe { libc::syscall(libc::SYS_bpf, command, std::ptr::from_mut(attr), size_of::<T>()) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

/// The tag of the task behind `pidfd`; `None` if it has none.
///
/// # Errors
/// `ESRCH` if the task is gone (the map alone cannot tell that from "no tag"); `EBADF` if `pidfd` is no pidfd.
pub(crate) fn task_tag(tasks: BorrowedFd<'_>, pidfd: BorrowedFd<'_>) -> io::Result<Option<Task>> {
    let key: libc::c_int = pidfd.as_raw_fd();
    let mut value = Task::pending(0);
    let mut attr = ElementAttr::new(tasks, &raw const key, &raw mut value, 0);
    // SAFETY: `ElementAttr` is the element operations' layout without padding; `key` is the 4 byte key and `value` has
    // the map's value size (`pins` compared it with `size_of::<Task>()`), and both outlive the call. Any bytes are a
    // valid `Task`: it has integers only.
    let result = unsafe { bpf(BPF_MAP_LOOKUP_ELEM, &mut attr) };
    match result {
        Ok(_) => Ok(Some(value)),
        Err(error) if error.raw_os_error() == Some(libc::ENOENT) => {
            // Also what a reaped task gives. There after the lookup means there during it.
            match signal(pidfd, 0) {
                Ok(()) => Ok(None),
                Err(error) if error.raw_os_error() == Some(libc::EPERM) => Ok(None),
                Err(error) => Err(error),
            }
        }
        Err(error) => Err(error),
    }
}

/// The number that is kept with what a descriptor is of, in a map whose values are numbers: with an accepted socket or, by a pidfd,
/// with a task (its thread group leader). `None`: there is none, or the task is gone.
pub(crate) fn number_of(map: BorrowedFd<'_>, of: BorrowedFd<'_>) -> io::Result<Option<u64>> {
    let key: libc::c_int = of.as_raw_fd();
    let mut value = 0_u64;
    let mut attr = ElementAttr::new(map, &raw const key, &raw mut value, 0);
    // SAFETY: `ElementAttr` is the element operations' layout without padding; `key` is the 4 byte key and `value` has
    // the map's value size (`load` compared it with `size_of::<u64>()`), and both outlive the call.
    match unsafe { bpf(BPF_MAP_LOOKUP_ELEM, &mut attr) } {
        Ok(_) => Ok(Some(value)),
        Err(error) if error.raw_os_error() == Some(libc::ENOENT) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Writes the tag of the task behind `pidfd` (its thread group leader).
pub(crate) fn set_task_tag(
    tasks: BorrowedFd<'_>,
    pidfd: BorrowedFd<'_>,
    tag: &Task,
    expect: Expect,
) -> io::Result<()> {
    let key: libc::c_int = pidfd.as_raw_fd();
    let mut attr = ElementAttr::new(tasks, &raw const key, &raw const *tag, expect as u64);
    // SAFETY: as in `task_tag`; an update only reads the value, for the map's value size.
    unsafe { bpf(BPF_MAP_UPDATE_ELEM, &mut attr) }.map(drop)
}

/// Writes the call tag of the task behind `pidfd` (its thread group leader), if it has none.
///
/// # Errors
/// `EEXIST`: it has one; `ESRCH` or `ENOENT`: it is gone.
pub(crate) fn set_call(calls: BorrowedFd<'_>, pidfd: BorrowedFd<'_>, call: u64) -> io::Result<()> {
    let key: libc::c_int = pidfd.as_raw_fd();
    let mut attr = ElementAttr::new(calls, &raw const key, &raw const call, Expect::Absent as u64);
    // SAFETY: as in `set_task_tag`; `handle` compared the map's value size with that of `u64` when it opened it.
    unsafe { bpf(BPF_MAP_UPDATE_ELEM, &mut attr) }.map(drop)
}

/// Keeps a number with a socket, in a map whose values are numbers.
pub(crate) fn set_number_of(map: BorrowedFd<'_>, socket: BorrowedFd<'_>, number: u64) -> io::Result<()> {
    let key: libc::c_int = socket.as_raw_fd();
    let mut attr = ElementAttr::new(map, &raw const key, &raw const number, 0);
    // SAFETY: as in `number_of`; an update only reads the value, for the map's value size.
    unsafe { bpf(BPF_MAP_UPDATE_ELEM, &mut attr) }.map(drop)
}

/// What the kernel's programs know a socket's network namespace by (`SO_NETNS_COOKIE`).
pub(crate) fn netns_cookie(socket: BorrowedFd<'_>) -> io::Result<u64> {
    let mut cookie = 0_u64;
    let mut len = size_of::<u64>() as libc::socklen_t;
    // SAFETY: getsockopt(2) writes at most `len` bytes to `cookie`, and `len` itself; both outlive the call.
    let result = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_NETNS_COOKIE,
            (&raw mut cookie).cast(),
            &raw mut len,
        )
    };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(cookie) }
}

/// Switches TCP Fast Open off at a listening socket, which has it where the host says so for all.
pub(crate) fn no_fast_open(socket: BorrowedFd<'_>) -> io::Result<()> {
    let none: libc::c_int = 0;
    // SAFETY: setsockopt(2) reads the four bytes of `none`, which outlives the call.
    let result = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_FASTOPEN,
            (&raw const none).cast(),
            size_of::<libc::c_int>() as libc::socklen_t,
        )
    };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Takes an entry out of a hash map whose keys have `K` and whose values have `V` words; `None`: there is none.
pub(crate) fn take<const K: usize, const V: usize>(
    map: BorrowedFd<'_>,
    key: &[u64; K],
) -> io::Result<Option<Box<[u64; V]>>> {
    let mut value = Box::new([0; V]);
    let mut attr = ElementAttr::new(map, &raw const *key, &raw mut *value, 0);
    // SAFETY: `ElementAttr` is the element operations' layout; `key` and `value` have the map's sizes (`rings` opens
    // the map through a typed view that compared them) and outlive the call. Any bytes are valid integers.
    match unsafe { bpf(BPF_MAP_LOOKUP_AND_DELETE_ELEM, &mut attr) } {
        Ok(_) => Ok(Some(value)),
        Err(error) if error.raw_os_error() == Some(libc::ENOENT) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Sends a signal to the process behind `pidfd`; 0 only asks whether it is still there.
///
/// # Errors
/// `ESRCH`: it was reaped.
pub(crate) fn signal(pidfd: BorrowedFd<'_>, signal: libc::c_int) -> io::Result<()> {
    // SAFETY: pidfd_send_signal(2) takes integers and an optional siginfo, here a null pointer, which it accepts.
    let result = unsafe {
        libc::syscall(
            libc::SYS_pidfd_send_signal,
            pidfd.as_raw_fd(),
            signal,
            std::ptr::null::<libc::siginfo_t>(),
            0,
        )
    };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Waits until every program run that began before this call has ended: `MEMBARRIER_CMD_GLOBAL` is an RCU grace
/// period, and non-sleepable programs run inside an RCU read section.
///
/// # Errors
/// `EINVAL` on a kernel booted with `nohz_full=`, which does not offer it.
pub(crate) fn grace_period() -> io::Result<()> {
    const MEMBARRIER_CMD_GLOBAL: libc::c_int = 1;
    // SAFETY: membarrier(2) takes three integers and touches no memory of ours.
    let result = unsafe { libc::syscall(libc::SYS_membarrier, MEMBARRIER_CMD_GLOBAL, 0, 0) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Integers that both the kernel and we may access at any time, only ever atomically.
///
/// # Safety
/// An implementor must have the size and bit validity of its integer: any bytes are a value, interior mutability
/// included.
pub unsafe trait Shared {}
// SAFETY: std documents AtomicU64 as having the size and bit validity of u64.
unsafe impl Shared for AtomicU64 {}
// SAFETY: std documents AtomicU16 as having the size and bit validity of u16.
unsafe impl Shared for AtomicU16 {}

/// The contents of an array map created with `BPF_F_MMAPABLE`, shared with the programs.
#[derive(Debug)]
pub struct Mapped<A: Shared> {
    start: NonNull<A>,
    len: usize,
}

// SAFETY: the pages belong to the process, not to a thread, and are only reached through atomics.
unsafe impl<A: Shared + Send> Send for Mapped<A> {}
// SAFETY: as for Send; `&Mapped` gives out `&[A]` with `A` an atomic.
unsafe impl<A: Shared + Sync> Sync for Mapped<A> {}

impl<A: Shared> Mapped<A> {
    /// Maps the first `len` integers of the array map.
    ///
    /// # Errors
    /// `EPERM` or `ENOTSUP` if the map was not made mappable, `EINVAL` if it is shorter than `len` integers.
    pub fn new(map: BorrowedFd<'_>, len: usize) -> io::Result<Self> {
        let bytes =
            len.checked_mul(size_of::<A>()).and_then(NonZeroUsize::new).ok_or(io::ErrorKind::InvalidInput)?;
        // SAFETY: mmap with no address hint cannot replace an existing mapping. The kernel refuses lengths beyond the
        // map's pages. The pages stay until munmap in `drop`; the kernel and other processes may change them at any
        // time, which is why they are only ever seen as atomics.
        let start = unsafe {
            mmap(
                None,
                bytes,
                ProtFlags::PROT_READ | ProtFlags::PROT_WRITE,
                MapFlags::MAP_SHARED,
                map.as_fd(),
                0,
            )
        }?;
        Ok(Self { start: start.cast(), len })
    }
}

impl<A: Shared> Deref for Mapped<A> {
    type Target = [A];

    fn deref(&self) -> &[A] {
        // SAFETY: `start` is page aligned and points to `len * size_of::<A>()` mapped bytes that live as long as
        // `self`; any bytes are valid `A`s; atomics may be shared with other writers.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }
}

impl<A: Shared> Drop for Mapped<A> {
    fn drop(&mut self) {
        // SAFETY: `start` and the length are those of the mapping made in `new`; no reference outlives `self`.
        if let Err(error) = unsafe { munmap(self.start.cast(), self.len * size_of::<A>()) } {
            tracing::warn!(%error, "a map of the kernel's could not be unmapped");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{
        os::fd::{FromRawFd, OwnedFd},
        sync::atomic::Ordering,
    };

    fn pidfd(pid: u32) -> OwnedFd {
        // SAFETY: pidfd_open(2) takes two integers and returns a new descriptor, which nobody else owns.
        unsafe {
            let fd = libc::syscall(libc::SYS_pidfd_open, pid as libc::pid_t, 0);
            assert!(fd >= 0, "{}", io::Error::last_os_error());
            OwnedFd::from_raw_fd(fd as i32)
        }
    }

    #[test]
    fn a_reaped_process_is_gone_and_a_live_one_is_not() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let fd = pidfd(child.id());
        assert!(signal(fd.as_fd(), 0).is_ok());
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(signal(fd.as_fd(), 0).unwrap_err().raw_os_error(), Some(libc::ESRCH));
    }

    #[test]
    fn a_mapping_is_shared_with_the_file_behind_it() {
        use std::os::unix::fs::FileExt;
        let file = tempfile::tempfile().unwrap();
        file.set_len(4096).unwrap();
        let map: Mapped<AtomicU64> = Mapped::new(file.as_fd(), 512).unwrap();
        map[3].store(0x0102_0304_0506_0708, Ordering::Release);
        let mut bytes = [0; 8];
        file.read_exact_at(&mut bytes, 24).unwrap();
        assert_eq!(u64::from_ne_bytes(bytes), 0x0102_0304_0506_0708);
        assert!(map.get(512).is_none());
    }

    #[test]
    fn a_mapping_of_nothing_is_refused() {
        let file = tempfile::tempfile().unwrap();
        assert!(Mapped::<AtomicU64>::new(file.as_fd(), 0).is_err());
    }
}
