//! Logins that are over or refused: read again, and renewed where their kit says how. The token endpoint is asked by a
//! process of its own (`token_endpoint`); here its answer is put into the login's file, as the agent itself would.
//!
//! A refresh token is good once. One that is sent, and whose answer is lost, logs the user out: so it is sent only where the
//! answer can be kept, and as seldom as can be.

use super::{
    agent_lock::AgentLock,
    attempts::{self, Attempts, Outcome},
    make,
    token_endpoint::{self, Unanswered},
};
use nix::sys::signal::{SigSet, SigmaskHow, Signal};
use ringfence_base::{
    error::chain,
    lock::{Lock, LockError},
};
use ringfence_credentials::{Change, Error, Login, Renewable, Renewal, Renewed, Secret, Source};
use ringfence_files::{self as files, Access, Dir, Others, Prepared};
use ringfence_policy::agents::home::Home;
use std::{
    io,
    sync::{
        Mutex, MutexGuard, PoisonError, TryLockError,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

/// How long another run's renewal is waited for.
const PATIENCE: Duration = Duration::from_secs(45);
/// How long the end of a run waits for one that has begun: for its answer, and until that is written.
const END: Duration = Duration::from_secs(90);
/// The directory of what runs share. No agent has such a name.
const DIR: &str = ".renewal";
/// How often it is looked whether another renewal is done.
const AGAIN: Duration = Duration::from_millis(100);
/// How long the agent's own lock is waited for, and how long it is held at most: a renewal, and some more.
const LOCKED: (Duration, Duration) = (Duration::from_secs(30), Duration::from_secs(120));
/// The same for its lock on the file alone.
const WRITING: (Duration, Duration) = (Duration::from_secs(25), Duration::from_secs(20));
/// More room than two tokens need, of 16 KiB each, if every character were escaped.
const ROOM: u64 = 128 << 10;
/// How often a file is written that others change at the same moment.
const TRIES: usize = 10;

/// What somebody may send to all processes of a run, and what waits as long as a renewal takes.
const HELD: [Signal; 8] = [
    Signal::SIGHUP,
    Signal::SIGINT,
    Signal::SIGQUIT,
    Signal::SIGTERM,
    Signal::SIGUSR1,
    Signal::SIGUSR2,
    Signal::SIGALRM,
    Signal::SIGTSTP,
];

/// What renews one run's login.
#[derive(Debug)]
pub(crate) struct Renewer {
    /// None is renewed for a model at an address that was given: a server there that refuses what it is sent says nothing of the
    /// vendor's login.
    may_renew: bool,
    is_ending: AtomicBool,
    /// Held as long as a renewal takes.
    run: Mutex<Run>,
}

/// What came of a run's renewals.
#[derive(Debug, Default)]
struct Run {
    /// A login that was not over was renewed because the provider refused it: once in a run's life, for who refuses the next one,
    /// too, refuses more than the login.
    was_refused: bool,
    /// A credential that could not be written. The file's is none any more.
    kept: Option<Secret>,
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
        Self { may_renew, is_ending: AtomicBool::new(false), run: Mutex::default() }
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
        let end = Instant::now() + END;
        while matches!(self.run.try_lock(), Err(TryLockError::WouldBlock)) && Instant::now() < end {
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
                Some(renewal) => (login, renewal),
                None => return login.read(),
            },
            other => return other.read(),
        };
        let mut run = self.run.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(kept) = &run.kept {
            return Ok(kept.clone());
        }
        let read = login.read();
        if self.due(&read, is_refused, &run).is_none() {
            return read;
        }
        let failed = |why| Error::NotRenewed { path: login.path.clone(), why };
        require_own(login).map_err(failed)?;
        let (dir, _lock) = self.lock().map_err(failed)?;
        // Another run may have done it meanwhile. Asked twice, an endpoint takes the same token once.
        let read = login.read();
        if self.due(&read, is_refused, &run).is_none() {
            return read;
        }
        let mut attempts = Attempts::of(&dir, login).map_err(|error| failed(error.to_string()))?;
        match attempts.last() {
            Some(Outcome::Failed(why)) => {
                let minutes = attempts::PAUSE / 60;
                return Err(failed(format!(
                    "{why}; that was tried in the last {minutes} minutes, and is not again"
                )));
            }
            // What was renewed only now, and is refused, is refused for something else.
            Some(Outcome::Renewed) if when == When::Refusal => return read,
            _ => {}
        }
        // From the agent's lock on, which would outlive this process.
        let signals = Held::new().map_err(|error| failed(error.to_string()))?;
        let _theirs = self.agent_locks(renewal, &signals).map_err(failed)?;
        // So may the agent.
        let read = login.read();
        let Some(due) = self.due(&read, is_refused, &run) else { return read };
        run.was_refused |= due == Due::Refused;
        let renewed = self.renew(&mut run, (login, renewal), &mut attempts, when);
        renewed.or_else(|why| {
            // The agent itself may have done it, with the same token: that is why it was not taken.
            let read = login.read();
            if read.as_ref().is_ok_and(|secret| !is_refused(secret)) { read } else { Err(failed(why)) }
        })
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

    /// One renewal of this user's at a time.
    fn lock(&self) -> Result<(Dir, Lock), String> {
        let home = Home::from_env().ok_or("the home directory is not known; set HOME")?;
        let path = home.state(DIR);
        let dir = make(&path).map_err(|error| chain(&error))?;
        let end = Instant::now() + PATIENCE;
        loop {
            match Lock::take(&path.join("lock")) {
                Ok(lock) => return Ok((dir, lock)),
                Err(LockError::Held { .. }) if Instant::now() < end => thread::sleep(AGAIN),
                Err(LockError::Held { pid, .. }) => {
                    return Err(format!("another run (pid {pid}) renews one for too long"));
                }
                Err(error) => return Err(chain(&error)),
            }
            self.require_going_on()?;
        }
    }

    /// The agent's own locks for as long as it renews: it would send the same token.
    fn agent_locks(&self, renewal: &Renewal, signals: &Held) -> Result<Vec<AgentLock>, String> {
        let (patience, life) = LOCKED;
        let going_on = || {
            signals.let_through();
            self.require_going_on()
        };
        let take = |path| AgentLock::take(path, life, patience, going_on);
        renewal.locks.iter().map(|path| take(path).map_err(|error| chain(&error))).collect()
    }

    fn require_going_on(&self) -> Result<(), String> {
        if self.is_ending.load(Ordering::Acquire) { Err("the run is at its end".to_owned()) } else { Ok(()) }
    }

    /// Renews a login, under the lock.
    fn renew(
        &self,
        run: &mut MutexGuard<'_, Run>,
        (login, renewal): (&Login, &Renewal),
        attempts: &mut Attempts<'_>,
        when: When,
    ) -> Result<Secret, String> {
        // Dotfiles may be links to where they are kept.
        let place = Dir::resolve(&login.path).map_err(|error| error.to_string())?;
        let cannot = |why: String| format!("its file cannot be written: {why}");
        let prepared = |room| {
            let access = place.dir.read(&place.name).and_then(Access::like)?;
            place.dir.prepare(&place.name, access, room)
        };
        let Renewable { token, text } = {
            let _turn = write_lock(renewal).map_err(cannot)?;
            let renewable = login.renewable().map_err(|error| chain(&error))?.ok_or("nothing renews it")?;
            // What would be in the way of the answer is found while the token is still good: it is written once as it is.
            let mut same = prepared(0).map_err(|error| cannot(error.to_string()))?;
            let is_written = same.put(renewable.text.as_bytes(), || is_still(login, &renewable.text));
            if !is_written.map_err(|error| cannot(error.to_string()))? {
                return Err("its file is being changed".to_owned());
            }
            renewable
        };
        let room = text.len() as u64 + ROOM;
        let mut to_come = prepared(room).map_err(|error| cannot(error.to_string()))?;
        drop(text);
        self.require_going_on()?;
        let path = login.path.display();
        // Nobody but the process that asks knows any more what came, where this one ends meanwhile.
        let noted = attempts.note(Outcome::Failed("it was begun, and not ended".to_owned()));
        noted.map_err(|error| format!("what is done cannot be put on record: {error}"))?;
        if when == When::Start {
            eprintln!("ringfence: renewing the login in {path}");
        }
        let new = match token_endpoint::ask(renewal, &token) {
            Ok(new) => new,
            Err(Unanswered { why, was_sent: false }) => {
                let _ = attempts.forget();
                return Err(why);
            }
            Err(Unanswered { why, was_sent: true }) => {
                let _ = attempts.note(Outcome::Failed(why.clone()));
                return Err(why);
            }
        };
        let written = match put(login, renewal, &mut to_come, &token, &new) {
            Ok(true) => Ok(()),
            // Somebody else's login by now.
            Ok(false) => {
                let _ = attempts.note(Outcome::Renewed);
                return Ok(login.read().unwrap_or_else(|_| run.kept.insert(new.access).clone()));
            }
            Err(why) => Err(why),
        };
        let outcome = match &written {
            Ok(()) => Outcome::Renewed,
            Err(why) => Outcome::Failed(format!("what came could not be written: {why}")),
        };
        // Otherwise it stays with what was noted before.
        let _ = attempts.note(outcome);
        if let Err(why) = written {
            run.kept = Some(new.access.clone());
            // The endpoint may take the token in the file no more: whoever reads it later is told why.
            eprintln!(
                "ringfence: the login in {path} was renewed, but cannot be written there: {why}; this run goes on with it, and \
                 the agent may have to log in again"
            );
        }
        Ok(new.access)
    }
}

/// Puts what came for the token `sent` into the login's file. False: that is another's by now.
fn put(
    login: &Login,
    renewal: &Renewal,
    to_come: &mut Prepared<'_>,
    sent: &Secret,
    new: &Renewed,
) -> Result<bool, String> {
    // Whoever has it for longer has no right to: what came is kept all the same.
    let _turn = write_lock(renewal).ok();
    for _ in 0..TRIES {
        let Some(Change { before, after }) = login.renewed(sent, new).map_err(|error| chain(&error))? else {
            return Ok(false);
        };
        if to_come.put(after.as_bytes(), || is_still(login, &before)).map_err(|error| error.to_string())? {
            return Ok(true);
        }
    }
    Err("others change it all the time".to_owned())
}

/// The agent's own lock on the file.
fn write_lock(renewal: &Renewal) -> Result<Option<AgentLock>, String> {
    let (patience, life) = WRITING;
    let take = |path| AgentLock::take(path, life, patience, || Ok(()));
    renewal.write_lock.as_deref().map(take).transpose().map_err(|error| chain(&error))
}

fn is_still(login: &Login, text: &str) -> io::Result<bool> {
    login.has(text).map_err(io::Error::other)
}

/// Signals that would end or stop this process wait until it is dropped: an endpoint does not wait.
struct Held(SigSet);

impl Held {
    fn new() -> nix::Result<Self> {
        let signals = SigSet::from_iter(HELD);
        signals.thread_swap_mask(SigmaskHow::SIG_BLOCK).map(Self)
    }

    /// Those that came meanwhile, as without it.
    fn let_through(&self) {
        let _ = self.0.thread_set_mask();
        let _ = SigSet::from_iter(HELD).thread_block();
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        let _ = self.0.thread_set_mask();
    }
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

    #[test]
    fn a_refusal_is_a_reason_once_and_an_end_always() {
        let token = || Ok(Secret::from("sk".to_owned()));
        let over = || Err(Error::Expired("/login".into()));
        let due = |may_renew, read, is_refused: bool, was_refused| {
            let run = Run { was_refused, kept: None };
            Renewer::new(may_renew).due(&read, &|_| is_refused, &run)
        };
        assert_eq!(due(true, token(), false, false), None);
        assert_eq!(due(true, token(), true, false), Some(Due::Refused));
        assert_eq!(due(true, token(), true, true), None);
        assert_eq!(due(true, over(), true, true), Some(Due::Over));
        assert_eq!((due(false, token(), true, false), due(false, over(), false, false)), (None, None));
        assert_eq!(due(true, Err(Error::NotAFile("/login".into())), false, false), None);
    }
}
