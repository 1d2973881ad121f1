//! A listening socket on loopback: the asked port, the next ones, any; or one that is nobody else's for UDP either.

use std::{
    io,
    net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, UdpSocket},
};

/// Ports that are tried after one that is taken, before any free one is.
const NEXT: u16 = 20;

/// How often a free port is looked for that is free for UDP, too.
const TRIES: u32 = 64;

/// Connections that wait to be accepted. The port is everybody's to connect to, and what comes when there is no room any more
/// is dropped, and tried again after a second, two, four: whoever has a token would wait for chance beside those who fill
/// the 128 of the standard library. With room, they are accepted in their order. The kernel has a bound of its own below it.
const WAITING: i32 = 1 << 14;

/// Whether a host, as it stands in an address, is this machine's own loopback: `localhost`, `127.0.0.1` and its like, `[::1]`. A
/// name that only begins or ends so is none.
pub fn is_name(host: &str) -> bool {
    let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
    host == "localhost"
        || match bare {
            Some(bare) => bare.parse::<Ipv6Addr>().is_ok_and(|ip| ip.is_loopback()),
            None => host.parse::<Ipv4Addr>().is_ok_and(|ip| ip.is_loopback()),
        }
}

/// Listens on this port of 127.0.0.1.
///
/// # Errors
/// As listen(2).
pub fn listen(port: u16) -> io::Result<TcpListener> {
    let listener = TcpListener::bind(SocketAddr::from((Ipv4Addr::LOCALHOST, port)))?;
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

/// Listens on a free port of 127.0.0.1 that is the caller's for UDP, too: a profile grants addresses whatever is spoken there, and
/// nobody else's may be behind one.
///
/// # Errors
/// As listen(2); also where no port can be had for both.
pub fn listen_alone() -> io::Result<(TcpListener, UdpSocket)> {
    let mut last = io::Error::from(io::ErrorKind::AddrInUse);
    for _ in 0..TRIES {
        let listener = listen(0)?;
        match UdpSocket::bind(listener.local_addr()?) {
            Ok(beside) => return Ok((listener, beside)),
            Err(error) => last = error,
        }
    }
    Err(last)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{net::TcpStream, time::Duration};

    #[test]
    fn a_port_of_one_s_own_is_nobody_else_s_whatever_is_spoken() {
        let (listener, beside) = listen_alone().unwrap();
        let address = listener.local_addr().unwrap();
        assert_eq!(beside.local_addr().unwrap(), address);
        assert!(TcpListener::bind(address).is_err() && UdpSocket::bind(address).is_err());
    }

    #[test]
    fn names_of_loopback_are_told_from_names_like_them() {
        for host in ["localhost", "127.0.0.1", "127.9.9.9", "[::1]"] {
            assert!(is_name(host), "{host}");
        }
        for host in
            ["", "localhost.example", "127.0.0.1.example", "10.0.0.1", "[::2]", "::1", "[127.0.0.1]", "[::1"]
        {
            assert!(!is_name(host), "{host}");
        }
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
