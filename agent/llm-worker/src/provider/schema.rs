//! Schemas of tools' arguments, as far as each provider takes them: one schema that it refuses fails the whole request,
//! with every other tool in it.
//!
//! | provider | what it takes |
//! |---|---|
//! | Anthropic | `type: object` at the top, and no `oneOf`, `anyOf` or `allOf` there; names of properties of 1 to 64 characters of `A-Za-z0-9_.-` |
//! | OpenAI | `type: object` and `properties` at the top, and no `oneOf`, `anyOf`, `allOf`, `enum` or `not` there; `items` with every array |
//! | Gemini | `type: object` at the top, and only the keywords of [`GEMINI`], which the reference of `responseJsonSchema` lists |
//!
//! All of them refuse what is no JSON Schema, which is looked for in the keywords that tools have ([`structure`]).
//!
//! A rewritten schema may admit arguments that the tool's own does not: that one still judges the call.

mod structure;

use crate::message::raw;
use ringfence_policy::agents::config::ProviderKind;
use serde_json::{Map, Value, json, value::RawValue};
use std::collections::BTreeSet;

/// Keywords that join schemas.
const COMBINATORS: [&str; 3] = ["allOf", "anyOf", "oneOf"];
/// Keywords of Gemini's subset of JSON Schema.
const GEMINI: [&str; 21] = [
    "$anchor",
    "$defs",
    "$id",
    "$ref",
    "additionalProperties",
    "anyOf",
    "description",
    "enum",
    "format",
    "items",
    "maxItems",
    "maximum",
    "minItems",
    "minimum",
    "oneOf",
    "prefixItems",
    "properties",
    "propertyOrdering",
    "required",
    "title",
    "type",
];
/// Keywords whose value is a schema, or a list of them.
const ONE: [&str; 15] = [
    "additionalItems",
    "additionalProperties",
    "allOf",
    "anyOf",
    "contains",
    "else",
    "if",
    "items",
    "not",
    "oneOf",
    "prefixItems",
    "propertyNames",
    "then",
    "unevaluatedItems",
    "unevaluatedProperties",
];
/// Keywords whose value names schemas.
const NAMED: [&str; 5] = ["$defs", "definitions", "dependentSchemas", "patternProperties", "properties"];
/// Most schemas that are joined into one.
const MAX_BRANCHES: usize = 64;
/// Longest schema of one tool, as it is given or sent, bytes: all of them are read at every change of a server's tools, by a
/// thread that everything else of the worker's waits for.
const MAX_SCHEMA: usize = 64 << 10;
/// Most of a name that a server chose in a line of the log, characters.
pub(crate) const MAX_SHOWN: usize = 64;
/// Longest name of a property that Anthropic takes, in characters.
const MAX_PROPERTY: usize = 64;

/// What to send in place of a tool's schema; `None`: the provider takes it as it is.
///
/// # Errors
/// No schema that this provider takes comes near it; in words, for a log.
pub fn accepted(kind: ProviderKind, schema: &RawValue) -> Result<Option<Box<RawValue>>, String> {
    short(schema)?;
    let given: Value = serde_json::from_str(schema.get()).map_err(|error| error.to_string())?;
    let mut whole = given.clone();
    let Value::Object(top) = &mut whole else { return Err("its schema is no JSON object".to_owned()) };
    structure::check(&given)?;
    object(top)?;
    let refused: &[&str] = match kind {
        ProviderKind::Anthropic => &COMBINATORS,
        ProviderKind::OpenAi => &["allOf", "anyOf", "oneOf", "enum", "not"],
        ProviderKind::Gemini => &["allOf"],
    };
    flatten(top, refused)?;
    match kind {
        ProviderKind::Anthropic => names(top)?,
        ProviderKind::OpenAi => {
            top.entry("properties").or_insert_with(|| json!({}));
        }
        ProviderKind::Gemini => {
            // The older name of the same.
            if let (Some(definitions), false) = (top.remove("definitions"), top.contains_key("$defs")) {
                top.insert("$defs".to_owned(), definitions);
            }
        }
    }
    below(kind, top);
    // What was taken from the top may be what something below refers to.
    structure::check(&whole)?;
    let sent = (whole != given).then(|| raw(&whole));
    sent.as_deref().map_or(Ok(()), short)?;
    Ok(sent)
}

/// Whether a schema is short enough to be looked into, and to be sent.
fn short(schema: &RawValue) -> Result<(), String> {
    match schema.get().len() {
        0..=MAX_SCHEMA => Ok(()),
        long => Err(format!("its schema has {long} bytes, and more than {MAX_SCHEMA} are not taken")),
    }
}

/// As much of a name that a server chose as the log shows.
pub(crate) fn shown(name: &str) -> String {
    name.chars().take(MAX_SHOWN).collect()
}

/// Says at the top that arguments are an object.
fn object(top: &mut Map<String, Value>) -> Result<(), String> {
    let may_be = match top.get("type") {
        None => true,
        Some(Value::Array(kinds)) => kinds.iter().any(|kind| kind == "object"),
        Some(kind) => kind == "object",
    };
    if !may_be {
        return Err("its arguments are no object".to_owned());
    }
    top.insert("type".to_owned(), "object".into());
    Ok(())
}

/// Takes the `refused` keywords from the top, and what they or a `$ref` say of properties into it: a model is to know
/// of every argument that there can be.
fn flatten(top: &mut Map<String, Value>, refused: &[&str]) -> Result<(), String> {
    let whole = Value::Object(top.clone());
    let mut branches: Vec<(bool, Value)> = Vec::new();
    if let Some(at) = top.remove("$ref") {
        branches.push((true, json!({ "$ref": at })));
    }
    for keyword in refused {
        let removed = top.remove(*keyword);
        if let (true, Some(Value::Array(all))) = (COMBINATORS.contains(keyword), removed) {
            branches.extend(all.into_iter().map(|branch| (*keyword == "allOf", branch)));
        }
    }
    if branches.len() > MAX_BRANCHES {
        return Err(format!("its schema joins more than {MAX_BRANCHES} others"));
    }
    let listed =
        top.get("required").and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str);
    let mut required: BTreeSet<String> = listed.map(str::to_owned).collect();
    let mut taken = BTreeSet::new();
    for (always, branch) in &branches {
        let branch = target(&whole, branch);
        // Sixty-four of them may refer to one that is large.
        if !taken.insert((always, std::ptr::from_ref(branch))) {
            continue;
        }
        if let Some(more) = branch.get("properties").and_then(Value::as_object) {
            let properties = top.entry("properties").or_insert_with(|| json!({}));
            if let Value::Object(properties) = properties {
                for (name, schema) in more {
                    properties.entry(name.as_str()).or_insert_with(|| schema.clone());
                }
            }
        }
        if let (true, Some(more)) = (always, branch.get("required").and_then(Value::as_array))
            && let Value::Array(all) = top.entry("required").or_insert_with(|| json!([]))
        {
            let new = more.iter().filter(|name| name.as_str().is_some_and(|n| required.insert(n.to_owned())));
            all.extend(new.cloned());
        }
    }
    Ok(())
}

/// What a schema refers to within the `whole`, one step far; itself, if it does not.
fn target<'a>(whole: &'a Value, schema: &'a Value) -> &'a Value {
    let at = schema.get("$ref").and_then(Value::as_str);
    at.and_then(|at| structure::referred(whole, at)).unwrap_or(schema)
}

/// Anthropic's rule for the names of properties.
fn names(top: &Map<String, Value>) -> Result<(), String> {
    let fits = |name: &str| {
        let plain = |c: char| c.is_ascii_alphanumeric() || "_.-".contains(c);
        (1..=MAX_PROPERTY).contains(&name.len()) && name.chars().all(plain)
    };
    let properties = top.get("properties").and_then(Value::as_object);
    match properties.and_then(|properties| properties.keys().find(|name| !fits(name))) {
        None => Ok(()),
        Some(name) => Err(format!("the provider does not take the name of its argument {:?}", shown(name))),
    }
}

/// What a provider wants of every schema, not only of the one at the top. Not deeper than JSON is read.
fn below(kind: ProviderKind, schema: &mut Map<String, Value>) {
    match kind {
        ProviderKind::Anthropic => return,
        ProviderKind::OpenAi => items(schema),
        ProviderKind::Gemini => reduce(schema),
    }
    for (keyword, value) in schema.iter_mut() {
        let inner: Vec<&mut Value> = match value {
            Value::Object(named) if NAMED.contains(&keyword.as_str()) => named.values_mut().collect(),
            Value::Array(list) if ONE.contains(&keyword.as_str()) => list.iter_mut().collect(),
            Value::Object(_) if ONE.contains(&keyword.as_str()) => vec![value],
            _ => continue,
        };
        for schema in inner {
            if let Value::Object(schema) = schema {
                below(kind, schema);
            }
        }
    }
}

/// OpenAI refuses an array that does not say what is in it.
fn items(schema: &mut Map<String, Value>) {
    let is_list = match schema.get("type") {
        Some(Value::Array(kinds)) => kinds.iter().any(|kind| kind == "array"),
        kind => kind.is_some_and(|kind| kind == "array"),
    };
    if is_list {
        schema.entry("items").or_insert_with(|| json!({}));
    }
}

/// Leaves Gemini's keywords.
fn reduce(schema: &mut Map<String, Value>) {
    if let Some(only) = schema.remove("const") {
        schema.entry("enum").or_insert_with(|| json!([only]));
    }
    // Of one schema, which is how generators put a description beside a reference.
    if let Some(Value::Array(all)) = schema.remove("allOf") {
        for branch in all {
            let Value::Object(branch) = branch else { continue };
            for (keyword, value) in branch {
                schema.entry(keyword).or_insert(value);
            }
        }
    }
    if let Some(Value::String(at)) = schema.get_mut("$ref") {
        if let Some(name) = at.strip_prefix("#/definitions/") {
            *at = format!("#/$defs/{name}");
        }
        // Nothing else may stand beside it.
        schema.retain(|keyword, _| keyword.starts_with('$'));
    }
    schema.retain(|keyword, _| GEMINI.contains(&keyword.as_str()));
}

#[cfg(test)]
mod tests {
    use super::*;
    use ProviderKind::{Anthropic, Gemini, OpenAi};

    fn sent(kind: ProviderKind, schema: &Value) -> Value {
        let given = raw(schema);
        let rewritten = accepted(kind, &given).unwrap();
        let again = rewritten.as_ref().unwrap_or(&given);
        assert!(accepted(kind, again).unwrap().is_none(), "{kind:?} does not take {again} either");
        serde_json::from_str(again.get()).unwrap()
    }

    #[test]
    fn what_all_take_stays_as_it_is() {
        let plain = json!({
            "type": "object",
            "properties": { "list": { "type": "array", "items": { "type": "string" } } },
            "required": ["list"],
            "additionalProperties": false,
        });
        for kind in [Anthropic, OpenAi, Gemini] {
            assert!(accepted(kind, &raw(&plain)).unwrap().is_none(), "{kind:?}");
        }
    }

    #[test]
    fn alternatives_at_the_top_become_properties() {
        let schema = json!({
            "type": "object",
            "properties": { "a": { "type": "string" } },
            "oneOf": [{ "required": ["a"] }, { "$ref": "#/$defs/b" }],
            "allOf": [{ "properties": { "c": { "type": "string" } }, "required": ["c"] }],
            "$defs": { "b": { "properties": { "b": { "type": "integer" } }, "required": ["b"] } },
        });
        for kind in [Anthropic, OpenAi] {
            let sent = sent(kind, &schema);
            let properties: Vec<&String> = sent["properties"].as_object().unwrap().keys().collect();
            assert_eq!(properties, ["a", "b", "c"], "{kind:?}");
            assert_eq!(sent["required"], json!(["c"]), "only what every call must have");
            assert!(COMBINATORS.iter().all(|keyword| sent.get(keyword).is_none()), "{sent}");
        }
        let sent = sent(Gemini, &schema);
        assert!(sent.get("oneOf").is_some() && sent.get("allOf").is_none(), "{sent}");
    }

    #[test]
    fn what_is_missing_at_the_top_is_said() {
        for kind in [Anthropic, OpenAi, Gemini] {
            assert_eq!(sent(kind, &json!({ "properties": {} }))["type"], "object");
            assert_eq!(
                sent(kind, &json!({ "type": ["object", "null"], "properties": {} }))["type"],
                "object"
            );
        }
        assert_eq!(sent(OpenAi, &json!({ "type": "object" }))["properties"], json!({}));
        let list = json!({ "type": "object", "properties": { "l": { "anyOf": [{ "type": "array" }] } } });
        assert_eq!(sent(OpenAi, &list)["properties"]["l"]["anyOf"][0]["items"], json!({}));
        assert_eq!(
            sent(OpenAi, &json!({ "not": {}, "enum": [1] })),
            json!({ "type": "object", "properties": {} })
        );
    }

    #[test]
    fn gemini_is_sent_its_own_keywords() {
        let sent = sent(
            Gemini,
            &json!({
                "$schema": "http://json-schema.org/draft-07/schema#",
                "type": "object",
                "properties": {
                    "pattern": { "type": "string", "pattern": "^a", "default": "a" },
                    "kind": { "const": "x" },
                    "one": { "description": "d", "allOf": [{ "$ref": "#/definitions/one" }] },
                },
                "definitions": { "one": { "type": "integer", "exclusiveMinimum": 0 } },
            }),
        );
        assert_eq!(
            sent,
            json!({
                "type": "object",
                "properties": {
                    "pattern": { "type": "string" },
                    "kind": { "enum": ["x"] },
                    "one": { "$ref": "#/$defs/one" },
                },
                "$defs": { "one": { "type": "integer" } },
            })
        );
    }

    #[test]
    fn what_nothing_comes_near_is_an_error() {
        for kind in [Anthropic, OpenAi, Gemini] {
            for schema in [json!([]), json!(true), json!({ "type": "string" }), json!({ "type": 1 })] {
                accepted(kind, &raw(&schema)).unwrap_err();
            }
            let many: Vec<Value> = (0..=MAX_BRANCHES).map(|_| json!({})).collect();
            accepted(kind, &raw(&json!({ "allOf": many }))).unwrap_err();
        }
        for name in ["", "a b", "ä", &"x".repeat(65)] {
            let schema = json!({ "type": "object", "properties": { name: {} } });
            let why = accepted(Anthropic, &raw(&schema)).unwrap_err();
            assert!(why.contains("name of its argument"), "{why}");
            assert!(accepted(Gemini, &raw(&schema)).unwrap().is_none(), "the others say nothing of names");
        }
        let deep = "[".repeat(1000);
        let deep = RawValue::from_string(format!("{{\"a\":{deep}{}}}", "]".repeat(1000)));
        if let Ok(deep) = deep {
            accepted(OpenAi, &deep).unwrap_err();
        }
    }

    #[test]
    fn one_schema_is_taken_once_however_many_refer_to_it() {
        let names: Vec<String> = (0..40).map(|n| format!("p{n}")).collect();
        let properties: Map<String, Value> =
            names.iter().map(|name| (name.clone(), json!({ "type": "string" }))).collect();
        let big = json!({ "properties": properties, "required": names });
        let refers = json!({ "$ref": "#/$defs/big" });
        let schema = json!({
            "anyOf": vec![refers.clone(); 20], "allOf": vec![refers.clone(); 20], "oneOf": vec![refers; 20],
            "required": ["p7"], "$defs": { "big": big },
        });
        for kind in [Anthropic, OpenAi] {
            let sent = sent(kind, &schema);
            assert_eq!(sent["properties"].as_object().unwrap().len(), 40, "{sent}");
            let required: Vec<&str> =
                sent["required"].as_array().unwrap().iter().filter_map(Value::as_str).collect();
            assert_eq!((required.len(), required[0]), (40, "p7"), "each of them once: {required:?}");
        }
    }

    #[test]
    fn a_long_schema_is_left_out_as_it_is_given_and_as_it_would_be_sent() {
        let described = |long: usize| {
            raw(&json!({ "type": "object", "properties": {}, "description": "x".repeat(long) }))
        };
        let around = described(0).get().len();
        for kind in [Anthropic, OpenAi, Gemini] {
            assert!(accepted(kind, &described(MAX_SCHEMA - around)).unwrap().is_none(), "the control");
            let why = accepted(kind, &described(MAX_SCHEMA - around + 1)).unwrap_err();
            assert!(why.contains("65537 bytes"), "{why}");
        }
        // Each refers to a part of the one before: together they are many times as long.
        let (mut whole, mut at, mut refer) =
            (json!({ "description": "x".repeat(30_000) }), String::from("#/$defs/p"), Vec::new());
        for depth in 0..20 {
            whole = json!({ "properties": { format!("p{depth}"): whole } });
        }
        for depth in (0..20).rev() {
            refer.push(json!({ "$ref": at }));
            at += &format!("/properties/p{depth}");
        }
        let schema = raw(&json!({ "type": "object", "anyOf": refer, "$defs": { "p": whole } }));
        assert!(schema.get().len() < MAX_SCHEMA);
        assert!(accepted(Anthropic, &schema).unwrap_err().contains("are not taken"));
        assert!(
            accepted(Anthropic, &raw(&json!({ "type": "object", "properties": { "y".repeat(9999): {} } })))
                .unwrap_err()
                .len()
                < 200
        );
    }

    proptest::proptest! {
        /// Whatever a server says, what is sent is taken, or nothing is sent.
        #[test]
        fn whatever_is_sent_is_taken(text in r##"(\{"(type|oneOf|allOf|\$ref|items|properties|const)":(\[\]|\{\}|"object"|"array"|"#"|"#/items"|1|\{"type":"array"\}|\[\{"allOf":\[\{\}\]\}\])\})"##) {
            if let Ok(given) = RawValue::from_string(text) {
                for kind in [Anthropic, OpenAi, Gemini] {
                    if let Ok(Some(sent)) = accepted(kind, &given) {
                        proptest::prop_assert!(accepted(kind, &sent).unwrap().is_none(), "{sent}");
                    }
                }
            }
        }
    }
}
