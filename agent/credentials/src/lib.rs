//! Credentials: a type that zeroes itself and prints as `[redacted]`, and the places that one can come from.

// A path may be somebody else's by the time it is used: files by descriptor (`ringfence-files`). Tests set their scenes.
#![cfg_attr(not(test), deny(clippy::disallowed_methods))]
// Where nobody reads standard output any more (`| head`), `println!` panics.
#![cfg_attr(not(test), deny(clippy::print_stdout))]

mod jwt;
mod login;

pub use login::{Change, Login, Renewable, Renewal, Renewed, When};

use nix::libc;
use ringfence_redact::misplaced::{Name, shown};
use std::{
    env, fmt,
    fs::{self, OpenOptions},
    io::{self, Read, Write},
    os::{
        fd::OwnedFd,
        unix::fs::{MetadataExt, OpenOptionsExt},
    },
    path::{Path, PathBuf},
    process::{Command, ExitStatus, Stdio},
    sync::{Arc, OnceLock},
    thread,
    time::{Duration, Instant},
};
use zeroize::Zeroizing;

/// Most bytes of a credential.
const MAX_BYTES: u64 = 16 << 10;
/// How long a command may take to print one.
const COMMAND_TIME: Duration = Duration::from_secs(30);

/// Runs a command that prints a credential.
pub type Run = fn(&[String]) -> Result<Secret, Error>;

/// Who runs commands, where this process may start none.
static COMMAND_RUNNER: OnceLock<Run> = OnceLock::new();

/// From now on commands are run by `run`.
pub fn run_commands_by(run: Run) {
    let _ = COMMAND_RUNNER.set(run);
}

/// What stands before a credential in memory, so that an `Authorization` header can share that memory.
const SCHEME: &str = "Bearer ";

/// A credential. Its clones share one place in memory, which the last of them zeroes.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(Arc<Zeroizing<String>>);

impl Secret {
    fn new(text: &str) -> Self {
        // Room for all of it at once: a string that grows leaves copies behind.
        let mut whole = Zeroizing::new(String::with_capacity(SCHEME.len() + text.len()));
        whole.push_str(SCHEME);
        whole.push_str(text);
        Self(Arc::new(whole))
    }

    /// What [`Source::open`] or [`Self::pipe`] handed over.
    ///
    /// # Errors
    /// [`Error`].
    pub fn from_descriptor(descriptor: OwnedFd) -> Result<Self, Error> {
        bounded(fs::File::from(descriptor), "the credential", Error::Handover)
    }

    /// A credential in a text.
    ///
    /// # Errors
    /// [`Error`]: it is none.
    pub fn checked(text: &str) -> Result<Self, Error> {
        checked(text, "the text")
    }

    /// The credential itself: for the header that carries it, and for finding it in what goes out.
    pub fn expose(&self) -> &str {
        &self.0[SCHEME.len()..]
    }

    /// The same memory as the value of an `Authorization` header.
    pub fn bearer(&self) -> &str {
        &self.0
    }

    /// A pipe that holds it, for another process.
    ///
    /// # Errors
    /// [`Error`].
    pub fn pipe(&self) -> Result<OwnedFd, Error> {
        let bytes = self.expose().as_bytes();
        if bytes.len() as u64 > MAX_BYTES {
            return Err(Error::TooLong("the value".to_owned()));
        }
        let (read, mut write) = io::pipe().map_err(Error::Handover)?;
        // A pipe holds four times as much.
        write.write_all(bytes).map_err(Error::Handover)?;
        Ok(read.into())
    }
}

impl From<String> for Secret {
    fn from(text: String) -> Self {
        Self::new(&Zeroizing::new(text))
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[redacted]")
    }
}

/// Where a credential comes from: the key's ending says which.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Source {
    /// `api_key`: it stands in the file.
    Value(Secret),
    /// `api_key_env`: a variable of the worker's own environment.
    Env(String),
    /// `api_key_file`: a file that only its owner can read.
    File(PathBuf),
    /// `api_key_credential`: one of systemd's `LoadCredential=`.
    Credential(String),
    /// `api_key_command`: what a command prints.
    Command(Vec<String>),
    /// Of a kit: a file of JSON in which an agent keeps what its user logged in with.
    Login(Login),
}

/// Why a credential cannot be had. Never says what it is.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// No such variable.
    #[error("the environment variable {0} is not set")]
    NoVariable(String),
    /// Not UTF-8 or not fit for a header.
    #[error("{0} is not a credential: a credential is one line of printable ASCII")]
    Unprintable(String),
    /// Nothing in it.
    #[error("{0} is empty")]
    Empty(String),
    /// A file that is not there or cannot be read.
    #[error("cannot read {}", shown(&.0.display().to_string()))]
    File(PathBuf, #[source] io::Error),
    /// A device, pipe or directory.
    #[error("{} is not a regular file", shown(&.0.display().to_string()))]
    NotAFile(PathBuf),
    /// Open to others.
    #[error("{} can be read or written by others (mode {mode:04o}): chmod 600 it", shown(&.path.display().to_string()))]
    Exposed {
        /// The file.
        path: PathBuf,
        /// Its mode.
        mode: u32,
    },
    /// Far too long.
    #[error("{0} is longer than {MAX_BYTES} bytes, too long for a credential")]
    TooLong(String),
    /// Not started by systemd with credentials.
    #[error(
        "systemd passed no credentials (CREDENTIALS_DIRECTORY is not set): add LoadCredential={0}:PATH to the unit"
    )]
    NoCredentials(String),
    /// Root runs no commands from a configuration file.
    #[error("a command for a credential is never run as root: use a file or a systemd credential")]
    Root,
    /// The command cannot be started.
    #[error("cannot run {0}")]
    Command(String, #[source] io::Error),
    /// Neither the daemon's environment nor a command is a place for an agent's credential.
    #[error(
        "the daemon takes credentials from the profile, a file or a systemd credential (LoadCredential= in its unit); variables and commands are for `ringfence agent start`"
    )]
    NotAllowed,
    /// No descriptor to hand it over.
    #[error("cannot pass the credential on")]
    Handover(#[source] io::Error),
    /// The process that runs commands says why not, or is gone.
    #[error("{0}")]
    Runner(String),
    /// The command failed.
    #[error("{0} failed ({1})")]
    Failed(String, ExitStatus),
    /// A login file without a credential where one is looked for.
    #[error("{} has no credential at {at}", shown(&.path.display().to_string()))]
    NoLogin {
        /// The file.
        path: PathBuf,
        /// The place in it.
        at: String,
    },
    /// A login that is over.
    #[error("the login in {} expired; start the agent once without Ringfence, and it is renewed", shown(&.0.display().to_string()))]
    Expired(PathBuf),
    /// A login's file that somebody wrote while it was read.
    #[error("the login in {} was changed at this moment; try again", shown(&.0.display().to_string()))]
    Changed(PathBuf),
    /// A login that is over, or was refused, and stays so.
    #[error("the login in {} cannot be renewed: {why}", shown(&.path.display().to_string()))]
    NotRenewed {
        /// The file.
        path: PathBuf,
        /// Why, in words.
        why: String,
    },
    /// The command takes too long.
    #[error("{0} printed no credential within 30 seconds")]
    TimedOut(String),
}

impl Source {
    /// The credential.
    ///
    /// # Errors
    /// [`Error`].
    pub fn read(&self) -> Result<Secret, Error> {
        match self {
            Self::Value(secret) => checked(secret.expose(), "the value"),
            Self::Env(name) => {
                // The name may be the credential itself.
                let shown = Name(name).to_string();
                let value = env::var_os(name).ok_or_else(|| Error::NoVariable(shown.clone()))?;
                let value = value.into_string().map_err(|_| Error::Unprintable(shown.clone()))?;
                checked(&Zeroizing::new(value), &shown)
            }
            Self::File(path) => file(path),
            Self::Credential(name) => file(&credential(name)?),
            Self::Command(words) => COMMAND_RUNNER.get().map_or(command as Run, |run| *run)(words),
            Self::Login(login) => login.read(),
        }
    }
}

impl Source {
    /// The variable of this process's environment that has it or says where it is: what is started and has no use for it is started
    /// without that.
    pub fn variable(&self) -> Option<&str> {
        match self {
            Self::Env(name) => Some(name),
            Self::Credential(_) => Some("CREDENTIALS_DIRECTORY"),
            Self::Value(_) | Self::File(_) | Self::Command(_) | Self::Login(_) => None,
        }
    }

    /// The file that it is in, if it is in one of its own.
    pub fn file(&self) -> Option<PathBuf> {
        match self {
            Self::File(path) => Some(path.clone()),
            Self::Credential(name) => credential(name).ok(),
            Self::Login(login) => Some(login.path.clone()),
            Self::Value(_) | Self::Env(_) | Self::Command(_) => None,
        }
    }

    /// A descriptor to read the credential from, for a worker: the file itself, or a pipe that holds the value.
    ///
    /// # Errors
    /// [`Error`].
    pub fn open(&self) -> Result<OwnedFd, Error> {
        match self {
            Self::Value(secret) => secret.pipe(),
            Self::File(path) => Ok(open(path)?.into()),
            Self::Credential(name) => Ok(open(&credential(name)?)?.into()),
            Self::Env(_) | Self::Command(_) | Self::Login(_) => Err(Error::NotAllowed),
        }
    }
}

fn credential(name: &str) -> Result<PathBuf, Error> {
    let dir = env::var_os("CREDENTIALS_DIRECTORY").map(PathBuf::from);
    Ok(dir.ok_or_else(|| Error::NoCredentials(Name(name).to_string()))?.join(name))
}

fn checked(text: &str, from: &str) -> Result<Secret, Error> {
    let text = text.trim_ascii_end();
    if text.is_empty() {
        return Err(Error::Empty(from.to_owned()));
    }
    if !text.bytes().all(|b| b.is_ascii_graphic() || b == b' ') {
        return Err(Error::Unprintable(from.to_owned()));
    }
    Ok(Secret::new(text))
}

fn file(path: &Path) -> Result<Secret, Error> {
    bounded(open(path)?, &shown(&path.display().to_string()), |source| Error::File(path.to_owned(), source))
}

fn open(path: &Path) -> Result<fs::File, Error> {
    let (file, mode) = open_of_any_mode(path)?;
    if mode & 0o066 != 0 {
        return Err(Error::Exposed { path: path.to_owned(), mode });
    }
    Ok(file)
}

/// The same, whoever else may read it, with its mode.
fn open_of_any_mode(path: &Path) -> Result<(fs::File, u32), Error> {
    let io = |source| Error::File(path.to_owned(), source);
    // Without O_NONBLOCK the open of a FIFO would wait for its writer.
    let file = OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY)
        .open(path)
        .map_err(io)?;
    let meta = file.metadata().map_err(io)?;
    if !meta.is_file() {
        return Err(Error::NotAFile(path.to_owned()));
    }
    Ok((file, meta.mode() & 0o7777))
}

fn bounded(reader: impl Read, from: &str, io: impl Fn(io::Error) -> Error) -> Result<Secret, Error> {
    // Room for all of it at once: a vector that grows leaves copies behind.
    let mut bytes = Zeroizing::new(Vec::with_capacity(MAX_BYTES as usize + 2));
    reader.take(MAX_BYTES + 1).read_to_end(&mut bytes).map_err(io)?;
    if bytes.len() as u64 > MAX_BYTES {
        return Err(Error::TooLong(from.to_owned()));
    }
    let text = str::from_utf8(&bytes).map_err(|_| Error::Unprintable(from.to_owned()))?;
    checked(text, from)
}

/// The program of a command, for messages: people put the credential itself there, too.
pub fn program(words: &[String]) -> String {
    Name(words.first().map_or("", String::as_str)).to_string()
}

/// The command's own messages go to our standard error; what it prints is the credential.
fn command(words: &[String]) -> Result<Secret, Error> {
    if nix::unistd::geteuid().is_root() {
        return Err(Error::Root);
    }
    let program = words.first().cloned().unwrap_or_default();
    let name = self::program(words);
    let failed = |source| Error::Command(name.clone(), source);
    let mut child = Command::new(&program)
        .args(words.iter().skip(1))
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .map_err(failed)?;
    let stdout = child.stdout.take();
    let from = name.clone();
    let reader =
        thread::spawn(move || stdout.map(|out| bounded(out, &from, |e| Error::Command(from.clone(), e))));
    let until = Instant::now() + COMMAND_TIME;
    let status = loop {
        match child.try_wait().map_err(failed)? {
            Some(status) => break status,
            None if Instant::now() > until => {
                let _ = child.kill();
                let _ = child.wait();
                return Err(Error::TimedOut(name));
            }
            None => thread::sleep(Duration::from_millis(10)),
        }
    };
    if !status.success() {
        return Err(Error::Failed(name, status));
    }
    // A grandchild may still hold the pipe.
    while !reader.is_finished() {
        if Instant::now() > until {
            return Err(Error::TimedOut(name));
        }
        thread::sleep(Duration::from_millis(5));
    }
    match reader.join() {
        Ok(Some(secret)) => secret,
        _ => Err(Error::Empty(name)),
    }
}

#[cfg(test)]
mod tests;
