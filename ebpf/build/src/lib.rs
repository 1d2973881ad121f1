//! Builds the eBPF object: finds a toolchain for the BPF target and runs a nested cargo over `ebpf/`.
//!
//! Used by `agent/bpf/build.rs`, which embeds the object, and by `cargo xtask`. The object has its own target
//! directory, because its target, flags and often its compiler differ from the host's.

mod cache;
mod strip;
mod toolchain;

pub use cache::{BPF_LINKER_VERSION, bpf_linker_root, cache_dir};
pub use strip::without_dwarf;
pub use toolchain::{Kind, Missing, Toolchain, find};

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::process::Command;

/// The target triple of the eBPF object (little-endian, as every supported host is).
pub const TARGET: &str = "bpfel-unknown-none";

/// Why the eBPF object could not be built.
#[derive(Debug, thiserror::Error)]
pub enum BuildError {
    /// No usable toolchain; says which parts are missing.
    #[error("cannot build the eBPF programs: {0}. Run `cargo xtask setup`, which installs what is missing")]
    Toolchain(Missing),
    /// cargo could not be started at all.
    #[error("cannot start `{program}` to build the eBPF programs")]
    Start {
        /// What was to be run.
        program: String,
        /// What the system said.
        source: std::io::Error,
    },
    /// The nested cargo failed; its own output says why.
    #[error(
        "building the eBPF programs failed ({status}); the compiler's messages are above. Command: {command}"
    )]
    Failed {
        /// How the nested cargo ended.
        status: std::process::ExitStatus,
        /// The command line, for repeating it by hand.
        command: String,
    },
    /// cargo succeeded and left no object where one was expected.
    #[error("the eBPF build left no object at {}", .0.display())]
    NoObject(PathBuf),
}

/// Builds the eBPF object of the sources in `ebpf_dir` for a host of `arch` (Rust's name: `x86_64`), with
/// `target_dir` as the nested cargo's own target directory. Returns the object's path.
///
/// # Errors
/// No toolchain, or the nested build failed; each says what to do.
pub fn build(ebpf_dir: &Path, target_dir: &Path, arch: &str) -> Result<PathBuf, BuildError> {
    let toolchain = find().map_err(BuildError::Toolchain)?;
    let mut command = cargo(&toolchain, ebpf_dir, target_dir, arch);
    let status = command.status().map_err(|source| BuildError::Start {
        program: command.get_program().to_string_lossy().into_owned(),
        source,
    })?;
    if !status.success() {
        return Err(BuildError::Failed { status, command: format!("{command:?}") });
    }
    let object = target_dir.join(TARGET).join("release").join("ringfence");
    if object.is_file() { Ok(object) } else { Err(BuildError::NoObject(object)) }
}

fn cargo(toolchain: &Toolchain, ebpf_dir: &Path, target_dir: &Path, arch: &str) -> Command {
    let mut command = match &toolchain.kind {
        Kind::Debian { rustc } => {
            let mut command = Command::new(outer_cargo());
            clean_environment(&mut command);
            // Debian's compiler is a stable one; the BPF target needs unstable features of `core`.
            command.env("RUSTC", rustc).env("RUSTC_BOOTSTRAP", "1").arg("build");
            command
        }
        Kind::Nightly => {
            let mut command = Command::new("rustup");
            clean_environment(&mut command);
            command.args(["run", "nightly", "cargo", "build", "-Zbuild-std=core"]);
            command
        }
    };
    let flags = [
        format!("-Clinker={}", toolchain.bpf_linker.display()),
        "-Cdebuginfo=2".to_owned(),
        "-Clink-arg=--btf".to_owned(),
        format!("--cfg=bpf_target_arch=\"{arch}\""),
        // The same sources give the same object wherever the checkout is.
        format!("--remap-path-prefix={}=ebpf", ebpf_dir.display()),
    ];
    command
        .args(["--release", "--locked", "--target", TARGET, "--target-dir"])
        .arg(target_dir)
        .current_dir(ebpf_dir)
        .env("CARGO_ENCODED_RUSTFLAGS", flags.join("\x1f"));
    command
}

/// The cargo that runs us: the real binary, not rustup's proxy, so that no toolchain file is consulted.
fn outer_cargo() -> OsString {
    std::env::var_os("CARGO").unwrap_or_else(|| OsString::from("cargo"))
}

/// Takes out what the outer cargo, clippy or rustup put in for another target and compiler, such as
/// `RUSTC_WORKSPACE_WRAPPER=clippy-driver`; keeps homes, network and registry settings.
fn clean_environment(command: &mut Command) {
    for (name, _) in std::env::vars_os() {
        if is_foreign(&name) {
            command.env_remove(name);
        }
    }
}

fn is_foreign(name: &OsStr) -> bool {
    const KEPT: [&str; 7] = [
        "CARGO_HOME",
        "CARGO_HTTP_",
        "CARGO_NET_",
        "CARGO_REGISTRIES_",
        "CARGO_REGISTRY_",
        "CARGO_TERM_",
        "RUSTUP_HOME",
    ];
    const FOREIGN: [&str; 12] = [
        "CARGO",
        "RUST",
        "CLIPPY_",
        "DEP_",
        "__CARGO",
        "OUT_DIR",
        "TARGET",
        "HOST",
        "PROFILE",
        "OPT_LEVEL",
        "DEBUG",
        "LD_LIBRARY_PATH",
    ];
    let name = name.to_string_lossy();
    !KEPT.iter().any(|kept| name.starts_with(kept))
        && FOREIGN.iter().any(|foreign| match *foreign {
            "TARGET" | "HOST" | "PROFILE" | "OPT_LEVEL" | "DEBUG" | "OUT_DIR" | "LD_LIBRARY_PATH" => {
                name == *foreign
            }
            prefix => name.starts_with(prefix),
        })
}

#[cfg(test)]
mod tests {
    use super::is_foreign;

    #[test]
    fn environment_of_the_outer_build_is_dropped_and_the_users_kept() {
        for name in ["RUSTFLAGS", "CARGO_ENCODED_RUSTFLAGS", "RUSTC_WORKSPACE_WRAPPER", "CARGO_TARGET_DIR"] {
            assert!(is_foreign(name.as_ref()), "{name}");
        }
        for name in ["TARGET", "CLIPPY_ARGS", "RUSTUP_TOOLCHAIN", "CARGO_BUILD_TARGET", "CARGO"] {
            assert!(is_foreign(name.as_ref()), "{name}");
        }
        for name in
            ["PATH", "HOME", "CARGO_HOME", "RUSTUP_HOME", "CARGO_NET_OFFLINE", "https_proxy", "HOSTNAME"]
        {
            assert!(!is_foreign(name.as_ref()), "{name}");
        }
    }
}
