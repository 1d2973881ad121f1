//! A listening socket on loopback: the asked port, the next ones, any; or an address of its own.

use std::{
    io,
    net::{Ipv4Addr, SocketAddr, TcpListener},
};

/// Ports that are tried after one that is taken, before any free one is.
const NEXT: u16 = 20;

/// Connections that wait to be accepted. The port is everybody's to connect to, and what comes when there is no room any more
/// is dropped, and tried again after a second, two, four: whoever has a token would wait for chance beside those who fill
/// the 128 of the standard library. With room, they are accepted in their order. The kernel has a bound of its own below it.
const WAITING: i32 = 1 << 14;

/// Listens on this port of 127.0.0.1.
///
/// # Errors
/// As listen(2).
pub fn listen(port: u16) -> io::Result<TcpListener> {
    listen_at((Ipv4Addr::LOCALHOST, port).into())
}

fn listen_at(address: SocketAddr) -> io::Result<TcpListener> {
    let listener = TcpListener::bind(address)?;
    rustix::net::listen(&listener, WAITING)?;
    Ok(listener)
}

/// Listens on this port of 127.0.0.1, or another one. Port 0 is any free one.
///
/// # Errors
/// As listen(2), where no port at all can be had.
pub fn bind(port: u16) -> io::Result<TcpListener> {
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

/// The first two bytes of the addresses that [`listen_for_run`] takes one of, 127.82.0.0/16, and its port there. A profile grants
/// them as a whole: each listener has a token of its own, and nothing else listens at this port, unless it does at every address.
const RUNS: [u8; 2] = [127, 82];
/// See [`RUNS`].
pub const RUN_PORT: u16 = 4180;

/// Listens at an address of this process's own.
///
/// # Errors
/// As listen(2), where every address is taken.
pub fn listen_for_run() -> io::Result<TcpListener> {
    let first = std::process::id() as u16;
    let mut last = io::Error::from(io::ErrorKind::AddrInUse);
    for number in (0..=u16::MAX).map(|next| first.wrapping_add(next)) {
        let [high, low] = number.to_be_bytes();
        match listen_at((Ipv4Addr::new(RUNS[0], RUNS[1], high, low), RUN_PORT).into()) {
            Ok(listener) => return Ok(listener),
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => last = error,
            Err(error) => return Err(error),
        }
    }
    Err(last)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{net::TcpStream, time::Duration};

    #[test]
    fn each_run_has_an_address_of_its_own() {
        let (one, other) = (listen_for_run().unwrap(), listen_for_run().unwrap());
        let (one, other) = (one.local_addr().unwrap(), other.local_addr().unwrap());
        assert!(one.ip() != other.ip() && one.port() == other.port());
        assert!(one.to_string().starts_with("127.82.") && one.port() == RUN_PORT);
    }

    #[test]
    fn a_crowd_that_waits_leaves_room_for_the_next() {
        let listener = bind(0).unwrap();
        let address = listener.local_addr().unwrap();
        // Whoever finds no room is not refused but left to try again: the first time after a second.
        let wait = Duration::from_secs(60);
        let crowd: Vec<_> = (0..400).map(|_| TcpStream::connect_timeout(&address, wait).unwrap()).collect();
        let mut last = None;
        for _ in &crowd {
            last = Some(listener.accept().unwrap().1);
        }
        assert_eq!(last.unwrap(), crowd.last().unwrap().local_addr().unwrap(), "in their order");
    }
}
