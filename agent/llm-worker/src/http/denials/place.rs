//! Where something is added to the results of tools in a client's request: nothing else of it is touched, and no byte of it is
//! written anew, but a null where a result is to be. Pure.

use crate::{
    http::{intents::ToolResult, request::every_named},
    message::raw,
    provider::{Wire, endpoint},
};
use serde_json::{json, value::RawValue};
use std::{collections::BTreeMap, ops::Range};

/// The key of what is added to an object.
const KEY: &str = "ringfence";
/// Longest text that is added to, bytes as it is written: OpenAI refuses one of more than 10 MiB.
const LONGEST_TEXT: usize = (10 << 20) - (64 << 10);

/// What a tool's result can take more of, and where.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Room<'a> {
    /// At the end of a text.
    Text(&'a RawValue),
    /// At the end of a text that is the JSON of an object, and stays one.
    Json(&'a RawValue),
    /// At the end of a list of blocks, in which a text's `type` is the second.
    Blocks(&'a RawValue, &'static str),
    /// At the end of an object.
    Object(&'a RawValue),
    /// In place of a null.
    Null(&'a RawValue, Form),
    /// At the end of an object that lacks this field.
    Missing(&'a RawValue, &'static str, Form),
}

/// What a result is that has none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Form {
    /// A text.
    Text,
    /// An object.
    Object,
}

impl Form {
    /// JSON of a result in which nothing else is said.
    fn alone(self, said: &str) -> String {
        match self {
            Self::Text => json!(said).to_string(),
            Self::Object => json!({ KEY: said }).to_string(),
        }
    }
}

impl<'a> Room<'a> {
    /// That of a text or a list of blocks; anything else has none.
    pub(crate) fn of(value: &'a RawValue, block: &'static str) -> Option<Self> {
        match value.get().as_bytes().first()? {
            b'[' => Some(Self::Blocks(value, block)),
            _ => Self::of_text(value),
        }
    }

    /// That of a text alone.
    pub(crate) fn of_text(value: &'a RawValue) -> Option<Self> {
        (value.get().starts_with('"') && value.get().len() <= LONGEST_TEXT).then_some(Self::Text(value))
    }

    /// That of a text which its API has as JSON, though clients may send any: what is a list stays as it is, since nobody knows what
    /// may be in it.
    pub(crate) fn of_json(value: &'a RawValue) -> Option<Self> {
        let room = Self::of_text(value)?;
        let text: String = serde_json::from_str(value.get()).ok()?;
        let is_json = serde_json::from_str::<&RawValue>(&text).is_ok();
        match text.trim_start().as_bytes().first() {
            Some(b'{') if is_json => end_in_text(value.get()).map(|_| Self::Json(value)),
            Some(b'[') if is_json => None,
            _ => Some(room),
        }
    }

    /// The same of an object.
    pub(crate) fn of_object(value: &'a RawValue) -> Option<Self> {
        value.get().starts_with('{').then_some(Self::Object(value))
    }

    /// That of an object's field: what `of` finds in it, or where it would be. `None`: some may read another one for it.
    pub(crate) fn in_field(
        object: &'a RawValue,
        key: &'static str,
        form: Form,
        of: impl FnOnce(&'a RawValue) -> Option<Self>,
    ) -> Option<Self> {
        match every_named(object, key).ok()?.as_slice() {
            [] if object.get().starts_with('{') => Some(Self::Missing(object, key, form)),
            [(name, value)] if name == key && value.get() == "null" => Some(Self::Null(value, form)),
            [(name, value)] if name == key => of(value),
            _ => None,
        }
    }

    fn value(&self) -> &'a str {
        let (Self::Text(value)
        | Self::Json(value)
        | Self::Blocks(value, _)
        | Self::Object(value)
        | Self::Null(value, _)
        | Self::Missing(value, ..)) = self;
        value.get()
    }

    /// What of the value is replaced, which is nothing but a null, and by what. `None`: it cannot be read.
    fn change(&self, said: &str) -> Option<(Range<usize>, String)> {
        let end = self.value().len().checked_sub(1)?;
        let separator = || {
            let inner = self.value().get(1..end).unwrap_or_default();
            if inner.trim().is_empty() { "" } else { "," }
        };
        Some(match self {
            Self::Text(_) => (end..end, within_text(&format!("\n\n{said}"))?),
            Self::Json(value) => {
                let text: String = serde_json::from_str(value.get()).ok()?;
                let fields: BTreeMap<String, &RawValue> = serde_json::from_str(&text).ok()?;
                let separator = if fields.is_empty() { "" } else { "," };
                let end = end_in_text(value.get())?;
                (end..end, within_text(&format!("{separator}{}", field(&fields, said)))?)
            }
            Self::Blocks(_, block) => {
                (end..end, format!("{}{}", separator(), json!({ "type": block, "text": said })))
            }
            Self::Object(value) => {
                let fields: BTreeMap<String, &RawValue> = serde_json::from_str(value.get()).ok()?;
                (end..end, format!("{}{}", separator(), field(&fields, said)))
            }
            Self::Null(_, form) => (0..end + 1, form.alone(said)),
            Self::Missing(_, key, form) => {
                (end..end, format!("{}{}:{}", separator(), raw(key).get(), form.alone(said)))
            }
        })
    }
}

/// A field with what is said, under a key that an object does not have.
fn field(fields: &BTreeMap<String, &RawValue>, said: &str) -> String {
    let mut key = KEY.to_owned();
    while fields.contains_key(&key) {
        key.push('_');
    }
    format!("{}:{}", raw(&key).get(), raw(&said).get())
}

/// A text as it stands between a JSON text's quotes.
fn within_text(text: &str) -> Option<String> {
    raw(&text).get().strip_prefix('"')?.strip_suffix('"').map(str::to_owned)
}

/// Where a JSON text which is an object's JSON has that object's end. `None`: it is written as nobody writes it.
fn end_in_text(text: &str) -> Option<usize> {
    let mut rest = text.strip_suffix('"')?;
    // Space behind it. Behind an object nothing else ends so: neither is an escaped backslash space, nor a control character JSON.
    while let Some(less) = [" ", r"\n", r"\r", r"\t"].iter().find_map(|end| rest.strip_suffix(end)) {
        rest = less;
    }
    Some(rest.strip_suffix('}')?.len())
}

/// The results of tools in a request, in their order, and what each can take. `body` is an object; of what cannot be read there
/// is none. Only where its API has the conversation: what else has its form is for the provider to make something of.
pub(super) fn results(wire: Wire, body: &[u8]) -> Vec<(ToolResult, Room<'_>)> {
    let endpoint = endpoint(wire);
    let read = |text| serde_json::from_str::<BTreeMap<String, &RawValue>>(text).ok();
    let mut fields = std::str::from_utf8(body).ok().and_then(read).unwrap_or_default();
    if let Some(counted) = endpoint.counted().and_then(|key| fields.remove(key)) {
        fields = read(counted.get()).unwrap_or_default();
    }
    let list = fields.get(endpoint.conversation());
    let messages: Vec<&RawValue> =
        list.and_then(|list| serde_json::from_str(list.get()).ok()).unwrap_or_default();
    messages.into_iter().flat_map(|message| endpoint.rooms(message)).collect()
}

/// The request with what is said at the end of some of its results, which come in their order. As it was: nothing is.
pub(super) fn added<'a>(
    body: &'a [u8],
    said: impl IntoIterator<Item = (Room<'a>, &'a str)>,
) -> Option<Vec<u8>> {
    let mut out = Vec::new();
    let mut done = 0;
    for (room, said) in said {
        let Some((range, with)) = room.change(said) else { continue };
        // The value is a part of the body.
        let from = room.value().as_ptr().addr().checked_sub(body.as_ptr().addr())?;
        out.extend_from_slice(body.get(done..from + range.start)?);
        out.extend_from_slice(with.as_bytes());
        done = from + range.end;
    }
    if done == 0 {
        return None;
    }
    out.extend_from_slice(body.get(done..)?);
    Some(out)
}

#[cfg(test)]
mod tests;
