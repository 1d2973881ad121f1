//! Other parties' programs that ours are compared with: installed once, in the cache.

use crate::report::{quietly, step};
use anyhow::{Context, Result};
use ringfence_ebpf_build::cache_dir;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A virtual environment with a package of PyPI, given as `NAME==VERSION` or `NAME[EXTRA]==VERSION`.
pub(super) fn from_pypi(package: &str, what: &str) -> Result<PathBuf> {
    let (name, version) = package.split_once("==").context("a package of PyPI has a version")?;
    let name = name.split('[').next().unwrap_or(name);
    installed(&cache_dir().join(format!("{name}-{version}")), what, |place| {
        quietly(Command::new("python3").args(["-m", "venv", "--clear"]).arg(place))?;
        let pip = ["install", "--quiet", "--disable-pip-version-check", package];
        quietly(Command::new(place.join("bin/pip")).args(pip)).map(drop)
    })
}

/// A folder with a package of npm, given as `NAME@VERSION`.
pub(super) fn from_npm(package: &str, what: &str) -> Result<PathBuf> {
    let name = package.trim_start_matches('@').replace(['@', '/'], "-");
    installed(&cache_dir().join(name), what, |place| {
        fs::create_dir_all(place)?;
        let npm = ["install", "--ignore-scripts", "--no-audit", "--no-fund", "--prefix"];
        quietly(Command::new("npm").args(npm).arg(place).arg(package)).map(drop)
    })
}

/// A folder of the cache; what is in it is installed where it is not there yet.
fn installed(place: &Path, what: &str, install: impl FnOnce(&Path) -> Result<()>) -> Result<PathBuf> {
    // Written last: a folder without it was broken off.
    let whole = place.join("whole");
    if !whole.is_file() {
        step(&format!("installing {what}, to compare with"), || {
            install(place)?;
            fs::write(&whole, "").with_context(|| format!("cannot write {}", whole.display()))
        })?;
    }
    Ok(place.to_owned())
}
