//! One request's head.

use super::{Refused, body::Body};
use crate::host;
use httparse::{Header, Request};

/// Most bytes of a request's head. Servers take 8 to 32 thousand.
pub const MAX_HEAD: usize = 65_536;
/// Most headers of a request: as many as the servers take that take many.
const MAX_HEADERS: usize = 128;
/// Most digits of a length: what fits into every server's number.
const MAX_DIGITS: usize = 18;

/// What a head says that counts.
#[derive(Debug)]
pub(super) struct Head {
    pub(super) body: Body,
    pub(super) has_upgrade: bool,
    pub(super) expects_continue: bool,
}

/// Looks for the end of a head, and looks at each byte once.
#[derive(Debug, Default)]
pub(crate) struct Scan {
    seen: usize,
    has_line: bool,
}

impl Scan {
    /// The length of the head that `bytes` begin with, if it is all there.
    pub(crate) fn end(&mut self, bytes: &[u8]) -> Result<Option<usize>, Refused> {
        for (at, byte) in bytes.iter().enumerate().skip(self.seen) {
            self.seen = at + 1;
            let before = bytes.get(..at).unwrap_or_default();
            match (before.last(), byte) {
                // An empty line before a request counts for nothing with some servers, and as a request's with others.
                (None, first) if !first.is_ascii_alphabetic() => return Err(Refused::NotHttp),
                (Some(b'\r'), b'\n') => {
                    if !self.has_line {
                        request_line(before)?;
                        self.has_line = true;
                    }
                    if before.ends_with(b"\r\n\r") {
                        return Ok(Some(at + 1));
                    }
                }
                (Some(b'\r'), _) => return Err(Refused::BareCr),
                (_, b'\n') => return Err(Refused::BareLf),
                _ => {}
            }
            if at + 1 == MAX_HEAD {
                return Err(Refused::Long);
            }
        }
        Ok(None)
    }
}

/// Whether a line may be the first of a request, before the rest is there: a client that speaks another protocol may wait for
/// an answer to it.
fn request_line(line: &[u8]) -> Result<(), Refused> {
    let line = line.strip_suffix(b"\r").unwrap_or(line);
    if line.starts_with(b"PRI ") || line.ends_with(b" HTTP/2.0") {
        return Err(Refused::Http2);
    }
    match line.ends_with(b" HTTP/1.1") || line.ends_with(b" HTTP/1.0") {
        true => Ok(()),
        false => Err(Refused::NotHttp),
    }
}

/// Reads a whole head, and holds it to the host and port of its connection.
pub(super) fn read(bytes: &[u8], host: &str, port: u16) -> Result<Head, Refused> {
    let mut headers = most_headers();
    let mut request = Request::new(&mut headers);
    match request.parse(bytes).map_err(Refused::Malformed)? {
        httparse::Status::Complete(length) if length == bytes.len() => {}
        _ => return Err(Refused::NotHttp),
    }
    let (Some(method), Some(path)) = (request.method, request.path) else { return Err(Refused::NotHttp) };
    target(method, path, host, port)?;
    let headers: &[Header<'_>] = request.headers;
    confusable(headers)?;
    match all(headers, "host").collect::<Vec<_>>()[..] {
        [] => return Err(Refused::NoHost),
        [value] => authority(value, host, port)?,
        _ => return Err(Refused::SeveralHosts),
    }
    let expectations: Vec<_> = all(headers, "expect").collect();
    if expectations.iter().any(|value| !value.eq_ignore_ascii_case(b"100-continue")) {
        return Err(Refused::Expectation);
    }
    Ok(Head {
        body: body(headers, request.version == Some(1))?,
        has_upgrade: all(headers, "upgrade").next().is_some(),
        expects_continue: !expectations.is_empty(),
    })
}

/// Room for the headers of a request.
pub(crate) fn most_headers<'a>() -> [Header<'a>; MAX_HEADERS] {
    [httparse::EMPTY_HEADER; MAX_HEADERS]
}

/// The values of all headers of a name.
pub(crate) fn all<'a>(headers: &'a [Header<'a>], name: &'static str) -> impl Iterator<Item = &'a [u8]> {
    headers.iter().filter(move |header| header.name.eq_ignore_ascii_case(name)).map(|header| header.value)
}

fn target(method: &str, target: &str, host: &str, port: u16) -> Result<(), Refused> {
    if method.eq_ignore_ascii_case("CONNECT") {
        return Err(Refused::Connect);
    }
    if target.starts_with('/') || (target == "*" && method == "OPTIONS") {
        return Ok(());
    }
    let rest = match target.split_at_checked("http://".len()) {
        Some((scheme, rest)) if scheme.eq_ignore_ascii_case("http://") => rest,
        _ => return Err(Refused::Target),
    };
    let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
    authority(rest.get(..end).unwrap_or_default().as_bytes(), host, port)
}

/// Holds a host, with or without a port, to that of the connection.
fn authority(value: &[u8], host: &str, port: u16) -> Result<(), Refused> {
    let given = match value.strip_prefix(host.as_bytes()) {
        Some([]) => None,
        Some([b':', given @ ..]) => Some(given),
        _ => {
            let mut parts = value.splitn(2, |byte| *byte == b':');
            let name = host::read(parts.next().unwrap_or_default())?;
            if name != host {
                return Err(Refused::AnotherHost(name));
            }
            parts.next()
        }
    };
    match given {
        Some(given) if given != port.to_string().as_bytes() => Err(Refused::AnotherPort),
        _ => Ok(()),
    }
}

/// The headers by which a server finds requests and their hosts.
const DECISIVE: [&str; 3] = ["host", "content-length", "transfer-encoding"];

/// Refuses what some servers take for one of these headers (gateways that make variables of them know no hyphen), and what has
/// a proxy before the server take one of them away (RFC 9110 section 7.6.1).
pub(crate) fn confusable(headers: &[Header<'_>]) -> Result<(), Refused> {
    for header in headers {
        let plain = header.name.replace('_', "-");
        if let Some(name) = DECISIVE.iter().find(|name| plain.eq_ignore_ascii_case(name))
            && plain != header.name
        {
            return Err(Refused::Confusable(name));
        }
    }
    let tokens = all(headers, "connection").flat_map(|value| value.split(|byte| *byte == b','));
    for token in tokens {
        if let Some(name) =
            DECISIVE.iter().find(|name| token.trim_ascii().eq_ignore_ascii_case(name.as_bytes()))
        {
            return Err(Refused::TakenAway(name));
        }
    }
    Ok(())
}

fn body(headers: &[Header<'_>], is_1_1: bool) -> Result<Body, Refused> {
    let lengths: Vec<_> = all(headers, "content-length").collect();
    let encodings: Vec<_> = all(headers, "transfer-encoding").collect();
    match (&lengths[..], &encodings[..]) {
        ([], []) => Ok(Body::Left(0)),
        ([value], []) => Ok(Body::Left(length(value).ok_or(Refused::Length)?)),
        // HTTP/1.0 has no encodings: a server may look past it.
        ([], [value]) if is_1_1 && value.eq_ignore_ascii_case(b"chunked") => Ok(Body::chunked()),
        ([], [_]) => Err(Refused::Encoding),
        _ => Err(Refused::Lengths),
    }
}

/// A length in its one spelling.
fn length(value: &[u8]) -> Option<u64> {
    let is_number = value.len() <= MAX_DIGITS && value.iter().all(u8::is_ascii_digit);
    let number = std::str::from_utf8(value).ok().filter(|_| is_number)?;
    let length: u64 = number.parse().ok()?;
    (length.to_string() == number).then_some(length)
}
