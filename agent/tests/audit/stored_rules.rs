//! Rules of the database by the command line: what it changes is in force at once, and in the ledger.

use super::support::{ClientShell, Home, Session, wait_until};
use serde_json::{Value, json};

/// What `ringfence mcp rules` said, and whether it did it.
fn rules(home: &Home, arguments: &[&str]) -> (String, bool) {
    let ran = home.ringfence(&["mcp", "rules"]).args(arguments).output().expect("ringfence mcp rules");
    (
        String::from_utf8_lossy(&ran.stdout).into_owned() + &String::from_utf8_lossy(&ran.stderr),
        ran.status.success(),
    )
}

fn done(home: &Home, arguments: &[&str]) -> String {
    let (said, ok) = rules(home, arguments);
    assert!(ok, "{arguments:?}: {said}");
    said
}

fn refused(home: &Home, arguments: &[&str], why: &str) {
    let (said, ok) = rules(home, arguments);
    assert!(!ok && said.contains(why), "{arguments:?}: {said}");
}

/// The rules of the database, in their order.
fn listed(home: &Home) -> Vec<Value> {
    let lines = done(home, &["list", "--json"]);
    let rows = lines.lines().map(|line| serde_json::from_str::<Value>(line).expect("JSON"));
    rows.filter(|row| row["source"] == "database").collect()
}

fn is_blocked(session: &mut Session) -> bool {
    session.call(7, "x_tool");
    let line = session.line();
    assert!(line.contains("\"id\":7"), "{line}");
    line.contains("no_x")
}

#[test]
fn a_rule_is_added_changed_and_deleted_and_each_change_is_in_the_ledger() {
    let home = Home::new(&[]);
    let mut session = Session::start(&home);
    assert!(!is_blocked(&mut session), "the control");
    let said = done(&home, &["add", "no_x", "--tool", "x_*", "--action", "block"]);
    assert_eq!(said.trim(), "no_x is in force");
    wait_until("the running session has the rule", || is_blocked(&mut session));
    refused(&home, &["add", "no_x", "--action", "flag"], "of that name already");
    refused(&home, &["add", "pause_deletes", "--action", "flag"], "of that name already");
    refused(&home, &["add", "a b", "--action", "flag"], "a rule's name");
    refused(&home, &["edit", "nobody", "--action", "flag"], "has no rule");
    refused(&home, &["delete", "pause_deletes", "--yes"], "is in a rule file");

    // Nobody is there to ask.
    refused(&home, &["edit", "no_x", "--tool", "y_*"], "nothing was changed");
    refused(&home, &["disable", "no_x"], "this loosens the rule no_x");
    refused(&home, &["delete", "no_x"], "nothing was changed");
    done(&home, &["edit", "no_x", "--description", "none of them"]);
    done(&home, &["disable", "no_x", "--yes"]);
    wait_until("the rule is off", || !is_blocked(&mut session));
    done(&home, &["enable", "no_x"]);
    wait_until("the rule is on", || is_blocked(&mut session));
    done(&home, &["add", "second", "--operations", "write,delete", "--min-risk", "30", "--action", "pause"]);
    done(&home, &["move", "second", "1"]);
    let names: Vec<Value> = listed(&home).iter().map(|row| row["name"].clone()).collect();
    assert_eq!(names, ["second", "no_x"]);
    let table = done(&home, &["list"]);
    assert!(table.contains("operations=write,delete") && table.contains("tool=x_*"), "{table}");
    done(&home, &["delete", "no_x", "--yes"]);
    wait_until("the rule is gone", || !is_blocked(&mut session));
    session.end();

    let log = done(&home, &["log", "--json"]);
    let log: Vec<Value> = log.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    let changes: Vec<&Value> = log.iter().map(|line| &line["change"]).collect();
    assert_eq!(changes, ["add", "edit", "disable", "enable", "add", "move", "delete"]);
    assert!(log[0]["by"].as_str().is_some_and(|by| by.starts_with("uid ") && by.ends_with("command line")));
    assert_eq!((&log[0]["before"], &log[0]["after"]["tool_pattern"]), (&Value::Null, &json!("x_*")));
    assert_eq!((&log[6]["before"]["description"], &log[6]["after"]), (&json!("none of them"), &Value::Null));
    assert_eq!(
        (&log[5]["moved"]["from"], &log[5]["moved"]["to"], &log[5]["after"]),
        (&json!(2), &json!(1), &Value::Null)
    );
    let text = done(&home, &["log"]);
    assert!(text.contains("move second  by uid") && text.contains("    place 2 before, 1 after\n"), "{text}");
    assert!(
        text.contains("disable no_x  by uid") && text.contains("before  block: tool=x_*, place 1"),
        "{text}"
    );

    // The ledger vouches for them.
    home.is_whole(&[], "");
    home.sql("UPDATE ledger SET entry = replace(entry, 'none of them', 'all of them')");
    home.finds(&[], "of the ledger does not follow");
}

#[test]
fn a_change_is_tried_on_calls_on_record_and_a_rule_made_like_one_of_them() {
    let home = Home::new(&[]);
    home.session();
    let calls = home.ringfence(&["mcp", "calls", "--json"]).output().expect("ringfence mcp calls");
    let calls = String::from_utf8(calls.stdout).expect("text");
    let calls: Vec<Value> = calls.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    let read = calls.iter().find(|call| call["tool_name"] == "read_file").expect("a call");
    let id = read["id"].as_str().expect("an id");

    let tried = |arguments: &[&str]| -> Value {
        let all = [arguments, &["--dry-run", "--json"]].concat();
        serde_json::from_str(&done(&home, &all)).expect("JSON")
    };
    let report = tried(&["add", "a", "--like", id, "--action", "block"]);
    assert_eq!(
        (&report["calls"], &report["matched"], &report["stricter"]),
        (&json!(4), &json!(2), &json!(2))
    );
    assert!(listed(&home).is_empty(), "nothing was done");
    done(&home, &["add", "a", "--like", id, "--action", "block"]);
    let rule = &listed(&home)[0];
    assert_eq!((&rule["tool_pattern"], &rule["server_pattern"]), (&json!("read_file"), &json!("fs")));
    let text =
        done(&home, &["add", "b", "--tool", "write_*", "--action", "pause", "--dry-run", "--days", "3"]);
    assert!(text.starts_with("4 calls of the last 3 days\n") && text.contains("fs: write_file"), "{text}");
    refused(&home, &["add", "c", "--like", "00000000", "--action", "flag"], "no call's id begins");
    home.session();
    assert_eq!(listed(&home)[0]["hits"], 2, "of the second session");
    assert_eq!(tried(&["delete", "a"])["milder"], 2);
}

#[test]
fn what_a_client_started_changes_no_rule_nor_tries_to() {
    let home = Home::new(&[]);
    done(&home, &["add", "no_x", "--tool", "x_*", "--action", "block"]);
    let asks = "\"$0\" mcp rules add mine --action flag; \"$0\" mcp rules delete no_x --dry-run; \
        \"$0\" mcp rules delete no_x --yes";
    let client = ClientShell::start(&home, asks);
    wait_until("the session is on record", || home.has_rows("sessions"));
    let said = client.until_refused(&home);
    assert_eq!(said.matches("an agent does not approve").count(), 3, "{said}");
    assert_eq!(listed(&home).len(), 1);
    done(&home, &["delete", "no_x", "--dry-run"]);
    done(&home, &["delete", "no_x", "--yes"]);
}
