//! `ringfence completions`.

use super::output::print;
use clap_complete::Shell;
use std::process::ExitCode;

/// Prints a completion script for a shell.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  ringfence completions bash > ~/.local/share/bash-completion/completions/ringfence
  ringfence completions zsh > ~/.zfunc/_ringfence   # with ~/.zfunc in fpath
  ringfence completions fish > ~/.config/fish/completions/ringfence.fish")]
pub(crate) struct Args {
    /// The shell.
    #[arg(value_enum)]
    shell: Shell,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut super::visible(), "ringfence", &mut script);
    print(&String::from_utf8(script)?)
}
