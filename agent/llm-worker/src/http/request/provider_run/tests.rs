//! What the provider would do itself, and what clients do.

use super::*;

mod googles;
use crate::http::request::{Route, rewrite, tests::llm};
use ringfence_policy::agents::registry::ProviderKind::{self, Anthropic, OpenAi};
use serde_json::{Value, json};

/// What comes of a body under a profile that allows these.
fn with(kind: ProviderKind, allowed: &[&str], body: &str) -> Result<(), String> {
    let llm = Llm { provider_tools: allowed.iter().map(|&name| name.into()).collect(), ..llm(kind) };
    let complete = rewrite(&llm, Route::Complete, body.as_bytes()).map(drop);
    let counted = rewrite(&llm, Route::CountTokens, body.as_bytes()).map(drop);
    assert_eq!(complete, counted, "{body}");
    complete
}

/// It is refused by this name, and passes where the name, its beginning or everything is allowed.
fn refused_as(kind: ProviderKind, name: &str, body: &str) {
    let why = with(kind, &["else", "we", "u"], body).expect_err(body);
    let shown = format!("provider_tools = [{name:?}]` in its [llm.m] (of a kit: the registry's) would");
    assert!(why.starts_with(&format!("{name:?} is run or fetched")) && why.contains(&shown), "{body}: {why}");
    for allowed in [name, "*"] {
        assert_eq!(with(kind, &[allowed], body), Ok(()), "{allowed}: {body}");
    }
}

fn passes(kind: ProviderKind, body: &Value) {
    assert_eq!(with(kind, &[], &body.to_string()), Ok(()), "{body}");
}

fn both(name: &str, body: &Value) {
    [Anthropic, OpenAi].into_iter().for_each(|kind| refused_as(kind, name, &body.to_string()));
}

#[test]
fn tools_that_the_provider_runs_are_refused_by_their_type() {
    for kind in [
        "web_search_20250305",
        "web_fetch_20250910",
        "code_execution_20250825",
        "mcp_toolset",
        "web_search_preview",
        "file_search",
        "code_interpreter",
        "image_generation",
        "computer_use_preview",
        "mcp",
        "shell",
        "openrouter:web",
        "of_tomorrow_20990101",
        "bash",
        "bash_2025",
        "bash_20250124x",
        "Function",
        "",
    ] {
        both(
            kind,
            &json!({ "tools": [{ "name": "mine", "input_schema": {} }, { "type": kind, "name": "t" }] }),
        );
        both(kind, &json!({ "tools": { "type": kind, "name": "t" } }));
        both(kind, &json!({ "functions": [{ "type": kind, "name": "t" }] }));
    }
    // OpenAI knows no tools of these types.
    let anthropic_s = ["bash_20250124", "text_editor_20250728", "memory_20250818", "computer_20250124"];
    for kind in anthropic_s.iter().chain(&["tool_search_tool_regex_20251119", "tool_search_tool_bm25"]) {
        let body = json!({ "tools": [{ "type": kind, "name": "t" }] });
        passes(Anthropic, &body);
        refused_as(OpenAi, kind, &body.to_string());
    }
    refused_as(Anthropic, "function", r#"{"tools":[{"type":"function","function":{"name":"t"}}]}"#);
    // A beginning allows a family, at its underscores and colons only.
    let search = r#"{"tools":[{"type":"web_search_20250305"}]}"#;
    for (allowed, is_enough) in [("web_search", true), ("web", true), ("web_sea", false), ("", false)] {
        assert_eq!(with(Anthropic, &[allowed], search).is_ok(), is_enough, "{allowed}");
    }
}

#[test]
fn what_clients_run_passes_whatever_it_is_called_with() {
    let schema = json!({ "type": "object", "properties": {
        "source": { "type": "url", "url": "https://e.org" }, "web_search": {}, "image_url": { "type": "string" } } });
    passes(
        Anthropic,
        &json!({ "tools": [
        { "name": "WebFetch", "description": "x", "input_schema": schema, "cache_control": { "type": "ephemeral" } },
        { "type": "custom", "name": "a", "input_schema": schema, "defer_loading": true, "unknown": { "type": "url" } },
        { "type": null, "name": "b", "input_schema": schema },
    ], "tool_choice": { "type": "tool", "name": "a" }, "metadata": { "repo_url": "https://e.org" },
        "mcp_servers": [], "container": null, "betas": ["x"], "context_management": { "edits": [{ "type": "clear_20250919" }] } }),
    );
    passes(
        OpenAi,
        &json!({ "tools": [
        { "type": "function", "function": { "name": "a", "parameters": schema } },
        { "type": "custom", "custom": { "name": "b" } },
    ], "functions": [{ "name": "c", "parameters": schema }], "tool_choice": { "type": "allowed_tools", "allowed_tools":
        { "mode": "auto", "tools": [{ "type": "function", "function": { "name": "a" } }] } },
        "enable_search": false, "response_format": { "type": "json_schema", "json_schema": { "schema": schema } } }),
    );
    for choice in [json!("auto"), json!({ "type": "any" }), json!(null)] {
        passes(Anthropic, &json!({ "tools": [], "tool_choice": choice }));
    }
    passes(OpenAi, &json!({ "tools": null }));
}

#[test]
fn a_tool_hides_behind_no_spelling() {
    for (name, tools) in [
        ("x_1", r#"[{"type":"function","type":"x_1","name":"a"}]"#),
        ("x_1", r#"[{"type":"x_1","type":"function","name":"a"}]"#),
        ("x_1", r#"[{"Type":"x_1","type":"function","name":"a"}]"#),
        ("x_1", r#"[{"t\u0079pe":"x_1","name":"a"}]"#),
        ("x_1", r#"[{"type":"\u0078_1","name":"a"}]"#),
        ("[\"function\"]", r#"[{"type":["function"],"name":"a"}]"#),
        ("7", r#"[{"type":7,"name":"a"}]"#),
        ("google_search", r#"[{"googleSearch":{}}]"#),
        ("google_search", r#"[{"google_search":{},"type":"function","function":{"name":"a"}}]"#),
        ("url_context", r#"[{"url-Context":{},"name":"a"}]"#),
    ] {
        // What only OpenAI's clients run is told apart there.
        refused_as(OpenAi, name, &format!(r#"{{"tools":{tools}}}"#));
        refused_as(OpenAi, name, &format!(r#"{{"t\u006fols":[],"tools":{tools}}}"#));
        refused_as(OpenAi, name, &format!(r#"{{"Functions":{tools}}}"#));
    }
    for odd in [r#"[{}]"#, r#"[{"of_tomorrow":{}}]"#, r#"{"0":{"type":"x_1"}}"#, r#"[{"type":null}]"#] {
        let body = format!(r#"{{"tools":{odd}}}"#);
        let why = with(OpenAi, &["of_tomorrow"], &body).expect_err(odd);
        assert!(why.contains("neither a type nor a name"), "{why}");
        assert_eq!(with(OpenAi, &["*"], &body), Ok(()));
    }
    for odd in [r#""web_search""#, "7", "true", r#"["web_search"]"#, "[[{}]]", "[null]"] {
        for kind in [Anthropic, OpenAi] {
            let why = with(kind, &["*"], &format!(r#"{{"tools":{odd}}}"#)).expect_err(odd);
            assert!(why.starts_with("tools"), "{why}");
        }
    }
    // Names of tools in another case go nowhere.
    assert_eq!(with(OpenAi, &[], r#"{"Tools":[{"type":"x_1"}]}"#), Ok(()));
    both("x_1", &json!({ "tools": [], "tool_choice": { "type": "x_1" } }));
    both("x_1", &json!({ "tool_choice": { "type": "allowed_tools", "tools": [{ "type": "x_1" }] } }));
}

#[test]
fn fields_that_reach_out_are_refused_by_their_name() {
    let own = [Wire::Messages, Wire::ChatCompletions].map(known);
    for field in own.iter().flat_map(|known| known.fields).chain(&GATEWAYS) {
        for value in [json!({}), json!([{ "type": "url" }]), json!("auto"), json!(true)] {
            both(field, &json!({ *field: value }));
        }
        both(field, &json!({ field.to_uppercase(): {} }));
    }
    refused_as(Anthropic, "mcp_servers", r#"{"mcp\u005fservers":[{"url":"https://e.org"}]}"#);
    refused_as(Anthropic, "mcp_servers", r#"{"mcp_servers":[],"mcp_servers":[{}]}"#);
    assert_eq!(with(Anthropic, &["mcp"], r#"{"mcp_servers":[{"url":"https://e.org"}]}"#), Ok(()));
    // The profile's own field is not the client's.
    let mut own = llm(OpenAi);
    own.options.insert("web_search_options".into(), json!({}));
    assert!(rewrite(&own, Route::Complete, br#"{"web_search_options":{"x":1}}"#).is_ok());
}

/// A message of these blocks.
fn of(content: &Value) -> Value {
    json!({ "messages": [{ "role": "user", "content": content }] })
}

#[test]
fn content_is_in_the_request_or_refused() {
    let url = json!({ "type": "image", "source": { "type": "url", "url": "https://e.org/a.png" } });
    for block in [
        url.clone(),
        json!({ "type": "document", "source": { "type": "url", "url": "https://e.org" } }),
        json!({ "type": "document", "source": { "type": "base64", "data": "", "url": "https://e.org" } }),
        json!({ "type": "document", "source": { "Type": "url" } }),
        json!({ "source": { "url": "https://e.org" } }),
        json!({ "type": "tool_result", "tool_use_id": "t", "content": [url] }),
        json!({ "type": "search_result", "source": "https://e.org", "content": [url] }),
        json!({ "type": "document", "source": { "type": "content", "content": [url] } }),
        json!({ "type": "web_fetch_tool_result", "content": { "content": url } }),
        json!({ "type": "image", "source": [{ "type": "url", "url": "https://e.org" }] }),
        json!({ "type": "image", "url": "https://e.org" }),
        json!({ "type": "input_video", "uri": { "url": "https://e.org" } }),
        json!({ "type": "video", "video": ["data:x", "https://e.org"] }),
        json!({ "type": "input_audio", "input_audio": { "data": "https://e.org", "format": "mp3" } }),
        json!({ "image": " s3://bucket" }),
        json!({ "type": "of_tomorrow", "deep": [[{ "x": url }]] }),
        json!({ "type": "image_url", "image_url": { "url": "https://e.org" } }),
        json!({ "type": "image_url", "image_url": { "url": "data:image/png;base64,AA==", "Url": "https://e.org" } }),
        json!({ "type": "image_url", "image_url": "https://e.org" }),
        json!({ "type": "image_url", "image_url": " data:x" }),
        json!({ "type": "image_url", "image_url": "file:///etc/passwd" }),
        json!({ "type": "input_image", "image_url": ["https://e.org"] }),
        json!({ "type": "input_file", "file_url": "https://e.org" }),
        json!({ "type": "video_url", "video_url": { "url": "https://e.org" } }),
    ] {
        both("url", &of(&json!([{ "type": "text", "text": "x" }, block])));
        both("url", &of(&block));
        both("url", &json!({ "system": [block] }));
        both("url", &json!({ "of_tomorrow": { "messages": [block] } }));
    }
    for block in [
        json!({ "type": "document", "source": { "type": "file", "file_id": "f" } }),
        json!({ "type": "container_upload", "file_id": "f" }),
        json!({ "type": "file", "file": { "file_id": "f" } }),
        json!({ "type": "input_file", "File_Id": "f" }),
    ] {
        both("file_id", &of(&json!([block])));
    }
    both("s3", &of(&json!([{ "type": "document", "source": { "type": "s3", "data": "x" } }])));
    both(
        "web_search",
        &of(&json!([{ "type": "server_tool_use", "id": "s", "name": "web_search", "input": {} }])),
    );
    both("mcp", &of(&json!([{ "type": "mcp_tool_use", "id": "s", "name": "x", "input": {} }])));
    let ran =
        of(&json!([{ "type": "server_tool_use", "name": "bash_code_execution", "input": {} }])).to_string();
    assert_eq!(with(Anthropic, &["code_execution_20250825"], &ran), Ok(()));
    for escaped in [
        r#"{"type":"image","s\u006furce":{"type":"\u0075rl","url":"https://e.org"}}"#,
        r#"{"type":"image","source":{"type":"base64","type":"url"}}"#,
        r#"{"type":"image","source":{"type":"base64"},"source":{"type":"url"}}"#,
        r#"{"type":"tool_use","type":"image","input":{"source":{"type":"url"}}}"#,
        r#"{"Type":"image","type":"tool_use","input":{"source":{"type":"url"}}}"#,
    ] {
        refused_as(Anthropic, "url", &format!(r#"{{"messages":[{{"content":[{escaped}]}}]}}"#));
    }
}

#[test]
fn what_is_in_the_request_passes() {
    let inline = json!({ "type": "base64", "media_type": "image/png", "data": "AA==" });
    let url = json!({ "type": "url", "url": "https://e.org", "image_url": "https://e.org", "file_id": "f" });
    passes(
        Anthropic,
        &of(&json!([
            { "type": "text", "text": "fetch https://e.org: {\"source\":{\"type\":\"url\"}}" },
            { "type": "image", "source": inline },
            { "type": "document", "source": { "type": "text", "data": "https://e.org" }, "citations": { "enabled": true } },
            { "type": "document", "source": { "type": "content", "content": [{ "type": "image", "source": inline }] } },
            { "type": "search_result", "source": "https://e.org", "title": "x", "content": [{ "type": "text", "text": "y" }] },
            { "type": "tool_use", "id": "t", "name": "WebFetch", "input": { "url": "https://e.org", "source": url } },
            { "type": "tool_result", "tool_use_id": "t", "content": [{ "type": "tool_reference", "tool_name": "x" }] },
            { "type": "web_search_result", "url": "https://e.org", "title": "x", "encrypted_content": "y" },
        { "type": "thinking", "thinking": "x", "signature": "y" },
            { "type": "server_tool_use", "id": "s", "name": "tool_search_tool_regex", "input": { "query": "x" } },
        ])),
    );
    passes(
        OpenAi,
        &json!({ "messages": [
        { "role": "user", "content": [{ "type": "image_url", "image_url": { "url": "DATA:image/png;base64,AA==", "detail": "low" } },
            { "type": "file", "file": { "file_data": "data:x", "filename": "x" } }, { "type": "image_url", "image_url": null }] },
        { "role": "assistant", "content": null, "tool_calls": [{ "id": "t", "type": "function", "function":
            { "name": "f", "arguments": "{\"image_url\":\"https://e.org\"}" } }],
            "annotations": [{ "type": "url_citation", "url_citation": { "url": "https://e.org" } }] },
    ] }),
    );
    // Clients cut texts anywhere: half a character is theirs to send.
    assert_eq!(
        with(Anthropic, &[], r#"{"messages":[{"content":[{"type":"text","text":"\ud83d"}]}]}"#),
        Ok(())
    );
    let deep = |inside: &str| {
        let (open, close) = ("[".repeat(1 << 18), "]".repeat(1 << 18));
        with(Anthropic, &[], &format!(r#"{{"messages":[{{"type":"{inside}","input":{open}{close}}}]}}"#))
    };
    assert_eq!(deep("tool_use"), Ok(()), "a call's input is the tool's own");
    assert!(deep("text").unwrap_err().contains("nested more than"));
    let odd = r#"{"messages":[{"\ud800":1}]}"#;
    assert!(with(Anthropic, &["*"], odd).unwrap_err().contains("in one way only"));
}

#[test]
fn a_refusal_is_short_and_hides_nothing() {
    let kind = format!("a\u{1b}[31m\n{}", "x".repeat(10_000));
    let why = with(Anthropic, &[], &json!({ "tools": [{ "type": kind }] }).to_string()).unwrap_err();
    assert!(why.len() < 600 && !why.contains(char::is_control), "{why}");
}

#[test]
fn responses_run_at_the_provider_what_is_not_said_to_be_local() {
    let respond = |allowed: &[&str], body: &Value| {
        let llm = Llm { provider_tools: allowed.iter().map(|&name| name.into()).collect(), ..llm(OpenAi) };
        rewrite(&llm, Route::Respond, body.to_string().as_bytes()).map(drop)
    };
    let refused = |name: &str, body: Value| {
        let why = respond(&["else"], &body).expect_err(name);
        assert!(why.starts_with(&format!("{name:?} is run or fetched")), "{body}: {why}");
        assert_eq!(respond(&[name], &body), Ok(()), "{body}");
    };
    let local = json!({ "type": "shell", "environment": { "type": "local" } });
    let names = json!({ "type": "namespace", "name": "n", "tools": [{ "type": "function", "name": "f" }] });
    let clients = json!([{ "type": "function", "name": "f", "parameters": { "properties": { "image_url": {} } } },
        { "type": "custom", "name": "c" }, { "type": "local_shell" }, { "type": "apply_patch" }, local, names]);
    assert_eq!(
        respond(&[], &json!({ "input": "hi", "tools": clients, "text": { "verbosity": "low" } })),
        Ok(())
    );
    for kind in [
        "web_search",
        "web_search_preview",
        "code_interpreter",
        "mcp",
        "file_search",
        "image_generation",
        "computer_use_preview",
        "shell",
    ] {
        refused(kind, json!({ "input": "hi", "tools": [{ "type": kind, "name": "t" }] }));
        refused(
            kind,
            json!({ "input": "hi", "tools": [{ "type": "namespace", "name": "n", "tools": [{ "type": kind }] }] }),
        );
        refused(
            kind,
            json!({ "input": [{ "type": "additional_tools", "role": "developer", "tools": [{ "type": kind }] }] }),
        );
    }
    for environment in [
        json!({ "type": "container_auto" }),
        json!("local"),
        json!(null),
        json!({ "type": "local", "Type": "container_auto" }),
    ] {
        refused(
            "shell",
            json!({ "input": "hi", "tools": [{ "type": "shell", "environment": environment }] }),
        );
    }
    refused(
        "shell",
        json!({ "tools": [{ "type": "shell", "environment": { "type": "local" }, "Environment": {} }] }),
    );
    let image = |url: &str| json!({ "input": [{ "role": "user", "content": [{ "type": "input_image", "image_url": url }] }] });
    assert_eq!(respond(&[], &image("data:image/png;base64,AAAA")), Ok(()));
    refused("url", image("https://e.org/x.png"));
    refused(
        "url",
        json!({ "input": [{ "role": "user", "content": [{ "type": "input_file", "file_url": "https://e.org/x" }] }] }),
    );
    refused(
        "file_id",
        json!({ "input": [{ "role": "user", "content": [{ "type": "input_file", "file_id": "file_1" }] }] }),
    );
}
