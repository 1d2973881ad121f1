//! The worker's link to its supervisor. To the core: who a peer is, tags, reports. A user's service knows nothing of peers, tags
//! nobody and takes no reports; both connect the worker with the auditor, for its tools (`mcp::line`); over its link come orders to a worker that runs (`service`). A run's worker reports over a
//! further line, straight to the core, which ties processes of the run's container there, too.
//!
//! | file | what |
//! |---|---|
//! | `link` | what goes over a link, and what comes back |
//! | `line` | a run's: questions before reports |
//! | `lost` | which times of a run the record is not to be relied on for |

use super::{calls::CallKey, service::OrderAssembler};
use line::Line;
use link::{Answered, Question, run};
use lost::LostReports;
use ringfence_wire::{
    agent::{AgentCounts, Answer, Denials, MAX_REPORT, NotTied, PeerIdentity, ToCore, WorkerCounts},
    trace::AgentEvent,
};
use serde_json::value::to_raw_value;
use std::{
    os::fd::{BorrowedFd, OwnedFd},
    sync::{
        Arc, Mutex, OnceLock, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};
use tokio::{
    net::UnixStream,
    sync::{mpsc, oneshot},
    time::{timeout, timeout_at},
};
use tokio_util::sync::CancellationToken;

mod line;
mod link;
mod lost;

/// Questions and reports that wait to be sent.
const QUEUE: usize = 1024;
/// How long the core may take to answer. It reads a few files, which takes milliseconds; but where others have taken every
/// processor it waits for its turn, and then a refusal would be their doing.
const PATIENCE: Duration = Duration::from_secs(30);
/// How long a worker that ends goes on writing reports of its run: `ringfence run` waits for it.
const LAST_WORDS: Duration = Duration::from_secs(4);

/// Most refusals that are recorded in a while; others are counted.
const MOST_RECORDED: u32 = 50;
/// The same of those who are not known, and of a provider's ids.
const MOST_OF_STRANGERS: u32 = 20;
const RECORDING: Duration = Duration::from_secs(10);

/// Who was refused something.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RefusedParty {
    /// A process that the kernel names.
    Known,
    /// Nobody knows who.
    Strangers,
    /// Nobody; a provider's id was replaced.
    Provider,
}

/// Refusals that were recorded in a while.
#[derive(Debug, Default)]
struct Recorded {
    since: Option<Instant>,
    known: u32,
    strangers: u32,
    provider: u32,
}

/// Why the core did not say what was asked.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Error {
    /// It says no.
    #[error("{0}")]
    Refused(String),
    /// A process is not tied to a call.
    #[error("{1}")]
    NotTied(NotTied, String),
    /// Nothing came.
    #[error("the daemon does not answer")]
    Silent,
    /// Something else came.
    #[error("the daemon answers something else than was asked")]
    Strange,
}

/// The worker's end of the link.
#[derive(Clone, Default)]
pub(crate) struct CoreClient {
    link: Option<mpsc::Sender<Question>>,
    /// At its other end is the core.
    is_core: bool,
    /// A run's own line to the core, which takes reports and ties processes.
    line: Arc<OnceLock<Line>>,
    /// The model is to hear what its calls were denied.
    explains: Arc<AtomicBool>,
    counts: Arc<Counts>,
    /// Refusals that were recorded lately.
    recorded: Arc<Mutex<Recorded>>,
}

/// What is counted for `ringfence status`.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    /// Processes that were tagged.
    pub tags: AtomicU64,
    /// Tags that were refused.
    pub refused_tags: AtomicU64,
    /// Peers that may not say what they said.
    pub refused_peers: AtomicU64,
    /// Reports that were dropped.
    pub lost_reports: AtomicU64,
}

impl CoreClient {
    /// A link over a socket whose other end is the core's. Its task ends when the core's end closes; `gone` is cancelled
    /// then, and `stop` when the core says so.
    pub(crate) fn new(core: UnixStream, stop: CancellationToken, gone: CancellationToken) -> Self {
        Self { is_core: true, ..Self::over(core, None, stop, gone) }
    }

    /// The same, whose other end is the service's of one user: what that orders goes to `assembler`.
    pub(crate) fn of_user(
        service: UnixStream,
        assembler: OrderAssembler,
        stop: CancellationToken,
        gone: CancellationToken,
    ) -> Self {
        Self::over(service, Some(assembler), stop, gone)
    }

    fn over(
        socket: UnixStream,
        assembler: Option<OrderAssembler>,
        stop: CancellationToken,
        gone: CancellationToken,
    ) -> Self {
        let (link, questions) = mpsc::channel(QUEUE);
        tokio::spawn(async move {
            let _gone = gone.drop_guard();
            if let Err(error) = run(socket, questions, assembler, stop).await {
                tracing::error!("the link to whoever supervises this worker broke: {error}");
            }
        });
        Self { link: Some(link), ..Self::default() }
    }

    /// Whether one more refusal may be put on record now; the others are counted only, so that nobody fills logs with them.
    /// Those of whom nothing is known have an allowance of their own: anybody on loopback can make such, and is not to hide
    /// what somebody known was refused.
    pub(crate) fn may_record(&self, whose: RefusedParty) -> bool {
        let mut recorded = self.recorded.lock().unwrap_or_else(PoisonError::into_inner);
        if recorded.since.is_none_or(|since| since.elapsed() >= RECORDING) {
            *recorded = Recorded { since: Some(Instant::now()), ..Recorded::default() };
        }
        let (count, most) = match whose {
            RefusedParty::Known => (&mut recorded.known, MOST_RECORDED),
            RefusedParty::Strangers => (&mut recorded.strangers, MOST_OF_STRANGERS),
            RefusedParty::Provider => (&mut recorded.provider, MOST_OF_STRANGERS),
        };
        *count += 1;
        *count <= most
    }

    /// Whether there is a core.
    pub(crate) fn has_core(&self) -> bool {
        self.is_core && self.link.is_some()
    }

    /// What was counted.
    pub(crate) fn counts(&self) -> &Counts {
        &self.counts
    }

    /// Who made a connection; `None`: there is no core to ask.
    ///
    /// # Errors
    /// [`Error`]: then nothing is known of the peer.
    pub(crate) async fn speaker(&self, connection: BorrowedFd<'_>) -> Result<Option<PeerIdentity>, Error> {
        if !self.has_core() {
            return Ok(None);
        }
        match self.ask(ToCore::Speaker { number: 0 }, vec![cloned(connection)?]).await? {
            Answer::Speaker(speaker) => Ok(Some(speaker)),
            _ => Err(Error::Strange),
        }
    }

    /// Has a process tagged, a child of the runtime at the other end of `connection`. Gives the tag.
    ///
    /// # Errors
    /// [`Error`]: then it has none.
    pub(crate) async fn tag(&self, process: OwnedFd, connection: BorrowedFd<'_>) -> Result<u64, Error> {
        match self.ask(ToCore::Tag { number: 0 }, vec![process, cloned(connection)?]).await? {
            Answer::Tagged { tag, .. } => Ok(tag),
            _ => Err(Error::Strange),
        }
    }

    /// What the parent of the process at the other end of a connection runs: its process id and its arguments. Asks `ringfence run`.
    ///
    /// # Errors
    /// [`Error`]: then that is not known.
    pub(crate) async fn command_line(&self, connection: BorrowedFd<'_>) -> Result<(u32, Vec<String>), Error> {
        let link = self.link.as_ref().filter(|_| !self.is_core).ok_or(Error::Silent)?;
        match Self::ask_over(link, ToCore::CommandLine { number: 0 }, vec![cloned(connection)?]).await? {
            Answer::CommandLine { pid, arguments } => Ok((pid, arguments)),
            _ => Err(Error::Strange),
        }
    }

    /// Has the parent of the process at the other end of a connection tagged, which is this one. Gives the tag. Asks the core, on the
    /// run's line.
    ///
    /// # Errors
    /// [`Error`]: then it has none.
    pub(crate) async fn tie(&self, connection: BorrowedFd<'_>, parent: u32) -> Result<u64, Error> {
        match self.ask_on_line(ToCore::Tie { number: 0, parent }, vec![cloned(connection)?]).await? {
            Answer::Tagged { tag, .. } => Ok(tag),
            _ => Err(Error::Strange),
        }
    }

    /// Whether it could be.
    ///
    /// # Errors
    /// [`Error`]: it could not.
    pub(crate) async fn could_be_tied(&self, connection: BorrowedFd<'_>, parent: u32) -> Result<(), Error> {
        match self.ask_on_line(ToCore::CouldBeTied { number: 0, parent }, vec![cloned(connection)?]).await? {
            Answer::CouldBeTied => Ok(()),
            _ => Err(Error::Strange),
        }
    }

    /// Whether the model is to hear what its calls were denied.
    pub(crate) fn explains(&self) -> bool {
        self.explains.load(Ordering::Relaxed)
    }

    /// It is, from now on.
    pub(crate) fn explain(&self) {
        self.explains.store(true, Ordering::Relaxed);
    }

    /// How many operations of the run's container were denied up to now. Asks the core, on the run's line.
    ///
    /// # Errors
    /// [`Error`]: then that is not known.
    pub(crate) async fn denied_so_far(&self) -> Result<u64, Error> {
        match self.ask_on_line(ToCore::DeniedSoFar { number: 0 }, Vec::new()).await? {
            Answer::DeniedSoFar(denied) => Ok(denied),
            _ => Err(Error::Strange),
        }
    }

    /// What was denied to a call. Asks `ringfence run`.
    ///
    /// # Errors
    /// [`Error`]: then that is not known.
    pub(crate) async fn denials_of(&self, key: &CallKey) -> Result<Denials, Error> {
        let link = self.link.as_ref().filter(|_| !self.is_core).ok_or(Error::Silent)?;
        let what = ToCore::DenialsOf { number: 0, key: key.as_str().to_owned() };
        match Self::ask_over(link, what, Vec::new()).await? {
            Answer::Denials(denials) => Ok(denials),
            _ => Err(Error::Strange),
        }
    }

    async fn ask_on_line(&self, what: ToCore, beside: Vec<OwnedFd>) -> Result<Answer, Error> {
        let line = self.line.get().ok_or(Error::Silent)?;
        Self::ask_over(&line.questions, what, beside).await
    }

    /// Reports over this line from now on: that of a run, whose supervisor takes none. Once it breaks, or the core closes it, nothing
    /// is reported any more, and nobody minds. False: there is one.
    pub(crate) fn report_to(&self, core: UnixStream) -> bool {
        let (line, waiting) = Line::new(QUEUE);
        let is_first = !self.is_core && self.line.set(line).is_ok();
        if is_first {
            tokio::spawn(async move {
                // It answers what it is asked, and orders nothing.
                if let Err(error) = run(core, waiting, None, CancellationToken::new()).await {
                    tracing::debug!("the daemon takes no more reports of this run: {error}");
                }
            });
        }
        is_first
    }

    /// Where reports go, if anywhere; of a run's line, also who follows what is lost.
    fn reports(&self) -> Option<(&mpsc::Sender<Question>, Option<&LostReports>)> {
        if self.is_core {
            return Some((self.link.as_ref()?, None));
        }
        let line = self.line.get().filter(|line| !line.reports.is_closed())?;
        Some((&line.reports, Some(&line.lost)))
    }

    /// Follows a report that `send` puts among those that wait, and counts one that is lost. Whether it waits there.
    fn followed(&self, event: &AgentEvent, lost: Option<&LostReports>, send: impl FnOnce() -> bool) -> bool {
        let is_kept = match lost {
            Some(lost) => lost.follow(event, send),
            None => send(),
        };
        if !is_kept {
            self.counts.lost_reports.fetch_add(1, Ordering::Relaxed);
        }
        is_kept
    }

    /// Whether somebody takes reports.
    pub(crate) fn has_reports(&self) -> bool {
        self.reports().is_some()
    }

    /// Tells the auditor something. What does not fit is dropped and counted: nothing waits for an auditor.
    pub(crate) fn report(&self, event: &AgentEvent) {
        let Some((queue, lost)) = self.reports() else { return };
        let question = report_of(event).map(Question::told);
        self.followed(event, lost, || question.is_some_and(|question| queue.try_send(question).is_ok()));
    }

    /// The same of what must not be missing: waits until it is written, at most [`PATIENCE`] and until `cut`, so that it is the
    /// core's whatever becomes of the worker. Whether it is, or nobody is there to be told.
    pub(crate) async fn report_patiently(&self, event: &AgentEvent, cut: &CancellationToken) -> bool {
        let Some((queue, lost)) = self.reports() else { return true };
        let until = tokio::time::Instant::now() + PATIENCE;
        let (written, is_written) = oneshot::channel();
        let Some(what) = report_of(event) else { return self.followed(event, lost, || false) };
        let question = Question { written: Some(written), ..Question::told(what) };
        let room = tokio::select! {
            // What has room is sent, whatever is cut.
            biased;
            room = timeout_at(until, queue.reserve()) => room.ok().and_then(Result::ok),
            () = cut.cancelled() => None,
        };
        let is_sent = self.followed(event, lost, || room.map(|room| room.send(question)).is_some());
        if !is_sent {
            return false;
        }
        tokio::select! {
            biased;
            written = timeout_at(until, is_written) => written.is_ok_and(|written| written.is_ok()),
            () = cut.cancelled() => false,
        }
    }

    /// Waits until all reports of a run are written, at most [`LAST_WORDS`]. The core knows what is not.
    pub(crate) async fn flush(&self) {
        let Some(line) = self.line.get() else { return };
        let (written, is_written) = oneshot::channel();
        line.lost.close(written);
        // A line that is broken takes nothing, and the core knows.
        if !line.reports.is_closed() && timeout(LAST_WORDS, is_written).await.is_err() {
            tracing::warn!("reports of this run are lost: more wait than the daemon takes before its end");
        }
    }

    /// Tells the supervisor that the socket is served, or that what it ordered last is in force.
    pub(crate) fn ready(&self) {
        self.tell(ToCore::Ready);
    }

    /// Tells it that what it ordered last cannot be done.
    pub(crate) fn failed(&self, why: String) {
        self.tell(ToCore::Failed(why));
    }

    /// Whether what supervises the worker is a user's service.
    pub(crate) fn has_service(&self) -> bool {
        !self.is_core && self.link.is_some()
    }

    /// Tells a user's service that the provider refused the key.
    pub(crate) fn key_refused(&self) {
        if self.has_service() {
            self.tell(ToCore::KeyRefused);
        }
    }

    /// Tells it what the worker does.
    pub(crate) fn status(&self, worker: WorkerCounts) {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        self.tell(ToCore::Status(AgentCounts {
            worker,
            tags: read(&self.counts.tags),
            refused_tags: read(&self.counts.refused_tags),
            refused_peers: read(&self.counts.refused_peers),
            lost_reports: read(&self.counts.lost_reports),
        }));
    }

    fn tell(&self, what: ToCore) {
        if let Some(link) = &self.link {
            // What finds no room is said again, or of no use any more.
            let _ = link.try_send(Question::told(what));
        }
    }

    /// A line to the auditor, to tell it of this agent's tools. Asks whoever supervises the worker.
    ///
    /// # Errors
    /// [`Error`]: then there is none.
    pub(crate) async fn tools_line(&self) -> Result<OwnedFd, Error> {
        let link = self.link.as_ref().ok_or(Error::Silent)?;
        match Self::answered(link, ToCore::ToolsLine { number: 0 }, Vec::new()).await? {
            (Answer::ToolsLine, Some(line)) => Ok(line),
            _ => Err(Error::Strange),
        }
    }

    async fn ask(&self, what: ToCore, descriptors: Vec<OwnedFd>) -> Result<Answer, Error> {
        Self::ask_over(self.link.as_ref().ok_or(Error::Silent)?, what, descriptors).await
    }

    async fn ask_over(
        link: &mpsc::Sender<Question>,
        what: ToCore,
        descriptors: Vec<OwnedFd>,
    ) -> Result<Answer, Error> {
        Self::answered(link, what, descriptors).await.map(|(answer, _)| answer)
    }

    async fn answered(
        link: &mpsc::Sender<Question>,
        what: ToCore,
        descriptors: Vec<OwnedFd>,
    ) -> Result<Answered, Error> {
        let (answer, answered) = oneshot::channel();
        let asked = async {
            link.send(Question { what, descriptors, answer: Some(answer), written: None })
                .await
                .map_err(|_| Error::Silent)?;
            answered.await.map_err(|_| Error::Silent)
        };
        match timeout(PATIENCE, asked).await {
            Ok(Ok((Answer::Refused(why), _))) => Err(Error::Refused(why)),
            Ok(Ok((Answer::NotTied { kind, why }, _))) => Err(Error::NotTied(kind, why)),
            Ok(answer) => answer,
            Err(_) => Err(Error::Silent),
        }
    }
}

fn cloned(connection: BorrowedFd<'_>) -> Result<OwnedFd, Error> {
    connection.try_clone_to_owned().map_err(|error| Error::Refused(error.to_string()))
}

/// A report, unless it is longer than the core takes.
fn report_of(event: &AgentEvent) -> Option<ToCore> {
    let fitting = |event: &AgentEvent| {
        let json = to_raw_value(event).ok()?;
        (json.get().len() <= MAX_REPORT).then_some(ToCore::Report(json))
    };
    fitting(event).or_else(|| {
        // A call is on record whatever the files are called that it names: escaped, a name is six times as long.
        let mut less = event.clone();
        let AgentEvent::Call { paths, .. } = &mut less else { return None };
        paths.take()?;
        fitting(&less)
    })
}

#[cfg(test)]
mod tests;
