//! `ringfence agent pin`: what an agent's MCP tools looked like when they were first used, and approving a change.

use super::{agent::print, whose::Whose};
use crate::{
    auditor::printable,
    llm::{
        control::AgentStatus,
        home::Home,
        mcp::pins::{Definition, Error, Pins},
    },
};
use anyhow::Context;
use similar::TextDiff;
use std::{path::PathBuf, process::ExitCode};

/// Shows the MCP tools that an agent has used, and those that have changed since; approves a change.
///
/// A tool's description and schema are remembered when it is first used. If a server changes them, the tool is kept from
/// the model until the change is approved here; it is in force from the next turn on.
#[derive(Debug, clap::Args)]
#[command(after_help = "Exit status:
  0  nothing waits for approval, or what was named is approved
  2  something waits

Examples:
  ringfence agent pin reviewer
  ringfence agent pin reviewer --approve github/create_issue
  sudo ringfence agent pin reviewer    # an agent of the daemon's
  ringfence agent pin reviewer --json | jq '.github'")]
pub(crate) struct Args {
    /// The agent.
    name: String,
    /// Trust what this tool says now. Can be given more than once.
    #[arg(long, value_name = "SERVER/TOOL")]
    approve: Vec<String>,
    /// One JSON object: by server and tool.
    #[arg(long, conflicts_with = "approve")]
    json: bool,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let whose = Whose::find(&args.name)?;
    whose.enter(&args.name)?;
    let pins = Pins::new(whose.pins(&args.name));
    for named in &args.approve {
        let (server, tool) = named
            .split_once('/')
            .with_context(|| format!("{named:?} is no SERVER/TOOL, like github/create_issue"))?;
        pins.approve(server, tool)?;
        println!("{}: approved", printable(named));
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
            let since = pin.trusted.since.strftime("%F %T");
            let Some(changed) = &pin.changed else {
                text += &format!("{name}  {}  since {since}\n", short(&pin.trusted));
                continue;
            };
            waits = true;
            text += &format!(
                "! {name}  has changed, and waits for approval since {}:\n",
                changed.since.strftime("%F %T")
            );
            let (old, new) = (told(&pin.trusted), told(changed));
            for line in TextDiff::from_lines(&old, &new).unified_diff().context_radius(3).to_string().lines()
            {
                text += &format!("    {}\n", printable(line));
            }
        }
    }
    if args.json {
        text = format!("{}\n", serde_json::to_string(&known)?);
    } else if known.is_empty() {
        text = "no MCP tool was used yet\n".to_owned();
    }
    print(&text)?;
    Ok(ExitCode::from(if waits { 2 } else { 0 }))
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

/// What is amiss with the tools of a user's agents, as sentences.
pub(super) fn amiss(home: &Home, agents: &[AgentStatus]) -> Vec<String> {
    let told = agents.iter().filter_map(|agent| match waiting(home.pins(&agent.name)) {
        Ok(tools) if tools.is_empty() => None,
        Ok(tools) => {
            let names: Vec<String> = tools.iter().map(|(server, tool)| format!("{server}/{tool}")).collect();
            Some(format!(
                "MCP tools of the agent {} have changed, and are left out until they are approved ({}): `ringfence agent pin {}`",
                agent.name,
                printable(&names.join(", ")),
                agent.name
            ))
        }
        Err(error) => Some(error.to_string()),
    });
    told.collect()
}

fn told(definition: &Definition) -> String {
    let schema = serde_json::to_string_pretty(&definition.parameters).unwrap_or_default();
    format!("{}\n{schema}\n", definition.description)
}

/// Enough of the hash to tell two apart.
fn short(definition: &Definition) -> String {
    definition.sha256.chars().take(12).collect()
}
