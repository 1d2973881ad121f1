//! What is left after many calls: the interceptor's memory, the rows, and how fast the newest are shown.

use super::PATIENCE;
use super::way::{Peer, Way};
use crate::bench::figures::{Spread, Table, median};
use crate::report::{quietly, say, step};
use anyhow::{Context, Result, bail};
use serde_json::Value;
use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Instant;

/// Calls of the long session.
const LONG: usize = 100_000;
/// Calls that go at once in it, and after how many of those memory is looked at first.
const CHUNK: usize = 1000;
const WARM: usize = 10;

/// A long session: memory at its start and end, and whether every call has its row.
pub(super) fn long(ringfence: &Path, ways: &[Way], dir: &Path, table: &mut Table) -> Result<()> {
    say(&format!("memory and rows: {LONG} calls in one session"));
    let name = "long.db";
    let way = ways.iter().find(|way| way.name == "ringfence").context("no way is ringfence's")?;
    let mut peer = Peer::start(&way.with_database(name))?;
    let mut early = 0.0;
    for chunk in 0..LONG / CHUNK {
        let requests = peer.requests(CHUNK);
        peer.burst(&requests)?;
        if chunk + 1 == WARM {
            early = memory(peer.pid())?;
        }
    }
    let late = memory(peer.pid())?;
    peer.end()?;
    let stats =
        quietly(Command::new(ringfence).args(["mcp", "stats", "--json", "--db"]).arg(dir.join(name)))?;
    let stats: Value = serde_json::from_str(&stats).context("`ringfence mcp stats --json` gave no JSON")?;
    let rows = stats["total_calls"].as_u64().context("no total")?;
    if rows != LONG as u64 {
        bail!("{LONG} calls went through, and the database has {rows}");
    }
    table.add(&format!("interceptor's memory after {} calls, MiB", WARM * CHUNK), "ringfence", early);
    table.add(&format!("interceptor's memory after {LONG} calls, MiB"), "ringfence", late);
    table.aim(&format!("interceptor's memory after {LONG} calls, MiB"), "ringfence", "flat");
    table.add(&format!("rows of {LONG} calls when the session ended"), "ringfence", rows as f64);
    Ok(())
}

/// Resident memory, MiB.
fn memory(pid: u32) -> Result<f64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).context("the interceptor is gone")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).context("no VmRSS")?;
    let kib: f64 = line.trim().trim_end_matches(" kB").parse().context("no number")?;
    Ok(kib / 1024.0)
}

/// Fills a database that an auditor made. Python has SQLite; xtask has not.
const FILL: &str = r#"
import sqlite3, sys, time, uuid
db = sqlite3.connect(sys.argv[1])
db.execute("PRAGMA synchronous = OFF")
base = int(time.time()) - 1000000  # a second apart, none too old to be kept
at = lambda n: time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(base + n)) + ".000000Z"
sessions = [str(uuid.uuid4()) for _ in range(100)]
db.executemany("INSERT INTO sessions (id, server_name, server_command, started_at, ended_at) VALUES (?, 'echo', 'echo', ?, ?)",
               [(s, at(n * 10000), at(n * 10000)) for n, s in enumerate(sessions)])
def rows(kind):
    for n in range(1000000):
        id, session = "%08x-0000-4000-8000-000000000000" % n, sessions[n // 10000]
        if kind == "messages":
            yield (id, session, "client_to_server", at(n), str(n), "tools/call", '{"name":"get_echo"}', '{"jsonrpc":"2.0"}')
        else:
            yield (id, session, id, "get_echo", '{"text":"hello"}', '{"content":[]}', "read", n % 101, "[]", at(n), "pass", "[]")
db.executemany("INSERT INTO messages (id, session_id, direction, timestamp, jsonrpc_id, method, params, raw) VALUES (?, ?, ?, ?, ?, ?, ?, ?)", rows("messages"))
db.executemany("INSERT INTO tool_calls (id, session_id, request_msg_id, tool_name, arguments, result, operation_type, risk_score, risk_reasons, requested_at, policy_action, rules) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", rows("calls"))
db.commit()
"#;

/// The newest 100 of a million calls, as the dashboard asks for them.
pub(super) fn list(ringfence: &Path, dir: &Path, table: &mut Table) -> Result<()> {
    let db = dir.join("million.db");
    let mut auditor = Auditor::start(ringfence, &db)?;
    auditor.link(ringfence, &db)?;
    auditor.end()?;
    step("filling a database with a million calls", || {
        quietly(Command::new("python3").args(["-c", FILL]).arg(&db))
    })?;
    let mut auditor = Auditor::start(ringfence, &db)?;
    let (address, token) = auditor.link(ringfence, &db)?;
    let (mut whole, mut risky) = (Vec::new(), Vec::new());
    for _ in 0..60 {
        whole.push(ask(&address, &token, "/api/tool-calls?limit=100")?);
        risky.push(ask(&address, &token, "/api/tool-calls?limit=100&risk=90")?);
    }
    auditor.end()?;
    let row = "newest 100 of a million calls over REST, p50, ms";
    table.add(row, "ringfence", median(whole.iter().map(|time| time.as_secs_f64() * 1e3)));
    table.aim(row, "ringfence", "below 5");
    table.add("the same, p99, ms", "ringfence", Spread::of(whole).p99);
    table.add("newest 100 of score 90 and more, p50, ms", "ringfence", Spread::of(risky).p50);
    Ok(())
}

/// A whole request on a connection of its own.
fn ask(address: &str, token: &str, path: &str) -> Result<std::time::Duration> {
    let begin = Instant::now();
    let mut stream = TcpStream::connect(address).context("the dashboard does not listen")?;
    write!(
        stream,
        "GET {path} HTTP/1.1\r\nHost: {address}\r\nAuthorization: Bearer {token}\r\nConnection: close\r\n\r\n"
    )?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    let took = begin.elapsed();
    let rows = answer.matches("\"tool_name\"").count();
    if !answer.starts_with("HTTP/1.1 200") || rows != 100 {
        bail!("{path} gave {rows} rows: {}", answer.lines().next().unwrap_or_default());
    }
    Ok(took)
}

struct Auditor(Child);

impl Auditor {
    fn start(ringfence: &Path, db: &Path) -> Result<Self> {
        let mut command = Command::new(ringfence);
        command.args(["auditor", "--user", "--port", "0", "--db"]).arg(db);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        Ok(Self(command.spawn().context("cannot start the auditor")?))
    }

    /// Address and token of its dashboard, once it is there.
    fn link(&mut self, ringfence: &Path, db: &Path) -> Result<(String, String)> {
        let until = Instant::now() + PATIENCE;
        while Instant::now() < until {
            if let Some(status) = self.0.try_wait()? {
                bail!("the auditor ended with {status}");
            }
            let said = Command::new(ringfence).args(["dashboard", "--db"]).arg(db).output()?;
            let said = String::from_utf8_lossy(&said.stdout).into_owned();
            if let Some((address, token)) =
                said.trim().strip_prefix("http://").and_then(|rest| rest.split_once("/#token="))
            {
                return Ok((address.to_owned(), token.to_owned()));
            }
            std::thread::sleep(std::time::Duration::from_millis(50));
        }
        bail!("the auditor has no dashboard");
    }

    fn end(&mut self) -> Result<()> {
        self.0.kill().context("cannot end the auditor")?;
        self.0.wait().context("cannot wait for the auditor")?;
        Ok(())
    }
}

impl Drop for Auditor {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
