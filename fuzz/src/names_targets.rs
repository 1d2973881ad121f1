//! What is tried on what governed clients send: DNS queries, ClientHellos, requests of HTTP/1. Beside "no panic": another
//! reader, of the kind that servers have, reads the same.

use axum::body::Body;
use http_body::Body as _;
use hyper::{Request, Response, body::Incoming, rt::ReadBufCursor, server::conn::http1, service::service_fn};
use ringfence_names::{
    dns::{self, Answer},
    host,
    http::{Fed, MAX_HEAD, Requests},
    proxy::{
        Host, Target,
        http::{Asked, NotServed, Reader},
        socks,
    },
    tls::{Client, Hello, Refused, State},
};
use ringfence_wire::requests::{self, RequestRule};
use rustls::server::Acceptor;
use std::{
    convert::Infallible,
    future::poll_fn,
    io,
    net::Ipv4Addr,
    pin::{Pin, pin},
    sync::Mutex,
    task::{Context, Poll, Waker},
};
use url::Url;

/// A DNS query: every answer to it is one that a resolver takes, and another reader can read.
pub fn dns(data: &[u8]) {
    if let Ok(Some(message)) = dns::frame(data) {
        assert_eq!(&data[2..2 + message.len()], message);
    }
    let query = match dns::read(data) {
        Ok(query) => query,
        Err(unreadable) => {
            let Some(answer) = unreadable.answer else { return };
            assert!(answer.len() <= 512 && answer[..2] == data[..2] && answer[2] & 0x80 != 0);
            return;
        }
    };
    assert!(query.name.bytes().all(|byte| byte.is_ascii_graphic() && !byte.is_ascii_uppercase()));
    assert!(!query.name.is_empty() && query.name.len() <= 4 * 255);
    for answer in [
        Answer::Address(Ipv4Addr::new(198, 18, 0, 1)),
        Answer::Empty,
        Answer::NoSuchName,
        Answer::Refused,
        Answer::Failed,
    ] {
        let message = query.answer(answer);
        assert!(message.len() <= 512 && message[..2] == data[..2]);
        // The header's counts apart, the question is where it was.
        let end = 12 + data[12..].iter().position(|byte| *byte == 0).expect("a name ends") + 5;
        let end = end.min(data.len()).min(message.len());
        let same =
            data[12..end].iter().zip(&message[12..end]).take_while(|(one, other)| one == other).count();
        assert!(same + 4 >= end - 12 || query.name.contains("\\000"), "{data:?} {message:?}");
        if (query.kind, query.class) == (dns::Kind::A, 1) {
            let packet = simple_dns::Packet::parse(&message).expect("another reader reads it");
            assert_eq!(packet.questions.len(), 1);
            assert_eq!(packet.answers.len(), usize::from(matches!(answer, Answer::Address(_))));
        }
    }
}

/// A client's first bytes, after a byte that says how they are split: the verdict is the same however they are, and rustls,
/// where it takes a hello that was taken here, takes the same name from it.
pub fn client_hello(data: &[u8]) {
    let Some((size, stream)) = data.split_first() else { return };
    let whole = hello(stream, stream.len().max(1));
    assert_eq!(hello(stream, usize::from(*size).max(1)), whole);
    let Ok((_, Some(hello))) = whole else { return };
    if let Some(name) = &hello.server_name {
        assert_eq!(host::read(name.as_bytes()).as_ref(), Ok(name));
    }
    if let Some(name) = accepted(stream) {
        assert_eq!(hello.server_name, name);
    }
}

fn hello(stream: &[u8], size: usize) -> Result<(State, Option<Hello>), Refused> {
    let mut client = Client::new();
    let mut state = State::Reading;
    for piece in stream.chunks(size) {
        state = client.feed(piece)?;
    }
    Ok((state, client.hello().cloned()))
}

/// The name that rustls takes from a hello.
fn accepted(mut stream: &[u8]) -> Option<Option<String>> {
    let mut acceptor = Acceptor::default();
    while !stream.is_empty() {
        acceptor.read_tls(&mut stream).ok()?;
        if let Some(accepted) = acceptor.accept().ok()? {
            return Some(accepted.client_hello().server_name().map(str::to_ascii_lowercase));
        }
    }
    None
}

/// A client's stream, after a byte that says how it is split, and, after two NULs, the server's: what goes on is the same
/// however it is split, and whether its bodies are looked at or not, and hyper finds no request for another host in it.
pub fn http_requests(data: &[u8]) {
    let Some((size, rest)) = data.split_first() else { return };
    let end = rest.windows(2).position(|two| two == b"\0\0");
    let (stream, server) = end.map_or((rest, &[][..]), |end| (&rest[..end], &rest[end + 2..]));
    let whole = forwarded(stream, stream.len().max(1), server);
    assert_eq!(forwarded(stream, usize::from(*size).max(1), server), whole);
    let (Fed { forward, .. }, is_tunnel) = whole;
    assert!(forward <= stream.len());
    if !is_tunnel {
        for host in hosts(&stream[..forward]) {
            let name = host.split(':').next().unwrap_or_default();
            assert!(name.eq_ignore_ascii_case("a.example"), "{host:?} got through");
        }
    }
}

/// A rule for requests, a NUL, and a request's target: a path that is let through is one that a browser reads as it was compared,
/// and a rule without stars lets through no other.
pub fn request_target(data: &[u8]) {
    let Ok(text) = str::from_utf8(data) else { return };
    let (rule, target) = text.split_once('\0').unwrap_or(("* /**", text));
    let Ok(target) = requests::Target::read(target) else { return };
    let path = target.path();
    assert!(!path.contains("//") && !path.split('/').any(|segment| matches!(segment, "." | "..")), "{path}");
    let url = Url::parse(&format!("https://a.example{path}")).expect("a path of a URL");
    assert_eq!(url.path().split('/').count(), path.split('/').count(), "a browser reads other segments");
    let again = requests::Target::read(path).expect("what is compared is a target");
    assert_eq!(again.path(), path, "in one spelling");
    let Ok(rule) = rule.parse::<RequestRule>() else { return };
    let written = rule.to_string();
    assert_eq!(written.parse::<RequestRule>().as_ref(), Ok(&rule), "a rule is read as it is written");
    assert!(!rule.allows("TRACE", &target));
    let (method, of) = written.split_once(' ').expect("a method and a path");
    let method = if method == "*" { "GET" } else { method };
    if !rule.allows(method, &target) {
        return;
    }
    if !of.contains(['*', '?']) {
        assert_eq!(of, path);
    }
    // What a rule names it lets through as it is; what its stars let through is that for servers that decode, too.
    if of.contains(['%', ';', '?']) {
        return;
    }
    let once = percent_decoded(path);
    let twice = percent_decoded(&once);
    for served in [normal(path), normal(&once), normal(&twice)] {
        let read =
            requests::Target::read(&served).unwrap_or_else(|error| panic!("{path} can be {served}: {error}"));
        assert!(rule.allows(method, &read), "{path} can be {served}");
    }
}

/// As a server decodes.
fn percent_decoded(path: &str) -> String {
    let mut out = Vec::new();
    let mut rest = path.as_bytes();
    while let [first, behind @ ..] = rest {
        let digit = |at: usize| behind.get(at).and_then(|byte| char::from(*byte).to_digit(16));
        match (first, digit(0), digit(1)) {
            (b'%', Some(high), Some(low)) => {
                out.push(u8::try_from(high * 16 + low).expect("two digits"));
                rest = &behind[2..];
            }
            _ => {
                out.push(*first);
                rest = behind;
            }
        }
    }
    String::from_utf8(out).expect("what is let through decodes to text")
}

/// As one normalises then: backslashes are slashes, parameters are cut off, dots and empty segments taken out; written as a target.
fn normal(path: &str) -> String {
    let mut kept: Vec<&str> = Vec::new();
    let segments: Vec<&str> = path.split(['/', '\\']).skip(1).collect();
    for (at, segment) in segments.iter().enumerate() {
        match segment.split(';').next().unwrap_or_default() {
            "" if at + 1 < segments.len() => {}
            "." => {}
            ".." => drop(kept.pop()),
            name => kept.push(name),
        }
    }
    let mut out = String::new();
    for byte in format!("/{}", kept.join("/")).bytes() {
        match byte {
            b if b.is_ascii_alphanumeric() || b"-._~/!$&'()*+,=:@%".contains(&b) => out.push(char::from(b)),
            other => out.push_str(&format!("%{other:02X}")),
        }
    }
    out
}

/// What goes on of a stream that comes in pieces of `size` bytes, with the server's answer once it is waited for.
fn forwarded(stream: &[u8], size: usize, server: &[u8]) -> (Fed, bool) {
    let mut requests = Requests::new("a.example", 80);
    let (mut gone, mut come) = (0, 0);
    loop {
        let fed = requests.feed(&stream[gone..come]);
        gone += fed.forward;
        assert!(fed.refused.is_some() || requests.awaits_response() || come - gone < MAX_HEAD);
        if let Some(refused) = fed.refused {
            return (Fed { forward: gone, refused: Some(refused) }, requests.is_tunnel());
        }
        if requests.awaits_response() && come == stream.len() {
            // All that the client had to say was held back, or went on: now the server answers.
            for piece in server.chunks(size) {
                if let Err(refused) = requests.response(piece) {
                    return (Fed { forward: gone, refused: Some(refused) }, false);
                }
            }
            let fed = requests.feed(&stream[gone..]);
            return (Fed { forward: gone + fed.forward, refused: fed.refused }, requests.is_tunnel());
        }
        if come == stream.len() {
            return (Fed { forward: gone, refused: None }, requests.is_tunnel());
        }
        let is_held = gone < come;
        come = stream.len().min(come + size);
        // A body may go on without being looked at, where nothing is held before it.
        if !is_held {
            let opaque = requests.opaque().min((come - gone) as u64);
            requests.passed(opaque);
            gone += opaque as usize;
        }
    }
}

/// The hosts of all requests that hyper's server reads in a stream.
fn hosts(stream: &[u8]) -> Vec<String> {
    let hosts = Mutex::new(Vec::new());
    let service = service_fn(|request: Request<Incoming>| {
        let host =
            request.headers().get("host").map(|host| String::from_utf8_lossy(host.as_bytes()).into_owned());
        let authority = request.uri().authority().map(ToString::to_string);
        let mut seen = hosts.lock().expect("no one else has it");
        seen.push(host.unwrap_or_default());
        seen.extend(authority);
        async move {
            let mut body = request.into_body();
            while let Some(Ok(_)) = poll_fn(|context| Pin::new(&mut body).poll_frame(context)).await {}
            Ok::<_, Infallible>(Response::new(Body::empty()))
        }
    });
    let mut builder = http1::Builder::new();
    builder.header_read_timeout(None);
    let mut connection = pin!(builder.serve_connection(Whole(stream.to_vec(), 0), service));
    let mut context = Context::from_waker(Waker::noop());
    // Nothing is waited for: what is pending has only to be asked again.
    for _ in 0..10_000 {
        if connection.as_mut().poll(&mut context).is_ready() {
            break;
        }
    }
    hosts.lock().expect("no one else has it").clone()
}

/// A connection on which everything has come, and all answers are taken.
struct Whole(Vec<u8>, usize);

impl hyper::rt::Read for Whole {
    fn poll_read(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
        mut into: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        let count = into.remaining().min(self.0.len() - self.1);
        into.put_slice(&self.0[self.1..self.1 + count]);
        self.1 += count;
        Poll::Ready(Ok(()))
    }
}

impl hyper::rt::Write for Whole {
    fn poll_write(self: Pin<&mut Self>, _: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

/// What a client asks a proxy for. By HTTP: the same however it is split, a target that reads back as itself, and of a plain request
/// nothing goes on that was for the proxy, nor, as hyper reads it, to another host. By SOCKS: no message is whole before its last byte.
pub fn proxy(data: &[u8]) {
    if data.first() == Some(&socks::VERSION) {
        return by_socks(data);
    }
    let whole = Reader::default().read(data);
    assert_eq!(by_bytes(data), whole);
    let Ok(Some((Asked { target, forward, .. }, taken))) = whole else { return };
    assert!(taken <= data.len() && data[..taken].ends_with(b"\r\n\r\n"));
    is_itself(&target);
    let (Some(head), Host::Name(name)) = (forward, target.host) else { return };
    let mut headers = head.split(|byte| *byte == b'\n').skip(1).map(<[u8]>::to_ascii_lowercase);
    assert!(!headers.any(|line| line.starts_with(b"proxy-") || line.starts_with(b"upgrade:")));
    let mut requests = Requests::once(&name, target.port);
    let mut stream = head;
    stream.extend(&data[taken..]);
    let forward = requests.feed(&stream).forward;
    let seen = hosts(&stream[..forward]);
    assert!(seen.len() <= 1, "{seen:?}: more than one request went on");
    for host in seen {
        let of = host.split(':').next().unwrap_or_default();
        assert!(of.eq_ignore_ascii_case(&name), "{host:?} got through to {name}");
    }
}

/// What a reader makes of bytes that come one by one.
fn by_bytes(data: &[u8]) -> Result<Option<(Asked, usize)>, NotServed> {
    let mut reader = Reader::default();
    for end in 0..data.len() {
        let read = reader.read(&data[..end]);
        if !matches!(read, Ok(None)) {
            return read;
        }
    }
    reader.read(data)
}

/// Whether a target that was read is read from what it is written as.
fn is_itself(target: &Target) {
    let line = format!("CONNECT {}:{} HTTP/1.1\r\n\r\n", target.host, target.port);
    let again = Reader::default().read(line.as_bytes()).expect("it is served").expect("it is whole");
    assert_eq!(again.0.target, *target, "{line}");
}

fn by_socks(data: &[u8]) {
    let Ok(Some((_, greeting))) = socks::greeting(data) else { return };
    assert!((0..greeting).all(|end| matches!(socks::greeting(&data[..end]), Ok(None))));
    let rest = &data[greeting..];
    let Ok(Some((said, taken))) = socks::password(rest) else { return };
    assert_eq!(taken, 3 + said.name.len() + said.password.len());
    assert!((0..taken).all(|end| matches!(socks::password(&rest[..end]), Ok(None))));
    let rest = &rest[taken..];
    let Ok(Some((target, taken))) = socks::request(rest) else { return };
    assert!((0..taken).all(|end| matches!(socks::request(&rest[..end]), Ok(None))));
    is_itself(&target);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What the other readers find where there is something to find: or their agreement would say nothing.
    #[test]
    fn the_other_readers_read() {
        let other = b"GET / HTTP/1.1\r\nHost: b.example\r\n\r\n";
        let post = b"POST / HTTP/1.1\r\nHost: a.example:80\r\nContent-Length: 4\r\n\r\nGET ";
        assert_eq!(hosts(&[&post[..], other].concat()), ["a.example:80", "b.example"]);
        let hello = include_bytes!("../corpus/client_hello/records-of-7");
        assert_eq!(accepted(&hello[1..]).flatten().as_deref(), Some("a.example"));
    }
}
