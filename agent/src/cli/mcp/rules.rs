//! `ringfence mcp rules`: checks a rule file, tests it on a call, confirms a change that loosens a rule. What works on rules of
//! the database is in `stored_rules`.

use super::stored_rules;
use crate::cli::output::agreed;
use anyhow::{Context, bail};
use ringfence_base::escape::line as printable;
use ringfence_client::{places::Places, sessions as client};
use ringfence_session::{
    conditions::Facts,
    line::{self, Kind, Line},
    reload, risk, rules, strict,
};
use ringfence_wire::{
    mcp::{McpReply, McpRequest},
    tool_call::{Action, Named as _},
};
use serde_json::{Value, json};
use std::{
    fs,
    io::{self, Read, Write},
    path::{Path, PathBuf},
    process::ExitCode,
};

/// Longest rule file that is read, bytes.
const LONGEST: u64 = 1 << 20;

/// Checks the rules for tool calls, tests them on a call, confirms changes that loosen them, and works on those of the database.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  ringfence mcp rules check /etc/ringfence/rules.yaml
  ringfence mcp rules test rules.yaml --call '{\"name\":\"delete_file\",\"arguments\":{\"path\":\"/tmp/x\"}}'
  ringfence mcp rules test rules.yaml --server postgres --call '{\"name\":\"query\",\"arguments\":{\"sql\":\"DELETE FROM t\"}}'
  ringfence mcp rules add no_drops --tool 'drop_*' --action block
  ringfence mcp rules list
  ringfence mcp rules pending
  ringfence mcp rules confirm ~/.config/ringfence/rules.yaml")]
pub(crate) struct RulesArgs {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    /// Reads a rule file and lists its rules, or reports what is wrong with it.
    #[command(after_help = "Example:\n  ringfence mcp rules check ~/.config/ringfence/rules.yaml")]
    Check {
        /// The YAML file.
        file: PathBuf,
        /// One JSON object instead of text.
        #[arg(long)]
        json: bool,
    },
    /// Lists changes that loosen a rule and wait for confirmation, each with the rules in force and the new ones.
    #[command(after_help = "Example:\n  ringfence mcp rules pending")]
    Pending {
        /// One JSON object per line, instead of text.
        #[arg(long)]
        json: bool,
        /// The audit database [default: the daemon's, if it runs, else the user's].
        #[arg(long, value_name = "FILE")]
        db: Option<String>,
    },
    /// Puts a waiting change into force.
    ///
    /// It shows the change and asks. Processes that an MCP client started may not confirm one.
    #[command(after_help = "Example:\n  ringfence mcp rules confirm ~/.config/ringfence/rules.yaml")]
    Confirm {
        /// The rule file; needed only if more than one change waits.
        file: Option<PathBuf>,
        /// Confirm without asking.
        #[arg(long)]
        yes: bool,
        /// The audit database [default: the daemon's, if it runs, else the user's].
        #[arg(long, value_name = "FILE")]
        db: Option<String>,
    },
    #[command(flatten)]
    Stored(stored_rules::Command),
    /// Shows what the rules do with a call, and why.
    #[command(after_help = "Example:
  ringfence mcp rules test rules.yaml --call '{\"name\":\"delete_file\",\"arguments\":{\"path\":\"/tmp/x\"}}'")]
    Test {
        /// The YAML file.
        file: PathBuf,
        /// The call: `{"name":...,"arguments":{...}}`, or a whole `tools/call` message.
        #[arg(long, value_name = "JSON")]
        call: String,
        /// The name of the server that the call goes to.
        #[arg(long, default_value = "")]
        server: String,
        /// Judge the call as the first one of this tool, which adds 10 to its risk.
        #[arg(long)]
        first: bool,
        /// One JSON object instead of text.
        #[arg(long)]
        json: bool,
    },
}

pub(crate) fn run(args: &RulesArgs) -> anyhow::Result<ExitCode> {
    match &args.command {
        Command::Check { file, json } => check(file, *json),
        Command::Pending { json, db } => pending(&Places::on_record(db.as_deref())?, *json),
        Command::Confirm { file, yes, db } => {
            confirm(&Places::on_record(db.as_deref())?, file.as_deref(), *yes)
        }
        Command::Stored(command) => stored_rules::run(command),
        Command::Test { file, call, server, first, json } => test(file, call, server, *first, *json),
    }
}

fn load(file: &PathBuf) -> anyhow::Result<Vec<rules::Rule>> {
    let mut text = String::new();
    let opened =
        fs::File::open(file).with_context(|| format!("cannot open the rule file {}", file.display()))?;
    let read = opened.take(LONGEST + 1).read_to_string(&mut text);
    let read = read.with_context(|| format!("cannot read the rule file {}", file.display()))?;
    if read as u64 > LONGEST {
        bail!("{}: longer than 1 MiB; a rule file holds rules only", file.display());
    }
    rules::parse(&text).with_context(|| file.display().to_string())
}

/// The changes that wait.
fn waiting(places: &Places) -> anyhow::Result<Vec<Value>> {
    match client::ask(places, &McpRequest::PendingRules)? {
        McpReply::Rows { rows } => Ok(rows),
        _ => bail!("the auditor sent an unexpected answer"),
    }
}

fn pending(places: &Places, json: bool) -> anyhow::Result<ExitCode> {
    let changes = waiting(places)?;
    if changes.is_empty() && !json {
        eprintln!("ringfence: no change to a rule file waits for confirmation");
    }
    for change in &changes {
        if json {
            writeln!(io::stdout(), "{change}")?;
        } else {
            describe(&mut io::stdout().lock(), change)?;
        }
    }
    let left_out = changes.first().map_or(0, |change| change["left_out"].as_u64().unwrap_or(0));
    if left_out > 0 && !json {
        eprintln!(
            "ringfence: {left_out} more changes wait; they are listed once some of these are confirmed or reverted"
        );
    }
    Ok(ExitCode::SUCCESS)
}

fn text<'a>(change: &'a Value, key: &str) -> &'a str {
    change[key].as_str().unwrap_or_default()
}

fn describe(out: &mut impl Write, change: &Value) -> io::Result<()> {
    let (old, new) = (text(change, "text"), text(change, "pending"));
    let loosened = reload::loosens(old, new).unwrap_or_default();
    writeln!(
        out,
        "{}: loosens {}; waits since {}",
        printable(text(change, "path")),
        printable(&loosened),
        printable(text(change, "since"))
    )?;
    for line in reload::difference(old, new).lines() {
        writeln!(out, "    {}", printable(line))?;
    }
    Ok(())
}

fn confirm(places: &Places, file: Option<&Path>, yes: bool) -> anyhow::Result<ExitCode> {
    let file = file.map(std::path::absolute).transpose()?.map(|file| file.display().to_string());
    let mut changes = waiting(places)?;
    changes.retain(|change| file.as_ref().is_none_or(|file| text(change, "path") == file));
    let [change] = changes.as_slice() else {
        match changes.len() {
            0 => bail!(
                "no such change waits for confirmation; `ringfence mcp rules pending` lists those that do"
            ),
            n => bail!("{n} changes wait; name the file of one: `ringfence mcp rules pending` lists them"),
        }
    };
    describe(&mut io::stdout().lock(), change)?;
    if !yes && !agreed("put this in force?")? {
        bail!("the change was not confirmed; `--yes` confirms without asking");
    }
    let (path, sha256) = (text(change, "path").to_owned(), text(change, "sha256").to_owned());
    match client::ask(places, &McpRequest::ConfirmRules { path: path.clone(), sha256 })? {
        McpReply::Confirmed => writeln!(io::stdout(), "{} is in force", printable(&path))?,
        _ => bail!("the auditor sent an unexpected answer"),
    }
    Ok(ExitCode::SUCCESS)
}

fn check(file: &PathBuf, json: bool) -> anyhow::Result<ExitCode> {
    let rules = load(file)?;
    let mut out = io::stdout().lock();
    if json {
        let listed: Vec<Value> = rules
            .iter()
            .map(|r| json!({"name": r.name, "action": r.action.name(), "description": r.description, "enabled": r.enabled}))
            .collect();
        writeln!(out, "{}", json!({ "file": file, "rules": listed }))?;
        return Ok(ExitCode::SUCCESS);
    }
    for rule in &rules {
        let off = if rule.enabled { "" } else { " (switched off)" };
        let (name, description) = (printable(&rule.name), printable(&rule.description));
        writeln!(out, "{:<6} {name}{off}  {description}", rule.action.name())?;
    }
    writeln!(out, "{}: {} rules, no errors", file.display(), rules.len())?;
    Ok(ExitCode::SUCCESS)
}

fn test(file: &PathBuf, call: &str, server: &str, first: bool, json: bool) -> anyhow::Result<ExitCode> {
    let rules = load(file)?;
    let mut out = io::stdout().lock();
    let (name, arguments) = parse_call(call)?;
    let risk = risk::assess(&name, &arguments, first);
    let judgement = rules::judge(&rules, Facts::new(server, &name, &risk));
    if json {
        writeln!(
            out,
            "{}",
            json!({"tool": name, "operation_type": risk.operation.name(), "risk_score": risk.score,
                   "risk_reasons": risk.reasons, "policy_action": judgement.action.name(), "rules": judgement.rules})
        )?;
        return Ok(ExitCode::SUCCESS);
    }
    let meaning = match judgement.action {
        Action::Pass => "forwarded and recorded",
        Action::Flag => "forwarded, recorded and marked",
        Action::Pause => "held until a human approves it, denied after the timeout",
        Action::Block => "refused; the client gets an error that names the reason",
    };
    writeln!(out, "{}: {meaning}", judgement.action.name())?;
    let reasons =
        if risk.reasons.is_empty() { "nothing adds to it".to_owned() } else { risk.reasons.join(", ") };
    writeln!(out, "  operation  {}", risk.operation.name())?;
    writeln!(out, "  risk       {} ({reasons})", risk.score)?;
    match judgement.rules.as_slice() {
        [] if judgement.action == Action::Pass => {
            writeln!(out, "  because    no rule matches and the score is at most 30")
        }
        [] => writeln!(out, "  because    the score alone requires it"),
        names => writeln!(out, "  because    {}", printable(&names.join(", "))),
    }?;
    Ok(ExitCode::SUCCESS)
}

/// Reads a call from its params or from a whole message, which is parsed as the interceptor does.
fn parse_call(text: &str) -> anyhow::Result<(String, Value)> {
    let value: Value = strict::value(text).context("--call cannot be judged")?;
    if value.get("method").is_some() {
        return match line::judge(text.as_bytes()).context("the interceptor would refuse this message")? {
            Line::Message(line::Message { kind: Kind::Call(_, call), .. }) => Ok((call.name, call.value)),
            _ => bail!("--call holds a message that is not a tools/call"),
        };
    }
    let name = value.get("name").and_then(Value::as_str).context("--call has no \"name\" (the tool's)")?;
    let arguments = value.get("arguments").cloned().unwrap_or_else(|| json!({}));
    if !arguments.is_object() {
        bail!("--call: \"arguments\" must be an object");
    }
    Ok((name.to_owned(), arguments))
}
