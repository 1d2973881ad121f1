//! What a client asks a proxy for: where it wants to go, and what shows that it may ask at all.
//!
//! | what | file |
//! |---|---|
//! | HTTP: CONNECT, and a request for an address with `http://` | [`http`] |
//! | SOCKS5 (RFC 1928), with a name and a password (RFC 1929) | [`socks`] |
//!
//! What is read here is the proxy's alone: it is answered, and none of it goes on. A request of plain HTTP goes on as a request for a
//! path, written anew.

pub mod http;
pub mod socks;

use crate::host::{self, NotAHost};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Where a client wants to go.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Target {
    /// The host.
    pub host: Host,
    /// The port, 1 to 65535.
    pub port: u16,
}

/// A host, as a client of a proxy names it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Host {
    /// A name, as [`host::read`] writes it.
    Name(String),
    /// An address.
    Address(IpAddr),
}

impl std::fmt::Display for Host {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Name(name) => f.write_str(name),
            Self::Address(IpAddr::V4(addr)) => addr.fmt(f),
            Self::Address(IpAddr::V6(addr)) => write!(f, "[{addr}]"),
        }
    }
}

/// Why what is asked for is no target.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum NotATarget {
    /// The host is none.
    #[error("its host: {0}")]
    Host(#[from] NotAHost),
    /// What is in brackets is no IPv6 address.
    #[error("what is in brackets is no IPv6 address")]
    Brackets,
    /// The port is missing, or none.
    #[error("its port is not a number from 1 to 65535")]
    Port,
}

impl Host {
    /// A name, or an IPv4 address in its one spelling. A final dot, which makes a name a whole one, is not part of it: clients say it
    /// to a proxy, and leave it away in what they say to the server.
    fn read(text: &[u8]) -> Result<Self, NotATarget> {
        let text = match text {
            [whole @ .., b'.'] if whole.last().is_some_and(|byte| *byte != b'.') => whole,
            text => text,
        };
        let address = || std::str::from_utf8(text).ok()?.parse::<Ipv4Addr>().ok();
        match host::read(text) {
            Ok(name) => Ok(Self::Name(name)),
            Err(NotAHost::Address) => {
                address().map(|addr| Self::Address(addr.into())).ok_or(NotAHost::Address.into())
            }
            Err(error) => Err(error.into()),
        }
    }
}

impl Target {
    /// `HOST:PORT`, without the port where a scheme has that one.
    fn authority(&self, default: u16) -> String {
        let Self { host, port } = self;
        if *port == default { host.to_string() } else { format!("{host}:{port}") }
    }

    /// `HOST:PORT`, or `HOST` alone where there is a port for that.
    fn read(text: &[u8], default: Option<u16>) -> Result<Self, NotATarget> {
        let (host, rest) = match text.strip_prefix(b"[") {
            Some(inner) => {
                let end = inner.iter().position(|byte| *byte == b']').ok_or(NotATarget::Brackets)?;
                let (addr, rest) = inner.split_at(end);
                let addr = std::str::from_utf8(addr).ok().and_then(|addr| addr.parse::<Ipv6Addr>().ok());
                let addr = addr.ok_or(NotATarget::Brackets)?;
                (Host::Address(addr.into()), rest.get(1..).unwrap_or_default())
            }
            None => {
                let end = text.iter().position(|byte| *byte == b':').unwrap_or(text.len());
                let (host, rest) = text.split_at(end);
                (Host::read(host)?, rest)
            }
        };
        let port = match (rest, default) {
            ([], Some(port)) => port,
            ([b':', digits @ ..], _) => port(digits).ok_or(NotATarget::Port)?,
            _ => return Err(NotATarget::Port),
        };
        Ok(Self { host, port })
    }
}

/// A port in its one spelling.
fn port(digits: &[u8]) -> Option<u16> {
    let is_number = matches!(digits, [b'1'..=b'9', ..]) && digits.iter().all(u8::is_ascii_digit);
    std::str::from_utf8(digits).ok().filter(|_| is_number)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_target_has_one_reading() {
        let read =
            |text: &str| Target::read(text.as_bytes(), None).map(|to| format!("{} {}", to.host, to.port));
        for (given, expected) in [
            ("Example.org:443", "example.org 443"),
            ("a:1", "a 1"),
            ("example.org.:443", "example.org 443"),
            ("127.0.0.1.:80", "127.0.0.1 80"),
            ("192.0.2.1:80", "192.0.2.1 80"),
            ("[2001:DB8::1]:65535", "[2001:db8::1] 65535"),
        ] {
            assert_eq!(read(given).as_deref(), Ok(expected));
        }
        for wrong in [
            "",
            ":",
            "a",
            "a:",
            "a:0",
            "a:+1",
            "a:01",
            "a:65536",
            "a:1:2",
            "a:1 ",
            "a@b:1",
            "127.1:80",
            "0x7f.1:80",
            "a..:1",
            ".:1",
            "[::1]",
            "[::1]1",
            "[::1:1",
            "[a]:1",
            "::1:1",
            "[::1%eth0]:1",
            "a\0:1",
        ] {
            assert!(read(wrong).is_err(), "{wrong:?}");
        }
        assert_eq!(Target::read(b"a", Some(80)).map(|to| to.port), Ok(80));
        assert!(Target::read(b"a:", Some(80)).is_err());
    }
}
