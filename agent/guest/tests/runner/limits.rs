//! How many tools, and for how long.

use crate::support::{Runner, as_outermost, binary, command, decode, text, wait_until};
use std::{fs, process::Stdio};

#[test]
fn more_tools_than_may_run_are_refused() {
    let runner = Runner::start(&["--max-tools", "2"]);
    fs::create_dir(runner.at("gate")).unwrap();
    let script = "mkfifo f; cat f | tee g >/dev/null & exec 3>f; \
                  until [ -e g ]; do sleep 0.01; done; wc -c </dev/null; echo $?; exec 3>&-; wait; wc -c </dev/null";
    let output = runner.shell(script);
    let said = text(&output.stderr);
    assert!(
        said.contains("wc: 2 tools run, which is the most (--max-tools)"),
        "{said} {}",
        text(&output.stdout)
    );
    assert!(text(&output.stdout).starts_with("126\n"));
    assert!(runner.log("wc", 1)[0]["refused"].is_string());
    wait_until("there is room again", || text(&runner.shell("wc -c </dev/null").stdout) == "0\n");
}

#[test]
fn v1_counts_too() {
    let runner = Runner::start(&["--max-tools", "1"]);
    // The pipe opens only when its reader runs.
    let script = "mkfifo f; cat f & exec 3>f; echo >up; read -r; exec 3>&-; wait";
    let mut child = runner.command("bash").args(["-c", script]).stdin(Stdio::piped()).spawn().unwrap();
    wait_until("the only place is taken", || runner.work().join("up").exists());
    assert_eq!(decode(&runner.exchange(b"true\n")).2, 1);
    drop(child.stdin.take());
    child.wait().unwrap();
    wait_until("there is room again", || decode(&runner.exchange(b"true\n")).2 == 0);
}

#[test]
fn a_tool_that_takes_too_long_is_killed_and_its_script_goes_on() {
    let runner = Runner::start(&["--timeout", "1"]);
    for shell in [Runner::shell, Runner::outermost] {
        let output =
            shell(&runner, "tail -f /dev/null; echo $?; xargs -I{} sh -c 'sleep 600; true' <<< x; echo $?");
        assert_eq!(text(&output.stdout), "137\n137\n", "{}", text(&output.stderr));
    }
    let log = runner.log("tail", 2);
    assert!(log.iter().all(|run| run["timed_out"] == true), "{log:?}");
}

#[test]
fn the_tool_of_a_killed_shim_does_not_outlive_it() {
    let runner = Runner::start(&[]);
    let mut bash = as_outermost(runner.command("bash"), "echo $BASHPID > shell; exec tail -f /dev/null");
    let mut child = bash.stdout(Stdio::piped()).spawn().unwrap();
    let shell = runner.work().join("shell");
    let tool = || {
        let pid = fs::read_to_string(&shell).unwrap_or_default();
        let children =
            fs::read_to_string(format!("/proc/{0}/task/{0}/children", pid.trim())).unwrap_or_default();
        children.trim().to_owned()
    };
    wait_until("the tool runs", || !tool().is_empty());
    let tool = tool();
    let pid: i32 = fs::read_to_string(&shell).unwrap().trim().parse().unwrap();
    let pid = rustix::process::Pid::from_raw(pid).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
    wait_until("it is gone", || {
        let stat = fs::read_to_string(format!("/proc/{tool}/stat")).unwrap_or_default();
        stat.is_empty() || stat.contains(") Z ")
    });
    child.wait().unwrap();
}

#[test]
fn it_uses_little_memory() {
    let runner = Runner::start(&[]);
    for _ in 0..20 {
        runner.exchange(b"head\t-c\t100000\t/dev/zero\n");
    }
    let status = fs::read_to_string(format!("/proc/{}/status", runner.daemon_pid())).unwrap();
    let rss = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    let kib: u64 = rss.trim().trim_end_matches(" kB").parse().unwrap();
    // As `cargo test` builds it; the static binary is measured by `cargo xtask bench tools`.
    assert!(kib < 12 * 1024, "{kib} KiB");
}

/// Starts a daemon under a limit of open files; what it says if it ends, or its own limit when it serves.
fn files(tools: &str, soft_and_hard: (u64, u64)) -> Result<u64, String> {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("socket");
    let (soft, hard) = soft_and_hard;
    let script = format!("ulimit -Sn {soft} && ulimit -Hn {hard} && exec \"$@\"");
    let mut daemon = command("bash");
    daemon.args(["-c", &script, "bash"]).arg(binary()).args(["--max-tools", tools, "--socket"]).arg(&socket);
    let mut daemon = daemon.stderr(Stdio::piped()).spawn().unwrap();
    let mut end = None;
    wait_until("it serves or ends", || {
        end = daemon.try_wait().unwrap();
        end.is_some() || socket.exists()
    });
    if end.is_some() {
        let said = daemon.wait_with_output().unwrap();
        assert!(!said.status.success());
        return Err(text(&said.stderr));
    }
    let limits = fs::read_to_string(format!("/proc/{}/limits", daemon.id())).unwrap();
    daemon.kill().unwrap();
    daemon.wait().unwrap();
    let line = limits.lines().find_map(|line| line.strip_prefix("Max open files")).unwrap();
    Ok(line.split_ascii_whitespace().next().unwrap().parse().unwrap())
}

#[test]
fn there_are_files_for_as_many_tools_as_may_run() {
    assert_eq!(files("256", (1024, 1024)), Ok(1024));
    assert_eq!(files("300", (1024, 2000)), Ok(300 * 3 + 192 + 32));
    let why = files("300", (1024, 1024)).unwrap_err();
    assert!(why.contains("300 tools at a time (--max-tools) need 1124 open files"), "{why}");
}

#[test]
fn nothing_of_a_run_stays_open() {
    let runner = Runner::start(&["--truncate", "each"]);
    let fds = || fs::read_dir(format!("/proc/{}/fd", runner.daemon_pid())).unwrap().count();
    let before = fds();
    // Run by shims that cut, and by shims that became them.
    runner.shell("for n in 1 2 3; do cat /dev/null; RINGFENCE_TRUNCATE=off cat /dev/null; done");
    let log = runner.log("cat", 6);
    assert_eq!(log.iter().filter(|run| run["status"] == 0).count(), 3, "{log:?}");
    wait_until("all is closed", || fds() <= before);
}
