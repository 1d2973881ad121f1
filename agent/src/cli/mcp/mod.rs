//! `ringfence mcp`: MCP servers behind the interceptor, and what is on record of their sessions.

mod intercept;
mod rules;
mod sessions;
mod wrap;

pub(crate) use intercept::{Args, GuardArgs, guard, run};
pub(crate) use rules::{Args as RulesArgs, run as rules};
pub(crate) use sessions::{CallsArgs, SessionsArgs, StatsArgs, calls, sessions, stats};
