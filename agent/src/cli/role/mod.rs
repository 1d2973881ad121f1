//! The roles: processes that the daemon, `ringfence agent start` or the service manager starts.

mod daemon;

pub(crate) use daemon::{Args as DaemonArgs, run as daemon};

use ringfence_auditor::SessionLimits;
use ringfence_client::places::Places;
use ringfence_interceptor::forward;
use std::{path::PathBuf, process::ExitCode};

/// The auditor role. The daemon starts it, with a socket to the daemon as standard input and the query socket as standard
/// output.
#[derive(Debug, clap::Args)]
pub(crate) struct AuditorArgs {
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
    /// Days that a session is kept after its end.
    #[arg(long, value_name = "N", requires = "user", value_parser = clap::value_parser!(u32).range(0..=36_500))]
    keep_days: Option<u32>,
    /// Bytes that all sessions may take, journals and rows together.
    #[arg(long, value_name = "N", requires = "user")]
    keep_bytes: Option<u64>,
    /// Seconds after its end in which a session is never removed.
    #[arg(long, value_name = "N", requires = "user")]
    grace: Option<u32>,
}

/// `ringfence llm-worker`.
pub(crate) fn llm_worker() -> anyhow::Result<ExitCode> {
    become_role();
    // It shares its supervisor's standard error. The MCP library's warnings quote what servers send; the worker logs what
    // matters of it.
    crate::cli::log::start("info,rmcp=off");
    ringfence_llm_worker::role::run()?;
    Ok(ExitCode::SUCCESS)
}

/// `ringfence llm-commands`.
pub(crate) fn llm_commands() -> anyhow::Result<ExitCode> {
    prepare();
    ringfence_llm_worker::commands::serve()?;
    Ok(ExitCode::SUCCESS)
}

/// The first step of every role that another role starts.
fn become_role() {
    forward::release_signals();
    // The role was started as /proc/self/exe, so ps would show `exe`. A failure is harmless.
    let _ = nix::sys::prctl::set_name(c"ringfence");
}

fn prepare() {
    become_role();
    // Standard output is a socket here, so logs go to standard error, which is the daemon's log.
    crate::cli::log::of_a_child();
}

pub(crate) fn auditor(args: &AuditorArgs) -> anyhow::Result<ExitCode> {
    prepare();
    match &args.state {
        Some(state) => ringfence_auditor::run(state)?,
        None => {
            let mut limits = SessionLimits::default();
            if let Some(days) = args.keep_days {
                limits.age = i64::from(days) * 24 * 3_600 * 1_000_000;
            }
            limits.grace = args.grace.map_or(limits.grace, |seconds| i64::from(seconds) * 1_000_000);
            limits.bytes = args.keep_bytes.unwrap_or(limits.bytes);
            let places = Places::locate(args.db.as_deref())?;
            places.make()?;
            ringfence_auditor::user::run(&places, args.port, limits)?;
        }
    }
    Ok(ExitCode::SUCCESS)
}
