//! `ringfence mcp pin`: tools that changed since they were pinned or whose descriptions are odd, and deciding about them.

use super::inventory::cell;
use crate::cli::{
    exit::Exit,
    output::{self, agreed},
};
use anyhow::bail;
use ringfence_base::escape::line as printable;
use ringfence_client::{places::Places, sessions as client};
use ringfence_pins::definition::is_hash;
use ringfence_wire::mcp::{McpReply, McpRequest};
use serde_json::Value;
use std::{
    io::{self, IsTerminal},
    process::ExitCode,
};

/// Shows tools of MCP servers that changed or whose descriptions are odd, and approves or rejects what they say.
///
/// A tool's name, title, description, schemas and annotations are pinned when a server first lists it. If they change, clients
/// get the server's list without the tool, and its calls are refused, until you approve the change. What a description should
/// not have (characters that cannot be seen, instructions to the model, other servers' tools) raises the risk of the tool's
/// calls until you approve it. You approve exactly what you were shown: name its hash, or answer the question on a terminal.
/// Processes that the MCP client started may not decide, nor processes in a container. Tools of agents' servers are among them, as
/// AGENT/SERVER/TOOL; the agent has them, or not, from its next turn on.
#[derive(Debug, clap::Args)]
#[command(after_help = "Exit status:
  0  nothing waits, or the decision is made
  2  a tool waits

Examples:
  ringfence mcp pin
  ringfence mcp pin github
  ringfence mcp pin --approve github/create_issue         # shows the change and asks
  ringfence mcp pin --approve github/create_issue=HASH    # approves the change with this hash
  ringfence mcp pin --reject github/create_issue=HASH     # keeps it blocked; it is no longer pending
  ringfence mcp pin --json | jq -r .sha256")]
pub(crate) struct PinArgs {
    /// Only tools of this server: its name, or its number in the inventory.
    server: Option<String>,
    /// Approve what this tool says, with this hash, all 64 digits. Without a hash, show it and ask on the terminal. Can be
    /// given more than once.
    #[arg(long, value_name = "SERVER/TOOL[=HASH]")]
    approve: Vec<String>,
    /// Reject the definition with this hash. Clients do not get the tool until its server changes it again and you approve that.
    /// Can be given more than once.
    #[arg(long, value_name = "SERVER/TOOL[=HASH]")]
    reject: Vec<String>,
    /// The audit database [default: the daemon's, if it runs, else the user's].
    #[arg(long, value_name = "FILE")]
    db: Option<String>,
    /// Print one JSON object per line, one for each tool that waits.
    #[arg(long, conflicts_with_all = ["approve", "reject"])]
    json: bool,
}

pub(super) fn pin(args: &PinArgs) -> anyhow::Result<ExitCode> {
    let places = Places::on_record(args.db.as_deref())?;
    let decisions = args.approve.iter().map(|named| (named, true));
    let decisions: Vec<(&String, bool)> =
        decisions.chain(args.reject.iter().map(|named| (named, false))).collect();
    for (named, approve) in &decisions {
        decide(&places, args.db.as_deref(), named, *approve)?;
    }
    if !decisions.is_empty() {
        return Ok(ExitCode::SUCCESS);
    }
    let rows = pending(&places, args.server.as_deref())?;
    let mut text = String::new();
    for row in &rows {
        text += &if args.json { format!("{row}\n") } else { shown(row, args.db.as_deref()) };
    }
    if let Some(left_out @ 1..) = rows.first().and_then(|row| row["left_out"].as_u64())
        && !args.json
    {
        text += &format!("and {left_out} more; decide about these first\n");
    }
    output::print(&text)?;
    if rows.is_empty() && !args.json {
        eprintln!("ringfence: no tool waits; `ringfence mcp inventory` shows what is pinned");
    }
    Ok(if rows.is_empty() { Exit::Success } else { Exit::Attention }.into())
}

fn pending(places: &Places, named: Option<&str>) -> anyhow::Result<Vec<Value>> {
    match client::ask(places, &McpRequest::PendingTools { named: named.map(str::to_owned) })? {
        McpReply::Rows { rows } => Ok(rows),
        other => bail!("the auditor sent an unexpected answer: {other:?}"),
    }
}

/// Whether a tool is the one that is named: by its server's name or number, and as it is or as it is shown.
fn is_named(row: &Value, name: &str) -> bool {
    let number = row["server"].to_string();
    let of_agent = format!("{}/{}", row["agent"].as_str().unwrap_or_default(), cell(&row["server_name"]));
    let servers =
        [row["server_name"].as_str().unwrap_or_default(), &cell(&row["server_name"]), &number, &of_agent];
    let tools = [row["tool"].as_str().unwrap_or_default(), &cell(&row["tool"])];
    servers.iter().any(|server| {
        let tool = name.strip_prefix(server).and_then(|rest| rest.strip_prefix('/'));
        tool.is_some_and(|tool| tools.contains(&tool))
    })
}

/// The one tool that has this hash; several are not told apart by it.
fn only<'a>(rows: &'a [Value], hash: &str, name: &str) -> anyhow::Result<Option<&'a Value>> {
    let with: Vec<&Value> = rows.iter().filter(|row| row["sha256"] == hash).collect();
    match with.as_slice() {
        [] => Ok(None),
        [row] => Ok(Some(row)),
        rows => bail!(several(rows.iter().copied(), name)),
    }
}

fn several<'a>(rows: impl IntoIterator<Item = &'a Value>, name: &str) -> String {
    let numbers: Vec<String> = rows.into_iter().map(|row| row["server"].to_string()).collect();
    format!(
        "{name} is pending on {} servers; use a server number instead: {}",
        numbers.len(),
        numbers.join(", ")
    )
}

/// Decides about the tool that is named; without a hash, shows it and asks.
fn decide(places: &Places, db: Option<&str>, named: &str, approve: bool) -> anyhow::Result<()> {
    let (name, hash) = match named.rsplit_once('=') {
        Some((name, hash)) if is_hash(&hash.to_ascii_lowercase()) => (name, Some(hash.to_ascii_lowercase())),
        _ => (named, None),
    };
    if !name.contains('/') {
        bail!("{named:?} is not SERVER/TOOL=HASH, such as github/create_issue=3f29...");
    }
    let mut rows = pending(places, Some(name))?;
    if rows.is_empty() {
        // It may be named as it is shown, which the store does not know.
        rows = pending(places, None)?;
    }
    rows.retain(|row| is_named(row, name));
    let shown_name = printable(name);
    let row = match (&hash, rows.as_slice()) {
        (_, []) => bail!("the tool {shown_name} has nothing to review; `ringfence mcp pin` shows what has"),
        (Some(hash), rows) => match only(rows, hash, &shown_name)? {
            Some(row) => row,
            None => bail!(
                "the tool {shown_name} does not say now what was shown with the hash {hash}: nothing is decided; look again at what `ringfence mcp pin` shows"
            ),
        },
        (None, [row]) => {
            output::print(&shown(row, db))?;
            if !io::stdin().is_terminal() || !io::stdout().is_terminal() {
                bail!("nothing was decided: without a terminal to ask on, the command has to name the hash");
            }
            if !agreed(if approve { "approve this?" } else { "reject this?" })? {
                bail!("nothing was decided: {shown_name} still waits");
            }
            row
        }
        (None, rows) => bail!(several(rows, &shown_name)),
    };
    let request = McpRequest::DecideTool {
        server: row["server"].as_i64().unwrap_or_default(),
        tool: row["tool"].as_str().unwrap_or_default().to_owned(),
        sha256: row["sha256"].as_str().unwrap_or_default().to_owned(),
        approve,
    };
    match client::ask(places, &request)? {
        McpReply::ToolDecided => {
            let word = if approve { "approved" } else { "rejected" };
            output::print(&format!("{shown_name}: {word}\n")).map(drop)
        }
        other => bail!("the auditor sent an unexpected answer: {other:?}"),
    }
}

/// A tool that waits, and the command that approves exactly this.
fn shown(row: &Value, db: Option<&str>) -> String {
    let name = format!("{}/{}", cell(&row["server_name"]), cell(&row["tool"]));
    // An agent's server is not the one that the user's clients have under this name.
    let name = row["agent"].as_str().map_or(name.clone(), |agent| format!("{}/{name}", printable(agent)));
    let since = cell(&row["since"]);
    let (mut text, body) = if row["changed"] == true {
        let parts: Vec<&str> =
            row["parts"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
        let what = if parts.is_empty() { String::new() } else { format!(" ({})", parts.join(", ")) };
        (format!("! {name}  changed{what}, and waits since {since}:\n"), row["difference"].as_str())
    } else {
        (format!("! {name}  has an odd description since {since}:\n"), row["shown"].as_str())
    };
    // Two that read the same have no difference.
    let body = body.filter(|body| !body.is_empty()).or(row["shown"].as_str());
    let body = body.unwrap_or("(its definition is in the session's journal only)");
    body.lines().for_each(|line| text += &format!("    {}\n", printable(line)));
    for flag in row["flags"].as_array().into_iter().flatten() {
        text += &format!(
            "  odd: {} ({}): {}\n",
            cell(&flag["why"]),
            cell(&flag["place"]),
            cell(&flag["excerpt"])
        );
    }
    text += &format!("  server: {}  no. {}\n", cell(&row["command"]), row["server"]);
    text += &format!("  hash of this: {}\n", cell(&row["sha256"]));
    // By its number: names may be several servers', and have anything in them.
    let named = format!("{}/{}={}", row["server"], cell(&row["tool"]), cell(&row["sha256"]));
    let quoted = quoted(&named);
    let db = db.map_or_else(String::new, |db| format!(" --db {}", self::quoted(&printable(db))));
    text += &format!("  to approve this: ringfence mcp pin{db} --approve {quoted}\n");
    text
}

/// A word for a shell.
fn quoted(word: &str) -> String {
    let is_plain = word.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_./=:@%+,".contains(&b));
    if is_plain { word.to_owned() } else { format!("'{}'", word.replace('\'', r"'\''")) }
}

#[cfg(test)]
mod tests {
    use super::{is_named, only, shown};
    use serde_json::json;

    #[test]
    fn the_command_that_is_shown_names_the_one_tool() {
        let row = |server: u32| {
            json!({"server": server, "server_name": "github.com/x/servers", "tool": "a/b", "sha256": "f0",
                "changed": false, "shown": "x", "since": "now", "command": "c", "flags": []})
        };
        let text = shown(&row(7), None);
        assert!(text.contains("--approve 7/a/b=f0\n"), "{text}");
        let same = json!({"server": 7, "server_name": "s", "tool": "t", "sha256": "f0", "changed": true, "difference": "",
            "shown": "title: a\ndescription: b\n", "since": "now", "command": "c", "flags": []});
        assert!(shown(&same, None).contains("\n    description: b\n"), "what reads the same is shown");
        for named in ["7/a/b", "github.com/x/servers/a/b"] {
            assert!(is_named(&row(7), named), "{named}");
        }
        assert!(!is_named(&row(8), "7/a/b") && !is_named(&row(7), "7/b") && !is_named(&row(7), "7a/b"));
        let rows = [row(7), row(8)];
        assert!(only(&rows, "f0", "x").is_err_and(|error| error.to_string().contains("7, 8")));
        assert_eq!(only(&rows[..1], "f0", "x").expect("one"), Some(&rows[0]));
        assert_eq!(only(&rows, "00", "x").expect("none"), None);
    }
}
