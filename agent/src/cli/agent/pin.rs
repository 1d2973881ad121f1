//! `ringfence agent pin`: the descriptions of an agent's MCP tools when they were first used, and approving a change.

use super::owner::Owner;
use crate::cli::{
    exit::Exit,
    output::{agreed, print},
};
use anyhow::{Context, bail};
use ringfence_base::escape::line as printable;
use ringfence_llm_worker::{
    control::AgentStatus,
    mcp::pins::{Definition, Error, Known, Pin, Pins},
};
use ringfence_pins::{Flag, definition::is_hash, difference};
use ringfence_policy::agents::home::Home;
use std::{
    io::{self, IsTerminal},
    path::PathBuf,
    process::ExitCode,
};

/// Shows an agent's MCP tools and their changes, and approves a change.
///
/// Ringfence remembers a tool's description and schema when an agent first uses it. If the server changes them, the model does
/// not get the tool until you approve the change; from the next turn on it gets it. You approve exactly what you were shown:
/// name its hash, or answer the question on a terminal. If the server changes the tool again in between, the new change waits.
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
    owner.enter(&args.name)?;
    let pins = Pins::new(owner.pins(&args.name));
    for named in &args.approve {
        approve(&pins, &args.name, named)?;
    }
    if !args.approve.is_empty() {
        return Ok(ExitCode::SUCCESS);
    }
    let known = pins.read()?;
    let mut waits = false;
    let mut text = String::new();
    for (server, tools) in &known {
        for (tool, pin) in tools {
            let name = printable(&format!("{server}/{tool}"));
            let Some(changed) = &pin.changed else {
                let since = pin.trusted.since.strftime("%F %T");
                text += &format!("{name}  {}  since {since}\n{}", short(&pin.trusted), flagged(&pin.trusted));
                continue;
            };
            waits = true;
            let command = command(&args.name, server, tool, changed);
            text += &format!("{}  to approve this: {command}\n", change(&name, pin, changed));
        }
    }
    if args.json {
        text = format!("{}\n", serde_json::to_string(&known)?);
    } else if known.is_empty() {
        text = "no MCP tool was used yet\n".to_owned();
    }
    print(&text)?;
    Ok(if waits { Exit::Attention } else { Exit::Success }.into())
}

/// Approves the change with the named hash; without a hash, shows the change and asks.
fn approve(pins: &Pins, agent: &str, named: &str) -> anyhow::Result<()> {
    let (name, hash) = named.rsplit_once('=').map_or((named, None), |(name, hash)| (name, Some(hash)));
    let (server, tool) = name
        .split_once('/')
        .with_context(|| format!("{named:?} is not SERVER/TOOL=HASH, such as github/create_issue=3f29..."))?;
    let hash = match hash {
        Some(hash) if is_hash(&hash.to_ascii_lowercase()) => hash.to_ascii_lowercase(),
        Some(hash) => {
            bail!("{hash:?} is not a hash of 64 digits; `ringfence agent pin {agent}` prints it")
        }
        None => {
            let known = pins.read()?;
            let Some((pin, changed)) = waits(&known, server, tool) else {
                return Err(Error::NothingWaits { server: server.to_owned(), tool: tool.to_owned() }.into());
            };
            print(&change(&printable(name), pin, changed))?;
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
            changed.sha256.clone()
        }
    };
    pins.approve(server, tool, &hash)?;
    print(&format!("{}: approved\n", printable(name)))?;
    Ok(())
}

fn waits<'a>(known: &'a Known, server: &str, tool: &str) -> Option<(&'a Pin, &'a Definition)> {
    let pin = known.get(server)?.get(tool)?;
    Some((pin, pin.changed.as_ref()?))
}

/// The difference between a tool's trusted definition and its new one.
fn change(name: &str, pin: &Pin, changed: &Definition) -> String {
    let since = changed.since.strftime("%F %T");
    let mut text = format!("! {name}  has changed, and waits for approval since {since}:\n");
    // The name is the same: the tool's own has no `/`.
    let tool = name.rsplit('/').next().unwrap_or(name);
    for line in difference::lines(&pin.trusted.text(tool), &changed.text(tool)).lines() {
        text += &format!("    {}\n", printable(line));
    }
    text += &flagged(changed);
    text += &format!("  hash of this: {}\n", changed.sha256);
    text
}

/// The shell command that approves exactly this change.
fn command(agent: &str, server: &str, tool: &str, changed: &Definition) -> String {
    let named = printable(&format!("{server}/{tool}={}", changed.sha256));
    let is_plain = named.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_./=:@%+,".contains(&b));
    let named = if is_plain { named } else { format!("'{}'", named.replace('\'', r"'\''")) };
    format!("ringfence agent pin {agent} --approve {named}")
}

/// Tools of an agent that wait for approval, with their servers.
pub(super) fn waiting(pins: PathBuf) -> Result<Vec<(String, String)>, Error> {
    let known = Pins::new(pins).read()?;
    let tools = known.into_iter().flat_map(|(server, tools)| {
        let changed = tools.into_iter().filter(|(_, pin)| pin.changed.is_some());
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
fn flagged(definition: &Definition) -> String {
    let line = |flag: &Flag| {
        let words = flag.kind.words();
        format!("    odd: {words}: {} ({}): {}\n", flag.why, flag.place, printable(&flag.excerpt))
    };
    definition.flags.iter().map(line).collect()
}

/// Enough of the hash to tell two apart.
fn short(definition: &Definition) -> String {
    definition.sha256.chars().take(12).collect()
}
