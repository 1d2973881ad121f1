//! `ringfence mcp`: the interceptor around one MCP server.

use super::{
    listen::ListenArgs,
    remote::{Remote, RemoteArgs},
};
use crate::cli::exit::Exit;
use anyhow::{Context, bail};
use nix::sys::signal::SigSet;
use ringfence_base::clock::now_micros as now;
use ringfence_client::{places as state, ready, sessions as client};
use ringfence_interceptor::{
    forward, guard,
    identity::StartIdentity,
    link::Link,
    rule_file::RuleFileFollower,
    seen::SeenTools,
    session::{Options, Session},
    starter,
};
use ringfence_launch as launch;
use ringfence_pins::definition::server_key;
use ringfence_policy::{self as profile, Dirs, Partial};
use ringfence_redact as redact;
use ringfence_session::{
    journal::{Entry, Journal},
    notice, reload, rules,
};
use std::{
    ffi::OsString,
    process::ExitCode,
    sync::{Arc, mpsc},
    thread,
    time::Duration,
};

/// Longest line that is judged, bytes.
const LIMIT: u64 = 64 << 20;

/// The server, and how its messages are judged.
#[derive(Debug, clap::Args)]
pub(crate) struct ServerArgs {
    /// Name of the server in records and rules [default: the command's name].
    #[arg(long, value_name = "N", value_parser = clap::builder::NonEmptyStringValueParser::new())]
    server_name: Option<String>,
    /// The audit database; the journals of sessions are beside it [default: the daemon's, if it runs, with journals in the user's
    /// data directory; else in that directory, too].
    #[arg(long, value_name = "FILE")]
    db: Option<String>,
    /// Port of the dashboard on loopback: the next free one if it is taken, any free one for 0.
    #[arg(long, value_name = "P", default_value_t = client::DEFAULT_PORT)]
    port: u16,
    /// Rules for tool calls [default: rules.yaml in the user's configuration directory, else the built-in rules].
    #[arg(long, value_name = "FILE")]
    rules: Option<String>,
    /// What to do with a call that cannot be recorded.
    #[arg(long, value_name = "WHAT", value_enum, default_value = "deny")]
    on_audit_failure: OnAuditFailure,
    /// Put the server and everything that it starts under this profile. A path instead of a name is for root, or for a host
    /// without the daemon. The server keeps its environment.
    #[arg(long, value_name = "NAME")]
    profile: Option<String>,
    /// Run without full enforcement of these axes where eBPF is not available: exec, fs_read, fs_write, net; unix: allow
    /// every unix socket that file modes allow; home: allow the home directory as the working directory.
    #[arg(long, value_name = "WHAT,...", value_delimiter = ',', requires = "profile")]
    accept_partial: Vec<Partial>,
    /// Store payloads unredacted, secrets included.
    #[arg(long)]
    store_raw: bool,
    /// Forward messages that cannot be judged, instead of refusing them.
    #[arg(long)]
    lenient: bool,
    /// Refuse lines longer than this, in bytes (at least 1024).
    #[arg(long, value_name = "N", default_value_t = LIMIT, value_parser = clap::value_parser!(u64).range(1024..=1 << 30))]
    max_line: u64,
    /// Seconds that a call waits for approval, 1 to 86400.
    #[arg(long, value_name = "N", default_value_t = 50, value_parser = clap::value_parser!(u64).range(1..=86400))]
    approval_timeout: u64,
    #[command(flatten)]
    remote: RemoteArgs,
    #[command(flatten)]
    listen: ListenArgs,
    /// The server's command and its arguments.
    #[arg(last = true, required_unless_present_any = ["url", "url_file"])]
    command: Vec<OsString>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum OnAuditFailure {
    /// Refuse it.
    Deny,
    /// Forward it, with a warning.
    Allow,
}

/// The guard between the interceptor and its server; the interceptor starts it.
#[derive(Debug, clap::Args)]
pub(crate) struct GuardArgs {
    #[arg(long)]
    profile: Option<String>,
    #[arg(long, value_delimiter = ',', requires = "profile")]
    accept_partial: Vec<Partial>,
    #[arg(last = true, required = true)]
    command: Vec<OsString>,
}

pub(crate) fn guard(args: &GuardArgs) -> anyhow::Result<ExitCode> {
    let how = match &args.profile {
        None => guard::ServerLaunch::Plain(args.command.clone()),
        Some(profile) => guard::ServerLaunch::Contained(Box::new(launch::Request {
            profile: Some(profile.clone()),
            loaded: None,
            endpoint: None,
            user: None,
            workdir: None,
            variables: Vec::new(),
            audit: false,
            accepted: args.accept_partial.clone(),
            by_proxy: false,
            words: args.command.clone(),
            say: launch::Say::Nothing,
            whole_environment: true,
        })),
    };
    guard::guard(&how).context("`ringfence mcp-guard` is started by `ringfence mcp`")
}

pub(super) fn run(args: &ServerArgs) -> anyhow::Result<ExitCode> {
    let remote = args.remote.server(args.max_line);
    if let Some(address) = args.listen.address() {
        // What is wrong with it is said now, not to the first client.
        remote?;
        let places = state::Places::locate(args.db.as_deref())?;
        places.make()?;
        load_rules(args.rules.as_deref(), &places)?;
        return args.listen.serve(address, &places, args.max_line);
    }
    let signals = forward::mask_signals();
    let outcome = remote.and_then(|remote| intercept(args, remote, signals));
    if let Err(error) = &outcome {
        // Clients show a server's answer to the user; few show its standard error.
        forward::refuse_client(&format!("ringfence mcp: {error:#}"));
    }
    notice::flush();
    outcome
}

fn intercept(args: &ServerArgs, remote: Option<Remote>, signals: SigSet) -> anyhow::Result<ExitCode> {
    let allow_unrecorded = args.on_audit_failure == OnAuditFailure::Allow;
    let command = remote.as_ref().map_or_else(|| Ok(args.command.clone()), |_| Remote::command())?;
    let places = state::Places::locate(args.db.as_deref())?;
    // An auditor that this process starts outlives it, and has no use for a remote server's credentials.
    remote.iter().flat_map(Remote::variables).for_each(|name| client::withhold(&name));
    // What is wrong with the profile is said by who starts the server.
    if let Some(Ok(profile)) = args.profile.as_deref().map(|name| profile::load(name, &Dirs::from_env())) {
        launch::credentials::variables(&profile).for_each(client::withhold);
    }
    let had_database = places.daemon.as_ref().is_some_and(|socket| socket.exists()) || places.db.exists();
    let unrecorded = usable(&places).err();
    if let Some(error) = &unrecorded
        && !allow_unrecorded
    {
        bail!(
            "{error:#}. Calls that cannot be recorded are refused; `--on-audit-failure allow` forwards them all the same"
        );
    }
    let (rules, watch) = load_rules(args.rules.as_deref(), &places)?;
    let id = uuid::Uuid::new_v4().to_string();
    let own_name = || remote.as_ref().map_or_else(|| state::name_of(&command), |remote| remote.name.clone());
    let server_name = args.server_name.clone().unwrap_or_else(own_name);
    let mut journal = match Journal::create(&places.journal(&id)) {
        Ok(journal) => journal,
        Err(error) if allow_unrecorded => {
            Journal::unavailable(format!("its journal cannot be created: {error}"))
        }
        Err(error) => return Err(error).context("cannot create the session's journal"),
    };
    let words: Vec<String> = match &remote {
        Some(remote) => remote.words.clone(),
        None => command.iter().map(|part| part.to_string_lossy().into_owned()).collect(),
    };
    let redacted = redact::command(&words);
    let key = match &remote {
        Some(remote) => server_key(&server_name, &remote.key_words(&redacted)),
        None => server_key(&server_name, &redacted),
    };
    let begun = journal.append(&Entry::Start {
        session: id.clone(),
        at: now(),
        server_name: server_name.clone(),
        server_command: if args.store_raw { words } else { redacted },
        pid: std::process::id(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        // All clients of an endpoint have one process before them.
        client: match args.listen.client() {
            Some(name) => starter::client().map(|process| format!("{process}/{name}")),
            None => starter::client(),
        },
    });
    let begun = begun.and_then(|()| journal.append(&Entry::Server { at: now(), key: Some(key), info: None }));
    let is_named = begun.is_ok();
    if !allow_unrecorded {
        begun.context("cannot write the session's journal")?;
    }
    // Before it starts: afterwards it could put back what it came from.
    let identity = {
        let address = remote.as_ref().map(Remote::identity).transpose()?.unwrap_or_default();
        let texts = [server_name.as_str(), args.profile.as_deref().unwrap_or_default(), &address];
        StartIdentity::of(&texts, &args.command)
    };
    let link = remote.as_ref().map(Remote::keeper).transpose()?.flatten();
    let (server, mut stdin) = match forward::start(&command, &guard_arguments(args), link) {
        Ok(started) => started,
        Err(error) => {
            let _ = journal.append(&Entry::Note { at: now(), text: error.to_string() });
            let _ = journal.append(&Entry::End { at: now(), status: Some(i32::from(error.status)) });
            notice::print(&error.to_string());
            forward::refuse_client(&error.to_string());
            return Ok(ExitCode::from(error.status));
        }
    };
    if let Some(remote) = &remote {
        remote.hand_over(&mut stdin)?;
    }
    if let Some(confinement) = &server.confinement {
        for line in &confinement.lines {
            notice::print(line);
        }
        // Without this entry nothing connects the server's events to the session.
        let governed = journal.append(&Entry::Governed {
            at: now(),
            profile: confinement.profile.clone(),
            enforcement: confinement.enforcement.clone(),
            container: confinement.container.clone(),
        });
        if !allow_unrecorded {
            governed.context("cannot write the session's journal")?;
        }
    }
    let options = Options {
        identity,
        server_name,
        allow_unrecorded,
        unrecorded: unrecorded.map(|error| format!("{error:#}")),
        store_raw: args.store_raw,
        lenient: args.lenient,
        approval_timeout: Duration::from_secs(args.approval_timeout),
        max_held_bytes: usize::try_from(args.max_line.max(LIMIT)).unwrap_or(usize::MAX),
    };
    let (reports, received) = mpsc::sync_channel(1024);
    let seen = SeenTools::read(places.seen(&options.server_name));
    let session = Session::new(options, journal, rules, seen, (stdin, std::io::stdout()), reports);
    // A rule of the database applies from a session's first call on. Without a database there is no such rule, so the first
    // call of a user's first session does not wait for the auditor.
    if had_database {
        session.rules().await_stored();
        // The same of what is pinned of its server, if the journal says which that is.
        if is_named {
            session.pins().await_stored();
        }
    }
    let session = Arc::new(session);
    let http = args.listen.client().is_some();
    let link = Link {
        session: Arc::clone(&session),
        journal: places.journal(&id),
        id,
        places,
        http,
        port: args.port,
    };
    let linked = thread::spawn(move || link.keep(&received, RuleFileFollower::new(watch)));
    let max_line = usize::try_from(args.max_line).unwrap_or(usize::MAX);
    let status = forward::run(&session, server, max_line, signals);
    let _ = session.record(&Entry::End { at: now(), status: Some(status) });
    session.finish();
    let _ = linked.join();
    Ok(ExitCode::from(u8::try_from(status).unwrap_or(Exit::Failure.into())))
}

/// Creates the directories and checks that sessions can be recorded there.
fn usable(places: &state::Places) -> anyhow::Result<()> {
    places.make()?;
    // The daemon's auditor has its own database; only the journals are here.
    if client::connect_daemon(places).is_some() {
        return Ok(());
    }
    Ok(ready::check(&places.db)?)
}

fn guard_arguments(args: &ServerArgs) -> Vec<String> {
    let mut arguments = vec!["mcp-guard".to_owned()];
    if let Some(profile) = &args.profile {
        arguments.extend(["--profile".to_owned(), profile.clone()]);
        for part in &args.accept_partial {
            arguments.extend(["--accept-partial".to_owned(), part.name().to_owned()]);
        }
    }
    arguments
}

/// The rules in force, and the watch over their file. Where the user has none, those that ship are in force until
/// there is one.
fn load_rules(
    named: Option<&str>,
    places: &state::Places,
) -> anyhow::Result<(Vec<rules::Rule>, reload::RuleFileWatch)> {
    let file = match named {
        Some(named) => ringfence_base::home::expand(named).ok_or(state::Error::NoHome)?,
        None => places.rules(),
    };
    let file = std::path::absolute(&file).unwrap_or(file);
    let text = if named.is_some() || file.exists() {
        reload::read(&file)
            .map_err(|why| anyhow::anyhow!("cannot read the rules {}: {why}", file.display()))?
    } else {
        rules::SHIPPED.to_owned()
    };
    let rules = rules::parse(&text).with_context(|| file.display().to_string())?;
    let watch = reload::RuleFileWatch::new(file.clone(), text).with_context(|| file.display().to_string())?;
    Ok((rules, watch))
}
