//! What stands where a secret would: whether it is one, or a word that says what belongs there. Pure.

use crate::{REDACTED, names};

/// Shortest value that is told by its randomness, bytes.
const SHORTEST_RANDOM: usize = 16;
/// Least of it that is no word, bytes.
const LEAST_ODD: usize = 10;
/// Least information of a random value, bits a character.
const LEAST_ENTROPY: f32 = 3.0;

/// Words that stand for a value or its type.
#[rustfmt::skip]
const WORDS: &[&str] = &[
    "any", "array", "auto", "base64", "basic", "bearer", "bool", "boolean", "buffer", "bytes",
    "changeme", "char", "const", "custom", "data", "default", "digest", "disabled", "dynamic", "empty",
    "enabled", "env", "environment", "example", "external", "false", "file", "float", "generated",
    "hashed", "hidden", "int", "integer", "invalid", "is", "keychain", "keyring", "let", "long",
    "masked", "missing", "n/a", "never", "nil", "no", "none", "not", "null", "number", "object", "off",
    "ok", "on", "optional", "pass", "path", "placeholder", "plain", "plaintext", "present", "private",
    "prompt", "public", "random", "readonly", "redacted", "removed", "required", "self", "set",
    "static", "stdin", "str", "string", "test", "text", "this", "todo", "true", "tbd", "undefined",
    "unknown", "unset", "uuid", "valid", "value", "var", "varchar", "vault", "void", "xxx", "yes",
    "your", "await", "new", "return", "if", "else", "and", "or", "the", "to", "for", "from", "in",
    "must", "should", "can", "will", "has", "was", "are", "a", "an", "of", "with", "when", "where",
    "which", "that", "it", "you", "flag", "option", "argument", "function", "async", "as", "inherit",
    "read", "write", "instead", "only", "via", "per", "use", "using", "be", "cannot", "does", "field",
    "header", "may", "by",
];

/// Words that stand for a value even where a name leaves no doubt: types, and what is put into a secret's place.
#[rustfmt::skip]
const TYPES: &[&str] = &[
    "bool", "boolean", "bytes", "false", "hidden", "int", "integer", "masked", "nil", "none", "null",
    "number", "object", "optional", "redacted", "removed", "required", "str", "string", "true",
    "undefined", "bearer", "basic", "bot", "inherit", "read", "write",
];

/// Whether it certainly holds a place only, as what is the value of a secret's name in JSON: a reference, stars, a type.
pub(crate) fn is_template(value: &str) -> bool {
    let value = value.trim();
    value.len() > 1
        && (TYPES.iter().any(|word| word.eq_ignore_ascii_case(value))
            || value.contains(REDACTED)
            || is_reference(value)
            || value.bytes().all(|byte| matches!(byte, b'*' | b'.'))
            || value.starts_with('<') && value.ends_with('>')
            || ["process.env", "os.environ", "env:", "file:", "vault:", "op://", "env.", "secrets."]
                .iter()
                .any(|start| starts_with(value, start)))
}

/// Whether it says what belongs there and is none itself: a reference, a template, stars, a type.
pub(crate) fn is_placeholder(value: &str) -> bool {
    let value = value.trim();
    let bytes = value.as_bytes();
    let Some(first) = bytes.first() else { return true };
    let inside =
        value.trim_matches(|c| matches!(c, '<' | '>' | '[' | ']' | '{' | '}' | '(' | ')' | '"' | '\''));
    let lower = |words: &[&str]| words.iter().any(|word| starts_with(value, word));
    // One character again and again, or a row of dots, stars and crosses.
    bytes.iter().all(|byte| byte == first)
        || bytes.iter().all(|byte| {
            matches!(byte, b'*' | b'.' | b'x' | b'X' | b'-' | b'_' | b'\xE2' | b'\x80' | b'\xA2' | b'\xA6')
        })
        || value.contains(REDACTED)
        || inside.eq_ignore_ascii_case("redacted")
        || is_known_word(inside)
        || (*first == b'<' && value.ends_with('>'))
        || (*first == b'[' && value.ends_with(']'))
        || (*first == b'%' && value.len() > 2 && value.ends_with('%'))
        || (*first == b'@' && value.len() > 2 && value.ends_with('@'))
        || matches!(
            bytes,
            [b'%', b'a'..=b'z'] | [b'{', b'}'] | [b'?'] | [b'{', b'0'..=b'9', b'}'] | [b'{', b':', ..]
        )
        || is_reference(value)
        || lower(&[
            "your-",
            "your_",
            "your ",
            "<your",
            "my-secret-here",
            "insert-",
            "insert_",
            "replace-",
            "replace_",
            "replace me",
            "put-",
            "process.env",
            "os.environ",
            "os.getenv",
            "getenv",
            "env.",
            "env:",
            "env(",
            "env[",
            "import.meta",
            "secrets.",
            "vars.",
            "file:",
            "vault:",
            "op://",
            "ref+",
            "arn:aws:secretsmanager",
            "enc[",
            "sops:",
            "!ref",
            "!sub",
            "!secret",
            "!vault",
            "sha256:",
            "sha512-",
            "sha256-",
            "sha384-",
            "keychain:",
            "xxxx",
            "****",
            "....",
            "system.getenv",
            "example-",
            "example_",
        ])
}

fn starts_with(value: &str, start: &str) -> bool {
    value.get(..start.len()).is_some_and(|begin| begin.eq_ignore_ascii_case(start))
}

/// A variable of a shell or a template: `$X`, `${X}`, `$(x)`, `{{ x }}`, `#{x}`, `{x}`.
fn is_reference(value: &str) -> bool {
    let rest = match value.as_bytes() {
        [b'$', b'{' | b'(', ..] | [b'{', b'{', ..] | [b'#', b'{', ..] | [b'`', ..] => return true,
        [b'{', rest @ .., b'}'] | [b'$', rest @ ..] | [b':', rest @ ..] => rest,
        _ => return false,
    };
    !rest.is_empty()
        && !rest.iter().all(u8::is_ascii_digit)
        && rest.iter().all(|byte| byte.is_ascii_alphabetic() || matches!(byte, b'_' | b'.'))
        || rest.len() == 1
}

/// A word that stands for a value or its type.
pub(crate) fn is_known_word(value: &str) -> bool {
    WORDS.iter().any(|word| word.eq_ignore_ascii_case(value))
}

/// Whether it is written as a name in code is, without a digit: `token`, `my_token`, `Secret`.
pub(crate) fn is_identifier(value: &str) -> bool {
    !value.is_empty() && value.bytes().all(|byte| byte.is_ascii_alphabetic() || byte == b'_')
}

/// Names with points, arrows or colons between them: `config.token`, `self->key`, `std::env`, `login.form.password`.
pub(crate) fn is_path_in_code(value: &str) -> bool {
    let mut parts = value.split(['.', ':', '>', '?', '!', '/']).map(|part| part.trim_end_matches('-'));
    let is_part = |part: &str| {
        let digits = part.bytes().filter(u8::is_ascii_digit).count();
        part.len() < 32
            && digits <= 2
            && part
                .bytes()
                .all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-' | b'$' | b'@'))
            && !(digits > 0 && part.bytes().any(|byte| byte.is_ascii_uppercase()) && part.len() > 12)
    };
    value.contains(['.', ':', '>', '/'])
        && value.len() < 96
        && parts.all(is_part)
        && value.bytes().any(|byte| byte.is_ascii_alphabetic())
}

/// A value that is itself a name of a secret, or of a setting: `"auth_token"`, `X-Api-Key`, `ACCESS_TOKEN`.
pub(crate) fn is_name(value: &str) -> bool {
    value.bytes().filter(u8::is_ascii_digit).count() <= 1
        && value.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-' | b'.' | b' '))
        && names::judge(value) != names::Surety::None
}

/// Words with spaces between them, as people read them: labels, sentences.
pub(crate) fn is_prose(value: &str) -> bool {
    let mut words = 0;
    for word in value.split_ascii_whitespace() {
        let word = word.trim_matches(|c: char| c.is_ascii_punctuation());
        if !word.bytes().all(|byte| {
            byte.is_ascii_alphabetic() || matches!(byte, b'\'' | b'-' | b'/' | b'.') || !byte.is_ascii()
        }) {
            return false;
        }
        words += 1;
    }
    words > 1
}

/// Where something is: a path, an address.
pub(crate) fn is_place(value: &str) -> bool {
    let is_path = value.starts_with('/')
        || value.starts_with("./")
        || value.starts_with("../")
        || value.starts_with("~/");
    is_path
        && value.bytes().filter(|byte| *byte == b'/').count() > 1
        && !value.contains(['+', '='])
        && !has_random_part(value)
        || value.contains("://")
}

fn has_random_part(path: &str) -> bool {
    path.split('/').any(|part| part.len() >= 24 && is_random(part))
}

/// Random characters: letters and digits of which few come again, and no digest, no UUID.
pub(crate) fn is_random(value: &str) -> bool {
    let value = value.trim_end_matches('=');
    if value.len() < SHORTEST_RANDOM
        || !value.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"+/_-.~:|$!@#%^&*".contains(&byte))
    {
        return false;
    }
    let has = |kind: fn(&u8) -> bool| value.bytes().any(|byte| kind(&byte));
    let digits = value.bytes().filter(u8::is_ascii_digit).count();
    let letters = value.bytes().filter(u8::is_ascii_alphabetic).count();
    if letters < 3 || is_uuid(value) || is_path_in_code(value) {
        return false;
    }
    // Words, dates and versions between hyphens are none, however many.
    let is_word = |part: &&str| {
        part.len() <= 8 && part.bytes().all(|byte| byte.is_ascii_digit())
            || part.len() <= 12 && part.bytes().all(|byte| byte.is_ascii_alphabetic())
    };
    let odd: usize = value.split(['-', '_', '.', '/', ':']).filter(|part| !is_word(part)).map(str::len).sum();
    if odd < LEAST_ODD {
        return false;
    }
    let is_mixed = has(u8::is_ascii_lowercase) && has(u8::is_ascii_uppercase);
    // Kebab and camel words have few digits.
    if digits * 12 < value.len()
        && !(is_mixed && digits > 0 && longest_run(value) >= 20)
        && !(is_mixed && odd >= 20 && !has_words(value))
    {
        return false;
    }
    entropy(value.as_bytes()) >= LEAST_ENTROPY
}

fn longest_run(value: &str) -> usize {
    value.split(|c: char| !c.is_ascii_alphanumeric()).map(str::len).max().unwrap_or_default()
}

/// Humps as of camelCase: a capital seldom follows another in words.
fn has_words(value: &str) -> bool {
    let changes = value
        .as_bytes()
        .windows(2)
        .filter(|pair| matches!(pair, [a, b] if a.is_ascii_lowercase() != b.is_ascii_lowercase()))
        .count();
    changes * 3 < value.len()
}

/// Letters alone that are no words: capitals and small ones as they come.
pub(crate) fn is_gibberish(value: &str) -> bool {
    let is_part = |byte: u8| byte.is_ascii_alphabetic() || matches!(byte, b'_' | b'-');
    value.len() >= 8 && value.bytes().all(is_part) && !has_words(value)
}

/// Hex digits alone, of the length of a digest; or such behind a hyphen.
pub(crate) fn is_digest(value: &str) -> bool {
    let value = value.rsplit(['-', ':', '_']).next().unwrap_or(value);
    matches!(value.len(), 32 | 40 | 56 | 64 | 96 | 128) && value.bytes().all(|byte| byte.is_ascii_hexdigit())
}

/// Whether it is written as a UUID is.
pub(crate) fn is_uuid(value: &str) -> bool {
    value.len() == 36
        && value.bytes().enumerate().all(|(at, byte)| {
            if matches!(at, 8 | 13 | 18 | 23) { byte == b'-' } else { byte.is_ascii_hexdigit() }
        })
}

/// Shannon's, of the bytes' frequencies, bits a byte.
pub(crate) fn entropy(bytes: &[u8]) -> f32 {
    let mut counts = [0_u32; 256];
    for byte in bytes {
        if let Some(count) = counts.get_mut(usize::from(*byte)) {
            *count += 1;
        }
    }
    let all = bytes.len().max(1) as f32;
    counts
        .iter()
        .filter(|count| **count > 0)
        .map(|count| *count as f32 / all)
        .map(|share| -share * share.log2())
        .sum()
}

/// What base64 says, of either alphabet, at most so many bytes of it.
pub(crate) fn decoded(text: &str, most: usize) -> Vec<u8> {
    let (mut bits, mut held) = (0_u32, 0);
    let mut out = Vec::with_capacity(most.min(text.len()));
    for byte in text.bytes() {
        let value = match byte {
            b'A'..=b'Z' => byte - b'A',
            b'a'..=b'z' => byte - b'a' + 26,
            b'0'..=b'9' => byte - b'0' + 52,
            b'+' | b'-' => 62,
            b'/' | b'_' => 63,
            _ => break,
        };
        bits = bits << 6 | u32::from(value);
        held += 6;
        if held >= 8 {
            held -= 8;
            out.push((bits >> held) as u8);
            if out.len() >= most {
                break;
            }
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn placeholders_are_told_from_secrets() {
        for value in [
            "${TOKEN}",
            "$TOKEN",
            "<your-key>",
            "{{ secret }}",
            "****",
            "xxxxxxxx",
            "null",
            "string",
            "process.env.X",
            "your-api-key",
            "[redacted]",
            "%TOKEN%",
            "%s",
            "{}",
            "",
            "true",
        ] {
            assert!(is_placeholder(value), "{value}");
        }
        for value in ["hunter2", "$ecret1!", "correct horse", "Xk9", "p@ss", "{curly", "s3cr3t"] {
            assert!(!is_placeholder(value), "{value}");
        }
    }

    #[test]
    fn random_is_what_has_no_words() {
        for value in [
            "Zm9vYmFyMTIzNDU2Nzg5MGFiY2Rl",
            "a1b2c3d4e5f6g7h8i9j0",
            "9f8e7d6c5b4a39281706f5e4",
            "kX82jd-9dkE_02kdPq",
        ] {
            assert!(is_random(value), "{value}");
        }
        for value in [
            "claude-sonnet-4-5-20250929-of-today-and-more-words",
            "my-component-name-here",
            "getUserAuthenticationToken",
            "config.providers.openai.key",
            "123e4567-e89b-12d3-a456-426614174000",
            "aaaaaaaaaaaaaaaaaaaaa1",
        ] {
            assert!(!is_random(value), "{value}");
        }
        assert_eq!(decoded("aGVsbG8gd29ybGQ=", 5), b"hello");
        assert!(is_digest(&"0".repeat(40)) && !is_digest("0123"));
    }
}
