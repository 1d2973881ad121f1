//! Answers of the server's that list its tools: tools that are not what is pinned are taken out of them.

use super::{Session, Time, lock};
use crate::pins::News;
use ringfence_base::clock::now_micros;
use ringfence_pins::LONGEST_DEFINITION;
use ringfence_session::{
    draft::Draft,
    journal::{Direction, Entry, ListedTool},
    line::{self, Answers, Id},
    listing, notice, rough,
};
use serde_json::json;
use std::io::{self, Write};

/// Bytes of definitions in one entry, about: a reader of the journal takes one at a time.
const ENTRY: usize = 1 << 20;

/// Bytes at the end of a line that is not passed on in which its id is looked for.
const TAIL: usize = 4 << 10;

/// A line of the server's that is too long to be judged. Any part of it may be a list of tools.
pub(crate) struct Overlong {
    why: String,
    /// What it answers, by its beginning.
    answers: Answers,
    /// What it asks under, by its beginning, where it is a request of the server's.
    asks: Option<Id>,
    /// Its end.
    tail: Vec<u8>,
    /// Where it begins as no message, it passes as far as it is one line to every reader.
    noise: Option<Noise>,
}

/// How much of a line passes that is no message.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Noise {
    Passes,
    Cut,
}

impl<S: Write, C: Write> Session<S, C> {
    /// Records a line of the server's, without its end, that is no blank one. What the client gets in its place, where that is
    /// another text; nothing at all where that is empty.
    pub(super) fn server_line(&self, draft: &mut Draft, time: Time, body: &[u8]) -> Option<Vec<u8>> {
        let answers = line::answers(body);
        // Whatever it answers, or is, and whether or not anybody asked yet: clients take other ids for theirs, other keys for
        // those of an answer, and a part of a line for a line, and read what came before they ask.
        let given = if listing::may_be_list(body) { self.list(draft, time, body) } else { Err(()) };
        let id = match answers {
            Answers::One(id) => Some(id),
            Answers::Unclear(id) => id,
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
                refusals.extend(unpassed(&id, &format!("the server's answer was {why}")));
            }
        }
        refusals
    }

    /// Judges what may be a list of tools, and records it; an error where it is none, and nothing was recorded.
    fn list(&self, draft: &mut Draft, time: Time, body: &[u8]) -> Result<Option<Vec<u8>>, ()> {
        let lists = match listing::read(body) {
            Ok(lists) if lists.is_empty() => return Err(()),
            Ok(lists) => lists,
            Err(_) if !rough::may_list(body) => return Err(()),
            Err(why) => {
                let why =
                    format!("blocked: different parsers could read this line as different tool lists: {why}");
                self.draft(draft, time, Direction::ServerToClient, body, &[], Some(&why));
                notice::print(&format!("a line of the server's was {why}"));
                return Ok(Some(self.refusals(rough::answered(body), &why)));
            }
        };
        if !lists.iter().any(|list| self.asked_by(&list.id).is_some()) && !self.pins.may_ask_unseen() {
            // No client takes it; a server could have us judge as many as it likes.
            let why = "not passed on: it lists tools, and nobody asked for them";
            self.draft(draft, time, Direction::ServerToClient, body, &[], Some(why));
            // Somebody may wait for the rest of its batch.
            return Ok(Some(self.refusals(rough::answered(body), why)));
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

    /// A line of the server's that is longer than `limit` bytes, of which `start` is the beginning. None passes that may hold a
    /// list of tools, whether or not one is to come: the client may ask for one before the line ends.
    ///
    /// # Errors
    /// Those of writing to the client.
    pub(crate) fn overlong(&self, start: &[u8], limit: usize) -> io::Result<Overlong> {
        let noise = rough::is_noise(start).then_some(Noise::Passes);
        let why = format!("not passed on: it may list tools, and is longer than {limit} bytes");
        if noise.is_none() {
            notice::print(&format!("a line of the server's was {why}"));
        }
        let answers = line::answers(start);
        let asks = line::request_ids(start).into_iter().next().filter(|_| answers == Answers::Nothing);
        let mut line = Overlong { why, answers, asks, tail: Vec::new(), noise };
        self.overlong_piece(&mut line, start).map(|()| line)
    }

    /// Another piece of it.
    ///
    /// # Errors
    /// Those of writing to the client.
    pub(crate) fn overlong_piece(&self, line: &mut Overlong, piece: &[u8]) -> io::Result<()> {
        if line.noise == Some(Noise::Passes) {
            let one_line = rough::within_line(piece);
            if one_line.len() < piece.len() {
                line.noise = Some(Noise::Cut);
            }
            return self.piece_to_client(one_line);
        }
        line.tail.extend_from_slice(&piece[piece.len().saturating_sub(TAIL)..]);
        line.tail.drain(..line.tail.len().saturating_sub(TAIL));
        Ok(())
    }

    /// Its end: what was kept from the client is answered, where it is clear what that answered. What the server is to be told,
    /// where it was a request of its own.
    ///
    /// # Errors
    /// Those of writing to the client.
    pub(crate) fn overlong_ends(&self, line: Overlong) -> io::Result<Option<Vec<u8>>> {
        let Overlong { why, answers, asks, tail, noise } = line;
        if let Some(noise) = noise {
            let text = "a line of the server's went by unread: it is no message, and too long to be judged";
            self.record_or_warn(&Entry::Note { at: now_micros(), text: text.to_owned() });
            if noise == Noise::Cut {
                self.piece_to_client(b"\n")?;
            }
            return Ok(None);
        }
        let id = match answers {
            Answers::One(id) | Answers::Unclear(Some(id)) => Some(id),
            Answers::Unclear(None) => rough::last_id(&tail),
            Answers::Nothing => {
                self.record_overlong(None, &why);
                let id = asks.or_else(|| rough::last_id(&tail));
                return Ok(id.map(|id| unpassed(&id, &format!("the server's request was {why}"))));
            }
        };
        self.record_overlong(id.as_ref(), &why);
        self.to_client(&self.refusals(id.into_iter().collect(), &why)).map(|()| None)
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
        self.record_or_warn(&Entry::Note { at: now_micros(), text });
        self.pins.notifications().iter().try_for_each(|line| self.to_client(line.as_bytes()))
    }

    /// What is pinned, which the link keeps up to date.
    pub fn pins(&self) -> &crate::pins::SessionPins {
        &self.pins
    }
}

/// The answer to a request that cannot be passed on, or whose own answer cannot.
fn unpassed(id: &Id, why: &str) -> Vec<u8> {
    let error = json!({ "code": -32603, "message": format!("Ringfence: {why}.") });
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
