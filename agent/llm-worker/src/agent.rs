//! What happens to one agent, and in which order: registering, sending, turns. Pure: inputs to actions.
//!
//! One runtime at a time. A message is delivered when its frame was written to a living runtime, not sooner; from then
//! on the agent is busy until a turn ends without local tool calls, fails, or the runtime is gone. Each `send` is told
//! exactly one truth.

use super::rpc::{INVALID_REQUEST, NO_RUNTIME, QUEUE_FULL, RpcError};
use std::collections::VecDeque;

/// A connection to the agent's socket.
pub(crate) type ConnId = u64;

/// What a sender hears when the runtime goes away.
pub(crate) const DISCONNECTED: &str = "agent disconnected";

/// Bounds of one agent.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limits {
    /// Messages that may wait.
    pub queue: usize,
    /// Bytes that they may have together.
    pub(crate) queue_bytes: usize,
    /// Turns of one message; the last may not end in tool calls.
    pub rounds: u32,
}

/// What is to be done, in order. `M` is a message's content with the request's id.
#[derive(Debug, PartialEq)]
pub(crate) enum Action<M> {
    /// Write `human_message` to the runtime, and call [`Agent::delivered`] when it was written or cannot be.
    Deliver {
        /// To whom.
        runtime: ConnId,
        /// What.
        message: M,
    },
    /// Tell the sender that its message was delivered: at once, as the answer to its request.
    AnswerDelivered(ConnId),
    /// Tell the sender that its message waits.
    AnswerQueued(ConnId),
    /// Answer the sender's request with an error.
    AnswerError(ConnId, RpcError),
    /// Notify: delivered after waiting.
    NotifyDelivered(ConnId),
    /// Notify: the agent is done with this message.
    NotifyEnd(ConnId),
    /// Notify: the same, though the model was not, since the message reached its limit of rounds.
    NotifyCapped(ConnId),
    /// Notify: it failed.
    NotifyError(ConnId, String),
    /// Start the turn that was asked for.
    Start {
        /// Comes back with the outcome.
        epoch: u64,
        /// Who gets a copy of the text.
        subscriber: Option<ConnId>,
        /// The cap is reached: this turn is the message's last.
        last: bool,
    },
    /// Stop the turn that runs.
    Cancel,
}

/// How a turn ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// The runtime has tools to run.
    ToolUse,
    /// The model is done.
    Done,
    /// It is not, and the message has reached its limit of rounds.
    Capped,
    /// It failed.
    Failed(String),
}

#[derive(Debug)]
enum Phase {
    Idle,
    /// A `human_message` is being written.
    Delivering(Sender),
    /// The runtime works on a message, or on its own account.
    Working {
        sender: Option<ConnId>,
        rounds: u32,
        /// The turn that runs.
        turn: Option<u64>,
    },
}

#[derive(Debug, Clone, Copy)]
struct Sender {
    conn: ConnId,
    waited: bool,
}

/// One agent.
#[derive(Debug)]
pub(crate) struct Agent<M> {
    runtime: Option<ConnId>,
    phase: Phase,
    /// Whose, what, and how many bytes.
    queue: VecDeque<(ConnId, M, usize)>,
    limits: Limits,
    epoch: u64,
}

impl<M> Agent<M> {
    /// Nobody registered, nothing to do.
    pub(crate) fn new(limits: Limits) -> Self {
        Self { runtime: None, phase: Phase::Idle, queue: VecDeque::new(), limits, epoch: 0 }
    }

    /// Takes new bounds.
    pub(crate) fn set_limits(&mut self, limits: Limits) {
        self.limits = limits;
    }

    /// The registered runtime.
    pub(crate) fn runtime(&self) -> Option<ConnId> {
        self.runtime
    }

    /// Whether nothing is under way and nothing waits.
    pub(crate) fn is_idle(&self) -> bool {
        matches!(self.phase, Phase::Idle) && self.queue.is_empty()
    }

    /// How many messages wait.
    pub(crate) fn waiting(&self) -> usize {
        self.queue.len()
    }

    /// Whether the runtime has something to do and no turn is running: it may be stuck.
    pub(crate) fn awaits_runtime(&self) -> bool {
        matches!(self.phase, Phase::Working { turn: None, .. })
    }

    /// The turn that runs, as far as was reported.
    pub(crate) fn running(&self) -> Option<u64> {
        if let Phase::Working { turn, .. } = self.phase { turn } else { None }
    }

    /// A connection wants to be the runtime.
    ///
    /// # Errors
    /// Another one is.
    pub(crate) fn register(&mut self, conn: ConnId) -> Result<(), RpcError> {
        if self.runtime.is_some() {
            let message = "a runtime is registered already, and it is connected; only one may be";
            return Err(RpcError::new(INVALID_REQUEST, message));
        }
        self.runtime = Some(conn);
        Ok(())
    }

    /// A message of so many bytes for the runtime.
    pub(crate) fn send(&mut self, conn: ConnId, message: M, bytes: usize) -> Vec<Action<M>> {
        let Some(runtime) = self.runtime else {
            return vec![Action::AnswerError(conn, RpcError::new(NO_RUNTIME, "runtime not connected"))];
        };
        if matches!(self.phase, Phase::Idle) {
            self.phase = Phase::Delivering(Sender { conn, waited: false });
            return vec![Action::Deliver { runtime, message }];
        }
        let waiting: usize = self.queue.iter().map(|(.., bytes)| bytes).sum();
        if self.queue.len() >= self.limits.queue || waiting + bytes > self.limits.queue_bytes {
            let why = format!("the agent is busy, and {} messages wait already", self.queue.len());
            return vec![Action::AnswerError(conn, RpcError::new(QUEUE_FULL, why))];
        }
        self.queue.push_back((conn, message, bytes));
        vec![Action::AnswerQueued(conn)]
    }

    /// A `human_message` was written, or could not be.
    pub(crate) fn delivered(&mut self, written: bool) -> Vec<Action<M>> {
        let Phase::Delivering(sender) = self.phase else { return Vec::new() };
        if !written {
            return self.runtime_gone();
        }
        self.phase = Phase::Working { sender: Some(sender.conn), rounds: 0, turn: None };
        vec![if sender.waited {
            Action::NotifyDelivered(sender.conn)
        } else {
            Action::AnswerDelivered(sender.conn)
        }]
    }

    /// The runtime asks for a turn.
    ///
    /// # Errors
    /// One is running.
    pub(crate) fn turn(&mut self) -> Result<Vec<Action<M>>, RpcError> {
        // Its answer to the message overtook the news that the message was written.
        let mut actions = self.delivered(true);
        let (sender, rounds) = match self.phase {
            Phase::Working { turn: Some(_), .. } => {
                return Err(RpcError::new(INVALID_REQUEST, "a turn is running; wait for its answer"));
            }
            Phase::Working { sender, rounds, .. } => (sender, rounds),
            // Nobody sent anything: the runtime speaks on its own account.
            _ => (None, 0),
        };
        let rounds = rounds.saturating_add(1);
        self.epoch += 1;
        self.phase = Phase::Working { sender, rounds, turn: Some(self.epoch) };
        let last = rounds >= self.limits.rounds;
        actions.push(Action::Start { epoch: self.epoch, subscriber: sender, last });
        Ok(actions)
    }

    /// A turn ended. One that was cancelled is not listened to.
    pub(crate) fn finished(&mut self, epoch: u64, outcome: Outcome) -> Vec<Action<M>> {
        let Phase::Working { sender, rounds, turn } = self.phase else { return Vec::new() };
        if turn != Some(epoch) {
            return Vec::new();
        }
        match outcome {
            Outcome::ToolUse => {
                self.phase = Phase::Working { sender, rounds, turn: None };
                Vec::new()
            }
            Outcome::Done => self.release(sender.map(Action::NotifyEnd)),
            Outcome::Capped => self.release(sender.map(Action::NotifyCapped)),
            Outcome::Failed(why) => self.release(sender.map(|conn| Action::NotifyError(conn, why))),
        }
    }

    /// The runtime has been silent for too long while it had something to do: its message is given up.
    pub(crate) fn stalled(&mut self) -> Vec<Action<M>> {
        let Phase::Working { sender, turn: None, .. } = self.phase else { return Vec::new() };
        let why = "the runtime did not come back with its tools' results";
        self.release(sender.map(|conn| Action::NotifyError(conn, why.to_owned())))
    }

    /// A connection ended. A sender's message stays: `--no-wait` hangs up at once.
    pub(crate) fn closed(&mut self, conn: ConnId) -> Vec<Action<M>> {
        if self.runtime == Some(conn) { self.runtime_gone() } else { Vec::new() }
    }

    fn runtime_gone(&mut self) -> Vec<Action<M>> {
        self.runtime = None;
        let mut actions = Vec::new();
        match std::mem::replace(&mut self.phase, Phase::Idle) {
            Phase::Idle => {}
            Phase::Delivering(Sender { conn, waited: false }) => {
                actions.push(Action::AnswerError(conn, RpcError::new(NO_RUNTIME, "runtime not connected")));
            }
            Phase::Delivering(Sender { conn, waited: true }) => {
                actions.push(Action::NotifyError(conn, DISCONNECTED.to_owned()));
            }
            Phase::Working { sender, turn, .. } => {
                actions.extend(turn.map(|_| Action::Cancel));
                actions.extend(sender.map(|conn| Action::NotifyError(conn, DISCONNECTED.to_owned())));
            }
        }
        let queued =
            self.queue.drain(..).map(|(conn, ..)| Action::NotifyError(conn, DISCONNECTED.to_owned()));
        actions.extend(queued);
        actions
    }

    /// Done with one message; on to the next.
    fn release(&mut self, last_words: Option<Action<M>>) -> Vec<Action<M>> {
        self.phase = Phase::Idle;
        let mut actions: Vec<_> = last_words.into_iter().collect();
        if let Some(runtime) = self.runtime
            && let Some((conn, message, _)) = self.queue.pop_front()
        {
            self.phase = Phase::Delivering(Sender { conn, waited: true });
            actions.push(Action::Deliver { runtime, message });
        }
        actions
    }
}

#[cfg(test)]
mod tests;
