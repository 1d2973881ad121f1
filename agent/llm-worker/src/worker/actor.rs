//! The one task that drives [`Agent`]: what connections bring, how turns ended, what became of frames.

mod actions;

use super::Ready;
use crate::{
    agent::{Action, Agent, ConnId, Limits, Outcome},
    connection::Input,
    frame::{Counters, Peer},
    message::Block,
    provider::Usage,
    redact::Redactor,
    report::{Intent, Reporter},
    rpc::{self, INVALID_REQUEST, Id, RpcError, TurnParams},
    status::count_turn,
    turn::{Order, Parts, Report},
};
use ringfence_policy::agents::registry::AgentConfig;
use ringfence_wire::agent::WorkerCounts;
use std::{
    collections::{BTreeSet, HashMap, VecDeque},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};
use tokio::{
    sync::{mpsc, oneshot, watch},
    time::Instant,
};
use tokio_util::sync::CancellationToken;

/// Messages that wait for a busy agent.
const QUEUE: usize = 64;
/// Bytes that they may have together.
const QUEUE_BYTES: usize = 32 << 20;
/// How long a message under way may take when the agent is to stop.
const DRAIN: Duration = Duration::from_secs(20);
/// How long a message waits for a connection that was there before it to say that it is the runtime. `register` has no
/// answer, so whoever starts a runtime cannot know when to send.
const INTRODUCTION: Duration = Duration::from_secs(1);

fn bounds(config: &AgentConfig) -> Limits {
    Limits { queue: QUEUE, queue_bytes: QUEUE_BYTES, rounds: config.llm.max_rounds }
}

/// A message on its way.
#[derive(Debug)]
struct Waiting {
    conn: ConnId,
    /// User id of the sender, where the kernel said.
    uid: Option<u32>,
    content: Vec<Block>,
}

impl Waiting {
    fn bytes(&self) -> usize {
        self.content.iter().map(|block| block.raw().get().len()).sum()
    }
}

/// The task's state.
pub(super) struct AgentActor {
    agent: Agent<Waiting>,
    peers: HashMap<ConnId, Peer>,
    /// The request of each sender that was not answered, or not told its end.
    ids: HashMap<ConnId, Id>,
    /// Connections that have not said what they are.
    unidentified: BTreeSet<ConnId>,
    /// Messages that wait for one of them, with the time until which they do.
    early: VecDeque<(Instant, ConnId, Waiting)>,
    /// The epoch of the turn that was answered last; its report may still be on its way.
    answered: Arc<AtomicU64>,
    /// A turn that was asked for before that report came.
    late: Option<(ConnId, Id, Result<Box<TurnParams>, RpcError>)>,
    /// The turn that was asked for and is about to start.
    job: Option<(Id, Box<TurnParams>)>,
    /// The turn that runs.
    turn: Option<CancellationToken>,
    orders: mpsc::Sender<Order>,
    /// Turns that were ordered and not reported yet.
    ordered: u32,
    /// The configuration that holds once they are: a turn that is stuck holds up nobody's reload.
    next: Option<Parts>,
    /// Hears when a `human_message` was written.
    delivered: Option<oneshot::Receiver<()>>,
    runtime_timeout: Duration,
    /// Since when the runtime has been silent.
    idle_since: Instant,
    reporter: Reporter,
    redactor: Arc<Redactor>,
    /// The message that is worked on.
    intent: Option<Intent>,
    config: Arc<AgentConfig>,
    status: watch::Sender<WorkerCounts>,
    counters: Arc<Counters>,
}

/// Resolves when the watched frame was written, or cannot be; never where there is none.
async fn written(delivered: &mut Option<oneshot::Receiver<()>>) -> bool {
    match delivered {
        Some(receiver) => receiver.await.is_ok(),
        None => std::future::pending().await,
    }
}

impl AgentActor {
    /// Of an agent whose runtime is not there yet. Turns are ordered by `orders`; status and counters are published.
    pub(super) fn new(
        config: Arc<AgentConfig>,
        redactor: Arc<Redactor>,
        reporter: Reporter,
        orders: mpsc::Sender<Order>,
        (status, counters): (watch::Sender<WorkerCounts>, Arc<Counters>),
    ) -> Self {
        Self {
            agent: Agent::new(bounds(&config)),
            peers: HashMap::new(),
            ids: HashMap::new(),
            unidentified: BTreeSet::new(),
            early: VecDeque::new(),
            answered: Arc::default(),
            late: None,
            turn: None,
            job: None,
            orders,
            ordered: 0,
            next: None,
            delivered: None,
            runtime_timeout: config.llm.runtime_timeout,
            idle_since: Instant::now(),
            reporter,
            redactor,
            intent: None,
            config,
            status,
            counters,
        }
    }

    /// Until `shutdown`, and then until what is under way has ended or [`DRAIN`] has passed.
    pub(super) async fn serve(
        &mut self,
        mut inputs: mpsc::Receiver<Input>,
        mut reports: mpsc::Receiver<Report>,
        mut replacements: mpsc::Receiver<Ready>,
        shutdown: &CancellationToken,
    ) {
        let mut until: Option<Instant> = None;
        loop {
            let stalls = self.idle_since + self.runtime_timeout;
            let introduction = self.early.front().map(|(until, ..)| *until);
            tokio::select! {
                biased;
                was_written = written(&mut self.delivered) => {
                    self.delivered = None;
                    if !was_written && let Some(runtime) = self.agent.runtime() {
                        self.peers.get(&runtime).inspect(|peer| peer.gone.cancel());
                    }
                    let actions = self.agent.delivered(was_written);
                    self.act(actions).await;
                }
                // Before what a container can flood us with.
                () = tokio::time::sleep_until(until.unwrap_or(stalls)), if until.is_some() => break,
                () = shutdown.cancelled(), if until.is_none() => until = Some(Instant::now() + DRAIN),
                () = tokio::time::sleep_until(stalls), if self.agent.awaits_runtime() => {
                    let name = &self.config.name;
                    tracing::warn!("agent {name}: its runtime did not come back; the message is given up");
                    let actions = self.agent.stalled();
                    self.act(actions).await;
                }
                () = tokio::time::sleep_until(introduction.unwrap_or(stalls)), if introduction.is_some() => {
                    self.send_early().await;
                }
                Some(ready) = replacements.recv() => self.replace(ready).await,
                Some(report) = reports.recv() => self.report(report).await,
                Some(input) = inputs.recv() => self.input(input).await,
            }
            self.publish();
            if until.is_some() && self.agent.is_idle() {
                break;
            }
        }
        // Whoever still waits hears the truth.
        if let Some(runtime) = self.agent.runtime() {
            let actions = self.agent.closed(runtime);
            self.act(actions).await;
        }
        self.publish();
        self.peers.clear();
    }

    async fn input(&mut self, input: Input) {
        match input {
            Input::Opened(conn, peer) => {
                self.peers.insert(conn, peer);
                self.unidentified.insert(conn);
            }
            Input::Register(conn, answer) => {
                self.unidentified.remove(&conn);
                let _ = answer.send(self.agent.register(conn));
                self.send_early().await;
            }
            Input::Send(conn, id, content, uid) => {
                self.unidentified.remove(&conn);
                if self.ids.contains_key(&conn) {
                    let what = "this connection has sent a message already; open another one for the next";
                    return self.push(conn, rpc::error(Some(&id), &RpcError::new(INVALID_REQUEST, what)));
                }
                self.ids.insert(conn, id);
                let content = Waiting { conn, uid, content };
                let is_early =
                    self.agent.runtime().is_none() && self.unidentified.range(..conn).next().is_some();
                let held: usize = self.early.iter().map(|(.., waiting)| waiting.bytes()).sum();
                if is_early && self.early.len() < QUEUE && held + content.bytes() <= QUEUE_BYTES {
                    return self.early.push_back((Instant::now() + INTRODUCTION, conn, content));
                }
                let actions = self.send(conn, content);
                self.act(actions).await;
            }
            Input::Turn(conn, id, params) => self.turn(conn, id, params).await,
            Input::Closed(conn) => {
                self.peers.remove(&conn);
                self.ids.remove(&conn);
                self.unidentified.remove(&conn);
                let actions = self.agent.closed(conn);
                self.act(actions).await;
            }
        }
    }

    fn send(&mut self, conn: ConnId, content: Waiting) -> Vec<Action<Waiting>> {
        let bytes = content.bytes();
        self.agent.send(conn, content, bytes)
    }

    /// Sends what waited for a runtime to introduce itself, if one did or the time is over.
    async fn send_early(&mut self) {
        while let Some((until, ..)) = self.early.front()
            && (self.agent.runtime().is_some() || *until <= Instant::now())
        {
            let Some((_, conn, content)) = self.early.pop_front() else { return };
            let actions = self.send(conn, content);
            self.act(actions).await;
        }
    }

    async fn turn(&mut self, conn: ConnId, id: Id, params: Result<Box<TurnParams>, RpcError>) {
        if self.agent.runtime() != Some(conn) {
            let what = "this connection is not the registered runtime any longer";
            return self.push(conn, rpc::error(Some(&id), &RpcError::new(INVALID_REQUEST, what)));
        }
        // The runtime may be faster than the report of the turn that it was just answered.
        let overtook = self.agent.running().is_some_and(|it| it == self.answered.load(Ordering::Acquire));
        if overtook && self.late.is_none() {
            self.late = Some((conn, id, params));
            return;
        }
        let actions = match self.agent.turn() {
            Ok(actions) => actions,
            Err(error) => return self.push(conn, rpc::error(Some(&id), &error)),
        };
        match params {
            Ok(params) => {
                self.job = Some((id, params));
                self.act(actions).await;
            }
            Err(error) => {
                // It has failed before it began.
                let epoch = actions
                    .iter()
                    .find_map(|a| if let Action::Start { epoch, .. } = a { Some(*epoch) } else { None });
                self.act(actions).await;
                self.push(conn, rpc::error(Some(&id), &error));
                let actions = self.agent.finished(epoch.unwrap_or_default(), Outcome::Failed(error.message));
                self.act(actions).await;
            }
        }
    }

    async fn report(&mut self, report: Report) {
        let Report { epoch, outcome, usage, bytes } = report;
        self.count(&outcome, usage, bytes);
        self.idle_since = Instant::now();
        self.ordered = self.ordered.saturating_sub(1);
        self.replace_when_idle().await;
        let actions = self.agent.finished(epoch, outcome);
        self.act(actions).await;
        if let Some((conn, id, params)) = self.late.take() {
            self.turn(conn, id, params).await;
        }
    }

    fn count(&self, outcome: &Outcome, usage: Usage, bytes: usize) {
        self.status.send_modify(|status| {
            count_turn(status, matches!(outcome, Outcome::Failed(_)), usage);
            status.conversation_bytes = bytes as u64;
        });
    }

    fn publish(&self) {
        self.status.send_modify(|status| {
            status.runtime = self.agent.runtime().is_some();
            status.busy = !self.agent.is_idle();
            status.waiting = self.agent.waiting() as u64;
            status.slow_peers = self.counters.slow.load(Ordering::Relaxed);
            status.refused_connections = self.counters.refused.load(Ordering::Relaxed);
            status.malformed = self.counters.malformed.load(Ordering::Relaxed);
        });
    }

    /// From the next turn on.
    async fn replace(&mut self, Ready(parts): Ready) {
        let config = Arc::clone(&parts.config);
        self.redactor = Arc::clone(&parts.redactor);
        self.next = Some(parts);
        self.replace_when_idle().await;
        self.agent.set_limits(bounds(&config));
        self.runtime_timeout = config.llm.runtime_timeout;
        self.config = config;
    }

    async fn replace_when_idle(&mut self) {
        if self.ordered == 0
            && let Some(parts) = self.next.take()
        {
            let _ = self.orders.send(Order::Replace(Box::new(parts))).await;
        }
    }
}

#[cfg(test)]
mod tests;
