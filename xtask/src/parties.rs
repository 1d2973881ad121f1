//! Real MCP servers and clients behind the interceptor: tests/mcp, with their npm and PyPI packages in the cache.

use crate::build;
use crate::digest;
use crate::npm;
use crate::paths::{target, workspace};
use crate::report::{quietly, step};
use crate::vm_test::Tally;
use anyhow::{Context, Result, bail};
use ringfence_ebpf_build::cache_dir;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Name of the npm packages' folder.
const NAME: &str = "mcp";
/// Major versions of PyPI's `mcp`, each with a file of what it needs.
const PYTHON: [u32; 2] = [1, 2];

/// Runs every pair of a server and a client; each counts.
pub(crate) fn tests() -> Result<Tally> {
    build::binary("dev")?;
    let binary = target().join("debug/ringfence");
    let environments = PYTHON.map(|version| Ok((version, environment(version)?)));
    let environments = environments.into_iter().collect::<Result<Vec<_>>>()?;
    npm::run(&folder(), NAME, "parties.test.mjs", "MCP servers and SDKs", |node| {
        node.env("RINGFENCE", &binary);
        for (version, place) in &environments {
            node.env(format!("PYTHON_MCP_{version}"), place);
        }
    })
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
        if !place(version).is_ok_and(|(place, _)| is_whole(&place)) {
            missing.push(format!("Python packages: MCP's SDK {version}, for the interceptor's tests"));
        }
    }
    missing
}

fn folder() -> PathBuf {
    workspace().join("tests/mcp")
}

/// The folder of the cache for one version, and the file that says what is in it.
fn place(version: u32) -> Result<(PathBuf, PathBuf)> {
    let requirements = folder().join(format!("requirements-{version}.txt"));
    let text = fs::read(&requirements).with_context(|| format!("cannot read {}", requirements.display()))?;
    let key = digest::short(&[&text]);
    Ok((cache_dir().join(format!("python-mcp-{version}-{key}")), requirements))
}

/// Written last: a folder without it was broken off.
fn is_whole(place: &Path) -> bool {
    place.join("whole").is_file()
}

/// A virtual environment with these very packages; made where it is not there yet.
fn environment(version: u32) -> Result<PathBuf> {
    let (place, requirements) = place(version)?;
    if is_whole(&place) {
        return Ok(place);
    }
    step(&format!("pip install (MCP's Python SDK {version})"), || {
        quietly(Command::new("python3").args(["-m", "venv", "--clear"]).arg(&place))
            .context("python3 cannot make a virtual environment; Debian has that in python3-venv")?;
        let pip = place.join("bin/pip");
        let packages = ["install", "--quiet", "--disable-pip-version-check", "--requirement"];
        quietly(Command::new(&pip).args(packages).arg(&requirements))?;
        fs::write(place.join("whole"), "").with_context(|| format!("cannot write in {}", place.display()))
    })?;
    if !place.join("bin/python").exists() {
        bail!("pip succeeded, but left no environment in {}", place.display());
    }
    Ok(place)
}
