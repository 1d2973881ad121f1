//! A conversation as the provider's own JSON, ready to be sent: messages once encoded are never touched again.
//!
//! Pieces are merged as in a binary counter, so there are few of them however long the conversation gets, and each byte
//! was copied only a few times.

use bytes::{Bytes, BytesMut};
use http_body::{Body, Frame, SizeHint};
use std::{
    collections::VecDeque,
    convert::Infallible,
    pin::Pin,
    task::{Context, Poll},
};

/// Bodies up to this size are sent as one piece: one write with the head.
const ONE_PIECE: usize = 64 << 10;

/// Encoded messages, each with a comma behind it.
#[derive(Debug, Default, Clone)]
pub(crate) struct History {
    pieces: Vec<Bytes>,
}

impl History {
    /// Adds encoded messages, without a comma at either end. None for no messages.
    pub(crate) fn push(&mut self, mut json: Vec<u8>) {
        if json.is_empty() {
            return;
        }
        json.push(b',');
        let mut last = Bytes::from(json);
        while let Some(before) = self.pieces.pop_if(|before| before.len() <= last.len() * 2) {
            last = [&before[..], &last[..]].concat().into();
        }
        self.pieces.push(last);
    }

    /// How many bytes.
    pub(crate) fn bytes(&self) -> usize {
        self.pieces.iter().map(Bytes::len).sum()
    }

    /// A request's body: what stands before the messages, these, the last ones, what stands behind.
    pub(crate) fn body(&self, before: Bytes, last: Bytes, after: Bytes) -> Pieces {
        let mut pieces: VecDeque<Bytes> = VecDeque::with_capacity(self.pieces.len() + 3);
        pieces.push_back(before);
        pieces.extend(self.pieces.iter().cloned());
        pieces.push_back(last);
        pieces.push_back(after);
        pieces.retain(|piece| !piece.is_empty());
        let left = pieces.iter().map(Bytes::len).sum();
        Pieces { pieces, left }
    }
}

/// A request's body in pieces.
#[derive(Debug, Clone)]
pub struct Pieces {
    pieces: VecDeque<Bytes>,
    left: usize,
}

impl Pieces {
    /// Bytes that are left.
    pub fn len(&self) -> usize {
        self.left
    }

    /// All in one piece, if they are few enough bytes.
    ///
    /// # Errors
    /// They are not: the pieces again.
    pub(crate) fn in_one(mut self) -> Result<Bytes, Self> {
        if self.left > ONE_PIECE {
            return Err(self);
        }
        let mut all = BytesMut::with_capacity(self.left);
        self.pieces.drain(..).for_each(|piece| all.extend_from_slice(&piece));
        Ok(all.freeze())
    }
}

impl Body for Pieces {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let next = self.pieces.pop_front();
        self.left -= next.as_ref().map_or(0, Bytes::len);
        Poll::Ready(next.map(|piece| Ok(Frame::data(piece))))
    }

    fn is_end_stream(&self) -> bool {
        self.pieces.is_empty()
    }

    /// Exact, so that the request has a Content-Length.
    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.left as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn whole(mut pieces: Pieces) -> String {
        let bytes: Vec<u8> = pieces.pieces.drain(..).flatten().collect();
        assert_eq!(bytes.len(), pieces.left);
        String::from_utf8(bytes).unwrap()
    }

    #[test]
    fn a_thousand_messages_are_few_pieces_in_order() {
        let mut history = History::default();
        let mut expected = String::from("[");
        for i in 0..1000 {
            let message = format!("{{\"n\":{i},\"text\":\"{}\"}}", "x".repeat(i % 97));
            expected += &message;
            expected.push(',');
            history.push(message.into_bytes());
        }
        history.push(Vec::new());
        assert!(history.pieces.len() <= 20, "{}", history.pieces.len());
        assert_eq!(history.bytes(), expected.len() - 1);
        let body = history.body("[".into(), "{}".into(), "]".into());
        assert_eq!(whole(body), expected + "{}]");
    }
}
