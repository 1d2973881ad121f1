//! Sockets: one of which something was read already, and one whose bytes are counted.

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
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::TcpStream,
};

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
            return Pin::new(&mut this.socket).poll_read(cx, into);
        }
        let count = left.len().min(into.remaining());
        into.put_slice(left.get(..count).unwrap_or_default());
        this.read += count;
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Said {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.socket).poll_write(cx, bytes)
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
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = into.filled().len();
        ready!(Pin::new(&mut self.socket).poll_read(cx, into))?;
        self.counts.received.fetch_add((into.filled().len() - before) as u64, Ordering::Relaxed);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Counted {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let count = ready!(Pin::new(&mut self.socket).poll_write(cx, bytes))?;
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
