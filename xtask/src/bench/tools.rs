//! `bench tools`: what the tool server adds to a command, what a denial costs; then the tool runner's shims (`shims`).

use super::{place::OneProcessor, shims};
use crate::{build, report::say, setup};
use anyhow::{Context, Result, bail};
use serde_json::{Value, json};
use std::{
    fmt::Write as _,
    io::{BufRead, BufReader, Write},
    path::Path,
    process::{Child, ChildStdin, ChildStdout, Command, ExitCode, Stdio},
    time::{Duration, Instant},
};

/// What is run: found on PATH by both.
const PROGRAM: &str = "/usr/bin/echo";
/// Rounds that are not counted: caches fill.
/// Denied calls of a round that follow the first.
const IN_A_ROW: usize = 10;
const WARM_UP: usize = 50;

/// Measures what the tool server and the tool runner's shims add to a command.
///
/// A bare spawn of `echo`, the same through `ringfence tools` with the gate, Landlock and seccomp, and a denied call take
/// turns in one run, so that whatever else the machine does falls on all of them: where the scheduler puts them, and with
/// client and server on one processor, where nobody waits for another to wake up. Prints Markdown tables of medians.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  cargo xtask bench tools --rounds 2000 > table.md")]
pub(crate) struct Args {
    /// How often each is done
    #[arg(long, value_name = "N", default_value_t = 1000)]
    rounds: usize,
    /// Only the tool runner's part, which needs no release build of ringfence
    #[arg(long)]
    shims_only: bool,
}

/// One thing that is measured.
struct Way {
    name: &'static str,
    took: Vec<Duration>,
}

pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    if args.rounds == 0 {
        bail!("--rounds 0 measures nothing; give at least 1");
    }
    if args.shims_only {
        print!("{}", shims::measured(args.rounds)?);
        return Ok(ExitCode::SUCCESS);
    }
    setup::for_benchmarks()?;
    let ringfence = build::shipped()?;
    let mut places = Vec::new();
    for (name, one) in [("on any processor", false), ("on one processor", true)] {
        let _stays = one.then(OneProcessor::take).transpose()?;
        places.push(Place { name, one, session: Session::start(&ringfence)?, ways: ways() });
    }
    say(&format!("running echo {} times in each of {} ways", args.rounds, 2 * ways().len()));
    let echo = json!({"program": "echo", "args": ["hello"]});
    let denied = json!({"program": "rm", "args": ["-rf", "/"]});
    for round in 0..args.rounds + WARM_UP {
        for Place { one, session, ways, .. } in &mut places {
            let _stays = one.then(OneProcessor::take).transpose()?;
            let mut took: Vec<_> =
                vec![vec![bare()?], vec![session.call(&echo, false)?], vec![session.call(&denied, true)?]];
            took.push((0..IN_A_ROW).map(|_| session.call(&denied, true)).collect::<Result<_>>()?);
            if round >= WARM_UP {
                ways.iter_mut().zip(took).for_each(|(way, took)| way.took.extend(took));
            }
        }
    }
    for Place { name, session, mut ways, .. } in places {
        print!("{name}, held by {}:\n\n{}\n", session.enforcement, table(&mut ways)?);
        session.end()?;
    }
    print!("\n{}", shims::measured(args.rounds)?);
    Ok(ExitCode::SUCCESS)
}

/// Where the client and the server of one session run.
struct Place {
    name: &'static str,
    one: bool,
    session: Session,
    ways: [Way; 4],
}

fn ways() -> [Way; 4] {
    // A process that has just come and gone leaves the processor's caches cold, which is most of what the first call takes.
    [
        "bare spawn of echo",
        "tool server: echo",
        "tool server: denied call, after that",
        "tool server: denied call, after another",
    ]
    .map(|name| Way { name, took: Vec::new() })
}

/// Starts echo, reads what it says to its end, waits for it: what the tool server does, too.
fn bare() -> Result<Duration> {
    let begin = Instant::now();
    let output = Command::new(PROGRAM).arg("hello").stdin(Stdio::null()).output();
    let output = output.with_context(|| format!("cannot start {PROGRAM}"))?;
    let took = begin.elapsed();
    if output.stdout != b"hello\n" {
        bail!("{PROGRAM} said {:?}", String::from_utf8_lossy(&output.stdout));
    }
    Ok(took)
}

/// A session of the tool server.
struct Session {
    server: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
    next: u64,
    enforcement: String,
}

impl Session {
    fn start(ringfence: &Path) -> Result<Self> {
        let grant = json!({
            "fs_read": {"only": ["/usr", "/etc"]}, "fs_write": {"only": []}, "exec": {"only": ["echo"]},
            "net": {"only": []}, "max_calls": "unlimited", "valid_for_generation": "all",
        });
        let mut command = Command::new(ringfence);
        command.args(["tools", "--workdir", "/usr"]).env("RINGFENCE_GRANT", grant.to_string());
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut server = command.spawn().with_context(|| format!("cannot start {}", ringfence.display()))?;
        let input = server.stdin.take().context("no pipe to the server")?;
        let output = BufReader::new(server.stdout.take().context("no pipe from the server")?);
        let mut session = Self { server, input, output, next: 0, enforcement: String::new() };
        let envelope = session.ask(&json!({"program": "echo"}))?;
        let text = envelope["content"][0]["text"].as_str().unwrap_or_default().to_owned();
        let envelope: Value =
            serde_json::from_str(&text).with_context(|| format!("the server said {text:?}"))?;
        session.enforcement = envelope["enforcement"].to_string();
        Ok(session)
    }

    /// One call, from its line to its answer's.
    fn call(&mut self, arguments: &Value, is_error: bool) -> Result<Duration> {
        let begin = Instant::now();
        let result = self.ask(arguments)?;
        let took = begin.elapsed();
        if result["isError"] != is_error {
            bail!("the server answered {result}");
        }
        Ok(took)
    }

    fn ask(&mut self, arguments: &Value) -> Result<Value> {
        self.next += 1;
        let params = json!({"name": "shell", "arguments": arguments});
        let request = json!({"jsonrpc": "2.0", "id": self.next, "method": "tools/call", "params": params});
        // One write, as clients do: two would be two wake-ups.
        self.input.write_all(format!("{request}\n").as_bytes()).context("the server does not read")?;
        let mut line = String::new();
        self.output.read_line(&mut line).context("the server does not answer")?;
        let mut answer: Value =
            serde_json::from_str(&line).with_context(|| format!("the server said {line:?}"))?;
        Ok(answer["result"].take())
    }

    fn end(mut self) -> Result<()> {
        drop(self.input);
        let status = self.server.wait().context("cannot wait for the server")?;
        if status.success() { Ok(()) } else { bail!("the server ended with {status}") }
    }
}

/// Medians, the middle half, and each median above the first.
fn table(ways: &mut [Way]) -> Result<String> {
    for way in ways.iter_mut() {
        way.took.sort_unstable();
    }
    let at =
        |took: &[Duration], quarter: usize| took.get(took.len() * quarter / 4).map(Duration::as_secs_f64);
    let bare = ways.first().and_then(|way| at(&way.took, 2)).context("no bare figure to compare with")?;
    let mut text = String::from("| | median | middle half | above bare |\n|---|---:|---:|---:|\n");
    for Way { name, took } in ways {
        let [Some(low), Some(median), Some(high)] = [1, 2, 3].map(|quarter| at(took, quarter)) else {
            bail!("no figures for {name}")
        };
        let [low, median, high, above] = [low, median, high, median - bare].map(|seconds| seconds * 1000.0);
        writeln!(text, "| {name} | {median:.3} ms | {low:.3} to {high:.3} | {above:+.3} ms |")?;
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::{Way, table};
    use std::time::Duration;

    #[test]
    fn medians_stand_above_the_bare_one() {
        let way = |name, times: &[u64]| Way {
            name,
            took: times.iter().map(|us| Duration::from_micros(*us)).collect(),
        };
        let expected = "| | median | middle half | above bare |\n|---|---:|---:|---:|\n\
                        | bare | 0.800 ms | 0.700 to 0.900 | +0.000 ms |\n\
                        | other | 1.000 ms | 1.000 to 1.100 | +0.200 ms |\n";
        let mut ways = [way("bare", &[900, 600, 800, 700]), way("other", &[1000, 1100, 900, 1000])];
        assert_eq!(table(&mut ways).unwrap(), expected);
        assert!(table(&mut [way("bare", &[])]).is_err());
    }
}
