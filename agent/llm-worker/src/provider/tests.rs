//! What providers say, and what they should not say, read by each decoder.

use super::*;
use proptest::prelude::*;

/// Values as a provider's events have them, and as they should not.
fn value() -> impl Strategy<Value = Value> {
    let word = prop::sample::select(vec![
        "text",
        "tool_use",
        "thinking",
        "message_start",
        "content_block_start",
        "content_block_delta",
        "message_delta",
        "message_stop",
        "error",
        "text_delta",
        "input_json_delta",
        "end_turn",
        "{",
        "}",
        "[DONE]",
    ]);
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        (-2i64..3).prop_map(Value::from),
        word.prop_map(Value::from),
    ];
    let key = prop::sample::select(vec![
        "type",
        "index",
        "delta",
        "content_block",
        "message",
        "usage",
        "error",
        "text",
        "id",
        "name",
        "input",
        "partial_json",
        "stop_reason",
        "choices",
        "content",
        "tool_calls",
        "function",
        "arguments",
        "finish_reason",
        "citation",
        "code",
    ]);
    leaf.prop_recursive(4, 40, 6, move |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::vec((key.clone(), inner), 0..6)
                .prop_map(|fields| fields.into_iter().map(|(k, v)| (k.to_owned(), v)).collect()),
        ]
    })
}

proptest! {
    #[test]
    fn no_event_panics_a_decoder(events in prop::collection::vec((any::<bool>(), value()), 0..8)) {
        for kind in ProviderKind::ALL {
            let (mut decoder, mut pieces) = (decoder(*kind), VecDeque::new());
            for (is_error, data) in &events {
                let name = if *is_error { "error" } else { "" };
                let event = sse::Event { name: name.to_owned(), data: data.to_string() };
                let _ = decoder.event(&event, &mut pieces);
            }
            // Whatever came of it can be logged, sent on and sent back.
            if let Ok(Answer { content, tool_calls, .. }) = decoder.finish() {
                let message = Message {
                    role: super::super::message::Role::Assistant,
                    content,
                    tool_calls,
                    tool_call_id: None,
                    tool_name: None,
                    is_error: false,
                };
                let line = serde_json::to_string(&message).unwrap();
                prop_assert!(!line.contains('\n'));
                serde_json::from_str::<Message>(&line).unwrap();
                for kind in ProviderKind::ALL {
                    let sent = encode(*kind, std::slice::from_ref(&message), true);
                    let whole = [b"[".as_slice(), &sent, b"]"].concat();
                    serde_json::from_slice::<Value>(&whole).unwrap();
                }
            }
        }
    }
}
