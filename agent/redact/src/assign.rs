//! What is assigned to a name: `NAME=value`, `name: "value"`, `--name value`, in settings, commands, code and prose.

use crate::values;

/// Most bytes of a value in quotes, and of spaces before it.
pub(crate) const LONGEST: usize = 8 << 10;
const SPACES: usize = 64;
/// Shortest value that is a secret though nothing but its name says so, bytes.
pub(crate) const SHORTEST: usize = 3;
/// Shortest value behind a name and a space, bytes.
const SHORTEST_ALONE: usize = 8;
/// Bytes before a name in which the rest of an entry for a machine is.
const NETRC: usize = 256;

/// What stands between a name and its value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum By {
    Equals,
    Colon,
    /// `=>`, or a tag's end.
    Arrow,
    /// A call's arguments.
    Comma,
    Call,
    /// A flag and a space.
    Flag,
    /// `password is VALUE`.
    Is,
    /// A space alone.
    Space,
    /// An entry for a machine: `login me password VALUE`.
    Netrc,
}

/// A value, without its quotes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Assigned {
    /// Where its name begins.
    pub(crate) name: usize,
    pub(crate) start: usize,
    pub(crate) end: usize,
    pub(crate) by: By,
    /// It stands in quotes.
    pub(crate) quoted: bool,
    /// The name and its value stand in quotes together: where they end is where the value does.
    pub(crate) enclosed: bool,
    /// Spaces before what stands between.
    pub(crate) spaced: bool,
    /// Nothing is before the name in its line, and nothing is behind the value.
    pub(crate) line: bool,
    /// What stands behind the value.
    pub(crate) next: u8,
}

/// The value behind a name.
pub(crate) fn behind(text: &str, (start, end): (usize, usize)) -> Option<Assigned> {
    let bytes = text.as_bytes();
    let byte = |at: usize| bytes.get(at).copied().unwrap_or(b'\n');
    let before = start.checked_sub(1).map_or(b'\n', byte);
    let mut at = end;
    let quote = Some(before).filter(|byte| matches!(byte, b'"' | b'\'' | b'`'));
    let mut closed = false;
    if let Some(quote) = quote {
        let escapes = (0..4).take_while(|back| byte(at + back) == b'\\').count();
        if byte(at + escapes) == quote {
            at += escapes + 1;
            closed = true;
        }
    }
    if byte(at) == b']' {
        at += 1;
    }
    let is_flag = byte(start) == b'-' && !closed;
    let spaces = blanks(bytes, at);
    at += spaces;
    let is_set = text.get(start..end).is_some_and(|name| {
        let name = name.rsplit('.').next().unwrap_or_default();
        name.starts_with("set") || name.starts_with("with") || name.ends_with("auth")
    });
    let by = match (byte(at), byte(at + 1)) {
        (b'=', b'=' | b'~') | (b':', b':' | b'/') | (b'?', b':') => return None,
        (b'=', b'>') => (By::Arrow, 2),
        (b'=', _) => (By::Equals, 1),
        (b':', b'=') => (By::Equals, 2),
        (b':', _) => (By::Colon, 1),
        (b'?', b'=') | (b'|', b'|') => (By::Equals, if byte(at + 1) == b'=' { 2 } else { 3 }),
        (b'>', _) if before == b'<' => (By::Arrow, 1),
        (b',', _) if closed => (By::Comma, 1),
        (b'(', b'"' | b'\'') if is_set => (By::Call, 1),
        _ if is_flag && spaces > 0 => (By::Flag, 0),
        (b'"' | b'\'' | b'`', _) if spaces > 0 && !closed => (By::Is, 0),
        (b'i' | b'I', b's' | b'S') if spaces > 0 && matches!(byte(at + 2), b' ' | b':') => (By::Is, 3),
        _ if spaces > 0 && is_of_machine(text, start, end) => (By::Netrc, 0),
        _ if spaces > 0 && quote.is_none() && bytes.get(end..).is_some_and(is_followed) => (By::Space, 0),
        _ => return None,
    };
    let (by, width) = by;
    at += width;
    at += blanks(bytes, at);
    if by == By::Colon {
        at += type_before(bytes, at);
    }
    let begins_line = begins_line(bytes, start);
    // A letter before a string's quote, in some languages.
    if matches!(byte(at), b'b' | b'f' | b'r' | b'u' | b'@' | b'L') && matches!(byte(at + 1), b'"' | b'\'') {
        at += 1;
    }
    let escapes = (0..4).take_while(|back| byte(at + back) == b'\\').count();
    if matches!(byte(at + escapes), b'"' | b'\'' | b'`') {
        let quote = byte(at + escapes);
        let begin = at + escapes + 1;
        let inside = bytes.get(begin..)?;
        let length = quoted(inside, quote, escapes);
        let next = byte(begin + length + escapes + 1);
        return Some(Assigned {
            name: start,
            start: begin,
            end: begin + length,
            by,
            quoted: true,
            enclosed: false,
            spaced: spaces > 0,
            line: begins_line,
            next,
        });
    }
    let rest = bytes.get(at..)?;
    if by == By::Colon && matches!(rest, [b'|' | b'>', ..]) {
        return block(text, start, at, begins_line);
    }
    // Only the first name of a line has the rest of it looked at.
    let line = if begins_line {
        rest.iter().take(LONGEST).take_while(|byte| !matches!(byte, b'\n' | b'\r')).count()
    } else {
        0
    };
    let is_end = |byte: &u8| byte.is_ascii_whitespace() || b"\"'`,;&)}]<>|\\".contains(byte);
    let mut length = rest.iter().take(LONGEST).position(is_end).unwrap_or(rest.len().min(LONGEST));
    let whole = rest.get(..line)?.trim_ascii_end();
    let whole = whole.strip_suffix(b"\\").unwrap_or(whole);
    let is_whole =
        !whole.iter().any(|byte| byte.is_ascii_whitespace() || matches!(byte, b'"' | b'\'' | b'`' | b'\\'));
    let mut is_line = begins_line && length >= whole.len();
    if begins_line && is_four_words(whole) {
        length = whole.len();
        is_line = true;
    }
    // In a file of settings the value is the rest of the line, whatever is in it.
    if begins_line
        && is_whole
        && quote.is_none()
        && !whole.ends_with(b",")
        && !whole.ends_with(b";")
        && !is_code(whole)
    {
        length = whole.len();
        is_line = true;
    }
    let next = byte(at + length);
    Some(Assigned {
        name: start,
        start: at,
        end: at + length,
        by,
        quoted: false,
        enclosed: quote.is_some() && !closed,
        spaced: spaces > 0,
        line: is_line,
        next,
    })
}

/// Whether a space and a word of letters, digits and more follow: not one of prose.
pub(crate) fn is_followed(behind: &[u8]) -> bool {
    let word = behind.strip_prefix(b" ").unwrap_or_default();
    let is_part = |byte: &&u8| byte.is_ascii_alphanumeric() || b"+/=_-!@#%^*.~".contains(byte);
    let word = word.get(..word.iter().take(SPACES).take_while(is_part).count()).unwrap_or_default();
    word.len() >= SHORTEST_ALONE
        && (word.iter().any(u8::is_ascii_digit) || word.iter().any(u8::is_ascii_uppercase))
        && word.iter().any(u8::is_ascii_alphabetic)
}

/// Passwords for applications, as some mail services give them: four times four small letters.
pub(crate) fn is_four_words(line: &[u8]) -> bool {
    line.len() == 19
        && line
            .iter()
            .enumerate()
            .all(|(at, byte)| if at % 5 == 4 { *byte == b' ' } else { byte.is_ascii_lowercase() })
}

fn blanks(bytes: &[u8], at: usize) -> usize {
    bytes
        .get(at..)
        .unwrap_or_default()
        .iter()
        .take(SPACES)
        .take_while(|byte| matches!(byte, b' ' | b'\t'))
        .count()
}

/// Bytes of a type that stands between a name and its value: `token: &str = "x"`.
fn type_before(bytes: &[u8], at: usize) -> usize {
    let rest = bytes.get(at..).unwrap_or_default();
    let is_type = |byte: &&u8| byte.is_ascii_alphanumeric() || b"&'<>_:[]|?. ".contains(byte);
    let length = rest.iter().take(SPACES).take_while(is_type).count();
    match rest.get(length..) {
        Some([b'=', b' ', b'"' | b'\'', ..]) if length > 0 && !matches!(rest.first(), Some(b'"' | b'\'')) => {
            length + 2
        }
        _ => 0,
    }
}

/// How far what is in quotes goes: to the same quote behind as many backslashes, or to the line's end.
fn quoted(inside: &[u8], quote: u8, escapes: usize) -> usize {
    let inside = inside.get(..inside.len().min(LONGEST)).unwrap_or_default();
    let mut at = 0;
    while let Some(found) = memchr::memchr3(quote, b'\\', b'\n', inside.get(at..).unwrap_or_default()) {
        at += found;
        match inside.get(at) {
            Some(b'\\') => {
                let count =
                    inside.get(at..).unwrap_or_default().iter().take_while(|byte| **byte == b'\\').count();
                if count == escapes && inside.get(at + count) == Some(&quote) {
                    return at;
                }
                if count < escapes || escapes > 0 && count % (escapes + 1) != 0 {
                    // An escape of the outer string: it may be a line's end.
                    at += count + 1;
                } else {
                    at += count.max(1) + usize::from(count % 2 == 1);
                }
            }
            _ => return at,
        }
    }
    inside.len()
}

/// A block of lines, in YAML.
fn block(text: &str, start: usize, at: usize, begins_line: bool) -> Option<Assigned> {
    let indent = |line: &str| line.len() - line.trim_start().len();
    let before = text.as_bytes().get(start.saturating_sub(SPACES)..start)?;
    let least = before.len() - memchr::memrchr(b'\n', before).map_or(0, |at| at + 1);
    let rest = text.get(at..)?;
    let rest = rest.get(..rest.floor_char_boundary(LONGEST))?;
    let head = rest.find('\n')? + 1;
    if head > 4 || !begins_line {
        return None;
    }
    let lines = rest.get(head..)?;
    let length: usize = lines
        .split_inclusive('\n')
        .take_while(|line| line.trim().is_empty() || indent(line) > least)
        .map(str::len)
        .sum();
    let value = lines.get(..length)?.trim_end();
    let begin = at + head + indent(value);
    (!value.is_empty()).then_some(Assigned {
        name: start,
        start: begin,
        end: at + head + value.len(),
        by: By::Colon,
        quoted: true,
        enclosed: false,
        spaced: false,
        line: true,
        next: b'\n',
    })
}

/// Whether nothing is before the name in its line but what may be before a setting.
fn begins_line(bytes: &[u8], start: usize) -> bool {
    let before = bytes.get(start.saturating_sub(SPACES)..start).unwrap_or_default();
    let line = memchr::memrchr(b'\n', before).map_or(before, |at| before.get(at + 1..).unwrap_or_default());
    if line.len() == before.len() && start > before.len() {
        return false;
    }
    let line = line.trim_ascii();
    matches!(
        line,
        b"" | b"export"
            | b"-"
            | b"set"
            | b"ENV"
            | b"ARG"
            | b"+"
            | b"#"
            | b"//"
            | b">"
            | b"\""
            | b"'"
            | b"setx"
            | b"$env:"
    )
}

/// A call, an index, a closing bracket: what no file of settings has in a value without quotes.
pub(crate) fn is_code(value: &[u8]) -> bool {
    let opens = value.iter().position(|byte| matches!(byte, b'(' | b'[' | b'{'));
    opens.is_some_and(|at| {
        value.ends_with(b")")
            || value.ends_with(b"]")
            || value.ends_with(b"}")
            || value.ends_with(b"(")
            || at == 0
            || value.ends_with(b"{")
    }) || value.ends_with(b")")
}

/// Whether an entry for a machine is before: `machine h login me password VALUE`.
fn is_of_machine(text: &str, start: usize, end: usize) -> bool {
    let is_word = text.get(start..end).is_some_and(|name| matches!(name, "password" | "passwd"));
    let begin = text.floor_char_boundary(start.saturating_sub(NETRC));
    let before = text.get(begin..start).unwrap_or_default();
    is_word && before.contains("login ") && (before.contains("machine ") || before.contains("default"))
}

/// The value of a pair of name and value, as YAML, XML and code have them: `name: DB_PASSWORD` on a line, `value: x` on the
/// next; `key="Password" value="x"`.
pub(crate) fn of_pair(text: &str, start: usize, end: usize) -> Option<(usize, usize)> {
    let begin = text.floor_char_boundary(start.saturating_sub(SPACES));
    let line = text.get(begin..start)?.rsplit('\n').next()?.trim_end_matches([' ', '"', '\'']);
    // A list of properties, in XML.
    if let Some(inside) = text.get(end..)?.strip_prefix("</key>") {
        let near = inside.get(..inside.floor_char_boundary(SPACES))?.trim_start();
        let value = near.strip_prefix("<string>").and_then(|_| inside.split_once("<string>"))?.1;
        let at = text.len() - value.len();
        let length = value.bytes().take(LONGEST).position(|byte| byte == b'<')?;
        return (line.ends_with("<key>") && !values::is_placeholder(value.get(..length)?))
            .then_some((at, at + length));
    }
    let is_name = ["name:", "key:", "name=", "key=", "name =", "key ="].iter().any(|known| {
        line.len()
            .checked_sub(known.len())
            .and_then(|at| line.get(at..))
            .is_some_and(|tail| tail.eq_ignore_ascii_case(known))
    });
    if !is_name {
        return None;
    }
    let rest = text.get(end..)?;
    let near = rest.get(..rest.floor_char_boundary(SPACES))?;
    let next = near.trim_start_matches(['"', '\'', ' ', '\r', ',', '\n', '\t']);
    let word = next.get(.."value".len()).filter(|word| word.eq_ignore_ascii_case("value"))?;
    let at = end + near.len() - next.len();
    let found = behind(text, (at, at + word.len()))?;
    let value = text.get(found.start..found.end)?;
    let is_one = matches!(found.by, By::Equals | By::Colon)
        && !values::is_placeholder(value)
        && !values::is_prose(value);
    is_one.then_some((found.start, found.end))
}

/// The second of two arguments: `auth=("me", "x")`, `.basic_auth("me", Some("x"))`.
pub(crate) fn of_arguments(text: &str, name: &str, end: usize) -> Option<(usize, usize)> {
    if !name.to_ascii_lowercase().ends_with("auth") {
        return None;
    }
    let rest = text.get(end..)?;
    let near = rest.get(..rest.floor_char_boundary(NETRC))?;
    let inside = near.trim_start_matches(['=', ' ']).strip_prefix('(')?.trim_start();
    let (_, second) = inside.strip_prefix(['"', '\''])?.split_once(['"', '\''])?;
    let second = second.trim_start().strip_prefix(',')?.trim_start();
    let second = second.strip_prefix("Some(").unwrap_or(second).strip_prefix(['"', '\''])?;
    let start = end + near.len() - second.len();
    let length = second.find(['"', '\''])?;
    let value = second.get(..length)?;
    (value.len() >= SHORTEST && !values::is_placeholder(value) && !values::is_name(value))
        .then_some((start, start + length))
}
