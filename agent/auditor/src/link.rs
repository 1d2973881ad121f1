//! The thread that listens to the core: takes frames apart, decodes records, names their rules.

use super::{
    queue::{Item, NotSent, Sender},
    shared::Shared,
};
use ringfence_base::clock::Clock;
use ringfence_events::{decode, manifests::Identity, report};
use ringfence_store::{Event, Incoming};
use ringfence_wire::{
    audit::{AgentReport, BodyError, CoreMessage, MAX_NOTICE, MAX_RECORDS, Notice},
    frame::{self, FrameError},
};
use std::{
    io::{BufReader, Read},
    sync::Arc,
    thread,
    time::Duration,
};

/// Why the core cannot be understood. The auditor ends, and the core starts another.
#[derive(Debug, thiserror::Error)]
pub enum LinkError {
    /// A frame is broken.
    #[error("reading from the daemon failed")]
    Frame(#[source] FrameError),
    /// A body is broken.
    #[error("the daemon sent something that cannot be understood; do both have the same version?")]
    Body(#[source] BodyError),
    /// The thread that writes is gone.
    #[error("the thread that writes the audit database ended")]
    StoreWriter,
}

/// Listens until the core closes the connection.
///
/// # Errors
/// [`LinkError`]. What came before is kept.
pub(crate) fn run(core: impl Read, shared: &Shared, items: &Sender) -> Result<(), LinkError> {
    let mut core = BufReader::with_capacity(256 << 10, core);
    let mut link = Link { shared, items, clock: Clock::now() };
    loop {
        let body = match frame::read_frame(&mut core, MAX_NOTICE) {
            Ok(body) => body,
            Err(FrameError::Closed) => return Ok(()),
            Err(error) => return Err(LinkError::Frame(error)),
        };
        match CoreMessage::parse(&body).map_err(LinkError::Body)? {
            CoreMessage::Records { .. } if body.len() > MAX_RECORDS => {
                return Err(LinkError::Frame(FrameError::TooLong { length: body.len(), max: MAX_RECORDS }));
            }
            CoreMessage::Records { sequence, records } => link.records(sequence, &records, body.len())?,
            CoreMessage::Reports { sequence, reports } => link.reports(sequence, &reports, body.len())?,
            CoreMessage::Notice(notice) => link.notice(notice, body.len())?,
        }
    }
}

struct Link<'a> {
    shared: &'a Shared,
    items: &'a Sender,
    clock: Clock,
}

impl Link<'_> {
    fn records(&mut self, sequence: u64, records: &[&[u8]], frame: usize) -> Result<(), LinkError> {
        self.clock = self.clock.refreshed();
        let mut incoming = Vec::with_capacity(records.len());
        let manifests = self.shared.manifests();
        for raw in records {
            match decode::record(raw) {
                Ok(record) => incoming.push(Incoming::Event(Box::new(Event {
                    ts: self.clock.micros(record.time),
                    identity: manifests.identity(record.container),
                    decider: manifests.decider(&record),
                    record,
                }))),
                Err(error) => self.shared.undecodable(error),
            }
        }
        drop(manifests);
        self.send(Item::Batch { sequence: Some(sequence), incoming }, frame)
    }

    fn reports(&mut self, sequence: u64, reports: &[&[u8]], frame: usize) -> Result<(), LinkError> {
        let mut incoming = Vec::with_capacity(reports.len());
        for raw in reports {
            let report: AgentReport = serde_json::from_slice(raw).map_err(|e| LinkError::Body(e.into()))?;
            let agent = report.agent.clone();
            match report::check(report) {
                Some(checked) => incoming.push(Incoming::Report(Box::new(checked))),
                None => self.shared.report_refused(&agent),
            }
        }
        self.send(Item::Batch { sequence: Some(sequence), incoming }, frame)
    }

    fn notice(&mut self, notice: Notice, frame: usize) -> Result<(), LinkError> {
        let incoming = match notice {
            Notice::Hello { session, boot } => {
                self.send(Item::Hello { session, boot }, frame)?;
                // What workers tell is stored behind that.
                self.shared.open_to_workers(self.items);
                return Ok(());
            }
            Notice::Flushed { token } => return self.send(Item::Flushed(token), frame),
            Notice::Manifest(manifest) => {
                let kernel = manifest.container;
                let identity = Arc::new(Identity {
                    public: manifest.public.clone(),
                    profile: manifest.profile.clone(),
                    uid: manifest.uid,
                    created: manifest.created,
                });
                self.shared.manifests().add(manifest);
                vec![Incoming::Container { kernel, identity }]
            }
            Notice::Ended { container } => {
                self.shared.manifests().ended(container);
                vec![Incoming::Ended { kernel: container }]
            }
            Notice::Counters { counters } => counters.into_iter().map(Incoming::Counted).collect(),
        };
        self.send(Item::Batch { sequence: None, incoming }, frame)
    }

    /// Hands an item to the store writer. While the store works, a full queue means to wait: the kernel's rings are the
    /// buffer, and count what does not fit. While it does not, events are dropped and counted here.
    fn send(&self, mut item: Item, frame: usize) -> Result<(), LinkError> {
        loop {
            match self.items.send(item, frame) {
                Ok(()) => return Ok(()),
                Err(NotSent::Closed) => return Err(LinkError::StoreWriter),
                Err(NotSent::Full(back)) => item = back,
            }
            match item {
                Item::Batch { incoming, sequence } if self.shared.is_failing() => {
                    for incoming in incoming {
                        self.shared.drop_incoming(incoming);
                    }
                    if let Some(sequence) = sequence {
                        self.shared.drop_batch(sequence);
                    }
                    return Ok(());
                }
                Item::Flushed(token) if self.shared.is_failing() => {
                    self.shared.lose_token(token);
                    return Ok(());
                }
                _ => thread::sleep(Duration::from_millis(2)),
            }
        }
    }
}
