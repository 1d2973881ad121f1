//! `test`: every check, from formatting to the VM tests, and one line that says how it went.

use crate::agent_parties;
use crate::build;
use crate::dashboard;
use crate::guest;
use crate::llm_parties;
use crate::parties;
use crate::paths::{target, workspace};
use crate::report::{say, tail};
use crate::setup;
use crate::tidy;
use crate::unit;
use crate::vm_test::{self, Tally};
use anyhow::{Context, Result, anyhow, bail};
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::Instant;

const CARGO_DENY: &str = "0.20.2";

/// Lots of other parties' software that run at once: one alone leaves half of two processors idle.
const LOTS_WIDTH: usize = 2;
/// Test programs that run at once: each waits for processes and clocks most of its time.
const TESTS_WIDTH: usize = 3;

/// Runs every check; the last line says how many passed and failed.
///
/// Format, clippy with warnings as errors, tidy, licences and bans, unit and black-box tests, the dashboard in Chromium, real
/// MCP servers and clients behind the interceptor, LLM mocks and SDKs around the worker, real coding agents under
/// `ringfence run`, then the VM tests on three kernels. Installs what is missing first.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  cargo xtask test --quick  while you work\n  \
                        cargo xtask test --smoke  before a commit\n  \
                        cargo xtask test          everything: before a merge")]
pub(crate) struct Args {
    /// The checks of the sources, and the unit tests: nothing that starts a program.
    #[arg(long)]
    quick: bool,
    /// Without Chromium and other parties' software; of the VM tests only one case for each hook, on one kernel.
    #[arg(long, conflicts_with = "quick")]
    smoke: bool,
}

pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    if args.quick {
        setup::for_checking()?
    } else {
        setup::everything()?
    }
    let mut tally = Tally::default();
    check(&mut tally, "format", format);
    check(&mut tally, "clippy", clippy);
    check(&mut tally, "clippy of the eBPF programs", clippy_ebpf);
    check(&mut tally, "tidy", || tidy::check().map(|found| found.join("\n")).and_then(none));
    check(&mut tally, "licences and bans", licences);
    check(&mut tally, "advisories", advisories);
    if args.quick {
        part(&mut tally, "unit tests", unit::units);
        return Ok(ended(&tally));
    }
    check(&mut tally, "programs for containers: static, under 2 MB", || guest::programs().map(drop));
    if args.smoke {
        smoke(&mut tally);
    } else {
        part(&mut tally, "unit and black-box tests", || unit::tests(TESTS_WIDTH));
        others(&mut tally);
        part(&mut tally, "VM tests", vm_test::full);
    }

    Ok(ended(&tally))
}

fn ended(tally: &Tally) -> ExitCode {
    for failed in &tally.failed {
        println!("failed: {failed}");
    }
    println!("{} passed, {} failed", tally.passed, tally.failed.len());
    if tally.failed.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Other parties' software, two lots at once: each waits for processes most of its time. The longest first. What they start is
/// built before, so that nobody replaces it under them.
fn others(tally: &mut Tally) {
    type Lot = (&'static str, fn() -> Result<Tally>);
    const LOTS: [Lot; 4] = [
        ("coding agents under `ringfence run`", agent_parties::tests),
        ("dashboard in Chromium", dashboard::tests),
        ("MCP servers and SDKs", parties::tests),
        ("LLM mocks, SDKs and MCP servers", llm_parties::tests),
    ];
    if let Err(error) = agent_parties::build() {
        return add(tally, "other parties' software", Err(error));
    }
    let (next, tallies) = (AtomicUsize::new(0), Mutex::new(tally));
    thread::scope(|scope| {
        for _ in 0..LOTS_WIDTH {
            scope.spawn(|| {
                while let Some((name, tests)) = LOTS.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let mut own = Tally::default();
                    part(&mut own, name, tests);
                    let mut all = tallies.lock().unwrap_or_else(PoisonError::into_inner);
                    all.passed += own.passed;
                    all.failed.append(&mut own.failed);
                }
            });
        }
    });
}

/// The guest beside the tests: both wait more than they work. All is built before, and the tests' own binary last: the
/// guest's is built with fewer features, in the same place.
fn smoke(tally: &mut Tally) {
    let built = vm_test::Smoke::build().and_then(|smoke| unit::compile().map(|_| smoke));
    let smoke = match built {
        Ok(smoke) => smoke,
        Err(error) => return add(tally, "unit and black-box tests, VM tests", Err(error)),
    };
    let (tests, cases) = thread::scope(|scope| {
        let guest = scope.spawn(|| smoke.run());
        (unit::tests(TESTS_WIDTH), guest.join())
    });
    add(tally, "unit and black-box tests", tests);
    add(tally, "VM tests", cases.unwrap_or_else(|_| Err(anyhow!("their thread panicked"))));
}

/// Counts one check as one test; what it says is shown where it fails.
fn check(tally: &mut Tally, name: &str, run: impl FnOnce() -> Result<()>) {
    let start = Instant::now();
    match run() {
        Ok(()) => {
            tally.passed += 1;
            say(&format!("{name}: passed in {:.0} s", start.elapsed().as_secs_f32()));
        }
        Err(error) => {
            println!("{name}: {error:#}");
            tally.failed.push(name.to_owned());
        }
    }
}

/// Counts each test of a part; how long the part took is shown, since the whole has to stay under an hour.
fn part(tally: &mut Tally, name: &str, run: impl FnOnce() -> Result<Tally>) {
    let start = Instant::now();
    let more = run();
    say(&format!("{name}: {:.0} s", start.elapsed().as_secs_f32()));
    add(tally, name, more);
}

fn add(tally: &mut Tally, name: &str, more: Result<Tally>) {
    match more {
        Ok(more) => {
            tally.passed += more.passed;
            tally.failed.extend(more.failed);
        }
        Err(error) => {
            println!("{name}: {error:#}");
            tally.failed.push(format!("{name}: {error}"));
        }
    }
}

fn none(found: String) -> Result<()> {
    if found.is_empty() { Ok(()) } else { bail!("\n{found}") }
}

fn format() -> Result<()> {
    succeed(build::cargo().args(["fmt", "--all", "--check"]))?;
    succeed(build::cargo().args(["fmt", "--check"]).current_dir(ebpf()))
}

fn clippy() -> Result<()> {
    succeed(build::cargo().args([
        "clippy",
        "--quiet",
        "--workspace",
        "--all-targets",
        // The programs that are fuzzed are no targets without it.
        "--features",
        "ringfence-fuzz/libfuzzer",
        "--",
        "-D",
        "warnings",
    ]))
}

/// Clippy has no BPF target, but lints the same sources for the host. Unstable features are for `core`'s BPF intrinsics;
/// without unwinding, as on the real target.
fn clippy_ebpf() -> Result<()> {
    let mut cargo = build::cargo();
    cargo.args(["clippy", "--quiet", "--locked", "--target-dir"]).arg(target().join("ebpf-clippy"));
    // A map's key by reference: by value, a large one would be copied to a small stack.
    cargo
        .args(["--", "-D", "warnings", "-A", "clippy::needless_borrows_for_generic_args"])
        .current_dir(ebpf());
    cargo.env("RUSTC_BOOTSTRAP", "1").env("CARGO_PROFILE_DEV_PANIC", "abort");
    cargo.env("CARGO_ENCODED_RUSTFLAGS", format!("--cfg=bpf_target_arch=\"{}\"", std::env::consts::ARCH));
    succeed(&mut cargo)
}

fn licences() -> Result<()> {
    succeed(&mut deny(workspace(), &["licenses", "bans", "sources"])?)?;
    succeed(&mut deny(&ebpf(), &["licenses", "bans", "sources"])?)
}

/// Known vulnerabilities, where their database can be reached; elsewhere a notice, because a machine without that network
/// must be able to pass.
fn advisories() -> Result<()> {
    let Err(error) = succeed(&mut deny(workspace(), &["advisories"])?) else { return Ok(()) };
    if format!("{error:#}").contains("failed to fetch advisory database") {
        say("notice: the advisory database cannot be reached; known vulnerabilities were not looked up");
        return Ok(());
    }
    Err(error)
}

fn deny(dir: &Path, what: &[&str]) -> Result<Command> {
    let program =
        setup::installed_tool("cargo-deny", CARGO_DENY, "checks licences and known vulnerabilities")?;
    let mut command = Command::new(program);
    command
        .arg("--config")
        .arg(workspace().join("deny.toml"))
        .arg("check")
        .arg("--hide-inclusion-graph")
        .args(what);
    command.current_dir(dir);
    Ok(command)
}

fn ebpf() -> std::path::PathBuf {
    workspace().join("ebpf")
}

/// Runs a check; its output is the error if it fails.
fn succeed(command: &mut Command) -> Result<()> {
    let output =
        command.stdin(Stdio::null()).output().with_context(|| format!("cannot start {command:?}"))?;
    if output.status.success() {
        return Ok(());
    }
    let said = [output.stdout, output.stderr].concat();
    bail!("\n{}", tail(&String::from_utf8_lossy(&said), 120))
}
