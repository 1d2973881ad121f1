//! What is tried on everything that reads hostile bytes: one call for each target, and what must hold after it whatever the
//! bytes were. libFuzzer runs them (`cargo xtask fuzz`, with the feature `libfuzzer`), and every test run replays the corpus.

// A broken promise is a panic: that is what a fuzzer sees.
#![allow(clippy::expect_used, reason = "a broken promise is a panic")]

pub mod auditor_targets;
mod guest;
pub mod http_targets;
pub mod llm_targets;
pub mod names_targets;
pub mod oauth_targets;
pub mod remote_targets;
mod roles;
pub mod targets;
pub mod web_targets;
