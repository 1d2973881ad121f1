//! Whoever connects to a socket of the auditor's, until there is something to read.
//!
//! A connection has a thread from its first byte on, and threads are used again. Each start and each end of one changes the
//! process's memory map, for which all others that do wait, and so would whoever is next in the queue of those who connect:
//! that is one queue for everybody. So who opens hundreds of connections and says nothing, and opens them again as fast as
//! they are closed, costs that thread a few system calls for each.

mod threads;

use nix::{
    errno::Errno,
    fcntl::{FcntlArg, OFlag, fcntl},
    sys::{
        epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout},
        socket::{MsgFlags, getsockopt, recv, sockopt::PeerCredentials},
    },
};
use ringfence_base::{
    closing::discard,
    error::chain,
    precedence,
    quota::{Permit, Permits},
};
use ringfence_wire::{ending::drain, frame::FrameError};
use std::{
    collections::BTreeMap,
    io,
    net::Shutdown,
    os::{
        fd::AsRawFd,
        unix::net::{UnixListener, UnixStream},
    },
    sync::Arc,
    thread,
    time::{Duration, Instant},
};
use threads::Threads;

/// Connections that are taken before those are looked at that say something.
const AT_ONCE: usize = 64;
/// Of those, how many are looked at before more are taken. Each that is taken may end another one: were fewer looked at, those
/// that were ended would keep their descriptors.
const LOOKED_AT: usize = 2 * AT_ONCE;
/// The listener's number; those of connections come after it.
const LISTENER: u64 = 0;
/// How long to rest where the system has no room for one more: it passes.
const REST: Duration = Duration::from_millis(100);

/// Who connected, by the kernel's word.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Peer {
    /// Its user.
    pub(crate) uid: u32,
    /// Its process.
    pub(crate) pid: i32,
}

/// What is served on a socket.
pub(crate) trait Service: Send + Sync + 'static {
    /// Its name, as that of its threads.
    const NAME: &'static str;
    /// Bytes of the stack of each.
    const STACK: usize;
    /// How long a peer may say nothing before its connection is closed.
    const SILENCE: Duration;

    /// How many may be connected.
    fn permits(&self) -> &Permits;

    /// A connection was ended, because another one needs its place.
    fn evicted(&self, peer: Peer);

    /// There is no place for this connection. Says so without waiting.
    fn turned_away(&self, peer: Peer, stream: UnixStream);

    /// Serves a connection, on a thread of its own. That its peer closed it is not logged.
    fn converse(self: Arc<Self>, peer: Peer, stream: UnixStream, permit: &Permit) -> Result<(), FrameError>;
}

/// A connection of which nothing was read yet.
struct Silent {
    peer: Peer,
    stream: UnixStream,
    permit: Permit,
    until: Instant,
}

impl Silent {
    fn end(self) {
        // The permit has another descriptor of it, by which others end it.
        drop(self.permit);
        discard(self.stream);
    }
}

/// One socket.
struct Accepting<S: Service> {
    listener: UnixListener,
    service: Arc<S>,
    epoll: Epoll,
    /// By number: in the order in which they came, and in which their time is up.
    silent: BTreeMap<u64, Silent>,
    last: u64,
    threads: Threads<Silent>,
}

/// Serves a socket until the process ends.
///
/// # Errors
/// As epoll(7) and pthread_create(3).
pub(crate) fn start<S: Service>(listener: UnixListener, service: Arc<S>) -> io::Result<()> {
    // Not as the standard library does it: the auditor's system calls do not include ioctl(2).
    let flags = OFlag::from_bits_retain(fcntl(&listener, FcntlArg::F_GETFL)?);
    fcntl(&listener, FcntlArg::F_SETFL(flags | OFlag::O_NONBLOCK))?;
    let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
    epoll.add(&listener, EpollEvent::new(EpollFlags::EPOLLIN, LISTENER))?;
    let shared = Arc::clone(&service);
    let threads = Threads::new(S::NAME, S::STACK, move |Silent { peer, stream, permit, .. }| {
        let rest = stream.try_clone();
        match Arc::clone(&shared).converse(peer, stream, &permit) {
            Ok(()) | Err(FrameError::Closed) => {}
            Err(error) => {
                tracing::debug!("a connection to the {} socket ended: {}", S::NAME, chain(&error))
            }
        }
        // Whoever is taken in its place may have the last descriptor of it: what it has not read is not left to that thread. Its
        // place is given back when this has ended, however long that takes.
        if let Ok(rest) = rest {
            drain(&rest);
        }
        drop(permit);
    });
    let accepting = Accepting { listener, service, epoll, silent: BTreeMap::new(), last: LISTENER, threads };
    thread::Builder::new().name(S::NAME.into()).spawn(move || {
        // Whoever connects waits for this thread, behind all who came before.
        precedence::first();
        accepting.run()
    })?;
    Ok(())
}

impl<S: Service> Accepting<S> {
    fn run(mut self) {
        let mut events = [EpollEvent::empty(); LOOKED_AT];
        loop {
            let count = match self.epoll.wait(&mut events, self.patience()) {
                Ok(count) => count,
                Err(Errno::EINTR) => continue,
                Err(error) => {
                    tracing::warn!("waiting for connections on the {} socket failed: {error}", S::NAME);
                    thread::sleep(REST);
                    continue;
                }
            };
            for event in &events[..count] {
                match event.data() {
                    LISTENER => self.accept(),
                    number => self.heard(number),
                }
            }
            let now = Instant::now();
            while let Some((&number, _)) = self.silent.first_key_value().filter(|(_, one)| one.until <= now) {
                self.end(number);
            }
        }
    }

    /// Until the next one has been silent for too long.
    fn patience(&self) -> EpollTimeout {
        let Some((_, first)) = self.silent.first_key_value() else { return EpollTimeout::NONE };
        // Not before its time, which would be asked for again and again.
        let left = first.until.saturating_duration_since(Instant::now()).as_millis() + 1;
        EpollTimeout::try_from(left).unwrap_or(EpollTimeout::MAX)
    }

    fn accept(&mut self) {
        for _ in 0..AT_ONCE {
            match self.listener.accept() {
                Ok((stream, _)) => self.admit(stream),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(error) => {
                    tracing::warn!("accepting a connection on the {} socket failed: {error}", S::NAME);
                    thread::sleep(REST);
                    return;
                }
            }
        }
    }

    /// Gives a connection its place, or none.
    fn admit(&mut self, stream: UnixStream) {
        let Ok(peer) = getsockopt(&stream, PeerCredentials) else { return discard(stream) };
        let peer = Peer { uid: peer.uid(), pid: peer.pid() };
        let Ok(spare) = stream.try_clone() else { return discard(stream) };
        let service = Arc::downgrade(&self.service);
        let end = move || {
            let _ = spare.shutdown(Shutdown::Both);
            if let Some(service) = service.upgrade() {
                service.evicted(peer);
            }
        };
        let Some(permit) = self.service.permits().take(peer.uid, end) else {
            if let Ok(answers) = stream.try_clone() {
                self.service.turned_away(peer, answers);
            }
            return discard(stream);
        };
        self.last += 1;
        let event = EpollEvent::new(EpollFlags::EPOLLIN, self.last);
        if let Err(error) = self.epoll.add(&stream, event) {
            tracing::warn!("a connection to the {} socket cannot be watched: {error}", S::NAME);
            drop(permit);
            return discard(stream);
        }
        let until = Instant::now() + S::SILENCE;
        self.silent.insert(self.last, Silent { peer, stream, permit, until });
    }

    /// There is something to read, or nothing any more.
    fn heard(&mut self, number: u64) {
        let Some(silent) = self.take(number) else { return };
        let flags = MsgFlags::MSG_PEEK | MsgFlags::MSG_DONTWAIT;
        if matches!(recv(silent.stream.as_raw_fd(), &mut [0], flags), Ok(1..)) {
            if let Err(silent) = self.threads.give(silent) {
                silent.end();
            }
        } else {
            silent.end();
        }
    }

    /// Ends a connection that was silent for too long.
    fn end(&mut self, number: u64) {
        if let Some(silent) = self.take(number) {
            silent.end();
        }
    }

    /// Takes a connection out. Its socket has a second descriptor, so that its end alone would not.
    fn take(&mut self, number: u64) -> Option<Silent> {
        let silent = self.silent.remove(&number)?;
        let _ = self.epoll.delete(&silent.stream);
        Some(silent)
    }
}

#[cfg(test)]
mod tests;
