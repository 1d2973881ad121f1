//! An LLM worker's process, for both of its supervisors: the core (`agents` in `ringfence-core`) and the service of one
//! user (`user` in `ringfence-llm-worker`). Starts a worker, hands over its work, listens to it, ends it, restarts it.
//!
//! A worker reads what agents and providers say. Nothing of that is read here: a worker sends numbers, and a sentence
//! for its operator.

use crate::child::{Backoff, Process};
use ringfence_base::error::chain;
use ringfence_wire::{
    agent::{CredentialOwner, MAX_ORDER, MAX_QUESTION, Start, Supervisor, ToCore, ToWorker},
    conn::Conn,
    frame::FrameError,
};
use rustix::event::{PollFd, PollFlags, poll};
use serde::Serialize;
use serde_json::value::RawValue;
use std::{
    ffi::{OsStr, OsString},
    io,
    os::{
        fd::{AsFd, BorrowedFd, OwnedFd},
        unix::{net::UnixStream, process::CommandExt},
    },
    process::{Command, Stdio},
    thread,
    time::Duration,
};

/// A worker that ends so often without having lived [`WELL`] is not started again until a profile is read again.
pub const MOST_CRASHES: u32 = 6;
/// A worker that lived so long had been well.
pub(crate) const WELL: Duration = Duration::from_secs(60);
/// How long a worker has for each message about its configuration.
pub const SETUP_TIMEOUT: Duration = Duration::from_secs(5);
/// How long a worker may take to end when it is told to: a little more than it gives itself.
const STOP_TIMEOUT: Duration = Duration::from_secs(21);
/// How long a question of a worker's may take once it has begun, and its answer.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);
/// Most characters of a worker's sentence.
const MAX_SENTENCE: usize = 1000;

/// What a worker has of its supervisor's environment: what its log depends on.
const PASSED: &[&str] = &["RUST_LOG", "JOURNAL_STREAM"];

/// What a worker of a user's has of that user's environment besides: the way to the internet, and whom to trust there. Nothing else:
/// what is in it may be another agent's credential.
const OF_USER: [&str; 10] = [
    "HTTP_PROXY",
    "HTTPS_PROXY",
    "ALL_PROXY",
    "NO_PROXY",
    "http_proxy",
    "https_proxy",
    "all_proxy",
    "no_proxy",
    "SSL_CERT_FILE",
    "SSL_CERT_DIR",
];

/// The variables that [`spawn`] passes to a worker of a user's.
pub fn of_user() -> impl Iterator<Item = (&'static str, OsString)> {
    OF_USER.into_iter().filter_map(|name| Some((name, std::env::var_os(name)?)))
}

/// What a worker logs unless its supervisor's environment says.
pub const QUIET: (&str, &str) = ("RUST_LOG", "warn,rmcp=off");

/// Starts this very binary as an LLM worker, as [`spawn_role`] does.
///
/// # Errors
/// As fork(2) and execve(2).
pub fn spawn<K: AsRef<OsStr>, V: AsRef<OsStr>>(
    user: Option<u32>,
    more: impl IntoIterator<Item = (K, V)>,
) -> io::Result<Process> {
    spawn_role("llm-worker", user, more)
}

/// Starts this very binary as a worker of a role: its subcommand. The worker's standard input is the socket. `user` is its user
/// and its group, and it has no other; without it, it is ours. `more`: variables that it has besides.
///
/// # Errors
/// As fork(2) and execve(2).
pub fn spawn_role<K: AsRef<OsStr>, V: AsRef<OsStr>>(
    role: &str,
    user: Option<u32>,
    more: impl IntoIterator<Item = (K, V)>,
) -> io::Result<Process> {
    let (ours, theirs) = UnixStream::pair()?;
    // As for the auditor: the binary that runs, whatever became of its file.
    let mut command = Command::new("/proc/self/exe");
    command
        .arg0("ringfence")
        .arg(role)
        .stdin(OwnedFd::from(theirs))
        .stdout(Stdio::null())
        .current_dir("/")
        .env_clear()
        .envs(more)
        .envs(PASSED.iter().filter_map(|name| Some((name, std::env::var_os(name)?))));
    if let Some(user) = user {
        command.uid(user).gid(user);
    }
    Ok(Process::new(command.spawn()?, ours))
}

/// Credentials, and whose each is.
pub type Credentials = Vec<(CredentialOwner, OwnedFd)>;

/// What a worker is started with.
pub struct WorkerSetup<L> {
    /// Whom it serves. Credentials are beside it, not in it.
    pub config: Box<RawValue>,
    /// Who we are.
    pub by: Supervisor,
    /// Closed once the worker has them.
    pub credentials: Credentials,
    /// The agent's socket, and then the HTTP endpoint's: the unix socket, loopback's.
    pub listeners: Vec<L>,
    /// Which of the latter there are.
    pub endpoint: (bool, bool),
}

/// A configuration as a worker is told it.
///
/// # Errors
/// It is none that JSON has.
pub fn as_json(config: &impl Serialize) -> Result<Box<RawValue>, String> {
    serde_json::to_string(config).and_then(RawValue::from_string).map_err(|error| error.to_string())
}

impl<L: AsFd> WorkerSetup<L> {
    /// Tells a worker whom it serves, and hands it what it needs for that.
    ///
    /// # Errors
    /// [`FrameError`]: then it cannot be used.
    pub fn hand_over(self, worker: &UnixStream) -> Result<(), FrameError> {
        let Self { config, by, credentials, listeners, endpoint: (http, loopback) } = self;
        let start = Start { config, by, credentials: owners_of(&credentials), http, loopback };
        send_order(worker, &ToWorker::Start(start), &listeners, &credentials)
    }
}

/// Whose credentials are, in their order.
pub fn owners_of(credentials: &[(CredentialOwner, OwnedFd)]) -> Vec<CredentialOwner> {
    credentials.iter().map(|(of, _)| of.clone()).collect()
}

/// Tells a worker something, and hands it these descriptors and then credentials.
///
/// # Errors
/// [`FrameError`]: then nothing more can be told it.
pub fn send_order<L: AsFd>(
    worker: &UnixStream,
    order: &ToWorker,
    beside: &[L],
    credentials: &[(CredentialOwner, OwnedFd)],
) -> Result<(), FrameError> {
    let stream = worker.try_clone().map_err(FrameError::from_io)?;
    let mut conn = Conn::new(stream, SETUP_TIMEOUT, MAX_ORDER);
    let beside: Vec<BorrowedFd<'_>> = beside.iter().map(AsFd::as_fd).collect();
    conn.send_with_descriptors(order, &beside)?;
    for (_, descriptor) in credentials {
        conn.send_with_descriptors(&ToWorker::Credential, &[descriptor.as_fd()])?;
    }
    Ok(())
}

/// One worker from its start to its end: how it ended, or what went wrong with it.
///
/// `begun` is called with its link once it has its setup, `hear` with each thing that it says, `is_to_end` when it closed its
/// link: whether it was told to.
///
/// # Errors
/// In words: it did not take its setup, or said what no worker says.
pub fn supervise<L: AsFd>(
    process: Process,
    setup: WorkerSetup<L>,
    begun: impl FnOnce(&UnixStream),
    hear: impl FnMut(&mut Conn, ToCore, Vec<OwnedFd>) -> Result<(), FrameError>,
    is_to_end: impl FnOnce() -> bool,
) -> Result<String, String> {
    let handed_over = setup.hand_over(process.socket());
    let handed_over =
        handed_over.map_err(|error| format!("its worker did not take its configuration: {}", chain(&error)));
    let served = handed_over.and_then(|()| {
        let link = process.socket().try_clone().map_err(|error| error.to_string())?;
        begun(&link);
        match listen(link, hear) {
            Ok(()) | Err(FrameError::Closed) => Ok(()),
            Err(error) => Err(format!("its worker sent something strange: {}", chain(&error))),
        }
    });
    let exit = match served {
        Ok(()) if is_to_end() => process.finish(STOP_TIMEOUT),
        _ => process.kill(),
    };
    served.map(|()| format!("its worker ended: {exit}")).map_err(|why| format!("{why} ({exit})"))
}

/// Hears a worker until it closes its link or says what no worker says.
///
/// # Errors
/// [`FrameError`]; also that it closed its link.
pub fn listen(
    worker: UnixStream,
    mut hear: impl FnMut(&mut Conn, ToCore, Vec<OwnedFd>) -> Result<(), FrameError>,
) -> Result<(), FrameError> {
    let mut conn = Conn::new(worker, REQUEST_TIMEOUT, MAX_QUESTION);
    loop {
        match poll(&mut [PollFd::new(conn.stream(), PollFlags::IN)], None) {
            Ok(_) => {}
            Err(rustix::io::Errno::INTR) => continue,
            Err(errno) => return Err(FrameError::from_io(errno.into())),
        }
        let (said, descriptors) = conn.receive_with_descriptors::<ToCore>()?;
        hear(&mut conn, said, descriptors)?;
    }
}

/// Tells a worker that runs to stop. What it says until then is heard. Nobody waits for it here: one that does not read would
/// hold up whoever asks how any agent fares.
pub fn send_stop(worker: &UnixStream, name: &str) {
    let Ok(worker) = worker.try_clone() else { return };
    let send = move || drop(Conn::new(worker, SETUP_TIMEOUT, MAX_QUESTION).send(&ToWorker::Stop));
    if let Err(error) = thread::Builder::new().name("stop".into()).spawn(send) {
        tracing::error!("agent {name}: its worker cannot be told to stop: no thread can be started: {error}");
    }
}

/// A worker's sentence about itself, as it may be shown: it may have been taken over by what it reads.
pub fn printable_reason(said: &str) -> String {
    let shown = said.chars().map(|c| if c.is_control() { ' ' } else { c });
    shown.take(MAX_SENTENCE).collect()
}

/// When an agent's worker that ended by itself is started again, and when no more.
#[derive(Debug, Default)]
pub struct Restarts {
    backoff: Backoff,
    in_a_row: u32,
}

impl Restarts {
    /// Notes that a worker ended after a life of `lived`. Gives the pause until the next is started; none: that was once too
    /// often, and the agent is given up.
    pub fn ended(&mut self, lived: Duration) -> Option<Duration> {
        self.in_a_row = if lived >= WELL { 1 } else { self.in_a_row + 1 };
        let pause = self.backoff.failed(lived);
        (self.in_a_row < MOST_CRASHES).then_some(pause)
    }

    /// How long until the next is started.
    pub fn wait(&self) -> Duration {
        self.backoff.wait()
    }

    /// Whether the agent was given up.
    pub fn gave_up(&self) -> bool {
        self.in_a_row >= MOST_CRASHES
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_that_does_not_live_is_given_up_after_pauses_that_grow() {
        let mut restarts = Restarts::default();
        let short = Duration::from_secs(1);
        let pauses: Vec<_> = (0..MOST_CRASHES).map(|_| restarts.ended(short)).collect();
        assert!(pauses.ends_with(&[None]) && restarts.gave_up(), "{pauses:?}");
        let pauses: Vec<_> = pauses.into_iter().flatten().collect();
        assert_eq!(pauses.len(), MOST_CRASHES as usize - 1);
        assert!(pauses.is_sorted_by(|a, b| a < b), "{pauses:?}");
    }

    #[test]
    fn a_crash_now_and_then_is_no_row() {
        let mut restarts = Restarts::default();
        assert!((0..100).all(|_| restarts.ended(WELL).is_some() && !restarts.gave_up()));
    }

    #[test]
    fn what_a_worker_says_of_itself_is_one_line_of_a_bounded_length() {
        assert_eq!(printable_reason("cannot open\n\u{1b}[2J\u{fc}"), "cannot open  [2J\u{fc}");
        assert_eq!(printable_reason(&"\u{fc}".repeat(5000)).chars().count(), MAX_SENTENCE);
    }
}
