//! The MCP server: JSON-RPC lines in, answers out, in both of the protocol's eras.
//!
//! The older era begins with `initialize`, which is answered and not insisted on. In the newer one (2026-07-28) every
//! request says its version in `_meta`, `server/discover` says ours, and results have a `resultType`.

use super::{
    calls::{Answers, Calls},
    dispatch::{CancelRequest, Job, Request, Step, ToolCall},
};
use ringfence_base::error::chain;
use ringfence_grant::{
    Grant,
    gate::{AuthorizedCall, Cancel, Registry, Tool, ToolError},
};
use ringfence_session::{
    line::{Call, Id, Kind, Message},
    lines::{Lines, Taken},
};
use serde_json::{Value, json};
use std::{
    io::{self, Read, Write},
    sync::Arc,
};
use tokio::runtime::{Builder, Runtime};

/// Longest line, bytes, its end included.
const MAX_LINE: usize = (16 << 20) + 1;

/// Versions that begin with `initialize`, the newest last.
const SESSION_VERSIONS: [&str; 4] = ["2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25"];
/// The version without sessions.
const MODERN_VERSION: &str = "2026-07-28";
/// Where a request of the newer era says its version.
const VERSION_KEY: &str = "io.modelcontextprotocol/protocolVersion";
/// The newer era's error for a version that a server does not speak.
const UNSUPPORTED_VERSION: i64 = -32022;
/// How long the newer era's clients may keep a list: the grant does not change within a session.
const LIST_TTL_MS: u64 = 3_600_000;

thread_local! {
    /// What drives the calls of one thread: those that fetch wait for sockets and timers.
    static RUNTIME: io::Result<Runtime> = Builder::new_current_thread().enable_all().build();
}

/// The tools and what was granted.
pub struct Server {
    /// The tools.
    pub registry: Registry,
    /// What the session may do.
    pub granted: Grant,
}

/// A JSON-RPC error.
#[derive(Debug)]
pub struct RpcError {
    code: i64,
    message: String,
    data: Option<Value>,
}

impl RpcError {
    /// A fault without further data.
    pub fn new(code: i64, message: impl Into<String>) -> Self {
        Self { code, message: message.into(), data: None }
    }
}

/// Why the server ended before its client did.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Standard input.
    #[error("cannot read the client's messages")]
    Input(#[source] io::Error),
    /// Threads.
    #[error("cannot start a thread for a call")]
    Thread(#[source] io::Error),
}

impl Server {
    /// A session with these tools.
    pub fn new(registry: Registry, granted: Grant) -> Self {
        Self { registry, granted }
    }

    /// Answers lines until the client says `exit` or closes its end; every call that was begun is answered.
    ///
    /// # Errors
    /// [`Error`]
    pub fn serve(self, input: impl Read, output: impl Write + Send + 'static) -> Result<(), Error> {
        let server = Arc::new(self);
        let answers = Arc::new(Answers::new(output));
        let mut calls = Calls::new(&answers);
        let mut lines = Lines::new(input, MAX_LINE);
        loop {
            let step = match lines.next_line().map_err(Error::Input)? {
                Taken::End => break,
                Taken::Overlong(_) => {
                    lines.rest(|_| Ok(())).map_err(Error::Input)?;
                    let fault = RpcError::new(-32600, "a line of more than 16 MiB");
                    Step::Reply(error(&Id::Null, fault))
                }
                Taken::Line(line) => Step::of(&server, line.strip_suffix(b"\n").unwrap_or(line)),
            };
            match step {
                Step::Ignore => {}
                // A client that is gone does not end calls that it began: the end of its input does, later.
                Step::Reply(line) => drop(answers.write(&line)),
                Step::ReplyInOrder(line) => calls.answer(line).map_err(Error::Thread)?,
                Step::Run(Job { calls: ids, work, cancelled }) => {
                    calls.run(ids, work).map_err(Error::Thread)?;
                    cancelled.iter().for_each(|what| calls.cancel(&what.id, &what.reason));
                }
                Step::Cancel(what) => calls.cancel(&what.id, &what.reason),
                Step::Exit(line) => {
                    line.map(|line| answers.write(&line));
                    break;
                }
            }
        }
        calls.finish();
        Ok(())
    }

    /// What a message asks for; `None` where nobody waits for an answer.
    pub fn read(&self, message: &Message<'_>) -> Option<(Option<Id>, Request)> {
        match &message.kind {
            Kind::Response(..) => None,
            Kind::Notification(method) if method == "exit" => Some((None, Request::Exit)),
            Kind::Notification(method) if method == "notifications/cancelled" => {
                Some((None, Request::Cancel(CancelRequest::read(message.params)?)))
            }
            Kind::Notification(_) => None,
            Kind::Request(id, method) if method == "exit" => Some((Some(id.clone()), Request::Exit)),
            Kind::Request(id, method) => {
                Some((Some(id.clone()), Request::Now(self.request(method, message.params))))
            }
            Kind::Call(id, Call { name, value, meta, .. }) => {
                let request = match modern(*meta) {
                    Ok(modern) => {
                        Request::Call(ToolCall { tool: name.clone(), arguments: value.clone(), modern })
                    }
                    Err(fault) => Request::Now(Err(fault)),
                };
                Some((Some(id.clone()), request))
            }
        }
    }

    fn request(&self, method: &str, params: Option<&str>) -> Result<Value, RpcError> {
        let params = params.map_or(Ok(Value::Null), serde_json::from_str::<Value>);
        let params = params.map_err(|e| RpcError::new(-32602, e.to_string()))?;
        let modern = is_modern(&params["_meta"])?;
        let info = json!({ "name": "ringfence", "version": env!("CARGO_PKG_VERSION") });
        let result = match method {
            "initialize" => json!({
                "protocolVersion": session_version(&params),
                "capabilities": { "tools": {} },
                "serverInfo": info,
            }),
            "server/discover" => json!({
                "supportedVersions": [MODERN_VERSION],
                "capabilities": { "tools": {} },
                "serverInfo": info,
                "ttlMs": LIST_TTL_MS,
                "cacheScope": "private",
            }),
            "tools/list" => self.list(modern),
            "ping" => json!({}),
            "shutdown" => Value::Null,
            _ => return Err(RpcError::new(-32601, format!("there is no method {method:?}"))),
        };
        Ok(complete(result, modern || method == "server/discover"))
    }

    /// The tools of which the grant allows any call.
    fn list(&self, modern: bool) -> Value {
        let usable = self.registry.tools().filter(|tool| tool.usable(&self.granted));
        let tools: Vec<Value> = usable
            .map(|tool| {
                json!({
                    "name": tool.name(),
                    "description": tool.description(),
                    "inputSchema": tool.schema(),
                })
            })
            .collect();
        let mut list = json!({ "tools": tools });
        if modern {
            list["ttlMs"] = LIST_TTL_MS.into();
            list["cacheScope"] = "private".into();
        }
        list
    }

    /// Begins and runs a call. Blocks. `None`: it was cancelled, and has no answer.
    pub fn call(
        &self,
        tool: &str,
        arguments: Value,
        modern: bool,
        cancel: Cancel,
    ) -> Option<Result<Value, RpcError>> {
        match self.registry.authorize(tool, arguments, &self.granted, cancel) {
            Ok(call) => self.run(call, modern),
            Err(error) => self.outcome(Err(error), modern),
        }
    }

    /// Runs a call. Blocks. `None`: it was cancelled, and has no answer.
    pub fn run(&self, call: AuthorizedCall, modern: bool) -> Option<Result<Value, RpcError>> {
        let outcome = RUNTIME.with(|runtime| match runtime {
            Ok(runtime) => Ok(runtime.block_on(call.run())),
            Err(error) => Err(RpcError::new(-32603, format!("cannot run the call: {error}"))),
        });
        match outcome {
            Ok(outcome) => self.outcome(outcome, modern),
            Err(fault) => Some(Err(fault)),
        }
    }

    /// What is answered. A denial, like every failure, is a result that the model can read.
    pub fn outcome(
        &self,
        outcome: Result<Value, ToolError>,
        modern: bool,
    ) -> Option<Result<Value, RpcError>> {
        let (text, is_error) = match outcome {
            Ok(Value::String(text)) => (text, false),
            Ok(value) => (value.to_string(), false),
            Err(ToolError::Cancelled) => return None,
            Err(ToolError::Unknown(name)) => return Some(Err(self.unknown(&name))),
            Err(error) => (chain(&error), true),
        };
        let result = json!({ "content": [{ "type": "text", "text": text }], "isError": is_error });
        Some(Ok(complete(result, modern)))
    }
}

impl Server {
    /// Names what there is instead: a model that has a name wrong can go on.
    fn unknown(&self, name: &str) -> RpcError {
        let names: Vec<&str> =
            self.registry.tools().filter(|tool| tool.usable(&self.granted)).map(Tool::name).collect();
        let there_are = match names.as_slice() {
            [] => "the grant allows no call of any tool".to_owned(),
            names => format!("there are {}", names.join(", ")),
        };
        let web = if name == "web_fetch" { " (`ringfence tools --web` offers it)" } else { "" };
        RpcError::new(-32602, format!("{}{web}: {there_are}", ToolError::Unknown(name.to_owned())))
    }
}

/// The version that a session is begun with: the client's where we know it; where it names none, the oldest.
fn session_version(params: &Value) -> &'static str {
    let [oldest, .., newest] = SESSION_VERSIONS;
    match params["protocolVersion"].as_str() {
        None => oldest,
        Some(asked) => SESSION_VERSIONS.into_iter().find(|known| *known == asked).unwrap_or(newest),
    }
}

fn modern(meta: Option<&str>) -> Result<bool, RpcError> {
    let Some(meta) = meta else { return Ok(false) };
    let meta: Value = serde_json::from_str(meta).map_err(|error| RpcError::new(-32602, error.to_string()))?;
    is_modern(&meta)
}

/// Whether a request is of the newer era: its `_meta` says a version, which must be the one that we speak.
fn is_modern(meta: &Value) -> Result<bool, RpcError> {
    match &meta[VERSION_KEY] {
        Value::Null => Ok(false),
        Value::String(version) if version == MODERN_VERSION => Ok(true),
        other => Err(RpcError {
            code: UNSUPPORTED_VERSION,
            message: format!("the protocol version {other} is not spoken here"),
            data: Some(json!({ "supported": [MODERN_VERSION], "requested": other })),
        }),
    }
}

fn complete(mut result: Value, modern: bool) -> Value {
    if let (true, Value::Object(fields)) = (modern, &mut result) {
        fields.insert("resultType".into(), "complete".into());
    }
    result
}

/// An answer, as a line.
pub fn answer(id: &Id, result: Result<Value, RpcError>) -> String {
    match result {
        Ok(result) => id.answer("result", &result),
        Err(fault) => error(id, fault),
    }
}

/// A refusal, as a line.
pub fn error(id: &Id, RpcError { code, message: text, data }: RpcError) -> String {
    let mut error = json!({ "code": code, "message": text });
    if let Some(data) = data {
        error["data"] = data;
    }
    id.answer("error", &error)
}
