//! From a name to a server: the host's resolver, what of its answers may be dialled, and the first of those that answers.

use crate::{
    addresses::may_dial,
    refusal::Refusal,
    worker::{Policy, Worker},
};
use ringfence_wire::egress::EgressCause;
use rustix::net::sockopt;
use std::{
    io,
    net::{IpAddr, SocketAddr, ToSocketAddrs},
    sync::Arc,
    time::Duration,
};
use tokio::{
    net::TcpStream,
    task::{JoinSet, spawn_blocking},
    time::{Instant, timeout, timeout_at},
};

/// How long the host's resolver may take, its queue included.
const LOOKUP_TIME: Duration = Duration::from_secs(10);
/// Most addresses of a name that are tried.
const MOST_ADDRESSES: usize = 8;
/// How long one of several addresses has before the next is tried beside it (RFC 8305 says 250 ms).
const HEAD_START: Duration = Duration::from_millis(250);
/// How long each may take to answer.
const ADDRESS_TIME: Duration = Duration::from_secs(5);
/// How long a silent server is left alone before it is asked whether it is there, how often it is asked, and how many times.
const KEEP_ALIVE: (Duration, Duration, u32) = (Duration::from_secs(120), Duration::from_secs(30), 4);

/// A server that answered.
pub(crate) struct Server {
    pub(crate) stream: TcpStream,
    pub(crate) address: SocketAddr,
    /// Of audit mode: it would not have been dialled.
    pub(crate) would_deny: Option<Refusal>,
}

/// No server.
pub(crate) struct NoServer {
    pub(crate) refusal: Refusal,
    /// The address that it is about.
    pub(crate) address: Option<SocketAddr>,
}

impl From<Refusal> for NoServer {
    fn from(refusal: Refusal) -> Self {
        Self { refusal, address: None }
    }
}

/// Finds and dials a name's server.
///
/// # Errors
/// [`NoServer`].
pub(crate) async fn reach(
    worker: &Worker,
    policy: &Policy,
    name: &str,
    port: u16,
) -> Result<Server, NoServer> {
    let full = || Refusal::new(EgressCause::Full, "too many servers are being looked for already");
    let _place = worker.dials.try_acquire().map_err(|_| full())?;
    let found =
        look_up(worker, name).await.map_err(|reason| Refusal::new(EgressCause::Unresolved, &reason))?;
    let mut would_deny = None;
    let (mut fine, mut blocked) = (Vec::new(), None);
    for addr in found.into_iter().take(MOST_ADDRESSES) {
        match may_dial(&policy.names, addr, port) {
            Ok(addr) => fine.push(SocketAddr::new(addr, port)),
            Err(refusal) => {
                blocked.get_or_insert((refusal, SocketAddr::new(addr.to_canonical(), port)));
            }
        }
    }
    match blocked {
        Some((refusal, address)) if fine.is_empty() && policy.audit => {
            would_deny = Some(refusal);
            fine.push(address);
        }
        Some((refusal, address)) if fine.is_empty() => {
            return Err(NoServer { refusal, address: Some(address) });
        }
        _ => {}
    }
    let (stream, address) = first(&fine).await.map_err(|(error, address)| NoServer {
        refusal: Refusal::new(EgressCause::Unreachable, &format!("nobody answers: {error}")),
        address,
    })?;
    prepare(&stream);
    Ok(Server { stream, address, would_deny })
}

/// The addresses of a name, best first. At least one.
async fn look_up(worker: &Worker, name: &str) -> Result<Vec<IpAddr>, String> {
    let until = Instant::now() + LOOKUP_TIME;
    let late = || format!("the host's resolver did not find it within {} s", LOOKUP_TIME.as_secs());
    let place = timeout_at(until, Arc::clone(&worker.lookups).acquire_owned()).await.map_err(|_| late())?;
    let host = name.to_owned();
    // It cannot be interrupted: its place is free when it is over, whoever still waits for it.
    let look_up = spawn_blocking(move || {
        let found = (host.as_str(), 0).to_socket_addrs();
        drop(place);
        found.map(|found| found.map(|addr| addr.ip()).collect::<Vec<_>>())
    });
    let found = timeout_at(until, look_up).await.map_err(|_| late())?;
    let found = found.map_err(io::Error::other).and_then(|found| found);
    let found = found.map_err(|error| format!("the host's resolver does not find it: {error}"))?;
    if found.is_empty() { Err("the host's resolver finds no address".to_owned()) } else { Ok(found) }
}

/// The first that answers: each has a head start before the next.
async fn first(addrs: &[SocketAddr]) -> Result<(TcpStream, SocketAddr), (io::Error, Option<SocketAddr>)> {
    let mut dials = JoinSet::new();
    let mut left = addrs.iter().copied();
    let mut last = (io::Error::from(io::ErrorKind::AddrNotAvailable), None);
    loop {
        let next = left.next();
        if let Some(addr) = next {
            dials.spawn_local(async move {
                let dialled = timeout(ADDRESS_TIME, TcpStream::connect(addr)).await;
                (dialled.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into())), addr)
            });
        }
        let ended = if left.len() == 0 {
            dials.join_next().await
        } else {
            match timeout(HEAD_START, dials.join_next()).await {
                Ok(ended) => ended,
                Err(_) => continue,
            }
        };
        match ended {
            Some(Ok((Ok(stream), addr))) => return Ok((stream, addr)),
            Some(Ok((Err(error), addr))) => last = (error, Some(addr)),
            // A task of ours neither panics nor is aborted while it is waited for.
            Some(Err(_)) => {}
            None if next.is_none() => return Err(last),
            None => {}
        }
    }
}

/// Small writes go at once, and a server that is gone is noticed.
fn prepare(stream: &TcpStream) {
    let (idle, interval, count) = KEEP_ALIVE;
    let _ = stream.set_nodelay(true);
    let _ = sockopt::set_socket_oobinline(stream, true);
    let _ = sockopt::set_socket_keepalive(stream, true);
    let _ = sockopt::set_tcp_keepidle(stream, idle);
    let _ = sockopt::set_tcp_keepintvl(stream, interval);
    let _ = sockopt::set_tcp_keepcnt(stream, count);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn an_address_that_refuses_or_is_silent_is_passed_over() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let there = listener.local_addr().unwrap();
        let nobody = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let local = tokio::task::LocalSet::new();
        local
            .run_until(async {
                let (_, addr) = first(&[nobody, there]).await.unwrap();
                assert_eq!(addr, there);
                let (error, addr) = first(&[nobody]).await.unwrap_err();
                assert_eq!((error.kind(), addr), (io::ErrorKind::ConnectionRefused, Some(nobody)));
            })
            .await;
    }
}
