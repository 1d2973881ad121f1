//! Anthropic's Messages at the HTTP endpoint.

use super::{Messages, PATH, decoder};
use crate::{
    http::{
        denials::{Form, Room},
        intents::{ClientMessage, ToolResult, blocks},
        relay::split_secrets::SplitSecrets,
        request::Route,
        tool_calls::ToolCalls,
    },
    message::{Block, raw},
    provider::{Endpoint, Usage, block_of},
    redact::Redactor,
};
use ringfence_policy::agents::config::Llm;
use serde::Deserialize;
use serde_json::{Value, json, value::RawValue};
use std::{borrow::Cow, collections::BTreeMap};

/// The least budget for thinking that its API takes, tokens
/// (https://docs.claude.com/en/docs/build-with-claude/extended-thinking).
const LEAST_THINKING: u64 = 1024;

impl Endpoint for Messages {
    fn routes(&self) -> &'static [(&'static str, Route)] {
        &[("/messages", Route::Complete), ("/messages/count_tokens", Route::CountTokens)]
    }

    fn path(&self, route: Route, _: &str) -> Cow<'static, str> {
        match route {
            Route::CountTokens => "v1/messages/count_tokens",
            _ => PATH,
        }
        .into()
    }

    fn limit_keys(&self, _: &Llm) -> &'static [&'static str] {
        &["max_tokens", "max_completion_tokens"]
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

    fn ask_for_usage(&self, _request: &mut BTreeMap<String, Box<RawValue>>) -> Result<bool, String> {
        // Its streams have it in any case.
        Ok(false)
    }

    fn fit_thinking(
        &self,
        request: &mut BTreeMap<String, Box<RawValue>>,
        asked: Option<u64>,
    ) -> Result<(), String> {
        // What cannot be read is its API's to refuse, and so is a budget that was none before.
        let number = |value: &RawValue| value.get().parse::<u64>().ok();
        let thinking = request.get("thinking").map(|thinking| thinking.get());
        let thinking = thinking.and_then(|text| serde_json::from_str(text).ok());
        let Some(mut thinking): Option<BTreeMap<String, Box<RawValue>>> = thinking else { return Ok(()) };
        let budget = thinking.get("budget_tokens").and_then(|value| number(value));
        let most = request.get("max_tokens").and_then(|value| number(value));
        let (Some(budget), Some(most), Some(asked)) = (budget, most, asked) else { return Ok(()) };
        if budget < most || budget >= asked {
            return Ok(());
        }
        let left = most.saturating_sub(1);
        if left < LEAST_THINKING {
            return Err(format!(
                "thinking: the profile's max_tokens, {most}, leaves no room for thinking, which takes {LEAST_THINKING} tokens \
                 and an answer more; raise it, or ask without thinking"
            ));
        }
        thinking.insert("budget_tokens".into(), raw(&left));
        request.insert("thinking".into(), raw(&thinking));
        Ok(())
    }

    fn model(&self, model: &str) -> Value {
        json!({ "type": "model", "id": model, "display_name": model, "created_at": "1970-01-01T00:00:00Z" })
    }

    fn models(&self, models: &[&str]) -> Value {
        let listed: Vec<Value> = models.iter().map(|model| self.model(model)).collect();
        json!({ "data": listed, "has_more": false, "first_id": models.first(), "last_id": models.last() })
    }

    fn error(&self, _: u16, kind: &str, message: &str) -> Value {
        json!({ "type": "error", "error": { "type": kind, "message": message } })
    }

    fn error_event(&self, status: u16, kind: &str, message: &str) -> (&'static str, Value) {
        ("event: error\n", self.error(status, kind, message))
    }

    fn rate_limit_prefix(&self) -> Option<&'static str> {
        Some("anthropic-ratelimit-")
    }

    fn tool_results(&self, message: &ClientMessage, _: &RawValue) -> Vec<ToolResult> {
        let pieces = message.content.as_deref().filter(|_| message.role == "user");
        let pieces: Vec<Box<RawValue>> =
            pieces.and_then(|content| serde_json::from_str(content.get()).ok()).unwrap_or_default();
        pieces.iter().filter_map(|piece| tool_result(piece)).collect()
    }

    fn rooms<'a>(&self, raw: &'a RawValue) -> Vec<(ToolResult, Room<'a>)> {
        #[derive(Deserialize)]
        struct Message<'a> {
            role: Cow<'a, str>,
            #[serde(borrow)]
            content: &'a RawValue,
        }
        let message = serde_json::from_str::<Message<'_>>(raw.get()).ok();
        let content = message.filter(|message| message.role == "user").map(|message| message.content.get());
        let pieces: Vec<&RawValue> =
            content.and_then(|content| serde_json::from_str(content).ok()).unwrap_or_default();
        let one = |piece: &'a RawValue| {
            let result = tool_result(piece)?;
            let room = Room::in_field(piece, "content", Form::Text, |content| {
                Room::of(content, "text").filter(|_| !finds_tools(content))
            });
            Some((result, room?))
        };
        pieces.into_iter().filter_map(one).collect()
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
        answer.get("stop_reason").and_then(Value::as_str).map(str::to_owned)
    }

    fn whole_bytes(&self, _: &Value) -> usize {
        0
    }

    fn content(&self, answer: &Value) -> Vec<Block> {
        let blocks = answer.get("content").and_then(Value::as_array).into_iter().flatten();
        blocks.filter_map(|block| block_of(block.as_object()?.clone())).collect()
    }

    fn is_misnamed(&self, name: &str, event: &Value) -> bool {
        let says = event.get("type").and_then(Value::as_str).unwrap_or_default();
        // A whole answer is no event.
        (name != says && (extends_answer(name) || extends_answer(says)))
            || event.get("content").is_some_and(Value::is_array)
    }

    fn check_answer(&self, _answer: &Value) -> Result<(), String> {
        // All clients look for tool calls where it has them.
        Ok(())
    }

    fn read_calls(&self, calls: &mut ToolCalls, data: &Value) -> Result<(), String> {
        calls.blocks(data)
    }

    fn event_usage(&self, _event: &Value) -> (Option<Usage>, bool) {
        // It comes before the end of the answer, so the decoder has it.
        (None, false)
    }

    fn hold_back(
        &self,
        split: &mut SplitSecrets,
        (number, event): (usize, &Value),
        redactor: &Redactor,
    ) -> Result<(), String> {
        split.block(number, event, redactor)
    }
}

/// Whether an event of this name begins, extends or ends what is said.
fn extends_answer(name: &str) -> bool {
    name.starts_with("content_block") || matches!(name, "message_start" | "message_stop")
}

/// Whether a result names tools that a search has found: it is not known what may stand beside them.
fn finds_tools(content: &RawValue) -> bool {
    #[derive(Deserialize)]
    struct Piece<'a> {
        #[serde(borrow)]
        r#type: Cow<'a, str>,
    }
    let pieces: Vec<Piece<'_>> = serde_json::from_str(content.get()).unwrap_or_default();
    pieces.iter().any(|piece| piece.r#type == "tool_reference")
}

/// The tool result that a block of a client's message is, if it is one.
fn tool_result(block: &RawValue) -> Option<ToolResult> {
    #[derive(Deserialize)]
    struct Fields {
        r#type: String,
        tool_use_id: Option<String>,
        #[serde(default)]
        is_error: Option<bool>,
        #[serde(default)]
        content: Option<Box<RawValue>>,
    }
    let fields: Fields = serde_json::from_str(block.get()).ok()?;
    (fields.r#type == "tool_result").then_some(())?;
    Some(ToolResult {
        call: fields.tool_use_id?,
        is_error: fields.is_error.unwrap_or(false),
        is_by_place: false,
        content: blocks(fields.content.as_deref()),
    })
}
