//! What is asked on the control socket, and what is answered: what runs, that it stop.

use super::{COUNTING, User, running::Running};
use crate::{
    control::{AgentState, AgentStatus, ControlReply, ControlRequest, MAX_REQUEST, UserStatus},
    frame::FrameReader,
};
use std::{sync::Arc, time::Duration};
use tokio::{
    io::AsyncWriteExt,
    net::UnixStream,
    sync::{mpsc, oneshot},
};

/// A question, and where its answer goes.
pub(super) type Question = (ControlRequest, oneshot::Sender<ControlReply>);

impl User {
    /// Stops one agent.
    pub(super) fn stop_agent(&mut self, name: String) -> ControlReply {
        if !self.agents.contains_key(&name) {
            let known: Vec<&str> = self.agents.keys().map(String::as_str).collect();
            let others = match known.is_empty() {
                true => "none does".to_owned(),
                false => format!("those that do: {}", known.join(", ")),
            };
            return ControlReply::Failed { message: format!("no agent {name:?} runs; {others}") };
        }
        tracing::info!("agent {name} is stopped by hand; SIGHUP starts it again");
        self.drain(&name);
        self.stopped.insert(name);
        ControlReply::Done
    }

    /// Has all workers say what they do, and hands `reply` on once they have. One that does not say it in time is shown as it
    /// was.
    pub(super) fn count(
        &mut self,
        reply: oneshot::Sender<ControlReply>,
        counted: mpsc::Sender<oneshot::Sender<ControlReply>>,
    ) {
        let all = self.agents.values_mut().chain(self.draining.values_mut());
        let counts: Vec<_> = all.filter_map(Running::count).collect();
        tokio::spawn(async move {
            let all = async {
                for count in counts {
                    count.await;
                }
            };
            let _ = tokio::time::timeout(COUNTING, all).await;
            let _ = counted.send(reply).await;
        });
    }

    pub(super) fn status(&self) -> UserStatus {
        let bare = |name: &String, state, error: Option<&String>| AgentStatus {
            name: name.clone(),
            state,
            error: error.cloned(),
            model: None,
            governed: false,
            socket: self.home.socket(name),
            pid: None,
            worker: None,
        };
        let of = |(name, running): (&String, &Running)| AgentStatus {
            model: Some(format!("{}/{}", running.config.llm.provider.name(), running.config.llm.model)),
            governed: running.config.governed,
            pid: running.pid(),
            worker: running.status(),
            ..bare(name, running.state(), running.problem())
        };
        let failed = self.failed.iter().map(|(name, why)| bare(name, AgentState::Failed, Some(why)));
        let stopped = self.stopped.iter().filter(|name| !self.draining.contains_key(*name));
        let mut agents: Vec<AgentStatus> = self.agents.iter().chain(&self.draining).map(of).collect();
        agents.extend(stopped.map(|name| bare(name, AgentState::Stopped, None)));
        agents.extend(failed);
        agents.sort_by(|a, b| a.name.cmp(&b.name));
        UserStatus {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            pid: std::process::id(),
            since_ms: u64::try_from(self.since.as_millisecond()).unwrap_or(0),
            profiles: self.home.agents(),
            error: self.error.clone(),
            agents,
        }
    }
}

/// Answers on the control socket, one question a connection. Its directory is the user's alone.
pub(super) async fn answer(
    listener: tokio::net::UnixListener,
    questions: mpsc::Sender<Question>,
    places: Arc<tokio::sync::Semaphore>,
) {
    loop {
        let Ok(place) = Arc::clone(&places).acquire_owned().await else { return };
        let (stream, _) = ringfence_http::accept(|| listener.accept()).await;
        let questions = questions.clone();
        tokio::spawn(async move {
            let _place = place;
            let _ = tokio::time::timeout(Duration::from_secs(10), answer_one(stream, questions)).await;
        });
    }
}

async fn answer_one(mut stream: UnixStream, questions: mpsc::Sender<Question>) -> Option<()> {
    let body = FrameReader::new(&mut stream).next(None).await.ok()?;
    let request = match body.len() {
        ..=MAX_REQUEST => serde_json::from_slice(&body).map_err(|e| e.to_string()),
        _ => Err("too long".to_owned()),
    };
    let reply = match request {
        Ok(request) => {
            let (reply, replied) = oneshot::channel();
            questions.send((request, reply)).await.ok()?;
            replied.await.ok()?
        }
        Err(why) => ControlReply::Failed { message: format!("not a request: {why}") },
    };
    let bytes = serde_json::to_vec(&reply).ok()?;
    let frame = ringfence_wire::frame::framed(&bytes).ok()?;
    stream.write_all(&frame).await.ok()
}
