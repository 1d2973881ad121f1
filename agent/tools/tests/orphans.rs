//! What flees from its call's process group, in a process that ends orphans. Alone in its file: it ends every child of
//! the process.

#![expect(clippy::unwrap_used, reason = "a test's helpers may fail the test")]

use ringfence_grant::{
    Grant,
    gate::{Gate, Registry},
};
use ringfence_test_support::wait::wait_until;
use ringfence_tools::{programs::HostPrograms, shell::Shell, spawn::PlainSpawner};
use serde_json::json;
use std::{
    ffi::OsStr,
    fs,
    path::Path,
    pin::pin,
    sync::Arc,
    task::{Context, Poll, Waker},
    thread,
};

const PATH: &str = "/usr/bin:/bin";

fn script(registry: &Registry, text: &str) -> serde_json::Value {
    let granted = Grant::top();
    let call = registry.dispatch("shell", json!({"script": text}), &granted);
    match pin!(call).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(result) => result.unwrap(),
        Poll::Pending => panic!("a call blocks until it is done"),
    }
}

#[test]
fn a_daemon_ends_when_no_call_runs_any_more() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path().canonicalize().unwrap();
    let shell = Shell::new(&dir, OsStr::new(PATH), Arc::new(PlainSpawner)).ending_orphans().unwrap();
    let gate = Gate::new(HostPrograms::on_path(OsStr::new(PATH)));
    let registry = Registry::new(gate).with(shell);
    // Its own session, its parent gone, a child of its own; the call ends once all of that is so.
    let daemon = "setsid sh -c \"sleep 300 & echo \\$! > child; echo \\$\\$ > daemon.new; mv daemon.new daemon; wait\" &";
    let flee = format!("sh -c '{daemon} until [ -e daemon ]; do sleep 0.01; done'");
    let alive = |name: &str| {
        let pid = fs::read_to_string(dir.join(name)).unwrap();
        Path::new("/proc").join(pid.trim()).exists()
    };
    thread::scope(|scope| {
        // While another call runs, it could be that one's.
        let other =
            scope.spawn(|| script(&registry, "touch begun; sh -c 'until [ -e over ]; do sleep 0.01; done'"));
        wait_until("the other call runs", || dir.join("begun").exists());
        assert_eq!(script(&registry, &flee)["exit_code"], 0);
        assert!(alive("daemon") && alive("child"), "the daemon did not outlive its call: this shows nothing");
        fs::write(dir.join("over"), "").unwrap();
        assert_eq!(other.join().unwrap()["exit_code"], 0);
    });
    // Ended and waited for, in the call itself; the child was waited for by its parent or by us.
    assert!(!alive("daemon") && !alive("child"));
    assert_eq!(script(&registry, "echo on")["stdout"], "on\n");
}
