//! `ringfence agent logs`.

use super::{home, name, owner::Owner};
use anyhow::Context;
use ringfence_base::escape::line as printable;
use serde_json::Value;
use std::{
    fs::File,
    io::{self, BufRead, BufReader, IsTerminal, Read, Write},
    os::unix::fs::MetadataExt,
    path::Path,
    process::ExitCode,
    thread,
    time::Duration,
};

/// Longest line that is held, bytes: the longest that a worker reads again. One that was taken over writes what it likes, and a
/// line without an end would take all of the host's memory.
const LONGEST: usize = 64 << 20;

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
    let mut follow = Follow { path: &path, file: None, inode: 0, partial: Vec::new(), is_cut: false };
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
    /// The beginning of this line was too long to be held: none of it is shown.
    is_cut: bool,
}

impl Follow<'_> {
    fn lines(&mut self, mut each: impl FnMut(&[u8]) -> io::Result<()>) -> io::Result<()> {
        let Ok(meta) = std::fs::metadata(self.path) else { return Ok(()) };
        if self.file.is_none() || self.inode != meta.ino() {
            self.file = Some(BufReader::new(ringfence_files::read(self.path)?));
            self.inode = meta.ino();
            self.partial.clear();
            self.is_cut = false;
        }
        let Some(file) = &mut self.file else { return Ok(()) };
        loop {
            let room = LONGEST - self.partial.len();
            if file.by_ref().take(room as u64).read_until(b'\n', &mut self.partial)? == 0 {
                return Ok(());
            }
            let is_whole = self.partial.last() == Some(&b'\n');
            if is_whole && !self.is_cut {
                each(&self.partial)?;
            } else if !is_whole && self.partial.len() < LONGEST {
                // A line that is still being written waits until it is complete.
                continue;
            } else if is_whole {
                eprintln!("ringfence: a line of more than {} MiB is left out", LONGEST >> 20);
            }
            self.is_cut = !is_whole;
            self.partial.clear();
        }
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
    use std::io::Seek as _;

    fn follow(path: &Path) -> Follow<'_> {
        Follow { path, file: None, inode: 0, partial: Vec::new(), is_cut: false }
    }

    #[test]
    fn what_is_no_file_in_the_place_of_a_log_is_waited_for_by_nobody() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("log");
        let follow = || follow(&path);
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

    #[test]
    fn a_line_that_is_longer_than_any_worker_s_is_left_out_and_those_behind_it_are_shown() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("log");
        // With its end, the longest that is shown; and one byte more. Where nothing was written a file has zeros.
        let mut file = File::create(&path).unwrap();
        file.set_len(LONGEST as u64 - 1).unwrap();
        file.seek(io::SeekFrom::End(0)).unwrap();
        file.write_all(b"\n").unwrap();
        file.set_len(2 * LONGEST as u64).unwrap();
        file.seek(io::SeekFrom::End(0)).unwrap();
        file.write_all(b"\nlast\n").unwrap();
        let (mut follow, mut lines) = (follow(&path), Vec::new());
        follow
            .lines(|line| {
                lines.push(line.len());
                Ok(())
            })
            .unwrap();
        assert_eq!(lines, [LONGEST, 5]);
        // It may still be written when it is too long already.
        file.set_len(file.metadata().unwrap().len() + LONGEST as u64 + 1).unwrap();
        let mut more = |text: &[u8]| {
            file.seek(io::SeekFrom::End(0)).unwrap();
            file.write_all(text).unwrap();
            let mut shown = Vec::new();
            follow
                .lines(|line| {
                    shown.push(line.to_vec());
                    Ok(())
                })
                .unwrap();
            shown
        };
        assert_eq!(more(b"and on"), Vec::<Vec<u8>>::new());
        assert_eq!(more(b"\nwhole\n"), [b"whole\n"]);
    }
}
