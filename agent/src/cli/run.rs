//! `ringfence run`.

use super::exit::Exit;
use nix::sys::{
    signal::{SigSet, Signal},
    signalfd::{SfdFlags, SignalFd},
};
use ringfence_base::error::chain;
use ringfence_base::paths::Paths;
use ringfence_credentials::Source;
use ringfence_kit::{self as kit, Client, DenialRecord, Endpoint, NoTie, Runner, Tie};
use ringfence_launch::{self as launch, Request, Say, Variable};
use ringfence_policy::{self as profile, Dirs, Partial, Profile, agents::registry::Given};
use ringfence_process::job::Streams;
use ringfence_wire::message::Reporting;
use std::{
    ffi::OsString,
    io::{self, IsTerminal},
    path::{Path, PathBuf},
    process::ExitCode,
    time::{Duration, Instant},
};

/// Runs a command in a container of its own, under a profile.
///
/// A known agent (`ringfence agent kits` lists them) is run under the profile of its own name, with its model served by this
/// run: the credential stays on the host.
///
/// The exit status is that of the command, or 128+N if signal N ended it; 127 if it was not found, 126 if it could not be
/// executed, 125 if Ringfence could not confine it.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  ringfence run -- bash
  ringfence run claude
  ringfence run codex -- exec 'fix the failing test'
  ringfence run --base-url https://gateway.example/v1 --api-key-file ~/.keys/gateway claude
  ringfence run --profile coder --workdir ~/src/app -- cargo test
  ringfence run --profile reader --env EDITOR --env MODE=review -- python3 report.py
  sudo ringfence run --profile coder --user builder -- make
  ringfence run --profile ./tight.toml --accept-partial exec,fs_write -- ./tool   # without the daemon")]
pub(crate) struct Args {
    /// The profile: a name or a path [default: that of a known agent; else `shell`, if it is installed].
    #[arg(long, short, value_name = "PROFILE")]
    profile: Option<String>,
    /// Run the command as this user (root only).
    #[arg(long, short, value_name = "NAME")]
    user: Option<String>,
    /// The directory to start in, and `${WORKDIR}` in the profile [default: the current directory].
    #[arg(long, short, value_name = "DIR")]
    workdir: Option<PathBuf>,
    /// Pass an environment variable to the command (K), or set one (K=V). The command always gets PATH, HOME, USER, SHELL, TERM,
    /// LANG, LC_*, TZ and COLORTERM.
    #[arg(long, short, value_name = "K[=V]")]
    env: Vec<Variable>,
    /// Audit mode: deny nothing, record what would be denied. Root decides who may.
    #[arg(long)]
    audit: bool,
    /// Run without full enforcement of these axes where eBPF is not available: exec, fs_read, fs_write, net; names: reach hosts
    /// that are granted by name through a proxy, with any address at its port left open; unix: allow every unix socket that file
    /// modes allow; home: allow the home directory as the working directory.
    #[arg(long, value_name = "WHAT,...", value_delimiter = ',')]
    accept_partial: Vec<Partial>,
    /// For an agent with a kit: the address of its model, in place of the provider's.
    #[arg(long, value_name = "URL", help_heading = "The agent's model")]
    base_url: Option<String>,
    /// For an agent with a kit: the variable that has the credential.
    #[arg(long, value_name = "NAME", help_heading = "The agent's model", group = "api_key")]
    api_key_env: Option<String>,
    /// The file that has it, which only its owner may read.
    #[arg(long, value_name = "FILE", help_heading = "The agent's model", group = "api_key")]
    api_key_file: Option<PathBuf>,
    /// The command that prints it, for /bin/sh.
    #[arg(long, value_name = "COMMAND", help_heading = "The agent's model", group = "api_key")]
    api_key_command: Option<String>,
    /// Report what enforces the profile, even if standard error is not a terminal.
    #[arg(long, short)]
    verbose: bool,
    /// The command and its arguments.
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = false, value_name = "CMD")]
    command: Vec<OsString>,
}

impl Args {
    /// What is given of the agent's model.
    fn given(&self) -> Given {
        let shell =
            |line: &String| Source::Command(vec!["/bin/sh".to_owned(), "-c".to_owned(), line.clone()]);
        let variable = self.api_key_env.clone().map(Source::Env);
        let file = || self.api_key_file.clone().map(Source::File);
        let command = || self.api_key_command.as_ref().map(shell);
        Given { base_url: self.base_url.clone(), credential: variable.or_else(file).or_else(command) }
    }
}

/// Runs the command and gives its exit status.
pub(crate) fn run(args: &Args) -> ExitCode {
    match confined(args) {
        Ok(status) => ExitCode::from(status),
        Err(error) => {
            eprintln!("ringfence: {error}");
            Exit::NotConfined.into()
        }
    }
}

fn confined(args: &Args) -> Result<u8, String> {
    let is_watched = args.verbose || io::stderr().is_terminal();
    let found = profile(args)?;
    let mut request = Request {
        profile: None,
        loaded: found.clone().map(Box::new),
        endpoint: None,
        user: args.user.clone(),
        workdir: args.workdir.clone(),
        variables: args.env.clone(),
        audit: args.audit,
        accepted: args.accept_partial.clone(),
        by_proxy: true,
        words: args.command.clone(),
        whole_environment: false,
        say: if is_watched { Say::All } else { Say::Closed },
    };
    let endpoint = match found.as_ref().and_then(|found| Some((found, found.kit.as_ref()?))) {
        Some((found, kit)) => Some(with_kit(args, found, kit, &mut request)?),
        None if args.given() != Given::default() => {
            return Err(
                "--base-url and --api-key-... are for agents with a kit, and this command has none; \
                        `ringfence agent kits` lists them"
                    .to_owned(),
            );
        }
        None => None,
    };
    let explains = found.as_ref().and_then(|found| found.kit.as_ref()).is_some_and(|kit| kit.explain_denials);
    let report = |(line, takes): (_, Reporting), container: &str| {
        let record =
            || DenialRecord { socket: Paths::from_env().query_socket(), container: container.to_owned() };
        // A daemon of before would end the line at the question.
        let denials = (explains && takes.counts_denials).then(record);
        let failed = endpoint.as_ref().and_then(|endpoint| endpoint.report_to(line, denials).err());
        failed.inspect(|why| eprintln!("ringfence: nothing is reported of this run: {why}"));
    };
    let take_line = endpoint.is_some().then_some(&report as launch::TakeLine<'_>);
    let started =
        launch::start_reporting(&request, Streams::Own, take_line).map_err(|error| chain(&error))?;
    endpoint.as_ref().inspect(|endpoint| endpoint.watch());
    // A login that is being renewed is not stopped in the middle of it.
    let before_stop = || endpoint.as_ref().map(Endpoint::before_stop);
    let status = started.wait(before_stop).map_err(|error| chain(&error))?;
    let mut ending = Ending::begin(is_watched);
    let log = endpoint.and_then(|endpoint| endpoint.end(|| ending.is_cut()));
    if let Some(log) = log.filter(|_| is_watched) {
        eprintln!("ringfence: the calls of its model are on record in {}", log.display());
    }
    Ok(status)
}

/// The end of a run whose command has ended: what is left is its worker's.
struct Ending {
    begun: Instant,
    /// None: nobody can hurry it.
    signals: Option<SignalFd>,
    is_watched: bool,
    is_said: bool,
}

/// An end that takes longer than this is explained.
const SILENCE: Duration = Duration::from_secs(1);

impl Ending {
    fn begin(is_watched: bool) -> Self {
        let set = SigSet::from_iter([Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP]);
        let signals = set
            .thread_block()
            .and_then(|()| SignalFd::with_flags(&set, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK));
        let signals = signals.ok();
        // One that came with the signal that ended the command is no other one.
        signals.as_ref().inspect(|signals| while matches!(signals.read_signal(), Ok(Some(_))) {});
        Self { begun: Instant::now(), signals, is_watched, is_said: false }
    }

    /// Whether somebody wants no more of it; says what is waited for, where that takes a while.
    fn is_cut(&mut self) -> bool {
        if self.is_watched && !self.is_said && self.begun.elapsed() >= SILENCE {
            self.is_said = true;
            eprintln!(
                "ringfence: waiting for the worker that serves the agent's model to end; Ctrl-C ends it at once"
            );
        }
        self.signals.as_ref().is_some_and(|signals| matches!(signals.read_signal(), Ok(Some(_))))
    }
}

/// The profile that is named, or that of an agent that Ringfence knows; none: the default.
fn profile(args: &Args) -> Result<Option<Profile>, String> {
    let dirs = Dirs::from_env();
    match (&args.profile, args.command.first()) {
        (Some(name), _) => profile::load(name, &dirs).map(Some).map_err(|error| error.to_string()),
        (None, Some(command)) => kit::find(command, &dirs).map_err(|error| error.to_string()),
        (None, None) => Ok(None),
    }
}

/// Serves the agent's model, and has the request lead the agent there.
fn with_kit(
    args: &Args,
    found: &Profile,
    kit: &profile::kit::Kit,
    request: &mut Request,
) -> Result<Endpoint, String> {
    let Some(command) = args.command.first() else { return Err("there is no command".to_owned()) };
    let runner =
        Runner::named(args.user.as_deref()).ok_or("the user database does not know who is to run it")?;
    let mut endpoint =
        kit::serve(found, kit, args.given(), args.workdir.as_deref().unwrap_or(Path::new(".")))
            .map_err(|error| chain(&error))?;
    match Tie::open(&Paths::from_env().enroll_socket(), runner.user()) {
        Ok(tie) => endpoint.tie_with(tie),
        // Then nothing could be tied.
        Err(NoTie::NoDaemon) => {}
        Err(error) => eprintln!("ringfence: tool calls are not tied to their processes: {}", chain(&error)),
    }
    let client = Client::prepare(&found.name, kit, &endpoint, &runner).map_err(|error| chain(&error))?;
    if let Some(version) = kit::version(command).filter(|version| !kit.tried.contains(version)) {
        eprintln!(
            "ringfence: {} {version} was not tried with this version of Ringfence, which knows {}",
            found.name,
            kit.tried.join(", ")
        );
    }
    let mut variables: Vec<Variable> =
        client.variables.into_iter().map(|(name, value)| Variable::Set(name, value)).collect();
    variables.append(&mut request.variables);
    request.variables = variables;
    request.words.splice(1..1, client.arguments);
    let tie = endpoint.tie().cloned();
    let tie =
        tie.map(|Tie { name, listener, program, .. }| Box::new(launch::Tie { name, listener, program }));
    request.endpoint =
        Some(launch::Endpoint { address: endpoint.address(), listener: endpoint.listener(), tie });
    Ok(endpoint)
}
