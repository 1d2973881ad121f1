//! Shims: what stays as it was for the tool, and what happens when nobody can be asked.

use crate::support::{PATH, Runner, binary, command, link, text};
use std::{
    fs,
    os::unix::{fs::PermissionsExt, process::ExitStatusExt},
};

#[test]
fn the_tool_keeps_its_parent_and_all_that_it_was_given() {
    let runner = Runner::start(&[]);
    let script = "#!/bin/sh\necho \"$PPID $(pwd) $A $(umask)\"; ulimit -n; cat <&3; cat\n";
    for dir in ["first", "work/sub"] {
        fs::create_dir(runner.at(dir)).unwrap();
    }
    runner.program("first/od", script);
    runner.file("three", "three\n");
    let path = format!("{}:{}:{PATH}", runner.at("shims").display(), runner.at("first").display());
    let script = "cd sub; umask 027; ulimit -n 77; export A='a b'; echo $$; od 3<../three <<< stdin | cat";
    let mut bash = runner.command("bash");
    let output = bash.args(["-c", script]).env("PATH", path).output().unwrap();
    let out = text(&output.stdout);
    let lines: Vec<&str> = out.lines().collect();
    let sub = runner.work().join("sub");
    let expected = format!("{} {} a b 0027", lines[0], sub.display());
    assert_eq!(lines[1..], [expected.as_str(), "77", "three", "stdin"], "{}", text(&output.stderr));
}

#[test]
fn a_signal_s_death_is_the_tool_s() {
    let runner = Runner::start(&[]);
    for shell in [Runner::shell, Runner::outermost] {
        let output = shell(&runner, "mkfifo f; cat f & exec 3>f; kill -TERM $!; wait $!; echo $?; rm f");
        assert_eq!(text(&output.stdout), "143\n", "{output:?}");
    }
    let mut cat = runner.command(runner.at("shims/sed").to_str().unwrap());
    let output =
        cat.args(["-n", "1e kill -USR1 $PPID"]).stdin(std::fs::File::open("/etc/passwd").unwrap()).output();
    assert_eq!(output.unwrap().status.signal(), Some(10));
}

#[test]
fn a_stopped_tool_stops_its_shell_s_job_and_goes_on() {
    let runner = Runner::start(&[]);
    let script = "set -m; mkfifo f; cat f & exec 3>f; kill -TSTP $!; \
                  until jobs | grep -q Stopped; do sleep 0.01; done; echo stopped; \
                  kill -CONT $!; echo line >&3; exec 3>&-; \
                  while wait $!; status=$?; [ $status -gt 128 ]; do sleep 0.01; done; echo $status";
    let output = runner.outermost(script);
    assert_eq!(text(&output.stdout), "stopped\nline\n0\n", "{}", text(&output.stderr));
}

#[test]
fn unknown_and_forbidden_tools_have_a_shell_s_statuses() {
    let runner = Runner::start(&[]);
    let shims = runner.at("shims");
    link(binary(), shims.join("no-such-tool"));
    let output = runner.shell("no-such-tool x; echo $?");
    assert_eq!(text(&output.stdout), "127\n");
    let shim = shims.join("no-such-tool");
    let said = format!("no-such-tool: command not found; {} is ringfence-toolrunner", shim.display());
    assert!(text(&output.stderr).contains(&said), "{output:?}");
    fs::create_dir(runner.at("other")).unwrap();
    fs::write(runner.at("other/no-such-tool"), "#!/bin/sh\n").unwrap();
    let path = format!("{}:{}", runner.path(), runner.at("other").display());
    let output =
        runner.command("bash").args(["-c", "no-such-tool; echo $?"]).env("PATH", path).output().unwrap();
    assert_eq!(text(&output.stdout), "126\n", "{output:?}");
    // An interpreter that is not there: found, and not run.
    fs::write(runner.at("other/no-such-tool"), "#!/no/such/interpreter\n").unwrap();
    fs::set_permissions(runner.at("other/no-such-tool"), PermissionsExt::from_mode(0o755)).unwrap();
    let path = format!("{}:{}", runner.path(), runner.at("other").display());
    let output =
        runner.command("bash").args(["-c", "no-such-tool; echo $?"]).env("PATH", path).output().unwrap();
    assert_eq!(text(&output.stdout), "126\n", "{output:?}");
}

#[test]
fn without_the_daemon_tools_work_and_it_is_said_once() {
    let mut runner = Runner::start(&[]);
    runner.file("a", "1\n2\n");
    runner.stop();
    let output = runner.outermost("cat a; cat a | sort -r; for n in 1 2 3; do cat a >/dev/null; done");
    assert_eq!(text(&output.stdout), "1\n2\n2\n1\n");
    let said = text(&output.stderr);
    assert_eq!(said.matches("nobody answers on").count(), 1, "{said}");
    assert!(said.contains("RINGFENCE_STRICT=1"));
    // Another run is told again.
    assert_eq!(text(&runner.outermost("cat a").stderr).matches("nobody answers on").count(), 1);
    // And when it is back, nothing is said.
    runner.restart();
    assert_eq!(text(&runner.outermost("cat a").stderr), "");
}

#[test]
fn strictly_nothing_runs_without_the_daemon() {
    let mut runner = Runner::start(&[]);
    runner.stop();
    let output = runner.shell("export RINGFENCE_STRICT=1; echo x | tee written; echo ${PIPESTATUS[1]}");
    assert_eq!(text(&output.stdout), "126\n");
    assert!(text(&output.stderr).contains("with RINGFENCE_STRICT=1 no tool runs"));
    assert!(!runner.work().join("written").exists());
}

#[test]
fn a_daemon_that_does_not_answer_holds_nobody_up() {
    let runner = Runner::without_daemon();
    // It listens, and never accepts.
    let _silent = std::os::unix::net::UnixListener::bind(runner.socket()).unwrap();
    runner.file("a", "1\n");
    let output = runner.shell("cat a");
    assert_eq!(text(&output.stdout), "1\n");
    assert!(text(&output.stderr).contains("no answer on"), "{output:?}");
}

#[test]
fn installing_makes_links_and_a_profile_and_takes_nothing_away() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    let install = |args: &[&str]| {
        let mut install = command(binary());
        install.arg("install-shims").arg(at("shims")).arg("--profile-dir").arg(at("profile.d"));
        install.args(args).output().unwrap()
    };
    let output = install(&[]);
    assert!(output.status.success(), "{output:?}");
    assert!(text(&output.stdout).contains(" shims in "));
    for name in ["cat", "grep", "xargs"] {
        assert_eq!(fs::read_link(at("shims").join(name)).unwrap(), binary().canonicalize().unwrap());
    }
    let profile = at("profile.d/zz-ringfence-toolrunner.sh");
    let mut sh = command("sh");
    let output = sh.args(["-c", &format!(". {}; echo $PATH", profile.display())]).output().unwrap();
    let first = fs::canonicalize(at("shims")).unwrap();
    assert_eq!(text(&output.stdout), format!("{}:{PATH}\n", first.display()));
    // Again, and by name, and over a link to a runner that was elsewhere.
    fs::remove_file(at("shims/cat")).unwrap();
    link("/old/ringfence-toolrunner", at("shims/cat"));
    assert!(install(&["cat", "git"]).status.success());
    assert!(fs::read_link(at("shims/git")).is_ok());
    assert_eq!(fs::read_link(at("shims/cat")).unwrap(), binary().canonicalize().unwrap());
    // What is no shim stays.
    fs::write(at("shims/mine"), "x").unwrap();
    let output = install(&["mine"]);
    assert!(!output.status.success() && text(&output.stderr).contains("is there and is no shim"));
    assert_eq!(fs::read_to_string(at("shims/mine")).unwrap(), "x");
    for bad in ["a/b", "..", "", "ringfence-toolrunner"] {
        let output = install(&[bad]);
        assert!(!output.status.success() && text(&output.stderr).contains("is no name of a tool"), "{bad}");
        assert!(!text(&output.stderr).contains("is not installed here"), "{bad}: it never can be");
    }
}

#[test]
fn a_shim_of_what_is_not_there_is_told() {
    let dir = tempfile::tempdir().unwrap();
    let install = |names: &[&str]| {
        let mut install = command(binary());
        install.arg("install-shims").arg(dir.path().join("shims")).args(names).arg("--no-profile");
        install.env("PATH", dir.path()).output().unwrap()
    };
    // An image whose tools are elsewhere must not be built as if all were well.
    let output = install(&[]);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(text(&output.stderr).contains("none of the usual tools is in PATH"), "{output:?}");
    let output = install(&["no-such-tool"]);
    assert!(output.status.success() && text(&output.stdout).starts_with("1 shim in "), "{output:?}");
    assert!(text(&output.stderr).contains("no-such-tool is not installed here"), "{output:?}");
}

#[test]
fn exec_needs_no_installation() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("big"), "1\n2\n3\n4\n5\n").unwrap();
    let run = |flags: &[&str], words: &[&str]| {
        let mut exec = command(binary());
        exec.arg("exec").args(flags).arg("--spill-dir").arg(dir.path()).arg("--").args(words);
        exec.current_dir(dir.path()).env("TMPDIR", dir.path()).output().unwrap()
    };
    let output = run(&["--max-lines", "2"], &["bash", "-c", "cat big | wc -l; cat big; exit 7"]);
    assert!(text(&output.stdout).starts_with("5\n1\n2\n...[truncated] 10 bytes"), "{output:?}");
    assert_eq!(output.status.code(), Some(7));
    // The command may be a tool itself.
    assert!(text(&run(&["--max-lines", "2"], &["cat", "big"]).stdout).starts_with("1\n2\n...[truncated]"));
    assert_eq!(run(&[], &["bash", "-c", "kill -TERM $$"]).status.signal(), Some(15));
    assert_eq!(run(&[], &["no-such-command"]).status.code(), Some(127));
    // Flags after the command are the command's, with `--` and without.
    let mut exec = command(binary());
    exec.args(["exec", "wc", "-l", "--", "big"]).current_dir(dir.path()).env("TMPDIR", dir.path());
    assert_eq!(text(&exec.output().unwrap().stdout), "5 big\n");
    let left: Vec<_> = fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left.len(), 2, "only the spill folder is left beside the file: {left:?}");
}

#[test]
fn help_has_examples() {
    for words in [["--help"].as_slice(), &["exec", "--help"], &["install-shims", "--help"]] {
        let output = command(binary()).args(words).output().unwrap();
        assert!(output.status.success() && text(&output.stdout).contains("Examples:"), "{words:?}");
    }
    let output = command(binary()).args(["--max-bytes", "0"]).output().unwrap();
    assert!(!output.status.success() && text(&output.stderr).contains("--max-bytes"));
    let long = format!("/tmp/{}", "x".repeat(120));
    let output = command(binary()).args(["--socket", &long]).output().unwrap();
    assert!(!output.status.success() && text(&output.stderr).contains("at most 107 bytes"), "{output:?}");
}
