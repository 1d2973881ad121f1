//! The parts of the Rust toolchain that checks use, which a minimal rustup leaves out.

use crate::report::{quietly, step};
use anyhow::{Context, Result};
use std::path::PathBuf;
use std::process::Command;

const COMPONENTS: [(&str, &str); 2] = [("clippy", "cargo-clippy"), ("rustfmt", "cargo-fmt")];

/// Adds clippy and rustfmt to the toolchain that runs us, if they are not there.
pub(crate) fn install() -> Result<()> {
    let missing = missing();
    if missing.is_empty() {
        return Ok(());
    }
    let what = format!("adding {} to the Rust toolchain, for the checks", missing.join(" and "));
    step(&what, || quietly(Command::new("rustup").args(["component", "add"]).args(&missing)))
        .context("without rustup, install clippy and rustfmt beside cargo by hand")?;
    Ok(())
}

/// One line for each missing component.
pub(super) fn missing_lines() -> Vec<String> {
    missing().iter().map(|name| format!("Rust component {name}: the checks run it")).collect()
}

fn missing() -> Vec<&'static str> {
    let Some(cargo) = std::env::var_os("CARGO").map(PathBuf::from) else { return Vec::new() };
    COMPONENTS
        .iter()
        .filter(|(_, program)| !cargo.with_file_name(program).is_file())
        .map(|(name, _)| *name)
        .collect()
}
