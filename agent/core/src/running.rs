//! Processes that run already: finding all of a tree or cgroup, and taking them in together.
//!
//! A list of processes is old when it is read: a process may have forked beside it. Whoever is in already has governed
//! children only, so listing and tagging is repeated until a list brings nobody new. A cgroup is frozen meanwhile.

use super::{enroll::EnrollError, privileges::are_filtered};
use ringfence_process::peer::{PeerError, Process, alive, pid_of};
use ringfence_sandbox::host;
use rustix::{
    io::Errno,
    process::{Pid, PidfdFlags, pidfd_open},
};
use std::{
    collections::{BTreeMap, BTreeSet},
    fs, io,
    os::fd::{AsFd, OwnedFd},
    path::{Path, PathBuf},
    thread,
    time::Duration,
};

/// Deepest cgroup below the one that was named.
const MAX_DEPTH: usize = 32;
/// How long a cgroup has to freeze.
const FREEZE: Duration = Duration::from_secs(2);

/// What is to be taken in.
#[derive(Debug)]
pub enum Target {
    /// A process and its descendants.
    Tree(OwnedFd),
    /// The processes in a cgroup and below: its directory, and its path as `/proc/PID/cgroup` has it.
    Cgroup(PathBuf, PathBuf),
}

impl Target {
    /// A cgroup by its path.
    ///
    /// # Errors
    /// If it is not below the cgroup mount, or is the mount itself.
    pub fn cgroup(path: &str) -> Result<Self, EnrollError> {
        let bad = |source| EnrollError::Cgroup { path: path.into(), source };
        let mount = host::cgroup2().ok_or_else(|| bad(io::Error::other("cgroup v2 is not mounted")))?;
        let path = fs::canonicalize(path).map_err(bad)?;
        match path.strip_prefix(&mount) {
            Ok(below) if !below.as_os_str().is_empty() && path.join("cgroup.procs").is_file() => {
                let below = Path::new("/").join(below);
                Ok(Self::Cgroup(path, below))
            }
            _ => {
                let reason = format!("it is not a cgroup below {}", mount.display());
                Err(bad(io::Error::new(io::ErrorKind::InvalidInput, reason)))
            }
        }
    }

    /// Every process of it that lives now.
    ///
    /// # Errors
    /// If the process has ended, the cgroup is gone or empty, or /proc cannot be read.
    pub fn processes(&self) -> Result<Vec<OwnedFd>, EnrollError> {
        match self {
            Self::Tree(root) => tree(root),
            Self::Cgroup(path, below) => cgroup(path, below),
        }
    }

    /// Keeps its processes from running as long as the result lives, where that can be done.
    pub fn hold(&self) -> Option<Frozen> {
        match self {
            Self::Tree(_) => None,
            Self::Cgroup(path, _) => Frozen::freeze(path),
        }
    }
}

fn tree(root: &OwnedFd) -> Result<Vec<OwnedFd>, EnrollError> {
    let first = Process::of(root.as_fd())?;
    let mut children: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
    for (pid, parent) in parents()? {
        children.entry(parent).or_default().push(pid);
    }
    let mut found = vec![root.try_clone().map_err(EnrollError::Listing)?];
    let (mut seen, mut waiting) = (BTreeSet::from([first.pid]), vec![first.pid]);
    while let Some(parent) = waiting.pop() {
        for pid in children.remove(&parent).unwrap_or_default() {
            // Looked at again by its pidfd: the number may name another process by now.
            if let Some((pidfd, process)) = open(pid)?
                && process.parent == parent
                && seen.insert(pid)
            {
                found.push(pidfd);
                waiting.push(pid);
            }
        }
    }
    Ok(found)
}

/// Every process and its parent, from /proc.
fn parents() -> Result<Vec<(u32, u32)>, EnrollError> {
    let mut all = Vec::new();
    for entry in fs::read_dir("/proc").map_err(EnrollError::Listing)? {
        let name = entry.map_err(EnrollError::Listing)?.file_name();
        let Some(pid) = name.to_str().and_then(|name| name.parse::<u32>().ok()) else { continue };
        // One that has ended since is no error.
        let Ok(stat) = fs::read(format!("/proc/{pid}/stat")) else { continue };
        all.extend(parent_of(&stat).map(|parent| (pid, parent)));
    }
    Ok(all)
}

/// Field 4 of `/proc/PID/stat`. The name, field 2, may hold anything, closing parentheses included.
fn parent_of(stat: &[u8]) -> Option<u32> {
    let end = stat.iter().rposition(|byte| *byte == b')')?;
    std::str::from_utf8(stat.get(end + 1..)?).ok()?.split_ascii_whitespace().nth(1)?.parse().ok()
}

fn cgroup(path: &Path, below: &Path) -> Result<Vec<OwnedFd>, EnrollError> {
    let mut pids = BTreeSet::new();
    let gone = |source| EnrollError::Cgroup { path: path.to_owned(), source };
    collect(path, 0, &mut pids).map_err(gone)?;
    let mut found = Vec::new();
    for pid in pids {
        if let Some((pidfd, _)) = open(pid)?
            && is_in(pid, below)
            && alive(pidfd.as_fd())
        {
            found.push(pidfd);
        }
    }
    if found.is_empty() {
        return Err(gone(io::Error::new(io::ErrorKind::NotFound, "no process is in it")));
    }
    Ok(found)
}

fn collect(path: &Path, depth: usize, pids: &mut BTreeSet<u32>) -> io::Result<()> {
    match fs::read_to_string(path.join("cgroup.procs")) {
        Ok(text) => {
            pids.extend(text.lines().filter_map(|line| line.parse::<u32>().ok()).filter(|pid| *pid != 0))
        }
        // A threaded cgroup: its processes stand in the one above.
        Err(error) if depth > 0 && Errno::from_io_error(&error) == Some(Errno::OPNOTSUPP) => {}
        // One below that was removed meanwhile.
        Err(error) if depth > 0 && error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error),
    }
    if depth == MAX_DEPTH {
        return Err(io::Error::other(format!("it is more than {MAX_DEPTH} deep")));
    }
    for entry in fs::read_dir(path)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            collect(&entry.path(), depth + 1, pids)?;
        }
    }
    Ok(())
}

fn is_in(pid: u32, cgroup: &Path) -> bool {
    let text = fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap_or_default();
    text.lines().filter_map(|line| line.strip_prefix("0::")).any(|path| Path::new(path).starts_with(cgroup))
}

/// A process by its number; `None`: it has ended.
fn open(pid: u32) -> Result<Option<(OwnedFd, Process)>, EnrollError> {
    let Some(id) = i32::try_from(pid).ok().and_then(Pid::from_raw) else { return Ok(None) };
    let pidfd = match pidfd_open(id, PidfdFlags::empty()) {
        Ok(pidfd) => pidfd,
        Err(Errno::SRCH) => return Ok(None),
        Err(error) => return Err(EnrollError::Listing(error.into())),
    };
    match Process::of(pidfd.as_fd()) {
        Ok(process) => Ok(Some((pidfd, process))),
        Err(PeerError::Gone) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Refuses a list that holds what must stay ungoverned: the first process, this one, the auditor.
///
/// # Errors
/// [`EnrollError::OurOwn`] names the process.
pub fn check(processes: &[OwnedFd], auditor: Option<u32>) -> Result<(), EnrollError> {
    let own = [Some(1), Some(std::process::id()), auditor];
    for process in processes {
        match pid_of(process.as_fd()) {
            Ok(pid) if own.contains(&Some(pid)) => return Err(EnrollError::OurOwn(pid)),
            Ok(_) | Err(PeerError::Gone) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

/// On a kernel with system calls that are in no table (`calls`), who runs already must have a list of another engine's that
/// refuses them: a filter cannot be given to another process, and no program judges a call as such.
///
/// # Errors
/// [`EnrollError::NoFilter`] names a process with a thread that has none.
pub(crate) fn check_filters(processes: &[OwnedFd], calls: &[String]) -> Result<(), EnrollError> {
    if calls.is_empty() {
        return Ok(());
    }
    for process in processes {
        match are_filtered(process.as_fd()) {
            Ok(Some(true)) | Err(PeerError::Gone) => {}
            Ok(_) => {
                let (child, calls) = (pid_of(process.as_fd())?, calls.join(", "));
                return Err(EnrollError::NoFilter { child, calls });
            }
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

/// Writes into a file of the kernel's: one that is there.
fn write(file: &Path, text: &[u8]) -> io::Result<()> {
    io::Write::write_all(&mut fs::OpenOptions::new().write(true).open(file)?, text)
}

/// A cgroup that is frozen until this is dropped.
#[derive(Debug)]
pub struct Frozen {
    file: PathBuf,
}

impl Frozen {
    /// Freezes a cgroup. `None`: it was frozen already (and stays so), or cannot be.
    fn freeze(path: &Path) -> Option<Self> {
        let file = path.join("cgroup.freeze");
        if fs::read_to_string(&file).is_ok_and(|text| text.trim() == "1") || write(&file, b"1").is_err() {
            return None;
        }
        let frozen = Self { file };
        let step = Duration::from_millis(10);
        for _ in 0..FREEZE.as_millis() / step.as_millis() {
            let events = fs::read_to_string(path.join("cgroup.events")).unwrap_or_default();
            if events.lines().any(|line| line == "frozen 1") {
                return Some(frozen);
            }
            thread::sleep(step);
        }
        tracing::warn!("{} does not freeze; its processes are taken in as they run", path.display());
        None
    }
}

impl Drop for Frozen {
    fn drop(&mut self) {
        if let Err(error) = write(&self.file, b"0")
            && error.kind() != io::ErrorKind::NotFound
        {
            tracing::error!("cannot thaw {}: {error}; write 0 into it", self.file.display());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{
        io::{BufRead, BufReader},
        process::{Command, Stdio},
    };

    fn pids(processes: &[OwnedFd]) -> BTreeSet<u32> {
        processes.iter().map(|process| pid_of(process.as_fd()).unwrap()).collect()
    }

    #[test]
    fn a_tree_is_a_process_and_all_below_it() {
        let script = "sleep 60 & sh -c 'sleep 60 & echo $!; wait' & wait";
        let mut command = Command::new("sh");
        let mut child =
            command.args(["-c", script]).stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let (root, _) = open(child.id()).unwrap().unwrap();
        let target = Target::Tree(root);
        let found = target.processes().unwrap();
        let all = pids(&found);
        assert_eq!(all.len(), 4, "{all:?}");
        assert!(all.contains(&child.id()) && all.contains(&line.trim().parse().unwrap()));
        assert!(!all.contains(&std::process::id()));
        check(&found, None).unwrap();
        assert!(matches!(check(&found, Some(child.id())), Err(EnrollError::OurOwn(_))));
        for process in &found {
            rustix::process::pidfd_send_signal(process, rustix::process::Signal::KILL).unwrap();
        }
        child.wait().unwrap();
        assert!(matches!(target.processes(), Err(EnrollError::Peer(PeerError::Gone))));
    }

    #[test]
    fn this_process_is_never_taken_in() {
        let (own, _) = open(std::process::id()).unwrap().unwrap();
        let found = Target::Tree(own).processes().unwrap();
        assert!(matches!(check(&found, None), Err(EnrollError::OurOwn(pid)) if pid == std::process::id()));
    }

    #[test]
    fn a_name_cannot_forge_a_parent() {
        for name in ["sh", "a) S 1 2", "((", ") R 9 9 ("] {
            assert_eq!(parent_of(format!("7 ({name}) S 42 7 7").as_bytes()), Some(42), "{name}");
        }
        assert_eq!(parent_of(b"7 (sh"), None);
        assert_eq!(parent_of(b"7 (sh) S"), None);
    }

    #[test]
    fn what_is_no_cgroup_is_refused_by_name() {
        let mount = host::cgroup2().unwrap_or_else(|| "/sys/fs/cgroup".into());
        let (mount, around) = (mount.display().to_string(), mount.join(".").display().to_string());
        for path in ["/", "/tmp", &mount, &around, "/nonexistent/group"] {
            let error = Target::cgroup(path).unwrap_err().message();
            assert!(error.contains(path), "{error}");
        }
    }

    #[test]
    fn a_cgroup_is_found_below_the_mount_wherever_that_is() {
        let Some(mount) = host::cgroup2() else { return };
        let groups = fs::read_dir(&mount).unwrap().flatten().map(|entry| entry.path());
        for group in groups.filter(|path| path.join("cgroup.procs").is_file()) {
            let target = Target::cgroup(group.to_str().unwrap()).unwrap();
            let Target::Cgroup(path, below) = target else { panic!("{target:?}") };
            assert_eq!(
                (path.as_path(), mount.join(below.strip_prefix("/").unwrap())),
                (group.as_path(), group.clone())
            );
        }
    }
}
