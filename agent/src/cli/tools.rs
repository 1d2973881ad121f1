//! `ringfence tools`: the confined tools, as an MCP server over stdio.

use super::exit::Exit;
use anyhow::{Context, bail};
use ringfence_core::enroll::GRANT;
use ringfence_grant::{CountBound, Grant, Scope};
use ringfence_policy::{Dirs, Profile};
use ringfence_tool_server::{
    Recorder,
    confine::HostSpawner,
    enroll, guard,
    reader::Reader,
    server::Server,
    source::{Environment, Session},
    veto::Denies,
};
use ringfence_tools::{programs::HostPrograms, shell::Shell};
use std::{
    io::{self, Write},
    os::{fd::BorrowedFd, unix::net::UnixStream},
    path::{Path, PathBuf},
    process::ExitCode,
    sync::Arc,
};

/// Serves confined tools (shell, files, web) to an MCP client over stdio.
///
/// A tool can do only what the grant allows. The grant is the first of: the variable RINGFENCE_GRANT (JSON), the variable
/// AGENT_BRIDLE_CAVEATS (JSON), the table [grant] of ~/.config/ringfence/tools.toml, the table [caveats] of
/// ~/.agent-bridle/config.toml. With --profile it is the profile's grant, reduced to what a variable grants, too. Without a grant
/// every call is denied.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples, in an MCP client's configuration:
  \"command\": \"ringfence\", \"args\": [\"tools\", \"--profile\", \"coder\"]

  \"command\": \"ringfence\", \"args\": [\"tools\"],
  \"env\": { \"RINGFENCE_GRANT\": \"{\\\"fs_read\\\":{\\\"only\\\":[\\\"/work\\\"]},\\\"fs_write\\\":{\\\"only\\\":[\\\"/work\\\"]},\\\"exec\\\":{\\\"only\\\":[\\\"git\\\",\\\"cargo\\\"]},\\\"net\\\":{\\\"only\\\":[]},\\\"max_calls\\\":{\\\"at_most\\\":200},\\\"valid_for_generation\\\":\\\"all\\\"}\" }

`ringfence grant explain GRANT exec git` tells what a grant allows.")]
pub(crate) struct Args {
    /// Take the grant from this profile: a name or a path.
    #[arg(long, value_name = "NAME")]
    profile: Option<String>,
    /// Offer web_fetch, too: pages as Markdown, from the hosts in `net` of the grant.
    #[arg(long)]
    web: bool,
    /// The directory of relative paths, and `${WORKDIR}` in a profile [default: the current directory].
    #[arg(long, value_name = "DIR")]
    workdir: Option<PathBuf>,
    /// Append every decision of the gate to FILE, one JSON object per line.
    #[arg(long, value_name = "FILE")]
    record: Option<PathBuf>,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    // A file descriptor inherited from the client is authority that the grant does not give the tools.
    ringfence_process::spawn::close_at_exec()?;
    let named = args.workdir.clone().unwrap_or_else(|| PathBuf::from("."));
    let workdir = named.canonicalize().with_context(|| format!("cannot work in {}", named.display()))?;
    let session = Environment::from_env().grant(args.profile.as_deref(), &Dirs::from_env(), &workdir)?;
    match &session.origin {
        Some(origin) => say(&format!("granted by {origin}: {}", summary(&session.grant))),
        None => say(
            "there is no grant, so every call is denied; set RINGFENCE_GRANT, name a --profile, or write \
             ~/.config/ringfence/tools.toml (`ringfence tools --help` shows how)",
        ),
    }
    let programs = match session.grant.exec {
        // Tools may run what they write by its path as well.
        Scope::All => HostPrograms::default(),
        Scope::Only(_) => HostPrograms::default().passing_over(&session.grant.fs_write),
    };
    if !session.grant.exec.is_none() {
        for dir in programs.passed_over() {
            say(&format!(
                "no name in `exec` means a program in {}: the grant lets tools write there",
                ringfence_base::escape::line(&dir.to_string_lossy())
            ));
        }
    }
    let profile = session.for_the_kernel(&workdir, &programs)?;
    let core = match enroll::socket()? {
        Ok(socket) => Some((socket, asked(args, &session, &profile, &programs)?)),
        Err(why) => {
            say(&format!("the eBPF programs do not enforce here: {why}"));
            None
        }
    };
    let admit = |server: BorrowedFd<'_>| match &core {
        None => Ok(String::new()),
        Some((socket, asked)) => enroll::enroll(socket, server, asked, &workdir).map_err(failed),
    };
    let status = guard::serve(args.web, admit, |container, reader| {
        if core.is_some() {
            say(&format!("container {container}, enforcement: kernel"));
        }
        match serve(args, &session, &profile, (&workdir, &programs), core.is_some(), reader) {
            Ok(()) => Exit::Success.into(),
            Err(error) => failed(error),
        }
    })?;
    Ok(ExitCode::from(status))
}

/// Reports why nothing is served, and returns the exit status.
fn failed(error: impl Into<anyhow::Error>) -> u8 {
    say(&format!("{:#}", error.into()));
    Exit::Failure.into()
}

/// What to ask the daemon for: the profile by name if nothing narrows it, else the grant.
fn asked(
    args: &Args,
    session: &Session,
    profile: &Profile,
    programs: &HostPrograms,
) -> anyhow::Result<String> {
    match (&args.profile, &session.profile) {
        (Some(named), Some(of)) if of.name == profile.name => {
            let is_path = named.contains('/') || named.ends_with(".toml");
            Ok(if is_path { profile.file.to_string_lossy().into_owned() } else { named.clone() })
        }
        (_, Some(of)) if of.has_denials() => bail!(
            "profile {} has deny rules and is combined with another grant, which eBPF cannot enforce in one container; use only one of \
             the two",
            of.name
        ),
        _ => Ok(format!("{GRANT}{}", serde_json::to_string(&session.kernel_grant(programs))?)),
    }
}

fn serve(
    args: &Args,
    session: &Session,
    profile: &Profile,
    (workdir, programs): (&Path, &HostPrograms),
    by_ebpf: bool,
    reader: Option<UnixStream>,
) -> anyhow::Result<()> {
    let recorder = match &args.record {
        None => Recorder::quiet(),
        Some(file) => Recorder::into_file(file)
            .with_context(|| format!("cannot record decisions in {}", file.display()))?,
    };
    let (spawner, lines) = HostSpawner::new(profile, &session.grant, workdir, by_ebpf)?;
    for line in lines {
        say(&line);
    }
    let tools = ringfence_tools::ToolHost {
        dir: workdir.to_owned(),
        programs: programs.clone(),
        spawner: Arc::new(spawner),
    };
    let mut gate = tools.gate().with_record(recorder);
    if let Some(profile) = &session.profile {
        gate = gate.with_veto(Denies::new(&profile.denials, &profile.rules, workdir));
    }
    // All children of this process are tools.
    let shell = Shell::new(workdir, &tools.programs.path(), tools.spawner.clone()).ending_orphans();
    let shell = shell.context("cannot become the subreaper of processes that tools leave running")?;
    let mut registry = tools.registry(gate).with(shell);
    if let Some(reader) = reader {
        let web = ringfence_tools::web::WebFetch::default().with_reader(Reader::new(reader));
        registry = registry.with(web);
    }
    Ok(Server::new(registry, session.grant.clone()).serve(io::stdin().lock(), io::stdout())?)
}

fn say(line: &str) {
    // The client may have closed standard error.
    let _ = writeln!(io::stderr(), "ringfence tools: {line}");
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
