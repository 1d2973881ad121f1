//! The end of a connection that nobody read, for a thread that all who connect wait for.
//!
//! Whoever connects may send descriptors with any byte. Those that nobody received are closed with the socket, by the thread
//! that closes that. The last close of a TCP socket whose peer reads nothing takes as long as `SO_LINGER` says, which is its
//! sender's to set: unless the thread is ending (`PF_EXITING`, inet_release in net/ipv4/af_inet.c). So such a connection is
//! given to a thread that ends with it, whose table of descriptors is its own. None of what was sent is received: the close of
//! what is in a table asks its file system, whose server may be the sender's. So, rarely, does the end of a file that is in
//! none; then it is one of those threads that waits, of which there are not many.

use crate::precedence;
use nix::{
    sched::{CloneFlags, unshare},
    unistd::close,
};
use ringfence_wire::rights;
use rustix::{
    io::Errno,
    net::{RecvAncillaryBuffer, RecvFlags, ReturnFlags, SendFlags, recvmsg},
    process::{Resource, getrlimit},
    thread::{Pid, gettid, sched_getaffinity},
};
use std::{
    fs,
    io::{self, IoSlice, IoSliceMut},
    net::Shutdown,
    os::{
        fd::{AsFd, AsRawFd, OwnedFd, RawFd},
        unix::net::UnixStream,
    },
    sync::{
        Arc, Mutex, OnceLock, PoisonError,
        atomic::{AtomicBool, Ordering},
        mpsc,
    },
    thread,
    time::{Duration, Instant},
};

/// Unread bytes that are looked at for descriptors.
const LOOKED_AT: usize = 64 << 10;
/// Descriptors that may be open when it starts, of which the thread that has connections ended keeps no copy.
const OPEN_BEFORE: RawFd = 4096;
/// Threads that may be ending at once; what is sent meanwhile is parked, where it is in nobody's way.
const MOST_ENDING: usize = 64;
/// How long to rest where the system has no room for one more thread: it passes.
const REST: Duration = Duration::from_millis(100);
/// Most connections that are parked, where the process may have as many descriptors.
const MOST_PARKED: usize = 16 << 10;
/// Descriptors of the thread that parks them that are for something else.
const OTHERS: usize = 16;
/// How long whoever gives a connection may wait for the thread that takes it, which waits for nobody's peer.
const GIVING: Duration = Duration::from_secs(1);
/// How long between two tries.
const TRYING: Duration = Duration::from_millis(1);
/// Bytes of the stack of each.
const STACK: usize = 128 << 10;

/// The process's own; nothing where it could not be started.
static ENDER: OnceLock<Option<Ender>> = OnceLock::new();

/// Ends a connection, and waits for nothing that its peer decides. It has to be the last descriptor of it.
pub fn discard(stream: UnixStream) {
    // Nothing is added to it from here on.
    let _ = stream.shutdown(Shutdown::Both);
    if has_descriptors(&stream) {
        let left = match ENDER.get() {
            Some(Some(ender)) => ender.give(stream).err(),
            _ => Some(stream),
        };
        left.into_iter().for_each(wait_for);
    }
}

/// Whether descriptors may be left in it.
fn has_descriptors(stream: &UnixStream) -> bool {
    let look = |into: &mut [u8], flags: RecvFlags| {
        let flags = flags | RecvFlags::PEEK | RecvFlags::DONTWAIT;
        recvmsg(stream, &mut [IoSliceMut::new(into)], &mut RecvAncillaryBuffer::default(), flags)
    };
    // A look ends before a byte that is out of band, and with the first descriptors.
    look(&mut [0_u8; 1], RecvFlags::OOB).is_ok()
        || look(&mut vec![0_u8; LOOKED_AT], RecvFlags::empty())
            .is_ok_and(|seen| seen.bytes >= LOOKED_AT || seen.flags.contains(ReturnFlags::CTRUNC))
}

/// Has a thread wait for the end of a connection.
fn wait_for(stream: UnixStream) {
    let (to, from) = mpsc::channel();
    let waiting = thread::Builder::new().name("closing".into()).stack_size(STACK);
    let wait = move || {
        precedence::usual();
        drop(from.recv());
    };
    match waiting.spawn(wait) {
        Ok(_) => drop(to.send(stream)),
        // Not here, whatever it costs.
        Err(_) => std::mem::forget(stream),
    }
}

/// Prepares for connections that are to be ended. To be called before anybody connects: what is open now has no copy in the
/// table of the thread that has them ended, which would keep a file of a user's own file system. Where it cannot be, which is
/// logged, [`discard`] has a thread wait for each.
pub fn prepare() {
    ENDER.get_or_init(|| match Ender::start() {
        Ok(ender) => Some(ender),
        Err(error) => {
            tracing::warn!("connections that nobody reads are ended by threads that may wait: {error}");
            None
        }
    });
}

/// Where connections are sent that are to be ended.
#[derive(Debug, Clone)]
struct Ender(Arc<Sender>);

#[derive(Debug)]
struct Sender {
    /// It is locked from when one is sent until its sender has let go of it, for which nobody waits.
    socket: Mutex<UnixStream>,
    /// There was no room for the last one: nobody else waits for any.
    is_full: AtomicBool,
}

impl Ender {
    fn by(socket: UnixStream) -> Self {
        Self(Arc::new(Sender { socket: Mutex::new(socket), is_full: AtomicBool::new(false) }))
    }

    /// Starts the thread that has others end what it is sent.
    ///
    /// # Errors
    /// As socketpair(2), pthread_create(3) and unshare(2): some containers refuse it.
    fn start() -> io::Result<Self> {
        let (ours, theirs) = UnixStream::pair()?;
        let ender = Self::by(ours);
        let itself = ender.clone();
        let (ready, is_ready) = mpsc::channel();
        thread::Builder::new().name("closing".into()).stack_size(STACK).spawn(move || {
            // Those who connect wait for it where there are many to end.
            precedence::first();
            // A table of its own from here on, in which the other numbers stand for nothing that anybody uses.
            let apart = unshare(CloneFlags::CLONE_FILES);
            if apart.is_ok() {
                for other in (0..OPEN_BEFORE).filter(|&other| other != theirs.as_raw_fd()) {
                    let _ = close(other);
                }
            }
            let may_go_on = apart.is_ok();
            let _ = ready.send(apart);
            if may_go_on {
                Ending::new(theirs, itself).run();
            }
        })?;
        is_ready.recv().map_err(io::Error::other)??;
        Ok(ender)
    }

    /// Gives it a connection, which is given back if there is no room in time.
    fn give(&self, mut stream: UnixStream) -> Result<(), UnixStream> {
        let begun = Instant::now();
        loop {
            match self.try_give(stream) {
                Ok(()) => {
                    self.0.is_full.store(false, Ordering::Relaxed);
                    return Ok(());
                }
                Err(back) => stream = back,
            }
            if self.0.is_full.load(Ordering::Relaxed) || begun.elapsed() >= GIVING {
                self.0.is_full.store(true, Ordering::Relaxed);
                return Err(stream);
            }
            thread::sleep(TRYING);
        }
    }

    fn try_give(&self, stream: UnixStream) -> Result<(), UnixStream> {
        let socket = self.0.socket.lock().unwrap_or_else(PoisonError::into_inner);
        match rights::send(&*socket, &[IoSlice::new(&[0])], &[stream.as_fd()], SendFlags::DONTWAIT) {
            // While it is locked: whoever has received it must be the last that has it.
            Ok(_) => {
                drop(stream);
                Ok(())
            }
            Err(_) => Err(stream),
        }
    }

    /// Returns when those who sent what was received have let go of it.
    fn let_go(&self) {
        drop(self.0.socket.lock());
    }
}

/// What the thread has, in a table of descriptors of its own.
struct Ending {
    sent: UnixStream,
    sender: Ender,
    /// Connections that no other thread has yet.
    parked: Vec<OwnedFd>,
    /// Those that were told to end, and may have done so.
    threads: Vec<Pid>,
    /// Most that are parked. What is sent to a table of descriptors that is full, the kernel closes then and there.
    most_parked: usize,
}

impl Ending {
    fn new(sent: UnixStream, sender: Ender) -> Self {
        let limit = getrlimit(Resource::Nofile).current.and_then(|most| usize::try_from(most).ok());
        let most_parked = limit.map_or(MOST_PARKED, |most| most.saturating_sub(OTHERS).clamp(1, MOST_PARKED));
        Self { sent, sender, parked: Vec::new(), threads: Vec::new(), most_parked }
    }

    fn run(mut self) {
        loop {
            let waiting = if self.parked.is_empty() { RecvFlags::empty() } else { RecvFlags::DONTWAIT };
            let has_room = self.parked.len() < self.most_parked;
            match has_room.then(|| rights::receive(&self.sent, &mut [0], waiting)) {
                Some(Ok(received)) if received.bytes == 0 => return,
                Some(Ok(received)) => self.parked.extend(received.descriptors),
                Some(Err(Errno::INTR)) => {}
                Some(Err(_)) | None if self.has_room() && self.end_parked().is_ok() => {}
                Some(Err(_)) | None => thread::sleep(REST),
            }
        }
    }

    /// Whether one more may end: what is closed may keep it, on a file system whose server is the sender's.
    fn has_room(&mut self) -> bool {
        self.threads.retain(|&thread| is_ours(thread));
        self.threads.len() < MOST_ENDING
    }

    /// Has a thread end with all that is parked.
    fn end_parked(&mut self) -> io::Result<()> {
        self.sender.let_go();
        let (has_all, all) = mpsc::channel();
        let (go, told) = mpsc::channel::<()>();
        let thread = thread::Builder::new().name("closing".into()).stack_size(STACK);
        thread.spawn(move || {
            let apart = unshare(CloneFlags::CLONE_FILES).map(|()| gettid());
            let _ = has_all.send(apart);
            // Nothing is sent: it ends when the other end does.
            let _ = told.recv();
            // Whoever started it goes first; what is ended is its sender's doing.
            precedence::usual();
        })?;
        let thread_id = all.recv().map_err(io::Error::other).and_then(|apart| Ok(apart?));
        if let Ok(id) = thread_id {
            // That thread is the last that has them.
            self.parked.clear();
            self.threads.push(id);
        }
        drop(go);
        thread_id.map(drop)
    }
}

/// Whether a thread is one of this process, which may be ending. Its number is anybody's afterwards.
fn is_ours(thread: Pid) -> bool {
    // Its cheapest question, which is answered of every process.
    let lives = || !matches!(sched_getaffinity(Some(thread)), Err(Errno::SRCH));
    let listed = || fs::symlink_metadata(format!("/proc/self/task/{thread}")).is_ok();
    // In some containers there is no /proc.
    lives() && (listed() || fs::symlink_metadata("/proc/self/task").is_err())
}

#[cfg(test)]
mod tests;
