//! OpenAI's Responses at the HTTP endpoint; turns do not speak it.
//!
//! <https://platform.openai.com/docs/api-reference/responses> and `responses-streaming` beside it.

use super::RATE_LIMITS;
use crate::{
    http::{
        denials::{self, Form, Room},
        intents::{ClientMessage, ToolResult},
        relay::split_secrets::SplitSecrets,
        request::{Route, every, listed},
        tool_calls::{HOSTED, ToolCalls, no_item_is_stray},
    },
    message::{Block, raw},
    provider::{Answers, Decode, Endpoint, Usage, block_of, measure::text_bytes},
    redact::Redactor,
};
use decoder::Decoder;
use ringfence_policy::agents::config::Llm;
use serde::Deserialize;
use serde_json::{Value, json, value::RawValue};
use std::{borrow::Cow, collections::BTreeMap};

mod decoder;

/// Fields that refer to what the provider keeps: what an agent asks for is to pass here, and to be what it is charged for.
const KEPT: [&str; 3] = ["previous_response_id", "conversation", "prompt"];
/// An item that stands for one which the provider keeps.
const REFERENCE: &str = "item_reference";

/// A client's request, or an item of one, by its fields.
type Fields = BTreeMap<String, Box<RawValue>>;

/// The protocol.
pub(crate) struct Responses;

impl Answers for Responses {
    fn decoder(&self) -> Box<dyn Decode> {
        Box::new(Decoder::default())
    }

    fn text_bytes(&self, event: &Value) -> usize {
        event.get("delta").map_or(0, text_bytes)
    }
}

impl Endpoint for Responses {
    fn routes(&self) -> &'static [(&'static str, Route)] {
        &[("/responses", Route::Respond)]
    }

    fn path(&self, _: Route, _: &str) -> Cow<'static, str> {
        "responses".into()
    }

    fn limit_keys(&self, _: &Llm) -> &'static [&'static str] {
        // The older names are none here: a server that does not know them would go by no limit.
        &["max_output_tokens"]
    }

    fn own_fields(&self) -> &'static [&'static str] {
        &["input", "store", "background", "previous_response_id", "conversation", "prompt"]
    }

    fn keep_nothing(&self, llm: &Llm, request: &mut Fields) -> Result<(), String> {
        let is_fixed = |key: &str| llm.options.contains_key(key);
        let says = |key: &str| request.get(key).map(|value| value.get()).filter(|value| *value != "null");
        for key in KEPT.into_iter().filter(|key| !is_fixed(key)) {
            if says(key).is_some() {
                return Err(format!(
                    "{key} refers to what the provider keeps, and this endpoint has it keep nothing; send the whole \
                     conversation in input, with store false"
                ));
            }
        }
        if !is_fixed("background") && says("background").is_some_and(|background| background != "false") {
            return Err("background: an answer that is made in the background never passes this endpoint; ask without it".into());
        }
        for item in listed(request, "input") {
            if is_reference(&item)? {
                return Err(format!(
                    "input: an {REFERENCE} refers to what the provider keeps, and this endpoint has it keep nothing; send \
                     the item itself, with store false"
                ));
            }
        }
        if !is_fixed("store") {
            request.insert("store".into(), raw(&false));
        }
        Ok(())
    }

    fn more_tools(&self, request: &Fields) -> Result<Vec<Box<RawValue>>, String> {
        // What a search for tools found stands in the conversation; a choice among tools names some again.
        let mut holders = listed(request, "input");
        holders.extend(request.get("tool_choice").cloned());
        let lists = holders.iter().map(|holder| every(holder, "tools")).collect::<Result<Vec<_>, _>>()?;
        Ok(lists.into_iter().flatten().collect())
    }

    fn conversation(&self) -> &'static str {
        "input"
    }

    fn messages(&self, request: &Fields) -> Vec<Box<RawValue>> {
        let input = request.get(self.conversation());
        match input.and_then(|input| serde_json::from_str::<String>(input.get()).ok()) {
            Some(text) => vec![raw(&json!({ "role": "user", "content": text }))],
            None => listed(request, self.conversation()),
        }
    }

    fn ask_for_usage(&self, _: &mut Fields) -> Result<bool, String> {
        // Its streams have it in any case.
        Ok(false)
    }

    fn fit_thinking(&self, _: &mut Fields, _: Option<u64>) -> Result<(), String> {
        // An effort is no number of tokens.
        Ok(())
    }

    fn model(&self, model: &str) -> Value {
        super::model(model)
    }

    fn models(&self, models: &[&str]) -> Value {
        super::models(models)
    }

    fn error(&self, _: u16, kind: &str, message: &str) -> Value {
        super::error(kind, message)
    }

    fn error_event(&self, _: u16, kind: &str, message: &str) -> (&'static str, Value) {
        let data =
            json!({ "type": "error", "code": kind, "message": message, "param": null, "sequence_number": 0 });
        ("event: error\n", data)
    }

    fn rate_limit_prefix(&self) -> Option<&'static str> {
        Some(RATE_LIMITS)
    }

    fn tool_results(&self, message: &ClientMessage, raw: &RawValue) -> Vec<ToolResult> {
        let item = fields(raw);
        // What somebody says is no result, whatever it calls itself.
        if !message.role.is_empty() || !text_of(&item, "type").ends_with("_output") {
            return Vec::new();
        }
        let call = call_id(&item);
        let is_error = text_of(&item, "status") == "failed";
        let content = self.blocks(item.get("output").map(|output| &**output));
        call.map(|call| ToolResult { call, is_error, is_by_place: false, content }).into_iter().collect()
    }

    fn rooms<'a>(&self, raw: &'a RawValue) -> Vec<(ToolResult, Room<'a>)> {
        let message = serde_json::from_str::<ClientMessage>(raw.get());
        let results = message.map(|message| self.tool_results(&message, raw)).unwrap_or_default();
        results.into_iter().zip(room_of(raw)).collect()
    }

    fn call_said(&self, raw: &RawValue) -> Option<String> {
        let item = fields(raw);
        text_of(&item, "type").ends_with("_call").then(|| call_id(&item)).flatten()
    }

    fn blocks(&self, content: Option<&RawValue>) -> Vec<Block> {
        let Some(content) = content else { return Vec::new() };
        if let Ok(text) = serde_json::from_str::<String>(content.get()) {
            return vec![Block::text(&text)];
        }
        let part = |part: Box<RawValue>| match text_of(&fields(&part), "type").as_str() {
            "input_text" | "output_text" => vec![Block::text(&text_of(&fields(&part), "text"))],
            // What a shell wrote.
            "" => {
                let texts = ["stdout", "stderr"].map(|key| text_of(&fields(&part), key));
                texts.iter().filter(|text| !text.is_empty()).map(|text| Block::text(text)).collect()
            }
            _ => Block::parse(part).into_iter().collect(),
        };
        match serde_json::from_str::<Vec<Box<RawValue>>>(content.get()) {
            Ok(parts) => parts.into_iter().flat_map(part).collect(),
            Err(_) if content.get() == "null" => Vec::new(),
            // A tool may have answered with an object.
            Err(_) => vec![Block::text(content.get())],
        }
    }

    fn usage(&self, answer: &Value) -> Option<Usage> {
        answer.get("usage").and_then(decoder::usage)
    }

    fn stop_reason(&self, answer: &Value) -> Option<String> {
        decoder::stop_reason(answer)
    }

    fn whole_bytes(&self, event: &Value) -> usize {
        match event.get("type").and_then(Value::as_str) {
            Some("response.output_item.done") => event.get("item").map_or(0, text_bytes),
            _ => 0,
        }
    }

    fn content(&self, answer: &Value) -> Vec<Block> {
        let items = answer.get("output").and_then(Value::as_array).into_iter().flatten();
        items.filter_map(|item| block_of(item.as_object()?.clone())).collect()
    }

    fn is_misnamed(&self, name: &str, event: &Value) -> bool {
        let says = event.get("type").and_then(Value::as_str).unwrap_or_default();
        // An error may have no type, and nothing else has none.
        let is_error = event.get("error").is_some_and(|error| !error.is_null());
        let is_untold =
            says.is_empty() && (!is_error || event.get("response").or(event.get("item")).is_some());
        // A whole answer is no event.
        is_untold
            || (!name.is_empty() && !says.is_empty() && name != says)
            || (event.get("output").is_some() && says != HOSTED)
    }

    fn check_answer(&self, answer: &Value) -> Result<(), String> {
        no_item_is_stray(answer)
    }

    fn read_calls(&self, calls: &mut ToolCalls, data: &Value) -> Result<(), String> {
        calls.items(data)
    }

    fn event_usage(&self, event: &Value) -> (Option<Usage>, bool) {
        // One that failed has it, too.
        (event.pointer("/response/usage").and_then(decoder::usage), false)
    }

    fn hold_back(
        &self,
        split: &mut SplitSecrets,
        (number, event): (usize, &Value),
        redactor: &Redactor,
    ) -> Result<(), String> {
        split.parts(number, event, redactor)
    }
}

/// Where the result that an item is can take more, by the forms that the API has for each
/// (<https://platform.openai.com/docs/api-reference/responses/create>); those of other items are no texts.
fn room_of(item: &RawValue) -> Option<Room<'_>> {
    #[derive(Deserialize)]
    struct Kind<'a> {
        #[serde(borrow)]
        r#type: Cow<'a, str>,
    }
    let Kind { r#type } = serde_json::from_str(item.get()).ok()?;
    let of: fn(_) -> _ = match &*r#type {
        "function_call_output" | "custom_tool_call_output" => |output| Room::of(output, "input_text"),
        "apply_patch_call_output" => Room::of_text,
        "local_shell_call_output" => Room::of_json,
        "shell_call_output" => return room_of_shell(item),
        _ => return None,
    };
    Room::in_field(item, "output", Form::Text, of)
}

/// The same where it is a list of what a shell wrote: the end of its errors, if that may be as much longer.
fn room_of_shell(item: &RawValue) -> Option<Room<'_>> {
    #[derive(Deserialize)]
    struct Output<'a> {
        #[serde(borrow)]
        output: Vec<Written<'a>>,
        #[serde(default)]
        max_output_length: Option<usize>,
    }
    #[derive(Deserialize)]
    struct Written<'a> {
        #[serde(borrow)]
        stdout: Cow<'a, str>,
        #[serde(borrow)]
        stderr: &'a RawValue,
    }
    let Output { output, max_output_length } = serde_json::from_str(item.get()).ok()?;
    if let Some(most) = max_output_length {
        let length = |written: &Written<'_>| written.stdout.len().saturating_add(written.stderr.get().len());
        let all: usize = output.iter().map(length).sum();
        // A line's end, twice.
        (all.saturating_add(denials::LONGEST + 2) <= most).then_some(())?;
    }
    Room::of_text(output.last()?.stderr)
}

/// An item's fields; what is no object has none. Of one that is there twice the last counts.
fn fields(item: &RawValue) -> Fields {
    serde_json::from_str(item.get()).unwrap_or_default()
}

/// Whether an item stands for one which the provider keeps. One that says neither what it is nor who speaks is taken for one.
fn is_reference(item: &RawValue) -> Result<bool, String> {
    let kinds = every(item, "type")?;
    let says =
        |kind: &RawValue| serde_json::from_str::<String>(kind.get()).is_ok_and(|kind| kind == REFERENCE);
    let is_untold = kinds.iter().all(|kind| kind.get() == "null") && item.get().starts_with('{');
    Ok(kinds.iter().any(|kind| says(kind)) || (is_untold && every(item, "role")?.is_empty()))
}

/// A field that is a text; another has none.
fn text_of(item: &Fields, key: &str) -> String {
    item.get(key).and_then(|value| serde_json::from_str(value.get()).ok()).unwrap_or_default()
}

/// The provider's id of the call that an item is, or whose result it is.
fn call_id(item: &Fields) -> Option<String> {
    ["call_id", "id"].iter().map(|key| text_of(item, key)).find(|id| !id.is_empty())
}

#[cfg(test)]
mod tests;
