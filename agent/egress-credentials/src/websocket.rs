//! Frames of a server's WebSocket (RFC 6455, section 5), without credentials. A message is what is searched as one: nothing of it
//! waits behind its end. A frame keeps its kind, and a message that is one frame stays one; those of a message in several may have
//! other lengths, as what waits of one goes with the next. Pure.

use crate::mask::{Mask, Pieces};

/// Most bytes of a frame that is about the connection.
const CONTROL: u64 = 125;
/// Of the first byte: the last frame of a message.
const FIN: u8 = 0x80;

/// Why a server's bytes do not go on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum NotAFrame {
    /// Bits of extensions: none was agreed on.
    #[error("the server's WebSocket uses an extension that nobody asked for")]
    Extension,
    /// A kind that there is not.
    #[error("the server's WebSocket has a frame of an unknown kind")]
    Kind,
    /// Only clients do.
    #[error("the server's WebSocket has a masked frame, as clients send them")]
    Masked,
    /// Too long, or in parts.
    #[error("the server's WebSocket has a control frame that is too long, or one of several")]
    Control,
    /// A message within another, or the rest of none.
    #[error("the server's WebSocket has the frames of its messages in no order")]
    Order,
    /// Longer than any.
    #[error("the server's WebSocket has a frame that is too long")]
    Length,
}

/// A frame whose payload comes.
struct Frame {
    first: u8,
    left: u64,
}

/// A server's side of a WebSocket.
#[derive(Default)]
pub(crate) struct Frames {
    /// A head that is not whole.
    head: Vec<u8>,
    frame: Option<Frame>,
    /// A message has begun, and its next frame goes on with it.
    in_message: bool,
    pieces: Pieces,
    /// The payload of a frame about the connection.
    control: Vec<u8>,
    /// A credential was in one of those.
    in_control: usize,
}

impl Frames {
    /// How many credentials were found so far.
    pub(crate) fn found(&self) -> usize {
        self.pieces.found() + self.in_control
    }

    /// What goes on of these bytes.
    ///
    /// # Errors
    /// [`NotAFrame`]: nothing goes on any more.
    pub(crate) fn push(&mut self, mask: &Mask, mut bytes: &[u8]) -> Result<Vec<u8>, NotAFrame> {
        let mut out = Vec::with_capacity(bytes.len());
        loop {
            let Some(mut frame) = self.frame.take() else {
                let Some((byte, rest)) = bytes.split_first() else { return Ok(out) };
                (bytes, self.frame) = (rest, None);
                self.head.push(*byte);
                if let Some((first, length)) = head(&self.head)? {
                    self.head.clear();
                    self.begin(mask, first, length, &mut out)?;
                    self.frame = Some(Frame { first, left: length });
                }
                continue;
            };
            let count = bytes.len().min(usize::try_from(frame.left).unwrap_or(usize::MAX));
            let (payload, rest) = bytes.split_at(count);
            bytes = rest;
            frame.left -= count as u64;
            if is_control(frame.first) {
                self.control.extend_from_slice(payload);
            } else {
                out.append(&mut self.pieces.push(mask, payload));
            }
            if frame.left > 0 {
                self.frame = Some(frame);
                return Ok(out);
            }
            if is_control(frame.first) {
                let control = std::mem::take(&mut self.control);
                let masked = mask.masked(&control);
                self.in_control += usize::from(masked.is_some());
                out.extend(masked.unwrap_or(control));
            } else if frame.first & FIN != 0 {
                out.append(&mut self.pieces.finish());
            }
        }
    }

    /// Writes a frame's head: how long what goes with it is depends on lengths alone.
    fn begin(&mut self, mask: &Mask, first: u8, length: u64, out: &mut Vec<u8>) -> Result<(), NotAFrame> {
        let goes = if is_control(first) {
            if length > CONTROL || first & FIN == 0 {
                return Err(NotAFrame::Control);
            }
            length
        } else {
            let goes_on = first & 0x0f == 0;
            if goes_on != self.in_message {
                return Err(NotAFrame::Order);
            }
            self.in_message = first & FIN == 0;
            let all = length.checked_add(self.pieces.waiting() as u64).ok_or(NotAFrame::Length)?;
            if self.in_message { all - mask.waits_of(all) } else { all }
        };
        out.push(first);
        match (u8::try_from(goes), u16::try_from(goes)) {
            (Ok(short), _) if u64::from(short) <= CONTROL => out.push(short),
            (_, Ok(middle)) => {
                out.push(126);
                out.extend(middle.to_be_bytes());
            }
            _ => {
                out.push(127);
                out.extend(goes.to_be_bytes());
            }
        }
        Ok(())
    }
}

fn is_control(first: u8) -> bool {
    first & 0x08 != 0
}

/// The first byte of a head and the payload's length, once it is whole.
fn head(bytes: &[u8]) -> Result<Option<(u8, u64)>, NotAFrame> {
    let &[first, second, ref more @ ..] = bytes else { return Ok(None) };
    if first & 0x70 != 0 {
        return Err(NotAFrame::Extension);
    }
    if !matches!(first & 0x0f, 0..=2 | 8..=10) {
        return Err(NotAFrame::Kind);
    }
    if second & 0x80 != 0 {
        return Err(NotAFrame::Masked);
    }
    let length = match (second, more) {
        (126, [a, b]) => u64::from(u16::from_be_bytes([*a, *b])),
        (127, [a, b, c, d, e, f, g, h]) => {
            let length = u64::from_be_bytes([*a, *b, *c, *d, *e, *f, *g, *h]);
            if length > u64::MAX >> 1 {
                return Err(NotAFrame::Length);
            }
            length
        }
        (126 | 127, _) => return Ok(None),
        (short, _) => short.into(),
    };
    Ok(Some((first, length)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use ringfence_credentials::Secret;

    const KEY: &str = "secret-token-1";

    fn mask() -> Mask {
        Mask::all(&[Secret::from(KEY.to_owned())]).unwrap()
    }

    fn frame(first: u8, payload: &[u8]) -> Vec<u8> {
        let mut out = vec![first];
        match payload.len() {
            short @ 0..=125 => out.push(short as u8),
            middle @ 126..=0xffff => out.extend([&[126][..], &(middle as u16).to_be_bytes()].concat()),
            long => out.extend([&[127][..], &(long as u64).to_be_bytes()].concat()),
        }
        out.extend(payload);
        out
    }

    /// All frames of what went out.
    fn read(mut bytes: &[u8]) -> Vec<(u8, String)> {
        let mut frames = Vec::new();
        while !bytes.is_empty() {
            let size = match bytes[1] {
                126 => 4,
                127 => 10,
                _ => 2,
            };
            let (first, length) = head(&bytes[..size]).unwrap().unwrap();
            let until = size + usize::try_from(length).unwrap();
            frames.push((first, String::from_utf8(bytes[size..until].to_vec()).unwrap()));
            bytes = &bytes[until..];
        }
        frames
    }

    #[test]
    fn a_message_goes_at_its_end_and_without_the_credential() {
        let (mask, mut frames) = (mask(), Frames::default());
        let mut of = |bytes: &[u8]| read(&frames.push(&mask, bytes).unwrap());
        let text = |text: &str| (0x81, text.to_owned());
        assert_eq!(of(&frame(0x81, b"secret-tok")), [text("secret-tok")], "nothing waits behind a message");
        assert_eq!(of(&frame(0x81, format!("a {KEY} b").as_bytes())), [text("a ************** b")]);
        assert_eq!(of(&frame(0x89, KEY.as_bytes())), [(0x89, "*".repeat(KEY.len()))]);
        assert_eq!(of(&frame(0x82, b"")), [(0x82, String::new())]);
        // In three, with a ping between.
        assert_eq!(of(&frame(0x01, b"a secret-")), [(0x01, String::new())]);
        assert_eq!(of(&frame(0x89, b"ping")), [(0x89, "ping".to_owned())]);
        let long = format!("token-1{}", "x".repeat(1000));
        let [(0x00, gone)] = &of(&frame(0x00, long.as_bytes()))[..] else { panic!() };
        assert!(gone.starts_with("a **************xxxx"), "{gone}");
        let [(0x80, rest)] = &of(&frame(0x80, b"end"))[..] else { panic!() };
        assert_eq!(gone.len() + rest.len(), 9 + long.len() + 3);
        assert!(rest.ends_with("xxxend"), "{rest}");
        let big = "y".repeat(70_000);
        assert_eq!(of(&frame(0x81, big.as_bytes())), [text(&big)]);
    }

    #[test]
    fn a_credential_in_any_frame_is_told() {
        for first in [0x81, 0x89] {
            let mut frames = Frames::default();
            frames.push(&mask(), &frame(first, b"secret-token-2")).unwrap();
            assert_eq!(frames.found(), 0, "the control");
            frames.push(&mask(), &frame(first, KEY.as_bytes())).unwrap();
            assert_eq!(frames.found(), 1, "{first}");
        }
    }

    #[test]
    fn what_is_no_frame_ends_it() {
        for (bytes, why) in [
            (frame(0xc1, b"deflated"), NotAFrame::Extension),
            (frame(0x83, b"x"), NotAFrame::Kind),
            (frame(0x8b, b"x"), NotAFrame::Kind),
            (vec![0x81, 0x81], NotAFrame::Masked),
            (frame(0x09, b"x"), NotAFrame::Control),
            (frame(0x89, &[b'x'; 126]), NotAFrame::Control),
            (frame(0x80, b"x"), NotAFrame::Order),
            ([frame(0x01, b"x"), frame(0x81, b"y")].concat(), NotAFrame::Order),
            ([&[0x81, 127][..], &[0xff; 8]].concat(), NotAFrame::Length),
        ] {
            assert_eq!(Frames::default().push(&mask(), &bytes), Err(why), "{bytes:?}");
        }
    }

    /// How many bytes go out at each of these pieces.
    fn sizes(bytes: &[u8], size: usize) -> Vec<usize> {
        let (mask, mut frames) = (mask(), Frames::default());
        bytes.chunks(size).map(|piece| frames.push(&mask, piece).unwrap().len()).collect()
    }

    proptest! {
        #[test]
        fn only_lengths_say_what_waits(
            guess in 1usize..=KEY.len(),
            before in 0usize..200,
            size in 1usize..50,
            kinds in proptest::collection::vec(prop_oneof![Just(0x81u8), Just(0x01)], 1..4),
        ) {
            let said = |guess: &[u8]| -> Vec<u8> {
                let payload = [&vec![b'x'; before][..], guess].concat();
                kinds.iter().flat_map(|kind| {
                    let mut all = frame(*kind, &payload);
                    if kind & FIN == 0 {
                        all.extend(frame(0x80, &payload));
                    }
                    all
                }).collect()
            };
            let right = &KEY.as_bytes()[..guess];
            prop_assert_eq!(sizes(&said(right), size), sizes(&said(&vec![b'~'; guess]), size));
        }

        #[test]
        fn any_bytes_are_read_the_same_however_they_are_cut(bytes in proptest::collection::vec(any::<u8>(), 0..80), size in 1usize..9) {
            let mut frames = Frames::default();
            let by_pieces: Result<Vec<Vec<u8>>, _> = bytes.chunks(size).map(|piece| frames.push(&mask(), piece)).collect();
            prop_assert_eq!(by_pieces.map(|all| all.concat()), Frames::default().push(&mask(), &bytes));
        }
    }
}
