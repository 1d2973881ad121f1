//! What is for the record, until the line to the auditor takes it. Traffic never waits for that: what finds no room is counted.

mod refusals;

use crate::rate::Rate;
use refusals::Refusals;
use ringfence_base::clock::now_micros;
use ringfence_wire::egress::{
    EgressOutcome, EgressRecord, EgressReport, Flow, MAX_NAME, MAX_SENTENCE, NameOutcome, REPORTS_AT_ONCE,
};
use std::{
    cell::{Cell, RefCell},
    collections::{HashMap, VecDeque},
    net::Ipv4Addr,
    time::{Duration, Instant},
};
use tokio::sync::Notify;

/// Records that wait for the auditor. What costs more, and says more, has room where the rest has none any more.
const MOST_WAITING: usize = 4096;
/// Of them, so many may be of connections that are over and have sent less than [`MUCH`].
const MOST_SHORT: usize = MOST_WAITING - 256;
/// With those that begin to pass, and names that are given an address.
const MOST_BEGUN: usize = MOST_WAITING / 4 * 3;
/// And with what was refused.
const MOST_REFUSED: usize = MOST_WAITING / 2;
/// Bytes sent from which on a connection is not one of many that anybody makes to fill the record.
const MUCH: u64 = 64 << 10;
/// How long the same question for a name that is not answered is one record, and the same refusal of a connection.
const FOLDING: Duration = Duration::from_secs(10);
/// Different questions that are followed at once.
const MOST_FOLDED: usize = 512;

/// See the module.
pub(crate) struct Records {
    waiting: RefCell<Waiting>,
    folds: RefCell<Folds>,
    /// Connections that did not pass.
    refusals: RefCell<Refusals>,
    /// Since the last batch that said so.
    lost: Cell<u64>,
    /// Since the worker began.
    all_lost: Cell<u64>,
    more: Notify,
}

/// In the order in which they came.
#[derive(Default)]
struct Waiting {
    reports: VecDeque<EgressReport>,
    /// How many were taken before the first of them, and not given back: each has a number.
    taken: u64,
}

/// How many different things are recorded: whoever makes them up does not fill the record.
fn different(now: Instant) -> Rate {
    Rate::new(128.0, 32.0, now)
}

/// A record that a connection begins to pass, which its end may take the place of.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Begun(u64);

struct Folds {
    by_question: HashMap<(String, String), Fold>,
    rate: Rate,
}

struct Fold {
    outcome: NameOutcome,
    since: Instant,
    /// When the first came that is not recorded yet, µs since 1970, and how many did.
    more: Option<(i64, u64)>,
}

impl Records {
    pub(crate) fn new(now: Instant) -> Self {
        Self {
            waiting: RefCell::default(),
            folds: RefCell::new(Folds { by_question: HashMap::new(), rate: different(now) }),
            refusals: RefCell::new(Refusals::new(now)),
            lost: Cell::new(0),
            all_lost: Cell::new(0),
            more: Notify::new(),
        }
    }

    /// Records that found no room since the worker began.
    pub(crate) fn lost(&self) -> u64 {
        self.all_lost.get()
    }

    /// Puts on record that a connection begins to pass; `None`: there was no room. `at`: µs since 1970.
    pub(crate) fn begun(&self, at: i64, flow: Option<Flow>, record: EgressRecord) -> Option<Begun> {
        self.push(EgressReport { at, flow, record }, MOST_BEGUN).map(Begun)
    }

    /// Puts a connection on record that is over, of which nothing is on record yet. What was refused is folded. `at`: µs since 1970.
    pub(crate) fn connection(&self, at: i64, flow: Option<Flow>, record: EgressRecord, now: Instant) {
        self.over(at, flow, record, None, now);
    }

    /// The same, in the place of the record that it began, where that waits still. What was ended before anything of it passed is
    /// folded as well.
    pub(crate) fn over(
        &self,
        at: i64,
        flow: Option<Flow>,
        record: EgressRecord,
        begun: Option<Begun>,
        now: Instant,
    ) {
        let report = EgressReport { at, flow, record };
        let EgressRecord::Connection { outcome, sent, received, .. } = &report.record else { return };
        let (is_nothing, is_begun) = ((*sent, *received) == (0, 0), begun.is_some());
        let (most, is_folded) = match outcome {
            EgressOutcome::Refused | EgressOutcome::Failed => (MOST_REFUSED, true),
            // What began to pass on record has an end of its own there.
            EgressOutcome::Ended if is_nothing && !is_begun => (MOST_REFUSED, true),
            _ if *sent > MUCH => (MOST_WAITING, false),
            _ => (MOST_SHORT, false),
        };
        let left = match begun {
            Some(begun) => self.waiting.borrow_mut().replace(begun, report),
            None => Some(report),
        };
        let Some(report) = left else { return };
        let report = match is_folded {
            true => self.refusals.borrow_mut().add(report, now),
            false => Some(report),
        };
        if let Some(report) = report {
            self.push(report, most);
        }
    }

    /// Its number, where there are less than `most`.
    fn push(&self, report: EgressReport, most: usize) -> Option<u64> {
        let number = self.waiting.borrow_mut().push(report, most);
        if number.is_none() {
            self.lose(1);
        }
        self.more.notify_one();
        number
    }

    /// An address begins to stand for a name. False: there was no room for that.
    pub(crate) fn answered(&self, name: &str, kind: &str, outcome: NameOutcome, address: Ipv4Addr) -> bool {
        let record = EgressRecord::Name {
            name: printable(name, MAX_NAME),
            kind: kind.to_owned(),
            outcome,
            address: Some(address),
            repeats: 0,
        };
        self.push(EgressReport { at: now_micros(), flow: None, record }, MOST_BEGUN).is_some()
    }

    /// A question was not answered with an address: the first time that is recorded at once, and how often it came again when
    /// [`FOLDING`] is over.
    pub(crate) fn refused(&self, name: &str, kind: &str, outcome: NameOutcome, now: Instant) {
        let question = (printable(name, MAX_NAME), kind.to_owned());
        let mut folds = self.folds.borrow_mut();
        if let Some(fold) = folds.by_question.get_mut(&question) {
            let more = fold.more.get_or_insert_with(|| (now_micros(), 0));
            more.1 += 1;
            return;
        }
        if folds.by_question.len() >= MOST_FOLDED || !folds.rate.take(now) {
            drop(folds);
            return self.lose(1);
        }
        folds.by_question.insert(question.clone(), Fold { outcome, since: now, more: None });
        drop(folds);
        let record = name_record(question, outcome, 0);
        self.push(EgressReport { at: now_micros(), flow: None, record }, MOST_REFUSED);
    }

    /// Records what was folded long enough; of all with `at_once`.
    pub(crate) fn unfold(&self, now: Instant, at_once: bool) {
        let mut over = Vec::new();
        self.folds.borrow_mut().by_question.retain(|question, fold| {
            let is_over = at_once || now.saturating_duration_since(fold.since) >= FOLDING;
            if let (true, Some((at, times))) = (is_over, fold.more) {
                over.push((at, name_record(question.clone(), fold.outcome, times.saturating_sub(1))));
                // It goes on: the next of them is folded again.
                fold.since = now;
                fold.more = None;
                return !at_once;
            }
            !is_over
        });
        let mut reports: Vec<EgressReport> =
            over.into_iter().map(|(at, record)| EgressReport { at, flow: None, record }).collect();
        self.refusals.borrow_mut().unfold(now, at_once, &mut reports);
        for report in reports {
            self.push(report, MOST_REFUSED);
        }
    }

    /// Waits until there is something to take.
    pub(crate) async fn wait(&self) {
        while self.waiting.borrow().reports.is_empty() && self.lost.get() == 0 {
            self.more.notified().await;
        }
    }

    /// Whether nothing waits.
    pub(crate) fn is_empty(&self) -> bool {
        self.waiting.borrow().reports.is_empty() && self.lost.get() == 0
    }

    /// What is to be said next, at most a frame of it. What could not be said is given [`back`](Self::give_back).
    pub(crate) fn take(&self) -> Vec<EgressReport> {
        let mut waiting = self.waiting.borrow_mut();
        let count = self.lost.take();
        let room = REPORTS_AT_ONCE - usize::from(count > 0);
        let mut batch = waiting.take(room);
        if count > 0 {
            batch.push(EgressReport { at: now_micros(), flow: None, record: EgressRecord::Lost { count } });
        }
        batch
    }

    /// They go first again, as far as there is room.
    pub(crate) fn give_back(&self, batch: Vec<EgressReport>) {
        let mut waiting = self.waiting.borrow_mut();
        for report in batch.into_iter().rev() {
            if let EgressRecord::Lost { count } = report.record {
                self.lost.set(self.lost.get() + count);
            } else if !waiting.give_back(report) {
                self.lose(1);
            }
        }
    }

    fn lose(&self, count: u64) {
        self.lost.set(self.lost.get() + count);
        self.all_lost.set(self.all_lost.get() + count);
        self.more.notify_one();
    }
}

impl Waiting {
    fn push(&mut self, report: EgressReport, most: usize) -> Option<u64> {
        if self.reports.len() >= most {
            return None;
        }
        self.reports.push_back(report);
        Some(self.taken + self.reports.len() as u64 - 1)
    }

    /// Puts a report in the place of the one with a number; gives it back where that does not wait any more.
    fn replace(&mut self, Begun(number): Begun, report: EgressReport) -> Option<EgressReport> {
        let at = number.checked_sub(self.taken).and_then(|at| usize::try_from(at).ok());
        match at.and_then(|at| self.reports.get_mut(at)) {
            Some(waits) => {
                *waits = report;
                None
            }
            None => Some(report),
        }
    }

    fn take(&mut self, most: usize) -> Vec<EgressReport> {
        let count = self.reports.len().min(most);
        self.taken += count as u64;
        self.reports.drain(..count).collect()
    }

    /// The last of those that were taken and not given back. False: there is no room, and so for none before it.
    fn give_back(&mut self, report: EgressReport) -> bool {
        if self.reports.len() >= MOST_WAITING || self.taken == 0 {
            return false;
        }
        self.reports.push_front(report);
        self.taken -= 1;
        true
    }
}

fn name_record((name, kind): (String, String), outcome: NameOutcome, repeats: u64) -> EgressRecord {
    EgressRecord::Name { name, kind, outcome, address: None, repeats }
}

/// A sentence for the record: one line of printable ASCII, and no longer than it may be.
pub(crate) fn sentence(text: &str) -> String {
    printable(text, MAX_SENTENCE)
}

/// Printable ASCII of at most `most` bytes.
fn printable(text: &str, most: usize) -> String {
    text.chars().map(|c| if c == ' ' || c.is_ascii_graphic() { c } else { '?' }).take(most).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use ringfence_wire::egress::EgressCause;

    fn connection(port: u16) -> EgressRecord {
        EgressRecord::Name {
            name: port.to_string(),
            kind: "A".into(),
            outcome: NameOutcome::Answered,
            address: None,
            repeats: 0,
        }
    }

    fn told(records: &Records) -> Vec<(String, u64)> {
        let mut told = Vec::new();
        while !records.is_empty() {
            for report in records.take() {
                match report.record {
                    EgressRecord::Name { name, repeats, .. } => told.push((name, repeats)),
                    EgressRecord::Lost { count } => told.push(("lost".into(), count)),
                    EgressRecord::Connection { .. } => unreachable!(),
                }
            }
        }
        told
    }

    #[test]
    fn the_same_question_is_one_record_in_ten_seconds() {
        let begun = Instant::now();
        let records = Records::new(begun);
        for _ in 0..5 {
            records.refused("evil.org", "A", NameOutcome::Refused, begun);
        }
        records.refused("evil.org", "AAAA", NameOutcome::Refused, begun);
        assert_eq!(told(&records), [("evil.org".into(), 0), ("evil.org".into(), 0)], "at once");
        records.unfold(begun + FOLDING / 2, false);
        assert!(records.is_empty());
        records.unfold(begun + FOLDING, false);
        assert_eq!(told(&records), [("evil.org".into(), 3)], "four more: one, and three beyond it");
        records.unfold(begun + FOLDING * 2, false);
        records.refused("evil.org", "A", NameOutcome::Refused, begun + FOLDING * 2);
        assert_eq!(told(&records), [("evil.org".into(), 0)], "another ten seconds");
        records.refused("evil.org", "A", NameOutcome::Refused, begun + FOLDING * 2);
        records.unfold(begun + FOLDING * 2, true);
        assert_eq!(told(&records), [("evil.org".into(), 0)], "nothing is forgotten at the end");
    }

    #[test]
    fn made_up_names_are_counted_beyond_a_rate() {
        let begun = Instant::now();
        let records = Records::new(begun);
        for at in 0..1000 {
            records.refused(&format!("{at}.evil.org"), "A", NameOutcome::Refused, begun);
        }
        let told = told(&records);
        assert_eq!(told.len(), 129);
        assert!(told.contains(&("lost".into(), 1000 - 128)));
        records.refused("later.org", "A", NameOutcome::Refused, begun + Duration::from_secs(1));
        assert_eq!(records.take().len(), 1);
    }

    #[test]
    fn what_waits_is_bounded_and_what_is_lost_is_said() {
        let records = Records::new(Instant::now());
        for at in 0..5000 {
            records.push(EgressReport { at: 0, flow: None, record: connection(at) }, MOST_WAITING);
        }
        let first = records.take();
        assert_eq!(first.len(), REPORTS_AT_ONCE);
        records.give_back(first);
        let told = told(&records);
        assert_eq!(told.len(), MOST_WAITING + 1);
        assert_eq!(told.iter().filter(|(name, _)| name == "lost").map(|(_, n)| n).sum::<u64>(), 5000 - 4096);
        assert_eq!(told[0].0, "0", "the oldest is first again");
        assert_eq!(records.lost(), 5000 - 4096);
    }

    fn ended(port: u16, outcome: EgressOutcome) -> EgressRecord {
        EgressRecord::Connection {
            name: "a.org".into(),
            port,
            dialled: None,
            tls: true,
            sent: 0,
            received: 0,
            duration_us: 0,
            outcome,
            cause: (outcome != EgressOutcome::Passed).then_some(EgressCause::NotTls),
            reason: (outcome != EgressOutcome::Passed).then(|| "x".repeat(MAX_SENTENCE)),
            rule: None,
        }
    }

    #[test]
    fn refused_connections_leave_room_for_those_that_passed() {
        let begun = Instant::now();
        let records = Records::new(begun);
        // Other names and ports each time, and more than are followed.
        for round in 0..20 {
            for port in 0..600 {
                records.connection(0, None, ended(port, EgressOutcome::Refused), begun + FOLDING * round);
            }
            records.unfold(begun + FOLDING * (round + 1), false);
        }
        assert_eq!(records.waiting.borrow().reports.len(), MOST_REFUSED);
        assert!(records.lost() > 0);
        records.connection(0, None, ended(443, EgressOutcome::Passed), begun);
        assert!(records.waiting.borrow().reports.iter().any(|report| {
            matches!(&report.record, EgressRecord::Connection { outcome: EgressOutcome::Passed, .. })
        }));
    }

    #[test]
    fn the_same_refusal_is_one_record_in_ten_seconds_that_says_how_often() {
        let begun = Instant::now();
        let records = Records::new(begun);
        for at in 0..5 {
            records.connection(at, None, ended(443, EgressOutcome::Refused), begun);
            records.connection(at, None, ended(443, EgressOutcome::Passed), begun);
        }
        assert_eq!(records.take().len(), 6, "each that passed, and one");
        records.unfold(begun + FOLDING / 2, false);
        assert!(records.is_empty());
        records.unfold(begun + FOLDING, false);
        let told = records.take();
        let [EgressReport { at: 1, record: EgressRecord::Connection { reason: Some(reason), .. }, .. }] =
            &told[..]
        else {
            panic!("{told:?}")
        };
        assert!(reason.ends_with("x (and 3 more like it within 10 s)"), "{reason}");
        assert_eq!(reason.len(), MAX_SENTENCE);
        records.unfold(begun + FOLDING * 2, false);
        records.connection(9, None, ended(443, EgressOutcome::Refused), begun + FOLDING * 2);
        assert_eq!(records.take().len(), 1, "another ten seconds");
        records.connection(9, None, ended(443, EgressOutcome::Refused), begun + FOLDING * 2);
        records.unfold(begun + FOLDING * 2, true);
        assert_eq!(records.take().len(), 1, "nothing is forgotten at the end");
    }

    fn flow() -> Flow {
        Flow { address: [198, 18, 1, 1].into(), port: 443, call: 0, pid: 1, tgid: 1, start: 1, uid: 1000 }
    }

    fn with_sent(bytes: u64, outcome: EgressOutcome) -> EgressRecord {
        let mut record = ended(443, outcome);
        if let EgressRecord::Connection { sent, .. } = &mut record {
            *sent = bytes;
        }
        record
    }

    /// What is taken of connections: their outcomes and what they sent.
    fn outcomes(batch: &[EgressReport]) -> Vec<(EgressOutcome, u64)> {
        let of = |report: &EgressReport| match &report.record {
            EgressRecord::Connection { outcome, sent, .. } => Some((*outcome, *sent)),
            _ => None,
        };
        batch.iter().filter_map(of).collect()
    }

    #[test]
    fn the_end_of_a_connection_takes_the_place_of_its_beginning_where_that_waits() {
        use EgressOutcome::{Ended, Open, Passed};
        let begun = Instant::now();
        let records = Records::new(begun);
        let opens = || records.begun(0, Some(flow()), with_sent(0, Open));
        let (first, second) = (opens(), opens());
        records.over(0, Some(flow()), with_sent(5, Passed), second, begun);
        let batch = records.take();
        assert_eq!(outcomes(&batch), [(Open, 0), (Passed, 5)]);
        // What is on its way is not changed; what came back is.
        let third = opens();
        records.over(0, Some(flow()), with_sent(6, Passed), first, begun);
        records.give_back(batch);
        records.over(0, Some(flow()), with_sent(0, Ended), third, begun);
        assert_eq!(outcomes(&records.take()), [(Open, 0), (Passed, 5), (Ended, 0), (Passed, 6)]);
        let fourth = opens();
        records.give_back(records.take());
        records.over(0, Some(flow()), with_sent(7, Passed), fourth, begun);
        assert_eq!(outcomes(&records.take()), [(Passed, 7)]);
        assert_eq!(records.lost(), 0);
    }

    #[test]
    fn many_short_connections_do_not_push_out_the_end_of_one_that_sent_much() {
        use EgressOutcome::{Ended, Open, Passed};
        let begun = Instant::now();
        let records = Records::new(begun);
        // It was sent long ago that this one began.
        let old = records.begun(0, Some(flow()), with_sent(0, Open));
        records.take();
        let address = Ipv4Addr::new(198, 18, 1, 1);
        let names =
            (0..5000).filter(|at| records.answered(&format!("{at}.w"), "A", NameOutcome::Answered, address));
        assert_eq!(names.count(), MOST_BEGUN, "nor names, of which a wildcard has any number");
        let opened = records.begun(0, Some(flow()), with_sent(0, Open));
        assert!(opened.is_none());
        for _ in 0..5000 {
            records.over(0, Some(flow()), with_sent(MUCH, Passed), opened, begun);
        }
        assert_eq!(records.waiting.borrow().reports.len(), MOST_SHORT);
        records.over(0, Some(flow()), with_sent(MUCH + 1, Passed), old, begun);
        let waiting: Vec<EgressReport> = records.waiting.borrow().reports.iter().cloned().collect();
        assert_eq!(outcomes(&waiting).last(), Some(&(Passed, MUCH + 1)));
        // Who has nothing left to send may still connect as often as it likes.
        let records = Records::new(begun);
        for _ in 0..5000 {
            records.over(0, Some(flow()), with_sent(0, Ended), None, begun);
        }
        assert_eq!(outcomes(&records.take()), [(Ended, 0)]);
    }

    #[test]
    fn what_others_chose_is_short_and_printable() {
        assert_eq!(sentence("a\n\u{1b}[2J\u{fc}"), "a??[2J?");
        assert_eq!(sentence(&"\u{fc}".repeat(5000)).len(), MAX_SENTENCE);
    }
}
