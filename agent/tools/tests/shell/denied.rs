//! What the gate denies, each beside what it allows.

use crate::support::{PATH, Session, calls};
use ringfence_grant::Grant;
use serde_json::json;
use std::{
    fs,
    os::unix::fs::{PermissionsExt, symlink},
};

#[test]
fn the_documented_example() {
    let session = Session::new();
    let granted = session.grant(&[("exec", &["echo"])]);
    let out = session.call(&granted, json!({"program": "echo", "args": ["hello"]})).unwrap();
    assert_eq!((&out["exit_code"], &out["stdout"]), (&json!(0), &json!("hello\n")));
    let denied = session.denied(&granted, json!({"program": "rm", "args": ["-rf", "/"]}));
    assert_eq!(denied, "denied: exec of \"rm\" is not within the granted authority");
}

#[test]
fn another_program_of_a_granted_name() {
    let session = Session::new();
    let evil = session.dir.join("evil");
    fs::create_dir(&evil).unwrap();
    for name in ["git", "echo"] {
        fs::write(evil.join(name), "#!/bin/sh\necho evil\n").unwrap();
        fs::set_permissions(evil.join(name), fs::Permissions::from_mode(0o755)).unwrap();
    }
    let granted = session.grant(&[("exec", &["echo", "git"])]);
    let programs = ["evil/echo", "./evil/git", "../work/evil/echo"].map(str::to_owned);
    let absolute = evil.join("echo").to_string_lossy().into_owned();
    for program in programs.into_iter().chain([absolute]) {
        let denied = session.denied(&granted, json!({"program": program}));
        assert!(denied.contains("is not within the granted authority"), "{denied}");
        let denied = session.denied(&granted, json!({"script": format!("echo a; {program} b")}));
        assert!(denied.contains("is not within the granted authority"), "{denied}");
    }
    let here = session.grant(&[("exec", &["./evil"])]);
    assert_eq!(session.call(&here, json!({"program": "./evil/echo"})).unwrap()["stdout"], "evil\n");
    // The tool's directory is not searched, wherever it is.
    let denied =
        session.denied(&granted, json!({"program": "git", "args": ["--version"], "cwd": "/nowhere"}));
    assert!(denied.contains("not a directory"), "{denied}");
    let found = session.call(&granted, json!({"program": "echo", "args": ["a"], "cwd": evil})).unwrap();
    assert_eq!(found["stdout"], "a\n");
    assert!(!PATH.contains("evil"));
}

#[test]
fn one_stage_out_of_scope_and_nothing_runs() {
    let session = Session::new();
    let granted = session.grant(&[("exec", &["touch", "echo"])]);
    for script in [
        "touch made; rm made",
        "touch made\nrm made",
        "touch made | rm made",
        "touch made && echo a || rm made",
        "touch made\n\n  rm  made",
        "touch made > made; $(rm made)",
        "touch made; echo b > out; rm made",
    ] {
        session.denied(&granted, json!({"script": script}));
        assert!(!session.dir.join("made").exists() && !session.dir.join("out").exists(), "{script}");
    }
    session.call(&granted, json!({"script": "touch made; echo b > out"})).unwrap();
    assert!(session.dir.join("made").exists() && session.dir.join("out").exists());
}

#[test]
fn a_glob_and_a_variable_as_the_program() {
    let session = Session::new();
    for (script, says) in [
        ("/bin/ech? a", "a glob as the program is refused"),
        ("/usr/bin/[e]cho a", "a glob as the program is refused"),
        ("* a", "a glob as the program is refused"),
        ("$HOME a", "a variable as the program is refused"),
        ("echo a | \"$SHELL\"", "a variable as the program is refused"),
        ("${SHELL} -c id", "a variable as the program is refused"),
    ] {
        let denied = session.denied(&Grant::top(), json!({"script": script}));
        assert!(denied.starts_with("denied: line 1: ") && denied.contains(says), "{denied}");
    }
    assert_eq!(session.script("/bin/echo ?.txt")["stdout"], "a.txt b.txt\n");
}

#[test]
fn a_redirect_out_of_what_may_be_written() {
    let session = Session::new();
    let out = session.dir.join("../out");
    fs::create_dir(&out).unwrap();
    symlink(&out, session.dir.join("link")).unwrap();
    symlink(out.join("later"), session.dir.join("dangling")).unwrap();
    let granted = session.grant(&[("fs_write", &["."])]);
    let absolute = out.canonicalize().unwrap().join("x");
    for target in ["../out/x", "link/x", "sub/../../out/x", "dangling", absolute.to_str().unwrap(), "/etc/x"]
    {
        for redirect in [">", ">>", "2>", "2>>"] {
            let denied = session.denied(&granted, json!({"script": format!("echo a {redirect} {target}")}));
            assert!(denied.starts_with("denied: write of "), "{denied}");
        }
    }
    assert_eq!(fs::read_dir(&out).unwrap().count(), 0);
    session.call(&granted, json!({"script": "echo a > sub/../x; echo b >> 'x'"})).unwrap();
    assert_eq!(fs::read_to_string(session.dir.join("x")).unwrap(), "a\nb\n");
    let null = session.call(&granted, json!({"script": "echo a > /dev/null; echo b"})).unwrap();
    assert_eq!(null["stdout"], "b\n");
}

#[test]
fn a_redirect_from_what_may_not_be_read() {
    let session = Session::new();
    symlink("/etc/passwd", session.dir.join("link")).unwrap();
    let granted = session.grant(&[("fs_read", &["."])]);
    for target in ["/etc/passwd", "link", "../../../../../../../etc/passwd"] {
        let denied = session.denied(&granted, json!({"script": format!("cat < {target}")}));
        assert_eq!(denied, "denied: read of \"/etc/passwd\" is not within the granted authority");
    }
    assert_eq!(session.call(&granted, json!({"script": "cat < sub/c.txt"})).unwrap()["stdout"], "deep\n");
}

#[test]
fn the_servers_own_proc() {
    let session = Session::new();
    for target in ["/proc/self/environ", "/dev/stdin", "/dev/fd/0", "/proc/self/fd/1"] {
        let denied = session.denied(&Grant::top(), json!({"script": format!("cat < {target}")}));
        assert!(denied.starts_with("denied: ") && denied.contains("leads into /proc"), "{denied}");
        let denied = session.denied(&Grant::top(), json!({"program": "cat", "cwd": target}));
        assert!(denied.contains("leads into /proc"), "{denied}");
    }
}

#[test]
fn a_glob_where_nothing_may_be_read() {
    let session = Session::new();
    let granted = session.grant(&[("fs_read", &["./sub"])]);
    for script in ["echo *", "echo /etc/*", "echo sub/../*"] {
        let denied = session.denied(&granted, json!({"script": script}));
        assert!(denied.starts_with("denied: read of "), "{denied}");
    }
    let out = session.call(&granted, json!({"script": "echo sub/* '*' \"?\""})).unwrap();
    assert_eq!(out["stdout"], "sub/c.txt * ?\n");
    let denied = session.denied(&granted, json!({"program": "echo", "cwd": "/etc"}));
    assert!(denied.starts_with("denied: read of \"/etc\""), "{denied}");
    assert_eq!(session.call(&granted, json!({"program": "pwd", "cwd": "sub"})).unwrap()["exit_code"], 0);
}

#[test]
fn nothing_of_the_servers_environment() {
    // Cargo gives every test variables that are in no list of ours.
    assert!(std::env::var_os("CARGO_MANIFEST_DIR").is_some());
    let session = Session::new();
    let out = session.script("env");
    let names: Vec<_> = out["stdout"].as_str().unwrap().lines().filter_map(|l| l.split_once('=')).collect();
    assert!(names.iter().any(|(name, value)| (*name, *value) == ("PATH", PATH)), "{names:?}");
    assert!(names.iter().all(|(name, _)| !name.starts_with("CARGO")), "{names:?}");
    for script in ["echo $CARGO_MANIFEST_DIR", "echo \"${CARGO_MANIFEST_DIR}\"", "cat <$CARGO_MANIFEST_DIR"] {
        let denied = session.denied(&Grant::top(), json!({"script": script}));
        assert!(denied.contains("the variable $CARGO_MANIFEST_DIR is refused: only "), "{denied}");
    }
    let literal =
        session.call(&Grant::top(), json!({"program": "echo", "args": ["$PATH", "*", "a b"]})).unwrap();
    assert_eq!(literal["stdout"], "$PATH * a b\n");
}

#[test]
fn a_newline_is_a_second_command() {
    let session = Session::new();
    let granted = session.grant(&[("exec", &["echo"])]);
    let denied = session.denied(&granted, json!({"script": "echo a\nrm a.txt"}));
    assert_eq!(denied, "denied: exec of \"rm\" is not within the granted authority");
    let quoted = session.call(&granted, json!({"script": "echo 'a\nrm a.txt'"})).unwrap();
    assert_eq!(quoted["stdout"], "a\nrm a.txt\n");
}

#[test]
fn a_call_that_is_refused_costs_nothing() {
    let session = Session::new();
    let granted = calls(2);
    for script in ["echo $(id)", "echo a > /proc/self/mem", "nonesuch"] {
        session.denied(&granted, json!({"script": script}));
    }
    session.call(&granted, json!({"program": "true"})).unwrap();
    session.call(&granted, json!({"program": "false"})).unwrap();
    let spent = session.denied(&granted, json!({"program": "true"}));
    assert_eq!(spent, "denied: the 2 granted calls are used up");
}

#[test]
fn what_is_too_much_runs_nothing() {
    let session = Session::new();
    let touch = |times: usize, with: &str| format!("touch made{with}").repeat(times);
    for script in [touch(10_000, ";"), touch(10_000, "|"), touch(100_000, "\n"), "x".repeat(1 << 20)] {
        session.denied(&Grant::top(), json!({"script": script}));
    }
    for args in
        [json!(7), json!({"script": 7}), json!({"program": "touch", "args": "made"}), json!({"script": ""})]
    {
        session.denied(&Grant::top(), args);
    }
    session.denied(&Grant::top(), json!({"program": "touch", "args": vec!["made"; 1 << 20]}));
    assert!(!session.dir.join("made").exists());
    // What Linux takes in one argument is less than what it takes in all; a shell's status for that is 126.
    let long =
        session.call(&Grant::top(), json!({"program": "true", "args": ["x".repeat(200_000)]})).unwrap();
    assert_eq!(long["exit_code"], 126);
}
