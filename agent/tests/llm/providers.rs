//! What providers send, and what becomes of it.

use crate::{
    mock::{Answer, Mock, anthropic_events, chunk, openai, says, text_block, tool_block},
    support::{Client, Home, eventually, text_of, tool_result, turn, user},
};
use serde_json::{Value, json};

fn openai_agent(home: &Home, mock: &Mock) {
    let url = &mock.url;
    home.profile(
        "a",
        &format!("[llm.m]\nprovider = \"openai\"\nmodel = \"gpt\"\napi_key = \"sk-openai-secret\"\nbase_url = \"{url}/v1\"\n"),
    );
}

/// The answer to one user's message, and the text that streamed.
fn one(mock: &Mock) -> (Value, String) {
    let home = Home::with(mock);
    let (_daemon, mut runtime) = home.serve();
    runtime.write(&turn(1, json!([user("x")])));
    let (answer, streamed) = runtime.answer();
    (answer, text_of(&streamed))
}

#[test]
fn a_request_is_what_the_provider_documents() {
    let mock = Mock::with([says(&["1"]), says(&["2"]), says(&["3"])]);
    let home = Home::empty();
    home.agent("a", &mock, "max_tokens = 77\noptions = { temperature = 0.5, thinking = { type = \"enabled\", budget_tokens = 50 } }");
    let (_daemon, mut runtime) = home.serve();
    let tool = json!({ "name": "bash", "description": "Run", "parameters": { "type": "object", "properties": { "command": { "type": "string" } } } });
    runtime.write(&json!({ "jsonrpc": "2.0", "id": 1, "method": "turn", "params": {
        "system": "Be brief.", "tools": [tool], "messages": [user("one")] } }));
    runtime.answer();
    let asked = mock.last();
    assert_eq!(asked.line, "POST /v1/messages");
    assert_eq!(asked.header("x-api-key"), Some("sk-secret-key-of-a"));
    assert_eq!(asked.header("anthropic-version"), Some("2023-06-01"));
    assert_eq!(asked.header("authorization"), None);
    let ephemeral = json!({ "type": "ephemeral" });
    assert_eq!(
        asked.body,
        json!({
            "model": "model-of-a", "max_tokens": 77, "stream": true, "temperature": 0.5,
            "thinking": { "type": "enabled", "budget_tokens": 50 },
            "system": [{ "type": "text", "text": "Be brief.", "cache_control": ephemeral }],
            "tools": [{ "name": "bash", "description": "Run", "input_schema": tool["parameters"] }],
            "messages": [{ "role": "user", "content": [{ "type": "text", "text": "one", "cache_control": ephemeral }] }],
        })
    );
    // System and tools are remembered; the mark for the cache moves on.
    runtime.says(2, "two");
    let again = mock.last();
    assert_eq!((&again.body["system"], &again.body["tools"]), (&asked.body["system"], &asked.body["tools"]));
    assert_eq!(
        again.body["messages"],
        json!([
            { "role": "user", "content": [{ "type": "text", "text": "one", "cache_control": ephemeral }] },
            { "role": "assistant", "content": [{ "type": "text", "text": "1" }] },
            { "role": "user", "content": [{ "type": "text", "text": "two", "cache_control": ephemeral }] },
        ])
    );
    // What the request before filled, and what this one fills; no more than the provider takes.
    runtime.says(3, "three");
    let messages = mock.last().body["messages"].to_string();
    assert_eq!(messages.matches("cache_control").count(), 2, "{messages}");
    assert!(!mock.last().messages()[0].to_string().contains("cache_control"), "{messages}");
}

#[test]
fn what_a_later_turn_sends_replaces_what_was_cached() {
    let mock = Mock::with([says(&["1"]), says(&["2"])]);
    let home = Home::with(&mock);
    let (_daemon, mut runtime) = home.serve();
    for (id, system) in [(1, "first"), (2, "second")] {
        runtime.write(&json!({ "jsonrpc": "2.0", "id": id, "method": "turn", "params": {
            "system": system, "messages": [user("x")] } }));
        runtime.answer();
        assert_eq!(mock.last().body["system"][0]["text"], system);
    }
}

#[test]
fn a_stream_without_its_final_event_is_an_error() {
    let events = anthropic_events(&[text_block(&["a short", " success"])], "end_turn");
    let count = events.len();
    let mut cut = events.concat();
    cut.truncate(cut.len() - 1);
    for answer in [
        Answer::Stream(events[..count - 1].concat()),
        Answer::Stream(events[..count - 2].concat()),
        Answer::Stream(events[..4].concat()),
        Answer::Stream(cut.clone()),
        Answer::Stream(Vec::new()),
        Answer::Broken(events[..count - 1].concat()),
        Answer::Broken(events[..3].concat()),
    ] {
        let (answer, _) = one(&Mock::with([answer]));
        assert_eq!(answer["error"]["code"], -32603, "{answer}");
        assert!(answer["error"]["message"].as_str().unwrap().contains("provider's stream"), "{answer}");
    }
    // The control: all of it, though the connection breaks behind it.
    let (answer, _) = one(&Mock::with([Answer::Broken(events.concat())]));
    assert_eq!(answer["result"]["content"][0]["text"], "a short success");
}

#[test]
fn an_error_in_the_stream_is_an_error() {
    let mut body = anthropic_events(&[text_block(&["so far"])], "end_turn")[..4].concat();
    body.extend(b"event: error\ndata: {\"type\":\"error\",\"error\":{\"type\":\"overloaded_error\",\"message\":\"Overloaded\"}}\n\n");
    let (answer, streamed) = one(&Mock::with([Answer::Stream(body)]));
    assert_eq!(
        answer["error"],
        json!({ "code": 529, "message": "Overloaded", "data": { "type": "overloaded_error" } })
    );
    assert_eq!(streamed, "so far");
}

#[test]
fn http_errors_keep_their_code_and_message() {
    let whole = |status, headers: &str, body: &str| Answer::Whole(status, headers.into(), body.into());
    for (answer, expected) in [
        (
            whole(
                401,
                "",
                r#"{"type":"error","error":{"type":"authentication_error","message":"invalid x-api-key"}}"#,
            ),
            json!({ "code": 401, "message": "invalid x-api-key", "data": { "type": "authentication_error" } }),
        ),
        (
            whole(429, "Retry-After: Wed, 21 Oct 2026 07:28:00 GMT\r\n", r#"{"error":{"message":"later"}}"#),
            json!({ "code": 429, "message": "later", "data": { "retry_after": "Wed, 21 Oct 2026 07:28:00 GMT" } }),
        ),
        (whole(500, "", "<html>oops</html>"), json!({ "code": 500, "message": "<html>oops</html>" })),
        (whole(503, "", ""), json!({ "code": 503, "message": "Service Unavailable" })),
        // A credential goes nowhere else.
        (whole(302, "Location: http://127.0.0.1:1/\r\n", ""), json!({ "code": 302, "message": "Found" })),
    ] {
        let (answer, _) = one(&Mock::with([answer]));
        assert_eq!(answer["error"], expected);
    }
    let (answer, _) = one(&Mock::with([whole(200, "Content-Type: application/json\r\n", "{}")]));
    assert!(answer["error"]["message"].as_str().unwrap().contains("not with an event stream"), "{answer}");
}

#[test]
fn a_provider_that_is_not_there_is_an_error_that_does_not_name_it() {
    let mock = Mock::new();
    let home = Home::empty();
    home.profile("a", "[llm.m]\nprovider = \"anthropic\"\nmodel = \"m\"\napi_key = \"sk-12345678\"\nbase_url = \"http://127.0.0.1:1\"\n");
    let (_daemon, mut runtime) = home.serve();
    let answer = runtime.says(1, "x");
    let message = answer["error"]["message"].as_str().unwrap();
    assert!(message.contains("cannot be reached") && message.contains("refused"), "{message}");
    assert!(!message.contains("127.0.0.1"), "{message}");
    drop(mock);
}

#[test]
fn line_ends_and_split_characters_change_nothing() {
    let text = ["z\u{fc}rich ", "\u{1f980}", " \u{4e2d}\u{6587}"];
    let body = anthropic_events(&[text_block(&text)], "end_turn").concat();
    let crlf = String::from_utf8(body.clone()).unwrap().replace('\n', "\r\n").into_bytes();
    for body in [body, crlf] {
        for size in [1, 7, 1000] {
            let pieces: Vec<Vec<u8>> = body.chunks(size).map(<[u8]>::to_vec).collect();
            // One byte at a time, where the characters are.
            let pieces = if size == 1 { vec![body[..600].to_vec(), body[600..].to_vec()] } else { pieces };
            let (answer, streamed) = one(&Mock::with([Answer::Pieces(pieces)]));
            assert_eq!(answer["result"]["content"][0]["text"], text.concat(), "{answer}");
            assert_eq!(streamed, text.concat());
        }
    }
}

#[test]
fn thinking_and_unknown_blocks_survive_the_round_trip() {
    let thinking = (
        json!({ "type": "thinking", "thinking": "", "signature": "" }),
        vec![
            json!({ "type": "thinking_delta", "thinking": "hmm " }),
            json!({ "type": "thinking_delta", "thinking": "yes" }),
            json!({ "type": "signature_delta", "signature": "c2lnbmF0dXJl" }),
        ],
    );
    let redacted = (json!({ "type": "redacted_thinking", "data": "AbC=" }), vec![]);
    let unknown = (
        json!({ "type": "server_tool_use", "id": "s1", "name": "web_search", "input": {} }),
        vec![json!({ "type": "input_json_delta", "partial_json": "{\"q\":1}" })],
    );
    let blocks = [thinking, redacted, unknown, text_block(&["done"]), tool_block("t1", "bash", &[])];
    let mock = Mock::with([Answer::Stream(anthropic_events(&blocks, "tool_use").concat()), says(&["end"])]);
    let home = Home::with(&mock);
    let (_daemon, mut runtime) = home.serve();
    let answer = runtime.says(1, "x");
    // The runtime gets what it can use.
    assert_eq!(
        answer["result"],
        json!({ "stop_reason": "tool_use", "content": [{ "type": "text", "text": "done" }],
                "tool_calls": [{ "id": "t1", "name": "bash", "input": {} }] })
    );
    runtime.write(&turn(2, json!([tool_result("t1", "")])));
    runtime.answer();
    let expected = json!([
        { "type": "thinking", "thinking": "hmm yes", "signature": "c2lnbmF0dXJl" },
        { "type": "redacted_thinking", "data": "AbC=" },
        { "type": "server_tool_use", "id": "s1", "name": "web_search", "input": { "q": 1 } },
        { "type": "text", "text": "done" },
        { "type": "tool_use", "id": "t1", "name": "bash", "input": {} },
    ]);
    assert_eq!(mock.last().messages()[1]["content"], expected);
    // An empty text is no block that the provider would take.
    assert_eq!(
        mock.last().messages()[2]["content"][0],
        json!({ "type": "tool_result", "tool_use_id": "t1", "cache_control": { "type": "ephemeral" } })
    );
}

#[test]
fn what_the_provider_leaves_out_is_tolerated() {
    let event = |data: Value| format!("data: {data}\n\n");
    let body = [
        event(json!({ "type": "content_block_start", "index": 0, "content_block": { "type": "text", "text": "hi" } })),
        event(json!({ "type": "message_delta", "delta": { "stop_reason": "max_tokens" } })),
        event(json!({ "type": "something_new", "x": 1 })),
        event(json!({ "type": "message_stop" })),
    ]
    .concat();
    let (answer, streamed) = one(&Mock::with([Answer::Stream(body.into())]));
    assert_eq!(
        answer["result"],
        json!({ "stop_reason": "max_tokens", "content": [{ "type": "text", "text": "hi" }] })
    );
    assert_eq!(streamed, "hi");
}

#[test]
fn what_says_nothing_leaves_the_conversation_whole() {
    let silent = || Answer::Stream(anthropic_events(&[], "end_turn").concat());
    let mock = Mock::with([silent(), silent(), says(&["at last"])]);
    let home = Home::with(&mock);
    let (_daemon, mut runtime) = home.serve();
    assert_eq!(runtime.says(1, "one")["result"], json!({ "stop_reason": "end_turn", "content": [] }));
    // An empty text is no block that the provider would take.
    assert_eq!(runtime.says(2, "")["result"]["stop_reason"], "end_turn");
    assert_eq!(mock.last().messages().len(), 1);
    assert_eq!(runtime.says(3, "two")["result"]["content"][0]["text"], "at last");
    assert_eq!(mock.last().messages().len(), 2);
}

#[test]
fn limits_are_looked_at_before_the_call_and_survive_a_restart() {
    crate::support::away_from_midnight();
    let mock = Mock::with([says(&["1"]), says(&["2"]), says(&["3"])]);
    let home = Home::empty();
    // An answer uses 20 tokens: 10 read, 3 of the cache, 7 written.
    home.agent("a", &mock, "price = { input = 1_000_000, output = 0.0 }\n[limits]\ntokens_per_day = 30");
    home.agent("b", &mock, "[limits]\nturns_per_minute = 1");
    let (daemon, mut runtime) = home.serve();
    runtime.says(1, "x");
    assert_eq!(runtime.says(2, "x")["result"]["content"][0]["text"], "2", "20 are used of 30");
    let refused = runtime.says(3, "x")["error"].clone();
    assert_eq!(refused["code"], -32002);
    assert!(refused["message"].as_str().unwrap().contains("30 tokens a day (40 are used)"), "{refused}");
    assert!(refused["data"]["retry_after"].as_u64().unwrap() <= 86_400);
    let mut other = Client::runtime(&home.socket("b"));
    assert_eq!(other.says(1, "x")["result"]["content"][0]["text"], "3");
    assert!(other.says(2, "x")["error"]["message"].as_str().unwrap().contains("1 turns a minute"));
    daemon.kill();
    let _daemon = home.start();
    assert_eq!(Client::runtime(&home.socket("a")).says(1, "x")["error"]["code"], -32002);
    assert_eq!(mock.asked().len(), 3, "none of the refused reached the provider");
}

#[test]
fn our_own_key_never_comes_back() {
    let text = ["the key is sk-secret", "-key-of-a, and c2stc2VjcmV0LWtl", "eS1vZi1h in base64"];
    let blocks =
        [text_block(&text), tool_block("t", "bash", &["{\"command\":\"echo sk-secret-", "key-of-a\"}"])];
    let mock = Mock::with([Answer::Stream(anthropic_events(&blocks, "tool_use").concat())]);
    let home = Home::with(&mock);
    let (_daemon, mut runtime) = home.serve();
    let mut sender = Client::delivered(&home.socket("a"), "x", &mut runtime);
    runtime.write(&turn(1, json!([user("x")])));
    let (answer, streamed) = runtime.answer();
    let mut all = format!("{answer} {} {:?}", text_of(&streamed), home.logged("a"));
    all += &text_of(&[sender.expect()]);
    assert!(all.contains("[redacted]"), "{all}");
    assert!(!all.contains("key-of-a") && !all.contains("eS1vZi1h"), "{all}");
    assert_eq!(answer["result"]["tool_calls"][0]["input"]["command"], "echo [redacted]");
}

#[test]
fn an_error_message_does_not_carry_the_key() {
    let body = r#"{"error":{"type":"authentication_error","message":"bad key sk-secret-key-of-a"}}"#;
    let (answer, _) = one(&Mock::with([Answer::Whole(401, String::new(), body.into())]));
    assert_eq!(answer["error"]["message"], "bad key [redacted]");
}

#[test]
fn openai_is_asked_and_understood() {
    let mock = Mock::with([
        Answer::Stream(openai(&[
            chunk(json!({ "role": "assistant", "content": "Let me " }), None),
            chunk(json!({ "content": "look" }), None),
            chunk(
                json!({ "tool_calls": [{ "index": 0, "id": "c1", "type": "function", "function": { "name": "bash", "arguments": "{\"com" } }] }),
                None,
            ),
            chunk(
                json!({ "tool_calls": [{ "index": 0, "function": { "arguments": "mand\":\"ls\"}" } }] }),
                None,
            ),
            chunk(
                json!({ "tool_calls": [{ "index": 1, "id": "c2", "type": "function", "function": { "name": "date", "arguments": "" } }] }),
                None,
            ),
            chunk(json!({}), Some("tool_calls")),
            json!({ "choices": [], "usage": { "prompt_tokens": 9, "completion_tokens": 4, "prompt_tokens_details": { "cached_tokens": 2 } } }),
        ])),
        Answer::Stream(openai(&[chunk(json!({ "content": "done" }), Some("stop"))])),
    ]);
    let home = Home::empty();
    openai_agent(&home, &mock);
    let (daemon, mut runtime) = home.serve();
    let tool = json!({ "name": "bash", "description": "Run", "parameters": { "type": "object" } });
    let image =
        json!({ "type": "image", "source": { "type": "base64", "media_type": "image/png", "data": "AA==" } });
    runtime.write(&json!({ "jsonrpc": "2.0", "id": 1, "method": "turn", "params": { "system": "Be brief.", "tools": [tool],
        "messages": [{ "role": "user", "content": [{ "type": "text", "text": "what?" }, image] }] } }));
    let (answer, streamed) = runtime.answer();
    assert_eq!(
        answer["result"],
        json!({ "stop_reason": "tool_use", "content": [{ "type": "text", "text": "Let me look" }],
                "tool_calls": [{ "id": "c1", "name": "bash", "input": { "command": "ls" } }, { "id": "c2", "name": "date", "input": {} }] })
    );
    assert_eq!(text_of(&streamed), "Let me look{\"command\":\"ls\"}");
    let asked = mock.last();
    assert_eq!(asked.line, "POST /v1/chat/completions");
    assert_eq!(asked.header("authorization"), Some("Bearer sk-openai-secret"));
    assert_eq!(
        asked.body,
        json!({
            "model": "gpt", "max_tokens": 8192, "stream": true, "stream_options": { "include_usage": true },
            "tools": [{ "type": "function", "function": { "name": "bash", "description": "Run", "parameters": { "type": "object" } } }],
            "messages": [
                { "role": "system", "content": "Be brief." },
                { "role": "user", "content": [{ "type": "text", "text": "what?" }, { "type": "image_url", "image_url": { "url": "data:image/png;base64,AA==" } }] },
            ],
        })
    );
    let mut failed = tool_result("c2", "no date");
    failed["is_error"] = json!(true);
    runtime.write(&turn(2, json!([failed, tool_result("c1", "main.rs")])));
    assert_eq!(runtime.answer().0["result"]["stop_reason"], "end_turn");
    assert_eq!(
        mock.last().messages()[2..],
        [
            json!({ "role": "assistant", "content": "Let me look", "tool_calls": [
                { "id": "c1", "type": "function", "function": { "name": "bash", "arguments": "{\"command\":\"ls\"}" } },
                { "id": "c2", "type": "function", "function": { "name": "date", "arguments": "{}" } } ] }),
            json!({ "role": "tool", "tool_call_id": "c1", "content": "main.rs" }),
            json!({ "role": "tool", "tool_call_id": "c2", "content": [{ "type": "text", "text": "[the tool failed]" }, { "type": "text", "text": "no date" }] }),
        ]
    );
    // Both turns are counted, the second after its answer.
    let worker = eventually("two turns", || {
        let worker = daemon.status("a")["worker"].clone();
        (worker["turns"] == 2).then_some(worker)
    });
    assert_eq!([&worker["input_tokens"], &worker["output_tokens"], &worker["cache_read_tokens"]], [7, 4, 2]);
}

#[test]
fn openai_streams_that_break_are_errors() {
    let home = Home::empty();
    let mock = Mock::new();
    openai_agent(&home, &mock);
    let (_daemon, mut runtime) = home.serve();
    let whole = openai(&[chunk(json!({ "content": "short" }), None), chunk(json!({}), Some("stop"))]);
    let text = String::from_utf8(whole.clone()).unwrap();
    let no_done = text.replace("data: [DONE]\n\n", "");
    let no_reason = openai(&[chunk(json!({ "content": "short" }), None)]);
    let error = b"data: {\"error\":{\"message\":\"boom\",\"type\":\"server_error\"}}\n\n".to_vec();
    let not_json = b"data: {nope\n\n".to_vec();
    for (id, (body, code)) in
        [(no_done.into_bytes(), -32603), (no_reason, -32603), (error, 500), (not_json, -32603)]
            .into_iter()
            .enumerate()
    {
        mock.then([Answer::Stream(body)]);
        let answer = runtime.says(id as u64, "x");
        assert_eq!(answer["error"]["code"], code, "{answer}");
    }
    mock.then([Answer::Stream(text.replace('\n', "\r\n").into_bytes())]);
    assert_eq!(runtime.says(9, "x")["result"]["content"][0]["text"], "short");
}

#[test]
fn arguments_that_are_no_json_are_an_error_and_no_arguments_are_an_empty_object() {
    let answer_with = |pieces: &[&str]| {
        let mock = Mock::with([Answer::Stream(
            anthropic_events(&[tool_block("t", "bash", pieces)], "tool_use").concat(),
        )]);
        one(&mock).0
    };
    assert_eq!(answer_with(&[])["result"]["tool_calls"][0]["input"], json!({}));
    assert_eq!(answer_with(&["", "{}", ""])["result"]["tool_calls"][0]["input"], json!({}));
    assert_eq!(answer_with(&["{\"a\":", "1.50}"])["result"]["tool_calls"][0]["input"], json!({ "a": 1.5 }));
    for broken in [&["{\"a\":"][..], &["[1]"], &["null"], &["{} x"]] {
        let answer = answer_with(broken);
        assert_eq!(answer["error"]["code"], -32603, "{broken:?}: {answer}");
    }
}

#[test]
fn a_call_that_was_cut_off_by_the_token_limit_is_not_run() {
    let blocks = [text_block(&["I will"]), tool_block("t", "bash", &["{\"command\":\"rm -r"])];
    let mock = Mock::with([Answer::Stream(anthropic_events(&blocks, "max_tokens").concat()), says(&["ok"])]);
    let home = Home::with(&mock);
    let (_daemon, mut runtime) = home.serve();
    let answer = runtime.says(1, "x");
    assert_eq!(
        answer["result"],
        json!({ "stop_reason": "max_tokens", "content": [{ "type": "text", "text": "I will" }] })
    );
    assert_eq!(runtime.says(2, "go on")["result"]["content"][0]["text"], "ok");
}
