//! What a service manager hands to the process that it starts: descriptors from 3 on, and their names (sd_listen_fds(3)). Also a
//! single one, which this program hands to itself.
#![expect(unsafe_code, reason = "descriptors that nobody in this process owns yet, and the environment")]

use nix::{
    errno::Errno,
    fcntl::{FcntlArg, FdFlag, fcntl},
    libc,
};
use std::{
    env, fs,
    os::fd::{FromRawFd, OwnedFd, RawFd},
};

/// The first descriptor that is handed over.
const FIRST: RawFd = 3;
/// More than any service has: the limit of open files is where systemd's own ends.
const MOST: u16 = 65_000;
/// The variables that announce them.
const VARIABLES: [&str; 3] = ["LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES"];

/// Takes what the service manager handed to this very process, each with its name; an empty one where the names do not
/// fit. The variables are gone afterwards, and the descriptors are closed at exec.
///
/// To be called first of all: with a second thread it takes nothing.
pub fn take() -> Vec<(String, OwnedFd)> {
    let [pid, count, names] = VARIABLES.map(|variable| env::var(variable).ok());
    if pid.is_none() && count.is_none() && names.is_none() {
        return Vec::new();
    }
    if !matches!(fs::read_dir("/proc/self/task").map(Iterator::count), Ok(1)) {
        return Vec::new();
    }
    for variable in VARIABLES {
        // SAFETY: no other thread may use the environment meanwhile. There is none: they were counted above, and nothing
        // between there and here starts one.
        unsafe { env::remove_var(variable) };
    }
    let listed = listed(std::process::id(), pid.as_deref(), count.as_deref(), names.as_deref());
    listed.into_iter().filter_map(|(number, name)| Some((name, own(number)?))).collect()
}

/// Takes the one descriptor whose number is in `variable`, from a parent that is this program. None: there is none. The variable stays.
pub fn inherited(variable: &str) -> Option<OwnedFd> {
    own(env::var(variable).ok()?.parse().ok().filter(|number| *number >= FIRST)?)
}

/// The numbers and names that the variables speak of, if it is this process that they speak to.
fn listed(own: u32, pid: Option<&str>, count: Option<&str>, names: Option<&str>) -> Vec<(RawFd, String)> {
    if pid.and_then(|pid| pid.parse().ok()) != Some(own) {
        return Vec::new();
    }
    let count = count.and_then(|count| count.parse().ok()).filter(|count| *count <= MOST).unwrap_or(0);
    let names: Vec<&str> = names.map(|names| names.split(':').collect()).unwrap_or_default();
    let fit = names.len() == usize::from(count);
    let name = |at: u16| names.get(usize::from(at)).filter(|_| fit).copied().unwrap_or_default().to_owned();
    (0..count).map(|at| (FIRST + RawFd::from(at), name(at))).collect()
}

/// Takes a descriptor that came through exec. None: there is no such descriptor, or this process opened it.
fn own(number: RawFd) -> Option<OwnedFd> {
    // SAFETY: fcntl(2) with F_GETFD takes integers, touches no memory and fails for a number that is not open.
    let flags = Errno::result(unsafe { libc::fcntl(number, libc::F_GETFD) }).ok()?;
    // What is closed at exec cannot have come through one; all that this process opens is of that kind.
    if flags & libc::FD_CLOEXEC != 0 {
        return None;
    }
    // SAFETY: it is open, and came through exec, so that nobody in this process owns it. Marked below, nobody takes it a
    // second time; where it cannot be marked it is closed.
    let fd = unsafe { OwnedFd::from_raw_fd(number) };
    fcntl(&fd, FcntlArg::F_SETFD(FdFlag::FD_CLOEXEC)).ok()?;
    Some(fd)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::{AsRawFd, BorrowedFd, IntoRawFd};

    #[test]
    fn what_is_another_process_s_is_left_alone() {
        let named = |names: &[(RawFd, &str)]| -> Vec<(RawFd, String)> {
            names.iter().map(|(number, name)| (*number, (*name).to_owned())).collect()
        };
        let of = |pid, count, names| listed(7, pid, count, names);
        assert_eq!(of(Some("7"), Some("2"), Some("a:b")), named(&[(3, "a"), (4, "b")]));
        assert_eq!(of(Some("7"), Some("2"), Some("a")), named(&[(3, ""), (4, "")]), "whose name is it?");
        assert_eq!(of(Some("7"), Some("1"), None), named(&[(3, "")]));
        for (pid, count) in [
            (Some("8"), Some("2")),
            (None, Some("2")),
            (Some("7"), None),
            (Some("7"), Some("-1")),
            (Some("7"), Some("65001")),
            (Some("7"), Some("0")),
            (Some(""), Some("2")),
            (Some("x"), Some("x")),
        ] {
            assert_eq!(of(pid, count, Some("a:b")), [], "{pid:?} {count:?}");
        }
    }

    #[test]
    fn a_descriptor_is_taken_once_and_only_if_it_came_through_exec() {
        let (read, _write) = std::io::pipe().unwrap();
        assert!(own(read.as_raw_fd()).is_none(), "ours");
        let number = OwnedFd::from(read.try_clone().unwrap()).into_raw_fd();
        // SAFETY: nobody but this test knows the number, and it is open.
        fcntl(unsafe { BorrowedFd::borrow_raw(number) }, FcntlArg::F_SETFD(FdFlag::empty())).unwrap();
        let taken = own(number).unwrap();
        assert_eq!(taken.as_raw_fd(), number);
        assert_eq!(fcntl(&taken, FcntlArg::F_GETFD).unwrap(), libc::FD_CLOEXEC);
        assert!(own(number).is_none(), "twice");
        assert!(own(1 << 20).is_none(), "not open");
    }
}
