//! `fuzz`: libFuzzer over what reads hostile bytes, with the stable compiler.

use crate::build;
use crate::paths::{target, workspace};
use crate::report::say;
use crate::setup;
use anyhow::{Context, Result, bail};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

/// What `cargo fuzz` passes, without what needs a nightly compiler (sanitizers): the rooms that are fuzzed have no
/// `unsafe`, so a panic, a failed assertion, an overflow, a hang or memory without bound is what there is to find.
const FLAGS: &[&str] = &[
    "-Cpasses=sancov-module",
    "-Cllvm-args=-sanitizer-coverage-level=4",
    "-Cllvm-args=-sanitizer-coverage-inline-8bit-counters",
    "-Cllvm-args=-sanitizer-coverage-pc-table",
    "-Cllvm-args=-sanitizer-coverage-trace-compares",
    "--cfg=fuzzing",
];
/// The package of the targets, and the profile that it is built with.
const PACKAGE: &str = "ringfence-fuzz";
const PROFILE: &str = "fuzz";
/// Longest input that is tried, bytes.
const LONGEST: &str = "-max_len=4096";
/// An input that takes longer than so many seconds is a finding, as is one that takes more than so many MiB.
const LIMITS: [&str; 2] = ["-timeout=10", "-rss_limit_mb=1024"];

/// Fuzzes what reads hostile bytes: each target in `fuzz/src/targets.rs` for a while.
///
/// Starts from the corpus in `fuzz/corpus` and what earlier runs found, which is kept in `target/fuzz/found`. An input that
/// breaks a target is written to `target/fuzz/broken`; mend what it found, and put it into the corpus under a name that
/// says what it is: every `cargo xtask test` tries the corpus.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  cargo xtask fuzz                       every target for a minute\n  \
                        cargo xtask fuzz classify --seconds 600\n  \
                        cargo xtask fuzz line --input target/fuzz/broken/crash-ab12")]
pub(crate) struct Args {
    /// One target: line, classify, rules, redact, wire, runner, shell, frames, turn, sse, provider, log, secrets, web, grant,
    /// records, journal, ledger, roles, guest, dashboard, endpoint, relay, hook, dns, client_hello, http_requests, proxy,
    /// request_target.
    name: Option<String>,
    /// How long each is fuzzed.
    #[arg(long, value_name = "N", default_value_t = 60)]
    seconds: u32,
    /// Tries one input and says what happens, instead of fuzzing.
    #[arg(long, value_name = "FILE", requires = "name")]
    input: Option<PathBuf>,
}

pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let targets = targets()?;
    let chosen: Vec<&String> =
        targets.iter().filter(|t| args.name.as_ref().is_none_or(|n| n == *t)).collect();
    if chosen.is_empty() {
        bail!(
            "there is no target {:?}; there are {}",
            args.name.as_deref().unwrap_or(""),
            targets.join(", ")
        );
    }
    setup::for_building()?;
    let mut broken = Vec::new();
    for name in chosen {
        let program = compile(name)?;
        let good = match &args.input {
            Some(input) => {
                Command::new(&program).args(LIMITS).arg(input).status().map(|status| status.success())
            }
            None => fuzz(&program, name, args.seconds),
        };
        if !good.with_context(|| format!("cannot run {}", program.display()))? {
            broken.push(name.as_str());
        }
    }
    if broken.is_empty() {
        return Ok(ExitCode::SUCCESS);
    }
    say(&format!("broken: {}; the inputs are in {}", broken.join(", "), work().join("broken").display()));
    Ok(ExitCode::FAILURE)
}

fn work() -> PathBuf {
    target().join("fuzz")
}

/// The targets' names, from their corpus.
fn targets() -> Result<Vec<String>> {
    let corpus = workspace().join("fuzz/corpus");
    let folders = fs::read_dir(&corpus).with_context(|| format!("cannot read {}", corpus.display()))?;
    let mut names: Vec<String> =
        folders.flatten().map(|folder| folder.file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    Ok(names)
}

fn compile(name: &str) -> Result<PathBuf> {
    say(&format!("building the fuzz target {name}"));
    let triple = format!("{}-unknown-linux-gnu", std::env::consts::ARCH);
    let mut cargo = build::cargo();
    // With --target the flags are for the targets, not for build scripts and macros, which lack the runtime.
    cargo.args([
        "build",
        "--quiet",
        "--locked",
        "--profile",
        PROFILE,
        "--package",
        PACKAGE,
        "--features",
        "libfuzzer",
        "--bin",
        name,
        "--target",
        &triple,
        "--target-dir",
    ]);
    cargo.arg(work());
    cargo.env("CARGO_ENCODED_RUSTFLAGS", FLAGS.join("\u{1f}")).stdin(Stdio::null());
    if !cargo.status().context("cannot start cargo")?.success() {
        bail!("the fuzz target {name} does not compile");
    }
    Ok(work().join(triple).join(PROFILE).join(name))
}

/// Whether nothing broke.
fn fuzz(program: &Path, name: &str, seconds: u32) -> std::io::Result<bool> {
    let (found, broken) = (work().join("found").join(name), work().join("broken"));
    fs::create_dir_all(&found)?;
    fs::create_dir_all(&broken)?;
    say(&format!("fuzzing {name} for {seconds} s"));
    let status = Command::new(program)
        .args(LIMITS)
        .args([LONGEST, "-verbosity=0", "-print_final_stats=1", &format!("-max_total_time={seconds}")])
        .arg(format!("-artifact_prefix={}/", broken.display()))
        // The first is where new inputs go; the corpus itself is only read.
        .arg(&found)
        .arg(workspace().join("fuzz/corpus").join(name))
        .status()?;
    Ok(status.success())
}
