//! JSON that all parsers read alike, and in a form in which they do. Pure.

use super::request::folded;
use serde::{
    Deserialize, Deserializer,
    de::{Error, MapAccess, SeqAccess, Visitor},
};
use serde_json::{Map, Value};
use std::{borrow::Cow, fmt};

/// Why what cannot be read is not relayed: a client with another parser would find a tool call in it that is on no record.
const AMBIGUOUS: &str = "the provider sent JSON that parsers read differently (a lone surrogate, a number out of range, NaN, a key twice, too deep)";

/// What a document may weigh: in memory a value takes many times the bytes that it has as text.
const HEAVIEST: usize = 1 << 20;
/// What an object weighs beside what is in it.
const OBJECT: usize = 4;

/// Reads it.
///
/// # Errors
/// It is none, or parsers differ over it, or it is too heavy.
pub(crate) fn read(text: &str) -> Result<Value, String> {
    if !is_light(text.as_bytes()) {
        return Err("the provider sent JSON of too many values".to_owned());
    }
    serde_json::from_str::<Strict>(text).map(|Strict(value)| value).map_err(|_| AMBIGUOUS.to_owned())
}

/// Whether a document has few enough values to be read. What is no JSON is weighed as if it were some: up to where it is none,
/// that is right.
pub(super) fn is_light(json: &[u8]) -> bool {
    outside_texts(json)
        .filter_map(|byte| match byte {
            b',' | b'[' => Some(1),
            b'{' => Some(OBJECT),
            _ => None,
        })
        .try_fold(0, |weight, more| Some(weight + more).filter(|weight| *weight <= HEAVIEST))
        .is_some()
}

/// The bytes of JSON that are in none of its texts.
fn outside_texts(json: &[u8]) -> impl Iterator<Item = u8> {
    let (mut in_text, mut escaped) = (false, false);
    json.iter().copied().filter(move |byte| {
        let was_in = in_text;
        match byte {
            _ if std::mem::take(&mut escaped) => {}
            b'\\' if in_text => escaped = true,
            b'"' => in_text = !in_text,
            _ => {}
        }
        !was_in && !in_text
    })
}

/// JSON without what ends a line for anybody: some clients also take what Unicode has for that, inside of a string.
pub(super) fn in_one_line(json: &str) -> Cow<'_, str> {
    let ends = ['\n', '\r', '\u{85}', '\u{2028}', '\u{2029}'];
    if !json.contains(ends) {
        return Cow::Borrowed(json);
    }
    let mut line = String::with_capacity(json.len());
    for c in json.chars() {
        match c {
            // In JSON it stands between the tokens alone.
            '\n' | '\r' => line.push(' '),
            '\u{85}' => line.push_str(r"\u0085"),
            '\u{2028}' => line.push_str(r"\u2028"),
            '\u{2029}' => line.push_str(r"\u2029"),
            c => line.push(c),
        }
    }
    Cow::Owned(line)
}

/// Whether an object has one of these keys, all in lower case, in another case: some parsers take it for the key.
pub(super) fn has_alike(value: &Value, keys: &[&str]) -> bool {
    let Some(object) = value.as_object() else { return false };
    object.keys().any(|key| !keys.contains(&key.as_str()) && keys.contains(&&*folded(key)))
}

/// Methods of a visitor for what holds nothing else.
macro_rules! visit_leaves {
    ($($visit:ident($leaf:ty))+; $value:ident => $made:expr) => {$(
        fn $visit<E: serde::de::Error>(self, $value: $leaf) -> Result<Self::Value, E> {
            Ok($made)
        }
    )+};
}
pub(crate) use visit_leaves;

/// JSON in which no object has a key twice: which of the two counts is the parser's to say.
struct Strict(Value);

impl<'de> Deserialize<'de> for Strict {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Any;

        impl<'de> Visitor<'de> for Any {
            type Value = Value;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("JSON")
            }

            fn visit_unit<E: Error>(self) -> Result<Value, E> {
                Ok(Value::Null)
            }

            visit_leaves! {
                visit_bool(bool) visit_i64(i64) visit_u64(u64) visit_f64(f64) visit_str(&str) visit_string(String);
                value => value.into()
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Value, A::Error> {
                let mut items = Vec::new();
                while let Some(Strict(item)) = seq.next_element()? {
                    items.push(item);
                }
                Ok(Value::Array(items))
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Value, A::Error> {
                let mut object = Map::new();
                while let Some((key, Strict(value))) = map.next_entry::<String, Strict>()? {
                    if object.insert(key, value).is_some() {
                        return Err(A::Error::custom("a key twice"));
                    }
                }
                Ok(Value::Object(object))
            }
        }
        deserializer.deserialize_any(Any).map(Self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn what_parsers_differ_over_is_not_read() {
        let deep = format!("{}{}", "[".repeat(300), "]".repeat(300));
        for odd in [
            r#"{"a":1,"a":1}"#,
            r#"{"a":1,"\u0061":2}"#,
            r#"[{"x":{"a":1,"a":1}}]"#,
            r#""\ud800""#,
            "1e999",
            "NaN",
            "\u{feff}{}",
            "{} {}",
            "",
            &deep,
        ] {
            assert!(read(odd).is_err(), "{odd}");
        }
        for fine in
            [r#"{"a":1,"A":1}"#, r#"[{"a":1},{"a":1}]"#, " {}\n", "-1", "1.5", "null", r#""\ud83e\udd80""#]
        {
            assert_eq!(read(fine).unwrap(), serde_json::from_str::<Value>(fine).unwrap(), "{fine}");
        }
    }

    #[test]
    fn what_would_take_too_much_memory_is_not_read() {
        let list = |item: &str, times: usize| format!("[{}{item}]", format!("{item},").repeat(times));
        for heavy in [
            list("0", HEAVIEST),
            list("[]", HEAVIEST / 2),
            list("{}", HEAVIEST / 4),
            list("\"\\\"\"", HEAVIEST),
        ] {
            assert!(!is_light(heavy.as_bytes()) && read(&heavy).is_err(), "{}", &heavy[..40]);
        }
        let text = format!("[\"{}\"]", "[{,\\\"".repeat(HEAVIEST));
        for light in [list("0", HEAVIEST / 2), list("{}", HEAVIEST / 8), text] {
            assert!(is_light(light.as_bytes()) && read(&light).is_ok(), "{}", &light[..40]);
        }
    }

    #[test]
    fn a_key_in_another_case_is_told() {
        for (key, alike) in
            [("choices", false), ("Choices", true), ("choice\u{17f}", true), ("choice", false)]
        {
            assert_eq!(has_alike(&serde_json::json!({ key: 1 }), &["choices"]), alike, "{key}");
        }
    }

    proptest! {
        #[test]
        fn without_a_key_twice_it_is_what_serde_json_reads(text in r#"(\{("[ab]":([0-9]|\[\]),?){0,3}\}|\[([0-9],?){0,3}\]|[0-9])"#) {
            let keys = |key: &str| text.matches(key).count();
            match read(&text) {
                Ok(value) => prop_assert_eq!(value, serde_json::from_str::<Value>(&text).unwrap()),
                Err(_) => prop_assert!(
                    keys("\"a\"") > 1 || keys("\"b\"") > 1 || serde_json::from_str::<Value>(&text).is_err()
                ),
            }
        }

        #[test]
        fn one_line_is_the_same_json(text in "[a\"\\\\\n\r\u{85}\u{2028}\u{2029}]{0,12}", pretty: bool) {
            let value = serde_json::json!({ text.clone(): [text] });
            let json = if pretty { serde_json::to_string_pretty(&value) } else { serde_json::to_string(&value) };
            let json = json.unwrap();
            let line = in_one_line(&json);
            let has_end = line.contains(['\n', '\r', '\u{85}', '\u{2028}', '\u{2029}']);
            prop_assert!(!has_end);
            prop_assert_eq!(read(&line).unwrap(), value);
        }
    }
}
