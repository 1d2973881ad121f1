//! What the kernel denied a client's tool calls, said to its model behind their results: what, by which rule, and what a person
//! could change.
//!
//! The core counts a container's denials: where it counts no more than when a call began, nothing further is asked. Else
//! `ringfence run` is, which the auditor tells what was that call's for certain. What is said of a result once is said of it in each
//! later request that has it, so that they begin alike for the provider's cache. The record has results as tools gave them.
//!
//! | file | what |
//! |---|---|
//! | `place` | where in a request it goes |
//! | `rest` | how long is waited for an answer, and when nothing is asked |

use super::{
    intents::{self, ToolResult},
    session::ClientSession,
};
use crate::{
    calls::CallKey,
    core_client::{CoreClient, Error},
    message::Kind,
    provider::Wire,
    redact::Redactor,
};
use ringfence_base::escape;
use ringfence_wire::agent::{Denial, Denials, MAX_DENIALS};
use serde_json::value::RawValue;
use std::{
    collections::HashMap,
    hash::{BuildHasher, Hash, Hasher, RandomState},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Instant,
};
use tokio::time::timeout_at;

mod place;
mod rest;

pub(crate) use place::{Form, Room};
use rest::Rest;

/// What each thing that is said begins with.
const MARK: &str = "[Ringfence]";
/// How each ends.
const WHO: &str = "Only a person can change that, outside of this run.";
/// Most characters that are said of one result.
pub(crate) const LONGEST: usize = 1200;
/// Most of them for the parts of each thing that is denied: all together, with what is between them, have room.
const LONGEST_WHAT: usize = 50;
const LONGEST_TARGET: usize = 200;
const LONGEST_WHY: usize = 300;
const LONGEST_ADVICE: usize = 400;
/// For what is left out.
const DOTS: &str = "...";
/// Characters that are kept for the last line, which has [`WHO`] and a number.
const LAST: usize = 150;
/// Results of which something is said, and bytes of that: of no other is anything said.
const MOST: usize = 4096;
const MOST_BYTES: usize = 4 << 20;
/// Calls of one request that are asked about.
const MOST_ASKED: usize = 16;
/// What is known of the denials of a run.
pub(super) struct DenialNotes {
    host: CoreClient,
    /// How many there were when somebody looked last.
    counted: AtomicU64,
    notes: Mutex<Notes>,
    rest: Mutex<Rest>,
    /// Nobody outside can make two results that it takes for one.
    hasher: RandomState,
}

/// A call whose result a request is the first to bring.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Closed {
    /// The call: its id may be another's, too.
    key: CallKey,
    /// What the result looks like.
    look: u64,
    /// How many results behind it, in this request, look the same.
    later: usize,
    /// How many denials there were before the call, at least.
    before: u64,
}

/// A conversation, as a number.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Conversation(u64);

/// What is said of which result. Nothing is ever forgotten: a conversation that lost a note would begin otherwise than before, and
/// its provider's cache would be worth nothing.
#[derive(Debug, Default)]
struct Notes {
    said: HashMap<u64, Arc<str>>,
    /// Of all that is said.
    bytes: usize,
}

impl Notes {
    /// Keeps what is said of a result, if there is room and nothing is said of it yet.
    fn keep(&mut self, of: u64, said: Arc<str>) {
        let bytes = self.bytes.saturating_add(said.len());
        if self.said.contains_key(&of) || self.said.len() >= MOST || bytes > MOST_BYTES {
            return;
        }
        self.bytes = bytes;
        self.said.insert(of, said);
    }
}

impl DenialNotes {
    /// For calls that this link's other end knows something of.
    pub(super) fn new(host: CoreClient) -> Self {
        let (counted, hasher) = (AtomicU64::new(0), RandomState::new());
        Self { host, counted, notes: Mutex::default(), rest: Mutex::default(), hasher }
    }

    /// How many denials there were when somebody looked last: a call that begins now has none of them.
    pub(super) fn counted(&self) -> u64 {
        self.counted.load(Ordering::Relaxed)
    }

    /// Calls that a request closes, by the places of their results among all that it brings, and with what was [`Self::counted`]
    /// when each began.
    pub(super) fn closed(&self, results: &[ToolResult], closed: Vec<(usize, CallKey, u64)>) -> Vec<Closed> {
        if closed.is_empty() || !self.host.explains() {
            return Vec::new();
        }
        let looks: Vec<u64> = results.iter().map(|result| self.look(result)).collect();
        let one = |(at, key, before): (usize, CallKey, u64)| {
            let look = *looks.get(at)?;
            let later = looks.iter().skip(at + 1).filter(|other| **other == look).count();
            Some(Closed { key, look, later, before })
        };
        closed.into_iter().filter_map(one).collect()
    }

    /// What a result looks like: the id of its call, or the tool's name where ids are not to be relied on, and its text.
    fn look(&self, result: &ToolResult) -> u64 {
        let name = result.call.rsplit_once('#').filter(|_| result.is_by_place);
        let mut hasher = self.hasher.build_hasher();
        name.map_or(result.call.as_str(), |(name, _)| name).hash(&mut hasher);
        for block in &result.content {
            if let Kind::Text(text) = block.kind() {
                text.hash(&mut hasher);
            }
        }
        hasher.finish()
    }

    /// Asks what was denied to calls that a request closes: what is to be said of each.
    pub(super) async fn ask(&self, closed: &[Closed], redactor: &Redactor) -> Vec<(Closed, Arc<str>)> {
        let mut fresh = Vec::new();
        let now = Instant::now();
        let Some(patience) = lock(&self.rest).patience(now).filter(|_| !closed.is_empty()) else {
            return fresh;
        };
        let until = now + patience;
        let Some(Ok(denied)) = self.in_time(until, self.host.denied_so_far()).await else { return fresh };
        self.counted.fetch_max(denied, Ordering::Relaxed);
        for call in closed.iter().filter(|call| call.before < denied).take(MOST_ASKED) {
            match self.in_time(until, self.host.denials_of(&call.key)).await {
                Some(Ok(denials)) => {
                    lock(&self.rest).answered();
                    fresh.extend(sentences(&denials, redactor).map(|said| (call.clone(), said.into())));
                }
                Some(Err(error)) => tracing::debug!("what a call was denied is not known: {error}"),
                None => break,
            }
        }
        fresh
    }

    /// An answer; `None`: there is none in time, and for a while nothing is asked any more.
    async fn in_time<T>(
        &self,
        until: Instant,
        answer: impl Future<Output = Result<T, Error>>,
    ) -> Option<Result<T, Error>> {
        match timeout_at(until.into(), answer).await {
            Ok(answer) if !matches!(answer, Err(Error::Silent)) => Some(answer),
            _ => {
                tracing::debug!("nobody says what calls are denied");
                lock(&self.rest).failed(Instant::now());
                None
            }
        }
    }

    /// What a conversation is known by: its session, where the client names it, and what the user said first, since providers may
    /// give calls of two conversations the same ids, and an agent's own agents share its session. Both stay as they are
    /// while it goes on; and where one changes, little of it is in the provider's cache.
    pub(super) fn conversation(
        &self,
        wire: Wire,
        messages: &[Box<RawValue>],
        session: Option<&ClientSession>,
    ) -> Conversation {
        if !self.host.explains() {
            return Conversation::default();
        }
        let mut hasher = self.hasher.build_hasher();
        session.map(|session| session.id.as_str()).hash(&mut hasher);
        for block in intents::first_words(wire, messages) {
            if let Kind::Text(text) = block.kind() {
                text.hash(&mut hasher);
            }
        }
        Conversation(hasher.finish())
    }

    /// A request with what is said of its results: `fresh`, and what was said before in its conversation. `None`: nothing is.
    pub(super) fn added(
        &self,
        (wire, conversation): (Wire, Conversation),
        body: &[u8],
        fresh: Vec<(Closed, Arc<str>)>,
    ) -> Option<Vec<u8>> {
        if fresh.is_empty() && lock(&self.notes).said.is_empty() {
            return None;
        }
        let results = place::results(wire, body);
        let known = self.known_by(conversation, results.iter().map(|(result, _)| result));
        let mut notes = lock(&self.notes);
        for (Closed { look, later, .. }, said) in fresh {
            let alike = known.iter().rev().filter(|(other, _)| *other == look);
            alike.skip(later).take(1).for_each(|(_, result)| notes.keep(*result, Arc::clone(&said)));
        }
        let said: Vec<(Room<'_>, Arc<str>)> = results
            .iter()
            .zip(&known)
            .filter_map(|((_, room), (_, result))| Some((*room, Arc::clone(notes.said.get(result)?))))
            .collect();
        drop(notes);
        place::added(body, said.iter().map(|(room, said)| (*room, &**said)))
    }

    /// What the results of a conversation look like, and what each is known by: also by how many before it look the same, where
    /// calls have ids, and else by all that come before it.
    fn known_by<'a>(
        &self,
        Conversation(number): Conversation,
        results: impl Iterator<Item = &'a ToolResult>,
    ) -> Vec<(u64, u64)> {
        let (mut alike, mut all) = (HashMap::<u64, u64>::new(), number);
        let one = |result: &ToolResult| {
            let look = self.look(result);
            let nth = alike.entry(look).or_default();
            *nth += 1;
            all = self.hasher.hash_one((all, look));
            (look, if result.is_by_place { all } else { self.hasher.hash_one((number, look, *nth)) })
        };
        results.map(one).collect()
    }
}

/// What is said of a call that was denied something; `None`: it was not.
fn sentences(denials: &Denials, redactor: &Redactor) -> Option<String> {
    let mut lines: Vec<String> = Vec::new();
    let mut more = denials.more;
    let mut left = LONGEST - LAST;
    for denial in &denials.first {
        let line = sentence(denial, redactor);
        match left.checked_sub(line.chars().count() + 1).filter(|_| lines.len() < MAX_DENIALS) {
            Some(rest) => {
                left = rest;
                lines.push(line);
            }
            None => more = more.saturating_add(1),
        }
    }
    (!lines.is_empty()).then_some(())?;
    let last = match more {
        0 => format!("{MARK} {WHO}"),
        more => format!("{MARK} It was denied something else {more} more times. {WHO}"),
    };
    lines.push(last);
    Some(lines.join("\n"))
}

/// One denial, on one line, without credentials. Each part is cut by itself, so that a long one takes no room from the next, and
/// only once it is redacted: half a credential is one too many.
fn sentence(Denial { what, target, why, advice }: &Denial, redactor: &Redactor) -> String {
    let [what, why, advice] =
        [(what, LONGEST_WHAT), (why, LONGEST_WHY), (advice, LONGEST_ADVICE)].map(|(text, most)| {
            let text = escape::line(&redactor.text(text));
            cut(text.chars().map(String::from), most)
        });
    let quoted = |target: &String| {
        // No character of it ends the quotes, and none is cut in two.
        let one = |char: char| match char {
            '"' | '\\' => format!("\\{char}"),
            char => escape::line(char.encode_utf8(&mut [0; 4])),
        };
        format!(" \"{}\"", cut(redactor.text(target).chars().map(one), LONGEST_TARGET))
    };
    let target = target.as_ref().map(quoted).unwrap_or_default();
    format!("{MARK} The kernel denied this call: {what}{target}. {why} {advice}")
}

/// Pieces of a text, with dots for those in its middle where they are more than so many characters. What is left of an entry in
/// quotes neither ends with half an escape nor goes on with its end.
fn cut(pieces: impl Iterator<Item = String>, most: usize) -> String {
    let pieces: Vec<String> = pieces.collect();
    let length = |piece: &String| piece.chars().count();
    if pieces.iter().map(length).sum::<usize>() <= most {
        return pieces.concat();
    }
    let half = most.saturating_sub(DOTS.len()) / 2;
    let fit = |left: &mut usize, piece: &&String| {
        *left = left.checked_sub(length(piece))?;
        Some(())
    };
    let head = pieces.iter().scan(half, |left, piece| fit(left, &piece)).count();
    let tail = pieces.iter().rev().scan(half, |left, piece| fit(left, &piece)).count();
    let head: Vec<&str> = pieces.iter().take(head).map(String::as_str).collect();
    let is_torn = |piece: &&str| matches!(*piece, "\\" | "\"");
    let tail = pieces.iter().skip(pieces.len() - tail).map(String::as_str).skip_while(is_torn);
    let tail: String = tail.collect();
    let torn = head.iter().rev().take_while(|piece| **piece == "\\").count();
    format!("{}{DOTS}{tail}", head.get(..head.len() - torn).unwrap_or_default().concat())
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests;
