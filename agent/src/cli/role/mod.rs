//! The roles: processes that the daemon, `ringfence agent start` or the service manager starts.

mod agent_lines;
mod daemon;

pub(crate) use daemon::{Args as DaemonArgs, run as daemon};

use agent_lines::AgentLines;
use ringfence_auditor::Retention;
use ringfence_client::places::Places;
use ringfence_interceptor::forward;
use std::{path::PathBuf, process::ExitCode, sync::Arc};

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
    /// Days that events are kept, and sessions after their end.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(0..=36_500))]
    keep_days: Option<u32>,
    /// Bytes that all sessions may take, journals and rows together.
    #[arg(long, value_name = "N")]
    keep_bytes: Option<u64>,
    /// Seconds after its end in which a session is never removed.
    #[arg(long, value_name = "N")]
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

/// `ringfence egress-worker`.
pub(crate) fn egress_worker() -> anyhow::Result<ExitCode> {
    prepare();
    ringfence_egress::role::run()?;
    Ok(ExitCode::SUCCESS)
}

/// `ringfence egress-credentials`.
pub(crate) fn egress_credentials() -> anyhow::Result<ExitCode> {
    prepare();
    ringfence_egress_credentials::role::run()?;
    Ok(ExitCode::SUCCESS)
}

/// `ringfence llm-commands`.
pub(crate) fn llm_commands() -> anyhow::Result<ExitCode> {
    prepare();
    let lines = Arc::<AgentLines>::default();
    lines.watch()?;
    ringfence_llm_worker::commands::serve(move |request| {
        lines.connect(request).map_err(|error| format!("{error:#}"))
    })?;
    Ok(ExitCode::SUCCESS)
}

/// `ringfence llm-renewal`.
pub(crate) fn llm_renewal() -> anyhow::Result<ExitCode> {
    prepare();
    ringfence_llm_worker::renewal::serve()?;
    Ok(ExitCode::SUCCESS)
}

/// `ringfence mcp-login-keeper`.
pub(crate) fn mcp_login_keeper() -> anyhow::Result<ExitCode> {
    prepare();
    crate::cli::mcp::login_keeper()
}

/// `ringfence mcp-oauth`.
pub(crate) fn mcp_oauth() -> anyhow::Result<ExitCode> {
    prepare();
    crate::cli::mcp::oauth()
}

/// The first step of every role that another role starts.
fn become_role() {
    forward::unmask_signals();
    // The role was started as /proc/self/exe, so ps would show `exe`. A failure is harmless.
    let _ = nix::sys::prctl::set_name(c"ringfence");
}

fn prepare() {
    become_role();
    // Standard output is a socket here, so logs go to standard error, which is the daemon's log.
    crate::cli::log::of_a_child();
}

impl AuditorArgs {
    /// The default, but for what the arguments set.
    pub(crate) fn retention(&self) -> Retention {
        let mut retention = Retention::default();
        if let Some(days) = self.keep_days {
            retention = retention.with_days(days);
        }
        retention.session_bytes = self.keep_bytes.unwrap_or(retention.session_bytes);
        retention.grace = self.grace.map_or(retention.grace, |seconds| i64::from(seconds) * 1_000_000);
        retention
    }
}

pub(crate) fn auditor(args: &AuditorArgs) -> anyhow::Result<ExitCode> {
    prepare();
    let retention = args.retention();
    match &args.state {
        Some(state) => ringfence_auditor::run(state, retention)?,
        None => {
            let places = Places::locate(args.db.as_deref())?;
            places.make()?;
            ringfence_auditor::user::run(&places, args.port, retention)?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::{Args as _, FromArgMatches as _};

    #[test]
    fn what_is_kept_is_set_for_the_daemon_s_auditor_as_for_a_user_s() {
        for whose in [["--state", "DIR"].as_slice(), &["--user", "--db", "FILE"]] {
            let retention = |set: &[&str]| {
                let line = ["auditor"].iter().chain(whose).chain(set).copied();
                let grammar = AuditorArgs::augment_args(clap::Command::new("auditor"));
                let matches = grammar.try_get_matches_from(line).expect("parses");
                AuditorArgs::from_arg_matches(&matches).expect("the arguments").retention()
            };
            assert_eq!(retention(&[]), Retention::default());
            let set = retention(&["--keep-days", "7", "--keep-bytes", "9", "--grace", "5"]);
            let seven_days = 7 * 24 * 3_600 * 1_000_000;
            assert_eq!((set.age, set.session_bytes, set.grace), (seven_days, 9, 5_000_000), "{whose:?}");
        }
    }
}
