//! `ringfence grant`: shows, compares and explains grants, without a daemon and without changing anything.

use super::{exit::Exit, profile::Access};
use anyhow::{Context, bail};
use ringfence_file_tools::workspace::{AllowAll, Workspace};
use ringfence_grant::{
    CountBound, Entry, Grant, Scope,
    gate::{self, CallFuture, Denied, Gate, Tool, ToolContext, ToolError},
};
use ringfence_policy::{self as profile, Dirs, Profile};
use ringfence_tool_server::{links::resolve_links, parse, source::Environment, veto::Denies};
use ringfence_tools::programs::HostPrograms;
use serde_json::{Value, json};
use std::{
    env, fmt, fs,
    io::{self, Read, Write},
    net::IpAddr,
    path::{Path, PathBuf},
    process::ExitCode,
    sync::Arc,
};

/// Shows, compares and explains grants.
///
/// A GRANT is JSON text that begins with `{`, `-` for JSON on standard input, a file (`.json`, or TOML with a profile or a table
/// [grant] or [caveats]), or the name of a profile. No daemon is needed, and nothing is changed.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  ringfence grant show coder
  ringfence grant leq ./task.json coder && echo narrower
  ringfence grant explain coder exec git")]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    /// Prints a grant as JSON; without an argument, the grant that `ringfence tools` would get here.
    #[command(
        after_help = "Examples:\n  ringfence grant show coder\n  ringfence grant show ./grant.json\n  ringfence grant show"
    )]
    Show {
        /// The grant: JSON, `-`, a file, or a profile's name.
        grant: Option<String>,
        /// Resolve the symbolic links in its paths, as the gate does.
        #[arg(long)]
        resolved: bool,
    },
    /// Prints what both grants allow.
    #[command(after_help = "Example:\n  ringfence grant meet coder ./session.json")]
    Meet {
        /// A grant: JSON, `-`, a file, or a profile's name.
        a: String,
        /// The other grant.
        b: String,
    },
    /// Checks whether B allows everything that A allows.
    #[command(
        after_help = "Exit status:\n  0  it does\n  1  it does not; the output says what is beyond B\n\nExample:\n  ringfence grant leq ./task.json coder && echo narrower"
    )]
    Leq {
        /// The grant that should be narrower: JSON, `-`, a file, or a profile's name.
        a: String,
        /// The grant that should be wider.
        b: String,
    },
    /// Tells whether the gate allows one access, and by which entry.
    #[command(
        after_help = "Exit status:\n  0  it is allowed\n  1  it is denied\n\nExamples:\n  ringfence grant explain coder exec git\n  ringfence grant explain coder read ~/.ssh/id_rsa\n  \
                      ringfence grant explain ./grant.json net example.com:443\n  ringfence grant explain '{...}' write /etc/hosts\n\n\
                      The denies of a profile count, too. `ringfence profile explain` tells what the kernel enforces."
    )]
    Explain {
        /// The grant: JSON, `-`, a file, or a profile's name.
        grant: String,
        /// The kind of access.
        #[arg(value_enum)]
        access: Access,
        /// A program, a path, or a host or address with or without `:port` (443).
        target: String,
    },
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    match &args.command {
        Command::Show { grant, resolved } => {
            let grant = match grant {
                Some(named) => load(named)?,
                None => {
                    let session = Environment::from_env().grant(None, &Dirs::from_env(), &workdir()?)?;
                    let source = session.origin.map_or_else(
                        || "there is no grant here, so nothing is allowed".to_owned(),
                        |origin| format!("this grant is from {origin}"),
                    );
                    // Standard output may go into a file, so it gets the grant alone.
                    let _ = writeln!(io::stderr(), "ringfence: {source}");
                    session.written
                }
            };
            print(&if *resolved { resolve_links(&grant) } else { grant })?;
            Ok(ExitCode::SUCCESS)
        }
        Command::Meet { a, b } => {
            let (a, b) = both(a, b)?;
            print(&a.meet(&b))?;
            Ok(ExitCode::SUCCESS)
        }
        Command::Leq { a, b } => {
            let (a, b) = both(a, b)?;
            leq(&a, &b)
        }
        Command::Explain { grant, access, target } => explain(&named(grant)?, *access, target),
    }
}

fn leq(a: &Grant, b: &Grant) -> anyhow::Result<ExitCode> {
    match gate::excess(a, b) {
        None => {
            writeln!(io::stdout(), "yes: the second allows everything that the first allows")?;
            Ok(ExitCode::SUCCESS)
        }
        Some(denied) => {
            let text = denied.to_string();
            let reason = text.strip_prefix("denied: ").unwrap_or(&text);
            writeln!(io::stdout(), "no: {reason} of the second")?;
            Ok(Exit::Failure.into())
        }
    }
}

fn explain(named: &Named, access: Access, target: &str) -> anyhow::Result<ExitCode> {
    let Named { grant, profile } = named;
    let resolved = resolve_links(grant);
    let mut out = io::stdout();
    let exit = match decide(&resolved, profile.as_ref(), access, target)? {
        Err(denied) => {
            writeln!(out, "{denied}")?;
            Exit::Failure
        }
        Ok(()) => {
            let by = entries(&resolved, access).into_iter();
            let mut by = by.filter(|(one, _)| matches!(decide(one, None, access, target), Ok(Ok(()))));
            match by.next() {
                Some((_, entry)) => writeln!(out, "allowed by {entry}")?,
                None => writeln!(out, "allowed: the axis is not restricted")?,
            }
            Exit::Success
        }
    };
    if let CountBound::AtMost(max) = grant.max_calls {
        writeln!(out, "calls of a session: {max}")?;
    }
    if let Scope::Only(generations) = &grant.valid_for_generation {
        let listed: Vec<String> = generations.iter().map(u64::to_string).collect();
        writeln!(out, "for the generations: {}", listed.join(", "))?;
    }
    Ok(exit.into())
}

/// The gate's answer, with a profile's denies if there is one.
fn decide(
    grant: &Grant,
    profile: Option<&Profile>,
    access: Access,
    target: &str,
) -> anyhow::Result<Result<(), Denied>> {
    let unbounded =
        Grant { max_calls: CountBound::Unlimited, valid_for_generation: Scope::All, ..grant.clone() };
    let mut gate = Gate::new(HostPrograms::default().passing_over(&grant.fs_write));
    if let Some(profile) = profile {
        gate = gate.with_veto(Denies::new(&profile.denials, &profile.rules, &workdir()?));
    }
    let gate = Arc::new(gate);
    let context = gate.authorize(&WantsEverything, &Value::Null, &unbounded)?;
    Ok(match access {
        Access::Exec if target.contains('/') => context.check_exec(&workdir()?.join(target)).map(drop),
        Access::Exec => context.check_exec(Path::new(target)).map(drop),
        Access::Read => context.check_read(&resolved(target)?),
        Access::Write => context.check_write(&resolved(target)?),
        Access::Net => {
            let (host, port) = host_and_port(target)?;
            context.check_net(host, None, port)
        }
    })
}

/// Each entry of an axis as a grant of its own.
fn entries(grant: &Grant, access: Access) -> Vec<(Grant, String)> {
    fn each<E: Entry + fmt::Display>(
        scope: &Scope<E>,
        with: impl Fn(Scope<E>) -> Grant,
    ) -> Vec<(Grant, String)> {
        let Scope::Only(entries) = scope else { return Vec::new() };
        entries.iter().map(|entry| (with(Scope::only([entry.clone()])), entry.to_string())).collect()
    }
    match access {
        Access::Exec => each(&grant.exec, |exec| Grant { exec, ..grant.clone() }),
        Access::Read => each(&grant.fs_read, |fs_read| Grant { fs_read, ..grant.clone() }),
        Access::Write => each(&grant.fs_write, |fs_write| Grant { fs_write, ..grant.clone() }),
        Access::Net => each(&grant.net, |net| Grant { net, ..grant.clone() }),
    }
}

fn host_and_port(target: &str) -> anyhow::Result<(&str, u16)> {
    if target.contains('/') {
        bail!("{target:?} is a URL or a range: write one host or address, with `:PORT` if it is not 443");
    }
    let plain = target.parse::<IpAddr>().is_ok() || target.ends_with(']');
    match target.rsplit_once(':').filter(|_| !plain) {
        None => Ok((target, 443)),
        Some((host, port)) => Ok((host, port.parse().with_context(|| format!("{port:?} is not a port"))?)),
    }
}

/// A path as the file tools take it: absolute, links followed as far as it exists.
fn resolved(target: &str) -> anyhow::Result<PathBuf> {
    let dir = workdir()?;
    let workspace = Workspace { dir: &dir, gate: &AllowAll, deadline: None };
    Ok(workspace.resolve(target)?)
}

fn workdir() -> anyhow::Result<PathBuf> {
    env::current_dir().context("cannot determine the current directory")
}

/// A grant, and the profile that it comes from, whose denies apply too.
struct Named {
    grant: Grant,
    profile: Option<Profile>,
}

impl From<Grant> for Named {
    fn from(grant: Grant) -> Self {
        Self { grant, profile: None }
    }
}

fn both(a: &str, b: &str) -> anyhow::Result<(Grant, Grant)> {
    if a == "-" && b == "-" {
        bail!("both grants are `-`, but standard input can hold only one; put the other into a file");
    }
    Ok((load(a)?, load(b)?))
}

fn load(text: &str) -> anyhow::Result<Grant> {
    Ok(named(text)?.grant)
}

fn named(named: &str) -> anyhow::Result<Named> {
    if named.trim_start().starts_with('{') {
        return Ok(parse::json(named).context("the grant on the command line")?.into());
    }
    if named == "-" {
        let mut text = String::new();
        io::stdin().lock().take(parse::MAX_BYTES as u64 + 1).read_to_string(&mut text)?;
        return Ok(parse::json(&text).context("the grant on standard input")?.into());
    }
    if named.ends_with(".json") {
        let text = fs::read_to_string(named).with_context(|| format!("cannot read {named}"))?;
        return Ok(parse::json(&text).with_context(|| named.to_owned())?.into());
    }
    if named.ends_with(".toml") || named.contains('/') {
        let text = fs::read_to_string(named).with_context(|| format!("cannot read {named}"))?;
        match parse::toml(&text, "caveats") {
            Ok(Some(grant)) => return Ok(grant.into()),
            // Loading the profile reports a syntax error with its line.
            Ok(None) | Err(parse::Error::Toml(_)) => {}
            Err(error) => return Err(error).with_context(|| format!("[caveats] of {named}")),
        }
    }
    match profile::load(named, &Dirs::from_env()) {
        Ok(profile) => Ok(Named { grant: profile.grant(Some(&workdir()?)), profile: Some(profile) }),
        Err(error) => bail!("{error}"),
    }
}

fn print(grant: &Grant) -> io::Result<()> {
    writeln!(io::stdout(), "{:#}", json!(grant))
}

/// A tool that wants whatever is granted and does nothing.
struct WantsEverything;

impl Tool for WantsEverything {
    fn name(&self) -> &str {
        "explain"
    }

    fn description(&self) -> &str {
        "Does nothing."
    }

    fn schema(&self) -> Value {
        json!({})
    }

    fn required(&self, _: &Value) -> Result<Grant, ToolError> {
        Ok(Grant::bottom())
    }

    fn wanted(&self, _: &Value) -> Result<Grant, ToolError> {
        Ok(Grant::top())
    }

    fn call<'a>(&'a self, _: &'a ToolContext, _: Value) -> CallFuture<'a> {
        Box::pin(async { Ok(Value::Null) })
    }
}
