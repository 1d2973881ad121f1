//! The protocol, and the transcripts that clients of other tool servers know.

use crate::{Host, call, grant, request};
use serde_json::{Value, json};

fn echo() -> Host {
    Host::granting(&grant(&["echo"], json!({})))
}

#[test]
fn echo_runs_and_rm_is_denied_without_a_handshake() {
    let lines = [
        r#"{"jsonrpc":"2.0","id":1,"method":"initialize","params":{}}"#.to_owned(),
        r#"{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"shell","arguments":{"program":"echo","args":["hi"]}}}"#.to_owned(),
        r#"{"jsonrpc":"2.0","id":3,"method":"tools/call","params":{"name":"shell","arguments":{"program":"rm","args":["-rf","/"]}}}"#.to_owned(),
    ];
    // The same by the variable that agent-bridle's clients set.
    let text = grant(&["echo"], json!({})).to_string();
    for host in [echo(), Host::new().with("AGENT_BRIDLE_CAVEATS", &text)] {
        let said = host.say(&[], &lines);
        assert!(said.success, "{}", said.errors);
        assert_eq!(said.answer(1)["result"]["serverInfo"]["name"], "ringfence");
        let ran = said.outcome(2).envelope();
        assert_eq!((&ran["stdout"], &ran["exit_code"]), (&json!("hi\n"), &json!(0)));
        let denied: Value = serde_json::from_str(
            r#"{"id":3,"jsonrpc":"2.0","result":{"content":[{"text":"denied: exec of \"rm\" is not within the granted authority","type":"text"}],"isError":true}}"#,
        )
        .unwrap();
        assert_eq!(*said.answer(3), denied);
        assert!(said.errors.contains("shell: denied: exec of"), "{}", said.errors);
    }
}

#[test]
fn what_has_a_wrong_name_or_type_is_told_what_is_right() {
    let wrong = [
        call(1, "shel", json!({"program": "echo"})),
        call(2, "web_fetch", json!({"url": "http://example.com/"})),
        call(3, "shell", json!({"program": "echo", "args": "hi"})),
        call(4, "read_file", json!({"path": "x", "limit": "9"})),
        call(5, "shell", json!({"program": "echo"})),
    ];
    let said = echo().say(&[], &wrong);
    let message = |id| said.answer(id)["error"]["message"].as_str().unwrap().to_owned();
    assert!(
        message(1).starts_with("there is no tool named \"shel\": there are edit_file, "),
        "{}",
        message(1)
    );
    assert!(message(2).contains("`ringfence tools --web` offers it"), "{}", message(2));
    assert_eq!(said.outcome(3).text, "shell cannot use these arguments: `args` is not a list");
    assert_eq!(said.outcome(4).text, "read_file cannot use these arguments: `limit` is not a whole number");
    assert!(!said.outcome(5).is_error, "the control");
    let nothing = Host::new().say(&[], &[call(1, "shel", json!({}))]);
    let text = nothing.answer(1)["error"]["message"].to_string();
    assert!(text.contains("the grant allows no call of any tool"), "{text}");
}

#[test]
fn both_eras_are_spoken() {
    let host = echo();
    let meta = |version: &str| json!({"io.modelcontextprotocol/protocolVersion": version, "io.modelcontextprotocol/clientCapabilities": {}});
    let ask = |id: u64, method: &str, params: Value| {
        json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params}).to_string()
    };
    let modern = meta("2026-07-28");
    let said = host.say(
        &[],
        &[
            ask(1, "initialize", json!({"protocolVersion": "2025-06-18", "capabilities": {}})),
            json!({"jsonrpc": "2.0", "method": "notifications/initialized"}).to_string(),
            ask(2, "initialize", json!({"protocolVersion": "1999-01-01"})),
            ask(3, "server/discover", json!({"_meta": modern})),
            ask(4, "tools/list", json!({"_meta": modern})),
            ask(5, "tools/call", json!({"name": "shell", "arguments": {"program": "echo"}, "_meta": modern})),
            ask(6, "tools/list", json!({"_meta": meta("2031-01-01")})),
            ask(7, "tools/list", json!({})),
        ],
    );
    assert_eq!(said.answer(1)["result"]["protocolVersion"], "2025-06-18");
    assert_eq!(said.answer(2)["result"]["protocolVersion"], "2025-11-25");
    assert_eq!(said.answer(3)["result"]["supportedVersions"], json!(["2026-07-28"]));
    assert_eq!(said.answer(4)["result"]["resultType"], "complete");
    assert_eq!(said.answer(4)["result"]["cacheScope"], "private");
    assert_eq!(said.answer(5)["result"]["resultType"], "complete");
    assert_eq!(said.answer(6)["error"]["code"], -32022);
    assert_eq!(said.answer(6)["error"]["data"]["requested"], "2031-01-01");
    assert_eq!(said.answer(7)["result"].get("resultType"), None);
    assert_eq!(said.lines.len(), 7);
}

#[test]
fn every_request_has_one_answer_and_what_is_none_has_an_error() {
    let host = echo();
    let batch = format!(
        "[{},{},{}]",
        request(4, "ping"),
        request(5, "nope"),
        call(6, "shell", json!({"program": "echo"}))
    );
    let said = host.say(
        &[],
        &[
            request(1, "ping"),
            request(2, "resources/list"),
            "{".to_owned(),
            "\u{1F980}".to_owned(),
            "[]".to_owned(),
            batch,
            String::new(),
            r#"{"jsonrpc":"2.0","id":7,"method":"tools/call"}"#.to_owned(),
            r#"{"jsonrpc":"2.0","id":8,"method":"tools/call","params":{"name":"shell","arguments":[]}}"#
                .to_owned(),
            call(9, "absent", json!({})),
            r#"{"jsonrpc":"2.0","id":12345678901234567890,"method":"ping"}"#.to_owned(),
            request(10, "shutdown"),
            json!({"jsonrpc": "2.0", "method": "exit"}).to_string(),
            request(11, "ping"),
        ],
    );
    assert_eq!(said.answer(1)["result"], json!({}));
    assert_eq!(said.answer(2)["error"]["code"], -32601);
    let faults: Vec<&Value> =
        said.lines.iter().filter(|line| line["id"].is_null() && line.is_object()).collect();
    let codes: Vec<i64> = faults.iter().map(|line| line["error"]["code"].as_i64().unwrap()).collect();
    assert_eq!(codes, [-32700, -32700, -32600]);
    let batch = said.lines.iter().find(|line| line.is_array()).unwrap();
    assert_eq!(batch.as_array().unwrap().len(), 3);
    assert_eq!(batch[1]["error"]["code"], -32601);
    assert_eq!(batch[2]["result"]["isError"], false);
    assert_eq!(said.answer(7)["error"]["code"], -32602);
    assert_eq!(said.answer(8)["error"]["code"], -32602);
    assert_eq!(said.answer(9)["error"]["code"], -32602);
    assert!(said.lines.iter().any(|line| line["id"] == 12_345_678_901_234_567_890_u64));
    assert_eq!(said.answer(10)["result"], Value::Null);
    assert!(said.lines.iter().all(|line| line["id"] != 11), "after exit nothing is answered");
    assert!(said.success);
}

#[test]
fn lines_of_16_mib_are_read_and_longer_ones_refused() {
    let host = Host::granting(&grant(&[], json!({})));
    let call = |id: u64, bytes: usize| {
        let content = "x".repeat(bytes);
        call(id, "write_file", json!({"path": "big", "content": content}))
    };
    let overhead = call(1, 0).len();
    let said = host
        .say(&[], &[call(1, (16 << 20) - overhead), call(2, (16 << 20) - overhead + 1), request(3, "ping")]);
    assert!(!said.outcome(1).is_error);
    assert!(said.lines.iter().any(|line| line["id"].is_null() && line["error"]["code"] == -32600));
    assert_eq!(said.answer(3)["result"], json!({}));
    assert_eq!(host.path("work/big").metadata().unwrap().len(), (16 << 20) - overhead as u64);
}

#[test]
fn only_what_the_grant_can_run_is_listed() {
    let names = |grant: &Value, options: &[&str]| {
        let said = Host::granting(grant).say(options, &[request(1, "tools/list")]);
        let tools = said.answer(1)["result"]["tools"].as_array().unwrap().clone();
        tools.iter().map(|tool| tool["name"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    let none = json!({"only": []});
    let readers = ["list_directory", "read_file", "search"];
    assert_eq!(names(&grant(&[], json!({"fs_write": none, "net": none})), &[]), readers);
    let nothing = json!({"fs_read": none, "fs_write": none, "net": none});
    assert_eq!(names(&grant(&["echo"], nothing.clone()), &["--web"]), ["shell"]);
    assert!(names(&grant(&[], nothing), &["--web"]).is_empty());
    let all = ["edit_file", "list_directory", "read_file", "search", "shell", "web_fetch", "write_file"];
    assert_eq!(names(&grant(&["echo"], json!({})), &["--web"]), all);
}

/// One schema that a provider refuses fails the whole request of a client, or the client drops the tool.
#[test]
fn every_provider_takes_the_schema_of_every_tool() {
    use ringfence_llm_worker::provider::schema::accepted;
    use ringfence_policy::agents::config::ProviderKind::{Anthropic, Gemini, OpenAi};
    let said = Host::granting(&grant(&["echo"], json!({}))).say(&["--web"], &[request(1, "tools/list")]);
    let listed = said.answer(1)["result"]["tools"].as_array().unwrap().clone();
    let mut schemas: Vec<(String, Value)> = listed
        .into_iter()
        .map(|tool| (tool["name"].as_str().unwrap().to_owned(), tool["inputSchema"].clone()))
        .collect();
    let names: Vec<&str> = schemas.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(
        names,
        ["edit_file", "list_directory", "read_file", "search", "shell", "web_fetch", "write_file"]
    );
    // The runtime's, which a test of its own holds to this page.
    let page = include_str!("../../../docs/runtime.md");
    let block = page.split("```json").nth(1).and_then(|rest| rest.split("```").next()).unwrap();
    for tool in serde_json::Deserializer::from_str(block).into_iter::<Value>() {
        let tool = tool.unwrap();
        schemas.push((format!("the runtime's {}", tool["name"]), tool["parameters"].clone()));
    }
    assert_eq!(schemas.len(), 13);
    for (name, schema) in &schemas {
        let text = serde_json::value::to_raw_value(schema).unwrap();
        for kind in [Anthropic, OpenAi, Gemini] {
            let rewritten = accepted(kind, &text).unwrap();
            assert!(rewritten.is_none(), "{kind:?} refuses the schema of {name}: {schema}");
        }
    }
    let alternatives = json!({ "type": "object", "properties": {}, "oneOf": [{ "required": ["a"] }] });
    let text = serde_json::value::to_raw_value(&alternatives).unwrap();
    assert!([Anthropic, OpenAi].iter().all(|kind| accepted(*kind, &text).unwrap().is_some()));
}
