//! `build` and `build-ebpf`: the release binaries, and the eBPF object alone.

use crate::guest;
use crate::paths;
use crate::report::{brief, quietly, tail};
use crate::setup;
use anyhow::{Context, Result, bail};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::sync::OnceLock;

/// Builds the eBPF object alone, and prints where it is.
#[derive(Debug, clap::Args)]
pub(crate) struct EbpfArgs {}

/// Builds `target/release/ringfence`, as it ships, and the static `ringfence-runtime` and `ringfence-toolrunner` for
/// containers.
#[derive(Debug, clap::Args)]
pub(crate) struct BuildArgs {
    /// Only the programs for containers, which need no eBPF toolchain.
    #[arg(long)]
    runtime_only: bool,
}

pub(crate) fn ebpf(_: &EbpfArgs) -> Result<ExitCode> {
    setup::for_building()?;
    let ebpf = paths::workspace().join("ebpf");
    let object = ringfence_ebpf_build::build(&ebpf, &paths::target().join("ebpf"), std::env::consts::ARCH)?;
    println!("{}", object.display());
    Ok(ExitCode::SUCCESS)
}

pub(crate) fn release(args: &BuildArgs) -> Result<ExitCode> {
    if !args.runtime_only {
        setup::for_building()?;
        println!("{}", shipped()?.display());
    }
    let guest::Programs { runtime, toolrunner } = guest::programs()?;
    println!("{}\n{}", runtime.display(), toolrunner.display());
    Ok(ExitCode::SUCCESS)
}

/// What makes the binary smaller without making anything slower: no tables for unwinding, as a panic ends the process, and
/// none of the standard library's and of C either (`no-unwinding.ld`); relative relocations packed (glibc 2.36, which Debian 12
/// has); functions that are the same code are one.
const SMALLER: [&str; 3] =
    ["-Cforce-unwind-tables=no", "-Clink-arg=-Wl,-z,pack-relative-relocs", "-Clink-arg=-Wl,--icf=all"];

/// Builds the binary `ringfence` as it ships, and returns its path.
pub(crate) fn shipped() -> Result<PathBuf> {
    let target = format!("{}-unknown-linux-gnu", std::env::consts::ARCH);
    let mut cargo = cargo();
    cargo.args(["build", "--package", "ringfence", "--bin", "ringfence", "--release", "--target", &target]);
    // With a target of its own, the flags are for the program and not for the macros that compile it.
    let script = paths::workspace().join("xtask/no-unwinding.ld");
    let script = format!("-Clink-arg=-Wl,-T,{}", script.display());
    cargo.env("CARGO_ENCODED_RUSTFLAGS", [&SMALLER[..], &[&script]].concat().join("\x1f"));
    run(cargo, "ringfence")?;
    let built = paths::target().join(target).join("release/ringfence");
    place(&built, &paths::target().join("release"), "ringfence")
}

/// Puts a program where it is whatever it was built for, apart from cargo's own files.
pub(crate) fn place(built: &Path, folder: &Path, name: &str) -> Result<PathBuf> {
    std::fs::create_dir_all(folder).with_context(|| format!("cannot create {}", folder.display()))?;
    let program = folder.join(name);
    let bytes = std::fs::read(built).with_context(|| format!("cannot read {}", built.display()))?;
    if std::fs::read(&program).is_ok_and(|there| there == bytes) {
        return Ok(program);
    }
    // In one step: what runs keeps the file that it has.
    let failed = || format!("cannot write {}", program.display());
    let partial = tempfile::NamedTempFile::new_in(folder).with_context(failed)?;
    std::fs::write(partial.path(), bytes).with_context(failed)?;
    std::fs::set_permissions(partial.path(), std::fs::Permissions::from_mode(0o755)).with_context(failed)?;
    partial.persist(&program).with_context(failed)?;
    Ok(program)
}

/// Builds one program of another package with a cargo profile.
pub(crate) fn package_binary(package: &str, name: &str, profile: &str) -> Result<()> {
    build(package, &["--bin", name], profile)
}

/// Builds one example of another package, with the features that it needs.
pub(crate) fn example(package: &str, name: &str, features: &[&str], profile: &str) -> Result<()> {
    build(package, &["--example", name, "--features", &features.join(",")], profile)
}

/// The binary for the guest: as `cargo test` builds it, so that nothing is built twice, but without its debug information,
/// which is most of it. Built once in a run: what cargo links then takes the place of the one that tests start.
pub(crate) fn for_guest() -> Result<PathBuf> {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    if let Some(built) = BUILT.get() {
        return Ok(built.clone());
    }
    build("ringfence", &["--bin", "ringfence"], "dev")?;
    let built = stripped(&paths::target().join("debug/ringfence"), "ringfence")?;
    Ok(BUILT.get_or_init(|| built).clone())
}

/// The unit tests of `ringfence-bpf` as a program for the guest, where those that load eBPF are run.
pub(crate) fn kernel_tests() -> Result<PathBuf> {
    let mut cargo = cargo();
    cargo.args(["test", "--package", "ringfence-bpf", "--lib", "--no-run", "--message-format", "json"]);
    let output = brief("building ringfence's tests", || {
        let output = cargo.stdin(Stdio::null()).output().context("cannot start cargo")?;
        if !output.status.success() {
            bail!("building the tests failed:\n{}", tail(&String::from_utf8_lossy(&output.stderr), 60));
        }
        Ok(output.stdout)
    })?;
    let program = String::from_utf8_lossy(&output).lines().rev().find_map(test_program);
    stripped(&program.context("cargo built no test program")?, "kernel-tests")
}

/// The program that a line of cargo's messages says it has made, if it does.
fn test_program(line: &str) -> Option<PathBuf> {
    let message: serde_json::Value = serde_json::from_str(line).ok()?;
    message.get("executable")?.as_str().map(PathBuf::from)
}

/// A copy without debug information, in a folder of its own.
fn stripped(program: &Path, name: &str) -> Result<PathBuf> {
    let folder = paths::target().join("guest");
    std::fs::create_dir_all(&folder).with_context(|| format!("cannot create {}", folder.display()))?;
    // Beside its place first: another xtask may be reading the one that is there.
    let partial = tempfile::NamedTempFile::new_in(&folder).context("cannot write to the target folder")?;
    let mut objcopy = Command::new("objcopy");
    objcopy.arg("--strip-debug").arg(program).arg(partial.path());
    quietly(&mut objcopy)?;
    std::fs::set_permissions(partial.path(), std::fs::Permissions::from_mode(0o755))
        .context("cannot set a mode")?;
    let stripped = folder.join(name);
    partial.persist(&stripped).with_context(|| format!("cannot write {}", stripped.display()))?;
    Ok(stripped)
}

/// Builds the programs that the VM tests run in the guest; returns their paths.
pub(crate) fn helpers(profile: &str) -> Result<Vec<PathBuf>> {
    build("ringfence-vm-tests", &["--bins"], profile)?;
    let folder = paths::target().join(if profile == "dev" { "debug" } else { profile });
    let sources = paths::workspace().join("vm-tests/src/bin");
    let mut programs = Vec::new();
    for entry in std::fs::read_dir(&sources).with_context(|| format!("cannot read {}", sources.display()))? {
        let source = entry.with_context(|| format!("cannot read {}", sources.display()))?.path();
        programs.extend(source.file_stem().map(|name| folder.join(name)));
    }
    Ok(programs)
}

/// Builds a program of a package for another target than this machine's own.
pub(crate) fn for_target(package: &str, program: &str, target: &str) -> Result<()> {
    build(package, &["--bin", program, "--target", target], "dev")
}

/// Builds without a word; cargo's messages are shown only where it fails.
fn build(package: &str, what: &[&str], profile: &str) -> Result<()> {
    let mut cargo = cargo();
    cargo.args(["build", "--package", package, "--profile", profile]).args(what);
    run(cargo, package)
}

fn run(mut cargo: Command, package: &str) -> Result<()> {
    brief(&format!("building {package}"), || {
        let output = cargo.stdin(Stdio::null()).output().context("cannot start cargo")?;
        if !output.status.success() {
            bail!("building {package} failed:\n{}", tail(&String::from_utf8_lossy(&output.stderr), 60));
        }
        Ok(())
    })
}

/// The cargo that runs us, in the checkout.
pub(crate) fn cargo() -> Command {
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.current_dir(paths::workspace());
    cargo
}
