//! The LLM worker among others' software: tests/llm, with its npm and PyPI packages in the cache.

use crate::build;
use crate::npm;
use crate::paths::{target, workspace};
use crate::python;
use crate::vm_test::Tally;
use anyhow::Result;
use std::path::PathBuf;

/// Name of the packages' folders.
const NAME: &str = "llm";
/// What pip is to install, while it does.
const PYTHON: &str = "the providers' Python SDKs";

/// Runs every test; each counts.
pub(crate) fn tests() -> Result<Tally> {
    build::package_binary("ringfence", "ringfence", "dev")?;
    build::package_binary("ringfence-guest", "ringfence-runtime", "dev")?;
    let (binary, runtime) = (target().join("debug/ringfence"), target().join("debug/ringfence-runtime"));
    let environment = python::environment(&requirements(), NAME, PYTHON)?;
    npm::run(&folder(), NAME, "parties.test.mjs", "LLM mocks, SDKs and MCP servers", |node| {
        node.env("RINGFENCE", &binary).env("RINGFENCE_RUNTIME", &runtime).env("PYTHON_LLM", &environment);
    })
}

/// Installs what is missing.
pub(crate) fn install() -> Result<()> {
    npm::packages(&folder(), NAME)?;
    python::environment(&requirements(), NAME, PYTHON).map(drop)
}

/// One line for each missing part.
pub(crate) fn missing_lines() -> Vec<String> {
    let mut missing = Vec::new();
    if !npm::place(&folder(), NAME).is_ok_and(|place| npm::is_installed(&place)) {
        missing.push(
            "npm packages: a mock of LLM providers, an MCP server, for the LLM worker's tests".to_owned(),
        );
    }
    if !python::is_installed(&requirements(), NAME) {
        missing.push(format!("Python packages: {PYTHON}, for the LLM worker's tests"));
    }
    missing
}

fn folder() -> PathBuf {
    workspace().join("tests/llm")
}

fn requirements() -> PathBuf {
    folder().join("requirements.txt")
}
