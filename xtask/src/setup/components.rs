//! The parts of the Rust toolchain that checks and the tool runner use, which a minimal rustup leaves out.

use crate::report::{quietly, say, step};
use anyhow::{Context, Result};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

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

/// The target of programs that start often: with musl, because glibc asks the processor some 80 times what it is before a
/// program begins, and a virtual machine's answers take microseconds each. Adds it to the toolchain if it is not there;
/// where that fails, it is glibc's, which does the same and starts later. Tried, and said, once in a process.
pub(crate) fn quick_target() -> &'static str {
    static TARGET: OnceLock<String> = OnceLock::new();
    TARGET.get_or_init(find_quick_target)
}

fn find_quick_target() -> String {
    let musl = musl();
    if has_target(&musl) {
        return musl;
    }
    let what = format!("adding {musl} to the Rust toolchain, for the tool runner");
    match step(&what, || quietly(Command::new("rustup").args(["target", "add", &musl]))) {
        Ok(_) if has_target(&musl) => return musl,
        Ok(_) => say(&format!("the compiler does not find {musl}")),
        Err(error) => say(&format!("{error:#}")),
    }
    say(
        "the tool runner is linked with glibc instead: each start takes some 0.3 ms more in a virtual machine",
    );
    format!("{}-unknown-linux-gnu", std::env::consts::ARCH)
}

/// One line for each missing part.
pub(super) fn missing_lines() -> Vec<String> {
    let mut lines: Vec<String> =
        missing().iter().map(|name| format!("Rust component {name}: the checks run it")).collect();
    let musl = musl();
    if !has_target(&musl) {
        lines.push(format!("Rust target {musl}: the tool runner's shims start faster with it"));
    }
    lines
}

fn musl() -> String {
    format!("{}-unknown-linux-musl", std::env::consts::ARCH)
}

/// Whether the compiler has the standard library for a target: rustc itself knows every target's name.
fn has_target(target: &str) -> bool {
    let rustc = beside_cargo("rustc").unwrap_or_else(|| "rustc".into());
    let asked = quietly(Command::new(rustc).args(["--print", "target-libdir", "--target", target]));
    asked.is_ok_and(|folder| Path::new(folder.trim()).is_dir())
}

fn missing() -> Vec<&'static str> {
    let is_there = |program| beside_cargo(program).is_none_or(|path| path.is_file());
    COMPONENTS.iter().filter(|(_, program)| !is_there(program)).map(|(name, _)| *name).collect()
}

/// Where a program of the toolchain that runs us is, or would be.
fn beside_cargo(program: &str) -> Option<PathBuf> {
    Some(PathBuf::from(std::env::var_os("CARGO")?).with_file_name(program))
}

#[cfg(test)]
mod tests {
    use super::has_target;

    #[test]
    fn only_what_can_be_built_for_is_there() {
        assert!(has_target(&format!("{}-unknown-linux-gnu", std::env::consts::ARCH)));
        assert!(!has_target("mipsel-sony-psp"));
        assert!(!has_target("no-such-target"));
    }
}
