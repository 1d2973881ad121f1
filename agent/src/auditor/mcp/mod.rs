//! MCP sessions: journals in, rows out, approvals between people and interceptors.

pub(super) mod ingest;
mod intake;
pub(super) mod intent;
pub(crate) mod link;
pub(super) mod news;
pub(super) mod peers;
mod row;
mod rule_orders;
pub(super) mod server;
pub(super) mod sessions;
mod stderr;
pub(super) mod upkeep;
pub(super) mod waiting;
pub(super) mod writing;
