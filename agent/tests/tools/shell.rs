//! Scripts through the whole server: admitted as one, run under the kernel's part of the grant, ended with their call.

use crate::{Host, call, grant};
use ringfence_test_support::wait::wait_until;
use serde_json::{Value, json};
use std::{
    fs,
    path::Path,
    time::{Duration, Instant},
};

/// A host on which some programs run, and `work` may be written.
fn host(exec: &[&str]) -> Host {
    let host = Host::new();
    let text = grant(exec, json!({"fs_write": {"only": [host.path("work")]}})).to_string();
    host.with("RINGFENCE_GRANT", &text)
}

#[test]
fn a_script_writes_where_it_may() {
    let host = host(&["printf", "sort", "cat", "wc"]);
    fs::write(host.path("work/in"), "b\na\n").unwrap();
    let script = "sort < in > sorted 2>&1 && cat sorted in | wc -l; printf '%s\\n' i* \"$HOME\" 's*'";
    let said = host.call("shell", json!({"script": script})).stdout();
    assert_eq!(said, format!("4\nin\n{}\ns*\n", host.home.display()));
    assert_eq!(fs::read_to_string(host.path("work/sorted")).unwrap(), "a\nb\n");
}

#[test]
fn nothing_of_a_script_runs_if_a_part_of_it_is_denied() {
    let host = host(&["touch", "echo"]);
    let scripts = [
        "touch made\nrm made",
        "touch made; /bin/r? made",
        "touch made && $SHELL -c id",
        "touch made; echo x > ../out/x",
        "touch made; echo $(id)",
        "touch made | eval id",
        "touch made; echo $RINGFENCE_GRANT",
        "touch made; echo x < /proc/self/environ",
    ];
    let calls: Vec<_> =
        (0..).zip(scripts).map(|(id, text)| call(id, "shell", json!({"script": text}))).collect();
    let said = host.say(&[], &calls);
    for (id, script) in (0..).zip(scripts) {
        let outcome = said.outcome(id);
        assert!(outcome.denied().len() > 20, "{script}: {outcome:?}");
    }
    assert!(!host.path("work/made").exists() && !host.path("out/x").exists());
    host.call("shell", json!({"script": "touch made; echo x > x"})).envelope();
    assert!(host.path("work/made").exists() && host.path("work/x").exists());
}

#[test]
fn scripts_of_any_size_have_an_answer() {
    let host = host(&["touch"]);
    let scripts =
        ["touch made;".repeat(10_000), "touch made|".repeat(10_000), "touch made #".repeat(100_000)];
    for script in scripts {
        let outcome = host.call("shell", json!({"script": script}));
        assert!(
            outcome.is_error && outcome.text.contains("the script has") || outcome.text.contains("pipeline")
        );
    }
    assert!(!host.path("work/made").exists());
}

#[test]
fn a_daemon_ends_with_the_last_call() {
    let host = host(&["sh", "setsid", "sleep", "mv"]);
    let daemon = "setsid sh -c \"echo \\$\\$ > daemon.new; mv daemon.new daemon; exec sleep 300\" &";
    // The call ends once the daemon is on its own.
    let script = format!("{daemon} until [ -e daemon ]; do sleep 0.01; done; echo gone");
    let begun = Instant::now();
    let outcome = host.call("shell", json!({"program": "sh", "args": ["-c", script]}));
    assert_eq!(outcome.stdout(), "gone\n", "{outcome:?}");
    assert!(begun.elapsed() < Duration::from_secs(100), "the server waited for it");
    let pid = fs::read_to_string(host.path("work/daemon")).unwrap();
    let proc = Path::new("/proc").join(pid.trim());
    wait_until(&format!("{} is gone", proc.display()), || !proc.exists());
}

#[test]
fn a_call_that_takes_too_long_is_ended() {
    let host = host(&["sleep", "echo"]);
    // Time enough for `echo`, on any machine.
    let late = host.call("shell", json!({"script": "echo begun; sleep 300; echo never", "timeout_secs": 10}));
    let envelope = late.envelope();
    assert_eq!((&envelope["timed_out"], &envelope["exit_code"]), (&json!(true), &Value::Null));
    assert_eq!(envelope["stdout"], "begun\n");
}
