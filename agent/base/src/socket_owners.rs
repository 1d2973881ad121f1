//! Whose the other end of a connection over loopback is, by the kernel's word: TCP has no peer credentials, but `ss` knows.

use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, connect,
    netlink::{SOCK_DIAG, SocketAddrNetlink},
    recv, send, socket_with,
};
use std::{
    net::{Ipv4Addr, SocketAddr, SocketAddrV4, TcpListener, TcpStream},
    ops::Range,
    os::fd::OwnedFd,
    sync::{Mutex, PoisonError},
    time::Duration,
};

/// `SOCK_DIAG_BY_FAMILY`, the one request and the one answer that is of use.
const BY_FAMILY: u16 = 20;
const REQUEST: u16 = 1;
const INET: u8 = 2;
const TCP: u8 = 6;
/// Bytes of `nlmsghdr`, and where `inet_diag_msg`, which follows it, has the user id.
const HEADER: usize = 16;
const UID: usize = HEADER + 64;
/// Where it has the inode: 0 for what is left of a socket that was closed, whose user is said to be 0 as well.
const INODE: usize = HEADER + 68;
/// Where a question has the two ports, and where an answer has them.
const PORTS: Range<usize> = HEADER + 8..HEADER + 12;
const PORTS_THERE: Range<usize> = HEADER + 4..HEADER + 8;

/// How long a connection to ourselves may take.
const PATIENCE: Duration = Duration::from_secs(1);

/// Asks the kernel whose sockets are; `None` where it cannot be asked.
#[derive(Debug, Default)]
pub struct SocketOwners(Option<Mutex<Asking>>);

#[derive(Debug)]
struct Asking {
    socket: OwnedFd,
    /// The number of the last question.
    last: u32,
}

impl SocketOwners {
    /// Before a sandbox, which makes no socket. Where the kernel has no module for such questions, each makes it look for one: it
    /// is asked whose a connection of our own is, and asked nothing else unless it knows.
    pub fn open() -> Self {
        let owners = Self::opened();
        let knows = || {
            let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).ok()?;
            let ours = listener.local_addr().ok()?;
            let own = TcpStream::connect_timeout(&ours, PATIENCE).ok()?;
            owners.of(own.local_addr().ok()?, ours)
        };
        if knows().is_some() { owners } else { Self::default() }
    }

    /// Whether the kernel says whose a connection is, so that one of which it says nothing is closed already.
    pub fn are_known(&self) -> bool {
        self.0.is_some()
    }

    fn opened() -> Self {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = socket_with(AddressFamily::NETLINK, SocketType::DGRAM, flags, Some(SOCK_DIAG));
        let connected = socket.and_then(|socket| {
            connect(&socket, &SocketAddrNetlink::new(0, 0))?;
            Ok(socket)
        });
        let asking = |socket| Mutex::new(Asking { socket, last: 0 });
        Self(connected.ok().map(asking))
    }

    /// The user whose socket is at `peer`, connected to `ours`. `None`: the kernel does not say, or it is closed already. Each
    /// refused request may ask: where the kernel answers, that takes less than the request did.
    pub fn of(&self, peer: SocketAddr, ours: SocketAddr) -> Option<u32> {
        let (SocketAddr::V4(peer), SocketAddr::V4(ours)) = (peer, ours) else { return None };
        let mut asking = self.0.as_ref()?.lock().unwrap_or_else(PoisonError::into_inner);
        let Asking { socket, last } = &mut *asking;
        *last = last.wrapping_add(1);
        let question = question(*last, peer, ours);
        send(&*socket, &question, SendFlags::DONTWAIT).ok()?;
        // The kernel answers before it is done with the question. What is left of an earlier one is passed over.
        let mut answer = [0; 1024];
        while let Ok((read, _)) = recv(&*socket, &mut answer, RecvFlags::DONTWAIT) {
            if let Some(uid) = answer.get(..read).and_then(|answer| uid(answer, *last, &question)) {
                return uid;
            }
        }
        None
    }
}

/// `nlmsghdr` and `inet_diag_req_v2`: the one TCP socket whose own address is `peer`.
fn question(number: u32, peer: SocketAddrV4, ours: SocketAddrV4) -> Vec<u8> {
    let mut question = Vec::with_capacity(72);
    question.extend(72u32.to_ne_bytes());
    question.extend([BY_FAMILY, REQUEST].into_iter().flat_map(u16::to_ne_bytes));
    question.extend([number, 0].into_iter().flat_map(u32::to_ne_bytes));
    question.extend([INET, TCP, 0, 0]);
    // In whatever state.
    question.extend(u32::MAX.to_ne_bytes());
    question.extend([peer.port(), ours.port()].into_iter().flat_map(u16::to_be_bytes));
    for address in [peer.ip(), ours.ip()] {
        question.extend(address.octets());
        question.extend([0; 12]);
    }
    // On whatever device, without a cookie.
    question.extend(0u32.to_ne_bytes());
    question.extend([0xff; 8]);
    question
}

/// The user id in an answer: `None` where it is that of another question, `Some(None)` where it says no. Where there is no such
/// connection, the kernel answers with whoever listens at that address; of one that its user closed it says user 0.
#[expect(clippy::option_option, reason = "no answer; an answer that names nobody; a user")]
fn uid(answer: &[u8], number: u32, question: &[u8]) -> Option<Option<u32>> {
    let u32_at = |at: usize| Some(u32::from_ne_bytes(answer.get(at..at + 4)?.try_into().ok()?));
    let kind = u16::from_ne_bytes(answer.get(4..6)?.try_into().ok()?);
    let is_asked = answer.get(PORTS_THERE).is_some_and(|ports| Some(ports) == question.get(PORTS));
    let is_open = u32_at(INODE).is_some_and(|inode| inode != 0);
    (u32_at(8)? == number).then(|| if kind == BY_FAMILY && is_asked && is_open { u32_at(UID) } else { None })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_says_whose_a_connection_is_and_an_answer_to_another_question_is_none() {
        let listener = TcpListener::bind(("127.0.0.1", 0)).expect("a port");
        let ours = listener.local_addr().expect("an address");
        let client = TcpStream::connect(ours).expect("connects");
        let peer = client.local_addr().expect("an address");
        let owners = SocketOwners::open();
        let own = rustix::process::geteuid().as_raw();
        // A kernel without the module says nothing, and then nobody is named.
        let found = owners.of(peer, ours);
        assert!(found.is_none_or(|uid| uid == own), "{found:?}");
        if found.is_none() {
            eprintln!("this kernel does not say whose a TCP socket is");
        }
        assert_eq!(owners.of(ours, ours), None, "not whoever listens there");
        assert_eq!(owners.of(peer, ours), found, "and it goes on");
        // Left half open: the kernel keeps it, and it is nobody's any more.
        drop(client);
        assert_eq!(owners.of(peer, ours), None, "closed");
        let client = TcpStream::connect(ours).expect("connects");
        let again = client.local_addr().expect("an address");
        assert_eq!(owners.of(again, ours), found, "the control");
        // Whoever is refused much makes nobody unknown.
        assert!((0..5000).all(|_| owners.of(again, ours) == found));
        assert_eq!(SocketOwners::default().of(peer, ours), None);

        let mut answer = vec![0; 128];
        answer[4..6].copy_from_slice(&BY_FAMILY.to_ne_bytes());
        answer[8..12].copy_from_slice(&7u32.to_ne_bytes());
        answer[UID..UID + 4].copy_from_slice(&1000u32.to_ne_bytes());
        answer[INODE..INODE + 4].copy_from_slice(&5u32.to_ne_bytes());
        let (SocketAddr::V4(peer), SocketAddr::V4(ours)) = (peer, ours) else { panic!("not IPv4") };
        let question = question(7, peer, ours);
        answer[PORTS_THERE].copy_from_slice(&question[PORTS]);
        let said = |answer: &[u8], number| uid(answer, number, &question);
        assert_eq!((said(&answer, 7), said(&answer, 8)), (Some(Some(1000)), None));
        assert_eq!((said(&answer[..UID + 3], 7), said(&answer[..9], 7)), (Some(None), None));
        let mut closed = answer.clone();
        closed[INODE..INODE + 4].fill(0);
        assert_eq!(said(&closed, 7), Some(None), "of a socket that was closed");
        let mut other = answer.clone();
        other[PORTS_THERE.start] ^= 1;
        assert_eq!(said(&other, 7), Some(None), "of another connection");
        answer[4] = 2;
        assert_eq!(said(&answer, 7), Some(None), "an error");
    }
}
