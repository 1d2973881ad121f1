//! A server's side of a WebSocket: its frames, without credentials. A message is searched as a whole, whatever frames it comes in;
//! what of it waits goes out with its last. Pure.

use crate::mask::{Mask, Pieces};
use std::collections::VecDeque;

/// Most bytes of frames' heads, and of control frames, that wait for payload before them.
const MOST_WAITING: usize = 64 << 10;
/// Bytes of a frame's head: with a length of eight bytes. A server's have no key.
const LONGEST_HEAD: usize = 10;
/// Most bytes of a control frame's payload.
const LONGEST_CONTROL: u64 = 125;

/// Why it cannot be searched.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Unsearchable {
    #[error("the server's frames have an extension that nobody asked for")]
    Extension,
    #[error("the server's frames are none")]
    Malformed,
    #[error("the server sends too many frames that are empty")]
    Many,
}

/// What goes out in its order.
enum Part {
    /// As it is.
    Bytes(Vec<u8>),
    /// So much of the message's payload.
    Payload(usize),
}

/// The frame that is being read.
enum Reading {
    Head(Vec<u8>),
    Data { left: u64, is_last: bool },
    Control { left: u64, payload: Vec<u8> },
}

/// See the module.
pub(crate) struct Frames {
    reading: Reading,
    message: Pieces,
    /// Of the message: searched, and waiting for what is before it.
    searched: VecDeque<u8>,
    parts: VecDeque<Part>,
    /// Bytes in those of them that are not payload.
    waiting: usize,
}

impl Default for Frames {
    fn default() -> Self {
        Self {
            reading: Reading::Head(Vec::new()),
            message: Pieces::default(),
            searched: VecDeque::new(),
            parts: VecDeque::new(),
            waiting: 0,
        }
    }
}

impl Frames {
    /// What may go out now.
    ///
    /// # Errors
    /// It is not searched, and must end.
    pub(crate) fn push(&mut self, mask: &Mask, mut bytes: &[u8]) -> Result<Vec<u8>, Unsearchable> {
        let mut out = Vec::new();
        while let Some((first, behind)) = bytes.split_first() {
            match &mut self.reading {
                Reading::Head(head) => {
                    head.push(*first);
                    bytes = behind;
                    let read = read_head(head)?;
                    if let Some(next) = read {
                        let head = std::mem::take(head);
                        self.part(Part::Bytes(head))?;
                        self.reading = next;
                    }
                }
                Reading::Data { left, .. } => {
                    let (count, rest) = cut(bytes, left);
                    let payload = bytes.get(..count).unwrap_or_default();
                    bytes = rest;
                    self.searched.extend(self.message.push(mask, payload));
                    self.part(Part::Payload(count))?;
                }
                Reading::Control { left, payload } => {
                    let (count, rest) = cut(bytes, left);
                    payload.extend_from_slice(bytes.get(..count).unwrap_or_default());
                    bytes = rest;
                }
            }
            self.end_frame(mask)?;
            self.take(&mut out);
        }
        Ok(out)
    }

    /// What waited: nothing is behind it.
    pub(crate) fn finish(&mut self, mask: &Mask) -> Vec<u8> {
        self.searched.extend(self.message.finish(mask));
        let mut out = Vec::new();
        self.take(&mut out);
        out
    }

    /// Ends the frame that is being read, where all of it has come.
    fn end_frame(&mut self, mask: &Mask) -> Result<(), Unsearchable> {
        match &mut self.reading {
            Reading::Data { left: 0, is_last } => {
                if *is_last {
                    self.searched.extend(self.message.finish(mask));
                }
            }
            Reading::Control { left: 0, payload } => {
                let payload = mask.masked(payload).unwrap_or(std::mem::take(payload));
                self.part(Part::Bytes(payload))?;
            }
            _ => return Ok(()),
        }
        self.reading = Reading::Head(Vec::with_capacity(LONGEST_HEAD));
        Ok(())
    }

    fn part(&mut self, part: Part) -> Result<(), Unsearchable> {
        match (part, self.parts.back_mut()) {
            (Part::Payload(more), Some(Part::Payload(before))) => *before += more,
            (Part::Bytes(more), Some(Part::Bytes(before))) => {
                self.waiting += more.len();
                before.extend(more);
            }
            (part, _) => {
                if let Part::Bytes(bytes) = &part {
                    self.waiting += bytes.len();
                }
                self.parts.push_back(part);
            }
        }
        if self.waiting > MOST_WAITING { Err(Unsearchable::Many) } else { Ok(()) }
    }

    /// Takes what waits for nothing.
    fn take(&mut self, out: &mut Vec<u8>) {
        while let Some(part) = self.parts.front_mut() {
            match part {
                Part::Bytes(bytes) => {
                    self.waiting -= bytes.len();
                    out.append(bytes);
                }
                Part::Payload(count) => {
                    let ready = (*count).min(self.searched.len());
                    out.extend(self.searched.drain(..ready));
                    *count -= ready;
                    if *count > 0 {
                        return;
                    }
                }
            }
            self.parts.pop_front();
        }
    }
}

/// How much of what came belongs to a frame, and what does not.
fn cut<'b>(bytes: &'b [u8], left: &mut u64) -> (usize, &'b [u8]) {
    let count = usize::try_from(*left).unwrap_or(usize::MAX).min(bytes.len());
    *left -= count as u64;
    (count, bytes.get(count..).unwrap_or_default())
}

/// What a frame's head begins, once all of it has come (RFC 6455 section 5.2).
fn read_head(head: &[u8]) -> Result<Option<Reading>, Unsearchable> {
    let Some(([first, second], rest)) = head.split_first_chunk::<2>() else { return Ok(None) };
    if first & 0x70 != 0 {
        return Err(Unsearchable::Extension);
    }
    if second & 0x80 != 0 {
        return Err(Unsearchable::Malformed);
    }
    let left = match second & 0x7f {
        126 => match rest.first_chunk::<2>() {
            Some(length) => u16::from_be_bytes(*length).into(),
            None => return Ok(None),
        },
        127 => match rest.first_chunk::<8>() {
            Some(length) => u64::from_be_bytes(*length),
            None => return Ok(None),
        },
        short => short.into(),
    };
    match first & 0x0f {
        0..=2 => Ok(Some(Reading::Data { left, is_last: first & 0x80 != 0 })),
        8..=10 if left <= LONGEST_CONTROL && first & 0x80 != 0 => {
            Ok(Some(Reading::Control { left, payload: Vec::new() }))
        }
        _ => Err(Unsearchable::Malformed),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use ringfence_credentials::Secret;

    const KEY: &str = "secret-token-1";

    fn mask() -> Mask {
        Mask::new(&[Secret::from(KEY.to_owned())])
    }

    fn frame(first: u8, payload: &[u8]) -> Vec<u8> {
        let mut frame = vec![first];
        match payload.len() {
            short @ 0..126 => frame.push(short as u8),
            long => {
                frame.push(126);
                frame.extend((long as u16).to_be_bytes());
            }
        }
        frame.extend(payload);
        frame
    }

    fn all(bytes: &[u8], size: usize) -> Vec<u8> {
        let (mask, mut frames, mut out) = (mask(), Frames::default(), Vec::new());
        for piece in bytes.chunks(size) {
            out.extend(frames.push(&mask, piece).unwrap());
        }
        assert_eq!(frames.message.waiting(), 0);
        out
    }

    #[test]
    fn a_message_is_searched_across_its_frames_and_goes_out_with_its_last() {
        let (one, two) = KEY.as_bytes().split_at(5);
        let stream = [
            frame(0x01, &[b"it is ", one].concat()),
            frame(0x89, KEY.as_bytes()),
            frame(0x80, &[two, b"."].concat()),
            frame(0x82, &[b'x'; 3000]),
        ]
        .concat();
        let whole = [
            frame(0x01, b"it is *****"),
            frame(0x89, b"**************"),
            frame(0x80, b"*********."),
            frame(0x82, &[b'x'; 3000]),
        ]
        .concat();
        for size in [1, 2, 7, 100, 10_000] {
            assert_eq!(all(&stream, size), whole, "{size}");
        }
        let (mask, mut frames) = (mask(), Frames::default());
        assert_eq!(frames.push(&mask, &frame(0x01, b"x")).unwrap(), [1, 1], "its end is not there");
        assert_eq!(
            frames.push(&mask, &frame(0x80, b"y")).unwrap(),
            [b"x".as_slice(), &frame(0x80, b"y")].concat()
        );
        assert_eq!(frames.push(&mask, &frame(0x81, b"secret-tok")).unwrap(), frame(0x81, b"secret-tok"));
    }

    #[test]
    fn what_cannot_be_searched_ends() {
        for (bytes, why) in [
            (frame(0xc1, b"compressed"), Unsearchable::Extension),
            (frame(0x91, b"x"), Unsearchable::Extension),
            (vec![0x81, 0x81], Unsearchable::Malformed),
            (frame(0x83, b"x"), Unsearchable::Malformed),
            (frame(0x09, b"x"), Unsearchable::Malformed),
            (frame(0x89, &[0; 126]), Unsearchable::Malformed),
        ] {
            assert_eq!(Frames::default().push(&mask(), &bytes), Err(why), "{bytes:?}");
        }
        let mut many = frame(0x01, b"x");
        many.extend(frame(0x00, b"").repeat(40_000));
        assert_eq!(Frames::default().push(&mask(), &many), Err(Unsearchable::Many));
        let mut cut = Frames::default();
        assert_eq!(cut.push(&mask(), b"\x81\x05ab").unwrap(), b"\x81\x05");
        assert_eq!(cut.finish(&mask()), b"ab");
    }

    proptest! {
        #[test]
        fn when_what_goes_out_does_not_depend_on_the_credential(length in 4_usize..14, cuts in proptest::collection::vec(1_usize..40, 1..8)) {
            let text = |end: &[u8]| [frame(0x01, &[&[b'.'; 20], end].concat()), frame(0x80, b"end")].concat();
            let (right, wrong) = (text(&KEY.as_bytes()[..length]), text(&vec![b'.'; length]));
            let lengths = |stream: &[u8]| {
                let (mask, mut frames, mut rest) = (mask(), Frames::default(), stream);
                cuts.iter().chain([&usize::MAX]).map(|cut| {
                    let (piece, behind) = rest.split_at((*cut).min(rest.len()));
                    rest = behind;
                    frames.push(&mask, piece).unwrap().len()
                }).collect::<Vec<_>>()
            };
            prop_assert_eq!(lengths(&right), lengths(&wrong));
        }
    }
}
