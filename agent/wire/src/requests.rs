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
/// `**` for any number of segments, none included. Neither ever stands for what some servers read as an end of a name: `;`, and an
/// encoded slash, backslash, percent sign, `?` or `#`; a rule has to have it. The query is not compared, unless the pattern has one
/// behind `?`: then it has to be that one.
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
    /// Whether its pattern has a query, which is then the one that a request has to have.
    pub fn has_query(&self) -> bool {
        self.query.is_some()
    }

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
                Some((stars, from)) if path.get(from).is_some_and(|segment| !hides_any(segment)) => {
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

/// What servers could read as an end of a segment or of a name in it, or as the beginning of another escape.
const HIDING: [&str; 7] = ["%2F", "%5C", "%25", "%3B", "%3F", "%23", ";"];
/// How often a path may have been encoded.
const LAYERS: usize = 4;

/// Whether a text begins with one of these.
fn hides(text: &[u8]) -> bool {
    HIDING.iter().any(|hiding| text.starts_with(hiding.as_bytes()))
}

/// Whether a segment has one of these anywhere.
fn hides_any(segment: &str) -> bool {
    HIDING.iter().any(|hiding| segment.contains(hiding))
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
    /// `.`, `..`, also encoded, also before `;`, also behind an encoded slash or backslash.
    #[error("it has a segment `.` or `..`, which servers take out, or not")]
    Dots,
    /// `//`.
    #[error("it has an empty segment (`//`), which servers take out, or not")]
    EmptySegment,
    /// `%` without two digits.
    #[error("it has a `%` without two hexadecimal digits behind it")]
    Escape,
    /// Escapes that come to no text: some readers make a dot or a slash of them.
    #[error("what it has encoded is no UTF-8")]
    NotText,
    /// Escapes of escapes of escapes.
    #[error("it is encoded more than {LAYERS} times over")]
    Layers,
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
        // However often a server decodes it.
        let mut layer = Cow::Borrowed(&*path);
        for _ in 0..=LAYERS {
            judge(&layer)?;
            match decoded(&layer)? {
                None => return Ok(Self { path, query }),
                Some(deeper) => layer = Cow::Owned(deeper),
            }
        }
        Err(NotATarget::Layers)
    }

    /// The path, as it is compared.
    pub fn path(&self) -> &str {
        &self.path
    }

    /// What is behind `?`, as it came.
    pub fn query(&self) -> Option<&'t str> {
        self.query
    }
}

/// Whether servers agree on the segments of a path, as it is or decoded.
fn judge(path: &str) -> Result<(), NotATarget> {
    if path.bytes().any(|byte| byte.is_ascii_control()) {
        return Err(NotATarget::Control);
    }
    let mut segments = path.split(['/', '\\']).skip(1).peekable();
    while let Some(segment) = segments.next() {
        // Parameters of a segment, and spaces behind it, are taken off by some.
        let name = segment.split(';').next().unwrap_or_default().trim_end_matches(' ');
        if matches!(name, "." | "..") {
            return Err(NotATarget::Dots);
        }
        if name.is_empty() && segments.peek().is_some() {
            return Err(NotATarget::EmptySegment);
        }
    }
    Ok(())
}

/// What a path's escapes are. `None`: it has none.
fn decoded(path: &str) -> Result<Option<String>, NotATarget> {
    let Some((before, mut rest)) = path.split_once('%') else { return Ok(None) };
    let (mut out, mut is_other) = (before.as_bytes().to_vec(), false);
    loop {
        let digits = rest.get(..2).filter(|digits| digits.bytes().all(|b| b.is_ascii_hexdigit()));
        match digits.and_then(|digits| u8::from_str_radix(digits, 16).ok()) {
            Some(byte) => {
                out.push(byte);
                rest = rest.get(2..).unwrap_or_default();
                is_other = true;
            }
            None => out.push(b'%'),
        }
        let Some((before, behind)) = rest.split_once('%') else { break };
        out.extend_from_slice(before.as_bytes());
        rest = behind;
    }
    out.extend_from_slice(rest.as_bytes());
    let text = String::from_utf8(out).map_err(|_| NotATarget::NotText)?;
    Ok(is_other.then_some(text))
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
            ("GET /repos/acme/**", "GET", "/repos/acme/x%5Cy/z", false),
            ("GET /repos/acme/**", "GET", "/repos/acme/x%252Fy/z", false),
            ("GET /repos/acme/**", "GET", "/repos/acme/a/100%25", false),
            ("GET /repos/acme/**/x%2Fy", "GET", "/repos/acme/a/b/x%2fy", true),
            ("GET /repos/acme/**", "GET", "/repos/acme/x;y/z", false),
            ("GET /repos/acme/**", "GET", "/repos/acme/x%3By/z", false),
            ("GET /repos/acme/**", "GET", "/repos/acme/x%3Fy/z", false),
            ("GET /repos/acme/**", "GET", "/repos/acme/x%23y/z", false),
            ("GET /repos/acme/**", "GET", "/repos/acme/%C3%A4%20/z", true),
            ("GET /repos/**/x%2Fy/**", "GET", "/repos/a/b/x%2Fy/z", true),
            ("GET /repos/**/x%2Fy/**", "GET", "/repos/a%2Fb/x%2Fy/z", false),
            ("* /p/acme%2F*/issues", "GET", "/p/acme%2Ftool/issues", true),
            ("GET /a;x=*", "GET", "/a;x=1", true),
            ("GET /*", "GET", "/a;x=1", false),
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
            // The same behind what a server decodes first.
            ("/repos/acme/x%2F..%2F..%2Fadmin", NotATarget::Dots),
            ("/repos/acme/x%5c..%5cadmin", NotATarget::Dots),
            ("/repos/acme/x%252F..%252Fadmin", NotATarget::Dots),
            ("/repos/acme/x%2F%252e%252e/admin", NotATarget::Dots),
            ("/repos/acme/x%25252F..%25252Fadmin", NotATarget::Dots),
            ("/repos/acme/..%3Bx/admin", NotATarget::Dots),
            ("/repos/acme/..%20/admin", NotATarget::Dots),
            ("/@acme%2f..", NotATarget::Dots),
            ("/p/acme%2F../issues", NotATarget::Dots),
            ("/a/%2Fb", NotATarget::EmptySegment),
            ("/a%2F%2Fb", NotATarget::EmptySegment),
            ("/a/;x/b", NotATarget::EmptySegment),
            ("/a%2F/b", NotATarget::EmptySegment),
            ("/%2Fa", NotATarget::EmptySegment),
            ("/a/..%253Bx/b", NotATarget::Dots),
            ("/a%2500", NotATarget::Control),
            ("/a%250a", NotATarget::Control),
            ("/a/%c0%ae%c0%ae/b", NotATarget::NotText),
            ("/a/%25c0%25ae/b", NotATarget::NotText),
            ("/a%ff", NotATarget::NotText),
            ("/a%25252525252525", NotATarget::Layers),
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
            "/%C3%A4",
            "/100%25",
            "/a%2F",
        ] {
            assert!(Target::read(fine).is_ok(), "{fine}");
        }
    }

    /// What servers could make of a path: decoded once and twice, at slashes of both kinds, without parameters and dots.
    fn served(path: &str) -> Vec<String> {
        let once = decoded(path).unwrap().unwrap_or_else(|| path.to_owned());
        let twice = decoded(&once).unwrap().unwrap_or_else(|| once.clone());
        let of = |path: &String| {
            let mut kept: Vec<&str> = Vec::new();
            for segment in path.split(['/', '\\']).skip(1) {
                match segment.split(';').next().unwrap() {
                    "." => {}
                    ".." => drop(kept.pop()),
                    name => kept.push(name),
                }
            }
            "/".to_owned() + &kept.join("/").replace(' ', "%20")
        };
        [path.to_owned(), once, twice].iter().map(of).collect()
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
        let deep = format!("/{}", "%2525".repeat(12_000));
        assert_eq!(Target::read(&deep).map(|target| target.path().len()), Ok(60_001));
        assert_eq!(Target::read(&format!("/%{}", "25".repeat(30_000))), Err(NotATarget::Layers));
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

        /// However it decodes, takes dots out and cuts parameters off, a server serves what the rule has.
        #[test]
        fn what_stars_let_through_stays_so_for_any_server(
            text in "(/(a|b|c|\\.|%2[eEfF5]|%5[cC]|%252[fFeE]|;|%3[bB]|\\.\\.|%20){0,4}){1,5}",
            rule in "GET (/(a|b|\\*|a\\*|\\*c|\\*\\*)){1,4}",
        ) {
            let (Ok(target), Ok(rule)) = (Target::read(&text), rule.parse::<RequestRule>()) else { return Ok(()) };
            if rule.allows("GET", &target) {
                for served in served(target.path()) {
                    prop_assert!(rule.allows("GET", &Target::read(&served).unwrap()), "{}: {}", text, served);
                }
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
