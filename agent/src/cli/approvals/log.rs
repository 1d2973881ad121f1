//! `ringfence approvals log`: who gave, revoked and ended approvals of more than one call.

use crate::cli::{
    ledger::{self, Shown},
    output::word,
};
use ringfence_base::{clock::rfc3339, escape::line as printable};
use ringfence_client::places::Places;
use ringfence_session::ledger::{ChangedApproval, Entry};
use ringfence_wire::{approvals::ApprovalScope, tool_call::Named as _};
use std::process::ExitCode;

/// Lists who gave, revoked and ended approvals of more than one call, and when.
///
/// This reads the ledger. Approvals that simply expired, or ended with their session, have no closing entry.
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
    ledger::print(&places, args.json, |entry| match entry {
        Entry::Approval(change) => Some(Shown { at: change.at, text: describe(&change), entry: change }),
        _ => None,
    })
}

fn describe(change: &ChangedApproval) -> String {
    let ChangedApproval { at, by, change, id, scope, server, tool, session, until, call } = change;
    let within = if scope == ApprovalScope::Container.name() { "container" } else { "session" };
    let bound = session.as_ref().map(|session| format!(" {within}={}", word(session))).unwrap_or_default();
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
