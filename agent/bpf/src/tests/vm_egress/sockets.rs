//! Sockets that others made, listeners that are gone, other namespaces, programs that are replaced.

use super::*;
use crate::pins::{Boot, Pins};

/// Python that makes a socket, and hands it to whoever connects to the path, once.
fn giving(path: &str, make: &str) -> String {
    format!(
        "{PRELUDE}\nserver = socket.socket(socket.AF_UNIX)\nserver.bind('{path}')\nserver.listen(1)\n\
         one = {make}\nprint('up', flush=True)\nsocket.send_fds(server.accept()[0], [b'x'], [one.fileno()])\nsys.stdin.read()\n"
    )
}

/// A process that does so, governed or not.
fn giver(kernel: &Kernel, id: Option<ContainerId>, path: &str, make: &str) -> Child {
    let _ = std::fs::remove_file(path);
    let mut child = vm::waiting(&giving(path, make));
    if let Some(id) = id {
        kernel.enroll(vm::pidfd(&child).as_fd(), id).unwrap();
    }
    child.stdin.as_mut().unwrap().write_all(b"\n").unwrap();
    child.stdout.as_mut().unwrap().read_exact(&mut [0; 3]).unwrap();
    child
}

pub(super) fn sockets_of_others(kernel: &mut Kernel) {
    let path = "/tmp/passed";
    let (id, _worker) = with_worker(kernel, &names(Vec::new()));
    let without = kernel.create_container(0).unwrap();
    kernel.install(without, &policy(false, vec![grant("::ffff:127.0.0.1", Some(9))])).unwrap();
    let wire = Wire::new();
    let watch = wire.watch();
    let tries = [
        // From nobody governed.
        (None, "sock(INET, DGRAM)", id, "x.sendto(b'x', PUBLIC); answered(x, PUBLIC)", "ok"),
        (None, "sock()", id, "x.connect(('198.18.3.1', 443)); reached(x, '198.18.3.1', 443)", "ok"),
        (None, "sock()", id, "x.connect(('198.18.3.1', 444))", "EACCES"),
        // From a container without names: its socket goes where the task's container says.
        (Some(without), "sock(INET, DGRAM)", id, "x.sendto(b'x', PUBLIC); answered(x, PUBLIC)", "ok"),
        (
            Some(without),
            "sock(INET, DGRAM)",
            id,
            "x.connect(PUBLIC); x.send(b'x'); answered(x, PUBLIC)",
            "ok",
        ),
        (Some(without), "sock()", id, "x.connect(('198.18.3.1', 443)); reached(x, '198.18.3.1', 443)", "ok"),
        // And to one.
        (Some(id), "sock(INET, DGRAM)", without, "x.sendto(b'x', PUBLIC)", "EACCES"),
        (Some(id), "sock()", without, "x.connect(('198.18.3.1', 443))", "EACCES"),
        // One that is connected to the other's resolver, or worker, is not taken in.
        (Some(id), "ask_connected(PUBLIC)", without, "x.send(b'x')", "EACCES"),
        (Some(id), "socket.create_connection(('198.18.3.1', 443))", without, "x.send(b'x')", "EACCES"),
        // Connected before: to a nameserver of its choice.
        (None, "(o := sock(INET, DGRAM), o.connect(PUBLIC))[0]", id, "x.send(b'x')", "EACCES"),
    ];
    for (from, make, to, then, wanted) in tries {
        let mut child = giver(kernel, from, path, make);
        inside(kernel, to, &[(format!("x = passed('{path}'); {then}"), wanted)]);
        child.kill().unwrap();
        child.wait().unwrap();
    }
    assert_eq!(watch.seen(), [""; 0], "none of them left the machine");
    kernel.release(without).unwrap();
}

pub(super) fn a_worker_that_is_gone(kernel: &mut Kernel) {
    let (id, worker) = with_worker(kernel, &names(Vec::new()));
    let refused = [
        case("ask(PUBLIC)", "EPERM"),
        case("ask_connected(PUBLIC)", "EPERM"),
        case("ask_tcp(PUBLIC)", "EPERM"),
        case("ask(PUBLIC6, INET6)", "EPERM"),
        case("reach('198.18.3.1', 443)", "EPERM"),
    ];
    // Its sockets are gone, and another's are at their ports, as when the core was killed.
    let gone = Worker::new();
    kernel.set_redirect(id, Some(&gone.listeners(BLOCK))).unwrap();
    let addresses = (gone.tcp.local_addr().unwrap(), gone.dns_udp.local_addr().unwrap());
    drop(gone);
    inside(kernel, id, &refused);
    let (tcp, udp) = (TcpListener::bind(addresses.0).unwrap(), UdpSocket::bind(addresses.1).unwrap());
    inside(kernel, id, &refused);
    drop((tcp, udp));

    kernel.set_redirect(id, None).unwrap();
    let refused_at_once = [case("ask(PUBLIC)", "EPERM"), case("reach('198.18.3.1', 443)", "EACCES")];
    inside(kernel, id, &refused_at_once);
    // The control: the first one is still there.
    kernel.set_redirect(id, Some(&worker.listeners(BLOCK))).unwrap();
    inside(kernel, id, &[case("ask(PUBLIC)", "ok"), case("reach('198.18.3.1', 443)", "ok")]);

    // Those of another container.
    let other = kernel.create_container(0).unwrap();
    kernel.install(other, &names(Vec::new())).unwrap();
    kernel.set_redirect(other, Some(&worker.listeners(BLOCK))).unwrap();
    inside(kernel, id, &refused);
    kernel.release(other).unwrap();
}

pub(super) fn other_namespaces(kernel: &mut Kernel) {
    let (id, worker) = with_worker(kernel, &names(Vec::new()));
    let elsewhere = "checked(LIBC.unshare(0x40000000))";
    inside(
        kernel,
        id,
        &[
            (format!("{elsewhere}; sock(INET, DGRAM).sendto(b'x', PUBLIC)"), "EPERM"),
            (format!("{elsewhere}; sock().connect(('198.18.3.1', 443))"), "EPERM"),
            // A socket stays where it was made.
            (
                format!(
                    "x = sock(); {elsewhere}; x.connect(('198.18.3.1', 443)); reached(x, '198.18.3.1', 443)"
                ),
                "ok",
            ),
        ],
    );
    // A socket of another namespace, with a server of its own at the same port.
    let port = worker.port();
    let make = format!(
        "(checked(LIBC.unshare(0x40000000)), os.system('ip link set lo up'), s := sock(), s.bind(('127.0.0.1', {port})), s.listen(1), sock())[-1]"
    );
    let mut child = giver(kernel, None, "/tmp/passed", &make);
    inside(kernel, id, &[case("x = passed('/tmp/passed'); x.connect(('198.18.3.1', 443))", "EPERM")]);
    child.kill().unwrap();
    child.wait().unwrap();
}

/// Whoever is not sent there by the programs does not get to a worker's sockets.
pub(super) fn strangers(kernel: &mut Kernel) {
    let (id, worker) = with_worker(
        kernel,
        &names(vec![grant("::ffff:127.0.0.1", None), grant("::1", None), grant("::1", Some(53))]),
    );
    let (tcp, udp) = (worker.port(), worker.dns_udp.local_addr().unwrap().port());
    let (tcp6, udp6) =
        (worker.dns6_tcp.local_addr().unwrap().port(), worker.dns6_udp.local_addr().unwrap().port());
    let other = UdpSocket::bind("127.0.0.1:0").unwrap();
    let free = TcpListener::bind("127.0.0.1:0").unwrap();
    let refused = [
        format!("sock().connect(('127.0.0.1', {tcp}))"),
        format!("sock().connect(('0.0.0.0', {tcp}))"),
        format!("sock(INET6).connect(('::ffff:127.0.0.1', {tcp}))"),
        format!("sock().sendto(b'x', FASTOPEN, ('127.0.0.1', {tcp}))"),
        format!("x = sock(INET6); x.bind(('::ffff:0.0.0.0', 0)); x.connect(('::', {tcp}))"),
        format!("sock(INET, DGRAM).sendto(b'x', ('127.0.0.1', {udp}))"),
        format!("sock(INET, DGRAM).connect(('127.0.0.1', {udp}))"),
        format!("connect_raw(sock(INET6, DGRAM), raw4('127.0.0.1', {udp}))"),
        format!("sock(INET6).connect(('::1', {tcp6}))"),
        format!("sock(INET6, DGRAM).sendto(b'x', ('::1', {udp6}))"),
        format!("sock(INET6, DGRAM).connect(('::', {udp6}))"),
    ];
    let mut cases: Vec<_> = refused.iter().map(|call| case(call, "EPERM")).collect();
    // The control: others that listen there, at other ports.
    cases.push((format!("sock().connect(('127.0.0.1', {}))", free.local_addr().unwrap().port()), "ok"));
    cases.push((
        format!("sock(INET, DGRAM).sendto(b'x', ('127.0.0.1', {}))", other.local_addr().unwrap().port()),
        "ok",
    ));
    outside(&cases);
    // Nor who is governed, whatever else is granted.
    inside(kernel, id, &cases);
    inside(
        kernel,
        id,
        &[
            case("ask(PUBLIC)", "ok"),
            case("reach('198.18.3.1', 443)", "ok"),
            // On this socket `::` is 127.0.0.1, which is no granted nameserver, as ::1 is.
            case(
                "x = sock(INET6); x.bind(('::ffff:0.0.0.0', 0)); x.connect(('::', 53)); x.sendall(b'x'); same(x.recv(200), b'resolver:x')",
                "ok",
            ),
        ],
    );

    // A socket that was connected to the resolver goes to nobody who has its port later; nor does it connect to him.
    let code = format!(
        "{PRELUDE}\none = ask_connected(PUBLIC)\nsix = ask_connected(PUBLIC6, INET6)\nprint('up', flush=True)\nsys.stdin.readline()\n\
         def tried(call):\n    try: call()\n    except OSError as error: return errno.errorcode[error.errno]\n    return 'ok'\n\
         print(tried(lambda: one.send(b'x')), tried(lambda: six.send(b'x')), tried(lambda: one.sendto(b'x', ('127.0.0.1', {udp}))), \
         tried(lambda: sock(INET, DGRAM).sendto(b'x', ('127.0.0.1', {udp}))), flush=True)\n"
    );
    let mut child = vm::waiting(&code);
    kernel.enroll(vm::pidfd(&child).as_fd(), id).unwrap();
    child.stdin.as_mut().unwrap().write_all(b"\n").unwrap();
    child.stdout.as_mut().unwrap().read_exact(&mut [0; 3]).unwrap();
    let at = [&worker.dns_udp, &worker.dns6_udp].map(|udp| udp.local_addr().unwrap());
    // Its threads have copies: shut down as the death of the core does, by taking the sockets' ports.
    worker.leave();
    let taken: Vec<UdpSocket> = at.iter().map(|at| taken_over(*at)).collect();
    child.stdin.as_mut().unwrap().write_all(b"\n").unwrap();
    let output = child.wait_with_output().unwrap();
    // The last is somebody else's port now, which the profile grants.
    assert_eq!(text(&output.stdout).trim(), "EPERM EPERM EPERM ok", "{output:?}");
    let mut heard = [0; 10];
    taken[0].set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    assert_eq!(taken[0].recv(&mut heard).unwrap(), 1, "from whom it was granted to");
    taken.iter().for_each(|one| one.set_nonblocking(true).unwrap());
    assert!(taken.iter().all(|one| one.recv(&mut heard).is_err()), "and nothing else");
    kernel.release(id).unwrap();
}

/// A socket at an address that somebody else leaves.
fn taken_over(at: SocketAddr) -> UdpSocket {
    (0..3000)
        .find_map(|_| {
            thread::sleep(Duration::from_millis(20));
            UdpSocket::bind(at).ok()
        })
        .expect("the port is left")
}

/// How many programs are attached to the root of cgroup v2 at each place of ours: what the kernel says.
fn attached() -> String {
    const CODE: &str = "import ctypes, os, struct\n\
        root = os.open('/sys/fs/cgroup', os.O_RDONLY)\n\
        def count(place):\n\
        \x20   ids = (ctypes.c_uint32 * 64)()\n\
        \x20   attr = ctypes.create_string_buffer(struct.pack('<IIIIQI', root, place, 0, 0, ctypes.addressof(ids), 64), 128)\n\
        \x20   assert ctypes.CDLL(None, use_errno=True).syscall(321, 16, attr, 128) == 0, ctypes.get_errno()\n\
        \x20   return struct.unpack_from('<I', attr, 24)[0]\n\
        print(*[count(place) for place in (10, 11, 14, 15, 19, 20, 29, 30)], count(1))";
    let output = Command::new("/usr/bin/python3").args(["-IS", "-c", CODE]).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    text(&output.stdout).trim().to_owned()
}

/// Without names nobody has to pay for the programs; with them they are there before, and stay for as long as somebody is there who
/// had any.
pub(super) fn attached_while_needed(mut kernel: Kernel, rings: Rings) {
    const NONE: &str = "0 0 0 0 0 0 0 0 1";
    const ALL: &str = "1 1 1 1 1 1 1 1 1";
    assert_eq!(attached(), NONE, "the last is that of packets, which is always there");
    let plain = kernel.create_container(0).unwrap();
    kernel.install(plain, &policy(false, vec![grant("::ffff:127.0.0.1", Some(9))])).unwrap();
    assert_eq!(attached(), NONE);
    let (id, worker) = with_worker(&mut kernel, &names(Vec::new()));
    assert_eq!(attached(), ALL);
    inside(&kernel, id, &[case("ask(PUBLIC)", "ok"), case("reach('198.18.3.1', 443)", "ok")]);
    let (other, _worker) = with_worker(&mut kernel, &names(Vec::new()));
    assert_eq!(attached(), ALL, "once");
    kernel.release(other).unwrap();
    assert_eq!(attached(), ALL);

    // Another daemon, of this build and of the next.
    drop((kernel, rings));
    assert_eq!(attached(), ALL, "without a daemon");
    let (kernel, rings) = Kernel::load_or_adopt(Path::new(vm::PIN_DIR)).unwrap();
    assert!(kernel.coverage().adopted);
    assert_eq!(attached(), ALL);
    drop((kernel, rings));
    another_build();
    let (mut kernel, rings) = Kernel::load_or_adopt(Path::new(vm::PIN_DIR)).unwrap();
    assert!(!kernel.coverage().adopted);
    assert_eq!(attached(), ALL);
    kernel.set_redirect(id, Some(&worker.listeners(BLOCK))).unwrap();
    inside(&kernel, id, &[case("ask(PUBLIC)", "ok"), case("reach('198.18.3.1', 443)", "ok")]);

    // A call may be on its way that was let go for the names' sake.
    kernel.install(id, &policy(false, Vec::new())).unwrap();
    assert_eq!(attached(), ALL);
    kernel.release(id).unwrap();
    assert_eq!(
        attached(),
        ALL,
        "a container of an earlier daemon's, of which nobody knows whether it had names"
    );
    kernel.release(plain).unwrap();
    assert_eq!(attached(), NONE);

    // Half of them are put right.
    let (id, worker) = with_worker(&mut kernel, &names(Vec::new()));
    drop((kernel, rings));
    let pins = Pins::open(Path::new(vm::PIN_DIR)).unwrap();
    std::fs::remove_file(pins.beside_hooks("connect4").unwrap().unwrap()).unwrap();
    let (mut kernel, rings) = Kernel::load_or_adopt(Path::new(vm::PIN_DIR)).unwrap();
    assert_eq!(attached(), ALL);
    kernel.release(id).unwrap();
    assert_eq!(attached(), NONE);

    // What cannot be attached is refused, and nothing is changed.
    let id = kernel.create_container(0).unwrap();
    let place = pins.newest().unwrap().unwrap().join("sendmsg6");
    std::fs::create_dir(&place).unwrap();
    std::fs::rename(place.with_file_name("programs"), place.with_file_name("elsewhere")).unwrap();
    assert!(matches!(kernel.install(id, &names(Vec::new())), Err(PolicyError::NamePrograms(_))));
    assert_eq!((kernel.generation(id), attached().as_str()), (None, NONE));
    std::fs::rename(place.with_file_name("elsewhere"), place.with_file_name("programs")).unwrap();
    std::fs::remove_dir(&place).unwrap();
    kernel.install(id, &names(Vec::new())).unwrap();
    assert_eq!(attached(), ALL);
    kernel.release(id).unwrap();
    assert_eq!(attached(), NONE);
    a_balancer(&mut kernel);
    drop((kernel, rings, worker));
}

/// Programs of a balancer, which were there before and run first, make another port of a nameserver's.
fn a_balancer(kernel: &mut Kernel) {
    const CODE: &str = "import ctypes, os, struct, sys\n\
        LIBC = ctypes.CDLL(None, use_errno=True)\n\
        def bpf(command, text):\n\
        \x20   result = LIBC.syscall(321, command, ctypes.create_string_buffer(text, 128), 128)\n\
        \x20   assert result >= 0, ctypes.get_errno()\n\
        \x20   return result\n\
        def one(code, registers, offset, value): return struct.pack('<BBhi', code, registers, offset, value)\n\
        code = one(0x61, 0x12, 24, 0) + one(0x55, 2, 2, 53 << 8) + one(0xb7, 2, 0, 0xe914) + one(0x63, 0x21, 24, 0) + one(0xb7, 0, 0, 1) + one(0x95, 0, 0, 0)\n\
        code, license = ctypes.create_string_buffer(code, len(code)), ctypes.create_string_buffer(b'GPL')\n\
        root = os.open('/sys/fs/cgroup', os.O_RDONLY)\n\
        for place in (10, 14):\n\
        \x20   program = bpf(5, struct.pack('<IIQQIIQIIQQII', 18, 6, ctypes.addressof(code), ctypes.addressof(license), 0, 0, 0, 0, 0, 0, 0, 0, place))\n\
        \x20   bpf(28, struct.pack('<IIII', program, root, place, 0))\n\
        print('up', flush=True)\n\
        sys.stdin.read()";
    let mut child = Command::new("/usr/bin/python3")
        .args(["-IS", "-c", CODE])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdout.as_mut().unwrap().read_exact(&mut [0; 3]).unwrap();
    outside(&[case(
        "x = sock(INET, DGRAM); x.connect(('127.0.0.1', 53)); same(x.getpeername(), ('127.0.0.1', 5353))",
        "ok",
    )]);
    let (id, _worker) = with_worker(kernel, &names(Vec::new()));
    inside(
        kernel,
        id,
        &[
            case("ask(PUBLIC)", "ok"),
            case("ask_connected(PUBLIC)", "ok"),
            case("ask_tcp(PUBLIC)", "ok"),
            case("reach('198.18.3.1', 443)", "ok"),
        ],
    );
    child.kill().unwrap();
    child.wait().unwrap();
    kernel.release(id).unwrap();
}

/// As if the programs that are attached were another build's.
fn another_build() {
    let pins = Pins::open(Path::new(vm::PIN_DIR)).unwrap();
    let boot = pins.boot(ringfence_common::hash::Keys { k0: 1, k1: 3, k2: 5 }).unwrap();
    pins.set_boot(&Boot { object: boot.object ^ 1, ..boot }).unwrap();
}

/// The programs are replaced again and again while a container connects and asks: no moment without them, and none with both
/// that does harm.
pub(super) fn an_upgrade(kernel: &mut Kernel) {
    let (id, _worker) = with_worker(kernel, &names(Vec::new()));
    let _ = std::fs::remove_file("/tmp/stop");
    let code = format!(
        "{PRELUDE}\nprint('up', flush=True)\nrounds = 0\n\
         while rounds < 20 or not os.path.exists('/tmp/stop'):\n\
         \x20   ask(PUBLIC); ask_connected(PUBLIC6, INET6); reach('198.18.3.1', 443); rounds += 1\n\
         print('ok')\n"
    );
    let mut child = vm::waiting(&code);
    kernel.enroll(vm::pidfd(&child).as_fd(), id).unwrap();
    child.stdin.take().unwrap().write_all(b"\n").unwrap();
    child.stdout.as_mut().unwrap().read_exact(&mut [0; 3]).unwrap();
    let wire = Wire::new();
    let watch = wire.watch();
    for _ in 0..2 {
        another_build();
        let (again, _rings) = Kernel::load_or_adopt(Path::new(vm::PIN_DIR)).unwrap();
        assert!(!again.coverage().adopted);
    }
    std::fs::write("/tmp/stop", "").unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(text(&output.stdout).trim(), "ok", "{output:?}");
    assert_eq!(watch.seen(), [""; 0]);
}
