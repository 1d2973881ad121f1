//! What the core and the auditor say to each other, over a stream socketpair made by the core.
//!
//! Frames as everywhere (u32 big-endian length, then the body), but the body's first byte is its kind, because
//! records are copied as they come from the kernel, undecoded:
//!
//! | kind | from | rest of the body |
//! |---|---|---|
//! | 1 | core | JSON of one [`Notice`] |
//! | 2 | core | u64 sequence number, then records, each a u32 length and its bytes |
//! | 3 | auditor | u64: the batches up to this sequence number are stored ([`Answer::Stored`]) |
//! | 5 | core | u64 sequence number, then [`AgentReport`]s as JSON, laid out as records are |
//! | 4 | auditor | u64: send what the rings hold, then [`Notice::Flushed`] with this token ([`Answer::Flush`]) |
//!
//! Numbers are big-endian. A session is one run of the core. The core says [`Notice::Hello`] first; the auditor
//! answers with the last sequence number of that session that it stored (0: none), so an auditor that was killed
//! costs nothing: the core keeps unacknowledged batches (within a bound; beyond it, it leaves records in the rings)
//! and sends them to the next auditor again. A batch that is already stored is skipped.
//!
//! The core starts `ringfence auditor --state DIR` with its end of the socketpair as standard input and the listening
//! query socket as standard output: both arrive without any unsafe adoption of a number. Standard error is the log.
//!
//! A manifest is sent before any record judged by it, and again for every live container to a new auditor.
//!
//! Before all that, the core sends one message of another kind: [`Handoff`], with the sockets that the auditor's
//! sandbox would not let it make. One of them is for [`PeerQuestion`].

use crate::{event::RuleText, message::Reply};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

/// Longest body of a records frame. The auditor's memory is bounded by a few of these.
pub const MAX_RECORDS: usize = 1 << 20;
/// Longest body of a notice.
pub const MAX_NOTICE: usize = 16 << 20;
/// Longest body of an [`Answer`].
pub const MAX_ANSWER: usize = 9;
/// Rules and slots that go into one [`Notice::Manifest`], so that it stays well below [`MAX_NOTICE`].
const CHUNK: usize = 4096;

const KIND_NOTICE: u8 = 1;
const KIND_RECORDS: u8 = 2;
const KIND_STORED: u8 = 3;
const KIND_FLUSH: u8 = 4;
const KIND_REPORTS: u8 = 5;

/// The core's first message to a new auditor, as JSON; the descriptors travel beside it (SCM_RIGHTS), in this order.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Handoff {
    /// What each descriptor is.
    #[serde(rename = "gifts")]
    pub fds: Vec<PassedFd>,
}

/// What a descriptor is that the core passes to its auditor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PassedFd {
    /// The listening socket of MCP sessions.
    Mcp,
    /// The listening TCP socket of the dashboard, on loopback.
    Dashboard,
    /// A connected `SOCK_SEQPACKET` socket on which the auditor asks [`PeerQuestion`]s.
    Peers,
}

/// Who is at the other end of a connection? It travels beside the message. The auditor sees the uid itself; what else
/// the kernel knows of a process only the core can read. Answered by [`FromCore::Answer`] of the same number.
///
/// Questions and answers are messages of a `SOCK_SEQPACKET` pair ([`crate::packets`]): one that is lost, late or broken
/// says nothing about the next.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PeerQuestion {
    /// The asker's own number for it, never used twice.
    #[serde(default)]
    pub number: u64,
}

/// What the core says where the auditor asks [`PeerQuestion`]s.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FromCore {
    /// An answer.
    Answer {
        /// The question's number.
        number: u64,
        /// What is known, or why nothing is.
        reply: Reply<PeerFacts>,
    },
    /// Whose subordinate user ids are, from now on. Unasked: to a new auditor, and when they change.
    Owners {
        /// All of them.
        ranges: Vec<Subordinate>,
    },
}

/// A range of user ids that a user has in user namespaces: a line of `/etc/subuid`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Subordinate {
    /// The first id.
    pub first: u32,
    /// How many there are.
    pub count: u32,
    /// The user id that has them.
    pub owner: u32,
}

/// What the core says of the process that made a connection.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PeerFacts {
    /// Its process id and those of its ancestors, nearest first, up to the first process.
    pub lineage: Vec<u32>,
    /// It belongs to a container.
    pub governed: bool,
}

/// Something about an agent, with whose it is, by the core's word.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct AgentReport {
    /// The agent's name; of a run, [`run_agent`]'s.
    pub agent: String,
    /// Who may see it, beside root.
    pub uid: u32,
    /// The public id of the one container that it is about: the run's. `None`: an agent of the daemon's own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub container: Option<String>,
    /// When: microseconds since 1970, UTC.
    pub at: i64,
    /// What it is about.
    #[serde(rename = "what")]
    pub payload: Payload,
}

/// What the runs of one user under one profile are called in the record. No agent of the daemon's has such a name, and no other
/// user's runs: what a user says of its runs meets nobody else's rows, and takes nobody else's room.
pub fn run_agent(profile: &str, uid: u32) -> String {
    format!("{profile}@{uid}")
}

/// See [`AgentReport`].
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Payload {
    /// A process tree was tagged for one of its tool calls.
    Tagged {
        /// The tag, as in records.
        tag: u64,
        /// The public id of the container.
        container: String,
    },
    /// A run reports from now on.
    LineOpened,
    /// A run reports no more: its worker is gone, or was cut off.
    LineClosed {
        /// When, ns since boot.
        moment: u64,
    },
    /// From its worker: an [`AgentEvent`](crate::trace::AgentEvent), parsed by the auditor alone.
    #[serde(rename = "said")]
    Event(Box<RawValue>),
}

/// Everything the core tells the auditor besides records.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "notice", rename_all = "snake_case")]
pub enum Notice {
    /// The first message on a connection.
    Hello {
        /// Random name of this run of the core.
        session: String,
        /// `/proc/sys/kernel/random/boot_id`: container ids and times count from boot.
        boot: String,
    },
    /// A container's policy, whole or in part.
    Manifest(Manifest),
    /// A container's last task is gone. Its records that are still on the way are still welcome.
    Ended {
        /// The container's kernel id.
        container: u64,
    },
    /// What the programs counted so far; sent now and then for containers whose counters moved.
    Counters {
        /// Absolute numbers, per container.
        counters: Vec<Counted>,
    },
    /// Everything that was in the rings when [`Answer::Flush`] arrived has been sent before this.
    Flushed {
        /// The token of the request.
        token: u64,
    },
}

/// Which rule each slot and index of one policy stands for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Manifest {
    /// The container's kernel id, as in the records.
    pub container: u64,
    /// The container's public id: 12 hex digits.
    pub public: String,
    /// Name of the profile.
    pub profile: String,
    /// Who enrolled it; this uid may see its events.
    pub uid: u32,
    /// When it was enrolled: microseconds since 1970, UTC.
    pub created: i64,
    /// The policy's generation, as in the records.
    pub generation: u32,
    /// The policy's rules; records name them by index.
    pub rules: Vec<RuleText>,
    /// The policy's slots of the rule table.
    pub slots: Vec<Slot>,
    /// More rules and slots of the same policy follow in the next notice, to be appended to these.
    pub more: bool,
}

/// One slot of the rule table: indexes into the rules, by axis (bit numbers of `ringfence_common::policy::axis`).
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Slot {
    /// `bucket * 8 + slot`.
    pub slot: u32,
    /// Rules that allow.
    pub allow: [Option<u32>; 5],
    /// Rules that deny.
    pub deny: [Option<u32>; 5],
    /// The built-in rule that ends an inherited allow here.
    pub reset: Option<u32>,
}

impl Manifest {
    /// Cuts a manifest of any size into notices that fit a frame, in the order to send them.
    pub fn notices(self) -> Vec<Notice> {
        let Self { rules, slots, .. } = &self;
        let parts = rules.len().div_ceil(CHUNK).max(slots.len().div_ceil(CHUNK)).max(1);
        fn part<T: Clone>(all: &[T], n: usize) -> Vec<T> {
            all.iter().skip(n * CHUNK).take(CHUNK).cloned().collect()
        }
        (0..parts)
            .map(|n| {
                Notice::Manifest(Self {
                    container: self.container,
                    public: self.public.clone(),
                    profile: self.profile.clone(),
                    uid: self.uid,
                    created: self.created,
                    generation: self.generation,
                    rules: part(rules, n),
                    slots: part(slots, n),
                    more: n + 1 < parts,
                })
            })
            .collect()
    }
}

/// A container's counters (`ringfence_common::policy::Counters`).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counted {
    /// The container's kernel id.
    pub container: u64,
    /// Denied operations, recorded or not.
    pub denied: u64,
    /// Denials that are in no event.
    pub lost_denied: u64,
    /// Other operations that should have been recorded and are in no event.
    pub lost_allowed: u64,
    /// Operations folded into events with `repeats`.
    pub aggregated: u64,
}

/// What the auditor tells the core. Fixed size: the core parses nothing an agent could have chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answer {
    /// Batches up to this sequence number are stored, or counted as lost: they need not be sent again.
    Stored(u64),
    /// Drain the rings and say [`Notice::Flushed`] with this token.
    Flush(u64),
}

/// A body that is none of the above.
#[derive(Debug, thiserror::Error)]
pub enum BodyError {
    /// No bytes at all.
    #[error("empty message")]
    Empty,
    /// The first byte is no known kind.
    #[error("unknown kind of message {0}")]
    Kind(u8),
    /// Lengths inside do not add up.
    #[error("message ends too early or too late")]
    Length,
    /// A notice that does not parse.
    #[error("notice does not parse")]
    Notice(#[from] serde_json::Error),
}

/// Collects records into the body of one frame.
#[derive(Debug)]
pub struct Batch {
    body: Vec<u8>,
}

impl Batch {
    /// An empty batch. Sequence numbers start at 1 in each session and count up by one.
    pub fn new(sequence: u64) -> Self {
        let mut body = vec![KIND_RECORDS];
        body.extend(sequence.to_be_bytes());
        Self { body }
    }

    /// An empty batch of reports; its sequence number is of the same row.
    pub fn of_reports(sequence: u64) -> Self {
        let mut body = vec![KIND_REPORTS];
        body.extend(sequence.to_be_bytes());
        Self { body }
    }

    /// Appends one record; false, and nothing appended, if it does not fit below [`MAX_RECORDS`].
    pub fn push(&mut self, record: &[u8]) -> bool {
        let Ok(length) = u32::try_from(record.len()) else { return false };
        if self.body.len() + 4 + record.len() > MAX_RECORDS {
            return false;
        }
        self.body.extend(length.to_be_bytes());
        self.body.extend(record);
        true
    }

    /// Whether no record was pushed.
    pub fn is_empty(&self) -> bool {
        self.body.len() == 9
    }

    /// The frame's body.
    pub fn into_body(self) -> Vec<u8> {
        self.body
    }
}

/// A body from the core.
#[derive(Debug, PartialEq, Eq)]
pub enum CoreMessage<'a> {
    /// A notice.
    Notice(Notice),
    /// A batch of raw records.
    Records {
        /// The batch's sequence number.
        sequence: u64,
        /// The records.
        records: Vec<&'a [u8]>,
    },
    /// A batch of reports, each JSON of an [`AgentReport`].
    Reports {
        /// The batch's sequence number.
        sequence: u64,
        /// The reports.
        reports: Vec<&'a [u8]>,
    },
}

impl Notice {
    /// The frame's body.
    ///
    /// # Errors
    /// Cannot fail for these types; serde_json's signature has an error all the same.
    pub fn to_body(&self) -> Result<Vec<u8>, serde_json::Error> {
        let mut body = vec![KIND_NOTICE];
        serde_json::to_writer(&mut body, self)?;
        Ok(body)
    }
}

impl<'a> CoreMessage<'a> {
    /// Reads a body sent by the core.
    ///
    /// # Errors
    /// A body that the core would not send.
    pub fn parse(body: &'a [u8]) -> Result<Self, BodyError> {
        match body.split_first() {
            None => Err(BodyError::Empty),
            Some((&KIND_NOTICE, json)) => Ok(Self::Notice(serde_json::from_slice(json)?)),
            Some((&KIND_RECORDS, rest)) => {
                let (sequence, records) = parse_batch(rest)?;
                Ok(Self::Records { sequence, records })
            }
            Some((&KIND_REPORTS, rest)) => {
                let (sequence, reports) = parse_batch(rest)?;
                Ok(Self::Reports { sequence, reports })
            }
            Some((&kind, _)) => Err(BodyError::Kind(kind)),
        }
    }
}

fn parse_batch(rest: &[u8]) -> Result<(u64, Vec<&[u8]>), BodyError> {
    let (sequence, mut rest) = rest.split_first_chunk::<8>().ok_or(BodyError::Length)?;
    let mut items = Vec::new();
    while !rest.is_empty() {
        let (length, tail) = rest.split_first_chunk::<4>().ok_or(BodyError::Length)?;
        let (item, tail) =
            tail.split_at_checked(u32::from_be_bytes(*length) as usize).ok_or(BodyError::Length)?;
        items.push(item);
        rest = tail;
    }
    Ok((u64::from_be_bytes(*sequence), items))
}

impl Answer {
    /// The frame's body.
    pub fn to_body(self) -> [u8; MAX_ANSWER] {
        let (kind, number) = match self {
            Self::Stored(sequence) => (KIND_STORED, sequence),
            Self::Flush(token) => (KIND_FLUSH, token),
        };
        let mut body = [kind; MAX_ANSWER];
        body[1..].copy_from_slice(&number.to_be_bytes());
        body
    }

    /// Reads a body sent by the auditor.
    ///
    /// # Errors
    /// A body that the auditor would not send.
    pub fn parse(body: &[u8]) -> Result<Self, BodyError> {
        let (&kind, number) = body.split_first().ok_or(BodyError::Empty)?;
        let number = u64::from_be_bytes(number.try_into().map_err(|_| BodyError::Length)?);
        match kind {
            KIND_STORED => Ok(Self::Stored(number)),
            KIND_FLUSH => Ok(Self::Flush(number)),
            kind => Err(BodyError::Kind(kind)),
        }
    }
}

#[cfg(test)]
mod tests;
