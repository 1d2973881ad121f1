//! What ties a run's tool calls to their processes: a socket of the run's own, the program that a tool's shell starts first, and what
//! that shell runs. The worker serves the socket and asks here, since it is confined and this is not.

use nix::unistd::{Uid, User};
use ringfence_base::{client, error::chain};
use ringfence_files::{Others, is_roots};
use ringfence_process::{parent::Parent, peer::Peer};
use ringfence_wire::{
    agent::Answer,
    tie::{DIGITS, NAME, PROGRAM},
};
use std::{
    env, fs, io,
    os::{
        fd::{AsFd, OwnedFd},
        linux::net::SocketAddrExt as _,
        unix::net::{SocketAddr, UnixListener, UnixStream},
    },
    path::{Path, PathBuf},
    sync::Arc,
};

/// Most bytes of a process's arguments that the worker is told.
const MAX_ARGUMENTS: usize = 512 << 10;

/// Why a run's calls are not tied. The agent runs all the same.
#[derive(Debug, thiserror::Error)]
pub enum NoTie {
    /// Nothing could tag a process.
    #[error("the daemon does not run here")]
    NoDaemon,
    /// The program is missing.
    #[error("{PROGRAM} is neither beside ringfence nor in PATH")]
    NoProgram,
    /// Whoever can change it, or put another in its place, could say anything in a call's name.
    #[error("{} is not root's alone: it and its directories have to be (install it as root)", .0.display())]
    NotRoots(PathBuf),
    /// The socket.
    #[error("no socket can be made for it")]
    Socket(#[source] io::Error),
}

/// What ties a run's calls.
#[derive(Debug, Clone)]
pub struct Tie {
    /// The socket's name, without the `@`.
    pub name: String,
    /// It listens from the beginning; the worker serves it once the core holds the container.
    pub listener: Arc<OwnedFd>,
    /// The program that speaks there.
    pub program: PathBuf,
    /// The user whose processes are heard.
    uid: u32,
}

impl Tie {
    /// Makes the socket, where a daemon listens for enrolments and the program is there. `user`: who runs the agent.
    ///
    /// # Errors
    /// [`NoTie`].
    pub fn open(enroll_socket: &Path, user: &User) -> Result<Self, NoTie> {
        client::probe(enroll_socket).map_err(|_| NoTie::NoDaemon)?;
        let program = program().ok_or(NoTie::NoProgram).and_then(trusted)?;
        let (name, listener) = listen().map_err(NoTie::Socket)?;
        Ok(Self { name, listener: Arc::new(listener.into()), program, uid: Uid::as_raw(user.uid) })
    }

    /// The user whose processes are heard.
    pub(crate) fn uid(&self) -> u32 {
        self.uid
    }
}

/// A socket of a name that nobody can foretell.
fn listen() -> io::Result<(String, UnixListener)> {
    let mut random = [0; DIGITS / 2];
    io::Read::read_exact(&mut fs::File::open("/dev/urandom")?, &mut random)?;
    let digits: String = random.iter().map(|byte| format!("{byte:02x}")).collect();
    let name = format!("{NAME}{digits}");
    let listener = UnixListener::bind_addr(&SocketAddr::from_abstract_name(&name)?)?;
    Ok((name, listener))
}

/// The program beside this one, or else in PATH; by the path that it has of its own.
fn program() -> Option<PathBuf> {
    let beside = env::current_exe().ok().and_then(|own| Some(own.parent()?.join(PROGRAM)));
    let in_path = env::var_os("PATH");
    let in_path = in_path.iter().flat_map(env::split_paths).map(|dir| dir.join(PROGRAM));
    beside.into_iter().chain(in_path).filter(|file| file.is_file()).find_map(|file| file.canonicalize().ok())
}

/// A program that nobody but root can change, or put another in its place.
fn trusted(program: PathBuf) -> Result<PathBuf, NoTie> {
    if is_roots(&program, Others::AddNames).unwrap_or(false) {
        Ok(program)
    } else {
        Err(NoTie::NotRoots(program))
    }
}

/// What the parent of the process at the other end of a connection runs, for a worker that asks.
pub(crate) fn command_line(beside: Vec<OwnedFd>) -> Answer {
    read(beside).unwrap_or_else(Answer::Refused)
}

fn read(beside: Vec<OwnedFd>) -> Result<Answer, String> {
    let [connection] = <[OwnedFd; 1]>::try_from(beside)
        .map_err(|all| format!("one connection comes beside a question, and {} came", all.len()))?;
    let failed = |error| chain(&error);
    let peer = Peer::of(&UnixStream::from(connection)).map_err(failed)?;
    let parent = Parent::of(peer.pidfd.as_fd()).map_err(failed)?;
    let arguments = parent.arguments().map_err(failed)?;
    // It was the parent before and is so now: what was read is its.
    if !parent.is_still(peer.pidfd.as_fd()).map_err(failed)? {
        return Err("the process has another parent by now".to_owned());
    }
    if arguments.iter().map(Vec::len).sum::<usize>() > MAX_ARGUMENTS {
        return Err("the shell has too long a command line".to_owned());
    }
    // What is no text is no call's command.
    let text = |argument| String::from_utf8(argument).unwrap_or_default();
    Ok(Answer::CommandLine { pid: parent.pid, arguments: arguments.into_iter().map(text).collect() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Command, Stdio};

    #[test]
    fn a_socket_listens_by_its_name_and_each_has_another() {
        let [(one, listener), (two, _)] = [(); 2].map(|()| listen().unwrap());
        assert!(ringfence_wire::tie::is_name(&one) && one != two);
        let address = SocketAddr::from_abstract_name(&one).unwrap();
        let _client = UnixStream::connect_addr(&address).unwrap();
        listener.accept().unwrap();
        assert!(UnixListener::bind_addr(&address).is_err());
    }

    #[test]
    fn a_program_that_others_can_change_is_not_taken() {
        use std::os::unix::fs::PermissionsExt as _;
        assert!(trusted("/usr/bin/env".into()).is_ok(), "the control");
        let dir = tempfile::tempdir().unwrap();
        let program = dir.path().join(PROGRAM);
        fs::write(&program, "").unwrap();
        fs::set_permissions(&program, fs::Permissions::from_mode(0o777)).unwrap();
        for others in [program, dir.path().join("none")] {
            assert!(matches!(trusted(others.clone()), Err(NoTie::NotRoots(path)) if path == others));
        }
    }

    #[test]
    fn the_worker_is_told_what_the_parent_of_who_connected_runs() {
        let (name, listener) = listen().unwrap();
        let script = "import socket,sys,time\ns=socket.socket(socket.AF_UNIX)\ns.connect('\\0'+sys.argv[1])\ns.recv(1)";
        let shell = "python3 -c \"$1\" \"$2\"; exit 0";
        let mut shell = Command::new("sh")
            .args(["-c", shell, "\u{fc}", script, &name])
            .stdin(Stdio::null())
            .spawn()
            .unwrap();
        let (stream, _) = listener.accept().unwrap();
        let beside = || vec![OwnedFd::from(stream.try_clone().unwrap())];
        let Answer::CommandLine { pid, arguments } = command_line(beside()) else { panic!("refused") };
        assert_eq!((pid, arguments.len()), (shell.id(), 6));
        assert_eq!((arguments[3].as_str(), arguments[5].as_str()), ("\u{fc}", name.as_str()));
        let two = beside().into_iter().chain(beside()).collect();
        assert!(matches!(command_line(two), Answer::Refused(_)));
        assert!(matches!(command_line(Vec::new()), Answer::Refused(_)));
        drop(stream.shutdown(std::net::Shutdown::Both));
        shell.wait().unwrap();
        assert!(matches!(command_line(beside()), Answer::Refused(_)), "it has ended");
    }
}
