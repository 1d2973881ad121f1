//! `ringfence proxy-connect`.

use ringfence_launch::proxy_connect::{self, Target};
use std::process::ExitCode;

/// Connects to a host through the run's proxy, for programs that know no proxy.
///
/// Within `ringfence run`, where no daemon runs and hosts are granted by name, this asks the run's proxy for the host, and passes
/// standard input and output on. The proxy's password is read from the environment and stands in no argument, where other users
/// could read it. Where there is no such proxy it connects directly, so that one configuration fits both.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  ssh -o ProxyCommand='ringfence proxy-connect %h %p' git@example.org
  ringfence proxy-connect smtp.example.org 25

The profile grants the host, with `tcp:` unless TLS or HTTP/1.1 is spoken there, and to execute ringfence.")]
pub(crate) struct Args {
    /// The host, by its name or address.
    #[arg(value_name = "HOST")]
    host: String,
    /// The port.
    #[arg(value_name = "PORT", value_parser = clap::value_parser!(u16).range(1..))]
    port: u16,
}

/// Connects, and passes bytes on until the server ends the connection.
pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let target = Target::new(&args.host, args.port)?;
    proxy_connect::run(&target)?;
    Ok(ExitCode::SUCCESS)
}
