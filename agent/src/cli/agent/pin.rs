//! `ringfence agent pin`: the descriptions of an agent's MCP tools when they were first used, and approving a change.

use super::owner::Owner;
use crate::cli::{
    exit::Exit,
    output::{agreed, print},
};
use anyhow::{Context, bail};
use jiff::Timestamp;
use nix::unistd::geteuid;
use ringfence_base::escape::line as printable;
use ringfence_client::{places::Places, sessions as client};
use ringfence_llm_worker::{
    control::AgentStatus,
    mcp::pins::{Error, Pins, Told},
};
use ringfence_pins::{
    definition::{is_hash, name_digest},
    difference,
};
use ringfence_policy::agents::home::Home;
use ringfence_wire::mcp::{McpReply, McpRequest};
use serde_json::{Map, Value, json};
use std::{
    collections::BTreeMap,
    io::{self, IsTerminal},
    path::PathBuf,
    process::ExitCode,
};

/// Shows an agent's MCP tools and their changes, and approves a change.
///
/// Ringfence remembers a tool's description and schema when an agent first uses it. If the server changes them, the model does
/// not get the tool until you approve the change; from the next turn on it gets it. You approve exactly what you were shown:
/// name its hash, or answer the question on a terminal. If the server changes the tool again in between, the new change waits.
/// `ringfence mcp pin` and the dashboard show and decide the same, for all agents and for the servers of MCP sessions; there a
/// change can be rejected, too.
#[derive(Debug, clap::Args)]
#[command(after_help = "Exit status:
  0  no change waits, or the named change is approved
  2  a change waits for approval

Examples:
  ringfence agent pin reviewer
  ringfence agent pin reviewer --approve github/create_issue        # shows the change and asks
  ringfence agent pin reviewer --approve github/create_issue=HASH   # approves the change with this hash
  sudo ringfence agent pin reviewer   # an agent of the daemon
  ringfence agent pin reviewer --json | jq '.github.create_issue.changed.sha256'")]
pub(crate) struct PinArgs {
    /// The agent.
    name: String,
    /// Approve the change of this tool with this hash, all 64 digits. Without a hash, show the change and ask on the terminal.
    /// Can be given more than once.
    #[arg(long, value_name = "SERVER/TOOL[=HASH]")]
    approve: Vec<String>,
    /// Print one JSON object, by server and tool.
    #[arg(long, conflicts_with = "approve")]
    json: bool,
}

pub(super) fn pin(args: &PinArgs) -> anyhow::Result<ExitCode> {
    let owner = Owner::find(&args.name)?;
    let of_daemon = matches!(owner, Owner::Daemon(_));
    if of_daemon && !geteuid().is_root() {
        bail!(
            "{} is an agent of the daemon, and only root may read its files; try again with sudo",
            args.name
        );
    }
    if of_daemon && client::connect_daemon(&Places::locate(None)?).is_none() {
        bail!(
            "the daemon's auditor, which has what is pinned, does not answer; is `ringfence daemon` running?"
        );
    }
    let asked = Asked { places: Places::on_record(None)?, agent: &args.name, of_daemon };
    if !args.approve.is_empty() {
        let mut approved: BTreeMap<String, Told> = BTreeMap::new();
        let mut outcome = Ok(());
        for named in &args.approve {
            match approve(&asked, named) {
                Ok((server, tool, sha256)) => {
                    approved.entry(server).or_default().insert(name_digest(&tool), sha256.into());
                }
                Err(error) => {
                    outcome = Err(error);
                    break;
                }
            }
        }
        // A worker that runs is told by the auditor; until another does, what waits is read here.
        if owner.enter(&args.name).is_ok() {
            let pins = Pins::new(owner.pins(&args.name));
            for (server, told) in approved {
                let _ = pins.settle(&server, &told);
            }
        }
        return outcome.map(|()| ExitCode::SUCCESS);
    }
    let tools = asked.tools()?;
    let waits = tools.iter().any(Tool::waits);
    let mut text = if args.json {
        format!("{}\n", by_server(&tools))
    } else {
        tools.iter().map(|tool| tool.shown(&args.name)).collect()
    };
    owner.enter(&args.name)?;
    let own = Pins::new(owner.pins(&args.name)).read()?;
    let is_known = |server: &str, name: &str| {
        tools.iter().any(|tool| tool.text("server_name") == server && tool.text("tool") == name)
    };
    let all = own.iter().flat_map(|(server, pins)| pins.keys().map(move |tool| (server, tool)));
    let untold = all.filter(|(server, tool)| !is_known(server, tool)).count();
    if tools.is_empty() && untold == 0 && !args.json {
        text = "no MCP tool was used yet\n".to_owned();
    }
    print(&text)?;
    if untold > 0 {
        eprintln!(
            "ringfence: {untold} tools are pinned by the agent's own file alone, because the auditor that answers here has not got them: it is told when the agent lists them next, at its next message, and then they are shown here; where it has no room for more, its log says so"
        );
    }
    Ok(if waits { Exit::Attention } else { Exit::Success }.into())
}

/// Whose tools are asked for.
struct Asked<'a> {
    places: Places,
    agent: &'a str,
    of_daemon: bool,
}

impl Asked<'_> {
    /// Its tools, those first that wait.
    fn tools(&self) -> anyhow::Result<Vec<Tool>> {
        let mut tools = Vec::new();
        loop {
            let after = u32::try_from(tools.len()).unwrap_or(u32::MAX);
            let request =
                McpRequest::AgentPins { agent: self.agent.to_owned(), of_daemon: self.of_daemon, after };
            match client::ask(&self.places, &request)? {
                McpReply::Rows { rows } if rows.is_empty() => return Ok(tools),
                McpReply::Rows { rows } => tools.extend(rows.into_iter().map(Tool)),
                other => bail!("the auditor sent an unexpected answer: {other:?}"),
            }
        }
    }
}

/// A tool as the auditor has it.
struct Tool(Value);

impl Tool {
    fn text(&self, key: &str) -> &str {
        self.0[key].as_str().unwrap_or_default()
    }

    /// The hash of what it says now, where that is something else than is trusted.
    fn changed(&self) -> Option<&str> {
        self.0["changed_sha256"].as_str()
    }

    /// A change that nobody decided about.
    fn waits(&self) -> bool {
        self.changed().is_some() && self.0["rejected_at"].is_null()
    }

    fn name(&self) -> String {
        printable(&format!("{}/{}", self.text("server_name"), self.text("tool")))
    }

    /// As the list has it.
    fn shown(&self, agent: &str) -> String {
        let (sha256, since) = (self.text("sha256").get(..12).unwrap_or_default(), when(self.text("since")));
        let mut text = match self.changed() {
            Some(changed) if self.waits() => {
                let (server, tool) = (self.text("server_name"), self.text("tool"));
                let command = command(agent, server, tool, changed);
                return format!("{}  to approve this: {command}\n", self.change());
            }
            Some(_) => {
                let by = printable(self.text("rejected_by"));
                format!("{}  {sha256}  since {since}; its change was rejected by {by}\n", self.name())
            }
            None => format!("{}  {sha256}  since {since}\n", self.name()),
        };
        text += &flagged(&self.0["flags"]);
        text
    }

    /// The difference between what is trusted and what it says now.
    fn change(&self) -> String {
        let since = when(self.text("changed_at"));
        let mut text = format!("! {}  has changed, and waits for approval since {since}:\n", self.name());
        match (self.0["definition"].as_str(), self.0["changed_definition"].as_str()) {
            (_, None) => text += "    (there was no room for what it says now)\n",
            (None, Some(now)) => {
                text += "    (there was no room for what it said before; now it says)\n";
                for line in difference::as_text(now).lines() {
                    text += &format!("    {}\n", printable(line));
                }
            }
            (Some(before), Some(now)) => {
                for line in difference::lines(before, now).lines() {
                    text += &format!("    {}\n", printable(line));
                }
            }
        }
        text += &flagged(&self.0["changed_flags"]);
        text += &format!("  hash of this: {}\n", self.changed().unwrap_or_default());
        text
    }

    /// As JSON has one definition: all that it says, and two parts of that for themselves.
    fn definition(&self, [sha256, since, text, flags]: [&str; 4]) -> Map<String, Value> {
        let whole = self.0[text].as_str();
        let parts: Value = whole.and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default();
        let definition = json!({
            "sha256": self.0[sha256], "since": self.0[since], "description": parts["description"],
            "parameters": parts["inputSchema"], "definition": whole, "flags": self.0[flags],
        });
        let Value::Object(definition) = definition else { return Map::new() };
        definition
    }
}

/// All tools as one JSON object, by server and name.
fn by_server(tools: &[Tool]) -> Value {
    let mut servers: BTreeMap<&str, BTreeMap<&str, Value>> = BTreeMap::new();
    for tool in tools {
        let mut shown = tool.definition(["sha256", "since", "definition", "flags"]);
        if tool.changed().is_some() {
            let keys = ["changed_sha256", "changed_at", "changed_definition", "changed_flags"];
            let mut changed = tool.definition(keys);
            for key in ["rejected_by", "rejected_at"] {
                changed.insert(key.to_owned(), tool.0[key].clone());
            }
            shown.insert("changed".to_owned(), changed.into());
        }
        servers.entry(tool.text("server_name")).or_default().insert(tool.text("tool"), shown.into());
    }
    json!(servers)
}

/// Approves the change with the named hash; without a hash, shows the change and asks. Gives what was approved: server, tool, hash.
fn approve(asked: &Asked<'_>, named: &str) -> anyhow::Result<(String, String, String)> {
    let agent = asked.agent;
    let (name, hash) = named.rsplit_once('=').map_or((named, None), |(name, hash)| (name, Some(hash)));
    let (server, tool) = name
        .split_once('/')
        .with_context(|| format!("{named:?} is not SERVER/TOOL=HASH, such as github/create_issue=3f29..."))?;
    let hash = match hash {
        Some(hash) if is_hash(&hash.to_ascii_lowercase()) => Some(hash.to_ascii_lowercase()),
        Some(hash) => {
            bail!("{hash:?} is not a hash of 64 digits; `ringfence agent pin {agent}` prints it")
        }
        None => None,
    };
    let tools = asked.tools()?;
    let known = tools.iter().find(|known| known.text("server_name") == server && known.text("tool") == tool);
    let Some((known, changed)) = known.and_then(|known| Some((known, known.changed()?))) else {
        bail!(
            "the tool {tool:?} of [mcp.{server}] waits for no approval; `ringfence agent pin {agent}` shows what does"
        );
    };
    match hash {
        Some(hash) if hash == changed => {}
        Some(hash) => bail!(
            "the tool {tool:?} of [mcp.{server}] does not say now what was shown with the hash {hash}: nothing is approved; look again at what `ringfence agent pin {agent}` shows"
        ),
        None => {
            print(&known.change())?;
            if !io::stdin().is_terminal() || !io::stdout().is_terminal() {
                bail!(
                    "nothing was approved: without a terminal to ask on, the command has to name the hash. To approve the change \
                     above: {}",
                    command(agent, server, tool, changed)
                );
            }
            if !agreed("approve this?")? {
                bail!("nothing was approved: {} still waits", printable(name));
            }
        }
    }
    let request = McpRequest::DecideTool {
        server: known.0["server"].as_i64().unwrap_or_default(),
        tool: tool.to_owned(),
        sha256: changed.to_owned(),
        approve: true,
    };
    match client::ask(&asked.places, &request)? {
        McpReply::ToolDecided => print(&format!("{}: approved\n", printable(name)))?,
        other => bail!("the auditor sent an unexpected answer: {other:?}"),
    };
    Ok((server.to_owned(), tool.to_owned(), changed.to_owned()))
}

/// The shell command that approves exactly this change.
fn command(agent: &str, server: &str, tool: &str, sha256: &str) -> String {
    let named = printable(&format!("{server}/{tool}={sha256}"));
    let is_plain = named.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_./=:@%+,".contains(&b));
    let named = if is_plain { named } else { format!("'{}'", named.replace('\'', r"'\''")) };
    format!("ringfence agent pin {agent} --approve {named}")
}

/// Tools of an agent that wait for approval, with their servers.
pub(super) fn waiting(pins: PathBuf) -> Result<Vec<(String, String)>, Error> {
    let known = Pins::new(pins).read()?;
    let tools = known.into_iter().flat_map(|(server, tools)| {
        let changed = tools.into_iter().filter(|(_, pin)| pin.changed.is_some() && !pin.rejected);
        changed.map(move |(tool, _)| (server.clone(), tool)).collect::<Vec<_>>()
    });
    Ok(tools.collect())
}

/// What needs attention in the tools of a user's agents, as sentences.
pub(crate) fn problems(home: &Home, agents: &[AgentStatus]) -> Vec<String> {
    let problems = agents.iter().filter_map(|agent| match waiting(home.pins(&agent.name)) {
        Ok(tools) if tools.is_empty() => None,
        Ok(tools) => {
            let names: Vec<String> = tools.iter().map(|(server, tool)| format!("{server}/{tool}")).collect();
            Some(format!(
                "MCP tools of agent {} have changed, and the model does not get them until you approve them ({}): `ringfence agent pin {}`",
                agent.name,
                printable(&names.join(", ")),
                agent.name
            ))
        }
        Err(error) => Some(error.to_string()),
    });
    problems.collect()
}

/// What is odd about a definition.
fn flagged(flags: &Value) -> String {
    let text = |value: &Value| printable(value.as_str().unwrap_or_default());
    let line = |flag: &Value| {
        let (why, place, excerpt) = (text(&flag["why"]), text(&flag["place"]), text(&flag["excerpt"]));
        format!("    odd: {why} ({place}): {excerpt}\n")
    };
    flags.as_array().into_iter().flatten().map(line).collect()
}

/// A time of the record as people read it.
fn when(time: &str) -> String {
    time.parse::<Timestamp>().map_or_else(|_| printable(time), |time| time.strftime("%F %T").to_string())
}
