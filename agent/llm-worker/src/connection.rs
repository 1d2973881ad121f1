//! One connection to the agent's socket: the first frame says what it is, the rest is handed to the worker.

use super::{
    access::{Access, ConnectionPeer, Descriptors, WithDescriptors},
    agent::ConnId,
    frame::{Counters, FRAME_TIME, FrameBudget, FrameReader, Peer, writer},
    message::Block,
    rpc::{self, INTERNAL, INVALID_PARAMS, INVALID_REQUEST, Id, PARSE, Request, RpcError, UNKNOWN_METHOD},
};
use bytes::Bytes;
use ringfence_base::quota::{Bounds, Owners, Permit, Permits};
use ringfence_wire::frame::FrameError;
use std::{
    sync::{Arc, PoisonError, atomic::Ordering},
    time::Duration,
};
use tokio::{
    net::{UnixListener, UnixStream, unix::OwnedReadHalf},
    sync::{mpsc, oneshot},
    task::JoinSet,
};
use tokio_util::sync::CancellationToken;

/// Connections to one agent's socket at a time: that said what they are, and that did not yet. Of those the oldest goes for
/// the next: whoever says nothing keeps nobody out.
const CONNECTIONS: usize = 128;
const BOUNDS: Bounds = Bounds { all: CONNECTIONS, each: CONNECTIONS, unknown: CONNECTIONS };
/// Whose a connection is where no kernel said so.
const SOMEBODY: u32 = 1;
/// A dead runtime's connection may be noticed a little after its successor's, on a busy machine later still: how often and how
/// long to wait for that.
const TAKEOVER_TRIES: u32 = 20;
const TAKEOVER_WAIT: Duration = Duration::from_millis(100);

/// What connections tell the worker.
pub(crate) enum Input {
    /// A connection's writing side. Comes first.
    Opened(ConnId, Peer),
    /// It wants to be the runtime.
    Register(ConnId, oneshot::Sender<Result<(), RpcError>>),
    /// A message, and the sender's user id where the kernel said.
    Send(ConnId, Id, Vec<Block>, Option<u32>),
    /// A turn. Where its parameters are wrong it fails, and with it the message that it is for.
    Turn(ConnId, Id, Result<Box<rpc::TurnParams>, RpcError>),
    /// It ended.
    Closed(ConnId),
}

/// What an agent's connections share.
type Shared = (Arc<Counters>, Arc<Access>, FrameBudget, Permits);

#[derive(Debug, PartialEq, Eq)]
enum PeerRole {
    Unknown,
    Runtime,
    Sender,
}

/// When connections end that nobody on the other side ends.
#[derive(Debug, Clone, Default)]
pub(crate) struct ConnectionTokens {
    /// No more are accepted.
    pub accepting: CancellationToken,
    /// Nobody reads what comes any more: what is to be written is written, then they end.
    pub listening: CancellationToken,
}

/// Accepts connections until it is told, and serves each in a task of its own; gives those that have not ended by then.
pub(crate) async fn accept(
    listener: UnixListener,
    inputs: mpsc::Sender<Input>,
    counters: Arc<Counters>,
    access: Arc<Access>,
    tokens: ConnectionTokens,
) -> JoinSet<()> {
    let mut connections = JoinSet::new();
    let budget = FrameBudget::default();
    let permits = Permits::within(BOUNDS, Owners::default());
    for conn in 1.. {
        let stream = tokio::select! {
            () = tokens.accepting.cancelled() => break,
            (stream, _) = ringfence_http::accept(|| listener.accept()) => stream,
        };
        while connections.try_join_next().is_some() {}
        let shared = (Arc::clone(&counters), Arc::clone(&access), budget.clone(), permits.clone());
        let connection = open(stream, conn, inputs.clone(), shared, tokens.listening.clone()).await;
        connections.spawn(connection);
    }
    connections
}

/// Serves one connection until it ends. The worker has heard of it when this returns the future that does it: so it
/// hears of connections in the order in which they were made.
async fn open(
    stream: UnixStream,
    conn: ConnId,
    inputs: mpsc::Sender<Input>,
    shared: Shared,
    reading_ends: CancellationToken,
) -> impl Future<Output = ()> {
    let (read, write) = stream.into_split();
    let (peer, writing) = writer(write, &shared.0);
    let _ = inputs.send(Input::Opened(conn, peer.clone())).await;
    let (gone, counters) = (peer.gone.clone(), Arc::clone(&shared.0));
    let permit = shared.3.take_unknown(move || {
        counters.refused.fetch_add(1, Ordering::Relaxed);
        gone.cancel();
    });
    let permit = permit.map(Arc::new);
    permit.as_ref().inspect(|permit| peer.holds(permit));
    serve(read, writing, (conn, permit), peer, inputs, shared, reading_ends)
}

async fn serve(
    read: OwnedReadHalf,
    writing: impl Future<Output = ()> + Send + 'static,
    (conn, permit): (ConnId, Option<Arc<Permit>>),
    peer: Peer,
    inputs: mpsc::Sender<Input>,
    (counters, access, budget, _): Shared,
    reading_ends: CancellationToken,
) {
    let writing = tokio::spawn(writing);
    // As near to its beginning as can be: before 6.5 the kernel tells who made a connection by a number that others may
    // have later.
    let gone = peer.gone.clone();
    let known = tokio::select! {
        known = access.of(read.as_ref()) => Some(known),
        // It had to go for others, before it was known whose it is: it does not stay until the core has answered.
        () = gone.cancelled() => None,
    };
    let Some(known) = known else {
        let _ = inputs.send(Input::Closed(conn)).await;
        drop((peer, inputs, permit));
        let _ = writing.await;
        return;
    };
    let (read, descriptors) = WithDescriptors::new(read);
    let mut connection =
        Connection { conn, permit, is: PeerRole::Unknown, peer, inputs, counters, known, descriptors };
    tokio::select! {
        () = gone.cancelled() => {}
        () = reading_ends.cancelled() => {}
        () = connection.read(FrameReader::new(read).within(budget)) => {}
    }
    let Connection { conn, permit, peer, inputs, .. } = connection;
    let _ = inputs.send(Input::Closed(conn)).await;
    drop((peer, inputs, permit));
    let _ = writing.await;
}

struct Connection {
    conn: ConnId,
    permit: Option<Arc<Permit>>,
    is: PeerRole,
    peer: Peer,
    inputs: mpsc::Sender<Input>,
    counters: Arc<Counters>,
    known: ConnectionPeer,
    descriptors: Descriptors,
}

impl Connection {
    async fn read<R: tokio::io::AsyncRead + Unpin>(&mut self, mut reader: FrameReader<R>) {
        loop {
            let idle = (self.is == PeerRole::Unknown).then_some(FRAME_TIME);
            let body = match reader.next(idle).await {
                Ok(body) => body,
                Err(FrameError::Closed) => return,
                Err(error) => return self.hang_up_on(&error),
            };
            match self.request(&body).await {
                Ok(()) => {}
                Err(Fault { id, error, fatal }) => {
                    self.counters.malformed.fetch_add(1, Ordering::Relaxed);
                    self.peer.push(rpc::error(id.as_ref(), &error));
                    if fatal {
                        return;
                    }
                }
            }
        }
    }

    fn hang_up_on(&self, error: &FrameError) {
        let code = match error {
            // Cut: whoever closed only its writing end still hears why.
            FrameError::Empty | FrameError::TooLong { .. } | FrameError::Cut { .. } => PARSE,
            FrameError::TimedOut => INVALID_REQUEST,
            _ => INTERNAL,
        };
        self.counters.malformed.fetch_add(1, Ordering::Relaxed);
        self.peer.push(rpc::error(None, &RpcError::new(code, error.to_string())));
    }

    async fn request(&mut self, body: &Bytes) -> Result<(), Fault> {
        let request = rpc::parse(body).map_err(|(id, error)| {
            // What is not JSON may be anything: nothing that follows can be trusted to be a frame.
            let fatal = error.code == PARSE || self.is == PeerRole::Unknown;
            Fault { id, error, fatal }
        })?;
        match (&self.is, request.method.as_ref()) {
            (PeerRole::Unknown, "register") => self.register(&request).await,
            (PeerRole::Unknown | PeerRole::Sender, "send") => self.send(&request).await,
            (PeerRole::Runtime, "turn") => self.turn(&request).await,
            (PeerRole::Runtime, "tag") => self.tag(&request).await,
            (PeerRole::Unknown, method) => {
                let what = format!("the first frame is `register` or `send`, not {method:?}");
                Err(Fault { id: request.id, error: RpcError::new(INVALID_REQUEST, what), fatal: true })
            }
            (_, "register" | "send" | "turn" | "tag") => {
                let what = match self.is {
                    PeerRole::Runtime => format!("`{}` is not for a runtime's connection", request.method),
                    _ => format!("`{}` is not for a sender's connection", request.method),
                };
                Err(Fault::new(request.id, RpcError::new(INVALID_REQUEST, what)))
            }
            // A notification that we do not know needs no answer.
            _ if request.id.is_none() => Ok(()),
            (_, method) => {
                let error = RpcError::new(UNKNOWN_METHOD, format!("there is no method {method:?}"));
                Err(Fault::new(request.id, error))
            }
        }
    }

    /// It is one of those who may do what they say, and not the first to go for the next.
    fn identify(&self) -> Result<(), RpcError> {
        let uid = self.known.uid().unwrap_or(SOMEBODY);
        if self.permit.as_ref().is_some_and(|permit| permit.identify(uid)) {
            return Ok(());
        }
        self.counters.refused.fetch_add(1, Ordering::Relaxed);
        Err(RpcError::new(rpc::QUEUE_FULL, format!("{CONNECTIONS} connections are open already")))
    }

    async fn register(&mut self, request: &Request<'_>) -> Result<(), Fault> {
        let fatal = |error| Fault { id: request.id.clone(), error, fatal: true };
        let params: rpc::RegisterParams<'_> = rpc::params(request).map_err(fatal)?;
        if params.role != "runtime" {
            let what = format!("{:?} is not a role that can register: `runtime`", params.role);
            return Err(fatal(RpcError::new(INVALID_PARAMS, what)));
        }
        self.known.may_register().map_err(fatal)?;
        self.identify().map_err(fatal)?;
        for attempt in 1.. {
            let (answer, answered) = oneshot::channel();
            let _ = self.inputs.send(Input::Register(self.conn, answer)).await;
            match answered.await {
                Ok(Ok(())) => break,
                Ok(Err(_)) if attempt < TAKEOVER_TRIES => tokio::time::sleep(TAKEOVER_WAIT).await,
                Ok(Err(error)) => return Err(fatal(error)),
                Err(_) => return Err(fatal(RpcError::new(INTERNAL, "the agent is stopping"))),
            }
        }
        self.is = PeerRole::Runtime;
        Ok(())
    }

    async fn send(&mut self, request: &Request<'_>) -> Result<(), Fault> {
        let fatal = self.is == PeerRole::Unknown;
        let fault = |error| Fault { id: request.id.clone(), error, fatal };
        let params: rpc::SendParams = rpc::params(request).map_err(fault)?;
        if params.content.is_empty() {
            return Err(fault(RpcError::new(
                INVALID_PARAMS,
                "the content of a message is at least one block",
            )));
        }
        let id = request.id.clone().ok_or_else(|| fault(no_id("send")))?;
        self.known.may_send().map_err(fault)?;
        self.identify().map_err(fault)?;
        self.is = PeerRole::Sender;
        let _ = self.inputs.send(Input::Send(self.conn, id, params.content, self.known.uid())).await;
        Ok(())
    }

    async fn tag(&self, request: &Request<'_>) -> Result<(), Fault> {
        #[derive(serde::Serialize)]
        struct Tagged {
            tagged: bool,
        }
        // One request at a time: what came came beside this one.
        let process = std::mem::take(&mut *self.descriptors.lock().unwrap_or_else(PoisonError::into_inner));
        let id = request.id.clone().ok_or_else(|| Fault::new(None, no_id("tag")))?;
        let fault = |error| Fault::new(Some(id.clone()), error);
        let params: rpc::TagParams<'_> = rpc::params(request).map_err(fault)?;
        self.known.tag(&params.call, process.into_iter().next()).await.map_err(fault)?;
        self.peer.push(rpc::result(&id, &Tagged { tagged: true }));
        Ok(())
    }

    async fn turn(&self, request: &Request<'_>) -> Result<(), Fault> {
        let id = request.id.clone().ok_or_else(|| Fault::new(None, no_id("turn")))?;
        let params = rpc::params(request).map(Box::new);
        let _ = self.inputs.send(Input::Turn(self.conn, id, params)).await;
        Ok(())
    }
}

fn no_id(method: &str) -> RpcError {
    RpcError::new(INVALID_REQUEST, format!("`{method}` needs an id"))
}

struct Fault {
    id: Option<Id>,
    error: RpcError,
    /// The connection ends with it.
    fatal: bool,
}

impl Fault {
    fn new(id: Option<Id>, error: RpcError) -> Self {
        Self { id, error, fatal: false }
    }
}
