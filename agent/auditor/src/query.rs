//! The query socket: who asks is what the kernel says of the peer; each gets to see its own.
//!
//! A governed task has nothing to ask here: no grant covers this socket (its directory is a protected place), so its
//! connect is refused by the kernel. The auditor itself looks at the peer's uid only.

use super::{
    belongs,
    mcp::sessions::Sessions,
    shared::{Dropped, Shared},
    trace,
};
use nix::sys::socket::{getsockopt, sockopt::PeerCredentials};
use ringfence_base::quota::{Bounds, Permit, Permits};
use ringfence_base::{error::chain, escape};
use ringfence_events::explain;
use ringfence_store::{self as store, Filter, Reader, Viewer};
use ringfence_wire::{
    conn::Conn,
    message::{AuditorStatus, EventsQuery, Failure, Lost, QueryReply, QueryRequest},
    trace::TraceQuery,
};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::{
    io,
    net::Shutdown,
    os::unix::net::{UnixListener, UnixStream},
    path::{Path, PathBuf},
    sync::Arc,
    thread,
    time::Duration,
};

/// Connections at once, in all and for one uid other than root.
const MAX_CONNECTIONS: usize = 64;
const MAX_PER_UID: usize = 8;
/// Longest request.
const MAX_REQUEST: usize = 64 << 10;
/// How long a peer may take for its request.
const REQUEST_LIMIT: Duration = Duration::from_secs(5);
/// How long a peer may leave an answer unread: a pager that waits for its user holds one thread, within the bounds.
const READ_LIMIT: Duration = Duration::from_secs(24 * 3600);
/// How long the core may take to hand over what its rings hold.
const FLUSH_LIMIT: Duration = Duration::from_secs(10);
/// Events read at once.
const PAGE: u32 = 512;

/// Answers on `listener` until the process ends.
pub(crate) fn serve(listener: &UnixListener, db: &Path, shared: &Arc<Shared>, sessions: &Arc<Sessions>) {
    let open = Permits::within(Bounds::of(MAX_CONNECTIONS, MAX_PER_UID), sessions.owners.clone());
    for stream in listener.incoming() {
        let stream = match stream {
            Ok(stream) => stream,
            Err(error) => {
                // Out of descriptors or memory: it passes, or the core sees that nobody answers.
                tracing::warn!("accepting a connection on the query socket failed: {error}");
                thread::sleep(Duration::from_millis(100));
                continue;
            }
        };
        let Ok(credentials) = getsockopt(&stream, PeerCredentials) else { continue };
        let uid = credentials.uid();
        let Ok(spare) = stream.try_clone() else { continue };
        let Some(permit) = open.take(uid, move || drop(spare.shutdown(Shutdown::Both))) else {
            sessions.turned.warn(uid, || {
                let pid = credentials.pid();
                format!(
                    "process {pid} of user {uid} was turned away: too many connections on the query socket"
                )
            });
            refuse(stream, "too many connections to the auditor at once; close some and try again");
            continue;
        };
        let (db, shared, sessions) = (db.to_owned(), Arc::clone(shared), Arc::clone(sessions));
        let spawned = thread::Builder::new().name("query".into()).stack_size(512 << 10).spawn(move || {
            // A peer that went away is no news.
            let _ = converse(stream, &permit, &Asked { viewer: Viewer(uid), db, shared, sessions });
        });
        if let Err(error) = spawned {
            tracing::warn!("starting a thread for the query socket failed: {error}");
        }
    }
}

fn refuse(stream: UnixStream, why: &str) {
    let mut conn = Conn::new(stream, Duration::from_millis(100), MAX_REQUEST);
    let _ = conn.send(&QueryReply::Failed(Failure { error: why.to_owned() }));
}

struct Asked {
    viewer: Viewer,
    db: PathBuf,
    shared: Arc<Shared>,
    sessions: Arc<Sessions>,
}

/// Why a request could not be answered.
#[derive(Debug, thiserror::Error)]
enum QueryError {
    /// The peer went away.
    #[error("the peer went away")]
    Peer(#[source] ringfence_wire::frame::FrameError),
    /// The store refuses.
    #[error("the audit database cannot be read")]
    Store(#[source] store::Error),
}

fn converse(stream: UnixStream, permit: &Permit, asked: &Asked) -> io::Result<()> {
    let mut answers = Conn::new(stream.try_clone()?, READ_LIMIT, usize::MAX);
    let request = match Conn::new(stream, REQUEST_LIMIT, MAX_REQUEST).receive::<QueryRequest>() {
        Ok(request) => request,
        Err(error) => {
            let error = format!("the request cannot be read: {}", chain(&error));
            let _ = answers.send(&QueryReply::Failed(Failure { error }));
            return Ok(());
        }
    };
    if !permit.busy() {
        // Evicted: what was asked is there to be read all the same, and nobody hears the answer.
        return Ok(());
    }
    let done = match request {
        QueryRequest::Events(query) => asked.events(&query, &mut answers),
        QueryRequest::Why { event } => asked.why(event, &mut answers),
        QueryRequest::Status => asked.status(&mut answers),
        QueryRequest::Trace(query) => asked.trace(&query, &mut answers),
    };
    if let Err(QueryError::Store(error)) = done {
        if error.is_corrupt() {
            asked.shared.suspect();
        }
        let _ = answers.send(&QueryReply::Failed(Failure { error: chain(&QueryError::Store(error)) }));
    }
    Ok(())
}

impl Asked {
    fn events(&self, query: &EventsQuery, answers: &mut Conn) -> Result<(), QueryError> {
        let behind = !self.shared.flush(FLUSH_LIMIT);
        let (reader, mut last) = self.reader()?;
        self.refresh();
        let filter = Filter {
            refused: query.denied,
            container: query.container.clone().filter(|c| !c.is_empty()),
            since: query.since,
        };
        let begin = reader.begin(self.viewer, &filter, last, query.limit).map_err(QueryError::Store)?;
        let mut after = begin.max(query.after.unwrap_or(0));
        self.send_between(&reader, &filter, after, last, answers)?;
        send(answers, &QueryReply::End { last, behind })?;
        if !query.follow {
            return Ok(());
        }
        // Its cache of pages is 2 MiB, and whoever follows may follow for days.
        drop(reader);
        // History ended at `last`; what is live begins behind it: no gap, nothing twice.
        loop {
            after = last;
            let progress = self.shared.wait_after(after, Duration::from_secs(1));
            if progress.closed || hung_up(answers.stream()) {
                return Ok(());
            }
            last = progress.last.max(after);
            if last > after {
                self.refresh();
                // A corrupt database may have been replaced meanwhile.
                let reader = Reader::open(&self.db).map_err(QueryError::Store)?;
                self.send_between(&reader, &filter, after, last, answers)?;
            }
        }
    }

    /// A reader, and the last event's number. A database found corrupt is replaced first.
    fn reader(&self) -> Result<(Reader, u64), QueryError> {
        let open = || {
            let reader = Reader::open(&self.db)?;
            let last = reader.last_id()?;
            Ok((reader, last))
        };
        let opened = match open() {
            Err(error) if store::Error::is_corrupt(&error) => {
                self.shared.suspect();
                self.shared.flush(FLUSH_LIMIT);
                open()
            }
            opened => opened,
        };
        opened.map_err(QueryError::Store)
    }

    /// Takes in what MCP sessions journalled up to now, so that the events before now can be told apart by their calls.
    fn refresh(&self) {
        self.sessions.refresh(self.viewer);
    }

    fn send_between(
        &self,
        reader: &Reader,
        filter: &Filter,
        mut after: u64,
        last: u64,
        answers: &mut Conn,
    ) -> Result<(), QueryError> {
        while after < last {
            let page = reader.events(self.viewer, filter, after, last, PAGE).map_err(QueryError::Store)?;
            let Some(end) = page.last() else { return Ok(()) };
            after = end.id;
            let events = belongs::events(&self.sessions, &page).map_err(QueryError::Store)?;
            send(answers, &QueryReply::Events { events })?;
        }
        Ok(())
    }

    fn why(&self, id: u64, answers: &mut Conn) -> Result<(), QueryError> {
        self.shared.flush(FLUSH_LIMIT);
        let (reader, _) = self.reader()?;
        let reply = match reader.event(self.viewer, id).map_err(QueryError::Store)? {
            Some(stored) => {
                self.refresh();
                let tied = belongs::events(&self.sessions, std::slice::from_ref(&stored));
                let mut why = explain::event(&stored);
                if let Some(event) = tied.map_err(QueryError::Store)?.pop() {
                    why.event = event;
                }
                QueryReply::Why(Box::new(why))
            }
            None => QueryReply::Failed(Failure {
                error: format!(
                    "there is no event {id}, or it is another user's; `ringfence events` lists the numbers in its \
                     last column and as `id` in its JSON"
                ),
            }),
        };
        send(answers, &reply)
    }

    fn trace(&self, query: &TraceQuery, answers: &mut Conn) -> Result<(), QueryError> {
        self.shared.flush(FLUSH_LIMIT);
        let traced = trace::of(&self.sessions, self.viewer, query).map_err(QueryError::Store)?;
        let reply = match traced {
            Some(trace) => QueryReply::Trace(Box::new(trace)),
            None => QueryReply::Failed(Failure {
                error: format!(
                    "there is no agent, intent or tool call {:?} on record, or it is another user's; `ringfence events trace` shows the newest",
                    query.what.as_deref().unwrap_or_default()
                ),
            }),
        };
        send(answers, &reply)
    }

    fn status(&self, answers: &mut Conn) -> Result<(), QueryError> {
        let health = self.shared.health().clone();
        let mut status = AuditorStatus {
            database: self.db.display().to_string(),
            stored: health.stored,
            failing: health.failing,
            corrupt_moved_to: health.moved_to,
            mcp: self.sessions.status(self.viewer.0),
            undecodable: health.undecodable.iter().map(|(reason, n)| ((*reason).to_owned(), *n)).collect(),
            ..AuditorStatus::default()
        };
        let read = || {
            let reader = Reader::open(&self.db)?;
            Ok((reader.size(self.viewer)?, reader.lost(self.viewer)?))
        };
        match read() {
            Ok(((rows, bytes), lost)) => (status.rows, status.bytes, status.lost) = (rows, bytes, lost),
            Err::<_, store::Error>(error) => {
                status.failing.get_or_insert_with(|| chain(&error));
            }
        }
        for dropped in self.shared.dropped() {
            add(&mut status.lost, &dropped, self.viewer);
        }
        for lost in &mut status.lost {
            lost.profile = escape::line(&lost.profile);
        }
        send(answers, &QueryReply::Status(status))
    }
}

/// Adds what was dropped and is not in the store yet.
fn add(all: &mut Vec<Lost>, dropped: &Dropped, viewer: Viewer) {
    let (public, profile, uid) = match &dropped.identity {
        Some(identity) => (identity.public.as_str(), identity.profile.as_str(), identity.uid),
        None => ("", "unknown", 0),
    };
    if viewer.0 != 0 && viewer.0 != uid {
        return;
    }
    let at = all.iter().position(|lost| lost.container == public).unwrap_or_else(|| {
        all.push(Lost { container: public.to_owned(), profile: profile.to_owned(), ..Lost::default() });
        all.len() - 1
    });
    all[at].store_denied += dropped.denied;
    all[at].store_allowed += dropped.allowed;
}

fn send(answers: &mut Conn, reply: &QueryReply) -> Result<(), QueryError> {
    answers.send(reply).map_err(QueryError::Peer)
}

/// Whether the peer closed the connection, or its writing half.
fn hung_up(stream: &UnixStream) -> bool {
    let mut fds = [PollFd::new(stream, PollFlags::RDHUP)];
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    !matches!(poll(&mut fds, Some(&now)), Ok(0))
}
