//! Where containers' egress workers listen, as the programs need to know it, and whose a connection to one is.

use std::{
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4},
    os::fd::{AsFd, AsRawFd, BorrowedFd},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use aya::maps::MapData;
use nix::sys::socket::{SockaddrIn, SockaddrIn6, SockaddrLike, getsockname};
use ringfence_common::{
    MAX_CONTAINERS,
    egress::{BLOCK_MASK, FlowKey, Redirect, RedirectedFlow, is_of_network},
    policy::container_index,
};
use ringfence_wire::egress::Flow;

use super::{
    ContainerId,
    sys::{self, Mapped},
};

/// Integers of a [`Redirect`].
const WORDS_EACH: usize = size_of::<Redirect>() / 8;
/// Integers of a [`FlowKey`] and of a [`RedirectedFlow`].
const KEY_WORDS: usize = size_of::<FlowKey>() / 8;
const FLOW_WORDS: usize = size_of::<RedirectedFlow>() / 8;

/// The sockets that a container's egress worker serves: bound to loopback, all in the container's network namespace.
#[derive(Debug, Clone, Copy)]
pub struct Listeners<'a> {
    /// The container's block, by the address of it that ends in .0.
    pub block: Ipv4Addr,
    /// For the names, on 127.0.0.1.
    pub tcp: BorrowedFd<'a>,
    /// The resolver over UDP, on 127.0.0.1.
    pub dns_udp: BorrowedFd<'a>,
    /// The resolver over TCP, on 127.0.0.1.
    pub dns_tcp: BorrowedFd<'a>,
    /// The resolver over UDP and over TCP, on ::1, where the namespace has IPv6.
    pub dns6: Option<[BorrowedFd<'a>; 2]>,
}

impl Listeners<'_> {
    fn all(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        [self.tcp, self.dns_udp, self.dns_tcp].into_iter().chain(self.dns6.into_iter().flatten())
    }

    /// What the programs need to know of them.
    fn describe(&self, id: ContainerId) -> io::Result<Redirect> {
        let wrong = |what: String| io::Error::new(io::ErrorKind::InvalidInput, what);
        let block = u32::from(self.block);
        if !is_of_network(block) || block & !BLOCK_MASK != 0 {
            return Err(wrong(format!("{} is no /24 of 198.18.0.0/15", self.block)));
        }
        let netns = sys::netns_cookie(self.tcp)?;
        if let Some(other) =
            self.all().map(sys::netns_cookie).find(|other| !matches!(other, Ok(n) if *n == netns))
        {
            other?;
            return Err(wrong("the egress worker's sockets are of different network namespaces".into()));
        }
        let port4 = |socket| loopback_port(socket, Ipv4Addr::LOCALHOST.into());
        let port6 = |socket| loopback_port(socket, Ipv6Addr::LOCALHOST.into());
        let [dns6_udp, dns6_tcp] = match self.dns6 {
            Some([udp, tcp]) => [port6(udp)?, port6(tcp)?],
            None => [0, 0],
        };
        Ok(Redirect {
            container: id.raw(),
            netns,
            block: block.to_be(),
            tcp: port4(self.tcp)?.to_be(),
            dns_udp: port4(self.dns_udp)?.to_be(),
            dns_tcp: port4(self.dns_tcp)?.to_be(),
            dns6_udp: dns6_udp.to_be(),
            dns6_tcp: dns6_tcp.to_be(),
            reserved: 0,
        })
    }
}

/// The port that a socket is bound to, at `address`.
fn loopback_port(socket: BorrowedFd<'_>, address: IpAddr) -> io::Result<u16> {
    let bound: Option<SocketAddr> = match address {
        IpAddr::V4(_) => name::<SockaddrIn>(socket).map(|it| SocketAddrV4::from(it).into()),
        IpAddr::V6(_) => name::<SockaddrIn6>(socket).map(|it| std::net::SocketAddrV6::from(it).into()),
    };
    match bound {
        Some(bound) if bound.ip() == address && bound.port() != 0 => Ok(bound.port()),
        _ => Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            format!("a socket of an egress worker is not bound to {address}"),
        )),
    }
}

/// `None`: it is of another family.
fn name<S: SockaddrLike>(socket: BorrowedFd<'_>) -> Option<S> {
    getsockname(socket.as_raw_fd()).ok()
}

/// What the programs know of workers.
#[derive(Debug)]
pub(crate) struct Redirects {
    ports: Mapped<AtomicU64>,
    listeners: MapData,
    flows: Flows,
}

impl Redirects {
    /// Integers in the array of [`Redirect`]s.
    pub(crate) const WORDS: usize = MAX_CONTAINERS * WORDS_EACH;

    pub(crate) fn new(
        entries: Mapped<AtomicU64>,
        ports: Mapped<AtomicU64>,
        listeners: MapData,
        flows: MapData,
    ) -> Self {
        Self { ports, listeners, flows: Flows(Arc::new(Shared { entries, flows })) }
    }

    /// See [`super::Kernel::set_redirect`].
    pub(crate) fn set(&self, id: ContainerId, listeners: Option<&Listeners<'_>>) -> io::Result<()> {
        self.clear(id);
        let Some(listeners) = listeners else { return Ok(()) };
        let entry = listeners.describe(id)?;
        // Accepted before it is established, a connection would be nobody's yet.
        sys::no_fast_open(listeners.tcp)?;
        sys::no_fast_open(listeners.dns_tcp)?;
        if let Some([_, tcp]) = listeners.dns6 {
            sys::no_fast_open(tcp)?;
        }
        for socket in listeners.all() {
            sys::set_number_of(self.listeners.fd().as_fd(), socket, id.raw())?;
        }
        self.add_ports(&words(&entry));
        self.flows.0.write(id, &words(&entry));
        Ok(())
    }

    /// Nothing goes anywhere for this container any more, and what would is refused.
    pub(crate) fn clear(&self, id: ContainerId) {
        self.flows.0.write(id, &[0; WORDS_EACH]);
    }

    /// They stay when a worker goes: sockets are left that were sent there.
    fn add_ports(&self, entry: &[u64; WORDS_EACH]) {
        for port in ports(entry) {
            if let Some(word) = self.ports.get(usize::from(port / 64)) {
                word.fetch_or(1 << (port % 64), Ordering::Release);
            }
        }
    }

    /// Nobody is left who was sent anywhere.
    pub(crate) fn forget_ports(&self) {
        self.ports.iter().for_each(|word| word.store(0, Ordering::Release));
    }

    /// See [`super::Kernel::flows`].
    pub(crate) fn flows(&self) -> Flows {
        self.flows.clone()
    }
}

/// Connections to egress workers that nobody has asked about yet.
#[derive(Debug, Clone)]
pub struct Flows(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    entries: Mapped<AtomicU64>,
    flows: MapData,
}

impl Flows {
    /// Whose a connection is that the TCP socket of a container's worker accepted; `peer` is its other end, as accept(2) has
    /// it. Only once for each connection. `None`: no task of the container made it, or as many others of the container's as
    /// [`FLOWS_EACH`](ringfence_common::egress::FLOWS_EACH) have come since, or it comes from another address than 127.0.0.1.
    ///
    /// # Errors
    /// The kernel does not say.
    pub fn take(&self, container: ContainerId, peer: SocketAddrV4) -> io::Result<Option<Flow>> {
        let Some((netns, tcp)) = self.0.listener(container).filter(|_| *peer.ip() == Ipv4Addr::LOCALHOST)
        else {
            return Ok(None);
        };
        let key = key(netns, peer.port(), tcp);
        let found = sys::take::<KEY_WORDS, FLOW_WORDS>(self.0.flows.fd().as_fd(), &key)?;
        Ok(found.and_then(|words| flow(&words, container)))
    }
}

#[cfg(test)]
impl Flows {
    /// How many are there.
    pub(crate) fn untaken(&self) -> usize {
        let map = aya::maps::Map::HashMap(MapData::from_id(self.0.flows.info().unwrap().id()).unwrap());
        let map = aya::maps::HashMap::<_, [u64; KEY_WORDS], [u64; FLOW_WORDS]>::try_from(map).unwrap();
        map.keys().filter(Result::is_ok).count()
    }
}

impl Shared {
    /// The container last, by which the entry is known.
    fn write(&self, id: ContainerId, words: &[u64; WORDS_EACH]) {
        let at = container_index(id.raw()) * WORDS_EACH;
        let Some(entry) = self.entries.get(at..at + WORDS_EACH) else { return };
        for (to, word) in entry.iter().zip(words).rev() {
            to.store(*word, Ordering::Release);
        }
    }

    /// The network namespace and the TCP port (network byte order) that a container's worker listens at.
    fn listener(&self, id: ContainerId) -> Option<(u64, u16)> {
        let at = container_index(id.raw()) * WORDS_EACH;
        let word = |n: usize| self.entries.get(at + n).map(|word| word.load(Ordering::Acquire));
        let [_, _, _, _, high, low, ..] = word(2)?.to_ne_bytes();
        (word(0)? == id.raw()).then_some((word(1)?, u16::from_ne_bytes([high, low])))
    }
}

/// The bytes of a [`Redirect`], as integers.
fn words(entry: &Redirect) -> [u64; WORDS_EACH] {
    let ports = [entry.tcp, entry.dns_udp, entry.dns_tcp, entry.dns6_udp, entry.dns6_tcp, entry.reserved];
    let mut bytes = Vec::with_capacity(size_of::<Redirect>());
    bytes.extend(entry.container.to_ne_bytes());
    bytes.extend(entry.netns.to_ne_bytes());
    bytes.extend(entry.block.to_ne_bytes());
    bytes.extend(ports.iter().flat_map(|port| port.to_ne_bytes()));
    let mut words = [0; WORDS_EACH];
    for (word, bytes) in words.iter_mut().zip(bytes.as_chunks().0) {
        *word = u64::from_ne_bytes(*bytes);
    }
    words
}

/// The ports in the bytes of a [`Redirect`], network byte order.
fn ports(entry: &[u64; WORDS_EACH]) -> impl Iterator<Item = u16> {
    let [_, _, block_and_two, three] = *entry;
    let [_, _, _, _, a, b, c, d] = block_and_two.to_ne_bytes();
    let [e, f, g, h, i, j, _, _] = three.to_ne_bytes();
    [[a, b], [c, d], [e, f], [g, h], [i, j]].into_iter().map(u16::from_ne_bytes).filter(|port| *port != 0)
}

/// The bytes of a [`FlowKey`], as integers. `to_port` is in network byte order.
fn key(netns: u64, from_port: u16, to_port: u16) -> [u64; KEY_WORDS] {
    // The low half.
    let [a, b, c, d] = (netns as u32).to_ne_bytes();
    let [from_high, from_low] = from_port.to_be_bytes();
    let [to_high, to_low] = to_port.to_ne_bytes();
    [u64::from_ne_bytes([a, b, c, d, from_high, from_low, to_high, to_low])]
}

/// A [`RedirectedFlow`] of the container's.
fn flow(words: &[u64; FLOW_WORDS], of: ContainerId) -> Option<Flow> {
    let [container, call, start, ids, from, port] = *words;
    let halves = |word: u64| {
        let [a, b, c, d, e, f, g, h] = word.to_ne_bytes();
        ([a, b, c, d], [e, f, g, h])
    };
    let ((pid, tgid), (uid, address)) = (halves(ids), halves(from));
    let [high, low, ..] = port.to_ne_bytes();
    (container == of.raw()).then_some(Flow {
        address: address.into(),
        port: u16::from_be_bytes([high, low]),
        call,
        pid: u32::from_ne_bytes(pid),
        tgid: u32::from_ne_bytes(tgid),
        start,
        uid: u32::from_ne_bytes(uid),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{
        mem::offset_of,
        net::{TcpListener, UdpSocket},
    };

    fn bytes<const N: usize>(words: [u64; N]) -> Vec<u8> {
        words.iter().flat_map(|word| word.to_ne_bytes()).collect()
    }

    #[test]
    fn bytes_are_where_the_programs_look() {
        let entry = Redirect {
            container: 0x1122_3344_5566_7788,
            netns: 7,
            block: u32::from(Ipv4Addr::new(198, 18, 3, 0)).to_be(),
            tcp: 443u16.to_be(),
            dns_udp: 1u16.to_be(),
            dns_tcp: 2u16.to_be(),
            dns6_udp: 3u16.to_be(),
            dns6_tcp: 4u16.to_be(),
            reserved: 0,
        };
        let written = bytes(words(&entry));
        assert_eq!(written[offset_of!(Redirect, container)..][..8], entry.container.to_ne_bytes());
        assert_eq!(written[offset_of!(Redirect, netns)..][..8], 7u64.to_ne_bytes());
        assert_eq!(written[offset_of!(Redirect, block)..][..4], [198, 18, 3, 0]);
        for (at, port) in [
            (offset_of!(Redirect, tcp), 443u16),
            (offset_of!(Redirect, dns_udp), 1),
            (offset_of!(Redirect, dns_tcp), 2),
            (offset_of!(Redirect, dns6_udp), 3),
            (offset_of!(Redirect, dns6_tcp), 4),
        ] {
            assert_eq!(written[at..][..2], port.to_be_bytes());
        }

        let written = bytes(key(7 << 32 | 9, 4711, 443u16.to_be()));
        assert_eq!(written[offset_of!(FlowKey, netns)..][..4], 9u32.to_ne_bytes());
        assert_eq!(written[offset_of!(FlowKey, from_port)..][..2], 4711u16.to_be_bytes());
        assert_eq!(written[offset_of!(FlowKey, to_port)..][..2], 443u16.to_be_bytes());
    }

    #[test]
    fn every_port_is_found_in_an_entry() {
        let port = |n: u16| n.to_be();
        let mut entry =
            Redirect { container: u64::MAX, netns: u64::MAX, block: u32::MAX, ..Redirect::default() };
        assert_eq!(ports(&words(&entry)).count(), 0, "neither the container nor the namespace is a port");
        (entry.tcp, entry.dns_udp, entry.dns_tcp) = (port(1), port(443), port(65_535));
        (entry.dns6_udp, entry.dns6_tcp) = (port(53), port(32_768));
        let found: Vec<u16> = ports(&words(&entry)).map(u16::from_be).collect();
        assert_eq!(found, [1, 443, 65_535, 53, 32_768]);
    }

    #[test]
    fn a_flow_is_its_containers_alone() {
        let mut there = [0u8; size_of::<RedirectedFlow>()];
        let mut put = |at: usize, bytes: &[u8]| there[at..at + bytes.len()].copy_from_slice(bytes);
        put(offset_of!(RedirectedFlow, container), &5u64.to_ne_bytes());
        put(offset_of!(RedirectedFlow, call), &6u64.to_ne_bytes());
        put(offset_of!(RedirectedFlow, start), &7u64.to_ne_bytes());
        put(offset_of!(RedirectedFlow, pid), &8u32.to_ne_bytes());
        put(offset_of!(RedirectedFlow, tgid), &9u32.to_ne_bytes());
        put(offset_of!(RedirectedFlow, uid), &10u32.to_ne_bytes());
        put(offset_of!(RedirectedFlow, address), &[198, 18, 3, 1]);
        put(offset_of!(RedirectedFlow, port), &443u16.to_be_bytes());
        let mut words = [0; FLOW_WORDS];
        for (word, bytes) in words.iter_mut().zip(there.as_chunks().0) {
            *word = u64::from_ne_bytes(*bytes);
        }
        let address = Ipv4Addr::new(198, 18, 3, 1);
        let wanted = Flow { address, port: 443, call: 6, pid: 8, tgid: 9, start: 7, uid: 10 };
        assert_eq!(flow(&words, ContainerId::from_raw(5)), Some(wanted));
        assert_eq!(flow(&words, ContainerId::from_raw(4)), None);
    }

    #[test]
    fn sockets_that_are_not_on_loopback_and_blocks_that_are_none_are_refused() {
        let tcp = TcpListener::bind("127.0.0.1:0").unwrap();
        let udp = UdpSocket::bind("127.0.0.1:0").unwrap();
        let elsewhere = UdpSocket::bind("127.0.0.2:0").unwrap();
        let (tcp, udp) = (tcp.as_fd(), udp.as_fd());
        let good = Listeners { block: [198, 19, 255, 0].into(), tcp, dns_udp: udp, dns_tcp: tcp, dns6: None };
        let id = ContainerId::from_raw(5);
        let entry = good.describe(id).unwrap();
        assert_eq!((entry.container, entry.tcp, entry.dns6_udp), (5, entry.dns_tcp, 0));
        assert_ne!(entry.netns, 0);
        for block in [[198, 18, 0, 1], [198, 20, 0, 0], [10, 0, 0, 0]] {
            assert!(Listeners { block: block.into(), ..good }.describe(id).is_err());
        }
        assert!(Listeners { dns_udp: elsewhere.as_fd(), ..good }.describe(id).is_err());
        assert!(Listeners { dns6: Some([udp, tcp]), ..good }.describe(id).is_err(), "not on ::1");
    }
}
