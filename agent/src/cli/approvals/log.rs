//! `ringfence approvals log`: who gave, revoked and ended approvals of more than one call.

use crate::cli::output::{self, word};
use anyhow::bail;
use ringfence_base::{clock::rfc3339, escape::line as printable};
use ringfence_client::{places::Places, sessions as client};
use ringfence_session::ledger::{ChangedApproval, Entry};
use ringfence_wire::mcp::{McpReply, McpRequest};
use serde_json::json;
use std::process::ExitCode;

/// Rows of the ledger that are asked for at once.
const PAGE: u32 = 1000;

/// Lists who gave, revoked and ended approvals of more than one call, and when.
///
/// It is what the ledger has. One that ended with its session or at its time has no entry of that.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  ringfence approvals log")]
pub(crate) struct Args {
    /// The audit database [default: the daemon's, if it runs, else the user's].
    #[arg(long, value_name = "FILE")]
    db: Option<String>,
    /// One JSON object per line.
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let places = Places::on_record(args.db.as_deref())?;
    let mut after = 0;
    loop {
        let request = McpRequest::Table { table: "ledger".to_owned(), after, limit: PAGE, as_text: false };
        let McpReply::Rows { rows: page } = client::ask(&places, &request)? else {
            bail!("the auditor sent an unexpected answer");
        };
        let Some(last) = page.last().and_then(|row| row["_rowid"].as_i64()) else {
            return Ok(ExitCode::SUCCESS);
        };
        after = last;
        let mut text = String::new();
        for row in &page {
            // What is no entry `ringfence audit verify` reports.
            let entry = row["entry"].as_str().and_then(|entry| serde_json::from_str(entry).ok());
            let Some(Entry::Approval(change)) = entry else { continue };
            if args.json {
                let mut line = json!(*change);
                line["uid"] = row["uid"].clone();
                line["at"] = rfc3339(change.at).into();
                text += &format!("{line}\n");
            } else {
                text += &describe(&change);
            }
        }
        output::print(&text)?;
    }
}

fn describe(change: &ChangedApproval) -> String {
    let ChangedApproval { at, by, change, id, scope, server, tool, session, until, call } = change;
    let bound = session.as_ref().map(|session| format!(" session={}", word(session))).unwrap_or_default();
    let until = until.as_ref().map(|until| format!(" until={}", word(until))).unwrap_or_default();
    format!(
        "{}  {} {}  by {}\n    {} of tool={} server={}{bound}{until}, given for call {}\n",
        rfc3339(*at),
        printable(change),
        word(id),
        printable(by),
        word(scope),
        word(tool),
        word(server),
        word(call)
    )
}
