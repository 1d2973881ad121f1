//! Work that may block: it runs beside the runtime, on threads that users take turns at.

use super::{dashboard::Dashboard, gate, refusal::Refusal};
use axum::http::StatusCode;
use ringfence_store::{self as store, SessionReader};
use std::{sync::Arc, time::Duration};
use tokio::task;

/// How long the store may take for an answer.
const QUESTION: Duration = Duration::from_secs(10);

/// Asks the store beside the runtime.
pub(super) async fn ask<T: Send + 'static>(
    dashboard: &Dashboard,
    question: impl FnOnce(&SessionReader) -> Result<T, store::Error> + Send + 'static,
) -> Result<T, Refusal> {
    let sessions = Arc::clone(&dashboard.sessions);
    blocking(move || Ok(sessions.readers.ask_within(QUESTION, question)?)).await
}

/// Does what may block, when the asker's turn has a thread for it. The turn lasts as long as the work: a client that hangs up
/// does not end it.
pub(super) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, Refusal> + Send + 'static,
) -> Result<T, Refusal> {
    let gone =
        |_| Refusal::new(StatusCode::INTERNAL_SERVER_ERROR, "The work for this answer was broken off.");
    let turn = gate::turn();
    let thread = match &turn {
        Some(turn) => Some(turn.thread().await),
        None => None,
    };
    let work = move || {
        let _held = (thread, turn);
        work()
    };
    task::spawn_blocking(work).await.map_err(gone)?
}
