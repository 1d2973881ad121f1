//! A body, decompressed as it comes, that never grows beyond its limit: not by what is sent, nor by what that unpacks to.

use super::error::WebError;
use flate2::write::MultiGzDecoder;
use hyper::header::{CONTENT_ENCODING, HeaderMap};
use std::io::{self, Write};

/// Takes a body in.
pub(super) struct Body {
    coding: Coding,
    /// Bytes as they were sent.
    sent: u64,
    limit: usize,
}

enum Coding {
    None(Bounded),
    Gzip(MultiGzDecoder<Bounded>),
}

/// What was read of a body.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Read {
    /// The bytes, decompressed.
    pub(super) bytes: Vec<u8>,
    /// Whether there was more.
    pub(super) over: bool,
}

/// Takes bytes up to a limit, and an error instead of the first one beyond it.
struct Bounded {
    bytes: Vec<u8>,
    limit: usize,
    over: bool,
}

impl Write for Bounded {
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        let room = self.limit - self.bytes.len();
        if data.len() > room {
            self.over = true;
        }
        let taken = data.len().min(room);
        self.bytes.extend_from_slice(&data[..taken]);
        match taken {
            0 if !data.is_empty() => Err(io::ErrorKind::FileTooLarge.into()),
            _ => Ok(taken),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Body {
    /// # Errors
    /// [`WebError::Coding`]
    pub(super) fn new(headers: &HeaderMap, limit: usize) -> Result<Self, WebError> {
        let bounded = Bounded { bytes: Vec::new(), limit, over: false };
        let coding = headers.get(CONTENT_ENCODING).map_or(&b""[..], |value| value.as_bytes());
        let coding = match coding.to_ascii_lowercase().as_slice() {
            b"" | b"identity" => Coding::None(bounded),
            b"gzip" | b"x-gzip" => Coding::Gzip(MultiGzDecoder::new(bounded)),
            other => return Err(WebError::Coding(String::from_utf8_lossy(other).into_owned())),
        };
        Ok(Self { coding, sent: 0, limit })
    }

    /// Takes a piece; `false`: the limit is reached, no more is wanted.
    ///
    /// # Errors
    /// [`WebError::Gzip`]
    pub(super) fn take(&mut self, piece: &[u8]) -> Result<bool, WebError> {
        self.sent += piece.len() as u64;
        match &mut self.coding {
            Coding::None(bounded) => Ok(bounded.write_all(piece).is_ok() && !bounded.over),
            Coding::Gzip(decoder) => {
                let written = decoder.write_all(piece);
                match (decoder.get_ref().over, written) {
                    (true, _) => Ok(false),
                    (false, Err(error)) => Err(WebError::Gzip(error)),
                    // Compressed data that unpacks to less than itself has no end that it must come to.
                    (false, Ok(())) => Ok(self.sent <= self.limit as u64),
                }
            }
        }
    }

    /// # Errors
    /// [`WebError::Gzip`] if compressed data ended before its end.
    pub(super) fn finish(self) -> Result<Read, WebError> {
        let oversized = self.sent > self.limit as u64;
        let bounded = match self.coding {
            Coding::None(bounded) => bounded,
            Coding::Gzip(decoder) if self.sent == 0 => {
                return Ok(Read { bytes: Vec::new(), over: decoder.get_ref().over });
            }
            Coding::Gzip(mut decoder) => {
                let ended = decoder.try_finish();
                let bounded =
                    std::mem::replace(decoder.get_mut(), Bounded { bytes: Vec::new(), limit: 0, over: true });
                match ended {
                    Err(error) if !bounded.over && !oversized => return Err(WebError::Gzip(error)),
                    _ => bounded,
                }
            }
        };
        Ok(Read { bytes: bounded.bytes, over: bounded.over || oversized })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use flate2::{Compression, write::GzEncoder};
    use proptest::prelude::*;

    fn packed(bytes: &[u8]) -> Vec<u8> {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
        encoder.write_all(bytes).unwrap();
        encoder.finish().unwrap()
    }

    fn read(coding: &str, limit: usize, pieces: &[&[u8]]) -> Result<Read, WebError> {
        let mut headers = HeaderMap::new();
        headers.insert(CONTENT_ENCODING, coding.parse().unwrap());
        let mut body = Body::new(&headers, limit)?;
        for piece in pieces {
            if !body.take(piece)? {
                break;
            }
        }
        body.finish()
    }

    #[test]
    fn says_when_there_was_more() {
        for coding in ["", "identity"] {
            let exact = read(coding, 4, &[b"ab", b"cd"]).unwrap();
            assert_eq!(exact, Read { bytes: b"abcd".into(), over: false });
            let over = read(coding, 4, &[b"ab", b"cde"]).unwrap();
            assert_eq!(over, Read { bytes: b"abcd".into(), over: true });
        }
    }

    #[test]
    fn unpacks_no_more_than_the_limit() {
        let bomb = packed(&vec![0; 64 << 20]);
        assert!(bomb.len() < 128 << 10);
        let mut body = Body::new(
            &{
                let mut headers = HeaderMap::new();
                headers.insert(CONTENT_ENCODING, "gzip".parse().unwrap());
                headers
            },
            1 << 20,
        )
        .unwrap();
        let taken = bomb.chunks(1000).take_while(|piece| body.take(piece).unwrap()).count();
        assert!(taken < bomb.len() / 1000, "it went on after its limit");
        let read = body.finish().unwrap();
        assert_eq!((read.bytes.len(), read.over), (1 << 20, true));
        // Its buffer is not larger than what doubling it once more makes.
        assert!(read.bytes.capacity() <= 2 << 20);
    }

    #[test]
    fn bounds_what_unpacks_to_nothing() {
        let empty = packed(b"");
        let pieces = vec![empty.as_slice(); 1000];
        let read = read("gzip", 1000, &pieces).unwrap();
        assert_eq!((read.bytes.len(), read.over), (0, true));
    }

    #[test]
    fn refuses_what_is_not_gzip_and_what_was_not_asked_for() {
        assert!(matches!(read("gzip", 99, &[b"plain"]), Err(WebError::Gzip(_))));
        let whole = packed(b"some text that is packed");
        assert!(matches!(read("gzip", 99, &[&whole[..whole.len() - 9]]), Err(WebError::Gzip(_))));
        for coding in ["br", "deflate", "gzip, gzip", "zstd"] {
            assert!(matches!(read(coding, 99, &[b"x"]), Err(WebError::Coding(_))), "{coding}");
        }
        assert_eq!(read("GZip", 99, &[]).unwrap().bytes, b"");
    }

    proptest! {
        /// However it is cut into pieces, what comes out is what went in, up to the limit.
        #[test]
        fn gives_back_what_went_in(bytes in prop::collection::vec(any::<u8>(), 0..2000), limit in 1..3000_usize, cut in 1..500_usize) {
            for (coding, sent) in [("identity", bytes.clone()), ("gzip", packed(&bytes))] {
                let pieces: Vec<&[u8]> = sent.chunks(cut).collect();
                let read = read(coding, limit, &pieces).unwrap();
                prop_assert!(read.bytes.len() <= limit);
                prop_assert_eq!(&bytes[..read.bytes.len()], &read.bytes);
                prop_assert!(read.over || read.bytes == bytes);
            }
        }

        /// Hostile gzip is an error or ends, and never grows beyond its limit.
        #[test]
        fn hostile_gzip_stays_within_its_limit(mut bytes in prop::collection::vec(any::<u8>(), 0..400), at in 0..400_usize, to: u8) {
            let mut sent = packed(&bytes);
            let at = at % sent.len();
            sent[at] = to;
            bytes.truncate(100);
            if let Ok(read) = read("gzip", 100, &[&sent]) {
                prop_assert!(read.bytes.len() <= 100);
            }
        }
    }
}
