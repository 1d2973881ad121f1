//! `ringfence run`.

use super::exit::Exit;
use ringfence_base::error::chain;
use ringfence_launch::{self as launch, Request, Say, Variable};
use ringfence_policy::Partial;
use std::{
    ffi::OsString,
    io::{self, IsTerminal},
    path::PathBuf,
    process::ExitCode,
};

/// Runs a command in a container of its own, under a profile.
///
/// The exit status is that of the command, or 128+N if signal N ended it; 127 if it was not found, 126 if it could not be
/// executed, 125 if Ringfence could not confine it.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  ringfence run -- bash
  ringfence run --profile coder --workdir ~/src/app -- cargo test
  ringfence run --profile reader --env EDITOR --env MODE=review -- python3 report.py
  sudo ringfence run --profile coder --user builder -- make
  ringfence run --profile ./tight.toml --accept-partial exec,fs_write -- ./tool   # without the daemon")]
pub(crate) struct Args {
    /// The profile: a name or a path [default: `shell`, if it is installed].
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
    /// Run without full enforcement of these axes where eBPF is not available: exec, fs_read, fs_write, net; unix: allow
    /// every unix socket that file modes allow; home: allow the home directory as the working directory.
    #[arg(long, value_name = "WHAT,...", value_delimiter = ',')]
    accept_partial: Vec<Partial>,
    /// Report what enforces the profile, even if standard error is not a terminal.
    #[arg(long, short)]
    verbose: bool,
    /// The command and its arguments.
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = false, value_name = "CMD")]
    command: Vec<OsString>,
}

/// Runs the command and gives its exit status.
pub(crate) fn run(args: Args) -> ExitCode {
    let request = Request {
        profile: args.profile,
        user: args.user,
        workdir: args.workdir,
        variables: args.env,
        audit: args.audit,
        accepted: args.accept_partial,
        words: args.command,
        whole_environment: false,
        say: if args.verbose || io::stderr().is_terminal() { Say::All } else { Say::Closed },
    };
    match launch::run(&request) {
        Ok(status) => ExitCode::from(status),
        Err(error) => {
            eprintln!("ringfence: {}", chain(&error));
            Exit::NotConfined.into()
        }
    }
}
