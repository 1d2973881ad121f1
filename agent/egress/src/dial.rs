//! From a name to a server: the host's resolver, what of its answers may be dialled, and the first of those that answers.

use crate::{
    addresses::{Found, Not, is_granted},
    refusal::Refusal,
    route::{Leads, leads},
    worker::{Policy, Worker},
};
use ringfence_wire::egress::EgressCause;
use rustix::net::sockopt;
use std::{
    io,
    net::{IpAddr, SocketAddr},
    time::Duration,
};
use tokio::{net::TcpStream, task::JoinSet, time::timeout};

/// How long a connection waits for its turn.
const TURN_TIME: Duration = Duration::from_secs(30);
/// How long one of several addresses has before the next is tried beside it (RFC 8305 says 250 ms).
const HEAD_START: Duration = Duration::from_millis(250);
/// How long each may take to answer.
const ADDRESS_TIME: Duration = Duration::from_secs(5);
/// What all addresses that are asked for as such take turns by: no entry is called that.
const ADDRESSES: &str = "(addresses)";
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
    // All that a wildcard grants is one: its names are as many as anybody likes. Of audit mode, or where a person
    // approved it, there may be no entry.
    let entry = policy.judge(name, port).map_or(name, |rule| rule.host.as_str());
    let _turn = timeout(TURN_TIME, worker.dials_of.take(entry)).await.map_err(full)?;
    let _place = timeout(TURN_TIME, worker.dials.acquire()).await.map_err(full)?;
    let found = worker.lookups.find(entry, name, port).await;
    let found = found.map_err(|reason| Refusal::new(EgressCause::Unresolved, &reason))?;
    let mut would_deny = None;
    let (mut fine, mut blocked) = (Vec::new(), None);
    for found in found.iter().copied() {
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
    let (stream, address) = first(&addrs).await.map_err(unreachable)?;
    // The way of a connection may be another than its address alone has: by its source, or by a route that is new. Nothing was
    // said to it yet.
    let is_known = fine.iter().any(|(addr, is_own)| *addr == address && *is_own);
    let is_own = is_known
        || is_this_host(&stream, address).map_err(|error| NoServer {
            refusal: Refusal::new(
                EgressCause::Unreachable,
                &format!("whether it leads to this host cannot be told: {error}"),
            ),
            address: Some(address),
        })?;
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

/// Dials an address that its client asked for.
///
/// # Errors
/// [`NoServer`].
pub(crate) async fn reach_address(
    worker: &Worker,
    policy: &Policy,
    addr: IpAddr,
    port: u16,
) -> Result<Server, NoServer> {
    let full = |_| Refusal::new(EgressCause::Full, "too many servers are being looked for already");
    let _turn = timeout(TURN_TIME, worker.dials_of.take(ADDRESSES)).await.map_err(full)?;
    let _place = timeout(TURN_TIME, worker.dials.acquire()).await.map_err(full)?;
    let addr = is_granted(&policy.names, addr, port)?;
    let (stream, address) = first(&[SocketAddr::new(addr, port)]).await.map_err(unreachable)?;
    prepare(&stream);
    Ok(Server { stream, address, is_own: false, would_deny: None })
}

fn unreachable((error, address): (io::Error, Option<SocketAddr>)) -> NoServer {
    NoServer { refusal: Refusal::new(EgressCause::Unreachable, &format!("nobody answers: {error}")), address }
}

/// Whether a connection is to this host.
///
/// # Errors
/// The kernel does not say.
fn is_this_host(stream: &TcpStream, address: SocketAddr) -> io::Result<bool> {
    match leads(address, Some(stream.local_addr()?))? {
        Leads::Here => Ok(true),
        Leads::Away => Ok(false),
        Leads::Nowhere => Err(io::ErrorKind::NetworkUnreachable.into()),
    }
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
    use crate::{confine::Limits, hosts::Hosts, link::Link, lookups::Lookups, route::tests::elsewhere};
    use ringfence_wire::egress::{AddressRule, EgressStart, NameRule, Names};
    use std::io::Read;

    #[tokio::test]
    async fn a_connection_to_this_host_is_told_by_its_route() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let stream = TcpStream::connect(address).await.unwrap();
        assert!(is_this_host(&stream, address).unwrap());
        // A machine of no network has no way there.
        assert!(!is_this_host(&stream, "192.0.2.1:80".parse().unwrap()).unwrap_or_default());
    }

    #[test]
    fn what_is_routed_to_this_host_is_refused_before_anything_is_said() {
        let lines = [
            "link set lo up",
            "link set out up",
            "addr add 10.0.0.5/24 dev out",
            "route add default via 10.0.0.1",
            "route add local 93.184.216.0/23 dev lo src 10.0.0.5",
            // For the second half of that, and for what comes from the interface's own address, and nothing else.
            "rule add to 10.0.0.5 lookup local pref 1",
            "rule add to 93.184.217.0/24 lookup local pref 1",
            "rule add from 10.0.0.5 lookup local pref 2",
            "rule del pref 0",
        ];
        let dir = tempfile::tempdir().unwrap();
        let hosts = dir.path().join("hosts");
        std::fs::write(&hosts, "93.184.217.9 at-once.example\n93.184.216.9 later.example\n").unwrap();
        let names = |addresses: &[&str]| {
            let rule = |host: &str| NameRule { host: host.into(), port: None, tcp: true, rule: 0 };
            let allow = |net: &&str| AddressRule { net: net.parse().unwrap(), port: None, allow: true };
            Names {
                rules: ["at-once.example", "later.example"].map(rule).into(),
                addresses: addresses.iter().map(allow).collect(),
                ..Names::default()
            }
        };
        let worker = |names: Names, host_network| {
            let start = EgressStart {
                container: "0123456789ab".into(),
                profile: "tested".into(),
                block: "198.18.7.0/24".parse().unwrap(),
                names,
                audit: false,
                v6: false,
                host_network,
                uploads: Vec::new(),
            };
            let limits = Limits { memory: 512 << 20, descriptors: 4096 };
            let mut worker = Worker::new(start, Link::new().0, limits).unwrap();
            worker.lookups = Lookups::of(Hosts::at(hosts.clone()), |_| Ok(Vec::new()));
            worker
        };
        elsewhere(&lines, || {
            let listener = std::net::TcpListener::bind("0.0.0.0:0").unwrap();
            listener.set_nonblocking(true).unwrap();
            let port = listener.local_addr().unwrap().port();
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            let to = |worker: &Worker, name: &str| {
                let policy = worker.policy();
                let reached = reach(worker, &policy, name, port);
                tokio::task::LocalSet::new().block_on(&runtime, reached)
            };
            for host_network in [true, false] {
                let worker = worker(names(&[]), host_network);
                let no = to(&worker, "at-once.example").err().unwrap();
                assert_eq!(no.refusal.cause, EgressCause::NotPublic, "{:?}", no.refusal);
                assert!(listener.accept().is_err(), "it is not even dialled");
                // By its source, which it has once it is dialled.
                let no = to(&worker, "later.example").err().unwrap();
                assert_eq!(no.refusal.cause, EgressCause::NotPublic, "{:?}", no.refusal);
                let mut said = Vec::new();
                let (mut dialled, from) = listener.accept().unwrap();
                assert_eq!(from.ip().to_string(), "10.0.0.5", "its ends do not tell");
                dialled.set_nonblocking(false).unwrap();
                assert_eq!(dialled.read_to_end(&mut said).unwrap(), 0);
            }
            let granted = names(&["93.184.216.0/23"]);
            for (host_network, expected) in [(true, true), (false, false)] {
                let worker = worker(granted.clone(), host_network);
                for name in ["at-once.example", "later.example"] {
                    let reached = to(&worker, name);
                    assert_eq!(reached.is_ok_and(|server| server.is_own), expected, "{name} {host_network}");
                }
            }
        });
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
