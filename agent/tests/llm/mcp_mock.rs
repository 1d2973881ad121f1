//! An MCP server that can be any of the protocol's eras, and that can misbehave.

use serde_json::{Value, json};
use std::{
    io::{BufReader, Read, Write},
    net::{TcpListener, TcpStream},
    sync::{Arc, Mutex},
    thread,
};

/// Which protocol a server speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Era {
    /// `server/discover`, no sessions.
    Modern,
    /// `initialize`, and a session id.
    Session,
    /// A GET that streams, an address to post to.
    Sse,
}

/// A request that came.
#[derive(Debug, Clone)]
pub(crate) struct Got {
    pub(crate) method: String,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: Value,
}

impl Got {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(n, _)| n == name).map(|(_, v)| v.as_str())
    }
}

/// What a server does, changed by the tests as they go.
pub(crate) struct Behaviour {
    pub(crate) tools: Vec<Value>,
    /// Requests with this method end the connection instead, so many times.
    pub(crate) drops: (String, u32),
    /// Instead of any answer: this status and `Location`.
    pub(crate) redirect: Option<(u16, String)>,
    /// Where the old transport wants messages posted.
    pub(crate) endpoint: String,
    /// Calls are answered with an event stream that ends before the answer.
    pub(crate) cuts: bool,
    /// Without this header value: 401.
    pub(crate) authorization: Option<String>,
    got: Vec<Got>,
    /// The old transport's open stream.
    stream: Option<TcpStream>,
    connections: Vec<TcpStream>,
}

/// The server. Its threads end with the test process.
pub(crate) struct McpServer {
    /// Of streamable HTTP or of the stream, by the era.
    pub(crate) url: String,
    pub(crate) behaviour: Arc<Mutex<Behaviour>>,
}

/// A tool with no arguments to speak of.
pub(crate) fn tool(name: &str, description: &str) -> Value {
    json!({ "name": name, "description": description, "inputSchema": { "type": "object" } })
}

impl McpServer {
    pub(crate) fn new(era: Era, tools: &[&str]) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let behaviour = Arc::new(Mutex::new(Behaviour {
            tools: tools.iter().map(|name| tool(name, "Does what it is told")).collect(),
            drops: (String::new(), 0),
            redirect: None,
            endpoint: "/messages?session=1".to_owned(),
            cuts: false,
            authorization: None,
            got: Vec::new(),
            stream: None,
            connections: Vec::new(),
        }));
        let shared = Arc::clone(&behaviour);
        thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let shared = Arc::clone(&shared);
                shared.lock().unwrap().connections.push(stream.try_clone().unwrap());
                thread::spawn(move || serve(stream, era, &shared));
            }
        });
        let path = if era == Era::Sse { "sse" } else { "mcp" };
        Self { url: format!("http://{address}/{path}"), behaviour }
    }

    /// The section of a profile.
    pub(crate) fn section(&self, name: &str, more: &str) -> String {
        format!("[mcp.{name}]\nurl = \"{}\"\n{more}\n", self.url)
    }

    pub(crate) fn got(&self, method: &str) -> Vec<Got> {
        let behaviour = self.behaviour.lock().unwrap();
        behaviour.got.iter().filter(|got| got.method == method).cloned().collect()
    }

    pub(crate) fn requests(&self) -> usize {
        self.behaviour.lock().unwrap().got.len()
    }

    /// As a server's restart does it: every connection ends, sessions are forgotten.
    pub(crate) fn hang_up(&self) {
        let mut behaviour = self.behaviour.lock().unwrap();
        behaviour.stream = None;
        for connection in behaviour.connections.drain(..) {
            let _ = connection.shutdown(std::net::Shutdown::Both);
        }
    }
}

fn serve(stream: TcpStream, era: Era, behaviour: &Mutex<Behaviour>) -> Option<()> {
    stream.set_nodelay(true).ok()?;
    let mut writer = stream.try_clone().ok()?;
    let mut reader = BufReader::new(stream);
    loop {
        let (line, headers) = crate::mock::head(&mut reader)?;
        let length = headers.iter().find(|(n, _)| n == "content-length");
        let mut body = vec![0; length.and_then(|(_, n)| n.parse().ok()).unwrap_or(0)];
        reader.read_exact(&mut body).ok()?;
        let body: Value = serde_json::from_slice(&body).unwrap_or_default();
        let verb = line.split(' ').next().unwrap().to_owned();
        let method = body["method"].as_str().unwrap_or(&verb).to_owned();
        let got = Got { method: method.clone(), headers, body: body.clone() };
        let mut it = behaviour.lock().unwrap();
        let authorized =
            it.authorization.is_none() || it.authorization.as_deref() == got.header("authorization");
        it.got.push(got);
        if it.drops.0 == method && it.drops.1 > 0 {
            it.drops.1 -= 1;
            let _ = writer.shutdown(std::net::Shutdown::Both);
            return None;
        }
        let (status, kind, answer) = if let Some((status, to)) = &it.redirect {
            (*status, format!("Location: {to}\r\n"), String::new())
        } else if !authorized {
            (401, "WWW-Authenticate: Bearer\r\n".to_owned(), String::new())
        } else {
            match (era, verb.as_str()) {
                (Era::Sse, "GET") => {
                    let head =
                        "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n";
                    let text = format!("{head}event: endpoint\r\ndata: {}\r\n\r\n", it.endpoint);
                    writer.write_all(text.as_bytes()).ok()?;
                    it.stream = Some(writer.try_clone().ok()?);
                    continue;
                }
                (Era::Sse, _) if !line.contains("/messages") => {
                    (404, String::new(), "Cannot POST /sse".to_owned())
                }
                (Era::Sse, _) => {
                    let message = answer(era, &it.tools, &body);
                    // A notification of the server's own, and a ping, come between.
                    let noise = json!({ "jsonrpc": "2.0", "method": "notifications/message", "params": { "level": "info", "data": "x" } });
                    if let (Some(message), Some(stream)) = (message, &mut it.stream) {
                        let text = format!(": ping\n\ndata: {noise}\n\nevent: message\ndata: {message}\n\n");
                        stream.write_all(text.as_bytes()).ok()?;
                    }
                    (202, String::new(), "Accepted".to_owned())
                }
                (_, "POST") if it.cuts && method == "tools/call" => {
                    let events = "event: message\ndata: {\"jsonrpc\":\"2.0\",\"method\":\"notifications/message\",\"params\":{\"level\":\"info\",\"data\":1}}\n\n";
                    (200, "Content-Type: text/event-stream\r\n".to_owned(), events.to_owned())
                }
                (_, "GET") => (405, String::new(), String::new()),
                (_, "DELETE") => (200, String::new(), String::new()),
                (era, _) => match answer(era, &it.tools, &body) {
                    None => (202, String::new(), String::new()),
                    Some(message) => {
                        let session = if method == "initialize" { "Mcp-Session-Id: s1\r\n" } else { "" };
                        let legacy = message["error"]["code"] == -32601;
                        let kind = format!("Content-Type: application/json\r\n{session}");
                        (if legacy { 400 } else { 200 }, kind, message.to_string())
                    }
                },
            }
        };
        drop(it);
        let head = format!("HTTP/1.1 {status} x\r\n{kind}Content-Length: {}\r\n\r\n{answer}", answer.len());
        writer.write_all(head.as_bytes()).ok()?;
    }
}

/// The answer to a request; none to a notification.
fn answer(era: Era, tools: &[Value], request: &Value) -> Option<Value> {
    let id = request.get("id")?;
    let info = json!({ "name": "mock", "version": "1" });
    let capabilities = json!({ "tools": { "listChanged": true } });
    let result = match (request["method"].as_str()?, era) {
        ("server/discover", Era::Modern) => json!({
            "resultType": "complete", "supportedVersions": ["2026-07-28"], "capabilities": capabilities, "serverInfo": info,
            "ttlMs": 0, "cacheScope": "private" }),
        ("initialize", Era::Session | Era::Sse) => json!({
            "protocolVersion": if era == Era::Sse { "2024-11-05" } else { "2025-06-18" },
            "capabilities": capabilities, "serverInfo": info }),
        ("tools/list", _) => {
            let at = request["params"]["cursor"].as_str().map_or(0, |c| c.parse().unwrap());
            let mut page = json!({ "tools": tools.get(at..=at).unwrap_or_default() });
            if at + 1 < tools.len() {
                page["nextCursor"] = json!((at + 1).to_string());
            }
            if era == Era::Modern {
                page["resultType"] = json!("complete");
                page["ttlMs"] = json!(3_600_000);
                page["cacheScope"] = json!("private");
            }
            page
        }
        ("tools/call", _) => {
            let name = request["params"]["name"].as_str()?;
            let arguments = &request["params"]["arguments"];
            let mut result = json!({ "content": [
                { "type": "text", "text": format!("{name} {arguments}") },
                { "type": "image", "data": "AAAA", "mimeType": "image/png" },
                { "type": "hologram", "depth": 3 },
            ], "isError": name.starts_with("fail") });
            if let Some(echo) = arguments["echo"].as_str() {
                result["content"] = json!([{ "type": "text", "text": echo }]);
            }
            if era == Era::Modern {
                result["resultType"] = json!("complete");
            }
            result
        }
        _ => {
            let error = json!({ "code": -32601, "message": "there is no such method" });
            return Some(json!({ "jsonrpc": "2.0", "id": id, "error": error }));
        }
    };
    Some(json!({ "jsonrpc": "2.0", "id": id, "result": result }))
}
