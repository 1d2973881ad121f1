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
/// Most of them that are of clients of one name which have no sessions: one whose ids are all taken would have all of them.
const MOST_OF_CLIENT: usize = 8;
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
        {
            let all = lock(&self.all);
            if let Some(session) = all.values().find(fits) {
                return Ok(Arc::clone(session));
            }
            let is_own = |session: &&Arc<Session>| {
                session.is_stateless && session.client == client && !session.is_over()
            };
            if all.values().filter(is_own).count() >= MOST_OF_CLIENT {
                let why = "clients of this name have asked with this id too often at a time; ask with another id, or in half a minute";
                return Err(Refusal::new(StatusCode::TOO_MANY_REQUESTS, why));
            }
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    fn one_client_s_ids_do_not_take_all_sessions() {
        let folder = tempfile::tempdir().unwrap();
        let program = folder.path().join("program");
        // Written by another process: one that is open for writing here cannot be started.
        let write = r##"printf '#!/bin/sh\nexec cat 3>&1 >/dev/null\n' > "$0" && chmod 700 "$0""##;
        assert!(Command::new("sh").args(["-c", write]).arg(&program).status().unwrap().success());
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let sessions = Arc::new(Sessions::new(Endpoint {
                secret: String::new(),
                program: program.into(),
                arguments: Vec::new(),
                max_line: 1 << 20,
                idle: Duration::from_secs(600),
            }));
            let id = |n: &str| Id::parse(n).unwrap();
            let mut open = Vec::new();
            for _ in 0..MOST_OF_CLIENT {
                let session = sessions.of_client("c", &[id("0")]).unwrap();
                open.push(session.request(b"x\n".to_vec(), vec![(id("0"), None)], false).await.unwrap());
            }
            let refused = sessions.of_client("c", &[id("0")]).map(|_| ()).unwrap_err();
            assert_eq!(refused.status, StatusCode::TOO_MANY_REQUESTS);
            assert!(sessions.of_client("c", &[id("1")]).is_ok(), "another id");
            assert!(sessions.of_client("d", &[id("0")]).is_ok(), "another client");
            assert!(sessions.begin().is_ok(), "one with sessions");
            assert_eq!(lock(&sessions.all).len(), MOST_OF_CLIENT + 2);
            sessions.end_all();
            sessions.all_ended().await;
        });
    }
}
