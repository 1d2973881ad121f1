//! What goes over a link and comes back: questions and reports as they wait, answers by their numbers, orders.

use crate::{
    access::WithDescriptors,
    frame::FrameReader,
    service::{OrderAssembler, next},
};
use ringfence_wire::{
    agent::{Answer, ToCore, ToWorker},
    frame::framed,
    rights,
};
use rustix::net::SendFlags;
use std::{
    collections::HashMap,
    io::{self, IoSlice},
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    sync::{Mutex, PoisonError},
};
use tokio::{
    io::{AsyncWriteExt, Interest},
    net::{UnixStream, unix::OwnedWriteHalf},
    sync::{mpsc, oneshot},
};
use tokio_util::sync::CancellationToken;

/// An answer, and what comes beside it.
pub(super) type Answered = (Answer, Option<OwnedFd>);

/// What is to be said.
pub(super) struct Question {
    /// Its number is given when it is sent.
    pub(super) what: ToCore,
    /// What goes beside it.
    pub(super) descriptors: Vec<OwnedFd>,
    /// Hears the answer.
    pub(super) answer: Option<oneshot::Sender<Answered>>,
    /// Hears that it was written.
    pub(super) written: Option<oneshot::Sender<()>>,
}

impl Question {
    /// That nobody hears an answer to.
    pub(super) fn told(what: ToCore) -> Self {
        Self { what, descriptors: Vec::new(), answer: None, written: None }
    }
}

/// What waits to be said.
pub(super) trait Waits {
    /// The next; `None`: nobody can say anything any more.
    fn next(&mut self) -> impl Future<Output = Option<Question>> + Send;
}

impl Waits for mpsc::Receiver<Question> {
    async fn next(&mut self) -> Option<Question> {
        self.recv().await
    }
}

/// Those who wait for an answer, by the numbers of their questions.
#[derive(Default)]
struct Waiting {
    last: u64,
    answers: HashMap<u64, oneshot::Sender<Answered>>,
}

impl Waiting {
    /// Gives a question its number, before it can be answered. Who gave up waiting is forgotten.
    fn number(&mut self, what: &mut ToCore, answer: Option<oneshot::Sender<Answered>>) {
        self.answers.retain(|_, waits| !waits.is_closed());
        let number = match what {
            ToCore::Speaker { number }
            | ToCore::Tag { number }
            | ToCore::CommandLine { number }
            | ToCore::Tie { number, .. }
            | ToCore::CouldBeTied { number, .. }
            | ToCore::DeniedSoFar { number }
            | ToCore::DenialsOf { number, .. }
            | ToCore::ToolsLine { number } => number,
            ToCore::Ready
            | ToCore::Failed(_)
            | ToCore::Status(_)
            | ToCore::KeyRefused
            | ToCore::Report(_)
            | ToCore::Behind { .. } => return,
        };
        if let Some(answer) = answer {
            self.last += 1;
            *number = self.last;
            self.answers.insert(self.last, answer);
        }
    }
}

/// Says what waits, in its order, and hears answers and orders, until the other end closes.
///
/// # Errors
/// It says what it says to others only, or cannot be read or written.
pub(super) async fn run(
    supervisor: UnixStream,
    mut queue: impl Waits,
    mut assembler: Option<OrderAssembler>,
    stop: CancellationToken,
) -> io::Result<()> {
    let waiting = Mutex::new(Waiting::default());
    let lock = || waiting.lock().unwrap_or_else(PoisonError::into_inner);
    let (read, mut write) = supervisor.into_split();
    let hear = async {
        let (read, descriptors) = WithDescriptors::new(read);
        let mut reader = FrameReader::new(read);
        loop {
            let body = match reader.next(None).await {
                Ok(body) => body,
                Err(ringfence_wire::frame::FrameError::Closed) => return Ok(()),
                Err(error) => return Err(io::Error::other(error)),
            };
            match serde_json::from_slice::<ToWorker>(&body) {
                Ok(ToWorker::Answer { number, answer }) => {
                    let beside =
                        matches!(answer, Answer::ToolsLine).then(|| next(&descriptors)).transpose()?;
                    // Late: nobody waits for it any more.
                    lock().answers.remove(&number).map(|waits| waits.send((answer, beside)));
                }
                Ok(ToWorker::Stop) => stop.cancel(),
                Ok(order) => match &mut assembler {
                    Some(assembler) => assembler.take(order, &descriptors).await?,
                    None => return Err(io::Error::other("it says what it says to a new worker only")),
                },
                Err(error) => return Err(io::Error::other(error)),
            }
        }
    };
    let say = async {
        while let Some(Question { mut what, descriptors, answer, written }) = queue.next().await {
            lock().number(&mut what, answer);
            write_out(&mut write, &what, &descriptors).await?;
            written.map(|written| written.send(()));
        }
        // Nobody can ask any more: the worker ends.
        std::future::pending().await
    };
    tokio::select! {
        heard = hear => heard,
        said = say => said,
    }
}

async fn write_out(write: &mut OwnedWriteHalf, what: &ToCore, descriptors: &[OwnedFd]) -> io::Result<()> {
    let body = serde_json::to_vec(what)?;
    let frame = framed(&body).map_err(io::Error::other)?;
    let sent = loop {
        write.writable().await?;
        let socket: &UnixStream = write.as_ref();
        match socket.try_io(Interest::WRITABLE, || send(socket.as_fd(), &frame, descriptors)) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            sent => break sent?,
        }
    };
    write.write_all(frame.get(sent..).unwrap_or_default()).await
}

fn send(socket: BorrowedFd<'_>, frame: &[u8], descriptors: &[OwnedFd]) -> io::Result<usize> {
    let borrowed: Vec<BorrowedFd<'_>> = descriptors.iter().map(AsFd::as_fd).collect();
    Ok(rights::send(socket, &[IoSlice::new(frame)], &borrowed, SendFlags::DONTWAIT)?)
}
