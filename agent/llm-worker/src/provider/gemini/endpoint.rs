//! Gemini's API at the HTTP endpoint.

use super::{GenerateContent, SSE, conversation, decoder, names, request};
use crate::{
    http::{
        denials::Room,
        intents::{ClientMessage, MOST_BACK, ToolResult, blocks},
        relay::split_secrets::SplitSecrets,
        request::Route,
        tool_calls::{ToolCalls, no_candidate_is_stray},
    },
    message::Block,
    provider::{Endpoint, Usage, anthropic, block_of},
    redact::Redactor,
};
use ringfence_policy::agents::config::Llm;
use serde_json::{Value, json, value::RawValue};
use std::borrow::Cow;

impl Endpoint for GenerateContent {
    fn prefixes(&self) -> &'static [&'static str] {
        &["/v1beta", "/v1"]
    }

    fn routes(&self) -> &'static [(&'static str, Route)] {
        &[
            ("/models/MODEL:generateContent", Route::Generate),
            ("/models/MODEL:streamGenerateContent", Route::StreamGenerate),
            ("/models/MODEL:countTokens", Route::CountTokens),
        ]
    }

    fn path(&self, route: Route, model: &str) -> Cow<'static, str> {
        let method = match route {
            Route::StreamGenerate => "streamGenerateContent",
            Route::CountTokens => "countTokens",
            _ => "generateContent",
        };
        super::path(model, method).into()
    }

    fn query(&self, route: Route, asked: &str) -> Result<Option<&'static str>, String> {
        let (wanted, sent) = match route {
            Route::StreamGenerate => ("sse", Some(SSE)),
            _ => ("json", None),
        };
        let forms = asked.split('&').filter_map(|pair| {
            let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
            matches!(key, "alt" | "$alt").then_some(value)
        });
        let forms: Vec<&str> = forms.collect();
        // A list in JSON that comes piece by piece is read differently by each client.
        if forms.iter().any(|form| *form != wanted) || (sent.is_some() && forms.is_empty()) {
            return Err("an answer that streams is served with ?alt=sse only, and any other as JSON".into());
        }
        Ok(sent)
    }

    fn open(&self, route: Route, request: &mut names::Fields) -> Result<bool, String> {
        request::open(route, request)
    }

    fn close(&self, model: &str, request: &mut names::Fields) {
        request::close(model, request);
    }

    fn put_model(&self, _: &str, _: &mut names::Fields) {
        // The path has it.
    }

    fn put_options(&self, llm: &Llm, request: &mut names::Fields) -> Result<(), String> {
        request::put_options(llm, request)
    }

    fn has_many(&self, llm: &Llm) -> bool {
        request::has_many(llm)
    }

    fn limit_keys(&self, _: &Llm) -> &'static [&'static str] {
        // It is no field of the request itself.
        &[]
    }

    fn own_fields(&self) -> &'static [&'static str] {
        &names::TOP
    }

    fn keep_nothing(&self, llm: &Llm, request: &mut names::Fields) -> Result<(), String> {
        request::keep_nothing(llm, request)
    }

    fn more_tools(&self, _: &names::Fields) -> Result<Vec<Box<RawValue>>, String> {
        Ok(Vec::new())
    }

    fn conversation(&self) -> &'static str {
        "contents"
    }

    fn counted(&self) -> Option<&'static str> {
        Some(request::COUNTED)
    }

    fn in_common_form<'a>(&self, messages: &'a [Box<RawValue>]) -> Cow<'a, [Box<RawValue>]> {
        conversation::in_common_form(messages, MOST_BACK).into()
    }

    fn ask_for_usage(&self, _: &mut names::Fields) -> Result<bool, String> {
        // Its streams have it in any case.
        Ok(false)
    }

    fn fit_thinking(&self, _: &mut names::Fields, _: Option<u64>) -> Result<(), String> {
        // It stands beside the most tokens, and is limited with them.
        Ok(())
    }

    fn model(&self, model: &str) -> Value {
        json!({
            "name": format!("models/{model}"),
            "displayName": model,
            "supportedGenerationMethods": ["generateContent", "countTokens"],
        })
    }

    fn models(&self, models: &[&str]) -> Value {
        let listed: Vec<Value> = models.iter().map(|model| self.model(model)).collect();
        json!({ "models": listed })
    }

    fn error(&self, status: u16, _: &str, message: &str) -> Value {
        let name = match status {
            401 => "UNAUTHENTICATED",
            403 => "PERMISSION_DENIED",
            404 | 405 => "NOT_FOUND",
            408 | 504 => "DEADLINE_EXCEEDED",
            429 => "RESOURCE_EXHAUSTED",
            502 | 503 => "UNAVAILABLE",
            500.. => "INTERNAL",
            _ => "INVALID_ARGUMENT",
        };
        json!({ "error": { "code": status, "message": message, "status": name } })
    }

    fn error_event(&self, status: u16, kind: &str, message: &str) -> (&'static str, Value) {
        ("", self.error(status, kind, message))
    }

    fn rate_limit_prefix(&self) -> Option<&'static str> {
        // Its errors say when to try again.
        None
    }

    fn tool_results(&self, message: &ClientMessage, raw: &RawValue) -> Vec<ToolResult> {
        let results = anthropic::Messages.tool_results(message, raw).into_iter();
        results.map(|result| ToolResult { is_by_place: true, ..result }).collect()
    }

    fn rooms<'a>(&self, raw: &'a RawValue) -> Vec<(ToolResult, Room<'a>)> {
        conversation::rooms(raw)
    }

    fn call_said(&self, _: &RawValue) -> Option<String> {
        // The model's messages have its calls in them.
        None
    }

    fn blocks(&self, content: Option<&RawValue>) -> Vec<Block> {
        blocks(content)
    }

    fn usage(&self, answer: &Value) -> Option<Usage> {
        decoder::usage(answer)
    }

    fn stop_reason(&self, answer: &Value) -> Option<String> {
        decoder::stop_reason(answer).map(str::to_owned)
    }

    fn whole_bytes(&self, _: &Value) -> usize {
        0
    }

    fn content(&self, answer: &Value) -> Vec<Block> {
        let content = answer.pointer("/candidates/0/content").and_then(Value::as_object).cloned();
        let block = content.and_then(|mut content| {
            content.insert("type".into(), "content".into());
            block_of(content)
        });
        block.into_iter().collect()
    }

    fn is_misnamed(&self, name: &str, event: &Value) -> bool {
        // Its events have no names; an error may have one.
        !matches!(name, "" | "message") && (name != "error" || event.get("candidates").is_some())
    }

    fn ends_by_event(&self) -> bool {
        false
    }

    fn check_answer(&self, answer: &Value) -> Result<(), String> {
        no_candidate_is_stray(answer)
    }

    fn read_calls(&self, calls: &mut ToolCalls, data: &Value) -> Result<(), String> {
        calls.candidates(data)
    }

    fn event_usage(&self, event: &Value) -> (Option<Usage>, bool) {
        (decoder::usage(event), false)
    }

    fn hold_back(
        &self,
        split: &mut SplitSecrets,
        (number, event): (usize, &Value),
        redactor: &Redactor,
    ) -> Result<(), String> {
        split.candidates(number, event, redactor)
    }
}
