//! One worker of the service's: its process, what it is told, and what it says.
//!
//! A thread hears it from its start to its end; what it says is numbers and a sentence. It is told things one after another,
//! and nobody waits for that: one that does not read holds up nobody else.

use crate::commands;
use ringfence_supervise::{
    tools_line::ToolsLines,
    worker::{self as worker_process, Credentials, WorkerSetup},
};
use ringfence_wire::{
    agent::{AgentCounts, Answer, Replacement, ToCore, ToWorker},
    frame::FrameError,
};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use std::{
    io,
    net::Shutdown,
    os::{fd::OwnedFd, unix::net::UnixStream},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::Instant,
};
use tokio::sync::{mpsc, oneshot, watch};

/// Orders that may wait for a worker to read them.
const ORDERS: usize = 16;
/// What happened to a worker.
#[derive(Debug)]
pub(super) struct Event {
    /// Whose it is.
    pub(super) agent: String,
    /// Which of those that the agent has had.
    pub(super) worker: u64,
    pub(super) what: WorkerEvent,
}

#[derive(Debug, Clone)]
pub(super) enum WorkerEvent {
    /// What it was told first, of what it did not answer yet, is in force.
    Ready,
    /// That cannot be done, and why.
    Failed(String),
    /// The provider refused its key.
    KeyRefused,
    /// How it ended.
    Ended(String),
}

/// What a worker says of what it does.
#[derive(Debug, Default, Clone, Copy)]
struct CountReport {
    /// How often it said so.
    times: u64,
    counts: AgentCounts,
}

struct Order {
    what: ToWorker,
    beside: Vec<OwnedFd>,
    credentials: Credentials,
}

/// See the module.
pub(super) struct WorkerProcess {
    pub(super) number: u64,
    pub(super) pid: u32,
    pub(super) since: Instant,
    handle: OwnedFd,
    orders: mpsc::Sender<Order>,
    is_ending: Arc<AtomicBool>,
    counted: watch::Receiver<CountReport>,
    /// How often it was asked.
    requested: u64,
}

impl WorkerProcess {
    /// Starts one.
    ///
    /// # Errors
    /// In words.
    pub(super) fn start(
        agent: &str,
        number: u64,
        setup: WorkerSetup<OwnedFd>,
        events: mpsc::Sender<Event>,
    ) -> Result<Self, String> {
        let failed = |error: io::Error| format!("its worker cannot be started: {error}");
        let process = worker_process::spawn(None, worker_process::of_user()).map_err(failed)?;
        let pid = process.pid();
        tracing::info!("agent {agent}: worker started, pid {pid}");
        let handle = match handle(pid) {
            Ok(handle) => handle,
            Err(error) => {
                process.kill();
                return Err(failed(error));
            }
        };
        let (orders, ordered) = mpsc::channel(ORDERS);
        let (count, counted) = watch::channel(CountReport::default());
        let (link, linked) = oneshot::channel();
        let is_ending = Arc::<AtomicBool>::default();
        let (agent, ends) = (agent.to_owned(), Arc::clone(&is_ending));
        let answers = orders.clone().downgrade();
        let run = move || {
            let tell = |what| {
                // Nobody hears it where the service ends.
                let _ = events.blocking_send(Event { agent: agent.clone(), worker: number, what });
            };
            let mut lines = ToolsLines::default();
            let mut tools_line = |number| {
                let given = lines.make_room().and_then(|()| commands::tools_line(&agent));
                let given = given.and_then(|line| {
                    lines.give(&line).map_err(|error| error.to_string())?;
                    Ok(line)
                });
                let (answer, beside) = match given {
                    Ok(line) => (Answer::ToolsLine, vec![line.into()]),
                    Err(why) => (Answer::Refused(why), Vec::new()),
                };
                // After what it is told already: nothing begins inside of that.
                let what = ToWorker::Answer { number, answer };
                let order = Order { what, beside, credentials: Vec::new() };
                if let Some(answers) = answers.upgrade() {
                    // One that reads nothing goes on without.
                    let _ = answers.try_send(order);
                }
            };
            let ended = worker_process::supervise(
                process,
                setup,
                |worker| drop(worker.try_clone().map(|worker| link.send(worker))),
                |_, said, _| match said {
                    ToCore::ToolsLine { number } => {
                        tools_line(number);
                        Ok(())
                    }
                    said => handle_message(said, &tell, &count),
                },
                || ends.load(Ordering::Acquire),
            );
            let (Ok(how) | Err(how)) = ended;
            tell(WorkerEvent::Ended(how));
        };
        // Without the thread the process is dropped, and with it its link: it ends.
        thread::Builder::new().name("agent".into()).spawn(run).map_err(failed)?;
        tokio::spawn(send_orders(linked, ordered));
        let since = Instant::now();
        Ok(Self { number, pid, since, handle, orders, is_ending, counted, requested: 0 })
    }

    /// Tells it another configuration; it answers. False: it does not read what it is told.
    pub(super) fn replace(&self, replacement: Replacement, credentials: Credentials) -> bool {
        self.tell(ToWorker::Replace(replacement), Vec::new(), credentials)
    }

    /// Hands it other sockets for the API; it answers. False: as above.
    pub(super) fn listen(&self, (http, loopback): (bool, bool), beside: Vec<OwnedFd>) -> bool {
        self.tell(ToWorker::Listen { http, loopback }, beside, Vec::new())
    }

    /// Tells it to end when nothing is under way any more.
    pub(super) fn stop(&self) {
        self.is_ending.store(true, Ordering::Release);
        if !self.tell(ToWorker::Stop, Vec::new(), Vec::new()) {
            self.kill();
        }
    }

    /// Ends it.
    pub(super) fn kill(&self) {
        if let Err(error) = pidfd_send_signal(&self.handle, Signal::KILL) {
            tracing::debug!("worker {} cannot be ended: {error}", self.pid);
        }
    }

    /// What it did, as it said last.
    pub(super) fn counts(&self) -> AgentCounts {
        self.counted.borrow().counts
    }

    /// Asks what it does. The future ends when it said so, or has ended.
    pub(super) fn count(&mut self) -> impl Future<Output = ()> + Send + use<> {
        self.requested += u64::from(self.tell(ToWorker::Count, Vec::new(), Vec::new()));
        let (mut counted, requested) = (self.counted.clone(), self.requested);
        async move { drop(counted.wait_for(|counted| counted.times >= requested).await) }
    }

    fn tell(&self, what: ToWorker, beside: Vec<OwnedFd>, credentials: Credentials) -> bool {
        self.orders.try_send(Order { what, beside, credentials }).is_ok()
    }
}

/// The process, whatever becomes of its number: it was not waited for yet.
fn handle(pid: u32) -> io::Result<OwnedFd> {
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw).ok_or(io::ErrorKind::InvalidInput)?;
    Ok(pidfd_open(pid, PidfdFlags::empty())?)
}

fn handle_message(
    said: ToCore,
    tell: &impl Fn(WorkerEvent),
    count: &watch::Sender<CountReport>,
) -> Result<(), FrameError> {
    match said {
        ToCore::Ready => tell(WorkerEvent::Ready),
        ToCore::KeyRefused => tell(WorkerEvent::KeyRefused),
        ToCore::Failed(why) => tell(WorkerEvent::Failed(worker_process::printable_reason(&why))),
        ToCore::Status(counts) => count.send_modify(|counted| {
            *counted = CountReport { times: counted.times + 1, counts };
        }),
        // It was told that there is no core.
        ToCore::Speaker { .. }
        | ToCore::Tag { .. }
        | ToCore::CommandLine { .. }
        | ToCore::Tie { .. }
        | ToCore::CouldBeTied { .. }
        | ToCore::DeniedSoFar { .. }
        | ToCore::DenialsOf { .. }
        | ToCore::ToolsLine { .. }
        | ToCore::Report(_)
        | ToCore::Behind { .. } => {
            return Err(FrameError::from_io(io::Error::other("it asks for what only the daemon does")));
        }
    }
    Ok(())
}

/// Tells a worker one thing after another.
async fn send_orders(linked: oneshot::Receiver<UnixStream>, mut orders: mpsc::Receiver<Order>) {
    let Ok(link) = linked.await else { return };
    let link = Arc::new(link);
    while let Some(Order { what, beside, credentials }) = orders.recv().await {
        let to = Arc::clone(&link);
        let sent = tokio::task::spawn_blocking(move || {
            worker_process::send_order(&to, &what, &beside, &credentials)
        })
        .await;
        if !matches!(sent, Ok(Ok(()))) {
            // Half of something may be on its way: whoever hears the worker takes it for ended, and ends it.
            let _ = link.shutdown(Shutdown::Both);
            return;
        }
    }
}
