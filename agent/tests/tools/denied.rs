//! What must be denied, by the gate or by the kernel behind it: each with a control that is allowed.

use crate::{Host, Outcome, call, grant};
use serde_json::{Value, json};
use std::{fs, net::TcpListener, os::unix::fs::PermissionsExt, os::unix::fs::symlink};

fn shell(host: &Host, program: &str, args: &[&str]) -> Outcome {
    host.call("shell", json!({"program": program, "args": args}))
}

/// A host on which `work` may be written, nothing else, and some programs run.
fn confined(exec: &[&str], rest: Value) -> Host {
    let host = Host::new();
    let work = host.path("work");
    let mut rest = rest;
    rest["fs_write"] = json!({"only": [work]});
    let text = grant(exec, rest).to_string();
    host.with("RINGFENCE_GRANT", &text)
}

#[test]
fn another_program_of_a_granted_name_is_not_that_program() {
    let host = confined(&["true"], json!({}));
    let evil = host.path("work/true");
    fs::write(&evil, "#!/bin/sh\necho evil\n").unwrap();
    fs::set_permissions(&evil, fs::Permissions::from_mode(0o755)).unwrap();
    assert_eq!(shell(&host, "true", &[]).envelope()["exit_code"], 0);
    assert_eq!(shell(&host, "/usr/bin/true", &[]).envelope()["exit_code"], 0);
    for program in [evil.to_str().unwrap(), "./true", "../work/true"] {
        shell(&host, program, &[]).denied();
    }
    let host = host.with("PATH", &format!("{}:/usr/bin:/bin", evil.parent().unwrap().display()));
    // First on PATH, it still is not what the name means: the grant lets tools write there.
    for program in ["true", "/usr/bin/true"] {
        assert_eq!(shell(&host, program, &[]).stdout(), "", "{program}");
    }
    assert_eq!(
        shell(&host, evil.to_str().unwrap(), &[]).denied(),
        format!("denied: exec of \"{}\" is not within the granted authority", evil.display())
    );
}

#[test]
fn what_the_client_left_open_reaches_no_tool() {
    let host = confined(&["ls"], json!({}));
    let started = |command: &str| {
        let words = format!("exec 9< /etc/passwd; exec {command}");
        let mut shell = assert_cmd::Command::new("sh");
        shell.args(["-c", &words]).env_clear().env("PATH", "/usr/bin:/bin").env("HOME", host.path("."));
        shell.env("RINGFENCE_RUNTIME_DIR", host.path("run")).env("RINGFENCE_CONFIG_DIR", host.path("etc"));
        shell.envs(&host.variables).current_dir(host.path("work")).timeout(crate::LIMIT);
        let line = call(1, "shell", json!({"program": "ls", "args": ["/proc/self/fd"]}));
        String::from_utf8(shell.write_stdin(format!("{line}\n")).output().unwrap().stdout).unwrap()
    };
    let control = started("ls /proc/self/fd");
    assert!(control.lines().any(|descriptor| descriptor == "9"), "{control}");
    let answer: Value =
        serde_json::from_str(&started(&format!("{} tools", env!("CARGO_BIN_EXE_ringfence")))).unwrap();
    let envelope: Value =
        serde_json::from_str(answer["result"]["content"][0]["text"].as_str().unwrap()).unwrap();
    let listed = envelope["stdout"].as_str().unwrap();
    assert!(listed.lines().any(|descriptor| descriptor == "2"), "{envelope}");
    assert!(!listed.lines().any(|descriptor| descriptor == "9"), "{envelope}");
}

#[test]
fn a_grandchild_writes_where_it_may_and_nowhere_else() {
    let host = confined(&["sh"], json!({}));
    let (inside, outside) = (host.path("work/inside"), host.path("out/outside"));
    let script = format!(
        "sh -c 'sh -c \"echo x > {}\"'; sh -c 'sh -c \"echo x > {}\"' 2>/dev/null; echo $?",
        inside.display(),
        outside.display()
    );
    let outcome = shell(&host, "sh", &["-c", &script]);
    assert_eq!(outcome.stdout(), "2\n", "{outcome:?}");
    assert_eq!(fs::read_to_string(inside).unwrap(), "x\n");
    assert!(!outside.exists());
    let enforcement = outcome.envelope()["enforcement"].clone();
    assert_eq!(enforcement["exec"], "gate", "Landlock does not hold ld.so and memfd: {enforcement}");
    assert_eq!(enforcement["fs_read"], "none", "nothing is restricted: {enforcement}");
}

#[test]
fn links_and_dots_lead_no_further() {
    let host = confined(&["cat"], json!({"fs_read": {"only": []}}));
    let work = host.path("work");
    let host = host.with(
        "RINGFENCE_GRANT",
        &grant(&["cat"], json!({"fs_read": {"only": [work]}, "fs_write": {"only": [work]}})).to_string(),
    );
    fs::write(host.path("work/own"), "own\n").unwrap();
    fs::write(host.path("out/secret"), "secret\n").unwrap();
    symlink(host.path("out/secret"), host.path("work/link")).unwrap();
    assert_eq!(shell(&host, "cat", &["own"]).stdout(), "own\n");
    for path in ["link", "../out/secret", "../work/link"] {
        let read = shell(&host, "cat", &[path]).envelope();
        assert_eq!((&read["stdout"], &read["exit_code"]), (&json!(""), &json!(1)), "{path}: {read}");
        assert_eq!(read["enforcement"]["fs_read"], "kernel", "{read}");
        host.call("read_file", json!({"path": path})).denied();
    }
    for script in ["cat own > ../out/new", "cat own > link", "cat < link"] {
        host.call("shell", json!({"script": script})).denied();
    }
    assert_eq!(fs::read_to_string(host.path("out/secret")).unwrap(), "secret\n");
    assert!(!host.path("out/new").exists());
}

#[test]
fn sockets_that_carry_their_own_addresses_are_refused() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let host = confined(&["python3"], json!({"net": {"only": [format!("127.0.0.1:{port}")]}}));
    let script = "import socket,sys\n\
        def tried(*kind):\n\
        \x20try: socket.socket(*kind); return 'made'\n\
        \x20except OSError as e: return str(e.errno)\n\
        print(tried(2,2), tried(2,3,1), tried(17,3), tried(16,3), tried(10,2), tried(2,1))\n\
        s = socket.create_connection(('127.0.0.1', int(sys.argv[1]))); print('connected')\n";
    let outcome = shell(&host, "python3", &["-c", script, &port.to_string()]);
    // EACCES, which is not what the kernel says to an ordinary user (EPERM).
    assert_eq!(outcome.stdout(), "13 13 13 13 13 made\nconnected\n", "{outcome:?}");
}

#[test]
fn a_secret_of_the_server_s_environment_stays_there() {
    let host = Host::granting(&grant(&["env", "sh"], json!({}))).with("API_TOKEN", "hunter2-secret");
    let outcome = shell(&host, "env", &[]);
    assert!(outcome.stdout().contains("PATH="), "{outcome:?}");
    assert!(!outcome.text.contains("hunter2-secret"));
    // The server's own is another process's memory.
    let read = shell(&host, "sh", &["-c", "IFS= read -r x < /proc/$PPID/environ; echo \"$x\" end"]);
    assert!(read.stdout().contains("end") && !read.text.contains("hunter2-secret"), "{read:?}");
}

#[test]
fn the_file_tools_read_no_process_s_environment() {
    // Without a NUL near its beginning it looks like a text.
    let long = "x".repeat(9000);
    let host = Host::granting(&grant(&["true"], json!({})))
        .with("A_LONG_ONE", &long)
        .with("API_TOKEN", "hunter2-secret");
    let link = host.path("work/link");
    std::os::unix::fs::symlink("/proc/self", &link).unwrap();
    let paths = ["/proc/self/environ", "/proc/thread-self/environ", "link/environ", "/proc/1/environ"];
    let mut lines = vec![call(0, "read_file", json!({"path": "/proc/version"}))];
    for (path, id) in paths.iter().zip((1..).step_by(2)) {
        lines.push(call(id, "read_file", json!({"path": path})));
        lines.push(call(id + 1, "search", json!({"path": path, "pattern": "."})));
    }
    let said = host.say(&[], &lines);
    assert!(said.outcome(0).text.contains("Linux"), "{:?}", said.outcome(0));
    for id in 1..lines.len() as u64 {
        let outcome = said.outcome(id);
        assert!(outcome.is_error && outcome.text.contains("a process's own"), "{}", outcome.text.len());
    }
}

#[test]
fn hostile_arguments_run_nothing() {
    let host = Host::granting(&grant(&["touch"], json!({})));
    let lines: Vec<String> = [
        json!({}),
        json!({"program": 7}),
        json!({"program": "touch", "args": "x"}),
        json!({"program": "touch", "args": [1]}),
        json!({"program": "touch", "args": ["a\u{0}b"]}),
        json!({"program": "touch", "script": "touch x"}),
        json!({"program": ["touch"]}),
        json!({"script": ["touch"]}),
        json!({"program": "touch", "args": ["x"], "more": true}),
        json!({"program": "touch", "args": ["x"], "timeout": -1}),
        json!({"program": "", "args": ["x"]}),
    ]
    .into_iter()
    .zip(0..)
    .map(|(arguments, id)| call(id, "shell", arguments))
    .collect();
    let said = host.say(&[], &lines);
    for id in 0..lines.len() as u64 {
        assert!(said.outcome(id).is_error, "{}: {:?}", lines[id as usize], said.outcome(id));
    }
    assert_eq!(fs::read_dir(host.path("work")).unwrap().count(), 0);
    assert_eq!(shell(&host, "touch", &["x"]).envelope()["exit_code"], 0);
    assert!(host.path("work/x").exists());
}
