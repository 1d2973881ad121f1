//! The file tools behind the gate.

#![expect(clippy::unwrap_used, reason = "a helper that fails is a failed test")]

use ringfence_grant::{Grant, PathEntry, Scope, gate::ToolError};
use ringfence_tools::ToolHost;
use serde_json::{Value, json};
use std::{
    fs,
    os::unix::fs::symlink,
    path::Path,
    pin::pin,
    task::{Context, Poll, Waker},
};

fn call(dir: &Path, granted: &Grant, tool: &str, args: Value) -> Result<Value, ToolError> {
    let host = ToolHost { dir: dir.to_owned(), ..ToolHost::default() };
    let registry = host.registry(host.gate());
    let mut call = pin!(registry.dispatch(tool, args, granted));
    match call.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(result) => result,
        Poll::Pending => panic!("file tools do not wait"),
    }
}

fn grant(read: &Path, write: &Path) -> Grant {
    let scope = |path: &Path| Scope::only([PathEntry::tree(path.to_str().unwrap()).unwrap()]);
    Grant { fs_read: scope(read), fs_write: scope(write), ..Grant::top() }
}

#[test]
fn paths_lead_no_further_than_the_grant() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path().canonicalize().unwrap();
    let (inside, outside) = (dir.join("in"), dir.join("out"));
    fs::create_dir(&inside).unwrap();
    fs::create_dir(&outside).unwrap();
    fs::write(inside.join("a"), "here\n").unwrap();
    fs::write(outside.join("secret"), "there\n").unwrap();
    symlink("../out/secret", inside.join("link")).unwrap();
    symlink("../out", inside.join("way")).unwrap();
    let granted = grant(&inside, &inside);
    let read = |path: &str| call(&inside, &granted, "read_file", json!({ "path": path }));
    assert_eq!(read("a").unwrap(), "here\n");
    assert_eq!(read("../in/a").unwrap(), "here\n");
    for path in ["link", "way/secret", "../out/secret", "/etc/passwd"] {
        let error = read(path).unwrap_err();
        assert!(matches!(error, ToolError::Denied(_)), "{path}: {error}");
        assert!(error.to_string().starts_with("denied: read of"), "{error}");
    }
    let write = |path: &str| call(&inside, &granted, "write_file", json!({"path": path, "content": "x"}));
    write("new/deep/file").unwrap();
    for path in ["link", "way/new", "way/more/new", "../out/new"] {
        assert!(matches!(write(path), Err(ToolError::Denied(_))), "{path}");
    }
    assert_eq!(fs::read_dir(&outside).unwrap().count(), 1);
    let search = |path: &str| call(&inside, &granted, "search", json!({"pattern": "here", "path": path}));
    assert!(search(".").unwrap().as_str().unwrap().contains("a:1: here"));
    assert!(matches!(search("way"), Err(ToolError::Denied(_))));
    assert!(matches!(search("/"), Err(ToolError::Denied(_))));
}

#[test]
fn hostile_arguments_are_refused_with_the_reason() {
    let dir = tempfile::tempdir().unwrap();
    for (tool, args) in [
        ("read_file", json!({})),
        ("read_file", json!({"path": 1})),
        ("read_file", json!({"path": "a\0b"})),
        ("read_file", json!({"path": "a", "more": 1})),
        ("read_file", json!([])),
        ("read_file", json!("a")),
        ("write_file", json!({"path": "a"})),
        ("write_file", json!({"path": "a", "content": 5})),
        ("search", json!({"pattern": ["a"]})),
    ] {
        let refused = call(dir.path(), &Grant::top(), tool, args.clone()).unwrap_err();
        assert!(matches!(refused, ToolError::Arguments { .. }), "{tool} {args}: {refused:?}");
    }
    let unknown = call(dir.path(), &Grant::top(), "rm", json!({})).unwrap_err();
    assert_eq!(unknown.to_string(), "there is no tool named \"rm\"");
}
