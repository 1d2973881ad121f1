//! Where the kernel would send what goes to an address: to this very host, or away. An address need not be an interface's to lead
//! here: whoever administers the host may have routed any of them to it (`ip route add local 203.0.113.0/24 dev lo`).
//!
//! What changes an address on its way (DNAT, an eBPF program at connect(2)) is not seen by this.

use rustix::{
    io::Errno,
    net::{
        AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, netlink::SocketAddrNetlink, recvfrom,
        sendto, socket_with,
    },
};
use std::{
    io,
    net::{IpAddr, SocketAddr},
};

/// Where an address leads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Leads {
    /// To this host.
    Here,
    /// Anywhere else.
    Away,
    /// Nowhere: nothing can be sent there.
    Nowhere,
}

// linux/netlink.h, linux/rtnetlink.h.
const NLM_F_REQUEST: u16 = 1;
const NLMSG_ERROR: u16 = 2;
const RTM_NEWROUTE: u16 = 24;
const RTM_GETROUTE: u16 = 26;
const RTA_DST: u16 = 1;
const RTA_SRC: u16 = 2;
const RTA_IP_PROTO: u16 = 27;
const RTA_SPORT: u16 = 28;
const RTA_DPORT: u16 = 29;
const RTN_LOCAL: u8 = 2;
const RTN_ANYCAST: u8 = 4;
/// Bytes of a message's header, of the part of a route's before its attributes, and where in that its type is.
const HEADER: usize = 16;
const ROUTE: usize = 12;
const TYPE: usize = 7;
const TCP: u8 = 6;
/// The number of the one question of each socket.
const QUESTION: u32 = 1;
/// Answers that are looked at: the kernel gives one.
const MOST_ANSWERS: usize = 4;

/// Where a TCP connection to an address goes; `from`: its own end, where that is known. The kernel answers at once.
///
/// # Errors
/// It cannot be asked, or says what it never does.
pub(crate) fn leads(to: SocketAddr, from: Option<SocketAddr>) -> io::Result<Leads> {
    let addr = to.ip().to_canonical();
    if addr.is_unspecified() {
        return Ok(Leads::Here);
    }
    let socket = socket_with(AddressFamily::NETLINK, SocketType::RAW, SocketFlags::CLOEXEC, None)?;
    let kernel = SocketAddrNetlink::new(0, 0);
    sendto(&socket, &question(addr, to.port(), from), SendFlags::empty(), &kernel)?;
    let mut answer = [0; 4096];
    for _ in 0..MOST_ANSWERS {
        let (_, count, sender) = recvfrom(&socket, &mut answer, RecvFlags::DONTWAIT)?;
        if sender.and_then(|sender| SocketAddrNetlink::try_from(sender).ok()) != Some(kernel) {
            continue;
        }
        if let Some(leads) = answer.get(..count).and_then(read) {
            return leads;
        }
    }
    Err(io::Error::new(io::ErrorKind::InvalidData, "the kernel does not say where an address leads"))
}

fn question(to: IpAddr, port: u16, from: Option<SocketAddr>) -> Vec<u8> {
    let mut body = Vec::new();
    attribute(&mut body, RTA_DST, &bytes(to));
    // As what is sent has them: rules may go by each.
    attribute(&mut body, RTA_IP_PROTO, &[TCP]);
    attribute(&mut body, RTA_DPORT, &port.to_be_bytes());
    let bits = |of: &[u8]| u8::try_from(of.len() * 8).unwrap_or_default();
    let mut source_bits = 0;
    if let Some(from) = from.filter(|from| from.ip().to_canonical().is_ipv4() == to.is_ipv4()) {
        let source = bytes(from.ip().to_canonical());
        source_bits = bits(&source);
        attribute(&mut body, RTA_SRC, &source);
        attribute(&mut body, RTA_SPORT, &from.port().to_be_bytes());
    }
    let family = if to.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let family = u8::try_from(family.as_raw()).unwrap_or_default();
    let length = u32::try_from(HEADER + ROUTE + body.len()).unwrap_or_default();
    let mut message = Vec::new();
    message.extend(length.to_ne_bytes());
    message.extend(RTM_GETROUTE.to_ne_bytes());
    message.extend(NLM_F_REQUEST.to_ne_bytes());
    message.extend(QUESTION.to_ne_bytes());
    message.extend(0_u32.to_ne_bytes());
    message.extend([family, bits(&bytes(to)), source_bits, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    message.extend(body);
    message
}

fn bytes(addr: IpAddr) -> Vec<u8> {
    match addr {
        IpAddr::V4(v4) => v4.octets().into(),
        IpAddr::V6(v6) => v6.octets().into(),
    }
}

/// Each begins at a multiple of four bytes.
fn attribute(body: &mut Vec<u8>, kind: u16, value: &[u8]) {
    let length = u16::try_from(4 + value.len()).unwrap_or_default();
    body.extend(length.to_ne_bytes());
    body.extend(kind.to_ne_bytes());
    body.extend(value);
    body.resize(body.len().next_multiple_of(4), 0);
}

/// What an answer says; `None`: it is none to the question.
fn read(answer: &[u8]) -> Option<io::Result<Leads>> {
    let kind = u16::from_ne_bytes(*answer.get(4..)?.first_chunk()?);
    let question = u32::from_ne_bytes(*answer.get(8..)?.first_chunk()?);
    let body = answer.get(HEADER..).filter(|_| question == QUESTION)?;
    match kind {
        RTM_NEWROUTE => Some(Ok(match body.get(..ROUTE)?.get(TYPE)? {
            // An address of a router's that this host is.
            &RTN_LOCAL | &RTN_ANYCAST => Leads::Here,
            _ => Leads::Away,
        })),
        NLMSG_ERROR => {
            let errno = i32::from_ne_bytes(*body.first_chunk()?).checked_neg()?;
            let error = Errno::from_raw_os_error(errno);
            // What there is no way to, what a rule forbids, and a family that this host does not have.
            let nowhere = [
                Errno::NETUNREACH,
                Errno::HOSTUNREACH,
                Errno::ACCESS,
                Errno::INVAL,
                Errno::AFNOSUPPORT,
                Errno::OPNOTSUPP,
                Errno::NETDOWN,
            ];
            Some(if nowhere.contains(&error) { Ok(Leads::Nowhere) } else { Err(error.into()) })
        }
        _ => None,
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use nix::sched::{CloneFlags, unshare};
    use std::{
        net::{TcpListener, TcpStream},
        process::Command,
        thread,
        time::{Duration, Instant},
    };

    fn to(addr: &str) -> Leads {
        leads(SocketAddr::new(addr.parse().unwrap(), 443), None).unwrap()
    }

    #[test]
    fn the_host_knows_its_own_addresses() {
        for own in ["127.0.0.1", "127.9.9.9", "0.0.0.0", "::", "::ffff:127.0.0.1"] {
            assert_eq!(to(own), Leads::Here, "{own}");
        }
        assert_ne!(to("192.0.2.77"), Leads::Here);
        assert_ne!(to("2001:db8::77"), Leads::Here);
    }

    /// Runs where nobody else is, with an interface and routes of its own; not where that may not be made.
    pub(crate) fn elsewhere(lines: &[&str], test: impl FnOnce() + Send) {
        thread::scope(|scope| {
            let runs = scope.spawn(|| {
                if let Err(errno) = unshare(CloneFlags::CLONE_NEWNET) {
                    return eprintln!("skipped: no network namespace: {errno}");
                }
                let ip = |line: &str| Command::new("ip").args(line.split(' ')).output().unwrap();
                let makes = |kind: &str| ip(&format!("link add out type {kind}")).status.success();
                if !["dummy", "bridge"].iter().any(|kind| makes(kind)) {
                    return eprintln!("skipped: the kernel has no interface that is none");
                }
                let until = Instant::now() + Duration::from_secs(60);
                for line in lines {
                    // An address of IPv6 is one only a moment after it was added.
                    while let Some(output) = Some(ip(line)).filter(|output| !output.status.success()) {
                        assert!(Instant::now() < until, "{line}: {output:?}");
                        thread::sleep(Duration::from_millis(10));
                    }
                }
                test();
            });
            runs.join().unwrap();
        });
    }

    #[test]
    fn what_is_routed_to_this_host_leads_here_whatever_its_source() {
        let lines = [
            "link set lo up",
            "link set out up",
            "addr add 10.0.0.5/24 dev out",
            "-6 addr add 2001:db8:5::5/64 dev out nodad",
            "route add default via 10.0.0.1",
            "-6 route add default via 2001:db8:5::1",
            "route add local 203.0.113.0/24 dev lo src 10.0.0.5",
            "-6 route add local 2001:db8:a::/48 dev lo src 2001:db8:5::5",
            "route add blackhole 198.51.100.0/24",
        ];
        elsewhere(&lines, || {
            // An interface is up a moment after it was told to be.
            let until = Instant::now() + Duration::from_secs(60);
            let settles = |addr: &str, expected: Leads| {
                while to(addr) != expected {
                    assert!(Instant::now() < until, "{addr}: {:?}", to(addr));
                    thread::sleep(Duration::from_millis(10));
                }
            };
            for here in ["10.0.0.5", "203.0.113.9", "2001:db8:5::5", "2001:db8:a::9", "::1"] {
                settles(here, Leads::Here);
            }
            for away in ["10.0.0.6", "203.0.112.9", "2001:db8:b::9"] {
                settles(away, Leads::Away);
            }
            assert_eq!(to("198.51.100.9"), Leads::Nowhere);
            // And of a connection, whose ends tell nothing.
            let listener = TcpListener::bind("0.0.0.0:0").unwrap();
            let address =
                SocketAddr::new("203.0.113.9".parse().unwrap(), listener.local_addr().unwrap().port());
            let stream = TcpStream::connect(address).unwrap();
            let own = stream.local_addr().unwrap();
            assert_eq!(own.ip().to_string(), "10.0.0.5", "neither end says that it is here");
            assert_eq!(leads(address, Some(own)).unwrap(), Leads::Here);
            let listener = TcpListener::bind("[::]:0").unwrap();
            let address =
                SocketAddr::new("2001:db8:a::9".parse().unwrap(), listener.local_addr().unwrap().port());
            let stream = TcpStream::connect(address).unwrap();
            assert_eq!(leads(address, Some(stream.local_addr().unwrap())).unwrap(), Leads::Here);
        });
    }

    #[test]
    fn a_route_by_source_or_port_is_the_connection_s() {
        let lines = [
            "link set lo up",
            "link set out up",
            "addr add 10.0.0.5/24 dev out",
            "route add default via 10.0.0.1",
            "route add local 203.0.113.0/24 dev lo table 77",
            "rule add ipproto tcp dport 443 lookup 77",
            "route add local 192.0.2.0/24 dev lo table 78",
            "rule add from 10.0.0.5 lookup 78",
        ];
        elsewhere(&lines, || {
            let of = |addr: &str, port, from: Option<&str>| {
                let from = from.map(|from| SocketAddr::new(from.parse().unwrap(), 40_000));
                leads(SocketAddr::new(addr.parse().unwrap(), port), from).unwrap()
            };
            assert_eq!(of("203.0.113.9", 443, None), Leads::Here);
            assert_eq!(of("203.0.113.9", 80, None), Leads::Away);
            assert_eq!(of("192.0.2.9", 443, None), Leads::Away);
            assert_eq!(of("192.0.2.9", 443, Some("10.0.0.5")), Leads::Here);
        });
    }

    #[test]
    fn only_an_answer_to_the_question_is_one() {
        let answer = |kind: u16, question: u32, body: &[u8]| {
            let mut message = vec![0; 4];
            message.extend(kind.to_ne_bytes());
            message.extend([0, 0]);
            message.extend(question.to_ne_bytes());
            message.extend([0; 4]);
            message.extend(body);
            message
        };
        let said = |message: &[u8]| read(message).map(|leads| leads.map_err(|error| error.raw_os_error()));
        let route = |kind| [2, 32, 0, 0, 255, 0, 0, kind, 0, 0, 0, 0];
        assert_eq!(said(&answer(RTM_NEWROUTE, 1, &route(2))), Some(Ok(Leads::Here)));
        assert_eq!(said(&answer(RTM_NEWROUTE, 1, &route(1))), Some(Ok(Leads::Away)));
        assert_eq!(said(&answer(RTM_NEWROUTE, 2, &route(2))), None, "another question's");
        assert_eq!(said(&answer(NLMSG_ERROR, 1, &(-101_i32).to_ne_bytes())), Some(Ok(Leads::Nowhere)));
        assert_eq!(said(&answer(NLMSG_ERROR, 1, &(-105_i32).to_ne_bytes())), Some(Err(Some(105))));
        let whole = answer(RTM_NEWROUTE, 1, &route(2));
        assert!((0..whole.len()).all(|end| said(&whole[..end]).is_none()));
    }
}
