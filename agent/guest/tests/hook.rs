//! `ringfence-runtime hook`: what an agent's hook is told on standard input, and what it answers.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use serde_json::{Value, json};
use std::{
    io::{BufRead, BufReader, Write},
    os::{
        linux::net::SocketAddrExt as _,
        unix::net::{SocketAddr, UnixListener},
    },
    path::PathBuf,
    process::{Command, Output, Stdio},
    thread,
};

fn program() -> PathBuf {
    let program = std::env::var_os("RINGFENCE_RUNTIME")
        .unwrap_or_else(|| env!("CARGO_BIN_EXE_ringfence-runtime").into());
    PathBuf::from(program).canonicalize().unwrap()
}

fn hook(agent: &str, said: &[u8]) -> Output {
    hook_of("", agent, said)
}

/// The same in a run whose socket has this name.
fn hook_of(socket: &str, agent: &str, said: &[u8]) -> Output {
    let mut child = Command::new(program())
        .args(["hook", agent])
        .env("RINGFENCE_TIE", socket)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // All of it is taken, whatever comes of it.
    child.stdin.take().unwrap().write_all(said).unwrap();
    child.wait_with_output().unwrap()
}

/// As Claude Code and Codex say it.
fn said(command: &str) -> Vec<u8> {
    let said = json!({
        "session_id": "s", "transcript_path": "/t", "cwd": "/w", "permission_mode": "default",
        "hook_event_name": "PreToolUse", "tool_name": "Bash", "tool_use_id": "toolu_01",
        "tool_input": {"command": command, "description": "look", "timeout": 1000},
    });
    said.to_string().into_bytes()
}

#[test]
fn a_command_is_answered_with_the_tie_in_front_of_it() {
    for agent in ["claude", "codex"] {
        let output = hook(agent, &said("cd x && ls # all\n"));
        assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
        let answer: Value = serde_json::from_slice(&output.stdout).unwrap();
        let input = &answer["hookSpecificOutput"]["updatedInput"];
        let command = format!("{} tie toolu_01\ncd x && ls # all\n", program().display());
        assert_eq!(*input, json!({"command": command, "description": "look", "timeout": 1000}));
    }
}

#[test]
fn whatever_else_is_said_the_call_goes_on_as_it_was() {
    let deep = format!(r#"{{"tool_input":{}"#, r#"{"a":"#.repeat(1 << 20));
    let long = said(&"x".repeat(9 << 20));
    let cut = said("ls").split_last().unwrap().1.to_vec();
    let other = String::from_utf8(said("ls")).unwrap().replace("PreToolUse", "PostToolUse").into_bytes();
    let cases: [(&str, &[u8]); 9] = [
        ("claude", b""),
        ("claude", b"\0\xff{"),
        ("claude", b"[1]"),
        ("claude", deep.as_bytes()),
        ("codex", &long),
        ("claude", &cut),
        ("claude", &other),
        ("opencode", &said("ls")),
        ("another", &said("ls")),
    ];
    for (agent, said) in cases {
        let output = hook(agent, said);
        assert_eq!(output.status.code(), Some(0), "{agent}: {output:?}");
        assert!(output.stdout.is_empty() && output.stderr.is_empty(), "{agent}: {output:?}");
    }
}

/// A socket of a name that nobody else has.
fn listen() -> (String, UnixListener) {
    let name = format!("ringfence-test-hook-{}-{:?}", std::process::id(), std::thread::current().id());
    let listener = UnixListener::bind_addr(&SocketAddr::from_abstract_name(&name).unwrap()).unwrap();
    (format!("@{name}"), listener)
}

fn over(event: &str) -> Vec<u8> {
    let said = json!({
        "session_id": "s", "hook_event_name": event, "tool_name": "Edit", "tool_use_id": "toolu_01",
        "tool_input": {"file_path": "/w/a"}, "tool_response": {"filePath": "/w/a"},
    });
    said.to_string().into_bytes()
}

#[test]
fn a_call_that_is_over_is_told_of_and_nothing_is_printed() {
    let (name, listener) = listen();
    for (agent, event, failed) in [
        ("claude", "PostToolUse", Some(false)),
        ("claude", "PostToolUseFailure", Some(true)),
        ("codex", "PostToolUse", None),
        ("opencode", "PostToolUse", None),
    ] {
        let output = thread::scope(|scope| {
            let hook = scope.spawn(|| hook_of(&name, agent, &over(event)));
            let mut host = BufReader::new(listener.accept().unwrap().0);
            let mut line = String::new();
            host.read_line(&mut line).unwrap();
            let mut done = json!({ "call": "toolu_01", "tool": "Edit", "session": "s" });
            if let Some(failed) = failed {
                done["failed"] = failed.into();
            }
            assert_eq!(serde_json::from_str::<Value>(&line).unwrap(), json!({ "done": done }));
            // Nobody answered, and the hook waits for nothing.
            hook.join().unwrap()
        });
        assert!(
            output.status.success() && output.stdout.is_empty() && output.stderr.is_empty(),
            "{output:?}"
        );
    }
}

#[test]
fn whoever_does_not_listen_holds_up_no_call() {
    // The queue is never emptied, and nobody answers.
    let (name, _listener) = listen();
    for socket in [name.as_str(), "@ringfence-nobody-listens-here", "no name", ""] {
        let output = hook_of(socket, "claude", &over("PostToolUse"));
        assert!(
            output.status.success() && output.stdout.is_empty() && output.stderr.is_empty(),
            "{output:?}"
        );
    }
}
