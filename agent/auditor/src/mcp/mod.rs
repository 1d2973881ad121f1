//! MCP sessions: journals in, rows out, approvals between people and interceptors.

mod agent_line;
mod agent_lines;
pub(crate) mod approvals;
pub(crate) mod attribution;
mod claims;
mod connections;
mod egress_line;
mod intake;
pub(crate) mod link;
mod origin;
mod paces;
pub(crate) mod peers;
pub(crate) mod rule_changes;
mod rule_orders;
pub(crate) mod server;
mod session_link;
pub(crate) mod sessions;
pub(crate) mod tools;
pub(crate) mod upkeep;
pub(crate) mod waiting;
pub(crate) mod watchers;
pub(crate) mod writer;
