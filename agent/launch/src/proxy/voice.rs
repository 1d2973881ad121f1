//! What is said on standard error by those who cannot wait until it is read: the command has it, too, and may see to it that nobody
//! does. A thread of its own says it, and there is room for so much that waits.

use std::{
    collections::VecDeque,
    io::{self, Write},
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    thread,
    time::Duration,
};

/// Most lines that wait; more are counted.
const MOST: usize = 256;

/// See the module.
#[derive(Default)]
pub(crate) struct Voice {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    has_thread: bool,
    is_writing: bool,
    lines: VecDeque<String>,
    lost: u64,
}

impl Voice {
    /// Starts its thread, which says everything from then on.
    ///
    /// # Errors
    /// There can be none.
    pub(crate) fn start(self: &Arc<Self>, mut out: impl Write + Send + 'static) -> io::Result<()> {
        let voice = Arc::clone(self);
        // Whoever never reads keeps it for good: the process ends all the same.
        thread::Builder::new().name("voice".into()).spawn(move || {
            loop {
                let line = voice.next();
                let _ = out.write_all(line.as_bytes()).and_then(|()| out.flush());
                voice.state().is_writing = false;
                voice.changed.notify_all();
            }
        })?;
        self.state().has_thread = true;
        Ok(())
    }

    /// Tells the user, in one piece. Where nobody reads standard error any more, that is not this process's end.
    pub(crate) fn say(&self, what: &str) {
        let line = format!("ringfence: {what}\n");
        let mut state = self.state();
        if !state.has_thread {
            drop(state);
            let _ = io::stderr().write_all(line.as_bytes());
        } else if state.lines.len() < MOST {
            state.lines.push_back(line);
            self.changed.notify_all();
        } else {
            state.lost += 1;
        }
    }

    /// Waits until all of it is said, and no longer than this.
    pub(crate) fn finish(&self, patience: Duration) {
        let is_busy = |state: &mut State| state.is_writing || !state.lines.is_empty() || state.lost > 0;
        let state = self.state();
        if state.has_thread {
            drop(self.changed.wait_timeout_while(state, patience, is_busy));
        }
    }

    /// The next line, once there is one.
    fn next(&self) -> String {
        let is_quiet = |state: &mut State| state.lines.is_empty() && state.lost == 0;
        let waited = self.changed.wait_while(self.state(), is_quiet);
        let mut state = waited.unwrap_or_else(PoisonError::into_inner);
        state.is_writing = true;
        state.lines.pop_front().unwrap_or_else(|| {
            let lost = std::mem::take(&mut state.lost);
            format!("ringfence: {lost} more lines about the run's proxy were lost, as nobody read standard error in time\n")
        })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{
        io::{BufRead, BufReader, Read},
        os::unix::net::UnixStream,
        time::Instant,
    };

    const LIMIT: Duration = Duration::from_secs(120);

    #[test]
    fn nobody_waits_for_who_does_not_read_and_what_is_read_is_whole() {
        let (out, reader) = UnixStream::pair().unwrap();
        let voice = Arc::new(Voice::default());
        voice.start(out).unwrap();
        let long = "x".repeat(64 << 10);
        let begun = Instant::now();
        // Far more than a socket and the queue have room for: with whoever waits for it, this never ends.
        for at in 0..3 * MOST {
            voice.say(&format!("{at} {long}"));
        }
        voice.finish(Duration::from_millis(50));
        assert!(begun.elapsed() < LIMIT);
        let mut reader = BufReader::new(reader);
        let (mut said, mut line) = (0, String::new());
        while !line.contains("more lines") {
            line.clear();
            reader.read_line(&mut line).unwrap();
            said += usize::from(line.ends_with(&format!(" {long}\n")) && line.starts_with("ringfence: "));
        }
        let lost: usize = line.split(' ').nth(1).unwrap().parse().unwrap();
        assert_eq!(said + lost, 3 * MOST, "each is said or counted: {line}");
        assert!(said >= MOST);
        voice.say("the last");
        voice.finish(LIMIT);
        let mut last = [0; 20];
        reader.read_exact(&mut last).unwrap();
        assert_eq!(&last, b"ringfence: the last\n", "and what comes then");
    }
}
