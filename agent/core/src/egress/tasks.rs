//! The task of a container in whose network namespace its names are served.

use super::{Egress, EgressError, NetNamespace};
use crate::{enforcer::Enforcer, state::State};
use ringfence_bpf::{ContainerId, TaskError};
use ringfence_process::peer::{PeerError, alive, pid_of, read};
use rustix::{
    io::Errno,
    process::{Pid, PidfdFlags, pidfd_open},
};
use std::{
    collections::BTreeMap,
    fs, io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
};

/// One for each container that is not served, as far as there is one. All of them are looked for at once, the first time that any
/// is asked for: /proc may be long, and everybody waits meanwhile.
#[derive(Debug, Default)]
pub(crate) struct Tasks(Option<Result<BTreeMap<u64, OwnedFd>, Errno>>);

impl Tasks {
    /// That of a container: where its record says in which namespace it was served, one there; else the oldest, as a container's
    /// later ones may have been put into a namespace by whoever is governed.
    ///
    /// # Errors
    /// [`EgressError::Tasks`]: there may be one.
    pub(crate) fn take<E: Enforcer>(
        &mut self,
        state: &State<E>,
        container: u64,
    ) -> Result<Option<OwnedFd>, EgressError> {
        match self.0.get_or_insert_with(|| all(state)) {
            Ok(tasks) => Ok(tasks.remove(&container)),
            Err(errno) => Err(EgressError::Tasks((*errno).into())),
        }
    }
}

fn all<E: Enforcer>(state: &State<E>) -> Result<BTreeMap<u64, OwnedFd>, Errno> {
    let wanted = state.registry.iter().filter_map(|container| {
        let netns = match (&container.egress, &container.record.egress) {
            (Egress::Served(_), _) | (Egress::Closed { block: None, .. }, Some(_)) => return None,
            (_, record) => record.as_ref().map(|record| record.netns),
        };
        Some((container.record.kernel_id, netns))
    });
    let wanted: BTreeMap<u64, Option<NetNamespace>> = wanted.collect();
    live_tasks(&state.kernel, &wanted)
}

/// Whether an error says nothing of the process that was looked at: this one, or the host, has not what it takes to look.
fn is_shortage(errno: Errno) -> bool {
    matches!(errno, Errno::MFILE | Errno::NFILE | Errno::NOMEM | Errno::AGAIN)
}

/// What was found of a process. `None`: it ended meanwhile, or is not to be looked at.
fn unless_short<T>(found: Result<T, PeerError>) -> Result<Option<T>, Errno> {
    match found {
        Ok(found) => Ok(Some(found)),
        Err(PeerError::Proc { source, .. }) => not_short(&source).map(|()| None),
        Err(_) => Ok(None),
    }
}

fn not_short(error: &io::Error) -> Result<(), Errno> {
    match Errno::from_io_error(error) {
        Some(errno) if is_shortage(errno) => Err(errno),
        _ => Ok(()),
    }
}

/// A live task of each of these containers: in the network namespace beside it where one is given, else the oldest.
fn live_tasks(
    kernel: &impl Enforcer,
    wanted: &BTreeMap<u64, Option<NetNamespace>>,
) -> Result<BTreeMap<u64, OwnedFd>, Errno> {
    let mut found: BTreeMap<u64, (u64, OwnedFd)> = BTreeMap::new();
    let unreadable = |error: io::Error| Errno::from_io_error(&error).unwrap_or(Errno::IO);
    for entry in fs::read_dir("/proc").map_err(unreadable)? {
        let name = entry.map_err(unreadable)?.file_name();
        let Some(pid) = name.to_str().and_then(|name| Pid::from_raw(name.parse().ok()?)) else { continue };
        let task = match pidfd_open(pid, PidfdFlags::empty()) {
            Ok(task) => task,
            Err(errno) if is_shortage(errno) => return Err(errno),
            Err(_) => continue,
        };
        let member = match kernel.lookup(task.as_fd()) {
            Ok(Some(member)) => member,
            Err(TaskError::Kernel { source, .. }) => {
                not_short(&source)?;
                continue;
            }
            Ok(None) | Err(_) => continue,
        };
        let Some(raw) = member.container.or(member.next).map(ContainerId::raw) else { continue };
        let Some(netns) = wanted.get(&raw) else { continue };
        if let Some(netns) = netns
            && unless_short(NetNamespace::of(task.as_fd()))?.is_none_or(|its| its != *netns)
        {
            continue;
        }
        let Some(started) = unless_short(started(task.as_fd()))? else { continue };
        if found.get(&raw).is_none_or(|(before, _)| started < *before) {
            found.insert(raw, (started, task));
        }
    }
    Ok(found.into_iter().map(|(raw, (_, task))| (raw, task)).collect())
}

/// When the process behind a pidfd was started, in ticks since boot.
fn started(task: BorrowedFd<'_>) -> Result<u64, PeerError> {
    let (path, stat) = read(pid_of(task)?, "stat")?;
    let started = start_in(&stat).ok_or(PeerError::Format { path, key: "starttime" })?;
    if alive(task) { Ok(started) } else { Err(PeerError::Gone) }
}

/// Field 22 of `/proc/PID/stat`. The name, field 2, may hold anything, closing parentheses included.
fn start_in(stat: &str) -> Option<u64> {
    stat.rsplit_once(')')?.1.split_ascii_whitespace().nth(19)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state::tests::{FakeKernel, Sleeper, pidfd};
    use ringfence_bpf::Membership;

    #[test]
    fn when_a_process_was_started_is_read_behind_any_name() {
        let stat = "7 (a) R 1 2) S 1 7 7 0 -1 4194304 1 2 3 4 5 6 7 8 20 0 1 0 4242 9 10";
        assert_eq!(start_in(stat), Some(4242));
        assert_eq!(start_in("7 (a"), None);
        assert!(started(pidfd(std::process::id()).as_fd()).unwrap() > 0);
    }

    #[test]
    fn the_oldest_is_taken_whatever_its_number_and_only_there_where_it_is_said_to_be() {
        let kernel = FakeKernel::default();
        let own = pidfd(std::process::id());
        let child = Sleeper::start();
        let member = Membership { container: Some(ContainerId::from_raw(7)), next: None };
        kernel.with(|inner| inner.tags.insert(child.0.id(), member));
        let taken = |netns| {
            let found = live_tasks(&kernel, &[(7, netns)].into()).unwrap().remove(&7)?;
            pid_of(found.as_fd()).ok()
        };
        assert_eq!(taken(None), Some(child.0.id()));
        // This process is older by far: its number is the lower one as a rule, so that of two children is looked at, too.
        kernel.with(|inner| inner.tags.insert(std::process::id(), member));
        let ours = started(own.as_fd()).unwrap();
        let theirs = started(child.pidfd().as_fd()).unwrap();
        assert!(ours <= theirs);
        if ours < theirs {
            assert_eq!(taken(None), Some(std::process::id()));
        }
        let here = NetNamespace::of(own.as_fd()).unwrap();
        assert!(taken(Some(here)).is_some());
        assert_eq!(taken(Some(NetNamespace::none())), None);
    }
}
