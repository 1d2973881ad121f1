//! Calls that wait for a person: the command line decides once, and never for its own client.

use crate::support::{Client, Home, answered, call, eventually};
use serde_json::Value;
use std::{process::Command, thread, time::Duration};

/// A client that is a process of its own, so that this test is not its descendant's ancestor.
pub(crate) fn apart(home: &Home, options: &[&str]) -> Client {
    let mut interceptor = home.interceptor(options);
    interceptor.args(["--", "python3", crate::support::SERVER, &home.text("received.log")]);
    let mut command = Command::new("sh");
    home.settle(&mut command);
    // What follows keeps the shell from becoming the interceptor.
    command.args(["-c", "\"$@\"; exit $?", "client"]);
    command.arg(interceptor.get_program()).args(interceptor.get_args());
    Client::start(&mut command)
}

fn listed(home: &Home) -> Vec<Value> {
    let db = home.text("audit.db");
    let text = home.output(&["approvals", "--json", "--db", &db]);
    text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
}

/// Id of the call that waits, once there is one.
pub(crate) fn waiting(home: &Home) -> String {
    // Asked before the session has begun, they would say that there is no database.
    eventually("the session has its places", || home.path("audit.db.journals").exists().then_some(()));
    eventually("a call waits", || listed(home).first().and_then(|call| Some(call["id"].as_str()?.to_owned())))
}

/// `ringfence approvals approve` or `deny`, and its output.
pub(crate) fn decide(home: &Home, verb: &str, call: &str) -> Result<String, String> {
    let done = home
        .ringfence(&["approvals", verb, call, "--db", &home.text("audit.db")])
        .output()
        .expect("ringfence");
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("text");
    if done.status.success() { Ok(text(done.stdout)) } else { Err(text(done.stderr)) }
}

#[test]
fn the_command_line_decides_once() {
    let home = Home::new();
    let mut client = apart(&home, &[]);
    let line = client.call("1", "delete_it");
    let id = waiting(&home);
    let shown = home.output(&["approvals", "--db", &home.text("audit.db")]);
    assert!(
        shown.contains("delete_it") && shown.contains("pause_deletes") && shown.contains(&id[..8]),
        "{shown}"
    );
    client.works("2");
    assert_eq!(decide(&home, "approve", &id[..8]), Ok(format!("approved {id}\n")));
    assert_eq!(client.out.line(), answered("1"));
    for verb in ["approve", "deny"] {
        let again = decide(&home, verb, &id).expect_err("a second time");
        assert!(again.contains("no call") && again.contains("waits for approval"), "{again}");
    }

    client.call("3", "delete_it");
    let id = waiting(&home);
    assert_eq!(decide(&home, "deny", &id), Ok(format!("denied {id}\n")));
    let answer: Value = serde_json::from_str(&client.out.line()).expect("JSON");
    assert_eq!((answer["id"].as_i64(), answer["result"]["isError"].as_bool()), (Some(3), Some(true)));
    let text = answer["result"]["content"][0]["text"].as_str().expect("text");
    assert!(text.contains("denied the call of \"delete_it\"") && text.contains("pause_deletes"), "{text}");
    assert!(decide(&home, "approve", &id).is_err());
    for unknown in ["", "abc", "%", "' OR 1=1 --", "00000000"] {
        assert!(decide(&home, "approve", unknown).is_err(), "{unknown:?}");
    }
    assert!(client.end().success());
    assert_eq!(String::from_utf8(home.received()).expect("text"), call("2", "read_it") + &line);
    let rows = home.calls(&[]);
    let decision = |n: usize| (rows[n]["decision"].as_str(), rows[n]["decided_by"].as_str().is_some());
    assert_eq!((decision(0), decision(2)), ((Some("approved"), true), (Some("denied"), true)));
    assert_eq!([0, 2].map(|n| rows[n]["outcome"].as_str()), [Some("answered"), Some("denied")]);
}

#[test]
fn long_arguments_are_cut_where_calls_wait_and_whole_where_one_is_asked_for() {
    let home = Home::new();
    let mut client = apart(&home, &[]);
    let long = format!("{}, end", "x".repeat(1_500_000));
    client.send(format!(
        "{{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"tools/call\",\"params\":{{\"name\":\"delete_it\",\"arguments\":{{\"path\":\"{long}\"}}}}}}\n"
    ));
    let id = waiting(&home);
    let call = &listed(&home)[0];
    let (shown, bytes) = (call["arguments"].as_str().expect("text"), call["arguments_bytes"].as_u64());
    assert!(shown.len() <= 4096 && shown.starts_with("{\"path\":\"xxx"), "{} bytes", shown.len());
    assert!(bytes.is_some_and(|bytes| bytes > 1_500_000), "and says so: {bytes:?}");
    let people = home.output(&["approvals", "--db", &home.text("audit.db")]);
    assert!(people.contains(&format!("of {} bytes", bytes.unwrap_or_default())), "how to see all of it");
    assert!(people.contains(&format!("ringfence mcp calls {id}")) && people.len() < 6000);
    let whole = home.output(&["mcp", "calls", &id, "--json", "--db", &home.text("audit.db")]);
    assert!(whole.contains(&long), "the call itself has all of it");
    assert_eq!(decide(&home, "deny", &id), Ok(format!("denied {id}\n")));
    // The control: a short call is shown whole.
    client.call("2", "delete_it");
    waiting(&home);
    assert_eq!(listed(&home)[0].get("arguments_bytes"), None);
    assert!(!home.output(&["approvals", "--db", &home.text("audit.db")]).contains("bytes of its arguments"));
}

#[test]
fn a_client_does_not_approve_its_own_calls() {
    let home = Home::new();
    // This process is the client now, and `ringfence approvals approve` its child.
    let mut client = home.client(&[], &[]);
    client.call("1", "delete_it");
    let id = waiting(&home);
    let refused = decide(&home, "approve", &id).expect_err("its own");
    assert!(refused.contains("an agent does not approve its own calls"), "{refused}");
    assert_eq!(waiting(&home), id, "a refusal decides nothing");
    client.works("2");
    assert!(client.end().success());
    assert_eq!(home.calls(&[])[0]["outcome"], "ended");
    assert!(!String::from_utf8(home.received()).expect("text").contains("delete_it"));
}

#[test]
fn late_is_denied_and_stays_denied() {
    let home = Home::new();
    let mut client = apart(&home, &["--approval-timeout", "2"]);
    client.call("1", "delete_it");
    let answer = client.out.line();
    assert!(
        answer.contains("nobody approved it within 2 s") && answer.contains("\"isError\":true"),
        "{answer}"
    );
    // Known from the record: whoever looks for it among those that wait may come too late.
    let rows = eventually("the end of its time is on record", || {
        Some(home.calls(&["--verdict", "timeout"])).filter(|rows| !rows.is_empty())
    });
    let refused = decide(&home, "approve", rows[0]["id"].as_str().expect("an id")).expect_err("late");
    assert!(refused.contains("waits for approval"), "{refused}");
    client.works("2");
    assert!(client.end().success());
    assert!(!String::from_utf8(home.received()).expect("text").contains("delete_it"));
    assert_eq!(home.calls(&["--verdict", "timeout"]).len(), 1);
}

#[test]
fn a_cancelled_call_is_never_forwarded() {
    let home = Home::new();
    let mut client = apart(&home, &[]);
    for (id, cancel) in [
        ("1", r#"{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1}}"#),
        (
            "\"x\"",
            r#"{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":"\u0078","reason":"no"}}"#,
        ),
    ] {
        client.call(id, "delete_it");
        let call = waiting(&home);
        client.send(format!("{cancel}\n"));
        eventually("it waits no longer", || listed(&home).is_empty().then_some(()));
        assert!(decide(&home, "approve", &call).is_err());
        client.works("3");
    }
    assert!(client.end().success());
    let received = String::from_utf8(home.received()).expect("text");
    assert!(!received.contains("delete_it") && !received.contains("cancelled"), "{received}");
    assert_eq!(home.calls(&["--verdict", "cancelled"]).len(), 2);
    // The control: a cancellation of what runs goes on.
    let mut client = home.client(&[], &[]);
    client.call("1", "read_silence");
    let cancel =
        "{\"jsonrpc\":\"2.0\",\"method\":\"notifications/cancelled\",\"params\":{\"requestId\":1}}\n";
    client.send(cancel);
    assert!(client.end().success());
    assert!(home.received().ends_with(cancel.as_bytes()));
}

#[test]
fn progress_goes_only_to_those_who_gave_a_token() {
    let home = Home::new();
    let mut client = apart(&home, &[]);
    client.call("1", "delete_it");
    let _ = waiting(&home);
    thread::sleep(Duration::from_millis(2500));
    assert_eq!(client.out.so_far(), "", "no token, no progress");
    client.send(
        r#"{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"delete_it","_meta":{"progressToken":"a \"b\""}}}"#.to_owned()
            + "\n",
    );
    let mut last = -1;
    for _ in 0..2 {
        let progress: Value = serde_json::from_str(&client.out.line()).expect("JSON");
        assert_eq!(
            (&progress["method"], &progress["params"]["progressToken"]),
            (&"notifications/progress".into(), &"a \"b\"".into())
        );
        let now = progress["params"]["progress"].as_i64().expect("a number");
        assert!(now > last, "it grows");
        last = now;
    }
    assert!(client.end().success());
}

#[test]
fn filters_of_the_command_line_are_text() {
    let (home, mut client) = Home::with_client(&[], &[]);
    client.works("1");
    assert!(client.end().success());
    for hostile in
        ["' OR 1=1 --", "%", "_", "\" OR \"\"=\"", "x'; DROP TABLE tool_calls;--", "?1", "\u{ff07}"]
    {
        let asked = ["mcp", "calls", "--session", hostile, "--db", &home.text("audit.db")];
        let done = home.ringfence(&asked).output().expect("ringfence");
        let said = String::from_utf8_lossy(&done.stderr).into_owned();
        assert!(done.status.code() == Some(1) && said.contains("no session's id begins with"), "{said}");
        assert!(done.stdout.is_empty(), "{hostile}");
    }
    let session = home.calls(&[])[0]["session_id"].as_str().expect("an id").to_owned();
    assert_eq!(home.calls(&["--session", &session]).len(), 1, "the control");
    for refused in [["--risk", "0 OR 1"], ["--risk", "101"], ["--verdict", "pass' OR '1"], ["--limit", "1;"]]
    {
        let done = home.ringfence(&["mcp", "calls"]).args(refused).output().expect("ringfence");
        let said = String::from_utf8_lossy(&done.stderr).into_owned();
        assert!(done.status.code() == Some(2) && said.contains(refused[0]), "{refused:?}: {said}");
    }
    assert_eq!(home.calls(&[]).len(), 1, "everything is still there");
}
