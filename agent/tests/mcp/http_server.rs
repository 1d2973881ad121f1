//! A remote MCP server by hand: HTTP/1.1 as a test wants it, and what it received.

use ringfence_test_support::wait::eventually;
use serde_json::Value;
use std::{
    collections::BTreeMap,
    io::{BufRead as _, BufReader, Read as _, Write as _},
    net::{Shutdown, TcpListener, TcpStream},
    sync::{Arc, Mutex},
    thread,
};

/// A request as it came.
#[derive(Debug, Clone)]
pub(crate) struct Request {
    pub(crate) method: String,
    pub(crate) target: String,
    /// By their names in lower case.
    pub(crate) headers: BTreeMap<String, String>,
    pub(crate) body: Vec<u8>,
}

impl Request {
    pub(crate) fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", String::as_str)
    }

    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_default()
    }

    /// The method of its message.
    pub(crate) fn asks(&self) -> String {
        self.json()["method"].as_str().unwrap_or_default().to_owned()
    }
}

/// The other end of a connection.
pub(crate) struct Reply(TcpStream);

impl Reply {
    /// A whole answer; the connection can be used again.
    pub(crate) fn whole(&mut self, status: &str, headers: &[(&str, &str)], body: impl AsRef<[u8]>) {
        let body = body.as_ref();
        let mut head = format!("HTTP/1.1 {status}\r\nContent-Length: {}\r\n", body.len());
        headers.iter().for_each(|(name, value)| head += &format!("{name}: {value}\r\n"));
        self.raw(head + "\r\n");
        self.raw(body);
    }

    pub(crate) fn json(&mut self, body: impl AsRef<[u8]>) {
        self.whole("200 OK", &[("Content-Type", "application/json")], body);
    }

    pub(crate) fn accepted(&mut self) {
        self.whole("202 Accepted", &[], "");
    }

    /// The head of an event stream, which ends with the connection.
    pub(crate) fn events(&mut self) {
        self.raw(
            "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\nConnection: close\r\n\r\n",
        );
    }

    /// Bytes as they are. Nobody may be left to read them.
    pub(crate) fn raw(&mut self, bytes: impl AsRef<[u8]>) -> bool {
        self.0.write_all(bytes.as_ref()).and_then(|()| self.0.flush()).is_ok()
    }

    pub(crate) fn end(&mut self) {
        let _ = self.0.shutdown(Shutdown::Both);
    }

    /// Waits until the client ends the connection.
    pub(crate) fn until_closed(&mut self) {
        let _ = self.0.read(&mut [0]);
    }
}

/// The server.
pub(crate) struct HttpServer {
    pub(crate) origin: String,
    received: Arc<Mutex<Vec<Request>>>,
}

impl HttpServer {
    /// Answers each request, on a thread of its connection's own.
    pub(crate) fn start(answer: impl Fn(&Request, &mut Reply) + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let origin = format!("http://{}", listener.local_addr().expect("an address"));
        let received = Arc::new(Mutex::new(Vec::new()));
        let (log, answer) = (Arc::clone(&received), Arc::new(answer));
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (log, answer) = (Arc::clone(&log), Arc::clone(&answer));
                thread::spawn(move || {
                    let mut reading = BufReader::new(stream.try_clone().expect("a descriptor"));
                    let mut reply = Reply(stream);
                    while let Some(request) = read(&mut reading) {
                        log.lock().expect("whole").push(request.clone());
                        answer(&request, &mut reply);
                    }
                });
            }
        });
        Self { origin, received }
    }

    /// The address that clients are given.
    pub(crate) fn url(&self) -> String {
        format!("{}/mcp", self.origin)
    }

    pub(crate) fn received(&self) -> Vec<Request> {
        self.received.lock().expect("whole").clone()
    }

    /// The first request that is like this, once it has come.
    pub(crate) fn wait_for(&self, what: &str, like: impl Fn(&Request) -> bool) -> Request {
        eventually(what, || self.received().into_iter().find(|request| like(request)))
    }
}

fn read(reading: &mut BufReader<TcpStream>) -> Option<Request> {
    let mut line = String::new();
    reading.read_line(&mut line).ok().filter(|read| *read > 0)?;
    let mut words = line.split_whitespace().map(str::to_owned);
    let (method, target) = (words.next()?, words.next()?);
    let mut headers = BTreeMap::new();
    loop {
        let mut line = String::new();
        reading.read_line(&mut line).ok()?;
        let Some((name, value)) = line.trim_end().split_once(':') else { break };
        headers.insert(name.to_lowercase(), value.trim().to_owned());
    }
    let length = headers.get("content-length").map_or(0, |length: &String| length.parse().expect("a length"));
    let mut body = vec![0; length];
    reading.read_exact(&mut body).ok()?;
    Some(Request { method, target, headers, body })
}
