//! The head of an answer that something depends on.

use super::{Refused, head::MAX_HEAD};
use httparse::Response;

/// Most headers of an answer.
const MAX_HEADERS: usize = 128;
/// Bytes by which what is kept grows.
const STEP: usize = 512;
/// What is kept of a protocol's name, to be shown.
const MAX_SHOWN: usize = 40;

/// What an answer says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Said {
    /// 100: the body may come.
    Continue,
    /// Another interim answer: the next one counts.
    Wait,
    /// 101, and the protocol that it switches to.
    Switch(String),
    /// The answer itself.
    Final,
}

/// Reads heads one after the other.
#[derive(Debug, Default)]
pub(super) struct Reader {
    head: Vec<u8>,
}

impl Reader {
    /// How many bytes were read, and what the head said if they complete it.
    pub(super) fn read(&mut self, bytes: &[u8]) -> Result<(usize, Option<Said>), Refused> {
        for (at, byte) in bytes.iter().enumerate() {
            if self.head.len() >= MAX_HEAD {
                return Err(Refused::Response("its head is too long"));
            }
            if self.head.len() == self.head.capacity() {
                self.head.reserve_exact(STEP);
            }
            self.head.push(*byte);
            if self.head.ends_with(b"\n\r\n") || self.head.ends_with(b"\n\n") {
                let said = said(&self.head)?;
                // With its memory: few connections ever wait for another.
                self.head = Vec::new();
                return Ok((at + 1, Some(said)));
            }
        }
        Ok((bytes.len(), None))
    }

    /// Bytes of memory that it takes.
    pub(super) fn kept(&self) -> usize {
        self.head.capacity()
    }

    /// The same, at most, once so many bytes more are read.
    pub(super) fn kept_with(&self, more: usize) -> usize {
        let length = self.head.len().saturating_add(more).min(MAX_HEAD);
        self.head.capacity().max(length.next_multiple_of(STEP))
    }
}

fn said(head: &[u8]) -> Result<Said, Refused> {
    let mut headers = [httparse::EMPTY_HEADER; MAX_HEADERS];
    let mut response = Response::new(&mut headers);
    match response.parse(head) {
        Ok(httparse::Status::Complete(length)) if length == head.len() => {}
        _ => return Err(Refused::Response("it is not HTTP/1")),
    }
    match response.code {
        Some(100) => Ok(Said::Continue),
        Some(101) => {
            let upgrade = response.headers.iter().find(|header| header.name.eq_ignore_ascii_case("upgrade"));
            let protocol = upgrade.map(|header| header.value).unwrap_or_default();
            let shown = protocol.get(..protocol.len().min(MAX_SHOWN)).unwrap_or_default();
            Ok(Said::Switch(String::from_utf8_lossy(shown).into_owned()))
        }
        Some(102..=199) => Ok(Said::Wait),
        Some(200..) => Ok(Said::Final),
        _ => Err(Refused::Response("its status is none")),
    }
}
