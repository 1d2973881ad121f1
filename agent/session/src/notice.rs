//! The interceptor's standard error: its own notices and the server's. Written by a thread of its own, from a
//! bounded queue, so that nothing waits for a client that does not read it.

use std::{
    collections::VecDeque,
    io::{self, Write},
    sync::{Condvar, Mutex, MutexGuard, PoisonError},
    thread,
    time::Duration,
};

/// Most bytes that wait to be read. What comes then is counted and dropped.
const MOST: usize = 4 << 20;

static QUEUE: Queue = Queue::new();

/// Prints a sentence of the interceptor's own.
pub fn print(text: &str) {
    QUEUE.push(format!("ringfence mcp: {text}\n").as_bytes(), io::stderr);
}

/// Passes on the server's standard error as it came.
pub fn pass_on(bytes: &[u8]) {
    QUEUE.push(bytes, io::stderr);
}

/// Waits until everything is written, but not for long.
pub fn flush() {
    QUEUE.wait(Duration::from_secs(2));
}

struct Queue {
    state: Mutex<State>,
    changed: Condvar,
}

struct State {
    chunks: VecDeque<Vec<u8>>,
    bytes: usize,
    dropped: usize,
    writing: bool,
    started: bool,
}

impl Queue {
    const fn new() -> Self {
        let state = State { chunks: VecDeque::new(), bytes: 0, dropped: 0, writing: false, started: false };
        Self { state: Mutex::new(state), changed: Condvar::new() }
    }

    fn push<W: Write + 'static>(&'static self, bytes: &[u8], output: fn() -> W) {
        let mut state = self.lock();
        if state.bytes + bytes.len() > MOST {
            state.dropped += bytes.len();
            return;
        }
        if bytes.is_empty() {
            return;
        }
        state.bytes += bytes.len();
        state.chunks.push_back(bytes.to_vec());
        if !state.started {
            state.started = true;
            thread::spawn(move || self.write(output()));
        }
        self.changed.notify_all();
    }

    fn write(&self, mut output: impl Write) {
        loop {
            let waiting = self.changed.wait_while(self.lock(), |state| state.chunks.is_empty());
            let mut state = waiting.unwrap_or_else(PoisonError::into_inner);
            let Some(mut chunk) = state.chunks.pop_front() else { continue };
            state.bytes -= chunk.len();
            state.writing = true;
            if state.dropped > 0 && state.chunks.is_empty() {
                let dropped = std::mem::take(&mut state.dropped);
                chunk.extend_from_slice(
                    format!(
                        "\nringfence mcp: here, {dropped} bytes of this were dropped: nobody read them in time\n"
                    )
                    .as_bytes(),
                );
            }
            drop(state);
            // Nobody reads: the output is lost, as it would be without us.
            let _ = output.write_all(&chunk).and_then(|()| output.flush());
            self.lock().writing = false;
            self.changed.notify_all();
        }
    }

    fn wait(&self, patience: Duration) {
        let busy = |state: &mut State| state.writing || !state.chunks.is_empty();
        drop(self.changed.wait_timeout_while(self.lock(), patience, busy));
    }

    /// The queue is whole between any two of its changes.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::{MOST, Queue};
    use std::{
        io::{self, Read},
        os::unix::net::UnixStream,
        sync::Mutex,
        time::Duration,
    };

    const PATIENCE: Duration = Duration::from_secs(120);

    #[test]
    fn nothing_waits_and_what_is_dropped_is_said() {
        static QUEUE: Queue = Queue::new();
        static OUTPUT: Mutex<Option<UnixStream>> = Mutex::new(None);
        let (ours, theirs) = UnixStream::pair().expect("a pair");
        *OUTPUT.lock().expect("whole") = Some(theirs);
        let output = || OUTPUT.lock().expect("whole").take().expect("once");
        let chunk = vec![b'x'; 1 << 20];
        for _ in 0..10 {
            QUEUE.push(&chunk, output);
        }
        QUEUE.wait(Duration::from_millis(20));
        let mut heard = Vec::new();
        ours.set_read_timeout(Some(PATIENCE)).expect("a timeout");
        let end = b"nobody read them in time\n";
        while !heard.ends_with(end) {
            let mut piece = vec![0; 1 << 16];
            let read = (&ours).read(&mut piece).expect("it stays open, and comes to its end");
            assert!(read > 0, "it stays open");
            heard.extend_from_slice(&piece[..read]);
        }
        QUEUE.wait(PATIENCE);
        ours.set_read_timeout(Some(Duration::from_millis(100))).expect("a timeout");
        let outcome = (&ours).read_to_end(&mut heard);
        assert_eq!(outcome.expect_err("nothing more").kind(), io::ErrorKind::WouldBlock);
        ours.set_read_timeout(Some(PATIENCE)).expect("a timeout");
        let said = String::from_utf8(heard).expect("text");
        let shown = said.bytes().filter(|byte| *byte == b'x').count();
        assert!((MOST..=MOST + (1 << 20)).contains(&shown), "{shown}");
        assert!(said.contains(&format!("{} bytes of this were dropped", 10 * (1 << 20) - shown)));
        QUEUE.push(b"again", output);
        QUEUE.wait(PATIENCE);
        let mut again = [0; 5];
        (&ours).read_exact(&mut again).expect("it goes on");
        assert_eq!(&again, b"again");
    }
}
