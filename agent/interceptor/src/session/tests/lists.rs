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

    /// The same of one that is too long, in two pieces. The server gets what it is told.
    pub(super) fn says_at_length(&self, start: &[u8], end: &[u8]) -> String {
        let mut line = self.session.overlong(start, start.len()).expect("both ends");
        self.session.overlong_piece(&mut line, end).expect("both ends");
        if let Some(answer) = self.session.overlong_ends(line).expect("both ends") {
            self.session.to_server(&answer).expect("both ends");
        }
        String::from_utf8_lossy(&self.client.bytes()).into_owned()
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
        format!("{{\"method\":\"x\",\"params\":[\r{{\"id\":5,{tools}}},\r0]}}"),
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
    let spaced = "{\"id\":70,\"result\":{\"content\":[\r{\"type\":\"text\",\"text\":\"tools\"},\r{}]}}";
    for line in [asks, result, spaced] {
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
fn a_list_before_anybody_asked_is_dropped() {
    let rig = rig(|_| ());
    let evil = format!(r#"{{"id":1,"result":{{"tools":[{EVIL}]}}}}"#);
    assert_eq!(rig.says(&evil), "");
    rig.session.client_lines(b"{\"id\":1,\"method\":\"tools/list\"}\n").expect("both ends");
    assert_eq!(rig.says(&evil), format!("{evil}\n"), "the control");
}

#[test]
fn an_unreadable_notification_asks_for_no_list_and_what_may_be_a_request_does() {
    let evil = format!(r#"{{"id":9,"result":{{"tools":[{EVIL}]}}}}"#);
    for (line, asks) in [
        ("{\"method\":\"notifications/x\",\"params\":{\"progress\":NaN}}\n", false),
        ("{\"method\":\"tools/list\",\"id\":9,\"id\":9}\n", true),
        ("{\"method\":\"ping\",\"id\":1,\"x\":NaN}\n", false),
        ("[{\"id\":1,\"method\":\"ping\"},{\"method\":\"x\",\"Params\":{}}]\n", true),
        ("[{\"id\":1,\"method\":\"ping\"},{\"id\":9,\"ID\":9,\"method\":\"tools/list\"}]\n", true),
    ] {
        let rig = rig(|options| options.lenient = true);
        rig.session.client_lines(line.as_bytes()).expect("both ends");
        assert_eq!(rig.server.text(), line);
        assert_eq!(rig.says(&evil) == format!("{evil}\n"), asks, "{line}");
    }
}

#[test]
fn who_waits_for_the_rest_of_a_batch_that_is_dropped_is_answered() {
    let rig = asked();
    let said = rig.says(r#"[{"id":99,"result":{"tools":[]}},{"id":6,"result":{}}]"#);
    assert!(said.contains(r#""id":6,"error""#) && said.lines().count() == 1, "{said}");
    let rig = asked();
    let batch = r#"[{"id":5,"result":{"tools":[]}},{"id":6,"result":{}}]"#;
    assert_eq!(rig.says(batch), format!("{batch}\n"), "the control");
}

#[test]
fn what_is_no_list_to_anybody_passes_as_it_came_however_odd_and_answers_nothing() {
    let rig = asked();
    for line in [
        r#"{"id":70,"result":{"content":[{"type":"text","text":"tool \u00e9"}],"structuredContent":{"x":NaN,"tools":[1]}}}"#,
        r#"{"jsonrpc":"2.0","jsonrpc":"2.0","id":71,"result":{"content":[{"type":"text","text":"a tool"}]}}"#,
        r#"{"jsonrpc":"2.0","method":"notifications/message","params":{"data":{"id":6,"tool":NaN}}}"#,
        r#"{"jsonrpc":"2.0","id":5,"method":"sampling/createMessage","params":{"temperature":NaN,"tools":[{"name":"x"}]}}"#,
        r#"[DEBUG] -> {"id":5,"result":{"tools":[{"name":"a"}]}}"#,
        r#"{"level":"info","id":5,"msg":"listing tools"}"#,
    ] {
        assert_eq!(rig.says(line), format!("{line}\n"));
    }
    let latin = b"{\"id\":72,\"result\":{\"content\":[{\"type\":\"text\",\"text\":\"caf\xe9\"}]}}\n";
    rig.session.server_lines(latin).expect("both ends");
    assert_eq!(rig.client.bytes(), latin);
    let list = r#"{"id":5,"result":{"tools":[{"name":"a","description":"A"}]}}"#;
    assert_eq!(rig.says(list), format!("{list}\n"), "whoever waits still does");
    assert_eq!(rig.says(r#"{"id":6,"result":{}}"#), "{\"id\":6,\"result\":{}}\n");
}

#[test]
fn a_list_behind_what_some_readers_skip_or_end_lines_at_does_not_pass() {
    let list = format!(r#"{{"id":5,"result":{{"tools":[{EVIL}]}}}}"#);
    let lines = ["x\x1c", "x\x1d", "x\x1e", "x\r", "\x01", "\x1f", "\0 \u{feff}"]
        .map(|begin| format!("{begin}{list}\n").into_bytes());
    let bad = [
        [&b"\xff"[..], list.as_bytes(), b"\n"].concat(),
        b"{\"id\":5,\"result\":{\"too\xffls\":[{\"name\":\"worse\"}]}}\n".to_vec(),
        b"{\"a\":\"\\\xff\":\", \"id\":5,\"result\":{\"tools\":[{\"name\":\"worse\"}]},\"z\":\"\"}\n"
            .to_vec(),
        format!("x\r{}\n", list.replace("\"worse\"", "\"worse\",\"x\":NaN")).into_bytes(),
    ];
    for line in lines.into_iter().chain(bad) {
        let rig = asked();
        rig.session.server_lines(&line).expect("both ends");
        let said = rig.client.text();
        assert!(!said.contains("worse"), "{}: {said}", line.escape_ascii());
        assert!(said.contains(r#""id":5,"error""#), "{}: {said}", line.escape_ascii());
    }
}

#[test]
fn a_line_that_is_too_long_never_passes_where_it_may_be_a_list() {
    let rig = rig(|_| ());
    let said = rig.says_at_length(br#"{"id":5,"result":{"tools":["#, b"]}}\n");
    assert_eq!(said, "", "before anybody asked");
    let rig = asked();
    rig.says(r#"{"id":5}"#);
    rig.says(r#"{"id":5,"result":{"tools":[]}}"#);
    let said =
        rig.says_at_length(br#"{"result":{"content":["xxxxx"#, b"xx\"]},\"jsonrpc\":\"2.0\",\"id\":6}\n");
    assert!(said.contains(r#""id":6,"error""#) && said.lines().count() == 1, "{said}");
    let said = rig.says_at_length(b"log xxx", "xx\u{2028}{\"id\":5,\"result\":{\"tools\":[]}}\n".as_bytes());
    assert!(said.starts_with("log xxxxx") && said.ends_with('\n') && !said.contains("tools"), "{said}");
    assert_eq!(rig.says_at_length(b"log xxx", b"xx\n"), "log xxxxx\n", "the control");
}

#[test]
fn a_request_of_the_server_s_own_that_is_too_long_is_answered() {
    for (start, end, is_told) in [
        (r#"{"jsonrpc":"2.0","id":6,"method":"sampling/createMessage","params":{"x":"xx"#, "xx\"}}\n", true),
        (
            r#"{"method":"sampling/createMessage","params":{"x":"xx"#,
            "xx\"},\"jsonrpc\":\"2.0\",\"id\":6}\n",
            true,
        ),
        (r#"{"method":"notifications/message","params":{"x":"xx"#, "xx\",\"id\":6}}\n", false),
        (r#"{"id":6,"result":{"x":"xx"#, "xx\"}}\n", false),
        (r#"{"id":6,"x":"xx"#, "xx\",\"id\":6}\n", false),
        (r#"[{"id":6,"method":"ping"},"xx"#, "xx\"]\n", false),
        ("log xx", "xx,\"id\":6}\n", false),
    ] {
        let rig = asked();
        let client = rig.says_at_length(start.as_bytes(), end.as_bytes());
        let told = rig.server.text();
        let answer = r#"{"jsonrpc":"2.0","id":6,"error":{"code":-32603,"message":"Ringfence: the server's request was not passed on"#;
        assert_eq!(told.starts_with(answer) && told.lines().count() == 1, is_told, "{start}: {told}");
        assert_eq!(told.is_empty(), !is_told, "{start}: {told}");
        assert!(!is_told || client.is_empty(), "the client's own 6 has its answer to come: {client}");
    }
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
