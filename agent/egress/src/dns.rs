//! The container's resolver: granted names have an address of its block, others do not exist. No question leaves the host.
//!
//! Each question is answered before the next is read, over UDP as over TCP, so that a flood fills the kernel's queue and nothing
//! here.

use crate::worker::Worker;
use ringfence_names::dns::{Answer, MAX_QUERY, Treatment, frame, framed, read};
use ringfence_wire::egress::NameOutcome;
use std::{cell::Cell, io, rc::Rc, time::Duration, time::Instant};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt, Interest},
    net::{TcpListener, TcpStream, UdpSocket},
    task::{coop::consume_budget, spawn_local, yield_now},
    time::{sleep, timeout},
};

/// Connections at once over TCP, of one socket.
const MOST_CLIENTS: usize = 64;
/// How long one of them may take for a question and to read its answer.
const PATIENCE: Duration = Duration::from_secs(10);
/// How long no connection is accepted where that fails, as for want of descriptors.
const PAUSE: Duration = Duration::from_millis(100);

/// Answers a question; `None`: it is none that has an answer.
pub(crate) fn answer(worker: &Worker, message: &[u8]) -> Option<Vec<u8>> {
    let query = match read(message) {
        Ok(query) => query,
        Err(unreadable) => return unreadable.answer,
    };
    let policy = worker.policy();
    let (name, kind, now) = (query.name.as_str(), query.kind.to_string(), Instant::now());
    let treatment = query.treatment();
    let is_granted = query.host().is_some_and(|host| policy.names.has(host));
    // Nothing but an address: that is all that a connection takes, about which a person is asked.
    let is_asked = treatment != Treatment::Refused
        && query.host().is_some_and(|host| policy.names.asks(host) && !worker.search.has(host, now));
    worker.count(|counts| match is_granted || is_asked {
        true => counts.names += 1,
        false => counts.refused_names += 1,
    });
    // In audit mode others are, too, if connections could have them.
    let is_answered = is_granted || is_asked || policy.audit && query.host().is_some();
    if !is_answered {
        worker.records.refused(name, &kind, NameOutcome::Refused, now);
        return Some(query.answer(Answer::NoSuchName));
    }
    let outcome = match (is_granted, policy.audit) {
        (true, _) => NameOutcome::Answered,
        (false, true) => NameOutcome::WouldDeny,
        (false, false) => NameOutcome::Asked,
    };
    let answer = match treatment {
        Treatment::Empty => Answer::Empty,
        Treatment::Refused => {
            worker.records.refused(name, &kind, NameOutcome::Refused, now);
            Answer::Refused
        }
        Treatment::Address => match worker.address_of(name, &kind, outcome) {
            Ok(address) => Answer::Address(address),
            Err(_) => {
                worker.records.refused(name, &kind, NameOutcome::NoRoom, now);
                Answer::Failed
            }
        },
    };
    Some(query.answer(answer))
}

/// Serves a socket for as long as the worker runs.
pub(crate) async fn over_udp(worker: Rc<Worker>, socket: UdpSocket) {
    let mut message = vec![0; MAX_QUERY + 1];
    loop {
        consume_budget().await;
        if socket.readable().await.is_err() {
            sleep(PAUSE).await;
            continue;
        }
        let (count, from) = match socket.try_recv_from(&mut message) {
            Ok(received) => received,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => continue,
            // Of an answer before, whose client is gone.
            Err(_) => {
                yield_now().await;
                continue;
            }
        };
        if let Some(answer) = answer(&worker, message.get(..count).unwrap_or_default()) {
            // Who does not take it asks again.
            let _ = socket.try_io(Interest::WRITABLE, || {
                Ok(rustix::net::sendto(&socket, &answer, rustix::net::SendFlags::DONTWAIT, &from)?)
            });
        }
    }
}

/// The same over TCP.
pub(crate) async fn over_tcp(worker: Rc<Worker>, listener: TcpListener) {
    let clients = Rc::new(Cell::new(0));
    loop {
        let Ok((stream, _)) = listener.accept().await else {
            sleep(PAUSE).await;
            continue;
        };
        // Whoever comes when there is no room asks again.
        if clients.get() < MOST_CLIENTS {
            let client = Client::new(&clients);
            let worker = Rc::clone(&worker);
            spawn_local(async move {
                let _client = client;
                let _ = converse(&worker, stream).await;
            });
        }
    }
}

/// One that is counted.
struct Client(Rc<Cell<usize>>);

impl Client {
    fn new(clients: &Rc<Cell<usize>>) -> Self {
        clients.set(clients.get() + 1);
        Self(Rc::clone(clients))
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        self.0.set(self.0.get().saturating_sub(1));
    }
}

async fn converse(worker: &Worker, mut stream: TcpStream) -> io::Result<()> {
    let mut bytes = Vec::with_capacity(512);
    loop {
        let next = async {
            loop {
                let message = frame(&bytes).map_err(io::Error::other)?;
                if let Some(message) = message {
                    let length = message.len();
                    let answer = answer(worker, message);
                    bytes.drain(..2 + length);
                    return Ok(answer);
                }
                let mut more = (&mut stream).take((2 + MAX_QUERY).saturating_sub(bytes.len()) as u64);
                if more.read_buf(&mut bytes).await? == 0 {
                    return Err(io::Error::from(io::ErrorKind::UnexpectedEof));
                }
            }
        };
        let answer = timeout(PATIENCE, next).await??;
        consume_budget().await;
        if let Some(answer) = answer {
            timeout(PATIENCE, stream.write_all(&framed(&answer))).await??;
        }
    }
}
