//! Bytes over a unix socket with descriptors beside them (`SCM_RIGHTS`).

use rustix::{
    io,
    net::{
        RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
        SendAncillaryMessage, SendFlags, recvmsg, sendmsg, sockopt::set_socket_linger,
    },
};
use std::{
    io::{IoSlice, IoSliceMut},
    mem::MaybeUninit,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
};

/// Most descriptors that are sent, and that are received by [`receive`], at once: an egress worker's sockets.
pub const MOST: usize = 5;
/// Most that the kernel lets anybody send at once (`SCM_MAX_FD`).
const ANYBODYS_MOST: usize = 253;

/// Bytes of control data that hold so many.
const SPACE: usize = rustix::cmsg_space!(ScmRights(MOST));
const ROOM: usize = rustix::cmsg_space!(ScmRights(ANYBODYS_MOST));

/// What was received; how many bytes of it.
#[derive(Debug)]
pub struct Received {
    /// Bytes.
    pub bytes: usize,
    /// The descriptors beside them, close-on-exec.
    pub descriptors: Vec<OwnedFd>,
    /// What was cut off.
    pub flags: ReturnFlags,
}

/// Sends bytes, and descriptors beside the first of them. No SIGPIPE comes of it. How many bytes went.
///
/// # Errors
/// As sendmsg(2); `INVAL`: more than [`MOST`] descriptors, and nothing was sent.
pub fn send(
    socket: impl AsFd,
    bytes: &[IoSlice<'_>],
    descriptors: &[BorrowedFd<'_>],
    flags: SendFlags,
) -> io::Result<usize> {
    let mut space = [MaybeUninit::uninit(); SPACE];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() && !control.push(SendAncillaryMessage::ScmRights(descriptors)) {
        return Err(io::Errno::INVAL);
    }
    sendmsg(socket, bytes, &mut control, flags | SendFlags::NOSIGNAL)
}

/// Receives bytes, and up to [`MOST`] descriptors beside them, which linger no more. The kernel closes the others before this
/// returns, which for a TCP socket whose peer reads nothing takes as long as its sender said with `SO_LINGER`: for a thread that
/// nobody but the sender waits for.
///
/// # Errors
/// As recvmsg(2).
pub fn receive(socket: impl AsFd, into: &mut [u8], flags: RecvFlags) -> io::Result<Received> {
    receive_into(socket, into, flags, &mut [MaybeUninit::uninit(); SPACE])
}

/// The same, however many descriptors there are: for a thread that others wait for. Not for hundreds of threads, in which whatever
/// is slow to close would fill the process's table of descriptors.
///
/// # Errors
/// As recvmsg(2).
pub fn receive_all(socket: impl AsFd, into: &mut [u8], flags: RecvFlags) -> io::Result<Received> {
    receive_into(socket, into, flags, &mut [MaybeUninit::uninit(); ROOM])
}

fn receive_into(
    socket: impl AsFd,
    into: &mut [u8],
    flags: RecvFlags,
    space: &mut [MaybeUninit<u8>],
) -> io::Result<Received> {
    let mut control = RecvAncillaryBuffer::new(space);
    let mut into = [IoSliceMut::new(into)];
    let message = recvmsg(socket, &mut into, &mut control, flags | RecvFlags::CMSG_CLOEXEC)?;
    let rights = control.drain().filter_map(|part| match part {
        RecvAncillaryMessage::ScmRights(rights) => Some(rights),
        _ => None,
    });
    let descriptors: Vec<OwnedFd> = rights.flatten().collect();
    for descriptor in &descriptors {
        // Most are no sockets.
        let _ = set_socket_linger(descriptor, None);
    }
    Ok(Received { bytes: message.bytes, descriptors, flags: message.flags })
}
