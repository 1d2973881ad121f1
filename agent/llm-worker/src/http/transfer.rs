//! An answer's way from the provider to the client.

use super::{
    active_call::ActiveCall,
    budget::{BudgetedBytes, Pool, Reservation},
    record::Unrecorded,
    relay::{self, Outcome, Relay},
};
use crate::report;
use axum::body::Bytes;
use http_body::Frame;
use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};
use tokio::sync::{mpsc, oneshot};

/// How long the end of a stream may take behind its final event, and what is told before it breaks off.
const END: Duration = Duration::from_secs(1);
/// Most bytes of an answer.
const MAX_ANSWER: usize = 64 << 20;
/// Most bytes that are kept of an answer that streams.
const MAX_KEPT: usize = 32 << 20;
/// What of that needs no room, and the longest piece on its way that needs none: what honest answers have. Whoever takes all
/// the room leaves them theirs.
const FREE: usize = 256 << 10;
const FREE_PIECE: usize = 16 << 10;
/// Why a call ended that could have gone on.
pub(super) const STOPPED: &str = "the agent's worker was stopped";
/// Pieces of an answer that wait for a client; the provider waits when there are more.
pub(super) const WAITING: usize = 16;

pub(super) type Piece = Result<Bytes, Broken>;

/// A whole answer's content type; or with which status and why the client is not to have it.
pub(super) type WholeResult = Result<&'static str, (u16, String)>;

/// The provider's connection broke: the client's breaks, too. A short answer that looks whole would be a lie.
#[derive(Debug, thiserror::Error)]
#[error("the provider's answer broke off")]
pub(super) struct Broken;

/// The provider's next bytes; `None` at the end.
async fn chunk(
    upstream: &mut reqwest::Response,
    read: &mut usize,
    active: &ActiveCall,
) -> Result<Option<Bytes>, String> {
    let patience = active.shared.config.llm.timeout;
    let next = tokio::select! {
        next = tokio::time::timeout(patience, upstream.chunk()) => next,
        () = active.state.cut.cancelled() => return Err(STOPPED.to_owned()),
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
pub(super) async fn relay_stream(
    mut upstream: reqwest::Response,
    mut relay: Relay,
    pieces: mpsc::Sender<Piece>,
    status: u16,
    mut active: ActiveCall,
) {
    let (mut read, mut last) = (0, Vec::new());
    let redactor = Arc::clone(&active.shared.redactor);
    let budget = active.state.budget.answers.clone();
    let mut held = budget.reserve();
    let broken = loop {
        let next = tokio::select! {
            next = chunk(&mut upstream, &mut read, &active) => next.map_err(Break::Upstream),
            () = pieces.closed() => Err(Break::Other("the client hung up".to_owned())),
        };
        let chunk = match next {
            Ok(Some(chunk)) => chunk,
            Ok(None) => break None,
            Err(why) => break Some(why),
        };
        let fed = relay.feed(&chunk, &redactor).map_err(Break::Other);
        active.began.extend(std::iter::repeat_n(report::now(), relay.started()));
        let fits = keep(&mut held, relay.held());
        match fed.and_then(|out| fits.map(|()| out).map_err(Break::Full)) {
            Ok(out) if relay.is_over() => {
                last = out;
                break None;
            }
            Ok(out) if out.is_empty() => {}
            Ok(out) => {
                let piece = match on_its_way(out, &budget) {
                    Ok(piece) => piece,
                    Err(why) => break Some(Break::Full(why)),
                };
                active.report(relay.completed()).await;
                let sent = tokio::select! {
                    sent = pieces.send(Ok(piece)) => sent.map_err(|_| "the client hung up"),
                    () = active.state.cut.cancelled() => Err(STOPPED),
                };
                if let Err(why) = sent {
                    break Some(Break::Other(why.to_owned()));
                }
            }
            Err(why) => break Some(why),
        }
    };
    let (is_over, wire) = (relay.is_over(), relay.wire());
    let (rest, mut outcome) = relay.finish(broken.is_none(), &redactor);
    last.extend(rest);
    let refused = outcome.refused.take();
    // Many clients take the end of the connection for the end of the answer.
    let broken = broken.or(outcome.is_cut.then(|| Break::Upstream(relay::CUT.to_owned())));
    // What the client is told before its stream breaks off.
    let notice = match &broken {
        // What waited for more: there is none.
        Some(Break::Upstream(_)) if refused.is_none() => std::mem::take(&mut last),
        Some(Break::Full(why)) => relay::error(wire, why),
        _ => Vec::new(),
    };
    let broken = broken.map(Break::into_why).or(refused);
    let is_broken = broken.is_some();
    outcome.error = broken.or(outcome.error);
    active.charge(status, &mut outcome);
    let written = active.end(status, outcome).await;
    if is_broken || written.is_err() {
        if written.is_ok() && !notice.is_empty() {
            // What breaks a connection overtakes what is on its way there.
            let (theirs, gone) = oneshot::channel::<()>();
            let _ = pieces.send(Ok(Bytes::from_owner(BudgetedBytes::new(notice, theirs)))).await;
            let _ = tokio::time::timeout(END, gone).await;
        }
        let _ = pieces.send(Err(Broken)).await;
    } else if !last.is_empty() {
        // What was kept is gone; it has its room for as long as the client takes.
        let _ = held.fit(last.len().saturating_sub(FREE));
        let _ = pieces.send(Ok(Bytes::from_owner(BudgetedBytes::new(last, held)))).await;
    }
    drop(pieces);
    // A connection whose answer was read to its end serves the next call.
    if is_over {
        let _ = tokio::time::timeout(END, upstream.chunk()).await;
    }
}

/// Why a stream breaks off.
enum Break {
    /// The provider's did.
    Upstream(String),
    /// There is no room for what is kept of it.
    Full(String),
    Other(String),
}

impl Break {
    fn into_why(self) -> String {
        let (Self::Upstream(why) | Self::Full(why) | Self::Other(why)) = self;
        why
    }
}

/// Takes room for what is kept of a stream.
fn keep(held: &mut Reservation, bytes: usize) -> Result<(), String> {
    if bytes > MAX_KEPT {
        return Err(format!("more than {MAX_KEPT} bytes would have to be kept of the provider's answer"));
    }
    held.fit(bytes.saturating_sub(FREE)).map_err(|full| full.to_string())
}

/// A piece of a stream, which takes room until the client has it.
fn on_its_way(out: Vec<u8>, budget: &Pool) -> Result<Bytes, String> {
    if out.len() <= FREE_PIECE {
        return Ok(out.into());
    }
    let mut held = budget.reserve();
    held.grow(out.len()).map_err(|full| full.to_string())?;
    Ok(Bytes::from_owner(BudgetedBytes::new(out, held)))
}

/// As [`relay_stream`], for an answer that does not stream. `result` hears what becomes of it.
pub(super) async fn relay_whole(
    mut upstream: reqwest::Response,
    relay: Relay,
    (pieces, result): (mpsc::Sender<Piece>, oneshot::Sender<WholeResult>),
    status: u16,
    active: ActiveCall,
) {
    let (mut body, mut read) = (Vec::new(), 0);
    let mut held = active.state.budget.answers.reserve();
    let broken = loop {
        match chunk(&mut upstream, &mut read, &active).await {
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
        let text_bytes = body.len();
        drop((body, held));
        let mut outcome = Outcome { error: Some(why.clone()), text_bytes, ..Outcome::default() };
        active.charge(status, &mut outcome);
        let written = active.end(answered, outcome).await;
        let _ = result.send(Err(written.map_or_else(unrecorded, |()| (answered, why))));
        return;
    }
    let mut whole = relay.whole(status >= 400, &body, &active.shared.redactor);
    drop(body);
    let is_cut = whole.outcome.is_cut && status < 400;
    if let Some(why) = whole.outcome.refused.take().or(is_cut.then(|| relay::CUT.to_owned())) {
        // The client hears of none.
        whole.outcome.tool_calls.clear();
        whole.outcome.error = Some(why.clone());
        active.charge(status, &mut whole.outcome);
        let written = active.end(502, whole.outcome).await;
        let _ = result.send(Err(written.map_or_else(unrecorded, |()| (502, why))));
        return;
    }
    active.charge(status, &mut whole.outcome);
    if let Err(why) = active.end(status, whole.outcome).await {
        let _ = result.send(Err(unrecorded(why)));
        return;
    }
    let _ = result.send(Ok(whole.form));
    if !whole.body.is_empty() {
        let _ = pieces.send(Ok(Bytes::from_owner(BudgetedBytes::new(whole.body, held)))).await;
    }
}

/// What a client has in place of an answer that is not on record.
fn unrecorded(why: Unrecorded) -> (u16, String) {
    (503, why.to_string())
}

/// An answer's body as it comes.
pub(super) struct RelayedBody(pub(super) mpsc::Receiver<Piece>);

impl http_body::Body for RelayedBody {
    type Data = Bytes;
    type Error = Broken;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Broken>>> {
        self.0.poll_recv(cx).map(|piece| piece.map(|piece| piece.map(Frame::data)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::ByteBudget;

    #[test]
    fn what_is_kept_of_a_stream_has_room_or_ends_it() {
        let share = ByteBudget::default();
        let budget = &share.answers;
        let mut streams: Vec<Reservation> = (0..4).map(|_| budget.reserve()).collect();
        for held in &mut streams {
            keep(held, MAX_KEPT).unwrap();
        }
        assert!(keep(&mut budget.reserve(), MAX_KEPT + 1).unwrap_err().contains("would have to be kept"));
        // Together they have nearly all that there is.
        let mut next = budget.reserve();
        assert!(keep(&mut next, MAX_KEPT).unwrap_err().contains("this agent's answers"));
        assert!(on_its_way(vec![b'x'; MAX_KEPT], budget).unwrap_err().contains("this agent's answers"));
        // Who keeps little needs none, nor does a short piece.
        while budget.reserve().grow(1).is_ok() {
            streams.push(budget.reserve());
            streams.last_mut().unwrap().grow(1 << 10).unwrap();
        }
        keep(&mut next, FREE).unwrap();
        on_its_way(vec![b'x'; FREE_PIECE], budget).unwrap();
        assert!(
            keep(&mut next, FREE + 1).is_err() && on_its_way(vec![b'x'; FREE_PIECE + 1], budget).is_err()
        );
        // It is given back as less is kept, and when a piece is the client's.
        keep(&mut streams[0], FREE).unwrap();
        let piece = on_its_way(vec![b'x'; MAX_KEPT - FREE], budget).unwrap();
        assert!(keep(&mut next, MAX_KEPT).is_err());
        drop(piece);
        keep(&mut next, MAX_KEPT).unwrap();
    }
}
