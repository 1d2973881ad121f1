//! The worker as a process: what it is given, how it confines itself, what it serves until it is told to end or the core is gone.

use crate::{
    confine, connection, dns,
    line::Line,
    link::{self, Link, Orders},
    proxy::{self, Access},
    share,
    worker::{Open, Worker},
};
use ipnet::Ipv4Net;
use nix::sys::{
    signal::{SigSet, Signal},
    socket::{getsockopt, sockopt},
    stat::{Mode, umask},
};
use ringfence_base::{error::chain, precedence};
use ringfence_names::block::NotABlock;
use ringfence_wire::{
    conn::Conn,
    egress::{
        EgressProxy, EgressStart, FromEgress, MAX_ORDER, MAX_SENTENCE, MOST_ASKING, ProxyToken, ToEgress,
    },
    frame::FrameError,
};
use std::{
    cell::Cell,
    io,
    net::{Ipv4Addr, TcpListener, UdpSocket},
    os::{
        fd::{AsFd, OwnedFd},
        unix::net::UnixStream,
    },
    rc::Rc,
    sync::Arc,
    time::{Duration, Instant},
};
use tokio::{
    sync::{Semaphore, mpsc},
    task::{LocalSet, spawn_local},
    time::{interval, sleep},
};

/// How long the core may take for its first message.
const START_TIME: Duration = Duration::from_secs(10);
/// How often the core is told what the worker does, and what is folded is looked at.
const INTERVAL: Duration = Duration::from_secs(1);
/// How long nothing is accepted where that fails, as for want of descriptors.
const PAUSE: Duration = Duration::from_millis(100);
/// How long connections that are ended may take to be put on record.
const ENDING: Duration = Duration::from_secs(1);

/// Why a worker does not run.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Not started by the core.
    #[error(
        "`ringfence egress-worker` is started by the daemon, or by `ringfence run`, with its link as standard input; start one of them"
    )]
    NotFromDaemon(#[source] Option<io::Error>),
    /// The core's first message.
    #[error("cannot parse the first message; do the worker and the daemon have the same version?")]
    Startup(#[source] FrameError),
    /// Descriptors that are missing or too many.
    #[error(
        "the first message does not fit its descriptors; do the worker and the daemon have the same version?"
    )]
    Descriptors,
    /// The container's addresses.
    #[error("the container's addresses are none")]
    Block(#[source] NotABlock),
    /// The sandbox.
    #[error(transparent)]
    Confine(#[from] confine::Error),
    /// The runtime.
    #[error("cannot set up sockets or the event loop")]
    Io(#[source] io::Error),
    /// The core.
    #[error("the daemon says what no daemon says")]
    Link(#[source] FrameError),
}

/// What a worker serves.
struct Sockets {
    connections: TcpListener,
    questions: Vec<(UdpSocket, TcpListener)>,
    /// Of a proxy: who may use it.
    token: Option<ProxyToken>,
}

/// What a proxy's table of addresses is made of, which nobody asks for.
const NO_BLOCK: Ipv4Net = Ipv4Net::new_assert(Ipv4Addr::new(198, 18, 0, 0), 24);

/// Runs the role over standard input.
///
/// # Errors
/// [`Error`].
pub fn run() -> Result<(), Error> {
    precedence::not_core();
    let own = |error| Error::NotFromDaemon(Some(error));
    let core = UnixStream::from(io::stdin().as_fd().try_clone_to_owned().map_err(own)?);
    if getsockopt(&core, sockopt::AcceptConn) != Ok(false) {
        return Err(Error::NotFromDaemon(None));
    }
    umask(Mode::from_bits_truncate(0o077));
    confine::hide()?;
    serve(&core).inspect_err(|error| {
        // Its user asks the core how the container fares, and does not look for what is on standard error.
        let sent = core.try_clone().and_then(|core| {
            core.set_nonblocking(false)?;
            let why: String = chain(error).chars().take(MAX_SENTENCE / 4).collect();
            Conn::new(core, START_TIME, MAX_ORDER).send(&FromEgress::Complaint(why)).map_err(io::Error::other)
        });
        if let Err(why) = sent {
            tracing::debug!("the daemon cannot be told why this egress worker ends: {why}");
        }
    })
}

fn serve(core: &UnixStream) -> Result<(), Error> {
    let (start, sockets) = receive_start(core)?;
    let limits = confine::enter()?;
    core.set_nonblocking(true).map_err(Error::Io)?;
    let core = core.try_clone().map_err(Error::Io)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(Error::Io)?;
    // Threads that wait for a name end with the process.
    LocalSet::new().block_on(&runtime, work(core, start, sockets, limits))
}

/// Takes what the core gives a new worker.
fn receive_start(core: &UnixStream) -> Result<(EgressStart, Sockets), Error> {
    let own = |error| Error::NotFromDaemon(Some(error));
    let mut conn = Conn::new(core.try_clone().map_err(own)?, START_TIME, MAX_ORDER);
    let (order, sockets) = conn.receive_with_descriptors().map_err(Error::Startup)?;
    // What is received next is the tokio side's to wait for.
    core.set_read_timeout(None).map_err(own)?;
    let start = match order {
        ToEgress::Start(start) => start,
        ToEgress::Proxy(start) => return start_of_proxy(start, sockets),
        _ => return Err(Error::Descriptors),
    };
    if sockets.len() != if start.v6 { 5 } else { 3 } {
        return Err(Error::Descriptors);
    }
    let mut sockets = sockets.into_iter();
    let connections = sockets.next().ok_or(Error::Descriptors)?.into();
    let mut questions = Vec::new();
    while let (Some(udp), Some(tcp)) = (sockets.next(), sockets.next()) {
        questions.push((udp.into(), tcp.into()));
    }
    Ok((start, Sockets { connections, questions, token: None }))
}

/// The same of a run that no core holds: it is in the host's network.
fn start_of_proxy(start: EgressProxy, sockets: Vec<OwnedFd>) -> Result<(EgressStart, Sockets), Error> {
    let [listener] = <[OwnedFd; 1]>::try_from(sockets).map_err(|_| Error::Descriptors)?;
    // What is said to all processes of a run, by the terminal or by who ends it, is for the command, which may have something left to
    // say to others: the launcher ends its worker.
    let of_command = [
        Signal::SIGINT,
        Signal::SIGQUIT,
        Signal::SIGTSTP,
        Signal::SIGHUP,
        Signal::SIGTERM,
        Signal::SIGUSR1,
        Signal::SIGUSR2,
        Signal::SIGALRM,
    ];
    SigSet::from_iter(of_command).thread_block().map_err(|errno| Error::Io(errno.into()))?;
    let EgressProxy { profile, mut names, token, uploads } = start;
    // Nobody would answer.
    names.options.ask = None;
    let start = EgressStart {
        container: "of a run".to_owned(),
        profile,
        block: NO_BLOCK,
        names,
        audit: false,
        v6: false,
        host_network: true,
        uploads,
    };
    Ok((start, Sockets { connections: listener.into(), questions: Vec::new(), token: Some(token) }))
}

async fn work(
    core: UnixStream,
    start: EgressStart,
    sockets: Sockets,
    limits: confine::Limits,
) -> Result<(), Error> {
    let (link, messages) = Link::new();
    let container = start.container.clone();
    let worker = Rc::new(Worker::new(start, link, limits).map_err(Error::Block)?);
    let (read, write) = tokio::net::UnixStream::from_std(core).map_err(Error::Io)?.into_split();
    serve_sockets(&worker, sockets, limits).map_err(Error::Io)?;
    spawn_local(keep_time(Rc::clone(&worker)));
    let (lines, next) = mpsc::channel(4);
    let mut line = Line::new(Rc::clone(&worker), next);
    worker.link.say(FromEgress::Ready);
    let ended = tokio::select! {
        ended = obey(&worker, Orders::new(read), lines) => ended.map_err(Error::Link),
        written = link::write(write, &worker.link, messages) => {
            if let Err(error) = written {
                tracing::info!("container {container}: the daemon is gone, and so is its egress worker: {error}");
            }
            Ok(())
        }
        // It ends with `lines`, which the first has.
        () = line.run() => Ok(()),
    };
    worker.end_all("the worker ends, and what goes through it");
    // They put themselves on record.
    let until = Instant::now() + ENDING;
    while worker.counts().open > 0 && Instant::now() < until {
        sleep(Duration::from_millis(5)).await;
    }
    line.flush().await;
    ended
}

/// Does what the core says until it says stop, or is gone.
async fn obey(
    worker: &Rc<Worker>,
    mut orders: Orders,
    lines: mpsc::Sender<OwnedFd>,
) -> Result<(), FrameError> {
    while let Some((order, beside)) = orders.next().await? {
        match order {
            ToEgress::Flow { id, flow } => worker.link.answered(id, flow),
            ToEgress::Policy { names, audit } => worker.replace(names, audit),
            ToEgress::Line => match beside {
                // The line takes the newest when it comes to it.
                Some(line) => drop(lines.send(line).await),
                None => tracing::warn!("the daemon gives a line to the auditor, and there is none"),
            },
            ToEgress::Credentials { id } => match beside.map(|link| give(worker, id, link)) {
                Some(Ok(())) => {}
                _ => {
                    tracing::warn!("the daemon gives a way to the container's credentials, and there is none")
                }
            },
            ToEgress::Stop => return Ok(()),
            ToEgress::Start(_) | ToEgress::Proxy(_) => {
                let twice = io::Error::new(io::ErrorKind::InvalidData, "it starts this worker twice");
                return Err(FrameError::Io(twice));
            }
        }
    }
    Ok(())
}

/// Has connections handed over there, and the core told when that is gone.
fn give(worker: &Rc<Worker>, id: u64, link: OwnedFd) -> io::Result<()> {
    let of = Rc::downgrade(worker);
    worker.credentials.give(link, move || {
        if let Some(worker) = of.upgrade() {
            worker.link.say(FromEgress::LinkEnded { id });
        }
    })
}

fn serve_sockets(worker: &Rc<Worker>, sockets: Sockets, limits: confine::Limits) -> io::Result<()> {
    let Sockets { connections, questions, token } = sockets;
    let access = token
        .map(|token| Rc::new(Access::new(&token, share::pool(limits.memory / 4), worker.most_connections)));
    connections.set_nonblocking(true)?;
    let connections = tokio::net::TcpListener::from_std(connections)?;
    spawn_local(accept(Rc::clone(worker), connections, access));
    for (udp, tcp) in questions {
        udp.set_nonblocking(true)?;
        tcp.set_nonblocking(true)?;
        spawn_local(dns::over_udp(Rc::clone(worker), tokio::net::UdpSocket::from_std(udp)?));
        spawn_local(dns::over_tcp(Rc::clone(worker), tokio::net::TcpListener::from_std(tcp)?));
    }
    Ok(())
}

async fn accept(worker: Rc<Worker>, listener: tokio::net::TcpListener, access: Option<Rc<Access>>) {
    let refused = Cell::new(None::<Instant>);
    let asking = Arc::new(Semaphore::new(MOST_ASKING));
    loop {
        // Those that wait in the socket are not forgotten, and the kernel knows no more of them than that.
        let Ok(asks) = Arc::clone(&asking).acquire_owned().await else { return };
        let (client, from) = match listener.accept().await {
            Ok(accepted) => accepted,
            Err(error) => {
                worker.complain(&refused, &format!("connections cannot be accepted: {error}"));
                sleep(PAUSE).await;
                continue;
            }
        };
        if let Some(access) = &access {
            spawn_local(proxy::serve(Rc::clone(&worker), Rc::clone(access), client, from, asks));
            continue;
        }
        worker.count(|counts| counts.connections += 1);
        let Some(open) = Open::new(&worker) else {
            worker.count(|counts| counts.refused += 1);
            worker.is_full(&refused);
            let worker = Rc::clone(&worker);
            spawn_local(async move {
                connection::full(&worker, client, Some(from)).await;
                drop(asks);
            });
            continue;
        };
        let worker = Rc::clone(&worker);
        spawn_local(async move {
            let _open = open;
            connection::serve(worker, client, from, asks).await;
        });
    }
}

async fn keep_time(worker: Rc<Worker>) {
    let mut times = interval(INTERVAL);
    loop {
        times.tick().await;
        worker.records.unfold(Instant::now(), false);
        worker.tell_counts();
    }
}
