//! The fast path of the strict reader: takes an object without anything unusual apart in one pass. Pure.
//!
//! It refuses nothing: `None` sends a text to the strict path, which alone says what is wrong. What it takes, the strict path
//! takes too and reads the same: property tests and the fuzzer compare the two.

use super::strict::RESERVED;
use std::borrow::Cow;

/// Deepest nesting that is plain: far below what any parser refuses.
const DEEPEST: usize = 32;
/// Most members of all objects that are open at one place, together: they are compared one by one.
const MOST: usize = 24;
/// Most digits on either side of a number's point: whatever they are, a double takes them.
const DIGITS: usize = 15;

/// The members of the one object that `text` is, values as they stand. `None` where anything at any depth is unusual: control
/// characters, `\u` escapes, an escaped, repeated or reserved key, an exponent, depth, or what is no JSON.
pub fn object(text: &str) -> Option<Vec<(Cow<'_, str>, &str)>> {
    if has_control(text) {
        return None;
    }
    let mut walk = Walk { text, at: 0, keys: [""; MOST], open: 0 };
    let mut members = Vec::with_capacity(4);
    walk.spaces();
    walk.expect(b'{')?;
    walk.members(1, Some(&mut members))?;
    walk.spaces();
    (walk.at == text.len()).then_some(members)
}

/// Whether there is a control character, looked for without a branch for each byte.
pub(crate) fn has_control(text: &str) -> bool {
    text.bytes().fold(false, |found, byte| found | (byte < b' '))
}

struct Walk<'a> {
    text: &'a str,
    at: usize,
    /// The keys of all objects that are open, the outermost's first, and how many they are.
    keys: [&'a str; MOST],
    open: usize,
}

impl<'a> Walk<'a> {
    fn next(&self) -> Option<u8> {
        self.text.as_bytes().get(self.at).copied()
    }

    fn spaces(&mut self) {
        while self.next() == Some(b' ') {
            self.at += 1;
        }
    }

    fn expect(&mut self, byte: u8) -> Option<()> {
        (self.next()? == byte).then(|| self.at += 1)
    }

    /// What stands behind an object's bracket, to its end.
    fn members(&mut self, depth: usize, mut found: Option<&mut Vec<(Cow<'a, str>, &'a str)>>) -> Option<()> {
        let first = self.open;
        self.separated(depth, b'}', |walk| {
            let key = walk.string()?;
            let known = walk.keys.get(first..walk.open)?;
            if known.contains(&key) || key.contains('\\') || key.starts_with(RESERVED) {
                return None;
            }
            *walk.keys.get_mut(walk.open)? = key;
            walk.open += 1;
            walk.spaces();
            walk.expect(b':')?;
            walk.spaces();
            let start = walk.at;
            walk.value(depth)?;
            if let Some(found) = &mut found {
                found.push((Cow::Borrowed(key), walk.text.get(start..walk.at)?));
            }
            Some(())
        })?;
        self.open = first;
        Some(())
    }

    /// What stands behind a bracket, to the one that closes it: nothing, or parts with commas between.
    fn separated(
        &mut self,
        depth: usize,
        close: u8,
        mut part: impl FnMut(&mut Self) -> Option<()>,
    ) -> Option<()> {
        if depth > DEEPEST {
            return None;
        }
        self.spaces();
        if self.next()? != close {
            loop {
                part(self)?;
                self.spaces();
                match self.next()? {
                    b',' => self.at += 1,
                    byte if byte == close => break,
                    _ => return None,
                }
                self.spaces();
            }
        }
        self.at += 1;
        Some(())
    }

    fn value(&mut self, depth: usize) -> Option<()> {
        match self.next()? {
            b'"' => self.string().map(drop),
            b'{' => {
                self.at += 1;
                self.members(depth + 1, None)
            }
            b'[' => {
                self.at += 1;
                self.separated(depth + 1, b']', |walk| walk.value(depth + 1))
            }
            b't' => self.word("true"),
            b'f' => self.word("false"),
            b'n' => self.word("null"),
            _ => self.number(),
        }
    }

    fn word(&mut self, word: &str) -> Option<()> {
        self.text.get(self.at..)?.starts_with(word).then(|| self.at += word.len())
    }

    /// The content of the string that begins here, as it stands.
    fn string(&mut self) -> Option<&'a str> {
        self.expect(b'"')?;
        let (start, bytes) = (self.at, self.text.as_bytes());
        loop {
            self.at += memchr::memchr2(b'"', b'\\', bytes.get(self.at..)?)?;
            if bytes[self.at] == b'"' {
                break;
            }
            // Of `\u` escapes there may be half a pair.
            if !b"\"\\/bfnrt".contains(bytes.get(self.at + 1)?) {
                return None;
            }
            self.at += 2;
        }
        self.at += 1;
        self.text.get(start..self.at - 1)
    }

    fn number(&mut self) -> Option<()> {
        if self.next()? == b'-' {
            self.at += 1;
        }
        let start = self.at;
        let whole = self.digits()?;
        if whole > 1 && self.text.as_bytes()[start] == b'0' {
            return None;
        }
        if self.next() == Some(b'.') {
            self.at += 1;
            self.digits()?;
        }
        // An exponent follows no value, so it ends the fast path by itself.
        Some(())
    }

    fn digits(&mut self) -> Option<usize> {
        let start = self.at;
        while self.next().is_some_and(|byte| byte.is_ascii_digit()) {
            self.at += 1;
        }
        Some(self.at - start).filter(|count| (1..=DIGITS).contains(count))
    }
}

#[cfg(test)]
mod tests {
    use super::{DEEPEST, MOST, object};
    use crate::strict;

    fn agrees(text: &str) -> bool {
        let Some(members) = object(text) else { return false };
        strict::json(text).expect("the strict path takes it");
        strict::unique(text).expect("and finds nothing twice");
        let strict = strict::strict_object(text).expect("an object");
        assert_eq!(strict, members, "{text}");
        true
    }

    #[test]
    fn plain_objects_are_read_as_the_strict_path_does() {
        for text in [
            "{}",
            " { } ",
            r#"{"id":1,"method":"tools/call","params":{"name":"x","arguments":{"a":[1,-2.5,0,{"b":null}],"c":"\"\\\/\b\f\n\r\t\u{e9}"}}}"#,
            r#"{"a" : [ ] , "b":[ true , false ],"c":"{\"a\":1,\"a\":2}","d":-0,"e":0.50}"#,
            r#"{"a":{"x":1},"b":{"x":1},"x":"ä\u{2028}€"}"#,
        ] {
            assert!(agrees(&text.replace("\\u{e9}", "\u{e9}").replace("\\u{2028}", "")), "{text}");
        }
    }

    #[test]
    fn what_is_unusual_goes_to_the_strict_path() {
        let wide: Vec<String> = (0..=MOST).map(|n| format!("\"{n}\":0")).collect();
        let deep = "{\"a\":".repeat(DEEPEST + 1) + "0" + &"}".repeat(DEEPEST + 1);
        for text in [
            "",
            "[]",
            "1",
            "{",
            "}",
            "{}x",
            "{} {}",
            "{\"a\":1,}",
            "{,}",
            "{\"a\"}",
            "{\"a\":}",
            "{\"a\":1 2}",
            "{\"a\":[1,]}",
            "{\"a\":[1 2]}",
            "{\"a\":[}",
            "{\"a\":tru}",
            "{\"a\":nulll}",
            "{\"a\":01}",
            "{\"a\":-}",
            "{\"a\":1.}",
            "{\"a\":.5}",
            "{\"a\":1e3}",
            "{\"a\":1.0E9}",
            "{\"a\":+1}",
            "{\"a\":1234567890123456}",
            "{\"a\":\"x}",
            "{\"a\":\"\\\"}",
            "{\"a\":\"\\x\"}",
            "{\"a\":\"\\u0061\"}",
            "{\"a\":\"\\ud800\"}",
            "{\"\\n\":1}",
            "{\"a\":\"\t\"}",
            "{\"a\":\t1}",
            "{\"a\":1}\r",
            "{\"a\":1,\"a\":2}",
            "{\"b\":{\"a\":1,\"a\":2}}",
            "{\"b\":[{\"$serde_json::private::RawValue\":1}]}",
            "{a:1}",
            "{'a':1}",
            "{\"a\":NaN}",
            &format!("{{{}}}", wide.join(",")),
            &deep,
        ] {
            assert!(object(text).is_none(), "{text}");
        }
    }

    proptest::proptest! {
        #![proptest_config(proptest::prelude::ProptestConfig::with_cases(2000))]
        #[test]
        fn the_two_paths_agree(text in r#"\{("(a|b|\\n|é)?":(1|-0|0.5|"x\\""|null|\{\}|\[\{"a":1\}\]|\{"a":[0-9.eE-]{1,4},"b":"\\?[a-u"]"\}),? ?){0,4}\}"#) {
            let _ = agrees(&text);
        }

        #[test]
        fn nothing_panics(text in r#"[{}\[\]":,\\ a1.eué-]{0,40}"#) {
            let _ = agrees(&text);
        }
    }
}
