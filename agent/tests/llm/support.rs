//! What the tests share: a user's home, the daemon in it, and clients of the agent's socket.

use crate::mock::Mock;
use rustix::net::{self, AddressFamily, SocketFlags, SocketType};
use serde_json::{Value, json};
use std::{
    fs,
    io::{Read, Write},
    net::{Ipv4Addr, SocketAddrV4},
    os::{
        fd::OwnedFd,
        unix::{
            fs::{MetadataExt, PermissionsExt},
            net::UnixStream,
            process::CommandExt,
        },
    },
    path::{Path, PathBuf},
    process::{Child, Command, Output, Stdio},
    thread,
    time::Duration,
};

pub(crate) use ringfence_test_support::wait::{PATIENCE, eventually};

/// A user's home.
pub(crate) struct Home {
    dir: tempfile::TempDir,
}

impl Home {
    /// With one agent, `a`, that speaks Anthropic's protocol to `mock`.
    pub(crate) fn with(mock: &Mock) -> Self {
        let home = Self::empty();
        home.agent("a", mock, "");
        home
    }

    pub(crate) fn empty() -> Self {
        // Short, for the sockets' paths.
        Self { dir: tempfile::Builder::new().prefix("rf").tempdir_in("/tmp").unwrap() }
    }

    /// An agent; `more` is further lines of its `[llm.m]` and whatever follows.
    pub(crate) fn agent(&self, name: &str, mock: &Mock, more: &str) {
        let text = format!(
            "[llm.m]\nprovider = \"anthropic\"\nmodel = \"model-of-{name}\"\napi_key = \"sk-secret-key-of-{name}\"\nbase_url = \"{}\"\n{more}\n",
            mock.url
        );
        self.profile(name, &text);
    }

    pub(crate) fn profile(&self, name: &str, text: &str) {
        self.write(&format!(".config/ringfence/agents/{name}.toml"), text);
    }

    /// Writes a file as an editor does: whole, by a rename.
    pub(crate) fn write(&self, path: &str, text: &str) {
        let path = self.path(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        let new = path.with_extension("new");
        fs::write(&new, text).unwrap();
        fs::set_permissions(&new, fs::Permissions::from_mode(0o600)).unwrap();
        fs::rename(new, path).unwrap();
    }

    pub(crate) fn path(&self, path: &str) -> PathBuf {
        self.dir.path().join(path)
    }

    pub(crate) fn socket(&self, name: &str) -> PathBuf {
        self.path(&format!(".config/ringfence/sockets/{name}.sock"))
    }

    pub(crate) fn log(&self, name: &str) -> PathBuf {
        self.path(&format!(".local/share/ringfence/logs/{name}/conversation.ndjson"))
    }

    /// The messages of an agent's log.
    pub(crate) fn logged(&self, name: &str) -> Vec<Value> {
        let text = fs::read_to_string(self.log(name)).unwrap();
        text.lines()
            .map(|line| serde_json::from_str(line).unwrap_or_else(|e| panic!("{line}: {e}")))
            .collect()
    }

    /// The binary, at home here.
    pub(crate) fn ringfence(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_ringfence"));
        command
            .args(arguments)
            .env_clear()
            .env("PATH", std::env::var_os("PATH").unwrap_or_default())
            .env("HOME", self.dir.path())
            .env("RINGFENCE_RUNTIME_DIR", self.path("run"))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        command
    }

    /// Runs a command to its end.
    pub(crate) fn run(&self, arguments: &[&str]) -> Ran {
        Ran::from(self.ringfence(arguments).output().unwrap())
    }

    /// Root gives this home, and runs the command as, an ordinary user: of root's processes /proc does not tell whether they
    /// can be read. Whether it is root who runs the tests.
    pub(crate) fn is_an_ordinary_users(&self, command: &mut Command) -> bool {
        let is_root = nix::unistd::geteuid().is_root();
        if is_root {
            let all = Command::new("chown").args(["-R", "1234:1234"]).arg(self.path("")).status().unwrap();
            assert!(all.success());
            command.uid(1234).gid(1234);
        }
        is_root
    }

    /// Starts the daemon, and waits until its agents are served.
    pub(crate) fn start(&self) -> Daemon<'_> {
        self.start_with(&[])
    }

    /// The same, with a runtime of agent `a`.
    pub(crate) fn serve(&self) -> (Daemon<'_>, Client) {
        let daemon = self.start();
        (daemon, Client::runtime(&self.socket("a")))
    }

    pub(crate) fn start_with(&self, environment: &[(&str, &str)]) -> Daemon<'_> {
        let mut command = self.ringfence(&["agent", "start"]);
        command.envs(environment.iter().copied());
        self.started(&mut command)
    }

    /// Starts a command that becomes the daemon.
    pub(crate) fn started(&self, command: &mut Command) -> Daemon<'_> {
        let log = self.path("daemon.log");
        let file = fs::File::options().create(true).append(true).open(&log).unwrap();
        let child = command.stderr(file).spawn().unwrap();
        let daemon = Daemon { child, home: self };
        eventually("the daemon serves", || {
            let listed = self.run(&["agent", "list", "--json"]);
            listed.status.then_some(())
        });
        daemon
    }
}

/// What a command did.
pub(crate) struct Ran {
    pub(crate) status: bool,
    pub(crate) out: String,
    pub(crate) err: String,
}

impl From<Output> for Ran {
    fn from(output: Output) -> Self {
        let text = |bytes| String::from_utf8(bytes).unwrap();
        Self { status: output.status.success(), out: text(output.stdout), err: text(output.stderr) }
    }
}

/// `ringfence agent start`, ended with the test.
pub(crate) struct Daemon<'h> {
    child: Child,
    home: &'h Home,
}

impl Daemon<'_> {
    pub(crate) fn signal(&self, signal: nix::sys::signal::Signal) {
        nix::sys::signal::kill(nix::unistd::Pid::from_raw(self.child.id() as i32), signal).unwrap();
    }

    /// As a crash does it. Its workers end with it, which takes them a moment: what they had is free afterwards.
    pub(crate) fn kill(mut self) {
        self.end();
    }

    /// The processes that it has started.
    pub(crate) fn children(&self) -> Vec<u32> {
        let all = fs::read_dir("/proc").unwrap().flatten();
        let pids = all.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
        pids.filter(|pid| stat(*pid).is_some_and(|(_, parent)| parent == self.child.id())).collect()
    }

    fn end(&mut self) {
        let children = self.children();
        let _ = self.child.kill();
        let _ = self.child.wait();
        // A test that failed need not wait.
        for pid in children.into_iter().filter(|_| !thread::panicking()) {
            eventually("what it started ends with it", || has_ended(pid).then_some(()));
        }
    }

    /// As systemd does it.
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn stop(mut self) {
        self.signal(nix::sys::signal::Signal::SIGTERM);
        self.child.wait().unwrap();
    }

    pub(crate) fn wait(&mut self) {
        eventually("the daemon ends", || self.child.try_wait().unwrap().map(drop));
    }

    pub(crate) fn log(&self) -> String {
        fs::read_to_string(self.home.path("daemon.log")).unwrap()
    }

    pub(crate) fn status(&self, agent: &str) -> Value {
        let listed = self.home.run(&["agent", "list", "--json"]);
        assert!(listed.status, "{}", listed.err);
        let status: Value = serde_json::from_str(&listed.out).unwrap();
        status["agents"].as_array().unwrap().iter().find(|a| a["name"] == agent).cloned().unwrap_or_default()
    }
}

impl Drop for Daemon<'_> {
    fn drop(&mut self) {
        if self.child.try_wait().ok().flatten().is_none() {
            self.end();
        }
        if thread::panicking() {
            eprintln!("{}", self.log());
        }
    }
}

/// That a process has no privilege and leaves no core, and that no other of its user reads or dumps it.
#[track_caller]
pub(crate) fn is_closed(pid: u32) {
    let proc = format!("/proc/{pid}");
    let owner = fs::metadata(format!("{proc}/environ")).unwrap().uid();
    assert_eq!(owner, 0, "it can be read and dumped by others of its user");
    let status = fs::read_to_string(format!("{proc}/status")).unwrap();
    for line in ["NoNewPrivs:\t1", "Seccomp:\t2", "CapEff:\t0000000000000000", "CapPrm:\t0000000000000000"] {
        assert!(status.contains(line), "{line} is not in {status}");
    }
    let limits = fs::read_to_string(format!("{proc}/limits")).unwrap();
    let core = limits.lines().find(|line| line.starts_with("Max core file size")).unwrap();
    assert_eq!(core.split_whitespace().skip(4).take(2).collect::<Vec<_>>(), ["0", "0"], "{core}");
}

/// A process's state and its parent.
fn stat(pid: u32) -> Option<(char, u32)> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let mut fields = stat.rsplit_once(") ")?.1.split(' ');
    Some((fields.next()?.chars().next()?, fields.next()?.parse().ok()?))
}

/// Whether a process has ended, whoever is to wait for it.
pub(crate) fn has_ended(pid: u32) -> bool {
    stat(pid).is_none_or(|(state, _)| state == 'Z' || state == 'X')
}

/// A port of loopback that is kept for this test: nobody listens there, and only who names it may.
pub(crate) struct Port {
    _socket: OwnedFd,
    pub(crate) number: u16,
}

impl Port {
    pub(crate) fn new() -> Self {
        let socket = net::socket_with(AddressFamily::INET, SocketType::STREAM, SocketFlags::CLOEXEC, None);
        let socket = socket.unwrap();
        // A listener may share it, as long as this one does not listen.
        net::sockopt::set_socket_reuseaddr(&socket, true).unwrap();
        net::bind(&socket, &SocketAddrV4::new(Ipv4Addr::LOCALHOST, 0)).unwrap();
        let address = SocketAddrV4::try_from(net::getsockname(&socket).unwrap()).unwrap();
        Self { _socket: socket, number: address.port() }
    }
}

/// A client of an agent's socket.
pub(crate) struct Client {
    pub(crate) stream: UnixStream,
}

impl Client {
    pub(crate) fn connect(socket: &Path) -> Self {
        let stream = eventually("the socket is there", || UnixStream::connect(socket).ok());
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        Self { stream }
    }

    /// A registered runtime.
    pub(crate) fn runtime(socket: &Path) -> Self {
        let mut client = Self::connect(socket);
        client.write(&json!({ "jsonrpc": "2.0", "method": "register", "params": { "role": "runtime" } }));
        client
    }

    /// A sender that has sent.
    pub(crate) fn sender(socket: &Path, text: &str) -> Self {
        let mut client = Self::connect(socket);
        client.write(&send(text));
        client
    }

    /// The same, whose message the runtime has.
    pub(crate) fn delivered(socket: &Path, text: &str, runtime: &mut Self) -> Self {
        let mut sender = Self::sender(socket, text);
        assert_eq!(sender.expect()["result"]["status"], "delivered");
        runtime.human();
        sender
    }

    pub(crate) fn write(&mut self, message: &Value) {
        self.raw(&frame(message.to_string().as_bytes()));
    }

    pub(crate) fn raw(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).unwrap();
    }

    /// The next frame; none at the end.
    pub(crate) fn next(&mut self) -> Option<Value> {
        let mut header = [0; 4];
        if let Err(error) = self.stream.read_exact(&mut header) {
            assert!(error.kind() != std::io::ErrorKind::WouldBlock, "no frame within {PATIENCE:?}");
            return None;
        }
        let mut body = vec![0; u32::from_be_bytes(header) as usize];
        self.stream.read_exact(&mut body).unwrap();
        Some(serde_json::from_slice(&body).unwrap())
    }

    pub(crate) fn expect(&mut self) -> Value {
        self.next().expect("a frame, not the end")
    }

    /// True if nothing comes for a while.
    pub(crate) fn is_silent(&mut self) -> bool {
        self.stream.set_read_timeout(Some(Duration::from_millis(150))).unwrap();
        let silent = self.stream.read(&mut [0]).is_err_and(|e| e.kind() == std::io::ErrorKind::WouldBlock);
        self.stream.set_read_timeout(Some(PATIENCE)).unwrap();
        silent
    }

    /// Reads until a frame with an id, and returns it with the streamed ones before it.
    pub(crate) fn answer(&mut self) -> (Value, Vec<Value>) {
        let mut streamed = Vec::new();
        loop {
            let frame = self.expect();
            if frame.get("id").is_some() {
                return (frame, streamed);
            }
            streamed.push(frame);
        }
    }

    /// Asks for a turn with one user's message, and returns the answer.
    pub(crate) fn says(&mut self, id: u64, text: &str) -> Value {
        self.write(&turn(id, json!([user(text)])));
        self.answer().0
    }

    /// Waits for the next `human_message`, and returns its content.
    pub(crate) fn human(&mut self) -> Value {
        let frame = self.expect();
        assert_eq!(frame["method"], "human_message", "{frame}");
        frame["params"]["content"].clone()
    }
}

pub(crate) fn frame(body: &[u8]) -> Vec<u8> {
    [&u32::try_from(body.len()).unwrap().to_be_bytes(), body].concat()
}

pub(crate) fn user(text: &str) -> Value {
    json!({ "role": "user", "content": [{ "type": "text", "text": text }] })
}

pub(crate) fn tool_result(call: &str, text: &str) -> Value {
    json!({ "role": "tool", "tool_call_id": call, "content": [{ "type": "text", "text": text }] })
}

pub(crate) fn turn(id: u64, messages: Value) -> Value {
    json!({ "jsonrpc": "2.0", "id": id, "method": "turn", "params": { "messages": messages } })
}

pub(crate) fn send(text: &str) -> Value {
    json!({ "jsonrpc": "2.0", "id": 1, "method": "send", "params": { "content": [{ "type": "text", "text": text }] } })
}

/// The texts of streamed frames, joined.
pub(crate) fn text_of(frames: &[Value]) -> String {
    frames.iter().filter_map(|frame| frame["params"]["data"]["text"].as_str()).collect()
}

/// Waits until today will be today for a while: at midnight a day's use begins anew.
pub(crate) fn away_from_midnight() {
    const DAY: i64 = 86_400;
    let left = DAY - jiff::Timestamp::now().as_second().rem_euclid(DAY);
    if left < 120 {
        thread::sleep(Duration::from_secs(left.unsigned_abs() + 1));
    }
}
