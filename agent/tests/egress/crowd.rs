//! Many connections, and slow ones.

use crate::{
    servers::Server,
    support::{A, Core, PATIENCE, is_refused, local, wait_until},
};
use ringfence_wire::egress::{EgressCause, EgressOutcome, FromEgress, MOST_ASKING};
use std::{
    io::{Read, Write},
    net::TcpStream,
    thread,
    time::{Duration, Instant},
};

/// Bytes that differ from place to place.
fn noise(length: usize) -> Vec<u8> {
    (0..length).map(|at| (at.wrapping_mul(2_654_435_761) >> 13) as u8).collect()
}

#[test]
fn bytes_go_through_whole_beside_many_connections_that_nobody_reads_from() {
    let length = 3_000_000;
    let server = Server::new(move |mut stream| {
        // Some are told much and do not read it.
        let mut what = [0];
        if stream.read_exact(&mut what).is_err() {
            return;
        }
        if what[0] == b'd' {
            let _ = stream.write_all(&noise(length));
        }
        let mut read = stream.try_clone().unwrap();
        let _ = std::io::copy(&mut read, &mut stream);
    });
    let rule = format!("tcp:localhost:{}", server.port);
    let core = Core::start(local(&[&rule]));
    let address = core.ask("localhost", A).1.unwrap();
    let open = |what: &[u8]| {
        let mut stream = core.connect(address, server.port);
        stream.write_all(what).unwrap();
        stream
    };
    // More than there are pipes.
    let stalled: Vec<TcpStream> = (0..100).map(|_| open(b"d")).collect();
    let mut first = [0];
    for mut stream in &stalled {
        stream.read_exact(&mut first).unwrap();
    }
    // And some whose servers do not read.
    let mut stream = open(b"e");
    let sent = noise(length);
    thread::scope(|scope| {
        scope.spawn(|| {
            (&stream).write_all(&sent).unwrap();
            stream.shutdown(std::net::Shutdown::Write).unwrap();
        });
        let mut back = Vec::new();
        (&stream).read_to_end(&mut back).unwrap();
        assert!(back == sent, "{} bytes came back", back.len());
    });
    stream = open(b"e");
    drop(stream);
    for stream in stalled {
        stream.shutdown(std::net::Shutdown::Write).unwrap();
        let mut back = Vec::new();
        (&stream).read_to_end(&mut back).unwrap();
        assert!(back == sent[1..], "{} bytes came", back.len());
    }
    let fds = || std::fs::read_dir(format!("/proc/{}/fd", core.pid())).unwrap().count();
    wait_until("pipes and sockets are given back", || fds() < 60);
}

/// The source ports that the core was asked about.
fn asked(core: &Core) -> Vec<u16> {
    let port = |said| if let FromEgress::WhoIs { port, .. } = said { Some(port) } else { None };
    core.heard().into_iter().filter_map(port).collect()
}

#[test]
fn a_connection_without_room_is_asked_about_before_it_is_closed() {
    let server = Server::echo();
    let rule = format!("tcp:localhost:{}", server.port);
    // For 64 connections, which there is always room for, beside all that a worker needs descriptors for.
    let descriptors = 512 + u64::try_from(MOST_ASKING).unwrap() + 256 * 7 + 2 * 64;
    let core = Core::start_limited(local(&[&rule]), false, true, Some(descriptors));
    let _line = core.line();
    let address = core.ask("localhost", A).1.unwrap();
    let goes_round = |mut stream: &TcpStream| {
        let mut back = [0];
        stream.write_all(b"x").is_ok() && stream.read(&mut back).is_ok_and(|count| count == 1)
    };
    let open: Vec<TcpStream> = (0..64)
        .map(|_| {
            let stream = core.connect(address, server.port);
            assert!(goes_round(&stream), "the control");
            stream
        })
        .collect();
    let late = TcpStream::connect(core.tcp).unwrap();
    late.set_read_timeout(Some(PATIENCE)).unwrap();
    let port = late.local_addr().unwrap().port();
    wait_until("it is asked about", || asked(&core).contains(&port));
    core.rest(address, server.port);
    assert!(is_refused(&late), "whoever it is");
    core.recorded(EgressOutcome::Refused, Some(EgressCause::Full));
    assert!(open.iter().all(goes_round));
    drop(open);
    wait_until("there is room again", || goes_round(&core.connect(address, server.port)));
}

#[test]
fn no_more_connections_are_accepted_than_the_kernel_knows_whose_they_are() {
    let more = 80;
    // A question waits for 10 s: where this machine is too slow, once more.
    for _ in 0..10 {
        let core = Core::start(local(&["tcp:localhost:1"]));
        let address = core.ask("localhost", A).1.unwrap();
        let began = Instant::now();
        // Nobody says whose they are.
        let all: Vec<TcpStream> =
            (0..MOST_ASKING + more).map(|_| TcpStream::connect(core.tcp).unwrap()).collect();
        wait_until("so many are asked about", || asked(&core).len() >= MOST_ASKING);
        thread::sleep(Duration::from_millis(500));
        let found = asked(&core).len();
        if began.elapsed() > Duration::from_secs(8) {
            continue;
        }
        assert_eq!(found, MOST_ASKING);
        core.rest(address, 2);
        wait_until("and then the others", || asked(&core).len() == MOST_ASKING + more);
        return drop(all);
    }
    panic!("it never took less than 8 s");
}

/// How much memory 10,000 connections take that rest. Ignored: it needs 20,000 descriptors, and as many
/// in the worker. Run it by hand as `cargo test -p ringfence --test egress -- --ignored ten_thousand`.
#[test]
#[ignore = "needs 20,000 file descriptors in each of two processes"]
fn ten_thousand_connections_take_little_memory() {
    let (_, hard) = nix::sys::resource::getrlimit(nix::sys::resource::Resource::RLIMIT_NOFILE).unwrap();
    nix::sys::resource::setrlimit(nix::sys::resource::Resource::RLIMIT_NOFILE, hard, hard).unwrap();
    // Each has both of its ends here, and as many in the worker.
    let many = usize::try_from(hard).unwrap_or(usize::MAX).saturating_sub(1_000) / 2;
    let many = many.min(10_000);
    assert!(many > 1_000, "the limit of descriptors is {hard}");
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let (send, accepted) = std::sync::mpsc::channel();
    thread::spawn(move || listener.incoming().flatten().for_each(|stream| drop(send.send(stream))));
    let rule = format!("tcp:localhost:{port}");
    let core = Core::start(local(&[&rule]));
    let address = core.ask("localhost", A).1.unwrap();
    core.rest(address, port);
    let mut both = Vec::new();
    for at in 0..many {
        let mut client = core.connect(address, port);
        let mut server = accepted.recv().unwrap();
        // Each was in use once.
        client.write_all(&at.to_be_bytes()).unwrap();
        let mut got = [0; 8];
        server.read_exact(&mut got).unwrap();
        server.write_all(&got).unwrap();
        client.read_exact(&mut got).unwrap();
        assert_eq!(got, at.to_be_bytes());
        both.push((client, server));
    }
    wait_until("it counts them", || {
        core.heard()
            .iter()
            .any(|said| matches!(said, FromEgress::Counts(counts) if counts.open == many as u64))
    });
    let rss: u64 = core.status("VmRSS").trim_end_matches(" kB").parse().unwrap();
    println!("{many} connections: {} MB of memory", rss / 1024);
    assert!(rss < 100_000, "{many} connections: {rss} kB");
}
