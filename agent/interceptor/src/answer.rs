//! The messages that the interceptor makes itself: to the client, in place of an answer that the server never gave.

use super::judged::JudgedCall;
use ringfence_session::line::Id;
use serde_json::{Value, json};

/// Why a call was not forwarded, in words that a model can act on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StopReason<'a> {
    /// A rule or the score blocks it.
    Blocked,
    /// Nobody approved it in time (seconds).
    Timeout(u64),
    /// This person denied it.
    Denied(&'a str),
    /// Nobody could approve it.
    NoApprover,
    /// It could not be recorded.
    Unrecorded(&'a str),
    /// Another call of its batch was stopped.
    Batch,
}

/// The answer to a tool call that was stopped: a tool result with `isError`, so that the model sees the reason. Ends
/// with a newline.
pub fn stopped(call: &JudgedCall, why: &StopReason<'_>) -> String {
    let JudgedCall { id, tool, risk, judgement, held, exceptions: _ } = call;
    let score = risk.score;
    let because = match (judgement.rules.as_slice(), risk.reasons.as_slice()) {
        ([], []) => format!("risk {score}"),
        ([], reasons) => format!("risk {score}: {}", reasons.join(", ")),
        (rules, []) => format!("rule {}, risk {score}", rules.join(", ")),
        (rules, reasons) => format!("rule {}, risk {score}: {}", rules.join(", "), reasons.join(", ")),
    };
    let text = match (why, held) {
        (StopReason::Blocked, Some(held)) => format!(
            "Ringfence refused the call of {tool:?}: {held}, and nobody has approved that. It was not run. Do not try it in another form; ask the person you work for: `ringfence mcp pin` and the dashboard show them what changed, and they can approve it there."
        ),
        (why, _) => reason(why, tool, &because),
    };
    let result = json!({ "content": [{ "type": "text", "text": text }], "isError": true });
    id.answer("result", &result)
}

/// Why a call was stopped, in words.
fn reason(why: &StopReason<'_>, tool: &str, because: &str) -> String {
    match why {
        StopReason::Blocked => format!(
            "Ringfence refused the call of {tool:?} ({because}). It was not run. Do not try it in another form; ask the person you work for: they can change the rule, or do it themselves."
        ),
        StopReason::Timeout(seconds) => format!(
            "Ringfence held the call of {tool:?} for approval ({because}) and nobody approved it within {seconds} s. It was not run. Ask the person you work for to watch `ringfence approvals` or the dashboard, then try again."
        ),
        StopReason::Denied(by) => format!(
            "A person ({by}) denied the call of {tool:?} ({because}). It was not run. Ask them what they want instead."
        ),
        StopReason::NoApprover => format!(
            "The call of {tool:?} needs approval ({because}) and nobody can give it: Ringfence's auditor is not reachable. It was not run."
        ),
        StopReason::Unrecorded(error) => format!(
            "Ringfence could not record the call of {tool:?} ({error}), and a call that is not recorded is not run. Free the disk, or start the interceptor with `--on-audit-failure allow`."
        ),
        StopReason::Batch => format!(
            "The call of {tool:?} stands in a batch with a call that was refused or needs approval; the batch was not run. Send the calls one by one."
        ),
    }
}

/// The answer to a message that could not be judged: JSON-RPC's "invalid request". Ends with a newline.
pub fn invalid(id: Option<&Id>, reason: &str) -> String {
    let error = json!({
        "code": -32600,
        "message": format!("Ringfence did not forward this message: {reason}. (`ringfence mcp --lenient` forwards what it cannot judge.)"),
    });
    id.unwrap_or(&Id::Null).answer("error", &error)
}

/// The answer where the server could not be started. Ends with a newline.
pub(crate) fn no_server(id: &Id, reason: &str) -> String {
    id.answer("error", &json!({ "code": -32603, "message": reason }))
}

/// Progress of a paused call, where the client gave a token: it keeps some clients from giving up. Ends with a newline.
pub fn progress(token: &Value, waited: u64, limit: u64) -> String {
    let params = json!({
        "progressToken": token, "progress": waited, "total": limit,
        "message": "waiting for a person to approve this call in Ringfence",
    });
    format!("{}\n", json!({ "jsonrpc": "2.0", "method": "notifications/progress", "params": params }))
}
