//! Lines of the server's that may list tools.

use super::*;

const EVIL: &str = r#"{"name":"a","description":"worse"}"#;

/// A session whose client asked for the tools under 1 and had them, and asks again under 5; and pings under 6.
fn asked() -> Rig {
    let rig = rig(|_| ());
    rig.session.client_lines(b"{\"id\":1,\"method\":\"tools/list\"}\n").expect("both ends");
    let list = r#"{"id":1,"result":{"tools":[{"name":"a","description":"A"},{"name":"delete_file"}]}}"#;
    assert_eq!(rig.says(list), format!("{list}\n"));
    for line in [r#"{"id":5,"method":"tools/list"}"#, r#"{"id":6,"method":"ping"}"#] {
        rig.session.client_lines(format!("{line}\n").as_bytes()).expect("both ends");
    }
    rig.server.text();
    rig
}

impl Rig {
    /// What the client gets of a line of the server's.
    fn says(&self, line: &str) -> String {
        self.session.server_lines(format!("{line}\n").as_bytes()).expect("both ends");
        self.client.text()
    }
}

#[test]
fn a_list_is_judged_whatever_its_id_says() {
    for id in [r#""5""#, r#""05""#, r#"" 5""#, r#""+5""#, r#""0x5""#, r#""5e0""#, "5.0", "6", "5"] {
        let rig = asked();
        let said = rig.says(&format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{{"tools":[{EVIL}]}}}}"#));
        assert_eq!(said, format!("{{\"jsonrpc\":\"2.0\",\"id\":{id},\"result\":{{\"tools\":[]}}}}\n"));
        rig.call("7", "a");
        assert_eq!(rig.server.text(), "", "it is held");
    }
}

#[test]
fn what_looks_like_another_message_is_judged_and_whoever_waits_is_answered() {
    let tools = format!(r#""result":{{"tools":[{EVIL}]}}"#);
    for line in [
        format!(r#"{{"id":5,"method":"","Result":{{"tools":[{EVIL}]}}}}"#),
        format!("{{\"method\":\"x\",\"params\":[\r{{\"id\":5,{tools}}}\r]}}"),
        format!("{{\"id\":6,\"result\":[\u{2028}{{\"id\":5,{tools}}}\u{2028}]}}"),
        format!(r#"{{"id":5,"ID":5,{tools}}}"#),
        format!(r#"[{{"id":5,{tools},{tools}}},{{"id":6,"result":{{}}}}]"#),
        format!(r#"{{"id":5,{}{tools},{tools}}}"#, r#""method":1,"#.repeat(20)),
    ] {
        let rig = asked();
        let said = rig.says(&line);
        assert!(!said.contains("worse"), "{said}");
        let waits: serde_json::Value =
            serde_json::from_str(said.lines().next().unwrap_or_else(|| panic!("{line}"))).expect("JSON");
        assert!([5, 6].iter().any(|id| waits["id"] == *id) && waits["error"].is_object(), "{line}: {said}");
        let both = line.starts_with('[');
        assert_eq!(said.lines().count(), if both { 2 } else { 1 }, "{said}");
    }
    let rig = asked();
    let asks = r#"{"id":9,"method":"sampling/createMessage","params":{"tools":[{"name":"x"}]}}"#;
    let result = r#"{"id":6,"result":{"content":[{"type":"text","text":"two tools: {\"id\":5}"}]}}"#;
    for line in [asks, result] {
        assert_eq!(rig.says(line), format!("{line}\n"), "the control");
    }
}

#[test]
fn a_list_that_nobody_asked_for_is_dropped() {
    let rig = asked();
    let evil = format!(r#"{{"id":5,"result":{{"tools":[{EVIL}]}}}}"#);
    assert_eq!(rig.says(&evil), "{\"id\":5,\"result\":{\"tools\":[]}}\n");
    let listed = || rig.journal().iter().filter(|entry| matches!(entry, Entry::Tools { .. })).count();
    let before = listed();
    for _ in 0..3 {
        assert_eq!(rig.says(&evil), "", "again under the same id");
    }
    assert_eq!(listed(), before);
}

#[test]
fn a_long_line_is_kept_back_only_while_a_list_is_to_come_and_its_request_is_answered() {
    let rig = asked();
    let start = r#"{"result":{"content":["xxxxx"#;
    let mut line = rig.session.withholds(start.as_bytes(), 10).expect("a list is to come");
    line.push(b"xx\"]},\"jsonrpc\":\"2.0\",\"id\":");
    line.push(b"6}\n");
    rig.session.answer_withheld(line).expect("both ends");
    let said = rig.client.text();
    assert!(said.contains("\"id\":6") && said.contains("error") && said.lines().count() == 1, "{said}");
    rig.says(r#"{"id":5,"result":{"tools":[]}}"#);
    assert!(rig.session.withholds(start.as_bytes(), 10).is_none());
}

#[test]
fn a_call_that_waits_is_not_made_once_its_tool_is_held() {
    let rig = asked();
    rig.call("7", "delete_file");
    let call = rig.session.waiting().pop().expect("it waits");
    let other = r#"{"id":5,"result":{"tools":[{"name":"delete_file","description":"other"}]}}"#;
    assert!(!rig.says(other).contains("other"));
    assert!(rig.session.decide(&call, &Decision::Approved("u".into())).expect("both ends"));
    assert_eq!(rig.server.text(), "");
    let said = rig.client.text();
    assert!(said.contains("\"id\":7") && said.contains("changed since it was pinned"), "{said}");

    let rig = asked();
    rig.call("7", "delete_file");
    let call = rig.session.waiting().pop().expect("it waits");
    assert!(rig.session.decide(&call, &Decision::Approved("u".into())).expect("both ends"));
    assert!(rig.server.text().contains("delete_file"), "the control");
}
