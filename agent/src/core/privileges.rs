//! What a process may do beyond its user id, as the kernel tells it.
//!
//! Who governs a process chooses what it sees: which files it may not open, which calls fail. A program with more rights
//! than the chooser's, confused so, is a way to those rights. So a user puts nobody under a profile who holds more, or
//! could come to hold more.

use super::{
    enroll::EnrollError,
    peer::{PeerError, alive, pid_of, read},
};
use std::{collections::BTreeSet, fs, os::fd::BorrowedFd};

/// Lines of /proc/PID/status that give capabilities. The bounding set gives none to who cannot gain any.
const SETS: [&str; 4] = ["CapInh", "CapPrm", "CapEff", "CapAmb"];
/// The word in the line `Seccomp` for a task that has filters (`SECCOMP_MODE_FILTER`).
const FILTER: &str = "2";

/// Privileges of a process (of its first thread).
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Privileges {
    /// No program that it becomes gives it more: `no_new_privs`.
    pub(crate) fixed: bool,
    /// It has a seccomp filter.
    pub(crate) filtered: bool,
    /// Capabilities, a bit each, in any of its sets but the bounding one.
    pub(crate) capabilities: u64,
    /// It is in a user namespace of its own, in which its capabilities are worth something, and here nothing.
    pub(crate) elsewhere: bool,
    /// Group ids: real, effective, saved, of the file system, supplementary.
    pub(crate) groups: BTreeSet<u32>,
}

impl Privileges {
    /// Reads what /proc says of the process behind a pidfd.
    ///
    /// # Errors
    /// As [`super::peer::Process::of`].
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

/// The lines of a status. The kernel escapes newlines in the name, so a line is a line.
fn parse(text: &str) -> Result<Privileges, &'static str> {
    let field = |key: &'static str| {
        text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':')).map(str::trim).ok_or(key)
    };
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
    let filtered = field("Seccomp")? == FILTER;
    Ok(Privileges { fixed, filtered, capabilities, elsewhere: false, groups })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;

    fn user(fixed: bool) -> Privileges {
        Privileges { fixed, filtered: false, capabilities: 0, elsewhere: false, groups: [1000, 27].into() }
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
            let expected =
                Privileges { fixed: true, filtered: true, capabilities: 8, elsewhere: false, groups };
            assert_eq!(found, expected, "{set}");
        }
        for key in ["Gid", "Groups", "CapEff", "NoNewPrivs", "Seccomp"] {
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
