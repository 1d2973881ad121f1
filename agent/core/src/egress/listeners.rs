//! The sockets that an egress worker serves: on loopback of its container's network namespace. The core keeps them for as long as
//! the container may reach names, whatever becomes of the worker.

use super::EgressError;
use ringfence_common::egress::FLOWS_EACH;
use ringfence_process::peer::{PeerError, alive, pid_of};
use ringfence_sandbox::caps;
use ringfence_wire::egress::MOST_ASKING;
use rustix::{
    fs::{Mode, OFlags, open, stat},
    io::Errno,
    net::{AddressFamily, SocketFlags, SocketType, bind, listen, socket_with, sockopt},
    thread::{
        LinkNameSpaceType, ThreadNameSpaceType, move_into_link_name_space, move_into_thread_name_spaces,
    },
};
use serde::{Deserialize, Serialize};
use std::{
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    thread,
};

/// Connections that wait for a worker; the namespace's `somaxconn` may be less.
const WAITING: i32 = 512;
// Of none of them, nor of those that a worker asks about, does the kernel forget whose it is: there are more places than that.
const _: () = assert!(WAITING as usize + 1 + MOST_ASKING + 64 <= FLOWS_EACH);
/// Connections that wait for the resolver.
const WAITING_DNS: i32 = 128;
/// This thread's network namespace.
const OWN: &str = "/proc/thread-self/ns/net";
/// What the thread that enters a namespace needs.
const STACK: usize = 128 << 10;

/// A network namespace, as /proc names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct NetNamespace {
    dev: u64,
    ino: u64,
}

impl NetNamespace {
    /// That of the process behind a pidfd.
    ///
    /// # Errors
    /// As [`pid_of`]; /proc cannot be read.
    pub(crate) fn of(task: BorrowedFd<'_>) -> Result<Self, PeerError> {
        let path = format!("/proc/{}/ns/net", pid_of(task)?);
        let found = Self::at(&path);
        // Read by its number, which was its own if it is there still.
        if !alive(task) {
            return Err(PeerError::Gone);
        }
        found.map_err(|source| PeerError::Proc { path, source })
    }

    /// Whether it is that of this process, and of its workers. Where that cannot be told, it is another's: a container reaches less
    /// so.
    pub(super) fn is_own(&self) -> bool {
        Self::own().is_ok_and(|own| own == *self)
    }

    #[cfg(test)]
    pub(super) fn none() -> Self {
        Self { dev: 0, ino: 0 }
    }

    /// That of this thread.
    fn own() -> io::Result<Self> {
        Self::at(OWN)
    }

    fn at(path: &str) -> io::Result<Self> {
        let found = stat(path)?;
        Ok(Self { dev: found.st_dev, ino: found.st_ino })
    }
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Listeners {
    /// Where redirected connections go.
    pub(super) tcp: OwnedFd,
    /// The resolver on 127.0.0.1: UDP, TCP.
    pub(super) dns: (OwnedFd, OwnedFd),
    /// The same on ::1, where there is IPv6.
    pub(super) dns6: Option<(OwnedFd, OwnedFd)>,
    netns: NetNamespace,
    /// That namespace.
    place: OwnedFd,
}

impl Listeners {
    /// Opens them where the task behind a pidfd is. All of them, or none.
    ///
    /// # Errors
    /// [`EgressError::Namespace`], [`EgressError::Listen`].
    pub(super) fn open(task: BorrowedFd<'_>) -> Result<Self, EgressError> {
        let theirs = NetNamespace::of(task).map_err(io::Error::other).map_err(EgressError::Namespace)?;
        // By pidfd: the very process, or nobody.
        Self::there(theirs, || move_into_thread_name_spaces(task, ThreadNameSpaceType::NETWORK))
    }

    /// Others in the same namespace, whoever lives there: what a worker did to these is its last word.
    ///
    /// # Errors
    /// As [`Self::open`].
    pub(super) fn again(&self) -> Result<Self, EgressError> {
        let place = self.place.as_fd();
        Self::there(self.netns, || move_into_link_name_space(place, Some(LinkNameSpaceType::Network)))
    }

    fn there(
        theirs: NetNamespace,
        enter: impl FnOnce() -> rustix::io::Result<()> + Send,
    ) -> Result<Self, EgressError> {
        if theirs.is_own() {
            return Self::here();
        }
        // A namespace is a thread's: this one ends with what it made.
        thread::scope(|scope| {
            let entering =
                thread::Builder::new().name("netns".into()).stack_size(STACK).spawn_scoped(scope, || {
                    caps::wake(caps::ENTERING).map_err(io::Error::other).map_err(EgressError::Namespace)?;
                    enter().map_err(|errno| EgressError::Namespace(errno.into()))?;
                    Self::here()
                });
            let entered = entering.map_err(EgressError::Namespace)?.join();
            entered.unwrap_or_else(|_| Err(EgressError::Namespace(io::Error::other("the thread panicked"))))
        })
    }

    fn here() -> Result<Self, EgressError> {
        let opened = || {
            Ok(Self {
                tcp: socket(Ipv4Addr::LOCALHOST.into(), Some(WAITING))?,
                dns: pair(Ipv4Addr::LOCALHOST.into())?,
                dns6: match pair(Ipv6Addr::LOCALHOST.into()) {
                    Ok(pair) => Some(pair),
                    Err(Errno::AFNOSUPPORT | Errno::ADDRNOTAVAIL) => None,
                    Err(error) => return Err(error),
                },
                netns: NetNamespace::own()
                    .map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))?,
                place: open(OWN, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?,
            })
        };
        opened().map_err(|errno: Errno| EgressError::Listen(errno.into()))
    }

    /// The namespace that they are of.
    pub(super) fn netns(&self) -> NetNamespace {
        self.netns
    }

    /// Whether that is this process's own, and its workers'.
    pub(super) fn are_here(&self) -> bool {
        self.netns.is_own()
    }

    /// In the order in which a worker is handed them.
    pub(super) fn each(&self) -> Vec<BorrowedFd<'_>> {
        let dns6 = self.dns6.iter().flat_map(|(udp, tcp)| [udp, tcp]);
        [&self.tcp, &self.dns.0, &self.dns.1].into_iter().chain(dns6).map(AsFd::as_fd).collect()
    }
}

/// The resolver's sockets: UDP, TCP.
fn pair(at: IpAddr) -> rustix::io::Result<(OwnedFd, OwnedFd)> {
    Ok((socket(at, None)?, socket(at, Some(WAITING_DNS))?))
}

/// A socket at some port of an address of loopback: for streams, of which so many wait, or for datagrams. Nobody else can have the
/// port while it is there.
fn socket(at: IpAddr, waiting: Option<i32>) -> rustix::io::Result<OwnedFd> {
    let family = if at.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let kind = if waiting.is_some() { SocketType::STREAM } else { SocketType::DGRAM };
    let socket = socket_with(family, kind, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK, None)?;
    // A namespace whose loopback is not up yet has no such address.
    if at.is_ipv4() {
        sockopt::set_ip_freebind(&socket, true)?;
    } else {
        sockopt::set_ipv6_freebind(&socket, true)?;
    }
    bind(&socket, &SocketAddr::new(at, 0))?;
    if let Some(waiting) = waiting {
        listen(&socket, waiting)?;
    }
    Ok(socket)
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use rustix::net::getsockname;
    use std::{
        io::{BufRead, BufReader},
        os::unix::process::CommandExt,
        process::{Child, Command, Stdio},
        time::{Duration, Instant},
    };

    pub(crate) fn pidfd_of(child: &Child) -> OwnedFd {
        crate::state::tests::pidfd(child.id())
    }

    pub(crate) fn at(socket: &OwnedFd) -> SocketAddr {
        SocketAddr::try_from(getsockname(socket).unwrap()).unwrap()
    }

    #[test]
    fn they_are_on_loopback_and_nobody_else_s() {
        let own = crate::state::tests::pidfd(std::process::id());
        let listeners = Listeners::open(own.as_fd()).unwrap();
        assert_eq!(listeners.netns(), NetNamespace::of(own.as_fd()).unwrap());
        assert!(listeners.are_here());
        let sockets = listeners.each();
        assert_eq!(sockets.len(), if listeners.dns6.is_some() { 5 } else { 3 });
        let addresses: Vec<SocketAddr> =
            sockets.iter().map(|fd| at(&fd.try_clone_to_owned().unwrap())).collect();
        assert!(addresses.iter().all(|at| at.ip().is_loopback() && at.port() != 0), "{addresses:?}");
        assert!(
            addresses[..3].iter().all(SocketAddr::is_ipv4) && addresses[3..].iter().all(SocketAddr::is_ipv6)
        );
        let taken = std::net::TcpListener::bind(addresses[0]).unwrap_err();
        assert_eq!(taken.kind(), io::ErrorKind::AddrInUse);
        let connected = std::net::TcpStream::connect(addresses[0]).unwrap();
        drop(connected);
        drop(listeners);
        // A child that another test starts has a copy for a moment.
        let begun = Instant::now();
        while let Err(error) = std::net::TcpListener::bind(addresses[0]) {
            assert!(begun.elapsed() < Duration::from_secs(120), "the control: it is free: {error}");
            thread::sleep(Duration::from_millis(10));
        }
    }

    #[test]
    fn they_are_where_the_task_is() {
        // Its loopback is not up: nobody brought it up.
        let mut command = Command::new("unshare");
        command.args(["-n", "sh", "-c", "echo there; exec sleep 600"]);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null()).process_group(0);
        let mut child = command.spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        if line != "there\n" {
            // Who may not make one.
            child.wait().unwrap();
            return;
        }
        let task = pidfd_of(&child);
        let own = NetNamespace::own().unwrap();
        let listeners = Listeners::open(task.as_fd()).unwrap();
        assert_ne!(listeners.netns(), own);
        assert!(!listeners.are_here());
        assert_eq!(listeners.netns(), NetNamespace::of(task.as_fd()).unwrap());
        assert_eq!(NetNamespace::own().unwrap(), own, "this thread stayed where it was");
        let there = std::fs::read_to_string(format!("/proc/{}/net/tcp", child.id())).unwrap();
        for socket in [&listeners.tcp, &listeners.dns.1] {
            let listens = format!("0100007F:{:04X} 00000000:0000 0A", at(socket).port());
            assert!(there.contains(&listens), "{listens}: {there}");
        }
        child.kill().unwrap();
        child.wait().unwrap();
        // Where they were, though nobody is there any more.
        let again = listeners.again().unwrap();
        assert_eq!(again.netns(), listeners.netns());
        assert_ne!(at(&again.tcp), at(&listeners.tcp), "both are bound there");
        let gone = Listeners::open(task.as_fd()).unwrap_err();
        assert!(matches!(gone, EgressError::Namespace(_)), "{gone}");
    }
}
