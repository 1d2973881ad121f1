//! A tool's result as a server gives it, to blocks that every provider takes. Pure.
//!
//! Providers know text and images in a result. What else MCP has is said in words: nothing is left out silently.

use crate::{message::Block, remote::RemoteResult};
use serde_json::{Value, value::RawValue};

/// Most bytes of a result.
const MAX_RESULT: usize = 8 << 20;

/// From a result's `content`, `structuredContent` and `isError`.
pub(super) fn from(content: &Value, structured: Option<&Value>, is_error: bool) -> RemoteResult {
    let mut blocks: Vec<Block> = content.as_array().into_iter().flatten().map(block).collect();
    // Servers are to say the structured content in words, too; not all do.
    if let (true, Some(structured)) = (blocks.is_empty(), structured) {
        blocks.push(Block::text(&structured.to_string()));
    }
    let size: usize = blocks.iter().map(|block| block.raw().get().len()).sum();
    if size > MAX_RESULT {
        let why = format!("the result has {size} bytes, and at most {MAX_RESULT} are taken; ask for less");
        return RemoteResult { content: vec![Block::text(&why)], is_error: true };
    }
    RemoteResult { content: blocks, is_error }
}

/// From a whole result that the library could not read.
pub(super) fn raw(result: &Value) -> Option<RemoteResult> {
    let content = result.get("content").filter(|content| content.is_array())?;
    let is_error = result.get("isError").and_then(Value::as_bool).unwrap_or(false);
    Some(from(content, result.get("structuredContent"), is_error))
}

fn block(block: &Value) -> Block {
    let text = |key: &str| block.get(key).and_then(Value::as_str).unwrap_or_default();
    match text("type") {
        "text" => Block::text(text("text")),
        kind @ ("image" | "audio") => image(text("mimeType"), text("data")).unwrap_or_else(|| {
            let bytes = bytes_of(text("data"));
            Block::text(&format!("[{kind}, {}, {bytes} bytes: it cannot be shown]", text("mimeType")))
        }),
        "resource_link" => {
            let parts = [text("name"), text("description"), text("mimeType"), text("uri")];
            let said: Vec<&str> = parts.into_iter().filter(|part| !part.is_empty()).collect();
            Block::text(&format!("[link to a resource: {}]", said.join(", ")))
        }
        "resource" => resource(block.get("resource").unwrap_or(&Value::Null)),
        _ => as_json(block),
    }
}

fn resource(resource: &Value) -> Block {
    let text = |key: &str| resource.get(key).and_then(Value::as_str);
    let (uri, kind) = (text("uri").unwrap_or_default(), text("mimeType").unwrap_or("unknown type"));
    match (text("text"), text("blob")) {
        (Some(said), _) => Block::text(&format!("[resource {uri}, {kind}]\n{said}")),
        (None, Some(blob)) => image(kind, blob).unwrap_or_else(|| {
            Block::text(&format!("[resource {uri}, {kind}, {} bytes: it cannot be shown]", bytes_of(blob)))
        }),
        (None, None) => as_json(resource),
    }
}

/// The kinds that providers take; another would have them refuse the whole conversation.
fn image(kind: &str, data: &str) -> Option<Block> {
    if !matches!(kind, "image/png" | "image/jpeg" | "image/gif" | "image/webp") || data.is_empty() {
        return None;
    }
    let block = serde_json::json!({ "type": "image", "media_type": kind, "data": data });
    Block::parse(RawValue::from_string(block.to_string()).ok()?).ok()
}

fn as_json(value: &Value) -> Block {
    Block::text(&value.to_string())
}

/// Of base64.
fn bytes_of(data: &str) -> usize {
    data.trim_end_matches('=').len() * 3 / 4
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::{Image, Kind};
    use proptest::prelude::*;
    use serde_json::json;

    fn kinds(content: Value) -> Vec<Kind> {
        from(&content, None, false).content.iter().map(|block| block.kind().clone()).collect()
    }

    #[test]
    fn every_block_is_there_as_text_or_image() {
        let text = |said: &str| Kind::Text(said.to_owned());
        let png = Kind::Image(Image::Data { media_type: "image/png".into(), data: "AAAA".into() });
        let all = kinds(json!([
            { "type": "text", "text": "a", "annotations": { "audience": ["user"] } },
            { "type": "image", "data": "AAAA", "mimeType": "image/png" },
            { "type": "image", "data": "AAAA", "mimeType": "image/tiff" },
            { "type": "audio", "data": "AAAA", "mimeType": "audio/wav" },
            { "type": "resource_link", "uri": "file:///x", "name": "x" },
            { "type": "resource", "resource": { "uri": "file:///t", "mimeType": "text/plain", "text": "said" } },
            { "type": "resource", "resource": { "uri": "file:///p", "mimeType": "image/png", "blob": "AAAA" } },
            { "type": "resource", "resource": { "uri": "file:///z", "mimeType": "application/zip", "blob": "AAAA" } },
            { "type": "hologram", "depth": 3 },
            7,
        ]));
        assert_eq!(
            all,
            [
                text("a"),
                png.clone(),
                text("[image, image/tiff, 3 bytes: it cannot be shown]"),
                text("[audio, audio/wav, 3 bytes: it cannot be shown]"),
                text("[link to a resource: x, file:///x]"),
                text("[resource file:///t, text/plain]\nsaid"),
                png,
                text("[resource file:///z, application/zip, 3 bytes: it cannot be shown]"),
                text(r#"{"depth":3,"type":"hologram"}"#),
                text("7"),
            ]
        );
    }

    #[test]
    fn structured_content_stands_in_for_words() {
        let result = from(&json!([]), Some(&json!({ "a": 1 })), true);
        assert_eq!(result.content[0].kind(), &Kind::Text(r#"{"a":1}"#.into()));
        assert!(result.is_error);
        let result = raw(&json!({ "content": [{ "type": "hologram" }], "isError": true })).unwrap();
        assert!(result.is_error && result.content.len() == 1);
        assert!(raw(&json!({ "content": "text" })).is_none());
    }

    #[test]
    fn a_result_without_end_is_an_error() {
        let result = from(&json!([{ "type": "text", "text": "x".repeat(MAX_RESULT) }]), None, false);
        assert!(result.is_error && result.content[0].raw().get().len() < 200);
    }

    fn any_json() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<f64>().prop_map(Value::from),
            ".*".prop_map(Value::from),
            prop_oneof!["text", "image", "audio", "resource", "resource_link"].prop_map(Value::from),
        ];
        let key = prop_oneof!["type", "text", "data", "mimeType", "resource", "uri", "blob", ".*"];
        leaf.prop_recursive(4, 32, 6, move |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..6).prop_map(Value::from),
                prop::collection::vec((key.clone(), inner), 0..6)
                    .prop_map(|pairs| Value::Object(pairs.into_iter().collect())),
            ]
        })
    }

    proptest! {
        #[test]
        fn whatever_a_server_says_becomes_blocks_that_providers_take(content in any_json()) {
            let result = from(&content, None, false);
            prop_assert_eq!(result.content.len(), content.as_array().map_or(0, Vec::len));
            prop_assert!(result.content.iter().all(|block| matches!(block.kind(), Kind::Text(_) | Kind::Image(_))));
            raw(&content);
        }
    }
}
