//! A run's worker: the same process as an agent's, for one run. It serves the model at a port of loopback that is this run's
//! alone, to whoever has this run's token, and ends with the launcher.

use super::{
    Error,
    denials::{DenialRecord, Question},
    make,
    renewal::Renewer,
    say,
    tie::{self, Tie},
};
use jiff::Zoned;
use ringfence_base::{error::chain, loopback, paths::HTTP_TOKEN, sockets};
use ringfence_credentials::{self as secret, Secret, Source};
use ringfence_policy::agents::{
    home::{CONVERSATION, HTTP_LOG, Home},
    registry::AgentConfig,
};
use ringfence_supervise::{
    child::Process,
    worker::{self, Credentials, WorkerSetup},
};
use ringfence_wire::{
    agent::{Answer, CredentialOwner, MAX_QUESTION, Replacement, Supervisor, ToCore, ToWorker},
    conn::Conn,
};
use serde_json::value::RawValue;
use std::{
    fs,
    hash::{BuildHasher as _, RandomState},
    net::{Shutdown, SocketAddr, UdpSocket},
    os::{
        fd::{AsFd, BorrowedFd, OwnedFd},
        unix::net::UnixStream,
    },
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex, MutexGuard, OnceLock, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

/// How long a worker may take until it serves.
const START: Duration = Duration::from_secs(30);
/// A key that its provider refused is read again at most so often: a command or a person may have to be asked for it.
const RENEWAL: Duration = Duration::from_secs(5);
/// How long it may take to end, with what it still has to write down.
const END: Duration = Duration::from_secs(10);

/// A run's endpoint, being served. Dropping it ends the worker.
#[derive(Debug)]
pub struct Endpoint {
    agent: String,
    /// None: it was ended.
    worker: Option<Process>,
    is_ending: Arc<AtomicBool>,
    config: Box<RawValue>,
    /// Where its credential is, to read it again.
    source: Option<Source>,
    /// What renews it, if it is a login.
    renewer: Arc<Renewer>,
    /// Which credential the worker has.
    given: Option<Fingerprint>,
    address: SocketAddr,
    /// The port stays the run's when its worker is gone, and is nobody else's for UDP.
    held: (Arc<OwnedFd>, UdpSocket),
    token: String,
    /// What ties its calls to their processes, if anything.
    tie: Option<Tie>,
    /// Where it is on record what its calls were denied, if its model is to hear that.
    denials: OnceLock<DenialRecord>,
    logs: PathBuf,
    state: PathBuf,
}

impl Endpoint {
    /// Starts a worker for one run and waits until it serves.
    pub(crate) fn start(
        config: &AgentConfig,
        home: &Home,
        credential: Option<(Source, Secret)>,
        renewer: Arc<Renewer>,
    ) -> Result<Self, Error> {
        let agent = config.name.clone();
        let failed = |why: String| Error::Worker(agent.clone(), why);
        // Each run's log is its own: two at once do not wait for each other.
        let run = format!("{agent}.{}.{}", Zoned::now().strftime("%Y%m%d-%H%M%S"), std::process::id());
        let (logs, state) = (home.logs(&run), home.state(&run));
        let (listener, beside) = loopback::listen_alone().map_err(Error::Listen)?;
        let address = listener.local_addr().map_err(Error::Listen)?;
        let held = OwnedFd::from(listener.try_clone().map_err(Error::Listen)?);
        let private = make(&state)?;
        make(&logs)?;
        // A worker has both, and no run needs either: nobody can connect once their names are gone.
        let mut listeners: Vec<OwnedFd> = Vec::new();
        for name in ["agent.sock", "http.sock"] {
            let bound = sockets::bind_in(&private, name.as_ref()).map_err(|error| failed(chain(&error)))?;
            listeners.push(bound.0.into());
            let _ = fs::remove_file(state.join(name));
        }
        listeners.push(listener.into());
        let (source, secret) = credential.unzip();
        let credentials = passed(source.as_ref(), secret.as_ref())
            .map_err(|error| Error::Credential(agent.clone(), error))?;
        let given = secret.as_ref().map(Fingerprint::of);
        // Each has it in one place: the worker from here on.
        drop(secret);
        let config = worker::as_json(config).map_err(failed)?;
        let setup = WorkerSetup {
            config: config.clone(),
            by: Supervisor::User { logs: logs.clone(), state: state.clone() },
            credentials,
            listeners,
            endpoint: (true, true),
        };
        // The terminal is the agent's.
        let (quiet, level) = worker::QUIET;
        let environment = worker::of_user().chain([(quiet, level.into())]);
        let process = worker::spawn(None, environment).map_err(|error| failed(error.to_string()))?;
        let mut endpoint = Self {
            agent: agent.clone(),
            worker: None,
            is_ending: Arc::default(),
            config,
            source,
            renewer,
            given,
            address,
            held: (Arc::new(held), beside),
            token: String::new(),
            tie: None,
            denials: OnceLock::new(),
            logs,
            state,
        };
        match ready(&process, setup) {
            Ok(()) => endpoint.worker = Some(process),
            Err(why) => {
                process.kill();
                return Err(failed(why));
            }
        }
        let token = fs::read_to_string(endpoint.state.join(HTTP_TOKEN));
        endpoint.token =
            token.map_err(|error| failed(format!("its token cannot be read: {error}")))?.trim().to_owned();
        Ok(endpoint)
    }

    /// Its address, as a URL without a path.
    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Its address.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The socket that it listens with.
    pub fn listener(&self) -> Arc<OwnedFd> {
        Arc::clone(&self.held.0)
    }

    /// Its calls are tied to their processes with this, once the core holds the container. Before [`Self::report_to`].
    pub fn tie_with(&mut self, tie: Tie) {
        self.tie = Some(tie);
    }

    /// What ties its calls, if anything.
    pub fn tie(&self) -> Option<&Tie> {
        self.tie.as_ref()
    }

    /// Has the worker report over this line, which the core gave for the run's container, and tie calls to processes, and waits until
    /// it does: before the command runs, and before anybody watches. `denials`: where it is on record what the calls are denied,
    /// if the model is to hear that.
    ///
    /// # Errors
    /// In words: nothing is reported then, and the worker serves as before.
    pub fn report_to(&self, line: UnixStream, denials: Option<DenialRecord>) -> Result<(), String> {
        let worker = self.worker.as_ref().ok_or("it has ended")?;
        let order = ToWorker::ReportTo { ties: self.tie.as_ref().map(Tie::uid), denials: denials.is_some() };
        // A worker has one line.
        denials.map(|record| self.denials.set(record));
        let beside: Vec<BorrowedFd<'_>> =
            std::iter::once(line.as_fd()).chain(self.tie.iter().map(|tie| tie.listener.as_fd())).collect();
        worker::send_order(worker.socket(), &order, &beside, &[]).map_err(|error| chain(&error))?;
        is_ready(worker)
    }

    /// What opens it.
    pub fn token(&self) -> &str {
        &self.token
    }

    /// Where its calls are on record.
    pub fn log(&self) -> PathBuf {
        self.logs.join(HTTP_LOG)
    }

    /// Hears the worker: it is given a fresh key when its provider refuses the one of before, it is told what a tool's shell runs and
    /// what a call was denied, and its end is said on standard error. Starts threads: not before the command is forked.
    pub fn watch(&self) {
        let link = self.worker.as_ref().and_then(|worker| worker.socket().try_clone().ok());
        let Some(link) = link else { return };
        let Ok(speaker) = link.try_clone() else { return };
        let (agent, is_ending) = (self.agent.clone(), Arc::clone(&self.is_ending));
        // Whoever writes to the worker has it: no message is to begin inside another.
        let turn: Arc<Mutex<()>> = Arc::default();
        let denials = self.denials.get().cloned().zip(link.try_clone().ok());
        let denials = denials.and_then(|(record, link)| record.serve(link, Arc::clone(&turn)));
        let fresh = Arc::new(Fresh {
            agent: agent.clone(),
            link: speaker,
            config: self.config.clone(),
            source: self.source.clone(),
            renewer: Arc::clone(&self.renewer),
            given: Mutex::new(self.given.clone()),
            turn: Arc::clone(&turn),
            is_under_way: AtomicBool::new(false),
            last: Mutex::default(),
        });
        let watch = move || {
            let hear = |conn: &mut Conn, said: ToCore, beside: Vec<OwnedFd>| {
                if let ToCore::CommandLine { number } = said {
                    let answer = tie::command_line(beside);
                    let _turn = held(&turn);
                    return conn.send(&ToWorker::Answer { number, answer });
                }
                if let ToCore::DenialsOf { number, key } = said {
                    // Anything else would be another question to the auditor.
                    let is_key = key.len() == 16 && key.bytes().all(|byte| byte.is_ascii_hexdigit());
                    let question = Question { number, key, asked: Instant::now() };
                    if is_key && denials.as_ref().is_some_and(|denials| denials.try_send(question).is_ok()) {
                        return Ok(());
                    }
                    let answer = Answer::Refused("nobody can be asked for it now".to_owned());
                    let _turn = held(&turn);
                    return conn.send(&ToWorker::Answer { number, answer });
                }
                if let ToCore::ToolsLine { number } = said {
                    let answer = Answer::Refused("a run has no MCP servers of its own".to_owned());
                    let _turn = held(&turn);
                    return conn.send(&ToWorker::Answer { number, answer });
                }
                if matches!(said, ToCore::KeyRefused) {
                    Fresh::begin(&fresh);
                }
                Ok(())
            };
            let _ = worker::listen(link, hear);
            if !is_ending.load(Ordering::Acquire) {
                say(format_args!(
                    "the worker that serves {agent}'s model ended; the agent has no model any more"
                ));
            }
        };
        // Without the thread nothing is said.
        let _ = thread::Builder::new().name("endpoint".into()).spawn(watch);
    }

    /// Before the launcher stops, with all of its threads: waits for a login that is being renewed. None is as long as what this gives
    /// is there.
    pub fn before_stop(&self) -> impl Sized {
        self.renewer.before_stop()
    }

    /// Ends the worker, which has some seconds for that as long as nobody `hurries`. Gives where the run's calls are on record, if
    /// there were any.
    pub fn end(mut self, hurries: impl FnMut() -> bool) -> Option<PathBuf> {
        self.stop(hurries);
        Some(self.log()).filter(|log| log.exists())
    }

    fn stop(&mut self, hurries: impl FnMut() -> bool) {
        let Some(worker) = self.worker.take() else { return };
        self.is_ending.store(true, Ordering::Release);
        // What comes of a renewal is written down first: a refresh token is good once.
        self.renewer.end();
        // For the copy of whoever watches, too.
        let _ = worker.socket().shutdown(Shutdown::Both);
        let how = worker.finish_unless(END, hurries);
        tracing::debug!("the worker of {} ended: {how}", self.agent);
    }
}

impl Drop for Endpoint {
    fn drop(&mut self) {
        self.stop(|| false);
        let _ = fs::remove_dir_all(&self.state);
        let is_empty = |path: &Path| fs::metadata(path).is_ok_and(|found| found.len() == 0);
        let conversation = self.logs.join(CONVERSATION);
        if is_empty(&conversation) {
            let _ = fs::remove_file(&conversation);
        }
        // Nothing in it: it goes.
        let _ = fs::remove_dir(&self.logs);
    }
}

/// Which credential that was, without having it.
#[derive(Debug, Clone)]
struct Fingerprint {
    hasher: RandomState,
    hash: u64,
}

impl Fingerprint {
    fn of(secret: &Secret) -> Self {
        let hasher = RandomState::new();
        Self { hash: hasher.hash_one(secret.expose()), hasher }
    }

    fn is_of(&self, secret: &Secret) -> bool {
        self.hasher.hash_one(secret.expose()) == self.hash
    }
}

/// A credential as it is handed over, and behind it the account that it is of, where its place says that, too.
fn passed(source: Option<&Source>, secret: Option<&Secret>) -> Result<Credentials, secret::Error> {
    let Some(secret) = secret else { return Ok(Credentials::new()) };
    let account = match source {
        Some(Source::Login(login)) => login.account(secret)?,
        _ => None,
    };
    let account = account.map(|account| Ok((CredentialOwner::Account, account.pipe()?)));
    std::iter::once(Ok((CredentialOwner::Llm, secret.pipe()?))).chain(account).collect()
}

fn held<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Gives a worker fresh credentials while it is heard all the same.
struct Fresh {
    agent: String,
    link: UnixStream,
    config: Box<RawValue>,
    source: Option<Source>,
    renewer: Arc<Renewer>,
    /// Which credential the worker has.
    given: Mutex<Option<Fingerprint>>,
    /// Held as long as the worker is told something: an order is more than one message.
    turn: Arc<Mutex<()>>,
    is_under_way: AtomicBool,
    /// When it was given one last.
    last: Mutex<Option<Instant>>,
}

impl Fresh {
    /// Has a thread of its own do it, unless one does or did only now: a command, a person or a token endpoint may have to be asked.
    fn begin(this: &Arc<Self>) {
        let is_due = held(&this.last).is_none_or(|last| last.elapsed() >= RENEWAL);
        if !is_due || this.is_under_way.swap(true, Ordering::AcqRel) {
            return;
        }
        let own = Arc::clone(this);
        let renew = move || {
            if let Err(why) = own.renew() {
                say(format_args!("the credential of {}'s model was refused: {why}", own.agent));
            }
            // From its end on: it may have taken long.
            *held(&own.last) = Some(Instant::now());
            own.is_under_way.store(false, Ordering::Release);
        };
        if thread::Builder::new().name("credential".into()).spawn(renew).is_err() {
            this.is_under_way.store(false, Ordering::Release);
        }
    }

    /// Reads the credential again, if there is one, and has the worker go on with it: it waits for an answer.
    fn renew(&self) -> Result<(), String> {
        let given = held(&self.given).clone();
        let is_refused = |secret: &Secret| given.as_ref().is_some_and(|given| given.is_of(secret));
        let read = self.source.as_ref().map(|source| self.renewer.after_refusal(source, &is_refused));
        match read.transpose() {
            Ok(secret) => self.hand_over(secret.as_ref()),
            Err(error) => {
                // With the one of before it waits no longer: its calls have the provider's refusal at once.
                if let Some(Source::Login(login)) = &self.source
                    && let Ok(secret) = login.credential()
                {
                    self.hand_over(Some(&secret))?;
                }
                Err(format!("it cannot be read again: {}", chain(&error)))
            }
        }
    }

    fn hand_over(&self, secret: Option<&Secret>) -> Result<(), String> {
        let credentials = passed(self.source.as_ref(), secret).map_err(|error| chain(&error))?;
        *held(&self.given) = secret.map(Fingerprint::of);
        let order = ToWorker::Replace(Replacement {
            config: self.config.clone(),
            credentials: worker::owners_of(&credentials),
        });
        let _turn = held(&self.turn);
        worker::send_order(&self.link, &order, &[] as &[OwnedFd], &credentials).map_err(|error| chain(&error))
    }
}

/// Hands a worker its setup and waits until it serves.
fn ready(process: &Process, setup: WorkerSetup<OwnedFd>) -> Result<(), String> {
    setup.hand_over(process.socket()).map_err(|error| chain(&error))?;
    is_ready(process)
}

/// Waits until what a worker was told last is in force.
fn is_ready(process: &Process) -> Result<(), String> {
    let link = process.socket().try_clone().map_err(|error| error.to_string())?;
    let mut conn = Conn::new(link, START, MAX_QUESTION);
    loop {
        match conn.receive::<ToCore>().map_err(|error| chain(&error))? {
            ToCore::Ready => return Ok(()),
            ToCore::Failed(why) => return Err(worker::printable_reason(&why)),
            // Numbers that nobody asked for.
            ToCore::Status(_) | ToCore::Report(_) | ToCore::KeyRefused => {}
            ToCore::Speaker { .. }
            | ToCore::Tag { .. }
            | ToCore::CommandLine { .. }
            | ToCore::Tie { .. }
            | ToCore::CouldBeTied { .. }
            | ToCore::DeniedSoFar { .. }
            | ToCore::DenialsOf { .. }
            | ToCore::ToolsLine { .. }
            | ToCore::Behind { .. } => {
                return Err("it asks for what only the daemon does".to_owned());
            }
        }
    }
}
