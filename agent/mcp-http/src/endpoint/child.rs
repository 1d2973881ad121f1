//! The process behind a session: `ringfence mcp`, spoken to over its standard input and output.

use ringfence_session::{
    line::answered_id,
    lines::{Lines, Taken},
};
use serde_json::json;
use std::{
    ffi::OsString,
    io,
    os::fd::OwnedFd,
    process::{Command, Stdio},
    sync::{Arc, Mutex, PoisonError},
    thread,
    time::Duration,
};
use tokio::{io::AsyncWriteExt as _, net::unix::pipe, sync::mpsc, time};
use tokio_util::sync::CancellationToken;

/// Lines that wait for the process to read them.
const WAITING: usize = 1;
/// How long it may still read what was sent to it before it was to end.
const GRACE: Duration = Duration::from_secs(10);

/// A process that was started. It ends when it is dropped: its standard input closes, as when a client ends.
#[derive(Debug)]
pub(super) struct Child {
    input: Arc<Input>,
    /// Cancelled when it has ended.
    pub(super) ended: CancellationToken,
}

/// What goes to its standard input.
#[derive(Debug)]
struct Input {
    lines: Mutex<Option<mpsc::Sender<Vec<u8>>>>,
    closes: CancellationToken,
}

impl Input {
    /// Takes no more, and closes when what there is was read: at the latest after [`GRACE`], also where nobody reads it.
    fn close(&self) {
        self.lines.lock().unwrap_or_else(PoisonError::into_inner).take();
        self.closes.cancel();
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        self.end();
    }
}

impl Child {
    /// Starts it, within a runtime. `each` gets its lines, on a thread that may wait, until it says that it wants no more, and
    /// `over` is called when there are no more.
    ///
    /// # Errors
    /// As fork(2) and execve(2).
    pub(super) fn start(
        command: &[OsString],
        limit: usize,
        each: impl Fn(&[u8]) -> bool + Send + 'static,
        over: impl FnOnce() + Send + 'static,
    ) -> io::Result<Self> {
        let (program, arguments) = command.split_first().ok_or(io::ErrorKind::NotFound)?;
        let mut child =
            Command::new(program).args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let (Some(stdin), Some(stdout)) = (child.stdin.take(), child.stdout.take()) else {
            return Err(io::ErrorKind::BrokenPipe.into());
        };
        let mut stdin = pipe::Sender::from_owned_fd(OwnedFd::from(stdin))?;
        let (sender, mut lines) = mpsc::channel::<Vec<u8>>(WAITING);
        let closes = CancellationToken::new();
        let input = Arc::new(Input { lines: Mutex::new(Some(sender)), closes: closes.clone() });
        // Whoever reads nothing would hold the pipe open, and never see that its client is gone.
        let patience = async move {
            closes.cancelled().await;
            time::sleep(GRACE).await;
        };
        tokio::spawn(async move {
            let writes = async {
                while let Some(line) = lines.recv().await {
                    if stdin.write_all(&line).await.is_err() {
                        return;
                    }
                }
            };
            tokio::select! {
                () = writes => {}
                () = patience => {}
            }
        });
        let ended = CancellationToken::new();
        let (is_over, of_reader) = (ended.clone(), Arc::clone(&input));
        thread::spawn(move || {
            let mut lines = Lines::new(stdout, limit);
            loop {
                match lines.next_line() {
                    Ok(Taken::Line(line)) if each(line) => continue,
                    Ok(Taken::Line(_)) => break,
                    Ok(Taken::Overlong(beginning)) => match too_long(beginning, limit) {
                        // Nobody could tell whose it is, and whoever waits for it would wait for ever.
                        None => break,
                        Some(instead) if each(&instead) => {}
                        Some(_) => break,
                    },
                    Ok(Taken::End) | Err(_) => break,
                }
                if lines.rest(|_| Ok(())).is_err() {
                    break;
                }
            }
            over();
            // It may have more to say, and wait for more: nobody reads it, and nobody sends any.
            drop(lines);
            of_reader.close();
            let _ = child.wait();
            is_over.cancel();
        });
        Ok(Self { input, ended })
    }

    /// Sends a line, with its end. False: the process is gone.
    pub(super) async fn send(&self, line: Vec<u8>) -> bool {
        let sender = self.input.lines.lock().unwrap_or_else(PoisonError::into_inner).clone();
        match sender {
            Some(sender) => sender.send(line).await.is_ok(),
            None => false,
        }
    }

    /// Lets it end, as when a client ends.
    pub(super) fn end(&self) {
        self.input.close();
    }
}

/// What stands in for a line that is too long: an error under the id that it answers, nothing for a notification. `None`: it may
/// answer something that cannot be told from its beginning.
fn too_long(beginning: &[u8], limit: usize) -> Option<Vec<u8>> {
    let text = format!(
        "the server's answer has more than {limit} bytes (--max-line), and Ringfence did not pass it on"
    );
    let error = json!({ "code": -32603, "message": text });
    match answered_id(beginning) {
        Some(id) => Some(id.answer("error", &error).into_bytes()),
        None if asks(beginning) => Some(Vec::new()),
        None => None,
    }
}

/// Whether a line that was cut off is the server's own request or notification.
fn asks(beginning: &[u8]) -> bool {
    let first = |key: &str| memchr::memmem::find(beginning, key.as_bytes()).unwrap_or(usize::MAX);
    first("\"method\"") < first("\"result\"").min(first("\"error\""))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_that_is_too_long_is_an_error_under_its_id() {
        let of = |text: &str| too_long(text.as_bytes(), 9).map(|line| String::from_utf8(line).unwrap());
        let answer = of(r#"{"jsonrpc":"2.0","id":"a","result":{"content":"xxxx"#).unwrap();
        assert!(
            answer.starts_with(r#"{"jsonrpc":"2.0","id":"a","error":"#) && answer.contains("9 bytes"),
            "{answer}"
        );
        assert_eq!(
            of(r#"{"jsonrpc":"2.0","method":"notifications/message","params":{"data":"xxx"#).unwrap(),
            ""
        );
        assert_eq!(of(r#"{"jsonrpc":"2.0","result":{"content":"xxxx"#), None, "the id stands behind it");
        assert_eq!(of(r#"[{"jsonrpc":"2.0","id":1,"result":{"content":"xxxx"#), None);
    }
}
