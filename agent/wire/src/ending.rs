//! The end of a connection of which not everything was read.
//!
//! Whoever connects may send descriptors with any byte. Those that nobody received are closed with the socket, by the thread
//! that closes that, and the last close of a TCP socket whose peer reads nothing takes as long as `SO_LINGER` says, which is
//! its sender's to set. A thread that all who connect wait for must not be the one.

use crate::rights;
use rustix::net::{RecvAncillaryBuffer, RecvFlags, ReturnFlags, recvmsg, sockopt};
use std::{io::IoSliceMut, net::Shutdown, os::unix::net::UnixStream, thread};

/// Unread bytes that are looked at for descriptors.
const LOOKED_AT: usize = 64 << 10;

/// Ends a connection without waiting: where descriptors may be left in it, another thread closes those.
pub fn discard(stream: UnixStream) {
    // Nothing is added to it from here on.
    let _ = stream.shutdown(Shutdown::Both);
    if has_descriptors(&stream) {
        let thread = thread::Builder::new().name("discard".into()).stack_size(128 << 10);
        let _ = thread.spawn(move || drain_all(&stream));
    }
}

/// Ends a connection, and has this thread close all that is left in it, however long that takes.
pub fn drain(stream: &UnixStream) {
    drain_by(stream, |left| rights::receive(stream, left, RecvFlags::DONTWAIT));
}

/// The same where others wait for this thread: what is left is received, and lingers no more.
pub fn drain_all(stream: &UnixStream) {
    drain_by(stream, |left| rights::receive_all(stream, left, RecvFlags::DONTWAIT));
}

fn drain_by(stream: &UnixStream, mut receive: impl FnMut(&mut [u8]) -> rustix::io::Result<rights::Received>) {
    let _ = stream.shutdown(Shutdown::Both);
    // A byte out of band would be passed over, and the kernel would close what is beside it.
    let _ = sockopt::set_socket_oobinline(stream, true);
    let mut left = [0; 16 << 10];
    while receive(&mut left).is_ok_and(|got| got.bytes > 0) {}
}

/// Whether descriptors may be left in it. They are not received here: then they would have to be closed.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        conn::Conn,
        frame::{self, MAX_FRAME},
    };
    use rustix::net::SendFlags;
    use std::{
        io::{IoSlice, Read, Write},
        net::{TcpListener, TcpStream},
        os::fd::AsFd,
        time::{Duration, Instant},
    };

    /// A TCP socket whose close takes two minutes, and its peer, which reads nothing.
    fn lingering() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let socket = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (peer, _) = listener.accept().unwrap();
        socket.set_nonblocking(true).unwrap();
        while (&socket).write(&[0; 64 << 10]).is_ok() {}
        sockopt::set_socket_linger(&socket, Some(Duration::from_secs(120))).unwrap();
        (socket, peer)
    }

    fn in_time(begun: Instant) {
        assert!(begun.elapsed() < Duration::from_secs(60), "{:?}", begun.elapsed());
    }

    #[test]
    fn no_descriptor_that_is_received_or_drained_is_slow_to_close() {
        let begun = Instant::now();
        let limit = Duration::from_secs(20);
        let message = frame::framed(&frame::encode(&1).unwrap()).unwrap();
        // Where descriptors belong, where none do, and where nobody reads.
        let ways: [fn(&mut Conn); 4] = [
            |conn| assert_eq!(conn.receive_with_descriptors::<u32>().unwrap().0, 1),
            |conn| assert_eq!(conn.receive::<u32>().unwrap(), 1),
            |conn| drain(conn.stream()),
            |conn| drain_all(conn.stream()),
        ];
        for way in ways {
            let (a, b) = UnixStream::pair().unwrap();
            let (socket, _peer) = lingering();
            rights::send(&a, &[IoSlice::new(&message)], &[socket.as_fd()], SendFlags::empty()).unwrap();
            // The other end has the last of it.
            drop(socket);
            way(&mut Conn::new(b, limit, MAX_FRAME));
        }
        in_time(begun);
    }

    #[test]
    fn what_nobody_read_holds_up_nobody_who_ends_a_connection() {
        let begun = Instant::now();
        for flags in [SendFlags::empty(), SendFlags::OOB] {
            let (mut a, b) = UnixStream::pair().unwrap();
            let (socket, _peer) = lingering();
            a.write_all(b"some").unwrap();
            assert!(!has_descriptors(&b), "the control");
            if rights::send(&a, &[IoSlice::new(b"!")], &[socket.as_fd()], flags).is_err() {
                // A kernel that sends nothing out of band here.
                sockopt::set_socket_linger(&socket, None).unwrap();
                continue;
            }
            drop(socket);
            assert!(has_descriptors(&b));
            discard(b);
            // It is over for its peer at once.
            assert!(a.write_all(b"more").is_err());
            assert_eq!(a.read(&mut [0]).unwrap(), 0);
        }
        in_time(begun);
    }
}
