//! A session that goes on: lines are said and heard one by one.

use crate::{Host, LIMIT};
use ringfence_test_support::wait::eventually;
use serde_json::Value;
use std::{
    fs,
    io::{BufRead, BufReader, Write},
    os::unix::process::CommandExt,
    path::Path,
    process::{Child, ChildStdin, Command, Stdio},
    sync::mpsc::{Receiver, channel},
    thread,
};

/// A server that runs.
pub(crate) struct Live {
    pub(crate) server: Child,
    input: Option<ChildStdin>,
    heard: Receiver<Value>,
}

impl Live {
    /// In a process group of its own, as clients start servers.
    pub(crate) fn new(host: &Host, arguments: &[&str]) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_ringfence"));
        command.env_clear().env("PATH", "/usr/bin:/bin").env("HOME", host.dir.path());
        command.env("XDG_CONFIG_HOME", host.path("config")).env("RINGFENCE_RUNTIME_DIR", host.path("run"));
        command.env("RINGFENCE_CONFIG_DIR", host.path("etc")).envs(&host.variables);
        command.arg("tools").args(arguments).current_dir(host.path("work")).process_group(0);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut server = command.spawn().unwrap();
        let output = BufReader::new(server.stdout.take().unwrap());
        let (says, heard) = channel();
        thread::spawn(move || {
            for line in output.lines() {
                let Ok(line) = line else { return };
                if says.send(serde_json::from_str(&line).unwrap()).is_err() {
                    return;
                }
            }
        });
        let input = server.stdin.take();
        Self { server, input, heard }
    }

    pub(crate) fn say(&mut self, line: &str) {
        writeln!(self.input.as_mut().unwrap(), "{line}").unwrap();
    }

    /// The next line that the server says.
    pub(crate) fn hear(&self) -> Value {
        self.heard.recv_timeout(LIMIT).unwrap()
    }

    /// Closes the input; what was said until the end, and whether it was a good one.
    pub(crate) fn end(mut self) -> (Vec<Value>, bool) {
        drop(self.input.take());
        let said = self.heard.iter().collect();
        (said, self.server.wait().unwrap().success())
    }
}

/// The text of a file, once somebody has made it.
pub(crate) fn made(path: &Path) -> String {
    eventually(&path.display().to_string(), || fs::read_to_string(path).ok())
}
