//! The command line: a file for each command, or a folder where it has its own, with `Args` and a function that returns
//! the exit code.

mod agent;
mod approvals;
mod audit;
mod dashboard;
mod doctor;
mod enroll;
mod events;
mod exit;
mod grant;
mod install;
mod log;
mod mcp;
mod output;
mod profile;
mod role;
mod run;
mod status;
mod tools;

use clap::{Parser, Subcommand};
use exit::Exit;
use std::process::ExitCode;

const EXAMPLES: &str = "Examples:
  ringfence doctor                                           what this host can enforce
  ringfence run --profile coder -- bash                      a command under a profile
  ringfence mcp wrap .mcp.json                               record and judge what an MCP client calls
  ringfence tools --profile coder                            tools that hold only what was granted
  ringfence start                                            serve this user's LLM agents

`ringfence COMMAND --help` has more of each.";

/// Puts each AI-agent container under one profile that the kernel enforces and audits.
#[derive(Debug, Parser)]
#[command(name = "ringfence", version, max_term_width = 100)]
#[command(after_help = EXAMPLES, after_long_help = format!("{EXAMPLES}\n\n{}", exit::text()))]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Run(run::Args),
    Start(agent::StartArgs),
    Init(agent::InitArgs),
    Stop(agent::StopArgs),
    Agent(agent::Args),
    Show(agent::ShowArgs),
    Logs(agent::LogsArgs),
    Send(agent::SendArgs),
    Status(status::Args),
    Events(events::ListArgs),
    Why(events::WhyArgs),
    Trace(events::TraceArgs),
    Doctor(doctor::Args),
    Profile(profile::Args),
    Grant(grant::Args),
    Tools(tools::Args),
    Rules(mcp::RulesArgs),
    Mcp(mcp::Args),
    Sessions(mcp::SessionsArgs),
    Calls(mcp::CallsArgs),
    Stats(mcp::StatsArgs),
    Audit(audit::Args),
    Dashboard(dashboard::Args),
    Approvals(approvals::ListArgs),
    /// Approves a tool call that waits.
    Approve(approvals::DecideArgs),
    /// Denies a tool call that waits.
    Deny(approvals::DecideArgs),
    #[command(hide = true)]
    McpGuard(mcp::GuardArgs),
    /// Prints the version.
    Version(VersionArgs),
    Enroll(enroll::Args),
    Daemon(role::DaemonArgs),
    Install(install::InstallArgs),
    Uninstall(install::UninstallArgs),
    #[command(hide = true)]
    Auditor(role::AuditorArgs),
    /// The LLM worker's role; the daemon starts it, with its link as standard input.
    #[command(hide = true)]
    LlmWorker,
    /// Runs commands that print credentials; `ringfence start` starts it, with its link as standard input.
    #[command(hide = true)]
    LlmCommands,
}

#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  ringfence version")]
struct VersionArgs {}

fn version(_: &VersionArgs) -> anyhow::Result<ExitCode> {
    output::print(concat!("ringfence ", env!("CARGO_PKG_VERSION"), "\n"))
}

/// A panic in any thread ends the process, once it was told: what is left of a role without one of its threads is no role.
/// Only the agents of `ringfence start` have nothing to do with each other.
fn end_at_a_panic() {
    let tell = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        tell(panic);
        std::process::abort();
    }));
}

/// Parses the command line, runs the subcommand, prints an error's whole chain once.
pub(crate) fn main() -> ExitCode {
    let cli = Cli::parse();
    if !matches!(cli.command, Command::Start(_)) {
        end_at_a_panic();
    }
    // `doctor` says the same in its own way, `run` with its own exit status.
    if !matches!(cli.command, Command::Doctor(_) | Command::Run(_))
        && let Some(reason) = unsupported()
    {
        eprintln!("ringfence: {reason}");
        return Exit::Failure.into();
    }
    let result = match cli.command {
        Command::Run(args) => return run::run(args),
        Command::Start(args) => agent::start(&args),
        Command::Init(args) => agent::init(&args),
        Command::Stop(args) => agent::stop(&args),
        Command::Version(args) => version(&args),
        Command::Agent(args) => agent::run(&args),
        Command::Show(args) => agent::show(&args),
        Command::Logs(args) => agent::logs(&args),
        Command::Send(args) => agent::send(&args),
        Command::Status(args) => status::run(&args),
        Command::Events(args) => events::list(&args),
        Command::Why(args) => events::why(&args),
        Command::Trace(args) => events::trace(&args),
        Command::Doctor(args) => doctor::run(&args),
        Command::Profile(args) => profile::run(&args),
        Command::Grant(args) => grant::run(&args),
        Command::Tools(args) => tools::run(&args),
        Command::Rules(args) => mcp::rules(&args),
        Command::Mcp(args) => mcp::run(&args),
        Command::Sessions(args) => mcp::sessions(&args),
        Command::Calls(args) => mcp::calls(&args),
        Command::Stats(args) => mcp::stats(&args),
        Command::Audit(args) => audit::run(&args),
        Command::Dashboard(args) => dashboard::run(&args),
        Command::Approvals(args) => approvals::list(&args),
        Command::Approve(args) => approvals::decide(&args, true),
        Command::Deny(args) => approvals::decide(&args, false),
        Command::McpGuard(args) => mcp::guard(&args),
        Command::Enroll(args) => enroll::run(&args),
        Command::Daemon(args) => role::daemon(&args),
        Command::Install(args) => install::install(&args),
        Command::Uninstall(args) => install::uninstall(&args),
        Command::Auditor(args) => role::auditor(&args),
        Command::LlmWorker => role::llm_worker(),
        Command::LlmCommands => role::llm_commands(),
    };
    result.unwrap_or_else(|error| {
        // Whoever read standard output has enough: `| head`.
        if error.downcast_ref::<std::io::Error>().is_some_and(|e| e.kind() == std::io::ErrorKind::BrokenPipe)
        {
            return Exit::Success.into();
        }
        eprintln!("ringfence: {error:#}");
        Exit::Failure.into()
    })
}

/// Why this machine cannot run Ringfence, if it cannot. After parsing, so that `--help` works everywhere.
fn unsupported() -> Option<String> {
    let release = nix::sys::utsname::uname().map(|name| name.release().to_string_lossy().into_owned());
    crate::platform::refusal(std::env::consts::OS, std::env::consts::ARCH, &release.unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::Cli;
    use clap::CommandFactory as _;

    /// Those without an example.
    fn bare(command: &clap::Command, path: &str, found: &mut Vec<String>) {
        let path = format!("{path} {}", command.get_name());
        let help = command.get_after_help().map(ToString::to_string).unwrap_or_default();
        if !help.contains("Example") {
            found.push(path.clone());
        }
        let below = command.get_subcommands().filter(|below| !below.is_hide_set());
        below.for_each(|below| bare(below, &path, found));
    }

    #[test]
    fn every_help_has_an_example() {
        let mut found = Vec::new();
        bare(&Cli::command(), "", &mut found);
        assert_eq!(found, Vec::<String>::new());
    }
}
