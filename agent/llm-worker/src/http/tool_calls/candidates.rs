//! Where Gemini's answers have tool calls: parts of candidates, each call whole. Pure.
//!
//! A call may have no id. Then it has one of its name and its place here, which nobody else is told.

use super::{Form, ToolCalls, Value, ambiguous, index, list, object, present, texty};
use crate::{http::request::squashed, provider::position};

/// Fields that decide which calls an answer has, and whether it is whole; of an answer, a candidate, its content, a part of
/// that and a call.
const ANSWER: [&str; 4] = ["candidates", "promptFeedback", "usageMetadata", "error"];
const CANDIDATE: [&str; 3] = ["content", "index", "finishReason"];
const CONTENT: [&str; 2] = ["parts", "role"];
const PART: [&str; 3] = ["functionCall", "text", "thought"];
const CALL: [&str; 5] = ["id", "name", "args", "partialArgs", "willContinue"];
const FEEDBACK: [&str; 1] = ["blockReason"];

/// What has calls in it, or is in what has, without what spellings differ by.
const KEYS: [&str; 3] = ["candidates", "functioncall", "functioncalls"];

impl ToolCalls {
    /// Some clients take the first of the candidates that an event has, others go by the index. So it is to be the place: 0,
    /// where there is one. Where the profile asks for several answers, an event of one has any of them.
    pub(crate) fn candidates(&mut self, data: &Value) -> Result<(), String> {
        one_spelling(data, &ANSWER)?;
        let candidates = list(data, "candidates")?;
        for (place, candidate) in (0..).zip(candidates) {
            if !candidate.is_object() {
                return ambiguous("a candidate that is no object");
            }
            one_spelling(candidate, &CANDIDATE)?;
            // What is 0 may be left out.
            let says = present(candidate.get("index")).map(index).transpose()?.unwrap_or(0);
            let of = if self.has_many && candidates.len() == 1 { says } else { place };
            if says != of {
                return ambiguous("a candidate whose index is not its place");
            }
            let content = object(candidate, "content")?.unwrap_or(&Value::Null);
            one_spelling(content, &CONTENT)?;
            let parts = list(content, "parts")?;
            parts.iter().try_for_each(|part| self.part(of, part))?;
            match texty(candidate, "finishReason")? {
                "" if parts.is_empty() => drop(self.unfinished.insert(of, self.is_unfinished(of))),
                reason => drop(self.unfinished.insert(of, reason.is_empty())),
            }
        }
        let feedback = object(data, "promptFeedback")?.unwrap_or(&Value::Null);
        one_spelling(feedback, &FEEDBACK)?;
        self.is_blocked |= !texty(feedback, "blockReason")?.is_empty();
        Ok(())
    }

    /// Whether each candidate of a stream so far has said why it ended, or there are none to come.
    pub(in super::super) fn may_end(&self) -> bool {
        match self.unfinished.is_empty() {
            true => self.is_blocked,
            false => self.unfinished.values().all(|is_unfinished| !is_unfinished),
        }
    }

    fn is_unfinished(&self, of: u64) -> bool {
        self.unfinished.get(&of).copied().unwrap_or(true)
    }

    fn part(&mut self, of: u64, part: &Value) -> Result<(), String> {
        if !part.is_object() {
            return ambiguous("a part that is no object");
        }
        one_spelling(part, &PART)?;
        let Some(call) = object(part, "functionCall")? else { return Ok(()) };
        one_spelling(call, &CALL)?;
        let goes_on = present(call.get("willContinue")).is_some_and(|goes_on| *goes_on != Value::Bool(false));
        if goes_on || present(call.get("partialArgs")).is_some() {
            return ambiguous("a tool call in pieces");
        }
        if self.unfinished.contains_key(&of) && !self.is_unfinished(of) {
            return ambiguous("a tool call behind its candidate's reason to stop");
        }
        let (id, name) = (texty(call, "id")?, texty(call, "name")?);
        // Some clients call it something of their own.
        if name.is_empty() {
            return ambiguous("a tool call without a name");
        }
        let input = object(call, "args")?.map_or_else(|| "{}".to_owned(), Value::to_string);
        let nth = self.calls.iter().filter(|call| call.place.0 == of && call.name == name).count();
        let id = if id.is_empty() { position(name, nth) } else { id.to_owned() };
        let at = self.begin((of, None), Form::Function, &id)?;
        if let Some(call) = self.calls.get_mut(at) {
            call.is_whole = true;
            call.take(input);
        }
        self.name(at, name)
    }
}

/// Some clients read names in another case, or as their protocol buffers have them.
fn one_spelling(value: &Value, keys: &[&str]) -> Result<(), String> {
    let is_other = |key: &String| {
        !keys.contains(&key.as_str()) && keys.iter().any(|known| squashed(known) == squashed(key))
    };
    match value.as_object().is_some_and(|object| object.keys().any(is_other)) {
        true => ambiguous("a key in another spelling"),
        false => Ok(()),
    }
}

/// Where in an answer something is.
#[derive(Clone, Copy)]
enum At {
    Answer,
    Candidates,
    Candidate,
    Content,
    Parts,
    Part,
    Elsewhere,
}

/// Looks for calls where none belong. What a tool is called with may have any key.
///
/// # Errors
/// There are some.
pub(crate) fn no_candidate_is_stray(answer: &Value) -> Result<(), String> {
    match is_in(At::Answer, answer) {
        true => ambiguous("tool calls where none belong"),
        false => Ok(()),
    }
}

fn is_in(at: At, value: &Value) -> bool {
    match value {
        Value::Array(items) => {
            let inner = match at {
                At::Candidates => At::Candidate,
                At::Parts => At::Part,
                _ => At::Elsewhere,
            };
            items.iter().any(|item| is_in(inner, item))
        }
        Value::Object(fields) => fields.iter().any(|(key, value)| {
            let inner = match (at, key.as_str()) {
                (At::Answer, "error") | (At::Part, "functionCall") => return false,
                (At::Answer, "candidates") => At::Candidates,
                (At::Candidate, "content") => At::Content,
                (At::Content, "parts") => At::Parts,
                _ => At::Elsewhere,
            };
            let is_stray = matches!(inner, At::Elsewhere) && KEYS.contains(&&*squashed(key));
            (is_stray && has_any(value)) || is_in(inner, value)
        }),
        _ => false,
    }
}

/// A text, a number and what is empty has no call.
fn has_any(value: &Value) -> bool {
    match value {
        Value::Array(items) => !items.is_empty(),
        Value::Object(fields) => !fields.is_empty(),
        _ => false,
    }
}

#[cfg(test)]
mod tests;
