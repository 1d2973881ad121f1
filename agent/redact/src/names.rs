//! Names of secrets: of JSON's members, variables, flags, headers, settings.

/// What every name of a secret has in it, whatever the case: what has none of them is not taken to words.
#[rustfmt::skip]
pub(crate) const ROOTS: &[&str] = &[
    "auth", "bearer", "card", "code", "connection", "cookie", "cred", "csrf", "cvc", "cvv", "dsn",
    "jwt", "mnemonic", "key", "otp", "pass", "pat_", "_pat", "psk", "pin", "pwd", "secret", "session",
    "sid", "sig", "token", "webhook", "salt",
];

/// How sure a name makes that its value is a secret.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Surety {
    /// It is none.
    None,
    /// It is one if it looks random.
    Random,
    /// It is one.
    Secret,
    /// It is a header's, and goes to the end of the line.
    Header,
}

/// Words whose value is a secret, as the last word of a name or before one of what it may be about.
#[rustfmt::skip]
const SECRET_WORDS: &[&str] = &[
    "password", "passwords", "passwd", "passphrase", "passcode", "pwd", "secret", "secrets", "token",
    "credential", "credentials", "apikey", "jwt", "pin", "otp", "totp", "cvv", "cvc", "dsn", "bearer",
    "psk", "pgpassword", "sessionid", "requirepass", "mnemonic",
];
/// Words that were written together, or end in such.
#[rustfmt::skip]
const SECRET_ENDS: &[&str] = &[
    "password", "passwd", "passphrase", "token", "secret", "apikey", "secretkey", "privatekey",
    "accesskey", "authkey", "sessid", "sessionid",
];
/// Two words that mean it together.
#[rustfmt::skip]
const SECRET_PAIRS: &[(&str, &str)] = &[
    ("access", "key"), ("access", "signature"), ("account", "key"), ("admin", "key"), ("api", "key"),
    ("auth", "key"), ("backup", "code"), ("card", "number"), ("client", "key"),
    ("connection", "string"), ("consumer", "key"), ("deploy", "key"), ("encryption", "key"),
    ("host", "key"), ("integration", "key"), ("license", "key"), ("master", "key"),
    ("preshared", "key"), ("private", "key"), ("recovery", "code"), ("secret", "key"),
    ("security", "code"), ("service", "key"), ("session", "id"), ("session", "key"), ("shared", "key"),
    ("signing", "key"), ("storage", "key"), ("webhook", "url"), ("write", "key"),
];
/// Headers that carry a secret.
const HEADERS: &[&str] = &["authorization", "cookie", "cookies"];
/// Last words of names whose value is a secret if it looks random.
#[rustfmt::skip]
const RANDOM_WORDS: &[&str] = &[
    "access", "auth", "code", "key", "keys", "pass", "pat", "salt", "session", "sid", "sig",
    "signature", "webhook",
];
/// Words before `key` and `code` that make it none.
#[rustfmt::skip]
const PUBLIC: &[&str] = &[
    "cache", "country", "exit", "foreign", "group", "hot", "index", "lang", "language", "lookup",
    "object", "partition", "postal", "primary", "public", "publishable", "region", "registry",
    "routing", "shift", "sort", "source", "status", "zip", "error", "map", "row", "hash", "translation",
    "idempotency", "dedup", "id", "site", "known", "react",
];
/// Words before `token` that make it a cursor, a part of a vocabulary or a number.
#[rustfmt::skip]
const HARMLESS_TOKENS: &[&str] = &[
    "next", "page", "continuation", "stop", "progress", "sync", "sequence", "skip", "cursor", "eos",
    "bos", "pad", "unk", "mask", "sep", "cls", "special", "design", "start", "end", "max", "min", "num",
    "per", "prompt", "input", "output", "completion", "total", "current", "first", "last", "eof",
    "cancellation", "image", "audio", "previous", "prev", "resume", "change",
];
/// Last words of a name that is about a secret: where it is, of what kind, how long.
#[rustfmt::skip]
const ABOUT: &[&str] = &[
    "age", "alg", "algorithm", "arn", "at", "attempts", "banner", "budget", "bucket", "changed",
    "checker", "class", "cmd", "command", "config", "consent", "cost", "count", "counts", "created",
    "date", "description", "dir", "disabled", "docs", "domain", "enabled", "end", "endpoint",
    "endpoints", "env", "error", "errors", "exists", "exp", "expiration", "expire", "expired",
    "expires", "expiry", "factory", "field", "fields", "file", "filename", "files", "flow", "folder",
    "format", "generator", "grant", "handler", "header", "headers", "helper", "hint", "index",
    "invalid", "issued", "issuer", "kind", "label", "len", "length", "level", "lifetime", "limit",
    "limits", "link", "list", "location", "manager", "max", "message", "method", "methods",
    "middleware", "min", "missing", "mode", "model", "name", "names", "offset", "options", "params",
    "parser", "path", "paths", "pattern", "placeholder", "plugin", "policies", "policy", "position",
    "prefix", "present", "process", "prompt", "provider", "providers", "rate", "ref", "refs", "regex",
    "required", "reset", "rotated", "rotation", "rounds", "rule", "rules", "samesite", "schema",
    "scheme", "scope", "scopes", "server", "service", "settings", "size", "source", "start", "state",
    "status", "store", "stream", "strength", "suffix", "time", "timeout", "title", "ttl", "type",
    "types", "updated", "uri", "url", "usage", "used", "valid", "validation", "validator", "var",
    "variable", "variables", "version", "volume",
];
/// Words behind the word that means it which change nothing.
#[rustfmt::skip]
const NEUTRAL: &[&str] = &[
    "b64", "base", "base64", "current", "data", "default", "dev", "hash", "id", "json", "key", "main",
    "new", "old", "pem", "plain", "plaintext", "prod", "production", "raw", "salt", "staging", "str",
    "string", "test", "text", "value",
];
/// Words of which an id is none, and what they name is.
const NO_ID: &[&str] = &["token", "jwt", "credential", "credentials", "cookie", "password", "secret"];

/// Longest name, bytes.
pub(crate) const LONGEST: usize = 128;
/// Words of a name that are looked at, from its end.
const MOST_WORDS: usize = 8;

/// What a name says of its value.
pub fn judge(name: &str) -> Surety {
    if name.is_empty() || name.len() > LONGEST {
        return Surety::None;
    }
    // Behind a point is what it is: `spring.datasource.password`, and not `token.rs`.
    let name = name.rsplit('.').next().unwrap_or(name);
    let mut split = [""; MOST_WORDS];
    let count = words(name, &mut split);
    let words = split.get(..count).unwrap_or_default();
    match meaning(words, is_shouted(name)) {
        Surety::Random | Surety::Secret if is_about(words) => Surety::None,
        surety => surety,
    }
}

fn is(word: &str, list: &[&str]) -> bool {
    list.iter().any(|known| known.eq_ignore_ascii_case(word))
}

/// What a name's words say, if they are not about a secret only.
fn meaning(words: &[&str], is_shouted: bool) -> Surety {
    let Some(last) = words.last() else { return Surety::None };
    if is(last, HEADERS) {
        // `set-cookie` too.
        return Surety::Header;
    }
    let mut rest = words;
    while let Some((last, before)) = rest.split_last() {
        if means_secret(rest) {
            return Surety::Secret;
        }
        // `TOKEN_GITHUB` is a variable; `tokenColors` are colours.
        if !is_shouted && !is(last, NEUTRAL) {
            break;
        }
        rest = before;
    }
    // Variables of the environment: `DB_PASS`, `STRIPE_KEY`.
    if is_shouted && is(last, &["pass", "auth"]) {
        return Surety::Secret;
    }
    if is(last, RANDOM_WORDS) { Surety::Random } else { Surety::None }
}

/// Whether the last word, or the last two, mean a secret.
fn means_secret(words: &[&str]) -> bool {
    let ends = |word: &str| {
        SECRET_ENDS.iter().any(|end| {
            let at = word.len().checked_sub(end.len());
            at.and_then(|at| word.get(at..)).is_some_and(|tail| tail.eq_ignore_ascii_case(end))
        })
    };
    let is_pair = |first: &str, second: &str| {
        SECRET_PAIRS.iter().any(|(a, b)| a.eq_ignore_ascii_case(first) && b.eq_ignore_ascii_case(second))
    };
    match words {
        [.., first, last] => is(last, SECRET_WORDS) || ends(last) || is_pair(first, last),
        [last] => is(last, SECRET_WORDS) || ends(last),
        [] => false,
    }
}

/// Whether it is about a secret, or of something else that has the word.
fn is_about(words: &[&str]) -> bool {
    let Some((last, before)) = words.split_last() else { return false };
    let previous = before.last().copied().unwrap_or_default();
    let is_webhook = is(last, &["url"]) && is(previous, &["webhook"]);
    is(last, ABOUT) && !is_webhook
        || is(last, &["id", "ids"]) && is(previous, NO_ID)
        || is(last, &["token"]) && is(previous, HARMLESS_TOKENS)
        || is(last, &["key", "code"]) && is(previous, PUBLIC)
}

/// Whether it is a signature's: a secret in an address, and nowhere else.
pub(crate) fn is_signature(name: &str) -> bool {
    let ends = |end: &str| {
        name.len()
            .checked_sub(end.len())
            .and_then(|at| name.get(at..))
            .is_some_and(|tail| tail.eq_ignore_ascii_case(end))
    };
    ends("sig") || ends("signature")
}

/// Whether it is written as variables of the environment are.
pub(crate) fn is_shouted(name: &str) -> bool {
    name.bytes().any(|byte| byte.is_ascii_uppercase()) && !name.bytes().any(|byte| byte.is_ascii_lowercase())
}

/// The last words of a name, split at what is no letter or digit and at camelCase humps, without the digits at their end;
/// how many.
fn words<'n>(name: &'n str, into: &mut [&'n str; MOST_WORDS]) -> usize {
    let bytes = name.as_bytes();
    let class = |at: usize| bytes.get(at).copied().unwrap_or_default();
    let mut count = 0;
    let mut begin = 0;
    for at in 0..=bytes.len() {
        let (before, here, after) = (if at == 0 { 0 } else { class(at - 1) }, class(at), class(at + 1));
        let is_part = here.is_ascii_alphanumeric() || !here.is_ascii();
        let is_hump = here.is_ascii_uppercase()
            && (before.is_ascii_lowercase()
                || before.is_ascii_digit()
                || before.is_ascii_uppercase() && after.is_ascii_lowercase());
        if is_part && !is_hump {
            continue;
        }
        let word = name.get(begin..at).unwrap_or_default();
        let stem = word.trim_end_matches(|c: char| c.is_ascii_digit());
        let word = if stem.is_empty() { word } else { stem };
        if !word.is_empty() {
            if count == MOST_WORDS {
                into.rotate_left(1);
                count -= 1;
            }
            if let Some(place) = into.get_mut(count) {
                *place = word;
                count += 1;
            }
        }
        begin = if is_part { at } else { at + 1 };
    }
    count
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_secrets_are_told_from_names_about_them() {
        for name in [
            "password",
            "DB_PASSWORD",
            "dbPassword",
            "PGPASSWORD",
            "MYSQL_PWD",
            "apiKey",
            "X-Api-Key",
            "aws_secret_access_key",
            "accessKeyID",
            "AccountKey",
            "SharedAccessSignature",
            "client-key-data",
            "_authToken",
            "otp",
            "card_number",
            "session_id",
            "sessionId",
            "dsn",
            "bearer",
            "PASSWORD2",
            "keystorepassword",
            "DB_PASS",
            "csrf_token",
            "secrets",
            "accesskey",
            "PHPSESSID",
        ] {
            assert_eq!(judge(name), Surety::Secret, "{name}");
        }
        for name in ["Authorization", "Proxy-Authorization", "Cookie", "set-cookie"] {
            assert_eq!(judge(name), Surety::Header, "{name}");
        }
        for name in ["STRIPE_KEY", "key", "auth", "sig", "app_key"] {
            assert_eq!(judge(name), Surety::Random, "{name}");
        }
        for name in [
            "max_tokens",
            "tokenizer",
            "progressToken",
            "nextPageToken",
            "next_token",
            "token_type",
            "tokenUrl",
            "secretName",
            "password_file",
            "PRIMARY_KEY",
            "public_key",
            "keyboard",
            "author",
            "monkey",
            "passed",
            "spinner",
            "eos_token",
            "tokenId",
            "secretKeyRef",
            "tokenColors",
            "reset-token.test.ts",
            "token.js",
            "cookieConsent",
            "authentication",
            "input_tokens",
            "passive",
            "",
            "zip_code",
        ] {
            assert_eq!(judge(name), Surety::None, "{name}");
        }
    }
}
