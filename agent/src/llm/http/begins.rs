//! The tool calls in an answer, as a client may read them: wherever it may find one, whatever else the answer says. Pure.
//!
//! A client decides for itself which of an answer it believes. So what is on record are not the calls of a well-formed
//! answer, but everything in it that has a tool's name: also where the answer breaks off, gives another reason to stop, or
//! does not follow its own protocol. And what clients would make different calls of is refused: one goes by an index, another
//! by the place of what it names, a third joins what a fourth replaces.

use super::{input::Input, strict};
use crate::llm::{message::ToolCall, registry::ProviderKind};
use serde_json::{Value, value::RawValue};
use std::collections::BTreeMap;

/// Most tool calls of an answer that are relayed.
const MAX_CALLS: usize = 256;

/// Where indices end: what a client's language counts as an index of an array, and as a whole number, ends somewhere.
const MAX_INDEX: u64 = 1 << 16;

/// A call as it grows.
#[derive(Debug)]
struct Growing {
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
    /// Which of the calls it is: it became one when it was named.
    number: Option<usize>,
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
}

/// The calls of an answer as it grows.
#[derive(Debug, Default)]
pub(super) struct Begins {
    calls: Vec<Growing>,
    named: usize,
    told: usize,
    /// Anthropic's blocks, by their places; those of a whole answer, too.
    blocks: Vec<Begun>,
    /// Blocks came with the answer's beginning, or it came whole.
    has_message: bool,
    /// Several answers were asked for: each chunk may have one of them, which says by its index which it is.
    has_many: bool,
    /// Whether the choices say which they are.
    choices_say: Option<bool>,
    /// For each choice the indices of its calls, in the order in which they were first there.
    places: BTreeMap<u64, Vec<u64>>,
    /// The stream said that it is over.
    is_over: bool,
}

/// One of Anthropic's blocks.
#[derive(Debug)]
struct Begun {
    /// Where its call is, if it is one.
    call: Option<usize>,
    /// It is of a kind that has an input.
    has_input: bool,
    /// Pieces of an input belong to it: it has none yet.
    takes: bool,
    is_over: bool,
}

impl Begins {
    /// Of an answer; `has_many`: of several at once.
    pub(super) fn new(has_many: bool) -> Self {
        Self { has_many, ..Self::default() }
    }

    /// Whether the stream said that it is over.
    pub(super) fn is_over(&self) -> bool {
        self.is_over
    }

    /// Takes in the data of an event, and the name that the event has.
    ///
    /// # Errors
    /// As [`Self::read`]; and clients go by the name, or do not.
    pub(super) fn event(&mut self, kind: ProviderKind, name: &str, data: &Value) -> Result<(), String> {
        let has_choices = data.get("choices").is_some();
        let is_split = match kind {
            ProviderKind::Anthropic => {
                let says = text(data, "type");
                // A whole answer is no event.
                (name != says && (moves(name) || moves(says)))
                    || data.get("content").is_some_and(Value::is_array)
            }
            ProviderKind::OpenAi => has_choices && (name == "error" || name.starts_with("thread.")),
        };
        if is_split {
            return ambiguous("an event whose name is not its type");
        }
        self.read(kind, data)
    }

    /// Takes in what a stream ends with.
    ///
    /// # Errors
    /// As [`Self::complete`].
    pub(super) fn over(&mut self) -> Result<(), String> {
        self.is_over = true;
        self.complete()
    }

    /// Takes in an event's data, or a whole answer.
    ///
    /// # Errors
    /// There are more than [`MAX_CALLS`], or clients would not all make the same calls of it.
    pub(super) fn read(&mut self, kind: ProviderKind, data: &Value) -> Result<(), String> {
        match kind {
            ProviderKind::Anthropic => self.blocks(data),
            ProviderKind::OpenAi => self.choices(data),
        }
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
        self.named - std::mem::replace(&mut self.told, self.named)
    }

    /// The calls, in the order in which they were named.
    pub(super) fn finish(mut self) -> Vec<ToolCall> {
        self.calls.retain(|call| call.number.is_some());
        self.calls.sort_by_key(|call| call.number);
        let call = |call: Growing| {
            let Growing { id, name, input, .. } = call;
            ToolCall { id, name, input: json(input.into_text()) }
        };
        self.calls.into_iter().map(call).collect()
    }

    /// Clients append each block that begins, and take what follows by its index as a place in their list. (One counts
    /// backwards there from -1.) So the index of a block is to be its place.
    fn blocks(&mut self, data: &Value) -> Result<(), String> {
        no_alike(data, &["type", "index", "content", "message", "content_block", "delta"])?;
        no_alike(data.get("message").unwrap_or(&Value::Null), &["content"])?;
        let says = text(data, "type");
        let (whole, start) = (data.get("content"), data.pointer("/message/content"));
        let delta = data.get("delta").unwrap_or(&Value::Null);
        no_alike(delta, &["type", "partial_json"])?;
        let (block, piece) = (data.get("content_block"), present(delta.get("partial_json")));
        // Some clients go by the one, others by the other.
        if piece.is_some() != (text(delta, "type") == "input_json_delta") {
            return ambiguous("a piece of an input that is not of its type");
        }
        let is_other = |is_there: bool, what: &str| is_there && says != what;
        if is_other(start.is_some(), "message_start")
            || is_other(block.is_some(), "content_block_start")
            || is_other(piece.is_some(), "content_block_delta")
        {
            return ambiguous("an event that is not of its type");
        }
        for blocks in [whole, start].into_iter().flatten().filter_map(Value::as_array) {
            if std::mem::replace(&mut self.has_message, true) || !self.blocks.is_empty() {
                return ambiguous("an answer that begins twice");
            }
            blocks.iter().try_for_each(|block| self.block(block))?;
        }
        if !matches!(says, "content_block_start" | "content_block_delta" | "content_block_stop") {
            self.is_over |= says == "message_stop";
            return Ok(());
        }
        if self.is_over {
            return ambiguous("an answer that goes on behind its end");
        }
        let place = index(data.get("index").unwrap_or(&Value::Null))?;
        if says == "content_block_start" {
            if place != self.blocks.len() as u64 {
                return ambiguous("a block whose index is not its place");
            }
            return self.block(block.unwrap_or(&Value::Null));
        }
        let begun = usize::try_from(place).ok().and_then(|place| self.blocks.get_mut(place));
        let Some(begun) = begun.filter(|begun| !begun.is_over) else {
            return ambiguous("a piece of a block that is not open");
        };
        begun.is_over = says == "content_block_stop";
        let Some(piece) = piece else { return Ok(()) };
        let Some(piece) = piece.as_str() else { return ambiguous("a piece of an input that is no text") };
        match begun.call.and_then(|at| self.calls.get_mut(at)) {
            _ if piece.is_empty() && begun.has_input => Ok(()),
            // The input of a tool that the provider runs.
            None if begun.takes => Ok(()),
            Some(call) if begun.takes => call.grow(piece),
            _ => ambiguous("a piece of an input for what takes none"),
        }
    }

    fn block(&mut self, block: &Value) -> Result<(), String> {
        no_alike(block, &["type", "id", "name", "input"])?;
        let kind = text(block, "type");
        let mut call = None;
        if kind == "tool_use" {
            let (id, name) = (texty(block, "id")?, texty(block, "name")?);
            // An empty object stands where pieces are to come.
            let input = present(block.get("input"))
                .filter(|input| !input.as_object().is_some_and(serde_json::Map::is_empty));
            let at = self.begin((0, None), Form::Block, id)?;
            if let (Some(input), Some(call)) = (input, self.calls.get_mut(at)) {
                call.input = Input::whole(written(input));
            }
            self.name(at, name)?;
            call = Some(at);
        }
        // One that has its input already has it replaced by some clients, and extended by others.
        let is_empty = call.and_then(|at| self.calls.get(at)).is_none_or(|call| call.input.is_empty());
        let has_input = kind.ends_with("tool_use");
        self.blocks.push(Begun { call, has_input, takes: has_input && is_empty, is_over: false });
        Ok(())
    }

    /// Some clients take the first of the choices that a chunk has, others go by the index. So it is to be the place in the
    /// chunk: 0, where a chunk has one. Where the profile asks for several answers, a chunk of one has any of them.
    fn choices(&mut self, data: &Value) -> Result<(), String> {
        no_alike(data, &["choices"])?;
        let choices = list(data, "choices")?;
        if self.is_over && !choices.is_empty() {
            return ambiguous("an answer that goes on behind its end");
        }
        for (place, choice) in (0..).zip(choices) {
            no_alike(choice, &["index", "delta", "message", "finish_reason"])?;
            let says = present(choice.get("index")).map(index).transpose()?;
            let of = if self.has_many && choices.len() == 1 { says.unwrap_or(place) } else { place };
            if says.is_some_and(|says| says != of)
                || *self.choices_say.get_or_insert(says.is_some()) != says.is_some()
            {
                return ambiguous("a choice whose index is not its place");
            }
            for (key, is_whole) in [("delta", false), ("message", true)] {
                let Some(said) = object(choice, key)? else { continue };
                no_alike(said, &["tool_calls", "function_call"])?;
                self.list(of, list(said, "tool_calls")?, is_whole)?;
                if let Some(function) = object(said, "function_call")? {
                    self.piece((of, None), Form::Single, is_whole, ("", function))?;
                }
            }
            if choice.get("finish_reason").is_some_and(Value::is_string) {
                self.complete()?;
            }
        }
        Ok(())
    }

    /// A choice's calls, or pieces of some.
    fn list(&mut self, of: u64, calls: &[Value], is_whole: bool) -> Result<(), String> {
        let mut here = Vec::new();
        for call in calls {
            if !call.is_object() {
                return ambiguous("a tool call that is no object");
            }
            no_alike(call, &["index", "id", "type", "function", "custom"])?;
            // Of a whole message's, clients do not look at it.
            let index = present(call.get("index")).filter(|_| !is_whole).map(index).transpose()?;
            let is_again = index.is_some_and(|index| here.contains(&index));
            if let Some(index) = index.filter(|_| !is_again) {
                here.push(index);
                self.place(of, index)?;
            }
            let (id, mut is_own) = (texty(call, "id")?, false);
            let (function, custom) = (object(call, "function")?, object(call, "custom")?);
            if function.is_some() && custom.is_some() {
                return ambiguous("a tool call of two forms");
            }
            for (form, said, other) in [(Form::Function, function, custom), (Form::Custom, custom, function)]
            {
                // What comes before either is known may be of both.
                if other.is_some() {
                    continue;
                }
                is_own |= self.piece((of, index), form, is_whole, (id, said.unwrap_or(&Value::Null)))?;
            }
            // Some clients keep the first list as it is.
            if is_again && !is_own {
                return ambiguous("two pieces of a tool call at once");
            }
        }
        Ok(())
    }

    /// Some clients count in the list of the calls that they heard of. So where there are several, the index of a call is to
    /// be its place there. One alone may have any: some servers count from 1.
    fn place(&mut self, of: u64, index: u64) -> Result<(), String> {
        let places = self.places.entry(of).or_default();
        if !places.contains(&index) {
            places.push(index);
        }
        let is_other = |(place, index): (u64, &u64)| *index != place;
        match places.len() > 1 && (0..).zip(places.iter()).any(is_other) {
            true => ambiguous("a tool call whose index is not its place"),
            false if places.len() > MAX_CALLS => Err(too_many()),
            false => Ok(()),
        }
    }

    /// A piece of one of OpenAI's calls, or a whole one. Of two names of one call some clients take the second for the whole
    /// name, some put them together, and some take it for another call's; but some servers say the same name again with each
    /// piece. What one index stands for is one call, with one id. True: it is a call of its own where another is; some servers
    /// give all their calls one index, or none, and each in one piece. A client that puts those together has no JSON, and no
    /// call.
    fn piece(
        &mut self,
        (of, index): (u64, Option<u64>),
        form: Form,
        is_whole: bool,
        (id, said): (&str, &Value),
    ) -> Result<bool, String> {
        no_alike(said, &["name", "arguments", "input"])?;
        let name = texty(said, "name")?;
        let input = present(said.get(if form == Form::Custom { "input" } else { "arguments" }));
        // Some servers give the object itself. Then it is whole, as nothing fits behind it.
        let is_text = input.is_some_and(Value::is_string);
        if !is_text && input.is_some_and(|input| !input.is_object() || form == Form::Custom) {
            return ambiguous("an input that is neither text nor object");
        }
        let input = input.map(written).unwrap_or_default();
        if is_whole {
            let at = self.begin((of, index), form, id)?;
            if let Some(call) = self.calls.get_mut(at) {
                (call.is_whole, call.input) = (true, Input::whole(input));
            }
            return self.name(at, name).map(|()| false);
        }
        let mut alike = self.calls.iter().enumerate().filter(|(_, call)| {
            call.place.0 == of && !call.is_whole && (call.form == Form::Single) == (form == Form::Single)
        });
        if alike.clone().any(|(_, call)| call.place.1.is_some() != index.is_some()) {
            return ambiguous("tool calls with and without an index");
        }
        let has_id = |(_, call): (usize, &Growing)| call.place.1 == index && call.id == id;
        let is_new_id = if id.is_empty() { index.is_none() } else { !alike.clone().any(has_id) };
        let known = alike.rfind(|(_, call)| call.form == form && call.place.1 == index).map(|(at, _)| at);
        let is_alone = form == Form::Function && is_text && !name.is_empty() && is_object(&input);
        let Some((at, call)) = known.and_then(|at| Some((at, self.calls.get_mut(at)?))) else {
            if name.is_empty() && id.is_empty() && input.is_empty() {
                return Ok(false);
            }
            return self.first((of, index), form, (id, name, &input), is_alone).map(|()| false);
        };
        if call.is_own && is_alone && is_new_id {
            return self.first((of, index), form, (id, name, &input), true).map(|()| true);
        }
        let is_named = call.number.is_some();
        let is_other_id = !id.is_empty() && !call.id.is_empty() && id != call.id;
        let is_other_name = !name.is_empty() && is_named && name != call.name;
        // Without an index, a name or an id is a call's beginning.
        let begins = index.is_none() && form != Form::Single && !(name.is_empty() && id.is_empty());
        if is_other_id || is_other_name || (is_named && begins) {
            return ambiguous("two tool calls in one place");
        }
        call.grow(&input)?;
        if call.id.is_empty() {
            id.clone_into(&mut call.id);
        }
        self.name(at, name).map(|()| false)
    }

    /// The first piece of a call; or all of it.
    fn first(
        &mut self,
        place: (u64, Option<u64>),
        form: Form,
        (id, name, input): (&str, &str, &str),
        is_own: bool,
    ) -> Result<(), String> {
        let at = self.begin(place, form, id)?;
        if let Some(call) = self.calls.get_mut(at) {
            call.is_own = is_own;
            call.grow(input)?;
        }
        self.name(at, name)
    }

    /// Something that may be a call; gives where it is.
    fn begin(&mut self, place: (u64, Option<u64>), form: Form, id: &str) -> Result<usize, String> {
        // Of what has no name yet there is one in each form.
        if self.calls.len() >= 4 * MAX_CALLS {
            return Err(too_many());
        }
        self.calls.push(Growing {
            place,
            form,
            is_whole: false,
            is_own: false,
            id: id.to_owned(),
            name: String::new(),
            input: Input::default(),
            number: None,
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
        let is_twice = |call: &Growing| call.place == place && call.form != form && call.number.is_some();
        let is_listed = matches!(form, Form::Function | Form::Custom) && !is_whole;
        match is_listed && self.calls.iter().any(|call| is_twice(call) && call.form != Form::Single) {
            true => ambiguous("a tool call of two forms"),
            false => Ok(()),
        }
    }
}

impl Growing {
    /// Adds a piece of its input. A custom tool's is any text.
    fn grow(&mut self, piece: &str) -> Result<(), String> {
        if self.form == Form::Custom {
            self.input.push_text(piece);
        } else if !self.input.push(piece) {
            return ambiguous("an input that goes on behind its end");
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

/// Whether an event of Anthropic's begins, extends or ends what is said.
fn moves(name: &str) -> bool {
    name.starts_with("content_block") || matches!(name, "message_start" | "message_stop")
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
    strict::read(input).is_ok_and(|input| input.is_object())
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
    match strict::has_alike(value, keys) {
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
#[path = "begins_tests.rs"]
mod tests;
