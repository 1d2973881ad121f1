//! Server-sent events from bytes as they come. Pure. An event that the stream's end cuts off is none.

use ringfence_http::sse::{Cutter, Lines, field};

/// Most bytes of an event.
const MAX_EVENT: usize = 16 << 20;

/// One event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event {
    /// `event:`; empty: none was given.
    pub name: String,
    /// `data:`, its lines joined.
    pub data: String,
}

/// What a stream has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Read {
    /// An event that is whole.
    Event(Event),
    /// A comment: nothing, said to keep a connection open.
    Comment,
    /// A line of a field that no event has.
    Odd,
}

/// Why a stream is not one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// An event that is too long.
    #[error("an event of more than {MAX_EVENT} bytes")]
    TooLong,
    /// Not text.
    #[error("an event that is not UTF-8")]
    NotUtf8,
}

/// A stream of events.
#[derive(Debug, Default)]
pub struct Events {
    cutter: Cutter,
    reader: Reader,
}

/// What the lines so far say.
#[derive(Debug, Default)]
struct Reader {
    name: Vec<u8>,
    data: Vec<u8>,
    has_data: bool,
}

impl Events {
    /// Takes bytes in and hands each event that is whole to `each`.
    ///
    /// # Errors
    /// [`Error`].
    pub fn feed(&mut self, bytes: &[u8], mut each: impl FnMut(Event)) -> Result<(), Error> {
        self.read(bytes, |read| {
            if let Read::Event(event) = read {
                each(event);
            }
        })
    }

    /// As [`Self::feed`], with all else that the stream has.
    ///
    /// # Errors
    /// [`Error`].
    pub fn read(&mut self, bytes: &[u8], each: impl FnMut(Read)) -> Result<(), Error> {
        self.cutter.feed(bytes, &mut Handing { reader: &mut self.reader, each })
    }

    /// Bytes that it takes in memory.
    pub fn held(&self) -> usize {
        self.cutter.held() + self.reader.data.capacity() + self.reader.name.capacity()
    }
}

struct Handing<'a, F> {
    reader: &'a mut Reader,
    each: F,
}

impl<F: FnMut(Read)> Lines for Handing<'_, F> {
    type Error = Error;

    fn room_for(&self, bytes: usize) -> Result<(), Error> {
        self.reader.check(bytes)
    }

    fn line(&mut self, line: &[u8]) -> Result<(), Error> {
        if let Some(read) = self.reader.line(line)? {
            (self.each)(read);
        }
        Ok(())
    }
}

impl Reader {
    /// Whether so many bytes more may be held.
    fn check(&self, more: usize) -> Result<(), Error> {
        let size = more + self.data.len() + self.name.len();
        if size > MAX_EVENT { Err(Error::TooLong) } else { Ok(()) }
    }

    fn line(&mut self, line: &[u8]) -> Result<Option<Read>, Error> {
        if line.is_empty() {
            let (name, data) = (std::mem::take(&mut self.name), std::mem::take(&mut self.data));
            if !std::mem::take(&mut self.has_data) {
                return Ok(None);
            }
            let text = |bytes| String::from_utf8(bytes).map_err(|_| Error::NotUtf8);
            return Ok(Some(Read::Event(Event { name: text(name)?, data: text(data)? })));
        }
        let (field, value) = field(line);
        match field {
            b"event" => self.name = value.to_vec(),
            b"data" => {
                if std::mem::replace(&mut self.has_data, true) {
                    self.data.push(b'\n');
                }
                self.data.extend_from_slice(value);
                self.check(0)?;
            }
            b"" => return Ok(Some(Read::Comment)),
            // Nothing that we use.
            b"id" | b"retry" => {}
            _ => return Ok(Some(Read::Odd)),
        }
        Ok(None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn events(pieces: &[&[u8]]) -> Vec<(String, String)> {
        let (mut stream, mut all) = (Events::default(), Vec::new());
        for piece in pieces {
            stream.feed(piece, |event| all.push((event.name, event.data))).unwrap();
        }
        all
    }

    fn pair(name: &str, data: &str) -> (String, String) {
        (name.to_owned(), data.to_owned())
    }

    #[test]
    fn the_forms_of_an_event() {
        let text = b"\xef\xbb\xbf: comment\nevent: a\ndata: 1\ndata:2\nid: 7\n\ndata\n\nevent: none\n\n\ndata:  x\n\ndata: cut";
        assert_eq!(events(&[text]), [pair("a", "1\n2"), pair("", ""), pair("", " x")]);
    }

    #[test]
    fn every_line_end_is_one() {
        for end in ["\n", "\r\n", "\r"] {
            let text = ["event: a", "data: 1", "", "data: 2", "", ""].join(end);
            assert_eq!(events(&[text.as_bytes()]), [pair("a", "1"), pair("", "2")], "{end:?}");
            let (first, rest) = text.as_bytes().split_at(9);
            assert_eq!(events(&[first, b"", rest]), [pair("a", "1"), pair("", "2")], "{end:?}");
        }
    }

    #[test]
    fn an_endless_or_broken_event_is_an_error() {
        let mut stream = Events::default();
        let piece = vec![b'x'; 1 << 20];
        let error = (0..20).find_map(|_| stream.feed(&piece, |_| {}).err());
        assert_eq!(error, Some(Error::TooLong));
        let mut stream = Events::default();
        let lines = "data: xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx\n".repeat(1000);
        let error = (0..1000).find_map(|_| stream.feed(lines.as_bytes(), |_| {}).err());
        assert_eq!(error, Some(Error::TooLong));
        assert_eq!(Events::default().feed(b"data: \xff\n\n", |_| {}), Err(Error::NotUtf8));
    }

    proptest! {
        #[test]
        fn cuts_change_nothing(cuts in proptest::collection::vec(0usize..64, 0..8), end in 0usize..3) {
            let end = ["\n", "\r\n", "\r"][end];
            let text = ["event: n\u{e4}me", "data: {\"t\":\"\u{1f980} z\u{fc}\"}", "", "data: [DONE]", "", ""].join(end);
            let bytes = text.as_bytes();
            let mut cuts: Vec<usize> = cuts.into_iter().filter(|c| *c < bytes.len()).collect();
            cuts.sort_unstable();
            let mut pieces = Vec::new();
            let mut from = 0;
            for cut in cuts.into_iter().chain([bytes.len()]) {
                pieces.push(&bytes[from..cut]);
                from = cut;
            }
            prop_assert_eq!(events(&pieces), events(&[bytes]));
        }

        #[test]
        fn no_bytes_panic(bytes: Vec<u8>) {
            let _ = Events::default().feed(&bytes, |_| {});
        }
    }
}
