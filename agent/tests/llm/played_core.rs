//! A worker's supervisor that the test plays: the core, or the launcher of a run.

use crate::{
    mock::Mock,
    support::{Client, PATIENCE, eventually},
};
use ringfence_wire::{
    agent::{
        Answer, CredentialOwner, Denials, MAX_QUESTION, PeerContainer, PeerIdentity, Start, Supervisor,
        ToCore, ToWorker,
    },
    conn::Conn,
    trace::AgentEvent,
};
use serde_json::{json, value::RawValue};
use std::{
    fs::{self, File},
    io::Write,
    net::TcpListener,
    os::{
        fd::{AsFd, BorrowedFd, OwnedFd},
        unix::{fs::PermissionsExt, net::UnixListener, net::UnixStream},
    },
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
    sync::{Arc, Mutex},
    thread,
};

pub(crate) const SECRET: &str = "sk-handed-over-0123456789";

/// What the core says of whoever connects.
#[derive(Clone, Default)]
pub(crate) struct Says {
    pub(crate) speaker: Option<PeerIdentity>,
    pub(crate) tag: Option<u64>,
    /// What each call was denied.
    pub(crate) denials: Option<Denials>,
}

/// The core's side of one worker.
pub(crate) struct Core {
    pub(crate) dir: tempfile::TempDir,
    pub(crate) worker: Child,
    link: UnixStream,
    pub(crate) says: Arc<Mutex<Says>>,
    heard: Arc<Mutex<Vec<ToCore>>>,
    pub(crate) descriptors: Arc<Mutex<Vec<usize>>>,
}

impl Core {
    pub(crate) fn start(mock: &Mock) -> Self {
        Self::start_on(mock, None)
    }

    /// Of an agent whose provider speaks like this one.
    pub(crate) fn start_as(mock: &Mock, provider: &str) -> Self {
        Self::start_in(mock, None, provider, |_| ())
    }

    /// Of an agent whose API is served on loopback, too: it has no container of its own.
    pub(crate) fn start_on(mock: &Mock, loopback: Option<&TcpListener>) -> Self {
        Self::start_in(mock, loopback, "Anthropic", |_| ())
    }

    /// `prepare` fills the worker's directory.
    pub(crate) fn start_in(
        mock: &Mock,
        loopback: Option<&TcpListener>,
        provider: &str,
        prepare: impl FnOnce(&Path),
    ) -> Self {
        Self::start_by(mock, loopback, provider, prepare, |dir| Supervisor::Core { dir })
    }

    /// The launcher's side of the worker of a run, which supervises as a user's service does.
    pub(crate) fn start_run(mock: &Mock, loopback: &TcpListener) -> Self {
        let prepare = |own: &Path| {
            for dir in ["logs", "state"] {
                fs::create_dir(own.join(dir)).unwrap();
                fs::set_permissions(own.join(dir), fs::Permissions::from_mode(0o700)).unwrap();
            }
        };
        let by = |own: PathBuf| Supervisor::User { logs: own.join("logs"), state: own.join("state") };
        Self::start_by(mock, Some(loopback), "Anthropic", prepare, by)
    }

    /// Tells the worker something, with descriptors beside it.
    pub(crate) fn order(&self, order: &ToWorker, beside: &[BorrowedFd<'_>]) {
        let mut conn = Conn::new(self.link.try_clone().unwrap(), PATIENCE, MAX_QUESTION);
        conn.send_with_descriptors(order, beside).unwrap();
    }

    fn start_by(
        mock: &Mock,
        loopback: Option<&TcpListener>,
        provider: &str,
        prepare: impl FnOnce(&Path),
        by: impl FnOnce(PathBuf) -> Supervisor,
    ) -> Self {
        let dir = tempfile::Builder::new().prefix("rf").tempdir_in("/tmp").unwrap();
        let own = dir.path().join("own");
        fs::create_dir(&own).unwrap();
        fs::set_permissions(&own, fs::Permissions::from_mode(0o700)).unwrap();
        prepare(&own);
        let listener = UnixListener::bind(dir.path().join("agent.sock")).unwrap();
        let http = UnixListener::bind(dir.path().join("http.sock")).unwrap();
        let (ours, theirs) = UnixStream::pair().unwrap();
        let worker = Command::new(env!("CARGO_BIN_EXE_ringfence"))
            .arg("llm-worker")
            .stdin(OwnedFd::from(theirs))
            .stdout(Stdio::null())
            .stderr(File::create(dir.path().join("stderr")).unwrap())
            .env_clear()
            .spawn()
            .unwrap();
        let config = json!({
            "name": "a", "file": "/etc/ringfence/profiles/a.toml", "log_reader": null, "socket_owner": 1000,
            "governed": loopback.is_none(), "notices": [], "mcp": [], "http": { "port": null },
            "limits": { "turns_per_minute": null, "tokens_per_day": null, "cost_per_day": null },
            "llm": {
                "name": "m", "provider": provider, "model": "m", "base_url": mock.url, "max_tokens": 100, "options": {},
                "price": { "input": 0.0, "output": 0.0, "cache_read": 0.0, "cache_write": 0.0 },
                "models": [], "auth": null, "provider_tools": [], "prompt_cache": true, "max_mcp_rounds": 5, "max_rounds": 5,
                "timeout": {"secs": 120, "nanos": 0}, "runtime_timeout": {"secs": 120, "nanos": 0},
            },
        });
        let start = Start {
            config: RawValue::from_string(config.to_string()).unwrap(),
            by: by(own),
            credentials: vec![CredentialOwner::Llm],
            http: true,
            loopback: loopback.is_some(),
        };
        let mut conn = Conn::new(ours.try_clone().unwrap(), PATIENCE, MAX_QUESTION);
        let sockets: Vec<_> =
            [listener.as_fd(), http.as_fd()].into_iter().chain(loopback.map(AsFd::as_fd)).collect();
        conn.send_with_descriptors(&ToWorker::Start(start), &sockets).unwrap();
        let (key, mut write) = std::io::pipe().unwrap();
        write.write_all(SECRET.as_bytes()).unwrap();
        drop(write);
        conn.send_with_descriptors(&ToWorker::Credential, &[key.as_fd()]).unwrap();
        let (says, heard, descriptors) = (Arc::<Mutex<Says>>::default(), Arc::default(), Arc::default());
        let core = Self {
            dir,
            worker,
            link: ours,
            says: Arc::clone(&says),
            heard: Arc::clone(&heard),
            descriptors: Arc::clone(&descriptors),
        };
        thread::spawn(move || answer(conn, &says, &heard, &descriptors));
        eventually("the worker", || {
            core.heard().iter().any(|said| matches!(said, ToCore::Ready)).then_some(())
        });
        core
    }

    pub(crate) fn heard(&self) -> Vec<ToCore> {
        self.heard.lock().unwrap().clone()
    }

    pub(crate) fn said(&self) -> Vec<AgentEvent> {
        let parse = |question: ToCore| match question {
            ToCore::Report(json) => Some(serde_json::from_str(json.get()).unwrap()),
            _ => None,
        };
        self.heard().into_iter().filter_map(parse).collect()
    }

    /// The worker's process.
    pub(crate) fn pid(&self) -> u32 {
        self.worker.id()
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.dir.path().join("agent.sock")
    }

    pub(crate) fn http_socket(&self) -> PathBuf {
        self.dir.path().join("http.sock")
    }

    /// Tells the worker to end.
    pub(crate) fn stop(&self) {
        Conn::new(self.link.try_clone().unwrap(), PATIENCE, 1 << 10).send(&ToWorker::Stop).unwrap();
    }

    /// Leaves the worker alone, as a core that was killed.
    pub(crate) fn leave(&self) {
        self.link.shutdown(std::net::Shutdown::Both).unwrap();
    }

    /// How the worker ended, once it did.
    pub(crate) fn ended(&mut self) -> Option<ExitStatus> {
        self.worker.try_wait().unwrap()
    }

    /// Where the worker keeps what is its own.
    pub(crate) fn own(&self) -> PathBuf {
        self.dir.path().join("own")
    }

    pub(crate) fn stderr(&self) -> String {
        fs::read_to_string(self.dir.path().join("stderr")).unwrap()
    }

    /// Whoever connects from now on is this.
    pub(crate) fn peer(&self, uid: u32, container: Option<bool>) {
        let container = container.map(|own| PeerContainer { id: "0123456789ab".into(), own });
        self.says.lock().unwrap().speaker = Some(PeerIdentity { pid: 4711, uid, container });
    }

    pub(crate) fn runtime(&self) -> Client {
        self.peer(0, Some(true));
        let runtime = Client::runtime(&self.socket());
        // `register` has no answer, and who it is is asked before.
        eventually("the runtime", || {
            self.heard()
                .iter()
                .any(|q| matches!(q, ToCore::Status(counts) if counts.worker.runtime))
                .then_some(())
        });
        runtime
    }
}

impl Drop for Core {
    fn drop(&mut self) {
        let _ = self.worker.kill();
        let _ = self.worker.wait();
        if thread::panicking() {
            eprintln!("the worker said: {}", self.stderr());
        }
    }
}

fn answer(mut conn: Conn, says: &Mutex<Says>, heard: &Mutex<Vec<ToCore>>, descriptors: &Mutex<Vec<usize>>) {
    while let Ok((question, with)) = conn.receive_with_descriptors::<ToCore>() {
        let Says { speaker, tag, denials } = says.lock().unwrap().clone();
        let answer = match question {
            ToCore::DenialsOf { number, .. } => {
                Some((number, denials.map_or_else(|| Answer::Refused("no daemon".into()), Answer::Denials)))
            }
            ToCore::Speaker { number } => {
                Some((number, speaker.map_or_else(|| Answer::Refused("nobody".into()), Answer::Speaker)))
            }
            ToCore::Tag { number } => Some((
                number,
                tag.map_or_else(
                    || Answer::Refused("process 9 has exec'd already".into()),
                    |tag| Answer::Tagged { tag, container: "0123456789ab".into() },
                ),
            )),
            _ => None,
        };
        if answer.is_some() {
            descriptors.lock().unwrap().push(with.len());
        }
        heard.lock().unwrap().push(question);
        if let Some((number, answer)) = answer
            && conn.send(&ToWorker::Answer { number, answer }).is_err()
        {
            return;
        }
    }
}
