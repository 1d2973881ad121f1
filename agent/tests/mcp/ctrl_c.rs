//! Ctrl-C: the first is the server's, what is waited for is said, a second one ends it at once.

use crate::support::{Client, Home, SERVER, descendants, eventually, lives, signal, verified};
use rustix::process::Signal;
use std::{
    fs::File,
    io::{Read as _, Write as _},
    os::unix::process::CommandExt as _,
    process::Stdio,
    sync::{Arc, Mutex},
    thread,
    time::Duration,
};

/// A server that takes no interrupt for its end, and has a call in flight.
fn busy(home: &Home) -> Client {
    let mut client = home.client(&[], &["signals", "stubborn"]);
    client.works("1");
    client.call("2", "read_silence");
    eventually("the server has it", || {
        String::from_utf8_lossy(&home.received()).contains("read_silence").then_some(())
    });
    client
}

#[test]
fn a_second_one_ends_the_server_and_the_record_says_so() {
    let home = Home::new();
    let mut client = busy(&home);
    let below = home.below(&client);
    signal(client.pid(), Signal::INT);
    assert_eq!(client.out.line(), "{\"signal\":2}\n", "the first is the server's");
    client.works("3");
    // Once that is forgotten, the next is a first one again.
    thread::sleep(Duration::from_millis(5_500));
    signal(client.pid(), Signal::INT);
    assert_eq!(client.out.line(), "{\"signal\":2}\n", "a client's next prompt is no second press");
    client.works("4");
    // Longer than one key press takes to come twice.
    thread::sleep(Duration::from_millis(400));
    signal(client.pid(), Signal::INT);
    assert_eq!(client.wait().code(), Some(128 + 9));
    for pid in below {
        eventually("all of it is gone", || (!lives(pid)).then_some(()));
    }
    assert_eq!(client.errors.rest(), "", "no terminal, no words");
    let rows = home.calls(&[]);
    let outcomes: Vec<&str> = rows.iter().filter_map(|row| row["outcome"].as_str()).collect();
    assert_eq!(outcomes, ["answered", "killed", "answered", "answered"]);
    let journal = home.journal();
    assert!(
        journal.iter().any(|entry| entry["text"] == "the server was killed: a second Ctrl-C"),
        "{journal:?}"
    );
    assert_eq!(journal.last().map(|entry| &entry["kind"]), Some(&"end".into()));
    assert!(verified(&home, 1));
}

#[test]
fn on_a_terminal_it_says_what_it_waits_for() {
    let home = Home::new();
    let pty = nix::pty::openpty(None, None).expect("a terminal");
    let mut command =
        home.interceptor(&["--", "python3", SERVER, &home.text("received.log"), "signals", "stubborn"]);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(pty.slave).process_group(0);
    let mut child = command.spawn().expect("ringfence");
    drop(command);
    let shown = Arc::new(Mutex::new(String::new()));
    let (mut terminal, heard) = (File::from(pty.master), Arc::clone(&shown));
    thread::spawn(move || {
        let mut piece = [0; 4096];
        while let Ok(read @ 1..) = terminal.read(&mut piece) {
            heard.lock().expect("whole").push_str(&String::from_utf8_lossy(&piece[..read]));
        }
    });
    let mut stdin = child.stdin.take().expect("a pipe");
    stdin.write_all(crate::support::call("1", "read_silence").as_bytes()).expect("sent");
    eventually("the server has it", || {
        String::from_utf8_lossy(&home.received()).contains("read_silence").then_some(())
    });
    let pid = i32::try_from(child.id()).expect("a pid");
    // The end of input is as good as a Ctrl-C.
    signal(pid, Signal::INT);
    let says = |what: &str| {
        eventually(what, || shown.lock().expect("whole").contains(what).then_some(()));
    };
    says("waiting for the server (process ");
    says("to end, with 1 request in flight; Ctrl-C again ends it at once");
    let below = descendants(pid);
    let status = eventually("it ends", || {
        let ended = child.try_wait().expect("a child");
        if ended.is_none() {
            // Where this machine is so slow that the first is forgotten, it takes another.
            signal(pid, Signal::INT);
        }
        ended
    });
    assert_eq!(status.code(), Some(128 + 9));
    let auditors = home.serving();
    for pid in below.into_iter().filter(|pid| !auditors.contains(pid)) {
        eventually("all of it is gone", || (!lives(pid)).then_some(()));
    }
}
