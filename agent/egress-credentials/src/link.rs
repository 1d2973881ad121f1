//! Messages with descriptors beside them: the core's orders, and the connections that an egress worker hands over.
//!
//! An egress worker reads what containers and servers say, and may be taken over: what it says here is bounded, and what does not
//! fit ends the link, and with it its connections.

use crate::taken::{Shared, Taken, Went, serve};
use base64::{Engine as _, engine::general_purpose::STANDARD};
use ringfence_wire::{
    credentials::{FromLink, MAX_TAKE, Take, TakenRefusal},
    egress::EgressCause,
    frame::{FrameError, HEADER, framed, length},
    rights,
};
use rustix::net::RecvFlags;
use serde::de::DeserializeOwned;
use std::{
    collections::VecDeque,
    io, net,
    os::{
        fd::{AsFd, OwnedFd},
        unix,
    },
    rc::Rc,
};
use tokio::{
    io::{AsyncWriteExt, Interest},
    net::{
        TcpStream, UnixStream,
        unix::{OwnedReadHalf, OwnedWriteHalf},
    },
    sync::mpsc,
    task::JoinSet,
};

/// Bytes that are read at once.
const CHUNK: usize = 16 << 10;
/// Most descriptors that wait for their message.
const MOST_DESCRIPTORS: usize = 16;
/// Connections at once: each has two sockets, and at most a quarter of a megabyte.
pub(crate) const MOST_CONNECTIONS: usize = 256;

/// Messages of one socket, whole.
pub(crate) struct Messages {
    socket: OwnedReadHalf,
    most: usize,
    bytes: Vec<u8>,
    descriptors: VecDeque<OwnedFd>,
}

impl Messages {
    /// Of at most so many bytes each.
    pub(crate) fn new(socket: OwnedReadHalf, most: usize) -> Self {
        Self { socket, most, bytes: Vec::new(), descriptors: VecDeque::new() }
    }

    /// The next. `None`: the other end is gone.
    ///
    /// # Errors
    /// It says what nobody says there.
    pub(crate) async fn next<T: DeserializeOwned>(&mut self) -> Result<Option<T>, FrameError> {
        loop {
            if let Some(header) = self.bytes.first_chunk::<HEADER>() {
                let wanted = HEADER + length(*header, self.most)?;
                if let Some(body) = self.bytes.get(HEADER..wanted) {
                    let message = serde_json::from_slice(body).map_err(FrameError::Json)?;
                    self.bytes.drain(..wanted);
                    return Ok(Some(message));
                }
            }
            self.socket.readable().await.map_err(FrameError::from_io)?;
            match self.receive() {
                Ok(0) if self.bytes.is_empty() => return Ok(None),
                Ok(0) => return Err(FrameError::Cut { got: self.bytes.len(), wanted: HEADER }),
                Ok(_) if self.descriptors.len() > MOST_DESCRIPTORS => {
                    return Err(FrameError::TooManyDescriptors { max: MOST_DESCRIPTORS });
                }
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => match FrameError::from_io(error) {
                    FrameError::Closed => return Ok(None),
                    error => return Err(error),
                },
            }
        }
    }

    /// The next descriptor that came beside a message: as many as belong to it are taken right behind it.
    pub(crate) fn descriptor(&mut self) -> Option<OwnedFd> {
        self.descriptors.pop_front()
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

/// Serves the connections of one egress worker, until that is gone; they end with it.
///
/// # Errors
/// It says what no egress worker says.
pub(crate) async fn connections(shared: Rc<Shared>, link: OwnedFd) -> Result<(), FrameError> {
    let link = unix::net::UnixStream::from(link);
    link.set_nonblocking(true).map_err(FrameError::Io)?;
    let (read, write) = UnixStream::from_std(link).map_err(FrameError::Io)?.into_split();
    let mut messages = Messages::new(read, MAX_TAKE);
    let (tell, told) = mpsc::channel(MOST_CONNECTIONS);
    let mut taken: JoinSet<()> = JoinSet::new();
    let hears = async {
        while let Some(Take { id, host, port, said }) = messages.next().await? {
            let sockets = (messages.descriptor(), messages.descriptor());
            let (Some(client), Some(server)) = sockets else {
                return Err(FrameError::Io(io::Error::other("a connection without its sockets")));
            };
            while taken.try_join_next().is_some() {}
            let said = STANDARD.decode(said).map_err(|error| FrameError::Io(io::Error::other(error)))?;
            let tell = tell.clone();
            if taken.len() >= MOST_CONNECTIONS {
                let reason =
                    "the container has as many connections to hosts with credentials as it may".to_owned();
                let refused = TakenRefusal { cause: EgressCause::Full, reason };
                let over = over(id, Went { bytes: (0, 0), refused: Some(refused) });
                // Its writer is not waited for: who hands over more than it may hears of it when it reads.
                if tell.try_send(over).is_err() {
                    tracing::warn!("the egress worker does not read what became of its connections");
                }
                continue;
            }
            let (client, server) = (socket(client)?, socket(server)?);
            let shared = Rc::clone(&shared);
            taken.spawn_local(async move {
                let went = serve(shared, Taken { host, port, said, client, server }).await;
                let _ = tell.send(over(id, went)).await;
            });
        }
        Ok(())
    };
    tokio::select! {
        heard = hears => heard,
        written = write_all(write, told) => written.map_err(FrameError::from_io),
    }
}

fn over(id: u64, went: Went) -> FromLink {
    let (sent, received) = went.bytes;
    FromLink::Over { id, sent, received, refused: went.refused }
}

fn socket(descriptor: OwnedFd) -> Result<TcpStream, FrameError> {
    let socket = net::TcpStream::from(descriptor);
    socket.set_nonblocking(true).map_err(FrameError::Io)?;
    let _ = socket.set_nodelay(true);
    TcpStream::from_std(socket).map_err(FrameError::Io)
}

async fn write_all(mut socket: OwnedWriteHalf, mut told: mpsc::Receiver<FromLink>) -> io::Result<()> {
    while let Some(message) = told.recv().await {
        let body = serde_json::to_vec(&message)?;
        socket.write_all(&framed(&body).map_err(io::Error::other)?).await?;
    }
    Ok(())
}
