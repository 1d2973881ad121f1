//! Requests to Gemini as they are sent on.

use super::*;
use crate::{
    http::request::{Rewritten, rewrite, rewrite_for},
    samples,
};
use ringfence_policy::agents::registry::ProviderKind;
use serde_json::json;

fn llm() -> Llm {
    Llm { provider: ProviderKind::Gemini, model: "fixed".into(), max_tokens: 100, ..samples::config().llm }
}

fn with_options(options: &Value) -> Llm {
    Llm { options: options.as_object().cloned().unwrap(), ..llm() }
}

fn of(llm: &Llm, body: &Value) -> Result<Value, String> {
    let done = rewrite(llm, Route::StreamGenerate, body.to_string().as_bytes())?;
    Ok(serde_json::from_slice(&done.body).unwrap())
}

fn sent(body: &Value) -> Value {
    of(&llm(), body).unwrap()
}

fn counted(body: &Value) -> Result<Value, String> {
    let done = rewrite_for(&llm(), (Route::CountTokens, Some("theirs")), body.to_string().as_bytes())?;
    Ok(serde_json::from_slice(&done.body).unwrap())
}

#[test]
fn the_model_is_that_of_the_path_and_nothing_else_names_one() {
    let several = Llm { models: vec!["small".into()], ..llm() };
    let any = Llm { models: vec!["*".into()], model: "*".into(), ..llm() };
    let at = |llm: &Llm, route: Route, name: &str| {
        rewrite_for(llm, (route, Some(name)), br#"{"model":"big","contents":[]}"#)
    };
    let path = |done: Result<Rewritten, String>| done.map(|done| done.path.into_owned());
    for (llm, asked, sent) in [
        (&llm(), "theirs", "fixed"),
        (&several, "small", "small"),
        (&several, "fixed", "fixed"),
        (&any, "gemini-2.5-pro", "gemini-2.5-pro"),
    ] {
        let expected = format!("v1beta/models/{sent}:streamGenerateContent");
        assert_eq!(path(at(llm, Route::StreamGenerate, asked)), Ok(expected), "{asked}");
    }
    assert_eq!(path(at(&llm(), Route::Generate, "x")).unwrap(), "v1beta/models/fixed:generateContent");
    assert_eq!(path(at(&llm(), Route::CountTokens, "x")).unwrap(), "v1beta/models/fixed:countTokens");
    assert!(at(&several, Route::Generate, "big").unwrap_err().contains("and no model \"big\""));
    for odd in [
        "",
        "../x",
        "a/b",
        "a:generateContent?x",
        "a%2Fb",
        "a b",
        "x?key=1",
        "x#",
        "\u{e9}",
        ".../..",
        "a\\b",
    ] {
        assert!(at(&any, Route::Generate, odd).unwrap_err().contains("is no model's name"), "{odd}");
    }
    // The profile's own may have anything in it.
    let own = Llm { model: "maker/one two?".into(), ..llm() };
    assert_eq!(
        path(at(&own, Route::Generate, "x")).unwrap(),
        "v1beta/models/maker/one%20two%3F:generateContent"
    );
    for key in ["model", "Model", "models", "model_name", "modelId", "fallbacks", "extra_body", "extraBody"] {
        let body = sent(&json!({ key: "big", "contents": [] }));
        assert!(key == "extraBody" || body.get(key).is_none(), "{key}: {body}");
    }
    let how = json!({ "routingConfig": { "manualMode": { "modelName": "big" } }, "routing_config": {}, "modelConfig": {},
        "model_selection_config": {}, "topK": 3 });
    assert_eq!(
        sent(&json!({ "generation_config": how }))["generationConfig"],
        json!({ "topK": 3, "maxOutputTokens": 100 })
    );
}

#[test]
fn the_most_tokens_are_the_profile_s_in_either_spelling() {
    for key in ["maxOutputTokens", "max_output_tokens"] {
        for outer in ["generationConfig", "generation_config"] {
            for (asked, most) in [
                (json!(7), 7),
                (json!(5000), 100),
                (json!("5000"), 100),
                (json!(null), 100),
                (json!(1e9), 100),
            ] {
                let body = sent(&json!({ outer: { key: asked, "candidate_count": 8, "CandidateCount": 8 } }));
                assert_eq!(body, json!({ "generationConfig": { "maxOutputTokens": most } }), "{asked}");
            }
        }
    }
    for nothing in [json!({}), json!({ "generationConfig": null }), json!({ "generationConfig": {} })] {
        assert_eq!(sent(&nothing), json!({ "generationConfig": { "maxOutputTokens": 100 } }));
    }
    for twice in [
        json!({ "generationConfig": {}, "generation_config": {} }),
        json!({ "generationConfig": { "maxOutputTokens": 1, "max_output_tokens": 1 } }),
        json!({ "generationConfig": { "thinkingConfig": { "thinkingBudget": 1, "thinking_budget": 1 } } }),
    ] {
        assert!(of(&llm(), &twice).unwrap_err().contains("under two spellings"), "{twice}");
    }
    for odd in [json!([]), json!("x"), json!(7)] {
        assert!(of(&llm(), &json!({ "generationConfig": odd })).is_err(), "{odd}");
    }
    let unlimited = Llm { max_tokens: UNLIMITED_TOKENS, ..llm() };
    let body = json!({ "generationConfig": { "maxOutputTokens": 5000, "thinkingConfig": { "thinkingBudget": 9000 } } });
    assert_eq!(of(&unlimited, &body), Ok(body));
}

#[test]
fn thinking_fits_below_the_most_tokens() {
    for (asked, fits) in [
        (json!(-1), json!(-1)),
        (json!(0), json!(0)),
        (json!(99), json!(99)),
        (json!(100), json!(99)),
        (json!(24_576), json!(99)),
        (json!("24576"), json!(99)),
        (json!(1e9), json!(99)),
        (json!(null), json!(null)),
    ] {
        for key in ["thinkingBudget", "thinking_budget"] {
            for outer in ["thinkingConfig", "thinking_config"] {
                let body =
                    sent(&json!({ "generationConfig": { outer: { key: asked, "includeThoughts": true } } }));
                let thinking = json!({ "thinkingBudget": fits, "includeThoughts": true });
                assert_eq!(body["generationConfig"]["thinkingConfig"], thinking, "{asked}");
            }
        }
    }
    let less = sent(
        &json!({ "generationConfig": { "maxOutputTokens": 50, "thinkingConfig": { "thinkingBudget": 60 } } }),
    );
    assert_eq!(less["generationConfig"]["thinkingConfig"]["thinkingBudget"], 49);
}

#[test]
fn options_go_before_the_client_s_name_by_name() {
    let own = with_options(
        &json!({ "generation_config": { "temperature": 0, "candidate_count": 2, "max_output_tokens": 300 },
        "safetySettings": [{ "category": "x" }], "tools": [] }),
    );
    assert!(has_many(&own) && !has_many(&llm()));
    let body = json!({ "generationConfig": { "temperature": 1, "topK": 3, "candidateCount": 8, "maxOutputTokens": 5000 },
        "safety_settings": [], "tools": [{ "googleSearch": {} }], "contents": [] });
    let expected = json!({ "generationConfig": { "temperature": 0, "topK": 3, "candidateCount": 2, "maxOutputTokens": 100 },
        "safetySettings": [{ "category": "x" }], "tools": [], "contents": [] });
    assert_eq!(of(&own, &body), Ok(expected));
    assert!(of(&with_options(&json!({ "generationConfig": 7 })), &body).is_err());
}

#[test]
fn nothing_is_kept_at_the_provider() {
    for key in ["cachedContent", "cached_content"] {
        let why = of(&llm(), &json!({ key: "cachedContents/x" })).unwrap_err();
        assert!(why.contains("refers to what the provider keeps"), "{why}");
        assert!(counted(&json!({ key: "cachedContents/x" })).is_err());
        assert!(counted(&json!({ "generateContentRequest": { key: "cachedContents/x" } })).is_err());
        assert!(of(&llm(), &json!({ key: "" })).is_ok() && of(&llm(), &json!({ key: null })).is_ok());
        assert!(of(&with_options(&json!({ key: "cachedContents/own" })), &json!({ key: "x" })).is_ok());
    }
    for store in [json!(true), json!("true"), json!(1)] {
        assert_eq!(sent(&json!({ "store": store }))["store"], false);
    }
    assert_eq!(sent(&json!({})).get("store"), None);
}

#[test]
fn what_is_counted_is_looked_at_as_what_is_asked() {
    let inner = json!({ "model": "models/big", "contents": [], "generation_config": { "topK": 1 } });
    for key in ["generateContentRequest", "generate_content_request"] {
        let got = counted(&json!({ key: inner, "model": "big" })).unwrap();
        let expected = json!({ "generateContentRequest": { "model": "models/fixed", "contents": [], "generationConfig": { "topK": 1 } } });
        assert_eq!(got, expected);
        assert!(counted(&json!({ key: { "tools": [{ "google_search": {} }] } })).is_err());
        assert!(counted(&json!({ key: inner, "contents": [] })).is_err());
        assert!(counted(&json!({ key: { key: inner } })).is_err());
        assert!(of(&llm(), &json!({ key: inner })).is_err());
    }
    assert_eq!(counted(&json!({ "contents": [] })), Ok(json!({ "contents": [] })));
}

#[test]
fn calls_in_pieces_are_not_asked_for() {
    for (outer, middle, inner) in [
        ("toolConfig", "functionCallingConfig", "streamFunctionCallArguments"),
        ("tool_config", "function_calling_config", "stream_function_call_arguments"),
    ] {
        let with = |on: bool| json!({ outer: { middle: { "mode": "AUTO", inner: on } } });
        assert!(of(&llm(), &with(true)).unwrap_err().contains("calls in pieces"));
        assert!(of(&llm(), &with(false)).is_ok());
    }
}
