//! The end of a connection of which not everything was read.
//!
//! Whoever connects may send descriptors with any byte. Those that nobody received are closed with the socket, by the thread
//! that closes that, and the last close of a TCP socket whose peer reads nothing takes as long as `SO_LINGER` says, which is
//! its sender's to set. A thread that others wait for must not be the one.

use crate::rights;
use rustix::net::{self, RecvFlags, sockopt};
use std::{net::Shutdown, os::unix::net::UnixStream};

/// Ends a connection, and has this thread close all that is left in it, however long that takes: it is its sender's own. Nothing is
/// received: the close of what is in the table of descriptors always asks its file system.
pub fn drain(stream: &UnixStream) {
    drain_by(stream, |left| Ok(net::recv(stream, left, RecvFlags::DONTWAIT)?.0));
}

/// The same where others wait for this thread: what is left is received, and lingers no more.
pub fn drain_all(stream: &UnixStream) {
    drain_by(stream, |left| Ok(rights::receive_all(stream, left, RecvFlags::DONTWAIT)?.bytes));
}

fn drain_by(stream: &UnixStream, mut receive: impl FnMut(&mut [u8]) -> rustix::io::Result<usize>) {
    let _ = stream.shutdown(Shutdown::Both);
    // A byte out of band would be passed over, and the kernel would close what is beside it.
    let _ = sockopt::set_socket_oobinline(stream, true);
    let mut left = [0; 16 << 10];
    while receive(&mut left).is_ok_and(|bytes| bytes > 0) {}
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        conn::Conn,
        frame::{self, MAX_FRAME},
    };
    use ringfence_test_support::sockets::lingering;
    use rustix::net::SendFlags;
    use std::{
        io::IoSlice,
        os::fd::AsFd,
        time::{Duration, Instant},
    };

    fn in_time(begun: Instant) {
        assert!(begun.elapsed() < Duration::from_secs(60), "{:?}", begun.elapsed());
    }

    #[test]
    fn no_descriptor_that_is_received_is_slow_to_close() {
        let begun = Instant::now();
        let limit = Duration::from_secs(20);
        let message = frame::framed(&frame::encode(&1).unwrap()).unwrap();
        // Where descriptors belong, and where nobody reads.
        let ways: [fn(&mut Conn); 2] = [
            |conn| assert_eq!(conn.receive_with_descriptors::<u32>().unwrap().0, 1),
            |conn| drain_all(conn.stream()),
        ];
        for way in ways {
            let (a, b) = UnixStream::pair().unwrap();
            let (socket, _peer) = lingering(Duration::from_secs(120));
            rights::send(&a, &[IoSlice::new(&message)], &[socket.as_fd()], SendFlags::empty()).unwrap();
            // The other end has the last of it.
            drop(socket);
            way(&mut Conn::new(b, limit, MAX_FRAME));
        }
        in_time(begun);
    }
}
