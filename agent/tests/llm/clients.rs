//! What unmodified clients need of the endpoint: how the key goes out, a fresh one when it was refused, streams that end.

use crate::{
    http::{ask, connect, hello, home, post, read_if_any, request},
    mock::{Answer, Mock, anthropic_events, chunk, says, text_block},
    support::{Client, Daemon, Home, eventually, turn, user},
};
use serde_json::json;
use std::{fs, io::Write as _};

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

/// A provider that does not know the key.
fn unauthorized() -> Answer {
    let error = json!({ "type": "error", "error": { "type": "authentication_error", "message": "expired" } });
    Answer::Whole(401, "Content-Type: application/json\r\n".into(), error.to_string().into())
}

/// The agent `a`, whose key is what a command prints now.
fn with_command(mock: &Mock) -> Home {
    let home = Home::empty();
    home.write("key", "sk-of-before");
    let file = home.path("key").display().to_string();
    home.profile(
        "a",
        &format!(
            "http = true\n[llm.m]\nprovider = \"anthropic\"\nmodel = \"m\"\nbase_url = \"{}\"\napi_key_command = [\"cat\", \"{file}\"]\n",
            mock.url
        ),
    );
    home
}

/// Starts it as an ordinary user: root runs no such command.
fn start(home: &Home) -> Daemon<'_> {
    let mut command = home.ringfence(&["agent", "start"]);
    home.is_an_ordinary_users(&mut command);
    let daemon = home.started(&mut command);
    drop(connect(home));
    daemon
}

/// The keys that the provider was sent.
fn keys(mock: &Mock) -> Vec<String> {
    mock.asked().iter().map(|asked| asked.header("x-api-key").unwrap_or_default().to_owned()).collect()
}

#[test]
fn a_call_whose_key_was_refused_goes_out_once_more_with_a_fresh_one() {
    let mock = Mock::with([unauthorized(), says(&["fresh"]), says(&["and"])]);
    let home = with_command(&mock);
    let _daemon = start(&home);
    fs::write(home.path("key"), "sk-of-today").unwrap();
    let got = post(&home, "/v1/messages", &hello());
    assert_eq!((got.status, got.whole), (200, true));
    assert_eq!(keys(&mock), ["sk-of-before", "sk-of-today"]);
    assert_eq!(mock.asked()[0].body, mock.asked()[1].body);
    assert_eq!(post(&home, "/v1/messages", &hello()).status, 200);
    assert_eq!(keys(&mock)[2..], ["sk-of-today"]);
}

#[test]
fn a_fresh_key_that_is_refused_as_well_is_the_client_s_to_hear_of() {
    let mock = Mock::with([unauthorized(), unauthorized(), unauthorized()]);
    let home = with_command(&mock);
    let _daemon = start(&home);
    fs::write(home.path("key"), "sk-of-today").unwrap();
    let got = post(&home, "/v1/messages", &hello());
    assert_eq!((got.status, got.json()["error"]["message"].as_str()), (401, Some("expired")));
    assert_eq!(keys(&mock), ["sk-of-before", "sk-of-today"]);
    // Soon after it nobody is asked again.
    assert_eq!(post(&home, "/v1/messages", &hello()).status, 401);
    assert_eq!(keys(&mock).len(), 3);
}

#[test]
fn the_same_key_is_not_tried_twice() {
    let mock = Mock::with([unauthorized()]);
    let home = with_command(&mock);
    let _daemon = start(&home);
    assert_eq!(post(&home, "/v1/messages", &hello()).status, 401);
    assert_eq!(keys(&mock), ["sk-of-before"]);
}

#[test]
fn a_turn_whose_key_was_refused_fails_and_the_next_has_a_fresh_one() {
    let mock = Mock::with([unauthorized()]);
    let home = with_command(&mock);
    let _daemon = start(&home);
    let mut runtime = Client::runtime(&home.socket("a"));
    fs::write(home.path("key"), "sk-of-today").unwrap();
    assert_eq!(runtime.says(1, "x")["error"]["code"], 401);
    let mut id = 1;
    eventually("the fresh key", || {
        id += 1;
        mock.then([says(&["x"])]);
        runtime.says(id, "x");
        (keys(&mock).last().is_some_and(|key| key == "sk-of-today")).then_some(())
    });
}

/// What a client over a real socket has of a stream, which may break off before its head.
fn streamed(home: &Home, path: &str) -> (bool, String) {
    let mut stream = connect(home);
    stream.write_all(&request("POST", path, "Host: x\r\n", hello().to_string().as_bytes())).unwrap();
    let Some(got) = read_if_any(stream) else { return (false, String::new()) };
    assert_eq!(got.status, 200);
    (got.whole, String::from_utf8_lossy(&got.body).into_owned())
}

#[test]
fn a_stream_that_the_provider_cuts_off_never_looks_whole() {
    let anthropic = anthropic_events(&[text_block(&["begun", "more"])], "end_turn");
    let chunks: Vec<Vec<u8>> = [
        chunk(json!({ "content": "begun" }), None),
        chunk(json!({ "content": "more" }), None),
        chunk(json!({}), Some("stop")),
    ]
    .iter()
    .map(|chunk| format!("data: {chunk}\n\n").into_bytes())
    .chain([b"data: [DONE]\n\n".to_vec()])
    .collect();
    for (provider, path, events, end) in [
        ("anthropic", "/v1/messages", anthropic, "message_stop"),
        ("openai", "/v1/chat/completions", chunks, "[DONE]"),
    ] {
        let mock = Mock::new();
        let home = home(&mock, provider, "http = true", "");
        let _daemon = home.start();
        for events_left in 0..events.len() {
            let cut = events[..events_left].concat();
            let mut within = cut.clone();
            within.extend_from_slice(&events[events_left][..events[events_left].len() / 2]);
            // However the provider's connection ends: broken, or cleanly with too little in it.
            for answer in [
                Answer::Broken(cut.clone()),
                Answer::Stream(cut.clone()),
                Answer::Pieces(vec![cut.clone()]),
                Answer::Stream(within.clone()),
                Answer::Broken(within),
            ] {
                mock.then([answer.clone()]);
                let (whole, text) = streamed(&home, path);
                assert!(!whole && !text.contains(end), "{provider} {answer:?}: {text}");
            }
        }
        // The control.
        mock.then([Answer::Stream(events.concat())]);
        let (whole, text) = streamed(&home, path);
        assert!(whole && text.contains(end), "{text}");
    }
}
