//! Which call an untagged event in a run's container belongs to, where the run ties shells to calls. Pure.
//!
//! A call that was tied has the events of its tag: its shell was tagged before the command began, and hands the tag to all that it
//! starts. So an untagged event is none of it, but the agent's own: its hooks, its shell's start, the snapshot of a shell that it
//! makes. For the other calls all is as `attribute` says, and no surer: what is untagged may be the start of a shell that was tied
//! a moment later, so a call that was not tied is `sole` only where no other was in flight, tied or not.

use crate::{
    attribute::{Attribution, Moment, Span, attribute, from},
    matched::Asked,
};

/// A call of a run's.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunCall {
    /// When it was in flight, and what it was asked to work on.
    pub asked: Asked,
    /// How its processes are known.
    pub processes: Processes,
}

/// How a call's processes are known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Processes {
    /// By when they live.
    Untied,
    /// By their tag.
    Tied,
    /// Two shells say that they are the call's.
    Contested,
}

/// Decides of an event whose process has no tag. `calls` and `known_to` as for [`attribute`]. `keeps_tags`: no process loses its tag
/// on this kernel.
pub fn attribute_untagged(moment: Moment, calls: &[RunCall], known_to: u64, keeps_tags: bool) -> Attribution {
    let spans: Vec<Span> = calls.iter().map(|call| call.asked.span.clone()).collect();
    let processes =
        |of: &str| calls.iter().find(|call| call.asked.span.call == of).map(|call| call.processes);
    let is_tied = |of: &String| processes(of) == Some(Processes::Tied);
    match attribute(moment, &spans, known_to) {
        // It may have lost the tag.
        Attribution::Sole(call) if !keeps_tags && processes(&call) != Some(Processes::Untied) => {
            Attribution::Ambiguous(vec![call])
        }
        Attribution::Sole(call) => match processes(&call) {
            Some(Processes::Tied) => Attribution::None,
            Some(Processes::Contested) => Attribution::Ambiguous(vec![call]),
            Some(Processes::Untied) | None => Attribution::Sole(call),
        },
        Attribution::Ambiguous(candidates) if keeps_tags => {
            let had = candidates.len();
            let others: Vec<String> = candidates.into_iter().filter(|call| !is_tied(call)).collect();
            let is_known = moment.single && moment.at <= known_to;
            match others.is_empty() && had > 0 && is_known {
                true => Attribution::None,
                false => Attribution::Ambiguous(others),
            }
        }
        other => other,
    }
}

/// A time of which reports of a run are lost, ns since boot: any call may have been in flight then, or was over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Gap {
    /// Since then.
    pub from: u64,
    /// Until then; `None`: it goes on.
    pub to: Option<u64>,
}

/// Up to when all calls are known that an event of this moment may be of: a process that lived in a gap may be any lost call's,
/// whatever it does later. `known_to`: the same without gaps.
pub fn known_beside(gaps: &[Gap], moment: Moment, known_to: u64) -> u64 {
    let since = moment.line.min(moment.born);
    let touches = |gap: &Gap| gap.from <= moment.at && gap.to.is_none_or(|to| since <= to);
    if gaps.iter().any(touches) { 0 } else { known_to }
}

/// As [`from`], of a run's calls.
pub fn since(calls: &[RunCall]) -> Option<u64> {
    from(calls.iter().map(|call| &call.asked.span))
}

#[cfg(test)]
mod tests {
    use super::*;
    use Processes::{Contested, Tied, Untied};
    use proptest::prelude::*;

    fn call(name: &str, began: u64, ended: impl Into<Option<u64>>, processes: Processes) -> RunCall {
        let span = Span { call: name.into(), began, ended: ended.into() };
        RunCall { asked: Asked { span, tagged: processes == Tied, paths: None }, processes }
    }

    fn of(born: u64, at: u64, calls: &[RunCall]) -> Attribution {
        attribute_untagged(Moment { at, born, line: born, single: true }, calls, u64::MAX, true)
    }

    fn ambiguous(calls: &[&str]) -> Attribution {
        Attribution::Ambiguous(calls.iter().map(|call| (*call).to_owned()).collect())
    }

    #[test]
    fn what_is_untagged_is_none_of_a_call_that_was_tied() {
        let tied = [call("a", 10, 50, Tied)];
        assert_eq!(of(15, 20, &tied), Attribution::None, "the agent's snapshot");
        assert_eq!(of(1, 20, &tied), Attribution::None, "the agent itself");
        let untied = [call("a", 10, 50, Untied)];
        assert_eq!(of(15, 20, &untied), Attribution::Sole("a".into()), "the control");
        assert_eq!(of(1, 20, &untied), ambiguous(&["a"]));
        let contested = [call("a", 10, 50, Contested)];
        assert_eq!(of(15, 20, &contested), ambiguous(&["a"]), "it may be the other one's");
    }

    #[test]
    fn beside_a_tied_call_no_other_is_sole() {
        let both = [call("a", 10, 50, Tied), call("b", 12, 50, Untied)];
        assert_eq!(of(15, 20, &both), ambiguous(&["b"]), "it may be the start of a's shell");
        let after = [call("a", 10, 14, Tied), call("b", 12, 50, Untied)];
        assert_eq!(of(15, 20, &after), Attribution::Sole("b".into()), "the control: a is over");
    }

    #[test]
    fn where_tags_may_be_lost_nothing_is_said_to_be_nobody_s() {
        let moment = Moment { at: 20, born: 15, line: 15, single: true };
        let tied = [call("a", 10, 50, Tied)];
        assert_eq!(attribute_untagged(moment, &tied, u64::MAX, false), ambiguous(&["a"]));
        let folded = Moment { single: false, ..moment };
        assert_eq!(attribute_untagged(folded, &tied, u64::MAX, true), ambiguous(&[]), "not all is known");
        assert_eq!(attribute_untagged(moment, &tied, 19, true), ambiguous(&[]));
    }

    #[test]
    fn what_lived_in_a_gap_is_nobody_s_for_certain() {
        let gaps = [Gap { from: 20, to: Some(30) }, Gap { from: 60, to: None }];
        let calls = [call("a", 1, None, Untied)];
        let of = |born: u64, at: u64| {
            let moment = Moment { at, born, line: born, single: true };
            attribute_untagged(moment, &calls, known_beside(&gaps, moment, u64::MAX), true)
        };
        for (born, at) in [(5, 19), (31, 40), (31, 59)] {
            assert_eq!(of(born, at), Attribution::Sole("a".into()), "the control");
        }
        for (born, at) in [(5, 20), (25, 25), (30, 50), (5, 59), (40, 60), (70, 80)] {
            assert_eq!(of(born, at), ambiguous(&["a"]), "{born} to {at}");
        }
        // Nor is it nobody's.
        let moment = Moment { at: 25, born: 22, line: 22, single: true };
        let tied = [call("a", 10, 50, Tied)];
        let known = known_beside(&gaps, moment, u64::MAX);
        assert_eq!(attribute_untagged(moment, &tied, known, true), ambiguous(&[]));
        assert_eq!(attribute_untagged(moment, &[], known, true), ambiguous(&[]));
    }

    fn calls() -> impl Strategy<Value = Vec<RunCall>> {
        let kinds = prop_oneof![Just(Untied), Just(Tied), Just(Contested)];
        let one = (0..60u64, proptest::option::of(0..30u64), kinds);
        proptest::collection::vec(one, 0..6).prop_map(|all| {
            let made = |(n, (began, length, kind)): (usize, (u64, Option<u64>, Processes))| {
                call(&format!("c{n}"), began, length.map(|length| began + length), kind)
            };
            all.into_iter().enumerate().map(made).collect()
        })
    }

    proptest! {
        /// No claim that `attribute` does not make, but that a tied call has no part in it.
        #[test]
        fn a_tie_takes_claims_away_and_makes_none(
            calls in calls(), born in 0..90u64, life in 0..40u64, known_to in 0..140u64, keeps in any::<bool>(),
        ) {
            let moment = Moment { at: born + life, born, line: born, single: true };
            let spans: Vec<Span> = calls.iter().map(|call| call.asked.span.clone()).collect();
            let by_time = attribute(moment, &spans, known_to);
            let kind = |name: &str| calls.iter().find(|call| call.asked.span.call == name).map(|call| call.processes);
            match attribute_untagged(moment, &calls, known_to, keeps) {
                Attribution::Sole(name) => {
                    prop_assert_eq!(by_time, Attribution::Sole(name.clone()));
                    prop_assert_eq!(kind(&name), Some(Untied));
                }
                Attribution::None => {
                    let in_flight = calls.iter().filter(|call| {
                        call.asked.span.began <= moment.at && call.asked.span.ended.is_none_or(|ended| ended >= moment.at)
                    });
                    prop_assert!(moment.at <= known_to);
                    prop_assert!(in_flight.clone().all(|call| call.processes == Tied));
                    prop_assert!(keeps || in_flight.count() == 0);
                }
                Attribution::Ambiguous(names) => {
                    let had = match &by_time {
                        Attribution::Ambiguous(had) => had.clone(),
                        Attribution::Sole(one) => vec![one.clone()],
                        _ => Vec::new(),
                    };
                    prop_assert!(names.iter().all(|name| had.contains(name)));
                    let lost = had.iter().filter(|name| !names.contains(name));
                    prop_assert!(lost.clone().all(|name| keeps && kind(name) == Some(Tied)));
                }
                Attribution::Exact(_) | Attribution::Matched(_) => prop_assert!(false, "times tie nothing"),
            }
        }
    }
}
