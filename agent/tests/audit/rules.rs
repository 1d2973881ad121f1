//! A rule file that changes while sessions run, and between them.

use super::support::{ClientShell, Home, Session, wait_until};
use std::{fs, path::PathBuf};

const STRICT: &str = "rules:\n  - {name: no_x, tool_pattern: 'x_*', action: block}\n";
const LOOSE: &str = "rules: []\n";

fn file(home: &Home) -> PathBuf {
    home.dir.path().join(".config/ringfence/rules.yaml")
}

fn write(home: &Home, text: &str) {
    fs::create_dir_all(file(home).parent().expect("a folder")).expect("a folder");
    fs::write(file(home), text).expect("written");
}

/// Whether a call of `x_tool` is refused.
fn blocked(session: &mut Session) -> bool {
    session.call(7, "x_tool");
    let line = session.line();
    assert!(line.contains("\"id\":7"), "{line}");
    line.contains("no_x")
}

fn ringfence(home: &Home, arguments: &[&str]) -> (String, bool) {
    let ran = home.ringfence(arguments).output().expect("ringfence");
    (
        String::from_utf8_lossy(&ran.stdout).into_owned() + &String::from_utf8_lossy(&ran.stderr),
        ran.status.success(),
    )
}

fn pending(home: &Home) -> usize {
    let (said, ok) = ringfence(home, &["mcp", "rules", "pending", "--json"]);
    assert!(ok, "{said}");
    said.lines().filter(|line| line.starts_with('{')).count()
}

#[test]
fn a_loosened_file_waits_in_running_sessions_and_in_new_ones() {
    let mut home = Home::new(&[]);
    write(&home, STRICT);
    let mut running = Session::start(&home);
    assert!(blocked(&mut running));
    assert_eq!(pending(&home), 0);

    write(&home, LOOSE);
    wait_until("the change waits", || pending(&home) == 1);
    assert!(blocked(&mut running), "in a running session");
    let mut new = Session::start(&home);
    assert!(blocked(&mut new), "in a new one");
    new.end();
    // Even when the auditor forgot everything that it does not write down.
    let halted = running.halted();
    home.stop();
    home.start(&[]);
    drop(halted);
    let mut new = Session::start(&home);
    assert!(blocked(&mut new), "after another auditor was started");

    let (said, ok) = ringfence(&home, &["mcp", "rules", "pending"]);
    assert!(ok && said.contains("loosens no_x") && said.contains("-  - {name: no_x"), "{said}");
    let (said, ok) = ringfence(&home, &["mcp", "rules", "confirm"]);
    assert!(!ok && said.contains("was not confirmed"), "it asks, and nobody answers: {said}");
    let (said, ok) = ringfence(&home, &["mcp", "rules", "confirm", "/elsewhere.yaml", "--yes"]);
    assert!(!ok && said.contains("no such change"), "{said}");
    assert!(blocked(&mut new));
    let path = file(&home).display().to_string();
    let (said, ok) = ringfence(&home, &["mcp", "rules", "confirm", &path, "--yes"]);
    assert!(ok && said.contains("is in force"), "{said}");
    wait_until("the session that runs has the confirmed rules", || !blocked(&mut new));
    wait_until("and the first one, which found the auditor again", || !blocked(&mut running));
    let mut third = Session::start(&home);
    assert!(!blocked(&mut third));
    assert_eq!(pending(&home), 0);
    let (said, ok) = ringfence(&home, &["mcp", "rules", "confirm", &path, "--yes"]);
    assert!(!ok && said.contains("no such change"), "a confirmation counts once: {said}");

    // Tightening needs nobody, at once and for the next; going back does.
    write(&home, STRICT);
    wait_until("stricter rules are in force at once", || blocked(&mut third));
    fs::remove_file(file(&home)).expect("removed");
    let mut fourth = Session::start(&home);
    assert!(blocked(&mut fourth), "those that ship lack a rule: they wait too");
    assert_eq!(pending(&home), 1);
    write(&home, STRICT);
    wait_until("what was taken back no longer waits", || pending(&home) == 0);
    for session in [running, new, third, fourth] {
        session.end();
    }
}

#[test]
fn a_first_file_is_taken_but_not_one_that_loosens_what_ships() {
    let home = Home::new(&[]);
    let mut running = Session::start(&home);
    let delete = |session: &mut Session| {
        session.call(3, "delete_it");
        session.send(r#"{"jsonrpc":"2.0","id":4,"method":"ping"}"#);
        session.line().contains("\"id\":4")
    };
    assert!(delete(&mut running), "it is paused");
    write(&home, LOOSE);
    wait_until("a file where there was none is noticed", || pending(&home) == 1);
    let mut new = Session::start(&home);
    assert!(delete(&mut new));
    running.end();
    new.end();

    let fresh = Home::new(&[]);
    write(&fresh, LOOSE);
    let mut session = Session::start(&fresh);
    session.call(3, "delete_it");
    let line = session.line();
    assert!(line.contains("\"id\":3"), "the user's own first file is in force: {line}");
    session.end();
}

#[test]
fn what_a_client_started_confirms_nothing() {
    let home = Home::new(&[]);
    write(&home, STRICT);
    let client = ClientShell::start(&home, "\"$0\" mcp rules confirm --yes");
    wait_until("the first text is on record", || home.has_rows("rule_files"));
    write(&home, LOOSE);
    wait_until("the change waits", || pending(&home) == 1);
    let said = client.until_refused(&home);
    assert!(said.contains("an agent does not approve"), "{said}");
    assert_eq!(pending(&home), 1);
}
