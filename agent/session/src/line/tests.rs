//! Lines as they are understood, refused and outlined.

use super::{Id, Kind, Line, Refusal, Refused, judge, read};
use crate::strict::Ambiguity;

fn kind(line: &str) -> String {
    match read(line.as_bytes()) {
        Ok(Line::Blank) => "blank".into(),
        Ok(Line::Batch(messages)) => format!("batch of {}", messages.len()),
        Ok(Line::Message(m)) => match m.kind {
            Kind::Call(id, call) => format!("call {} {} {}", id.to_json(), call.name, call.arguments),
            Kind::Request(id, method) => format!("request {} {method}", id.to_json()),
            Kind::Notification(method) => format!("notification {method}"),
            Kind::Response(id, outcome) => format!("response {} {}", id.to_json(), outcome.is_ok()),
        },
        Err(refused) => format!("refused {:?}: {refused}", refused.id.as_ref().map(Id::to_json)),
    }
}

#[test]
fn messages_are_what_they_are() {
    let cases = [
        ("", "blank"),
        (r#"{"jsonrpc":"2.0","id":1,"method":"ping"}"#, "request 1 ping"),
        (r#"{"jsonrpc":"2.0","method":"notifications/cancelled"}"#, "notification notifications/cancelled"),
        (r#"{"jsonrpc":"2.0","id":"1","result":{}}"#, "response \"1\" true"),
        (r#"{"jsonrpc":"2.0","id":null,"error":{}}"#, "response null false"),
        (
            r#"{"id":7,"method":"tools/call","params":{"name":"x","arguments":{"a":1}}}"#,
            r#"call 7 x {"a":1}"#,
        ),
        (r#"{"id":7,"method":"tools/call","params":{"name":"x"}}"#, "call 7 x {}"),
        (r#"[{"id":1,"method":"ping"},{"method":"n"}]"#, "batch of 2"),
    ];
    for (line, expected) in cases {
        assert_eq!(kind(line), expected, "{line}");
    }
}

#[test]
fn a_call_that_passed_an_earlier_version_is_read_as_it_was() {
    let line = |depth: usize| {
        let (open, close) = ("[".repeat(depth), "]".repeat(depth));
        format!(
            r#"{{"id":1,"method":"tools/call","params":{{"name":"x","arguments":{{"a":{open}{close}}}}}}}"#
        )
    };
    let too_deep = |read: Result<Line<'_>, Refused>| {
        matches!(read, Err(Refused { reason: Refusal::Ambiguous(Ambiguity::Depth), .. }))
    };
    assert!(judge(line(97).as_bytes()).is_ok());
    assert!(too_deep(judge(line(98).as_bytes())));
    assert!(read(line(124).as_bytes()).is_ok());
    assert!(too_deep(read(line(125).as_bytes())));
}

#[test]
fn of_texts_under_one_key_those_are_found_that_a_parser_may_take() {
    let many = |last: &str| {
        let members: Vec<String> = (0..40).map(|n| format!("\"name\":\"n{n}\"")).collect();
        format!("{{{},{last}}}", members.join(","))
    };
    let names = |object: &str| super::values_of(object, "name");
    assert_eq!(names(&many("\"name\":\"last\"")), ["last", "n0"]);
    assert_eq!(names(&many("\"name\":\"own\",\"NAME\":\"x\",\"Name\":\"last\"")), ["last", "n0", "own"]);
    assert_eq!(names(&many("\"name\":5")), ["n0", "n39"]);
    assert_eq!(names(r#"{"n\u0061me":"a"}"#), ["a"], "the control");
}

#[test]
fn only_what_has_no_id_to_any_reader_asks_for_nothing() {
    for line in [
        &br#"{"method":"x","id":1,"id":2}"#[..],
        br#"{"method":"x",id:1}"#,
        br#"{"method":"x","ID":NaN}"#,
        br#"{"method":"x","\u0069d":1}"#,
        b"{\"method\":\"x\",\"i\xffd\":1}",
    ] {
        assert!(super::may_ask(line), "{}", line.escape_ascii());
    }
    for line in
        [r#"{"method":"x","params":NaN}"#, r#"{"method":"x","params":{"requestId":NaN,"idle":"void"}}"#]
    {
        assert!(!super::may_ask(line.as_bytes()), "{line}");
    }
}

#[test]
fn a_refused_line_is_answered_under_the_ids_of_its_requests() {
    let ids =
        |line: &str| -> Vec<String> { super::request_ids(line.as_bytes()).iter().map(Id::to_json).collect() };
    for (line, expected) in [
        (r#"{"id":1,"method":"x","params":{"a":"\ud800"}}"#, vec!["1"]),
        (r#"{"id":"a","method":"x","method":"y"}"#, vec!["\"a\""]),
        ("\u{feff}{\"method\":\"x\",\"id\":2", vec!["2"]),
        (r#"{"params":{"id":3},"id":-0,"method":NaN"#, vec!["0"]),
        (r#"[{"id":1,"method":"x"},{"id":2},{"id":3,"method":1},7]"#, vec!["1", "3"]),
        (r#"{"id":1,"method":"x"}{"id":2,"method":"x"}"#, vec![]),
        (r#"{"id":1,"Id":2,"method":"x"}"#, vec![]),
        (r#"{"ID":1,"method":"x"}"#, vec![]),
        (r#"{"id":1,"result":{},"error":{}}"#, vec![]),
        (r#"{"id":null,"method":"x"}"#, vec![]),
        (r#"{"id":"\ud83c","method":"x"}"#, vec![]),
        (r#"[{"id":1,"method":"x"}"#, vec![]),
        (&format!("{{{}\"id\":1}}", "\"method\":1,".repeat(17)), vec![]),
        ("", vec![]),
    ] {
        assert_eq!(ids(line), expected, "{line}");
    }
    let answered = |line: &str| super::answered_id(line.as_bytes()).map(|id| id.to_json());
    assert_eq!(answered(r#"{"result":{"id":7},"jsonrpc":"2.0","id":1}"#).as_deref(), Some("1"));
    assert_eq!(answered(r#"{"id":1,"method":"sampling/createMessage"}"#), None);
    assert_eq!(answered(r#"{"level":"info","id":1,"msg":"listing"}"#), None, "neither result nor error");
    assert_eq!(answered(r#"{"id":1,"ID":2,"error":{}}"#).as_deref(), Some("1"));
}

#[test]
fn what_cannot_be_judged_has_an_outline() {
    let found = |text: &str| super::outline(text).map(|o| format!("{} {}", o.member, o.id));
    let cases = [
        (r#"{"jsonrpc":"2.0","id":7,"result":{"id":8,"error":"x","text":"cut he"#, Some("result 7")),
        (r#" {"result":{"a":"\ud800 \" }"},"jsonrpc":"2.0","id":"a\"b"}"#, Some(r#"result "a\"b""#)),
        (r#"{"error":{"code":1},"\u0069d":1.0}"#, Some("error 1")),
        (r#"{"id":1,"method":"tools/call","params":{"name":"x","arguments":{"t":"cut"#, Some("method 1")),
        (r#"{"id":1,"id":2,"result":{}}"#, None),
        (r#"{"id":1,"result":{},"error":{}}"#, None),
        (r#"{"result":{"id":1}}"#, None),
        (r#"{"id":[1],"result":{}}"#, None),
        (r#"{"id":"#, None),
        (r#"{"id"#, None),
        (r#"[{"id":1,"result":{}}]"#, None),
        ("", None),
    ];
    for (text, expected) in cases {
        assert_eq!(found(text).as_deref(), expected, "{text}");
    }
    let id = super::outline(r#"{"id":1.0,"result":1}"#).and_then(|outline| outline.id());
    assert_eq!(id, Some(Id::Number("1".into())));
}

proptest::proptest! {
    #[test]
    fn no_text_panics_an_outline(text in r#"[{}\[\]":,\\ a1id\u{e9}]{0,60}"#) {
        let _ = (super::outline(&text), super::request_ids(text.as_bytes()), super::answered_id(text.as_bytes()));
    }
}

#[test]
fn hostile_calls_are_refused_under_their_id() {
    let refused = [
        r#"{"method":"tools/call","params":{"name":"x"}}"#,
        r#"{"id":null,"method":"tools/call","params":{"name":"x"}}"#,
        r#"{"id":1,"method":"tools/call","params":{"name":"x","arguments":[]}}"#,
        r#"{"id":1,"method":"tools/call","params":{"name":"x","name":"y"}}"#,
        r#"{"id":1,"method":"tools/call","params":{"name":"x","Name":"y"}}"#,
        r#"{"id":1,"method":"tools/call","params":{"name":"x","Arguments":{}}}"#,
        r#"{"id":1,"method":"tools/call","params":{"name":"x","arguments":{"$serde_json::private::RawValue":1}}}"#,
        r#"{"id":1,"method":"tools/call","params":[]}"#,
        r#"{"id":1,"method":"tools/call","result":1,"params":{"name":"x"}}"#,
        r#"{"id":[1],"method":"tools/call","params":{"name":"x"}}"#,
        r#"[{"id":1,"method":"ping"},{"method":"tools/call","params":{"name":"x"}}]"#,
        r#"{"id":1,"method":"ping"} {"id":2,"method":"ping"}"#,
        "[]",
        "\"text\"",
    ];
    for line in refused {
        assert!(kind(line).starts_with("refused"), "{line}: {}", kind(line));
    }
    let line = br#"{"id":"a","method":"tools/call","params":{"name":1}}"#;
    let Err(Refused { reason: Refusal::Call(_), id }) = read(line) else { panic!("not refused") };
    assert_eq!(id, Some(Id::String("a".into())));
}

#[test]
fn ids_keep_their_type_and_exact_numbers_have_one_spelling() {
    let id = |text: &str| match read(format!(r#"{{"id":{text},"method":"m"}}"#).as_bytes()) {
        Ok(Line::Message(super::Message { kind: Kind::Request(id, _), .. })) => id,
        other => panic!("{other:?}"),
    };
    assert_ne!(id("1"), id("\"1\""));
    assert_eq!(id("1"), id("1.0"));
    assert_eq!(id("1e2"), id("100"));
    assert_eq!(id("-0"), id("0"), "what parsers make of it is answered with 0");
    assert_eq!(id("9007199254740993"), Id::Number("9007199254740993".into()));
    assert_ne!(id("9007199254740993"), id("9007199254740992"));
    assert_eq!(id("\"\\u0061\""), Id::String("a".into()));
}

#[test]
fn what_a_line_of_the_servers_answers_is_told_or_said_to_be_unclear() {
    use super::{Answers, answers};
    let one = |id: &str| Answers::One(Id::parse(id).expect("an id"));
    for (line, expected) in [
        (r#"{"jsonrpc":"2.0","id":5,"result":{"id":6}}"#, one("5")),
        (r#" {"result":{},"id":"a"}"#, one("\"a\"")),
        (r#"{"id":null,"error":{}}"#, one("null")),
        (r#"{"method":"notifications/x","params":{"id":1}}"#, Answers::Nothing),
        (r#"{"method":"x","id":1}"#, Answers::Nothing),
        (r#"{"method":"x","id":1,"result":{}}"#, Answers::Unclear(None)),
        (r#"{"id":1,"id":2,"result":{}}"#, Answers::Unclear(None)),
        (r#"{"ID":1,"result":{}}"#, Answers::Unclear(None)),
        (r#"{"id":1,"Id":2,"result":{}}"#, Answers::Unclear(Id::parse("1"))),
        (r#"{"id":1,"Result":{}}"#, Answers::Unclear(None)),
        (r#"{"\u0069d":1,"result":{}}"#, one("1")),
        (r#"{"result":{"tools":["#, Answers::Unclear(None)),
        (r#"[{"id":1,"result":{}}]"#, Answers::Unclear(None)),
        ("\u{feff}{\"id\":1,\"result\":{}}", one("1")),
        ("log", Answers::Unclear(None)),
        (r#"[DEBUG] {"id":1,"result":{}}"#, Answers::Unclear(None)),
    ] {
        assert_eq!(answers(line.as_bytes()), expected, "{line}");
    }
}
