//! Clients that mean ill: torn requests, stopped processes, other callers' tools, numbers that were used before.

use crate::support::{Runner, command, decode, text, wait_until};
use ringfence_wire::rights;
use rustix::net::{SendFlags, sockopt::set_socket_linger};
use std::{
    fs,
    io::{BufRead, BufReader, IoSlice, Read, Write},
    net::{TcpListener, TcpStream},
    os::{fd::AsFd, unix::net::UnixStream},
    path::Path,
    process::Stdio,
    time::{Duration, Instant},
};

/// Sends byte by byte.
fn torn(runner: &Runner, request: &[u8]) -> UnixStream {
    let mut stream = runner.connect();
    for byte in request {
        stream.write_all(std::slice::from_ref(byte)).unwrap();
    }
    stream
}

#[test]
fn where_a_request_is_torn_changes_nothing() {
    let runner = Runner::start(&[]);
    let line = b"printf\t%s\ta\t\tb\n";
    let mut answer = Vec::new();
    torn(&runner, line).read_to_end(&mut answer).unwrap();
    assert_eq!(answer, runner.exchange(line));
    let ask = br#"{"ask":{"cmd":"cat","args":["a"],"left_out":0,"cwd":"/","end":false}}"#;
    let frame = [&u32::try_from(ask.len()).unwrap().to_be_bytes()[..], ask].concat();
    // The connection stays: the run is over when its process ends.
    let (mut stream, mut length) = (torn(&runner, &frame), [0; 4]);
    stream.read_exact(&mut length).unwrap();
    let mut told = vec![0; u32::from_be_bytes(length) as usize];
    stream.read_exact(&mut told).unwrap();
    let told: serde_json::Value = serde_json::from_slice(&told).unwrap();
    assert!(told["go"]["run"].is_u64(), "{told}");
}

/// A v1 tool that runs until it is ended, and its process.
fn long_tool(runner: &Runner, name: &str) -> (UnixStream, String) {
    let mut stream = runner.connect();
    let file = runner.work().join(name);
    let script = format!("sh\t-c\techo $$ > {0}.new; mv {0}.new {0}; exec sleep 600\n", file.display());
    stream.write_all(script.as_bytes()).unwrap();
    wait_until("the tool runs", || file.exists());
    let proc = format!("/proc/{}", fs::read_to_string(file).unwrap().trim());
    (stream, proc)
}

#[test]
fn nobody_ends_another_caller_s_tool() {
    let runner = Runner::start(&[]);
    let (first, of_first) = long_tool(&runner, "first");
    let (second, of_second) = long_tool(&runner, "second");
    // The end of a run that is not the sender's: there is no number to name one by, and no `done` without an `ask`.
    for body in [
        br#"{"done":{"status":0,"signal":null,"bytes":0,"error_bytes":0,"cut":false,"spill":null}}"#
            .as_slice(),
        br#"{"done":{"run":1,"status":0,"signal":null,"bytes":0,"error_bytes":0,"cut":false,"spill":null}}"#,
        br#"{"cancel":{"run":1}}"#,
    ] {
        let answer = runner.exchange(&[&u32::try_from(body.len()).unwrap().to_be_bytes()[..], body].concat());
        assert!(text(&answer).contains("nothing was run"), "{}", text(&answer));
    }
    // Who hangs up before there is an answer, and who asked for the same.
    drop(runner.connect());
    let mut gone = runner.connect();
    gone.write_all(b"sleep\t600\n").unwrap();
    drop(gone);
    assert_eq!(decode(&runner.exchange(b"echo\thi\n")).0, "hi\n");
    assert!(fs::exists(&of_first).unwrap() && fs::exists(&of_second).unwrap());
    // The control: one's own tool ends with its connection, and the other's goes on.
    drop(first);
    wait_until("its tool is gone", || !fs::exists(&of_first).unwrap());
    assert!(fs::exists(&of_second).unwrap());
    drop(second);
    wait_until("and then the other", || !fs::exists(&of_second).unwrap());
}

/// Python that asks for much, says that it did, and reads once it is told to: how much came.
const SLOW: &str = "import socket,sys
s=socket.socket(socket.AF_UNIX);s.connect(sys.argv[1]);s.sendall(b'head\\t-c\\t3000000\\t/dev/zero\\n')
print('asked',flush=True);sys.stdin.readline();print(len(s.makefile('rb').read()),flush=True)";

#[test]
fn stopped_clients_hold_nobody_up() {
    let runner = Runner::start(&["--truncate", "off"]);
    // What listens, and the daemon's end of each connection: they have its path as their name.
    let socket = runner.socket().display().to_string();
    let open = || {
        let all = fs::read_to_string("/proc/net/unix").unwrap();
        all.lines().filter(|line| line.ends_with(&socket)).count()
    };
    let mut clients: Vec<_> = (0..4)
        .map(|_| {
            let mut python = command("python3");
            python.args(["-c", SLOW]).arg(runner.socket()).stdin(Stdio::piped()).stdout(Stdio::piped());
            let mut child = python.spawn().unwrap();
            let mut said = BufReader::new(child.stdout.take().unwrap());
            let mut line = String::new();
            said.read_line(&mut line).unwrap();
            assert_eq!(line, "asked\n");
            let pid = rustix::process::Pid::from_child(&child);
            rustix::process::kill_process(pid, rustix::process::Signal::STOP).unwrap();
            (child, said, pid)
        })
        .collect();
    for _ in 0..10 {
        assert_eq!(decode(&runner.exchange(b"echo\thi\n")).0, "hi\n");
    }
    wait_until("they are dropped", || open() == 1);
    // The control: the daemon gave up on them, and they on nothing.
    for (child, said, pid) in &mut clients {
        rustix::process::kill_process(*pid, rustix::process::Signal::CONT).unwrap();
        drop(child.stdin.take());
        let mut line = String::new();
        said.read_line(&mut line).unwrap();
        assert!(line.trim().parse::<u64>().unwrap() < 3_000_000, "{line}");
        child.wait().unwrap();
    }
}

#[test]
fn a_socket_that_waits_in_its_close_holds_nobody_up() {
    let runner = Runner::start(&[]);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let socket = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let _peer = listener.accept().unwrap();
    socket.set_nonblocking(true).unwrap();
    while (&socket).write(&[0; 64 << 10]).is_ok() {}
    set_socket_linger(&socket, Some(Duration::from_secs(120))).unwrap();
    let line = b"echo\thi\n";
    let mut caller = runner.connect();
    rights::send(&caller, &[IoSlice::new(line)], &[socket.as_fd()], SendFlags::empty()).unwrap();
    // The daemon has the last of it.
    drop(socket);
    let begun = Instant::now();
    assert_eq!(decode(&runner.exchange(line)).0, "hi\n");
    let mut answer = Vec::new();
    caller.read_to_end(&mut answer).unwrap();
    assert_eq!(decode(&answer).0, "hi\n");
    assert!(begun.elapsed() < Duration::from_secs(60), "{:?}", begun.elapsed());
}

/// Python, first process of a PID namespace: a daemon, a caller that is confined, connects and ends, and another process of
/// its number. What the daemon says to the caller's request; with `alive`, to one of the other process's own.
const REUSED: &str = "import ctypes,os,socket,subprocess,sys,time
daemon,path,log,how=sys.argv[1:5]
subprocess.Popen([daemon,'--socket',path,'--log',log])
def connected():
 s=socket.socket(socket.AF_UNIX)
 while True:
  try: s.connect(path);return s
  except OSError: time.sleep(0.01)
ours,theirs=socket.socketpair()
first=os.fork()
if first==0:
 if how=='reused': assert ctypes.CDLL(None).prctl(38,1,0,0,0)==0
 s=connected();s.sendall(b'echo\\t')
 socket.send_fds(theirs,[b'x'],[s.fileno()]);theirs.recv(1);os._exit(0)
fd=socket.recv_fds(ours,1,1)[1][0];s=socket.socket(fileno=fd)
if how=='reused':
 ours.send(b'x');os.waitpid(first,0)
 for _ in range(100):
  open('/proc/sys/kernel/ns_last_pid','w').write(str(first-1))
  second=os.fork()
  if second==0: time.sleep(600);os._exit(0)
  if second==first: break
  os.kill(second,9);os.waitpid(second,0)
 assert second==first,'no number was used again'
s.sendall(b'borrowed\\n');s.shutdown(socket.SHUT_WR)
sys.stdout.buffer.write(s.makefile('rb').read());sys.stdout.flush();os._exit(0)";

/// Whether the kernel says which process connected (6.5).
fn tells_who_connected() -> bool {
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(|n| n.parse::<u32>().unwrap_or(0));
    (numbers.next(), numbers.next()) >= (Some(6), Some(5))
}

#[test]
fn a_number_that_was_used_before_lends_nobody_s_authority() {
    let runner = Runner::without_daemon();
    let ask = |how: &str| {
        let socket = runner.at(&format!("socket-{how}"));
        let mut unshare = command("unshare");
        unshare.args(["--pid", "--fork", "--kill-child", "--mount-proc", "python3", "-c", REUSED]);
        unshare.arg(crate::support::binary()).arg(&socket).arg(runner.at("log")).arg(how);
        unshare.output().unwrap()
    };
    if fs::read_to_string("/proc/self/status").unwrap().contains("NoNewPrivs:\t1") {
        // Whoever is confined like the daemon is refused for that.
        return;
    }
    let may =
        command("unshare").args(["--pid", "--fork", "--mount-proc", "true"]).status().unwrap().success();
    if !may || !tells_who_connected() || !Path::new("/proc/sys/kernel/ns_last_pid").exists() {
        eprintln!("left out: no PID namespace of its own, or a kernel before 6.5");
        return;
    }
    // The control: the caller lives, is not confined, and somebody else finishes its request.
    let alive = ask("alive");
    assert_eq!(decode(&alive.stdout).0, "borrowed\n", "{}", text(&alive.stderr));
    let reused = ask("reused");
    let (out, err, code) = decode(&reused.stdout);
    assert_eq!((out.as_str(), code), ("", 1), "{err} {}", text(&reused.stderr));
    assert!(err.contains("the caller has ended"), "{err}");
}
