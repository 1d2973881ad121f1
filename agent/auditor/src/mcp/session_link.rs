//! One session's link: from its first message, with its journal, to its end.

use super::{
    approvals::HeldNow,
    claims::Claim,
    intake::{self, Intake, Writer},
    link::{Link, LinkWriter},
    origin::Origin,
    sessions::{Linked, Sessions},
    waiting::{self, ARGUMENTS, FIRST, KnownCall, TOO_MANY},
    watchers::Change,
};
use crate::shared::lock;
use nix::{
    poll::{PollFd, PollFlags, ppoll},
    sys::{
        eventfd::{EfdFlags, EventFd},
        stat::{SFlag, fstat},
        time::TimeSpec,
    },
};
use ringfence_base::{clock, error::chain, quota::Permit};
use ringfence_session::{journal::is_name, reload};
use ringfence_store as store;
use ringfence_wire::{
    approvals::Fingerprint,
    conn::Conn,
    frame::FrameError,
    mcp::{MAX_UPDATE, McpReply, SessionOrder, SessionUpdate, WaitingCall},
    message::Failure,
};
use std::{
    fs::File,
    io,
    net::Shutdown,
    os::fd::{AsFd, OwnedFd},
    sync::{Arc, atomic::Ordering},
    time::{Duration, Instant},
};

/// How often a journal is looked at without a nudge.
const LOOK: Duration = Duration::from_millis(250);
/// How long a session counts as busy after it reported that its journal grew: it reports so every 20 ms while it does.
const BUSY: Duration = Duration::from_millis(100);
/// While a session is busy, its journal's reader rests so many times as long as it works: the processors are for the calls,
/// and the journal waits.
const REST: u32 = 7;
/// Longest such rest.
const LONGEST_REST: Duration = Duration::from_millis(250);

/// Looks at a journal after which its server is not known any more.
const TOLD: u32 = 40;

/// An admission that takes longer than this is logged: interceptors wait 15 s for it.
const LONG: Duration = Duration::from_secs(5);

/// A link's session.
struct SessionRef<'a> {
    session: &'a str,
    uid: u32,
    client: u32,
    governed: bool,
    nudge: &'a EventFd,
    /// Whether it has its place.
    still: &'a dyn Fn() -> bool,
}

/// What a session's link begins with.
pub(super) struct Admitted {
    permit: Permit,
    client: u32,
    /// Whether it comes out of a container.
    governed: bool,
    intake: Intake,
    claim: Claim,
}

pub(super) fn admit(
    conn: &Conn,
    sessions: &Sessions,
    (session, journal, http): (&str, String, bool),
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
    let begun = Instant::now();
    let facts = sessions.peers.facts(uid, conn.stream(), &still).map_err(|why| {
        sessions.turned.log(conn.stream(), "the link of a session is", &why);
        why.to_string()
    })?;
    let known = begun.elapsed();
    // Behind an endpoint the client is none of them, and the record must say so of whoever decides.
    let parent = if http { None } else { facts.lineage.get(1).copied() };
    let client = parent.unwrap_or(FIRST);
    let claim = sessions.claim((session, uid), conn.stream(), &still)?;
    let claim = claim.ok_or_else(|| format!("session {session} is linked already"))?;
    let claimed = begun.elapsed();
    let names = (session.to_owned(), journal);
    let writer: Writer<'_> = (&sessions.writer, &still);
    let origin = if facts.governed { Origin::Contained } else { Origin::Linked };
    let intake =
        Intake::new(writer, names, (uid, sessions.long.clone()), (file, origin)).map_err(|error| {
            sessions.suspect(&error);
            chain(&error)
        })?;
    let admitted = begun.elapsed();
    if admitted > LONG {
        sessions.turned.warn(uid, || {
            format!(
                "a session of user {uid} was admitted after {:.1} s: {:.1} s for what the daemon knows of its process, {:.1} s for the session before it, {:.1} s for the writer of sessions",
                admitted.as_secs_f32(),
                known.as_secs_f32(),
                (claimed - known).as_secs_f32(),
                (admitted - claimed).as_secs_f32()
            )
        });
    }
    Ok(Admitted { permit, client, governed: facts.governed, intake, claim })
}

/// The journal beside a session's first message: a regular file, or it is refused; a pipe would hold this thread.
pub(super) fn open_journal(mut descriptors: Vec<OwnedFd>, session: &str) -> Result<File, String> {
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

pub(super) fn link(
    mut conn: Conn,
    sessions: &Arc<Sessions>,
    (session, uid): (&str, u32),
    Admitted { permit, client, governed, mut intake, claim }: Admitted,
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
        // What a governed one started is governed, too, and decides nothing by the kernel's word. It must not have itself adopted by a
        // process of the user's, whose descendants decide.
        client: if governed { FIRST } else { client },
        progress: intake.progress(),
        nudge: Arc::clone(&nudge),
    };
    lock(&sessions.linked).insert(session.to_owned(), linked);
    let welcomed = welcome(&link, sessions, uid);
    let outcome = welcomed.and_then(|()| {
        let session_ref = SessionRef { session, uid, client, governed, nudge: &nudge, still: &still };
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
    sessions.unlinked(session);
    drop(claim);
    outcome
}

/// The first answer. Nothing else is sent before it: rules that change meanwhile are kept, and go after it.
fn welcome(link: &LinkWriter, sessions: &Sessions, uid: u32) -> Result<(), FrameError> {
    match sessions.readers.ask(|reader| reader.stored_rules(uid)) {
        Ok(rules) => {
            link.open(&McpReply::Welcome { port: sessions.port.load(Ordering::SeqCst), rules, tools: true })
        }
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
    let SessionRef { session, uid, client, governed, nudge, still } = *session_ref;
    let mut logged = String::new();
    // Until when to rest, if the journal has more than was read; and when the session last reported that it grew.
    let (mut behind, mut grew) = (None::<Instant>, None::<Instant>);
    // How often it is still tried to tell the interceptor what is pinned of its server: one from before there were pins does
    // not say which server that is.
    let mut untold = TOLD;
    loop {
        let (ready, nudged) = {
            let mut wanted = PollFlags::POLLIN;
            wanted.set(PollFlags::POLLOUT, link.is_behind());
            let mut polled =
                [PollFd::new(conn.stream().as_fd(), wanted), PollFd::new(nudge.as_fd(), PollFlags::POLLIN)];
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
        if stored && untold > 0 {
            // What cannot be read now is read at the next look; until then its lists wait.
            let told = match sessions.send_tools_of(session) {
                // There was no room for it: nothing is pinned, and its lists need not wait to hear that.
                Ok(false) if intake.knows_server() => {
                    link.send(&SessionOrder::Tools { tools: Vec::new() })?;
                    true
                }
                told => told.unwrap_or(false),
            };
            untold = if told { 0 } else { untold - 1 };
        }
        match message {
            None | Some(SessionUpdate::Grew) => {}
            Some(SessionUpdate::Paused { call, until, fingerprint }) => {
                let fingerprint = fingerprint.filter(Fingerprint::is_whole);
                let server = intake.server().to_owned();
                let Some(waiting) = describe(sessions, server, session, &call, until) else {
                    // Nobody could be shown it, and nobody should wait for it.
                    let by = "the auditor: it has no record of this call".to_owned();
                    link.send(&SessionOrder::Decide { call, approve: false, by })?;
                    continue;
                };
                let known = KnownCall {
                    call: call.clone(),
                    session: session.to_owned(),
                    uid,
                    governed,
                    fingerprint: fingerprint.clone(),
                    connection: None,
                    decided_by: String::new(),
                };
                let from = waiting::Origin { uid, client, governed, fingerprint, question: None };
                match sessions.hold(waiting, &known, (from, link), still) {
                    HeldNow::Answered(by) => {
                        link.send(&SessionOrder::Decide { call, approve: true, by })?;
                    }
                    HeldNow::Waits => sessions.notify(uid, Change::Call(call)),
                    HeldNow::TooMany => {
                        let by = TOO_MANY.to_owned();
                        link.send(&SessionOrder::Decide { call, approve: false, by })?;
                    }
                }
            }
            Some(SessionUpdate::Released { call }) => released(sessions, call, (session, uid)),
            Some(SessionUpdate::RuleFile { number, mut file }) => {
                // Whoever may confirm nothing needs not say either that root wrote it, and that nobody has to.
                file.trusted &= !governed;
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
pub(super) fn released(sessions: &Sessions, call: String, (session, uid): (&str, u32)) {
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
    let row = sessions.readers.ask(|reader| reader.paused(call, ARGUMENTS)).ok()??;
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
        connection: None,
    })
}
