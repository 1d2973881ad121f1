//! Messages with descriptors beside them: the core's orders, and the connections that an egress worker hands over.
//!
//! An egress worker reads what containers and servers say, and may be taken over: what it says here is bounded, and what does not
//! fit ends the link, and with it its connections.

use crate::{
    stream::{Handed, Socket},
    taken::{Shared, Taken, Went, serve},
};
use base64::{Engine as _, engine::general_purpose::STANDARD};
use ringfence_wire::{
    credentials::{FromLink, MAX_TAKE, Take, TakenRefusal},
    egress::EgressCause,
    frame::{FrameError, HEADER, framed, length},
    rights,
};
use rustix::net::{AddressFamily, RecvFlags, ReturnFlags, SocketType, sockopt};
use serde::{Serialize, de::DeserializeOwned};
use std::{
    collections::VecDeque,
    io,
    os::{
        fd::{AsFd, OwnedFd},
        unix,
    },
    rc::Rc,
};
use tokio::{
    io::{AsyncWriteExt, Interest},
    net::{
        UnixStream,
        unix::{OwnedReadHalf, OwnedWriteHalf},
    },
    sync::mpsc,
    task::JoinSet,
};

/// Bytes that are read at once.
const CHUNK: usize = 16 << 10;
/// Most descriptors that wait for their message.
const MOST_DESCRIPTORS: usize = 16;
/// Connections at once, where there is memory for them: each has two sockets.
const MOST_CONNECTIONS: usize = 256;
/// Bytes that a connection takes beside what is looked for in its answers: what TLS and HTTP keep of both sides.
const CONNECTION: u64 = 256 << 10;
/// Bytes that the process takes beside its connections.
const PROCESS: u64 = 24 << 20;

/// How many connections there may be, in so many bytes of memory, of which the mask takes so many for each of them.
pub(crate) fn most_connections(memory: u64, mask: u64) -> usize {
    let most = memory.saturating_sub(PROCESS) / CONNECTION.saturating_add(mask);
    // Fewer are no use to anybody.
    usize::try_from(most).unwrap_or(MOST_CONNECTIONS).clamp(4, MOST_CONNECTIONS)
}

/// Messages of one socket, whole.
pub(crate) struct Messages {
    socket: OwnedReadHalf,
    most: usize,
    bytes: Vec<u8>,
    descriptors: VecDeque<Handed>,
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
    pub(crate) fn descriptor(&mut self) -> Option<Handed> {
        self.descriptors.pop_front()
    }

    fn receive(&mut self) -> io::Result<usize> {
        let mut chunk = [0; CHUNK];
        let socket = self.socket.as_ref();
        let received = socket.try_io(Interest::READABLE, || {
            Ok(rights::receive_all(socket.as_fd(), &mut chunk, RecvFlags::DONTWAIT)?)
        })?;
        if received.flags.contains(ReturnFlags::CTRUNC) {
            return Err(io::Error::other("more descriptors than there is room for"));
        }
        self.bytes.extend_from_slice(chunk.get(..received.bytes).unwrap_or_default());
        self.descriptors.extend(received.descriptors.into_iter().map(Handed::from));
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
    let (read, to_worker) = UnixStream::from_std(link).map_err(FrameError::Io)?.into_split();
    let mut messages = Messages::new(read, MAX_TAKE);
    let (tell, mut told) = mpsc::channel(MOST_CONNECTIONS);
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
            if taken.len() >= shared.most_connections {
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
            let (client, server) = (socket(&client)?, socket(&server)?);
            let shared = Rc::clone(&shared);
            taken.spawn_local(async move {
                let went = serve(shared, Taken { host, port, said, client, server }).await;
                let _ = tell.send(over(id, went)).await;
            });
        }
        Ok(())
    };
    let tells = async {
        let mut socket = to_worker;
        while let Some(message) = told.recv().await {
            write(&mut socket, &message).await?;
        }
        io::Result::Ok(())
    };
    tokio::select! {
        heard = hears => heard,
        written = tells => written.map_err(FrameError::from_io),
    }
}

fn over(id: u64, went: Went) -> FromLink {
    let (sent, received) = went.bytes;
    FromLink::Over { id, sent, received, refused: went.refused }
}

/// A connected TCP socket, and nothing else that would be waited for in the same way.
fn socket(descriptor: &Handed) -> Result<Socket, FrameError> {
    if !is_connection(descriptor).map_err(|errno| FrameError::Io(errno.into()))? {
        return Err(FrameError::Io(io::Error::other("a connection that is none")));
    }
    Socket::new(descriptor).map_err(FrameError::Io)
}

fn is_connection(socket: impl AsFd) -> rustix::io::Result<bool> {
    let socket = socket.as_fd();
    let is_inet = matches!(sockopt::socket_domain(socket)?, AddressFamily::INET | AddressFamily::INET6);
    let is_stream = sockopt::socket_type(socket)? == SocketType::STREAM;
    Ok(is_inet && is_stream && !sockopt::socket_acceptconn(socket)?)
}

/// Writes what is to be told until there is nobody to tell it.
///
/// # Errors
/// The other end is gone.
pub(crate) async fn write_all<T: Serialize>(
    mut socket: OwnedWriteHalf,
    mut told: mpsc::UnboundedReceiver<T>,
) -> io::Result<()> {
    while let Some(message) = told.recv().await {
        write(&mut socket, &message).await?;
    }
    Ok(())
}

async fn write(socket: &mut OwnedWriteHalf, message: &impl Serialize) -> io::Result<()> {
    let body = serde_json::to_vec(message)?;
    socket.write_all(&framed(&body).map_err(io::Error::other)?).await
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net;

    #[test]
    fn only_connections_are_taken() {
        let listener = net::TcpListener::bind("127.0.0.1:0").unwrap();
        let connected = net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        assert_eq!(is_connection(OwnedFd::from(connected)), Ok(true), "the control");
        assert_eq!(is_connection(OwnedFd::from(listener)), Ok(false));
        assert_eq!(is_connection(unix::net::UnixStream::pair().unwrap().0), Ok(false));
        assert_eq!(is_connection(net::UdpSocket::bind("127.0.0.1:0").unwrap()), Ok(false));
        assert!(is_connection(io::pipe().unwrap().0).is_err());
    }

    #[test]
    fn there_are_as_many_connections_as_there_is_memory_for() {
        assert_eq!(most_connections(256 << 20, 10 << 10), MOST_CONNECTIONS, "an ordinary token");
        for (memory, mask) in [(128 << 20, 600 << 10), (64 << 20, 600 << 10), (64 << 20, 1 << 10)] {
            let most = most_connections(memory, mask);
            let taken = PROCESS + most as u64 * (CONNECTION + mask);
            assert!(most < MOST_CONNECTIONS && taken <= memory, "{most} of {mask} in {memory}");
        }
        assert_eq!(most_connections(1 << 20, 1 << 20), 4);
    }
}
