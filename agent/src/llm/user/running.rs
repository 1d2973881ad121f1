//! An agent that is served: its worker, its sockets, its HTTP endpoint.

use super::chain;
use crate::{
    core::supervise::Backoff,
    llm::{
        home::Home,
        http::{self, Endpoint, Share},
        limits,
        registry::AgentConfig,
        serve,
        status::WorkerStatus,
        worker::{self, Ready, Worker},
    },
};
use std::time::{Duration, Instant};
use tokio::{
    sync::{mpsc, watch},
    task::JoinHandle,
};
use tokio_util::sync::CancellationToken;

/// An agent that is served.
pub(super) struct Running {
    pub(super) config: AgentConfig,
    pub(super) stop: CancellationToken,
    pub(super) replacements: mpsc::Sender<Ready>,
    pub(super) status: watch::Sender<WorkerStatus>,
    meter: limits::Shared,
    room: Share,
    /// The provider's own API, where the profile has it served.
    pub(super) endpoint: Option<Endpoint>,
    /// What that needs, to be tried again.
    shared: http::Shared,
    /// Why it is not served although the profile has it.
    blocked: Option<Blocked>,
    pub(super) task: JoinHandle<()>,
    pub(super) since: Instant,
    /// What is wrong with the profile as it is now.
    pub(super) error: Option<String>,
}

/// An endpoint whose port somebody else has, or that cannot be made for another reason: it is tried again.
struct Blocked {
    backoff: Backoff,
    why: String,
}

impl Running {
    /// Binds the agent's sockets, and serves them.
    ///
    /// # Errors
    /// Why it cannot be served, in words.
    pub(super) async fn start(
        config: AgentConfig,
        ready: Ready,
        home: &Home,
        room: Share,
    ) -> Result<Self, String> {
        let (socket, link) = (home.socket(&config.name), home.socket_link(&config.name));
        let shared = ready.shared();
        let worker = tokio::task::spawn_blocking(move || Worker::prepare(ready)).await;
        let worker = worker.map_err(|e| e.to_string())?.map_err(|e: worker::Error| chain(&e))?;
        let listener = serve::bind(&socket).map_err(|e| chain(&e))?;
        serve::share(&socket, config.socket_owner).map_err(|e| chain(&e))?;
        serve::link(&link, &socket).map_err(|e| chain(&e))?;
        let listener = tokio::net::UnixListener::from_std(listener).map_err(|e| e.to_string())?;
        let stop = CancellationToken::new();
        let (replacements, new) = mpsc::channel(4);
        let (status, meter) = (worker.status(), worker.meter());
        let endpoint = config.http.map(|asked| {
            let books = books((home, &config.name), &meter, &status, &room);
            Endpoint::start(asked, home, shared.clone(), books)
        });
        let (endpoint, taken) = match endpoint.transpose() {
            Ok(endpoint) => (endpoint, None),
            // Whoever has the port does not keep the agent from its socket.
            Err(error @ http::Error::Port(..)) => (None, Some(error)),
            Err(error) => {
                serve::unbind(&link, &socket);
                return Err(chain(&error));
            }
        };
        let stopping = stop.clone();
        let task = tokio::spawn(async move {
            worker.run(listener, new, stopping).await;
            serve::unbind(&link, &socket);
        });
        let mut running = Self {
            config,
            stop,
            replacements,
            status,
            meter,
            room,
            endpoint,
            shared,
            blocked: None,
            task,
            since: Instant::now(),
            error: None,
        };
        taken.inspect(|error| running.block(error));
        Ok(running)
    }

    /// What is wrong with it, for the user.
    pub(super) fn problem(&self) -> Option<&String> {
        self.error.as_ref().or(self.blocked.as_ref().map(|blocked| &blocked.why))
    }

    /// Its endpoint cannot be served: it is tried again, after a pause that grows.
    fn block(&mut self, error: &http::Error) {
        let name = &self.config.name;
        let is_new = self.blocked.is_none();
        let blocked =
            self.blocked.get_or_insert_with(|| Blocked { backoff: Backoff::default(), why: String::new() });
        let pause = blocked.backoff.failed(Duration::ZERO);
        blocked.why =
            format!("its HTTP endpoint is not served, and tried again in {pause:?}: {}", chain(error));
        if is_new {
            tracing::error!("agent {name}: {}", blocked.why);
        } else {
            tracing::debug!("agent {name}: {}", blocked.why);
        }
    }

    /// Tries to serve an endpoint again that could not be, if it is time.
    pub(super) async fn try_endpoint(&mut self, home: &Home) {
        if self.blocked.as_ref().is_some_and(|blocked| blocked.backoff.due()) {
            let shared = self.shared.clone();
            self.endpoint(home, shared).await;
            if self.blocked.is_none() {
                tracing::info!("agent {}: its HTTP endpoint is served again", self.config.name);
            }
        }
    }

    /// Waits for its end.
    pub(super) async fn ended(self) {
        if let Some(endpoint) = self.endpoint {
            endpoint.stop().await;
        }
        let _ = self.task.await;
    }

    /// Serves the provider's own API where the configuration has it, and only there. Where it cannot, it is tried again.
    pub(super) async fn endpoint(&mut self, home: &Home, shared: http::Shared) {
        self.shared = shared.clone();
        match &self.endpoint {
            Some(endpoint) if Some(endpoint.asked()) == self.config.http => {
                endpoint.replace(shared);
                return;
            }
            _ => {}
        }
        // Its calls have their time; the port may be needed at once.
        if let Some(endpoint) = self.endpoint.take() {
            endpoint.close().await;
        }
        let Some(asked) = self.config.http else {
            self.blocked = None;
            return;
        };
        let books = books((home, &self.config.name), &self.meter, &self.status, &self.room);
        match Endpoint::start(asked, home, shared, books) {
            Ok(endpoint) => (self.endpoint, self.blocked) = (Some(endpoint), None),
            Err(error) => self.block(&error),
        }
    }
}

fn books(
    (home, name): (&Home, &str),
    meter: &limits::Shared,
    status: &watch::Sender<WorkerStatus>,
    room: &Share,
) -> http::Books {
    http::Books { meter: meter.clone(), status: status.clone(), log: home.http_log(name), room: room.clone() }
}
