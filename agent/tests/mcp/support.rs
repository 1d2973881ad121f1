//! What these tests share: a home of its own, a client by hand, a server that keeps what it receives.

use ringfence_test_support::{processes::children, wait::PATIENCE};
use serde_json::Value;
use std::{
    fs,
    io::{Read, Write},
    path::PathBuf,
    process::{Child, ChildStderr, ChildStdin, Command, ExitStatus, Stdio},
    sync::{Arc, Condvar, Mutex},
    thread,
    time::{Duration, Instant},
};

pub(crate) use ringfence_test_support::{processes::lives, wait::eventually};

/// The server's script.
pub(crate) const SERVER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/mcp/server.py");

/// A user's home.
pub(crate) struct Home {
    dir: tempfile::TempDir,
}

impl Home {
    /// An empty one.
    pub(crate) fn new() -> Self {
        Self { dir: tempfile::tempdir().expect("a folder") }
    }

    /// The same, and its client.
    pub(crate) fn with_client(options: &[&str], traits: &[&str]) -> (Self, Client) {
        let home = Self::new();
        let client = home.client(options, traits);
        (home, client)
    }

    /// The binary, at home here.
    pub(crate) fn ringfence(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_ringfence"));
        self.settle(&mut command);
        command.args(arguments);
        command
    }

    /// Gives a command this home, and nothing else of the environment but PATH.
    pub(crate) fn settle(&self, command: &mut Command) {
        command.env_clear().env("HOME", self.dir.path()).env("XDG_RUNTIME_DIR", self.dir.path());
        // Never the daemon of the machine that runs the tests.
        command.env("RINGFENCE_RUNTIME_DIR", self.dir.path());
        command.env("PATH", std::env::var_os("PATH").unwrap_or_default());
    }

    /// A file of this home.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// The same as text.
    pub(crate) fn text(&self, name: &str) -> String {
        self.path(name).display().to_string()
    }

    /// `ringfence mcp`, as a client of these tests starts it: with a database of this home and any free port.
    pub(crate) fn interceptor(&self, options: &[&str]) -> Command {
        let mut command = self.ringfence(&["mcp", "--port", "0", "--db", &self.text("audit.db")]);
        command.args(options);
        command
    }

    /// A client with the keeping server behind the interceptor. `traits` are the server's.
    pub(crate) fn client(&self, options: &[&str], traits: &[&str]) -> Client {
        let mut command = self.interceptor(options);
        command.args(["--", "python3", SERVER, &self.text("received.log")]).args(traits);
        Client::start(&mut command)
    }

    /// What the server received so far.
    pub(crate) fn received(&self) -> Vec<u8> {
        fs::read(self.path("received.log")).unwrap_or_default()
    }

    /// Standard output of a command that succeeds.
    pub(crate) fn output(&self, arguments: &[&str]) -> String {
        let done = self.ringfence(arguments).output().expect("ringfence");
        assert!(done.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&done.stderr));
        String::from_utf8(done.stdout).expect("text")
    }

    /// The calls on record, oldest first.
    pub(crate) fn calls(&self, options: &[&str]) -> Vec<Value> {
        let db = self.text("audit.db");
        let mut arguments = vec!["mcp", "calls", "--json", "--limit", "1000", "--db", &db];
        arguments.extend(options);
        let mut rows: Vec<Value> =
            self.output(&arguments).lines().map(|row| serde_json::from_str(row).expect("JSON")).collect();
        rows.reverse();
        rows
    }

    /// The entries of all journals, each journal in its order.
    pub(crate) fn journal(&self) -> Vec<Value> {
        let journals = fs::read_dir(self.path("audit.db.journals")).into_iter().flatten().flatten();
        journals
            // Beside them are small files of tools that were called.
            .filter(|file| file.path().extension().is_some_and(|kind| kind == "journal"))
            .flat_map(|file| {
                let text = fs::read_to_string(file.path()).expect("a journal");
                // A line that is just being written may be seen in part.
                text.split_inclusive('\n')
                    .filter(|line| line.ends_with('\n'))
                    .map(|line| serde_json::from_str(&line[65..]).expect("JSON"))
                    .collect::<Vec<Value>>()
            })
            .collect()
    }

    /// Every process below a client of this home, but for the auditor, which outlives it: guard, keeper, server and what that
    /// has started, in this order.
    pub(crate) fn below(&self, client: &Client) -> Vec<i32> {
        // One that is just started is known for an auditor only when it has exec'd.
        let auditors = self.serving();
        descendants(client.pid()).into_iter().filter(|pid| !auditors.contains(pid)).collect()
    }

    /// The same as [`Home::auditors`], once there are any.
    pub(crate) fn serving(&self) -> Vec<i32> {
        eventually("an auditor", || Some(self.auditors()).filter(|found| !found.is_empty()))
    }

    /// Pids of this home's auditors.
    pub(crate) fn auditors(&self) -> Vec<i32> {
        let here = self.text("");
        let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
        processes
            .filter_map(|entry| {
                let pid = entry.file_name().to_str()?.parse().ok()?;
                let line = fs::read(entry.path().join("cmdline")).ok()?;
                let line = String::from_utf8_lossy(&line).into_owned();
                (line.contains("\0auditor\0--user\0") && line.contains(&here)).then_some(pid)
            })
            .collect()
    }
}

impl Drop for Home {
    fn drop(&mut self) {
        // The first interceptor started it, for whoever comes next.
        self.auditors().into_iter().for_each(kill);
    }
}

/// Kills what serves this home, and waits until it is gone.
pub(crate) fn kill_auditors(home: &Home) {
    for auditor in home.serving() {
        kill(auditor);
        eventually("the auditor is gone", || (!lives(auditor)).then_some(()));
    }
}

/// Whether the record of all sessions, `count` of them, is whole.
pub(crate) fn verified(home: &Home, count: usize) -> bool {
    let said = home.output(&["audit", "verify", "--db", &home.text("audit.db")]);
    let noun = if count == 1 { "session" } else { "sessions" };
    said.contains(&format!("{count} {noun} whole"))
}

/// Kills a process of this test.
pub(crate) fn kill(pid: i32) {
    signal(pid, rustix::process::Signal::KILL);
}

/// Sends a signal to a process of this test.
pub(crate) fn signal(pid: i32, signal: rustix::process::Signal) {
    if let Some(pid) = rustix::process::Pid::from_raw(pid) {
        let _ = rustix::process::kill_process(pid, signal);
    }
}

/// Every process below `pid`.
pub(crate) fn descendants(pid: i32) -> Vec<i32> {
    children(pid).into_iter().flat_map(|child| [vec![child], descendants(child)].concat()).collect()
}

/// Bytes that a thread reads from a pipe.
#[derive(Default)]
struct Heard {
    bytes: Vec<u8>,
    over: bool,
}

/// One end of the interceptor, read all the time.
#[derive(Clone, Default)]
pub(crate) struct Ear(Arc<(Mutex<Heard>, Condvar)>);

impl Ear {
    pub(crate) fn listen(mut input: impl Read + Send + 'static) -> Self {
        let ear = Self::default();
        let heard = ear.clone();
        thread::spawn(move || {
            let mut chunk = vec![0; 64 << 10];
            loop {
                let n = input.read(&mut chunk).unwrap_or(0);
                let (state, changed) = &*heard.0;
                let mut state = state.lock().expect("whole");
                state.bytes.extend_from_slice(&chunk[..n]);
                state.over = n == 0;
                changed.notify_all();
                if n == 0 {
                    return;
                }
            }
        });
        ear
    }

    /// Waits until `enough` says so, or the end. Takes as much as it says.
    fn take(&self, what: &str, enough: impl Fn(&[u8]) -> Option<usize>) -> Vec<u8> {
        let (state, changed) = &*self.0;
        let waiting = state.lock().expect("whole");
        let (mut state, late) = changed
            .wait_timeout_while(waiting, PATIENCE, |s| !s.over && enough(&s.bytes).is_none())
            .expect("whole");
        let length = enough(&state.bytes).unwrap_or_else(|| {
            let shown = String::from_utf8_lossy(&state.bytes[..state.bytes.len().min(2000)]).into_owned();
            panic!(
                "{what}: {} (late: {})\n{shown}",
                if state.over { "it ended" } else { "nothing" },
                late.timed_out()
            )
        });
        state.bytes.drain(..length).collect()
    }

    /// The next line with its end.
    pub(crate) fn line(&self) -> String {
        let line = self.take("a line", |bytes| bytes.iter().position(|b| *b == b'\n').map(|at| at + 1));
        String::from_utf8(line).expect("text")
    }

    /// The next bytes.
    pub(crate) fn bytes(&self, count: usize) -> Vec<u8> {
        self.take("bytes", |bytes| (bytes.len() >= count).then_some(count))
    }

    /// Everything until the end.
    pub(crate) fn rest(&self) -> String {
        let (state, changed) = &*self.0;
        let waiting = state.lock().expect("whole");
        let (mut state, late) = changed.wait_timeout_while(waiting, PATIENCE, |s| !s.over).expect("whole");
        assert!(!late.timed_out(), "it does not end");
        String::from_utf8(std::mem::take(&mut state.bytes)).expect("text")
    }

    /// Whether the other end is closed.
    pub(crate) fn is_over(&self) -> bool {
        self.0.0.lock().expect("whole").over
    }

    /// What came so far and was not taken.
    pub(crate) fn so_far(&self) -> String {
        String::from_utf8_lossy(&self.0.0.lock().expect("whole").bytes).into_owned()
    }
}

/// A client's end.
pub(crate) struct Client {
    /// The process that was started: the interceptor, where nothing stands before it.
    pub(crate) child: Child,
    stdin: Option<ChildStdin>,
    /// Open, and not read.
    unread: Option<ChildStderr>,
    /// What the client receives.
    pub(crate) out: Ear,
    /// What it would show.
    pub(crate) errors: Ear,
}

impl Client {
    /// Starts a command as a client does.
    pub(crate) fn start(command: &mut Command) -> Self {
        let mut client = Self::deaf(command);
        client.errors = Ear::listen(client.unread.take().expect("a pipe"));
        client
    }

    /// The same, and never reads standard error.
    pub(crate) fn deaf(command: &mut Command) -> Self {
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("a process");
        let stdin = child.stdin.take();
        let out = Ear::listen(child.stdout.take().expect("a pipe"));
        let unread = child.stderr.take();
        Self { child, stdin, unread, out, errors: Ear::default() }
    }

    /// Its process id.
    pub(crate) fn pid(&self) -> i32 {
        i32::try_from(self.child.id()).expect("a pid")
    }

    /// Sends bytes as they are.
    pub(crate) fn send(&mut self, bytes: impl AsRef<[u8]>) {
        let stdin = self.stdin.as_mut().expect("an open session");
        stdin.write_all(bytes.as_ref()).and_then(|()| stdin.flush()).expect("sent");
    }

    /// Calls a tool; the line that was sent.
    pub(crate) fn call(&mut self, id: &str, tool: &str) -> String {
        let line = call(id, tool);
        self.send(&line);
        line
    }

    /// Calls a tool that is answered.
    pub(crate) fn works(&mut self, id: &str) {
        self.call(id, "read_it");
        assert_eq!(self.out.line(), answered(id));
    }

    /// Closes the client's end.
    pub(crate) fn close(&mut self) {
        self.stdin.take();
    }

    /// Closes the client's end and waits.
    pub(crate) fn end(&mut self) -> ExitStatus {
        self.close();
        self.wait()
    }

    /// Waits for the end.
    pub(crate) fn wait(&mut self) -> ExitStatus {
        eventually("the interceptor ends", || self.child.try_wait().expect("a child"))
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        self.stdin.take();
        let until = Instant::now() + Duration::from_secs(10);
        while Instant::now() < until {
            if !matches!(self.child.try_wait(), Ok(None)) {
                return;
            }
            thread::sleep(Duration::from_millis(10));
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A `tools/call` line.
pub(crate) fn call(id: &str, tool: &str) -> String {
    format!(
        "{{\"jsonrpc\":\"2.0\",\"id\":{id},\"method\":\"tools/call\",\"params\":{{\"name\":\"{tool}\",\"arguments\":{{}}}}}}\n"
    )
}

/// The server's answer to it.
pub(crate) fn answered(id: &str) -> String {
    format!("{{\"jsonrpc\":\"2.0\",\"id\":{id},\"result\":{{}}}}\n")
}
