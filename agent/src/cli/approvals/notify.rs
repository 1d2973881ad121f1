//! `ringfence approvals notify`: people are told of calls that wait.

use crate::cli::exit::Exit;
use anyhow::{Context, bail};
use ringfence_base::error::chain;
use ringfence_client::{places::Places, sessions as client};
use ringfence_credentials::Source;
use ringfence_notify::{Desktop, Ended, Receivers, SigningKey, Watch, Webhook, mask_signals};
use ringfence_wire::mcp::{McpReply, McpRequest};
use std::{
    io::{self, Write},
    path::PathBuf,
    process::ExitCode,
};

/// Notifies people when a tool call starts waiting for approval: by a signed webhook, by desktop notifications.
///
/// It stays until Ctrl-C. A webhook is a POST as Standard Webhooks has it, with `webhook-id`, `webhook-timestamp` and
/// `webhook-signature`; its body names the call, and has no arguments unless `--with-arguments`. Neither a receiver nor a
/// notification can decide a call.
#[derive(Debug, clap::Args)]
#[command(group = clap::ArgGroup::new("receivers").required(true).multiple(true).args(["webhook", "desktop"]))]
#[command(group = clap::ArgGroup::new("secret").args(["secret_file", "secret_env", "secret_credential", "secret_command"]))]
#[command(after_help = "Examples:
  ringfence approvals notify --desktop
  ringfence approvals notify --webhook https://example.org/hook --secret-file ~/.config/ringfence/webhook-secret
  systemctl --user enable --now ringfence-notify   # the unit is in docs/mcp.md")]
pub(crate) struct Args {
    /// Post to this address: https, or http on this machine.
    #[arg(long, value_name = "URL", requires = "secret")]
    webhook: Option<String>,
    /// The file that has the webhook's secret (`whsec_...`), which only its owner may read.
    #[arg(long, value_name = "FILE", requires = "webhook")]
    secret_file: Option<PathBuf>,
    /// The variable that has it.
    #[arg(long, value_name = "NAME", requires = "webhook")]
    secret_env: Option<String>,
    /// The name of the systemd credential that has it (`LoadCredential=`).
    #[arg(long, value_name = "NAME", requires = "webhook")]
    secret_credential: Option<String>,
    /// The command that prints it, for /bin/sh.
    #[arg(long, value_name = "COMMAND", requires = "webhook")]
    secret_command: Option<String>,
    /// Show a notification on the desktop, by `notify-send`.
    #[arg(long)]
    desktop: bool,
    /// Tell the calls' arguments as well, as they are on record: secrets redacted, long ones cut.
    #[arg(long)]
    with_arguments: bool,
    /// The audit database [default: the daemon's, if it runs, else the user's].
    #[arg(long, value_name = "FILE")]
    db: Option<String>,
}

impl Args {
    /// Where the secret comes from.
    fn source(&self) -> Option<Source> {
        let shell =
            |line: &String| Source::Command(vec!["/bin/sh".to_owned(), "-c".to_owned(), line.clone()]);
        let Self { secret_file, secret_env, secret_credential, secret_command, .. } = self;
        (secret_file.clone().map(Source::File))
            .or_else(|| secret_env.clone().map(Source::Env))
            .or_else(|| secret_credential.clone().map(Source::Credential))
            .or_else(|| secret_command.as_ref().map(shell))
    }

    fn receivers(&self) -> anyhow::Result<Receivers> {
        let webhook = match (&self.webhook, self.source()) {
            (Some(address), Some(source)) => {
                let secret = source.read().context("the webhook's secret cannot be read")?;
                // An auditor that this process starts outlives it, and has no use for it.
                source.variable().into_iter().for_each(client::withhold);
                Some(Webhook::new(address, SigningKey::new(&secret)?)?)
            }
            (Some(_), None) => {
                bail!("a webhook is signed: say where its secret is, by --secret-file or another")
            }
            (None, _) => None,
        };
        let desktop = self.desktop.then(Desktop::find).transpose()?;
        Ok(Receivers { webhook, desktop })
    }
}

pub(super) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let places = Places::on_record(args.db.as_deref())?;
    let receivers = args.receivers()?;
    // Before the first thread.
    mask_signals().context("cannot take signals")?;
    let watch = Watch::begin(receivers, args.with_arguments)?;
    let list = move || match client::ask(&places, &McpRequest::Waiting) {
        Ok(McpReply::Waiting { calls }) => Ok(calls),
        Ok(_) => Err("the auditor sent an unexpected answer".to_owned()),
        Err(error) => Err(chain(&error)),
    };
    match watch.run(list).context("cannot ask for the calls that wait")? {
        Ended::Whole => Ok(ExitCode::SUCCESS),
        Ended::Cut(notices) => {
            let _ =
                writeln!(io::stderr(), "ringfence approvals notify: {notices} not delivered: it was ended");
            Ok(Exit::Failure.into())
        }
    }
}
