//! OpenAI's Chat Completions, which compatible servers speak too.
//!
//! <https://platform.openai.com/docs/api-reference/chat> and `chat-streaming` beside it. Only what the conversation needs
//! is asked for: compatible servers know less.

use super::{
    Answers, Decode, Endpoint, KeyHeader, Protocol, RequestTemplate, json_text, measure::text_bytes,
};
use crate::{
    credentials::Scheme,
    message::{Block, Image, Kind, Message, Role},
    rpc::Tool,
};
use decoder::Decoder;
use reqwest::header::AUTHORIZATION;
use ringfence_policy::agents::config::{Llm, Service};
use serde::Serialize;
use serde_json::{Map, Value, json, value::RawValue};
use std::sync::Arc;

mod chat;
mod decoder;
mod responses;

pub(crate) use responses::Responses;

/// Where answers are asked for.
const PATH: &str = "chat/completions";
/// Which account a login with ChatGPT is of.
const ACCOUNT: &str = "chatgpt-account-id";
/// What Codex says of itself and of its session: ChatGPT refuses clients that it does not know by it.
const CODEX: &[&str] = &[
    "originator",
    "user-agent",
    "version",
    "openai-beta",
    "session_id",
    "session-id",
    "thread_id",
    "thread-id",
    "conversation_id",
    "x-client-request-id",
];
/// What the names of the rest begin with: what a body means can depend on it.
const CODEX_PREFIX: &str = "x-codex-";
/// What the names of headers about rate limits begin with.
const RATE_LIMITS: &str = "x-ratelimit-";
/// How a tool's failure is said: the protocol has no field for it.
const FAILED: &str = "[the tool failed]";
/// The option of a stream that has it end with the usage.
const INCLUDE_USAGE: &str = "include_usage";

/// The protocol.
pub(crate) struct ChatCompletions;

impl Answers for ChatCompletions {
    fn decoder(&self) -> Box<dyn Decode> {
        Box::new(Decoder::default())
    }

    fn text_bytes(&self, event: &Value) -> usize {
        let choices = event.get("choices").and_then(Value::as_array).into_iter().flatten();
        let said = choices.flat_map(|choice| [choice.get("delta"), choice.get("message")]).flatten();
        said.map(text_bytes).sum()
    }
}

impl Protocol for ChatCompletions {
    fn address(&self, llm: &Llm) -> &'static str {
        match llm.service {
            Service::Api => "https://api.openai.com/v1",
            Service::ChatGpt => "https://chatgpt.com/backend-api/codex",
        }
    }

    fn path(&self, _: &Llm) -> String {
        PATH.to_owned()
    }

    fn key_header(&self, _: &Llm, _: &str) -> KeyHeader {
        KeyHeader { name: AUTHORIZATION, scheme: Scheme::Bearer, beside: None }
    }

    fn account_header(&self, llm: &Llm) -> Option<&'static str> {
        (llm.service == Service::ChatGpt).then_some(ACCOUNT)
    }

    fn client_headers(&self, llm: &Llm) -> Option<&'static str> {
        (llm.service == Service::ChatGpt).then_some(CODEX_PREFIX)
    }

    fn more_client_headers(&self, llm: &Llm) -> &'static [&'static str] {
        match llm.service {
            Service::Api => &[],
            Service::ChatGpt => CODEX,
        }
    }

    fn encode(&self, group: &[Message], _: bool) -> Vec<u8> {
        let mut all: Vec<String> = Vec::new();
        // A tool's message holds text only; its images come behind the results, as from the user.
        let mut images: Vec<String> = Vec::new();
        for message in group {
            match message.role {
                Role::User => {
                    all.push(format!(r#"{{"role":"user","content":{}}}"#, content(&message.content)))
                }
                Role::Assistant => all.extend(assistant(message)),
                Role::Tool => {
                    let (shown, said): (Vec<&Block>, Vec<&Block>) =
                        message.content.iter().partition(|b| matches!(b.kind(), Kind::Image(_)));
                    let failed = message.is_error.then(|| text_part(FAILED));
                    let mut parts: Vec<String> =
                        failed.into_iter().chain(said.iter().map(|b| said_part(b))).collect();
                    let id = json_text(&message.tool_call_id);
                    if !shown.is_empty() {
                        parts.push(text_part("[images of this result follow]"));
                        images.push(text_part(&format!(
                            "Images of the result of tool call {}:",
                            message.tool_call_id.as_deref().unwrap_or_default()
                        )));
                        images.extend(shown.iter().filter_map(|b| part(b)));
                    }
                    let content = match (message.is_error, said.as_slice(), shown.is_empty()) {
                        (false, [one], true) if matches!(one.kind(), Kind::Text(_)) => {
                            content(&message.content)
                        }
                        _ if parts.is_empty() => "\"\"".to_owned(),
                        _ => format!("[{}]", parts.join(",")),
                    };
                    all.push(format!(r#"{{"role":"tool","tool_call_id":{id},"content":{content}}}"#));
                }
            }
        }
        if !images.is_empty() {
            all.push(format!(r#"{{"role":"user","content":[{}]}}"#, images.join(",")));
        }
        all.join(",").into_bytes()
    }

    fn request_template(&self, llm: &Llm, system: Option<&str>, tools: &[Arc<Tool>]) -> RequestTemplate {
        #[derive(Serialize)]
        struct Function<'a> {
            name: &'a str,
            description: &'a str,
            parameters: &'a RawValue,
        }
        #[derive(Serialize)]
        struct OneTool<'a> {
            r#type: &'a str,
            function: Function<'a>,
        }
        let mut head: Map<String, Value> = llm.options.clone();
        head.insert("model".into(), json!(llm.model));
        head.insert(
            self.limit_keys(llm).first().copied().unwrap_or("max_tokens").into(),
            json!(llm.max_tokens),
        );
        head.insert("stream".into(), json!(true));
        head.insert("stream_options".into(), json!({ INCLUDE_USAGE: true }));
        let mut before = json_text(&head);
        before.pop();
        if !tools.is_empty() {
            let listed: Vec<OneTool<'_>> = tools
                .iter()
                .map(|tool| OneTool {
                    r#type: "function",
                    function: Function {
                        name: &tool.name,
                        description: &tool.description,
                        parameters: &tool.parameters,
                    },
                })
                .collect();
            before += &format!(",\"tools\":{}", json_text(&listed));
        }
        before += ",\"messages\":[";
        if let Some(system) = system.filter(|s| !s.is_empty()) {
            before += &format!(r#"{{"role":"system","content":{}}},"#, json_text(&system));
        }
        RequestTemplate { before: before.into(), after: "]}".into() }
    }
}

/// One text is a string: the form that every server knows.
fn content(blocks: &[Block]) -> String {
    if let [one] = blocks
        && let Kind::Text(said) = one.kind()
    {
        return json_text(said);
    }
    format!("[{}]", blocks.iter().filter_map(part).collect::<Vec<_>>().join(","))
}

fn part(block: &Block) -> Option<String> {
    let image = |url: &str| json!({ "type": "image_url", "image_url": { "url": url } }).to_string();
    match block.kind() {
        Kind::Text(text) => Some(text_part(text)),
        Kind::Image(Image::Url(url)) => Some(image(url)),
        Kind::Image(Image::Data { media_type, data }) => {
            Some(image(&format!("data:{media_type};base64,{data}")))
        }
        Kind::Other(kind) if kind.contains("thinking") => None,
        Kind::ToolUse(_) => None,
        Kind::Other(_) => Some(block.raw().get().to_owned()),
    }
}

/// In a tool's result, what is no text is given as its JSON.
fn said_part(block: &Block) -> String {
    match block.kind() {
        Kind::Text(text) => text_part(text),
        _ => text_part(block.raw().get()),
    }
}

fn text_part(said: &str) -> String {
    json!({ "type": "text", "text": said }).to_string()
}

/// None for a message that says nothing.
fn assistant(message: &Message) -> Option<String> {
    #[derive(Serialize)]
    struct Function<'a> {
        name: &'a str,
        arguments: &'a str,
    }
    #[derive(Serialize)]
    struct Call<'a> {
        id: &'a str,
        r#type: &'a str,
        function: Function<'a>,
    }
    let said: String = message
        .content
        .iter()
        .filter_map(|b| if let Kind::Text(text) = b.kind() { Some(text.as_str()) } else { None })
        .collect();
    if said.is_empty() && message.tool_calls.is_empty() {
        return None;
    }
    let content = if said.is_empty() { "null".to_owned() } else { json_text(&said) };
    let calls: Vec<Call<'_>> = message
        .tool_calls
        .iter()
        .map(|call| Call {
            id: &call.id,
            r#type: "function",
            function: Function { name: &call.name, arguments: call.input.get() },
        })
        .collect();
    let calls =
        if calls.is_empty() { String::new() } else { format!(r#","tool_calls":{}"#, json_text(&calls)) };
    Some(format!(r#"{{"role":"assistant","content":{content}{calls}}}"#))
}

/// A model, as both APIs describe one.
fn model(model: &str) -> Value {
    json!({ "object": "model", "id": model, "created": 0, "owned_by": "ringfence" })
}

/// The list of models.
fn models(models: &[&str]) -> Value {
    let listed: Vec<Value> = models.iter().copied().map(model).collect();
    json!({ "object": "list", "data": listed })
}

/// An error of our own.
fn error(kind: &str, message: &str) -> Value {
    json!({ "error": { "message": message, "type": kind, "param": null, "code": null } })
}
