//! A registry with a shell in a folder of its own.

use ringfence_base::error::chain;
use ringfence_grant::{
    CountBound, Grant, Scope,
    gate::{Gate, Registry, ToolError},
};
use ringfence_tools::{programs::HostPrograms, shell::Shell, spawn::PlainSpawner};
use serde_json::Value;
use std::{
    ffi::OsStr,
    fs,
    path::{Path, PathBuf},
    pin::pin,
    sync::Arc,
    task::{Context, Poll, Waker},
};

pub(crate) const PATH: &str = "/usr/local/bin:/usr/bin:/bin";

pub(crate) struct Session {
    _kept: tempfile::TempDir,
    /// Where the shell works; has `a.txt`, `b.txt`, `sub/c.txt`, and the folder `over`.
    pub(crate) dir: PathBuf,
    pub(crate) registry: Registry,
}

impl Session {
    pub(crate) fn new() -> Self {
        Self::with(|shell| shell)
    }

    pub(crate) fn with(also: impl FnOnce(Shell) -> Shell) -> Self {
        let kept = tempfile::tempdir().unwrap();
        let dir = kept.path().canonicalize().unwrap().join("work");
        fill(&dir);
        let shell = Shell::new(&dir, OsStr::new(PATH), Arc::new(PlainSpawner)).with_variable("LC_ALL", "C");
        let gate = Gate::new(HostPrograms::on_path(OsStr::new(PATH)));
        Self { _kept: kept, registry: Registry::new(gate).with(also(shell)), dir }
    }

    pub(crate) fn call(&self, granted: &Grant, args: Value) -> Result<Value, ToolError> {
        match pin!(self.registry.dispatch("shell", args, granted))
            .poll(&mut Context::from_waker(Waker::noop()))
        {
            Poll::Ready(result) => result,
            Poll::Pending => panic!("a call blocks until it is done"),
        }
    }

    pub(crate) fn script(&self, text: &str) -> Value {
        self.call(&Grant::top(), serde_json::json!({"script": text})).unwrap()
    }

    /// The refusal's text.
    pub(crate) fn denied(&self, granted: &Grant, args: Value) -> String {
        let shown = args.to_string();
        match self.call(granted, args) {
            Ok(result) => panic!("{shown} ran: {result}"),
            Err(error) => chain(&error),
        }
    }

    /// A grant of some axes: `exec`, `fs_read`, `fs_write`; those that are left out are `all`. `.` is this folder.
    pub(crate) fn grant(&self, axes: &[(&str, &[&str])]) -> Grant {
        let dir = self.dir.to_str().unwrap();
        let mut written = serde_json::to_value(Grant::top()).unwrap();
        for (axis, entries) in axes {
            let entries = entries.iter().map(|entry| match entry.strip_prefix('.') {
                Some(below) => format!("{dir}{below}"),
                None => (*entry).to_owned(),
            });
            written[axis] = serde_json::json!({"only": entries.collect::<Vec<_>>()});
        }
        serde_json::from_value(written).unwrap()
    }
}

pub(crate) fn fill(dir: &Path) {
    for folder in ["sub", "over"] {
        fs::create_dir_all(dir.join(folder)).unwrap();
    }
    fs::write(dir.join("a.txt"), "one\ntwo\nthree\n").unwrap();
    fs::write(dir.join("b.txt"), "zeta\nalpha\nalpha\n").unwrap();
    fs::write(dir.join("sub/c.txt"), "deep\n").unwrap();
}

/// Everything, for a number of calls.
pub(crate) fn calls(max: u64) -> Grant {
    Grant { max_calls: CountBound::AtMost(max), valid_for_generation: Scope::All, ..Grant::top() }
}
