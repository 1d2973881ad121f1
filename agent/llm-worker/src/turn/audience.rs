//! Who hears what of a turn, and until when.

use super::Stop;
use crate::{
    frame::Peer,
    report::Intent,
    rpc::{self, Output},
};
use tokio_util::sync::CancellationToken;

/// Who hears what, until the runtime is gone.
pub(super) struct Audience<'a> {
    pub(super) runtime: &'a Peer,
    pub(super) subscriber: Option<&'a Peer>,
    pub(super) intent: Option<&'a Intent>,
    pub(super) cancel: &'a CancellationToken,
}

impl Audience<'_> {
    pub(super) async fn unless_cancelled<T>(&self, work: impl Future<Output = T>) -> Result<T, Stop> {
        tokio::select! {
            biased;
            () = self.cancel.cancelled() => Err(Stop::Cancelled),
            done = work => Ok(done),
        }
    }

    pub(super) async fn text(&self, text: &str) -> Result<(), Stop> {
        if text.is_empty() {
            return Ok(());
        }
        let frame = rpc::output(&Output::Text { text });
        if let Some(subscriber) = self.subscriber {
            subscriber.push(frame.clone());
        }
        self.push(frame).await
    }

    pub(super) async fn input(&self, text: &str) -> Result<(), Stop> {
        if text.is_empty() { Ok(()) } else { self.runtime(&Output::ToolUseInput { text }).await }
    }

    pub(super) async fn runtime(&self, output: &Output<'_>) -> Result<(), Stop> {
        self.push(rpc::output(output)).await
    }

    async fn push(&self, frame: bytes::Bytes) -> Result<(), Stop> {
        if self.runtime.push_patiently(frame).await { Ok(()) } else { Err(Stop::Cancelled) }
    }
}
