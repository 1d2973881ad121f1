//! One session with a remote server: what happens to each line of the client's, and to each message of the server's.

use super::{
    failure::Failure,
    http::{self, Context, SESSION, Server},
    secrets,
    stream::drain,
};
use crate::{
    headers::Marks,
    message::{MAX_SESSION, Message, answered, one_line},
    room::{Room, Rooms},
};
use reqwest::{Response, StatusCode, header::HeaderValue};
use ringfence_session::line::{self, Id};
use std::{
    collections::HashMap,
    io::{self, Write as _},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};
use tokio::{
    sync::{mpsc, oneshot},
    task::JoinSet,
    time,
};
use tokio_util::sync::CancellationToken;

/// Most requests that are open at a time.
const MAX_OPEN: usize = 256;
/// Most bytes of an answer that HTTP calls an error.
const MAX_REFUSAL: usize = 64 << 10;
/// JSON-RPC's code of an error that says there is no such method.
const NO_METHOD: i64 = -32601;
/// How long a notification, or an answer of the client's, is waited for before the next line is looked at.
const IN_ORDER: Duration = Duration::from_secs(10);
/// How long a call that was called off may still be answered, and how long a server may take to say that it has a notification.
const CALLED_OFF: Duration = Duration::from_secs(30);
/// A long notification may take a second more for each so many bytes.
const SLOW: u64 = 64 << 10;
/// How long open requests may take when the client is done, and then the end of the session: less than the interceptor waits.
const LAST_ANSWERS: Duration = Duration::from_millis(1500);
const GOODBYE: Duration = Duration::from_millis(1000);

/// A line for the interceptor, and the room that it takes. `None`: there are no more.
pub(super) type Outgoing = Option<(Vec<u8>, Room)>;

/// What the answer to a request has to be looked at for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Asked {
    Initialize,
    Tools,
    Other,
}

/// Requests that an exchange has to answer.
#[derive(Debug, Clone, Default)]
pub(super) struct Waiting(Vec<(Id, Asked, u64)>);

impl Waiting {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn begins(&self) -> bool {
        self.0.iter().any(|(_, asked, _)| *asked == Asked::Initialize)
    }
}

/// What changes.
#[derive(Default)]
struct State {
    context: Context,
    /// The version that the last request without a session was of.
    stateless: Option<HeaderValue>,
    marks: Marks,
    /// Open requests. One of the same id may come when another is over: each has a number.
    open: HashMap<Id, Open>,
    last: u64,
    listens: bool,
    /// The last notification, or answer of the client's, was waited for in vain.
    silent: bool,
    /// Cancelled when `initialize` is answered, by the server or by us.
    begun: CancellationToken,
}

/// An open request.
struct Open {
    number: u64,
    /// Ends it without an answer.
    stop: CancellationToken,
}

impl State {
    /// Opens a request; all of one line end by one token.
    fn open(&mut self, id: &Id, stop: &CancellationToken) -> u64 {
        self.last += 1;
        self.open.insert(id.clone(), Open { number: self.last, stop: stop.clone() });
        self.last
    }

    /// Closes a request, if it is still this one: its id may be another's by now.
    fn close(&mut self, id: &Id, number: u64) -> Option<Open> {
        self.open.get(id).filter(|open| open.number == number)?;
        self.open.remove(id)
    }

    /// Ends a request without an answer, if it is still this one.
    fn call_off(&mut self, id: &Id, number: u64) {
        self.close(id, number).into_iter().for_each(|open| open.stop.cancel());
    }
}

/// A session.
pub(super) struct Session {
    pub(super) server: Server,
    /// Longest message, in bytes.
    pub(super) limit: usize,
    pub(super) rooms: Rooms,
    out: mpsc::Sender<Outgoing>,
    state: Mutex<State>,
    lost: CancellationToken,
}

/// What is under way.
#[derive(Default)]
struct Tasks {
    /// Requests of the client's.
    requests: JoinSet<()>,
    /// Notifications and answers of the client's, and the stream of what the server says unasked.
    others: JoinSet<()>,
    /// What ends requests that were called off.
    timers: JoinSet<()>,
}

impl Tasks {
    /// Forgets those that are over.
    fn forget(&mut self) {
        for tasks in [&mut self.requests, &mut self.others, &mut self.timers] {
            while tasks.try_join_next().is_some() {}
        }
    }
}

/// How a session ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum End {
    /// The client is done.
    Done,
    /// The server has forgotten it.
    Lost,
}

/// One line of the client's, as it goes on.
struct Sent {
    body: Vec<u8>,
    waiting: Waiting,
    /// Cancelled when one of its requests is called off.
    stop: CancellationToken,
    context: Context,
    headers: Vec<(String, String)>,
    stateless: bool,
    /// What its body takes.
    room: Room,
}

impl Session {
    pub(super) fn new(server: Server, limit: usize, rooms: Rooms, out: mpsc::Sender<Outgoing>) -> Self {
        Self { server, limit, rooms, out, state: Mutex::default(), lost: CancellationToken::new() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn context(&self) -> Context {
        self.state().context.clone()
    }

    pub(super) fn lose(&self) {
        self.lost.cancel();
    }

    /// For whoever reads the session's record.
    pub(super) fn say(&self, text: &str) {
        let _ = writeln!(io::stderr(), "ringfence mcp --url: {}", self.clean(text));
    }

    /// Carries lines until there are no more, or the session is lost.
    pub(super) async fn run(self: &Arc<Self>, mut lines: mpsc::Receiver<Vec<u8>>) -> End {
        let mut tasks = Tasks::default();
        let end = loop {
            tasks.forget();
            tokio::select! {
                biased;
                () = self.lost.cancelled() => break End::Lost,
                () = self.out.closed() => break End::Done,
                line = lines.recv() => match line {
                    Some(line) => self.line(line, &mut tasks).await,
                    None => break End::Done,
                },
            }
        };
        if end == End::Done && !self.out.is_closed() {
            let last = async { while tasks.requests.join_next().await.is_some() {} };
            let _ = time::timeout(LAST_ANSWERS, last).await;
        }
        tasks.requests.shutdown().await;
        tasks.others.shutdown().await;
        tasks.timers.shutdown().await;
        let open: Vec<Id> = self.state().open.drain().map(|(id, _)| id).collect();
        if self.lost.is_cancelled() {
            for id in open {
                self.answer_failed(&id, &Failure::Lost).await;
            }
            self.say(&Failure::Lost.to_string());
            return End::Lost;
        }
        let context = self.context();
        if context.session.is_some() {
            // Servers need not allow it.
            let _ = time::timeout(GOODBYE, self.server.delete(&context)).await;
        }
        end
    }

    /// One line of the client's.
    async fn line(self: &Arc<Self>, mut line: Vec<u8>, tasks: &mut Tasks) {
        while line.last().is_some_and(u8::is_ascii_whitespace) {
            line.pop();
        }
        if line.is_empty() {
            return;
        }
        let messages = Message::all(&line);
        // What cannot be read, and passes all the same (`--lenient`), may be a request.
        let ids = if messages.is_empty() { line::request_ids(&line) } else { Vec::new() };
        let mut room = self.rooms.one();
        let is_told = ids.is_empty() && messages.iter().all(|message| message.request_id().is_none());
        let prepared = match room.set(line.capacity()) {
            // A server that takes none of them.
            Ok(()) if is_told && tasks.others.len() >= MAX_OPEN => Err(Failure::TooMany(MAX_OPEN)),
            Ok(()) => self.prepare(&messages, &ids, room),
            Err(_) => Err(Failure::Busy),
        };
        let mut sent = match prepared {
            Ok(sent) => sent,
            Err(failure) => {
                let mut any = false;
                for id in messages.iter().filter_map(Message::request_id).chain(ids) {
                    any = true;
                    self.answer_failed(&id, &failure).await;
                }
                if !any {
                    self.say(&format!("a notification or an answer was not sent: {failure}"));
                }
                return;
            }
        };
        for id in messages.iter().filter_map(Message::cancels) {
            let number = self.state().open.get(&id).map(|open| open.number);
            if sent.stateless {
                // Closing the stream says it.
                number.into_iter().for_each(|number| self.state().call_off(&id, number));
                if let [_] = messages.as_slice() {
                    return;
                }
            } else if let Some(number) = number.filter(|_| tasks.timers.len() < MAX_OPEN) {
                let session = Arc::clone(self);
                tasks.timers.spawn(async move {
                    time::sleep(CALLED_OFF).await;
                    session.state().call_off(&id, number);
                });
            }
        }
        let begins = sent.waiting.begins();
        let starts = messages.iter().any(|m| m.method.as_deref() == Some("notifications/initialized"));
        let is_request = !sent.waiting.is_empty();
        sent.body = line;
        let session = Arc::clone(self);
        if is_request {
            let begun = self.state().begun.clone();
            tasks.requests.spawn(async move { session.carry(sent).await });
            if begins {
                // What follows needs the session that this begins.
                tokio::select! {
                    () = begun.cancelled() => {}
                    () = self.lost.cancelled() => {}
                    () = self.out.closed() => {}
                }
            }
            return;
        }
        let (done, is_done) = oneshot::channel::<()>();
        tasks.others.spawn(async move {
            session.tell(sent).await;
            drop(done);
            if starts {
                session.listen_once().await;
            }
        });
        self.in_order(is_done).await;
    }

    /// Sends a line without a request. A server that does not say that it has it is not waited for without end.
    async fn tell(&self, sent: Sent) {
        let begun = Instant::now();
        let most = CALLED_OFF + Duration::from_secs(sent.body.len() as u64 / SLOW);
        if time::timeout(most, self.carry(sent)).await.is_err() {
            self.say("the remote server did not say that a notification or an answer arrived");
        } else if begun.elapsed() < IN_ORDER {
            self.state().silent = false;
        }
    }

    /// Waits until a line without a request has arrived, so that the next comes behind it: not for a server that let us wait in
    /// vain the last time.
    async fn in_order(&self, is_done: oneshot::Receiver<()>) {
        let most = if self.state().silent { Duration::ZERO } else { IN_ORDER };
        tokio::select! {
            biased;
            () = self.lost.cancelled() => {}
            () = self.out.closed() => {}
            waited = time::timeout(most, is_done) => {
                if waited.is_err() {
                    self.state().silent = true;
                }
            }
        }
    }

    /// What goes with a line's messages; opens its requests. `ids` are those of requests that cannot be read.
    fn prepare(&self, messages: &[Message<'_>], ids: &[Id], room: Room) -> Result<Sent, Failure> {
        let mut state = self.state();
        // Only messages of the protocol without sessions say which version they are of.
        let version = messages.iter().find_map(Message::version);
        let version = version.and_then(|version| HeaderValue::from_str(&version).ok());
        let is_request = messages.iter().any(|message| message.request_id().is_some());
        if version.is_some() {
            state.stateless.clone_from(&version);
        }
        // A notification does not say which protocol it is of.
        let has_session = state.context.version.is_some() || state.context.session.is_some();
        let version = version.or_else(|| state.stateless.clone().filter(|_| !is_request && !has_session));
        let mut headers = Vec::new();
        if version.is_some()
            && let [message] = messages
        {
            headers = state.marks.headers(message)?;
        }
        let mut waiting = Waiting(ids.iter().map(|id| (id.clone(), Asked::Other, 0)).collect());
        for message in messages {
            let Some(id) = message.request_id() else { continue };
            let asked = match message.method.as_deref() {
                Some("initialize") => Asked::Initialize,
                Some("tools/list") => Asked::Tools,
                _ => Asked::Other,
            };
            waiting.0.push((id, asked, 0));
        }
        if state.open.len() + waiting.0.len() > MAX_OPEN {
            return Err(Failure::TooMany(MAX_OPEN));
        }
        if waiting.0.iter().any(|(id, ..)| state.open.contains_key(id)) {
            return Err(Failure::Again);
        }
        let stop = CancellationToken::new();
        for (id, asked, number) in &mut waiting.0 {
            *number = state.open(id, &stop);
            if *asked == Asked::Initialize {
                state.context = Context::default();
                state.begun = CancellationToken::new();
            }
        }
        let stateless = version.is_some();
        let context = match version {
            Some(version) => Context { session: None, version: Some(version) },
            None => state.context.clone(),
        };
        Ok(Sent { body: Vec::new(), waiting, stop, context, headers, stateless, room })
    }

    /// Sends a line, and carries what comes of it.
    async fn carry(&self, sent: Sent) {
        let begun = sent.waiting.begins().then(|| self.state().begun.clone());
        let is_request = !sent.waiting.is_empty();
        // One line is called off as a whole: batches have no calls of their own to end.
        let stop = sent.stop.clone();
        let mut waiting = sent.waiting.clone();
        let done = tokio::select! {
            // What was called off before it was sent is not sent.
            biased;
            () = stop.cancelled() => None,
            done = self.exchange(sent, &mut waiting) => Some(done),
        };
        let failure = match done {
            // Whoever called it off waits for nothing; the others of a batch do.
            None => Some(Failure::Cut("another request of its batch was called off".to_owned())),
            Some(Ok(())) => Some(Failure::Unanswered),
            Some(Err(Failure::Lost)) => {
                // Everything that is open is answered where the session ends.
                self.lose();
                return;
            }
            Some(Err(failure)) => Some(failure),
        };
        if let Some(failure) = failure {
            if !is_request && !matches!(failure, Failure::Unanswered) {
                self.say(&format!("a notification or an answer did not arrive: {failure}"));
            }
            for (id, _, number) in waiting.0 {
                // As in `deliver`.
                let Ok(slot) = self.out.reserve().await else { break };
                if self.state().close(&id, number).is_some() {
                    slot.send(Some((self.failed(&id, &failure), self.rooms.one())));
                }
            }
        }
        begun.into_iter().for_each(|begun| begun.cancel());
    }

    async fn exchange(&self, sent: Sent, waiting: &mut Waiting) -> Result<(), Failure> {
        let response = self.server.post(sent.body, &sent.context, &sent.headers).await?;
        drop(sent.room);
        let status = response.status();
        if !status.is_success() {
            return self.refused(response, &sent.context, waiting).await;
        }
        if waiting.is_empty() {
            tokio::spawn(drain(response));
            return Ok(());
        }
        if waiting.begins() {
            let session = response.headers().get(SESSION).cloned();
            self.state().context.session =
                session.filter(|id| id.len() <= MAX_SESSION && id.to_str().is_ok());
        }
        match http::kind(&response).as_str() {
            "application/json" => {
                let (body, room) = self.whole(response, self.limit).await?;
                self.deliver(body, room, Some(waiting)).await
            }
            "text/event-stream" => self.follow(response, waiting, !sent.stateless).await,
            _ if matches!(status, StatusCode::ACCEPTED | StatusCode::NO_CONTENT) => Ok(()),
            kind => Err(Failure::Kind(kind.to_owned())),
        }
    }

    /// An answer that HTTP calls an error; it may be the server's own answer all the same.
    async fn refused(
        &self,
        response: Response,
        context: &Context,
        waiting: &mut Waiting,
    ) -> Result<(), Failure> {
        let status = response.status();
        let is_lost = status == StatusCode::NOT_FOUND && context.session.is_some();
        if let Some(failure) = Failure::redirect(&response) {
            return Err(failure);
        }
        let is_json = http::kind(&response) == "application/json";
        if is_json && let Ok((body, room)) = self.whole(response, MAX_REFUSAL).await {
            let ours = |answer: &Message<'_>| {
                answer.answers().is_some_and(|id| waiting.0.iter().any(|(open, ..)| *open == id))
            };
            let answers = Message::all(&body);
            if answers.iter().any(ours) {
                // Of a method that a server does not have, some say it with this status, too. Whatever else it says, there is
                // no session any more.
                let is_lost = is_lost
                    && !answers.iter().any(|answer| ours(answer) && answer.error_code() == Some(NO_METHOD));
                drop(answers);
                self.deliver(body, room, Some(waiting)).await?;
                return if is_lost { Err(Failure::Lost) } else { Ok(()) };
            }
            // Servers that did not get so far as to read the id.
            if !is_lost
                && let [(id, ..)] = waiting.0.as_slice()
                && let Some(answer) = under(id, &body)
            {
                return self.deliver(answer, room, Some(waiting)).await;
            }
        }
        Err(if is_lost { Failure::Lost } else { Failure::Status(status) })
    }

    /// All of a body.
    async fn whole(&self, mut response: Response, limit: usize) -> Result<(Vec<u8>, Room), Failure> {
        let (mut body, mut room) = (Vec::new(), self.rooms.one());
        loop {
            let chunk = match time::timeout(http::QUIET, response.chunk()).await {
                Err(_) => return Err(Failure::Cut(http::silent())),
                Ok(chunk) => chunk.map_err(Failure::within)?,
            };
            let Some(chunk) = chunk else { return Ok((body, room)) };
            let long = body.len() + chunk.len();
            if long > limit {
                return Err(Failure::Long(limit));
            }
            if long > body.capacity() {
                // Twice as much as often as that is not more than a message may have.
                body.reserve_exact(long.max(limit.min(2 * body.capacity())) - body.len());
            }
            body.extend_from_slice(&chunk);
            room.set(body.capacity())?;
        }
    }

    /// A message of the server's goes to the client. `room`: what it takes, if that is held already.
    pub(super) async fn deliver(
        &self,
        message: Vec<u8>,
        mut room: Room,
        waiting: Option<&mut Waiting>,
    ) -> Result<(), Failure> {
        room.set(message.capacity())?;
        let message = secrets::without(&self.server.secrets(), message, self.limit)
            .map_err(|secrets::Long| Failure::Long(self.limit))?;
        let line = one_line(message).ok_or(Failure::NotAMessage)?;
        room.set(line.capacity())?;
        // What is closed is sent, too: nothing may end this between the two.
        let slot = self.out.reserve().await.map_err(|_| Failure::Gone)?;
        let mut begun = None;
        if let Some(waiting) = waiting {
            let answers = answered(&line);
            let mut state = self.state();
            for id in answers {
                let Some(at) = waiting.0.iter().position(|(open, ..)| *open == id) else { continue };
                let (_, asked, number) = waiting.0.swap_remove(at);
                let _ = state.close(&id, number);
                for answer in
                    Message::all(&line).iter().filter(|answer| answer.answers().as_ref() == Some(&id))
                {
                    match asked {
                        Asked::Initialize => {
                            let version = answer.agreed_version();
                            state.context.version = version.and_then(|v| HeaderValue::from_str(&v).ok());
                            begun = Some(state.begun.clone());
                        }
                        Asked::Tools => {
                            answer.result().into_iter().for_each(|result| state.marks.learn(result))
                        }
                        Asked::Other => {}
                    }
                }
            }
        }
        slot.send(Some((line, room)));
        begun.into_iter().for_each(|begun| begun.cancel());
        Ok(())
    }

    /// A text of our own, which may repeat what the server sent.
    fn clean(&self, text: &str) -> String {
        let clean = secrets::without(&self.server.secrets(), text.as_bytes().to_vec(), usize::MAX);
        clean.map_or_else(|secrets::Long| String::new(), |clean| String::from_utf8_lossy(&clean).into_owned())
    }

    /// The answer to a request that has no other.
    fn failed(&self, id: &Id, failure: &Failure) -> Vec<u8> {
        Failure::answer(&self.clean(&failure.to_string()), id)
    }

    async fn answer_failed(&self, id: &Id, failure: &Failure) {
        let _ = self.out.send(Some((self.failed(id, failure), self.rooms.one()))).await;
    }

    /// Carries what the server says unasked, from now on.
    async fn listen_once(&self) {
        let first = !std::mem::replace(&mut self.state().listens, true);
        if first {
            self.listen().await;
            self.state().listens = false;
        }
    }
}

/// The error of an answer that names no request, as the answer to this one.
fn under(id: &Id, body: &[u8]) -> Option<Vec<u8>> {
    let value: serde_json::Value = serde_json::from_slice(body).ok()?;
    let is_nobodys = value.get("id").is_none_or(serde_json::Value::is_null);
    let error = value
        .get("error")
        .filter(|error| is_nobodys && error.get("code").is_some_and(serde_json::Value::is_i64))?;
    Some(id.answer("error", error).into_bytes())
}

#[cfg(test)]
mod tests;
