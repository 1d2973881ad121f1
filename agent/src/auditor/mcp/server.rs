//! The socket of MCP sessions: interceptors' links, and the command line's questions.

use super::{
    intake::Intake,
    waiting::{Decider, Link, Refused, Waiting, descends},
};
use crate::auditor::{
    clock,
    keeper::chain,
    metrics::Metrics,
    store::{CallFilter, SessionReader, SessionWriter, Standing, Viewer},
};
use crate::mcp::heads::database;
use nix::sys::socket::{getsockopt, sockopt::PeerCredentials};
use ringfence_wire::{
    conn::Conn,
    frame::FrameError,
    mcp::{MAX_MESSAGE, McpReply, McpRequest, SessionNews, SessionOrder, StoredRule, WaitingCall},
    message::Failure,
};
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    fs::{FileType, fstat},
};
use std::{
    collections::{HashMap, hash_map::Entry},
    fs::File,
    io,
    os::{
        fd::OwnedFd,
        unix::net::{UnixListener, UnixStream},
    },
    path::PathBuf,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU16, AtomicUsize, Ordering},
        mpsc,
    },
    thread,
    time::Duration,
};

/// How long a peer may take for one message.
const LIMIT: Duration = Duration::from_secs(5);
/// How often a journal is looked at without being told.
const LOOK: Timespec = Timespec { tv_sec: 0, tv_nsec: 250_000_000 };
/// Links and questions at once.
const MAX_CONNECTIONS: usize = 512;

/// Why a change of rules is not confirmed.
pub(crate) const NOT_PENDING: &str =
    "no such change of a rule file waits: it was confirmed or taken back, or the file was changed again";

/// What all connections share.
#[derive(Debug)]
pub(crate) struct Sessions {
    /// The database.
    pub(crate) db: PathBuf,
    /// The one writer of sessions.
    pub(crate) writer: Mutex<SessionWriter>,
    /// Calls that wait for a person.
    pub(crate) waiting: Waiting,
    /// Links that are up.
    pub(crate) links: AtomicUsize,
    /// Each session's link, its client's process id and its uid.
    linked: Mutex<HashMap<String, (Link, i32, u32)>>,
    /// Connections of any kind.
    connections: AtomicUsize,
    /// Port of the dashboard; 0: none yet.
    pub(crate) port: AtomicU16,
    /// Opens the dashboard.
    pub(crate) token: String,
    /// Pages that watch.
    pub(crate) viewers: AtomicUsize,
    /// Somebody asked something since this was last looked at.
    pub(crate) used: AtomicBool,
    /// What is counted for `/metrics`.
    pub(crate) metrics: Metrics,
    live: Mutex<Vec<mpsc::SyncSender<Live>>>,
}

/// What watchers are told; they read the rest from the store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Live {
    /// A call was asked for, answered or decided.
    Call(String),
    /// A session began or ended.
    Session(String),
}

impl Sessions {
    /// Shared state over a database.
    pub(crate) fn new(db: PathBuf, writer: SessionWriter, token: String) -> Self {
        Self {
            db,
            writer: Mutex::new(writer),
            waiting: Waiting::default(),
            links: AtomicUsize::new(0),
            linked: Mutex::default(),
            connections: AtomicUsize::new(0),
            port: AtomicU16::new(0),
            token,
            viewers: AtomicUsize::new(0),
            used: AtomicBool::new(false),
            metrics: Metrics::default(),
            live: Mutex::default(),
        }
    }

    /// What happens from now on. A watcher that does not read loses news, and nobody waits for it.
    pub(crate) fn watch(&self) -> mpsc::Receiver<Live> {
        let (sender, receiver) = mpsc::sync_channel(1024);
        self.live.lock().unwrap_or_else(PoisonError::into_inner).push(sender);
        receiver
    }

    /// Whether an interceptor of this session is linked.
    pub(crate) fn is_linked(&self, session: &str) -> bool {
        self.linked.lock().unwrap_or_else(PoisonError::into_inner).contains_key(session)
    }

    /// The client that this process descends from, if any: what opens the dashboard also approves that client's calls.
    fn client_of(&self, pid: i32) -> Option<i32> {
        let clients: Vec<i32> = {
            let linked = self.linked.lock().unwrap_or_else(PoisonError::into_inner);
            linked.values().map(|(_, client, _)| *client).collect()
        };
        clients.into_iter().find(|client| descends(pid, *client))
    }

    /// Puts the database's rules in force in every session that is linked.
    pub(crate) fn send_rules(&self, rules: &[StoredRule]) {
        let links: Vec<Link> = self
            .linked
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .values()
            .map(|(link, ..)| Arc::clone(link))
            .collect();
        for link in links {
            let mut link = link.lock().unwrap_or_else(PoisonError::into_inner);
            // A link that is broken is made again, and welcomed with the rules.
            let _ = link.send(&SessionOrder::Rules { rules: rules.to_vec() });
        }
    }

    /// Puts a changed rule file in force in every session of its user that has it, if that very change waits and
    /// `viewer` may decide it.
    pub(crate) fn confirm_rules(
        &self,
        viewer: u32,
        path: &str,
        sha256: &str,
        by: &str,
    ) -> Result<bool, crate::auditor::store::Error> {
        let now = clock::now_micros();
        let mut writer = self.writer.lock().unwrap_or_else(PoisonError::into_inner);
        let confirmed = writer.confirm_rules(Viewer(viewer), path, sha256, by, now)?;
        for (uid, text) in &confirmed {
            let order = SessionOrder::RuleFile {
                answers: None,
                path: path.to_owned(),
                text: text.clone(),
                held: None,
            };
            self.order(*uid, &order);
        }
        drop(writer);
        Ok(!confirmed.is_empty())
    }

    /// Sends an order to every session of a user that is linked.
    fn order(&self, uid: u32, order: &SessionOrder) {
        let links: Vec<Link> = {
            let linked = self.linked.lock().unwrap_or_else(PoisonError::into_inner);
            linked.values().filter(|(_, _, owner)| *owner == uid).map(|(link, ..)| Arc::clone(link)).collect()
        };
        for link in links {
            // A link that is broken is made again, and asks for what is in force.
            let _ = link.lock().unwrap_or_else(PoisonError::into_inner).send(order);
        }
    }

    pub(crate) fn tell(&self, live: &Live) {
        let mut watchers = self.live.lock().unwrap_or_else(PoisonError::into_inner);
        watchers.retain(|watcher| {
            !matches!(watcher.try_send(live.clone()), Err(mpsc::TrySendError::Disconnected(_)))
        });
    }

    fn advance(&self, intake: &mut Intake, session: &str) -> Result<(), super::intake::Error> {
        use super::ingest::Row;
        let news = intake.advance(&self.writer)?;
        for row in news.rows {
            self.metrics.count(intake.server(), &row);
            match row {
                Row::Call(call) => self.tell(&Live::Call(call.judged.call)),
                Row::Answer { call, .. } | Row::Decision { call, .. } => self.tell(&Live::Call(call)),
                Row::Session { .. } | Row::Client { .. } | Row::End { .. } => {
                    self.tell(&Live::Session(session.to_owned()));
                }
                Row::Message(_) => {}
            }
        }
        Ok(())
    }

    /// Takes in a journal that nobody is linked to any more.
    pub(crate) fn catch_up(
        &self,
        session: &str,
        journal: PathBuf,
        uid: u32,
    ) -> Result<(), super::intake::Error> {
        let file = File::open(&journal).map_err(crate::mcp::journal::Broken::from)?;
        let names = (session.to_owned(), journal.display().to_string());
        let mut intake = Intake::new(&self.writer, names, uid, file)?;
        self.advance(&mut intake, session)?;
        intake.abandon(&self.writer, clock::now_micros())
    }
}

/// Serves `listener` until the process ends.
pub(crate) fn serve(listener: &UnixListener, sessions: &Arc<Sessions>) {
    for stream in listener.incoming() {
        let Ok(stream) = stream else {
            // Out of descriptors: it passes.
            thread::sleep(Duration::from_millis(100));
            continue;
        };
        if sessions.connections.fetch_add(1, Ordering::SeqCst) >= MAX_CONNECTIONS {
            sessions.connections.fetch_sub(1, Ordering::SeqCst);
            continue;
        }
        let shared = Arc::clone(sessions);
        let spawned = thread::Builder::new().name("mcp".into()).stack_size(1 << 20).spawn(move || {
            if let Err(error) = converse(stream, &shared)
                && !matches!(error, FrameError::Closed)
            {
                tracing::debug!("a connection about MCP sessions ended: {}", chain(&error));
            }
            shared.connections.fetch_sub(1, Ordering::SeqCst);
        });
        if spawned.is_err() {
            sessions.connections.fetch_sub(1, Ordering::SeqCst);
        }
    }
}

fn converse(stream: UnixStream, sessions: &Arc<Sessions>) -> Result<(), FrameError> {
    let peer = getsockopt(&stream, PeerCredentials).map_err(|e| FrameError::from_io(e.into()))?;
    let mut conn = Conn::new(stream, LIMIT, MAX_MESSAGE);
    let (request, descriptors) = conn.receive_with_descriptors::<McpRequest>()?;
    let reply = match request {
        McpRequest::Session { session, journal, client } => {
            return match open_journal(descriptors, &session).and_then(|file| {
                let names = (session.clone(), journal);
                Intake::new(&sessions.writer, names, peer.uid(), file).map_err(|error| chain(&error))
            }) {
                Ok(intake) => link(conn, sessions, intake, &session, (peer.uid(), client)),
                Err(error) => conn.send(&McpReply::Failed(Failure::new(error))),
            };
        }
        McpRequest::Waiting => McpReply::Waiting { calls: sessions.waiting.list(peer.uid()) },
        McpRequest::Decide { call, approve } => {
            let who = Decider::Process { uid: peer.uid(), pid: peer.pid() };
            match sessions.waiting.decide(&call, approve, &who, &format!("uid {}", peer.uid())) {
                Ok(call) => McpReply::Decided { call },
                Err(refused) => McpReply::Failed(Failure::new(refused.to_string())),
            }
        }
        McpRequest::ConfirmRules { path, sha256 } => match sessions.client_of(peer.pid()) {
            Some(client) => McpReply::Failed(Failure::new(Refused::Descendant { client }.to_string())),
            None => {
                let by = format!("uid {}", peer.uid());
                match sessions.confirm_rules(peer.uid(), &path, &sha256, &by) {
                    Ok(true) => McpReply::Confirmed,
                    Ok(false) => McpReply::Failed(Failure::new(NOT_PENDING)),
                    Err(error) => McpReply::Failed(Failure::new(chain(&error))),
                }
            }
        },
        McpRequest::Dashboard => match sessions.port.load(Ordering::SeqCst) {
            0 => McpReply::Failed(Failure::new("the auditor has no dashboard: no port was free")),
            _ if peer.uid() != 0 && peer.uid() != nix::unistd::geteuid().as_raw() => {
                McpReply::Failed(Failure::new(
                    "the dashboard of the daemon shows every user's sessions: only root may open it",
                ))
            }
            port => match sessions.client_of(peer.pid()) {
                Some(client) => McpReply::Failed(Failure::new(Refused::Descendant { client }.to_string())),
                None => {
                    McpReply::Dashboard { url: format!("http://127.0.0.1:{port}/#token={}", sessions.token) }
                }
            },
        },
        question => SessionReader::open(&sessions.db)
            .and_then(|reader| match question {
                McpRequest::Calls { risk, verdict, session, limit } => {
                    let filter = CallFilter { risk, verdict, session, limit, ..CallFilter::default() };
                    reader.calls(Viewer(peer.uid()), &filter)
                }
                McpRequest::Table { table, after, limit } => {
                    reader.table(Viewer(peer.uid()), &table, after, limit)
                }
                McpRequest::Sessions { limit } => reader.sessions(Viewer(peer.uid()), limit),
                McpRequest::PendingRules => reader.pending_rules(Viewer(peer.uid())),
                McpRequest::Heads => {
                    let heads = reader.heads(Viewer(peer.uid()), &database(&sessions.db), false)?;
                    Ok(heads.iter().map(|head| serde_json::json!({ "head": head.to_string() })).collect())
                }
                _ => reader.stats(Viewer(peer.uid())).map(|row| vec![row]),
            })
            .map_or_else(|e| McpReply::Failed(Failure::new(chain(&e))), |rows| McpReply::Rows { rows }),
    };
    conn.send(&reply)
}

/// The journal beside a session's first message: a regular file, or it is refused; a pipe would hold this thread.
fn open_journal(mut descriptors: Vec<OwnedFd>, session: &str) -> Result<File, String> {
    let refuse = |why: &str| format!("session {session:?}: {why}");
    if uuid::Uuid::try_parse(session).is_err() {
        return Err(refuse("a session's id is a UUID"));
    }
    match (descriptors.pop(), descriptors.is_empty()) {
        (Some(journal), true) => {
            let regular =
                fstat(&journal).is_ok_and(|s| FileType::from_raw_mode(s.st_mode) == FileType::RegularFile);
            if regular { Ok(File::from(journal)) } else { Err(refuse("its journal is not a regular file")) }
        }
        _ => Err(refuse("one descriptor, the journal, comes beside it")),
    }
}

fn link(
    mut conn: Conn,
    sessions: &Arc<Sessions>,
    mut intake: Intake,
    session: &str,
    (uid, client): (u32, i32),
) -> Result<(), FrameError> {
    let writing = conn.stream().try_clone().map_err(FrameError::from_io)?;
    let writing: Link = Arc::new(Mutex::new(Conn::new(writing, LIMIT, MAX_MESSAGE)));
    match sessions.linked.lock().unwrap_or_else(PoisonError::into_inner).entry(session.to_owned()) {
        Entry::Occupied(_) => {
            let failure = Failure::new(format!("session {session} is linked already"));
            return conn.send(&McpReply::Failed(failure));
        }
        Entry::Vacant(place) => drop(place.insert((Arc::clone(&writing), client, uid))),
    }
    sessions.links.fetch_add(1, Ordering::SeqCst);
    let welcomed = welcome(&writing, sessions);
    let mut paused = Vec::new();
    let outcome = welcomed
        .and_then(|()| news(&mut conn, &writing, sessions, &mut intake, session, (uid, client), &mut paused));
    // A call whose interceptor is gone waits for nobody.
    for call in paused {
        sessions.waiting.remove(&call);
    }
    if let Err(error) = sessions
        .advance(&mut intake, session)
        .and_then(|()| intake.abandon(&sessions.writer, clock::now_micros()))
    {
        tracing::error!("session {session}: {}", chain(&error));
        let mut writer = sessions.writer.lock().unwrap_or_else(PoisonError::into_inner);
        let _ = writer.broken(session, &chain(&error));
    }
    sessions.tell(&Live::Session(session.to_owned()));
    sessions.linked.lock().unwrap_or_else(PoisonError::into_inner).remove(session);
    sessions.links.fetch_sub(1, Ordering::SeqCst);
    outcome
}

/// The first answer. Nothing else is sent before it: rules that change meanwhile wait for the lock.
fn welcome(writing: &Link, sessions: &Sessions) -> Result<(), FrameError> {
    let mut writing = writing.lock().unwrap_or_else(PoisonError::into_inner);
    match SessionReader::open(&sessions.db).and_then(|reader| reader.stored_rules()) {
        Ok(rules) => writing.send(&McpReply::Welcome { port: sessions.port.load(Ordering::SeqCst), rules }),
        Err(error) => writing.send(&McpReply::Failed(Failure::new(chain(&error)))),
    }
}

fn news(
    conn: &mut Conn,
    writing: &Link,
    sessions: &Arc<Sessions>,
    intake: &mut Intake,
    session: &str,
    (uid, client): (u32, i32),
    paused: &mut Vec<String>,
) -> Result<(), FrameError> {
    loop {
        let ready = {
            let mut polled = [PollFd::new(conn.stream(), PollFlags::IN)];
            poll(&mut polled, Some(&LOOK)).map_err(|errno| FrameError::from_io(io::Error::from(errno)))? > 0
        };
        let message = if ready { Some(conn.receive::<SessionNews>()?) } else { None };
        if let Err(error) = sessions.advance(intake, session) {
            match error {
                // The store may work again; the journal keeps what it has.
                super::intake::Error::Store(error) => tracing::warn!("session {session}: {}", chain(&error)),
                error => {
                    tracing::error!("session {session}: {}", chain(&error));
                    let mut writer = sessions.writer.lock().unwrap_or_else(PoisonError::into_inner);
                    let _ = writer.broken(session, &chain(&error));
                    return Err(FrameError::Closed);
                }
            }
        }
        match message {
            None | Some(SessionNews::Grew) => {}
            Some(SessionNews::Paused { call, until }) => {
                if let Some(waiting) = describe(sessions, intake, session, &call, until) {
                    sessions.waiting.add(waiting, uid, client, Arc::clone(writing));
                    paused.push(call.clone());
                    sessions.tell(&Live::Call(call));
                }
            }
            Some(SessionNews::Released { call }) => {
                paused.retain(|held| *held != call);
                sessions.waiting.remove(&call);
                sessions.tell(&Live::Call(call));
            }
            Some(SessionNews::RuleFile { number, file }) => {
                let now = clock::now_micros();
                let standing = {
                    let mut writer = sessions.writer.lock().unwrap_or_else(PoisonError::into_inner);
                    writer.offer_rules(uid, &file, now)
                };
                // Without an answer the session's first call would wait: better to part, and meet again.
                let Standing { text, held } = standing.map_err(|error| {
                    tracing::error!("session {session}: {}", chain(&error));
                    FrameError::Closed
                })?;
                if held.is_some() {
                    sessions.tell(&Live::Session(session.to_owned()));
                }
                let order = SessionOrder::RuleFile { answers: Some(number), path: file.path, text, held };
                writing.lock().unwrap_or_else(PoisonError::into_inner).send(&order)?;
            }
            Some(SessionNews::Ended) => {
                if intake.ended() {
                    let mut writing = writing.lock().unwrap_or_else(PoisonError::into_inner);
                    writing.send(&SessionOrder::Committed)?;
                }
                return Ok(());
            }
        }
    }
}

/// A paused call as people are shown it, from the store: the journal had it before the news came.
fn describe(
    sessions: &Sessions,
    intake: &Intake,
    session: &str,
    call: &str,
    until: i64,
) -> Option<WaitingCall> {
    let row = SessionReader::open(&sessions.db).and_then(|reader| reader.call(Viewer(0), call)).ok()??;
    let text = |key: &str| row.get(key).and_then(serde_json::Value::as_str).unwrap_or_default().to_owned();
    let list = |key: &str| {
        let items = row.get(key).and_then(serde_json::Value::as_array);
        items.into_iter().flatten().filter_map(|v| v.as_str().map(str::to_owned)).collect()
    };
    if text("session_id") != session {
        return None;
    }
    Some(WaitingCall {
        id: call.to_owned(),
        session: session.to_owned(),
        server: intake.server().to_owned(),
        tool: text("tool_name"),
        arguments: row.get("arguments").map(ToString::to_string).unwrap_or_default(),
        score: row
            .get("risk_score")
            .and_then(serde_json::Value::as_u64)
            .and_then(|n| u8::try_from(n).ok())
            .unwrap_or(100),
        reasons: list("risk_reasons"),
        rules: list("rules"),
        since: clock::now_micros(),
        until,
    })
}
