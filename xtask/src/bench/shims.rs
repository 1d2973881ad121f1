//! The tool runner's part of `bench tools`: what a shim adds to a tool, to a pipe, and what its daemon holds.

use crate::{guest, report::say};
use anyhow::{Context, Result, bail};
use rustix::{
    process::Pid,
    thread::{CpuSet, sched_getaffinity, sched_setaffinity},
};
use std::{
    fmt::Write,
    fs::{self, File},
    os::unix::net::UnixStream,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

/// Where tools are found behind the shims.
const PATH: &str = "/usr/local/bin:/usr/bin:/bin";
/// Starts that are not counted: caches fill.
const WARM_UP: usize = 20;
/// Bytes that go through the pipe: 1 GB.
const LARGE: u64 = 1_000_000_000;
/// How often they do.
const LARGE_ROUNDS: usize = 7;
/// How long a daemon may take to listen.
const PATIENCE: Duration = Duration::from_secs(10);

/// One way to run the same, and how long each time took.
struct Way<'a> {
    name: &'static str,
    /// The daemon to ask; none: without shims.
    daemon: Option<&'a Daemon>,
    took: Vec<Duration>,
}

/// Measures; returns Markdown tables. Bare tools and shims take turns in one run, so that whatever else the machine does
/// falls on all of them.
pub(super) fn measured(rounds: usize) -> Result<String> {
    let runner = guest::toolrunner()?;
    let dir = tempfile::tempdir().context("cannot make a folder for shims")?;
    let dir = dir.path();
    fs::write(dir.join("small"), "a line\n").context("cannot write a small file")?;
    // Its bytes come from memory, whatever the disk is.
    File::create(dir.join("big")).and_then(|file| file.set_len(LARGE)).context("cannot make a large file")?;
    let mut install = Command::new(&runner);
    install.arg("install-shims").arg(dir.join("shims")).arg("--no-profile").stdout(Stdio::null());
    if !install.status().context("cannot start the tool runner")?.success() {
        bail!("the shims cannot be installed");
    }
    let end = Daemon::start(&runner, dir, "end")?;
    let idle = end.resident()?;
    let each = Daemon::start(&runner, dir, "each")?;
    let way = |name, daemon| Way { name, daemon, took: Vec::new() };

    let small =
        || [way("bare", None), way("shim, becomes it", Some(&end)), way("shim, cuts it", Some(&each))];
    let (mut pinned, mut small) = (small(), small());
    let cat = |way: Option<&Daemon>| {
        let program = if way.is_some() { dir.join("shims/cat") } else { PathBuf::from("/usr/bin/cat") };
        command(&program, dir, way).arg("small").output()
    };
    say(&format!("running `cat small` {rounds} times in each of {} ways, twice", small.len()));
    {
        let _pinned = Pinned::to_one(&[&end, &each])?;
        turns(&mut pinned, rounds, WARM_UP, cat)?;
    }
    turns(&mut small, rounds, WARM_UP, cat)?;
    let mut large = [way("bare", None), way("shims", Some(&end))];
    say(&format!("1 GB through `cat big | wc -c`, {LARGE_ROUNDS} times in each of {} ways", large.len()));
    turns(&mut large, LARGE_ROUNDS, 1, |way| {
        command(Path::new("/bin/bash"), dir, way).args(["-c", "cat big | wc -c"]).output()
    })?;
    let busy = end.resident()?;
    let mut text = table("`cat small`, all on one processor", &mut pinned)?;
    text.push('\n');
    text.push_str(&table("`cat small`, on any", &mut small)?);
    text.push('\n');
    text.push_str(&table("1 GB through `cat big \\| wc -c`", &mut large)?);
    write!(text, "\nThe daemon's memory: {idle} KiB idle, {busy} KiB after all of this.\n")?;
    Ok(text)
}

fn command(program: &Path, dir: &Path, daemon: Option<&Daemon>) -> Command {
    let mut command = Command::new(program);
    command.current_dir(dir).stdin(Stdio::null()).stderr(Stdio::inherit()).env("PATH", PATH);
    if let Some(daemon) = daemon {
        command.env("PATH", format!("{}:{PATH}", dir.join("shims").display()));
        command.env("RINGFENCE_TOOLRUNNER_SOCKET", &daemon.socket).env("RINGFENCE_STRICT", "1");
    }
    command
}

/// The ways take turns, so that whatever else the machine does falls on all of them. All have to say the same.
fn turns(
    ways: &mut [Way<'_>],
    rounds: usize,
    warm_up: usize,
    run: impl Fn(Option<&Daemon>) -> std::io::Result<std::process::Output>,
) -> Result<()> {
    let mut said = None;
    for round in 0..rounds + warm_up {
        for way in &mut *ways {
            let begin = Instant::now();
            let output = run(way.daemon).context("cannot start a tool")?;
            let took = begin.elapsed();
            if !output.status.success() || *said.get_or_insert_with(|| output.stdout.clone()) != output.stdout
            {
                bail!("{}: {} and {:?}", way.name, output.status, String::from_utf8_lossy(&output.stdout));
            }
            if round >= warm_up {
                way.took.push(took);
            }
        }
    }
    Ok(())
}

/// Medians, the middle half, the fastest, and medians and the fastest as multiples of the first way's.
fn table(what: &str, ways: &mut [Way<'_>]) -> Result<String> {
    for way in &mut *ways {
        way.took.sort_unstable();
    }
    let figures = |way: &Way<'_>| {
        let at = |quarter: usize| {
            way.took.get(way.took.len() * quarter / 4).map(|time| time.as_secs_f64() * 1000.0)
        };
        let [Some(fastest), Some(low), Some(median), Some(high)] = [0, 1, 2, 3].map(at) else {
            bail!("no figures for {}", way.name)
        };
        Ok([fastest, low, median, high])
    };
    let [bare_fastest, _, bare_median, _] = figures(ways.first().context("no bare figure to compare with")?)?;
    let mut text = format!(
        "| {what} | median | middle half | fastest | to bare | the fastest to bare's |\n|---|---:|---:|---:|---:|---:|\n"
    );
    for way in ways {
        let [fastest, low, median, high] = figures(way)?;
        writeln!(
            text,
            "| {} | {median:.2} ms | {low:.2} to {high:.2} | {fastest:.2} ms | {:.2} | {:.2} |",
            way.name,
            median / bare_median,
            fastest / bare_fastest
        )?;
    }
    Ok(text)
}

/// This thread, what it starts, and daemons on one processor until this is dropped: the time is that of the work alone. On
/// several that are idle, waking a sleeping one for each question counts, too.
struct Pinned {
    before: Vec<(Option<Pid>, CpuSet)>,
}

impl Pinned {
    fn to_one(daemons: &[&Daemon]) -> Result<Self> {
        let daemons = daemons.iter().map(|daemon| Some(Pid::from_child(&daemon.child)));
        let mut pinned = Self { before: Vec::new() };
        for process in daemons.chain([None]) {
            let before = sched_getaffinity(process).context("cannot ask for processors")?;
            let first = (0..CpuSet::MAX_CPU).find(|processor| before.is_set(*processor));
            let mut one = CpuSet::new();
            one.set(first.context("there is no processor to run on")?);
            sched_setaffinity(process, &one).context("cannot run on one processor")?;
            pinned.before.push((process, before));
        }
        Ok(pinned)
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        for (process, before) in &self.before {
            let _ = sched_setaffinity(*process, before);
        }
    }
}

/// A daemon, ended when it is dropped.
struct Daemon {
    child: Child,
    socket: PathBuf,
}

impl Daemon {
    fn start(runner: &Path, dir: &Path, truncate: &str) -> Result<Self> {
        let socket = dir.join(truncate);
        let mut command = Command::new(runner);
        command.args(["--truncate", truncate, "--log", "/dev/null", "--socket"]).arg(&socket);
        let child = command.stdin(Stdio::null()).spawn().context("cannot start the tool runner")?;
        let daemon = Self { child, socket };
        let until = Instant::now() + PATIENCE;
        while UnixStream::connect(&daemon.socket).is_err() {
            if Instant::now() >= until {
                bail!("the tool runner does not listen");
            }
            thread::sleep(Duration::from_millis(5));
        }
        Ok(daemon)
    }

    /// Its resident memory, in KiB.
    fn resident(&self) -> Result<u64> {
        let status = fs::read_to_string(format!("/proc/{}/status", self.child.id()));
        let status = status.context("cannot read the daemon's status")?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        let figure =
            line.and_then(|line| line.split_ascii_whitespace().next()).context("no resident memory told")?;
        figure.parse().context("no figure of resident memory")
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::{Way, table};
    use std::time::Duration;

    #[test]
    fn medians_are_multiples_of_the_first() {
        let way = |name, times: &[u64]| Way {
            name,
            daemon: None,
            took: times.iter().map(|ms| Duration::from_millis(*ms)).collect(),
        };
        let mut ways = [way("bare", &[3, 1, 2, 90, 2]), way("shims", &[3, 4, 2, 3, 7])];
        let expected = "| x | median | middle half | fastest | to bare | the fastest to bare's |\n\
                        |---|---:|---:|---:|---:|---:|\n\
                        | bare | 2.00 ms | 2.00 to 3.00 | 1.00 ms | 1.00 | 1.00 |\n\
                        | shims | 3.00 ms | 3.00 to 4.00 | 2.00 ms | 1.50 | 2.00 |\n";
        assert_eq!(table("x", &mut ways).unwrap(), expected);
        assert!(table("x", &mut [way("bare", &[])]).is_err());
    }
}
