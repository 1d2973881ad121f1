//! The auditor under bad luck: killed, fed garbage, given a broken database, flooded.

mod auditor_support;

use auditor_support::{Core, denied, ids, memory, output};
use ringfence_common::event::op;
use rustix::process::{Pid, Resource, Rlimit, getrlimit, prlimit};
use std::{
    fs,
    io::{BufRead, BufReader},
    os::unix::fs::{FileExt, PermissionsExt},
    process::{Command, Stdio},
    sync::mpsc,
    thread,
    time::{Duration, Instant},
};

#[test]
fn a_killed_auditor_neither_loses_nor_doubles_an_event() {
    let mut core = Core::start();
    let mut sent = 0;
    for round in 0..5 {
        for _ in 0..40 {
            core.records((0..100).map(|_| denied("/etc/shadow")));
            sent += 100;
        }
        // In the middle of it: some batches are stored, some are on the way, some are not read yet.
        thread::sleep(Duration::from_millis(10 * round));
        core.kill();
        core.spawn();
    }
    core.settle();
    let (out, err, ok) = core.run(&["events", "--json"]);
    assert!(ok && err.is_empty(), "{err}");
    assert_eq!(ids(&out), (1..=sent).collect::<Vec<_>>());
    let check = core.stop();
    assert!(check.0, "{}", check.1);
    assert!(!check.1.contains("corrupt"), "{}", check.1);
}

#[test]
fn follow_has_no_gap_and_nothing_twice_even_when_the_auditor_dies() {
    let mut core = Core::start();
    core.records((0..50).map(|_| denied("/etc/shadow")));
    let mut child = core
        .command(&["events", "--json", "--follow"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("starts");
    let (sender, lines) = mpsc::channel();
    let out = child.stdout.take().expect("piped");
    let reads = thread::spawn(move || {
        for line in BufReader::new(out).lines().map_while(Result::ok) {
            if sender.send(line).is_err() {
                return;
            }
        }
    });
    let next = || lines.recv_timeout(auditor_support::PATIENCE).map(|l| ids(&l)[0]).expect("an event");
    let mut expected = 1;
    let mut seen_to = |last: u64| {
        while expected <= last {
            assert_eq!(next(), expected);
            expected += 1;
        }
    };
    seen_to(50);
    for _ in 0..20 {
        core.records((0..7).map(|_| denied("/etc/shadow")));
    }
    seen_to(190);
    core.kill();
    core.spawn();
    core.records((0..10).map(|_| denied("/etc/shadow")));
    seen_to(200);
    child.kill().expect("kills");
    child.wait().expect("waits");
    reads.join().expect("no panic");
    assert!(lines.try_recv().is_err(), "an event came twice");
}

#[test]
fn garbage_is_counted_and_the_rest_goes_on() {
    let mut core = Core::start();
    let good = denied("/etc/shadow").bytes();
    let mut of_another_version = good.clone();
    of_another_version[0] = 99;
    let mut no_such_op = good.clone();
    no_such_op[2] = 255;
    core.raw([vec![], vec![0; 40], of_another_version, no_such_op, good[..good.len() - 1].to_vec(), good]);
    let (out, _, ok) = core.run(&["events", "--json"]);
    assert!(ok);
    assert_eq!(ids(&out), [1]);
    let counted: u64 = core.status().undecodable.iter().map(|(_, n)| n).sum();
    assert_eq!(counted, 5, "{:?}", core.status().undecodable);
}

#[test]
fn a_corrupt_database_is_moved_aside_and_said() {
    let mut core = Core::idle();
    fs::write(core.database(), b"not a database at all ".repeat(1000)).expect("writes");
    core.spawn();
    core.records([denied("/etc/shadow")]);
    core.settle();
    let status = core.status();
    let moved_to = status.corrupt_moved_to.expect("said");
    assert!(fs::read(&moved_to).expect("is there").starts_with(b"not a database"));
    assert_eq!((status.rows, status.failing), (1, None));
    let (ok, log) = core.stop();
    assert!(ok && log.contains("was corrupt") && log.contains(&moved_to), "{log}");
}

#[test]
fn a_database_that_breaks_while_in_use_is_replaced() {
    let mut core = Core::start();
    core.records((0..500).map(|_| denied("/etc/shadow")));
    core.settle();
    core.stop();
    core.spawn();
    core.settle();
    // A page in the middle, under the running auditor.
    // In place: a file that is empty for a moment would be a new database, and none that broke.
    let file = fs::File::options().write(true).open(core.database()).expect("opens");
    let length = file.metadata().expect("a size").len();
    file.write_all_at(&vec![0xa5; (length - 4096) as usize], 4096).expect("writes");
    core.records([denied("/etc/between")]);
    core.settle();
    // Whoever notices first, the writer or this reader: a new one is there when it answers.
    let (_, err, ok) = core.run(&["events", "--json"]);
    assert!(ok, "{err}");
    core.records([denied("/etc/after")]);
    let (out, err, ok) = core.run(&["events", "--json"]);
    assert!(ok, "{err}");
    // Numbers go on, so that those who follow miss nothing.
    assert!(ids(&out).iter().all(|id| *id > 500), "{out}");
    assert!(out.contains("/etc/after"), "{out}");
    assert!(core.status().corrupt_moved_to.is_some());
}

#[test]
fn a_database_that_is_removed_is_started_anew() {
    let mut core = Core::start();
    core.records([denied("/etc/before"), denied("/etc/before")]);
    core.settle();
    for suffix in ["", "-wal", "-shm"] {
        fs::remove_file(format!("{}{suffix}", core.database().display())).expect("removes");
    }
    let (out, err, ok) = core.run(&["events", "--json"]);
    assert!(ok && out.is_empty(), "{err}");
    core.records([denied("/etc/after")]);
    let (out, err, ok) = core.run(&["events", "--json"]);
    assert!(ok, "{err}");
    assert_eq!(ids(&out), [3]);
    let (ok, log) = core.stop();
    assert!(ok && log.contains("was removed"), "{log}");
}

#[test]
fn an_unusable_directory_is_a_clear_error() {
    let mut core = Core::idle();
    fs::remove_dir(core.state()).expect("removes");
    core.spawn();
    let (ok, log) = core.stop();
    assert!(!ok && log.contains("cannot use the state directory") && log.contains("/state"), "{log}");
}

#[test]
fn by_hand_it_says_who_starts_it() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ringfence"));
    let (_, err, ok) = output(command.args(["auditor", "--state", "/tmp"]).stdin(Stdio::null()));
    assert!(!ok && err.contains("started by the daemon"), "{err}");
}

#[test]
fn signals_do_not_end_it_before_the_core_does() {
    let mut core = Core::start();
    core.settle_hello();
    let pid = nix::unistd::Pid::from_raw(core.pid() as i32);
    for signal in [nix::sys::signal::SIGTERM, nix::sys::signal::SIGINT, nix::sys::signal::SIGHUP] {
        nix::sys::signal::kill(pid, signal).expect("sends");
    }
    core.records([denied("/etc/shadow")]);
    core.settle();
    assert!(core.stop().0);
}

/// A file size limit is a disk that takes no more, and can be taken off again.
#[test]
fn a_full_disk_costs_events_that_are_counted_and_nothing_else() {
    let mut core = Core::start();
    core.records([denied("/etc/first")]);
    core.settle();
    let pid = Pid::from_raw(core.pid() as i32);
    let limit = |current| {
        let hard = getrlimit(Resource::Fsize).maximum;
        prlimit(pid, Resource::Fsize, Rlimit { current, maximum: hard }).expect("limits");
    };
    limit(Some(512 << 10));
    // Far more than the queue holds. None of these sends may block for good.
    for _ in 0..200 {
        core.records((0..500).map(|_| denied("/etc/shadow")));
    }
    let until = Instant::now() + auditor_support::PATIENCE;
    let failing = loop {
        let status = core.status();
        if let Some(why) = status.failing.filter(|_| status.lost.iter().any(|l| l.store_denied > 0)) {
            break why;
        }
        assert!(Instant::now() < until, "the store does not fail: {:?}", core.status());
        thread::sleep(Duration::from_millis(20));
    };
    // It cannot be written, or, where it was tried again by then, not be opened.
    assert!(failing.contains("the audit database"), "{failing}");
    let (out, err, ok) = core.run(&["events", "--json", "--limit", "1"]);
    assert!(ok && err.contains("did not answer in time"), "{err}");
    assert_eq!(ids(&out).len(), 1);
    assert!(memory(core.pid(), "VmHWM") < 160 << 10);

    limit(None);
    core.settle();
    core.records([denied("/etc/last")]);
    core.settle();
    let status = core.status();
    assert_eq!(status.failing, None);
    let lost: u64 = status.lost.iter().map(|l| l.store_denied + l.store_allowed).sum();
    assert_eq!(status.rows + lost, 1 + 200 * 500 + 1, "{status:?}");
    assert_eq!((status.lost.len(), status.lost[0].container.as_str()), (1, "0123456789ab"));
    let (out, _, _) = core.run(&["events", "--json"]);
    assert!(out.lines().next().is_some_and(|l| l.contains("/etc/first")));
    assert!(out.lines().last().is_some_and(|l| l.contains("/etc/last")));
    assert!(core.stop().0);
}

#[test]
fn it_holds_no_privilege_and_reaches_nothing_outside_its_directory() {
    let mut core = Core::start();
    core.settle_hello();
    let status = fs::read_to_string(format!("/proc/{}/status", core.pid())).expect("reads");
    let field = |name: &str| {
        status.lines().find_map(|l| l.strip_prefix(name)).map(|v| v.trim_start_matches(':').trim().to_owned())
    };
    assert_eq!(field("NoNewPrivs").as_deref(), Some("1"));
    assert_eq!(field("Seccomp").as_deref(), Some("2"));
    for set in ["CapInh", "CapPrm", "CapEff", "CapAmb"] {
        assert_eq!(field(set).as_deref(), Some("0000000000000000"), "{set}");
    }
    core.records([denied("/etc/shadow")]);
    core.settle();
    for file in fs::read_dir(core.state()).expect("reads").map(|f| f.expect("reads")) {
        let mode = file.metadata().expect("reads").permissions().mode();
        assert_eq!(mode & 0o077, 0, "{} is {mode:o}", file.path().display());
    }
    core.stop();

    let landlock = fs::read_to_string("/sys/kernel/security/lsm").is_ok_and(|l| l.contains("landlock"));
    if !landlock {
        return;
    }
    // The database is a link, first within the directory (the control), then out of it.
    let outside = tempfile::tempdir().expect("a directory");
    for (target, reaches) in [(core.state().join("other.db"), true), (outside.path().join("other.db"), false)]
    {
        let mut core = Core::idle();
        let target = if reaches { core.state().join("other.db") } else { target };
        std::os::unix::fs::symlink(&target, core.database()).expect("links");
        core.spawn();
        let (ok, log) = core.stop();
        assert_eq!((ok, target.exists()), (reaches, reaches), "{log}");
    }
}

/// 100,000 records here; `RINGFENCE_TEST_RECORDS=1000000` for the million, with its rate on standard error.
#[test]
fn a_flood_is_stored_in_bounded_memory() {
    let wanted: u64 =
        std::env::var("RINGFENCE_TEST_RECORDS").ok().and_then(|n| n.parse().ok()).unwrap_or(100_000);
    let mut core = Core::start();
    let mut record = denied("/srv/project/src/module/file.rs");
    record.op = op::OPEN;
    let bytes = record.bytes();
    let began = Instant::now();
    let mut sent = 0;
    while sent < wanted {
        let batch = (wanted - sent).min(800);
        core.raw((0..batch).map(|_| bytes.clone()));
        sent += batch;
    }
    core.settle();
    let took = began.elapsed();
    let (peak, size) = (memory(core.pid(), "VmHWM"), fs::metadata(core.database()).map_or(0, |m| m.len()));
    eprintln!(
        "{sent} records in {took:.1?}: {:.0} a second; peak memory {} MiB; database {} MiB",
        sent as f64 / took.as_secs_f64(),
        peak >> 10,
        size >> 20
    );
    assert_eq!(core.status().stored, sent);
    assert!(peak < 160 << 10, "peak memory is {peak} KiB");
}
