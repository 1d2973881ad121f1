//! What a client asks for, made into what the provider is asked for. Pure.

use crate::llm::{
    message::raw,
    registry::{Llm, ProviderKind},
};
use axum::http::Method;
use serde_json::{Value, json, value::RawValue};
use std::collections::BTreeMap;

/// What a path stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Route {
    /// The model is to answer.
    Complete,
    /// Only count what a request has. Anthropic's.
    CountTokens,
    /// Which models there are: the profile's.
    Models,
}

/// What a request is to the provider.
///
/// # Errors
/// Status and reason.
pub(super) fn route(kind: ProviderKind, method: &Method, path: &str) -> Result<Route, (u16, String)> {
    use ProviderKind::{Anthropic, OpenAi};
    let path = path.trim_end_matches('/');
    // A client's base URL may end in /v1 or not.
    let bare = path.strip_prefix("/v1").unwrap_or(path);
    let (route, wanted) = match (kind, bare) {
        (Anthropic, "/messages") => (Route::Complete, Method::POST),
        (Anthropic, "/messages/count_tokens") => (Route::CountTokens, Method::POST),
        (OpenAi, "/chat/completions") => (Route::Complete, Method::POST),
        (_, "/models") => (Route::Models, Method::GET),
        _ => {
            let has = match kind {
                Anthropic => "POST /v1/messages, POST /v1/messages/count_tokens and GET /v1/models",
                OpenAi => "POST /v1/chat/completions and GET /v1/models",
            };
            return Err((404, format!("there is nothing at {path:?}; this agent's endpoint has {has}")));
        }
    };
    if *method != wanted {
        return Err((405, format!("{path} is for {wanted}, not for {method}")));
    }
    Ok(route)
}

/// A request, rewritten.
#[derive(Debug)]
pub(super) struct Rewritten {
    /// What the provider is sent.
    pub(super) body: Vec<u8>,
    /// Whether the answer is to stream.
    pub(super) streams: bool,
    /// The client did not ask for the last chunk with the usage; we did.
    pub(super) hides_usage: bool,
    /// The conversation.
    pub(super) messages: Vec<Box<RawValue>>,
}

/// Puts in what the profile fixes: model, options, most tokens of an answer. Everything else stays the client's.
///
/// # Errors
/// Not a JSON object.
pub(super) fn rewrite(llm: &Llm, route: Route, body: &[u8]) -> Result<Rewritten, String> {
    let mut fields: BTreeMap<String, Box<RawValue>> =
        serde_json::from_slice(body).map_err(|error| format!("the body is no JSON object: {error}"))?;
    fields.insert("model".into(), raw(&llm.model));
    let messages: Vec<Box<RawValue>> =
        fields.get("messages").and_then(|m| serde_json::from_str(m.get()).ok()).unwrap_or_default();
    let streams = fields.get("stream").is_some_and(|value| value.get() == "true");
    let mut hides_usage = false;
    if route == Route::Complete {
        for (key, value) in &llm.options {
            fields.insert(key.clone(), raw(value));
        }
        let keys: &[&str] = match (llm.provider, llm.base_url.is_some()) {
            (ProviderKind::Anthropic, _) | (ProviderKind::OpenAi, true) => {
                &["max_tokens", "max_completion_tokens"]
            }
            (ProviderKind::OpenAi, false) => &["max_completion_tokens", "max_tokens"],
        };
        let asked = keys.iter().find(|key| fields.contains_key(**key)).copied();
        let number = asked.and_then(|key| fields.get(key)?.get().parse::<u64>().ok());
        // Something that is no number is the provider's to refuse.
        if asked.is_none() || number.is_some_and(|number| number > u64::from(llm.max_tokens)) {
            fields.insert(asked.unwrap_or(keys[0]).into(), raw(&llm.max_tokens));
        }
        if streams && llm.provider == ProviderKind::OpenAi {
            let mut options: Value = fields
                .get("stream_options")
                .and_then(|o| serde_json::from_str(o.get()).ok())
                .unwrap_or(json!({}));
            if options.is_null() {
                options = json!({});
            }
            if options.get("include_usage") != Some(&json!(true)) && options.is_object() {
                options["include_usage"] = json!(true);
                fields.insert("stream_options".into(), raw(&options));
                hides_usage = true;
            }
        }
    }
    let body = serde_json::to_vec(&fields).map_err(|error| error.to_string())?;
    Ok(Rewritten { body, streams, hides_usage, messages })
}

/// The list of models: the one that the profile fixes.
pub(super) fn models(llm: &Llm) -> Value {
    let model = match llm.provider {
        ProviderKind::Anthropic => {
            json!({ "type": "model", "id": llm.model, "display_name": llm.model, "created_at": "1970-01-01T00:00:00Z" })
        }
        ProviderKind::OpenAi => {
            json!({ "object": "model", "id": llm.model, "created": 0, "owned_by": "ringfence" })
        }
    };
    match llm.provider {
        ProviderKind::Anthropic => {
            json!({ "data": [model], "has_more": false, "first_id": llm.model, "last_id": llm.model })
        }
        ProviderKind::OpenAi => json!({ "object": "list", "data": [model] }),
    }
}

/// An error of our own, in the provider's form.
pub(super) fn error(kind: ProviderKind, status: u16, message: &str) -> Value {
    let name = match status {
        401 => "authentication_error",
        403 => "permission_error",
        404 | 405 => "not_found_error",
        413 => "request_too_large",
        429 => "rate_limit_error",
        500.. => "api_error",
        _ => "invalid_request_error",
    };
    let message = format!("ringfence: {message}");
    match kind {
        ProviderKind::Anthropic => json!({ "type": "error", "error": { "type": name, "message": message } }),
        ProviderKind::OpenAi => {
            json!({ "error": { "message": message, "type": name, "param": null, "code": null } })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn llm(provider: ProviderKind) -> Llm {
        let options = json!({ "temperature": 0 });
        Llm {
            name: "m".into(),
            provider,
            model: "fixed".into(),
            api_key: None,
            base_url: None,
            max_tokens: 100,
            price: Default::default(),
            options: options.as_object().unwrap().clone(),
            prompt_cache: true,
            max_mcp_rounds: 1,
            max_rounds: 1,
            timeout: Duration::from_secs(1),
            runtime_timeout: Duration::from_secs(1),
        }
    }

    fn rewritten(provider: ProviderKind, body: Value) -> (Value, bool) {
        let done = rewrite(&llm(provider), Route::Complete, body.to_string().as_bytes()).unwrap();
        (serde_json::from_slice(&done.body).unwrap(), done.hides_usage)
    }

    #[test]
    fn the_profile_fixes_model_options_and_most_tokens_and_nothing_else_changes() {
        let sent = json!({ "model": "theirs", "temperature": 1, "max_tokens": 5000, "unknown": [1.50], "messages": [] });
        let (got, _) = rewritten(ProviderKind::Anthropic, sent);
        assert_eq!(
            got,
            json!({ "model": "fixed", "temperature": 0, "max_tokens": 100, "unknown": [1.50], "messages": [] })
        );
        let (got, _) = rewritten(ProviderKind::Anthropic, json!({ "max_tokens": 7 }));
        assert_eq!(got["max_tokens"], 7);
        let (got, hides) = rewritten(ProviderKind::OpenAi, json!({ "stream": true, "max_tokens": 101 }));
        assert_eq!((&got["max_tokens"], got.get("max_completion_tokens")), (&json!(100), None));
        assert!(hides && got["stream_options"]["include_usage"] == true);
        let (got, hides) = rewritten(
            ProviderKind::OpenAi,
            json!({ "stream": true, "stream_options": { "include_usage": true } }),
        );
        assert!(!hides && got["max_completion_tokens"] == 100);
        let twice = br#"{"model":"a","messages":[],"model":"b"}"#;
        let done = rewrite(&llm(ProviderKind::OpenAi), Route::Complete, twice).unwrap();
        assert_eq!(String::from_utf8(done.body).unwrap().matches("\"model\"").count(), 1);
        for bad in ["[]", "", "{", "\"x\""] {
            assert!(rewrite(&llm(ProviderKind::OpenAi), Route::Complete, bad.as_bytes()).is_err(), "{bad}");
        }
    }

    #[test]
    fn paths_are_the_providers_own() {
        let (anthropic, openai) = (ProviderKind::Anthropic, ProviderKind::OpenAi);
        assert_eq!(route(anthropic, &Method::POST, "/v1/messages"), Ok(Route::Complete));
        assert_eq!(route(openai, &Method::POST, "/chat/completions"), Ok(Route::Complete));
        assert_eq!(route(openai, &Method::GET, "/v1/models"), Ok(Route::Models));
        assert_eq!(route(openai, &Method::POST, "/v1/messages").unwrap_err().0, 404);
        assert_eq!(route(anthropic, &Method::GET, "/v1/messages").unwrap_err().0, 405);
        assert_eq!(route(anthropic, &Method::POST, "/v1/files").unwrap_err().0, 404);
    }
}
