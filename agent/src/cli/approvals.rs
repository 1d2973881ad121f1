//! `ringfence approvals`, `approve` and `deny`: the tool calls that wait for a person.

use crate::{
    auditor::printable,
    mcp::{client, session::now, state::Places},
};
use anyhow::bail;
use ringfence_wire::mcp::{McpReply, McpRequest, WaitingCall};
use std::{
    collections::BTreeSet,
    io::{self, Write},
    process::ExitCode,
    thread,
    time::Duration,
};

/// Lists the tool calls that wait for approval.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  ringfence approvals --watch
  ringfence approve 3f2a9c")]
pub(crate) struct ListArgs {
    /// Stay, and show calls as they begin to wait.
    #[arg(long)]
    watch: bool,
    /// The audit database [default: the daemon's, where it runs; else the user's].
    #[arg(long, value_name = "FILE")]
    db: Option<String>,
    /// One JSON object a line.
    #[arg(long)]
    json: bool,
}

/// Decides one call.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  ringfence approvals
  ringfence approve 3f2a9c1b
  ringfence deny 3f2a9c1b

A decision is for that one call and counts once. A process that the MCP client started may not decide, nor one in a container.")]
pub(crate) struct DecideArgs {
    /// The call's id, or its first characters (at least four).
    #[arg(value_name = "ID")]
    call: String,
    /// The audit database [default: the daemon's, where it runs; else the user's].
    #[arg(long, value_name = "FILE")]
    db: Option<String>,
}

pub(crate) fn list(args: &ListArgs) -> anyhow::Result<ExitCode> {
    let places = Places::on_record(args.db.as_deref())?;
    let mut shown = BTreeSet::new();
    loop {
        let McpReply::Waiting { calls } = client::ask(&places, &McpRequest::Waiting)? else {
            bail!("the auditor answered something else");
        };
        if calls.is_empty() && !args.watch && !args.json {
            eprintln!("ringfence: no call waits for approval");
        }
        let mut out = io::stdout().lock();
        for call in calls.iter().filter(|call| !shown.contains(&call.id)) {
            if args.json {
                writeln!(out, "{}", serde_json::to_string(call)?)?;
            } else {
                describe(&mut out, call)?;
            }
        }
        out.flush()?;
        drop(out);
        shown = calls.into_iter().map(|call| call.id).collect();
        if !args.watch {
            return Ok(ExitCode::SUCCESS);
        }
        thread::sleep(Duration::from_millis(500));
    }
}

fn describe(out: &mut impl Write, call: &WaitingCall) -> io::Result<()> {
    let left = (call.until - now()).max(0) / 1_000_000;
    let because: Vec<&str> = call.rules.iter().chain(&call.reasons).map(String::as_str).collect();
    let id = printable(&call.id);
    writeln!(
        out,
        "{id}  {}: {}  risk {}, {left} s left",
        printable(&call.server),
        printable(&call.tool),
        call.score
    )?;
    writeln!(out, "          {}", printable(&call.arguments))?;
    if let Some(bytes) = call.arguments_bytes {
        let shown = call.arguments.len();
        writeln!(
            out,
            "          … the first {shown} of {bytes} bytes of its arguments; `ringfence calls {id}` has all"
        )?;
    }
    writeln!(out, "          because: {}", printable(&because.join(", ")))?;
    writeln!(out, "          ringfence approve {id}   or   ringfence deny {id}")
}

pub(crate) fn decide(args: &DecideArgs, approve: bool) -> anyhow::Result<ExitCode> {
    let places = Places::on_record(args.db.as_deref())?;
    let request = McpRequest::Decide { call: args.call.clone(), approve };
    let McpReply::Decided { call } = client::ask(&places, &request)? else {
        bail!("the auditor answered something else");
    };
    writeln!(io::stdout(), "{} {call}", if approve { "approved" } else { "denied" })?;
    Ok(ExitCode::SUCCESS)
}
