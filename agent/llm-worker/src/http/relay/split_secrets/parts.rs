//! Where the events of OpenAI's newer form have pieces of what clients join. Pure.

use serde_json::Value;

/// What pieces of an answer's text are of.
pub(super) const TEXT: &str = "output_text";
/// The same of a function's arguments, and of a tool's that takes a text.
const ARGUMENTS: &str = "function_call_arguments";
const INPUT: &str = "custom_tool_call_input";

/// A piece.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Part {
    /// What it is of, as its events are called.
    pub(super) family: String,
    /// Which item, and which of its parts.
    pub(super) place: (u64, u64),
    /// Where in the event it is.
    pub(super) pointer: String,
}

/// The pieces in an event.
pub(super) fn of(event: &Value) -> Vec<Part> {
    let says = event.get("type").and_then(Value::as_str).unwrap_or_default();
    let number = |key: &str| event.get(key).and_then(Value::as_u64);
    let item = number("output_index").unwrap_or_default();
    let place = (item, number("content_index").or(number("summary_index")).unwrap_or_default());
    let says = says.strip_prefix("response.").unwrap_or(says);
    if event.get("delta").is_some() {
        let family = says.strip_suffix(".delta").unwrap_or(says).to_owned();
        return vec![Part { family, place, pointer: "/delta".into() }];
    }
    match says {
        "content_part.added" | "reasoning_summary_part.added" => begun(event, "/part", place),
        "output_item.added" => {
            let list = |key: &str| event.pointer(&format!("/item/{key}")).and_then(Value::as_array);
            let listed = ["content", "summary"].into_iter().flat_map(|key| {
                let parts = 0..list(key).map_or(0, Vec::len);
                parts.flat_map(move |nth| begun(event, &format!("/item/{key}/{nth}"), (item, nth as u64)))
            });
            let alone = [(ARGUMENTS, "/item/arguments"), (INPUT, "/item/input")];
            let alone = alone.map(|(family, pointer)| Part {
                family: family.to_owned(),
                place: (item, 0),
                pointer: pointer.to_owned(),
            });
            listed.chain(alone).collect()
        }
        _ => Vec::new(),
    }
}

/// The item that an event is the end of.
pub(super) fn over(event: &Value) -> Option<u64> {
    let is_end = event.get("type").is_some_and(|says| says == "response.output_item.done");
    event.get("output_index").and_then(Value::as_u64).filter(|_| is_end)
}

/// All texts of an answer that is there as a whole once more, or of an item, as some clients join them.
pub(super) fn whole_text(event: &Value) -> String {
    let output = event.pointer("/response/output").and_then(Value::as_array).into_iter().flatten();
    let parts = output.chain(event.get("item")).filter_map(|item| item.get("content")?.as_array()).flatten();
    let texts = parts.filter(|part| part.get("type").is_some_and(|kind| kind == TEXT));
    texts.filter_map(|part| part.get("text")?.as_str()).collect()
}

/// What a part begins with.
fn begun(event: &Value, pointer: &str, place: (u64, u64)) -> Vec<Part> {
    let says = event.pointer(&format!("{pointer}/type")).and_then(Value::as_str).unwrap_or_default();
    let family = match says {
        "summary_text" => "reasoning_summary_text",
        other => other,
    };
    ["text", "refusal"]
        .into_iter()
        .map(|key| Part { family: family.to_owned(), place, pointer: format!("{pointer}/{key}") })
        .collect()
}
