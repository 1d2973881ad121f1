//! The REST API: routes, their parameters, their answers.

use super::{
    approvals, assets,
    dashboard::Dashboard,
    feed, gate, live,
    params::{self, CallQuery, StderrParams, filter},
    refusal::Refusal,
    rule_changes, rules, tools,
    work::{ask, blocking},
};
use crate::mcp::{server, waiting::Decider};
use axum::{
    Extension, Json, Router,
    body::Bytes,
    extract::{DefaultBodyLimit, Path, Query, State, rejection::QueryRejection},
    http::{Method, StatusCode, Uri},
    middleware,
    response::{IntoResponse, Response},
    routing::{delete, get, patch, post},
};
use ringfence_base::clock;
use ringfence_store::{CallFilter, Reader, SessionReader, Viewer};
use ringfence_wire::{
    approvals::Standing,
    tool_call::{Named as _, Outcome},
};
use serde_json::{Value, json};
use std::{sync::Arc, time::Duration};
use tokio::time;

/// Bytes of a request's body.
const LONGEST_BODY: usize = 64 << 10;
/// How long an interceptor may take to carry a decision out.
const DECIDED: Duration = Duration::from_secs(20);

type Shared = State<Arc<Dashboard>>;
/// Whose token it is: the gate put it there.
type Asking = Extension<Viewer>;
type Answer = Result<Json<Value>, Refusal>;

fn no_call(id: &str) -> Refusal {
    Refusal::new(StatusCode::NOT_FOUND, format!("There is no tool call with the id {id:?}."))
}

pub(super) fn router(dashboard: Arc<Dashboard>) -> Router {
    Router::new()
        .route("/api/sessions", get(sessions))
        .route("/api/sessions/{id}/tool-calls", get(session_calls))
        .route("/api/sessions/{id}/intents", get(intents))
        .route("/api/sessions/{id}/stderr", get(stderr))
        .route("/api/tool-calls", get(calls))
        .route("/api/tool-calls/flagged", get(flagged))
        .route("/api/tool-calls/{id}", get(call))
        .route("/api/tool-calls/{id}/approve", post(approve))
        .route("/api/tool-calls/{id}/deny", post(deny))
        .route("/api/intents", get(latest_intents))
        .route("/api/rules", get(rules::list).post(rule_changes::add))
        .route("/api/rules/{id}", patch(rule_changes::edit).delete(rule_changes::delete))
        .route("/api/rules/pending", get(rules::pending))
        .route("/api/rules/confirm", post(rules::confirm))
        .route("/api/servers", get(tools::servers))
        .route("/api/servers/{id}", get(tools::server).delete(tools::forget))
        .route("/api/tools/pending", get(tools::pending))
        .route("/api/tools/approve", post(tools::approve))
        .route("/api/tools/reject", post(tools::reject))
        .route("/api/waiting", get(waiting))
        .route("/api/approvals", get(approvals::list))
        .route("/api/approvals/{id}", delete(approvals::revoke))
        .route("/api/stats", get(stats))
        .route("/metrics", get(metrics))
        .route("/ws/live", get(live::upgrade))
        .fallback(other)
        .method_not_allowed_fallback(not_allowed)
        .layer(DefaultBodyLimit::max(LONGEST_BODY))
        .layer(middleware::from_fn_with_state(Arc::clone(&dashboard), gate::pass))
        .with_state(dashboard)
}

async fn other(method: Method, uri: Uri) -> Response {
    if (method == Method::GET || method == Method::HEAD)
        && let Some(file) = assets::find(uri.path())
    {
        return file;
    }
    Refusal::new(StatusCode::NOT_FOUND, format!("There is nothing at {:?}.", uri.path())).into_response()
}

async fn not_allowed(method: Method, uri: Uri) -> Refusal {
    Refusal::new(StatusCode::METHOD_NOT_ALLOWED, format!("{method} is not for {:?}.", uri.path()))
}

async fn list(dashboard: &Dashboard, viewer: Viewer, filter: CallFilter) -> Answer {
    ask(dashboard, move |reader| reader.calls(viewer, &filter)).await.map(|rows| Json(rows.into()))
}

async fn calls(State(dashboard): Shared, Extension(viewer): Asking, query: CallQuery) -> Answer {
    list(&dashboard, viewer, filter(query)?).await
}

async fn flagged(State(dashboard): Shared, Extension(viewer): Asking, query: CallQuery) -> Answer {
    list(&dashboard, viewer, CallFilter { flagged: true, ..filter(query)? }).await
}

async fn sessions(State(dashboard): Shared, Extension(viewer): Asking, query: CallQuery) -> Answer {
    let limit = filter(query)?.limit;
    let shared = Arc::clone(&dashboard.sessions);
    let rows = ask(&dashboard, move |reader| reader.sessions(viewer, limit)).await?;
    let linked = rows.into_iter().map(|mut row| {
        let up = row["id"].as_str().is_some_and(|id| shared.is_linked(id));
        row["linked"] = up.into();
        row
    });
    Ok(Json(linked.collect()))
}

async fn session_calls(
    State(dashboard): Shared,
    Extension(viewer): Asking,
    Path(id): Path<String>,
    query: CallQuery,
) -> Answer {
    let filter = CallFilter { session: Some(id.clone()), ..filter(query)? };
    known(&dashboard, viewer, id).await?;
    list(&dashboard, viewer, filter).await
}

async fn intents(State(dashboard): Shared, Extension(viewer): Asking, Path(id): Path<String>) -> Answer {
    known(&dashboard, viewer, id.clone()).await?;
    ask(&dashboard, move |reader| reader.intents(viewer, Some(&id), 1000)).await.map(|rows| Json(rows.into()))
}

async fn stderr(
    State(dashboard): Shared,
    Extension(viewer): Asking,
    Path(id): Path<String>,
    query: Result<Query<StderrParams>, QueryRejection>,
) -> Answer {
    let (after, limit) = params::stderr_page(query)?;
    known(&dashboard, viewer, id.clone()).await?;
    ask(&dashboard, move |reader| reader.stderr(viewer, &id, after, limit))
        .await
        .map(|rows| Json(rows.into()))
}

async fn latest_intents(State(dashboard): Shared, Extension(viewer): Asking, query: CallQuery) -> Answer {
    let filter = filter(query)?;
    let rows = ask(&dashboard, move |reader| reader.intents(viewer, filter.session.as_deref(), filter.limit))
        .await?;
    Ok(Json(rows.into()))
}

async fn known(dashboard: &Dashboard, viewer: Viewer, id: String) -> Result<Value, Refusal> {
    let session = id.clone();
    let row = ask(dashboard, move |reader| reader.session(viewer, &session)).await?;
    row.ok_or_else(|| Refusal::new(StatusCode::NOT_FOUND, format!("There is no session with the id {id:?}.")))
}

async fn call(State(dashboard): Shared, Extension(viewer): Asking, Path(id): Path<String>) -> Answer {
    let (sessions, wanted) = (Arc::clone(&dashboard.sessions), id.clone());
    let row = blocking(move || Ok(server::detail(&sessions, viewer, &wanted)?)).await?;
    row.map(Json).ok_or_else(|| no_call(&id))
}

async fn waiting(State(dashboard): Shared, Extension(viewer): Asking) -> Answer {
    let sessions = Arc::clone(&dashboard.sessions);
    blocking(move || Ok(Json(feed::waiting(&sessions, viewer)))).await
}

async fn stats(State(dashboard): Shared, Extension(viewer): Asking) -> Answer {
    let mut row = ask(&dashboard, move |reader| reader.stats(viewer)).await?;
    row["waiting"] = dashboard.sessions.waiting.count(viewer.0).into();
    row["linked"] = dashboard.sessions.linked_count(viewer.0).into();
    let pending = move |reader: &SessionReader| {
        let rows = reader.pending_rules(viewer)?;
        let left_out = rows.first().and_then(|row| row["left_out"].as_u64()).unwrap_or(0);
        Ok(rows.len() as u64 + left_out)
    };
    row["pending_rules"] = ask(&dashboard, pending).await?.into();
    row["pending_tools"] = ask(&dashboard, move |reader| reader.pending_tool_count(viewer)).await?.into();
    row["problems"] = blocking(move || Ok(rules::problems(&dashboard))).await?.into();
    Ok(Json(row))
}

async fn metrics(State(dashboard): Shared, Extension(viewer): Asking) -> Result<Response, Refusal> {
    let sessions = &dashboard.sessions;
    if viewer.0 != 0 && !sessions.is_own() {
        let error = "The metrics are of every user's sessions: they need the token of root's dashboard.";
        return Err(Refusal::new(StatusCode::FORBIDDEN, error));
    }
    let waiting = sessions.waiting.count(0);
    let db = sessions.db.clone();
    // A database that cannot be read is reported elsewhere; the other counts do not depend on it.
    let losses =
        blocking(move || Ok(Reader::open(&db).and_then(|reader| reader.losses()).unwrap_or_default()));
    let losses = losses.await?;
    let text = sessions.metrics.text(sessions.links.count(0), waiting, losses).map_err(|_| {
        Refusal::new(StatusCode::INTERNAL_SERVER_ERROR, "The metrics cannot be written as text.")
    })?;
    let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    Ok(([(axum::http::header::CONTENT_TYPE, kind)], text).into_response())
}

async fn approve(shared: Shared, viewer: Asking, id: Path<String>, body: Bytes) -> Answer {
    let standing = params::approval(&body, clock::now_micros())?;
    decide(shared, viewer, id, Wanted::Approve(standing)).await
}

async fn deny(shared: Shared, viewer: Asking, id: Path<String>, body: Bytes) -> Answer {
    params::empty(&body, "deny")?;
    decide(shared, viewer, id, Wanted::Deny).await
}

/// What a person decides.
enum Wanted {
    /// This call goes on, and others like it where that is said.
    Approve(Option<Standing>),
    Deny,
}

async fn decide(
    State(dashboard): Shared,
    Extension(viewer): Asking,
    Path(id): Path<String>,
    decision: Wanted,
) -> Answer {
    let wanted = id.clone();
    let row = ask(&dashboard, move |reader| reader.listed(viewer, &wanted)).await?;
    // Of a connection nothing is on record before it is decided, and its name is not one that a call can have.
    let is_connection = row.is_none() && dashboard.sessions.waiting.is_connection(&id, viewer.0);
    if row.is_none() && !is_connection {
        return Err(no_call(&id));
    }
    let approve = matches!(decision, Wanted::Approve(_));
    let mut approval = None;
    if let Wanted::Approve(Some(standing)) = decision {
        approval = Some(approvals::give(&dashboard, viewer, id.clone(), standing).await?);
    } else {
        let (shared, call) = (Arc::clone(&dashboard.sessions), id.clone());
        blocking(move || {
            let who = Decider::Dashboard { uid: viewer.0 };
            shared.waiting.decide(&call, approve, &who).map(drop).map_err(approvals::refusal)
        })
        .await?;
    }
    let Json(mut answer) = if is_connection {
        let outcome = if approve { Outcome::Approved } else { Outcome::Denied };
        Json(json!({ "id": id, "outcome": outcome.name() }))
    } else {
        outcome(&dashboard, viewer, &id, approve).await?
    };
    if let Some(approval) = approval {
        answer["approval"] = approval;
    }
    Ok(Json(answer))
}

/// What became of it, by the interceptor's own record: its clock may have run out at the same moment.
async fn outcome(dashboard: &Dashboard, viewer: Viewer, id: &str, approve: bool) -> Answer {
    let wanted = if approve { Outcome::Approved } else { Outcome::Denied }.name();
    let until = time::Instant::now() + DECIDED;
    while time::Instant::now() < until {
        let call = id.to_owned();
        let row = ask(dashboard, move |reader| reader.listed(viewer, &call)).await?;
        match row.as_ref().and_then(|row| row["decision"].as_str()) {
            None => time::sleep(Duration::from_millis(15)).await,
            Some(outcome) if outcome == wanted => return Ok(Json(json!({ "id": id, "outcome": outcome }))),
            Some(outcome) => {
                let error = format!("It came too late: the call is {outcome:?} already.");
                return Err(Refusal::new(StatusCode::CONFLICT, error));
            }
        }
    }
    Err(Refusal::new(
        StatusCode::GATEWAY_TIMEOUT,
        "The interceptor took the decision, but has not recorded what it did; look at the call again.",
    ))
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_manual_has_every_route() {
        let (source, manual) = (include_str!("api.rs"), include_str!("../../../../docs/mcp.md"));
        let routes: Vec<&str> =
            source.split(".route(\"").skip(1).filter_map(|rest| rest.split('"').next()).collect();
        assert!(routes.contains(&"/api/stats"), "{routes:?}");
        for route in routes {
            let path = route.replace("{id}", "ID");
            let is_there = ['`', '?'].iter().any(|end| manual.contains(&format!("{path}{end}")));
            assert!(is_there, "docs/mcp.md has no {path}");
        }
    }
}
