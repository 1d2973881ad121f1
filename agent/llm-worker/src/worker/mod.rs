//! The worker of one agent: its socket, its turns, and the task between them.
//!
//! Nothing here is shared between agents: a slow or stuck one delays nobody else.

mod actor;

use super::{
    access::{Access, Issued},
    connection::{self, ConnectionTokens},
    conversation,
    core_client::CoreClient,
    credentials::Credentials,
    frame::Counters,
    http, limits,
    mcp::line::Host,
    redact::Redactor,
    remote,
    report::Reporter,
    turn::{Parts, Turns},
    upstream::{self, Provider},
};
use actor::AgentActor;
use ringfence_credentials as secret;
use ringfence_policy::agents::{
    home::{HTTP_LOG, Home},
    registry::AgentConfig,
};
use ringfence_wire::agent::{CredentialOwner, WorkerCounts};
use std::{path::PathBuf, sync::Arc, time::Duration};
use tokio::{
    net::UnixListener,
    sync::{mpsc, watch},
};
use tokio_util::sync::CancellationToken;

/// Inputs that wait to be looked at.
const INPUTS: usize = 64;
/// How long connections may take to write their last words.
const FLUSH_TIME: Duration = Duration::from_secs(3);

/// Why a worker cannot start, or take a new configuration.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The log.
    #[error("cannot open the conversation")]
    Conversation(#[source] conversation::Error),
    /// The provider.
    #[error("[llm.{name}] cannot be used")]
    Provider {
        /// The section.
        name: String,
        /// Why.
        #[source]
        source: upstream::Error,
    },
    /// A token of an MCP server.
    #[error("cannot read the token of [mcp.{name}]")]
    Token {
        /// The section.
        name: String,
        /// Why.
        #[source]
        source: secret::Error,
    },
    /// The HTTP client for MCP servers.
    #[error("cannot create the HTTP client for the MCP servers")]
    Client(#[source] reqwest::Error),
}

/// What a configuration makes: the clients, with their credentials.
pub struct Ready(Parts);

impl Ready {
    /// Reads the credentials from where they are. Blocks: they come from files and commands.
    ///
    /// # Errors
    /// [`Error`].
    pub fn read(config: &AgentConfig, home: &Home) -> Result<Self, Error> {
        let credentials = Credentials::read(config)?;
        Self::new(config, &credentials, home.log(&config.name), (home.pins(&config.name), Host::default()))
    }

    /// With the log and the pins of MCP tools at these places; by way of the latter's host the auditor is asked. Blocks: certificates are read.
    ///
    /// # Errors
    /// [`Error`].
    pub(crate) fn new(
        config: &AgentConfig,
        credentials: &Credentials,
        log: PathBuf,
        pins: (PathBuf, Host),
    ) -> Result<Self, Error> {
        let of = |of| credentials.of(&of);
        let provider = Provider::new(&config.llm, of(CredentialOwner::Llm), of(CredentialOwner::Account))
            .map_err(|source| Error::Provider { name: config.llm.name.clone(), source })?;
        let token = |name: &str| credentials.of(&CredentialOwner::Mcp(name.to_owned())).cloned();
        let servers = config.mcp.iter().map(|mcp| (mcp.clone(), token(&mcp.name))).collect();
        Ok(Self(Parts {
            remote: remote::connect(servers, pins).map_err(Error::Client)?,
            redactor: Arc::new(Redactor::new(credentials.secrets())),
            provider: Arc::new(provider),
            config: Arc::new(config.clone()),
            log,
        }))
    }

    /// What the HTTP endpoint needs of it.
    pub fn shared(&self) -> http::Shared {
        http::Shared {
            config: Arc::clone(&self.0.config),
            provider: Arc::clone(&self.0.provider),
            redactor: Arc::clone(&self.0.redactor),
        }
    }
}

/// A worker that is ready to run.
pub struct Worker {
    config: Arc<AgentConfig>,
    turns: Turns,
    status: watch::Sender<WorkerCounts>,
    host: CoreClient,
    issued: Arc<Issued>,
    redactor: Arc<Redactor>,
}

impl Worker {
    /// Reads the log. Blocks.
    ///
    /// # Errors
    /// [`Error`].
    pub fn prepare(Ready(parts): Ready) -> Result<Self, Error> {
        let conversation = parts.open().map_err(Error::Conversation)?;
        // The log of HTTP calls is beside the conversation's.
        let calls = parts.log.with_file_name(HTTP_LOG);
        if let Err(error) = http::record::replay(&calls, &conversation.meter) {
            tracing::error!("agent {}: {} cannot be read: {error}", parts.config.name, calls.display());
        }
        let conversation_bytes = conversation.bytes() as u64;
        let status = WorkerCounts { conversation_bytes, ..WorkerCounts::default() };
        let (config, redactor) = (Arc::clone(&parts.config), Arc::clone(&parts.redactor));
        let turns = Turns::new(parts, conversation);
        let status = watch::Sender::new(status);
        Ok(Self { config, turns, status, host: CoreClient::default(), issued: Arc::default(), redactor })
    }

    /// With a link to the core: it is asked who peers are, and for tags; the auditor is told what happens.
    pub(crate) fn with_host(self, host: CoreClient) -> Self {
        let reporter = Reporter::new(host.clone(), Arc::clone(&self.issued), self.config.governed)
            .with_workdir(self.config.workdir.as_deref());
        Self { turns: self.turns.with_reporter(reporter), host, ..self }
    }

    /// Where what it uses is counted.
    pub(crate) fn meter(&self) -> limits::Shared {
        self.turns.meter()
    }

    /// Where its status can be seen, and added to.
    pub fn status(&self) -> watch::Sender<WorkerCounts> {
        self.status.clone()
    }

    /// Serves the agent until `shutdown`, and then until what is under way has ended or its time is over.
    pub async fn run(
        self,
        listener: UnixListener,
        replacements: mpsc::Receiver<Ready>,
        shutdown: CancellationToken,
    ) {
        let (orders, orders_in) = mpsc::channel(16);
        let (reports_out, reports) = mpsc::channel(16);
        let turns = tokio::spawn(self.turns.run(orders_in, reports_out));
        let counters = Arc::new(Counters::default());
        let (inputs_out, inputs) = mpsc::channel(INPUTS);
        let config = self.config;
        let access = Arc::new(Access::new(&config, self.host.clone(), Arc::clone(&self.issued)));
        let reporter =
            Reporter::new(self.host, self.issued, config.governed).with_workdir(config.workdir.as_deref());
        let mut actor =
            AgentActor::new(config, self.redactor, reporter, orders, (self.status, Arc::clone(&counters)));
        let tokens = ConnectionTokens { accepting: shutdown.child_token(), ..ConnectionTokens::default() };
        let accept = tokio::spawn(connection::accept(listener, inputs_out, counters, access, tokens.clone()));
        actor.serve(inputs, reports, replacements, &shutdown).await;
        tokens.accepting.cancel();
        drop(actor);
        tokens.listening.cancel();
        if let Ok(mut connections) = accept.await {
            let _ =
                tokio::time::timeout(FLUSH_TIME, async { while connections.join_next().await.is_some() {} })
                    .await;
        }
        let _ = turns.await;
    }
}
