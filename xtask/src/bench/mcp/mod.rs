//! `bench mcp`: what `ringfence mcp` adds to a server's calls, beside `tee` and another proxy.

mod store;
mod way;

use super::compared;
use super::{
    figures::{self, Spread, Table},
    place::OneProcessor,
};
use crate::build;
use crate::paths::target;
use crate::report::say;
use crate::setup;
use anyhow::{Context, Result, bail};
use serde_json::json;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};
use way::{Peer, Way};

/// The proxy from PyPI that is compared with, and its version.
const FASTMCP: &str = "fastmcp==4.1.2";
/// What it runs.
const PROXY: &str = "import sys
from fastmcp.server import create_proxy
create_proxy({'mcpServers': {'echo': {'command': sys.argv[1], 'args': []}}}, name='proxy').run(show_banner=False, log_level='ERROR')";

/// Measures `ringfence mcp` around a compiled echo server: latency, throughput, start, memory, and the dashboard's list.
///
/// Beside it, in turns and in the same run: the server alone, `tee | server | tee`, a recorder that does the least that any
/// one must (a strict parse, two hashes and a write for each line: the floor), and the FastMCP proxy. A figure is the median
/// of the rounds; what is compared is taken round by round, so that whatever else the machine does falls on all.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  cargo xtask bench mcp > table.md\n  \
                        cargo xtask bench mcp --rounds 3 --calls 300 --only latency\n  \
                        cargo xtask bench mcp --json > figures.json")]
pub(crate) struct Args {
    /// How often each takes its turn.
    #[arg(long, value_name = "N", default_value_t = 9)]
    rounds: usize,
    /// Calls of one turn.
    #[arg(long, value_name = "N", default_value_t = 1000)]
    calls: usize,
    /// Only some parts, comma between them.
    #[arg(long, value_name = "PARTS", value_delimiter = ',', value_enum)]
    only: Vec<Part>,
    /// Without the FastMCP proxy, which comes from PyPI.
    #[arg(long)]
    without_fastmcp: bool,
    /// Measure this binary instead of one that is built now.
    #[arg(long, value_name = "FILE")]
    binary: Option<PathBuf>,
    /// One JSON object instead of a table.
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Part {
    /// Calls one after the other.
    Latency,
    /// Calls as fast as they go.
    Throughput,
    /// From the start to the first answer.
    Start,
    /// 100,000 calls in one session.
    Long,
    /// The newest 100 of a million calls, over REST.
    List,
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
    build::package_binary("ringfence-vm-tests", "mcp-echo", "release")?;
    let echo = target().join("release/mcp-echo");
    build::example("ringfence-session", "floor", &["test-support"], "release")?;
    let dir = tempfile::tempdir().context("cannot make a directory for the databases")?;
    let ways = ways(&ringfence, &echo, dir.path(), args)?;
    let mut table = Table::default();
    if wanted(Part::Latency) {
        latency(&ways, args, &mut table)?;
    }
    if wanted(Part::Throughput) {
        throughput(&ways, args, &mut table)?;
    }
    if wanted(Part::Start) {
        start(&ways, args, &mut table)?;
    }
    if wanted(Part::Long) {
        store::long(&ringfence, &ways, dir.path(), &mut table)?;
    }
    if wanted(Part::List) {
        store::list(&ringfence, dir.path(), &mut table)?;
    }
    print!("{}", if args.json { table.json() } else { table.markdown() });
    Ok(ExitCode::SUCCESS)
}

fn ways(ringfence: &Path, echo: &Path, dir: &Path, args: &Args) -> Result<Vec<Way>> {
    let copy = dir.join("copy").display().to_string();
    let echo = echo.display().to_string();
    let db = dir.join("audit.db").display().to_string();
    let floor = target().join("release/examples/floor").display().to_string();
    let tee = format!("tee '{copy}.in' | '{echo}' | tee '{copy}.out'");
    let mut ways = vec![
        Way::new("direct", &[&echo], 1),
        Way::new("tee", &["sh", "-c", &tee], 1),
        Way::new(
            "ringfence",
            &[
                &ringfence.display().to_string(),
                "mcp",
                "--server-name",
                "echo",
                "--port",
                "0",
                "--db",
                &db,
                "--",
                &echo,
            ],
            1,
        ),
        Way::new("floor", &[&floor, &format!("{copy}.chain"), &echo], 1),
    ];
    if !args.without_fastmcp {
        let python = compared::from_pypi(FASTMCP, "FastMCP")?.join("bin/python");
        ways.push(Way::new("FastMCP", &[&python.display().to_string(), "-c", PROXY, &echo], 10));
    }
    Ok(ways)
}

/// What a call takes, in two settings beside each other.
///
/// A process that wakes another on a processor that sleeps waits for it to get up: tens of microseconds, more than all the
/// work on a call, and whether that happens is where the scheduler put them. So what each way adds is measured with all of
/// its processes on one processor, the client too, which has neither to wait nor to be lucky; what the scheduler makes of
/// the same stands beside it.
fn latency(ways: &[Way], args: &Args, table: &mut Table) -> Result<()> {
    say(&format!("latency: {} rounds of {} calls each, twice", args.rounds, args.calls));
    let begin = || -> Result<Vec<Peer>> {
        let mut peers: Vec<Peer> = ways.iter().map(Peer::start).collect::<Result<_>>()?;
        peers.iter_mut().try_for_each(|peer| (0..50).try_for_each(|_| peer.call()))?;
        Ok(peers)
    };
    let mut placed = begin()?;
    // The auditor is the user's and not the session's: that one session is kept to a processor does not keep it there, too.
    ways.iter().try_for_each(Way::await_auditor)?;
    let mut together = {
        let _one = OneProcessor::take()?;
        begin()?
    };
    let mut rounds = [vec![Vec::new(); ways.len()], vec![Vec::new(); ways.len()]];
    for round in 0..args.rounds {
        for place in 0..ways.len() {
            // Another order each round: who follows whom matters to caches.
            let index = (place + round) % ways.len();
            let calls = (args.calls / ways[index].slower).max(20);
            let one = OneProcessor::take()?;
            rounds[0][index].push(together[index].turn(calls)?);
            drop(one);
            rounds[1][index].push(placed[index].turn(calls)?);
        }
    }
    let [together_rounds, placed_rounds] = &rounds;
    latency_rows(ways, together_rounds, "", ["at most 0.03", "at most 1.5", "at least 30"], table);
    latency_rows(ways, placed_rounds, "as the scheduler places them: ", [""; 3], table);
    together.into_iter().chain(placed).try_for_each(Peer::end)
}

/// `aims`: of what is added, of its 99th of 100 beside tee's, and of another proxy's beside it.
fn latency_rows(ways: &[Way], rounds: &[Vec<Spread>], setting: &str, aims: [&str; 3], table: &mut Table) {
    let row = |name: &str| format!("{setting}{name}");
    for (index, way) in ways.iter().enumerate() {
        let pick = |at: fn(&Spread) -> f64| figures::median(rounds[index].iter().map(at));
        let added =
            figures::median(rounds[index].iter().zip(&rounds[0]).map(|(own, direct)| own.p50 - direct.p50));
        table.add(&row("a tools/call, p50, ms"), way.name, pick(|s| s.p50));
        table.add(&row("a tools/call, p99, ms"), way.name, pick(|s| s.p99));
        if index > 0 {
            table.add(&row("added to direct, p50, ms"), way.name, added);
        }
    }
    table.aim(&row("added to direct, p50, ms"), "ringfence", aims[0]);
    let mut ratio = |name: &str, of: &str, over: &str, under: &str, aim: &str| {
        table.ratio(&row(name), &row(of), over, under, aim);
    };
    ratio("p99 to tee's", "a tools/call, p99, ms", "ringfence", "tee", aims[1]);
    ratio("added p50, FastMCP's to ours", "added to direct, p50, ms", "FastMCP", "ringfence", aims[2]);
}

fn throughput(ways: &[Way], args: &Args, table: &mut Table) -> Result<()> {
    let calls = 20 * args.calls;
    say(&format!("throughput: {} rounds of {calls} calls each", args.rounds.div_ceil(2)));
    let mut rates: Vec<Vec<f64>> = vec![Vec::new(); ways.len()];
    let (mut against_tee, mut against_floor) = (Vec::new(), Vec::new());
    for _ in 0..args.rounds.div_ceil(2) {
        for (index, way) in ways.iter().enumerate() {
            let calls = (calls / (way.slower * way.slower)).max(100);
            let mut peer = Peer::start(way)?;
            peer.call()?;
            // What a client's own making of its requests takes says nothing of who stands between it and the server.
            let requests = peer.requests(calls);
            let begin = Instant::now();
            peer.burst(&requests)?;
            rates[index].push(calls as f64 / begin.elapsed().as_secs_f64());
            peer.end()?;
        }
        against_tee.extend(rates[2].last().zip(rates[1].last()).map(|(own, tee)| own / tee));
        against_floor.extend(rates[2].last().zip(rates[3].last()).map(|(own, floor)| floor / own));
    }
    for (way, rates) in ways.iter().zip(rates) {
        table.add("calls a second, pipelined", way.name, figures::median(rates.into_iter()));
    }
    table.add("throughput, to tee's", "ringfence", figures::median(against_tee.into_iter()));
    let name = "a call pipelined, floor's throughput to ours";
    table.add(name, "ringfence", figures::median(against_floor.into_iter()));
    table.aim(name, "ringfence", "at most 1.3");
    Ok(())
}

fn start(ways: &[Way], args: &Args, table: &mut Table) -> Result<()> {
    say(&format!("start: {} rounds", args.rounds));
    // The auditor runs already, as for every session of a user but the first.
    let mut first: Vec<Vec<f64>> = vec![Vec::new(); ways.len()];
    let mut called: Vec<Vec<f64>> = vec![Vec::new(); ways.len()];
    for _ in 0..args.rounds {
        for (index, way) in ways.iter().enumerate() {
            let begin = Instant::now();
            let mut peer = Peer::start(way)?;
            first[index].push(begin.elapsed().as_secs_f64() * 1e3);
            peer.call()?;
            called[index].push(begin.elapsed().as_secs_f64() * 1e3);
            peer.end()?;
        }
    }
    let (mut new, mut cold) = (Vec::new(), Vec::new());
    for round in 0..args.rounds.min(7) {
        let way = ways[2].with_database(&format!("cold-{round}.db"));
        new.push(first_call(&way)?);
        // Whoever has the lock is the auditor that this session started; another one is to start for the next.
        way.end_auditor()?;
        cold.push(first_call(&way)?);
    }
    // Starting is many small steps, each of which may wait for a processor: beside the median stands the fastest.
    let over = |all: &[Vec<f64>], index: usize, of: fn(std::vec::IntoIter<f64>) -> f64| {
        let pick = |index: usize| of(all.get(index).cloned().unwrap_or_default().into_iter());
        pick(index) - pick(0)
    };
    let (median, least) =
        (figures::median::<std::vec::IntoIter<f64>>, figures::least::<std::vec::IntoIter<f64>>);
    for (index, way) in ways.iter().enumerate().skip(1) {
        table.add("start to the first answer, over direct, ms", way.name, over(&first, index, median));
        table.add("the same, fastest, ms", way.name, over(&first, index, least));
        table.add(
            "start to the first call's answer, over direct, ms",
            way.name,
            over(&called, index, median),
        );
        table.add("start to the first call's answer, fastest, ms", way.name, over(&called, index, least));
    }
    table.aim("the same, fastest, ms", "ringfence", "below 15");
    for (name, round) in [("no database yet", new), ("a database, no auditor", cold)] {
        let base = figures::least(called[0].iter().copied());
        let row = format!("start to the first call's answer, {name}, fastest, ms");
        table.add(&row, "ringfence", figures::least(round.into_iter()) - base);
    }
    Ok(())
}

fn first_call(way: &Way) -> Result<f64> {
    let begin = Instant::now();
    let mut peer = Peer::start(way)?;
    peer.call()?;
    let took = begin.elapsed().as_secs_f64() * 1e3;
    peer.end()?;
    Ok(took)
}

/// How long something may take to happen.
const PATIENCE: Duration = Duration::from_secs(60);

fn request(id: usize) -> String {
    let mut text = json!({
        "jsonrpc": "2.0", "id": id, "method": "tools/call",
        "params": { "name": "get_echo", "arguments": { "text": "hello" } }
    })
    .to_string();
    text.push('\n');
    text
}
