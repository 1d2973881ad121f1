//! Servers on loopback that answer as a test says.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails there")]

use std::{
    io::{BufRead, BufReader, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    sync::{Arc, Mutex},
    thread,
};

/// A server on loopback. It ends with the test's process.
#[derive(Debug)]
pub struct Server {
    /// Where it listens.
    pub addr: SocketAddr,
    asked: Arc<Mutex<Vec<String>>>,
}

impl Server {
    /// Serves `answer` for every request, of which it gets the head.
    pub fn new(answer: impl Fn(&str, &mut TcpStream) + Send + Sync + 'static) -> Self {
        Self::at("127.0.0.1:0", answer).unwrap()
    }

    /// The same, at this address.
    ///
    /// # Errors
    /// The machine has no such address.
    pub fn at(
        addr: &str,
        answer: impl Fn(&str, &mut TcpStream) + Send + Sync + 'static,
    ) -> std::io::Result<Self> {
        let listener = TcpListener::bind(addr)?;
        let addr = listener.local_addr()?;
        let asked = Arc::new(Mutex::new(Vec::new()));
        let (heads, answer) = (asked.clone(), Arc::new(answer));
        thread::spawn(move || {
            for stream in listener.incoming() {
                let (Ok(mut stream), heads, answer) = (stream, heads.clone(), answer.clone()) else { return };
                thread::spawn(move || {
                    let head = head(&stream);
                    heads.lock().unwrap().push(head.clone());
                    answer(&head, &mut stream);
                });
            }
        });
        Ok(Self { addr, asked })
    }

    /// A server that answers every request with these bytes.
    pub fn saying(answer: impl Into<Vec<u8>>) -> Self {
        let answer = answer.into();
        Self::new(move |_, stream| drop(stream.write_all(&answer)))
    }

    /// A server of one page.
    pub fn page(content_type: &str, body: impl AsRef<[u8]>) -> Self {
        Self::saying(ok(&format!("Content-Type: {content_type}\r\n"), body.as_ref()))
    }

    /// The URL of a path there.
    pub fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.addr)
    }

    /// Its port.
    pub fn port(&self) -> u16 {
        self.addr.port()
    }

    /// The heads of all requests so far.
    pub fn asked(&self) -> Vec<String> {
        self.asked.lock().unwrap().clone()
    }
}

fn head(stream: &TcpStream) -> String {
    let mut head = String::new();
    let mut reader = BufReader::new(stream);
    while !head.ends_with("\r\n\r\n") && reader.read_line(&mut head).is_ok_and(|read| read > 0) {}
    head
}

/// A 200 with more header lines and a body.
pub fn ok(headers: &str, body: &[u8]) -> Vec<u8> {
    let mut answer =
        format!("HTTP/1.1 200 OK\r\n{headers}Content-Length: {}\r\n\r\n", body.len()).into_bytes();
    answer.extend_from_slice(body);
    answer
}

/// A redirect.
pub fn redirect(status: u16, to: &str) -> String {
    format!("HTTP/1.1 {status} There\r\nLocation: {to}\r\nContent-Length: 0\r\n\r\n")
}
