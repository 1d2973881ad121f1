//! `exec`: shims and a daemon around one command, without a container.
//!
//! The command is the outermost process of its run: what leaves it is cut. Everything else goes with it: the daemon, the
//! folder of shims, the socket. Only what was cut stays, in the spill folder.

use super::{
    ask::SOCKET_VARIABLE,
    child::{self, Child},
    daemon::{Daemon, Limits},
    find, install, pipeline_end, say,
};
use crate::{signals::wait_for, sys};
use ringfence_base::error::chain;
use rustix::{
    event::{PollFd, PollFlags},
    fs::{Mode, mkdir},
    pipe::{PipeFlags, pipe_with},
    process::{Pid, Signal, WaitOptions, kill_process, set_parent_process_death_signal, waitpid},
};
use std::{
    ffi::{CString, OsString},
    fs::{self, File},
    io::{self, Read, Write},
    os::{fd::AsRawFd, unix::ffi::OsStrExt},
    path::{Path, PathBuf},
};

/// Status of a command that was not run though it is there.
const NOT_RUN: u8 = 126;

/// Runs a command with shims first in its PATH and a daemon of its own; its status is the command's.
///
/// Nothing is installed and nothing is left but the files with what was cut. A login shell (`bash -l`) sets PATH anew and
/// loses the shims: use `bash -c`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  ringfence-toolrunner exec -- bash -c 'cat large_file.txt'\n  \
    ringfence-toolrunner exec --max-lines 50 --keep both --shim git -- git log")]
pub struct Args {
    #[command(flatten)]
    limits: Limits,
    /// A tool to stand before, instead of the usual ones; may be given several times
    #[arg(long = "shim", value_name = "NAME")]
    shims: Vec<OsString>,
    /// The command and its arguments
    #[arg(trailing_var_arg = true, required = true, value_name = "CMD")]
    command: Vec<OsString>,
}

/// Why the command cannot be run like this.
#[derive(Debug, thiserror::Error)]
enum Error {
    #[error(transparent)]
    Command(find::Error),
    #[error("cannot make a folder for shims")]
    Folder(#[source] io::Error),
    #[error("cannot make shims")]
    Shims(#[source] install::Error),
    #[error("cannot start the daemon")]
    Daemon(#[source] io::Error),
    #[error("cannot run the command")]
    Run(#[source] io::Error),
}

/// Runs the command.
pub fn run(args: &Args) -> u8 {
    let end = around(args).map(|end| end.repeat());
    end.unwrap_or_else(|error| {
        let status = match &error {
            Error::Command(why) => why.status(),
            _ => NOT_RUN,
        };
        say(format_args!("{}", chain(&error)));
        status
    })
}

/// Everything is undone before the end is repeated, which may be a signal's.
fn around(args: &Args) -> Result<child::End, Error> {
    let Some(name) = args.command.first() else { return Ok(child::End::Exited(0)) };
    let folder = Folder::make().map_err(Error::Folder)?;
    let shims = folder.0.join("shims");
    mkdir(&shims, Mode::RWXU).map_err(|error| Error::Folder(error.into()))?;
    let names = if args.shims.is_empty() { install::installed() } else { args.shims.clone() };
    install::link(&shims, &names).map_err(Error::Shims)?;
    let path = std::env::var_os("PATH").unwrap_or_else(|| find::DEFAULT_PATH.into());
    let mut with_shims = shims.clone().into_os_string();
    with_shims.push(":");
    with_shims.push(&path);
    // The command itself may be one of the tools: then it is a shim.
    let program = find::tool(name, Some(with_shims.clone()), None, None).map_err(Error::Command)?;
    let socket = folder.0.join("socket");
    let _daemon = Server::start(&socket, &args.limits).map_err(Error::Daemon)?;
    command(&program, &args.command, &with_shims, &socket).map_err(Error::Run)
}

/// Runs the command to its end.
fn command(program: &Path, words: &[OsString], path: &OsString, socket: &Path) -> io::Result<child::End> {
    // So that shims know their outermost process: this one's child.
    rustix::thread::set_name(pipeline_end::EXEC)?;
    let args = child::c_strings(words)?;
    let environment = environment(path, socket)?;
    let program_name = CString::new(program.as_os_str().as_bytes())?;
    let mut child = Child::start(|| {
        let Err(error) = child::exec_with(&program_name, &args, &environment);
        say(format_args!("cannot run {}: {error}", program.display()));
        NOT_RUN
    })?;
    loop {
        if let Some(end) = child.end() {
            return Ok(end);
        }
        let signals = child.fd();
        wait_for(&mut [PollFd::new(&signals, PollFlags::IN)], None)?;
        child.listen()?;
    }
}

/// This process's environment with the shims' PATH and socket.
fn environment(path: &OsString, socket: &Path) -> io::Result<Vec<CString>> {
    let ours: [(&str, &std::ffi::OsStr); 2] = [("PATH", path), (SOCKET_VARIABLE, socket.as_os_str())];
    let kept = std::env::vars_os().filter(|(name, _)| ours.iter().all(|(our, _)| name != our));
    let all = kept.chain(ours.map(|(name, value)| (OsString::from(name), value.to_owned())));
    child::c_strings(all.map(|(name, value)| {
        let mut both = name;
        both.push("=");
        both.push(value);
        both
    }))
}

/// A folder of this user alone, gone when it is dropped.
#[derive(Debug)]
struct Folder(PathBuf);

impl Folder {
    fn make() -> io::Result<Self> {
        let mut random = [0; 8];
        File::open("/dev/urandom")?.read_exact(&mut random)?;
        let name = format!("ringfence-exec-{:016x}", u64::from_ne_bytes(random));
        let path = std::env::temp_dir().join(name);
        mkdir(&path, Mode::RWXU)?;
        Ok(Self(path))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// The daemon's process, ended when this is dropped.
#[derive(Debug)]
struct Server(Pid);

impl Server {
    /// Returns when it listens.
    fn start(socket: &Path, limits: &Limits) -> io::Result<Self> {
        let (from, to) = pipe_with(PipeFlags::CLOEXEC)?;
        let mut limits = limits.clone();
        // The command's errors are its own.
        limits.log.get_or_insert_with(|| "/dev/null".into());
        let daemon = sys::fork_child(&[to.as_raw_fd()], || serve(socket, &limits, File::from(to)))?;
        let server = Self(daemon);
        let mut said = String::new();
        File::from(from).read_to_string(&mut said)?;
        if said == "ready" { Ok(server) } else { Err(io::Error::other(said)) }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = kill_process(self.0, Signal::TERM);
        let _ = waitpid(Some(self.0), WaitOptions::empty());
    }
}

/// In the daemon's process.
fn serve(socket: &Path, limits: &Limits, mut told: File) -> u8 {
    let served = set_parent_process_death_signal(Some(Signal::KILL))
        .map_err(|error| error.to_string())
        .and_then(|()| rustix::process::setsid().map_err(|error| error.to_string()))
        .and_then(|_| Daemon::start(socket, limits).map_err(|error| chain(&error)));
    let mut daemon = match served {
        Ok(daemon) => daemon,
        Err(why) => {
            let _ = told.write_all(why.as_bytes());
            return 1;
        }
    };
    if told.write_all(b"ready").is_err() {
        return 1;
    }
    drop(told);
    u8::from(daemon.serve().is_err())
}
