//! How much there is of an answer: of the model's words, and of memory. Pure.

use super::ProviderKind;
use serde_json::Value;

/// Fields of what a model says that it did not say itself.
const NOT_SAID: [&str; 4] = ["type", "role", "id", "index"];

/// Bytes of what an event says of the model's words, whatever they are of: text, thinking, a tool's input, an answer beside the
/// first. A call is charged by them where its provider does not tell what it cost, so they do not depend on whether anything
/// else of the event is understood.
pub fn said(kind: ProviderKind, event: &Value) -> usize {
    match kind {
        ProviderKind::Anthropic => {
            // Why it stopped is nothing that the model said.
            let is_end = event.get("type").is_some_and(|kind| kind == "message_delta");
            let places: &[&str] =
                if is_end { &[] } else { &["/delta", "/content_block", "/message/content", "/content"] };
            places.iter().filter_map(|place| event.pointer(place)).map(texts).sum()
        }
        ProviderKind::OpenAi => {
            let choices = event.get("choices").and_then(Value::as_array).into_iter().flatten();
            choices.flat_map(|choice| [choice.get("delta"), choice.get("message")]).flatten().map(texts).sum()
        }
    }
}

/// Bytes of the texts in a value.
fn texts(value: &Value) -> usize {
    match value {
        Value::String(text) => text.len(),
        Value::Array(items) => items.iter().map(texts).sum(),
        Value::Object(fields) => {
            let said = fields.iter().filter(|(key, _)| !NOT_SAID.contains(&key.as_str()));
            said.map(|(_, value)| texts(value)).sum()
        }
        _ => 0,
    }
}

/// Bytes that a value takes in memory, roughly.
pub(super) fn weight(value: &Value) -> usize {
    let inner = match value {
        Value::String(text) => text.len(),
        Value::Array(items) => items.iter().map(weight).sum(),
        Value::Object(fields) => fields_weight(fields),
        _ => 0,
    };
    size_of::<Value>() + inner
}

pub(super) fn fields_weight(fields: &serde_json::Map<String, Value>) -> usize {
    fields.iter().map(|(key, value)| 2 * size_of::<String>() + key.len() + weight(value)).sum()
}
