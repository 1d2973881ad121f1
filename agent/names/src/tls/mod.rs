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
//! What follows passes only where it is surely none, whatever a server overlooks in a hello:
//!
//! | after the first hello | what becomes of it |
//! |---|---|
//! | a change of ciphers (one byte), an alert | passes, and the watch goes on |
//! | application data | passes; without early data it ends the watch: no server takes it for, or goes on with, a hello |
//! | a handshake message of type 1 | is read as a hello, and has to be one that names the same server |
//! | one of another type, before a change of ciphers | what a client of TLS 1.2 goes on with, which ends the watch; else refused |
//! | one of another type, after a change of ciphers | encrypted, as an earlier session of TLS 1.2 goes on: ends the watch |
//!
//! An encrypted message can begin with a 1 as well. Then it announces a length that its record does not have, with few
//! exceptions in a million; the watch goes on, and ends with the application data that come next.
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
/// Bytes by which what is kept grows.
const STEP: usize = 512;
/// Most bytes of a record that is not encrypted (RFC 8446 section 5.1), and of one that is (RFC 5246 section 6.2.3).
const MAX_PLAIN: usize = 16_384;
const MAX_ENCRYPTED: usize = MAX_PLAIN + 2048;

/// A handshake message's type and length, and the type.
const MESSAGE_HEAD: usize = 4;
const CLIENT_HELLO: u8 = 1;
/// What a client of TLS 1.2 goes on with before it encrypts: its certificate, its key, what RFC 4680 adds.
const GOES_ON: [u8; 3] = [11, 16, 23];

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
    /// A message after the hello that belongs to no handshake.
    #[error(
        "the client goes on with a handshake message of type {0}, which is none that follows a ClientHello"
    )]
    NotAfterHello(u8),
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
    /// Whether a change of ciphers came: what follows may be encrypted.
    has_changed_ciphers: bool,
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

    /// How many of the next bytes may go on whatever they are: of a record with early data. Where all that was fed may go on, so many
    /// may without being fed, and then be [told](Self::passed).
    pub fn opaque(&self) -> usize {
        let is_early = self.hello.as_ref().is_some_and(|hello| hello.early_data);
        match self.record.kind() {
            APPLICATION_DATA if is_early && !self.is_done && self.refused.is_none() => self.record.left,
            _ => 0,
        }
    }

    /// So many of the [opaque](Self::opaque) bytes went on, and no more than those.
    pub fn passed(&mut self, count: usize) {
        self.record.left = self.record.left.saturating_sub(count);
    }

    /// Bytes of memory that a message takes which is not all there.
    pub fn kept(&self) -> usize {
        self.message.capacity()
    }

    /// The same, at most, once so many bytes more are fed.
    pub fn kept_with(&self, more: usize) -> usize {
        let length = self.message.len().saturating_add(more);
        self.message.capacity().max(length.next_multiple_of(STEP))
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
        let ends_watch = self.is_over_by_data();
        let record = &mut self.record;
        if let Some(place) = record.head.get_mut(record.read) {
            *place = byte;
        }
        record.read += 1;
        let [kind, major, minor, length0, length1] = record.head;
        match record.read {
            1 => {
                let refused = match kind {
                    // Of a second hello that is longer than one record, more than one record.
                    HANDSHAKE => {
                        return announced(&self.message)
                            .filter(|length| *length > MAX_HELLO)
                            .map_or(Ok(()), |length| Err(Refused::Long(length)));
                    }
                    APPLICATION_DATA if ends_watch => return Ok(()),
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
                    length if kind == CHANGE_CIPHER_SPEC && length != 1 => Err(Refused::RecordLength(length)),
                    length if length > most => Err(Refused::RecordLength(length)),
                    _ => Ok(()),
                }
            }
            _ => Ok(()),
        }
    }

    /// Whether application data mean that no other hello comes: without early data, which a server that wants another hello
    /// passes over, none waits for a hello that goes on behind them.
    fn is_over_by_data(&self) -> bool {
        self.hello.as_ref().is_some_and(|hello| !hello.early_data)
    }

    /// Content of a record, not empty, which may go on in the next call.
    fn content(&mut self, content: &[u8]) -> Result<(), Refused> {
        match self.record.kind() {
            HANDSHAKE => return self.handshake(content),
            CHANGE_CIPHER_SPEC => self.has_changed_ciphers = true,
            APPLICATION_DATA if self.is_over_by_data() => self.is_done = true,
            _ => {}
        }
        Ok(())
    }

    /// Puts content behind what is there. It grows by little, and not above what was announced: many clients at once can have a
    /// hello each.
    fn keep(&mut self, content: &[u8]) {
        let (now, more) = (self.message.len(), content.len());
        let wanted = now.saturating_add(more);
        if self.message.capacity() < wanted {
            let most = announced(&self.message).map_or(wanted, |length| MESSAGE_HEAD.saturating_add(length));
            self.message.reserve_exact(wanted.next_multiple_of(STEP).min(most).max(wanted) - now);
        }
        self.message.extend_from_slice(content);
    }

    fn handshake(&mut self, content: &[u8]) -> Result<(), Refused> {
        let first = self.message.first().or(content.first()).copied().unwrap_or_default();
        match (first, self.hello.is_some()) {
            (CLIENT_HELLO, _) => {}
            (kind, false) => return Err(Refused::NotAHello(kind)),
            (kind, true) if self.has_changed_ciphers || GOES_ON.contains(&kind) => {
                self.is_done = true;
                return Ok(());
            }
            (kind, true) => return Err(Refused::NotAfterHello(kind)),
        }
        self.keep(content);
        let Some(length) = announced(&self.message) else { return Ok(()) };
        // A second one may be encrypted, and no hello: that is seen by what comes after its record.
        if length > MAX_HELLO && self.hello.is_none() {
            return Err(Refused::Long(length));
        }
        let body = self.message.get(MESSAGE_HEAD..).unwrap_or_default();
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

/// The length that a message's head announces, once that is there.
fn announced(message: &[u8]) -> Option<usize> {
    let [_, high, middle, low] = *message.first_chunk::<MESSAGE_HEAD>()?;
    Some(usize::from(high) << 16 | usize::from(middle) << 8 | usize::from(low))
}

#[cfg(test)]
mod handshakes;
#[cfg(test)]
mod tests;
