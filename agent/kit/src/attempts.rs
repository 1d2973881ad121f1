//! When the user's logins were renewed last, and what came of it: kept across runs, so that no login is asked for again and
//! again. Read and written under the lock of renewals only.

use ringfence_credentials::Login;
use ringfence_files::{Access, Dir};
use serde::{Deserialize, Serialize};
use std::{
    collections::BTreeMap,
    ffi::OsStr,
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
        all.retain(|_, attempt| attempt.time.abs_diff(now) < PAUSE);
        Ok(Self { dir, login: format!("{}#{}", login.path.display(), login.at), all })
    }

    /// What came of this login's last attempt, if that still counts.
    pub(crate) fn last(&self) -> Option<&Outcome> {
        self.all.get(&self.login).map(|attempt| &attempt.outcome)
    }

    /// Puts one of this login's on record.
    ///
    /// # Errors
    /// As [`Dir::replace`].
    pub(crate) fn note(&mut self, outcome: Outcome) -> io::Result<()> {
        self.all.insert(self.login.clone(), Attempt { time: now(), outcome });
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
    use std::fs;

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
}
