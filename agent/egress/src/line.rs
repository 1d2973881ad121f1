//! The line to the auditor: records in frames, one way. The core makes it, and makes another when it breaks.

use crate::worker::Worker;
use ringfence_wire::{
    egress::{EgressReport, FromEgress},
    frame::framed,
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
    Broken(io::Error),
    Wanted,
}

impl Line {
    pub(crate) fn new(worker: Rc<Worker>, next: mpsc::Receiver<OwnedFd>) -> Self {
        Self { worker, next, line: None, sending: Sending::default(), pause: FIRST_PAUSE }
    }

    /// Sends what is put on record, until the core is gone.
    pub(crate) async fn run(&mut self) {
        loop {
            let Self { worker, next, line, sending, pause } = self;
            let heard = match line {
                Some(line) => tokio::select! {
                    next = next.recv() => Heard::Line(next),
                    error = talk(worker, line, sending) => Heard::Broken(error),
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
                    *line = opened(next);
                }
                Heard::Broken(error) => {
                    tracing::warn!("the line to the auditor is gone, and records wait: {error}");
                    sending.give_back(worker);
                    *line = None;
                    *pause = FIRST_PAUSE;
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
        let Self { worker, line, sending, .. } = self;
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
    worker.records.wait().await;
    sleep(pause).await;
}

fn opened(line: OwnedFd) -> Option<UnixStream> {
    let stream = StdStream::from(line);
    let opened = stream.set_nonblocking(true).and_then(|()| UnixStream::from_std(stream));
    opened.inspect_err(|error| tracing::warn!("the line to the auditor cannot be used: {error}")).ok()
}

/// Says what there is to say until that fails.
async fn talk(worker: &Worker, line: &mut UnixStream, sending: &mut Sending) -> io::Error {
    let (mut read, mut write) = line.split();
    let says = async {
        loop {
            if !sending.is_begun() {
                worker.records.wait().await;
            }
            if let Err(error) = sending.send(worker, &mut write).await {
                return error;
            }
        }
    };
    let hears = async {
        // That it is linked, which needs no answer; and its end.
        let mut heard = [0; 512];
        loop {
            match read.read(&mut heard).await {
                Ok(0) => return io::ErrorKind::UnexpectedEof.into(),
                Ok(_) => {}
                Err(error) => return error,
            }
        }
    };
    tokio::select! {
        error = says => error,
        error = hears => error,
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
            let reports = worker.records.take();
            if reports.is_empty() {
                return Ok(());
            }
            let body = serde_json::to_vec(&Frame { reports: &reports })?;
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

/// [`EgressReports`], lent.
#[derive(Serialize)]
struct Frame<'a> {
    reports: &'a [EgressReport],
}

#[cfg(test)]
mod tests {
    use super::*;
    use ringfence_wire::egress::{EgressRecord, EgressReports};

    #[test]
    fn a_frame_is_what_the_auditor_reads() {
        let reports = vec![EgressReport { at: 1, flow: None, record: EgressRecord::Lost { count: 2 } }];
        let text = serde_json::to_string(&Frame { reports: &reports }).unwrap();
        assert_eq!(serde_json::from_str::<EgressReports>(&text).unwrap(), EgressReports { reports });
    }
}
