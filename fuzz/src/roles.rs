//! What is tried on the messages between roles, and on the sockets that carry them.

use ringfence_wire::{
    agent::{ToCore, ToWorker},
    audit::{AgentReport, FromCore, Handoff, Notice, PeerQuestion},
    conn::Conn,
    frame::{self, FrameError},
    mcp::{McpRequest, SessionOrder, SessionUpdate},
    message::{AdminRequest, EnrollRequest, Enrolled, QueryReply, QueryRequest, Reply},
    packets::Packets,
    runner::{Answer, Request},
    status::Status,
    tie::{Heard, Said},
    trace::{AgentEvent, Trace},
};
use rustix::net::{SendFlags, send};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::value::RawValue;
use std::{
    io::Write,
    net::Shutdown,
    os::{
        fd::{AsFd, OwnedFd},
        unix::net::UnixStream,
    },
    time::Duration,
};

/// Most bytes of a message here.
const MOST: usize = 1024;

/// Every message that a role reads, by the first byte: one that is understood means the same when it is written again.
const MESSAGES: [fn(&[u8]); 22] = [
    again::<ToCore>,
    again::<ToWorker>,
    again::<Handoff>,
    again::<FromCore>,
    again::<PeerQuestion>,
    again::<AgentReport>,
    again::<Notice>,
    again::<AdminRequest>,
    again::<EnrollRequest>,
    again::<QueryRequest>,
    again::<Reply<Enrolled>>,
    again::<Reply<Status>>,
    again::<QueryReply>,
    again::<McpRequest>,
    again::<SessionUpdate>,
    again::<SessionOrder>,
    again::<Request>,
    again::<Answer>,
    again::<AgentEvent>,
    again::<Trace>,
    again::<Said>,
    again::<Heard>,
];

fn again<T: Serialize + DeserializeOwned>(body: &[u8]) {
    let Ok(message) = serde_json::from_slice::<T>(body) else { return };
    let written = serde_json::to_string(&message).expect("what was read can be written");
    let read: T = serde_json::from_str(&written).expect("what was written can be read");
    assert_eq!(serde_json::to_string(&read).expect("as before"), written);
}

/// Messages, and the sockets: a connection takes what the same bytes are as frames, however they are cut; on a line of
/// packets a broken one costs none of those after it.
pub(crate) fn roles(data: &[u8]) {
    let Some((which, body)) = data.split_first() else { return };
    MESSAGES[usize::from(*which) % MESSAGES.len()](body);
    connection(body, usize::from(*which) + 1);
    packets(body, usize::from(*which) + 1);
}

fn connection(bytes: &[u8], size: usize) {
    let Ok((mut ours, theirs)) = UnixStream::pair() else { return };
    let mut conn = Conn::new(theirs, Duration::from_secs(5), MOST);
    for piece in bytes.chunks(size) {
        ours.write_all(piece).expect("room for a few bytes");
    }
    ours.shutdown(Shutdown::Write).expect("a socket");
    let mut rest = bytes;
    loop {
        let expected = frame::read_message::<Box<RawValue>>(&mut rest, MOST);
        let got = conn.receive_with_descriptors::<Box<RawValue>>();
        match (expected, got) {
            (Ok(expected), Ok((got, descriptors))) => {
                assert!(expected.get() == got.get() && descriptors.is_empty());
            }
            (Err(FrameError::Json(_)), Err(FrameError::Json(_))) => {}
            (Err(expected), Err(got)) => {
                assert_eq!(expected.to_string(), got.to_string());
                return;
            }
            (expected, got) => panic!("{expected:?} and {got:?}"),
        }
    }
}

fn packets(bytes: &[u8], size: usize) {
    let Ok((ours, theirs)) = Packets::pair() else { return };
    // As many as fit a socket's buffer for sure.
    let sent: Vec<&[u8]> = bytes.chunks(size.max(bytes.len() / 32 + 1)).collect();
    for packet in &sent {
        send(ours.as_fd(), packet, SendFlags::empty()).expect("room for a few packets");
    }
    let beside: OwnedFd = theirs.as_fd().try_clone_to_owned().expect("a descriptor");
    ours.send(&"last", Some(beside.as_fd()), None).expect("room for one more");
    drop(ours);
    for packet in sent {
        match theirs.receive::<Box<RawValue>>() {
            Ok((message, beside)) => {
                assert!(beside.is_none());
                let expected: Box<RawValue> = serde_json::from_slice(packet).expect("it was understood");
                assert_eq!(message.get(), expected.get());
            }
            Err(error) => assert!(!Packets::is_over(&error), "{error}"),
        }
    }
    let (last, beside) = theirs.receive::<String>().expect("the last one");
    assert!(last == "last" && beside.is_some());
    assert!(theirs.receive::<String>().is_err_and(|error| Packets::is_over(&error)));
}
