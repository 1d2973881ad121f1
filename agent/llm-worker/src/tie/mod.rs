//! The socket on which a run's container says which of its processes runs which tool call.
//!
//! A tool's shell starts `ringfence-runtime tie ID` first of all, which connects here and waits. The process that connected names
//! a call; which shell it means, and what that shell runs, is the kernel's to say: the supervisor, which is not confined, reads its
//! arguments, and the core ties it, after checks of its own. Whoever connects is hostile: what it says is bounded, and what it
//! gets is one process of its own tied to one call that waits, at most.
//!
//! | file | what |
//! |---|---|
//! | `outstanding` | the calls that nobody answered yet, and which have a process |
//! | `text` | whether a shell runs a call's command |

mod outstanding;
mod text;

pub(crate) use outstanding::{Outstanding, Waiting};

use crate::core_client::{CoreClient, RefusedParty};
use outstanding::Claim;
use ringfence_wire::{
    tie::{Heard, MAX_LINE, Said, Sure},
    trace::{AgentEvent, MAX_ID, MAX_TEXT, Refusal},
};
use std::{
    os::fd::AsFd,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};
use text::Places;
use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader},
    net::{UnixListener, UnixStream},
    sync::Semaphore,
    time::timeout,
};

/// Connections at a time; who comes then waits to be accepted, and goes on without a tie after its own time.
const CONNECTIONS: usize = 32;
/// How long one may take.
const TIME: Duration = Duration::from_secs(10);

/// What ties calls to processes.
pub(crate) struct Ties {
    /// The core, over the run's own line, and the supervisor.
    pub(crate) host: CoreClient,
    /// The calls that wait.
    pub(crate) outstanding: Arc<Outstanding>,
    /// Whose processes are heard.
    pub(crate) uid: u32,
}

impl Ties {
    /// Serves the socket for as long as the worker runs.
    pub(crate) async fn serve(self, listener: UnixListener) {
        let (ties, room) = (Arc::new(self), Arc::new(Semaphore::new(CONNECTIONS)));
        loop {
            // It is never closed.
            let Ok(permit) = Arc::clone(&room).acquire_owned().await else { return };
            let (stream, _) = ringfence_http::accept(|| listener.accept()).await;
            let ties = Arc::clone(&ties);
            tokio::spawn(async move {
                let _permit = permit;
                // An abstract socket has no mode: everybody on the host can connect.
                if stream.peer_cred().is_ok_and(|peer| peer.uid() == ties.uid) {
                    let _ = timeout(TIME, ties.hear(stream)).await;
                }
            });
        }
    }

    /// Answers what a process says until it ends, or says what nobody says.
    async fn hear(&self, mut stream: UnixStream) -> Option<()> {
        loop {
            let line = line(&mut stream).await?;
            let heard = match serde_json::from_slice::<Said>(&line).ok()? {
                Said::Tie { call } => match self.tie(&stream, call.as_deref()).await {
                    Ok(sure) => Heard::Tied(sure),
                    Err(why) => Heard::Refused(why),
                },
            };
            let mut answer = serde_json::to_vec(&heard).ok()?;
            answer.push(b'\n');
            stream.write_all(&answer).await.ok()?;
        }
    }

    async fn tie(&self, stream: &UnixStream, call: Option<&str>) -> Result<Sure, String> {
        let counts = self.host.counts();
        match self.tied(stream, call).await {
            Ok(sure) => {
                counts.tags.fetch_add(1, Ordering::Relaxed);
                Ok(sure)
            }
            Err(why) => {
                counts.refused_tags.fetch_add(1, Ordering::Relaxed);
                // Who names none is often none: each shell of an agent may try.
                if call.is_some() {
                    self.record(&why);
                }
                Err(why)
            }
        }
    }

    async fn tied(&self, stream: &UnixStream, call: Option<&str>) -> Result<Sure, String> {
        if call.is_some_and(|call| call.is_empty() || call.len() > MAX_ID) {
            return Err("that is no call's id".to_owned());
        }
        let (parent, arguments) =
            self.host.command_line(stream.as_fd()).await.map_err(|error| error.to_string())?;
        match self.outstanding.claim(call, &Places::of(&arguments))? {
            Claim::Taken(key, sure) => match self.host.tie(stream.as_fd(), parent).await {
                Ok(tag) => {
                    let (key, matched) = (key.as_str().to_owned(), sure == Sure::Matched);
                    self.host.report(&AgentEvent::Tagged { key, tag, matched });
                    Ok(sure)
                }
                Err(error) => {
                    self.outstanding.give_back(&key);
                    Err(error.to_string())
                }
            },
            Claim::Contested(key) => {
                // What is another call's already says nothing of this one.
                self.host.could_be_tied(stream.as_fd(), parent).await.map_err(|error| error.to_string())?;
                self.host.report(&AgentEvent::Contested { key: key.as_str().to_owned() });
                Err("the call has a process already".to_owned())
            }
        }
    }

    fn record(&self, why: &str) {
        if !self.host.may_record(RefusedParty::Known) {
            return;
        }
        tracing::debug!("a tie was refused: {why}");
        let (what, why) = ("tie".to_owned(), why.chars().take(MAX_TEXT).collect());
        self.host.report(&AgentEvent::Refused(Refusal { what, why, pid: None, uid: None, container: None }));
    }
}

/// The next line, without its end; none where there is no more, or it is too long.
async fn line(stream: &mut UnixStream) -> Option<Vec<u8>> {
    let mut line = Vec::new();
    let mut bounded = BufReader::with_capacity(1, stream).take(MAX_LINE as u64);
    bounded.read_until(b'\n', &mut line).await.ok()?;
    (line.pop() == Some(b'\n')).then_some(line)
}

#[cfg(test)]
mod tests;
