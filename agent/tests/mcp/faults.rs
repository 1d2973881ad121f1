//! What breaks around a session: the disk, the database, the server's command, the port.

use crate::support::{Client, Home, answered, call, eventually, kill_auditors, verified};
use rustix::process::{Pid, Resource, Rlimit, prlimit};
use serde_json::Value;
use std::{fs, net::TcpListener, os::unix::fs::PermissionsExt, process::Command};

/// Limits how long a file the interceptor may write: for it, the disk is full there.
fn limit(client: &Client, bytes: Option<u64>) {
    let pid = Pid::from_raw(client.pid());
    prlimit(pid, Resource::Fsize, Rlimit { current: bytes, maximum: None }).expect("a limit");
}

fn journal_size(home: &Home) -> u64 {
    let journals = fs::read_dir(home.path("audit.db.journals")).expect("journals").flatten();
    let journals = journals.filter(|file| file.path().extension().is_some_and(|kind| kind == "journal"));
    journals.map(|journal| journal.metadata().expect("a file").len()).sum()
}

#[test]
fn a_full_disk_stops_calls_until_there_is_room() {
    let (home, mut client) = Home::with_client(&[], &[]);
    client.works("1");
    // No byte more; and a part of an entry.
    for (id, room) in [("2", 0), ("3", 100)] {
        eventually("the answer is on record", || (home.journal().len() >= 3).then_some(()));
        limit(&client, Some(journal_size(&home) + room));
        client.call(id, "read_it");
        let answer: Value = serde_json::from_str(&client.out.line()).expect("JSON");
        assert_eq!(
            (answer["id"].to_string().as_str(), &answer["result"]["isError"]),
            (id, &Value::Bool(true))
        );
        let text = answer["result"]["content"][0]["text"].as_str().expect("text");
        assert!(
            text.contains("could not record the call of \"read_it\"") && text.contains("Free the disk"),
            "{text}"
        );
        limit(&client, None);
    }
    client.works("4");
    assert!(client.end().success());
    let received = String::from_utf8(home.received()).expect("text");
    assert_eq!(received, call("1", "read_it") + &call("4", "read_it"), "what is not on record is not run");
    assert_eq!(home.calls(&[]).len(), 2);
    assert!(verified(&home, 1), "nothing torn stayed in the journal");
}

#[test]
fn a_full_disk_is_warned_about_on_every_call_where_that_was_asked_for() {
    let (home, mut client) = Home::with_client(&["--on-audit-failure", "allow"], &[]);
    client.works("1");
    eventually("the answer is on record", || (home.journal().len() >= 3).then_some(()));
    limit(&client, Some(journal_size(&home)));
    client.works("2");
    client.works("3");
    limit(&client, None);
    client.works("4");
    assert!(client.end().success());
    let said = client.errors.rest();
    assert_eq!(said.matches("the call of \"read_it\" is not on record: ").count(), 2, "{said}");
    assert_eq!(home.calls(&[]).len(), 2);
    assert!(verified(&home, 1));
}

#[test]
fn an_approved_call_that_cannot_be_recorded_is_not_run() {
    let home = Home::new();
    let mut client = crate::approvals::apart(&home, &[]);
    client.call("1", "delete_it");
    let id = crate::approvals::waiting(&home);
    let interceptor = crate::support::descendants(client.pid())[0];
    let full = Rlimit { current: Some(journal_size(&home)), maximum: None };
    prlimit(Pid::from_raw(interceptor), Resource::Fsize, full).expect("a limit");
    crate::approvals::decide(&home, "approve", &id).expect("approved");
    let answer = client.out.line();
    assert!(answer.contains("could not record") && answer.contains("\"isError\":true"), "{answer}");
    let free = Rlimit { current: None, maximum: None };
    prlimit(Pid::from_raw(interceptor), Resource::Fsize, free).expect("a limit");
    client.works("2");
    assert!(client.end().success());
    assert!(!String::from_utf8(home.received()).expect("text").contains("delete_it"));
}

/// Databases that nothing can be recorded in, whoever runs the tests, and what is said of them.
fn unusable(home: &Home) -> Vec<(String, &'static str)> {
    fs::write(home.path("notes.db"), "these are my notes").expect("written");
    fs::create_dir(home.path("folder.db")).expect("a folder");
    let mut cases = vec![
        (home.text("notes.db"), "it is no SQLite database"),
        (home.text("folder.db"), "it is no SQLite database"),
        ("/proc/audit.db".to_owned(), "cannot make the directory /proc/audit.db.journals"),
    ];
    // Root reads and writes what it likes.
    if !rustix::process::geteuid().is_root() {
        for (name, mode, what) in
            [("read-only.db", 0o400, "cannot write"), ("hidden.db", 0o000, "cannot read")]
        {
            fs::write(home.path(name), "").expect("written");
            fs::set_permissions(home.path(name), fs::Permissions::from_mode(mode)).expect("a mode");
            cases.push((home.text(name), what));
        }
    }
    cases
}

#[test]
fn a_database_that_cannot_be_used_is_refused_to_the_client() {
    let home = Home::new();
    for (db, why) in unusable(&home) {
        let mut client = Client::start(home.ringfence(&["mcp", "--db", &db, "--port", "0", "--"]).arg("cat"));
        client.send("{\"jsonrpc\":\"2.0\",\"id\":\"a\",\"method\":\"initialize\",\"params\":{}}\n");
        let answer: Value = serde_json::from_str(&client.out.line()).expect("JSON");
        let message = answer["error"]["message"].as_str().expect("a message");
        assert!(answer["id"] == "a" && message.contains(why) && message.contains(&db), "{message}");
        assert!(message.contains("--on-audit-failure allow"), "it says what to do: {message}");
        assert_eq!(client.wait().code(), Some(1));
        assert!(client.errors.rest().contains(why));
    }
    let notes = fs::read_to_string(home.path("notes.db")).expect("the notes");
    assert_eq!(notes, "these are my notes", "nobody touched it");
}

#[test]
fn a_database_that_cannot_be_used_is_warned_about_on_every_call_where_that_was_asked_for() {
    let home = Home::new();
    for (db, why) in unusable(&home) {
        let received = home.text("received.log");
        let arguments = ["mcp", "--db", &db, "--port", "0", "--on-audit-failure", "allow", "--", "python3"];
        let mut client = Client::start(home.ringfence(&arguments).args([crate::support::SERVER, &received]));
        for id in ["1", "2", "3"] {
            client.works(id);
        }
        assert!(client.end().success());
        let said = client.errors.rest();
        let warnings =
            said.lines().filter(|line| line.contains("the call of \"read_it\" is not in the database"));
        assert_eq!(warnings.filter(|line| line.contains(why)).count(), 3, "{said}");
    }
}

#[test]
fn a_server_that_cannot_be_started_is_told_to_the_client() {
    let home = Home::new();
    fs::write(home.path("plain"), "no program").expect("written");
    // By another process: a child of another test, forked while we write, would keep the file busy.
    let script = "printf '#!/no/such/interpreter\\n' > \"$0\" && chmod 755 \"$0\"";
    assert!(Command::new("sh").args(["-c", script, &home.text("broken")]).status().expect("sh").success());
    let cases = [
        ("no-such-server-anywhere".to_owned(), 127),
        (home.text("missing"), 127),
        (home.text("broken"), 127),
        (home.text("plain"), 126),
        (home.text(""), 126),
    ];
    for (program, status) in cases {
        let mut client = Client::start(home.interceptor(&["--"]).arg(&program));
        client.send("{\"jsonrpc\":\"2.0\",\"method\":\"notifications/x\"}\n{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"initialize\"}\n");
        let answer: Value = serde_json::from_str(&client.out.line()).expect("JSON");
        let message = answer["error"]["message"].as_str().expect("a message");
        assert_eq!((&answer["id"], &answer["error"]["code"]), (&1.into(), &(-32603).into()));
        assert!(message.contains("cannot start the MCP server") && message.contains(&program), "{message}");
        assert_eq!(client.wait().code(), Some(status), "{program}");
        assert!(client.errors.rest().contains(&program));
    }
    // A client that only closes its end is not waited for.
    let mut silent = Client::start(home.interceptor(&["--"]).arg("no-such-server-anywhere"));
    assert_eq!(silent.end().code(), Some(127));
    eventually("they are sessions too", || {
        let sessions = home.output(&["mcp", "sessions", "--json", "--db", &home.text("audit.db")]);
        (sessions.lines().count() == 6).then_some(())
    });
}

#[test]
fn a_port_in_use_is_shared_or_exchanged_and_that_is_said() {
    let home = Home::new();
    // Beside the port it holds, so that the next one is free at least for us.
    let taken = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = taken.local_addr().expect("an address").port();
    let start = |port: u16| {
        let db = home.text("audit.db");
        let arguments = ["mcp", "--db", &db, "--port", &port.to_string(), "--", "cat"];
        let mut client = Client::start(&mut home.ringfence(&arguments));
        client.send("{\"id\":1,\"method\":\"ping\"}\n");
        client.out.line();
        client
    };
    let mut first = start(port);
    let said = |client: &Client| {
        eventually("a notice", || {
            let said = client.errors.so_far();
            let (_, rest) = said.split_once("the dashboard is on port ")?;
            rest.split(',').next()?.parse::<u16>().ok()
        })
    };
    let other = said(&first);
    assert_ne!(other, port, "somebody else has that");
    let mut second = start(other.wrapping_add(1));
    assert_eq!(said(&second), other, "the first one's is shared");
    let mut third = start(other);
    assert!(first.end().success() && second.end().success() && third.end().success());
    assert_eq!(third.errors.rest(), "", "it has what it asked for");
    assert_eq!(home.auditors().len(), 1);
}

#[test]
fn rows_are_committed_when_the_interceptor_ends() {
    let (home, mut client) = Home::with_client(&[], &[]);
    for id in 0..50 {
        client.works(&id.to_string());
    }
    assert!(client.end().success());
    kill_auditors(&home);
    let rows = home.calls(&[]);
    assert_eq!(rows.len(), 50);
    assert!(rows.iter().all(|row| row["responded_at"].is_string()));
    assert_eq!(rows[0]["id"].as_str().map(str::len), Some(36));
    assert_eq!(answered("0"), "{\"jsonrpc\":\"2.0\",\"id\":0,\"result\":{}}\n");
}
