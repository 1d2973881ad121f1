//! What a process may do beyond its user id, as the kernel tells it.
//!
//! Who governs a process chooses what it sees: which files it may not open, which calls fail. A program with more rights
//! than the chooser's, confused so, is a way to those rights. So a user puts nobody under a profile who holds more, or
//! could come to hold more.

use super::enroll::EnrollError;
use ringfence_process::peer::{PeerError, alive, pid_of, read};
use std::{collections::BTreeSet, fs, os::fd::BorrowedFd};

/// Lines of /proc/PID/status that give capabilities. The bounding set gives none to who cannot gain any.
const SETS: [&str; 4] = ["CapInh", "CapPrm", "CapEff", "CapAmb"];
/// The word in the line `Seccomp` for a task that has filters (`SECCOMP_MODE_FILTER`).
const FILTER: &str = "2";

/// Most looks at a process's threads, which may start others while they are read.
const MOST_LOOKS: usize = 64;

/// Privileges of a process that has one thread; of one with several, of the first.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Privileges {
    /// No program that it becomes gives it more: `no_new_privs`.
    pub fixed: bool,
    /// Capabilities, a bit each, in any of its sets but the bounding one.
    pub capabilities: u64,
    /// It is in a user namespace of its own, in which its capabilities are worth something, and here nothing.
    pub elsewhere: bool,
    /// Group ids: real, effective, saved, of the file system, supplementary.
    pub groups: BTreeSet<u32>,
}

impl Privileges {
    /// Reads what /proc says of the process behind a pidfd.
    ///
    /// # Errors
    /// As [`ringfence_process::peer::Process::of`].
    pub(crate) fn of(pidfd: BorrowedFd<'_>) -> Result<Self, PeerError> {
        let pid = pid_of(pidfd)?;
        let (path, text) = read(pid, "status")?;
        let mut found = parse(&text).map_err(|key| PeerError::Format { path, key })?;
        let namespace = |who: &str| {
            let path = format!("/proc/{who}/ns/user");
            fs::read_link(&path).map_err(|source| PeerError::Proc { path, source })
        };
        found.elsewhere = namespace(&pid.to_string())? != namespace("self")?;
        if alive(pidfd) { Ok(found) } else { Err(PeerError::Gone) }
    }

    /// Whether `asker`, who is not root, may put process `child` with these privileges under a profile.
    ///
    /// # Errors
    /// [`EnrollError::MayGain`], [`EnrollError::HoldsMore`].
    pub(crate) fn check(&self, child: u32, asker: &Self) -> Result<(), EnrollError> {
        if !self.fixed {
            return Err(EnrollError::MayGain(child));
        }
        let capabilities = self.capabilities & !if asker.elsewhere { 0 } else { asker.capabilities };
        if capabilities != 0 {
            return Err(EnrollError::HoldsMore { child, what: format!("capabilities {capabilities:#x}") });
        }
        match self.groups.difference(&asker.groups).next() {
            Some(group) => Err(EnrollError::HoldsMore { child, what: format!("group {group}") }),
            None => Ok(()),
        }
    }
}

/// Whether every thread of a process has a seccomp filter. Each has filters of its own, which those that it starts inherit and
/// none gives back. So it is asked until nobody was born or ended beside the question. `None`: they were, each time.
///
/// # Errors
/// As [`ringfence_process::peer::Process::of`].
pub(crate) fn are_filtered(pidfd: BorrowedFd<'_>) -> Result<Option<bool>, PeerError> {
    let pid = pid_of(pidfd)?;
    for _ in 0..MOST_LOOKS {
        let before = threads(pid)?;
        let mut all_read = true;
        for thread in &before {
            match read(pid, &format!("task/{thread}/status")) {
                Ok((_, text)) if field(&text, "Seccomp") == Ok(FILTER) => {}
                Ok(_) if alive(pidfd) => return Ok(Some(false)),
                Ok(_) => return Err(PeerError::Gone),
                Err(PeerError::Gone) => all_read = false,
                Err(error) => return Err(error),
            }
        }
        if all_read && threads(pid)? == before {
            return if alive(pidfd) { Ok(Some(true)) } else { Err(PeerError::Gone) };
        }
    }
    Ok(None)
}

/// The numbers of a process's threads.
fn threads(pid: u32) -> Result<BTreeSet<u32>, PeerError> {
    let path = format!("/proc/{pid}/task");
    let listed = fs::read_dir(&path)
        .and_then(|entries| entries.map(|entry| Ok(entry?.file_name())).collect::<Result<Vec<_>, _>>());
    match listed {
        Ok(names) => Ok(names.iter().filter_map(|name| name.to_str()?.parse().ok()).collect()),
        Err(source) if matches!(source.raw_os_error(), Some(nix::libc::ENOENT | nix::libc::ESRCH)) => {
            Err(PeerError::Gone)
        }
        Err(source) => Err(PeerError::Proc { path, source }),
    }
}

/// What a status says under a key.
fn field<'a>(text: &'a str, key: &'static str) -> Result<&'a str, &'static str> {
    text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':')).map(str::trim).ok_or(key)
}

/// The lines of a status. The kernel escapes newlines in the name, so a line is a line.
fn parse(text: &str) -> Result<Privileges, &'static str> {
    let field = |key| field(text, key);
    let mut groups = BTreeSet::new();
    for key in ["Gid", "Groups"] {
        for word in field(key)?.split_ascii_whitespace() {
            groups.insert(word.parse().map_err(|_| key)?);
        }
    }
    let mut capabilities = 0;
    for key in SETS {
        capabilities |= u64::from_str_radix(field(key)?, 16).map_err(|_| key)?;
    }
    let fixed = field("NoNewPrivs")? == "1";
    Ok(Privileges { fixed, capabilities, elsewhere: false, groups })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;

    fn user(fixed: bool) -> Privileges {
        Privileges { fixed, capabilities: 0, elsewhere: false, groups: [1000, 27].into() }
    }

    #[test]
    fn this_process_is_read_from_its_status() {
        let own =
            rustix::process::pidfd_open(rustix::process::getpid(), rustix::process::PidfdFlags::empty())
                .unwrap();
        let found = Privileges::of(own.as_fd()).unwrap();
        assert_eq!(found.fixed, nix::sys::prctl::get_no_new_privs().unwrap());
        assert!(!found.elsewhere);
        assert!(found.groups.contains(&rustix::process::getegid().as_raw()));
    }

    /// Its first thread takes a filter that allows everything, when told to the second one does too.
    const TWO_THREADS: &str = r#"
import ctypes, sys, threading
class Filter(ctypes.Structure):
    _fields_ = [("code", ctypes.c_ushort), ("jt", ctypes.c_ubyte), ("jf", ctypes.c_ubyte), ("k", ctypes.c_uint)]
class Program(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("filter", ctypes.POINTER(Filter))]
def take():
    program = Program(1, ctypes.pointer(Filter(6, 0, 0, 0x7fff0000)))
    libc = ctypes.CDLL(None)
    assert libc.prctl(38, 1, 0, 0, 0) == 0 and libc.prctl(22, 2, ctypes.byref(program), 0, 0) == 0
go, done = threading.Event(), threading.Event()
def second():
    go.wait(); take(); done.set(); threading.Event().wait()
threading.Thread(target=second, daemon=True).start()
take(); print("first", flush=True)
sys.stdin.readline(); go.set(); done.wait(); print("both", flush=True)
sys.stdin.readline()
"#;

    #[test]
    fn every_thread_has_to_have_a_filter() {
        use std::{
            io::{BufRead, BufReader, Write},
            process::{Command, Stdio},
        };
        // A test that is itself run under a filter gives it to every thread.
        if !fs::read_to_string("/proc/self/status").unwrap().contains("Seccomp:\t0") {
            return;
        }
        let mut child = Command::new("python3")
            .args(["-c", TWO_THREADS])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let pid = rustix::process::Pid::from_child(&child);
        let pidfd = rustix::process::pidfd_open(pid, rustix::process::PidfdFlags::empty()).unwrap();
        let mut said = BufReader::new(child.stdout.take().unwrap()).lines();
        assert_eq!(said.next().unwrap().unwrap(), "first");
        let status = fs::read_to_string(format!("/proc/{}/status", child.id())).unwrap();
        assert_eq!(field(&status, "Seccomp"), Ok(FILTER), "the control: the first thread has one");
        assert_eq!(are_filtered(pidfd.as_fd()).unwrap(), Some(false));
        let mut stdin = child.stdin.take().unwrap();
        stdin.write_all(b"go\n").unwrap();
        assert_eq!(said.next().unwrap().unwrap(), "both");
        assert_eq!(are_filtered(pidfd.as_fd()).unwrap(), Some(true));
        drop(stdin);
        child.wait().unwrap();
        assert!(matches!(are_filtered(pidfd.as_fd()), Err(PeerError::Gone)));
    }

    #[test]
    fn who_may_gain_or_holds_more_is_refused() {
        let asker = user(false);
        user(true).check(7, &asker).unwrap();
        let fewer = Privileges { groups: [1000].into(), ..user(true) };
        fewer.check(7, &asker).unwrap();
        assert!(matches!(user(false).check(7, &asker), Err(EnrollError::MayGain(7))));
        let capable = Privileges { capabilities: 1 << 21, ..user(true) };
        let error = capable.check(7, &asker).unwrap_err();
        assert!(
            matches!(&error, EnrollError::HoldsMore { child: 7, what } if what.contains("0x200000")),
            "{error}"
        );
        capable.check(7, &Privileges { capabilities: 3 << 21, ..user(false) }).unwrap();
        let all = Privileges { capabilities: u64::MAX, elsewhere: true, ..user(false) };
        assert!(capable.check(7, &all).is_err(), "what the asker may do elsewhere is nothing here");
        let grouped = Privileges { groups: [1000, 42].into(), ..user(true) };
        assert!(grouped.check(7, &asker).unwrap_err().to_string().contains("group 42"));
    }

    #[test]
    fn every_set_and_every_group_counts() {
        let text = |set: &str| {
            let sets: String =
                SETS.iter().map(|key| format!("{key}:\t{:016x}\n", u64::from(*key == set) << 3)).collect();
            format!(
                "Name:\tx\\nSeccomp:\t0\nGid:\t1\t2\t3\t4\nGroups:\t5 6 \n{sets}NoNewPrivs:\t1\nSeccomp:\t2\n"
            )
        };
        for set in SETS {
            let found = parse(&text(set)).unwrap();
            let groups = [1, 2, 3, 4, 5, 6].into();
            let expected = Privileges { fixed: true, capabilities: 8, elsewhere: false, groups };
            assert_eq!(found, expected, "{set}");
        }
        for key in ["Gid", "Groups", "CapEff", "NoNewPrivs"] {
            let without: String = text("")
                .lines()
                .filter(|line| !line.starts_with(key))
                .map(|line| format!("{line}\n"))
                .collect();
            assert_eq!(parse(&without), Err(key));
        }
        assert_eq!(parse(&text("").replace("\t1\t2", "\tx\t2")), Err("Gid"));
    }
}
