//! Whether what is assigned to a name is a secret, or code, a type, a word of prose.

use crate::{
    assign::{self, Assigned, By, LONGEST, SHORTEST},
    names::{self, Surety},
    values,
};

/// Shortest value of digits alone, unless it is a PIN, bytes.
const DIGITS: usize = 10;

/// Whether what is assigned to the name of a secret is one.
pub(crate) fn is_secret(name: &str, value: &str, assigned: &Assigned) -> bool {
    let trimmed = value.trim();
    let has = |kind: fn(char) -> bool| trimmed.contains(kind);
    let digits = trimmed.bytes().all(|byte| byte.is_ascii_digit());
    if assign::is_four_words(trimmed.as_bytes()) && assigned.line {
        return true;
    }
    if values::is_placeholder(trimmed)
        || trimmed.len() < SHORTEST
        || values::is_place(trimmed) && !assigned.quoted && !trimmed.contains('@')
    {
        return false;
    }
    // It says its own name: constants, keys of translations.
    if values::is_name(trimmed) || trimmed.eq_ignore_ascii_case(name) {
        return false;
    }
    if digits {
        return trimmed.len() >= DIGITS || trimmed.len() >= SHORTEST && is_of_digits(name);
    }
    if assigned.by == By::Is && assigned.quoted {
        let lower = name.to_ascii_lowercase();
        let is_password =
            ["password", "passwd", "secret", "passphrase", "pwd"].iter().any(|word| lower.ends_with(word));
        let is_odd = has(|c| c.is_ascii_digit()) || has(|c| "!@#$%^&*+=~".contains(c));
        return values::is_random(trimmed)
            || is_password
                && is_odd
                && trimmed.len() >= 6
                && !values::is_prose(trimmed)
                && !values::is_path_in_code(trimmed);
    }
    if assigned.by == By::Space {
        let is_setting = assigned.line && has(|c| c.is_ascii_digit()) && has(|c| c.is_ascii_alphabetic());
        return (values::is_random(trimmed) || is_setting)
            && !values::is_digest(trimmed)
            && !values::is_uuid(trimmed)
            && !values::is_path_in_code(trimmed);
    }
    if assigned.by == By::Is {
        return has(|c| c.is_ascii_digit())
            && has(|c| c.is_ascii_alphabetic())
            && trimmed.trim_end_matches('.').len() >= 6;
    }
    if matches!(assigned.by, By::Comma | By::Call) {
        let is_odd = has(|c| c.is_ascii_digit())
            || has(|c| "!@#$%^&*+=/".contains(c))
            || values::is_gibberish(trimmed);
        return assigned.quoted
            && is_odd
            && !values::is_place(trimmed)
            && !values::is_prose(trimmed)
            && !values::is_path_in_code(trimmed);
    }
    let is_shouted = names::is_shouted(name);
    if assigned.quoted {
        if values::is_prose(trimmed) {
            return is_shouted || name.to_ascii_lowercase().ends_with("phrase");
        }
        let is_key =
            values::is_path_in_code(trimmed) && !has(|c| c.is_ascii_digit()) && trimmed.contains(['.', '/']);
        let is_filled = trimmed.contains('{') && trimmed.contains(['$', ')', '}']);
        return !(is_key || is_filled || values::is_place(trimmed));
    }
    if values::is_random(trimmed)
        && matches!(assigned.by, By::Equals | By::Colon | By::Flag)
        && !matches!(assigned.next, b'(' | b'[' | b'{')
    {
        return true;
    }
    let is_called = trimmed.split_once('(').is_some_and(|(called, _)| {
        (values::is_identifier(called) || values::is_path_in_code(called))
            && (assigned.spaced || !names::is_shouted(name))
    });
    if is_called
        || matches!(assigned.next, b'(' | b'[' | b'<' | b'{') && assigned.by != By::Arrow
        || assign::is_code(trimmed.as_bytes())
        || trimmed.starts_with(['(', '[', '{', '&', '*', '!', '.', '=', '-', '/']) && !assigned.line
    {
        return false;
    }
    if values::is_identifier(trimmed) {
        if values::is_gibberish(trimmed) && !assigned.spaced && assigned.by != By::Comma {
            return true;
        }
        let is_type = (assigned.spaced || assigned.by == By::Colon)
            && trimmed.starts_with(|c: char| c.is_ascii_uppercase())
            && trimmed.contains(|c: char| c.is_ascii_lowercase())
            && !is_shouted;
        let is_setting = match assigned.by {
            By::Flag | By::Netrc => true,
            By::Equals => {
                !assigned.spaced
                    && (assigned.line
                        || is_shouted
                        || assigned.next == b'&'
                        || assigned.enclosed
                        || name.starts_with('-'))
                    && assigned.next != b')'
            }
            By::Colon => assigned.line && !matches!(assigned.next, b',' | b';'),
            By::Arrow => assigned.next == b'<',
            _ => false,
        };
        return is_setting && !is_type && !has_harmless_word(trimmed);
    }
    if trimmed.contains(['(', '{']) && trimmed.contains([')', '}']) {
        return false;
    }
    let has_digit = has(|c| c.is_ascii_digit());
    if values::is_path_in_code(trimmed) && !(has_digit && values::is_random(trimmed)) {
        // `config.token`, `std::env`: code. In a file of settings a password may have a point.
        return assigned.line && !assigned.spaced && has_digit && assigned.by == By::Equals;
    }
    // A name in code with a digit: `token2`, `s1`.
    let is_short =
        trimmed.len() < 6 && trimmed.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
    if is_short {
        return assigned.line && !assigned.spaced || is_shouted || assigned.by == By::Flag;
    }
    has_digit || has(|c| "!@#$%^&*+=~?".contains(c)) || assigned.line || is_shouted
}

/// Numbers that are secrets though they are short.
fn is_of_digits(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    ["pin", "otp", "password", "passcode", "passwd", "cvv", "cvc", "pwd", "code"]
        .iter()
        .any(|word| name.ends_with(word))
}

/// A word that a flag is followed by in a sentence or in its help.
fn has_harmless_word(value: &str) -> bool {
    values::is_known_word(value) || names::judge(value) != Surety::None
}

/// Where a header's value ends: with its line, or with what it is quoted in.
pub(crate) fn header_end(text: &str, assigned: &Assigned) -> usize {
    if assigned.quoted {
        return assigned.end;
    }
    let rest = text.as_bytes().get(assigned.start..).unwrap_or_default();
    let is_end = |byte: &u8| matches!(byte, b'\n' | b'\r' | b'"' | b'\'' | b'`' | b'\\');
    let length = rest.iter().take(LONGEST).position(is_end).unwrap_or(rest.len().min(LONGEST));
    text.floor_char_boundary(assigned.start + length)
}

/// What of a header's value is to go: all of it.
pub(crate) fn header(text: &str, assigned: &Assigned, end: usize, name: &str) -> Option<(usize, usize)> {
    let is_cookie = name.to_ascii_lowercase().contains("cookie");
    let value = text.get(assigned.start..end)?.trim_end();
    let found = (assigned.start, assigned.start + value.len());
    if values::is_placeholder(value)
        || value.contains(['{', '('])
        || matches!(assigned.by, By::Is | By::Flag | By::Netrc)
    {
        return None;
    }
    if is_cookie {
        // `cookie = await get()` is code.
        let (cookie, content) = value.split_once('=')?;
        let content = content.split(';').next().unwrap_or_default();
        let is_one = !cookie.contains(' ')
            && content.len() >= SHORTEST
            && !values::is_placeholder(content)
            && (assigned.by != By::Equals || assigned.quoted);
        return is_one.then_some(found);
    }
    let (scheme, credentials) = value.split_once(' ').unwrap_or(("", value));
    let credentials = credentials.trim();
    let first = credentials.split([' ', ',']).next().unwrap_or_default();
    let is_known = [
        "bearer",
        "basic",
        "token",
        "digest",
        "negotiate",
        "apikey",
        "bot",
        "ntlm",
        "hawk",
        "key",
        "hmac",
        "signature",
    ]
    .iter()
    .any(|known| known.eq_ignore_ascii_case(scheme))
        || scheme.contains("HMAC")
        || scheme.contains("Key");
    let is_odd = |text: &str| text.bytes().any(|byte| byte.is_ascii_digit()) || values::is_random(text);
    let is_one = !values::is_placeholder(first)
        && !values::is_name(first)
        && match scheme {
            "" => first.len() >= 6 && is_odd(first) && !values::is_path_in_code(first),
            _ if is_known => {
                first.len() >= SHORTEST
                    && (is_odd(first) || first.len() >= 16 || !values::is_identifier(first))
            }
            _ => !values::is_prose(value) && is_odd(first) && first.len() >= 12,
        };
    is_one.then_some(found)
}
