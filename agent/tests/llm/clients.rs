//! What unmodified clients need of the endpoint: how the key goes out, a fresh one when it was refused, streams that end.

use crate::{
    http::{ask, hello},
    mock::{Mock, says},
    support::{Home, turn, user},
};
use serde_json::json;

const TOKEN: &str = "sk-ant-oat01-of-a-subscription";
const BETA: &str = "oauth-2025-04-20";

/// The agent `a`, whose key is this.
fn with_key(mock: &Mock, key: &str, more: &str) -> Home {
    let home = Home::empty();
    home.profile(
        "a",
        &format!(
            "http = true\n[llm.m]\nprovider = \"anthropic\"\nmodel = \"m\"\nbase_url = \"{}\"\n{key}\n{more}\n",
            mock.url
        ),
    );
    home
}

#[test]
fn a_key_is_sent_as_its_form_or_the_profile_says() {
    let bearer = |token: &str| Some(format!("Bearer {token}"));
    for (key, auth, api_key, authorization, beta) in [
        ("sk-ant-api03-of-a", "", Some("sk-ant-api03-of-a"), None, None),
        (TOKEN, "", None, bearer(TOKEN), Some(BETA)),
        (TOKEN, "auth = \"api-key\"", Some(TOKEN), None, None),
        // A gateway's own token is none of Anthropic's OAuth.
        ("sk-gateway-token", "auth = \"bearer\"", None, bearer("sk-gateway-token"), None),
    ] {
        let mock = Mock::with([says(&["x"]), says(&["y"])]);
        let home = with_key(&mock, &format!("api_key = \"{key}\""), auth);
        let (_daemon, mut runtime) = home.serve();
        runtime.write(&turn(1, json!([user("hi")])));
        assert_eq!(runtime.answer().0["result"]["stop_reason"], "end_turn");
        let turned = mock.last();
        let headers = "x-api-key: theirs\r\nauthorization: Bearer theirs\r\nanthropic-beta: a-1\r\n";
        let got = ask(&home, "POST", "/v1/messages", headers, hello().to_string().as_bytes());
        assert_eq!((got.status, got.whole), (200, true));
        for asked in [&turned, &mock.last()] {
            assert_eq!(asked.header("x-api-key"), api_key, "{key}");
            assert_eq!(asked.header("authorization"), authorization.as_deref(), "{key}");
        }
        assert_eq!(turned.header("anthropic-beta"), beta, "{key}");
        // The client's features go with ours, in one list.
        let both = beta.map_or("a-1".to_owned(), |beta| format!("{beta},a-1"));
        assert_eq!(mock.last().header("anthropic-beta"), Some(both.as_str()), "{key}");
    }
}
