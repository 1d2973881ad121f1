//! The dashboard's API: lists and filters, decisions that count once, rules that bind at once.

use crate::{
    auditor_support::PATIENCE,
    support::{Home, eventually},
};
use serde_json::{Value, json};
use std::{
    thread,
    time::{Duration, Instant},
};

fn tools(list: &Value) -> Vec<&str> {
    list.as_array().expect("a list").iter().map(|row| row["tool_name"].as_str().expect("a name")).collect()
}

/// Four calls on two servers, stored.
fn filled() -> Home {
    let home = Home::new();
    // Both run before the first call, so that no start of a process comes between two calls: they are one burst.
    let (mut files, mut notes) = (home.session("files", &[]), home.session("notes", &[]));
    for (tool, arguments) in
        [("read_file", r#"{"path":"/a"}"#), ("create_file", "{}"), ("o'read\"; DROP_%_x", "{}")]
    {
        files.call(tool, arguments);
        files.line();
    }
    notes.call("list_notes", "{}");
    notes.line();
    files.end();
    notes.end();
    home
}

#[test]
fn filters_find_what_they_say() {
    let home = filled();
    let all = home.json("/api/tool-calls");
    assert_eq!(tools(&all), ["list_notes", "o'read\"; DROP_%_x", "create_file", "read_file"], "newest first");
    let session = all[3]["session_id"].as_str().expect("a session").to_owned();
    let found = |query: &str| home.json(&format!("/api/tool-calls?{query}")).as_array().map_or(0, Vec::len);
    assert_eq!(found("server=notes"), 1);
    assert_eq!(found("tool=READ"), 2);
    assert_eq!(found("risk=20"), 1, "the write");
    assert_eq!(found(&format!("session={session}")), 3);
    assert_eq!(found(&format!("session={session}&tool=create")), 1);
    assert_eq!(found("limit=2"), 2);
    assert_eq!(
        found("risk=&server=&tool=&verdict=&session=&before=&limit="),
        4,
        "what is empty asks for nothing"
    );
    let second = all[1]["id"].as_str().expect("an id");
    let older = home.json(&format!("/api/tool-calls?before={second}"));
    assert_eq!(tools(&older), ["create_file", "read_file"]);

    assert_eq!(home.json(&format!("/api/sessions/{session}/tool-calls")).as_array().map(Vec::len), Some(3));
    let intents = home.json(&format!("/api/sessions/{session}/intents"));
    let chain = intents[0]["tool_calls"].as_array().expect("a chain");
    assert_eq!(chain.len(), 4, "one burst, over both servers");
    assert_eq!(chain[3]["server_name"], "notes");
    assert!(
        home.json("/api/tool-calls/flagged")
            .as_array()
            .is_some_and(|rows| rows.iter().all(|row| row["policy_action"] != "pass"))
    );
    let call = home.json(&format!("/api/tool-calls/{}", all[3]["id"].as_str().expect("an id")));
    assert_eq!((&call["arguments"], &call["result"]), (&json!({"path": "/a"}), &json!({"content": []})));
    assert_eq!(home.json("/api/stats")["total_calls"], 4);
}

#[test]
fn sql_in_a_filter_is_text() {
    let home = filled();
    let hostile = [
        "%27%20OR%201%3D1--",
        "%22%20OR%20%22%22%3D%22",
        "%25",
        "_",
        "%00",
        "';%20DROP%20TABLE%20tool_calls;--",
        "%EF%BC%87",
        "1)%20UNION%20SELECT%20token",
        "%5C",
        "?1",
        ":a",
        "$1",
    ];
    for name in ["verdict", "session", "server", "before"] {
        for value in hostile {
            for path in ["/api/tool-calls", "/api/tool-calls/flagged"] {
                let answer = home.ask("GET", &format!("{path}?{name}={value}"), None);
                assert_eq!((answer.status, answer.body.as_str()), (200, "[]"), "{path} {name}={value}");
            }
        }
    }
    let found =
        |value: &str| home.json(&format!("/api/tool-calls?tool={value}")).as_array().map_or(0, Vec::len);
    assert_eq!(found("%25"), 1, "a percent sign is itself");
    assert_eq!(found("o%27read%22;"), 1);
    assert_eq!(found("%27%20OR%201%3D1--"), 0);
    for id in hostile {
        for path in [
            format!("/api/tool-calls/{id}"),
            format!("/api/sessions/{id}/intents"),
            format!("/api/sessions/{id}/tool-calls"),
            format!("/api/sessions/{id}/stderr"),
        ] {
            assert_eq!(home.ask("GET", &path, None).status, 404, "{path}");
        }
    }
    for query in
        ["risk=high", "risk=-1", "risk=0%20OR%201", "limit=1;", "limit=-1", "order=id", "risk=1&risk=2"]
    {
        let answer = home.ask("GET", &format!("/api/tool-calls?{query}"), None);
        assert_eq!(answer.status, 400, "{query}: {}", answer.body);
        assert!(!answer.error().is_empty());
    }
    assert_eq!(home.json("/api/tool-calls").as_array().map(Vec::len), Some(4), "everything is still there");
}

#[test]
fn what_a_server_says_on_standard_error_comes_in_pages() {
    let home = filled();
    let session = home.json("/api/sessions")[0].clone();
    assert_eq!((&session["stderr_bytes"], &session["stderr_dropped"]), (&json!(19), &json!(0)));
    let path = format!("/api/sessions/{}/stderr", session["id"].as_str().expect("an id"));
    let all = home.json(&path);
    let pieces = all.as_array().expect("a list");
    let text: String = pieces.iter().map(|piece| piece["text"].as_str().expect("text")).collect();
    assert_eq!(text, "it begins\n<b>\u{1b}[31m\n");
    assert_eq!((&pieces[0]["number"], &pieces[0]["dropped"]), (&json!(1), &json!(0)));
    assert_eq!(home.json(&format!("{path}?after=0&limit=1")).as_array().map(Vec::len), Some(1));
    assert_eq!(home.json(&format!("{path}?after={}", pieces.len())), json!([]));
    for query in ["after=x", "after=-1", "limit=1;", "risk=1"] {
        let answer = home.ask("GET", &format!("{path}?{query}"), None);
        assert!(
            answer.status == 400 && answer.error().contains("after and limit"),
            "{query}: {}",
            answer.body
        );
    }
    assert_eq!(home.ask("GET", "/api/sessions/nobody/stderr", None).status, 404);
    assert_eq!(home.raw("GET", &path, &[("Host", &format!("127.0.0.1:{}", home.port))], "").status, 401);
}

#[test]
fn a_decision_counts_once() {
    let home = Home::new();
    let mut session = home.session("files", &[]);
    let first = session.call("delete_thing", r#"{"key":7}"#);
    let call = home.waiting();
    let path = |call: &str, verb: &str| format!("/api/tool-calls/{call}/{verb}");
    let shown = home.json("/api/waiting");
    assert_eq!((&shown[0]["arguments"], &shown[0]["server_name"]), (&json!({"key": 7}), &json!("files")));
    assert_eq!(home.ask("POST", &path(&call[..8], "approve"), Some("{}")).status, 404, "the whole id, here");
    assert_eq!(home.ask("POST", &path(&call, "approve"), Some("")).status, 200);
    assert!(session.line().contains(&format!(r#""id":{first},"result""#)));
    for verb in ["approve", "deny"] {
        let again = home.ask("POST", &path(&call, verb), Some("{}"));
        assert_eq!(again.status, 409, "{verb} again: {}", again.body);
    }
    // The client has its answer before that is on record.
    let row = eventually("the answer is on record", || {
        let row = home.json(&format!("/api/tool-calls/{call}"));
        row["outcome"].is_string().then_some(row)
    });
    assert_eq!(
        (row["approved_by"].as_str(), row["decision"].as_str()),
        (Some("dashboard"), Some("approved"))
    );
    assert_eq!((row["policy_action"].as_str(), row["outcome"].as_str()), (Some("pause"), Some("answered")));

    let second = session.call("delete_thing", "{}");
    let call = home.waiting();
    assert_eq!(home.ask("POST", &path(&call, "deny"), Some("{}")).json()["outcome"], "denied");
    let answer = session.line();
    assert!(
        answer.contains(&format!(r#""id":{second}"#)) && answer.contains(r#""isError":true"#),
        "{answer}"
    );
    assert_eq!(home.ask("POST", &path(&call, "approve"), Some("{}")).status, 409);
    assert_eq!(home.json(&format!("/api/tool-calls/{call}"))["approved_by"], Value::Null);

    for unknown in ["00000000-0000-4000-8000-000000000000", "x"] {
        let answer = home.ask("POST", &path(unknown, "approve"), Some("{}"));
        assert_eq!(answer.status, 404);
        assert!(answer.error().contains(unknown));
    }
}

#[test]
fn late_and_cancelled_calls_are_not_approved() {
    let home = Home::new();
    let mut session = home.session("files", &["--approval-timeout", "1"]);
    session.call("delete_thing", "{}");
    assert!(session.line().contains(r#""isError":true"#), "denied by the clock");
    // Known from the record: whoever looks for it among those that wait may come too late.
    let call = eventually("the end of its time is on record", || {
        let calls = home.json("/api/tool-calls");
        (calls[0]["outcome"] == "timeout").then(|| calls[0]["id"].as_str().expect("an id").to_owned())
    });
    let approve = |call: &str| home.ask("POST", &format!("/api/tool-calls/{call}/approve"), Some("{}"));
    assert_eq!(approve(&call).status, 409);
    assert_eq!(home.json(&format!("/api/tool-calls/{call}"))["outcome"], "timeout");

    let mut session = home.session("files", &[]);
    let id = session.call("delete_thing", "{}");
    let call = home.waiting();
    session.send(&format!(
        r#"{{"jsonrpc":"2.0","method":"notifications/cancelled","params":{{"requestId":{id}}}}}"#
    ));
    eventually("the call waits no longer", || home.json("/api/waiting").as_array()?.is_empty().then_some(()));
    assert_eq!(approve(&call).status, 409);
    let next = session.call("read_thing", "{}");
    assert!(
        session.line().contains(&format!(r#""id":{next},"result""#)),
        "the cancelled one was never answered"
    );
}

#[test]
fn a_rule_binds_running_and_later_sessions() {
    let home = Home::new();
    let mut running = home.session("files", &[]);
    let before = running.call("read_secret", "{}");
    assert!(running.line().contains(&format!(r#""id":{before},"result""#)), "the control");
    let rule = r#"{"name":"no_secrets","tool_pattern":"*secret*","server_pattern":"files","operation_types":"read, write","action":"block","description":"none"}"#;
    let answer = home.ask("POST", "/api/rules", Some(rule));
    assert_eq!(answer.status, 201, "{}", answer.body);
    assert_eq!(answer.json()["operation_types"], json!(["read", "write"]));

    eventually("the running session has the rule", || {
        running.call("read_secret", "{}");
        running.line().contains("no_secrets").then_some(())
    });
    let other = running.call("read_plain", "{}");
    assert!(running.line().contains(&format!(r#""id":{other},"result""#)), "other tools go on");
    let mut later = home.session("files", &[]);
    later.call("read_secret", "{}");
    assert!(later.line().contains("no_secrets"), "from the first call on");
    let mut elsewhere = home.session("notes", &[]);
    elsewhere.call("read_secret", "{}");
    assert!(elsewhere.line().contains(r#""result":{"content":[]}"#), "another server's");

    let listed = home.json("/api/rules");
    assert_eq!((&listed[0]["name"], &listed[0]["source"]), (&json!("no_secrets"), &json!("database")));
    assert_eq!(home.ask("POST", "/api/rules", Some(rule)).status, 409, "the same name again");
    if crate::DAEMON {
        return; // Rule files are the users' own there: only their interceptors read them.
    }
    assert!(listed.as_array().is_some_and(|rules| rules.iter().any(|rule| rule["source"] == "built in")));
    assert_eq!(
        home.ask("POST", "/api/rules", Some(r#"{"name":"pause_deletes","action":"flag"}"#)).status,
        409
    );
}

#[test]
fn rules_that_are_none_are_refused_with_the_reason() {
    let home = Home::new();
    let cases = [
        (r#"{"name":"a","action":"pass"}"#, 422, "no rule"),
        (r#"{"name":"a","action":"explode"}"#, 422, "explode"),
        (r#"{"name":"a"}"#, 422, "action"),
        (r#"{"action":"flag"}"#, 422, "name"),
        (r#"{"name":"","action":"flag"}"#, 422, "name"),
        (r#"{"name":"<img src=x>","action":"flag"}"#, 422, "name"),
        (r#"{"name":"a","action":"flag","tool_pattern":"["}"#, 422, "tool_pattern"),
        (r#"{"name":"a","action":"flag","operation_types":["fly"]}"#, 422, "fly"),
        (r#"{"name":"a","action":"flag","min_risk_score":101}"#, 422, "min_risk_score"),
        (r#"{"name":"a","action":"flag","colour":1}"#, 422, "colour"),
        (r#"{"name":"a""#, 400, "JSON"),
    ];
    for (body, status, named) in cases {
        let answer = home.ask("POST", "/api/rules", Some(body));
        assert_eq!(answer.status, status, "{body}: {}", answer.body);
        assert!(answer.error().to_lowercase().contains(&named.to_lowercase()), "{body}: {}", answer.body);
    }
    let good = r#"{"name":"a","action":"flag","operation_types":["read"],"min_risk_score":100}"#;
    assert_eq!(home.ask("POST", "/api/rules", Some(good)).status, 201, "the control");
}

#[test]
fn a_broken_rule_file_is_said() {
    if crate::DAEMON {
        return; // As above.
    }
    let home = Home::new();
    std::fs::create_dir_all(home.path(".config/ringfence")).expect("a folder");
    std::fs::write(home.path(".config/ringfence/rules.yaml"), "rules:\n  - {name: mine, action: explode}\n")
        .expect("a file");
    let problems = home.json("/api/stats")["problems"].to_string();
    assert!(problems.contains("rules.yaml") && problems.contains("explode"), "{problems}");
    std::fs::write(home.path(".config/ringfence/rules.yaml"), "rules:\n  - {name: mine, action: flag}\n")
        .expect("a file");
    assert_eq!(home.json("/api/stats")["problems"], json!([]));
    let rules = home.json("/api/rules");
    assert_eq!(rules[0]["name"], "mine");
    assert!(rules[0]["source"].as_str().is_some_and(|source| source.ends_with("rules.yaml")));
}

#[test]
fn metrics_count_calls_and_what_became_of_them() {
    let home = filled();
    let mut session = home.session("files", &[]);
    session.call("delete_thing", "{}");
    let call = home.waiting();
    let text = home.ask("GET", "/metrics", None).body;
    assert!(text.contains("ringfence_mcp_calls_waiting 1"), "{text}");
    assert_eq!(home.ask("POST", &format!("/api/tool-calls/{call}/deny"), Some("{}")).status, 200);
    session.line();
    // What is counted is what is stored, and the link of a session that has ended is taken down after its last word.
    let mut text = String::new();
    let lines = [
        r#"ringfence_mcp_tool_calls_total{server="files",action="pause"} 1"#,
        r#"ringfence_mcp_tool_calls_total{server="notes",action="pass"} 1"#,
        r#"ringfence_mcp_tool_call_outcomes_total{server="files",outcome="denied"} 1"#,
        "ringfence_mcp_calls_waiting 0",
        "ringfence_mcp_sessions_linked 1",
        "# EOF",
    ];
    let until = Instant::now() + PATIENCE;
    while let Some(missing) = lines.iter().find(|line| !text.contains(**line)) {
        assert!(Instant::now() < until, "{missing} is not in\n{text}");
        thread::sleep(Duration::from_millis(20));
        text = home.ask("GET", "/metrics", None).body;
    }
}

#[test]
fn an_agents_own_processes_get_no_link() {
    let home = Home::new();
    let link = || home.ringfence(&["dashboard"]).output().expect("ringfence dashboard");
    assert!(link().status.success(), "the control: nobody's client yet");
    // This process is the client now, and `ringfence dashboard` its child.
    let session = home.session("files", &[]);
    eventually("the session is linked", || (home.json("/api/stats")["linked"] == 1).then_some(()));
    let refused = link();
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(!refused.status.success() && said.contains("does not approve its own calls"), "{said}");
    assert!(refused.stdout.is_empty());
    session.end();
    eventually("the session is gone", || (home.json("/api/stats")["linked"] == 0).then_some(()));
    assert!(link().status.success(), "the control again");
}

#[test]
fn a_rule_file_that_loosens_waits_for_the_person_who_holds_the_token() {
    let home = Home::new();
    let file = home.path(".config/ringfence/rules.yaml");
    std::fs::create_dir_all(file.parent().expect("a folder")).expect("a folder");
    std::fs::write(&file, "rules: [{name: no_x, tool_pattern: 'x_*', action: block}]").expect("written");
    let session = home.session("fs", &[]);
    assert_eq!(home.json("/api/stats")["pending_rules"], 0);
    std::fs::write(&file, "rules: []").expect("written");
    let change = eventually("the change waits", || home.json("/api/rules/pending").get(0).cloned());
    assert_eq!(change["loosens"], "no_x");
    assert!(change["difference"].as_str().expect("text").contains("-rules: [{name: no_x"));
    assert_eq!(home.json("/api/stats")["pending_rules"], 1);

    let confirm = |sha256: &serde_json::Value| {
        let body = serde_json::json!({ "path": change["path"], "sha256": sha256 }).to_string();
        home.ask("POST", "/api/rules/confirm", Some(&body)).status
    };
    assert_eq!(confirm(&"00".repeat(32).into()), 409, "another text than the one that was shown");
    assert_eq!(home.ask("GET", "/api/rules/confirm", None).status, 405);
    assert_eq!(confirm(&change["sha256"]), 200);
    assert_eq!(confirm(&change["sha256"]), 409, "once");
    assert_eq!(home.json("/api/stats")["pending_rules"], 0);
    session.end();
}
