//! The programs that are measured, running: a worker under a core that the benchmark plays, `ringfence agent start`, the
//! compiled provider.

use super::PATIENCE;
use anyhow::{Context, Result, bail};
use ringfence_wire::agent::{
    Answer, CredentialOwner, MAX_QUESTION, PeerContainer, PeerIdentity, Start, Supervisor, ToCore, ToWorker,
};
use ringfence_wire::conn::Conn;
use serde_json::{json, value::RawValue};
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

const KEY: &str = "sk-bench-0123456789abcdef";

/// A program that ends when this is dropped.
pub(super) struct Program(Child);

impl Program {
    pub(super) fn start(command: &mut Command) -> Result<Self> {
        let child = command.spawn().with_context(|| format!("cannot start {:?}", command.get_program()))?;
        Ok(Self(child))
    }

    pub(super) fn pid(&self) -> u32 {
        self.0.id()
    }

    /// Tries until there is something, unless the program ends before.
    pub(super) fn wait_for<T>(&mut self, what: &str, mut look: impl FnMut() -> Option<T>) -> Result<T> {
        let until = Instant::now() + PATIENCE;
        while Instant::now() < until {
            if let Some(found) = look() {
                return Ok(found);
            }
            if let Some(status) = self.0.try_wait()? {
                bail!("waiting for {what}: the program ended with {status}");
            }
            thread::sleep(Duration::from_millis(5));
        }
        bail!("{what}: not within {PATIENCE:?}");
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The compiled provider.
pub(super) struct Provider {
    _program: Program,
    pub(super) port: u16,
}

impl Provider {
    pub(super) fn start(binary: &Path) -> Result<Self> {
        let mut child = Command::new(binary).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let stdout = child.stdout.take().context("no standard output")?;
        let program = Program(child);
        let mut line = String::new();
        BufReader::new(stdout).read_line(&mut line)?;
        Ok(Self { _program: program, port: line.trim().parse().context("the provider told no port")? })
    }

    pub(super) fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }
}

/// A worker as the daemon starts it, confined, with its log in `dir`.
pub(super) struct Worker {
    program: Program,
    pub(super) socket: PathBuf,
    _link: UnixStream,
}

impl Worker {
    /// `history`: lines of the log that are there already.
    pub(super) fn start(
        ringfence: &Path,
        provider: &Provider,
        model: &str,
        dir: &Path,
        history: &[String],
    ) -> Result<Self> {
        let own = dir.join("own");
        private(&own)?;
        private(&own.join("log"))?;
        write_log(&own.join("log/conversation.ndjson"), history)?;
        let socket = dir.join("agent.sock");
        let listener = UnixListener::bind(&socket).context("cannot bind the agent's socket")?;
        let (ours, theirs) = UnixStream::pair()?;
        let mut command = Command::new(ringfence);
        command.arg("llm-worker").stdin(OwnedFd::from(theirs)).stdout(Stdio::null());
        command.stderr(File::create(dir.join("stderr"))?).env_clear();
        let mut program = Program::start(&mut command)?;
        let mut conn = Conn::new(ours.try_clone()?, PATIENCE, MAX_QUESTION);
        let config = RawValue::from_string(config(model, &provider.url()).to_string())?;
        let by = Supervisor::Core { dir: own };
        let credentials = vec![CredentialOwner::Llm];
        let start = Start { config, by, credentials, http: false, loopback: false };
        conn.send_with_descriptors(&ToWorker::Start(start), &[listener.as_fd()])?;
        let (read, mut write) = std::io::pipe()?;
        write.write_all(KEY.as_bytes())?;
        drop(write);
        conn.send_with_descriptors(&ToWorker::Credential, &[read.as_fd()])?;
        let (ready, is_ready) = std::sync::mpsc::channel();
        thread::spawn(move || play_core(conn, &ready));
        let said = || fs::read_to_string(dir.join("stderr")).unwrap_or_default();
        program
            .wait_for("the worker", || is_ready.try_recv().ok())
            .with_context(|| format!("the worker said: {}", said()))?;
        Ok(Self { program, socket, _link: ours })
    }

    pub(super) fn pid(&self) -> u32 {
        self.program.pid()
    }
}

/// Answers a worker's questions as the core does: every peer is the agent's own container.
fn play_core(mut conn: Conn, ready: &std::sync::mpsc::Sender<()>) {
    let container = Some(PeerContainer { id: "0123456789ab".to_owned(), own: true });
    let speaker = PeerIdentity { pid: std::process::id(), uid: 0, container };
    // A deadline is for a message: between two there may be more.
    loop {
        let (number, answer) = match conn.receive_with_descriptors::<ToCore>() {
            Ok((ToCore::Ready, _)) => {
                let _ = ready.send(());
                continue;
            }
            Ok((ToCore::Speaker { number }, _)) => (number, Answer::Speaker(speaker.clone())),
            Ok((ToCore::Tag { number }, _)) => (number, Answer::Refused("there are no tags here".to_owned())),
            Ok(_) => continue,
            Err(_) => return,
        };
        if conn.send(&ToWorker::Answer { number, answer }).is_err() {
            return;
        }
    }
}

/// A configuration as the core hands it over.
fn config(model: &str, url: &str) -> serde_json::Value {
    json!({
        "name": "a", "file": "/etc/ringfence/profiles/a.toml", "log_reader": null, "socket_owner": null,
        "governed": true, "notices": [], "mcp": [], "http": null,
        "limits": { "turns_per_minute": null, "tokens_per_day": null, "cost_per_day": null },
        "llm": {
            "name": "m", "provider": "Anthropic", "model": model, "base_url": url, "max_tokens": 1000, "options": {},
            "price": { "input": 0.0, "output": 0.0, "cache_read": 0.0, "cache_write": 0.0 },
            "models": [], "auth": null, "provider_tools": [], "prompt_cache": true, "max_mcp_rounds": 5, "max_rounds": 1_000_000,
            "timeout": { "secs": 60, "nanos": 0 }, "runtime_timeout": { "secs": 60, "nanos": 0 },
        },
    })
}

/// `ringfence agent start`, with one agent `a`.
pub(super) struct User {
    program: Program,
    home: PathBuf,
}

impl User {
    /// What opens the agent's endpoint: the worker writes it down when it serves that, which may be after the socket is there.
    pub(super) fn token(&mut self, data: &Path) -> Result<String> {
        let file = data.join("ringfence/state/a/http-token");
        let written = || fs::read_to_string(&file).ok().filter(|token| !token.is_empty());
        Ok(self.program.wait_for("the endpoint's token", written)?.trim().to_owned())
    }

    /// `home` is for sockets and profiles, `data` for logs. `profile`: the agent's, `{url}` the provider's address.
    pub(super) fn start(
        ringfence: &Path,
        home: &Path,
        data: &Path,
        profile: &str,
        history: &[String],
    ) -> Result<Self> {
        let file = home.join(".config/ringfence/agents/a.toml");
        fs::create_dir_all(home.join(".config/ringfence/agents"))?;
        fs::write(&file, profile)?;
        fs::set_permissions(&file, fs::Permissions::from_mode(0o600))?;
        let logs = data.join("ringfence/logs/a");
        fs::create_dir_all(&logs)?;
        write_log(&logs.join("conversation.ndjson"), history)?;
        let mut command = Command::new(ringfence);
        command.args(["agent", "start"]).env_clear().env("HOME", home).env("XDG_DATA_HOME", data);
        command.env("PATH", std::env::var_os("PATH").unwrap_or_default());
        command.env("RINGFENCE_RUNTIME_DIR", home.join("run"));
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(File::create(home.join("stderr"))?);
        let program = Program::start(&mut command)?;
        let mut user = Self { program, home: home.to_owned() };
        let socket = user.socket();
        let said = home.join("stderr");
        user.program
            .wait_for("the agent's socket", || UnixStream::connect(&socket).ok())
            .with_context(|| format!("it said: {}", fs::read_to_string(said).unwrap_or_default()))?;
        Ok(user)
    }

    pub(super) fn socket(&self) -> PathBuf {
        self.home.join(".config/ringfence/sockets/a.sock")
    }
}

/// The profile of an agent that speaks to the compiled provider.
pub(super) fn profile(before: &str, provider: &str, model: &str, url: &str) -> String {
    format!(
        "{before}\n[llm.m]\nprovider = \"{provider}\"\nmodel = \"{model}\"\napi_key = \"{KEY}\"\nbase_url = \"{url}\"\n\
         max_rounds = 1000000\n"
    )
}

fn private(dir: &Path) -> Result<()> {
    fs::create_dir_all(dir).with_context(|| format!("cannot make {}", dir.display()))?;
    Ok(fs::set_permissions(dir, fs::Permissions::from_mode(0o700))?)
}

fn write_log(path: &Path, history: &[String]) -> Result<()> {
    let line = |message: &String| {
        let rest = message.strip_prefix('{').unwrap_or(message);
        format!("{{\"ts\":\"2026-01-01T00:00:00.000Z\",{rest}\n")
    };
    fs::write(path, history.iter().map(line).collect::<String>())?;
    Ok(fs::set_permissions(path, fs::Permissions::from_mode(0o600))?)
}

/// A port of loopback that nobody uses now.
pub(super) fn free_port() -> Result<u16> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?.port())
}
