//! `ringfence approvals`: the tool calls and connections that wait for a person's decision, and approvals of more than one.

mod into_profile;
mod log;
mod notify;
mod profile_text;
mod standing;
mod trial;

use anyhow::bail;
use ringfence_base::{clock::now_micros as now, escape::line as printable};
use ringfence_client::{places::Places, sessions as client};
use ringfence_wire::{
    egress_asks::WaitingConnection,
    mcp::{McpReply, McpRequest, WaitingCall},
    tool_call::{Named as _, Outcome},
};
use std::{
    collections::BTreeSet,
    io::{self, Write},
    process::ExitCode,
    thread,
    time::Duration,
};

/// Lists and decides tool calls that wait for approval.
///
/// Without a subcommand it lists them, as `ringfence approvals list` does. A decision is for one call, once, unless `--scope` says
/// more. Connections of containers to hosts that their profiles do not grant wait among them, where `[net] ask` says so. Processes that the MCP client started may not decide (they may deny a connection), nor processes in a container.
#[derive(Debug, clap::Args)]
#[command(args_conflicts_with_subcommands = true)]
#[command(after_help = "Examples:
  ringfence approvals --watch
  ringfence approvals approve 3f2a9c1b
  ringfence approvals approve 3f2a9c1b --scope session
  ringfence approvals deny 3f2a9c1b
  ringfence approvals standing")]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    list: ListArgs,
}

#[derive(Debug, clap::Subcommand)]
pub(crate) enum Command {
    List(ListArgs),
    Approve(standing::ApproveArgs),
    /// Denies a tool call that waits.
    Deny(DecideArgs),
    Standing(standing::ListArgs),
    Revoke(standing::RevokeArgs),
    Log(log::Args),
    Notify(notify::Args),
}

/// `ringfence approve`, which is older than scopes.
impl From<DecideArgs> for Args {
    fn from(args: DecideArgs) -> Self {
        Command::Approve(args.into()).into()
    }
}

impl From<Command> for Args {
    fn from(command: Command) -> Self {
        Self { command: Some(command), list: ListArgs::default() }
    }
}

impl Args {
    /// The subcommand, the default one included.
    pub(super) fn command(self) -> Command {
        self.command.unwrap_or(Command::List(self.list))
    }
}

/// Lists the tool calls that wait for approval.
#[derive(Debug, Default, clap::Args)]
#[command(after_help = "Examples:
  ringfence approvals list --watch
  ringfence approvals list --json | jq -r .id")]
pub(crate) struct ListArgs {
    /// Stay, and show calls as they begin to wait.
    #[arg(long)]
    watch: bool,
    /// The audit database [default: the daemon's, if it runs, else the user's].
    #[arg(long, value_name = "FILE")]
    db: Option<String>,
    /// One JSON object per line.
    #[arg(long)]
    json: bool,
}

/// Decides one call.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  ringfence approvals
  ringfence approvals approve 3f2a9c1b
  ringfence approvals deny 3f2a9c1b")]
pub(crate) struct DecideArgs {
    /// The call's id, or its first characters (at least four).
    #[arg(value_name = "ID")]
    call: String,
    /// The audit database [default: the daemon's, if it runs, else the user's].
    #[arg(long, value_name = "FILE")]
    db: Option<String>,
}

pub(crate) fn run(args: Args) -> anyhow::Result<ExitCode> {
    match args.command() {
        Command::List(args) => list(&args),
        Command::Approve(args) => standing::approve(&args),
        Command::Deny(args) => decide(&args, false),
        Command::Standing(args) => standing::list(&args),
        Command::Revoke(args) => standing::revoke(&args),
        Command::Log(args) => log::run(&args),
        Command::Notify(args) => notify::run(&args),
    }
}

fn list(args: &ListArgs) -> anyhow::Result<ExitCode> {
    let places = Places::on_record(args.db.as_deref())?;
    let mut shown = BTreeSet::new();
    loop {
        let McpReply::Waiting { calls } = client::ask(&places, &McpRequest::Waiting)? else {
            bail!("the auditor sent an unexpected answer");
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
            "          … the first {shown} of {bytes} bytes of its arguments; `ringfence mcp calls {id}` shows all"
        )?;
    }
    writeln!(out, "          because: {}", printable(&because.join(", ")))?;
    if let Some(WaitingConnection { container, profile, within, .. }) = &call.connection {
        // Its profile was chosen by whoever runs there.
        let outer = within.as_ref().map_or_else(String::new, |outer| format!(" within container {outer}"));
        let whose = format!("container {container}{outer}, profile {profile}");
        writeln!(out, "          {}", printable(&whose))?;
    }
    writeln!(out, "          ringfence approvals approve {id}   or   ringfence approvals deny {id}")
}

/// Fewest characters of an id's beginning that name it, as for any decision.
const LEAST_NAMED: usize = 4;

/// What waits by that id, or by its beginning.
fn waiting(places: &Places, named: &str) -> anyhow::Result<WaitingCall> {
    let McpReply::Waiting { calls } = client::ask(places, &McpRequest::Waiting)? else {
        bail!("the auditor sent an unexpected answer");
    };
    let is_it =
        |call: &WaitingCall| call.id == named || named.len() >= LEAST_NAMED && call.id.starts_with(named);
    let mut found = calls.into_iter().filter(is_it);
    match (found.next(), found.next()) {
        (Some(call), None) => Ok(call),
        (Some(_), Some(_)) => bail!("{named:?} is the beginning of more than one id; give more of it"),
        (None, _) => bail!(
            "nothing with the id {named:?} waits; `ringfence approvals` lists what does (give at least four characters of an id)"
        ),
    }
}

/// What is decided, for whoever decides: of a connection, where to. Looked at before; where it cannot be told, nothing.
fn whereto(places: &Places, named: &str) -> String {
    let connection = waiting(places, named).ok().and_then(|call| call.connection);
    connection.map_or_else(String::new, |WaitingConnection { host, port, container, .. }| {
        printable(&format!(": {host} at port {port}, for container {container}"))
    })
}

/// Decides a call: its whole id.
fn decided(places: &Places, call: &str, approve: bool) -> anyhow::Result<String> {
    let request = McpRequest::Decide { call: call.to_owned(), approve };
    let McpReply::Decided { call } = client::ask(places, &request)? else {
        bail!("the auditor sent an unexpected answer");
    };
    Ok(call)
}

fn decide(args: &DecideArgs, approve: bool) -> anyhow::Result<ExitCode> {
    let places = Places::on_record(args.db.as_deref())?;
    let whereto = whereto(&places, &args.call);
    let call = decided(&places, &args.call, approve)?;
    let outcome = if approve { Outcome::Approved } else { Outcome::Denied };
    writeln!(io::stdout(), "{} {call}{whereto}", outcome.name())?;
    Ok(ExitCode::SUCCESS)
}
