//! The shell: its output, its end, and everything that it leaves behind.

use crate::daemon::{Scene, eventually, pid_in, results, runs};
use rustix::process::Signal;
use serde_json::json;
use std::{
    fs,
    time::{Duration, Instant},
};

#[test]
fn output_and_errors_come_in_the_order_in_which_they_were_printed() {
    let (_scene, mut daemon) = Scene::with_daemon(&[]);
    assert_eq!(daemon.bash("echo a; echo b >&2; echo c"), ("a\nb\nc\n".to_owned(), false));
    assert_eq!(daemon.bash("printf x; exit 3"), ("x\n[exit status 3]".to_owned(), true));
    assert_eq!(daemon.bash("exit 7"), ("[exit status 7]".to_owned(), true));
    assert_eq!(daemon.bash("kill -SEGV $$"), ("[killed by SIGSEGV]".to_owned(), true));
    assert_eq!(daemon.bash("true"), ("[no output]".to_owned(), false));
    assert_eq!(daemon.bash("[[ a == a* ]] && echo bash").0, "bash\n");
    let (said, is_error) = daemon.bash("nonexistent-command");
    assert!(said.contains("command not found") && said.ends_with("[exit status 127]") && is_error);
}

#[test]
fn a_command_finds_an_ordinary_process_around_it() {
    let (scene, mut daemon) = Scene::with_daemon(&[]);
    assert_eq!(daemon.bash("cat; pwd").0, format!("{}\n", fs::canonicalize(scene.work()).unwrap().display()));
    // Nothing is open but what it should have, no signal is blocked, a pipe's end is a death.
    assert_eq!(daemon.bash("ls /proc/self/fd | tr '\\n' ' '").0, "0 1 2 3 ");
    let signals = daemon.bash("grep -E '^(SigBlk|SigIgn)' /proc/self/status | cut -f2").0;
    let (blocked, ignored) = signals.trim().split_once('\n').unwrap();
    assert_eq!(u64::from_str_radix(blocked, 16).unwrap(), 0);
    let pipe = 1 << (Signal::PIPE.as_raw() - 1);
    assert_eq!(u64::from_str_radix(ignored, 16).unwrap() & pipe, 0);
    assert_eq!(daemon.bash("yes | head -n1; echo ${PIPESTATUS[0]}").0, "y\n141\n");
    assert!(daemon.bash("exec 3<>/dev/tty").1, "there is no terminal");
}

#[test]
fn with_the_tool_runner_s_shims_what_leaves_a_call_is_cut() {
    let (_scene, mut daemon) = Scene::with_daemon(&[]);
    let runner = std::env::var("RINGFENCE_TOOLRUNNER")
        .unwrap_or_else(|_| env!("CARGO_BIN_EXE_ringfence-toolrunner").to_owned());
    let (said, is_error) = daemon.bash(&format!(
        "seq 1 3000 > big; {runner} install-shims shims --no-profile >/dev/null
        {runner} --socket socket --log log --spill-dir . --max-lines 3 &
        PATH=$PWD/shims:$PATH; export RINGFENCE_TOOLRUNNER_SOCKET=$PWD/socket
        until RINGFENCE_STRICT=1 wc /dev/null >/dev/null 2>&1; do sleep 0.05; done
        cat big | wc -l; cat big; kill $!; wait"
    ));
    assert!(said.starts_with("3000\n1\n2\n3\n...[truncated] 13893 bytes"), "{said}");
    assert!(!is_error && said.lines().count() == 5, "{said}");
}

#[test]
fn without_bash_there_is_sh_and_without_that_a_reason() {
    let programs = tempfile::tempdir().unwrap();
    std::os::unix::fs::symlink("/bin/sh", programs.path().join("sh")).unwrap();
    let scene = Scene::with_path(programs.path(), "bash", &[]);
    let mut daemon = scene.registered();
    assert_eq!(daemon.bash("echo \"$0 ${BASH-none}\""), ("sh none\n".to_owned(), false));
    fs::remove_file(programs.path().join("sh")).unwrap();
    let (said, is_error) = daemon.bash("echo x");
    assert_eq!(said, "[neither bash nor sh could be started here: No such file or directory (os error 2)]");
    assert!(is_error);
}

#[test]
fn a_long_output_loses_its_middle() {
    let (_scene, mut daemon) = Scene::with_daemon(&["--max-output-chars", "1000"]);
    let (said, is_error) = daemon.bash("printf 'ä%.0s' {1..5000}; printf 'z%.0s' {1..5000}; exit 1");
    assert!(said.chars().count() <= 1000 && said.chars().count() > 990 && is_error);
    assert!(said.starts_with("ää") && said.ends_with("zz\n[exit status 1]"));
    let (head, rest) = said.split_once("\n[...truncated ").unwrap();
    let (number, tail) = rest.split_once(" characters...]\n").unwrap();
    let (head, tail) = (head.chars().count(), tail.chars().count() - "\n[exit status 1]".chars().count());
    assert_eq!(number.parse::<usize>().unwrap(), 10_000 - head - tail);
    assert!((tail * 2).abs_diff(head * 3) <= 3, "{head} and {tail}");
}

#[test]
fn an_output_of_a_gigabyte_takes_little_memory() {
    let (scene, mut daemon) = Scene::with_daemon(&[]);
    let (said, _) = daemon.bash("head -c 1G /dev/zero | tr '\\0' 'q'");
    assert!(said.contains("[...truncated 1073711"), "{}", said.len());
    assert_eq!(said.chars().count(), 30_000);
    assert!(scene.peak_kib() < 24 << 10, "{} KiB", scene.peak_kib());
}

#[test]
fn binary_output_is_text_with_holes() {
    let (_scene, mut daemon) = Scene::with_daemon(&[]);
    assert_eq!(daemon.bash("printf 'a\\0b\\xff\\xe2\\x82'").0, "a\u{fffd}b\u{fffd}\u{fffd}");
    let (said, _) = daemon.bash("head -c 100000 /dev/urandom");
    assert!(said.chars().count() <= 30_000);
}

#[test]
fn a_call_that_never_ends_is_killed_with_all_that_it_started() {
    // A busy machine may need more than a second until all of it has started.
    assert!([1, 5, 60].into_iter().any(all_is_killed), "not even in a minute did all of it start");
}

/// Whether all had started that is killed when a call's time is over.
fn all_is_killed(seconds: u32) -> bool {
    let (scene, mut daemon) = Scene::with_daemon(&["--tool-timeout", &seconds.to_string()]);
    // In the group, in a session of its own, a daemon whose parents are gone, one that ignores signals, a stopped one.
    let command = "echo started
        sleep 1000 & echo $! > group
        setsid sh -c 'echo $$ > session; exec sleep 1000' &
        (setsid sh -c '(sh -c \"echo \\$\\$ > daemon; exec sleep 1000\" &) ; exit' &)
        (trap '' TERM INT HUP; sh -c 'echo $$ > deaf; exec sleep 1000') &
        sh -c 'echo $$ > stopped; kill -STOP $$' &
        while true; do sleep 0.05; done";
    let (said, is_error) = daemon.bash(command);
    let killed = format!("[killed after {seconds} seconds, the time for this call]");
    assert!(said.ends_with(&killed) && is_error, "{said}");
    let mut started = said == format!("started\n{killed}");
    for name in ["group", "session", "daemon", "deaf", "stopped"] {
        // Killed as it was, it may have left half a line.
        let pid = fs::read_to_string(scene.work().join(name)).ok().filter(|text| text.ends_with('\n'));
        started &= pid.is_some();
        assert!(pid.is_none_or(|pid| !runs(pid.trim())), "{name} lives");
    }
    eventually("the next call", || daemon.bash("echo next").0.starts_with("next\n").then_some(()));
    started
}

#[test]
fn a_fork_bomb_is_killed() {
    let is_killed = |seconds: u32| {
        let (scene, mut daemon) = Scene::with_daemon(&["--tool-timeout", &seconds.to_string()]);
        // Each generation leaves its parent's group and ends: a moving target, of bounded width.
        let hop = "#!/bin/sh\necho $$ > last\nsleep 0.01\nsetsid ./hop &\n";
        fs::write(scene.work().join("hop"), hop).unwrap();
        let (_, is_error) = daemon.bash("chmod +x hop; ./hop & ./hop & ./hop & sleep 1000");
        assert!(is_error);
        let last = scene.work().join("last");
        let hopped = fs::remove_file(&last).is_ok();
        std::thread::sleep(std::time::Duration::from_millis(500));
        assert!(!last.exists(), "it hops on");
        hopped
    };
    // A busy machine may need more than a second until it hops.
    assert!([1, 5, 60].into_iter().any(is_killed), "not even in a minute did it hop");
}

#[test]
fn what_a_call_leaves_in_the_background_goes_on() {
    let (scene, mut daemon) = Scene::with_daemon(&[]);
    let serve = "(while true; do echo noise; echo x >> beat; sleep 0.02; done) & echo $! > pid; echo up";
    let (said, is_error) = daemon.bash(serve);
    assert!(!is_error);
    assert!(said.starts_with("up\n") || said.starts_with("noise\n"), "{said}");
    assert!(
        said.ends_with("[processes that it started still run; what they print from now on is not collected]"),
        "{said}"
    );
    let pid = pid_in(&scene.work().join("pid"));
    // It still prints to where nobody reads, and lives.
    let beats = || fs::metadata(scene.work().join("beat")).unwrap().len();
    let before = beats();
    eventually("beats", || (beats() > before + 20).then_some(()));
    assert!(runs(pid));
    let (said, _) =
        daemon.bash("setsid -f sh -c 'echo $$ > daemon; exec sleep 1000' > /dev/null 2>&1; echo done");
    assert!(said.starts_with("done\n[processes"), "{said}");
    let far = pid_in(&scene.work().join("daemon"));
    assert!(runs(far));
    assert_eq!(daemon.bash(&format!("kill {pid} {far}; echo gone")).0, "gone\n");
    eventually("their end", || (!runs(pid) && !runs(far)).then_some(()));
}

#[test]
fn what_too_many_calls_leave_is_ended() {
    let (scene, mut daemon) = Scene::with_daemon(&[]);
    let ids: Vec<String> = (0..66).map(|index| index.to_string()).collect();
    let calls: Vec<(&str, &str, serde_json::Value)> = ids
        .iter()
        .map(|id| (id.as_str(), "bash", json!({"command": format!("sleep 1000 & echo $! > pid.{id}")})))
        .collect();
    let turn = daemon.round(&calls);
    let mut lives = 0;
    for (id, text, is_error) in results(&turn) {
        let pid = pid_in(&scene.work().join(format!("pid.{id}")));
        assert!(!is_error);
        if text.contains("still run; what they print") {
            assert!(runs(pid));
            lives += 1;
        } else {
            assert!(text.contains("were ended: those of 64 earlier calls"), "{text}");
            eventually("its end", || (!runs(pid)).then_some(()));
        }
    }
    assert_eq!(lives, 64);
    daemon.end(&turn);
    // One goes, one may come.
    let (first, _) = daemon.bash("kill $(cat pid.*) 2> /dev/null; echo killed");
    assert_eq!(first, "killed\n");
    eventually("room", || daemon.bash("sleep 1000 &").0.contains("still run; what").then_some(()));
}

#[test]
fn a_background_writer_that_floods_does_not_hold_the_call() {
    let (scene, mut daemon) = Scene::with_daemon(&["--tool-timeout", "40"]);
    let (said, is_error) = daemon.bash("yes flood & echo $! > pid");
    assert!(!is_error && said.contains("still run"), "{is_error}");
    let pid = pid_in(&scene.work().join("pid"));
    assert_eq!(daemon.bash(&format!("kill {pid}; echo killed")).0, "killed\n");
}

#[test]
fn when_the_daemon_goes_so_do_the_calls() {
    let (scene, mut daemon) = Scene::with_daemon(&[]);
    let turn = daemon.asked("Go");
    daemon.call(
        &turn,
        &[("x", "bash", json!({"command": "setsid sleep 1000 & echo $! > far; echo $$ > near; wait"}))],
    );
    let (far, near) = (pid_in(&scene.work().join("far")), pid_in(&scene.work().join("near")));
    assert!(runs(near));
    drop(daemon);
    eventually("their end", || (!runs(near) && !runs(far)).then_some(()));
    let mut daemon = scene.registered();
    assert_eq!(daemon.bash("echo here").0, "here\n");
}

#[test]
fn when_the_runtime_ends_so_does_all_that_it_started() {
    for signal in [Signal::TERM, Signal::KILL] {
        let mut scene = Scene::new(&[]);
        let mut daemon = scene.registered();
        daemon.bash("setsid -f sh -c 'echo $$ > left; exec sleep 1000'");
        let turn = daemon.asked("Go");
        daemon.call(&turn, &[("x", "bash", json!({"command": "echo $$ > now; sleep 1000"}))]);
        let (left, now) = (pid_in(&scene.work().join("left")), pid_in(&scene.work().join("now")));
        assert!(runs(left) && runs(now));
        scene.signal(signal);
        assert_eq!(scene.exit().success(), signal == Signal::TERM);
        eventually("their end", || (!runs(left) && !runs(now)).then_some(()));
    }
}

#[test]
fn a_tool_that_kills_its_supervisor_is_an_error_and_no_more() {
    let (scene, mut daemon) = Scene::with_daemon(&[]);
    let (said, is_error) = daemon.bash("echo $$ > pid; kill -9 $PPID; sleep 1000");
    assert!(said.contains("was killed by something else") && is_error, "{said}");
    let pid = pid_in(&scene.work().join("pid"));
    eventually("the shell's end", || (!runs(pid)).then_some(()));
    // It is alone in its process group: the kernel may send SIGHUP to the whole group of a stopped process.
    assert_eq!(daemon.bash("[ $(cut -d' ' -f5 /proc/$PPID/stat) = $PPID ] && echo alone").0, "alone\n");
    // A supervisor that is stopped cannot end its tree: it is ended itself, and its group.
    let is_ended = |seconds: u32| {
        let (scene, mut daemon) = Scene::with_daemon(&["--tool-timeout", &seconds.to_string()]);
        let begin = Instant::now();
        let (said, is_error) = daemon.bash(
            "setsid sh -c 'echo $$ > deep; exec sleep 1000' & until [ -s deep ]; do sleep 0.01; done
            echo $$ > pid; kill -STOP $PPID; touch stopped; sleep 1000",
        );
        let late = begin.elapsed().saturating_sub(Duration::from_secs(seconds.into()));
        assert!(said.contains(&format!("killed after {seconds} seconds")) && is_error, "{said}");
        if !scene.work().join("stopped").exists() {
            return false;
        }
        for file in ["pid", "deep"] {
            let pid = pid_in(&scene.work().join(file));
            eventually("the end of all of it", || (!runs(pid)).then_some(()));
        }
        eventually("another call", || (daemon.bash("echo on").0 == "on\n").then_some(()));
        // Far less than a supervisor that works may take: nobody waits for one that is stopped.
        assert!(late < Duration::from_secs(10), "{late:?} after its time");
        true
    };
    // A busy machine may need more than a second until the supervisor is stopped.
    assert!([1, 5, 60].into_iter().any(is_ended), "not even in a minute was the supervisor stopped");
}

#[test]
fn nothing_is_left_of_calls_that_are_over() {
    let (scene, mut daemon) = Scene::with_daemon(&[]);
    let count = |what: &str| fs::read_dir(format!("/proc/{}/{what}", scene.pid())).unwrap().count();
    daemon.bash("true");
    let before = eventually("rest", || Some(count("fd")));
    for _ in 0..30 {
        let turn = daemon.round(&[
            ("1", "bash", json!({"command": "sh -c 'exit 0' & wait"})),
            ("2", "list_directory", json!({})),
        ]);
        assert_eq!(results(&turn).len(), 2);
        daemon.end(&turn);
    }
    eventually("as many descriptors as before", || (count("fd") <= before).then_some(()));
    let children = || {
        fs::read_to_string(format!("/proc/{0}/task/{0}/children", scene.pid()))
            .unwrap()
            .split_whitespace()
            .count()
    };
    eventually("no children", || (children() == 0).then_some(()));
    assert_eq!(count("task"), 1);
}
