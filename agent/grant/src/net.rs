//! Net entries: `ip[:port]`, `cidr[:port]`, `host[:port]`, `*.host[:port]`, `tcp:host:port`, `unix:/path`, `unix:@abstract`.

use crate::{
    host::{HostError, HostPattern},
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
    /// Neither an address nor a host name, or not one that may be written here.
    #[error("{0}")]
    Host(HostError),
    /// `tcp:` without a port.
    #[error("`tcp:` needs a port: `tcp:HOST:PORT`")]
    TcpPort,
    /// `tcp:` before what is no host name.
    #[error("`tcp:` is for host names: what is said to an address is not looked at anyway")]
    TcpAddress,
    /// `set:`, where there are no sets.
    #[error("`set:NAME` is for `net` of a profile: write the hosts")]
    Set,
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
    /// Hosts by name. The kernel knows addresses: it is an egress worker, or a tool, that holds this.
    Host {
        /// Which.
        host: HostPattern,
        /// Port; `None`: any, which `tcp` excludes.
        port: Option<u16>,
        /// `tcp:`: what is said is not looked at. More than without it, where TLS or HTTP has to name the host.
        tcp: bool,
    },
    /// Unix sockets with a path.
    Unix(PathEntry),
    /// An abstract unix socket, without the `@`.
    Abstract(String),
}

impl NetEntry {
    /// Reads an entry of a deny, which may have a wildcard below a public suffix (`*.example` is every name there): it opens
    /// nothing.
    ///
    /// # Errors
    /// [`NetError`]: it is no entry.
    pub fn denied(text: &str) -> Result<Self, NetError> {
        read(text, HostPattern::denied)
    }

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
            Self::Host { host, port, tcp } => {
                let tcp = if *tcp { "tcp:" } else { "" };
                vec![with_port(format!("{tcp}{host}"), port)]
            }
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

const UNKNOWN: NetError = NetError::Host(HostError::Unknown);

impl FromStr for NetEntry {
    type Err = NetError;

    fn from_str(text: &str) -> Result<Self, NetError> {
        read(text, HostPattern::from_str)
    }
}

/// An entry whose host is read by `host_of`.
fn read(text: &str, host_of: fn(&str) -> Result<HostPattern, HostError>) -> Result<NetEntry, NetError> {
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
            Some(name) => Ok(NetEntry::Abstract(name.to_owned())),
            None => socket.parse().map(NetEntry::Unix).map_err(NetError::Unix),
        };
    }
    if text.contains("://") {
        return Err(NetError::Url);
    }
    if text.starts_with("set:") {
        return Err(NetError::Set);
    }
    if let Some(uninspected) = text.strip_prefix("tcp:") {
        return match read(uninspected, host_of)? {
            NetEntry::Host { host, port: Some(at), tcp: false } => {
                Ok(NetEntry::Host { host, port: Some(at), tcp: true })
            }
            NetEntry::Host { port: None, .. } => Err(NetError::TcpPort),
            _ => Err(NetError::TcpAddress),
        };
    }
    if let Some(bracketed) = text.strip_prefix('[') {
        let (inside, after) = bracketed.split_once(']').ok_or(UNKNOWN)?;
        let (addr, prefix) = match inside.split_once('/') {
            Some((addr, prefix)) => (addr, Some(prefix)),
            None => (inside, None),
        };
        let addr: Ipv6Addr = addr.parse().map_err(|_| UNKNOWN)?;
        let port = match after {
            "" => None,
            _ => Some(port(after.strip_prefix(':').ok_or(UNKNOWN)?)?),
        };
        return Ok(NetEntry::Inet { net: inet(addr.into(), prefix)?, port });
    }
    if let Some((addr, rest)) = text.split_once('/') {
        let addr: IpAddr = addr.parse().map_err(|_| UNKNOWN)?;
        let (prefix, port) = match rest.split_once(':') {
            Some((prefix, at)) => (prefix, Some(port(at)?)),
            None => (rest, None),
        };
        return Ok(NetEntry::Inet { net: inet(addr, Some(prefix))?, port });
    }
    if let Ok(addr) = text.parse::<IpAddr>() {
        return Ok(NetEntry::Inet { net: inet(addr, None)?, port: None });
    }
    let (host, port) = match text.rsplit_once(':') {
        Some((host, at)) if !host.contains(':') => (host, Some(port(at)?)),
        Some(_) => return Err(UNKNOWN),
        None => (text, None),
    };
    match host.parse::<IpAddr>() {
        Ok(addr) => Ok(NetEntry::Inet { net: inet(addr, None)?, port }),
        Err(_) => Ok(NetEntry::Host { host: host_of(host).map_err(NetError::Host)?, port, tcp: false }),
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
    /// By name, or by what they are below.
    Host(HostPattern),
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
            (Self::Host { host: a, port: p, tcp: s }, Self::Host { host: b, port: q, tcp: t }) => {
                Some(Self::Host { host: a.meet(b)?, port: ports(*p, *q)?, tcp: *s && *t })
            }
            (Self::Unix(a), Self::Unix(b)) => a.meet(b).map(Self::Unix),
            (Self::Abstract(a), Self::Abstract(b)) if a == b => Some(self.clone()),
            _ => None,
        }
    }

    fn key(&self) -> NetKey {
        match self {
            Self::Inet { net, .. } => NetKey::Inet(*net),
            Self::Host { host, .. } => NetKey::Host(host.clone()),
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
            Self::Host { host, .. } => host.covering().into_iter().map(NetKey::Host).collect(),
            Self::Abstract(_) => vec![self.key()],
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
            ("*.Example.com", "*.example.com"),
            ("*.example.com:443", "*.example.com:443"),
            ("tcp:git.example:22", "tcp:git.example:22"),
            ("tcp:*.git.example:22", "tcp:*.git.example:22"),
            ("bücher.example:443", "xn--bcher-kva.example:443"),
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
            "*.com",
            "*.github.io:443",
            "a.*.example.com",
            "tcp:git.example",
            "tcp:10.0.0.1:22",
            "tcp:[::1]:22",
            "tcp:tcp:git.example:22",
            "tcp:unix:/x",
            "tcp:unix:/x:22",
            "tcp:",
            "tcp:22",
            "tcp",
            "set:registries",
            "set:443",
            "set",
            "*.10.0.0.1",
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
        assert_eq!(meet("*.x.org", "y.x.org:443").as_deref(), Some("y.x.org:443"));
        assert_eq!(meet("tcp:*.x.org:22", "*.y.x.org").as_deref(), Some("*.y.x.org:22"), "looked at");
        assert_eq!(meet("tcp:*.x.org:22", "tcp:y.x.org:22").as_deref(), Some("tcp:y.x.org:22"));
        assert_eq!(meet("tcp:x.org:22", "x.org:443"), None);
        assert_eq!(meet("x.org", "0.0.0.0/0"), None);
        assert_eq!(meet("unix:/run", "unix:/run/x").as_deref(), Some("unix:/run/x"));
        assert_eq!(meet("unix:@a", "unix:/a"), None);
    }
}
