//! The file tools by name: what a model sees of each, and running one.

use crate::{edit, error::Error, list, read, search, workspace::Workspace, write};
use serde_json::{Value, json};
use std::io::Write;

/// A file tool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tool {
    /// `read_file`: a file's text, or some of its lines.
    ReadFile,
    /// `write_file`: a whole new content, put in place at once.
    WriteFile,
    /// `edit_file`: one exact text replaced by another.
    EditFile,
    /// `list_directory`: the names in a directory.
    ListDirectory,
    /// `search`: lines that match a regular expression.
    Search,
}

/// What `path` is of the tools for one file.
const FILE: &str = "The file; a relative path starts at the working directory";

impl Tool {
    /// Every file tool.
    pub const ALL: [Self; 5] =
        [Self::ReadFile, Self::WriteFile, Self::EditFile, Self::ListDirectory, Self::Search];

    /// Whether it changes files.
    pub fn writes(self) -> bool {
        match self {
            Self::WriteFile | Self::EditFile => true,
            Self::ReadFile | Self::ListDirectory | Self::Search => false,
        }
    }

    /// The tool of that name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|tool| tool.name() == name)
    }

    /// Its name, as models call it.
    pub fn name(self) -> &'static str {
        match self {
            Self::ReadFile => "read_file",
            Self::WriteFile => "write_file",
            Self::EditFile => "edit_file",
            Self::ListDirectory => "list_directory",
            Self::Search => "search",
        }
    }

    /// What it does, in words for a model.
    pub fn description(self) -> &'static str {
        match self {
            Self::ReadFile => {
                "Reads a text file. Long files are cut in the middle: use offset and limit for a part."
            }
            Self::WriteFile => {
                "Writes a file, creating it and its directories or replacing its whole content at once."
            }
            Self::EditFile => {
                "Replaces an exact piece of text in a file. old_string must occur exactly once, white space included."
            }
            Self::ListDirectory => {
                "Lists a directory, sorted: directories end in /, files have their size in bytes."
            }
            Self::Search => {
                "Searches the text files below a directory, or one file, for a regular expression. Binary files and .git are left out."
            }
        }
    }

    /// The JSON Schema of its input.
    pub fn parameters(self) -> Value {
        let path = |what: &str| json!({"type": "string", "description": what});
        let (properties, required) = match self {
            Self::ReadFile => (
                json!({
                    "path": path(FILE),
                    "offset": {"type": "integer", "minimum": 1, "description": "First line to read; 1 is the first of the file"},
                    "limit": {"type": "integer", "minimum": 1, "description": "How many lines to read"},
                }),
                json!(["path"]),
            ),
            Self::WriteFile => (
                json!({
                    "path": path(FILE),
                    "content": {"type": "string", "description": "Its new content"},
                }),
                json!(["path", "content"]),
            ),
            Self::EditFile => (
                json!({
                    "path": path(FILE),
                    "old_string": {"type": "string", "description": "The exact text to replace"},
                    "new_string": {"type": "string", "description": "What to put there"},
                    "replace_all": {"type": "boolean", "description": "Replace every occurrence instead of the only one"},
                }),
                json!(["path", "old_string", "new_string"]),
            ),
            Self::ListDirectory => {
                (json!({"path": path("The directory; the working directory if left out")}), json!([]))
            }
            Self::Search => (
                json!({
                    "pattern": {"type": "string", "description": "A regular expression, matched within lines"},
                    "path": path("Where to search: a directory or a file; the working directory if left out"),
                    "glob": {"type": "string", "description": "Only files whose name matches, such as *.rs; * and ? are wildcards"},
                    "ignore_case": {"type": "boolean", "description": "Ignore the case of ASCII letters"},
                    "max_results": {"type": "integer", "minimum": 1, "maximum": search::MOST_RESULTS, "description": "Stop after this many lines; 200 if left out"},
                }),
                json!(["pattern"]),
            ),
        };
        json!({"type": "object", "properties": properties, "required": required, "additionalProperties": false})
    }

    /// Runs it: the result goes to `out`, as bytes that are mostly UTF-8.
    ///
    /// # Errors
    /// [`Error`]; something may have gone to `out` before.
    pub fn run(self, input: &Value, workspace: &Workspace<'_>, out: &mut dyn Write) -> Result<(), Error> {
        // A call without arguments comes as null from some providers.
        let empty = Value::Object(serde_json::Map::new());
        let input = if input.is_null() { &empty } else { input };
        match self {
            Self::ReadFile => read::run(&self.parse(input)?, workspace, out),
            Self::WriteFile => write::run(&self.parse(input)?, workspace, out),
            Self::EditFile => edit::run(&self.parse(input)?, workspace, out),
            Self::ListDirectory => list::run(&self.parse(input)?, workspace, out),
            Self::Search => search::run(&self.parse(input)?, workspace, out),
        }
    }

    fn parse<'a, T: serde::Deserialize<'a>>(self, input: &'a Value) -> Result<T, Error> {
        T::deserialize(input).map_err(|source| {
            let source = type_mismatch(&self.parameters(), input).map_or(source, serde::de::Error::custom);
            Error::Input { tool: self.name(), source }
        })
    }
}

/// Which argument is not of the type that a tool's schema wants, and which that is: serde names only the type. `None`: all
/// those that are there are of their types.
pub fn type_mismatch(schema: &Value, arguments: &Value) -> Option<String> {
    let of_type = |value: &Value, kind: &Value| match kind.as_str() {
        Some("string") => (value.is_string(), "a string"),
        Some("integer") => (value.is_u64() || value.is_i64(), "a whole number"),
        Some("boolean") => (value.is_boolean(), "true or false"),
        Some("array") => (value.is_array(), "a list"),
        _ => (true, ""),
    };
    for (name, value) in arguments.as_object()? {
        let wanted = &schema["properties"][name];
        if value.is_null() {
            continue;
        }
        if let (false, kind) = of_type(value, &wanted["type"]) {
            return Some(format!("`{name}` is not {kind}"));
        }
        for (at, item) in value.as_array().into_iter().flatten().enumerate() {
            if let (false, kind) = of_type(item, &wanted["items"]["type"]) {
                return Some(format!("`{name}[{at}]` is not {kind}"));
            }
        }
    }
    None
}
