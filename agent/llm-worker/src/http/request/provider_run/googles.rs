//! The same of Google's API, where tools and parts of content have no types: each is known by its one key. Pure.

use super::{DEEPEST, HOSTED, Look, fields, first, items, squashed, too_deep};
use serde_json::value::RawValue;

/// Tools that the client runs.
const CLIENTS: [&str; 2] = ["functiondeclarations", "computeruse"];
/// Parts of what the provider ran, and goes on with.
const RAN: [(&str, &str); 4] = [
    ("executablecode", "code_execution"),
    ("codeexecutionresult", "code_execution"),
    ("toolcall", "tool_call"),
    ("toolresponse", "tool_call"),
];

impl Look<'_> {
    /// A tool is what its keys are; one may have several.
    pub(super) fn googles_tool(&self, tool: &[(String, &RawValue)]) -> Result<(), String> {
        for (key, value) in tool.iter().filter(|(_, value)| value.get() != "null") {
            let squashed = squashed(key);
            if CLIENTS.contains(&&*squashed) {
                continue;
            }
            let hosted = HOSTED.iter().find(|(hosted, _)| *hosted == squashed).map(|(_, name)| *name);
            self.allow(hosted.unwrap_or(&snake(key)))?;
            if has_model(value, 0)? {
                return Err(
                    "tools: a tool of the provider's may not name a model; the profile fixes the model"
                        .into(),
                );
            }
        }
        Ok(())
    }

    /// Whether a field of a part is one of this API's own, and looked at here.
    pub(super) fn is_googles_part(&self, key: &str, value: &RawValue, depth: usize) -> Result<bool, String> {
        let squashed = squashed(key);
        if let Some((_, name)) = RAN.iter().find(|(ran, _)| *ran == squashed) {
            if value.get() != "null" {
                self.allow(name)?;
            }
            return Ok(true);
        }
        match &*squashed {
            // What it is called with is the tool's own.
            "functioncall" => {}
            "functionresponse" if first(value) == b'{' => {
                let shown = fields(value)?.into_iter().filter(|(key, _)| super::squashed(key) == "parts");
                shown.into_iter().try_for_each(|(_, parts)| self.content(parts, depth + 1))?;
            }
            "filedata" => self.content(value, depth + 1)?,
            name if name.ends_with("uri") || name.ends_with("url") => self.address(value, depth + 1)?,
            _ => return Ok(false),
        }
        Ok(true)
    }
}

/// A name of a tool as profiles have it: `googleSearch` is `google_search`.
fn snake(key: &str) -> String {
    let mut snake = String::new();
    for c in key.chars().take(100) {
        if c.is_ascii_uppercase() && !snake.is_empty() {
            snake.push('_');
        }
        snake.push(c.to_ascii_lowercase());
    }
    snake
}

/// Whether a key of a value, however deep, says which model is meant.
fn has_model(value: &RawValue, depth: usize) -> Result<bool, String> {
    match first(value) {
        b'[' | b'{' if depth > DEEPEST => Err(too_deep()),
        b'[' => items(value)?.into_iter().try_fold(false, |has, item| Ok(has || has_model(item, depth + 1)?)),
        b'{' => fields(value)?.into_iter().try_fold(false, |has, (key, value)| {
            let key = squashed(&key);
            let is_model = ["model", "models", "modelname"].iter().any(|name| key.ends_with(name));
            Ok(has || is_model || has_model(value, depth + 1)?)
        }),
        _ => Ok(false),
    }
}
