//! Servers and their tools by the API: the inventory, what waits for a person, and decisions about it.

use super::{
    dashboard::Dashboard,
    params,
    refusal::{Refusal, sentence},
    rules::{PATIENCE, lane},
    work::{ask, blocking},
};
use crate::mcp::tools::{self, NotDecided, ToolDecision};
use axum::{
    Extension, Json,
    extract::{Path, State, rejection::JsonRejection},
    http::StatusCode,
};
use ringfence_base::error::chain;
use ringfence_store::{Decided, Viewer};
use serde::Deserialize;
use serde_json::{Value, json};
use std::sync::Arc;

type Shared = State<Arc<Dashboard>>;
type Asking = Extension<Viewer>;
type Answer = Result<Json<Value>, Refusal>;

/// Which definition of which tool is decided about.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Named {
    /// The server's id.
    server: i64,
    /// The tool.
    tool: String,
    /// Hash of the definition that was shown.
    sha256: String,
}

impl From<NotDecided> for Refusal {
    fn from(why: NotDecided) -> Self {
        let status = match why {
            NotDecided::Store(error) => return error.into(),
            NotDecided::Stored(_) => StatusCode::SERVICE_UNAVAILABLE,
            NotDecided::Refused(Decided::Unknown) => StatusCode::NOT_FOUND,
            NotDecided::Refused(Decided::Roots) => StatusCode::FORBIDDEN,
            NotDecided::Refused(_) => StatusCode::CONFLICT,
        };
        Self::new(status, format!("{}.", sentence(&chain(&why))))
    }
}

/// All servers of the asker's sessions.
pub(super) async fn servers(State(dashboard): Shared, Extension(viewer): Asking) -> Answer {
    ask(&dashboard, move |reader| reader.inventory(viewer, None)).await.map(|rows| Json(rows.into()))
}

/// One server, or all of one name, with their tools and changes.
pub(super) async fn server(
    State(dashboard): Shared,
    Extension(viewer): Asking,
    Path(id): Path<String>,
) -> Answer {
    let wanted = id.clone();
    let rows = ask(&dashboard, move |reader| reader.inventory(viewer, Some(&wanted))).await?;
    if rows.is_empty() {
        let error = format!("There is no server {id:?} in the inventory.");
        return Err(Refusal::new(StatusCode::NOT_FOUND, error));
    }
    Ok(Json(rows.into()))
}

/// Tools that wait for a person, with what changed.
pub(super) async fn pending(State(dashboard): Shared, Extension(viewer): Asking) -> Answer {
    ask(&dashboard, move |reader| tools::pending(reader, viewer, None)).await.map(|rows| Json(rows.into()))
}

/// Trusts what a tool says now.
pub(super) async fn approve(
    shared: Shared,
    viewer: Asking,
    posted: Result<Json<Named>, JsonRejection>,
) -> Answer {
    decide(shared, viewer, posted, true).await
}

/// Has it stay away from clients.
pub(super) async fn reject(
    shared: Shared,
    viewer: Asking,
    posted: Result<Json<Named>, JsonRejection>,
) -> Answer {
    decide(shared, viewer, posted, false).await
}

async fn decide(
    State(dashboard): Shared,
    Extension(viewer): Asking,
    posted: Result<Json<Named>, JsonRejection>,
    approve: bool,
) -> Answer {
    let Named { server, tool, sha256 } = params::body(posted)?;
    make(dashboard, viewer, ToolDecision::Tool { server, tool, sha256, approve }).await?;
    Ok(Json(json!({ "decided": if approve { "approved" } else { "rejected" } })))
}

/// Forgets a server and what is pinned of it.
pub(super) async fn forget(
    State(dashboard): Shared,
    Extension(viewer): Asking,
    Path(id): Path<String>,
) -> Answer {
    let Ok(server) = id.parse() else {
        let error = format!("{id:?} is no id of a server: those are numbers, which /api/servers has.");
        return Err(Refusal::new(StatusCode::BAD_REQUEST, error));
    };
    make(dashboard, viewer, ToolDecision::Forget { server }).await?;
    Ok(Json(json!({ "forgotten": true })))
}

async fn make(dashboard: Arc<Dashboard>, viewer: Viewer, decision: ToolDecision) -> Result<(), Refusal> {
    let lane = lane(&dashboard, viewer, PATIENCE).await?;
    let by = format!("uid {}, dashboard", viewer.0);
    blocking(move || Ok(dashboard.sessions.decide_tool(viewer, &decision, &by, lane)?)).await
}
