//! What containers' egress workers tell of connections by name, checked: a worker reads what agents and servers send it, and may
//! be in somebody else's hands.
//!
//! The core says which container a line is of, and what addresses it has. All else is the worker's word: it can lie about its
//! own container, and about no other. A time is none of the future, an address is one of the container's own, a text is short and
//! printable, and a rule is named only where it names the host ([`can_decide`]). Whose call a connection is is looked up where it is
//! stored, in what the core said of the tag.

use super::{decode::Decoded, manifests::Decider};
use nix::libc;
use ringfence_base::escape;
use ringfence_common::event::{op, rule, verdict};
use ringfence_wire::{
    egress::{
        EgressCause, EgressLine, EgressOutcome, EgressRecord, EgressReport, Flow, MAX_NAME, MAX_SENTENCE,
        NameOutcome,
    },
    event::{Connection, Question, RuleText},
};
use serde::{Deserialize, Serialize};
use std::{net::Ipv4Addr, sync::Arc};

/// Longest kind of a question: `TYPE65535`.
const MAX_KIND: usize = 9;
/// Most records that one message can say are lost.
const MOST_LOST: u64 = u32::MAX as u64;
/// [`Decoded::lineage`] of a process of whose ancestors nothing is known, as the programs have it.
const UNKNOWN_ANCESTORS: [u64; 4] = [1, 0, 0, 0];

/// What a worker tells of one host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Egress {
    /// The host, escaped as paths are. Empty: the address that was connected to stands for none.
    pub name: String,
    /// What it tells.
    pub told: Told,
}

/// See [`Egress`]. As it is stored, in JSON.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Told {
    /// A connection is over, or was refused.
    Connection(Connection),
    /// The name was asked for.
    Question(Question),
}

/// A report within its bounds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Checked {
    /// What happened.
    Event {
        /// When it was over, µs since 1970: what is deleted by age, and asked for by time, goes by this.
        ts: i64,
        /// Which of the policy's rules decided, by the worker's word.
        rule: Option<u32>,
        /// The record, without what decided. Its time is that of the beginning.
        record: Box<Decoded>,
    },
    /// Records that found no room.
    Lost(u64),
}

/// The same moment on both clocks.
#[derive(Debug, Clone, Copy)]
pub struct Now {
    /// µs since 1970.
    pub micros: i64,
    /// ns since boot.
    pub boot: u64,
}

/// Checks a report that came on a line. `None`: no worker of this version sends that.
pub fn check(line: &EgressLine, report: EgressReport, now: Now) -> Option<Checked> {
    let EgressReport { at, flow, record } = report;
    let began = at.clamp(line.created.min(now.micros), now.micros);
    if flow.is_some_and(|flow| !line.block.contains(&flow.address)) {
        return None;
    }
    let (name, port, told, rule, repeats, ended) = match record {
        EgressRecord::Lost { count } => return Some(Checked::Lost(count.min(MOST_LOST))),
        EgressRecord::Connection {
            name,
            port,
            dialled,
            tls,
            sent,
            received,
            duration_us,
            outcome,
            cause,
            reason,
            rule,
        } => {
            // The kernel's word and the worker's are of one connection.
            if flow.is_some_and(|flow| flow.port != port) || !(name.is_empty() || is_text(&name, MAX_NAME)) {
                return None;
            }
            let reason = match reason {
                Some(reason) if !is_text(&reason, MAX_SENTENCE) => return None,
                reason => reason.map(|reason| escape::line(&reason)),
            };
            let lasted = i64::try_from(duration_us).unwrap_or(i64::MAX);
            let connection = Connection {
                outcome,
                cause: cause.filter(|_| !matches!(outcome, EgressOutcome::Open | EgressOutcome::Passed)),
                reason,
                address: flow.map(|flow| flow.address),
                dialled,
                tls,
                sent,
                received,
                duration_us,
            };
            (name, port, Told::Connection(connection), rule, 1, began.saturating_add(lasted).min(now.micros))
        }
        EgressRecord::Name { name, kind, outcome, address, repeats } => {
            let is_kind = (1..=MAX_KIND).contains(&kind.len())
                && kind.bytes().all(|byte| byte.is_ascii_uppercase() || byte.is_ascii_digit());
            if !is_text(&name, MAX_NAME)
                || !is_kind
                || address.is_some_and(|address| !line.block.contains(&address))
            {
                return None;
            }
            let repeats = u32::try_from(repeats).unwrap_or(u32::MAX).saturating_add(1);
            (name, 0, Told::Question(Question { kind, outcome, address }), None, repeats, began)
        }
    };
    let egress = Egress { name: escape::name(name.as_bytes()), told };
    // A time of before this boot would be a number below zero.
    let ago = u64::try_from(now.micros.saturating_sub(began)).unwrap_or(0).saturating_mul(1000);
    let moment = now.boot.saturating_sub(ago).max(1);
    let record = Decoded { port, repeats, ..record_of(line.container, egress, (flow, moment)) };
    Some(Checked::Event { ts: ended, rule, record: Box::new(record) })
}

fn record_of(container: u64, egress: Egress, (flow, moment): (Option<Flow>, u64)) -> Decoded {
    let (op, address) = match &egress.told {
        Told::Connection(connection) => (op::NET_CONNECTION, connection.address),
        Told::Question(question) => (op::NET_NAME, question.address),
    };
    // Of a question nobody knows who asked: a resolver's socket belongs to whoever made it.
    let flow = flow.filter(|_| op == op::NET_CONNECTION);
    let of = |number: fn(&Flow) -> u32| flow.as_ref().map_or(0, number);
    Decoded {
        op,
        verdict: verdict_of(&egress.told),
        flags: 0,
        time: moment,
        container,
        call: flow.map_or(0, |flow| flow.call),
        start: flow.map_or(0, |flow| flow.start),
        lineage: UNKNOWN_ANCESTORS,
        generation: 0,
        pid: of(|flow| flow.pid),
        tgid: of(|flow| flow.tgid),
        ppid: 0,
        uid: of(|flow| flow.uid),
        detail: 0,
        repeats: 1,
        rule_kind: rule::DEFAULT,
        rule: 0,
        axes: 0,
        family: if address.is_some() { libc::AF_INET as u16 } else { 0 },
        port: 0,
        addr: address.map_or([0; 16], |address| address.to_ipv6_mapped().octets()),
        target: 0,
        path: None,
        path2: None,
        exe: String::new(),
        egress: Some(Box::new(egress)),
    }
}

fn verdict_of(told: &Told) -> u8 {
    match told {
        Told::Connection(connection) => match connection.outcome {
            // What was granted and reached nobody was denied by nobody.
            EgressOutcome::Open | EgressOutcome::Passed | EgressOutcome::Failed => verdict::ALLOWED,
            EgressOutcome::WouldDeny => verdict::WOULD_DENY,
            EgressOutcome::Refused | EgressOutcome::Ended => verdict::DENIED,
        },
        Told::Question(question) => match question.outcome {
            NameOutcome::Answered | NameOutcome::Asked => verdict::ALLOWED,
            NameOutcome::WouldDeny => verdict::WOULD_DENY,
            NameOutcome::Refused | NameOutcome::NoRoom => verdict::DENIED,
        },
    }
}

/// Whether a text is short, and printable ASCII.
fn is_text(text: &str, most: usize) -> bool {
    !text.is_empty() && text.len() <= most && text.bytes().all(|byte| (b' '..=b'~').contains(&byte))
}

/// Whether a rule can be what decided, as the worker says: of the right kind, and about that host and port.
pub fn can_decide(rule: &RuleText, record: &Decoded) -> bool {
    let Some(egress) = &record.egress else { return false };
    let is_deny = egress.cause() == Some(EgressCause::Denied);
    (rule.key == "deny.net") == is_deny && covers(rule, &egress.name, record.port)
}

/// What decided, where this rule is the one that the worker named.
pub fn decider(rule: Option<Arc<RuleText>>, record: &Decoded) -> Decider {
    match rule {
        Some(rule) => Decider::Rule(rule),
        None if record.verdict == verdict::ALLOWED => Decider::Unknown,
        None => Decider::Default,
    }
}

fn covers(rule: &RuleText, name: &str, port: u16) -> bool {
    let Some(entry) = ["grant.net", "deny.net"].contains(&rule.key.as_str()).then_some(rule.text.as_str())
    else {
        return false;
    };
    let entry = entry.strip_prefix("tcp:").unwrap_or(entry);
    let (host, at) = match entry.rsplit_once(':') {
        Some((host, at)) => (host, Some(at)),
        None => (entry, None),
    };
    let is_host = match host.strip_prefix("*.") {
        Some(above) => is_below(name, above),
        None => host.eq_ignore_ascii_case(name),
    };
    is_host && at.is_none_or(|at| at.parse() == Ok(port))
}

/// Whether a host is one label or more below another.
fn is_below(name: &str, above: &str) -> bool {
    let Some(at) = name.len().checked_sub(above.len()) else { return false };
    let (below, rest) = (name.get(..at), name.get(at..));
    rest.is_some_and(|rest| rest.eq_ignore_ascii_case(above))
        && below.is_some_and(|below| below.len() > 1 && below.ends_with('.'))
}

impl Egress {
    /// What was asked for: `example.org:443`; of a question, the name.
    pub(crate) fn target(&self, record: &Decoded) -> Option<String> {
        let name = || Some(self.name.clone()).filter(|name| !name.is_empty());
        match &self.told {
            Told::Question(_) => name(),
            Told::Connection(connection) => {
                let host =
                    name().or_else(|| connection.address.map(|address: Ipv4Addr| address.to_string()))?;
                Some(format!("{host}:{}", record.port))
            }
        }
    }

    /// Its details, each a word or `key=value`.
    pub(crate) fn words(&self) -> Vec<String> {
        match &self.told {
            Told::Connection(connection) => {
                let mut words = vec![format!("outcome={}", word(&connection.outcome))];
                words.extend(connection.cause.map(|cause| format!("cause={}", word(&cause))));
                words.extend(connection.tls.then(|| "tls".to_owned()));
                words
            }
            Told::Question(question) => {
                vec![format!("type={}", question.kind), format!("outcome={}", word(&question.outcome))]
            }
        }
    }

    /// Why a connection did not just pass.
    pub(crate) fn cause(&self) -> Option<EgressCause> {
        match &self.told {
            Told::Connection(connection) => connection.cause,
            Told::Question(_) => None,
        }
    }
}

/// What a value of these enums is called in JSON.
pub fn word(value: &impl Serialize) -> String {
    match serde_json::to_value(value) {
        Ok(serde_json::Value::String(word)) => word,
        _ => String::new(),
    }
}

#[cfg(test)]
mod tests;
