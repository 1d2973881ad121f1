//! Calls that their client does not wait for any more.

use crate::{
    Host, call, grant,
    live::{Live, made},
    outlive::Process,
    request,
};
use serde_json::{Value, json};
use std::{fs, time::Duration};

fn host() -> Host {
    Host::granting(&grant(&["sh", "setsid", "sleep", "mv", "echo", "touch"], json!({})))
}

fn cancel(id: &Value) -> String {
    let params = json!({"requestId": id, "reason": "the user pressed a key"});
    json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": params}).to_string()
}

/// Says who it is in `first`, its child in `second` and its daemon in `third`; then the two would write `late`.
const TREE: &str = "setsid sh -c \"echo \\$\\$ > 3; mv 3 third; sleep 300; echo > late\" & \
    sh -c \"echo \\$\\$ > 2; mv 2 second; sleep 300; echo > late\" & \
    echo $$ > 1; mv 1 first; wait";

#[test]
fn a_cancelled_call_ends_with_its_whole_tree_and_has_no_answer() {
    let host = host();
    let record = host.path("decisions");
    let mut live = Live::new(&host, &["--record", record.to_str().unwrap()]);
    live.say(&call(1, "shell", json!({"program": "sh", "args": ["-c", TREE], "timeout_secs": 300})));
    let tree: Vec<Process> =
        ["first", "second", "third"].map(|name| Process::new(&made(&host.path("work").join(name)))).into();
    assert!(tree.iter().all(|process| !process.ends_within(Duration::ZERO)), "it runs");
    // Others' ids, of another type, and none: nothing happens to the call.
    for id in [json!(2), json!("1"), json!(null), json!([1]), json!(1.5)] {
        live.say(&cancel(&id));
    }
    live.say(r#"{"jsonrpc":"2.0","method":"notifications/cancelled"}"#);
    live.say(
        r#"{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1,"requestId":1}}"#,
    );
    live.say(&request(2, "ping"));
    assert_eq!(live.hear()["id"], 2);
    assert!(tree.iter().all(|process| !process.ends_within(Duration::ZERO)), "it still runs");

    live.say(&cancel(&json!(1)));
    for process in &tree {
        assert!(process.ends_within(Duration::from_secs(60)));
    }
    live.say(&cancel(&json!(1)));
    live.say(&call(3, "shell", json!({"program": "echo"})));
    assert_eq!(live.hear()["id"], 3, "the next answer is the next call's");
    let (rest, ended_well) = live.end();
    assert_eq!((rest, ended_well), (vec![], true));
    assert!(!host.path("work/late").exists());
    let record = fs::read_to_string(record).unwrap();
    let lines = record.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let cancelled: Vec<Value> = lines.filter(|line| line["outcome"] == "cancelled").collect();
    assert_eq!(cancelled.len(), 1, "{record}");
    assert_eq!(cancelled[0]["reason"], "the user pressed a key");
}

#[test]
fn calls_that_wait_are_dropped_and_those_of_a_batch_one_by_one() {
    let host = Host::granting(&grant(&["sleep", "touch", "echo"], json!({"max_calls": {"at_most": 11}})));
    let mut live = Live::new(&host, &[]);
    // As many as run at once, and one that waits for a place.
    for id in 0..8 {
        live.say(&call(id, "shell", json!({"program": "sleep", "args": ["300"], "timeout_secs": 300})));
    }
    live.say(&call(8, "shell", json!({"program": "touch", "args": ["late"]})));
    live.say(&cancel(&json!(8)));
    // A batch that cancels two of its own calls: the first runs, the second would.
    let touch = call(10, "shell", json!({"program": "touch", "args": ["later"]}));
    let batch = [
        call(9, "shell", json!({"program": "sleep", "args": ["300"]})),
        touch,
        cancel(&json!(10)),
        cancel(&json!(9)),
        request(11, "ping"),
    ];
    live.say(&format!("[{}]", batch.join(",")));
    for id in 0..8 {
        live.say(&cancel(&json!(id)));
    }
    let batch = live.hear();
    assert_eq!(batch.as_array().unwrap().len(), 1, "{batch}");
    assert_eq!(batch[0]["id"], 11);
    // What never ran was not counted: of eleven calls, eight sleeps are, and the batch's, if it had begun.
    for id in 20..22 {
        live.say(&call(id, "shell", json!({"program": "echo"})));
        assert_eq!(live.hear()["result"]["isError"], false);
    }
    assert_eq!(live.end(), (vec![], true));
    assert!(!host.path("work/late").exists() && !host.path("work/later").exists());
}

/// Whoever is first: one answer or none, and the session goes on.
#[test]
fn a_cancel_that_meets_the_end_leaves_one_answer_or_none() {
    let host = host();
    let mut live = Live::new(&host, &[]);
    let mut answered = Vec::new();
    for id in 0..200 {
        live.say(&call(id, "shell", json!({"program": "echo", "args": [id.to_string()]})));
        // From at once to well after the end.
        std::thread::sleep(Duration::from_micros(id * 50));
        live.say(&cancel(&json!(id)));
        live.say(&call(1000 + id, "shell", json!({"program": "rm"})));
        // One that takes its time may be behind the next.
        let heard = std::iter::from_fn(|| Some(live.hear()["id"].as_u64().unwrap()));
        answered.extend(heard.take_while(|said| *said != 1000 + id));
    }
    let (rest, ended_well) = live.end();
    answered.extend(rest.iter().map(|answer| answer["id"].as_u64().unwrap()));
    let all = answered.len();
    answered.sort_unstable();
    answered.dedup();
    assert_eq!(answered.len(), all, "two answers to one call");
    assert!(ended_well && answered.last().is_none_or(|id| *id < 200), "{answered:?}");
}
