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
    sync::{Arc, Mutex, OnceLock, PoisonError, TryLockError, mpsc},
    thread,
    time::Duration,
};

/// Unread bytes that are looked at for descriptors.
const LOOKED_AT: usize = 64 << 10;
/// Descriptors that may be open when it starts, of which the thread that has connections ended keeps no copy.
const OPEN_BEFORE: RawFd = 4096;
/// Threads that may be ending at once; what is sent meanwhile is parked, where it is in nobody's way.
const MOST_ENDING: usize = 64;
/// How long to rest where the system has no room for one more thread: it passes.
const REST: Duration = Duration::from_millis(100);
/// Most connections that are parked: a table of descriptors that is full has the kernel close what is sent then and there.
const MOST_PARKED: usize = 16 << 10;
/// How long whoever gives a connection may wait for the thread that takes it, which waits for nobody's peer.
const GIVING: Duration = Duration::from_secs(1);
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
    match waiting.spawn(move || drop(from.recv())) {
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

/// Where connections are sent that are to be ended. It is locked from when one is sent until its sender has let go of it.
#[derive(Debug, Clone)]
struct Ender(Arc<Mutex<UnixStream>>);

impl Ender {
    /// Starts the thread that has others end what it is sent.
    ///
    /// # Errors
    /// As socketpair(2), pthread_create(3) and unshare(2): some containers refuse it.
    fn start() -> io::Result<Self> {
        let (ours, theirs) = UnixStream::pair()?;
        ours.set_write_timeout(Some(GIVING))?;
        let ender = Self(Arc::new(Mutex::new(ours)));
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
                Ending { sent: theirs, sender: itself, parked: Vec::new(), threads: Vec::new() }.run();
            }
        })?;
        is_ready.recv().map_err(io::Error::other)??;
        Ok(ender)
    }

    /// Gives it a connection, which is given back if there is no room in time.
    fn give(&self, stream: UnixStream) -> Result<(), UnixStream> {
        let ender = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match rights::send(&*ender, &[IoSlice::new(&[0])], &[stream.as_fd()], SendFlags::empty()) {
            // While it is locked: whoever has received it must be the last that has it.
            Ok(_) => {
                drop(stream);
                Ok(())
            }
            Err(_) => Err(stream),
        }
    }

    /// Whether whoever sent anything has let go of it. No: or waits for room.
    fn let_go(&self) -> bool {
        !matches!(self.0.try_lock(), Err(TryLockError::WouldBlock))
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
}

impl Ending {
    fn run(mut self) {
        loop {
            let waiting = if self.parked.is_empty() { RecvFlags::empty() } else { RecvFlags::DONTWAIT };
            let has_room = self.parked.len() < MOST_PARKED;
            match has_room.then(|| rights::receive(&self.sent, &mut [0], waiting)) {
                Some(Ok(received)) if received.bytes == 0 => return,
                Some(Ok(received)) => self.parked.extend(received.descriptors),
                Some(Err(Errno::INTR)) => {}
                Some(Err(_)) | None => match self.end_parked() {
                    Ok(true) => {}
                    Ok(false) | Err(_) => thread::sleep(REST),
                },
            }
        }
    }

    /// Whether one more may end: what is closed may keep it, on a file system whose server is the sender's.
    fn has_room(&mut self) -> bool {
        self.threads.retain(|&thread| is_ours(thread));
        self.threads.len() < MOST_ENDING
    }

    /// Has a thread end with all that is parked. False: not now.
    fn end_parked(&mut self) -> io::Result<bool> {
        if !self.has_room() || !self.sender.let_go() {
            return Ok(false);
        }
        let (has_all, all) = mpsc::channel();
        let (go, told) = mpsc::channel::<()>();
        let thread = thread::Builder::new().name("closing".into()).stack_size(STACK);
        let thread = thread.spawn(move || {
            // Whoever started it goes first; what is ended is its sender's doing.
            precedence::usual();
            let apart = unshare(CloneFlags::CLONE_FILES).map(|()| gettid());
            let _ = has_all.send(apart);
            // Nothing is sent: it ends when the other end does.
            let _ = told.recv();
        })?;
        let thread_id = all.recv().map_err(io::Error::other).and_then(|apart| Ok(apart?));
        if let Ok(id) = thread_id {
            // That thread is the last that has them.
            self.parked.clear();
            self.threads.push(id);
        }
        drop(go);
        let _ = thread.join();
        thread_id.map(|_| true)
    }
}

/// Whether a thread is one of this process, which may be ending. Its number is anybody's afterwards.
fn is_ours(thread: Pid) -> bool {
    // Its cheapest question, which is answered of every process.
    let lives = || sched_getaffinity(Some(thread)).is_ok();
    let listed = || fs::symlink_metadata(format!("/proc/self/task/{thread}")).is_ok();
    // In some containers there is no /proc.
    lives() && (listed() || fs::symlink_metadata("/proc/self/task").is_err())
}

#[cfg(test)]
mod tests {
    use super::*;
    use ringfence_test_support::sockets;
    use std::{
        io::{Read, Write},
        net::{TcpListener, TcpStream},
        process::Command,
        time::Instant,
    };

    fn lingering() -> (TcpStream, TcpStream) {
        sockets::lingering(Duration::from_secs(600))
    }

    fn send(to: &UnixStream, what: impl AsFd, flags: SendFlags) -> bool {
        rights::send(to, &[IoSlice::new(b"!")], &[what.as_fd()], flags).is_ok()
    }

    /// Threads of this name.
    fn threads(name: &str) -> usize {
        let tasks = fs::read_dir("/proc/self/task").unwrap();
        let names = tasks.filter_map(|task| fs::read_to_string(task.unwrap().path().join("comm")).ok());
        names.filter(|one| one.trim() == name).count()
    }

    fn until(what: &str, holds: impl Fn() -> bool) {
        let begun = Instant::now();
        while !holds() {
            assert!(begun.elapsed() < Duration::from_secs(120), "{what}: not within two minutes");
            thread::sleep(Duration::from_millis(10));
        }
    }

    /// What is sent, the peer of the TCP socket in it, and how: the connection is over at once, no thread waits in its end, and
    /// the socket is closed.
    fn is_over(sent: impl AsFd, mut peer: TcpStream, flags: SendFlags) {
        let (mut a, b) = UnixStream::pair().unwrap();
        a.write_all(b"some").unwrap();
        assert!(!has_descriptors(&b), "the control");
        if !send(&a, &sent, flags) {
            assert!(
                flags.contains(SendFlags::OOB),
                "only a kernel that sends nothing out of band here refuses"
            );
            return;
        }
        drop(sent);
        assert!(has_descriptors(&b));
        discard(b);
        assert!(a.write_all(b"more").is_err());
        // Its end, or that not all was read.
        assert!(!matches!(a.read(&mut [0]), Ok(1..)));
        until("only the first of the threads is left", || threads("closing") == 1);
        peer.set_read_timeout(Some(Duration::from_secs(120))).unwrap();
        io::copy(&mut peer, &mut io::sink()).unwrap();
    }

    #[test]
    fn however_many_nobody_read_few_threads_end_them() {
        prepare();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut peers = Vec::new();
        for _ in 0..300 {
            let (a, b) = UnixStream::pair().unwrap();
            let socket = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            peers.push(listener.accept().unwrap().0);
            assert!(send(&a, &socket, SendFlags::empty()));
            drop((socket, a));
            discard(b);
            assert!(threads("closing") <= 1 + MOST_ENDING);
        }
        for mut peer in peers {
            peer.set_read_timeout(Some(Duration::from_secs(120))).unwrap();
            assert_eq!(io::copy(&mut peer, &mut io::sink()).unwrap(), 0, "it is closed");
        }
    }

    #[test]
    fn what_nobody_read_holds_up_nobody_who_ends_a_connection() {
        prepare();
        for flags in [SendFlags::empty(), SendFlags::OOB] {
            let (socket, peer) = lingering();
            is_over(socket, peer, flags);
            // One within the queue of another, which ends with it.
            let ((socket, peer), (c, d)) = (lingering(), UnixStream::pair().unwrap());
            assert!(send(&c, &socket, SendFlags::empty()));
            drop((socket, c));
            is_over(d, peer, flags);
        }
    }

    fn ending(threads: Vec<Pid>) -> (Ender, Ending) {
        let (ours, sent) = UnixStream::pair().unwrap();
        ours.set_write_timeout(Some(Duration::from_millis(10))).unwrap();
        let ender = Ender(Arc::new(Mutex::new(ours)));
        (ender.clone(), Ending { sent, sender: ender, parked: Vec::new(), threads })
    }

    #[test]
    fn no_more_threads_end_at_once_than_there_is_room_for() {
        let (go, told) = mpsc::channel::<()>();
        let (id, ids) = mpsc::channel();
        let waiting = thread::spawn(move || {
            id.send(gettid()).unwrap();
            let _ = told.recv();
        });
        let waiting_id = ids.recv().unwrap();
        assert!(is_ours(waiting_id));
        let mut one = ending(vec![waiting_id; MOST_ENDING]).1;
        assert!(!one.end_parked().unwrap() && one.threads.len() == MOST_ENDING);
        drop(go);
        waiting.join().unwrap();
        until("it has ended", || !is_ours(waiting_id));
        assert!(one.end_parked().unwrap() && one.threads.len() == 1);
        // Numbers that are another process's by now.
        let mut other = Command::new("sleep").arg("600").spawn().unwrap();
        let its = Pid::from_child(&other);
        assert!(sched_getaffinity(Some(its)).is_ok() && !is_ours(its));
        assert!(ending(vec![its; MOST_ENDING]).1.has_room());
        other.kill().unwrap();
        other.wait().unwrap();
    }

    #[test]
    fn one_for_which_there_is_no_room_is_given_back() {
        let (ender, mut ending) = ending(Vec::new());
        let given = (0..100_000).find_map(|_| ender.give(UnixStream::pair().unwrap().0).err());
        assert!(given.is_some(), "somebody read them");
        assert!(rights::receive(&ending.sent, &mut [0], RecvFlags::empty()).unwrap().descriptors.len() == 1);
        ender.give(given.unwrap()).unwrap();
        // Somebody who has not let go of what was received keeps it from being ended.
        let held = ender.0.lock().unwrap();
        assert!(!ending.end_parked().unwrap());
        drop(held);
        assert!(ending.end_parked().unwrap());
    }

    #[test]
    fn one_that_has_to_wait_has_a_thread_that_does() {
        let (a, b) = UnixStream::pair().unwrap();
        let (socket, peer) = lingering();
        assert!(send(&a, &socket, SendFlags::empty()));
        drop((socket, a));
        let begun = Instant::now();
        wait_for(b);
        assert!(begun.elapsed() < Duration::from_secs(120));
        drop(peer);
    }

    #[test]
    fn the_last_close_of_such_a_socket_is_slow_elsewhere() {
        let (a, b) = UnixStream::pair().unwrap();
        let (socket, peer) = lingering();
        assert!(send(&a, &socket, SendFlags::empty()));
        drop(socket);
        let slow = thread::Builder::new().name("slow".into()).spawn(move || drop(b)).unwrap();
        thread::sleep(Duration::from_secs(1));
        assert!(!slow.is_finished(), "the test above shows nothing");
        // Its peer's end is its own.
        drop(peer);
        slow.join().unwrap();
    }
}
