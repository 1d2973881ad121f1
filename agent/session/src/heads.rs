//! Heads of journals and ledgers, as they go to journald and come back from `journalctl`. Pure.
//!
//! One line each: `audit head db=ID uid=1000 session=UUID lines=42 head=HASH`, with `ledger=N` instead of session and
//! lines for a ledger. Whoever can rewrite the database cannot rewrite the host's journal.

use std::fmt;

/// How every line begins.
const MARK: &str = "audit head ";

/// What a head is of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Of {
    /// A session's journal.
    Session(String),
    /// A user's ledger.
    Ledger,
}

/// The hash of the last of so many lines.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Head {
    /// Which database: [`database`].
    pub db: String,
    /// Whose it is.
    pub uid: u32,
    /// What it is of.
    pub of: Of,
    /// How many lines or entries.
    pub lines: u64,
    /// Hex SHA-256 of the last.
    pub hash: String,
}

impl fmt::Display for Head {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{MARK}db={} uid={}", self.db, self.uid)?;
        match &self.of {
            Of::Session(session) => write!(f, " session={session} lines={}", self.lines)?,
            Of::Ledger => write!(f, " ledger={}", self.lines)?,
        }
        write!(f, " head={}", self.hash)
    }
}

/// A short name of a database, from its path.
pub fn database(path: &std::path::Path) -> String {
    super::journal::sha256(path.as_os_str().as_encoded_bytes()).chars().take(20).collect()
}

/// Reads a line of `journalctl -o json`, `-o cat` or any other text form, or of `ringfence audit heads`. `None` for
/// what is no head. The second is the uid that journald saw, where it says.
pub fn parse(line: &str) -> Option<(Head, Option<u32>)> {
    if !line.trim_start().starts_with('{') {
        return Some((text(line)?, None));
    }
    let fields: serde_json::Value = serde_json::from_str(line).ok()?;
    let uid = fields.get("_UID").and_then(serde_json::Value::as_str).and_then(|uid| uid.parse().ok());
    Some((text(fields.get("MESSAGE")?.as_str()?)?, uid))
}

fn text(line: &str) -> Option<Head> {
    let (_, words) = line.split_once(MARK)?;
    let word =
        |key: &str| words.split_whitespace().find_map(|word| word.strip_prefix(key)?.strip_prefix('='));
    let (of, lines) = match (word("session"), word("lines"), word("ledger")) {
        (Some(session), Some(lines), None) => (Of::Session(session.to_owned()), lines),
        (None, None, Some(entries)) => (Of::Ledger, entries),
        _ => return None,
    };
    let hash = word("head").filter(|hash| hash.len() == 64 && hash.bytes().all(|b| b.is_ascii_hexdigit()))?;
    Some(Head {
        db: word("db")?.to_owned(),
        uid: word("uid")?.parse().ok()?,
        of,
        lines: lines.parse().ok()?,
        hash: hash.to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::{Head, Of, parse};

    #[test]
    fn heads_come_back_from_every_form() {
        let hash = "ab".repeat(32);
        for of in [Of::Ledger, Of::Session("5a".into())] {
            let head = Head { db: "d0".into(), uid: 7, of, lines: 3, hash: hash.clone() };
            assert_eq!(parse(&head.to_string()), Some((head.clone(), None)));
            let short = format!("Nov 20 12:00:00 host ringfence-audit[3]: {head}");
            assert_eq!(parse(&short), Some((head.clone(), None)));
            let json = serde_json::json!({"MESSAGE": head.to_string(), "_UID": "7"}).to_string();
            assert_eq!(parse(&json), Some((head, Some(7))));
        }
        for other in ["", "{}", "{", "audit head db=1", "{\"MESSAGE\":[1,2]}", "a line of something else"] {
            assert_eq!(parse(other), None, "{other}");
        }
        let long = format!("audit head db=1 uid=1 ledger=99999999999999999999999 head={hash}");
        assert_eq!(parse(&long), None);
    }
}
