//! A cgroup for the container, where one may be made: for `ps`, `systemctl` and limits. Enforcement does not depend
//! on it: a task's identity is its tag, wherever it is moved.

use ringfence_sandbox::host;
use rustix::fs::{Mode, OFlags, open};
use std::{
    fs, io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    path::{Path, PathBuf},
};

/// Another command's cgroups of the same name that are passed over.
const ATTEMPTS: u32 = 100;

/// The container's cgroup.
#[derive(Debug)]
pub(crate) struct Cgroup {
    path: PathBuf,
    directory: OwnedFd,
}

impl Cgroup {
    /// Makes `ringfence-NAME` below the own cgroup, whose limits hold for it as they do for us; with a number behind it if
    /// that is taken. The command is born in it: to move it there later would wait for every processor, some ten
    /// milliseconds.
    ///
    /// # Errors
    /// Why there is none: no cgroup v2, or it is not ours to divide.
    pub(crate) fn make(name: &str) -> io::Result<Self> {
        let none = || io::Error::new(io::ErrorKind::NotFound, "no cgroup v2 is mounted");
        let mount = host::cgroup2().ok_or_else(none)?;
        let text = fs::read_to_string("/proc/self/cgroup")?;
        let path = free(&mount.join(own_cgroup(&text).ok_or_else(none)?).join(format!("ringfence-{name}")))?;
        match open(&path, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty()) {
            Ok(directory) => Ok(Self { path, directory }),
            Err(errno) => {
                let _ = fs::remove_dir(&path);
                Err(errno.into())
            }
        }
    }

    /// Removes it, if nothing lives in it any more; what the command left running keeps it.
    pub(crate) fn leave(self) {
        let _ = fs::remove_dir(&self.path);
    }
}

impl AsFd for Cgroup {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.directory.as_fd()
    }
}

/// A name that is safe as a part of a cgroup's: profiles may be called anything.
pub(crate) fn plain(name: &str) -> String {
    name.chars().map(|c| if c.is_ascii_alphanumeric() || c == '-' { c } else { '_' }).take(64).collect()
}

/// Makes a directory of this name, or of the next that is free: what a command left running keeps its cgroup.
fn free(stem: &Path) -> io::Result<PathBuf> {
    let mut path = stem.to_owned();
    for number in 2..ATTEMPTS {
        match fs::create_dir(&path) {
            Ok(()) => return Ok(path),
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
            Err(_) => {
                path = stem.to_owned();
                path.as_mut_os_string().push(format!("-{number}"));
            }
        }
    }
    Err(io::ErrorKind::AlreadyExists.into())
}

/// The path below the mount point from `/proc/self/cgroup`, whose v2 line is `0::/path`.
fn own_cgroup(text: &str) -> Option<&Path> {
    let path = Path::new(text.lines().find_map(|line| line.strip_prefix("0::/"))?);
    // Outside this cgroup namespace the kernel writes `/..`.
    path.components().all(|part| matches!(part, std::path::Component::Normal(_))).then_some(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_that_is_taken_gets_a_number() {
        let dir = tempfile::tempdir().unwrap();
        let stem = dir.path().join("coder-7");
        let names: Vec<_> = (0..3).map(|_| free(&stem).unwrap().file_name().unwrap().to_owned()).collect();
        assert_eq!(names, ["coder-7", "coder-7-2", "coder-7-3"]);
        assert!(free(&dir.path().join("none/here")).is_err());
    }

    #[test]
    fn the_own_cgroup_is_read_from_the_v2_line() {
        assert_eq!(own_cgroup("12:pids:/x\n0::/user.slice/a.scope\n"), Some(Path::new("user.slice/a.scope")));
        assert_eq!(own_cgroup("0::/\n"), Some(Path::new("")));
        assert_eq!(own_cgroup("0::/../../x\n"), None);
        assert_eq!(own_cgroup("12:pids:/x\n"), None);
    }
}
