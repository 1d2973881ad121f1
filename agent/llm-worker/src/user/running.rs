//! An agent that is served: its sockets, and its worker.

use super::{
    PATIENCE,
    process::{Event, WorkerEvent, WorkerProcess},
    sockets::Sockets,
};
use crate::{control::AgentState, credentials, worker};
use ringfence_base::error::chain;
use ringfence_base::sockets as serve;
use ringfence_files::Dir;
use ringfence_policy::agents::{
    home::Home,
    registry::{AgentConfig, Http},
};
use ringfence_supervise::{
    child::Backoff,
    worker::{self as worker_process, Credentials, WorkerSetup},
};
use ringfence_wire::agent::{Replacement, Supervisor, WorkerCounts};
use std::{
    collections::VecDeque,
    path::PathBuf,
    time::{Duration, Instant},
};
use tokio::sync::mpsc;

/// What a worker was told and did not answer yet.
enum PendingOrder {
    /// That it starts.
    Start,
    /// That this is its configuration.
    Replace(Box<AgentConfig>),
    /// That its API has other sockets.
    Listen,
}

/// What an answer of a worker's means for its agent.
pub(super) enum WorkerEffect {
    /// It goes on.
    Fine,
    /// It is to have its credentials anew.
    Renew,
    /// The profile cannot be used as it is now.
    Broken(String),
    /// The worker ended. Beside it what it said of why it could not start.
    Ended { how: String, could_not: Option<String> },
}

/// An agent that is served.
pub(super) struct Running {
    /// As it is in force.
    pub(super) config: AgentConfig,
    sockets: Sockets,
    dirs: (PathBuf, PathBuf),
    worker: Option<WorkerProcess>,
    /// The first first.
    pending: VecDeque<PendingOrder>,
    /// The worker serves the agent.
    is_up: bool,
    /// Why the worker cannot start, as it says.
    start_error: Option<String>,
    /// How the last worker ended, while the next is waited for.
    pub(super) ended: Option<String>,
    /// What is wrong with the profile as it is now.
    pub(super) error: Option<String>,
    /// Why the API is not served as the profile has it.
    blocked: Option<Blocked>,
    /// When the worker is to have ended.
    ends_by: Option<Instant>,
    /// When its credentials were read anew at last.
    renewed: Option<Instant>,
}

/// How often credentials are read anew at most because a provider refused one: a worker may say so as often as it likes.
const RENEWAL: Duration = Duration::from_secs(5);

/// An API whose port somebody else has, or that cannot be served for another reason: it is tried again.
struct Blocked {
    backoff: Backoff,
    why: String,
}

impl Running {
    /// Binds the agent's sockets. It has no worker yet. Blocks.
    ///
    /// # Errors
    /// [`serve::Error`].
    pub(super) fn prepare(config: AgentConfig, home: &Home) -> Result<Self, serve::Error> {
        let dirs = (home.logs(&config.name), home.state(&config.name));
        for dir in [&dirs.0, &dirs.1] {
            Dir::make(dir).map_err(|error| serve::Error::Io(dir.clone(), error))?;
        }
        let sockets = Sockets::bind(home, &config.name, config.socket_owner)?;
        Ok(Self {
            config,
            sockets,
            dirs,
            worker: None,
            pending: VecDeque::new(),
            is_up: false,
            start_error: None,
            ended: None,
            error: None,
            blocked: None,
            ends_by: None,
            renewed: None,
        })
    }

    /// Starts a worker.
    ///
    /// # Errors
    /// Why there is none, in words.
    pub(super) fn launch(
        &mut self,
        number: u64,
        credentials: Credentials,
        events: mpsc::Sender<Event>,
    ) -> Result<(), String> {
        let (_, fits) = self.sockets.fit(self.config.http, self.config.socket_owner);
        match fits {
            Ok(()) => self.blocked = None,
            // Nobody who has the port keeps the agent from its socket.
            Err(error) => self.block(&chain(&error)),
        }
        let (logs, state) = self.dirs.clone();
        let setup = WorkerSetup {
            config: worker_process::as_json(&self.config)?,
            by: Supervisor::User { logs, state },
            credentials,
            listeners: self.sockets.all().map_err(|error| error.to_string())?,
            endpoint: self.sockets.has_api(),
        };
        self.worker = Some(WorkerProcess::start(&self.config.name, number, setup, events)?);
        self.pending = VecDeque::from([PendingOrder::Start]);
        (self.is_up, self.start_error, self.ended) = (false, None, None);
        Ok(())
    }

    /// The configuration that the worker has, or was told last.
    pub(super) fn newest(&self) -> &AgentConfig {
        let ordered = self.pending.iter().rev().find_map(|pending| match pending {
            PendingOrder::Replace(config) => Some(&**config),
            PendingOrder::Start | PendingOrder::Listen => None,
        });
        ordered.unwrap_or(&self.config)
    }

    /// From the next turn on the worker has another configuration.
    pub(super) fn replace(&mut self, config: AgentConfig, credentials: Credentials) {
        let shared = self.sockets.share(config.socket_owner);
        self.error = shared.err().map(|error| chain(&error));
        let Some(worker) = &self.worker else {
            // The next one is started with it.
            self.config = config;
            return;
        };
        let text = match worker_process::as_json(&config) {
            Ok(text) => text,
            Err(error) => return self.error = Some(error),
        };
        let replacement = Replacement { config: text, credentials: worker_process::owners_of(&credentials) };
        if !worker.replace(replacement, credentials) {
            self.error =
                Some("the worker does not take the new profile; send SIGHUP to try again".to_owned());
            return;
        }
        self.pending.push_back(PendingOrder::Replace(Box::new(config)));
        self.endpoint();
    }

    /// Has the API served as the profile has it.
    fn endpoint(&mut self) {
        let (http, owner) = (self.newest().http, self.newest().socket_owner);
        let (changed, fits) = self.sockets.fit(http, owner);
        match fits {
            Err(error) => self.block(&chain(&error)),
            // Else once the worker has them.
            Ok(()) if !changed => self.blocked = None,
            Ok(()) => {}
        }
        let Some(worker) = self.worker.as_ref().filter(|_| changed) else { return };
        match self.sockets.api().map(|beside| worker.listen(self.sockets.has_api(), beside)) {
            Ok(true) => self.pending.push_back(PendingOrder::Listen),
            Ok(false) => self.block("its worker does not read what it is told"),
            Err(error) => self.block(&error.to_string()),
        }
    }

    /// The API is not served as the profile has it: that is tried again, after a pause that grows.
    fn block(&mut self, why: &str) {
        let name = &self.config.name;
        let is_new = self.blocked.is_none();
        let blocked =
            self.blocked.get_or_insert_with(|| Blocked { backoff: Backoff::default(), why: String::new() });
        let pause = blocked.backoff.failed(Duration::ZERO);
        let what = match self.sockets.has_api() {
            (true, _) => "its HTTP endpoint is served on its socket only",
            (false, _) => "its HTTP endpoint is not served",
        };
        blocked.why = format!("{what}, and tried again in {pause:?}: {why}");
        if is_new {
            tracing::error!("agent {name}: {}", blocked.why);
        } else {
            tracing::debug!("agent {name}: {}", blocked.why);
        }
    }

    /// Tries to have the API served that could not be, if it is time. Ends a worker that had its time to end.
    pub(super) fn look_after(&mut self) {
        if self.is_up && self.blocked.as_ref().is_some_and(|blocked| blocked.backoff.due()) {
            self.endpoint();
        }
        if self.ends_by.is_some_and(|until| until <= Instant::now()) {
            self.kill();
        }
    }

    /// What its worker said or did; none: it was another worker, one of before.
    pub(super) fn handle(&mut self, worker: u64, what: WorkerEvent) -> Option<WorkerEffect> {
        if self.worker.as_ref()?.number != worker {
            return None;
        }
        Some(match what {
            WorkerEvent::Ended(how) => {
                let could_not = self.start_error.take().filter(|_| !self.is_up);
                self.worker = None;
                self.is_up = false;
                // What it had not answered yet is what the next one starts with.
                self.config = self.newest().clone();
                self.pending.clear();
                WorkerEffect::Ended { how, could_not }
            }
            WorkerEvent::KeyRefused => {
                let is_due = self.renewed.is_none_or(|renewed| renewed.elapsed() >= RENEWAL);
                if !self.is_up || self.ends_by.is_some() || !is_due {
                    return Some(WorkerEffect::Fine);
                }
                self.renewed = Some(Instant::now());
                WorkerEffect::Renew
            }
            WorkerEvent::Ready => {
                match self.pending.pop_front() {
                    Some(PendingOrder::Start) => self.is_up = true,
                    Some(PendingOrder::Replace(config)) => self.config = *config,
                    Some(PendingOrder::Listen) => self.listens(),
                    None => {}
                }
                WorkerEffect::Fine
            }
            WorkerEvent::Failed(why) => match self.pending.pop_front() {
                Some(PendingOrder::Start) => {
                    self.start_error = Some(why);
                    WorkerEffect::Fine
                }
                Some(PendingOrder::Replace(_)) => {
                    // The API is again as the profile has it that stays in force.
                    self.endpoint();
                    WorkerEffect::Broken(why)
                }
                Some(PendingOrder::Listen) => {
                    self.block(&why);
                    WorkerEffect::Fine
                }
                None => WorkerEffect::Fine,
            },
        })
    }

    fn listens(&mut self) {
        let wanted: Option<Http> = self.newest().http;
        if self.sockets.are(wanted) && self.blocked.take().is_some() {
            tracing::info!("agent {}: its HTTP endpoint is served again", self.config.name);
        }
    }

    /// Its worker finishes what it does, and nobody connects any more. False: it has none.
    pub(super) fn stop(&mut self) -> bool {
        self.sockets.close();
        let Some(worker) = &self.worker else { return false };
        worker.stop();
        self.ends_by = Some(Instant::now() + PATIENCE);
        true
    }

    /// Ends its worker.
    pub(super) fn kill(&self) {
        self.worker.as_ref().inspect(|worker| worker.kill());
    }

    /// How long its worker has lived.
    pub(super) fn lived(&self) -> Duration {
        self.worker.as_ref().map(|worker| worker.since.elapsed()).unwrap_or_default()
    }

    /// Asks its worker what it does; the future ends when it said so.
    pub(super) fn count(&mut self) -> Option<impl Future<Output = ()> + Send + use<>> {
        let is_up = self.is_up;
        self.worker.as_mut().filter(|_| is_up).map(WorkerProcess::count)
    }

    /// Whether it is served, or will be.
    pub(super) fn state(&self) -> AgentState {
        match (&self.worker, self.is_up, self.ends_by) {
            (_, _, Some(_)) => AgentState::Draining,
            (None, ..) => AgentState::Waiting,
            (Some(_), false, _) => AgentState::Starting,
            (Some(_), true, _) => AgentState::Running,
        }
    }

    /// Its worker's process.
    pub(super) fn pid(&self) -> Option<u32> {
        self.worker.as_ref().map(|worker| worker.pid)
    }

    /// What its worker does, as it said last.
    pub(super) fn status(&self) -> Option<WorkerCounts> {
        self.worker.as_ref().map(|worker| worker.counts().worker)
    }

    /// What is wrong with it, for the user.
    pub(super) fn problem(&self) -> Option<&String> {
        let blocked = self.blocked.as_ref().map(|blocked| &blocked.why);
        self.error.as_ref().or(self.ended.as_ref()).or(blocked)
    }
}

/// The credentials that a configuration wants, each read from where it is, to be handed to a worker. Blocks: they come from
/// files and commands.
///
/// # Errors
/// The first that cannot be had.
pub(super) fn credentials(config: &AgentConfig) -> Result<Credentials, worker::Error> {
    credentials::read_each(config, |secret| secret.pipe())
}
