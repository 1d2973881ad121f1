//! The other end of the core's sockets: what the launcher and the command line call.

use ringfence_wire::{
    conn::Conn,
    credentials::SecretFor,
    frame::FrameError,
    message::{AdminRequest, ENDPOINT, EnrollRequest, Enrolled, Reply, Reporting},
};
use rustix::{
    event::{PollFd, PollFlags, poll},
    time::Timespec,
};
use serde::de::DeserializeOwned;
use std::{
    io,
    net::SocketAddr,
    os::{
        fd::{AsFd, BorrowedFd, OwnedFd},
        unix::net::UnixStream,
    },
    path::{Path, PathBuf},
    time::Duration,
};

/// How long one request or answer may take. The core compiles a profile meanwhile, on a machine that may be busy.
const LIMIT: Duration = Duration::from_secs(30);

/// How long a person who asks how things are waits without a word, and then for the answer.
const WORDLESS: Duration = Duration::from_secs(2);
const ASKED: Duration = Duration::from_secs(10);

/// Who may connect to the enrolment socket.
const ENROLLING: &str = "it is for root and members of the group `ringfence`";

/// Why a request to the core failed.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// Nobody listens: the daemon does not run.
    #[error("the daemon does not run (nobody listens on {}); start it with `systemctl start ringfence` or `ringfence daemon`", .path.display())]
    NoDaemon {
        /// The socket.
        path: PathBuf,
    },
    /// The socket is there, but not for us.
    #[error("may not connect to {}: {hint}", .path.display())]
    NotPermitted {
        /// The socket.
        path: PathBuf,
        /// Who may.
        hint: &'static str,
    },
    /// connect(2) failed in another way.
    #[error("connecting to {} failed", .path.display())]
    Connect {
        /// The socket.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// Somebody listens and gives no answer.
    #[error(
        "the daemon does not answer (it is stopped, or hangs; nobody answered on {}); what is in force stays enforced by the \
         kernel; `systemctl status ringfence` and its log may tell why", .path.display()
    )]
    Silent {
        /// The socket.
        path: PathBuf,
    },
    /// The conversation failed.
    #[error("talking to the daemon failed")]
    Talk(#[source] FrameError),
    /// The daemon said no; its reason is complete.
    #[error("{0}")]
    Refused(String),
}

impl ClientError {
    /// Whether there is no daemon at all, so that a launcher may look for other enforcers.
    pub fn is_no_daemon(&self) -> bool {
        matches!(self, Self::NoDaemon { .. })
    }
}

/// Asks whether the core listens for enrolments, and to us.
///
/// # Errors
/// As [`enroll`].
pub fn probe(socket: &Path) -> Result<(), ClientError> {
    connect(socket, ENROLLING).map(drop)
}

/// Listening sockets that a profile with a kit grants besides, to whoever has them.
#[derive(Debug, Clone, Copy)]
pub struct EndpointSockets<'a> {
    /// The first's address, of loopback.
    pub address: SocketAddr,
    /// Where its model is served.
    pub listener: BorrowedFd<'a>,
    /// The abstract unix socket of its ties: its name, without the `@`, and itself.
    pub tie: Option<(&'a str, BorrowedFd<'a>)>,
}

/// A credential that the core hands on unread, to what puts it into requests to a host.
#[derive(Debug)]
pub struct SealedCredential {
    /// Which one.
    pub of: SecretFor,
    /// A memfd that has it, sealed against every change.
    pub memory: OwnedFd,
}

/// What is handed to the core beside the child.
#[derive(Debug, Clone, Copy, Default)]
pub struct Beside<'a> {
    /// Listening sockets of the caller's, which the profile then grants.
    pub endpoint: Option<EndpointSockets<'a>>,
    /// The credentials of the profile's `[net.credentials]`: all of them, and no others.
    pub credentials: &'a [SealedCredential],
    /// Where there are any: the certificates that the command's programs trust, PEM in a sealed memfd.
    pub trusted: Option<BorrowedFd<'a>>,
}

/// Asks the core to govern a child of the caller from its next exec on.
///
/// `child` is a pidfd of a direct child with one thread that has not exec'd its command yet. `workdir` is what
/// `${WORKDIR}` in the profile stands for; `audit` asks for a container that denies nothing (root only, unless the
/// profile says so itself).
///
/// # Errors
/// `NoDaemon` where nobody listens on `socket`; `Refused` with the daemon's reason. After any error the child is not
/// governed: kill it, do not let it exec.
pub fn enroll(
    socket: &Path,
    child: BorrowedFd<'_>,
    profile: &str,
    workdir: Option<&Path>,
    audit: bool,
    beside: Beside<'_>,
) -> Result<Enrolled, ClientError> {
    enroll_on(socket, child, profile, (workdir, audit), beside).map(|(enrolled, _)| enrolled)
}

/// A line for reports about a container, and what the daemon takes there.
pub type Line = (UnixStream, Reporting);

/// As [`enroll`], and asks for the line on which reports about the very container are taken. No line: this daemon takes none, or
/// none more; the container is as good without. Beside it, what the daemon takes there.
///
/// # Errors
/// As [`enroll`].
pub fn enroll_reporting(
    socket: &Path,
    child: BorrowedFd<'_>,
    profile: &str,
    workdir: Option<&Path>,
    audit: bool,
    beside: Beside<'_>,
) -> Result<(Enrolled, Result<Line, ClientError>), ClientError> {
    let (enrolled, mut conn) = enroll_on(socket, child, profile, (workdir, audit), beside)?;
    let asked = conn.send(&EnrollRequest::Report).map_err(ClientError::Talk);
    let line = asked.and_then(|()| answer::<Reporting>(&mut conn)).map(|takes| (conn.into_stream(), takes));
    Ok((enrolled, line))
}

/// Enrols, and gives the connection that it was done on.
fn enroll_on(
    socket: &Path,
    child: BorrowedFd<'_>,
    profile: &str,
    (workdir, audit): (Option<&Path>, bool),
    Beside { endpoint, credentials, trusted }: Beside<'_>,
) -> Result<(Enrolled, Conn), ClientError> {
    let workdir = match workdir.map(|dir| dir.to_str().ok_or(dir)) {
        None => None,
        Some(Ok(dir)) => Some(dir.to_owned()),
        Some(Err(dir)) => {
            return Err(ClientError::Refused(format!(
                "the working directory {} is not valid UTF-8: a profile cannot name it",
                dir.display()
            )));
        }
    };
    let profile = match endpoint {
        Some(EndpointSockets { address, tie: Some((name, _)), .. }) => {
            format!("{ENDPOINT}{address}:@{name}:{profile}")
        }
        Some(EndpointSockets { address, tie: None, .. }) => format!("{ENDPOINT}{address}:{profile}"),
        None => profile.to_owned(),
    };
    let request = EnrollRequest::Enroll { profile, workdir, audit };
    let mut conn = connect(socket, ENROLLING)?;
    let sent = hand_over(&mut conn, credentials, trusted);
    // Who is refused at once has an answer, and does not hear what is said.
    if let Err(error) = sent {
        return Err(match answer::<Enrolled>(&mut conn) {
            Err(refused @ ClientError::Refused(_)) => refused,
            Ok(_) | Err(_) => ClientError::Talk(error),
        });
    }
    let mut descriptors = vec![child];
    if let Some(EndpointSockets { listener, tie, .. }) = endpoint {
        descriptors.push(listener);
        descriptors.extend(tie.map(|(_, socket)| socket));
    }
    conn.send_with_descriptors(&request, &descriptors).map_err(ClientError::Talk)?;
    let enrolled = answer(&mut conn)?;
    Ok((enrolled, conn))
}

fn hand_over(
    conn: &mut Conn,
    credentials: &[SealedCredential],
    trusted: Option<BorrowedFd<'_>>,
) -> Result<(), FrameError> {
    for SealedCredential { of, memory } in credentials {
        let of = EnrollRequest::Credential { of: of.clone() };
        conn.send_with_descriptors(&of, &[memory.as_fd()])?;
    }
    match trusted {
        Some(trusted) => conn.send_with_descriptors(&EnrollRequest::Trusted, &[trusted]),
        None => Ok(()),
    }
}

/// Sends one request to the admin socket, with the descriptors it needs, and waits for the answer.
///
/// # Errors
/// As [`enroll`].
pub fn admin<T: DeserializeOwned>(
    socket: &Path,
    request: &AdminRequest,
    descriptors: &[BorrowedFd<'_>],
) -> Result<T, ClientError> {
    let mut conn = connect(socket, "it is root's")?;
    conn.send_with_descriptors(request, descriptors).map_err(ClientError::Talk)?;
    answer(&mut conn)
}

/// As [`admin`], for a person who wants to know how things are: calls `say` when there is no answer for a while, and does
/// not wait long for a daemon that is stopped.
///
/// # Errors
/// As [`enroll`], and `Silent`.
pub fn admin_or_say<T: DeserializeOwned>(
    socket: &Path,
    request: &AdminRequest,
    say: impl FnOnce(),
) -> Result<T, ClientError> {
    or_say(socket, "it is root's", say, |conn| {
        conn.send(request).map_err(ClientError::Talk)?;
        Ok(())
    })
    .and_then(|mut conn| answer(&mut conn).map_err(|error| silent(error, socket)))
}

/// Connects and asks; calls `say` when no answer begins for a while.
///
/// # Errors
/// As [`connect`], those of `ask`, and `Silent` where nobody takes the connection.
pub fn or_say(
    socket: &Path,
    hint: &'static str,
    say: impl FnOnce(),
    ask: impl FnOnce(&mut Conn) -> Result<(), ClientError>,
) -> Result<Conn, ClientError> {
    let mut conn = connect_within(socket, hint, WORDLESS).map_err(|error| match error {
        // The queue is full of others who wait.
        ClientError::Connect { path, source } if source.kind() == io::ErrorKind::WouldBlock => {
            ClientError::Silent { path }
        }
        error => error,
    })?;
    ask(&mut conn)?;
    let mut polled = [PollFd::new(conn.stream(), PollFlags::IN)];
    let wait = Timespec { tv_sec: WORDLESS.as_secs() as i64, tv_nsec: 0 };
    if matches!(poll(&mut polled, Some(&wait)), Ok(0)) {
        say();
    }
    Ok(conn.within(ASKED))
}

/// An answer that did not come in time, by what it means.
pub fn silent(error: ClientError, socket: &Path) -> ClientError {
    match error {
        ClientError::Talk(FrameError::TimedOut) => ClientError::Silent { path: socket.to_owned() },
        error => error,
    }
}

/// Connects to one of the daemon's sockets; `hint` says who may.
///
/// # Errors
/// `NoDaemon`, `NotPermitted` and `Connect`.
pub fn connect(socket: &Path, hint: &'static str) -> Result<Conn, ClientError> {
    connect_within(socket, hint, LIMIT)
}

fn connect_within(socket: &Path, hint: &'static str, limit: Duration) -> Result<Conn, ClientError> {
    let path = socket.to_owned();
    Conn::connect(socket, limit).map_err(|source| match source.kind() {
        io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => ClientError::NoDaemon { path },
        io::ErrorKind::PermissionDenied => ClientError::NotPermitted { path, hint },
        _ => ClientError::Connect { path, source },
    })
}

fn answer<T: DeserializeOwned>(conn: &mut Conn) -> Result<T, ClientError> {
    let reply: Reply<T> = conn.receive().map_err(ClientError::Talk)?;
    reply.into_result().map_err(|failure| ClientError::Refused(failure.error))
}

#[cfg(test)]
mod tests {
    use super::*;
    use ringfence_wire::{
        message::{Failure, MAX_REQUEST},
        status::Mode,
    };
    use std::{fs::File, os::unix::net::UnixListener, thread};

    /// Answers one request on a socket of its own; gives back what was asked.
    fn serve(
        reply: Reply<Enrolled>,
        ask: impl FnOnce(&Path) -> Result<Enrolled, ClientError>,
    ) -> (EnrollRequest, usize, Result<Enrolled, ClientError>) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("enroll.sock");
        let listener = UnixListener::bind(&path).unwrap();
        let server = thread::spawn(move || {
            let (stream, _) = listener.accept().unwrap();
            let mut conn = Conn::new(stream, LIMIT, MAX_REQUEST);
            let (request, descriptors) = conn.receive_with_descriptors().unwrap();
            conn.send(&reply).unwrap();
            (request, descriptors.len())
        });
        let result = ask(&path);
        let (request, descriptors) = server.join().unwrap();
        (request, descriptors, result)
    }

    #[test]
    fn the_request_carries_the_descriptor_and_the_answer_comes_back() {
        let enrolled = Enrolled {
            container: "0123456789ab".into(),
            profile: "coder".into(),
            mode: Mode::Enforce,
            bundle: None,
        };
        let file = File::open("/dev/null").unwrap();
        let (request, descriptors, result) = serve(Reply::Ok(enrolled.clone()), |path| {
            enroll(path, file.as_fd(), "coder", Some(Path::new("/srv/app")), false, Beside::default())
        });
        let EnrollRequest::Enroll { profile, workdir, audit } = request else { panic!("{request:?}") };
        assert_eq!((profile.as_str(), workdir.as_deref(), audit), ("coder", Some("/srv/app"), false));
        assert_eq!(descriptors, 1);
        assert_eq!(result.unwrap(), enrolled);
    }

    #[test]
    fn a_daemon_that_takes_no_reports_leaves_the_container_as_it_is() {
        let enrolled = Enrolled {
            container: "0123456789ab".into(),
            profile: "coder".into(),
            mode: Mode::Enforce,
            bundle: None,
        };
        let file = File::open("/dev/null").unwrap();
        // It answers one request and hangs up, as those of before did.
        let (_, _, result) = serve(Reply::Ok(enrolled.clone()), |path| {
            let (enrolled, line) =
                enroll_reporting(path, file.as_fd(), "coder", None, false, Beside::default())?;
            assert!(line.is_err());
            Ok(enrolled)
        });
        assert_eq!(result.unwrap(), enrolled);
    }

    #[test]
    fn a_refusal_is_told_in_the_daemon_s_words() {
        let file = File::open("/dev/null").unwrap();
        let (_, _, result) = serve(Reply::Failed(Failure::new("no profile `x`")), |path| {
            enroll(path, file.as_fd(), "x", None, true, Beside::default())
        });
        assert_eq!(result.unwrap_err().to_string(), "no profile `x`");
    }

    #[test]
    fn no_daemon_is_told_apart() {
        let dir = tempfile::tempdir().unwrap();
        let file = File::open("/dev/null").unwrap();
        let path = dir.path().join("enroll.sock");
        assert!(enroll(&path, file.as_fd(), "x", None, false, Beside::default()).unwrap_err().is_no_daemon());
        drop(UnixListener::bind(&path).unwrap());
        assert!(enroll(&path, file.as_fd(), "x", None, false, Beside::default()).unwrap_err().is_no_daemon());
    }
}
