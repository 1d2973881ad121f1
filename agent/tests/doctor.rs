//! `ringfence doctor` on this host: whatever it is, the report and the exit status agree.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use serde_json::Value;
use std::process::{Command, Output};

fn doctor(args: &[&str]) -> Output {
    let dir = tempfile::tempdir().unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_ringfence"));
    command.env("RINGFENCE_RUNTIME_DIR", dir.path()).arg("doctor").args(args).output().unwrap()
}

#[test]
fn the_json_and_the_exit_status_agree() {
    let output = doctor(&["--json"]);
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let expected = match report["verdict"].as_str().unwrap() {
        "full" => 0,
        "partial" => 1,
        "none" => 2,
        "unknown" => 3,
        other => panic!("{other}"),
    };
    assert_eq!(output.status.code(), Some(expected));
    assert_eq!(report["daemon"], "not_running");
    let axes: Vec<&str> =
        report["axes"].as_array().unwrap().iter().map(|a| a["axis"].as_str().unwrap()).collect();
    assert_eq!(axes, ["fs_read", "fs_write", "exec", "net"]);
    for axis in report["axes"].as_array().unwrap() {
        assert_eq!(axis["full"].as_bool(), Some(expected == 0), "{axis}");
        assert_eq!(axis.get("open").is_none(), expected == 0, "what is open is said: {axis}");
    }
    for check in report["checks"].as_array().unwrap() {
        assert_eq!(check["ok"].as_bool().unwrap(), check.get("advice").is_none(), "{check}");
    }
}

#[test]
fn the_text_names_every_axis_and_what_is_missing() {
    let output = doctor(&[]);
    let text = String::from_utf8(output.stdout).unwrap();
    for word in
        ["kernel", "lsm list", "btf", "landlock", "seccomp", "cgroup", "lockdown", "daemon", "fs_read", "net"]
    {
        assert!(text.contains(word), "{word}: {text}");
    }
    let last = text.lines().last().unwrap();
    let verdict =
        ["Full", "Partial", "None", "Unknown"][usize::try_from(output.status.code().unwrap()).unwrap()];
    assert!(last.starts_with(verdict), "{last}");
}

/// As an ordinary user, who cannot ask the kernel: nothing is promised that was not looked at.
#[test]
fn an_ordinary_user_hears_what_is_unknown_and_no_success() {
    use std::os::unix::{fs::PermissionsExt, process::CommandExt};
    let dir = tempfile::tempdir().unwrap();
    std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    let binary = dir.path().join("ringfence");
    std::fs::copy(env!("CARGO_BIN_EXE_ringfence"), &binary).unwrap();
    let mut command = Command::new("sh");
    // A child of another test, forked while the file was copied, keeps it busy for a moment.
    let script = "while :; do \"$0\" doctor --json; code=$?; [ $code = 126 ] || exit $code; done";
    command.args(["-c", script, binary.to_str().unwrap()]);
    command.env("RINGFENCE_RUNTIME_DIR", dir.path());
    if nix::unistd::geteuid().is_root() {
        command.uid(65534).gid(65534);
    }
    let output = command.output().unwrap();
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_ne!(report["verdict"], "full", "{report}");
    assert_ne!(output.status.code(), Some(0));
    let check = report["checks"].as_array().unwrap().iter().find(|check| check["what"] == "bpf lsm").unwrap();
    assert_eq!((&check["ok"], &check["unknown"]), (&Value::Bool(false), &Value::Bool(true)), "{check}");
    assert!(check["found"].as_str().unwrap().starts_with("unknown"), "{check}");
}
