//! `ringfence agent logs`.

use super::{home, name, owner::Owner};
use anyhow::Context;
use ringfence_base::escape::line as printable;
use serde_json::Value;
use std::{
    fs::File,
    io::{self, BufRead, BufReader, IsTerminal, Write},
    os::unix::fs::MetadataExt,
    path::Path,
    process::ExitCode,
    thread,
    time::Duration,
};

/// Prints an agent's conversation.
///
/// A terminal gets it as text; a pipe or file gets the log's JSON lines.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  ringfence agent logs reviewer --follow\n  ringfence agent logs reviewer --json | jq -r 'select(.role == \"user\")'"
)]
pub(crate) struct LogsArgs {
    /// The agent.
    agent: String,
    /// Stay, and print what is added.
    #[arg(long, short)]
    follow: bool,
    /// Print the log's JSON lines to a terminal, too.
    #[arg(long)]
    json: bool,
}

pub(super) fn logs(args: &LogsArgs) -> anyhow::Result<ExitCode> {
    let home = home()?;
    let path = match home.log(name(&args.agent)?) {
        // The log may outlive the agent's profile.
        path if path.exists() => path,
        _ => {
            let owner = Owner::find(&args.agent)?;
            owner.enter(&args.agent)?;
            owner.log(&args.agent)
        }
    };
    let raw = args.json || !io::stdout().is_terminal();
    let mut follow = Follow { path: &path, file: None, inode: 0, partial: Vec::new() };
    let mut out = io::stdout().lock();
    loop {
        // The error names which of the two files failed.
        let mut unwritten = None;
        let read = follow.lines(|line| {
            let written = if raw { out.write_all(line) } else { out.write_all(pretty(line).as_bytes()) };
            written.map_err(|error| {
                let kind = error.kind();
                unwritten = Some(error);
                kind.into()
            })
        });
        unwritten.map_or_else(|| out.flush(), Err).context("standard output cannot be written")?;
        read.with_context(|| format!("{} cannot be read", path.display()))?;
        if !args.follow {
            return Ok(ExitCode::SUCCESS);
        }
        thread::sleep(Duration::from_millis(200));
    }
}

/// A log that grows and may be replaced.
struct Follow<'a> {
    path: &'a Path,
    file: Option<BufReader<File>>,
    inode: u64,
    partial: Vec<u8>,
}

impl Follow<'_> {
    fn lines(&mut self, mut each: impl FnMut(&[u8]) -> io::Result<()>) -> io::Result<()> {
        let Ok(meta) = std::fs::metadata(self.path) else { return Ok(()) };
        if self.file.is_none() || self.inode != meta.ino() {
            self.file = Some(BufReader::new(ringfence_files::read(self.path)?));
            self.inode = meta.ino();
            self.partial.clear();
        }
        let Some(file) = &mut self.file else { return Ok(()) };
        while file.read_until(b'\n', &mut self.partial)? > 0 {
            // A line that is still being written waits until it is complete.
            if self.partial.last() == Some(&b'\n') {
                each(&self.partial)?;
                self.partial.clear();
            }
        }
        Ok(())
    }
}

/// One message as text for a terminal.
fn pretty(line: &[u8]) -> String {
    let Ok(message) = serde_json::from_slice::<Value>(line) else {
        return "(not a message)\n".to_owned();
    };
    let field = |key: &str| message[key].as_str().unwrap_or_default().to_owned();
    // A line that records only token usage has no role.
    let who = if message["role"].is_null() { "(a call that was cut off)".to_owned() } else { field("role") };
    let mut text = format!("{}  {who}", field("ts"));
    if message["is_error"] == true {
        text += " (failed)";
    }
    text += "\n";
    for block in message["content"].as_array().into_iter().flatten() {
        text += &match (block["type"].as_str(), block["text"].as_str()) {
            (Some("text"), Some(content)) => indented(content),
            (kind, _) => format!("  [{}]\n", printable(kind.unwrap_or("?"))),
        };
    }
    for call in message["tool_calls"].as_array().into_iter().flatten() {
        let name = call["name"].as_str().unwrap_or_default();
        text += &indented(&format!("-> {name} {}", call["input"]));
    }
    text
}

fn indented(text: &str) -> String {
    text.lines().map(|line| format!("  {}\n", printable(line))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::{sys::stat::Mode, unistd::mkfifo};

    #[test]
    fn what_is_no_file_in_the_place_of_a_log_is_waited_for_by_nobody() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("log");
        let follow = || Follow { path: &path, file: None, inode: 0, partial: Vec::new() };
        mkfifo(&path, Mode::S_IRWXU).unwrap();
        let error = follow().lines(|_| Ok(())).unwrap_err().to_string();
        assert!(error.contains("not a regular file"), "{error}");
        std::fs::remove_file(&path).unwrap();
        std::fs::write(&path, "one\ntwo").unwrap();
        let mut lines = Vec::new();
        follow()
            .lines(|line| {
                lines.push(line.to_vec());
                Ok(())
            })
            .unwrap();
        assert_eq!(lines, [b"one\n"], "the control");
    }
}
