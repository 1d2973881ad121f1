//! Exceptions: reasons that are not counted in the score of certain calls.

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// The action of a rule that is an exception, where other rules have `flag`, `pause` or `block`.
pub const EXCEPT: &str = "except";

/// Which calls an exception is about, and what does not count there. Names are compared as they are: an exception is about
/// one tool.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Exception {
    /// The server's name.
    pub server: String,
    /// The tool's name as the client sends it.
    pub tool: String,
    /// The call's arguments: these, each of its type, and no others.
    pub arguments: Vec<Argument>,
    /// Names of reasons that are not counted.
    pub reasons: Vec<String>,
}

/// One argument of such calls.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Argument {
    /// Its name.
    pub name: String,
    /// The type of its value.
    #[serde(rename = "type")]
    pub kind: JsonType,
    /// The value that it must have; none: any of its type.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub equals: Option<Value>,
}

/// A type of JSON.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum JsonType {
    /// `null`
    Null,
    /// `true` or `false`
    Boolean,
    /// A number.
    Number,
    /// A text.
    String,
    /// A list.
    Array,
    /// An object.
    Object,
}

impl JsonType {
    /// A value's type.
    pub const fn of(value: &Value) -> Self {
        match value {
            Value::Null => Self::Null,
            Value::Bool(_) => Self::Boolean,
            Value::Number(_) => Self::Number,
            Value::String(_) => Self::String,
            Value::Array(_) => Self::Array,
            Value::Object(_) => Self::Object,
        }
    }

    /// Its name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Null => "null",
            Self::Boolean => "boolean",
            Self::Number => "number",
            Self::String => "string",
            Self::Array => "array",
            Self::Object => "object",
        }
    }
}

/// An exception that was applied to a call.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Excepted {
    /// Its name.
    pub name: String,
    /// The call's reasons that did not count.
    pub reasons: Vec<String>,
}
