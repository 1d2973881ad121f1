//! Drives the dashboard's page in Chromium: tests/dashboard, with its npm packages in the cache.

use crate::build;
use crate::digest;
use crate::paths::{target, workspace};
use crate::report::{brief, quietly, say};
use crate::tap::Tap;
use crate::vm_test::Tally;
use anyhow::{Context, Result, bail};
use ringfence_ebpf_build::cache_dir;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// What says which npm packages.
const MANIFESTS: [&str; 2] = ["package.json", "package-lock.json"];

/// Runs every test of the page; each counts.
pub(crate) fn tests() -> Result<Tally> {
    build::binary("dev")?;
    // Cargo's name for the folder of the profile `dev`.
    let binary = target().join("debug/ringfence");
    let tests = workspace().join("tests/dashboard");
    let place = packages(&tests)?;
    // Beside the packages, where node looks for them; the checkout stays clean.
    for entry in fs::read_dir(&tests).with_context(|| format!("cannot read {}", tests.display()))? {
        let path = entry.with_context(|| format!("cannot read {}", tests.display()))?.path();
        if path.extension().is_some_and(|extension| extension == "mjs") {
            let to = place.join(path.file_name().unwrap_or_default());
            fs::copy(&path, &to).with_context(|| format!("cannot copy {}", path.display()))?;
        }
    }
    let mut node = Command::new("node");
    node.args(["--test", "--test-reporter=tap", "dashboard.test.mjs"]).current_dir(&place);
    node.env("RINGFENCE", &binary).stdin(Stdio::null());
    let output = node.output().context("cannot start node")?;
    let said = String::from_utf8_lossy(&output.stdout);
    let mut tap = Tap::default();
    // Node's own summary ends the results; without it they are not whole.
    let whole = said.lines().any(|line| line.starts_with("# pass "));
    // What belongs to one test is indented, and not a result.
    for line in said.lines().filter(|line| !line.starts_with(' ')) {
        tap.line(line);
    }
    if !output.status.success() && tap.failed.is_empty() {
        tap.failed.push(format!("node ended with {}, but no test failed", output.status));
    }
    if !whole || tap.passed == 0 {
        tap.failed.push("the results are not whole".to_owned());
    }
    if !tap.failed.is_empty() {
        println!("{said}{}", String::from_utf8_lossy(&output.stderr));
    }
    say(&format!("dashboard in Chromium: {} passed, {} failed", tap.passed, tap.failed.len()));
    let failed = tap.failed.into_iter().map(|name| format!("dashboard: {name}")).collect();
    Ok(Tally { passed: tap.passed, failed })
}

/// The folder of the cache with these very packages; installs them where it is not there yet.
fn packages(tests: &Path) -> Result<PathBuf> {
    let mut texts = Vec::new();
    for name in MANIFESTS {
        let path = tests.join(name);
        texts.push(fs::read(&path).with_context(|| format!("cannot read {}", path.display()))?);
    }
    let key = digest::short(&texts.iter().map(Vec::as_slice).collect::<Vec<_>>());
    let place = cache_dir().join(format!("dashboard-{key}"));
    // npm's last act; a folder without it was broken off.
    if place.join("node_modules/.package-lock.json").is_file() {
        return Ok(place);
    }
    fs::create_dir_all(&place).with_context(|| format!("cannot make {}", place.display()))?;
    for (name, text) in MANIFESTS.iter().zip(&texts) {
        let path = place.join(name);
        fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
    }
    brief("npm ci (the dashboard's tests)", || {
        quietly(
            Command::new("npm")
                .args(["ci", "--ignore-scripts", "--no-audit", "--no-fund"])
                .current_dir(&place),
        )
    })?;
    if !place.join("node_modules/.package-lock.json").is_file() {
        bail!("npm ci succeeded, but left no packages in {}", place.display());
    }
    Ok(place)
}
