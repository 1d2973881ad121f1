//! `ringfence-runtime tie`: what it says, and that nothing keeps the command behind it from running.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::{
    io::{BufRead, BufReader, Write},
    os::{
        linux::net::SocketAddrExt,
        unix::net::{SocketAddr, UnixListener},
    },
    process::{Command, Output},
    sync::atomic::{AtomicU32, Ordering},
    thread,
};

fn program() -> std::ffi::OsString {
    std::env::var_os("RINGFENCE_RUNTIME").unwrap_or_else(|| env!("CARGO_BIN_EXE_ringfence-runtime").into())
}

/// A listening socket, and its name as the variable has it.
fn listener() -> (UnixListener, String) {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let name = format!("ringfence-test-tie-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
    let address = SocketAddr::from_abstract_name(&name).unwrap();
    (UnixListener::bind_addr(&address).unwrap(), format!("@{name}"))
}

/// A shell with a tie in front of its command.
fn shell(tie: &str, variable: Option<&str>) -> Output {
    let mut command = Command::new("sh");
    command.args(["-c", &format!("set -e\n\"$0\" tie {tie}\necho done $?")]).arg(program());
    command.env_remove("RINGFENCE_TIE").envs(variable.map(|name| ("RINGFENCE_TIE", name)));
    command.output().unwrap()
}

fn goes_on(output: &Output) {
    assert!(output.status.success(), "{output:?}");
    assert_eq!((output.stdout.as_slice(), output.stderr.as_slice()), (&b"done 0\n"[..], &b""[..]));
}

#[test]
fn it_says_which_call_and_waits_until_it_is_answered() {
    for (tie, said) in [("toolu_1", r#"{"tie":{"call":"toolu_1"}}"#), ("", r#"{"tie":{"call":null}}"#)] {
        let (listener, name) = listener();
        let host = thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut line = String::new();
            BufReader::new(stream.try_clone().unwrap()).read_line(&mut line).unwrap();
            stream.write_all(b"{\"tied\":\"exact\"}\n").unwrap();
            line
        });
        goes_on(&shell(tie, Some(&name)));
        assert_eq!(host.join().unwrap(), format!("{said}\n"));
    }
}

#[test]
fn whatever_goes_wrong_the_command_runs_and_nothing_is_said() {
    for name in [
        None,
        Some(""),
        Some("@"),
        Some("/run/x.sock"),
        Some("@nobody-listens-here"),
        Some(&format!("@{}", "x".repeat(200))),
    ] {
        goes_on(&shell("toolu_1", name));
    }
    for words in ["--weird", "a b c", "-V", "\"$(printf '\\377')\"", "''"] {
        goes_on(&shell(words, None));
    }
    // Hangs up, answers nonsense without an end, or says nothing at all.
    for answer in [&b""[..], &[b'x'; 9000], b"\n"] {
        let (listener, name) = listener();
        let answering = answer.to_vec();
        let host = thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let _ = stream.write_all(&answering);
        });
        goes_on(&shell("toolu_1", Some(&name)));
        host.join().unwrap();
    }
    let (silent, name) = listener();
    goes_on(&shell("toolu_1", Some(&name)));
    drop(silent);
}

#[test]
fn its_help_says_what_it_is() {
    let output = Command::new(program()).args(["tie", "--help"]).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success() && text.contains("CALL_ID"), "{text}");
}
