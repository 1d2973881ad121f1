//! `ringfence-runtime bridge` between real sockets.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::{
    fs::File,
    io::{BufRead, BufReader, Read, Write},
    net::{Shutdown, TcpListener, TcpStream},
    os::unix::net::{UnixListener, UnixStream},
    path::Path,
    process::{Child, Command, Stdio},
    thread,
    time::Duration,
};

struct Bridge {
    child: Child,
    port: u16,
}

impl Bridge {
    fn start(socket: &Path, flags: &[&str], stderr: Stdio) -> Self {
        let binary = std::env::var_os("RINGFENCE_RUNTIME")
            .unwrap_or_else(|| env!("CARGO_BIN_EXE_ringfence-runtime").into());
        let mut child = Command::new(binary)
            .args(["bridge", "--port", "0", "--socket"])
            .arg(socket)
            .args(flags)
            .stdout(Stdio::piped())
            .stderr(stderr)
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let port = line.trim().strip_prefix("listening on 127.0.0.1:").unwrap().parse().unwrap();
        Self { child, port }
    }

    fn dial(&self) -> TcpStream {
        let stream = TcpStream::connect(("127.0.0.1", self.port)).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        stream
    }
}

impl Drop for Bridge {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Answers each connection with all that it sent, in capitals, once it has ended; `greeting` comes at once.
fn shout(listener: UnixListener, greeting: &'static [u8]) {
    thread::spawn(move || {
        for stream in listener.incoming() {
            thread::spawn(move || {
                let mut stream: UnixStream = stream.unwrap();
                stream.write_all(greeting).unwrap();
                let mut all = Vec::new();
                if stream.read_to_end(&mut all).is_ok() {
                    let _ = stream.write_all(&all.to_ascii_uppercase());
                }
            });
        }
    });
}

#[test]
fn bytes_go_both_ways_and_each_way_ends_on_its_own() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("http.sock");
    shout(UnixListener::bind(&socket).unwrap(), b"hello ");
    let bridge = Bridge::start(&socket, &[], Stdio::null());
    let mut clients: Vec<TcpStream> = (0..8).map(|_| bridge.dial()).collect();
    for (index, client) in clients.iter_mut().enumerate() {
        let mut greeting = [0; 6];
        client.read_exact(&mut greeting).unwrap();
        assert_eq!(&greeting, b"hello ");
        write!(client, "client {index}").unwrap();
        client.shutdown(Shutdown::Write).unwrap();
    }
    for (index, client) in clients.iter_mut().enumerate() {
        let mut rest = String::new();
        client.read_to_string(&mut rest).unwrap();
        assert_eq!(rest, format!("CLIENT {index}"));
    }
}

#[test]
fn megabytes_pass_unchanged() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("http.sock");
    shout(UnixListener::bind(&socket).unwrap(), b"");
    let bridge = Bridge::start(&socket, &[], Stdio::null());
    let mut client = bridge.dial();
    let sent: Vec<u8> =
        (0..20_000_000_u32).map(|number| (number.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    let mut writer = client.try_clone().unwrap();
    let copy = sent.clone();
    let up = thread::spawn(move || {
        writer.write_all(&copy).unwrap();
        writer.shutdown(Shutdown::Write).unwrap();
    });
    let mut heard = Vec::new();
    client.read_to_end(&mut heard).unwrap();
    up.join().unwrap();
    assert!(heard == sent.to_ascii_uppercase());
}

#[test]
fn connections_beyond_the_limit_are_closed_and_said() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("http.sock");
    shout(UnixListener::bind(&socket).unwrap(), b"in");
    let stderr = dir.path().join("stderr");
    let bridge = Bridge::start(&socket, &["--max-connections", "2"], File::create(&stderr).unwrap().into());
    let greeted = |client: &mut TcpStream| client.read_exact(&mut [0; 2]).is_ok();
    let (mut first, mut second) = (bridge.dial(), bridge.dial());
    assert!(greeted(&mut first) && greeted(&mut second));
    assert!(!greeted(&mut bridge.dial()));
    assert!(std::fs::read_to_string(&stderr).unwrap().contains("2 connections are open, which is the most"));
    // One goes, one may come.
    drop(first);
    let came = (0..1000).any(|_| {
        thread::sleep(Duration::from_millis(20));
        greeted(&mut bridge.dial())
    });
    assert!(came);
}

#[test]
fn without_a_daemon_a_connection_is_closed_and_the_bridge_stays() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("http.sock");
    let stderr = dir.path().join("stderr");
    let bridge = Bridge::start(&socket, &[], File::create(&stderr).unwrap().into());
    assert_eq!(bridge.dial().read(&mut [0; 1]).unwrap(), 0);
    let said = (0..1000).any(|_| {
        thread::sleep(Duration::from_millis(20));
        std::fs::read_to_string(&stderr).unwrap().contains("http.sock: No such file or directory")
    });
    assert!(said);
    shout(UnixListener::bind(&socket).unwrap(), b"back");
    let mut word = [0; 4];
    bridge.dial().read_exact(&mut word).unwrap();
    assert_eq!(&word, b"back");
}

#[test]
fn a_client_that_vanishes_takes_its_connection_with_it() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("http.sock");
    let listener = UnixListener::bind(&socket).unwrap();
    let bridge = Bridge::start(&socket, &[], Stdio::null());
    let client = bridge.dial();
    let (mut server, _) = listener.accept().unwrap();
    server.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    drop(client);
    assert_eq!(server.read(&mut [0; 1]).unwrap(), 0);
    // A server that goes on streaming finds out.
    let gone = (0..10_000).any(|_| {
        thread::sleep(Duration::from_millis(1));
        server.write_all(&[0; 4096]).is_err()
    });
    assert!(gone);
}

#[test]
fn a_port_that_is_taken_is_named() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port();
    let binary = std::env::var_os("RINGFENCE_RUNTIME")
        .unwrap_or_else(|| env!("CARGO_BIN_EXE_ringfence-runtime").into());
    let output = Command::new(binary)
        .args(["bridge", "--socket", "/nonexistent", "--port", &port.to_string()])
        .output()
        .unwrap();
    assert!(!output.status.success());
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.contains(&format!("cannot listen on 127.0.0.1:{port}: Address already in use")), "{said}");
}

/// Whose /proc/PID/environ is: the kernel gives root that of a process that may not be dumped.
fn owner_of_environment(child: &Child) -> u32 {
    std::os::unix::fs::MetadataExt::uid(&std::fs::metadata(format!("/proc/{}/environ", child.id())).unwrap())
}

#[test]
fn a_tool_of_the_same_user_cannot_look_into_it_or_trace_it() {
    use std::os::unix::{fs::PermissionsExt, process::CommandExt};
    // An ordinary user's, wherever this test itself is run.
    let (dir, user) = (tempfile::tempdir().unwrap(), 65534);
    let own = std::os::unix::fs::MetadataExt::uid(&std::fs::metadata(dir.path()).unwrap());
    let user = if own == 0 { user } else { own };
    std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    let binary = dir.path().join("ringfence-runtime");
    let built = std::env::var_os("RINGFENCE_RUNTIME")
        .unwrap_or_else(|| env!("CARGO_BIN_EXE_ringfence-runtime").into());
    std::fs::copy(built, &binary).unwrap();
    let start = |command: &mut Command| {
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
        if own == 0 {
            command.uid(user);
        }
        command.spawn().unwrap()
    };
    let mut other = start(Command::new("sh").args(["-c", "echo up; exec sleep 60"]));
    let mut bridge =
        start(Command::new(&binary).args(["bridge", "--port", "0", "--socket", "/nonexistent/socket"]));
    for child in [&mut other, &mut bridge] {
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut String::new()).unwrap();
    }
    let owners = [&other, &bridge].map(owner_of_environment);
    for mut child in [other, bridge] {
        child.kill().unwrap();
        child.wait().unwrap();
    }
    assert_eq!(owners, [user, 0], "another program's, and the bridge's");
}
