//! `bench mcp`: what `ringfence mcp` adds to a server's calls, beside `tee` and another proxy.

mod store;
mod way;

use super::figures::{self, Spread, Table};
use crate::build;
use crate::paths::target;
use crate::report::{quietly, say, step};
use crate::setup;
use anyhow::{Context, Result, bail};
use ringfence_ebpf_build::cache_dir;
use serde_json::json;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
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
/// Beside it, in turns and in the same run: the server alone, `tee | server | tee`, and the FastMCP proxy. A figure is the
/// median of the rounds; what is compared is taken round by round, so that whatever else the machine does falls on all.
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
        None => build::binary("release")?,
    };
    build::package_binary("ringfence-vm-tests", "mcp-echo", "release")?;
    let echo = target().join("release/mcp-echo");
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
    ];
    if !args.without_fastmcp {
        let python = fastmcp()?;
        ways.push(Way::new("FastMCP", &[&python.display().to_string(), "-c", PROXY, &echo], 10));
    }
    Ok(ways)
}

/// The interpreter of a folder in the cache that has FastMCP; made where it is not there yet.
fn fastmcp() -> Result<PathBuf> {
    let place = cache_dir().join(FASTMCP.replace("==", "-"));
    let python = place.join("bin/python");
    let works = |python: &Path| {
        Command::new(python).args(["-c", "import fastmcp"]).output().is_ok_and(|o| o.status.success())
    };
    if !works(&python) {
        step("installing FastMCP, the proxy that is compared with", || {
            quietly(Command::new("python3").args(["-m", "venv", "--clear"]).arg(&place))?;
            quietly(Command::new(&python).args(["-m", "pip", "install", "--quiet", FASTMCP]))
        })?;
    }
    if !works(&python) {
        bail!("{FASTMCP} was installed to {}, but cannot be imported", place.display());
    }
    Ok(python)
}

fn latency(ways: &[Way], args: &Args, table: &mut Table) -> Result<()> {
    say(&format!("latency: {} rounds of {} calls each", args.rounds, args.calls));
    let mut peers: Vec<Peer> = ways.iter().map(Peer::start).collect::<Result<_>>()?;
    for peer in &mut peers {
        for _ in 0..50 {
            peer.call()?;
        }
    }
    let mut rounds: Vec<Vec<Spread>> = vec![Vec::new(); ways.len()];
    for round in 0..args.rounds {
        for place in 0..ways.len() {
            // Another order each round: who follows whom matters to caches.
            let index = (place + round) % ways.len();
            let mut took = Vec::new();
            for _ in 0..(args.calls / ways[index].slower).max(20) {
                let begin = Instant::now();
                peers[index].call()?;
                took.push(begin.elapsed());
            }
            rounds[index].push(Spread::of(took));
        }
    }
    for (index, way) in ways.iter().enumerate() {
        let pick = |at: fn(&Spread) -> f64| figures::median(rounds[index].iter().map(at));
        let base = &rounds[0];
        let added = figures::median(rounds[index].iter().zip(base).map(|(own, direct)| own.p50 - direct.p50));
        table.add("a tools/call, p50, ms", way.name, pick(|s| s.p50));
        table.add("a tools/call, p99, ms", way.name, pick(|s| s.p99));
        if index > 0 {
            table.add("added to direct, p50, ms", way.name, added);
        }
    }
    table.ratio("p99 to tee's", "a tools/call, p99, ms", "ringfence", "tee", "at most 1.5");
    table.aim("added to direct, p50, ms", "ringfence", "at most 0.03");
    table.ratio(
        "added p50, FastMCP's to ours",
        "added to direct, p50, ms",
        "FastMCP",
        "ringfence",
        "at least 30",
    );
    peers.into_iter().try_for_each(Peer::end)
}

fn throughput(ways: &[Way], args: &Args, table: &mut Table) -> Result<()> {
    let calls = 20 * args.calls;
    say(&format!("throughput: {} rounds of {calls} calls each", args.rounds.div_ceil(2)));
    let mut rates: Vec<Vec<f64>> = vec![Vec::new(); ways.len()];
    let mut against_tee = Vec::new();
    for _ in 0..args.rounds.div_ceil(2) {
        for (index, way) in ways.iter().enumerate() {
            let calls = (calls / (way.slower * way.slower)).max(100);
            let mut peer = Peer::start(way)?;
            peer.call()?;
            let begin = Instant::now();
            peer.burst(calls)?;
            rates[index].push(calls as f64 / begin.elapsed().as_secs_f64());
            peer.end()?;
        }
        against_tee.extend(rates[2].last().zip(rates[1].last()).map(|(own, tee)| own / tee));
    }
    for (way, rates) in ways.iter().zip(rates) {
        table.add("calls a second, pipelined", way.name, figures::median(rates.into_iter()));
    }
    table.add("throughput, to tee's", "ringfence", figures::median(against_tee.into_iter()));
    table.aim("throughput, to tee's", "ringfence", "at least 0.9");
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
