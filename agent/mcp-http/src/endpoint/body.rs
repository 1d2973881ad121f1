//! A stream of events as the body of an answer.

use super::replay::event;
use crate::room::Room;
use axum::body::Bytes;
use http_body::{Body, Frame};
use std::{
    convert::Infallible,
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};
use tokio::{
    sync::mpsc,
    time::{Instant, Sleep, sleep},
};

/// How long a stream is quiet before a comment shows that it is still there, and finds out whether its client is.
const BEAT: Duration = Duration::from_secs(15);

/// A message on its way to a client.
#[derive(Debug)]
pub(super) struct Item {
    /// The id of its event, where the stream can be resumed.
    pub(super) id: Option<String>,
    /// One line with its end; none: an event that only says where the stream can be resumed.
    pub(super) line: Vec<u8>,
    /// What it takes until it is sent.
    pub(super) _room: Room,
}

/// Does something when it is dropped.
pub(super) struct OnDrop(pub(super) Option<Box<dyn FnOnce() + Send>>);

impl Drop for OnDrop {
    fn drop(&mut self) {
        if let Some(action) = self.0.take() {
            action();
        }
    }
}

/// Messages as events, until there are no more.
pub(super) struct Events {
    first: Option<Item>,
    items: mpsc::Receiver<Item>,
    beat: Pin<Box<Sleep>>,
    /// Whoever is told that nobody reads any more.
    _end: OnDrop,
}

impl Events {
    pub(super) fn new(first: Option<Item>, items: mpsc::Receiver<Item>, end: OnDrop) -> Self {
        Self { first, items, beat: Box::pin(sleep(BEAT)), _end: end }
    }
}

fn framed(item: &Item) -> Frame<Bytes> {
    let bytes = match &item.id {
        Some(id) => event(id, &item.line),
        None => {
            // Without an id the event is the same but for its first line.
            let event = event("", &item.line);
            event.splitn(2, |byte| *byte == b'\n').nth(1).unwrap_or_default().to_vec()
        }
    };
    Frame::data(bytes.into())
}

impl Body for Events {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let item = match self.first.take() {
            Some(item) => Poll::Ready(Some(item)),
            None => self.items.poll_recv(context),
        };
        match item {
            Poll::Ready(item) => {
                self.beat.as_mut().reset(Instant::now() + BEAT);
                Poll::Ready(item.map(|item| Ok(framed(&item))))
            }
            Poll::Pending => {
                if self.beat.as_mut().poll(context).is_pending() {
                    return Poll::Pending;
                }
                self.beat.as_mut().reset(Instant::now() + BEAT);
                // Registers for the next one.
                let _ = self.beat.as_mut().poll(context);
                Poll::Ready(Some(Ok(Frame::data(Bytes::from_static(b":\n\n")))))
            }
        }
    }
}
