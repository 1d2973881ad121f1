//! The model and the most tokens are the profile's, whatever a request calls them.

use super::*;

#[test]
fn no_field_brings_another_model_with_it() {
    let keys = ["extra_body", "plugins", "user_config", "model_list", "Plugins"];
    for kind in [ProviderKind::OpenAi, ProviderKind::Anthropic] {
        for key in keys {
            let (got, _) = rewritten(kind, json!({ key: [{ "model": "big" }], "user": "u" }));
            assert_eq!((got.get(key), &got["user"], &got["model"]), (None, &json!("u"), &json!("fixed")));
        }
        let mut own = llm(kind);
        own.options.insert("plugins".into(), json!([{ "id": "web" }]));
        let done = rewrite(&own, Route::Complete, br#"{"plugins":[{"model":"big"}]}"#).unwrap();
        let got: Value = serde_json::from_slice(&done.body).unwrap();
        assert_eq!(got["plugins"], json!([{ "id": "web" }]), "the profile's own");
        let tool = json!({ "tools": [{ "type": "advisor_20260301", "name": "advisor", "model": "big" }] });
        for route in [Route::Complete, Route::CountTokens] {
            let refused = rewrite(&llm(kind), route, tool.to_string().as_bytes()).unwrap_err();
            assert!(refused.contains("may not name a model"), "{refused}");
        }
        own.options.insert("tools".into(), json!([]));
        assert!(rewrite(&own, Route::Complete, tool.to_string().as_bytes()).is_ok(), "none goes on");
    }
}

#[test]
fn no_other_name_of_the_most_tokens_says_more() {
    let names = ["n_predict", "num_predict", "max_new_tokens", "max_output_tokens", "max_tokens_to_sample"];
    for kind in [ProviderKind::OpenAi, ProviderKind::Anthropic] {
        let own = if kind == ProviderKind::OpenAi { "max_completion_tokens" } else { "max_tokens" };
        for name in names {
            for more in [json!(5000), json!(-1), json!(null), json!("5000"), json!(1e9)] {
                let (got, _) = rewritten(kind, json!({ name: more, "max_tokens": 7 }));
                assert_eq!((&got[name], &got["max_tokens"]), (&json!(100), &json!(7)), "{name} {more}");
            }
            let (got, _) = rewritten(kind, json!({ name: 7 }));
            assert_eq!((&got[name], &got[own]), (&json!(7), &json!(100)), "{name}: less is theirs to say");
            let (got, _) = rewritten(kind, json!({ name.to_uppercase(): 5000 }));
            assert_eq!(got.as_object().unwrap().len(), 3, "{name}");
            let mut profile = llm(kind);
            profile.options.insert(name.into(), json!(300));
            let done = rewrite(&profile, Route::Complete, json!({ name: 5000 }).to_string().as_bytes());
            let got: Value = serde_json::from_slice(&done.unwrap().body).unwrap();
            assert_eq!(got[name], 300, "the profile's own");
        }
    }
    let (got, _) = rewritten(ProviderKind::OpenAi, json!({ "n_cmpl": 50, "N_CMPL": 50 }));
    assert_eq!((got.get("n_cmpl"), got.get("N_CMPL")), (None, None));
    let mut many = llm(ProviderKind::OpenAi);
    many.options.insert("n_cmpl".into(), json!(2));
    let done = rewrite(&many, Route::Complete, br#"{"n_cmpl":50}"#).unwrap();
    assert!(done.has_many && String::from_utf8(done.body).unwrap().contains(r#""n_cmpl":2"#));
}
