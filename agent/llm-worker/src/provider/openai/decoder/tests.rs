//! What OpenAI's events are read as.

use super::*;

fn read(deltas: &[Value]) -> (Result<Answer, RpcError>, Vec<Piece>) {
    let (mut decoder, mut pieces) = (Decoder::default(), VecDeque::new());
    for delta in deltas {
        let data = json!({ "choices": [{ "index": 0, "delta": delta }] }).to_string();
        let read = decoder.event(&Event { name: String::new(), data }, &mut pieces);
        if let Err(error) = read {
            return (Err(error), pieces.into());
        }
    }
    let data = json!({ "choices": [{ "index": 0, "delta": {}, "finish_reason": "tool_calls" }] }).to_string();
    decoder.event(&Event { name: String::new(), data }, &mut pieces).unwrap();
    (Box::new(decoder).finish(), pieces.into())
}

#[test]
fn a_custom_tool_s_call_is_one() {
    let custom = |call: Value| json!({ "tool_calls": [call] });
    let (answer, pieces) = read(&[
        custom(
            json!({ "index": 0, "id": "a", "type": "custom", "custom": { "name": "patch", "input": "rm " } }),
        ),
        custom(json!({ "index": 0, "custom": { "input": "\"x\"" } })),
        custom(json!({ "index": 1, "id": "b", "function": { "name": "t", "arguments": "{}" } })),
    ]);
    let answer = answer.unwrap();
    let calls: Vec<_> =
        answer.tool_calls.iter().map(|call| (&*call.id, &*call.name, call.input.get())).collect();
    assert_eq!(calls, [("a", "patch", r#"{"input":"rm \"x\""}"#), ("b", "t", "{}")]);
    assert_eq!(answer.stop_reason, "tool_use");
    let start = |id: &str, name: &str| Piece::ToolStart { id: id.into(), name: name.into() };
    let input = Piece::ToolInput { call: 1, text: "{}".into() };
    assert_eq!(pieces, [start("a", "patch"), start("b", "t"), input]);
    let (nameless, _) = read(&[custom(json!({ "index": 0, "custom": { "input": "x" } }))]);
    assert!(nameless.unwrap_err().message.contains("without a name"), "the control");
}
