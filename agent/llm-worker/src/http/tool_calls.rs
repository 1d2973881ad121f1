//! The tool calls in an answer, as a client may read them: wherever it may find one, whatever else the answer says. Pure.
//!
//! A client decides for itself which of an answer it believes. So what is on record are not the calls of a well-formed
//! answer, but everything in it that has a tool's name: also where the answer breaks off, gives another reason to stop, or
//! does not follow its own endpoint. And what clients would make different calls of is refused: one goes by an index, another
//! by the place of what it names, a third joins what a fourth replaces.

use super::{input::Input, strict_json};
use crate::{
    message::ToolCall,
    provider::{Wire, endpoint},
};
use serde_json::{Value, value::RawValue};
use std::collections::{BTreeMap, BTreeSet};

mod blocks;
mod candidates;
mod choices;
mod items;
mod stray;

pub(crate) use candidates::no_candidate_is_stray;
pub(crate) use items::{HOSTED, is_clients};
pub(crate) use stray::{no_item_is_stray, none_is_stray};

/// Most tool calls of an answer that are relayed.
const MAX_CALLS: usize = 256;

/// Where indices end: what a client's language counts as an index of an array, and as a whole number, ends somewhere.
const MAX_INDEX: u64 = 1 << 16;

/// A call as it grows.
#[derive(Debug)]
struct PartialCall {
    /// Which of the answer's choices, and which of its calls, if it says so.
    place: (u64, Option<u64>),
    form: Form,
    /// It is of a whole message: no piece belongs to it.
    is_whole: bool,
    /// A stream had all of it in one piece.
    is_own: bool,
    id: String,
    name: String,
    input: Input,
    growth: Growth,
    /// Its place among its choice's, where it is one of a stream's list.
    slot: Option<u64>,
    /// Which of the calls it is: it became one when it was named.
    number: Option<usize>,
    /// It was told as complete.
    is_reported: bool,
}

/// Whether a call may grow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Growth {
    /// It may.
    Open,
    /// Its input is a whole document, of whatever kind, behind which nothing goes on: some clients run it now.
    Complete,
    /// Another one began, or what it is part of ended.
    Closed,
}

/// How a call is written. One place may have calls of several forms: which of them is meant is the client's to decide.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Form {
    /// Anthropic's block.
    Block,
    /// `function: { name, arguments }`.
    Function,
    /// `custom: { name, input }`, whose input is a text.
    Custom,
    /// `function_call`, from before there were several.
    Single,
    /// An item that is no function's: what it is to do is an object, as a whole.
    Action,
}

/// The calls of an answer as it grows.
#[derive(Debug, Default)]
pub(crate) struct ToolCalls {
    calls: Vec<PartialCall>,
    named: usize,
    reported: usize,
    /// Anthropic's blocks, by their places; those of a whole answer, too.
    blocks: Vec<BlockState>,
    /// The items of OpenAI's newer form, by their places.
    items: Vec<items::ItemState>,
    /// Whether the items begin before they are whole.
    items_begin: Option<bool>,
    /// Inputs as their pieces are, and as they were said as a whole.
    contested: Vec<(String, String)>,
    /// Blocks came with the answer's beginning, or it came whole.
    has_message: bool,
    /// Several answers were asked for: each chunk may have one of them, which says by its index which it is.
    has_many: bool,
    /// Whether the choices say which they are.
    choices_say: Option<bool>,
    /// For each choice the indices of its calls, in the order in which they were first there.
    places: BTreeMap<u64, Vec<u64>>,
    /// How the answer is to go on, so that clients which join calls, or what is said of one, have no others of it.
    rewrites: Vec<choices::Rewrite>,
    /// The choices that gave a reason to stop.
    stopped: BTreeSet<u64>,
    /// Gemini's candidates, and whether each still owes one.
    unfinished: BTreeMap<u64, bool>,
    /// There are none, as the prompt was blocked.
    is_blocked: bool,
    /// The stream said that it is over.
    is_over: bool,
}

/// One of Anthropic's blocks.
#[derive(Debug)]
struct BlockState {
    /// Where its call is, if it is one.
    call: Option<usize>,
    /// It is of a kind that has an input.
    has_input: bool,
    /// Pieces of an input belong to it: it has none yet.
    takes: bool,
    is_over: bool,
}

impl ToolCalls {
    /// Of an answer; `has_many`: of several at once.
    pub(super) fn new(has_many: bool) -> Self {
        Self { has_many, ..Self::default() }
    }

    /// Whether the stream said that it is over.
    pub(super) fn is_over(&self) -> bool {
        self.is_over
    }

    /// Bytes that it holds of the answer.
    pub(super) fn held(&self) -> usize {
        let of = |call: &PartialCall| {
            size_of::<PartialCall>() + call.id.capacity() + call.name.capacity() + call.input.held()
        };
        let items: usize = self.items.iter().map(items::ItemState::held).sum();
        self.blocks.capacity() * size_of::<BlockState>() + items + self.calls.iter().map(of).sum::<usize>()
    }

    /// Takes in the data of an event, and the name that the event has.
    ///
    /// # Errors
    /// As [`Self::read`]; and clients go by the name, or do not.
    pub(super) fn event(&mut self, wire: Wire, name: &str, data: &Value) -> Result<(), String> {
        let endpoint = endpoint(wire);
        if endpoint.is_misnamed(name, data) {
            return ambiguous("an event whose name is not its type");
        }
        endpoint.check_answer(data)?;
        self.read(wire, data)
    }

    /// Takes in what a stream ends with.
    ///
    /// # Errors
    /// As [`Self::complete`].
    pub(super) fn over(&mut self) -> Result<(), String> {
        self.is_over = true;
        self.close(None);
        self.complete()
    }

    /// Takes in an event's data, or a whole answer.
    ///
    /// # Errors
    /// There are more than [`MAX_CALLS`], or clients would not all make the same calls of it.
    pub(super) fn read(&mut self, wire: Wire, data: &Value) -> Result<(), String> {
        endpoint(wire).read_calls(self, data)
    }

    /// Whether all that may be a call is one, now that the answer ends.
    ///
    /// # Errors
    /// There is an input for a call that was never named.
    pub(super) fn complete(&self) -> Result<(), String> {
        match self.calls.iter().any(|call| call.number.is_none() && !call.input.is_empty()) {
            true => ambiguous("an input for a tool call without a name"),
            false => Ok(()),
        }
    }

    /// How many calls began since this was asked last.
    pub(super) fn fresh(&mut self) -> usize {
        self.named - std::mem::replace(&mut self.reported, self.named)
    }

    /// The calls that became complete since this was asked last, each with its place in what [`Self::finish`] gives: a client
    /// may run them now. Nothing is added to them from then on.
    pub(super) fn completed(&mut self) -> Vec<(usize, ToolCall)> {
        let mut reported = Vec::new();
        for call in self.calls.iter_mut().filter(|call| call.is_complete() && !call.is_reported) {
            let Some(number) = call.number else { continue };
            call.is_reported = true;
            let (id, name) = (call.id.clone(), call.name.clone());
            reported.push((number, ToolCall { id, name, input: json(call.input.text().to_owned()) }));
        }
        reported.sort_by_key(|(number, _)| *number);
        reported
    }

    /// The calls, in the order in which they were named.
    pub(super) fn finish(mut self) -> Vec<ToolCall> {
        self.calls.retain(|call| call.number.is_some());
        self.calls.sort_by_key(|call| call.number);
        let call = |call: PartialCall| {
            let PartialCall { id, name, input, .. } = call;
            ToolCall { id, name, input: json(input.into_text()) }
        };
        self.calls.into_iter().map(call).collect()
    }

    /// Nothing is added to the calls of this choice, or to any.
    fn close(&mut self, of: Option<u64>) {
        let calls = self.calls.iter_mut().filter(|call| of.is_none_or(|of| call.place.0 == of));
        calls.for_each(|call| call.growth = Growth::Closed);
    }

    /// Something that may be a call; gives where it is.
    fn begin(&mut self, place: (u64, Option<u64>), form: Form, id: &str) -> Result<usize, String> {
        // Of what has no name yet there is one in each form.
        if self.calls.len() >= 4 * MAX_CALLS {
            return Err(too_many());
        }
        self.calls.push(PartialCall {
            place,
            form,
            is_whole: false,
            is_own: false,
            id: id.to_owned(),
            name: String::new(),
            input: Input::default(),
            growth: Growth::Open,
            slot: None,
            number: None,
            is_reported: false,
        });
        Ok(self.calls.len() - 1)
    }

    /// A name makes it a call, and so does a block that says that it is one.
    fn name(&mut self, at: usize, name: &str) -> Result<(), String> {
        let Some(call) = self.calls.get_mut(at) else { return Ok(()) };
        if call.number.is_some() || (name.is_empty() && call.form != Form::Block) {
            return Ok(());
        }
        if self.named == MAX_CALLS {
            return Err(too_many());
        }
        name.clone_into(&mut call.name);
        call.number = Some(self.named);
        self.named += 1;
        let (place, form, is_whole) = (call.place, call.form, call.is_whole);
        let is_twice = |call: &PartialCall| call.place == place && call.form != form && call.number.is_some();
        let is_listed = matches!(form, Form::Function | Form::Custom) && !is_whole;
        match is_listed && self.calls.iter().any(|call| is_twice(call) && call.form != Form::Single) {
            true => ambiguous("a tool call of two forms"),
            false => Ok(()),
        }
    }
}

impl PartialCall {
    /// Whether a client may run it as it is.
    fn is_complete(&self) -> bool {
        self.number.is_some() && self.growth != Growth::Open
    }

    /// All of its input.
    fn take(&mut self, input: String) {
        (self.input, self.growth) = (Input::whole(input), Growth::Closed);
    }

    /// Adds a piece of its input. A custom tool's is any text.
    fn grow(&mut self, piece: &str) -> Result<(), String> {
        let was_behind = self.input.is_behind();
        // Blanks behind an input are none of it.
        let is_space = |byte| matches!(byte, b' ' | b'\t' | b'\n' | b'\r');
        let is_blank = was_behind && self.form != Form::Custom && piece.bytes().all(is_space);
        if self.growth == Growth::Closed && !piece.is_empty() && !is_blank {
            return ambiguous("an input for a tool call that is over");
        }
        if is_blank {
            return Ok(());
        }
        if self.form == Form::Custom {
            self.input.push_text(piece);
        } else if !self.input.push(piece) {
            return ambiguous("an input that goes on behind its end");
        } else if self.growth == Growth::Open && !was_behind && self.input.is_behind() {
            // Parsers differ over what is in it, so that is not asked: to a client that reads it, it is whole.
            self.growth = Growth::Complete;
        }
        Ok(())
    }
}

/// Why an answer is not relayed, or not to its end.
fn ambiguous<T>(what: &str) -> Result<T, String> {
    Err(format!("the provider sent {what}: clients would read different tool calls in it"))
}

/// What a client can only take for this one index.
fn index(value: &Value) -> Result<u64, String> {
    match value.as_u64().filter(|index| *index < MAX_INDEX) {
        Some(index) => Ok(index),
        None => ambiguous("an index that is none"),
    }
}

fn text<'a>(value: &'a Value, key: &str) -> &'a str {
    value.get(key).and_then(Value::as_str).unwrap_or_default()
}

fn written(input: &Value) -> String {
    match input {
        Value::String(text) => text.clone(),
        whole => whole.to_string(),
    }
}

/// Whether an input is one JSON object.
fn is_object(input: &str) -> bool {
    strict_json::read(input).is_ok_and(|input| input.is_object())
}

/// What is null is as good as not there.
fn present(value: Option<&Value>) -> Option<&Value> {
    value.filter(|value| !value.is_null())
}

/// As [`text`], where nothing else may be.
fn texty<'a>(value: &'a Value, key: &str) -> Result<&'a str, String> {
    match present(value.get(key)) {
        None => Ok(""),
        Some(Value::String(text)) => Ok(text),
        Some(_) => ambiguous("an id or a name that is no text"),
    }
}

/// An object's object; what else there is may be one for some client.
fn object<'a>(value: &'a Value, key: &str) -> Result<Option<&'a Value>, String> {
    match present(value.get(key)) {
        Some(value) if !value.is_object() => ambiguous("something else where an object is expected"),
        object => Ok(object),
    }
}

/// An object's list; what else there is may be one for some client.
fn list<'a>(value: &'a Value, key: &str) -> Result<&'a [Value], String> {
    match present(value.get(key)) {
        None => Ok(&[]),
        Some(Value::Array(items)) => Ok(items),
        Some(_) => ambiguous("something else where a list is expected"),
    }
}

/// Parsers that ignore case would take another key for one of these.
fn no_alike(value: &Value, keys: &[&str]) -> Result<(), String> {
    match strict_json::has_alike(value, keys) {
        true => ambiguous("a key in another case"),
        false => Ok(()),
    }
}

fn too_many() -> String {
    format!("the provider sent more than {MAX_CALLS} tool calls in one answer")
}

/// What is no JSON is the text that it is.
fn json(input: String) -> Box<RawValue> {
    let input = if input.trim().is_empty() { "{}".to_owned() } else { input };
    RawValue::from_string(input.clone())
        .or_else(|_| RawValue::from_string(Value::from(input).to_string()))
        .unwrap_or_default()
}

#[cfg(test)]
mod tests;
