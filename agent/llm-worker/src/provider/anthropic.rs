//! Anthropic's Messages.
//!
//! <https://platform.claude.com/docs/en/api/messages> and `build-with-claude/streaming`, `prompt-caching` beside it.

use super::{Answers, Decode, KeyHeader, Protocol, RequestTemplate, gemini, json_text, measure::text_bytes};
use crate::{
    credentials::Scheme,
    http::request::head::BETA,
    message::{Block, Image, Kind, Message, Role, ToolCall},
    rpc::Tool,
};
use decoder::Decoder;
pub(super) use decoder::in_place;
use reqwest::header::{AUTHORIZATION, HeaderName};
use ringfence_policy::agents::config::{Auth, Llm};
use serde::Serialize;
use serde_json::{Map, Value, json, value::RawValue};
use std::sync::Arc;

mod decoder;
mod endpoint;

/// Where answers are asked for.
const PATH: &str = "v1/messages";

/// What an access token of Anthropic's OAuth begins with, and the feature without which none is taken.
const OAUTH_TOKEN: &str = "sk-ant-oat";
const OAUTH_BETA: &str = "oauth-2025-04-20";

/// What lets the provider's cache remember up to a block.
const MARK: &str = r#""cache_control":{"type":"ephemeral"}"#;

/// The protocol.
pub(crate) struct Messages;

impl Answers for Messages {
    fn decoder(&self) -> Box<dyn Decode> {
        Box::new(Decoder::default())
    }

    fn text_bytes(&self, event: &Value) -> usize {
        // Why it stopped is nothing that the model said.
        if event.get("type").is_some_and(|kind| kind == "message_delta") {
            return 0;
        }
        let places = ["/delta", "/content_block", "/message/content", "/content"];
        places.iter().filter_map(|place| event.pointer(place)).map(text_bytes).sum()
    }
}

impl Protocol for Messages {
    fn address(&self, _: &Llm) -> &'static str {
        "https://api.anthropic.com"
    }

    fn path(&self, _: &Llm) -> String {
        PATH.to_owned()
    }

    fn key_header(&self, llm: &Llm, key: &str) -> KeyHeader {
        let is_oauth = key.starts_with(OAUTH_TOKEN);
        match llm.auth.unwrap_or(if is_oauth { Auth::Bearer } else { Auth::ApiKey }) {
            Auth::ApiKey => {
                KeyHeader { name: HeaderName::from_static("x-api-key"), scheme: Scheme::Bare, beside: None }
            }
            // What a gateway takes for a token is its own matter.
            Auth::Bearer => KeyHeader {
                name: AUTHORIZATION,
                scheme: Scheme::Bearer,
                beside: (is_oauth || llm.base_url.is_none()).then_some((BETA, OAUTH_BETA)),
            },
        }
    }

    fn headers(&self) -> &'static [(&'static str, &'static str)] {
        &[("anthropic-version", "2023-06-01")]
    }

    fn client_headers(&self, _: &Llm) -> Option<&'static str> {
        Some("anthropic-")
    }

    fn client_query(&self) -> Option<&'static str> {
        // Its SDKs ask so where a request has features in `anthropic-beta`.
        Some("beta=true")
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
        // Another provider's, which this one refuses.
        Kind::Other(_) if gemini::is_own(block) => None,
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
