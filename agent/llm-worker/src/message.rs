//! Messages of a conversation, as the socket's protocol and the log have them.
//!
//! A block of content keeps the bytes it came with: what we do not know passes through, and a signature over a thinking
//! block stays valid. Line ends outside strings are made spaces, so that any message is one line of the log.

use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error as _};
use serde_json::value::RawValue;
use std::borrow::Cow;

/// Who speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// A human, or whoever sends in a human's place.
    User,
    /// The model.
    Assistant,
    /// A tool's result.
    Tool,
}

/// One message.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Message {
    /// Who speaks.
    pub role: Role,
    /// What is said; of the model also its thinking and blocks of kinds that we do not know.
    pub content: Vec<Block>,
    /// Tools that the model wants called.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tool_calls: Vec<ToolCall>,
    /// The call that a tool's message answers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tool_call_id: Option<String>,
    /// Its tool, where it is known: the log has that with the call.
    #[serde(skip)]
    pub tool_name: Option<String>,
    /// Whether the tool failed.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_error: bool,
}

impl Message {
    /// A tool's message of one text.
    pub(crate) fn tool_text(call: &str, text: &str, is_error: bool) -> Self {
        Self {
            role: Role::Tool,
            content: vec![Block::text(text)],
            tool_calls: Vec::new(),
            tool_call_id: Some(call.to_owned()),
            tool_name: None,
            is_error,
        }
    }
}

/// A tool that the model wants called.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct ToolCall {
    /// Unique in the conversation: the provider's id, or one that replaces it.
    pub id: String,
    /// The tool.
    pub name: String,
    /// Its arguments, a JSON object as the provider wrote it.
    #[serde(deserialize_with = "one_line")]
    pub input: Box<RawValue>,
}

/// One block of content.
#[derive(Debug, Clone)]
pub struct Block {
    raw: Box<RawValue>,
    kind: Kind,
}

/// What a block is, as far as we need to know.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Kind {
    /// `text`.
    Text(String),
    /// `image`, `image_url`.
    Image(Image),
    /// `tool_use`, where its place among other blocks matters: its id.
    ToolUse(String),
    /// Anything else, thinking included.
    Other(String),
}

/// Where an image is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Image {
    /// In the message, base64.
    Data {
        /// `image/png` and the like.
        media_type: String,
        /// Base64.
        data: String,
    },
    /// At an address.
    Url(String),
}

impl Block {
    /// A text.
    pub fn text(text: &str) -> Self {
        #[derive(Serialize)]
        struct Text<'a> {
            r#type: &'a str,
            text: &'a str,
        }
        let raw = raw(&Text { r#type: "text", text });
        Self { raw, kind: Kind::Text(text.to_owned()) }
    }

    /// From JSON.
    ///
    /// # Errors
    /// Not an object with a `type`, or one of a known type without its fields.
    pub fn parse(json: Box<RawValue>) -> Result<Self, serde_json::Error> {
        let raw = on_one_line(json);
        let kind = kind(serde_json::from_str(raw.get())?)?;
        Ok(Self { raw, kind })
    }

    /// Its JSON.
    pub fn raw(&self) -> &RawValue {
        &self.raw
    }

    /// What it is.
    pub fn kind(&self) -> &Kind {
        &self.kind
    }

    /// Whether a runtime is told of it: text and images. The rest is between us and the provider.
    pub(crate) fn is_public(&self) -> bool {
        matches!(self.kind, Kind::Text(_) | Kind::Image(_))
    }
}

impl Serialize for Block {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.raw.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Block {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Self::parse(Box::deserialize(deserializer)?).map_err(D::Error::custom)
    }
}

/// The fields of a block that we look at, under all the names that they go by: ours, Anthropic's, OpenAI's and MCP's.
#[derive(Deserialize)]
struct Fields<'a> {
    #[serde(borrow)]
    r#type: Cow<'a, str>,
    text: Option<String>,
    id: Option<String>,
    data: Option<String>,
    #[serde(alias = "mimeType", alias = "mime_type")]
    media_type: Option<String>,
    source: Option<Source>,
    #[serde(borrow)]
    image_url: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct Source {
    media_type: Option<String>,
    data: Option<String>,
    url: Option<String>,
}

#[derive(Deserialize)]
struct ImageUrl {
    url: String,
}

fn kind(fields: Fields<'_>) -> Result<Kind, serde_json::Error> {
    let missing =
        |what: &str| serde_json::Error::custom(format!("a block of type {} without {what}", fields.r#type));
    Ok(match fields.r#type.as_ref() {
        "text" => Kind::Text(fields.text.ok_or_else(|| missing("its text"))?),
        "image" => {
            let image = match (fields.source, fields.media_type, fields.data) {
                (Some(Source { url: Some(url), .. }), ..) => Image::Url(url),
                (Some(Source { media_type: Some(media_type), data: Some(data), .. }), ..)
                | (None, Some(media_type), Some(data)) => Image::Data { media_type, data },
                _ => return Err(missing("a source, or a media_type and data")),
            };
            Kind::Image(image)
        }
        "image_url" => {
            let url = fields.image_url.ok_or_else(|| missing("its image_url"))?;
            Kind::Image(from_url(serde_json::from_str::<ImageUrl>(url.get())?.url))
        }
        "tool_use" => Kind::ToolUse(fields.id.ok_or_else(|| missing("its id"))?),
        other => Kind::Other(other.to_owned()),
    })
}

/// `data:image/png;base64,...` is an image in the message.
fn from_url(url: String) -> Image {
    let data = url.strip_prefix("data:").and_then(|rest| rest.split_once(";base64,"));
    match data {
        Some((media_type, data)) => Image::Data { media_type: media_type.to_owned(), data: data.to_owned() },
        None => Image::Url(url),
    }
}

/// JSON of what always has one.
pub fn raw(value: &impl Serialize) -> Box<RawValue> {
    serde_json::value::to_raw_value(value).unwrap_or_default()
}

fn one_line<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Box<RawValue>, D::Error> {
    Box::deserialize(deserializer).map(on_one_line)
}

/// Line ends can only stand between JSON's tokens: in a string they are escaped.
fn on_one_line(json: Box<RawValue>) -> Box<RawValue> {
    if !json.get().contains(['\n', '\r']) {
        return json;
    }
    RawValue::from_string(json.get().replace(['\n', '\r'], " ")).unwrap_or(json)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn block(json: &str) -> Result<Block, serde_json::Error> {
        serde_json::from_str(json)
    }

    #[test]
    fn unknown_blocks_and_fields_pass_through_as_they_are() {
        for json in [
            r#"{"type":"thinking","thinking":"hm","signature":"c2ln=="}"#,
            r#"{"type":"server_tool_use","id":"s1","n":1.10,"deep":[[[{}]]]}"#,
            r#"{"type":"text","text":"\u00e9","citations":[1]}"#,
        ] {
            assert_eq!(serde_json::to_string(&block(json).unwrap()).unwrap(), json);
        }
        assert_eq!(block(r#"{"type":"text","text":"\u00e9"}"#).unwrap().kind(), &Kind::Text("é".into()));
        assert!(!block(r#"{"type":"thinking"}"#).unwrap().is_public());
    }

    #[test]
    fn a_message_is_one_line_however_it_was_laid_out() {
        let json = "{\"role\":\"user\",\"content\":[{\n\"type\":\r\n\"text\",\"text\":\"a\\nb\"}]}";
        let message: Message = serde_json::from_str(json).unwrap();
        let line = serde_json::to_string(&message).unwrap();
        assert!(!line.contains(['\n', '\r']), "{line}");
        assert_eq!(message.content[0].kind(), &Kind::Text("a\nb".into()));
    }

    #[test]
    fn an_image_is_known_in_every_form() {
        let png = Image::Data { media_type: "image/png".into(), data: "AAA=".into() };
        for json in [
            r#"{"type":"image","media_type":"image/png","data":"AAA="}"#,
            r#"{"type":"image","mimeType":"image/png","data":"AAA="}"#,
            r#"{"type":"image","source":{"type":"base64","media_type":"image/png","data":"AAA="}}"#,
            r#"{"type":"image_url","image_url":{"url":"data:image/png;base64,AAA="}}"#,
        ] {
            assert_eq!(block(json).unwrap().kind(), &Kind::Image(png.clone()), "{json}");
        }
        let url = r#"{"type":"image","source":{"type":"url","url":"https://example.org/a.png"}}"#;
        assert_eq!(block(url).unwrap().kind(), &Kind::Image(Image::Url("https://example.org/a.png".into())));
    }

    #[test]
    fn what_is_no_block_is_refused() {
        for json in [r#""text""#, "{}", r#"{"type":"text"}"#, r#"{"type":"image"}"#, r#"{"type":7}"#, "null"]
        {
            assert!(block(json).is_err(), "{json}");
        }
    }
}
