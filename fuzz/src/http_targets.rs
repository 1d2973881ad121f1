//! What is tried on an agent's HTTP endpoint: requests of clients and of pages, answers of providers on their way.

use axum::http::{HeaderMap, HeaderName, HeaderValue, Method};
use ringfence_credentials::Secret;
use ringfence_llm_worker::http::{
    gate::Gate,
    relay::Relay,
    request::{self, Route, head},
};
use ringfence_llm_worker::message::ToolCall;
use ringfence_llm_worker::provider::Wire;
use ringfence_llm_worker::redact::Redactor;
use ringfence_policy::agents::config::{Llm, ProviderKind, Service};
use serde_json::{Map, Value, json};
use std::time::Duration;

const KINDS: &[ProviderKind] = ProviderKind::ALL;
/// The endpoint's own token, and the provider's key.
const TOKEN: &str = "ringfence-secret";
const KEY: &str = "sk-secret-0123456789";
/// Most tokens of an answer by the profile.
const MOST: u64 = 100;
/// Where a request says how many tokens an answer may have.
const LIMITS: [&str; 7] = [
    "max_tokens",
    "max_completion_tokens",
    "n_predict",
    "num_predict",
    "max_new_tokens",
    "max_output_tokens",
    "max_tokens_to_sample",
];

/// What would refer to something that the provider keeps, or leave something there.
const KEPT: [&str; 4] = ["previous_response_id", "conversation", "prompt", "background"];

/// A request: method and path, headers, an empty line, a body. Who passes named the host and the token, and is no page.
/// What goes to the provider has the profile's model and options and no higher limit; the rest is the client's.
pub fn endpoint(data: &[u8]) {
    let end = data.windows(2).position(|two| two == b"\n\n");
    let (head, body) = end.map_or((data, &[][..]), |end| (&data[..end], &data[end + 2..]));
    let Ok(head) = std::str::from_utf8(head) else { return };
    let (first, lines) = head.split_once('\n').unwrap_or((head, ""));
    let headers = header_lines(lines);
    gate(&headers);
    passed(&headers);
    let Some((method, path)) = first.split_once(' ') else { return };
    let Ok(method) = Method::from_bytes(method.as_bytes()) else { return };
    for kind in KINDS.iter().copied() {
        let Ok(route) = request::route(kind, &method, path) else { continue };
        let is_fit = match route {
            Route::Complete
            | Route::Respond
            | Route::Generate
            | Route::StreamGenerate
            | Route::CountTokens => method == Method::POST,
            Route::Models | Route::Model => method == Method::GET || method == Method::HEAD,
            Route::Alive => method == Method::HEAD,
        };
        assert!(is_fit, "{method} {path}: {route:?}");
        if let Ok(model) = request::model(&llm(kind, false), path) {
            assert!(model["id"] == "fixed" || model["name"] == "models/fixed");
        }
        if !matches!(route, Route::CountTokens) && !route.is_turn() {
            continue;
        }
        if kind == ProviderKind::Gemini {
            named(route, path, body);
            continue;
        }
        for server in [false, true] {
            sent(&llm(kind, server), route, body);
        }
    }
}

fn header_lines(lines: &str) -> HeaderMap {
    let mut headers = HeaderMap::new();
    for (name, value) in lines.lines().take(100).filter_map(|line| line.split_once(':')) {
        let name = HeaderName::from_bytes(name.as_bytes());
        if let (Ok(name), Ok(value)) = (name, HeaderValue::from_str(value.trim())) {
            headers.append(name, value);
        }
    }
    headers
}

/// What goes on of a client's headers is the provider's own, bounded and shown, and no credential.
fn passed(headers: &HeaderMap) {
    let apis = KINDS.iter().map(|kind| llm(*kind, false));
    let chatgpt = Llm { service: Service::ChatGpt, ..llm(ProviderKind::OpenAi, false) };
    for llm in apis.chain([chatgpt]) {
        let Ok(passed) = head::passed_on(&llm, headers, None) else { continue };
        assert!(passed.headers.len() <= 32);
        for (name, value) in &passed.headers {
            let is_theirs = match llm.service {
                Service::Api => name.as_str().starts_with("anthropic-"),
                Service::ChatGpt => !["chatgpt-account-id", "host", "accept"].contains(&name.as_str()),
            };
            assert!(is_theirs && value.to_str().is_ok(), "{name}");
            let mut words = name.as_str().split(['-', '_']);
            assert!(!words.any(|word| ["key", "token", "cookie", "auth"].contains(&word)), "{name}");
        }
    }
}

fn gate(headers: &HeaderMap) {
    if Gate::new(([127, 0, 0, 1], 4321).into(), TOKEN.into()).check(headers).is_err() {
        return;
    }
    let hosts: Vec<_> = headers.get_all("host").iter().collect();
    let ours = ["127.0.0.1:4321", "localhost:4321", "[::1]:4321"];
    assert!(hosts.len() == 1 && ours.iter().any(|name| hosts[0] == name), "{hosts:?}");
    assert!(!headers.contains_key("origin"));
    let shown = ["authorization", "x-api-key", "x-goog-api-key"].iter().filter_map(|name| headers.get(*name));
    assert!(shown.filter_map(|value| value.to_str().ok()).any(|value| value.ends_with(TOKEN)));
}

/// A profile's model; with an address of its own, or the provider's.
fn llm(provider: ProviderKind, server: bool) -> Llm {
    Llm {
        name: "m".into(),
        provider,
        service: Service::Api,
        model: "fixed".into(),
        api_key: None,
        auth: None,
        base_url: server.then(|| "http://127.0.0.1:1".parse().expect("a URL")),
        max_tokens: u32::try_from(MOST).unwrap_or(u32::MAX),
        price: Default::default(),
        options: Map::from_iter([("temperature".to_owned(), json!(0))]),
        models: Vec::new(),
        provider_tools: Vec::new(),
        prompt_cache: true,
        max_mcp_rounds: 1,
        max_rounds: 1,
        timeout: Duration::from_secs(1),
        runtime_timeout: Duration::from_secs(1),
    }
}

/// Of an API that has the model in the path: what goes on leads there, and to no other.
fn named(route: Route, path: &str, body: &[u8]) {
    let kind = ProviderKind::Gemini;
    let asked = request::model_in_path(kind, path);
    let any = Llm { models: vec!["*".into()], ..llm(kind, false) };
    if let Ok(rewritten) = request::rewrite_for(&any, (route, asked.as_deref()), body) {
        let name = rewritten.path.strip_prefix("v1beta/models/").and_then(|rest| rest.split_once(':'));
        let (name, method) = name.expect("a model and its method");
        assert!(method.bytes().all(|byte| byte.is_ascii_alphabetic()), "{method}");
        assert!(
            asked.as_deref().is_none_or(|asked| asked == name) && !name.contains(['/', '%', '?']),
            "{name}"
        );
    }
    let Ok(rewritten) = request::rewrite_for(&llm(kind, false), (route, asked.as_deref()), body) else {
        return;
    };
    assert!(rewritten.path.starts_with("v1beta/models/fixed:"), "{}", rewritten.path);
    assert_eq!(rewritten.streams, route == Route::StreamGenerate);
    let Ok(sent) = serde_json::from_slice::<Map<String, Value>>(&rewritten.body) else { return };
    let of = |key: &str| key.to_lowercase().replace(['_', '-'], "");
    let sent = match sent.get("generateContentRequest") {
        Some(inner) => {
            assert_eq!(inner["model"], "models/fixed");
            inner.as_object().cloned().unwrap_or_default()
        }
        None => sent,
    };
    let many = sent.keys().filter(|key| of(key) == "generationconfig").count();
    assert!(many <= 1 && !sent.keys().any(|key| matches!(of(key).as_str(), "models" | "modelname")));
    for kept in ["cachedContent", "cached_content"] {
        assert!(sent.get(kept).is_none_or(|kept| kept.is_null() || kept == ""));
    }
    if route.is_turn() {
        assert_eq!((&sent["temperature"], sent.get("model")), (&json!(0), None));
        let how = &sent["generationConfig"];
        assert!(how["maxOutputTokens"].as_u64().is_some_and(|most| most <= MOST), "{how}");
        let keys = how.as_object().into_iter().flatten().map(|(key, _)| of(key));
        let odd =
            |key: &String| key == "candidatecount" || key.contains("model") || key.starts_with("routing");
        assert!(
            !keys.clone().any(|key| odd(&key)) && keys.filter(|key| key == "maxoutputtokens").count() == 1
        );
        let budget = &how["thinkingConfig"]["thinkingBudget"];
        assert!(budget.is_null() || budget.as_i64().is_some_and(|budget| budget < MOST as i64), "{budget}");
    }
}

fn sent(llm: &Llm, route: Route, body: &[u8]) {
    let Ok(rewritten) = request::rewrite(llm, route, body) else { return };
    let Ok(sent) = serde_json::from_slice::<Map<String, Value>>(&rewritten.body) else {
        // What is JSON by its form alone goes on as it is, and is the provider's to refuse.
        assert!(serde_json::from_slice::<Value>(body).is_err());
        return;
    };
    assert_eq!(sent["model"], "fixed");
    let Ok(asked) = serde_json::from_slice::<Map<String, Value>>(body) else { panic!("it was none") };
    if route.is_turn() {
        assert_eq!(sent["temperature"], 0);
        let limits: Vec<_> = LIMITS.iter().filter_map(|key| sent.get(*key)).collect();
        assert!(!limits.is_empty(), "no limit is the provider's own");
        assert!(limits.iter().all(|limit| limit.as_u64().is_some_and(|limit| limit <= MOST)), "{limits:?}");
    }
    if route == Route::Respond {
        assert!(sent["max_output_tokens"].as_u64().is_some_and(|limit| limit <= MOST));
        assert_eq!(sent["store"], false, "nothing is kept at the provider");
        for key in KEPT {
            assert!(sent.get(key).is_none_or(|kept| kept.is_null() || *kept == false), "{key}");
        }
        let items = sent.get("input").and_then(Value::as_array).into_iter().flatten();
        assert!(items.into_iter().all(|item| item["type"] != "item_reference"));
    }
    assert_eq!(rewritten.streams, asked.get("stream") == Some(&Value::Bool(true)));
    assert!(asked.get("stream").is_none_or(|stream| stream.is_boolean() || stream.is_null()));
    let stores = if route == Route::Respond { "store" } else { "model" };
    let fixed = ["model", "temperature", "stream_options", stores];
    // How many answers there are is the profile's to say; and what only looks like one of the names that are ours is left out.
    let dropped = [
        "n",
        "n_cmpl",
        "best_of",
        "models",
        "fallbacks",
        "route",
        "preset",
        "context_window_fallbacks",
        "content_policy_fallbacks",
        "extra_body",
        "plugins",
        "user_config",
        "model_list",
    ];
    let is_ours = |key: &str| {
        [&fixed[..], &LIMITS, &dropped, &KEPT, &["messages", "input", "stream", "tools"]]
            .concat()
            .contains(&key)
    };
    for (key, value) in asked.iter().filter(|(key, _)| !fixed.contains(&key.as_str())) {
        match sent.get(key) {
            Some(sent) => assert!(LIMITS.contains(&key.as_str()) || sent == value, "{key}"),
            None => {
                assert!(is_ours(&request::folded(key)), "{key}")
            }
        }
    }
}

/// A provider's answer, in pieces: the first byte says whose and how long they are. Where it is cut changes nothing, no
/// credential goes out, what goes out is read again as it was read, and the same bytes have the same calls whatever they are
/// said to be, or are refused.
pub fn relay(data: &[u8]) {
    let Some((&how, stream)) = data.split_first() else { return };
    let wire = match (how & 1, how & 128) {
        (0, 0) => Wire::Messages,
        (0, _) => Wire::GenerateContent,
        (_, 0) => Wire::ChatCompletions,
        _ => Wire::Responses,
    };
    // A credential is where the input has a NUL: the fuzzer need not guess it.
    let stream = stream.split(|byte| *byte == 0).collect::<Vec<_>>().join(KEY.as_bytes());
    let redactor = Redactor::new([&Secret::from(KEY.to_owned())]);
    // A credential in pieces goes out without itself, and is taken out of the calls before they are on record.
    let told = |calls: &[ToolCall]| redactor.text(&format!("{calls:?}")).into_owned();
    let relayed = |stream: &[u8], size: usize| {
        let mut relay = Relay::new(wire, how & 2 != 0, how & 4 != 0);
        let mut out = Vec::new();
        for piece in stream.chunks(size) {
            out.extend(relay.feed(piece, &redactor)?);
        }
        let (rest, outcome) = relay.finish(true, &redactor);
        out.extend(rest);
        match &outcome.refused {
            Some(why) => Err(why.clone()),
            None => Ok((out, told(&outcome.tool_calls), format!("{outcome:?}"))),
        }
    };
    let streamed = relayed(&stream, stream.len().max(1));
    assert_eq!(relayed(&stream, usize::from((how & 127) >> 3) + 1), streamed);
    if let Ok((out, calls, _)) = &streamed {
        assert!(!String::from_utf8_lossy(out).contains(KEY));
        let (again, same, _) = relayed(out, 1).expect("what went out can be read");
        assert_eq!((&again, &same), (out, calls));
    }
    for is_error in [false, true] {
        let whole = Relay::new(wire, how & 2 != 0, how & 4 != 0).whole(is_error, &stream, &redactor);
        if whole.outcome.refused.is_some() {
            continue;
        }
        let text = String::from_utf8(whole.body).expect("what goes out is text");
        assert!(!text.contains(KEY));
        let calls = told(&whole.outcome.tool_calls);
        match &streamed {
            Ok((out, streamed, _)) => {
                assert!(calls == *streamed && (text.is_empty() || text.as_bytes() == out))
            }
            // JSON, or an error's text.
            Err(_)
                if serde_json::from_str::<Value>(&text).is_ok_and(|value| is_error || value.is_object()) => {}
            Err(why) => assert!(is_error && whole.outcome.tool_calls.is_empty(), "{why}"),
        }
    }
}
