//! The sessions there are, and when they end.

use super::{Endpoint, request::Refusal, session::Session};
use crate::{
    headers::Marks,
    message::Message,
    room::{Full, Room, Rooms},
};
use axum::http::StatusCode;
use ringfence_session::{journal::sha256, line::Id};
use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};
use tokio::time;

/// Most sessions at a time; each is several processes.
const MOST: usize = 32;
/// A session that did nothing for so long makes room for another.
const SPARE: Duration = Duration::from_secs(60);
/// Bytes of requests and events that are held at a time, at least.
const ROOM: usize = 512 << 20;
/// How often sessions are looked at.
const LOOK: Duration = Duration::from_secs(10);

/// All sessions.
pub(super) struct Sessions {
    pub(super) endpoint: Endpoint,
    all: Mutex<HashMap<String, Arc<Session>>>,
    /// What the lists of tools say that clients without sessions must repeat in headers.
    marks: Arc<Mutex<Marks>>,
    /// What requests and events hold, of all sessions.
    pub(super) rooms: Rooms,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Sessions {
    pub(super) fn new(endpoint: Endpoint) -> Self {
        let rooms = Rooms::new(ROOM.max(endpoint.max_line.saturating_mul(4)));
        Self { endpoint, all: Mutex::default(), marks: Arc::default(), rooms }
    }

    pub(super) fn marks(&self) -> MutexGuard<'_, Marks> {
        lock(&self.marks)
    }

    /// The session of this id.
    pub(super) fn find(&self, id: &str) -> Result<Arc<Session>, Refusal> {
        let found =
            lock(&self.all).get(id).filter(|session| !session.is_stateless && !session.is_over()).cloned();
        found.ok_or_else(|| {
            Refusal::new(StatusCode::NOT_FOUND, "Session not found: it is over; begin another")
        })
    }

    /// A new session.
    pub(super) fn begin(self: &Arc<Self>) -> Result<Arc<Session>, Refusal> {
        self.start(false, String::new())
    }

    /// A session for requests without one, of who says to be this. Ids of two clients may be the same: each session has one of a
    /// kind at a time.
    pub(super) fn of_client(self: &Arc<Self>, client: &str, ids: &[Id]) -> Result<Arc<Session>, Refusal> {
        let fits = |session: &&Arc<Session>| {
            session.is_stateless && session.client == client && session.can_take(ids)
        };
        if let Some(session) = lock(&self.all).values().find(fits) {
            return Ok(Arc::clone(session));
        }
        self.start(true, client.to_owned())
    }

    fn start(self: &Arc<Self>, is_stateless: bool, client: String) -> Result<Arc<Session>, Refusal> {
        let mut all = lock(&self.all);
        all.retain(|_, session| !session.is_over());
        if all.len() >= MOST {
            let longest =
                all.values().max_by_key(|session| session.idle()).filter(|session| session.idle() >= SPARE);
            let Some(longest) = longest.cloned() else {
                let why = format!("there are {MOST} sessions already; end one");
                return Err(Refusal::new(StatusCode::SERVICE_UNAVAILABLE, why));
            };
            longest.end();
            all.remove(&longest.id);
        }
        let id = uuid::Uuid::new_v4().simple().to_string();
        let (sessions, of) = (Arc::downgrade(self), id.clone());
        let over = move || {
            if let Some(sessions) = sessions.upgrade() {
                lock(&sessions.all).remove(&of);
            }
        };
        let marks = Arc::clone(&self.marks);
        let learn = move |line: &[u8]| learn(&marks, line);
        let sessions = Arc::downgrade(self);
        let find_room = move |room: &mut Room, bytes| match sessions.upgrade() {
            Some(sessions) => sessions.find_room(room, bytes),
            None => room.set(bytes),
        };
        // Whoever comes back without a session is the same client.
        let whose = if is_stateless { sha256(client.as_bytes()) } else { id.clone() };
        let Endpoint { program, arguments, max_line, .. } = &self.endpoint;
        let mut command = vec![program.clone(), "mcp".into(), "--for-client".into(), whose.into()];
        command.extend(arguments.iter().cloned());
        let session = Session::start(
            (id.clone(), is_stateless, client),
            &command,
            (*max_line, self.rooms.clone()),
            learn,
            find_room,
            over,
        );
        let session = Arc::new(session.map_err(|error| {
            Refusal::new(StatusCode::SERVICE_UNAVAILABLE, format!("the session cannot be started: {error}"))
        })?);
        all.insert(id, Arc::clone(&session));
        Ok(session)
    }

    /// Makes a room hold so many bytes, and gives back what only clients that come back would want where it cannot without.
    ///
    /// # Errors
    /// [`Full`]: there are as many under way.
    pub(super) fn find_room(&self, room: &mut Room, bytes: usize) -> Result<(), Full> {
        let mut found = room.set(bytes);
        for all in [false, true] {
            if found.is_err() {
                let sessions: Vec<_> = lock(&self.all).values().cloned().collect();
                sessions.iter().for_each(|session| session.make_room(all));
                found = room.set(bytes);
            }
        }
        found
    }

    /// Ends a session.
    pub(super) fn end(&self, session: &Session) {
        lock(&self.all).remove(&session.id);
        session.end();
    }

    /// Ends those that do nothing, for as long as it runs.
    pub(super) async fn end_idle(&self) {
        loop {
            time::sleep(LOOK.min(self.endpoint.idle)).await;
            let idle: Vec<Arc<Session>> = lock(&self.all)
                .values()
                .filter(|session| session.idle() >= self.endpoint.idle)
                .cloned()
                .collect();
            idle.iter().for_each(|session| self.end(session));
        }
    }

    pub(super) fn end_all(&self) {
        lock(&self.all).values().for_each(|session| session.end());
    }

    pub(super) async fn all_ended(&self) {
        let all: Vec<Arc<Session>> = lock(&self.all).drain().map(|(_, session)| session).collect();
        for session in all {
            session.ended().await;
        }
    }
}

/// Remembers what a list of tools says of headers.
fn learn(marks: &Mutex<Marks>, line: &[u8]) {
    // Few lines hold one: the others are not read twice.
    const MARK: &[u8] = b"x-mcp-header";
    if memchr::memmem::find(line, MARK).is_none() {
        return;
    }
    for message in Message::all(line).iter().filter(|message| message.is_response()) {
        message.result().into_iter().for_each(|result| lock(marks).learn(result));
    }
}
