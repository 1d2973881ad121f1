//! What the protocol's own document shows, frame by frame: a client or a runtime that was written for it works here
//! unchanged. Each conversation is held with the frames as they stand there, and with the keys of every object in other
//! orders: JSON has none.

use crate::{
    mock::{Answer, Mock, calls, says},
    support::{Client, Home, text_of},
};
use serde_json::{Value, json};

const REGISTER: &str = r#"{"jsonrpc": "2.0", "method": "register", "params": {"role": "runtime"}}"#;

const SEND: &str = r#"{
  "jsonrpc": "2.0",
  "id": 1,
  "method": "send",
  "params": {
    "content": [{"type": "text", "text": "Create a hello world file"}]
  }
}"#;

const TURN: &str = r#"{
  "jsonrpc": "2.0",
  "id": 1,
  "method": "turn",
  "params": {
    "system": "You are a coding assistant.",
    "tools": [{"name": "bash", "description": "Run a command", "parameters": {"type": "object"}}],
    "messages": [{"role": "user", "content": [{"type": "text", "text": "What files are in src?"}]}]
  }
}"#;

const RESULTS: &str = r#"{
  "jsonrpc": "2.0",
  "id": 2,
  "method": "turn",
  "params": {
    "messages": [{"role": "tool", "tool_call_id": "tc-001", "content": [{"type": "text", "text": "main.rs\nlib.rs\n"}]}]
  }
}"#;

/// The same value, the keys of every object from the last to the first.
fn reversed(value: &Value) -> String {
    match value {
        Value::Object(fields) => {
            let fields = fields.iter().rev();
            let fields: Vec<_> =
                fields.map(|(key, value)| format!("{}:{}", json!(key), reversed(value))).collect();
            format!("{{{}}}", fields.join(","))
        }
        Value::Array(items) => {
            format!("[{}]", items.iter().map(reversed).collect::<Vec<_>>().join(","))
        }
        other => other.to_string(),
    }
}

/// A frame as it stands, with its keys in the order of the alphabet, and the other way round.
const ORDERS: [fn(&str) -> String; 3] = [
    str::to_owned,
    |text| serde_json::from_str::<Value>(text).unwrap().to_string(),
    |text| reversed(&serde_json::from_str(text).unwrap()),
];

fn say(client: &mut Client, text: &str) {
    client.raw(&crate::support::frame(text.as_bytes()));
}

fn parsed(text: &str) -> Value {
    serde_json::from_str(text).unwrap()
}

#[test]
fn orders_are_different_texts_of_one_value() {
    let texts: Vec<String> = ORDERS.iter().map(|order| order(TURN)).collect();
    assert!(texts.iter().all(|text| parsed(text) == parsed(TURN)));
    assert!(texts[1].starts_with(r#"{"id":1,"jsonrpc""#) && texts[2].starts_with(r#"{"params":{"tools":"#));
}

#[test]
fn the_documents_frames_have_the_documents_answers() {
    for order in ORDERS {
        let limited = json!({ "type": "error", "error": { "type": "rate_limit_error", "message": "Rate limit exceeded." } });
        let mock = Mock::with([
            calls(&[("tc-001", "bash", r#"{"command": "ls src/"}"#)]),
            says(&["The src", " directory contains", " main.rs and lib.rs."]),
            Answer::Whole(429, String::new(), limited.to_string().into()),
        ]);
        let home = Home::with(&mock);
        let _daemon = home.start();
        let socket = home.socket("a");

        let mut early = Client::connect(&socket);
        say(&mut early, &order(SEND));
        assert_eq!(
            early.expect(),
            parsed(
                r#"{"jsonrpc": "2.0", "id": 1, "error": {"code": -32000, "message": "runtime not connected"}}"#
            )
        );

        let mut runtime = Client::connect(&socket);
        say(&mut runtime, &order(REGISTER));
        let mut sender = Client::connect(&socket);
        say(&mut sender, &order(SEND));
        assert_eq!(
            sender.expect(),
            parsed(r#"{"jsonrpc": "2.0", "id": 1, "result": {"status": "delivered"}}"#)
        );
        // The first thing that a runtime hears: `register` has no response.
        let content = json!([{ "type": "text", "text": "Create a hello world file" }]);
        let human = json!({ "jsonrpc": "2.0", "method": "human_message", "params": { "content": content } });
        assert_eq!(runtime.expect(), human);
        let mut second = Client::connect(&socket);
        say(&mut second, &order(SEND));
        assert_eq!(second.expect(), parsed(r#"{"jsonrpc": "2.0", "id": 1, "result": {"status": "queued"}}"#));

        say(&mut runtime, &order(TURN));
        let (answer, _) = runtime.answer();
        assert_eq!(
            answer,
            parsed(
                r#"{"jsonrpc": "2.0", "id": 1, "result": {"stop_reason": "tool_use",
                    "tool_calls": [{"id": "tc-001", "name": "bash", "input": {"command": "ls src/"}}]}}"#
            )
        );
        say(&mut runtime, &order(RESULTS));
        let (answer, streamed) = runtime.answer();
        assert_eq!(
            answer,
            parsed(
                r#"{"jsonrpc": "2.0", "id": 2, "result": {"stop_reason": "end_turn",
                    "content": [{"type": "text", "text": "The src directory contains main.rs and lib.rs."}]}}"#
            )
        );
        is_text(&streamed, "The src directory contains main.rs and lib.rs.");
        let mut heard = Vec::new();
        let end = loop {
            match sender.expect() {
                frame if frame["method"] == "output" => heard.push(frame),
                frame => break frame,
            }
        };
        is_text(&heard, "The src directory contains main.rs and lib.rs.");
        assert_eq!(end, parsed(r#"{"jsonrpc": "2.0", "method": "end_turn"}"#));

        assert_eq!(second.expect(), parsed(r#"{"jsonrpc": "2.0", "method": "delivered"}"#));
        assert_eq!(runtime.expect(), human);
        say(&mut runtime, &order(TURN));
        let (answer, _) = runtime.answer();
        let error = &answer["error"];
        assert_eq!((&error["code"], &error["message"]), (&json!(429), &json!("Rate limit exceeded.")));
        assert_eq!((&answer["id"], answer.get("result")), (&json!(1), None));
        assert_eq!(second.expect()["method"], "error");

        let mut third = Client::connect(&socket);
        say(&mut third, &order(SEND));
        third.expect();
        drop(runtime);
        assert_eq!(
            third.expect(),
            parsed(r#"{"jsonrpc": "2.0", "method": "error", "params": {"message": "agent disconnected"}}"#)
        );
        as_logged(&home, &mock);
    }
}

/// Each frame is the document's `output`, and together they say this.
fn is_text(frames: &[Value], text: &str) {
    for frame in frames {
        let piece = &frame["params"]["data"]["text"];
        let mut expected = parsed(
            r#"{"jsonrpc": "2.0", "method": "output", "params": {"stream": "content", "data": {"type": "text", "text": "The src"}}}"#,
        );
        expected["params"]["data"]["text"] = piece.clone();
        assert_eq!(*frame, expected);
    }
    assert!(frames.len() > 1, "it streams");
    assert_eq!(text_of(frames), text);
}

/// What the provider was asked, and what is in the log.
fn as_logged(home: &Home, mock: &Mock) {
    let asked = mock.asked();
    let first = &asked[0].body;
    assert!(first["system"].to_string().contains("You are a coding assistant."), "{first}");
    let tool = &first["tools"][0];
    assert_eq!(
        (&tool["name"], &tool["description"], &tool["input_schema"]["type"]),
        (&json!("bash"), &json!("Run a command"), &json!("object"))
    );
    // The second turn said neither: they are remembered.
    assert_eq!(
        (&asked[1].body["system"], &asked[1].body["tools"][0]["name"]),
        (&first["system"], &tool["name"])
    );
    assert_eq!(asked[1].messages()[2]["content"][0]["tool_use_id"], "tc-001");
    assert_eq!(first["max_tokens"], 8192, "the document's default");
    let logged = home.logged("a");
    let roles: Vec<&Value> = logged.iter().map(|line| &line["role"]).collect();
    assert_eq!(
        roles,
        ["user", "assistant", "tool", "assistant", "user"],
        "the failed turn's message is there, too"
    );
    assert!(logged.iter().all(|line| line["ts"].is_string() && line["content"].is_array()));
    assert_eq!(
        (&logged[1]["tool_calls"][0]["id"], &logged[2]["tool_call_id"]),
        (&json!("tc-001"), &json!("tc-001"))
    );
}

#[test]
fn the_documents_files_load_as_they_stand() {
    let home = Home::empty();
    home.write(
        ".config/tightbeam/registry.toml",
        r#"[llm.claude-sonnet]
provider = "anthropic"
model = "claude-sonnet-4-20250514"
api_key = "sk-ant-..."
max_tokens = 8192                    # optional, defaults to 8192

[mcp.github]
url = "https://mcp.github.com/sse"
auth_token = "ghp_..."

[mcp.web-search]
url = "https://mcp.search.example.com/sse"
auth_token = "sk-search-..."
"#,
    );
    home.write(
        ".config/tightbeam/agents/my-agent.toml",
        r#"[llm.claude-sonnet]
# Empty body = all registry defaults.
# Fields present override the registry value for that field only.
# Example: override just the API key:
# api_key = "sk-ant-agent-specific-..."

[mcp.github]
tools = ["create_pull_request", "list_issues"]

[mcp.web-search]
# tools omitted = allow all tools from this server
# tools = [] would allow none (server effectively disabled)
"#,
    );
    let checked = home.run(&["agent", "check", "my-agent"]);
    assert!(checked.status, "{}", checked.err);
    let shown = home.run(&["agent", "show", "my-agent", "--json"]);
    let shown = parsed(&shown.out);
    assert_eq!(shown["mcp"][0]["tools"], json!(["create_pull_request", "list_issues"]));
    assert_eq!((&shown["mcp"][1]["tools"], &shown["llm"]["max_tokens"]), (&Value::Null, &json!(8192)));
    let log = home.path(".local/share/tightbeam/logs/my-agent/conversation.ndjson");
    assert_eq!(shown["log"], json!(log));
    let _daemon = home.start();
    // The address that the document mounts, served before any provider or server was asked.
    let mut sender = Client::connect(&home.path(".config/tightbeam/sockets/my-agent.sock"));
    say(&mut sender, SEND);
    assert_eq!(sender.expect()["error"]["code"], -32000);
}
