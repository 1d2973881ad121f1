//! Rules by the dashboard's API: changed by one at a time, tried before, counted, in force at once, in the ledger.

use crate::support::{Answer, Home, Session, eventually};
use serde_json::{Value, json};

/// A home with a rule that blocks what is called `x_`.
fn home() -> (Home, Value) {
    let home = Home::new();
    let body = json!({ "name": "no_x", "tool_pattern": "x_*", "action": "block", "description": "d" });
    let answer = home.ask("POST", "/api/rules", Some(&body.to_string()));
    assert_eq!(answer.status, 201, "{}", answer.body);
    (home, answer.json())
}

fn path(rule: &Value) -> String {
    format!("/api/rules/{}", rule["id"].as_str().expect("an id"))
}

fn ask(home: &Home, method: &str, path: &str, body: &Value) -> Answer {
    home.ask(method, path, Some(&body.to_string()))
}

/// The rules of the database.
fn listed(home: &Home) -> Vec<Value> {
    let rules = home.json("/api/rules");
    rules.as_array().expect("a list").iter().filter(|rule| rule["source"] == "database").cloned().collect()
}

fn is_blocked(session: &mut Session) -> bool {
    session.call("x_tool", "{}");
    session.line().contains("no_x")
}

#[test]
fn a_changed_rule_is_in_force_in_running_sessions() {
    let (home, rule) = home();
    let mut session = home.session("files", &[]);
    assert!(is_blocked(&mut session));
    let off = ask(&home, "PATCH", &path(&rule), &json!({ "version": 1, "enabled": false, "agreed": true }));
    assert_eq!((off.status, &off.json()["enabled"]), (200, &json!(false)), "{}", off.body);
    eventually("the rule is off", || (!is_blocked(&mut session)).then_some(()));
    let on = ask(&home, "PATCH", &path(&rule), &json!({ "version": 2, "enabled": true }));
    assert_eq!(on.status, 200, "it tightens: {}", on.body);
    eventually("the rule is on", || is_blocked(&mut session).then_some(()));
    let other =
        ask(&home, "PATCH", &path(&rule), &json!({ "version": 3, "tool_pattern": "y_*", "agreed": true }));
    assert_eq!((other.status, &other.json()["tool_pattern"]), (200, &json!("y_*")), "{}", other.body);
    assert_eq!(other.json()["description"], "d", "what is not named stays");
    eventually("it is about other calls", || (!is_blocked(&mut session)).then_some(()));
    let gone = ask(&home, "DELETE", &path(&rule), &json!({ "version": 4, "agreed": true }));
    assert_eq!((gone.status, gone.json()), (200, json!({ "deleted": true })));
    assert!(listed(&home).is_empty());
    assert_eq!(ask(&home, "DELETE", &path(&rule), &json!({ "version": 4, "agreed": true })).status, 404);
    session.end();
}

#[test]
fn what_loosens_needs_a_word_and_of_two_changes_at_once_the_second_is_refused() {
    let (home, rule) = home();
    let loosening = [
        ("PATCH", json!({ "version": 1, "enabled": false })),
        ("PATCH", json!({ "version": 1, "action": "flag" })),
        ("PATCH", json!({ "version": 1, "min_risk_score": 90 })),
        ("DELETE", json!({ "version": 1 })),
    ];
    for (method, body) in loosening {
        let answer = ask(&home, method, &path(&rule), &body);
        assert_eq!(answer.status, 428, "{method} {body}: {}", answer.body);
        assert!(answer.error().contains("no_x") && answer.error().contains("agreed"), "{}", answer.body);
    }
    assert_eq!(listed(&home)[0]["version"], 1, "nothing was done");
    let first = ask(&home, "PATCH", &path(&rule), &json!({ "version": 1, "description": "first" }));
    assert_eq!(first.status, 200, "{}", first.body);
    for (method, body) in [
        ("PATCH", json!({ "version": 1, "description": "second" })),
        ("PATCH", json!({ "version": 1, "enabled": false, "agreed": true })),
        ("DELETE", json!({ "version": 1, "agreed": true })),
    ] {
        let late = ask(&home, method, &path(&rule), &body);
        assert_eq!(late.status, 409, "{method} {body}: {}", late.body);
        assert!(
            late.error().contains("meanwhile by uid") && late.error().contains("dashboard"),
            "{}",
            late.body
        );
    }
    let now = &listed(&home)[0];
    assert_eq!(
        (&now["description"], &now["version"], &now["enabled"]),
        (&json!("first"), &json!(2), &json!(true))
    );
}

#[test]
fn changes_that_are_none_are_refused() {
    let (home, rule) = home();
    for (body, status, named) in [
        (json!({ "version": 1 }), 422, "one of"),
        (json!({ "version": 1, "enabled": false, "place": 1 }), 422, "one of"),
        (json!({ "version": 1, "enabled": true, "action": "flag" }), 422, "one of"),
        (json!({ "action": "flag" }), 422, "version"),
        (json!({ "version": "1", "action": "flag" }), 422, "version"),
        (json!({ "version": 1, "colour": 1 }), 422, "colour"),
        (json!({ "version": 1, "tool_pattern": "[" }), 422, "tool_pattern"),
        (json!({ "version": 1, "action": "pass" }), 422, "no rule"),
        (json!({ "version": 1, "name": "other" }), 422, "keeps its name"),
        (json!({ "version": 1, "description": "x".repeat(1001) }), 422, "1000"),
    ] {
        let answer = ask(&home, "PATCH", &path(&rule), &body);
        assert_eq!(answer.status, status, "{body}: {}", answer.body);
        assert!(answer.error().contains(named), "{body}: {}", answer.body);
    }
    assert_eq!(ask(&home, "PATCH", "/api/rules/nobody", &json!({ "version": 1, "place": 1 })).status, 404);
    assert_eq!(
        ask(&home, "PATCH", "/api/rules/nobody", &json!({ "version": 1, "action": "flag" })).status,
        404
    );
    for query in ["dry_run=x", "dry_run=0", "dry_run=9999", "days=3"] {
        let answer = ask(&home, "DELETE", &format!("{}?{query}", path(&rule)), &json!({ "version": 1 }));
        assert_eq!(answer.status, 400, "{query}: {}", answer.body);
    }
    // The gates of every change.
    let host = format!("127.0.0.1:{}", home.port);
    let bearer = format!("Bearer {}", home.token);
    let good =
        [("Host", host.as_str()), ("Authorization", bearer.as_str()), ("Content-Type", "application/json")];
    let body = r#"{"version":1,"place":1}"#;
    let mut foreign = good.to_vec();
    foreign.push(("Origin", "http://example.org"));
    for method in ["PATCH", "DELETE"] {
        let path = path(&rule);
        assert_eq!(
            home.raw(method, &path, &[good[0], good[2]], body).status,
            401,
            "{method} without the token"
        );
        assert_eq!(home.raw(method, &path, &good[..2], body).status, 415, "{method} of no JSON");
        assert_eq!(home.raw(method, &path, &foreign, body).status, 403, "{method} of another site's page");
        let long = format!(r#"{{"version":1,"description":"{}"}}"#, "x".repeat(100_000));
        assert_eq!(home.raw(method, &path, &good, &long).status, 413, "{method}");
    }
    assert_eq!(home.ask("PUT", &path(&rule), Some(body)).status, 405);
    assert_eq!(listed(&home)[0]["version"], 1, "nothing was done");
    assert_eq!(home.raw("PATCH", &path(&rule), &good, body).status, 200, "the control");
}

#[test]
fn rules_are_ordered_counted_and_tried_on_what_is_on_record() {
    let (home, rule) = home();
    let mut session = home.session("files", &[]);
    assert!(is_blocked(&mut session) && is_blocked(&mut session));
    session.call("y_tool", "{}");
    session.line();
    session.end();
    eventually("the calls are on record", || (home.json("/api/stats")["total_calls"] == 3).then_some(()));
    let row = &listed(&home)[0];
    assert_eq!((&row["hits"], &row["place"]), (&json!(2), &json!(1)));
    let calls = home.json("/api/tool-calls");
    assert_eq!(row["last_hit"], calls[1]["requested_at"]);

    let tried = |method: &str, path: &str, body: &Value| {
        let answer = ask(&home, method, &format!("{path}?dry_run=7"), body);
        assert_eq!(answer.status, 200, "{}", answer.body);
        answer.json()
    };
    let without = tried("DELETE", &path(&rule), &json!({ "version": 1 }));
    assert_eq!(
        (&without["calls"], &without["matched"], &without["milder"]),
        (&json!(3), &json!(2), &json!(2))
    );
    let example = &without["examples"][0];
    assert_eq!((&example["was"], &example["would_be"]), (&json!("block"), &json!("pass")));
    assert_eq!(example["id"], calls[1]["id"]);
    let new = json!({ "name": "y", "tool_pattern": "y_*", "action": "pause" });
    let with = tried("POST", "/api/rules", &new);
    assert_eq!((&with["matched"], &with["stricter"], &with["cut"]), (&json!(1), &json!(1), &json!(false)));
    let narrower = json!({ "version": 1, "server_pattern": "elsewhere" });
    assert_eq!(tried("PATCH", &path(&rule), &narrower)["milder"], 2);
    assert_eq!(listed(&home).len(), 1, "nothing was done");

    let second = ask(&home, "POST", "/api/rules", &new).json();
    let moved = ask(&home, "PATCH", &path(&second), &json!({ "version": 1, "place": 1 }));
    assert_eq!(moved.status, 200, "no verdict depends on it: {}", moved.body);
    let names: Vec<Value> = listed(&home).iter().map(|rule| rule["name"].clone()).collect();
    assert_eq!(names, ["y", "no_x"]);

    // A call says which rule would be about calls like it.
    let detail = home.json(&format!("/api/tool-calls/{}", calls[0]["id"].as_str().expect("an id")));
    let like = json!({ "name": "like_y_tool", "tool_pattern": "y_tool", "server_pattern": "files" });
    assert_eq!(detail["suggested_rule"], like);
}
