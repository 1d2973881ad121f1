//! OpenAI's Chat Completions at the HTTP endpoint.

use super::{ChatCompletions, INCLUDE_USAGE, PATH, RATE_LIMITS, decoder};
use crate::{
    http::{
        denials::{Form, Room},
        intents::{ClientMessage, ToolResult, blocks},
        relay::split_secrets::SplitSecrets,
        request::{Route, folded},
        tool_calls::{ToolCalls, none_is_stray},
    },
    message::{Block, raw},
    provider::{Endpoint, Usage, block_of},
    redact::Redactor,
};
use ringfence_policy::agents::config::Llm;
use serde_json::{Map, Value, json, value::RawValue};
use std::{borrow::Cow, collections::BTreeMap};

impl Endpoint for ChatCompletions {
    fn routes(&self) -> &'static [(&'static str, Route)] {
        &[("/chat/completions", Route::Complete)]
    }

    fn path(&self, _: Route, _: &str) -> Cow<'static, str> {
        PATH.into()
    }

    fn limit_keys(&self, llm: &Llm) -> &'static [&'static str] {
        // OpenAI replaced the older name, which compatible servers still have.
        match llm.base_url {
            Some(_) => &["max_tokens", "max_completion_tokens"],
            None => &["max_completion_tokens", "max_tokens"],
        }
    }

    fn own_fields(&self) -> &'static [&'static str] {
        &["messages"]
    }

    fn keep_nothing(&self, _: &Llm, _: &mut BTreeMap<String, Box<RawValue>>) -> Result<(), String> {
        // Each request has all of its conversation.
        Ok(())
    }

    fn more_tools(&self, _: &BTreeMap<String, Box<RawValue>>) -> Result<Vec<Box<RawValue>>, String> {
        Ok(Vec::new())
    }

    fn conversation(&self) -> &'static str {
        "messages"
    }

    fn ask_for_usage(&self, request: &mut BTreeMap<String, Box<RawValue>>) -> Result<bool, String> {
        let asked = request.get("stream_options").map_or("null", |options| options.get());
        let asked: Option<Map<String, Value>> =
            serde_json::from_str(asked).map_err(|_| "stream_options is to be an object")?;
        let mut options = asked.unwrap_or_default();
        let is_ours = options.get(INCLUDE_USAGE) != Some(&json!(true));
        // Nothing that looks like it counts beside it.
        options.retain(|key, _| folded(key) != INCLUDE_USAGE);
        options.insert(INCLUDE_USAGE.into(), json!(true));
        request.insert("stream_options".into(), raw(&options));
        Ok(is_ours)
    }

    fn fit_thinking(
        &self,
        _request: &mut BTreeMap<String, Box<RawValue>>,
        _asked: Option<u64>,
    ) -> Result<(), String> {
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

    fn error_event(&self, status: u16, kind: &str, message: &str) -> (&'static str, Value) {
        ("", self.error(status, kind, message))
    }

    fn rate_limit_prefix(&self) -> Option<&'static str> {
        Some(RATE_LIMITS)
    }

    fn tool_results(&self, message: &ClientMessage, _: &RawValue) -> Vec<ToolResult> {
        let call = message.tool_call_id.clone().filter(|_| message.role == "tool");
        let result = |call| ToolResult {
            call,
            is_error: false,
            is_by_place: false,
            content: blocks(message.content.as_deref()),
        };
        call.into_iter().map(result).collect()
    }

    fn rooms<'a>(&self, raw: &'a RawValue) -> Vec<(ToolResult, Room<'a>)> {
        let room = |raw| Room::in_field(raw, "content", Form::Text, |content| Room::of(content, "text"));
        let message = serde_json::from_str::<ClientMessage>(raw.get());
        let results = message.map(|message| self.tool_results(&message, raw)).unwrap_or_default();
        results.into_iter().zip(room(raw)).collect()
    }

    fn call_said(&self, _: &RawValue) -> Option<String> {
        // The model's messages have its calls in them.
        None
    }

    fn blocks(&self, content: Option<&RawValue>) -> Vec<Block> {
        blocks(content)
    }

    fn usage(&self, answer: &Value) -> Option<Usage> {
        answer.get("usage").and_then(decoder::usage)
    }

    fn stop_reason(&self, answer: &Value) -> Option<String> {
        answer.pointer("/choices/0/finish_reason").and_then(Value::as_str).map(str::to_owned)
    }

    fn whole_bytes(&self, _: &Value) -> usize {
        0
    }

    fn content(&self, answer: &Value) -> Vec<Block> {
        let message = answer.pointer("/choices/0/message").and_then(Value::as_object).cloned();
        let block = message.and_then(|mut message| {
            message.insert("type".into(), "message".into());
            block_of(message)
        });
        block.into_iter().collect()
    }

    fn is_misnamed(&self, name: &str, event: &Value) -> bool {
        event.get("choices").is_some() && (name == "error" || name.starts_with("thread."))
    }

    fn check_answer(&self, answer: &Value) -> Result<(), String> {
        none_is_stray(answer)
    }

    fn read_calls(&self, calls: &mut ToolCalls, data: &Value) -> Result<(), String> {
        calls.choices(data)
    }

    fn event_usage(&self, event: &Value) -> (Option<Usage>, bool) {
        let reported = event.get("usage");
        let is_empty = event.get("choices").and_then(Value::as_array).is_some_and(Vec::is_empty);
        let is_alone = is_empty && reported.is_some_and(Value::is_object);
        (reported.and_then(decoder::usage), is_alone)
    }

    fn hold_back(
        &self,
        split: &mut SplitSecrets,
        (number, event): (usize, &Value),
        redactor: &Redactor,
    ) -> Result<(), String> {
        split.choices(number, event, redactor)
    }
}
