//! Journals to rows.

#[path = "../../agent/src/auditor/mcp/ingest.rs"]
pub(crate) mod ingest;
#[path = "../../agent/src/auditor/mcp/intent.rs"]
pub(crate) mod intent;
#[path = "../../agent/src/auditor/mcp/row.rs"]
mod row;
#[path = "../../agent/src/auditor/mcp/stderr.rs"]
mod stderr;
