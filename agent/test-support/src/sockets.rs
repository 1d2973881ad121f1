//! Sockets that are slow to close.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails there")]

use rustix::net::sockopt;
use std::{
    io::Write,
    net::{TcpListener, TcpStream},
    time::Duration,
};

/// A TCP socket whose last close takes this long, and its peer, which reads nothing.
pub fn lingering(time: Duration) -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let socket = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (peer, _) = listener.accept().unwrap();
    socket.set_nonblocking(true).unwrap();
    while (&socket).write(&[0; 64 << 10]).is_ok() {}
    sockopt::set_socket_linger(&socket, Some(time)).unwrap();
    (socket, peer)
}
