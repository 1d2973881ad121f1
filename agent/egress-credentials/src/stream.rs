//! Sockets: one of which something was read already, and one whose bytes are counted.

use rustix::net::{RecvFlags, SendFlags, recv, send, sockopt::set_socket_linger};
use std::{
    io,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
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

/// The worker could have its close wait for what was not sent.
fn linger_no_more(socket: &TcpStream) {
    let _ = set_socket_linger(socket, None);
}

impl Drop for Said {
    fn drop(&mut self) {
        linger_no_more(&self.socket);
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        linger_no_more(&self.socket);
    }
}

/// A client's socket, behind what the egress worker took of it.
pub(crate) struct Said {
    said: Vec<u8>,
    /// Of that, so much was read.
    read: usize,
    socket: TcpStream,
}

impl Said {
    pub(crate) fn new(said: Vec<u8>, socket: TcpStream) -> Self {
        Self { said, read: 0, socket }
    }
}

impl AsyncRead for Said {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = &mut *self;
        let left = this.said.get(this.read..).unwrap_or_default();
        if left.is_empty() {
            if !this.said.is_empty() {
                (this.said, this.read) = (Vec::new(), 0);
            }
            return poll_receive(&this.socket, cx, into);
        }
        let count = left.len().min(into.remaining());
        into.put_slice(left.get(..count).unwrap_or_default());
        this.read += count;
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Said {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        poll_send(&self.socket, cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_shutdown(cx)
    }
}

/// Bytes to and from a server.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    sent: AtomicU64,
    received: AtomicU64,
}

impl Counts {
    /// Both, in this order.
    pub(crate) fn both(&self) -> (u64, u64) {
        (self.sent.load(Ordering::Relaxed), self.received.load(Ordering::Relaxed))
    }
}

/// A server's socket.
pub(crate) struct Counted {
    socket: TcpStream,
    counts: Arc<Counts>,
}

impl Counted {
    pub(crate) fn new(socket: TcpStream, counts: Arc<Counts>) -> Self {
        Self { socket, counts }
    }
}

impl AsyncRead for Counted {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = into.filled().len();
        ready!(poll_receive(&self.socket, cx, into))?;
        self.counts.received.fetch_add((into.filled().len() - before) as u64, Ordering::Relaxed);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Counted {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let count = ready!(poll_send(&self.socket, cx, bytes))?;
        self.counts.sent.fetch_add(count as u64, Ordering::Relaxed);
        Poll::Ready(Ok(count))
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::{OFlags, fcntl_setfl};
    use std::{io::Write, net, task::Waker};

    #[tokio::test]
    async fn a_socket_that_somebody_has_made_block_does_not() {
        let listener = net::TcpListener::bind("127.0.0.1:0").unwrap();
        let ours = net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let mut theirs = listener.accept().unwrap().0;
        ours.set_nonblocking(true).unwrap();
        let other = ours.try_clone().unwrap();
        let ours = TcpStream::from_std(ours).unwrap();
        theirs.write_all(b"x").unwrap();
        ours.readable().await.unwrap();
        fcntl_setfl(&other, OFlags::empty()).unwrap();
        let mut cx = Context::from_waker(Waker::noop());
        let mut said = Said::new(Vec::new(), ours);
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
}
