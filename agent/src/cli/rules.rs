//! `ringfence rules`: checks a rule file, and tells what it makes of a call.

use crate::mcp::{
    line::{self, Kind, Line},
    risk,
    rules::{self, Action},
};
use anyhow::{Context, bail};
use serde_json::{Value, json};
use std::{fs, io::Read, path::PathBuf, process::ExitCode};

/// Longest rule file that is read, bytes.
const LONGEST: u64 = 1 << 20;

/// Checks rules over MCP tool calls, and tries them on a call.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  ringfence rules check /etc/ringfence/rules.yaml
  ringfence rules test rules.yaml --call '{\"name\":\"delete_file\",\"arguments\":{\"path\":\"/tmp/x\"}}'
  ringfence rules test rules.yaml --server postgres --call '{\"name\":\"query\",\"arguments\":{\"sql\":\"DELETE FROM t\"}}'")]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    /// Reads a rule file and lists its rules, or says what is wrong with it.
    Check {
        /// The YAML file.
        file: PathBuf,
        /// One JSON object instead of text.
        #[arg(long)]
        json: bool,
    },
    /// Tells what would happen to a call, and why.
    Test {
        /// The YAML file.
        file: PathBuf,
        /// The call: `{"name":...,"arguments":{...}}`, or a whole `tools/call` message.
        #[arg(long, value_name = "JSON")]
        call: String,
        /// Name of the server it goes to.
        #[arg(long, default_value = "")]
        server: String,
        /// Judge it as the first call of this tool (+10).
        #[arg(long)]
        first: bool,
        /// One JSON object instead of text.
        #[arg(long)]
        json: bool,
    },
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    match &args.command {
        Command::Check { file, json } => check(file, *json),
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

fn check(file: &PathBuf, json: bool) -> anyhow::Result<ExitCode> {
    let rules = load(file)?;
    if json {
        let listed: Vec<Value> = rules
            .iter()
            .map(|r| json!({"name": r.name, "action": r.action.name(), "description": r.description, "enabled": r.enabled}))
            .collect();
        println!("{}", json!({ "file": file, "rules": listed }));
        return Ok(ExitCode::SUCCESS);
    }
    for rule in &rules {
        let off = if rule.enabled { "" } else { " (switched off)" };
        println!("{:<6} {}{off}  {}", rule.action.name(), rule.name, rule.description);
    }
    println!("{}: {} rules, all well", file.display(), rules.len());
    Ok(ExitCode::SUCCESS)
}

fn test(file: &PathBuf, call: &str, server: &str, first: bool, json: bool) -> anyhow::Result<ExitCode> {
    let rules = load(file)?;
    let (name, arguments) = parse_call(call)?;
    let risk = risk::assess(&name, &arguments, first);
    let judgement = rules::judge(&rules, server, &name, &risk);
    if json {
        println!(
            "{}",
            json!({"tool": name, "operation_type": risk.operation.name(), "risk_score": risk.score,
                   "risk_reasons": risk.reasons, "policy_action": judgement.action.name(), "rules": judgement.rules})
        );
        return Ok(ExitCode::SUCCESS);
    }
    let meaning = match judgement.action {
        Action::Pass => "forwarded and recorded",
        Action::Flag => "forwarded, recorded and marked",
        Action::Pause => "held until a human approves it, denied after the timeout",
        Action::Block => "refused; the client gets an error that names the reason",
    };
    println!("{}: {meaning}", judgement.action.name());
    let reasons =
        if risk.reasons.is_empty() { "nothing adds to it".to_owned() } else { risk.reasons.join(", ") };
    println!("  operation  {}", risk.operation.name());
    println!("  risk       {} ({reasons})", risk.score);
    match judgement.rules.as_slice() {
        [] if judgement.action == Action::Pass => {
            println!("  because    no rule matches and the score is at most 30")
        }
        [] => println!("  because    the score alone asks for it"),
        names => println!("  because    {}", names.join(", ")),
    }
    Ok(ExitCode::SUCCESS)
}

/// Takes a call as its params or as the whole message; the message goes through the interceptor's own judge.
fn parse_call(text: &str) -> anyhow::Result<(String, Value)> {
    let value: Value = serde_json::from_str(text).context("--call is not JSON")?;
    if value.get("method").is_some() {
        return match line::read(text.as_bytes()).context("the interceptor would refuse this message")? {
            Line::Message(line::Message { kind: Kind::Call(_, call), .. }) => {
                Ok((call.name, serde_json::from_str(call.arguments)?))
            }
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
