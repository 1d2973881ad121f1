//! TLS: which server a client asks for, read from what it sends before anything is encrypted.
//!
//! A ClientHello may be split over records and over reads at any byte. It is read once, strictly, and forwarded as it came.
//! rustls has a reader for it (`Acceptor`), made to answer: it does not show what it passed over, so here is one that passes
//! nothing over; tests make its input with rustls.
//!
//! **The hello after the hello.** A server may answer HelloRetryRequest, and the client then sends a second ClientHello. It has
//! to name the same server, but OpenSSL believes the second one: whoever only looks at the first has been talked round. So
//! [`Client`] looks at what follows until that can be no hello any more ([`State::Watching`]): at one more record, as a rule.
//! A client that offered early data may send any number of encrypted records first, and is watched to the end.
//!
//! **ECH.** The name in an encrypted ClientHello cannot be read. Browsers send the extension to every server, filled with random
//! bytes where the server has no key (GREASE), so that nobody on the way can tell the two apart; nor is it told apart here.
//! A container's own resolver gives no key (HTTPS records are empty), so its browsers send the random one.
//!
//! What stays open: a client that renegotiates within TLS 1.2 can send another name, encrypted. Servers have long stopped
//! to let clients begin that.

mod hello;

pub use hello::Hello;

use crate::host::NotAHost;

/// The type of a record with handshake messages, and of all others that a client may send.
pub(crate) const HANDSHAKE: u8 = 22;
const CHANGE_CIPHER_SPEC: u8 = 20;
const ALERT: u8 = 21;
const APPLICATION_DATA: u8 = 23;

/// Most bytes of a ClientHello. Those of today's browsers, with keys for post-quantum exchange, have two thousand.
pub const MAX_HELLO: usize = 16_384;
/// Most bytes of a record that is not encrypted (RFC 8446 section 5.1), and of one that is (RFC 5246 section 6.2.3).
const MAX_PLAIN: usize = 16_384;
const MAX_ENCRYPTED: usize = MAX_PLAIN + 2048;

/// A handshake message's type and length, and the type.
const MESSAGE_HEAD: usize = 4;
const CLIENT_HELLO: u8 = 1;

/// Why a connection goes no further.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// An SSLv2 hello, which a server may take for a newer one.
    #[error("the client speaks SSLv2")]
    Sslv2,
    /// No TLS, or not its beginning.
    #[error("the client does not begin with a TLS handshake (its record has type {0})")]
    NotAHandshake(u8),
    /// Another record between the pieces of a hello.
    #[error("a record of type {0} stands between the pieces of the ClientHello")]
    Interleaved(u8),
    /// A record of no known type.
    #[error("a record has type {0}, which is not TLS")]
    RecordType(u8),
    /// A version that no client sends.
    #[error("a record has version 0x{0:04x}, which is not TLS 1.0 to 1.3")]
    RecordVersion(u16),
    /// A record without content, or with too much.
    #[error("a record has {0} bytes")]
    RecordLength(usize),
    /// Another message than a hello.
    #[error("the client begins with a handshake message of type {0}, not with a ClientHello")]
    NotAHello(u8),
    /// A hello that is too long.
    #[error("the ClientHello has {0} bytes: more than {MAX_HELLO} are not read")]
    Long(usize),
    /// Something behind the hello, in its last record.
    #[error("the record with the end of the ClientHello goes on behind it")]
    Behind,
    /// A field that is not as the protocol has it.
    #[error("the ClientHello is malformed: {0}")]
    Malformed(&'static str),
    /// An extension twice.
    #[error("the ClientHello has extension {0} twice")]
    Twice(u16),
    /// A name that is none.
    #[error("the ClientHello's server name: {0}")]
    Name(#[from] NotAHost),
    /// A second hello that differs in what was judged.
    #[error("the second ClientHello names another server ({})", .0.as_deref().unwrap_or("none"))]
    AnotherName(Option<String>),
}

/// What may be done with the client's bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// Nothing yet: the hello is not all there.
    Reading,
    /// The hello is there. Once it is judged, what was given here may go on; what comes next has to be given here first.
    Watching,
    /// The hello is there, and no other will come: everything may go on.
    Done,
}

/// Reads what a client sends.
///
/// ```
/// use ringfence_names::tls::{Client, State};
///
/// let mut client = Client::new();
/// assert_eq!(client.feed(&[22, 3, 1, 0, 200, 1]), Ok(State::Reading));
/// assert!(client.feed(b"GET / HTTP/1.1").is_err());
/// ```
#[derive(Debug, Default)]
pub struct Client {
    record: Record,
    /// The handshake message that is being read: from its first byte.
    message: Vec<u8>,
    hello: Option<Hello>,
    is_done: bool,
    /// What was refused stays refused.
    refused: Option<Refused>,
}

/// Where in a record the next byte is.
#[derive(Debug, Default)]
struct Record {
    head: [u8; 5],
    /// Bytes of the head that are there.
    read: usize,
    /// Bytes of the content that are not there yet.
    left: usize,
}

impl Record {
    fn kind(&self) -> u8 {
        self.head[0]
    }
}

impl Client {
    /// Before the first byte.
    pub fn new() -> Self {
        Self::default()
    }

    /// The first hello, once it is there.
    pub fn hello(&self) -> Option<&Hello> {
        self.hello.as_ref()
    }

    /// Reads on: `bytes` are those that came since the last call.
    ///
    /// # Errors
    /// [`Refused`]: none of these bytes may go on, and nothing after them.
    pub fn feed(&mut self, bytes: &[u8]) -> Result<State, Refused> {
        if let Some(refused) = &self.refused {
            return Err(refused.clone());
        }
        match self.read(bytes) {
            Ok(()) if self.is_done => Ok(State::Done),
            Ok(()) if self.hello.is_some() => Ok(State::Watching),
            Ok(()) => Ok(State::Reading),
            Err(refused) => {
                self.refused = Some(refused.clone());
                Err(refused)
            }
        }
    }

    fn read(&mut self, mut bytes: &[u8]) -> Result<(), Refused> {
        while !bytes.is_empty() && !self.is_done {
            if self.record.left > 0 {
                let (content, rest) = bytes.split_at(bytes.len().min(self.record.left));
                self.record.left -= content.len();
                self.content(content)?;
                bytes = rest;
                continue;
            }
            let Some((first, rest)) = bytes.split_first() else { break };
            self.head(*first)?;
            bytes = rest;
        }
        Ok(())
    }

    /// One byte of a record's head; each is judged as soon as it is there.
    fn head(&mut self, byte: u8) -> Result<(), Refused> {
        let record = &mut self.record;
        if let Some(place) = record.head.get_mut(record.read) {
            *place = byte;
        }
        record.read += 1;
        let [kind, major, minor, length0, length1] = record.head;
        match record.read {
            1 => {
                let refused = match kind {
                    HANDSHAKE => return Ok(()),
                    _ if !self.message.is_empty() => Refused::Interleaved(kind),
                    CHANGE_CIPHER_SPEC | ALERT | APPLICATION_DATA if self.hello.is_some() => return Ok(()),
                    _ if self.hello.is_some() => Refused::RecordType(kind),
                    0x80.. => Refused::Sslv2,
                    _ => Refused::NotAHandshake(kind),
                };
                Err(refused)
            }
            3 if major != 3 || !(1..=3).contains(&minor) => {
                Err(Refused::RecordVersion(u16::from_be_bytes([major, minor])))
            }
            5 => {
                record.read = 0;
                record.left = usize::from(u16::from_be_bytes([length0, length1]));
                let most = if self.hello.is_some() { MAX_ENCRYPTED } else { MAX_PLAIN };
                match record.left {
                    0 => Err(Refused::RecordLength(0)),
                    length if length > most => Err(Refused::RecordLength(length)),
                    _ => Ok(()),
                }
            }
            _ => Ok(()),
        }
    }

    /// Content of a record, not empty, which may go on in the next call.
    fn content(&mut self, content: &[u8]) -> Result<(), Refused> {
        match (&self.hello, self.record.kind()) {
            (_, HANDSHAKE) => self.handshake(content),
            // What is encrypted is no hello, unless it is early data, which a server that wants another hello passes over.
            (Some(hello), APPLICATION_DATA) if !hello.early_data => {
                self.is_done = true;
                Ok(())
            }
            _ => Ok(()),
        }
    }

    fn handshake(&mut self, content: &[u8]) -> Result<(), Refused> {
        self.message.extend(content);
        if self.hello.is_some() {
            match looks_like_hello(&self.message) {
                Some(true) => {}
                // TLS 1.2: the client's key, or the encrypted end of a handshake that goes on with an earlier session.
                Some(false) => {
                    self.is_done = true;
                    return Ok(());
                }
                None => return Ok(()),
            }
        }
        let Some(([kind, length @ ..], body)) = self.message.split_first_chunk::<MESSAGE_HEAD>() else {
            return match self.message.first() {
                Some(&CLIENT_HELLO) | None => Ok(()),
                Some(&kind) => Err(Refused::NotAHello(kind)),
            };
        };
        if *kind != CLIENT_HELLO {
            return Err(Refused::NotAHello(*kind));
        }
        let [high, middle, low] = *length;
        let length = usize::from(high) << 16 | usize::from(middle) << 8 | usize::from(low);
        if length > MAX_HELLO {
            return Err(Refused::Long(length));
        }
        if body.len() < length {
            return Ok(());
        }
        if body.len() > length || self.record.left > 0 {
            return Err(Refused::Behind);
        }
        let hello = Hello::read(body)?;
        self.message = Vec::new();
        let Some(first) = &self.hello else {
            self.hello = Some(hello);
            return Ok(());
        };
        if (&hello.server_name, hello.ech) != (&first.server_name, first.ech) {
            return Err(Refused::AnotherName(hello.server_name));
        }
        self.is_done = true;
        Ok(())
    }
}

/// Whether handshake bytes after the first hello begin another; none: they are too few to tell.
///
/// They may be encrypted, and then begin with random bytes: a hello is told by its type, a length that a server would read
/// (OpenSSL: 131,396 at most) and its version's first byte. Random bytes are like that once in four million times.
fn looks_like_hello(message: &[u8]) -> Option<bool> {
    let is_like = |at: usize, byte: u8| match at {
        0 => byte == CLIENT_HELLO,
        1 => byte <= 2,
        4 => byte == 3,
        _ => true,
    };
    match message.iter().take(5).enumerate().all(|(at, byte)| is_like(at, *byte)) {
        true if message.len() < 5 => None,
        is_hello => Some(is_hello),
    }
}

#[cfg(test)]
mod handshakes;
#[cfg(test)]
mod tests;
