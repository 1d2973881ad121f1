//! The host's resolver, as the worker meets it: one that never answers, one that is another by now, and no thread to ask it by.

use crate::{
    servers::{Server, answer},
    support::{Core, PATIENCE, eventually, local, rest_of, say},
};
use ringfence_wire::egress::{EgressCause, EgressOutcome};
use rustix::process::{Pid, Resource, Rlimit, prlimit};
use std::{
    fs,
    io::{Read, Write},
    net::{Ipv4Addr, TcpStream, UdpSocket},
    os::unix::fs::PermissionsExt,
    path::Path,
    thread,
};

fn is_root() -> bool {
    let is = rustix::process::geteuid().is_root();
    if !is {
        eprintln!("only root can give a worker another /etc");
    }
    is
}

/// A nameserver's socket, at an address of loopback that nobody else has.
fn nameserver() -> UdpSocket {
    let [_, a, b, c] = std::process::id().to_be_bytes();
    let at = |last: u8| UdpSocket::bind((Ipv4Addr::new(127, 64 | a, b ^ last, c), 53)).ok();
    let socket = (1..=255).find_map(at).expect("an address");
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    socket
}

/// What a file is replaced by, as those who configure a host's network do.
fn replace(etc: &Path, name: &str, text: &str) {
    let new = etc.join(format!("{name}.new"));
    fs::write(&new, text).unwrap();
    fs::set_permissions(&new, fs::Permissions::from_mode(0o644)).unwrap();
    fs::rename(new, etc.join(name)).unwrap();
}

/// An /etc whose nameserver is this.
fn etc(of: &UdpSocket) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
    replace(dir.path(), "nsswitch.conf", "hosts: files dns\n");
    replace(dir.path(), "hosts", "127.0.0.1 localhost\n");
    replace(dir.path(), "resolv.conf", &resolv_conf(of));
    if let Ok(cache) = fs::read("/etc/ld.so.cache") {
        fs::write(dir.path().join("ld.so.cache"), cache).unwrap();
    }
    dir
}

fn resolv_conf(of: &UdpSocket) -> String {
    // Far longer than the worker waits.
    format!("nameserver {}\noptions timeout:30 attempts:5\n", of.local_addr().unwrap().ip())
}

/// Answers every question for an address with this one, and others with none.
fn answers(socket: UdpSocket, address: Ipv4Addr) {
    thread::spawn(move || {
        let mut packet = [0; 1500];
        while let Ok((count, from)) = socket.recv_from(&mut packet) {
            let question = &packet[..count];
            let name = question[12..].iter().position(|byte| *byte == 0).unwrap() + 13;
            let end = name + 4;
            let is_a = question[name..end] == [0, 1, 0, 1];
            let mut said = question[..end].to_vec();
            said[2..12].copy_from_slice(&[0x81, 0x80, 0, 1, 0, u8::from(is_a), 0, 0, 0, 0]);
            if is_a {
                said.extend([0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 60, 0, 4]);
                said.extend(address.octets());
            }
            socket.send_to(&said, from).unwrap();
        }
    });
}

fn goes_round(mut stream: &TcpStream) {
    stream.write_all(b"ping").unwrap();
    let mut back = [0; 4];
    stream.read_exact(&mut back).unwrap();
    assert_eq!(&back, b"ping");
}

/// A request for a name at a port: what the client is told.
fn told(core: &Core, name: &str, port: u16) -> String {
    let stream = core.open(name, port);
    say(&stream, format!("GET / HTTP/1.1\r\nHost: {name}:{port}\r\n\r\n").as_bytes());
    let (head, body) = answer(&stream);
    head + &body
}

#[test]
fn a_resolver_that_never_answers_holds_up_nobody_else_and_its_client_is_told() {
    if !is_root() {
        return;
    }
    let (server, silent) = (Server::echo(), nameserver());
    let etc = etc(&silent);
    let echo = format!("tcp:localhost:{}", server.port);
    let core = Core::start_at(local(&[&echo, "*.hangs.example:80"]), etc.path());
    thread::scope(|scope| {
        // As many as one entry has turns, and more.
        let waits: Vec<_> = (0..12)
            .map(|at| {
                let core = &core;
                scope.spawn(move || told(core, &format!("{at}.hangs.example"), 80))
            })
            .collect();
        let mut question = [0; 1500];
        let count = silent.recv(&mut question).unwrap();
        assert!(question[..count].windows(5).any(|part| part == b"hangs"), "the control: it is asked");
        // Meanwhile others go on.
        goes_round(&core.open("localhost", server.port));
        assert!(core.connections().is_empty(), "nobody was told yet");
        for wait in waits {
            let said = wait.join().unwrap();
            assert!(said.contains("did not find it within 10 s"), "{said}");
        }
    });
    goes_round(&core.open("localhost", server.port));
}

#[test]
fn a_configuration_that_is_replaced_is_the_one_that_counts() {
    if !is_root() {
        return;
    }
    let (server, before, after) = (Server::echo(), nameserver(), nameserver());
    let etc = etc(&before);
    answers(before, Ipv4Addr::LOCALHOST);
    let of = |name: &str| format!("tcp:{name}:{}", server.port);
    let granted = [of("before.example"), of("after.example"), of("listed.example")];
    let core = Core::start_at(local(&granted.each_ref().map(String::as_str)), etc.path());
    goes_round(&core.open("before.example", server.port));
    replace(etc.path(), "resolv.conf", &resolv_conf(&after));
    replace(etc.path(), "hosts", "127.0.0.1 localhost listed.example\n");
    // The first one would answer, too: it is not asked any more.
    let asked = after.try_clone().unwrap();
    thread::scope(|scope| {
        scope.spawn(|| goes_round(&core.open("after.example", server.port)));
        asked.peek(&mut [0; 12]).expect("the new nameserver is asked");
        answers(after, Ipv4Addr::LOCALHOST);
    });
    drop(asked);
    goes_round(&core.open("listed.example", server.port));
}

#[test]
fn where_there_can_be_no_thread_one_look_up_fails_and_the_worker_goes_on() {
    let server = Server::echo();
    let core = Core::start(local(&[&format!("tcp:localhost:{}", server.port)]));
    let pid = Pid::from_raw(core.pid().cast_signed());
    let size: u64 = core.status("VmSize").trim_end_matches(" kB").parse().unwrap();
    let limited = |current: Option<u64>| {
        prlimit(pid, Resource::As, Rlimit { current, maximum: None }).unwrap();
    };
    // Less than a thread's stack is left, as if its user had no more processes.
    limited(Some((size + 256) << 10));
    let stream = core.open("localhost", server.port);
    say(&stream, b"ping");
    let told = String::from_utf8(rest_of(&stream)).unwrap();
    assert!(told.contains("no thread can be started to ask it"), "{told}");
    core.recorded(EgressOutcome::Failed, Some(EgressCause::Unresolved));
    limited(None);
    eventually("another is served", || {
        let mut stream = core.open("localhost", server.port);
        let goes = stream.write_all(b"ping").is_ok() && stream.read_exact(&mut [0; 4]).is_ok();
        goes.then_some(())
    });
}
