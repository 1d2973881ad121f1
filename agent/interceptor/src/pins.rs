//! The tools of a session's server as they are pinned, and what becomes of the answers that list them.
//!
//! The auditor has the pins of all sessions and says which there are ([`SessionPins::set`]); what this session sees for the
//! first time is pinned here at once, and by the auditor when it has read the journal that far. A tool that is not what is
//! pinned is taken out of the list, and its calls are refused, until a person has approved it.

use ringfence_pins::{
    Definition, LONGEST_NAME, MOST_BYTES, MOST_TOOLS, Unjudged,
    definition::{Parts, differing, name_digest, secret_digest},
    flags,
};
use ringfence_redact as redact;
use ringfence_session::{
    journal::ListedTool,
    line::{self, Id},
    listing::{Listed, Listing},
};
use ringfence_wire::mcp::PinnedTool;
use serde_json::Value;
use std::{
    borrow::Cow,
    collections::{HashMap, HashSet, VecDeque},
    sync::{Condvar, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

/// How long the first list or call waits for what is pinned, also while no link can be made.
const PATIENCE: Duration = Duration::from_secs(30);
/// Requests for lists whose answers are told from others'. Of a client with more every answer may be one.
const MOST_ASKED: usize = 4096;
/// Streams on which a client hears that tools changed.
const MOST_LISTENERS: usize = 16;
/// Longest id of such a stream, bytes.
const LONGEST_ID: usize = 256;

/// What is known of the tools of one session.
#[derive(Debug, Default)]
pub struct SessionPins {
    /// Name of the server.
    server: String,
    /// Texts are recorded as they are.
    store_raw: bool,
    state: Mutex<State>,
    arrived: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// The auditor's word is still to come.
    is_awaited: bool,
    /// What is pinned, by the digests of names.
    pinned: HashMap<String, Pinned>,
    /// Bytes of the definitions that this session pinned.
    bytes: usize,
    /// Tools as they were listed last, by their names.
    tools: HashMap<String, Tool>,
    /// The server listed more tools than can be told apart.
    is_over: bool,
    /// When the list began whose pages are coming.
    begun: Option<i64>,
    /// The last list of one page, to tell whether another is news.
    last: Option<Vec<(String, Option<String>)>>,
    asked: Asked,
    audience: Audience,
    /// What the server says it is, as it was recorded last.
    info: Option<String>,
}

/// Which answers can be lists.
#[derive(Debug, Default)]
struct Asked {
    /// Ids of requests for lists that were not answered, and whether each is for a page that is not the first.
    ids: HashMap<String, bool>,
    is_over: bool,
    /// The id of the request by which the client asked last what the server is.
    introduction: Option<String>,
}

/// Who hears that the tools changed.
#[derive(Debug, Default)]
struct Audience {
    /// The client introduced itself, as in the older era: it hears notifications.
    is_introduced: bool,
    /// It asked for tools: nobody else has a list that could be out of date.
    has_listed: bool,
    /// The ids of streams on which it asked to hear of it, as in the newer era: JSON, oldest first.
    listeners: VecDeque<String>,
}

#[derive(Debug, Clone, Default)]
struct Pinned {
    sha256: String,
    parts: Parts,
    is_flagged: bool,
    /// Another definition was listed when the tool was seen last.
    is_changed: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Tool {
    sha256: Option<String>,
    parts: Parts,
    /// Why it is kept from the client.
    held: Option<String>,
    is_flagged: bool,
}

/// What is known of the tool that a call names.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct KnownTool {
    /// Why it is not called.
    pub held: Option<String>,
    /// Its description is odd, and nobody has looked at that.
    pub is_flagged: bool,
}

/// The lists of one line, judged.
#[derive(Debug, Default)]
pub struct JudgedLists {
    /// Of each list, which of its tools are kept from the client.
    pub out: Vec<HashSet<usize>>,
    /// What is to be recorded, where that is news.
    pub news: Option<News>,
}

/// What a line's lists have that is to be recorded.
#[derive(Debug)]
pub struct News {
    /// The tools.
    pub tools: Vec<ListedTool>,
    /// How many more there are.
    pub more: u64,
    /// When the list that this ends began.
    pub whole: Option<i64>,
}

/// An id as clients compare it that take a text for the number it spells: `1` is `"1"`, `" 01"`, `"1e0"` and `"0x1"`.
pub(crate) fn loosely(id: &Id) -> String {
    let (Id::String(text) | Id::Number(text)) = id else { return "0".to_owned() };
    let text: String = text.trim().chars().take(LONGEST_ID).filter(|c| *c != '_').collect();
    if text.is_empty() {
        return "0".to_owned();
    }
    let radix = |prefix: &str, radix| {
        let digits = text.get(..2).filter(|begin| begin.eq_ignore_ascii_case(prefix)).and(text.get(2..))?;
        i64::from_str_radix(digits, radix).ok()
    };
    let whole = text.parse::<i64>().ok();
    let whole = whole.or_else(|| radix("0x", 16)).or_else(|| radix("0o", 8)).or_else(|| radix("0b", 2));
    let fraction = || text.parse::<f64>().ok().filter(|number| number.is_finite()).map(|n| format!("{n:.0}"));
    whole.map(|whole| whole.to_string()).or_else(fraction).unwrap_or(text)
}

impl SessionPins {
    /// Of a session with the server of this name.
    pub fn new(server: String, store_raw: bool) -> Self {
        Self { server, store_raw, ..Self::default() }
    }

    /// From now on a list waits for what the auditor has pinned.
    pub fn await_stored(&self) {
        self.lock().is_awaited = true;
    }

    /// Whether the auditor's word is still waited for.
    #[cfg(test)]
    pub(crate) fn is_awaited(&self) -> bool {
        self.lock().is_awaited
    }

    /// Nobody says what is pinned: what this session knows counts until somebody does.
    pub fn none_stored(&self) {
        self.lock().is_awaited = false;
        self.arrived.notify_all();
    }

    /// What is pinned, by the auditor's word. Whether tools that the client was told of are held now, or tools that were held are
    /// not: then it should ask again.
    pub fn set(&self, tools: Vec<PinnedTool>) -> bool {
        let mut state = self.lock();
        for PinnedTool { name, sha256, parts, flagged, changed, rejected: _ } in tools {
            let pinned = Pinned { sha256, parts, is_flagged: flagged, is_changed: changed };
            if state.pinned.len() < 2 * MOST_TOOLS || state.pinned.contains_key(&name) {
                state.pinned.insert(name, pinned);
            }
        }
        state.is_awaited = false;
        let State { tools, pinned, .. } = &mut *state;
        let mut is_news = false;
        for (name, tool) in tools.iter_mut() {
            let (Some(sha256), Some(pinned)) = (&tool.sha256, pinned.get(&name_digest(name))) else {
                continue;
            };
            let held = (*sha256 != pinned.sha256).then(|| changed(&pinned.parts, &tool.parts));
            tool.is_flagged = held.is_none() && pinned.is_flagged;
            is_news |= held.is_some() != tool.held.is_some();
            tool.held = held;
        }
        if is_news {
            // The next list is news whatever it has.
            state.last = None;
        }
        drop(state);
        self.arrived.notify_all();
        is_news
    }

    /// A request of the client's goes to the server.
    pub fn asks(&self, id: &Id, method: &str, params: Option<&str>) {
        let mut state = self.lock();
        let key = loosely(id);
        match method {
            "tools/list" => {
                state.audience.has_listed = true;
                if state.asked.ids.len() >= MOST_ASKED {
                    state.asked.is_over = true;
                } else {
                    state.asked.ids.insert(key, has_cursor(params));
                }
                return;
            }
            "initialize" => {
                state.audience.is_introduced = true;
                state.asked.introduction = Some(key.clone());
            }
            "server/discover" => state.asked.introduction = Some(key.clone()),
            "subscriptions/listen" if hears_of_tools(params) => {
                let id = id.to_json();
                let listeners = &mut state.audience.listeners;
                if id.len() <= LONGEST_ID && !listeners.contains(&id) {
                    listeners.push_back(id);
                    if listeners.len() > MOST_LISTENERS {
                        listeners.pop_front();
                    }
                }
            }
            _ => {}
        }
        // Its answer is no list any more.
        state.asked.ids.remove(&key);
    }

    /// A stream of the client's is over: it cancelled it, or the server did.
    pub fn stops_listening(&self, id: &Id) {
        let mut state = self.lock();
        if !state.audience.listeners.is_empty() {
            let id = id.to_json();
            state.audience.listeners.retain(|known| *known != id);
        }
    }

    /// A line of the client's goes to the server that nobody can read: whatever it asks for, its answer may be a list.
    pub(crate) fn asks_something(&self) {
        let mut state = self.lock();
        state.audience.has_listed = true;
        state.asked.is_over = true;
    }

    /// Whether it may have asked for a list without our knowledge.
    pub(crate) fn may_ask_unseen(&self) -> bool {
        self.lock().asked.is_over
    }

    /// A request of this id has its answer.
    pub(crate) fn answered(&self, id: &Id) {
        let mut state = self.lock();
        if !state.asked.ids.is_empty() {
            state.asked.ids.remove(&loosely(id));
        }
    }

    /// Whether the answer to this request says what the server is. Once.
    pub(crate) fn introduces(&self, id: &Id) -> bool {
        let mut state = self.lock();
        let is_it = state.asked.introduction.as_ref().is_some_and(|asked| *asked == loosely(id));
        if is_it {
            state.asked.introduction = None;
        }
        is_it
    }

    /// Whether the client did not introduce itself: in the newer era every answer may say what the server is.
    pub(crate) fn is_of_newer_era(&self) -> bool {
        !self.lock().audience.is_introduced
    }

    /// Whether what the server says it is was not recorded yet.
    pub(crate) fn is_new_info(&self, info: &str) -> bool {
        let mut state = self.lock();
        let is_new = state.info.as_deref() != Some(info);
        if is_new {
            state.info = Some(info.to_owned());
        }
        is_new
    }

    /// The notifications by which the client hears that it should ask for the tools again: each a line.
    pub fn notifications(&self) -> Vec<String> {
        let state = self.lock();
        let Audience { is_introduced, has_listed, listeners } = &state.audience;
        if !has_listed {
            return Vec::new();
        }
        let line = |params: &str| {
            format!("{{\"jsonrpc\":\"2.0\",\"method\":\"notifications/tools/list_changed\"{params}}}\n")
        };
        let plain = is_introduced.then(|| line(""));
        let of = |id: &String| {
            line(&format!(",\"params\":{{\"_meta\":{{\"io.modelcontextprotocol/subscriptionId\":{id}}}}}"))
        };
        plain.into_iter().chain(listeners.iter().map(of)).collect()
    }

    /// Judges the lists of a line that goes by `at` that time, microseconds since 1970. Waits until it is known what is pinned.
    pub fn judge(&self, lists: &[Listing<'_>], at: i64) -> JudgedLists {
        let mut state = self.known();
        let (mut tools, mut out, mut more, mut whole) = (Vec::new(), Vec::new(), 0u64, None);
        let mut is_one_page = lists.len() == 1;
        let mut spent = 0;
        for list in lists {
            // What nobody asked for does not end what is known of a list that somebody did.
            let is_later = state.asked.ids.remove(&loosely(&list.id)).unwrap_or(true);
            if !is_later {
                state.begun = Some(at);
                state.tools.clear();
                state.is_over = false;
            }
            is_one_page &= !is_later && !list.has_more;
            let mut of_list = HashSet::new();
            let mut names = HashSet::new();
            for (place, listed) in list.tools.iter().enumerate() {
                let room = state.tools.len() < MOST_TOOLS && place < MOST_TOOLS;
                let tool = self.tool(&mut state, listed, room, (&mut names, &mut spent));
                if tool.as_ref().is_none_or(|tool| tool.held.is_some()) {
                    of_list.insert(place);
                }
                match tool {
                    Some(tool) if tools.len() < MOST_TOOLS => tools.push(tool),
                    _ => more += 1,
                }
            }
            more += list.beyond;
            out.push(of_list);
            if !list.has_more {
                whole = state.begun.take();
            }
        }
        let seen: Vec<(String, Option<String>)> =
            tools.iter().map(|tool: &ListedTool| (tool.name.clone(), tool.sha256.clone())).collect();
        let is_same = is_one_page && state.last.as_ref() == Some(&seen);
        state.last = is_one_page.then_some(seen);
        let has_out = out.iter().any(|out| !out.is_empty());
        JudgedLists { out, news: (!is_same || has_out).then_some(News { tools, more, whole }) }
    }

    /// Judges one tool of a list; nothing is to be recorded of one that has no name that could be.
    fn tool(
        &self,
        state: &mut State,
        listed: &Listed<'_>,
        room: bool,
        (names, spent): (&mut HashSet<String>, &mut usize),
    ) -> Option<ListedTool> {
        if !room {
            state.is_over = true;
            return None;
        }
        let definition = match listed.definition() {
            Ok(definition) if !names.insert(definition.name.clone()) => {
                Err((vec![definition.name], Unjudged::Twice))
            }
            Ok(definition) => Ok(definition),
            Err(why) => Err((names_of(listed.raw), why)),
        };
        let (definition, parts) = match definition {
            Ok(definition) => {
                let parts = definition.parts();
                (definition, parts)
            }
            Err((names, why)) => {
                let held: Vec<_> =
                    names.into_iter().filter_map(|name| not_judged(state, name, &why)).collect();
                return held.into_iter().next();
            }
        };
        let Definition { name, sha256, text } = definition;
        let digest = name_digest(&name);
        let mut tool = ListedTool {
            name: name.clone(),
            sha256: Some(sha256.clone()),
            held: None,
            definition: None,
            parts: Parts::new(),
            flags: Vec::new(),
        };
        let mut is_flagged = false;
        let is_known = match state.pinned.get_mut(&digest) {
            Some(pinned) => {
                pinned.is_changed = pinned.sha256 != sha256;
                if pinned.is_changed {
                    tool.held = Some(changed(&pinned.parts, &parts));
                }
                is_flagged = pinned.is_flagged && !pinned.is_changed;
                !pinned.is_changed
            }
            None => false,
        };
        if !is_known {
            // Each is looked at with others waiting: also those that are held, as often as they are listed.
            *spent = text.len().saturating_add(*spent);
            if *spent > MOST_BYTES {
                return not_judged(state, name, &Unjudged::TooMany);
            }
            let found = flags::of(&text, &self.server);
            is_flagged = !found.is_empty();
            tool.flags = found;
            for flag in &mut tool.flags {
                flag.excerpt = self.recorded(&flag.excerpt);
            }
            tool.definition = Some(self.recorded_definition(&text));
            tool.parts = parts.clone();
        }
        if !is_known && tool.held.is_none() {
            if state.pinned.len() >= MOST_TOOLS || state.bytes.saturating_add(text.len()) > MOST_BYTES {
                return not_judged(state, name, &Unjudged::TooMany);
            }
            state.bytes += text.len();
            let pinned =
                Pinned { sha256: sha256.clone(), parts: parts.clone(), is_flagged, is_changed: false };
            state.pinned.insert(digest, pinned);
        }
        let known = Tool { sha256: Some(sha256), parts, held: tool.held.clone(), is_flagged };
        state.tools.insert(name, known);
        Some(tool)
    }

    /// A definition as it is recorded. What a key is called takes nothing out of it: a server would name those after secrets
    /// whose values nobody should see who approves. Where a text has what looks like a secret, its hash tells whether it changed.
    fn recorded_definition(&self, text: &str) -> String {
        match serde_json::from_str(text) {
            Ok(definition) if !self.store_raw => without_secrets(definition).to_string(),
            _ => text.to_owned(),
        }
    }

    fn recorded(&self, text: &str) -> String {
        if self.store_raw { text.to_owned() } else { redact::redact(text).into_owned() }
    }

    /// What is known of the tool that a call names.
    pub fn of_call(&self, name: &str) -> KnownTool {
        of_call(&self.known(), name)
    }

    /// Why a tool is held by what is known at this moment, without a wait for more.
    pub(crate) fn held_now(&self, name: &str) -> Option<String> {
        of_call(&self.lock(), name).held
    }

    /// The state once it is known what is pinned.
    fn known(&self) -> MutexGuard<'_, State> {
        let state = self.lock();
        if !state.is_awaited {
            return state;
        }
        let waited = self.arrived.wait_timeout_while(state, PATIENCE, |state| state.is_awaited);
        let (mut state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        // Waited for once: an auditor that hangs does not slow every list.
        state.is_awaited = false;
        state
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What is known of the tool that a call names.
fn of_call(state: &State, name: &str) -> KnownTool {
    if let Some(tool) = state.tools.get(name) {
        return KnownTool { held: tool.held.clone(), is_flagged: tool.is_flagged };
    }
    // Some servers fold case, and run what they listed under another spelling.
    let folded = name.to_lowercase();
    let alike = |(known, tool): &(&String, &Tool)| tool.held.is_some() && known.to_lowercase() == folded;
    if let Some((_, tool)) = state.tools.iter().find(alike) {
        return KnownTool { held: tool.held.clone(), is_flagged: false };
    }
    if name.len() > LONGEST_NAME {
        return KnownTool { held: Some(Unjudged::LongName(name.len()).to_string()), is_flagged: false };
    }
    if state.is_over {
        return KnownTool { held: Some(Unjudged::TooMany.to_string()), is_flagged: false };
    }
    if state.pinned.is_empty() {
        return KnownTool::default();
    }
    // A client may call what another session of it was told of.
    match state.pinned.get(&name_digest(name)) {
        Some(pinned) if pinned.is_changed => {
            let why = "its definition was not the pinned one when its server listed it last".to_owned();
            KnownTool { held: Some(why), is_flagged: false }
        }
        pinned => KnownTool { held: None, is_flagged: pinned.is_some_and(|pinned| pinned.is_flagged) },
    }
}

/// Why a tool is held that is another than the pinned one.
fn changed(pinned: &Parts, now: &Parts) -> String {
    format!("its {} changed since it was pinned", differing(pinned, now))
}

/// A tool that cannot be judged is kept from the client, and not pinned.
fn not_judged(state: &mut State, name: String, why: &Unjudged) -> Option<ListedTool> {
    let held = Some(why.to_string());
    let tool = Tool { sha256: None, parts: Parts::new(), held: held.clone(), is_flagged: false };
    // Of two of one name neither is called.
    state.tools.insert(name.clone(), tool);
    Some(ListedTool { name, sha256: None, held, definition: None, parts: Parts::new(), flags: Vec::new() })
}

/// The names that parsers may take for that of a tool that cannot be judged, as far as they can be recorded.
fn names_of(raw: &str) -> Vec<String> {
    let mut names = line::values_of(raw, "name");
    names.retain(|name| !name.is_empty() && name.len() <= LONGEST_NAME);
    names
}

/// A definition's texts without what looks like a secret, each for itself.
fn without_secrets(value: Value) -> Value {
    let text = |text: String| match redact::redact(&text) {
        Cow::Owned(clean) if clean != text => {
            let digest = secret_digest(&text);
            format!("{clean} [secrets taken out of {} bytes, {digest}]", text.len())
        }
        _ => text,
    };
    match value {
        Value::String(said) => text(said).into(),
        Value::Array(items) => items.into_iter().map(without_secrets).collect(),
        Value::Object(map) => {
            map.into_iter().map(|(key, value)| (text(key), without_secrets(value))).collect()
        }
        other => other,
    }
}

/// Whether a request for a list is for a page that is not the first.
fn has_cursor(params: Option<&str>) -> bool {
    #[derive(serde::Deserialize)]
    struct Page {
        #[serde(default)]
        cursor: Option<serde::de::IgnoredAny>,
    }
    params
        .and_then(|params| serde_json::from_str::<Page>(params).ok())
        .is_some_and(|page| page.cursor.is_some())
}

/// Whether a request for a stream of notifications wants to hear that tools changed.
fn hears_of_tools(params: Option<&str>) -> bool {
    #[derive(serde::Deserialize)]
    struct Listen {
        notifications: Wanted,
    }
    #[derive(serde::Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Wanted {
        #[serde(default)]
        tools_list_changed: bool,
    }
    let listen = params.and_then(|params| serde_json::from_str::<Listen>(params).ok());
    listen.is_some_and(|listen| listen.notifications.tools_list_changed)
}

#[cfg(test)]
mod tests;
