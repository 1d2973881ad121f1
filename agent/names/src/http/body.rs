//! A request's body: how many bytes more belong to it.

use super::Refused;

/// Most digits of a chunk's size. Nobody sends chunks of more than 2 GiB, and servers have read larger ones as negative.
const MAX_DIGITS: usize = 8;
const MAX_CHUNK: u64 = 0x7fff_ffff;

/// What is left of a body.
#[derive(Debug)]
pub(super) enum Body {
    /// So many bytes.
    Left(u64),
    /// Chunks (RFC 9112 section 7.1).
    Chunks(Chunk),
}

/// Where in the chunks the next byte is.
#[derive(Debug)]
pub(super) enum Chunk {
    /// At a chunk's size.
    Size,
    /// Within a chunk, with so many bytes to go.
    Data(u64),
    /// At the end of a chunk's last line.
    End,
    /// At the end of the body.
    Last,
    /// Behind it.
    Over,
}

impl Body {
    pub(super) fn chunked() -> Self {
        Self::Chunks(Chunk::Size)
    }

    pub(super) fn is_over(&self) -> bool {
        matches!(self, Self::Left(0) | Self::Chunks(Chunk::Over))
    }

    /// How many bytes come next that belong to this body whatever they are.
    pub(super) fn opaque(&self) -> u64 {
        match self {
            Self::Left(left) | Self::Chunks(Chunk::Data(left)) => *left,
            Self::Chunks(_) => 0,
        }
    }

    /// So many of those went on.
    pub(super) fn passed(&mut self, count: u64) {
        match self {
            Self::Left(left) => *left = left.saturating_sub(count),
            Self::Chunks(Chunk::Data(left)) if *left > count => *left -= count,
            Self::Chunks(chunk @ Chunk::Data(_)) => *chunk = Chunk::End,
            Self::Chunks(_) => {}
        }
    }

    /// How many of the bytes belong to this body and may go on; none: more have to come.
    pub(super) fn pass(&mut self, bytes: &[u8]) -> Result<usize, Refused> {
        match self {
            Self::Left(left) => Ok(take(left, bytes)),
            Self::Chunks(chunk) => chunk.pass(bytes),
        }
    }
}

impl Chunk {
    fn pass(&mut self, bytes: &[u8]) -> Result<usize, Refused> {
        match self {
            Self::Size => {
                let Some((size, length)) = size(bytes)? else { return Ok(0) };
                *self = if size == 0 { Self::Last } else { Self::Data(size) };
                Ok(length)
            }
            Self::Data(left) => {
                let count = take(left, bytes);
                if *left == 0 {
                    *self = Self::End;
                }
                Ok(count)
            }
            Self::End => {
                let length = line_end(bytes, "a chunk does not end where its size says")?;
                if length > 0 {
                    *self = Self::Size;
                }
                Ok(length)
            }
            Self::Last => {
                let length =
                    line_end(bytes, "fields after the last chunk are not passed on: servers differ on them")?;
                if length > 0 {
                    *self = Self::Over;
                }
                Ok(length)
            }
            Self::Over => Ok(0),
        }
    }
}

fn take(left: &mut u64, bytes: &[u8]) -> usize {
    let available = u64::try_from(bytes.len()).unwrap_or(u64::MAX);
    let count = available.min(*left);
    *left -= count;
    usize::try_from(count).unwrap_or(bytes.len())
}

/// A chunk's size, and how long its line is.
fn size(bytes: &[u8]) -> Result<Option<(u64, usize)>, Refused> {
    let mut size = 0;
    for (at, byte) in bytes.iter().enumerate() {
        let digit = char::from(*byte).to_digit(16).map(u64::from);
        match (digit, byte) {
            (Some(digit), _) if at < MAX_DIGITS => size = size * 16 + digit,
            (Some(_), _) => return Err(Refused::Chunk("a chunk's size has too many digits")),
            (None, b'\r') if at > 0 => {
                if size > MAX_CHUNK {
                    return Err(Refused::Chunk("a chunk has more than 2 GiB"));
                }
                let rest = bytes.get(at..).unwrap_or_default();
                let length = line_end(rest, "the line of a chunk's size does not end in CR and LF")?;
                return Ok((length > 0).then_some((size, at + length)));
            }
            (None, b';') => {
                return Err(Refused::Chunk(
                    "chunks with extensions are not passed on: servers differ on them",
                ));
            }
            _ => return Err(Refused::Chunk("a chunk's size is not a hexadecimal number")),
        }
    }
    Ok(None)
}

/// 2 if CR and LF are there, none if they may still come.
fn line_end(bytes: &[u8], otherwise: &'static str) -> Result<usize, Refused> {
    match bytes {
        [b'\r', b'\n', ..] => Ok(2),
        [] | [b'\r'] => Ok(0),
        _ => Err(Refused::Chunk(otherwise)),
    }
}
