//! Approvals of more than one call by the API: what stands, giving one with a call's approval, ending one.

use super::{
    dashboard::Dashboard,
    refusal::{Refusal, sentence},
    rules::{PATIENCE, lane},
    work::{ask, blocking},
};
use crate::mcp::{
    approvals::NotApproved,
    waiting::{Decider, Refused},
};
use axum::{
    Extension, Json,
    extract::{Path, State},
    http::StatusCode,
};
use ringfence_base::clock;
use ringfence_store::{self as store, Viewer};
use ringfence_wire::approvals::Standing;
use serde_json::{Value, json};
use std::sync::Arc;

type Shared = State<Arc<Dashboard>>;
type Asking = Extension<Viewer>;
type Answer = Result<Json<Value>, Refusal>;

/// Why a call is not decided, as an answer.
pub(super) fn refusal(refused: Refused) -> Refusal {
    let status = match refused {
        Refused::NotYours { .. } | Refused::Descendant { .. } | Refused::Governed | Refused::Unknown(_) => {
            StatusCode::FORBIDDEN
        }
        Refused::Gone(_) | Refused::Unclear(_) | Refused::Lost => StatusCode::CONFLICT,
    };
    Refusal::new(status, format!("{}.", sentence(&refused.to_string())))
}

impl From<NotApproved> for Refusal {
    fn from(why: NotApproved) -> Self {
        let status = match why {
            NotApproved::Refused(refused) => return refusal(refused),
            NotApproved::Store(store::Error::TooManyApprovals) => StatusCode::CONFLICT,
            NotApproved::Store(error) => return error.into(),
            NotApproved::Invalid(_) => StatusCode::UNPROCESSABLE_ENTITY,
            NotApproved::Unknown(_) => StatusCode::NOT_FOUND,
        };
        Self::new(status, format!("{}.", sentence(&why.to_string())))
    }
}

/// The approvals that stand, newest first.
pub(super) async fn list(State(dashboard): Shared, Extension(viewer): Asking) -> Answer {
    let rows = ask(&dashboard, move |reader| reader.approvals(viewer, clock::now_micros())).await?;
    Ok(Json(rows.into()))
}

/// Approves a call that waits, and others like it: the approval.
pub(super) async fn give(
    dashboard: &Arc<Dashboard>,
    viewer: Viewer,
    call: String,
    standing: Standing,
) -> Result<Value, Refusal> {
    let lane = lane(dashboard, viewer, PATIENCE).await?;
    let sessions = Arc::clone(&dashboard.sessions);
    blocking(move || {
        let who = Decider::Dashboard { uid: viewer.0 };
        let (_, approval) = sessions.approve_for(&call, &standing, &who, lane)?;
        Ok(approval)
    })
    .await
}

/// Ends an approval.
pub(super) async fn revoke(
    State(dashboard): Shared,
    Extension(viewer): Asking,
    Path(id): Path<String>,
) -> Answer {
    let lane = lane(&dashboard, viewer, PATIENCE).await?;
    let revoked = blocking(move || {
        let by = format!("uid {}, dashboard", viewer.0);
        Ok(dashboard.sessions.revoke_approval(viewer, &id, &by, lane)?)
    });
    Ok(Json(json!({ "revoked": revoked.await? })))
}
