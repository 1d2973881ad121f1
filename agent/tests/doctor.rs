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
    let verdict = ["Full", "Partial", "None"][usize::try_from(output.status.code().unwrap()).unwrap()];
    assert!(last.starts_with(verdict), "{last}");
}
