//! How many tools, and for how long.

use crate::support::{Runner, as_outermost, binary, command, decode, text, wait_until};
use std::{fs, os::unix::net::UnixStream, process::Stdio};

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
fn what_is_left_in_the_group_of_a_late_tool_ends_with_it() {
    let runner = Runner::start(&["--timeout", "1"]);
    // Started by its path, so that it is no tool itself, and its parent is gone before the tool is there.
    let script = "setsid -w sh -c '(/usr/bin/sleep 600 >/dev/null 2>&1 & echo $! >left); exec tail -f /dev/null'; echo $?";
    let output = runner.shell(script);
    assert!(text(&output.stdout).ends_with("137\n"), "{}", text(&output.stderr));
    let left = fs::read_to_string(runner.work().join("left")).unwrap();
    wait_until("it is gone", || {
        let stat = fs::read_to_string(format!("/proc/{}/stat", left.trim())).unwrap_or_default();
        stat.is_empty() || stat.contains(") Z ")
    });
}

/// Whose the kernel says a process's environment is: root's, where the process may not be looked into.
fn owner_of_environment(pid: impl std::fmt::Display) -> u32 {
    use std::os::unix::fs::MetadataExt;
    fs::metadata(format!("/proc/{pid}/environ")).unwrap().uid()
}

#[test]
fn no_tool_of_the_same_user_looks_into_the_daemon_or_a_shim_and_a_late_tool_ends_all_the_same() {
    use std::os::unix::{
        fs::{MetadataExt, PermissionsExt},
        process::CommandExt,
    };
    // An ordinary user's, wherever this test itself is run: root's processes are root's to look into.
    let dir = tempfile::tempdir().unwrap();
    let (at, work) = (|name: &str| dir.path().join(name), dir.path().join("work"));
    let own = fs::metadata(dir.path()).unwrap().uid();
    let user = if own == 0 { 65534 } else { own };
    fs::create_dir(&work).unwrap();
    fs::copy(binary(), at("ringfence-toolrunner")).unwrap();
    let mut install = command(at("ringfence-toolrunner"));
    install.arg("install-shims").arg(at("shims")).arg("--no-profile");
    assert!(install.output().unwrap().status.success());
    for (path, mode) in [(dir.path().to_owned(), 0o755), (at("shims"), 0o755), (work.clone(), 0o777)] {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    }
    let of_user = |program: &str, args: &[&str]| {
        let mut command = command(program);
        command.args(args).current_dir(&work).env("RINGFENCE_TOOLRUNNER_SOCKET", work.join("socket"));
        command.env("PATH", format!("{}:{}", at("shims").display(), crate::support::PATH));
        if own == 0 {
            command.uid(user);
        }
        command
    };
    let mut other = of_user("/usr/bin/sleep", &["600"]).spawn().unwrap();
    let runner = at("ringfence-toolrunner");
    let flags = ["--timeout", "2", "--socket", "socket", "--spill-dir", ".", "--log", "log"];
    let mut daemon = of_user(runner.to_str().unwrap(), &flags).spawn().unwrap();
    wait_until("the daemon listens", || UnixStream::connect(work.join("socket")).is_ok());
    // The shell becomes the shim, whose child is the tool.
    let bash = as_outermost(of_user("bash", &[]), "echo $BASHPID >shell; exec tail -f /dev/null");
    let mut bash = { bash }.stdout(Stdio::piped()).spawn().unwrap();
    let shim = || fs::read_to_string(work.join("shell")).unwrap_or_default().trim().to_owned();
    let tool = || {
        let path = format!("/proc/{0}/task/{0}/children", shim());
        fs::read_to_string(path).unwrap_or_default().trim().to_owned()
    };
    let is_open =
        |pid: &str| fs::metadata(format!("/proc/{pid}/environ")).is_ok_and(|meta| meta.uid() == user);
    wait_until("the tool runs as itself", || !tool().is_empty() && is_open(&tool()));
    let owners = [daemon.id().to_string(), shim(), other.id().to_string()].map(owner_of_environment);
    // The daemon cannot look into the shim either.
    let status = bash.wait().unwrap();
    let mut log = String::new();
    wait_until("the run is in the log", || {
        log = fs::read_to_string(work.join("log")).unwrap_or_default();
        log.contains(r#""timed_out":true"#)
    });
    for child in [&mut daemon, &mut other] {
        child.kill().unwrap();
        child.wait().unwrap();
    }
    assert_eq!(owners, [0, 0, user], "the daemon's, the shim's, and another program's");
    assert_eq!(status.code(), Some(137), "{log}");
    // The shim saw its tool's end and told of it: it was not killed itself.
    assert!(log.contains(r#""signal":9"#) && log.contains(r#""bytes":0"#), "{log}");
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

/// Python that asks for so many tools and keeps them, then waits for its input's end: how many it was given.
const HOLD: &str = "import json,socket,struct,sys
path,count,held,given=sys.argv[1],int(sys.argv[2]),[],0
for n in range(count):
 s=socket.socket(socket.AF_UNIX);s.connect(path);held.append(s)
 ask=json.dumps({'ask':{'cmd':'hold','args':[],'left_out':0,'cwd':'/','end':False}}).encode()
 s.sendall(struct.pack('>I',len(ask))+ask)
 length=struct.unpack('>I',s.recv(4))[0]
 given+=s.recv(length).startswith(b'{\"go\"')
print(given,flush=True);sys.stdin.read()";

/// Python that opens connections, says nothing, and opens another for each that is closed.
const CROWD: &str = "import select,socket,sys
path,count,held=sys.argv[1],int(sys.argv[2]),[]
def more():
 while len(held)<count:
  s=socket.socket(socket.AF_UNIX);s.setblocking(False)
  try: s.connect(path)
  except BlockingIOError: return
  held.append(s)
more();print('held',flush=True)
while True:
 ready=select.select(held+[sys.stdin],[],[],0.01)[0]
 if sys.stdin in ready: break
 for s in ready: held.remove(s);s.close()
 more()";

/// Another user's process, its first line, and its end with the test.
fn stranger(runner: &Runner, script: &str, count: u32, uid: u32) -> Option<(std::process::Child, String)> {
    if !rustix::process::geteuid().is_root() {
        eprintln!("left out: another user's processes need root");
        return None;
    }
    fs::set_permissions(runner.dir.path(), std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let mut python = command("python3");
    python.args(["-c", script]).arg(runner.socket()).arg(count.to_string());
    std::os::unix::process::CommandExt::uid(&mut python, uid);
    let mut child = python.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    std::io::BufRead::read_line(&mut std::io::BufReader::new(child.stdout.take().unwrap()), &mut line)
        .unwrap();
    Some((child, line.trim().to_owned()))
}

fn end(mut child: std::process::Child) {
    drop(child.stdin.take());
    child.wait().unwrap();
}

#[test]
fn no_user_takes_all_places() {
    let runner = Runner::start(&["--max-tools", "8"]);
    let Some((first, given)) = stranger(&runner, HOLD, 20, 54_321) else { return };
    assert_eq!(given, "4", "half of them");
    let Some((second, given)) = stranger(&runner, HOLD, 20, 54_322) else { return };
    assert_eq!(given, "2", "three quarters for all users");
    let output = runner.shell("wc -c </dev/null");
    assert_eq!(text(&output.stdout), "0\n", "root's: {}", text(&output.stderr));
    let refused = &runner.log("hold", 1)[..];
    assert!(refused.iter().any(|run| run["refused"].as_str().is_some_and(|why| why.contains("one user"))));
    end(first);
    end(second);
    wait_until("the places are free again", || {
        stranger(&runner, HOLD, 3, 54_323).is_some_and(|(child, given)| {
            end(child);
            given == "3"
        })
    });
}

#[test]
fn connections_of_one_user_do_not_keep_another_s_tools_waiting() {
    let runner = Runner::start(&["--max-tools", "8"]);
    let Some((crowd, _)) = stranger(&runner, CROWD, 400, 54_321) else { return };
    for _ in 0..10 {
        let output = runner.shell("RINGFENCE_STRICT=1 wc -c </dev/null");
        assert_eq!(text(&output.stdout), "0\n", "{}", text(&output.stderr));
    }
    end(crowd);
}
