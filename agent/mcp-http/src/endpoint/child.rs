//! The process behind a session: `ringfence mcp`, spoken to over its standard input and output.

use ringfence_session::lines::{Lines, Taken};
use std::{
    ffi::OsString,
    io::{self, Write as _},
    process::{Command, Stdio},
    sync::{Mutex, PoisonError},
    thread,
};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

/// Lines that wait for the process to read them.
const WAITING: usize = 1;

/// A process that was started. It ends when it is dropped: its standard input closes, as when a client ends.
#[derive(Debug)]
pub(super) struct Child {
    stdin: Mutex<Option<mpsc::Sender<Vec<u8>>>>,
    /// Cancelled when it has ended.
    pub(super) ended: CancellationToken,
}

impl Child {
    /// Starts it. `each` gets its lines, on a thread that may wait, and `over` is called when there are no more.
    ///
    /// # Errors
    /// As fork(2) and execve(2).
    pub(super) fn start(
        command: &[OsString],
        limit: usize,
        each: impl Fn(&[u8]) + Send + 'static,
        over: impl FnOnce() + Send + 'static,
    ) -> io::Result<Self> {
        let (program, arguments) = command.split_first().ok_or(io::ErrorKind::NotFound)?;
        let mut child =
            Command::new(program).args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let (Some(mut stdin), Some(stdout)) = (child.stdin.take(), child.stdout.take()) else {
            return Err(io::ErrorKind::BrokenPipe.into());
        };
        let (sender, mut lines) = mpsc::channel::<Vec<u8>>(WAITING);
        thread::spawn(move || {
            while let Some(line) = lines.blocking_recv() {
                if stdin.write_all(&line).and_then(|()| stdin.flush()).is_err() {
                    return;
                }
            }
        });
        let ended = CancellationToken::new();
        let is_over = ended.clone();
        thread::spawn(move || {
            let mut lines = Lines::new(stdout, limit);
            loop {
                match lines.next_line() {
                    Ok(Taken::Line(line)) => {
                        each(line);
                        continue;
                    }
                    Ok(Taken::Overlong(_)) => {}
                    Ok(Taken::End) | Err(_) => break,
                }
                // No client could read it either.
                if lines.rest(|_| Ok(())).is_err() {
                    break;
                }
            }
            over();
            let _ = child.wait();
            is_over.cancel();
        });
        Ok(Self { stdin: Mutex::new(Some(sender)), ended })
    }

    /// Sends a line, with its end. False: the process is gone.
    pub(super) async fn send(&self, line: Vec<u8>) -> bool {
        let sender = self.stdin.lock().unwrap_or_else(PoisonError::into_inner).clone();
        match sender {
            Some(sender) => sender.send(line).await.is_ok(),
            None => false,
        }
    }

    /// The same for whoever cannot wait: lost where many lines wait.
    pub(super) fn try_send(&self, line: Vec<u8>) {
        let sender = self.stdin.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let _ = sender.map(|sender| sender.try_send(line));
    }

    /// Lets it end, as when a client ends.
    pub(super) fn end(&self) {
        self.stdin.lock().unwrap_or_else(PoisonError::into_inner).take();
    }
}
