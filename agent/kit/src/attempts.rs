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
const NAME: &str = "attempts.json";
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
    /// The refresh token that was spent, whose answer is not in the file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    spent: Option<Spent>,
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
    /// By the login's file and its place there.
    all: BTreeMap<String, Attempt>,
}

impl<'a> Attempts<'a> {
    /// Those that are on record in this directory. A record that cannot be understood is none: only this user can have written it.
    ///
    /// # Errors
    /// As read(2).
    pub(crate) fn of(dir: &'a Dir, login: &Login) -> io::Result<Self> {
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
        Ok(Self { dir, login: format!("{}#{}", login.path.display(), login.at), all })
    }

    /// What came of this login's last attempt, if that still counts.
    pub(crate) fn last(&self) -> Option<&Outcome> {
        self.all.get(&self.login).filter(|attempt| attempt.counts(now())).map(|attempt| &attempt.outcome)
    }

    /// Why this token of the login's is not sent again, however long ago it was: what came for it is not in the file.
    pub(crate) fn spent(&self, token: &Secret) -> Option<&str> {
        let attempt = self.all.get(&self.login)?;
        match (&attempt.spent, &attempt.outcome) {
            (Some(spent), Outcome::Failed(why)) if spent.is(token) => Some(why),
            _ => None,
        }
    }

    /// Puts one of this login's on record.
    ///
    /// # Errors
    /// As [`Dir::replace`].
    pub(crate) fn note(&mut self, outcome: Outcome) -> io::Result<()> {
        self.all.insert(self.login.clone(), Attempt { time: now(), outcome, spent: None });
        self.write()
    }

    /// Puts on record that this token was spent, and why what came for it is not in the file.
    ///
    /// # Errors
    /// As [`Dir::replace`].
    pub(crate) fn note_spent(&mut self, token: &Secret, why: String) -> io::Result<()> {
        let attempt = Attempt { time: now(), outcome: Outcome::Failed(why), spent: Some(Spent::new(token)?) };
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
        let login = |path: &str| Login { path: path.into(), at: "/a".into(), expires: None, renewal: None };
        let last = |path: &str| Attempts::of(&open, &login(path)).unwrap().last().cloned();
        assert_eq!(last("/one"), None);
        Attempts::of(&open, &login("/one")).unwrap().note(Outcome::Renewed).unwrap();
        let failed = Outcome::Failed("it does not answer".into());
        Attempts::of(&open, &login("/two")).unwrap().note(failed.clone()).unwrap();
        assert_eq!(
            (last("/one"), last("/two"), last("/three")),
            (Some(Outcome::Renewed), Some(failed), None)
        );
        Attempts::of(&open, &login("/two")).unwrap().forget().unwrap();
        assert_eq!((last("/one"), last("/two")), (Some(Outcome::Renewed), None));
        let file = dir.path().join(NAME);
        let text = fs::read_to_string(&file).unwrap();
        for (time, counts) in [(now() - 2 * PAUSE, false), (now() + 2 * PAUSE, false), (now(), true)] {
            let changed = serde_json::json!({"/one#/a": {"time": time, "outcome": "renewed"}});
            fs::write(&file, changed.to_string()).unwrap();
            assert_eq!(last("/one").is_some(), counts, "{text}");
        }
        for other in [&b"{"[..], b"\xff", b"[]"] {
            fs::write(&file, other).unwrap();
            assert_eq!(last("/one"), None);
        }
    }

    #[test]
    fn a_token_that_was_spent_stays_so_until_another_is_there() {
        let dir = tempfile::tempdir().unwrap();
        let open = Dir::open(dir.path()).unwrap();
        let login = Login { path: "/one".into(), at: "/a".into(), expires: None, renewal: None };
        let token = |text: &str| Secret::from(text.to_owned());
        Attempts::of(&open, &login).unwrap().note_spent(&token("r-0"), "the disk is full".into()).unwrap();
        let file = dir.path().join(NAME);
        let text = fs::read_to_string(&file).unwrap();
        assert!(!text.contains("r-0"), "{text}");
        let mut json: serde_json::Value = serde_json::from_str(&text).unwrap();
        json["/one#/a"]["time"] = (now() - 100 * PAUSE).into();
        fs::write(&file, json.to_string()).unwrap();
        let mut long_ago = Attempts::of(&open, &login).unwrap();
        assert_eq!((long_ago.last(), long_ago.spent(&token("r-0"))), (None, Some("the disk is full")));
        assert_eq!(long_ago.spent(&token("r-1")), None);
        long_ago.note(Outcome::Renewed).unwrap();
        assert_eq!(Attempts::of(&open, &login).unwrap().spent(&token("r-0")), None);
    }
}
