//! The processes around a tool server: nothing that a tool started outlives it, whichever of them is killed.
//!
//! | process | does | if it is killed |
//! |---|---|---|
//! | first: the client's child | waits, passes signals on | the guard has the server end all below |
//! | guard: the first's child | waits, in a process group and under a name of its own: who kills the first's group, or by the program's name, does not kill it | the server ends all below |
//! | server: the guard's child | reads and answers; tools are its children | the guard ends all below |
//!
//! Beside the server, where it fetches pages, a reader of HTML (`reader`) is the guard's child, and ends with the server.
//!
//! All three are subreapers: what flees from its call and its group, and loses its parent, becomes a child of the nearest of
//! them that lives. So whichever of them is left ends everything, if two are killed. Who ends it asks the next below to do
//! so first, and waits: a process that is killed before its children would leave all to the one that killed it, and that one
//! may be killed, too. All are forked from one process and never exec.

use super::{confine, reader};
use nix::{
    sys::{
        prctl,
        signal::{Signal, kill},
    },
    unistd::{Pid, setpgid},
};
use ringfence_process::{
    spawn::{self, Child, FAILED},
    tree,
    wait::{self, Signals},
};
use ringfence_sandbox::caps;
use std::{
    cell::Cell,
    ffi::CStr,
    io::{self, BufRead, BufReader, Read, Write},
    net::Shutdown,
    os::{
        fd::{AsFd, BorrowedFd},
        unix::net::UnixStream,
    },
    process, thread,
    time::Duration,
};

/// Why there is no server.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A fork.
    #[error(transparent)]
    Spawn(#[from] spawn::Error),
    /// Signals.
    #[error(transparent)]
    Signals(#[from] wait::Error),
    /// `no_new_privs`.
    #[error(transparent)]
    Privileges(#[from] caps::Error),
    /// The sockets between them.
    #[error("cannot make a socket to the tool server's process")]
    Socket(#[source] io::Error),
}

/// What the guard sends to the server before it may begin.
const BEGIN: &str = "begin ";

/// The guard's name as `ps` and `killall` have it.
const NAME: &CStr = c"tools-guard";

/// How long the next below may take to end what it started, and then itself, before all of them are killed.
const GRACE: Duration = Duration::from_secs(2);

/// The exit status of what was killed.
const KILLED: u8 = 128 + Signal::SIGKILL as u8;

/// Runs `server` in a process of its own, under a guard, and returns its exit status as a shell has it. The guard calls
/// `admit` before with a pidfd of the server, which has one thread then; `server` gets what it returns. An error of its
/// own it reports itself, and returns the exit status. With `reads`, the server also gets a socket to a reader of HTML. To be
/// called while this process has one thread.
///
/// # Errors
/// [`Error`]; nothing was served.
pub fn serve(
    reads: bool,
    admit: impl FnOnce(BorrowedFd<'_>) -> Result<String, u8>,
    server: impl FnOnce(&str, Option<UnixStream>) -> u8,
) -> Result<u8, Error> {
    let (life, watched) = UnixStream::pair().map_err(Error::Socket)?;
    let (life, watched) = (Cell::new(Some(life)), Cell::new(Some(watched)));
    wait::reset_sigchld()?;
    // Failing to get it is not a reason not to run; it needs no privilege.
    let _ = prctl::set_child_subreaper(true);
    let signals = Signals::block()?;
    let guard = spawn::spawn(None, || {
        // Its other end is the first's alone: it closes with that.
        drop(life.take());
        let guarded = signals.unblock().map_err(Error::from);
        let guarded = guarded.and_then(|()| guard(watched.take(), reads, admit, server));
        guarded.unwrap_or_else(|error| {
            let _ = writeln!(io::stderr(), "ringfence tools: {}", ringfence_base::error::chain(&error));
            FAILED
        })
    })?;
    drop(watched.take());
    let ended = signals.wait(&guard, None);
    // What a guard that was killed has left.
    if let Some(server) = life.take().and_then(read_server_pid) {
        tree::wait_for_exit(server, GRACE);
    }
    tree::end();
    Ok(ended?)
}

/// The server's process id, which the guard, now ended, has sent.
fn read_server_pid(mut life: UnixStream) -> Option<Pid> {
    let mut id = [0; size_of::<i32>()];
    // A child of a guard that was killed may hold the other end.
    life.set_nonblocking(true).ok()?;
    life.read_exact(&mut id).ok()?;
    Some(Pid::from_raw(i32::from_ne_bytes(id)))
}

/// In the guard.
fn guard(
    watched: Option<UnixStream>,
    reads: bool,
    admit: impl FnOnce(BorrowedFd<'_>) -> Result<String, u8>,
    server: impl FnOnce(&str, Option<UnixStream>) -> u8,
) -> Result<u8, Error> {
    let _ = prctl::set_child_subreaper(true);
    // Before the server is enrolled, which the daemon demands of who could gain privileges.
    caps::no_new_privs()?;
    let reader = Cell::new(if reads { Some(start_reader()?) } else { None });
    let (ours, theirs) = UnixStream::pair().map_err(Error::Socket)?;
    let ours = Cell::new(Some(ours));
    let signals = Signals::block()?;
    let child = spawn::spawn(None, || {
        drop(ours.take());
        serve_when_admitted(theirs, &signals, |container| server(container, reader.take()))
    })?;
    // The server's alone: the reader ends with it.
    drop(reader.take());
    let Some(mut ours) = ours.into_inner() else { return Ok(end(&child, &signals, FAILED)) };
    // After the fork: the server stays with the first, where a terminal lets it read.
    let _ = setpgid(Pid::from_raw(0), Pid::from_raw(0));
    let _ = prctl::set_name(NAME);
    if let Some(watched) = watched
        && watch(watched, &ours, &child).is_err()
    {
        return Ok(end(&child, &signals, FAILED));
    }
    let admitted = admit(child.as_fd()).and_then(|text| writeln!(ours, "{BEGIN}{text}").map_err(|_| FAILED));
    if let Err(status) = admitted {
        return Ok(end(&child, &signals, status));
    }
    let ended = signals.wait(&child, None);
    tree::end();
    Ok(ended?)
}

/// In the guard: sends the first the server's process id, and ends all below, by way of the server, when the first has ended.
fn watch(mut watched: UnixStream, server: &UnixStream, child: &Child) -> io::Result<()> {
    let server = server.try_clone()?;
    // One that has ended already is found below.
    let _ = watched.write_all(&child.pid().as_raw().to_ne_bytes());
    let work = move || {
        let _ = watched.read_to_end(&mut Vec::new());
        let _ = server.shutdown(Shutdown::Both);
        // The main thread waits for the server, and ends this process then.
        thread::sleep(GRACE);
        tree::end();
        process::exit(i32::from(KILLED));
    };
    thread::Builder::new().name("guard".into()).spawn(work).map(drop)
}

/// Starts the reader of HTML; the socket to it.
fn start_reader() -> Result<UnixStream, Error> {
    let (ours, theirs) = UnixStream::pair().map_err(Error::Socket)?;
    let ours = Cell::new(Some(ours));
    spawn::spawn(None, || {
        drop(ours.take());
        match reader::serve(theirs) {
            Ok(()) => 0,
            Err(error) => {
                let _ = writeln!(
                    io::stderr(),
                    "ringfence tools: no HTML is read: {}",
                    ringfence_base::error::chain(&error)
                );
                FAILED
            }
        }
    })?;
    ours.take().ok_or_else(|| Error::Socket(io::ErrorKind::BrokenPipe.into()))
}

/// In the server: waits until it may begin. From then on it ends all that it started, and itself, when the guard does.
fn serve_when_admitted(theirs: UnixStream, signals: &Signals, server: impl FnOnce(&str) -> u8) -> u8 {
    let mut theirs = BufReader::new(theirs);
    let mut line = String::new();
    // No whole line comes if the server may not begin, or the guard was gone before.
    let read = theirs.read_line(&mut line);
    let watch = move || {
        let _ = theirs.read_to_end(&mut Vec::new());
        // For good: a script's next command would begin where this one ends.
        let _none = confine::hold_starts();
        tree::end();
        process::exit(i32::from(KILLED));
    };
    let container = line.strip_prefix(BEGIN).and_then(|line| line.strip_suffix('\n'));
    match container {
        Some(container) if read.is_ok() && signals.unblock().is_ok() => {
            match thread::Builder::new().name("guarded".into()).spawn(watch) {
                Ok(_) => server(container),
                Err(_) => FAILED,
            }
        }
        _ => FAILED,
    }
}

fn end(child: &Child, signals: &Signals, status: u8) -> u8 {
    let _ = kill(child.pid(), Signal::SIGKILL);
    let _ = signals.wait(child, None);
    status
}
