//! A listening socket on loopback: the asked port, the next ones, any.

use std::{
    io,
    net::{Ipv4Addr, SocketAddr, TcpListener},
};

/// Ports that are tried after one that is taken, before any free one is.
const NEXT: u16 = 20;

/// Listens on 127.0.0.1. Port 0 is any free one.
///
/// # Errors
/// As listen(2), where no port at all can be had.
pub(crate) fn bind(port: u16) -> io::Result<TcpListener> {
    let listen = |port| TcpListener::bind(SocketAddr::from((Ipv4Addr::LOCALHOST, port)));
    if port == 0 {
        return listen(0);
    }
    let ports = (port..=port.saturating_add(NEXT)).chain([0]);
    let mut last = io::Error::from(io::ErrorKind::AddrInUse);
    for port in ports {
        match listen(port) {
            Ok(listener) => return Ok(listener),
            Err(error) => last = error,
        }
    }
    Err(last)
}
