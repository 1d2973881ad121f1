//! Drives the dashboard's page in Chromium: tests/dashboard, with its npm packages in the cache.

use crate::build;
use crate::npm;
use crate::paths::{target, workspace};
use crate::vm_test::Tally;
use anyhow::Result;

/// Runs every test of the page, and of what pages of other sites can do; each counts.
pub(crate) fn tests() -> Result<Tally> {
    build::package_binary("ringfence", "ringfence", "dev")?;
    // Cargo's name for the folder of the profile `dev`.
    let binary = target().join("debug/ringfence");
    let tests = workspace().join("tests/dashboard");
    let run = |file: &str, what: &str| {
        npm::run(&tests, "dashboard", file, what, |node| {
            node.env("RINGFENCE", &binary);
        })
    };
    let mut tally = run("dashboard.test.mjs", "dashboard in Chromium")?;
    let pages = run("pages.test.mjs", "pages of other sites in Chromium")?;
    tally.passed += pages.passed;
    tally.failed.extend(pages.failed);
    Ok(tally)
}
