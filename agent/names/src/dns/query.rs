//! One query, read strictly.

use super::{HEADER, INTERNET, MAX_QUERY, OPT, answer, flag, rcode};
use crate::host;
use std::fmt;

/// Most bytes of a name on the wire (RFC 1035 section 2.3.4).
const MAX_WIRE_NAME: usize = 255;
/// Bytes of an OPT record before its options: the root's name, type, size, flags, length.
const OPT_FIXED: usize = 11;

/// What is asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Query {
    /// The client's number for it.
    pub id: u16,
    /// The name as it is shown and recorded, in lower case and without the final dot; the root is `.`. A byte that is no
    /// printable ASCII character, and a dot or a backslash within a label, is written `\DDD`. It can be anything, also below a
    /// name that is granted (`a@b.example.org`): whether it is granted is asked of [`Self::host`].
    pub name: String,
    /// The type.
    pub kind: Kind,
    /// The class: 1 is IN.
    pub class: u16,
    /// With EDNS: how many bytes of an answer the client takes over UDP.
    pub edns: Option<u16>,
    /// The question, byte for byte.
    pub(super) question: Vec<u8>,
    /// The flags that an answer repeats.
    pub(super) flags: u16,
}

/// A type of records.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Kind(pub u16);

impl Kind {
    /// An IPv4 address.
    pub const A: Self = Self(1);
    /// An IPv6 address.
    pub const AAAA: Self = Self(28);
    /// How a service is reached.
    pub const SVCB: Self = Self(64);
    /// How a site is reached.
    pub const HTTPS: Self = Self(65);
}

/// What people write for a type (the IANA registry of DNS parameters), of those that resolvers are asked for.
const KINDS: &[(u16, &str)] = &[
    (1, "A"),
    (2, "NS"),
    (5, "CNAME"),
    (6, "SOA"),
    (10, "NULL"),
    (12, "PTR"),
    (13, "HINFO"),
    (15, "MX"),
    (16, "TXT"),
    (28, "AAAA"),
    (29, "LOC"),
    (33, "SRV"),
    (35, "NAPTR"),
    (43, "DS"),
    (44, "SSHFP"),
    (46, "RRSIG"),
    (47, "NSEC"),
    (48, "DNSKEY"),
    (52, "TLSA"),
    (64, "SVCB"),
    (65, "HTTPS"),
    (251, "IXFR"),
    (252, "AXFR"),
    (255, "ANY"),
    (256, "URI"),
    (257, "CAA"),
];

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match KINDS.iter().find(|(kind, _)| *kind == self.0) {
            Some((_, name)) => f.write_str(name),
            // RFC 3597 section 5.
            None => write!(f, "TYPE{}", self.0),
        }
    }
}

/// What is said of a name that is granted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Treatment {
    /// Its address.
    Address,
    /// That it exists and has nothing of this type: clients go on with its IPv4 address.
    Empty,
    /// Nothing: such records are text, which a channel could be made of, or lead elsewhere.
    Refused,
}

impl Query {
    /// The name, if hosts are called so: letters, digits, hyphens and underscores. No other name is ever granted.
    pub fn host(&self) -> Option<&str> {
        host::read(self.name.as_bytes()).is_ok().then_some(self.name.as_str())
    }

    /// What to say if the name is granted. Any other name does not exist, whatever is asked for: that ends the client's
    /// question, while a refusal would send it to another server, or have it wait.
    pub fn treatment(&self) -> Treatment {
        match self.kind {
            _ if self.class != INTERNET => Treatment::Refused,
            Kind::A => Treatment::Address,
            Kind::AAAA | Kind::HTTPS | Kind::SVCB => Treatment::Empty,
            _ => Treatment::Refused,
        }
    }
}

/// A message that is no query, or not one that is understood.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{reason}")]
pub struct Unreadable {
    /// Why.
    pub reason: &'static str,
    /// What to answer: FORMERR, NOTIMP or BADVERS. None to what may be an answer itself: two resolvers would go on for ever.
    pub answer: Option<Vec<u8>>,
}

/// Reads one query: a header, one question, and at most an OPT record.
///
/// # Errors
/// [`Unreadable`], for anything else: several questions, other records, a compressed name, bytes behind the end.
pub fn read(message: &[u8]) -> Result<Query, Unreadable> {
    let silent = |reason| Unreadable { reason, answer: None };
    let Some((header, rest)) = message.split_first_chunk::<HEADER>() else {
        return Err(silent("it is shorter than a DNS header"));
    };
    let [id0, id1, flags0, flags1, counts @ ..] = *header;
    let (id, flags) = (u16::from_be_bytes([id0, id1]), u16::from_be_bytes([flags0, flags1]));
    if flags & flag::RESPONSE != 0 {
        return Err(silent("it is an answer"));
    }
    let bare = |reason, code| Unreadable { reason, answer: Some(answer::without_question(id, flags, code)) };
    let malformed = |reason| bare(reason, rcode::FORMAT_ERROR);
    if flags & flag::OPCODE != 0 {
        return Err(bare("it is no standard query", rcode::NOT_IMPLEMENTED));
    }
    if message.len() > MAX_QUERY {
        return Err(malformed("it is longer than any query"));
    }
    let extra = match counts {
        [0, 1, 0, 0, 0, 0, 0, extra @ (0 | 1)] => extra,
        [0, 1, ..] => return Err(malformed("it has records beside its question")),
        _ => return Err(malformed("it has not one question")),
    };
    let (name, length) = name(rest).map_err(malformed)?;
    let Some(([kind0, kind1, class0, class1], rest)) =
        rest.get(length..).and_then(|rest| rest.split_first_chunk::<4>())
    else {
        return Err(malformed("its question is not all there"));
    };
    let mut query = Query {
        id,
        name,
        kind: Kind(u16::from_be_bytes([*kind0, *kind1])),
        class: u16::from_be_bytes([*class0, *class1]),
        edns: None,
        question: message.get(HEADER..message.len() - rest.len()).unwrap_or_default().to_vec(),
        flags: flags & (flag::RECURSION_DESIRED | flag::CHECKING_DISABLED),
    };
    match extra {
        0 if rest.is_empty() => Ok(query),
        0 => Err(malformed("it has bytes behind its end")),
        _ => {
            let (size, version) = opt(rest).map_err(malformed)?;
            query.edns = Some(size);
            match version {
                0 => Ok(query),
                _ => Err(Unreadable {
                    reason: "it speaks a version of EDNS that does not exist yet",
                    answer: Some(query.bad_version()),
                }),
            }
        }
    }
}

/// A name as text, and its bytes on the wire.
fn name(bytes: &[u8]) -> Result<(String, usize), &'static str> {
    let (mut name, mut at) = (String::new(), 0);
    loop {
        let length = match bytes.get(at) {
            Some(0) => break,
            Some(length @ 1..=63) => usize::from(*length),
            Some(0xc0..) => return Err("its name is compressed, which a question never needs"),
            Some(_) => return Err("its name has a label of no known kind"),
            None => return Err("its name does not end"),
        };
        let label = bytes.get(at + 1..=at + length).ok_or("its name does not end")?;
        at += 1 + length;
        if at >= MAX_WIRE_NAME {
            return Err("its name is longer than any");
        }
        if !name.is_empty() {
            name.push('.');
        }
        push_label(&mut name, label);
    }
    if name.is_empty() {
        name.push('.');
    }
    Ok((name, at + 1))
}

fn push_label(name: &mut String, label: &[u8]) {
    for byte in label {
        match byte {
            b'.' | b'\\' => name.push_str(&format!("\\{byte:03}")),
            0x21..=0x7e => name.push(char::from(byte.to_ascii_lowercase())),
            _ => name.push_str(&format!("\\{byte:03}")),
        }
    }
}

/// The size and the version that an OPT record says; it is all that `bytes` are.
fn opt(bytes: &[u8]) -> Result<(u16, u8), &'static str> {
    let (fixed, mut options) =
        bytes.split_first_chunk::<OPT_FIXED>().ok_or("its additional record is not all there")?;
    let [root, kind0, kind1, size0, size1, _rcode, version, _flags0, _flags1, length0, length1] = *fixed;
    if (root, u16::from_be_bytes([kind0, kind1])) != (0, OPT) {
        return Err("it has records beside its question");
    }
    if usize::from(u16::from_be_bytes([length0, length1])) != options.len() {
        return Err("its OPT record is not all that is left");
    }
    while !options.is_empty() {
        let (head, rest) =
            options.split_first_chunk::<4>().ok_or("its EDNS options do not fit their record")?;
        let [_, _, length0, length1] = *head;
        let length = usize::from(u16::from_be_bytes([length0, length1]));
        options = rest.get(length..).ok_or("its EDNS options do not fit their record")?;
    }
    Ok((u16::from_be_bytes([size0, size1]).max(512), version))
}
