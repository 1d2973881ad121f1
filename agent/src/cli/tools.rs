//! `ringfence tools`: the confined tools, as an MCP server over stdio.

use crate::{
    leash::{Recorder, server::Server, source::Surroundings},
    profile::Dirs,
};
use anyhow::Context;
use ringfence_grant::{CountBound, Grant, Scope};
use std::{io, path::PathBuf, process::ExitCode};

/// Serves tools that hold only what was granted, over MCP's stdio transport.
///
/// The grant is the first of: the variable RINGFENCE_GRANT (JSON), the variable AGENT_BRIDLE_CAVEATS (JSON), the table
/// [grant] of ~/.config/ringfence/tools.toml, the table [caveats] of ~/.agent-bridle/config.toml. With --profile it is the
/// profile's, met with a variable's. Without any, nothing is granted and every call is denied.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples, in an MCP client's configuration:
  \"command\": \"ringfence\", \"args\": [\"tools\", \"--profile\", \"coder\"]

  \"command\": \"ringfence\", \"args\": [\"tools\"],
  \"env\": { \"RINGFENCE_GRANT\": \"{\\\"fs_read\\\":{\\\"only\\\":[\\\"/work\\\"]},\\\"fs_write\\\":{\\\"only\\\":[\\\"/work\\\"]},\\\"exec\\\":{\\\"only\\\":[\\\"git\\\",\\\"cargo\\\"]},\\\"net\\\":{\\\"only\\\":[]},\\\"max_calls\\\":{\\\"at_most\\\":200},\\\"valid_for_generation\\\":\\\"all\\\"}\" }

What a grant allows: `ringfence grant explain GRANT exec git`.")]
pub(crate) struct Args {
    /// A profile whose grant holds, by name or path.
    #[arg(long, value_name = "NAME")]
    profile: Option<String>,
    /// Offers web_fetch too: pages of the hosts that `net` of the grant names, as Markdown.
    #[arg(long)]
    web: bool,
    /// Where relative paths start, and what ${WORKDIR} of a profile stands for [default: the current directory].
    #[arg(long, value_name = "DIR")]
    workdir: Option<PathBuf>,
    /// Writes every decision of the gate behind what is in FILE, one JSON object a line.
    #[arg(long, value_name = "FILE")]
    record: Option<PathBuf>,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let named = args.workdir.clone().unwrap_or_else(|| PathBuf::from("."));
    let workdir = named.canonicalize().with_context(|| format!("cannot work in {}", named.display()))?;
    let session = Surroundings::from_env().grant(args.profile.as_deref(), &Dirs::from_env(), &workdir)?;
    match &session.origin {
        Some(origin) => eprintln!("ringfence tools: granted by {origin}: {}", summary(&session.grant)),
        None => eprintln!(
            "ringfence tools: no grant was given, so every call is denied; set RINGFENCE_GRANT, name a --profile, or write \
             ~/.config/ringfence/tools.toml (`ringfence tools --help` shows how)"
        ),
    }
    let recorder = match &args.record {
        None => Recorder::quiet(),
        Some(file) => Recorder::into_file(file)
            .with_context(|| format!("cannot record decisions in {}", file.display()))?,
    };
    let tools = ringfence_leash::Surroundings { dir: workdir, ..ringfence_leash::Surroundings::default() };
    let mut registry = tools.registry(tools.gate().recording(recorder));
    if args.web {
        registry = registry.with(ringfence_leash::web::WebFetch::default());
    }
    Server::new(registry, session.grant).serve(io::stdin().lock(), io::stdout())?;
    Ok(ExitCode::SUCCESS)
}

/// A grant in one line.
fn summary(grant: &Grant) -> String {
    fn scope<E: ringfence_grant::Entry>(scope: &Scope<E>) -> String {
        match scope {
            Scope::All => "all".into(),
            Scope::Only(entries) if entries.is_empty() => "nothing".into(),
            Scope::Only(entries) if entries.len() == 1 => "1 entry".into(),
            Scope::Only(entries) => format!("{} entries", entries.len()),
        }
    }
    let calls = match grant.max_calls {
        CountBound::Unlimited => "any number of calls".to_owned(),
        CountBound::AtMost(1) => "1 call".to_owned(),
        CountBound::AtMost(max) => format!("{max} calls"),
    };
    format!(
        "read {}, write {}, exec {}, net {}; {calls}",
        scope(&grant.fs_read),
        scope(&grant.fs_write),
        scope(&grant.exec),
        scope(&grant.net)
    )
}
