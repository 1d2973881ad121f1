//! The worker as the core starts it. What the kernel knows of a connection is told from here.

use anyhow::{Context, Result, bail};
use ringfence_wire::{
    conn::Conn,
    egress::{AddressRule, EgressStart, Flow, FromEgress, MAX_QUESTION, NameRule, Names, ToEgress},
};
use std::{
    fs,
    net::{Ipv4Addr, SocketAddr, TcpListener, UdpSocket},
    os::{
        fd::{AsFd, OwnedFd},
        unix::net::UnixStream,
    },
    path::Path,
    process::{Child, Command, Stdio},
    sync::{
        Arc,
        atomic::{AtomicU16, Ordering},
    },
    thread,
    time::Duration,
};

/// How long a message or an answer may take.
const PATIENCE: Duration = Duration::from_secs(60);
/// A type `A` question for `localhost`, as resolvers send it.
const QUESTION: &[u8] = b"\x12\x34\x01\x00\x00\x01\x00\x00\x00\x00\x00\x00\x09localhost\x00\x00\x01\x00\x01";
/// What stands for the first name of the block.
const ADDRESS: Ipv4Addr = Ipv4Addr::new(198, 18, 7, 1);

/// A process that ends with this value.
pub(crate) struct Ended(pub(crate) Child);

impl Drop for Ended {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// See the module.
pub(crate) struct Worker {
    child: Ended,
    tcp: SocketAddr,
    udp: SocketAddr,
    /// Where connections go that come from now on: one is made after the other.
    port: Arc<AtomicU16>,
    _dns: TcpListener,
    /// What it would have for the record, which nobody reads here.
    _line: UnixStream,
}

impl Worker {
    /// One that may reach these ports of a host, whose address is in `net`.
    pub(crate) fn start(ringfence: &Path, host: &str, net: &str, ports: &[u16]) -> Result<Self> {
        let (tcp, dns) = (TcpListener::bind("127.0.0.1:0")?, TcpListener::bind("127.0.0.1:0")?);
        let udp = UdpSocket::bind("127.0.0.1:0")?;
        let (ours, theirs) = UnixStream::pair()?;
        let mut command = Command::new(ringfence);
        command.arg("egress-worker").stdin(OwnedFd::from(theirs)).stdout(Stdio::null()).env_clear();
        let child = Ended(command.spawn().context("cannot start the worker")?);
        let rule = |port: &u16| NameRule { host: host.to_owned(), port: Some(*port), tcp: false, rule: 0 };
        let reached = AddressRule { net: net.parse()?, port: None, allow: true };
        let names =
            Names { rules: ports.iter().map(rule).collect(), addresses: vec![reached], ..Names::default() };
        let start = EgressStart {
            container: "0123456789ab".into(),
            profile: "measured".into(),
            block: "198.18.7.0/24".parse()?,
            names,
            audit: false,
            v6: false,
            host_network: true,
            uploads: Vec::new(),
        };
        let mut conn = Conn::new(ours, PATIENCE, MAX_QUESTION);
        conn.send_with_descriptors(&ToEgress::Start(start), &[tcp.as_fd(), udp.as_fd(), dns.as_fd()])?;
        while conn.receive::<FromEgress>()? != FromEgress::Ready {}
        let (line, auditor) = UnixStream::pair()?;
        conn.send_with_descriptors(&ToEgress::Line, &[auditor.as_fd()])?;
        read_all(line.try_clone()?);
        let port = Arc::new(AtomicU16::new(0));
        let (addresses, asked) = ((tcp.local_addr()?, udp.local_addr()?), Arc::clone(&port));
        thread::spawn(move || answer(conn, &asked));
        Ok(Self { child, tcp: addresses.0, udp: addresses.1, port, _dns: dns, _line: line })
    }

    /// Where the next connection, which is to this port of the name, arrives.
    pub(crate) fn redirected(&self, port: u16) -> SocketAddr {
        self.port.store(port, Ordering::SeqCst);
        self.tcp
    }

    pub(crate) fn resolver(&self) -> Result<Resolver> {
        let socket = UdpSocket::bind("127.0.0.1:0")?;
        socket.connect(self.udp)?;
        socket.set_read_timeout(Some(PATIENCE))?;
        Ok(Resolver { socket })
    }

    /// What it has for itself, MB.
    pub(crate) fn memory(&self) -> Result<f64> {
        let text = fs::read_to_string(format!("/proc/{}/smaps_rollup", self.child.0.id()))?;
        let kib = |key| {
            let line = text.lines().find_map(|line| line.strip_prefix(key));
            line.and_then(|line| line.trim().strip_suffix(" kB")?.parse::<f64>().ok())
        };
        let private = kib("Private_Dirty:").zip(kib("Private_Clean:")).context("no sizes of memory")?;
        Ok((private.0 + private.1) * 1024.0 / 1e6)
    }
}

/// Asks the worker for a name.
pub(crate) struct Resolver {
    socket: UdpSocket,
}

impl Resolver {
    pub(crate) fn ask(&self) -> Result<()> {
        self.socket.send(QUESTION)?;
        let mut answer = [0; 512];
        let count = self.socket.recv(&mut answer).context("no answer to a question")?;
        if !answer.get(..count).is_some_and(|answer| answer.ends_with(&ADDRESS.octets())) {
            bail!("the answer has not the name's address");
        }
        Ok(())
    }
}

/// As the auditor: reads until the end.
fn read_all(mut line: UnixStream) {
    thread::spawn(move || {
        let _ = Conn::new(line.try_clone().ok()?, PATIENCE, 100).send(&"linked");
        std::io::copy(&mut line, &mut std::io::sink()).ok()
    });
}

/// As the core: whose a connection is.
fn answer(mut conn: Conn, port: &AtomicU16) {
    while let Ok(said) = conn.receive::<FromEgress>() {
        let FromEgress::WhoIs { id, .. } = said else { continue };
        let port = port.load(Ordering::SeqCst);
        let flow = Flow { address: ADDRESS, port, call: 0, pid: 1, tgid: 1, start: 1, uid: 0 };
        if conn.send(&ToEgress::Flow { id, flow: Some(flow) }).is_err() {
            return;
        }
    }
}
