//! Several users and one auditor: each sees and decides its own, and nobody's agent decides for itself.
//!
//! Other users' processes need root to start; without it, those parts say that they were left out.

use crate::{
    auditor_support::{Core, PATIENCE, denied, manifest, uid},
    support::{Home, eventually},
};
use ringfence_wire::{
    conn::Conn,
    mcp::{McpReply, McpRequest},
};
use serde_json::Value;
use std::{
    os::unix::{fs::PermissionsExt, process::CommandExt},
    process::{Command, Output},
    sync::atomic::Ordering,
};

/// Whoever it is, it is not the user that runs the tests.
const STRANGER: u32 = 54_321;

fn said(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

/// A command whose parent is the first process, so that it descends from nobody here.
fn detached(home: &Home, arguments: &[&str]) -> (bool, String) {
    let out = home.path("detached");
    let _ = std::fs::remove_file(&out);
    let line = arguments.iter().map(|word| format!("'{word}'")).collect::<Vec<_>>().join(" ");
    let script = format!(
        "( ( exec </dev/null; sleep 0.05; while [ \"$(cut -d' ' -f4 /proc/self/stat)\" = $$ ]; do sleep 0.01; done; \
         {} {line} >{out}.part 2>&1; echo \"status $?\" >>{out}.part; mv {out}.part {out} ) & )",
        env!("CARGO_BIN_EXE_ringfence"),
        out = out.display()
    );
    let mut shell = Command::new("sh");
    shell.args(["-c", &script]).env("HOME", home.path("")).env("RINGFENCE_RUNTIME_DIR", home.runtime());
    assert!(shell.status().expect("sh").success());
    let text = eventually("the command has ended", || std::fs::read_to_string(&out).ok());
    (text.contains("status 0\n"), text)
}

#[test]
fn a_governed_process_and_the_clients_own_approve_nothing() {
    let mut home = Home::new();
    let mut session = home.session("files", &[]);
    session.call("delete_thing", "{}");
    let call = home.waiting();
    // This process is the client; what it starts descends from it.
    let own = home.ringfence(&["approvals", "approve", &call]).output().expect("ringfence approvals approve");
    assert!(!own.status.success() && said(&own).contains("does not approve its own calls"), "{}", said(&own));
    home.core().governed.store(true, Ordering::SeqCst);
    for arguments in
        [&["approvals", "approve", call.as_str()][..], &["approvals", "deny", &call], &["dashboard"]]
    {
        let (worked, text) = detached(&home, arguments);
        assert!(!worked && text.contains("belongs to a container"), "{arguments:?}: {text}");
        assert!(!text.contains("token="), "{text}");
    }
    let mut confirms = Conn::connect(&home.runtime().join("mcp.sock"), PATIENCE).expect("connects");
    let change = McpRequest::ConfirmRules { path: "/r".into(), sha256: "0".into() };
    confirms.send(&change).expect("sent");
    assert!(
        matches!(confirms.receive::<McpReply>(), Ok(McpReply::Failed(why)) if why.error.contains("container"))
    );
    home.core().governed.store(false, Ordering::SeqCst);
    assert_eq!(home.waiting(), call, "refusals decide nothing");
    let (worked, text) = detached(&home, &["approvals", "approve", &call]);
    assert!(worked, "the control: {text}");
    assert!(session.line().contains(r#""result""#));
    session.end();
    let (well, log) = home.core().stop();
    assert!(well, "{log}");
    for (what, times) in
        [("a decision", 3), ("the dashboard's token", 1), ("a confirmation of changed rules", 1)]
    {
        let refused = |line: &&str| line.contains(what) && line.contains(" is refused to process ");
        let found = log.lines().filter(refused).filter(|line| line.contains(&format!("of user {}", uid())));
        assert_eq!(found.count(), times, "{what}: {log}");
    }
}

#[test]
fn another_users_sessions_and_calls_are_not_there() {
    if crate::auditor_support::uid() != 0 {
        eprintln!("left out: starting processes of another user needs root");
        return;
    }
    let home = Home::new();
    std::fs::set_permissions(home.path(""), PermissionsExt::from_mode(0o777)).expect("chmod");
    let as_stranger = |arguments: &[&str]| {
        let mut command = home.ringfence(arguments);
        command.uid(STRANGER).gid(STRANGER).env("HOME", home.path("stranger"));
        command.output().expect("ringfence")
    };
    let mut session = home.session("files", &[]);
    session.call("delete_thing", "{}");
    let call = home.waiting();
    let refused = as_stranger(&["approvals", "approve", &call]);
    assert!(!refused.status.success() && said(&refused).contains("is of uid 0"), "{}", said(&refused));
    for question in
        [&["approvals", "--json"][..], &["mcp", "calls", "--json"], &["mcp", "sessions", "--json"]]
    {
        let answer = as_stranger(question);
        assert!(answer.status.success() && answer.stdout.is_empty(), "{question:?}: {}", said(&answer));
    }
    let link = String::from_utf8(as_stranger(&["dashboard"]).stdout).expect("a link");
    let token = link.trim().split_once("#token=").expect("a token").1.to_owned();
    assert_ne!(token, home.token, "a link is one user's");
    let ask = |method: &str, path: &str| {
        let (host, bearer) = (format!("127.0.0.1:{}", home.port), format!("Bearer {token}"));
        let headers =
            [("Host", host.as_str()), ("Authorization", &bearer), ("Content-Type", "application/json")];
        home.raw(method, path, &headers, if method == "POST" { "{}" } else { "" })
    };
    for path in
        ["/api/tool-calls", "/api/sessions", "/api/intents", "/api/waiting", "/api/tool-calls/flagged"]
    {
        assert_eq!(ask("GET", path).json(), Value::Array(Vec::new()), "{path}");
        assert_ne!(home.json(path), Value::Array(Vec::new()), "{path}: the control");
    }
    assert_eq!(ask("GET", "/api/stats").json()["total_calls"], 0);
    assert_eq!(ask("GET", &format!("/api/tool-calls/{call}")).status, 404);
    assert_eq!(ask("POST", &format!("/api/tool-calls/{call}/approve")).status, 404);
    assert_eq!(ask("GET", "/metrics").status, 403);
    assert_eq!(home.waiting(), call);
    assert_eq!(home.ask("POST", &format!("/api/tool-calls/{call}/deny"), Some("{}")).status, 200);
    session.line();
    session.end();
}

#[test]
fn a_session_goes_on_when_its_auditor_is_killed_and_loses_nothing() {
    let mut home = Home::new();
    let mut session = home.session("files", &[]);
    session.call("read_file", r#"{"path":"/before"}"#);
    session.line();
    home.core().kill();
    session.call("read_file", r#"{"path":"/meanwhile"}"#);
    session.line();
    home.core().spawn();
    home.core().settle_hello();
    session.call("read_file", r#"{"path":"/after"}"#);
    session.line();
    session.end();
    let listed = home.ringfence(&["mcp", "calls", "--json"]).output().expect("ringfence mcp calls");
    let text = said(&listed);
    for path in ["/before", "/meanwhile", "/after"] {
        assert_eq!(text.matches(path).count(), 1, "{text}");
    }
}

#[test]
fn what_a_killed_interceptor_left_is_offered_by_whoever_comes_next() {
    let mut home = Home::new();
    home.core().kill();
    let mut session = home.session("files", &[]);
    session.call("read_file", r#"{"path":"/left"}"#);
    session.line();
    session.kill();
    home.core().spawn();
    home.core().settle_hello();
    // Its link, which was in the socket's queue, is the new auditor's first guest: while it is being seen off, the journal
    // counts as its own.
    eventually("the session is on record, with its end", || {
        let listed = home.ringfence(&["mcp", "sessions", "--json"]).output().expect("ringfence mcp sessions");
        let row: Value = serde_json::from_slice(&listed.stdout).ok()?;
        (row["ended_at"].is_string() && row["calls"] == 1).then_some(())
    });
    // And by an interceptor, without anybody asking.
    home.core().kill();
    let mut second = home.session("other", &[]);
    second.call("read_file", r#"{"path":"/second"}"#);
    second.line();
    second.kill();
    home.core().spawn();
    home.core().settle_hello();
    home.reopen_dashboard();
    let third = home.session("third", &[]);
    eventually("the second session is there", || {
        let rows = home.json("/api/sessions");
        rows.as_array().filter(|rows| rows.len() == 3).map(drop)
    });
    third.end();
}

#[test]
fn one_user_links_so_many_sessions_and_is_counted() {
    if crate::auditor_support::uid() != 0 {
        eprintln!("left out: root's own limit is higher than what a test should start");
        return;
    }
    let core = Core::start();
    core.settle_hello();
    let status = core.status();
    assert_eq!((status.mcp.sessions, status.mcp.waiting), (0, 0));
    assert_ne!(status.mcp.dashboard, 0);
    let socket = core.dir.path().join("mcp.sock");
    // Connections that say nothing: of a stranger, so that the stranger's bound holds.
    let mut holder = Command::new("python3");
    let script = "import socket,sys\nheld=[]\nfor n in range(140):\n s=socket.socket(socket.AF_UNIX);s.connect(sys.argv[1]);held.append(s)\nsys.stdin.read()";
    holder.args(["-c", script]).arg(&socket).uid(STRANGER).gid(STRANGER);
    let mut holder = holder.stdin(std::process::Stdio::piped()).spawn().expect("python3");
    eventually("the bound is reached", || {
        let mcp = core.status().mcp;
        (mcp.connections == 96 && mcp.turned_away == 44).then_some(())
    });
    // Others are served meanwhile.
    let (_, _, worked) = core.run(&["mcp", "sessions", "--json"]);
    assert!(worked);
    // Its input ends.
    holder.wait().expect("an end");
    eventually("the places are free again", || (core.status().mcp.connections == 0).then_some(()));
}

#[test]
fn a_core_that_was_silent_for_a_while_is_asked_again() {
    let mut home = Home::new();
    let mut session = home.session("files", &[]);
    session.call("delete_thing", "{}");
    let call = home.waiting();
    home.core().silent.store(true, Ordering::SeqCst);
    let (worked, text) = detached(&home, &["approvals", "approve", &call]);
    assert!(!worked && text.contains("the daemon does not answer"), "{text}");
    home.core().silent.store(false, Ordering::SeqCst);
    let (worked, text) = detached(&home, &["approvals", "approve", &call]);
    assert!(worked, "one question without an answer is not the end of all: {text}");
    assert!(session.line().contains(r#""result""#));
    session.end();
}

#[test]
fn a_broken_line_about_peers_is_opened_again() {
    let mut home = Home::new();
    let mut session = home.session("files", &[]);
    session.call("delete_thing", "{}");
    home.waiting();
    // What was sent before is not lost by it.
    home.core().announce(manifest(0x1005, "0123456789ab", "coder", uid()));
    home.core().records((0..500).map(|n| denied(&format!("/etc/{n}"))));
    let (well, log) = home.core().break_peers();
    assert!(!well && log.contains("questions about peers broke"), "{log}");
    home.core().spawn();
    home.core().settle();
    home.reopen_dashboard();
    let call = home.waiting();
    let (worked, text) = detached(&home, &["approvals", "approve", &call]);
    assert!(worked, "{text}");
    assert!(session.line().contains(r#""result""#));
    session.end();
}

#[test]
fn what_the_dashboard_refuses_is_on_record_with_whose_it_was_and_fills_no_log() {
    let mut home = Home::new();
    let host = format!("127.0.0.1:{}", home.port);
    let get = |path: &str, headers: &[(&str, &str)]| home.raw("GET", path, headers, "").status;
    let bearer = format!("Bearer {}", home.token);
    let good = [("Host", host.as_str()), ("Authorization", bearer.as_str())];
    assert_eq!(get("/api/stats", &good), 200, "the control");
    assert_eq!(get("/api/stats", &[("Host", &host)]), 401);
    assert_eq!(get("/api/stats?token=secret", &[("Host", "evil.example")]), 403);
    assert_eq!(get("/api/rules", &[good[0], good[1], ("Origin", "http://evil.example")]), 403);
    // More than may be strangers at once: the oldest go.
    let strangers: Vec<_> = (0..200).map(|_| home.connect()).collect();
    assert_eq!(get("/api/stats", &good), 200);
    for _ in 0..100 {
        assert_eq!(get("/api/stats", &[("Host", &host), ("Authorization", "Bearer none")]), 401);
    }
    drop(strangers);
    let token = home.token.clone();
    let (well, log) = home.core().stop();
    assert!(well, "{log}");
    let lines: Vec<_> = log.lines().filter(|line| line.contains("refused to")).collect();
    // A kernel without sock_diag names nobody, and then all are one.
    let own = format!("refused to user {}: ", uid());
    let who = |line: &str| line.contains(&own) || line.contains("refused to an unknown user: ");
    assert!(!lines.is_empty() && lines.iter().all(|line| who(line)), "{log}");
    let has = |words: &[&str]| lines.iter().any(|line| words.iter().all(|word| line.contains(word)));
    assert!(has(&["GET", "/api/stats", "needs the dashboard's token", "from 127.0.0.1:"]), "{log}");
    assert!(has(&["/api/stats", "answers only to 127.0.0.1"]), "{log}");
    assert!(has(&["/api/rules", "other origins"]), "{log}");
    assert!(has(&["a connection to the dashboard", "closed to make room for others"]), "{log}");
    assert!(!log.contains(&token) && !log.contains("secret"), "{log}");
    assert!(lines.len() <= 2 * 20, "{} lines for hundreds", lines.len());
}

/// Python that becomes each of these users in turn, opens so many connections as each, and waits for its input's end.
const AS_MANY: &str = "import os,socket,sys
path,first,users,each=sys.argv[1],*map(int,sys.argv[2:5])
held=[]
for uid in range(first,first+users):
 os.setresuid(uid,uid,0)
 for n in range(each):
  s=socket.socket(socket.AF_UNIX);s.connect(path);held.append(s)
 os.setresuid(0,0,0)
print('held',flush=True);sys.stdin.read()";

/// Somebody with many ids who holds connections to a socket.
struct Holder(std::process::Child);

impl Holder {
    fn start(socket: &std::path::Path, first: u32, users: u32, each: u32) -> Self {
        use std::io::BufRead;
        let mut python = Command::new("python3");
        python.args(["-c", AS_MANY]).arg(socket).args([first, users, each].map(|n| n.to_string()));
        let pipes = (std::process::Stdio::piped(), std::process::Stdio::piped());
        let mut child = python.stdin(pipes.0).stdout(pipes.1).spawn().expect("python3");
        let mut line = String::new();
        let out = child.stdout.take().expect("a pipe");
        std::io::BufReader::new(out).read_line(&mut line).expect("a word");
        assert_eq!(line, "held\n");
        Self(child)
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        let _ = self.0.wait();
    }
}

#[test]
fn a_user_with_many_ids_is_one_user() {
    if crate::auditor_support::uid() != 0 {
        eprintln!("left out: other users' processes need root");
        return;
    }
    let mut core = Core::idle();
    let range = ringfence_wire::audit::Subordinate { first: 200_000, count: 65_536, owner: STRANGER };
    core.subordinates.push(range);
    core.spawn();
    core.settle_hello();
    for (socket, users, each) in [("mcp.sock", 12, 60), ("query.sock", 16, 8)] {
        let path = core.dir.path().join(socket);
        let other = STRANGER + 1;
        let request = if socket == "mcp.sock" {
            r#"{"request":"sessions","limit":5}"#
        } else {
            r#"{"request":"status"}"#
        };
        let is_answered = |text: &str| text.contains("rows") || text.contains("database");
        let control = as_other(&path, other, request);
        assert!(is_answered(&control), "the control: {control}");
        let held = Holder::start(&path, 200_000, users, each);
        let served = as_other(&path, other, request);
        assert!(is_answered(&served), "{socket}: {served}");
        drop(held);
    }
    // By the count of the first socket: all ids together had one user's share.
    let turned_away = core.status().mcp.turned_away;
    assert!(turned_away >= 12 * 60 - 96, "{turned_away}");
}

/// What a socket answers another user.
fn as_other(socket: &std::path::Path, uid: u32, request: &str) -> String {
    let ask = "import socket,sys,struct
s=socket.socket(socket.AF_UNIX);s.connect(sys.argv[1]);q=sys.argv[2].encode()
try: s.sendall(struct.pack('>I',len(q))+q)
except OSError: pass
print(s.recv(1<<20).decode(errors='replace'))";
    let mut python = Command::new("python3");
    python.args(["-c", ask]).arg(socket).arg(request).uid(uid).gid(uid);
    String::from_utf8_lossy(&python.output().expect("python3").stdout).into_owned()
}
