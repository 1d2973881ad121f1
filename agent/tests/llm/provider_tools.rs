//! What the provider would run or fetch itself is the profile's to allow, over HTTP and in turns.

use crate::{
    http::{home, post},
    mock::{Answer, Mock, says},
    support::{Home, turn},
};
use serde_json::{Value, json};

/// A request with one more field.
fn with(key: &str, value: Value) -> Value {
    let mut body = json!({ "messages": [{ "role": "user", "content": "hi" }] });
    body[key] = value;
    body
}

fn content(block: Value) -> Value {
    with("messages", json!([{ "role": "user", "content": [block] }]))
}

fn whole() -> Answer {
    let body = json!({ "content": [], "stop_reason": "end_turn" });
    Answer::Whole(200, "Content-Type: application/json\r\n".into(), body.to_string().into())
}

#[test]
fn what_the_provider_would_run_is_refused_and_never_sent() {
    let search = with("tools", json!([{ "type": "web_search_20250305", "name": "web_search" }]));
    let servers = with("mcp_servers", json!([{ "type": "url", "url": "https://example.org", "name": "x" }]));
    let image = content(
        json!({ "type": "image", "source": { "type": "url", "url": "https://example.org/a?secret" } }),
    );
    let client_s = with(
        "tools",
        json!([{ "name": "WebSearch", "input_schema": {} }, { "type": "bash_20250124", "name": "bash" }]),
    );
    let mock = Mock::new();
    let closed = home(&mock, "anthropic", "http = true", "");
    let daemon = closed.start();
    for (body, name) in [(&search, "web_search_20250305"), (&servers, "mcp_servers"), (&image, "url")] {
        for path in ["/v1/messages", "/v1/messages?beta=true", "/v1/messages/count_tokens"] {
            let got = post(&closed, path, body);
            let why = got.json()["error"]["message"].as_str().unwrap().to_owned();
            assert_eq!(
                (got.status, got.json()["error"]["type"].as_str()),
                (400, Some("invalid_request_error"))
            );
            assert!(why.contains(&format!("provider_tools = [\"{name}\"]")), "{why}");
        }
    }
    assert_eq!(mock.asked().len(), 0);
    // The control: what clients run passes as it is.
    mock.then([whole()]);
    assert_eq!(post(&closed, "/v1/messages", &client_s).status, 200);
    assert_eq!(mock.last().body["tools"], client_s["tools"]);
    daemon.stop();
    let open = home(&mock, "anthropic", "http = true", "provider_tools = [\"web_search\", \"mcp\"]");
    let _daemon = open.start();
    for (body, key) in [(&search, "tools"), (&servers, "mcp_servers")] {
        mock.then([whole()]);
        assert_eq!(post(&open, "/v1/messages", body).status, 200);
        assert_eq!(mock.last().body[key], body[key]);
    }
    assert_eq!(post(&open, "/v1/messages", &image).status, 400, "that is another");
}

#[test]
fn openai_s_are_refused_as_well() {
    let mock = Mock::new();
    let home = home(&mock, "openai", "http = true", "");
    let _daemon = home.start();
    for (body, name) in [
        (with("web_search_options", json!({})), "web_search_options"),
        (with("tools", json!([{ "type": "web_search_preview" }])), "web_search_preview"),
        (content(json!({ "type": "image_url", "image_url": { "url": "https://example.org" } })), "url"),
    ] {
        let got = post(&home, "/v1/chat/completions", &body);
        assert!(got.status == 400 && got.json().to_string().contains(name), "{}", got.json());
    }
    assert_eq!(mock.asked().len(), 0);
    mock.then([whole()]);
    let inline =
        content(json!({ "type": "image_url", "image_url": { "url": "data:image/png;base64,AA==" } }));
    post(&home, "/v1/chat/completions", &inline);
    assert_eq!(mock.last().body["messages"], inline["messages"]);
}

#[test]
fn a_runtime_in_a_container_has_the_provider_fetch_nothing_either() {
    let image = json!({ "type": "image", "source": { "type": "url", "url": "https://example.org/a.png" } });
    let asks = |more: &str| {
        let mock = Mock::with([says(&["seen"])]);
        let home = Home::empty();
        home.agent("a", &mock, more);
        let (_daemon, mut runtime) = home.serve();
        runtime.write(&turn(1, json!([{ "role": "user", "content": [image] }])));
        (runtime.answer().0, mock.asked().len())
    };
    let (answer, asked) = asks("");
    assert_eq!((&answer["error"]["code"], asked), (&json!(-32602), 0), "{answer}");
    assert!(answer.to_string().contains("provider_tools"), "{answer}");
    let (answer, asked) = asks("provider_tools = [\"url\"]\n");
    assert_eq!((&answer["result"]["content"][0]["text"], asked), (&json!("seen"), 1), "{answer}");
}
