//! Memory that a worker has for what clients and servers say: how much, and for how long. Each connection has 7 kB of its own; what
//! needs more borrows it, for 60 s at most, of a quarter of what the worker may have.

use crate::{
    servers::{Http, Server, Tls, answer},
    support::{A, Core, PATIENCE, eventually, local, rest_of, say, wait_until},
};
use ringfence_wire::egress::{EgressCause, EgressOutcome, EgressRecord};
use rustix::{io::ioctl_fionread, net::sockopt};
use std::{
    io::{Read, Write},
    net::{TcpListener, TcpStream},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
        mpsc,
    },
    thread,
    time::{Duration, Instant},
};

/// Of which 7 MiB can be borrowed, and there are 896 connections.
const MEMORY: u64 = 28 << 20;
/// Within this nothing is cut that has borrowed: longer than that takes where the machine is not too slow.
const UNCUT: Duration = Duration::from_secs(50);

/// A server that neither reads nor says anything.
struct Silent {
    port: u16,
    streams: Arc<Mutex<Vec<TcpStream>>>,
}

impl Silent {
    fn new() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let streams = Arc::<Mutex<Vec<TcpStream>>>::default();
        let kept = Arc::clone(&streams);
        thread::spawn(move || listener.incoming().flatten().for_each(|it| kept.lock().unwrap().push(it)));
        Self { port, streams }
    }

    /// How many of its connections have had so many bytes sent, at least.
    fn told(&self, bytes: u64) -> usize {
        let streams = self.streams.lock().unwrap();
        streams.iter().filter(|stream| ioctl_fionread(stream).is_ok_and(|there| there >= bytes)).count()
    }
}

/// As many descriptors as this process can have; whether that is enough for so many connections, which have both ends here.
fn descriptors_for(connections: u64) -> bool {
    let (_, hard) = nix::sys::resource::getrlimit(nix::sys::resource::Resource::RLIMIT_NOFILE).unwrap();
    nix::sys::resource::setrlimit(nix::sys::resource::Resource::RLIMIT_NOFILE, hard, hard).unwrap();
    let is_enough = hard >= 2 * connections + 6_000;
    if !is_enough {
        eprintln!("skipped: {hard} descriptors are too few");
    }
    is_enough
}

/// Tries until it did not take too long for what was to be seen.
fn in_time<T>(mut attempt: impl FnMut() -> T) -> T {
    for _ in 0..10 {
        let begun = Instant::now();
        let made = attempt();
        if begun.elapsed() < UNCUT {
            return made;
        }
        eprintln!("once more: it took {:?}", begun.elapsed());
    }
    panic!("this machine is too slow");
}

/// What a count comes to.
fn settled(count: impl Fn() -> usize) -> usize {
    let mut before = count();
    loop {
        thread::sleep(Duration::from_secs(1));
        let now = count();
        if now == before {
            return now;
        }
        before = now;
    }
}

/// A head of about so many bytes, without its end.
fn half(port: u16, bytes: usize, lines: &str) -> String {
    let head = format!("GET /large HTTP/1.1\r\nHost: localhost:{port}\r\n{lines}X: ");
    head + &"x".repeat(bytes)
}

fn get(port: u16) -> String {
    format!("GET /small HTTP/1.1\r\nHost: localhost:{port}\r\n\r\n")
}

fn is_full(record: &EgressRecord) -> bool {
    matches!(record, EgressRecord::Connection { cause: Some(EgressCause::Full), .. })
}

fn served(core: &Core, port: u16) {
    let stream = core.open("localhost", port);
    say(&stream, get(port).as_bytes());
    assert_eq!(answer(&stream).1, "/small");
}

#[test]
fn a_part_of_a_second_hello_is_counted_and_others_go_on() {
    const MANY: usize = 860;
    if !descriptors_for(MANY as u64) {
        return;
    }
    let (silent, tls, http) = (Silent::new(), Tls::new(&["localhost"]), Http::new());
    let granted = [silent.port, tls.server.port, http.port()].map(|port| format!("localhost:{port}"));
    let core = Core::start_within(local(&[&granted[0], &granted[1], &granted[2]]), MEMORY);
    let address = core.ask("localhost", A).1.unwrap();
    // 16 KiB less a byte of another hello, of which all goes on as it comes.
    let first = Tls::hello(&mut tls.client("localhost"));
    let part = [&[22, 3, 3, 0x40, 0, 1, 0, 0x3f, 0xfc][..], &[7; 16_379]].concat();
    let said = [first, part].concat();
    let (told, cut) = in_time(|| {
        silent.streams.lock().unwrap().clear();
        let open = |_| {
            let stream = core.connect(address, silent.port);
            say(&stream, &said);
            stream
        };
        let greedy: Vec<TcpStream> = (0..MANY).map(open).collect();
        wait_until("all are dialled", || silent.streams.lock().unwrap().len() == MANY);
        let told = settled(|| silent.told(said.len() as u64));
        // Whoever has no more than its own is not in anybody's way, be it new or not.
        Tls::talk(tls.client("localhost"), core.connect(address, tls.server.port), "hello").unwrap();
        served(&core, http.port());
        // The end of a connection takes no memory, or those that are over would keep theirs until they are cut.
        drop(greedy);
        wait_until("their memory is given back", || silent.told(said.len() as u64) == MANY);
        (told, core.connections().iter().any(is_full))
    });
    // Each has to borrow 9 kB of 7,168.
    assert!((700..=796).contains(&told), "{told} of {MANY}");
    assert!(!cut, "{:?}", core.connections());
    Tls::talk(tls.client("localhost"), core.connect(address, tls.server.port), "the control").unwrap();
}

#[test]
fn large_heads_wait_for_each_other_and_for_no_longer_than_one_may_take() {
    const MANY: usize = 200;
    if !descriptors_for(MANY as u64) {
        return;
    }
    let http = Http::new();
    let port = http.port();
    let core = Core::start_within(local(&[&format!("localhost:{port}")]), MEMORY);
    let resting = core.open("localhost", port);
    say(&resting, get(port).as_bytes());
    assert_eq!(answer(&resting).1, "/small");
    // Each has to borrow 53 kB of 7,168 for half a head.
    let (half, rest) = (half(port, 60_000, ""), "\r\n\r\n");
    let (begun, late) = in_time(|| {
        let begun: Vec<TcpStream> = (0..MANY)
            .map(|_| {
                let stream = core.open("localhost", port);
                say(&stream, half.as_bytes());
                stream
            })
            .collect();
        let late = core.open("localhost", port);
        say(&late, (half.clone() + rest).as_bytes());
        served(&core, port);
        late.set_read_timeout(Some(Duration::from_secs(1))).unwrap();
        assert!(late.peek(&mut [0]).is_err(), "there is none to be borrowed");
        say(&resting, get(port).as_bytes());
        assert_eq!(answer(&resting).1, "/small");
        (begun, late)
    });
    // Half of a head is refused after 30 s, and the others have their turn.
    late.set_read_timeout(Some(PATIENCE)).unwrap();
    let head = answer(&late).0;
    assert!(head.starts_with("HTTP/1.1 200") || head.contains("x-ringfence-error: full"), "{head}");
    for stream in &begun {
        assert!(answer(stream).0.contains("x-ringfence-error: "), "it is refused");
    }
    core.recorded(EgressOutcome::Refused, Some(EgressCause::Malformed));
    let again = core.open("localhost", port);
    say(&again, (half + rest).as_bytes());
    assert_eq!(answer(&again).1, "/large", "now there is");
}

#[test]
fn a_later_head_has_its_time_however_it_dribbles() {
    let http = Http::new();
    let core = Core::start(local(&[&format!("localhost:{}", http.port())]));
    let stream = core.open("localhost", http.port());
    say(&stream, get(http.port()).as_bytes());
    assert_eq!(answer(&stream).1, "/small");
    let ended = Arc::new(AtomicBool::new(false));
    let (mut writes, is_over) = (stream.try_clone().unwrap(), Arc::clone(&ended));
    let dribbles = thread::spawn(move || {
        let half = half(80, 100_000, "");
        for byte in half.as_bytes() {
            if is_over.load(Ordering::SeqCst) || writes.write_all(&[*byte]).is_err() {
                return;
            }
            thread::sleep(Duration::from_millis(20));
        }
    });
    // A byte every now and then is no new beginning.
    let _ = rest_of(&stream);
    ended.store(true, Ordering::SeqCst);
    dribbles.join().unwrap();
    core.recorded(EgressOutcome::Ended, Some(EgressCause::Malformed));
}

/// Answers no request that it reads, until it is told to, and dribbles the head of its answer to others for ever.
fn reads_slowly(go: mpsc::Receiver<()>) -> Server {
    let go = Mutex::new(go);
    Server::new(move |mut stream| {
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            let mut byte = [0];
            if stream.read_exact(&mut byte).is_err() {
                return;
            }
            head.push(byte[0]);
        }
        if head.starts_with(b"GET /large") {
            let _ = stream.write_all(b"HTTP/1.1 101 Switching Protocols\r\nX: ");
            let _ = stream.write_all(&[b'x'; 60_000]);
            // Its client hears of it only as it goes on.
            let _ = stream.read(&mut [0]);
            return;
        }
        go.lock().unwrap().recv().unwrap();
        let said = b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n";
        let _ = stream.write_all(said);
        let mut read = stream.try_clone().unwrap();
        let _ = std::io::copy(&mut read, &mut stream);
    })
}

#[test]
fn servers_that_do_not_read_or_answer_are_in_nobodys_way() {
    const MANY: usize = 170;
    if !descriptors_for(3 * MANY as u64) {
        return;
    }
    let (tell, go) = mpsc::channel();
    let (silent, slow, http) = (Silent::new(), reads_slowly(go), Http::new());
    let granted = [silent.port, slow.port, http.port()].map(|port| format!("localhost:{port}"));
    let core = Core::start_within(local(&[&granted[0], &granted[1], &granted[2]]), MEMORY);
    let upgrade = "Upgrade: websocket\r\nConnection: Upgrade\r\n";
    // One that waits for its server's word, with something that waits behind it, and may do so.
    let waits = core.open("localhost", slow.port);
    let what = format!("GET /wait HTTP/1.1\r\nHost: localhost:{}\r\n{upgrade}\r\n", slow.port);
    say(&waits, (what + "behind").as_bytes());
    // Bodies of a length and in chunks, to servers that do not read them.
    let bodies: Vec<(TcpStream, &str)> = ["Content-Length: 100000000", "Transfer-Encoding: chunked"]
        .into_iter()
        .cycle()
        .take(40)
        .map(|kind| {
            let mut stream = core.open("localhost", silent.port);
            let head =
                format!("PUT / HTTP/1.1\r\nHost: localhost:{}\r\n{kind}\r\n\r\n5f5e100\r\n", silent.port);
            sockopt::set_socket_send_buffer_size(&stream, 65_536).unwrap();
            stream.set_write_timeout(Some(Duration::from_millis(1))).unwrap();
            stream.write_all(head.as_bytes()).unwrap();
            while stream.write(&[7; 65_536]).is_ok() {}
            (stream, kind)
        })
        .collect();
    served(&core, http.port());
    // Heads of answers that do not end: each has to borrow 53 kB of 7,168.
    let dribbles: Vec<TcpStream> = (0..MANY)
        .map(|_| {
            let stream = core.open("localhost", slow.port);
            say(&stream, (half(slow.port, 10, upgrade) + "\r\n\r\n").as_bytes());
            stream
        })
        .collect();
    served(&core, http.port());
    // A large one may have to wait for those, and does not wait for ever.
    let large = core.open("localhost", http.port());
    say(&large, (half(http.port(), 60_000, "") + "\r\n\r\n").as_bytes());
    let head = answer(&large).0;
    assert!(head.starts_with("HTTP/1.1 200") || head.contains("x-ringfence-error: full"), "{head}");
    for stream in dribbles {
        assert!(rest_of(&stream).len() < 62_000);
    }
    core.recorded(EgressOutcome::Ended, Some(EgressCause::Full));
    let large = core.open("localhost", http.port());
    say(&large, (half(http.port(), 60_000, "") + "\r\n\r\n").as_bytes());
    assert_eq!(answer(&large).1, "/large");
    // Those that borrowed nothing are still there.
    tell.send(()).unwrap();
    assert!(answer(&waits).0.starts_with("HTTP/1.1 101"));
    let mut behind = [0; 6];
    (&waits).read_exact(&mut behind).unwrap();
    assert_eq!(&behind, b"behind");
    let reads = thread::spawn(move || {
        for mut stream in std::mem::take(&mut *silent.streams.lock().unwrap()) {
            thread::spawn(move || std::io::copy(&mut stream, &mut std::io::sink()));
        }
    });
    reads.join().unwrap();
    for (stream, kind) in bodies.iter().take(8) {
        stream.set_write_timeout(Some(PATIENCE)).unwrap();
        for _ in 0..100 {
            let mut stream = stream;
            stream.write_all(&[7; 65_536]).unwrap_or_else(|error| panic!("{kind}: {error}"));
        }
    }
}

#[test]
fn a_client_that_is_gone_is_noticed_while_its_server_is_silent() {
    let silent = Silent::new();
    let core = Core::start(local(&[&format!("localhost:{}", silent.port)]));
    let closed = |breaks: bool, what: &str| {
        let before = silent.streams.lock().unwrap().len();
        let stream = core.open("localhost", silent.port);
        say(&stream, what.as_bytes());
        wait_until("the server has it", || {
            let streams = silent.streams.lock().unwrap();
            streams.get(before).is_some_and(|stream| ioctl_fionread(stream).is_ok_and(|there| there > 40))
        });
        if breaks {
            sockopt::set_socket_linger(&stream, Some(Duration::ZERO)).unwrap();
        }
        drop(stream);
        let mut server = silent.streams.lock().unwrap()[before].try_clone().unwrap();
        server.set_read_timeout(Some(PATIENCE)).unwrap();
        eventually("the server learns of it", || match server.read(&mut [0; 4096]) {
            Ok(1..) => None,
            Ok(0) => Some(true),
            Err(error) => Some(error.kind() == std::io::ErrorKind::ConnectionReset),
        })
    };
    let request = format!("GET / HTTP/1.1\r\nHost: localhost:{}\r\n", silent.port);
    let upgrade = "Upgrade: websocket\r\nConnection: Upgrade\r\n\r\nbehind";
    // What waits behind the request is kept, so that nothing is read; the client breaks off, or closes in order, which only the
    // kernel can tell from one that has said all that it has to say.
    for breaks in [true, false] {
        assert!(closed(breaks, &[&request, upgrade].concat()));
    }
    wait_until("both are on record", || core.connections().len() == 2);
    core.recorded(EgressOutcome::Passed, None);
    // The control: one that has only said all is not taken for one that is gone.
    let patient = core.open("localhost", silent.port);
    say(&patient, [&request, "\r\n"].concat().as_bytes());
    patient.shutdown(std::net::Shutdown::Write).unwrap();
    wait_until("the server has it", || silent.streams.lock().unwrap().len() == 3);
    thread::sleep(Duration::from_secs(5));
    let mut server = silent.streams.lock().unwrap()[2].try_clone().unwrap();
    server.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok").unwrap();
    assert_eq!(answer(&patient).1, "ok");
    assert_eq!(core.connections().len(), 2);
}
