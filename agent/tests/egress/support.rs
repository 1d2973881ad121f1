//! The core's side of one worker, and the auditor's.

use ringfence_wire::{
    conn::Conn,
    egress::{
        AddressRule, EgressCause, EgressOutcome, EgressProxy, EgressRecord, EgressReport, EgressReports,
        EgressStart, Flow, FromEgress, MAX_QUESTION, MAX_REPORTS, NameOutcome, NameRule, Names, ProxyToken,
        ToEgress, Upload,
    },
    frame::read_message,
    mcp::McpReply,
};
use rustix::process::{Pid, Resource, Rlimit, prlimit};
use std::{
    collections::HashMap,
    fs::{self, File},
    io::{Read, Write},
    net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream, UdpSocket},
    os::{
        fd::{AsFd, OwnedFd},
        unix::net::UnixStream,
    },
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
    sync::{Arc, Condvar, Mutex},
    thread,
};

pub(crate) use ringfence_test_support::wait::{PATIENCE, eventually, wait_until};

pub(crate) const A: u16 = 1;
pub(crate) const TXT: u16 = 16;
pub(crate) const AAAA: u16 = 28;

/// Names that are granted: `HOST`, `HOST:PORT`, `tcp:HOST:PORT`.
pub(crate) fn names(granted: &[&str]) -> Names {
    let rule = |(at, text): (usize, &&str)| {
        let (text, tcp) = text.strip_prefix("tcp:").map_or((*text, false), |rest| (rest, true));
        let (host, port) = text.split_once(':').map_or((text, None), |(host, port)| (host, Some(port)));
        let port = port.map(|port| port.parse().unwrap());
        NameRule { host: host.to_owned(), port, tcp, rule: u32::try_from(at).unwrap() }
    };
    Names { rules: granted.iter().enumerate().map(rule).collect(), ..Names::default() }
}

/// The same, and loopback beside them: the tests' servers are there.
pub(crate) fn local(granted: &[&str]) -> Names {
    let allow = |net: &str| AddressRule { net: net.parse().unwrap(), port: None, allow: true };
    Names { addresses: vec![allow("127.0.0.0/8"), allow("::1/128")], ..names(granted) }
}

#[derive(Default)]
struct Flows {
    /// `None`: no governed task's.
    by_port: HashMap<u16, Option<Flow>>,
    /// Of all others.
    rest: Option<Flow>,
}

/// What a worker may have; nothing: whatever this process may.
#[derive(Default)]
struct Limits {
    descriptors: Option<u64>,
    /// Bytes that it may write to.
    memory: Option<u64>,
    /// What it has in the place of /etc, as somebody who is not root.
    etc: Option<PathBuf>,
}

/// See the module.
pub(crate) struct Core {
    dir: tempfile::TempDir,
    worker: Child,
    link: UnixStream,
    /// Where redirected connections arrive, and questions for names.
    pub(crate) tcp: SocketAddr,
    pub(crate) udp: SocketAddr,
    pub(crate) dns: SocketAddr,
    flows: Arc<(Mutex<Flows>, Condvar)>,
    heard: Arc<Mutex<Vec<FromEgress>>>,
    reports: Arc<Mutex<Vec<EgressReport>>>,
}

impl Core {
    /// With a line to the auditor.
    pub(crate) fn start(names: Names) -> Self {
        let core = Self::start_mute(names, false);
        core.line();
        core
    }

    pub(crate) fn start_audit(names: Names) -> Self {
        let core = Self::start_mute(names, true);
        core.line();
        core
    }

    /// Without a line to the auditor.
    pub(crate) fn start_mute(names: Names, audit: bool) -> Self {
        Self::start_in(names, audit, true)
    }

    /// The same, for a container whose network namespace is the host's or is not.
    pub(crate) fn start_in(names: Names, audit: bool, host_network: bool) -> Self {
        Self::start_with(names, audit, host_network, Limits::default(), Vec::new())
    }

    /// The same, after workers that had sent so much.
    pub(crate) fn start_after(names: Names, audit: bool, host_network: bool, uploads: Vec<Upload>) -> Self {
        Self::start_with(names, audit, host_network, Limits::default(), uploads)
    }

    /// The same, with a worker that may have so many descriptors.
    pub(crate) fn start_limited(
        names: Names,
        audit: bool,
        host_network: bool,
        descriptors: Option<u64>,
    ) -> Self {
        let limits = Limits { descriptors, ..Limits::default() };
        Self::start_with(names, audit, host_network, limits, Vec::new())
    }

    /// With a line to the auditor, and so many bytes of memory that the worker may write to, as the core leaves a user's.
    pub(crate) fn start_within(names: Names, memory: u64) -> Self {
        let limits = Limits { memory: Some(memory), ..Limits::default() };
        let core = Self::start_with(names, false, true, limits, Vec::new());
        core.line();
        core
    }

    /// The launcher of a run without a daemon: the worker is a proxy, for whoever has this token.
    pub(crate) fn start_proxy(names: Names, token: &str) -> Self {
        Self::start_proxy_within(names, token, None)
    }

    /// The same, with so many bytes of memory that the worker may write to.
    pub(crate) fn start_proxy_within(names: Names, token: &str, memory: Option<u64>) -> Self {
        let (profile, token) = ("tested".to_owned(), ProxyToken(token.to_owned()));
        let start = ToEgress::Proxy(EgressProxy { profile, names, token, uploads: Vec::new() });
        let core = Self::start_as(&start, Limits { memory, ..Limits::default() });
        core.line();
        core
    }

    /// The same, with a worker that has another /etc, and is not root's. Only root can start one.
    pub(crate) fn start_at(names: Names, etc: &Path) -> Self {
        let limits = Limits { etc: Some(etc.to_owned()), ..Limits::default() };
        let core = Self::start_with(names, false, true, limits, Vec::new());
        core.line();
        core
    }

    fn start_with(
        names: Names,
        audit: bool,
        host_network: bool,
        limits: Limits,
        uploads: Vec<Upload>,
    ) -> Self {
        let start = EgressStart {
            container: "0123456789ab".into(),
            profile: "tested".into(),
            block: "198.18.7.0/24".parse().unwrap(),
            names,
            audit,
            v6: false,
            host_network,
            uploads,
        };
        Self::start_as(&ToEgress::Start(start), limits)
    }

    fn start_as(start: &ToEgress, limits: Limits) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let tcp = TcpListener::bind("127.0.0.1:0").unwrap();
        let (udp, dns) = (UdpSocket::bind("127.0.0.1:0").unwrap(), TcpListener::bind("127.0.0.1:0").unwrap());
        let (ours, theirs) = UnixStream::pair().unwrap();
        let worker = command(limits.etc.as_deref())
            .arg("egress-worker")
            .stdin(OwnedFd::from(theirs))
            .stdout(Stdio::null())
            .stderr(File::create(dir.path().join("stderr")).unwrap())
            .env_clear()
            .env("RUST_LOG", "info")
            .spawn()
            .unwrap();
        for (resource, most) in [(Resource::Nofile, limits.descriptors), (Resource::Data, limits.memory)] {
            if most.is_some() {
                let limit = Rlimit { current: most, maximum: most };
                prlimit(Pid::from_raw(worker.id().cast_signed()), resource, limit).unwrap();
            }
        }
        let mut conn = Conn::new(ours.try_clone().unwrap(), PATIENCE, MAX_QUESTION);
        let sockets = [tcp.as_fd(), udp.as_fd(), dns.as_fd()];
        let count = if matches!(start, ToEgress::Proxy(_)) { 1 } else { sockets.len() };
        conn.send_with_descriptors(start, &sockets[..count]).unwrap();
        let core = Self {
            dir,
            worker,
            link: ours,
            tcp: tcp.local_addr().unwrap(),
            udp: udp.local_addr().unwrap(),
            dns: dns.local_addr().unwrap(),
            flows: Arc::default(),
            heard: Arc::default(),
            reports: Arc::default(),
        };
        let (flows, heard) = (Arc::clone(&core.flows), Arc::clone(&core.heard));
        thread::spawn(move || answer(conn, &flows, &heard));
        wait_until("the worker", || core.heard().contains(&FromEgress::Ready));
        core
    }

    /// The link, to say what no other function here does.
    pub(crate) fn link(&self) -> UnixStream {
        self.link.try_clone().unwrap()
    }

    pub(crate) fn order(&self, order: &ToEgress) {
        Conn::new(self.link.try_clone().unwrap(), PATIENCE, MAX_QUESTION).send(order).unwrap();
    }

    /// Gives the worker a line to the auditor, which hears it until the other end is closed.
    pub(crate) fn line(&self) -> UnixStream {
        let (ours, theirs) = UnixStream::pair().unwrap();
        Conn::new(self.link.try_clone().unwrap(), PATIENCE, MAX_QUESTION)
            .send_with_descriptors(&ToEgress::Line, &[theirs.as_fd()])
            .unwrap();
        let (mut hears, reports) = (ours.try_clone().unwrap(), Arc::clone(&self.reports));
        // As the auditor does it: once.
        Conn::new(ours.try_clone().unwrap(), PATIENCE, 100).send(&McpReply::Linked).unwrap();
        thread::spawn(move || {
            while let Ok(EgressReports { reports: more }) = read_message(&mut hears, MAX_REPORTS) {
                assert!((1..=64).contains(&more.len()));
                reports.lock().unwrap().extend(more);
            }
        });
        ours
    }

    pub(crate) fn heard(&self) -> Vec<FromEgress> {
        self.heard.lock().unwrap().clone()
    }

    pub(crate) fn reports(&self) -> Vec<EgressReport> {
        self.reports.lock().unwrap().clone()
    }

    pub(crate) fn pid(&self) -> u32 {
        self.worker.id()
    }

    /// A value of the worker's `/proc/PID/status`.
    pub(crate) fn status(&self, key: &str) -> String {
        let text = fs::read_to_string(format!("/proc/{}/status", self.pid())).unwrap();
        let line = text.lines().find_map(|line| line.strip_prefix(&format!("{key}:"))).unwrap();
        line.trim().to_owned()
    }

    pub(crate) fn kill(&mut self) {
        self.worker.kill().unwrap();
        self.worker.wait().unwrap();
    }

    /// Leaves the worker alone, as a core that was killed.
    pub(crate) fn leave(&self) {
        self.link.shutdown(Shutdown::Both).unwrap();
    }

    pub(crate) fn ended(&mut self) -> ExitStatus {
        let worker = &mut self.worker;
        eventually("the worker ends", || worker.try_wait().unwrap())
    }

    /// Of a connection to this address of the block.
    pub(crate) fn flow(address: Ipv4Addr, port: u16) -> Flow {
        Flow { address, port, call: 7, pid: 4711, tgid: 4711, start: 9, uid: 1000 }
    }

    /// All connections that nobody said anything of are to there.
    pub(crate) fn rest(&self, address: Ipv4Addr, port: u16) {
        self.flows.0.lock().unwrap().rest = Some(Self::flow(address, port));
        self.flows.1.notify_all();
    }

    /// A connection as the kernel redirects it.
    pub(crate) fn connect(&self, address: Ipv4Addr, port: u16) -> TcpStream {
        self.connect_as(Some(Self::flow(address, port)))
    }

    pub(crate) fn connect_as(&self, flow: Option<Flow>) -> TcpStream {
        let stream = TcpStream::connect(self.tcp).unwrap();
        stream.set_nodelay(true).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.set_write_timeout(Some(PATIENCE)).unwrap();
        self.flows.0.lock().unwrap().by_port.insert(stream.local_addr().unwrap().port(), flow);
        self.flows.1.notify_all();
        stream
    }

    /// Resolves a name, and connects to what it has.
    pub(crate) fn open(&self, name: &str, port: u16) -> TcpStream {
        let address = self.ask(name, A).1.expect("an address");
        self.connect(address, port)
    }

    /// Asks for a name over UDP: the code of the answer, and an address.
    pub(crate) fn ask(&self, name: &str, kind: u16) -> (u8, Option<Ipv4Addr>) {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        socket.send_to(&query(name, kind), self.udp).unwrap();
        let mut answer = [0; 1500];
        let count = socket.recv(&mut answer).unwrap();
        read_answer(&answer[..count])
    }

    /// What is on record of connections that are over.
    pub(crate) fn connections(&self) -> Vec<EgressRecord> {
        let records = self.reports().into_iter().map(|report| report.record);
        let is_over = |record: &EgressRecord| match record {
            EgressRecord::Connection { outcome, .. } => *outcome != EgressOutcome::Open,
            _ => false,
        };
        records.filter(is_over).collect()
    }

    /// How many began to pass.
    pub(crate) fn begun(&self) -> usize {
        let is_begun = |report: &EgressReport| {
            matches!(report.record, EgressRecord::Connection { outcome: EgressOutcome::Open, .. })
        };
        self.reports().iter().filter(|report| is_begun(report)).count()
    }

    /// How many connections that is: a refusal is recorded once in a while, with how many like it came.
    pub(crate) fn all_connections(&self) -> u64 {
        let more = |record: EgressRecord| match record {
            EgressRecord::Connection { reason: Some(reason), .. } => {
                let more = reason.rsplit_once(" (and ").and_then(|(_, more)| more.split_once(" more "));
                more.map_or(0, |(more, _)| more.parse().unwrap())
            }
            _ => 0,
        };
        self.connections().into_iter().map(|record| 1 + more(record)).sum()
    }

    /// Waits for a record of a connection that ended so.
    pub(crate) fn recorded(&self, outcome: EgressOutcome, cause: Option<EgressCause>) -> EgressRecord {
        eventually(&format!("{outcome:?} {cause:?}, {:?}", self.connections()), || {
            self.connections().into_iter().find(|record| {
                matches!(record, EgressRecord::Connection { outcome: o, cause: c, .. } if (*o, *c) == (outcome, cause))
            })
        })
    }

    /// Whether a name is on record so, and how often it was asked for in all.
    pub(crate) fn asked(&self, name: &str, outcome: NameOutcome) -> u64 {
        let times = |report: EgressReport| match report.record {
            EgressRecord::Name { name: of, outcome: o, repeats, .. } if of == name && o == outcome => {
                Some(repeats + 1)
            }
            _ => None,
        };
        self.reports().into_iter().filter_map(times).sum()
    }
}

impl Drop for Core {
    fn drop(&mut self) {
        let _ = self.worker.kill();
        let _ = self.worker.wait();
        if thread::panicking() {
            eprintln!("the worker said: {}", fs::read_to_string(self.dir.path().join("stderr")).unwrap());
            eprintln!("on record: {:#?}", self.reports());
        }
    }
}

/// The binary, with another /etc if that is said: that is nobody else's, and the process is the same one.
fn command(etc: Option<&Path>) -> Command {
    const RINGFENCE: &str = env!("CARGO_BIN_EXE_ringfence");
    let Some(etc) = etc else { return Command::new(RINGFENCE) };
    let mut command = Command::new("/usr/bin/unshare");
    let script =
        r#"mount --bind "$1" /etc && shift && exec setpriv --reuid=65534 --regid=65534 --clear-groups "$@""#;
    command.args(["-m", "/bin/sh", "-c", script, "sh"]).arg(etc).arg(RINGFENCE);
    command
}

fn answer(conn: Conn, flows: &Arc<(Mutex<Flows>, Condvar)>, heard: &Mutex<Vec<FromEgress>>) {
    let write = Arc::new(Mutex::new(Conn::new(conn.stream().try_clone().unwrap(), PATIENCE, MAX_QUESTION)));
    let mut conn = conn;
    while let Ok(said) = conn.receive::<FromEgress>() {
        heard.lock().unwrap().push(said.clone());
        let FromEgress::WhoIs { id, port } = said else { continue };
        let known = move |flows: &Flows| flows.by_port.get(&port).copied().or(flows.rest.map(Some));
        let now = known(&flows.0.lock().unwrap());
        let (flows, write) = (Arc::clone(flows), Arc::clone(&write));
        let say = move |flow| drop(write.lock().unwrap().send(&ToEgress::Flow { id, flow }));
        match now {
            Some(flow) => say(flow),
            // The kernel knows before the connection is there; a test says it afterwards.
            None => drop(thread::spawn(move || {
                let locked = flows.0.lock().unwrap();
                let is_unknown = |flows: &mut Flows| known(flows).is_none();
                let (locked, _) = flows.1.wait_timeout_while(locked, PATIENCE, is_unknown).unwrap();
                let flow = known(&locked).flatten();
                drop(locked);
                say(flow);
            })),
        }
    }
}

/// A question, as resolvers send it.
pub(crate) fn query(name: &str, kind: u16) -> Vec<u8> {
    let mut query = vec![0x12, 0x34, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0];
    for label in name.split('.') {
        query.push(u8::try_from(label.len()).unwrap());
        query.extend(label.as_bytes());
    }
    query.push(0);
    query.extend(kind.to_be_bytes());
    query.extend([0, 1]);
    query
}

/// The code of an answer, and the address in it.
pub(crate) fn read_answer(answer: &[u8]) -> (u8, Option<Ipv4Addr>) {
    assert_eq!(answer[..2], [0x12, 0x34]);
    let address = answer.last_chunk::<4>().map(|last| Ipv4Addr::from(*last));
    (answer[3] & 15, address.filter(|_| answer[7] == 1))
}

/// What comes until the end, or a reset.
pub(crate) fn rest_of(mut stream: &TcpStream) -> Vec<u8> {
    let mut rest = Vec::new();
    let _ = stream.read_to_end(&mut rest);
    rest
}

/// Whether a connection is reset, or ends, without a byte.
pub(crate) fn is_refused(stream: &TcpStream) -> bool {
    rest_of(stream).is_empty()
}

/// Writes all, unless the other end is gone.
pub(crate) fn say(mut stream: &TcpStream, bytes: &[u8]) {
    let _ = stream.write_all(bytes);
}
