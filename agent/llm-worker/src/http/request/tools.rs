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

/// Looks for tools of the provider's that name a model: an adviser, a subagent.
///
/// # Errors
/// There is one.
pub(super) fn use_no_model(tools: &RawValue) -> Result<(), String> {
    let listed: Vec<Box<RawValue>> = serde_json::from_str(tools.get()).unwrap_or_default();
    // What is no list is the provider's to refuse, or to take for one tool.
    let single = (!tools.get().starts_with('[')).then_some(tools);
    listed.iter().map(|tool| &**tool).chain(single).try_for_each(tool)
}

fn tool(tool: &RawValue) -> Result<(), String> {
    if !tool.get().starts_with('{') {
        return Ok(());
    }
    let unread = |_| "tools: a tool cannot be read in one way only".to_owned();
    let Fields(fields) = serde_json::from_str(tool.get()).map_err(unread)?;
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
struct Fields(Vec<(String, Box<RawValue>)>);

impl<'de> Deserialize<'de> for Fields {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct All;

        impl<'de> Visitor<'de> for All {
            type Value = Fields;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Fields, A::Error> {
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
