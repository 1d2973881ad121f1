//! Answers of the server's that list its tools: tools that are not what is pinned are taken out of them.

use super::{Session, Time, lock};
use crate::pins::News;
use ringfence_pins::LONGEST_DEFINITION;
use ringfence_session::{
    draft::Draft,
    journal::{Direction, Entry, ListedTool},
    line::{self, Answers, Id},
    listing, notice, strict,
};
use serde_json::json;
use std::io::{self, Write};

/// Bytes of definitions in one entry, about: a reader of the journal takes one at a time.
const ENTRY: usize = 1 << 20;

/// Bytes at the end of a line that is not passed on in which its id is looked for.
const TAIL: usize = 4 << 10;

/// A line that is kept from the client.
pub(crate) struct Withheld {
    why: String,
    /// What it answers, by its beginning.
    id: Option<Id>,
    /// Its end.
    tail: Vec<u8>,
}

impl Withheld {
    /// Another piece of it.
    pub(crate) fn push(&mut self, piece: &[u8]) {
        self.tail.extend_from_slice(&piece[piece.len().saturating_sub(TAIL)..]);
        self.tail.drain(..self.tail.len().saturating_sub(TAIL));
    }
}

impl<S: Write, C: Write> Session<S, C> {
    /// Records a line of the server's, without its end, that is no blank one. What the client gets in its place, where that is
    /// another text; nothing at all where that is empty.
    pub(super) fn server_line(&self, draft: &mut Draft, time: Time, body: &[u8]) -> Option<Vec<u8>> {
        let answers = line::answers(body);
        // Whatever it answers, or is: clients take other ids for theirs, other keys for those of an answer, and a part of a
        // line for a line.
        let may_be_list = self.pins.is_asked() && listing::may_be_list(body);
        let given = if may_be_list { self.list(draft, time, body) } else { Err(()) };
        let id = match answers {
            Answers::One(id) => Some(id),
            Answers::Unclear => line::answered_id(body),
            Answers::Nothing => None,
        };
        if given.is_err() {
            if id.as_ref().is_some_and(|id| self.pins.introduces(id)) {
                self.record_info(draft, time, body);
            }
            self.draft(draft, time, Direction::ServerToClient, body, &[], None);
        }
        if let Some(id) = id {
            self.answered(&self.asked_by(&id).unwrap_or(id));
        }
        given.ok().flatten()
    }

    /// The id of the client's request that it may take this one for, where the server has that.
    fn asked_by(&self, id: &Id) -> Option<Id> {
        let folded = crate::pins::loosely(id);
        let outstanding = lock(&self.outstanding);
        [id.clone(), Id::Number(folded.clone()), Id::String(folded)]
            .into_iter()
            .find(|id| outstanding.has(id))
    }

    /// A request has its answer.
    fn answered(&self, id: &Id) {
        lock(&self.outstanding).remove(id);
        self.pins.stops_listening(id);
        self.pins.answered(id);
    }

    /// Answers, in place of the server, the requests that a line of its would have answered.
    fn refusals(&self, ids: Vec<Id>, why: &str) -> Vec<u8> {
        let mut refusals = Vec::new();
        // One that is answered is asked no more.
        for id in ids {
            if let Some(id) = self.asked_by(&id) {
                self.answered(&id);
                refusals.extend(no_list(&id, why));
            }
        }
        refusals
    }

    /// Judges what may be a list of tools, and records it; an error where it is none, and nothing was recorded.
    fn list(&self, draft: &mut Draft, time: Time, body: &[u8]) -> Result<Option<Vec<u8>>, ()> {
        let lists = match listing::read(body) {
            Ok(lists) if lists.is_empty() => return Err(()),
            Ok(lists) => lists,
            Err(_) if is_noise(body) => return Err(()),
            Err(why) => {
                let why =
                    format!("not passed on, as a list of tools that parsers could read differently: {why}");
                self.draft(draft, time, Direction::ServerToClient, body, &[], Some(&why));
                notice::print(&format!("a line of the server's was {why}"));
                return Ok(Some(self.refusals(line::ids_in(body), &why)));
            }
        };
        if !lists.iter().any(|list| self.asked_by(&list.id).is_some()) && !self.pins.may_ask_unseen() {
            // No client takes it; a server could have us judge as many as it likes.
            let why = "not passed on: it lists tools, and nobody asked for them";
            self.draft(draft, time, Direction::ServerToClient, body, &[], Some(why));
            return Ok(Some(Vec::new()));
        }
        let judged = self.pins.judge(&lists, time.at);
        let message = self.message_id(time.at);
        if lists.iter().any(|list| self.pins.introduces(&list.id)) || self.pins.is_of_newer_era() {
            self.record_info(draft, time, body);
        }
        if let Some(news) = judged.news {
            announce(&news.tools);
            entries(news, &message.to_string(), time.at).iter().for_each(|entry| draft.entry(entry));
        }
        self.draft_as(draft, message, time, Direction::ServerToClient, body, &[], None);
        for list in &lists {
            self.answered(&self.asked_by(&list.id).unwrap_or(list.id.clone()));
        }
        let is_out = |list: usize, at: usize| judged.out.get(list).is_some_and(|out| out.contains(&at));
        let has_out = judged.out.iter().any(|out| !out.is_empty());
        Ok(has_out.then(|| listing::without(body, &lists, is_out)))
    }

    /// Records what the server says it is, where an answer says so and that is news.
    fn record_info(&self, draft: &mut Draft, time: Time, body: &[u8]) {
        if let Some(info) = listing::server_info(body)
            && self.pins.is_new_info(&info)
        {
            draft.entry(&Entry::Server { at: time.at, key: None, info: Some(info) });
        }
    }

    /// Whether a line of the server's that is too long to be judged is kept from the client, of which `start` is the beginning:
    /// while a list of tools is to come, since any part of a line may be one.
    pub(crate) fn withholds(&self, start: &[u8], limit: usize) -> Option<Withheld> {
        if !self.pins.is_unanswered() {
            return None;
        }
        let why = format!("not passed on: it may list tools, and is longer than {limit} bytes");
        notice::print(&format!("a line of the server's was {why}"));
        self.record_or_warn(&Entry::Note {
            at: time_of_note(),
            text: format!("the next line of the server's was {why}"),
        });
        let id = match line::answers(start) {
            Answers::One(id) => Some(id),
            Answers::Unclear | Answers::Nothing => None,
        };
        Some(Withheld { why, id, tail: start[start.len().saturating_sub(TAIL)..].to_vec() })
    }

    /// Gives the client its answer in place of a line that was kept from it, where it is clear what that answered.
    ///
    /// # Errors
    /// Those of writing to the client.
    pub(crate) fn answer_withheld(&self, line: Withheld) -> io::Result<()> {
        let ids = line.id.map_or_else(|| line::last_id(&line.tail).into_iter().collect(), |id| vec![id]);
        self.to_client(&self.refusals(ids, &line.why))
    }

    /// Takes what the auditor has pinned, and tells the client to ask again where that changes what it got.
    ///
    /// # Errors
    /// Those of writing to the client.
    pub(crate) fn set_pins(&self, tools: Vec<ringfence_wire::mcp::PinnedTool>) -> io::Result<()> {
        if !self.pins.set(tools) {
            return Ok(());
        }
        let text =
            "what is pinned of the server's tools changed: the client is told to list them again".to_owned();
        self.record_or_warn(&Entry::Note { at: time_of_note(), text });
        self.pins.notifications().iter().try_for_each(|line| self.to_client(line.as_bytes()))
    }

    /// What is pinned, which the link keeps up to date.
    pub fn pins(&self) -> &crate::pins::SessionPins {
        &self.pins
    }
}

fn time_of_note() -> i64 {
    ringfence_base::clock::now_micros()
}

/// Whether no client takes a line for a message: it does not begin as one, nor does anything behind a character at which
/// readers end lines.
fn is_noise(body: &[u8]) -> bool {
    let text = String::from_utf8_lossy(body);
    let text = text.trim_start_matches(|c: char| c.is_whitespace() || c == '\u{feff}');
    !text.starts_with(['{', '[']) && strict::text(text.as_bytes()).is_ok()
}

/// The answer to a request for tools whose own cannot be passed on.
fn no_list(id: &Id, why: &str) -> Vec<u8> {
    let error =
        json!({ "code": -32603, "message": format!("Ringfence: the server's list of tools was {why}.") });
    id.answer("error", &error).into_bytes()
}

/// Tells whoever reads standard error what is held.
fn announce(tools: &[ListedTool]) {
    let held: Vec<&ListedTool> =
        tools.iter().filter(|tool| tool.held.is_some() && tool.definition.is_some()).collect();
    for tool in held.iter().take(8) {
        let why = tool.held.as_deref().unwrap_or_default();
        notice::print(&format!(
            "the tool {:?} is kept from the client: {why}; `ringfence mcp pin` shows the change and approves it",
            tool.name
        ));
    }
    if held.len() > 8 {
        notice::print(&format!("and {} more tools; `ringfence mcp pin` shows all", held.len() - 8));
    }
}

/// The entries of what is news, each of a bounded length.
fn entries(news: News, message: &str, at: i64) -> Vec<Entry> {
    let News { tools, more, whole } = news;
    let (mut entries, mut part, mut bytes) = (Vec::new(), Vec::new(), 0);
    let entry = |tools: Vec<ListedTool>| Entry::Tools {
        at,
        message: message.to_owned(),
        tools,
        more: 0,
        whole: None,
    };
    for tool in tools {
        let size = tool.definition.as_ref().map_or(0, String::len) + 512;
        if bytes + size > ENTRY.max(LONGEST_DEFINITION) && !part.is_empty() {
            entries.push(entry(std::mem::take(&mut part)));
            bytes = 0;
        }
        bytes += size;
        part.push(tool);
    }
    entries.push(Entry::Tools { at, message: message.to_owned(), tools: part, more, whole });
    entries
}
