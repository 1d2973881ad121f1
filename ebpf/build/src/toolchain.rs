//! Finding a compiler and a linker for the BPF target, and naming what is missing.

use crate::TARGET;
use crate::cache::bpf_linker_root;
use std::fmt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// A compiler and a linker for the BPF target.
#[derive(Debug)]
pub struct Toolchain {
    /// Which compiler.
    pub kind: Kind,
    /// The linker, as an absolute path.
    pub bpf_linker: PathBuf,
}

/// The compilers that can build for BPF.
#[derive(Debug)]
pub enum Kind {
    /// Debian's `rustc-web`, whose package `libstd-rust-web-dev-bpf` has `core` compiled for BPF.
    Debian {
        /// The compiler.
        rustc: PathBuf,
    },
    /// rustup's nightly with rust-src, which builds `core` itself.
    Nightly,
}

/// The parts that no toolchain could be put together without.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Missing {
    /// No compiler: neither Debian's packages nor a nightly with rust-src.
    pub compiler: bool,
    /// No bpf-linker in `PATH` or in the cache.
    pub bpf_linker: bool,
}

impl fmt::Display for Missing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let compiler = "a Rust compiler for bpfel-unknown-none (Debian's rustc-web and libstd-rust-web-dev-bpf, \
                        or rustup's nightly with rust-src and a bpf-linker)";
        match (self.compiler, self.bpf_linker) {
            (true, true) => write!(f, "missing {compiler}, and bpf-linker"),
            (true, false) => write!(f, "missing {compiler}"),
            _ => write!(f, "missing bpf-linker (neither in PATH nor in {})", bpf_linker_root().display()),
        }
    }
}

/// Finds a toolchain: the user's own nightly, rust-src and bpf-linker if all three are there, else Debian's
/// compiler with any bpf-linker. A cached bpf-linker is not paired with nightly: their LLVMs may differ.
///
/// # Errors
/// The parts that are missing.
pub fn find() -> Result<Toolchain, Missing> {
    let own_linker = in_path("bpf-linker");
    if let Some(bpf_linker) = &own_linker
        && nightly_has_rust_src()
    {
        return Ok(Toolchain { kind: Kind::Nightly, bpf_linker: bpf_linker.clone() });
    }
    let cached = Some(bpf_linker_root().join("bin/bpf-linker")).filter(|path| path.is_file());
    match (debian_rustc(), cached.or(own_linker)) {
        (Some(rustc), Some(bpf_linker)) => Ok(Toolchain { kind: Kind::Debian { rustc }, bpf_linker }),
        (rustc, bpf_linker) => Err(Missing { compiler: rustc.is_none(), bpf_linker: bpf_linker.is_none() }),
    }
}

fn in_path(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path)
        .map(|dir| dir.join(program))
        .find(|file| file.is_absolute() && file.is_file())
}

/// Debian's compiler, if it has `core` for the BPF target.
fn debian_rustc() -> Option<PathBuf> {
    let rustc = PathBuf::from("/usr/bin/rustc");
    let sysroot = sysroot(Command::new(&rustc))?;
    has_library(&sysroot.join("lib/rustlib").join(TARGET).join("lib"), "libcore-").then_some(rustc)
}

fn nightly_has_rust_src() -> bool {
    let mut rustc = Command::new("rustup");
    rustc.args(["run", "nightly", "rustc"]).env("RUSTUP_AUTO_INSTALL", "0");
    sysroot(rustc).is_some_and(|root| root.join("lib/rustlib/src/rust/library/core").is_dir())
}

fn sysroot(mut rustc: Command) -> Option<PathBuf> {
    let output = rustc
        .args(["--print", "sysroot"])
        .env_remove("LD_LIBRARY_PATH")
        .stderr(Stdio::null())
        .output()
        .ok()?;
    let path = String::from_utf8(output.stdout).ok()?;
    output.status.success().then(|| PathBuf::from(path.trim()))
}

fn has_library(dir: &Path, prefix: &str) -> bool {
    std::fs::read_dir(dir).is_ok_and(|entries| {
        entries.flatten().any(|entry| entry.file_name().to_string_lossy().starts_with(prefix))
    })
}
