//! Tests of the end of connections that nobody read.

use super::*;
use ringfence_test_support::{sockets, wait::wait_until};
use std::{
    io::{Read, Write},
    net::{TcpListener, TcpStream},
    process::Command,
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

/// What is sent, the peer of the TCP socket in it, and how: the connection is over at once, no thread waits in its end, and
/// the socket is closed.
fn is_over(sent: impl AsFd, mut peer: TcpStream, flags: SendFlags) {
    let (mut a, b) = UnixStream::pair().unwrap();
    a.write_all(b"some").unwrap();
    assert!(!has_descriptors(&b), "the control");
    if !send(&a, &sent, flags) {
        assert!(flags.contains(SendFlags::OOB), "only a kernel that sends nothing out of band here refuses");
        return;
    }
    drop(sent);
    assert!(has_descriptors(&b));
    discard(b);
    assert!(a.write_all(b"more").is_err());
    // Its end, or that not all was read.
    assert!(!matches!(a.read(&mut [0]), Ok(1..)));
    wait_until("only the first of the threads is left", || threads("closing") == 1);
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
        // Another test has an ender of its own, and one a thread that waits.
        assert!(threads("closing") <= 2 * (1 + MOST_ENDING) + 1);
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
    let ender = Ender::by(ours);
    (ender.clone(), Ending { threads, ..Ending::new(sent, ender) })
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
    assert!(!one.has_room() && one.threads.len() == MOST_ENDING);
    drop(go);
    waiting.join().unwrap();
    wait_until("it has ended", || !is_ours(waiting_id));
    assert!(one.has_room() && one.threads.is_empty());
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
    let given = (0..100_000).find_map(|_| ender.give(UnixStream::pair().unwrap().0).err()).unwrap();
    // Only the first waits for room.
    assert!(ender.0.is_full.load(Ordering::Relaxed));
    // With next to no room it takes one after another, and is done with all.
    ending.most_parked = 1;
    thread::spawn(move || ending.run());
    let mut left = Some(given);
    wait_until("there is room", || match ender.give(left.take().unwrap()) {
        Ok(()) => true,
        Err(given) => {
            left = Some(given);
            false
        }
    });
    assert!(!ender.0.is_full.load(Ordering::Relaxed));
    for _ in 0..1000 {
        let (mut a, b) = UnixStream::pair().unwrap();
        ender.give(b).unwrap();
        a.set_read_timeout(Some(Duration::from_secs(120))).unwrap();
        assert_eq!(a.read(&mut [0]).unwrap(), 0, "it is ended");
    }
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
