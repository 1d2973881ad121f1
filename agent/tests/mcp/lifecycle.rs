//! How sessions begin and end: end of input, statuses, signals, and kill -9 of everyone.

use crate::support::{
    Client, Home, answered, call, descendants, eventually, kill, kill_auditors, lives, signal, verified,
};
use rustix::process::Signal;
use serde_json::Value;
use std::{
    collections::HashSet,
    fs,
    os::unix::process::ExitStatusExt,
    process::Command,
    thread,
    time::{Duration, Instant},
};

fn gone(pids: &[i32]) {
    for pid in pids {
        eventually(&format!("{pid} is gone"), || (!lives(*pid)).then_some(()));
    }
}

/// Has the server start what leaves its group and session.
fn escapee(client: &mut Client) -> i32 {
    client.call("1", "read_escapee");
    let answer: Value = serde_json::from_str(&client.out.line()).expect("JSON");
    i32::try_from(answer["result"]["pid"].as_i64().expect("a pid")).expect("a pid")
}

#[test]
fn the_end_of_input_reaches_the_server() {
    let (home, mut client) = Home::with_client(&[], &["polite"]);
    client.works("1");
    let below = home.below(&client);
    assert!(client.end().success());
    assert!(home.received().ends_with(b"end of input\n"), "it ended by itself");
    assert_eq!(client.out.rest(), "");
    gone(&below);
}

#[test]
fn the_last_line_needs_no_end() {
    let (home, mut client) = Home::with_client(&[], &[]);
    client.works("1");
    let last = call("2", "read_it");
    client.send(last.trim_end());
    assert!(client.end().success());
    let received = String::from_utf8(home.received()).expect("text");
    assert_eq!(received, call("1", "read_it") + last.trim_end());
    assert_eq!(home.calls(&[]).len(), 2);
}

#[test]
fn a_server_that_does_not_end_is_ended() {
    let (_home, mut client) = Home::with_client(&[], &["stubborn"]);
    let escapee = escapee(&mut client);
    assert!(lives(escapee), "the control");
    let began = std::time::Instant::now();
    assert_eq!(client.end().code(), Some(128 + 9), "neither its end of input nor SIGTERM did it");
    assert!(began.elapsed() > Duration::from_secs(3), "it had time");
    gone(&[escapee]);
}

#[test]
fn statuses_pass_through() {
    let home = Home::new();
    for (tool, status) in [("read_exit_7", 7), ("read_crash", 128 + 9)] {
        let mut client = home.client(&[], &[]);
        client.works("1");
        client.call("2", tool);
        assert_eq!(client.wait().code(), Some(status), "{tool}");
        assert_eq!(client.out.rest(), "", "nobody answers for a server that is gone");
    }
    let rows = home.calls(&[]);
    let open: Vec<bool> = rows.iter().map(|row| row["responded_at"].is_null()).collect();
    assert_eq!(open, [false, true, false, true], "unanswered calls are on record");
}

#[test]
fn the_end_of_the_servers_output_reaches_the_client() {
    let home = Home::new();
    let mut mute = Client::start(
        home.interceptor(&["--", "sh", "-c"])
            .arg("read x; echo \"$x\"; exec >&-; cat >> \"$HOME/received.log\""),
    );
    let line = call("1", "read_it");
    mute.send(&line);
    assert_eq!(mute.out.rest(), line, "and then the end, though the server lives on");
    assert!(mute.child.try_wait().expect("a child").is_none());
    // What comes then is still forwarded, and what we would say of it goes nowhere.
    let last = call("3", "read_it");
    mute.send(call("2", "delete_it").replace("\"id\"", "\"id\":0,\"id\"") + &last);
    assert!(mute.end().success());
    assert_eq!(String::from_utf8(home.received()).expect("text"), last);
}

#[test]
fn signals_pass_through() {
    let (_home, mut client) = Home::with_client(&[], &["signals"]);
    client.works("1");
    for (number, signaled) in [(2, Signal::INT), (1, Signal::HUP), (10, Signal::USR1)] {
        signal(client.pid(), signaled);
        assert_eq!(client.out.line(), format!("{{\"signal\":{number}}}\n"));
    }
    client.works("2");
    signal(client.pid(), Signal::TERM);
    assert_eq!(client.wait().code(), Some(128 + 15));
}

#[test]
fn the_server_and_what_it_started_end_with_a_killed_interceptor() {
    let (home, mut client) = Home::with_client(&[], &["stubborn"]);
    let escapee = escapee(&mut client);
    let mut below = home.below(&client);
    assert!(
        below.len() >= 4 && below.contains(&escapee),
        "guard, keeper, server, and what left its group: {below:?}"
    );
    below.push(escapee);
    kill(client.pid());
    assert_eq!(client.wait().signal(), Some(9));
    gone(&below);
    eventually("its call is on record", || (home.calls(&[]).len() == 1).then_some(()));
}

/// The interceptor's process and those below it, in order; and what left the server's group and session.
const KEEPERS: [&str; 4] = ["interceptor", "guard", "keeper", "server"];

/// Starts a session whose server has lost a process, has `kill` kill some of its processes, and sees everything end but the
/// auditor.
fn nothing_outlives(what: &str, kill: impl Fn(&[i32])) {
    let (home, mut client) = Home::with_client(&[], &["stubborn"]);
    let escapee = escapee(&mut client);
    let below = home.below(&client).into_iter().filter(|pid| *pid != escapee);
    // The server's own children come behind it.
    let keepers: Vec<i32> = std::iter::once(client.pid()).chain(below).take(KEEPERS.len()).collect();
    assert!(keepers.len() == KEEPERS.len() && keepers.iter().all(|pid| lives(*pid)), "{what}: {keepers:?}");
    assert!(lives(escapee), "{what}: the control");
    let auditors = home.serving();
    kill(&keepers);
    assert!(!client.wait().success(), "{what}");
    gone(&keepers);
    gone(&[escapee]);
    assert!(auditors.iter().all(|pid| lives(*pid)), "{what}: it serves others, too");
}

#[test]
fn whoever_of_a_session_is_killed_nothing_stays() {
    for (at, name) in KEEPERS.iter().enumerate() {
        nothing_outlives(name, |keepers| kill(keepers[at]));
    }
}

/// At once, and the second while those that are left deal with the first's end.
#[test]
fn whichever_two_of_a_session_are_killed_nothing_stays() {
    let pairs = (0..4).flat_map(|one| (0..4).map(move |other| (one, other))).filter(|(a, b)| a != b);
    for (one, other) in pairs {
        for pause in [None, Some(Duration::from_millis(2))] {
            nothing_outlives(&format!("{}, {} {pause:?}", KEEPERS[one], KEEPERS[other]), |keepers| {
                kill(keepers[one]);
                pause.iter().for_each(|pause| thread::sleep(*pause));
                kill(keepers[other]);
            });
        }
    }
}

#[test]
fn the_interceptor_goes_on_without_the_auditor() {
    let (home, mut client) = Home::with_client(&[], &[]);
    for round in 0..3 {
        client.works(&format!("{round}"));
        kill_auditors(&home);
        client.works(&format!("{}", 10 + round));
    }
    assert!(client.end().success());
    assert_eq!(home.calls(&[]).len(), 6, "the next one took in what the killed ones did not");
    assert!(verified(&home, 1));
}

#[test]
fn a_paused_call_survives_its_auditor() {
    let home = Home::new();
    // The client is a process of its own: who descends from it decides nothing.
    let mut client = crate::approvals::apart(&home, &[]);
    client.call("1", "delete_it");
    let call = crate::approvals::waiting(&home);
    kill_auditors(&home);
    assert_eq!(crate::approvals::waiting(&home), call, "the next auditor learns of it");
    crate::approvals::decide(&home, "approve", &call).expect("approved");
    assert_eq!(client.out.line(), answered("1"));
    assert!(client.end().success());
}

#[test]
fn what_was_forwarded_is_on_record_whenever_the_interceptor_is_killed() {
    let home = Home::new();
    let (mut sent, mut answers) = (0, Vec::new());
    for round in 0..10 {
        let mut client = home.client(&[], &[]);
        let first = format!("\"round {round}\"");
        client.works(&first);
        answers.push(answered(&first).trim_end().to_owned());
        let mut lines = (0..80).map(|n| {
            call(&format!("{}", 100 * (round + 1) + n), "read_it")
                .replace("{}", &format!("{{\"n\":\"{round}-{n}\"}}"))
        });
        // It is halted while lines come and go, wherever it is then, and killed before it goes on: what is sent in between
        // it never reads. How fast the machine is decides nothing.
        let pid = client.pid();
        let enough = home.received().len() + 150 + 500 * round;
        let received = home.path("received.log");
        let halting = thread::spawn(move || {
            let long = || fs::metadata(&received).map_or(0, |file| file.len()) >= enough as u64;
            let until = Instant::now() + Duration::from_secs(60);
            while !long() && Instant::now() < until {
                thread::sleep(Duration::from_micros(100));
            }
            signal(pid, Signal::STOP);
        });
        for line in lines.by_ref().take(70) {
            client.send(&line);
            sent += 1;
        }
        halting.join().expect("halted");
        for line in lines {
            client.send(&line);
            sent += 1;
        }
        kill(pid);
        assert_eq!(client.wait().signal(), Some(9));
        eventually("the server is gone", || client.out.is_over().then_some(()));
        // It may have been killed in the middle of a line.
        let rest = client.out.rest();
        answers
            .extend(rest.split_inclusive('\n').filter_map(|line| line.strip_suffix('\n')).map(str::to_owned));
    }
    let received = String::from_utf8(home.received()).expect("text");
    let forwarded: HashSet<String> = received
        .lines()
        .filter_map(|line| serde_json::from_str::<Value>(line).ok())
        .filter_map(|line| line["params"]["arguments"]["n"].as_str().map(str::to_owned))
        .collect();
    assert!(
        !forwarded.is_empty() && forwarded.len() < sent,
        "some were, some were not: {} of {sent}",
        forwarded.len()
    );
    eventually("what was forwarded is on record", || {
        let rows = home.calls(&[]);
        let recorded: HashSet<&str> = rows.iter().filter_map(|row| row["arguments"]["n"].as_str()).collect();
        forwarded.iter().all(|call| recorded.contains(call.as_str())).then_some(())
    });
    let journal = home.journal();
    let recorded: HashSet<&str> = journal.iter().filter_map(|entry| entry["raw"].as_str()).collect();
    let missing: Vec<_> = answers.iter().filter(|answer| !recorded.contains(answer.as_str())).collect();
    assert!(missing.is_empty(), "{} of {}: {:?}", missing.len(), answers.len(), missing.first());
    assert!(verified(&home, 10));
}

#[test]
fn a_killed_client_takes_everything_with_it() {
    const CLIENT: &str = "import subprocess, sys, time
child = subprocess.Popen(sys.argv[2:], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
child.stdin.write(sys.argv[1].encode())
child.stdin.flush()
child.stdout.readline()
print(child.pid, flush=True)
time.sleep(600)";
    let home = Home::new();
    let interceptor =
        home.interceptor(&["--", "python3", crate::support::SERVER, &home.text("received.log"), "polite"]);
    let mut command = Command::new("python3");
    home.settle(&mut command);
    command
        .args(["-c", CLIENT, &call("1", "read_it")])
        .arg(interceptor.get_program())
        .args(interceptor.get_args());
    let mut client = Client::start(&mut command);
    let pid: i32 = client.out.line().trim().parse().expect("a pid");
    let below = descendants(pid);
    kill(client.pid());
    assert_eq!(client.wait().signal(), Some(9));
    gone(&[pid]);
    gone(&below.into_iter().filter(|pid| !home.auditors().contains(pid)).collect::<Vec<_>>());
    assert!(home.received().ends_with(b"end of input\n"), "the server heard of it");
    eventually("the call and its answer are on record", || {
        home.calls(&[]).first().is_some_and(|row| row["responded_at"].is_string()).then_some(())
    });
}

#[test]
fn a_client_that_does_not_read_standard_error_blocks_nothing() {
    let home = Home::new();
    let mut deaf = Client::deaf(
        home.interceptor(&["--", "python3", crate::support::SERVER, &home.text("received.log")])
            .arg("stderr"),
    );
    for id in ["1", "2", "3"] {
        deaf.works(id);
    }
    assert!(deaf.end().success());
}

#[test]
fn a_burst_of_calls_that_wait_does_not_hold_up_the_end() {
    let home = Home::new();
    // No word of the auditor holds the first call up, so the burst meets a link that is still connecting.
    let mut client = Client::start(home.interceptor(&["--"]).arg("cat"));
    let burst: String = (0..3000).map(|id| call(&id.to_string(), "delete_x")).collect();
    client.send(&burst);
    assert!(client.end().success());
    assert_eq!(client.out.rest().matches("\"isError\":true").count(), 0, "dropped, not answered");
    let ended = home.journal().iter().filter(|entry| entry["outcome"] == "ended").count();
    assert_eq!(ended, 3000);
}

#[test]
fn a_signal_ends_an_interceptor_whose_server_is_gone() {
    let home = Home::new();
    // An auditor that is stopped takes the session's last word late: the interceptor waits for it.
    let mut client = home.client(&[], &[]);
    client.works("1");
    let below = home.below(&client);
    home.serving().iter().for_each(|auditor| signal(*auditor, Signal::STOP));
    client.close();
    gone(&below);
    assert!(client.child.try_wait().expect("a child").is_none(), "it waits for the auditor");
    signal(client.pid(), Signal::TERM);
    assert_eq!(client.wait().signal(), Some(15));
}

#[test]
fn a_server_that_does_not_read_is_ended_when_the_client_is_gone() {
    let home = Home::new();
    let mut client = Client::start(home.interceptor(&["--"]).args(["sleep", "600"]));
    // More than the server's pipe takes, less than that pipe, the interceptor's and what it reads at once.
    let line = call("1", "read_it").replace("{}", &format!("{{\"a\":\"{}\"}}", "y".repeat(10 << 10)));
    for _ in 0..14 {
        client.send(&line);
    }
    assert_eq!(client.end().code(), Some(128 + 15));
}
