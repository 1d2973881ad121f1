//! Tests in the guest, as in `vm`: outbound names, with a small server in the place of the egress worker.

mod names;
mod resolver;
mod sockets;

use super::vm::{self, fresh};
use crate::*;
use ringfence_common::{
    egress::FLOWS_EACH,
    policy::{RECORD_NET, axis},
};
use ringfence_policy::compiled::{CompiledPolicy, NetRule};
use ringfence_wire::egress::{NameRule, Names};
use std::{
    io::{Read, Write},
    net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream, UdpSocket},
    os::fd::AsFd,
    path::Path,
    process::{Child, Command, Stdio},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::Duration,
};

const PRELUDE: &str = include_str!("prelude.py");
const BLOCK: Ipv4Addr = Ipv4Addr::new(198, 18, 3, 0);
/// The end of a pair of devices that packets leave by, and the one that they come to.
const DEVICES: [&str; 2] = ["rf-out", "rf-wire"];

fn grant(addr: &str, port: Option<u16>) -> NetRule {
    net(addr, 128, port, true)
}

fn net(addr: &str, prefix: u8, port: Option<u16>, allow: bool) -> NetRule {
    NetRule { addr: addr.parse().unwrap(), prefix, port, allow, rule: 7 }
}

/// A policy over addresses; `names`: hosts are granted by name.
fn policy(names: bool, nets: Vec<NetRule>) -> CompiledPolicy {
    let rule = NameRule { host: "example.org".into(), port: None, tcp: false, rule: 0 };
    CompiledPolicy {
        record: RECORD_NET,
        inet: true,
        capabilities: ringfence_policy::Capabilities::ALL,
        nets,
        names: Names { rules: names.then_some(rule).into_iter().collect(), ..Names::default() },
        ..super::policy(axis::READ | axis::WRITE | axis::EXEC | axis::MAP | axis::UNIX, Vec::new())
    }
}

/// What two names of the block grant, and what else a test needs.
fn names(more: Vec<NetRule>) -> CompiledPolicy {
    let mut nets = vec![grant("::ffff:198.18.3.1", Some(443)), grant("::ffff:198.18.3.2", None)];
    nets.extend(more);
    policy(true, nets)
}

/// The sockets of a worker, each served by a thread: who connects is told whom the kernel takes it for.
struct Worker {
    tcp: TcpListener,
    dns_udp: UdpSocket,
    dns_tcp: TcpListener,
    dns6_udp: UdpSocket,
    dns6_tcp: TcpListener,
    left: Arc<AtomicBool>,
}

impl Worker {
    fn new() -> Self {
        let tcp = |at: &str| TcpListener::bind(at).unwrap();
        let udp = |at: &str| UdpSocket::bind(at).unwrap();
        Self {
            tcp: tcp("127.0.0.1:0"),
            dns_udp: udp("127.0.0.1:0"),
            dns_tcp: tcp("127.0.0.1:0"),
            dns6_udp: udp("[::1]:0"),
            dns6_tcp: tcp("[::1]:0"),
            left: Arc::default(),
        }
    }

    fn port(&self) -> u16 {
        self.tcp.local_addr().unwrap().port()
    }

    fn listeners(&self, block: Ipv4Addr) -> Listeners<'_> {
        Listeners {
            block,
            tcp: self.tcp.as_fd(),
            dns_udp: self.dns_udp.as_fd(),
            dns_tcp: self.dns_tcp.as_fd(),
            dns6: Some([self.dns6_udp.as_fd(), self.dns6_tcp.as_fd()]),
        }
    }

    /// Accepts and never asks whose a connection is.
    fn accept_all(&self) {
        let tcp = self.tcp.try_clone().unwrap();
        thread::spawn(move || tcp.incoming().for_each(drop));
    }

    /// Its datagram sockets are closed, soon.
    fn leave(self) {
        self.left.store(true, Ordering::Relaxed);
    }

    fn serve(&self, flows: Flows, id: ContainerId) {
        let tcp = self.tcp.try_clone().unwrap();
        thread::spawn(move || {
            while let Ok((one, peer)) = tcp.accept() {
                let SocketAddr::V4(peer) = peer else { panic!("{peer}") };
                let text = match flows.take(id, peer).unwrap() {
                    Some(flow) => format!("{}:{} {}", flow.address, flow.port, flow.tgid),
                    None => "nobody".to_owned(),
                };
                assert_eq!(flows.take(id, peer).unwrap(), None, "a flow is taken once");
                thread::spawn(move || say(one, &text));
            }
        });
        for tcp in [&self.dns_tcp, &self.dns6_tcp].map(|tcp| tcp.try_clone().unwrap()) {
            thread::spawn(move || {
                for mut one in tcp.incoming().flatten() {
                    let mut text = [0; 100];
                    let count = one.read(&mut text).unwrap_or(0);
                    say(one, &format!("resolver:{}", String::from_utf8_lossy(&text[..count])));
                }
            });
        }
        for udp in [&self.dns_udp, &self.dns6_udp].map(|udp| udp.try_clone().unwrap()) {
            let left = Arc::clone(&self.left);
            udp.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
            thread::spawn(move || {
                let mut text = [0; 100];
                while !left.load(Ordering::Relaxed) {
                    let Ok((count, peer)) = udp.recv_from(&mut text) else { continue };
                    let answer = [b"resolver:", &text[..count]].concat();
                    let _ = udp.send_to(&answer, peer);
                }
            });
        }
    }
}

/// Says something, and reads what is left, so that nothing is lost by a reset.
fn say(mut one: TcpStream, text: &str) {
    let _ = one.write_all(text.as_bytes());
    let _ = one.shutdown(Shutdown::Write);
    let _ = one.set_read_timeout(Some(Duration::from_secs(60)));
    let _ = one.read_to_end(&mut Vec::new());
}

/// A container that hosts are granted to by name, and its worker.
fn with_worker(kernel: &mut Kernel, policy: &CompiledPolicy) -> (ContainerId, Worker) {
    let id = kernel.create_container(0).unwrap();
    kernel.install(id, policy).unwrap();
    let worker = Worker::new();
    kernel.set_redirect(id, Some(&worker.listeners(BLOCK))).unwrap();
    worker.serve(kernel.flows(), id);
    (id, worker)
}

/// The code that makes each call in a process of its own.
fn script(calls: &[String]) -> String {
    format!("{PRELUDE}\nrun({calls:?})\n")
}

fn compare(text: &str, cases: &[(String, &str)]) {
    let found: Vec<_> = text.lines().collect();
    assert_eq!(found.len(), cases.len(), "{text}");
    let wrong: Vec<_> = cases.iter().zip(&found).filter(|((_, wanted), found)| wanted != *found).collect();
    eprintln!("# {} calls, {} wrong", cases.len(), wrong.len());
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// What calls come to inside the container.
#[track_caller]
fn inside(kernel: &Kernel, id: ContainerId, cases: &[(String, &str)]) {
    let calls: Vec<_> = cases.iter().map(|(call, _)| call.clone()).collect();
    compare(&vm::python(kernel, id, &script(&calls)), cases);
}

/// And where nothing governs them.
#[track_caller]
fn outside(cases: &[(String, &str)]) {
    let calls: Vec<_> = cases.iter().map(|(call, _)| call.clone()).collect();
    let output = Command::new("/usr/bin/python3").args(["-IS", "-c", &script(&calls)]).output().unwrap();
    compare(&format!("{}{}", text(&output.stdout), text(&output.stderr)), cases);
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn case(call: &str, wanted: &'static str) -> (String, &'static str) {
    (call.to_owned(), wanted)
}

/// Two devices, of which everything that is not this machine's leaves by the one and is seen at the other.
struct Wire;

impl Wire {
    fn new() -> Self {
        let [out, wire] = DEVICES;
        let _ = Command::new("ip").args(["link", "del", out]).output();
        for line in [
            format!("link add {out} type veth peer name {wire}"),
            format!("addr add 10.99.0.1/24 dev {out}"),
            format!("link set {out} up"),
            format!("link set {wire} up"),
            format!("neigh add 10.99.0.2 lladdr 02:00:00:00:00:02 dev {out}"),
            format!("neigh add 10.99.0.53 lladdr 02:00:00:00:00:02 dev {out}"),
            format!("neigh add 127.0.0.1 lladdr 02:00:00:00:00:02 dev {out}"),
            format!("route add default via 10.99.0.2 dev {out}"),
            format!("-6 addr add 2001:db8::1/64 dev {out} nodad"),
            format!("-6 neigh add 2001:db8::2 lladdr 02:00:00:00:00:02 dev {out}"),
            format!("-6 route add default via 2001:db8::2 dev {out}"),
        ] {
            let output = Command::new("ip").args(line.split(' ')).output().unwrap();
            assert!(output.status.success(), "ip {line}: {}", text(&output.stderr));
        }
        Self
    }

    /// Notes what arrives from now on. The socket has no protocol before it has a device: until then it would see all of them.
    fn watch(&self) -> Watch {
        let code = "import os, socket, sys, threading\n\
             one = socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, 0)\n\
             one.bind((sys.argv[1], 3))\n\
             seen = set()\n\
             def look():\n\
             \x20   while True:\n\
             \x20       p = one.recv(2000)\n\
             \x20       if len(p) < 24 or p[0] >> 4 not in (4, 6): continue\n\
             \x20       if p[0] >> 4 == 4: kind, to, at = p[9], socket.inet_ntoa(p[16:20]), (p[0] & 15) * 4\n\
             \x20       else: kind, to, at = p[6], socket.inet_ntop(socket.AF_INET6, p[24:40]), 40\n\
             \x20       if kind in (6, 17): seen.add(f'{\"tcp\" if kind == 6 else \"udp\"} {to} {int.from_bytes(p[at + 2:at + 4])}')\n\
             threading.Thread(target=look, daemon=True).start()\n\
             print('up', flush=True)\n\
             sys.stdin.read()\n\
             print('\\n'.join(sorted(seen)), flush=True)\n\
             os._exit(0)";
        let mut child = Command::new("/usr/bin/python3")
            .args(["-IS", "-c", code, DEVICES[1]])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        child.stdout.as_mut().unwrap().read_exact(&mut [0; 3]).unwrap();
        Watch(child)
    }
}

impl Drop for Wire {
    fn drop(&mut self) {
        let _ = Command::new("ip").args(["link", "del", DEVICES[0]]).output();
    }
}

/// See [`Wire::watch`].
struct Watch(Child);

impl Watch {
    /// What arrived: protocol, address, port of each packet. Ends with a packet of its own, so that all before it were seen.
    fn seen(mut self) -> Vec<String> {
        let last = UdpSocket::bind("10.99.0.1:0").unwrap();
        last.send_to(b"last", "10.99.0.2:9").unwrap();
        thread::sleep(Duration::from_millis(500));
        drop(self.0.stdin.take());
        let output = self.0.wait_with_output().unwrap();
        let mut seen: Vec<_> = text(&output.stdout).lines().map(str::to_owned).collect();
        assert!(seen.iter().any(|line| line == "udp 10.99.0.2 9"), "the watcher sees: {seen:?}");
        seen.retain(|line| line != "udp 10.99.0.2 9");
        seen
    }
}

/// With one load, which takes longer than all of them.
#[test]
#[ignore = "loads eBPF: for the guest"]
fn outbound_names_are_held() {
    let (_one, mut kernel, _rings) = fresh();
    resolver::queries_go_to_the_containers_resolver(&mut kernel);
    resolver::nothing_leaves_the_machine(&mut kernel);
    names::addresses_of_names_lead_to_the_worker(&mut kernel);
    names::a_connection_is_whose_it_is(&mut kernel);
    names::connections_that_nobody_asks_about_push_out_none_of_others(&mut kernel);
    names::without_names_nothing_changes(&mut kernel);
    sockets::sockets_of_others(&mut kernel);
    sockets::a_worker_that_is_gone(&mut kernel);
    sockets::other_namespaces(&mut kernel);
    sockets::strangers(&mut kernel);
}

#[test]
#[ignore = "loads eBPF: for the guest"]
fn outbound_names_cost_nobody_who_has_none() {
    let (_one, kernel, rings) = fresh();
    sockets::attached_while_needed(kernel, rings);
}

#[test]
#[ignore = "loads eBPF: for the guest"]
fn an_upgrade_keeps_outbound_names() {
    let (_one, mut kernel, rings) = fresh();
    sockets::an_upgrade(&mut kernel);
    drop((kernel, rings));
}
