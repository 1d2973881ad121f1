//! An agent that is served: its worker, its sockets, its HTTP endpoint.

use super::chain;
use crate::llm::{
    home::Home,
    http::{self, Endpoint, Share},
    limits,
    registry::AgentConfig,
    serve,
    status::WorkerStatus,
    worker::{self, Ready, Worker},
};
use std::time::Instant;
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
    pub(super) task: JoinHandle<()>,
    pub(super) since: Instant,
    /// What is wrong with the profile as it is now.
    pub(super) error: Option<String>,
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
            Endpoint::start(asked, home, shared, books)
        });
        let endpoint = match endpoint.transpose() {
            Ok(endpoint) => endpoint,
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
        Ok(Self {
            config,
            stop,
            replacements,
            status,
            meter,
            room,
            endpoint,
            task,
            since: Instant::now(),
            error: None,
        })
    }

    /// Waits for its end.
    pub(super) async fn ended(self) {
        if let Some(endpoint) = self.endpoint {
            endpoint.stop().await;
        }
        let _ = self.task.await;
    }

    /// Serves the provider's own API where the configuration has it, and only there.
    pub(super) async fn endpoint(&mut self, home: &Home, shared: http::Shared) -> Result<(), http::Error> {
        match &self.endpoint {
            Some(endpoint) if Some(endpoint.asked()) == self.config.http => {
                endpoint.replace(shared);
                return Ok(());
            }
            _ => {}
        }
        // Its calls have their time; the port may be needed at once.
        if let Some(endpoint) = self.endpoint.take() {
            endpoint.close().await;
        }
        let Some(asked) = self.config.http else { return Ok(()) };
        let books = books((home, &self.config.name), &self.meter, &self.status, &self.room);
        let endpoint = Endpoint::start(asked, home, shared, books)?;
        self.endpoint = Some(endpoint);
        Ok(())
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
