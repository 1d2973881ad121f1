//! Parameters and bodies of requests. Pure.

use super::refusal::{Refusal, sentence};
use axum::{
    Json,
    extract::{
        Query,
        rejection::{JsonRejection, QueryRejection},
    },
    http::StatusCode,
};
use ringfence_base::clock;
use ringfence_store::CallFilter;
use ringfence_wire::approvals::{ApprovalScope, Standing};
use serde::Deserialize;

/// Rows where nobody says how many.
const ROWS: u32 = 100;

/// The parameters of lists.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CallParams {
    risk: Option<String>,
    verdict: Option<String>,
    outcome: Option<String>,
    session: Option<String>,
    server: Option<String>,
    tool: Option<String>,
    before: Option<String>,
    container: Option<String>,
    limit: Option<String>,
}

pub(super) type CallQuery = Result<Query<CallParams>, QueryRejection>;

/// Which calls.
///
/// # Errors
/// An unknown parameter, or one that is not a number.
pub fn filter(query: CallQuery) -> Result<CallFilter, Refusal> {
    let refuse = |why: String| {
        let known = "Parameters are risk (0 to 100), verdict, outcome, session, server, tool, container, before and limit";
        Refusal::new(StatusCode::BAD_REQUEST, format!("{}. {known}.", sentence(&why)))
    };
    let Query(params) = query.map_err(|rejection| refuse(rejection.body_text()))?;
    // An empty field of a form asks for nothing.
    let text = |value: Option<String>| value.filter(|text| !text.is_empty());
    let number = |name: &str, value: Option<String>| {
        let parsed = text(value).map(|digits| digits.parse::<u32>().map_err(|_| (name.to_owned(), digits)));
        parsed.transpose().map_err(|(name, digits)| refuse(format!("{name} is not a number: {digits:?}")))
    };
    Ok(CallFilter {
        risk: number("risk", params.risk)?.map(|risk| u8::try_from(risk).unwrap_or(u8::MAX)),
        verdict: text(params.verdict),
        outcome: text(params.outcome),
        session: text(params.session),
        server: text(params.server),
        tool: text(params.tool),
        container: text(params.container),
        before: text(params.before),
        flagged: false,
        limit: number("limit", params.limit)?.unwrap_or(ROWS),
    })
}

/// The parameters of a session's standard error.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StderrParams {
    after: Option<u32>,
    limit: Option<u32>,
}

/// Which pieces: after which number, and how many.
///
/// # Errors
/// An unknown parameter, or one that is not a number.
pub fn stderr_page(query: Result<Query<StderrParams>, QueryRejection>) -> Result<(i64, u32), Refusal> {
    let Query(StderrParams { after, limit }) = query.map_err(|rejection| {
        let why = format!("{}. Parameters are after and limit, numbers.", sentence(&rejection.body_text()));
        Refusal::new(StatusCode::BAD_REQUEST, why)
    })?;
    Ok((i64::from(after.unwrap_or(0)), limit.unwrap_or(u32::MAX)))
}

/// The body of a POST as `T`.
pub(super) fn body<T>(body: Result<Json<T>, JsonRejection>) -> Result<T, Refusal> {
    body.map(|Json(value)| value).map_err(|rejection| Refusal::new(rejection.status(), rejection.body_text()))
}

/// A decision takes no parameters; an empty body is as good as an empty object.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Empty {}

/// The body of a decision.
///
/// # Errors
/// It is not empty.
pub fn empty(body: &[u8], verb: &str) -> Result<(), Refusal> {
    if !body.is_empty() && serde_json::from_slice::<Empty>(body).is_err() {
        return Err(Refusal::new(StatusCode::BAD_REQUEST, format!("The body of {verb} is empty or {{}}.")));
    }
    Ok(())
}

/// The body of an approval.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Approval {
    #[serde(default)]
    scope: Option<Scope>,
    /// RFC 3339.
    #[serde(default)]
    until: Option<String>,
    #[serde(default)]
    seconds: Option<u32>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Scope {
    Once,
    Arguments,
    Session,
    Tool,
    Container,
}

/// The body of an approval that is given `now`, µs since 1970: for which calls beside the one, if for others.
///
/// # Errors
/// It is no such object, or says two things at once.
pub fn approval(body: &[u8], now: i64) -> Result<Option<Standing>, Refusal> {
    let refuse = |why: &str| Err(Refusal::new(StatusCode::BAD_REQUEST, why.to_owned()));
    if body.is_empty() {
        return Ok(None);
    }
    // A list would be read as the values in their order.
    let is_object = body.trim_ascii_start().starts_with(b"{");
    let Some(Ok(Approval { scope, until, seconds })) = is_object.then(|| serde_json::from_slice(body)) else {
        return refuse(
            "The body of approve is empty, or an object with \"scope\" (once, arguments, session, tool or container) and \"until\" (RFC 3339) or \"seconds\".",
        );
    };
    let scope = match scope.unwrap_or(Scope::Once) {
        Scope::Once if until.is_some() || seconds.is_some() => {
            return refuse("An approval of one call has no time: it counts at once, and only once.");
        }
        Scope::Once => return Ok(None),
        Scope::Arguments => ApprovalScope::Arguments,
        Scope::Session => ApprovalScope::Session,
        Scope::Tool => ApprovalScope::Tool,
        Scope::Container => ApprovalScope::Container,
    };
    let until = match (until, seconds) {
        (Some(_), Some(_)) => return refuse("An approval has \"until\" or \"seconds\", not both."),
        (Some(text), None) => match clock::from_rfc3339(&text) {
            Some(until) => Some(until),
            None => return refuse("\"until\" is a time as RFC 3339 has it: 2026-01-31T17:30:00Z."),
        },
        (None, Some(seconds)) => Some(now.saturating_add(i64::from(seconds).saturating_mul(1_000_000))),
        (None, None) => None,
    };
    Ok(Some(Standing { scope, until }))
}

/// Which change is confirmed.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Confirmation {
    /// The rule file.
    pub path: String,
    /// The hash of its text.
    pub sha256: String,
}

#[cfg(test)]
mod tests {
    use super::approval;
    use ringfence_wire::approvals::{ApprovalScope, Standing};

    #[test]
    fn an_approval_is_for_one_call_unless_its_body_says_more() {
        let of = |body: &str| approval(body.as_bytes(), 1_000_000).ok();
        for once in ["", "{}", r#"{"scope":"once"}"#, r#"{"scope":null}"#] {
            assert_eq!(of(once), Some(None), "{once}");
        }
        let standing = |scope, until| Some(Some(Standing { scope, until }));
        assert_eq!(of(r#"{"scope":"session"}"#), standing(ApprovalScope::Session, None));
        assert_eq!(of(r#"{"scope":"tool","seconds":2}"#), standing(ApprovalScope::Tool, Some(3_000_000)));
        let until = r#"{"scope":"arguments","until":"1970-01-01T00:00:05Z"}"#;
        assert_eq!(of(until), standing(ApprovalScope::Arguments, Some(5_000_000)));
        for refused in [
            "[]",
            "x",
            r#"{"scope":"all"}"#,
            r#"{"seconds":5}"#,
            r#"{"scope":"once","until":"1970-01-01T00:00:05Z"}"#,
            r#"{"scope":"tool","seconds":-1}"#,
            r#"{"scope":"tool","seconds":1,"until":"1970-01-01T00:00:05Z"}"#,
            r#"{"scope":"tool","until":"tomorrow"}"#,
            r#"{"scope":"tool","for":1}"#,
        ] {
            assert_eq!(of(refused), None, "{refused}");
        }
    }
}
