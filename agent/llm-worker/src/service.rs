//! What the service of one user changes of a worker that runs: its configuration, its HTTP endpoint's sockets.
//!
//! Under the core a worker has what it was started with until its end; there only the endpoint is served here.

use super::{
    access::{Access, Descriptors},
    core_client::CoreClient,
    credentials::Credentials,
    http::{self, Accounting, Endpoint, Loopback},
    mcp::line::Host,
    report::Reporter,
    tie::{Outstanding, Ties},
    worker::Ready,
};
use ringfence_base::error::chain;
use ringfence_policy::agents::registry::AgentConfig;
use ringfence_wire::agent::{CredentialOwner, Replacement, ToWorker};
use std::{
    collections::VecDeque,
    io,
    net::TcpListener,
    os::{
        fd::OwnedFd,
        unix::net::{UnixListener, UnixStream},
    },
    path::PathBuf,
    sync::{Arc, PoisonError},
};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

/// The HTTP endpoint's listening sockets: the unix socket, and loopback's where there is one.
pub(crate) type EndpointSockets = (UnixListener, Option<TcpListener>);

/// What the service orders.
pub(crate) enum Order {
    /// Another configuration, with its credentials.
    Replace(Box<AgentConfig>, Credentials),
    /// Report over this line of the core's, and tie what processes of a user say on a socket; whether the model is to hear what
    /// was denied.
    ReportTo(UnixStream, Option<(u32, UnixListener)>, bool),
    /// Other sockets for the HTTP endpoint; none: there is none any more.
    Listen(Option<EndpointSockets>),
}

/// Puts the service's messages and descriptors together to orders.
pub(crate) struct OrderAssembler {
    orders: mpsc::Sender<Order>,
    /// Questions what the worker is doing.
    counts: mpsc::Sender<()>,
    /// A configuration with the credentials that are there, and whose are still on their way.
    incomplete: Option<(AgentConfig, Credentials, VecDeque<CredentialOwner>)>,
}

impl OrderAssembler {
    pub(crate) fn new(orders: mpsc::Sender<Order>, counts: mpsc::Sender<()>) -> Self {
        Self { orders, counts, incomplete: None }
    }

    /// Takes a message. Descriptors come in the order of their messages, and may be there before them.
    ///
    /// # Errors
    /// Not what a service says to a worker that runs.
    pub(crate) async fn take(&mut self, message: ToWorker, descriptors: &Descriptors) -> io::Result<()> {
        let strange = |what: &str| io::Error::other(what.to_owned());
        match (message, self.incomplete.take()) {
            (ToWorker::Replace(Replacement { config, credentials }), None) => {
                let config = serde_json::from_str(config.get())?;
                self.incomplete = Some((config, Credentials::default(), credentials.into()));
            }
            (ToWorker::Credential, Some((config, mut credentials, mut whose))) => {
                let of = whose.pop_front().ok_or_else(|| strange("a credential that nobody wants"))?;
                if !credentials.take(&config, of, next(descriptors)?).map_err(io::Error::other)? {
                    return Err(strange("a credential of nobody's"));
                }
                self.incomplete = Some((config, credentials, whose));
            }
            (ToWorker::Listen { http, loopback }, None) => {
                let unix = http.then(|| next(descriptors)).transpose()?.map(UnixListener::from);
                let tcp = loopback.then(|| next(descriptors)).transpose()?.map(TcpListener::from);
                if tcp.is_some() && unix.is_none() {
                    return Err(strange("a port without a unix socket"));
                }
                self.order(Order::Listen(unix.map(|unix| (unix, tcp)))).await;
            }
            (ToWorker::ReportTo { ties, denials }, None) => {
                let line = next(descriptors)?.into();
                let ties =
                    ties.map(|uid| Ok::<_, io::Error>((uid, next(descriptors)?.into()))).transpose()?;
                self.order(Order::ReportTo(line, ties, denials)).await;
            }
            // Also of a worker that ends and takes no orders any more.
            (ToWorker::Count, None) => drop(self.counts.send(()).await),
            _ => return Err(strange("what is said to a new worker only, or out of its turn")),
        }
        if let Some((config, credentials, _)) = self.incomplete.take_if(|(.., whose)| whose.is_empty()) {
            self.order(Order::Replace(Box::new(config), credentials)).await;
        }
        Ok(())
    }

    async fn order(&self, order: Order) {
        // A worker that ends takes none.
        let _ = self.orders.send(order).await;
    }
}

/// The next descriptor that came beside a message.
///
/// # Errors
/// There is none.
pub(crate) fn next(descriptors: &Descriptors) -> io::Result<OwnedFd> {
    let mut kept = descriptors.lock().unwrap_or_else(PoisonError::into_inner);
    if kept.is_empty() {
        return Err(io::Error::other("a descriptor is missing"));
    }
    Ok(kept.remove(0))
}

/// What a worker serves beside its agent's socket, and how that is changed.
pub(crate) struct WorkerService {
    pub host: CoreClient,
    /// Where the conversation's log and the pins of MCP tools are.
    pub files: (PathBuf, (PathBuf, Host)),
    /// To the task that has the turns.
    pub(crate) replacements: mpsc::Sender<Ready>,
    /// Who may call the endpoint, where the core says.
    pub access: Option<Arc<Access>>,
    pub shared: http::Shared,
    pub(crate) accounting: Accounting,
    /// The file of the endpoint's token on loopback.
    pub token: PathBuf,
    pub endpoint: Option<Endpoint>,
    /// The calls of the endpoint's clients that a process may be tied to.
    pub(crate) outstanding: Arc<Outstanding>,
    /// Where those clients work, if that is known.
    pub workdir: Option<String>,
}

impl WorkerService {
    /// Does what is ordered until `stop`, and then lets the endpoint's calls finish.
    pub(crate) async fn run(mut self, mut orders: mpsc::Receiver<Order>, stop: CancellationToken) {
        loop {
            tokio::select! {
                () = stop.cancelled() => break,
                Some(order) = orders.recv() => self.carry_out(order).await,
            }
        }
        drop(orders);
        if let Some(endpoint) = self.endpoint {
            endpoint.stop().await;
        }
    }

    async fn carry_out(&mut self, order: Order) {
        let done = match order {
            Order::Replace(config, credentials) => self.replace(*config, credentials).await,
            Order::ReportTo(line, ties, denials) => self.report_to(line, ties, denials),
            Order::Listen(sockets) => self.listen(sockets).await.map_err(|error| chain(&error)),
        };
        match done {
            Ok(()) => self.host.ready(),
            Err(why) => self.host.failed(why),
        }
    }

    /// What clients of the endpoint are asked and call goes to the core from now on, and their tools' shells are tied to the calls.
    /// With `denials` their models hear what those were denied.
    fn report_to(
        &self,
        line: UnixStream,
        ties: Option<(u32, UnixListener)>,
        denials: bool,
    ) -> Result<(), String> {
        line.set_nonblocking(true).map_err(|error| error.to_string())?;
        let line = tokio::net::UnixStream::from_std(line).map_err(|error| error.to_string())?;
        if !self.host.report_to(line) {
            return Err("it reports elsewhere already".to_owned());
        }
        if denials {
            self.host.explain();
        }
        let Some((uid, listener)) = ties else { return Ok(()) };
        listener.set_nonblocking(true).map_err(|error| error.to_string())?;
        let listener = tokio::net::UnixListener::from_std(listener).map_err(|error| error.to_string())?;
        let ties = Ties { host: self.host.clone(), outstanding: Arc::clone(&self.outstanding), uid };
        tokio::spawn(ties.serve(listener));
        Ok(())
    }

    async fn replace(&mut self, config: AgentConfig, credentials: Credentials) -> Result<(), String> {
        let (log, pins) = self.files.clone();
        let ready = move || Ready::new(&config, &credentials, log, pins);
        let ready = tokio::task::spawn_blocking(ready).await;
        let ready = ready.map_err(|error| error.to_string())?.map_err(|error| chain(&error))?;
        let shared = ready.shared();
        self.replacements
            .try_send(ready)
            .map_err(|_| "the worker does not take the new profile; send SIGHUP to try again".to_owned())?;
        self.shared = shared.clone();
        self.endpoint.as_ref().inspect(|endpoint| endpoint.replace(shared));
        Ok(())
    }

    /// Serves the endpoint on these sockets, and no more on those of before. Calls that came by those go on.
    ///
    /// # Errors
    /// There is no endpoint then.
    pub(crate) async fn listen(&mut self, sockets: Option<EndpointSockets>) -> Result<(), http::Error> {
        // The port may be needed at once.
        if let Some(endpoint) = self.endpoint.take() {
            endpoint.close().await;
        }
        let Some((unix, tcp)) = sockets else { return Ok(()) };
        let loopback = tcp.map(|tcp| Loopback::listen(tcp, &self.token)).transpose()?;
        unix.set_nonblocking(true).map_err(http::Error::Io)?;
        let unix = tokio::net::UnixListener::from_std(unix).map_err(http::Error::Io)?;
        let (access, shared) = (self.access.clone(), self.shared.clone());
        let governed = access.as_ref().is_some_and(|access| access.governed);
        let reporter = Reporter::new(self.host.clone(), Arc::default(), governed)
            .with_outstanding(Arc::clone(&self.outstanding))
            .with_workdir(self.workdir.as_deref());
        let who = (access, reporter);
        self.endpoint = Some(Endpoint::start((unix, loopback), who, shared, self.accounting.clone()));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::samples;
    use ringfence_policy::agents::registry::Mcp;
    use serde_json::value::RawValue;
    use std::io::Write;

    fn config() -> Box<RawValue> {
        let url = "https://example.org/".parse().unwrap();
        let mcp = vec![Mcp { name: "s".into(), url, auth_token: None, tools: None, required: false }];
        serde_json::value::to_raw_value(&AgentConfig { mcp, ..samples::config() }).unwrap()
    }

    fn key(text: &str) -> OwnedFd {
        let (read, mut write) = io::pipe().unwrap();
        write.write_all(text.as_bytes()).unwrap();
        read.into()
    }

    fn replace(credentials: Vec<CredentialOwner>) -> ToWorker {
        ToWorker::Replace(Replacement { config: config(), credentials })
    }

    #[tokio::test]
    async fn a_configuration_is_in_force_once_all_its_credentials_are_there() {
        let (orders, mut ordered) = mpsc::channel(4);
        let (counts, mut counted) = mpsc::channel(4);
        let mut assembler = OrderAssembler::new(orders, counts);
        // The first may be there before its message.
        let descriptors = Descriptors::default();
        descriptors.lock().unwrap().push(key("sk-llm"));
        assembler
            .take(replace(vec![CredentialOwner::Llm, CredentialOwner::Mcp("s".into())]), &descriptors)
            .await
            .unwrap();
        assert!(ordered.try_recv().is_err(), "its credentials are missing");
        descriptors.lock().unwrap().push(key("sk-mcp"));
        assembler.take(ToWorker::Credential, &descriptors).await.unwrap();
        assert!(ordered.try_recv().is_err(), "one is");
        assembler.take(ToWorker::Credential, &descriptors).await.unwrap();
        let Ok(Order::Replace(_, credentials)) = ordered.try_recv() else { panic!("no order") };
        let of = |of: CredentialOwner| credentials.of(&of).unwrap().expose();
        assert_eq!([of(CredentialOwner::Llm), of(CredentialOwner::Mcp("s".into()))], ["sk-llm", "sk-mcp"]);
        // One that wants none is whole at once.
        assembler.take(replace(Vec::new()), &descriptors).await.unwrap();
        let Ok(Order::Replace(_, credentials)) = ordered.try_recv() else { panic!("no order") };
        assert_eq!(credentials.secrets().count(), 0);
        assembler.take(ToWorker::Count, &descriptors).await.unwrap();
        assert!(counted.try_recv().is_ok());
    }

    #[tokio::test]
    async fn what_is_no_order_is_refused() {
        let (orders, _ordered) = mpsc::channel(4);
        let (counts, _counted) = mpsc::channel(4);
        let assembler = || OrderAssembler::new(orders.clone(), counts.clone());
        let descriptors = Descriptors::default();
        for message in [
            vec![ToWorker::Credential],
            vec![replace(vec![CredentialOwner::Llm]), ToWorker::Credential],
            vec![replace(vec![CredentialOwner::Llm]), ToWorker::Count],
            vec![replace(vec![CredentialOwner::Llm]), replace(vec![CredentialOwner::Llm])],
            vec![ToWorker::Listen { http: true, loopback: false }],
            vec![ToWorker::ReportTo { ties: None, denials: false }],
        ] {
            let mut assembler = assembler();
            let mut last = Ok(());
            for message in message {
                last = assembler.take(message, &descriptors).await;
            }
            assert!(last.is_err());
        }
        let (socket, _) = UnixStream::pair().unwrap();
        descriptors.lock().unwrap().extend([key("sk-x"), socket.into()]);
        let mut strange = assembler();
        strange.take(replace(vec![CredentialOwner::Mcp("nobody".into())]), &descriptors).await.unwrap();
        assert!(strange.take(ToWorker::Credential, &descriptors).await.is_err());
        let alone = ToWorker::Listen { http: false, loopback: true };
        assert!(assembler().take(alone, &descriptors).await.is_err(), "loopback alone");
    }
}
