//! A daemon that says what a test tells it to, frame by frame, and the runtime that talks to it.

use ringfence_wire::conn::Conn;
use serde_json::{Value, json};
use std::{
    fs,
    io::{ErrorKind, Read, Write},
    os::{
        fd::OwnedFd,
        unix::net::{UnixListener, UnixStream},
    },
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
    thread,
};
use tempfile::TempDir;

pub(crate) use ringfence_test_support::{
    processes::lives as runs,
    wait::{PATIENCE, eventually},
};

/// The binary under test: the one that ships, where the environment names it.
pub(crate) fn binary() -> PathBuf {
    std::env::var_os("RINGFENCE_RUNTIME")
        .map_or_else(|| env!("CARGO_BIN_EXE_ringfence-runtime").into(), PathBuf::from)
}

/// A listener, a directory to work in, and a runtime.
pub(crate) struct Scene {
    dir: TempDir,
    listener: Option<UnixListener>,
    runtime: Child,
}

impl Scene {
    /// Starts a runtime with all tools and these flags beside the required ones.
    pub(crate) fn new(flags: &[&str]) -> Self {
        Self::with_tools("bash,read_file,write_file,edit_file,list_directory,search", flags)
    }

    /// The same, and the daemon's end of its connection, registered.
    pub(crate) fn with_daemon(flags: &[&str]) -> (Self, Peer) {
        let scene = Self::new(flags);
        let peer = scene.registered();
        (scene, peer)
    }

    pub(crate) fn with_tools(tools: &str, flags: &[&str]) -> Self {
        Self::with_path(std::env::var_os("PATH").unwrap().as_ref(), tools, flags)
    }

    /// Programs are looked for in `path`.
    pub(crate) fn with_path(path: &Path, tools: &str, flags: &[&str]) -> Self {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("work")).unwrap();
        fs::write(dir.path().join("prompt.md"), "You are a tést.\n").unwrap();
        let listener = UnixListener::bind(dir.path().join("agent.sock")).unwrap();
        let runtime = Command::new(binary())
            .arg("--system-prompt")
            .arg(dir.path().join("prompt.md"))
            .args(["--tools", tools, "--socket"])
            .arg(dir.path().join("agent.sock"))
            .args(flags)
            .current_dir(dir.path().join("work"))
            .env("PATH", path)
            .stdin(Stdio::null())
            .stderr(fs::File::create(dir.path().join("stderr")).unwrap())
            .spawn()
            .unwrap();
        Self { dir, listener: Some(listener), runtime }
    }

    /// The next connection, registered.
    pub(crate) fn registered(&self) -> Peer {
        let mut peer = self.accept();
        assert_eq!(
            peer.receive(),
            json!({"jsonrpc": "2.0", "method": "register", "params": {"role": "runtime"}})
        );
        peer
    }

    pub(crate) fn accept(&self) -> Peer {
        let listener = self.listener.as_ref().unwrap();
        listener.set_nonblocking(true).unwrap();
        let stream = eventually("a connection", || listener.accept().ok()).0;
        stream.set_nonblocking(false).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        Peer { stream }
    }

    /// The daemon goes: nobody listens any more.
    pub(crate) fn close(&mut self) {
        self.listener = None;
        fs::remove_file(self.dir.path().join("agent.sock")).unwrap();
    }

    /// The daemon comes back.
    pub(crate) fn listen(&mut self) {
        self.listener = Some(UnixListener::bind(self.dir.path().join("agent.sock")).unwrap());
    }

    pub(crate) fn work(&self) -> PathBuf {
        self.dir.path().join("work")
    }

    pub(crate) fn stderr(&self) -> String {
        fs::read_to_string(self.dir.path().join("stderr")).unwrap()
    }

    pub(crate) fn pid(&self) -> i32 {
        self.runtime.id() as i32
    }

    pub(crate) fn signal(&self, signal: rustix::process::Signal) {
        rustix::process::kill_process(rustix::process::Pid::from_child(&self.runtime), signal).unwrap();
    }

    pub(crate) fn exit(&mut self) -> ExitStatus {
        eventually("the runtime's end", || self.runtime.try_wait().unwrap())
    }

    /// Most memory that the runtime ever had, in KiB.
    pub(crate) fn peak_kib(&self) -> u64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.pid())).unwrap();
        let line = status.lines().find(|line| line.starts_with("VmHWM:")).unwrap();
        line.split_whitespace().nth(1).unwrap().parse().unwrap()
    }
}

impl Drop for Scene {
    fn drop(&mut self) {
        let ended = self.runtime.try_wait().ok().flatten();
        let _ = self.runtime.kill();
        let _ = self.runtime.wait();
        if thread::panicking() {
            // By what it hung up, if it did.
            eprintln!("the runtime had ended: {ended:?}, and said: {}", self.stderr());
        }
    }
}

/// The daemon's end of one connection.
pub(crate) struct Peer {
    pub(crate) stream: UnixStream,
}

impl Peer {
    pub(crate) fn receive(&mut self) -> Value {
        self.receive_bytes()
            .map(|bytes| serde_json::from_slice(&bytes).unwrap())
            .expect("the runtime hung up")
    }

    /// A request and the descriptors beside it.
    pub(crate) fn receive_with_descriptors(&mut self) -> (Value, Vec<OwnedFd>) {
        let stream = self.stream.try_clone().unwrap();
        Conn::new(stream, PATIENCE, 1 << 20).receive_with_descriptors().unwrap()
    }

    /// One frame's payload; `None`: the runtime closed the connection.
    pub(crate) fn receive_bytes(&mut self) -> Option<Vec<u8>> {
        let mut header = [0; 4];
        match self.stream.read_exact(&mut header) {
            Ok(()) => {}
            Err(error) if matches!(error.kind(), ErrorKind::UnexpectedEof | ErrorKind::ConnectionReset) => {
                return None;
            }
            Err(error) => panic!("nothing came: {error}"),
        }
        let mut bytes = vec![0; u32::from_be_bytes(header) as usize];
        self.stream.read_exact(&mut bytes).unwrap();
        Some(bytes)
    }

    pub(crate) fn say_bytes(&mut self, bytes: &[u8]) {
        let mut frame = (bytes.len() as u32).to_be_bytes().to_vec();
        frame.extend_from_slice(bytes);
        self.stream.write_all(&frame).unwrap();
    }

    pub(crate) fn say(&mut self, value: &Value) {
        self.say_bytes(value.to_string().as_bytes());
    }

    pub(crate) fn human(&mut self, text: &str) {
        self.say(&human(text));
    }

    /// The turn that a message leads to.
    pub(crate) fn asked(&mut self, text: &str) -> Value {
        self.human(text);
        self.receive()
    }

    pub(crate) fn answer(&mut self, turn: &Value, result: &Value) {
        self.say(&json!({"jsonrpc": "2.0", "id": turn["id"], "result": result}));
    }

    pub(crate) fn end(&mut self, turn: &Value) {
        self.answer(
            turn,
            &json!({"stop_reason": "end_turn", "content": [{"type": "text", "text": "Done."}]}),
        );
    }

    pub(crate) fn call(&mut self, turn: &Value, calls: &[(&str, &str, Value)]) {
        let calls: Vec<Value> =
            calls.iter().map(|(id, name, input)| json!({"id": id, "name": name, "input": input})).collect();
        self.answer(turn, &json!({"stop_reason": "tool_use", "content": [], "tool_calls": calls}));
    }

    /// Has the runtime run calls: a message, a turn, the calls; the turn with the results.
    pub(crate) fn round(&mut self, calls: &[(&str, &str, Value)]) -> Value {
        self.human("Go");
        let turn = self.receive();
        self.call(&turn, calls);
        self.receive()
    }

    /// The result of one `bash` call: text and `is_error`.
    pub(crate) fn bash(&mut self, command: &str) -> (String, bool) {
        self.tool("bash", json!({"command": command}))
    }

    pub(crate) fn tool(&mut self, name: &str, input: Value) -> (String, bool) {
        let turn = self.round(&[("tc-1", name, input)]);
        let result = results(&turn).remove(0);
        self.end(&turn);
        (result.1, result.2)
    }
}

pub(crate) fn human(text: &str) -> Value {
    json!({
        "jsonrpc": "2.0", "method": "human_message",
        "params": {"content": [{"type": "text", "text": text}]},
    })
}

/// Id, text and `is_error` of each result in a turn.
pub(crate) fn results(turn: &Value) -> Vec<(String, String, bool)> {
    let messages = turn["params"]["messages"].as_array().unwrap();
    messages
        .iter()
        .map(|message| {
            assert_eq!(message["role"], "tool");
            assert_eq!(message["content"].as_array().unwrap().len(), 1);
            assert_eq!(message["content"][0]["type"], "text");
            (
                message["tool_call_id"].as_str().unwrap().to_owned(),
                message["content"][0]["text"].as_str().unwrap().to_owned(),
                message.get("is_error").is_some_and(|is_error| is_error.as_bool().unwrap()),
            )
        })
        .collect()
}

/// A process id that a tool wrote to a file.
pub(crate) fn pid_in(file: &Path) -> i32 {
    eventually("a process id", || {
        let text = fs::read_to_string(file).ok()?;
        text.ends_with('\n').then(|| text.trim().parse().ok())?
    })
}
