//! Which requests a credential goes with: rules of a method and a path, and the one reading of a request's target that they are
//! compared with. Pure.
//!
//! A target that two readers could take for different resources is none: what a rule lets through must be what the server serves.

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use std::{borrow::Cow, fmt, str::FromStr};

/// Most bytes of a rule's text.
pub const MAX_RULE: usize = 1024;

/// Requests that are meant: `GET /repos/**`.
///
/// A method in capitals, or `*` for any; a path, in whose segments `*` stands for any characters of that segment and the whole segment
/// `**` for any number of segments, none included. Neither stands for an encoded slash, backslash or percent sign. The query is not
/// compared, unless the pattern has one behind `?`: then it has to be that one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RequestRule {
    method: Option<String>,
    path: String,
    query: Option<String>,
}

/// Why a text is no rule.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NotARule {
    /// Not two words.
    #[error("it is not a method and a path with one space between them")]
    Words,
    /// Too long.
    #[error("it is longer than {MAX_RULE} bytes")]
    Long,
    /// Not a method.
    #[error("its method is neither in capitals nor `*`")]
    Method,
    /// A method that nobody is let through with.
    #[error(
        "{0} is never let through: it makes the server send back what it was sent, or go to another host"
    )]
    NeverMethod(&'static str),
    /// `**` beside other characters.
    #[error("`**` is not a whole segment of its path")]
    Stars,
    /// Not a path that a request could have.
    #[error("no request has this path: {0}")]
    Path(#[from] NotATarget),
}

/// Methods that no rule lets through.
const NEVER: [&str; 2] = ["TRACE", "CONNECT"];

impl FromStr for RequestRule {
    type Err = NotARule;

    fn from_str(text: &str) -> Result<Self, NotARule> {
        if text.len() > MAX_RULE {
            return Err(NotARule::Long);
        }
        let (method, target) = text.split_once(' ').ok_or(NotARule::Words)?;
        if target.contains(' ') {
            return Err(NotARule::Words);
        }
        if let Some(never) = NEVER.iter().find(|never| **never == method) {
            return Err(NotARule::NeverMethod(never));
        }
        let is_method = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_uppercase());
        if method != "*" && !is_method(method) {
            return Err(NotARule::Method);
        }
        let Target { path, query } = Target::read(target)?;
        if path.split('/').any(|segment| segment.contains("**") && segment != "**") {
            return Err(NotARule::Stars);
        }
        Ok(Self {
            method: (method != "*").then(|| method.to_owned()),
            path: path.into_owned(),
            query: query.map(str::to_owned),
        })
    }
}

impl fmt::Display for RequestRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.method.as_deref().unwrap_or("*"), self.path)?;
        self.query.as_ref().map_or(Ok(()), |query| write!(f, "?{query}"))
    }
}

impl Serialize for RequestRule {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for RequestRule {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Cow::<'de, str>::deserialize(deserializer)?.parse().map_err(de::Error::custom)
    }
}

impl RequestRule {
    /// Whether a request is meant.
    pub fn allows(&self, method: &str, target: &Target<'_>) -> bool {
        let is_method = match &self.method {
            Some(of) => of == method,
            None => !NEVER.iter().any(|never| never.eq_ignore_ascii_case(method)),
        };
        is_method
            && self.query.as_deref().is_none_or(|of| target.query.unwrap_or_default() == of)
            && is_path(&self.path, &target.path)
    }
}

/// Whether a path is one of a pattern's. A pattern and a path are walked once, and back to the last `**` where they part.
fn is_path(pattern: &str, path: &str) -> bool {
    let pattern: Vec<&str> = pattern.split('/').collect();
    let path: Vec<&str> = path.split('/').collect();
    let (mut of, mut at) = (0, 0);
    let mut back = None;
    loop {
        match (pattern.get(of), path.get(at)) {
            (Some(&"**"), _) => {
                back = Some((of, at));
                of += 1;
            }
            (Some(segment), Some(text)) if is_segment(segment, text) => (of, at) = (of + 1, at + 1),
            (None, None) => return true,
            _ => match back {
                // Some servers see more segments there than were compared.
                Some((stars, from)) if path.get(from).is_some_and(|skipped| !has_hidden(skipped)) => {
                    back = Some((stars, from + 1));
                    (of, at) = (stars + 1, from + 1);
                }
                _ => return false,
            },
        }
    }
}

/// The same of one segment, with `*`.
fn is_segment(pattern: &str, text: &str) -> bool {
    let (pattern, text) = (pattern.as_bytes(), text.as_bytes());
    let (mut of, mut at) = (0, 0);
    let mut back = None;
    loop {
        match (pattern.get(of), text.get(at)) {
            (Some(b'*'), _) => {
                back = Some((of, at));
                of += 1;
            }
            (Some(a), Some(b)) if a == b => (of, at) = (of + 1, at + 1),
            (None, None) => return true,
            _ => match back {
                Some((star, from)) if from < text.len() && !hides(text.get(from..).unwrap_or_default()) => {
                    back = Some((star, from + 1));
                    (of, at) = (star + 1, from + 1);
                }
                _ => return false,
            },
        }
    }
}

/// Whether a text begins with what a server could decode into the end of a segment, or into another escape.
fn hides(text: &[u8]) -> bool {
    [b"%2F", b"%5C", b"%25"].iter().any(|escape| text.starts_with(*escape))
}

/// Whether a segment has such an escape anywhere.
fn has_hidden(segment: &str) -> bool {
    segment.bytes().enumerate().any(|(at, _)| hides(segment.as_bytes().get(at..).unwrap_or_default()))
}

/// A request's target, read: the path and the query.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Target<'t> {
    /// From `/`, in the one spelling that is compared: escapes in capitals, none where none is needed.
    path: Cow<'t, str>,
    /// What is behind `?`, as it came.
    query: Option<&'t str>,
}

/// Why a target is not compared with any rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum NotATarget {
    /// Another form: `*`, `host:port`, a whole URL.
    #[error("its path does not begin with `/`")]
    NoPath,
    /// `.`, `..`, also encoded, also before `;`, also between encoded slashes.
    #[error("it has a segment `.` or `..`, which servers take out, or not")]
    Dots,
    /// `//`, also encoded.
    #[error("it has an empty segment (`//`), which servers take out, or not")]
    EmptySegment,
    /// Escapes that are no text.
    #[error("its escapes are no UTF-8")]
    Encoding,
    /// Encoded more than twice.
    #[error("it is encoded more than twice, and nobody knows how often its server decodes it")]
    Nested,
    /// `%` without two digits.
    #[error("it has a `%` without two hexadecimal digits behind it")]
    Escape,
    /// A control character, encoded.
    #[error("it has an encoded control character")]
    Control,
    /// Not a character of paths.
    #[error("it has a character that no path has (0x{0:02x})")]
    Byte(u8),
}

impl<'t> Target<'t> {
    /// Reads a target.
    ///
    /// # Errors
    /// [`NotATarget`]: two readers could take it for different resources.
    pub fn read(text: &'t str) -> Result<Self, NotATarget> {
        let (path, query) = text.split_once('?').map_or((text, None), |(path, query)| (path, Some(query)));
        if !path.starts_with('/') {
            return Err(NotATarget::NoPath);
        }
        if let Some(byte) =
            query.into_iter().flat_map(str::bytes).find(|b| !b.is_ascii_graphic() || *b == b'#')
        {
            return Err(NotATarget::Byte(byte));
        }
        let path = spelled(path)?;
        are_segments(&path)?;
        // What a server sees that decodes first and looks for segments then, or has one before it that does.
        let mut once_more = Cow::Borrowed(path.as_bytes());
        for _ in 0..DECODED {
            let Some(decoded) = decoded(&once_more) else { return Ok(Self { path, query }) };
            let text = str::from_utf8(&decoded).map_err(|_| NotATarget::Encoding)?;
            if text.bytes().any(|b| b.is_ascii_control()) {
                return Err(NotATarget::Control);
            }
            are_segments(text)?;
            once_more = Cow::Owned(decoded);
        }
        if decoded(&once_more).is_some() {
            return Err(NotATarget::Nested);
        }
        Ok(Self { path, query })
    }

    /// The path, as it is compared.
    pub fn path(&self) -> &str {
        &self.path
    }
}

/// So often a path may be encoded.
const DECODED: usize = 2;

/// Bytes without their escapes. `None`: they have none.
fn decoded(bytes: &[u8]) -> Option<Vec<u8>> {
    let mut out = Vec::with_capacity(bytes.len());
    let (mut rest, mut is_any) = (bytes, false);
    while let Some((first, behind)) = rest.split_first() {
        let digits = behind.first_chunk::<2>().and_then(|digits| str::from_utf8(digits).ok());
        let digits = digits.filter(|digits| digits.bytes().all(|b| b.is_ascii_hexdigit()));
        match digits.and_then(|digits| u8::from_str_radix(digits, 16).ok()) {
            Some(byte) if *first == b'%' => {
                out.push(byte);
                rest = behind.get(2..).unwrap_or_default();
                is_any = true;
            }
            _ => {
                out.push(*first);
                rest = behind;
            }
        }
    }
    is_any.then_some(out)
}

/// Whether no segment is one that servers take out, or not.
fn are_segments(path: &str) -> Result<(), NotATarget> {
    let mut segments = path.split(['/', '\\']).skip(1).peekable();
    while let Some(segment) = segments.next() {
        let name = segment.split(';').next().unwrap_or_default();
        if matches!(name, "." | "..") {
            return Err(NotATarget::Dots);
        }
        if segment.is_empty() && segments.peek().is_some() {
            return Err(NotATarget::EmptySegment);
        }
    }
    Ok(())
}

/// A path in one spelling (RFC 3986 section 6.2.2).
fn spelled(path: &str) -> Result<Cow<'_, str>, NotATarget> {
    let is_unreserved = |b: u8| b.is_ascii_alphanumeric() || b"-._~".contains(&b);
    if let Some(byte) = path.bytes().find(|b| !is_unreserved(*b) && !b"/%!$&'()*+,;=:@".contains(b)) {
        return Err(NotATarget::Byte(byte));
    }
    if !path.contains('%') {
        return Ok(Cow::Borrowed(path));
    }
    let mut out = String::with_capacity(path.len());
    let mut rest = path;
    while let Some((before, behind)) = rest.split_once('%') {
        out.push_str(before);
        let digits = behind.get(..2).ok_or(NotATarget::Escape)?;
        if !digits.bytes().all(|b| b.is_ascii_hexdigit()) {
            return Err(NotATarget::Escape);
        }
        let byte = u8::from_str_radix(digits, 16).map_err(|_| NotATarget::Escape)?;
        match byte {
            _ if is_unreserved(byte) => out.push(char::from(byte)),
            0..0x20 | 0x7f => return Err(NotATarget::Control),
            _ => {
                out.push('%');
                out.push_str(&digits.to_ascii_uppercase());
            }
        }
        rest = behind.get(2..).unwrap_or_default();
    }
    out.push_str(rest);
    Ok(Cow::Owned(out))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn allows(rule: &str, method: &str, target: &str) -> bool {
        let rule: RequestRule = rule.parse().unwrap_or_else(|error| panic!("{rule}: {error}"));
        let target = Target::read(target).unwrap_or_else(|error| panic!("{target}: {error}"));
        rule.allows(method, &target)
    }

    #[test]
    fn a_rule_means_its_method_and_its_path() {
        for (rule, method, target, is_allowed) in [
            ("GET /repos/**", "GET", "/repos/a/b?page=2", true),
            ("GET /repos/**", "GET", "/repos", true),
            ("GET /repos/**", "GET", "/repos/", true),
            ("GET /repos/**", "POST", "/repos/a", false),
            ("GET /repos/**", "get", "/repos/a", false),
            ("GET /repos/**", "GET", "/reposx/a", false),
            ("GET /repos/**", "GET", "/x/repos/a", false),
            ("* /a", "DELETE", "/a", true),
            ("* /a", "TRACE", "/a", false),
            ("* /a", "CONNECT", "/a", false),
            ("GET /a", "GET", "/a/", false),
            ("GET /a/", "GET", "/a/", true),
            ("GET /", "GET", "/", true),
            ("* /**", "PUT", "/", true),
            ("POST /repos/acme/*/issues", "POST", "/repos/acme/tool/issues", true),
            ("POST /repos/acme/*/issues", "POST", "/repos/acme/a/b/issues", false),
            ("POST /repos/acme/*/issues", "POST", "/repos/acme/issues", false),
            ("GET /**/raw/*.txt", "GET", "/a/b/raw/c/raw/x.y.txt", true),
            ("GET /**/raw/*.txt", "GET", "/a/b/raw/c/x.txt", false),
            ("GET /a/**/b/**/c", "GET", "/a/b/c", true),
            ("GET /a/**/b/**/c", "GET", "/a/c/b", false),
            ("GET /x*y*z", "GET", "/xyyzyz", true),
            ("GET /x*y*z", "GET", "/xyzy", false),
            ("PUT /@acme%2fpkg", "PUT", "/@acme%2Fpkg", true),
            ("PUT /@acme%2f*", "PUT", "/@acme%2fpkg", true),
            ("PUT /@acme%2f*", "PUT", "/@acme%2fa%2f@other", false),
            ("GET /repos/acme/**", "GET", "/repos/acme/x%2Fy", false),
            ("GET /repos/acme/**", "GET", "/repos/acme/a/x%5cy/b", false),
            ("GET /repos/acme/**", "GET", "/repos/acme/a/100%25", false),
            ("GET /repos/acme/**", "GET", "/repos/acme/a/x%20y", true),
            ("GET /repos/acme/**/x%2Fy", "GET", "/repos/acme/a/b/x%2fy", true),
            ("PUT /*", "PUT", "/a%2fb", false),
            ("PUT /*", "PUT", "/a%5Cb", false),
            ("PUT /*", "PUT", "/a%252fb", false),
            ("PUT /*", "PUT", "/a%20b", true),
            ("GET /a%2Db", "GET", "/a-b", true),
            ("GET /i?service=git-receive-pack", "GET", "/i?service=git-receive-pack", true),
            ("GET /i?service=git-receive-pack", "GET", "/i?service=git-upload-pack", false),
            ("GET /i?service=git-receive-pack", "GET", "/i", false),
            ("GET /i?service=git-receive-pack", "GET", "/i?service=git-receive-pack&x=1", false),
        ] {
            assert_eq!(allows(rule, method, target), is_allowed, "{rule}: {method} {target}");
        }
    }

    #[test]
    fn what_two_servers_could_read_differently_is_no_target() {
        for (target, why) in [
            ("/a/../b", NotATarget::Dots),
            ("/a/%2e%2E/b", NotATarget::Dots),
            ("/a/.%2e", NotATarget::Dots),
            ("/a/..;x=1/b", NotATarget::Dots),
            ("/./a", NotATarget::Dots),
            ("/repos/acme/x%2F..%2F..%2F..%2Fadmin", NotATarget::Dots),
            ("/repos/acme/x%5C..%5Cadmin", NotATarget::Dots),
            ("/repos/acme/x%252F..%252Fadmin", NotATarget::Dots),
            ("/repos/acme/x%252F%252e%252e%252Fadmin", NotATarget::Dots),
            ("/@acme%2f..", NotATarget::Dots),
            ("/p/acme%2F../issues", NotATarget::Dots),
            ("/a/..%3Bx/b", NotATarget::Dots),
            ("/a/..%253Bx/b", NotATarget::Dots),
            ("/a%2F%2Fb", NotATarget::EmptySegment),
            ("/a%2F/b", NotATarget::EmptySegment),
            ("/%2Fa", NotATarget::EmptySegment),
            ("/a%c0%ae", NotATarget::Encoding),
            ("/a%25c0%25ae", NotATarget::Encoding),
            ("/a%250a", NotATarget::Control),
            ("/a%25252e", NotATarget::Nested),
            ("//a", NotATarget::EmptySegment),
            ("/a//b", NotATarget::EmptySegment),
            ("/a//", NotATarget::EmptySegment),
            ("/a\\b", NotATarget::Byte(b'\\')),
            ("/a b", NotATarget::Byte(b' ')),
            ("/a#b", NotATarget::Byte(b'#')),
            ("/a?b#c", NotATarget::Byte(b'#')),
            ("/\u{e4}", NotATarget::Byte(0xc3)),
            ("/a%", NotATarget::Escape),
            ("/a%2", NotATarget::Escape),
            ("/a%+1", NotATarget::Escape),
            ("/a%\u{e4}", NotATarget::Byte(0xc3)),
            ("/a%00", NotATarget::Control),
            ("/a%0d%0ab", NotATarget::Control),
            ("*", NotATarget::NoPath),
            ("https://a.org/b", NotATarget::NoPath),
            ("", NotATarget::NoPath),
        ] {
            assert_eq!(Target::read(target), Err(why), "{target}");
        }
        for fine in [
            "/",
            "/a/",
            "/a/...",
            "/a/b.c;d=1",
            "/a?x[]=/../",
            "/%7Euser",
            "/@a%2fb",
            "/a%2f",
            "/%c3%a4",
            "/100%25",
        ] {
            assert!(Target::read(fine).is_ok(), "{fine}");
        }
    }

    #[test]
    fn a_text_that_is_no_rule_is_refused() {
        for (text, why) in [
            ("GET", NotARule::Words),
            ("GET  /a", NotARule::Words),
            ("GET /a b", NotARule::Words),
            ("get /a", NotARule::Method),
            ("GET,POST /a", NotARule::Method),
            (" /a", NotARule::Method),
            ("TRACE /a", NotARule::NeverMethod("TRACE")),
            ("GET a", NotARule::Path(NotATarget::NoPath)),
            ("GET /a/../b", NotARule::Path(NotATarget::Dots)),
            ("GET /a**", NotARule::Stars),
            ("GET /***", NotARule::Stars),
        ] {
            assert_eq!(text.parse::<RequestRule>(), Err(why), "{text}");
        }
        let text = format!("GET /{}", "a".repeat(MAX_RULE));
        assert_eq!(text.parse::<RequestRule>(), Err(NotARule::Long));
    }

    #[test]
    fn a_rule_travels_as_its_text() {
        let rule: RequestRule = "* /a/**?b=c".parse().unwrap();
        let json = serde_json::to_string(&rule).unwrap();
        assert_eq!(json, r#""* /a/**?b=c""#);
        assert_eq!(serde_json::from_str::<RequestRule>(&json).unwrap(), rule);
        assert!(serde_json::from_str::<RequestRule>(r#""GET a""#).is_err());
    }

    #[test]
    fn no_path_takes_long_to_compare() {
        let rule = format!("GET /{}b", "**/*a*/".repeat(100));
        let target = format!("/{}", "aaaaaaaaa/".repeat(4000));
        assert!(!allows(&rule, "GET", &target));
        let rule = format!("GET /{}b", "*a".repeat(200));
        assert!(!allows(&rule, "GET", &format!("/{}", "a".repeat(60_000))));
    }

    proptest! {
        #[test]
        fn what_is_compared_is_read_the_same_again(text in "[/a-z.%0-9A-F;*?-]{0,24}") {
            if let Ok(target) = Target::read(&text) {
                let again = Target::read(target.path()).unwrap();
                prop_assert_eq!(again.path(), target.path());
            }
        }

        #[test]
        fn a_rule_without_stars_means_one_path(path in "(/[a-c%2F]{1,4}){1,4}", other in "(/[a-c%2F]{1,4}){1,4}") {
            if let (Ok(one), Ok(two)) = (Target::read(&path), Target::read(&other)) {
                let rule: RequestRule = format!("GET {path}").parse().unwrap();
                prop_assert!(rule.allows("GET", &one));
                prop_assert_eq!(rule.allows("GET", &two), one.path() == two.path());
            }
        }
    }
}
