//! Commands that print credentials, run for a process that may start none itself.
//!
//! `ringfence agent start` confines itself before it reads what agents and providers say, and a password manager is a
//! program like any other. So a second process, started before, runs those commands and passes what they print as a
//! descriptor. It reads only the user's own profiles, runs only what they name, whoever asks, and ends with the process
//! that started it. It also connects workers with the auditor, and starts that where none runs, for agents that have a profile.

use nix::sys::signal::{SigSet, Signal};
use ringfence_base::error::chain;
use ringfence_credentials::{self as secret, Secret, Source};
use ringfence_policy::agents::{home::Home, registry};
use ringfence_sandbox::caps;
use ringfence_wire::{conn::Conn, frame::FrameError, mcp::McpRequest};
use serde::{Deserialize, Serialize};
use std::{
    io,
    os::{
        fd::{AsFd, OwnedFd},
        unix::net::UnixStream,
    },
    process::Command,
    sync::{Mutex, OnceLock, PoisonError},
    thread,
    time::Duration,
};

/// Most bytes of a message: a command's words.
const MAX: usize = 64 << 10;
/// How long an answer may take: longer than a command may.
const PATIENCE: Duration = Duration::from_secs(40);

/// The other process, where there is one.
static RUNNER: OnceLock<Mutex<Option<Conn>>> = OnceLock::new();
/// The same for lines to the auditor, which wait for no command.
static LINES: OnceLock<Mutex<Option<Conn>>> = OnceLock::new();

/// A line to the auditor is wanted for this agent; beside the answer [`Ran::Printed`] it comes.
#[derive(Debug, Serialize, Deserialize)]
struct Line {
    agent: String,
}

#[derive(Debug, Serialize, Deserialize)]
struct Run {
    words: Vec<String>,
}

/// What came of it; the credential itself is in a descriptor beside.
#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "ran", rename_all = "snake_case")]
enum Ran {
    Printed,
    Failed { why: String },
}

/// Starts the other process. Before this one is confined.
///
/// # Errors
/// As fork(2) and execve(2).
pub fn start() -> io::Result<()> {
    let (ours, theirs) = UnixStream::pair()?;
    let (lines, of_lines) = UnixStream::pair()?;
    // It ends by itself when this process does.
    drop(
        Command::new("/proc/self/exe")
            .arg("llm-commands")
            .stdin(OwnedFd::from(theirs))
            .stdout(OwnedFd::from(of_lines))
            .spawn()?,
    );
    let _ = RUNNER.set(Mutex::new(Some(Conn::new(ours, PATIENCE, MAX))));
    let _ = LINES.set(Mutex::new(Some(Conn::new(lines, PATIENCE, MAX))));
    secret::run_commands_by(run);
    Ok(())
}

/// Has a command run by the other process.
fn run(words: &[String]) -> Result<Secret, secret::Error> {
    let name = secret::program(words);
    let Some(runner) = RUNNER.get() else { return Err(secret::Error::Empty(name)) };
    let mut line = runner.lock().unwrap_or_else(PoisonError::into_inner);
    // Without it once a question failed: its answer, which may still come, would be taken for the next one's, and hand one
    // agent's credential to another's provider.
    let answer = line.take().ok_or(FrameError::Closed).and_then(|mut conn| {
        conn.send(&Run { words: words.to_vec() })?;
        let answer = conn.receive_with_descriptors::<Ran>()?;
        *line = Some(conn);
        Ok(answer)
    });
    match answer {
        Ok((Ran::Printed, descriptors)) => match <[OwnedFd; 1]>::try_from(descriptors) {
            Ok([descriptor]) => Secret::from_descriptor(descriptor),
            Err(_) => Err(secret::Error::Empty(name)),
        },
        Ok((Ran::Failed { why }, _)) => Err(secret::Error::Runner(why)),
        Err(error) => Err(secret::Error::Runner(format!(
            "{name} cannot be run: the process that runs commands for credentials does not answer ({error}); start the \
             service again"
        ))),
    }
}

/// A line to the auditor for the worker of this agent, made by the other process.
///
/// # Errors
/// In words.
pub(crate) fn tools_line(agent: &str) -> Result<UnixStream, String> {
    let lines = LINES.get().ok_or("nobody can connect to the auditor")?;
    let mut lines = lines.lock().unwrap_or_else(PoisonError::into_inner);
    // As with commands: a late answer is not to be another agent's.
    let answer = lines.take().ok_or(FrameError::Closed).and_then(|mut conn| {
        conn.send(&Line { agent: agent.to_owned() })?;
        let answer = conn.receive_with_descriptors::<Ran>()?;
        *lines = Some(conn);
        Ok(answer)
    });
    match answer {
        Ok((Ran::Printed, descriptors)) => {
            let [line] = <[OwnedFd; 1]>::try_from(descriptors).map_err(|_| "no connection came")?;
            Ok(line.into())
        }
        Ok((Ran::Failed { why }, _)) => Err(why),
        Err(error) => Err(format!(
            "the process that connects to the auditor does not answer ({error}); start the service again"
        )),
    }
}

/// Why commands are not run.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Not started by `ringfence agent start`.
    #[error(
        "`ringfence llm-commands` is started by `ringfence agent start`, with its link as standard input"
    )]
    NotFromStart(#[source] io::Error),
    /// Privileges.
    #[error("the process that runs commands for credentials cannot protect itself")]
    Caps(#[from] caps::Error),
    /// Nothing says where home is.
    #[error("the home directory is not known; set HOME")]
    NoHome,
    /// The process that asks.
    #[error("`ringfence agent start` cannot be understood")]
    Link(#[from] FrameError),
}

/// The other process's role, over standard input and standard output. `connect` says this to the auditor, on a connection of its own.
///
/// # Errors
/// [`Error`].
pub fn serve(
    connect: impl Fn(&McpRequest) -> Result<UnixStream, String> + Send + 'static,
) -> Result<(), Error> {
    // The terminal's Ctrl-C is for the process that asks, and that may ask until it has ended. Commands get an empty mask.
    let ignored = SigSet::from_iter([Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP]);
    ignored.thread_block().map_err(|e| Error::NotFromStart(e.into()))?;
    caps::not_dumpable()?;
    let home = Home::from_env().ok_or(Error::NoHome)?;
    let stream =
        io::stdin().as_fd().try_clone_to_owned().map(UnixStream::from).map_err(Error::NotFromStart)?;
    stream.peer_addr().map_err(Error::NotFromStart)?;
    let lines =
        io::stdout().as_fd().try_clone_to_owned().map(UnixStream::from).map_err(Error::NotFromStart)?;
    let of_home = home.clone();
    let serve_lines = move || {
        if let Err(error) = lines_to_auditor(lines, &of_home, connect) {
            tracing::error!("no agent is connected with the auditor any more: {}", chain(&error));
        }
    };
    thread::Builder::new().name("lines".into()).spawn(serve_lines).map_err(Error::NotFromStart)?;
    // It waits for questions as long as there is somebody to ask them.
    let mut conn = Conn::new(stream, Duration::from_secs(u32::MAX.into()), MAX);
    loop {
        let words = match conn.receive::<Run>() {
            Ok(Run { words }) => words,
            Err(FrameError::Closed) => return Ok(()),
            Err(error) => return Err(error.into()),
        };
        if !is_named(&words, &home) {
            let program = secret::program(&words);
            let why = format!(
                "{program} is not run: no profile that can be read has this command for a credential any more"
            );
            tracing::warn!("{why}");
            conn.send(&Ran::Failed { why })?;
            continue;
        }
        match Source::Command(words).read().and_then(|secret| secret.pipe()) {
            Ok(descriptor) => conn.send_with_descriptors(&Ran::Printed, &[descriptor.as_fd()])?,
            Err(error) => conn.send(&Ran::Failed { why: chain(&error) })?,
        }
    }
}

/// Connects agents with the auditor, one after another.
fn lines_to_auditor(
    asked: UnixStream,
    home: &Home,
    connect: impl Fn(&McpRequest) -> Result<UnixStream, String>,
) -> Result<(), FrameError> {
    let mut conn = Conn::new(asked, Duration::from_secs(u32::MAX.into()), MAX);
    loop {
        let agent = match conn.receive::<Line>() {
            Ok(Line { agent }) => agent,
            Err(FrameError::Closed) => return Ok(()),
            Err(error) => return Err(error),
        };
        let line = match registry::names(home).contains(&agent) {
            true => connect(&McpRequest::AgentTools { agent, owner: None }),
            false => Err(format!("there is no profile of an agent {agent:?}")),
        };
        match line {
            Ok(line) => conn.send_with_descriptors(&Ran::Printed, &[line.as_fd()])?,
            Err(why) => conn.send(&Ran::Failed { why })?,
        }
    }
}

/// Whether a profile has a credential printed by this command. The process that asks reads what agents and providers say,
/// and cannot write profiles: what it asks for is not enough to run a program.
fn is_named(words: &[String], home: &Home) -> bool {
    let is_it = |source: &Source| matches!(source, Source::Command(named) if named == words);
    registry::names(home).iter().filter_map(|name| registry::load(home, name).ok()).any(|agent| {
        let tokens = agent.mcp.iter().filter_map(|server| server.auth_token.as_ref());
        tokens.chain(&agent.llm.api_key).any(is_it)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn a_credential_in_a_command_s_place_is_not_shown() {
        let key = "sk-ant-api03-abcdefghijklmnop-qrstuvwxyz".to_owned();
        let error = run(std::slice::from_ref(&key)).unwrap_err().to_string();
        assert!(!error.contains(&key), "{error}");
        let error = run(&["pass".to_owned()]).unwrap_err().to_string();
        assert!(error.contains("pass"), "{error}");
    }

    #[test]
    fn only_commands_of_profiles_are_run() {
        let dir = tempfile::tempdir().unwrap();
        let home = Home::choose(dir.path(), dir.path());
        fs::create_dir_all(home.agents()).unwrap();
        fs::write(
            home.agent("a"),
            "[llm.m]\nprovider = \"anthropic\"\nmodel = \"m\"\napi_key_command = [\"pass\", \"show\", \"key\"]\n",
        )
        .unwrap();
        let words = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>();
        assert!(is_named(&words(&["pass", "show", "key"]), &home), "the control");
        for other in [&["pass", "show"][..], &["pass", "show", "key", "-c"], &["sh", "-c", "id"], &[]] {
            assert!(!is_named(&words(other), &home), "{other:?}");
        }
        fs::write(home.agent("a"), "no profile").unwrap();
        assert!(!is_named(&words(&["pass", "show", "key"]), &home));
    }
}
