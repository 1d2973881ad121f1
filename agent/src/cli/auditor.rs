//! `ringfence auditor`: the auditor role, started by the daemon.

use crate::mcp::state::Places;
use std::{io, path::PathBuf, process::ExitCode};

/// The auditor role; the daemon starts it, with its link as standard input and the query socket as standard output.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Directory of the database. Must exist and be writable.
    #[arg(long, value_name = "DIR", required_unless_present = "user")]
    state: Option<PathBuf>,
    /// Serve one user's database of MCP sessions instead of the daemon; ends when idle.
    #[arg(long, requires = "db", conflicts_with = "state")]
    user: bool,
    /// That database.
    #[arg(long, value_name = "FILE")]
    db: Option<String>,
    /// Port of the dashboard.
    #[arg(long, value_name = "P", default_value_t = 8080)]
    port: u16,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    // It was started by way of /proc/self/exe; `exe` would be all that ps shows. Cosmetic: a failure changes nothing.
    let _ = nix::sys::prctl::set_name(c"ringfence");
    // Standard output is a socket here: everything that is said goes to standard error, which is the daemon's log.
    tracing_subscriber::fmt()
        .with_writer(io::stderr)
        .with_ansi(false)
        .without_time()
        .with_target(false)
        .init();
    match &args.state {
        Some(state) => crate::auditor::run(state)?,
        None => crate::auditor::user::run(&Places::find(args.db.as_deref())?, args.port)?,
    }
    Ok(ExitCode::SUCCESS)
}
