//! `ringfence status`.

use super::{agent, exit::Exit, output::table};
use jiff::{SignedDuration, Timestamp};
use ringfence_base::{
    client::{self, ClientError},
    escape::line as printable,
    paths::Paths,
};
use ringfence_llm_worker::control::{self, UserStatus};
use ringfence_policy::{Capabilities, agents::home::Home};
use ringfence_wire::{
    message::{AdminRequest, AuditorStatus},
    status::{AgentProcess, AgentState, ContainerStatus, Enforcement, Status},
};
use serde::Serialize;
use std::{
    io::{self, Write},
    process::ExitCode,
};

/// Shows what is enforced for which containers, and the agents.
///
/// The daemon reports its containers and agents, and what it counted; `ringfence agent start`, if it runs, this user's agents.
#[derive(Debug, clap::Args)]
#[command(after_help = "Exit status:
  0  the daemon runs and the kernel enforces every axis; or only `ringfence agent start` runs, and all its agents do
  1  neither answers
  2  something needs attention; the lines that begin with `!` say what

Example:
  ringfence status --json | jq '.containers[] | {id, profile, tasks}'")]
pub(crate) struct Args {
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
}

/// What `--json` prints: the core's view and the auditor's.
#[derive(Debug, Serialize)]
struct Whole<'a> {
    #[serde(flatten)]
    core: Option<&'a Status>,
    store: Option<&'a AuditorStatus>,
    /// This user's agents, where `ringfence agent start` runs.
    user: Option<&'a UserStatus>,
    /// What needs attention, as sentences.
    #[serde(rename = "amiss")]
    problems: Vec<String>,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let paths = Paths::from_env();
    let user = Home::from_env().map(|home| control::status(&home));
    let (user, unserved) = match user {
        Some(Ok(user)) => (Some(user), None),
        Some(Err(error)) => (None, Some(error.to_string())),
        None => (None, None),
    };
    // An answer may take long, and the user should not take silence for the end of enforcement.
    let say = |who: &'static str| {
        move || {
            eprintln!(
                "{who} has not answered yet; it may be stopped or busy. Meanwhile the kernel goes on enforcing the policies in \
                 force."
            );
        }
    };
    let mut silent = None;
    let asked = client::admin_or_say(&paths.admin_socket(), &AdminRequest::Status, say("the daemon"));
    let core: Option<Status> = match asked {
        Ok(core) => Some(core),
        Err(error) if user.is_none() => {
            let error = anyhow::Error::from(error);
            return Err(match unserved {
                // Without a daemon, the user's own agents are what matters.
                Some(unserved) => anyhow::anyhow!("{error:#}; and {unserved}"),
                None => error,
            });
        }
        Err(error @ ClientError::Silent { .. }) => {
            silent = Some(error.to_string());
            None
        }
        Err(_) => None,
    };
    let store = ringfence_client::events::status(&paths.query_socket(), say("the auditor"))
        .map_err(|e| e.to_string());
    let mut problems = core.as_ref().map(|core| problems(core, &store)).unwrap_or_default();
    problems.extend(silent.clone());
    problems.extend(user.iter().flat_map(problems_of_user));
    if let (Some(user), Some(home)) = (&user, Home::from_env()) {
        problems.extend(agent::problems(&home, &user.agents));
    }
    let exit = if problems.is_empty() { Exit::Success } else { Exit::Attention };
    let mut out = io::stdout().lock();
    let written = if args.json {
        let whole = Whole { core: core.as_ref(), store: store.as_ref().ok(), user: user.as_ref(), problems };
        serde_json::to_writer(&mut out, &whole).map_err(io::Error::from).and_then(|()| writeln!(out))
    } else {
        show_all(&mut out, core.as_ref(), silent.is_some(), store.as_ref().ok(), user.as_ref(), &problems)
    };
    match written {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            Err(anyhow::Error::new(error).context("standard output cannot be written"))
        }
        _ => Ok(exit.into()),
    }
}

fn show_all(
    out: &mut impl Write,
    core: Option<&Status>,
    silent: bool,
    store: Option<&AuditorStatus>,
    user: Option<&UserStatus>,
    problems: &[String],
) -> io::Result<()> {
    let now = Timestamp::now();
    match core {
        Some(core) => show(out, core, store, problems, now)?,
        None => {
            complain(out, problems)?;
            let state = match silent {
                true => "does not answer: the kernel goes on enforcing the policies in force",
                false => "not running: the kernel enforces nothing",
            };
            writeln!(out, "daemon      {state}")?;
        }
    }
    let Some(user) = user else { return Ok(()) };
    writeln!(
        out,
        "\nagents      served for {}, pid {}, version {}; profiles in {}\n",
        age(user.since_ms, now),
        user.pid,
        user.version,
        user.profiles.display()
    )?;
    out.write_all(agent::table(user).as_bytes())
}

fn problems_of_user(user: &UserStatus) -> Vec<String> {
    let registry = user.error.iter().map(|error| format!("the registry cannot be used: {error}"));
    let failed = user.agents.iter().filter(|agent| agent.error.is_some());
    registry.chain(failed.map(|agent| format!("agent {} has an error, shown below", agent.name))).collect()
}

fn complain(out: &mut impl Write, problems: &[String]) -> io::Result<()> {
    // A profile's errors may have more than one line.
    problems.iter().try_for_each(|line| writeln!(out, "! {}", line.replace('\n', "\n  ")))
}

fn problems(core: &Status, store: &Result<AuditorStatus, String>) -> Vec<String> {
    let mut problems = Vec::new();
    for axis in core.axes.iter().filter(|axis| axis.enforcement != Enforcement::Kernel) {
        problems.push(format!("the kernel does not fully enforce {} ({})", axis.axis, axis.enforcement));
    }
    if !core.auditor.running {
        let why = core.auditor.last_exit.as_deref().unwrap_or("it was not started yet");
        problems.push(format!("the auditor does not run ({why}); events wait in the kernel"));
    }
    match store {
        Ok(store) => {
            problems.extend(store.failing.iter().map(|why| format!("events cannot be stored: {why}")));
            problems.extend(
                store.corrupt_moved_to.iter().map(|path| format!("a corrupt database was moved to {path}")),
            );
            let missing = store.undecodable.iter().filter(|(_, count)| *count > 0);
            problems.extend(missing.map(|(reason, count)| {
                format!("{count} records are not in the store, reason: {}", printable(reason))
            }));
        }
        Err(error) if core.auditor.running => problems.push(format!("the auditor does not answer: {error}")),
        Err(_) => {}
    }
    if let Some(reload) = &core.reload {
        problems.extend(reload.outcome.errors.iter().cloned());
    }
    for agent in &core.agents {
        if let Some(error) = &agent.error {
            problems.push(format!("agent {}: {error}", printable(&agent.name)));
        }
        if agent.state != AgentState::Running && agent.error.is_none() {
            let why =
                agent.last_exit.as_deref().map(|why| format!(": {}", printable(why))).unwrap_or_default();
            // A worker that was just started for the first time is no problem.
            if agent.restarts > 0 || agent.state != AgentState::Starting {
                problems.push(format!("agent {} is {}{why}", printable(&agent.name), agent.state));
            }
        }
        if agent.counts.lost_reports > 0 {
            problems.push(format!(
                "agent {}: {} reports for the trace were lost",
                printable(&agent.name),
                agent.counts.lost_reports
            ));
        }
    }
    problems.extend(core.containers.iter().filter_map(names_amiss));
    for id in &core.unrecorded {
        problems.push(format!("container {id} has no record; it stays enforced, but cannot be reloaded"));
    }
    problems
}

/// Why a container reaches none of the names that it may, and what becomes of it.
pub(super) fn names_amiss(container: &ContainerStatus) -> Option<String> {
    let egress = container.egress.as_ref().filter(|egress| egress.state != AgentState::Running)?;
    // One that was just started for the first time is no problem.
    if egress.state == AgentState::Starting && egress.restarts == 0 {
        return None;
    }
    let why = egress.error.as_deref().or(egress.last_exit.as_deref()).unwrap_or("it ended");
    let then = match egress.retry_s {
        Some(seconds) => {
            format!("; it is tried again in {seconds} s, or at once with `systemctl reload ringfence`")
        }
        None if egress.state == AgentState::Starting => "; it is being started again".to_owned(),
        None => String::new(),
    };
    Some(format!(
        "container {}: it reaches no name, because its egress worker is {}: {}{then}",
        container.id,
        egress.state,
        printable(why)
    ))
}

fn show(
    out: &mut impl Write,
    core: &Status,
    store: Option<&AuditorStatus>,
    problems: &[String],
    now: Timestamp,
) -> io::Result<()> {
    complain(out, problems)?;
    let how = if core.adopted { "programs adopted" } else { "programs loaded" };
    writeln!(
        out,
        "daemon      running for {}, pid {}, version {}, {how}",
        age(core.since_ms, now),
        core.pid,
        core.version
    )?;
    writeln!(out, "kernel      {}, {} hooks attached", core.kernel, core.hooks.len())?;
    for hook in &core.missing {
        writeln!(out, "            no hook {}: {}", hook.hook, hook.effect)?;
    }
    for way in &core.unknown {
        writeln!(out, "            {}: {}", way.hook, way.effect)?;
    }
    for axis in &core.axes {
        let by = axis.enforcers.join(", ");
        let by = if by.is_empty() { by } else { format!(" ({by})") };
        writeln!(out, "{:<12}enforcement: {}{by}", axis.axis, axis.enforcement)?;
    }
    let auditor = &core.auditor;
    let state = match auditor.pid {
        Some(pid) => format!("running, pid {pid}"),
        None => "not running".into(),
    };
    writeln!(
        out,
        "auditor     {state}, {} restarts, {} records received, {} not stored yet",
        auditor.restarts, auditor.records, auditor.unacknowledged
    )?;
    if let Some(store) = store {
        writeln!(out, "store       {}, {} events, {} KiB", store.database, store.rows, store.bytes / 1024)?;
        let mcp = &store.mcp;
        writeln!(
            out,
            "mcp         {} sessions connected, {} calls wait, {} rows not stored yet, {} connections refused",
            mcp.sessions, mcp.waiting, mcp.unstored, mcp.turned_away
        )?;
        for lost in &store.lost {
            writeln!(
                out,
                "            container {} lost {} denials and {} other events in the kernel, {} and {} in the store",
                lost.container, lost.ring_denied, lost.ring_allowed, lost.store_denied, lost.store_allowed
            )?;
            if lost.missing_denied > 0 {
                writeln!(
                    out,
                    "            container {}: {} more denials were counted but have not arrived; they are still on their way, or \
                     were lost with a daemon that was killed",
                    lost.container, lost.missing_denied
                )?;
            }
            if lost.egress > 0 {
                writeln!(
                    out,
                    "            container {}: {} connections and questions by name are not on record; its egress worker had more \
                     to tell than it could send",
                    lost.container, lost.egress
                )?;
            }
        }
    }
    if let Some(reload) = &core.reload {
        writeln!(out, "profiles    read {} ago", age(reload.at_ms, now))?;
        for note in &reload.outcome.notes {
            writeln!(out, "            {note}")?;
        }
    }
    writeln!(out)?;
    containers(out, &core.containers, now)?;
    names(out, &core.containers)?;
    agents(out, &core.agents)
}

/// What serves containers' names as a table, one line for each that may reach any, behind an empty one.
fn names(out: &mut impl Write, all: &[ContainerStatus]) -> io::Result<()> {
    let served: Vec<_> =
        all.iter().filter_map(|container| Some((container, container.egress.as_ref()?))).collect();
    if served.is_empty() {
        return Ok(());
    }
    let header = [
        "NAMES OF",
        "STATE",
        "PID",
        "UID",
        "RESTARTS",
        "ADDRESSES",
        "OPEN",
        "CONNECTIONS",
        "REFUSED",
        "FAILED",
        "SENT",
        "RECEIVED",
        "LOST",
    ];
    let mut rows = vec![header.map(str::to_owned)];
    for (container, egress) in &served {
        let counts = &egress.counts;
        rows.push([
            container.id.clone(),
            egress.state.to_string(),
            egress.pid.map_or("-".to_owned(), |pid| pid.to_string()),
            egress.uid.to_string(),
            egress.restarts.to_string(),
            printable(&egress.block),
            counts.open.to_string(),
            counts.connections.to_string(),
            format!("{}+{}", counts.refused, counts.refused_names),
            counts.failed.to_string(),
            format!("{} KiB", counts.sent / 1024),
            format!("{} KiB", counts.received / 1024),
            counts.lost_records.to_string(),
        ]);
    }
    write!(out, "\n{}", table(&rows))?;
    for (container, egress) in served {
        // While it runs, what it says is no problem of the host's.
        if let (AgentState::Running, Some(error)) = (&egress.state, &egress.error) {
            writeln!(out, "{}: {}", container.id, printable(error))?;
        }
    }
    Ok(())
}

/// The daemon's agents as a table, one line each, behind an empty one.
pub(super) fn agents(out: &mut impl Write, all: &[AgentProcess]) -> io::Result<()> {
    if all.is_empty() {
        return Ok(());
    }
    let header = [
        "AGENT", "STATE", "PID", "UID", "RESTARTS", "RUNTIME", "TURNS", "FAILED", "TAGS", "REFUSED", "MODEL",
    ];
    let mut rows = vec![header.map(str::to_owned)];
    let number = |number: Option<u32>| number.map_or("-".to_owned(), |number| number.to_string());
    for agent in all {
        let counts = &agent.counts;
        let runtime = match (counts.worker.runtime, counts.worker.busy) {
            (false, _) => "none",
            (true, true) => "busy",
            (true, false) => "idle",
        };
        rows.push([
            printable(&agent.name),
            agent.state.to_string(),
            number(agent.pid),
            number(agent.uid),
            agent.restarts.to_string(),
            runtime.to_owned(),
            counts.worker.turns.to_string(),
            counts.worker.failed.to_string(),
            counts.tags.to_string(),
            (counts.refused_tags + counts.refused_peers).to_string(),
            agent.model.as_deref().map_or("-".to_owned(), printable),
        ]);
    }
    write!(out, "\n{}", table(&rows))
}

fn containers(out: &mut impl Write, all: &[ContainerStatus], now: Timestamp) -> io::Result<()> {
    if all.is_empty() {
        return writeln!(out, "no containers");
    }
    let header = [
        "CONTAINER",
        "PROFILE",
        "MODE",
        "ENFORCEMENT",
        "GEN",
        "AGE",
        "TASKS",
        "DENIED",
        "LOST",
        "FOLDED",
        "CAPABILITIES",
    ];
    let mut rows = vec![header.map(str::to_owned)];
    for container in all {
        let counts = &container.counts;
        rows.push([
            container.id.clone(),
            printable(&container.profile),
            container.mode.to_string(),
            container.enforcement.to_string(),
            container.generation.to_string(),
            age(container.created_ms, now),
            container.tasks.to_string(),
            counts.denied.to_string(),
            format!("{}+{}", counts.lost_denied, counts.lost_allowed),
            counts.aggregated.to_string(),
            capabilities(&container.capabilities),
        ]);
    }
    out.write_all(table(&rows).as_bytes())
}

/// As one word (`all`, `default`) where there is one.
fn capabilities(names: &[String]) -> String {
    let known = names.iter().filter_map(|name| Capabilities::named(name));
    printable(&known.fold(Capabilities::NONE, Capabilities::join).to_string())
}

/// How long ago, in two units: `3d 4h`, `12m 5s`, `0s`.
fn age(ms: u64, now: Timestamp) -> String {
    let then = i64::try_from(ms).ok().and_then(|ms| Timestamp::from_millisecond(ms).ok()).unwrap_or(now);
    let seconds = now.duration_since(then).max(SignedDuration::ZERO).as_secs();
    let units = [("d", 86_400, 0), ("h", 3600, 86_400), ("m", 60, 3600), ("s", 1, 60)];
    let parts = units.map(|(unit, size, of)| {
        let n = if of == 0 { seconds / size } else { seconds % of / size };
        (n, format!("{n}{unit}"))
    });
    let first = parts.iter().position(|(n, _)| *n > 0).unwrap_or(3);
    let parts = parts[first..].iter().take(2).filter(|(n, _)| *n > 0 || first == 3);
    parts.map(|(_, text)| text.as_str()).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests;
