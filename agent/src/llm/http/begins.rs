//! The tool calls in an answer, as a client may read them: wherever it may find one, whatever else the answer says. Pure.
//!
//! A client decides for itself which of an answer it believes. So what is on record are not the calls of a well-formed
//! answer, but everything in it that has a tool's name: also where the answer breaks off, gives another reason to stop, or
//! does not follow its own protocol.

use crate::llm::{message::ToolCall, registry::ProviderKind};
use serde_json::{Value, value::RawValue};

/// Most tool calls of an answer that are relayed.
const MAX_CALLS: usize = 256;

/// A call as it grows.
#[derive(Debug)]
struct Growing {
    /// Which of the answer's choices, and which of its blocks or calls.
    place: (u64, u64),
    id: String,
    name: String,
    input: String,
}

/// The calls of an answer as it grows.
#[derive(Debug, Default)]
pub(super) struct Begins {
    calls: Vec<Growing>,
    told: usize,
}

impl Begins {
    /// Takes in an event, or a whole answer.
    ///
    /// # Errors
    /// There are more than [`MAX_CALLS`].
    pub(super) fn read(&mut self, kind: ProviderKind, data: &Value) -> Result<(), String> {
        match kind {
            ProviderKind::Anthropic => self.blocks(data),
            ProviderKind::OpenAi => self.choices(data),
        }
        match self.calls.len() {
            0..=MAX_CALLS => Ok(()),
            _ => Err(format!("the provider sent more than {MAX_CALLS} tool calls in one answer")),
        }
    }

    /// How many calls began since this was asked last.
    pub(super) fn fresh(&mut self) -> usize {
        let all = self.calls.len();
        all - std::mem::replace(&mut self.told, all)
    }

    /// The calls, in the order in which they began.
    pub(super) fn finish(self) -> Vec<ToolCall> {
        let call = |call: Growing| {
            let Growing { id, name, input, .. } = call;
            ToolCall { id, name, input: json(input) }
        };
        self.calls.into_iter().map(call).collect()
    }

    fn blocks(&mut self, data: &Value) {
        let index = data.get("index").and_then(Value::as_u64).unwrap_or(0);
        let whole = [data.get("content"), data.pointer("/message/content")].into_iter().flatten();
        let whole = whole.filter_map(Value::as_array).flat_map(|blocks| (0..).zip(blocks));
        let begun = data.get("content_block").map(|block| (index, block));
        for (index, block) in whole.chain(begun) {
            if block.get("type").and_then(Value::as_str) == Some("tool_use") {
                self.begin((0, index), block, block.get("input"));
            }
        }
        if let Some(piece) = data.pointer("/delta/partial_json").and_then(Value::as_str)
            && let Some(call) = self.calls.iter_mut().rfind(|call| call.place.1 == index)
        {
            call.input.push_str(piece);
        }
    }

    fn choices(&mut self, data: &Value) {
        for choice in data.get("choices").and_then(Value::as_array).into_iter().flatten() {
            let of = choice.get("index").and_then(Value::as_u64).unwrap_or(0);
            for said in [choice.get("delta"), choice.get("message")].into_iter().flatten() {
                let calls = said.get("tool_calls").and_then(Value::as_array);
                for call in calls.into_iter().flatten() {
                    let function = call.get("function").unwrap_or(&Value::Null);
                    self.piece(of, call.get("index").and_then(Value::as_u64), call, function);
                }
                // From before there were several.
                if let Some(function) = said.get("function_call").filter(|function| function.is_object()) {
                    self.piece(of, Some(u64::MAX), &Value::Null, function);
                }
            }
        }
    }

    /// A piece of one of OpenAI's calls: a name begins one, unless it is said again of the last at that place.
    fn piece(&mut self, of: u64, index: Option<u64>, call: &Value, function: &Value) {
        let text = |value: &Value, key: &str| value.get(key).and_then(Value::as_str).map(str::to_owned);
        let id = text(call, "id").filter(|id| !id.is_empty());
        let named = text(function, "name").is_some_and(|name| !name.is_empty());
        let next = self.calls.iter().filter(|call| call.place.0 == of).count() as u64;
        let last = self
            .calls
            .iter_mut()
            .rfind(|call| call.place.0 == of && index.is_none_or(|index| call.place.1 == index));
        let arguments = function.get("arguments");
        match last {
            Some(last) if !named || (index.is_some() && id.as_ref().is_none_or(|id| *id == last.id)) => {
                last.input.push_str(&pieces(arguments));
            }
            _ if !named => {}
            _ => {
                let mut begun = function.clone();
                begun["id"] = Value::from(id.unwrap_or_default());
                self.begin((of, index.unwrap_or(next)), &begun, arguments);
            }
        }
    }

    fn begin(&mut self, place: (u64, u64), call: &Value, input: Option<&Value>) {
        let text = |key: &str| call.get(key).and_then(Value::as_str).unwrap_or_default().to_owned();
        // An empty object stands where pieces are to come.
        let input = input.filter(|input| !input.as_object().is_some_and(serde_json::Map::is_empty));
        self.calls.push(Growing { place, id: text("id"), name: text("name"), input: pieces(input) });
    }
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
mod tests {
    use super::*;
    use ProviderKind::{Anthropic, OpenAi};
    use serde_json::json;

    fn calls(kind: ProviderKind, events: &[Value]) -> Vec<(String, String, String)> {
        let mut begins = Begins::default();
        events.iter().for_each(|event| begins.read(kind, event).unwrap());
        assert_eq!((begins.fresh(), begins.fresh()), (begins.calls.len(), 0));
        begins.finish().into_iter().map(|call| (call.id, call.name, call.input.get().to_owned())).collect()
    }

    fn call(id: &str, name: &str, input: &str) -> (String, String, String) {
        (id.into(), name.into(), input.into())
    }

    #[test]
    fn calls_are_found_where_a_lenient_client_finds_them() {
        let block = |id: &str| json!({ "type": "tool_use", "id": id, "name": "t", "input": {} });
        let start = |index: u64, id: &str| json!({ "index": index, "content_block": block(id) });
        let piece = |index: u64, text: &str| json!({ "index": index, "delta": { "partial_json": text } });
        // One id twice, an index that is out of order, pieces of either, and blocks that came with the beginning.
        let events = [
            json!({ "type": "message_start", "message": { "content": [block("early")] } }),
            start(7, "a"),
            start(2, "a"),
            piece(7, "{\"x\":"),
            piece(2, "{}"),
            piece(7, "1}"),
        ];
        let expected = [call("early", "t", "{}"), call("a", "t", "{\"x\":1}"), call("a", "t", "{}")];
        assert_eq!(calls(Anthropic, &events), expected);
        assert_eq!(calls(Anthropic, &[json!({ "content": [block(""), 3, block("b")] })]).len(), 2);

        let delta = |call: Value| json!({ "choices": [{ "index": 0, "delta": { "tool_calls": [call] } }] });
        let events = [
            delta(json!({ "index": 0, "id": "a", "function": { "name": "t", "arguments": "" } })),
            delta(json!({ "index": 0, "function": { "arguments": "{\"x\":1}" } })),
            delta(json!({ "index": 0, "id": "a", "function": { "name": "t", "arguments": " " } })),
            // Another index, the same id; and the same index, another id.
            delta(json!({ "index": 1, "id": "a", "function": { "name": "u" } })),
            delta(json!({ "index": 1, "id": "b", "function": { "name": "v", "arguments": {"y": 2} } })),
            json!({ "choices": [{ "index": 3, "delta": { "tool_calls": [{ "index": 0, "function": { "name": "w" } }] } }] }),
            json!({ "choices": [{ "delta": { "function_call": { "name": "old", "arguments": "no json" } } }] }),
        ];
        let expected = [
            call("a", "t", "{\"x\":1}"),
            call("a", "u", "{}"),
            call("b", "v", "{\"y\":2}"),
            call("", "w", "{}"),
            call("", "old", "\"no json\""),
        ];
        assert_eq!(calls(OpenAi, &events), expected);
        let message = json!({ "tool_calls": [{ "id": "a", "function": { "name": "t", "arguments": "{}" } },
            { "id": "a", "function": { "name": "t", "arguments": "{}" } }] });
        assert_eq!(calls(OpenAi, &[json!({ "choices": [{ "message": message }] })]).len(), 2);
        assert!(calls(OpenAi, &[json!({ "choices": [{ "delta": { "content": "t" } }] })]).is_empty());
    }

    #[test]
    fn an_answer_has_only_so_many() {
        let block = json!({ "content_block": { "type": "tool_use", "id": "a", "name": "t" } });
        let mut begins = Begins::default();
        assert!((0..MAX_CALLS).all(|_| begins.read(Anthropic, &block).is_ok()));
        assert!(begins.read(Anthropic, &block).is_err());
    }
}
