//! The parent of a process, held by a pidfd: what it runs, and what else it started.

use crate::peer::{Fork, PeerError, alive, open, read, read_bytes};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// A process that was found to be another's parent.
#[derive(Debug)]
pub struct Parent {
    /// Process id.
    pub pid: u32,
    /// The process.
    pub pidfd: OwnedFd,
}

impl Parent {
    /// The parent of the process behind a pidfd, which was alive as that when it was looked for.
    ///
    /// # Errors
    /// [`PeerError`]; `Gone` where one of the two has ended, or another is the parent by now.
    pub fn of(child: BorrowedFd<'_>) -> Result<Self, PeerError> {
        let pid = Fork::of(child)?.parent;
        let number = i32::try_from(pid).ok().filter(|pid| *pid > 0).ok_or(PeerError::Gone)?;
        let parent = Self { pid, pidfd: open(number)? };
        // Its number was its own while the child had it as its parent.
        if parent.is_still(child)? { Ok(parent) } else { Err(PeerError::Gone) }
    }

    /// Whether it is alive, and the parent of that process.
    ///
    /// # Errors
    /// [`PeerError`]; `Gone` where the child has ended.
    pub fn is_still(&self, child: BorrowedFd<'_>) -> Result<bool, PeerError> {
        Ok(Fork::of(child)?.parent == self.pid && alive(self.pidfd.as_fd()))
    }

    /// Children of its first thread, those that nobody has waited for included. Exact where it has one thread and starts nothing
    /// meanwhile.
    ///
    /// # Errors
    /// [`PeerError`]; `Gone` also on a kernel that does not list children (`CONFIG_PROC_CHILDREN`).
    pub fn children(&self) -> Result<Vec<u32>, PeerError> {
        let (path, list) = read(self.pid, &format!("task/{}/children", self.pid))?;
        let children: Option<Vec<u32>> =
            list.split_ascii_whitespace().map(|child| child.parse().ok()).collect();
        let children = children.ok_or(PeerError::Format { path, key: "children" })?;
        if alive(self.pidfd.as_fd()) { Ok(children) } else { Err(PeerError::Gone) }
    }

    /// Its arguments, the first being its name: what the process itself chose.
    ///
    /// # Errors
    /// [`PeerError`].
    pub fn arguments(&self) -> Result<Vec<Vec<u8>>, PeerError> {
        let (_, bytes) = read_bytes(self.pid, "cmdline")?;
        if !alive(self.pidfd.as_fd()) {
            return Err(PeerError::Gone);
        }
        let bytes = bytes.strip_suffix(&[0]).unwrap_or(&bytes);
        Ok(bytes.split(|byte| *byte == 0).map(<[u8]>::to_vec).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{
        io::{BufRead, BufReader, Write},
        process::{Child, Command, Stdio},
    };

    /// A shell with one child that reads, and that child's process id.
    fn shell() -> (Child, u32) {
        let mut shell = Command::new("sh")
            .args(["-c", "sh -c 'echo $$; read x'; exit 3", "name", "a b", ""])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(shell.stdout.take().unwrap()).read_line(&mut line).unwrap();
        (shell, line.trim().parse().unwrap())
    }

    #[test]
    fn a_parent_is_found_with_what_it_runs_and_what_it_started() {
        let (mut shell, child) = shell();
        let pidfd = open(child.try_into().unwrap()).unwrap();
        let parent = Parent::of(pidfd.as_fd()).unwrap();
        assert_eq!(parent.pid, shell.id());
        assert_eq!(parent.children().unwrap(), [child]);
        let arguments = parent.arguments().unwrap();
        assert_eq!(arguments[0], b"sh");
        assert_eq!(arguments[3..], [b"name".to_vec(), b"a b".to_vec(), Vec::new()]);
        assert!(parent.is_still(pidfd.as_fd()).unwrap());
        shell.stdin.take().unwrap().write_all(b"x\n").unwrap();
        shell.wait().unwrap();
        assert!(matches!(parent.is_still(pidfd.as_fd()), Err(PeerError::Gone)));
        assert!(parent.arguments().is_err() && parent.children().is_err());
        assert!(matches!(Parent::of(pidfd.as_fd()), Err(PeerError::Gone)));
    }

    #[test]
    fn another_process_is_not_taken_for_the_parent() {
        let (mut shell, child) = shell();
        let pidfd = open(child.try_into().unwrap()).unwrap();
        let own = std::process::id();
        let other = Parent { pid: own, pidfd: open(own.try_into().unwrap()).unwrap() };
        assert!(!other.is_still(pidfd.as_fd()).unwrap());
        drop(shell.stdin.take());
        shell.wait().unwrap();
    }
}
