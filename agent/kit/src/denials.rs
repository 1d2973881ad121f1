//! What the kernel denied a run's tool calls, for the worker that tells the model. The auditor knows it, whose socket the confined
//! worker has no way to; this asks as the run's user, and about the run's own container alone.

use ringfence_base::{
    client::{self, ClientError},
    error::chain,
};
use ringfence_wire::{
    agent::{Answer, Denial, Denials, MAX_DENIAL_TEXT, MAX_DENIALS, ToWorker},
    conn::Conn,
    event::{Certainty, Event, Explanation, Target, Verdict},
    frame::MAX_FRAME,
    message::{EventsQuery, QueryReply, QueryRequest},
    trace::{TraceQuery, TracedCall},
};
use std::{
    net::Shutdown,
    os::unix::net::UnixStream,
    path::PathBuf,
    sync::{
        Arc, Mutex, PoisonError,
        mpsc::{self, SyncSender},
    },
    thread,
    time::{Duration, Instant},
};

/// How long an answer may take, from when it was asked for. The worker waits for less: it notices an auditor that stands still. Not
/// much less: who asks next waits until this one is over.
const TIME: Duration = Duration::from_secs(5);
/// The newest denials of a container that are looked through for a call's.
const LOOKED_AT: u32 = 500;
/// Questions that wait. One more is answered with no.
const WAITING: usize = 32;
/// How long the worker may take to read an answer.
const SENT: Duration = Duration::from_secs(5);

/// Where a run's denials are on record.
#[derive(Debug, Clone)]
pub struct DenialRecord {
    /// The auditor's query socket.
    pub socket: PathBuf,
    /// Public id of the run's container.
    pub container: String,
}

/// A worker's question.
pub(crate) struct Question {
    /// Its number.
    pub(crate) number: u64,
    /// The call's key.
    pub(crate) key: String,
    /// When it came.
    pub(crate) asked: Instant,
}

impl DenialRecord {
    /// Answers questions over this link for as long as somebody may ask, from a thread of its own: an auditor that is slow
    /// holds up nobody else. `turn` is held while an answer is written. `None`: there can be no thread.
    pub(crate) fn serve(self, link: UnixStream, turn: Arc<Mutex<()>>) -> Option<SyncSender<Question>> {
        let (ask, questions) = mpsc::sync_channel::<Question>(WAITING);
        let answer = move || {
            let mut conn = Conn::new(link, SENT, MAX_FRAME);
            for Question { number, key, asked } in questions {
                let until = asked + TIME;
                // Who asked waits no longer, and those behind it do.
                let answer = match Instant::now() < until {
                    true => self.answer(&key, until),
                    false => Answer::Refused("it was asked too long ago".to_owned()),
                };
                let _turn = turn.lock().unwrap_or_else(PoisonError::into_inner);
                if conn.send(&ToWorker::Answer { number, answer }).is_err() {
                    // Half of it may be there, and nothing can come behind that.
                    let _ = conn.stream().shutdown(Shutdown::Both);
                    return;
                }
            }
        };
        thread::Builder::new().name("denials".into()).spawn(answer).ok()?;
        Some(ask)
    }

    fn answer(&self, key: &str, until: Instant) -> Answer {
        match self.of_call(key, until) {
            Ok(denials) => Answer::Denials(denials),
            Err(error) => Answer::Refused(chain(&error)),
        }
    }

    /// What was denied to a call for certain. The auditor stores what the kernel has recorded by now before it answers; like
    /// denials of a flood are summed up later, and not waited for.
    fn of_call(&self, key: &str, until: Instant) -> Result<Denials, ClientError> {
        let TracedCall { call, tagged, events, more, .. } = self.traced(key, until)?;
        // Without a tag nothing is its for certain: what fits its path is any older process's of the container, and so
        // are the words in it.
        if !tagged {
            return Ok(Denials::default());
        }
        // A call that does much has its denials far behind.
        let events = if more { self.newest(until)? } else { events };
        let mut differing: Vec<(u64, Event)> = Vec::new();
        for event in events.into_iter().filter(|event| self.is_its(&call, event)) {
            match differing.iter_mut().find(|(_, first)| is_like(first, &event)) {
                Some((times, _)) => *times += u64::from(event.repeats.max(1)),
                None => differing.push((u64::from(event.repeats.max(1)), event)),
            }
        }
        // Those first that a line of the profile can change.
        differing.sort_by_key(|(_, event)| event.rule.starts_with("fixed:"));
        let rest = differing.split_off(differing.len().min(MAX_DENIALS));
        let more = rest.iter().map(|(times, _)| times).sum();
        let first = differing.into_iter().map(|(_, event)| self.explained(&event, until));
        Ok(Denials { first: first.collect::<Result<_, _>>()?, more })
    }

    /// A call as it is on record: by its key, since the record has another id for one that was used before.
    fn traced(&self, key: &str, until: Instant) -> Result<TracedCall, ClientError> {
        let query = TraceQuery { what: Some(key.to_owned()), limit: Some(1) };
        let mut conn = self.ask(&QueryRequest::Trace(query), until)?;
        let intents = match conn.receive().map_err(ClientError::Talk)? {
            QueryReply::Trace(trace) => trace.intents,
            reply => return Err(refused(reply)),
        };
        let mut calls = intents.into_iter().flat_map(|intent| intent.calls);
        let found = calls.find(|call| call.key.as_deref() == Some(key));
        found.ok_or_else(|| ClientError::Refused("the call is not on record".to_owned()))
    }

    /// The container's newest denials, oldest first.
    fn newest(&self, until: Instant) -> Result<Vec<Event>, ClientError> {
        let query = EventsQuery {
            denied: true,
            container: Some(self.container.clone()),
            limit: Some(LOOKED_AT),
            ..EventsQuery::default()
        };
        let mut conn = self.ask(&QueryRequest::Events(query), until)?;
        let mut all = Vec::new();
        loop {
            match conn.receive::<QueryReply>().map_err(ClientError::Talk)? {
                QueryReply::Events { events } => all.extend(events),
                QueryReply::End { .. } => return Ok(all),
                reply => return Err(refused(reply)),
            }
            conn = within(conn, until);
        }
    }

    /// Whether an event says for certain that this call, which was tagged, was denied something.
    fn is_its(&self, call: &str, event: &Event) -> bool {
        // Not `sole`: that goes by times alone, and any process of the container could have words put into any result.
        let is_certain = matches!(event.attribution, Certainty::Exact | Certainty::Matched);
        is_certain
            && event.verdict == Verdict::Denied
            && event.container == self.container
            && event.tool_call.as_deref() == Some(call)
    }

    fn explained(&self, event: &Event, until: Instant) -> Result<Denial, ClientError> {
        let mut conn = self.ask(&QueryRequest::Why { event: event.id }, until)?;
        match conn.receive().map_err(ClientError::Talk)? {
            QueryReply::Why(why) => Ok(denial(&why)),
            reply => Err(refused(reply)),
        }
    }

    fn ask(&self, request: &QueryRequest, until: Instant) -> Result<Conn, ClientError> {
        let mut conn = within(client::connect(&self.socket, "everybody may")?, until);
        conn.send(request).map_err(ClientError::Talk)?;
        Ok(within(conn, until))
    }
}

/// The connection, with what is left of the time for its next message.
fn within(conn: Conn, until: Instant) -> Conn {
    conn.within(until.saturating_duration_since(Instant::now()).max(Duration::from_millis(1)))
}

fn refused(reply: QueryReply) -> ClientError {
    let why = match reply {
        QueryReply::Failed(failure) => failure.error,
        _ => "the auditor answers something else than was asked".to_owned(),
    };
    ClientError::Refused(why)
}

/// Whether two events are one denial that came again.
fn is_like(one: &Event, other: &Event) -> bool {
    (&one.op, &one.target, &one.rule) == (&other.op, &other.target, &other.rule)
}

/// What an explanation says of an event.
fn denial(why: &Explanation) -> Denial {
    let (Target::Path(target) | Target::Addr(target)) = &why.event.target;
    let how = why.event.flags.iter().filter(|flag| matches!(flag.as_str(), "read" | "write"));
    let how: Vec<&str> = how.map(String::as_str).collect();
    let what = match how.as_slice() {
        [] => why.event.op.clone(),
        how => format!("{} ({})", why.event.op, how.join(", ")),
    };
    let target = target.as_deref().map(bounded);
    Denial { what: bounded(&what), target, why: bounded(&why.reason), advice: bounded(&why.advice) }
}

/// A text without its middle, where it is too long: the worker shows less of both ends, once it has taken credentials out.
fn bounded(text: &str) -> String {
    if text.len() <= MAX_DENIAL_TEXT {
        return text.to_owned();
    }
    let half = (MAX_DENIAL_TEXT - "...".len()) / 2;
    let (head, tail) = (text.floor_char_boundary(half), text.ceil_char_boundary(text.len() - half));
    format!("{}...{}", text.get(..head).unwrap_or_default(), text.get(tail..).unwrap_or_default())
}

#[cfg(test)]
mod tests;
