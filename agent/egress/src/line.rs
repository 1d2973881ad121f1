//! The line to the auditor: records and questions in frames, and the answers. The core makes it, and makes another when it breaks.

use crate::worker::Worker;
use ringfence_wire::{
    egress::{EgressReport, FromEgress, MAX_SENTENCE},
    egress_asks::{EgressAsk, EgressDecision, MAX_DECISION},
    frame::{HEADER, framed, length},
    mcp::McpReply,
};
use serde::Serialize;
use std::{
    io,
    os::{fd::OwnedFd, unix::net::UnixStream as StdStream},
    rc::Rc,
    time::{Duration, Instant},
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{UnixStream, unix::WriteHalf},
    sync::mpsc,
    time::{sleep, timeout},
};

/// How long there may be none before the core is asked for one: at first, and at most.
const FIRST_PAUSE: Duration = Duration::from_secs(2);
const LONGEST_PAUSE: Duration = Duration::from_secs(60);
/// How long what waits may take to be sent when the worker ends.
const LAST_WORDS: Duration = Duration::from_secs(2);

/// The line, and those that come in its place.
pub(crate) struct Line {
    worker: Rc<Worker>,
    next: mpsc::Receiver<OwnedFd>,
    line: Option<UnixStream>,
    sending: Sending,
    pause: Duration,
    /// What the operator was told is wrong with it.
    complaint: Option<String>,
}

/// A frame of which a part may be sent: the rest goes before anything else, whatever was done in between.
#[derive(Default)]
struct Sending {
    reports: Vec<EgressReport>,
    frame: Vec<u8>,
    sent: usize,
}

/// What became of a wait.
enum Heard {
    Line(Option<OwnedFd>),
    Broken(Broken),
    Wanted,
}

impl Line {
    pub(crate) fn new(worker: Rc<Worker>, next: mpsc::Receiver<OwnedFd>) -> Self {
        let sending = Sending::default();
        Self { worker, next, line: None, sending, pause: FIRST_PAUSE, complaint: None }
    }

    /// Sends what is put on record, until the core is gone.
    pub(crate) async fn run(&mut self) {
        loop {
            let Self { worker, next, line, sending, pause, complaint } = self;
            let heard = match line {
                Some(line) => tokio::select! {
                    next = next.recv() => Heard::Line(next),
                    error = talk(worker, line, sending, complaint) => Heard::Broken(error),
                },
                None => tokio::select! {
                    next = next.recv() => Heard::Line(next),
                    () = wanted(worker, *pause) => Heard::Wanted,
                },
            };
            match heard {
                Heard::Line(None) => return,
                Heard::Line(Some(next)) => {
                    // Whoever has the other end of the one before may not have seen all of a frame.
                    sending.give_back(worker);
                    worker.questions.repeat(Instant::now());
                    *line = opened(next);
                }
                Heard::Broken(broken) => {
                    sending.give_back(worker);
                    worker.questions.repeat(Instant::now());
                    *line = None;
                    match broken {
                        Broken::Gone(error) => {
                            tracing::warn!("the line to the auditor is gone, and records wait: {error}");
                            *pause = FIRST_PAUSE;
                        }
                        // Its operator asks the core; and whoever turns it away is not asked any sooner for that.
                        Broken::Refused(why) => {
                            let what = format!("what is done by name is not put on record, and waits: {why}");
                            tracing::warn!("{what}");
                            let end = (0..=MAX_SENTENCE.min(what.len()))
                                .rev()
                                .find(|end| what.is_char_boundary(*end));
                            let what = what.get(..end.unwrap_or(0)).unwrap_or_default().to_owned();
                            worker.link.say(FromEgress::Complaint(what.clone()));
                            *complaint = Some(what);
                        }
                    }
                }
                Heard::Wanted => {
                    worker.link.say(FromEgress::Line);
                    *pause = (*pause * 2).min(LONGEST_PAUSE);
                }
            }
        }
    }

    /// Sends what waits, and what is folded, if that takes no more than a moment: the worker ends.
    pub(crate) async fn flush(&mut self) {
        self.worker.records.unfold(Instant::now(), true);
        let Self { worker, next, line, sending, .. } = self;
        // One may have come with the word to end.
        if let Ok(last) = next.try_recv() {
            sending.give_back(worker);
            *line = opened(last);
        }
        let Some(line) = line else { return };
        let (_, mut write) = line.split();
        let sends = async {
            while sending.is_begun() || !worker.records.is_empty() {
                if sending.send(worker, &mut write).await.is_err() {
                    return;
                }
            }
        };
        let _ = timeout(LAST_WORDS, sends).await;
    }
}

/// There has been something to say for a while, and no line. Nobody is asked for one that nothing would be said on.
async fn wanted(worker: &Worker, pause: Duration) {
    something(worker).await;
    sleep(pause).await;
}

/// Waits until there is something to say.
async fn something(worker: &Worker) {
    tokio::select! {
        () = worker.records.wait() => {}
        () = worker.questions.wait() => {}
    }
}

fn opened(line: OwnedFd) -> Option<UnixStream> {
    let stream = StdStream::from(line);
    let opened = stream.set_nonblocking(true).and_then(|()| UnixStream::from_std(stream));
    opened.inspect_err(|error| tracing::warn!("the line to the auditor cannot be used: {error}")).ok()
}

/// Says what there is to say until that fails.
async fn talk(
    worker: &Worker,
    line: &mut UnixStream,
    sending: &mut Sending,
    complaint: &mut Option<String>,
) -> Broken {
    let mut answer = Answer::default();
    let error = exchange(worker, line, sending, &mut answer, complaint).await;
    answer.judge(error)
}

async fn exchange(
    worker: &Worker,
    line: &mut UnixStream,
    sending: &mut Sending,
    answer: &mut Answer,
    complaint: &mut Option<String>,
) -> io::Error {
    let (mut read, mut write) = line.split();
    let says = async {
        loop {
            if !sending.is_begun() {
                something(worker).await;
            }
            if let Err(error) = sending.send(worker, &mut write).await {
                return error;
            }
        }
    };
    let hears = async {
        // That it is linked, or why not; then answers to questions; and its end.
        let mut heard = [0; 512];
        loop {
            match read.read(&mut heard).await {
                Ok(0) => return io::ErrorKind::UnexpectedEof.into(),
                Ok(count) => {
                    let said = answer.add(heard.get(..count).unwrap_or_default());
                    if let Some(what) = complaint.take_if(|_| answer.is_linked()) {
                        worker.link.say(FromEgress::Over(what));
                    }
                    match said {
                        Ok(decisions) => decisions.iter().for_each(|one| worker.questions.decided(one)),
                        Err(error) => return error,
                    }
                }
                Err(error) => return error,
            }
        }
    };
    tokio::select! {
        // Before it fails to be told anything, it may have said why.
        biased;
        error = hears => error,
        error = says => error,
    }
}

/// How a line ended.
#[derive(Debug)]
enum Broken {
    /// It was up.
    Gone(io::Error),
    /// It never was, and that is why.
    Refused(String),
}

/// What the auditor says: whether the line is up, and then answers.
#[derive(Debug, Default)]
struct Answer {
    /// Of a frame, as far as it came.
    bytes: Vec<u8>,
    /// The first frame.
    first: Option<Option<McpReply>>,
}

impl Answer {
    /// Takes more of it: the answers that are whole.
    ///
    /// # Errors
    /// No auditor of this version says that.
    fn add(&mut self, bytes: &[u8]) -> io::Result<Vec<EgressDecision>> {
        self.bytes.extend_from_slice(bytes);
        let (mut decisions, mut read) = (Vec::new(), 0);
        while let Some(header) = self.bytes.get(read..).and_then(|rest| rest.first_chunk::<HEADER>()) {
            let length = length(*header, MAX_DECISION).map_err(io::Error::other)?;
            let Some(body) = self.bytes.get(read + HEADER..read + HEADER + length) else { break };
            if self.first.is_none() {
                self.first = Some(serde_json::from_slice(body).ok());
            } else {
                decisions.push(serde_json::from_slice(body).map_err(io::Error::other)?);
            }
            read += HEADER + length;
        }
        self.bytes.drain(..read);
        Ok(decisions)
    }

    fn is_linked(&self) -> bool {
        matches!(self.first, Some(Some(McpReply::Linked)))
    }

    fn judge(&self, error: io::Error) -> Broken {
        match &self.first {
            Some(Some(McpReply::Linked)) => Broken::Gone(error),
            Some(Some(McpReply::Failed(failure))) => {
                Broken::Refused(format!("the auditor says: {}", failure.error))
            }
            Some(_) => Broken::Refused("the auditor says what none says".to_owned()),
            None => Broken::Refused(format!("the auditor did not take the line: {error}")),
        }
    }
}

impl Sending {
    fn is_begun(&self) -> bool {
        !self.frame.is_empty()
    }

    /// Sends what is begun, or else a frame of what waits. Where this is not waited for any more, it goes on with the next call.
    ///
    /// # Errors
    /// As write(2): nothing more can be said on this line.
    async fn send(&mut self, worker: &Worker, line: &mut WriteHalf<'_>) -> io::Result<()> {
        if !self.is_begun() {
            // Somebody waits for the answers to these.
            let asks = worker.questions.take();
            let reports = if asks.is_empty() { worker.records.take() } else { Vec::new() };
            if asks.is_empty() && reports.is_empty() {
                return Ok(());
            }
            let body = serde_json::to_vec(&Frame { reports: &reports, asks: &asks })?;
            *self = Self { frame: framed(&body).map_err(io::Error::other)?, reports, sent: 0 };
        }
        while let Some(rest) = self.frame.get(self.sent..).filter(|rest| !rest.is_empty()) {
            match line.write(rest).await? {
                0 => return Err(io::ErrorKind::WriteZero.into()),
                count => self.sent += count,
            }
        }
        *self = Self::default();
        Ok(())
    }

    /// The line is another: what was not sent whole waits again.
    fn give_back(&mut self, worker: &Worker) {
        worker.records.give_back(std::mem::take(self).reports);
    }
}

/// [`EgressSaid`](ringfence_wire::egress_asks::EgressSaid), lent.
#[derive(Serialize)]
struct Frame<'a> {
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    reports: &'a [EgressReport],
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    asks: &'a [EgressAsk],
}

#[cfg(test)]
mod tests {
    use super::*;
    use ringfence_wire::{egress::EgressRecord, egress_asks::EgressSaid};

    fn frame(reply: &impl Serialize) -> Vec<u8> {
        framed(&serde_json::to_vec(reply).unwrap()).unwrap()
    }

    #[test]
    fn a_line_that_was_refused_is_not_one_that_was_up() {
        let judged = |bytes: &[u8]| {
            let mut answer = Answer::default();
            let broken = bytes.chunks(3).find_map(|some| answer.add(some).err());
            match answer.judge(broken.unwrap_or_else(|| io::ErrorKind::UnexpectedEof.into())) {
                Broken::Gone(_) => None,
                Broken::Refused(why) => Some(why),
            }
        };
        assert_eq!(judged(&frame(&McpReply::Linked)), None);
        let failed = McpReply::Failed(ringfence_wire::message::Failure::new("too many"));
        assert_eq!(judged(&frame(&failed)).unwrap(), "the auditor says: too many");
        assert!(judged(b"").unwrap().contains("did not take the line"));
        assert!(judged(&[0xff; 9000]).unwrap().contains("did not take the line"));
        assert!(judged(b"\0\0\0\x02{}").unwrap().contains("none says"));
    }

    #[test]
    fn answers_are_heard_whole_however_they_come_and_nothing_else_is() {
        let decision = |question| EgressDecision {
            question,
            approve: true,
            by: "uid 0".into(),
            stands: false,
            full: false,
        };
        let said = [frame(&McpReply::Linked), frame(&decision(1)), frame(&decision(2))].concat();
        for size in [1, 7, 1000] {
            let mut answer = Answer::default();
            let heard: Vec<_> = said.chunks(size).flat_map(|some| answer.add(some).unwrap()).collect();
            assert_eq!(heard, [decision(1), decision(2)], "{size}");
            assert!(answer.bytes.is_empty());
        }
        let mut answer = Answer::default();
        assert!(answer.add(&frame(&decision(1))).unwrap().is_empty(), "the first is none");
        assert!(answer.add(&frame(&"approve everything")).is_err());
    }

    #[test]
    fn a_frame_is_what_the_auditor_reads() {
        let reports = vec![EgressReport { at: 1, flow: None, record: EgressRecord::Lost { count: 2 } }];
        let asks = vec![EgressAsk::Ask { question: 1, name: "a.org".into(), port: 443, wait_ms: 60_000 }];
        let heard = |frame: Frame<'_>| {
            serde_json::from_str::<EgressSaid>(&serde_json::to_string(&frame).unwrap()).unwrap()
        };
        let (of_reports, of_asks) =
            (heard(Frame { reports: &reports, asks: &[] }), heard(Frame { reports: &[], asks: &asks }));
        assert_eq!(of_reports, EgressSaid { reports, ..EgressSaid::default() });
        assert_eq!(of_asks, EgressSaid { asks, ..EgressSaid::default() });
    }
}
