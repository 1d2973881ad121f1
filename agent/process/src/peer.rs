//! Who is at the other end of a socket, and what a pidfd names: in the kernel's terms, not the peer's.
//!
//! A pid is a name that another process may bear later. Here each pid is held by a pidfd: what /proc says of a pid
//! counts only if the process behind the pidfd is found alive *afterwards*, for then the pid was its own all along.
//!
//! The peer's pidfd comes from `SO_PEERPIDFD` (6.5 and newer), which cannot be forged. Older kernels have only the
//! pid that connected (`SO_PEERCRED`): a process that connects, hands the socket on and dies can leave its pid to
//! another process of the same uid. It never gains another uid, which the kernel recorded at connect, and never leaves its
//! container: `Enforcer::belongs` in `ringfence-core` knows what the programs stored with the socket.

use crate::pidfd;
use nix::{
    errno::Errno,
    poll::{PollFd, PollFlags, PollTimeout, poll},
    sys::socket::{
        getsockopt,
        sockopt::{PeerCredentials, PeerPidfd},
    },
};
use std::{
    fs::File,
    io::{self, Read},
    os::{
        fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd},
        unix::net::UnixStream,
    },
};

/// Why a process could not be identified.
#[derive(Debug, thiserror::Error)]
pub enum PeerError {
    /// The socket has no credentials.
    #[error("cannot tell who is at the other end of the socket")]
    Credentials(#[source] io::Error),
    /// The process has ended.
    #[error("the process has ended")]
    Gone,
    /// Too many ancestors.
    #[error(
        "the process has more than {MOST_ANCESTORS} ancestors, and no more are looked at; start it from a shell of its own"
    )]
    Deep,
    /// The descriptor beside the message is no pidfd, or of a process that this pid namespace cannot see.
    #[error("the descriptor beside the message is not a pidfd of a process on this host")]
    NotPidfd,
    /// /proc does not answer.
    #[error("cannot read {path} (is /proc mounted, without hidepid for root?)")]
    Proc {
        /// The file.
        path: String,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// /proc answers something unknown.
    #[error("cannot understand {path}: no `{key}`")]
    Format {
        /// The file.
        path: String,
        /// The line that is missing or wrong.
        key: &'static str,
    },
}

/// The process at the other end of a unix stream socket.
#[derive(Debug)]
pub struct Peer {
    /// Process id.
    pub pid: u32,
    /// Effective user id when it connected.
    pub uid: u32,
    /// The process.
    pub pidfd: OwnedFd,
}

impl Peer {
    /// Asks the kernel who connected.
    ///
    /// # Errors
    /// [`PeerError::Gone`] if it has ended since.
    pub fn of(stream: &UnixStream) -> Result<Self, PeerError> {
        let credentials =
            getsockopt(stream, PeerCredentials).map_err(|error| PeerError::Credentials(error.into()))?;
        let pidfd = match getsockopt(stream, PeerPidfd) {
            Ok(pidfd) => pidfd,
            Err(Errno::ENOPROTOOPT) => open(credentials.pid())?,
            Err(Errno::ESRCH | Errno::EINVAL) => return Err(PeerError::Gone),
            Err(error) => return Err(PeerError::Credentials(error.into())),
        };
        let pid = pid_of(pidfd.as_fd())?;
        if i32::try_from(pid) != Ok(credentials.pid()) {
            return Err(PeerError::Gone);
        }
        Ok(Self { pid, uid: credentials.uid(), pidfd })
    }
}

pub(crate) fn open(pid: i32) -> Result<OwnedFd, PeerError> {
    pidfd::open(pid).map_err(|error| match error.raw_os_error() {
        Some(code) if code == Errno::ESRCH as i32 => PeerError::Gone,
        _ => PeerError::Credentials(error),
    })
}

/// What /proc has about a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Process {
    /// Process id.
    pub pid: u32,
    /// Process id of its parent.
    pub parent: u32,
    /// Real, effective, saved and filesystem user id.
    pub uids: [u32; 4],
    /// Threads.
    pub threads: u32,
    /// Process id of who traces it, or 0: nobody does.
    pub tracer: u32,
    /// It was forked and has not exec'd since (`PF_FORKNOEXEC`).
    pub is_fork: bool,
}

/// What a tag is decided by. A tool waits for it, so it is less than [`Process`] has: one file of /proc's, not two.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fork {
    /// Process id.
    pub pid: u32,
    /// Process id of its parent.
    pub parent: u32,
    /// Threads.
    pub threads: u32,
    /// As [`Process::is_fork`].
    pub is_fork: bool,
}

impl Fork {
    /// Reads what /proc has about the process behind a pidfd.
    ///
    /// # Errors
    /// As [`Process::of`].
    pub fn of(pidfd: BorrowedFd<'_>) -> Result<Self, PeerError> {
        let pid = pid_of(pidfd)?;
        let (path, text) = read(pid, "stat")?;
        let fork = parse_stat(pid, &text).ok_or(PeerError::Format { path, key: "flags" })?;
        if alive(pidfd) { Ok(fork) } else { Err(PeerError::Gone) }
    }
}

/// The kernel's own mark of a task that was forked and has not exec'd; part of the flags in /proc/PID/stat.
const PF_FORKNOEXEC: u64 = 0x40;

impl Process {
    /// Reads what /proc has about the process behind a pidfd.
    ///
    /// # Errors
    /// [`PeerError`]; `Gone` if it has ended, so that an answer is always about that very process.
    pub fn of(pidfd: BorrowedFd<'_>) -> Result<Self, PeerError> {
        let pid = pid_of(pidfd)?;
        let (path, text) = read(pid, "status")?;
        let (stat_path, stat) = read(pid, "stat")?;
        let fork = parse_stat(pid, &stat).ok_or(PeerError::Format { path: stat_path, key: "flags" })?;
        let process =
            parse_status(pid, fork.is_fork, &text).map_err(|key| PeerError::Format { path, key })?;
        if alive(pidfd) { Ok(process) } else { Err(PeerError::Gone) }
    }
}

/// Reads a file of /proc's: a tool waits for it, and none says its size, which the library would ask for.
fn whole(path: &str) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::with_capacity(4096);
    File::open(path)?.take(LONGEST).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// A file of a process's in /proc, and its path.
pub fn read(pid: u32, file: &str) -> Result<(String, String), PeerError> {
    // A name may be any bytes.
    read_bytes(pid, file).map(|(path, bytes)| (path, String::from_utf8_lossy(&bytes).into_owned()))
}

/// The same as it is.
pub(crate) fn read_bytes(pid: u32, file: &str) -> Result<(String, Vec<u8>), PeerError> {
    let path = format!("/proc/{pid}/{file}");
    match whole(&path) {
        Ok(bytes) => Ok((path, bytes)),
        Err(source) if source.kind() == io::ErrorKind::NotFound => Err(PeerError::Gone),
        Err(source) if source.raw_os_error() == Some(Errno::ESRCH as i32) => Err(PeerError::Gone),
        Err(source) => Err(PeerError::Proc { path, source }),
    }
}

/// Most bytes of a file of /proc's: `status` with 65536 groups has less.
const LONGEST: u64 = 1 << 20;

/// Longest line of ancestors that is followed. Whoever is further down than that is refused, rather than looked up at the
/// cost of all who ask next.
pub const MOST_ANCESTORS: usize = 64;

/// Most looks at /proc for one line, which may move while it is read.
const MOST_LOOKS: usize = 4 * MOST_ANCESTORS;

/// The process ids of a peer and of those it descends from, nearest first, up to the first process. A parent that ends
/// meanwhile leaves its children to another: the line is as it was found, each link checked with both alive.
///
/// # Errors
/// [`PeerError`]; `Gone` too where the line moved faster than it could be read, `Deep` where it is longer than
/// [`MOST_ANCESTORS`].
pub fn lineage(peer: &Peer) -> Result<Vec<u32>, PeerError> {
    let mut line = vec![peer.pid];
    let mut parent = parent_of(peer.pidfd.as_fd())?;
    let mut held = peer.pidfd.try_clone().map_err(PeerError::Credentials)?;
    for _ in 0..MOST_LOOKS {
        let Some(above) = i32::try_from(parent).ok().filter(|pid| *pid > 0) else {
            return Ok(line);
        };
        if line.len() == MOST_ANCESTORS {
            return Err(PeerError::Deep);
        }
        // Before the check that it is the parent: an answer is about whoever was alive then.
        let opened = open(above).and_then(|pidfd| Ok((parent_of(pidfd.as_fd())?, pidfd)));
        let (next, pidfd) = match opened {
            Err(PeerError::Gone) => {
                // Its child has another parent by now.
                parent = parent_of(held.as_fd())?;
                continue;
            }
            opened => opened?,
        };
        let still = parent_of(held.as_fd())?;
        if still != parent {
            parent = still;
            continue;
        }
        line.push(pid_of(pidfd.as_fd())?);
        (parent, held) = (next, pidfd);
    }
    Err(PeerError::Gone)
}

/// The process id of the parent of the process behind a pidfd; 0: it has none.
fn parent_of(pidfd: BorrowedFd<'_>) -> Result<u32, PeerError> {
    Fork::of(pidfd).map(|fork| fork.parent)
}

/// Whether the process behind a pidfd has not ended yet. A zombie has ended.
pub fn alive(pidfd: BorrowedFd<'_>) -> bool {
    poll(&mut [PollFd::new(pidfd, PollFlags::POLLIN)], PollTimeout::ZERO) == Ok(0)
}

/// The pid behind a pidfd, as this process's pid namespace knows it.
pub fn pid_of(pidfd: BorrowedFd<'_>) -> Result<u32, PeerError> {
    let path = format!("/proc/self/fdinfo/{}", pidfd.as_raw_fd());
    let bytes = whole(&path).map_err(|source| PeerError::Proc { path, source })?;
    match String::from_utf8_lossy(&bytes).lines().find_map(|line| line.strip_prefix("Pid:")).map(str::trim) {
        None | Some("0") => Err(PeerError::NotPidfd),
        Some("-1") => Err(PeerError::Gone),
        Some(pid) => pid.parse().map_err(|_| PeerError::NotPidfd),
    }
}

/// The fields of /proc/PID/status. The kernel escapes newlines in the name, so a line is a line.
fn parse_status(pid: u32, is_fork: bool, text: &str) -> Result<Process, &'static str> {
    let field = |key: &'static str| {
        text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':')).map(str::trim).ok_or(key)
    };
    let number = |key: &'static str| field(key)?.parse::<u32>().map_err(|_| key);
    let uids: Vec<u32> = field("Uid")?.split_whitespace().filter_map(|uid| uid.parse().ok()).collect();
    Ok(Process {
        pid,
        parent: number("PPid")?,
        uids: uids.try_into().map_err(|_| "Uid")?,
        threads: number("Threads")?,
        tracer: number("TracerPid")?,
        is_fork,
    })
}

/// The fields of /proc/PID/stat. The name before them is the process's own choice, parentheses included; nothing behind
/// the last of those is.
fn parse_stat(pid: u32, text: &str) -> Option<Fork> {
    let fields: Vec<&str> = text.rsplit_once(')')?.1.split_ascii_whitespace().collect();
    let flags: u64 = fields.get(6)?.parse().ok()?;
    Some(Fork {
        pid,
        parent: fields.get(1)?.parse().ok()?,
        threads: fields.get(17)?.parse().ok()?,
        is_fork: flags & PF_FORKNOEXEC != 0,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{
        fs::File,
        process::{Command, Stdio},
    };

    fn pidfd(pid: u32) -> OwnedFd {
        open(pid.try_into().unwrap()).unwrap()
    }

    #[test]
    fn the_other_end_of_a_pair_is_this_process() {
        let (a, _b) = UnixStream::pair().unwrap();
        let peer = Peer::of(&a).unwrap();
        assert_eq!(peer.pid, std::process::id());
        assert_eq!(peer.uid, nix::unistd::geteuid().as_raw());
        assert!(alive(peer.pidfd.as_fd()));
    }

    #[test]
    fn a_line_of_ancestors_leads_from_the_peer_to_the_first_process() {
        let (a, _b) = UnixStream::pair().unwrap();
        let line = lineage(&Peer::of(&a).unwrap()).unwrap();
        assert_eq!(line[..2], [std::process::id(), std::os::unix::process::parent_id()]);
        assert!(line.len() <= MOST_ANCESTORS);
    }

    /// A shell that is so many processes below this one, its standard input, and its process id.
    fn descendant(depth: usize) -> (std::process::Child, u32) {
        let script = format!(
            "n={depth}; d() {{ n=$((n - 1)); if [ $n -gt 0 ]; then (d); else exec sh -c 'echo $$; read x'; fi; }}; d"
        );
        let mut shell = Command::new("sh")
            .args(["-c", &script])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut said = String::new();
        io::BufRead::read_line(&mut io::BufReader::new(shell.stdout.take().unwrap()), &mut said).unwrap();
        (shell, said.trim().parse().unwrap())
    }

    #[test]
    fn a_line_is_followed_so_far_and_whoever_is_below_is_refused() {
        let (own, _b) = UnixStream::pair().unwrap();
        let above = lineage(&Peer::of(&own).unwrap()).unwrap().len();
        for (depth, fits) in
            [(MOST_ANCESTORS - above, true), (MOST_ANCESTORS - above + 1, false), (300, false)]
        {
            let (mut shell, pid) = descendant(depth);
            let peer = Peer { pid, uid: 0, pidfd: pidfd(pid) };
            let found = lineage(&peer);
            assert_eq!(found.is_ok(), fits, "{depth}: {found:?}");
            match found {
                Ok(line) => assert_eq!((line.len(), line[depth]), (depth + above, std::process::id())),
                Err(error) => assert!(matches!(error, PeerError::Deep), "{error}"),
            }
            drop(shell.stdin.take());
            shell.wait().unwrap();
        }
    }

    #[test]
    fn a_child_is_described_and_its_end_is_noticed() {
        let mut child = Command::new("sleep").arg("60").stdin(Stdio::null()).spawn().unwrap();
        let fd = pidfd(child.id());
        let process = Process::of(fd.as_fd()).unwrap();
        let Fork { pid, parent, threads, is_fork } = Fork::of(fd.as_fd()).unwrap();
        assert_eq!(
            (pid, parent, threads, is_fork),
            (process.pid, process.parent, process.threads, process.is_fork)
        );
        assert_eq!(
            (process.pid, process.parent, process.threads, process.is_fork),
            (child.id(), std::process::id(), 1, false)
        );
        child.kill().unwrap();
        // Dead, then reaped: gone both times.
        poll(&mut [PollFd::new(fd.as_fd(), PollFlags::POLLIN)], PollTimeout::NONE).unwrap();
        assert!(matches!(Process::of(fd.as_fd()), Err(PeerError::Gone)));
        child.wait().unwrap();
        assert!(matches!(Process::of(fd.as_fd()), Err(PeerError::Gone)));
    }

    #[test]
    fn another_descriptor_is_not_taken_for_a_pidfd() {
        let file = File::open("/dev/null").unwrap();
        assert!(matches!(Process::of(file.as_fd()), Err(PeerError::NotPidfd)));
    }

    #[test]
    fn a_hostile_name_does_not_fake_a_field() {
        let text = "Name:\tx\\nPPid:\t1\nPPid:\t77\nTracerPid:\t9\nUid:\t1\t2\t3\t4\nThreads:\t2\n";
        let expected =
            Process { pid: 5, parent: 77, uids: [1, 2, 3, 4], threads: 2, tracer: 9, is_fork: true };
        assert_eq!(parse_status(5, true, text), Ok(expected));
        let text = "5 (a) R 9 9 9 9 9 0 (b) S 1 2 3 4 5 4194624 7 8 9 10 11 12 13 14 20 0 3 0 100";
        let fork = Fork { pid: 5, parent: 1, threads: 3, is_fork: true };
        assert_eq!(parse_stat(5, text), Some(fork));
        assert_eq!(parse_stat(5, &text.replace("4194624", "4194560")), Some(Fork { is_fork: false, ..fork }));
        assert_eq!(parse_stat(5, "5 (a) S 1 2"), None);
        assert_eq!(parse_status(5, true, "Uid:\t1\t2\t3\nPPid:\t1\n"), Err("Uid"));
    }
}
