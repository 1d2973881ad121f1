//! Bytes from one socket to another. What is judged is taken out of its socket and sent from there ([`crate::held`]). What is not
//! needs no buffer: what cannot be sent on stays in the kernel, at the socket it came to (or in a pipe, of which there are few), so
//! that its sender waits.
//!
//! Of that, much goes through a pipe by splice(2). Little is copied: it is read without being taken (`MSG_PEEK`), sent, and as much
//! taken as was sent. Whoever sent it may change it in between: nothing is decided by it.

use crate::{
    held::Held,
    pipes::{Pipe, Pipes, SIZE},
    share::{HEARD, Portion},
};
use rustix::{
    io::ioctl_fionread,
    net::{RecvFlags, SendFlags, recv, send},
    pipe::{SpliceFlags, splice},
};
use std::{cell::RefCell, io};
use tokio::{io::Interest, net::TcpStream};

/// From so many bytes on, a pipe is worth its system calls.
const MUCH: usize = 16 << 10;
/// Bytes that are read at once.
pub(crate) const SCRATCH: usize = 128 << 10;

/// Of splice(2).
const SPLICE: SpliceFlags = SpliceFlags::NONBLOCK.union(SpliceFlags::MOVE);

/// What all connections share.
pub(crate) struct Mover {
    pipes: Pipes,
    /// Never held while anything is waited for.
    scratch: RefCell<Box<[u8]>>,
}

/// What became of an attempt to move bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Step {
    /// So many went, at least one.
    Moved(usize),
    /// There are none, and there will be none.
    End,
    /// There are none now.
    NothingToRead,
    /// They cannot be sent now.
    NoRoomToWrite,
}

/// What is there to be looked at.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Seen<T> {
    /// What whoever looked made of it.
    Bytes(T),
    /// Nothing more than before, and there will be nothing more.
    End,
}

impl Default for Mover {
    fn default() -> Self {
        Self { pipes: Pipes::default(), scratch: RefCell::new(vec![0; SCRATCH].into()) }
    }
}

impl Mover {
    /// Waits for a client's bytes, and for memory to keep them, and takes some to be judged; none: its end. `beside`: the bytes of
    /// memory that the check has once it is fed so many more.
    ///
    /// # Errors
    /// As recv(2); there is no room for more.
    pub(crate) async fn hold(
        &self,
        from: &TcpStream,
        held: &mut Held<'_>,
        beside: impl Fn(usize) -> usize,
    ) -> io::Result<usize> {
        if held.room() == 0 {
            return Err(io::ErrorKind::StorageFull.into());
        }
        loop {
            let there = there(from).await?;
            if there == 0 {
                return Ok(0);
            }
            let room = held.make_room(there, &beside).await;
            let mut scratch = self.scratch.borrow_mut();
            let buffer = scratch.get_mut(..room).unwrap_or_default();
            let taken =
                from.try_io(Interest::READABLE, || Ok(recv(from, &mut *buffer, RecvFlags::DONTWAIT)?.0));
            if let Some(count) = unless_it_would_block(taken)? {
                held.add(buffer.get(..count).unwrap_or_default());
                return Ok(count);
            }
            held.settle(beside(0));
        }
    }

    /// Takes what a server says, to be looked at before it goes on, which is no more than [`HEARD`] bytes; none: its end. `kept` is
    /// what whoever looks keeps of it; `with`: its bytes of memory once it is given so many more.
    ///
    /// # Errors
    /// As recv(2).
    pub(crate) async fn hear(
        &self,
        from: &TcpStream,
        kept: &Portion<'_>,
        with: impl Fn(usize) -> usize,
    ) -> io::Result<Vec<u8>> {
        loop {
            let there = there(from).await?;
            if there == 0 {
                return Ok(Vec::new());
            }
            let room = there.min(HEARD);
            kept.grow(with(room)).await;
            let mut scratch = self.scratch.borrow_mut();
            let buffer = scratch.get_mut(..room).unwrap_or_default();
            let taken =
                from.try_io(Interest::READABLE, || Ok(recv(from, &mut *buffer, RecvFlags::DONTWAIT)?.0));
            if let Some(count) = unless_it_would_block(taken)? {
                return Ok(buffer.get(..count).unwrap_or_default().to_vec());
            }
            kept.shrink(with(0));
        }
    }

    /// Sends some of these bytes, at least one: how many.
    ///
    /// # Errors
    /// As send(2).
    pub(crate) fn send(&self, to: &TcpStream, bytes: &[u8]) -> io::Result<Option<usize>> {
        unless_it_would_block(to.try_io(Interest::WRITABLE, || Ok(send(to, bytes, SendFlags::NOSIGNAL)?)))
    }

    /// Waits until more than `before` bytes are there, and has all of them looked at. They stay where they are, and may
    /// be others when they are read again.
    ///
    /// # Errors
    /// As recv(2).
    pub(crate) async fn look<T>(
        &self,
        from: &TcpStream,
        before: usize,
        look: impl FnOnce(&[u8]) -> T,
    ) -> io::Result<Seen<T>> {
        if let Some(count @ 1..) = self.peek(from, SCRATCH)?.filter(|count| *count > before) {
            return Ok(Seen::Bytes(look(self.scratch.borrow().get(..count).unwrap_or_default())));
        }
        loop {
            let ready = from.ready(Interest::READABLE).await?;
            // Its end of the connection may be closed with bytes before it: no more will come, and nothing would wake us.
            let is_over = ready.is_read_closed();
            let there = from.try_io(Interest::READABLE, || match self.peek(from, SCRATCH)? {
                Some(count) if count > before || count == 0 || is_over => Ok(count),
                _ => Err(io::ErrorKind::WouldBlock.into()),
            });
            match unless_it_would_block(there)? {
                Some(count) if count > before => {
                    return Ok(Seen::Bytes(look(self.scratch.borrow().get(..count).unwrap_or_default())));
                }
                Some(_) => return Ok(Seen::End),
                None => {}
            }
        }
    }

    /// Reads up to `most` bytes into the scratch, without taking them. Nothing: there are none now. This does not ask the runtime,
    /// which may hold that there are none where whoever looked waited for more of them.
    fn peek(&self, from: &TcpStream, most: usize) -> io::Result<Option<usize>> {
        let mut scratch = self.scratch.borrow_mut();
        let Some(buffer) = scratch.get_mut(..most.min(SCRATCH)) else { return Ok(None) };
        match recv(from, buffer, RecvFlags::PEEK | RecvFlags::DONTWAIT) {
            Ok((count, _)) => Ok(Some(count)),
            Err(rustix::io::Errno::AGAIN) => Ok(None),
            Err(errno) => Err(errno.into()),
        }
    }

    /// Copies up to `most` bytes.
    fn copy(&self, from: &TcpStream, to: &TcpStream, most: usize) -> io::Result<Step> {
        if most == 0 {
            return Ok(Step::NothingToRead);
        }
        let count = match self.peek(from, most)? {
            Some(count) => count,
            None => {
                // Now the runtime has to know.
                let again = || self.peek(from, most)?.ok_or_else(|| io::ErrorKind::WouldBlock.into());
                match unless_it_would_block(from.try_io(Interest::READABLE, again))? {
                    Some(count) => count,
                    None => return Ok(Step::NothingToRead),
                }
            }
        };
        let mut scratch = self.scratch.borrow_mut();
        let Some(bytes) = scratch.get_mut(..count).filter(|bytes| !bytes.is_empty()) else {
            return Ok(Step::End);
        };
        let Some(sent) = self.send(to, bytes)? else { return Ok(Step::NoRoomToWrite) };
        take(from, bytes, sent)?;
        Ok(Step::Moved(sent))
    }

    /// Moves up to `most` bytes, through a pipe where there are many. What a pipe has taken is waited for. `count` is told how many
    /// as soon as they are taken, before anything is waited for: what comes to an end in between was counted.
    ///
    /// # Errors
    /// As recv(2), send(2) and splice(2).
    pub(crate) async fn advance(
        &self,
        from: &TcpStream,
        to: &TcpStream,
        most: usize,
        count: impl Fn(usize),
    ) -> io::Result<Step> {
        let there = waiting(from)?.min(most);
        let Some(mut pipe) = self.fill(from, there)? else {
            let copied = self.copy(from, to, most)?;
            if let Step::Moved(moved) = copied {
                count(moved);
            }
            return Ok(copied);
        };
        let moved = pipe.left;
        count(moved);
        while pipe.left > 0 {
            let written = to.try_io(Interest::WRITABLE, || {
                let (read, _) = pipe.ends().ok_or(io::ErrorKind::BrokenPipe)?;
                Ok(splice(read, None, to, None, pipe.left, SPLICE)?)
            });
            match unless_it_would_block(written)? {
                Some(0) => return Err(io::ErrorKind::WriteZero.into()),
                Some(count) => pipe.left = pipe.left.saturating_sub(count),
                None => to.writable().await?,
            }
        }
        Ok(Step::Moved(moved))
    }

    /// A pipe with bytes in it; `None`: they are not worth one, or there is none.
    fn fill(&self, from: &TcpStream, most: usize) -> io::Result<Option<Pipe<'_>>> {
        if most < MUCH {
            return Ok(None);
        }
        let Some(mut pipe) = self.pipes.take() else { return Ok(None) };
        let Some((_, write)) = pipe.ends() else { return Ok(None) };
        match splice(from, None, write, None, most.min(SIZE), SPLICE) {
            // Urgent data holds it up, which a copy takes along.
            Ok(0) | Err(rustix::io::Errno::AGAIN) => Ok(None),
            Ok(count) => {
                pipe.left = count;
                Ok(Some(pipe))
            }
            Err(errno) => Err(errno.into()),
        }
    }

    /// Takes what a client has sent, and forgets it; no more than a few times what can be looked at at once.
    pub(crate) fn discard(&self, from: &TcpStream) {
        let mut scratch = self.scratch.borrow_mut();
        for _ in 0..4 {
            match recv(from, &mut **scratch, RecvFlags::DONTWAIT) {
                Ok((count, _)) if count > 0 => {}
                _ => return,
            }
        }
    }
}

/// How many bytes wait to be read.
fn waiting(from: &TcpStream) -> io::Result<usize> {
    Ok(usize::try_from(ioctl_fionread(from)?).unwrap_or(usize::MAX))
}

/// Waits until bytes are there: how many. None: the end, which is noticed although there may be no memory for a byte.
async fn there(from: &TcpStream) -> io::Result<usize> {
    loop {
        from.readable().await?;
        let there = waiting(from)?;
        if there > 0 {
            return Ok(there);
        }
        let first = || Ok(recv(from, &mut [0_u8; 1], RecvFlags::PEEK | RecvFlags::DONTWAIT)?.0);
        if unless_it_would_block(from.try_io(Interest::READABLE, first))? == Some(0) {
            return Ok(0);
        }
    }
}

/// Takes bytes that were looked at before.
fn take(from: &TcpStream, buffer: &mut [u8], mut count: usize) -> io::Result<()> {
    while count > 0 {
        let Some(room) = buffer.get_mut(..count) else { return Err(io::ErrorKind::InvalidInput.into()) };
        // They are not copied again.
        match recv(from, room, RecvFlags::TRUNC | RecvFlags::DONTWAIT)?.0 {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            taken => count = count.saturating_sub(taken),
        }
    }
    Ok(())
}

fn unless_it_would_block<T>(result: io::Result<T>) -> io::Result<Option<T>> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::net::sockopt;
    use std::{cell::Cell, time::Duration};
    use tokio::time::{sleep, timeout};

    async fn pair() -> (TcpStream, TcpStream) {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let one = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        (one, listener.accept().await.unwrap().0)
    }

    /// Writes until nothing more has room.
    async fn fill(stream: &TcpStream) {
        while timeout(Duration::from_millis(200), stream.writable()).await.is_ok() {
            let _ = stream.try_write(&[7; 65_536]);
        }
    }

    #[tokio::test]
    async fn what_is_taken_is_counted_although_it_never_arrives() {
        let ((client, from), (to, _server)) = (pair().await, pair().await);
        sockopt::set_socket_send_buffer_size(&to, 4096).unwrap();
        fill(&to).await;
        fill(&client).await;
        while ioctl_fionread(&from).unwrap() < MUCH as u64 {
            sleep(Duration::from_millis(5)).await;
        }
        let (mover, counted) = (Mover::default(), Cell::new(0));
        let moves = mover.advance(&from, &to, 20_000, |count| counted.set(counted.get() + count));
        assert!(timeout(Duration::from_millis(50), moves).await.is_err(), "nobody reads it");
        assert!((1..=20_000).contains(&counted.get()), "{counted:?}");
    }
}
