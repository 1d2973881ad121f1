//! Whether a schema is one: the values of its keywords are of the kind that JSON Schema has, all the way down.
//!
//! A keyword that is not known here says nothing: what a provider makes of it is the provider's to say.

use super::{COMBINATORS, NAMED, ONE, shown};
use serde_json::{Map, Value};
use std::borrow::Cow;

/// Types that JSON Schema has.
const TYPES: [&str; 7] = ["array", "boolean", "integer", "null", "number", "object", "string"];

/// # Errors
/// Which keyword has a value that no JSON Schema has; in words, for a log.
pub(super) fn check(whole: &Value) -> Result<(), String> {
    below(whole, whole)
}

/// What a reference leads to within the `whole`, if that may be a schema.
pub(super) fn referred<'a>(whole: &'a Value, at: &str) -> Option<&'a Value> {
    let pointer = decoded(at.strip_prefix('#')?)?;
    whole.pointer(&pointer).filter(|value| is_schema(value))
}

fn is_schema(value: &Value) -> bool {
    value.is_object() || value.is_boolean()
}

/// One schema, and those in it. Not deeper than JSON is read.
fn below(whole: &Value, schema: &Value) -> Result<(), String> {
    let Value::Object(keywords) = schema else { return Ok(()) };
    for (keyword, value) in keywords {
        if !is_sound(whole, keyword, value) {
            return Err(match (keyword.as_str(), value) {
                ("$ref", Value::String(at)) => {
                    format!("its schema refers to {:?}, which is not in it", shown(at))
                }
                _ => format!("its schema is no JSON Schema: {keyword:?} has a value that it cannot have"),
            });
        }
    }
    inner(keywords).try_for_each(|schema| below(whole, schema))
}

/// The schemas right within one.
fn inner(keywords: &Map<String, Value>) -> impl Iterator<Item = &Value> {
    let one = |keyword: &str| ONE.contains(&keyword);
    let named = |keyword: &str| NAMED.contains(&keyword);
    let known = keywords.iter().filter(move |(keyword, _)| one(keyword) || named(keyword));
    known.flat_map(move |(keyword, value)| -> Vec<&Value> {
        match value {
            Value::Array(list) => list.iter().collect(),
            Value::Object(all) if named(keyword) => all.values().collect(),
            one => vec![one],
        }
    })
}

/// Whether a known keyword has a value that it can have.
fn is_sound(whole: &Value, keyword: &str, value: &Value) -> bool {
    let list = |each: fn(&Value) -> bool| value.as_array().is_some_and(|all| all.iter().all(each));
    let is_empty = value.as_array().is_some_and(Vec::is_empty);
    match keyword {
        "type" => is_type(value) || list(is_type) && !is_empty,
        "required" => list(Value::is_string),
        "enum" => value.is_array() && !is_empty,
        "prefixItems" => list(is_schema),
        "$ref" => value.as_str().is_some_and(|at| referred(whole, at).is_some()),
        several if COMBINATORS.contains(&several) => list(is_schema) && !is_empty,
        named if NAMED.contains(&named) => value.as_object().is_some_and(|all| all.values().all(is_schema)),
        one if ONE.contains(&one) => is_schema(value),
        _ => true,
    }
}

fn is_type(value: &Value) -> bool {
    value.as_str().is_some_and(|word| TYPES.contains(&word))
}

/// A fragment of a URI as it was before it was encoded; `None`: it is not encoded so.
fn decoded(fragment: &str) -> Option<Cow<'_, str>> {
    if !fragment.contains('%') {
        return Some(fragment.into());
    }
    let mut parts = fragment.split('%');
    let mut bytes = parts.next()?.as_bytes().to_vec();
    for part in parts {
        let (hex, rest) = part.split_at_checked(2)?;
        if !hex.bytes().all(|digit| digit.is_ascii_hexdigit()) {
            return None;
        }
        bytes.push(u8::from_str_radix(hex, 16).ok()?);
        bytes.extend(rest.as_bytes());
    }
    String::from_utf8(bytes).ok().map(Cow::Owned)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn what_no_schema_has_is_found_however_deep() {
        let bad = [
            json!({ "type": "text" }),
            json!({ "type": [] }),
            json!({ "type": ["string", 1] }),
            json!({ "properties": [] }),
            json!({ "properties": { "a": "string" } }),
            json!({ "required": true }),
            json!({ "required": "a" }),
            json!({ "required": [1] }),
            json!({ "enum": [] }),
            json!({ "enum": "a" }),
            json!({ "items": "string" }),
            json!({ "items": [{}] }),
            json!({ "prefixItems": {} }),
            json!({ "anyOf": [] }),
            json!({ "anyOf": {} }),
            json!({ "oneOf": ["x"] }),
            json!({ "not": [] }),
            json!({ "additionalProperties": "no" }),
            json!({ "$defs": { "a": 1 } }),
            json!({ "$ref": 1 }),
            json!({ "$ref": "#/$defs/absent" }),
            json!({ "$ref": "https://example.com/schema" }),
            json!({ "$ref": "#/$defs/%" }),
            json!({ "$ref": "#/$defs/%+1" }),
            json!({ "$ref": "#/$defs/%C3" }),
            json!({ "$ref": "#/kind" }),
        ];
        for schema in bad {
            for whole in [
                schema.clone(),
                json!({ "properties": { "a": schema.clone() } }),
                json!({ "$defs": { "a": { "items": { "anyOf": [{}, schema.clone()] } } } }),
                json!({ "additionalProperties": { "prefixItems": [true, schema.clone()] } }),
            ] {
                let mut whole = whole;
                whole["kind"] = "x".into();
                check(&whole).unwrap_err();
            }
        }
        let long = check(&json!({ "$ref": "x".repeat(9999) })).unwrap_err();
        assert!(long.len() < 200, "{long}");
    }

    #[test]
    fn what_schemas_have_is_none_of_it() {
        check(&json!({
            "type": ["object", "null"],
            "properties": {
                "type": { "type": "integer", "enum": [1, "a", null], "default": { "type": 7, "$ref": "x" } },
                "$ref": { "$ref": "#" },
                "list": { "type": "array", "items": { "$ref": "#/$defs/A%3CB%3E~1c" }, "prefixItems": [] },
                "any": true,
                "odd": { "x-type": 4, "examples": [{ "required": 3 }], "const": { "items": 4 } },
            },
            "required": [],
            "additionalProperties": false,
            "$defs": { "A<B>/c": { "oneOf": [{ "not": {} }, false] } },
        }))
        .unwrap();
    }

    proptest::proptest! {
        #[test]
        fn any_reference_leads_somewhere_or_nowhere(at in "#?[/%~a0-9\\PC]{0,12}") {
            let whole = json!({ "a": { "": { "0": true } } });
            if let Some(found) = referred(&whole, &at) {
                proptest::prop_assert!(is_schema(found));
            }
        }
    }
}
