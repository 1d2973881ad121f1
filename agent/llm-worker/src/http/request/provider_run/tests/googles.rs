//! The same of Google's API, in either of its spellings.

use super::*;
use ProviderKind::Gemini;

fn google(allowed: &[&str], body: &Value) -> Result<(), String> {
    let llm = Llm { provider_tools: allowed.iter().map(|&name| name.into()).collect(), ..llm(Gemini) };
    let rewritten = |route: Route| rewrite(&llm, route, body.to_string().as_bytes()).map(drop);
    let streamed = rewritten(Route::StreamGenerate);
    assert_eq!(
        (rewritten(Route::Generate), rewritten(Route::CountTokens)),
        (streamed.clone(), streamed.clone()),
        "{body}"
    );
    let counted = json!({ "generateContentRequest": body }).to_string();
    assert_eq!(rewrite(&llm, Route::CountTokens, counted.as_bytes()).map(drop), streamed, "{body}");
    streamed
}

fn refused(name: &str, body: &Value) {
    let why = google(&["else"], body).expect_err(&body.to_string());
    assert!(why.starts_with(&format!("{name:?} is run or fetched")), "{body}: {why}");
    for allowed in [name, "*"] {
        assert_eq!(google(&[allowed], body), Ok(()), "{allowed}: {body}");
    }
}

fn of(part: &Value) -> Value {
    json!({ "contents": [{ "role": "user", "parts": [{ "text": "x" }, part] }] })
}

#[test]
fn tools_that_google_runs_are_refused_by_their_key() {
    for (key, name) in [
        ("googleSearch", "google_search"),
        ("google_search", "google_search"),
        ("GoogleSearch", "google_search"),
        ("googlesearch", "google_search"),
        ("googleSearchRetrieval", "google_search_retrieval"),
        ("google_search_retrieval", "google_search_retrieval"),
        ("codeExecution", "code_execution"),
        ("code_execution", "code_execution"),
        ("urlContext", "url_context"),
        ("url_context", "url_context"),
        ("googleMaps", "google_maps"),
        ("enterpriseWebSearch", "enterprise_web_search"),
        ("fileSearch", "file_search"),
        ("mcpServers", "mcp_servers"),
        ("ofTomorrow", "of_tomorrow"),
    ] {
        let declared = json!({ "functionDeclarations": [], key: {} });
        for tools in [
            json!([{ key: {} }]),
            json!([declared]),
            json!({ key: {} }),
            json!([{ "functionDeclarations": [] }, { key: {} }]),
        ] {
            refused(name, &json!({ "tools": tools }));
        }
    }
    // A profile may name it as its API does.
    assert_eq!(google(&["googleSearch"], &json!({ "tools": [{ "google_search": {} }] })), Ok(()));
    let twice = r#"{"tools":[{"functionDeclarations":[],"google\u0053earch":{}}]}"#;
    assert!(rewrite(&llm(Gemini), Route::Generate, twice.as_bytes()).is_err());
    let model = json!({ "tools": [{ "retrieval": { "x": [{ "llm_ranker": { "modelName": "big" } }] } }] });
    assert!(google(&["*"], &model).unwrap_err().contains("may not name a model"));
    for odd in [json!("x"), json!(["x"]), json!([[{}]])] {
        assert!(google(&["*"], &json!({ "tools": odd })).is_err(), "{odd}");
    }
}

#[test]
fn what_the_client_runs_passes_whatever_it_is_called_with() {
    let schema = json!({ "type": "OBJECT", "properties": { "googleSearch": {}, "fileUri": { "type": "STRING" }, "model": {} } });
    let body = json!({ "tools": [{ "functionDeclarations": [{ "name": "web_fetch", "parameters": schema, "parametersJsonSchema": schema }] },
            { "computerUse": { "environment": "ENVIRONMENT_BROWSER" } }, { "googleSearch": null }, {}],
        "tool_config": { "functionCallingConfig": { "mode": "ANY", "allowedFunctionNames": ["url"] } },
        "systemInstruction": { "parts": [{ "text": "https://e.org" }] },
        "generationConfig": { "responseSchema": schema, "stopSequences": ["x"] },
        "contents": [
            { "role": "user", "parts": [{ "text": "see https://e.org" }, { "inlineData": { "mimeType": "image/png", "data": "AA==" } }] },
            { "role": "model", "parts": [{ "functionCall": { "name": "f", "args": { "fileData": { "fileUri": "https://e.org" }, "url": "x" } },
                "thoughtSignature": "c2ln" }] },
            { "role": "user", "parts": [{ "functionResponse": { "name": "f", "response": { "url": "https://e.org", "fileUri": "x" },
                "parts": [{ "inlineData": { "mimeType": "image/png", "data": "AA==" } }] } }] },
        ] });
    assert_eq!(google(&[], &body), Ok(()));
}

#[test]
fn content_is_in_the_request_or_refused() {
    for part in [
        json!({ "fileData": { "fileUri": "https://e.org/a.png", "mimeType": "image/png" } }),
        json!({ "file_data": { "file_uri": "gs://bucket/x" } }),
        json!({ "FileData": { "FileUri": "https://youtu.be/x" } }),
        json!({ "fileData": { "fileUri": ["x"] } }),
        json!({ "inlineData": { "data": "https://e.org" } }),
        json!({ "inline_data": { "data": "gs://x/y" } }),
        json!({ "functionResponse": { "name": "f", "parts": [{ "fileData": { "fileUri": "https://e.org" } }] } }),
        json!({ "function_response": { "name": "f", "Parts": [{ "file_data": { "file_uri": "x" } }] } }),
        json!({ "functionCall": { "name": "f" }, "fileData": { "fileUri": "x" } }),
    ] {
        refused("url", &of(&part));
        refused("url", &json!({ "system_instruction": { "parts": [part] } }));
    }
    refused("code_execution", &of(&json!({ "executableCode": { "code": "x" } })));
    refused("code_execution", &of(&json!({ "code_execution_result": { "output": "x" } })));
    refused("tool_call", &of(&json!({ "toolCall": { "toolType": "GOOGLE_SEARCH_WEB" } })));
    refused("mcp_servers", &json!({ "mcpServers": [{ "url": "https://e.org" }] }));
    refused("web_search_options", &json!({ "webSearchOptions": {} }));
    let data = json!({ "fileData": { "fileUri": "data:image/png;base64,AA==" } });
    assert_eq!(google(&[], &of(&data)), Ok(()));
    let deep = json!({ "functionCall": { "args": serde_json::from_str::<Value>(&format!("{}{}", "[".repeat(100), "]".repeat(100))).unwrap() } });
    assert_eq!(google(&[], &of(&deep)), Ok(()), "a call's input is the tool's own");
}
