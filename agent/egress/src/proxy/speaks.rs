//! What a client speaks with the proxy, and what it is told.

use crate::refusal::Refusal;
use ringfence_names::proxy::socks;
use ringfence_wire::egress::EgressCause;

/// What a client of SOCKS5 is told that may go on: the address is none that it could use.
const GRANTED: [u8; 10] = [socks::VERSION, 0, 0, 1, 0, 0, 0, 0, 0, 0];
/// And one that may not: "general failure", "connection not allowed by ruleset", "host unreachable".
const FAILURE: u8 = 1;
const BY_RULESET: u8 = 2;
const UNREACHABLE: u8 = 4;

/// See the module.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Speaks {
    /// CONNECT: what follows is the server's.
    Tunnel,
    /// A request of plain HTTP, which is held as its server is to see it.
    Forward,
    Socks,
}

impl Speaks {
    /// What a client is told once there is a server, before it says anything to that; `None`: it has said that already.
    pub(crate) fn granted(self) -> Option<&'static [u8]> {
        match self {
            Self::Tunnel => Some(b"HTTP/1.1 200 Connection established\r\n\r\n"),
            Self::Socks => Some(&GRANTED),
            Self::Forward => None,
        }
    }

    /// What it is told in place of that.
    pub(crate) fn refused(self, refusal: &Refusal, (profile, name, port): (&str, &str, u16)) -> Vec<u8> {
        match self {
            Self::Tunnel | Self::Forward => refusal.answer(profile, name, port).into_bytes(),
            Self::Socks => socks_failure(match refusal.cause {
                EgressCause::NotGranted
                | EgressCause::Denied
                | EgressCause::NotPublic
                | EgressCause::NoRule => BY_RULESET,
                EgressCause::Unresolved | EgressCause::Unreachable => UNREACHABLE,
                EgressCause::NotTls
                | EgressCause::OtherName
                | EgressCause::Ech
                | EgressCause::Malformed
                | EgressCause::TooMuch
                | EgressCause::Revoked
                | EgressCause::Full
                | EgressCause::UntrustedCa
                | EgressCause::ServerTls
                | EgressCause::NoCredential
                | EgressCause::Reflects => FAILURE,
            }),
        }
    }
}

/// SOCKS5's answer to a request that is not served.
pub(super) fn socks_failure(code: u8) -> Vec<u8> {
    let mut said = GRANTED;
    if let Some(place) = said.get_mut(1) {
        *place = code;
    }
    said.to_vec()
}

/// An answer of the proxy's own.
pub(super) fn http_answer(status: &str, more: &str, why: &str) -> Vec<u8> {
    format!(
        "HTTP/1.1 {status}\r\n{more}Content-Type: text/plain; charset=utf-8\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{why}\n",
        why.len() + 1
    )
    .into_bytes()
}
