//! Capabilities: each role keeps the least set that works, and says why it keeps each one.
//!
//! All functions act on the calling thread, because that is what the kernel's calls do. The public ones therefore
//! refuse to run in a process that already has other threads: a role drops first and starts threads after.

use caps::{CapSet, Capability, CapsHashSet, errors::CapsError};
use nix::{
    errno::Errno,
    sys::resource::{Resource, setrlimit},
    unistd::{Gid, Uid, setgroups, setresgid, setresuid},
};
use std::{fs, io};

/// A capability that a role keeps, and the reason (SECURITY.md lists the same).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Keep {
    /// The capability.
    pub capability: Capability,
    /// What fails without it.
    pub why: &'static str,
}

/// What the core keeps once its programs are loaded and its sockets are there.
pub const CORE: &[Keep] = &[
    keep(Capability::CAP_BPF, "bpf(2): tag tasks, write network rules, take out counted repeats"),
    keep(Capability::CAP_SYS_PTRACE, "look through /proc/PID/root of a task that is being enrolled"),
    keep(Capability::CAP_DAC_READ_SEARCH, "resolve a rule's symlinks below directories closed to others"),
    keep(Capability::CAP_SETUID, "start the auditor under its own user"),
    keep(Capability::CAP_SETGID, "start the auditor under its own group"),
    keep(
        Capability::CAP_SYS_RESOURCE,
        "pass descriptors however many a container's root, who is the same user, has in flight (unix(7), ETOOMANYREFS)",
    ),
    keep(Capability::CAP_KILL, "end an auditor or a worker that does not end by itself"),
    keep(
        Capability::CAP_CHOWN,
        "give agents' sockets to their owners and logs to their workers; enrolment's socket to group ringfence, the \
         state directory to the auditor",
    ),
    keep(
        ENTERING,
        "enter the network namespace of a container that may reach names, to listen there for its egress worker; in force in the \
         thread that does, and nowhere else",
    ),
];

/// What it takes to enter another network namespace. The core holds it, and lets it [`doze`] until a thread is about to.
pub const ENTERING: Capability = Capability::CAP_SYS_ADMIN;

/// What the core needs besides while it starts. With [`CORE`] it is the bounding set of the service.
pub const CORE_START: &[Keep] = &[
    keep(Capability::CAP_PERFMON, "load LSM programs, which read kernel memory"),
    keep(Capability::CAP_NET_ADMIN, "attach the program that judges outgoing packets"),
    keep(Capability::CAP_SYSLOG, "read the addresses of rename_lock and mount_lock"),
    keep(Capability::CAP_FOWNER, "set the mode of the auditor's state directory"),
    keep(Capability::CAP_SETPCAP, "take everything else out of the bounding set"),
];

/// What every other role keeps: nothing.
pub const NONE: &[Keep] = &[];

const fn keep(capability: Capability, why: &'static str) -> Keep {
    Keep { capability, why }
}

/// Why privileges could not be given up. The caller must not go on.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The process already has other threads, which would keep their capabilities.
    #[error("cannot drop capabilities: the process already has {0} threads, and only one would drop them")]
    Threads(usize),
    /// /proc is missing or unreadable.
    #[error("cannot count the threads of this process in /proc/self/task (is /proc mounted?)")]
    Proc(#[source] io::Error),
    /// The kernel refused a change of a capability set.
    #[error("cannot set the {set} capabilities of this process")]
    Set {
        /// Which set.
        set: &'static str,
        /// Why.
        #[source]
        source: CapsError,
    },
    /// A prctl or a change of identity was refused.
    #[error("cannot {what}")]
    Os {
        /// What was tried.
        what: String,
        /// Why.
        #[source]
        source: Errno,
    },
    /// The kernel reported success, but more is held than was asked for.
    #[error("capabilities are still held after dropping them: {0}")]
    StillHeld(String),
}

/// Keeps exactly `keep` (as far as it is held) in the permitted and effective sets, empties the inheritable and
/// ambient sets, takes everything else out of the bounding set, and sets `no_new_privs`. Irrevocable.
///
/// # Errors
/// [`Error`]; the process must then end, for it may hold more than it should.
pub fn retain(keep: &[Keep]) -> Result<(), Error> {
    require_single_thread()?;
    retain_in_this_thread(keep)
}

/// The same for the calling thread alone, and what it starts: the process has others, which keep theirs.
///
/// # Errors
/// As [`retain`]; the thread must then start nothing.
pub fn retain_in_this_thread(keep: &[Keep]) -> Result<(), Error> {
    let set = |set| move |source| Error::Set { set, source };
    let wanted: CapsHashSet = keep.iter().map(|keep| keep.capability).collect();

    caps::clear(None, CapSet::Ambient).map_err(set("ambient"))?;
    // The bounding set needs CAP_SETPCAP, so it comes first. Without it there is nothing to do: no_new_privs, below,
    // keeps an exec from taking anything out of the bounding set.
    if holds(Capability::CAP_SETPCAP) {
        for capability in caps::read(None, CapSet::Bounding).map_err(set("bounding"))?.difference(&wanted) {
            caps::drop(None, CapSet::Bounding, *capability).map_err(set("bounding"))?;
        }
    }
    let permitted = caps::read(None, CapSet::Permitted).map_err(set("permitted"))?;
    let kept: CapsHashSet = permitted.intersection(&wanted).copied().collect();
    caps::set(None, CapSet::Effective, &kept).map_err(set("effective"))?;
    caps::clear(None, CapSet::Inheritable).map_err(set("inheritable"))?;
    caps::set(None, CapSet::Permitted, &kept).map_err(set("permitted"))?;
    no_new_privs()?;

    let mut extra: Vec<String> = Vec::new();
    for which in [CapSet::Permitted, CapSet::Effective, CapSet::Inheritable, CapSet::Ambient] {
        let held = caps::read(None, which).map_err(set("resulting"))?;
        extra.extend(held.difference(&kept).map(|capability| format!("{capability} ({which:?})")));
    }
    if extra.is_empty() { Ok(()) } else { Err(Error::StillHeld(extra.join(", "))) }
}

/// What tools keep where root runs them. Not among them: what lets a process look into others (CAP_PERFMON is enough to
/// read the environment of every process, whatever Landlock says), and raw sockets.
pub const TOOLS: &[Keep] = &[
    keep(Capability::CAP_CHOWN, "files are given to their owners"),
    keep(Capability::CAP_DAC_OVERRIDE, "root's tools work on other users' files"),
    keep(Capability::CAP_FOWNER, "as above: modes and times"),
    keep(Capability::CAP_FSETID, "set-group-id bits of directories survive"),
    keep(Capability::CAP_KILL, "a tool ends what it started as another user"),
    keep(Capability::CAP_NET_BIND_SERVICE, "ports below 1024, if `net` grants them"),
    keep(Capability::CAP_SETGID, "package managers and test suites change to other users"),
    keep(Capability::CAP_SETUID, "as above"),
];

/// Takes every capability that is not in a set (bit N: capability N) from this process and from what it becomes by exec: out
/// of the ambient, inheritable, effective, permitted and, where CAP_SETPCAP is held, bounding sets. Without CAP_SETPCAP
/// root's next exec gives it whatever the bounding set has.
///
/// # Errors
/// As [`retain`].
pub fn limit(allowed: u64) -> Result<(), Error> {
    require_single_thread()?;
    limit_in_thread(allowed)
}

fn limit_in_thread(allowed: u64) -> Result<(), Error> {
    let set = |set| move |source| Error::Set { set, source };
    let within = |held: CapsHashSet| -> CapsHashSet {
        held.into_iter().filter(|capability| capability.bitmask() & allowed != 0).collect()
    };
    if holds(Capability::CAP_SETPCAP) {
        let bounding = caps::read(None, CapSet::Bounding).map_err(set("bounding"))?;
        for capability in bounding.iter().filter(|capability| capability.bitmask() & allowed == 0) {
            caps::drop(None, CapSet::Bounding, *capability).map_err(set("bounding"))?;
        }
    }
    // The kernel keeps the ambient set within the permitted and the inheritable one.
    let sets = [
        (CapSet::Inheritable, "inheritable"),
        (CapSet::Effective, "effective"),
        (CapSet::Permitted, "permitted"),
    ];
    for (which, name) in sets {
        let held = caps::read(None, which).map_err(set(name))?;
        let kept = within(held.clone());
        if kept != held {
            caps::set(None, which, &kept).map_err(set(name))?;
        }
    }
    Ok(())
}

/// Gives up every capability, for good. See [`retain`].
///
/// # Errors
/// As [`retain`].
pub fn drop_all() -> Result<(), Error> {
    retain(NONE)
}

/// Becomes another user: supplementary groups, then group, then user, all three ids each, so that there is no way
/// back. A uid other than 0 also loses the permitted capabilities; the bounding set is [`retain`]'s.
///
/// # Errors
/// [`Error::Os`] names the step that was refused; the process must then end.
pub fn become_user(uid: Uid, gid: Gid, groups: &[Gid]) -> Result<(), Error> {
    let os = |what: String| move |source| Error::Os { what, source };
    setgroups(groups).map_err(os(format!("set the supplementary groups of user {uid}")))?;
    setresgid(gid, gid, gid).map_err(os(format!("become group {gid}")))?;
    setresuid(uid, uid, uid).map_err(os(format!("become user {uid}")))
}

/// No exec from here on gains privileges (setuid files, file capabilities), for this task and all it starts.
///
/// # Errors
/// [`Error::Os`], which no supported kernel gives.
pub fn no_new_privs() -> Result<(), Error> {
    nix::sys::prctl::set_no_new_privs()
        .map_err(|source| Error::Os { what: "set no_new_privs".into(), source })
}

/// Keeps others of the same uid from reading this process's memory (ptrace, /proc/PID/mem) and the kernel from
/// writing a core file of it. An exec and a change of user undo the first: call it last. What it starts writes no core file
/// either.
///
/// # Errors
/// [`Error::Os`], which no supported kernel gives.
pub fn not_dumpable() -> Result<(), Error> {
    setrlimit(Resource::RLIMIT_CORE, 0, 0)
        .map_err(|source| Error::Os { what: "forbid core files".into(), source })?;
    nix::sys::prctl::set_dumpable(false)
        .map_err(|source| Error::Os { what: "make the process not dumpable".into(), source })
}

/// Takes a capability out of force in this thread and all that it starts, which keep it for [`wake`]. Nothing where it is not held.
///
/// # Errors
/// [`Error::Set`], which no supported kernel gives.
pub fn doze(capability: Capability) -> Result<(), Error> {
    caps::drop(None, CapSet::Effective, capability).map_err(|source| Error::Set { set: "effective", source })
}

/// Puts a capability into force in this thread, which holds it.
///
/// # Errors
/// [`Error::Set`]: it does not.
pub fn wake(capability: Capability) -> Result<(), Error> {
    caps::raise(None, CapSet::Effective, capability).map_err(|source| Error::Set { set: "effective", source })
}

/// Whether this thread may use a capability now.
pub fn holds(capability: Capability) -> bool {
    caps::has_cap(None, CapSet::Effective, capability).unwrap_or(false)
}

/// All capabilities that this thread may use now.
pub fn effective() -> CapsHashSet {
    effective_within(u64::MAX)
}

/// The capabilities of a set (bit N: capability N) that this thread may use now.
pub fn effective_within(allowed: u64) -> CapsHashSet {
    let held = caps::read(None, CapSet::Effective).unwrap_or_default();
    held.into_iter().filter(|capability| capability.bitmask() & allowed != 0).collect()
}

fn require_single_thread() -> Result<(), Error> {
    match fs::read_dir("/proc/self/task").map_err(Error::Proc)?.count() {
        1 => Ok(()),
        threads => Err(Error::Threads(threads)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::thread;

    /// Capabilities are a thread's: each case drops them in a thread of its own.
    fn in_thread<T: Send + 'static>(case: impl FnOnce() -> T + Send + 'static) -> T {
        thread::spawn(case).join().unwrap()
    }

    fn held(set: CapSet) -> CapsHashSet {
        caps::read(None, set).unwrap()
    }

    #[test]
    fn retain_keeps_what_is_named_and_nothing_else() {
        let before = held(CapSet::Permitted);
        let keep = [keep(Capability::CAP_KILL, "test"), keep(Capability::CAP_CHOWN, "test")];
        let wanted: CapsHashSet = keep.iter().map(|keep| keep.capability).collect();
        in_thread(move || {
            retain_in_this_thread(&keep).unwrap();
            let expected: CapsHashSet = before.intersection(&wanted).copied().collect();
            assert_eq!(held(CapSet::Permitted), expected);
            assert_eq!(held(CapSet::Effective), expected);
            assert!(held(CapSet::Inheritable).is_empty());
            assert!(nix::sys::prctl::get_no_new_privs().unwrap());
            if before.contains(&Capability::CAP_SETPCAP) {
                assert!(held(CapSet::Bounding).is_subset(&wanted));
            }
            // Irrevocable: what was dropped cannot be taken back.
            assert!(caps::raise(None, CapSet::Permitted, Capability::CAP_SYS_ADMIN).is_err());
        });
    }

    #[test]
    fn a_limit_takes_what_is_outside_of_it_from_every_set() {
        let before = held(CapSet::Permitted);
        let allowed = Capability::CAP_KILL.bitmask() | Capability::CAP_CHOWN.bitmask();
        let inside = move |capability: &Capability| capability.bitmask() & allowed != 0;
        in_thread(move || {
            limit_in_thread(allowed).unwrap();
            let expected: CapsHashSet = before.iter().copied().filter(inside).collect();
            assert_eq!(held(CapSet::Permitted), expected);
            assert!(held(CapSet::Effective).is_subset(&expected));
            assert!(held(CapSet::Ambient).is_subset(&expected));
            assert!(held(CapSet::Inheritable).iter().all(inside));
            if before.contains(&Capability::CAP_SETPCAP) {
                assert!(held(CapSet::Bounding).iter().all(inside));
                // What it execs has no more.
                let status = std::process::Command::new("cat").arg("/proc/self/status").output().unwrap();
                let status = String::from_utf8(status.stdout).unwrap();
                let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:")).unwrap();
                let effective = u64::from_str_radix(effective.trim(), 16).unwrap();
                assert_eq!(effective & !allowed, 0);
            }
        });
    }

    #[test]
    fn what_dozes_is_held_and_in_force_where_it_is_woken() {
        let capability = Capability::CAP_KILL;
        if !holds(capability) {
            return;
        }
        in_thread(move || {
            doze(capability).unwrap();
            assert!(!holds(capability) && held(CapSet::Permitted).contains(&capability));
            in_thread(move || {
                assert!(!holds(capability), "nor in what it starts");
                wake(capability).unwrap();
                assert!(holds(capability));
            });
            assert!(!holds(capability), "it is a thread's own");
            caps::drop(None, CapSet::Permitted, capability).unwrap();
            assert!(wake(capability).is_err());
        });
    }

    #[test]
    fn nothing_is_left_after_dropping_all() {
        in_thread(|| {
            retain_in_this_thread(NONE).unwrap();
            assert!(held(CapSet::Permitted).is_empty());
            assert!(!holds(Capability::CAP_BPF));
        });
    }

    #[test]
    fn a_process_with_other_threads_is_refused() {
        // The test harness's own thread waits beside this one.
        in_thread(|| {
            let before = held(CapSet::Permitted);
            assert!(matches!(drop_all(), Err(Error::Threads(n)) if n > 1));
            assert_eq!(held(CapSet::Permitted), before, "a refusal must not drop half");
        });
    }

    #[test]
    fn each_capability_of_the_core_is_listed_once_with_a_reason() {
        let all = || CORE.iter().chain(CORE_START);
        let unique: CapsHashSet = all().map(|keep| keep.capability).collect();
        assert_eq!(unique.len(), all().count());
        assert!(all().all(|keep| !keep.why.is_empty()));
    }
}
