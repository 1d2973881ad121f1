//! What a run says of its own container: which calls its agent's model wants, over the very connection that enrolled the
//! container. Nothing that comes there names a container, so nobody can speak of another.
//!
//! Whoever may enrol may speak here, and send anything, or nothing, or more than anybody reads. So each line has a permit, a
//! user a share of those, each line its pace, and nothing is taken but reports, unread, questions to tie a process of the very
//! container to a call (`ties`), and how often something was denied there. A line ends with its peer, and a little after its
//! container.

use super::{enforcer::Enforcer, pace::Pace, server::Server};
use ringfence_base::{
    clock::{now_micros, since_boot},
    error::chain,
};
use ringfence_bpf::TaskError;
use ringfence_process::peer::Peer;
use ringfence_wire::{
    agent::{Answer, LINE_BURST as BURST, LINE_PER_SECOND as PER_SECOND, MAX_REPORT, ToCore, ToWorker},
    audit::{AgentReport, Payload, run_agent},
    conn::Conn,
    frame::FrameError,
    message::{Enrolled, Failure, Reply, Reporting},
    trace::AgentEvent,
};
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    io::{Errno, ioctl_fionread},
};
use serde_json::value::to_raw_value;
use std::{
    os::fd::AsFd,
    thread,
    time::{Duration, Instant},
};

mod ties;

/// Most lines of one user, subordinate ids included.
pub(crate) const LINES_PER_UID: usize = 16;
/// Most lines of all users but root, who has as many.
pub(crate) const LINES: usize = 64;

/// Most bytes of a message: a report, and what is around it.
const MAX_MESSAGE: usize = MAX_REPORT + 64;
/// How long a message may take once it has begun.
const MESSAGE_TIME: Duration = Duration::from_secs(5);
/// How often it is looked whether the container is still there.
const LOOK: Duration = Duration::from_millis(if cfg!(test) { 100 } else { 2000 });
/// How long a run whose container has ended may still say how its calls ended.
const LAST_WORDS: Duration = Duration::from_secs(if cfg!(test) { 1 } else { 15 });
/// How long the end of a line waits for room among the reports, and how often it is tried.
const TRIES: u32 = 30;
const TRY_AGAIN: Duration = Duration::from_secs(1);

/// Why a line is not opened. Sentences for who asked.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LineError {
    /// Nothing was enrolled here.
    #[error("a run reports over the connection that enrolled its container, after that")]
    NotEnrolled,
    /// An agent does not report on itself.
    #[error("a process in a container reports of none")]
    InContainer,
    /// Nobody knows where the peer is.
    #[error("it is not known whether this process is in a container")]
    Unknown(#[from] TaskError),
}

/// Whose line it is, by what the core itself knows.
#[derive(Debug, Clone)]
pub(crate) struct Whose {
    /// The container's public id.
    pub(crate) container: String,
    /// Its profile.
    pub(crate) profile: String,
    /// Who enrolled it.
    pub(crate) uid: u32,
}

impl Whose {
    fn report(&self, payload: Payload) -> AgentReport {
        AgentReport {
            agent: run_agent(&self.profile, self.uid),
            uid: self.uid,
            container: Some(self.container.clone()),
            at: now_micros(),
            payload,
        }
    }
}

impl<E: Enforcer> Server<E> {
    /// Whether the peer that has just enrolled a container may report of it.
    pub(crate) fn line_of(&self, conn: &Conn, peer: &Peer, enrolled: &Enrolled) -> Result<Whose, LineError> {
        if self.state().kernel.belongs(conn.as_fd(), peer.pidfd.as_fd())?.is_some() {
            return Err(LineError::InContainer);
        }
        let Enrolled { container, profile, .. } = enrolled;
        Ok(Whose { container: container.clone(), profile: profile.clone(), uid: peer.uid })
    }

    /// Takes reports until the peer is gone, says anything else or has lost its place, or the container has ended.
    ///
    /// # Errors
    /// How the line ended: always one.
    pub(crate) fn serve_line(&self, conn: &mut Conn, whose: &Whose) -> Result<(), FrameError> {
        self.report(&whose.report(Payload::LineOpened));
        let mut behind = None;
        let ended = conn
            .send(&Reply::Ok(Reporting { counts_denials: true }))
            .and_then(|()| self.take_reports(conn, whose, &mut behind));
        if let Some(from) = behind {
            self.note_lost(whose, from);
        }
        // What was under way would be so for ever: the last word is not lost with the others.
        for _ in 0..TRIES {
            if self.report(&whose.report(Payload::LineClosed { moment: since_boot() })) {
                break;
            }
            thread::sleep(TRY_AGAIN);
        }
        ended
    }

    /// How often the kernel said no in the run's container. Nothing is trusted for it: it is the programs' own count.
    fn denied_so_far(&self, whose: &Whose) -> Answer {
        match self.state().denied_in(&whose.container) {
            Some(Ok(denied)) => Answer::DeniedSoFar(denied),
            Some(Err(error)) => Answer::Refused(chain(&error)),
            None => Answer::Refused("the container has ended".to_owned()),
        }
    }

    fn note(&self, whose: &Whose, payload: Payload) {
        if !self.report(&whose.report(payload)) {
            tracing::debug!("container {}: a report of its run is lost", whose.container);
        }
    }

    /// Notes a gap: reports that waited at the other end when the line ended are lost, and may be about anything since `from`, ns
    /// since boot.
    fn note_lost(&self, whose: &Whose, from: u64) {
        let lost = AgentEvent::Lost { count: 1, from, to: None };
        match to_raw_value(&lost) {
            Ok(json) => self.note(whose, Payload::Event(json)),
            Err(error) => tracing::error!("container {}: {}", whose.container, chain(&error)),
        }
    }

    /// `behind`: the earliest that reports waiting at the other end may be about, ns since boot.
    fn take_reports(
        &self,
        conn: &mut Conn,
        whose: &Whose,
        behind: &mut Option<u64>,
    ) -> Result<(), FrameError> {
        let mut pace = Pace::new(BURST, PER_SECOND, Instant::now());
        let mut until: Option<Instant> = None;
        let mut looked = Instant::now();
        loop {
            if looked.elapsed() >= LOOK {
                looked = Instant::now();
                if until.is_none() && !self.state().has_container(&whose.container) {
                    until = Some(looked + LAST_WORDS);
                }
            }
            if until.is_some_and(|until| until <= looked) {
                // What is there is not read any more. A worker that says when it is behind is never that far.
                if behind.is_none() && ioctl_fionread(conn.stream()).is_ok_and(|unread| unread > 0) {
                    *behind = Some(0);
                }
                return Err(FrameError::Closed);
            }
            let wait = Timespec::try_from(LOOK).unwrap_or_default();
            match poll(&mut [PollFd::new(conn.stream(), PollFlags::IN)], Some(&wait)) {
                Ok(0) | Err(Errno::INTR) => continue,
                Ok(_) => {}
                Err(errno) => return Err(FrameError::from_io(errno.into())),
            }
            // What comes beside a report is closed.
            let (said, beside) = conn.receive_with_descriptors::<ToCore>()?;
            match said {
                ToCore::Report(event) => self.note(whose, Payload::Event(event)),
                ToCore::Behind { since } => *behind = since,
                ToCore::Tie { number, parent } => {
                    let tied = self.tie(whose, parent, beside);
                    // On record even where the tie came too late: what has the tag would be nobody's.
                    let tagged = ties::tag(&tied)
                        .map(|tag| Payload::Tagged { tag, container: whose.container.clone() });
                    let answer = ties::answer(tied);
                    // A tool waits for it, and nobody for the report, which still goes before all that is said of the tag here.
                    let sent = conn.send(&ToWorker::Answer { number, answer });
                    tagged.into_iter().for_each(|payload| self.note(whose, payload));
                    sent?;
                }
                ToCore::CouldBeTied { number, parent } => {
                    let answer = ties::answer(self.could_be_tied(whose, parent, beside));
                    conn.send(&ToWorker::Answer { number, answer })?;
                }
                ToCore::DeniedSoFar { number } => {
                    conn.send(&ToWorker::Answer { number, answer: self.denied_so_far(whose) })?;
                }
                ToCore::Ready
                | ToCore::Failed(_)
                | ToCore::Speaker { .. }
                | ToCore::Tag { .. }
                | ToCore::CommandLine { .. }
                | ToCore::DenialsOf { .. }
                | ToCore::Status(_)
                | ToCore::ToolsLine { .. }
                | ToCore::KeyRefused => return Err(FrameError::Closed),
            }
            thread::sleep(pace.step(Instant::now()));
        }
    }
}

/// A connection for reports: its messages are short, and each comes in time.
pub(crate) fn narrowed(conn: Conn) -> Conn {
    conn.within(MESSAGE_TIME).up_to(MAX_MESSAGE)
}

/// Says no.
pub(crate) fn refuse(conn: &mut Conn, error: &LineError) -> Result<(), FrameError> {
    conn.send(&Reply::<Reporting>::Failed(Failure::new(chain(error))))
}

#[cfg(test)]
mod tests;
