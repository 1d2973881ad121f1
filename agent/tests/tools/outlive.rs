//! Nothing that a tool started outlives the server, whichever of its processes is killed.

use crate::{
    Host, LIMIT, call, grant,
    live::{Live, made},
};
use ringfence_test_support::processes;
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    io::Errno,
    process::{Pid, PidfdFlags, Signal, kill_process_group, pidfd_open, pidfd_send_signal},
};
use serde_json::json;
use std::{
    fs,
    os::fd::OwnedFd,
    process::{Command, Stdio},
    time::{Duration, Instant},
};

/// A process that ran when it was looked up; no other is taken for it.
pub(crate) struct Process {
    id: Pid,
    pidfd: OwnedFd,
}

impl Process {
    pub(crate) fn new(id: &str) -> Self {
        let id = Pid::from_raw(id.trim().parse().unwrap()).unwrap();
        Self { id, pidfd: pidfd_open(id, PidfdFlags::empty()).unwrap() }
    }

    pub(crate) fn ends_within(&self, time: Duration) -> bool {
        let until = Instant::now() + time;
        loop {
            let left = Timespec::try_from(until.saturating_duration_since(Instant::now())).unwrap();
            match poll(&mut [PollFd::new(&self.pidfd, PollFlags::IN)], Some(&left)) {
                Err(Errno::INTR) => {}
                ready => return ready.unwrap() == 1,
            }
        }
    }

    fn kill(&self) {
        // Another may have been quicker.
        let _ = pidfd_send_signal(&self.pidfd, Signal::KILL);
    }

    fn threads(&self) -> usize {
        fs::read_dir(format!("/proc/{}/task", self.id)).unwrap().count()
    }

    /// Its children, whichever of its threads started them.
    fn children(&self) -> Vec<Self> {
        processes::children(self.id).iter().map(|id| Self::new(&id.to_string())).collect()
    }
}

/// The tool says who it is, and so do its child and its daemon, whose parent is gone and whose session is its own.
const TREE: &str = "(setsid sh -c \"sleep 600 & echo \\$! > 4; mv 4 grandchild; echo \\$\\$ > 3; mv 3 daemon; wait\" &) ; \
    sh -c \"echo \\$\\$ > 2; mv 2 child; exec sleep 600\" & \
    echo $$ > 1; mv 1 tool; wait";

const TOLD: [&str; 4] = ["tool", "child", "daemon", "grandchild"];

/// The server's processes.
const KEEPERS: [&str; 4] = ["first", "guard", "server", "reader"];

/// Starts the tree under a server, has `kill` kill some of the server's processes, and sees everything end.
fn nothing_outlives(what: &str, kill: impl Fn(&[Process; 4])) {
    let grant = json!({"net": {"only": ["127.0.0.1"]}});
    let host = Host::granting(&crate::grant(&["sh", "setsid", "sleep", "mv"], grant));
    let mut live = Live::new(&host, &["--web"]);
    live.say(&call(1, "shell", json!({"program": "sh", "args": ["-c", TREE], "timeout_secs": 300})));
    let tree = TOLD.map(|name| Process::new(&made(&host.path("work").join(name))));
    let first = Process::new(&live.server.id().to_string());
    let [guard] = <[Process; 1]>::try_from(first.children()).ok().unwrap();
    let below = <[Process; 2]>::try_from(guard.children()).ok().unwrap();
    // The server has a thread for each call, and for each kind of work.
    let (server, reader) = match below.map(|process| (process.threads(), process)) {
        [(1, reader), (_, server)] | [(_, server), (1, reader)] => (server, reader),
        [(one, _), (other, _)] => panic!("{what}: {one} and {other} threads"),
    };
    let keepers = [first, guard, server, reader];
    assert!(tree.iter().all(|process| !process.ends_within(Duration::ZERO)), "{what}: they run");
    kill(&keepers);
    for process in tree.iter().chain(&keepers) {
        assert!(process.ends_within(LIMIT), "{what}: {:?} is left", process.id);
    }
    assert!(!live.end().1);
}

#[test]
fn whoever_of_them_is_killed_everything_ends() {
    for (at, name) in KEEPERS[..3].iter().enumerate() {
        nothing_outlives(name, |keepers| keepers[at].kill());
    }
    let group = |keepers: &[Process; 4]| keepers[0].id;
    nothing_outlives("the group", |all| kill_process_group(group(all), Signal::KILL).unwrap());
    nothing_outlives("the group, gently", |all| kill_process_group(group(all), Signal::TERM).unwrap());
}

/// At once, and the second while those that are left deal with the first's end.
#[test]
fn whichever_two_of_them_are_killed_everything_ends() {
    let pairs = (0..4).flat_map(|one| (0..4).map(move |other| (one, other))).filter(|(a, b)| a != b);
    for (one, other) in pairs {
        for pause in [None, Some(Duration::ZERO), Some(Duration::from_millis(2))] {
            nothing_outlives(&format!("{}, {} {pause:?}", KEEPERS[one], KEEPERS[other]), |keepers| {
                keepers[one].kill();
                if let Some(pause) = pause {
                    assert!(keepers[one].ends_within(LIMIT));
                    std::thread::sleep(pause);
                }
                keepers[other].kill();
            });
        }
    }
}

/// Who kills by the program's name does not kill the guard.
#[test]
fn the_guard_has_a_name_of_its_own() {
    nothing_outlives("all of the program's name", |keepers| {
        let name = |process: &Process| fs::read_to_string(format!("/proc/{}/comm", process.id)).unwrap();
        let named: Vec<&Process> =
            keepers.iter().filter(|process| name(process).contains("ringfence")).collect();
        assert_eq!(named.len(), 3, "all but the guard");
        named.iter().for_each(|process| process.kill());
    });
}

/// The control: without a guard, the same tree outlives what started it.
#[test]
fn without_a_guard_they_would_stay() {
    let host = Host::new();
    let mut shell = Command::new("/bin/sh");
    shell.args(["-c", "sh -c \"$0\"; true", TREE]).current_dir(host.path("work"));
    let mut shell = shell.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let tree = TOLD.map(|name| Process::new(&made(&host.path("work").join(name))));
    shell.kill().unwrap();
    shell.wait().unwrap();
    assert!(!tree.iter().any(|process| process.ends_within(Duration::from_millis(200))));
    tree.iter().for_each(Process::kill);
}

/// The server's end is the first's: its status, and nothing is left.
#[test]
fn a_session_that_ends_by_itself_leaves_nothing() {
    let host = Host::granting(&grant(&["sh", "setsid", "sleep", "mv"], json!({})));
    let mut live = Live::new(&host, &[]);
    let daemon =
        "(setsid sh -c \"echo \\$\\$ > 1; mv 1 daemon; sleep 600\" &); until [ -e go ]; do sleep 0.01; done";
    live.say(&call(1, "shell", json!({"program": "sh", "args": ["-c", daemon]})));
    let daemon = Process::new(&made(&host.path("work/daemon")));
    fs::write(host.path("work/go"), "").unwrap();
    let (said, ended_well) = live.end();
    assert!(ended_well && said.len() == 1, "{said:?}");
    assert!(daemon.ends_within(LIMIT));
}
