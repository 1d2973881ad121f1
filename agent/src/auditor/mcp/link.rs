//! The writing side of an interceptor's link. Nobody waits for whoever reads it: what the socket does not take now is kept,
//! within a bound, for the link's own thread to send on.

use ringfence_wire::{frame::FrameError, mcp::MAX_MESSAGE};
use rustix::{
    io::Errno,
    net::{SendFlags, send},
};
use serde::Serialize;
use std::{
    net::Shutdown,
    os::unix::net::UnixStream,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    thread,
    time::{Duration, Instant},
};

/// Most bytes that are kept for one interceptor: one message, however long, or several short ones.
const MOST_PENDING: usize = 1 << 20;

/// How long an interceptor may take nothing of what is kept for it.
const STALLED: Duration = Duration::from_secs(5);

/// A session's link, for writing.
pub(crate) type Link = Arc<LinkWriter>;

/// See the module.
#[derive(Debug)]
pub(crate) struct LinkWriter {
    stream: UnixStream,
    pending: Mutex<Pending>,
}

#[derive(Debug, Default)]
struct Pending {
    bytes: Vec<u8>,
    /// Since when nothing of it was taken.
    since: Option<Instant>,
    /// Nothing goes before the first message.
    opened: bool,
    broken: bool,
}

impl LinkWriter {
    /// A link whose first message is that of [`Self::open`].
    pub(crate) fn new(stream: UnixStream) -> Self {
        Self { stream, pending: Mutex::default() }
    }

    /// Sends the first message, and then what was to be sent before it.
    ///
    /// # Errors
    /// As [`Self::send`].
    pub(crate) fn open<T: Serialize>(&self, first: &T) -> Result<(), FrameError> {
        let frame = framed(first)?;
        let mut pending = self.lock();
        pending.bytes.splice(..0, frame);
        pending.opened = true;
        self.write(&mut pending)
    }

    /// Sends a message, now or when there is room for it. Never waits.
    ///
    /// # Errors
    /// The interceptor is gone, or has left too much unread: then the link is broken for good.
    pub(crate) fn send<T: Serialize>(&self, message: &T) -> Result<(), FrameError> {
        let frame = framed(message)?;
        let mut pending = self.lock();
        if pending.broken {
            return Err(FrameError::Closed);
        }
        if !pending.bytes.is_empty() && pending.bytes.len() + frame.len() > MOST_PENDING {
            self.give_up(&mut pending);
            return Err(FrameError::TimedOut);
        }
        pending.bytes.extend(frame);
        if pending.opened { self.write(&mut pending) } else { Ok(()) }
    }

    /// Whether something is kept: then the link's thread waits for room as well.
    pub(crate) fn is_behind(&self) -> bool {
        !self.lock().bytes.is_empty()
    }

    /// Sends what there is room for.
    ///
    /// # Errors
    /// As [`Self::send`]; `TimedOut` where nothing was taken for some seconds.
    pub(crate) fn flush(&self) -> Result<(), FrameError> {
        let mut pending = self.lock();
        if pending.broken {
            return Err(FrameError::Closed);
        }
        if pending.opened { self.write(&mut pending) } else { Ok(()) }
    }

    /// Before the end: gives an interceptor that reads the time to do so. For the link's own thread.
    pub(crate) fn drain(&self) {
        while self.is_behind() && self.flush().is_ok() {
            thread::sleep(Duration::from_millis(5));
        }
    }

    fn write(&self, pending: &mut Pending) -> Result<(), FrameError> {
        while !pending.bytes.is_empty() {
            match send(&self.stream, &pending.bytes, SendFlags::NOSIGNAL | SendFlags::DONTWAIT) {
                Ok(count) => {
                    pending.bytes.drain(..count);
                    pending.since = None;
                }
                Err(Errno::INTR) => {}
                Err(Errno::WOULDBLOCK) => {
                    if pending.since.get_or_insert_with(Instant::now).elapsed() < STALLED {
                        return Ok(());
                    }
                    self.give_up(pending);
                    return Err(FrameError::TimedOut);
                }
                Err(error) => {
                    self.give_up(pending);
                    return Err(FrameError::from_io(error.into()));
                }
            }
        }
        pending.since = None;
        Ok(())
    }

    /// The link is made again, and learns what is in force; half a message is none.
    fn give_up(&self, pending: &mut Pending) {
        pending.broken = true;
        pending.bytes = Vec::new();
        let _ = self.stream.shutdown(Shutdown::Both);
    }

    fn lock(&self) -> MutexGuard<'_, Pending> {
        self.pending.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A whole frame.
fn framed<T: Serialize>(message: &T) -> Result<Vec<u8>, FrameError> {
    let body = serde_json::to_vec(message).map_err(FrameError::Json)?;
    if body.len() > MAX_MESSAGE {
        return Err(FrameError::TooLong { length: body.len(), max: MAX_MESSAGE });
    }
    ringfence_wire::frame::framed(&body)
}

#[cfg(test)]
mod tests {
    use super::*;
    use ringfence_wire::{conn::Conn, frame::MAX_FRAME};

    fn pair() -> (LinkWriter, Conn) {
        let (ours, theirs) = UnixStream::pair().expect("a pair");
        (LinkWriter::new(ours), Conn::new(theirs, Duration::from_secs(60), MAX_FRAME))
    }

    #[test]
    fn nothing_goes_before_the_first_message_and_order_is_kept() {
        let (link, mut reader) = pair();
        link.send(&"second").expect("kept");
        assert!(link.is_behind());
        link.open(&"first").expect("sent");
        link.send(&"third").expect("sent");
        for wanted in ["first", "second", "third"] {
            assert_eq!(reader.receive::<String>().expect("a message"), wanted);
        }
    }

    #[test]
    fn whoever_does_not_read_is_not_waited_for_and_loses_the_link() {
        let (link, mut reader) = pair();
        link.open(&0).expect("sent");
        // Together more than any socket's buffer: a blocking send would never come back.
        let big = "x".repeat(MOST_PENDING / 4);
        let sent = (0..1000).take_while(|_: &u32| link.send(&big).is_ok()).count();
        assert!((3..1000).contains(&sent), "{sent}: what is kept has a bound");
        assert!(matches!(link.send(&1), Err(FrameError::Closed)));
        assert_eq!(reader.receive::<u32>().expect("what was sent before"), 0);
    }

    #[test]
    fn what_was_kept_arrives_when_it_is_read() {
        let (link, mut reader) = pair();
        link.open(&0).expect("sent");
        let big = "x".repeat(MAX_MESSAGE / 4);
        link.send(&big).expect("kept");
        assert!(link.is_behind());
        let reads = thread::spawn(move || {
            let number = reader.receive::<u32>().expect("a message");
            (number, reader.receive::<String>().expect("a message").len())
        });
        link.drain();
        assert_eq!(reads.join().expect("no panic"), (0, MAX_MESSAGE / 4));
    }
}
