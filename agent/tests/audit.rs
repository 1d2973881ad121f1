//! The record of MCP sessions against those who would change it: `ringfence audit verify`, heads and retention.

#![cfg(target_os = "linux")]
#![expect(clippy::expect_used, reason = "a test says what it expected")]

use std::{
    fs,
    io::{BufRead, BufReader, Write},
    path::{Path, PathBuf},
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

/// Answers every request with its id.
const SERVER: &str =
    r#"sed -u -n 's/.*"id":\([0-9]*\).*/{"jsonrpc":"2.0","id":\1,"result":{"content":[]}}/p'"#;

/// A user's home with an auditor that this test starts and stops.
struct Home {
    dir: tempfile::TempDir,
    auditor: Option<Child>,
}

impl Home {
    fn new(options: &[&str]) -> Self {
        let mut home = Self { dir: tempfile::tempdir().expect("a folder"), auditor: None };
        fs::create_dir_all(home.data()).expect("a folder");
        home.start(options);
        home
    }

    fn data(&self) -> PathBuf {
        self.dir.path().join("data/ringfence")
    }

    fn start(&mut self, options: &[&str]) {
        let db = self.data().join("audit.db").display().to_string();
        let mut auditor = self.ringfence(&["auditor", "--user", "--port", "0", "--db", &db]);
        auditor.args(options).stdout(Stdio::null()).stderr(Stdio::null());
        let before = self.sockets();
        assert!(before.is_empty(), "{before:?}");
        self.auditor = Some(auditor.spawn().expect("the auditor"));
        eventually("the auditor listens", || !self.sockets().is_empty());
    }

    fn sockets(&self) -> Vec<PathBuf> {
        let files = fs::read_dir(self.dir.path().join("ringfence")).into_iter().flatten().flatten();
        files.map(|file| file.path()).collect()
    }

    fn stop(&mut self) {
        if let Some(mut auditor) = self.auditor.take() {
            let _ = auditor.kill();
            let _ = auditor.wait();
        }
        self.sockets().iter().for_each(|socket| fs::remove_file(socket).expect("a socket of nobody"));
    }

    fn ringfence(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_ringfence"));
        command
            .args(arguments)
            .env_clear()
            .env("HOME", self.dir.path())
            .env("XDG_DATA_HOME", self.dir.path().join("data"))
            .env("XDG_RUNTIME_DIR", self.dir.path())
            .env("PATH", std::env::var_os("PATH").unwrap_or_default());
        command
    }

    /// A session with a few calls, from its start to its end.
    fn session(&self) {
        Session::open(self).end();
    }

    /// What it printed, and whether nothing was amiss.
    fn verify(&self, options: &[&str]) -> (String, bool) {
        let ran = self.ringfence(&["audit", "verify"]).args(options).output().expect("ringfence audit");
        let said = String::from_utf8_lossy(&ran.stdout).into_owned() + &String::from_utf8_lossy(&ran.stderr);
        (said, ran.status.success())
    }

    fn finds(&self, options: &[&str], what: &str) {
        let (said, whole) = self.verify(options);
        assert!(!whole && said.contains(what), "expected {what:?}: {said}");
    }

    fn is_whole(&self, options: &[&str], what: &str) {
        let (said, whole) = self.verify(options);
        assert!(whole && said.contains(what), "expected {what:?}: {said}");
    }

    fn heads(&self, name: &str) -> String {
        let printed = self.ringfence(&["audit", "heads"]).output().expect("ringfence audit heads");
        assert!(printed.status.success());
        let file = self.dir.path().join(name);
        fs::write(&file, printed.stdout).expect("written");
        file.display().to_string()
    }

    fn journals(&self) -> Vec<PathBuf> {
        let mut files: Vec<PathBuf> = fs::read_dir(self.data().join("audit.db.journals"))
            .expect("journals")
            .flatten()
            .map(|file| file.path())
            .collect();
        files.sort();
        files
    }

    fn sql(&self, text: &str) {
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

struct Session {
    child: Child,
    stdin: Option<ChildStdin>,
    stdout: BufReader<ChildStdout>,
}

impl Session {
    fn open(home: &Home) -> Self {
        let mut command = home.ringfence(&["mcp", "--port", "0", "--server-name", "fs"]);
        let mut child = command
            .args(["--", "sh", "-c", SERVER])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("ringfence mcp");
        let stdin = child.stdin.take();
        let stdout = BufReader::new(child.stdout.take().expect("a pipe"));
        let mut session = Self { child, stdin, stdout };
        for (id, tool) in ["read_file", "read_file", "delete_all_rm", "write_file"].into_iter().enumerate() {
            // The third is paused and stays so: the session's end decides it.
            session.send(&format!(
                r#"{{"jsonrpc":"2.0","id":{id},"method":"tools/call","params":{{"name":"{tool}","arguments":{{"n":1.10,"big":123456789012345678901}}}}}}"#
            ));
            if id != 2 {
                let mut line = String::new();
                session.stdout.read_line(&mut line).expect("an answer");
                assert!(line.contains(&format!("\"id\":{id},")), "{line}");
            }
        }
        session
    }

    fn send(&mut self, line: &str) {
        writeln!(self.stdin.as_mut().expect("open"), "{line}").expect("sent");
    }

    fn end(mut self) {
        self.stdin.take();
        assert!(self.child.wait().expect("an end").success());
    }
}

fn eventually(what: &str, mut attempt: impl FnMut() -> bool) {
    let until = Instant::now() + Duration::from_secs(20);
    while !attempt() {
        assert!(Instant::now() < until, "not in 20 s: {what}");
        thread::sleep(Duration::from_millis(20));
    }
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).expect("a folder");
    for entry in fs::read_dir(from).expect("a folder").flatten() {
        let target = to.join(entry.file_name());
        if entry.path().is_dir() {
            copy(&entry.path(), &target);
        } else {
            fs::copy(entry.path(), target).expect("a copy");
        }
    }
}

#[test]
fn an_edit_a_gap_a_cut_and_a_lost_journal_are_found() {
    let home = Home::new(&[]);
    home.session();
    home.session();
    home.is_whole(&[], "2 sessions whole");
    let journal = home.journals().remove(0);
    let original = fs::read_to_string(&journal).expect("a journal");
    let lines: Vec<&str> = original.lines().collect();
    let without = |gone: usize| {
        let kept = lines.iter().enumerate().filter(|(index, _)| *index != gone);
        kept.map(|(_, line)| format!("{line}\n")).collect::<String>()
    };
    let cases = [
        (original.replacen("read_file", "find_file", 1), "does not follow"),
        (without(3), "does not follow"),
        (without(lines.len() - 1), "it was cut"),
        (String::new(), "it was cut"),
        (original.clone() + lines[1] + "\n", "does not follow"),
    ];
    for (changed, what) in cases {
        fs::write(&journal, changed).expect("written");
        home.finds(&[], what);
    }
    fs::write(
        &journal,
        home.journals().get(1).map(|other| fs::read(other).expect("a journal")).expect("two"),
    )
    .expect("written");
    home.finds(&[], "is another one");
    fs::remove_file(&journal).expect("removed");
    home.finds(&[], "cannot be read");
    fs::write(&journal, original).expect("written");
    home.is_whole(&[], "2 sessions whole");
}

#[test]
fn changed_rows_and_sessions_that_are_gone_are_found() {
    let changes = [
        ("UPDATE tool_calls SET tool_name = 'nothing' WHERE tool_name = 'write_file'", "tool calls"),
        ("UPDATE tool_calls SET arguments = '{}' WHERE rowid = 1", "tool calls"),
        ("UPDATE tool_calls SET outcome = 'approved' WHERE outcome IS NOT NULL", "tool calls"),
        ("UPDATE messages SET raw = '{}' WHERE rowid = 2", "messages"),
        ("PRAGMA foreign_keys = OFF; DELETE FROM messages WHERE rowid = 2", "messages"),
        ("UPDATE sessions SET server_name = 'other'", "another server"),
        ("UPDATE ledger SET entry = replace(entry, '\"ended\":true', '\"ended\":false')", "does not follow"),
        ("DELETE FROM ledger WHERE seq = 1", "begins with entry 2"),
        ("DELETE FROM ledger", "the ledger does not name it"),
    ];
    let mut home = Home::new(&[]);
    home.session();
    home.is_whole(&[], "1 sessions whole");
    home.stop();
    let (data, kept) = (home.data(), home.dir.path().join("kept"));
    copy(&data, &kept);
    for (change, what) in changes {
        home.sql(change);
        home.start(&[]);
        home.finds(&[], what);
        home.stop();
        fs::remove_dir_all(&data).expect("removed");
        copy(&kept, &data);
    }
    // The whole session: rows and journal.
    home.sql("PRAGMA foreign_keys = OFF; DELETE FROM sessions; DELETE FROM messages; DELETE FROM tool_calls");
    fs::remove_file(&home.journals()[0]).expect("removed");
    home.start(&[]);
    home.finds(&[], "retention did not remove it");
}

#[test]
fn an_older_copy_of_everything_is_found_by_heads_kept_elsewhere() {
    let mut home = Home::new(&[]);
    home.session();
    let early = home.heads("early");
    home.stop();
    let (data, kept) = (home.data(), home.dir.path().join("kept"));
    copy(&data, &kept);
    home.start(&[]);
    home.session();
    let late = home.heads("late");
    home.is_whole(&["--heads", &early], "heads kept elsewhere compared");
    home.is_whole(&["--heads", &late], "heads kept elsewhere compared");
    home.stop();
    fs::remove_dir_all(&data).expect("removed");
    copy(&kept, &data);
    home.start(&[]);
    home.is_whole(&[], "1 sessions whole");
    home.is_whole(&["--heads", &early], "1 sessions whole");
    home.finds(&["--heads", &late], "older copy");
    // Heads of nobody prove nothing.
    let other = home.dir.path().join("other");
    fs::write(&other, fs::read_to_string(&late).expect("heads").replace(" db=", " db=0")).expect("written");
    home.finds(&["--heads", &other.display().to_string()], "no head of the database");
}

#[test]
fn retention_leaves_checkpoints_and_sessions_that_run() {
    let mut home = Home::new(&[]);
    home.session();
    home.session();
    let heads = home.heads("heads");
    let old = home.journals();
    let kept = fs::read(&old[0]).expect("a journal");
    home.stop();
    home.start(&["--keep-bytes", "1", "--grace", "0"]);
    let mut running = Session::open(&home);
    eventually("the old sessions are removed", || old.iter().all(|journal| !journal.exists()));
    home.is_whole(&["--heads", &heads], "2 sessions with 8 calls removed by retention");
    assert_eq!(home.journals().len(), 1, "the one that runs stays");
    let db = rusqlite::Connection::open(home.data().join("audit.db")).expect("the database");
    let count = |table: &str| {
        db.query_row(&format!("SELECT count(*) FROM {table}"), [], |row| row.get::<_, i64>(0)).expect(table)
    };
    let counted = ["sessions", "tool_calls", "session_bounds"].map(count);
    assert_eq!(counted, [1, 4, 1]);
    drop(db);

    // A removed session's journal that comes back is not taken in again; a head that says more than its checkpoint is
    // found.
    fs::write(&old[0], kept).expect("written");
    running.send(r#"{"jsonrpc":"2.0","id":9,"method":"ping"}"#);
    home.stop();
    home.start(&[]);
    home.is_whole(&["--heads", &heads], "2 sessions with 8 calls removed by retention");
    let longer = fs::read_to_string(&heads).expect("heads").replacen("lines=1", "lines=91", 1);
    assert!(longer.contains("lines=91"));
    fs::write(&heads, longer).expect("written");
    home.finds(&["--heads", &heads], "the checkpoint has");
    running.end();
    home.is_whole(&[], "1 sessions whole");
}
