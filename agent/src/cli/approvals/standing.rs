//! `ringfence approvals approve --scope`, `standing` and `revoke`: approvals of more than one call.

use super::{DecideArgs, decide, into_profile, whereto};
use crate::cli::output::{self, word};
use anyhow::{Context, bail};
use clap::builder::PossibleValuesParser;
use jiff::{SignedDuration, Timestamp, Zoned, civil::Time};
use ringfence_base::escape::line as printable;
use ringfence_client::{places::Places, sessions as client};
use ringfence_wire::{
    approvals::{ApprovalScope, Standing},
    mcp::{McpReply, McpRequest},
    tool_call::Named as _,
};
use serde_json::Value;
use std::{
    io::{self, Write},
    process::ExitCode,
};

/// Approves a tool call or a connection that waits, and with `--scope` those like it that come later.
///
/// A connection is approved once, for its container (`--scope container`: this host and port, for as long as the container lives),
/// or by a line of its container's profile (`--into-profile`). An approval of more than one call answers only what would wait: a rule that blocks still blocks. It applies to one server, and to
/// none that has another command, another program or script, or another version by its own word.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  ringfence approvals approve 3f2a9c1b
  ringfence approvals approve 3f2a9c1b --scope arguments --for 2h
  ringfence approvals approve 3f2a9c1b --scope session
  ringfence approvals approve 3f2a9c1b --scope tool --until 17:30
  ringfence approvals approve 5ed41b70 --scope container
  ringfence approvals approve 5ed41b70 --into-profile")]
pub(crate) struct ApproveArgs {
    #[command(flatten)]
    call: DecideArgs,
    /// What else is approved: calls of this tool with the same arguments, in this session, or all of them; of a connection, those
    /// of its container to the same host and port.
    #[arg(long, value_name = "S", value_parser = PossibleValuesParser::new(scopes()))]
    scope: Option<String>,
    /// How long: `2h`, `90m`, `1h30m`; at most 8 hours, unless it is for this session or container [default: 8h; its end].
    #[arg(long = "for", value_name = "TIME", requires = "scope", conflicts_with = "until")]
    lasts: Option<SignedDuration>,
    /// Until when: a time of day, the next one of its kind, or one as RFC 3339 has it.
    #[arg(long, value_name = "TIME", requires = "scope", value_parser = until)]
    until: Option<Timestamp>,
    /// Of a connection: add its host and port to the file of its container's profile, which you have to be able to write, and have
    /// the daemon read that again. Comments and layout stay. Not of a container within another. On a terminal you are asked first.
    #[arg(long, conflicts_with_all = ["scope", "lasts", "until"])]
    into_profile: bool,
}

impl From<DecideArgs> for ApproveArgs {
    fn from(call: DecideArgs) -> Self {
        Self { call, scope: None, lasts: None, until: None, into_profile: false }
    }
}

/// Lists the approvals of more than one call that stand.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  ringfence approvals standing --json | jq -r .id")]
pub(crate) struct ListArgs {
    /// The audit database [default: the daemon's, if it runs, else the user's].
    #[arg(long, value_name = "FILE")]
    db: Option<String>,
    /// One JSON object per line.
    #[arg(long)]
    json: bool,
}

/// Ends an approval of more than one call, at once.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  ringfence approvals revoke 7c1d2e3f")]
pub(crate) struct RevokeArgs {
    /// The approval's id, or its first characters (at least four).
    #[arg(value_name = "ID")]
    approval: String,
    /// The audit database [default: the daemon's, if it runs, else the user's].
    #[arg(long, value_name = "FILE")]
    db: Option<String>,
}

/// What `--scope` takes.
fn scopes() -> impl Iterator<Item = &'static str> {
    ["once"].into_iter().chain(ApprovalScope::ALL.iter().map(|scope| scope.name()))
}

/// A time of day, or a whole one.
fn until(text: &str) -> Result<Timestamp, String> {
    until_after(text, &Zoned::now())
}

fn until_after(text: &str, now: &Zoned) -> Result<Timestamp, String> {
    if let Ok(time) = text.parse::<Timestamp>() {
        return Ok(time);
    }
    let refused = || format!("{text:?} is no time: write 17:30, or 2026-01-31T17:30:00Z");
    // An hour alone may be a mistake for a number of hours.
    let time: Time = text.contains(':').then(|| text.parse().ok()).flatten().ok_or_else(refused)?;
    let on = |date: jiff::civil::Date| {
        let time = date.to_datetime(time).to_zoned(now.time_zone().clone());
        time.map(|time| time.timestamp()).map_err(|_| refused())
    };
    let today = on(now.date())?;
    if today > now.timestamp() { Ok(today) } else { on(now.date().tomorrow().map_err(|_| refused())?) }
}

pub(super) fn approve(args: &ApproveArgs) -> anyhow::Result<ExitCode> {
    if args.into_profile {
        return into_profile::approve(&args.call);
    }
    let scope = args.scope.as_deref().and_then(ApprovalScope::from_name);
    let Some(scope) = scope else {
        if args.lasts.is_some() || args.until.is_some() {
            bail!("an approval of one call has no time: it counts at once, and only once");
        }
        return decide(&args.call, true);
    };
    let lasts = args.lasts.map(|lasts| Timestamp::now().checked_add(lasts)).transpose();
    let lasts = lasts.context("--for is too long a time")?;
    let until = args.until.or(lasts).map(Timestamp::as_microsecond);
    let places = Places::on_record(args.call.db.as_deref())?;
    let whereto = whereto(&places, &args.call.call);
    let request =
        McpRequest::ApproveFor { call: args.call.call.clone(), standing: Standing { scope, until } };
    let McpReply::Stands { call, approval } = client::ask(&places, &request)? else {
        bail!("the auditor sent an unexpected answer");
    };
    let text = |key: &str| printable(approval[key].as_str().unwrap_or_default());
    let mut out = io::stdout().lock();
    writeln!(out, "approved {call}{whereto}")?;
    let until = match text("until") {
        until if until.is_empty() && scope == ApprovalScope::Container => {
            "the end of its container".to_owned()
        }
        until if until.is_empty() => "the end of its session".to_owned(),
        until => until,
    };
    writeln!(
        out,
        "approval {} ({}) stands until {until}; `ringfence approvals revoke` ends it",
        text("id"),
        text("scope")
    )?;
    if approval["only_session"] == true {
        eprintln!(
            "ringfence: a file that the server's command names changed while the server started; so this approval answers calls of this session only"
        );
    }
    Ok(ExitCode::SUCCESS)
}

pub(super) fn list(args: &ListArgs) -> anyhow::Result<ExitCode> {
    let places = Places::on_record(args.db.as_deref())?;
    let McpReply::Rows { rows } = client::ask(&places, &McpRequest::Approvals)? else {
        bail!("the auditor sent an unexpected answer");
    };
    if args.json {
        let lines: String = rows.iter().map(|row| format!("{row}\n")).collect();
        return output::print(&lines);
    }
    if rows.is_empty() {
        eprintln!("ringfence: no approval of more than one call stands");
        return Ok(ExitCode::SUCCESS);
    }
    let head = ["ID", "SCOPE", "SERVER", "TOOL", "UNTIL", "USES", "BY", "FOR"].map(str::to_owned);
    let line = |row: &Value| {
        let text = |key: &str| row[key].as_str().unwrap_or_default();
        let about = match text("scope") {
            "arguments" => word(text("beginning")),
            "session" => format!("session {}", word(text("session_id").get(..8).unwrap_or_default())),
            "container" => format!("container {} {}", word(text("session_id")), word(text("beginning"))),
            _ => String::new(),
        };
        let until = if row["until"].is_null() { "its end".to_owned() } else { word(text("until")) };
        [
            word(text("id")),
            word(text("scope")),
            word(text("server_name")),
            word(text("tool_name")),
            until,
            row["uses"].as_i64().unwrap_or(0).to_string(),
            word(text("created_by")),
            about,
        ]
    };
    let table: Vec<[String; 8]> = std::iter::once(head).chain(rows.iter().map(line)).collect();
    output::print(&output::table(&table))
}

pub(super) fn revoke(args: &RevokeArgs) -> anyhow::Result<ExitCode> {
    let places = Places::on_record(args.db.as_deref())?;
    let request = McpRequest::Revoke { approval: args.approval.clone() };
    let McpReply::Revoked { approval } = client::ask(&places, &request)? else {
        bail!("the auditor sent an unexpected answer");
    };
    writeln!(io::stdout(), "revoked {approval}")?;
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use super::until_after;
    use jiff::{Timestamp, Zoned};

    #[test]
    fn a_time_of_day_is_the_next_one() {
        let now: Zoned = "2026-03-05T16:00:00[UTC]".parse().expect("a time");
        let at = |text: &str| until_after(text, &now).map(|time| time.to_string());
        assert_eq!(at("17:30").as_deref(), Ok("2026-03-05T17:30:00Z"));
        assert_eq!(at("17:30:05").as_deref(), Ok("2026-03-05T17:30:05Z"));
        assert_eq!(at("16:00").as_deref(), Ok("2026-03-06T16:00:00Z"), "that one is over");
        assert_eq!(at("2026-03-05T17:00:00+01:00").as_deref(), Ok("2026-03-05T16:00:00Z"));
        for refused in ["", "25:00", "soon", "17"] {
            assert!(at(refused).is_err_and(|why| why.contains("is no time")), "{refused}");
        }
        let _: Timestamp = until_after("00:00", &now).expect("a time");
    }
}
