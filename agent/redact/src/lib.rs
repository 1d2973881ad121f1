//! Removes secrets from text before it is stored or printed: values by the name they are assigned to, tokens by their shape,
//! by what stands around them and by gitleaks' rules. Pure.
//!
//! It works on the text as it stands: JSON (and JSON in its strings), YAML, settings, shell, addresses, headers, prose. One
//! search (`scan`) tells most texts apart. `misplaced` finds credentials in the wrong place of a configuration; `words`
//! splits names into words.

// A path may be somebody else's by the time it is used: files by descriptor (`ringfence-files`). Tests set their scenes.
#![cfg_attr(not(test), deny(clippy::disallowed_methods))]
// Where nobody reads standard output any more (`| head`), `println!` panics.
#![cfg_attr(not(test), deny(clippy::print_stdout))]

mod assign;
mod command;
mod forms;
mod json;
mod judge;
pub mod misplaced;
pub mod names;
mod plain;
mod rules;
mod scan;
mod shapes;
mod values;
pub mod words;

pub use command::command;

use std::borrow::Cow;

/// What stands in a secret's place.
pub const REDACTED: &str = "[redacted]";
/// How many times text stands in a string of text in a string that is looked into for keys: each time doubles the
/// backslashes, so that real texts end long before.
const DEEPEST_TEXT: usize = 4;

/// Makes what the first search needs, for whoever has time before there is anything to search.
pub fn prepare() {
    scan::prepare();
}

/// Any text without its secrets. JSON stays JSON: what is replaced never reaches beyond one of its strings.
pub fn redact(text: &str) -> Cow<'_, str> {
    without_secrets(text, false, DEEPEST_TEXT)
}

/// A message without its secrets, its id, method and tool's name as they are: requests and answers are paired by them.
pub fn message(text: &str) -> Cow<'_, str> {
    without_secrets(text, true, DEEPEST_TEXT)
}

/// `texts`: how many levels of text in strings are looked into.
fn without_secrets(text: &str, is_message: bool, texts: usize) -> Cow<'_, str> {
    if is_harmless(text) { Cow::Borrowed(text) } else { look_through(text, is_message, texts) }
}

/// Whether a look at its keywords says that nothing in it can be a secret.
fn is_harmless(text: &str) -> bool {
    !scan::hits(text).any(|hit| plain::may_matter(text, &hit))
}

fn look_through(text: &str, is_message: bool, texts: usize) -> Cow<'_, str> {
    if is_message || json::is_json(text) {
        return json::walk(text, json::Mode { is_message, is_json: true, texts });
    }
    let plain = replaced(text, &plain::find(text));
    if texts == 0 || memchr::memchr(b'"', plain.as_bytes()).is_none() {
        return plain;
    }
    let mode = json::Mode { is_message: false, is_json: false, texts };
    match json::walk(&plain, mode) {
        Cow::Owned(walked) => Cow::Owned(walked),
        Cow::Borrowed(_) => plain,
    }
}

/// A text with [`REDACTED`] in these places of it, from the left.
fn replaced<'t>(text: &'t str, places: &[(usize, usize)]) -> Cow<'t, str> {
    if places.is_empty() {
        return Cow::Borrowed(text);
    }
    let (mut out, mut from) = (String::with_capacity(text.len()), 0);
    for (start, end) in places {
        out.push_str(text.get(from..*start).unwrap_or_default());
        out.push_str(REDACTED);
        from = *end;
    }
    out.push_str(text.get(from..).unwrap_or_default());
    Cow::Owned(out)
}

#[cfg(test)]
mod tests;
