//! From a name to a server: the host's resolver, what of its answers may be dialled, and the first of those that answers.

use crate::{
    addresses::{Found, MOST_ADDRESSES, Not, found},
    hosts,
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
    /// It is this host.
    pub(crate) is_own: bool,
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
    let full = |_| Refusal::new(EgressCause::Full, "too many servers are being looked for already");
    let _place = timeout(LOOKUP_TIME, worker.dials.acquire()).await.map_err(full)?;
    let found =
        look_up(worker, name).await.map_err(|reason| Refusal::new(EgressCause::Unresolved, &reason))?;
    let mut would_deny = None;
    let (mut fine, mut blocked) = (Vec::new(), None);
    for found in found.into_iter().take(MOST_ADDRESSES) {
        match policy.judge_address(found, port) {
            Ok(addr) => fine.push((SocketAddr::new(addr, port), found.is_own)),
            Err(not) => {
                let address = SocketAddr::new(found.addr.to_canonical(), port);
                blocked.get_or_insert((not, address, found.is_own));
            }
        }
    }
    match blocked {
        Some((Not { refusal, is_never: false }, address, is_own)) if fine.is_empty() && policy.audit => {
            would_deny = Some(refusal);
            fine.push((address, is_own));
        }
        Some((Not { refusal, .. }, address, _)) if fine.is_empty() => {
            return Err(NoServer { refusal, address: Some(address) });
        }
        _ => {}
    }
    let addrs: Vec<SocketAddr> = fine.iter().map(|(addr, _)| *addr).collect();
    let (stream, address) = first(&addrs).await.map_err(|(error, address)| NoServer {
        refusal: Refusal::new(EgressCause::Unreachable, &format!("nobody answers: {error}")),
        address,
    })?;
    // A route may be to this host although the address is no interface's. Nothing was said to it yet.
    let is_known = fine.iter().any(|(addr, is_own)| *addr == address && *is_own);
    let is_own = is_known || is_this_host(&stream, address);
    if is_own && !is_known {
        match policy.judge_address(Found { addr: address.ip(), is_own }, port) {
            Ok(_) => {}
            Err(Not { refusal, is_never: false }) if policy.audit => {
                would_deny.get_or_insert(refusal);
            }
            Err(Not { refusal, .. }) => return Err(NoServer { refusal, address: Some(address) }),
        }
    }
    prepare(&stream);
    Ok(Server { stream, address, is_own, would_deny })
}

/// Whether both ends of a connection have the same address.
fn is_this_host(stream: &TcpStream, address: SocketAddr) -> bool {
    stream.local_addr().is_ok_and(|local| local.ip() == address.ip())
}

/// The addresses of a name, best first. At least one.
async fn look_up(worker: &Worker, name: &str) -> Result<Vec<Found>, String> {
    let until = Instant::now() + LOOKUP_TIME;
    let late = || format!("the host's resolver did not find it within {} s", LOOKUP_TIME.as_secs());
    let place = timeout_at(until, Arc::clone(&worker.lookups).acquire_owned()).await.map_err(|_| late())?;
    let host = name.to_owned();
    // It cannot be interrupted: its place is free when it is over, whoever still waits for it.
    let look_up = spawn_blocking(move || {
        let found = addresses_of(&host, hosts::read(), resolve).and_then(found);
        drop(place);
        found
    });
    let found = timeout_at(until, look_up).await.map_err(|_| late())?;
    let found = found.map_err(io::Error::other).and_then(|found| found);
    let found = found.map_err(|error| format!("the host's resolver does not find it: {error}"))?;
    if found.is_empty() { Err("the host's resolver finds no address".to_owned()) } else { Ok(found) }
}

/// A name is the whole name: with the dot of the root, so that no domain of the host's search list is put behind it, which nobody
/// granted. In /etc/hosts names have no dot, so that is looked at first.
fn addresses_of(
    name: &str,
    hosts: Vec<u8>,
    resolve: impl FnOnce(&str) -> io::Result<Vec<IpAddr>>,
) -> io::Result<Vec<IpAddr>> {
    let there = hosts::find(&hosts, name);
    if there.is_empty() { resolve(&format!("{name}.")) } else { Ok(there) }
}

fn resolve(name: &str) -> io::Result<Vec<IpAddr>> {
    Ok((name, 0).to_socket_addrs()?.map(|addr| addr.ip()).collect())
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

    #[test]
    fn no_domain_is_put_behind_a_name_and_the_hosts_file_counts() {
        let hosts = b"127.0.0.1 localhost\n10.1.2.3 git.corp.example git\n".to_vec();
        let none = |name: &str| -> io::Result<Vec<IpAddr>> { panic!("{name}") };
        let found = addresses_of("git.corp.example", hosts.clone(), none).unwrap();
        assert_eq!(found, ["10.1.2.3".parse::<IpAddr>().unwrap()]);
        let mut asked = String::new();
        let found = addresses_of("git.corp.example.org", hosts, |name| {
            name.clone_into(&mut asked);
            Ok(Vec::new())
        });
        assert_eq!((asked.as_str(), found.unwrap().len()), ("git.corp.example.org.", 0));
    }

    #[tokio::test]
    async fn a_connection_to_this_host_is_told_by_its_ends() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let stream = TcpStream::connect(address).await.unwrap();
        assert!(is_this_host(&stream, address));
        assert!(!is_this_host(&stream, "192.0.2.1:80".parse().unwrap()));
    }

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
