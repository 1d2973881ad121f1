//! JSON that is judged, and JSON that is refused.

use super::{Ambiguity, MAX_DEPTH, object, unique, value, whole};
use ringfence_wire::depth;

const KEYS: &[&str] = &["method", "params", "id"];

#[test]
fn plain_json_passes() {
    for line in [r#"{"a":[1,2.5,null,true,"x"]}"#, "[]", "1", "{}\r", " {} ", "{\"t\":\"a\u{2028}b\"}"] {
        assert_eq!(whole(line.as_bytes()), Ok(line), "{line}");
    }
}

#[test]
fn what_parsers_read_differently_is_refused() {
    let deep = "[".repeat(5000) + &"]".repeat(5000);
    for line in [
        "NaN",
        "{} {}",
        r#"{"a":"\ud800"}"#,
        "\u{feff}{}",
        "{\"x\":\r{\"method\":\"tools/call\"}\r}",
        "{\"x\":\"\u{2028}{}\u{2028}\"}",
        &deep,
        "",
        "{'a':1}",
        "{\"a\":1,}",
    ] {
        assert!(whole(line.as_bytes()).is_err(), "{}", &line[..line.len().min(60)]);
    }
    assert_eq!(whole(b"{\"a\":\"\xff\"}"), Err(Ambiguity::Encoding(6)));
}

#[test]
fn a_message_behind_a_line_end_is_refused_whatever_follows_it() {
    for hidden in [
        "{\"jsonrpc\":\"2.0\",\"method\":\"x\",\"params\":[\r{\"id\":1,\"result\":{\"tools\":[]}},\r0]}",
        "{\"jsonrpc\":\"2.0\",\"method\":\"x\",\"params\":[\r {\"id\":9,\"method\":\"tools/call\"},\r0]}",
        "{\"method\":\"x\",\"params\":[\r[{\"id\":9,\"method\":\"tools/call\"}],0]}",
        "{\"method\":\"x\",\"params\":[\"\u{2028}{\",\":1}\"]}",
    ] {
        assert!(matches!(whole(hidden.as_bytes()), Err(Ambiguity::HiddenLine(_))), "{hidden}");
    }
    for fine in [
        "{\"t\":\"x\u{2028}[1] a\u{2028}{} b\"}",
        "{\"t\":\"x\u{2028}{\\\"id\\\":9,\\\"method\\\":\\\"tools/call\\\"}, quoted\"}",
        "{\"t\":[\r0,\r[1, 2],\r\"{\",{\"a\":1}]}",
    ] {
        assert_eq!(whole(fine.as_bytes()), Ok(fine), "{fine}");
    }
}

#[test]
fn duplicate_escaped_and_folded_keys_are_refused() {
    assert!(matches!(object(r#"{"id":1,"id":2}"#, KEYS), Err(Ambiguity::DuplicateKey(_))));
    assert!(matches!(object(r#"{"id":1,"\u0069d":2}"#, KEYS), Err(Ambiguity::DuplicateKey(_))));
    for key in ["Method", "METHOD", "param\u{17f}", "PARAM\u{17f}", "\u{0130}d"] {
        let line = format!("{{\"{key}\":1}}");
        let folds = !key.starts_with('\u{0130}');
        assert_eq!(object(&line, KEYS).is_err(), folds, "{key}");
    }
    assert!(object(r#"{"method":1,"other":2}"#, KEYS).is_ok());
}

#[test]
fn a_key_that_stands_twice_is_found_at_any_depth() {
    for text in [r#"{"a":1,"a":1}"#, r#"[{"b":[{"a":1,"\u0061":2}]}]"#, r#"{"x":{"y":{"":1,"":2}}}"#] {
        assert!(matches!(unique(text), Err(Ambiguity::DuplicateKey(_))), "{text}");
    }
    for text in [r#"{"a":{"a":{"a":1}},"A":2}"#, r#"[{"a":1},{"a":2},1.5,-1,null,true,"a","a"]"#] {
        assert_eq!(unique(text), Ok(()), "{text}");
    }
}

#[test]
fn a_key_that_our_parser_reads_as_something_else_is_refused_at_any_depth() {
    for text in [
        r#"{"$serde_json::private::RawValue":"{\"a\":1}"}"#,
        r#"{"$serde_json::private::RawValue":1}"#,
        r#"[{"x":{"\u0024serde_json::private::Number":"1"}}]"#,
    ] {
        assert!(matches!(unique(text), Err(Ambiguity::ReservedKey(_))), "{text}");
        assert!(value(text).is_err(), "{text}");
    }
    assert_eq!(value(r#"{"$serde_json":1}"#), Ok(serde_json::json!({"$serde_json": 1})));
}

#[test]
fn what_may_pass_leaves_room_for_what_a_record_puts_around_it() {
    let nested = |depth: usize| "[".repeat(depth) + &"]".repeat(depth);
    assert!(whole(nested(MAX_DEPTH).as_bytes()).is_ok() && value(&nested(MAX_DEPTH)).is_ok());
    let deeper = nested(MAX_DEPTH + 1);
    assert_eq!(whole(deeper.as_bytes()), Err(Ambiguity::Depth));
    assert_eq!(value(&deeper), Err(Ambiguity::Depth));
    let around = format!("{}{}{}", "[".repeat(depth::AROUND), nested(MAX_DEPTH), "]".repeat(depth::AROUND));
    assert!(serde_json::from_str::<serde_json::Value>(&around).is_ok());
    // What is on record already is read as far as it can be.
    assert_eq!(unique(&nested(depth::PARSED)), Ok(()));
    assert_eq!(unique(&nested(depth::PARSED + 1)), Err(Ambiguity::Depth));
}

proptest::proptest! {
    #[test]
    fn no_bytes_panic(bytes in proptest::collection::vec(proptest::prelude::any::<u8>(), 0..200)) {
        if let Ok(text) = whole(&bytes) {
            let _ = object(text, KEYS);
            let _ = unique(text);
        }
    }
}
