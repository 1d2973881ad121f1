//! The head of a request to an HTTP proxy.

use super::{NotATarget, Target};
use crate::http::{Refused, Scan, all, confusable, most_headers};
use httparse::{Header, Request};

/// Why a request is not served.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NotServed {
    /// No head that can be read in one way.
    #[error(transparent)]
    Head(#[from] Refused),
    /// A path: a server is asked for that.
    #[error("this is a proxy: ask it for an address with http://, or by CONNECT")]
    Path,
    /// Another scheme.
    #[error("only addresses with http:// are asked for without CONNECT")]
    Scheme,
    /// What no target has: a fragment, or white space.
    #[error("the address that is asked for is malformed")]
    Address,
    /// The host or the port.
    #[error("the address that is asked for is malformed: {0}")]
    Target(#[from] NotATarget),
    /// Several passwords.
    #[error("a request has several Proxy-Authorization headers")]
    SeveralPasswords,
}

/// What a proxy is asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Asked {
    /// Where to.
    pub target: Target,
    /// The value of `Proxy-Authorization`, if there is one.
    pub authorization: Option<Vec<u8>>,
    /// The request as the server is to see it: for a path, with the `Host` of its address, whatever the client's was (RFC 9112 section
    /// 3.2.2), without what was for the proxy, and with `Connection: close`, since the next request to a proxy may be for another
    /// host. `None`: a tunnel.
    pub forward: Option<Vec<u8>>,
}

/// Reads one head.
#[derive(Debug, Default)]
pub struct Reader {
    scan: Scan,
}

impl Reader {
    /// Reads on. `bytes` is all that came so far, which never has to be longer than [`MAX_HEAD`](crate::http::MAX_HEAD). What is asked
    /// for, once that is whole, and how many of the bytes say so.
    ///
    /// # Errors
    /// [`NotServed`].
    pub fn read(&mut self, bytes: &[u8]) -> Result<Option<(Asked, usize)>, NotServed> {
        let Some(length) = self.scan.end(bytes)? else { return Ok(None) };
        head(bytes.get(..length).unwrap_or_default()).map(|asked| Some((asked, length)))
    }
}

fn head(bytes: &[u8]) -> Result<Asked, NotServed> {
    let mut headers = most_headers();
    let mut request = Request::new(&mut headers);
    match request.parse(bytes).map_err(Refused::Malformed)? {
        httparse::Status::Complete(length) if length == bytes.len() => {}
        _ => return Err(Refused::NotHttp.into()),
    }
    let (Some(method), Some(target), Some(version)) = (request.method, request.path, request.version) else {
        return Err(Refused::NotHttp.into());
    };
    let headers: &[Header<'_>] = request.headers;
    confusable(headers)?;
    let authorization = match all(headers, "proxy-authorization").collect::<Vec<_>>()[..] {
        [] => None,
        [value] => Some(value.to_vec()),
        _ => return Err(NotServed::SeveralPasswords),
    };
    if method == "CONNECT" {
        return Ok(Asked { target: Target::read(target.as_bytes(), None)?, authorization, forward: None });
    }
    // That of the address takes its place: but a request without one, or with two, is none (RFC 9112 section 3.2).
    match all(headers, "host").count() {
        0 if version == 1 => return Err(Refused::NoHost.into()),
        0 | 1 => {}
        _ => return Err(Refused::SeveralHosts.into()),
    }
    let (authority, path) = absolute(target)?;
    let target = Target::read(authority.as_bytes(), Some(HTTP))?;
    let path = match path {
        "" if method == "OPTIONS" => "*".to_owned(),
        "" => "/".to_owned(),
        path if path.starts_with('?') => format!("/{path}"),
        path => path.to_owned(),
    };
    let forward = Some(written((method, &path, version), &target, headers));
    Ok(Asked { target, authorization, forward })
}

/// The authority of an address, and what follows it.
fn absolute(address: &str) -> Result<(&str, &str), NotServed> {
    if address.starts_with('/') || address == "*" {
        return Err(NotServed::Path);
    }
    let rest = match address.split_at_checked("http://".len()) {
        Some((scheme, rest)) if scheme.eq_ignore_ascii_case("http://") => rest,
        _ => return Err(NotServed::Scheme),
    };
    // A fragment never leaves a client; what a server takes it for is its own affair.
    if rest.contains('#') {
        return Err(NotServed::Address);
    }
    let end = rest.find(['/', '?']).unwrap_or(rest.len());
    Ok(rest.split_at(end))
}

/// The port of addresses with `http://` that have none.
const HTTP: u16 = 80;

/// Headers that are for the next hop alone (RFC 9110 section 7.6.1), beside those that `Connection` names; and the one that is written
/// anew.
const HOP: [&str; 5] = ["connection", "host", "keep-alive", "te", "upgrade"];

fn written((method, path, version): (&str, &str, u8), target: &Target, headers: &[Header<'_>]) -> Vec<u8> {
    let named: Vec<&[u8]> = all(headers, "connection")
        .flat_map(|value| value.split(|byte| *byte == b','))
        .map(<[u8]>::trim_ascii)
        .collect();
    let is_hop = |name: &str| {
        let is_proxys = name.get(..6).is_some_and(|start| start.eq_ignore_ascii_case("proxy-"));
        is_proxys
            || HOP.iter().any(|hop| name.eq_ignore_ascii_case(hop))
            || named.iter().any(|hop| name.as_bytes().eq_ignore_ascii_case(hop))
    };
    let host = target.authority(HTTP);
    let mut head = format!("{method} {path} HTTP/1.{version}\r\nHost: {host}\r\n").into_bytes();
    for header in headers.iter().filter(|header| !is_hop(header.name)) {
        head.extend([header.name.as_bytes(), b": ", header.value, b"\r\n"].concat());
    }
    head.extend(b"Connection: close\r\n\r\n");
    head
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{http::Requests, proxy::Host};

    fn read(head: &str) -> Result<Asked, NotServed> {
        let whole = Reader::default().read(head.as_bytes());
        // However it comes.
        let mut reader = Reader::default();
        let mut found = Ok(None);
        for end in 0..=head.len() {
            found = reader.read(&head.as_bytes()[..end]);
            if !matches!(found, Ok(None)) {
                break;
            }
        }
        assert_eq!(found, whole);
        let (asked, length) = whole?.expect("it is whole");
        assert_eq!(length, head.find("\r\n\r\n").unwrap() + 4);
        Ok(asked)
    }

    #[test]
    fn a_tunnel_is_to_a_host_and_a_port() {
        let asked = read("CONNECT Example.org:443 HTTP/1.1\r\nHost: example.org:443\r\nProxy-Authorization: Basic eA==\r\n\r\n\x16").unwrap();
        assert_eq!(asked.target, Target { host: Host::Name("example.org".into()), port: 443 });
        assert_eq!((asked.authorization.as_deref(), asked.forward), (Some(&b"Basic eA=="[..]), None));
        assert_eq!(read("CONNECT a:1 HTTP/1.0\r\n\r\n").unwrap().authorization, None, "the control");
        for wrong in [
            "CONNECT example.org HTTP/1.1\r\n\r\n",
            "CONNECT http://example.org/ HTTP/1.1\r\n\r\n",
            "connect example.org:443 HTTP/1.1\r\n\r\n",
            "CONNECT a:1 HTTP/1.1\r\nProxy-Authorization: a\r\nproxy-authorization: b\r\n\r\n",
            "CONNECT a:1 HTTP/1.1\nHost: a\r\n\r\n",
            "CONNECT a:1 HTTP/2.0\r\n\r\n",
            "CONNECT a:1 HTTP/1.1\r\nX: a\r\n b\r\n\r\n",
        ] {
            assert!(read(wrong).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn what_goes_on_of_a_plain_request_is_for_its_server_alone() {
        let asked = read(
            "POST http://Example.org:8080/a?b HTTP/1.1\r\nHost: example.org:8080\r\nProxy-Authorization: Basic eA==\r\n\
             proxy-connection: keep-alive\r\nConnection: keep-alive, X-Hop\r\nX-Hop: 1\r\nUpgrade: h2c\r\nTE: trailers\r\nX-Kept:  2 \r\n\
             Content-Length: 3\r\n\r\nabc",
        )
        .unwrap();
        assert_eq!(asked.target, Target { host: Host::Name("example.org".into()), port: 8080 });
        let forward = String::from_utf8(asked.forward.unwrap()).unwrap();
        assert_eq!(
            forward,
            "POST /a?b HTTP/1.1\r\nHost: example.org:8080\r\nX-Kept: 2\r\nContent-Length: 3\r\nConnection: close\r\n\r\n"
        );
        let mut requests = Requests::once("example.org", 8080);
        let fed = requests.feed(format!("{forward}abc").as_bytes());
        assert_eq!((fed.forward, fed.refused), (forward.len() + 3, None));
        assert_eq!(requests.feed(b"G").refused, Some(Refused::AnotherRequest));
    }

    #[test]
    fn its_host_is_that_of_its_address_and_it_is_one_request() {
        let forward = |head: &str| read(head).map(|asked| String::from_utf8(asked.forward.unwrap()).unwrap());
        for (target, of) in [
            ("Example.org", "example.org"),
            ("example.org.:8080", "example.org:8080"),
            ("example.org:80", "example.org"),
            ("192.0.2.1:8080", "192.0.2.1:8080"),
            ("[2001:db8::1]", "[2001:db8::1]"),
        ] {
            let expected = format!("GET /a HTTP/1.1\r\nHost: {of}\r\nA: b\r\nConnection: close\r\n\r\n");
            for host in [of, "other.example", "a b"] {
                let head = format!("GET http://{target}/a HTTP/1.1\r\nA: b\r\nHOST: {host}\r\n\r\n");
                assert_eq!(forward(&head).as_deref(), Ok(expected.as_str()));
            }
            let old = format!("GET http://{target}/a HTTP/1.0\r\nA: b\r\n\r\n");
            assert_eq!(forward(&old).unwrap(), expected.replace("HTTP/1.1", "HTTP/1.0"));
            let Target { host, port } = read(&old).unwrap().target;
            let mut requests = Requests::once(&host.to_string(), port);
            assert_eq!(requests.feed(expected.as_bytes()).forward, expected.len(), "{host}");
            assert!(Requests::once("192.0.2.2", port).feed(expected.as_bytes()).refused.is_some());
        }
        assert_eq!(forward("GET http://a/ HTTP/1.1\r\n\r\n"), Err(Refused::NoHost.into()));
        for version in ["1.0", "1.1"] {
            let twice = format!("GET http://a/ HTTP/{version}\r\nHost: a\r\nhost: a\r\n\r\n");
            assert_eq!(forward(&twice), Err(Refused::SeveralHosts.into()));
        }
    }

    #[test]
    fn a_plain_request_has_an_address() {
        let line = |head: &str| {
            let asked = read(&format!("{head} HTTP/1.1\r\nHost: x\r\n\r\n"))?;
            let forward = String::from_utf8(asked.forward.unwrap()).unwrap();
            Ok::<_, NotServed>(forward.split(" HTTP").next().unwrap().to_owned())
        };
        assert_eq!(line("GET HTTP://a").unwrap(), "GET /");
        assert_eq!(line("GET http://a?b=/c").unwrap(), "GET /?b=/c");
        assert_eq!(line("OPTIONS http://a").unwrap(), "OPTIONS *");
        for (wrong, why) in [
            ("GET /", NotServed::Path),
            ("OPTIONS *", NotServed::Path),
            ("GET https://a/", NotServed::Scheme),
            ("GET ftp://a/", NotServed::Scheme),
            ("GET a:443", NotServed::Scheme),
            ("GET http://a/#b", NotServed::Address),
            ("GET http://a:/", NotServed::Target(NotATarget::Port)),
        ] {
            assert_eq!(line(wrong), Err(why), "{wrong}");
        }
        assert!(line("GET http://u:p@a/").is_err() && line("GET http:///").is_err());
        // What the server would have found its length by is not taken away from it.
        let taken =
            read("POST http://a/ HTTP/1.1\r\nConnection: content-length\r\nContent-Length: 3\r\n\r\n");
        assert_eq!(taken, Err(NotServed::Head(Refused::TakenAway("content-length"))));
    }
}
