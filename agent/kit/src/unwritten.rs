//! What came of a renewal, until it is in the login's file: the only refresh token that is still good.

use super::{agent_lock::AgentLock, hidden::Hidden};
use ringfence_base::error::chain;
use ringfence_credentials::{Change, Login, Renewable, Renewal, Renewed, Secret};
use ringfence_files::{Access, Prepared, ResolvedPath};
use std::{
    ffi::OsStr,
    io,
    path::{Path, PathBuf},
    thread,
    time::{Duration, Instant},
};

/// How long the agent's lock on the file alone is waited for, and how long it is held at most.
const WRITING: (Duration, Duration) = (Duration::from_secs(25), Duration::from_secs(20));
/// How often it is tried.
const AGAIN: Duration = Duration::from_millis(50);

/// Where it is now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Written {
    /// In the login's file.
    There,
    /// Nowhere: that is another's login by now.
    Anothers,
}

/// What came for a login. Dropped, it stays beside the login's file, if it could be kept there and was written nowhere else.
#[derive(Debug)]
pub(crate) struct Unwritten {
    login: Login,
    /// The refresh token it came for, and the file as it was when that was read.
    old: Renewable,
    new: Renewed,
    to_come: Prepared,
    beside: Option<PathBuf>,
    /// Dropped last, when none of it is in memory any more.
    _hidden: Hidden,
}

impl Unwritten {
    /// What came for the token of `old`, which was sent. From here on it is on disk, beside the file.
    pub(crate) fn new(
        login: &Login,
        old: Renewable,
        new: Renewed,
        to_come: Prepared,
        hidden: Hidden,
    ) -> Self {
        let mut unwritten = Self { login: login.clone(), old, new, to_come, beside: None, _hidden: hidden };
        unwritten.keep();
        unwritten
    }

    /// The credential.
    pub(crate) fn access(&self) -> &Secret {
        &self.new.access
    }

    /// The login it is for.
    pub(crate) fn login(&self) -> &Login {
        &self.login
    }

    /// The refresh token that was spent for it.
    pub(crate) fn sent(&self) -> &Secret {
        &self.old.token
    }

    /// The file beside the login's that has it, if it could be kept.
    pub(crate) fn beside(&self) -> Option<&Path> {
        self.beside.as_deref()
    }

    /// Puts it into the login's file, as long as that has the token that was sent. Tries for `patience`, and once at least.
    ///
    /// # Errors
    /// In words, why it is not there. It is kept beside the file then, where that can be.
    pub(crate) fn write(&mut self, patience: Duration) -> Result<Written, String> {
        // Whoever has the lock for longer has no right to: what came is written all the same.
        let _turn = self.login.renewal.as_ref().and_then(|renewal| write_lock(renewal).ok());
        let end = Instant::now() + patience;
        loop {
            match self.put() {
                Ok(written) => {
                    // What is another's login needs none beside it; what is in place is beside it no more.
                    self.to_come.let_go();
                    return Ok(written);
                }
                Err(why) if Instant::now() >= end => {
                    self.keep();
                    return Err(why);
                }
                Err(_) => thread::sleep(AGAIN),
            }
        }
    }

    fn put(&mut self) -> Result<Written, String> {
        let Some(Change { before, after }) =
            self.login.renewed(&self.old.token, &self.new).map_err(|error| chain(&error))?
        else {
            return Ok(Written::Anothers);
        };
        let is_put = self.to_come.put(after.as_bytes(), before.as_bytes(), || is_still(&self.login, &before));
        if is_put.map_err(|error| error.to_string())? {
            Ok(Written::There)
        } else {
            Err("others change it all the time".to_owned())
        }
    }

    fn keep(&mut self) {
        let text = self.login.changed(&self.old.text, &self.new);
        self.beside = text.ok().and_then(|text| self.to_come.keep(text.as_bytes()).ok());
    }
}

/// Puts into a login's file, which is at `place`, what a run that is gone kept in the file `beside` for the refresh token `sent`, and
/// removes that. False: nothing was kept there, or the login's file has another token.
///
/// # Errors
/// In words, why it is still there.
pub(crate) fn put_kept(
    (login, renewal): (&Login, &Renewal),
    place: &ResolvedPath,
    beside: &OsStr,
    sent: &Secret,
) -> Result<bool, String> {
    let path = place.dir.path().join(beside);
    // Nothing came for it, it was half written, or somebody took it away.
    let is_file = place.dir.read(beside).is_ok();
    let Some(new) = login.kept_in(path.clone()).ok().filter(|_| is_file) else { return Ok(false) };
    let failed = |why: String| format!("what came is in {}, and cannot be put there: {why}", path.display());
    let _turn = write_lock(renewal).map_err(failed)?;
    let Some(Change { before, after }) = login.renewed(sent, &new).map_err(|error| failed(chain(&error)))?
    else {
        return Ok(false);
    };
    let put = || {
        let access = place.dir.read(&place.name).and_then(Access::like)?;
        let mut whole = place.dir.prepare(&place.name, access, 0)?;
        whole.put(after.as_bytes(), before.as_bytes(), || is_still(login, &before))
    };
    if !put().map_err(|error| failed(error.to_string()))? {
        return Err(failed("its file is being changed".to_owned()));
    }
    let _ = place.dir.remove(beside);
    Ok(true)
}

/// The agent's own lock on the file.
pub(crate) fn write_lock(renewal: &Renewal) -> Result<Option<AgentLock>, String> {
    let (patience, life) = WRITING;
    let take = |path| AgentLock::take(path, life, patience, || Ok(()));
    renewal.write_lock.as_deref().map(take).transpose().map_err(|error| chain(&error))
}

/// Whether a login's file still has this text.
pub(crate) fn is_still(login: &Login, text: &str) -> io::Result<bool> {
    login.has(text).map_err(io::Error::other)
}

#[cfg(test)]
mod tests {
    use super::*;
    use ringfence_files::{Access, Dir};
    use std::{ffi::OsStr, fs, os::unix::fs::PermissionsExt as _};

    const OLD: &str = r#"{"a":"sk-old","r":"r-0","x":1}"#;
    const NEW: &str = r#"{"a":"sk-new","r":"r-1","x":1}"#;

    fn secret(text: &str) -> Secret {
        Secret::from(text.to_owned())
    }

    fn unwritten(root: &Path) -> Unwritten {
        let renewal = Renewal {
            url: "https://example.org/token".into(),
            client: "me".into(),
            at: "/r".into(),
            ..Renewal::default()
        };
        let path = root.join("login");
        let login = Login { path, at: "/a".into(), renewal: Some(Box::new(renewal)), ..Login::default() };
        let dir = Dir::open(root).unwrap();
        let to_come = dir.prepare(OsStr::new("login"), Access::Mode(0o600), 4096).unwrap();
        let new = Renewed { access: secret("sk-new"), refresh: Some(secret("r-1")), expires: 7 };
        let old = Renewable { token: secret("r-0"), text: OLD.to_owned().into() };
        Unwritten::new(&login, old, new, to_come, Hidden::new().unwrap())
    }

    #[test]
    fn what_came_is_beside_the_file_until_it_is_in_it() {
        let root = tempfile::tempdir().unwrap();
        let file = root.path().join("login");
        let put = |text: &str| {
            fs::write(&file, text).unwrap();
            fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
        };
        let count = || fs::read_dir(root.path()).unwrap().count();
        let mut came = unwritten(root.path());
        let beside = came.beside().unwrap().to_owned();
        // Missing for a moment, torn, without a login.
        came.write(Duration::ZERO).unwrap_err();
        for torn in ["", "{", r#"{"a":"","r":""}"#, "{}"] {
            put(torn);
            came.write(Duration::ZERO).unwrap_err();
            assert_eq!(
                (fs::read_to_string(&file).unwrap(), fs::read_to_string(&beside).unwrap()),
                (torn.to_owned(), NEW.to_owned())
            );
            assert_eq!(fs::metadata(&beside).unwrap().permissions().mode() & 0o7777, 0o600);
        }
        // What others can read is written new, and they cannot read that.
        put(&OLD.replace("1}", "2}"));
        fs::set_permissions(&file, fs::Permissions::from_mode(0o644)).unwrap();
        assert_eq!(came.write(Duration::ZERO).unwrap(), Written::There);
        assert_eq!(fs::read_to_string(&file).unwrap(), NEW.replace("1}", "2}"));
        assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o7777, 0o600);
        drop(came);
        assert_eq!(count(), 1);
        // Another's login is left alone, and nothing is left beside it.
        put(OLD);
        let mut came = unwritten(root.path());
        put(&OLD.replace("r-0", "r-theirs"));
        assert_eq!(came.write(Duration::ZERO).unwrap(), Written::Anothers);
        drop(came);
        assert_eq!((fs::read_to_string(&file).unwrap(), count()), (OLD.replace("r-0", "r-theirs"), 1));
        // Where it is in neither, it outlives the run.
        drop(unwritten(root.path()));
        assert_eq!(count(), 2);
    }
}
