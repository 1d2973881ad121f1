//! What the core tells the auditor of the auditor's peers: the auditor's sandbox sees neither /proc nor the tags.
//!
//! Each auditor has a line of its own, and a few threads answer on it: each answer carries the number of its question, so
//! one that takes its time holds up no other. Work for one question is bounded ([`peer::lineage`]), and an answer that the
//! auditor does not take is dropped: whoever asked gives up.

use super::{enforcer::Enforcer, server::Server};
use ringfence_base::quota::Owners;
use ringfence_base::{error::chain, precedence};
use ringfence_process::peer::{self, Peer};
use ringfence_wire::{
    audit::{FromCore, PeerFacts, PeerQuestion, Subordinate},
    frame::FrameError,
    message::{Failure, Reply},
    packets::Packets,
};
use std::{
    os::{
        fd::{AsFd, OwnedFd},
        unix::net::UnixStream,
    },
    sync::{
        Arc, Weak,
        mpsc::{Receiver, RecvTimeoutError},
    },
    thread,
    time::Duration,
};

/// Threads that answer one auditor.
const ANSWERING: usize = 4;

/// How often `/etc/subuid` is looked at.
const LOOK: Duration = Duration::from_secs(5);

/// Answers each auditor until it ends, and tells it whose subordinate ids are. Returns when there will be no other.
pub(crate) fn serve<E: Enforcer>(server: &Arc<Server<E>>, auditors: &Receiver<Packets>) {
    let owners = server.owners();
    let mut seen = None;
    let mut current: Weak<Packets> = Weak::new();
    // Until the auditor has taken it.
    let mut pending = false;
    loop {
        pending |= owners.refresh(&mut seen);
        match auditors.recv_timeout(LOOK) {
            Ok(line) => {
                let line = Arc::new(line);
                current = Arc::downgrade(&line);
                start(server, &line);
                pending = !send_owners(&line, owners);
            }
            Err(RecvTimeoutError::Timeout) => {
                if pending && let Some(line) = current.upgrade() {
                    pending = !send_owners(&line, owners);
                }
            }
            Err(RecvTimeoutError::Disconnected) => return,
        }
    }
}

fn start<E: Enforcer>(server: &Arc<Server<E>>, line: &Arc<Packets>) {
    for _ in 0..ANSWERING {
        let (server, line) = (Arc::clone(server), Arc::clone(line));
        let facts = move |connection| facts(&server, connection);
        let started = thread::Builder::new().name("peer-answers".into()).spawn(move || {
            // Every decision and every new session waits for these few.
            precedence::first();
            answer_all(&line, facts);
        });
        if let Err(error) = started {
            tracing::error!("cannot start a thread that answers the auditor: {error}");
        }
    }
}

/// True: the auditor knows them.
fn send_owners(line: &Packets, owners: &Owners) -> bool {
    let ranges: Vec<Subordinate> = owners.ranges();
    let sent = line.send(&FromCore::Owners { ranges }, None, None);
    if let Err(error) = &sent {
        tracing::warn!("the auditor was not told whose subordinate ids are: {}", chain(error));
    }
    sent.is_ok()
}

/// Answers until the auditor is gone. A message that is none is no reason to stop.
fn answer_all(line: &Packets, facts: impl Fn(Option<OwnedFd>) -> Result<PeerFacts, String>) {
    loop {
        match line.receive::<PeerQuestion>() {
            Ok((PeerQuestion { number }, connection)) => {
                let reply = match facts(connection) {
                    Ok(facts) => Reply::Ok(facts),
                    Err(why) => Reply::Failed(Failure::new(why)),
                };
                match line.send(&FromCore::Answer { number, reply }, None, None) {
                    Ok(()) | Err(FrameError::Closed) => {}
                    Err(error) => tracing::debug!("an answer about a peer was dropped: {}", chain(&error)),
                }
            }
            Err(FrameError::Closed) => return,
            Err(error) => {
                tracing::warn!("the auditor's questions about its peers: {}", chain(&error));
                if Packets::is_over(&error) {
                    return;
                }
            }
        }
    }
}

fn facts<E: Enforcer>(server: &Server<E>, connection: Option<OwnedFd>) -> Result<PeerFacts, String> {
    let connection = connection.ok_or("a connection comes beside a question, and none came")?;
    let connection = UnixStream::from(connection);
    let peer = Peer::of(&connection).map_err(|error| chain(&error))?;
    let lineage = peer::lineage(&peer).map_err(|error| chain(&error))?;
    let membership = server.state().kernel.belongs(connection.as_fd(), peer.pidfd.as_fd());
    Ok(PeerFacts { lineage, governed: membership.map_err(|error| chain(&error))?.is_some() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    #[test]
    fn a_slow_or_broken_question_holds_up_no_other() {
        let (core, auditor) = Packets::pair().unwrap();
        let core = Arc::new(core);
        let (go, wait) = mpsc::channel::<()>();
        let wait = Arc::new(std::sync::Mutex::new(wait));
        for _ in 0..2 {
            let (line, wait) = (Arc::clone(&core), Arc::clone(&wait));
            thread::spawn(move || {
                // What comes with a connection takes its time.
                answer_all(&line, |connection| match connection {
                    Some(_) => {
                        let _ = wait.lock().unwrap().recv();
                        Ok(PeerFacts::default())
                    }
                    None => Err("none".to_owned()),
                });
            });
        }
        let (stream, _other) = UnixStream::pair().unwrap();
        auditor.send(&PeerQuestion { number: 1 }, Some(stream.as_fd()), None).unwrap();
        auditor.send(&"no question", None, None).unwrap();
        auditor.send(&PeerQuestion { number: 2 }, None, None).unwrap();
        let number = || match auditor.receive::<FromCore>().unwrap().0 {
            FromCore::Answer { number, .. } => number,
            FromCore::Owners { .. } => 0,
        };
        assert_eq!(number(), 2, "the slow one is still thought about");
        go.send(()).unwrap();
        assert_eq!(number(), 1);
    }
}
