//! The pure rooms of the interceptor.

#[path = "../../agent/src/mcp/classify.rs"]
pub(crate) mod classify;
#[path = "../../agent/src/mcp/line.rs"]
pub(crate) mod line;
#[path = "../../agent/src/mcp/plain.rs"]
pub(crate) mod plain;
#[path = "../../agent/src/mcp/redact.rs"]
pub(crate) mod redact;
#[path = "../../agent/src/mcp/risk.rs"]
pub(crate) mod risk;
#[path = "../../agent/src/mcp/rules.rs"]
pub(crate) mod rules;
#[path = "../../agent/src/mcp/sql.rs"]
pub(crate) mod sql;
#[path = "../../agent/src/mcp/strict.rs"]
pub(crate) mod strict;
