//! `ringfence run`.

use super::exit::Exit;
use crate::{
    launch::{self, Request, Say, Variable},
    profile::Partial,
};
use std::{
    ffi::OsString,
    io::{self, IsTerminal},
    path::PathBuf,
    process::ExitCode,
};

/// Runs a command in a container of its own, under a profile.
///
/// The exit status is the command's; 128+n if signal n ended it; 127 if it is not found, 126 if it cannot be executed,
/// 125 if Ringfence did not run it.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  ringfence run -- bash
  ringfence run --profile coder --workdir ~/src/app -- cargo test
  ringfence run --profile reader --env EDITOR --env MODE=review -- python3 report.py
  sudo ringfence run --profile coder --user builder -- make
  ringfence run --profile ./tight.toml --accept-partial exec,fs_write -- ./tool   (without the daemon)")]
pub(crate) struct Args {
    /// Profile, by name or by path [default: `shell`, if it is installed]
    #[arg(long, short, value_name = "PROFILE")]
    profile: Option<String>,
    /// Become this user first (root only)
    #[arg(long, short, value_name = "NAME")]
    user: Option<String>,
    /// Directory to start in, and ${WORKDIR} in the profile [default: the current directory]
    #[arg(long, short, value_name = "DIR")]
    workdir: Option<PathBuf>,
    /// Pass on an environment variable (K), or set one (K=V). Without it the command gets PATH, HOME, USER, SHELL,
    /// TERM, LANG, LC_*, TZ and COLORTERM
    #[arg(long, short, value_name = "K[=V]")]
    env: Vec<Variable>,
    /// Deny nothing, record what would be denied (the daemon's root decides who may)
    #[arg(long)]
    audit: bool,
    /// What may stay open, in part or altogether, where eBPF does not hold: exec, fs_read, fs_write, net; unix: every unix
    /// socket that file modes allow; home: the home as working directory
    #[arg(long, value_name = "WHAT,...", value_delimiter = ',')]
    accept_partial: Vec<Partial>,
    /// Say what enforces, even if standard error is not a terminal
    #[arg(long, short)]
    verbose: bool,
    /// The command and its arguments
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
            eprintln!("ringfence: {:#}", anyhow::Error::from(error));
            Exit::NotConfined.into()
        }
    }
}
