//! What a client of a SOCKS5 proxy says, message by message. Each is read from the bytes that came so far: what it says, once it is
//! whole, and how many of them it is. None is longer than 513 bytes.

use super::{Host, NotATarget, Target};
use std::net::{Ipv4Addr, Ipv6Addr};

/// The first byte of a client: the version.
pub const VERSION: u8 = 5;
/// The version of RFC 1929.
const PASSWORDS: u8 = 1;
/// The one method that is served: a name and a password.
pub const BY_PASSWORD: u8 = 2;
/// The one command that is served.
const CONNECT: u8 = 1;

/// Why a client is not served.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum NotServed {
    /// Another protocol, or another version.
    #[error("what the client sends is not SOCKS5")]
    NotSocks,
    /// BIND, or UDP.
    #[error("only CONNECT is served, and not command {0}")]
    Command(u8),
    /// Where to.
    #[error("the address that is asked for is malformed: {0}")]
    Target(#[from] NotATarget),
}

/// A name and a password.
#[derive(Clone, PartialEq, Eq)]
pub struct Password {
    /// The name.
    pub name: Vec<u8>,
    /// The password.
    pub password: Vec<u8>,
}

/// Whether the client offers a password.
///
/// # Errors
/// [`NotServed`].
pub fn greeting(bytes: &[u8]) -> Result<Option<(bool, usize)>, NotServed> {
    match bytes {
        [] | [VERSION] => Ok(None),
        [VERSION, count, rest @ ..] => {
            let methods = rest.get(..usize::from(*count));
            Ok(methods.map(|methods| (methods.contains(&BY_PASSWORD), 2 + methods.len())))
        }
        _ => Err(NotServed::NotSocks),
    }
}

/// The password.
///
/// # Errors
/// [`NotServed`].
pub fn password(bytes: &[u8]) -> Result<Option<(Password, usize)>, NotServed> {
    if bytes.first().is_some_and(|version| *version != PASSWORDS) {
        return Err(NotServed::NotSocks);
    }
    let Some((name, rest)) = bytes.get(1..).and_then(counted) else { return Ok(None) };
    let Some((password, rest)) = counted(rest) else { return Ok(None) };
    let taken = bytes.len() - rest.len();
    Ok(Some((Password { name: name.to_vec(), password: password.to_vec() }, taken)))
}

/// Where the client wants to go.
///
/// # Errors
/// [`NotServed`].
pub fn request(bytes: &[u8]) -> Result<Option<(Target, usize)>, NotServed> {
    let (kind, rest) = match bytes {
        [] | [VERSION] | [VERSION, CONNECT] | [VERSION, CONNECT, 0] => return Ok(None),
        [VERSION, CONNECT, 0, kind, rest @ ..] => (*kind, rest),
        [VERSION, command, ..] if *command != CONNECT => return Err(NotServed::Command(*command)),
        _ => return Err(NotServed::NotSocks),
    };
    let (host, rest) = match kind {
        1 => match rest.split_first_chunk::<4>() {
            Some((addr, rest)) => (Host::Address(Ipv4Addr::from(*addr).into()), rest),
            None => return Ok(None),
        },
        4 => match rest.split_first_chunk::<16>() {
            Some((addr, rest)) => (Host::Address(Ipv6Addr::from(*addr).into()), rest),
            None => return Ok(None),
        },
        3 => match counted(rest) {
            Some((name, rest)) => (Host::read(name)?, rest),
            None => return Ok(None),
        },
        _ => return Err(NotServed::NotSocks),
    };
    let Some((port, rest)) = rest.split_first_chunk::<2>() else { return Ok(None) };
    let port = u16::from_be_bytes(*port);
    if port == 0 {
        return Err(NotATarget::Port.into());
    }
    Ok(Some((Target { host, port }, bytes.len() - rest.len())))
}

/// Bytes behind their number, and what follows.
fn counted(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let (count, rest) = bytes.split_first()?;
    rest.split_at_checked(usize::from(*count))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_says_a_method_a_password_and_a_name() {
        assert_eq!(greeting(b"\x05\x02\x00\x02rest"), Ok(Some((true, 4))));
        assert_eq!(greeting(b"\x05\x01\x00"), Ok(Some((false, 3))));
        assert_eq!(greeting(b"\x05\x00"), Ok(Some((false, 2))));
        assert!(greeting(b"\x05\x02\x02").unwrap().is_none() && greeting(b"\x04\x01").is_err());
        let (said, taken) = password(b"\x01\x01a\x03xyzrest").unwrap().unwrap();
        assert_eq!((said.name.as_slice(), said.password.as_slice(), taken), (&b"a"[..], &b"xyz"[..], 7));
        assert!(password(b"\x01\x01a\x03xy").unwrap().is_none() && password(b"\x05").is_err());
        let (target, taken) = request(b"\x05\x01\x00\x03\x09Example.a\x01\xbb!").unwrap().unwrap();
        assert_eq!((target, taken), (Target { host: Host::Name("example.a".into()), port: 443 }, 16));
    }

    #[test]
    fn an_address_is_told_from_a_name_and_everything_else_is_refused() {
        let host = |bytes: &[u8]| request(bytes).map(|read| read.map(|(target, _)| target.host.to_string()));
        assert_eq!(host(b"\x05\x01\x00\x01\x7f\0\0\x01\0\x50").unwrap().unwrap(), "127.0.0.1");
        assert_eq!(host(b"\x05\x01\x00\x03\x09127.0.0.1\0\x50").unwrap().unwrap(), "127.0.0.1");
        let v6 = [&b"\x05\x01\x00\x04"[..], &[0; 15], b"\x01\0\x50"].concat();
        assert_eq!(host(&v6).unwrap().unwrap(), "[::1]");
        assert_eq!(host(b"\x05\x02"), Err(NotServed::Command(2)));
        assert_eq!(host(b"\x05\x03\x00\x01"), Err(NotServed::Command(3)));
        for wrong in [
            &b"\x04\x01"[..],
            b"\x05\x01\x01\x01",
            b"\x05\x01\x00\x02",
            b"\x05\x01\x00\x03\x01a\0\0",
            b"\x05\x01\x00\x03\x00",
        ] {
            assert!(host(wrong).is_err(), "{wrong:?}");
        }
        for end in 0..v6.len() {
            assert_eq!(host(&v6[..end]), Ok(None));
        }
    }
}
