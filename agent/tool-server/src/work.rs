//! What a client's line comes to: nothing, an answer, work for a thread, the end of a call or of the session.

use super::server::{Fault, Server, answer, error};
use ringfence_grant::gate::Cancel;
use ringfence_session::{
    line::{self, Id, Line, Refusal, Refused},
    strict::{self, Ambiguity},
};
use serde_json::Value;
use std::sync::Arc;

/// Most messages of a batch: their answers are held until the last is there.
const MAX_BATCH: usize = 100;

/// What a request asks for.
pub enum Ask {
    /// Answered at once.
    Now(Result<Value, Fault>),
    /// A tool's call.
    Call(Called),
    /// A call's end.
    Cancel(Cancelled),
    /// The end of the session; the answer first, if one is due.
    Exit,
}

/// Which tool, with what.
pub struct Called {
    pub tool: String,
    pub arguments: Value,
    pub modern: bool,
}

/// What a line comes to.
pub(crate) enum Work {
    Nothing,
    /// An answer that waits for nobody.
    Now(String),
    /// The answer to a call that needed no thread.
    Decided(String),
    Later(Later),
    Cancel(Cancelled),
    Exit(Option<String>),
}

/// What a thread has to do for a line.
pub(crate) struct Later {
    pub calls: Vec<(Id, Cancel)>,
    pub work: Box<dyn FnOnce() -> Option<String> + Send>,
    /// What the same line cancels.
    pub cancelled: Vec<Cancelled>,
}

/// What the client does not wait for any more.
pub struct Cancelled {
    pub id: Id,
    pub reason: String,
}

impl Cancelled {
    /// Nothing, where no request is named beyond doubt: whatever it was goes on.
    pub fn read(params: Option<&str>) -> Option<Self> {
        let members = strict::object(params?, &["requestId", "reason"]).ok()?;
        let id = Id::parse(members.find("requestId")?)?;
        let reason = members.find("reason").and_then(|reason| serde_json::from_str(reason).ok());
        Some(Self { id, reason: reason.unwrap_or_else(|| "the client gave no reason".to_owned()) })
    }
}

impl Work {
    pub(crate) fn of(server: &Arc<Server>, line: &[u8]) -> Self {
        match line::read(line) {
            Ok(Line::Blank) => Self::Nothing,
            Ok(Line::Message(message)) => Self::single(server, server.ask(&message)),
            Ok(Line::Batch(messages)) if messages.len() > MAX_BATCH => {
                let text = format!("a batch of {} messages; at most {MAX_BATCH}", messages.len());
                Self::Now(error(&Id::Null, Fault::new(-32600, text)))
            }
            Ok(Line::Batch(messages)) => {
                Self::batch(server, messages.iter().filter_map(|m| server.ask(m)).collect())
            }
            Err(Refused { reason, id }) => {
                let code = match reason {
                    Refusal::Ambiguous(Ambiguity::Syntax(_) | Ambiguity::Encoding(_)) => -32700,
                    Refusal::Ambiguous(_) | Refusal::Shape(_) => -32600,
                    Refusal::Call(_) => -32602,
                };
                Self::Now(error(&id.unwrap_or(Id::Null), Fault::new(code, reason.to_string())))
            }
        }
    }

    fn single(server: &Arc<Server>, ask: Option<(Option<Id>, Ask)>) -> Self {
        match ask {
            None => Self::Nothing,
            Some((id, Ask::Exit)) => Self::Exit(id.map(|id| answer(&id, Ok(Value::Null)))),
            Some((_, Ask::Cancel(cancelled))) => Self::Cancel(cancelled),
            // Only what has an id is asked.
            Some((None, _)) => Self::Nothing,
            Some((Some(id), Ask::Now(result))) => Self::Now(answer(&id, result)),
            Some((Some(id), Ask::Call(call))) => Self::call(server, id, call),
        }
    }

    /// A call is begun here, where that takes no time: one that ends there wakes no other thread.
    fn call(server: &Arc<Server>, id: Id, Called { tool, arguments, modern }: Called) -> Self {
        let cancel = Cancel::default();
        let calls = vec![(id.clone(), cancel.clone())];
        let server = server.clone();
        let work: Box<dyn FnOnce() -> Option<String> + Send> = if server.registry.authorizes_without_io(&tool)
        {
            match server.registry.authorize(&tool, arguments, &server.granted, cancel) {
                Ok(begun) => Box::new(move || Some(answer(&id, server.run(begun, modern)?))),
                Err(error) => {
                    return match server.outcome(Err(error), modern) {
                        Some(result) => Self::Decided(answer(&id, result)),
                        None => Self::Nothing,
                    };
                }
            }
        } else {
            Box::new(move || Some(answer(&id, server.call(&tool, arguments, modern, cancel)?)))
        };
        Self::Later(Later { calls, work, cancelled: Vec::new() })
    }

    /// One line with every answer, once the last is there. The calls of a batch run one after the other.
    fn batch(server: &Arc<Server>, asks: Vec<(Option<Id>, Ask)>) -> Self {
        let (mut calls, mut cancelled, mut answers) = (Vec::new(), Vec::new(), Vec::new());
        let mut exits = false;
        for (id, ask) in asks {
            let cancel = Cancel::default();
            let ask = match ask {
                Ask::Cancel(what) => {
                    cancelled.push(what);
                    continue;
                }
                other => other,
            };
            exits |= matches!(ask, Ask::Exit);
            if let (Ask::Call(_), Some(id)) = (&ask, &id) {
                calls.push((id.clone(), cancel.clone()));
            }
            answers.push((id, ask, cancel));
        }
        let server = server.clone();
        let work = move || {
            let answered = answers.into_iter().filter_map(|(id, ask, cancel)| {
                let result = match ask {
                    Ask::Now(result) => result,
                    Ask::Call(Called { tool, arguments, modern }) => {
                        server.call(&tool, arguments, modern, cancel)?
                    }
                    Ask::Exit => Ok(Value::Null),
                    Ask::Cancel(_) => return None,
                };
                Some(answer(&id?, result).trim_end().to_owned())
            });
            let answers: Vec<String> = answered.collect();
            (!answers.is_empty()).then(|| format!("[{}]\n", answers.join(",")))
        };
        if exits { Self::Exit(work()) } else { Self::Later(Later { calls, work: Box::new(work), cancelled }) }
    }
}
