//! When a gap begins and ends, whatever is lost.

use super::*;
use proptest::prelude::*;
use std::collections::BTreeMap;

fn call(key: &str, intent: &str, moment: u64) -> AgentEvent {
    AgentEvent::Call {
        key: key.into(),
        id: key.into(),
        renamed: None,
        intent: Some(intent.into()),
        tool: "t".into(),
        server: None,
        input: "{}".into(),
        paths: None,
        moment,
    }
}

fn ended(key: &str, moment: u64) -> AgentEvent {
    AgentEvent::CallEnded { key: key.into(), is_error: false, output: String::new(), moment }
}

fn intent_ended(id: &str, moment: u64) -> AgentEvent {
    AgentEvent::IntentEnded { id: id.into(), error: None, moment }
}

fn lost(count: u64, from: u64, to: impl Into<Option<u64>>) -> AgentEvent {
    AgentEvent::Lost { count, from, to: to.into() }
}

#[test]
fn a_gap_lasts_from_the_oldest_call_under_way_to_the_end_of_the_last() {
    let mut ledger = Ledger::default();
    ledger.sent(&call("a", "i", 10));
    ledger.sent(&call("b", "i", 20));
    ledger.sent(&ended("b", 30));
    assert_eq!(ledger.told(), None, "the control");
    ledger.lost(&call("c", "j", 40), 41);
    assert_eq!(ledger.told(), Some(lost(1, 10, None)));
    assert_eq!(ledger.told(), None, "once");
    // What begins in it is on record.
    ledger.sent(&call("d", "j", 45));
    ledger.sent(&ended("a", 50));
    assert_eq!(ledger.told(), None, "c may still run");
    ledger.sent(&ended("c", 60));
    assert_eq!(ledger.told(), Some(lost(1, 10, 60)));
    // The next is another one, of what is under way then.
    ledger.lost(&intent_ended("k", 65), 66);
    assert_eq!(ledger.told(), Some(lost(1, 45, None)));
    ledger.sent(&intent_ended("j", 70));
    assert_eq!(ledger.told(), Some(lost(1, 45, 70)));
    assert!(ledger.open.is_empty() && ledger.unsure.is_empty() && ledger.gap.is_none());
}

#[test]
fn an_end_that_is_lost_is_none_until_the_record_has_another() {
    let mut ledger = Ledger::default();
    ledger.sent(&call("a", "i", 10));
    ledger.lost(&ended("a", 20), 20);
    assert_eq!(ledger.told(), Some(lost(1, 10, None)));
    ledger.lost(&call("b", "i", 30), 30);
    assert_eq!(ledger.told(), Some(lost(2, 10, None)));
    ledger.sent(&ended("b", 40));
    assert_eq!(ledger.told(), None);
    ledger.sent(&intent_ended("i", 50));
    assert_eq!(ledger.told(), Some(lost(2, 10, 50)));
    // Nothing is under way, and what is lost was no call.
    ledger.lost(&AgentEvent::HookDone { key: "a".into(), session: None, failed: None, moment: 60 }, 61);
    assert_eq!(ledger.told(), Some(lost(1, 61, 61)));
}

#[test]
fn ties_wait_for_room_and_are_told_behind_all_else() {
    let reports = LostReports::default();
    let tied = AgentEvent::Tagged { key: "a".into(), tag: 1, matched: false };
    assert!(reports.follow(&call("a", "i", 10), || true));
    assert!(reports.follow(&tied, || false), "it is not lost");
    assert!(!reports.follow(&call("b", "i", 20), || false));
    assert_eq!(reports.next(|| false), Some(lost(1, 10, None)));
    assert_eq!(reports.next(|| false), None, "its call may not be there yet");
    assert_eq!(reports.next(|| true), Some(tied.clone()));
    assert_eq!(reports.next(|| true), None);
    let kept = (0..2 * MOST_LATE).filter(|_| reports.follow(&tied, || false)).count();
    assert_eq!(kept, MOST_LATE);
}

#[test]
fn with_more_calls_than_are_followed_a_gap_goes_on() {
    let mut ledger = Ledger::default();
    (0..MOST_OPEN + 1).for_each(|n| ledger.sent(&call(&n.to_string(), "i", 10)));
    assert_eq!(ledger.open.len(), MOST_OPEN);
    ledger.lost(&call("x", "i", 20), 20);
    ledger.sent(&intent_ended("i", 30));
    assert_eq!(ledger.told(), Some(lost(1, 10, None)));
    assert!(ledger.open.is_empty());
}

proptest! {
    /// Whatever is lost: while a call is under way and not on record, or is over and the record does not have that, it is in a gap.
    #[test]
    fn what_the_record_lacks_is_in_a_gap(
        steps in prop::collection::vec((0..4u8, 0..6usize, any::<bool>(), any::<bool>()), 0..60),
    ) {
        let mut ledger = Ledger::default();
        // Of each call: when it began, when it ended, and both as the record has it.
        let mut calls: BTreeMap<String, [Option<u64>; 4]> = BTreeMap::new();
        let mut gaps: Vec<(u64, Option<u64>)> = Vec::new();
        let mut at = 0;
        for (what, which, is_lost, is_told) in steps {
            at += 10;
            let (key, intent) = (which.to_string(), (which % 2).to_string());
            let event = match (what, calls.get(&key)) {
                (0 | 3, None) => call(&key, &intent, at),
                (1, Some([_, None, ..])) => ended(&key, at),
                (2, _) => intent_ended(&intent, at),
                _ => continue,
            };
            match &event {
                AgentEvent::Call { .. } => drop(calls.insert(key, [Some(at), None, Some(at).filter(|_| !is_lost), None])),
                AgentEvent::CallEnded { .. } => {
                    let one = calls.get_mut(&key).unwrap();
                    one[1] = Some(at);
                    one[3] = one[3].or(Some(at).filter(|_| !is_lost));
                }
                _ => calls.iter_mut().filter(|(key, _)| (key.parse::<usize>().unwrap() % 2).to_string() == intent).for_each(|(_, one)| {
                    one[1] = one[1].or(Some(at));
                    one[3] = one[3].or(Some(at).filter(|_| !is_lost));
                }),
            }
            if is_lost { ledger.lost(&event, at) } else { ledger.sent(&event) }
            if is_told && let Some(AgentEvent::Lost { from, to, .. }) = ledger.told() {
                gaps.push((from, to));
            }
        }
        if let Some(AgentEvent::Lost { from, to, .. }) = ledger.told() {
            gaps.push((from, to));
        }
        // One that is told again, over, is the same gap as before.
        let is_in_gap = |moment: u64| gaps.iter().enumerate().any(|(n, (from, to))| {
            let to = to.or_else(|| gaps.get(n + 1..)?.iter().find_map(|(_, to)| *to)).unwrap_or(u64::MAX);
            (*from..=to).contains(&moment)
        });
        for [began, over, known, known_over] in calls.into_values() {
            let (began, over) = (began.unwrap(), over.unwrap_or(at));
            let is_wrong = |moment: u64| {
                let is_under_way = (began..=over).contains(&moment);
                let is_known = known.is_some() && moment >= began && known_over.is_none_or(|over| moment <= over);
                is_under_way != is_known
            };
            for moment in (began..=at).filter(|moment| is_wrong(*moment)) {
                prop_assert!(is_in_gap(moment), "{moment}: {gaps:?}");
            }
        }
    }
}
