//! The headers that repeat parts of a message, in the protocol of 2026-07-28: its method, what it names, and those arguments of a
//! tool that its schema marks with `x-mcp-header`. Pure.
//! <https://modelcontextprotocol.io/specification/2026-07-28/basic/transports/streamable-http#request-metadata>

use crate::message::Message;
use base64::{Engine as _, prelude::BASE64_STANDARD};
use serde::Deserialize;
use serde_json::{Map, Value, value::RawValue};
use std::{
    borrow::Cow,
    collections::{BTreeMap, BTreeSet},
};

/// The header with a message's method.
pub const METHOD: &str = "mcp-method";
/// The header with what a message names.
pub const NAME: &str = "mcp-name";
/// What the header of an argument begins with.
const PARAM: &str = "mcp-param-";
/// Marks an argument in a tool's schema.
const MARK: &str = "x-mcp-header";
/// Most tools whose marks are remembered.
const MAX_TOOLS: usize = 10_000;
/// Most marked arguments of a tool.
const MAX_MARKS: usize = 64;
/// Longest value of one header, in bytes: servers refuse longer heads, with an answer that says nothing.
const MAX_VALUE: usize = 8 << 10;

/// Why a call cannot be sent as the server's own schema asks for.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The schema.
    #[error("the server's schema of this tool marks its arguments in a way that the protocol forbids ({0})")]
    Marks(&'static str),
    /// An argument.
    #[error("an argument that the server wants in a header has more than {MAX_VALUE} bytes")]
    Long,
}

/// Where an argument is, and its header.
type Mark = (Vec<String>, String);

/// The marks of a server's tools, as far as its lists were seen.
#[derive(Debug, Default)]
pub struct Marks(BTreeMap<String, Result<Vec<Mark>, Error>>);

#[derive(Deserialize)]
struct List<'a> {
    #[serde(borrow, default)]
    tools: Vec<Tool<'a>>,
}

#[derive(Deserialize)]
struct Tool<'a> {
    name: String,
    #[serde(rename = "inputSchema", borrow, default)]
    schema: Option<&'a RawValue>,
}

#[derive(Deserialize, Default)]
struct Params<'a> {
    #[serde(borrow, default)]
    name: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    uri: Option<Cow<'a, str>>,
    #[serde(rename = "taskId", borrow, default)]
    task: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    arguments: Option<&'a RawValue>,
}

impl Marks {
    /// Remembers what a page of the server's tools says.
    pub fn learn(&mut self, result: &RawValue) {
        let Ok(List { tools }) = serde_json::from_str(result.get()) else { return };
        for Tool { name, schema } in tools {
            let schema = schema.map_or("", RawValue::get);
            // One tool in a thousand has any: the others are not taken apart.
            if !schema.contains(MARK) {
                self.0.remove(&name);
            } else if self.0.len() < MAX_TOOLS || self.0.contains_key(&name) {
                self.0.insert(name, marks(schema));
            }
        }
    }

    /// The headers of a message.
    ///
    /// # Errors
    /// [`Error`]; it cannot be sent.
    pub fn headers(&self, message: &Message<'_>) -> Result<Vec<(String, String)>, Error> {
        let Some(method) = message.method.as_deref() else { return Ok(Vec::new()) };
        let mut headers = vec![(METHOD.to_owned(), encoded(method)?)];
        let params: Params<'_> =
            message.params.and_then(|params| serde_json::from_str(params.get()).ok()).unwrap_or_default();
        let named = match method {
            "tools/call" | "prompts/get" => &params.name,
            "resources/read" | "resources/subscribe" | "resources/unsubscribe" => &params.uri,
            "tasks/get" | "tasks/update" | "tasks/cancel" | "tasks/result" => &params.task,
            _ => &None,
        };
        if let Some(named) = named {
            headers.push((NAME.to_owned(), encoded(named)?));
        }
        let marked =
            params.name.as_deref().filter(|_| method == "tools/call").and_then(|name| self.0.get(name));
        if let Some(marked) = marked {
            let marked = marked.as_ref().map_err(Clone::clone)?;
            let arguments = params.arguments.and_then(|text| serde_json::from_str::<Value>(text.get()).ok());
            for (path, header) in marked {
                let value = path.iter().try_fold(arguments.as_ref(), |value, key| Some(value?.get(key)));
                let text = match value.flatten() {
                    Some(Value::String(text)) => Cow::Borrowed(text.as_str()),
                    Some(Value::Bool(is)) => Cow::Owned(is.to_string()),
                    Some(Value::Number(number)) => Cow::Owned(number.to_string()),
                    _ => continue,
                };
                headers.push((format!("{PARAM}{}", header.to_ascii_lowercase()), encoded(&text)?));
            }
        }
        Ok(headers)
    }

    /// Headers of the called tool's marked arguments that a message does not have; `expected` are those of what it has.
    pub fn unexpected<'a>(
        &'a self,
        message: &Message<'_>,
        expected: &'a [(String, String)],
    ) -> impl Iterator<Item = String> + 'a {
        let is_call = message.method.as_deref() == Some("tools/call");
        let params =
            message.params.filter(|_| is_call).and_then(|params| serde_json::from_str(params.get()).ok());
        let marked = params.and_then(|params: Params<'_>| self.0.get(params.name.as_deref()?)?.as_ref().ok());
        let names =
            marked.into_iter().flatten().map(|(_, header)| format!("{PARAM}{}", header.to_ascii_lowercase()));
        names.filter(|name| expected.iter().all(|(of, _)| of != name))
    }
}

/// Whether a header's value, as it came, stands for the same as one of ours.
pub fn same(given: &str, ours: &str) -> bool {
    match (decoded(given.trim_matches([' ', '\t'])), decoded(ours)) {
        (Some(given), Some(ours)) => {
            let numbers = || Some(given.parse::<f64>().ok()? == ours.parse::<f64>().ok()?);
            given == ours
                || ours.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'-')) && numbers() == Some(true)
        }
        _ => false,
    }
}

/// The text that a header's value stands for.
fn decoded(value: &str) -> Option<Cow<'_, str>> {
    match value.strip_prefix("=?base64?").and_then(|rest| rest.strip_suffix("?=")) {
        Some(inside) => String::from_utf8(BASE64_STANDARD.decode(inside).ok()?).ok().map(Cow::Owned),
        None => Some(Cow::Borrowed(value)),
    }
}

/// A value as a header can carry it.
fn encoded(text: &str) -> Result<String, Error> {
    let plain = text.bytes().all(|byte| matches!(byte, b' '..=b'~'))
        && text.trim() == text
        && !(text.starts_with("=?base64?") && text.ends_with("?="));
    let value = if plain { text.to_owned() } else { format!("=?base64?{}?=", BASE64_STANDARD.encode(text)) };
    if value.len() > MAX_VALUE { Err(Error::Long) } else { Ok(value) }
}

/// The marks of a schema.
fn marks(schema: &str) -> Result<Vec<Mark>, Error> {
    let Ok(Value::Object(schema)) = serde_json::from_str(schema) else {
        return Err(Error::Marks("it cannot be read"));
    };
    let mut marks = Vec::new();
    if schema.contains_key(MARK) {
        return Err(Error::Marks("the whole of them"));
    }
    reachable(&schema, &mut Vec::new(), &mut marks)?;
    // Every other place is none that leads to one value.
    let mut all = 0;
    count(&Value::Object(schema), &mut all);
    if all > marks.len() {
        return Err(Error::Marks("in a place that leads to no single argument"));
    }
    let names: BTreeSet<String> = marks.iter().map(|(_, header)| header.to_ascii_lowercase()).collect();
    if names.len() != marks.len() || marks.len() > MAX_MARKS {
        return Err(Error::Marks("two with one header, or too many"));
    }
    Ok(marks)
}

/// The marks that are reached by `properties` alone.
fn reachable(
    schema: &Map<String, Value>,
    path: &mut Vec<String>,
    marks: &mut Vec<Mark>,
) -> Result<(), Error> {
    let Some(Value::Object(properties)) = schema.get("properties") else { return Ok(()) };
    for (name, property) in properties {
        let Value::Object(property) = property else { continue };
        path.push(name.clone());
        match property.get(MARK) {
            None => {}
            Some(Value::String(header)) if !header.is_empty() && header.bytes().all(is_token) => {
                if !matches!(
                    property.get("type").and_then(Value::as_str),
                    Some("string" | "integer" | "boolean")
                ) {
                    return Err(Error::Marks("one that is no string, integer or boolean"));
                }
                marks.push((path.clone(), header.clone()));
            }
            Some(_) => return Err(Error::Marks("with what is no header's name")),
        }
        reachable(property, path, marks)?;
        path.pop();
    }
    Ok(())
}

/// How many objects have the mark, but for those that are a value and no schema.
fn count(value: &Value, all: &mut usize) {
    match value {
        Value::Object(object) => {
            // A property that is called so has a schema, which is an object.
            *all += usize::from(object.get(MARK).is_some_and(|mark| !mark.is_object()));
            let values = object
                .iter()
                .filter(|(key, _)| !matches!(key.as_str(), "default" | "const" | "enum" | "examples"));
            values.for_each(|(_, value)| count(value, all));
        }
        Value::Array(values) => values.iter().for_each(|value| count(value, all)),
        _ => {}
    }
}

/// RFC 9110, section 5.6.2.
fn is_token(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn of(marks: &Marks, message: &Value) -> Result<Vec<(String, String)>, Error> {
        let text = message.to_string();
        marks.headers(&Message::all(text.as_bytes())[0])
    }

    fn learned(properties: Value) -> Marks {
        let list =
            json!({"tools": [{"name": "t", "inputSchema": {"type": "object", "properties": properties}}]});
        let mut marks = Marks::default();
        marks.learn(&RawValue::from_string(list.to_string()).unwrap());
        marks
    }

    fn call(arguments: Value) -> Value {
        json!({"id": 1, "method": "tools/call", "params": {"name": "t", "arguments": arguments}})
    }

    #[test]
    fn method_and_name_go_with_every_message_as_a_header_can_carry_them() {
        let marks = Marks::default();
        for (method, params, name) in [
            ("tools/call", json!({"name": "a b"}), Some("a b")),
            ("prompts/get", json!({"name": "p"}), Some("p")),
            ("resources/read", json!({"uri": "file:///ä"}), Some("=?base64?ZmlsZTovLy/DpA==?=")),
            ("tools/list", json!({"name": "no"}), None),
            ("tools/call", json!({"name": " x"}), Some("=?base64?IHg=?=")),
            ("tools/call", json!({"name": "x\r\nEvil: 1"}), Some("=?base64?eA0KRXZpbDogMQ==?=")),
            (
                "tools/call",
                json!({"name": "=?base64?literal?="}),
                Some("=?base64?PT9iYXNlNjQ/bGl0ZXJhbD89?="),
            ),
        ] {
            let mut expected = vec![(METHOD.to_owned(), method.to_owned())];
            expected.extend(name.map(|name| (NAME.to_owned(), name.to_owned())));
            assert_eq!(of(&marks, &json!({"id": 1, "method": method, "params": params})).unwrap(), expected);
        }
    }

    #[test]
    fn marked_arguments_go_in_headers_of_their_own() {
        let marks = learned(json!({
            "region": {"type": "string", "x-mcp-header": "Region"},
            "n": {"type": "integer", "x-mcp-header": "N"},
            "in": {"type": "object", "properties": {"deep": {"type": "boolean", "x-mcp-header": "Deep"}}},
            "x-mcp-header": {"type": "string"},
        }));
        let arguments = json!({"region": "us west", "n": -7, "in": {"deep": true}, "x-mcp-header": "no"});
        let headers = of(&marks, &call(arguments)).unwrap();
        for (name, value) in
            [("mcp-param-region", "us west"), ("mcp-param-n", "-7"), ("mcp-param-deep", "true")]
        {
            assert!(headers.contains(&(name.to_owned(), value.to_owned())), "{headers:?}");
        }
        assert_eq!(headers.len(), 5);
        assert_eq!(of(&marks, &call(json!({"region": null}))).unwrap().len(), 2);
        assert_eq!(of(&marks, &call(json!({"region": "x".repeat(MAX_VALUE + 1)}))), Err(Error::Long));
    }

    #[test]
    fn what_came_in_a_header_is_compared_by_what_it_stands_for() {
        for (given, ours) in
            [("a", "a"), ("=?base64?YQ==?=", "a"), ("42.0", "42"), (" a ", "a"), ("-7", "-7")]
        {
            assert!(same(given, ours), "{given}");
        }
        for (given, ours) in [
            ("A", "a"),
            ("=?base64?YQ?=", "a"),
            ("=?base64?_?=", "=?base64?_?="),
            ("42.1", "42"),
            ("1e2", "x"),
        ] {
            assert!(!same(given, ours), "{given}");
        }
        let marks = learned(json!({"a": {"type": "string", "x-mcp-header": "A"}}));
        let text = call(json!({})).to_string();
        let message = &Message::all(text.as_bytes())[0];
        let expected = marks.headers(message).unwrap();
        assert_eq!(marks.unexpected(message, &expected).collect::<Vec<_>>(), ["mcp-param-a"]);
    }

    #[test]
    fn a_call_of_a_tool_with_forbidden_marks_is_not_sent() {
        for properties in [
            json!({"a": {"type": "string", "x-mcp-header": ""}}),
            json!({"a": {"type": "string", "x-mcp-header": "a b"}}),
            json!({"a": {"type": "string", "x-mcp-header": 7}}),
            json!({"a": {"type": "number", "x-mcp-header": "A"}}),
            json!({"a": {"type": "string", "x-mcp-header": "A"}, "b": {"type": "string", "x-mcp-header": "a"}}),
            json!({"a": {"type": "array", "items": {"type": "string", "x-mcp-header": "A"}}}),
            json!({"a": {"oneOf": [{"type": "string", "x-mcp-header": "A"}]}}),
        ] {
            assert!(
                matches!(of(&learned(properties.clone()), &call(json!({}))), Err(Error::Marks(_))),
                "{properties}"
            );
        }
        let other = json!({"id": 1, "method": "tools/call", "params": {"name": "other"}});
        let marks = learned(json!({"a": {"type": "number", "x-mcp-header": "A"}}));
        assert!(of(&marks, &other).is_ok(), "another tool can be called");
    }
}
