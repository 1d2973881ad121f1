//! What runs: statuses, streams, limits, and that nothing is left.

use crate::support::Session;
use ringfence_grant::{
    Grant,
    gate::{Cancel, ToolError},
};
use ringfence_test_support::{processes::lives, wait::wait_until};
use serde_json::{Value, json};
use std::{
    fs,
    pin::pin,
    task::{Context, Poll, Waker},
    thread,
    time::{Duration, Instant},
};

#[track_caller]
fn said(result: &Value, status: i32, stdout: &str, stderr: &str) {
    assert_eq!(result["exit_code"], status, "{result}");
    assert_eq!(result["stdout"], stdout, "{result}");
    assert_eq!(result["stderr"], stderr, "{result}");
}

/// Waits, within a limit, until no process of this id is left.
#[track_caller]
fn gone(pid: &str) {
    wait_until(&format!("process {pid} is gone"), || !lives(pid));
}

#[test]
fn statuses_as_a_shell_has_them() {
    let session = Session::new();
    said(&session.script("true && echo a || echo b"), 0, "a\n", "");
    said(&session.script("false && echo a || echo b; false"), 1, "b\n", "");
    said(&session.script("sh -c 'exit 7' | true"), 0, "", "");
    said(&session.script("true | sh -c 'exit 7'"), 7, "", "");
    said(&session.script("sh -c 'kill -9 $$'"), 137, "", "");
    said(&session.script("yes | head -n 1"), 0, "y\n", "");
    said(&session.script("false; false || echo c && echo d"), 0, "c\nd\n", "");
}

#[test]
fn redirects_and_pipes() {
    let session = Session::new();
    said(&session.script("sort < b.txt | uniq -c | tr -s ' ' | head -n 1"), 0, " 2 alpha\n", "");
    said(&session.script("sh -c 'echo o; echo e >&2' 2>&1 >/dev/null"), 0, "e\n", "");
    said(&session.script("sh -c 'echo o; echo e >&2' >x 2>&1; cat x"), 0, "o\ne\n", "");
    said(&session.script("echo first > y; echo second >> y; cat y y | wc -l"), 0, "4\n", "");
    said(&session.script("echo lost | cat a.txt > z | cat"), 0, "", "");
    said(&session.script("echo only >&2"), 0, "", "only\n");
    let missing = session.script("cat < none; echo after");
    said(&missing, 0, "after\n", "ringfence: none: No such file or directory (os error 2)\n");
    assert_eq!(session.script("cat < none")["exit_code"], 1);
    assert_eq!(session.script("cat < sub")["exit_code"], 1);
    let through = session.script("ln -s a.txt l; cat < l");
    said(&through, 1, "", "ringfence: l: Too many levels of symbolic links (os error 40)\n");
}

#[test]
fn a_program_sees_its_directory_its_name_and_no_input() {
    let session = Session::new();
    let dir = session.dir.to_str().unwrap();
    said(&session.script("pwd; cat"), 0, &format!("{dir}\n"), "");
    let sub =
        session.call(&Grant::top(), json!({"script": "pwd; cat c.txt > d; echo *", "cwd": "sub"})).unwrap();
    said(&sub, 0, &format!("{dir}/sub\nc.txt\n"), "");
    assert!(session.dir.join("sub/d").exists());
    said(&session.script("sh -c 'echo $0'"), 0, "sh\n", "");
}

#[test]
fn bytes_that_are_no_text_are_shown_and_said() {
    let session = Session::new();
    let odd = session.script("printf 'a\\377\\000b\\n'");
    said(&odd, 0, "a\u{fffd}\0b\n", "");
    assert_eq!(odd["stdout_utf8"], false);
    assert_eq!(session.script("echo é")["stdout_utf8"], Value::Null);
}

#[test]
fn output_beyond_the_bound_is_cut_in_the_middle_and_said() {
    let session = Session::new();
    let long = session.script("seq 1000000; echo end >&2");
    let text = long["stdout"].as_str().unwrap();
    assert!(text.len() < 600_000 && text.starts_with("1\n2\n") && text.ends_with("999999\n1000000\n"));
    assert!(text.contains("\n[...truncated 6"), "{}", text.len());
    assert_eq!((&long["truncated"], &long["stdout_bytes"]), (&json!(true), &json!(6_888_896)));
    assert_eq!(long["stderr"], "end\n");
    assert_eq!(session.script("seq 1000")["truncated"], false);
}

#[test]
fn when_the_time_is_over_everything_is_killed() {
    let session = Session::new();
    let script = "sh -c 'echo $$; sleep 1000 & echo $!; wait' | cat; echo never";
    // A busy machine may need more than a second until there is something to kill.
    for seconds in [1, 5, 60] {
        let begun = Instant::now();
        let over = session.call(&Grant::top(), json!({"script": script, "timeout_secs": seconds})).unwrap();
        assert!(begun.elapsed() < Duration::from_secs(500), "{:?}", begun.elapsed());
        assert_eq!(
            (&over["exit_code"], &over["timed_out"], &over["timeout_secs"]),
            (&Value::Null, &json!(true), &json!(seconds))
        );
        let said = over["stdout"].as_str().unwrap();
        said.lines().for_each(gone);
        if said.lines().count() == 2 {
            return;
        }
    }
    panic!("not even in a minute was there something to kill");
}

#[test]
fn what_a_command_leaves_running_ends_with_the_call() {
    let session = Session::new();
    let begun = Instant::now();
    let left = session.script("sh -c 'sleep 300 & echo $!'; sh -c 'sleep 300 & echo $!'");
    assert!(begun.elapsed() < Duration::from_secs(250));
    let said = left["stdout"].as_str().unwrap();
    assert_eq!(said.lines().count(), 2, "{said}");
    said.lines().for_each(gone);
}

#[test]
fn a_process_outside_of_the_group_that_holds_the_pipe_is_not_waited_for() {
    let session = Session::new();
    let begun = Instant::now();
    let left = session.script("sh -c 'setsid sleep 300 & echo $!'");
    assert!(begun.elapsed() < Duration::from_secs(250));
    let pid = left["stdout"].as_str().unwrap().trim().to_owned();
    // Without `ending_orphans` it lives on: end it.
    let _ = std::process::Command::new("kill").arg(&pid).status().unwrap();
    gone(&pid);
}

#[test]
fn a_cancelled_call_ends_what_it_runs() {
    let session = Session::new();
    let cancel = Cancel::default();
    let pid = session.dir.join("pid");
    let script = json!({"script": "sh -c 'echo $$ > pid.new; mv pid.new pid; exec sleep 300'"});
    let call = session.registry.authorize("shell", script, &Grant::top(), cancel.clone()).unwrap();
    thread::scope(|scope| {
        let call = scope.spawn(|| pin!(call.run()).poll(&mut Context::from_waker(Waker::noop())));
        wait_until("the command runs", || pid.exists());
        cancel.cancel("nobody waits for it");
        let ended = call.join().unwrap();
        assert!(matches!(ended, Poll::Ready(Err(ToolError::Cancelled))), "{ended:?}");
    });
    gone(fs::read_to_string(&pid).unwrap().trim());
}

#[test]
fn calls_at_the_same_time_do_not_mix() {
    let session = Session::new();
    thread::scope(|scope| {
        let threads: Vec<_> = (0..4)
            .map(|at| {
                let session = &session;
                scope.spawn(move || {
                    for round in 0..5 {
                        let result = session.script(&format!("echo {at} {round} | cat; echo {at} >&2"));
                        said(&result, 0, &format!("{at} {round}\n"), &format!("{at}\n"));
                    }
                })
            })
            .collect();
        threads.into_iter().for_each(|thread| thread.join().unwrap());
    });
}

#[test]
fn no_descriptor_of_the_server_reaches_a_program() {
    let session = Session::new();
    let listed = session.script("ls -l /proc/self/fd | cat");
    // What this process was itself started with may have been made to be inherited. A number that
    // another test's thread has just closed, or opens again, was not.
    let inherited = |fd: &str| {
        let Ok(info) = fs::read_to_string(format!("/proc/self/fdinfo/{fd}")) else { return false };
        let flags = info.lines().find_map(|line| line.strip_prefix("flags:")).map(str::trim);
        i32::from_str_radix(flags.unwrap(), 8).unwrap() & 0o2_000_000 == 0
    };
    let listed = listed["stdout"].as_str().unwrap().lines();
    let listed: Vec<(&str, &str)> = listed
        .filter_map(|line| line.split_once(" -> "))
        .map(|(before, target)| (before.rsplit(' ').next().unwrap(), target))
        .collect();
    // The directory that it lists is among them.
    assert!(listed.iter().any(|(_, target)| target.ends_with("/fd")), "{listed:?}");
    let own = |(fd, target): &&(&str, &str)| ["0", "1", "2"].contains(fd) || target.ends_with("/fd");
    let others: Vec<_> = listed.iter().filter(|each| !own(each) && !inherited(each.0)).collect();
    assert!(others.is_empty(), "{others:?}");
}

#[test]
fn a_pipeline_of_the_longest_kind() {
    let session = Session::new();
    said(&session.script(&format!("echo a{}", " | cat".repeat(63))), 0, "a\n", "");
    let many = session.script(&"true;".repeat(200));
    said(&many, 0, "", "");
}

#[test]
fn what_holds_the_grant_is_said() {
    let session = Session::new();
    let granted = session.grant(&[("exec", &["true"]), ("fs_write", &["."])]);
    let result = session.call(&granted, json!({"program": "true"})).unwrap();
    let enforcement = json!({"exec": "gate", "fs_read": "none", "fs_write": "gate", "net": "none"});
    assert_eq!(result["enforcement"], enforcement);
}
