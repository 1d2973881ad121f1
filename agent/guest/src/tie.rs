//! `tie`: the first command of a tool's own shell. It says which tool call the shell is about to run, and waits until the host has
//! tied the shell to it.
//!
//! Whatever goes wrong the call goes on, without the tie: nothing is printed, the status is 0, and it takes no longer than [`PATIENCE`].

use ringfence_wire::tie::{Said, VARIABLE};
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, SocketType, connect, recv, send,
    socket_with,
    sockopt::{Timeout, set_socket_timeout},
};
use std::{
    env,
    ffi::OsString,
    io,
    os::fd::OwnedFd,
    time::{Duration, Instant},
};

/// How long the host may take.
const PATIENCE: Duration = Duration::from_secs(3);
/// Most bytes of an answer.
const MAX_ANSWER: usize = 4096;

/// Says which tool call this program's parent is about to run; the first command of a tool's own shell
///
/// It prints nothing and always succeeds. Where nothing listens, or the host refuses, the call is tied to its processes less surely.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  ringfence-runtime tie toolu_01A\n  ringfence-runtime tie")]
pub struct Args {
    /// What the agent calls it; without, the only call that says what the shell runs is meant
    #[arg(value_name = "CALL_ID")]
    call: Option<String>,
}

/// Ties this process's parent, as far as that can be done. `arguments`: those behind `tie`.
pub fn run(arguments: impl Iterator<Item = OsString>) {
    // Nobody hears why.
    let _ = tie(arguments);
}

fn tie(mut arguments: impl Iterator<Item = OsString>) -> io::Result<()> {
    let call = arguments.next().map(|call| call.into_string().map_err(|_| nothing())).transpose()?;
    let until = Instant::now() + PATIENCE;
    let socket = said(&Said::Tie { call }, until)?;
    let (mut answer, mut buffer) = (0, [0; 512]);
    // What is answered makes no difference here.
    while answer < MAX_ANSWER {
        arm(&socket, Timeout::Recv, until)?;
        let (read, _) = recv(&socket, &mut buffer, RecvFlags::empty())?;
        if read == 0 || buffer.get(..read).is_some_and(|read| read.contains(&b'\n')) {
            break;
        }
        answer += read;
    }
    Ok(())
}

fn nothing() -> io::Error {
    io::ErrorKind::InvalidInput.into()
}

/// Says something on the run's socket, for so long at most, and waits for no answer.
///
/// # Errors
/// This run has no such socket, nobody listens there, or it takes too long.
pub(crate) fn say(what: &Said, patience: Duration) -> io::Result<()> {
    said(what, Instant::now() + patience).map(drop)
}

/// The run's socket, once something was said there.
fn said(what: &Said, until: Instant) -> io::Result<OwnedFd> {
    let name = env::var(VARIABLE).map_err(|_| nothing())?;
    let socket = connected(name.strip_prefix('@').ok_or_else(nothing)?, until)?;
    let mut line = serde_json::to_vec(what)?;
    line.push(b'\n');
    let mut rest = line.as_slice();
    while !rest.is_empty() {
        arm(&socket, Timeout::Send, until)?;
        let sent = send(&socket, rest, SendFlags::NOSIGNAL)?;
        rest = rest.get(sent..).unwrap_or_default();
    }
    Ok(socket)
}

fn connected(name: &str, until: Instant) -> io::Result<OwnedFd> {
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    // Where too many wait to be accepted, connect(2) waits, too.
    arm(&socket, Timeout::Send, until)?;
    connect(&socket, &SocketAddrUnix::new_abstract_name(name.as_bytes())?)?;
    Ok(socket)
}

/// Sets what is left as the socket's own timeout.
fn arm(socket: &OwnedFd, which: Timeout, until: Instant) -> io::Result<()> {
    let left = until.saturating_duration_since(Instant::now());
    if left.is_zero() {
        return Err(io::ErrorKind::TimedOut.into());
    }
    Ok(set_socket_timeout(socket, which, Some(left.max(Duration::from_millis(1))))?)
}
