//! The command line: a few nouns with verbs. Each command is a file or folder here, with its arguments and a function that
//! returns the exit status.
//!
//! | enum | what it holds |
//! |---|---|
//! | [`Command`] | the commands that `ringfence --help` shows |
//! | [`Alias`] | the older names of some of them, from when there were no nouns |
//! | [`Role`] | the processes that Ringfence starts itself |

mod agent;
mod approvals;
mod audit;
mod completions;
mod dashboard;
mod doctor;
mod enroll;
mod events;
mod exit;
mod grant;
mod help;
mod install;
mod ledger;
mod log;
mod man;
mod mcp;
mod output;
mod profile;
mod proxy_connect;
mod role;
mod run;
mod status;
#[cfg(test)]
mod tests;
mod tools;

use clap::{CommandFactory as _, FromArgMatches as _, Parser, Subcommand};
use exit::Exit;
use std::process::ExitCode;

#[derive(Debug, Parser)]
#[command(name = "ringfence", version, about = help::ABOUT, max_term_width = 100)]
struct Cli {
    #[command(subcommand)]
    words: Words,
}

/// What a command line can begin with.
#[derive(Debug, Subcommand)]
enum Words {
    #[command(flatten)]
    Command(Command),
    #[command(flatten)]
    Alias(Alias),
    #[command(flatten)]
    Role(Role),
    /// Prints the version, as `ringfence --version` does.
    #[command(hide = true)]
    Version(VersionArgs),
}

#[derive(Debug, Subcommand)]
enum Command {
    Run(run::Args),
    Enroll(enroll::Args),
    Profile(profile::Args),
    ProxyConnect(proxy_connect::Args),
    Status(status::Args),
    Events(events::Args),
    Dashboard(dashboard::Args),
    Agent(agent::Args),
    Mcp(mcp::Args),
    Approvals(approvals::Args),
    Audit(audit::Args),
    Tools(tools::Args),
    Grant(grant::Args),
    Doctor(doctor::Args),
    Install(install::InstallArgs),
    Uninstall(install::UninstallArgs),
    Completions(completions::Args),
    Man(man::Args),
}

/// Names that scripts, tests and documents use; each stands for a command above.
#[derive(Debug, Subcommand)]
enum Alias {
    #[command(hide = true)]
    Start(agent::StartArgs),
    #[command(hide = true)]
    Init(agent::InitArgs),
    #[command(hide = true)]
    Stop(agent::StopAllArgs),
    #[command(hide = true)]
    Show(agent::ShowArgs),
    #[command(hide = true)]
    Logs(agent::LogsArgs),
    #[command(hide = true)]
    Send(agent::SendArgs),
    #[command(hide = true)]
    Why(events::WhyArgs),
    #[command(hide = true)]
    Trace(events::TraceArgs),
    #[command(hide = true)]
    Sessions(mcp::SessionsArgs),
    #[command(hide = true)]
    Calls(mcp::CallsArgs),
    #[command(hide = true)]
    Stats(mcp::StatsArgs),
    #[command(hide = true)]
    Rules(mcp::RulesArgs),
    /// Approves a tool call that waits.
    #[command(hide = true)]
    Approve(approvals::DecideArgs),
    /// Denies a tool call that waits.
    #[command(hide = true)]
    Deny(approvals::DecideArgs),
}

impl From<Alias> for Command {
    fn from(alias: Alias) -> Self {
        match alias {
            Alias::Start(args) => Self::Agent(agent::Command::Start(args).into()),
            Alias::Init(args) => Self::Agent(agent::Command::Init(args).into()),
            Alias::Stop(args) => Self::Agent(agent::Command::Stop(args.into()).into()),
            Alias::Show(args) => Self::Agent(agent::Command::Show(args).into()),
            Alias::Logs(args) => Self::Agent(agent::Command::Logs(args).into()),
            Alias::Send(args) => Self::Agent(agent::Command::Send(args).into()),
            Alias::Why(args) => Self::Events(events::Command::Why(args).into()),
            Alias::Trace(args) => Self::Events(events::Command::Trace(args).into()),
            Alias::Sessions(args) => Self::Mcp(mcp::Command::Sessions(args).into()),
            Alias::Calls(args) => Self::Mcp(mcp::Command::Calls(args).into()),
            Alias::Stats(args) => Self::Mcp(mcp::Command::Stats(args).into()),
            Alias::Rules(args) => Self::Mcp(mcp::Command::Rules(args).into()),
            Alias::Approve(args) => Self::Approvals(args.into()),
            Alias::Deny(args) => Self::Approvals(approvals::Command::Deny(args).into()),
        }
    }
}

#[derive(Debug, Subcommand)]
enum Role {
    #[command(hide = true)]
    Daemon(role::DaemonArgs),
    #[command(hide = true)]
    Auditor(role::AuditorArgs),
    #[command(hide = true)]
    McpGuard(mcp::GuardArgs),
    /// Speaks to a remote MCP server. `ringfence mcp --url` starts it, with what it is to do on standard input.
    #[command(hide = true)]
    McpRemote,
    /// Keeps a login at a remote MCP server for a session, and renews it. `ringfence mcp-remote` starts it, with a socket to it as
    /// standard input.
    #[command(hide = true)]
    McpLoginKeeper,
    /// Speaks to authorization servers. `ringfence mcp login` starts it, with a socket to it as standard input.
    #[command(hide = true)]
    McpOauth,
    /// The LLM worker. The daemon or `ringfence agent start` starts it, with a socket to it as standard input.
    #[command(hide = true)]
    LlmWorker,
    /// Runs commands that print credentials. `ringfence agent start` starts it, with a socket to it as standard input.
    #[command(hide = true)]
    LlmCommands,
    /// Renews a login. `ringfence run` starts it, with a socket to it as standard input.
    #[command(hide = true)]
    LlmRenewal,
    /// What one container reaches by name. The daemon starts it, with a socket to it as standard input.
    #[command(hide = true)]
    EgressWorker,
    /// Puts one container's credentials into its requests. The daemon starts it, with a socket to it as standard input.
    #[command(hide = true)]
    EgressCredentials,
}

#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  ringfence version")]
struct VersionArgs {}

impl Words {
    /// The command that an older name stands for.
    fn unaliased(self) -> Self {
        match self {
            Self::Alias(alias) => Self::Command(alias.into()),
            other => other,
        }
    }

    /// Whether the command itself reports that this machine cannot run Ringfence: `doctor` in its report, `run` with its own
    /// exit status.
    fn reports_the_platform(&self) -> bool {
        matches!(self, Self::Command(Command::Doctor(_) | Command::Run(_)))
    }

    fn run(self) -> anyhow::Result<ExitCode> {
        match self {
            Self::Command(command) => command.run(),
            Self::Alias(alias) => Command::from(alias).run(),
            Self::Role(role) => role.run(),
            Self::Version(_) => output::print(concat!("ringfence ", env!("CARGO_PKG_VERSION"), "\n")),
        }
    }
}

impl Command {
    fn run(self) -> anyhow::Result<ExitCode> {
        match self {
            Self::Run(args) => Ok(run::run(&args)),
            Self::Enroll(args) => enroll::run(&args),
            Self::Profile(args) => profile::run(&args),
            Self::ProxyConnect(args) => proxy_connect::run(&args),
            Self::Status(args) => status::run(&args),
            Self::Events(args) => events::run(args),
            Self::Dashboard(args) => dashboard::run(&args),
            Self::Agent(args) => agent::run(&args),
            Self::Mcp(args) => mcp::run(&args),
            Self::Approvals(args) => approvals::run(args),
            Self::Audit(args) => audit::run(&args),
            Self::Tools(args) => tools::run(&args),
            Self::Grant(args) => grant::run(&args),
            Self::Doctor(args) => doctor::run(&args),
            Self::Install(args) => install::install(&args),
            Self::Uninstall(args) => install::uninstall(&args),
            Self::Completions(args) => completions::run(&args),
            Self::Man(args) => man::run(&args),
        }
    }
}

impl Role {
    fn run(self) -> anyhow::Result<ExitCode> {
        match self {
            Self::Daemon(args) => role::daemon(&args),
            Self::Auditor(args) => role::auditor(&args),
            Self::McpGuard(args) => mcp::guard(&args),
            Self::McpRemote => mcp::remote(),
            Self::McpLoginKeeper => role::mcp_login_keeper(),
            Self::McpOauth => role::mcp_oauth(),
            Self::LlmWorker => role::llm_worker(),
            Self::LlmCommands => role::llm_commands(),
            Self::LlmRenewal => role::llm_renewal(),
            Self::EgressWorker => role::egress_worker(),
            Self::EgressCredentials => role::egress_credentials(),
        }
    }
}

/// The whole grammar, with the overview of `ringfence --help`.
fn grammar() -> clap::Command {
    help::with_overview(Cli::command())
}

/// The commands for users, from which completions, manual pages and docs/cli.md are generated.
fn visible() -> clap::Command {
    let root = clap::Command::new("ringfence").version(env!("CARGO_PKG_VERSION")).about(help::ABOUT);
    help::with_overview(Command::augment_subcommands(root.subcommand_required(true)))
}

/// Makes a panic in any thread end the process, after the report: a role that lost a thread does not work. Release builds abort
/// anyway (`panic = "abort"`); this is for test builds.
fn abort_on_panic() {
    let report = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        report(panic);
        std::process::abort();
    }));
}

/// Parses the command line, runs the command, prints an error's whole chain once.
pub(crate) fn main() -> ExitCode {
    let mut matches = grammar().get_matches();
    let words = match Cli::from_arg_matches_mut(&mut matches) {
        Ok(cli) => cli.words.unaliased(),
        Err(error) => error.format(&mut grammar()).exit(),
    };
    abort_on_panic();
    if !words.reports_the_platform()
        && let Some(reason) = unsupported()
    {
        eprintln!("ringfence: {reason}");
        return Exit::Failure.into();
    }
    words.run().unwrap_or_else(|error| {
        // The reader closed the pipe (`| head`).
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
    ringfence_base::platform::refusal(
        std::env::consts::OS,
        std::env::consts::ARCH,
        &release.unwrap_or_default(),
    )
}
