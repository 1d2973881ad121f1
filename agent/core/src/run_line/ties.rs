//! A shell of a run's container is tied to a tool call: which one is the run's word, that it is a fresh one of this very container
//! the kernel's.
//!
//! A program that the shell started first of all has connected to the run's worker and waits. What it says is not known here, nor
//! what the shell runs: the two are of the container, neither works for a call, and the shell has no other child.

use super::Whose;
use crate::{
    call_tags::{NewTagError, new_tag, one_container},
    enforcer::Enforcer,
    server::Server,
    state::State,
};
use ringfence_base::error::chain;
use ringfence_bpf::TaskError;
use ringfence_process::{
    parent::Parent,
    peer::{Peer, PeerError, Process, alive},
};
use ringfence_wire::agent::{Answer, NotTied};
use std::os::{
    fd::{AsFd, OwnedFd},
    unix::net::UnixStream,
};

/// Why a shell is not tied to a call. Sentences about it.
#[derive(Debug, thiserror::Error)]
pub(super) enum TieError {
    /// Not what the protocol wants.
    #[error("one connection comes beside a question for a tie, and {0} descriptors came")]
    Descriptors(usize),
    /// One of the two cannot be told, or has ended.
    #[error(transparent)]
    Peer(#[from] PeerError),
    /// It was another's child when what its parent runs was read.
    #[error("process {0} is not the parent of the process that connected any more")]
    Parent(u32),
    /// Threads of it would not have the tag.
    #[error("process {shell} has {threads} threads; it is tied while it has one")]
    Threads {
        /// The shell.
        shell: u32,
        /// How many.
        threads: u32,
    },
    /// Something of the command, perhaps, is under way.
    #[error(
        "process {0} has other children than the process that connected; it is tied before it starts any"
    )]
    Children(u32),
    /// What it does next is another's to choose.
    #[error("process {0} is traced")]
    Traced(u32),
    /// It is a user's who did not connect.
    #[error("process {0} does not run as the user who connected")]
    OtherUser(u32),
    /// Another container's, or none's.
    #[error("process {0} is not in the container of this run")]
    NotOurs(u32),
    /// It works for a call.
    #[error("process {0} works for a tool call already")]
    Tagged(u32),
    /// Nobody waited any more, and the command may have begun before it had its tag.
    #[error("the process that connected has ended, and the one that started it is tied too late")]
    Late {
        /// The tag that it has now.
        tag: u64,
    },
    /// Tag, identity.
    #[error(transparent)]
    Task(#[from] TaskError),
    /// No number.
    #[error(transparent)]
    New(#[from] NewTagError),
}

impl TieError {
    /// What it says of the call whose words the shell runs.
    fn kind(&self) -> NotTied {
        match self {
            Self::NotOurs(_) | Self::Tagged(_) => NotTied::Excused,
            Self::Late { tag } => NotTied::Late(*tag),
            Self::Descriptors(_)
            | Self::Peer(_)
            | Self::Parent(_)
            | Self::Threads { .. }
            | Self::Children(_)
            | Self::Traced(_)
            | Self::OtherUser(_)
            | Self::Task(_)
            | Self::New(_) => NotTied::Unfit,
        }
    }
}

/// What a question for a tie is answered with.
pub(super) fn answer(result: Result<Answer, TieError>) -> Answer {
    result.unwrap_or_else(|error| Answer::NotTied { kind: error.kind(), why: chain(&error) })
}

/// The tag that a shell was given, whatever else went wrong.
pub(super) fn tag(result: &Result<Answer, TieError>) -> Option<u64> {
    match result {
        Ok(Answer::Tagged { tag, .. }) | Err(TieError::Late { tag }) => Some(*tag),
        Ok(_) | Err(_) => None,
    }
}

impl<E: Enforcer> Server<E> {
    /// Tags the shell that started the process at the other end of the connection. `parent`: its process id.
    ///
    /// # Errors
    /// [`TieError`].
    pub(super) fn tie(&self, whose: &Whose, parent: u32, beside: Vec<OwnedFd>) -> Result<Answer, TieError> {
        let tie = self.checked(whose, parent, beside)?;
        let tag = new_tag()?;
        let state = self.state();
        // By now.
        tie.check(&state, whose)?;
        state.kernel.tag(tie.shell.pidfd.as_fd(), tag)?;
        drop(state);
        if !alive(tie.peer.pidfd.as_fd()) {
            return Err(TieError::Late { tag: tag.get() });
        }
        tracing::debug!("container {}: process {} tied to a call", whose.container, tie.shell.pid);
        Ok(Answer::Tagged { tag: tag.get(), container: whose.container.clone() })
    }

    /// Whether it would have been tagged.
    ///
    /// # Errors
    /// [`TieError`]: it would not.
    pub(super) fn could_be_tied(
        &self,
        whose: &Whose,
        parent: u32,
        beside: Vec<OwnedFd>,
    ) -> Result<Answer, TieError> {
        self.checked(whose, parent, beside)?;
        Ok(Answer::CouldBeTied)
    }

    /// A shell that may be tied. Whose it is comes first: what another container's does says nothing of a call, whatever else is
    /// wrong with it.
    fn checked(&self, whose: &Whose, parent: u32, beside: Vec<OwnedFd>) -> Result<Tie, TieError> {
        let tie = Tie::of(parent, beside)?;
        tie.check(&self.state(), whose)?;
        tie.is_fresh()?;
        Ok(tie)
    }
}

/// A shell and what it started.
struct Tie {
    connection: UnixStream,
    /// The process that connected.
    peer: Peer,
    /// Its parent.
    shell: Parent,
}

impl Tie {
    /// The two, as far as they can be told.
    fn of(parent: u32, beside: Vec<OwnedFd>) -> Result<Self, TieError> {
        let [connection] =
            <[OwnedFd; 1]>::try_from(beside).map_err(|all| TieError::Descriptors(all.len()))?;
        let connection = UnixStream::from(connection);
        let peer = Peer::of(&connection)?;
        let shell = Parent::of(peer.pidfd.as_fd())?;
        if shell.pid != parent {
            return Err(TieError::Parent(parent));
        }
        Ok(Self { connection, peer, shell })
    }

    /// Whether what /proc has of them is as it has to be.
    fn is_fresh(&self) -> Result<(), TieError> {
        let Self { peer, shell, .. } = self;
        let [of_peer, of_shell] = [&peer.pidfd, &shell.pidfd].map(|pidfd| Process::of(pidfd.as_fd()));
        check(peer, &of_peer?, &of_shell?, &shell.children()?)?;
        // The two were parent and child all along.
        if !shell.is_still(peer.pidfd.as_fd())? {
            return Err(TieError::Parent(shell.pid));
        }
        Ok(())
    }

    /// What the kernel has of them.
    fn check<E: Enforcer>(&self, state: &State<E>, whose: &Whose) -> Result<(), TieError> {
        let Self { connection, peer, shell } = self;
        let of_peer = state.kernel.belongs(connection.as_fd(), peer.pidfd.as_fd())?;
        let of_shell = state.kernel.lookup(shell.pidfd.as_fd())?;
        let container = one_container(of_peer, of_shell).and_then(|id| state.registry.by_kernel_id(id.raw()));
        if container.is_none_or(|container| container.record.id != whose.container) {
            return Err(TieError::NotOurs(shell.pid));
        }
        for (pid, pidfd) in [(peer.pid, &peer.pidfd), (shell.pid, &shell.pidfd)] {
            if state.kernel.call(pidfd.as_fd())?.is_some() {
                return Err(TieError::Tagged(pid));
            }
        }
        Ok(())
    }
}

/// Whether a shell may be tied, as far as /proc says.
fn check(peer: &Peer, of_peer: &Process, shell: &Process, children: &[u32]) -> Result<(), TieError> {
    if let Some(traced) = [of_peer, shell].into_iter().find(|process| process.tracer != 0) {
        return Err(TieError::Traced(traced.pid));
    }
    if shell.threads != 1 {
        return Err(TieError::Threads { shell: shell.pid, threads: shell.threads });
    }
    if shell.uids.iter().any(|uid| *uid != peer.uid) {
        return Err(TieError::OtherUser(shell.pid));
    }
    if children != [peer.pid] {
        return Err(TieError::Children(shell.pid));
    }
    Ok(())
}

#[cfg(test)]
mod tests;
