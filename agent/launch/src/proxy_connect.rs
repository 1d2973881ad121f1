//! A client of the run's proxy for programs that know none: it asks for a host by CONNECT, and passes its standard streams on.
//!
//! The password comes from the environment, where other runs and other users cannot read it. In an argument they could.

use base64::{Engine as _, engine::general_purpose::STANDARD};
use ringfence_base::escape;
use std::{
    env,
    io::{self, Read, Write},
    net::{IpAddr, Ipv6Addr, Shutdown, SocketAddr, TcpStream},
    thread,
    time::Duration,
};

/// The variable that has the address of the run's proxy. Its user sets none of that name.
pub(crate) const VARIABLE: &str = "RINGFENCE_SOCKS_PROXY";
/// Most bytes of a proxy's answer, and of what it says in it why not.
const MAX_ANSWER: usize = 16 << 10;
const MAX_WHY: u64 = 4 << 10;
/// How long it may take to answer: it looks the host up, and dials it.
const PATIENCE: Duration = Duration::from_secs(90);
/// Bytes that are passed on at once.
const CHUNK: usize = 64 << 10;

/// Why there is no connection.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The host is none.
    #[error("{0:?} is no host: write a name, or an address without brackets")]
    Host(String),
    /// The variable.
    #[error(
        "{VARIABLE} does not have the address of a run's proxy: `ringfence run` sets it, leave it as it is"
    )]
    Variable,
    /// The proxy, or the server where there is no proxy.
    #[error("cannot connect to {to}")]
    Connect {
        /// Which.
        to: String,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// What the proxy says.
    #[error("the run's proxy does not connect to {to}: {why}")]
    Refused {
        /// Where to.
        to: String,
        /// In its words.
        why: String,
    },
    /// The connection broke.
    #[error("the connection broke")]
    Broken(#[source] io::Error),
    /// A thread.
    #[error("cannot start a thread")]
    Thread(#[source] io::Error),
}

/// Where to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Target {
    host: String,
    port: u16,
}

impl Target {
    /// # Errors
    /// It is no host.
    pub fn new(host: &str, port: u16) -> Result<Self, Error> {
        let is_name = !host.is_empty()
            && host.len() <= 255
            && host.bytes().all(|byte| byte.is_ascii_alphanumeric() || b".-_".contains(&byte));
        if is_name || host.parse::<Ipv6Addr>().is_ok() {
            return Ok(Self { host: host.to_owned(), port });
        }
        Err(Error::Host(host.to_owned()))
    }

    fn authority(&self) -> String {
        match self.host.parse() {
            Ok(IpAddr::V6(addr)) => format!("[{addr}]:{}", self.port),
            _ => format!("{}:{}", self.host, self.port),
        }
    }
}

/// The run's proxy.
#[derive(Debug, PartialEq, Eq)]
struct Place {
    address: SocketAddr,
    /// `USER:PASSWORD`.
    secret: String,
}

impl Place {
    /// Of what [`VARIABLE`] has.
    fn read(value: &str) -> Option<Self> {
        let (secret, address) = value.strip_prefix("socks5h://")?.rsplit_once('@')?;
        Some(Self { address: address.parse().ok()?, secret: secret.to_owned() })
    }
}

/// Connects, and passes standard input and output on until the server ends the connection.
///
/// # Errors
/// [`Error`].
pub fn run(target: &Target) -> Result<(), Error> {
    let server = match env::var_os(VARIABLE) {
        Some(value) => {
            let place = value.to_str().and_then(Place::read).ok_or(Error::Variable)?;
            through(&place, target)?
        }
        None => TcpStream::connect((target.host.as_str(), target.port))
            .map_err(|source| Error::Connect { to: target.authority(), source })?,
    };
    let _ = server.set_nodelay(true);
    let mut to = server.try_clone().map_err(Error::Broken)?;
    let sends = thread::Builder::new().name("input".into()).spawn(move || {
        let ended = pass(&mut io::stdin().lock(), &mut to);
        // The server may have something left to say.
        let _ = to.shutdown(Shutdown::Write);
        ended
    });
    // It ends with the process, when the server has said all.
    drop(sends.map_err(Error::Thread)?);
    pass(&mut &server, &mut io::stdout().lock()).map_err(Error::Broken)
}

/// A connection through the proxy: nothing of what the server says is taken yet.
fn through(place: &Place, target: &Target) -> Result<TcpStream, Error> {
    let failed = |source| Error::Connect { to: "the run's proxy".to_owned(), source };
    let mut proxy = TcpStream::connect(place.address).map_err(failed)?;
    proxy.set_read_timeout(Some(PATIENCE)).map_err(failed)?;
    let (to, secret) = (target.authority(), STANDARD.encode(&place.secret));
    let asked = format!("CONNECT {to} HTTP/1.1\r\nHost: {to}\r\nProxy-Authorization: Basic {secret}\r\n\r\n");
    proxy.write_all(asked.as_bytes()).map_err(failed)?;
    let head = head(&mut proxy).map_err(failed)?;
    let status = head.split(' ').nth(1).unwrap_or_default();
    if !head.starts_with("HTTP/1.1 ") || status != "200" {
        let mut why = Vec::new();
        let _ = (&proxy).take(MAX_WHY).read_to_end(&mut why);
        let why = String::from_utf8_lossy(&why);
        let why = if why.trim().is_empty() { head.lines().next().unwrap_or_default() } else { why.trim() };
        return Err(Error::Refused { to, why: escape::line(why) });
    }
    proxy.set_read_timeout(None).map_err(failed)?;
    Ok(proxy)
}

/// An answer's head, byte by byte: what follows is the server's.
fn head(proxy: &mut TcpStream) -> io::Result<String> {
    let (mut head, mut byte) = (Vec::new(), [0]);
    while !head.ends_with(b"\r\n\r\n") {
        if head.len() == MAX_ANSWER || proxy.read(&mut byte)? == 0 {
            return Err(io::ErrorKind::InvalidData.into());
        }
        head.extend(byte);
    }
    Ok(String::from_utf8_lossy(&head).into_owned())
}

/// Passes bytes on as they come, until there are none.
fn pass(from: &mut impl Read, to: &mut impl Write) -> io::Result<()> {
    let mut bytes = vec![0; CHUNK];
    loop {
        match from.read(&mut bytes) {
            Ok(0) => return Ok(()),
            Ok(count) => {
                to.write_all(bytes.get(..count).unwrap_or_default())?;
                to.flush()?;
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_hosts_are_asked_for() {
        for (host, expected) in [
            ("example.org", "example.org:22"),
            ("Example.org.", "Example.org.:22"),
            ("192.0.2.1", "192.0.2.1:22"),
            ("2001:db8::1", "[2001:db8::1]:22"),
        ] {
            assert_eq!(Target::new(host, 22).unwrap().authority(), expected);
        }
        for host in ["", "a b", "a\r\nX: y", "[::1]", "a:1", "a/b", "user@a", "ä.example", &"a".repeat(256)]
        {
            assert!(Target::new(host, 22).is_err(), "{host:?}");
        }
    }

    #[test]
    fn the_variable_has_an_address_and_a_password() {
        let place = Place::read("socks5h://ringfence:5ec2e7@127.0.0.1:4711").unwrap();
        assert_eq!(
            (place.address.to_string().as_str(), place.secret.as_str()),
            ("127.0.0.1:4711", "ringfence:5ec2e7")
        );
        for wrong in ["", "http://a:b@127.0.0.1:1", "socks5h://127.0.0.1:1", "socks5h://a:b@localhost:1"] {
            assert_eq!(Place::read(wrong), None, "{wrong}");
        }
    }
}
