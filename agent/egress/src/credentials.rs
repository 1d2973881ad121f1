//! The process that has the container's credentials: connections to hosts that have one are handed over to it, with what was taken
//! of the client. Here there is no credential, and nothing that could end TLS.
//!
//! Both sockets stay open here as well: a connection that is not granted any more is ended by shutting them down, whatever the other
//! process does.

use crate::refusal::Refusal;
use base64::{Engine as _, engine::general_purpose::STANDARD};
use ringfence_wire::{
    credentials::{FromLink, MAX_TAKE, MAX_TOLD, Take},
    egress::{EgressCause, Names},
    frame::{FrameError, HEADER, framed, length},
    rights,
};
use rustix::net::{SendFlags, Shutdown};
use std::{
    cell::{Cell, RefCell},
    collections::HashMap,
    io::{self, IoSlice},
    os::{
        fd::{AsFd, BorrowedFd, OwnedFd},
        unix,
    },
    rc::Rc,
    time::Duration,
};
use tokio::{
    io::{AsyncReadExt, Interest},
    net::{
        TcpStream, UnixStream,
        unix::{OwnedReadHalf, OwnedWriteHalf},
    },
    sync::{Mutex, oneshot},
    task::spawn_local,
    time::timeout,
};

/// How long the process may take to take a connection.
const PATIENCE: Duration = Duration::from_secs(10);

/// How a connection went that was handed over.
pub(crate) struct Went {
    pub(crate) sent: u64,
    pub(crate) received: u64,
    pub(crate) refused: Option<Refusal>,
}

/// Who waits for the end of which connection.
type Waiting = Rc<RefCell<HashMap<u64, oneshot::Sender<Went>>>>;

/// See the module.
#[derive(Default)]
pub(crate) struct Credentials {
    /// The process, if it is there.
    link: RefCell<Option<Rc<Link>>>,
    last: Cell<u64>,
}

struct Link {
    write: Mutex<OwnedWriteHalf>,
    waiting: Waiting,
    is_broken: Cell<bool>,
}

/// Whether a host has a credential at a port.
pub(crate) fn has(names: &Names, host: &str, port: u16) -> bool {
    names.credentials.iter().any(|credential| credential.host == host && credential.port == port)
}

fn gone() -> Refusal {
    Refusal::new(
        EgressCause::NoCredential,
        "the process that puts the container's credential into requests to it is not there",
    )
}

impl Credentials {
    /// Connections are handed to whoever has the other end of this from now on.
    ///
    /// # Errors
    /// It is no socket.
    pub(crate) fn give(&self, link: OwnedFd) -> io::Result<()> {
        let link = unix::net::UnixStream::from(link);
        link.set_nonblocking(true)?;
        let (read, write) = UnixStream::from_std(link)?.into_split();
        let waiting = Waiting::default();
        let link = Rc::new(Link {
            write: Mutex::new(write),
            waiting: Rc::clone(&waiting),
            is_broken: Cell::default(),
        });
        let heard = Rc::clone(&link);
        spawn_local(async move {
            let mut read = read;
            if let Err(error) = hear(&mut read, &waiting).await {
                tracing::warn!("the process with the container's credentials is gone: {error}");
            }
            heard.is_broken.set(true);
            let socket: &UnixStream = read.as_ref();
            let _ = rustix::net::shutdown(socket, Shutdown::Both);
            // Whoever waits is told by that.
            waiting.borrow_mut().clear();
        });
        *self.link.borrow_mut() = Some(link);
        Ok(())
    }

    /// Whether there is anybody.
    ///
    /// # Errors
    /// There is not.
    pub(crate) fn is_there(&self) -> Result<(), Refusal> {
        self.current().map(drop)
    }

    fn current(&self) -> Result<Rc<Link>, Refusal> {
        self.link.borrow().clone().filter(|link| !link.is_broken.get()).ok_or_else(gone)
    }

    /// Hands a connection over, with what its client said so far, and waits until it is over. `kept` is what counts that memory.
    ///
    /// # Errors
    /// Nobody took it, or whoever did is gone.
    pub(crate) async fn serve(
        &self,
        (host, port): (&str, u16),
        (said, kept): (Vec<u8>, impl Sized),
        client: &TcpStream,
        server: &TcpStream,
    ) -> Result<Went, Refusal> {
        let link = self.current()?;
        let id = self.last.get() + 1;
        self.last.set(id);
        let (over, heard) = oneshot::channel();
        link.waiting.borrow_mut().insert(id, over);
        let _waits = Waits { waiting: Rc::clone(&link.waiting), id };
        // Nothing of what it says first is kept for as long as it is open.
        let sent = match frame(id, host, port, said) {
            Ok(frame) => timeout(PATIENCE, link.send(frame, &[client.as_fd(), server.as_fd()])).await,
            Err(error) => Ok(Err(error)),
        };
        if !matches!(sent, Ok(Ok(()))) {
            // What was begun to be said cannot be ended any more.
            link.is_broken.set(true);
            return Err(gone());
        }
        drop(kept);
        heard.await.map_err(|_| gone())
    }
}

impl Link {
    async fn send(&self, frame: Vec<u8>, sockets: &[BorrowedFd<'_>]) -> io::Result<()> {
        let write = self.write.lock().await;
        let socket: &UnixStream = write.as_ref();
        let mut gone = 0;
        while let Some(rest) = frame.get(gone..).filter(|rest| !rest.is_empty()) {
            let beside = if gone == 0 { sockets } else { &[] };
            socket.writable().await?;
            let sent = socket.try_io(Interest::WRITABLE, || {
                Ok(rights::send(socket.as_fd(), &[IoSlice::new(rest)], beside, SendFlags::DONTWAIT)?)
            });
            match sent {
                Ok(count) => gone += count,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

fn frame(id: u64, host: &str, port: u16, said: Vec<u8>) -> io::Result<Vec<u8>> {
    let take = Take { id, host: host.to_owned(), port, said: STANDARD.encode(said) };
    let body = serde_json::to_vec(&take)?;
    if body.len() > MAX_TAKE {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    framed(&body).map_err(io::Error::other)
}

/// Somebody waits for the end of a connection.
struct Waits {
    waiting: Waiting,
    id: u64,
}

impl Drop for Waits {
    fn drop(&mut self) {
        self.waiting.borrow_mut().remove(&self.id);
    }
}

/// Hears what became of connections, until the process is gone.
async fn hear(read: &mut OwnedReadHalf, waiting: &Waiting) -> Result<(), FrameError> {
    loop {
        let mut header = [0; HEADER];
        read.read_exact(&mut header).await.map_err(FrameError::from_io)?;
        let mut body = vec![0; length(header, MAX_TOLD)?];
        read.read_exact(&mut body).await.map_err(FrameError::from_io)?;
        let FromLink::Over { id, sent, received, refused } =
            serde_json::from_slice(&body).map_err(FrameError::Json)?;
        if let Some(waits) = waiting.borrow_mut().remove(&id) {
            let refused = refused.map(|refused| Refusal::new(refused.cause, &refused.reason));
            // Whoever waited may have given up.
            let _ = waits.send(Went { sent, received, refused });
        }
    }
}
