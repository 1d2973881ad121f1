//! The thread that keeps an auditor running and copies raw records from the rings to it, undecoded.
//!
//! It is the only reader of the rings. Nothing here can hold up a verdict: while no auditor takes records, they wait in
//! the rings, and what does not fit there is counted by the programs. The auditor may be subverted: what comes back from
//! it is fixed in size, and anything unexpected ends it.

use super::{
    auditor_role::Spawn,
    outbox::{Outbox, Resend, Update},
    report_queue::ReportQueue,
};
use nix::{
    errno::Errno,
    poll::{PollFd, PollFlags, PollTimeout, poll, ppoll},
    sys::{
        eventfd::{EfdFlags, EventFd},
        socket::{MsgFlags, recv, send},
        time::TimeSpec,
    },
};
use ringfence_supervise::child::{Backoff, Process};
use ringfence_wire::{
    audit::{AgentReport, Answer, Batch, MAX_ANSWER, MAX_RECORDS, Notice},
    frame::{HEADER, framed},
    status::AuditorProcess,
};
use std::{
    collections::VecDeque,
    io,
    os::fd::{AsFd, AsRawFd, BorrowedFd},
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

/// Most bytes waiting to be written to the auditor before the rings are left alone.
const MAX_WAITING: usize = 2 << 20;
/// Most requests of the auditor to drain the rings that wait at once.
const MAX_FLUSHES: usize = 64;
/// Room that a record of any size needs in a batch.
const LARGEST_RECORD: usize =
    size_of::<ringfence_common::event::Record<{ ringfence_common::event::LARGE_SECTION }>>() + 64;
/// Most records taken from the rings before the auditor is looked after again.
const RECORDS_AT_ONCE: u64 = 4096;
/// How long an auditor has to answer the greeting, and to end after its socket was closed.
const PATIENCE: Duration = Duration::from_secs(if cfg!(test) { 3 } else { 20 });
/// How often what was counted instead of written is taken out.
const FLUSH_EVERY: Duration = Duration::from_secs(1);
/// How long the last records have to be stored when the daemon stops.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(3);

/// The kernel's rings.
pub trait Rings: Send + 'static {
    /// Readable while there are records.
    fn ready(&self) -> [BorrowedFd<'_>; 2];

    /// Hands the next record to `take`, denials first, and frees its place. False: there is none.
    fn next(&mut self, take: &mut dyn FnMut(&[u8])) -> bool;

    /// Takes out some records of what was counted instead of written. True: there are more.
    fn flush_repeats(&mut self, out: &mut Vec<Vec<u8>>) -> bool;
}

impl Rings for ringfence_bpf::Rings {
    fn ready(&self) -> [BorrowedFd<'_>; 2] {
        self.fds()
    }

    fn next(&mut self, take: &mut dyn FnMut(&[u8])) -> bool {
        match self.next_record() {
            Some(record) => take(&record),
            None => return false,
        }
        true
    }

    fn flush_repeats(&mut self, out: &mut Vec<Vec<u8>>) -> bool {
        self.flush_repeats(out).unwrap_or_else(|error| {
            tracing::error!("{}", ringfence_base::error::chain(&error));
            false
        })
    }
}

/// The other threads' end of the link.
#[derive(Debug, Clone)]
pub struct Handle(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    wake: EventFd,
    mailbox: Mutex<Mailbox>,
    status: Mutex<AuditorProcess>,
}

#[derive(Debug, Default)]
struct Mailbox {
    queue: VecDeque<Update>,
    stop: bool,
    reports: ReportQueue,
}

impl Handle {
    /// An end to speak into before, while and after the thread runs.
    ///
    /// # Errors
    /// If no event descriptor can be had.
    pub fn new() -> io::Result<Self> {
        let wake = EventFd::from_value_and_flags(0, EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)?;
        Ok(Self(Arc::new(Shared { wake, mailbox: Mutex::default(), status: Mutex::default() })))
    }

    /// Hands the link an update. The queue is bounded by what there is to tell: the link always takes updates, whether
    /// an auditor runs or not.
    pub fn send(&self, update: Update) {
        self.0.mailbox.lock().unwrap_or_else(PoisonError::into_inner).queue.push_back(update);
        self.wake();
    }

    /// Tells the link something about an agent. False: too much waits already, and a report of the agent with the most is
    /// dropped.
    pub fn report(&self, report: &AgentReport) -> bool {
        let kept = self.0.mailbox.lock().unwrap_or_else(PoisonError::into_inner).reports.add(report);
        self.wake();
        kept
    }

    /// Takes out the reports that wait, for tests.
    #[cfg(test)]
    pub(crate) fn take_reports(&self) -> Vec<AgentReport> {
        let mut taken = Vec::new();
        let mut mailbox = self.0.mailbox.lock().unwrap_or_else(PoisonError::into_inner);
        mailbox.reports.drain(|report| {
            taken.push(serde_json::from_slice(report).expect("a report"));
            true
        });
        taken
    }

    /// How many reports about an agent were dropped.
    pub fn lost_reports(&self, agent: &str) -> u64 {
        self.0.mailbox.lock().unwrap_or_else(PoisonError::into_inner).reports.lost(agent)
    }

    /// Asks the thread to end: it sends what the rings hold, gives the auditor a moment to store it, and ends it.
    pub fn stop(&self) {
        self.0.mailbox.lock().unwrap_or_else(PoisonError::into_inner).stop = true;
        self.wake();
    }

    /// How the auditor does.
    pub fn status(&self) -> AuditorProcess {
        self.0.status.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn wake(&self) {
        // It can only fail by being full, and then the thread is awake already.
        let _ = self.0.wake.write(1);
    }
}

/// The link, for its thread.
pub struct Link<R, S> {
    handle: Handle,
    rings: R,
    spawn: S,
    greeting: Notice,
    outbox: Outbox,
    /// Records of repeats that are not in a batch yet: some of those that are to be taken out.
    repeats: Vec<Vec<u8>>,
    /// More of them wait in the kernel.
    more_repeats: bool,
    /// They are to be taken out from the beginning: somebody waits for all that happened until now.
    flush_due: bool,
    flushed: Instant,
    auditor: Option<Auditor>,
    backoff: Backoff,
    restarts: u64,
    started: bool,
    last_exit: Option<String>,
}

/// An auditor that runs.
struct Auditor {
    process: Process,
    since: Instant,
    waiting: VecDeque<Arc<Vec<u8>>>,
    waiting_bytes: usize,
    written: usize,
    received: Vec<u8>,
    greeted: bool,
    flushes: VecDeque<u64>,
}

impl<R: Rings, S: Spawn> Link<R, S> {
    /// A link that will start auditors with `spawn` and name this run of the core `session`.
    pub fn new(handle: Handle, rings: R, spawn: S, session: String, boot: String) -> Self {
        Self {
            handle,
            rings,
            spawn,
            greeting: Notice::Hello { session, boot },
            outbox: Outbox::default(),
            repeats: Vec::new(),
            more_repeats: false,
            flush_due: false,
            flushed: Instant::now(),
            auditor: None,
            backoff: Backoff::default(),
            restarts: 0,
            started: false,
            last_exit: None,
        }
    }

    /// Runs until [`Handle::stop`].
    pub fn run(mut self) {
        let mut deadline = None;
        loop {
            let stopping = self.handle.0.mailbox.lock().unwrap_or_else(PoisonError::into_inner).stop;
            if stopping {
                self.flush_due |= deadline.is_none();
                let deadline = *deadline.get_or_insert_with(|| Instant::now() + DRAIN_TIMEOUT);
                if self.is_drained() || Instant::now() >= deadline {
                    break;
                }
            } else if self.auditor.is_none() && self.backoff.due() {
                self.start();
            }
            self.wait(if stopping { Duration::from_millis(50) } else { Duration::from_secs(1) });
            if let Err(reason) = self.step() {
                self.discard(&reason);
            }
            self.publish();
        }
        if let Some(auditor) = self.auditor.take() {
            let exit = auditor.process.finish(PATIENCE);
            tracing::info!("the auditor ended: {exit}");
        }
        // It has the listeners of the auditor. Not closed before the process ends: whoever waits in their queues may have sent what
        // takes long to close.
        std::mem::forget(self.spawn);
    }

    /// Nothing is left to send or to be acknowledged.
    fn is_drained(&mut self) -> bool {
        let taken = !self.flush_due && !self.more_repeats && self.repeats.is_empty();
        self.auditor.as_ref().is_none_or(|auditor| auditor.waiting.is_empty() && taken)
            && self.outbox.unacknowledged() == 0
            && self.outbox.has_room()
            && !self.readable()
    }

    fn readable(&self) -> bool {
        let mut polled = self.rings.ready().map(|ring| PollFd::new(ring, PollFlags::POLLIN));
        matches!(poll(&mut polled, PollTimeout::ZERO), Ok(1..))
    }

    fn start(&mut self) {
        match self.spawn.spawn() {
            Ok(process) => {
                tracing::info!("auditor started, pid {}", process.pid());
                self.restarts += u64::from(self.started);
                self.started = true;
                let mut auditor = Auditor {
                    process,
                    since: Instant::now(),
                    waiting: VecDeque::new(),
                    waiting_bytes: 0,
                    written: 0,
                    received: Vec::new(),
                    greeted: false,
                    flushes: VecDeque::new(),
                };
                auditor.send_notice(&self.greeting);
                self.auditor = Some(auditor);
            }
            Err(error) => {
                let pause = self.backoff.failed(Duration::ZERO);
                tracing::error!(
                    "cannot start the auditor: {error}; events wait in the kernel; next try in {pause:?}"
                );
                self.last_exit = Some(format!("cannot be started: {error}"));
            }
        }
    }

    /// Ends an auditor that failed.
    fn discard(&mut self, reason: &str) {
        let Some(auditor) = self.auditor.take() else { return };
        let lived = auditor.since.elapsed();
        let exit = auditor.process.kill();
        let pause = self.backoff.failed(lived);
        tracing::error!(
            "the auditor is gone ({reason}; {exit}); events wait in the kernel; next start in {pause:?}"
        );
        self.last_exit = Some(format!("{reason}; {exit}"));
    }

    fn wants_records(&self) -> bool {
        self.outbox.has_room()
            && self
                .auditor
                .as_ref()
                .is_some_and(|auditor| auditor.greeted && auditor.waiting_bytes < MAX_WAITING)
    }

    fn wait(&self, most: Duration) {
        let timeout = match &self.auditor {
            None => most.min(self.backoff.wait()),
            Some(_) => most,
        };
        let mut polled = vec![PollFd::new(self.handle.0.wake.as_fd(), PollFlags::POLLIN)];
        if let Some(auditor) = &self.auditor {
            let mut events = PollFlags::POLLIN;
            if !auditor.waiting.is_empty() {
                events |= PollFlags::POLLOUT;
            }
            polled.push(PollFd::new(auditor.process.socket().as_fd(), events));
        }
        if self.wants_records() {
            polled.extend(self.rings.ready().map(|ring| PollFd::new(ring, PollFlags::POLLIN)));
        }
        if let Err(error) = ppoll(&mut polled, Some(TimeSpec::from_duration(timeout)), None)
            && error != Errno::EINTR
        {
            tracing::error!("poll failed: {}", io::Error::from(error));
            std::thread::sleep(Duration::from_millis(100));
        }
        let _ = self.handle.0.wake.read();
    }

    /// One round: read the auditor's answers, take records, then updates (so that a manifest goes before the records that need
    /// it), write what fits. `Err`: the auditor must go, and why.
    fn step(&mut self) -> Result<(), String> {
        let answered = self.read_answers();
        let (batch, records, empty) = self.take_records();
        let updates =
            std::mem::take(&mut self.handle.0.mailbox.lock().unwrap_or_else(PoisonError::into_inner).queue);
        // What the last records belong to may be over only when records that were made before have been taken.
        let over_now = updates.iter().any(|update| matches!(update, Update::Ended { .. }));
        self.flush_due |= over_now;
        for update in updates {
            let notices = self.outbox.take(update);
            if let Some(auditor) = self.auditor.as_mut().filter(|auditor| auditor.greeted) {
                notices.iter().for_each(|notice| auditor.send_notice(notice));
            }
        }
        if records > 0 {
            match self.outbox.seal(batch, records) {
                Ok(frame) => {
                    if let Some(auditor) = &mut self.auditor {
                        auditor.push(frame);
                    }
                }
                // A batch is filled to less than a frame; if that ever changes, a log line and the count tell.
                Err(error) => tracing::error!("{records} records lost: {error}"),
            }
        }
        // After the records' batch, whose number was taken before.
        loop {
            let batch = {
                let mut mailbox = self.handle.0.mailbox.lock().unwrap_or_else(PoisonError::into_inner);
                self.outbox.batch_reports(&mut mailbox.reports)
            };
            let Some(batch) = batch else { break };
            match batch {
                Ok(frame) => {
                    if let Some(auditor) = self.auditor.as_mut().filter(|auditor| auditor.greeted) {
                        auditor.push(frame);
                    }
                }
                Err(error) => tracing::error!("reports about agents lost: {error}"),
            }
        }
        answered?;
        let Some(auditor) = &mut self.auditor else { return Ok(()) };
        if empty {
            if !over_now {
                self.outbox.rings_empty().iter().for_each(|notice| auditor.send_notice(notice));
            }
            for token in std::mem::take(&mut auditor.flushes) {
                auditor.send_notice(&Notice::Flushed { token });
            }
        }
        if !auditor.greeted && auditor.since.elapsed() > PATIENCE {
            return Err(format!("it did not answer the greeting within {PATIENCE:?}"));
        }
        auditor.write()
    }

    /// A batch of what there is, its number of records, and whether that was everything.
    fn take_records(&mut self) -> (Batch, u64, bool) {
        let mut batch = self.outbox.new_batch();
        let (mut records, mut bytes) = (0, 0);
        if !self.wants_records() {
            return (batch, 0, false);
        }
        if self.flushed.elapsed() >= FLUSH_EVERY {
            self.flush_due = true;
        }
        while records < RECORDS_AT_ONCE && bytes + LARGEST_RECORD < MAX_RECORDS {
            let mut take = |record: &[u8]| {
                bytes += record.len() + 4;
                if !batch.push(record) {
                    tracing::error!("a record of {} bytes fits no batch and is lost", record.len());
                }
            };
            match self.repeats.pop() {
                Some(record) => take(&record),
                None if self.more_repeats => {
                    self.more_repeats = self.rings.flush_repeats(&mut self.repeats);
                    continue;
                }
                None if self.flush_due => {
                    (self.flush_due, self.flushed) = (false, Instant::now());
                    self.more_repeats = self.rings.flush_repeats(&mut self.repeats);
                    continue;
                }
                None if self.rings.next(&mut take) => {}
                None => return (batch, records, true),
            }
            records += 1;
        }
        (batch, records, false)
    }

    fn read_answers(&mut self) -> Result<(), String> {
        let Some(auditor) = &mut self.auditor else { return Ok(()) };
        while let Some(answer) = auditor.read()? {
            match answer {
                Answer::Stored(sequence) if auditor.greeted => {
                    if !self.outbox.acknowledge(sequence) {
                        return Err(format!("it acknowledged batch {sequence}, which was never sent"));
                    }
                }
                Answer::Stored(sequence) => {
                    let Some(Resend { first, frames, ended }) = self.outbox.resend(sequence) else {
                        return Err(format!("it claims batch {sequence}, which was never sent"));
                    };
                    auditor.greeted = true;
                    first.iter().for_each(|notice| auditor.send_notice(notice));
                    frames.into_iter().for_each(|frame| auditor.push(frame));
                    ended.iter().for_each(|notice| auditor.send_notice(notice));
                }
                Answer::Flush(token) => {
                    if auditor.flushes.len() == MAX_FLUSHES {
                        return Err("it asks for too much at once".into());
                    }
                    auditor.flushes.push_back(token);
                    self.flush_due = true;
                }
            }
        }
        Ok(())
    }

    fn publish(&self) {
        let status = AuditorProcess {
            running: self.auditor.is_some(),
            pid: self.auditor.as_ref().map(|auditor| auditor.process.pid()),
            restarts: self.restarts,
            last_exit: self.last_exit.clone(),
            records: self.outbox.records(),
            unacknowledged: self.outbox.unacknowledged(),
        };
        *self.handle.0.status.lock().unwrap_or_else(PoisonError::into_inner) = status;
    }
}

impl Auditor {
    fn send_notice(&mut self, notice: &Notice) {
        let frame = notice.to_body().map_err(|error| error.to_string());
        match frame.and_then(|body| framed(&body).map_err(|error| error.to_string())) {
            Ok(frame) => self.push(Arc::new(frame)),
            Err(error) => tracing::error!("a notice to the auditor cannot be sent: {error}"),
        }
    }

    fn push(&mut self, frame: Arc<Vec<u8>>) {
        self.waiting_bytes += frame.len();
        self.waiting.push_back(frame);
    }

    /// Writes what the socket takes.
    fn write(&mut self) -> Result<(), String> {
        while let Some(frame) = self.waiting.front() {
            let flags = MsgFlags::MSG_NOSIGNAL | MsgFlags::MSG_DONTWAIT;
            match send(self.process.socket().as_raw_fd(), &frame[self.written..], flags) {
                Ok(n) => self.written += n,
                Err(Errno::EAGAIN) => return Ok(()),
                Err(Errno::EINTR) => {}
                Err(error) => return Err(format!("writing to it failed: {}", io::Error::from(error))),
            }
            if self.written == frame.len() {
                self.waiting_bytes -= frame.len();
                self.written = 0;
                self.waiting.pop_front();
            }
        }
        Ok(())
    }

    /// The next answer, if a whole one came.
    fn read(&mut self) -> Result<Option<Answer>, String> {
        const ANSWER: usize = HEADER + MAX_ANSWER;
        while self.received.len() < ANSWER {
            let mut buffer = [0; ANSWER];
            let room = ANSWER - self.received.len();
            match recv(self.process.socket().as_raw_fd(), &mut buffer[..room], MsgFlags::MSG_DONTWAIT) {
                Ok(0) => return Err("it closed its socket".into()),
                Ok(n) => self.received.extend_from_slice(&buffer[..n]),
                Err(Errno::EAGAIN) => return Ok(None),
                Err(Errno::EINTR) => {}
                Err(error) => return Err(format!("reading from it failed: {}", io::Error::from(error))),
            }
        }
        let answer = match self.received.split_at(HEADER) {
            (header, body) if header == (MAX_ANSWER as u32).to_be_bytes() => Answer::parse(body),
            _ => return Err("it does not speak our protocol".into()),
        };
        self.received.clear();
        answer.map(Some).map_err(|error| format!("it does not speak our protocol: {error}"))
    }
}

#[cfg(test)]
mod tests;
