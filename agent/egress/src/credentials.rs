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
    is_newest: Cell<bool>,
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
    /// Connections are handed to whoever has the other end of this from now on. Calls when that is gone, and no other was given.
    ///
    /// # Errors
    /// It is no socket.
    pub(crate) fn give(&self, link: OwnedFd, ended: impl FnOnce() + 'static) -> io::Result<()> {
        let link = unix::net::UnixStream::from(link);
        link.set_nonblocking(true)?;
        let (read, write) = UnixStream::from_std(link)?.into_split();
        let waiting = Waiting::default();
        let link = Rc::new(Link {
            write: Mutex::new(write),
            waiting: Rc::clone(&waiting),
            is_broken: Cell::default(),
            is_newest: Cell::new(true),
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
            if heard.is_newest.get() {
                ended();
            }
        });
        if let Some(before) = self.link.borrow_mut().replace(link) {
            before.is_newest.set(false);
        }
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
        let mut whole = Whole { link: self, socket, is_begun: false };
        let mut gone = 0;
        while let Some(rest) = frame.get(gone..).filter(|rest| !rest.is_empty()) {
            let beside = if gone == 0 { sockets } else { &[] };
            socket.writable().await?;
            let sent = socket.try_io(Interest::WRITABLE, || {
                Ok(rights::send(socket.as_fd(), &[IoSlice::new(rest)], beside, SendFlags::DONTWAIT)?)
            });
            match sent {
                Ok(count) => {
                    gone += count;
                    whole.is_begun = gone < frame.len();
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => {
                    whole.is_begun = true;
                    return Err(error);
                }
            }
        }
        Ok(())
    }
}

/// A frame that is sent whole, or ends the link: whoever waits for it may be dropped at any time, and what comes behind half a frame
/// would be read as its rest.
struct Whole<'l> {
    link: &'l Link,
    socket: &'l UnixStream,
    is_begun: bool,
}

impl Drop for Whole<'_> {
    fn drop(&mut self) {
        if self.is_begun {
            self.link.is_broken.set(true);
            // Its reader ends by that, and has another asked for.
            let _ = rustix::net::shutdown(self.socket, Shutdown::Both);
        }
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::{io::Read, os::unix::net::UnixStream as Socket};
    use tokio::task::LocalSet;

    async fn pair() -> (TcpStream, TcpStream) {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let ours = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        (ours, listener.accept().await.unwrap().0)
    }

    #[tokio::test]
    async fn half_a_frame_ends_the_link_and_another_is_asked_for() {
        LocalSet::new()
            .run_until(async {
                let credentials = Rc::new(Credentials::default());
                let (one, mut reader) = Socket::pair().unwrap();
                let (ended, has_ended) = oneshot::channel();
                credentials.give(one.into(), move || ended.send(()).unwrap()).unwrap();
                let (client, server) = pair().await;
                // More than the socket takes while nobody reads.
                let serving: Vec<_> = (0..8)
                    .map(|_| {
                        let (credentials, client, server) =
                            (Rc::clone(&credentials), dup(&client), dup(&server));
                        spawn_local(async move {
                            credentials
                                .serve(("a.org", 443), (vec![1; 100 << 10], ()), &client, &server)
                                .await
                                .map(drop)
                        })
                    })
                    .collect();
                tokio::time::sleep(Duration::from_millis(200)).await;
                assert!(credentials.is_there().is_ok(), "the control");
                // The policy ends all of them.
                serving.iter().for_each(tokio::task::JoinHandle::abort);
                timeout(Duration::from_secs(60), has_ended).await.unwrap().unwrap();
                assert!(credentials.is_there().is_err());
                reader.set_nonblocking(false).unwrap();
                let mut said = Vec::new();
                reader.read_to_end(&mut said).unwrap();
                let mut rest = said.as_slice();
                while let Some((header, behind)) = rest.split_first_chunk::<HEADER>() {
                    let length = length(*header, MAX_TAKE).unwrap();
                    let Some(body) = behind.get(..length) else { return };
                    serde_json::from_slice::<Take>(body).unwrap();
                    rest = &behind[length..];
                }
                panic!("all frames are whole");
            })
            .await;
    }

    #[tokio::test]
    async fn no_other_link_is_asked_for_where_there_is_one() {
        LocalSet::new()
            .run_until(async {
                let credentials = Credentials::default();
                let asked = Rc::new(Cell::new(0));
                let give = |link: Socket| {
                    let asked = Rc::clone(&asked);
                    credentials.give(link.into(), move || asked.set(asked.get() + 1)).unwrap();
                };
                let (one, reader) = Socket::pair().unwrap();
                let (two, other) = Socket::pair().unwrap();
                give(one);
                give(two);
                drop(reader);
                for _ in 0..100 {
                    tokio::task::yield_now().await;
                    tokio::time::sleep(Duration::from_millis(1)).await;
                }
                assert_eq!(asked.get(), 0);
                assert!(credentials.is_there().is_ok());
                drop(other);
                let until = std::time::Instant::now() + Duration::from_secs(60);
                while asked.get() == 0 && std::time::Instant::now() < until {
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
                assert_eq!(asked.get(), 1);
            })
            .await;
    }

    fn dup(socket: &TcpStream) -> TcpStream {
        let socket = socket.as_fd().try_clone_to_owned().unwrap();
        TcpStream::from_std(std::net::TcpStream::from(socket)).unwrap()
    }
}
