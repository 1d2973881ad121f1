//! Python packages of tests: a virtual environment in the cache for each file that says what is in it.

use crate::digest;
use crate::report::{quietly, step};
use anyhow::{Context, Result, bail};
use ringfence_ebpf_build::cache_dir;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The environment's folder of the cache. It may be empty yet.
fn place(requirements: &Path, name: &str) -> Result<PathBuf> {
    let text = fs::read(requirements).with_context(|| format!("cannot read {}", requirements.display()))?;
    let key = digest::short(&[&text]);
    Ok(cache_dir().join(format!("python-{name}-{key}")))
}

/// Whether the environment is there, whole.
pub(crate) fn is_installed(requirements: &Path, name: &str) -> bool {
    // Written last: a folder without it was broken off.
    place(requirements, name).is_ok_and(|place| place.join("whole").is_file())
}

/// A virtual environment with these very packages; made where it is not there yet. `what` is said of them meanwhile.
pub(crate) fn environment(requirements: &Path, name: &str, what: &str) -> Result<PathBuf> {
    let place = place(requirements, name)?;
    if is_installed(requirements, name) {
        return Ok(place);
    }
    step(&format!("pip install ({what})"), || {
        quietly(Command::new("python3").args(["-m", "venv", "--clear"]).arg(&place))
            .context("python3 cannot make a virtual environment; Debian has that in python3-venv")?;
        let pip = place.join("bin/pip");
        let packages = ["install", "--quiet", "--disable-pip-version-check", "--requirement"];
        quietly(Command::new(&pip).args(packages).arg(requirements))?;
        fs::write(place.join("whole"), "").with_context(|| format!("cannot write in {}", place.display()))
    })?;
    if !place.join("bin/python").exists() {
        bail!("pip succeeded, but left no environment in {}", place.display());
    }
    Ok(place)
}
