//! The end of the line in a PID namespace, as a container's.

use crate::support::{Runner, text};
use std::process::{Command, Output};

/// Runs a command as the first process of a PID namespace of its own, by a new user namespace where this user is not root.
fn first(runner: &Runner, command: &[&str]) -> Option<Output> {
    let unshare = |command: &[&str]| -> Command {
        let mut unshare = runner.command("unshare");
        if !rustix::process::geteuid().is_root() {
            unshare.args(["--user", "--map-root-user"]);
        }
        unshare.args(["--pid", "--fork", "--mount-proc", "--kill-child", "--"]).args(command);
        unshare
    };
    // Not every machine allows it; there, the VM tests' container shows the same.
    if !unshare(&["true"]).output().is_ok_and(|output| output.status.success()) {
        eprintln!("no PID namespace can be made here");
        return None;
    }
    Some(unshare(command).output().unwrap())
}

#[test]
fn the_process_that_came_from_outside_is_the_outermost() {
    let runner = Runner::start(&["--max-lines", "3"]);
    runner.file("big", "1\n2\n3\n4\n5\n");
    runner.program("work/script.sh", "#!/bin/sh\ncat big\n");
    for (command, is_cut) in [
        (["cat", "big", "", ""].as_slice(), true),
        (&["bash", "-c", "cat big; true"], true),
        (&["bash", "-c", "cat big | cat; true"], true),
        // Below a shell that is the namespace's first process, as in `docker run image bash -c ...`.
        (&["bash", "-c", "cat big | grep -c .; true"], false),
        (&["bash", "-c", "./script.sh | wc -l; true"], false),
        (&["bash", "-c", "(setsid cat big) | wc -l; true"], false),
        (&["python3", "-c", "import subprocess; print(len(subprocess.check_output(['cat', 'big'])))"], false),
        (&["python3", "-c", "import subprocess; subprocess.run('cat big; true', shell=True)"], true),
    ] {
        let command: Vec<&str> = command.iter().copied().filter(|word| !word.is_empty()).collect();
        let Some(output) = first(&runner, &command) else { return };
        let out = text(&output.stdout);
        assert_eq!(out.contains("...[truncated]"), is_cut, "{command:?}: {out} {}", text(&output.stderr));
        if is_cut {
            assert!(out.starts_with("1\n2\n3\n...[truncated]"), "{command:?}: {out}");
        } else {
            assert!(["5\n", "10\n"].contains(&out.as_str()), "{command:?}: {out}");
        }
    }
}
