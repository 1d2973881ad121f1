//! What the core tells the auditor of the auditor's peers: the auditor's sandbox sees neither /proc nor the tags.

use super::{
    enforcer::{Enforcer, chain},
    peer::{self, Peer},
    server::Server,
};
use ringfence_wire::{
    audit::{PeerFacts, PeerQuestion},
    conn::Conn,
    frame::FrameError,
    message::{Failure, MAX_REQUEST, Reply},
};
use rustix::event::{PollFd, PollFlags, poll};
use std::{
    os::{
        fd::{AsFd, OwnedFd},
        unix::net::UnixStream,
    },
    sync::mpsc::Receiver,
    time::Duration,
};

/// How long a question or an answer may take once it has begun.
const LIMIT: Duration = Duration::from_secs(2);

/// Answers one auditor after the other, each until it ends.
pub(crate) fn serve<E: Enforcer>(server: &Server<E>, auditors: &Receiver<UnixStream>) {
    while let Ok(auditor) = auditors.recv() {
        let mut conn = Conn::new(auditor, LIMIT, MAX_REQUEST);
        match answer_all(server, &mut conn) {
            Ok(()) | Err(FrameError::Closed) => {}
            Err(error) => tracing::warn!("the auditor's questions about its peers: {}", chain(&error)),
        }
    }
}

fn answer_all<E: Enforcer>(server: &Server<E>, conn: &mut Conn) -> Result<(), FrameError> {
    loop {
        match poll(&mut [PollFd::new(conn.stream(), PollFlags::IN)], None) {
            Ok(_) => {}
            Err(rustix::io::Errno::INTR) => continue,
            Err(errno) => return Err(FrameError::from_io(errno.into())),
        }
        let (PeerQuestion {}, descriptors) = conn.receive_with_descriptors()?;
        let reply = match facts(server, descriptors) {
            Ok(facts) => Reply::Ok(facts),
            Err(why) => Reply::Failed(Failure::new(why)),
        };
        conn.send(&reply)?;
    }
}

fn facts<E: Enforcer>(server: &Server<E>, descriptors: Vec<OwnedFd>) -> Result<PeerFacts, String> {
    let [connection] = <[OwnedFd; 1]>::try_from(descriptors)
        .map_err(|all| format!("one connection comes beside a question, and {} came", all.len()))?;
    let connection = UnixStream::from(connection);
    let peer = Peer::of(&connection).map_err(|error| chain(&error))?;
    let lineage = peer::lineage(&peer).map_err(|error| chain(&error))?;
    let membership = server.state().kernel.belongs(connection.as_fd(), peer.pidfd.as_fd());
    Ok(PeerFacts { lineage, governed: membership.map_err(|error| chain(&error))?.is_some() })
}
