//! A session with a remote server: what is sent, called off and answered, and the room that this takes.

use super::*;
use serde_json::{Value, json};
use std::{
    io::{BufRead as _, BufReader, Read as _},
    net::TcpListener,
    thread,
};

const SOON: Duration = Duration::from_secs(60);

/// A server that answers every request at once, and what it received.
fn server() -> (Server, Arc<Mutex<Vec<Value>>>) {
    server_of(&json!({}), false)
}

/// The same, with this as every result; `streams`: as events.
fn server_of(result: &Value, streams: bool) -> (Server, Arc<Mutex<Vec<Value>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/mcp", listener.local_addr().unwrap());
    let received = Arc::new(Mutex::new(Vec::new()));
    let (log, result) = (Arc::clone(&received), result.clone());
    thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let (log, result) = (Arc::clone(&log), result.clone());
            thread::spawn(move || {
                let mut reading = BufReader::new(stream.try_clone().unwrap());
                while let Some(body) = body(&mut reading) {
                    let message: Value = serde_json::from_slice(&body).unwrap();
                    let one = message.as_array().and_then(|all| all.iter().find(|one| one["id"].is_i64()));
                    let id = one.unwrap_or(&message)["id"].clone();
                    log.lock().unwrap().push(message);
                    let answer = json!({"jsonrpc": "2.0", "id": id, "result": result}).to_string();
                    let (kind, answer) = match streams {
                        true => ("text/event-stream", format!("data: {answer}\n\n")),
                        false => ("application/json", answer),
                    };
                    let head = format!("Content-Type: {kind}\r\nContent-Length: {}", answer.len());
                    write!(stream, "HTTP/1.1 200 OK\r\n{head}\r\n\r\n{answer}").unwrap();
                }
            });
        }
    });
    (Server::new(url.parse().unwrap(), Vec::new()).unwrap(), received)
}

fn body(reading: &mut BufReader<std::net::TcpStream>) -> Option<Vec<u8>> {
    let mut length = 0;
    loop {
        let mut line = String::new();
        reading.read_line(&mut line).ok().filter(|read| *read > 0)?;
        match line.trim_end().split_once(": ") {
            Some((name, value)) if name.eq_ignore_ascii_case("content-length") => {
                length = value.parse().unwrap();
            }
            None if line.trim_end().is_empty() => break,
            _ => {}
        }
    }
    let mut body = vec![0; length];
    reading.read_exact(&mut body).ok()?;
    Some(body)
}

fn ping(id: i64) -> Value {
    let meta = json!({"io.modelcontextprotocol/protocolVersion": "2026-07-28"});
    json!({"jsonrpc": "2.0", "id": id, "method": "ping", "params": {"_meta": meta}})
}

fn cancelled(id: i64) -> Value {
    json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": id}})
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
}

fn session(server: Server, waiting: usize) -> (Arc<Session>, mpsc::Receiver<Outgoing>) {
    let (out, outgoing) = mpsc::channel(waiting);
    (Arc::new(Session::new(server, 1 << 20, Rooms::new(64 << 20), out)), outgoing)
}

async fn next(outgoing: &mut mpsc::Receiver<Outgoing>) -> Value {
    let (line, _room) = time::timeout(SOON, outgoing.recv()).await.unwrap().unwrap().unwrap();
    serde_json::from_slice(&line).unwrap()
}

/// What the server received of these lines, which all were there before the first was looked at; the last is answered.
fn carried(messages: &[Value]) -> Vec<Value> {
    let (server, received) = server();
    runtime().block_on(async {
        let (session, mut outgoing) = session(server, 16);
        let (incoming, lines) = mpsc::channel(16);
        for message in messages {
            incoming.send(message.to_string().into_bytes()).await.unwrap();
        }
        let last = match messages.last().unwrap() {
            Value::Array(batch) => batch.last().unwrap()["id"].clone(),
            last => last["id"].clone(),
        };
        let run = tokio::spawn(async move { session.run(lines).await });
        while next(&mut outgoing).await["id"] != last {}
        drop(incoming);
        assert_eq!(run.await.unwrap(), End::Done);
    });
    received.lock().unwrap().clone()
}

#[test]
fn what_was_called_off_before_it_was_sent_is_not_sent() {
    assert_eq!(carried(&[ping(1), cancelled(1), ping(2)]), [ping(2)]);
    assert_eq!(carried(&[ping(1), cancelled(7), ping(2)]).len(), 2, "the control");
}

#[test]
fn a_batch_that_calls_something_off_has_its_requests_answered() {
    let batch = json!([cancelled(1), ping(2)]);
    assert_eq!(carried(std::slice::from_ref(&batch)), [batch]);
}

#[test]
fn an_answer_that_waits_to_be_taken_is_not_lost_with_the_session() {
    let (server, received) = server();
    runtime().block_on(async {
        let (session, mut outgoing) = session(server, 1);
        session.out.send(Some((b"{\"id\":0}".to_vec(), session.rooms.one()))).await.unwrap();
        let (incoming, lines) = mpsc::channel(16);
        incoming.send(ping(1).to_string().into_bytes()).await.unwrap();
        let own = Arc::clone(&session);
        let run = tokio::spawn(async move { own.run(lines).await });
        let reached = async {
            while received.lock().unwrap().is_empty() {
                time::sleep(Duration::from_millis(10)).await;
            }
        };
        time::timeout(SOON, reached).await.unwrap();
        // Its answer is there by now, and finds no place.
        time::sleep(Duration::from_millis(500)).await;
        session.lose();
        time::sleep(Duration::from_millis(100)).await;
        assert_eq!(next(&mut outgoing).await["id"], 0);
        assert_eq!(next(&mut outgoing).await["id"], 1);
        assert_eq!(run.await.unwrap(), End::Lost);
    });
}

#[test]
fn an_answer_takes_no_more_room_than_it_has() {
    for streams in [false, true] {
        answers_fit(streams);
    }
}

fn answers_fit(streams: bool) {
    let (server, received) = server_of(&json!("x".repeat(600 << 10)), streams);
    runtime().block_on(async {
        let (out, mut outgoing) = mpsc::channel(1);
        let session = Arc::new(Session::new(server, 1 << 20, Rooms::new(4 << 20), out));
        session.out.send(Some((b"{\"id\":0}".to_vec(), session.rooms.one()))).await.unwrap();
        let (incoming, lines) = mpsc::channel(16);
        for id in 1..=4 {
            incoming.send(ping(id).to_string().into_bytes()).await.unwrap();
        }
        let own = Arc::clone(&session);
        let run = tokio::spawn(async move { own.run(lines).await });
        let reached = async {
            while received.lock().unwrap().len() < 4 {
                time::sleep(Duration::from_millis(10)).await;
            }
        };
        time::timeout(SOON, reached).await.unwrap();
        // All of them are there by now, and wait for their turn.
        time::sleep(Duration::from_millis(500)).await;
        assert_eq!(next(&mut outgoing).await["id"], 0);
        for _ in 1..=4 {
            let answer = next(&mut outgoing).await;
            assert!(answer["result"].is_string(), "{}", answer["error"]);
        }
        drop(incoming);
        assert_eq!(run.await.unwrap(), End::Done);
    });
}
