//! Addresses that stand for names: the container's own, by TCP, at the ports that are granted.

use super::*;

pub(super) fn addresses_of_names_lead_to_the_worker(kernel: &mut Kernel) {
    let (id, worker) = with_worker(kernel, &names(Vec::new()));
    let direct = format!("sock().connect(('127.0.0.1', {}))", worker.port());
    let fast_open = "x = sock(); x.setblocking(True); x.sendto(b'x', FASTOPEN, ('198.18.3.1', 443)); reached(x, '198.18.3.1', 443)";
    let deferred = "x = sock(); x.setsockopt(6, 30, 1); x.connect(('198.18.3.1', 443)); x.send(b'x'); reached(x, '198.18.3.1', 443)";
    let uring = |setup: u32, flags: u32| {
        format!(
            "import uring; x = sock(); a = ctypes.create_string_buffer(raw4('198.18.3.1', 443), 16); \
             uring.submit(16, x.fileno(), ctypes.addressof(a), 0, 0, offset=16, setup={setup}, sqe_flags={flags}); \
             same(x.getpeername(), ('198.18.3.1', 443)); reached(x, '198.18.3.1', 443)"
        )
    };
    inside(
        kernel,
        id,
        &[
            case("reach('198.18.3.1', 443)", "ok"),
            case("reach('198.18.3.2', 22)", "ok"),
            case("reach('198.18.3.1', 443, INET6, '::ffff:')", "ok"),
            case(fast_open, "ok"),
            case(
                "x = sock(INET6); x.setblocking(True); x.sendto(b'x', FASTOPEN, ('::ffff:198.18.3.1', 443)); reached(x, '198.18.3.1', 443)",
                "ok",
            ),
            case(deferred, "ok"),
            (uring(0, 0), "ok"),
            (uring(0, 16), "ok"),
            (uring(2, 0), "ok"),
            case(
                "x = sock(); x.setblocking(False); same(x.connect_ex(('198.18.3.1', 443)) in (0, 115), True); x.setblocking(True); reached(x, '198.18.3.1', 443)",
                "ok",
            ),
            // A port that no name has, an address that stands for none, another's block.
            case("sock().connect(('198.18.3.1', 444))", "EACCES"),
            case("sock().sendto(b'x', FASTOPEN, ('198.18.3.1', 444))", "EACCES"),
            case("sock(INET6).connect(('::ffff:198.18.3.1', 444))", "EACCES"),
            case("sock().connect(('198.18.3.3', 443))", "EACCES"),
            case("sock().connect(('198.18.4.1', 443))", "EACCES"),
            case("sock().connect(('198.19.3.1', 443))", "EACCES"),
            case("sock().connect(('198.20.3.1', 443))", "EACCES"),
            // By UDP never, whatever the port.
            case("sock(INET, DGRAM).connect(('198.18.3.1', 443))", "EACCES"),
            case("sock(INET, DGRAM).sendto(b'x', ('198.18.3.1', 443))", "EACCES"),
            case("sock(INET, DGRAM).sendto(b'x', ('198.18.3.2', 53))", "EACCES"),
            case("sock(INET6, DGRAM).sendto(b'x', ('::ffff:198.18.3.1', 443))", "EACCES"),
            (direct, "EACCES"),
            // A socket of IPv6 alone does not speak IPv4.
            case(
                "x = sock(INET6); x.setsockopt(41, 26, 1); x.connect(('::ffff:198.18.3.1', 443))",
                "ENETUNREACH",
            ),
            // Connected again.
            case(
                "x = sock(); x.connect(('198.18.3.1', 443)); reached(x, '198.18.3.1', 443); connect_raw(x, bytes(16)); \
                  x.connect(('198.18.3.2', 80)); reached(x, '198.18.3.2', 80)",
                "ok",
            ),
            case(
                "x = sock(); x.bind(('0.0.0.0', 0)); x.connect(('198.18.3.1', 443)); reached(x, '198.18.3.1', 443)",
                "ok",
            ),
        ],
    );

    // A grant of everything does not reach into another's block, nor by UDP.
    let all = vec![net("::ffff:0.0.0.0", 96, None, true), net("::", 0, None, true)];
    kernel.install(id, &policy(true, all)).unwrap();
    inside(
        kernel,
        id,
        &[
            case("reach('198.18.3.1', 443)", "ok"),
            case("sock().connect(('198.18.4.1', 443))", "EACCES"),
            case("sock(INET, DGRAM).connect(('198.18.3.1', 443))", "EACCES"),
            // Nor is it a grant of nameservers.
            case("ask(PUBLIC)", "ok"),
            case("ask_connected(PUBLIC6, INET6)", "ok"),
            case("ask_tcp(('127.0.0.53', 53))", "ok"),
            // Nor of the worker's own port.
            (format!("sock().connect(('127.0.0.1', {}))", worker.port()), "EPERM"),
            (
                format!(
                    "x = sock(); x.connect(('198.18.3.1', 443)); reached(x, '198.18.3.1', 443); connect_raw(x, bytes(16)); \
                      x.connect(('127.0.0.1', {})); closed_without_a_flow(x)",
                    worker.port()
                ),
                "ok",
            ),
        ],
    );

    // Every nameserver is granted by its port, so that none of them is this container's own. (There is no route.)
    kernel.install(id, &names(vec![net("::ffff:0.0.0.0", 96, Some(53), true)])).unwrap();
    inside(
        kernel,
        id,
        &[
            case("sock(INET, DGRAM).sendto(b'x', PUBLIC)", "ENETUNREACH"),
            case("sock().connect(PUBLIC)", "ENETUNREACH"),
        ],
    );

    let mut audit = names(Vec::new());
    audit.audit_mode = true;
    kernel.install(id, &audit).unwrap();
    inside(
        kernel,
        id,
        &[
            case("reach('198.18.3.1', 444)", "ok"),
            case("reach('198.18.3.9', 443)", "ok"),
            case("ask(PUBLIC)", "ok"),
            case("sock().connect(('198.18.4.1', 443))", "EPERM"),
            case("sock(INET, DGRAM).connect(('198.18.3.1', 443))", "EPERM"),
        ],
    );
}

pub(super) fn a_connection_is_whose_it_is(kernel: &mut Kernel) {
    // Any port of this machine may be bound: a client then comes from where it likes.
    let anywhere = vec![net("::ffff:0.0.0.0", 128, None, true), grant("::ffff:127.0.0.2", None)];
    let (id, worker) = with_worker(kernel, &names(anywhere));
    inside(
        kernel,
        id,
        &[
            case(
                "x = sock(); x.setsockopt(1, 2, 1); x.bind(('0.0.0.0', 4711)); x.connect(('198.18.3.1', 443)); reached(x, '198.18.3.1', 443)",
                "ok",
            ),
            case(
                "x = sock(); x.setsockopt(1, 2, 1); x.bind(('0.0.0.0', 4711)); x.connect(('198.18.3.2', 443)); reached(x, '198.18.3.2', 443)",
                "ok",
            ),
            // From another address than 127.0.0.1: a worker does not ask whose that is.
            case(
                "x = sock(); x.bind(('127.0.0.2', 4712)); x.connect(('198.18.3.2', 25)); closed_without_a_flow(x)",
                "ok",
            ),
            // Connections of one time, each its own.
            case(
                "all = [sock() for _ in range(40)]; [x.connect((f'198.18.3.{1 + n % 2}', 443)) for n, x in enumerate(all)]; \
                  [reached(x, f'198.18.3.{1 + n % 2}', 443) for n, x in enumerate(all)]",
                "ok",
            ),
        ],
    );

    // Whoever is not governed does not get to the worker.
    let direct = format!("sock().connect(('127.0.0.1', {}))", worker.port());
    outside(&[(direct, "EPERM")]);
    let quiet = Worker::new();
    kernel.set_redirect(id, Some(&quiet.listeners(BLOCK))).unwrap();
    let flows = kernel.flows();
    let peer = |port| std::net::SocketAddrV4::new(Ipv4Addr::LOCALHOST, port);
    let left = |port: u16| {
        case(
            &format!(
                "x = sock(); x.setsockopt(1, 13, struct.pack('<ii', 1, 0)); x.bind(('0.0.0.0', {port})); x.connect(('198.18.3.1', 443)); x.close()"
            ),
            "ok",
        )
    };
    inside(kernel, id, &[left(4720)]);
    assert!(flows.take(id, peer(4720)).unwrap().is_some(), "the control: it is left");

    // Another container's flow is not to be had.
    let other = kernel.create_container(0).unwrap();
    inside(kernel, id, &[left(4722)]);
    assert_eq!(flows.take(other, peer(4722)).unwrap(), None);
    assert!(flows.take(id, peer(4722)).unwrap().is_some());
    kernel.release(other).unwrap();
}

/// A connection that is over at once, and that nobody asks about, from this port; 0: from any.
fn left(to: &str, port: u16) -> String {
    format!(
        "x = sock(); x.setsockopt(1, 13, struct.pack('<ii', 1, 0)); x.bind(('127.0.0.1', {port})); x.connect(('{to}', 443)); x.close()"
    )
}

pub(super) fn connections_that_nobody_asks_about_push_out_none_of_others(kernel: &mut Kernel) {
    let quiet = |kernel: &mut Kernel, block: Ipv4Addr, first: &str| {
        let anywhere = net("::ffff:127.0.0.1", 128, None, true);
        let id = kernel.create_container(0).unwrap();
        kernel
            .install(id, &policy(true, vec![grant(&format!("::ffff:{first}"), Some(443)), anywhere]))
            .unwrap();
        let worker = Worker::new();
        kernel.set_redirect(id, Some(&worker.listeners(block))).unwrap();
        worker.accept_all();
        (id, worker)
    };
    let (victim, _its) = quiet(kernel, [198, 18, 5, 0].into(), "198.18.5.1");
    let (greedy, _its) = quiet(kernel, [198, 18, 6, 0].into(), "198.18.6.1");
    let flows = kernel.flows();
    let is_there = |id, port| {
        let peer = std::net::SocketAddrV4::new(Ipv4Addr::LOCALHOST, port);
        flows.take(id, peer).unwrap().is_some()
    };
    inside(kernel, victim, &[(left("198.18.5.1", 4730), "ok")]);
    let many = |count: usize| {
        let each = left("198.18.6.1", 0).replace("; ", "\n    ");
        (format!("for n in range({count}):\n    {each}"), "ok")
    };
    let before = flows.untaken();
    let cases = [(left("198.18.6.1", 4740), "ok"), (left("198.18.6.1", 4741), "ok"), many(FLOWS_EACH - 1)];
    inside(kernel, greedy, &cases);
    assert!(is_there(greedy, 4741), "its own last ones are kept");
    assert!(!is_there(greedy, 4740), "and no more of them");
    inside(kernel, greedy, &[many(3 * FLOWS_EACH)]);
    let more = flows.untaken() - before;
    assert!(more <= FLOWS_EACH && more > FLOWS_EACH / 2, "{more}: nothing is left behind");
    assert!(is_there(victim, 4730), "nobody else's is forgotten for that");
    // A port that is used again is not forgotten with the connection of before.
    let again =
        [(left("198.18.6.1", 4742), "ok"), many(FLOWS_EACH - 2), (left("198.18.6.1", 4742), "ok"), many(9)];
    inside(kernel, greedy, &again);
    assert!(is_there(greedy, 4742));
    assert!(flows.untaken() - before <= FLOWS_EACH);
    for id in [victim, greedy] {
        kernel.release(id).unwrap();
    }
}

pub(super) fn without_names_nothing_changes(kernel: &mut Kernel) {
    let id = kernel.create_container(0).unwrap();
    let server = UdpSocket::bind("127.77.0.2:53").unwrap();
    thread::spawn(move || {
        let mut text = [0; 100];
        while let Ok((_, peer)) = server.recv_from(&mut text) {
            let _ = server.send_to(b"granted", peer);
        }
    });
    let nets = vec![grant("::ffff:127.77.0.2", Some(53)), grant("::ffff:198.18.3.1", Some(443))];
    kernel.install(id, &policy(false, nets)).unwrap();
    let to_granted = "x = sock(INET, DGRAM); x.sendto(b'x', ('127.77.0.2', 53)); same(x.recvfrom(200), (b'granted', ('127.77.0.2', 53)))";
    inside(
        kernel,
        id,
        &[
            case("sock(INET, DGRAM).sendto(b'x', PUBLIC)", "EACCES"),
            case("sock().connect(PUBLIC)", "EACCES"),
            case(to_granted, "ok"),
            case(
                "x = sock(INET, DGRAM); x.connect(('127.77.0.2', 53)); same(x.getpeername(), ('127.77.0.2', 53))",
                "ok",
            ),
            // There is no route to it: it is let go.
            case("sock().connect(('198.18.3.1', 443))", "ENETUNREACH"),
            case("sock(INET, DGRAM).sendto(b'x', ('198.18.3.1', 443))", "ENETUNREACH"),
            case("sock().connect(('198.18.3.2', 443))", "EACCES"),
        ],
    );
    let mut audit = policy(false, Vec::new());
    audit.audit_mode = true;
    kernel.install(id, &audit).unwrap();
    inside(
        kernel,
        id,
        &[
            case(to_granted, "ok"),
            case("sock().connect(('198.18.3.2', 443))", "ENETUNREACH"),
            case("sock(INET, DGRAM).sendto(b'x', PUBLIC)", "ENETUNREACH"),
        ],
    );
}
