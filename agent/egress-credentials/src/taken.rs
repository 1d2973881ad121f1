//! One connection that the egress worker handed over, from its handshake to its end.

use crate::{
    answer::{self, Asked},
    authority::Authority,
    body::{Forwarded, Sent},
    exchange::{Exchange, Exchanges, Line},
    hosts::Hosts,
    refusal::Refusal,
    request::{self, Anew},
    server,
    stream::{Said, Socket},
    upgrade,
};
use hyper::{
    Request, Response, body::Incoming, client::conn::http1::SendRequest, http::request::Parts,
    server::conn::http1, service::service_fn,
};
use hyper_util::rt::{TokioIo, TokioTimer};
use ringfence_wire::{credentials::TakenRefusal, egress::EgressCause};
use rustls::{AlertDescription, ClientConfig};
use std::{
    cell::{Cell, RefCell},
    error::Error,
    io,
    pin::pin,
    rc::Rc,
    sync::Arc,
    time::{Duration, Instant},
};
use tokio::{sync::Mutex, task::JoinSet, time::timeout};
use tokio_rustls::TlsAcceptor;

/// How long a client may take for its handshake.
const HANDSHAKE: Duration = Duration::from_secs(15);
/// How long a request's head may take, and a connection rest between two.
const HEAD: Duration = Duration::from_secs(60);
/// Who does not trust a certificate, and says nothing of it, leaves within this.
const AT_ONCE: Duration = Duration::from_secs(1);
/// Bytes of a request's head.
const LONGEST_HEAD: usize = 64 << 10;
/// Headers of a request.
const MOST_HEADERS: usize = 128;

/// What all connections share.
pub(crate) struct Shared {
    /// Name of the profile, for what users are told.
    pub(crate) profile: String,
    pub(crate) hosts: Rc<Hosts>,
    /// What is under way by their rules.
    pub(crate) exchanges: Exchanges,
    /// Connections at once.
    pub(crate) most_connections: usize,
    pub(crate) authority: Authority,
    pub(crate) trusted: Arc<ClientConfig>,
}

/// A connection.
pub(crate) struct Taken {
    pub(crate) host: String,
    pub(crate) port: u16,
    pub(crate) said: Vec<u8>,
    pub(crate) client: Socket,
    pub(crate) server: Socket,
}

/// How it went.
pub(crate) struct Went {
    /// Bytes to the server and from it.
    pub(crate) bytes: (u64, u64),
    /// A credential that came back, or else the first that was refused.
    pub(crate) refused: Option<TakenRefusal>,
}

pub(crate) type Failure = Box<dyn Error + Send + Sync>;

/// What requests of one connection share.
struct Connection {
    shared: Rc<Shared>,
    line: Rc<Line>,
    /// Requests that came.
    requests: Cell<u64>,
    /// The server: its socket until there is a request.
    server: Mutex<Server>,
    /// Ends with the connection: the server's side, WebSockets.
    tasks: RefCell<JoinSet<()>>,
}

enum Server {
    Dialled(Socket),
    Open(SendRequest<Forwarded>),
    /// It was no server of the host.
    Refused(Refusal),
}

/// Serves a connection until it is over.
pub(crate) async fn serve(shared: Rc<Shared>, taken: Taken) -> Went {
    let Taken { host, port, said, client, server } = taken;
    let line = Rc::new(Line::new(host, port));
    let connection = Rc::new(Connection {
        shared,
        line: Rc::clone(&line),
        requests: Cell::new(0),
        server: Mutex::new(Server::Dialled(server)),
        tasks: RefCell::default(),
    });
    let whole = async {
        if let Err(refusal) = Rc::clone(&connection).run(said, client).await {
            line.keep(&refusal);
        }
        // Nothing is asked of the server any more. A WebSocket goes on.
        let over = Refusal::new(EgressCause::Unreachable, "it is over");
        *connection.server.lock().await = Server::Refused(over);
        loop {
            let mut tasks = std::mem::take(&mut *connection.tasks.borrow_mut());
            if tasks.is_empty() {
                break;
            }
            while tasks.join_next().await.is_some() {}
        }
    };
    tokio::select! {
        biased;
        () = line.is_cut() => {}
        () = whole => {}
    }
    let mut tasks = std::mem::take(&mut *connection.tasks.borrow_mut());
    tasks.shutdown().await;
    Went { bytes: line.counts.both(), refused: line.refused().as_ref().map(Refusal::told) }
}

impl Connection {
    async fn run(self: Rc<Self>, said: Vec<u8>, client: Socket) -> Result<(), Refusal> {
        let Shared { hosts, authority, .. } = &*self.shared;
        let Line { host, port, counts, .. } = &*self.line;
        hosts.find(host, *port)?;
        let failed = |error| {
            tracing::error!("no certificate can be made: {error}");
            Refusal::new(EgressCause::Full, "no certificate can be made for it")
        };
        let config = authority.serve_as(host).map_err(failed)?;
        let shaken = TlsAcceptor::from(config).accept(Said::new(said, client, Arc::clone(counts)));
        let tls = match timeout(HANDSHAKE, shaken).await {
            Ok(Ok(tls)) => tls,
            Ok(Err(error)) => return Err(not_shaken(&error)),
            Err(_) => {
                let reason =
                    format!("the client did not finish the TLS handshake within {} s", HANDSHAKE.as_secs());
                return Err(Refusal::new(EgressCause::Malformed, &reason));
            }
        };
        // The egress worker saw the same name; what is served is for it alone.
        if tls.get_ref().1.server_name() != Some(host.as_str()) {
            let reason = "the ClientHello is for another server than the connection";
            return Err(Refusal::new(EgressCause::OtherName, reason));
        }
        let (answering, last) = (Rc::clone(&self), self.line.ends_soon());
        let service = service_fn(move |request| {
            let connection = Rc::clone(&answering);
            async move { connection.answer(request).await }
        });
        let served = http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(HEAD)
            .max_buf_size(LONGEST_HEAD)
            .max_headers(MOST_HEADERS)
            .serve_connection(TokioIo::new(tls), service)
            .with_upgrades();
        let mut served = pin!(served);
        let began = Instant::now();
        let ended = tokio::select! {
            ended = &mut served => ended,
            () = last.notified() => {
                served.as_mut().graceful_shutdown();
                served.await
            }
        };
        let alert = ended.as_ref().err().and_then(|error| alert_in(error));
        match (alert, self.requests.get()) {
            (Some(alert), 0) => Err(untrusting(&format!("it said {alert:?}"))),
            // Later it may have changed its mind, or connected before it had anything to ask.
            (None, 0) if began.elapsed() < AT_ONCE => {
                Err(untrusting("it closed the connection after the handshake, and asked for nothing"))
            }
            _ => {
                if let Err(error) = ended {
                    tracing::debug!("a connection broke: {error}");
                }
                Ok(())
            }
        }
    }

    async fn answer(self: Rc<Self>, request: Request<Incoming>) -> Result<Response<Sent>, Failure> {
        self.requests.set(self.requests.get() + 1);
        match Rc::clone(&self).forward(request).await {
            Ok(answer) => Ok(answer),
            Err(Unanswered::Refused(refusal)) => {
                self.line.keep(&refusal);
                Ok(refusal.answer(&self.shared.profile, &self.line.host, self.line.port))
            }
            // The client sees what it would have seen: a connection that ended.
            Err(Unanswered::Gone(error)) => Err(error.into()),
        }
    }

    async fn forward(self: Rc<Self>, mut request: Request<Incoming>) -> Result<Response<Sent>, Unanswered> {
        let on_client = hyper::upgrade::on(&mut request);
        let (parts, body) = request.into_parts();
        // What is refused is so before the server hears of the connection.
        self.judge(&parts)?;
        let (answered, exchange, asked) = {
            let mut server = self.server.lock().await;
            let sender = self.open(&mut server).await?;
            sender.ready().await.map_err(Unanswered::Gone)?;
            // Rules may have changed while it was waited for. Nothing is waited for between this and what is told the server.
            let (mut anew, takes_cookies) = self.judge(&parts)?;
            request::frame(&mut anew.head, &parts.headers, &body);
            let Anew { head, is_upgrade, has_credential } = anew;
            let asked = Asked { method: head.method().clone(), is_upgrade, takes_cookies };
            let Shared { exchanges, hosts, .. } = &*self.shared;
            let exchange = exchanges.begin(parts, (has_credential, takes_cookies), &self.line, hosts);
            let body = Forwarded::new(body, Rc::clone(&exchange));
            (sender.send_request(head.map(|()| body)), exchange, asked)
        };
        let mut answer = answered.await.map_err(|error| {
            if error.is_parse() {
                let reason = format!("the server does not answer in HTTP/1.1: {error}");
                return Unanswered::Refused(Refusal::new(EgressCause::Unreachable, &reason));
            }
            Unanswered::Gone(error)
        })?;
        let on_server = asked.is_upgrade.then(|| hyper::upgrade::on(&mut answer));
        let (parts, body) = answer.into_parts();
        let (head, has_reflected) = answer::anew(&parts, &asked, &self.shared.hosts.mask)?;
        if has_reflected {
            exchange.reflects();
        }
        if head.status() == hyper::StatusCode::SWITCHING_PROTOCOLS {
            if has_reflected {
                let reason = "the server opened a WebSocket with a credential in its answer";
                return Err(Refusal::new(EgressCause::Reflects, reason).into());
            }
            if let Some(on_server) = on_server {
                self.join(exchange, on_client, on_server);
            }
            return Ok(head.map(|()| Sent::nothing()));
        }
        Ok(head.map(|()| Sent::masked(body, exchange)))
    }

    /// A request as it goes on by the rules that are in force, and whether cookies are taken out of its answer.
    fn judge(&self, parts: &Parts) -> Result<(Anew, bool), Refusal> {
        let Line { host, port, .. } = &*self.line;
        let host = self.shared.hosts.find(host, *port)?;
        let anew = request::anew(parts, &host)?;
        let takes_cookies = anew.has_credential && !host.rules.cookies;
        Ok((anew, takes_cookies))
    }

    /// The server, with which TLS is spoken once there is a request.
    async fn open<'s>(&self, server: &'s mut Server) -> Result<&'s mut SendRequest<Forwarded>, Refusal> {
        let none = || Refusal::new(EgressCause::Unreachable, "the server is gone");
        *server = match std::mem::replace(server, Server::Refused(none())) {
            Server::Dialled(socket) => self.shake(socket).await,
            known => known,
        };
        match server {
            Server::Open(sender) => Ok(sender),
            Server::Refused(refusal) => Err(refusal.clone()),
            Server::Dialled(_) => Err(none()),
        }
    }

    async fn shake(&self, socket: Socket) -> Server {
        let counts = Arc::clone(&self.line.counts);
        match server::open(&self.shared.trusted, &self.line.host, socket, counts).await {
            Ok((sender, served)) => {
                let line = Rc::clone(&self.line);
                self.tasks.borrow_mut().spawn_local(async move {
                    if let Err(error) = served.with_upgrades().await {
                        tracing::debug!("a server broke off: {error}");
                    }
                    line.end_soon();
                });
                Server::Open(sender)
            }
            Err(refusal) => Server::Refused(refusal),
        }
    }

    /// Has bytes go both ways, once both sides are told.
    fn join(
        &self,
        exchange: Rc<Exchange>,
        client: hyper::upgrade::OnUpgrade,
        server: hyper::upgrade::OnUpgrade,
    ) {
        self.tasks.borrow_mut().spawn_local(async move {
            match tokio::try_join!(client, server) {
                Ok((client, server)) => {
                    if let Err(error) = upgrade::join(client, server, &exchange).await {
                        tracing::debug!("a WebSocket broke: {error}");
                    }
                }
                Err(error) => tracing::debug!("no WebSocket: {error}"),
            }
        });
    }
}

/// Why a request has no answer of the server's.
enum Unanswered {
    Refused(Refusal),
    Gone(hyper::Error),
}

impl From<Refusal> for Unanswered {
    fn from(refusal: Refusal) -> Self {
        Self::Refused(refusal)
    }
}

/// Why a client did not finish the handshake.
fn not_shaken(error: &io::Error) -> Refusal {
    let tls = error.get_ref().and_then(|error| error.downcast_ref::<rustls::Error>());
    match tls {
        Some(rustls::Error::AlertReceived(alert)) if is_about_trust(*alert) => {
            untrusting(&format!("it said {alert:?}"))
        }
        Some(rustls::Error::NoApplicationProtocol) => Refusal::new(
            EgressCause::Malformed,
            "the client does not speak HTTP/1.1 (HTTP/2 alone, as gRPC does), which is all that a credential can be put into",
        ),
        Some(error) => {
            Refusal::new(EgressCause::Malformed, &format!("TLS cannot be spoken with the client: {error}"))
        }
        None => untrusting("it closed the connection in the handshake"),
    }
}

/// Whether an alert says that a certificate is not believed.
fn is_about_trust(alert: AlertDescription) -> bool {
    matches!(
        alert,
        AlertDescription::BadCertificate
            | AlertDescription::UnsupportedCertificate
            | AlertDescription::CertificateRevoked
            | AlertDescription::CertificateExpired
            | AlertDescription::CertificateUnknown
            | AlertDescription::UnknownCA
            | AlertDescription::AccessDenied
            | AlertDescription::DecryptError
            | AlertDescription::BadCertificateStatusResponse
    )
}

fn untrusting(what: &str) -> Refusal {
    let reason = format!(
        "the client does not trust this container's CA, as one that has its own roots or pins a certificate: {what}"
    );
    Refusal::new(EgressCause::UntrustedCa, &reason)
}

/// The alert that a connection ended with, if one did.
fn alert_in(error: &(dyn Error + 'static)) -> Option<AlertDescription> {
    let mut next = Some(error);
    while let Some(error) = next {
        let of_io = error.downcast_ref::<io::Error>().and_then(io::Error::get_ref);
        let tls = of_io.and_then(|error| error.downcast_ref()).or_else(|| error.downcast_ref());
        if let Some(rustls::Error::AlertReceived(alert)) = tls {
            return is_about_trust(*alert).then_some(*alert);
        }
        next = error.source();
    }
    None
}
