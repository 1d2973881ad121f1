//! Taking in processes that run already: lists them for the iterator in `ebpf/src/enroll.rs`, runs it until it finds
//! nobody left to tag.

use std::{
    fs,
    io::{self, Read},
    os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd},
    path::PathBuf,
    sync::atomic::{AtomicU64, Ordering},
};

use aya::maps::{HashMap, MapData, MapError};

use super::{
    ContainerId, TaskError,
    sys::{self, Mapped},
};

/// Most passes. Each but the last finds threads that were born to untagged threads beside the one before.
const PASSES: usize = 64;

/// A [`ringfence_common::enroll::Listed`] in words.
type ListedWords = [u64; 2];

/// The iterator and its maps.
#[derive(Debug)]
pub(crate) struct Running {
    /// Who is to be tagged.
    pub listed: HashMap<MapData, u32, ListedWords>,
    /// The words of an [`ringfence_common::enroll::Outcome`].
    pub outcome: Mapped<AtomicU64>,
    /// The iterator's pinned link.
    pub iterator: PathBuf,
}

impl Running {
    /// See [`super::Kernel::enroll_running`].
    pub(crate) fn enroll(&mut self, processes: &[OwnedFd], id: ContainerId) -> Result<u64, TaskError> {
        let done = self.list(processes, id).and_then(|()| self.tag());
        // Nobody stays listed, whatever happened: the list is what the iterator acts on.
        let keys: Vec<u32> = self.listed.keys().filter_map(Result::ok).collect();
        for key in keys {
            match self.listed.remove(&key) {
                Ok(()) | Err(MapError::KeyNotFound) => {}
                Err(error) => return Err(failed("clear the list of", error)),
            }
        }
        done
    }

    fn list(&mut self, processes: &[OwnedFd], id: ContainerId) -> Result<(), TaskError> {
        for process in processes {
            let (tgid, start) = match identity(process.as_fd()) {
                Ok(identity) => identity,
                Err(TaskError::Gone) => continue, // nothing is left to take in
                Err(error) => return Err(error),
            };
            self.listed.insert(tgid, [id.raw(), start], 0).map_err(|error| match error {
                MapError::SyscallError(error) if error.io_error.raw_os_error() == Some(nix::libc::E2BIG) => {
                    TaskError::TooMany
                }
                error => failed("list", error),
            })?;
        }
        Ok(())
    }

    fn tag(&self) -> Result<u64, TaskError> {
        let mut total = 0;
        for _ in 0..PASSES {
            let [tagged, _inside, elsewhere, failed] = self.pass()?;
            total += tagged;
            if elsewhere != 0 {
                return Err(TaskError::Elsewhere(elsewhere));
            }
            if tagged == 0 && failed == 0 {
                return Ok(total);
            }
        }
        let [tagged, _, _, failed] = self.counts();
        Err(TaskError::Restless { failed, tagged })
    }

    /// Runs the iterator once.
    fn pass(&self) -> Result<[u64; 4], TaskError> {
        self.outcome.iter().for_each(|count| count.store(0, Ordering::Relaxed));
        let mut nothing = Vec::new();
        fs::File::open(&self.iterator)
            .and_then(|mut iterator| iterator.read_to_end(&mut nothing))
            .map_err(|error| TaskError::from_io("write", error))?;
        Ok(self.counts())
    }

    fn counts(&self) -> [u64; 4] {
        std::array::from_fn(|at| self.outcome.get(at).map_or(0, |count| count.load(Ordering::Acquire)))
    }
}

fn failed(what: &'static str, error: MapError) -> TaskError {
    TaskError::Kernel { what, source: io::Error::other(error) }
}

/// The process id and start time (ticks since boot) of the process behind a pidfd, which lives while they are read.
fn identity(pidfd: BorrowedFd<'_>) -> Result<(u32, u64), TaskError> {
    let info = fs::read_to_string(format!("/proc/self/fdinfo/{}", pidfd.as_raw_fd()))
        .map_err(|error| TaskError::from_io("find", error))?;
    let pid = info.lines().find_map(|line| line.strip_prefix("Pid:")).ok_or(TaskError::NotPidfd)?;
    let pid: u32 = pid.trim().parse().map_err(|_| TaskError::Gone)?; // -1: reaped
    let stat = fs::read(format!("/proc/{pid}/stat")).map_err(|_| TaskError::Gone)?;
    let start = start_of(&stat).ok_or(TaskError::Gone)?;
    // Still there: what was read under its number was its own.
    match sys::signal(pidfd, 0) {
        Ok(()) => Ok((pid, start)),
        Err(error) if error.raw_os_error() == Some(nix::libc::EPERM) => Ok((pid, start)),
        Err(error) => Err(TaskError::from_io("find", error)),
    }
}

/// Field 22 of `/proc/PID/stat`. The name, field 2, may hold anything, closing parentheses included.
fn start_of(stat: &[u8]) -> Option<u64> {
    let name_end = stat.iter().rposition(|byte| *byte == b')')?;
    let rest = std::str::from_utf8(stat.get(name_end + 1..)?).ok()?;
    rest.split_ascii_whitespace().nth(19)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_known_by_number_and_start() {
        let pid = rustix::process::getpid();
        let fd = rustix::process::pidfd_open(pid, rustix::process::PidfdFlags::empty()).unwrap();
        let (found, start) = identity(fd.as_fd()).unwrap();
        assert_eq!(found, std::process::id());
        assert_eq!(Some(start), start_of(&fs::read("/proc/self/stat").unwrap()));
    }

    #[test]
    fn a_name_cannot_forge_a_start() {
        let fields = "S 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 4711 20 21";
        for name in ["sh", "a) S 1 2 3", "((", ") R 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 1 ("] {
            assert_eq!(start_of(format!("7 ({name}) {fields}").as_bytes()), Some(4711), "{name}");
        }
        assert_eq!(start_of(b"7 (sh"), None);
        assert_eq!(start_of(b"7 (sh) S 1"), None);
    }

    #[test]
    fn what_is_no_pidfd_and_who_is_gone_are_told_apart() {
        let file: OwnedFd = tempfile::tempfile().unwrap().into();
        assert!(matches!(identity(file.as_fd()), Err(TaskError::NotPidfd)));
        let mut child = std::process::Command::new("/bin/true").spawn().unwrap();
        let pid = rustix::process::Pid::from_child(&child);
        let fd = rustix::process::pidfd_open(pid, rustix::process::PidfdFlags::empty()).unwrap();
        child.wait().unwrap();
        assert!(matches!(identity(fd.as_fd()), Err(TaskError::Gone)));
    }
}
