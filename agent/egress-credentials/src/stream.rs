//! Sockets: one of which something was read already, and one whose bytes are counted.

use rustix::net::{RecvFlags, SendFlags, recv, send, sockopt::set_socket_linger};
use std::{
    io, net,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    task::{Context, Poll, ready},
};
use tokio::{
    io::{AsyncRead, AsyncWrite, Interest, ReadBuf},
    net::TcpStream,
};

/// Reads what is there. The egress worker has the same socket, and could have it block: this thread waits for no one socket.
fn poll_receive(socket: &TcpStream, cx: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
    loop {
        ready!(socket.poll_read_ready(cx))?;
        let unfilled = into.initialize_unfilled();
        let received = socket.try_io(Interest::READABLE, || {
            Ok(recv(socket, unfilled, RecvFlags::DONTWAIT).map(|(count, _)| count)?)
        });
        match received {
            Ok(count) => {
                into.advance(count);
                return Poll::Ready(Ok(()));
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Poll::Ready(Err(error)),
        }
    }
}

/// Sends what there is room for, in the same way.
fn poll_send(socket: &TcpStream, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
    loop {
        ready!(socket.poll_write_ready(cx))?;
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        match socket.try_io(Interest::WRITABLE, || Ok(send(socket, bytes, flags)?)) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            sent => return Poll::Ready(sent),
        }
    }
}

/// The worker could have a close wait for what was not sent, up to hours, and closes its own copy first: whatever it handed over is
/// closed by way of this.
fn linger_no_more(socket: impl AsFd) {
    let _ = set_socket_linger(socket, None);
}

/// A descriptor, as it was handed over.
pub(crate) struct Handed(OwnedFd);

impl From<OwnedFd> for Handed {
    fn from(descriptor: OwnedFd) -> Self {
        Self(descriptor)
    }
}

impl AsFd for Handed {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl Drop for Handed {
    fn drop(&mut self) {
        linger_no_more(&self.0);
    }
}

/// A socket that was handed over.
pub(crate) struct Socket(TcpStream);

impl Socket {
    /// A TCP socket.
    ///
    /// # Errors
    /// There are too many descriptors, or nothing can wait for it.
    pub(crate) fn new(handed: &Handed) -> io::Result<Self> {
        // What was handed over is closed last of both, whatever fails.
        let socket = net::TcpStream::from(handed.0.try_clone()?);
        socket.set_nonblocking(true)?;
        let _ = socket.set_nodelay(true);
        TcpStream::from_std(socket).map(Self)
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        linger_no_more(&self.0);
    }
}

/// A client's socket, behind what the egress worker took of it.
pub(crate) struct Said {
    said: Vec<u8>,
    /// Of that, so much was read.
    read: usize,
    socket: Socket,
    /// What says that nothing goes on.
    counts: Arc<Counts>,
}

impl Said {
    pub(crate) fn new(said: Vec<u8>, socket: Socket, counts: Arc<Counts>) -> Self {
        Self { said, read: 0, socket, counts }
    }
}

impl AsyncRead for Said {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = &mut *self;
        this.counts.goes_on()?;
        let left = this.said.get(this.read..).unwrap_or_default();
        if left.is_empty() {
            if !this.said.is_empty() {
                (this.said, this.read) = (Vec::new(), 0);
            }
            return poll_receive(&this.socket.0, cx, into);
        }
        let count = left.len().min(into.remaining());
        into.put_slice(left.get(..count).unwrap_or_default());
        this.read += count;
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Said {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.counts.goes_on()?;
        poll_send(&self.socket.0, cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket.0).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket.0).poll_shutdown(cx)
    }
}

/// Bytes to and from a server, and whether there may be more.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    sent: AtomicU64,
    received: AtomicU64,
    is_cut: AtomicBool,
}

impl Counts {
    /// Both, in this order.
    pub(crate) fn both(&self) -> (u64, u64) {
        (self.sent.load(Ordering::Relaxed), self.received.load(Ordering::Relaxed))
    }

    /// No byte more is read or written, on either side.
    pub(crate) fn cut(&self) {
        self.is_cut.store(true, Ordering::Relaxed);
    }

    /// Whether that is so.
    pub(crate) fn is_cut(&self) -> bool {
        self.is_cut.load(Ordering::Relaxed)
    }

    fn goes_on(&self) -> io::Result<()> {
        if self.is_cut() { Err(io::ErrorKind::ConnectionAborted.into()) } else { Ok(()) }
    }
}

/// A server's socket.
pub(crate) struct Counted {
    socket: Socket,
    counts: Arc<Counts>,
}

impl Counted {
    pub(crate) fn new(socket: Socket, counts: Arc<Counts>) -> Self {
        Self { socket, counts }
    }
}

impl AsyncRead for Counted {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = into.filled().len();
        self.counts.goes_on()?;
        ready!(poll_receive(&self.socket.0, cx, into))?;
        self.counts.received.fetch_add((into.filled().len() - before) as u64, Ordering::Relaxed);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Counted {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.counts.goes_on()?;
        let count = ready!(poll_send(&self.socket.0, cx, bytes))?;
        self.counts.sent.fetch_add(count as u64, Ordering::Relaxed);
        Poll::Ready(Ok(count))
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket.0).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket.0).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::{OFlags, fcntl_setfl};
    use rustix::net::sockopt::socket_linger;
    use std::{io::Write, task::Waker, time::Duration};

    #[tokio::test]
    async fn a_socket_that_somebody_has_made_block_does_not() {
        let listener = net::TcpListener::bind("127.0.0.1:0").unwrap();
        let ours = net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let mut theirs = listener.accept().unwrap().0;
        ours.set_nonblocking(true).unwrap();
        let other = ours.try_clone().unwrap();
        let ours = Socket::new(&Handed(ours.into())).unwrap();
        theirs.write_all(b"x").unwrap();
        ours.0.readable().await.unwrap();
        fcntl_setfl(&other, OFlags::empty()).unwrap();
        let mut cx = Context::from_waker(Waker::noop());
        let mut said = Said::new(Vec::new(), ours, Arc::default());
        for expected in [true, false] {
            let mut bytes = [0; 8];
            let mut into = ReadBuf::new(&mut bytes);
            // With recv(2) alone the second would wait for ever.
            let read = Pin::new(&mut said).poll_read(&mut cx, &mut into).is_ready();
            assert_eq!((read, into.filled().len()), (expected, usize::from(expected)));
        }
        let mut sent = 0;
        while let Poll::Ready(count) = Pin::new(&mut said).poll_write(&mut cx, &[0; 65_536]) {
            sent += count.unwrap();
            assert!(sent < 1 << 30, "nobody reads it");
        }
    }

    /// A connection whose close waits for what its other end does not read, and that other end.
    fn lingering() -> (OwnedFd, net::TcpStream) {
        let listener = net::TcpListener::bind("127.0.0.1:0").unwrap();
        let mut ours = net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let theirs = listener.accept().unwrap().0;
        ours.set_nonblocking(true).unwrap();
        while ours.write(&[0; 65_536]).is_ok() {}
        ours.set_nonblocking(false).unwrap();
        set_socket_linger(&ours, Some(Duration::from_secs(3600))).unwrap();
        (ours.into(), theirs)
    }

    #[tokio::test]
    async fn whatever_was_handed_over_is_closed_at_once() {
        let within = |close: &dyn Fn(OwnedFd)| {
            let (ours, _theirs) = lingering();
            let kept = ours.try_clone().unwrap();
            assert!(socket_linger(&kept).unwrap().is_some(), "the control");
            close(ours);
            // The one file of both: as it was, the last close of it would wait for an hour.
            let found = socket_linger(&kept).unwrap();
            linger_no_more(&kept);
            assert_eq!(found, None);
        };
        within(&|ours| drop(Handed::from(ours)));
        within(&|ours| drop(Socket::new(&Handed::from(ours)).unwrap()));
        let again = |socket: &Socket| set_socket_linger(&socket.0, Some(Duration::from_secs(3600))).unwrap();
        within(&|ours| {
            let socket = Socket::new(&Handed::from(ours)).unwrap();
            again(&socket);
            drop(Said::new(Vec::new(), socket, Arc::default()));
        });
        within(&|ours| {
            let socket = Socket::new(&Handed::from(ours)).unwrap();
            again(&socket);
            drop(Counted::new(socket, Arc::default()));
        });
    }

    #[tokio::test]
    async fn a_connection_that_was_cut_has_no_byte_more() {
        let (ours, mut theirs) = {
            let listener = net::TcpListener::bind("127.0.0.1:0").unwrap();
            let ours = net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            (ours, listener.accept().unwrap().0)
        };
        theirs.write_all(b"x").unwrap();
        let socket = Socket::new(&Handed::from(OwnedFd::from(ours))).unwrap();
        socket.0.readable().await.unwrap();
        let mut counted = Counted::new(socket, Arc::default());
        let mut cx = Context::from_waker(Waker::noop());
        assert!(
            matches!(Pin::new(&mut counted).poll_write(&mut cx, b"x"), Poll::Ready(Ok(1))),
            "the control"
        );
        counted.counts.cut();
        let mut bytes = [0; 8];
        let mut into = ReadBuf::new(&mut bytes);
        assert!(matches!(Pin::new(&mut counted).poll_read(&mut cx, &mut into), Poll::Ready(Err(_))));
        assert!(matches!(Pin::new(&mut counted).poll_write(&mut cx, b"x"), Poll::Ready(Err(_))));
        assert_eq!(counted.counts.both(), (1, 0));
    }
}
