//! The writing side of an interceptor's link. Nobody waits for whoever reads it: what the socket does not take now is kept,
//! within a bound, for the link's own thread to send on.

use ringfence_wire::{frame::FrameError, mcp::MAX_MESSAGE};
use rustix::{
    io::Errno,
    net::{SendFlags, send},
};
use serde::Serialize;
use std::{
    collections::VecDeque,
    net::Shutdown,
    os::unix::net::UnixStream,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    thread,
    time::{Duration, Instant},
};

/// Most bytes that are kept for one interceptor. The longest messages fit: a rule file, and all rules that a database holds.
const MOST_PENDING: usize = 4 << 20;

/// How long an interceptor may take nothing of what is kept for it.
const STALLED: Duration = Duration::from_secs(5);

/// How long it may take for a message from when that was kept, however steadily it reads: whoever takes a little now and then
/// would have it kept for ever.
const LONGEST: Duration = Duration::from_secs(20);

/// A session's link, for writing.
pub(crate) type Link = Arc<LinkWriter>;

/// A message as it is sent; all links that are sent the same share it.
pub(crate) type Frame = Arc<[u8]>;

/// See the module.
#[derive(Debug)]
pub struct LinkWriter {
    stream: UnixStream,
    pending: Mutex<Pending>,
}

/// What is kept, in the order in which it is sent.
#[derive(Debug, Default)]
struct Pending {
    frames: VecDeque<Kept>,
    /// Of all of them.
    bytes: usize,
    /// How much of the first was sent.
    sent: usize,
    /// Since when nothing was taken.
    since: Option<Instant>,
    /// Nothing goes before the first message.
    opened: bool,
    broken: bool,
}

/// A message that is kept, and since when.
#[derive(Debug)]
struct Kept {
    frame: Frame,
    since: Instant,
}

impl LinkWriter {
    /// A link whose first message is that of [`Self::open`].
    pub fn new(stream: UnixStream) -> Self {
        Self { stream, pending: Mutex::default() }
    }

    /// Sends the first message, and then what was to be sent before it.
    ///
    /// # Errors
    /// As [`Self::send`].
    pub fn open<T: Serialize>(&self, first: &T) -> Result<(), FrameError> {
        let (frame, now) = (frame(first), Instant::now());
        let mut pending = self.lock();
        // Without it nothing is ever sent, and nobody waits for that.
        let frame = frame.inspect_err(|_| self.give_up(&mut pending))?;
        self.make_room(&mut pending, &frame)?;
        pending.bytes += frame.len();
        pending.frames.push_front(Kept { frame, since: now });
        pending.opened = true;
        // What was kept before could not be taken until now.
        pending.frames.iter_mut().for_each(|kept| kept.since = now);
        self.write(&mut pending, now)
    }

    /// Sends a message, now or when there is room for it. Never waits.
    ///
    /// # Errors
    /// The interceptor is gone, or has left too much unread: then the link is broken for good.
    pub fn send<T: Serialize>(&self, message: &T) -> Result<(), FrameError> {
        self.keep(&frame(message)?)?;
        self.flush()
    }

    /// Keeps a message, to be sent behind those before it with the next [`Self::flush`]. It takes no time: the order of messages
    /// can be settled where others wait.
    ///
    /// # Errors
    /// As [`Self::send`].
    pub fn keep(&self, frame: &Frame) -> Result<(), FrameError> {
        let mut pending = self.lock();
        self.make_room(&mut pending, frame)?;
        pending.bytes += frame.len();
        pending.frames.push_back(Kept { frame: Arc::clone(frame), since: Instant::now() });
        Ok(())
    }

    /// There is room for one more, or the link breaks.
    fn make_room(&self, pending: &mut Pending, frame: &Frame) -> Result<(), FrameError> {
        if pending.broken {
            return Err(FrameError::Closed);
        }
        if pending.bytes - pending.sent + frame.len() <= MOST_PENDING {
            return Ok(());
        }
        self.give_up(pending);
        Err(match frame.len() {
            length if length > MOST_PENDING => FrameError::TooLong { length, max: MOST_PENDING },
            _ => FrameError::TimedOut,
        })
    }

    /// Whether something is kept: then the link's thread waits for room as well.
    pub fn is_behind(&self) -> bool {
        !self.lock().frames.is_empty()
    }

    /// Sends what there is room for.
    ///
    /// # Errors
    /// As [`Self::send`]; `TimedOut` where nothing was taken for some seconds, or a message not for some more.
    pub fn flush(&self) -> Result<(), FrameError> {
        self.flush_at(Instant::now())
    }

    fn flush_at(&self, now: Instant) -> Result<(), FrameError> {
        let mut pending = self.lock();
        if pending.broken {
            return Err(FrameError::Closed);
        }
        if pending.opened { self.write(&mut pending, now) } else { Ok(()) }
    }

    /// Before the end: gives an interceptor that reads the time to do so. For the link's own thread.
    pub fn drain(&self) {
        while self.is_behind() && self.flush().is_ok() {
            thread::sleep(Duration::from_millis(5));
        }
    }

    fn write(&self, pending: &mut Pending, now: Instant) -> Result<(), FrameError> {
        while let Some(Kept { frame, since }) = pending.frames.front() {
            match send(&self.stream, &frame[pending.sent..], SendFlags::NOSIGNAL | SendFlags::DONTWAIT) {
                Ok(count) => {
                    pending.sent += count;
                    pending.since = None;
                    if pending.sent == frame.len() {
                        pending.bytes -= frame.len();
                        pending.sent = 0;
                        pending.frames.pop_front();
                    }
                }
                Err(Errno::INTR) => {}
                Err(Errno::WOULDBLOCK) => {
                    let is_late = now.saturating_duration_since(*since) >= LONGEST;
                    let stalled = *pending.since.get_or_insert(now);
                    if !is_late && now.saturating_duration_since(stalled) < STALLED {
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
        *pending = Pending { broken: true, ..Pending::default() };
        let _ = self.stream.shutdown(Shutdown::Both);
    }

    fn lock(&self) -> MutexGuard<'_, Pending> {
        self.pending.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What is kept.
    #[cfg(test)]
    pub(super) fn kept(&self) -> Vec<Frame> {
        self.lock().frames.iter().map(|kept| Arc::clone(&kept.frame)).collect()
    }
}

/// A message as it is sent.
///
/// # Errors
/// It is longer than a message may be.
pub(crate) fn frame<T: Serialize>(message: &T) -> Result<Frame, FrameError> {
    let body = serde_json::to_vec(message).map_err(FrameError::Json)?;
    if body.len() > MAX_MESSAGE {
        return Err(FrameError::TooLong { length: body.len(), max: MAX_MESSAGE });
    }
    Ok(ringfence_wire::frame::framed(&body)?.into())
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
    fn what_is_kept_for_one_link_is_bounded_and_one_message_is_no_exception() {
        let (link, mut reader) = pair();
        link.open(&0).expect("sent");
        let longest = "x".repeat(MOST_PENDING - 100);
        link.send(&longest).expect("the control: there is room for it");
        assert_eq!(reader.receive::<u32>().expect("a message"), 0);
        let (link, mut reader) = pair();
        link.open(&0).expect("sent");
        assert!(matches!(link.send(&"x".repeat(MOST_PENDING)), Err(FrameError::TooLong { .. })));
        for length in [MOST_PENDING, MAX_MESSAGE] {
            let (link, _reader) = pair();
            link.send(&"second").expect("kept");
            assert!(matches!(link.open(&"x".repeat(length)), Err(FrameError::TooLong { .. })));
            link.drain();
            assert!(!link.is_behind(), "nothing is kept behind a first message that there is not");
        }
        assert!(link.kept().is_empty(), "and nothing of it");
        assert_eq!(reader.receive::<u32>().expect("what was sent before"), 0);
    }

    #[test]
    fn links_share_what_all_of_them_are_sent() {
        let message = frame(&"to all").expect("a frame");
        let links: Vec<_> = (0..3).map(|_| pair()).collect();
        for (link, _) in &links {
            link.keep(&message).expect("kept");
            assert!(Arc::ptr_eq(&link.kept()[0], &message));
        }
        for (link, mut reader) in links {
            link.open(&"welcome").expect("sent");
            for wanted in ["welcome", "to all"] {
                assert_eq!(reader.receive::<String>().expect("a message"), wanted);
            }
        }
        assert_eq!(Arc::strong_count(&message), 1);
    }

    #[test]
    fn whoever_reads_a_little_now_and_then_loses_the_link_after_a_while() {
        use std::io::Read as _;
        // Each time long before it counts as stalled; how long that takes is given, not measured.
        let (ours, mut theirs) = UnixStream::pair().expect("a pair");
        let link = LinkWriter::new(ours);
        link.open(&0).expect("sent");
        link.send(&"x".repeat(MOST_PENDING - 100)).expect("kept");
        let (begun, mut part) = (Instant::now(), vec![0; 64 << 10]);
        let mut lasted = Duration::ZERO;
        while link.flush_at(begun + lasted).is_ok() {
            theirs.read_exact(&mut part).expect("a part of it");
            lasted += STALLED / 2;
            assert!(lasted <= 2 * LONGEST, "it never ends");
        }
        assert!(lasted >= LONGEST / 2, "{lasted:?}");
        assert!(matches!(link.flush(), Err(FrameError::Closed)));
        // The control: whoever has read all may be sent more, however long ago the first was.
        let (link, mut reader) = pair();
        link.open(&0).expect("sent");
        for round in 1..5 {
            link.send(&round).expect("sent");
            link.flush_at(begun + LONGEST * round).expect("nothing is kept");
        }
        for round in 0..5u32 {
            assert_eq!(reader.receive::<u32>().expect("a message"), round);
        }
    }

    #[test]
    fn what_was_kept_arrives_when_it_is_read() {
        let (link, mut reader) = pair();
        link.open(&0).expect("sent");
        let length = MOST_PENDING - 100;
        let big = "x".repeat(length);
        link.send(&big).expect("kept");
        assert!(link.is_behind());
        let reads = thread::spawn(move || {
            let number = reader.receive::<u32>().expect("a message");
            (number, reader.receive::<String>().expect("a message").len())
        });
        link.drain();
        assert_eq!(reads.join().expect("no panic"), (0, length));
    }
}
