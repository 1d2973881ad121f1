//! DNS, as much of it as a container's resolver speaks: one question, one address or none.
//!
//! It is read here and not by a library, because what is wanted is what libraries hide: the question's very bytes, which the
//! answer repeats (resolvers that vary the case of a name compare them), and a name without compression, which no query needs
//! and no two readers have to follow to the same place. What is left is a header, labels and one pseudo-record.
//!
//! What stub resolvers ask of an answer: the id and the question of the query (all); QR (all); RA, or glibc and Go take an
//! answer without records for a referral and go on to another server; OPT where the query had one, or systemd-resolved takes
//! the server for one without EDNS and asks again; a definite answer where there is one, as musl waits after REFUSED.
//! None of them asks for AA. AD is never set, nor DO: nothing here is signed.

mod answer;
mod query;

pub use answer::{Answer, NEGATIVE_TTL, TTL};
pub use query::{Kind, Query, Treatment, Unreadable, read};

/// Most bytes of a query, over UDP or TCP: what servers agreed on as the largest message that is never fragmented. A question
/// takes 271 at most; the rest is for EDNS options.
pub const MAX_QUERY: usize = 1232;

/// Bytes of a message's header (RFC 1035 section 4.1.1).
const HEADER: usize = 12;
/// The class of everything: IN.
const INTERNET: u16 = 1;
/// The type of EDNS' pseudo-record (RFC 6891).
const OPT: u16 = 41;

/// Bits of a header's second word.
mod flag {
    pub(super) const RESPONSE: u16 = 0x8000;
    pub(super) const OPCODE: u16 = 0x7800;
    pub(super) const RECURSION_DESIRED: u16 = 0x0100;
    pub(super) const RECURSION_AVAILABLE: u16 = 0x0080;
    pub(super) const CHECKING_DISABLED: u16 = 0x0010;
}

/// Codes of answers; [`BAD_VERSION`](rcode::BAD_VERSION) has bits in the OPT record.
mod rcode {
    pub(super) const NO_ERROR: u16 = 0;
    pub(super) const FORMAT_ERROR: u16 = 1;
    pub(super) const SERVER_FAILURE: u16 = 2;
    pub(super) const NO_SUCH_NAME: u16 = 3;
    pub(super) const NOT_IMPLEMENTED: u16 = 4;
    pub(super) const REFUSED: u16 = 5;
    pub(super) const BAD_VERSION: u16 = 16;
}

/// A length before a message that no query has: the connection is of no use any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a message of {0} bytes over TCP: queries have {HEADER} to {MAX_QUERY}")]
pub struct BadFrame(pub u16);

/// The first message of what came over TCP (RFC 1035 section 4.2.2), if all of it is there: it and the two bytes before it are
/// what was read.
///
/// # Errors
/// [`BadFrame`], as soon as the length is there.
pub fn frame(bytes: &[u8]) -> Result<Option<&[u8]>, BadFrame> {
    let Some((length, rest)) = bytes.split_first_chunk::<2>() else { return Ok(None) };
    let length = u16::from_be_bytes(*length);
    match usize::from(length) {
        HEADER..=MAX_QUERY => Ok(rest.get(..usize::from(length))),
        _ => Err(BadFrame(length)),
    }
}

/// An answer as it goes over TCP.
pub fn framed(answer: &[u8]) -> Vec<u8> {
    // Answers have 512 bytes at most.
    let length = u16::try_from(answer.len()).unwrap_or(u16::MAX);
    let mut framed = Vec::with_capacity(2 + answer.len());
    framed.extend(length.to_be_bytes());
    framed.extend(answer.iter().take(usize::from(length)));
    framed
}

#[cfg(test)]
mod tests;
