//! Server-sent events from bytes as they come, with what is needed to resume a stream. Pure.
//!
//! An event's data stay the bytes that they are; an event that the stream's end cuts off is none.

use ringfence_http::sse::{Cutter, Lines, field};
use std::time::Duration;

/// Longest id of an event that is kept, in bytes: it goes back in a header.
const MAX_ID: usize = 1024;
/// What a line holds beside data, at most: a field's name, or an event's.
const BESIDE: usize = 4 << 10;

/// One event.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Event {
    /// `event:`; empty: none was given.
    pub name: Vec<u8>,
    /// `data:`, its lines joined by LF. None: the event has none, and only moves the place to resume from.
    pub data: Option<Vec<u8>>,
}

impl Event {
    /// The message that it carries. Other kinds of events, and those without data, carry none.
    pub fn message(self) -> Option<Vec<u8>> {
        let is_message = self.name.is_empty() || self.name == b"message";
        self.data.filter(|data| is_message && !data.trim_ascii().is_empty())
    }
}

/// Why a stream is not one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// An event that is too long.
    #[error("an event has more than {0} bytes")]
    TooLong(usize),
}

/// A stream of events.
#[derive(Debug)]
pub struct Events {
    cutter: Cutter,
    reader: Reader,
}

/// What the lines so far say.
#[derive(Debug)]
struct Reader {
    /// Most bytes of an event's data.
    limit: usize,
    name: Vec<u8>,
    data: Option<Vec<u8>>,
    /// The id of the event that is under way.
    next_id: Option<String>,
    last_id: Option<String>,
    retry: Option<Duration>,
}

impl Events {
    /// A stream whose events have at most `limit` bytes of data each.
    pub fn new(limit: usize) -> Self {
        let reader =
            Reader { limit, name: Vec::new(), data: None, next_id: None, last_id: None, retry: None };
        Self { cutter: Cutter::default(), reader }
    }

    /// The same stream when it is resumed: what was cut off is gone, and where it was and how long to wait stay.
    pub fn resumed(&self) -> Self {
        let mut fresh = Self::new(self.reader.limit);
        fresh.reader.last_id.clone_from(&self.reader.last_id);
        fresh.reader.retry = self.reader.retry;
        fresh
    }

    /// The id of the last event that was whole: where to resume. Fit for a header.
    pub fn last_id(&self) -> Option<&str> {
        self.reader.last_id.as_deref().filter(|id| !id.is_empty())
    }

    /// How long the server wants to be left alone before the stream is resumed, if it said so.
    pub fn retry(&self) -> Option<Duration> {
        self.reader.retry
    }

    /// Bytes that it takes in memory.
    pub fn held(&self) -> usize {
        let Reader { name, data, .. } = &self.reader;
        self.cutter.held() + data.as_ref().map_or(0, Vec::capacity) + name.capacity()
    }

    /// Takes bytes in and hands each event that is whole to `each`.
    ///
    /// # Errors
    /// [`Error`]; nothing of the stream can be used any more.
    pub fn feed(&mut self, bytes: &[u8], each: impl FnMut(Event)) -> Result<(), Error> {
        self.cutter.feed(bytes, &mut Handing { reader: &mut self.reader, each })
    }
}

struct Handing<'a, F> {
    reader: &'a mut Reader,
    each: F,
}

impl<F: FnMut(Event)> Lines for Handing<'_, F> {
    type Error = Error;

    fn room_for(&self, bytes: usize) -> Result<(), Error> {
        self.reader.check(bytes)
    }

    fn line(&mut self, line: &[u8]) -> Result<(), Error> {
        if let Some(event) = self.reader.line(line)? {
            (self.each)(event);
        }
        Ok(())
    }
}

impl Reader {
    /// Whether so many bytes more may be held.
    fn check(&self, more: usize) -> Result<(), Error> {
        let data = self.data.as_ref().map_or(0, Vec::len);
        // A comment or another field is as long as it likes, within that.
        let most = self.limit.saturating_add(BESIDE);
        if data.saturating_add(more) > most { Err(Error::TooLong(self.limit)) } else { Ok(()) }
    }

    fn line(&mut self, line: &[u8]) -> Result<Option<Event>, Error> {
        if line.is_empty() {
            if let Some(id) = self.next_id.take() {
                self.last_id = Some(id);
            }
            let mut event = Event { name: std::mem::take(&mut self.name), data: self.data.take() };
            if let Some(data) = &mut event.data {
                // It grew by doubling; a line's end is still to come.
                data.shrink_to(data.len() + 1);
            }
            return Ok(event.data.is_some().then_some(event));
        }
        let (field, value) = field(line);
        match field {
            b"event" => self.name = value.get(..BESIDE.min(value.len())).unwrap_or_default().to_vec(),
            b"data" => {
                self.check(value.len())?;
                match &mut self.data {
                    Some(data) => {
                        data.push(b'\n');
                        data.extend_from_slice(value);
                    }
                    none => *none = Some(value.to_vec()),
                }
                if self.data.as_ref().is_some_and(|data| data.len() > self.limit) {
                    return Err(Error::TooLong(self.limit));
                }
            }
            // One that no header takes cannot be asked for again.
            b"id" if value.len() <= MAX_ID && value.iter().all(|byte| matches!(byte, b' '..=b'~')) => {
                self.next_id = Some(String::from_utf8_lossy(value).into_owned());
            }
            b"retry" if !value.is_empty() && value.iter().all(u8::is_ascii_digit) => {
                let milliseconds = str::from_utf8(value).ok().and_then(|text| text.parse().ok());
                self.retry = Some(milliseconds.map_or(Duration::MAX, Duration::from_millis));
            }
            _ => {}
        }
        Ok(None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    type Seen = (Vec<(String, String)>, Option<String>);

    fn events(pieces: &[&[u8]]) -> Seen {
        let (mut stream, mut all) = (Events::new(1 << 20), Vec::new());
        for piece in pieces {
            let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
            stream.feed(piece, |e| all.push((text(e.name), text(e.data.unwrap())))).unwrap();
        }
        (all, stream.last_id().map(str::to_owned))
    }

    fn pair(name: &str, data: &str) -> (String, String) {
        (name.to_owned(), data.to_owned())
    }

    #[test]
    fn the_forms_of_an_event() {
        let text = b"\xef\xbb\xbf: comment\nevent: a\ndata: 1\ndata:2\nid: 7\n\ndata\n\nevent: none\n\n\ndata:  x\n\nid: 8\ndata: cut";
        let (seen, id) = events(&[text]);
        assert_eq!(seen, [pair("a", "1\n2"), pair("", ""), pair("", " x")]);
        assert_eq!(id.as_deref(), Some("7"), "an event that is cut off moves nothing");
    }

    #[test]
    fn an_event_without_data_moves_the_place_to_resume_from_and_an_empty_id_forgets_it() {
        assert_eq!(events(&[b"id: a\n\n"]), (vec![], Some("a".to_owned())));
        assert_eq!(events(&[b"id: a\ndata:\n\n"]), (vec![pair("", "")], Some("a".to_owned())));
        assert_eq!(events(&[b"id: a\n\nid\n\n"]).1, None);
        assert_eq!(events(&[b"id: a\n\nid: b\x00c\n\nid: \xc3\xa4\n\n"]).1.as_deref(), Some("a"));
        let long = format!("id: {}\n\n", "x".repeat(MAX_ID + 1));
        assert_eq!(events(&[long.as_bytes()]).1, None);
    }

    #[test]
    fn how_long_to_wait_is_a_number_or_nothing() {
        for (text, expected) in [
            ("retry: 1500\n", Some(Duration::from_millis(1500))),
            ("retry: -1\n", None),
            ("retry: 1.5\n", None),
            ("retry:\n", None),
            ("retry: 99999999999999999999999999\n", Some(Duration::MAX)),
        ] {
            let mut stream = Events::new(100);
            stream.feed(text.as_bytes(), |_| {}).unwrap();
            assert_eq!(stream.retry(), expected, "{text}");
        }
    }

    #[test]
    fn only_messages_are_messages() {
        let event = |name: &str, data: Option<&str>| Event {
            name: name.as_bytes().to_vec(),
            data: data.map(|data| data.as_bytes().to_vec()),
        };
        assert_eq!(event("", Some("{}")).message().unwrap(), b"{}");
        assert_eq!(event("message", Some("{}")).message().unwrap(), b"{}");
        for none in [event("ping", Some("{}")), event("", Some("")), event("", Some(" \n")), event("", None)]
        {
            assert_eq!(none.message(), None);
        }
    }

    #[test]
    fn every_line_end_is_one() {
        for end in ["\n", "\r\n", "\r"] {
            let text = ["event: a", "data: 1", "", "data: 2", "", ""].join(end);
            let expected = (vec![pair("a", "1"), pair("", "2")], None);
            assert_eq!(events(&[text.as_bytes()]), expected, "{end:?}");
            let (first, rest) = text.as_bytes().split_at(9);
            assert_eq!(events(&[first, b"", rest]), expected, "{end:?}");
        }
    }

    #[test]
    fn an_endless_line_or_event_is_an_error() {
        let mut stream = Events::new(1 << 20);
        let piece = vec![b'x'; 1 << 18];
        let error = (0..20).find_map(|_| stream.feed(&piece, |_| {}).err());
        assert_eq!(error, Some(Error::TooLong(1 << 20)));
        let mut stream = Events::new(1 << 20);
        let lines = "data: xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx\n".repeat(1000);
        let error = (0..1000).find_map(|_| stream.feed(lines.as_bytes(), |_| {}).err());
        assert_eq!(error, Some(Error::TooLong(1 << 20)));
        let just = format!("data: {}\n\n", "x".repeat(100));
        assert!(Events::new(100).feed(just.as_bytes(), |_| {}).is_ok());
        assert!(Events::new(99).feed(just.as_bytes(), |_| {}).is_err());
    }

    proptest! {
        #[test]
        fn cuts_change_nothing(cuts in proptest::collection::vec(0usize..64, 0..8), end in 0usize..3) {
            let end = ["\n", "\r\n", "\r"][end];
            let text = ["event: n\u{e4}me", "id: 7", "data: {\"t\":\"\u{1f980} z\u{fc}\"}", "", "data: x", "", ""].join(end);
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
        fn no_bytes_panic_or_hold_more_than_they_may(bytes: Vec<u8>, limit in 0usize..64) {
            let mut stream = Events::new(limit);
            let _ = stream.feed(&bytes, |event| assert!(event.data.is_none_or(|data| data.len() <= limit)));
        }
    }
}
