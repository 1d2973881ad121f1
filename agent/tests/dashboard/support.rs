//! What tests of the dashboard share: a home of its own, an auditor, sessions, and HTTP by hand over plain TCP.

use crate::auditor_support::{Core, PATIENCE};
use serde_json::Value;
use std::{
    io::{BufRead, BufReader, Read, Write},
    net::TcpStream,
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
};

pub(crate) use ringfence_test_support::wait::eventually;

/// Says two lines on standard error, then answers every request with its id.
const SERVER: &str = r#"printf 'it begins\n<b>\033[31m\n' >&2; sed -u -n 's/.*"id":\([0-9]*\).*/{"jsonrpc":"2.0","id":\1,"result":{"content":[]}}/p'"#;

/// A user's home, and the auditor that serves: that user's own, or the daemon's.
pub(crate) struct Home {
    dir: tempfile::TempDir,
    auditor: Option<Child>,
    daemon: Option<Core>,
    /// Whose it is, where that is not who runs the tests.
    user: Option<u32>,
    /// Port of the dashboard.
    pub(crate) port: u16,
    /// Opens it.
    pub(crate) token: String,
}

impl Home {
    /// A home with a running auditor.
    pub(crate) fn new() -> Self {
        Self::on_port(0)
    }

    /// The home of another user, who uses the daemon's auditor; for root.
    pub(crate) fn of(uid: u32) -> Self {
        let dir = tempfile::tempdir().expect("a folder");
        std::os::unix::fs::chown(dir.path(), Some(uid), Some(uid)).expect("chown");
        let core = Core::start();
        core.settle_hello();
        let (daemon, user) = (Some(core), Some(uid));
        let mut home = Self { dir, auditor: None, daemon, user, port: 0, token: String::new() };
        home.open_dashboard();
        home
    }

    /// The same, with the port that the auditor is to try.
    pub(crate) fn on_port(port: u16) -> Self {
        let dir = tempfile::tempdir().expect("a folder");
        let mut home = Self { dir, auditor: None, daemon: None, user: None, port: 0, token: String::new() };
        if crate::DAEMON && port == 0 {
            let core = Core::start();
            core.settle_hello();
            home.daemon = Some(core);
            home.open_dashboard();
            return home;
        }
        std::fs::create_dir_all(home.path(".local/share/ringfence")).expect("a folder");
        let db = home.path(".local/share/ringfence/audit.db").display().to_string();
        let mut auditor = home.ringfence(&["auditor", "--user", "--db", &db, "--port", &port.to_string()]);
        home.auditor = Some(auditor.stderr(Stdio::null()).spawn().expect("the auditor"));
        // Asked sooner, `ringfence dashboard` would start another one.
        eventually("the auditor listens", || {
            std::fs::read_dir(home.path("ringfence")).ok()?.flatten().next()
        });
        home.open_dashboard();
        home
    }

    fn open_dashboard(&mut self) {
        let (address, token) = eventually("the auditor has a dashboard", || {
            let printed = self.ringfence(&["dashboard"]).output().expect("ringfence dashboard");
            let link = String::from_utf8(printed.stdout).expect("text");
            link.trim().split_once("/#token=").map(|(address, token)| (address.to_owned(), token.to_owned()))
        });
        self.port = address.rsplit(':').next().and_then(|port| port.parse().ok()).expect("a port");
        self.token = token;
    }

    /// A link from the present auditor: each has tokens of its own.
    pub(crate) fn reopen_dashboard(&mut self) {
        self.open_dashboard();
    }

    /// Where the daemon's sockets are, or would be.
    pub(crate) fn runtime(&self) -> &Path {
        self.daemon.as_ref().map_or(self.dir.path(), |core| core.dir.path())
    }

    /// The stand-in for the daemon's core.
    pub(crate) fn core(&mut self) -> &mut Core {
        self.daemon.as_mut().expect("the daemon's auditor serves")
    }

    /// The binary, at home here.
    pub(crate) fn ringfence(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_ringfence"));
        command
            .args(arguments)
            .env_clear()
            .env("HOME", self.dir.path())
            .env("XDG_RUNTIME_DIR", self.dir.path())
            // Never the daemon of the machine that runs the tests.
            .env("RINGFENCE_RUNTIME_DIR", self.runtime());
        command.env("PATH", std::env::var_os("PATH").unwrap_or_default());
        if let Some(uid) = self.user {
            command.uid(uid).gid(uid).current_dir("/");
        }
        command
    }

    /// A file of this home.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// A session with a server that answers everything.
    pub(crate) fn session(&self, server: &str, options: &[&str]) -> Session {
        let mut command = self.ringfence(&["mcp", "--port", "0", "--server-name", server]);
        command.args(options).args(["--", "sh", "-c", SERVER]);
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("ringfence mcp");
        let stdin = child.stdin.take();
        let stdout = BufReader::new(child.stdout.take().expect("a pipe"));
        let mut session = Session { child, stdin, stdout, next: 1 };
        session.send(r#"{"jsonrpc":"2.0","id":0,"method":"initialize","params":{}}"#);
        assert!(session.line().contains(r#""id":0"#));
        session
    }

    /// A request with the right host and token.
    pub(crate) fn ask(&self, method: &str, path: &str, body: Option<&str>) -> Answer {
        let host = format!("127.0.0.1:{}", self.port);
        let bearer = format!("Bearer {}", self.token);
        let mut headers = vec![("Host", host.as_str()), ("Authorization", bearer.as_str())];
        if body.is_some() {
            headers.push(("Content-Type", "application/json"));
        }
        self.raw(method, path, &headers, body.unwrap_or(""))
    }

    /// A GET that must succeed, as JSON.
    pub(crate) fn json(&self, path: &str) -> Value {
        let answer = self.ask("GET", path, None);
        assert_eq!(answer.status, 200, "{path}: {}", answer.body);
        answer.json()
    }

    /// A request of these headers and no others but the body's length.
    pub(crate) fn raw(&self, method: &str, path: &str, headers: &[(&str, &str)], body: &str) -> Answer {
        let mut request = format!("{method} {path} HTTP/1.1\r\n");
        for (name, value) in headers {
            request.push_str(&format!("{name}: {value}\r\n"));
        }
        request.push_str(&format!("Content-Length: {}\r\nConnection: close\r\n\r\n{body}", body.len()));
        self.bytes(request.as_bytes())
    }

    /// Sends bytes, reads to the end.
    pub(crate) fn bytes(&self, request: &[u8]) -> Answer {
        let mut stream = self.connect();
        stream.write_all(request).expect("sent");
        let mut answer = Vec::new();
        // A server that refuses early may reset what it did not read.
        let _ = stream.read_to_end(&mut answer);
        Answer::parse(&String::from_utf8_lossy(&answer))
    }

    /// A connection to the dashboard.
    pub(crate) fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(("127.0.0.1", self.port)).expect("the dashboard");
        stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
        stream
    }

    /// The call that waits, once there is one.
    pub(crate) fn waiting(&self) -> String {
        eventually("a call waits", || {
            let calls = self.json("/api/waiting");
            calls[0]["id"].as_str().map(str::to_owned)
        })
    }
}

impl Drop for Home {
    fn drop(&mut self) {
        if let Some(mut auditor) = self.auditor.take() {
            let _ = auditor.kill();
            let _ = auditor.wait();
        }
    }
}

/// An interceptor with its server.
pub(crate) struct Session {
    child: Child,
    stdin: Option<ChildStdin>,
    stdout: BufReader<ChildStdout>,
    next: u32,
}

impl Session {
    /// Sends a line.
    pub(crate) fn send(&mut self, line: &str) {
        let stdin = self.stdin.as_mut().expect("an open session");
        writeln!(stdin, "{line}").and_then(|()| stdin.flush()).expect("sent");
    }

    /// Calls a tool; the id of the request.
    pub(crate) fn call(&mut self, tool: &str, arguments: &str) -> u32 {
        let id = self.next;
        self.next += 1;
        let tool = Value::from(tool);
        self.send(&format!(
            r#"{{"jsonrpc":"2.0","id":{id},"method":"tools/call","params":{{"name":{tool},"arguments":{arguments}}}}}"#
        ));
        id
    }

    /// The next line for the client.
    pub(crate) fn line(&mut self) -> String {
        let mut line = String::new();
        self.stdout.read_line(&mut line).expect("a line");
        line
    }

    /// kill -9 of the interceptor.
    pub(crate) fn kill(mut self) {
        self.child.kill().expect("killed");
    }

    /// Ends it, with its rows stored.
    pub(crate) fn end(mut self) {
        self.stdin.take();
        assert!(self.child.wait().expect("an end").success());
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.stdin.take();
        let _ = self.child.wait();
    }
}

/// An answer over HTTP.
#[derive(Debug)]
pub(crate) struct Answer {
    /// The status; 0 where there was none.
    pub(crate) status: u16,
    /// Everything before the body.
    pub(crate) head: String,
    /// The body, out of its chunks.
    pub(crate) body: String,
}

impl Answer {
    fn parse(text: &str) -> Self {
        let (head, body) = text.split_once("\r\n\r\n").unwrap_or((text, ""));
        let status = head.split(' ').nth(1).and_then(|word| word.parse().ok()).unwrap_or(0);
        Self { status, head: head.to_ascii_lowercase(), body: body.to_owned() }
    }

    /// The body as JSON.
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    /// The sentence of an error.
    pub(crate) fn error(&self) -> String {
        self.json()["error"].as_str().expect("an error").to_owned()
    }
}
