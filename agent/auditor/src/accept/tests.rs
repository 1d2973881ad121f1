//! Those who say nothing, and those beside them.

use super::*;
use ringfence_base::quota::{Bounds, Owners};
use std::{
    fs,
    io::{Read, Write},
    path::Path,
    sync::atomic::{AtomicUsize, Ordering},
};

/// Answers one byte with another.
struct Echo {
    permits: Permits,
    evicted: AtomicUsize,
    turned_away: AtomicUsize,
}

impl Service for Echo {
    const NAME: &'static str = "echo";
    const STACK: usize = 128 << 10;
    const SILENCE: Duration = Duration::from_secs(600);

    fn permits(&self) -> &Permits {
        &self.permits
    }

    fn evicted(&self, _: Peer) {
        self.evicted.fetch_add(1, Ordering::SeqCst);
    }

    fn turned_away(&self, _: Peer, _: UnixStream) {
        self.turned_away.fetch_add(1, Ordering::SeqCst);
    }

    fn converse(self: Arc<Self>, _: Peer, mut stream: UnixStream, permit: &Permit) -> Result<(), FrameError> {
        assert!(permit.busy());
        let mut byte = [0];
        while stream.read(&mut byte).is_ok_and(|count| count > 0) {
            stream.write_all(&byte).map_err(FrameError::Io)?;
        }
        Err(FrameError::Closed)
    }
}

/// The same, where nobody may be silent.
struct Hasty(Echo);

impl Service for Hasty {
    const NAME: &'static str = "hasty";
    const STACK: usize = Echo::STACK;
    const SILENCE: Duration = Duration::ZERO;

    fn permits(&self) -> &Permits {
        &self.0.permits
    }

    fn evicted(&self, _: Peer) {}

    fn turned_away(&self, _: Peer, _: UnixStream) {}

    fn converse(self: Arc<Self>, _: Peer, _: UnixStream, _: &Permit) -> Result<(), FrameError> {
        Ok(())
    }
}

/// A socket at which so many may be.
fn echo(each: usize) -> (tempfile::TempDir, impl Fn() -> UnixStream, Arc<Echo>) {
    let permits = Permits::within(Bounds::of(each, each), Owners::default());
    let echo = Arc::new(Echo { permits, evicted: AtomicUsize::new(0), turned_away: AtomicUsize::new(0) });
    let (folder, connect) = started(Arc::clone(&echo));
    (folder, connect, echo)
}

fn started<S: Service>(service: Arc<S>) -> (tempfile::TempDir, impl Fn() -> UnixStream) {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("socket");
    start(UnixListener::bind(&path).expect("binds"), service).expect("starts");
    let connect = move || {
        let stream = UnixStream::connect(&path).expect("connects");
        stream.set_read_timeout(Some(Duration::from_secs(600))).expect("a limit");
        stream
    };
    (folder, connect)
}

fn answers(mut stream: &UnixStream) -> bool {
    let mut byte = [0];
    stream.write_all(b"x").is_ok() && stream.read(&mut byte).is_ok_and(|count| count > 0) && byte == *b"x"
}

/// Threads of this name.
fn threads(name: &str) -> usize {
    let tasks = fs::read_dir(Path::new("/proc/self/task")).expect("this process");
    let comm = |task: fs::DirEntry| fs::read_to_string(task.path().join("comm")).unwrap_or_default();
    tasks.flatten().map(comm).filter(|comm| comm.trim_end() == name).count()
}

#[test]
fn who_says_nothing_has_no_thread_and_is_in_nobody_s_way() {
    let (_folder, connect, echo) = echo(101);
    let silent: Vec<UnixStream> = (0..100).map(|_| connect()).collect();
    let talks = connect();
    assert!(answers(&talks));
    assert_eq!(echo.permits.count(0), 101, "all before it have their places");
    // Tests of the same process use the name as well: few of their connections talk.
    assert!(threads(Echo::NAME) < 50, "{}", threads(Echo::NAME));
    assert!(answers(&silent[7]) && answers(&talks), "whenever it says something");
    drop(silent);
    while echo.permits.count(0) > 1 {
        thread::sleep(Duration::from_millis(1));
    }
    assert!(answers(&talks));
}

#[test]
fn who_is_silent_goes_for_the_next_and_who_talks_does_not() {
    let (_folder, connect, echo) = echo(3);
    let talks = connect();
    assert!(answers(&talks));
    let silent: Vec<UnixStream> = (0..7).map(|_| connect()).collect();
    for mut gone in &silent[..5] {
        assert_eq!(gone.read(&mut [0]).expect("an end"), 0);
    }
    assert!(answers(&silent[5]) && answers(&silent[6]) && answers(&talks));
    assert_eq!(echo.evicted.load(Ordering::SeqCst), 5);
    assert_eq!(echo.turned_away.load(Ordering::SeqCst), 0);
    // Where all talk there is no place.
    let mut late = connect();
    assert_eq!(late.read(&mut [0]).expect("an end"), 0);
    assert_eq!(echo.turned_away.load(Ordering::SeqCst), 1);
    assert!(answers(&talks));
}

#[test]
fn who_is_silent_for_too_long_is_hung_up_on() {
    let permits = Permits::within(Bounds::of(9, 9), Owners::default());
    let echo = Echo { permits, evicted: AtomicUsize::new(0), turned_away: AtomicUsize::new(0) };
    let hasty = Arc::new(Hasty(echo));
    let (_folder, connect) = started(Arc::clone(&hasty));
    for _ in 0..20 {
        let mut silent = connect();
        assert_eq!(silent.read(&mut [0]).expect("an end"), 0);
    }
    while hasty.0.permits.count(0) > 0 {
        thread::sleep(Duration::from_millis(1));
    }
}
