//! Drives the dashboard's page in Chromium: tests/dashboard, with its npm packages in the cache.

use crate::build;
use crate::npm;
use crate::paths::{target, workspace};
use crate::vm_test::Tally;
use anyhow::Result;

/// Runs every test of the page; each counts.
pub(crate) fn tests() -> Result<Tally> {
    build::binary("dev")?;
    // Cargo's name for the folder of the profile `dev`.
    let binary = target().join("debug/ringfence");
    let tests = workspace().join("tests/dashboard");
    npm::run(&tests, "dashboard", "dashboard.test.mjs", "dashboard in Chromium", |node| {
        node.env("RINGFENCE", &binary);
    })
}
