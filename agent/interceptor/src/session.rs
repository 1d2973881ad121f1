//! One session: what happens to each line, in either direction. No threads and no processes here; `forward` has those.

use super::{
    answer::{self, StopReason},
    client_stdout::ClientStdout,
    held::{HeldCall, HeldCalls},
    identity::{ServerIdentity, StartIdentity},
    judged::JudgedCall,
    outstanding::Outstanding,
    pins::{KnownTool, SessionPins},
    seen::SeenTools,
    tool_names::ToolNames,
};
use ringfence_base::clock::{now_micros, since_boot};
use ringfence_session::{
    draft::{Draft, Verdict},
    hints::ToolHints,
    journal::{Direction, Entry, Journal},
    line::{self, Call, Id, Kind, Line, Message, Refused},
    notice, repair, risk,
    rules::Rule,
    ruleset::RuleSet,
};
use ringfence_wire::tool_call::{Action, Outcome};
use serde_json::Value;
use std::{
    io::{self, Write},
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
        mpsc,
    },
    time::{Duration, Instant},
};

/// How much longer than a person's time the interceptor waits, so that a decision of the last moment still arrives.
const GRACE: Duration = Duration::from_millis(500);

/// How a session is run.
#[derive(Debug, Clone)]
pub struct Options {
    /// Name of the server.
    pub server_name: String,
    /// What happens to a call that cannot be recorded: `true` lets it through with a warning.
    pub allow_unrecorded: bool,
    /// Why calls do not get into the database, known from the start; repeated for each call.
    pub unrecorded: Option<String>,
    /// Payloads are journalled as they are.
    pub store_raw: bool,
    /// Lines that cannot be judged are forwarded.
    pub lenient: bool,
    /// How long a paused call waits.
    pub approval_timeout: Duration,
    /// What is known of the server before it says anything; see [`ServerIdentity`].
    pub identity: StartIdentity,
    /// Bytes of paused calls that are kept at once; what does not fit is denied, as if there were nobody to ask.
    pub max_held_bytes: usize,
}

/// What happened in a session, for the link to the auditor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Report {
    /// The journal grew.
    Grew,
    /// A call waits for approval.
    Paused(String),
    /// A call no longer waits.
    Released(String),
    /// Wakes the link: the session's own state changed.
    Wake,
}

/// What a person or the clock decided about a paused call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Decision {
    /// Go on.
    Approved(String),
    /// Do not.
    Denied(String),
    /// Nobody decided.
    Timeout,
    /// Nobody can be asked.
    NoApprover,
}

/// A session's state, shared by the threads of its two directions.
pub struct Session<S, C> {
    options: Options,
    journal: Mutex<Journal>,
    rules: RuleSet,
    seen: Mutex<SeenTools>,
    /// What the names of tools say.
    names: Mutex<ToolNames>,
    /// What the server says of its tools.
    hints: Mutex<ToolHints>,
    /// What the server's tools were when they were pinned.
    pins: SessionPins,
    held: Mutex<HeldCalls>,
    /// What the server has of the client's and did not answer.
    outstanding: Mutex<Outstanding>,
    server: Mutex<Option<S>>,
    server_identity: ServerIdentity,
    client: Mutex<ClientStdout<C>>,
    /// What of the client's lines is under way, and of the server's; kept for their memory.
    burst: Mutex<Burst>,
    answers: Mutex<Draft>,
    /// Orders the ids of messages that came in the same millisecond.
    ids: Mutex<uuid::ContextV7>,
    reports: mpsc::SyncSender<Report>,
    /// A call was forwarded that is not on record: the journal gets a gap as soon as it takes an entry.
    gap: AtomicBool,
    /// The journal grew, and the link knows: it is not woken for every line.
    grew: AtomicBool,
    /// A report found no room: the link reads the state anew.
    missed: AtomicBool,
    /// The journal has its last line. Not a report, which may find no room.
    over: AtomicBool,
}

/// A panic elsewhere must not stop the forwarding of what is whole: the data behind each lock is whole between writes.
fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A line without its end.
#[derive(Debug, Clone, Copy)]
struct Body<'a> {
    /// As it is judged, recorded and forwarded.
    text: &'a [u8],
    /// As it came, where that is another text, and how many places were repaired.
    came: Option<(&'a [u8], u32)>,
}

impl<'a> From<&'a [u8]> for Body<'a> {
    fn from(text: &'a [u8]) -> Self {
        Self { text, came: None }
    }
}

/// One moment on both clocks.
#[derive(Debug, Clone, Copy)]
struct Time {
    /// Microseconds since 1970.
    at: i64,
    /// Nanoseconds since boot.
    boot: u64,
}

impl Time {
    fn now() -> Self {
        Self { at: now_micros(), boot: since_boot() }
    }
}

fn without_end(line: &[u8]) -> &[u8] {
    line.strip_suffix(b"\n").unwrap_or(line)
}

/// Whether no id of a line that was repaired was a part of that: it would not be the one that the client waits for.
fn has_ids_of_before(line: &Line<'_>) -> bool {
    let of_before = |message: &Message<'_>| !matches!(message.id(), Some(Id::String(text)) if text.contains(char::REPLACEMENT_CHARACTER));
    match line {
        Line::Blank => true,
        Line::Message(message) => of_before(message),
        Line::Batch(messages) => messages.iter().all(of_before),
    }
}

impl<S: Write, C: Write> Session<S, C> {
    /// A session over an open journal, the server's stdin and the client's end. `seen` are the tools of this server
    /// that were called before.
    pub fn new(
        options: Options,
        journal: Journal,
        rules: Vec<Rule>,
        seen: SeenTools,
        (server, client): (S, C),
        reports: mpsc::SyncSender<Report>,
    ) -> Self {
        Self {
            held: Mutex::new(HeldCalls::new(options.max_held_bytes)),
            pins: SessionPins::new(options.server_name.clone(), options.store_raw),
            server_identity: ServerIdentity::new(options.identity.clone()),
            options,
            journal: Mutex::new(journal),
            rules: RuleSet::new(rules),
            seen: Mutex::new(seen),
            names: Mutex::default(),
            outstanding: Mutex::default(),
            hints: Mutex::default(),
            server: Mutex::new(Some(server)),
            client: Mutex::new(ClientStdout::new(client)),
            burst: Mutex::default(),
            answers: Mutex::default(),
            ids: Mutex::new(uuid::ContextV7::new()),
            reports,
            gap: AtomicBool::new(false),
            grew: AtomicBool::new(false),
            missed: AtomicBool::new(false),
            over: AtomicBool::new(false),
        }
    }

    /// Puts other rules in force for the calls that follow.
    pub(crate) fn set_rules(&self, rules: Vec<Rule>) {
        self.rules.set_file(rules);
    }

    /// The database's rules, which the link keeps up to date.
    pub fn rules(&self) -> &RuleSet {
        &self.rules
    }

    /// A line from the client, its `\n` included if it had one. What may go on is put off to the burst's end; whatever else
    /// becomes of a line comes after those before it.
    fn handle_line(&self, burst: &mut Burst, bytes: &[u8]) -> io::Result<()> {
        let body = without_end(bytes);
        match line::judge(body) {
            Ok(line) => self.judged_line(burst, bytes, body.into(), line),
            Err(refused) => self.unjudged_line(burst, bytes, body, &refused),
        }
    }

    /// A line that cannot be judged as it is: repaired, where that has one meaning; else refused.
    fn unjudged_line(
        &self,
        burst: &mut Burst,
        bytes: &[u8],
        body: &[u8],
        refused: &Refused,
    ) -> io::Result<()> {
        if let Some((repaired, many)) = repair::lone_surrogates(bytes) {
            let text = without_end(&repaired);
            if let Ok(line) = line::judge(text)
                && has_ids_of_before(&line)
            {
                return self.judged_line(burst, &repaired, Body { text, came: Some((body, many)) }, line);
            }
        }
        self.flush(burst)?;
        if self.options.lenient {
            self.record_message_or_warn(Direction::ClientToServer, body, None);
            self.record_or_warn(&Entry::Note {
                at: now_micros(),
                text: format!("forwarded unjudged: {refused}"),
            });
            let mut outstanding = lock(&self.outstanding);
            let ids = line::request_ids(body);
            if line::may_ask_more(body, &ids) {
                self.pins.asks_something();
            }
            for id in ids {
                outstanding.add(&id);
                // Whatever it asks for: its answer may be a list.
                self.pins.asks(&id, "tools/list", None);
            }
            drop(outstanding);
            return self.to_server(bytes);
        }
        let why = refused.to_string();
        self.record_message_or_warn(Direction::ClientToServer, body, Some(&why));
        self.answer_refused(body, &why)
    }

    /// Answers the requests of a line, or of the beginning of one, that was refused: under their ids, so that no client waits
    /// for what will not come. One whose id is that of a request which the server has, or which is held, has an answer to come;
    /// ours would be taken for that.
    ///
    /// # Errors
    /// Those of writing to the client.
    pub(crate) fn answer_refused(&self, line: &[u8], why: &str) -> io::Result<()> {
        let mut ids = line::request_ids(line);
        ids.retain(|id| !lock(&self.outstanding).has(id) && lock(&self.held).of(id).is_empty());
        if ids.is_empty() {
            return self.to_client(answer::invalid(None, why).as_bytes());
        }
        ids.iter().try_for_each(|id| self.to_client(answer::invalid(Some(id), why).as_bytes()))
    }

    /// A line that can be judged. `bytes` has its `\n`, `body` has not.
    fn judged_line(&self, burst: &mut Burst, bytes: &[u8], body: Body<'_>, line: Line<'_>) -> io::Result<()> {
        let message = |burst: &mut Burst| {
            self.draft(&mut burst.draft, Time::now(), Direction::ClientToServer, body, &[], None);
            burst.push(bytes, None);
        };
        match line {
            Line::Message(Message { kind: Kind::Call(id, call), params }) => {
                self.call(burst, bytes, body, id, (call, params))
            }
            Line::Message(Message { kind: Kind::Notification(method), params })
                if method == "notifications/cancelled" =>
            {
                // What it cancels may be in the burst's way, or be held: it takes effect where it stands.
                self.flush(burst)?;
                if let Some(id) = pausing::cancelled_id(params) {
                    self.pins.stops_listening(&id);
                }
                if self.cancel_held(params) {
                    let why = "cancels a call that was not forwarded yet";
                    self.record_message_or_warn(Direction::ClientToServer, body, Some(why));
                    return Ok(());
                }
                message(burst);
                Ok(())
            }
            Line::Message(sent) => {
                if let Some(id) = sent.request_id() {
                    lock(&self.outstanding).add(id);
                }
                self.asks(&sent);
                message(burst);
                Ok(())
            }
            Line::Batch(messages) => {
                self.flush(burst)?;
                self.batch(bytes, body, &messages)
            }
            Line::Blank => {
                self.flush(burst)?;
                self.to_server(bytes)
            }
        }
    }

    /// Notes what a request of the client's asks for, before the server has it.
    fn asks(&self, message: &Message<'_>) {
        if let Kind::Request(id, method) = &message.kind {
            self.pins.asks(id, method, message.params);
        }
    }

    fn judge(&self, id: Id, tool: String, arguments: &Value) -> JudgedCall {
        let first = lock(&self.seen).is_first(&tool);
        let hints = lock(&self.hints).of(&tool);
        let name = lock(&self.names).of(&tool);
        let mut risk = risk::assess_named(&name, arguments, first, hints);
        let KnownTool { held, is_flagged } = self.pins.of_call(&tool);
        if held.is_some() {
            risk.raise(risk::CHANGED_TOOL);
        } else if is_flagged {
            risk.raise(risk::FLAGGED_DESCRIPTION);
        }
        let (risk, mut judgement, exceptions) =
            self.rules.judge_call((&self.options.server_name, &tool), risk, arguments);
        if held.is_some() {
            judgement.action = Action::Block;
        }
        JudgedCall { id, tool, risk, judgement, held, exceptions }
    }

    fn call(
        &self,
        burst: &mut Burst,
        bytes: &[u8],
        body: Body<'_>,
        id: Id,
        (call, params): (Call<'_>, Option<&str>),
    ) -> io::Result<()> {
        let judged = self.judge(id, call.name, &call.value);
        let verdict = judged.verdict(0);
        if let Some(why) = &self.options.unrecorded {
            notice::print(&format!("the call of {:?} is not in the database: {why}", judged.tool));
        }
        let action = judged.judgement.action;
        if action < Action::Pause {
            self.draft(&mut burst.draft, Time::now(), Direction::ClientToServer, body, &[verdict], None);
            lock(&self.outstanding).add(&judged.id);
            burst.push(bytes, Some(judged));
            return Ok(());
        }
        let uuid = verdict.call.to_string();
        self.flush(burst)?;
        let pausing = action == Action::Pause;
        let holding = pausing && lock(&self.held).has_room(bytes.len());
        if holding {
            // Held before it is on record, so that a decision that follows at once finds it.
            let token = call.meta.and_then(|m| serde_json::from_str::<Value>(m).ok());
            let held = HeldCall {
                line: bytes.to_vec(),
                call: judged.clone(),
                since: Instant::now(),
                until: now_micros().saturating_add(
                    i64::try_from(self.options.approval_timeout.as_micros()).unwrap_or(i64::MAX),
                ),
                fingerprint: self.server_identity.fingerprint(params),
                token: token.and_then(|meta| meta.get("progressToken").cloned()),
            };
            lock(&self.held).insert(uuid.clone(), held);
        }
        let stop = |why: &StopReason<'_>| self.to_client(answer::stopped(&judged, why).as_bytes());
        if let Err(error) = self.record_message(Direction::ClientToServer, body, &[verdict], None) {
            if !self.options.allow_unrecorded {
                lock(&self.held).remove(&uuid);
                return stop(&StopReason::Unrecorded(&error.to_string()));
            }
            self.gap.store(true, Ordering::Relaxed);
            notice::print(&format!("the call of {:?} is not on record: {error}", judged.tool));
        }
        if pausing && !holding {
            let text = format!("the call of {:?} is denied: too many bytes wait for approval", judged.tool);
            notice::print(&text);
            self.record_or_warn(&decided(uuid, Outcome::Denied, None));
            return stop(&StopReason::NoApprover);
        }
        if !holding {
            return stop(&StopReason::Blocked);
        }
        self.report(Report::Paused(uuid));
        Ok(())
    }

    /// A batch goes on whole or not at all: its calls cannot be held one by one.
    fn batch(&self, bytes: &[u8], body: Body<'_>, messages: &[Message<'_>]) -> io::Result<()> {
        let calls: Vec<_> = messages
            .iter()
            .enumerate()
            .filter_map(|(index, message)| match &message.kind {
                Kind::Call(id, call) => Some((index, self.judge(id.clone(), call.name.clone(), &call.value))),
                _ => None,
            })
            .collect();
        // A cancellation in a batch counts as one alone; the batch goes on all the same.
        for message in messages {
            if let Kind::Notification(method) = &message.kind
                && method == "notifications/cancelled"
            {
                self.cancel_held(message.params);
            }
        }
        let worst = calls.iter().map(|(_, call)| call.judgement.action).max().unwrap_or(Action::Pass);
        let verdicts: Vec<Verdict<'_>> = calls
            .iter()
            .map(|(index, call)| {
                let mut verdict = call.verdict(*index);
                if worst >= Action::Pause {
                    verdict.action = Action::Block;
                }
                verdict
            })
            .collect();
        let recorded = self.record_message(Direction::ClientToServer, body, &verdicts, None);
        let unrecorded = recorded.is_err();
        let error = match recorded {
            Err(error) if !calls.is_empty() && !self.options.allow_unrecorded => Some(error.to_string()),
            _ => None,
        };
        if worst < Action::Pause && error.is_none() {
            if unrecorded {
                self.gap.store(true, Ordering::Relaxed);
            }
            let mut outstanding = lock(&self.outstanding);
            messages.iter().filter_map(Message::request_id).for_each(|id| outstanding.add(id));
            drop(outstanding);
            messages.iter().for_each(|message| self.asks(message));
            return self.to_server(bytes);
        }
        calls.iter().try_for_each(|(_, call)| {
            let why = match &error {
                Some(error) => StopReason::Unrecorded(error),
                None if call.judgement.action == Action::Block => StopReason::Blocked,
                None => StopReason::Batch,
            };
            self.to_client(answer::stopped(call, &why).as_bytes())
        })
    }

    /// Writes whole lines to the server, and waits until it takes them.
    ///
    /// # Errors
    /// Those of writing to it, also where its stdin is closed.
    pub(crate) fn to_server(&self, bytes: &[u8]) -> io::Result<()> {
        match lock(&self.server).as_mut() {
            Some(server) => server.write_all(bytes).and_then(|()| server.flush()),
            None => Err(io::ErrorKind::BrokenPipe.into()),
        }
    }

    /// Does something to the client's end between two lines.
    pub(crate) fn after_last_line(&self, action: impl FnOnce()) {
        let client = lock(&self.client);
        action();
        drop(client);
    }

    /// Writes whole lines of ours to the client, between two of the server's.
    pub fn to_client(&self, bytes: &[u8]) -> io::Result<()> {
        // Bound here: the lock on the client is not held while the journal is written.
        let room = lock(&self.client).write_own(bytes)?;
        if !room {
            let text = "an answer of Ringfence is lost: a line of the server's does not end, and too many wait for that";
            self.record_or_warn(&Entry::Note { at: now_micros(), text: text.to_owned() });
        }
        Ok(())
    }

    /// Writes the server's output to the client: lines, or pieces of one.
    pub(crate) fn piece_to_client(&self, bytes: &[u8]) -> io::Result<()> {
        lock(&self.client).write_from_server(bytes)
    }
}

mod burst;
mod lists;
mod pausing;
mod record;
#[cfg(test)]
mod tests;

use burst::Burst;
use pausing::decided;
