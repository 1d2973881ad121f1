//! Tests that run in Node: their npm packages in the cache, their results as TAP.

use crate::digest;
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

/// The folder of the cache for the packages of `tests`, whose contents are in its name. It may be empty yet.
pub(crate) fn place(tests: &Path, name: &str) -> Result<PathBuf> {
    let mut texts = Vec::new();
    for manifest in MANIFESTS {
        let path = tests.join(manifest);
        texts.push(fs::read(&path).with_context(|| format!("cannot read {}", path.display()))?);
    }
    let key = digest::short(&texts.iter().map(Vec::as_slice).collect::<Vec<_>>());
    Ok(cache_dir().join(format!("{name}-{key}")))
}

/// Whether its packages are there, whole.
pub(crate) fn is_installed(place: &Path) -> bool {
    // npm's last act; a folder without it was broken off.
    place.join("node_modules/.package-lock.json").is_file()
}

/// The folder of the cache with these very packages; installs them where it is not there yet.
pub(crate) fn packages(tests: &Path, name: &str) -> Result<PathBuf> {
    let place = place(tests, name)?;
    if is_installed(&place) {
        return Ok(place);
    }
    fs::create_dir_all(&place).with_context(|| format!("cannot make {}", place.display()))?;
    for manifest in MANIFESTS {
        copy(&tests.join(manifest), &place)?;
    }
    brief(&format!("npm ci ({name})"), || {
        quietly(
            Command::new("npm")
                .args(["ci", "--ignore-scripts", "--no-audit", "--no-fund"])
                .current_dir(&place),
        )
    })?;
    if !is_installed(&place) {
        bail!("npm ci succeeded, but left no packages in {}", place.display());
    }
    Ok(place)
}

/// Runs a test file of `tests` with its packages; each test counts. `prepare` adds to its environment.
pub(crate) fn run(
    tests: &Path,
    name: &str,
    file: &str,
    what: &str,
    prepare: impl FnOnce(&mut Command),
) -> Result<Tally> {
    let packages = packages(tests, name)?.join("node_modules");
    // A folder of this run's own: another checkout's tests may be running from the same packages. The checkout stays clean.
    let place = tempfile::Builder::new().prefix("ringfence-tests-").tempdir();
    let place = place.context("cannot make a temporary folder for the tests")?;
    std::os::unix::fs::symlink(&packages, place.path().join("node_modules"))
        .with_context(|| format!("cannot link {} into {}", packages.display(), place.path().display()))?;
    for entry in fs::read_dir(tests).with_context(|| format!("cannot read {}", tests.display()))? {
        let path = entry.with_context(|| format!("cannot read {}", tests.display()))?.path();
        if path.extension().is_some_and(|extension| extension == "mjs" || extension == "py") {
            copy(&path, place.path())?;
        }
    }
    let mut node = Command::new("node");
    node.args(["--test", "--test-reporter=tap", file]).current_dir(&place).stdin(Stdio::null());
    prepare(&mut node);
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
    say(&format!("{what}: {} passed, {} failed", tap.passed, tap.failed.len()));
    let failed = tap.failed.into_iter().map(|test| format!("{name}: {test}")).collect();
    Ok(Tally { passed: tap.passed, failed })
}

fn copy(file: &Path, place: &Path) -> Result<()> {
    let to = place.join(file.file_name().unwrap_or_default());
    fs::copy(file, &to).with_context(|| format!("cannot copy {}", file.display()))?;
    Ok(())
}
