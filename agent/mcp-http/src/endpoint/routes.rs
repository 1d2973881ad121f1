//! What is answered to which request.

use super::{
    CALLER,
    body::{Events, Item, OnDrop},
    gate::Gate,
    request::{self, LAST_EVENT, Posted, Refusal, SESSION},
    session::Refused,
    sessions::Sessions,
};
use crate::{
    message::{Message, answered, one_line},
    room::{Full, Room},
};
use axum::{
    Router,
    body::Body,
    extract::Request,
    http::{
        HeaderMap, HeaderValue, Method, Response, StatusCode,
        header::{ALLOW, CACHE_CONTROL, CONTENT_TYPE},
    },
};
use http_body::Body as _;
use ringfence_http::Standing;
use ringfence_session::line::Id;
use std::{future::poll_fn, pin::Pin, sync::Arc, time::Duration};
use tokio::{sync::mpsc, time};

/// How long the body of a request may take.
const BODY: Duration = Duration::from_secs(120);
/// How long the answer to a request without a session is waited for before a stream begins: its status says what it is.
const FIRST: Duration = Duration::from_secs(10);

/// What is at every path: the gate decides which there are.
pub(super) fn router(gate: Arc<Gate>, sessions: Arc<Sessions>) -> Router {
    Router::new().fallback(move |request: Request| {
        let (gate, sessions) = (Arc::clone(&gate), Arc::clone(&sessions));
        async move { answer(&gate, &sessions, request).await }
    })
}

async fn answer(gate: &Gate, sessions: &Arc<Sessions>, request: Request) -> Response<Body> {
    if let Err((status, why)) = gate.check(request.uri().path(), request.headers()) {
        return refused(&Refusal::new(status, why));
    }
    let is_known =
        request.extensions().get::<Arc<Standing>>().is_none_or(|standing| standing.identify(CALLER));
    if !is_known {
        return refused(&Refusal::new(StatusCode::SERVICE_UNAVAILABLE, "there are too many connections"));
    }
    let done = match request.method().clone() {
        Method::POST => post(sessions, request).await,
        Method::GET => get(sessions, request.headers()),
        Method::DELETE => delete(sessions, request.headers()),
        _ => Err(Refusal::new(StatusCode::METHOD_NOT_ALLOWED, "this endpoint takes POST, GET and DELETE")),
    };
    done.unwrap_or_else(|refusal| refused(&refusal))
}

async fn post(sessions: &Arc<Sessions>, request: Request) -> Result<Response<Body>, Refusal> {
    let (parts, body) = request.into_parts();
    request::check_headers(&parts.headers)?;
    let mut room = sessions.rooms.one();
    let body = time::timeout(BODY, whole(body, sessions, &mut room)).await;
    let late = |_| Err(Refusal::new(StatusCode::REQUEST_TIMEOUT, "the body took too long"));
    let line = one_line(body.unwrap_or_else(late)?)
        .ok_or_else(|| Refusal::new(StatusCode::BAD_REQUEST, "the body is not a JSON-RPC message"))?;
    let messages = Message::all(&line);
    let posted = request::classify(&parts.headers, &messages, &sessions.marks())?;
    let asks: Vec<(Id, Option<Id>)> = messages
        .iter()
        .filter_map(|message| Some((message.request_id()?, message.progress_token())))
        .collect();
    let cancels: Vec<Id> = messages.iter().filter_map(Message::cancels).collect();
    let ids: Vec<Id> = asks.iter().map(|(id, _)| id.clone()).collect();
    let (session, primes) = match &posted {
        Posted::Begins => (sessions.begin()?, false),
        Posted::Within(id, primes) => (sessions.find(id)?, *primes),
        Posted::Stateless(client) => (sessions.of_client(client, &ids)?, false),
    };
    drop(messages);
    if asks.is_empty() {
        session.notify(line, &cancels).await.map_err(over)?;
        return Ok(empty(StatusCode::ACCEPTED));
    }
    let (items, end) = session.request(line, asks, primes).await.map_err(over)?;
    session.call_off(&cancels);
    if session.is_stateless {
        return Ok(first(items, end, &ids).await);
    }
    let mut response = events(Events::new(None, items, end));
    if posted == Posted::Begins
        && let Ok(id) = HeaderValue::from_str(&session.id)
    {
        response.headers_mut().insert(SESSION, id);
    }
    Ok(response)
}

/// All of a body, which `room` holds.
async fn whole(mut body: Body, sessions: &Sessions, room: &mut Room) -> Result<Vec<u8>, Refusal> {
    let limit = sessions.endpoint.max_line;
    let mut all = Vec::new();
    loop {
        let frame = poll_fn(|context| Pin::new(&mut body).poll_frame(context)).await;
        let Some(frame) = frame else { return Ok(all) };
        let frame = frame.map_err(|_| Refusal::new(StatusCode::BAD_REQUEST, "the body broke off"))?;
        let Ok(data) = frame.into_data() else { continue };
        if all.len() + data.len() > limit {
            let why = format!("the body has more than {limit} bytes");
            return Err(Refusal::new(StatusCode::PAYLOAD_TOO_LARGE, why));
        }
        all.extend_from_slice(&data);
        sessions.find_room(room, all.capacity()).map_err(full)?;
    }
}

/// Without sessions, what comes first says what the answer is: JSON, or a stream.
async fn first(mut items: mpsc::Receiver<Item>, end: OnDrop, ids: &[Id]) -> Response<Body> {
    match time::timeout(FIRST, items.recv()).await {
        Ok(Some(item)) if answered(&item.line).iter().any(|id| ids.contains(id)) => {
            let mut response = Response::new(Body::from(item.line.clone()));
            *response.status_mut() = request::status_of(&item.line);
            response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
            // It is answered: nothing is called off.
            drop(end);
            response
        }
        Ok(item) => events(Events::new(item, items, end)),
        Err(_) => events(Events::new(None, items, end)),
    }
}

fn get(sessions: &Arc<Sessions>, headers: &HeaderMap) -> Result<Response<Body>, Refusal> {
    let Some(id) = request::only(headers, &SESSION)? else {
        let why = "without a session there is no stream to listen to";
        return Err(Refusal::new(StatusCode::METHOD_NOT_ALLOWED, why));
    };
    if !request::accepts(headers, "text/event-stream") {
        return Err(Refusal::new(StatusCode::NOT_ACCEPTABLE, "the client must accept text/event-stream"));
    }
    let session = sessions.find(id)?;
    let last = request::only(headers, &LAST_EVENT)?;
    let stream = session.listen(last, |room, bytes| sessions.find_room(room, bytes)).map_err(full)?;
    let none = || Refusal::new(StatusCode::BAD_REQUEST, "there is no such event to resume from");
    Ok(events(stream.ok_or_else(none)?))
}

fn delete(sessions: &Arc<Sessions>, headers: &HeaderMap) -> Result<Response<Body>, Refusal> {
    let Some(id) = request::only(headers, &SESSION)? else {
        return Err(Refusal::new(StatusCode::METHOD_NOT_ALLOWED, "there is no session to end"));
    };
    sessions.end(&*sessions.find(id)?);
    Ok(empty(StatusCode::OK))
}

fn full(full: Full) -> Refusal {
    Refusal::new(StatusCode::SERVICE_UNAVAILABLE, full.to_string())
}

fn over(refused: Refused) -> Refusal {
    let status = match refused {
        Refused::Over => StatusCode::NOT_FOUND,
        Refused::Again => StatusCode::BAD_REQUEST,
        Refused::TooMany => StatusCode::TOO_MANY_REQUESTS,
    };
    Refusal::new(status, refused.to_string())
}

fn events(events: Events) -> Response<Body> {
    let mut response = Response::new(Body::new(events));
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache, no-transform"));
    headers.insert("x-accel-buffering", HeaderValue::from_static("no"));
    response
}

fn empty(status: StatusCode) -> Response<Body> {
    let mut response = Response::new(Body::empty());
    *response.status_mut() = status;
    response
}

fn refused(refusal: &Refusal) -> Response<Body> {
    let mut response = Response::new(Body::from(refusal.body()));
    *response.status_mut() = refusal.status;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    if refusal.status == StatusCode::METHOD_NOT_ALLOWED {
        headers.insert(ALLOW, HeaderValue::from_static("POST, GET, DELETE"));
    }
    response
}
