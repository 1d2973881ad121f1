//! What a connection names: the queries of a container's resolver, and the first bytes of its connections. Pure: no I/O, no
//! clock, no environment.
//!
//! | what | file |
//! |---|---|
//! | the one spelling of a host's name | [`host`] |
//! | DNS: a query read, its answer written | [`dns`] |
//! | TLS: the server's name in a ClientHello | [`tls`] |
//! | HTTP/1: the host of every request of a connection | [`http`] |
//! | what a client asks a proxy for, by HTTP or SOCKS5 | [`proxy`] |
//! | which addresses are not public | [`address`] |
//! | which address of a container's block stands for which name | [`block`] |
//!
//! The bytes are forwarded as they came, to a server that reads them with a parser of its own. So whatever two parsers could
//! read differently is refused, and said: this is not a place to be liberal in what one accepts.

pub mod address;
pub mod block;
pub mod dns;
pub mod host;
pub mod http;
pub mod proxy;
pub mod tls;

/// What a client's first byte begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Opening {
    /// A TLS record: [`tls::Client`] reads on.
    Tls,
    /// A request of HTTP/1, or HTTP/2's preface: [`http::Requests`] reads on.
    Http,
    /// Nothing whose name can be read.
    Unknown,
}

/// What begins with `first`, the first byte that a client sends.
pub fn opening(first: u8) -> Opening {
    match first {
        tls::HANDSHAKE => Opening::Tls,
        // Methods are tokens, and all that are registered are letters.
        b'A'..=b'Z' | b'a'..=b'z' => Opening::Http,
        _ => Opening::Unknown,
    }
}
