//! Secrets that are known by the form of what stands around them: keys in armour, addresses, headers, base64, commands.

use crate::{shapes::begins_word, values};

/// A form.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Form {
    /// `user:password@` in an address.
    Address,
    /// A private key between lines that say so.
    Key,
    /// The lines of a private key in a file of PuTTY's.
    PuttyKey,
    /// A JSON Web Token.
    WebToken,
    /// A bearer's token, wherever it stands.
    Bearer,
    /// A name and a password in base64, as HTTP's basic authentication has them.
    Basic,
    /// The beginning of a token or a private key in base64.
    Encoded,
    /// Of a manifest for Kubernetes: all values of its data are secrets.
    Manifest,
    /// A user's password in SQL.
    Identified,
    /// A password that is piped to a program: `echo x | docker login --password-stdin`.
    Piped,
    /// The words from which a wallet's keys are made.
    Phrase,
    /// A program with a password behind a short flag, of [`PROGRAMS`].
    Program(usize),
}

/// How a program takes a password.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Flag {
    /// Behind it without a space: `-pPASSWORD`.
    Attached(&'static str),
    /// As the next word.
    Next(&'static str),
    /// As the next word, behind a name and this character.
    Pair(&'static str, char),
}

/// Programs and their flags that name no secret by their words.
pub(crate) const PROGRAMS: &[(&str, &[Flag])] = &[
    ("mysql", &[Flag::Attached("-p")]),
    ("mysqldump", &[Flag::Attached("-p")]),
    ("mysqladmin", &[Flag::Attached("-p")]),
    ("mariadb", &[Flag::Attached("-p")]),
    ("sshpass", &[Flag::Attached("-p"), Flag::Next("-p")]),
    ("redis-cli", &[Flag::Next("-a"), Flag::Next("--pass")]),
    ("docker login", &[Flag::Next("-p")]),
    ("podman login", &[Flag::Next("-p")]),
    ("helm registry login", &[Flag::Next("-p")]),
    ("curl", &[Flag::Pair("-u", ':'), Flag::Pair("--user", ':'), Flag::Pair("--proxy-user", ':')]),
    ("ldapsearch", &[Flag::Next("-w")]),
    ("mongosh", &[Flag::Next("-p")]),
    ("smbclient", &[Flag::Pair("-U", '%')]),
    ("openssl", &[Flag::Attached("pass:")]),
    ("sqlcmd", &[Flag::Next("-P"), Flag::Attached("-P")]),
];

/// What each form begins with.
pub(crate) const KEYWORDS: &[(&str, Form)] = &[
    ("://", Form::Address),
    ("-----BEGIN ", Form::Key),
    ("Private-Lines:", Form::PuttyKey),
    ("eyJ", Form::WebToken),
    ("bearer ", Form::Bearer),
    ("basic ", Form::Basic),
    ("kind: secret", Form::Manifest),
    ("identified by ", Form::Identified),
    ("--password-stdin", Form::Piped),
    ("seed phrase", Form::Phrase),
    ("recovery phrase", Form::Phrase),
    // `-----BEGIN`, `sk-`, `sk_live_`, `ghp_`, `gho_`, `ghs_`, `github_pat_`, `glpat-`, `AKIA`, `AIza`, `xoxb-`, `xoxp-`, `eyJ`,
    // `npm_`, `hf_`, `SG.`, `dop_v1_`, `hvs.`.
    ("LS0tLS1CRUdJTi", Form::Encoded),
    ("c2st", Form::Encoded),
    ("c2tfbGl2ZV", Form::Encoded),
    ("Z2hwX", Form::Encoded),
    ("Z2hvX", Form::Encoded),
    ("Z2hzX", Form::Encoded),
    ("Z2l0aHViX3BhdF", Form::Encoded),
    ("Z2xwYXQt", Form::Encoded),
    ("QUtJQ", Form::Encoded),
    ("QUl6Y", Form::Encoded),
    ("eG94Y", Form::Encoded),
    ("eG94cC", Form::Encoded),
    ("ZXlK", Form::Encoded),
    ("bnBtX", Form::Encoded),
    ("aGZf", Form::Encoded),
    ("U0cu", Form::Encoded),
    ("ZG9wX3YxX", Form::Encoded),
    ("aHZzL", Form::Encoded),
    ("mysql ", Form::Program(0)),
    ("mysqldump ", Form::Program(1)),
    ("mysqladmin ", Form::Program(2)),
    ("mariadb ", Form::Program(3)),
    ("sshpass ", Form::Program(4)),
    ("redis-cli ", Form::Program(5)),
    ("docker login ", Form::Program(6)),
    ("podman login ", Form::Program(7)),
    ("helm registry login ", Form::Program(8)),
    ("curl ", Form::Program(9)),
    ("ldapsearch ", Form::Program(10)),
    ("mongosh ", Form::Program(11)),
    ("smbclient ", Form::Program(12)),
    ("openssl ", Form::Program(13)),
    ("sqlcmd ", Form::Program(14)),
];

/// Most bytes of an address's name and password.
const USERINFO: usize = 320;
/// Shortest token that is an address's whole name, bytes.
const LONE_TOKEN: usize = 20;
/// Bytes within which a key in armour ends.
const LONGEST_KEY: usize = 16 << 10;
/// Most bytes of the words in a line of armour.
const ARMOUR: usize = 60;
/// Fewest words of a phrase.
const PHRASE: usize = 6;
/// Bytes of base64 that are read to see what it is of.
const ENCODED: usize = 96;
/// Shortest token of a bearer, bytes, and the shortest that may be letters of one case alone.
const BEARER: usize = 12;
const BEARER_LETTERS: usize = 16;

/// The name and the password of an address, where it has both, or a token for its name. `at` is behind the `://`.
pub(crate) fn userinfo(text: &str, at: usize) -> Option<(usize, usize)> {
    let rest = text.as_bytes().get(at..)?;
    let end = rest.iter().take(USERINFO).position(|byte| {
        byte.is_ascii_whitespace()
            || byte.is_ascii_control()
            || matches!(byte, b'@' | b'/' | b'"' | b'\'' | b'<' | b'>' | b'`' | b'\\' | b'?' | b'#' | b',')
    })?;
    if rest.get(end) != Some(&b'@') {
        return None;
    }
    let userinfo = text.get(at..at + end)?;
    let is_one = match userinfo.split_once(':') {
        Some((_, password)) => {
            let inside = password.strip_prefix(['{', '$', '<']).map_or("", |rest| rest);
            !password.is_empty()
                && !values::is_template(password)
                && !(password.starts_with(['{', '<', '%'])
                    && (inside.ends_with(['}', '>', '%']) || password.len() < 3))
        }
        None => userinfo.len() >= LONE_TOKEN && values::is_random(userinfo),
    };
    is_one.then_some((at, at + end))
}

/// A private key in armour that begins here: to its end, or to the text's.
pub(crate) fn key(text: &str, at: usize, len: usize) -> Option<(usize, usize)> {
    let rest = text.get(at + len..)?;
    let head = rest.get(..rest.floor_char_boundary(ARMOUR))?;
    let label = head.split_once("-----").map(|(label, _)| label)?;
    if !label.contains("PRIVATE KEY") && !label.contains("Static key") {
        return None;
    }
    let ends = format!("-----END {label}-----");
    let near = rest.get(..rest.floor_char_boundary(LONGEST_KEY))?;
    let begun = label.len() + "-----".len();
    let end = memchr::memmem::find(near.as_bytes(), ends.as_bytes());
    // Only what is a key: whoever approves a command is to see what stands between two such lines.
    let length = match end.filter(|end| near.get(begun..*end).is_some_and(is_armoured)) {
        Some(end) => end + ends.len(),
        None => begun + unended(rest.get(begun..).unwrap_or_default()),
    };
    Some((at, at + len + length))
}

/// Whether a text is what stands in armour: lines of base64 and headers (`DEK-Info: AES-128-CBC,0F`), as they are or in quotes,
/// their ends escaped or not.
fn is_armoured(text: &str) -> bool {
    let is_edge = |c: char| c.is_ascii_whitespace() || matches!(c, '"' | '\'' | '+' | ',' | '\\');
    let is_base64 =
        |line: &str| line.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"+/=".contains(&byte));
    let is_header = |line: &str| {
        line.split_once(": ").is_some_and(|(name, _)| {
            name.starts_with(|c: char| c.is_ascii_uppercase())
                && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
        }) && !line.contains([';', '|', '&', '`', '$', '<', '>'])
    };
    let lines =
        text.split(['\n', '\r']).flat_map(|line| line.split("\\n")).flat_map(|line| line.split("\\r"));
    lines.map(|line| line.trim_matches(is_edge)).all(|line| is_base64(line) || is_header(line))
}

/// Bytes of the lines of base64 and of armour's headers at the beginning of a text; line ends may be escaped.
fn unended(text: &str) -> usize {
    let bytes = text.as_bytes();
    let mut end = 0;
    loop {
        let rest = bytes.get(end..).unwrap_or_default();
        let is_end = |byte: &u8| matches!(byte, b'\n' | b'\r' | b'\\' | b'"' | b'\'');
        // No further than a line of base64 goes: others end where they are seen to be none.
        let skip = |at: usize, is_part: fn(&u8) -> bool| {
            at + rest.get(at..).unwrap_or_default().iter().take_while(|byte| is_part(byte)).count()
        };
        let is_blank: fn(&u8) -> bool = |byte| matches!(byte, b' ' | b'\t');
        let base64 = skip(skip(0, is_blank), |byte| byte.is_ascii_alphanumeric() || b"+/=-".contains(byte));
        let base64 = skip(base64, is_blank);
        // `Proc-Type: 4,ENCRYPTED`.
        let header = rest.iter().take(ARMOUR).position(is_end).filter(|end| {
            let line = rest.get(..*end).unwrap_or_default();
            line.contains(&b':') && line.first().is_some_and(u8::is_ascii_uppercase)
        });
        let line = match header {
            _ if rest.get(base64).is_none_or(is_end) => base64,
            Some(end) => end,
            None => return end,
        };
        end += line;
        end += match bytes.get(end..) {
            Some([b'\n' | b'\r', ..]) => 1,
            Some([b'\\', b'n' | b'r', ..]) => 2,
            _ => return end,
        };
    }
}

/// The lines of a key in a file of PuTTY's.
pub(crate) fn putty_key(text: &str, at: usize, len: usize) -> Option<(usize, usize)> {
    let rest = text.get(at + len..)?;
    // A number stands there.
    let begin = rest.bytes().take(ARMOUR).position(|byte| byte == b'\n')? + 1;
    let lines = rest.get(begin..)?;
    let is_part = |line: &str| {
        !line.trim().is_empty()
            && line.trim().bytes().all(|b| b.is_ascii_alphanumeric() || b"+/=".contains(&b))
    };
    let length: usize = lines.split_inclusive('\n').take_while(|line| is_part(line)).map(str::len).sum();
    (length > 0).then(|| {
        (at + len + begin, at + len + begin + lines.get(..length).map_or(0, |lines| lines.trim_end().len()))
    })
}

/// A web token that begins here.
pub(crate) fn web_token(text: &str, at: usize) -> Option<(usize, usize)> {
    let bytes = text.as_bytes();
    let is_part = |byte: &&u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-');
    // Where such a run begins, and nowhere else in it: each is gone through once, whatever the text.
    let before = at.checked_sub(1).and_then(|at| bytes.get(at));
    let is_within = matches!(before, Some(b'_' | b'-'));
    if is_within || !begins_word(bytes, at) || bytes.get(at..)?.get(..3)? != b"eyJ" {
        return None;
    }
    let run = |from: usize| bytes.get(from..).unwrap_or_default().iter().take_while(is_part).count();
    let first = at + run(at);
    let second = first + 1;
    if first - at < 11 || bytes.get(first) != Some(&b'.') || bytes.get(second..)?.get(..3)? != b"eyJ" {
        return None;
    }
    let third = second + run(second);
    if third - second < 11 || bytes.get(third) != Some(&b'.') {
        return None;
    }
    Some((at, third + 1 + run(third + 1)))
}

/// A bearer's token, with the word before it.
pub(crate) fn bearer(text: &str, at: usize, len: usize) -> Option<(usize, usize)> {
    let rest = text.as_bytes().get(at + len..)?;
    let is_part = |byte: &&u8| byte.is_ascii_alphanumeric() || b"._~+/=-".contains(byte);
    let token = rest.get(..rest.iter().take_while(is_part).count())?;
    let is_one = token.iter().any(u8::is_ascii_digit)
        || token
            .windows(2)
            .any(|pair| matches!(pair, [a, b] if a.is_ascii_lowercase() && b.is_ascii_uppercase()))
        || token
            .split(|byte| matches!(byte, b'-' | b'/' | b'.' | b'_'))
            .any(|part| part.len() >= BEARER_LETTERS);
    (begins_word(text.as_bytes(), at) && token.len() >= BEARER && is_one)
        .then(|| (at, at + len + token.len()))
}

/// The base64 of a name and a password.
pub(crate) fn basic(text: &str, at: usize, len: usize) -> Option<(usize, usize)> {
    let rest = text.get(at + len..)?;
    let run = base64_run(rest);
    let said = values::decoded(rest.get(..run)?, ENCODED);
    let is_pair = said.contains(&b':')
        && said.iter().all(|byte| byte.is_ascii_graphic() || *byte == b' ' || !byte.is_ascii());
    (run >= 8 && is_pair).then_some((at + len, at + len + run))
}

/// Base64 of what `is_secret` is told: a text of ASCII, the beginning of what was encoded.
pub(crate) fn encoded(text: &str, at: usize, is_secret: impl Fn(&str) -> bool) -> Option<(usize, usize)> {
    let before = at.checked_sub(1).and_then(|at| text.as_bytes().get(at));
    if before.is_some_and(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'/' | b'_' | b'-'))
        && !begins_word(text.as_bytes(), at)
    {
        return None;
    }
    let rest = text.get(at..)?;
    let said = values::decoded(rest.get(..rest.floor_char_boundary(ENCODED * 2))?, ENCODED);
    let ascii = said.iter().take_while(|byte| byte.is_ascii_graphic() || byte.is_ascii_whitespace()).count();
    if ascii < 16 || !is_secret(std::str::from_utf8(said.get(..ascii)?).ok()?) {
        return None;
    }
    Some((at, at + base64_run(rest)))
}

/// What a user is identified by: a text in quotes.
pub(crate) fn identified(text: &str, at: usize, len: usize) -> Option<(usize, usize)> {
    let begin = at + len;
    let rest = text.get(begin..)?;
    let inside = rest.strip_prefix('\'').or_else(|| rest.strip_prefix('"'))?;
    let end = inside.get(..inside.floor_char_boundary(USERINFO))?.find(['\'', '"', '\n'])?;
    let is_one = end > 0 && !values::is_placeholder(inside.get(..end)?);
    is_one.then_some((begin + 1, begin + 1 + end))
}

/// What is echoed into a pipe in the same line.
pub(crate) fn piped(text: &str, at: usize) -> Option<(usize, usize)> {
    let begin = text.floor_char_boundary(at.saturating_sub(USERINFO));
    let before = text.get(begin..at)?;
    let line = before.rfind('\n').map_or(0, |at| at + 1);
    let said = before.get(line..)?.find("echo ")? + line + "echo ".len();
    let word = before.get(said..)?.split_once(" |")?.0;
    let inside = word.trim_start_matches(['-', 'n', ' ', '"', '\'']);
    let start = begin + said + word.len() - inside.len();
    let value = inside.trim_end_matches(['"', '\'', ' ']);
    (!value.is_empty() && !values::is_placeholder(value)).then_some((start, start + value.len()))
}

/// Words behind a colon, to the line's end: twelve at least, or somewhat fewer.
pub(crate) fn phrase(text: &str, at: usize, len: usize) -> Option<(usize, usize)> {
    let rest = text.get(at + len..)?;
    let near = rest.get(..rest.floor_char_boundary(USERINFO))?;
    let line = near.trim_start_matches(['"', ' ']).strip_prefix([':', '='])?.trim_start_matches([' ', '"']);
    let start = at + len + near.len() - line.len();
    let words = line
        .find(|c: char| !c.is_ascii_lowercase() && c != ' ')
        .map_or(line, |end| line.get(..end).unwrap_or_default())
        .trim_end();
    (words.split(' ').count() >= PHRASE).then_some((start, start + words.len()))
}

fn base64_run(text: &str) -> usize {
    text.bytes().take_while(|byte| byte.is_ascii_alphanumeric() || b"+/=_-".contains(byte)).count()
}

/// The values in a manifest's `data` and `stringData`, each on a line of its own.
pub(crate) fn manifest(document: &str, begin: usize, secrets: &mut Vec<(usize, usize)>) {
    let mut at = begin;
    let mut data_indent = None;
    for line in document.split_inclusive('\n') {
        let content = line.trim();
        let indent = line.len() - line.trim_start().len();
        if !content.is_empty() && !content.starts_with('#') {
            if let Some(least) = data_indent {
                if indent <= least {
                    data_indent = None;
                } else {
                    // A value may go on over lines that have no name.
                    let value = content
                        .split_once(": ")
                        .map_or(if content.ends_with(':') { "" } else { content }, |(_, value)| value.trim());
                    if !value.is_empty()
                        && !matches!(value, "|" | ">" | "|-" | ">-")
                        && !values::is_placeholder(value)
                    {
                        let start = at + line.trim_end().len() - value.len();
                        secrets.push((start, start + value.len()));
                    }
                }
            }
            if data_indent.is_none() && matches!(content, "data:" | "stringData:") {
                data_indent = Some(indent);
            }
        }
        at += line.len();
    }
}

/// The passwords in a program's words. `words`: each with where it begins.
pub(crate) fn passwords(program: usize, words: &[(usize, &str)], secrets: &mut Vec<(usize, usize)>) {
    let Some((_, flags)) = PROGRAMS.get(program) else { return };
    let mut words = words.iter().peekable();
    while let Some((at, word)) = words.next() {
        for flag in *flags {
            let (start, value) = match flag {
                Flag::Attached(flag) => match word.strip_prefix(flag) {
                    Some(value) => (at + flag.len(), value),
                    None => continue,
                },
                Flag::Next(flag) => match (word.strip_prefix(flag), words.peek()) {
                    (Some(""), Some((at, value))) if !value.starts_with('-') => (*at, *value),
                    (Some(attached), _) if attached.starts_with('=') => {
                        (at + flag.len() + 1, attached.get(1..).unwrap_or_default())
                    }
                    _ => continue,
                },
                Flag::Pair(flag, _) => match (word.strip_prefix(flag), words.peek()) {
                    (Some(""), Some((at, value))) if !value.starts_with('-') => (*at, *value),
                    (Some(attached), _) if attached.starts_with('=') => {
                        (at + flag.len() + 1, attached.get(1..).unwrap_or_default())
                    }
                    // `-uname:password`.
                    (Some(attached), _) if flag.len() == 2 && !attached.is_empty() => {
                        (at + flag.len(), attached)
                    }
                    // `-sSu name:password`.
                    (None, Some((at, value))) if ends_cluster(word, flag) => (*at, *value),
                    _ => continue,
                },
            };
            let inside = value.trim_start_matches(['"', '\'']);
            let (start, value) = (start + value.len() - inside.len(), inside.trim_end_matches(['"', '\'']));
            let (start, value) = match flag {
                Flag::Pair(_, by) => match value.split_once(*by) {
                    Some((user, password)) => (start + user.len() + by.len_utf8(), password),
                    None => continue,
                },
                _ => (start, value),
            };
            if !value.is_empty() && !values::is_placeholder(value) {
                secrets.push((start, start + value.len()));
            }
        }
    }
}

/// Whether a word is several short flags, the last of them this one.
fn ends_cluster(word: &str, flag: &str) -> bool {
    let last =
        |cluster: &str| flag.strip_prefix('-').is_some_and(|last| last.len() == 1 && cluster.ends_with(last));
    word.strip_prefix('-')
        .is_some_and(|cluster| cluster.bytes().all(|b| b.is_ascii_alphabetic()) && last(cluster))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_with_passwords() {
        for (text, expected) in [
            ("redis://:pw@h", Some(":pw")),
            ("https://u:pw@h/x", Some("u:pw")),
            ("https://u@h/x", None),
            ("https://h/x@y", None),
            ("https://u:@h", None),
            ("postgres://u:${PW}@h", None),
            ("postgres://{}:{}@h", None),
            ("https://a1b2c3d4e5f6g7h8i9j0k1@github.com", Some("a1b2c3d4e5f6g7h8i9j0k1")),
        ] {
            let at = text.find("://").expect("one") + 3;
            assert_eq!(userinfo(text, at).and_then(|(start, end)| text.get(start..end)), expected, "{text}");
        }
    }

    #[test]
    fn programs_take_passwords_behind_short_flags() {
        for (program, line, expected) in [
            ("mysql", "-uroot -phunter2 db", Some("hunter2")),
            ("mysql", "-uroot -p db", None),
            ("curl", "-u 'me:hunter2' https://h", Some("hunter2")),
            ("curl", "-u me https://h", None),
            ("curl", "-ume:hunter2 https://h", Some("hunter2")),
            ("curl", "-u'me:hunter2' https://h", Some("hunter2")),
            ("curl", "-sSu me:hunter2 https://h", Some("hunter2")),
            ("curl", "-s https://h:1/x", None),
            ("smbclient", "-Ume%hunter2 //h/s", Some("hunter2")),
            ("sshpass", "-p hunter2 ssh h", Some("hunter2")),
            ("redis-cli", "-h x -a s3cret", Some("s3cret")),
        ] {
            let index = PROGRAMS.iter().position(|(name, _)| *name == program).expect("it");
            let mut at = 0;
            let words: Vec<_> = line
                .split_inclusive(' ')
                .map(|word| {
                    let begin = at;
                    at += word.len();
                    (begin, word.trim())
                })
                .collect();
            let mut found = Vec::new();
            passwords(index, &words, &mut found);
            assert_eq!(found.first().map(|(start, end)| &line[*start..*end]), expected, "{line}");
        }
        for (keyword, form) in KEYWORDS {
            if let Form::Program(index) = form {
                assert_eq!(keyword.trim(), PROGRAMS[*index].0);
            }
        }
    }

    #[test]
    fn a_manifests_data_goes() {
        let text = "kind: Secret\ndata:\n  a: aHVudGVyMg==\n  b: |\n    bGluZQ==\ntype: Opaque\n";
        let mut found = Vec::new();
        manifest(text, 0, &mut found);
        let found: Vec<_> = found.into_iter().map(|(start, end)| &text[start..end]).collect();
        assert_eq!(found, ["aHVudGVyMg==", "bGluZQ=="]);
    }
}
