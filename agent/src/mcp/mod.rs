//! The interceptor role: one MCP stdio session, every line judged, recorded and forwarded as it came.

pub(crate) mod answer;
pub(crate) mod classify;
pub(crate) mod client;
pub(crate) mod export;
pub(crate) mod follow;
pub(crate) mod forward;
pub(crate) mod guard;
pub(crate) mod heads;
pub(crate) mod journal;
pub(crate) mod ledger;
pub(crate) mod line;
pub(crate) mod lines;
pub(crate) mod link;
pub(crate) mod notice;
pub(crate) mod ready;
pub(crate) mod redact;
pub(crate) mod reload;
pub(crate) mod risk;
pub(crate) mod rules;
pub(crate) mod ruleset;
pub(crate) mod seen;
pub(crate) mod session;
pub(crate) mod sql;
pub(crate) mod state;
pub(crate) mod strict;
pub(crate) mod wrap;
