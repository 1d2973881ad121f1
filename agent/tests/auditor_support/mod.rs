//! A stand-in for the core: starts the real auditor over real sockets and feeds it records made by hand.

#![allow(dead_code, reason = "each test binary uses its own part")]
#![expect(clippy::expect_used, reason = "a test fails by panicking")]

use ringfence_common::{
    ABI_VERSION,
    event::{Header, SLACK, SMALL_SECTION, op, rule, verdict},
};
use ringfence_test_support::wait::wait_until;
use ringfence_wire::{
    audit::{
        AgentReport, Answer, Batch, FromCore, Handoff, Manifest, Notice, PassedFd, PeerFacts, PeerQuestion,
        Slot, Subordinate,
    },
    conn::Conn,
    event::RuleText,
    frame,
    message::{AuditorStatus, QueryReply, QueryRequest, Reply},
    packets::Packets,
};
use std::{
    collections::VecDeque,
    io::Read,
    mem::{offset_of, size_of},
    net::TcpListener,
    os::{
        fd::{AsFd, OwnedFd},
        unix::{
            fs::PermissionsExt,
            net::{UnixListener, UnixStream},
        },
    },
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

pub(crate) use ringfence_test_support::wait::PATIENCE;

/// A record's numbers and names, ready to be laid out.
#[derive(Clone)]
pub(crate) struct Made {
    pub(crate) op: u8,
    pub(crate) verdict: u8,
    pub(crate) flags: u32,
    pub(crate) container: u64,
    pub(crate) generation: u32,
    pub(crate) tgid: u32,
    /// When, and when its process was born: ns since boot.
    pub(crate) time: u64,
    pub(crate) start: u64,
    pub(crate) uid: u32,
    pub(crate) detail: u32,
    pub(crate) rule_kind: u32,
    pub(crate) rule: u32,
    pub(crate) axes: u32,
    pub(crate) family: u16,
    pub(crate) port: u16,
    pub(crate) addr: [u8; 16],
    pub(crate) path: Vec<Vec<u8>>,
    pub(crate) path2: Vec<Vec<u8>>,
}

/// A denied open of a path, by `/usr/bin/cat`, in container 0x1005.
pub(crate) fn denied(path: &str) -> Made {
    Made {
        op: op::OPEN,
        verdict: verdict::DENIED,
        flags: 0,
        container: 0x1005,
        generation: 1,
        tgid: 4321,
        time: 1_000_000_000,
        start: 900_000_000,
        uid: 1000,
        detail: 0,
        rule_kind: rule::DEFAULT,
        rule: 0,
        axes: 1,
        family: 0,
        port: 0,
        addr: [0; 16],
        path: components(path.as_bytes()),
        path2: Vec::new(),
    }
}

/// A path's components.
pub(crate) fn components(path: &[u8]) -> Vec<Vec<u8>> {
    path.split(|b| *b == b'/').filter(|c| !c.is_empty()).map(<[u8]>::to_vec).collect()
}

impl Made {
    /// The bytes as our programs would write them: fields at their offsets, sections leaf first.
    pub(crate) fn bytes(&self) -> Vec<u8> {
        let mut raw = vec![0; size_of::<Header>() + 3 * SMALL_SECTION + SLACK];
        macro_rules! put {
            ($($field:ident = $value:expr;)*) => {$({
                let bytes = $value.to_ne_bytes();
                let at = offset_of!(Header, $field);
                raw[at..at + bytes.len()].copy_from_slice(&bytes);
            })*};
        }
        put! {
            version = ABI_VERSION as u16;
            op = self.op;
            verdict = self.verdict;
            flags = self.flags;
            time = self.time;
            container = self.container;
            start = self.start;
            generation = self.generation;
            pid = self.tgid;
            tgid = self.tgid;
            ppid = self.tgid - 1;
            uid = self.uid;
            detail = self.detail;
            repeats = 1u32;
            rule_kind = self.rule_kind;
            rule = self.rule;
            axes = self.axes;
            family = self.family;
            port = self.port;
            section = SMALL_SECTION as u16;
        }
        let at = offset_of!(Header, addr);
        raw[at..at + 16].copy_from_slice(&self.addr);
        let exe = components(b"/usr/bin/cat");
        let sections = [
            (offset_of!(Header, path_len), &self.path),
            (offset_of!(Header, path2_len), &self.path2),
            (offset_of!(Header, exe_len), &exe),
        ];
        for (n, (length_at, names)) in sections.into_iter().enumerate() {
            let bytes: Vec<u8> =
                names.iter().rev().flat_map(|c| [&[c.len() as u8], c.as_slice()].concat()).collect();
            raw[length_at..length_at + 2].copy_from_slice(&(bytes.len() as u16).to_ne_bytes());
            let at = size_of::<Header>() + n * SMALL_SECTION;
            raw[at..at + bytes.len()].copy_from_slice(&bytes);
        }
        raw
    }
}

/// A manifest with two rules: a deny in slot 80, an allow in slot 81.
pub(crate) fn manifest(container: u64, public: &str, profile: &str, uid: u32) -> Manifest {
    let rule = |id: &str, line, key: &str, text: &str| RuleText {
        id: id.into(),
        file: Some("/etc/ringfence/profiles/coder.toml".into()),
        line,
        key: key.into(),
        text: text.into(),
    };
    Manifest {
        container,
        public: public.into(),
        profile: profile.into(),
        uid,
        created: 0,
        generation: 1,
        rules: vec![
            rule("deny.fs_read:/etc/shadow", 12, "deny.fs_read", "/etc/shadow"),
            rule("fs_read:/etc", 5, "grant.fs_read", "/etc"),
        ],
        slots: vec![
            Slot { slot: 80, deny: [Some(0), None, None, None, None], ..Slot::default() },
            Slot { slot: 81, allow: [Some(1), None, None, None, None], ..Slot::default() },
        ],
        more: false,
    }
}

/// Batches by number.
type Unacked = VecDeque<(u64, Vec<u8>)>;

/// The core's half: directories, the listening query socket, unacknowledged batches, and the running auditor.
pub(crate) struct Core {
    pub(crate) dir: tempfile::TempDir,
    listener: UnixListener,
    mcp: UnixListener,
    dashboard: TcpListener,
    /// What this core says of every peer: that it is governed.
    pub(crate) governed: Arc<AtomicBool>,
    /// It answers no question about peers.
    pub(crate) silent: Arc<AtomicBool>,
    /// Whose subordinate ids are, for auditors to come.
    pub(crate) subordinates: Vec<Subordinate>,
    session: String,
    sequence: u64,
    unacked: Arc<Mutex<Unacked>>,
    manifests: Vec<Manifest>,
    running: Option<Running>,
}

struct Running {
    child: Child,
    link: Arc<Mutex<UnixStream>>,
    answers: thread::JoinHandle<()>,
    stderr: thread::JoinHandle<String>,
    /// Last batch that this auditor said is stored.
    stored: Arc<AtomicU64>,
    vouching: Arc<Packets>,
}

impl Core {
    /// A core with an auditor that knows container 0x1005 (`0123456789ab`, profile `coder`) of this user.
    pub(crate) fn start() -> Self {
        let mut core = Self::idle();
        core.manifests.push(manifest(0x1005, "0123456789ab", "coder", uid()));
        core.spawn();
        core
    }

    /// A core with no auditor yet.
    pub(crate) fn idle() -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        std::fs::set_permissions(dir.path(), PermissionsExt::from_mode(0o755)).expect("chmod");
        std::fs::create_dir(dir.path().join("state")).expect("mkdir");
        let socket = dir.path().join("query.sock");
        let listener = UnixListener::bind(&socket).expect("binds");
        std::fs::set_permissions(&socket, PermissionsExt::from_mode(0o666)).expect("chmod");
        let mcp = UnixListener::bind(dir.path().join("mcp.sock")).expect("binds");
        std::fs::set_permissions(dir.path().join("mcp.sock"), PermissionsExt::from_mode(0o666))
            .expect("chmod");
        let dashboard = TcpListener::bind(("127.0.0.1", 0)).expect("a port");
        dashboard.set_nonblocking(true).expect("a flag");
        Self {
            dir,
            listener,
            mcp,
            dashboard,
            governed: Arc::default(),
            silent: Arc::default(),
            subordinates: Vec::new(),
            session: "test".into(),
            sequence: 0,
            unacked: Arc::default(),
            manifests: Vec::new(),
            running: None,
        }
    }

    pub(crate) fn state(&self) -> PathBuf {
        self.dir.path().join("state")
    }

    pub(crate) fn database(&self) -> PathBuf {
        self.state().join("audit.db")
    }

    /// Starts an auditor: greets it, announces the containers, sends again what is not acknowledged.
    pub(crate) fn spawn(&mut self) {
        let (ours, theirs) = UnixStream::pair().expect("a pair");
        let listener = self.listener.try_clone().expect("dup");
        let mut child = Command::new(env!("CARGO_BIN_EXE_ringfence"))
            .arg("auditor")
            .arg("--state")
            .arg(self.state())
            .stdin(Stdio::from(OwnedFd::from(theirs)))
            .stdout(Stdio::from(OwnedFd::from(listener)))
            .stderr(Stdio::piped())
            .spawn()
            .expect("starts");
        let (vouching, peers) = Packets::pair().expect("a pair");
        let fds = vec![PassedFd::Mcp, PassedFd::Dashboard, PassedFd::Peers];
        let descriptors = [self.mcp.as_fd(), self.dashboard.as_fd(), peers.as_fd()];
        Conn::new(ours.try_clone().expect("dup"), PATIENCE, 4096)
            .send_with_descriptors(&Handoff { fds }, &descriptors)
            .expect("hands off");
        ours.set_write_timeout(None).expect("a flag");
        vouching
            .send(&FromCore::Owners { ranges: self.subordinates.clone() }, None, None)
            .expect("tells whose ids are");
        let vouching = Arc::new(vouching);
        for _ in 0..4 {
            let (vouching, governed) = (Arc::clone(&vouching), Arc::clone(&self.governed));
            let silent = Arc::clone(&self.silent);
            thread::spawn(move || vouch(&vouching, &governed, &silent));
        }
        let mut log = child.stderr.take().expect("piped");
        let stderr = thread::spawn(move || {
            let mut text = String::new();
            let _ = log.read_to_string(&mut text);
            text
        });
        let link = Arc::new(Mutex::new(ours.try_clone().expect("dup")));
        let stored = Arc::new(AtomicU64::new(u64::MAX));
        let answers = thread::spawn({
            let (link, stored, unacked) = (Arc::clone(&link), Arc::clone(&stored), Arc::clone(&self.unacked));
            let mut ours = ours;
            move || {
                while let Ok(body) = frame::read_frame(&mut ours, 9) {
                    match Answer::parse(&body).expect("an answer") {
                        Answer::Stored(sequence) => {
                            unacked.lock().expect("lock").retain(|(n, _)| *n > sequence);
                            stored.store(sequence, Ordering::SeqCst);
                        }
                        Answer::Flush(token) => {
                            let body = Notice::Flushed { token }.to_body().expect("serialises");
                            let _ = frame::write_frame(&mut *link.lock().expect("lock"), &body);
                        }
                    }
                }
            }
        });
        self.running = Some(Running { child, link, answers, stderr, stored, vouching });
        self.tell(&Notice::Hello { session: self.session.clone(), boot: "boot".into() });
        for manifest in self.manifests.clone() {
            for notice in manifest.notices() {
                self.tell(&notice);
            }
        }
        let again: Vec<_> = self.unacked.lock().expect("lock").iter().cloned().collect();
        for (_, body) in again {
            self.send(&body);
        }
    }

    pub(crate) fn announce(&mut self, manifest: Manifest) {
        self.manifests.push(manifest.clone());
        for notice in manifest.notices() {
            self.tell(&notice);
        }
    }

    pub(crate) fn tell(&self, notice: &Notice) {
        self.send(&notice.to_body().expect("serialises"));
    }

    /// Sends records as one batch.
    pub(crate) fn records(&mut self, records: impl IntoIterator<Item = Made>) {
        self.raw(records.into_iter().map(|r| r.bytes()));
    }

    pub(crate) fn raw(&mut self, records: impl IntoIterator<Item = Vec<u8>>) {
        self.batch(Batch::new, records);
    }

    /// Sends what workers reported as one batch.
    pub(crate) fn reports(&mut self, reports: impl IntoIterator<Item = AgentReport>) {
        let reports = reports.into_iter().map(|report| serde_json::to_vec(&report).expect("serialises"));
        self.batch(Batch::of_reports, reports);
    }

    fn batch(&mut self, empty: impl FnOnce(u64) -> Batch, items: impl IntoIterator<Item = Vec<u8>>) {
        self.sequence += 1;
        let mut batch = empty(self.sequence);
        for item in items {
            assert!(batch.push(&item), "the batch is full");
        }
        let body = batch.into_body();
        self.unacked.lock().expect("lock").push_back((self.sequence, body.clone()));
        self.send(&body);
    }

    /// An auditor that is gone does not take it; the next one gets it again.
    fn send(&self, body: &[u8]) {
        if let Some(running) = &self.running {
            let _ = frame::write_frame(&mut *running.link.lock().expect("lock"), body);
        }
    }

    /// Waits until everything sent is stored.
    pub(crate) fn settle(&self) {
        let until = Instant::now() + PATIENCE;
        while self.stored() != Some(self.sequence) {
            assert!(Instant::now() < until, "batch {} is not stored, {:?} is", self.sequence, self.stored());
            thread::sleep(Duration::from_millis(5));
        }
    }

    /// Waits until the auditor answered the greeting.
    pub(crate) fn settle_hello(&self) {
        wait_until("the auditor answers", || self.stored().is_some());
    }

    /// What this auditor last said is stored; `None`: nothing said yet.
    pub(crate) fn stored(&self) -> Option<u64> {
        let stored = self.running.as_ref()?.stored.load(Ordering::SeqCst);
        (stored != u64::MAX).then_some(stored)
    }

    pub(crate) fn pid(&self) -> u32 {
        self.running.as_ref().expect("runs").child.id()
    }

    /// kill -9.
    pub(crate) fn kill(&mut self) {
        let mut running = self.running.take().expect("runs");
        running.child.kill().expect("kills");
        running.child.wait().expect("waits");
        let _ = running.link.lock().expect("lock").shutdown(std::net::Shutdown::Both);
        running.answers.join().expect("no panic");
    }

    /// Closes the link and waits for the auditor's end: whether it ended well, and its log.
    pub(crate) fn stop(&mut self) -> (bool, String) {
        let mut running = self.running.take().expect("runs");
        let _ = running.link.lock().expect("lock").shutdown(std::net::Shutdown::Write);
        let ended = running.child.wait().expect("waits");
        running.answers.join().expect("no panic");
        (ended.success(), running.stderr.join().expect("no panic"))
    }

    /// Breaks the line about peers, and waits for the auditor's end: whether it ended well, and its log.
    pub(crate) fn break_peers(&mut self) -> (bool, String) {
        let mut running = self.running.take().expect("runs");
        rustix::net::shutdown(&*running.vouching, rustix::net::Shutdown::Both).expect("shuts down");
        let ended = running.child.wait().expect("waits");
        running.answers.join().expect("no panic");
        (ended.success(), running.stderr.join().expect("no panic"))
    }

    /// A `ringfence` command that talks to this auditor.
    pub(crate) fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_ringfence"));
        command
            .args(args)
            .env("RINGFENCE_RUNTIME_DIR", self.dir.path())
            .env("TZ", "UTC")
            .env("NO_COLOR", "1");
        command
    }

    /// Runs it: standard output, standard error, success.
    pub(crate) fn run(&self, args: &[&str]) -> (String, String, bool) {
        output(&mut self.command(args))
    }

    pub(crate) fn status(&self) -> AuditorStatus {
        let mut conn = Conn::connect(&self.dir.path().join("query.sock"), PATIENCE).expect("connects");
        conn.send(&QueryRequest::Status).expect("asks");
        match conn.receive().expect("answers") {
            QueryReply::Status(status) => status,
            other => panic!("{other:?}"),
        }
    }
}

/// Says of each peer what /proc says; nothing, while it is to be silent.
fn vouch(auditor: &Packets, governed: &AtomicBool, silent: &AtomicBool) {
    while let Ok((PeerQuestion { number }, connection)) = auditor.receive() {
        if silent.load(Ordering::SeqCst) {
            continue;
        }
        let stream = UnixStream::from(connection.expect("a connection"));
        let peer = nix::sys::socket::getsockopt(&stream, nix::sys::socket::sockopt::PeerCredentials);
        let mut lineage = vec![peer.expect("a peer").pid().unsigned_abs()];
        while let Some(parent) = lineage.last().and_then(|pid| parent(*pid)) {
            lineage.push(parent);
        }
        let facts = PeerFacts { lineage, governed: governed.load(Ordering::SeqCst) };
        if auditor.send(&FromCore::Answer { number, reply: Reply::Ok(facts) }, None, None).is_err() {
            return;
        }
    }
}

fn parent(pid: u32) -> Option<u32> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit_once(')')?.1.split_whitespace().nth(1)?.parse().ok().filter(|parent| *parent > 0)
}

impl Drop for Core {
    fn drop(&mut self) {
        if let Some(mut running) = self.running.take() {
            let _ = running.child.kill();
            let _ = running.child.wait();
        }
    }
}

pub(crate) fn output(command: &mut Command) -> (String, String, bool) {
    let done = command.output().expect("runs");
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("UTF-8");
    (text(done.stdout), text(done.stderr), done.status.success())
}

pub(crate) fn uid() -> u32 {
    nix::unistd::geteuid().as_raw()
}

/// The `id` of each line of JSON.
pub(crate) fn ids(json: &str) -> Vec<u64> {
    json.lines()
        .map(|line| {
            serde_json::from_str::<serde_json::Value>(line).expect("JSON")["id"].as_u64().expect("a number")
        })
        .collect()
}

/// A file of /proc/PID/status, in KiB.
pub(crate) fn memory(pid: u32, field: &str) -> u64 {
    let status =
        std::fs::read_to_string(Path::new("/proc").join(pid.to_string()).join("status")).expect("reads");
    let line = status.lines().find_map(|l| l.strip_prefix(field)).expect("the field");
    line.trim_start_matches(':').trim().trim_end_matches("kB").trim().parse().expect("a number")
}
