//! Queries: answered by the container's own resolver, in the name of whoever was asked, and never on a wire.

use super::*;

/// A server that is granted by its address.
fn echo() -> (UdpSocket, u16) {
    let udp = UdpSocket::bind("127.0.0.1:0").unwrap();
    let port = udp.local_addr().unwrap().port();
    let server = udp.try_clone().unwrap();
    thread::spawn(move || {
        let mut text = [0; 100];
        while let Ok((count, peer)) = server.recv_from(&mut text) {
            let _ = server.send_to(&[b"granted:", &text[..count]].concat(), peer);
        }
    });
    (udp, port)
}

pub(super) fn queries_go_to_the_containers_resolver(kernel: &mut Kernel) {
    let (_udp, granted) = echo();
    let nameserver = UdpSocket::bind("127.77.0.1:53").unwrap();
    thread::spawn(move || {
        let mut text = [0; 100];
        while let Ok((_, peer)) = nameserver.recv_from(&mut text) {
            let _ = nameserver.send_to(b"a nameserver that is granted", peer);
        }
    });
    let nets = vec![
        grant("::ffff:127.0.0.1", Some(granted)),
        grant("::ffff:127.77.0.1", Some(53)),
        net("::ffff:8.8.4.4", 128, Some(53), false),
        net("::ffff:9.0.0.0", 104, None, false),
    ];
    let (id, worker) = with_worker(kernel, &names(nets));
    let own = worker.dns_udp.local_addr().unwrap().port();
    let mut cases = vec![
        case("ask(PUBLIC)", "ok"),
        case("ask_connected(PUBLIC)", "ok"),
        case("ask_tcp(PUBLIC)", "ok"),
        // Denied as an address, which is not reached.
        case("ask(('8.8.4.4', 53))", "ok"),
        case("ask(('9.9.9.9', 53))", "ok"),
        case("ask(MAPPED, INET6)", "ok"),
        case("ask_connected(MAPPED, INET6)", "ok"),
        case("ask_tcp(MAPPED, INET6)", "ok"),
        case("ask(PUBLIC6, INET6)", "ok"),
        case("ask_connected(PUBLIC6, INET6)", "ok"),
        case("ask_tcp(PUBLIC6, INET6)", "ok"),
        case("ask(('127.0.0.53', 53))", "ok"),
        // A datagram socket of IPv6 connects to an address of IPv4.
        case(
            "x = sock(INET6, DGRAM); connect_raw(x, raw4('8.8.8.8', 53)); x.send(b'x'); answered(x, MAPPED)",
            "ok",
        ),
        // The unspecified address stands for this machine.
        case("x = sock(INET, DGRAM); x.sendto(b'x', ('0.0.0.0', 53)); answered(x, ('127.0.0.1', 53))", "ok"),
        case("x = sock(INET6, DGRAM); x.sendto(b'x', ('::', 53)); answered(x, ('::1', 53))", "ok"),
        case(
            "x = sock(INET6, DGRAM); x.sendto(b'x', ('::ffff:0.0.0.0', 53)); same(x.recv(200), b'resolver:x')",
            "ok",
        ),
        case(
            "x = sock(); x.connect(('0.0.0.0', 53)); x.sendall(b'x'); same(x.recv(200), b'resolver:x')",
            "ok",
        ),
        case(
            "x = sock(INET6); x.connect(('::', 53)); x.sendall(b'x'); same(x.recv(200), b'resolver:x')",
            "ok",
        ),
        // Granted by its address: it goes there.
        case(
            "x = sock(INET, DGRAM); x.sendto(b'x', ('127.77.0.1', 53)); same(x.recvfrom(200), (b'a nameserver that is granted', ('127.77.0.1', 53)))",
            "ok",
        ),
        // Another port is no nameserver's.
        case("sock(INET, DGRAM).sendto(b'x', ('8.8.8.8', 54))", "EACCES"),
        case("sock(INET, DGRAM).connect(('8.8.8.8', 853))", "EACCES"),
        case("sock().connect(('8.8.8.8', 853))", "EACCES"),
        case("sock(INET6, DGRAM).sendto(b'x', ('2001:4860:4860::8888', 5353))", "EACCES"),
        // AF_UNSPEC with an address in it, which datagrams take for AF_INET.
        case(
            "x = sock(INET, DGRAM); a = raw4('8.8.8.8', 53, 0); checked(LIBC.sendto(x.fileno(), b'x', 1, 0, a, 16)); answered(x, PUBLIC)",
            "ok",
        ),
        // One socket, several nameservers.
        case(
            "x = ask_connected(PUBLIC); x.sendto(b'x', ('8.8.4.4', 53)); answered(x, ('8.8.4.4', 53))",
            "ok",
        ),
        case(
            "x = ask_connected(PUBLIC); connect_raw(x, bytes(16)); x.connect(('9.9.9.9', 53)); same(x.getpeername(), ('9.9.9.9', 53)); x.send(b'x'); answered(x, ('9.9.9.9', 53))",
            "ok",
        ),
        case(
            "x = sock(INET, DGRAM); same(send_all(x, (raw4('8.8.8.8', 53), []), (raw4('9.9.9.9', 53), []), (raw4('8.8.8.8', 53), [])), 3); [same(x.recv(200), b'resolver:x') for _ in range(3)]",
            "ok",
        ),
        case(
            "x = sock(INET, DGRAM); same(send_all(x, (raw4('8.8.8.8', 53), []), (raw4('9.9.9.9', 54), [])), 1)",
            "ok",
        ),
        // By way of io_uring, in this task and in a worker's.
        case(
            "import uring; x = sock(INET, DGRAM); a = raw4('8.8.8.8', 53); uring.connect(x.fileno(), a); x.send(b'x'); answered(x, PUBLIC)",
            "ok",
        ),
        case(
            "import uring; x = sock(); uring.connect(x.fileno(), raw4('8.8.8.8', 53)); x.sendall(b'x'); same(x.recv(200), b'resolver:x')",
            "ok",
        ),
        case(
            "import uring; x = sock(INET, DGRAM); t, a = ctypes.create_string_buffer(b'x', 1), ctypes.create_string_buffer(raw4('8.8.8.8', 53), 16); \
              uring.submit(26, x.fileno(), ctypes.addressof(t), 1, 0, offset=ctypes.addressof(a), sqe_flags=16, rest=struct.pack('<H', 16)); answered(x, PUBLIC)",
            "ok",
        ),
        // TCP Fast Open never calls connect.
        case(
            "x = sock(); x.setblocking(True); x.sendto(b'x', FASTOPEN, PUBLIC); same(x.recv(200), b'resolver:x')",
            "ok",
        ),
        // Control data and devices choose the way.
        case("sock(INET, DGRAM).sendmsg([b'x'], pktinfo('lo'), 0, PUBLIC)", "EACCES"),
        case(
            "sock(INET6, DGRAM).sendmsg([b'x'], control(41, 50, bytes(16) + struct.pack('<i', 1)), 0, PUBLIC6)",
            "EACCES",
        ),
    ];
    // The resolver's own address and port are nobody's to name, but as a nameserver's.
    cases.push((format!("sock(INET, DGRAM).sendto(b'x', ('127.0.0.1', {own}))"), "EACCES"));
    let connected = format!(
        "x = sock(INET, DGRAM); x.connect(('127.0.0.1', {granted})); x.send(b'x'); same(x.recv(200), b'granted:x'); \
         x.sendto(b'x', PUBLIC); same(x.getpeername(), ('127.0.0.1', {granted}))"
    );
    cases.push((connected, "ok"));
    let mixed = format!(
        "x = sock(INET, DGRAM); g = raw4('127.0.0.1', {granted}); same(send_all(x, (raw4('8.8.8.8', 53), []), (g, []), (raw4('8.8.8.8', 53), [])), 3); \
         same(sorted(x.recvfrom(200) for _ in range(3)), [(b'granted:x', ('127.0.0.1', {granted})), (b'resolver:x', PUBLIC), (b'resolver:x', PUBLIC)])"
    );
    cases.push((mixed, "ok"));
    inside(kernel, id, &cases);

    // IPv6 of a namespace that has none: refused, not sent on.
    kernel.set_redirect(id, Some(&Listeners { dns6: None, ..worker.listeners(BLOCK) })).unwrap();
    inside(
        kernel,
        id,
        &[
            case("ask(PUBLIC6, INET6)", "EPERM"),
            case("ask_tcp(PUBLIC6, INET6)", "EPERM"),
            case("ask(MAPPED, INET6)", "ok"),
        ],
    );
}

pub(super) fn nothing_leaves_the_machine(kernel: &mut Kernel) {
    let wire = Wire::new();
    let calls = [
        "sock(INET, DGRAM).sendto(b'x', PUBLIC)",
        "x = sock(INET, DGRAM); x.connect(PUBLIC); x.send(b'x')",
        "sock(INET6, DGRAM).sendto(b'x', PUBLIC6)",
        "sock(INET6, DGRAM).sendto(b'x', MAPPED)",
        "x = sock(); x.setblocking(False); x.connect_ex(PUBLIC)",
        "x = sock(); x.setblocking(False); x.connect_ex(('198.18.3.1', 443))",
        "x = sock(INET, DGRAM); send_all(x, (raw4('8.8.8.8', 53), []), (raw4('8.8.4.4', 53), []), (raw4('8.8.8.8', 53), []))",
        "x = sock(INET, DGRAM); x.sendto(b'x', ('10.99.0.53', 53))",
    ];
    let cases: Vec<_> = calls.iter().map(|call| case(call, "ok")).collect();
    // sendmmsg asks no LSM program about the second message to one address, whatever control data it has.
    let astray = |address: &str| {
        format!(
            "x = sock(INET, DGRAM); send_all(x, (raw4({address}), []), (raw4({address}), pktinfo('rf-out')))"
        )
    };
    let watch = wire.watch();
    outside(&cases);
    outside(&[(astray("'127.0.0.1', 9"), "ok")]);
    let control = watch.seen();
    for wanted in [
        "tcp 198.18.3.1 443",
        "tcp 8.8.8.8 53",
        "udp 10.99.0.53 53",
        "udp 127.0.0.1 9",
        "udp 2001:4860:4860::8888 53",
        "udp 8.8.4.4 53",
        "udp 8.8.8.8 53",
    ] {
        assert!(control.iter().any(|line| line == wanted), "nothing governs it: {wanted}: {control:?}");
    }

    let (id, worker) = with_worker(kernel, &names(vec![grant("::ffff:10.99.0.53", Some(53))]));
    let own = worker.dns_udp.local_addr().unwrap().port();
    let watch = wire.watch();
    let mut all = cases.clone();
    all.push(case(
        "x = sock(INET, DGRAM); a = raw4('8.8.8.8', 53); same(send_all(x, (a, []), (a, pktinfo('rf-out'))), 1)",
        "ok",
    ));
    // The kernel takes the resolver's address for the one that it asked the LSM program about, and so does not ask again.
    let astray = format!(
        "x = sock(INET, DGRAM); same(send_all(x, (raw4('8.8.8.8', 53), []), (raw4('127.0.0.1', {own}), [])), 2); \
         same(send_all(x, (raw4('8.8.8.8', 53), []), (raw4('127.0.0.1', {own}), pktinfo('rf-out'))), 1)"
    );
    inside(kernel, id, &all);
    let before = kernel.counters(id).unwrap().denied;
    inside(kernel, id, &[(astray, "ok")]);
    assert_eq!(watch.seen(), ["udp 10.99.0.53 53"], "what is granted by its address, and nothing else");
    assert_eq!(kernel.counters(id).unwrap().denied, before + 1, "the packet that went astray");
}
