//! Where something is added to results of each form that an API has for them.

use super::*;
use proptest::prelude::*;
use serde_json::Value;

const SAID: &str = "[Ringfence] \"no\"";

/// A request whose conversation has this message alone.
fn request(wire: Wire, message: &str) -> String {
    format!("{{\"{}\": [{message}] }}", endpoint(wire).conversation())
}

/// The message with what is said of its one result; `None`: it has no room.
fn said(wire: Wire, message: &str) -> Option<String> {
    let body = request(wire, message);
    let results = results(wire, body.as_bytes());
    assert!(results.len() < 2, "{message}");
    let added = added(body.as_bytes(), results.iter().map(|(_, room)| (*room, SAID)));
    assert_eq!(added.is_some(), !results.is_empty(), "{message}");
    let added = String::from_utf8(added?).unwrap();
    let message = added.strip_prefix(&request(wire, "").replace("] }", ""))?.strip_suffix("] }")?.to_owned();
    Some(message)
}

#[test]
fn each_form_of_a_result_is_added_to_in_its_own_way() {
    use Wire::{ChatCompletions, GenerateContent, Messages, Responses};
    let cases = [
        (
            Messages,
            r#"{"role":"user","content":[{"type":"tool_result","tool_use_id":"c"}]}"#,
            r#"{"role":"user","content":[{"type":"tool_result","tool_use_id":"c","content":"[Ringfence] \"no\""}]}"#,
        ),
        (
            Messages,
            r#"{"role":"user","content":[{"content": null ,"type":"tool_result","tool_use_id":"c"}]}"#,
            r#"{"role":"user","content":[{"content": "[Ringfence] \"no\"" ,"type":"tool_result","tool_use_id":"c"}]}"#,
        ),
        (
            Messages,
            r#"{"role":"user","content":[{"type":"tool_result","tool_use_id":"c","content":[ ]}]}"#,
            r#"{"role":"user","content":[{"type":"tool_result","tool_use_id":"c","content":[ {"text":"[Ringfence] \"no\"","type":"text"}]}]}"#,
        ),
        (
            ChatCompletions,
            r#"{"role":"tool","tool_call_id":"c","content":null}"#,
            r#"{"role":"tool","tool_call_id":"c","content":"[Ringfence] \"no\""}"#,
        ),
        (
            ChatCompletions,
            r#"{"role":"tool","tool_call_id":"c" }"#,
            r#"{"role":"tool","tool_call_id":"c" ,"content":"[Ringfence] \"no\""}"#,
        ),
        (
            GenerateContent,
            r#"{"parts":[{"functionResponse":{"name":"t"}}]}"#,
            r#"{"parts":[{"functionResponse":{"name":"t","response":{"ringfence":"[Ringfence] \"no\""}}}]}"#,
        ),
        (
            GenerateContent,
            r#"{"parts":[{"function_response":{"response":null,"name":"t"}}]}"#,
            r#"{"parts":[{"function_response":{"response":{"ringfence":"[Ringfence] \"no\""},"name":"t"}}]}"#,
        ),
        (
            GenerateContent,
            r#"{"parts":[{"functionResponse":{"name":"t","response":{}}}]}"#,
            r#"{"parts":[{"functionResponse":{"name":"t","response":{"ringfence":"[Ringfence] \"no\""}}}]}"#,
        ),
        (
            Responses,
            r#"{"type":"custom_tool_call_output","call_id":"c","output":"x"}"#,
            r#"{"type":"custom_tool_call_output","call_id":"c","output":"x\n\n[Ringfence] \"no\""}"#,
        ),
        (
            Responses,
            r#"{"type":"custom_tool_call_output","call_id":"c","output":[]}"#,
            r#"{"type":"custom_tool_call_output","call_id":"c","output":[{"text":"[Ringfence] \"no\"","type":"input_text"}]}"#,
        ),
        (
            Responses,
            r#"{"type":"apply_patch_call_output","call_id":"c","status":"failed"}"#,
            r#"{"type":"apply_patch_call_output","call_id":"c","status":"failed","output":"[Ringfence] \"no\""}"#,
        ),
        (
            Responses,
            r#"{"type":"apply_patch_call_output","call_id":"c","output":"x","status":"failed"}"#,
            r#"{"type":"apply_patch_call_output","call_id":"c","output":"x\n\n[Ringfence] \"no\"","status":"failed"}"#,
        ),
        (
            Responses,
            r#"{"type":"local_shell_call_output","id":"c","output":"7 files"}"#,
            r#"{"type":"local_shell_call_output","id":"c","output":"7 files\n\n[Ringfence] \"no\""}"#,
        ),
        (
            Responses,
            r#"{"type":"local_shell_call_output","id":"c","output":"{\"output\":\"x\",\"metadata\":{\"exit_code\":1}}\n"}"#,
            r#"{"type":"local_shell_call_output","id":"c","output":"{\"output\":\"x\",\"metadata\":{\"exit_code\":1},\"ringfence\":\"[Ringfence] \\\"no\\\"\"}\n"}"#,
        ),
        (
            Responses,
            r#"{"type":"local_shell_call_output","id":"c","output":" {} "}"#,
            r#"{"type":"local_shell_call_output","id":"c","output":" {\"ringfence\":\"[Ringfence] \\\"no\\\"\"} "}"#,
        ),
        (
            Responses,
            r#"{"type":"shell_call_output","call_id":"c","output":[{"stdout":"x","stderr":"y","outcome":{"type":"exit","exit_code":1}}]}"#,
            r#"{"type":"shell_call_output","call_id":"c","output":[{"stdout":"x","stderr":"y\n\n[Ringfence] \"no\"","outcome":{"type":"exit","exit_code":1}}]}"#,
        ),
    ];
    for (wire, message, wanted) in cases {
        assert_eq!(said(wire, message).as_deref(), Some(wanted));
    }
}

#[test]
fn what_would_not_stay_valid_or_clear_has_no_room() {
    let shell = |written: &str, more: &str| {
        let message = format!(r#"{{"type":"shell_call_output","call_id":"c","output":{written}{more}}}"#);
        said(Wire::Responses, &message)
    };
    let written = r#"[{"stdout":"x","stderr":"","outcome":{"type":"timeout"}}]"#;
    assert!(shell(written, r#","max_output_length":4096"#).is_some(), "the control");
    assert!(shell(written, r#","max_output_length":null"#).is_some(), "the control");
    for most in ["1200", "\"4096\"", "-1"] {
        assert_eq!(shell(written, &format!(r#","max_output_length":{most}"#)), None, "{most}");
    }
    for written in ["[]", "null", r#""x""#, r#"[{"stdout":"x"}]"#, r#"[{"stdout":"x","stderr":7}]"#] {
        assert_eq!(shell(written, ""), None, "{written}");
    }
    let long = format!(r#"{{"role":"tool","tool_call_id":"c","content":"{}"}}"#, "x".repeat(10 << 20));
    for (wire, message) in [
        // It may be read as a list of what somebody knows.
        (Wire::Responses, r#"{"type":"local_shell_call_output","id":"c","output":"[{}]"}"#),
        (Wire::Responses, r#"{"type":"local_shell_call_output","id":"c","output":"{\u007d"}"#),
        (Wire::Responses, r#"{"type":"apply_patch_call_output","call_id":"c","output":[]}"#),
        (Wire::Responses, r#"{"type":"custom_tool_call_output","call_id":"c","output":{}}"#),
        (
            Wire::Messages,
            r#"{"role":"user","content":[{"type":"tool_result","tool_use_id":"c","content":[{"type":"tool_reference","tool_name":"x"}]}]}"#,
        ),
        // Some read another field for it.
        (Wire::ChatCompletions, r#"{"role":"tool","tool_call_id":"c","Content":"x"}"#),
        (Wire::ChatCompletions, r#"{"role":"tool","tool_call_id":"c","Content":"x","content":"y"}"#),
        (Wire::ChatCompletions, &long),
    ] {
        assert_eq!(said(wire, message), None);
    }
}

/// A message with one result of each form, in which `OUTPUT` stands for the field with it, or for none.
const FORMS: [(Wire, &str, &str); 9] = [
    (
        Wire::Messages,
        "content",
        r#"{ "role":"user","content":[{ "type":"tool_result","tool_use_id":"c"OUTPUT }]}"#,
    ),
    (Wire::ChatCompletions, "content", r#"{"role":"tool" ,"tool_call_id":"c"OUTPUT}"#),
    (
        Wire::GenerateContent,
        "response",
        r#"{"parts":[{"functionResponse":{"name":"t"OUTPUT}},{ "text":"x"}]}"#,
    ),
    (
        Wire::GenerateContent,
        "response",
        r#"{"parts":[{"function_response":{"name":"t"OUTPUT}}],"role":"function"}"#,
    ),
    (Wire::Responses, "output", r#"{"type":"function_call_output","call_id":"c"OUTPUT}"#),
    (Wire::Responses, "output", r#"{"type":"custom_tool_call_output","call_id":"c"OUTPUT }"#),
    (
        Wire::Responses,
        "output",
        r#"{"status":"failed","type":"apply_patch_call_output","call_id":"c"OUTPUT}"#,
    ),
    (Wire::Responses, "output", r#"{"type":"local_shell_call_output","id":"c"OUTPUT}"#),
    (Wire::Responses, "output", r#"{"type":"shell_call_output","call_id":"c"OUTPUT,"status":null}"#),
];

fn any_output() -> impl Strategy<Value = Option<Value>> {
    let object =
        || prop::collection::btree_map("[a-z]{0,9}", any::<String>(), 0..4).prop_map(|all| json!(all));
    let written = (any::<String>(), any::<String>()).prop_map(
        |(stdout, stderr)| json!([{ "stdout": stdout, "stderr": stderr, "outcome": { "type": "exit", "exit_code": 0 } }]),
    );
    let output = prop_oneof![
        Just(Value::Null),
        any::<String>().prop_map(Value::from),
        prop_oneof![r"\PC{0,3}[{\[]\PC{0,9}[}\]]\s?", r"[ \n\t]*\{\}[ \r\n\t]*"].prop_map(Value::from),
        object().prop_map(|object| Value::from(serde_json::to_string_pretty(&object).unwrap())),
        object().prop_map(|object| Value::from(format!(" {object}\r\n\t "))),
        object(),
        Just(json!([])),
        written,
        any::<String>().prop_map(|text| json!([{ "type": "text", "text": text }])),
    ];
    prop::option::of(output)
}

proptest! {
    /// Of a request in whatever form of a result: one insertion, or a null that is replaced, and nothing else; and what is added to
    /// JSON in a text leaves it JSON, with all that it had.
    #[test]
    fn nothing_else_of_a_request_is_changed(
        form in prop::sample::select(FORMS.to_vec()), output in any_output(), escapes in any::<bool>(),
    ) {
        let (wire, key, message) = form;
        let output = output.map(|output| (output.to_string(), output));
        let text = output.as_ref().map(|(text, _)| if escapes { text.replace('x', r"\u0078") } else { text.clone() });
        let field = text.map(|text| format!(r#", "{key}" : {text}"#)).unwrap_or_default();
        let message = message.replace("OUTPUT", &field);
        let Some(after) = said(wire, &message) else { return Ok(()) };
        let read: Value = serde_json::from_str(&after).unwrap();
        prop_assert_eq!(after.matches("[Ringfence]").count(), 1);
        let same = message.bytes().zip(after.bytes()).take_while(|(one, other)| one == other).count();
        let (_, rest) = message.as_bytes().split_at(same);
        let is_null = output.as_ref().is_some_and(|(_, output)| output.is_null());
        let behind_null = rest.strip_prefix(b"null").filter(|_| is_null);
        let mut kept = [Some(rest), behind_null].into_iter().flatten();
        prop_assert!(kept.any(|rest| after.as_bytes().ends_with(rest)), "{message} became {after}");
        // What a text is JSON of stays that.
        if let (true, Some((_, Value::String(text)))) = (message.contains("local_shell"), &output)
            && let Ok(Value::Object(had)) = serde_json::from_str::<Value>(text)
        {
            let has: Value = serde_json::from_str(read["output"].as_str().unwrap()).unwrap();
            prop_assert!(had.iter().all(|(key, value)| has.get(key) == Some(value)));
            prop_assert_eq!(has.as_object().unwrap().len(), had.len() + 1);
        }
    }
}
