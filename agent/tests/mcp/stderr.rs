//! What a server says on standard error: shown, on record, and shown again to whoever asks.

use crate::support::{Client, Home, answered, eventually, kill, verified};
use serde_json::Value;

/// Runs a script as the server, to its own end, however long that takes it: a server whose client is gone has little time. It
/// answers nothing.
fn ran(home: &Home, options: &[&str], script: &str) -> Client {
    let mut client = Client::start(home.interceptor(options).args(["--", "sh", "-c", script]));
    assert!(client.wait().success());
    client
}

/// The only session's row.
fn session(home: &Home) -> Value {
    let listed = home.output(&["mcp", "sessions", "--json", "--db", &home.text("audit.db")]);
    assert_eq!(listed.lines().count(), 1, "{listed}");
    serde_json::from_str(listed.trim()).expect("JSON")
}

/// What `ringfence mcp sessions --stderr` prints of the only session.
fn printed(home: &Home, options: &[&str]) -> String {
    let session = session(home);
    let beginning = &session["id"].as_str().expect("an id")[..8];
    let db = home.text("audit.db");
    home.output(&[&["mcp", "sessions", "--stderr", beginning, "--db", &db], options].concat())
}

/// Its pieces as JSON: the text, and how much was left out.
fn pieces(home: &Home) -> (String, u64) {
    let printed = printed(home, &["--json"]);
    let rows: Vec<Value> = printed.lines().map(|row| serde_json::from_str(row).expect("JSON")).collect();
    let text = rows.iter().map(|row| row["text"].as_str().expect("text")).collect();
    (text, rows.iter().map(|row| row["dropped"].as_u64().expect("a number")).sum())
}

#[test]
fn two_hundred_kilobytes_at_the_start_are_on_record_line_for_line() {
    let expected = ("x".repeat(79) + "\n").repeat(2560);
    let (home, mut client) = Home::with_client(&[], &["stderr"]);
    client.works("1");
    assert!(client.end().success());
    assert_eq!(client.errors.rest(), expected, "the client sees it");
    let (text, dropped) = pieces(&home);
    assert!(text == expected && dropped == 0, "{} bytes, {dropped} dropped", text.len());
    assert_eq!(session(&home)["stderr_bytes"], 204_800);
    let lines = printed(&home, &[]);
    assert_eq!(lines.lines().count(), 2560);
    assert!(lines.lines().all(|line| line.ends_with(&format!("Z  {}", "x".repeat(79)))), "a time and a line");
    assert!(verified(&home, 1));
}

#[test]
fn of_what_is_too_much_beginning_and_end_are_on_record_and_the_rest_is_counted() {
    let script = "seq -f 'line %.0f of too many, each of which says the same as the one before' 60000 >&2";
    let home = Home::new();
    let client = ran(&home, &[], script);
    let said = client.errors.rest();
    let (text, dropped) = pieces(&home);
    assert!(said.len() > 4_000_000 && text.len() < 1_200_000, "{} {}", said.len(), text.len());
    assert_eq!(text.len() as u64 + dropped, said.len() as u64, "every byte is kept or counted");
    assert!(said.starts_with(&text[..900_000]) && said.ends_with(&text[text.len() - 60_000..]));
    assert_eq!(session(&home)["stderr_dropped"], dropped);
    let shown = printed(&home, &[]);
    assert!(
        shown.contains(&format!("[{dropped} bytes were not kept]\n")),
        "as one number, where they are missing"
    );
    assert!(verified(&home, 1));
}

#[test]
fn it_is_redacted_and_shows_no_control_bytes() {
    let script =
        r"printf 'token=x password sk-0123456789abcdefghij\n\033]0;owned\007\033[2J\342\200\256gnp\r\n' >&2";
    let home = Home::new();
    let client = ran(&home, &[], script);
    assert!(client.errors.rest().contains("sk-0123456789abcdefghij"), "the client sees what the server said");
    let shown = printed(&home, &[]);
    assert!(shown.contains("[redacted]") && !shown.contains("sk-0123"), "{shown}");
    assert!(shown.contains(r"\x1b]0;owned\x07\x1b[2J\xe2\x80\xaegnp"), "{shown}");
    assert!(!shown.contains(|c: char| c.is_control() && c != '\n'), "{shown:?}");
    let kept = std::fs::read(home.path("audit.db")).expect("the database");
    assert!(memchr::memmem::find(&kept, b"sk-0123456789").is_none());

    let home = Home::new();
    ran(&home, &["--store-raw"], script);
    assert!(printed(&home, &[]).contains("sk-0123456789abcdefghij"), "the control");
}

#[test]
fn it_is_on_record_while_the_session_runs_and_when_it_is_killed() {
    let home = Home::new();
    let mut client = Client::start(home.interceptor(&["--"]).args([
        "python3",
        crate::support::SERVER,
        &home.text("received.log"),
        "stderr",
    ]));
    client.works("1");
    // The auditor hears of the session beside its calls.
    let db = home.text("audit.db");
    eventually("the session is on record", || {
        (home.output(&["mcp", "sessions", "--json", "--db", &db]).lines().count() == 1).then_some(())
    });
    eventually("it is on record while the session runs", || (pieces(&home).0.len() == 204_800).then_some(()));
    client.call("2", "read_it");
    assert_eq!(client.out.line(), answered("2"));
    kill(client.pid());
    client.wait();
    eventually("the session has ended", || session(&home)["ended_at"].is_string().then_some(()));
    assert_eq!(pieces(&home), (("x".repeat(79) + "\n").repeat(2560), 0));
    assert!(verified(&home, 1));
}

#[test]
fn a_silent_server_and_an_unknown_session_are_said() {
    let home = Home::new();
    ran(&home, &[], "true");
    assert_eq!(printed(&home, &[]), "");
    let db = home.text("audit.db");
    let asked = |arguments: &[&str]| {
        let done = home.ringfence(arguments).args(["--db", &db]).output().expect("ringfence");
        (done.status.code(), String::from_utf8_lossy(&done.stderr).into_owned())
    };
    let id = session(&home)["id"].as_str().expect("an id").to_owned();
    let (status, said) = asked(&["mcp", "sessions", "--stderr", &id]);
    assert!(status == Some(0) && said.contains("server wrote nothing to standard error"), "{said}");
    for unknown in ["zzzz", &id[..3], "", "%", "' OR 1=1 --"] {
        let (status, said) = asked(&["mcp", "sessions", "--stderr", unknown]);
        assert!(status == Some(1) && said.contains("no session's id begins with"), "{unknown:?}: {said}");
    }
    let (status, said) = asked(&["mcp", "sessions", "--stderr", &id, "--limit", "3"]);
    assert!(status == Some(2) && said.contains("--limit"), "{said}");
}
