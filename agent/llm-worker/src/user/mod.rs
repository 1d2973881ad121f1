//! `ringfence agent start`: a worker for each agent of one user, kept running until it is told to stop.
//!
//! It reads the user's own files, makes sockets, and starts this same program as a worker for each agent. Like the
//! core, it passes sockets and credentials as descriptors ([`ringfence_supervise::worker`]). It reads nothing that
//! agents or providers say. A worker that ends by itself is started again; the others do not notice.
//!
//! | file | what |
//! |---|---|
//! | `sockets` | an agent's listening sockets, which stay while workers come and go |
//! | `process` | one worker: its process, what it is told, what it says |
//! | `running` | an agent that is served: both of these together |
//! | `restarts` | workers that end: which are started again, and when; the end of all |
//! | `queries` | what is asked on the control socket |
//!
//! Profiles are read again on SIGHUP and when their files change. What is broken changes nothing that runs.

mod process;
mod queries;
mod restarts;
mod running;
mod sockets;

use super::{
    commands, confine,
    control::{AgentState, ControlReply, ControlRequest},
};
use jiff::Timestamp;
use process::Event;
use restarts::Followup;
use ringfence_base::error::chain;
use ringfence_base::sockets as serve;
use ringfence_base::{
    lock::{Lock, LockError},
    watch::Watch,
};
use ringfence_policy::agents::{
    home::Home,
    registry::{self, AgentConfig, Registry},
};
use ringfence_policy::{
    self as profile, Dirs, LoadErrors, Problem,
    problem::{At, Wrong},
};
use ringfence_supervise::worker::Restarts;
use running::Running;
use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    os::unix::net::UnixListener,
    sync::Arc,
    time::{Duration, Instant},
};
use tokio::{
    signal::unix::{SignalKind, signal},
    sync::{mpsc, oneshot},
    time::sleep_until,
};

/// How often the profiles' directories are looked at.
const LOOK: Duration = Duration::from_secs(1);
/// Questions on the control socket that are answered at a time.
const QUESTIONS: u32 = 16;
/// How long the last answers on the control socket may take: whoever said `stop` hears that it was heard.
const LAST_ANSWERS: Duration = Duration::from_secs(2);
/// How long the first workers may take before the service says that it serves: one may wait for another that ends.
const SETTLING: Duration = Duration::from_secs(15);
/// How long workers may take to say what they do, for whoever asks.
const COUNTING: Duration = Duration::from_secs(1);
/// How long a worker may take to end when it is told to: longer than it gives what is under way, and its last words.
const PATIENCE: Duration = Duration::from_secs(26);
/// How long workers that were killed may take to end.
const KILLED: Duration = Duration::from_secs(5);

/// Why the agents cannot be served.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Nothing says where home is.
    #[error("the home directory is not known; set HOME")]
    NoHome,
    /// Another one runs.
    #[error("only one can serve a user's agents")]
    Lock(#[source] LockError),
    /// The registry is broken.
    #[error("the registry cannot be used")]
    Registry(#[source] LoadErrors),
    /// Privileges.
    #[error(transparent)]
    Confine(#[from] confine::Error),
    /// A socket.
    #[error("cannot create the control socket")]
    Socket(#[source] serve::Error),
    /// The runtime, signals.
    #[error("cannot set up sockets, signals or the event loop")]
    Io(#[source] io::Error),
}

/// Serves the user's agents until SIGTERM, SIGINT or `ringfence agent stop --all`.
///
/// # Errors
/// [`Error`].
pub fn run() -> Result<(), Error> {
    let home = Home::from_env().ok_or(Error::NoHome)?;
    commands::start().map_err(Error::Io)?;
    serve::private_dir(&home.sockets()).map_err(Error::Socket)?;
    let _lock = Lock::take(&home.lock()).map_err(Error::Lock)?;
    Registry::load(&home.registry()).map_err(Error::Registry)?;
    // Before a credential is read, and before the first thread.
    confine::enter_user(&home.writable().map_err(Error::Io)?)?;
    let control = serve::bind(&home.control()).map_err(Error::Socket)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(Error::Io)?;
    let (user, incoming) = User::new(home.clone());
    let result = runtime.block_on(user.serve(incoming, control));
    runtime.shutdown_timeout(Duration::from_secs(1));
    let _ = std::fs::remove_file(home.control());
    result.map_err(Error::Io)
}

struct User {
    home: Home,
    since: Timestamp,
    agents: BTreeMap<String, Running>,
    /// Those that finish what they do.
    draining: BTreeMap<String, Running>,
    /// Those that cannot be started, and why.
    failed: BTreeMap<String, String>,
    /// Those that were stopped by hand.
    stopped: BTreeSet<String>,
    /// When the workers of those that crashed are started again, and whose no more.
    restarts: BTreeMap<String, Restarts>,
    /// What is wrong with the registry.
    error: Option<String>,
    /// Workers that were started.
    started: u64,
    events: mpsc::Sender<Event>,
}

impl User {
    fn new(home: Home) -> (Self, mpsc::Receiver<Event>) {
        let (events, incoming) = mpsc::channel(64);
        let user = Self {
            home,
            since: Timestamp::now(),
            agents: BTreeMap::new(),
            draining: BTreeMap::new(),
            failed: BTreeMap::new(),
            stopped: BTreeSet::new(),
            restarts: BTreeMap::new(),
            error: None,
            started: 0,
            events,
        };
        (user, incoming)
    }

    async fn serve(mut self, mut incoming: mpsc::Receiver<Event>, control: UnixListener) -> io::Result<()> {
        let mut hangup = signal(SignalKind::hangup())?;
        let mut terminate = signal(SignalKind::terminate())?;
        let mut interrupt = signal(SignalKind::interrupt())?;
        let (questions_out, mut questions) = mpsc::channel(8);
        let (counted, mut shown) = mpsc::channel::<oneshot::Sender<ControlReply>>(QUESTIONS as usize);
        let control = tokio::net::UnixListener::from_std(control)?;
        let places = Arc::new(tokio::sync::Semaphore::new(QUESTIONS as usize));
        let asking = tokio::spawn(queries::answer(control, questions_out, Arc::clone(&places)));
        let mut watch = Watch::default();
        let dirs = BTreeSet::from([self.home.agents(), self.home.registry().with_file_name("")]);
        watch.look(&dirs);
        let settled_by = Instant::now() + SETTLING;
        self.reload(false).await;
        let mut is_served = false;
        let mut looks = tokio::time::interval(LOOK);
        loop {
            if !is_served && (self.is_settled() || settled_by <= Instant::now()) {
                is_served = true;
                self.announce();
            }
            let restart = self.next_restart();
            tokio::select! {
                _ = hangup.recv() => {
                    tracing::info!("SIGHUP: reading the profiles and credentials again");
                    self.stopped.clear();
                    self.restarts.clear();
                    watch.look(&dirs);
                    self.reload(true).await;
                }
                _ = looks.tick() => {
                    self.agents.values_mut().chain(self.draining.values_mut()).for_each(Running::look_after);
                    if watch.look(&dirs) {
                        self.restarts.clear();
                        self.reload(false).await;
                    }
                }
                Some(event) = incoming.recv() => {
                    match self.handle_event(event) {
                        Followup::Nothing => {}
                        Followup::Reload => self.reload(false).await,
                        Followup::Renew(name) => self.renew(&name).await,
                    }
                }
                () = sleep_until(restart.unwrap_or_else(Instant::now).into()), if restart.is_some() => {
                    self.restart().await;
                }
                Some((request, reply)) = questions.recv(), if is_served => match request {
                    ControlRequest::Status => self.count(reply, counted.clone()),
                    ControlRequest::Stop => {
                        let _ = reply.send(ControlReply::Done);
                        break;
                    }
                    ControlRequest::StopAgent { name } => drop(reply.send(self.stop_agent(name))),
                },
                Some(reply) = shown.recv() => drop(reply.send(ControlReply::Status(self.status()))),
                _ = terminate.recv() => break,
                _ = interrupt.recv() => break,
            }
        }
        tracing::info!("stopping");
        // One that came with the signal that was heard is no other one.
        let _ = tokio::time::timeout(Duration::ZERO, interrupt.recv()).await;
        let _ = sd_notify::notify(&[sd_notify::NotifyState::Stopping]);
        asking.abort();
        self.stop_all(incoming, async {
            interrupt.recv().await;
        })
        .await;
        let _ = tokio::time::timeout(LAST_ANSWERS, places.acquire_many(QUESTIONS)).await;
        Ok(())
    }

    /// Whether each agent that can be served is.
    fn is_settled(&self) -> bool {
        self.agents.values().all(|running| running.state() != AgentState::Starting)
    }

    fn announce(&self) {
        let dir = self.home.agents();
        match self.agents.len() {
            0 => tracing::info!(
                "no agent is served yet: a profile with an [llm.NAME] in {} makes one, and is noticed by itself",
                dir.display()
            ),
            1 => tracing::info!("1 agent is served; profiles are in {}", dir.display()),
            many => tracing::info!("{many} agents are served; profiles are in {}", dir.display()),
        }
        tracing::info!(
            "this user's service has no part in the kernel: a socket's mode says who may speak there, and tool calls are not tied to kernel events. The system's `ringfence daemon` does both"
        );
        let _ = sd_notify::notify(&[sd_notify::NotifyState::Ready]);
    }

    /// Makes what runs as the files say. `all`: credentials are read again, too.
    async fn reload(&mut self, all: bool) {
        let home = self.home.clone();
        let read = tokio::task::spawn_blocking(move || read_all(&home)).await;
        let configs = match read {
            Ok(Ok(configs)) => configs,
            Ok(Err(error)) => {
                tracing::error!("the registry cannot be used; everything stays as it is: {error}");
                return self.error = Some(error.to_string());
            }
            Err(error) => return tracing::error!("reading the profiles: {error}"),
        };
        self.error = None;
        self.failed.retain(|name, _| configs.contains_key(name));
        self.stopped.retain(|name| configs.contains_key(name));
        let gone: Vec<String> =
            self.agents.keys().filter(|name| !configs.contains_key(*name)).cloned().collect();
        for name in gone {
            tracing::info!("agent {name}: its profile is gone; it ends when it is idle");
            self.drain(&name);
        }
        for (name, config) in configs {
            let gave_up = self.restarts.get(&name).is_some_and(Restarts::gave_up);
            if self.stopped.contains(&name) || gave_up || self.draining.contains_key(&name) {
                continue;
            }
            match config {
                Ok(config) => self.apply(config, all).await,
                Err(errors) => self.broken(name, errors.to_string()),
            }
        }
    }

    fn broken(&mut self, name: String, error: String) {
        let Some(running) = self.agents.get_mut(&name) else {
            tracing::error!("agent {name} cannot be started: {error}");
            self.failed.insert(name, error);
            return;
        };
        tracing::error!("agent {name}: the profile that was in force stays so: {error}");
        running.error = Some(error);
    }

    async fn apply(&mut self, config: AgentConfig, all: bool) {
        let name = config.name.clone();
        if let Some(running) = self.agents.get_mut(&name)
            && *running.newest() == config
            && !all
        {
            running.error = None;
            return;
        }
        for notice in &config.notices {
            tracing::warn!("agent {name}: {notice}");
        }
        let (new, home) = (config.clone(), self.home.clone());
        let is_there = self.agents.contains_key(&name);
        let made = tokio::task::spawn_blocking(move || {
            let credentials = running::credentials(&new).map_err(|error| chain(&error))?;
            let prepared = (!is_there).then(|| Running::prepare(new, &home)).transpose();
            Ok::<_, String>((credentials, prepared.map_err(|error| chain(&error))?))
        });
        let (credentials, prepared) = match made.await {
            Ok(Ok(made)) => made,
            Ok(Err(error)) => return self.broken(name, error),
            Err(error) => return self.broken(name, error.to_string()),
        };
        if let Some(mut running) = prepared {
            self.started += 1;
            return match running.launch(self.started, credentials, self.events.clone()) {
                Ok(()) => {
                    self.failed.remove(&name);
                    self.agents.insert(name, running);
                }
                Err(error) => self.broken(name, error),
            };
        }
        if let Some(running) = self.agents.get_mut(&name) {
            tracing::info!("agent {name}: its new profile is in force from the next turn on");
            running.replace(config, credentials);
        }
    }
}

type Configs = BTreeMap<String, Result<AgentConfig, LoadErrors>>;

/// Every profile of the user that is an agent's. Blocks.
fn read_all(home: &Home) -> Result<Configs, LoadErrors> {
    let registry = Registry::load(&home.registry())?;
    let dirs = Dirs { system: home.agents(), user: None };
    let mut configs = Configs::new();
    // Whoever wrote it wonders where the agent is.
    for name in dirs.misnamed() {
        let problem = Problem::new(At::file(&home.agent(&name)), Wrong::Name(name.clone()));
        configs.insert(name, Err(problem.into()));
    }
    for name in registry::names(home) {
        match profile::load(&name, &dirs) {
            // A container's profile without a model is no agent.
            Ok(profile) if profile.llm.is_empty() && profile.mcp.is_empty() && profile.has_grant => {
                tracing::debug!("{name}: no [llm.*]: not an agent");
            }
            Ok(profile) => drop(configs.insert(name, registry::agent(&profile, &registry))),
            Err(errors) => drop(configs.insert(name, Err(errors))),
        }
    }
    Ok(configs)
}
