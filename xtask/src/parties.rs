//! Real MCP servers and clients behind the interceptor, and MCP's conformance suite: tests/mcp, with their npm and PyPI packages in the cache.

use crate::build;
use crate::npm;
use crate::paths::{target, workspace};
use crate::python;
use crate::vm_test::Tally;
use anyhow::Result;
use std::path::PathBuf;
use std::process::Command;

/// Name of the npm packages' folder.
const NAME: &str = "mcp";
/// Major versions of PyPI's `mcp`, each with a file of what it needs.
const PYTHON: [u32; 2] = [1, 2];

/// Runs every pair of a server and a client; each counts.
pub(crate) fn tests() -> Result<Tally> {
    build::package_binary("ringfence", "ringfence", "dev")?;
    let binary = target().join("debug/ringfence");
    let environments = PYTHON.map(|version| Ok((version, environment(version)?)));
    let environments = environments.into_iter().collect::<Result<Vec<_>>>()?;
    let prepare = |node: &mut Command| {
        node.env("RINGFENCE", &binary);
        for (version, place) in &environments {
            node.env(format!("PYTHON_MCP_{version}"), place);
        }
    };
    let mut all = npm::run(&folder(), NAME, "parties.test.mjs", "MCP servers and SDKs", prepare)?;
    let conformance = npm::run(&folder(), NAME, "conformance.test.mjs", "MCP's conformance suite", prepare)?;
    all.passed += conformance.passed;
    all.failed.extend(conformance.failed);
    Ok(all)
}

/// Installs what is missing.
pub(crate) fn install() -> Result<()> {
    npm::packages(&folder(), NAME)?;
    PYTHON.iter().try_for_each(|version| environment(*version).map(drop))
}

/// One line for each missing part.
pub(crate) fn missing_lines() -> Vec<String> {
    let mut missing = Vec::new();
    if !npm::place(&folder(), NAME).is_ok_and(|place| npm::is_installed(&place)) {
        missing.push(
            "npm packages: MCP servers and the TypeScript SDKs, for the interceptor's tests".to_owned(),
        );
    }
    for version in PYTHON {
        if !python::is_installed(&requirements(version), &name(version)) {
            missing.push(format!("Python packages: MCP's SDK {version}, for the interceptor's tests"));
        }
    }
    missing
}

fn folder() -> PathBuf {
    workspace().join("tests/mcp")
}

fn requirements(version: u32) -> PathBuf {
    folder().join(format!("requirements-{version}.txt"))
}

/// A virtual environment with these very packages; made where it is not there yet.
fn environment(version: u32) -> Result<PathBuf> {
    python::environment(&requirements(version), &name(version), &format!("MCP's Python SDK {version}"))
}

fn name(version: u32) -> String {
    format!("mcp-{version}")
}
