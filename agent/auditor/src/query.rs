//! The query socket: who asks is what the kernel says of the peer; each gets to see its own.
//!
//! A governed task has nothing to ask here: no grant covers this socket (its directory is a protected place), so its
//! connect is refused by the kernel. The auditor itself looks at the peer's uid only.

use super::{
    accept::{Peer, Service},
    mcp::{attribution, sessions::Sessions},
    shared::{Dropped, Shared},
    trace,
};
use ringfence_base::{
    error::chain,
    escape,
    precedence::First,
    quota::{Bounds, Lane, Lanes, Permit, Permits},
};
use ringfence_events::explain;
use ringfence_store::{self as store, Filter, Reader, Viewer};
use ringfence_wire::{
    calls::{CallList, CallsQuery},
    conn::{Conn, is_hung_up},
    frame::FrameError,
    message::{AuditorStatus, EventsQuery, Failure, Lost, QueryReply, QueryRequest},
    trace::TraceQuery,
};
use std::{
    os::unix::net::UnixStream,
    path::{Path, PathBuf},
    sync::Arc,
    thread,
    time::{Duration, Instant},
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
/// After a look for new events whoever follows them rests so many times as long as that took, and at most so long: the
/// processors are for those who ask.
const REST: u32 = 7;
const LONGEST_REST: Duration = Duration::from_millis(250);

/// What is asked, and of what.
pub(crate) struct Queries {
    db: PathBuf,
    shared: Arc<Shared>,
    sessions: Arc<Sessions>,
    permits: Permits,
    /// One answer for each user is made at once: the others of the same user wait.
    lanes: Lanes,
}

impl Queries {
    /// Nobody is connected yet.
    pub(crate) fn new(db: &Path, shared: &Arc<Shared>, sessions: &Arc<Sessions>) -> Self {
        let owners = || sessions.owners.clone();
        Self {
            db: db.to_owned(),
            shared: Arc::clone(shared),
            sessions: Arc::clone(sessions),
            permits: Permits::within(Bounds::of(MAX_CONNECTIONS, MAX_PER_UID), owners()),
            lanes: Lanes::new(owners()),
        }
    }
}

impl Service for Queries {
    const NAME: &'static str = "query";
    const STACK: usize = 512 << 10;
    const SILENCE: Duration = REQUEST_LIMIT;

    fn permits(&self) -> &Permits {
        &self.permits
    }

    fn evicted(&self, _: Peer) {}

    fn turned_away(&self, Peer { uid, pid }: Peer, stream: UnixStream) {
        self.sessions.turned.warn(uid, || {
            format!("process {pid} of user {uid} was turned away: too many connections on the query socket")
        });
        let error = "too many connections to the auditor at once; close some and try again".to_owned();
        let mut conn = Conn::new(stream, Duration::from_millis(100), MAX_REQUEST);
        let _ = conn.send(&QueryReply::Failed(Failure { error }));
    }

    fn converse(self: Arc<Self>, peer: Peer, stream: UnixStream, permit: &Permit) -> Result<(), FrameError> {
        // Root looks after the machine: its questions are answered before those of its users.
        let _first = (peer.uid == 0).then(First::begin);
        Responder { viewer: Viewer(peer.uid), queries: &self, permit }.converse(stream)
    }
}

struct Responder<'a> {
    viewer: Viewer,
    queries: &'a Queries,
    permit: &'a Permit,
}

/// Why a request could not be answered.
#[derive(Debug, thiserror::Error)]
enum QueryError {
    /// The peer went away.
    #[error("the peer went away")]
    Peer(#[source] FrameError),
    /// The store refuses.
    #[error("the audit database cannot be read")]
    Store(#[source] store::Error),
}

impl Responder<'_> {
    fn converse(&self, stream: UnixStream) -> Result<(), FrameError> {
        let mut answers = Conn::new(stream.try_clone().map_err(FrameError::Io)?, READ_LIMIT, usize::MAX);
        let request = match Conn::new(stream, REQUEST_LIMIT, MAX_REQUEST).receive::<QueryRequest>() {
            Ok(request) => request,
            Err(error) => {
                let error = format!("the request cannot be read: {}", chain(&error));
                return answers.send(&QueryReply::Failed(Failure { error }));
            }
        };
        if !self.permit.busy() {
            // Evicted: the request is there to be read all the same, and nobody reads the answer.
            return Err(FrameError::Closed);
        }
        let done = match request {
            QueryRequest::Events(query) => self.events(&query, &mut answers),
            QueryRequest::Why { event } => self.why(event, &mut answers),
            QueryRequest::Status => self.status(&mut answers),
            QueryRequest::Trace(query) => self.trace(&query, &mut answers),
            QueryRequest::Calls(query) => self.calls(&query, &mut answers),
        };
        match done {
            Ok(()) => Ok(()),
            Err(QueryError::Peer(error)) => Err(error),
            Err(QueryError::Store(error)) => {
                if error.is_corrupt() {
                    self.queries.shared.suspect();
                }
                answers.send(&QueryReply::Failed(Failure { error: chain(&QueryError::Store(error)) }))
            }
        }
    }

    /// Waits until none of the user's other answers is being made. Root has no lane: its services ask at once.
    ///
    /// # Errors
    /// The connection was ended for another one meanwhile.
    fn turn(&self) -> Result<Option<Lane>, QueryError> {
        if self.viewer.0 == 0 {
            return Ok(None);
        }
        let lane = self.queries.lanes.wait(self.viewer.0, || self.permit.is_held());
        lane.map(Some).ok_or(QueryError::Peer(FrameError::Closed))
    }

    fn events(&self, query: &EventsQuery, answers: &mut Conn) -> Result<(), QueryError> {
        let behind = !self.queries.shared.flush(FLUSH_LIMIT);
        let (reader, mut last) = self.reader()?;
        self.refresh();
        let filter = Filter {
            refused: query.denied,
            container: query.container.clone().filter(|c| !c.is_empty()),
            egress: query.egress,
            name: query.name.clone().filter(|name| !name.is_empty()),
            since: query.since,
        };
        let turn = self.turn()?;
        let begin = reader.begin(self.viewer, &filter, last, query.limit).map_err(QueryError::Store)?;
        drop(turn);
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
            let newest = self.queries.shared.wait_after(self.viewer.0, after, Duration::from_secs(1));
            let Some(newest) = newest.filter(|_| !is_hung_up(answers.stream())) else { return Ok(()) };
            last = newest.max(after);
            if last > after {
                let begun = Instant::now();
                self.refresh();
                // A corrupt database may have been replaced meanwhile.
                let reader = Reader::open(&self.queries.db).map_err(QueryError::Store)?;
                self.send_between(&reader, &filter, after, last, answers)?;
                thread::sleep((begun.elapsed() * REST).min(LONGEST_REST));
            }
        }
    }

    /// A reader, and the last event's number. A database found corrupt is replaced first.
    fn reader(&self) -> Result<(Reader, u64), QueryError> {
        let open = || {
            let reader = Reader::open(&self.queries.db)?;
            let last = reader.last_id()?;
            Ok((reader, last))
        };
        let opened = match open() {
            Err(error) if store::Error::is_corrupt(&error) => {
                self.queries.shared.suspect();
                self.queries.shared.flush(FLUSH_LIMIT);
                open()
            }
            opened => opened,
        };
        opened.map_err(QueryError::Store)
    }

    /// Takes in what MCP sessions journalled up to now, so that the events before now can be attributed to their calls.
    fn refresh(&self) {
        self.queries.sessions.refresh(self.viewer);
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
            let turn = self.turn()?;
            let page = reader.events(self.viewer, filter, after, last, PAGE).map_err(QueryError::Store)?;
            let Some(end) = page.last() else { return Ok(()) };
            after = end.id;
            let events = attribution::events(&self.queries.sessions, &page).map_err(QueryError::Store)?;
            // A reader of the answer may take as long as it likes; the user's others do not wait for it.
            drop(turn);
            send(answers, &QueryReply::Events { events })?;
        }
        Ok(())
    }

    fn why(&self, id: u64, answers: &mut Conn) -> Result<(), QueryError> {
        self.queries.shared.flush(FLUSH_LIMIT);
        let turn = self.turn()?;
        let (reader, _) = self.reader()?;
        let reply = match reader.event(self.viewer, id).map_err(QueryError::Store)? {
            Some(stored) => {
                self.refresh();
                let attributed = attribution::events(&self.queries.sessions, std::slice::from_ref(&stored));
                let mut why = explain::event(&stored);
                if let Some(event) = attributed.map_err(QueryError::Store)?.pop() {
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
        drop(turn);
        send(answers, &reply)
    }

    fn trace(&self, query: &TraceQuery, answers: &mut Conn) -> Result<(), QueryError> {
        self.queries.shared.flush(FLUSH_LIMIT);
        let turn = self.turn()?;
        let traced = trace::of(&self.queries.sessions, self.viewer, query).map_err(QueryError::Store)?;
        let reply = match traced {
            Some(trace) => QueryReply::Trace(Box::new(trace)),
            None => QueryReply::Failed(Failure {
                error: format!(
                    "there is no agent, intent or tool call {:?} on record, or it is another user's; `ringfence events trace` shows the newest",
                    query.what.as_deref().unwrap_or_default()
                ),
            }),
        };
        drop(turn);
        send(answers, &reply)
    }

    fn calls(&self, query: &CallsQuery, answers: &mut Conn) -> Result<(), QueryError> {
        self.queries.shared.flush(FLUSH_LIMIT);
        let turn = self.turn()?;
        let (reader, _) = self.reader()?;
        self.refresh();
        let (calls, more) = reader.call_list(self.viewer, query).map_err(QueryError::Store)?;
        drop(turn);
        send(answers, &QueryReply::Calls(CallList { calls, more }))
    }

    fn status(&self, answers: &mut Conn) -> Result<(), QueryError> {
        let health = self.queries.shared.health().clone();
        let mut status = AuditorStatus {
            database: self.queries.db.display().to_string(),
            stored: health.stored,
            failing: health.failing,
            corrupt_moved_to: health.moved_to,
            mcp: self.queries.sessions.status(self.viewer.0),
            undecodable: health.undecodable.iter().map(|(reason, n)| ((*reason).to_owned(), *n)).collect(),
            ..AuditorStatus::default()
        };
        let read = || {
            let reader = Reader::open(&self.queries.db)?;
            Ok((reader.size(self.viewer)?, reader.lost(self.viewer)?))
        };
        let turn = self.turn()?;
        match read() {
            Ok(((rows, bytes), lost)) => (status.rows, status.bytes, status.lost) = (rows, bytes, lost),
            Err::<_, store::Error>(error) => {
                status.failing.get_or_insert_with(|| chain(&error));
            }
        }
        drop(turn);
        for dropped in self.queries.shared.dropped() {
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
