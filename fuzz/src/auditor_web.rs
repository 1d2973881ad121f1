//! The rooms of the dashboard that read requests.

#[path = "../../agent/src/auditor/web/asked.rs"]
mod asked;
#[path = "../../agent/src/auditor/web/headers.rs"]
mod headers;
#[path = "../../agent/src/auditor/web/refusal.rs"]
mod refusal;
#[path = "web_targets.rs"]
pub mod targets;
