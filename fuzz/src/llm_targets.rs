//! What is tried on the LLM worker: what a runtime, a sender, a provider and the worker's own log may say.

pub use super::http_targets as http;
use ringfence_credentials::Secret;
use ringfence_llm_worker::{
    conversation::Conversation,
    frame::FrameReader,
    message::{Block, Message, Role},
    provider::{self, Answer, sse},
    redact::Redactor,
    rpc::{self, SendParams, TurnParams},
};
use ringfence_policy::agents::config::ProviderKind;
use ringfence_wire::frame::{HEADER, MAX_FRAME};
use serde_json::Value;
use std::{
    collections::VecDeque,
    fs,
    path::Path,
    task::{Context, Poll, Waker},
};

const KINDS: &[ProviderKind] = ProviderKind::ALL;
/// What redaction looks for.
const KEY: &str = "sk-ant/a+b=c\"d\\e%1234567890";

/// Frames of the socket and the requests in them: each is a whole part of what came, and a refusal is a frame itself.
pub fn frames(data: &[u8]) {
    let Ok(runtime) = tokio::runtime::Builder::new_current_thread().enable_time().build() else { return };
    let mut reader = FrameReader::new(data);
    let mut rest = data;
    while let Ok(body) = runtime.block_on(reader.next(None)) {
        assert!(!body.is_empty() && body.len() <= MAX_FRAME);
        assert_eq!(rest[HEADER..HEADER + body.len()], body[..]);
        rest = &rest[HEADER + body.len()..];
        match rpc::parse(&body) {
            Err((id, error)) => refusal(&rpc::error(id.as_ref(), &error), error.code),
            Ok(request) => {
                if let Err(error) = rpc::params::<SendParams>(&request) {
                    refusal(&rpc::error(request.id.as_ref(), &error), error.code);
                }
                let _ = rpc::params::<rpc::RegisterParams<'_>>(&request);
                let _ = rpc::params::<rpc::TagParams<'_>>(&request);
            }
        }
    }
}

fn refusal(frame: &[u8], code: i64) {
    let answer: Value = serde_json::from_slice(&frame[HEADER..]).expect("a refusal is JSON");
    assert_eq!(answer["error"]["code"], code);
}

/// A turn's parameters: each message is one line of the log, reads the same from there, and can be sent to any provider.
pub fn turn(data: &[u8]) {
    let Ok(params) = serde_json::from_slice::<TurnParams>(data) else { return };
    for message in &params.messages {
        kept(message);
    }
    for tool in params.tools.iter().flatten() {
        serde_json::from_str::<Value>(tool.parameters.get()).expect("a schema is JSON");
    }
}

/// What is logged is read again as it was, and what is sent is JSON.
fn kept(message: &Message) {
    let line = serde_json::to_string(message).expect("a message can be logged");
    assert!(!line.contains(['\n', '\r']), "{line:?}");
    let again: Message = serde_json::from_str(&line).expect("what was logged can be read");
    assert_eq!(serde_json::to_string(&again).expect("as before"), line);
    for kind in KINDS.iter().copied() {
        for mark in [false, true] {
            let sent = provider::encode(kind, std::slice::from_ref(message), mark);
            let whole = [b"[".as_slice(), &sent, b"]"].concat();
            serde_json::from_slice::<Value>(&whole).expect("what a provider is sent is JSON");
        }
    }
}

/// Event streams: where they are cut changes nothing. The first byte says where.
pub fn sse(data: &[u8]) {
    let Some((size, stream)) = data.split_first() else { return };
    let events = |size: usize| {
        let (mut parser, mut all) = (sse::Events::default(), Vec::new());
        let fed = stream.chunks(size).try_for_each(|piece| parser.feed(piece, |event| all.push(event)));
        (all, fed)
    };
    assert_eq!(events(usize::from(*size).max(1)), events(stream.len().max(1)));
}

/// A provider's answer, by the first byte Anthropic's or OpenAI's: what comes of it can be logged, sent on and sent back.
pub fn provider(data: &[u8]) {
    let Some((kind, stream)) = data.split_first() else { return };
    let mut decoder = provider::decoder(KINDS[usize::from(*kind) % KINDS.len()]);
    let (mut pieces, mut events) = (VecDeque::new(), Vec::new());
    if sse::Events::default().feed(stream, |event| events.push(event)).is_err() {
        return;
    }
    for event in &events {
        if decoder.is_done() || decoder.event(event, &mut pieces).is_err() {
            return;
        }
    }
    let Ok(Answer { content, tool_calls, .. }) = decoder.finish() else { return };
    kept(&Message {
        role: Role::Assistant,
        content,
        tool_calls,
        tool_call_id: None,
        tool_name: None,
        is_error: false,
    });
}

/// A conversation's log, whatever is in it: it opens, opens the same again, and goes on.
pub fn log(data: &[u8]) {
    let shared = Path::new("/dev/shm");
    let dir = if shared.is_dir() { tempfile::tempdir_in(shared) } else { tempfile::tempdir() };
    let Ok(dir) = dir else { return };
    let path = dir.path().join("log");
    for kind in KINDS.iter().copied() {
        fs::write(&path, data).expect("a file");
        let (mut first, replay) = Conversation::open(&path, kind, None).expect("any log opens");
        let (second, again) = Conversation::open(&path, kind, None).expect("and again");
        assert_eq!((replay.messages, again.torn), (again.messages, 0));
        assert_eq!(first.bytes(), second.bytes());
        let content = vec![Block::text("next")];
        let next = Message {
            role: Role::User,
            content,
            tool_calls: Vec::new(),
            tool_call_id: None,
            tool_name: None,
            is_error: false,
        };
        first.check(std::slice::from_ref(&next)).expect("a message can always come");
        first.begin(vec![next]);
        let mut body = first.body("[".into(), "]".into(), true);
        let (mut all, mut context) = (Vec::new(), Context::from_waker(Waker::noop()));
        while let Poll::Ready(Some(Ok(frame))) =
            http_body::Body::poll_frame(std::pin::Pin::new(&mut body), &mut context)
        {
            all.extend_from_slice(frame.data_ref().expect("data"));
        }
        serde_json::from_slice::<Value>(&all).expect("what a provider is sent is JSON");
    }
}

/// Credentials in what streams: wherever it is cut, what goes out has none. The first byte says where.
pub fn secrets(data: &[u8]) {
    let Some((size, rest)) = data.split_first() else { return };
    let Ok(text) = std::str::from_utf8(rest) else { return };
    // One is where the input has a NUL: the fuzzer need not guess it.
    let text = text.replace('\0', KEY);
    let redactor = Redactor::new([&Secret::from(KEY.to_owned())]);
    let mut stream = redactor.stream();
    let (mut out, mut from) = (String::new(), 0);
    for at in (0..=text.len()).step_by(usize::from(*size).max(1)).filter(|at| text.is_char_boundary(*at)) {
        out.push_str(&stream.push(&text[from..at]));
        from = at;
    }
    out.push_str(&stream.push(&text[from..]));
    out.push_str(&stream.finish());
    assert!(!out.contains(KEY), "{out:?}");
    assert_eq!(out, redactor.text(&text));
    // The same as the source of a JSON string, whose escapes the first byte chooses.
    let hidden: String = match size % 3 {
        0 => KEY.chars().map(|c| format!("\\u{:04X}", u32::from(c))).collect(),
        _ => KEY.replace('\\', r"\\").replace('"', r#"\""#),
    };
    let source = serde_json::to_string(&text.replace(KEY, "\0"))
        .expect("a string is JSON")
        .replace(r"\u0000", &hidden);
    let mut stream = redactor.json_stream();
    let (mut out, mut from) = (String::new(), 0);
    for at in (0..=source.len()).step_by(usize::from(*size).max(1)).filter(|at| source.is_char_boundary(*at))
    {
        out.push_str(&stream.push(&source[from..at]));
        from = at;
    }
    out.push_str(&stream.push(&source[from..]));
    out.push_str(&stream.finish());
    let value: String = serde_json::from_str(&out).expect("what was JSON is JSON");
    assert!(!value.contains(KEY), "{out:?}");
}
