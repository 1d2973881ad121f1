//! What stays closed on a host without a daemon unless it is accepted by its own name: row 17 of the attacks that were seen.

use super::*;
use std::os::unix::net::{UnixDatagram, UnixListener};

/// `coder` as it ships, in a working directory beside the home.
fn coder() -> Host {
    let host = Host::new();
    host.profile("coder", include_str!("../../../profiles/coder.toml"));
    for dir in ["home", "work"] {
        fs::create_dir(host.path(dir)).unwrap();
    }
    host
}

/// Runs `coder` in a directory, with these flags.
fn in_coder(host: &Host, workdir: &str, flags: &[&str], words: &[&str]) -> Output {
    let mut command = host.command();
    command
        .env("HOME", host.path("home"))
        .args(["-p", "coder", "-w", workdir])
        .args(flags)
        .arg("--")
        .args(words);
    command.output().unwrap()
}

/// What the refusal says to type, word by word.
fn flags(refused: &Output) -> Vec<String> {
    assert_eq!((status(refused), stdout(refused)), (125, String::new()));
    let said = stderr(refused);
    let at = said.rfind("--accept-partial").unwrap_or_else(|| panic!("{said}"));
    said[at..].split_whitespace().map(str::to_owned).collect()
}

/// Tries every way to a socket outside; a line for each that succeeded.
const REACH: &str = r#"
import socket, sys
stream, datagram, abstract = sys.argv[1:4]
def attempt(name, way):
    try:
        way()
        print(name)
    except OSError:
        pass
attempt("stream", lambda: socket.socket(socket.AF_UNIX).connect(stream))
attempt("datagram", lambda: socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM).sendto(b"x", datagram))
attempt("pair", lambda: socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)[0].sendto(b"x", datagram))
attempt("raw pair", lambda: socket.socketpair(socket.AF_UNIX, socket.SOCK_RAW)[0].sendto(b"x", datagram))
attempt("pair of streams", lambda: socket.socketpair()[0].connect(stream))
attempt("abstract", lambda: socket.socket(socket.AF_UNIX).connect("\0" + abstract))
a, b = socket.socketpair()
a.sendall(b"own")
assert b.recv(3) == b"own"
"#;

#[test]
fn with_the_flags_that_its_refusal_prints_coder_reaches_no_unix_socket_outside() {
    let host = coder();
    // In a directory that the profile grants, as a terminal multiplexer's is in /tmp.
    let (stream, datagram) = (host.path("outside.sock"), host.path("outside.dgram"));
    let name = format!("ringfence-outside-{}", std::process::id());
    let address =
        <std::os::unix::net::SocketAddr as std::os::linux::net::SocketAddrExt>::from_abstract_name(&name);
    let _listener = UnixListener::bind(&stream).unwrap();
    let _abstract = UnixListener::bind_addr(&address.unwrap()).unwrap();
    let receiver = UnixDatagram::bind(&datagram).unwrap();
    receiver.set_nonblocking(true).unwrap();
    let (stream, datagram) = (stream.to_str().unwrap(), datagram.to_str().unwrap());
    let words = ["/usr/bin/python3", "-Ic", REACH, stream, datagram, name.as_str()];

    // The control: outside of any container each of them is there, but for what no kernel allows.
    let free = Command::new(words[0]).args(&words[1..]).output().unwrap();
    assert_eq!(succeeds(&free), "stream\ndatagram\npair\nraw pair\nabstract\n");
    while receiver.recv(&mut [0; 8]).is_ok() {}

    let needed = flags(&in_coder(&host, "work", &[], &["true"]));
    assert!(!needed.iter().any(|flag| flag.contains("unix")), "{needed:?}");
    let needed: Vec<&str> = needed.iter().map(String::as_str).collect();
    let closed = in_coder(&host, "work", &needed, &words);
    assert_eq!(succeeds(&closed), "", "nothing is reached, and a pair of its own works");
    assert!(receiver.recv(&mut [0; 8]).is_err(), "nothing arrived");

    // One of its own, once that is accepted, or where Landlock tells it by its path.
    let inside = host.path("work/inside.sock");
    let _inside = UnixListener::bind(&inside).unwrap();
    let inside = inside.to_str().unwrap();
    let open = format!("{},unix", needed.last().unwrap());
    let connect = "import socket, sys; socket.socket(socket.AF_UNIX).connect(sys.argv[1]); print('reached')";
    let reached =
        in_coder(&host, "work", &[needed[0], open.as_str()], &["/usr/bin/python3", "-Ic", connect, inside]);
    assert_eq!(succeeds(&reached), "reached\n");
}

#[test]
fn what_is_closed_though_it_is_granted_is_said_without_a_terminal_too() {
    let host = coder();
    let needed = flags(&in_coder(&host, "work", &[], &["true"]));
    let needed: Vec<&str> = needed.iter().map(String::as_str).collect();
    let output = in_coder(&host, "work", &needed, &["true"]);
    succeeds(&output);
    let said = stderr(&output);
    assert!(said.contains("open in the home and the working directory only"), "{said}");
    assert!(!said.contains("enforcement:"), "what enforces is for terminals and --verbose: {said}");
    host.confined(&[Path::new("/nonexistent/granted")], &[], r#"{ only = [] }"#, "");
    let output = host.in_confined(&["--", "true"]);
    succeeds(&output);
    let said = stderr(&output);
    assert!(
        said.contains("missing when the command started") && said.contains("/nonexistent/granted"),
        "{said}"
    );
}

#[test]
fn a_working_directory_that_is_or_holds_the_home_is_refused_unless_accepted() {
    let host = coder();
    fs::create_dir(host.path("home/project")).unwrap();
    for (workdir, is_refused) in [("home", true), (".", true), ("home/project", false), ("work", false)] {
        let refused = in_coder(&host, workdir, &[], &["true"]);
        let needed = flags(&refused);
        assert_eq!(needed[1].split(',').any(|part| part == "home"), is_refused, "{workdir}: {needed:?}");
        let said = stderr(&refused);
        let sentence = said.find("it could use: what is in the home");
        assert_eq!(
            sentence.is_some_and(|at| at < said.rfind("--accept-partial").unwrap()),
            is_refused,
            "{said}"
        );
        let needed: Vec<&str> = needed.iter().map(String::as_str).collect();
        assert_eq!(succeeds(&in_coder(&host, workdir, &needed, &["echo", "ran"])), "ran\n");
        if is_refused {
            let others = needed[1].replace(",home", "");
            assert_eq!(
                status(&in_coder(&host, workdir, &[needed[0], others.as_str()], &["echo", "ran"])),
                125
            );
        }
    }
}
