//! What the runtime in a container receives from the daemon's side of its socket.

use ringfence_guest::runtime::message::{self, Incoming};
use serde_json::Value;

/// Frames from the daemon: what is taken from one is in it as it stands there.
pub(crate) fn guest(data: &[u8]) {
    let Ok(incoming) = message::parse(data) else { return };
    // What goes on as it came may be deeper than anything that is read here.
    let Ok(frame) = serde_json::from_slice::<Value>(data) else { return };
    match incoming {
        Incoming::HumanMessage(content) => {
            assert_eq!(frame["method"], "human_message");
            let content: Value = serde_json::from_str(content.get()).expect("a content is JSON");
            assert!(content.is_array() && content == frame["params"]["content"]);
        }
        Incoming::Answered(id, Ok(result)) => {
            assert_eq!(frame["id"].as_u64(), id);
            let Ok(answer) = message::parse_answer(&result) else { return };
            let said = &frame["result"];
            assert_eq!(said["stop_reason"], answer.stop_reason.as_str());
            for (call, said) in
                answer.tool_calls.iter().flatten().zip(said["tool_calls"].as_array().into_iter().flatten())
            {
                assert!(said["id"] == call.id.as_str() && said["name"] == call.name.as_str());
                assert_eq!(said["input"], call.input);
            }
        }
        Incoming::Answered(id, Err(failure)) => {
            assert_eq!(frame["id"].as_u64(), id);
            assert_eq!(frame["error"]["code"], failure.code);
        }
        Incoming::Ignored => assert!(frame["method"].is_string()),
    }
}
