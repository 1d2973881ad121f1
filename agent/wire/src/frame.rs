//! Frames: a u32 big-endian length and that many bytes.
//!
//! A frame of no bytes does not exist: it is refused, so that a peer that sends zeroes is found out at once. Memory
//! grows with the bytes that really arrive, not with the length that a peer claims.

use serde::{Serialize, de::DeserializeOwned};
use std::io::{self, Read, Write};

/// Most bytes of a frame, length field not counted: 16 MiB.
pub const MAX_FRAME: usize = 16 << 20;

/// Bytes of the length field.
pub const HEADER: usize = 4;

/// Bytes that are set aside before any arrived.
const FIRST_CHUNK: usize = 64 << 10;

/// Why a frame or message could not be read or written.
#[derive(Debug, thiserror::Error)]
pub enum FrameError {
    /// The peer closed the connection between two frames.
    #[error("the other side closed the connection")]
    Closed,
    /// The peer closed the connection within a frame.
    #[error("the connection ended within a message ({got} of {wanted} bytes came)")]
    Cut {
        /// Bytes that came.
        got: usize,
        /// Bytes that were announced.
        wanted: usize,
    },
    /// A frame of no bytes.
    #[error("a message of no bytes")]
    Empty,
    /// A frame over the limit.
    #[error("a message of {length} bytes, {max} is the most")]
    TooLong {
        /// Bytes announced, or about to be sent.
        length: usize,
        /// The limit.
        max: usize,
    },
    /// The deadline passed.
    #[error("no complete message within the time allowed")]
    TimedOut,
    /// More descriptors beside a message than the receiver takes.
    #[error("more than {max} file descriptors beside a message")]
    TooManyDescriptors {
        /// The limit.
        max: usize,
    },
    /// Not the JSON that was expected.
    #[error("a message that cannot be understood")]
    Json(#[source] serde_json::Error),
    /// The system call failed.
    #[error("reading or writing the connection failed")]
    Io(#[source] io::Error),
}

impl FrameError {
    /// Sorts an I/O error: a timeout is what the deadline looks like from inside.
    pub fn from_io(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => Self::TimedOut,
            io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset => Self::Closed,
            _ => Self::Io(error),
        }
    }
}

/// Reads one frame of at most `max` bytes.
///
/// # Errors
/// Every variant of [`FrameError`] but `Json` and `TooManyDescriptors`. After an error the stream is out of step:
/// close it.
pub fn read_frame(reader: &mut impl Read, max: usize) -> Result<Vec<u8>, FrameError> {
    let mut header = [0; HEADER];
    let mut got = 0;
    while got < HEADER {
        match reader.read(&mut header[got..]) {
            Ok(0) if got == 0 => return Err(FrameError::Closed),
            Ok(0) => return Err(FrameError::Cut { got, wanted: HEADER }),
            Ok(n) => got += n,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(FrameError::from_io(error)),
        }
    }
    read_body(reader, header, max)
}

/// Checks a length field.
///
/// # Errors
/// `Empty` and `TooLong`.
pub fn length(header: [u8; HEADER], max: usize) -> Result<usize, FrameError> {
    let length = u32::from_be_bytes(header) as usize;
    match length {
        0 => Err(FrameError::Empty),
        _ if length > max => Err(FrameError::TooLong { length, max }),
        _ => Ok(length),
    }
}

/// Reads what follows a length field.
pub(crate) fn read_body(
    reader: &mut impl Read,
    header: [u8; HEADER],
    max: usize,
) -> Result<Vec<u8>, FrameError> {
    let wanted = length(header, max)?;
    let mut body = Vec::with_capacity(wanted.min(FIRST_CHUNK));
    let got = reader.take(wanted as u64).read_to_end(&mut body).map_err(FrameError::from_io)?;
    if got < wanted { Err(FrameError::Cut { got, wanted }) } else { Ok(body) }
}

/// Writes one frame. Two writes: give it something buffered, or a [`crate::conn::Conn`].
///
/// # Errors
/// `Empty` and `TooLong` before anything was written; `TimedOut`, `Closed` and `Io` at any point.
pub fn write_frame(writer: &mut impl Write, body: &[u8]) -> Result<(), FrameError> {
    writer.write_all(&header_for(body.len())?).map_err(FrameError::from_io)?;
    writer.write_all(body).map_err(FrameError::from_io)
}

/// A whole frame, length field included.
///
/// # Errors
/// `Empty` and `TooLong`.
pub fn framed(body: &[u8]) -> Result<Vec<u8>, FrameError> {
    let mut frame = Vec::with_capacity(HEADER + body.len());
    frame.extend_from_slice(&header_for(body.len())?);
    frame.extend_from_slice(body);
    Ok(frame)
}

/// The length field for a body of `length` bytes.
pub(crate) fn header_for(length: usize) -> Result<[u8; HEADER], FrameError> {
    match u32::try_from(length) {
        Ok(0) => Err(FrameError::Empty),
        Ok(n) if length <= MAX_FRAME => Ok(n.to_be_bytes()),
        _ => Err(FrameError::TooLong { length, max: MAX_FRAME }),
    }
}

/// Reads one frame of JSON.
///
/// # Errors
/// As [`read_frame`]; `Json` if the bytes are not a `T`. After `Json` the stream is still in step.
pub fn read_message<T: DeserializeOwned>(reader: &mut impl Read, max: usize) -> Result<T, FrameError> {
    decode(&read_frame(reader, max)?)
}

/// Writes one frame of JSON.
///
/// # Errors
/// As [`write_frame`]; `Json` if the message cannot be put into JSON.
pub fn write_message<T: Serialize>(writer: &mut impl Write, message: &T) -> Result<(), FrameError> {
    write_frame(writer, &encode(message)?)
}

/// Bytes of a message.
pub(crate) fn encode<T: Serialize>(message: &T) -> Result<Vec<u8>, FrameError> {
    serde_json::to_vec(message).map_err(FrameError::Json)
}

/// A message from its bytes; trailing bytes are an error.
pub(crate) fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, FrameError> {
    serde_json::from_slice(bytes).map_err(FrameError::Json)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Gives its bytes one at a time, as a slow peer does.
    struct Dribble<'a>(&'a [u8]);

    impl Read for Dribble<'_> {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            let n = self.0.len().min(buffer.len()).min(1);
            buffer[..n].copy_from_slice(&self.0[..n]);
            self.0 = &self.0[n..];
            Ok(n)
        }
    }

    #[test]
    fn an_empty_frame_is_refused_on_both_sides() {
        assert!(matches!(read_frame(&mut &[0u8; 4][..], 10), Err(FrameError::Empty)));
        let mut out = Vec::new();
        assert!(matches!(write_frame(&mut out, b""), Err(FrameError::Empty)));
        assert!(out.is_empty());
    }

    #[test]
    fn a_length_over_the_limit_is_refused_before_the_body_is_read() {
        let mut bytes: &[u8] = b"\0\0\0\x0bhello world";
        let error = read_frame(&mut bytes, 10).unwrap_err();
        assert!(matches!(error, FrameError::TooLong { length: 11, max: 10 }));
        assert_eq!(bytes, b"hello world");
        let mut bytes: &[u8] = &[0xff; 64];
        assert!(matches!(read_frame(&mut bytes, MAX_FRAME), Err(FrameError::TooLong { .. })));
    }

    #[test]
    fn a_claimed_length_takes_no_memory() {
        let mut bytes: &[u8] = &[1, 0, 0, 0, b'x'];
        assert!(matches!(
            read_frame(&mut bytes, MAX_FRAME),
            Err(FrameError::Cut { got: 1, wanted: MAX_FRAME })
        ));
    }

    #[test]
    fn the_end_between_frames_is_told_from_the_end_within_one() {
        assert!(matches!(read_frame(&mut &b""[..], 10), Err(FrameError::Closed)));
        assert!(matches!(read_frame(&mut &b"\0\0"[..], 10), Err(FrameError::Cut { got: 2, wanted: 4 })));
        assert!(matches!(
            read_frame(&mut &b"\0\0\0\x05abc"[..], 10),
            Err(FrameError::Cut { got: 3, wanted: 5 })
        ));
    }

    #[test]
    fn trailing_bytes_after_the_json_are_refused() {
        let mut bytes: &[u8] = b"\0\0\0\x041 2 ";
        assert!(matches!(read_message::<u32>(&mut bytes, 10), Err(FrameError::Json(_))));
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(bodies in prop::collection::vec(prop::collection::vec(any::<u8>(), 1..2000), 0..8)) {
            let mut bytes = Vec::new();
            for body in &bodies {
                write_frame(&mut bytes, body).unwrap();
            }
            let mut slow = Dribble(&bytes);
            for body in &bodies {
                prop_assert_eq!(&read_frame(&mut slow, MAX_FRAME).unwrap(), body);
            }
            prop_assert!(matches!(read_frame(&mut slow, MAX_FRAME), Err(FrameError::Closed)));
        }

        #[test]
        fn no_bytes_make_it_panic_or_read_past_the_limit(bytes in prop::collection::vec(any::<u8>(), 0..200), max in 0usize..64) {
            let mut rest: &[u8] = &bytes;
            while let Ok(body) = read_frame(&mut rest, max) {
                prop_assert!(!body.is_empty() && body.len() <= max);
            }
        }
    }
}
