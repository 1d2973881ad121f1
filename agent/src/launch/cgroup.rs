//! A cgroup for the container, where one may be made: for `ps`, `systemctl` and limits. Enforcement does not depend
//! on it: a task's identity is its tag, wherever it is moved.

use crate::kernel::host;
use nix::unistd::{Pid, geteuid};
use std::{
    fs, io,
    path::{Path, PathBuf},
};

/// The container's cgroup.
#[derive(Debug)]
pub(crate) struct Cgroup(PathBuf);

impl Cgroup {
    /// Makes `ringfence/ID` at the top of the hierarchy for root, `ringfence-ID` below the own cgroup for others, and
    /// moves the child there.
    ///
    /// # Errors
    /// Why there is none: no cgroup v2, or it is not ours to divide. Nothing is left behind.
    pub(crate) fn enter(child: Pid, id: &str) -> io::Result<Self> {
        let none = || io::Error::new(io::ErrorKind::NotFound, "no cgroup v2 is mounted");
        let mount = host::cgroup2().ok_or_else(none)?;
        let path = if geteuid().is_root() {
            let parent = mount.join("ringfence");
            match fs::create_dir(&parent) {
                Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
                _ => parent.join(id),
            }
        } else {
            let text = fs::read_to_string("/proc/self/cgroup")?;
            mount.join(own_cgroup(&text).ok_or_else(none)?).join(format!("ringfence-{id}"))
        };
        fs::create_dir(&path)?;
        let cgroup = Self(path);
        match fs::write(cgroup.0.join("cgroup.procs"), child.to_string()) {
            Ok(()) => Ok(cgroup),
            Err(error) => {
                cgroup.leave();
                Err(error)
            }
        }
    }

    /// Removes it, if nothing lives in it any more; what the command left running keeps it.
    pub(crate) fn leave(self) {
        let _ = fs::remove_dir(&self.0);
    }
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
    fn the_own_cgroup_is_read_from_the_v2_line() {
        assert_eq!(own_cgroup("12:pids:/x\n0::/user.slice/a.scope\n"), Some(Path::new("user.slice/a.scope")));
        assert_eq!(own_cgroup("0::/\n"), Some(Path::new("")));
        assert_eq!(own_cgroup("0::/../../x\n"), None);
        assert_eq!(own_cgroup("12:pids:/x\n"), None);
    }
}
