//! Whole messages over a `SOCK_SEQPACKET` pair, for questions of several askers at once.
//!
//! On a stream, a message that came half, late or broken is the end of all that follow. Here each stands for itself:
//! what cannot be read is dropped, what finds no room is not sent, and the line goes on.

use crate::{
    frame::{self, FrameError},
    rights::{self, Received},
};
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    io::{Errno, retry_on_intr},
    net::{self, AddressFamily, RecvFlags, ReturnFlags, SendFlags, SocketFlags, SocketType},
};
use serde::{Serialize, de::DeserializeOwned};
use std::{
    io::{self, IoSlice},
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    time::Instant,
};

/// Most bytes of a message: less than the smallest send buffer that Linux makes by itself has room for.
pub const MAX_PACKET: usize = 128 << 10;

/// Most descriptors beside a message.
const MAX_DESCRIPTORS: usize = 1;

/// One end of a line. Any number of threads may send and receive.
#[derive(Debug)]
pub struct Packets(OwnedFd);

impl Packets {
    /// Both ends of a new line.
    ///
    /// # Errors
    /// As socketpair(2).
    pub fn pair() -> io::Result<(Self, Self)> {
        let (a, b) = net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
        Ok((Self(a), Self(b)))
    }

    /// An end that somebody else made.
    pub fn new(socket: OwnedFd) -> Self {
        Self(socket)
    }

    /// Sends a message, with at most one descriptor beside it. Waits for room until `deadline`; without one, not at all.
    ///
    /// # Errors
    /// `TimedOut`: there was no room, nothing was sent. `TooLong`, `Json`, `Closed`, `Io`.
    pub fn send<T: Serialize>(
        &self,
        message: &T,
        beside: Option<BorrowedFd<'_>>,
        deadline: Option<Instant>,
    ) -> Result<(), FrameError> {
        let body = frame::encode(message)?;
        if body.len() > MAX_PACKET {
            return Err(FrameError::TooLong { length: body.len(), max: MAX_PACKET });
        }
        loop {
            match rights::send(&self.0, &[IoSlice::new(&body)], beside.as_slice(), SendFlags::DONTWAIT) {
                Ok(_) => return Ok(()),
                Err(Errno::INTR) => {}
                // TOOMANYREFS: descriptors on their way, which are counted for each user.
                Err(Errno::WOULDBLOCK | Errno::TOOMANYREFS) => self.wait_for_room(deadline)?,
                Err(error) => return Err(FrameError::from_io(error.into())),
            }
        }
    }

    fn wait_for_room(&self, deadline: Option<Instant>) -> Result<(), FrameError> {
        let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
        let left = left.filter(|left| !left.is_zero()).ok_or(FrameError::TimedOut)?;
        let left = Timespec::try_from(left).ok();
        match poll(&mut [PollFd::new(&self.0, PollFlags::OUT)], left.as_ref()) {
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(error) => Err(FrameError::from_io(error.into())),
        }
    }

    /// Receives a message and the descriptor beside it, close-on-exec. Waits for as long as it takes.
    ///
    /// # Errors
    /// `Closed` and `Io`: nothing comes any more. `Json`, `Empty`, `TooLong`, `TooManyDescriptors`: this message was
    /// none, and the next may be one.
    pub fn receive<T: DeserializeOwned>(&self) -> Result<(T, Option<OwnedFd>), FrameError> {
        let mut body = vec![0; MAX_PACKET];
        let received = retry_on_intr(|| rights::receive(&self.0, &mut body, RecvFlags::empty()));
        let Received { bytes, descriptors, flags } =
            received.map_err(|error| FrameError::from_io(error.into()))?;
        if bytes == 0 {
            return Err(FrameError::Closed);
        }
        if flags.contains(ReturnFlags::CTRUNC) || descriptors.len() > MAX_DESCRIPTORS {
            return Err(FrameError::TooManyDescriptors { max: MAX_DESCRIPTORS });
        }
        if flags.contains(ReturnFlags::TRUNC) {
            return Err(FrameError::TooLong { length: MAX_PACKET + 1, max: MAX_PACKET });
        }
        Ok((frame::decode(&body[..bytes])?, descriptors.into_iter().next()))
    }

    /// Whether an error of [`Self::receive`] is the end of the line.
    pub fn is_over(error: &FrameError) -> bool {
        matches!(error, FrameError::Closed | FrameError::Io(_))
    }
}

impl AsFd for Packets {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl From<Packets> for OwnedFd {
    fn from(packets: Packets) -> Self {
        packets.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{io::Read, time::Duration};

    #[test]
    fn messages_stand_for_themselves() {
        let (a, b) = Packets::pair().unwrap();
        let (mut read, write) = io::pipe().unwrap();
        a.send(&"one", Some(write.as_fd()), None).unwrap();
        drop(write);
        net::send(&a, b"{broken", SendFlags::empty()).unwrap();
        net::send(&a, &vec![b'1'; MAX_PACKET + 9], SendFlags::empty()).unwrap();
        a.send(&"two", None, None).unwrap();
        let (text, descriptor) = b.receive::<String>().unwrap();
        assert_eq!((text.as_str(), descriptor.is_some()), ("one", true));
        drop(descriptor);
        assert_eq!(read.read(&mut [0]).unwrap(), 0, "no other copy of it is left");
        for _ in 0..2 {
            let broken = b.receive::<String>().unwrap_err();
            assert!(!Packets::is_over(&broken), "{broken}");
        }
        assert_eq!(b.receive::<String>().unwrap().0, "two");
        drop(a);
        assert!(Packets::is_over(&b.receive::<String>().unwrap_err()));
    }

    #[test]
    fn a_full_line_is_not_waited_for_and_not_broken() {
        let (a, b) = Packets::pair().unwrap();
        let sent = (0..).take_while(|n: &u32| a.send(n, None, None).is_ok()).count();
        assert!(sent > 0);
        let soon = Instant::now() + Duration::from_millis(20);
        assert!(matches!(a.send(&0, None, Some(soon)), Err(FrameError::TimedOut)));
        for n in 0..sent {
            assert_eq!(b.receive::<u32>().unwrap().0 as usize, n);
        }
        a.send(&77, None, None).unwrap();
        assert_eq!(b.receive::<u32>().unwrap().0, 77);
    }
}
