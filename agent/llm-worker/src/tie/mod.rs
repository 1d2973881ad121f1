//! The socket on which a run's container says which of its processes runs which tool call.
//!
//! A tool's shell starts `ringfence-runtime tie ID` first of all, which connects here and waits. The process that connected names
//! a call; which shell it means, and what that shell runs, is the kernel's to say: the supervisor, which is not confined, reads its
//! arguments, and the core ties it, after checks of its own. Whoever connects is hostile: what it says is bounded, and what it
//! gets is one process of its own tied to one call that waits, at most.
//!
//! An agent's own hooks say here which calls are over, too. That is their word: it is reported as that, once for each call that the
//! model wanted, and of nothing else.
//!
//! | file | what |
//! |---|---|
//! | `outstanding` | the calls that nobody answered yet, or that were answered lately, and which have a process |
//! | `text` | whether a shell runs a call's command |

mod outstanding;
mod text;

pub(crate) use outstanding::{Outstanding, Waiting};

use crate::{
    calls::CallKey,
    core_client::{CoreClient, Error, RefusedParty},
    report::now,
};
use outstanding::{Claim, Finished};
use ringfence_wire::{
    agent::NotTied,
    tie::{Done, Heard, MAX_LINE, Said, Sure},
    trace::{AgentEvent, MAX_ID, MAX_SESSION, MAX_TEXT, Refusal},
};
use std::{
    collections::VecDeque,
    os::fd::{AsFd, OwnedFd},
    sync::{Arc, atomic::Ordering},
    time::Duration,
};
use text::Places;
use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader},
    net::{UnixListener, UnixStream},
    sync::{OwnedSemaphorePermit, Semaphore},
    time::{Instant, timeout, timeout_at},
};
use tokio_util::sync::CancellationToken;

/// Connections at a time; who comes then waits to be accepted, and goes on without a tie after its own time.
const CONNECTIONS: usize = 32;
/// Of these, how many may have said nothing yet: whoever says nothing takes nobody's place.
const SILENT: usize = 8;
/// How long one may say nothing, and then take for its line.
const FIRST: Duration = Duration::from_secs(2);
const LINE: Duration = Duration::from_millis(300);
/// How long one may take from then on.
const TIME: Duration = Duration::from_secs(10);
/// How long it may wait until it is known whether others with the same words are tied: longer than the core is waited for.
const TURN: Duration = Duration::from_secs(60);

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
        let mut silent: VecDeque<CancellationToken> = VecDeque::new();
        loop {
            // It is never closed.
            let Ok(permit) = Arc::clone(&room).acquire_owned().await else { return };
            let (stream, _) = ringfence_http::accept(|| listener.accept()).await;
            // An abstract socket has no mode: everybody on the host can connect.
            if !stream.peer_cred().is_ok_and(|peer| peer.uid() == ties.uid) {
                continue;
            }
            // Cancelled once it has spoken, or when it is to go.
            silent.retain(|one| !one.is_cancelled());
            if silent.len() >= SILENT
                && let Some(oldest) = silent.pop_front()
            {
                oldest.cancel();
            }
            let own = CancellationToken::new();
            silent.push_back(own.clone());
            let ties = Arc::clone(&ties);
            tokio::spawn(async move {
                if speaks(&stream, &own).await {
                    let _ = timeout(TIME, ties.hear(stream, Arc::new(permit))).await;
                }
            });
        }
    }

    /// Answers the one line that a process says.
    async fn hear(&self, mut stream: UnixStream, place: Arc<OwnedSemaphorePermit>) -> Option<()> {
        let line = timeout(LINE, line(&mut stream)).await.ok()??;
        let heard = match serde_json::from_slice::<Said>(&line).ok()? {
            Said::Tie { call } => match self.tie(&stream, call.as_deref(), &place).await {
                Ok(sure) => Heard::Tied(sure),
                Err(why) => Heard::Refused(why),
            },
            Said::Done(done) => match self.done(done) {
                Ok(()) => Heard::Noted {},
                Err(why) => Heard::Refused(why.to_owned()),
            },
        };
        let mut answer = serde_json::to_vec(&heard).ok()?;
        answer.push(b'\n');
        stream.write_all(&answer).await.ok()
    }

    async fn tie(
        &self,
        stream: &UnixStream,
        call: Option<&str>,
        place: &Arc<OwnedSemaphorePermit>,
    ) -> Result<Sure, String> {
        let counts = self.host.counts();
        match self.tied(stream, call, place).await {
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

    async fn tied(
        &self,
        stream: &UnixStream,
        call: Option<&str>,
        place: &Arc<OwnedSemaphorePermit>,
    ) -> Result<Sure, String> {
        if call.is_some_and(|call| call.is_empty() || call.len() > MAX_ID) {
            return Err("that is no call's id".to_owned());
        }
        let (parent, arguments) =
            self.host.command_line(stream.as_fd()).await.map_err(|error| error.to_string())?;
        let connection = stream.as_fd().try_clone_to_owned().map_err(|error| error.to_string())?;
        let shell = Shell { connection, pid: parent, arguments, _place: Arc::clone(place) };
        let (host, outstanding) = (self.host.clone(), Arc::clone(&self.outstanding));
        let call = call.map(str::to_owned);
        // A task of its own: what comes of it after the connection's time is reported all the same.
        let tied = tokio::spawn(async move { shell.tied(&host, &outstanding, call.as_deref()).await });
        tied.await.map_err(|error| error.to_string())?
    }

    /// Reports what a hook says of a call that is over. Of what is no call of the run's model nothing is recorded: whoever speaks
    /// here could forge calls, or flood the record with them.
    fn done(&self, said: Done) -> Result<(), &'static str> {
        let Done { call, tool: _, session, failed } = said;
        if call.is_empty() || call.len() > MAX_ID {
            return Err("that is no call's id");
        }
        let key = match self.outstanding.done(&call) {
            Finished::Known(key) => key.as_str().to_owned(),
            Finished::Unknown => return Err("no call of this name"),
            Finished::Again => return Err("that was said before"),
            Finished::OneOfSeveral => return Err("more than one call of this name"),
        };
        let session = session.filter(|session| !session.is_empty() && session.len() <= MAX_SESSION);
        self.host.report(&AgentEvent::HookDone { key, session, failed, moment: now() });
        Ok(())
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

/// A shell that says it runs a call.
struct Shell {
    /// Of the process that it started.
    connection: OwnedFd,
    /// Process id.
    pid: u32,
    arguments: Vec<String>,
    /// Its connection's, of which there are [`CONNECTIONS`].
    _place: Arc<OwnedSemaphorePermit>,
}

impl Shell {
    async fn tied(
        &self,
        host: &CoreClient,
        outstanding: &Outstanding,
        call: Option<&str>,
    ) -> Result<Sure, String> {
        let places = Places::of(&self.arguments);
        let until = Instant::now() + TURN;
        loop {
            match outstanding.claim(call, &places)? {
                Claim::Taken(key, sure) => return self.take(host, outstanding, key, sure).await,
                Claim::Contested(keys) => return self.contest(host, outstanding, keys).await,
                // That other process may be one that takes no call.
                Claim::Asked(settled) => timeout_at(until, settled.cancelled())
                    .await
                    .map_err(|_| "it is not known yet whether the call has a process".to_owned())?,
            }
        }
    }

    /// Has the shell tagged for a call that it has taken.
    async fn take(
        &self,
        host: &CoreClient,
        outstanding: &Outstanding,
        key: CallKey,
        sure: Sure,
    ) -> Result<Sure, String> {
        let tied = host.tie(self.connection.as_fd(), self.pid).await;
        let (tag, is_sure) = match &tied {
            Ok(tag) => (Some(*tag), true),
            // Part of what it does is known to be the call's, if it is the call's.
            Err(Error::NotTied(NotTied::Late(tag), _)) => (Some(*tag), false),
            // The core may have tagged it.
            Err(Error::Silent | Error::Strange) => (None, false),
            Err(Error::Refused(_) | Error::NotTied(NotTied::Excused | NotTied::Unfit, _)) => (None, true),
        };
        if let Some(tag) = tag {
            let (key, matched) = (key.as_str().to_owned(), sure == Sure::Matched);
            host.report(&AgentEvent::Tagged { key, tag, matched });
        }
        outstanding.settle(&key, tag.is_some() || !is_sure);
        if !is_sure {
            contested(host, outstanding, &key).await;
        }
        tied.map(|_| sure).map_err(|error| error.to_string())
    }

    /// Has it told that these calls have another process, unless the word of this one is none.
    async fn contest(
        &self,
        host: &CoreClient,
        outstanding: &Outstanding,
        keys: Vec<CallKey>,
    ) -> Result<Sure, String> {
        // What is another call's already says nothing of this one. What cannot be tied, or be told any more, had the words.
        let could = host.could_be_tied(self.connection.as_fd(), self.pid).await;
        if let Err(Error::NotTied(NotTied::Excused, why)) = could {
            return Err(why);
        }
        for key in &keys {
            contested(host, outstanding, key).await;
        }
        Err("the call has a process already".to_owned())
    }
}

/// Tells that nothing of a call is sure any more, once.
async fn contested(host: &CoreClient, outstanding: &Outstanding, key: &CallKey) {
    if outstanding.contest(key) {
        let event = AgentEvent::Contested { key: key.as_str().to_owned() };
        host.report_patiently(&event, &CancellationToken::new()).await;
    }
}

/// Waits until a process says something, at most [`FIRST`]. It is silent no more then, or sent away.
async fn speaks(stream: &UnixStream, silent: &CancellationToken) -> bool {
    let speaks = tokio::select! {
        biased;
        readable = timeout(FIRST, stream.readable()) => readable.is_ok_and(|readable| readable.is_ok()),
        () = silent.cancelled() => false,
    };
    silent.cancel();
    speaks
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
