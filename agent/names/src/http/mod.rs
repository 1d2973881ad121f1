//! HTTP/1: the host of every request of a connection, checked before the request goes on.
//!
//! A connection carries one request after another, and the server believes the `Host` of each. So all of them are read, with
//! their bodies, and where the server could find a request that was read as something else here, the connection ends: two
//! lengths, a length and chunks, a line that ends in LF alone, a folded line, a space before a colon, and what else is known as
//! request smuggling. The bytes that go on are those that came.
//!
//! | what | file |
//! |---|---|
//! | where in a connection the next byte is, and what goes on | here |
//! | one request's head: target, host, how long its body is | `head` |
//! | a body by its length, or in chunks | `body` |
//! | the head of an answer | `response` |
//!
//! Two things depend on the server's answer, and the client's bytes wait for it ([`Requests::awaits_response`]):
//!
//! - **Upgrade.** After 101 the connection speaks another protocol, and nothing is checked any more. So this is believed only of
//!   the first request: later, what looks like an answer could be the body of another. And only for WebSocket: HTTP/2 and TLS
//!   would name hosts again. A later request may have the header, as Java's client sends it with each; the check goes on.
//! - **Expect.** A server that answers without asking for the body may take what follows for the next request. So the body waits
//!   for 100, and if there is another answer, nothing follows. (Servers must answer; one that does not leaves the client waiting.)
//!   This, too, is for the first request only: the body of an earlier answer may be full of `HTTP/1.1 100 Continue`. A later one
//!   that has a body and the header is refused; clients make such requests over connections of their own, or without it.
//!
//! What stays open: a server that answers a request without reading the body that its head announces, and takes that for the
//! next request, is fooled by any client; and one that asks another header than `Host` for the host (`X-Forwarded-Host`, meant
//! for what stands before it) believes whoever sends it.

mod body;
mod head;
mod response;

pub use head::MAX_HEAD;

use crate::host::NotAHost;
use body::Body;
pub(crate) use head::{Scan, all, confusable, most_headers};
use response::{Reader, Said};

/// Why a connection goes no further.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// No HTTP/1.
    #[error("what the client sends is not HTTP/1")]
    NotHttp,
    /// HTTP/2 without TLS: its heads are compressed, and its requests interleaved.
    #[error("HTTP/2 without TLS is not passed on: use HTTP/1.1, or TLS")]
    Http2,
    /// A head that is too long.
    #[error("a request's head is longer than {MAX_HEAD} bytes")]
    Long,
    /// A line that ends in LF alone.
    #[error("a line of a request's head ends in LF alone (request smuggling)")]
    BareLf,
    /// A CR within a line.
    #[error("a line of a request's head has a CR within (request smuggling)")]
    BareCr,
    /// A head that is none.
    #[error("a request's head is malformed: {0}")]
    Malformed(httparse::Error),
    /// A proxy's method.
    #[error("CONNECT asks for a proxy, and this is none")]
    Connect,
    /// A target that no server is asked for.
    #[error("a request's target is neither a path nor an address with http://")]
    Target,
    /// No host.
    #[error("a request has no Host")]
    NoHost,
    /// Several.
    #[error("a request has several Host headers (request smuggling)")]
    SeveralHosts,
    /// A host that is none.
    #[error("a request's host: {0}")]
    Host(#[from] NotAHost),
    /// Another one.
    #[error("a request is for another host, {0}")]
    AnotherHost(String),
    /// Another port.
    #[error("a request is for another port than that of its connection")]
    AnotherPort,
    /// A length and an encoding, or several.
    #[error("a request has more than one of Content-Length and Transfer-Encoding (request smuggling)")]
    Lengths,
    /// A length that is none.
    #[error("a request's Content-Length is not one number")]
    Length,
    /// Another encoding than chunks.
    #[error("a request's Transfer-Encoding is not just \"chunked\"")]
    Encoding,
    /// A header that is spelled like another, or taken out of the request by one.
    #[error("a request has a header that some servers take for {0} (request smuggling)")]
    Confusable(&'static str),
    /// A header that takes another one away.
    #[error("a request's Connection header names {0} (request smuggling)")]
    TakenAway(&'static str),
    /// An expectation that nobody knows.
    #[error("a request's Expect is not \"100-continue\"")]
    Expectation,
    /// An expectation whose answer cannot be told from the body of an earlier one.
    #[error(
        "a request that is not the first of its connection has a body and Expect: send it over a connection of its own"
    )]
    LateExpectation,
    /// More than one request where there may be one.
    #[error("more comes than the one request that its connection is for")]
    AnotherRequest,
    /// A chunk that is none.
    #[error("a request's body: {0}")]
    Chunk(&'static str),
    /// More after an answer that may have ended the connection.
    #[error(
        "the server answered without asking for the body, and the client sends more: it could be read as a request"
    )]
    NotAskedFor,
    /// An answer that cannot be read.
    #[error("the server's answer to Upgrade or Expect cannot be read: {0}")]
    Response(&'static str),
    /// A protocol that was not, or may not be, switched to.
    #[error("the server switched to {0:?}: only WebSocket is passed on")]
    Switched(String),
}

/// What may be done with a client's bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
#[must_use]
pub struct Fed {
    /// So many of the bytes may go on, from the first.
    pub forward: usize,
    /// Why nothing after them may, and the connection ends.
    pub refused: Option<Refused>,
}

/// The requests of one connection.
///
/// ```
/// use ringfence_names::http::Requests;
///
/// let mut requests = Requests::new("example.org", 80);
/// let first = b"GET / HTTP/1.1\r\nHost: example.org\r\n\r\n";
/// assert_eq!(requests.feed(first).forward, first.len());
/// let second = b"GET / HTTP/1.1\r\nHost: other.example\r\n\r\n";
/// assert!(requests.feed(second).refused.is_some());
/// ```
#[derive(Debug)]
pub struct Requests {
    host: String,
    port: u16,
    phase: Phase,
    /// Of the head that is being waited for: what was looked at.
    scan: Scan,
    /// Whether a request went on before.
    is_first: bool,
    /// None goes on after the first.
    is_once: bool,
    awaits: Awaits,
    response: Reader,
    refused: Option<Refused>,
}

/// What the next byte of the client belongs to.
#[derive(Debug)]
enum Phase {
    Head,
    Body(Body),
    /// The server did not ask for a body that it was told of.
    NotAskedFor,
    /// Another protocol.
    Tunnel,
    /// Nothing may follow.
    Over,
}

/// What the server has to say first.
#[derive(Debug, Default, Clone, Copy)]
struct Awaits {
    /// Whether it wants the body.
    go_on: bool,
    /// Whether it switches protocols.
    switch: bool,
    /// It does, once the request is over.
    is_switching: bool,
}

impl Requests {
    /// A connection to `host` (as [`crate::host::read`] writes it, or an address as [`crate::proxy::Host`] does) at `port`.
    pub fn new(host: &str, port: u16) -> Self {
        Self {
            host: host.to_owned(),
            port,
            phase: Phase::Head,
            scan: Scan::default(),
            is_first: true,
            is_once: false,
            awaits: Awaits::default(),
            response: Reader::default(),
            refused: None,
        }
    }

    /// The same, for one request: nothing goes on after it.
    pub fn once(host: &str, port: u16) -> Self {
        Self { is_once: true, ..Self::new(host, port) }
    }

    /// Reads on. `pending` is all that came and did not go on yet: the rest of the last call, and what came since. It never has
    /// to be longer than [`MAX_HEAD`] to be decided on.
    pub fn feed(&mut self, pending: &[u8]) -> Fed {
        let mut forward = 0;
        while self.refused.is_none() {
            let rest = pending.get(forward..).unwrap_or_default();
            match self.step(rest) {
                Ok(0) => break,
                Ok(count) => forward += count,
                Err(refused) => self.refused = Some(refused),
            }
        }
        Fed { forward, refused: self.refused.clone() }
    }

    /// How many of the client's next bytes may go on whatever they are: a body's. Where all that was fed went on, so many may go on
    /// without being fed, and then be [told](Self::passed).
    pub fn opaque(&self) -> u64 {
        match &self.phase {
            Phase::Body(body) if self.refused.is_none() && !self.awaits.go_on => body.opaque(),
            _ => 0,
        }
    }

    /// So many of the [opaque](Self::opaque) bytes went on, and no more than those.
    pub fn passed(&mut self, count: u64) {
        if let Phase::Body(body) = &mut self.phase {
            body.passed(count);
            if body.is_over() {
                self.next_request();
            }
        }
    }

    /// Bytes of memory that the server's answer takes, as far as it is there.
    pub fn kept(&self) -> usize {
        self.response.kept()
    }

    /// The same, at most, once so many bytes more are given to [`Self::response`].
    pub fn kept_with(&self, more: usize) -> usize {
        self.response.kept_with(more)
    }

    /// Whether the client's bytes wait for what the server says: what it sends has to be given to [`Self::response`] first.
    pub fn awaits_response(&self) -> bool {
        self.refused.is_none() && (self.awaits.go_on || self.awaits.switch)
    }

    /// Reads what the server sent since the last call, and since the request went on. Afterwards [`Self::feed`] may have more
    /// to let go.
    ///
    /// # Errors
    /// [`Refused`]: the connection ends.
    pub fn response(&mut self, bytes: &[u8]) -> Result<(), Refused> {
        let mut rest = bytes;
        while self.awaits_response() && !rest.is_empty() {
            let (count, said) = match self.response.read(rest) {
                Ok(read) => read,
                Err(refused) => return self.refuse(refused),
            };
            rest = rest.get(count..).unwrap_or_default();
            if let Some(said) = said
                && let Err(refused) = self.answered(said)
            {
                return self.refuse(refused);
            }
        }
        self.refused.clone().map_or(Ok(()), Err)
    }

    /// Whether the connection speaks another protocol now: nothing more is checked, in either direction.
    pub fn is_tunnel(&self) -> bool {
        matches!(self.phase, Phase::Tunnel)
    }

    fn refuse(&mut self, refused: Refused) -> Result<(), Refused> {
        self.refused = Some(refused.clone());
        Err(refused)
    }

    /// How many bytes more may go on; none: others have to come first, from the client or from the server.
    fn step(&mut self, rest: &[u8]) -> Result<usize, Refused> {
        match &mut self.phase {
            _ if rest.is_empty() => Ok(0),
            Phase::Tunnel => Ok(rest.len()),
            Phase::NotAskedFor => Err(Refused::NotAskedFor),
            Phase::Over => Err(Refused::AnotherRequest),
            Phase::Body(_) if self.awaits.go_on => Ok(0),
            Phase::Body(body) => {
                let count = body.pass(rest)?;
                if body.is_over() {
                    self.next_request();
                }
                Ok(count)
            }
            Phase::Head if self.awaits.switch => Ok(0),
            Phase::Head => {
                let Some(length) = self.scan.end(rest)? else { return Ok(0) };
                self.head(rest.get(..length).unwrap_or_default())?;
                Ok(length)
            }
        }
    }

    fn head(&mut self, bytes: &[u8]) -> Result<(), Refused> {
        let head = head::read(bytes, &self.host, self.port)?;
        self.scan = Scan::default();
        let go_on = head.expects_continue && !head.body.is_over();
        if go_on && !self.is_first {
            return Err(Refused::LateExpectation);
        }
        self.awaits = Awaits { go_on, switch: head.has_upgrade && self.is_first, is_switching: false };
        self.is_first = false;
        if self.awaits_response() {
            self.response = Reader::default();
        }
        self.phase = Phase::Body(head.body);
        if let Phase::Body(body) = &self.phase
            && body.is_over()
        {
            self.next_request();
        }
        Ok(())
    }

    /// The request is over.
    fn next_request(&mut self) {
        self.phase = match self.awaits.is_switching {
            true => Phase::Tunnel,
            false if self.is_once => Phase::Over,
            false => Phase::Head,
        };
    }

    fn answered(&mut self, said: Said) -> Result<(), Refused> {
        match said {
            Said::Continue => self.awaits.go_on = false,
            Said::Wait => {}
            Said::Switch(protocol) => {
                let is_asked_for = self.awaits.switch && !self.awaits.go_on;
                if !is_asked_for || !protocol.eq_ignore_ascii_case("websocket") {
                    return Err(Refused::Switched(protocol));
                }
                self.awaits = Awaits { is_switching: true, ..Awaits::default() };
                if matches!(self.phase, Phase::Head | Phase::Over) {
                    self.phase = Phase::Tunnel;
                }
            }
            Said::Final => {
                if self.awaits.go_on {
                    self.phase = Phase::NotAskedFor;
                }
                self.awaits = Awaits::default();
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
