//! `bench launch`: how long it takes to start a command, with and without a sandbox.

use crate::{agent_parties, build, report::say, setup};
use anyhow::{Context, Result, bail};
use std::{
    env,
    fmt::Write,
    fs,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    process::{Command, ExitCode, Stdio},
    time::{Duration, Instant},
};
use tempfile::TempDir;

/// What is started: the least that a program can do.
const PROGRAM: &str = "/bin/true";
/// What the others are compared with.
const BARE: &str = "bare spawn";
/// Starts that are not counted: caches fill.
const WARM_UP: usize = 20;

/// A profile that restricts every axis, so that every enforcer has something to set up.
const PROFILE: &str = r#"
description = "bench launch"
[grant]
fs_read = { only = ["/usr", "/etc", "/tmp"] }
fs_write = { only = ["/tmp"] }
exec = { only = ["/usr/bin", "/bin"] }
net = { only = ["127.0.0.1:443"] }
max_calls = "unlimited"
valid_for_generation = "all"
[kernel]
accept_partial = ["fs_read", "fs_write", "exec", "net"]
"#;

/// Measures how long it takes to start and end /bin/true: bare, in bubblewrap, under `ringfence run`.
///
/// The three take turns in one run, so that whatever else the machine does falls on all of them. Prints a Markdown
/// table of medians. Where a daemon runs it holds the command, else Landlock and seccomp do: the last line says which.
///
/// With --agent it is `claude --version`, bare and as `ringfence run claude`: with its endpoint, its credential, and all that is
/// started for it.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  cargo xtask bench launch --rounds 500 > table.md\n  \
                        cargo xtask bench launch --agent --rounds 50")]
pub(crate) struct Args {
    /// How often each is started
    #[arg(long, value_name = "N", default_value_t = 500)]
    rounds: usize,
    /// Start Claude Code, of the tests' npm packages
    #[arg(long)]
    agent: bool,
    /// Measure this binary instead of one that is built now
    #[arg(long, value_name = "FILE")]
    binary: Option<PathBuf>,
}

/// One way to start the program, and how long each start took.
struct Way {
    name: &'static str,
    words: Vec<String>,
    took: Vec<Duration>,
}

pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    if args.rounds == 0 {
        bail!("--rounds 0 measures nothing; give at least 1");
    }
    setup::for_benchmarks()?;
    let ringfence = match &args.binary {
        Some(binary) => std::path::absolute(binary).context("no working directory")?,
        None => build::shipped()?,
    };
    let dir = tempfile::tempdir().context("cannot make a directory for the profile")?;
    let profile = dir.path().join("bench.toml");
    fs::write(&profile, PROFILE).with_context(|| format!("cannot write {}", profile.display()))?;
    let enforcement = enforcement(&ringfence, &profile)?;
    let agent = if args.agent { Some(Agent::installed()?) } else { None };
    let mut ways = match &agent {
        Some(agent) => agent.ways(&ringfence),
        None => ways(&ringfence, &profile),
    };
    say(&format!("starting it {} times in each of {} ways", args.rounds, ways.len()));
    for round in 0..args.rounds + WARM_UP {
        for way in &mut ways {
            let took = start(&way.words)?;
            if round >= WARM_UP {
                way.took.push(took);
            }
        }
    }
    print!("{}\n{enforcement}\n", table(&mut ways)?);
    Ok(ExitCode::SUCCESS)
}

fn ways(ringfence: &Path, profile: &Path) -> Vec<Way> {
    let way = |name, words: &str| Way {
        name,
        words: words.split_whitespace().chain([PROGRAM]).map(str::to_owned).collect(),
        took: Vec::new(),
    };
    let run = format!("{} run --profile {} --", ringfence.display(), profile.display());
    let bubblewrap =
        "bwrap --ro-bind / / --dev /dev --proc /proc --bind /tmp /tmp --unshare-all --die-with-parent --";
    vec![way(BARE, ""), way("bubblewrap", bubblewrap), way("ringfence run", &run)]
}

/// Claude Code where its kit finds it, with a profile that grants what it is made of.
struct Agent {
    /// Its program's directory, and the configuration.
    place: TempDir,
    /// What it keeps: in its user's home, as ever.
    _state: TempDir,
}

impl Agent {
    fn installed() -> Result<Self> {
        let packages = agent_parties::packages()?;
        let home = env::var_os("HOME").map(PathBuf::from).context("HOME is not set")?;
        let state = tempfile::Builder::new().prefix(".ringfence-bench-").tempdir_in(&home);
        let state = state.with_context(|| format!("cannot write to {}", home.display()))?;
        let place = tempfile::tempdir().context("cannot make a directory for the agent")?;
        let (programs, profiles) = (place.path().join("bin"), place.path().join("config/profiles"));
        for dir in [&programs, &profiles, &place.path().join("run")] {
            fs::create_dir_all(dir).with_context(|| format!("cannot make {}", dir.display()))?;
        }
        let claude = packages.join("@anthropic-ai/claude-code-linux-x64/claude");
        symlink(&claude, programs.join("claude")).context("cannot link the agent's program")?;
        let below_home = state.path().strip_prefix(&home).context("a directory of the home is below it")?;
        let (packages, state_dir) = (packages.display(), format!("${{HOME}}/{}", below_home.display()));
        let text = format!(
            "extends = \"claude\"\n[grant]\nfs_read = {{ add = [\"{packages}\", \"{0}\", \"{state_dir}\"] }}\n\
             fs_write = {{ add = [\"{state_dir}\"] }}\nexec = {{ add = [\"{packages}\", \"{0}\"] }}\n[kernel]\n\
             accept_partial = [\"fs_read\", \"fs_write\", \"exec\", \"net\", \"unix\"]\n[kit]\nstate = \"{state_dir}\"\n",
            programs.display(),
        );
        fs::write(profiles.join("claude.toml"), text).context("cannot write the agent's profile")?;
        Ok(Self { place, _state: state })
    }

    /// Bare, and under its kit: the same variables in both.
    fn ways(&self, ringfence: &Path) -> Vec<Way> {
        let place = self.place.path().display();
        let before = [
            "env".to_owned(),
            format!("PATH={place}/bin:/usr/local/bin:/usr/bin:/bin"),
            format!("RINGFENCE_CONFIG_DIR={place}/config"),
            format!("RINGFENCE_RUNTIME_DIR={place}/run"),
            "RINGFENCE_BENCH_KEY=sk-bench-0123456789".to_owned(),
        ];
        let run = format!(
            "{} run --base-url http://127.0.0.1:9 --api-key-env RINGFENCE_BENCH_KEY",
            ringfence.display()
        );
        [(BARE, ""), ("ringfence run claude", run.as_str())]
            .map(|(name, launcher)| {
                let words = before.iter().cloned();
                let words = words
                    .chain(launcher.split_whitespace().chain(["claude", "--version"]).map(str::to_owned));
                Way { name, words: words.collect(), took: Vec::new() }
            })
            .into()
    }
}

/// What `ringfence run` says of itself; also whether it runs at all.
fn enforcement(ringfence: &Path, profile: &Path) -> Result<String> {
    let mut command = Command::new(ringfence);
    let output = command.args(["run", "-v", "--profile"]).arg(profile).args(["--", PROGRAM]).output();
    let output = output.with_context(|| format!("cannot start {}", ringfence.display()))?;
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    if !output.status.success() {
        bail!("`ringfence run` did not run {PROGRAM}: {said}");
    }
    let line = said.lines().find_map(|line| Some(line.split_once("enforcement: ")?.1.to_owned()));
    Ok(format!("ringfence run's enforcement here: {}", line.unwrap_or_else(|| "not said".into())))
}

fn start(words: &[String]) -> Result<Duration> {
    let [program, arguments @ ..] = words else { bail!("nothing to start") };
    let mut command = Command::new(program);
    command.args(arguments).stdin(Stdio::null());
    let begin = Instant::now();
    let output = command.output().with_context(|| format!("cannot start {program}"))?;
    let took = begin.elapsed();
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        bail!("`{}` ended with {}: {}", words.join(" "), output.status, said.trim());
    }
    Ok(took)
}

/// Medians, the middle half, and each median above and as a multiple of the bare one.
fn table(ways: &mut [Way]) -> Result<String> {
    for way in ways.iter_mut() {
        way.took.sort_unstable();
    }
    let at = |took: &[Duration], quarter: usize| took.get(took.len() * quarter / 4).copied();
    let bare = ways.iter().find(|way| way.name == BARE).and_then(|way| at(&way.took, 2));
    let bare = bare.context("no bare figure to compare with")?;
    let mut text =
        String::from("| | median | middle half | above bare | ratio |\n|---|---:|---:|---:|---:|\n");
    let ms = |time: Duration| time.as_secs_f64() * 1000.0;
    for Way { name, took, .. } in ways {
        let quarters = [1, 2, 3].map(|quarter| at(took, quarter).map(ms));
        let [Some(low), Some(median), Some(high)] = quarters else { bail!("no figures for {name}") };
        writeln!(
            text,
            "| {name} | {median:.2} ms | {low:.2} to {high:.2} | {:+.2} ms | {:.2} |",
            median - ms(bare),
            median / ms(bare)
        )?;
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::{BARE, Way, table};
    use std::time::Duration;

    #[test]
    fn medians_are_compared_with_the_bare_one() {
        let way = |name, times: &[u64]| Way {
            name,
            words: Vec::new(),
            took: times.iter().map(|ms| Duration::from_millis(*ms)).collect(),
        };
        let mut ways = [way(BARE, &[3, 1, 2, 90, 2]), way("other", &[6, 4, 5, 5, 7])];
        let expected = "| | median | middle half | above bare | ratio |\n|---|---:|---:|---:|---:|\n\
                        | bare spawn | 2.00 ms | 2.00 to 3.00 | +0.00 ms | 1.00 |\n\
                        | other | 5.00 ms | 5.00 to 6.00 | +3.00 ms | 2.50 |\n";
        assert_eq!(table(&mut ways).unwrap(), expected);
        assert!(table(&mut [way("other", &[1])]).is_err());
        assert!(table(&mut [way(BARE, &[])]).is_err());
    }
}
