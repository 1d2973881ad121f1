//! `vm-test`: the cases of vm-tests/, one boot for each kernel and for each special boot line.

use crate::agent_parties;
use crate::build;
use crate::client_parties;
use crate::guest;
use crate::paths::workspace;
use crate::report::say;
use crate::setup::Series;
use crate::tap::{Line, Tap};
use crate::vm::{self, Added, Job, Ringfence};
use anyhow::{Context, Result, anyhow, bail};
use ringfence_common::egress::REWRITERS;
use ringfence_common::hooks::HOOKS;
use ringfence_common::net::EGRESS;
use std::fmt;
use std::process::{Command, ExitCode};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// How long a boot may be silent. A case that hangs says so itself; this finds a guest that died.
const SILENCE: Duration = Duration::from_secs(20 * 60);
/// Guests at once: each has two processors of its own and 1 GB or 2, and waits more than it works.
const WIDTH: usize = 2;
/// Where the guest finds the cases.
const GUEST_DIR: &str = "/opt/vm-tests";

/// Runs the cases that need a kernel of their own, in the guest.
///
/// Every case on 6.12; one case for each hook on 6.1 and the newest kernel; and boots of their own for the programs
/// without a daemon, for a kernel without `bpf` in its list of security modules, for systemd's unit, for full
/// preemption, for real clients of hosts by name and for real coding agents.
#[derive(Debug, Default, clap::Args)]
#[command(after_help = "Examples:\n  cargo xtask vm-test                           everything\n  \
    cargo xtask vm-test --kernel 6.12 --filter exec  the cases whose name has `exec`, on one kernel\n  \
    cargo xtask vm-test --without each               take each program away in turn: does its case fail?")]
pub(crate) struct Args {
    /// Only this kernel.
    #[arg(long, value_name = "K")]
    pub(crate) kernel: Option<Series>,
    /// Only cases whose name contains this.
    #[arg(long, value_name = "TEXT")]
    pub(crate) filter: Option<String>,
    /// Detach this hook's program, and expect that its case fails: a control of the cases themselves.
    ///
    /// ebpf/coverage/coverage.toml says which case is whose. Several hooks with commas between; `each` for all of them,
    /// one after the other. On 6.12 unless --kernel says otherwise.
    #[arg(long, value_name = "HOOK", conflicts_with = "filter")]
    pub(crate) without: Option<String>,
}

/// The runner of tests/agents, whose guest has the agents' programs, and memory for two of them.
const AGENTS: &str = "agents";
/// What has cases of clients that no Debian of the guest's has, and memory for Node.
const CLIENTS: &[&str] = &["--group", "clients"];
/// The runner of the programs' own tests.
const PROGRAMS: &str = "programs";

/// One boot: a kernel, how it is booted, which cases.
struct Boot {
    series: Series,
    name: &'static str,
    append: &'static str,
    ringfence: Ringfence,
    /// The program of vm-tests/ that runs the cases.
    runner: &'static str,
    options: &'static [&'static str],
}

impl fmt::Display for Boot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.series, self.name)
    }
}

const fn boot(series: Series, name: &'static str, options: &'static [&'static str]) -> Boot {
    Boot { series, name, append: "", ringfence: Ringfence::Running, runner: "run", options }
}

/// Each test loads the programs anew, which takes most of a minute in an emulated guest.
const fn programs(series: Series, options: &'static [&'static str]) -> Boot {
    Boot { ringfence: Ringfence::Installed, runner: PROGRAMS, ..boot(series, "the programs alone", options) }
}

/// Those of the programs' own tests that show the other side of 6.2, before which a task's storage can fail to answer. The
/// rest is on 6.1; and other kernels' verifiers judge the programs when the daemon loads them.
const OF_STORAGE: &[&str] =
    &["--filter", "running-processes,share-for-each,told-or-lost,leaves-no-moment,outbound-names-are-held"];

/// Each kernel sends what is connected and sent by way of its own code, past the programs that send it elsewhere.
const OUTBOUND: &[&str] = &["--filter", "outbound-names-are-held"];

/// What holds without eBPF is Landlock's, and each kernel's Landlock has more than the one before.
const fn no_bpf(series: Series) -> Boot {
    Boot {
        append: "lsm=lockdown,capability,landlock,yama,apparmor",
        ringfence: Ringfence::Installed,
        ..boot(series, "no bpf in lsm=", &["--group", "nobpf"])
    }
}

/// The longest first, so that none of them is left alone at the end.
const BOOTS: &[Boot] = &[
    boot(Series::V6_12, "every case", &[]),
    boot(Series::Newest, "a case per hook", &["--hooks-only"]),
    boot(Series::V6_1, "a case per hook", &["--hooks-only"]),
    boot(Series::V6_12, "other parties' clients", CLIENTS),
    Boot { runner: AGENTS, ..boot(Series::V6_12, "coding agents", &[]) },
    // 6.1 is where preemption opened a hole once.
    Boot { append: "preempt=full", ..boot(Series::V6_1, "preempt=full", &["--group", "preempt"]) },
    Boot {
        append: "ringfence.systemd",
        ringfence: Ringfence::Installed,
        ..boot(Series::V6_12, "under systemd", &["--group", "systemd"])
    },
    programs(Series::V6_1, &[]),
    Boot { append: "preempt=full", ..boot(Series::V6_12, "preempt=full", &["--group", "preempt"]) },
    programs(Series::V6_12, OF_STORAGE),
    programs(Series::Newest, OUTBOUND),
    no_bpf(Series::V6_12),
    no_bpf(Series::V6_1),
    no_bpf(Series::Newest),
];

/// How many cases passed, and the names of those that failed.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    /// Cases that passed.
    pub(crate) passed: usize,
    /// What failed, each with where.
    pub(crate) failed: Vec<String>,
}

pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let tally = match &args.without {
        Some(hooks) => without(args.kernel.unwrap_or(Series::V6_12), hooks)?,
        None => {
            let boots = BOOTS.iter().filter(|boot| args.kernel.is_none_or(|only| boot.series == only));
            all(&boots.collect::<Vec<_>>(), args.filter.as_deref())?
        }
    };
    for failed in &tally.failed {
        println!("failed: {failed}");
    }
    println!("{} passed, {} failed", tally.passed, tally.failed.len());
    // A filter that matches nothing proves nothing.
    let good = tally.failed.is_empty() && tally.passed > 0;
    Ok(if good { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// One boot in which each of some programs is detached for a while; see vm-tests/lib/without.py.
fn without(series: Series, hooks: &str) -> Result<Tally> {
    if hooks != "each" {
        let known = |name: &str| {
            name == EGRESS || REWRITERS.contains(&name) || HOOKS.iter().any(|hook| hook.name == name)
        };
        if let Some(name) = hooks.split(',').find(|name| !known(name)) {
            bail!("no program has the name `{name}`; ebpf/common/src/hooks.rs lists them");
        }
    }
    let added = payload(false)?;
    let boot = boot(series, "without a program", &[]);
    let tap = one(&boot, &["--without", hooks], &added, false);
    let failed = tap.failed.into_iter().map(|case| format!("{boot}: {case}")).collect();
    Ok(Tally { passed: tap.passed, failed })
}

/// Every boot.
pub(crate) fn full() -> Result<Tally> {
    all(&BOOTS.iter().collect::<Vec<_>>(), None)
}

/// One boot with one case for each hook, for which everything is built: it can run beside tests that must not see
/// `target/debug/ringfence` replaced.
pub(crate) struct Smoke(Vec<Added>);

impl Smoke {
    /// Builds what the guest needs.
    ///
    /// # Errors
    /// What the compiler said.
    pub(crate) fn build() -> Result<Self> {
        payload(false).map(Self)
    }

    pub(crate) fn run(&self) -> Result<Tally> {
        on_all(&[&boot(Series::V6_12, "a case per hook", &["--hooks-only"])], None, &self.0)
    }
}

fn all(boots: &[&Boot], filter: Option<&str>) -> Result<Tally> {
    // The names of cases have a slash, those of the programs' own tests have none.
    let boots: Vec<&Boot> = boots
        .iter()
        .copied()
        .filter(|boot| boot.runner != PROGRAMS || !filter.is_some_and(is_case))
        .collect();
    // Once, and before the first boot's line: a failure to build is not a failed boot.
    let added = payload(boots.iter().any(|boot| boot.runner == PROGRAMS))?;
    on_all(&boots, filter, &added)
}

fn on_all(boots: &[&Boot], filter: Option<&str>, added: &[Added]) -> Result<Tally> {
    let with_cases = |boot: &&Boot| !filter.is_some_and(|text| matches!(has_case(boot, text), Ok(false)));
    let boots: Vec<&Boot> = boots.iter().copied().filter(with_cases).collect();
    let words: Vec<&str> = filter.iter().flat_map(|text| ["--filter", text]).collect();
    let width = WIDTH.min(boots.len());
    let (next, outcomes) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    thread::scope(|scope| {
        for _ in 0..width {
            scope.spawn(|| {
                while let Some(boot) = boots.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let tap = one(boot, &words, added, width > 1);
                    if let Ok(mut outcomes) = outcomes.lock() {
                        outcomes.push((*boot, tap));
                    }
                }
            });
        }
    });
    let outcomes = outcomes.into_inner().map_err(|_| anyhow!("a thread that ran a guest panicked"))?;
    if outcomes.len() != boots.len() {
        bail!("{} of {} guests were not run to their end", boots.len() - outcomes.len(), boots.len());
    }
    let mut tally = Tally::default();
    for (boot, tap) in outcomes {
        tally.passed += tap.passed;
        tally.failed.extend(tap.failed.into_iter().map(|case| format!("{boot}: {case}")));
    }
    Ok(tally)
}

/// Whether a filter can only mean cases, and no test of the programs alone.
fn is_case(filter: &str) -> bool {
    filter.contains('/')
}

/// The cases, and the helpers that are built for them, beside the binary; the tests of the programs alone take as long to
/// build as all else.
fn payload(programs_alone: bool) -> Result<Vec<Added>> {
    let tests = workspace().join("vm-tests");
    let mut added = Vec::new();
    for entry in std::fs::read_dir(&tests).context("cannot read vm-tests")? {
        let path = entry.context("cannot read vm-tests")?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if !["src", "guest", "Cargo.toml"].contains(&name.as_str()) {
            added.push(Added { host: path, guest: format!("{GUEST_DIR}/{name}").into() });
        }
    }
    if programs_alone {
        added.push(Added {
            host: build::kernel_tests()?,
            guest: format!("{GUEST_DIR}/bin/kernel-tests").into(),
        });
    }
    let guest::Programs { runtime, toolrunner } = guest::programs()?;
    for (host, name) in [(runtime, "ringfence-runtime"), (toolrunner, "ringfence-toolrunner")] {
        added.push(Added { host, guest: format!("{GUEST_DIR}/bin/{name}").into() });
    }
    let coverage = workspace().join("ebpf/coverage/coverage.toml");
    added.push(Added { host: coverage, guest: format!("{GUEST_DIR}/coverage.toml").into() });
    let dockerfile = workspace().join("agent/guest/Dockerfile");
    added.push(Added { host: dockerfile, guest: format!("{GUEST_DIR}/Dockerfile").into() });
    let helpers = build::helpers("dev")?;
    added.extend(helpers.into_iter().map(|host| {
        let name = host.file_name().unwrap_or_default().to_string_lossy().into_owned();
        Added { host, guest: format!("{GUEST_DIR}/bin/{name}").into() }
    }));
    build::for_guest()?;
    Ok(added)
}

/// Whether a boot has a case whose name contains the text, so that no guest is booted for nothing.
fn has_case(boot: &Boot, text: &str) -> Result<bool> {
    let mut list = Command::new(workspace().join("vm-tests").join(boot.runner));
    list.args(boot.options).args(["--list", "--filter", text]);
    if boot.runner == "run" && !boot.options.contains(&"--group") {
        list.args(["--group", "default"]);
    }
    if boot.runner == PROGRAMS {
        list.env("RINGFENCE_KERNEL_TESTS", build::kernel_tests()?);
    }
    let output = list.output().context("cannot list the cases")?;
    Ok(!output.status.success() || !output.stdout.trim_ascii().is_empty())
}

/// What a boot's guest is and runs.
fn job(boot: &Boot, words: &[&str], added: &[Added]) -> Result<Job> {
    let runner = format!("{GUEST_DIR}/{}", boot.runner);
    let mut command = vec![runner.as_str()];
    command.extend(boot.options);
    command.extend(words);
    let mut job = Job::new(boot.series, &command);
    job.append = boot.append.to_owned();
    job.ringfence = boot.ringfence;
    job.added = added.to_vec();
    if boot.runner == AGENTS {
        job.megabytes = 2048;
        job.added.extend(agent_parties::for_guest()?);
    }
    if boot.options == CLIENTS {
        job.megabytes = 2048;
        job.added.extend(client_parties::for_guest()?);
    }
    Ok(job)
}

/// A guest with the coding agents, that measures which of their calls the record says events are of.
pub(crate) fn truth(agents: &str) -> Result<Job> {
    let boot = Boot { runner: AGENTS, ..boot(Series::V6_12, "coding agents", &["--truth"]) };
    job(&boot, &["--filter", agents], &payload(false)?)
}

/// Boots a guest and runs its cases; among others, each line says whose it is.
fn one(boot: &Boot, words: &[&str], added: &[Added], among_others: bool) -> Tap {
    let whose = if among_others { format!("{boot} | ") } else { String::new() };
    say(&format!("kernel {}, {}:", boot.series, boot.name));
    let start = Instant::now();
    let mut tap = Tap::default();
    // A case's diagnostics come after its line, and only those of a failed case are shown.
    let mut failing = false;
    // What was noticed of a missing program is what such a run is for.
    let remarks = words.contains(&"--without");
    let shown = |line: &str| match tap.line(line) {
        Line::Failed => {
            failing = true;
            println!("  {whose}{line}");
        }
        Line::Passed | Line::Skipped => {
            failing = false;
            println!("  {whose}{line}");
        }
        Line::Other if failing || remarks => println!("  {whose}{line}"),
        Line::Frame | Line::Other => {}
    };
    match job(boot, words, added).and_then(|job| vm::lines(&job, SILENCE, shown)) {
        Ok(status) => tap.finish(Some(status)),
        Err(error) => {
            println!("  {whose}{error:#}");
            tap.failed.push(format!(
                "the boot failed: {}",
                format!("{error:#}").lines().next().unwrap_or_default()
            ));
        }
    }
    let seconds = start.elapsed().as_secs();
    say(&format!(
        "kernel {}, {}: {} passed, {} failed, {} skipped in {seconds} s",
        boot.series,
        boot.name,
        tap.passed,
        tap.failed.len(),
        tap.skipped.len()
    ));
    tap
}

#[cfg(test)]
mod tests {
    use super::{BOOTS, Series};

    #[test]
    fn every_kernel_is_booted() {
        for series in Series::all() {
            assert!(BOOTS.iter().any(|boot| boot.series == *series), "BOOTS has none of {series}");
        }
    }
}
