//! Gemini: what its provider is sent for a turn, and what it answers.

use super::*;
use crate::{
    message::ToolCall,
    provider::{Answer, Piece, Usage, sse::Event},
    rpc::RpcError,
    samples,
};
use ringfence_policy::agents::registry::ProviderKind;
use std::collections::VecDeque;

fn answered(events: &[Value]) -> Result<(Answer, Vec<Piece>), RpcError> {
    let (mut decoder, mut pieces) = (GenerateContent.decoder(), VecDeque::new());
    for event in events {
        decoder.event(&Event { name: String::new(), data: event.to_string() }, &mut pieces)?;
    }
    assert!(!decoder.is_done());
    decoder.finish().map(|answer| (answer, pieces.into()))
}

fn chunk(parts: Value, reason: Option<&str>) -> Value {
    json!({ "candidates": [{ "content": { "parts": parts, "role": "model" }, "finishReason": reason }],
        "usageMetadata": { "promptTokenCount": 11, "cachedContentTokenCount": 4, "candidatesTokenCount": 3,
            "thoughtsTokenCount": 2, "toolUsePromptTokenCount": 5 } })
}

fn message(role: Role, text: &str) -> Message {
    let content = if text.is_empty() { Vec::new() } else { vec![Block::text(text)] };
    Message { role, content, tool_calls: Vec::new(), tool_call_id: None, tool_name: None, is_error: false }
}

fn encoded(group: &[Message]) -> Value {
    serde_json::from_slice(&GenerateContent.encode(group, true)).unwrap()
}

#[test]
fn an_answer_has_its_words_its_calls_and_what_it_cost() {
    let call = json!({ "functionCall": { "name": "bash", "args": { "x": 1 } }, "thoughtSignature": "sig" });
    let thought = json!({ "text": "hm", "thought": true });
    let events = [
        chunk(json!([thought, { "text": "On " }]), None),
        chunk(json!([{ "text": "it" }, call]), None),
        chunk(json!([{ "functionCall": { "id": "b", "name": "read" } }]), Some("STOP")),
    ];
    let (answer, pieces) = answered(&events).unwrap();
    let usage = Usage { input_tokens: 12, output_tokens: 5, cache_read_tokens: 4, cache_write_tokens: 0 };
    assert_eq!((answer.stop_reason.as_str(), answer.usage), ("tool_use", Some(usage)));
    assert_eq!(answer.content[0].kind(), &Kind::Text("On it".into()));
    let calls: Vec<_> = answer
        .tool_calls
        .iter()
        .map(|call| (call.id.as_str(), call.name.as_str(), call.input.get()))
        .collect();
    assert_eq!(calls, [("", "bash", r#"{"x":1}"#), ("b", "read", "{}")]);
    assert_eq!(pieces[0], Piece::Text("On ".into()));
    assert_eq!(pieces[2], Piece::ToolStart { id: String::new(), name: "bash".into() });
    assert_eq!(pieces[3], Piece::ToolInput { call: 0, text: r#"{"x":1}"#.into() });
    // As it goes back: with the ids that it was given, and the signature in its place.
    let tool_calls = answer.tool_calls.into_iter().zip(["i1", "i2"]);
    let tool_calls = tool_calls.map(|(call, id)| ToolCall { id: id.into(), ..call }).collect();
    let said = Message { content: answer.content, tool_calls, ..message(Role::Assistant, "") };
    let logged: Message = serde_json::from_str(&serde_json::to_string(&said).unwrap()).unwrap();
    let expected = json!({ "role": "model", "parts": [{ "text": "On it" },
        { "functionCall": { "id": "i1", "name": "bash", "args": { "x": 1 } }, "thoughtSignature": "sig" },
        { "functionCall": { "id": "i2", "name": "read", "args": {} } }] });
    assert_eq!(encoded(&[logged]), expected);
    // No other provider is told.
    for other in [ProviderKind::Anthropic, ProviderKind::OpenAi] {
        let sent = crate::provider::encode(other, std::slice::from_ref(&said), false);
        assert!(!String::from_utf8(sent).unwrap().contains("sig"));
    }
}

#[test]
fn an_answer_without_a_reason_is_none() {
    for cut in [
        vec![],
        vec![chunk(json!([{ "text": "x" }]), None)],
        vec![chunk(json!([]), Some("STOP")), chunk(json!([{ "text": "x" }]), None)],
    ] {
        assert!(answered(&cut).unwrap_err().message.contains("without a finish reason"), "{cut:?}");
    }
    for (reason, stop) in
        [("STOP", "end_turn"), ("MAX_TOKENS", "max_tokens"), ("SAFETY", "refusal"), ("OTHER", "other")]
    {
        let (answer, _) = answered(&[chunk(json!([{ "text": "x" }]), Some(reason))]).unwrap();
        assert_eq!(answer.stop_reason, stop);
    }
    let (answer, _) =
        answered(&[json!({ "promptFeedback": { "blockReason": "PROHIBITED_CONTENT" } })]).unwrap();
    assert_eq!(answer.stop_reason, "refusal");
    // A call in an answer that was cut off may be half of one.
    let call = json!([{ "functionCall": { "name": "a", "args": {} } }]);
    assert!(answered(&[chunk(call, Some("MAX_TOKENS"))]).unwrap().0.tool_calls.is_empty());
    let error = answered(&[json!({ "error": { "code": 503, "message": "busy", "status": "UNAVAILABLE" } })])
        .unwrap_err();
    assert_eq!(
        (error.code, error.message.as_str(), error.data),
        (503, "busy", Some(json!({ "type": "UNAVAILABLE" })))
    );
    for odd in [json!([{ "functionCall": {} }]), json!([{ "functionCall": { "name": "a", "args": 7 } }])] {
        assert!(answered(&[chunk(odd, Some("STOP"))]).is_err());
    }
}

#[test]
fn a_conversation_is_as_the_provider_documents() {
    let image = serde_json::from_value(json!({ "type": "image", "media_type": "image/png", "data": "AA==" }))
        .unwrap();
    let shown = Message { content: vec![Block::text("look"), image], ..message(Role::User, "") };
    let expected = json!({ "role": "user", "parts": [{ "text": "look" }, { "inlineData": { "mimeType": "image/png", "data": "AA==" } }] });
    assert_eq!(encoded(std::slice::from_ref(&shown)), expected);
    let result = |id: &str, name: &str, message: Message| Message {
        tool_call_id: Some(id.into()),
        tool_name: Some(name.into()),
        ..message
    };
    let failed = Message { is_error: true, ..message(Role::Tool, "no") };
    let results = [result("1", "see", Message { role: Role::Tool, ..shown }), result("2", "bash", failed)];
    let expected = json!({ "role": "user", "parts": [
        { "functionResponse": { "id": "1", "name": "see", "response": { "output": "look" } } },
        { "functionResponse": { "id": "2", "name": "bash", "response": { "error": "no" } } },
        { "inlineData": { "mimeType": "image/png", "data": "AA==" } }] });
    assert_eq!(encoded(&results), expected);
    assert!(GenerateContent.encode(&[message(Role::Assistant, "")], false).is_empty());
}

#[test]
fn a_request_has_the_profile_s_model_limit_and_options() {
    let options =
        json!({ "generation_config": { "temperature": 0, "max_output_tokens": 9000 }, "safetySettings": [] });
    let llm = Llm {
        provider: ProviderKind::Gemini,
        model: "gemini-x".into(),
        max_tokens: 77,
        options: options.as_object().cloned().unwrap(),
        ..samples::config().llm
    };
    assert_eq!(GenerateContent.path(&llm), "v1beta/models/gemini-x:streamGenerateContent?alt=sse");
    let tool = json!({ "name": "bash", "description": "Run", "parameters": { "type": "object", "additionalProperties": false } });
    let tool: Tool = serde_json::from_value(tool).unwrap();
    let RequestTemplate { before, after } =
        GenerateContent.request_template(&llm, Some("Be brief."), &[Arc::new(tool)]);
    let body: Value = serde_json::from_slice(&[before, after].concat()).unwrap();
    let declared = json!([{ "functionDeclarations": [{ "name": "bash", "description": "Run",
        "parametersJsonSchema": { "type": "object", "additionalProperties": false } }] }]);
    assert_eq!(
        body,
        json!({ "generationConfig": { "temperature": 0, "maxOutputTokens": 77 }, "safetySettings": [],
        "systemInstruction": { "parts": [{ "text": "Be brief." }] }, "tools": declared, "contents": [] })
    );
    let RequestTemplate { before, after } = GenerateContent.request_template(&llm, None, &[]);
    let bare: Value = serde_json::from_slice(&[before, after].concat()).unwrap();
    assert_eq!((bare.get("tools"), bare.get("systemInstruction")), (None, None));
}

#[test]
fn a_key_goes_as_google_s_or_as_a_token() {
    let mut llm = samples::config().llm;
    let header = |llm: &Llm| GenerateContent.key_header(llm, "AIza").name.to_string();
    assert_eq!(header(&llm), "x-goog-api-key");
    llm.auth = Some(Auth::Bearer);
    assert_eq!(header(&llm), "authorization");
}
