//! Frames over an async stream: reading them whole, and one writer task for each connection.
//!
//! A frame that was begun is never cut into by another: only the writer task writes. What a peer does not read is
//! bounded, and a peer that reads too slowly is hung up on and counted.

use bytes::{Bytes, BytesMut};
use ringfence_base::quota::Permit;
use ringfence_wire::frame::{FrameError, HEADER, MAX_FRAME, length};
use std::{
    io,
    sync::{
        Arc, OnceLock, Weak,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    time::Duration,
};
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot},
    time::timeout,
};
use tokio_util::sync::CancellationToken;

/// Longest time from a frame's first byte to its last.
pub(crate) const FRAME_TIME: Duration = Duration::from_secs(10);
/// Frames that may wait for a peer to read.
const QUEUE: usize = 1024;
/// Bytes that may wait for a peer to read: one frame of the greatest length, and some.
const QUEUE_BYTES: usize = MAX_FRAME + (4 << 20);
/// Bytes of frames beyond [`TOGETHER`] each that all connections of an agent may be sending at once: a peer claims them
/// before it sends, so that many half-sent frames do not fill the memory.
const ALL_FRAMES: usize = 6 * MAX_FRAME;
/// Small frames that wait together are written together, up to so many bytes.
const TOGETHER: usize = 64 << 10;
/// How long the runtime may let output wait.
const PATIENCE: Duration = Duration::from_secs(30);
/// How long what is queued may take to be written when the connection ends.
const LAST_WORDS: Duration = Duration::from_secs(2);

/// Reads frames. Not cancellation safe within a frame: it has a task of its own.
pub struct FrameReader<R> {
    io: R,
    buffer: BytesMut,
    budget: Option<FrameBudget>,
    /// For the frame that is read, or was given out last.
    held: Option<OwnedSemaphorePermit>,
}

/// Room for long frames, shared by an agent's connections.
#[derive(Debug, Clone)]
pub struct FrameBudget(Arc<Semaphore>);

impl Default for FrameBudget {
    fn default() -> Self {
        Self(Arc::new(Semaphore::new(ALL_FRAMES)))
    }
}

impl<R: AsyncRead + Unpin> FrameReader<R> {
    /// Reads frames from a stream.
    pub fn new(io: R) -> Self {
        Self { io, buffer: BytesMut::new(), budget: None, held: None }
    }

    /// Long frames wait for room that others have, within their own time.
    pub fn within(self, budget: FrameBudget) -> Self {
        Self { budget: Some(budget), ..self }
    }

    /// The next frame's body. Its first byte may take `idle`, or for ever; from then on there is [`FRAME_TIME`].
    ///
    /// # Errors
    /// [`FrameError`] but `TooManyDescriptors` and `Json`. After an error the stream is out of step: close it.
    pub async fn next(&mut self, idle: Option<Duration>) -> Result<Bytes, FrameError> {
        // Whoever asks for the next is done with the last.
        self.held = None;
        while self.buffer.is_empty() {
            self.buffer.reserve(4096);
            let read = self.io.read_buf(&mut self.buffer);
            let read = match idle {
                Some(idle) => timeout(idle, read).await.map_err(|_| FrameError::TimedOut)?,
                None => read.await,
            };
            if read.map_err(FrameError::from_io)? == 0 {
                return Err(FrameError::Closed);
            }
        }
        timeout(FRAME_TIME, self.rest()).await.unwrap_or(Err(FrameError::TimedOut))
    }

    async fn rest(&mut self) -> Result<Bytes, FrameError> {
        loop {
            let mut wanted = HEADER;
            if let Some(header) = self.buffer.first_chunk::<HEADER>() {
                wanted += length(*header, MAX_FRAME)?;
                if self.buffer.len() >= wanted {
                    return Ok(self.buffer.split_to(wanted).freeze().slice(HEADER..));
                }
            }
            if wanted > HEADER + TOGETHER
                && self.held.is_none()
                && let Some(FrameBudget(budget)) = &self.budget
            {
                let bytes = u32::try_from(wanted - HEADER).unwrap_or(u32::MAX);
                // It is never closed.
                self.held = Arc::clone(budget).acquire_many_owned(bytes).await.ok();
            }
            // Memory grows with what arrives, not with what a peer claims.
            self.buffer.reserve((wanted - self.buffer.len()).min(TOGETHER));
            if self.io.read_buf(&mut self.buffer).await.map_err(FrameError::from_io)? == 0 {
                return Err(FrameError::Cut { got: self.buffer.len(), wanted });
            }
        }
    }
}

/// What the worker counts about its connections.
#[derive(Debug, Default)]
pub struct Counters {
    /// Peers hung up on because they did not read.
    pub slow: AtomicU64,
    /// Connections refused because there were too many.
    pub refused: AtomicU64,
    /// Frames and requests that were none.
    pub malformed: AtomicU64,
}

struct Outgoing {
    frame: Bytes,
    written: Option<oneshot::Sender<()>>,
}

/// The writing side of one connection.
#[derive(Clone)]
pub struct Peer {
    queue: mpsc::Sender<Outgoing>,
    held: Arc<AtomicUsize>,
    /// Cancelled: the connection is to end at once.
    pub gone: CancellationToken,
    counters: Arc<Counters>,
    permit: Arc<OnceLock<Weak<Permit>>>,
}

impl Peer {
    /// This is its connection's permit.
    pub fn holds(&self, permit: &Arc<Permit>) {
        let _ = self.permit.set(Arc::downgrade(permit));
    }

    /// It was told the last that it waits for: from now on it is one of those that go first.
    pub fn rests(&self) {
        if let Some(permit) = self.permit.get().and_then(Weak::upgrade) {
            permit.idle();
        }
    }

    /// Queues a frame; a peer whose queue is full is hung up on. False: it is gone.
    pub fn push(&self, frame: Bytes) -> bool {
        self.enqueue(Outgoing { frame, written: None })
    }

    /// As [`Self::push`]; the receiver hears when the frame was handed to the kernel, or an error if it never will be.
    pub(crate) fn push_watched(&self, frame: Bytes) -> oneshot::Receiver<()> {
        let (written, receiver) = oneshot::channel();
        self.enqueue(Outgoing { frame, written: Some(written) });
        receiver
    }

    /// Queues a frame, waiting for room. False: the peer is gone, or would not read.
    pub(crate) async fn push_patiently(&self, frame: Bytes) -> bool {
        if self.has_room(frame.len()) {
            return self.push(frame);
        }
        let budget = async {
            while !self.has_room(frame.len()) {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::select! {
            () = self.gone.cancelled() => false,
            // Without room by then, `push` hangs up.
            _ = timeout(PATIENCE, budget) => self.push(frame),
        }
    }

    fn has_room(&self, bytes: usize) -> bool {
        self.queue.capacity() > 0 && self.held.load(Ordering::Relaxed) + bytes <= QUEUE_BYTES
    }

    fn enqueue(&self, outgoing: Outgoing) -> bool {
        if self.gone.is_cancelled() {
            return false;
        }
        let bytes = outgoing.frame.len();
        if !self.has_room(bytes) {
            self.counters.slow.fetch_add(1, Ordering::Relaxed);
            self.gone.cancel();
            return false;
        }
        self.held.fetch_add(bytes, Ordering::Relaxed);
        if self.queue.try_send(outgoing).is_err() {
            self.gone.cancel();
            return false;
        }
        true
    }
}

/// A connection's writing side and the task that does it. The task ends when every `Peer` is dropped and all is
/// written, or when the peer is gone.
pub fn writer<W>(io: W, counters: &Arc<Counters>) -> (Peer, impl Future<Output = ()> + Send + use<W>)
where
    W: AsyncWrite + Unpin + Send + 'static,
{
    let (queue, frames) = mpsc::channel(QUEUE);
    let peer = Peer {
        queue,
        held: Arc::default(),
        gone: CancellationToken::new(),
        counters: Arc::clone(counters),
        permit: Arc::default(),
    };
    let (held, gone) = (Arc::clone(&peer.held), peer.gone.clone());
    (peer, async move {
        // However it ends, nobody may wait for this peer any longer.
        let _gone = gone.clone().drop_guard();
        tokio::select! {
            biased;
            result = write_all(io, frames, held) => {
                if let Err(error) = result {
                    tracing::debug!("writing to a connection: {error}");
                }
            }
            () = async { gone.cancelled().await; tokio::time::sleep(LAST_WORDS).await } => {}
        }
    })
}

async fn write_all<W: AsyncWrite + Unpin>(
    mut io: W,
    mut frames: mpsc::Receiver<Outgoing>,
    held: Arc<AtomicUsize>,
) -> io::Result<()> {
    let mut watchers = Vec::new();
    while let Some(first) = frames.recv().await {
        let mut bytes = first.frame.len();
        let mut batch = first.frame;
        watchers.extend(first.written);
        if !frames.is_empty() && bytes < TOGETHER {
            let mut together = BytesMut::from(&batch[..]);
            while together.len() < TOGETHER
                && let Ok(next) = frames.try_recv()
            {
                together.extend_from_slice(&next.frame);
                bytes += next.frame.len();
                watchers.extend(next.written);
            }
            batch = together.freeze();
        }
        io.write_all(&batch).await?;
        held.fetch_sub(bytes, Ordering::Relaxed);
        for written in watchers.drain(..) {
            let _ = written.send(());
        }
    }
    io.shutdown().await
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(body: &[u8]) -> Vec<u8> {
        ringfence_wire::frame::framed(body).unwrap()
    }

    #[tokio::test]
    async fn frames_are_read_however_they_are_cut() {
        let bytes = [frame(b"one"), frame("z\u{fc}rich".as_bytes()), frame(&[b'x'; 100_000])].concat();
        for cut in [1, 2, 3, 5, 7, 4096, bytes.len()] {
            let (mut near, far) = tokio::io::duplex(cut.max(16));
            let all = bytes.clone();
            let write = tokio::spawn(async move {
                for piece in all.chunks(cut) {
                    near.write_all(piece).await.unwrap();
                }
            });
            let mut reader = FrameReader::new(far);
            assert_eq!(&reader.next(None).await.unwrap()[..], b"one");
            assert_eq!(&reader.next(None).await.unwrap()[..], "z\u{fc}rich".as_bytes());
            assert_eq!(reader.next(None).await.unwrap().len(), 100_000);
            assert!(matches!(reader.next(None).await, Err(FrameError::Closed)));
            write.await.unwrap();
        }
    }

    #[tokio::test]
    async fn half_sent_frames_do_not_fill_the_memory() {
        let budget = FrameBudget::default();
        let half = [&u32::try_from(MAX_FRAME).unwrap().to_be_bytes()[..], b"x"].concat();
        let mut hostile = Vec::new();
        for _ in 0..ALL_FRAMES / MAX_FRAME {
            let (mut near, far) = tokio::io::duplex(1 << 10);
            near.write_all(&half).await.unwrap();
            let mut reader = FrameReader::new(far).within(budget.clone());
            hostile.push((near, tokio::spawn(async move { reader.next(None).await.is_err() })));
        }
        while budget.0.available_permits() > 0 {
            tokio::task::yield_now().await;
        }
        let ask = |body: Vec<u8>| {
            let budget = budget.clone();
            async move { FrameReader::new(&frame(&body)[..]).within(budget).next(None).await.unwrap().len() }
        };
        assert_eq!(ask(vec![1; TOGETHER]).await, TOGETHER, "short ones need no room");
        let mut long = tokio::spawn(ask(vec![1; TOGETHER + 1]));
        assert!(timeout(Duration::from_millis(50), &mut long).await.is_err(), "a long one waits");
        let (gone, waiting) = hostile.pop().unwrap();
        drop(gone);
        assert!(waiting.await.unwrap());
        assert_eq!(long.await.unwrap(), TOGETHER + 1, "until there is some");
    }

    #[tokio::test]
    async fn what_is_no_frame_is_an_error() {
        for (bytes, expected) in [
            (&b"\0\0\0\0"[..], "message of no bytes"),
            (b"\xff\xff\xff\xff", "is the most"),
            (b"\x01\0\0\x01x", "is the most"),
            (b"\0\0", "ended within"),
            (b"\0\0\0\x05abc", "ended within"),
        ] {
            let error = FrameReader::new(bytes).next(None).await.unwrap_err().to_string();
            assert!(error.contains(expected), "{bytes:?}: {error}");
        }
        let (_near, far) = tokio::io::duplex(16);
        let silent = FrameReader::new(far).next(Some(Duration::from_millis(20))).await;
        assert!(matches!(silent, Err(FrameError::TimedOut)), "nothing at all");
    }

    #[tokio::test]
    async fn a_peer_that_does_not_read_is_hung_up_on_and_counted() {
        let (near, _far) = tokio::io::duplex(16);
        let counters = Arc::new(Counters::default());
        let (peer, task) = writer(near, &counters);
        let task = tokio::spawn(task);
        let watched = peer.push_watched(Bytes::from_static(&[1; 100]));
        let sent = (0..10_000).take_while(|_| peer.push(Bytes::from_static(b"x"))).count();
        assert!((QUEUE - 2..=QUEUE).contains(&sent), "{sent}");
        assert_eq!(counters.slow.load(Ordering::Relaxed), 1);
        assert!(peer.gone.is_cancelled() && !peer.push_patiently(Bytes::from_static(b"x")).await);
        task.await.unwrap();
        assert!(watched.await.is_err(), "it was never written");
    }

    #[tokio::test]
    async fn what_is_queued_is_written_before_the_end() {
        let (near, mut far) = tokio::io::duplex(1 << 16);
        let (peer, task) = writer(near, &Arc::default());
        let watched = peer.push_watched(frame(b"a").into());
        peer.push(frame(b"b").into());
        drop(peer);
        task.await;
        watched.await.unwrap();
        let mut all = Vec::new();
        far.read_to_end(&mut all).await.unwrap();
        assert_eq!(all, [frame(b"a"), frame(b"b")].concat());
    }
}
