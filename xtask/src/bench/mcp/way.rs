//! One way to reach the echo server, and a running one of it.

use super::{PATIENCE, request};
use crate::bench::figures::Spread;
use crate::report::quietly;
use anyhow::{Context, Result, bail};
use rustix::process::{Pid, Signal, kill_process};
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

/// A command to measure.
#[derive(Debug, Clone)]
pub(super) struct Way {
    /// What it is called.
    pub(super) name: &'static str,
    /// It gets so many times fewer calls, or the run would take hours.
    pub(super) slower: usize,
    words: Vec<String>,
}

impl Way {
    pub(super) fn new(name: &'static str, words: &[&str], slower: usize) -> Self {
        Self { name, slower, words: words.iter().map(|word| (*word).to_owned()).collect() }
    }

    /// The same with another database beside its own.
    pub(super) fn with_database(&self, name: &str) -> Self {
        let mut way = self.clone();
        let named = way.words.iter().position(|word| word == "--db").and_then(|at| way.words.get_mut(at + 1));
        if let Some(db) = named {
            *db = Path::new(db.as_str()).with_file_name(name).display().to_string();
        }
        way
    }
}

impl Way {
    fn database(&self) -> Option<&String> {
        let named = self.words.iter().position(|word| word == "--db");
        named.and_then(|at| self.words.get(at + 1))
    }

    /// Waits until the auditor of its database answers, which its first session started; a way without one has none.
    pub(super) fn await_auditor(&self) -> Result<()> {
        let (Some(db), Some(program)) = (self.database(), self.words.first()) else { return Ok(()) };
        quietly(Command::new(program).args(["stats", "--json", "--db"]).arg(db)).map(drop)
    }

    /// Ends the auditor that its session started: the one process whose arguments name its database.
    pub(super) fn end_auditor(&self) -> Result<()> {
        let db = self.database().context("it has no database")?;
        for entry in fs::read_dir("/proc").context("cannot list processes")?.flatten() {
            let arguments = fs::read(entry.path().join("cmdline")).unwrap_or_default();
            let mut words = arguments.split(|byte| *byte == 0);
            let is_auditor = words.nth(1) == Some(b"auditor") && words.any(|word| word == db.as_bytes());
            let pid = entry.file_name().to_string_lossy().parse().ok().and_then(Pid::from_raw);
            if let (true, Some(pid)) = (is_auditor, pid) {
                kill_process(pid, Signal::KILL).context("cannot end the auditor")?;
                // Its lock goes with it.
                let until = Instant::now() + PATIENCE;
                while entry.path().join("exe").exists() && Instant::now() < until {
                    std::thread::sleep(Duration::from_millis(1));
                }
            }
        }
        Ok(())
    }
}

/// A running way, its session begun.
#[derive(Debug)]
pub(super) struct Peer {
    name: &'static str,
    child: Child,
    stdin: ChildStdin,
    stdout: BufReader<ChildStdout>,
    line: String,
    next: usize,
}

impl Peer {
    /// Starts it and waits for the answer to `initialize`.
    pub(super) fn start(way: &Way) -> Result<Self> {
        let [program, arguments @ ..] = way.words.as_slice() else { bail!("nothing to start") };
        let mut command = Command::new(program);
        command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = command.spawn().with_context(|| format!("cannot start {program}"))?;
        let stdin = child.stdin.take().context("no standard input")?;
        let stdout = BufReader::with_capacity(1 << 16, child.stdout.take().context("no standard output")?);
        let mut peer = Self { name: way.name, child, stdin, stdout, line: String::new(), next: 1 };
        let hello = r#"{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-06-18","capabilities":{},"clientInfo":{"name":"bench","version":"1"}}}"#;
        peer.stdin.write_all(format!("{hello}\n").as_bytes())?;
        peer.answer()?;
        peer.stdin.write_all(b"{\"jsonrpc\":\"2.0\",\"method\":\"notifications/initialized\"}\n")?;
        Ok(peer)
    }

    /// The interceptor's or server's process.
    pub(super) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// One call and its answer.
    pub(super) fn call(&mut self) -> Result<()> {
        let text = request(self.next);
        self.next += 1;
        self.stdin.write_all(text.as_bytes())?;
        self.answer()
    }

    /// One turn of calls, each waiting for the one before.
    pub(super) fn turn(&mut self, calls: usize) -> Result<Spread> {
        let mut took = Vec::with_capacity(calls);
        for request in self.requests(calls) {
            let begin = Instant::now();
            self.stdin.write_all(request.as_bytes())?;
            self.answer()?;
            took.push(begin.elapsed());
        }
        Ok(Spread::of(took))
    }

    /// The next so many requests.
    pub(super) fn requests(&mut self, calls: usize) -> Vec<String> {
        let requests = (self.next..self.next + calls).map(request).collect();
        self.next += calls;
        requests
    }

    /// Many calls, none waiting for another; each is written by itself.
    pub(super) fn burst(&mut self, requests: &[String]) -> Result<()> {
        let (stdin, stdout, line, name) = (&mut self.stdin, &mut self.stdout, &mut self.line, self.name);
        std::thread::scope(|scope| {
            let writing =
                scope.spawn(move || requests.iter().try_for_each(|text| stdin.write_all(text.as_bytes())));
            for _ in requests {
                read(stdout, line, name)?;
            }
            writing.join().map_err(|_| anyhow::anyhow!("the writer panicked"))??;
            Ok(())
        })
    }

    fn answer(&mut self) -> Result<()> {
        read(&mut self.stdout, &mut self.line, self.name)
    }

    /// Closes its input and waits for its end.
    pub(super) fn end(mut self) -> Result<()> {
        drop(self.stdin);
        self.child.wait().context("cannot wait for the server's end")?;
        Ok(())
    }
}

fn read(stdout: &mut BufReader<ChildStdout>, line: &mut String, name: &str) -> Result<()> {
    loop {
        line.clear();
        if stdout.read_line(line)? == 0 {
            bail!("{name} ended without an answer");
        }
        if line.contains("\"result\"") {
            return Ok(());
        }
        // Proxies may send notifications of their own; an error is one that would go unnoticed.
        if line.contains("\"error\"") {
            bail!("{name} answered with an error: {line}");
        }
    }
}
