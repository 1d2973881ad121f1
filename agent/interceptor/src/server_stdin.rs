//! The server's standard input, and how to tell that a server does not read it though nobody is left to wait for that.

use rustix::event::{PollFd, PollFlags, poll};
use std::{
    io::{self, PipeWriter, Write},
    os::fd::AsFd,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

/// Bytes that are written at once: a longer write counts as stuck although the server reads.
const PIECE: usize = 16 << 10;
/// How long one write may hang once the client is gone.
const STUCK: Duration = Duration::from_secs(1);
/// How often a write is looked at once the client is gone.
const LOOK: Duration = Duration::from_millis(50);

/// The server's standard input.
#[derive(Debug)]
pub struct ServerStdin {
    pipe: PipeWriter,
    writes: WriteProgress,
}

/// Counts the beginnings and the ends of writes: odd while one is under way.
#[derive(Debug, Clone, Default)]
pub struct WriteProgress(Arc<AtomicU64>);

impl ServerStdin {
    /// Over the pipe's end; `writes` tells others how it goes.
    pub fn new(pipe: PipeWriter, writes: WriteProgress) -> Self {
        Self { pipe, writes }
    }
}

impl Write for ServerStdin {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.writes.0.fetch_add(1, Ordering::AcqRel);
        let written = self.pipe.write(&bytes[..bytes.len().min(PIECE)]);
        self.writes.0.fetch_add(1, Ordering::AcqRel);
        written
    }

    fn flush(&mut self) -> io::Result<()> {
        self.pipe.flush()
    }
}

impl WriteProgress {
    /// Waits until the other end of `client` is closed and a write has hung for [`STUCK`]: whoever hangs in it does not
    /// find out that the client is gone. `false` where `read_to_end` is true: nothing is left to write.
    pub(crate) fn wait_until_stuck(&self, client: impl AsFd, read_to_end: impl Fn() -> bool) -> bool {
        // A pipe always reports HUP; a socket whose peer only stopped sending reports RDHUP.
        let hung_up = || poll(&mut [PollFd::new(&client, PollFlags::RDHUP)], None);
        if rustix::io::retry_on_intr(hung_up).is_err() {
            return false;
        }
        let (mut last, mut since) = (0, Instant::now());
        while !read_to_end() {
            let now = self.0.load(Ordering::Acquire);
            if now.is_multiple_of(2) || now != last {
                (last, since) = (now, Instant::now());
            } else if since.elapsed() >= STUCK {
                return true;
            }
            thread::sleep(LOOK);
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use super::{ServerStdin, WriteProgress};
    use std::{
        io::{self, Read, Write},
        os::unix::net::UnixStream,
        thread,
    };

    #[test]
    fn only_a_write_that_hangs_is_stuck_and_only_once_the_client_is_gone() {
        let (mut server, pipe) = io::pipe().expect("a pipe");
        let writes = WriteProgress::default();
        let mut stdin = ServerStdin::new(pipe, writes.clone());
        let (client, ours) = UnixStream::pair().expect("a pair");
        client.shutdown(std::net::Shutdown::Write).expect("half closed");
        assert!(!writes.wait_until_stuck(&ours, || true), "everything was forwarded");
        let writer = thread::spawn(move || stdin.write_all(&vec![b'x'; 1 << 20]));
        assert!(writes.wait_until_stuck(&ours, || false));
        let mut all = vec![0; 1 << 20];
        server.read_exact(&mut all).expect("the bytes");
        writer.join().expect("a thread").expect("written");
        assert!(all.iter().all(|byte| *byte == b'x'));
    }
}
