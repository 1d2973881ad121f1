//! HTML is read outside of the tool server: a page that takes all memory, or breaks a library, ends a process that has
//! nothing else to do, and nothing that it could do harm with.
//!
//! The reader is forked with the server, while there is one thread, and reads no HTML: it forks a child for each page, which
//! confines itself before the first byte comes. None of them execs, for a grant that eBPF holds does not name this program.

use ringfence_process::spawn::{self, FAILED};
use ringfence_sandbox::{
    caps, host,
    landlock::{self, Access, Rules},
    seccomp,
};
use ringfence_tools::web::{
    HtmlReader, Page, PageError,
    html::{self, AT_ONCE, MAIN_TIME, PageFuture, STACK},
};
use ringfence_wire::{conn::Conn, frame::FrameError};
use rustix::{
    process::{
        Resource, Rlimit, Signal, getrlimit, pidfd_send_signal, set_parent_process_death_signal, setrlimit,
    },
    stdio,
};
use serde::{Deserialize, Serialize};
use std::{
    collections::BTreeSet,
    fs::{self, File},
    io::{self, BufRead, BufReader, Read, Write},
    os::{
        fd::{AsFd, OwnedFd},
        unix::net::UnixStream,
    },
    sync::{Mutex, PoisonError},
    thread,
    time::Duration,
};
use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt},
    sync::Semaphore,
    time::{Instant, timeout_at},
};
use url::Url;

/// How long the reader may take to start a child.
const START_TIMEOUT: Duration = Duration::from_secs(10);
/// Longest message to and from the reader, bytes: they are empty objects.
const MAX_MESSAGE: usize = 256;
/// Bytes of memory that a page may take beside what the program has, stack included.
const MEMORY: u64 = 1 << 30;
/// Seconds of processor time that a page may take. A call's own time ends sooner on an idle machine.
const SECONDS: u64 = 60;
/// Most bytes of a child's output: the text of the longest page, with every character escaped.
const MAX_OUTPUT: u64 = 512 << 20;

/// Asks for a child, with its socket beside.
#[derive(Serialize, Deserialize)]
struct StartRequest {}

/// The answer, with the child's pidfd beside; without one, there is no child.
#[derive(Serialize, Deserialize)]
struct Started {}

/// Why there is no reader.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The connection to the server.
    #[error("cannot talk to the tool server")]
    Talk(#[source] FrameError),
    /// Landlock's ruleset.
    #[error(transparent)]
    Landlock(#[from] landlock::Error),
    /// The filter.
    #[error(transparent)]
    Seccomp(#[from] seccomp::Error),
    /// Privileges.
    #[error(transparent)]
    Caps(#[from] caps::Error),
    /// Limits, standard streams, the socket.
    #[error("cannot {0}")]
    Os(&'static str, #[source] io::Error),
}

/// The server's end.
pub struct Reader {
    conn: Mutex<Conn>,
    permits: Semaphore,
}

/// A child that is not waited for, and ends when nobody wants its page any more.
struct Child(OwnedFd);

impl Drop for Child {
    fn drop(&mut self) {
        // It may have ended.
        let _ = pidfd_send_signal(&self.0, Signal::KILL);
    }
}

impl Reader {
    /// `stream` leads to [`serve`].
    pub fn new(stream: UnixStream) -> Self {
        Self {
            conn: Mutex::new(Conn::new(stream, START_TIMEOUT, MAX_MESSAGE)),
            permits: Semaphore::new(AT_ONCE),
        }
    }

    /// A child, and the socket that it reads a page from and writes its text to. Blocks, for a fork's time.
    fn start(&self) -> io::Result<(Child, tokio::net::UnixStream)> {
        let (ours, theirs) = UnixStream::pair()?;
        let mut conn = self.conn.lock().unwrap_or_else(PoisonError::into_inner);
        conn.send_with_descriptors(&StartRequest {}, &[theirs.as_fd()]).map_err(io::Error::other)?;
        drop(theirs);
        let (Started {}, mut pidfd) = conn.receive_with_descriptors().map_err(io::Error::other)?;
        drop(conn);
        let child = pidfd.pop().map(Child).ok_or_else(|| io::Error::other("it could not start another"))?;
        ours.set_nonblocking(true)?;
        Ok((child, tokio::net::UnixStream::from_std(ours)?))
    }
}

impl HtmlReader for Reader {
    fn read(&self, html: String, url: Url, time: Duration) -> PageFuture<'_> {
        Box::pin(async move {
            let until = Instant::now() + time;
            let permit = timeout_at(until, self.permits.acquire()).await.map_err(|_| PageError::Slow)?;
            let _permit = permit.map_err(|_| PageError::Failed)?;
            let (_child, mut socket) = self.start().map_err(PageError::Process)?;
            let (output, mut input) = socket.split();
            let mut output = tokio::io::BufReader::new(output.take(MAX_OUTPUT));
            let mut line = Vec::new();
            let exchange = async {
                input.write_all(format!("{url}\n").as_bytes()).await?;
                input.write_all(html.as_bytes()).await?;
                input.shutdown().await?;
                output.read_until(b'\n', &mut line).await
            };
            // A child that ends takes its socket with it, which shows here or in its output.
            drop(timeout_at(until, exchange).await.map_err(|_| PageError::Slow)?);
            let page = page(&line).ok_or(PageError::Ended)?;
            line.clear();
            let until = until.min(Instant::now() + MAIN_TIME);
            let main = timeout_at(until, output.read_until(b'\n', &mut line)).await;
            Ok(main.ok().and_then(|_| self::page(&line)).unwrap_or(page))
        })
    }
}

/// A page as a child writes it; `None`: not to the end.
fn page(line: &[u8]) -> Option<Page> {
    serde_json::from_slice(line.strip_suffix(b"\n")?).ok()
}

/// The reader: starts children as it is asked to, until the other end closes.
///
/// # Errors
/// [`Error`]
pub fn serve(stream: UnixStream) -> Result<(), Error> {
    // Without its parent it would not be ended by whoever ends that.
    let _ = set_parent_process_death_signal(Some(Signal::KILL));
    detach_stdio()?;
    let confinement = Confinement::new()?;
    // What it waits for may come in an hour.
    let mut conn = Some(Conn::new(stream, Duration::from_secs(u64::from(u32::MAX)), MAX_MESSAGE));
    while let Some(asking) = &mut conn {
        let page = match asking.receive_with_descriptors::<StartRequest>() {
            Ok((StartRequest {}, mut page)) => page.pop(),
            Err(FrameError::Closed) => break,
            Err(error) => return Err(Error::Talk(error)),
        };
        let child = page.and_then(|page| {
            let work = || {
                drop(conn.take());
                run_child(page.into(), &confinement)
            };
            spawn::spawn(None, work).ok()
        });
        let started: Vec<_> = child.iter().map(AsFd::as_fd).collect();
        let Some(answering) = &mut conn else { break };
        answering.send_with_descriptors(&Started {}, &started).map_err(Error::Talk)?;
        ringfence_process::tree::reap();
    }
    Ok(())
}

/// Neither standard input nor output: they are the server's.
fn detach_stdio() -> Result<(), Error> {
    let open = || fs::OpenOptions::new().read(true).write(true).open("/dev/null");
    let null = open().map_err(|source| Error::Os("open /dev/null", source))?;
    let both = stdio::dup2_stdin(&null).and_then(|()| stdio::dup2_stdout(&null));
    both.map_err(|errno| Error::Os("close its streams", errno.into()))
}

/// What a child puts on itself.
struct Confinement {
    landlock: Option<landlock::Prepared>,
    filter: seccomp::Filter,
}

impl Confinement {
    fn new() -> Result<Self, Error> {
        let rules = Rules {
            restricted: Access { read: true, write: true, exec: true, unix: true },
            hierarchies: Vec::new(),
            tcp: Some(BTreeSet::new()),
            scope_signals: true,
            scope_abstract: true,
            ..Rules::default()
        };
        let abi = host::landlock_abi();
        let landlock = if abi > 0 { rules.prepare(abi)? } else { None };
        Ok(Self { landlock, filter: seccomp::Filter::compile(&seccomp::Policy::reader_list()?)? })
    }

    /// # Errors
    /// [`Error`]; no page may be read then.
    fn enforce(&self) -> Result<(), Error> {
        let _ = set_parent_process_death_signal(Some(Signal::KILL));
        // A page must not reach the user's terminal.
        stdio::dup2_stderr(io::stdin()).map_err(|errno| Error::Os("close its streams", errno.into()))?;
        limit(Resource::As, size()? + MEMORY)?;
        limit(Resource::Cpu, SECONDS)?;
        limit(Resource::Core, 0)?;
        limit(Resource::Fsize, 0)?;
        caps::drop_all()?;
        caps::not_dumpable()?;
        if let Some(landlock) = &self.landlock {
            landlock.try_clone().map_err(|error| Error::Os("have a ruleset", error))?.enforce()?;
        }
        Ok(self.filter.load()?)
    }
}

/// Bytes of this process's address space.
fn size() -> Result<u64, Error> {
    let failed = |error| Error::Os("see its size in /proc/self/status", error);
    let status = fs::read_to_string("/proc/self/status").map_err(failed)?;
    let size = status.lines().find_map(|line| line.strip_prefix("VmSize:"));
    let kib = size.and_then(|size| size.trim().strip_suffix(" kB")?.parse::<u64>().ok());
    kib.map(|kib| kib << 10).ok_or_else(|| failed(io::ErrorKind::InvalidData.into()))
}

/// Lowers a limit, never raises it.
fn limit(resource: Resource, most: u64) -> Result<(), Error> {
    let Rlimit { current, maximum } = getrlimit(resource);
    let most = [current, maximum].into_iter().flatten().fold(most, u64::min);
    let limit = Rlimit { current: Some(most), maximum: Some(most) };
    setrlimit(resource, limit).map_err(|errno| Error::Os("limit what a page takes", errno.into()))
}

/// A child: one page in, its text out. Its exit status, which nobody looks at: who waits for the text sees its end.
fn run_child(socket: UnixStream, confinement: &Confinement) -> u8 {
    if confinement.enforce().is_err() {
        return FAILED;
    }
    let thread = thread::Builder::new().name("html".into()).stack_size(STACK);
    let read = thread.spawn(move || send_page(File::from(OwnedFd::from(socket))).is_ok());
    match read.map(thread::JoinHandle::join) {
        Ok(Ok(true)) => 0,
        _ => FAILED,
    }
}

fn send_page(mut socket: File) -> io::Result<()> {
    let mut html = BufReader::new(&socket);
    let mut url = String::new();
    html.read_line(&mut url)?;
    let url = Url::parse(url.trim_end()).map_err(io::Error::other)?;
    let mut text = String::new();
    html.read_to_string(&mut text)?;
    let mut sent = Ok(());
    html::read(&text, &url, |page| {
        let line = serde_json::to_vec(&page).map_err(io::Error::from);
        let line = line.and_then(|mut line| {
            line.push(b'\n');
            socket.write_all(&line)
        });
        if sent.is_ok() {
            sent = line;
        }
    });
    sent
}
