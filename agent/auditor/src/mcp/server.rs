//! The socket of MCP sessions: interceptors' links, and the command line's questions.

use super::{
    attribution,
    claims::Claim,
    intake::{self, Intake, Writer},
    link::{Link, LinkWriter},
    sessions::{Linked, Sessions},
    waiting::{ARGUMENTS, Decider, Refused, TOO_MANY},
    watchers::Change,
};
use crate::shared::lock;
use nix::{
    poll::{PollFd, PollFlags, ppoll},
    sys::{
        eventfd::{EfdFlags, EventFd},
        socket::{getsockopt, sockopt::PeerCredentials},
        stat::{SFlag, fstat},
        time::TimeSpec,
    },
};
use ringfence_base::{clock, error::chain, precedence, quota::Permit};
use ringfence_session::{heads::database, journal::is_name, reload};
use ringfence_store::{self as store, CallFilter, SessionReader, Shown, Viewer};
use ringfence_wire::{
    conn::Conn,
    frame::FrameError,
    mcp::{
        MAX_FIRST, MAX_MESSAGE, MAX_OFFERED, MAX_PATH, MAX_UPDATE, McpReply, McpRequest, SessionOrder,
        SessionUpdate, WaitingCall,
    },
    message::Failure,
};
use std::{
    fs::File,
    io,
    net::Shutdown,
    os::{
        fd::{AsFd, OwnedFd},
        unix::net::{UnixListener, UnixStream},
    },
    sync::{Arc, atomic::Ordering},
    thread,
    time::{Duration, Instant},
};

/// How long a peer may take for one message.
const LIMIT: Duration = Duration::from_secs(5);
/// How often a journal is looked at without a nudge.
const LOOK: Duration = Duration::from_millis(250);
/// How long a session counts as busy after it reported that its journal grew: it reports so every 20 ms while it does.
const BUSY: Duration = Duration::from_millis(100);
/// While a session is busy, its journal's reader rests so many times as long as it works: the processors are for the calls,
/// and the journal waits.
const REST: u32 = 7;
/// Longest such rest.
const LONGEST_REST: Duration = Duration::from_millis(250);
/// How long a question waits for others of the same user.
const TURN: Duration = Duration::from_secs(30);
/// Journals asked for after one offer.
const MAX_WANTED: usize = 256;

/// Why a change of rules is not confirmed.
pub(crate) const NOT_PENDING: &str =
    "no such change of a rule file waits: it was confirmed or taken back, or the file was changed again";

/// Serves `listener` until the process ends.
pub(crate) fn serve(listener: &UnixListener, sessions: &Arc<Sessions>) {
    // Whoever connects waits for this thread, behind all who came before.
    precedence::first();
    for stream in listener.incoming() {
        let Ok(stream) = stream else {
            // Out of descriptors: it passes.
            thread::sleep(Duration::from_millis(100));
            continue;
        };
        let Ok(peer) = getsockopt(&stream, PeerCredentials) else { continue };
        let uid = peer.uid();
        let Ok(spare) = stream.try_clone() else { continue };
        let (all, pid) = (Arc::downgrade(sessions), peer.pid());
        let end = move || {
            let _ = spare.shutdown(Shutdown::Both);
            let Some(sessions) = all.upgrade() else { return };
            sessions.turned_away.fetch_add(1, Ordering::Relaxed);
            sessions.turned.warn(uid, || {
                format!("a connection of process {pid} of user {uid} was ended: another one needs its place")
            });
        };
        let Some(permit) = sessions.connections.take(uid, end) else {
            sessions.turned_away.fetch_add(1, Ordering::Relaxed);
            sessions.turned.warn(uid, || {
                format!(
                    "process {} of user {uid} was turned away: too many connections about MCP sessions",
                    peer.pid()
                )
            });
            turn_away(stream);
            continue;
        };
        let shared = Arc::clone(sessions);
        let spawned = thread::Builder::new().name("mcp".into()).stack_size(1 << 20).spawn(move || {
            precedence::usual();
            if let Err(error) = converse(stream, uid, &permit, &shared)
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

fn converse(
    stream: UnixStream,
    uid: u32,
    permit: &Permit,
    sessions: &Arc<Sessions>,
) -> Result<(), FrameError> {
    let viewer = Viewer(uid);
    let mut conn = Conn::new(stream, LIMIT, MAX_FIRST);
    let (request, descriptors) = conn.receive_with_descriptors::<McpRequest>()?;
    if !permit.busy() {
        // Evicted. What it had written before is there to be read all the same: whoever went on with that would be one of any
        // number.
        return Err(FrameError::Closed);
    }
    let still = || permit.is_held();
    sessions.used.store(true, Ordering::Relaxed);
    let failed = |error: String| McpReply::Failed(Failure::new(error));
    if let McpRequest::Session { journal, .. } | McpRequest::Journal { journal, .. } = &request
        && journal.len() > MAX_PATH
    {
        // It is written with every batch of rows.
        return conn.send(&failed(format!("the path of a journal has no more than {MAX_PATH} bytes")));
    }
    // Forty questions of one user are not before another's.
    let lanes = match &request {
        // A person's decision waits for nobody's questions, and a session's rows have a lane of their own.
        McpRequest::Session { .. }
        | McpRequest::Waiting
        | McpRequest::Decide { .. }
        | McpRequest::Dashboard => None,
        McpRequest::Journal { .. } => Some(&sessions.journals),
        _ => Some(&sessions.questions),
    };
    let lane = lanes.map(|lanes| lanes.enter(uid, Instant::now() + TURN, still));
    if matches!(lane, Some(None)) {
        let why = "your other questions to the auditor are not answered yet; try again";
        return conn.send(&failed(why.to_owned()));
    }
    let refused = |what: &str, why: &Refused| sessions.waiting.refusals.log(conn.stream(), what, why);
    let reply = match request {
        McpRequest::Session { session, journal } => {
            return match admit(&conn, sessions, (&session, journal), uid, descriptors, &still) {
                Ok(admitted) => link(conn, sessions, (&session, uid), admitted, &still),
                Err(error) => conn.send(&failed(error)),
            };
        }
        McpRequest::Waiting => McpReply::Waiting { calls: sessions.waiting.list(uid) },
        McpRequest::Decide { call, approve } => {
            let decided = sessions.peers.facts(uid, conn.stream(), &still).and_then(|facts| {
                let who = Decider::Process { uid, facts };
                sessions.waiting.decide(&call, approve, &who)
            });
            let decided = decided.inspect_err(|why| refused("a decision about a waiting call is", why));
            decided.map_or_else(|e| failed(e.to_string()), |call| McpReply::Decided { call })
        }
        McpRequest::ConfirmRules { path, sha256 } => match sessions.may_approve(uid, conn.stream(), &still) {
            Err(why) => {
                refused("a confirmation of changed rules is", &why);
                failed(why.to_string())
            }
            Ok(()) => match sessions.writer.wait(uid, still) {
                None => return Err(FrameError::Closed),
                Some(lane) => {
                    match sessions.confirm_rules(uid, (&path, &sha256), &format!("uid {uid}"), lane) {
                        Ok(true) => McpReply::Confirmed,
                        Ok(false) => failed(NOT_PENDING.to_owned()),
                        Err(error) => failed(chain(&error)),
                    }
                }
            },
        },
        McpRequest::Dashboard => match sessions.port.load(Ordering::SeqCst) {
            0 => failed("the auditor has no dashboard: no port was free".to_owned()),
            port => match sessions.may_approve(uid, conn.stream(), &still).map(|()| sessions.token(uid)) {
                Ok(token) => McpReply::Dashboard { url: format!("http://127.0.0.1:{port}/#token={token}") },
                Err(why) => {
                    refused("the dashboard's token is", &why);
                    failed(why.to_string())
                }
            },
        },
        McpRequest::Offer { sessions: mut offered } => {
            offered.truncate(MAX_OFFERED);
            offered.retain(|session| uuid::Uuid::try_parse(session).is_ok() && !sessions.is_linked(session));
            let found = SessionReader::open(&sessions.db)
                .and_then(|reader| Ok((reader.removed(viewer, &offered)?, reader.missing(viewer, offered)?)));
            match found {
                Ok((removed, mut wanted)) => {
                    wanted.truncate(MAX_WANTED);
                    McpReply::Wanted { sessions: wanted, removed }
                }
                Err(error) => failed(chain(&error)),
            }
        }
        McpRequest::Journal { session, journal } => {
            let taken = open_journal(descriptors, &session).and_then(|file| {
                let claim = sessions.claims.claim(&session, uid, conn.stream(), &still);
                let Some(_claim) = claim.map_err(|error| error.to_string())? else {
                    return Err(format!("session {session} is linked: its interceptor lives"));
                };
                sessions.catch_up((session, journal), uid, file, &still).map_err(|error| {
                    sessions.suspect(&error);
                    chain(&error)
                })
            });
            taken.map_or_else(failed, |()| McpReply::Taken)
        }
        McpRequest::Stderr { session, after, limit } => {
            of_session(sessions, viewer, &session, |reader, id| reader.stderr(viewer, &id, after, limit))
        }
        McpRequest::Calls { risk, verdict, session: Some(session), container, limit } => {
            of_session(sessions, viewer, &session, |reader, id| {
                let session = Some(id);
                let filter = CallFilter { risk, verdict, session, container, limit, ..CallFilter::default() };
                reader.calls(viewer, &filter)
            })
        }
        question => SessionReader::open(&sessions.db)
            .and_then(|reader| match question {
                McpRequest::Calls { risk, verdict, session, container, limit } => {
                    let filter =
                        CallFilter { risk, verdict, session, container, limit, ..CallFilter::default() };
                    reader.calls(viewer, &filter)
                }
                McpRequest::Table { table, after, limit, as_text } => {
                    let shown = if as_text { Shown::Text } else { Shown::Parsed };
                    reader.table(viewer, &table, after, limit, shown)
                }
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
    drop(lane);
    conn.send(&reply)
}

/// Rows of the session whose id begins with this.
fn of_session(
    sessions: &Sessions,
    viewer: Viewer,
    beginning: &str,
    rows: impl FnOnce(&SessionReader, String) -> Result<Vec<serde_json::Value>, store::Error>,
) -> McpReply {
    let found = SessionReader::open(&sessions.db).and_then(|reader| {
        let id = reader.whole_session(viewer, beginning)?;
        id.map(|id| rows(&reader, id)).transpose()
    });
    match found {
        Ok(Some(rows)) => McpReply::Rows { rows },
        Ok(None) => McpReply::Failed(Failure::new(format!(
            "no session's id begins with {beginning:?}, or more than one does (give at least four characters); `ringfence mcp sessions` lists them"
        ))),
        Err(error) => McpReply::Failed(Failure::new(chain(&error))),
    }
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
    let (events, cut) = attribution::of_call(sessions, viewer, call)?;
    row["events"] = serde_json::json!(events);
    row["events_cut"] = cut.into();
    Ok(Some(row))
}

/// A link's session.
struct SessionRef<'a> {
    session: &'a str,
    uid: u32,
    client: u32,
    nudge: &'a EventFd,
    /// Whether it has its place.
    still: &'a dyn Fn() -> bool,
}

/// What a session's link begins with.
struct Admitted {
    permit: Permit,
    client: u32,
    intake: Intake,
    claim: Claim,
}

fn admit(
    conn: &Conn,
    sessions: &Sessions,
    (session, journal): (&str, String),
    uid: u32,
    descriptors: Vec<OwnedFd>,
    still: &dyn Fn() -> bool,
) -> Result<Admitted, String> {
    let file = open_journal(descriptors, session)?;
    let spare = conn.stream().try_clone().map_err(|error| error.to_string())?;
    let Some(permit) = sessions.links.take(uid, move || drop(spare.shutdown(Shutdown::Both))) else {
        sessions.turned_away.fetch_add(1, Ordering::Relaxed);
        let linked = sessions.links.count(uid);
        let why = format!(
            "{linked} sessions of uid {uid} are linked already, and no more fit; the journal keeps this one"
        );
        sessions.turned.log(conn.stream(), "the link of a session is", &why);
        return Err(why);
    };
    // Whose descendants approve nothing: by the kernel's word, not by the interceptor's.
    let still = || still() && permit.is_held();
    if !permit.busy() {
        return Err("another session took this one's place".to_owned());
    }
    let facts = sessions.peers.facts(uid, conn.stream(), &still).map_err(|why| {
        sessions.turned.log(conn.stream(), "the link of a session is", &why);
        why.to_string()
    })?;
    let client = facts.lineage.get(1).copied().unwrap_or(1);
    let claim =
        sessions.claims.claim(session, uid, conn.stream(), &still).map_err(|error| error.to_string())?;
    let claim = claim.ok_or_else(|| format!("session {session} is linked already"))?;
    let names = (session.to_owned(), journal);
    let writer: Writer<'_> = (&sessions.writer, &still);
    let intake = Intake::new(writer, names, (uid, sessions.long.clone()), file).map_err(|error| {
        sessions.suspect(&error);
        chain(&error)
    })?;
    Ok(Admitted { permit, client, intake, claim })
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
                fstat(&journal).is_ok_and(|s| SFlag::from_bits_truncate(s.st_mode) == SFlag::S_IFREG);
            if regular { Ok(File::from(journal)) } else { Err(refuse("its journal is not a regular file")) }
        }
        _ => Err(refuse("one descriptor, the journal, comes beside it")),
    }
}

fn link(
    mut conn: Conn,
    sessions: &Arc<Sessions>,
    (session, uid): (&str, u32),
    Admitted { permit, client, mut intake, claim }: Admitted,
    still: &dyn Fn() -> bool,
) -> Result<(), FrameError> {
    let still = || still() && permit.is_held();
    let nudge = EventFd::from_value_and_flags(0, EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK);
    let nudge = Arc::new(nudge.map_err(|errno| FrameError::from_io(errno.into()))?);
    conn = conn.up_to(MAX_UPDATE);
    let stream = conn.stream().try_clone().map_err(FrameError::from_io)?;
    let link: Link = Arc::new(LinkWriter::new(stream));
    let linked = Linked {
        link: Arc::clone(&link),
        uid,
        client,
        progress: intake.progress(),
        nudge: Arc::clone(&nudge),
    };
    lock(&sessions.linked).insert(session.to_owned(), linked);
    let welcomed = welcome(&link, sessions, uid);
    let outcome = welcomed.and_then(|()| {
        let session_ref = SessionRef { session, uid, client, nudge: &nudge, still: &still };
        serve_session(&mut conn, &link, sessions, &mut intake, &session_ref)
    });
    link.drain();
    // A call whose interceptor is gone waits for nobody.
    sessions.waiting.remove_all(session);
    let closed = sessions
        .advance(&mut intake, session, &still)
        .and_then(|()| intake.abandon((&sessions.writer, &still), clock::now_micros()));
    match closed {
        // Evicted: its interceptor links again, or says later where the journal is.
        Ok(()) | Err(intake::Error::Evicted) => {}
        Err(error @ intake::Error::Store(_)) => {
            sessions.suspect(&error);
            tracing::warn!("session {session}: {}", chain(&error));
        }
        Err(error) => sessions.broken(session, uid, &error),
    }
    sessions.notify(uid, Change::Session(session.to_owned()));
    lock(&sessions.linked).remove(session);
    sessions.unlinked(session, uid);
    drop(claim);
    outcome
}

/// The first answer. Nothing else is sent before it: rules that change meanwhile are kept, and go after it.
fn welcome(link: &LinkWriter, sessions: &Sessions, uid: u32) -> Result<(), FrameError> {
    match SessionReader::open(&sessions.db).and_then(|reader| reader.stored_rules(uid)) {
        Ok(rules) => link.open(&McpReply::Welcome { port: sessions.port.load(Ordering::SeqCst), rules }),
        Err(error) => link.open(&McpReply::Failed(Failure::new(chain(&error)))),
    }
}

fn serve_session(
    conn: &mut Conn,
    link: &Link,
    sessions: &Arc<Sessions>,
    intake: &mut Intake,
    session_ref: &SessionRef<'_>,
) -> Result<(), FrameError> {
    let SessionRef { session, uid, client, nudge, still } = *session_ref;
    let mut logged = String::new();
    // Until when to rest, if the journal has more than was read; and when the session last reported that it grew.
    let (mut behind, mut grew) = (None::<Instant>, None::<Instant>);
    loop {
        let (ready, nudged) = {
            let mut wanted = PollFlags::POLLIN;
            wanted.set(PollFlags::POLLOUT, link.is_behind());
            let mut polled = [
                PollFd::new(conn.stream().as_fd(), wanted),
                PollFd::new(nudge.as_fd(), PollFlags::POLLIN),
            ];
            let rest = behind.map(|until| until.saturating_duration_since(Instant::now()));
            ppoll(&mut polled, Some(TimeSpec::from_duration(rest.unwrap_or(LOOK))), None)
                .map_err(|errno| FrameError::from_io(io::Error::from(errno)))?;
            let is_ready = |fd: PollFd<'_>| fd.revents().is_none_or(|it| it.intersects(!PollFlags::POLLOUT));
            let [readable, nudged] = polled.map(is_ready);
            if nudged {
                let _ = nudge.read();
            }
            (readable, nudged)
        };
        link.flush()?;
        let message = if ready { Some(conn.receive::<SessionUpdate>()?) } else { None };
        let begun = Instant::now();
        let advanced = match &message {
            Some(SessionUpdate::Grew) => {
                grew = Some(begun);
                // It rests: what grew is read when that is over.
                let rests = !nudged && behind.is_some_and(|until| until > begun);
                if rests {
                    continue;
                }
                sessions.advance_a_little(intake, session, still)
            }
            None if !nudged => sessions.advance_a_little(intake, session, still),
            // Somebody waits for what the journal has.
            _ => sessions.advance(intake, session, still).map(|()| false),
        };
        behind = matches!(advanced, Ok(true)).then(|| {
            let busy = grew.is_some_and(|grew| grew.elapsed() < BUSY);
            let rest = if busy { (begun.elapsed() * REST).min(LONGEST_REST) } else { Duration::ZERO };
            Instant::now() + rest
        });
        let stored = advanced.is_ok();
        if let Err(error) = advanced {
            sessions.suspect(&error);
            match error {
                // Linked anew, the session is read from its start into the other database.
                intake::Error::Store(store::Error::Replaced) | intake::Error::Evicted => {
                    return Err(FrameError::Closed);
                }
                // The store may work again; the journal keeps what it has.
                intake::Error::Store(error) => {
                    let text = chain(&error);
                    if logged != text {
                        tracing::warn!("session {session}: {text}");
                        logged = text;
                    }
                }
                error => {
                    sessions.broken(session, uid, &error);
                    return Err(FrameError::Closed);
                }
            }
        }
        match message {
            None | Some(SessionUpdate::Grew) => {}
            Some(SessionUpdate::Paused { call, until }) => {
                let server = intake.server().to_owned();
                let Some(waiting) = describe(sessions, server, session, &call, until) else {
                    // Nobody could be shown it, and nobody should wait for it.
                    let by = "the auditor: it has no record of this call".to_owned();
                    link.send(&SessionOrder::Decide { call, approve: false, by })?;
                    continue;
                };
                if sessions.waiting.add(waiting, uid, client, Arc::clone(link)) {
                    sessions.notify(uid, Change::Call(call));
                } else {
                    let by = TOO_MANY.to_owned();
                    link.send(&SessionOrder::Decide { call, approve: false, by })?;
                }
            }
            Some(SessionUpdate::Released { call }) => released(sessions, call, (session, uid)),
            Some(SessionUpdate::RuleFile { number, file }) => {
                // No interceptor of ours reads such a one. Nothing is made of it, least of all where others wait.
                if let Some(why) = reload::too_long(&file) {
                    sessions.turned.log(conn.stream(), "a rule file is", &why);
                    return Err(FrameError::Closed);
                }
                // Without an answer the session's first call would wait: better to part, and meet again.
                let taken = sessions.offer_rules(uid, (number, file), link, still).map_err(|error| {
                    tracing::error!("session {session}: {}", chain(&error));
                    FrameError::Closed
                })?;
                if taken.ok_or(FrameError::Closed)? {
                    sessions.notify(uid, Change::Session(session.to_owned()));
                }
            }
            Some(SessionUpdate::Ended) => {
                // Otherwise the interceptor says where the journal is, and that is read again later.
                if intake.ended() && stored {
                    link.send(&SessionOrder::Committed)?;
                }
                return Ok(());
            }
        }
    }
}

/// A call waits no longer, by its session's word. Watchers are notified only if it did wait, however often it is released.
fn released(sessions: &Sessions, call: String, (session, uid): (&str, u32)) {
    if sessions.waiting.remove(&call, session) {
        sessions.notify(uid, Change::Call(call));
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
    // No call has another name: it would be a key, and in every list.
    if !is_name(call) {
        return None;
    }
    let row = SessionReader::open(&sessions.db).and_then(|reader| reader.paused(call, ARGUMENTS)).ok()??;
    let text = |key: &str| row.get(key).and_then(serde_json::Value::as_str).unwrap_or_default().to_owned();
    let list = |key: &str| {
        let items = row.get(key).and_then(serde_json::Value::as_array);
        items.into_iter().flatten().filter_map(|v| v.as_str().map(str::to_owned)).collect()
    };
    if text("session_id") != session {
        return None;
    }
    let arguments_bytes = row.get("arguments_bytes").and_then(serde_json::Value::as_u64);
    let arguments = match row.get("arguments") {
        // What is cut, or no JSON, is the text that it is.
        Some(serde_json::Value::String(text)) if arguments_bytes.is_some() => text.clone(),
        arguments => arguments.map(ToString::to_string).unwrap_or_default(),
    };
    Some(WaitingCall {
        id: call.to_owned(),
        session: session.to_owned(),
        server,
        tool: text("tool_name"),
        arguments,
        arguments_bytes,
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

#[cfg(test)]
mod tests;
