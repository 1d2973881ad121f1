//! One session: which message of the server's goes to which of the client's streams.

use super::{
    body::{Events, Item, OnDrop},
    child::Child,
    replay::{Replay, id as event_id, read_id},
};
use crate::{
    message::{Message, answered},
    room::{Full, Room, Rooms},
};
use ringfence_session::{journal::sha256, line::Id};
use serde_json::json;
use std::{
    collections::{BTreeMap, HashMap},
    ffi::OsString,
    io, mem,
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
/// How long a request that was called off may still be answered: its id is not free until then.
const CALLED_OFF: Duration = Duration::from_secs(30);
/// Most of those at a time.
const MOST_CALLED_OFF: usize = 16 * MAX_OPEN;
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
    /// The last event that a client's stream has taken.
    sent: u64,
    live: Option<mpsc::Sender<Item>>,
    /// Requests that it has still to answer.
    open: usize,
}

impl Stream {
    fn new(room: Room, open: usize) -> Self {
        Self { replay: Replay::new(room), sent: 0, live: None, open }
    }

    /// Whether there is a client that reads it, as far as that is known.
    fn is_read(&self) -> bool {
        self.live.as_ref().is_some_and(|live| !live.is_closed())
    }
}

#[derive(Default)]
struct State {
    streams: BTreeMap<u64, Stream>,
    /// Open requests of the client's, and the streams that answer them.
    open: HashMap<Id, u64>,
    /// The same by the tokens of their progress.
    tokens: HashMap<Id, u64>,
    /// Digests of the ids of requests that were called off since, and when: ids may be long.
    called_off: HashMap<String, Instant>,
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

fn digest(id: &Id) -> String {
    sha256(id.to_json().as_bytes())
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
        find_room: impl Fn(&mut Room, usize) -> Result<(), Full> + Send + 'static,
        over: impl FnOnce() + Send + 'static,
    ) -> io::Result<Self> {
        let state = Arc::new(Mutex::new(State::default()));
        lock(&state).streams.insert(UNASKED, Stream::new(rooms.one(), 0));
        let (each, end) = (Arc::clone(&state), Arc::clone(&state));
        let own = rooms.clone();
        let deliver = move |line: &[u8]| {
            learn(line);
            State::deliver(&each, line, is_stateless, (own.one(), &find_room))
        };
        let child = Child::start(command, limit, deliver, move || {
            State::end(&end, is_stateless, &Refused::Over.to_string());
            over();
        })?;
        Ok(Self { id, is_stateless, client, child, state, rooms })
    }

    /// How long it has done nothing: no client asked for anything, and none waits for an answer or listens. A request that is
    /// open is no sign of one: the server may never answer it.
    pub(super) fn idle(&self) -> Duration {
        let mut state = lock(&self.state);
        if state.streams.values().any(Stream::is_read) {
            state.used = Some(Instant::now());
        }
        state.used.map_or(Duration::ZERO, |used| used.elapsed())
    }

    pub(super) fn is_over(&self) -> bool {
        lock(&self.state).over
    }

    /// Whether requests of these ids can be told apart from those that are open.
    pub(super) fn can_take(&self, ids: &[Id]) -> bool {
        let mut state = lock(&self.state);
        !state.over && state.are_free(ids.iter())
    }

    /// Sends what asks for nothing, and may call off requests.
    pub(super) async fn notify(&self, line: Vec<u8>, cancels: &[Id]) -> Result<(), Refused> {
        lock(&self.state).used = Some(Instant::now());
        if !self.child.send(line).await {
            return Err(Refused::Over);
        }
        self.call_off(cancels);
        Ok(())
    }

    /// The client said that it waits for these requests no more. Without sessions its streams' ends say so: there an id may be
    /// another client's.
    pub(super) fn call_off(&self, ids: &[Id]) {
        if !self.is_stateless {
            lock(&self.state).call_off(ids);
        }
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
            if !state.are_free(asks.iter().map(|(id, _)| id)) {
                return Err(Refused::Again);
            }
            if state.open.len() + asks.len() > MAX_OPEN || state.called_off.len() >= MOST_CALLED_OFF {
                return Err(Refused::TooMany);
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
                let at = stream.replay.push(Vec::new(), false);
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

    /// The stream of what the server says unasked, or the rest of the one with this event. `None`: there is no such event, or
    /// what comes behind it is kept no more and somebody may wait for it.
    ///
    /// # Errors
    /// [`Full`]: there is no room for what the client missed; it can ask again.
    pub(super) fn listen(
        &self,
        last: Option<&str>,
        find_room: impl Fn(&mut Room, usize) -> Result<(), Full>,
    ) -> Result<Option<Events>, Full> {
        let asked = match last {
            Some(last) => read_id(last),
            None => lock(&self.state).streams.get(&UNASKED).map(|stream| (UNASKED, stream.sent)),
        };
        let Some((number, mut after)) = asked else { return Ok(None) };
        // Finding room may take what is kept here, and looks at this state: the copy is made before.
        let mut missed: Vec<(u64, Vec<u8>, Room)> = {
            let state = lock(&self.state);
            let stream = state.streams.get(&number).filter(|stream| !stream.replay.lacks(after));
            let Some(stream) = stream else { return Ok(None) };
            stream.replay.after(after).map(|(at, line)| (at, line.to_vec(), self.rooms.one())).collect()
        };
        for (at, line, room) in &mut missed {
            find_room(room, line.len())?;
            after = *at;
        }
        let mut state = lock(&self.state);
        state.used = Some(Instant::now());
        let stream = state.streams.get_mut(&number).filter(|stream| !stream.replay.lacks(after));
        let Some(stream) = stream else { return Ok(None) };
        for (at, line) in stream.replay.after(after) {
            let mut room = self.rooms.one();
            room.set(line.len())?;
            missed.push((at, line.to_vec(), room));
        }
        let (live, items) = mpsc::channel(WAITING + missed.len());
        for (at, line, room) in missed {
            stream.sent = at;
            let _ = live.try_send(Item { id: Some(event_id(number, at)), line, _room: room });
        }
        if number == UNASKED || stream.open > 0 {
            stream.live = Some(live);
        }
        Ok(Some(Events::new(None, items, OnDrop(None))))
    }

    /// Gives back what only a client that comes back would want: what streams that are over had, and if that is not enough
    /// (`all`), what was sent on the others.
    pub(super) fn make_room(&self, all: bool) {
        lock(&self.state).make_room(all);
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
        let open: Vec<Id> =
            state.open.iter().filter(|(_, of)| **of == number).map(|(id, _)| id.clone()).collect();
        if sent {
            state.call_off(&open);
        }
        // Of one that was not sent, there is no answer to come.
        state.open.retain(|_, of| *of != number);
        state.remove(number);
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
        (mut room, find_room): (Room, &impl Fn(&mut Room, usize) -> Result<(), Full>),
    ) -> bool {
        if line.trim_ascii().is_empty() {
            return true;
        }
        let since = Instant::now();
        while find_room(&mut room, line.len()).is_err() {
            if since.elapsed() >= PATIENCE || lock(state).over {
                Self::end(state, is_stateless, NO_ROOM);
                return false;
            }
            thread::sleep(LOOK);
        }
        let (item, live, number, at, is_done) = {
            let mut state = lock(state);
            let answers = answered(line);
            let of = answers.iter().find_map(|id| state.open.get(id).copied());
            if of.is_none() && state.is_late(&answers, line) {
                return true;
            }
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
            let live = if is_done { stream.live.take() } else { stream.live.clone() };
            let live = live.filter(|live| !live.is_closed());
            // Nobody waits for what is said unasked: its stream goes on whatever is lost.
            let is_awaited = number != UNASKED
                && (!answers.is_empty() || Message::all(line).iter().any(|m| m.request_id().is_some()));
            if live.is_none() && !is_stateless {
                stream.replay.add(mem::replace(&mut room, stream.replay.no_room()));
            }
            let at = if is_stateless { 0 } else { stream.replay.push(line.to_vec(), is_awaited) };
            if is_done {
                if live.is_some() {
                    state.used = Some(Instant::now());
                }
                state.tokens.retain(|_, of| *of != number);
            }
            let Some(live) = live else { return true };
            let id = (!is_stateless).then(|| event_id(number, at));
            (Item { id, line: line.to_vec(), _room: room }, live, number, at, is_done)
        };
        let is_taken = live.blocking_send(item).is_ok();
        let mut state = lock(state);
        let Some(stream) = state.streams.get_mut(&number).filter(|_| !is_done) else { return true };
        if is_taken {
            stream.sent = stream.sent.max(at);
        } else if !stream.is_read() {
            // Another may have taken its place.
            stream.live = None;
        }
        true
    }

    /// Keeps nothing of streams that are over, and of all others (`all`) only what was not sent yet.
    fn make_room(&mut self, all: bool) {
        for (number, stream) in &mut self.streams {
            if *number != UNASKED && stream.open == 0 {
                stream.replay.clear();
            } else if all {
                stream.replay.forget(stream.sent);
            }
        }
    }

    /// Whether no request has one of these ids, or had it and may still be answered.
    fn are_free<'a>(&mut self, mut ids: impl Iterator<Item = &'a Id>) -> bool {
        self.called_off.retain(|_, since| since.elapsed() < CALLED_OFF);
        ids.all(|id| {
            let is_called_off = !self.called_off.is_empty() && self.called_off.contains_key(&digest(id));
            !is_called_off && !self.open.contains_key(id)
        })
    }

    /// Nobody waits for these requests any more: the server need not answer them, and its answer goes to nobody. A stream that
    /// has nothing else to answer ends.
    fn call_off(&mut self, ids: &[Id]) {
        for id in ids {
            let Some(number) = self.open.remove(id) else { continue };
            self.called_off.insert(digest(id), Instant::now());
            let Some(stream) = self.streams.get_mut(&number) else { continue };
            stream.open = stream.open.saturating_sub(1);
            if stream.open == 0 {
                // Not to be resumed either: clients would come back for an answer again and again.
                self.remove(number);
            }
        }
    }

    fn remove(&mut self, number: u64) {
        self.tokens.retain(|_, of| *of != number);
        self.streams.remove(&number);
    }

    /// Whether a line answers only what nobody has open, and so is for nobody; the ids that it answers are free now.
    fn is_late(&mut self, answers: &[Id], line: &[u8]) -> bool {
        // An error under no id is of what the server could not read.
        if answers.is_empty() || answers.contains(&Id::Null) {
            return false;
        }
        if !self.called_off.is_empty() {
            for id in answers {
                self.called_off.remove(&digest(id));
            }
        }
        !line.trim_ascii_start().starts_with(b"[") || Message::all(line).iter().all(Message::is_response)
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
            let at = stream.replay.push(line.clone(), true);
            let id = (!is_stateless).then(|| event_id(number, at));
            let room = stream.replay.no_room();
            let _ = stream.live.as_ref().map(|live| live.try_send(Item { id, line, _room: room }));
        }
        state.streams.values_mut().for_each(|stream| stream.live = None);
    }
}

#[cfg(test)]
mod tests;
