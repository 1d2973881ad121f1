//! An answer's way from the provider to the client.

use super::{
    counted::Counted,
    record::Unrecorded,
    relay::{Outcome, Relay},
    room::Kept,
};
use crate::llm::report;
use axum::body::Bytes;
use http_body::Frame;
use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};
use tokio::sync::{mpsc, oneshot};

/// How long the end of a stream may take behind its final event.
const END: Duration = Duration::from_secs(1);
/// Most bytes of an answer.
const MAX_ANSWER: usize = 64 << 20;
/// Why a call ended that could have gone on.
pub(super) const STOPPED: &str = "the agent's worker was stopped";
/// Pieces of an answer that wait for a client; the provider waits when there are more.
pub(super) const WAITING: usize = 16;

pub(super) type Piece = Result<Bytes, Broken>;

/// A whole answer's content type; or with which status and why the client is not to have it.
pub(super) type Told = Result<&'static str, (u16, String)>;

/// The provider's connection broke: the client's breaks, too. A short answer that looks whole would be a lie.
#[derive(Debug, thiserror::Error)]
#[error("the provider's answer broke off")]
pub(super) struct Broken;

/// The provider's next bytes; `None` at the end.
async fn chunk(
    upstream: &mut reqwest::Response,
    read: &mut usize,
    counted: &Counted,
) -> Result<Option<Bytes>, String> {
    let patience = counted.shared.config.llm.timeout;
    let next = tokio::select! {
        next = tokio::time::timeout(patience, upstream.chunk()) => next,
        () = counted.state.cut.cancelled() => return Err(STOPPED.to_owned()),
    };
    let chunk = match next {
        Ok(Ok(chunk)) => chunk,
        Ok(Err(_)) => return Err("the provider's answer broke off".to_owned()),
        Err(_) => return Err("the provider's answer stood still".to_owned()),
    };
    *read += chunk.as_ref().map_or(0, Bytes::len);
    if *read > MAX_ANSWER {
        return Err(format!("the provider's answer has more than {MAX_ANSWER} bytes"));
    }
    Ok(chunk)
}

/// From the provider to the client, until either ends, or the answer does. The record is on disk before the client sees the
/// final event: a client may act on that, and a provider could leave the stream open behind it.
pub(super) async fn pump(
    mut upstream: reqwest::Response,
    mut relay: Relay,
    pieces: mpsc::Sender<Piece>,
    status: u16,
    mut counted: Counted,
) {
    let (mut read, mut last) = (0, Vec::new());
    let redactor = Arc::clone(&counted.shared.redactor);
    let broken = loop {
        let next = tokio::select! {
            next = chunk(&mut upstream, &mut read, &counted) => next,
            () = pieces.closed() => Err("the client hung up".to_owned()),
        };
        let chunk = match next {
            Ok(Some(chunk)) => chunk,
            Ok(None) => break None,
            Err(why) => break Some(why),
        };
        let fed = relay.feed(&chunk, &redactor);
        counted.began.extend(std::iter::repeat_n(report::now(), relay.started()));
        match fed {
            Ok(out) if relay.is_over() => {
                last = out;
                break None;
            }
            Ok(out) if out.is_empty() => {}
            Ok(out) => {
                counted.report(relay.completed()).await;
                let sent = tokio::select! {
                    sent = pieces.send(Ok(out.into())) => sent.map_err(|_| "the client hung up"),
                    () = counted.state.cut.cancelled() => Err(STOPPED),
                };
                if let Err(why) = sent {
                    break Some(why.to_owned());
                }
            }
            Err(why) => break Some(why),
        }
    };
    let is_over = relay.is_over();
    let (rest, mut outcome) = relay.finish(broken.is_none(), &redactor);
    last.extend(rest);
    let broken = broken.or(outcome.refused.take());
    let is_broken = broken.is_some();
    outcome.error = broken.or(outcome.error);
    counted.charge(status, &mut outcome);
    let written = counted.end(status, outcome).await;
    if is_broken || written.is_err() {
        let _ = pieces.send(Err(Broken)).await;
    } else if !last.is_empty() {
        let _ = pieces.send(Ok(last.into())).await;
    }
    drop(pieces);
    // A connection whose answer was read to its end serves the next call.
    if is_over {
        let _ = tokio::time::timeout(END, upstream.chunk()).await;
    }
}

/// As [`pump`], for an answer that does not stream. `told` hears what becomes of it.
pub(super) async fn pump_whole(
    mut upstream: reqwest::Response,
    relay: Relay,
    (pieces, told): (mpsc::Sender<Piece>, oneshot::Sender<Told>),
    status: u16,
    counted: Counted,
) {
    let (mut body, mut read) = (Vec::new(), 0);
    let mut held = counted.state.room.answers.hold();
    let broken = loop {
        match chunk(&mut upstream, &mut read, &counted).await {
            Ok(Some(chunk)) => {
                if let Err(full) = held.grow(chunk.len()) {
                    break Some((503, full.to_string()));
                }
                body.extend_from_slice(&chunk);
            }
            Ok(None) => break None,
            Err(why) => break Some((502, why)),
        }
    };
    drop(upstream);
    if let Some((answered, why)) = broken {
        let said = body.len();
        drop((body, held));
        let mut outcome = Outcome { error: Some(why.clone()), said, ..Outcome::default() };
        counted.charge(status, &mut outcome);
        let written = counted.end(answered, outcome).await;
        let _ = told.send(Err(written.map_or_else(unrecorded, |()| (answered, why))));
        return;
    }
    let mut whole = relay.whole(status >= 400, &body, &counted.shared.redactor);
    drop(body);
    if let Some(why) = whole.outcome.refused.take() {
        // The client hears of none.
        whole.outcome.tool_calls.clear();
        whole.outcome.error = Some(why.clone());
        counted.charge(status, &mut whole.outcome);
        let written = counted.end(502, whole.outcome).await;
        let _ = told.send(Err(written.map_or_else(unrecorded, |()| (502, why))));
        return;
    }
    counted.charge(status, &mut whole.outcome);
    if let Err(why) = counted.end(status, whole.outcome).await {
        let _ = told.send(Err(unrecorded(why)));
        return;
    }
    let _ = told.send(Ok(whole.form));
    if !whole.body.is_empty() {
        let _ = pieces.send(Ok(Bytes::from_owner(Kept::new(whole.body, held)))).await;
    }
}

/// What a client has in place of an answer that is not on record.
fn unrecorded(why: Unrecorded) -> (u16, String) {
    (503, why.to_string())
}

/// An answer's body as it comes.
pub(super) struct Relayed(pub(super) mpsc::Receiver<Piece>);

impl http_body::Body for Relayed {
    type Data = Bytes;
    type Error = Broken;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Broken>>> {
        self.0.poll_recv(cx).map(|piece| piece.map(|piece| piece.map(Frame::data)))
    }
}
