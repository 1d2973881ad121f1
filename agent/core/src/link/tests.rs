//! The link against auditors that the test plays itself.

use super::*;
use ringfence_wire::{
    audit::{CoreMessage, MAX_NOTICE, Manifest, Payload},
    frame::{read_frame, write_frame},
};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde_json::value::to_raw_value;
use std::{
    os::{fd::AsFd, unix::net::UnixStream},
    process::{Command, Stdio},
    sync::mpsc::{Receiver, Sender, channel},
    thread,
};

/// How long anything may take before a test gives up.
const PATIENCE: Duration = Duration::from_secs(120);

/// Rings in memory.
#[derive(Clone)]
struct FakeRings {
    ready: Arc<EventFd>,
    records: Arc<Mutex<VecDeque<Vec<u8>>>>,
    repeats: Arc<Mutex<Vec<Vec<u8>>>>,
}

impl FakeRings {
    fn new() -> Self {
        let ready = EventFd::from_value_and_flags(0, EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK).unwrap();
        Self { ready: Arc::new(ready), records: Arc::default(), repeats: Arc::default() }
    }

    fn put(&self, record: &[u8]) {
        self.records.lock().unwrap().push_back(record.to_vec());
        self.ready.write(1).unwrap();
    }
}

impl Rings for FakeRings {
    fn ready(&self) -> [BorrowedFd<'_>; 2] {
        [self.ready.as_fd(), self.ready.as_fd()]
    }

    fn next(&mut self, take: &mut dyn FnMut(&[u8])) -> bool {
        let record = self.records.lock().unwrap().pop_front();
        match record {
            Some(record) => take(&record),
            None => {
                let _ = self.ready.read();
                return false;
            }
        }
        true
    }

    fn flush_repeats(&mut self, out: &mut Vec<Vec<u8>>) -> bool {
        out.append(&mut self.repeats.lock().unwrap());
        false
    }
}

/// Starts a process that does nothing, and gives the auditor's end of the socket to the test.
struct FakeSpawn(Sender<UnixStream>);

impl Spawn for FakeSpawn {
    fn spawn(&mut self) -> io::Result<Process> {
        let (ours, theirs) = UnixStream::pair()?;
        theirs.set_read_timeout(Some(PATIENCE))?;
        let child = Command::new("sleep")
            .arg("600")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()?;
        self.0.send(theirs).map_err(io::Error::other)?;
        Ok(Process::new(child, ours))
    }
}

struct Fixture {
    rings: FakeRings,
    handle: Handle,
    auditors: Receiver<UnixStream>,
    thread: Option<thread::JoinHandle<()>>,
}

impl Fixture {
    fn start() -> Self {
        let (send, auditors) = channel();
        let (rings, handle) = (FakeRings::new(), Handle::new().unwrap());
        let link = Link::new(handle.clone(), rings.clone(), FakeSpawn(send), "session".into(), "boot".into());
        let thread = Some(thread::spawn(|| link.run()));
        Self { rings, handle, auditors, thread }
    }

    /// The next auditor, greeted; it says that `stored` batches are stored.
    fn auditor(&self, stored: u64) -> FakeAuditor {
        let mut auditor = self.ungreeted();
        auditor.answer(Answer::Stored(stored));
        auditor
    }

    fn ungreeted(&self) -> FakeAuditor {
        let mut auditor = FakeAuditor(self.auditors.recv_timeout(PATIENCE).unwrap());
        let hello = Notice::Hello { session: "session".into(), boot: "boot".into() };
        assert_eq!(auditor.receive(), Received::Notice(hello));
        auditor
    }
}

impl Drop for Fixture {
    fn drop(&mut self) {
        self.handle.stop();
        // Whoever is still connected is let go, so that the thread does not wait for an auditor that nobody plays.
        while self.auditors.try_recv().is_ok() {}
        let _ = self.thread.take().map(|thread| thread.join());
    }
}

struct FakeAuditor(UnixStream);

#[derive(Debug, PartialEq, Eq)]
enum Received {
    Notice(Notice),
    Records(u64, Vec<Vec<u8>>),
    Reports(u64, Vec<Vec<u8>>),
}

impl FakeAuditor {
    fn answer(&mut self, answer: Answer) {
        write_frame(&mut self.0, &answer.to_body()).unwrap();
    }

    fn receive(&mut self) -> Received {
        let body = read_frame(&mut self.0, MAX_NOTICE).unwrap();
        match CoreMessage::parse(&body).unwrap() {
            CoreMessage::Notice(notice) => Received::Notice(notice),
            CoreMessage::Records { sequence, records } => {
                Received::Records(sequence, records.iter().map(|record| record.to_vec()).collect())
            }
            CoreMessage::Reports { sequence, reports } => {
                Received::Reports(sequence, reports.iter().map(|report| report.to_vec()).collect())
            }
        }
    }

    /// Hears until something that is not a notice of counters.
    fn records(&mut self) -> (u64, Vec<Vec<u8>>) {
        match self.receive() {
            Received::Records(sequence, records) => (sequence, records),
            Received::Notice(notice) => panic!("{notice:?} where records were expected"),
            Received::Reports(..) => panic!("reports where records were expected"),
        }
    }
}

fn manifest(container: u64) -> Manifest {
    Manifest {
        container,
        public: "0123456789ab".into(),
        profile: "coder".into(),
        uid: 0,
        created: 0,
        generation: 1,
        rules: Vec::new(),
        slots: Vec::new(),
        more: false,
    }
}

#[test]
fn records_reach_the_auditor_and_its_successor_gets_what_was_not_stored() {
    let fixture = Fixture::start();
    let mut first = fixture.auditor(0);
    fixture.rings.put(b"one");
    assert_eq!(first.records(), (1, vec![b"one".to_vec()]));
    first.answer(Answer::Stored(1));
    fixture.rings.put(b"two");
    assert_eq!(first.records(), (2, vec![b"two".to_vec()]));
    drop(first);
    let mut second = fixture.auditor(1);
    assert_eq!(second.records(), (2, vec![b"two".to_vec()]));
    second.answer(Answer::Stored(2));
    fixture.rings.put(b"three");
    assert_eq!(second.records(), (3, vec![b"three".to_vec()]));
    second.answer(Answer::Stored(3));
    fixture.rings.repeats.lock().unwrap().push(b"forty times".to_vec());
    second.answer(Answer::Flush(9));
    assert_eq!(second.records(), (4, vec![b"forty times".to_vec()]));
    assert_eq!(second.receive(), Received::Notice(Notice::Flushed { token: 9 }));
    let status = fixture.handle.status();
    assert!(status.running && status.restarts == 1, "{status:?}");
    assert!(status.last_exit.unwrap().contains("closed its socket"));
}

#[test]
fn records_wait_in_the_rings_while_there_is_no_auditor() {
    let fixture = Fixture::start();
    let mut auditor = fixture.ungreeted();
    fixture.rings.put(b"early");
    thread::sleep(Duration::from_millis(300));
    assert_eq!(fixture.rings.records.lock().unwrap().len(), 1);
    auditor.answer(Answer::Stored(0));
    assert_eq!(auditor.records(), (1, vec![b"early".to_vec()]));
}

#[test]
fn a_manifest_precedes_the_records_that_need_it() {
    let fixture = Fixture::start();
    let mut auditor = fixture.auditor(0);
    for container in 1..50 {
        fixture.handle.send(Update::Manifest(Arc::new(manifest(container))));
        fixture.rings.put(&container.to_be_bytes());
    }
    let (mut known, mut judged) = (0, 0);
    while judged < 49 {
        match auditor.receive() {
            Received::Notice(Notice::Manifest(manifest)) => known = known.max(manifest.container),
            Received::Notice(notice) => panic!("{notice:?}"),
            Received::Reports(..) => panic!("nobody reported anything"),
            Received::Records(_, records) => {
                judged += records.len() as u64;
                assert!(judged <= known, "records of container {judged} came before its manifest");
            }
        }
    }
}

#[test]
fn a_report_is_sent_again_until_it_is_stored() {
    let fixture = Fixture::start();
    let mut auditor = fixture.auditor(0);
    let payload = Payload::Tagged { tag: 7, container: "0123456789ab".into() };
    let reported = AgentReport { agent: "coder".into(), uid: 0, container: None, at: 1, payload };
    assert!(fixture.handle.report(&reported));
    let expected = vec![serde_json::to_vec(&reported).unwrap()];
    let Received::Reports(1, reports) = auditor.receive() else { panic!("not the report") };
    assert_eq!(reports, expected);
    drop(auditor);
    let mut second = fixture.auditor(0);
    let Received::Reports(1, reports) = second.receive() else { panic!("not the report again") };
    assert_eq!(reports, expected);
    second.answer(Answer::Stored(1));
    fixture.rings.put(b"record");
    assert_eq!(second.records(), (2, vec![b"record".to_vec()]), "one row of numbers for both");
    drop(second);
    let mut third = fixture.auditor(2);
    fixture.rings.put(b"later");
    assert_eq!(third.records(), (3, vec![b"later".to_vec()]), "stored reports are not sent again");
    // A worker that floods does not fill the core's memory.
    let long =
        AgentReport { payload: Payload::Event(to_raw_value(&"x".repeat(16 << 10)).unwrap()), ..reported };
    assert!((0..10_000).any(|_| !fixture.handle.report(&long)));
}

#[test]
fn an_auditor_that_talks_nonsense_is_replaced() {
    use std::io::Write;
    let fixture = Fixture::start();
    for nonsense in
        [&b"\0\0\0\x09\xff12345678"[..], b"GET / HTTP/1.1\r\n", b"\xff\xff\xff\xff\0\0\0\0\0\0\0\0\0"]
    {
        let mut auditor = fixture.auditor(0);
        auditor.0.write_all(nonsense).unwrap();
        assert!(read_frame(&mut auditor.0, MAX_NOTICE).is_err(), "the link hung up");
    }
    // Sequence numbers from the future as well.
    let mut auditor = fixture.auditor(7);
    assert!(read_frame(&mut auditor.0, MAX_NOTICE).is_err());
    // The next one is greeted after the status was published.
    let _next = fixture.ungreeted();
    assert!(fixture.handle.status().last_exit.unwrap().contains("never sent"));
}

#[test]
fn the_rings_are_left_alone_while_an_auditor_does_not_store() {
    let fixture = Fixture::start();
    let mut auditor = fixture.auditor(0);
    let record = vec![7; 13_000];
    let total = 4 * super::super::outbox::MAX_UNACKNOWLEDGED / record.len();
    for _ in 0..total {
        fixture.rings.put(&record);
    }
    // Read everything, store nothing: at some point nothing more comes, and nothing is under way.
    let (mut got, began) = (0, Instant::now());
    let left = loop {
        let soon = Timespec { tv_sec: 2, tv_nsec: 0 };
        if poll(&mut [PollFd::new(&auditor.0, PollFlags::IN)], Some(&soon)).unwrap() == 1 {
            let body = read_frame(&mut auditor.0, MAX_NOTICE).unwrap();
            if let CoreMessage::Records { records, .. } = CoreMessage::parse(&body).unwrap() {
                got += records.len();
            }
            continue;
        }
        let left = fixture.rings.records.lock().unwrap().len();
        if got + left == total {
            break left;
        }
        assert!(began.elapsed() < PATIENCE, "{got} came, {left} are left, of {total}");
    };
    assert!(left > total / 2, "{left} of {total} are left");
}

#[test]
fn the_last_records_are_sent_before_the_daemon_stops() {
    let fixture = Fixture::start();
    let mut auditor = fixture.auditor(0);
    fixture.rings.put(b"last");
    fixture.handle.stop();
    assert_eq!(auditor.records(), (1, vec![b"last".to_vec()]));
    auditor.answer(Answer::Stored(1));
    assert!(read_frame(&mut auditor.0, MAX_NOTICE).is_err(), "then the socket is closed");
}
