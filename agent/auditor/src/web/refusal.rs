//! An answer that refuses, with the reason.

use axum::{
    Json,
    http::StatusCode,
    response::{IntoResponse, Response},
};
use ringfence_base::error::chain;
use ringfence_store as store;
use serde_json::json;

/// An answer that refuses, with the reason.
#[derive(Debug)]
pub struct Refusal {
    status: StatusCode,
    error: String,
}

impl Refusal {
    pub(super) fn new(status: StatusCode, error: impl Into<String>) -> Self {
        Self { status, error: error.into() }
    }
}

impl From<store::Error> for Refusal {
    fn from(error: store::Error) -> Self {
        if error.is_late() {
            let why = "The audit store is busy and did not answer in time; try again.";
            return Self::new(StatusCode::SERVICE_UNAVAILABLE, why);
        }
        Self::new(
            StatusCode::INTERNAL_SERVER_ERROR,
            format!("The audit store cannot answer: {}.", chain(&error)),
        )
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        let mut response = (self.status, Json(json!({ "error": self.error }))).into_response();
        response.extensions_mut().insert(Reason(self.error));
        response
    }
}

/// The reason in an answer that refuses, for the log.
#[derive(Debug, Clone)]
pub(super) struct Reason(pub(super) String);

/// With a capital letter.
pub(super) fn sentence(text: &str) -> String {
    let mut letters = text.chars();
    letters.next().map(|first| first.to_uppercase().chain(letters).collect()).unwrap_or_default()
}
