//! The tool calls in an answer, as a client may read them: wherever it may find one, whatever else the answer says. Pure.
//!
//! A client decides for itself which of an answer it believes. So what is on record are not the calls of a well-formed
//! answer, but everything in it that has a tool's name: also where the answer breaks off, gives another reason to stop, or
//! does not follow its own protocol. And what clients would make different calls of is refused: one goes by an index, another
//! by the place of what it names, a third joins what a fourth replaces.

use crate::llm::{message::ToolCall, registry::ProviderKind};
use serde_json::{Value, value::RawValue};

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
    /// It came whole: no piece belongs to it.
    is_whole: bool,
    id: String,
    name: String,
    input: String,
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
    /// Whether the choices say which they are.
    choices_say: Option<bool>,
    /// The stream said that it is over.
    is_over: bool,
}

/// One of Anthropic's blocks.
#[derive(Debug)]
struct Begun {
    /// Where its call is, if it is one.
    call: Option<usize>,
    /// Pieces of an input belong to it: it has none yet, and is not over.
    takes: bool,
    is_over: bool,
}

impl Begins {
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
        }?;
        // Of what has no name yet there is one in each form.
        match self.named {
            0..=MAX_CALLS if self.calls.len() <= 4 * MAX_CALLS => Ok(()),
            _ => Err(format!("the provider sent more than {MAX_CALLS} tool calls in one answer")),
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
            ToolCall { id, name, input: json(input) }
        };
        self.calls.into_iter().map(call).collect()
    }

    /// Clients append each block that begins, and take what follows by its index as a place in their list. (One counts
    /// backwards there from -1.) So the index of a block is to be its place.
    fn blocks(&mut self, data: &Value) -> Result<(), String> {
        let says = text(data, "type");
        let (whole, start) = (data.get("content"), data.pointer("/message/content"));
        let (block, piece) = (data.get("content_block"), data.pointer("/delta/partial_json"));
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
            blocks.iter().for_each(|block| self.block(block));
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
            self.block(block.unwrap_or(&Value::Null));
            return Ok(());
        }
        let begun = usize::try_from(place).ok().and_then(|place| self.blocks.get_mut(place));
        let Some(begun) = begun.filter(|begun| !begun.is_over) else {
            return ambiguous("a piece of a block that is not open");
        };
        begun.is_over = says == "content_block_stop";
        let Some(piece) = piece else { return Ok(()) };
        let Some(piece) = piece.as_str() else { return ambiguous("a piece of an input that is no text") };
        match begun.call.and_then(|at| self.calls.get_mut(at)) {
            _ if piece.is_empty() => {}
            // The input of a tool that the provider runs.
            None if begun.takes => {}
            Some(call) if begun.takes => call.input.push_str(piece),
            _ => return ambiguous("a piece of an input for what takes none"),
        }
        Ok(())
    }

    fn block(&mut self, block: &Value) {
        let kind = text(block, "type");
        let call = (kind == "tool_use").then(|| {
            let at = self.begin((0, None), Form::Block, text(block, "id"), block.get("input"));
            self.name(at, text(block, "name"));
            at
        });
        // One that has its input already has it replaced by some clients, and extended by others.
        let is_empty = call.and_then(|at| self.calls.get(at)).is_none_or(|call| call.input.is_empty());
        self.blocks.push(Begun { call, takes: kind.ends_with("tool_use") && is_empty, is_over: false });
    }

    /// Some clients take the first of the choices that a chunk has, others go by the index. So it is to be the place in the
    /// chunk: 0, where a chunk has one.
    fn choices(&mut self, data: &Value) -> Result<(), String> {
        let Some(choices) = data.get("choices").and_then(Value::as_array) else { return Ok(()) };
        if self.is_over && !choices.is_empty() {
            return ambiguous("an answer that goes on behind its end");
        }
        for (of, choice) in (0..).zip(choices) {
            let says = choice.get("index").map(index).transpose()?;
            if says.is_some_and(|says| says != of)
                || *self.choices_say.get_or_insert(says.is_some()) != says.is_some()
            {
                return ambiguous("a choice whose index is not its place");
            }
            for (key, is_whole) in [("delta", false), ("message", true)] {
                let Some(said) = choice.get(key) else { continue };
                let calls = said.get("tool_calls").and_then(Value::as_array);
                for call in calls.into_iter().flatten() {
                    // Of a whole message's, clients do not look at it.
                    let index = call.get("index").filter(|_| !is_whole).map(index).transpose()?;
                    for (form, key) in [(Form::Function, "function"), (Form::Custom, "custom")] {
                        let written = call.get(key).unwrap_or(&Value::Null);
                        // What comes before either is known may be of both.
                        if !written.is_object() && call.get(other(key)).is_some_and(Value::is_object) {
                            continue;
                        }
                        self.piece((of, index), form, is_whole, (text(call, "id"), written))?;
                    }
                }
                if let Some(function) = said.get("function_call").filter(|function| function.is_object()) {
                    self.piece((of, None), Form::Single, is_whole, ("", function))?;
                }
            }
            if choice.get("finish_reason").is_some_and(Value::is_string) {
                self.complete()?;
            }
        }
        Ok(())
    }

    /// A piece of one of OpenAI's calls, or a whole one. Clients join the pieces of a name, as they do those of the arguments;
    /// some providers say the same name again with each piece. What one index stands for is one call, with one id: a second
    /// id, or another name beside it, would replace the first for some clients, and be another call for others.
    fn piece(
        &mut self,
        (of, index): (u64, Option<u64>),
        form: Form,
        is_whole: bool,
        (id, written): (&str, &Value),
    ) -> Result<(), String> {
        let name = text(written, "name");
        let input = written.get(if form == Form::Custom { "input" } else { "arguments" });
        if is_whole {
            let at = self.begin((of, index), form, id, input);
            if let Some(call) = self.calls.get_mut(at) {
                call.is_whole = true;
            }
            self.name(at, name);
            return Ok(());
        }
        let mut alike = self.calls.iter().enumerate().filter(|(_, call)| {
            call.place.0 == of && !call.is_whole && (call.form == Form::Single) == (form == Form::Single)
        });
        if alike.clone().any(|(_, call)| call.place.1.is_some() != index.is_some()) {
            return ambiguous("tool calls with and without an index");
        }
        let known = alike.find(|(_, call)| call.form == form && call.place.1 == index).map(|(at, _)| at);
        let Some((at, call)) = known.and_then(|at| Some((at, self.calls.get_mut(at)?))) else {
            if !(name.is_empty() && id.is_empty() && input.is_none()) {
                let at = self.begin((of, index), form, id, input);
                self.name(at, name);
            }
            return Ok(());
        };
        let is_other_id = !id.is_empty() && !call.id.is_empty() && id != call.id;
        let is_named_anew = !name.is_empty() && call.number.is_some() && name != call.name;
        // Without an index, or with its id, a name is a call's beginning.
        if is_other_id || (is_named_anew && form != Form::Single && (index.is_none() || !id.is_empty())) {
            return ambiguous("two tool calls in one place");
        }
        call.input.push_str(&pieces(input));
        if call.id.is_empty() {
            id.clone_into(&mut call.id);
        }
        self.name(at, name);
        Ok(())
    }

    /// Something that may be a call; gives where it is.
    fn begin(&mut self, place: (u64, Option<u64>), form: Form, id: &str, input: Option<&Value>) -> usize {
        // An empty object stands where pieces are to come.
        let input = input.filter(|input| !input.as_object().is_some_and(serde_json::Map::is_empty));
        let (id, name, input) = (id.to_owned(), String::new(), pieces(input));
        self.calls.push(Growing { place, form, is_whole: false, id, name, input, number: None });
        self.calls.len() - 1
    }

    /// A name makes it a call, and so does a block that says that it is one.
    fn name(&mut self, at: usize, name: &str) {
        let Some(call) = self.calls.get_mut(at) else { return };
        if call.name != name {
            call.name.push_str(name);
        }
        if call.number.is_none() && (!name.is_empty() || call.form == Form::Block) {
            call.number = Some(self.named);
            self.named += 1;
        }
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

fn other(key: &str) -> &'static str {
    if key == "custom" { "function" } else { "custom" }
}

fn pieces(input: Option<&Value>) -> String {
    match input {
        None | Some(Value::Null) => String::new(),
        Some(Value::String(piece)) => piece.clone(),
        Some(whole) => whole.to_string(),
    }
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
