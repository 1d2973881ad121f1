//! What a client's calls tell the trace: what it was asked, which tools its model wants called, what came of them.
//!
//! A client keeps its conversation itself and sends all of it each time. So what belongs together is found by the ids of
//! tool calls, which the provider gave: the results of some come with the next request. What was asked is the client's own
//! word: it speaks from the container.

use super::{
    denials::{Closed, DenialNotes},
    session::ClientSession,
};
use crate::{
    calls::{Begun, CallKey},
    message::{Block, Kind, ToolCall},
    provider::{Wire, endpoint, position},
    redact::Redactor,
    report::{self, Intent, Reporter},
    tie::Waiting,
};
use ringfence_wire::trace::Via;
use serde::Deserialize;
use serde_json::value::RawValue;
use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    hash::{BuildHasher, DefaultHasher, Hash, Hasher, RandomState},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};
use tokio_util::sync::CancellationToken;

/// Intents that are followed at a time; one more, and that which was silent longest is given up, of those first of which nothing is
/// under way.
const MOST: usize = 64;
/// Tool calls of an intent whose results are known to be its; older ones are forgotten.
const MOST_CALLS: usize = 256;
/// Newest messages of a request that are looked through for what was asked.
pub(crate) const MOST_BACK: usize = 512;
/// First messages of a request that are looked through for what the user said first: before it stand instructions and reminders.
const MOST_FIRST: usize = 16;

/// The intents of one agent's clients.
pub(super) struct IntentTracker {
    reporter: Reporter,
    tracked_intents: Mutex<Vec<TrackedIntent>>,
    /// What the calls were denied.
    pub(super) denials: DenialNotes,
    /// Nobody outside can make two ids that it takes for one.
    hasher: RandomState,
}

/// One intent under way.
#[derive(Debug)]
struct TrackedIntent {
    intent: Intent,
    /// What was asked, where in the conversation and in which session, as a number.
    asked: u64,
    /// The session alone: all that name none are one.
    session: u64,
    /// The provider's ids of its calls, as numbers.
    calls: VecDeque<u64>,
    /// Calls whose result did not come yet, oldest first.
    open: Vec<OpenCall>,
    /// The last request failed, and that is reported. The client may try again.
    failed: bool,
    last_seen: Instant,
    /// One for this, and one for each request under way.
    under_way: Arc<()>,
}

impl TrackedIntent {
    /// No request of it is under way, and no call waits for its result.
    fn is_idle(&self) -> bool {
        self.open.is_empty() && Arc::strong_count(&self.under_way) <= 1
    }
}

/// A call whose result did not come yet.
#[derive(Debug)]
struct OpenCall {
    /// The provider's id, as a number.
    given: u64,
    /// The same of its place among its answer's.
    place: u64,
    key: CallKey,
    /// How many denials there were before it, at least.
    denied: u64,
    /// A process may be tied to it until then.
    _waiting: Waiting,
}

/// What a request is part of, until it is answered or its client is gone.
#[derive(Debug)]
pub(super) struct RequestPart {
    intent: Intent,
    /// The answer has tool calls.
    called: bool,
    /// The daemon took what it was told of them: one that stands still is waited for once.
    waits: bool,
    /// How many calls of each tool it has.
    named: BTreeMap<String, usize>,
    /// The calls whose results it is the first to bring.
    pub(super) closed: Vec<Closed>,
    _under_way: Arc<()>,
}

impl IntentTracker {
    pub(super) fn new(reporter: Reporter) -> Self {
        let denials = DenialNotes::new(reporter.host().clone());
        Self { reporter, tracked_intents: Mutex::default(), denials, hasher: RandomState::new() }
    }

    /// Whether anybody hears of them.
    pub(super) fn is_heard(&self) -> bool {
        self.reporter.is_heard()
    }

    /// A request on loopback was refused before anything of it was read.
    pub(super) fn refused(&self, why: &str) {
        self.reporter.refused("http", why);
    }

    fn tracked_intents(&self) -> MutexGuard<'_, Vec<TrackedIntent>> {
        self.tracked_intents.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A request that will be sent on. Reports the results that it brings, and what it asks for if that is new.
    pub(super) fn begin(
        &self,
        wire: Wire,
        (messages, session): (&[Box<RawValue>], Option<&ClientSession>),
        redactor: &Redactor,
    ) -> RequestPart {
        let newest = LatestMessages::of(wire, messages);
        // The same words at the same place are another's in another session.
        let session = session.map(|session| session.id.as_str());
        let in_session = self.hasher.hash_one(session);
        let asked = self.hasher.hash_one((newest.number, in_session));
        let results: Vec<(u64, &ToolResult)> =
            newest.results.iter().map(|result| (self.number(&result.call), result)).collect();
        let mut tracked_intents = self.tracked_intents();
        // Providers give one id to calls of several intents, by chance or not: what was asked tells which is meant.
        // A call's place is no id: it is the same in each answer.
        let brought = |tracked: &TrackedIntent| {
            results.iter().any(|(given, result)| !result.is_by_place && tracked.calls.contains(given))
        };
        let is_one = |tracked: &TrackedIntent, (given, result): &(u64, &ToolResult)| {
            result.is_by_place && tracked.open.iter().any(|open| open.place == *given)
        };
        let waits = |tracked: &TrackedIntent| results.iter().any(|result| is_one(tracked, result));
        let known = tracked_intents
            .iter()
            .position(|tracked| (brought(tracked) || waits(tracked)) && tracked.asked == asked)
            .or_else(|| {
                let of_session = |tracked: &TrackedIntent| tracked.session == in_session && brought(tracked);
                tracked_intents.iter().position(of_session)
            })
            .or_else(|| tracked_intents.iter().position(brought))
            .or_else(|| tracked_intents.iter().position(|tracked| tracked.asked == asked));
        let mut closed = Vec::new();
        let mut tracked = match known.map(|at| tracked_intents.remove(at)) {
            Some(mut tracked) => {
                for (at, (given, result)) in results.iter().enumerate() {
                    // Two calls of one id are answered in their order.
                    let is_it = |open: &OpenCall| match result.is_by_place {
                        true => open.place == *given,
                        false => open.given == *given,
                    };
                    let Some(open) = tracked.open.iter().position(is_it) else { continue };
                    let OpenCall { key, denied, .. } = tracked.open.remove(open);
                    self.reporter.ended(&key, result.is_error, &result.content, redactor);
                    closed.push((at, key, denied));
                }
                tracked
            }
            None => {
                let intent = Intent { id: report::new_id(), conn: 0 };
                TrackedIntent {
                    intent,
                    asked,
                    session: in_session,
                    calls: VecDeque::new(),
                    open: Vec::new(),
                    failed: true,
                    last_seen: Instant::now(),
                    under_way: Arc::default(),
                }
            }
        };
        if std::mem::take(&mut tracked.failed) {
            self.reporter.asked(&tracked.intent, (None, Via::Http, session), &newest.asked, redactor);
        }
        tracked.last_seen = Instant::now();
        let (intent, _under_way) = (tracked.intent.clone(), Arc::clone(&tracked.under_way));
        let closed = self.denials.closed(&newest.results, closed);
        let named = BTreeMap::new();
        let part = RequestPart { intent, called: false, waits: true, named, closed, _under_way };
        tracked_intents.push(tracked);
        if tracked_intents.len() > MOST {
            // Not one whose calls may still be tied, where there is another: whoever has the run's token begins as many as it likes.
            let others = tracked_intents.len() - 1;
            let at = tracked_intents.iter().take(others).position(TrackedIntent::is_idle).unwrap_or(0);
            self.give_up(&tracked_intents.remove(at), "the client began too much else", redactor);
        }
        part
    }

    /// The model wants a tool called, since this moment. That is on its way before this returns, or was waited for until
    /// `cut`: the client does not see the end of the call before.
    pub(super) async fn called(
        &self,
        part: &mut RequestPart,
        (call, moment): (&ToolCall, u64),
        redactor: &Redactor,
        cut: &CancellationToken,
    ) {
        let begun = Begun::relayed(&call.id, moment, redactor);
        part.called = true;
        let patience = part.waits.then_some(cut);
        part.waits = self.reporter.call(Some(&part.intent), &begun, call, None, patience).await;
        let mut tracked_intents = self.tracked_intents();
        let Some(tracked) = tracked_intents.iter_mut().find(|tracked| tracked.intent.id == part.intent.id)
        else {
            return;
        };
        let waiting = self.reporter.wait_for(&begun.key, call);
        tracked.last_seen = Instant::now();
        let nth = part.named.entry(call.name.clone()).or_default();
        let (given, place) = (self.number(&call.id), self.number(&position(&call.name, *nth)));
        *nth += 1;
        tracked.calls.push_back(given);
        let denied = self.denials.counted();
        tracked.open.push(OpenCall { given, place, key: begun.key, denied, _waiting: waiting });
        let too_many = tracked.calls.len().saturating_sub(MOST_CALLS);
        tracked.calls.drain(..too_many);
        let too_many = tracked.open.len().saturating_sub(MOST_CALLS);
        tracked.open.drain(..too_many);
    }

    /// The request's answer came, and all its calls were told; or why it failed. Even then the client may run the calls that
    /// it heard of.
    pub(super) fn answered(&self, part: RequestPart, error: Option<&str>, redactor: &Redactor) {
        let RequestPart { intent, called, .. } = &part;
        let mut tracked_intents = self.tracked_intents();
        let at = tracked_intents.iter().position(|tracked| tracked.intent.id == intent.id);
        let Some((at, tracked)) = at.and_then(|at| Some((at, tracked_intents.get_mut(at)?))) else { return };
        tracked.last_seen = Instant::now();
        // Nor is it over where another request of the same words had calls: a client has a title made beside its first turn.
        if *called || !tracked.open.is_empty() {
            return;
        }
        if let Some(why) = error {
            tracked.failed = true;
            return self.reporter.intent_ended(intent, Some(why), redactor);
        }
        // This request and the thread itself; more are a client's that asks twice at once.
        if Arc::strong_count(&tracked.under_way) <= 2 {
            tracked_intents.remove(at);
            self.reporter.intent_ended(intent, None, redactor);
        }
    }

    /// What a provider's id is known by: it may be of any length.
    fn number(&self, given: &str) -> u64 {
        self.hasher.hash_one(given)
    }

    /// Gives up intents of which nothing was heard for so long: their calls would be in flight for ever.
    pub(super) fn give_up_silent(&self, patience: Duration, redactor: &Redactor) {
        let mut tracked_intents = self.tracked_intents();
        let silent = tracked_intents.extract_if(.., |tracked| tracked.last_seen.elapsed() > patience);
        silent.for_each(|tracked| self.give_up(&tracked, "nothing more came from the client", redactor));
    }

    fn give_up(&self, tracked: &TrackedIntent, why: &str, redactor: &Redactor) {
        if !tracked.failed {
            self.reporter.intent_ended(&tracked.intent, Some(why), redactor);
        }
    }
}

/// A tool's result in a request.
#[derive(Debug)]
pub(crate) struct ToolResult {
    /// The provider's id of the call, or its [`position`].
    pub(crate) call: String,
    /// It is the latter.
    pub(crate) is_by_place: bool,
    /// Where the API does not say, it is no error.
    pub(crate) is_error: bool,
    pub(crate) content: Vec<Block>,
}

/// What the end of a conversation says.
#[derive(Debug, Default)]
struct LatestMessages {
    /// Those behind the model's last answer.
    results: Vec<ToolResult>,
    /// The user's last message that is no result, without what the client reminds its model of. Nothing, where there is none
    /// to be read: what the model wants called is on record whatever it was asked.
    asked: Vec<Block>,
    /// What that is known by.
    number: u64,
}

/// The fields of a message that are looked at.
#[derive(Deserialize)]
pub(crate) struct ClientMessage {
    /// Who speaks; none: it is no message, but of a form that has other things among them.
    #[serde(default)]
    pub(crate) role: String,
    #[serde(default)]
    pub(crate) content: Option<Box<RawValue>>,
    pub(crate) tool_call_id: Option<String>,
}

impl LatestMessages {
    fn of(wire: Wire, messages: &[Box<RawValue>]) -> Self {
        let mut newest = Self { number: number_of_unread(messages), ..Self::default() };
        let messages = endpoint(wire).in_common_form(messages);
        let mut is_behind = true;
        // Of a call that comes behind a result, that is none, whatever ids they have.
        let mut passed = BTreeSet::new();
        for (at, raw) in messages.iter().enumerate().rev().take(MOST_BACK) {
            // What is no message is the provider's to refuse.
            let Ok(message) = serde_json::from_str::<ClientMessage>(raw.get()) else { continue };
            let endpoint = endpoint(wire);
            let results = endpoint.tool_results(&message, raw);
            passed.extend(endpoint.call_said(raw));
            match message.role.as_str() {
                "assistant" => is_behind = false,
                "user" if results.is_empty() => {
                    let content = endpoint.blocks(message.content.as_deref());
                    let words = users_words(&content);
                    let is_all_reminders = words.is_empty() && !content.is_empty();
                    // Shown where there is nothing else.
                    if !is_all_reminders || newest.asked.is_empty() {
                        newest.asked = if is_all_reminders { content } else { words };
                        newest.number = number(at, &newest.asked);
                    }
                    if !is_all_reminders {
                        break;
                    }
                }
                _ if is_behind => {
                    let results = results.into_iter().filter(|result| !passed.contains(&result.call));
                    newest.results.splice(..0, results).for_each(drop);
                }
                _ => {}
            }
        }
        newest
    }
}

/// What coding agents put before their users' words, and another one with each request: what they remind their models of.
const REMINDERS: [(&str, &str); 2] =
    [("<system-reminder>", "</system-reminder>"), ("<session_context>", "</session_context>")];

/// A user's message without what its client put before it.
fn users_words(content: &[Block]) -> Vec<Block> {
    let words = |block: &Block| match block.kind() {
        Kind::Text(text) => match behind_reminders(text) {
            "" => None,
            rest if rest.len() == text.len() => Some(block.clone()),
            rest => Some(Block::text(rest)),
        },
        _ => Some(block.clone()),
    };
    content.iter().filter_map(words).collect()
}

/// What follows reminders at a text's beginning.
fn behind_reminders(text: &str) -> &str {
    let mut rest = text;
    let behind = |text: &'_ str, (begin, end): (&str, &str)| {
        Some(text.strip_prefix(begin)?.find(end)? + begin.len() + end.len())
    };
    while let Some(at) = REMINDERS.iter().find_map(|reminder| behind(rest.trim_start(), *reminder)) {
        rest = rest.trim_start().get(at..).unwrap_or_default().trim_start();
    }
    rest
}

/// What the user says first in a conversation, but reminders. Nothing: that is not among the first messages.
pub(super) fn first_words(wire: Wire, messages: &[Box<RawValue>]) -> Vec<Block> {
    let endpoint = endpoint(wire);
    let words = |message: &[Box<RawValue>]| {
        let common = endpoint.in_common_form(message);
        let raw = common.first()?;
        let message: ClientMessage = serde_json::from_str(raw.get()).ok()?;
        let is_asked = message.role == "user" && endpoint.tool_results(&message, raw).is_empty();
        let words = users_words(&endpoint.blocks(message.content.as_deref().filter(|_| is_asked)));
        (!words.is_empty()).then_some(words)
    };
    messages.chunks(1).take(MOST_FIRST).find_map(words).unwrap_or_default()
}

/// Content as blocks: it may be a text alone.
pub(crate) fn blocks(content: Option<&RawValue>) -> Vec<Block> {
    let Some(content) = content else { return Vec::new() };
    if let Ok(text) = serde_json::from_str::<String>(content.get()) {
        return vec![Block::text(&text)];
    }
    let pieces: Vec<Box<RawValue>> = serde_json::from_str(content.get()).unwrap_or_default();
    pieces.into_iter().filter_map(|piece| Block::parse(piece).ok()).collect()
}

/// What a message is known by when it comes again: its place and its texts. Clients move marks for the provider's cache.
fn number(at: usize, content: &[Block]) -> u64 {
    let mut hasher = DefaultHasher::new();
    at.hash(&mut hasher);
    for block in content {
        if let Kind::Text(text) = block.kind() {
            text.hash(&mut hasher);
        }
    }
    hasher.finish()
}

/// What a conversation is known by in which nothing can be read that was asked: a request that is tried again ends alike,
/// and one that goes on brings results.
fn number_of_unread(messages: &[Box<RawValue>]) -> u64 {
    let mut hasher = DefaultHasher::new();
    messages.last().map(|last| last.get()).hash(&mut hasher);
    hasher.finish()
}

#[cfg(test)]
mod tests;
