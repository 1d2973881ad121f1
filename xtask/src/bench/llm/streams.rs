//! Streamed answers over HTTP: what the endpoint adds to the first text, and to each event.

use super::{
    Bench, Way,
    client::Http,
    in_memory,
    served::{self, User, free_port},
};
use crate::report::say;
use anyhow::{Context, Result, ensure};
use std::time::Duration;

/// What the endpoint may add, ms.
const AIM: &str = "at most 0.10";
/// Events of an answer that tell when they were sent.
const TICKS: usize = 20;

/// The provider itself beside an agent's endpoint, whose log is in memory.
pub(super) fn measure(bench: &mut Bench<'_>) -> Result<()> {
    let (home, data) = (in_memory()?, in_memory()?);
    let port = free_port()?;
    let profile = served::profile(
        &format!("http = true\nhttp_port = {port}"),
        "anthropic",
        "pause",
        &bench.provider.url(),
    );
    // A client's choice of a model is its own.
    let profile = profile.replace("model = \"pause\"", "model = \"pause\"\nmodels = [\"clock\"]");
    let mut user = User::start(bench.ringfence, home.path(), data.path(), &profile, &[])?;
    let through = format!("x-api-key: {}\r\n", user.token(data.path())?);
    let targets = [
        ("direct", bench.provider.port, "x-api-key: sk-direct-0123456789\r\n".to_owned()),
        ("endpoint", port, through),
    ];
    let ways = |one: fn(&mut Http) -> Result<Duration>| {
        let ways = targets.iter().map(|(name, port, headers)| {
            let mut http = Http::connect(*port, head(*port, headers))?;
            Ok(Way::new(name, move || one(&mut http)))
        });
        ways.collect::<Result<Vec<_>>>()
    };
    say(&format!("streams: {} rounds of {} answers", bench.rounds, bench.calls));
    let calls = bench.calls;
    for (row, one) in
        [("first streamed text", first as fn(&mut Http) -> Result<Duration>), ("each event", event)]
    {
        let all = bench.compare(|_| calls, |_| ways(one))?;
        let added = format!("HTTP, {row}: added to direct");
        bench.add(&format!("HTTP, {row}, p50, ms"), &added, &all);
        bench.table.aim(&added, "endpoint", AIM);
    }
    Ok(())
}

fn head(port: u16, headers: &str) -> String {
    format!(
        "POST /v1/messages HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nContent-Type: application/json\r\n\
         anthropic-version: 2023-06-01\r\n{headers}"
    )
}

fn request(model: &str) -> String {
    format!(
        r#"{{"model":"{model}","max_tokens":100,"stream":true,"messages":[{{"role":"user","content":"Which files are there?"}}]}}"#
    )
}

/// How long until a streamed answer's first text.
fn first(http: &mut Http) -> Result<Duration> {
    http.ask(request("pause").as_bytes(), "It has ").map(|(_, first)| first)
}

/// How long an event of an answer was on its way: the median of the answer's.
fn event(http: &mut Http) -> Result<Duration> {
    let mut lags = http.lags(request("clock").as_bytes())?;
    ensure!(lags.len() == TICKS, "{} of {TICKS} events came with their time", lags.len());
    lags.sort_unstable();
    lags.get(TICKS / 2).copied().context("no event")
}
