//! A provider that answers as it is told: each request takes the next answer of its script.

use crate::support::PATIENCE;
use serde_json::{Value, json};
use std::{
    collections::VecDeque,
    io::{BufRead, BufReader, Read, Write},
    net::{TcpListener, TcpStream},
    sync::{
        Arc, Condvar, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
    time::Duration,
};

/// One answer.
#[derive(Debug, Clone)]
pub(crate) enum Answer {
    /// Status, further header lines, body: one write.
    Whole(u16, String, Vec<u8>),
    /// An event stream that ends, cleanly, after these bytes.
    Stream(Vec<u8>),
    /// An event stream in pieces, each sent by itself.
    Pieces(Vec<Vec<u8>>),
    /// An event stream whose connection breaks after these bytes.
    Broken(Vec<u8>),
    /// These bytes of an event stream, then nothing until the gate is opened, then the rest.
    Gated(Vec<u8>, Arc<Gate>, Vec<u8>),
    /// Nothing until the gate is opened, and then a connection that breaks.
    Held(Arc<Gate>),
}

/// Holds an answer back.
#[derive(Debug, Default)]
pub(crate) struct Gate(Mutex<bool>, Condvar);

impl Gate {
    pub(crate) fn open(&self) {
        *self.0.lock().unwrap() = true;
        self.1.notify_all();
    }

    fn wait(&self) {
        let open = self.0.lock().unwrap();
        // Longer than any test waits: what opens a gate is the test, not the time.
        let _ = self.1.wait_timeout_while(open, 10 * PATIENCE, |open| !*open).unwrap();
    }
}

/// What was asked.
#[derive(Debug, Clone)]
pub(crate) struct Asked {
    /// `POST /v1/messages`.
    pub(crate) line: String,
    /// Names in lower case.
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: Value,
}

impl Asked {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(n, _)| n == name).map(|(_, v)| v.as_str())
    }

    pub(crate) fn messages(&self) -> &Vec<Value> {
        self.body["messages"].as_array().expect("messages")
    }
}

#[derive(Default)]
struct State {
    script: Mutex<VecDeque<Answer>>,
    asked: Mutex<Vec<Asked>>,
    more: Condvar,
    connections: AtomicUsize,
}

/// The provider. Its threads end with the test process.
pub(crate) struct Mock {
    pub(crate) url: String,
    state: Arc<State>,
}

impl Mock {
    pub(crate) fn new() -> Self {
        Self::at(0)
    }

    /// On this port of loopback; 0: any.
    pub(crate) fn at(port: u16) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", port)).unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let state = Arc::new(State::default());
        let shared = Arc::clone(&state);
        thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                shared.connections.fetch_add(1, Ordering::Relaxed);
                let state = Arc::clone(&shared);
                thread::spawn(move || serve(stream, &state));
            }
        });
        Self { url, state }
    }

    pub(crate) fn with(answers: impl IntoIterator<Item = Answer>) -> Self {
        let mock = Self::new();
        mock.then(answers);
        mock
    }

    /// Adds answers to the script. Where it is empty, requests are answered with an error 599.
    pub(crate) fn then(&self, answers: impl IntoIterator<Item = Answer>) {
        self.state.script.lock().unwrap().extend(answers);
    }

    pub(crate) fn asked(&self) -> Vec<Asked> {
        self.state.asked.lock().unwrap().clone()
    }

    /// How many connections were made.
    pub(crate) fn connections(&self) -> usize {
        self.state.connections.load(Ordering::Relaxed)
    }

    /// The last request.
    pub(crate) fn last(&self) -> Asked {
        self.asked().pop().expect("a request")
    }

    /// Waits until there were so many requests.
    pub(crate) fn wait_asked(&self, count: usize) {
        let asked = self.state.asked.lock().unwrap();
        let (asked, _) = self.state.more.wait_timeout_while(asked, PATIENCE, |a| a.len() < count).unwrap();
        assert!(asked.len() >= count, "{} requests came, {count} were expected", asked.len());
    }
}

fn serve(stream: TcpStream, state: &State) -> Option<()> {
    stream.set_nodelay(true).ok()?;
    let mut writer = stream.try_clone().ok()?;
    let mut reader = BufReader::new(stream);
    loop {
        let asked = read(&mut reader)?;
        state.asked.lock().unwrap().push(asked);
        state.more.notify_all();
        let answer = state.script.lock().unwrap().pop_front();
        let head = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n";
        match answer {
            None => {
                writer.write_all(b"HTTP/1.1 599 The script is empty\r\nContent-Length: 0\r\n\r\n").ok()?;
            }
            Some(Answer::Whole(status, headers, body)) => {
                let head = format!("HTTP/1.1 {status} x\r\n{headers}Content-Length: {}\r\n\r\n", body.len());
                writer.write_all(&[head.into_bytes(), body].concat()).ok()?;
            }
            Some(Answer::Stream(body)) => {
                let head = format!("{head}Content-Length: {}\r\n\r\n", body.len());
                writer.write_all(&[head.into_bytes(), body].concat()).ok()?;
            }
            Some(Answer::Pieces(pieces)) => {
                writer.write_all(format!("{head}Connection: close\r\n\r\n").as_bytes()).ok()?;
                for piece in pieces {
                    writer.write_all(&piece).ok()?;
                    thread::sleep(Duration::from_millis(2));
                }
                return None;
            }
            Some(Answer::Broken(body)) => {
                let head = format!("{head}Content-Length: {}\r\n\r\n", body.len() + 1000);
                writer.write_all(&[head.into_bytes(), body].concat()).ok()?;
                return None;
            }
            Some(Answer::Held(gate)) => {
                gate.wait();
                return None;
            }
            Some(Answer::Gated(first, gate, rest)) => {
                let head = format!("{head}Content-Length: {}\r\n\r\n", first.len() + rest.len());
                writer.write_all(&[head.into_bytes(), first].concat()).ok()?;
                gate.wait();
                writer.write_all(&rest).ok()?;
            }
        }
    }
}

/// A request's first line, and its headers with names in lower case.
pub(crate) fn head(reader: &mut impl BufRead) -> Option<(String, Vec<(String, String)>)> {
    let mut line = String::new();
    reader.read_line(&mut line).ok().filter(|n| *n > 0)?;
    let mut headers = Vec::new();
    loop {
        let mut header = String::new();
        reader.read_line(&mut header).ok()?;
        let Some((name, value)) = header.trim_end().split_once(':') else { return Some((line, headers)) };
        headers.push((name.to_lowercase(), value.trim().to_owned()));
    }
}

fn read(reader: &mut BufReader<TcpStream>) -> Option<Asked> {
    let (line, headers) = head(reader)?;
    let length = headers.iter().find(|(n, _)| n == "content-length")?.1.parse().ok()?;
    let mut body = vec![0; length];
    reader.read_exact(&mut body).ok()?;
    let line = line.trim_end().trim_end_matches(" HTTP/1.1").to_owned();
    Some(Asked { line, headers, body: serde_json::from_slice(&body).expect("a request in JSON") })
}

fn event(data: &Value) -> Vec<u8> {
    format!("event: {}\ndata: {data}\n\n", data["type"].as_str().unwrap()).into_bytes()
}

/// An answer in Anthropic's form: blocks as `(start, deltas)`.
pub(crate) fn anthropic_events(blocks: &[(Value, Vec<Value>)], stop_reason: &str) -> Vec<Vec<u8>> {
    let usage = json!({ "input_tokens": 10, "cache_read_input_tokens": 3, "output_tokens": 1 });
    let mut events = vec![event(
        &json!({ "type": "message_start", "message": { "id": "m", "role": "assistant", "content": [], "usage": usage } }),
    )];
    events.push(event(&json!({ "type": "ping" })));
    for (index, (start, deltas)) in blocks.iter().enumerate() {
        events.push(event(&json!({ "type": "content_block_start", "index": index, "content_block": start })));
        for delta in deltas {
            events.push(event(&json!({ "type": "content_block_delta", "index": index, "delta": delta })));
        }
        events.push(event(&json!({ "type": "content_block_stop", "index": index })));
    }
    events.push(event(&json!({ "type": "message_delta", "delta": { "stop_reason": stop_reason, "stop_sequence": null }, "usage": { "output_tokens": 7 } })));
    events.push(event(&json!({ "type": "message_stop" })));
    events
}

/// A text block and its deltas.
pub(crate) fn text_block(pieces: &[&str]) -> (Value, Vec<Value>) {
    let deltas = pieces.iter().map(|piece| json!({ "type": "text_delta", "text": piece })).collect();
    (json!({ "type": "text", "text": "" }), deltas)
}

/// A tool call and its deltas.
pub(crate) fn tool_block(id: &str, name: &str, pieces: &[&str]) -> (Value, Vec<Value>) {
    let deltas =
        pieces.iter().map(|piece| json!({ "type": "input_json_delta", "partial_json": piece })).collect();
    (json!({ "type": "tool_use", "id": id, "name": name, "input": {} }), deltas)
}

/// Anthropic says this.
pub(crate) fn says(pieces: &[&str]) -> Answer {
    Answer::Stream(anthropic_events(&[text_block(pieces)], "end_turn").concat())
}

/// Anthropic wants these tools called: id, name, arguments.
pub(crate) fn calls(tools: &[(&str, &str, &str)]) -> Answer {
    let blocks: Vec<_> = tools.iter().map(|(id, name, input)| tool_block(id, name, &[input])).collect();
    Answer::Stream(anthropic_events(&blocks, "tool_use").concat())
}

/// OpenAI sends these chunks, and the end.
pub(crate) fn openai(chunks: &[Value]) -> Vec<u8> {
    let mut body: String = chunks.iter().map(|chunk| format!("data: {chunk}\n\n")).collect();
    body += "data: [DONE]\n\n";
    body.into_bytes()
}

/// One of OpenAI's chunks.
pub(crate) fn chunk(delta: Value, finish: Option<&str>) -> Value {
    json!({ "id": "c", "object": "chat.completion.chunk", "choices": [{ "index": 0, "delta": delta, "finish_reason": finish }] })
}

/// An item of OpenAI's newer form, whole, and the pieces of what is said in it or of its input; of some there are none.
pub(crate) type Item<'a> = (Value, &'a [&'a str]);

/// A message.
pub(crate) fn message_item<'a>(pieces: &'a [&'a str]) -> Item<'a> {
    let content = json!([{ "type": "output_text", "text": pieces.concat(), "annotations": [] }]);
    (
        json!({ "type": "message", "id": "msg_1", "status": "completed", "role": "assistant", "content": content }),
        pieces,
    )
}

/// A function's call.
pub(crate) fn function_item<'a>(call: &str, name: &str, pieces: &'a [&'a str]) -> Item<'a> {
    let item = json!({ "type": "function_call", "id": format!("fc_{call}"), "call_id": call, "name": name, "arguments": pieces.concat() });
    (item, pieces)
}

/// An answer of OpenAI's newer form, as it streams.
pub(crate) fn response_events(items: &[Item<'_>]) -> Vec<Vec<u8>> {
    let mut events =
        vec![event(&json!({ "type": "response.created", "response": response(&[], "in_progress") }))];
    for (index, (whole, pieces)) in items.iter().enumerate() {
        let (mut begun, id) = (whole.clone(), &whole["id"]);
        let (field, says) = match whole["type"].as_str() {
            Some("message") => ("content", "output_text"),
            Some("function_call") => ("arguments", "function_call_arguments"),
            Some("custom_tool_call") => ("input", "custom_tool_call_input"),
            _ => ("status", ""),
        };
        begun[field] = if field == "content" { json!([]) } else { json!("") };
        let of = |kind: &str, key: &str, value: Value| {
            event(
                &json!({ "type": format!("response.{kind}"), "item_id": id, "output_index": index, "content_index": 0, key: value }),
            )
        };
        events.push(of("output_item.added", "item", begun));
        if field == "content" {
            let part = json!({ "type": "output_text", "text": "", "annotations": [] });
            events.push(of("content_part.added", "part", part));
        }
        events.extend(pieces.iter().map(|piece| of(&format!("{says}.delta"), "delta", json!(piece))));
        if !says.is_empty() {
            let key = if field == "content" { "text" } else { field };
            events.push(of(&format!("{says}.done"), key, json!(pieces.concat())));
        }
        events.push(of("output_item.done", "item", whole.clone()));
    }
    let whole: Vec<Value> = items.iter().map(|(whole, _)| whole.clone()).collect();
    events.push(event(&json!({ "type": "response.completed", "response": response(&whole, "completed") })));
    events
}

/// The same as a whole answer: 7 tokens read, 4 of the cache, 5 written.
pub(crate) fn response(items: &[Value], status: &str) -> Value {
    let usage =
        json!({ "input_tokens": 11, "input_tokens_details": { "cached_tokens": 4 }, "output_tokens": 5 });
    // It is known at the end.
    let usage = if status == "in_progress" { Value::Null } else { usage };
    json!({ "id": "resp_1", "object": "response", "status": status, "error": null, "output": items, "usage": usage })
}

/// One of Gemini's answers, or an event of one: 7 tokens read, 4 of the cache, 5 written.
pub(crate) fn candidate(parts: &Value, finish: Option<&str>) -> Value {
    let usage = json!({ "promptTokenCount": 11, "cachedContentTokenCount": 4, "candidatesTokenCount": 3, "thoughtsTokenCount": 2 });
    let mut candidate = json!({ "content": { "parts": parts, "role": "model" }, "index": 0 });
    if let Some(reason) = finish {
        candidate["finishReason"] = json!(reason);
    }
    json!({ "candidates": [candidate], "usageMetadata": usage, "modelVersion": "m" })
}

/// An answer of these parts as it streams, with the event that says why it ended.
pub(crate) fn gemini_events(parts: &[Value]) -> Vec<Vec<u8>> {
    let ends = candidate(&json!([{ "text": "" }]), Some("STOP"));
    let events = parts.iter().map(|parts| candidate(parts, None)).chain([ends]);
    events.map(|event| format!("data: {event}\n\n").into_bytes()).collect()
}
