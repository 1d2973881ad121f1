//! Bodies: a client's on its way to the server, a server's without credentials on its way back.

use crate::mask::{Mask, Pieces};
use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;
use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

/// A client's body, without trailers.
pub(crate) struct Forwarded(pub(crate) Incoming);

impl Body for Forwarded {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        loop {
            match ready!(Pin::new(&mut self.0).poll_frame(cx)) {
                Some(Ok(frame)) if frame.is_data() => return Poll::Ready(Some(Ok(frame))),
                // Trailers could be headers that nobody judged.
                Some(Ok(_)) => {}
                other => return Poll::Ready(other),
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.0.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.0.size_hint()
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
    mask: Arc<Mask>,
    pieces: Pieces,
}

impl Sent {
    pub(crate) fn text(text: String) -> Self {
        Self::Text(text.into())
    }

    pub(crate) fn nothing() -> Self {
        Self::Text(Bytes::new())
    }

    pub(crate) fn masked(body: Incoming, mask: Arc<Mask>) -> Self {
        Self::Masked(Box::new(Masked { body, mask, pieces: Pieces::default() }))
    }
}

impl Masked {
    fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, hyper::Error>>> {
        loop {
            let piece = match ready!(Pin::new(&mut self.body).poll_frame(cx)) {
                Some(Ok(frame)) => match frame.into_data() {
                    Ok(data) => self.pieces.push_lines(&self.mask, &data),
                    Err(_) => continue,
                },
                Some(Err(error)) => return Poll::Ready(Some(Err(error))),
                None => match self.pieces.finish() {
                    last if last.is_empty() => return Poll::Ready(None),
                    last => last,
                },
            };
            if !piece.is_empty() {
                return Poll::Ready(Some(Ok(piece.into())));
            }
        }
    }
}

impl Body for Sent {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
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
