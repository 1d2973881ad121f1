//! One session: which message of the server's goes to which of the client's streams.

use super::{
    body::{Events, Item, OnDrop},
    child::Child,
    replay::{Replay, id as event_id, read_id},
};
use crate::{
    message::{Message, answered},
    room::{Room, Rooms},
};
use ringfence_session::line::Id;
use serde_json::json;
use std::{
    collections::{BTreeMap, HashMap},
    ffi::OsString,
    io,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError, Weak,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};
use tokio::sync::mpsc;

/// Messages that wait for a client to read them; the server's next wait with them.
const WAITING: usize = 16;
/// Streams that are over and can be asked for again.
const FINISHED: usize = 32;
/// Most requests that are open at a time.
const MAX_OPEN: usize = 256;
/// The stream of what the server says unasked.
const UNASKED: u64 = 0;

/// How long a message waits for room; a client that reads nothing for so long has lost its session.
const PATIENCE: Duration = Duration::from_secs(60);
/// What is said of it.
const NO_ROOM: &str =
    "the session is over: clients have not read their answers for a minute, and there is no room for more";
/// How often it is looked for.
const LOOK: Duration = Duration::from_millis(20);

/// A stream to a client.
struct Stream {
    replay: Replay,
    /// The last event that was sent to a client, as far as that is known.
    sent: u64,
    live: Option<mpsc::Sender<Item>>,
    /// Requests that it has still to answer.
    open: usize,
}

impl Stream {
    fn new(room: Room, open: usize) -> Self {
        Self { replay: Replay::new(room), sent: 0, live: None, open }
    }
}

#[derive(Default)]
struct State {
    streams: BTreeMap<u64, Stream>,
    /// Open requests of the client's, and the streams that answer them.
    open: HashMap<Id, u64>,
    /// The same by the tokens of their progress.
    tokens: HashMap<Id, u64>,
    last: u64,
    used: Option<Instant>,
    over: bool,
}

/// A session.
pub(super) struct Session {
    /// Its id; of one without sessions, nobody's business.
    pub(super) id: String,
    /// Of the protocol without sessions: streams cannot be resumed, and end what they ask for when they end.
    pub(super) is_stateless: bool,
    /// Whose it is, where the protocol has no sessions.
    pub(super) client: String,
    child: Child,
    state: Arc<Mutex<State>>,
    rooms: Rooms,
}

/// Why a request is not sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(super) enum Refused {
    /// Its id is that of another.
    #[error("a request with this id is open already")]
    Again,
    /// There are too many.
    #[error("too many requests are open already")]
    TooMany,
    /// No server.
    #[error("the session is over: its server has ended")]
    Over,
}

fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Session {
    /// Starts one. `over` is called when it has ended by itself.
    pub(super) fn start(
        (id, is_stateless, client): (String, bool, String),
        command: &[OsString],
        (limit, rooms): (usize, Rooms),
        learn: impl Fn(&[u8]) + Send + 'static,
        make_room: impl Fn() + Send + 'static,
        over: impl FnOnce() + Send + 'static,
    ) -> io::Result<Self> {
        let state = Arc::new(Mutex::new(State::default()));
        lock(&state).streams.insert(UNASKED, Stream::new(rooms.one(), 0));
        let (each, end) = (Arc::clone(&state), Arc::clone(&state));
        let own = rooms.clone();
        let deliver = move |line: &[u8]| {
            learn(line);
            State::deliver(&each, line, is_stateless, (own.one(), &make_room))
        };
        let child = Child::start(command, limit, deliver, move || {
            State::end(&end, is_stateless, &Refused::Over.to_string());
            over();
        })?;
        Ok(Self { id, is_stateless, client, child, state, rooms })
    }

    /// How long it has done nothing: no request is open, and no client listens.
    pub(super) fn idle(&self) -> Duration {
        let mut state = lock(&self.state);
        let listens = state.streams.get(&UNASKED).and_then(|stream| stream.live.as_ref());
        if !state.open.is_empty() || listens.is_some_and(|live| !live.is_closed()) {
            state.used = Some(Instant::now());
        }
        state.used.map_or(Duration::ZERO, |used| used.elapsed())
    }

    pub(super) fn is_over(&self) -> bool {
        lock(&self.state).over
    }

    /// Whether requests of these ids can be told apart from those that are open.
    pub(super) fn can_take(&self, ids: &[Id]) -> bool {
        let state = lock(&self.state);
        !state.over && ids.iter().all(|id| !state.open.contains_key(id))
    }

    /// Sends what asks for nothing.
    pub(super) async fn notify(&self, line: Vec<u8>) -> Result<(), Refused> {
        lock(&self.state).used = Some(Instant::now());
        if self.child.send(line).await { Ok(()) } else { Err(Refused::Over) }
    }

    /// Sends a line with requests; the stream that answers them. `primes`: it begins with an event that says where to resume.
    pub(super) async fn request(
        self: &Arc<Self>,
        line: Vec<u8>,
        asks: Vec<(Id, Option<Id>)>,
        primes: bool,
    ) -> Result<(mpsc::Receiver<Item>, OnDrop), Refused> {
        let (live, items) = mpsc::channel(WAITING);
        let number = {
            let mut state = lock(&self.state);
            if state.over {
                return Err(Refused::Over);
            }
            if state.open.len() + asks.len() > MAX_OPEN {
                return Err(Refused::TooMany);
            }
            if asks.iter().any(|(id, _)| state.open.contains_key(id)) {
                return Err(Refused::Again);
            }
            state.used = Some(Instant::now());
            state.last += 1;
            let number = state.last;
            for (id, token) in &asks {
                state.open.insert(id.clone(), number);
                if let Some(token) = token {
                    state.tokens.insert(token.clone(), number);
                }
            }
            let mut stream = Stream::new(self.rooms.one(), asks.len());
            if primes {
                let at = stream.replay.push(Vec::new());
                stream.sent = at;
                let (id, room) = (Some(event_id(number, at)), self.rooms.one());
                let _ = live.try_send(Item { id, line: Vec::new(), _room: room });
            }
            stream.live = Some(live);
            state.streams.insert(number, stream);
            state.forget();
            number
        };
        // The client may go while the line waits: then it was never sent.
        let sent = Arc::new(AtomicBool::new(false));
        let (session, is_sent) = (Arc::downgrade(self), Arc::clone(&sent));
        let end = OnDrop(Some(Box::new(move || cancel(&session, number, is_sent.load(Ordering::Relaxed)))));
        if !self.child.send(line).await {
            State::end(&self.state, self.is_stateless, &Refused::Over.to_string());
        }
        sent.store(true, Ordering::Relaxed);
        Ok((items, end))
    }

    /// The stream of what the server says unasked, or the rest of the one with this event. None: there is no such event.
    pub(super) fn listen(&self, last: Option<&str>) -> Option<Events> {
        let (number, after) = match last {
            Some(last) => read_id(last)?,
            None => (UNASKED, lock(&self.state).streams.get(&UNASKED)?.sent),
        };
        let mut state = lock(&self.state);
        state.used = Some(Instant::now());
        let stream = state.streams.get_mut(&number)?;
        let missed: Vec<(u64, Vec<u8>)> =
            stream.replay.after(after).map(|(at, line)| (at, line.to_vec())).collect();
        let (live, items) = mpsc::channel(WAITING + missed.len());
        for (at, line) in missed {
            let mut room = self.rooms.one();
            if room.set(line.len()).is_err() {
                break;
            }
            stream.sent = at;
            let _ = live.try_send(Item { id: Some(event_id(number, at)), line, _room: room });
        }
        if number == UNASKED || stream.open > 0 {
            stream.live = Some(live);
        }
        Some(Events::new(None, items, OnDrop(None)))
    }

    /// Gives back what only a client that comes back would want.
    pub(super) fn make_room(&self) {
        lock(&self.state).make_room();
    }

    /// Lets it end, as when a client ends.
    pub(super) fn end(&self) {
        lock(&self.state).over = true;
        self.child.end();
    }

    /// Waits until it has ended.
    pub(super) async fn ended(&self) {
        self.child.ended.cancelled().await;
    }
}

/// The client does not wait for what is open on a stream any more. With sessions it may come back, if the server has its requests.
fn cancel(session: &Weak<Session>, number: u64, sent: bool) {
    let Some(session) = session.upgrade().filter(|session| session.is_stateless || !sent) else { return };
    let open: Vec<Id> = {
        let mut state = lock(&session.state);
        let open = state.open.iter().filter(|(_, of)| **of == number).map(|(id, _)| id.clone()).collect();
        state.open.retain(|_, of| *of != number);
        state.tokens.retain(|_, of| *of != number);
        state.streams.remove(&number);
        open
    };
    // Outside of a runtime the endpoint is ending.
    let Some(runtime) = tokio::runtime::Handle::try_current().ok().filter(|_| sent) else { return };
    for id in open {
        let params =
            format!("{{\"requestId\":{},\"reason\":\"the client closed the connection\"}}", id.to_json());
        let line =
            format!("{{\"jsonrpc\":\"2.0\",\"method\":\"notifications/cancelled\",\"params\":{params}}}\n");
        // Behind what waits already: there are no more of these than requests that were sent.
        let session = Arc::clone(&session);
        runtime.spawn(async move { session.child.send(line.into_bytes()).await });
    }
}

impl State {
    /// Gives a line of the server's to the stream that it belongs to, and waits until there is room for it: what could be asked
    /// for again goes first. False: there is none, and the session is over.
    fn deliver(
        state: &Mutex<Self>,
        line: &[u8],
        is_stateless: bool,
        (mut room, make_room): (Room, &impl Fn()),
    ) -> bool {
        if line.trim_ascii().is_empty() {
            return true;
        }
        let since = Instant::now();
        while room.set(line.len()).is_err() {
            if since.elapsed() >= PATIENCE || lock(state).over {
                Self::end(state, is_stateless, NO_ROOM);
                return false;
            }
            make_room();
            thread::sleep(LOOK);
        }
        let (item, live, number, is_done) = {
            let mut state = lock(state);
            let answers = answered(line);
            let of = answers.iter().find_map(|id| state.open.get(id).copied());
            let number = of.or_else(|| state.asked_for(line)).unwrap_or(UNASKED);
            for id in &answers {
                if state.open.remove(id).is_some()
                    && let Some(stream) = state.streams.get_mut(&number)
                {
                    stream.open = stream.open.saturating_sub(1);
                }
            }
            let Some(stream) = state.streams.get_mut(&number) else { return true };
            let is_done = number != UNASKED && stream.open == 0;
            if is_stateless && number == UNASKED {
                // Nobody can listen to it.
                return true;
            }
            let at = if is_stateless { 0 } else { stream.replay.push(line.to_vec()) };
            let id = (!is_stateless).then(|| event_id(number, at));
            let live = if is_done { stream.live.take() } else { stream.live.clone() };
            if live.is_some() {
                stream.sent = at;
            }
            if is_done {
                state.tokens.retain(|_, of| *of != number);
            }
            (Item { id, line: line.to_vec(), _room: room }, live, number, is_done)
        };
        let Some(live) = live else { return true };
        if live.blocking_send(item).is_err() && !is_done {
            let mut state = lock(state);
            // Another may have taken its place.
            if let Some(stream) =
                state.streams.get_mut(&number).filter(|s| s.live.as_ref().is_some_and(|l| l.is_closed()))
            {
                stream.live = None;
            }
        }
        true
    }

    /// Keeps nothing of streams that are over.
    fn make_room(&mut self) {
        let over = self.streams.iter_mut().filter(|(number, stream)| **number != UNASKED && stream.open == 0);
        over.for_each(|(_, stream)| stream.replay.clear());
    }

    /// The stream that what is no answer belongs to, if any: of the request whose progress or subscription it is, else of the
    /// last one that is open where the server asks for something or says what it is doing.
    fn asked_for(&self, line: &[u8]) -> Option<u64> {
        let messages = Message::all(line);
        let message = messages.first()?;
        if let Some(stream) = message.progress().and_then(|token| self.tokens.get(&token)) {
            return Some(*stream);
        }
        if let Some(stream) = message.subscription().and_then(|id| self.open.get(&id)) {
            return Some(*stream);
        }
        let is_about_it = message.request_id().is_some()
            || matches!(message.method.as_deref(), Some("notifications/message" | "notifications/cancelled"));
        let open = self.streams.iter().rev().find(|(number, stream)| **number != UNASKED && stream.open > 0);
        open.map(|(number, _)| *number).filter(|_| is_about_it)
    }

    /// Forgets the oldest streams that are over.
    fn forget(&mut self) {
        let over: Vec<u64> = self
            .streams
            .iter()
            .filter(|(n, stream)| **n != UNASKED && stream.open == 0)
            .map(|(n, _)| *n)
            .collect();
        for number in over.iter().take(over.len().saturating_sub(FINISHED)) {
            self.streams.remove(number);
        }
    }

    /// The session is over: what is open is answered with why, and every stream ends.
    fn end(state: &Mutex<Self>, is_stateless: bool, why: &str) {
        let mut state = lock(state);
        state.over = true;
        let open: Vec<(Id, u64)> = state.open.drain().collect();
        for (id, number) in open {
            let error = json!({ "code": -32000, "message": why });
            let line = id.answer("error", &error).into_bytes();
            let Some(stream) = state.streams.get_mut(&number) else { continue };
            let at = stream.replay.push(line.clone());
            let id = (!is_stateless).then(|| event_id(number, at));
            let room = stream.replay.no_room();
            let _ = stream.live.as_ref().map(|live| live.try_send(Item { id, line, _room: room }));
        }
        state.streams.values_mut().for_each(|stream| stream.live = None);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn runtime() -> tokio::runtime::Runtime {
        tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap()
    }

    fn session(is_stateless: bool, script: &str, rooms: &Rooms) -> Arc<Session> {
        let command = ["sh", "-c", script].map(OsString::from);
        let id = ("s".to_owned(), is_stateless, String::new());
        Arc::new(Session::start(id, &command, (1 << 20, rooms.clone()), |_| {}, || {}, || {}).unwrap())
    }

    fn ask(n: i64) -> Vec<(Id, Option<Id>)> {
        vec![(Id::parse(&n.to_string()).unwrap(), None)]
    }

    #[test]
    fn a_client_that_goes_before_its_request_is_sent_leaves_nothing_open() {
        for is_stateless in [false, true] {
            let runtime = runtime();
            // It reads nothing: the pipe fills, and then a line waits, and another.
            let session = session(is_stateless, "exec sleep 30 2>/dev/null", &Rooms::new(64 << 20));
            runtime.block_on(async {
                let long = vec![b'x'; 1 << 20];
                let mut went = Vec::new();
                for n in 0..4 {
                    let asked = session.request(long.clone(), ask(n), false);
                    went.push(tokio::time::timeout(Duration::from_millis(300), asked).await);
                }
                assert!(went.iter().any(Result::is_err), "one of them was still waiting");
                for (n, sent) in went.iter().enumerate() {
                    let is_open = !session.can_take(&[ask(n as i64)[0].0.clone()]);
                    assert_eq!(is_open, sent.is_ok(), "{n}");
                }
            });
            session.end();
        }
    }

    #[test]
    fn a_cancellation_waits_for_its_turn_and_is_not_lost() {
        let folder = tempfile::tempdir().unwrap();
        let (go, got) = (folder.path().join("go"), folder.path().join("got"));
        let script =
            format!("while [ ! -e {} ]; do sleep 0.05; done; exec cat > {}", go.display(), got.display());
        let runtime = runtime();
        let session = session(true, &script, &Rooms::new(64 << 20));
        runtime.block_on(async {
            let mut long = vec![b'x'; 200_000];
            long.push(b'\n');
            // One line is being written, one waits; the second client goes.
            let first = session.request(long.clone(), ask(1), false).await.unwrap();
            let second = session.request(long.clone(), ask(2), false).await.unwrap();
            drop(second);
            std::fs::write(&go, "").unwrap();
            let since = Instant::now();
            loop {
                let text = std::fs::read_to_string(&got).unwrap_or_default();
                if text.contains("\"requestId\":2") {
                    break;
                }
                assert!(since.elapsed() < Duration::from_secs(60), "the cancellation is lost");
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            drop(first);
        });
        session.end();
    }

    #[test]
    fn streams_that_are_over_give_back_their_room() {
        let rooms = Rooms::new(1 << 20);
        let state = Mutex::new(State::default());
        let mut over = Stream::new(rooms.one(), 0);
        over.replay.push(vec![0; 900 << 10]);
        lock(&state).streams.insert(1, over);
        let (live, mut items) = mpsc::channel(WAITING);
        let mut open = Stream::new(rooms.one(), 1);
        open.live = Some(live);
        lock(&state).streams.insert(2, open);
        lock(&state).open.insert(ask(7)[0].0.clone(), 2);
        let line = format!("{{\"id\":7,\"result\":\"{}\"}}\n", "x".repeat(400 << 10));
        let make_room = || lock(&state).make_room();
        assert!(State::deliver(&state, line.as_bytes(), false, (rooms.one(), &make_room)));
        assert_eq!(items.try_recv().unwrap().line, line.as_bytes());
    }
}
