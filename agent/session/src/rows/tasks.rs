//! What an answer to a call is: a result, an error of the tool's, an error of the protocol's, or a task whose result comes
//! later, in the answer to another request. Pure.
//!
//! A server that takes a call as a task (`tasks/...`, since the protocol of 2025-11-25) answers it at once with the task's
//! id. The client asks for the result by that (`tasks/result`; or `tasks/get`, whose answer has it where the task is over),
//! and may cancel it (`tasks/cancel`).

use super::row::bounded;
use ringfence_wire::tool_call::Outcome;
use serde::Deserialize;
use serde_json::value::RawValue;
use std::collections::HashMap;

/// Tasks of one session that are remembered. What is beyond them stays a task without a result.
const MOST: usize = 1024;
/// Longest id of a task that is remembered, bytes.
const LONGEST: usize = 256;

/// The tasks of a session that have no result yet.
#[derive(Debug, Default)]
pub(super) struct Tasks {
    /// The call that each was made for, and whether the client cancelled that before it became a task.
    calls: HashMap<String, (String, bool)>,
}

/// What a request asks of a task.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Asked {
    Result,
    State,
    Cancel,
}

/// A request about a task, until it is answered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct TaskRequest {
    asked: Asked,
    task: String,
}

/// What is known of a task's call now.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Later {
    /// It has its answer: the call, what that is, and its text.
    Answer(String, Outcome, String),
    /// It was cancelled.
    Cancelled(String),
}

/// What of a result tells anything. A value of any kind may stand there.
#[derive(Debug, Default, Deserialize)]
struct Told<'a> {
    #[serde(borrow, default, rename = "isError")]
    is_error: Option<&'a RawValue>,
    #[serde(borrow, default)]
    task: Option<&'a RawValue>,
    #[serde(borrow, default, rename = "resultType")]
    kind: Option<&'a RawValue>,
    #[serde(borrow, default, rename = "taskId")]
    id: Option<&'a RawValue>,
    #[serde(borrow, default)]
    status: Option<&'a RawValue>,
    #[serde(borrow, default)]
    result: Option<&'a RawValue>,
    #[serde(borrow, default)]
    error: Option<&'a RawValue>,
}

/// What an object tells; of anything else nothing.
fn told(json: &str) -> Told<'_> {
    let is_object = json.trim_start().starts_with('{');
    if is_object { serde_json::from_str(json).unwrap_or_default() } else { Told::default() }
}

fn text(value: Option<&RawValue>) -> Option<String> {
    serde_json::from_str(value?.get()).ok()
}

/// What a result of a call is: answered, or an error that the tool reports.
fn of_result(result: &str) -> Outcome {
    // Most results say nothing of it, and are not read for it.
    if memchr::memmem::find(result.as_bytes(), b"isError").is_none() {
        return Outcome::Answered;
    }
    let is_error = told(result).is_error.is_some_and(|value| value.get() == "true");
    if is_error { Outcome::ToolError } else { Outcome::Answered }
}

impl Tasks {
    /// What the answer to a call is. A task is remembered with the call. `is_cancelled`: that the client cancelled the call is
    /// known already, and is not told again.
    pub(super) fn answer(&mut self, call: &str, is_cancelled: bool, answer: Result<&str, &str>) -> Outcome {
        let Ok(result) = answer else { return Outcome::Error };
        if memchr::memmem::find(result.as_bytes(), b"taskId").is_some() {
            let of = told(result);
            let inner = of.task.map(|task| told(task.get())).unwrap_or_default();
            let own = of.id.filter(|_| text(of.kind).as_deref() == Some("task"));
            if let Some(task) = text(inner.id.or(own)) {
                if self.calls.len() < MOST && task.len() <= LONGEST {
                    self.calls.insert(task, (call.to_owned(), is_cancelled));
                }
                return Outcome::Task;
            }
        }
        of_result(result)
    }

    /// What a request of the client's asks of a task that is known.
    pub(super) fn request(&self, method: &str, params: Option<&str>) -> Option<TaskRequest> {
        let asked = match method {
            "tasks/result" => Asked::Result,
            "tasks/get" => Asked::State,
            "tasks/cancel" => Asked::Cancel,
            _ => return None,
        };
        let task = text(told(params?).id)?;
        self.calls.contains_key(&task).then_some(TaskRequest { asked, task })
    }

    /// What the answer to such a request tells of the call.
    pub(super) fn later(&mut self, request: &TaskRequest, answer: Result<&str, &str>) -> Option<Later> {
        let (what, json) = match (request.asked, answer) {
            (Asked::Result, Ok(result)) => (Some(of_result(result)), result),
            (Asked::Result, Err(error)) => (Some(Outcome::Error), error),
            // That something cannot be said or cancelled tells nothing of the task.
            (_, Err(_)) => return None,
            (Asked::Cancel, Ok(_)) => (None, ""),
            (Asked::State, Ok(state)) => {
                let of = told(state);
                match (text(of.status).as_deref(), of.result, of.error) {
                    (Some("cancelled"), ..) => (None, ""),
                    (Some("completed"), Some(result), _) => (Some(of_result(result.get())), result.get()),
                    (Some("failed"), _, Some(error)) => (Some(Outcome::Error), error.get()),
                    // It goes on, or the client asks for the result next.
                    _ => return None,
                }
            }
        };
        let (call, is_cancelled) = self.calls.remove(&request.task)?;
        match what {
            None => (!is_cancelled).then_some(Later::Cancelled(call)),
            Some(Outcome::Answered) => Some(Later::Answer(call, Outcome::TaskAnswered, bounded(json))),
            Some(error) => Some(Later::Answer(call, error, bounded(json))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Later, MOST, Tasks};
    use ringfence_wire::tool_call::Outcome;

    #[test]
    fn an_answer_is_a_result_an_error_or_a_task() {
        let mut tasks = Tasks::default();
        for (answer, expected) in [
            (Ok(r#"{"content":[]}"#), Outcome::Answered),
            (Ok(r#"{"content":[],"isError":true}"#), Outcome::ToolError),
            (Ok(r#"{"isError" : true , "content":[]}"#), Outcome::ToolError),
            (Ok(r#"{"content":[{"isError":true}],"isError":false}"#), Outcome::Answered),
            (Ok(r#"{"content":[],"isError":"true"}"#), Outcome::Answered),
            (Ok(r#"[true,"isError"]"#), Outcome::Answered),
            (Ok("\"isError\""), Outcome::Answered),
            (Ok("null"), Outcome::Answered),
            (Ok(r#"{"task":{"taskId":"t","status":"working"}}"#), Outcome::Task),
            (Ok(r#"{"resultType":"task","taskId":"u","status":"working"}"#), Outcome::Task),
            (Ok(r#"{"content":[],"structuredContent":{"taskId":"t"},"taskId":"t"}"#), Outcome::Answered),
            (Err(r#"{"code":-32603}"#), Outcome::Error),
        ] {
            assert_eq!(tasks.answer("c", false, answer), expected, "{answer:?}");
        }
        assert_eq!(tasks.calls.len(), 2);
    }

    #[test]
    fn a_task_has_one_later_answer() {
        let task = |id: &str| format!(r#"{{"task":{{"taskId":"{id}"}}}}"#);
        let params = |id: &str| format!(r#"{{"taskId":"{id}"}}"#);
        let later = |method: &str, answer: Result<&str, &str>| {
            let mut tasks = Tasks::default();
            tasks.answer("c", false, Ok(&task("t")));
            let request = tasks.request(method, Some(&params("t"))).expect("it is known");
            let later = tasks.later(&request, answer);
            assert!(later.is_none() || tasks.later(&request, answer).is_none(), "once");
            later
        };
        let answered = |outcome, text: &str| Some(Later::Answer("c".into(), outcome, text.into()));
        let cancelled = || Some(Later::Cancelled("c".into()));
        assert_eq!(later("tasks/result", Ok("{}")), answered(Outcome::TaskAnswered, "{}"));
        let failed = r#"{"isError":true}"#;
        assert_eq!(later("tasks/result", Ok(failed)), answered(Outcome::ToolError, failed));
        assert_eq!(later("tasks/result", Err("{}")), answered(Outcome::Error, "{}"));
        assert_eq!(later("tasks/get", Ok(r#"{"status":"working"}"#)), None);
        assert_eq!(later("tasks/get", Ok(r#"{"status":"completed"}"#)), None, "its result is asked for next");
        let done = r#"{"status":"completed","result":{"a":1}}"#;
        assert_eq!(later("tasks/get", Ok(done)), answered(Outcome::TaskAnswered, r#"{"a":1}"#));
        let broken = r#"{"status":"failed","error":{"code":1}}"#;
        assert_eq!(later("tasks/get", Ok(broken)), answered(Outcome::Error, r#"{"code":1}"#));
        assert_eq!(later("tasks/get", Ok(r#"{"status":"cancelled"}"#)), cancelled());
        assert_eq!(later("tasks/get", Err("{}")), None);
        assert_eq!(later("tasks/cancel", Ok("{}")), cancelled());
        assert_eq!(later("tasks/cancel", Err("{}")), None);
        let tasks = Tasks::default();
        assert_eq!(tasks.request("tasks/result", Some(&params("t"))), None, "nobody's");
    }

    #[test]
    fn hostile_tasks_do_not_fill_it() {
        let mut tasks = Tasks::default();
        for n in 0..2 * MOST {
            tasks.answer("c", false, Ok(&format!(r#"{{"task":{{"taskId":"{n}"}}}}"#)));
        }
        tasks.answer("c", false, Ok(&format!(r#"{{"task":{{"taskId":"{}"}}}}"#, "x".repeat(300))));
        assert_eq!(tasks.calls.len(), MOST);
    }
}
