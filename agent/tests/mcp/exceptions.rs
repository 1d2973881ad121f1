//! Exceptions by the command line: made from a call, agreed to, in force at once, on record, switched off.

use crate::{
    approvals::apart,
    support::{Client, Home, answered, eventually, verified},
};
use serde_json::Value;

fn rules(home: &Home, arguments: &[&str]) -> (String, bool) {
    let mut command = home.ringfence(&["mcp", "rules"]);
    let done = command.args(arguments).args(["--db", &home.text("audit.db")]).output().expect("ringfence");
    (
        String::from_utf8_lossy(&done.stdout).into_owned() + &String::from_utf8_lossy(&done.stderr),
        done.status.success(),
    )
}

/// Reads a file; the row of that call.
fn reads(home: &Home, client: &mut Client, id: u32, path: &str) -> Value {
    calls(home, client, id, ("read_it", "path", path))
}

/// Calls a tool with one argument; the row of that call.
fn calls(home: &Home, client: &mut Client, id: u32, (tool, name, value): (&str, &str, &str)) -> Value {
    client.send(format!(
        "{{\"jsonrpc\":\"2.0\",\"id\":{id},\"method\":\"tools/call\",\"params\":{{\"name\":\"{tool}\",\"arguments\":{{\"{name}\":\"{value}\"}}}}}}\n"
    ));
    assert_eq!(client.out.line(), answered(&id.to_string()));
    eventually("it is on record", || {
        let rows = home.calls(&[]);
        rows.into_iter().nth(id as usize - 1)
    })
}

#[test]
fn an_exception_is_made_from_a_call_and_lowers_the_score_of_calls_like_it() {
    let home = Home::new();
    let mut client = apart(&home, &[]);
    client.works("1");
    let before = reads(&home, &mut client, 2, "/home/a/.env");
    assert_eq!((before["risk_score"].as_i64(), &before["exceptions"]), (Some(30), &Value::Null));
    let id = before["id"].as_str().expect("an id");
    let except = ["except", "env_is_fine", "--like", id, "--reason", "sensitive_data", "--same", "path"];
    let (said, ok) = rules(&home, &except);
    assert!(!ok && said.contains("nothing was changed"), "nobody agreed to it: {said}");
    let (report, ok) = rules(&home, &[&except[..], &["--dry-run", "--json"]].concat());
    let report: Value = serde_json::from_str(&report).expect("JSON");
    assert!(ok && report["matched"] == 1 && report["calls"] == 2, "{report}");
    for (wrong, why) in [("destructive", "no reason of this call"), ("fun", "no reason of this call")] {
        let (said, ok) = rules(&home, &["except", "x", "--like", id, "--reason", wrong, "--yes"]);
        assert!(!ok && said.contains(why), "{said}");
    }
    let (said, ok) = rules(&home, &[&except[..], &["--yes"]].concat());
    assert!(ok && said.contains("env_is_fine is in force"), "{said}");

    let mut next = 3;
    eventually("it is in force in the session that runs", || {
        let row = reads(&home, &mut client, next, "/home/a/.env");
        next += 1;
        (row["risk_score"] == 0).then_some(row)
    });
    let row = reads(&home, &mut client, next, "/home/a/.env");
    assert_eq!(
        row["exceptions"],
        serde_json::json!([{ "name": "env_is_fine", "reasons": ["sensitive_data"] }])
    );
    assert_eq!(row["risk_reasons"], serde_json::json!([]));
    let other = reads(&home, &mut client, next + 1, "/home/b/.env");
    assert_eq!((other["risk_score"].as_i64(), &other["exceptions"]), (Some(30), &Value::Null));
    let (list, _) = rules(&home, &["list", "--json"]);
    let listed: Value = list.lines().next().and_then(|line| serde_json::from_str(line).ok()).expect("a rule");
    assert_eq!((&listed["name"], &listed["action"]), (&"env_is_fine".into(), &"except".into()));
    assert!(listed["hits"].as_i64() >= Some(2), "{listed}");
    let (table, _) = rules(&home, &["list"]);
    assert!(table.contains("tool=read_it") && table.contains("sensitive_data"), "{table}");

    let (said, ok) = rules(&home, &["disable", "env_is_fine"]);
    assert!(ok, "to switch it off only tightens: {said}");
    let mut last = next + 2;
    eventually("it is off in the session that runs", || {
        let row = reads(&home, &mut client, last, "/home/a/.env");
        last += 1;
        (row["risk_score"] == 30).then_some(())
    });
    let (said, ok) = rules(&home, &["enable", "env_is_fine"]);
    assert!(!ok && said.contains("nothing was changed"), "to switch it on loosens: {said}");
    let (log, _) = rules(&home, &["log"]);
    assert!(log.contains("add env_is_fine  by uid") && log.contains("disable env_is_fine"), "{log}");
    assert!(client.end().success());
    assert!(verified(&home, 1));
}

#[test]
fn of_a_call_that_runs_code_the_text_that_it_runs_is_pinned() {
    let home = Home::new();
    let mut client = apart(&home, &[]);
    client.works("1");
    let row = calls(&home, &mut client, 2, ("bash", "command", "ls build"));
    let id = row["id"].as_str().expect("an id");
    let except = ["except", "lists", "--like", id, "--reason", "execute"];
    let (said, ok) = rules(&home, &[&except[..], &["--yes"]].concat());
    assert!(!ok && said.contains("pin the arguments that hold it"), "{said}");
    let (said, ok) = rules(&home, &[&except[..], &["--same", "command", "--yes"]].concat());
    assert!(ok && said.contains("lists is in force"), "the control: {said}");
    assert!(client.end().success());
}
