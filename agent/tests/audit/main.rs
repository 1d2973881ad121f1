//! MCP sessions' record and rules against those who would change them.

#![cfg(target_os = "linux")]
#![expect(clippy::expect_used, reason = "a test says what it expected")]

mod record;
mod rules;
mod stored_rules;
mod support;
