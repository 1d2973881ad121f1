//! Logins that are over or refused: read again, and renewed where their kit says how. The token endpoint is asked by a
//! process of its own (`token_endpoint`); here its answer is put into the login's file, as the agent itself would.
//!
//! A refresh token is good once. One that is sent, and whose answer is lost, logs the user out: so it is sent only where the
//! answer can be kept, and as seldom as can be.

use super::{
    agent_lock::{Held, agent_locks},
    attempts::{self, Attempts, Outcome},
    hidden::Hidden,
    say,
    token_endpoint::{self, Unanswered},
    unwritten::{Unwritten, Written, is_still, put_kept, write_lock},
};
use ringfence_base::{
    error::chain,
    lock::{Lock, LockError},
    signals,
};
use ringfence_credentials::{Error, Login, Renewal, Secret, Source};
use ringfence_files::{self as files, Access, Dir, Others, ResolvedPath};
use std::{
    ffi::OsStr,
    path::Path,
    sync::{
        Mutex, MutexGuard, PoisonError, TryLockError,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

/// How long another run's renewal is waited for: as long as one may take.
const PATIENCE: Duration = Duration::from_secs(240);
/// How long the end of a run, or a stop, waits for one that has begun: for its answer, and until that is written.
const END: Duration = Duration::from_secs(240);
/// How long it is tried to write what came.
const INSISTENCE: Duration = Duration::from_secs(5);
/// How long the lock is waited for to put on record that it was written later.
const SETTLING: Duration = Duration::from_secs(2);
/// What a user does whose refresh token may be worth nothing any more.
const ADVICE: &str = "start the agent once without Ringfence, or log in again there";
/// What is on record of a token that was sent again, after an answer was lost, and whose next one is not there either.
const LOST_AGAIN: &str = "it was begun again, and not ended";
/// The directory of what runs share of the logins beside it.
pub(crate) const DIR: &str = ".ringfence-renewal";
/// How often it is looked whether another renewal is done.
const AGAIN: Duration = Duration::from_millis(100);
/// How long the agent's own lock is waited for, and how long it is held at most: a renewal, and some more.
const LOCKED: (Duration, Duration) = (Duration::from_secs(30), Duration::from_secs(300));
/// More room than two tokens need, of 16 KiB each, if every character were escaped.
const ROOM: u64 = 128 << 10;

/// What renews one run's login.
#[derive(Debug)]
pub(crate) struct Renewer {
    /// None is renewed for a model at an address that was given: a server there that refuses what it is sent says nothing of the
    /// vendor's login.
    may_renew: bool,
    is_ending: AtomicBool,
    /// Somebody waits to stop this process.
    is_stopping: AtomicBool,
    /// Held as long as a renewal takes.
    run: Mutex<Run>,
}

/// What came of a run's renewals.
#[derive(Debug, Default)]
struct Run {
    /// A login that was not over was renewed because the provider refused it: once in a run's life, for who refuses the next one,
    /// too, refuses more than the login.
    was_refused: bool,
    /// What came and could not be written yet. The file's is none any more.
    unwritten: Option<Unwritten>,
    /// What is to be said once no lock is held.
    notice: Option<String>,
}

/// Why a login is to be renewed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Due {
    Over,
    Refused,
}

/// When it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum When {
    /// Before the agent runs.
    Start,
    /// The provider refused the credential.
    Refusal,
}

impl Renewer {
    /// One for a run. `may_renew`: the model is at its vendor's own address.
    pub(crate) fn new(may_renew: bool) -> Self {
        let no = || AtomicBool::new(false);
        Self { may_renew, is_ending: no(), is_stopping: no(), run: Mutex::default() }
    }

    /// Whether a place's login is renewed where it is over.
    pub(crate) fn renews(&self, source: &Source) -> bool {
        self.may_renew && matches!(source, Source::Login(login) if login.renewal.is_some())
    }

    /// The credential at a place before the agent runs. A login that is over is renewed.
    ///
    /// # Errors
    /// [`Error`].
    pub(crate) fn at_start(&self, source: &Source) -> Result<Secret, Error> {
        self.read(source, &|_| false, When::Start)
    }

    /// The credential at a place, the one of before was refused. A login is renewed where it is over, or is still that one.
    ///
    /// # Errors
    /// [`Error`].
    pub(crate) fn after_refusal(
        &self,
        source: &Source,
        is_refused: &dyn Fn(&Secret) -> bool,
    ) -> Result<Secret, Error> {
        self.read(source, is_refused, When::Refusal)
    }

    /// No renewal begins any more; waits for one that has begun, whose answer would be lost.
    pub(crate) fn end(&self) {
        self.is_ending.store(true, Ordering::Release);
        let Some(mut run) = self.none_under_way("the run's end") else { return };
        self.settle(&mut run, INSISTENCE);
        if let Some(unwritten) = &run.unwritten {
            let path = unwritten.login().path.display();
            match unwritten.beside() {
                Some(beside) => say(format_args!(
                    "the login that came for {path} is in {}: move it there, or log in again",
                    beside.display()
                )),
                None => {
                    say(format_args!("the login that came for {path} could be written nowhere: log in again"))
                }
            }
        }
    }

    /// Before all threads of this process stop: waits for one that has begun, whose answer nobody would take, and whose locks others
    /// would take for nobody's. None begins as long as what this gives is there.
    pub(crate) fn before_stop(&self) -> impl Sized {
        self.is_stopping.store(true, Ordering::Release);
        let none = self.none_under_way("the stop");
        self.is_stopping.store(false, Ordering::Release);
        none
    }

    /// Waits for one that has begun, no longer than [`END`]. `who` does.
    fn none_under_way(&self, who: &str) -> Option<MutexGuard<'_, Run>> {
        let end = Instant::now() + END;
        let mut is_said = false;
        loop {
            match self.run.try_lock() {
                Ok(run) => return Some(run),
                Err(TryLockError::Poisoned(error)) => return Some(error.into_inner()),
                Err(TryLockError::WouldBlock) if Instant::now() >= end => return None,
                Err(TryLockError::WouldBlock) => {}
            }
            if !is_said {
                say(format_args!("{who} waits for a login that is being renewed"));
                is_said = true;
            }
            thread::sleep(AGAIN);
        }
    }

    fn read(
        &self,
        source: &Source,
        is_refused: &dyn Fn(&Secret) -> bool,
        when: When,
    ) -> Result<Secret, Error> {
        let (login, renewal) = match source {
            Source::Login(login) => match &login.renewal {
                Some(renewal) => (login, &**renewal),
                None => return login.read(),
            },
            other => return other.read(),
        };
        let mut run = self.run.lock().unwrap_or_else(PoisonError::into_inner);
        // Who ends waited for what had begun by then.
        if self.require_going_on().is_err() {
            return login.read();
        }
        // The file's is none any more, until what came is in it.
        if let Some(kept) = self.settle(&mut run, Duration::ZERO)
            && !is_refused(&kept)
        {
            return Ok(kept);
        }
        let read = login.read();
        if self.due(&read, is_refused, &run).is_none() {
            return read;
        }
        if when == When::Start {
            // Before any lock is taken: whoever stopped the terminal stops this, too.
            say(format_args!("renewing the login in {}", login.path.display()));
        }
        let renewed = self.renew_locked((login, renewal), &mut run, is_refused).or_else(|error| {
            // Another run may have done it meanwhile, or the agent itself, with the same token: that is why it was not taken.
            login.read().ok().filter(|secret| !is_refused(secret)).ok_or(error)
        });
        if let Some(notice) = run.notice.take() {
            say(format_args!("{notice}"));
        }
        renewed
    }

    fn renew_locked(
        &self,
        (login, renewal): (&Login, &Renewal),
        run: &mut Run,
        is_refused: &dyn Fn(&Secret) -> bool,
    ) -> Result<Secret, Error> {
        let failed = |why| Error::NotRenewed { path: login.path.clone(), why };
        require_own(login).map_err(failed)?;
        // Nor is it waited for once another has done it.
        let worth_waiting = || {
            self.require_going_on()?;
            let is_done = login.read().is_ok_and(|secret| !is_refused(&secret));
            if is_done { Err("another renewed it".to_owned()) } else { Ok(()) }
        };
        let (place, dir, _lock) = lock(login, PATIENCE, worth_waiting).map_err(failed)?;
        // Another run may have done it meanwhile. Asked twice, an endpoint takes the same token once.
        let read = login.read();
        if self.due(&read, is_refused, run).is_none() {
            return read;
        }
        let _hidden = hidden().map_err(failed)?;
        let mut attempts =
            Attempts::of(&dir, &place.name, login).map_err(|error| failed(error.to_string()))?;
        if settle_kept((login, renewal), &place, &mut attempts).map_err(failed)? {
            let read = login.read();
            if self.due(&read, is_refused, run).is_none() {
                return read;
            }
        }
        // Nobody has the lock any more who began it.
        let lost = match login.renewable() {
            Ok(Some(old)) => attempts.spent(&old.token).map(str::to_owned),
            _ => None,
        };
        let is_due_again = |why: &str| why != LOST_AGAIN || attempts.last().is_none();
        let is_tried_again = renewal.own.is_some() && lost.as_deref().is_some_and(is_due_again);
        match attempts.last() {
            Some(_) if is_tried_again => {}
            Some(Outcome::Failed(why)) => {
                let minutes = attempts::PAUSE / 60;
                return Err(failed(format!(
                    "{why}; that was tried in the last {minutes} minutes, and is not again"
                )));
            }
            // What was renewed only now, and is refused, is refused for something else; and the clock of who takes it for over is
            // not the endpoint's. A file of our own has our clock's time.
            Some(Outcome::Renewed) if renewal.own.is_none() || read.is_ok() => return login.credential(),
            Some(Outcome::Renewed) | None => {}
        }
        if let Ok(Some(old)) = login.renewable()
            && !is_tried_again
        {
            require_unspent(&attempts, &old.token).map_err(failed)?;
        }
        // Signals wait from the agent's locks on, which would outlive this process.
        let (_signals, _theirs) =
            agent_locks(renewal, LOCKED, &signals::OF_A_RUN, worth_waiting).map_err(failed)?;
        // So may the agent.
        let read = login.read();
        let Some(due) = self.due(&read, is_refused, run) else { return read };
        let due = (due, is_tried_again);
        self.renew(run, (login, renewal), &place, &mut attempts, due).map_err(failed)
    }

    /// Tries to put into the login's file what is not there yet. Gives the credential, if anything came.
    fn settle(&self, run: &mut Run, patience: Duration) -> Option<Secret> {
        let unwritten = run.unwritten.as_mut()?;
        let access = unwritten.access().clone();
        if unwritten.write(patience).is_ok() {
            // Who does not have the lock soon leaves the old note, which is of a token that the file has no more.
            let login = unwritten.login();
            if let Ok((place, dir, _lock)) = lock(login, SETTLING, || Ok(()))
                && let Ok(mut attempts) = Attempts::of(&dir, &place.name, login)
            {
                let _ = attempts.note(Outcome::Renewed);
            }
            run.unwritten = None;
        }
        Some(access)
    }

    /// Whether what was read is to be renewed, and why.
    fn due(
        &self,
        read: &Result<Secret, Error>,
        is_refused: &dyn Fn(&Secret) -> bool,
        run: &Run,
    ) -> Option<Due> {
        let due = match read {
            Ok(secret) if is_refused(secret) && !run.was_refused => Due::Refused,
            Err(Error::Expired(_)) => Due::Over,
            _ => return None,
        };
        Some(due).filter(|_| self.may_renew)
    }

    fn require_going_on(&self) -> Result<(), String> {
        if self.is_ending.load(Ordering::Acquire) {
            return Err("the run is at its end".to_owned());
        }
        if self.is_stopping.load(Ordering::Acquire) { Err("the run is to stop".to_owned()) } else { Ok(()) }
    }

    /// Renews a login, under the lock.
    fn renew(
        &self,
        run: &mut Run,
        (login, renewal): (&Login, &Renewal),
        place: &ResolvedPath,
        attempts: &mut Attempts<'_>,
        (due, is_tried_again): (Due, bool),
    ) -> Result<Secret, String> {
        let advice = renewal.own.as_deref().unwrap_or(ADVICE);
        let hidden = hidden()?;
        let cannot = |why: String| format!("its file cannot be written: {why}");
        let prepared = |room| {
            let access = place.dir.read(&place.name).and_then(Access::like)?;
            place.dir.prepare(&place.name, access, room)
        };
        let old = {
            let _turn = write_lock(renewal).map_err(cannot)?;
            let renewable = login.renewable().map_err(|error| chain(&error))?.ok_or("nothing renews it")?;
            if !is_tried_again {
                require_unspent(attempts, &renewable.token)?;
            }
            // What would be in the way of the answer is found while the token is still good: it is written once as it is.
            let mut same = prepared(0).map_err(|error| cannot(error.to_string()))?;
            let text = renewable.text.as_bytes();
            let is_written = same.put(text, text, || is_still(login, &renewable.text));
            if !is_written.map_err(|error| cannot(error.to_string()))? {
                return Err("its file is being changed".to_owned());
            }
            renewable
        };
        let room = old.text.len() as u64 + ROOM;
        let to_come = prepared(room).map_err(|error| cannot(error.to_string()))?;
        self.require_going_on()?;
        // Nobody but the process that asks knows any more what came, where this one ends meanwhile; but for what it kept by then.
        let begun = if is_tried_again {
            LOST_AGAIN.to_owned()
        } else {
            format!("it was begun, and not ended; {advice}")
        };
        let noted = attempts.note_spent(&old.token, Some(to_come.own_name()), begun);
        noted.map_err(|error| format!("what is done cannot be put on record: {error}"))?;
        let is_due = || match login.renewable() {
            Ok(Some(there)) if there.token == old.token => Ok(()),
            _ => Err("its file was changed meanwhile".to_owned()),
        };
        let asked = token_endpoint::ask(renewal, &old.token, is_due);
        if !matches!(asked, Err(Unanswered { was_sent: false, .. })) {
            run.was_refused |= due == Due::Refused;
        }
        let new = match asked {
            Ok(new) => new,
            Err(Unanswered { why, was_sent: false, .. }) => {
                let _ = attempts.forget();
                return Err(why);
            }
            Err(Unanswered { why, later, is_refused, .. }) => {
                let why = if later { why } else { format!("{why}; {advice}") };
                // What was lost of a login of our own stays as it was noted, and is tried again.
                if is_refused || renewal.own.is_none() {
                    let _ = attempts.note(Outcome::Failed(why.clone()));
                }
                return Err(why);
            }
        };
        let mut unwritten = Unwritten::new(login, old, new, to_come, hidden);
        let access = unwritten.access().clone();
        match unwritten.write(INSISTENCE) {
            // Otherwise it stays with what was noted before.
            Ok(Written::There) => {
                let _ = attempts.note(Outcome::Renewed);
                Ok(access)
            }
            Ok(Written::Anothers) => {
                let _ = attempts.note(Outcome::Renewed);
                Ok(login.read().unwrap_or(access))
            }
            Err(why) => {
                let path = login.path.display();
                let what_to_do = match unwritten.beside() {
                    Some(beside) => format!("it is in {}: move it there", beside.display()),
                    None if renewal.own.is_some() => advice.to_owned(),
                    None => "the agent may have to log in again".to_owned(),
                };
                let why = format!("what came could not be written: {why}; {what_to_do}");
                run.notice = Some(format!(
                    "the login in {path} was renewed, but cannot be written there yet; this run goes on with it: {why}"
                ));
                // The endpoint takes the token in the file no more: whoever reads it later is told why.
                let beside = unwritten.beside().and_then(Path::file_name);
                let _ = attempts.note_spent(unwritten.sent(), beside, why);
                run.unwritten = Some(unwritten);
                Ok(access)
            }
        }
    }
}

/// Puts into the login's file what another run kept beside it for the token that is in it, and could not put there. False: there
/// is none.
fn settle_kept(
    (login, renewal): (&Login, &Renewal),
    place: &ResolvedPath,
    attempts: &mut Attempts<'_>,
) -> Result<bool, String> {
    let Ok(Some(old)) = login.renewable() else { return Ok(false) };
    let Some(beside) = attempts.beside(&old.token) else { return Ok(false) };
    let _signals = Held::new(&signals::OF_A_RUN).map_err(|error| error.to_string())?;
    let is_put = put_kept((login, renewal), place, beside, &old.token)?;
    if is_put {
        // It was renewed, but not only now.
        let _ = attempts.forget();
    }
    Ok(is_put)
}

/// The same for who has the lock and is to do away with the login.
///
/// # Errors
/// In words, why what came is still beside the file.
pub(crate) fn settle_beside(login: &Login) -> Result<(), String> {
    let Some(renewal) = &login.renewal else { return Ok(()) };
    let _hidden = hidden()?;
    let place = Dir::resolve(&login.path).map_err(|error| error.to_string())?;
    let dir = place.dir.below(OsStr::new(DIR)).map_err(|error| error.to_string())?;
    let attempts = Attempts::of(&dir, &place.name, login);
    let mut attempts = attempts.map_err(|error| error.to_string())?;
    settle_kept((login, renewal), &place, &mut attempts).map(drop)
}

/// One renewal of a login at a time, of whatever run: the lock, and what was tried, are beside its file, where no run's environment
/// leads elsewhere. Gives where the file is, and that directory.
fn lock(
    login: &Login,
    patience: Duration,
    going_on: impl Fn() -> Result<(), String>,
) -> Result<(ResolvedPath, Dir, Lock), String> {
    // Dotfiles may be links to where they are kept.
    let place = Dir::resolve(&login.path).map_err(|error| error.to_string())?;
    let made = place.dir.make_below(OsStr::new(DIR), 0o700).and_then(|dir| dir.require_own().map(|()| dir));
    let path = place.dir.path().join(DIR);
    let dir = made.map_err(|error| format!("cannot make {}: {error}", path.display()))?;
    let end = Instant::now() + patience;
    loop {
        going_on()?;
        match Lock::take(&path.join("lock")) {
            Ok(lock) => return Ok((place, dir, lock)),
            Err(LockError::Held { .. }) if Instant::now() < end => thread::sleep(AGAIN),
            Err(LockError::Held { pid, .. }) => {
                return Err(format!("another run (pid {pid}) renews one for too long"));
            }
            Err(error) => return Err(chain(&error)),
        }
    }
}

/// Closes this process to others as long as it holds a refresh token.
fn hidden() -> Result<Hidden, String> {
    Hidden::new().map_err(|error| format!("this process cannot be closed to others: {error}"))
}

/// Whether a token may be sent: not one whose run did not come to its end, or whose answer is not in the file yet.
fn require_unspent(attempts: &Attempts<'_>, token: &Secret) -> Result<(), String> {
    let spent =
        |why| format!("{why}; its refresh token may have been used up by that, and is not sent again");
    attempts.spent(token).map_or(Ok(()), |why| Err(spent(why)))
}

/// Root renews no other user's login: that user chooses what is at its place.
fn require_own(login: &Login) -> Result<(), String> {
    let is_own = !nix::unistd::geteuid().is_root()
        || files::is_roots(&login.path, Others::AddNames).map_err(|error| error.to_string())?;
    if is_own {
        Ok(())
    } else {
        Err("it is another user's, and root renews no other user's login".to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{fs, os::unix::fs::PermissionsExt as _};

    #[test]
    fn a_refusal_is_a_reason_once_and_an_end_always() {
        let token = || Ok(Secret::from("sk".to_owned()));
        let over = || Err(Error::Expired("/login".into()));
        let due = |may_renew, read, is_refused: bool, was_refused| {
            let run = Run { was_refused, ..Run::default() };
            Renewer::new(may_renew).due(&read, &|_| is_refused, &run)
        };
        assert_eq!(due(true, token(), false, false), None);
        assert_eq!(due(true, token(), true, false), Some(Due::Refused));
        assert_eq!(due(true, token(), true, true), None);
        assert_eq!(due(true, over(), true, true), Some(Due::Over));
        assert_eq!((due(false, token(), true, false), due(false, over(), false, false)), (None, None));
        assert_eq!(due(true, Err(Error::NotAFile("/login".into())), false, false), None);
    }

    #[test]
    fn none_begins_once_the_run_s_end_has_waited_nor_while_it_stops() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("login");
        fs::write(&path, r#"{"a":"sk-old","r":"r-0","e":1000}"#).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        let renewal = Renewal {
            url: "https://127.0.0.1:1/token".into(),
            client: "me".into(),
            at: "/r".into(),
            locks: vec![root.path().join("agent.lock")],
            ..Renewal::default()
        };
        let (expires, renewal) = (Some("/e".into()), Some(Box::new(renewal)));
        let login = Login { path, at: "/a".into(), expires, renewal, ..Login::default() };
        let renewer = Renewer::new(true);
        renewer.end();
        let read = renewer.at_start(&Source::Login(login));
        assert!(matches!(read, Err(Error::Expired(_))), "{read:?}");
        assert_eq!(fs::read_dir(root.path()).unwrap().count(), 1);
        // Whoever is at one is told of a stop, and nobody is while it lasts.
        let renewer = Renewer::new(true);
        let at_it = renewer.run.lock().unwrap();
        thread::scope(|scope| {
            scope.spawn(|| drop(renewer.before_stop()));
            while renewer.require_going_on().is_ok() {
                thread::sleep(AGAIN);
            }
            drop(at_it);
        });
        let stopped = renewer.before_stop();
        assert!(renewer.run.try_lock().is_err() && renewer.require_going_on().is_ok());
        drop(stopped);
        assert!(renewer.run.try_lock().is_ok());
    }
}
