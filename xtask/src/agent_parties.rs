//! Coding agents, unmodified, under `ringfence run`: tests/agents, with their npm packages in the cache.

use crate::build;
use crate::npm;
use crate::paths::{target, workspace};
use crate::vm_test::Tally;
use anyhow::Result;
use std::path::PathBuf;

/// Name of the packages' folders.
const NAME: &str = "agents";

/// Runs every test; each counts.
pub(crate) fn tests() -> Result<Tally> {
    build::binary("dev")?;
    build::package_binary("ringfence-guest", "ringfence-runtime", "dev")?;
    let (binary, runtime) = (target().join("debug/ringfence"), target().join("debug/ringfence-runtime"));
    npm::run(&folder(), NAME, "agents.test.mjs", "coding agents under `ringfence run`", |node| {
        node.env("RINGFENCE", &binary).env("RUNTIME", &runtime);
        node.env("PROFILES", workspace().join("profiles/agents"));
    })
}

/// Installs what is missing.
pub(crate) fn install() -> Result<()> {
    npm::packages(&folder(), NAME).map(drop)
}

/// A line if a part is missing.
pub(crate) fn missing_lines() -> Vec<String> {
    let is_there = npm::place(&folder(), NAME).is_ok_and(|place| npm::is_installed(&place));
    let line = "npm packages: coding agents, for the tests of `ringfence run` (800 MB)".to_owned();
    if is_there { Vec::new() } else { vec![line] }
}

fn folder() -> PathBuf {
    workspace().join("tests/agents")
}
