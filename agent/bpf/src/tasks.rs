//! Tags of tasks, as the core sees and writes them: by pidfd, which names a process for good where a pid does not.

use std::{io, num::NonZeroU64, os::fd::BorrowedFd};

use aya::maps::MapData;
use nix::errno::Errno;
use ringfence_common::task::Task;

use super::{
    ContainerId,
    sys::{self, Expect},
};

/// What a tag says of a task.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Membership {
    /// The container that the task belongs to; `None`: enrolled, not yet exec'd.
    pub container: Option<ContainerId>,
    /// The container that its next exec enters.
    pub next: Option<ContainerId>,
}

/// Why a task cannot be tagged, or its tag not be read. A failure says nothing about whether the task is governed.
#[derive(Debug, thiserror::Error)]
pub enum TaskError {
    /// Enrolled already.
    #[error("the process already belongs to container {0}")]
    Governed(ContainerId),
    /// A nested grant for a task of some other container, or of none.
    #[error("the process does not belong to container {0}, so it cannot be given a nested grant of it")]
    NotInside(ContainerId),
    /// It ended.
    #[error("the process has ended")]
    Gone,
    /// Not a pidfd.
    #[error("the descriptor is not a pidfd")]
    NotPidfd,
    /// It, or what it descends from, was tagged before.
    #[error("the process belongs to a tool call already")]
    Tagged,
    /// Threads that belong elsewhere were among those to take in.
    #[error("{0} of the threads belong to another container; they stay there")]
    Elsewhere(u64),
    /// Threads that could not be tagged, or came faster than they could be.
    #[error(
        "not every thread could be tagged ({failed} failed, {tagged} new ones in the last pass); stop the processes or freeze their cgroup first, and try again"
    )]
    #[expect(missing_docs, reason = "as their messages call them")]
    Restless { failed: u64, tagged: u64 },
    /// Too many processes.
    #[error("more processes than can be taken in at once")]
    TooMany,
    /// What is kept with a socket.
    #[error("the kernel does not say who made the connection")]
    Caller(#[source] io::Error),
    /// Anything else.
    #[error("the kernel refused to {what} a task's tag")]
    Kernel {
        /// What was tried.
        what: &'static str,
        /// Why.
        #[source]
        source: io::Error,
    },
}

impl TaskError {
    /// The error of a system call; one for a task that is gone says so.
    pub fn from_io(what: &'static str, source: io::Error) -> Self {
        match source.raw_os_error().map(Errno::from_raw) {
            Some(Errno::ESRCH) => Self::Gone,
            Some(Errno::EBADF | Errno::EINVAL) => Self::NotPidfd,
            _ => Self::Kernel { what, source },
        }
    }
}

/// The map of tags.
#[derive(Debug)]
pub(crate) struct Tags(pub MapData);

impl Tags {
    fn read(&self, pidfd: BorrowedFd<'_>) -> Result<Option<Task>, TaskError> {
        sys::task_tag(fd(&self.0), pidfd).map_err(|error| TaskError::from_io("read", error))
    }

    /// What the tag of the process says; `None`: it is not governed.
    pub(crate) fn lookup(&self, pidfd: BorrowedFd<'_>) -> Result<Option<Membership>, TaskError> {
        let id = |raw| (raw != 0).then(|| ContainerId::from_raw(raw));
        Ok(self.read(pidfd)?.map(|tag| Membership { container: id(tag.container), next: id(tag.next) }))
    }

    /// Makes a task pending: its next exec is judged by the container's policy and enters it.
    pub(crate) fn enroll(&self, pidfd: BorrowedFd<'_>, container: ContainerId) -> Result<(), TaskError> {
        let tag = Task::pending(container.raw());
        match sys::set_task_tag(fd(&self.0), pidfd, &tag, Expect::Absent) {
            Ok(()) => Ok(()),
            Err(error) if error.raw_os_error() == Some(Errno::EEXIST as i32) => {
                let there = self.lookup(pidfd)?;
                let id = there.and_then(|there| there.container.or(there.next)).unwrap_or(container);
                Err(TaskError::Governed(id))
            }
            // What task storage says of a task that is gone.
            Err(error) if error.raw_os_error() == Some(Errno::ENOENT as i32) => Err(TaskError::Gone),
            Err(error) => Err(TaskError::from_io("write", error)),
        }
    }

    /// Gives a governed task a nested grant: its next exec must be allowed by both policies and enters `inner`. Until
    /// then `outer` goes on judging it.
    pub(crate) fn nest(
        &self,
        pidfd: BorrowedFd<'_>,
        outer: ContainerId,
        inner: ContainerId,
    ) -> Result<(), TaskError> {
        let tag = self.read(pidfd)?.ok_or(TaskError::NotInside(outer))?;
        if tag.container != outer.raw() {
            return Err(TaskError::NotInside(outer));
        }
        if tag.next != 0 {
            return Err(TaskError::Governed(ContainerId::from_raw(tag.next)));
        }
        // A task cannot leave its container, so what was read still holds; only an exec of its own could enter
        // another one, and `next` says that none is due.
        let nested = Task { next: inner.raw(), ..tag };
        sys::set_task_tag(fd(&self.0), pidfd, &nested, Expect::Present)
            .map_err(|error| TaskError::from_io("write", error))
    }
}

/// The map of who made a connection.
#[derive(Debug)]
pub(crate) struct Callers(pub MapData);

impl Callers {
    /// The container whose task made the connection that `socket` accepted; `None`: no governed task did.
    pub(crate) fn of(&self, socket: BorrowedFd<'_>) -> Result<Option<ContainerId>, TaskError> {
        sys::number_of(fd(&self.0), socket)
            .map(|found| found.map(ContainerId::from_raw))
            .map_err(TaskError::Caller)
    }
}

/// The map of call tags.
#[derive(Debug)]
pub(crate) struct Calls(pub MapData);

impl Calls {
    /// The tool call that a process is tied to; `None`: none, or it has ended.
    pub(crate) fn of(&self, pidfd: BorrowedFd<'_>) -> Result<Option<NonZeroU64>, TaskError> {
        let tag = sys::number_of(fd(&self.0), pidfd).map_err(|error| TaskError::from_io("read", error))?;
        Ok(tag.and_then(NonZeroU64::new))
    }

    /// Ties a process of one thread, and all that it will start, to a tool call; once.
    pub(crate) fn tag(&self, pidfd: BorrowedFd<'_>, call: NonZeroU64) -> Result<(), TaskError> {
        sys::set_call(fd(&self.0), pidfd, call.get()).map_err(|error| {
            match error.raw_os_error().map(Errno::from_raw) {
                Some(Errno::EEXIST) => TaskError::Tagged,
                // What task storage says of a task that is gone.
                Some(Errno::ENOENT) => TaskError::Gone,
                _ => TaskError::from_io("write", error),
            }
        })
    }
}

fn fd(map: &MapData) -> BorrowedFd<'_> {
    use std::os::fd::AsFd;
    map.fd().as_fd()
}
