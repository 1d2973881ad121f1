//! Clients that change what they have sent while it is judged: sendfile(2) hands over pages of a file, and no copy of them.

use crate::support::{A, Core, local, wait_until};
use rustix::net::{RecvFlags, listen, recv};
use std::{
    fs::{File, read_to_string},
    io::{Read, Write},
    net::{TcpListener, TcpStream},
    os::unix::fs::FileExt,
};

/// A file with this text.
fn file(text: &str) -> File {
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(text.as_bytes()).unwrap();
    file
}

/// Sends a file without a copy of it.
fn send(stream: &TcpStream, file: &File) {
    let length = usize::try_from(file.metadata().unwrap().len()).unwrap();
    let sent = rustix::fs::sendfile(stream, file, Some(&mut 0), length).unwrap();
    assert_eq!(sent, length);
}

/// How many connections of this machine are trying to reach that port of 127.0.0.1.
fn trying(port: u16) -> usize {
    let table = read_to_string("/proc/net/tcp").unwrap();
    let to = format!("0100007F:{port:04X}");
    let is_trying = |line: &&str| {
        let mut fields = line.split_whitespace().skip(2);
        fields.next() == Some(to.as_str()) && fields.next() == Some("02")
    };
    table.lines().filter(is_trying).count()
}

#[test]
fn what_was_sent_may_change_until_it_is_taken_which_is_the_control() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (mut server, _) = listener.accept().unwrap();
    let file = file("granted");
    send(&client, &file);
    let mut seen = [0; 7];
    recv(&server, &mut seen, RecvFlags::PEEK | RecvFlags::WAITALL).unwrap();
    assert_eq!(&seen, b"granted");
    file.write_all_at(b"victims", 0).unwrap();
    server.read_exact(&mut seen).unwrap();
    assert_eq!(&seen, b"victims", "this file system hands over a copy: try another for temporary files");
}

#[test]
fn what_is_judged_is_what_is_sent() {
    // A server that does not take connections yet: what the client says is judged before it is dialled.
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listen(&listener, 0).unwrap();
    let port = listener.local_addr().unwrap().port();
    let core = Core::start(local(&[&format!("localhost:{port}")]));
    let address = core.ask("localhost", A).1.unwrap();
    let granted = format!("GET / HTTP/1.1\r\nHost: localhost:{port}\r\n\r\n");
    let other = granted.replace("localhost", "victim.io");
    assert_eq!(granted.len(), other.len());
    for _ in 0..20 {
        let full = TcpStream::connect(("127.0.0.1", port)).unwrap();
        let file = file(&granted);
        let client = core.connect(address, port);
        send(&client, &file);
        wait_until("it was judged, and the server is dialled", || trying(port) > 0);
        file.write_all_at(other.as_bytes(), 0).unwrap();
        drop(listener.accept().unwrap());
        // The worker gives up where this machine is slow, and its server is none.
        listener.set_nonblocking(true).unwrap();
        let mut server = None;
        wait_until("it is dialled, or given up", || {
            // In this order: one that comes in between would stay in the queue, which has room for one.
            let is_over = trying(port) == 0;
            server = listener.accept().ok();
            server.is_some() || is_over
        });
        let Some((mut server, _)) = server else { continue };
        listener.set_nonblocking(false).unwrap();
        server.set_nonblocking(false).unwrap();
        let mut got = vec![0; granted.len()];
        server.read_exact(&mut got).unwrap();
        assert_eq!(String::from_utf8_lossy(&got), granted);
        return drop(full);
    }
    panic!("the server was never reached");
}
