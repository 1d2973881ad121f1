//! Anthropic's Messages.
//!
//! <https://platform.claude.com/docs/en/api/messages> and `build-with-claude/streaming`, `prompt-caching` beside it.

use super::{Decode, Protocol, RequestTemplate, Usage, block_of, json_text, measure::text_bytes};
use crate::{
    credentials::Scheme,
    http::{
        intents::{ClientMessage, ToolResult, blocks},
        relay::split_secrets::SplitSecrets,
        request::Route,
        tool_calls::ToolCalls,
    },
    message::{Block, Image, Kind, Message, Role, ToolCall, raw},
    redact::Redactor,
    rpc::Tool,
};
use decoder::Decoder;
pub(super) use decoder::in_place;
use reqwest::header::HeaderName;
use ringfence_policy::agents::config::Llm;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json, value::RawValue};
use std::{collections::BTreeMap, sync::Arc};

mod decoder;

/// The least budget for thinking that its API takes, tokens
/// (https://docs.claude.com/en/docs/build-with-claude/extended-thinking).
const LEAST_THINKING: u64 = 1024;

/// What lets the provider's cache remember up to a block.
const MARK: &str = r#""cache_control":{"type":"ephemeral"}"#;

/// The protocol.
pub(super) struct Messages;

impl Protocol for Messages {
    fn address(&self) -> (&'static str, &'static str) {
        ("https://api.anthropic.com", "v1/messages")
    }

    fn key_header(&self) -> (HeaderName, Scheme) {
        (HeaderName::from_static("x-api-key"), Scheme::Bare)
    }

    fn headers(&self) -> &'static [(&'static str, &'static str)] {
        &[("anthropic-version", "2023-06-01")]
    }

    fn marks_cache(&self) -> bool {
        true
    }

    fn encode(&self, group: &[Message], mark: bool) -> Vec<u8> {
        let (role, mut blocks) = match group {
            [] => return Vec::new(),
            [message] if message.role == Role::Assistant => ("assistant", assistant(message)),
            [message] if message.role == Role::User => {
                ("user", message.content.iter().filter_map(block).collect())
            }
            results => ("user", results.iter().map(result).collect::<Vec<_>>()),
        };
        // The provider refuses a message that says nothing.
        let Some(last) = blocks.last_mut() else { return Vec::new() };
        // A mark on the model's own blocks would be one on its thinking, which cannot have any.
        if mark && role == "user" && last.ends_with('}') && !last.contains("\"cache_control\"") {
            last.truncate(last.len() - 1);
            last.push_str(&format!(",{MARK}}}"));
        }
        format!(r#"{{"role":"{role}","content":[{}]}}"#, blocks.join(",")).into_bytes()
    }

    fn request_template(&self, llm: &Llm, system: Option<&str>, tools: &[Arc<Tool>]) -> RequestTemplate {
        #[derive(Serialize)]
        struct OneTool<'a> {
            name: &'a str,
            description: &'a str,
            input_schema: &'a RawValue,
            #[serde(skip_serializing_if = "Option::is_none")]
            cache_control: Option<Value>,
        }
        let ephemeral = || json!({ "type": "ephemeral" });
        let mut head: Map<String, Value> = llm.options.clone();
        head.insert("model".into(), json!(llm.model));
        head.insert("max_tokens".into(), json!(llm.max_tokens));
        head.insert("stream".into(), json!(true));
        if let Some(system) = system.filter(|s| !s.is_empty()) {
            let mut block = json!({ "type": "text", "text": system });
            if llm.prompt_cache {
                block["cache_control"] = ephemeral();
            }
            head.insert("system".into(), json!([block]));
        }
        let mut before = json_text(&head);
        before.pop();
        if !tools.is_empty() {
            // The provider's cache holds tools, system and messages in this order: a mark on system covers the tools.
            let unmarked = system.is_none_or(str::is_empty) && llm.prompt_cache;
            let listed: Vec<OneTool<'_>> = tools
                .iter()
                .enumerate()
                .map(|(i, tool)| OneTool {
                    name: &tool.name,
                    description: &tool.description,
                    input_schema: &tool.parameters,
                    cache_control: (unmarked && i + 1 == tools.len()).then(ephemeral),
                })
                .collect();
            before += &format!(",\"tools\":{}", json_text(&listed));
        }
        before += ",\"messages\":[";
        RequestTemplate { before: before.into(), after: "]}".into() }
    }

    fn decoder(&self) -> Box<dyn Decode> {
        Box::new(Decoder::default())
    }

    fn usage(&self, reported: &Value) -> Option<Usage> {
        decoder::usage(reported)
    }

    fn text_bytes(&self, event: &Value) -> usize {
        // Why it stopped is nothing that the model said.
        if event.get("type").is_some_and(|kind| kind == "message_delta") {
            return 0;
        }
        let places = ["/delta", "/content_block", "/message/content", "/content"];
        places.iter().filter_map(|place| event.pointer(place)).map(text_bytes).sum()
    }

    fn routes(&self) -> &'static [(&'static str, Route)] {
        &[("/messages", Route::Complete), ("/messages/count_tokens", Route::CountTokens)]
    }

    fn limit_keys(&self, _: &Llm) -> [&'static str; 2] {
        ["max_tokens", "max_completion_tokens"]
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

    fn error(&self, kind: &str, message: &str) -> Value {
        json!({ "type": "error", "error": { "type": kind, "message": message } })
    }

    fn error_event(&self) -> &'static str {
        "event: error\n"
    }

    fn rate_limit_prefix(&self) -> &'static str {
        "anthropic-ratelimit-"
    }

    fn tool_results(&self, message: &ClientMessage) -> Vec<ToolResult> {
        let pieces = message.content.as_deref().filter(|_| message.role == "user");
        let pieces: Vec<Box<RawValue>> =
            pieces.and_then(|content| serde_json::from_str(content.get()).ok()).unwrap_or_default();
        pieces.iter().filter_map(|piece| tool_result(piece)).collect()
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
        content: blocks(fields.content.as_deref()),
    })
}

/// A message of the model, with its tool calls.
fn assistant(message: &Message) -> Vec<String> {
    let in_place: Vec<&str> = message
        .content
        .iter()
        .filter_map(|b| if let Kind::ToolUse(id) = b.kind() { Some(id.as_str()) } else { None })
        .collect();
    let calls = message.tool_calls.iter().filter(|call| !in_place.contains(&call.id.as_str()));
    message.content.iter().filter_map(block).chain(calls.map(tool_use)).collect()
}

fn tool_use(call: &ToolCall) -> String {
    #[derive(Serialize)]
    struct ToolUse<'a> {
        r#type: &'a str,
        id: &'a str,
        name: &'a str,
        input: &'a RawValue,
    }
    json_text(&ToolUse { r#type: "tool_use", id: &call.id, name: &call.name, input: &call.input })
}

/// None for an empty text, which the provider refuses.
fn block(block: &Block) -> Option<String> {
    match block.kind() {
        Kind::Text(text) if text.is_empty() => None,
        Kind::Image(Image::Data { media_type, data }) => {
            let source = json!({ "type": "base64", "media_type": media_type, "data": data });
            Some(json!({ "type": "image", "source": source }).to_string())
        }
        Kind::Image(Image::Url(url)) => {
            Some(json!({ "type": "image", "source": { "type": "url", "url": url } }).to_string())
        }
        _ => Some(block.raw().get().to_owned()),
    }
}

fn result(message: &Message) -> String {
    let id = json_text(&message.tool_call_id);
    let content: Vec<String> = message.content.iter().filter_map(block).collect();
    let content =
        if content.is_empty() { String::new() } else { format!(r#","content":[{}]"#, content.join(",")) };
    let error = if message.is_error { r#","is_error":true"# } else { "" };
    format!(r#"{{"type":"tool_result","tool_use_id":{id}{content}{error}}}"#)
}
