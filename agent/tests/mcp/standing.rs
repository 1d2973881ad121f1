//! Approvals of more than one call: which calls they answer, what ends them, what is on record of them.

use crate::{
    approvals::{apart, waiting},
    support::{Client, Home, SERVER, answered, eventually, verified},
};
use serde_json::Value;
use std::process::Command;

/// `ringfence approvals`, with this home's database: what it said, and whether it did it.
fn approvals(home: &Home, arguments: &[&str]) -> (String, bool) {
    let mut command = home.ringfence(&["approvals"]);
    let done = command.args(arguments).args(["--db", &home.text("audit.db")]).output().expect("ringfence");
    (
        String::from_utf8_lossy(&done.stdout).into_owned() + &String::from_utf8_lossy(&done.stderr),
        done.status.success(),
    )
}

fn done(home: &Home, arguments: &[&str]) -> String {
    let (said, ok) = approvals(home, arguments);
    assert!(ok, "{arguments:?}: {said}");
    said
}

fn standing(home: &Home) -> Vec<Value> {
    let text = done(home, &["standing", "--json"]);
    text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
}

/// A call of a tool with these arguments.
fn called(id: u32, tool: &str, arguments: &str) -> String {
    format!(
        "{{\"jsonrpc\":\"2.0\",\"id\":{id},\"method\":\"tools/call\",\"params\":{{\"name\":\"{tool}\",\"arguments\":{arguments}}}}}\n"
    )
}

/// Calls a tool that waits, and denies it: nothing that stands answered it.
fn asks(home: &Home, client: &mut Client, id: u32, arguments: &str) {
    client.send(called(id, "delete_it", arguments));
    let call = waiting(home);
    done(home, &["deny", &call]);
    let answer = client.out.line();
    assert!(answer.contains("denied the call"), "{answer}");
}

/// Calls a tool that goes on by itself.
fn goes_on(client: &mut Client, id: u32, arguments: &str) {
    client.send(called(id, "delete_it", arguments));
    assert_eq!(client.out.line(), answered(&id.to_string()));
}

/// Calls a tool, and approves it for more than that.
fn approved(home: &Home, client: &mut Client, id: u32, arguments: &str, more: &[&str]) -> String {
    client.send(called(id, "delete_it", arguments));
    let call = waiting(home);
    let said = done(home, &[&["approve", &call[..8]], more].concat());
    assert!(said.starts_with(&format!("approved {call}\napproval ")), "{said}");
    assert_eq!(client.out.line(), answered(&id.to_string()));
    said.split_whitespace().nth(3).expect("its id").to_owned()
}

#[test]
fn the_same_arguments_are_approved_until_that_is_revoked() {
    let home = Home::new();
    let mut client = apart(&home, &[]);
    let id =
        approved(&home, &mut client, 1, r#"{"a":1,"b":"x y"}"#, &["--scope", "arguments", "--for", "2h"]);
    goes_on(&mut client, 2, r#"{"a":1,"b":"x y"}"#);
    goes_on(&mut client, 3, r#"{ "b" : "x y", "a" : 1 }"#);
    for (number, other) in
        [(4, r#"{"a":2,"b":"x y"}"#), (5, r#"{"a":1.0,"b":"x y"}"#), (6, r#"{"a":1,"b":"x y","c":null}"#)]
    {
        asks(&home, &mut client, number, other);
    }
    let list = standing(&home);
    assert_eq!(list.len(), 1);
    let text = |key: &str| list[0][key].as_str().unwrap_or_default();
    assert_eq!((text("id"), text("scope"), text("tool_name")), (id.as_str(), "arguments", "delete_it"));
    assert_eq!((list[0]["uses"].as_i64(), text("until").is_empty()), (Some(2), false));
    let table = done(&home, &["standing"]);
    assert!(table.contains(&id) && table.contains("delete_it"), "{table}");

    let said = done(&home, &["revoke", &id[..8]]);
    assert_eq!(said, format!("revoked {id}\n"));
    let log = done(&home, &["log"]);
    let lines: Vec<&str> = log.lines().collect();
    assert!(lines[0].contains(&format!("  add {id}  by uid ")), "{log}");
    assert!(lines[1].contains("arguments of tool=delete_it server="), "{log}");
    assert!(lines[2].contains(&format!("  revoke {id}  by uid ")), "{log}");
    let log: Vec<Value> = done(&home, &["log", "--json"])
        .lines()
        .map(|line| serde_json::from_str(line).expect("JSON"))
        .collect();
    assert_eq!((log.len(), &log[1]["change"], &log[1]["id"]), (2, &"revoke".into(), &id.clone().into()));
    asks(&home, &mut client, 7, r#"{"a":1,"b":"x y"}"#);
    let (again, ok) = approvals(&home, &["revoke", &id]);
    assert!(!ok && again.contains("no active approval"), "{again}");
    assert!(client.end().success());

    let rows = home.calls(&[]);
    let by = |row: &Value| row["decided_by"].as_str().unwrap_or_default().to_owned();
    assert!(by(&rows[0]).ends_with(&format!(", approval {id}")), "{}", by(&rows[0]));
    for row in &rows[1..3] {
        assert!(by(row).starts_with(&format!("approval {id} of uid ")), "{}", by(row));
        assert_eq!(row["outcome"], "answered");
    }
    assert!(verified(&home, 1));
}

#[test]
fn a_secret_that_the_record_does_not_show_is_part_of_the_arguments() {
    let home = Home::new();
    let mut client = apart(&home, &[]);
    // The first call of a tool has a higher score, with which this one would be blocked.
    asks(&home, &mut client, 9, "{}");
    approved(&home, &mut client, 1, r#"{"password":"first one"}"#, &["--scope", "arguments"]);
    goes_on(&mut client, 2, r#"{"password":"first one"}"#);
    asks(&home, &mut client, 3, r#"{"password":"other one"}"#);
    let rows = home.calls(&[]);
    assert_eq!(rows[1]["arguments"], rows[3]["arguments"], "the record of both is the same");
}

#[test]
fn a_session_s_approval_is_of_that_session_and_a_tool_s_of_all() {
    let home = Home::new();
    let mut first = apart(&home, &[]);
    approved(&home, &mut first, 1, "{}", &["--scope", "session"]);
    goes_on(&mut first, 2, r#"{"other":true}"#);
    let mut second = apart(&home, &[]);
    second.works("1");
    asks(&home, &mut second, 2, "{}");
    assert!(first.end().success());
    eventually("it ends with its session", || standing(&home).is_empty().then_some(()));

    approved(&home, &mut second, 3, "{}", &["--scope", "tool", "--for", "30m"]);
    let mut third = apart(&home, &[]);
    goes_on(&mut third, 1, r#"{"any":"thing"}"#);
    // What would be refused is: it answers what waits, and nothing else.
    home.output(&[
        "mcp",
        "rules",
        "add",
        "never",
        "--tool",
        "delete_*",
        "--action",
        "block",
        "--db",
        &home.text("audit.db"),
    ]);
    eventually("the rule is in force", || {
        third.send(called(9, "delete_it", "{}"));
        third.out.line().contains("never").then_some(())
    });
    home.output(&["mcp", "rules", "delete", "never", "--yes", "--db", &home.text("audit.db")]);
    eventually("it is no longer", || {
        third.send(called(10, "delete_it", "{}"));
        (third.out.line() == answered("10")).then_some(())
    });

    // A server of the same name that is another one.
    let interceptor = home.interceptor(&["--", "python3", SERVER, &home.text("received.log"), "polite"]);
    let mut command = Command::new("sh");
    home.settle(&mut command);
    command.args(["-c", "\"$@\"; exit $?", "client"]);
    command.arg(interceptor.get_program()).args(interceptor.get_args());
    let mut other = Client::start(&mut command);
    asks(&home, &mut other, 1, "{}");
    goes_on(&mut third, 11, "{}");
    assert_eq!(standing(&home).len(), 1, "it is not in the way of the one that it was given for");
}

#[test]
fn of_a_server_that_writes_a_file_of_its_command_an_approval_is_of_one_session_and_says_so() {
    let home = Home::new();
    let started = |writes: &str| {
        let script = format!("{writes}; exec python3 \"$2\" \"$3\"");
        let interceptor = home.interceptor(&[
            "--",
            "sh",
            "-c",
            &script,
            "sh",
            &home.text("state.json"),
            SERVER,
            &home.text("received.log"),
        ]);
        let mut command = Command::new("sh");
        home.settle(&mut command);
        command.args(["-c", "\"$@\"; exit $?", "client"]);
        command.arg(interceptor.get_program()).args(interceptor.get_args());
        let mut client = Client::start(&mut command);
        client.works("1");
        client
    };
    let approves = |client: &mut Client| {
        client.send(called(2, "delete_it", "{}"));
        let said = done(&home, &["approve", &waiting(&home), "--scope", "tool"]);
        assert_eq!(client.out.line(), answered("2"));
        goes_on(client, 3, "{}");
        said
    };
    let mut client = started("echo more >> \"$1\"");
    let said = approves(&mut client);
    assert!(said.contains("answers calls of this session only"), "{said}");
    let mut next = started("echo more >> \"$1\"");
    asks(&home, &mut next, 2, "{}");
    goes_on(&mut client, 4, "{}");
    // The control: one that writes nothing is the same in the next session.
    let said = approves(&mut started(":"));
    assert!(!said.contains("session only"), "{said}");
    goes_on(&mut started(":"), 2, "{}");
}

#[test]
fn others_that_wait_for_the_same_go_on_with_it() {
    let home = Home::new();
    let mut client = apart(&home, &[]);
    for id in 1..4 {
        client.send(called(id, "delete_it", "{}"));
    }
    client.send(called(4, "remove_it", "{}"));
    waiting(&home);
    let many = || done(&home, &["list", "--json"]).lines().count();
    eventually("all of them wait", || (many() == 4).then_some(()));
    let first = waiting(&home);
    done(&home, &["approve", &first, "--scope", "session", "--until", "23:59:59"]);
    let mut answers: Vec<String> = (0..3).map(|_| client.out.line()).collect();
    answers.sort_unstable();
    assert_eq!(answers, ["1", "2", "3"].map(answered));
    assert_eq!(many(), 1, "another tool waits on");
}

#[test]
fn nobody_approves_more_than_one_call_of_their_own_or_for_too_long() {
    let home = Home::new();
    // This process is a client, and whatever it starts is its own.
    let mut own = home.client(&[], &[]);
    own.works("1");
    let mut client = apart(&home, &[]);
    client.send(called(1, "delete_it", "{}"));
    let id = waiting(&home);
    let (refused, ok) = approvals(&home, &["approve", &id, "--scope", "session"]);
    assert!(!ok && refused.contains("an agent does not approve its own calls"), "{refused}");
    assert!(own.end().success());
    eventually("its session is over", || {
        let (said, _) = approvals(&home, &["approve", &id, "--scope", "tool", "--for", "9h"]);
        said.contains("eight hours at most").then_some(())
    });
    for (more, why) in [
        (vec!["--scope", "arguments", "--until", "2020-01-01T00:00:00Z"], "past already"),
        (vec!["--scope", "once", "--for", "1h"], "has no time"),
        (vec!["--scope", "all"], "possible values"),
        (vec!["--for", "1h"], "--scope"),
        (vec!["--scope", "tool", "--until", "soon"], "is no time"),
    ] {
        let (said, ok) = approvals(&home, &[&["approve", id.as_str()], more.as_slice()].concat());
        assert!(!ok && said.contains(why), "{more:?}: {said}");
    }
    assert_eq!((waiting(&home), standing(&home).len()), (id.clone(), 0), "nothing was decided");
    assert_eq!(done(&home, &["approve", &id, "--scope", "once"]), format!("approved {id}\n"), "the control");
    assert_eq!(client.out.line(), answered("1"));
    asks(&home, &mut client, 2, "{}");
}
