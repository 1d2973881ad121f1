//! The end of a connection that nobody read, for a thread that all who connect wait for.
//!
//! Whoever connects may send descriptors with any byte. Those that nobody received are closed with the socket, by the thread
//! that closes that. The last close of a TCP socket whose peer reads nothing takes as long as `SO_LINGER` says, which is its
//! sender's to set: unless the thread is ending (`PF_EXITING`, inet_release in net/ipv4/af_inet.c). So such a connection is
//! given to a thread that ends with it, whose table of descriptors has nothing else. None of what was sent is received: the
//! close of what is in a table waits for its file system, that of what is not does not.

use nix::{
    sched::{CloneFlags, unshare},
    unistd::close,
};
use ringfence_wire::rights;
use rustix::net::{self, RecvAncillaryBuffer, RecvFlags, ReturnFlags, SendFlags, recvmsg};
use std::{
    io::{self, IoSlice, IoSliceMut, Read, Write},
    mem,
    net::Shutdown,
    os::{
        fd::{AsFd, AsRawFd, RawFd},
        unix::net::UnixStream,
    },
    sync::{Mutex, OnceLock, PoisonError},
    thread,
    time::Duration,
};

/// Unread bytes that are looked at for descriptors.
const LOOKED_AT: usize = 64 << 10;
/// Descriptors that may be open when the first connection is ended, of which the thread that ends them keeps no copy.
const OPEN_BEFORE: RawFd = 4096;
/// How long to rest where the system has no room for one more thread: it passes.
const REST: Duration = Duration::from_millis(100);
/// Bytes of the stack of each.
const STACK: usize = 128 << 10;

/// Ends a connection, and waits for nothing that its peer decides. It has to be the last descriptor of it.
pub fn discard(stream: UnixStream) {
    // Nothing is added to it from here on.
    let _ = stream.shutdown(Shutdown::Both);
    if has_descriptors(&stream) {
        give(stream);
    }
}

/// Whether descriptors may be left in it.
fn has_descriptors(stream: &UnixStream) -> bool {
    let look = |into: &mut [u8], flags: RecvFlags| {
        let flags = flags | RecvFlags::PEEK | RecvFlags::DONTWAIT;
        recvmsg(stream, &mut [IoSliceMut::new(into)], &mut RecvAncillaryBuffer::default(), flags)
    };
    // A look ends before a byte that is out of band, and with the first descriptors.
    look(&mut [0_u8; 1], RecvFlags::OOB).is_ok()
        || look(&mut vec![0_u8; LOOKED_AT], RecvFlags::empty())
            .is_ok_and(|seen| seen.bytes >= LOOKED_AT || seen.flags.contains(ReturnFlags::CTRUNC))
}

/// Gives a connection to the threads that end them, which are started with the first.
fn give(stream: UnixStream) {
    static ENDER: OnceLock<Mutex<UnixStream>> = OnceLock::new();
    let ender = loop {
        match ENDER.get() {
            Some(ender) => break ender,
            None => match start() {
                // Another thread's may have been first: this one's ends then.
                Ok(ender) => drop(ENDER.set(Mutex::new(ender))),
                Err(error) => {
                    tracing::warn!("a connection cannot be ended: no thread can be started: {error}");
                    thread::sleep(REST);
                }
            },
        }
    };
    let mut ender = ender.lock().unwrap_or_else(PoisonError::into_inner);
    while let Err(error) = rights::send(&*ender, &[IoSlice::new(&[0])], &[stream.as_fd()], SendFlags::empty())
    {
        tracing::warn!("a connection cannot be ended: {error}");
        thread::sleep(REST);
    }
    drop(stream);
    // Whoever has received it waits until it is the only one that has it.
    while let Err(error) = ender.write_all(&[1]) {
        tracing::warn!("a connection cannot be ended: {error}");
        thread::sleep(REST);
    }
}

/// Starts the thread that has one thread after the other end what is sent to it.
fn start() -> io::Result<UnixStream> {
    let (ours, theirs) = UnixStream::pair()?;
    thread::Builder::new().name("closing".into()).stack_size(STACK).spawn(move || {
        // A table of its own from here on, in which the other numbers stand for nothing that anybody uses.
        while unshare(CloneFlags::CLONE_FILES).is_err() {
            thread::sleep(REST);
        }
        for other in (0..OPEN_BEFORE).filter(|&other| other != theirs.as_raw_fd()) {
            let _ = close(other);
        }
        loop {
            match net::recv(&theirs, &mut [0], RecvFlags::PEEK) {
                Ok((0, _)) => return,
                Ok(_) => {}
                Err(_) => thread::sleep(REST),
            }
            let ended = thread::scope(|scope| {
                let thread = thread::Builder::new().name("closing".into()).stack_size(STACK);
                thread
                    .spawn_scoped(scope, || end_next(&theirs))
                    .is_ok_and(|thread| matches!(thread.join(), Ok(Ok(()))))
            });
            if !ended {
                thread::sleep(REST);
            }
        }
    })?;
    Ok(ours)
}

/// Takes the next connection into a table that ends with this thread.
fn end_next(sent: &UnixStream) -> io::Result<()> {
    unshare(CloneFlags::CLONE_FILES)?;
    let received = rights::receive(sent, &mut [0], RecvFlags::empty())?;
    let mut only_here = sent;
    only_here.read_exact(&mut [0])?;
    // Closed before the thread ends, they would be closed by one that is not ending.
    mem::forget(received);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::net::sockopt;
    use std::{
        fs,
        net::{TcpListener, TcpStream},
        time::Instant,
    };

    /// A TCP socket whose close takes ten minutes, and its peer, which reads nothing.
    fn lingering() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let socket = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (peer, _) = listener.accept().unwrap();
        socket.set_nonblocking(true).unwrap();
        while (&socket).write(&[0; 64 << 10]).is_ok() {}
        sockopt::set_socket_linger(&socket, Some(Duration::from_secs(600))).unwrap();
        (socket, peer)
    }

    fn send(to: &UnixStream, what: impl AsFd, flags: SendFlags) -> bool {
        rights::send(to, &[IoSlice::new(b"!")], &[what.as_fd()], flags).is_ok()
    }

    /// Threads of this name.
    fn threads(name: &str) -> usize {
        let tasks = fs::read_dir("/proc/self/task").unwrap();
        let names = tasks.filter_map(|task| fs::read_to_string(task.unwrap().path().join("comm")).ok());
        names.filter(|one| one.trim() == name).count()
    }

    fn until(what: &str, holds: impl Fn() -> bool) {
        let begun = Instant::now();
        while !holds() {
            assert!(begun.elapsed() < Duration::from_secs(120), "{what}: not within two minutes");
            thread::sleep(Duration::from_millis(10));
        }
    }

    /// What is sent, the peer of the TCP socket in it, and how: the connection is over at once, no thread waits in its end, and
    /// the socket is closed.
    fn is_over(sent: impl AsFd, mut peer: TcpStream, flags: SendFlags) {
        let (mut a, b) = UnixStream::pair().unwrap();
        a.write_all(b"some").unwrap();
        assert!(!has_descriptors(&b), "the control");
        if !send(&a, &sent, flags) {
            assert!(
                flags.contains(SendFlags::OOB),
                "only a kernel that sends nothing out of band here refuses"
            );
            return;
        }
        drop(sent);
        assert!(has_descriptors(&b));
        discard(b);
        assert!(a.write_all(b"more").is_err());
        // Its end, or that not all was read.
        assert!(!matches!(a.read(&mut [0]), Ok(1..)));
        until("only the first of the threads is left", || threads("closing") == 1);
        peer.set_read_timeout(Some(Duration::from_secs(120))).unwrap();
        io::copy(&mut peer, &mut io::sink()).unwrap();
    }

    #[test]
    fn what_nobody_read_holds_up_nobody_who_ends_a_connection() {
        for flags in [SendFlags::empty(), SendFlags::OOB] {
            let (socket, peer) = lingering();
            is_over(socket, peer, flags);
            // One within the queue of another, which ends with it.
            let ((socket, peer), (c, d)) = (lingering(), UnixStream::pair().unwrap());
            assert!(send(&c, &socket, SendFlags::empty()));
            drop((socket, c));
            is_over(d, peer, flags);
        }
    }

    #[test]
    fn the_last_close_of_such_a_socket_is_slow_elsewhere() {
        let (a, b) = UnixStream::pair().unwrap();
        let (socket, peer) = lingering();
        assert!(send(&a, &socket, SendFlags::empty()));
        drop(socket);
        let slow = thread::Builder::new().name("slow".into()).spawn(move || drop(b)).unwrap();
        thread::sleep(Duration::from_secs(1));
        assert!(!slow.is_finished(), "the test above shows nothing");
        // Its peer's end is its own.
        drop(peer);
        slow.join().unwrap();
    }
}
