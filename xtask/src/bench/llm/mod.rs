//! `bench llm`: what a worker adds to a turn, what the HTTP endpoint adds to a request, and what a worker takes of memory.

mod client;
mod memory;
mod parties;
mod served;
mod streams;

use super::figures::{self, Spread, Table};
use crate::build;
use crate::paths::target;
use crate::report::say;
use crate::setup;
use anyhow::{Context, Result, bail};
use client::{Direct, Runtime};
use served::{Provider, User, Worker};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

/// Measures an agent's worker around a compiled provider that answers at once: turns, first texts, HTTP, memory.
///
/// Compared are, in turns and in the same run: the provider alone, the worker as the daemon starts it (its log in memory,
/// so that the disk's own time is apart; beside it, with the log on disk), `ringfence agent start`, and for HTTP the gateways
/// LiteLLM and Portkey. A figure is the median of the rounds; what is added is taken round by round.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  cargo xtask bench llm > table.md\n  \
                        cargo xtask bench llm --rounds 3 --calls 50 --only turn,first\n  \
                        cargo xtask bench llm --json > figures.json")]
pub(crate) struct Args {
    /// How often each takes its turn.
    #[arg(long, value_name = "N", default_value_t = 9)]
    rounds: usize,
    /// Turns, or requests, of one round.
    #[arg(long, value_name = "N", default_value_t = 200)]
    calls: usize,
    /// Only some parts, comma between them.
    #[arg(long, value_name = "PARTS", value_delimiter = ',', value_enum)]
    only: Vec<Part>,
    /// Without LiteLLM and Portkey, which come from PyPI and npm.
    #[arg(long)]
    without_parties: bool,
    /// Measure this binary instead of one that is built now.
    #[arg(long, value_name = "FILE")]
    binary: Option<PathBuf>,
    /// One JSON object instead of a table.
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Part {
    /// A turn at the beginning of a conversation.
    Turn,
    /// The thousandth turn of one.
    Long,
    /// The time until a streamed answer's first text.
    First,
    /// The provider's own API over HTTP.
    Http,
    /// The same in a stream: its first text, and each event.
    Stream,
    /// What a worker takes, idle and with 10 MB of conversation.
    Memory,
}

/// How long something may take to happen.
const PATIENCE: Duration = Duration::from_secs(120);
/// Turns of a round that are not counted.
const WARM_UP: usize = 20;

/// What every part needs.
struct Bench<'a> {
    ringfence: &'a Path,
    provider: Provider,
    rounds: usize,
    calls: usize,
    table: Table,
}

pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    if args.rounds == 0 || args.calls < 20 {
        bail!("--rounds must be at least 1 and --calls at least 20, or there is nothing to compare");
    }
    setup::for_benchmarks()?;
    let wanted = |part| args.only.is_empty() || args.only.contains(&part);
    let ringfence = match &args.binary {
        Some(binary) => std::path::absolute(binary).context("no working directory")?,
        None => build::shipped()?,
    };
    build::package_binary("ringfence-vm-tests", "llm-provider", "release")?;
    let provider = Provider::start(&target().join("release/llm-provider"))?;
    let (rounds, calls) = (args.rounds, args.calls);
    let mut bench = Bench { ringfence: &ringfence, provider, rounds, calls, table: Table::default() };
    if wanted(Part::Turn) {
        bench.turns("a turn, p50, ms", &[], "at most 0.12")?;
    }
    if wanted(Part::Long) {
        bench.turns("turn 1000, p50, ms", &conversation(999, 200), "at most 0.3")?;
    }
    if wanted(Part::First) {
        bench.first()?;
    }
    if wanted(Part::Http) {
        parties::http(&mut bench, args.without_parties)?;
    }
    if wanted(Part::Stream) {
        streams::measure(&mut bench)?;
    }
    if wanted(Part::Memory) {
        memory::measure(&mut bench)?;
    }
    print!("{}", if args.json { bench.table.json() } else { bench.table.markdown() });
    Ok(ExitCode::SUCCESS)
}

/// So many turns of a conversation: a message and its answer, each with a text of so many bytes.
fn conversation(turns: usize, length: usize) -> Vec<String> {
    let text = |i: usize| format!("{i} {}", "what was said before ".repeat(length / 21 + 1));
    let role = |i: usize| if i.is_multiple_of(2) { "user" } else { "assistant" };
    (0..2 * turns).map(|i| client::message(role(i), text(i).get(..length).unwrap_or_default())).collect()
}

/// A folder whose files are memory: what is written there is on disk at once.
fn in_memory() -> Result<tempfile::TempDir> {
    tempfile::Builder::new().prefix("rf").tempdir_in("/dev/shm").context("cannot use /dev/shm")
}

/// A folder on the disk of the build.
fn on_disk() -> Result<tempfile::TempDir> {
    tempfile::Builder::new().prefix("rf").tempdir_in(target()).context("cannot write to the target folder")
}

/// One of the compared, ready for its calls.
struct Way {
    name: &'static str,
    one: Box<dyn FnMut() -> Result<Duration>>,
}

impl Way {
    fn new(name: &'static str, one: impl FnMut() -> Result<Duration> + 'static) -> Self {
        Self { name, one: Box::new(one) }
    }
}

impl Bench<'_> {
    /// Rounds of fresh ways, in another order each; the first way is what the others are compared with.
    fn compare(
        &self,
        calls: impl Fn(&str) -> usize,
        mut fresh: impl FnMut(&Self) -> Result<Vec<Way>>,
    ) -> Result<Vec<(&'static str, Vec<Spread>)>> {
        let mut all: Vec<(&'static str, Vec<Spread>)> = Vec::new();
        for round in 0..self.rounds {
            let mut ways = fresh(self)?;
            all.resize_with(ways.len(), || ("", Vec::new()));
            let count = ways.len();
            for place in 0..count {
                let index = (place + round) % count;
                let way = &mut ways[index];
                let calls = calls(way.name);
                let mut took = Vec::with_capacity(calls);
                for call in 0..calls + WARM_UP {
                    let time = (way.one)().with_context(|| way.name)?;
                    if call >= WARM_UP {
                        took.push(time);
                    }
                }
                all[index].0 = way.name;
                all[index].1.push(Spread::of(took));
            }
        }
        Ok(all)
    }

    /// A row of medians, and one of what each adds to the first.
    fn add(&mut self, row: &str, added: &str, all: &[(&'static str, Vec<Spread>)]) {
        let Some((_, base)) = all.first() else { return };
        for (name, rounds) in all {
            self.table.add(row, name, figures::median(rounds.iter().map(|spread| spread.p50)));
        }
        for (name, rounds) in &all[1..] {
            let more = rounds.iter().zip(base).map(|(own, direct)| own.p50 - direct.p50);
            self.table.add(added, name, figures::median(more));
        }
    }

    fn turns(&mut self, row: &str, history: &[String], aim: &str) -> Result<()> {
        say(&format!("{row}: {} rounds of {} turns", self.rounds, self.calls));
        let calls = self.calls;
        let all = self.compare(|_| calls, |bench| bench.ways("m", history, |(took, _)| took))?;
        let added = format!("{}: added to direct", row.trim_end_matches(", p50, ms"));
        self.add(row, &added, &all);
        self.table.aim(&added, "worker", aim);
        Ok(())
    }

    fn first(&mut self) -> Result<()> {
        say(&format!("first text: {} rounds of {} turns", self.rounds, self.calls));
        let calls = self.calls;
        let all = self.compare(|_| calls, |bench| bench.ways("pause", &[], |(_, first)| first))?;
        self.add("first streamed text, p50, ms", "first text: added to direct", &all);
        self.table.aim("first text: added to direct", "worker", "at most 0.10");
        Ok(())
    }

    /// The provider alone, the worker with its log in memory and on disk, and `ringfence agent start`.
    fn ways(
        &self,
        model: &str,
        history: &[String],
        pick: fn((Duration, Duration)) -> Duration,
    ) -> Result<Vec<Way>> {
        let mut direct = Direct::new(self.provider.port, model, history)?;
        let mut ways = vec![Way::new("direct", move || direct.turn().map(pick))];
        for (name, dir) in [("worker", in_memory()?), ("worker, log on disk", on_disk()?)] {
            let worker = Worker::start(self.ringfence, &self.provider, model, dir.path(), history)?;
            let mut runtime = Runtime::register(&worker.socket)?;
            ways.push(Way::new(name, move || {
                let _lives = (&worker, &dir);
                runtime.turn().map(pick)
            }));
        }
        let dir = in_memory()?;
        let profile = served::profile("", "anthropic", model, &self.provider.url());
        let data = dir.path().join("data");
        let user = User::start(self.ringfence, dir.path(), &data, &profile, history)?;
        let mut runtime = Runtime::register(&user.socket())?;
        ways.push(Way::new("ringfence agent start", move || {
            let _lives = (&user, &dir);
            runtime.turn().map(pick)
        }));
        Ok(ways)
    }
}
