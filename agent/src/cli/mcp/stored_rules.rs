//! `ringfence mcp rules list`, `add`, `edit` and so on: the rules of the database.

use super::exceptions;
use crate::cli::{
    ledger::{self, Shown},
    output::{self, agreed, word},
};
use anyhow::{Context, bail};
use clap::builder::PossibleValuesParser;
use ringfence_base::{clock::rfc3339, counted::counted, escape::line as printable};
use ringfence_client::{places::Places, sessions as client};
use ringfence_session::ledger::{ChangedRule, Entry, RuleState};
use ringfence_wire::{
    exception::EXCEPT,
    mcp::{Conditions, McpReply, McpRequest, RuleChange, StoredRule},
    tool_call::{Action, Named as _},
};
use serde_json::{Value, json};
use std::{
    io::{self, Write},
    process::ExitCode,
};

/// Which database, and how to print.
#[derive(Debug, clap::Args)]
pub(super) struct Source {
    /// The audit database [default: the daemon's, if it runs, else the user's].
    #[arg(long, value_name = "FILE")]
    db: Option<String>,
    /// One JSON object per line, instead of text.
    #[arg(long)]
    json: bool,
}

/// How a change is made.
#[derive(Debug, clap::Args)]
pub(super) struct How {
    /// Change nothing, and show what the change would have meant for the calls on record.
    #[arg(long)]
    dry_run: bool,
    /// Look at the calls of the last N days, 1 to 366.
    #[arg(long, value_name = "N", default_value_t = 7, requires = "dry_run",
        value_parser = clap::value_parser!(u32).range(1..=366))]
    days: u32,
    /// Make a rule looser without asking.
    #[arg(long)]
    yes: bool,
    #[command(flatten)]
    source: Source,
}

/// What a rule is about. An empty text takes a condition away.
#[derive(Debug, clap::Args)]
pub(super) struct About {
    /// Only tools of these names: globs, separated by commas.
    #[arg(long, value_name = "GLOBS")]
    tool: Option<String>,
    /// Only servers of these names: globs, separated by commas.
    #[arg(long, value_name = "GLOBS")]
    server: Option<String>,
    /// Only calls with at least this risk score, 0 to 100.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(0..=100))]
    min_risk: Option<u8>,
    /// Only these operations, separated by commas: read, write, delete, execute, unknown.
    #[arg(long, value_name = "LIST")]
    operations: Option<String>,
    /// What people are told about it.
    #[arg(long, value_name = "TEXT")]
    description: Option<String>,
}

#[derive(Debug, clap::Subcommand)]
pub(super) enum Command {
    /// Lists the rules of the database and those of the rule file, with how many calls each decided.
    #[command(after_help = "Example:\n  ringfence mcp rules list --json")]
    List(Source),
    /// Adds a rule to the database.
    ///
    /// Running sessions take it up at once. Processes that an MCP client started may not change rules.
    #[command(after_help = "Examples:
  ringfence mcp rules add no_drops --tool 'drop_*' --action block
  ringfence mcp rules add careful --like 3f2a9c1b --action pause --dry-run")]
    Add {
        /// Its name: letters, digits, `_`, `-` and `.`.
        name: String,
        /// What it asks for.
        #[arg(long, value_name = "A", value_parser = PossibleValuesParser::new(actions()))]
        action: String,
        /// About calls like this one: its tool, its server, its operation. The call's id, or its first characters.
        #[arg(long, value_name = "CALL")]
        like: Option<String>,
        #[command(flatten)]
        about: About,
        #[command(flatten)]
        how: How,
    },
    /// Adds an exception to the database: reasons that are not counted in the score of calls like one on record.
    ///
    /// Such calls are those of the same tool of the same server, with the same arguments by name and type, and no others. What does
    /// not count by itself are the call's reasons but for those that say that something is destroyed or that nobody knows what
    /// runs; those count unless they are named. Every rule holds all the same. It is listed, switched off and deleted as a rule is.
    /// With `--connection` it lets connections of containers to that host pass for which a person would be asked (`[net] ask`).
    #[command(after_help = "Examples:
  ringfence mcp rules except our_api --connection api.example.org:443
  ringfence mcp rules except env_docs --like 3f2a9c1b --dry-run
  ringfence mcp rules except env_docs --like 3f2a9c1b --reason sensitive_data --same path
  ringfence mcp rules except clean_build --like 3f2a9c1b --reason destructive --same command")]
    Except {
        /// Its name: letters, digits, `_`, `-` and `.`.
        name: String,
        /// The call that it is made from. Its id, or its first characters.
        #[arg(long, value_name = "CALL", required_unless_present = "connection")]
        like: Option<String>,
        /// A host and port, in place of a call.
        #[arg(long, value_name = "HOST:PORT", conflicts_with_all = ["like", "reason", "same"])]
        connection: Option<String>,
        /// A reason that does not count; may be repeated [default: the call's, but for those that destroy].
        #[arg(long, value_name = "REASON")]
        reason: Vec<String>,
        /// Only calls in which this argument has the very value that it has there; may be repeated.
        #[arg(long, value_name = "ARGUMENT")]
        same: Vec<String>,
        /// What people are told about it.
        #[arg(long, value_name = "TEXT", default_value = "")]
        description: String,
        #[command(flatten)]
        how: How,
    },
    /// Changes what a rule of the database is about or asks for; what is not named stays.
    #[command(
        after_help = "Example:\n  ringfence mcp rules edit no_drops --server 'postgres*' --action pause"
    )]
    Edit {
        /// Its name or its id.
        rule: String,
        /// What it asks for.
        #[arg(long, value_name = "A", value_parser = PossibleValuesParser::new(actions()))]
        action: Option<String>,
        #[command(flatten)]
        about: About,
        #[command(flatten)]
        how: How,
    },
    /// Switches a rule of the database on.
    #[command(after_help = "Example:\n  ringfence mcp rules enable no_drops")]
    Enable {
        /// Its name or its id.
        rule: String,
        #[command(flatten)]
        how: How,
    },
    /// Switches a rule of the database off.
    #[command(after_help = "Example:\n  ringfence mcp rules disable no_drops --dry-run")]
    Disable {
        /// Its name or its id.
        rule: String,
        #[command(flatten)]
        how: How,
    },
    /// Puts a rule of the database at another place in its list.
    ///
    /// Verdicts name rules in this order. No verdict depends on it: the strictest rule wins.
    #[command(after_help = "Example:\n  ringfence mcp rules move no_drops 1")]
    Move {
        /// Its name or its id.
        rule: String,
        /// The place, from 1.
        #[arg(value_parser = clap::value_parser!(u32).range(1..))]
        place: u32,
        #[command(flatten)]
        how: How,
    },
    /// Deletes a rule of the database.
    #[command(after_help = "Example:\n  ringfence mcp rules delete no_drops")]
    Delete {
        /// Its name or its id.
        rule: String,
        #[command(flatten)]
        how: How,
    },
    /// Lists the changes of rules of the database that the ledger has, oldest first.
    #[command(after_help = "Example:\n  ringfence mcp rules log --json")]
    Log(Source),
}

/// What `--action` takes.
fn actions() -> impl Iterator<Item = &'static str> {
    Action::ALL.iter().filter(|action| **action != Action::Pass).map(|action| action.name())
}

pub(super) fn run(command: &Command) -> anyhow::Result<ExitCode> {
    match command {
        Command::List(source) => list(source),
        Command::Log(source) => log(source),
        Command::Add { name, action, like, about, how } => {
            let places = places(&how.source)?;
            let mut rule = StoredRule {
                name: name.clone(),
                description: String::new(),
                conditions: Conditions::default(),
                action: action.as_str().into(),
                exception: None,
            };
            if let Some(call) = like {
                rule.conditions = conditions_like(&places, call)?;
            }
            about.apply(&mut rule);
            change(&places, &RuleChange::Add { rule }, how)
        }
        Command::Except { name, like, connection, reason, same, description, how } => {
            let places = places(&how.source)?;
            let exception = match (like, connection) {
                (Some(like), _) => exceptions::like(&call(&places, like)?, reason, same)?,
                (None, of) => exceptions::of_connection(of.as_deref().unwrap_or_default())?,
            };
            let rule = StoredRule {
                name: name.clone(),
                description: description.clone(),
                conditions: Conditions::default(),
                action: EXCEPT.into(),
                exception: Some(exception),
            };
            change(&places, &RuleChange::Add { rule }, how)
        }
        Command::Edit { rule, action, about, how } => {
            let places = places(&how.source)?;
            let row = find(&places, rule)?;
            let (id, version) = aim(&row)?;
            let mut rule: StoredRule =
                serde_json::from_value(row).context("the auditor sent a rule that cannot be read")?;
            if let Some(action) = action {
                rule.action = action.as_str().into();
            }
            about.apply(&mut rule);
            change(&places, &RuleChange::Edit { id, version, rule }, how)
        }
        Command::Enable { rule, how } => {
            at(rule, how, |id, version| RuleChange::Switch { id, version, enabled: true })
        }
        Command::Disable { rule, how } => {
            at(rule, how, |id, version| RuleChange::Switch { id, version, enabled: false })
        }
        Command::Move { rule, place, how } => {
            at(rule, how, |id, version| RuleChange::Move { id, version, place: *place })
        }
        Command::Delete { rule, how } => at(rule, how, |id, version| RuleChange::Delete { id, version }),
    }
}

impl About {
    /// Puts what was named in place of what a rule has.
    fn apply(&self, rule: &mut StoredRule) {
        let Self { tool, server, min_risk, operations, description } = self;
        let text = |text: &String| Some(text.trim().to_owned()).filter(|text| !text.is_empty());
        let Conditions { tool_pattern, server_pattern, min_risk_score, operation_types } =
            &mut rule.conditions;
        if let Some(tool) = tool {
            *tool_pattern = text(tool);
        }
        if let Some(server) = server {
            *server_pattern = text(server);
        }
        if let Some(score) = min_risk {
            *min_risk_score = *score;
        }
        if let Some(operations) = operations {
            let names: Vec<_> = operations
                .split(',')
                .map(str::trim)
                .filter(|name| !name.is_empty())
                .map(Into::into)
                .collect();
            *operation_types = Some(names).filter(|names| !names.is_empty());
        }
        if let Some(description) = description {
            rule.description.clone_from(description);
        }
    }
}

fn places(source: &Source) -> anyhow::Result<Places> {
    Ok(Places::on_record(source.db.as_deref())?)
}

fn rows(places: &Places, request: &McpRequest) -> anyhow::Result<Vec<Value>> {
    match client::ask(places, request)? {
        McpReply::Rows { rows } => Ok(rows),
        _ => bail!("the auditor sent an unexpected answer"),
    }
}

/// The rule of the database of that name or id.
fn find(places: &Places, named: &str) -> anyhow::Result<Value> {
    let mut found = rows(places, &McpRequest::Rules)?;
    found.retain(|row| row["name"] == named || row["id"] == named);
    let is_of_file = !found.is_empty();
    found.retain(|row| row["source"] == "database");
    match found.len() {
        1 => found.pop().context("there is one"),
        0 if is_of_file => bail!("the rule {named:?} is in a rule file: change it there"),
        0 => bail!("the database has no rule {named:?}; `ringfence mcp rules list` lists those that it has"),
        n => bail!(
            "{n} rules have the name {named:?}; give the id of one, as `ringfence mcp rules list --json` has it"
        ),
    }
}

/// Id and version of a rule.
fn aim(row: &Value) -> anyhow::Result<(String, i64)> {
    let (id, version) = (row["id"].as_str(), row["version"].as_i64());
    Ok((id.context("a rule without an id")?.to_owned(), version.context("a rule without a version")?))
}

/// The call of that id, whole.
fn call(places: &Places, call: &str) -> anyhow::Result<Value> {
    let mut found = rows(places, &McpRequest::Call { call: call.to_owned() })?;
    found.pop().with_context(|| {
        format!("no call's id begins with {call:?}, or more than one does; `ringfence mcp calls` lists them")
    })
}

/// The conditions that a rule about calls like this one has.
fn conditions_like(places: &Places, named: &str) -> anyhow::Result<Conditions> {
    serde_json::from_value(call(places, named)?["suggested_rule"].clone())
        .context("the auditor suggests no rule for this call")
}

fn at(named: &str, how: &How, what: impl FnOnce(String, i64) -> RuleChange) -> anyhow::Result<ExitCode> {
    let places = places(&how.source)?;
    let (id, version) = aim(&find(&places, named)?)?;
    change(&places, &what(id, version), how)
}

/// Makes a change, or tries it. What loosens a rule is asked about.
fn change(places: &Places, change: &RuleChange, how: &How) -> anyhow::Result<ExitCode> {
    let mut out = io::stdout().lock();
    if how.dry_run {
        let found = rows(places, &McpRequest::TryRule { change: change.clone(), days: how.days })?;
        let report = found.first().context("the auditor sent an unexpected answer")?;
        if how.source.json {
            writeln!(out, "{report}")?;
        } else {
            describe_trial(&mut out, report)?;
        }
        return Ok(ExitCode::SUCCESS);
    }
    let ask = |agreed| client::ask(places, &McpRequest::ChangeRule { change: change.clone(), agreed });
    let mut reply = ask(how.yes)?;
    if let McpReply::Loosens { rule } = &reply {
        eprintln!("ringfence: this loosens the rule {}; --dry-run shows for which calls", printable(rule));
        if !agreed("make it looser?")? {
            bail!("nothing was changed; `--yes` does it without asking");
        }
        reply = ask(true)?;
    }
    let McpReply::RuleChanged { rule } = reply else { bail!("the auditor sent an unexpected answer") };
    if how.source.json {
        writeln!(out, "{rule}")?;
    } else if matches!(change, RuleChange::Delete { .. }) {
        writeln!(out, "the rule is deleted")?;
    } else {
        let state = match rule["not_in_force"].as_str() {
            _ if rule["enabled"] != true => "is switched off".to_owned(),
            Some(why) => format!("is not in force: {}", printable(why)),
            None => "is in force".to_owned(),
        };
        writeln!(out, "{} {state}", printable(rule["name"].as_str().unwrap_or_default()))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn describe_trial(out: &mut impl Write, report: &Value) -> io::Result<()> {
    let number = |key: &str| report[key].as_u64().unwrap_or(0);
    let text = |row: &Value, key: &str| printable(row[key].as_str().unwrap_or_default());
    let whole = if report["oldest"].is_null() && report["cut"] == true {
        " (there are so many rules that no time was left to look at calls)".to_owned()
    } else if report["cut"] == true {
        format!(" (the newest; older than {} are not looked at)", text(report, "oldest"))
    } else {
        String::new()
    };
    let (calls, days) = (counted(number("calls"), "call"), counted(number("days"), "day"));
    writeln!(out, "{calls} of the last {days}{whole}")?;
    writeln!(out, "  matched   {}", number("matched"))?;
    writeln!(out, "  stricter  {}", number("stricter"))?;
    writeln!(out, "  milder    {}", number("milder"))?;
    for row in report["examples"].as_array().into_iter().flatten() {
        let (was, would) = (text(row, "was"), text(row, "would_be"));
        let verdict = if was == would { was } else { format!("{was} -> {would}") };
        let (at, server, tool) =
            (text(row, "requested_at"), text(row, "server_name"), text(row, "tool_name"));
        writeln!(out, "  {at}  {verdict}  {server}: {tool}  {}", text(row, "id"))?;
    }
    Ok(())
}

/// The conditions of a rule in a few words.
fn about(row: &Value) -> String {
    if let Ok(exception) = serde_json::from_value(row["exception"].clone()) {
        return exceptions::about(&exception);
    }
    let mut words = Vec::new();
    let mut text = |name: &str, value: &Value| {
        if let Some(value) = value.as_str() {
            words.push(format!("{name}={}", word(value)));
        }
    };
    text("tool", &row["tool_pattern"]);
    text("server", &row["server_pattern"]);
    if let Some(score) = row["min_risk_score"].as_u64().filter(|score| *score > 0) {
        words.push(format!("risk>={score}"));
    }
    if let Some(names) = row["operation_types"].as_array() {
        let names: Vec<&str> = names.iter().filter_map(Value::as_str).collect();
        words.push(format!("operations={}", word(&names.join(","))));
    }
    if words.is_empty() { "every call".to_owned() } else { words.join(" ") }
}

fn list(source: &Source) -> anyhow::Result<ExitCode> {
    let found = rows(&places(source)?, &McpRequest::Rules)?;
    if source.json {
        let lines: String = found.iter().map(|row| format!("{row}\n")).collect();
        return output::print(&lines);
    }
    if found.is_empty() {
        eprintln!("ringfence: no rule is on record; `ringfence mcp rules add` adds one");
        return Ok(ExitCode::SUCCESS);
    }
    let head = ["#", "ACTION", "NAME", "HITS", "LAST HIT", "SOURCE", "ABOUT"].map(str::to_owned);
    let line = |row: &Value| {
        let text = |key: &str| row[key].as_str().unwrap_or_default();
        let why = row["not_in_force"].as_str();
        let off = match why {
            _ if row["enabled"] != true => " (off)",
            Some(_) => " (not in force)",
            None => "",
        };
        let place = row["place"].as_u64().map(|place| place.to_string()).unwrap_or_default();
        [
            place,
            word(text("action")) + off,
            word(text("name")),
            row["hits"].as_i64().unwrap_or(0).to_string(),
            word(text("last_hit")),
            // One word, as all others are; a file's is a path from the root.
            match text("source") {
                "built in" => "built-in".to_owned(),
                source => word(source),
            },
            about(row) + &why.map(|why| format!("; not in force: {}", printable(why))).unwrap_or_default(),
        ]
    };
    let table: Vec<[String; 7]> = std::iter::once(head).chain(found.iter().map(line)).collect();
    output::print(&output::table(&table))
}

fn log(source: &Source) -> anyhow::Result<ExitCode> {
    ledger::print(&places(source)?, source.json, |entry| match entry {
        Entry::Rule(change) => Some(Shown { at: change.at, text: describe_change(&change), entry: change }),
        _ => None,
    })
}

/// One change: who did what and when, the rule before and after or its places.
fn describe_change(change: &ChangedRule) -> String {
    let ChangedRule { at, by, change, id: _, moved, before, after } = change;
    let state = |state: &RuleState| {
        let mut row = json!(state);
        row["operation_types"] = json!(state.rule.conditions.operation_types);
        let off = if state.enabled { "" } else { ", off" };
        format!("{}: {}{off}, place {}", word(state.rule.action.as_str()), about(&row), state.place)
    };
    let name = before.as_ref().or(after.as_ref()).map(|state| state.rule.name.as_str());
    let name = name.or(moved.as_ref().map(|moved| moved.name.as_str())).unwrap_or_default();
    let mut text =
        format!("{}  {} {}  by {}\n", rfc3339(*at), printable(change), printable(name), printable(by));
    if let Some(moved) = moved {
        text += &format!("    place {} before, {} after\n", moved.from, moved.to);
    }
    for (word, rule) in [("before", before), ("after", after)] {
        if let Some(rule) = rule {
            text += &format!("    {word:<6}  {}\n", state(rule));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use ringfence_wire::tool_call::{Operation, Recorded};

    #[test]
    fn what_is_named_replaces_what_a_rule_has_and_an_empty_text_takes_it_away() {
        let about = |tool: Option<&str>, operations: Option<&str>| About {
            tool: tool.map(str::to_owned),
            server: None,
            min_risk: None,
            operations: operations.map(str::to_owned),
            description: None,
        };
        let mut rule: StoredRule = serde_json::from_value(
            json!({ "name": "a", "description": "d", "tool_pattern": "x", "server_pattern": "s", "action": "flag" }),
        )
        .expect("a rule");
        about(None, Some("read, delete")).apply(&mut rule);
        assert_eq!(rule.conditions.tool_pattern.as_deref(), Some("x"));
        let names = [Operation::Read, Operation::Delete].map(Recorded::Known);
        assert_eq!(rule.conditions.operation_types, Some(names.to_vec()));
        about(Some(" "), Some("")).apply(&mut rule);
        assert_eq!((rule.conditions.tool_pattern, rule.conditions.operation_types), (None, None));
        assert_eq!((rule.conditions.server_pattern.as_deref(), rule.description.as_str()), (Some("s"), "d"));
    }
}
