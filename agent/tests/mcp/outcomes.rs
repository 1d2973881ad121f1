//! What becomes of calls: an outcome of its own for each end, beside what the policy did, in every form of the record.

use crate::support::{Home, eventually, verified};
use serde_json::Value;

fn export(home: &Home, format: &str) -> Vec<Value> {
    let text = home.output(&["audit", "export", "--format", format, "--db", &home.text("audit.db")]);
    text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
}

#[test]
fn every_end_of_a_call_is_an_outcome_of_its_own() {
    let (home, mut client) = Home::with_client(&[], &[]);
    client.works("1");
    for (id, tool) in [("2", "read_failing"), ("3", "read_refused"), ("4", "read_task")] {
        client.call(id, tool);
        assert!(client.out.line().contains(&format!("\"id\":{id},")));
    }
    client
        .send("{\"jsonrpc\":\"2.0\",\"id\":5,\"method\":\"tasks/result\",\"params\":{\"taskId\":\"t1\"}}\n");
    assert!(client.out.line().contains("late"));
    client.call("6", "read_task");
    assert!(client.out.line().contains("\"id\":6,"));
    client.call("7", "read_silence");
    client
        .send("{\"jsonrpc\":\"2.0\",\"method\":\"notifications/cancelled\",\"params\":{\"requestId\":7}}\n");
    client.call("8", "delete_it");
    client
        .send("{\"jsonrpc\":\"2.0\",\"method\":\"notifications/cancelled\",\"params\":{\"requestId\":8}}\n");
    client.call("9", "delete_other");
    // The server dies of this one.
    client.call("10", "read_crash");
    client.wait();

    let rows = home.calls(&[]);
    let shown: Vec<[&str; 2]> = rows
        .iter()
        .map(|row| ["policy_action", "outcome"].map(|key| row[key].as_str().unwrap_or("none")))
        .collect();
    let expected = [
        ["pass", "answered"],
        ["pass", "tool_error"],
        ["pass", "error"],
        ["pass", "task_answered"],
        ["pass", "task"],
        ["pass", "cancelled_in_flight"],
        ["pause", "cancelled"],
        ["pause", "ended"],
        ["pass", "killed"],
    ];
    assert_eq!(shown, expected);
    assert!(verified(&home, 1));

    // Filters: each outcome finds its own, and a verdict is policy, decision or outcome.
    for [_, outcome] in expected {
        let found = home.calls(&["--outcome", outcome]);
        assert!(found.len() == 1 && found[0]["outcome"] == outcome, "{outcome}: {found:?}");
    }
    assert_eq!(home.calls(&["--verdict", "pause"]).len(), 2);
    assert_eq!(home.calls(&["--verdict", "killed"]).len(), 1);
    assert_eq!(home.calls(&["--outcome", "denied"]).len(), 0, "the control");

    let db = home.text("audit.db");
    let stats = home.output(&["mcp", "stats", "--json", "--db", &db]);
    let stats: Value = serde_json::from_str(&stats).expect("JSON");
    for [_, outcome] in expected {
        assert_eq!(stats[format!("outcome_{outcome}")], 1, "{stats}");
    }
    assert_eq!(
        (&stats["failed"], &stats["outcome_denied"], &stats["outcome_pending"]),
        (&2.into(), &0.into(), &0.into())
    );

    let outcomes =
        |format: &str, key: fn(&Value) -> Value| export(&home, format).iter().map(key).collect::<Vec<_>>();
    let all = expected.map(|[_, outcome]| Value::from(outcome));
    assert_eq!(outcomes("ndjson", |row| row["outcome"].clone()), all);
    assert_eq!(outcomes("ocsf", |event| event["status_detail"].clone()), all);
    let dispositions = outcomes("ocsf", |event| event["disposition"].clone());
    assert_eq!(dispositions[5..8], ["Allowed", "Dropped", "Dropped"]);
    let late = &export(&home, "ndjson")[3];
    assert_eq!(
        (&late["task_result"]["content"][0], late["result"]["task"].is_object()),
        (&"late".into(), true)
    );
    let whole = home.output(&["mcp", "calls", late["id"].as_str().expect("an id"), "--db", &db]);
    assert!(whole.contains("task_answered") && whole.contains("late"), "{whole}");
}

#[test]
fn a_call_in_flight_has_no_outcome_before_its_session_ends() {
    let (home, mut client) = Home::with_client(&[], &[]);
    client.works("1");
    client.call("2", "read_silence");
    client.works("3");
    let outcomes = || home.calls(&[]).iter().map(|row| row["outcome"].clone()).collect::<Vec<_>>();
    let recorded = || Some(outcomes()).filter(|all| all.len() == 3 && all[2] == "answered");
    assert_eq!(
        eventually("all are on record", recorded),
        ["answered".into(), Value::Null, "answered".into()]
    );
    assert!(client.end().success());
    assert_eq!(outcomes(), ["answered", "killed", "answered"]);
    assert!(verified(&home, 1));
}
