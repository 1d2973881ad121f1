//! The daemon and its clients where they cannot work: each says in one sentence what is wrong and what to do.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use assert_cmd::Command;
use rustix::fs::{FlockOperation, flock};
use std::{
    fs::{self, File},
    io::Write as _,
    os::unix::{fs::PermissionsExt, net::UnixListener, process::CommandExt},
    path::Path,
    process::Output,
    thread,
    time::Duration,
};

const NOBODY: u32 = 65534;

fn root() -> bool {
    rustix::process::geteuid().is_root()
}

/// The binary with directories of its own.
fn ringfence(dir: &Path, args: &[&str]) -> std::process::Command {
    let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_ringfence"));
    command
        .args(args)
        .env("RINGFENCE_RUNTIME_DIR", dir.join("run"))
        .env("RINGFENCE_STATE_DIR", dir.join("state"))
        .env("RINGFENCE_CONFIG_DIR", dir.join("config"))
        .env_remove("RUST_LOG");
    command
}

fn finish(command: std::process::Command) -> Output {
    Command::from_std(command).timeout(Duration::from_secs(60)).output().unwrap()
}

/// Runs it; gives its exit status and the one line of its error.
fn refusal(command: std::process::Command) -> (i32, String) {
    let output = finish(command);
    let said = String::from_utf8(output.stderr).unwrap();
    let errors: Vec<&str> = said.lines().filter(|line| line.starts_with("ringfence: ")).collect();
    assert_eq!(errors.len(), 1, "{said}");
    (output.status.code().unwrap(), errors[0].to_owned())
}

#[test]
fn who_is_not_root_cannot_start_the_daemon_nor_install() {
    let dir = tempfile::tempdir().unwrap();
    for args in [&["daemon"][..], &["install"], &["uninstall"]] {
        let mut command = ringfence(dir.path(), args);
        if root() {
            // The test's own build directory may be closed to others: run a copy.
            let copy = dir.path().join("ringfence");
            if !copy.exists() {
                // By another process: a child of another test, forked while we write, would keep the copy busy.
                let mut cp = std::process::Command::new("cp");
                assert!(cp.arg(env!("CARGO_BIN_EXE_ringfence")).arg(&copy).status().unwrap().success());
            }
            fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
            command = std::process::Command::new(copy);
            command
                .args(args)
                .env("RINGFENCE_RUNTIME_DIR", dir.path().join("run"))
                .uid(NOBODY)
                .current_dir("/");
        }
        let (status, said) = refusal(command);
        assert_eq!(status, 1);
        assert!(said.contains("needs root"), "{said}");
    }
    assert!(!dir.path().join("run").exists(), "nothing was made");
}

#[test]
fn a_second_daemon_names_the_first() {
    if !root() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir(dir.path().join("run")).unwrap();
    let mut lock = File::create(dir.path().join("run/daemon.lock")).unwrap();
    writeln!(lock, "4711").unwrap();
    flock(&lock, FlockOperation::LockExclusive).unwrap();
    let (status, said) = refusal(ringfence(dir.path(), &["daemon"]));
    assert_eq!(status, 1);
    assert!(said.contains("a daemon runs already (pid 4711"), "{said}");
}

#[test]
fn a_runtime_directory_that_cannot_be_made_is_named() {
    if !root() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("run"), "a file").unwrap();
    let (status, said) = refusal(ringfence(dir.path(), &["daemon"]));
    assert_eq!(status, 1);
    assert!(said.contains(&*dir.path().join("run").to_string_lossy()), "{said}");
}

#[test]
fn without_a_daemon_its_clients_say_how_to_start_it() {
    let dir = tempfile::tempdir().unwrap();
    let own = std::process::id().to_string();
    for args in [&["status"][..], &["status", "--json"], &["enroll", "--pid", &own, "--profile", "coder"]] {
        let (status, said) = refusal(ringfence(dir.path(), args));
        assert_eq!(status, 1, "{args:?}");
        assert!(said.contains("the daemon does not run") && said.contains("ringfence daemon"), "{said}");
    }
}

#[test]
fn enroll_wants_one_target_that_exists() {
    let dir = tempfile::tempdir().unwrap();
    for args in [
        &["enroll", "--profile", "coder"][..],
        &["enroll", "--pid", "1", "--cgroup", "/", "--profile", "coder"],
        &["enroll", "--pid", "1"],
        &["enroll", "--pid=-5", "--profile", "coder"],
    ] {
        assert_eq!(finish(ringfence(dir.path(), args)).status.code(), Some(2), "{args:?}");
    }
    // Larger than any pid_max.
    let (_, said) = refusal(ringfence(dir.path(), &["enroll", "--pid", "2147483647", "--profile", "x"]));
    assert!(said.contains("no process 2147483647"), "{said}");
    let (_, said) = refusal(ringfence(dir.path(), &["enroll", "--cgroup", "/nowhere", "--profile", "x"]));
    assert!(said.contains("no cgroup /nowhere"), "{said}");
}

#[test]
fn a_daemon_that_talks_nonsense_is_no_crash() {
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir(dir.path().join("run")).unwrap();
    let listener = UnixListener::bind(dir.path().join("run/admin.sock")).unwrap();
    let answers: [&[u8]; 5] =
        [b"", b"\0\0\0\0", b"\xff\xff\xff\xff", b"\0\0\0\x05nulls", b"\0\0\0\x0b{\"ok\":null}"];
    let server = thread::spawn(move || {
        for answer in answers {
            let (mut stream, _) = listener.accept().unwrap();
            let _ = stream.write_all(answer);
        }
    });
    for _ in answers {
        let (status, said) = refusal(ringfence(dir.path(), &["status"]));
        assert_eq!(status, 1);
        assert!(said.contains("talking to the daemon failed"), "{said}");
    }
    server.join().unwrap();
}

#[test]
fn a_daemon_that_gives_no_answer_is_said_to_give_none_at_once_and_in_the_end() {
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir(dir.path().join("run")).unwrap();
    // Connections are queued, as those of a stopped process are.
    let _socket = UnixListener::bind(dir.path().join("run/admin.sock")).unwrap();
    let mut command = ringfence(dir.path(), &["status"]);
    command.env("HOME", dir.path()).env_remove("XDG_RUNTIME_DIR");
    let output = finish(command);
    let said = String::from_utf8(output.stderr).unwrap();
    let lines: Vec<&str> = said.lines().collect();
    assert_eq!((output.status.code(), lines.len()), (Some(1), 2), "{said}");
    assert!(lines[0].starts_with("the daemon has not answered yet"), "{said}");
    assert!(lines[0].contains("the kernel goes on enforcing"), "{said}");
    assert!(lines[1].contains("enforced by the kernel"), "{said}");
    assert!(
        lines[1].contains("does not answer") && lines[1].contains("systemctl status ringfence"),
        "{said}"
    );
    assert!(output.stdout.is_empty(), "{:?}", output.stdout);
}
