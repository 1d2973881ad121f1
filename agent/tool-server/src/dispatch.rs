//! What a client's line comes to: nothing, an answer, work for a thread, the end of a call or of the session.

use super::server::{RpcError, Server, answer, error};
use ringfence_grant::gate::Cancel;
use ringfence_session::{
    line::{self, Id, Line, Refusal, Refused},
    strict::{self, Ambiguity},
};
use serde_json::Value;
use std::sync::Arc;

/// Most messages of a batch: their answers are held until the last is there.
const MAX_BATCH: usize = 100;

/// What a message asks for.
pub enum Request {
    /// Answered at once.
    Now(Result<Value, RpcError>),
    /// A tool's call.
    Call(ToolCall),
    /// A call's end.
    Cancel(CancelRequest),
    /// The end of the session; the answer first, if one is due.
    Exit,
}

/// Which tool, with what.
pub struct ToolCall {
    pub tool: String,
    pub arguments: Value,
    pub modern: bool,
}

/// What a line comes to.
pub(crate) enum Step {
    Ignore,
    /// An answer that waits for nobody.
    Reply(String),
    /// The answer to a call that needed no thread.
    ReplyInOrder(String),
    Run(Job),
    Cancel(CancelRequest),
    Exit(Option<String>),
}

/// What a thread has to do for a line.
pub(crate) struct Job {
    pub calls: Vec<(Id, Cancel)>,
    pub work: Box<dyn FnOnce() -> Option<String> + Send>,
    /// What the same line cancels.
    pub cancelled: Vec<CancelRequest>,
}

/// What the client does not wait for any more.
pub struct CancelRequest {
    pub id: Id,
    pub reason: String,
}

impl CancelRequest {
    /// Nothing, where no request is named beyond doubt: whatever it was goes on.
    pub fn read(params: Option<&str>) -> Option<Self> {
        let members = strict::object(params?, &["requestId", "reason"]).ok()?;
        let id = Id::parse(members.find("requestId")?)?;
        let reason = members.find("reason").and_then(|reason| serde_json::from_str(reason).ok());
        Some(Self { id, reason: reason.unwrap_or_else(|| "the client gave no reason".to_owned()) })
    }
}

impl Step {
    pub(crate) fn of(server: &Arc<Server>, line: &[u8]) -> Self {
        match line::read(line) {
            Ok(Line::Blank) => Self::Ignore,
            Ok(Line::Message(message)) => Self::single(server, server.read(&message)),
            Ok(Line::Batch(messages)) if messages.len() > MAX_BATCH => {
                let text = format!("a batch of {} messages; at most {MAX_BATCH}", messages.len());
                Self::Reply(error(&Id::Null, RpcError::new(-32600, text)))
            }
            Ok(Line::Batch(messages)) => {
                Self::batch(server, messages.iter().filter_map(|m| server.read(m)).collect())
            }
            Err(Refused { reason, id }) => {
                let code = match reason {
                    Refusal::Ambiguous(Ambiguity::Syntax(_) | Ambiguity::Encoding(_)) => -32700,
                    Refusal::Ambiguous(_) | Refusal::Shape(_) => -32600,
                    Refusal::Call(_) => -32602,
                };
                Self::Reply(error(&id.unwrap_or(Id::Null), RpcError::new(code, reason.to_string())))
            }
        }
    }

    fn single(server: &Arc<Server>, request: Option<(Option<Id>, Request)>) -> Self {
        match request {
            None => Self::Ignore,
            Some((id, Request::Exit)) => Self::Exit(id.map(|id| answer(&id, Ok(Value::Null)))),
            Some((_, Request::Cancel(cancelled))) => Self::Cancel(cancelled),
            // Only what has an id is a request.
            Some((None, _)) => Self::Ignore,
            Some((Some(id), Request::Now(result))) => Self::Reply(answer(&id, result)),
            Some((Some(id), Request::Call(call))) => Self::call(server, id, call),
        }
    }

    /// A call is begun here, where that takes no time: one that ends there wakes no other thread.
    fn call(server: &Arc<Server>, id: Id, ToolCall { tool, arguments, modern }: ToolCall) -> Self {
        let cancel = Cancel::default();
        let calls = vec![(id.clone(), cancel.clone())];
        let server = server.clone();
        let work: Box<dyn FnOnce() -> Option<String> + Send> = if server.registry.authorizes_without_io(&tool)
        {
            match server.registry.authorize(&tool, arguments, &server.granted, cancel) {
                Ok(call) => Box::new(move || Some(answer(&id, server.run(call, modern)?))),
                Err(error) => {
                    return match server.outcome(Err(error), modern) {
                        Some(result) => Self::ReplyInOrder(answer(&id, result)),
                        None => Self::Ignore,
                    };
                }
            }
        } else {
            Box::new(move || Some(answer(&id, server.call(&tool, arguments, modern, cancel)?)))
        };
        Self::Run(Job { calls, work, cancelled: Vec::new() })
    }

    /// One line with every answer, once the last is there. The calls of a batch run one after the other.
    fn batch(server: &Arc<Server>, requests: Vec<(Option<Id>, Request)>) -> Self {
        let (mut calls, mut cancelled, mut answers) = (Vec::new(), Vec::new(), Vec::new());
        let mut exits = false;
        for (id, request) in requests {
            let cancel = Cancel::default();
            let request = match request {
                Request::Cancel(what) => {
                    cancelled.push(what);
                    continue;
                }
                other => other,
            };
            exits |= matches!(request, Request::Exit);
            if let (Request::Call(_), Some(id)) = (&request, &id) {
                calls.push((id.clone(), cancel.clone()));
            }
            answers.push((id, request, cancel));
        }
        let server = server.clone();
        let work = move || {
            let answered = answers.into_iter().filter_map(|(id, request, cancel)| {
                let result = match request {
                    Request::Now(result) => result,
                    Request::Call(ToolCall { tool, arguments, modern }) => {
                        server.call(&tool, arguments, modern, cancel)?
                    }
                    Request::Exit => Ok(Value::Null),
                    Request::Cancel(_) => return None,
                };
                Some(answer(&id?, result).trim_end().to_owned())
            });
            let answers: Vec<String> = answered.collect();
            (!answers.is_empty()).then(|| format!("[{}]\n", answers.join(",")))
        };
        if exits { Self::Exit(work()) } else { Self::Run(Job { calls, work: Box::new(work), cancelled }) }
    }
}
