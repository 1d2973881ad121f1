//! What these tests share: a home of its own, an auditor, sessions.

use ringfence_test_support::processes::children;
use std::{
    fs,
    io::{BufRead, BufReader, Read, Write},
    path::PathBuf,
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
    time::Duration,
};

pub(crate) use ringfence_test_support::wait::wait_until;

/// Says a line on standard error, then answers every request with its id.
const SERVER: &str = r#"echo it begins >&2; sed -u -n 's/.*"id":\([0-9]*\).*/{"jsonrpc":"2.0","id":\1,"result":{"content":[]}}/p'"#;

/// A user's home with an auditor that this test starts and stops.
pub(crate) struct Home {
    /// The home.
    pub(crate) dir: tempfile::TempDir,
    auditor: Option<Child>,
}

impl Home {
    pub(crate) fn new(options: &[&str]) -> Self {
        let mut home = Self { dir: tempfile::tempdir().expect("a folder"), auditor: None };
        fs::create_dir_all(home.data()).expect("a folder");
        home.start(options);
        home
    }

    pub(crate) fn data(&self) -> PathBuf {
        self.dir.path().join("data/ringfence")
    }

    pub(crate) fn start(&mut self, options: &[&str]) {
        let db = self.data().join("audit.db").display().to_string();
        let mut auditor = self.ringfence(&["auditor", "--user", "--port", "0", "--db", &db]);
        auditor.args(options).stdout(Stdio::null()).stderr(Stdio::null());
        let before = self.sockets();
        assert!(before.is_empty(), "{before:?}");
        self.auditor = Some(auditor.spawn().expect("the auditor"));
        wait_until("the auditor listens", || !self.sockets().is_empty());
    }

    pub(crate) fn sockets(&self) -> Vec<PathBuf> {
        let files = fs::read_dir(self.dir.path().join("ringfence")).into_iter().flatten().flatten();
        files.map(|file| file.path()).collect()
    }

    pub(crate) fn stop(&mut self) {
        if let Some(mut auditor) = self.auditor.take() {
            let _ = auditor.kill();
            let _ = auditor.wait();
        }
        self.sockets().iter().for_each(|socket| fs::remove_file(socket).expect("a socket of nobody"));
    }

    pub(crate) fn ringfence(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_ringfence"));
        command
            .args(arguments)
            .env_clear()
            .env("HOME", self.dir.path())
            .env("XDG_DATA_HOME", self.dir.path().join("data"))
            .env("XDG_RUNTIME_DIR", self.dir.path())
            .env("RINGFENCE_RUNTIME_DIR", self.dir.path())
            .env("PATH", std::env::var_os("PATH").unwrap_or_default());
        command
    }

    /// A session with a few calls, from its start to its end.
    pub(crate) fn session(&self) {
        Session::open(self).end();
    }

    /// What it printed, and whether there were no problems.
    pub(crate) fn verify(&self, options: &[&str]) -> (String, bool) {
        let ran = self.ringfence(&["audit", "verify"]).args(options).output().expect("ringfence audit");
        let said = String::from_utf8_lossy(&ran.stdout).into_owned() + &String::from_utf8_lossy(&ran.stderr);
        (said, ran.status.success())
    }

    pub(crate) fn finds(&self, options: &[&str], what: &str) {
        let (said, whole) = self.verify(options);
        assert!(!whole && said.contains(what), "expected {what:?}: {said}");
    }

    pub(crate) fn is_whole(&self, options: &[&str], what: &str) {
        let (said, whole) = self.verify(options);
        assert!(whole && said.contains(what), "expected {what:?}: {said}");
    }

    pub(crate) fn heads(&self, name: &str) -> String {
        let printed = self.ringfence(&["audit", "heads"]).output().expect("ringfence audit heads");
        assert!(printed.status.success());
        let file = self.dir.path().join(name);
        fs::write(&file, printed.stdout).expect("written");
        file.display().to_string()
    }

    pub(crate) fn journals(&self) -> Vec<PathBuf> {
        let mut files: Vec<PathBuf> = fs::read_dir(self.data().join("audit.db.journals"))
            .expect("journals")
            .flatten()
            .map(|file| file.path())
            .filter(|path| path.extension().is_some_and(|kind| kind == "journal"))
            .collect();
        files.sort();
        files
    }

    /// Whether a table of the database has rows.
    pub(crate) fn has_rows(&self, table: &str) -> bool {
        let db = rusqlite::Connection::open(self.data().join("audit.db")).expect("the database");
        let rows = db.query_row(&format!("SELECT count(*) FROM {table}"), [], |row| row.get::<_, i64>(0));
        rows.expect(table) > 0
    }

    pub(crate) fn sql(&self, text: &str) {
        let db = rusqlite::Connection::open(self.data().join("audit.db")).expect("the database");
        db.busy_timeout(Duration::from_secs(5)).expect("a timeout");
        db.execute_batch(text).expect(text);
    }
}

impl Drop for Home {
    fn drop(&mut self) {
        self.stop();
    }
}

/// An interceptor with its server.
pub(crate) struct Session {
    child: Child,
    stdin: Option<ChildStdin>,
    stdout: BufReader<ChildStdout>,
}

impl Session {
    pub(crate) fn open(home: &Home) -> Self {
        let mut session = Self::start(home);
        for (id, tool) in ["read_file", "read_file", "delete_all_rm", "write_file"].into_iter().enumerate() {
            // The third is paused and stays so: the session's end decides it.
            session.call(id, tool);
            if id != 2 {
                let line = session.line();
                let said = || fs::read_to_string(home.dir.path().join("mcp.stderr")).unwrap_or_default();
                assert!(line.contains(&format!("\"id\":{id},")), "{id}: {line:?}; {}", said());
            }
        }
        session
    }

    /// A session whose client is a shell between this process and the interceptor: what this process runs descends from
    /// no client.
    pub(crate) fn start(home: &Home) -> Self {
        let mut command = home.ringfence(&[]);
        let mut child = Command::new("sh");
        let script = format!(
            "\"$0\" mcp --port 0 --server-name fs -- sh -c '{}'; exit $?",
            SERVER.replace('\'', r"'\''")
        );
        child.args(["-c", &script]).arg(command.get_program());
        child.env_clear().envs(command.get_envs().filter_map(|(key, value)| Some((key, value?))));
        command = child;
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(fs::File::create(home.dir.path().join("mcp.stderr")).expect("a file"))
            .spawn()
            .expect("ringfence mcp");
        let stdin = child.stdin.take();
        let stdout = BufReader::new(child.stdout.take().expect("a pipe"));
        Self { child, stdin, stdout }
    }

    /// Halts the interceptor until the returned value is dropped: where it finds no auditor it starts one of its own, and
    /// a test that starts another may come second.
    pub(crate) fn halted(&self) -> Halted {
        let halted = Halted(children(self.child.id()).first().expect("the interceptor").to_string());
        halted.signal("-STOP");
        halted
    }

    /// Calls a tool.
    pub(crate) fn call(&mut self, id: usize, tool: &str) {
        self.send(&format!(
            r#"{{"jsonrpc":"2.0","id":{id},"method":"tools/call","params":{{"name":"{tool}","arguments":{{"n":1.10,"big":123456789012345678901}}}}}}"#
        ));
    }

    /// The next line for the client.
    pub(crate) fn line(&mut self) -> String {
        let mut line = String::new();
        self.stdout.read_line(&mut line).expect("a line");
        line
    }

    pub(crate) fn send(&mut self, line: &str) {
        writeln!(self.stdin.as_mut().expect("open"), "{line}").expect("sent");
    }

    pub(crate) fn end(mut self) {
        self.stdin.take();
        assert!(self.child.wait().expect("an end").success());
    }
}

/// An interceptor that stands still.
pub(crate) struct Halted(String);

impl Halted {
    fn signal(&self, signal: &str) {
        assert!(Command::new("kill").args([signal, &self.0]).status().expect("kill").success());
    }
}

impl Drop for Halted {
    fn drop(&mut self) {
        self.signal("-CONT");
    }
}

/// A shell that is an MCP client, and then runs commands of its own.
pub(crate) struct ClientShell(Child);

impl ClientShell {
    /// Starts it with an interceptor. `then` is what it runs once it may; `$0` is Ringfence there.
    pub(crate) fn start(home: &Home, then: &str) -> Self {
        // A background job's standard input would be nothing: the interceptor gets the shell's.
        let script = "exec 3<&0; \"$0\" mcp --port 0 --server-name fs -- cat <&3 >&2 & \
            until [ -e \"$HOME/go\" ]; do sleep 0.05; done; ";
        let inner = home.ringfence(&[]);
        let shell = Command::new("sh")
            .arg("-c")
            .arg(script.to_owned() + then)
            .arg(inner.get_program())
            .env_clear()
            .envs(inner.get_envs().filter_map(|(key, value)| Some((key, value?))))
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .expect("sh");
        Self(shell)
    }

    /// Has it run its commands, of which the last must fail. Gives what was said.
    pub(crate) fn until_refused(mut self, home: &Home) -> String {
        fs::write(home.dir.path().join("go"), "").expect("written");
        let (mut said, input) = (String::new(), self.0.stdin.take());
        assert!(!self.0.wait().expect("an end").success(), "the client is refused");
        drop(input);
        self.0.stderr.take().expect("a pipe").read_to_string(&mut said).expect("text");
        said
    }
}
