//! The hops of one fetch: each is checked, looked up, screened, connected to and requested, as if it were the first.

use super::{
    admit,
    body::{Body, Read},
    connect::{Tls, connect},
    error::{MAX_REDIRECTS, Phase, WebError, rule},
    resolve::Resolve,
    target::{Host, Target},
};
use hyper::{
    Request, Response, StatusCode,
    body::{Body as _, Incoming},
    client::conn::http1,
    header,
};
use ringfence_grant::gate::ToolContext;
use std::{future::poll_fn, net::IpAddr, pin::Pin};
use tokio::{task::JoinHandle, time::Instant};

/// Most bytes of an answer's head: a line of it is refused beyond that.
const MAX_HEAD: usize = 64 << 10;

/// Most header fields of an answer.
const MAX_FIELDS: usize = 128;

/// What servers see of us. Nothing else is sent: no cookie, no credential, no referrer.
const USER_AGENT: &str = concat!("ringfence/", env!("CARGO_PKG_VERSION"));

/// The kinds of content that become text, best first.
const ACCEPT: &str =
    "text/html, application/xhtml+xml, text/markdown, text/plain, application/json, text/*;q=0.8, */*;q=0.5";

/// What a fetch works with.
pub(super) struct FetchContext<'a> {
    pub(super) ctx: &'a ToolContext,
    pub(super) resolver: &'a dyn Resolve,
    pub(super) tls: &'a Tls,
    /// Most bytes of a body, decompressed.
    pub(super) limit: usize,
    pub(super) deadline: Instant,
}

/// What the last hop gave.
pub(super) struct Fetched {
    pub(super) target: Target,
    pub(super) status: StatusCode,
    pub(super) content_type: Option<String>,
    /// The body's length, if the server declared it; compressed if it was.
    pub(super) declared: Option<u64>,
    pub(super) read: Read,
}

/// Fetches `target`, or what it redirects to.
pub(super) async fn fetch(context: &FetchContext<'_>, mut target: Target) -> Result<Fetched, WebError> {
    for _ in 0..=MAX_REDIRECTS {
        let addrs = admitted_addresses(context, &target).await?;
        let exchange = request(context, &target, &addrs).await?;
        match location(&exchange.response)? {
            Some(location) => target = target.follow(location).map_err(WebError::Url)?,
            None => return read(context, target, exchange).await,
        }
    }
    Err(WebError::Redirects(target.url.into()))
}

/// The addresses that may be connected to for `target`: all of them passed, or none do.
async fn admitted_addresses(context: &FetchContext<'_>, target: &Target) -> Result<Vec<IpAddr>, WebError> {
    let (ctx, port) = (context.ctx, target.port);
    let net = &ctx.effective().net;
    let host = target.host.to_string();
    let refused = |refused: admit::Refused| ctx.refuse_net(&host, port, rule(&refused));
    ctx.check_net(&host, None, port)?;
    admit::port(net, target).map_err(refused)?;
    let found = match &target.host {
        Host::Addr(addr) => vec![*addr],
        Host::Name(name) => {
            // From here on somebody else may learn of the call.
            ctx.begin();
            let found = Phase::Resolve.within(context.deadline, context.resolver.resolve(name)).await?;
            found.map_err(|source| WebError::Resolve { host: host.clone(), source })?
        }
    };
    if found.is_empty() {
        let source = std::io::Error::other("it has no address");
        return Err(WebError::Resolve { host, source });
    }
    let mut addrs = Vec::with_capacity(found.len());
    for addr in found {
        let addr = admit::address(net, target, addr).map_err(refused)?;
        ctx.check_net(&host, Some(addr), port)?;
        addrs.push(addr);
    }
    ctx.begin();
    Ok(addrs)
}

/// An answer's head, and the connection that its body comes by.
struct Exchange {
    response: Response<Incoming>,
    _connection: ConnectionTask,
}

/// Drives a connection as long as somebody wants what comes by it.
struct ConnectionTask(JoinHandle<()>);

impl Drop for ConnectionTask {
    fn drop(&mut self) {
        self.0.abort();
    }
}

async fn request(
    context: &FetchContext<'_>,
    target: &Target,
    addrs: &[IpAddr],
) -> Result<Exchange, WebError> {
    let stream = connect(target, addrs, context.tls, context.deadline).await?;
    let broke = |source| WebError::Http { phase: Phase::Answer, source };
    let request = Request::get(target.path())
        .header(header::HOST, target.authority())
        .header(header::USER_AGENT, USER_AGENT)
        .header(header::ACCEPT, ACCEPT)
        .header(header::ACCEPT_ENCODING, "gzip")
        .header(header::CONNECTION, "close")
        .body(String::new())
        .map_err(|_| WebError::Location)?;
    let mut builder = http1::Builder::new();
    builder.max_headers(MAX_FIELDS).max_header_size(MAX_HEAD).max_buf_size(MAX_HEAD);
    let answer = async {
        let (mut sender, connection) = builder.handshake(stream).await?;
        // The request reports what goes wrong with it.
        let connection = ConnectionTask(tokio::spawn(async { drop(connection.await) }));
        let response = sender.send_request(request).await?;
        Ok(Exchange { response, _connection: connection })
    };
    Phase::Answer.within(context.deadline, answer).await?.map_err(broke)
}

/// Where an answer redirects to, if it does.
fn location(response: &Response<Incoming>) -> Result<Option<&str>, WebError> {
    if !matches!(response.status().as_u16(), 301 | 302 | 303 | 307 | 308) {
        return Ok(None);
    }
    let Some(location) = response.headers().get(header::LOCATION) else { return Ok(None) };
    std::str::from_utf8(location.as_bytes()).map(Some).map_err(|_| WebError::Location)
}

async fn read(context: &FetchContext<'_>, target: Target, exchange: Exchange) -> Result<Fetched, WebError> {
    let Exchange { response, _connection } = exchange;
    let (head, mut incoming) = response.into_parts();
    let content_type = head.headers.get(header::CONTENT_TYPE);
    let content_type = content_type.map(|value| String::from_utf8_lossy(value.as_bytes()).into_owned());
    let declared = incoming.size_hint().exact();
    let mut body = Body::new(&head.headers, context.limit)?;
    let reading = async {
        while let Some(frame) = poll_fn(|cx| Pin::new(&mut incoming).poll_frame(cx)).await {
            let frame = frame.map_err(|source| WebError::Http { phase: Phase::Body, source })?;
            if let Some(piece) = frame.data_ref()
                && !body.take(piece)?
            {
                break;
            }
        }
        body.finish()
    };
    let read = Phase::Body.within(context.deadline, reading).await??;
    Ok(Fetched { target, status: head.status, content_type, declared, read })
}
