//! Google's Gemini API: `generateContent`, as AI Studio's keys open it.
//!
//! <https://ai.google.dev/api/generate-content> and `api/caching`, `docs/function-calling` beside it. Its names are
//! protocol buffers' in JSON: a provider takes `maxOutputTokens` and `max_output_tokens` for the same.

use super::{Answers, Decode, KeyHeader, Protocol, RequestTemplate, json_text};
use crate::{
    credentials::Scheme,
    message::{Block, Image, Kind, Message, Role},
    rpc::Tool,
};
pub(super) use decoder::is_own;
use decoder::{Decoder, SIGNATURES};
use reqwest::header::{AUTHORIZATION, HeaderName};
use ringfence_policy::agents::config::{Auth, Llm, UNLIMITED_TOKENS};
use serde::Serialize;
use serde_json::{Map, Value, json, value::RawValue};
use std::{collections::BTreeMap, sync::Arc};

mod conversation;
mod decoder;
mod endpoint;
mod names;
mod request;

pub(crate) use conversation::position;

/// Which of its APIs is asked for.
const VERSION: &str = "v1beta";
/// What has an answer stream as events; without it, one is a list in JSON.
const SSE: &str = "alt=sse";

/// The protocol.
pub(crate) struct GenerateContent;

impl Answers for GenerateContent {
    fn decoder(&self) -> Box<dyn Decode> {
        Box::new(Decoder::default())
    }

    fn text_bytes(&self, event: &Value) -> usize {
        decoder::text_bytes(event)
    }
}

impl Protocol for GenerateContent {
    fn address(&self, _: &Llm) -> &'static str {
        "https://generativelanguage.googleapis.com"
    }

    fn path(&self, llm: &Llm) -> String {
        format!("{}?{SSE}", path(&llm.model, "streamGenerateContent"))
    }

    fn key_header(&self, llm: &Llm, _: &str) -> KeyHeader {
        match llm.auth.unwrap_or(Auth::ApiKey) {
            Auth::ApiKey => KeyHeader {
                name: HeaderName::from_static("x-goog-api-key"),
                scheme: Scheme::Bare,
                beside: None,
            },
            Auth::Bearer => KeyHeader { name: AUTHORIZATION, scheme: Scheme::Bearer, beside: None },
        }
    }

    fn encode(&self, group: &[Message], _: bool) -> Vec<u8> {
        let (role, parts) = match group {
            [] => return Vec::new(),
            [message] if message.role == Role::Assistant => ("model", model_parts(message)),
            [message] if message.role == Role::User => {
                ("user", message.content.iter().filter_map(part).collect())
            }
            // What is shown comes behind all results: there are to be as many of those as there were calls.
            results => {
                let shown = results.iter().flat_map(|message| &message.content);
                let shown = shown.filter(|block| matches!(block.kind(), Kind::Image(_))).filter_map(part);
                ("user", results.iter().map(result).chain(shown).collect::<Vec<_>>())
            }
        };
        // The provider refuses a message that says nothing.
        if parts.is_empty() {
            return Vec::new();
        }
        format!(r#"{{"role":"{role}","parts":[{}]}}"#, parts.join(",")).into_bytes()
    }

    fn request_template(&self, llm: &Llm, system: Option<&str>, tools: &[Arc<Tool>]) -> RequestTemplate {
        #[derive(Serialize)]
        #[serde(rename_all = "camelCase")]
        struct Declaration<'a> {
            name: &'a str,
            description: &'a str,
            parameters_json_schema: &'a RawValue,
        }
        let mut head: Map<String, Value> =
            llm.options.iter().map(|(key, value)| (names::top(key), value.clone())).collect();
        // What is no object is the provider's to refuse.
        if let Value::Object(config) = head.entry("generationConfig").or_insert_with(|| json!({}))
            && llm.max_tokens < UNLIMITED_TOKENS
        {
            config.retain(|key, _| names::config(key) != "maxOutputTokens");
            config.insert("maxOutputTokens".into(), json!(llm.max_tokens));
        }
        if let Some(system) = system.filter(|system| !system.is_empty()) {
            head.insert("systemInstruction".into(), json!({ "parts": [{ "text": system }] }));
        }
        let mut before = json_text(&head);
        before.pop();
        if !tools.is_empty() {
            let declared: Vec<Declaration<'_>> = tools
                .iter()
                .map(|tool| Declaration {
                    name: &tool.name,
                    description: &tool.description,
                    parameters_json_schema: &tool.parameters,
                })
                .collect();
            before += &format!(r#","tools":[{{"functionDeclarations":{}}}]"#, json_text(&declared));
        }
        before += ",\"contents\":[";
        RequestTemplate { before: before.into(), after: "]}".into() }
    }
}

/// Where a model's method is, behind the provider's address.
fn path(model: &str, method: &str) -> String {
    // A name ends where its path does, whatever is in it; one with slashes is the profile's own.
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.~/@".contains(&byte);
    let mut name = String::with_capacity(model.len());
    for byte in model.bytes() {
        match is_plain(byte) {
            true => name.push(char::from(byte)),
            false => name.push_str(&format!("%{byte:02X}")),
        }
    }
    format!("{VERSION}/models/{name}:{method}")
}

/// None for what says nothing to this provider.
fn part(block: &Block) -> Option<String> {
    let part = match block.kind() {
        Kind::Text(text) if text.is_empty() => return None,
        Kind::Text(text) => json!({ "text": text }),
        Kind::Image(Image::Data { media_type, data }) => {
            json!({ "inlineData": { "mimeType": media_type, "data": data } })
        }
        Kind::Image(Image::Url(url)) => json!({ "fileData": { "fileUri": url } }),
        Kind::ToolUse(_) => return None,
        Kind::Other(kind) if kind.contains("thinking") => return None,
        Kind::Other(_) => json!({ "text": block.raw().get() }),
    };
    Some(part.to_string())
}

/// A message of the model, with its tool calls: each has its signature, without which newer models refuse what follows.
fn model_parts(message: &Message) -> Vec<String> {
    #[derive(Serialize)]
    struct Call<'a> {
        id: &'a str,
        name: &'a str,
        args: &'a RawValue,
    }
    #[derive(Serialize)]
    #[serde(rename_all = "camelCase")]
    struct Part<'a> {
        function_call: Call<'a>,
        #[serde(skip_serializing_if = "Option::is_none")]
        thought_signature: Option<&'a String>,
    }
    let is_signatures = |block: &&Block| matches!(block.kind(), Kind::Other(kind) if kind == SIGNATURES);
    let signatures = message.content.iter().find(is_signatures);
    let signatures: BTreeMap<usize, String> = signatures.map(decoder::signatures).unwrap_or_default();
    let calls = message.tool_calls.iter().enumerate().map(|(at, call)| {
        let function_call = Call { id: &call.id, name: &call.name, args: &call.input };
        json_text(&Part { function_call, thought_signature: signatures.get(&at) })
    });
    message.content.iter().filter_map(part).chain(calls).collect()
}

/// A tool's result, with the name of what was called: that alone counts to some models.
fn result(message: &Message) -> String {
    let said = message.content.iter().filter_map(|block| match block.kind() {
        Kind::Text(text) => Some(text.as_str()),
        Kind::Image(_) => None,
        _ => Some(block.raw().get()),
    });
    let key = if message.is_error { "error" } else { "output" };
    let response = json!({
        "id": message.tool_call_id,
        "name": message.tool_name.as_deref().unwrap_or_default(),
        "response": { key: said.collect::<Vec<_>>().join("\n") },
    });
    json!({ "functionResponse": response }).to_string()
}

#[cfg(test)]
mod tests;
