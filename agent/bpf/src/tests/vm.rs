//! Tests that load the programs. They need root, python3 and a kernel that may be changed: the guest, where
//! `cargo xtask vm-test --filter programs` runs them, each in a process of its own.

use crate::*;
use ringfence_common::{
    event::{Header, op, verdict},
    hooks::HOOKS,
    policy::{RECORD_EXEC, RECORD_FILE, RECORD_NET, RECORD_OTHER, axis},
};
use ringfence_policy::compiled::{CompiledPolicy, Kind, NetRule, Place, PlaceRule};
use std::{
    io::{Read, Write},
    mem::offset_of,
    os::{fd::AsFd, unix::process::CommandExt},
    path::Path,
    process::{Child, Command, Output, Stdio},
    sync::{Mutex, MutexGuard, PoisonError},
    thread,
    time::Duration,
};

mod unknown;

pub(crate) const PIN_DIR: &str = "/sys/fs/bpf/ringfence";

pub(crate) fn pidfd(child: &Child) -> std::os::fd::OwnedFd {
    let pid = rustix::process::Pid::from_child(child);
    rustix::process::pidfd_open(pid, rustix::process::PidfdFlags::empty()).unwrap()
}

/// A shell that waits for a line and then becomes python, which runs `code`.
pub(crate) fn waiting(code: &str) -> Child {
    let mut child = Command::new("/bin/sh")
        .args(["-c", "echo && read _ && exec /usr/bin/python3 -IS -c \"$0\"", code])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // `spawn` returns when the exec of the shell has begun. Its own line says that it has ended.
    child.stdout.as_mut().unwrap().read_exact(&mut [0]).unwrap();
    child
}

fn go(mut child: Child) -> Output {
    child.stdin.take().unwrap().write_all(b"\n").unwrap();
    child.wait_with_output().unwrap()
}

/// Runs python code as a new member of a container; what it printed.
pub(crate) fn python(kernel: &Kernel, id: ContainerId, code: &str) -> String {
    let child = waiting(code);
    kernel.enroll(pidfd(&child).as_fd(), id).unwrap();
    let output = go(child);
    let text = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    if text.is_empty() {
        format!("{}: {}", output.status, String::from_utf8_lossy(&output.stderr))
    } else {
        text
    }
}

/// Python code that makes each call in a process of its own and prints `ok` or the error's name for each.
fn attempts(calls: &[String]) -> String {
    format!(
        "import os, socket, errno, ctypes, signal\n\
         S = socket\n\
         L = ctypes.CDLL(None, use_errno=True)\n\
         def sock(f=S.AF_INET, t=S.SOCK_STREAM, p=0): return S.socket(f, t, p)\n\
         def c(result):\n\
         \x20   if result < 0: raise OSError(ctypes.get_errno(), '')\n\
         for call in {calls:?}:\n\
         \x20   child = os.fork()\n\
         \x20   if child == 0:\n\
         \x20       try: exec(call)\n\
         \x20       except OSError as e: os._exit(e.errno)\n\
         \x20       except BaseException: os._exit(255)\n\
         \x20       os._exit(0)\n\
         \x20   code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])\n\
         \x20   print('ok' if code == 0 else errno.errorcode.get(code, code))\n"
    )
}

fn place(path: &str, allow: u16, deny: u16) -> PlaceRule {
    let place = match path.strip_prefix('@') {
        Some(name) => Place::Abstract(name.into()),
        None => Place::Path(path.into()),
    };
    let rule = super::rule(place, Kind::Tree, allow, deny, 0);
    PlaceRule { allow_rules: [Some(1); 5], deny_rules: [Some(2); 5], ..rule }
}

fn net(addr: &str, port: Option<u16>, allow: bool, rule: u32) -> NetRule {
    NetRule { addr: addr.parse().unwrap(), prefix: 128, port, allow, rule }
}

fn policy(places: Vec<PlaceRule>, nets: Vec<NetRule>) -> CompiledPolicy {
    CompiledPolicy {
        record: RECORD_EXEC | RECORD_FILE | RECORD_NET | RECORD_OTHER,
        inet: !nets.is_empty(),
        capabilities: ringfence_policy::Capabilities::ALL,
        nets,
        ..super::policy(axis::READ | axis::WRITE | axis::EXEC | axis::MAP, places)
    }
}

pub(crate) fn secret_denied() -> CompiledPolicy {
    policy(vec![place("/tmp/secret", 0, axis::READ)], Vec::new())
}

const READ_SECRET: &str = "open('/tmp/secret/x').read()";
const READ_OTHER: &str = "open('/tmp/other').read()";

/// There is one kernel, so one test at a time.
static KERNEL: Mutex<()> = Mutex::new(());

/// Loads afresh: nothing of another test is left.
pub(crate) fn fresh() -> (MutexGuard<'static, ()>, Kernel, Rings) {
    fresh_with(&surface::table())
}

/// The same, with a coverage table.
fn fresh_with(table: &ringfence_coverage::Table) -> (MutexGuard<'static, ()>, Kernel, Rings) {
    let one = KERNEL.lock().unwrap_or_else(PoisonError::into_inner);
    unpin_all(Path::new(PIN_DIR)).unwrap();
    std::fs::create_dir_all("/tmp/secret").unwrap();
    std::fs::write("/tmp/secret/x", "x").unwrap();
    std::fs::write("/tmp/other", "x").unwrap();
    let (kernel, rings) = Kernel::load_with(Path::new(PIN_DIR), table).unwrap_or_else(|error| {
        let mut text = error.to_string();
        let mut cause = std::error::Error::source(&error);
        while let Some(error) = cause {
            text += &format!(": {error}");
            cause = error.source();
        }
        panic!("{text}")
    });
    (one, kernel, rings)
}

#[track_caller]
fn check_all(kernel: &Kernel, id: ContainerId, cases: &[(String, &str)]) {
    let calls: Vec<_> = cases.iter().map(|(call, _)| call.clone()).collect();
    let text = python(kernel, id, &attempts(&calls));
    let found: Vec<_> = text.lines().collect();
    assert_eq!(found.len(), cases.len(), "{text}");
    let wrong: Vec<_> = cases.iter().zip(&found).filter(|((_, wanted), found)| wanted != *found).collect();
    eprintln!("# {} calls, {} wrong", cases.len(), wrong.len());
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[track_caller]
fn check(kernel: &Kernel, id: ContainerId, call: &str, wanted: &'static str) {
    check_all(kernel, id, &[(call.into(), wanted)]);
}

/// With one load, which takes longer than all of them.
#[test]
#[ignore = "loads eBPF: for the guest"]
fn tasks_are_governed_and_judged() {
    let (_one, mut kernel, _rings) = fresh();
    a_task_is_governed_from_its_exec_on(&mut kernel);
    addresses_are_judged(&mut kernel);
    unix_peers_are_judged(&mut kernel);
    nobody_gets_out(&mut kernel);
    a_nested_grant_needs_both(&mut kernel);
}

#[test]
#[ignore = "loads eBPF: for the guest"]
fn loads_and_is_adopted() {
    let (_one, kernel, rings) = fresh();
    assert!(!kernel.coverage().adopted);
    let coverage = kernel.coverage();
    assert_eq!(coverage.attached.len() + coverage.missing.len(), HOOKS.len());
    eprintln!("# {} hooks, missing {:?}", coverage.attached.len(), coverage.missing);
    drop((kernel, rings));

    let (mut kernel, rings) = Kernel::load_or_adopt(Path::new(PIN_DIR)).unwrap();
    assert!(kernel.coverage().adopted, "the same build is adopted, not loaded again");
    let id = kernel.create_container(0).unwrap();
    kernel.install(id, &secret_denied()).unwrap();
    check(&kernel, id, READ_SECRET, "EACCES");
    check(&kernel, id, READ_OTHER, "ok");
    let child = waiting(&attempts(&[READ_SECRET.into()]));
    kernel.enroll(pidfd(&child).as_fd(), id).unwrap();
    drop((kernel, rings));
    // Nobody is there, and yet:
    let output = go(child);
    assert_eq!(String::from_utf8_lossy(&output.stdout).trim(), "EACCES", "{output:?}");
    assert!(std::fs::read("/tmp/secret/x").is_ok(), "an ungoverned task notices nothing");

    let (kernel, _rings) = Kernel::load_or_adopt(Path::new(PIN_DIR)).unwrap();
    assert_eq!((kernel.containers(), kernel.generation(id)), (vec![id], Some(1)));
    check(&kernel, id, READ_SECRET, "EACCES");
}

fn a_task_is_governed_from_its_exec_on(kernel: &mut Kernel) {
    let id = kernel.create_container(0).unwrap();
    kernel.install(id, &secret_denied()).unwrap();
    let child = waiting("import sys; print('up', flush=True); sys.stdin.read()");
    let fd = pidfd(&child);
    assert_eq!(kernel.lookup(fd.as_fd()).unwrap(), None);
    kernel.enroll(fd.as_fd(), id).unwrap();
    assert_eq!(kernel.lookup(fd.as_fd()).unwrap(), Some(Membership { container: None, next: Some(id) }));
    assert!(matches!(kernel.enroll(fd.as_fd(), id), Err(TaskError::Governed(found)) if found == id));
    assert_eq!(kernel.counters(id).unwrap().tasks, 0, "a pending task does not count");

    let mut child = child;
    let mut input = child.stdin.take().unwrap();
    input.write_all(b"\n").unwrap();
    let mut up = [0; 2];
    child.stdout.as_mut().unwrap().read_exact(&mut up).unwrap();
    assert_eq!(kernel.lookup(fd.as_fd()).unwrap(), Some(Membership { container: Some(id), next: None }));
    assert_eq!(kernel.counters(id).unwrap().tasks, 1);
    drop(input);
    child.wait().unwrap();
    assert!(matches!(kernel.lookup(fd.as_fd()), Err(TaskError::Gone)));
    let gone = (0..3000).any(|_| {
        thread::sleep(Duration::from_millis(20));
        kernel.counters(id).unwrap().tasks == 0
    });
    assert!(gone, "the last task was counted off");

    // A released container's tag denies everything, at the latest at the exec.
    let child = waiting(&attempts(&[READ_OTHER.into()]));
    kernel.enroll(pidfd(&child).as_fd(), id).unwrap();
    kernel.release(id).unwrap();
    assert!(kernel.containers().is_empty());
    let output = go(child);
    assert!(!output.status.success() && output.stdout.is_empty(), "{output:?}");
}

#[test]
#[ignore = "loads eBPF: for the guest"]
fn a_swap_leaves_no_moment_without_a_policy() {
    const SWAPS: u32 = 20;
    let (_one, mut kernel, _rings) = fresh();
    let id = kernel.create_container(0).unwrap();
    kernel.install(id, &secret_denied()).unwrap();
    let _ = std::fs::remove_file("/tmp/stop");
    let mut child = waiting(
        "import os\n\
         print('up', flush=True)\n\
         tries = read = other = 0\n\
         while not os.path.exists('/tmp/stop') or tries < 100:\n\
         \x20   tries += 1\n\
         \x20   try:\n        open('/tmp/secret/x').close(); read += 1\n\
         \x20   except PermissionError: pass\n\
         \x20   try:\n        open('/tmp/other').close()\n\
         \x20   except PermissionError: other += 1\n\
         print(read, other)",
    );
    kernel.enroll(pidfd(&child).as_fd(), id).unwrap();
    child.stdin.take().unwrap().write_all(b"\n").unwrap();
    child.stdout.as_mut().unwrap().read_exact(&mut [0; 3]).unwrap();
    for generation in 2..=SWAPS {
        assert_eq!(kernel.install(id, &secret_denied()).unwrap().generation, generation);
    }
    std::fs::write("/tmp/stop", "").unwrap();
    assert_eq!(String::from_utf8_lossy(&child.wait_with_output().unwrap().stdout).trim(), "0 0");
    kernel.install(id, &policy(Vec::new(), Vec::new())).unwrap();
    check(&kernel, id, READ_SECRET, "ok");
}

#[test]
#[ignore = "loads eBPF: for the guest"]
fn records_arrive() {
    let (_one, mut kernel, mut rings) = fresh();
    let id = kernel.create_container(0).unwrap();
    let installed = kernel.install(id, &secret_denied()).unwrap();
    check(&kernel, id, READ_SECRET, "EACCES");
    let mut seen = Vec::new();
    while let Some(record) = rings.next_record() {
        let number = |at: usize| u32::from_ne_bytes(record[at..at + 4].try_into().unwrap());
        let container = u64::from_ne_bytes(record[offset_of!(Header, container)..][..8].try_into().unwrap());
        assert_eq!(container, id.raw());
        let kind = (record[offset_of!(Header, op)], record[offset_of!(Header, verdict)]);
        seen.push((kind, number(offset_of!(Header, rule))));
    }
    let (_, slot) =
        *seen.iter().find(|(kind, _)| *kind == (op::OPEN, verdict::DENIED)).expect("the denied open");
    let rule = installed.slots.iter().find(|found| found.slot == slot).expect("a slot of the manifest");
    assert_eq!(rule.deny[0], Some(2));
    assert!(seen.iter().any(|(kind, _)| *kind == (op::EXEC, verdict::ALLOWED)));
    assert_eq!(kernel.counters(id).unwrap().denied, 1);
}

fn addresses_are_judged(kernel: &mut Kernel) {
    let id = kernel.create_container(0).unwrap();
    // Two servers outside, one granted.
    let granted = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let other = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let udp = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    let (a, b) = (granted.local_addr().unwrap().port(), other.local_addr().unwrap().port());
    let c = udp.local_addr().unwrap().port();
    let nets = vec![net("::ffff:127.0.0.1", Some(a), true, 7), net("::ffff:127.0.0.1", Some(c), true, 7)];
    kernel.install(id, &policy(Vec::new(), nets)).unwrap();

    let connect = |to: &str, port| format!("sock().connect(('{to}', {port}))");
    let connect6 = |to: &str, port| format!("sock(S.AF_INET6).connect(('{to}', {port}))");
    let fast_open = |port| format!("sock().sendto(b'x', 0x20000000, ('127.0.0.1', {port}))");
    let datagram = |port| format!("sock(t=S.SOCK_DGRAM).sendto(b'x', ('127.0.0.1', {port}))");
    let datagram6 =
        |port| format!("sock(S.AF_INET6, S.SOCK_DGRAM).sendto(b'x', ('::ffff:127.0.0.1', {port}))");
    // AF_UNSPEC with an address in it, which UDP takes for AF_INET.
    let unspec = |port: u16| {
        let (high, low) = (port >> 8, port & 255);
        format!(
            "x = sock(t=S.SOCK_DGRAM); c(L.sendto(x.fileno(), b'x', 1, 0, \
             (ctypes.c_ubyte * 16)(0, 0, {high}, {low}, 127, 0, 0, 1), 16))"
        )
    };
    check_all(
        kernel,
        id,
        &[
            (connect("127.0.0.1", a), "ok"),
            (connect("127.0.0.1", b), "EACCES"),
            (connect6("::ffff:127.0.0.1", a), "ok"),
            (connect6("::ffff:127.0.0.1", b), "EACCES"),
            (connect6("::1", a), "EACCES"),
            // The unspecified address is the machine itself.
            (connect("0.0.0.0", a), "ok"),
            (connect("0.0.0.0", b), "EACCES"),
            (fast_open(a), "ok"),
            (fast_open(b), "EACCES"),
            (datagram(c), "ok"),
            (datagram(b), "EACCES"),
            (datagram6(c), "ok"),
            (datagram6(b), "EACCES"),
            (unspec(c), "ok"),
            (unspec(b), "EACCES"),
            ("sock().bind(('0.0.0.0', 0))".into(), "ok"),
            ("sock().bind(('127.0.0.1', 4711))".into(), "EACCES"),
            ("x = sock(); x.bind(('0.0.0.0', 0)); x.listen()".into(), "EACCES"),
            ("sock().listen()".into(), "EACCES"),
            ("sock(S.AF_INET, S.SOCK_RAW, 1)".into(), "EPERM"),
            ("sock(S.AF_INET, S.SOCK_DGRAM, 1)".into(), "EPERM"),
            ("sock(S.AF_PACKET, S.SOCK_RAW)".into(), "EPERM"),
            ("sock(S.AF_NETLINK, S.SOCK_RAW)".into(), "EPERM"),
            ("sock(S.AF_INET, S.SOCK_STREAM, 262)".into(), "EPERM"),
            ("sock(S.AF_INET, S.SOCK_STREAM, 132)".into(), "EPERM"),
            ("sock(S.AF_UNIX)".into(), "ok"),
            ("sock(S.AF_INET6, S.SOCK_STREAM, 6)".into(), "ok"),
        ],
    );
    // A deny beats an allow of any port, and one may listen where the grant says so.
    let nets = vec![net("::ffff:127.0.0.1", None, true, 7), net("::ffff:127.0.0.1", Some(b), false, 8)];
    kernel.install(id, &policy(Vec::new(), nets)).unwrap();
    check_all(
        kernel,
        id,
        &[
            (connect("127.0.0.1", a), "ok"),
            (connect("127.0.0.1", b), "EACCES"),
            ("x = sock(); x.bind(('127.0.0.1', 4711)); x.listen()".into(), "ok"),
        ],
    );
    kernel.install(id, &policy(Vec::new(), Vec::new())).unwrap();
    check(kernel, id, "sock()", "EACCES");
}

fn unix_peers_are_judged(kernel: &mut Kernel) {
    let id = kernel.create_container(0).unwrap();
    let _ = std::fs::remove_dir_all("/tmp/unix");
    std::fs::create_dir_all("/tmp/unix").unwrap();
    let _servers = ["granted", "other"]
        .map(|name| std::os::unix::net::UnixListener::bind(format!("/tmp/unix/{name}")).unwrap());
    let _datagrams = ["granted-d", "other-d"]
        .map(|name| std::os::unix::net::UnixDatagram::bind(format!("/tmp/unix/{name}")).unwrap());
    std::fs::hard_link("/tmp/unix/other", "/tmp/unix/alias").unwrap();
    use std::os::linux::net::SocketAddrExt;
    let name = |name: &str| std::os::unix::net::SocketAddr::from_abstract_name(name).unwrap();
    let _abstracts = ["granted-by-a-name-of-some-length", "other"]
        .map(|text| std::os::unix::net::UnixListener::bind_addr(&name(text)).unwrap());
    let rules = ["/tmp/unix/granted", "/tmp/unix/granted-d", "@granted-by-a-name-of-some-length", "@mine"];
    let places = rules.map(|rule| place(rule, axis::UNIX, 0)).to_vec();
    kernel.install(id, &policy(places, Vec::new())).unwrap();
    let stream = |to: &str| format!("sock(S.AF_UNIX).connect('{to}')");
    let datagram = |to: &str| format!("sock(S.AF_UNIX, S.SOCK_DGRAM).sendto(b'x', '{to}')");
    let pair = |kind: &str| format!("a, b = S.socketpair(S.AF_UNIX, S.SOCK_{kind}); a.send(b'x'); b.recv(1)");
    check_all(
        kernel,
        id,
        &[
            (stream("/tmp/unix/granted"), "ok"),
            (stream("/tmp/unix/other"), "EACCES"),
            (stream("/tmp/unix/alias"), "EACCES"),
            (stream("\\0granted-by-a-name-of-some-length"), "ok"),
            (stream("\\0other"), "EACCES"),
            (datagram("/tmp/unix/granted-d"), "ok"),
            (datagram("/tmp/unix/other-d"), "EACCES"),
            ("sock(S.AF_UNIX, S.SOCK_DGRAM).connect('/tmp/unix/other-d')".into(), "EACCES"),
            ("sock(S.AF_UNIX).bind('\\0mine')".into(), "ok"),
            ("sock(S.AF_UNIX).bind('\\0not-mine')".into(), "EACCES"),
            ("sock(S.AF_UNIX).bind('')".into(), "ok"),
            (pair("STREAM"), "ok"),
            (pair("DGRAM"), "ok"),
            (pair("SEQPACKET"), "ok"),
        ],
    );
}

fn nobody_gets_out(kernel: &mut Kernel) {
    let id = kernel.create_container(0).unwrap();
    kernel.install(id, &policy(Vec::new(), Vec::new())).unwrap();
    // Since 6.15 CAP_PERFMON reads another process's environment without asking LSM, so that reader has no capability.
    const NOBODY: u32 = 65534;
    let mut outside = Command::new("/bin/sleep").arg("1000").uid(NOBODY).gid(NOBODY).spawn().unwrap();
    let pid = outside.id();
    let environ = format!("open('/proc/{pid}/environ', 'rb').read(1)");
    let mut ungoverned = Command::new("/usr/bin/python3");
    ungoverned.args(["-IS", "-c", &environ]).uid(NOBODY).gid(NOBODY);
    assert!(ungoverned.status().unwrap().success(), "the control: its own user may");
    let own_child = |call: &str| {
        format!("p = os.fork()\nif p == 0: signal.pause()\n{call}\nos.kill(p, 9); os.waitpid(p, 0)")
    };
    check_all(
        kernel,
        id,
        &[
            (format!("os.kill({pid}, 0)"), "EPERM"),
            (format!("os.kill({pid}, 9)"), "EPERM"),
            ("os.kill(os.getpid(), 0)".into(), "ok"),
            (own_child("os.kill(p, 15)"), "ok"),
            (format!("c(L.ptrace(0x4206, {pid}, 0, 0))"), "EPERM"),
            (own_child("c(L.ptrace(0x4206, p, 0, 0))"), "ok"),
            ("c(L.ptrace(0, 0, 0, 0))".into(), "ok"), // by its parent, which is inside too
            (format!("open('/proc/{pid}/mem', 'rb')"), "EACCES"),
            (format!("os.setgid({NOBODY}); os.setuid({NOBODY}); {environ}"), "EACCES"),
            ("open('/proc/self/environ', 'rb').read(1)".into(), "ok"),
            ("c(L.syscall(321, 0, (ctypes.c_ubyte * 64)(), 64))".into(), "EPERM"),
            ("c(L.syscall(298, (ctypes.c_ubyte * 128)(1, 0, 0, 0, 128), 0, -1, -1, 0))".into(), "EPERM"),
            ("c(L.unshare(0x10000000))".into(), "EPERM"),
            ("c(L.unshare(0x04000000))".into(), "ok"),
        ],
    );
    let code = "import ctypes; print(ctypes.CDLL(None).ptrace(0, 0, 0, 0))";
    assert_eq!(python(kernel, id, code), "-1", "its parent, this test, is outside");
    assert!(outside.try_wait().unwrap().is_none(), "it lives");
    outside.kill().unwrap();
    outside.wait().unwrap();

    let mut audit = policy(Vec::new(), Vec::new());
    audit.audit_mode = true;
    kernel.install(id, &audit).unwrap();
    let before = kernel.counters(id).unwrap().denied;
    assert!(before > 0);
    check(kernel, id, "sock(S.AF_NETLINK, S.SOCK_RAW)", "ok");
    assert_eq!(kernel.counters(id).unwrap().denied, before, "would have been denied, and was not");
}

fn a_nested_grant_needs_both(kernel: &mut Kernel) {
    let outer = kernel.create_container(0).unwrap();
    let inner = kernel.create_container(0).unwrap();
    kernel.install(outer, &secret_denied()).unwrap();
    kernel.install(inner, &policy(vec![place("/tmp/other", 0, axis::READ)], Vec::new())).unwrap();
    let child = waiting(
        "import os, sys, time; print('up', flush=True); sys.stdin.readline(); os.execv('/bin/cat', ['cat', '/tmp/other'])",
    );
    let fd = pidfd(&child);
    assert!(matches!(kernel.nest(fd.as_fd(), outer, inner), Err(TaskError::NotInside(id)) if id == outer));
    kernel.enroll(fd.as_fd(), outer).unwrap();
    let mut child = child;
    let mut input = child.stdin.take().unwrap();
    input.write_all(b"\n").unwrap();
    let mut up = [0; 2];
    child.stdout.as_mut().unwrap().read_exact(&mut up).unwrap();
    kernel.nest(fd.as_fd(), outer, inner).unwrap();
    assert_eq!(
        kernel.lookup(fd.as_fd()).unwrap(),
        Some(Membership { container: Some(outer), next: Some(inner) })
    );
    assert!(matches!(kernel.nest(fd.as_fd(), outer, inner), Err(TaskError::Governed(id)) if id == inner));
    input.write_all(b"\n").unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(String::from_utf8_lossy(&output.stderr).contains("Permission denied"), "{output:?}");
    // The positive control: without the inner grant's deny the same command reads the file.
    check(kernel, outer, READ_OTHER, "ok");
}

#[test]
#[ignore = "loads eBPF: for the guest"]
fn running_processes_are_taken_in() {
    let (_one, mut kernel, _rings) = fresh();
    let id = kernel.create_container(0).unwrap();
    kernel.install(id, &secret_denied()).unwrap();
    // Three threads and one child that was born before; each tells whether it may read before and after.
    let code = "import os, threading\n\
         def may():\n\
         \x20   try: open('/tmp/secret/x').close()\n\
         \x20   except PermissionError: return 'no'\n\
         \x20   return 'yes'\n\
         before, after = [], []\n\
         barrier = threading.Barrier(4)\n\
         gate = threading.Event()\n\
         def run():\n\
         \x20   before.append(may()); barrier.wait(); gate.wait(); after.append(may())\n\
         threads = [threading.Thread(target=run) for _ in range(3)]\n\
         for t in threads: t.start()\n\
         barrier.wait()\n\
         print(','.join(before), flush=True)\n\
         input()\n\
         gate.set()\n\
         for t in threads: t.join()\n\
         born = threading.Thread(target=lambda: after.append(may()))\n\
         born.start(); born.join()\n\
         child = os.fork()\n\
         if child == 0: os._exit(0 if may() == 'no' else 1)\n\
         print(','.join(after), may(), os.waitpid(child, 0)[1])";
    let mut child = waiting(code);
    let mut input = child.stdin.take().unwrap();
    input.write_all(b"\n").unwrap();
    let mut line = [0; 12];
    child.stdout.as_mut().unwrap().read_exact(&mut line).unwrap();
    assert_eq!(&line, b"yes,yes,yes\n", "the control: ungoverned, all may");
    assert_eq!(kernel.enroll_running(&[pidfd(&child)], id).unwrap(), 4);
    assert_eq!(kernel.counters(id).unwrap().tasks, 4);
    let member = Membership { container: Some(id), next: None };
    assert_eq!(kernel.lookup(pidfd(&child).as_fd()).unwrap(), Some(member));
    assert_eq!(kernel.enroll_running(&[pidfd(&child)], id).unwrap(), 0, "all are in already");
    let other = kernel.create_container(0).unwrap();
    assert!(matches!(kernel.enroll_running(&[pidfd(&child)], other), Err(TaskError::Elsewhere(4))));
    input.write_all(b"\n").unwrap();
    drop(input);
    let output = child.wait_with_output().unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stdout).trim(), "no,no,no,no no 0", "{output:?}");
}
