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
use ringfence_store::CallFilter;
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

/// Which change is confirmed.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Confirmation {
    /// The rule file.
    pub path: String,
    /// The hash of its text.
    pub sha256: String,
}
