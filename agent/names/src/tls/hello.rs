//! One ClientHello (RFC 8446 section 4.1.2, RFC 5246 section 7.4.1.2), read to its last byte.

use super::Refused;
use crate::host;
use std::collections::HashSet;

/// What a ClientHello says that is of interest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hello {
    /// The server's name, in its one spelling.
    pub server_name: Option<String>,
    /// Whether it has an encrypted ClientHello, or random bytes that look like one: nobody can tell.
    pub ech: bool,
    /// Whether it announces early data.
    pub early_data: bool,
}

/// Extensions (the IANA registry of TLS ExtensionType values).
mod extension {
    pub(super) const SERVER_NAME: u16 = 0;
    pub(super) const ALPN: u16 = 16;
    pub(super) const PRE_SHARED_KEY: u16 = 41;
    pub(super) const EARLY_DATA: u16 = 42;
    pub(super) const ENCRYPTED_CLIENT_HELLO: u16 = 0xfe0d;
    /// What ECH was before it had a number.
    pub(super) const ENCRYPTED_SERVER_NAME: u16 = 0xffce;
}

/// The only type of names that there is (RFC 6066 section 3).
const HOST_NAME: u8 = 0;

impl Hello {
    /// Reads a message's body, all of it.
    pub(super) fn read(body: &[u8]) -> Result<Self, Refused> {
        let input = &mut Input(body);
        if !(0x0301..=0x0303).contains(&input.number()?) {
            return Err(Refused::Malformed("its version is not TLS 1.0 to 1.2, as which 1.3 goes too"));
        }
        input.take(32)?;
        if input.short()?.0.len() > 32 {
            return Err(Refused::Malformed("its session id is longer than 32 bytes"));
        }
        let suites = input.long()?.0;
        if suites.is_empty() || suites.len() % 2 != 0 {
            return Err(Refused::Malformed("its cipher suites are no list of numbers"));
        }
        if !input.short()?.0.contains(&0) {
            return Err(Refused::Malformed("it does not offer to go uncompressed"));
        }
        let mut hello = Self { server_name: None, ech: false, early_data: false };
        // Before TLS 1.2, a hello could end here.
        if !input.is_empty() {
            let mut extensions = input.long()?;
            hello.extensions(&mut extensions)?;
        }
        match input.is_empty() {
            true => Ok(hello),
            false => Err(Refused::Malformed("it has bytes behind its extensions")),
        }
    }

    fn extensions(&mut self, input: &mut Input<'_>) -> Result<(), Refused> {
        let mut seen = HashSet::new();
        while !input.is_empty() {
            let (kind, mut content) = (input.number()?, input.long()?);
            if !seen.insert(kind) {
                return Err(Refused::Twice(kind));
            }
            match kind {
                extension::SERVER_NAME => self.server_name = Some(server_name(&mut content)?),
                extension::ALPN => protocols(&mut content)?,
                extension::EARLY_DATA => self.early_data = true,
                extension::ENCRYPTED_CLIENT_HELLO | extension::ENCRYPTED_SERVER_NAME => self.ech = true,
                extension::PRE_SHARED_KEY if !input.is_empty() => {
                    return Err(Refused::Malformed("its pre-shared key is not its last extension"));
                }
                _ => {}
            }
        }
        Ok(())
    }
}

fn server_name(content: &mut Input<'_>) -> Result<String, Refused> {
    let mut names = content.long()?;
    if !content.is_empty() {
        return Err(Refused::Malformed("its server name has bytes behind the list"));
    }
    let kind = names.take(1)?;
    let name = names.long()?;
    match (kind, names.is_empty()) {
        ([HOST_NAME], true) => Ok(host::read(name.0)?),
        ([HOST_NAME], false) => Err(Refused::Malformed("it has several server names")),
        _ => Err(Refused::Malformed("its server name is of no known type")),
    }
}

/// Reads the protocols that a client offers to speak, and keeps none: they may be eight thousand.
fn protocols(content: &mut Input<'_>) -> Result<(), Refused> {
    let mut list = content.long()?;
    if !content.is_empty() || list.is_empty() {
        return Err(Refused::Malformed("its protocols (ALPN) are no list"));
    }
    while !list.is_empty() {
        if list.short()?.is_empty() {
            return Err(Refused::Malformed("it has a protocol (ALPN) without a name"));
        }
    }
    Ok(())
}

/// What is left of a field.
struct Input<'a>(&'a [u8]);

impl<'a> Input<'a> {
    fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn take(&mut self, count: usize) -> Result<&'a [u8], Refused> {
        let (taken, rest) = self
            .0
            .split_at_checked(count)
            .ok_or(Refused::Malformed("a field is longer than what it is in"))?;
        self.0 = rest;
        Ok(taken)
    }

    fn number(&mut self) -> Result<u16, Refused> {
        Ok(self.take(2)?.iter().fold(0, |number, byte| number << 8 | u16::from(*byte)))
    }

    /// A field after its length of one byte.
    fn short(&mut self) -> Result<Self, Refused> {
        let length = self.take(1)?.iter().fold(0, |_, byte| usize::from(*byte));
        Ok(Self(self.take(length)?))
    }

    /// A field after its length of two bytes.
    fn long(&mut self) -> Result<Self, Refused> {
        let length = usize::from(self.number()?);
        Ok(Self(self.take(length)?))
    }
}
