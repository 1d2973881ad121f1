//! Outbound names: what the programs and the agent agree on about connections that go to a container's own egress worker.
//!
//! A container whose policy has [`crate::policy::FLAG_EGRESS`] has a block of addresses of its own out of [`NETWORK`],
//! each of which stands for a name, and sockets on loopback that its worker serves. Programs at the root of cgroup v2
//! send what is meant for the block, or for a nameserver, to those sockets.

/// The network that all blocks are of, `198.18.0.0/15`: kept for benchmarks between networks (RFC 2544), so that nobody's
/// hosts are there. Host byte order, as [`NETWORK_MASK`].
pub const NETWORK: u32 = 0xc612_0000;
/// The bits of an address that say whether it is of [`NETWORK`].
pub const NETWORK_MASK: u32 = 0xfffe_0000;
/// The bits of an address that say which block it is of: a /24.
pub const BLOCK_MASK: u32 = 0xffff_ff00;
/// The port that a nameserver listens on, UDP and TCP. Host byte order.
pub const DNS_PORT: u16 = 53;

/// The programs at the root of cgroup v2 that change addresses; each is named, and its link pinned, as the place that it
/// is attached to.
pub const REWRITERS: [&str; 8] =
    ["connect4", "connect6", "sendmsg4", "sendmsg6", "recvmsg4", "recvmsg6", "getpeername4", "getpeername6"];

/// Where a container's worker listens, at [`crate::policy::container_index`] of its id in the map `REDIRECTS`. Ports in
/// network byte order; those of IPv6 may be 0: there is none. Everything is on loopback (`127.0.0.1`, `::1`) of one
/// network namespace.
///
/// It is only believed where the map `LISTENERS` has the container's id for the very socket that listens there: a port that
/// the worker's socket has left may by now be somebody else's.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Redirect {
    /// The container's id. Another than the task's, or 0: there is nothing to send to, and what would be is refused.
    pub container: u64,
    /// The cookie of the network namespace that the sockets are of (`SO_NETNS_COOKIE`).
    pub netns: u64,
    /// The container's block: the address that ends in .0, network byte order.
    pub block: u32,
    /// TCP, for the names.
    pub tcp: u16,
    /// The resolver, UDP over IPv4.
    pub dns_udp: u16,
    /// The resolver, TCP over IPv4.
    pub dns_tcp: u16,
    /// The resolver, UDP over IPv6.
    pub dns6_udp: u16,
    /// The resolver, TCP over IPv6.
    pub dns6_tcp: u16,
    /// Room.
    pub reserved: u16,
}

/// Integers in the map `PORTS`: a bit for each port at which some worker listens or did, in whatever network namespace, since there was
/// last no container with names. Port `p`, in
/// network byte order, is bit `p % 64` of integer `p / 64`.
pub const PORT_WORDS: usize = 1 << 10;

/// Who connected to an address of a block, and to which.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RedirectedFlow {
    /// The container of the task that connected; 0: there is no flow here.
    pub container: u64,
    /// Its call tag; 0: none.
    pub call: u64,
    /// Start of its thread group leader, ns since boot.
    pub start: u64,
    /// Its thread id, in the initial pid namespace.
    pub pid: u32,
    /// Its process id.
    pub tgid: u32,
    /// Its user id, in the initial user namespace.
    pub uid: u32,
    /// The address that it named, network byte order.
    pub address: u32,
    /// The port, network byte order.
    pub port: u16,
    /// Room.
    pub reserved: u16,
    /// In the map `FLOWS`: where its key is in the map `UNTAKEN`.
    pub slot: u32,
}

/// What a task's system call was let go to by an LSM program because a program of cgroups sends it elsewhere, in the map `JUDGED`
/// by the task's address: from the one to the other, which takes it out. A nameserver, or an address that stands for a name.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Judged {
    /// Who, and for a name where to.
    pub flow: RedirectedFlow,
    /// The address that was judged, as it lies in a [`crate::net::NetKey`].
    pub address: [u64; 2],
    /// Its port, network byte order.
    pub port: u16,
    /// Room.
    pub reserved: [u16; 3],
}

/// What is kept with a socket that was sent elsewhere, in the map `REDIRECTED`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Redirected {
    /// What went to a worker; its container is 0 where that is over, or was a question to the resolver.
    pub flow: RedirectedFlow,
    /// The container whose worker it was sent to.
    pub container: u64,
    /// The address that the caller named, as it lies in a [`crate::net::NetKey`]; what it is told where it asks who the
    /// other end is.
    pub original: [u64; 2],
    /// Its port, network byte order.
    pub original_port: u16,
    /// The port on loopback that it was sent to, network byte order; 0: nowhere.
    pub target: u16,
    /// Room.
    pub reserved: u32,
}

/// Key of the map `FLOWS`: a connection from `127.0.0.1` to a worker's TCP socket there. (Who comes from another address of loopback
/// bound one, and is nobody's to the worker.) Two connections of one time differ in it, and a new one that is established takes out
/// what an old one left. It is 8 bytes, so that one instruction exchanges it for another.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FlowKey {
    /// The low half of the cookie of the network namespace. Cookies are counted up: two of one time have different halves, and a flow is
    /// its container's alone in any case.
    pub netns: u32,
    /// The port that the connection comes from, network byte order.
    pub from_port: u16,
    /// The port that it goes to, network byte order.
    pub to_port: u16,
}

/// Blocks in [`NETWORK`].
pub const BLOCKS: usize = 1 << 9;
/// Most flows of one block that nobody took yet: then its own oldest is forgotten, whose connection is closed, and nobody else's.
/// A power of two. More than can wait for an answer in a listening socket and in a worker (`WAITING` in the core, `MOST_ASKING` in the
/// worker), so that none is forgotten that somebody will ask about.
pub const FLOWS_EACH: usize = 1 << 10;

/// Which block an address (host byte order) of [`NETWORK`] is of: less than [`BLOCKS`].
#[inline(always)]
#[must_use]
pub const fn block_index(address: u32) -> usize {
    ((address & !NETWORK_MASK) >> 8) as usize
}

/// Whether an address (host byte order) is of [`NETWORK`].
#[inline(always)]
#[must_use]
pub const fn is_of_network(address: u32) -> bool {
    address & NETWORK_MASK == NETWORK
}

const _: () = assert!(size_of::<Redirect>() == 32);
const _: () = assert!(size_of::<RedirectedFlow>() == 48);
const _: () = assert!(size_of::<Redirected>() == 80);
const _: () = assert!(size_of::<Judged>() == 72);
const _: () = assert!(size_of::<FlowKey>() == 8);
