//! When the user's logins were renewed last, and what came of it: kept across runs, so that no login is asked for again and
//! again. Read and written under the lock of renewals only.

use ringfence_credentials::{Login, Secret};
use ringfence_files::{Access, Dir};
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use std::{
    collections::BTreeMap,
    ffi::OsStr,
    fs,
    io::{self, Read as _},
    time::{SystemTime, UNIX_EPOCH},
};

/// The file, in the directory of the lock.
pub(crate) const NAME: &str = "attempts.json";
/// Most bytes of it. What is longer is none of ours.
const MAX_BYTES: u64 = 256 << 10;
/// For how many seconds an attempt counts.
pub(crate) const PAUSE: u64 = 300;

/// What came of an attempt.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Outcome {
    /// A credential.
    Renewed,
    /// None that is kept, and why, in words.
    Failed(String),
}

#[derive(Debug, Serialize, Deserialize)]
struct Attempt {
    /// In seconds since 1970.
    time: u64,
    outcome: Outcome,
    /// The refresh token that was spent, or may be, whose answer is not in the file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    spent: Option<Spent>,
    /// The name of the file beside the login's that has that answer, if it came.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    beside: Option<String>,
}

/// Which refresh token that was, without having it: SHA-256 of a salt and the token, in hexadecimal digits.
#[derive(Debug, Serialize, Deserialize)]
struct Spent {
    salt: String,
    hash: String,
}

impl Spent {
    fn new(token: &Secret) -> io::Result<Self> {
        let mut salt = [0; 16];
        fs::File::open("/dev/urandom")?.read_exact(&mut salt)?;
        let salt = digits(&salt);
        let hash = hash(&salt, token);
        Ok(Self { salt, hash })
    }

    fn is(&self, token: &Secret) -> bool {
        hash(&self.salt, token) == self.hash
    }
}

fn hash(salt: &str, token: &Secret) -> String {
    digits(&Sha256::new().chain_update(salt).chain_update(token.expose()).finalize())
}

fn digits(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

impl Attempt {
    fn counts(&self, now: u64) -> bool {
        self.time.abs_diff(now) < PAUSE
    }
}

/// The attempts that still count, and one login among those they are of.
#[derive(Debug)]
pub(crate) struct Attempts<'a> {
    dir: &'a Dir,
    login: String,
    /// By the name of the login's file and its place there.
    all: BTreeMap<String, Attempt>,
}

impl<'a> Attempts<'a> {
    /// Those that are on record in this directory; those of the login in the file `name`. A record that cannot be understood is none: only this user can have written it.
    ///
    /// # Errors
    /// As read(2).
    pub(crate) fn of(dir: &'a Dir, name: &OsStr, login: &Login) -> io::Result<Self> {
        let mut text = Vec::new();
        match dir.read(OsStr::new(NAME)) {
            Ok(file) => file.take(MAX_BYTES).read_to_end(&mut text).map(|_| ())?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
        let mut all: BTreeMap<String, Attempt> = serde_json::from_slice(&text).unwrap_or_default();
        let now = now();
        // Also one of the future, of a clock that was put back, counts for no longer than that.
        all.retain(|_, attempt| attempt.counts(now) || attempt.spent.is_some());
        Ok(Self { dir, login: format!("{}#{}", name.display(), login.at), all })
    }

    /// What came of this login's last attempt, if that still counts.
    pub(crate) fn last(&self) -> Option<&Outcome> {
        self.all.get(&self.login).filter(|attempt| attempt.counts(now())).map(|attempt| &attempt.outcome)
    }

    /// Why this token of the login's is not sent again, however long ago it was: what came for it is not in the file.
    pub(crate) fn spent(&self, token: &Secret) -> Option<&str> {
        match &self.attempt_with(token)?.outcome {
            Outcome::Failed(why) => Some(why),
            Outcome::Renewed => None,
        }
    }

    /// Where what came for this token may be kept, in the directory of the login's file.
    pub(crate) fn beside(&self, token: &Secret) -> Option<&OsStr> {
        self.attempt_with(token)?.beside.as_deref().map(OsStr::new)
    }

    fn attempt_with(&self, token: &Secret) -> Option<&Attempt> {
        self.all
            .get(&self.login)
            .filter(|attempt| attempt.spent.as_ref().is_some_and(|spent| spent.is(token)))
    }

    /// Puts one of this login's on record.
    ///
    /// # Errors
    /// As [`Dir::replace`].
    pub(crate) fn note(&mut self, outcome: Outcome) -> io::Result<()> {
        self.put(Attempt { time: now(), outcome, spent: None, beside: None })
    }

    /// Puts on record that this token was spent, or is about to be, why what comes for it is not in the file, and the file beside
    /// that has it, if any can.
    ///
    /// # Errors
    /// As [`Dir::replace`].
    pub(crate) fn note_spent(
        &mut self,
        token: &Secret,
        beside: Option<&OsStr>,
        why: String,
    ) -> io::Result<()> {
        let beside = beside.and_then(OsStr::to_str).map(str::to_owned);
        let spent = Some(Spent::new(token)?);
        self.put(Attempt { time: now(), outcome: Outcome::Failed(why), spent, beside })
    }

    fn put(&mut self, attempt: Attempt) -> io::Result<()> {
        self.all.insert(self.login.clone(), attempt);
        self.write()
    }

    /// Takes it back.
    ///
    /// # Errors
    /// As [`Dir::replace`].
    pub(crate) fn forget(&mut self) -> io::Result<()> {
        self.all.remove(&self.login);
        self.write()
    }

    fn write(&self) -> io::Result<()> {
        let text = serde_json::to_vec(&self.all)?;
        self.dir.replace(OsStr::new(NAME), &text, Access::Mode(0o600))
    }
}

fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_attempt_of_each_login_is_known_for_a_while() {
        let dir = tempfile::tempdir().unwrap();
        let open = Dir::open(dir.path()).unwrap();
        let login = Login { path: "/there".into(), at: "/a".into(), ..Login::default() };
        let of = |name: &str| Attempts::of(&open, OsStr::new(name), &login).unwrap();
        let last = |name: &str| of(name).last().cloned();
        assert_eq!(last("one"), None);
        of("one").note(Outcome::Renewed).unwrap();
        let failed = Outcome::Failed("it does not answer".into());
        of("two").note(failed.clone()).unwrap();
        assert_eq!((last("one"), last("two"), last("three")), (Some(Outcome::Renewed), Some(failed), None));
        of("two").forget().unwrap();
        assert_eq!((last("one"), last("two")), (Some(Outcome::Renewed), None));
        let file = dir.path().join(NAME);
        let text = fs::read_to_string(&file).unwrap();
        for (time, counts) in [(now() - 2 * PAUSE, false), (now() + 2 * PAUSE, false), (now(), true)] {
            let changed = serde_json::json!({"one#/a": {"time": time, "outcome": "renewed"}});
            fs::write(&file, changed.to_string()).unwrap();
            assert_eq!(last("one").is_some(), counts, "{text}");
        }
        for other in [&b"{"[..], b"\xff", b"[]"] {
            fs::write(&file, other).unwrap();
            assert_eq!(last("one"), None);
        }
    }

    #[test]
    fn a_token_that_was_spent_stays_so_until_another_is_there() {
        let dir = tempfile::tempdir().unwrap();
        let open = Dir::open(dir.path()).unwrap();
        let login = Login { path: "/one".into(), at: "/a".into(), ..Login::default() };
        let token = |text: &str| Secret::from(text.to_owned());
        Attempts::of(&open, OsStr::new("one"), &login)
            .unwrap()
            .note_spent(&token("r-0"), Some(OsStr::new("one.new")), "the disk is full".into())
            .unwrap();
        let file = dir.path().join(NAME);
        let text = fs::read_to_string(&file).unwrap();
        assert!(!text.contains("r-0"), "{text}");
        let mut json: serde_json::Value = serde_json::from_str(&text).unwrap();
        json["one#/a"]["time"] = (now() - 100 * PAUSE).into();
        fs::write(&file, json.to_string()).unwrap();
        let mut long_ago = Attempts::of(&open, OsStr::new("one"), &login).unwrap();
        assert_eq!((long_ago.last(), long_ago.spent(&token("r-0"))), (None, Some("the disk is full")));
        assert_eq!(long_ago.beside(&token("r-0")), Some(OsStr::new("one.new")));
        assert_eq!((long_ago.spent(&token("r-1")), long_ago.beside(&token("r-1"))), (None, None));
        long_ago.note(Outcome::Renewed).unwrap();
        assert_eq!(Attempts::of(&open, OsStr::new("one"), &login).unwrap().spent(&token("r-0")), None);
    }
}
