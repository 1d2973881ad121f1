//! The confined shell, from outside: calls through a registry, real programs, real files.

#![expect(clippy::unwrap_used, clippy::expect_used, reason = "a test's helpers may fail the test")]

mod bash;
mod denied;
mod runs;
mod support;
