//! `ringfence dashboard`: the link that opens the dashboard of MCP sessions.

use super::output::print;
use anyhow::{Context, bail};
use ringfence_client::{places::Places, sessions as client};
use ringfence_wire::mcp::{McpReply, McpRequest};
use std::process::{Command, ExitCode, Stdio};

/// Prints the link to the dashboard of MCP sessions.
///
/// It starts the auditor, which serves the dashboard, if none runs. Keep the link secret: its token opens the dashboard and
/// approves calls. The link is valid until the auditor ends.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  ringfence dashboard --open")]
pub(crate) struct Args {
    /// The audit database [default: the daemon's, if it runs, else the user's].
    #[arg(long, value_name = "FILE")]
    db: Option<String>,
    /// Open the link in the browser.
    #[arg(long)]
    open: bool,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let places = Places::on_record(args.db.as_deref())?;
    let McpReply::Dashboard { url } = client::ask(&places, &McpRequest::Dashboard)? else {
        bail!("the auditor sent an unexpected answer");
    };
    print(&format!("{url}\n"))?;
    if args.open {
        // Without a shell, the link stays one argument. This user's other processes can see it in the process list, but they
        // can also ask the auditor for it.
        let opened = Command::new("xdg-open").arg(&url).stdin(Stdio::null()).stdout(Stdio::null()).status();
        let status =
            opened.context("cannot start xdg-open (package xdg-utils); open the link above by hand")?;
        if !status.success() {
            bail!("xdg-open found no browser ({status}); open the link above by hand");
        }
    }
    Ok(ExitCode::SUCCESS)
}
