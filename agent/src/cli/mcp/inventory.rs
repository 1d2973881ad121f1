//! `ringfence mcp inventory`: the MCP servers that sessions had, their tools, and what changed in them.

use crate::cli::{
    exit::Exit,
    output::{self, agreed},
};
use anyhow::bail;
use ringfence_base::escape::line as printable;
use ringfence_client::{places::Places, sessions as client};
use ringfence_wire::mcp::{McpReply, McpRequest};
use serde_json::Value;
use std::{
    io::{self, IsTerminal},
    process::ExitCode,
};

/// Lists the MCP servers that sessions and agents had, with versions, tools, calls and changes.
///
/// A server is a name and the command that is started under it: another command under the same name is another server, and is
/// said to be one. A server of an agent's is AGENT/SERVER, and has an address; its calls are in `ringfence events trace`. With
/// SERVER, its tools are listed and what changed in them.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  ringfence mcp inventory
  ringfence mcp inventory github
  ringfence mcp inventory github --json | jq '.tools[].name'
  ringfence mcp inventory 7 --forget       # its next session pins its tools anew")]
pub(crate) struct InventoryArgs {
    /// Only this server: its name, or its number.
    server: Option<String>,
    /// Forget this server, and what is pinned of its tools. By its number, or by a name that only one server has.
    #[arg(long, requires = "server", conflicts_with = "json")]
    forget: bool,
    /// The audit database [default: the daemon's, if it runs, else the user's].
    #[arg(long, value_name = "FILE")]
    db: Option<String>,
    /// Print one JSON object per line, one for each server.
    #[arg(long)]
    json: bool,
    /// Skip the confirmation prompt.
    #[arg(long, requires = "forget")]
    yes: bool,
}

pub(super) fn inventory(args: &InventoryArgs) -> anyhow::Result<ExitCode> {
    let places = Places::on_record(args.db.as_deref())?;
    let servers = servers(&places, args.server.clone())?;
    if let (Some(name), true) = (&args.server, servers.is_empty()) {
        bail!(
            "no session on record had a server {name:?}; `ringfence mcp inventory` lists those that there are"
        );
    }
    if args.forget {
        return forget(&places, &servers, args.yes);
    }
    if args.json {
        let lines: Vec<String> = servers.iter().map(|row| format!("{row}\n")).collect();
        return output::print(&lines.concat());
    }
    if servers.is_empty() {
        eprintln!(
            "ringfence: no MCP server is on record; put `ringfence mcp --` before a server's command in your client's configuration, or let `ringfence mcp wrap FILE` do it"
        );
        return Ok(ExitCode::SUCCESS);
    }
    if args.server.is_none() {
        return output::print(&overview(&servers));
    }
    let texts: Vec<String> = servers.iter().map(describe).collect();
    output::print(&texts.join("\n"))
}

/// Servers of the inventory; with a name or a number those alone, whole.
pub(super) fn servers(places: &Places, server: Option<String>) -> anyhow::Result<Vec<Value>> {
    match client::ask(places, &McpRequest::Inventory { server })? {
        McpReply::Rows { rows } => Ok(rows),
        other => bail!("the auditor sent an unexpected answer: {other:?}"),
    }
}

fn forget(places: &Places, servers: &[Value], yes: bool) -> anyhow::Result<ExitCode> {
    let [server] = servers else {
        let numbers: Vec<String> = servers.iter().map(|row| cell(&row["id"])).collect();
        bail!(
            "{} servers have that name; use a server number instead: {}",
            servers.len(),
            numbers.join(", ")
        );
    };
    let named = format!("{} ({})", cell(&server["name"]), cell(&server["command"]));
    if !yes {
        if !io::stdin().is_terminal() || !io::stdout().is_terminal() {
            bail!("nothing was forgotten: not a terminal; pass --yes to confirm");
        }
        let question =
            format!("forget the server {named}? Its next session trusts whatever its tools say then.");
        if !agreed(&question)? {
            return Ok(Exit::Attention.into());
        }
    }
    let request = McpRequest::ForgetServer { server: server["id"].as_i64().unwrap_or_default() };
    match client::ask(places, &request)? {
        McpReply::ToolDecided => output::print(&format!("{named}: forgotten\n")),
        other => bail!("the auditor sent an unexpected answer: {other:?}"),
    }
}

fn overview(servers: &[Value]) -> String {
    let head =
        ["NO", "SERVER", "VERSION", "TOOLS", "CALLS", "WAITS", "ODD", "LAST SEEN", "LAST CHANGE", "COMMAND"];
    let mut table = vec![head.map(str::to_owned).to_vec()];
    for row in servers {
        table.push(vec![
            cell(&row["id"]),
            named(row),
            version(row),
            cell(&row["tool_count"]),
            cell(&row["calls"]),
            cell(&row["held"]),
            cell(&row["flagged"]),
            cell(&row["last_seen"]),
            cell(&row["last_change"]),
            cell(&row["command"]),
        ]);
    }
    output::table(&table)
}

/// One server whole.
fn describe(row: &Value) -> String {
    let mut text = format!("{}  no. {}  {}\n", named(row), cell(&row["id"]), version(row));
    text += &format!("  command     {}\n", cell(&row["command"]));
    text += &format!("  seen        {} to {}\n\n", cell(&row["first_seen"]), cell(&row["last_seen"]));
    let head = ["TOOL", "CALLS", "LAST CALL", "FIRST SEEN", "LAST SEEN", "PINNED", "STATE"];
    let mut table = vec![head.map(str::to_owned).to_vec()];
    let list = |key: &str| row[key].as_array().map_or(&[][..], Vec::as_slice);
    for tool in list("tools") {
        let hash: String = tool["sha256"].as_str().unwrap_or("-").chars().take(12).collect();
        table.push(vec![
            cell(&tool["name"]),
            cell(&tool["calls"]),
            cell(&tool["last_call"]),
            cell(&tool["first_seen"]),
            cell(&tool["last_seen"]),
            hash,
            state(tool),
        ]);
    }
    text += &output::table(&table);
    if row["cut"] == true {
        text += "  the tools are too many for this answer; ask for this server by its number\n";
    }
    if !list("changes").is_empty() {
        text += "\n";
        let mut table = vec![["CHANGED", "TOOL", "WHAT", "DETAIL"].map(str::to_owned).to_vec()];
        for change in list("changes") {
            let detail: String = cell(&change["detail"]).chars().take(100).collect();
            let what = cell(&change["change"]).replace('_', " ");
            table.push(vec![cell(&change["at"]), cell(&change["tool"]), what, detail]);
        }
        text += &output::table(&table);
    }
    text
}

/// How a tool stands.
fn state(tool: &Value) -> String {
    let has = |key: &str| !tool[key].is_null();
    let odd = tool["flags"].as_array().is_some_and(|flags| !flags.is_empty());
    match () {
        () if has("gone_at") => format!("gone since {}", cell(&tool["gone_at"])),
        () if has("rejected_at") => format!("rejected by {}", cell(&tool["rejected_by"])),
        () if has("changed_sha256") => "changed, waits: ringfence mcp pin".to_owned(),
        () if has("held") => format!("kept from clients: {}", cell(&tool["held"])),
        () if odd && !has("approved_at") => "odd description: ringfence mcp pin".to_owned(),
        () if has("approved_at") => format!("approved by {}", cell(&tool["approved_by"])),
        () => "as first seen".to_owned(),
    }
}

fn named(row: &Value) -> String {
    if let Some(agent) = row["agent"].as_str() {
        return format!("{}/{}", printable(agent), cell(&row["name"]));
    }
    let inside = if row["contained"] == 1 { " (in a container)" } else { "" };
    format!("{}{inside}", cell(&row["name"]))
}

fn version(row: &Value) -> String {
    let info = &row["info"];
    match (info["name"].as_str(), info["version"].as_str()) {
        (Some(name), Some(version)) => printable(&format!("{name} {version}")),
        (Some(name), None) => printable(name),
        _ => "-".to_owned(),
    }
}

/// A value for the terminal, escaped: names come from servers.
pub(super) fn cell(value: &Value) -> String {
    match value {
        Value::Null => "-".to_owned(),
        Value::String(text) => printable(text),
        other => printable(&other.to_string()),
    }
}
