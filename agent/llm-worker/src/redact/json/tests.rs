//! Wherever in JSON a credential is, and whatever a parser says of the rest, it is taken out.

use super::*;
use ringfence_credentials::Secret;

const KEY: &str = "sk-secret-0123456789";

fn clean(json: &str) -> String {
    let redactor = Redactor::new([&Secret::from(KEY.to_owned())]);
    redactor.json(RawValue::from_string(json.to_owned()).unwrap()).get().to_owned()
}

/// The credential in escapes: as a string has it, and as a string has it that is in a string.
fn escaped() -> [String; 3] {
    let once = KEY.replace("sk", r"\u0073k");
    let twice = once.replace('\\', r"\\");
    [KEY.to_owned(), once, twice]
}

#[test]
fn keys_have_none_however_they_are_written() {
    for hidden in escaped() {
        let json = format!(r#"{{"a":[{{"x {hidden}":1.50}}],"b":"\n"}}"#);
        assert_eq!(clean(&json), r#"{"a":[{"x [redacted]":1.50}],"b":"\n"}"#, "{hidden}");
    }
}

#[test]
fn what_a_parser_does_not_read_has_none() {
    let deep = format!("{}0{}", "[".repeat(300), "]".repeat(300));
    for odd in ["1e999", r#""\ud800""#, deep.as_str()] {
        for hidden in escaped() {
            let json = format!(r#"{{"a":{odd},"b":"{hidden}"}}"#);
            assert_eq!(clean(&json), format!(r#"{{"a":{odd},"b":"[redacted]"}}"#), "{hidden}");
        }
        let harmless = format!(r#"{{"a":{odd},"b":"\u0073k-secret"}}"#);
        assert_eq!(clean(&harmless), harmless, "the control");
    }
    assert!(serde_json::from_str::<Value>(r#"{"a":1e999}"#).is_err(), "they are such");
}

#[test]
fn a_document_in_a_string_has_none() {
    let arguments = format!(r#"{{"key":"{}","n":1}}"#, KEY.replace('-', r"\u002d"));
    let json = serde_json::json!({ "arguments": arguments, "more": "C:\\users\\sk" }).to_string();
    let read: Value = serde_json::from_str(&clean(&json)).unwrap();
    assert_eq!(read["arguments"], r#"{"key":"[redacted]","n":1}"#);
    assert_eq!(read["more"], "C:\\users\\sk");
}

#[test]
fn where_it_cannot_be_taken_out_nothing_is_left() {
    let of = |secret: &str, json: &str| {
        let redactor = Redactor::new([&Secret::from(secret.to_owned())]);
        redactor.json(RawValue::from_string(json.to_owned()).unwrap()).get().to_owned()
    };
    // A number, and what is in two strings.
    assert_eq!(of("1234567890", r#"{"a":1234567890}"#), "\"[redacted]\"");
    assert_eq!(of(r#"abcd","efgh"#, r#"["abcd","efgh","\n"]"#), "\"[redacted]\"");
    assert_eq!(of("1234567890", r#"{"a":123456789}"#), r#"{"a":123456789}"#, "the control");
}

#[test]
fn a_value_is_cleaned_in_keys_too() {
    let redactor = Redactor::new([&Secret::from(KEY.to_owned())]);
    let value = serde_json::json!({ "type": KEY, KEY: [KEY, 7] });
    let clean = serde_json::json!({ "type": "[redacted]", "[redacted]": ["[redacted]", 7] });
    assert_eq!(redactor.value(value), clean);
    let harmless = serde_json::json!({ "retry_after": 7 });
    assert_eq!(redactor.value(harmless.clone()), harmless);
}
