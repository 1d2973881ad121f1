//! A body as text: HTML as Markdown, text and JSON as they are, anything else by name.

use super::{body::Read, html::HtmlReader};
use encoding_rs::{Encoding, UTF_8};
use serde::{Deserialize, Serialize};
use std::time::Duration;
use url::Url;

/// How far into a page its encoding is looked for: the HTML standard's 1024 bytes (section 13.2.3.2).
const ENCODING_WITHIN: usize = 1024;

/// Why a page could not be read.
#[derive(Debug, thiserror::Error)]
pub enum PageError {
    /// It would have taken too long.
    #[error("the time was up before any text was read out of its HTML")]
    Slow,
    /// No thread to read it in.
    #[error("no thread could be started for it")]
    Thread(#[source] std::io::Error),
    /// No process to read it in.
    #[error("the process that reads HTML cannot be reached")]
    Process(#[source] std::io::Error),
    /// That process ended over it.
    #[error(
        "the process that reads HTML ended over it: it takes more memory or time than a page may, or broke the reader"
    )]
    Ended,
    /// The reader gave up.
    #[error("the HTML reader failed on it: that is a bug, please report the page")]
    Failed,
}

/// A page as text.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Page {
    /// What it calls itself.
    pub title: Option<String>,
    /// Its text.
    pub markdown: String,
    /// What of the page is missing in the text, other than what was never read.
    pub cut: Option<String>,
}

/// What a body is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Html,
    Text,
    Binary,
}

/// The media type, without parameters, in lower case (RFC 9110 section 8.3.1).
fn essence(content_type: &str) -> String {
    content_type.split(';').next().unwrap_or_default().trim().to_ascii_lowercase()
}

/// What a body is, by its declared type; by its first bytes where none is declared.
pub(super) fn kind(content_type: Option<&str>, bytes: &[u8]) -> Kind {
    let start = &bytes[..bytes.len().min(ENCODING_WITHIN)];
    let essence = essence(content_type.unwrap_or_default());
    let (kind, subtype) = essence.split_once('/').unwrap_or_default();
    match (kind, subtype) {
        ("text", "html") | ("application", "xhtml+xml") => Kind::Html,
        ("text", _) if start.contains(&0) && bom(start).is_none() => Kind::Binary,
        ("text", _) => Kind::Text,
        (
            "application",
            "json" | "xml" | "javascript" | "ecmascript" | "yaml" | "x-yaml" | "toml" | "x-ndjson" | "x-sh",
        ) => Kind::Text,
        (_, subtype)
            if subtype.ends_with("+json") || subtype.ends_with("+xml") || subtype.ends_with("+yaml") =>
        {
            Kind::Text
        }
        ("" | "unknown", _) => guess(start),
        _ => Kind::Binary,
    }
}

fn guess(start: &[u8]) -> Kind {
    let text = start.trim_ascii_start().to_ascii_lowercase();
    if text.starts_with(b"<!doctype html") || text.starts_with(b"<html") {
        return Kind::Html;
    }
    // A character may be cut at the end.
    let is_text = match std::str::from_utf8(start) {
        Ok(_) => true,
        Err(error) => error.error_len().is_none(),
    };
    if is_text && !start.contains(&0) { Kind::Text } else { Kind::Binary }
}

/// The text of a body.
pub(super) fn text(content_type: Option<&str>, bytes: &[u8], is_html: bool) -> String {
    let start = &bytes[..bytes.len().min(ENCODING_WITHIN)];
    let told = content_type.and_then(|told| after_charset(told.as_bytes()));
    let found = || is_html.then(|| after_charset(start)).flatten();
    let encoding = told.or_else(found).unwrap_or(UTF_8);
    // The byte order mark beats both, as in browsers.
    encoding.decode(bytes).0.into_owned()
}

fn bom(start: &[u8]) -> Option<&'static Encoding> {
    Encoding::for_bom(start).map(|(encoding, _)| encoding)
}

/// The encoding that the first `charset=` names: of a content type, or of a `meta` element.
fn after_charset(text: &[u8]) -> Option<&'static Encoding> {
    let text = text.to_ascii_lowercase();
    let at = text.windows(7).position(|window| window == b"charset")? + 7;
    let rest = text[at..].trim_ascii_start().strip_prefix(b"=")?.trim_ascii_start();
    let rest = rest.strip_prefix(b"\"").or_else(|| rest.strip_prefix(b"'")).unwrap_or(rest);
    let end =
        rest.iter().position(|b| !(b.is_ascii_alphanumeric() || b"-_:.".contains(b))).unwrap_or(rest.len());
    Encoding::for_label(&rest[..end])
}

/// Reads a body as text. HTML takes a while: `time` at most.
pub(super) async fn read(
    reader: &dyn HtmlReader,
    content_type: Option<&str>,
    body: Read,
    url: &Url,
    time: Duration,
) -> Result<Page, PageError> {
    match kind(content_type, &body.bytes) {
        Kind::Binary => {
            let what = content_type.map_or_else(|| "data of an unknown type".to_owned(), essence);
            let more = if body.over { "more than " } else { "" };
            let markdown = match body.bytes.len() {
                0 => String::new(),
                len => format!("[binary: {what}, {more}{len} bytes]"),
            };
            Ok(Page { markdown, ..Page::default() })
        }
        Kind::Text => Ok(Page { markdown: text(content_type, &body.bytes, false), ..Page::default() }),
        Kind::Html => reader.read(text(content_type, &body.bytes, true), url.clone(), time).await,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tells_text_from_what_is_not() {
        for (content_type, bytes, is) in [
            (Some("text/html; charset=utf-8"), &b"x"[..], Kind::Html),
            (Some("TEXT/HTML"), b"x", Kind::Html),
            (Some("application/xhtml+xml"), b"x", Kind::Html),
            (Some("text/plain"), b"<html>", Kind::Text),
            (Some("text/plain"), b"a\0b", Kind::Binary),
            (Some("text/plain"), b"\xff\xfea\0b\0", Kind::Text),
            (Some("application/json"), b"{}", Kind::Text),
            (Some("application/problem+json"), b"{}", Kind::Text),
            (Some("image/svg+xml"), b"<svg/>", Kind::Text),
            (Some("image/png"), b"abc", Kind::Binary),
            (Some("application/octet-stream"), b"abc", Kind::Binary),
            (None, b" \n<!DOCTYPE html><p>", Kind::Html),
            (None, b"plain", Kind::Text),
            (None, b"\x7fELF\x02\x01\0", Kind::Binary),
            (None, b"\xff\xd8\xff\xe0", Kind::Binary),
            (None, b"", Kind::Text),
            (Some(""), b"plain", Kind::Text),
            (Some("nonsense"), b"plain", Kind::Text),
        ] {
            assert_eq!(kind(content_type, bytes), is, "{content_type:?} {bytes:?}");
        }
    }

    #[test]
    fn reads_the_encodings_that_pages_have() {
        for (content_type, bytes, is_html, said) in [
            (Some("text/html; charset=iso-8859-1"), &b"caf\xe9"[..], true, "caf\u{e9}"),
            (Some("text/html; charset=\"Shift_JIS\""), b"\x83\x65", true, "\u{30c6}"),
            (Some("text/html"), b"<meta charset='latin1'>\xe9", true, "<meta charset='latin1'>\u{e9}"),
            (
                Some("text/html; charset=utf-8"),
                b"<meta charset=latin1>\xc3\xa9",
                true,
                "<meta charset=latin1>\u{e9}",
            ),
            (Some("text/plain"), b"charset=latin1 \xc3\xa9", false, "charset=latin1 \u{e9}"),
            (Some("text/plain"), b"\xff\xfea\0", false, "a"),
            (Some("text/plain; charset=nonsense"), b"a\xffb", false, "a\u{fffd}b"),
            (None, b"\xef\xbb\xbfa", false, "a"),
        ] {
            assert_eq!(text(content_type, bytes, is_html), said);
        }
    }
}
