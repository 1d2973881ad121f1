//! Net entries: `ip[:port]`, `cidr[:port]`, `host[:port]`, `unix:/path`, `unix:@abstract`.

use crate::{
    path::{PathEntry, PathError},
    scope::{Entry, written_as_atoms},
};
use ipnet::{IpNet, Ipv4Net};
use std::{
    net::{IpAddr, Ipv6Addr},
    str::FromStr,
};

/// Most bytes of an abstract unix socket name (`sun_path` less its leading NUL).
const MAX_ABSTRACT: usize = 107;

/// Why a text is not a net entry.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NetError {
    /// Nothing there.
    #[error("it is empty")]
    Empty,
    /// A URL.
    #[error("it is a URL: write the host or address alone, with `:port` if need be")]
    Url,
    /// A port that is none.
    #[error("{0:?} is not a port (1-65535)")]
    Port(String),
    /// A prefix length that is none.
    #[error("{0:?} is not a prefix length of {1}")]
    Prefix(String, IpAddr),
    /// Host bits set.
    #[error("{0} has bits set beyond its prefix: write {1}")]
    HostBits(IpNet, IpNet),
    /// A wildcard in a host name.
    #[error("wildcards in host names are not supported")]
    Wildcard,
    /// Neither an address nor a host name.
    #[error("it is neither an address, an address range, a host name nor a unix socket")]
    Unknown,
    /// A unix socket's path that is none.
    #[error("as a unix socket's path: {0}")]
    Unix(PathError),
    /// An abstract name that is none.
    #[error("an abstract socket name has 1-{MAX_ABSTRACT} bytes and no control character")]
    Abstract,
}

/// What may be connected or sent to, and bound.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum NetEntry {
    /// Addresses. A v6 range never means v4 addresses; a v4-mapped address is read as the v4 one.
    Inet {
        /// Which.
        net: IpNet,
        /// Port; `None`: any.
        port: Option<u16>,
    },
    /// A host by name, in lower case. Only tools can hold this; the kernel knows addresses.
    Host {
        /// The name.
        name: String,
        /// Port; `None`: any.
        port: Option<u16>,
    },
    /// Unix sockets with a path.
    Unix(PathEntry),
    /// An abstract unix socket, without the `@`.
    Abstract(String),
}

impl NetEntry {
    /// Whether an address and port are meant.
    pub fn has(&self, addr: IpAddr, at: u16) -> bool {
        matches!(self, Self::Inet { net, port } if port.is_none_or(|p| p == at) && net.contains(&addr.to_canonical()))
    }

    /// The texts that together describe this entry.
    pub fn atoms(&self) -> Vec<String> {
        let with_port = |text: String, port: &Option<u16>| match port {
            Some(port) => format!("{text}:{port}"),
            None => text,
        };
        match self {
            Self::Inet { net, port } => {
                let single = net.prefix_len() == net.max_prefix_len();
                let text = if single { net.addr().to_string() } else { net.to_string() };
                match (net, port) {
                    (IpNet::V6(_), Some(port)) => vec![format!("[{text}]:{port}")],
                    _ => vec![with_port(text, port)],
                }
            }
            Self::Host { name, port } => vec![with_port(name.clone(), port)],
            Self::Unix(paths) => paths.atoms().into_iter().map(|p| format!("unix:{p}")).collect(),
            Self::Abstract(name) => vec![format!("unix:@{name}")],
        }
    }
}

fn port(text: &str) -> Result<u16, NetError> {
    match text.parse() {
        Ok(port) if port > 0 && text.bytes().all(|b| b.is_ascii_digit()) => Ok(port),
        _ => Err(NetError::Port(text.to_owned())),
    }
}

/// One address or range; v4-mapped becomes v4.
fn inet(addr: IpAddr, prefix: Option<&str>) -> Result<IpNet, NetError> {
    let most = if addr.is_ipv4() { 32 } else { 128 };
    let prefix = match prefix {
        None => most,
        Some(text) => match text.parse::<u8>() {
            Ok(n) if n <= most && text.bytes().all(|b| b.is_ascii_digit()) => n,
            _ => return Err(NetError::Prefix(text.to_owned(), addr)),
        },
    };
    let bad = || NetError::Prefix(prefix.to_string(), addr);
    let net = IpNet::new(addr, prefix).map_err(|_| bad())?;
    if net.trunc() != net {
        return Err(NetError::HostBits(net, net.trunc()));
    }
    match net {
        IpNet::V6(v6) if prefix >= 96 => match mapped(v6.addr()) {
            Some(v4) => Ok(IpNet::V4(Ipv4Net::new(v4, prefix - 96).map_err(|_| bad())?)),
            None => Ok(net),
        },
        _ => Ok(net),
    }
}

fn mapped(addr: Ipv6Addr) -> Option<std::net::Ipv4Addr> {
    addr.to_ipv4_mapped()
}

fn host_name(name: &str) -> Result<String, NetError> {
    let name = name.strip_suffix('.').unwrap_or(name).to_ascii_lowercase();
    if name.contains('*') {
        return Err(NetError::Wildcard);
    }
    let label = |l: &str| {
        (1..=63).contains(&l.len())
            && l.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_')
            && !l.starts_with('-')
            && !l.ends_with('-')
    };
    // A name whose last label is a number is a misspelt address: `010.0.0.1`, `10.1`, `0x7f.1`.
    let last = name.rsplit('.').next().unwrap_or_default();
    let number = last.bytes().all(|b| b.is_ascii_digit()) || last.starts_with("0x");
    // `unix:443` is a socket's path everywhere, so a host of that name could not be written down.
    let good = name.len() <= 253 && !number && name != "unix" && name.split('.').all(label);
    if good { Ok(name) } else { Err(NetError::Unknown) }
}

impl FromStr for NetEntry {
    type Err = NetError;

    fn from_str(text: &str) -> Result<Self, NetError> {
        if text.is_empty() {
            return Err(NetError::Empty);
        }
        if let Some(socket) = text.strip_prefix("unix:") {
            return match socket.strip_prefix('@') {
                Some(name)
                    if name.is_empty() || name.len() > MAX_ABSTRACT || name.chars().any(char::is_control) =>
                {
                    Err(NetError::Abstract)
                }
                Some(name) => Ok(Self::Abstract(name.to_owned())),
                None => socket.parse().map(Self::Unix).map_err(NetError::Unix),
            };
        }
        if text.contains("://") {
            return Err(NetError::Url);
        }
        if let Some(bracketed) = text.strip_prefix('[') {
            let (inside, after) = bracketed.split_once(']').ok_or(NetError::Unknown)?;
            let (addr, prefix) = match inside.split_once('/') {
                Some((addr, prefix)) => (addr, Some(prefix)),
                None => (inside, None),
            };
            let addr: Ipv6Addr = addr.parse().map_err(|_| NetError::Unknown)?;
            let port = match after {
                "" => None,
                _ => Some(port(after.strip_prefix(':').ok_or(NetError::Unknown)?)?),
            };
            return Ok(Self::Inet { net: inet(addr.into(), prefix)?, port });
        }
        if let Some((addr, rest)) = text.split_once('/') {
            let addr: IpAddr = addr.parse().map_err(|_| NetError::Unknown)?;
            let (prefix, port) = match rest.split_once(':') {
                Some((prefix, at)) => (prefix, Some(port(at)?)),
                None => (rest, None),
            };
            return Ok(Self::Inet { net: inet(addr, Some(prefix))?, port });
        }
        if let Ok(addr) = text.parse::<IpAddr>() {
            return Ok(Self::Inet { net: inet(addr, None)?, port: None });
        }
        let (host, port) = match text.rsplit_once(':') {
            Some((host, at)) if !host.contains(':') => (host, Some(port(at)?)),
            Some(_) => return Err(NetError::Unknown),
            None => (text, None),
        };
        match host.parse::<IpAddr>() {
            Ok(addr) => Ok(Self::Inet { net: inet(addr, None)?, port }),
            Err(_) => Ok(Self::Host { name: host_name(host)?, port }),
        }
    }
}

fn ports(a: Option<u16>, b: Option<u16>) -> Option<Option<u16>> {
    match (a, b) {
        (None, port) | (port, None) => Some(port),
        (Some(a), Some(b)) => (a == b).then_some(Some(a)),
    }
}

/// What net entries are filed under.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum NetKey {
    /// By range.
    Inet(IpNet),
    /// By name.
    Host(String),
    /// By the path they hang on.
    Unix(String),
    /// By name.
    Abstract(String),
}

impl Entry for NetEntry {
    type Key = NetKey;

    fn meet(&self, other: &Self) -> Option<Self> {
        match (self, other) {
            (Self::Inet { net: a, port: p }, Self::Inet { net: b, port: q }) => {
                let port = ports(*p, *q)?;
                let net = if a.contains(b) { *b } else { b.contains(a).then_some(*a)? };
                Some(Self::Inet { net, port })
            }
            (Self::Host { name: a, port: p }, Self::Host { name: b, port: q }) if a == b => {
                Some(Self::Host { name: a.clone(), port: ports(*p, *q)? })
            }
            (Self::Unix(a), Self::Unix(b)) => a.meet(b).map(Self::Unix),
            (Self::Abstract(a), Self::Abstract(b)) if a == b => Some(self.clone()),
            _ => None,
        }
    }

    fn key(&self) -> NetKey {
        match self {
            Self::Inet { net, .. } => NetKey::Inet(*net),
            Self::Host { name, .. } => NetKey::Host(name.clone()),
            Self::Unix(paths) => NetKey::Unix(paths.key()),
            Self::Abstract(name) => NetKey::Abstract(name.clone()),
        }
    }

    fn covering(&self) -> Vec<NetKey> {
        match self {
            Self::Inet { net, .. } => {
                std::iter::successors(Some(*net), IpNet::supernet).map(NetKey::Inet).collect()
            }
            Self::Unix(paths) => paths.covering().into_iter().map(NetKey::Unix).collect(),
            Self::Host { .. } | Self::Abstract(_) => vec![self.key()],
        }
    }
}

written_as_atoms!(NetEntry);

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(text: &str) -> NetEntry {
        text.parse().unwrap()
    }

    #[test]
    fn reads_and_writes_each_form() {
        for (text, shown) in [
            ("10.0.0.1", "10.0.0.1"),
            ("10.0.0.1:443", "10.0.0.1:443"),
            ("10.0.0.0/8", "10.0.0.0/8"),
            ("10.0.0.0/8:443", "10.0.0.0/8:443"),
            ("::1", "::1"),
            ("[::1]:80", "[::1]:80"),
            ("[2001:db8::/32]:443", "[2001:db8::/32]:443"),
            ("2001:db8::/32:443", "[2001:db8::/32]:443"),
            ("2001:db8::/32", "2001:db8::/32"),
            ("::ffff:10.0.0.1", "10.0.0.1"),
            ("::ffff:10.0.0.0/104", "10.0.0.0/8"),
            ("Example.COM.", "example.com"),
            ("example.com:8080", "example.com:8080"),
            ("unix:/run/x.sock", "unix:/run/x.sock"),
            ("unix:/run/x/*", "unix:/run/x/*"),
            ("unix:@name", "unix:@name"),
        ] {
            assert_eq!(entry(text).to_string(), shown);
            assert_eq!(entry(shown), entry(text));
        }
    }

    #[test]
    fn refuses_what_is_none() {
        for text in [
            "",
            "http://x.org",
            "10.0.0.1:0",
            "10.0.0.1:70000",
            "10.0.0.1:+80",
            "10.0.0.0/33",
            "10.1.0.0/8",
            "010.0.0.1",
            "10.1",
            "0x7f.1",
            "2130706433",
            "*.example.com",
            "a b",
            "[::1",
            "[::1]80",
            "fe80::1%eth0",
            "example..com",
            "unix:",
            "unix:rel",
            "unix",
            "Unix.:443",
            "unix:@",
            "-x.org",
            "unix:/a/../b",
            "10.0.0.0/+8",
        ] {
            assert!(text.parse::<NetEntry>().is_err(), "{text:?}");
        }
    }

    #[test]
    fn meets_by_containment() {
        let meet = |a: &str, b: &str| entry(a).meet(&entry(b)).map(|m| m.to_string());
        assert_eq!(meet("10.0.0.0/8", "10.1.0.0/16:443").as_deref(), Some("10.1.0.0/16:443"));
        assert_eq!(meet("10.0.0.0/8:443", "10.1.0.0/16").as_deref(), Some("10.1.0.0/16:443"));
        assert_eq!(meet("10.0.0.0/8:443", "10.1.0.0/16:80"), None);
        assert_eq!(meet("::/0", "10.0.0.1"), None);
        assert_eq!(meet("x.org", "x.org:443").as_deref(), Some("x.org:443"));
        assert_eq!(meet("x.org", "y.x.org"), None);
        assert_eq!(meet("unix:/run", "unix:/run/x").as_deref(), Some("unix:/run/x"));
        assert_eq!(meet("unix:@a", "unix:/a"), None);
    }
}
