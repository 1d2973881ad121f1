//! A line of JSON for each run: who ran what, where, for how long, and what came of it.

use ringfence_base::clock::since_boot;
use ringfence_wire::runner::{Ask, Done};
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    stdio,
};
use serde::Serialize;
use std::{
    fs::{self, File, OpenOptions},
    io::{self, Write},
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

/// Most bytes of the file before it becomes `FILE.1`, whose predecessor goes: 16 MiB.
const MOST: u64 = 16 << 20;

/// Bytes that a pipe takes at once if poll says that it takes any (PIPE_BUF of pipe(7)).
const AT_ONCE: usize = 4096;

/// One run, as it is written down.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Record {
    /// The daemon's number for it; 0: it was refused.
    pub(super) run: u64,
    /// When it was requested, in milliseconds since 1970.
    unix_ms: u128,
    /// The same on the clock that kernel events carry, in nanoseconds since boot.
    boot_ns: u64,
    protocol: u8,
    /// The process, by this PID namespace's number.
    pub(super) pid: i32,
    pub(super) uid: u32,
    #[serde(flatten)]
    ask: Ask,
    /// How long it ran, in milliseconds.
    ms: Option<f64>,
    #[serde(flatten)]
    done: Option<Done>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub(super) timed_out: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) refused: Option<String>,
}

impl Record {
    pub(super) fn new(run: u64, protocol: u8, pid: i32, uid: u32, ask: Ask) -> Self {
        Self {
            run,
            unix_ms: SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis(),
            boot_ns: since_boot(),
            protocol,
            pid,
            uid,
            ask,
            ms: None,
            done: None,
            timed_out: false,
            refused: None,
        }
    }

    /// What came of it. Of a process that a shim became, nobody but its parent knows: then there is no `done`.
    pub(super) fn ended(&mut self, took: Duration, done: Option<Done>) {
        // Whole microseconds: finer than that is nothing that the daemon could see.
        self.ms = Some(took.as_micros() as f64 / 1000.0);
        self.done = done;
    }

    /// The line, without its arguments where it would be longer than that.
    fn line(&self, most: usize) -> Option<Vec<u8>> {
        let mut line = serde_json::to_vec(self).ok()?;
        if line.len() >= most {
            let mut short = self.clone();
            short.ask.left_out += short.ask.args.len() as u64;
            short.ask.args.clear();
            short.ask.cwd = short.ask.cwd.chars().take(256).collect();
            short.ask.cmd = short.ask.cmd.chars().take(256).collect();
            line = serde_json::to_vec(&short).ok()?;
        }
        line.push(b'\n');
        (line.len() <= most).then_some(line)
    }
}

/// Where lines go. Nothing waits for it: a line that finds no room is counted.
#[derive(Debug)]
pub(super) struct Log {
    file: Option<(PathBuf, File, u64)>,
    lost: u64,
}

impl Log {
    /// To a file, or without one to standard error.
    ///
    /// # Errors
    /// The file cannot be opened.
    pub(super) fn open(path: Option<&Path>) -> io::Result<Self> {
        let file = path.map(|path| {
            let file = appended(path)?;
            let length = file.metadata()?.len();
            Ok::<_, io::Error>((path.to_owned(), file, length))
        });
        Ok(Self { file: file.transpose()?, lost: 0 })
    }

    pub(super) fn write(&mut self, record: &Record) {
        if self.lost > 0 && self.put(format!("{{\"lost_lines\":{}}}\n", self.lost).as_bytes()) {
            self.lost = 0;
        }
        let most = if self.file.is_some() { usize::MAX } else { AT_ONCE };
        let is_written = record.line(most).is_some_and(|line| self.put(&line));
        self.lost += u64::from(!is_written);
    }

    fn put(&mut self, line: &[u8]) -> bool {
        let Some((path, file, length)) = &mut self.file else {
            let out = stdio::stderr();
            let mut fds = [PollFd::new(&out, PollFlags::OUT)];
            let is_free =
                poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).is_ok_and(|count| count > 0);
            return is_free && io::stderr().write_all(line).is_ok();
        };
        if *length + line.len() as u64 > MOST {
            let mut older = path.clone().into_os_string();
            older.push(".1");
            let renewed = fs::rename(&*path, older).and_then(|()| appended(path));
            let Ok(renewed) = renewed else { return false };
            (*file, *length) = (renewed, 0);
        }
        *length += line.len() as u64;
        file.write_all(line).is_ok()
    }
}

fn appended(path: &Path) -> io::Result<File> {
    OpenOptions::new().append(true).create(true).mode(0o600).open(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(args: &[&str]) -> Record {
        let ask = Ask {
            cmd: "cat".into(),
            args: args.iter().map(|arg| (*arg).to_owned()).collect(),
            cwd: "/".into(),
            ..Ask::default()
        };
        Record::new(7, 2, 10, 0, ask)
    }

    #[test]
    fn a_line_says_what_happened() {
        let mut record = record(&["a\nb"]);
        record
            .ended(Duration::from_micros(1500), Some(Done { status: Some(3), bytes: 12, ..Done::default() }));
        let line = record.line(usize::MAX).unwrap();
        let read: serde_json::Value = serde_json::from_slice(&line).unwrap();
        assert_eq!(line.iter().filter(|byte| **byte == b'\n').count(), 1);
        assert_eq!((&read["run"], &read["args"][0], &read["ms"]), (&7.into(), &"a\nb".into(), &1.5.into()));
        assert_eq!(
            (&read["status"], &read["bytes"], &read["timed_out"]),
            (&3.into(), &12.into(), &().into())
        );
        assert!(
            read["boot_ns"].as_u64().unwrap() > 0 && read["unix_ms"].as_u64().unwrap() > 1_600_000_000_000
        );
    }

    #[test]
    fn a_line_that_would_be_too_long_loses_its_arguments() {
        let long = "x".repeat(AT_ONCE);
        let line = record(&["a", &long]).line(AT_ONCE).unwrap();
        let read: serde_json::Value = serde_json::from_slice(&line).unwrap();
        assert_eq!((&read["args"], &read["left_out"]), (&serde_json::json!([]), &2.into()));
    }

    #[test]
    fn a_file_is_bounded_and_keeps_its_predecessor() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        File::create(&path).unwrap().set_len(MOST - 10).unwrap();
        let mut log = Log::open(Some(&path)).unwrap();
        log.write(&record(&[]));
        assert_eq!(fs::metadata(dir.path().join("log.1")).unwrap().len(), MOST - 10);
        assert!(fs::read_to_string(&path).unwrap().starts_with("{\"run\":7,"));
        assert!(Log::open(Some(Path::new("/nonexistent/log"))).is_err());
    }
}
