//! One call: checked, rewritten, sent on, and its answer relayed.

use super::{
    CALLER, State,
    follow::Part,
    gate::Gate,
    record::{self, Call},
    relay::{self, Outcome, Relay},
    request::{self, Route},
    room::{Held, Kept},
};
use crate::{
    llm::{http::Shared, provider::cut_off, report, rpc::RpcError},
    serving::Standing,
};
use axum::{
    body::{Body, Bytes},
    extract::Request,
    http::{HeaderMap, HeaderName, HeaderValue, Response, StatusCode, header::CONTENT_TYPE},
};
use http_body::{Body as _, Frame};
use jiff::Timestamp;
use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::{Duration, Instant},
};
use tokio::sync::{mpsc, oneshot};

/// Most bytes of a request: the providers' own limit.
const MAX_REQUEST: usize = 32 << 20;
/// How long a request's body may take.
const BODY: Duration = Duration::from_secs(60);
/// How much of a request that is refused is read, and for how long: a client that still writes would see its connection
/// break, and not the refusal.
const HEARD_OUT: usize = 1 << 20;
const PATIENCE: Duration = Duration::from_secs(20);
/// When a client whose request or answer had no room shall try again, seconds.
const AFTER: u64 = 2;
/// How long the end of a stream may take behind its final event.
const END: Duration = Duration::from_secs(1);
/// Most bytes of an answer.
const MAX_ANSWER: usize = 64 << 20;
/// Pieces of an answer that wait for a client; the provider waits when there are more.
const WAITING: usize = 16;

/// Answers a request.
pub(super) async fn answer(state: &Arc<State>, gate: Option<&Gate>, request: Request) -> Response<Body> {
    let shared = state.shared.borrow().clone();
    let kind = shared.provider.kind();
    if let Some(gate) = gate
        && let Err((status, why)) = gate.check(request.headers())
    {
        state.follow.as_ref().inspect(|follow| follow.refused(why));
        return refuse_unread(&shared, status, why, request).await;
    }
    let standing = request.extensions().get::<Arc<Standing>>();
    if !standing.is_some_and(|standing| standing.identify(CALLER)) {
        let why = "too many connections to this endpoint at once; close some and try again";
        return refuse_unread(&shared, 503, why, request).await;
    }
    let route = match request::route(kind, request.method(), request.uri().path()) {
        Ok(route) => route,
        Err((status, why)) => return refuse_unread(&shared, status, &why, request).await,
    };
    if route == Route::Models {
        let models = request::models(&shared.config.llm).to_string();
        return respond(StatusCode::OK, &HeaderMap::new(), relay::JSON, Body::from(models));
    }
    let path = request.uri().path().to_owned();
    let (mut coming, mut held) = (request.into_body(), state.room.requests.hold());
    let body = match tokio::time::timeout(BODY, read(&mut coming, &mut held)).await {
        Ok(Ok(body)) => body,
        Ok(Err((503, why))) => {
            drop(held);
            failed(state);
            hear_out(coming, MAX_REQUEST).await;
            return refuse_for(&shared, 503, &why, AFTER);
        }
        Ok(Err((status, why))) => return refuse(&shared, status, &why),
        Err(_) => return refuse(&shared, 408, &format!("the request's body did not come within {BODY:?}")),
    };
    let rewritten = match request::rewrite(&shared.config.llm, route, &body) {
        Ok(rewritten) => rewritten,
        Err(why) => return refuse(&shared, 400, &why),
    };
    drop(body);
    if let Err(error) = begin(state, &shared) {
        failed(state);
        let after = error.data.as_ref().and_then(|data| data["retry_after"].as_u64()).unwrap_or(1);
        return refuse_for(&shared, 429, &error.message, after);
    }
    let part = match &state.follow {
        Some(follow) if route == Route::Complete => {
            Some(follow.begin(kind, &rewritten.messages, &shared.redactor))
        }
        _ => None,
    };
    let call = Call {
        path,
        streams: rewritten.streams,
        messages: rewritten.messages.len(),
        last: rewritten.messages.into_iter().next_back().map(|last| shared.redactor.json(last)),
    };
    let started = Instant::now();
    let (state, began) = (Arc::clone(state), Vec::new());
    let sent = if route == Route::Complete { rewritten.body.len() } else { 0 };
    let counted = Counted { state, shared: shared.clone(), call, started, sent, part, began, held };
    let suffix = (route == Route::CountTokens).then_some("/count_tokens");
    // A client that hangs up ends what it waits for here, and nothing else: the call is made, and costs.
    let relay = Relay::new(kind, rewritten.hides_usage, rewritten.has_many);
    let passing = pass_on(counted, suffix, rewritten.body, relay);
    let passed = tokio::spawn(passing).await;
    passed.unwrap_or_else(|_| refuse(&shared, 500, "the call failed; see the host's log"))
}

/// Makes the call; its answer follows.
async fn pass_on(mut counted: Counted, suffix: Option<&str>, body: Vec<u8>, relay: Relay) -> Response<Body> {
    let shared = counted.shared.clone();
    let upstream = shared.provider.forward(suffix, body.into()).await;
    // All that is left of it is what goes into the record.
    counted.held.shrink(counted.call.last.as_ref().map_or(0, |last| last.get().len()));
    let upstream = match upstream {
        Ok(upstream) => upstream,
        Err(error) => {
            let outcome = Outcome { error: Some(error.message.clone()), ..Outcome::default() };
            counted.end(502, outcome).await;
            return refuse(&shared, 502, &error.message);
        }
    };
    let status = StatusCode::from_u16(upstream.status().as_u16()).unwrap_or(StatusCode::BAD_GATEWAY);
    let mut headers = HeaderMap::new();
    for (name, value) in upstream.headers().iter().filter(|(name, _)| passes(name)) {
        headers.append(name.clone(), value.clone());
    }
    let streams = status.is_success() && is_stream(upstream.headers());
    let (pieces, waiting) = mpsc::channel(WAITING);
    let (told, tells) = oneshot::channel();
    if streams {
        tokio::spawn(pump(upstream, relay, pieces, status.as_u16(), counted));
        return respond(status, &headers, relay::STREAM, Body::new(Relayed(waiting)));
    }
    tokio::spawn(pump_whole(upstream, relay, (pieces, told), status.as_u16(), counted));
    // Nothing of an answer that does not stream goes out before it is whole: it can still be another.
    match tells.await {
        Ok(Ok(form)) => respond(status, &headers, form, Body::new(Relayed(waiting))),
        Ok(Err((503, why))) => refuse_for(&shared, 503, &why, AFTER),
        Ok(Err((status, why))) => refuse(&shared, status, &why),
        Err(_) => refuse(&shared, 500, "the call failed; see the host's log"),
    }
}

/// Whether an answer says that it is a stream of events.
fn is_stream(headers: &HeaderMap) -> bool {
    let said = headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let form = said.split(';').next().unwrap_or_default();
    form.trim().eq_ignore_ascii_case("text/event-stream")
}

/// Counts a turn, and looks whether it may be.
fn begin(state: &State, shared: &Shared) -> Result<(), RpcError> {
    let (config, now) = (&shared.config, Timestamp::now());
    let mut meter = state.meter.lock();
    meter.check(&config.limits, &config.llm.price, now)?;
    meter.turn(&config.limits, now)
}

/// One that was refused before it was passed on.
fn failed(state: &State) {
    state.status.send_modify(|status| {
        status.turns += 1;
        status.failed += 1;
    });
}

/// A request's body, of at most [`MAX_REQUEST`] bytes, for which there is room.
async fn read(body: &mut Body, held: &mut Held) -> Result<Vec<u8>, (u16, String)> {
    let mut bytes = Vec::new();
    while let Some(data) = next(body).await? {
        if bytes.len() + data.len() > MAX_REQUEST {
            return Err((413, format!("the request has more than {MAX_REQUEST} bytes")));
        }
        held.grow(data.len()).map_err(|full| (503, full.to_string()))?;
        bytes.extend_from_slice(&data);
    }
    Ok(bytes)
}

/// The next bytes of a body; `None` at its end.
async fn next(body: &mut Body) -> Result<Option<Bytes>, (u16, String)> {
    while let Some(frame) = std::future::poll_fn(|cx| Pin::new(&mut *body).poll_frame(cx)).await {
        let frame = frame.map_err(|_| (400, "the request's body cannot be read".to_owned()))?;
        if let Ok(data) = frame.into_data() {
            return Ok(Some(data));
        }
    }
    Ok(None)
}

/// Takes what a client still writes, and keeps none of it.
async fn hear_out(mut body: Body, most: usize) {
    let heard = async {
        let mut bytes = 0;
        while bytes <= most
            && let Ok(Some(data)) = next(&mut body).await
        {
            bytes += data.len();
        }
    };
    let _ = tokio::time::timeout(PATIENCE, heard).await;
}

/// What of a provider's headers a client may see: nothing that says whose key it was, or how the answer is to be read.
fn passes(name: &HeaderName) -> bool {
    let name = name.as_str();
    matches!(name, "retry-after" | "retry-after-ms" | "request-id" | "x-request-id" | "x-should-retry")
        || name.starts_with("anthropic-ratelimit-")
        || name.starts_with("x-ratelimit-")
}

fn respond(status: StatusCode, headers: &HeaderMap, form: &'static str, body: Body) -> Response<Body> {
    let mut response = Response::new(body);
    *response.status_mut() = status;
    response.headers_mut().extend(headers.clone());
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(form));
    response
}

/// Refuses a request whose body was not read.
pub(super) async fn refuse_unread(
    shared: &Shared,
    status: u16,
    why: &str,
    request: Request,
) -> Response<Body> {
    hear_out(request.into_body(), HEARD_OUT).await;
    refuse(shared, status, why)
}

fn refuse(shared: &Shared, status: u16, why: &str) -> Response<Body> {
    let why = shared.redactor.text(why);
    let error = request::error(shared.provider.kind(), status, &why).to_string();
    let status = StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    respond(status, &HeaderMap::new(), relay::JSON, Body::from(error))
}

/// Refuses what may be tried again after so many seconds.
fn refuse_for(shared: &Shared, status: u16, why: &str, after: u64) -> Response<Body> {
    let mut response = refuse(shared, status, why);
    response.headers_mut().insert("retry-after", after.into());
    response
}

/// A call that is under way: counted and recorded when it ends.
struct Counted {
    state: Arc<State>,
    shared: Shared,
    call: Call,
    started: Instant,
    /// Bytes of the request; 0: it costs nothing.
    sent: usize,
    /// What it is part of for the trace.
    part: Option<Part>,
    /// When the client saw each tool call begin, in their order: ns since boot.
    began: Vec<u64>,
    held: Held,
}

impl Counted {
    /// Counts what an answer cost that is no whole one.
    fn charge(&self, status: u16, outcome: &mut Outcome) {
        if status < 400 && self.sent > 0 && outcome.error.is_some() {
            outcome.usage = Some(cut_off(outcome.usage, self.sent, outcome.said));
        }
    }

    async fn end(mut self, status: u16, mut outcome: Outcome) {
        outcome.error = outcome.error.map(|error| self.shared.redactor.text(&error).into_owned());
        let redactor = &self.shared.redactor;
        outcome.content = outcome.content.into_iter().map(|block| redactor.block(block)).collect();
        for call in &mut outcome.tool_calls {
            call.input = redactor.json(std::mem::take(&mut call.input));
            call.name = redactor.text(&call.name).into_owned();
        }
        let usage = outcome.usage.unwrap_or_default();
        self.state.meter.lock().used(&usage, Timestamp::now());
        self.state.status.send_modify(|counts| {
            counts.turns += 1;
            counts.http_calls += 1;
            counts.failed += u64::from(status >= 400 || outcome.error.is_some());
            counts.input_tokens = counts.input_tokens.saturating_add(usage.input_tokens);
            counts.output_tokens = counts.output_tokens.saturating_add(usage.output_tokens);
            counts.cache_read_tokens = counts.cache_read_tokens.saturating_add(usage.cache_read_tokens);
            counts.cache_write_tokens = counts.cache_write_tokens.saturating_add(usage.cache_write_tokens);
        });
        if let (Some(follow), Some(part)) = (&self.state.follow, self.part.take()) {
            let failed = (status >= 400).then(|| format!("the provider answered with status {status}"));
            let error = outcome.error.as_deref().or(failed.as_deref());
            follow.answered(part, &outcome.tool_calls, &self.began, error, redactor).await;
        }
        record::write(&self.state.log, &self.call, status, self.started.elapsed(), &outcome).await;
    }
}

type Piece = Result<Bytes, Broken>;

/// A whole answer's content type; or with which status and why the client is not to have it.
type Told = Result<&'static str, (u16, String)>;

/// The provider's connection broke: the client's breaks, too. A short answer that looks whole would be a lie.
#[derive(Debug, thiserror::Error)]
#[error("the provider's answer broke off")]
struct Broken;

/// The provider's next bytes; `None` at the end.
async fn chunk(
    upstream: &mut reqwest::Response,
    read: &mut usize,
    counted: &Counted,
) -> Result<Option<Bytes>, String> {
    let patience = counted.shared.config.llm.timeout;
    let chunk = match tokio::time::timeout(patience, upstream.chunk()).await {
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
async fn pump(
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
                if pieces.send(Ok(out.into())).await.is_err() {
                    break Some("the client hung up".to_owned());
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
    counted.end(status, outcome).await;
    if is_broken {
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
async fn pump_whole(
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
        counted.end(answered, outcome).await;
        let _ = told.send(Err((answered, why)));
        return;
    }
    let mut whole = relay.whole(status >= 400, &body, &counted.shared.redactor);
    drop(body);
    if let Some(why) = whole.outcome.refused.take() {
        // The client hears of none.
        whole.outcome.tool_calls.clear();
        whole.outcome.error = Some(why.clone());
        counted.charge(status, &mut whole.outcome);
        counted.end(502, whole.outcome).await;
        let _ = told.send(Err((502, why)));
        return;
    }
    counted.charge(status, &mut whole.outcome);
    counted.end(status, whole.outcome).await;
    let _ = told.send(Ok(whole.form));
    if !whole.body.is_empty() {
        let _ = pieces.send(Ok(Bytes::from_owner(Kept::new(whole.body, held)))).await;
    }
}

/// An answer's body as it comes.
struct Relayed(mpsc::Receiver<Piece>);

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
