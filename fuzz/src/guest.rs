//! What a container's programs receive: the runtime, from the daemon's side of its socket; and what agents' hooks start, from the agents.

use ringfence_guest::{
    hook::{Agent, after, before},
    runtime::message::{self, Incoming},
};
use ringfence_wire::{
    tie::{Done, MAX_LINE, Said},
    trace::{MAX_ID, MAX_SESSION},
};
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

/// What an agent says before and after a call. Before: the answer has the same input but for a line in front of the command. After:
/// nothing is answered, and what is told fits a report.
pub(crate) fn hook(data: &[u8]) {
    for agent in Agent::ALL {
        let answer = before(agent, data, "/opt/ringfence-runtime");
        if let Some(done) = after(agent, data) {
            assert!(answer.is_none(), "one moment is not the other");
            told(done);
        }
        // What goes on as it came may be deeper than anything that is read here.
        let Some(answer) = answer else { continue };
        let (Ok(said), Ok(answer)) =
            (serde_json::from_slice::<Value>(data), serde_json::from_str::<Value>(&answer))
        else {
            continue;
        };
        let (mut input, mut updated) =
            (said["tool_input"].clone(), answer["hookSpecificOutput"]["updatedInput"].clone());
        let [command, tied] = [&mut input, &mut updated].map(|of| of["command"].take());
        let (_, behind) = tied.as_str().and_then(|tied| tied.split_once('\n')).expect("a line in front");
        assert_eq!(Some(behind), command.as_str());
        assert_eq!(input, updated);
    }
}

fn told(done: Done) {
    assert!(!done.tool.is_empty() && done.tool.len() <= MAX_ID);
    assert!(!done.call.is_empty() && done.call.len() <= MAX_ID);
    assert!(done.session.as_ref().is_none_or(|id| !id.is_empty() && id.len() <= MAX_SESSION));
    let said = Said::Done(done);
    let line = serde_json::to_vec(&said).expect("it can be written");
    assert!(line.len() < MAX_LINE && !line.contains(&b'\n'));
    assert_eq!(serde_json::from_slice::<Said>(&line).expect("it can be read"), said);
}
