//! Requests as they are sent on.

use super::*;
use crate::samples;
use serde_json::{Map, json};

mod names;

pub(super) fn llm(provider: ProviderKind) -> Llm {
    let options = Map::from_iter([("temperature".to_owned(), json!(0))]);
    Llm { provider, model: "fixed".into(), max_tokens: 100, options, ..samples::config().llm }
}

pub(super) fn rewritten(provider: ProviderKind, body: Value) -> (Value, bool) {
    let done = rewrite(&llm(provider), Route::Complete, body.to_string().as_bytes()).unwrap();
    (serde_json::from_slice(&done.body).unwrap(), done.hides_usage)
}

#[test]
fn the_profile_fixes_model_options_and_most_tokens_and_nothing_else_changes() {
    let sent =
        json!({ "model": "theirs", "temperature": 1, "max_tokens": 5000, "unknown": [1.50], "messages": [] });
    let (got, _) = rewritten(ProviderKind::Anthropic, sent);
    assert_eq!(
        got,
        json!({ "model": "fixed", "temperature": 0, "max_tokens": 100, "unknown": [1.50], "messages": [] })
    );
    let (got, _) = rewritten(ProviderKind::Anthropic, json!({ "max_tokens": 7 }));
    assert_eq!(got["max_tokens"], 7);
    let both = json!({ "max_tokens": 7, "max_completion_tokens": 5000 });
    let (got, _) = rewritten(ProviderKind::OpenAi, both);
    assert_eq!((&got["max_tokens"], &got["max_completion_tokens"]), (&json!(7), &json!(100)));
    for loose in [json!(1e9), json!("5000"), json!(null), json!(-1), json!([5000])] {
        let (got, _) = rewritten(ProviderKind::Anthropic, json!({ "max_tokens": loose }));
        assert_eq!(got["max_tokens"], 100, "{loose}");
    }
    let (got, hides) = rewritten(ProviderKind::OpenAi, json!({ "stream": true, "max_tokens": 101 }));
    assert_eq!((&got["max_tokens"], got.get("max_completion_tokens")), (&json!(100), None));
    assert!(hides && got["stream_options"]["include_usage"] == true);
    let (got, hides) = rewritten(
        ProviderKind::OpenAi,
        json!({ "stream": true, "stream_options": { "include_usage": true } }),
    );
    assert!(!hides && got["max_completion_tokens"] == 100);
    // Several answers only if the profile says so.
    let (got, _) = rewritten(ProviderKind::OpenAi, json!({ "n": 50, "best_of": "9", "max_tokens": 7 }));
    assert_eq!((got.get("n"), got.get("best_of"), &got["max_tokens"]), (None, None, &json!(7)));
    let mut many = llm(ProviderKind::OpenAi);
    many.options.insert("n".into(), json!(2));
    let done = rewrite(&many, Route::Complete, br#"{"n":50,"N":60,"best_of":3}"#).unwrap();
    assert!(
        done.has_many
            && !rewrite(&llm(ProviderKind::OpenAi), Route::Complete, br#"{"n":50}"#).unwrap().has_many
    );
    let got: Value = serde_json::from_slice(&done.body).unwrap();
    assert_eq!((&got["n"], got.get("N"), got.get("best_of")), (&json!(2), None, None));
    // What a parser that ignores case takes for one of these names is none of the client's.
    let alike =
        ["Model", "MAX_TOKENS", "max_to\u{212a}ens", "max_token\u{17f}", "N", "Temperature", "\u{17f}tream"];
    for key in alike {
        let (got, _) = rewritten(ProviderKind::OpenAi, json!({ key: 5000, "Other": 1, "\u{212a}": 2 }));
        let keys: Vec<&String> = got.as_object().unwrap().keys().collect();
        let left = ["Other", "max_completion_tokens", "model", "temperature", "\u{212a}"];
        assert_eq!(keys, left, "{key}");
    }
    let twice = br#"{"model":"a","messages":[],"model":"b"}"#;
    let done = rewrite(&llm(ProviderKind::OpenAi), Route::Complete, twice).unwrap();
    assert_eq!(String::from_utf8(done.body).unwrap().matches("\"model\"").count(), 1);
    for bad in ["[]", "", "{", "\"x\""] {
        assert!(rewrite(&llm(ProviderKind::OpenAi), Route::Complete, bad.as_bytes()).is_err(), "{bad}");
    }
}

#[test]
fn a_stream_is_asked_for_plainly_or_not_at_all() {
    let openai = llm(ProviderKind::OpenAi);
    let of = |body: &str| rewrite(&openai, Route::Complete, body.as_bytes());
    for odd in ["1", "\"true\"", "[true]", "{}", "0"] {
        for &kind in ProviderKind::ALL {
            let body = format!(r#"{{"stream":{odd}}}"#);
            assert!(rewrite(&llm(kind), Route::Complete, body.as_bytes()).is_err(), "{odd}");
        }
    }
    for odd in ["1", "\"x\"", "[]", "true"] {
        assert!(of(&format!(r#"{{"stream":true,"stream_options":{odd}}}"#)).is_err(), "{odd}");
    }
    for (plain, streams) in [("true", true), (" false ", false), ("null", false)] {
        assert_eq!(of(&format!(r#"{{"stream":{plain}}}"#)).unwrap().streams, streams, "{plain}");
    }
    // The last one counts, and goes out alone.
    let twice = r#"{"stream":false,"stream":true,"Stream":false,"stream_options":null,"Stream_Options":{"include_usage":false},
        "stream_options":{"include_usage":true,"include_usage":false,"Include_Usage":false,"x":1}}"#;
    let done = of(twice).unwrap();
    let sent = String::from_utf8(done.body).unwrap();
    assert!(done.streams && done.hides_usage);
    let count = |name: &str| sent.to_lowercase().matches(name).count();
    assert_eq!(
        (count("\"stream\""), count("\"stream_options\""), count("\"include_usage\"")),
        (1, 1, 1),
        "{sent}"
    );
    let sent: Value = serde_json::from_str(&sent).unwrap();
    assert_eq!(sent["stream_options"], json!({ "include_usage": true, "x": 1 }));
}

#[test]
fn the_model_is_the_profiles_whoever_passes_the_request_on() {
    let mut openai = llm(ProviderKind::OpenAi);
    let body = json!({ "models": ["a"], "Models": ["a"], "fallbacks": ["a"], "route": "fallback", "ROUTE": "x",
        "preset": "a", "routes": 1 });
    let keys = |llm: &Llm| {
        let done = rewrite(llm, Route::Complete, body.to_string().as_bytes()).unwrap();
        let got: BTreeMap<String, Value> = serde_json::from_slice(&done.body).unwrap();
        got
    };
    let got = keys(&openai);
    assert_eq!(got.keys().collect::<Vec<_>>(), ["max_completion_tokens", "model", "routes", "temperature"]);
    openai.options.insert("models".into(), json!(["b"]));
    assert_eq!(keys(&openai)["models"], json!(["b"]), "the profile's own");
}

#[test]
fn a_request_of_too_many_values_is_not_read() {
    let of = |many: usize| format!(r#"{{"messages":[{}0]}}"#, "0,".repeat(many));
    let done = |body: &str| rewrite(&llm(ProviderKind::OpenAi), Route::Complete, body.as_bytes());
    assert!(done(&of(1 << 21)).unwrap_err().contains("too many values"));
    assert_eq!(done(&of(1 << 10)).unwrap().messages.len(), (1 << 10) + 1);
}

#[test]
fn a_budget_for_thinking_stays_below_the_most_tokens() {
    let of = |most: u32, body: Value| {
        let llm = Llm { max_tokens: most, ..llm(ProviderKind::Anthropic) };
        let done = rewrite(&llm, Route::Complete, body.to_string().as_bytes())?;
        let sent: Value = serde_json::from_slice(&done.body).unwrap();
        Ok::<_, String>((sent["max_tokens"].clone(), sent["thinking"].clone()))
    };
    let thinking = |budget: Value| json!({ "type": "enabled", "budget_tokens": budget, "display": "x" });
    let asked = |max: u64, budget: u64| json!({ "max_tokens": max, "thinking": thinking(json!(budget)) });
    assert_eq!(of(8192, asked(32_000, 31_999)), Ok((json!(8192), thinking(json!(8191)))));
    assert_eq!(of(8192, asked(8192, 4096)), Ok((json!(8192), thinking(json!(4096)))), "it fits");
    assert_eq!(of(8192, asked(32_000, 4096)), Ok((json!(8192), thinking(json!(4096)))), "it still fits");
    assert_eq!(of(1025, asked(32_000, 31_999)), Ok((json!(1025), thinking(json!(1024)))));
    let error = of(1024, asked(32_000, 31_999)).unwrap_err();
    assert!(error.contains("the profile's max_tokens, 1024, leaves no room"), "{error}");
    // What was wrong before is the provider's to refuse.
    for wrong in [
        asked(8192, 8192),
        asked(4000, 5000),
        json!({ "max_tokens": 9000, "thinking": thinking(json!("9")) }),
    ] {
        assert_eq!(of(8192, wrong.clone()).unwrap().1, wrong["thinking"], "{wrong}");
    }
    assert_eq!(of(8192, json!({ "thinking": thinking(json!(9000)) })).unwrap().1, thinking(json!(9000)));
}

#[test]
fn paths_are_the_providers_own() {
    let (anthropic, openai) = (ProviderKind::Anthropic, ProviderKind::OpenAi);
    assert_eq!(route(anthropic, &Method::POST, "/v1/messages"), Ok(Route::Complete));
    assert_eq!(route(openai, &Method::POST, "/chat/completions"), Ok(Route::Complete));
    assert_eq!(route(openai, &Method::GET, "/v1/models"), Ok(Route::Models));
    assert_eq!(route(openai, &Method::HEAD, "/models"), Ok(Route::Models));
    assert_eq!(route(openai, &Method::GET, "/v1/models/a/b"), Ok(Route::Model));
    for root in ["", "/", "/v1", "/v1/"] {
        assert_eq!(route(anthropic, &Method::HEAD, root), Ok(Route::Alive), "{root}");
        assert_eq!(route(anthropic, &Method::GET, root).unwrap_err().0, 405);
    }
    assert_eq!(route(openai, &Method::HEAD, "/v1/chat/completions").unwrap_err().0, 405);
    assert_eq!(route(openai, &Method::POST, "/v1/models/a").unwrap_err().0, 405);
    assert_eq!(route(openai, &Method::POST, "/v1/messages").unwrap_err().0, 404);
    assert_eq!(route(anthropic, &Method::GET, "/v1/messages").unwrap_err().0, 405);
    assert_eq!(route(anthropic, &Method::POST, "/v1/files").unwrap_err().0, 404);
}

#[test]
fn the_path_of_a_model_s_method_has_its_name() {
    let gemini = ProviderKind::Gemini;
    for prefix in ["/v1beta", "/v1", ""] {
        for (method, expected) in [
            ("generateContent", Route::Generate),
            ("streamGenerateContent", Route::StreamGenerate),
            ("countTokens", Route::CountTokens),
        ] {
            let path = format!("{prefix}/models/a-1.5:{method}");
            assert_eq!(route(gemini, &Method::POST, &path), Ok(expected), "{path}");
            assert_eq!(route(gemini, &Method::GET, &path).unwrap_err().0, 405, "{path}");
            assert_eq!(model_in_path(gemini, &path).as_deref(), Some("a-1.5"));
            // Where the model is in the body, there is none in the path.
            assert_eq!(model_in_path(ProviderKind::OpenAi, &path), None);
        }
        assert_eq!(route(gemini, &Method::GET, &format!("{prefix}/models")), Ok(Route::Models));
        assert_eq!(route(gemini, &Method::GET, &format!("{prefix}/models/a")), Ok(Route::Model));
        assert_eq!(route(gemini, &Method::HEAD, prefix), Ok(Route::Alive));
    }
    for path in
        ["/v1betas/models/a:generateContent", "/v2/models/a:generateContent", "/models:generateContent"]
    {
        assert_eq!(route(gemini, &Method::POST, path).unwrap_err().0, 404, "{path}");
    }
    assert_eq!(model_in_path(gemini, "/v1/models/a%2Fb:c:generateContent").as_deref(), Some("a/b:c"));
    let any = Llm { models: vec!["*".into()], ..llm(gemini) };
    assert_eq!(model(&any, "/v1beta/models/a-1").unwrap()["name"], "models/a-1");
}

#[test]
fn a_model_is_the_profile_s_or_refused_by_name() {
    let one = Llm { model: "maker/one-1".into(), ..llm(ProviderKind::OpenAi) };
    for path in ["/v1/models/maker/one-1", "/models/maker%2Fone-1"] {
        assert_eq!(model(&one, path).unwrap()["id"], "maker/one-1", "{path}");
    }
    for path in ["/v1/models/maker/one", "/v1/models/", "/models/maker%2Fone-1/x", "/v1/models/%ff"] {
        let (status, why) = model(&one, path).unwrap_err();
        assert!(status == 404 && why.contains("has \"maker/one-1\", and no model"), "{why}");
    }
}

#[test]
fn a_client_chooses_among_the_models_that_the_profile_lists() {
    for &kind in ProviderKind::ALL {
        let several =
            Llm { models: vec!["small".into(), "large".into()], model: "large".into(), ..llm(kind) };
        let of = |llm: &Llm, body: Value| {
            let done = rewrite(llm, Route::Complete, body.to_string().as_bytes())?;
            Ok::<_, String>(serde_json::from_slice::<Value>(&done.body).unwrap()["model"].clone())
        };
        // Where the path has it, what stands in the body is none.
        if kind == ProviderKind::Gemini {
            continue;
        }
        for (asked, sent) in [
            (json!({ "model": "small" }), "small"),
            (json!({ "model": "large" }), "large"),
            (json!({}), "large"),
        ] {
            assert_eq!(of(&several, asked.clone()), Ok(json!(sent)), "{asked}");
        }
        for other in [json!("Small"), json!("small "), json!(""), json!("x".repeat(10_000))] {
            let why = of(&several, json!({ "model": other })).unwrap_err();
            assert!(why.len() < 300 && why.contains("has \"large\", \"small\", and no model"), "{why}");
        }
        for odd in [json!(null), json!(["small"]), json!(1)] {
            assert_eq!(of(&several, json!({ "model": odd })).unwrap_err(), "model is to be a text", "{odd}");
        }
        // The last one counts, and goes out alone; another name of it is none.
        let twice = br#"{"model":"large","model":"small","Model":"large"}"#;
        let sent = String::from_utf8(rewrite(&several, Route::Complete, twice).unwrap().body).unwrap();
        assert!(sent.contains(r#""model":"small""#) && !sent.contains("large"), "{sent}");
        assert_eq!(
            of(&llm(kind), json!({ "model": "small" })),
            Ok(json!("fixed")),
            "without a list it is replaced"
        );
        let listed = endpoint(first(kind)).models(&several.offered().collect::<Vec<_>>());
        assert_eq!((&listed["data"][0]["id"], &listed["data"][1]["id"]), (&json!("large"), &json!("small")));
    }
}
