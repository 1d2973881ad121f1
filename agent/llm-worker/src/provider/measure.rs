//! How much there is of an answer: of the model's words, and of memory. Pure.

use serde_json::Value;

/// Fields of what a model says that it did not say itself.
const NOT_SAID: [&str; 4] = ["type", "role", "id", "index"];

/// Bytes of the texts in a value.
pub(super) fn text_bytes(value: &Value) -> usize {
    match value {
        Value::String(text) => text.len(),
        Value::Array(items) => items.iter().map(text_bytes).sum(),
        Value::Object(fields) => {
            let said = fields.iter().filter(|(key, _)| !NOT_SAID.contains(&key.as_str()));
            said.map(|(_, value)| text_bytes(value)).sum()
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
