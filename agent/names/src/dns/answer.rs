//! Answers. None is longer than the 512 bytes that every client takes over UDP, so none is ever truncated.

use super::{INTERNET, Kind, MAX_QUERY, OPT, Query, flag, rcode};
use std::net::Ipv4Addr;

/// How long clients may remember an address, seconds.
pub const TTL: u32 = 60;
/// How long clients may remember that there is none, seconds: a name that is granted meanwhile should be found soon.
pub const NEGATIVE_TTL: u32 = 5;

/// The type of a zone's start, which an answer without records needs (RFC 2308): who gets none may not remember it, and asks
/// every time.
const SOA: u16 = 6;
/// Where the question's name is in every message of ours, as a compressed name.
const QUESTION_NAME: u16 = 0xc00c;

/// What is said.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answer {
    /// The name's address. To a question that is not for one, this says what [`Answer::Empty`] does.
    Address(Ipv4Addr),
    /// NOERROR without records: the name exists, and has nothing of that type.
    Empty,
    /// NXDOMAIN.
    NoSuchName,
    /// REFUSED.
    Refused,
    /// SERVFAIL.
    Failed,
}

impl Query {
    /// The answer to this query: at most 512 bytes, without TCP's length.
    pub fn answer(&self, answer: Answer) -> Vec<u8> {
        match answer {
            Answer::Address(address) if (self.kind, self.class) == (Kind::A, INTERNET) => {
                self.message(rcode::NO_ERROR, Record::Address(address))
            }
            Answer::Address(_) | Answer::Empty => self.message(rcode::NO_ERROR, Record::ZoneStart),
            Answer::NoSuchName => self.message(rcode::NO_SUCH_NAME, Record::ZoneStart),
            Answer::Refused => self.message(rcode::REFUSED, Record::None),
            Answer::Failed => self.message(rcode::SERVER_FAILURE, Record::None),
        }
    }

    /// That EDNS has no such version (RFC 6891 section 6.1.3).
    pub(super) fn bad_version(&self) -> Vec<u8> {
        self.message(rcode::BAD_VERSION, Record::None)
    }

    fn message(&self, code: u16, record: Record) -> Vec<u8> {
        let (answers, authorities) = match record {
            Record::None => (0, 0),
            Record::Address(_) => (1, 0),
            Record::ZoneStart => (0, 1),
        };
        let mut message = Vec::with_capacity(512);
        let flags = flag::RESPONSE | flag::RECURSION_AVAILABLE | self.flags | (code & 0xf);
        for word in [self.id, flags, 1, answers, authorities, u16::from(self.edns.is_some())] {
            message.extend(word.to_be_bytes());
        }
        message.extend(&self.question);
        record.write(&mut message);
        if self.edns.is_some() {
            // The root's name; how much is taken here; the code's upper bits, version 0, no DO: nothing is signed; no options.
            message.push(0);
            message.extend(OPT.to_be_bytes());
            message.extend((MAX_QUERY as u16).to_be_bytes());
            message.extend([(code >> 4) as u8, 0, 0, 0, 0, 0]);
        }
        message
    }
}

/// What an answer has beside its question.
#[derive(Debug, Clone, Copy)]
enum Record {
    None,
    Address(Ipv4Addr),
    /// Of the root: the one zone that every name is in.
    ZoneStart,
}

impl Record {
    fn write(self, message: &mut Vec<u8>) {
        match self {
            Self::None => {}
            Self::Address(address) => {
                for word in [QUESTION_NAME, Kind::A.0, INTERNET] {
                    message.extend(word.to_be_bytes());
                }
                message.extend(TTL.to_be_bytes());
                message.extend([0, 4]);
                message.extend(address.octets());
            }
            Self::ZoneStart => {
                message.push(0);
                for word in [SOA, INTERNET] {
                    message.extend(word.to_be_bytes());
                }
                message.extend(NEGATIVE_TTL.to_be_bytes());
                // The root for the server and for its keeper, then serial, refresh, retry, expire, minimum.
                message.extend([0, 22, 0, 0]);
                for number in [1, 3600, 600, 86_400, NEGATIVE_TTL] {
                    message.extend(number.to_be_bytes());
                }
            }
        }
    }
}

/// An answer to what could not be read: the header alone.
pub(super) fn without_question(id: u16, flags: u16, code: u16) -> Vec<u8> {
    let repeated = flags & (flag::OPCODE | flag::RECURSION_DESIRED);
    let flags = flag::RESPONSE | flag::RECURSION_AVAILABLE | repeated | code;
    [id, flags, 0, 0, 0, 0].iter().flat_map(|word| word.to_be_bytes()).collect()
}
