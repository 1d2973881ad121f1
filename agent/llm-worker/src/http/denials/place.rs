//! Where something is added to the results of tools in a client's request: nothing else of it is touched, and no byte of it is
//! written anew. Pure.

use crate::{
    http::intents::ToolResult,
    message::raw,
    provider::{Wire, endpoint},
};
use serde_json::{json, value::RawValue};
use std::collections::BTreeMap;

/// The key of what is added to an object.
const KEY: &str = "ringfence";

/// What a tool's result can take more of, at the end of this value.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Room<'a> {
    /// A text.
    Text(&'a RawValue),
    /// A list of blocks, in which a text's `type` is the second.
    Blocks(&'a RawValue, &'static str),
    /// An object.
    Object(&'a RawValue),
}

impl<'a> Room<'a> {
    /// That of a text or a list of blocks; anything else has none.
    pub(crate) fn of(value: &'a RawValue, block: &'static str) -> Option<Self> {
        match value.get().as_bytes().first()? {
            b'"' => Some(Self::Text(value)),
            b'[' => Some(Self::Blocks(value, block)),
            _ => None,
        }
    }

    /// The same of an object.
    pub(crate) fn of_object(value: &'a RawValue) -> Option<Self> {
        value.get().starts_with('{').then_some(Self::Object(value))
    }

    fn value(&self) -> &'a str {
        let (Self::Text(value) | Self::Blocks(value, _) | Self::Object(value)) = self;
        value.get()
    }

    /// What comes before the value's last byte, which closes it. `None`: the object cannot be read.
    fn addition(&self, said: &str) -> Option<String> {
        let separator = |value: &RawValue| {
            let inner = value.get().get(1..value.get().len() - 1).unwrap_or_default();
            if inner.trim().is_empty() { "" } else { "," }
        };
        match self {
            Self::Text(_) => {
                let text = raw(&format!("\n\n{said}"));
                text.get().get(1..text.get().len() - 1).map(str::to_owned)
            }
            Self::Blocks(value, block) => {
                Some(format!("{}{}", separator(value), json!({ "type": block, "text": said })))
            }
            Self::Object(value) => {
                let fields: BTreeMap<String, &RawValue> = serde_json::from_str(value.get()).ok()?;
                let mut key = KEY.to_owned();
                while fields.contains_key(&key) {
                    key.push('_');
                }
                Some(format!("{}{}:{}", separator(value), raw(&key).get(), raw(&said).get()))
            }
        }
    }
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
        let Some(addition) = room.addition(said) else { continue };
        // Where it closes. The value is a part of the body.
        let from = room.value().as_ptr().addr().checked_sub(body.as_ptr().addr())?;
        let at = (from + room.value().len()).checked_sub(1)?;
        out.extend_from_slice(body.get(done..at)?);
        out.extend_from_slice(addition.as_bytes());
        done = at;
    }
    if done == 0 {
        return None;
    }
    out.extend_from_slice(body.get(done..)?);
    Some(out)
}
