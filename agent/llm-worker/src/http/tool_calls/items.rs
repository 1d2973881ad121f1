//! Where OpenAI's newer form has tool calls: items, each with its place in the answer, in pieces, then whole, and at the
//! end once more. Pure.

use super::{Form, Growth, ToolCalls, Value, ambiguous, index, list, no_alike, object, present, text, texty};
use crate::{http::request::folded, redact::Redactor};
use serde_json::json;

/// What an item that is a call ends in.
const CALL: &str = "_call";
/// Calls that the provider runs itself.
const PROVIDERS: [&str; 5] =
    ["web_search_call", "file_search_call", "code_interpreter_call", "image_generation_call", "mcp_call"];
/// Most items of an answer.
const MAX_ITEMS: usize = 4096;
/// Fields of an item that say nothing of what is to be done.
const NOT_INPUT: [&str; 4] = ["type", "id", "call_id", "status"];
/// Fields that decide which call an item is.
const FIELDS: [&str; 9] =
    ["type", "id", "call_id", "status", "name", "namespace", "arguments", "input", "execution"];
/// The same of an event.
const EVENT: [&str; 10] =
    ["type", "output_index", "item_id", "item", "name", "delta", "arguments", "input", "response", "output"];

/// What the provider's own shell printed, whose field has the name of an answer's items.
pub(crate) const HOSTED: &str = "response.shell_call_output_content.done";
/// Events whose `output` is all that there is.
const ENDS: [&str; 3] = ["response.completed", "response.incomplete", "response.failed"];

/// One of an answer's items.
#[derive(Debug)]
pub(super) struct ItemState {
    /// Where its call is, if it is one.
    call: Option<usize>,
    kind: String,
    id: String,
    /// As it is there, without a namespace.
    name: String,
    /// Its input as a whole, once that was said.
    stated: Option<String>,
    is_done: bool,
}

impl ItemState {
    /// Bytes that it takes in memory.
    pub(super) fn held(&self) -> usize {
        let stated = self.stated.as_ref().map_or(0, String::capacity);
        size_of::<Self>() + self.kind.capacity() + self.id.capacity() + self.name.capacity() + stated
    }
}

/// A call as an item has it.
#[derive(Debug, PartialEq, Eq)]
struct Described {
    form: Form,
    id: String,
    name: String,
    input: String,
}

/// Whether an item is a call that the client is to run.
pub(crate) fn is_clients(item: &Value) -> bool {
    let kind = text(item, "type");
    let is_servers = kind == "tool_search_call" && text(item, "execution") == "server";
    kind.ends_with(CALL) && !PROVIDERS.contains(&kind) && !is_servers
}

/// The call that an item is, if it is one of the client's.
fn described(item: &Value) -> Result<Option<Described>, String> {
    if !item.is_object() {
        return ambiguous("an item that is no object");
    }
    no_alike(item, &FIELDS)?;
    let kind = texty(item, "type")?;
    if folded(kind) != kind && folded(kind).ends_with(CALL) {
        return ambiguous("a type in another case");
    }
    if !is_clients(item) {
        return Ok(None);
    }
    let (id, name) = (texty(item, "call_id")?, texty(item, "name")?);
    let id = if id.is_empty() { texty(item, "id")? } else { id }.to_owned();
    let form = match kind {
        "function_call" => Form::Function,
        "custom_tool_call" => Form::Custom,
        _ => {
            let name = kind.strip_suffix(CALL).unwrap_or(kind).to_owned();
            let fields = item.as_object().into_iter().flatten();
            let input: serde_json::Map<String, Value> = fields
                .filter(|(key, _)| !NOT_INPUT.contains(&key.as_str()))
                .map(|(key, value)| (key.clone(), value.clone()))
                .collect();
            return Ok(Some(Described {
                form: Form::Action,
                id,
                name,
                input: Value::from(input).to_string(),
            }));
        }
    };
    let input = texty(item, if form == Form::Custom { "input" } else { "arguments" })?.to_owned();
    if name.is_empty() {
        return ambiguous("a tool call without a name");
    }
    let name = match texty(item, "namespace")? {
        "" => name.to_owned(),
        space => format!("{space}.{name}"),
    };
    Ok(Some(Described { form, id, name, input }))
}

impl ToolCalls {
    /// Some clients go by an item's index as a place in their list, some by its id, some add to the newest; some take what
    /// the pieces are, some the whole item, some the answer at the end. So all of these are to say the same.
    pub(crate) fn items(&mut self, data: &Value) -> Result<(), String> {
        no_alike(data, &EVENT)?;
        let says = texty(data, "type")?;
        let item = present(data.get("item"));
        let response = object(data, "response")?.unwrap_or(&Value::Null);
        no_alike(response, &["output"])?;
        if let Some(output) = present(data.get("output")).filter(|_| says != HOSTED) {
            let is_event = item.is_some() || !response.is_null() || !self.items.is_empty();
            if is_event || self.is_over || !output.is_array() {
                return ambiguous("an answer that is an event, too");
            }
            return list(data, "output")?.iter().try_for_each(|item| self.whole_item(item));
        }
        let said = list(response, "output")?;
        let is_end = ENDS.contains(&says);
        let (begins, ends) = (says == "response.output_item.added", says == "response.output_item.done");
        if (item.is_some() && !begins && !ends) || (!said.is_empty() && !is_end) {
            return ambiguous("an event that is not of its type");
        }
        let piece = match says {
            "response.function_call_arguments.delta" | "response.function_call_arguments.done" => {
                Some((Form::Function, "arguments"))
            }
            "response.custom_tool_call_input.delta" | "response.custom_tool_call_input.done" => {
                Some((Form::Custom, "input"))
            }
            _ => None,
        };
        if self.is_over && (is_end || begins || ends || piece.is_some()) {
            return ambiguous("an answer that goes on behind its end");
        }
        if is_end {
            self.agree_with(said)?;
            self.is_over = true;
            self.close(None);
            return Ok(());
        }
        if let Some((form, key)) = piece {
            let key = if says.ends_with(".delta") { "delta" } else { key };
            return self.item_piece(data, form, key);
        }
        let Some(item) = item.filter(|_| begins || ends) else {
            return match begins || ends {
                true => ambiguous("an item that is not there"),
                false => Ok(()),
            };
        };
        let (place, next) =
            (index(data.get("output_index").unwrap_or(&Value::Null))?, self.items.len() as u64);
        match () {
            // Some clients count those that began, others go by the index.
            () if place == next && *self.items_begin.get_or_insert(begins) != begins => {
                ambiguous("items that began and items that did not")
            }
            () if place == next => self.begin_item(item, ends),
            () if ends => self.end_item(place as usize, item),
            () => ambiguous("an item whose index is not its place"),
        }
    }

    /// An item of an answer that came whole.
    fn whole_item(&mut self, item: &Value) -> Result<(), String> {
        self.begin_item(item, true)
    }

    /// The next item; `is_whole`: there are no pieces of it.
    fn begin_item(&mut self, item: &Value, is_whole: bool) -> Result<(), String> {
        let described = described(item)?;
        let (kind, id) = (texty(item, "type")?.to_owned(), texty(item, "id")?.to_owned());
        if !id.is_empty() && self.items.iter().any(|other| other.id == id) {
            return ambiguous("two items of one id");
        }
        if self.items.len() >= MAX_ITEMS {
            return Err(format!("the provider sent more than {MAX_ITEMS} items in one answer"));
        }
        let name = text(item, "name").to_owned();
        let mut state = ItemState { call: None, kind, id, name, stated: None, is_done: is_whole };
        if let Some(Described { form, id, name, input }) = described {
            // Some clients take it for the end of the one before.
            let is_before = |form| matches!(form, Form::Function | Form::Custom);
            let before = self.calls.iter_mut().filter(|call| is_before(call.form));
            before.for_each(|call| call.growth = Growth::Closed);
            let at = self.begin((0, Some(self.items.len() as u64)), form, &id)?;
            self.name(at, &name)?;
            if let Some(call) = self.calls.get_mut(at) {
                // What stands there from the beginning is extended by some clients, and replaced by others.
                if is_whole || !input.is_empty() {
                    call.take(input.clone());
                }
                // An action may still change until it is done.
                if !is_whole && form == Form::Action {
                    call.growth = Growth::Open;
                }
            }
            state.call = Some(at);
            state.stated = is_whole.then_some(input);
        }
        self.items.push(state);
        Ok(())
    }

    /// An item that began is whole.
    fn end_item(&mut self, place: usize, item: &Value) -> Result<(), String> {
        let described = described(item)?;
        let (kind, id) = (texty(item, "type")?, texty(item, "id")?);
        let Some(begun) = self.items.get_mut(place).filter(|begun| !begun.is_done) else {
            return ambiguous("an item that ends twice");
        };
        let is_other_id = !id.is_empty() && !begun.id.is_empty() && begun.id != id;
        if begun.kind != kind || is_other_id {
            return ambiguous("an item that ends as another");
        }
        begun.is_done = true;
        self.state(place, described)
    }

    /// What a call is as a whole.
    fn state(&mut self, place: usize, described: Option<Described>) -> Result<(), String> {
        const OTHER: &str = "an item that ends as another";
        let Some(item) = self.items.get_mut(place) else { return Ok(()) };
        let call = item.call.and_then(|at| self.calls.get_mut(at));
        let (described, call) = match (described, call) {
            (None, None) => return Ok(()),
            (Some(described), Some(call)) => (described, call),
            _ => return ambiguous(OTHER),
        };
        if (call.form, &call.id, &call.name) != (described.form, &described.id, &described.name) {
            return ambiguous(OTHER);
        }
        let input = described.input;
        match &item.stated {
            Some(stated) if *stated == input => {}
            Some(_) => return ambiguous("two inputs of one tool call"),
            None if call.form == Form::Action => {
                call.take(input.clone());
                item.stated = Some(input);
            }
            None => {
                // Blanks behind JSON are none of it, and a text's are.
                let trimmed = |text: &str| match call.form {
                    Form::Function => text.trim_end_matches([' ', '\t', '\n', '\r']).to_owned(),
                    _ => text.to_owned(),
                };
                self.contested.push((trimmed(call.input.text()), trimmed(&input)));
                call.growth = Growth::Closed;
                item.stated = Some(input);
            }
        }
        Ok(())
    }

    /// A piece of a call's input; or all of it, once more.
    fn item_piece(&mut self, data: &Value, form: Form, key: &str) -> Result<(), String> {
        let place = index(data.get("output_index").unwrap_or(&Value::Null))? as usize;
        let is_newest = place + 1 == self.items.len();
        let Some(item) = self.items.get(place).filter(|item| is_newest && !item.is_done) else {
            return ambiguous("a piece of an item that is not open, or not the newest");
        };
        let of = texty(data, "item_id")?;
        if !of.is_empty() && !item.id.is_empty() && of != item.id {
            return ambiguous("a piece of another item than its index says");
        }
        let call = item.call.and_then(|at| self.calls.get_mut(at)).filter(|call| call.form == form);
        let Some(call) = call else { return ambiguous("a piece of an input for what takes none") };
        let Some(said) = data.get(key).and_then(Value::as_str) else {
            return ambiguous("a piece of an input that is no text");
        };
        if key == "delta" {
            return match item.stated {
                Some(_) => ambiguous("an input that goes on behind its end"),
                None => call.grow(said),
            };
        }
        let name = texty(data, "name")?;
        if !name.is_empty() && name != item.name {
            return ambiguous("two names of one tool call");
        }
        let (id, name) = (call.id.clone(), call.name.clone());
        self.state(place, Some(Described { form, id, name, input: said.to_owned() }))
    }

    /// What an answer has at its end is what it had before; some servers have nothing there.
    fn agree_with(&mut self, said: &[Value]) -> Result<(), String> {
        const OTHER: &str = "other tool calls at its end than before";
        if self.items.is_empty() {
            return said.iter().try_for_each(|item| self.whole_item(item));
        }
        if said.is_empty() {
            return Ok(());
        }
        let calls: Vec<usize> = (0..self.items.len())
            .filter(|place| self.items.get(*place).is_some_and(|item| item.call.is_some()))
            .collect();
        let mut places = calls.into_iter();
        for item in said {
            let Some(described) = described(item)? else { continue };
            let Some(place) = places.next() else { return ambiguous(OTHER) };
            self.state(place, Some(described))?;
        }
        match places.next() {
            Some(_) => ambiguous(OTHER),
            None => Ok(()),
        }
    }

    /// Whether the inputs that were said as a whole are what their pieces are. A credential in pieces is taken out of what is
    /// whole, and not of those.
    ///
    /// # Errors
    /// One is not.
    pub(in super::super) fn agrees(&mut self, redactor: &Redactor) -> Result<(), String> {
        for (joined, stated) in std::mem::take(&mut self.contested) {
            let clean = |text: &str| redactor.value(json!({ "input": text }));
            // None at all are the pieces of an empty object.
            let is_empty = joined.is_empty() && stated.trim() == "{}";
            if !is_empty && joined != stated && clean(&joined) != json!({ "input": stated }) {
                return ambiguous("an input that is not what its pieces are");
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
