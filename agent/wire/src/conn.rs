//! One connection over a unix stream socket: whole messages, a deadline for each, descriptors beside them.
//!
//! A deadline is for the whole message: a peer that sends a byte now and then does not hold a thread for ever. What is there
//! already is read all the same: the clock runs on while a process is stopped, and its peer may have answered meanwhile.
//! Descriptors travel with the length field (`SCM_RIGHTS`). Those that come beside any other byte, and those that are too
//! many, are closed, by the thread that reads: that can last as long as their sender likes, and nobody else waits for it; see
//! [`Conn::lingering_for_nobody`] for where somebody does.

use crate::{
    frame::{self, FrameError, HEADER, MAX_FRAME},
    rights,
};
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    io::{Errno, ioctl_fionread},
    net::{
        self, AddressFamily, RecvFlags, ReturnFlags, SendFlags, SocketAddrUnix, SocketFlags, SocketType,
        sockopt::{self, Timeout},
    },
};
use serde::{Serialize, de::DeserializeOwned};
use std::{
    io::{self, IoSlice, Read, Write},
    os::{
        fd::{AsFd, BorrowedFd, OwnedFd},
        unix::net::UnixStream,
    },
    path::Path,
    time::{Duration, Instant},
};

/// Most descriptors beside one message.
pub const MAX_DESCRIPTORS: usize = rights::MOST;

/// A connected unix stream socket that speaks in messages.
#[derive(Debug)]
pub struct Conn {
    stream: UnixStream,
    limit: Duration,
    max: usize,
    /// Every descriptor is received, to be closed at once.
    takes_all: bool,
}

impl Conn {
    /// Takes a connected socket. Each message must come or go within `limit` and be no longer than `max` bytes.
    pub fn new(stream: UnixStream, limit: Duration, max: usize) -> Self {
        Self { stream, limit, max: max.min(MAX_FRAME), takes_all: false }
    }

    /// Connects to the socket at `path`; waits no longer than `limit` for a listener whose queue is full.
    ///
    /// # Errors
    /// As connect(2): `NotFound` and `ConnectionRefused` where nobody listens, `PermissionDenied`, `WouldBlock`
    /// where the queue stayed full, `InvalidInput` for a path of more than 107 bytes.
    pub fn connect(path: &Path, limit: Duration) -> io::Result<Self> {
        let socket = net::socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
        sockopt::set_socket_timeout(&socket, Timeout::Send, Some(limit))?;
        net::connect(&socket, &SocketAddrUnix::new(path)?)?;
        Ok(Self::new(UnixStream::from(socket), limit, MAX_FRAME))
    }

    /// The same connection, with `limit` for each message from now on.
    #[must_use]
    pub fn within(self, limit: Duration) -> Self {
        Self { limit, ..self }
    }

    /// The same connection, for messages of no more than `max` bytes from now on.
    #[must_use]
    pub fn up_to(self, max: usize) -> Self {
        Self { max: max.min(MAX_FRAME), ..self }
    }

    /// The same connection, whose reading thread waits for no descriptor that its peer sent to be closed, however many they are
    /// and beside whichever byte ([`rights::receive_all`]). Not for hundreds of threads.
    #[must_use]
    pub fn lingering_for_nobody(self) -> Self {
        Self { takes_all: true, ..self }
    }

    /// The socket alone, without what it may still have been told in messages.
    pub fn into_stream(self) -> UnixStream {
        self.stream
    }

    /// The socket itself, for poll and peer credentials.
    pub fn stream(&self) -> &UnixStream {
        &self.stream
    }

    /// Receives one message; descriptors beside it are closed.
    ///
    /// # Errors
    /// As [`frame::read_message`].
    pub fn receive<T: DeserializeOwned>(&mut self) -> Result<T, FrameError> {
        frame::read_message(&mut self.timed(), self.max)
    }

    /// Receives one message and up to [`MAX_DESCRIPTORS`] descriptors, close-on-exec.
    ///
    /// # Errors
    /// As [`frame::read_message`]; `TooManyDescriptors` (all of them are closed).
    pub fn receive_with_descriptors<T: DeserializeOwned>(&mut self) -> Result<(T, Vec<OwnedFd>), FrameError> {
        let mut timed = self.timed();
        let mut header = [0; HEADER];
        let mut descriptors = Vec::new();
        let mut got = 0;
        while got < HEADER {
            match timed.receive(&mut header[got..], &mut descriptors)? {
                0 if got == 0 => return Err(FrameError::Closed),
                0 => return Err(FrameError::Cut { got, wanted: HEADER }),
                n => got += n,
            }
        }
        let body = frame::read_body(&mut timed, header, self.max)?;
        Ok((frame::decode(&body)?, descriptors))
    }

    /// Sends one message.
    ///
    /// # Errors
    /// As [`frame::write_message`].
    pub fn send<T: Serialize>(&mut self, message: &T) -> Result<(), FrameError> {
        self.send_with_descriptors(message, &[])
    }

    /// Sends one message and up to [`MAX_DESCRIPTORS`] descriptors.
    ///
    /// # Errors
    /// As [`frame::write_message`]; `TooManyDescriptors` before anything was sent.
    pub fn send_with_descriptors<T: Serialize>(
        &mut self,
        message: &T,
        descriptors: &[BorrowedFd<'_>],
    ) -> Result<(), FrameError> {
        let body = frame::encode(message)?;
        let header = frame::header_for(body.len())?;
        if descriptors.len() > MAX_DESCRIPTORS {
            return Err(FrameError::TooManyDescriptors { max: MAX_DESCRIPTORS });
        }
        let mut timed = self.timed();
        let sent = timed.send(&[IoSlice::new(&header), IoSlice::new(&body)], descriptors)?;
        if sent < HEADER {
            timed.write_all(&header[sent..]).map_err(FrameError::from_io)?;
        }
        timed.write_all(&body[sent.saturating_sub(HEADER)..]).map_err(FrameError::from_io)
    }

    /// The socket with a deadline that starts now.
    fn timed(&self) -> Timed<'_> {
        let (deadline, takes_all) = (Instant::now() + self.limit, self.takes_all);
        Timed { stream: &self.stream, deadline, takes_all, late: None }
    }
}

impl AsFd for Conn {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}

/// A socket with a deadline for everything that is read from or written to it.
struct Timed<'a> {
    stream: &'a UnixStream,
    deadline: Instant,
    takes_all: bool,
    /// How many bytes were there when it was found that the deadline had passed, and were not read yet.
    late: Option<usize>,
}

impl Timed<'_> {
    /// Sets the socket's own timeout to what is left. Never zero: that would mean for ever.
    fn arm(&self, which: Timeout) -> io::Result<()> {
        let left = self.deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        Ok(sockopt::set_socket_timeout(self.stream, which, Some(left.max(Duration::from_millis(1))))?)
    }

    /// How many of `wanted` bytes may be read now, and how: past the deadline none that came later, and nothing is waited for.
    fn readable(&mut self, wanted: usize) -> io::Result<(usize, RecvFlags)> {
        let over = match self.arm(Timeout::Recv) {
            Ok(()) => return Ok((wanted, RecvFlags::empty())),
            Err(error) if error.kind() == io::ErrorKind::TimedOut => error,
            Err(error) => return Err(error),
        };
        let there = || ioctl_fionread(self.stream).ok().and_then(|bytes| bytes.try_into().ok()).unwrap_or(0);
        match *self.late.get_or_insert_with(there) {
            0 => Err(over),
            left => Ok((wanted.min(left), RecvFlags::DONTWAIT)),
        }
    }

    fn was_read(&mut self, bytes: usize) {
        self.late = self.late.map(|left| left.saturating_sub(bytes));
    }

    fn receive(&mut self, buffer: &mut [u8], descriptors: &mut Vec<OwnedFd>) -> Result<usize, FrameError> {
        loop {
            let (most, flags) = self.readable(buffer.len()).map_err(FrameError::from_io)?;
            let receive = match self.takes_all {
                true => rights::receive_all,
                false => rights::receive,
            };
            match receive(self.stream, &mut buffer[..most], flags) {
                Ok(received) => {
                    self.was_read(received.bytes);
                    descriptors.extend(received.descriptors);
                    if received.flags.contains(ReturnFlags::CTRUNC) || descriptors.len() > MAX_DESCRIPTORS {
                        return Err(FrameError::TooManyDescriptors { max: MAX_DESCRIPTORS });
                    }
                    return Ok(received.bytes);
                }
                Err(Errno::INTR) => {}
                Err(error) => return Err(FrameError::from_io(error.into())),
            }
        }
    }

    fn send(&mut self, bytes: &[IoSlice<'_>], descriptors: &[BorrowedFd<'_>]) -> Result<usize, FrameError> {
        loop {
            self.arm(Timeout::Send).map_err(FrameError::from_io)?;
            match rights::send(self.stream, bytes, descriptors, SendFlags::empty()) {
                Ok(n) => return Ok(n),
                Err(Errno::INTR) => {}
                Err(error) => return Err(FrameError::from_io(error.into())),
            }
        }
    }
}

impl Read for Timed<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let (most, flags) = self.readable(buffer.len())?;
        let bytes = match self.takes_all {
            true => rights::receive_all(self.stream, &mut buffer[..most], flags)?.bytes,
            false => net::recv(self.stream, &mut buffer[..most], flags)?.0,
        };
        self.was_read(bytes);
        Ok(bytes)
    }
}

impl Write for Timed<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.arm(Timeout::Send)?;
        Ok(net::send(self.stream, bytes, SendFlags::NOSIGNAL)?)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Whether the peer closed the connection, or its writing half.
pub fn is_hung_up(stream: &UnixStream) -> bool {
    let mut fds = [PollFd::new(stream, PollFlags::RDHUP)];
    !matches!(poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })), Ok(0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use ringfence_test_support::sockets::lingering;
    use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage};
    use std::{fs::File, mem::MaybeUninit, thread};

    fn pair(limit_ms: u64) -> (Conn, Conn) {
        let (a, b) = UnixStream::pair().unwrap();
        let limit = Duration::from_millis(limit_ms);
        (Conn::new(a, limit, MAX_FRAME), Conn::new(b, limit, MAX_FRAME))
    }

    #[test]
    fn a_message_and_its_descriptors_arrive_together() {
        let (mut a, mut b) = pair(5000);
        let mut file = tempfile::tempfile().unwrap();
        write!(file, "through").unwrap();
        a.send_with_descriptors(&"look", &[file.as_fd(), file.as_fd()]).unwrap();
        a.send(&"again").unwrap();
        let (text, descriptors) = b.receive_with_descriptors::<String>().unwrap();
        assert_eq!((text.as_str(), descriptors.len()), ("look", 2));
        for descriptor in &descriptors {
            let flags = rustix::io::fcntl_getfd(descriptor).unwrap();
            assert!(flags.contains(rustix::io::FdFlags::CLOEXEC));
        }
        let (text, descriptors) = b.receive_with_descriptors::<String>().unwrap();
        assert_eq!((text.as_str(), descriptors.len()), ("again", 0));
    }

    #[test]
    fn a_message_larger_than_the_socket_s_buffer_arrives() {
        let (mut a, mut b) = pair(20_000);
        let text = "x".repeat(3 << 20);
        let sender = thread::spawn({
            let text = text.clone();
            move || a.send(&text).unwrap()
        });
        assert_eq!(b.receive::<String>().unwrap(), text);
        sender.join().unwrap();
    }

    #[test]
    fn too_many_descriptors_are_refused_and_closed() {
        let (a, mut b) = pair(5000);
        let file = File::open("/dev/null").unwrap();
        let many = [file.as_fd(); MAX_DESCRIPTORS + 1];
        let mut control = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS + 1))];
        let mut ancillary = SendAncillaryBuffer::new(&mut control);
        assert!(ancillary.push(SendAncillaryMessage::ScmRights(&many)));
        net::sendmsg(&a, &[IoSlice::new(b"\0\0\0\x011")], &mut ancillary, SendFlags::empty()).unwrap();
        let error = b.receive_with_descriptors::<u32>().unwrap_err();
        assert!(matches!(error, FrameError::TooManyDescriptors { max: MAX_DESCRIPTORS }));
    }

    #[test]
    fn sockets_that_linger_hold_up_nobody_beside_whichever_byte_they_come() {
        for bytes in [&b"\0\0\0\x011"[..], b"1"] {
            let (a, b) = pair(5000);
            let (socket, _peer) = lingering(Duration::from_secs(240));
            let many = [socket.as_fd(); MAX_DESCRIPTORS + 1];
            let mut control = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS + 1))];
            let mut ancillary = SendAncillaryBuffer::new(&mut control);
            assert!(ancillary.push(SendAncillaryMessage::ScmRights(&many)));
            if bytes.len() == 1 {
                net::send(&a, b"\0\0\0\x01", SendFlags::empty()).unwrap();
            }
            net::sendmsg(&a, &[IoSlice::new(bytes)], &mut ancillary, SendFlags::empty()).unwrap();
            drop(socket);
            let (done, is_done) = std::sync::mpsc::channel();
            thread::spawn(move || {
                let mut heard = b.lingering_for_nobody();
                done.send(heard.receive_with_descriptors::<u32>().is_ok()).unwrap();
            });
            // Too many beside the first byte; beside another one they are nobody's.
            let is_ok = is_done.recv_timeout(Duration::from_secs(120)).expect("it waits for what lingers");
            assert_eq!(is_ok, bytes.len() == 1);
        }
    }

    #[test]
    fn descriptors_nobody_asked_for_are_closed() {
        let (mut a, mut b) = pair(5000);
        let (mut read, write) = std::io::pipe().unwrap();
        a.send_with_descriptors(&1, &[write.as_fd()]).unwrap();
        drop(write);
        assert_eq!(b.receive::<u32>().unwrap(), 1);
        // The only writer is gone: end of file, not a block.
        assert_eq!(read.read(&mut [0; 1]).unwrap(), 0);
    }

    #[test]
    fn a_peer_that_dribbles_is_cut_off_at_the_deadline() {
        let (a, mut b) = pair(150);
        let dribbler = thread::spawn(move || {
            let mut stream = a.stream;
            // A minute of it: whoever waits for the end, or for a pause, hears of another one.
            for byte in [0, 0, 255, 255].into_iter().chain([b' '; 3000]) {
                if stream.write_all(&[byte]).is_err() {
                    return;
                }
                thread::sleep(Duration::from_millis(20));
            }
        });
        assert!(matches!(b.receive::<u32>(), Err(FrameError::TimedOut)));
        drop(b);
        dribbler.join().unwrap();
    }

    #[test]
    fn what_came_before_it_was_looked_is_there_although_the_deadline_has_passed() {
        let (mut a, b) = pair(5000);
        let mut late = b.within(Duration::ZERO);
        let file = tempfile::tempfile().unwrap();
        // Longer than what is read at once.
        let text = "x".repeat(100_000);
        a.send_with_descriptors(&text, &[file.as_fd()]).unwrap();
        a.send(&text).unwrap();
        let (first, descriptors) = late.receive_with_descriptors::<String>().unwrap();
        assert_eq!((&first, descriptors.len()), (&text, 1));
        assert_eq!(late.receive::<String>().unwrap(), text);
        assert!(matches!(late.receive::<String>(), Err(FrameError::TimedOut)), "the control");
        // Half of one is none, and its rest is not waited for.
        a.stream.write_all(b"\0\0\0\x0912345").unwrap();
        assert!(matches!(late.receive_with_descriptors::<u32>(), Err(FrameError::TimedOut)));
    }

    #[test]
    fn a_peer_that_does_not_read_is_cut_off_at_the_deadline() {
        let (mut a, _b) = pair(150);
        assert!(matches!(a.send(&"x".repeat(8 << 20)), Err(FrameError::TimedOut)));
    }

    #[test]
    fn nobody_listening_is_told_apart() {
        let dir = tempfile::tempdir().unwrap();
        let error = Conn::connect(&dir.path().join("none.sock"), Duration::from_secs(1)).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
    }
}
