//! Bodies: a client's on its way to the server, a server's without credentials on its way back.

use crate::{
    exchange::{BEHIND_A_CREDENTIAL, Exchange},
    mask::Pieces,
    taken::Failure,
};
use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;
use std::{
    pin::Pin,
    rc::Rc,
    task::{Context, Poll, ready},
};

/// A client's body, without trailers.
pub(crate) struct Forwarded {
    body: Incoming,
    /// It is under way for as long as this is.
    _exchange: Rc<Exchange>,
}

impl Forwarded {
    pub(crate) fn new(body: Incoming, exchange: Rc<Exchange>) -> Self {
        Self { body, _exchange: exchange }
    }
}

impl Body for Forwarded {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        loop {
            match ready!(Pin::new(&mut self.body).poll_frame(cx)) {
                Some(Ok(frame)) if frame.is_data() => return Poll::Ready(Some(Ok(frame))),
                // Trailers could be headers that nobody judged.
                Some(Ok(_)) => {}
                other => return Poll::Ready(other),
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// What a client is sent.
pub(crate) enum Sent {
    /// A text of ours.
    Text(Bytes),
    /// A server's body.
    Masked(Box<Masked>),
}

/// A server's body.
pub(crate) struct Masked {
    body: Incoming,
    exchange: Rc<Exchange>,
    pieces: Pieces,
    /// Bytes that may go on, once a credential was in it.
    left: u64,
}

impl Sent {
    pub(crate) fn text(text: String) -> Self {
        Self::Text(text.into())
    }

    pub(crate) fn nothing() -> Self {
        Self::Text(Bytes::new())
    }

    pub(crate) fn masked(body: Incoming, exchange: Rc<Exchange>) -> Self {
        let left = BEHIND_A_CREDENTIAL;
        Self::Masked(Box::new(Masked { body, exchange, pieces: Pieces::default(), left }))
    }
}

impl Masked {
    fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, Failure>>> {
        loop {
            let piece = match ready!(Pin::new(&mut self.body).poll_frame(cx)) {
                Some(Ok(frame)) => match frame.into_data() {
                    Ok(data) => self.pieces.push_lines(&self.exchange.hosts().mask, &data),
                    Err(_) => continue,
                },
                Some(Err(error)) => return Poll::Ready(Some(Err(error.into()))),
                None => match self.pieces.finish() {
                    last if last.is_empty() => return Poll::Ready(None),
                    last => last,
                },
            };
            if self.pieces.found() > 0 {
                self.exchange.reflects();
                match self.left.checked_sub(piece.len() as u64) {
                    Some(left) => self.left = left,
                    None => return Poll::Ready(Some(Err("too much is behind a credential".into()))),
                }
            }
            if !piece.is_empty() {
                return Poll::Ready(Some(Ok(piece.into())));
            }
        }
    }
}

impl Body for Sent {
    type Data = Bytes;
    type Error = Failure;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Failure>>> {
        match &mut *self {
            Self::Text(text) if text.is_empty() => Poll::Ready(None),
            Self::Text(text) => Poll::Ready(Some(Ok(Frame::data(std::mem::take(text))))),
            Self::Masked(masked) => masked.poll_next(cx).map_ok(Frame::data),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Text(text) => text.is_empty(),
            Self::Masked(masked) => masked.body.is_end_stream() && masked.pieces.waiting() == 0,
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Text(text) => SizeHint::with_exact(text.len() as u64),
            Self::Masked(masked) => {
                let (hint, waiting) = (masked.body.size_hint(), masked.pieces.waiting() as u64);
                let mut whole = SizeHint::new();
                if let Some(most) = hint.upper() {
                    whole.set_upper(most.saturating_add(waiting));
                }
                whole.set_lower(hint.lower().saturating_add(waiting));
                whole
            }
        }
    }
}
