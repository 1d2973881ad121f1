//! `--profile` where no daemon runs: what Landlock and seccomp hold of it, what is said and recorded, and what is refused.

use crate::support::{Client, Home, call, eventually, kill, lives, signal};
use rustix::process::Signal;
use serde_json::Value;
use std::{fs, io::Write, process::Stdio};

const ACCEPTED: [&str; 2] = ["--accept-partial", "exec,fs_read,fs_write,net"];

/// A home with a profile under which the keeping server works, and in which it may write only what it keeps.
fn home() -> Home {
    let home = Home::new();
    fs::create_dir(home.path("kept")).expect("a folder");
    fs::write(home.path("secret"), "not for it").expect("a file");
    let tests = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/mcp");
    let profile = format!(
        r#"
        [grant]
        fs_read = {{ only = ["/usr", "/etc/ld.so.cache", "{tests}", "{kept}"] }}
        fs_write = {{ only = ["{kept}"] }}
        exec = {{ only = ["/usr/bin"] }}
        net = {{ only = [] }}
        max_calls = "unlimited"
        valid_for_generation = "all"
        "#,
        kept = home.text("kept")
    );
    fs::write(home.path("held.toml"), profile).expect("a profile");
    home
}

/// A client of that server.
fn client(home: &Home) -> Client {
    let (profile, kept) = (home.text("held.toml"), home.text("kept/received"));
    let mut command = home.interceptor(&["--profile", &profile]);
    command.args(ACCEPTED).args(["--", "/usr/bin/python3", crate::support::SERVER, &kept, "signals"]);
    Client::start(&mut command)
}

/// The answer to a first request, and the status, of a server that does not start.
fn refused(home: &Home, arguments: &[&str]) -> (String, i32, String) {
    let mut command = home.interceptor(arguments);
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("ringfence mcp");
    let request = b"{\"jsonrpc\":\"2.0\",\"id\":\"first\",\"method\":\"initialize\",\"params\":{}}\n";
    child.stdin.take().expect("a pipe").write_all(request).expect("sent");
    let done = child.wait_with_output().expect("an end");
    let answer: Value = serde_json::from_slice(&done.stdout).expect("an answer");
    assert_eq!(answer["id"], "first");
    let message = answer["error"]["message"].as_str().expect("an error").to_owned();
    (message, done.status.code().expect("a status"), String::from_utf8_lossy(&done.stderr).into_owned())
}

#[test]
fn the_server_is_held_and_the_bytes_are_the_same() {
    let home = home();
    let mut client = client(&home);
    client.works("1");
    let odd = "{ \"jsonrpc\":\"2.0\",\t\"id\":2, \"method\":\"ping\" }\n";
    client.send(odd);
    client.out.line();
    let received = fs::read_to_string(home.path("kept/received")).expect("what it kept");
    assert!(received.ends_with(odd), "{received}");
    // Signals reach it through interceptor, guard and container.
    let pid = client.pid();
    signal(pid, Signal::USR1);
    assert_eq!(client.out.line(), format!("{{\"signal\":{}}}\n", Signal::USR1.as_raw()));
    assert!(client.end().success());
    let row = home.output(&["mcp", "sessions", "--db", &home.text("audit.db"), "--json"]);
    let session: Value = serde_json::from_str(row.trim()).expect("one session");
    assert_eq!(session["profile"], "held");
    assert_eq!(session["container"], Value::Null, "no daemon, no container");
    assert!(
        session["enforcement"].as_str().is_some_and(|text| text.contains("fs_write Landlock")),
        "{session}"
    );
    assert_eq!(session["exit_status"], 0);
}

#[test]
fn what_the_profile_does_not_grant_the_server_cannot_have() {
    let home = home();
    let (profile, secret) = (home.text("held.toml"), home.text("secret"));
    let open = |options: &[&str]| {
        let mut command = home.interceptor(options);
        let done = command
            .args(["--", "/usr/bin/cat", &secret])
            .stdin(Stdio::null())
            .output()
            .expect("ringfence mcp");
        String::from_utf8_lossy(&done.stdout).into_owned()
    };
    assert_eq!(open(&[]), "not for it", "the control");
    assert_eq!(open(&["--profile", &profile, ACCEPTED[0], ACCEPTED[1]]), "");
}

#[test]
fn its_whole_environment_reaches_the_server() {
    let home = home();
    let mut command = home.interceptor(&["--profile", &home.text("held.toml")]);
    command
        .args(ACCEPTED)
        .args(["--", "/usr/bin/printenv", "GITHUB_TOKEN"])
        .env("GITHUB_TOKEN", "for the server");
    let done = command.stdin(Stdio::null()).output().expect("ringfence mcp");
    assert_eq!(String::from_utf8_lossy(&done.stdout), "for the server\n");
    let said = String::from_utf8_lossy(&done.stderr);
    assert!(said.contains("profile held, no events, enforcement: fs_read Landlock"), "{said}");
}

#[test]
fn what_cannot_be_held_is_refused_unless_it_is_accepted() {
    let home = home();
    let profile = home.text("held.toml");
    let (message, status, said) = refused(&home, &["--profile", &profile, "--", "/usr/bin/cat"]);
    assert_eq!(status, 125);
    for text in [&message, &said] {
        assert!(text.contains("cannot be held in full here") && text.contains("--accept-partial"), "{text}");
    }
    let (message, status, _) =
        refused(&home, &["--profile", &profile, "--accept-partial", "net", "--", "/usr/bin/cat"]);
    assert!(status == 125 && message.contains("Not accepted: "), "{message}");
}

#[test]
fn a_missing_or_broken_profile_and_a_missing_server_are_said_to_the_client() {
    let home = home();
    fs::write(home.path("broken.toml"), "[grnt]\n").expect("a file");
    let (good, broken) = (home.text("held.toml"), home.text("broken.toml"));
    let (folder, file) = (home.text("kept"), home.text("held.toml"));
    for (profile, server, status, word) in [
        ("no-such-profile", "/usr/bin/cat", 125, "no-such-profile"),
        (broken.as_str(), "/usr/bin/cat", 125, "grnt"),
        (&good, "no-such-server", 127, "not found"),
        (&good, &file, 126, "not executable"),
        (&good, &folder, 126, "directory"),
    ] {
        let (message, got, said) =
            refused(&home, &["--profile", profile, ACCEPTED[0], ACCEPTED[1], "--", server]);
        assert_eq!(got, status, "{profile} {server}: {said}");
        assert!(message.contains(word) && said.contains(word), "{profile} {server}: {message}");
    }
    let alone =
        home.interceptor(&["--accept-partial", "net", "--", "/usr/bin/cat"]).output().expect("ringfence");
    assert!(!alone.status.success() && String::from_utf8_lossy(&alone.stderr).contains("--profile"));
}

#[test]
fn the_held_server_does_not_outlive_a_killed_interceptor() {
    let home = home();
    let mut client = client(&home);
    client.works("1");
    let below = home.below(&client);
    assert!(below.len() >= 2, "guard and server: {below:?}");
    client.send(call("2", "read_silence"));
    kill(client.pid());
    for pid in below {
        eventually(&format!("{pid} is gone"), || (!lives(pid)).then_some(()));
    }
}

#[test]
fn a_killed_guard_does_not_free_the_held_server() {
    let home = home();
    let mut client = client(&home);
    client.works("1");
    let below = home.below(&client);
    kill(below[0]);
    assert_eq!(client.wait().code(), Some(128 + 9));
    for pid in below {
        eventually(&format!("{pid} is gone"), || (!lives(pid)).then_some(()));
    }
}
