//! The worker's end of the link to the core: orders with descriptors beside them, and what the worker says.

use crate::uploads::Untold;
use ringfence_wire::{
    egress::{EgressCounts, Flow, FromEgress, MAX_ORDER, ToEgress},
    frame::{FrameError, HEADER, framed, length},
    rights,
};
use rustix::net::RecvFlags;
use std::{
    cell::{Cell, RefCell},
    collections::{HashMap, VecDeque},
    io,
    os::fd::{AsFd, OwnedFd},
    time::Duration,
};
use tokio::{
    io::{AsyncWriteExt, Interest},
    net::unix::{OwnedReadHalf, OwnedWriteHalf},
    sync::{Notify, mpsc, oneshot},
    time::timeout,
};

/// Messages that wait to be sent: as many questions as the core answers at once.
const QUEUE: usize = 4096;
/// Complaints that wait.
const COMPLAINTS: usize = 8;
/// How long the core may take to answer.
const PATIENCE: Duration = Duration::from_secs(30);
/// Bytes that are read at once.
const CHUNK: usize = 16 << 10;

/// What is not the container's to delay: each has a place of its own.
#[derive(Default)]
struct First {
    line: Cell<bool>,
    /// The newest pair that is gone.
    ended: Cell<Option<u64>>,
    counts: Cell<Option<EgressCounts>>,
    /// And what is over of them.
    complaints: RefCell<VecDeque<FromEgress>>,
    more: Notify,
}

impl First {
    fn next(&self) -> Option<FromEgress> {
        if self.line.take() {
            return Some(FromEgress::Line);
        }
        if let Some(id) = self.ended.take() {
            return Some(FromEgress::LinkEnded { id });
        }
        let complaint = self.complaints.borrow_mut().pop_front();
        complaint.or_else(|| self.counts.take().map(FromEgress::Counts))
    }
}

/// What is said to the core, and who waits for an answer.
pub(crate) struct Link {
    /// Questions, of which a container makes as many as it likes.
    queue: mpsc::Sender<FromEgress>,
    /// What goes before them.
    first: First,
    /// As this does: connections wait for it, and each has so much of it to say.
    pub(crate) uploads: Untold,
    last: Cell<u64>,
    waiting: RefCell<HashMap<u64, oneshot::Sender<Option<Flow>>>>,
}

impl Link {
    /// A link, and what is to be [written](write) of it.
    pub(crate) fn new() -> (Self, mpsc::Receiver<FromEgress>) {
        let (queue, messages) = mpsc::channel(QUEUE);
        let link = Self {
            queue,
            first: First::default(),
            uploads: Untold::default(),
            last: Cell::new(0),
            waiting: RefCell::default(),
        };
        (link, messages)
    }

    /// Says something, before all questions that wait. Of what waits already, the newest counts.
    pub(crate) fn say(&self, message: FromEgress) {
        match message {
            FromEgress::Line => self.first.line.set(true),
            FromEgress::LinkEnded { id } => self.first.ended.set(Some(id)),
            FromEgress::Counts(counts) => self.first.counts.set(Some(counts)),
            complaint @ (FromEgress::Complaint(_) | FromEgress::Over(_)) => {
                let mut complaints = self.first.complaints.borrow_mut();
                if complaints.len() >= COMPLAINTS {
                    complaints.pop_front();
                }
                complaints.push_back(complaint);
            }
            message @ (FromEgress::Ready | FromEgress::WhoIs { .. } | FromEgress::Uploads(_)) => {
                if self.queue.try_send(message).is_err() {
                    tracing::warn!("the daemon does not read what this egress worker says");
                }
            }
        }
        self.first.more.notify_one();
    }

    /// Whose connection this is: `Ok(None)`: no governed task's.
    ///
    /// # Errors
    /// The core does not say.
    pub(crate) async fn who_is(&self, port: u16) -> Result<Option<Flow>, Unanswered> {
        let id = self.last.get() + 1;
        self.last.set(id);
        let (answer, answered) = oneshot::channel();
        let _waits = Waits { link: self, id };
        self.waiting.borrow_mut().insert(id, answer);
        let asked = async {
            self.queue.send(FromEgress::WhoIs { id, port }).await.map_err(|_| Unanswered)?;
            answered.await.map_err(|_| Unanswered)
        };
        timeout(PATIENCE, asked).await.map_err(|_| Unanswered)?
    }

    /// The core's answer to a question.
    pub(crate) fn answered(&self, id: u64, flow: Option<Flow>) {
        if let Some(waits) = self.waiting.borrow_mut().remove(&id) {
            // Whoever asked may have given up.
            let _ = waits.send(flow);
        }
    }
}

/// The core did not say whose a connection is.
#[derive(Debug, Clone, Copy, thiserror::Error)]
#[error("the daemon did not say whose it is")]
pub(crate) struct Unanswered;

/// Somebody waits for an answer.
struct Waits<'a> {
    link: &'a Link,
    id: u64,
}

impl Drop for Waits<'_> {
    fn drop(&mut self) {
        self.link.waiting.borrow_mut().remove(&self.id);
    }
}

/// Writes what is said until the link breaks.
///
/// # Errors
/// It does.
pub(crate) async fn write(
    mut socket: OwnedWriteHalf,
    link: &Link,
    mut messages: mpsc::Receiver<FromEgress>,
) -> io::Result<()> {
    loop {
        let first = || link.first.next().or_else(|| link.uploads.next().map(FromEgress::Uploads));
        let message = match first() {
            Some(message) => message,
            None => tokio::select! {
                () = link.first.more.notified() => continue,
                () = link.uploads.more() => continue,
                Some(message) = messages.recv() => message,
            },
        };
        let body = serde_json::to_vec(&message)?;
        socket.write_all(&framed(&body).map_err(io::Error::other)?).await?;
        if matches!(message, FromEgress::Uploads(_)) {
            link.uploads.was_said();
        }
    }
}

/// What the core says, whole.
pub(crate) struct Orders {
    socket: OwnedReadHalf,
    bytes: Vec<u8>,
    descriptors: VecDeque<OwnedFd>,
}

impl Orders {
    pub(crate) fn new(socket: OwnedReadHalf) -> Self {
        Self { socket, bytes: Vec::new(), descriptors: VecDeque::new() }
    }

    /// The next, and the descriptor beside it if it has one. `None`: the core is gone.
    ///
    /// # Errors
    /// It says what no core says.
    pub(crate) async fn next(&mut self) -> Result<Option<(ToEgress, Option<OwnedFd>)>, FrameError> {
        loop {
            if let Some(header) = self.bytes.first_chunk::<HEADER>() {
                let wanted = HEADER + length(*header, MAX_ORDER)?;
                if let Some(body) = self.bytes.get(HEADER..wanted) {
                    let order = serde_json::from_slice(body).map_err(FrameError::Json)?;
                    self.bytes.drain(..wanted);
                    let has_one = matches!(order, ToEgress::Line | ToEgress::Credentials { .. });
                    let beside = has_one.then(|| self.descriptors.pop_front()).flatten();
                    return Ok(Some((order, beside)));
                }
            }
            self.socket.readable().await.map_err(FrameError::from_io)?;
            match self.receive() {
                Ok(0) if self.bytes.is_empty() => return Ok(None),
                Ok(0) => return Err(FrameError::Cut { got: self.bytes.len(), wanted: HEADER }),
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => match FrameError::from_io(error) {
                    FrameError::Closed => return Ok(None),
                    error => return Err(error),
                },
            }
        }
    }

    fn receive(&mut self) -> io::Result<usize> {
        let mut chunk = [0; CHUNK];
        let socket = self.socket.as_ref();
        let received = socket.try_io(Interest::READABLE, || {
            Ok(rights::receive(socket.as_fd(), &mut chunk, RecvFlags::DONTWAIT)?)
        })?;
        self.bytes.extend_from_slice(chunk.get(..received.bytes).unwrap_or_default());
        self.descriptors.extend(received.descriptors);
        Ok(received.bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::{net::UnixStream, task::LocalSet};

    #[tokio::test]
    async fn what_the_container_cannot_delay_goes_before_its_questions() {
        LocalSet::new()
            .run_until(async {
                let (link, messages) = Link::new();
                for port in 0..4096 {
                    link.queue.try_send(FromEgress::WhoIs { id: 0, port }).unwrap();
                }
                for at in 0..10 {
                    link.say(FromEgress::Complaint(at.to_string()));
                    link.say(FromEgress::Counts(EgressCounts { open: at, ..EgressCounts::default() }));
                }
                link.say(FromEgress::Line);
                let (ours, theirs) = UnixStream::pair().unwrap();
                let (_read, write_half) = ours.into_split();
                let theirs = theirs.into_std().unwrap();
                theirs.set_nonblocking(false).unwrap();
                let hears = tokio::task::spawn_blocking(move || {
                    let mut conn = ringfence_wire::conn::Conn::new(theirs, PATIENCE * 6, MAX_ORDER);
                    let said: Vec<_> = (0..11).map(|_| conn.receive::<FromEgress>().unwrap()).collect();
                    // It is not closed before all of it is looked at.
                    (said, conn)
                });
                let (said, _conn) = tokio::select! {
                    written = write(write_half, &link, messages) => panic!("{written:?}"),
                    heard = hears => heard.unwrap(),
                };
                assert_eq!(said[0], FromEgress::Line);
                let complaints: Vec<_> = (2..10).map(|at| FromEgress::Complaint(at.to_string())).collect();
                assert_eq!(said[1..9], complaints, "the newest");
                assert!(matches!(said[9], FromEgress::Counts(EgressCounts { open: 9, .. })));
                assert_eq!(said[10], FromEgress::WhoIs { id: 0, port: 0 });
            })
            .await;
    }
}
