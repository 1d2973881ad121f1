//! `ringfence start`: all agents of one user, in one process, until it is told to stop.
//!
//! Profiles are read again on SIGHUP and when their files change. What is broken changes nothing that runs.

mod asked;
mod running;

use super::{
    commands, confine,
    control::ControlRequest,
    crashes::Crashes,
    home::Home,
    http::Room,
    registry::{self, AgentConfig, Registry},
    serve,
    worker::Ready,
};
use crate::{
    core::{
        lock::{Lock, LockError},
        watch::Watch,
    },
    profile::{
        self, Dirs, LoadErrors, Problem,
        problem::{At, Wrong},
    },
    worker_process::MOST_CRASHES,
};
use jiff::Timestamp;
use running::Running;
use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    num::NonZero,
    os::unix::net::UnixListener,
    sync::Arc,
    time::Duration,
};
use tokio::{
    signal::unix::{SignalKind, signal},
    sync::mpsc,
};

/// How often the profiles' directories are looked at.
const LOOK: Duration = Duration::from_secs(1);
/// Questions on the control socket that are answered at a time.
const QUESTIONS: u32 = 16;
/// How long the last answers on the control socket may take: whoever said `stop` hears that it was heard.
const LAST_ANSWERS: Duration = Duration::from_secs(2);
/// Threads for all agents; a worker is mostly waiting.
const MAX_THREADS: usize = 4;

/// Why the agents cannot be served.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
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
    #[error("the control socket cannot be made")]
    Socket(#[source] serve::Error),
    /// The runtime, signals.
    #[error("the system refuses what is needed to start")]
    Io(#[source] io::Error),
}

/// Serves the user's agents until SIGTERM, SIGINT or `ringfence stop`.
///
/// # Errors
/// [`Error`].
pub(crate) fn run() -> Result<(), Error> {
    let home = Home::from_env().ok_or(Error::NoHome)?;
    commands::start().map_err(Error::Io)?;
    serve::private_dir(&home.sockets()).map_err(Error::Socket)?;
    let _lock = Lock::take(&home.lock()).map_err(Error::Lock)?;
    Registry::load(&home.registry()).map_err(Error::Registry)?;
    // Before a credential is read, and before the first thread.
    confine::enter_user(&home.writable().map_err(Error::Io)?)?;
    let control = serve::bind(&home.control()).map_err(Error::Socket)?;
    let threads = std::thread::available_parallelism().map_or(1, NonZero::get).min(MAX_THREADS);
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(threads)
        .enable_all()
        .build()
        .map_err(Error::Io)?;
    let result = runtime.block_on(async { User::new(home.clone()).serve(control).await });
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
    crashes: Crashes,
    /// What requests and answers of all of them may take together.
    room: Room,
    /// What is wrong with the registry.
    error: Option<String>,
}

impl User {
    fn new(home: Home) -> Self {
        Self {
            home,
            since: Timestamp::now(),
            agents: BTreeMap::new(),
            draining: BTreeMap::new(),
            failed: BTreeMap::new(),
            stopped: BTreeSet::new(),
            crashes: Crashes::default(),
            room: Room::default(),
            error: None,
        }
    }

    async fn serve(mut self, control: UnixListener) -> io::Result<()> {
        let mut hangup = signal(SignalKind::hangup())?;
        let mut terminate = signal(SignalKind::terminate())?;
        let mut interrupt = signal(SignalKind::interrupt())?;
        let (questions_out, mut questions) = mpsc::channel(8);
        let control = tokio::net::UnixListener::from_std(control)?;
        let places = Arc::new(tokio::sync::Semaphore::new(QUESTIONS as usize));
        let asking = tokio::spawn(asked::answer(control, questions_out, Arc::clone(&places)));
        let mut watch = Watch::default();
        let dirs = BTreeSet::from([self.home.agents(), self.home.registry().with_file_name("")]);
        watch.look(&dirs);
        self.reload(false).await;
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
        let mut looks = tokio::time::interval(LOOK);
        loop {
            tokio::select! {
                _ = hangup.recv() => {
                    tracing::info!("SIGHUP: reading the profiles and credentials again");
                    self.stopped.clear();
                    self.crashes.forgive();
                    watch.look(&dirs);
                    self.reload(true).await;
                }
                _ = looks.tick() => {
                    let finished = self.bury().await;
                    for running in self.agents.values_mut() {
                        running.try_endpoint(&self.home).await;
                    }
                    let changed = watch.look(&dirs);
                    if changed {
                        self.crashes.forgive();
                    }
                    if changed || finished {
                        self.reload(false).await;
                    }
                }
                Some((request, reply)) = questions.recv() => {
                    let stop = request == ControlRequest::Stop;
                    let _ = reply.send(self.ask(request));
                    if stop {
                        break;
                    }
                }
                _ = terminate.recv() => break,
                _ = interrupt.recv() => break,
            }
        }
        tracing::info!("stopping");
        let _ = sd_notify::notify(&[sd_notify::NotifyState::Stopping]);
        asking.abort();
        self.stop_all().await;
        let _ = tokio::time::timeout(LAST_ANSWERS, places.acquire_many(QUESTIONS)).await;
        Ok(())
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
            let rests = self.stopped.contains(&name) || self.crashes.gave_up(&name);
            if rests || self.draining.contains_key(&name) {
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
            && running.config == config
            && !all
        {
            running.error = None;
            return;
        }
        for notice in &config.notices {
            tracing::warn!("agent {name}: {notice}");
        }
        let (new, home) = (config.clone(), self.home.clone());
        let ready = tokio::task::spawn_blocking(move || Ready::new(&new, &home)).await;
        let ready = match ready {
            Ok(Ok(ready)) => ready,
            Ok(Err(error)) => return self.broken(name, chain(&error)),
            Err(error) => return self.broken(name, error.to_string()),
        };
        let home = self.home.clone();
        if let Some(running) = self.agents.get_mut(&name) {
            let shared_http = ready.shared();
            tracing::info!("agent {name}: its new profile is in force from the next turn on");
            let shared = serve::share(&self.home.socket(&name), config.socket_owner);
            (running.config, running.error) = (config, shared.err().map(|e| chain(&e)));
            if running.replacements.try_send(ready).is_err() {
                running.error =
                    Some("the worker does not take the new profile; send SIGHUP to try again".to_owned());
            }
            running.endpoint(&home, shared_http).await;
            return;
        }
        match Running::start(config, ready, &home, self.room.share()).await {
            Ok(running) => {
                self.failed.remove(&name);
                self.agents.insert(name, running);
            }
            Err(error) => self.broken(name, error),
        }
    }

    fn drain(&mut self, name: &str) {
        if let Some(running) = self.agents.remove(name) {
            running.stop.cancel();
            running.endpoint.as_ref().inspect(|endpoint| endpoint.cancel());
            self.draining.insert(name.to_owned(), running);
        }
    }

    /// Forgets those that have ended. True if there were any: another of that name may begin.
    async fn bury(&mut self) -> bool {
        let ended: Vec<String> = self
            .draining
            .iter()
            .filter(|(_, r)| r.task.is_finished())
            .map(|(name, _)| name.clone())
            .collect();
        for name in &ended {
            if let Some(running) = self.draining.remove(name) {
                running.ended().await;
                tracing::info!("agent {name} has ended");
            }
        }
        // A worker that ended by itself has crashed.
        let crashed: Vec<String> =
            self.agents.iter().filter(|(_, r)| r.task.is_finished()).map(|(name, _)| name.clone()).collect();
        for name in &crashed {
            let Some(running) = self.agents.remove(name) else { continue };
            let lived = running.since.elapsed();
            if let Some(endpoint) = running.endpoint {
                endpoint.close().await;
            }
            if !self.crashes.note(name, lived) {
                tracing::error!("agent {name}: its worker ended unexpectedly; it is started again");
                continue;
            }
            let why = format!(
                "its worker ended unexpectedly {MOST_CRASHES} times in a row; SIGHUP or a change of a profile tries it again"
            );
            tracing::error!("agent {name}: {why}");
            serve::unbind(&self.home.socket_link(name), &self.home.socket(name));
            self.failed.insert(name.clone(), why);
        }
        !ended.is_empty() || !crashed.is_empty()
    }

    async fn stop_all(&mut self) {
        let names: Vec<String> = self.agents.keys().cloned().collect();
        names.iter().for_each(|name| self.drain(name));
        for running in std::mem::take(&mut self.draining).into_values() {
            running.ended().await;
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

/// An error with its causes, on one line: for the log and `status`.
pub(in crate::llm) fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    text
}
