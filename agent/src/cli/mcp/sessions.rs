//! `ringfence mcp sessions`, `calls` and `stats`: what MCP sessions did.

use crate::cli::output;
use anyhow::bail;
use clap::builder::PossibleValuesParser;
use ringfence_base::escape::line as printable;
use ringfence_client::{places::Places, sessions as client};
use ringfence_wire::{
    mcp::{McpReply, McpRequest},
    tool_call::{Action, Named as _, Outcome},
};
use serde_json::Value;
use std::{
    io::{self, Write},
    process::ExitCode,
};

/// Which database to read, and how to print.
#[derive(Debug, clap::Args)]
struct Source {
    /// The audit database [default: the daemon's, if it runs, else the user's].
    #[arg(long, value_name = "FILE")]
    db: Option<String>,
    /// One JSON object per line.
    #[arg(long)]
    json: bool,
}

/// Lists MCP sessions, newest first, or shows the standard error of one session's server.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  ringfence mcp sessions
  ringfence mcp sessions --stderr 3f2a9c1b
  ringfence mcp sessions --limit 1 --json | jq -r .id")]
pub(crate) struct SessionsArgs {
    #[command(flatten)]
    source: Source,
    /// Show at most N sessions, 1 to 1000.
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=1000))]
    limit: u32,
    /// Show the standard error of this session's server: the session's id, or its first characters (at least four).
    #[arg(long, value_name = "ID", conflicts_with = "limit")]
    stderr: Option<String>,
}

/// Lists tool calls, newest first, or shows one call with its kernel events.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  ringfence mcp calls --risk 60
  ringfence mcp calls 3f2a9c1b
  ringfence mcp calls --verdict block --json")]
pub(crate) struct CallsArgs {
    /// Show all of this call: its id, or its first characters (at least four).
    #[arg(value_name = "ID", conflicts_with_all = ["risk", "verdict", "outcome", "session", "container"])]
    call: Option<String>,
    #[command(flatten)]
    source: Source,
    /// Only calls with at least this risk score, 0 to 100.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(0..=100))]
    risk: Option<u8>,
    /// Only calls with this decision of the rules, of a person, or this outcome.
    #[arg(long, value_name = "V", value_parser = PossibleValuesParser::new(verdicts()))]
    verdict: Option<String>,
    /// Only calls with this outcome.
    #[arg(long, value_name = "O", value_parser = PossibleValuesParser::new(outcomes()))]
    outcome: Option<String>,
    /// Only calls of this session: its id, or its first characters (at least four).
    #[arg(long, value_name = "ID")]
    session: Option<String>,
    /// Only calls of servers in this container: its id, or the beginning of the id.
    #[arg(long, value_name = "ID")]
    container: Option<String>,
    /// Show at most N calls, 1 to 1000; `ringfence audit export` writes all.
    #[arg(long, value_name = "N", default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..=1000))]
    limit: u32,
}

/// Shows totals over all sessions: calls, flagged, blocked, average risk.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  ringfence mcp stats
  ringfence mcp stats --json")]
pub(crate) struct StatsArgs {
    #[command(flatten)]
    source: Source,
}

/// What `--verdict` takes.
fn verdicts() -> impl Iterator<Item = &'static str> {
    let actions = Action::ALL.iter().map(|action| action.name());
    actions.chain(Outcome::ALL.iter().map(|outcome| outcome.name()))
}

/// What `--outcome` takes: `approved` is a decision, and something else becomes of such a call.
fn outcomes() -> impl Iterator<Item = &'static str> {
    let all = Outcome::ALL.iter().filter(|outcome| **outcome != Outcome::Approved);
    all.map(|outcome| outcome.name())
}

pub(crate) fn sessions(args: &SessionsArgs) -> anyhow::Result<ExitCode> {
    if let Some(session) = &args.stderr {
        return stderr(&args.source, session);
    }
    let rows = rows(&args.source, &McpRequest::Sessions { limit: args.limit })?;
    let columns = [
        ("STARTED", "started_at"),
        ("SESSION", "id"),
        ("SERVER", "server_name"),
        ("CALLS", "calls"),
        ("INTENTS", "intents"),
        ("FLAGGED", "flagged"),
        ("RISK", "highest_risk"),
        ("ENDED", "ended_at"),
    ];
    show(
        &args.source,
        &rows,
        &columns,
        "no MCP session is on record; put `ringfence mcp --` before a server's command in your client's configuration, or let `ringfence mcp wrap FILE` do it",
    )
}

pub(crate) fn calls(args: &CallsArgs) -> anyhow::Result<ExitCode> {
    if let Some(call) = &args.call {
        return one_call(&args.source, call);
    }
    let request = McpRequest::Calls {
        risk: args.risk,
        verdict: args.verdict.clone(),
        outcome: args.outcome.clone(),
        session: args.session.clone(),
        container: args.container.clone(),
        limit: args.limit,
    };
    let rows = rows(&args.source, &request)?;
    let columns = [
        ("REQUESTED", "requested_at"),
        ("CALL", "id"),
        ("SERVER", "server_name"),
        ("TOOL", "tool_name"),
        ("TYPE", "operation_type"),
        ("RISK", "risk_score"),
        ("POLICY", "policy_action"),
        ("OUTCOME", "outcome"),
        ("INTENT BY", "intent_source"),
    ];
    show(&args.source, &rows, &columns, "no such call is on record")
}

/// Prints page by page, since one answer may not hold all of it.
fn stderr(source: &Source, session: &str) -> anyhow::Result<ExitCode> {
    let mut out = io::BufWriter::new(io::stdout().lock());
    let (mut after, mut any, mut dropped) = (0, false, 0);
    loop {
        let request = McpRequest::Stderr { session: session.to_owned(), after, limit: 500 };
        let page = rows(source, &request)?;
        let Some(last) = page.last().and_then(|row| row["number"].as_i64()) else { break };
        (after, any) = (last, true);
        for row in &page {
            if source.json {
                writeln!(out, "{row}")?;
                continue;
            }
            // A row without text only adds to the count.
            dropped += row["dropped"].as_u64().unwrap_or(0);
            let text = row["text"].as_str().unwrap_or_default();
            if !text.is_empty() {
                print_dropped(&mut out, std::mem::take(&mut dropped))?;
            }
            for line in text.lines() {
                writeln!(out, "{}  {}", cell(&row["timestamp"]), printable(line))?;
            }
        }
    }
    print_dropped(&mut out, dropped)?;
    out.flush()?;
    if !any && !source.json {
        eprintln!(
            "ringfence: this session's server wrote nothing to standard error, as far as the record goes"
        );
    }
    Ok(ExitCode::SUCCESS)
}

fn print_dropped(out: &mut impl Write, dropped: u64) -> io::Result<()> {
    if dropped == 0 { Ok(()) } else { writeln!(out, "[{dropped} bytes were not kept]") }
}

fn one_call(source: &Source, call: &str) -> anyhow::Result<ExitCode> {
    let rows = rows(source, &McpRequest::Call { call: call.to_owned() })?;
    let Some(row) = rows.first() else {
        bail!("no call's id begins with {call:?}, or more than one does (give at least four characters)");
    };
    let mut out = io::stdout().lock();
    if source.json {
        writeln!(out, "{row}")?;
        return Ok(ExitCode::SUCCESS);
    }
    for (key, value) in row.as_object().into_iter().flatten() {
        if !value.is_null() && !["events", "events_cut"].contains(&key.as_str()) {
            writeln!(out, "{:<16} {}", key.replace('_', " "), cell(value))?;
        }
    }
    let events = row["events"].as_array().map_or(&[][..], Vec::as_slice);
    if events.is_empty() {
        let why = if row["container"].is_null() {
            "the server runs in no container; to confine it, start it with `ringfence mcp --profile`"
        } else {
            "the kernel recorded no event that could belong to this call"
        };
        writeln!(out, "{:<16} none: {why}", "kernel events")?;
        return Ok(ExitCode::SUCCESS);
    }
    writeln!(out, "kernel events")?;
    for event in events {
        let target = event.get("path").or_else(|| event.get("addr")).unwrap_or(&Value::Null);
        writeln!(
            out,
            "  {:<9}  {:<10}  {:<8}  {}  {} (event {})",
            cell(&event["attribution"]),
            cell(&event["verdict"]),
            cell(&event["op"]),
            cell(target),
            cell(&event["exe"]),
            event["id"]
        )?;
    }
    if row["events_cut"] == true {
        writeln!(out, "  and more; `ringfence events --json` shows all")?;
    }
    Ok(ExitCode::SUCCESS)
}

pub(crate) fn stats(args: &StatsArgs) -> anyhow::Result<ExitCode> {
    let rows = rows(&args.source, &McpRequest::Stats)?;
    let mut out = io::stdout().lock();
    for row in &rows {
        if args.source.json {
            writeln!(out, "{row}")?;
            continue;
        }
        for (key, value) in row.as_object().into_iter().flatten() {
            writeln!(out, "{:<27} {}", key.replace('_', " "), cell(value))?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn rows(source: &Source, request: &McpRequest) -> anyhow::Result<Vec<Value>> {
    match client::ask(&Places::on_record(source.db.as_deref())?, request)? {
        McpReply::Rows { rows } => Ok(rows),
        other => bail!("the auditor sent an unexpected answer: {other:?}"),
    }
}

fn show(source: &Source, rows: &[Value], columns: &[(&str, &str)], none: &str) -> anyhow::Result<ExitCode> {
    let mut out = io::stdout().lock();
    if source.json {
        for row in rows {
            writeln!(out, "{row}")?;
        }
        return Ok(ExitCode::SUCCESS);
    }
    if rows.is_empty() {
        eprintln!("ringfence: {none}");
        return Ok(ExitCode::SUCCESS);
    }
    let table: Vec<Vec<String>> =
        std::iter::once(columns.iter().map(|(title, _)| (*title).to_owned()).collect())
            .chain(rows.iter().map(|row| columns.iter().map(|(_, key)| cell(&row[*key])).collect()))
            .collect();
    out.write_all(output::table(&table).as_bytes())?;
    Ok(ExitCode::SUCCESS)
}

/// A value for the terminal, escaped: tool names, for example, come from servers.
fn cell(value: &Value) -> String {
    match value {
        Value::Null => "-".to_owned(),
        Value::String(text) => printable(text),
        other => printable(&other.to_string()),
    }
}
