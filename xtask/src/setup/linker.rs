//! Tools that cargo builds into the cache: bpf-linker, and what the checks use.

use super::Lock;
use crate::build;
use crate::report::{quietly, step};
use anyhow::{Context, Result};
use ringfence_ebpf_build::{BPF_LINKER_VERSION, bpf_linker_root, cache_dir, find};
use std::path::{Path, PathBuf};

/// Debian's LLVM that bpf-linker is built against: the one that rustc-web was built with.
const LLVM: &str = "/usr/lib/llvm-22";

/// Builds bpf-linker into the cache, unless there is one.
pub(crate) fn install() -> Result<()> {
    let Err(missing) = find() else { return Ok(()) };
    if !missing.bpf_linker {
        return Ok(());
    }
    let what =
        format!("building bpf-linker {BPF_LINKER_VERSION}, which links eBPF objects (about 2 minutes)");
    step(&what, || {
        let features = ["--no-default-features", "--features", "llvm-22"];
        // Its own build script looks for llvm-config by one of these, that of llvm-sys by the other.
        let environment = [
            ("LLVM_PREFIX", LLVM.to_owned()),
            ("LLVM_SYS_221_PREFIX", LLVM.to_owned()),
            ("RUSTFLAGS", format!("-L{LLVM}/lib")),
        ];
        cargo_install("bpf-linker", BPF_LINKER_VERSION, &features, &environment, &bpf_linker_root())
    })
}

/// One line if bpf-linker is missing.
pub(crate) fn missing_line() -> Option<String> {
    let missing = find().err()?;
    missing.bpf_linker.then(|| format!("bpf-linker {BPF_LINKER_VERSION}: links eBPF objects"))
}

fn cargo_install(
    name: &str,
    version: &str,
    options: &[&str],
    environment: &[(&str, String)],
    root: &Path,
) -> Result<()> {
    let parent = root.parent().context("a tool's root has no parent")?;
    std::fs::create_dir_all(parent).with_context(|| format!("cannot create {}", parent.display()))?;
    let made =
        tempfile::tempdir_in(parent).with_context(|| format!("cannot write to {}", parent.display()))?;
    let mut cargo = build::cargo();
    cargo.args(["install", "--quiet", "--locked", name, "--version", version]).args(options);
    cargo.arg("--root").arg(made.path().join("root")).arg("--target-dir").arg(made.path().join("target"));
    // A build script's backtrace would push its message out of what is shown.
    cargo.env_remove("CARGO_ENCODED_RUSTFLAGS").env("RUST_BACKTRACE", "0");
    for (key, value) in environment {
        cargo.env(key, value);
    }
    quietly(&mut cargo)?;
    std::fs::rename(made.path().join("root"), root)
        .with_context(|| format!("cannot move {name} to {}", root.display()))
}

/// A Rust program built into the cache, once for each version; returns its path.
pub(crate) fn installed_tool(name: &str, version: &str, why: &str) -> Result<PathBuf> {
    let root = cache_dir().join("tools").join(format!("{name}-{version}"));
    let program = root.join("bin").join(name);
    if !program.is_file() {
        let _lock = Lock::take()?;
        // Speed of building counts here, not of running.
        let quick = [("CARGO_PROFILE_RELEASE_LTO", "off"), ("CARGO_PROFILE_RELEASE_OPT_LEVEL", "0")]
            .map(|(key, value)| (key, value.to_owned()));
        let what = format!("building {name} {version}, which {why} (a few minutes, once)");
        step(&what, || cargo_install(name, version, &[], &quick, &root))?;
    }
    Ok(program)
}
