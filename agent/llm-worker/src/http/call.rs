//! One call: checked, rewritten, sent on, and its answer relayed.

use super::{
    CALLER, State,
    active_call::ActiveCall,
    budget::Reservation,
    gate::Gate,
    intents::ClientMessage,
    record::Call,
    relay::{self, Outcome, Relay},
    request::{
        self, Route,
        head::{self, PassedHead},
    },
    session,
    transfer::{RelayedBody, STOPPED, WAITING, relay_stream, relay_whole},
};
use crate::{
    http::Shared,
    provider::{Usage, Wire, endpoint, least},
    redact::Redactor,
    status::count_turn,
};
use axum::{
    body::{Body, Bytes},
    extract::Request,
    http::{HeaderMap, HeaderName, HeaderValue, Response, StatusCode, header::CONTENT_TYPE},
};
use http_body::Body as _;
use jiff::Timestamp;
use ringfence_http::Standing;
use serde_json::value::RawValue;
use std::{
    borrow::Cow,
    collections::BTreeSet,
    pin::Pin,
    sync::Arc,
    time::{Duration, Instant},
};
use tokio::sync::{mpsc, oneshot};

/// Most bytes of a request: the providers' own limit.
pub(super) const MAX_REQUEST: usize = 32 << 20;
/// How long a request's body may take.
const BODY: Duration = Duration::from_secs(60);
/// How much of a request that is refused is read, and for how long: a client that still writes would see its connection
/// break, and not the refusal.
const HEARD_OUT: usize = 1 << 20;
const PATIENCE: Duration = Duration::from_secs(20);
/// When a client whose request or answer had no room shall try again, seconds.
const AFTER: u64 = 2;
/// Answers a request.
pub(super) async fn answer(state: &Arc<State>, gate: Option<&Gate>, request: Request) -> Response<Body> {
    let shared = state.shared.borrow().clone();
    let kind = shared.provider.kind();
    if let Some(gate) = gate
        && let Err((status, why)) = gate.check(request.headers())
    {
        state.intents().inspect(|intents| intents.refused(why));
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
    let (llm, wire) = (&shared.config.llm, Wire::on(kind, route));
    let json = |body: Body| respond(StatusCode::OK, &HeaderMap::new(), relay::JSON, body);
    match route {
        Route::Complete | Route::Respond | Route::Generate | Route::StreamGenerate | Route::CountTokens => {}
        Route::Alive => return json(Body::empty()),
        Route::Models => {
            let models = endpoint(wire).models(&llm.offered().collect::<Vec<_>>());
            return json(Body::from(models.to_string()));
        }
        Route::Model => match request::model(llm, request.uri().path()) {
            Ok(model) => return json(Body::from(model.to_string())),
            Err((status, why)) => return refuse_unread(&shared, status, &why, request).await,
        },
    }
    let query = request.uri().query();
    let head = head::passed_on(llm, request.headers(), query).and_then(|head| {
        let query = endpoint(wire).query(route, query.unwrap_or_default())?;
        Ok(PassedHead { query: query.or(head.query), ..head })
    });
    let head = match head {
        Ok(head) => head,
        Err(why) => return refuse_unread(&shared, 400, &why, request).await,
    };
    let client_headers = request.headers().clone();
    // As it is on record: of what is sent on nothing goes by it.
    let path = request.uri().path().trim_end_matches('/').to_owned();
    let (mut coming, mut held) = (request.into_body(), state.budget.requests.reserve());
    let body = match tokio::time::timeout(BODY, read(&mut coming, &mut held)).await {
        Ok(Ok(body)) => body,
        Ok(Err((503, why))) => {
            drop(held);
            failed(state, route);
            hear_out(coming, MAX_REQUEST).await;
            return refuse_for(&shared, 503, &why, AFTER);
        }
        Ok(Err((status, why))) => return refuse(&shared, status, &why),
        Err(_) => return refuse(&shared, 408, &format!("the request's body did not come within {BODY:?}")),
    };
    let named = request::model_in_path(kind, &path);
    let rewritten = match request::rewrite_for(&shared.config.llm, (route, named.as_deref()), &body) {
        Ok(rewritten) => rewritten,
        Err(why) => return refuse(&shared, 400, &why),
    };
    drop(body);
    let session = session::named(kind, &client_headers, rewritten.metadata.as_deref(), &shared.redactor);
    drop(client_headers);
    let under_way = match state.budget.calls.begin() {
        Ok(under_way) => under_way,
        Err(why) => {
            failed(state, route);
            return refuse_for(&shared, 503, &why.to_string(), AFTER);
        }
    };
    let sent = if route.is_turn() { rewritten.body.len() } else { 0 };
    let config = &shared.config;
    let (limits, now) = ((&config.limits, &config.llm.price), Timestamp::now());
    let begun = match route {
        // It costs nothing, and is no turn.
        Route::CountTokens => {
            let mut meter = state.meter.lock();
            meter.check(limits.0, limits.1, now).and_then(|()| meter.count(limits.0, now)).map(|()| None)
        }
        _ => state.meter.begin(limits, least(sent), now).map(Some),
    };
    let reserved = match begun {
        Ok(reserved) => reserved,
        Err(error) => {
            failed(state, route);
            let after = error.data.as_ref().and_then(|data| data["retry_after"].as_u64()).unwrap_or(1);
            return refuse_for(&shared, 429, &error.message, after);
        }
    };
    let part = match state.intents() {
        Some(intents) if route.is_turn() => {
            Some(intents.begin(wire, (&rewritten.messages, session.as_ref()), &shared.redactor))
        }
        _ => None,
    };
    let conversation = state
        .intents()
        .map(|intents| intents.denials.conversation(wire, &rewritten.messages, session.as_ref()))
        .unwrap_or_default();
    let call = Call {
        path,
        streams: rewritten.streams,
        messages: rewritten.messages.len(),
        session,
        // One that costs nothing takes little of the log.
        last: newest(rewritten.messages).filter(|_| route.is_turn()).map(|last| shared.redactor.json(last)),
    };
    let started = Instant::now();
    let (state, began, reported) = (Arc::clone(state), Vec::new(), BTreeSet::new());
    let active = ActiveCall {
        state,
        shared: shared.clone(),
        call,
        started,
        sent,
        part,
        conversation,
        began,
        reported,
        held,
        reserved,
        _under_way: under_way,
    };
    // A client that hangs up ends what it waits for here, and nothing else: the call is made, and costs.
    let relay = Relay::new(wire, rewritten.hides_usage, rewritten.has_many);
    let passing = pass_on(active, (rewritten.path, head), (wire, rewritten.body), relay);
    let passed = tokio::spawn(passing).await;
    passed.unwrap_or_else(|_| refuse(&shared, 500, "the call failed; see the host's log"))
}

/// Makes the call; its answer follows.
async fn pass_on(
    mut active: ActiveCall,
    (path, head): (Cow<'static, str>, PassedHead),
    (wire, body): (Wire, Vec<u8>),
    relay: Relay,
) -> Response<Body> {
    let cut = active.state.cut.clone();
    let forwarding = async {
        let body = active.explain(wire, body).await;
        forward(&mut active, &path, head, body.into()).await
    };
    let forwarded = tokio::select! {
        upstream = forwarding => Some(upstream),
        () = cut.cancelled() => None,
    };
    let shared = active.shared.clone();
    let upstream = match forwarded {
        Some(upstream) => upstream,
        // What was sent is the provider's to charge.
        None => {
            let mut outcome = Outcome { error: Some(STOPPED.to_owned()), ..Outcome::default() };
            active.charge(0, &mut outcome);
            let _ = active.end(503, outcome).await;
            return refuse(&shared, 503, STOPPED);
        }
    };
    // All that is left of it is what goes into the record.
    active.held.shrink(active.call.last.as_ref().map_or(0, |last| last.get().len()));
    let upstream = match upstream {
        Ok(upstream) => upstream,
        Err(error) => {
            let outcome = Outcome { error: Some(error.clone()), ..Outcome::default() };
            // Nothing came that could be kept from the client.
            let _ = active.end(502, outcome).await;
            return refuse(&shared, 502, &error);
        }
    };
    let status = StatusCode::from_u16(upstream.status().as_u16()).unwrap_or(StatusCode::BAD_GATEWAY);
    let headers = passing(upstream.headers(), &shared.redactor);
    let streams = status.is_success() && is_stream(upstream.headers());
    let (pieces, waiting) = mpsc::channel(WAITING);
    let (reported, result) = oneshot::channel();
    if streams {
        tokio::spawn(relay_stream(upstream, relay, pieces, status.as_u16(), active));
        return respond(status, &headers, relay::STREAM, Body::new(RelayedBody(waiting)));
    }
    tokio::spawn(relay_whole(upstream, relay, (pieces, reported), status.as_u16(), active));
    // Nothing of an answer that does not stream goes out before it is whole: it can still be another.
    match result.await {
        Ok(Ok(form)) => respond(status, &headers, form, Body::new(RelayedBody(waiting))),
        Ok(Err((503, why))) => refuse_for(&shared, 503, &why, AFTER),
        Ok(Err((status, why))) => refuse(&shared, status, &why),
        Err(_) => refuse(&shared, 500, "the call failed; see the host's log"),
    }
}

/// Sends a request on; once more with another credential, where the provider refuses the one of before and there is another.
async fn forward(
    active: &mut ActiveCall,
    path: &str,
    head: PassedHead,
    body: Bytes,
) -> Result<reqwest::Response, String> {
    let provider = Arc::clone(&active.shared.provider);
    let answered = provider.forward(path, head.clone(), body.clone()).await;
    let answered = answered.map_err(|error| error.message)?;
    if answered.status().as_u16() != StatusCode::UNAUTHORIZED.as_u16() {
        return Ok(answered);
    }
    let Some(fresh) = active.state.renewal.after(&active.shared, &active.state.shared).await else {
        return Ok(answered);
    };
    active.shared = fresh;
    let provider = Arc::clone(&active.shared.provider);
    provider.forward(path, head, body).await.map_err(|error| error.message)
}

/// The newest message that is somebody's: behind a user's words some clients put what they themselves tell the model.
fn newest(mut messages: Vec<Box<RawValue>>) -> Option<Box<RawValue>> {
    let is_client_s = |raw: &RawValue| {
        let message = serde_json::from_str::<ClientMessage>(raw.get());
        message.is_ok_and(|message| matches!(message.role.as_str(), "system" | "developer"))
    };
    let at = messages.iter().rposition(|raw| !is_client_s(raw)).or(messages.len().checked_sub(1))?;
    Some(messages.swap_remove(at))
}

/// Whether an answer says that it is a stream of events.
fn is_stream(headers: &HeaderMap) -> bool {
    let said = headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let form = said.split(';').next().unwrap_or_default();
    form.trim().eq_ignore_ascii_case("text/event-stream")
}

/// A call that was refused before it was passed on: a failed turn, if it is a turn.
fn failed(state: &State, route: Route) {
    if !route.is_turn() {
        return;
    }
    state.status.send_modify(|counts| count_turn(counts, true, Usage::default()));
}

/// A request's body, of at most [`MAX_REQUEST`] bytes, for which there is room.
async fn read(body: &mut Body, held: &mut Reservation) -> Result<Vec<u8>, (u16, String)> {
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
        || Wire::ALL
            .iter()
            .filter_map(|wire| endpoint(*wire).rate_limit_prefix())
            .any(|it| name.starts_with(it))
}

/// Those of a provider's headers that a client may see. One with a credential in it, or with what hides in a log or on a
/// terminal, is none.
fn passing(headers: &HeaderMap, redactor: &Redactor) -> HeaderMap {
    let is_clean = |text: &str| matches!(redactor.text(text), Cow::Borrowed(_));
    let is_fit = |name: &HeaderName, value: &HeaderValue| {
        let is_shown = |text: &str| text.bytes().all(|byte| byte == b' ' || byte.is_ascii_graphic());
        passes(name)
            && is_clean(name.as_str())
            && value.to_str().is_ok_and(|value| is_shown(value) && is_clean(value))
    };
    let fit = headers.iter().filter(|(name, value)| is_fit(name, value));
    fit.map(|(name, value)| (name.clone(), value.clone())).collect()
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

#[cfg(test)]
mod tests {
    use super::*;
    use ringfence_credentials::Secret;

    #[test]
    fn headers_that_pass_have_no_credential_and_nothing_that_hides() {
        let redactor = Redactor::new([&Secret::from("sk-secret-0123456789".to_owned())]);
        let passed = |name: &str, value: &[u8]| {
            let name = HeaderName::from_bytes(name.as_bytes()).unwrap();
            let headers = HeaderMap::from_iter([(name, HeaderValue::from_bytes(value).unwrap())]);
            let passing = passing(&headers, &redactor);
            passing == headers
        };
        for (name, value) in
            [("retry-after", "7"), ("x-request-id", "req_01 a"), ("x-ratelimit-reset-tokens", "6m0s")]
        {
            assert!(passed(name, value.as_bytes()), "{name}");
        }
        for (name, value) in [
            ("x-request-id", &b"sk-secret-0123456789"[..]),
            ("request-id", b"a c2stc2VjcmV0LTAxMjM0NTY3ODk= b"),
            ("x-ratelimit-sk-secret-0123456789", b"1"),
            ("x-ratelimit-limit", b"1\t2"),
            ("anthropic-ratelimit-tokens-reset", b"\xff"),
            ("set-cookie", b"1"),
        ] {
            assert!(!passed(name, value), "{name}: {value:?}");
        }
    }
}
