//! The socket of MCP sessions: interceptors' links, and the command line's questions.

use super::{
    intake::{Gate, Intake, Progress},
    peers::{Bounds, Open, Place, Vouching},
    waiting::{Decider, Link, Refused, Waiting},
};
use crate::auditor::{
    belongs, clock,
    keeper::chain,
    metrics::Metrics,
    shared::Shared,
    store::{self, CallFilter, SessionReader, SessionWriter, Standing, Viewer},
};
use crate::mcp::heads::database;
use nix::sys::{
    eventfd::{EfdFlags, EventFd},
    socket::{getsockopt, sockopt::PeerCredentials},
};
use ringfence_wire::{
    conn::Conn,
    frame::FrameError,
    mcp::{MAX_MESSAGE, MAX_OFFERED, McpReply, McpRequest, SessionNews, SessionOrder, WaitingCall},
    message::{Failure, McpStatus},
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
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU16, AtomicU64, AtomicUsize, Ordering},
        mpsc,
    },
    thread,
    time::{Duration, Instant},
};
use subtle::ConstantTimeEq;

/// How long a peer may take for one message.
const LIMIT: Duration = Duration::from_secs(5);
/// How often a journal is looked at without being told.
const LOOK: Timespec = Timespec { tv_sec: 0, tv_nsec: 250_000_000 };
/// How long links may take to read what their journals have.
const REFRESH: Duration = Duration::from_millis(400);
/// How long the core may take to hand over what its rings hold.
const SETTLE: Duration = Duration::from_secs(1);
/// Links and questions at once, of all users.
const MAX_CONNECTIONS: usize = 512;
/// The same of one user, and how many of them may be sessions; a user's own auditor has no others to keep room for.
const CONNECTIONS_EACH: usize = 96;
const SESSIONS_EACH: usize = 64;
/// Users that have opened the dashboard.
const MAX_TOKENS: usize = 1024;
/// Journals asked for after one offer.
const MAX_WANTED: usize = 256;

/// Whom an auditor serves.
#[derive(Debug)]
pub(crate) enum Serving {
    /// The user whose it is.
    Own,
    /// Everybody, on behalf of the daemon.
    Everybody {
        /// How to learn who a peer is.
        vouching: Vouching,
        /// The threads beside, which replace a corrupt database.
        shared: Arc<Shared>,
    },
}

/// An interceptor's link.
#[derive(Debug, Clone)]
struct Linked {
    link: Link,
    uid: u32,
    client: u32,
    progress: Arc<Progress>,
    /// Has the link's thread look at the journal.
    nudge: Arc<EventFd>,
}

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
    pub(crate) links: Open,
    /// Each session's link.
    linked: Mutex<HashMap<String, Linked>>,
    /// Connections of any kind.
    connections: Open,
    /// Connections and links that were turned away.
    turned_away: AtomicU64,
    /// Port of the dashboard; 0: none yet.
    pub(crate) port: AtomicU16,
    /// What opens the dashboard, for each user that asked.
    tokens: Mutex<Vec<(u32, String)>>,
    gates: Mutex<HashMap<u32, Gate>>,
    vouching: Vouching,
    shared: Option<Arc<Shared>>,
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
    pub(crate) fn new(db: PathBuf, serving: Serving) -> Self {
        let whole = Bounds { all: MAX_CONNECTIONS, each: MAX_CONNECTIONS };
        let (vouching, shared, connections, links) = match serving {
            Serving::Own => (Vouching::Proc, None, whole, whole),
            Serving::Everybody { vouching, shared } => {
                let each = |each| Bounds { each, ..whole };
                (vouching, Some(shared), each(CONNECTIONS_EACH), each(SESSIONS_EACH))
            }
        };
        Self {
            writer: Mutex::new(SessionWriter::new(db.clone())),
            db,
            waiting: Waiting::default(),
            links: Open::within(links),
            linked: Mutex::default(),
            connections: Open::within(connections),
            turned_away: AtomicU64::new(0),
            port: AtomicU16::new(0),
            tokens: Mutex::default(),
            gates: Mutex::default(),
            vouching,
            shared,
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

    /// The links of a user's sessions; for root, of all.
    fn linked_of(&self, uid: u32) -> Vec<Linked> {
        let linked = self.linked.lock().unwrap_or_else(PoisonError::into_inner);
        linked.values().filter(|linked| uid == 0 || linked.uid == uid).cloned().collect()
    }

    /// Whether the process may have what approves a user's calls: not if it is governed, nor if one of the clients
    /// started it.
    fn may_approve(&self, uid: u32, connection: &UnixStream) -> Result<(), Refused> {
        let facts = self.vouching.facts(connection)?;
        if facts.governed {
            return Err(Refused::Governed);
        }
        let clients = self.linked_of(uid).into_iter().map(|linked| linked.client);
        let above = clients.into_iter().find(|client| facts.lineage.contains(client));
        above.map_or(Ok(()), |client| Err(Refused::Descendant { client }))
    }

    /// What opens the dashboard for a user: the same until this auditor ends. `None`: too many users have one.
    fn token(&self, uid: u32) -> Option<String> {
        let mut tokens = self.tokens.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, token)) = tokens.iter().find(|(owner, _)| *owner == uid) {
            return Some(token.clone());
        }
        if tokens.len() >= MAX_TOKENS {
            return None;
        }
        let random = || uuid::Uuid::new_v4().simple().to_string();
        let token = random() + &random();
        tokens.push((uid, token.clone()));
        Some(token)
    }

    /// Whether this is one user's own auditor.
    pub(crate) fn is_own(&self) -> bool {
        self.shared.is_none()
    }

    /// Whose token this is. Every one is compared, each in constant time.
    pub(crate) fn holder(&self, token: &str) -> Option<Viewer> {
        let tokens = self.tokens.lock().unwrap_or_else(PoisonError::into_inner);
        tokens.iter().fold(None, |found, (uid, known)| {
            if bool::from(known.as_bytes().ct_eq(token.as_bytes())) { Some(Viewer(*uid)) } else { found }
        })
    }

    /// Puts the rules that the database has now in force in every session of a user that is linked; root's bind all.
    ///
    /// # Errors
    /// Those of the store.
    pub(crate) fn send_rules(&self, uid: u32) -> Result<(), store::Error> {
        let reader = SessionReader::open(&self.db)?;
        for linked in self.linked_of(uid) {
            let rules = reader.stored_rules(linked.uid)?;
            let mut link = linked.link.lock().unwrap_or_else(PoisonError::into_inner);
            // A link that is broken is made again, and welcomed with the rules.
            let _ = link.send(&SessionOrder::Rules { rules });
        }
        Ok(())
    }

    /// Counts for `ringfence status`: a user's own, for root all.
    pub(crate) fn status(&self, uid: u32) -> McpStatus {
        let unstored = self
            .linked_of(uid)
            .into_iter()
            .map(|linked| linked.progress.unwritten.load(Ordering::Relaxed) as u64);
        McpStatus {
            sessions: self.links.count(uid) as u64,
            connections: self.connections.count(uid) as u64,
            waiting: self.waiting.list(uid).len() as u64,
            unstored: unstored.sum(),
            turned_away: self.turned_away.load(Ordering::Relaxed),
            dashboard: self.port.load(Ordering::SeqCst),
        }
    }

    /// Has the kernel's records stored that are on their way, for a moment.
    pub(crate) fn settle(&self) {
        if let Some(shared) = &self.shared {
            // What did not come in time is seen the next time somebody asks.
            let _ = shared.flush(SETTLE);
        }
    }

    /// Has what governed sessions journalled before now taken in, so that events can be told apart by their calls. Waits no
    /// longer than a moment: a journal is read by its own link's thread, which a slow file holds up, and nobody else.
    pub(crate) fn refresh(&self, viewer: Viewer) {
        let now = clock::since_boot();
        let mut behind = self.linked_of(viewer.0);
        behind.retain(|linked| linked.progress.governed.load(Ordering::Relaxed));
        for linked in &behind {
            // Full: it is told already.
            let _ = linked.nudge.write(1);
        }
        let until = Instant::now() + REFRESH;
        loop {
            behind.retain(|linked| linked.progress.looked.load(Ordering::Acquire) < now);
            if behind.is_empty() || Instant::now() >= until {
                return;
            }
            thread::sleep(Duration::from_millis(2));
        }
    }

    /// Up to when, in ns since boot, a session's journal is known to be in the store; `None`: it is not linked.
    pub(crate) fn looked(&self, session: &str) -> Option<u64> {
        let linked = self.linked.lock().unwrap_or_else(PoisonError::into_inner);
        linked.get(session).map(|linked| linked.progress.looked.load(Ordering::Acquire))
    }

    /// What lets one long line of a user's through at a time.
    fn gate(&self, uid: u32) -> Gate {
        let mut gates = self.gates.lock().unwrap_or_else(PoisonError::into_inner);
        gates.retain(|_, gate| Arc::strong_count(gate) > 1);
        Arc::clone(gates.entry(uid).or_default())
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
        for linked in self.linked_of(uid).into_iter().filter(|linked| linked.uid == uid) {
            // A link that is broken is made again, and asks for what is in force.
            let _ = lock(&linked.link).send(order);
        }
    }

    pub(crate) fn tell(&self, live: &Live) {
        let mut watchers = self.live.lock().unwrap_or_else(PoisonError::into_inner);
        watchers.retain(|watcher| {
            !matches!(watcher.try_send(live.clone()), Err(mpsc::TrySendError::Disconnected(_)))
        });
    }

    fn advance(&self, intake: &mut Intake, session: &str) -> Result<(), super::intake::Error> {
        loop {
            let news = intake.advance(&self.writer)?;
            self.announce(intake, session, news.rows);
            if !news.more {
                return Ok(());
            }
        }
    }

    /// Tells those who watch of rows that are in the store now.
    fn announce(&self, intake: &Intake, session: &str, rows: Vec<super::ingest::Row>) {
        use super::ingest::Row;
        for row in rows {
            self.metrics.count(intake.server(), &row);
            match row {
                Row::Call(call) => self.tell(&Live::Call(call.judged.call)),
                Row::Answer { call, .. } | Row::Decision { call, .. } => self.tell(&Live::Call(call)),
                Row::Session { .. } | Row::Client { .. } | Row::Governed { .. } | Row::End { .. } => {
                    self.tell(&Live::Session(session.to_owned()));
                }
                Row::Message(_) | Row::Gap => {}
            }
        }
    }

    /// Takes in a journal that nobody is linked to any more.
    fn catch_up(&self, names: (String, String), uid: u32, file: File) -> Result<(), super::intake::Error> {
        let session = names.0.clone();
        let mut intake = Intake::new(&self.writer, names, (uid, self.gate(uid)), file)?;
        self.advance(&mut intake, &session)?;
        intake.abandon(&self.writer, clock::now_micros())
    }

    /// A database that was found corrupt is somebody else's to replace.
    fn suspect(&self, error: &super::intake::Error) {
        if let (super::intake::Error::Store(error), Some(shared)) = (error, &self.shared)
            && error.is_corrupt()
        {
            shared.suspect();
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Serves `listener` until the process ends.
pub(crate) fn serve(listener: &UnixListener, sessions: &Arc<Sessions>) {
    for stream in listener.incoming() {
        let Ok(stream) = stream else {
            // Out of descriptors: it passes.
            thread::sleep(Duration::from_millis(100));
            continue;
        };
        let Ok(peer) = getsockopt(&stream, PeerCredentials) else { continue };
        let uid = peer.uid();
        let Some(place) = sessions.connections.take(uid) else {
            sessions.turned_away.fetch_add(1, Ordering::Relaxed);
            turn_away(stream);
            continue;
        };
        let shared = Arc::clone(sessions);
        let spawned = thread::Builder::new().name("mcp".into()).stack_size(1 << 20).spawn(move || {
            let _place = place;
            if let Err(error) = converse(stream, uid, &shared)
                && !matches!(error, FrameError::Closed)
            {
                tracing::debug!("a connection about MCP sessions ended: {}", chain(&error));
            }
        });
        if let Err(error) = spawned {
            tracing::warn!("starting a thread for an MCP session failed: {error}");
        }
    }
}

fn turn_away(stream: UnixStream) {
    let failure = Failure::new("too many connections to the auditor at once; close some and try again");
    let _ = Conn::new(stream, Duration::from_millis(100), MAX_MESSAGE).send(&McpReply::Failed(failure));
}

fn converse(stream: UnixStream, uid: u32, sessions: &Arc<Sessions>) -> Result<(), FrameError> {
    let viewer = Viewer(uid);
    let mut conn = Conn::new(stream, LIMIT, MAX_MESSAGE);
    let (request, descriptors) = conn.receive_with_descriptors::<McpRequest>()?;
    sessions.used.store(true, Ordering::Relaxed);
    let failed = |error: String| McpReply::Failed(Failure::new(error));
    let reply = match request {
        McpRequest::Session { session, journal } => {
            return match admit(&conn, sessions, (&session, journal), uid, descriptors) {
                Ok(admitted) => link(conn, sessions, &session, uid, admitted),
                Err(error) => conn.send(&failed(error)),
            };
        }
        McpRequest::Waiting => McpReply::Waiting { calls: sessions.waiting.list(uid) },
        McpRequest::Decide { call, approve } => {
            let decided = sessions.vouching.facts(conn.stream()).and_then(|facts| {
                let who = Decider::Process { uid, facts };
                sessions.waiting.decide(&call, approve, &who)
            });
            decided.map_or_else(|e| failed(e.to_string()), |call| McpReply::Decided { call })
        }
        McpRequest::ConfirmRules { path, sha256 } => match sessions.may_approve(uid, conn.stream()) {
            Err(refused) => failed(refused.to_string()),
            Ok(()) => match sessions.confirm_rules(uid, &path, &sha256, &format!("uid {uid}")) {
                Ok(true) => McpReply::Confirmed,
                Ok(false) => failed(NOT_PENDING.to_owned()),
                Err(error) => failed(chain(&error)),
            },
        },
        McpRequest::Dashboard => match sessions.port.load(Ordering::SeqCst) {
            0 => failed("the auditor has no dashboard: no port was free".to_owned()),
            port => match sessions.may_approve(uid, conn.stream()).map(|()| sessions.token(uid)) {
                Ok(Some(token)) => {
                    McpReply::Dashboard { url: format!("http://127.0.0.1:{port}/#token={token}") }
                }
                Ok(None) => failed(format!("{MAX_TOKENS} users have the dashboard open already")),
                Err(refused) => failed(refused.to_string()),
            },
        },
        McpRequest::Offer { sessions: mut offered } => {
            offered.truncate(MAX_OFFERED);
            offered.retain(|session| uuid::Uuid::try_parse(session).is_ok() && !sessions.is_linked(session));
            let missing =
                SessionReader::open(&sessions.db).and_then(|reader| reader.missing(viewer, offered));
            match missing {
                Ok(mut wanted) => {
                    wanted.truncate(MAX_WANTED);
                    McpReply::Wanted { sessions: wanted }
                }
                Err(error) => failed(chain(&error)),
            }
        }
        McpRequest::Journal { session, journal } => {
            let taken = open_journal(descriptors, &session).and_then(|file| {
                if sessions.is_linked(&session) {
                    return Err(format!("session {session} is linked: its interceptor lives"));
                }
                sessions.catch_up((session, journal), uid, file).map_err(|error| {
                    sessions.suspect(&error);
                    chain(&error)
                })
            });
            taken.map_or_else(failed, |()| McpReply::Taken)
        }
        question => SessionReader::open(&sessions.db)
            .and_then(|reader| match question {
                McpRequest::Calls { risk, verdict, session, container, limit } => {
                    let filter =
                        CallFilter { risk, verdict, session, container, limit, ..CallFilter::default() };
                    reader.calls(viewer, &filter)
                }
                McpRequest::Table { table, after, limit } => reader.table(viewer, &table, after, limit),
                McpRequest::Call { call } => {
                    let id = reader.whole_id(viewer, &call)?;
                    let row = id.map(|id| detail(sessions, viewer, &id)).transpose()?.flatten();
                    Ok(row.into_iter().collect())
                }
                McpRequest::Sessions { limit } => reader.sessions(viewer, limit),
                McpRequest::PendingRules => reader.pending_rules(viewer),
                McpRequest::Heads => {
                    let heads = reader.heads(viewer, &database(&sessions.db), false)?;
                    Ok(heads.iter().map(|head| serde_json::json!({ "head": head.to_string() })).collect())
                }
                _ => reader.stats(viewer).map(|row| vec![row]),
            })
            .map_or_else(|e| failed(chain(&e)), |rows| McpReply::Rows { rows }),
    };
    conn.send(&reply)
}

/// One call, whole, with what the kernel saw of it as `events`, and in `events_cut` whether that is not all.
///
/// # Errors
/// Those of the store.
pub(crate) fn detail(
    sessions: &Sessions,
    viewer: Viewer,
    call: &str,
) -> Result<Option<serde_json::Value>, store::Error> {
    let Some(mut row) = SessionReader::open(&sessions.db)?.call(viewer, call)? else { return Ok(None) };
    let (events, cut) = belongs::of_call(sessions, viewer, call)?;
    row["events"] = serde_json::json!(events);
    row["events_cut"] = cut.into();
    Ok(Some(row))
}

/// A link's session.
struct Of<'a> {
    session: &'a str,
    uid: u32,
    client: u32,
    nudge: &'a EventFd,
}

/// What a session's link begins with.
struct Admitted {
    place: Place,
    client: u32,
    intake: Intake,
}

fn admit(
    conn: &Conn,
    sessions: &Sessions,
    (session, journal): (&str, String),
    uid: u32,
    descriptors: Vec<OwnedFd>,
) -> Result<Admitted, String> {
    let file = open_journal(descriptors, session)?;
    let Some(place) = sessions.links.take(uid) else {
        sessions.turned_away.fetch_add(1, Ordering::Relaxed);
        return Err(format!(
            "{} sessions of uid {uid} are linked already, and no more fit; the journal keeps this one",
            sessions.links.count(uid)
        ));
    };
    // Whose descendants approve nothing: by the kernel's word, not by the interceptor's.
    let facts = sessions.vouching.facts(conn.stream()).map_err(|refused| refused.to_string())?;
    let client = facts.lineage.get(1).copied().unwrap_or(1);
    let names = (session.to_owned(), journal);
    let intake = Intake::new(&sessions.writer, names, (uid, sessions.gate(uid)), file).map_err(|error| {
        sessions.suspect(&error);
        chain(&error)
    })?;
    Ok(Admitted { place, client, intake })
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
    session: &str,
    uid: u32,
    Admitted { place, client, mut intake }: Admitted,
) -> Result<(), FrameError> {
    let _place = place;
    let nudge = EventFd::from_value_and_flags(0, EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK);
    let nudge = Arc::new(nudge.map_err(|errno| FrameError::from_io(errno.into()))?);
    let writing = conn.stream().try_clone().map_err(FrameError::from_io)?;
    let writing: Link = Arc::new(Mutex::new(Conn::new(writing, LIMIT, MAX_MESSAGE)));
    match sessions.linked.lock().unwrap_or_else(PoisonError::into_inner).entry(session.to_owned()) {
        Entry::Occupied(_) => {
            let failure = Failure::new(format!("session {session} is linked already"));
            return conn.send(&McpReply::Failed(failure));
        }
        Entry::Vacant(place) => {
            let link = Arc::clone(&writing);
            let (progress, nudge) = (intake.progress(), Arc::clone(&nudge));
            place.insert(Linked { link, uid, client, progress, nudge });
        }
    }
    let welcomed = welcome(&writing, sessions, uid);
    let mut paused = Vec::new();
    let outcome = welcomed.and_then(|()| {
        let of = Of { session, uid, client, nudge: &nudge };
        news(&mut conn, &writing, sessions, &mut intake, &of, &mut paused)
    });
    // A call whose interceptor is gone waits for nobody.
    for call in paused {
        sessions.waiting.remove(&call);
    }
    let closed = sessions
        .advance(&mut intake, session)
        .and_then(|()| intake.abandon(&sessions.writer, clock::now_micros()));
    match closed {
        Ok(()) => {}
        Err(error @ super::intake::Error::Store(_)) => {
            sessions.suspect(&error);
            tracing::warn!("session {session}: {}", chain(&error));
        }
        Err(error) => {
            tracing::error!("session {session}: {}", chain(&error));
            let mut writer = lock(&sessions.writer);
            let _ = writer.broken(session, &chain(&error));
        }
    }
    sessions.tell(&Live::Session(session.to_owned()));
    sessions.linked.lock().unwrap_or_else(PoisonError::into_inner).remove(session);
    outcome
}

/// The first answer. Nothing else is sent before it: rules that change meanwhile wait for the lock.
fn welcome(writing: &Link, sessions: &Sessions, uid: u32) -> Result<(), FrameError> {
    let mut writing = writing.lock().unwrap_or_else(PoisonError::into_inner);
    match SessionReader::open(&sessions.db).and_then(|reader| reader.stored_rules(uid)) {
        Ok(rules) => writing.send(&McpReply::Welcome { port: sessions.port.load(Ordering::SeqCst), rules }),
        Err(error) => writing.send(&McpReply::Failed(Failure::new(chain(&error)))),
    }
}

fn news(
    conn: &mut Conn,
    writing: &Link,
    sessions: &Arc<Sessions>,
    intake: &mut Intake,
    of: &Of<'_>,
    paused: &mut Vec<String>,
) -> Result<(), FrameError> {
    let Of { session, uid, client, nudge } = *of;
    loop {
        let ready = {
            let mut polled = [PollFd::new(conn.stream(), PollFlags::IN), PollFd::new(nudge, PollFlags::IN)];
            poll(&mut polled, Some(&LOOK)).map_err(|errno| FrameError::from_io(io::Error::from(errno)))?;
            let [link, nudged] = polled.map(|fd| !fd.revents().is_empty());
            if nudged {
                let _ = nudge.read();
            }
            link
        };
        let message = if ready { Some(conn.receive::<SessionNews>()?) } else { None };
        let advanced = sessions.advance(intake, session);
        if let Err(error) = advanced {
            sessions.suspect(&error);
            match error {
                // Linked anew, the session is read from its start into the other database.
                super::intake::Error::Store(store::Error::Replaced) => return Err(FrameError::Closed),
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
                let server = intake.server().to_owned();
                let Some(waiting) = describe(sessions, server, session, &call, until) else { continue };
                if sessions.waiting.add(waiting, uid, client, Arc::clone(writing)) {
                    paused.push(call.clone());
                    sessions.tell(&Live::Call(call));
                } else {
                    let by = "the auditor: too many calls wait already".to_owned();
                    lock(writing).send(&SessionOrder::Decide { call, approve: false, by })?;
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
    server: String,
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
        server,
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
