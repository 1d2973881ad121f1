//! Tools that the provider runs itself, in a request: none may use another model than the profile's. Pure.

use super::folded;
use crate::http::strict_json::visit_leaves;
use serde::{
    Deserialize, Deserializer,
    de::{Error, MapAccess, SeqAccess, Visitor},
};
use serde_json::value::RawValue;
use std::fmt;

/// Types of tools that the client runs. What such a tool is called with, its schema, is its own.
const CLIENTS: [&str; 2] = ["\"function\"", "\"custom\""];

/// How deep a tool may be a list of others: no API has more than one such list in another.
const DEEPEST: usize = 4;

/// Looks for tools of the provider's that name a model: an adviser, a subagent.
///
/// # Errors
/// There is one.
pub(super) fn use_no_model(tools: &RawValue) -> Result<(), String> {
    list(tools, DEEPEST)
}

/// A list of tools, in which lists may be so deep.
fn list(tools: &RawValue, deepest: usize) -> Result<(), String> {
    let listed: Vec<Box<RawValue>> = serde_json::from_str(tools.get()).unwrap_or_default();
    // What is no list is the provider's to refuse, or to take for one tool.
    let single = (!tools.get().starts_with('[')).then_some(tools);
    listed.iter().map(|tool| &**tool).chain(single).try_for_each(|one| tool(one, deepest))
}

fn tool(tool: &RawValue, deepest: usize) -> Result<(), String> {
    if !tool.get().starts_with('{') {
        return Ok(());
    }
    let unread = |_| "tools: a tool cannot be read in one way only".to_owned();
    let Fields(fields) = serde_json::from_str(tool.get()).map_err(unread)?;
    // Some tools are lists of others.
    for (_, value) in fields.iter().filter(|(key, _)| folded(key) == "tools") {
        let deepest = deepest.checked_sub(1).ok_or("tools: lists of tools are too deep in one another")?;
        list(value, deepest)?;
    }
    let mut types = fields.iter().filter(|(key, _)| folded(key) == "type").map(|(_, value)| value.get());
    // A type that is said twice, or in another case, is the provider's to choose.
    if types.all(|kind| kind == "null" || CLIENTS.contains(&kind)) {
        return Ok(());
    }
    for (key, value) in &fields {
        let is_below = || serde_json::from_str(value.get()).map(|HasModel(has)| has).map_err(unread);
        if is_model(key) || (folded(key) == "parameters" && is_below()?) {
            let kind = fields.iter().find(|(key, _)| key == "type").map_or("", |(_, kind)| kind.get());
            let kind: String = kind.chars().filter(|c| !c.is_control()).take(100).collect();
            return Err(format!(
                "tools: a tool of type {kind} may not name a model; the profile fixes the model"
            ));
        }
    }
    Ok(())
}

/// What an object has under a name, in any case and as often as it is there: which of them counts is the provider's to say.
///
/// # Errors
/// It cannot be read in one way only.
pub(crate) fn every(object: &RawValue, name: &str) -> Result<Vec<Box<RawValue>>, String> {
    Ok(every_named(object, name)?.into_iter().map(|(_, value)| value.to_owned()).collect())
}

/// The same where it stands, and as it is written there.
///
/// # Errors
/// As [`every`].
pub(crate) fn every_named<'a>(
    object: &'a RawValue,
    name: &str,
) -> Result<Vec<(String, &'a RawValue)>, String> {
    if !object.get().starts_with('{') {
        return Ok(Vec::new());
    }
    let unread = |_| "the request has an object that cannot be read in one way only".to_owned();
    let Fields(fields) = serde_json::from_str(object.get()).map_err(unread)?;
    Ok(fields.into_iter().filter(|(key, _)| folded(key) == name).collect())
}

/// Whether a key says which model is meant: `model`, `models`, `analysis_models`.
fn is_model(key: &str) -> bool {
    let key = folded(key);
    let key = key.strip_suffix('s').unwrap_or(&key);
    key == "model" || key.ends_with("_model")
}

/// Whether a key in a value, however deep, says it.
struct HasModel(bool);

impl<'de> Deserialize<'de> for HasModel {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Any;

        impl<'de> Visitor<'de> for Any {
            type Value = bool;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("JSON")
            }

            fn visit_unit<E: Error>(self) -> Result<bool, E> {
                Ok(false)
            }

            visit_leaves! {
                visit_bool(bool) visit_i64(i64) visit_u64(u64) visit_f64(f64) visit_str(&str);
                _leaf => false
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<bool, A::Error> {
                let mut any = false;
                while let Some(HasModel(has)) = seq.next_element()? {
                    any |= has;
                }
                Ok(any)
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<bool, A::Error> {
                let mut any = false;
                while let Some((key, HasModel(has))) = map.next_entry::<String, HasModel>()? {
                    any |= has || is_model(&key);
                }
                Ok(any)
            }
        }
        deserializer.deserialize_any(Any).map(Self)
    }
}

/// An object's fields as they stand there, also those that are there twice: which of them counts is the provider's to say.
pub(super) struct Fields<'a>(pub(super) Vec<(String, &'a RawValue)>);

impl<'de> Deserialize<'de> for Fields<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct All;

        impl<'de> Visitor<'de> for All {
            type Value = Fields<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Fields<'de>, A::Error> {
                let mut fields = Vec::new();
                while let Some(field) = map.next_entry()? {
                    fields.push(field);
                }
                Ok(Fields(fields))
            }
        }
        deserializer.deserialize_map(All)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json, value::to_raw_value};

    fn passes(tools: &str) -> bool {
        use_no_model(&RawValue::from_string(tools.to_owned()).unwrap()).is_ok()
    }

    #[test]
    fn a_tool_of_the_provider_s_names_no_model() {
        for tool in [
            r#"{"type":"openrouter:advisor","parameters":{"model":"big"}}"#,
            r#"{"type":"advisor_20260301","name":"advisor","model":"big"}"#,
            r#"{"type":"x","parameters":{"deep":[{"analysis_models":["big"]}]}}"#,
            r#"{"type":"x","Model":"big"}"#,
            r#"{"type":"x","m\u006fdel":"big"}"#,
            // Which of the types counts is not known.
            r#"{"type":"function","type":"x","model":"big"}"#,
            r#"{"Type":"x","type":"function","model":"big"}"#,
            r#"{"type":"x","model":"big","model":null}"#,
            r#"{"type":7,"model":"big"}"#,
            // Some parsers read it.
            r#"{"type":"x","\ud800":1,"model":"big"}"#,
            r#"{"type":"x","parameters":{"a":1e999,"model":"big"}}"#,
        ] {
            assert!(!passes(&format!("[{tool}]")) && !passes(tool), "{tool}");
            assert!(!passes(&format!(r#"[{{"name":"a"}},{tool}]"#)), "{tool}");
        }
        let nested = |depth: usize, tool: &str| {
            let (open, close) = (r#"{"type":"namespace","tools":["#.repeat(depth), "]}".repeat(depth));
            format!("[{open}{tool}{close}]")
        };
        for (depth, tool, fits) in
            [(3, "", true), (3, r#"{"type":"x","model":"big"}"#, false), (100_000, "", false)]
        {
            assert_eq!(passes(&nested(depth, tool)), fits, "{depth} {tool}");
        }
        let deep = format!(r#"{{"type":"x","parameters":{}{}}}"#, "[".repeat(1 << 20), "]".repeat(1 << 20));
        assert!(!passes(&format!("[{deep}]")));
        let error = use_no_model(&to_raw_value(&json!([{ "type": "y\nz", "model": 1 }])).unwrap());
        assert_eq!(
            error.unwrap_err(),
            r#"tools: a tool of type "y\nz" may not name a model; the profile fixes the model"#
        );
    }

    #[test]
    fn a_client_s_tool_may_be_called_with_a_model() {
        let schema =
            || json!({ "type": "object", "model": 1, "properties": { "model": { "type": "string" } } });
        let fine = [
            json!({ "name": "t", "input_schema": schema() }),
            json!({ "type": "custom", "name": "t", "input_schema": schema(), "model": "x" }),
            json!({ "type": "function", "function": { "name": "t", "parameters": schema() } }),
            json!({ "type": "function", "name": "t", "parameters": schema() }),
            json!({ "type": null, "parameters": schema() }),
            // The provider's, with the profile's model.
            json!({ "type": "web_search_20250305", "name": "web_search", "max_uses": 3 }),
            json!({ "type": "openrouter:web", "parameters": { "engine": "x", "modelling": 1 } }),
        ];
        assert!(passes(&Value::from(fine.to_vec()).to_string()));
        for odd in ["null", "[]", "7", "[7,[],\"x\",null]", "{}"] {
            assert!(passes(odd), "{odd}");
        }
    }
}
