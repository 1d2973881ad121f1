//! Ctrl-C: the first is the server's, what is waited for is said, a second one ends it at once.

use crate::support::{Client, Ear, Home, SERVER, descendants, eventually, lives, signal, verified};
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

/// What the server says of each Ctrl-C that it gets.
const SIGNALLED: &str = "{\"signal\":2}\n";

/// Presses Ctrl-C once more, which ends the interceptor. Where this machine is so slow that the one before is forgotten, it is the
/// server's, which says so, and then there is another. One at a time: whoever is about to end already would end by it.
fn ends_by_the_next(pid: i32, out: &Ear) {
    loop {
        // Longer than one key press takes to come twice.
        thread::sleep(Duration::from_millis(400));
        signal(pid, Signal::INT);
        let is_the_server_s = eventually("the server has it, or all ends", || {
            (out.is_over() || out.so_far().contains(SIGNALLED)).then(|| out.so_far().contains(SIGNALLED))
        });
        if !is_the_server_s {
            return;
        }
        assert_eq!(out.line(), SIGNALLED);
    }
}

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
    assert_eq!(client.out.line(), SIGNALLED, "the first is the server's");
    client.works("3");
    // Once that is forgotten, the next is a first one again.
    thread::sleep(Duration::from_millis(5_500));
    signal(client.pid(), Signal::INT);
    assert_eq!(client.out.line(), SIGNALLED, "a client's next prompt is no second press");
    client.works("4");
    ends_by_the_next(client.pid(), &client.out);
    assert_eq!(client.wait().code(), Some(128 + 9));
    for pid in below {
        eventually("all of it is gone", || (!lives(pid)).then_some(()));
    }
    assert_eq!(client.errors.rest(), "", "no terminal, no words");
    let rows = home.calls(&[]);
    let outcomes: Vec<&str> = rows.iter().filter_map(|row| row["outcome"].as_str()).collect();
    assert_eq!(outcomes, ["answered", "killed", "answered", "answered"]);
    let journal = home.journal();
    assert!(journal.iter().any(|entry| entry["text"] == "the server was killed by Ctrl-C"), "{journal:?}");
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
    let out = Ear::listen(child.stdout.take().expect("a pipe"));
    stdin.write_all(crate::support::call("1", "read_silence").as_bytes()).expect("sent");
    eventually("the server has it", || {
        String::from_utf8_lossy(&home.received()).contains("read_silence").then_some(())
    });
    let pid = i32::try_from(child.id()).expect("a pid");
    signal(pid, Signal::INT);
    assert_eq!(out.line(), SIGNALLED);
    let says = |what: &str| {
        eventually(what, || shown.lock().expect("whole").contains(what).then_some(()));
    };
    says("waiting for the server (process ");
    says("to end, with 1 request in flight; Ctrl-C again, within five seconds of the first, ends it at once");
    let below = descendants(pid);
    ends_by_the_next(pid, &out);
    let status = eventually("it ends", || child.try_wait().expect("a child"));
    assert_eq!(status.code(), Some(128 + 9));
    let auditors = home.serving();
    for pid in below.into_iter().filter(|pid| !auditors.contains(pid)) {
        eventually("all of it is gone", || (!lives(pid)).then_some(()));
    }
}
