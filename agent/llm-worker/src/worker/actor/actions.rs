//! What [`Agent`](crate::agent::Agent) decided, done: frames to peers, turns to the task that runs them.

use super::{AgentActor, Waiting};
use crate::{
    agent::{Action, ConnId},
    rpc,
    turn::{Job, MAX_ITERATIONS, Order},
};
use serde::Serialize;
use std::sync::Arc;
use tokio::{sync::oneshot, time::Instant};
use tokio_util::sync::CancellationToken;

impl AgentActor {
    pub(super) fn push(&self, conn: ConnId, frame: bytes::Bytes) {
        // A sender that hung up was not interested.
        if let Some(peer) = self.peers.get(&conn) {
            peer.push(frame);
        }
    }

    /// A sender knows what became of its message, and waits for nothing.
    fn rests(&self, conn: ConnId) {
        self.peers.get(&conn).inspect(|peer| peer.rests());
    }

    pub(super) async fn act(&mut self, actions: Vec<Action<Waiting>>) {
        for action in actions {
            match action {
                Action::Deliver { runtime, message } => {
                    self.idle_since = Instant::now();
                    let Waiting { conn, uid, content } = message;
                    self.intent = Some(self.reporter.intent(conn, uid, &content, &self.redactor));
                    let frame = rpc::human_message(&content);
                    let (never, gone) = oneshot::channel();
                    drop(never);
                    self.delivered =
                        Some(self.peers.get(&runtime).map_or(gone, |peer| peer.push_watched(frame)));
                }
                Action::AnswerDelivered(conn) => self.answer(conn, "delivered"),
                Action::AnswerQueued(conn) => self.answer(conn, "queued"),
                Action::AnswerError(conn, error) => {
                    self.end_intent(conn, Some(&error.message));
                    if let Some(id) = self.ids.remove(&conn) {
                        self.push(conn, rpc::error(Some(&id), &error));
                    }
                    self.rests(conn);
                }
                Action::NotifyDelivered(conn) => self.push(conn, rpc::plain("delivered")),
                Action::NotifyEnd(conn) => self.end(conn, None, rpc::plain("end_turn")),
                Action::NotifyCapped(conn) => {
                    self.end(conn, Some("its limit of rounds was reached"), rpc::ended(MAX_ITERATIONS));
                }
                Action::NotifyError(conn, why) => self.end(conn, Some(&why), rpc::failed(&why)),
                Action::Start { epoch, subscriber, last } => self.start(epoch, subscriber, last).await,
                Action::Cancel => {
                    self.turn.take().inspect(CancellationToken::cancel);
                }
            }
        }
    }

    /// A sender's message is done with: its last frame.
    fn end(&mut self, conn: ConnId, error: Option<&str>, last: bytes::Bytes) {
        self.end_intent(conn, error);
        self.ids.remove(&conn);
        self.push(conn, last);
        self.rests(conn);
    }

    /// If this sender's message is the one that is worked on, that is over.
    fn end_intent(&mut self, conn: ConnId, error: Option<&str>) {
        if let Some(intent) = self.intent.take_if(|intent| intent.conn == conn) {
            self.reporter.intent_ended(&intent, error, &self.redactor);
        }
    }

    fn answer(&self, conn: ConnId, status: &'static str) {
        #[derive(Serialize)]
        struct Status {
            status: &'static str,
        }
        if let Some(id) = self.ids.get(&conn) {
            self.push(conn, rpc::result(id, &Status { status }));
        }
    }

    async fn start(&mut self, epoch: u64, subscriber: Option<ConnId>, last: bool) {
        let Some((id, params)) = self.job.take() else { return };
        let Some(runtime) = self.agent.runtime().and_then(|conn| self.peers.get(&conn)).cloned() else {
            return;
        };
        let cancel = CancellationToken::new();
        self.turn = Some(cancel.clone());
        let subscriber = subscriber.and_then(|conn| self.peers.get(&conn)).cloned();
        let intent = self.intent.clone();
        let answered = Arc::clone(&self.answered);
        let job = Job { epoch, id, params, runtime, subscriber, intent, last, cancel, answered };
        self.ordered += 1;
        // There is one turn under way, and those before it are being cancelled: there is room.
        let _ = self.orders.send(Order::Turn(job)).await;
    }
}
