//! What a remote MCP server sends, and what a client of the loopback endpoint does.

use axum::http::{HeaderMap, HeaderName, HeaderValue};
use ringfence_mcp_http::{
    endpoint::{replay, request},
    headers::Marks,
    message::{Message, answered, one_line},
    sse::Events,
};

/// Most bytes of an event here.
const LIMIT: usize = 4096;

/// A stream of events, whole and in pieces; the messages in it, as lines; the same bytes as a request's headers and body.
pub fn remote(data: &[u8]) {
    let events = |pieces: &[&[u8]]| {
        let (mut stream, mut all) = (Events::new(LIMIT), Vec::new());
        let ends = pieces.iter().try_for_each(|piece| stream.feed(piece, |event| all.push(event)));
        assert!(all.iter().all(|event| event.data.as_ref().is_none_or(|data| data.len() <= LIMIT)));
        let id = stream.last_id().map(str::to_owned);
        assert!(
            id.as_deref().is_none_or(|id| HeaderValue::from_str(id).is_ok()),
            "{id:?} goes into a header"
        );
        ends.is_ok().then_some((all, id, stream.retry()))
    };
    let whole = events(&[data]);
    let (first, second) = data.split_at(data.len() / 3);
    assert_eq!(whole, events(&[first, second]), "cuts change nothing");
    let mut marks = Marks::default();
    for message in whole.into_iter().flat_map(|(all, ..)| all).filter_map(|event| event.message()) {
        carried(&message, &mut marks);
    }
    carried(data, &mut marks);
    posted(data, &marks);
}

/// What becomes of a message on its way.
fn carried(message: &[u8], marks: &mut Marks) {
    let _ = answered(message);
    for one in Message::all(message) {
        one.result().into_iter().for_each(|result| marks.learn(result));
        let _ = (one.request_id(), one.cancels(), one.agreed_version(), one.progress(), one.subscription());
        for (name, value) in marks.headers(&one).into_iter().flatten() {
            assert!(HeaderValue::from_str(&value).is_ok(), "{name}: {value:?}");
            assert!(HeaderName::from_bytes(name.as_bytes()).is_ok(), "{name:?}");
        }
    }
    if let Some(line) = one_line(message.to_vec()) {
        let breaks = line.iter().filter(|byte| matches!(byte, b'\n' | b'\r')).count();
        assert!(breaks == 1 && line.ends_with(b"\n") && line.len() == message.len() + 1);
        // As an event it says the same.
        let (mut stream, mut all) = (Events::new(usize::MAX / 2), Vec::new());
        stream.feed(&replay::event("1-1", &line), |event| all.push(event)).expect("an event");
        assert_eq!(all.len(), 1);
        assert_eq!(all[0].data.as_deref(), line.strip_suffix(b"\n"));
    }
}

/// The bytes up to an empty line as headers, the rest as a body.
fn posted(data: &[u8], marks: &Marks) {
    let at = data.windows(2).position(|two| two == b"\n\n").unwrap_or(0);
    let (head, body) = data.split_at(at);
    let mut headers = HeaderMap::new();
    for line in head.split(|byte| *byte == b'\n').take(32) {
        let mut parts = line.splitn(2, |byte| *byte == b':');
        let (name, value) = (parts.next().unwrap_or_default(), parts.next().unwrap_or_default());
        if let (Ok(name), Ok(value)) = (HeaderName::from_bytes(name), HeaderValue::from_bytes(value)) {
            headers.append(name, value);
        }
    }
    let _ = request::check_headers(&headers);
    if let Err(refusal) = request::classify(&headers, &Message::all(body), marks) {
        assert!(refusal.status.is_client_error());
        let body: serde_json::Value = serde_json::from_str(&refusal.body()).expect("an answer");
        assert!(body["error"]["code"].is_i64());
    }
    let _ = request::status_of(body);
}
