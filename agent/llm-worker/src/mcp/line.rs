//! The line to the auditor, which has what is pinned of all tools: each list is told it, and what it answers counts.
//!
//! The supervisor makes the connection. Without one, and until there is one again, this agent's file says what was pinned last.

use super::pins::{Pins, Told, Word};
use crate::{core_client::CoreClient, frame::FrameReader};
use ringfence_base::error::chain;
use ringfence_wire::{
    agent_tools::{SEEN_AT_ONCE, SeenTool, ToolsPinned, ToolsSeen},
    frame::framed,
    mcp::{McpReply, PinnedTool},
};
use std::{
    collections::HashMap,
    os::unix::net::UnixStream as StdStream,
    sync::{
        Arc, Mutex as Blocking, MutexGuard, OnceLock, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};
use tokio::{
    io::AsyncWriteExt,
    net::{
        UnixStream,
        unix::{OwnedReadHalf, OwnedWriteHalf},
    },
    sync::{Mutex, oneshot},
    time::timeout,
};
use tokio_util::sync::{CancellationToken, DropGuard};

/// How long a turn waits for the auditor, before what the file says counts.
const WAIT: Duration = Duration::from_secs(3);
/// How long the auditor may take to answer: its disk may be busy.
const PATIENCE: Duration = Duration::from_secs(20);
/// How long lists go without the auditor before it is tried again: at first, and at most.
const FIRST_PAUSE: Duration = Duration::from_secs(2);
const LONGEST_PAUSE: Duration = Duration::from_secs(60);

/// Whoever supervises the worker, once that is known.
pub(crate) type Host = Arc<OnceLock<CoreClient>>;

/// See the module.
pub(super) struct ToolsLine(Arc<Line>);

struct Line {
    host: Host,
    link: Mutex<Option<Link>>,
    away: Blocking<Option<Away>>,
    /// The lists that are being told, by their numbers, and whether whoever listed went on without the answer.
    telling: Blocking<HashMap<u64, bool>>,
    news: Arc<News>,
    pins: Pins,
    last: AtomicU64,
}

/// A connection.
struct Link {
    write: OwnedWriteHalf,
    shared: Arc<Shared>,
    /// The task that reads ends with this.
    _reads: DropGuard,
}

#[derive(Default)]
struct Shared {
    answers: Blocking<HashMap<u64, oneshot::Sender<Told>>>,
    is_over: AtomicBool,
}

/// Counts what may have changed what is pinned.
#[derive(Default)]
struct News(AtomicU64);

impl News {
    /// Has the file say what the auditor says.
    async fn settle(&self, pins: Pins, server: String, told: Told) {
        let settled = tokio::task::spawn_blocking(move || pins.settle(&server, &told)).await;
        if let Ok(Err(error)) = settled {
            tracing::warn!("{}", chain(&error));
        }
        self.0.fetch_add(1, Ordering::Release);
    }
}

/// The auditor cannot be told.
struct Away {
    why: String,
    again: (Instant, Duration),
}

impl ToolsLine {
    pub(super) fn new(host: Host, pins: Pins) -> Self {
        Self(Arc::new(Line {
            host,
            link: Mutex::default(),
            away: Blocking::default(),
            telling: Blocking::default(),
            news: Arc::default(),
            pins,
            last: AtomicU64::new(0),
        }))
    }

    /// A number that is another once what is pinned may have changed.
    pub(super) fn news(&self) -> u64 {
        self.0.news.0.load(Ordering::Acquire)
    }

    /// Whether the auditor could not be told, and it is time to try again.
    pub(super) fn is_due(&self) -> bool {
        self.0.away().as_ref().is_some_and(|away| Instant::now() >= away.again.0)
    }

    /// Tells the auditor what a server lists, and gives what it has pinned of that; `None`: it cannot be told now, or takes long.
    /// That is done whatever becomes of this future: nobody leaves half a list behind, and nobody waits for one that hangs twice.
    pub(super) async fn tell(&self, server: &str, address: &str, tools: Vec<SeenTool>) -> Option<Told> {
        let line = &self.0;
        line.host.get()?;
        let number = line.last.fetch_add(1, Ordering::Relaxed) + 1;
        {
            let mut telling = line.telling();
            if telling.values().any(|late| *late) {
                return None;
            }
            telling.insert(number, false);
        }
        let (server, address) = (server.to_owned(), address.to_owned());
        let seen = ToolsSeen { number, server, address, tools, more: false };
        let (answer, mut answered) = oneshot::channel();
        let _waits = Waits { line, number };
        tokio::spawn(Arc::clone(line).tell(seen, answer));
        match timeout(WAIT, &mut answered).await {
            Ok(told) => told.ok().flatten(),
            Err(_) => {
                answered.close();
                answered.try_recv().ok().flatten()
            }
        }
    }
}

/// Whoever listed waits for the answer.
struct Waits<'a> {
    line: &'a Line,
    number: u64,
}

impl Drop for Waits<'_> {
    fn drop(&mut self) {
        if let Some(late) = self.line.telling().get_mut(&self.number) {
            *late = true;
        }
    }
}

impl Line {
    fn away(&self) -> MutexGuard<'_, Option<Away>> {
        self.away.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn telling(&self) -> MutexGuard<'_, HashMap<u64, bool>> {
        self.telling.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn tell(self: Arc<Self>, seen: ToolsSeen, answer: oneshot::Sender<Option<Told>>) {
        let (number, server) = (seen.number, seen.server.clone());
        let told = self.try_to_tell(seen).await;
        self.telling().remove(&number);
        if let Err(Some(told)) = answer.send(told) {
            // Nobody waits for it any more: the next turn lists again.
            self.news.settle(self.pins.clone(), server, told).await;
        }
    }

    async fn try_to_tell(&self, seen: ToolsSeen) -> Option<Told> {
        let host = self.host.get()?;
        let mut link = self.link.lock().await;
        if link.as_ref().is_some_and(|link| link.shared.is_over.load(Ordering::Acquire)) {
            *link = None;
        }
        if link.is_none() && self.away().as_ref().is_some_and(|away| Instant::now() < away.again.0) {
            return None;
        }
        let begun = Instant::now();
        match self.told(host, &mut link, seen).await {
            Ok(told) => {
                if self.away().take().is_some() {
                    tracing::info!("the auditor says again what is pinned of MCP tools");
                }
                Some(told)
            }
            Err(why) => {
                *link = None;
                self.is_away(why, begun.elapsed());
                None
            }
        }
    }

    async fn told(
        &self,
        host: &CoreClient,
        place: &mut Option<Link>,
        seen: ToolsSeen,
    ) -> Result<Told, String> {
        let link = match place {
            Some(link) => link,
            None => place.insert(self.connect(host).await?),
        };
        let (answer, answered) = oneshot::channel();
        link.shared.answers.lock().unwrap_or_else(PoisonError::into_inner).insert(seen.number, answer);
        let talk = async {
            for part in parts(seen) {
                let body = serde_json::to_vec(&part).map_err(|error| error.to_string())?;
                let frame = framed(&body).map_err(|error| error.to_string())?;
                link.write.write_all(&frame).await.map_err(|error| error.to_string())?;
            }
            answered.await.map_err(|_| "it closed the connection".to_owned())
        };
        timeout(PATIENCE, talk)
            .await
            .unwrap_or_else(|_| Err(format!("it did not answer within {PATIENCE:?}")))
    }

    async fn connect(&self, host: &CoreClient) -> Result<Link, String> {
        let line = host.tools_line().await.map_err(|error| error.to_string())?;
        let line = StdStream::from(line);
        line.set_nonblocking(true).map_err(|error| error.to_string())?;
        let (read, write) = UnixStream::from_std(line).map_err(|error| error.to_string())?.into_split();
        let mut reader = FrameReader::new(read);
        let first = reader.next(Some(PATIENCE)).await.map_err(|error| chain(&error))?;
        match serde_json::from_slice(&first) {
            Ok(McpReply::Linked) => {}
            Ok(McpReply::Failed(failure)) => return Err(failure.error),
            _ => {
                return Err("it answers something else than was asked; is it of the same version?".to_owned());
            }
        }
        let (shared, stop) = (Arc::<Shared>::default(), CancellationToken::new());
        let reading = read_all(reader, Arc::clone(&shared), Arc::clone(&self.news), self.pins.clone());
        let stopped = stop.clone();
        tokio::spawn(async move {
            tokio::select! {
                () = reading => {}
                () = stopped.cancelled() => {}
            }
        });
        Ok(Link { write, shared, _reads: stop.drop_guard() })
    }

    fn is_away(&self, why: String, took: Duration) {
        let mut away = self.away();
        // Whoever reads the log is told once.
        if away.as_ref().is_none_or(|before| before.why != why) {
            tracing::warn!(
                "the auditor cannot be told of MCP tools, and what this agent's file says is pinned counts until it can be: {why}"
            );
        }
        let pause = away.as_ref().map_or(FIRST_PAUSE, |before| before.again.1 * 2);
        // One that hangs is asked rarely from the first time on.
        let pause = pause.min(LONGEST_PAUSE).max(10 * took);
        *away = Some(Away { why, again: (Instant::now() + pause, pause) });
    }
}

/// Hears the auditor until it ends.
async fn read_all(mut reader: FrameReader<OwnedReadHalf>, shared: Arc<Shared>, news: Arc<News>, pins: Pins) {
    while let Ok(body) = reader.next(None).await {
        let Ok(ToolsPinned { number, server, tools }) = serde_json::from_slice(&body) else { break };
        let word = |tool: PinnedTool| (tool.name, Word { sha256: tool.sha256, rejected: tool.rejected });
        let told: Told = tools.into_iter().map(word).collect();
        let waits = shared.answers.lock().unwrap_or_else(PoisonError::into_inner).remove(&number);
        match waits {
            Some(waits) => drop(waits.send(told)),
            None if number == 0 => {
                // Somebody decided: whoever asks for what waits sees it before the next turn, which lists again.
                news.settle(pins.clone(), server, told).await;
            }
            None => {}
        }
    }
    shared.is_over.store(true, Ordering::Release);
    // Nobody answers those any more; and the next turn finds another line.
    shared.answers.lock().unwrap_or_else(PoisonError::into_inner).clear();
    news.0.fetch_add(1, Ordering::Release);
}

/// A list in parts that are short enough.
fn parts(seen: ToolsSeen) -> Vec<ToolsSeen> {
    let part = |tools| ToolsSeen {
        number: seen.number,
        server: seen.server.clone(),
        address: seen.address.clone(),
        tools,
        more: true,
    };
    let (mut parts, mut tools, mut bytes) = (Vec::new(), Vec::new(), 0);
    for tool in seen.tools {
        let texts = std::iter::once(&tool.now).chain(&tool.trusted).filter_map(|seen| seen.text.as_ref());
        let more: usize = texts.map(String::len).sum();
        if bytes + more > SEEN_AT_ONCE && !tools.is_empty() {
            parts.push(part(std::mem::take(&mut tools)));
            bytes = 0;
        }
        bytes += more;
        tools.push(tool);
    }
    let last = part(tools);
    parts.push(ToolsSeen { more: false, ..last });
    parts
}

#[cfg(test)]
mod tests;
