//! One tool call's process, as the runtime sees it: started, tagged, let go, listened to, ended.

use super::{
    supervisor::{self, Pipes, REPORT, Report},
    tag::Tagger,
    tree,
    work::Work,
};
use crate::{signals, sys};
use ringfence_file_tools::output::Excerpt;
use rustix::{
    fs::OFlags,
    io::Errno,
    pipe::{PipeFlags, pipe_with},
    process::{Pid, PidfdFlags, Signal, kill_process, kill_process_group, pidfd_open},
};
use std::{
    fs::File,
    io::{self, Read, Write},
    os::fd::AsFd,
    path::Path,
    time::{Duration, Instant},
};

/// Bytes of output that are read at a time.
pub(super) const CHUNK: usize = 64 << 10;

/// Most bytes that are read of what was in the pipe when a call ended: the most that a pipe can hold without privilege. More
/// comes from what it left running.
const MOST_LEFT: usize = 1 << 20;

/// Most calls whose processes may outlive them.
pub(super) const MOST_BACKGROUND: usize = 64;

/// How long a call's supervisor has to end everything, before it is ended itself.
const END_TIMEOUT: Duration = Duration::from_secs(14);

/// How often it is looked at meanwhile: one that is stopped ends nothing, and nobody waits for it.
const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// How a tool call ended, for the model.
#[derive(Debug)]
pub(super) struct Outcome {
    pub(super) text: String,
    pub(super) is_error: bool,
}

impl Outcome {
    /// A call that was not run.
    pub(super) fn refused(why: impl Into<String>) -> Self {
        Self { text: why.into(), is_error: true }
    }
}

/// What goes on after a call was answered: its supervisor, its output that nobody collects any more.
#[derive(Debug)]
pub(super) struct Background {
    /// Closing it ends what runs.
    _control: File,
    pub(super) out: Option<File>,
    pub(super) status: File,
}

/// A call that runs.
#[derive(Debug)]
pub(super) struct Call {
    supervisor: Pid,
    is_shell: bool,
    control: Option<File>,
    pub(super) status: Option<File>,
    pub(super) out: Option<File>,
    unparsed: Vec<u8>,
    output: Excerpt,
    shell: Option<Pid>,
    no_shell: Option<i32>,
    left: bool,
    /// What is left was ended, because too many calls left something.
    crowded: bool,
    end: Option<Report>,
    limit: Duration,
    deadline: Instant,
    timed_out: bool,
    /// Until when the supervisor may take to end everything, once its control pipe is closed.
    ending: Option<Instant>,
    /// The supervisor was reaped: its id may be another's.
    gone: bool,
}

impl Call {
    /// Starts a call's process, has it tagged, lets it go.
    ///
    /// # Errors
    /// What the system refused: then there is no process.
    pub(super) fn start(
        id: &str,
        work: Work,
        limit: Duration,
        max_chars: usize,
        dir: &Path,
        tagger: &mut dyn Tagger,
    ) -> io::Result<Self> {
        let (held, mut control) = pipe()?;
        let (status, reports) = pipe()?;
        let (out, output) = pipe()?;
        for end in [&status, &out] {
            rustix::fs::fcntl_setfl(end, OFlags::NONBLOCK)?;
        }
        let is_shell = matches!(work, Work::Shell { .. });
        let pipes = Pipes { control: held, status: reports, out: output.into() };
        // The child's ends go with the closure, in the parent too.
        let supervisor =
            sys::fork_child(&pipes.descriptors(), move || supervisor::supervise(pipes, work, dir))?;
        // It waits, and is not reaped before this returns: the id is its own.
        match pidfd_open(supervisor, PidfdFlags::empty()) {
            Ok(process) => tagger.tag(process.as_fd(), id),
            // Some containers' seccomp knows no pidfd_open. Then there is no tag.
            Err(Errno::NOSYS | Errno::PERM) => {}
            Err(error) => return Err(error.into()),
        }
        control.write_all(b"g")?;
        Ok(Self {
            supervisor,
            is_shell,
            control: Some(control),
            status: Some(status),
            out: Some(out),
            unparsed: Vec::new(),
            output: Excerpt::new(max_chars),
            shell: None,
            no_shell: None,
            left: false,
            crowded: false,
            end: None,
            limit,
            deadline: Instant::now() + limit,
            timed_out: false,
            ending: None,
            gone: false,
        })
    }

    /// When to act even if nothing is readable.
    pub(super) fn deadline(&self) -> Instant {
        self.deadline
    }

    /// Reads the process's output and reports.
    pub(super) fn read(&mut self) {
        // Reports first: all output from before the end is in the pipe by then.
        self.read_reports();
        let most = if self.end.is_some() { MOST_LEFT } else { CHUNK };
        self.read_output(most);
    }

    fn read_reports(&mut self) {
        let Some(status) = &mut self.status else { return };
        let mut chunk = [0; 16 * REPORT];
        match status.read(&mut chunk) {
            Ok(0) => self.status = None,
            Ok(count) => self.unparsed.extend_from_slice(&chunk[..count]),
            Err(error) if would_block(&error) => {}
            Err(_) => self.status = None,
        }
        let mut rest = self.unparsed.as_slice();
        while let Some((report, after)) = rest.split_first_chunk::<REPORT>() {
            rest = after;
            match Report::decode(*report) {
                Some(Report::Shell(pid)) => self.shell = Pid::from_raw(pid),
                Some(Report::NoShell(error)) => self.no_shell = Some(error),
                Some(Report::Left) => self.left = true,
                Some(end) => self.end = Some(end),
                None => {}
            }
        }
        self.unparsed = rest.to_vec();
    }

    fn read_output(&mut self, most: usize) {
        let mut chunk = vec![0; CHUNK];
        let mut total = 0;
        while total < most
            && let Some(out) = &mut self.out
        {
            match out.read(&mut chunk) {
                Ok(0) => self.out = None,
                Ok(count) => {
                    self.output.push(&chunk[..count]);
                    total += count;
                }
                Err(error) if would_block(&error) => return,
                Err(_) => self.out = None,
            }
        }
    }

    /// The supervisor with this id was reaped.
    pub(super) fn reaped(&mut self, pid: Pid) {
        self.gone |= pid == self.supervisor;
    }

    /// Ends the call and all that it started.
    pub(super) fn end_all(&mut self) {
        // The shell's supervisor does it when its pipe closes. A file tool's process does not listen.
        self.control = None;
        if !self.is_shell && !self.gone {
            let _ = kill_process(self.supervisor, Signal::KILL);
        }
    }

    /// What came of the call, once it is over; what it left running, which it `may` only where there is room for it.
    pub(super) fn settle(&mut self, now: Instant, may: bool) -> Option<(Outcome, Option<Background>)> {
        if self.end.is_none() && now >= self.deadline && self.status.is_some() {
            let until = *self.ending.get_or_insert(now + END_TIMEOUT);
            if !self.timed_out {
                self.timed_out = true;
                self.end_all();
                if !self.gone {
                    // A tool may have stopped it.
                    let _ = kill_process(self.supervisor, Signal::CONT);
                }
                self.deadline = now + POLL_INTERVAL;
            } else if now >= until || (!self.gone && tree::is_stopped(self.supervisor)) {
                // The supervisor is stuck, or was stopped again: end it and its tree from here.
                self.give_up();
                self.status = None;
            } else {
                self.deadline = until.min(now + POLL_INTERVAL);
            }
        }
        let is_over = self.end.is_some() || self.status.is_none();
        if !is_over {
            return None;
        }
        if self.end.is_none() {
            // The supervisor is gone without a report: its control pipe was closed, or something
            // killed it and may have left its tree alive.
            self.give_up();
        }
        self.read_output(MOST_LEFT);
        self.crowded = self.left && !may;
        let stays = self.left && may && !self.timed_out;
        let background = match (self.control.take(), self.status.take(), stays) {
            (Some(control), Some(status), true) => {
                Some(Background { _control: control, out: self.out.take(), status })
            }
            _ => None,
        };
        Some((self.outcome(), background))
    }

    fn give_up(&mut self) {
        if !self.gone {
            tree::kill(self.supervisor);
        }
        if let Some(shell) = self.shell.take() {
            let _ = kill_process_group(shell, Signal::KILL);
        }
    }

    fn outcome(&mut self) -> Outcome {
        let (remark, is_error) = match self.end {
            _ if self.timed_out => {
                let left = if self.left { "; some of what it started could not be killed" } else { "" };
                (
                    Some(format!(
                        "killed after {} seconds, the time for this call{left}",
                        self.limit.as_secs()
                    )),
                    true,
                )
            }
            Some(_) if self.no_shell.is_some() => {
                let error = io::Error::from_raw_os_error(self.no_shell.unwrap_or_default());
                (Some(format!("neither bash nor sh could be started here: {error}")), true)
            }
            Some(Report::Done | Report::Exited(0)) => (None, false),
            Some(Report::Exited(status)) => (Some(format!("exit status {status}")), true),
            Some(Report::Killed(signal)) => (Some(format!("killed by {}", signals::name(signal))), true),
            Some(_) => (None, true),
            None => (Some("the process of this call was killed by something else".to_owned()), true),
        };
        let mut remarks: Vec<String> = remark.into_iter().collect();
        match (self.timed_out, self.crowded, self.left) {
            (true, ..) | (false, false, false) => {}
            (false, true, _) => remarks.push(format!(
                "processes that it started were ended: those of {MOST_BACKGROUND} earlier calls still run, which is the most"
            )),
            (false, false, true) => remarks.push(
                "processes that it started still run; what they print from now on is not collected".to_owned(),
            ),
        }
        let output = std::mem::replace(&mut self.output, Excerpt::new(0));
        if output.is_empty() && remarks.is_empty() {
            remarks.push("no output".to_owned());
        }
        let mut suffix = String::new();
        for remark in remarks {
            if !suffix.is_empty() || !(output.is_empty() || output.ends_a_line()) {
                suffix.push('\n');
            }
            suffix.push_str(&format!("[{remark}]"));
        }
        Outcome { text: output.finish(&suffix), is_error }
    }
}

fn would_block(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted)
}

fn pipe() -> io::Result<(File, File)> {
    let (read, write) = pipe_with(PipeFlags::CLOEXEC)?;
    Ok((read.into(), write.into()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::event::{PollFd, PollFlags, poll};
    use std::{fs, os::fd::AsRawFd, os::fd::BorrowedFd, process::Command};

    /// Looks at the process that it is to tag.
    struct Look {
        marker: std::path::PathBuf,
        seen: Vec<String>,
    }

    impl Tagger for Look {
        fn tag(&mut self, process: BorrowedFd<'_>, call: &str) {
            let info = fs::read_to_string(format!("/proc/self/fdinfo/{}", process.as_raw_fd())).unwrap();
            let pid = info.lines().find_map(|line| line.strip_prefix("Pid:")).unwrap().trim().to_owned();
            let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
            let field = |name: &str| {
                status.lines().find_map(|line| line.strip_prefix(name)).unwrap().trim().to_owned()
            };
            assert_eq!(field("PPid:"), std::process::id().to_string());
            assert_eq!(field("Threads:"), "1");
            assert_eq!(
                fs::read_link(format!("/proc/{pid}/exe")).unwrap(),
                std::env::current_exe().unwrap(),
                "it has not exec'd"
            );
            // Long enough for a process that does not wait.
            std::thread::sleep(Duration::from_millis(200));
            assert!(!self.marker.exists(), "it waits");
            self.seen.push(call.to_owned());
        }
    }

    /// Starting a call forks, so the test has to be alone in a process: it starts itself again.
    const ALONE: &str = "RINGFENCE_TEST_ALONE";

    #[test]
    fn a_call_s_process_waits_for_its_tag() {
        if std::env::var_os(ALONE).is_none() {
            let output = Command::new(std::env::current_exe().unwrap())
                .args(["--exact", "runtime::call::tests::a_call_s_process_waits_for_its_tag"])
                .args(["--test-threads", "1", "--nocapture"])
                .env(ALONE, "1")
                .output()
                .unwrap();
            let said = String::from_utf8_lossy(&output.stdout).into_owned()
                + &String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success() && said.contains("1 passed"), "{said}");
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        std::env::set_current_dir(dir.path()).unwrap();
        let marker = dir.path().join("marker");
        let mut look = Look { marker: marker.clone(), seen: Vec::new() };
        let works = [
            Work::Shell { command: "echo ran | tee marker".to_owned() },
            Work::File {
                tool: ringfence_file_tools::Tool::WriteFile,
                input: serde_json::json!({"path": "marker", "content": "ran\n"}),
            },
        ];
        for (index, work) in works.into_iter().enumerate() {
            let limit = Duration::from_secs(60);
            let mut call =
                Call::start(&format!("tc-{index}"), work, limit, 1000, dir.path(), &mut look).unwrap();
            let outcome = loop {
                let files: Vec<&File> = [&call.status, &call.out].into_iter().flatten().collect();
                let mut watched: Vec<PollFd<'_>> =
                    files.iter().map(|file| PollFd::new(*file, PollFlags::IN)).collect();
                poll(&mut watched, None).unwrap();
                call.read();
                if let Some((outcome, _)) = call.settle(Instant::now(), false) {
                    break outcome;
                }
            };
            assert!(!outcome.is_error, "{}", outcome.text);
            assert_eq!(fs::read_to_string(&marker).unwrap(), "ran\n");
            fs::remove_file(&marker).unwrap();
        }
        assert_eq!(look.seen, ["tc-0", "tc-1"]);
    }
}
