//! What a request has the provider do itself: search, fetch, run code, ask servers. A container without a network would reach
//! out through it, so it is refused by name unless the profile's `provider_tools` has it. Pure.
//!
//! What is not known to be the client's counts as the provider's: betas and unknown fields of a request pass, and a new tool
//! must not pass with them.

use super::{folded, squashed, tools::Fields};
use crate::provider::Wire;
use ringfence_policy::agents::registry::Llm;
use serde_json::value::RawValue;
use std::collections::BTreeMap;

mod googles;

/// What one API knows.
struct Known {
    /// Types of tools that the client runs, and of those that look at nothing but the request.
    client_tools: &'static [&'static str],
    /// The same with a date behind them: `bash_20250124`.
    dated: &'static [&'static str],
    /// Whether there is a `shell`, which is the client's or the provider's as its environment says.
    has_shell: bool,
    /// Fields of a request that have the provider reach out, whatever is in `tools`.
    fields: &'static [&'static str],
    /// Names are Google's: tools and parts are known by their one key, in either of its spellings.
    is_googles: bool,
}

const MESSAGES: Known = Known {
    client_tools: &["custom", "tool_search_tool_regex", "tool_search_tool_bm25"],
    dated: &["bash", "text_editor", "memory", "computer", "tool_search_tool_regex", "tool_search_tool_bm25"],
    has_shell: false,
    fields: &["mcp_servers", "container"],
    is_googles: false,
};

const CHAT_COMPLETIONS: Known = Known {
    client_tools: &["function", "custom"],
    dated: &[],
    has_shell: false,
    fields: &["web_search_options"],
    is_googles: false,
};

const RESPONSES: Known = Known {
    client_tools: &["function", "custom", "local_shell", "apply_patch", "namespace"],
    dated: &[],
    has_shell: true,
    fields: &[],
    is_googles: false,
};

const GENERATE_CONTENT: Known =
    Known { client_tools: &[], dated: &[], has_shell: false, fields: &[], is_googles: true };

/// The table: one line for each API.
fn known(wire: Wire) -> &'static Known {
    match wire {
        Wire::Messages => &MESSAGES,
        Wire::ChatCompletions => &CHAT_COMPLETIONS,
        Wire::Responses => &RESPONSES,
        Wire::GenerateContent => &GENERATE_CONTENT,
    }
}

/// Fields of servers that are compatible with one of the APIs, or pass requests on to others.
const GATEWAYS: [&str; 18] = [
    "mcp",
    "mcp_servers",
    "container",
    "containers",
    "file_id",
    "file_ids",
    "web_search_options",
    "web_search",
    "search_parameters",
    "search_options",
    "search_settings",
    "enable_search",
    "compound_custom",
    "connectors",
    "data_sources",
    "tool_resources",
    "code_interpreter",
    "skills",
];

/// Keys by which servers that pass requests on know a tool without a type, as [`squashed`] has them, and what each is called
/// here.
const HOSTED: [(&str, &str); 10] = [
    ("googlesearch", "google_search"),
    ("googlesearchretrieval", "google_search_retrieval"),
    ("googlemaps", "google_maps"),
    ("enterprisewebsearch", "enterprise_web_search"),
    ("urlcontext", "url_context"),
    ("websearch", "web_search"),
    ("codeexecution", "code_execution"),
    ("codeinterpreter", "code_interpreter"),
    ("filesearch", "file_search"),
    ("computeruse", "computer_use"),
];

/// Fields in which any name may stand: JSON schemas, and what is the client's own.
const OPAQUE: [&str; 9] = [
    "metadata",
    "response_format",
    "output_format",
    "output_config",
    "text",
    "json_schema",
    "guided_json",
    "structured_outputs",
    "grammar",
];

/// Types of what a choice among tools may be, beside those of tools.
const CHOICES: [&str; 6] = ["auto", "any", "tool", "none", "required", "allowed_tools"];

/// Blocks that are a tool's call: its input is the tool's own.
const CALLS: [&str; 3] = ["tool_use", "server_tool_use", "mcp_tool_use"];

/// Keys of content that is no text.
const MEDIA: [&str; 8] = ["data", "file_data", "image", "images", "video", "audio", "file", "document"];

/// Types of a source that has its content in the request.
const INLINE: [&str; 3] = ["base64", "text", "content"];

/// How deep content may be nested, a call's input aside.
const DEEPEST: usize = 32;

/// An address that the provider would fetch.
const URL: &str = "url";
/// A file that the provider keeps.
const FILE: &str = "file_id";

/// Refuses a request that has the provider do what the profile does not allow: by a field, or by tools that stand elsewhere
/// (`more_tools`). `is_fixed`: whether a field of the request is replaced by the profile's own.
///
/// # Errors
/// It does: what, and the key that allows it.
pub(super) fn check(
    llm: &Llm,
    wire: Wire,
    (request, more_tools): (&BTreeMap<String, Box<RawValue>>, &[Box<RawValue>]),
    is_fixed: impl Fn(&str) -> bool,
) -> Result<(), String> {
    let look = Look { llm, known: known(wire) };
    more_tools.iter().try_for_each(|tools| look.tools("tools", tools))?;
    for (key, value) in request.iter().filter(|(key, _)| !is_fixed(key)) {
        let name = folded(key);
        let is_field = |field: &&&str| match look.known.is_googles {
            true => squashed(field) == squashed(&name),
            false => **field == name,
        };
        match &*name {
            "tools" | "functions" => look.tools(&name, value)?,
            // Its schemas are the client's own.
            _ if look.known.is_googles && squashed(&name) == "generationconfig" => {}
            "tool_choice" => look.choice(value, 0)?,
            _ if OPAQUE.contains(&key.as_str()) => {}
            _ => match look.known.fields.iter().chain(&GATEWAYS).find(is_field) {
                Some(_) if matches!(value.get(), "null" | "false" | "[]") => {}
                Some(field) => look.allow(field)?,
                None => look.content(value, 0)?,
            },
        }
    }
    Ok(())
}

/// Refuses content that has the provider fetch what the profile does not allow.
///
/// # Errors
/// As [`check`].
pub(crate) fn check_content(llm: &Llm, content: &RawValue) -> Result<(), String> {
    // Turns speak the first.
    let wire = Wire::of(llm.provider).first().copied().unwrap_or(Wire::Messages);
    Look { llm, known: known(wire) }.content(content, 0)
}

/// One look at a request.
struct Look<'a> {
    llm: &'a Llm,
    known: &'static Known,
}

impl Look<'_> {
    /// Refuses what the profile does not name.
    fn allow(&self, name: &str) -> Result<(), String> {
        let is_named = |entry: &String| {
            entry == "*"
                || entry == name
                || begins(name, entry)
                || (self.known.is_googles && squashed(entry) == squashed(name))
        };
        if self.llm.provider_tools.iter().any(is_named) {
            return Ok(());
        }
        let name: String = name.chars().filter(|c| !c.is_control()).take(100).collect();
        let section = &self.llm.name;
        Err(format!(
            "{name:?} is run or fetched by the provider, beyond the container's limits, and this agent's profile does not allow \
             it; `provider_tools = [{name:?}]` in its [llm.{section}] (of a kit: the registry's) would"
        ))
    }

    /// Whether the client runs a tool of this type.
    fn is_client_s(&self, kind: &str) -> bool {
        let is_date = |date: &str| date.len() == 8 && date.bytes().all(|byte| byte.is_ascii_digit());
        let dated = kind.rsplit_once('_').filter(|(_, date)| is_date(date));
        self.known.client_tools.contains(&kind)
            || dated.is_some_and(|(name, _)| self.known.dated.contains(&name))
    }

    fn tools(&self, field: &str, tools: &RawValue) -> Result<(), String> {
        match first(tools) {
            b'n' => Ok(()),
            b'{' => self.tool(tools),
            b'[' => items(tools)?.into_iter().try_for_each(|tool| match first(tool) {
                b'{' => self.tool(tool),
                _ => Err(format!("{field}: a tool is to be an object")),
            }),
            _ => Err(format!("{field} is to be a list of tools")),
        }
    }

    fn tool(&self, tool: &RawValue) -> Result<(), String> {
        let fields = fields(tool)?;
        if self.known.is_googles {
            return self.googles_tool(&fields);
        }
        let (mut has_type, mut has_name) = (false, false);
        let is_local = is_local_shell(&fields);
        for (key, value) in &fields {
            match &*folded(key) {
                "type" if value.get() == "null" => {}
                // One that is said twice, or in another case, is the provider's to choose.
                "type" => {
                    has_type = true;
                    if !(self.known.has_shell && is_local) {
                        self.tool_type(value)?;
                    }
                }
                // Of a namespace.
                "tools" => self.tools("tools", value)?,
                "name" | "function" => has_name = true,
                _ => {}
            }
            let key = squashed(key);
            if let Some((_, name)) = HOSTED.iter().find(|(hosted, _)| *hosted == key) {
                has_type = true;
                self.allow(name)?;
            }
        }
        if has_type || has_name {
            return Ok(());
        }
        if self.llm.provider_tools.iter().any(|entry| entry == "*") {
            return Ok(());
        }
        // Servers that pass requests on may know it by its one key.
        Err("a tool has neither a type nor a name: it may be one that the provider runs".to_owned())
    }

    fn tool_type(&self, value: &RawValue) -> Result<(), String> {
        match text(value) {
            Some(kind) if self.is_client_s(&kind) => Ok(()),
            Some(kind) => self.allow(&kind),
            None => self.allow(value.get()),
        }
    }

    /// What `tool_choice` has is a name, or what `tools` has as well; some servers know tools of their own by it.
    fn choice(&self, value: &RawValue, depth: usize) -> Result<(), String> {
        match first(value) {
            _ if depth > DEEPEST => Err(too_deep()),
            b'[' => items(value)?.into_iter().try_for_each(|item| self.choice(item, depth + 1)),
            b'{' => fields(value)?.iter().try_for_each(|(key, value)| match &*folded(key) {
                "type" if text(value).is_some_and(|kind| CHOICES.contains(&kind.as_str())) => Ok(()),
                "type" => self.tool_type(value),
                _ => self.choice(value, depth + 1),
            }),
            _ => Ok(()),
        }
    }

    /// Messages, blocks and whatever may have some in it.
    fn content(&self, value: &RawValue, depth: usize) -> Result<(), String> {
        match first(value) {
            b'[' | b'{' if depth > DEEPEST => Err(too_deep()),
            b'[' => items(value)?.into_iter().try_for_each(|item| self.content(item, depth + 1)),
            b'{' => self.object(&fields(value)?, depth),
            _ => Ok(()),
        }
    }

    fn object(&self, fields: &[(String, &RawValue)], depth: usize) -> Result<(), String> {
        let kinds: Vec<Option<String>> =
            fields.iter().filter(|(key, _)| folded(key) == "type").map(|(_, value)| text(value)).collect();
        let is = |name: &str| kinds.iter().any(|kind| kind.as_deref() == Some(name));
        // Of two types either may count.
        let is_call = kinds.len() == 1 && CALLS.iter().any(|call| is(call));
        if is("mcp_tool_use") {
            self.allow("mcp")?;
        }
        for (key, value) in fields {
            if self.known.is_googles && self.is_googles_part(key, value, depth)? {
                continue;
            }
            let name = folded(key);
            match &*name {
                "input" if is_call => {}
                // What a call of OpenAI's has, which is a text.
                "arguments" => {}
                "name" if is("server_tool_use") => self.called(value)?,
                "source" if matches!(first(value), b'{' | b'[') => self.source(value, depth + 1)?,
                "url" | "uri" if kinds.iter().flatten().any(|kind| is_media(kind)) => {
                    self.address(value, depth + 1)?;
                }
                // Some servers take an address in place of what it leads to.
                key if MEDIA.contains(&key) && !is("text") => self.media(value, depth + 1)?,
                "file_id" | "file_ids" if value.get() != "null" => self.allow(FILE)?,
                _ if name.ends_with("_url") || name.ends_with("_uri") => self.address(value, depth + 1)?,
                _ => self.content(value, depth + 1)?,
            }
        }
        Ok(())
    }

    /// A tool that the provider ran, or would go on with: its name has no date.
    fn called(&self, name: &RawValue) -> Result<(), String> {
        let name = text(name).unwrap_or_default();
        // Parts of one tool.
        let name = if name.ends_with("_code_execution") { "code_execution" } else { &name };
        let is_named = |entry: &String| begins(entry, name);
        if self.is_client_s(name) || self.llm.provider_tools.iter().any(is_named) {
            return Ok(());
        }
        self.allow(name)
    }

    /// An image or the like, or several.
    fn media(&self, value: &RawValue, depth: usize) -> Result<(), String> {
        match first(value) {
            b'"' if text(value).is_some_and(|text| is_elsewhere(&text)) => self.allow(URL),
            b'[' if depth <= DEEPEST => {
                items(value)?.into_iter().try_for_each(|item| self.media(item, depth + 1))
            }
            _ => self.content(value, depth),
        }
    }

    /// Where a block's content is: in the request, or elsewhere.
    fn source(&self, source: &RawValue, depth: usize) -> Result<(), String> {
        if first(source) != b'{' {
            let items = if depth > DEEPEST { return Err(too_deep()) } else { items(source)? };
            return items.into_iter().try_for_each(|item| match first(item) {
                b'{' | b'[' => self.source(item, depth + 1),
                _ => Ok(()),
            });
        }
        let fields = fields(source)?;
        for (key, value) in &fields {
            match &*folded(key) {
                "type" => match text(value) {
                    Some(kind) if INLINE.contains(&kind.as_str()) => {}
                    Some(kind) if kind == "file" => self.allow(FILE)?,
                    Some(kind) => self.allow(&kind)?,
                    None => self.allow(URL)?,
                },
                "url" | "uri" if value.get() != "null" => self.allow(URL)?,
                _ => {}
            }
        }
        self.object(&fields, depth)
    }

    /// What is at `image_url` and the like: content in the address itself, or an address to fetch.
    fn address(&self, value: &RawValue, depth: usize) -> Result<(), String> {
        match first(value) {
            _ if depth > DEEPEST => Err(too_deep()),
            b'"' if text(value).is_some_and(|address| is_data(&address)) => Ok(()),
            b'"' => self.allow(URL),
            b'[' => items(value)?.into_iter().try_for_each(|item| self.address(item, depth + 1)),
            b'{' => fields(value)?.iter().try_for_each(|(key, value)| match &*folded(key) {
                "url" | "uri" => self.address(value, depth + 1),
                _ => self.object(&[(key.clone(), *value)], depth + 1),
            }),
            _ => Ok(()),
        }
    }
}

/// Whether a tool is a shell of the client's, however it is read.
fn is_local_shell(tool: &[(String, &RawValue)]) -> bool {
    let only = |object: &[(String, &RawValue)], name: &str| {
        let mut found =
            object.iter().filter(|(key, _)| folded(key) == name).map(|(_, value)| (*value).to_owned());
        found.next().filter(|_| found.next().is_none())
    };
    let is = |value: Option<Box<RawValue>>, wanted: &str| {
        value.and_then(|value| text(&value)).is_some_and(|found| found == wanted)
    };
    let environment = only(tool, "environment").filter(|value| first(value) == b'{');
    let is_local = environment
        .is_some_and(|value| fields(&value).is_ok_and(|fields| is(only(&fields, "type"), "local")));
    is(only(tool, "type"), "shell") && is_local
}

/// Whether a name is an entry's with something behind it: `web_search_20250305` of `web_search`, `openrouter:web` of
/// `openrouter`.
fn begins(name: &str, entry: &str) -> bool {
    name.strip_prefix(entry).is_some_and(|rest| rest.starts_with(['_', ':']))
}

/// Whether an address has its content in itself.
fn is_data(address: &str) -> bool {
    address.get(..5).is_some_and(|scheme| scheme.eq_ignore_ascii_case("data:"))
}

/// Whether a text is an address with a scheme, and not the content itself.
fn is_elsewhere(text: &str) -> bool {
    let scheme = text.trim_start().split_once("://").map(|(scheme, _)| scheme);
    scheme.is_some_and(|scheme| scheme.len() < 16 && scheme.bytes().all(|byte| byte.is_ascii_alphanumeric()))
}

/// Whether blocks of a type are of something that is no text.
fn is_media(kind: &str) -> bool {
    let kind = kind.strip_prefix("input_").unwrap_or(kind);
    ["image", "document", "video", "audio", "file", "media"].iter().any(|media| kind.starts_with(media))
}

/// The first byte of a value: which kind of JSON it is.
fn first(value: &RawValue) -> u8 {
    value.get().bytes().next().unwrap_or_default()
}

/// A text; none: it is none, or one that parsers read differently.
fn text(value: &RawValue) -> Option<String> {
    serde_json::from_str(value.get()).ok()
}

fn items(list: &RawValue) -> Result<Vec<&RawValue>, String> {
    serde_json::from_str(list.get()).map_err(|_| unread())
}

fn fields(object: &RawValue) -> Result<Vec<(String, &RawValue)>, String> {
    serde_json::from_str(object.get()).map(|Fields(fields)| fields).map_err(|_| unread())
}

fn unread() -> String {
    "the request has an object that cannot be read in one way only".to_owned()
}

fn too_deep() -> String {
    format!("the request's content is nested more than {DEEPEST} deep")
}

#[cfg(test)]
mod tests;
