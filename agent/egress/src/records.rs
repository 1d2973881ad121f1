//! What is for the record, until the line to the auditor takes it. Traffic never waits for that: what finds no room is counted.

use ringfence_base::clock::now_micros;
use ringfence_wire::egress::{
    EgressCause, EgressOutcome, EgressRecord, EgressReport, Flow, MAX_NAME, MAX_SENTENCE, NameOutcome,
    REPORTS_AT_ONCE,
};
use std::{
    cell::{Cell, RefCell},
    collections::{HashMap, VecDeque},
    net::Ipv4Addr,
    time::{Duration, Instant},
};
use tokio::sync::Notify;

/// Records that wait for the auditor.
const MOST_WAITING: usize = 4096;
/// Of them, what was refused may be so many: refusals cost nothing, and must not push out what passed.
const MOST_REFUSED: usize = MOST_WAITING / 2;
/// How long the same question for a name that is not answered is one record, and the same refusal of a connection.
const FOLDING: Duration = Duration::from_secs(10);
/// Different ones that are followed at once.
const MOST_FOLDED: usize = 512;
/// Different ones that are recorded at once, and in a second from then on: whoever makes up names does not fill the record.
const BURST: f64 = 128.0;
const PER_SECOND: f64 = 32.0;

/// See the module.
pub(crate) struct Records {
    waiting: RefCell<VecDeque<EgressReport>>,
    folds: RefCell<Folds>,
    /// Connections that did not pass.
    refusals: RefCell<HashMap<Refused, Refusals>>,
    /// Since the last batch that said so.
    lost: Cell<u64>,
    /// Since the worker began.
    all_lost: Cell<u64>,
    more: Notify,
}

struct Folds {
    by_question: HashMap<(String, String), Fold>,
    tokens: f64,
    filled: Instant,
}

/// What refusals have in common that are one record: name, port, cause, the tool call's tag.
type Refused = (String, u16, Option<EgressCause>, u64);

/// The same refusal of connections, again and again.
struct Refusals {
    since: Instant,
    /// The first that is not recorded yet, and how many came behind it.
    more: Option<(EgressReport, u64)>,
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
            folds: RefCell::new(Folds { by_question: HashMap::new(), tokens: BURST, filled: now }),
            refusals: RefCell::default(),
            lost: Cell::new(0),
            all_lost: Cell::new(0),
            more: Notify::new(),
        }
    }

    /// Records that found no room since the worker began.
    pub(crate) fn lost(&self) -> u64 {
        self.all_lost.get()
    }

    /// Puts a connection on record. `at`: µs since 1970. Of those of a tool call that are refused for the same cause, at the same name
    /// and port, the first is recorded at once, and the first that comes after it when [`FOLDING`] is over, with how many came after that.
    pub(crate) fn connection(&self, at: i64, flow: Option<Flow>, record: EgressRecord, now: Instant) {
        let report = EgressReport { at, flow, record };
        let EgressRecord::Connection { name, port, cause, outcome, .. } = &report.record else { return };
        if !matches!(outcome, EgressOutcome::Refused | EgressOutcome::Failed) {
            return self.push(report, MOST_WAITING);
        }
        let mut refusals = self.refusals.borrow_mut();
        let key = (name.clone(), *port, *cause, flow.map_or(0, |flow| flow.call));
        if let Some(same) = refusals.get_mut(&key) {
            match &mut same.more {
                Some((_, times)) => *times += 1,
                none => *none = Some((report, 0)),
            }
            return;
        }
        if refusals.len() >= MOST_FOLDED {
            drop(refusals);
            return self.lose(1);
        }
        refusals.insert(key, Refusals { since: now, more: None });
        drop(refusals);
        self.push(report, MOST_REFUSED);
    }

    fn push(&self, report: EgressReport, most: usize) {
        let mut waiting = self.waiting.borrow_mut();
        if waiting.len() >= most {
            drop(waiting);
            return self.lose(1);
        }
        waiting.push_back(report);
        self.more.notify_one();
    }

    /// An address begins to stand for a name.
    pub(crate) fn answered(&self, name: &str, kind: &str, outcome: NameOutcome, address: Ipv4Addr) {
        let record = EgressRecord::Name {
            name: printable(name, MAX_NAME),
            kind: kind.to_owned(),
            outcome,
            address: Some(address),
            repeats: 0,
        };
        self.push(EgressReport { at: now_micros(), flow: None, record }, MOST_WAITING);
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
        if folds.by_question.len() >= MOST_FOLDED || !folds.take(now) {
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
        self.refusals.borrow_mut().retain(|_, same| {
            let is_over = at_once || now.saturating_duration_since(same.since) >= FOLDING;
            match same.more.take_if(|_| is_over) {
                Some((report, times)) => {
                    reports.push(repeated(report, times));
                    same.since = now;
                    !at_once
                }
                None => !is_over,
            }
        });
        reports.into_iter().for_each(|report| self.push(report, MOST_REFUSED));
    }

    /// Waits until there is something to take.
    pub(crate) async fn wait(&self) {
        while self.waiting.borrow().is_empty() && self.lost.get() == 0 {
            self.more.notified().await;
        }
    }

    /// Whether nothing waits.
    pub(crate) fn is_empty(&self) -> bool {
        self.waiting.borrow().is_empty() && self.lost.get() == 0
    }

    /// What is to be said next, at most a frame of it. What could not be said is given [`back`](Self::give_back).
    pub(crate) fn take(&self) -> Vec<EgressReport> {
        let mut waiting = self.waiting.borrow_mut();
        let count = self.lost.take();
        let room = REPORTS_AT_ONCE - usize::from(count > 0);
        let most = waiting.len().min(room);
        let mut batch: Vec<EgressReport> = waiting.drain(..most).collect();
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
            } else if waiting.len() < MOST_WAITING {
                waiting.push_front(report);
            } else {
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

impl Folds {
    fn take(&mut self, now: Instant) -> bool {
        let passed = now.saturating_duration_since(self.filled).as_secs_f64();
        self.tokens = (self.tokens + passed * PER_SECOND).min(BURST);
        self.filled = now;
        let is_there = self.tokens >= 1.0;
        if is_there {
            self.tokens -= 1.0;
        }
        is_there
    }
}

fn name_record((name, kind): (String, String), outcome: NameOutcome, repeats: u64) -> EgressRecord {
    EgressRecord::Name { name, kind, outcome, address: None, repeats }
}

/// Says how many like it came after it.
fn repeated(mut report: EgressReport, times: u64) -> EgressReport {
    if let EgressRecord::Connection { reason, .. } = &mut report.record
        && times > 0
    {
        let said = reason.take().unwrap_or_default();
        let again = format!(" (and {times} more like it within {} s)", FOLDING.as_secs());
        *reason = Some(printable(&said, MAX_SENTENCE.saturating_sub(again.len())) + &again);
    }
    report
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
        assert_eq!(records.waiting.borrow().len(), MOST_REFUSED);
        assert!(records.lost() > 0);
        records.connection(0, None, ended(443, EgressOutcome::Passed), begun);
        assert!(records.waiting.borrow().iter().any(|report| {
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

    #[test]
    fn what_others_chose_is_short_and_printable() {
        assert_eq!(sentence("a\n\u{1b}[2J\u{fc}"), "a??[2J?");
        assert_eq!(sentence(&"\u{fc}".repeat(5000)).len(), MAX_SENTENCE);
    }
}
