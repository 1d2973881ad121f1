//! What a worker asks of the core: who is at the other end of a connection, and a tag for a tool call's process.
//!
//! Both are answered in the kernel's terms. A worker names nobody: it hands over descriptors.

use super::{plan::Plan, supervisor::WorkerSupervisor};
use crate::{
    call_tags::{NewTagError, new_tag, one_container},
    containers::Container,
    enforcer::Enforcer,
    server::Server,
};
use ringfence_base::{clock::now_micros, error::chain};
use ringfence_bpf::TaskError;
use ringfence_process::peer::{Fork, Peer, PeerError};
use ringfence_wire::{
    agent::{Answer, PeerContainer, PeerIdentity, ToCore, ToWorker},
    audit::{AgentReport, Payload},
    conn::Conn,
    frame::FrameError,
};
use std::os::{
    fd::{AsFd, OwnedFd},
    unix::net::UnixStream,
};

/// Why a process was not tagged. Sentences are about it, its parent and its container.
#[derive(Debug, thiserror::Error)]
pub(crate) enum TagError {
    /// Not what the protocol wants.
    #[error(
        "a pidfd and the runtime's connection come beside a question for a tag, and {0} descriptors came"
    )]
    Descriptors(usize),
    /// The process or the runtime cannot be told.
    #[error(transparent)]
    Peer(#[from] PeerError),
    /// Somebody else's child.
    #[error("process {child} is not a child of the runtime, process {runtime}")]
    NotChild {
        /// The process.
        child: u32,
        /// The runtime.
        runtime: u32,
    },
    /// The runtime itself or a thread's doing.
    #[error("process {child} has {threads} threads; it is tagged while it has one")]
    Threads {
        /// The process.
        child: u32,
        /// How many.
        threads: u32,
    },
    /// Too late.
    #[error("process {0} has exec'd already; it is tagged between fork and exec")]
    Execed(u32),
    /// Nothing of it is recorded.
    #[error("process {0} is in no container of this agent's, so nothing of it is recorded")]
    NotOurs(u32),
    /// Tag, identity.
    #[error(transparent)]
    Task(#[from] TaskError),
    /// No random number.
    #[error(transparent)]
    New(#[from] NewTagError),
}

/// What one worker asks and reports.
pub(super) struct WorkerRequests<'a, E> {
    pub(super) server: &'a Server<E>,
    pub(super) plan: &'a Plan,
    pub(super) supervisor: &'a WorkerSupervisor,
    /// The worker's user id.
    pub(super) uid: u32,
}

impl<E: Enforcer> WorkerRequests<'_, E> {
    /// Answers what the worker says.
    ///
    /// # Errors
    /// The answer cannot be sent.
    pub(super) fn answer(
        &self,
        conn: &mut Conn,
        said: ToCore,
        descriptors: Vec<OwnedFd>,
    ) -> Result<(), FrameError> {
        let (number, answer) = match said {
            ToCore::Speaker { number } => (number, self.speaker(descriptors).map(Answer::Speaker)),
            ToCore::Tag { number } => (number, self.tag(descriptors).map_err(|error| chain(&error))),
            ToCore::ToolsLine { number } => {
                return match self.supervisor.tools_line(self.plan.owner()) {
                    Ok(line) => {
                        let answer = ToWorker::Answer { number, answer: Answer::ToolsLine };
                        conn.send_with_descriptors(&answer, &[line.as_fd()])
                    }
                    Err(why) => conn.send(&ToWorker::Answer { number, answer: Answer::Refused(why) }),
                };
            }
            said => {
                self.note(said);
                return Ok(());
            }
        };
        let answer = answer.unwrap_or_else(Answer::Refused);
        // A tool waits for it, and nobody for the report, which still goes before all that the worker says of the tag.
        let tagged = if let Answer::Tagged { tag, container } = &answer {
            Some(Payload::Tagged { tag: *tag, container: container.clone() })
        } else {
            None
        };
        let sent = conn.send(&ToWorker::Answer { number, answer });
        tagged.into_iter().for_each(|payload| self.report(payload));
        sent
    }

    /// Notes what has no answer.
    fn note(&self, said: ToCore) {
        match said {
            ToCore::Ready => self.supervisor.set_ready(),
            ToCore::Failed(why) => self.supervisor.set_complaint(&why),
            ToCore::Status(counts) => self.supervisor.set_counts(counts),
            ToCore::Report(event) => self.report(Payload::Event(event)),
            // A fresh key is SIGHUP's to bring, which restarts the worker.
            ToCore::KeyRefused | ToCore::Speaker { .. } | ToCore::Tag { .. } | ToCore::ToolsLine { .. } => {}
            // A run's worker alone asks so, and not here.
            ToCore::CommandLine { .. }
            | ToCore::Tie { .. }
            | ToCore::CouldBeTied { .. }
            | ToCore::DeniedSoFar { .. }
            | ToCore::DenialsOf { .. }
            | ToCore::Behind { .. } => {}
        }
    }

    fn report(&self, payload: Payload) {
        let agent = self.plan.config.name.clone();
        let report =
            AgentReport { agent, uid: self.plan.owner(), container: None, at: now_micros(), payload };
        if !self.server.report(&report) {
            tracing::debug!(
                "agent {}: a report is lost: it is too long, or the auditor takes too few",
                self.plan.config.name
            );
        }
    }

    fn speaker(&self, descriptors: Vec<OwnedFd>) -> Result<PeerIdentity, String> {
        let [connection] = <[OwnedFd; 1]>::try_from(descriptors)
            .map_err(|all| format!("one connection comes beside a question, and {} came", all.len()))?;
        let connection = UnixStream::from(connection);
        let peer = Peer::of(&connection).map_err(|error| chain(&error))?;
        let state = self.server.state();
        let membership =
            state.kernel.belongs(connection.as_fd(), peer.pidfd.as_fd()).map_err(|error| chain(&error))?;
        let container =
            membership.and_then(|membership| membership.container.or(membership.next)).map(|id| match state
                .registry
                .by_kernel_id(id.raw())
            {
                Some(container) => {
                    PeerContainer { id: container.record.id.clone(), own: self.is_own(container) }
                }
                None => PeerContainer { id: id.to_string(), own: false },
            });
        Ok(PeerIdentity { pid: peer.pid, uid: peer.uid, container })
    }

    fn is_own(&self, container: &Container) -> bool {
        self.plan.is_of(&container.record.profile, &container.record.file)
    }

    fn tag(&self, descriptors: Vec<OwnedFd>) -> Result<Answer, TagError> {
        let [process, connection] =
            <[OwnedFd; 2]>::try_from(descriptors).map_err(|all| TagError::Descriptors(all.len()))?;
        let connection = UnixStream::from(connection);
        let runtime = Peer::of(&connection)?;
        let child = Fork::of(process.as_fd())?;
        check(&runtime, &child)?;
        let tag = new_tag()?;
        let state = self.server.state();
        let of_runtime = state.kernel.belongs(connection.as_fd(), runtime.pidfd.as_fd())?;
        let of_child = state.kernel.lookup(process.as_fd())?;
        let id = one_container(of_runtime, of_child).ok_or(TagError::NotOurs(child.pid))?;
        let container = state
            .registry
            .by_kernel_id(id.raw())
            .filter(|container| self.is_own(container))
            .ok_or(TagError::NotOurs(child.pid))?;
        let container = container.record.id.clone();
        state.kernel.tag(process.as_fd(), tag)?;
        drop(state);
        tracing::debug!(
            "agent {} (worker of user {}): process {} tagged",
            self.plan.config.name,
            self.uid,
            child.pid
        );
        Ok(Answer::Tagged { tag: tag.get(), container })
    }
}

/// Whether a process may be tagged, as far as /proc says: that is about the very process behind the pidfd.
fn check(runtime: &Peer, child: &Fork) -> Result<(), TagError> {
    if child.parent != runtime.pid {
        return Err(TagError::NotChild { child: child.pid, runtime: runtime.pid });
    }
    if child.threads != 1 {
        return Err(TagError::Threads { child: child.pid, threads: child.threads });
    }
    if !child.is_fork {
        return Err(TagError::Execed(child.pid));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_fresh_fork_of_the_runtime_is_tagged() {
        let runtime = Peer { pid: 10, uid: 0, pidfd: std::fs::File::open("/dev/null").unwrap().into() };
        let fork = Fork { pid: 20, parent: 10, threads: 1, is_fork: true };
        check(&runtime, &fork).unwrap();
        assert!(matches!(check(&runtime, &Fork { parent: 11, ..fork }), Err(TagError::NotChild { .. })));
        assert!(matches!(check(&runtime, &Fork { threads: 2, ..fork }), Err(TagError::Threads { .. })));
        assert!(matches!(check(&runtime, &Fork { is_fork: false, ..fork }), Err(TagError::Execed(20))));
        let itself = Fork { pid: 10, parent: 1, ..fork };
        assert!(matches!(check(&runtime, &itself), Err(TagError::NotChild { .. })));
    }
}
