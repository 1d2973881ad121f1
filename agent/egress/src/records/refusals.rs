//! Refusals of connections that are one record. They cost whoever makes them nothing, so they are folded; and whoever makes one must
//! not hide another behind it, so what is folded is alike, as far as there is room for that:
//!
//! 1. the same process was refused the same thing, in the same words
//! 2. the same tool call, at the same name and port, for the same cause; where there are too many of the first, or they come too fast
//! 3. for the same cause, wherever; where there are too many of those as well
//!
//! Of each the first is a record at once.

use super::{FOLDING, different, printable};
use crate::rate::Rate;
use ringfence_wire::egress::{EgressCause, EgressRecord, EgressReport, MAX_SENTENCE};
use std::{
    collections::{HashMap, hash_map::RandomState},
    hash::{BuildHasher, Hash},
    time::Instant,
};

/// Different ones of a kind that are followed at once.
const MOST_FOLDED: usize = 512;

/// See the module.
pub(super) struct Refusals {
    same: HashMap<Same, Folded>,
    places: HashMap<Place, Folded>,
    causes: HashMap<Option<EgressCause>, Folded>,
    /// Of new ones of the first kind.
    rate: Rate,
    /// Nobody else knows what has which hash.
    hashes: RandomState,
}

#[derive(PartialEq, Eq, Hash)]
struct Same {
    place: Place,
    /// Process id and when it started.
    process: Option<(u32, u64)>,
    /// Hash of what is said of it beyond that.
    details: u64,
}

#[derive(Clone, PartialEq, Eq, Hash)]
struct Place {
    name: String,
    port: u16,
    cause: Option<EgressCause>,
    /// Tag of the tool call.
    call: u64,
}

struct Folded {
    since: Instant,
    /// The first that is not recorded yet, and how many came behind it.
    more: Option<(EgressReport, u64)>,
}

impl Refusals {
    pub(super) fn new(now: Instant) -> Self {
        Self {
            same: HashMap::new(),
            places: HashMap::new(),
            causes: HashMap::new(),
            rate: different(now),
            hashes: RandomState::new(),
        }
    }

    /// The report, if it is to be recorded now.
    pub(super) fn add(&mut self, report: EgressReport, now: Instant) -> Option<EgressReport> {
        let EgressRecord::Connection { name, port, cause, reason, dialled, .. } = &report.record else {
            return Some(report);
        };
        let (flow, cause) = (report.flow, *cause);
        let place = Place { name: name.clone(), port: *port, cause, call: flow.map_or(0, |flow| flow.call) };
        let same = Same {
            place: place.clone(),
            process: flow.map(|flow| (flow.tgid, flow.start)),
            details: self.hashes.hash_one((reason, dialled)),
        };
        if let Some(folded) = self.same.get_mut(&same) {
            folded.add(report);
            return None;
        }
        if self.same.len() < MOST_FOLDED && self.rate.take(now) {
            self.same.insert(same, Folded { since: now, more: None });
            return Some(report);
        }
        if self.places.len() < MOST_FOLDED || self.places.contains_key(&place) {
            return fold(&mut self.places, place, report, now);
        }
        fold(&mut self.causes, cause, report, now)
    }

    /// Takes out what was folded long enough; all with `at_once`.
    pub(super) fn unfold(&mut self, now: Instant, at_once: bool, over: &mut Vec<EgressReport>) {
        unfold(&mut self.same, now, at_once, "more like it", over);
        unfold(&mut self.places, now, at_once, "more there, for the same cause,", over);
        unfold(&mut self.causes, now, at_once, "more for the same cause, wherever,", over);
    }
}

impl Folded {
    fn add(&mut self, report: EgressReport) {
        match &mut self.more {
            Some((_, times)) => *times += 1,
            none => *none = Some((report, 0)),
        }
    }
}

fn fold<K: Eq + Hash>(
    kept: &mut HashMap<K, Folded>,
    key: K,
    report: EgressReport,
    now: Instant,
) -> Option<EgressReport> {
    match kept.get_mut(&key) {
        Some(folded) => {
            folded.add(report);
            None
        }
        None => {
            kept.insert(key, Folded { since: now, more: None });
            Some(report)
        }
    }
}

fn unfold<K: Eq + Hash>(
    kept: &mut HashMap<K, Folded>,
    now: Instant,
    at_once: bool,
    what: &str,
    over: &mut Vec<EgressReport>,
) {
    kept.retain(|_, folded| {
        let is_over = at_once || now.saturating_duration_since(folded.since) >= FOLDING;
        match folded.more.take_if(|_| is_over) {
            Some((report, times)) => {
                over.push(repeated(report, times, what));
                // It goes on: the next of them is folded again.
                folded.since = now;
                !at_once
            }
            None => !is_over,
        }
    });
}

/// Says how many came after it.
fn repeated(mut report: EgressReport, times: u64, what: &str) -> EgressReport {
    if let EgressRecord::Connection { reason, .. } = &mut report.record
        && times > 0
    {
        let said = reason.take().unwrap_or_default();
        let again = format!(" (and {times} {what} within {} s)", FOLDING.as_secs());
        *reason = Some(printable(&said, MAX_SENTENCE.saturating_sub(again.len())) + &again);
    }
    report
}

#[cfg(test)]
mod tests {
    use super::*;
    use ringfence_wire::egress::{EgressOutcome, Flow};

    fn refused(tgid: u32, name: &str, port: u16, cause: EgressCause, reason: &str) -> EgressReport {
        let flow = Flow {
            address: [198, 18, 1, 1].into(),
            port,
            call: 0,
            pid: tgid,
            tgid,
            start: u64::from(tgid),
            uid: 1000,
        };
        let record = EgressRecord::Connection {
            name: name.into(),
            port,
            dialled: None,
            tls: true,
            sent: 0,
            received: 0,
            duration_us: 0,
            outcome: EgressOutcome::Refused,
            cause: Some(cause),
            reason: Some(reason.into()),
            rule: None,
        };
        EgressReport { at: 0, flow: Some(flow), record }
    }

    fn reasons(reports: &[EgressReport]) -> Vec<String> {
        let reason = |report: &EgressReport| match &report.record {
            EgressRecord::Connection { reason, .. } => reason.clone().unwrap(),
            _ => unreachable!(),
        };
        reports.iter().map(reason).collect()
    }

    fn unfolded(refusals: &mut Refusals, now: Instant) -> Vec<String> {
        let mut over = Vec::new();
        refusals.unfold(now, false, &mut over);
        let mut said = reasons(&over);
        said.sort();
        said
    }

    #[test]
    fn no_refusal_hides_behind_another_of_other_words_or_of_another_process() {
        let begun = Instant::now();
        let mut refusals = Refusals::new(begun);
        let mut add = |report| refusals.add(report, begun).is_some();
        let other = EgressCause::OtherName;
        assert!(add(refused(1, "a.org", 443, other, "for another server, decoy.example")));
        assert!(add(refused(1, "a.org", 443, other, "for another server, target.example")));
        assert!(add(refused(2, "a.org", 443, other, "for another server, decoy.example")), "who did it");
        assert!(!add(refused(1, "a.org", 443, other, "for another server, decoy.example")), "the same again");
        let led = |address: &str| {
            let mut report = refused(1, "w.org", 443, EgressCause::NotPublic, "x");
            if let EgressRecord::Connection { dialled, .. } = &mut report.record {
                *dialled = Some(address.parse().unwrap());
            }
            report
        };
        assert!(add(led("10.0.0.1:443")) && add(led("10.0.0.2:443")) && !add(led("10.0.0.1:443")));
    }

    #[test]
    fn more_than_are_followed_are_one_record_for_each_place_and_then_for_each_cause() {
        let begun = Instant::now();
        let mut refusals = Refusals::new(begun);
        let (not_tls, other) = (EgressCause::NotTls, EgressCause::OtherName);
        // More words than the rate has, of one place.
        let said = (0..1000)
            .filter(|at| refusals.add(refused(1, "a.org", 443, other, &format!("{at}")), begun).is_some());
        assert_eq!(said.count(), 128 + 1);
        assert_eq!(
            unfolded(&mut refusals, begun + FOLDING),
            ["129 (and 870 more there, for the same cause, within 10 s)"]
        );
        // Every port of an entry without one.
        let mut refusals = Refusals::new(begun);
        let said =
            (1..=5000).filter(|port| refusals.add(refused(1, "a.org", *port, not_tls, "x"), begun).is_some());
        assert_eq!(said.count(), 128 + MOST_FOLDED + 1);
        // What else is refused is a record all the same.
        assert!(refusals.add(refused(2, "b.org", 443, EgressCause::Denied, "denied"), begun).is_some());
        assert!(refusals.add(refused(2, "c.org", 443, EgressCause::Denied, "denied, too"), begun).is_none());
        let said = unfolded(&mut refusals, begun + FOLDING);
        assert_eq!(said, ["denied, too", "x (and 4358 more for the same cause, wherever, within 10 s)"]);
        // Each is there or counted: 641 at once, one and 4358.
        assert_eq!(641 + 1 + 4358, 5000);
        assert_eq!(refusals.same.len() + refusals.places.len(), 0, "what did not come again is forgotten");
    }
}
