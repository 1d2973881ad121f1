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
        // As if another build were attached.
        let pins = Pins::open(Path::new(vm::PIN_DIR)).unwrap();
        let boot = pins.boot(ringfence_common::hash::Keys { k0: 1, k1: 3, k2: 5 }).unwrap();
        pins.set_boot(&Boot { object: boot.object ^ 1, ..boot }).unwrap();
        let (again, _rings) = Kernel::load_or_adopt(Path::new(vm::PIN_DIR)).unwrap();
        assert!(!again.coverage().adopted);
    }
    std::fs::write("/tmp/stop", "").unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(text(&output.stdout).trim(), "ok", "{output:?}");
    assert_eq!(watch.seen(), [""; 0]);
}
