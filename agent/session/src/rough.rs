//! Lines of the server's that are not one JSON text to every parser: which requests a client may take them to answer, and
//! whether it may read a list of tools in them. By brackets and strings alone, so that nothing of it need be JSON. Pure.

use super::{
    line::{Id, LONGEST_OUTLINED, blanks, string_end},
    strict::{self, LINE_ENDS},
};
use serde_json::value::RawValue;
use std::borrow::Cow;

/// Most ids of one line that are answered.
const MOST_ANSWERED: usize = 1024;
/// Longest key that can be one of ours, each character written by its code, bytes.
const LONGEST_KEY: usize = 2 + 6 * "method".len();

/// Whether some client may read a list of tools in a line that cannot be judged.
pub fn may_list(line: &[u8]) -> bool {
    decodings(line).iter().any(|line| pieces(line).any(|piece| Reading::of(piece).lists))
}

/// The bytes of a line as they are, and without those that are no characters: some decoders leave them out, and what stands behind
/// one may be a quotation mark that an escape is for.
fn decodings(line: &[u8]) -> Vec<Cow<'_, [u8]>> {
    let mut all = vec![Cow::Borrowed(line)];
    if std::str::from_utf8(line).is_err() {
        all.push(line.utf8_chunks().flat_map(|chunk| chunk.valid().bytes()).collect());
    }
    all
}

/// Ids of the requests that a client may take a line, or a part of one, to answer, as far as brackets and strings tell. None of
/// what only asks: that is the server's own id.
pub fn answered(line: &[u8]) -> Vec<Id> {
    let decodings = decodings(line);
    let whole =
        decodings.iter().map(|line| Reading::of(line)).map(|whole| whole.ids).find(|ids| !ids.is_empty());
    whole.unwrap_or_else(|| {
        let lists =
            decodings.iter().flat_map(|line| pieces(line)).map(Reading::of).filter(|piece| piece.lists);
        lists.flat_map(|piece| piece.ids).take(MOST_ANSWERED).collect()
    })
}

/// The id that stands last in the end of a line, as some servers write it: the message's own, with only its end behind it.
pub fn last_id(end: &[u8]) -> Option<Id> {
    let key = memchr::memmem::rfind(end, b"\"id\"")?;
    let (id, behind) =
        id_at(end, blanks(end, key + 4)).filter(|_| end.get(blanks(end, key + 4)) == Some(&b':'))?;
    (end.get(behind..)?.trim_ascii() == b"}").then_some(id)
}

/// Whether a line of which this is the beginning is no message to any reader, as far as it is one line.
pub fn is_noise(start: &[u8]) -> bool {
    decodings(start).iter().map(|start| trimmed(start)).all(|text| !text.is_empty() && !begins(text))
}

/// A piece of a line up to where some reader may end the line: up to the first byte that may be of such a character.
pub fn within_line(piece: &[u8]) -> &[u8] {
    // The last bytes of U+2028, U+2029 and U+0085: the others stand in many characters.
    let ends = |byte: &u8| matches!(byte, 0xb | 0xc | b'\r' | 0x1c..=0x1e | 0x85 | 0xa8 | 0xa9);
    let Some(end) = piece.iter().position(ends) else { return piece };
    let (within, behind) = piece.split_at(end);
    // Not half of a character.
    let whole = within.iter().rposition(u8::is_ascii).map_or(0, |last| last + 1);
    if behind.first().is_some_and(|end| !end.is_ascii()) {
        within.get(..whole).unwrap_or_default()
    } else {
        within
    }
}

/// The id behind a colon, and where it ends. One without quotation marks has none in it: nothing is looked at twice where one key
/// of an id follows another.
fn id_at(text: &[u8], colon: usize) -> Option<(Id, usize)> {
    let from = blanks(text, colon + 1);
    let end = match text.get(from)? {
        b'"' => string_end(text, from)?,
        _ => {
            let is_bare = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'-' | b'.');
            let bare = text.get(from..)?.iter().take(LONGEST_OUTLINED + 1).take_while(|byte| is_bare(byte));
            from + Some(bare.count()).filter(|many| *many <= LONGEST_OUTLINED)?
        }
    };
    let raw: &RawValue = serde_json::from_slice(text.get(from..end)?).ok()?;
    Some((Id::parse(raw.get())?, end))
}

/// The line, and what of it stands between characters at which some readers end lines.
fn pieces(line: &[u8]) -> impl Iterator<Item = &[u8]> {
    let of = move |(end, _): &(char, &str)| {
        let mut buffer = [0; 4];
        let end = end.encode_utf8(&mut buffer).len();
        let finder = memchr::memmem::Finder::new(&buffer[..end]).into_owned();
        let mut rest = Some(line);
        // The first piece begins like the line.
        std::iter::from_fn(move || {
            let at = finder.find(rest?)?;
            rest = rest?.get(at + end..);
            let piece = rest?;
            Some(piece.get(..finder.find(piece).unwrap_or(piece.len())).unwrap_or_default())
        })
    };
    std::iter::once(line).chain(LINE_ENDS.iter().flat_map(of))
}

/// What a bracket that is open stands for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    /// Elements that are messages.
    Batch,
    Message,
    /// A message's result.
    Result,
    Other,
}

/// A key of ours, or one that some parser may take for it.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Key {
    Id,
    Method,
    Result,
    Error,
    Tools,
    /// It cannot be read: a parser that forgives that may read any.
    Unread,
    Other,
}

impl Key {
    fn of(written: &[u8]) -> Self {
        if std::str::from_utf8(written).is_err() {
            return Self::Unread;
        }
        if written.len() > LONGEST_KEY {
            return Self::Other;
        }
        let Ok(key) = serde_json::from_slice::<String>(written) else { return Self::Unread };
        match strict::fold(&key).as_str() {
            "id" => Self::Id,
            "method" => Self::Method,
            "result" => Self::Result,
            "error" => Self::Error,
            "tools" => Self::Tools,
            _ => Self::Other,
        }
    }
}

/// One message, or what may be one.
#[derive(Default)]
struct Rough {
    ids: Vec<Id>,
    asks: bool,
    answers: bool,
}

/// What a text that nobody else splits has.
#[derive(Default)]
struct Reading {
    ids: Vec<Id>,
    lists: bool,
}

impl Reading {
    fn of(text: &[u8]) -> Self {
        let text = trimmed(text);
        if begins(text) { Self::of_json(text) } else { Self::default() }
    }

    fn take(&mut self, message: Rough) {
        if message.answers || !message.asks {
            let room = MOST_ANSWERED.saturating_sub(self.ids.len());
            self.ids.extend(message.ids.into_iter().take(room));
        }
    }

    fn of_json(text: &[u8]) -> Self {
        let (mut found, mut message) = (Self::default(), Rough::default());
        let (mut open, mut key, mut at) = (Vec::new(), Key::Other, 0);
        while let Some(byte) = text.get(at) {
            at += 1;
            let place = open.last().copied().unwrap_or(Place::Batch);
            match byte {
                b'{' => open.push(match (place, key) {
                    (Place::Batch, _) => Place::Message,
                    (Place::Message, Key::Result | Key::Unread) => Place::Result,
                    _ => Place::Other,
                }),
                b'[' => {
                    found.lists |= place == Place::Result && matches!(key, Key::Tools | Key::Unread);
                    open.push(if place == Place::Batch { Place::Batch } else { Place::Other });
                }
                b'}' | b']' => {
                    if open.pop() == Some(Place::Message) {
                        found.take(std::mem::take(&mut message));
                    }
                }
                b'"' => {
                    let Some(end) = string_end(text, at - 1) else { break };
                    let written = text.get(at - 1..end).unwrap_or_default();
                    let colon = blanks(text, end);
                    at = end;
                    key = Key::Other;
                    if text.get(colon) == Some(&b':') && matches!(place, Place::Message | Place::Result) {
                        key = Key::of(written);
                        at = colon + 1;
                        if place == Place::Message {
                            at = message.take(key, text, colon);
                        }
                    }
                    continue;
                }
                // Other dialects of JSON: comments, other quotes, keys without any, which may be written by their codes. What is a
                // string there is not told here.
                b'\'' | b'/' | b'#' | b'`' | b'\\' => {
                    found.lists = true;
                    break;
                }
                byte if byte.is_ascii_alphabetic() => {
                    let word = at - 1;
                    at += text.get(at..).unwrap_or_default().iter().take_while(|b| is_word(**b)).count();
                    if text.get(blanks(text, at)) == Some(&b':') {
                        let word = String::from_utf8_lossy(text.get(word..at).unwrap_or_default());
                        key = Key::of(format!("\"{word}\"").as_bytes());
                        continue;
                    }
                }
                b',' => {}
                _ => continue,
            }
            key = Key::Other;
        }
        found.take(message);
        found
    }
}

impl Rough {
    /// Takes a key of the message's own; where to read on.
    fn take(&mut self, key: Key, text: &[u8], colon: usize) -> usize {
        match key {
            Key::Id if self.ids.len() < MOST_ANSWERED => {
                if let Some((id, end)) = id_at(text, colon) {
                    self.ids.push(id);
                    return end;
                }
            }
            Key::Method => self.asks = true,
            Key::Result | Key::Error => self.answers = true,
            _ => {}
        }
        colon + 1
    }
}

fn is_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'$')
}

/// Without what some reader takes away in front: white space, control characters, byte-order marks, and bytes that are no
/// characters.
pub(crate) fn trimmed(mut text: &[u8]) -> &[u8] {
    loop {
        let (valid, bad) = match std::str::from_utf8(text) {
            Ok(valid) => (valid, 0),
            Err(error) => {
                let (valid, rest) = text.split_at(error.valid_up_to());
                let bad = error.error_len().unwrap_or(rest.len());
                (std::str::from_utf8(valid).unwrap_or_default(), bad)
            }
        };
        let begin =
            valid.trim_start_matches(|c: char| c.is_whitespace() || c.is_control() || c == '\u{feff}');
        if !begin.is_empty() || bad == 0 {
            return text.get(valid.len() - begin.len()..).unwrap_or_default();
        }
        text = text.get(valid.len() + bad..).unwrap_or_default();
    }
}

/// Whether a text begins as an object or a list does, in JSON or a dialect of it, and not as a log does: `[DEBUG] `, `{worker} `.
fn begins(text: &[u8]) -> bool {
    let next = text.get(blanks(text, 1)..).unwrap_or_default();
    let word = next.iter().take_while(|byte| !b",]}:= \t\r\n".contains(byte)).count();
    let behind = next.get(blanks(next, word)).copied();
    let (word, is_plain) = (&next[..word], next.first().is_some_and(|byte| is_word(*byte) || *byte == b'-'));
    match text.first() {
        Some(b'{') => !is_plain || matches!(behind, Some(b':' | b'=') | None),
        Some(b'[') => {
            let is_value = is_number(word)
                || matches!(
                    word,
                    b"true" | b"false" | b"null" | b"NaN" | b"Infinity" | b"-Infinity" | b"undefined"
                );
            // What is cut may be any word.
            !is_plain || behind.is_none() || (is_value && matches!(behind, Some(b',' | b']')))
        }
        _ => false,
    }
}

/// Whether a word is a number to some parser: some take zeros in front, or hexadecimal digits. No date is one.
fn is_number(word: &[u8]) -> bool {
    let digits = word.strip_prefix(b"-").unwrap_or(word);
    if let Some(hex) = digits.strip_prefix(b"0x").or_else(|| digits.strip_prefix(b"0X")) {
        return hex.iter().all(u8::is_ascii_hexdigit);
    }
    digits.first().is_some_and(u8::is_ascii_digit)
        && std::str::from_utf8(word).is_ok_and(|word| word.parse::<f64>().is_ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    const TOOLS: &str = r#""tools":[{"name":"x"}]"#;

    fn ids(line: &str) -> Vec<String> {
        answered(line.as_bytes()).iter().map(Id::to_json).collect()
    }

    #[test]
    fn what_some_client_may_read_as_a_list_is_told_from_what_none_does() {
        let lists = [
            r#"{"id":1,"result":{T},"result":{}}"#,
            r#"{"id":1,"result":{},"x":NaN,"result":{T}}"#,
            r#"{"id":1,"Re\u017Fult":{"a":[{}],"\u0054oolS":[]}}"#,
            r#"[{"id":2,"result":{}},{"id":1,"x":NaN,"result":{T}}]"#,
            r#"[[1,{"id":1,"result":{T}"#,
            r#"{"id":1,"result":{T}} {"#,
            r#"{"a":1}{"id":1,"result":{T}}"#,
            r#"[12,{"id":1,"result":{T}}]"#,
            r#"{id:1,result:{tools:[]}}"#,
            r#"{id:1,\u0072esult:{tools:[]}}"#,
            r#"{"id":1,"result":{"t\ools":[]}}"#,
            r#"{"id":1,"r\x65sult":{"tools":[]}}"#,
            r#"[0x1,{"id":1,"result":{T}}]"#,
            r#"[-01,{"id":1,"result":{T}}]"#,
            r#"[1.,{"id":1,"result":{T}}]"#,
            r#"[true,{"id":1,"result":{T}}]"#,
            r#"{/*"*/"id":1,"result":{T}}"#,
            r#"{'id':1}"#,
            r#"{"id":1,"result":{"\ud83c":[]}}"#,
            "{\"method\":\"x\",\"params\":[\r{\"id\":1,\"x\":NaN,\"result\":{T}}\r]}",
            "log\u{2028}{\"id\":1,\"x\":NaN,\"result\":{T}}",
            "x\u{1c}{\"id\":1,\"result\":{T}}",
            "x\u{1d}{\"id\":1,\"result\":{T}}",
            "x\r\u{1f}{\"id\":1,\"result\":{T}}",
            "\u{1}\u{feff} {\"id\":1,\"result\":{T}}",
            "{\"id\":1,\"result\":\u{a0}{T}}",
        ];
        for line in lists {
            let line = line.replace('T', TOOLS).replace("\\u0\"tools\":[{\"name\":\"x\"}]", "\\u0T");
            assert!(may_list(line.as_bytes()), "{line}");
        }
        for line in [
            &b"\xff{\"id\":1,\"result\":{\"tools\":[]}}"[..],
            b"\xff \xfe\x01{\"id\":1,\"result\":{\"tools\":[]}}",
            b"{\"id\":1,\"result\":{\"too\xffls\":[]}}",
            b"{\"id\":1,\"resu\xc3lt\":{\"tools\":[]}}",
            b"{\"a\":\"\\\xff\":\", \"id\":1,\"result\":{\"tools\":[]},\"z\":\"\"}",
        ] {
            assert!(may_list(line), "{}", line.escape_ascii());
        }
        let none = [
            r#"{"jsonrpc":"2.0","jsonrpc":"2.0","id":6,"result":{"content":[{"text":"two tools \u00e9"}]}}"#,
            r#"{"id":6,"result":{"content":[],"structuredContent":{"tools":[1],"x":NaN}}}"#,
            r#"{"id":6,"result":{"tools":{},"x":NaN}}"#,
            r#"{"id":6,"result":{"x":NaN,"tools":"a","b":[1]}}"#,
            r#"{"id":6,"error":{"x":NaN,"tools":[1]}}"#,
            r#"{"method":"x","params":{"x":NaN,"tools":[{"id":7}]}}"#,
            r#"{"id":1,"method":"sampling/createMessage","params":{"tools":[1],"temperature":NaN}}"#,
            r#"[DEBUG] -> {"id":1,"result":{T}}"#,
            r#"[2026-11-27 10:00:00] {"id":1,"result":{T}}"#,
            r#"[2026-11-27] {"id":1,"result":{T}}"#,
            r#"[10:00:00.123] {"id":1,"result":{T}}"#,
            r#"[127.0.0.1] {"id":1,"result":{T}}"#,
            r#"[3f2a9c] {"id":1,"result":{T}}"#,
            r#"[INF] {"id":1,"result":{T}}"#,
            r#"{"id":6,"result":{"x":NaN,"content":[{"text":"tools \d+ \n"}]}}"#,
            r#"[INFO, tools] {"id":1,"result":{T}}"#,
            r#"{worker 1} it's {"id":1,"result":{T}}"#,
            r#"{2026} {"id":1,"result":{T}}"#,
            "→ {\"id\":1,\"result\":{T}}",
            "",
            "[",
            "{",
        ];
        for line in none {
            let line = line.replace('T', TOOLS);
            assert!(!may_list(line.as_bytes()), "{line}");
        }
        assert!(!may_list(b"{\"id\":6,\"result\":{\"content\":[{\"text\":\"tools, caf\xe9\"}]}}"));
    }

    #[test]
    fn what_a_line_answers_is_never_what_it_asks_nor_what_stands_deeper() {
        for (line, expected) in [
            (r#"{"id":5,"result":{"x":NaN,"id":6}}"#, vec!["5"]),
            (r#"{"id":5,"ID":6,"result":{}}"#, vec!["5", "6"]),
            (r#"{"method":"n","params":{"x":NaN,"id":7}}"#, vec![]),
            (r#"{"id":1,"method":"sampling/createMessage","params":NaN}"#, vec![]),
            (r#"{"id":1,"method":"","Result":{}}"#, vec!["1"]),
            (r#"[{"id":1,"method":"x"},{"id":2,"result":{}},{"id":"3","error":NaN}]"#, vec!["2", "\"3\""]),
            (r#"[DEBUG] -> {"id":1,"result":{}}"#, vec![]),
            ("{\"method\":\"x\",\"params\":[\r{\"id\":5,\"result\":{\"tools\":[]}}\r]}", vec!["5"]),
            ("{\"method\":\"x\",\"params\":[\r{\"id\":5,\"result\":{}}\r]}", vec![]),
        ] {
            assert_eq!(ids(line), expected, "{line}");
        }
        let long = format!("0.{}", "1".repeat(LONGEST_OUTLINED - 2));
        let answer = |id: &str| format!(r#"{{"id":{id},"result":{{}}}}"#);
        assert_eq!(ids(&answer(&long)), [long.as_str()]);
        assert_eq!(ids(&answer(&format!("{long}1"))), [""; 0], "and not a part of it");
    }

    /// Nothing in these lines ends a value: whoever looks for that end behind each key needs hours.
    #[test]
    fn a_line_of_ids_alone_is_read_in_the_time_of_its_length() {
        for (id, expected) in [(r#""id":1"#, MOST_ANSWERED), (r#""id":x"#, 0), (r#""id":"\x""#, 0)] {
            let line = format!("{{\"tool\":0,{}}}", id.repeat((1 << 20) / id.len()));
            assert!(!may_list(line.as_bytes()));
            assert_eq!(answered(line.as_bytes()).len(), expected, "{id}");
        }
    }

    #[test]
    fn the_last_id_is_the_messages_own() {
        let last = |end: &str| last_id(end.as_bytes()).map(|id| id.to_json());
        assert_eq!(last("xx\"]},\"jsonrpc\":\"2.0\",\"id\": 6 }\r\n").as_deref(), Some("6"));
        assert_eq!(last("xx\"]},\"id\":\"a\\\"b\"}").as_deref(), Some("\"a\\\"b\""));
        for none in ["{\"x\":{\"id\":6}}", "\"id\":6,\"x\":1}", "\"id\" 6}", "\"id\":", "\"id\"", ""] {
            assert_eq!(last(none), None, "{none}");
        }
    }

    #[test]
    fn noise_passes_as_far_as_it_is_one_line_to_every_reader() {
        for noise in ["xxx", "\u{feff} xxx", "[DEBUG] {", "{worker} {", "\"x"] {
            assert!(is_noise(noise.as_bytes()), "{noise}");
        }
        for line in
            ["", "   ", "\u{0}", "{", "[", "[1", "[-", "[  tr", "[0x", "{\"id\":", "{xxxx", "\u{1c} {\"id"]
        {
            assert!(!is_noise(line.as_bytes()), "{line}");
        }
        for (line, is_one) in [
            (&b"[1\xff2,{\"id\":5"[..], false),
            (b"[\xff12,{\"id\":5", false),
            (b"{a\xffb:", false),
            (b"\xff\xfe", false),
            (b"[DEBUG] caf\xe9 {\"id\":5", true),
            (b"caf\xc3", true),
        ] {
            assert_eq!(is_noise(line), is_one, "{}", line.escape_ascii());
        }
        for (end, name) in LINE_ENDS {
            let piece = format!("xx\t\u{1b}[1m{end}{{");
            let within = within_line(piece.as_bytes());
            assert!(within.starts_with(b"xx\t\x1b[1m") && !within.ends_with(b"{"), "{name}");
        }
        assert_eq!(within_line(b"xx\n"), b"xx\n", "the control");
    }

    proptest::proptest! {
        #[test]
        fn no_bytes_panic(bytes in proptest::collection::vec(proptest::sample::select(&b"{}[]\":,\\ \r\x1c\xff\xc3tools:idresult1'"[..]), 0..60)) {
            let _ = (may_list(&bytes), answered(&bytes), last_id(&bytes));
        }
    }
}
