//! Changing rules by the API: a rule is added, edited, switched, moved and deleted, or tried on calls on record first.

use super::{
    dashboard::Dashboard,
    params,
    refusal::{Refusal, sentence},
    rule_form::{NewRule, patched, unprocessable, validate},
    rules::{PATIENCE, lane},
    work::{ask, blocking},
};
use crate::mcp::rule_changes::NotChanged;
use axum::{
    Extension, Json,
    extract::{
        Path, Query, State,
        rejection::{JsonRejection, QueryRejection},
    },
    http::StatusCode,
};
use ringfence_base::error::chain;
use ringfence_store::{self as store, Changed, Viewer};
use ringfence_wire::mcp::RuleChange;
use serde::Deserialize;
use serde_json::{Map, Value, json};
use std::sync::Arc;

/// Most days that a trial goes back.
const MOST_DAYS: u32 = 366;

type Shared = State<Arc<Dashboard>>;
type Asking = Extension<Viewer>;
type Answer = Result<(StatusCode, Json<Value>), Refusal>;
type Body<T> = Result<Json<T>, JsonRejection>;

/// The parameters of a change.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct How {
    /// Change nothing, and say what it would have meant for the calls of the last so many days.
    dry_run: Option<u32>,
}

type HowQuery = Result<Query<How>, QueryRejection>;

/// What of a rule is to be another, beside what a rule has.
#[derive(Debug, Deserialize)]
pub(super) struct Patch {
    /// The version that was looked at.
    version: i64,
    /// A person agreed that the rule becomes looser.
    #[serde(default)]
    agreed: bool,
    enabled: Option<bool>,
    place: Option<u32>,
    /// Keys of a rule.
    #[serde(flatten)]
    parts: Map<String, Value>,
}

/// The body of a deletion.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Deletion {
    /// The version that was looked at.
    version: i64,
    /// A person agreed that calls are judged more mildly without the rule.
    #[serde(default)]
    agreed: bool,
}

impl From<NotChanged> for Refusal {
    fn from(why: NotChanged) -> Self {
        let status = match &why {
            NotChanged::Store(store::Error::TooManyRules) => StatusCode::CONFLICT,
            NotChanged::Store(_) => {
                let NotChanged::Store(error) = why else { return unprocessable("it cannot be changed") };
                return error.into();
            }
            NotChanged::Stored { .. } => {
                let text = format!("{}.", sentence(&chain(&why)));
                return Self::new(StatusCode::SERVICE_UNAVAILABLE, text);
            }
            NotChanged::Invalid(_)
            | NotChanged::Refused(Changed::Renamed | Changed::OtherKind | Changed::TooManyPatterns(_)) => {
                StatusCode::UNPROCESSABLE_ENTITY
            }
            NotChanged::Refused(Changed::Loosens(_)) => {
                let text =
                    format!("{}; say that this is meant with \"agreed\": true.", sentence(&why.to_string()));
                return Self::new(StatusCode::PRECONDITION_REQUIRED, text);
            }
            NotChanged::Refused(Changed::Unknown) => StatusCode::NOT_FOUND,
            NotChanged::Refused(Changed::NotYours) => StatusCode::FORBIDDEN,
            NotChanged::Refused(_) => StatusCode::CONFLICT,
        };
        Self::new(status, format!("{}.", sentence(&why.to_string())))
    }
}

/// Adds a rule to the database and puts it in force.
pub(super) async fn add(
    State(dashboard): Shared,
    Extension(viewer): Asking,
    how: HowQuery,
    posted: Body<NewRule>,
) -> Answer {
    let posted = params::body(posted)?;
    let agreed = posted.agreed;
    let rule = validate(posted)?;
    make(dashboard, viewer, RuleChange::Add { rule }, (how, agreed)).await
}

/// Changes a rule: what it has, whether it is on, or where it is. One of the three at a time, as the ledger has them.
pub(super) async fn edit(
    State(dashboard): Shared,
    Extension(viewer): Asking,
    Path(id): Path<String>,
    how: HowQuery,
    posted: Body<Patch>,
) -> Answer {
    let Patch { version, agreed, enabled, place, parts } = params::body(posted)?;
    let change = match (enabled, place, parts.is_empty()) {
        (Some(enabled), None, true) => RuleChange::Switch { id, version, enabled },
        (None, Some(place), true) => RuleChange::Move { id, version, place },
        (None, None, false) => {
            let wanted = id.clone();
            let rule = ask(&dashboard, move |reader| reader.stored_rule(viewer, &wanted)).await?;
            let rule = rule.ok_or(NotChanged::Refused(Changed::Unknown))?;
            RuleChange::Edit { rule: patched(&rule, parts)?, id, version }
        }
        _ => {
            return Err(unprocessable(
                "a change has one of: \"enabled\", \"place\", or what the rule is to be otherwise",
            ));
        }
    };
    make(dashboard, viewer, change, (how, agreed)).await
}

/// Deletes a rule.
pub(super) async fn delete(
    State(dashboard): Shared,
    Extension(viewer): Asking,
    Path(id): Path<String>,
    how: HowQuery,
    posted: Body<Deletion>,
) -> Answer {
    let Deletion { version, agreed } = params::body(posted)?;
    make(dashboard, viewer, RuleChange::Delete { id, version }, (how, agreed)).await
}

/// Makes a change, or only tries it on calls on record.
async fn make(
    dashboard: Arc<Dashboard>,
    viewer: Viewer,
    change: RuleChange,
    (how, agreed): (HowQuery, bool),
) -> Answer {
    let Query(How { dry_run }) = how.map_err(|rejection| {
        let why =
            format!("{}. The parameter is dry_run, a number of days.", sentence(&rejection.body_text()));
        Refusal::new(StatusCode::BAD_REQUEST, why)
    })?;
    if let Some(days) = dry_run {
        if !(1..=MOST_DAYS).contains(&days) {
            let why = format!("A dry run goes back from 1 to {MOST_DAYS} days.");
            return Err(Refusal::new(StatusCode::BAD_REQUEST, why));
        }
        let sessions = Arc::clone(&dashboard.sessions);
        let tried =
            ask(&dashboard, move |reader| Ok(sessions.try_rule(reader, viewer, &change, days))).await?;
        return Ok((StatusCode::OK, Json(tried?)));
    }
    let lane = lane(&dashboard, viewer, PATIENCE).await?;
    let is_new = matches!(change, RuleChange::Add { .. });
    let is_gone = matches!(change, RuleChange::Delete { .. });
    let row = blocking(move || {
        let by = format!("uid {}, dashboard", viewer.0);
        Ok(dashboard.sessions.change_rule(viewer, &change, (&by, agreed), lane)?)
    });
    let row = row.await?;
    if is_new {
        return Ok((StatusCode::CREATED, Json(row)));
    }
    Ok((StatusCode::OK, Json(if is_gone { json!({ "deleted": true }) } else { row })))
}
