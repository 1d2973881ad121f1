//! Both eras of the protocol, with and without a handshake: the same bytes on both sides, and the client is known.

use crate::support::{Client, Home};
use serde_json::{Value, json};
use std::fs;

/// A server that answers each line with the next line of a file, which may be empty.
const REPLAY: &str = r#"while IFS= read -r line; do
  printf '%s\n' "$line" >> "$1"
  IFS= read -r answer <&3 && [ -n "$answer" ] && printf '%s\n' "$answer"
done 3< "$2"; :"#;

/// What the client says, and what the server says to it; empty: nothing.
type Exchange = (Value, Value);

/// Plays a whole session; the home with its record.
fn play(exchanges: &[Exchange]) -> Home {
    let home = Home::new();
    let text = |value: &Value| if value.is_null() { "\n".to_owned() } else { format!("{value}\n") };
    let answers: String = exchanges.iter().map(|(_, server)| text(server)).collect();
    fs::write(home.path("answers"), answers).expect("written");
    let mut interceptor = home.interceptor(&["--server-name", "era", "--", "sh", "-c", REPLAY, "replay"]);
    interceptor.args([home.text("received.log"), home.text("answers")]);
    let mut client = Client::start(&mut interceptor);
    let mut sent = String::new();
    for (said, answer) in exchanges {
        client.send(text(said));
        sent += &text(said);
        if !answer.is_null() {
            assert_eq!(client.out.line(), text(answer));
        }
    }
    assert!(client.end().success());
    assert_eq!(String::from_utf8(home.received()).expect("text"), sent);
    assert_eq!(client.out.rest(), "");
    home
}

fn request(id: impl Into<Value>, method: &str, params: Value) -> Value {
    json!({"jsonrpc": "2.0", "id": id.into(), "method": method, "params": params})
}

fn result(id: impl Into<Value>, result: Value) -> Value {
    json!({"jsonrpc": "2.0", "id": id.into(), "result": result})
}

fn session(home: &Home) -> Value {
    let rows = home.output(&["mcp", "sessions", "--json", "--db", &home.text("audit.db")]);
    serde_json::from_str(rows.trim()).expect("one session")
}

#[test]
fn with_a_handshake() {
    for version in ["2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25"] {
        let client = json!({"name": "old", "version": version});
        let home = play(&[
            (
                request(
                    0,
                    "initialize",
                    json!({"protocolVersion": version, "capabilities": {"sampling": {}}, "clientInfo": client}),
                ),
                result(
                    0,
                    json!({"protocolVersion": version, "capabilities": {"tools": {}}, "serverInfo": {"name": "s", "version": "1"}}),
                ),
            ),
            (json!({"jsonrpc": "2.0", "method": "notifications/initialized"}), Value::Null),
            (
                request(1, "tools/list", json!({})),
                result(1, json!({"tools": [{"name": "read_x", "annotations": {"readOnlyHint": true}}]})),
            ),
            // The server asks in the middle of the call, under an id of its own that is the client's too.
            (
                request(
                    2,
                    "tools/call",
                    json!({"name": "read_x", "arguments": {"a": 1}, "_meta": {"progressToken": 2}}),
                ),
                request(2, "sampling/createMessage", json!({"messages": [], "maxTokens": 1})),
            ),
            (
                result(
                    2,
                    json!({"role": "assistant", "content": {"type": "text", "text": "hi"}, "model": "m"}),
                ),
                json!({"jsonrpc": "2.0", "method": "notifications/progress", "params": {"progressToken": 2, "progress": 1}}),
            ),
            (
                request(3, "ping", json!({})),
                result(2, json!({"content": [{"type": "text", "text": "done"}], "isError": false})),
            ),
            (
                request(4, "tools/call", json!({"name": "read_x"})),
                json!({"jsonrpc": "2.0", "id": 4, "error": {"code": -32602, "message": "no"}}),
            ),
        ]);
        assert_eq!(session(&home)["client_info"], client, "{version}");
        let calls = home.calls(&[]);
        assert_eq!(calls.len(), 2);
        assert!(calls.iter().all(|call| call["responded_at"].is_string()), "each answer found its call");
        assert_eq!((&calls[0]["error"], &calls[1]["error"]["code"]), (&Value::Null, &json!(-32602)));
    }
}

#[test]
fn without_a_handshake() {
    let client = json!({"name": "new", "version": "2026"});
    let meta = json!({
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientInfo": client,
        "io.modelcontextprotocol/clientCapabilities": {"elicitation": {"form": {}}},
    });
    let asked = json!({
        "resultType": "input_required", "requestState": "opaque==",
        "inputRequests": {"who": {"method": "elicitation/create", "params": {"message": "who?", "requestedSchema": {"type": "object", "properties": {}}}}},
    });
    let home = play(&[
        (
            request(1, "server/discover", json!({"_meta": meta})),
            result(
                1,
                json!({"resultType": "complete", "supportedVersions": ["2026-07-28"], "capabilities": {"tools": {}}, "serverInfo": {"name": "s", "version": "1"}}),
            ),
        ),
        (
            request(2, "tools/call", json!({"name": "read_x", "arguments": {"a": 1}, "_meta": meta})),
            result(2, asked),
        ),
        (
            request(
                3,
                "tools/call",
                json!({"name": "read_x", "arguments": {"a": 1}, "_meta": meta, "requestState": "opaque==",
                "inputResponses": {"who": {"action": "accept", "content": {"name": "me"}}}}),
            ),
            result(3, json!({"resultType": "complete", "content": [{"type": "text", "text": "hello me"}]})),
        ),
        (
            request(
                "sub",
                "subscriptions/listen",
                json!({"_meta": meta, "notifications": {"toolsListChanged": true}}),
            ),
            json!({"jsonrpc": "2.0", "method": "notifications/tools/list_changed", "params": {"_meta": {"io.modelcontextprotocol/subscriptionId": "sub"}}}),
        ),
        (
            json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": "sub"}}),
            Value::Null,
        ),
    ]);
    assert_eq!(session(&home)["client_info"], client);
    let calls = home.calls(&[]);
    assert_eq!(calls.len(), 2, "the retry is a call of its own");
    assert!(
        calls.iter().all(|call| call["responded_at"].is_string() && call["arguments"] == json!({"a": 1}))
    );
}

#[test]
fn what_is_said_of_why_a_call_is_made_is_on_record() {
    let call = |id: u32, tool: &str, more: Value| {
        let mut params = json!({"name": tool, "arguments": {}});
        for (key, value) in more.as_object().into_iter().flatten() {
            params[key] = value.clone();
        }
        request(id, "tools/call", params)
    };
    let done = |id: u32| result(id, json!({"content": []}));
    let asks = json!({"messages": [{"role": "user", "content": {"type": "text", "text": "which are old?"}}], "maxTokens": 9});
    let input = json!({"resultType": "input_required", "inputRequests": {"k": {"method": "sampling/createMessage", "params": asks}}});
    let home = play(&[
        (call(1, "read_plain", json!({})), done(1)),
        (call(2, "read_turn", json!({"_meta": {"vscode.requestId": "r1"}})), done(2)),
        (call(3, "read_use", json!({"_meta": {"claudecode/toolUseId": "toolu_1"}})), done(3)),
        (call(4, "read_use_again", json!({"_meta": {"claudecode/toolUseId": "toolu_1"}})), done(4)),
        (call(5, "ask_model", json!({})), result(5, input)),
        (call(6, "read_for_it", json!({})), done(6)),
        (call(7, "ask_model", json!({"inputResponses": {"k": {"role": "assistant"}}})), done(7)),
        (call(8, "read_turn_again", json!({"_meta": {"vscode.requestId": "r1"}})), done(8)),
    ]);
    let calls = home.calls(&[]);
    let of = |tool: &str| {
        let call = calls.iter().rfind(|call| call["tool_name"] == tool);
        let call = call.unwrap_or_else(|| panic!("no {tool}"));
        (call["intent_source"].as_str().unwrap_or_default().to_owned(), call["intent_id"].clone())
    };
    let (plain, turn, sampled) = (of("read_plain"), of("read_turn"), of("read_for_it"));
    assert_eq!((plain.0.as_str(), turn.0.as_str(), sampled.0.as_str()), ("tool_use", "client", "sampling"));
    assert_eq!(of("read_turn_again"), turn);
    assert_ne!(plain.1, turn.1);
    for tool in ["read_use", "read_use_again", "ask_model"] {
        assert_eq!(of(tool), plain, "{tool}: nothing says that it is for something else");
    }
    let id = calls.iter().find(|call| call["tool_name"] == "read_for_it").expect("the call")["id"].clone();
    let whole = home.calls(&[id.as_str().expect("text")]);
    assert_eq!(whole[0]["human_prompt"], "which are old?");
}
