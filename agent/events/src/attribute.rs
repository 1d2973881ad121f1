//! Which tool call an event belongs to, and how sure that is. Pure: what could be another call's, or may be of a call that
//! nobody told us of, is `ambiguous`.
//!
//! | word | when |
//! |---|---|
//! | `exact` | said by the kernel's tag, not here |
//! | `sole` | the process's [line](line) began after the call did, and no other call was in flight from then to the event |
//! | `matched` | not said here: it fits one outstanding call by what was asked and by nothing stronger, see `matched` |
//! | `ambiguous` | several calls could be it, or the one in flight is younger than the process's line, or not all is known |
//! | `none` | no call was in flight |
//!
//! All times are of one clock: nanoseconds since boot. The kernel gives it for events and births, the interceptor for the
//! moments just before it forwarded a call and an answer.

use ringfence_wire::event::Certainty;

/// When a call was in flight.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Span {
    /// The call's id.
    pub call: String,
    /// It was about to be forwarded to the server.
    pub began: u64,
    /// Its answer was there, and not yet forwarded to the client, who could begin the next; `None`: not yet, or never.
    pub ended: Option<u64>,
}

impl Span {
    /// Whether it was in flight at some time from `from` to `to`, both included.
    pub(crate) fn overlaps(&self, from: u64, to: u64) -> bool {
        self.began <= to && self.ended.is_none_or(|ended| ended >= from)
    }
}

/// Since when a process works for whatever it works for: the birth of its eldest ancestor that is younger than the `first` of
/// all calls of its container, itself included. What was there before any call may start processes for each of them; what a
/// call has started, and left running, and all that this starts, is no other call's. `born`: its own birth; `lineage`: those of
/// its eldest ancestors, eldest first, as far as they are kept. Where none of these is that young, and there may be more, it is
/// as old as the youngest that is known, so that nothing is certain.
pub fn line(born: u64, lineage: &[u64], first: Option<u64>) -> u64 {
    let known = lineage.iter().copied().take_while(|birth| *birth != 0);
    // Where it is not known, nobody was there before it.
    let first = first.unwrap_or_default();
    let is_young = |birth: &u64| *birth > first;
    known.clone().find(is_young).or(known.last()).unwrap_or(born)
}

/// One event of a process that descends from a session's root.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Moment {
    /// When it happened.
    pub at: u64,
    /// When its process was born.
    pub born: u64,
    /// When its process's line began, see [`line`].
    pub line: u64,
    /// It is exactly one event: not several of a flood, folded into one.
    pub single: bool,
}

/// The answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Attribution {
    /// This call's: its process tree was tagged in the kernel for it.
    Exact(String),
    /// This call's and no other's.
    Sole(String),
    /// It fits this outstanding call, and no other, by what was asked: by its text or its path.
    Matched(String),
    /// One of these, if any, oldest first.
    Ambiguous(Vec<String>),
    /// No call was in flight.
    None,
}

/// Decides. `calls` are all calls of the session that were in flight at some time from [`from`] to the event; others may
/// be among them. `known_to`: every call that was forwarded up to then is among them.
pub fn attribute(moment: Moment, calls: &[Span], known_to: u64) -> Attribution {
    let Moment { at, line, single, .. } = moment;
    let certain = single && at <= known_to;
    let Some(earliest) = calls.iter().filter(|call| call.overlaps(at, at)).map(|call| call.began).min()
    else {
        return if certain { Attribution::None } else { Attribution::Ambiguous(Vec::new()) };
    };
    // A line that is older than every call in flight tells nothing about which one it works for; one that began since may
    // work for any call that was in flight at some time of its life.
    let from = if line > earliest { line } else { at };
    let mut candidates: Vec<&Span> = calls.iter().filter(|call| call.overlaps(from, at)).collect();
    candidates.sort_by(|a, b| (a.began, &a.call).cmp(&(b.began, &b.call)));
    match candidates.as_slice() {
        [one] if certain && line > one.began && one.overlaps(at, at) => Attribution::Sole(one.call.clone()),
        _ => Attribution::Ambiguous(candidates.into_iter().map(|call| call.call.clone()).collect()),
    }
}

/// The time from which on calls matter to [`attribute`], given those in flight at the events: no earlier one does.
pub fn from<'a>(in_flight: impl IntoIterator<Item = &'a Span>) -> Option<u64> {
    in_flight.into_iter().map(|call| call.began).min()
}

impl Attribution {
    /// How sure it is.
    pub fn certainty(&self) -> Certainty {
        match self {
            Self::Exact(_) => Certainty::Exact,
            Self::Sole(_) => Certainty::Sole,
            Self::Matched(_) => Certainty::Matched,
            Self::Ambiguous(_) => Certainty::Ambiguous,
            Self::None => Certainty::None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Attribution, Moment, Span, attribute, from, line};
    use proptest::prelude::*;

    fn span(call: &str, began: u64, ended: impl Into<Option<u64>>) -> Span {
        Span { call: call.into(), began, ended: ended.into() }
    }

    fn of(born: u64, at: u64, calls: &[Span]) -> Attribution {
        attribute(Moment { at, born, line: born, single: true }, calls, u64::MAX)
    }

    fn sole(call: &str) -> Attribution {
        Attribution::Sole(call.into())
    }

    fn ambiguous(calls: &[&str]) -> Attribution {
        Attribution::Ambiguous(calls.iter().map(|call| (*call).to_owned()).collect())
    }

    #[test]
    fn a_process_born_in_the_only_call_is_its_own() {
        let calls = [span("a", 10, 20), span("b", 30, None)];
        assert_eq!(of(11, 15, &calls), sole("a"));
        assert_eq!(of(11, 20, &calls), sole("a"), "the answer itself is still the call");
        assert_eq!(of(35, 90, &calls), sole("b"), "a call that is not answered goes on");
    }

    #[test]
    fn what_a_call_left_running_starts_nothing_for_another() {
        let calls = [span("a", 10, 20), span("b", 30, 40)];
        let of = |lineage: &[u64], born| {
            let line = line(born, lineage, Some(10));
            attribute(Moment { at: 35, born, line, single: true }, &calls, u64::MAX)
        };
        // The agent is the container's first process, or below it; its shell, or what that has started.
        for lineage in [&[31, 0, 0, 0][..], &[5, 31, 0, 0], &[5, 6, 31, 32], &[5, 6, 7, 33]] {
            assert_eq!(of(lineage, 33), sole("b"), "{lineage:?}");
        }
        // What the first call's shell left behind, and what began between the two.
        for lineage in [&[12, 31, 0, 0][..], &[5, 12, 31, 33], &[25, 33, 0, 0], &[5, 25, 26, 27]] {
            assert_eq!(of(lineage, 33), ambiguous(&["b"]), "{lineage:?}");
        }
        // More ancestors than are kept, all of them older than any call.
        assert_eq!(of(&[5, 6, 7, 8], 33), ambiguous(&["b"]));
        // Nothing is kept, as of rows from before.
        assert_eq!(of(&[], 33), sole("b"));
        assert_eq!(of(&[1, 0, 0, 0], 33), ambiguous(&["b"]), "it is not known");
    }

    #[test]
    fn without_a_call_in_flight_there_is_none() {
        let calls = [span("a", 10, 20), span("b", 30, 40)];
        for at in [5, 9, 21, 29, 41] {
            assert_eq!(of(1, at, &calls), Attribution::None, "{at}");
        }
        assert_eq!(of(12, 25, &calls), Attribution::None, "what a call left behind");
        assert_eq!(of(1, 1, &[]), Attribution::None);
    }

    #[test]
    fn a_process_older_than_the_call_is_ambiguous_with_it() {
        let calls = [span("a", 10, 20), span("b", 30, 40)];
        assert_eq!(of(1, 15, &calls), ambiguous(&["a"]));
        assert_eq!(of(10, 15, &calls), ambiguous(&["a"]), "born in the same instant");
        assert_eq!(of(25, 35, &calls), ambiguous(&["b"]), "born between calls");
        assert_eq!(of(15, 35, &calls), ambiguous(&["b"]), "born in an earlier call");
    }

    #[test]
    fn another_call_at_any_time_of_the_processes_life_makes_it_ambiguous() {
        let calls = [span("a", 10, 50), span("b", 20, 30)];
        assert_eq!(of(15, 16, &calls), sole("a"), "b had not begun");
        assert_eq!(of(15, 25, &calls), ambiguous(&["a", "b"]));
        assert_eq!(of(25, 26, &calls), ambiguous(&["a", "b"]));
        assert_eq!(of(25, 40, &calls), ambiguous(&["a", "b"]), "b was in flight at its birth");
        assert_eq!(of(31, 40, &calls), sole("a"), "b had been answered");
        assert_eq!(of(1, 25, &calls), ambiguous(&["a", "b"]));
        assert_eq!(of(1, 40, &calls), ambiguous(&["a"]), "older than all: those in flight");
        let batch = [span("a", 10, 20), span("b", 10, 20)];
        assert_eq!(of(12, 15, &batch), ambiguous(&["a", "b"]), "forwarded in one line");
    }

    #[test]
    fn what_is_not_known_is_not_claimed() {
        let calls = [span("a", 10, None)];
        let moment = Moment { at: 15, born: 12, line: 12, single: true };
        assert_eq!(attribute(moment, &calls, 14), ambiguous(&["a"]));
        assert_eq!(attribute(moment, &[], 14), ambiguous(&[]));
        assert_eq!(attribute(moment, &calls, 15), sole("a"));
        let folded = Moment { single: false, ..moment };
        assert_eq!(attribute(folded, &calls, u64::MAX), ambiguous(&["a"]));
        assert_eq!(attribute(folded, &[], u64::MAX), ambiguous(&[]));
    }

    fn spans() -> impl Strategy<Value = Vec<Span>> {
        let one = (0..60u64, proptest::option::of(0..30u64));
        proptest::collection::vec(one, 0..6).prop_map(|all| {
            let span = |(n, (began, length)): (usize, (u64, Option<u64>))| {
                span(&format!("c{n}"), began, length.map(|length| began + length))
            };
            all.into_iter().enumerate().map(span).collect()
        })
    }

    proptest! {
        /// The definition, instant by instant: a clock of whole numbers can be walked through.
        #[test]
        fn sole_means_that_no_other_call_was_in_flight_in_the_processes_life(
            calls in spans(), born in 0..90u64, life in 0..40u64, known_to in 0..140u64,
        ) {
            let at = born + life;
            let in_flight = |t: u64| -> Vec<&str> {
                calls.iter().filter(|c| c.began <= t && c.ended.is_none_or(|e| e >= t)).map(|c| c.call.as_str()).collect()
            };
            let answer = attribute(Moment { at, born, line: born, single: true }, &calls, known_to);
            match &answer {
                Attribution::Sole(call) => {
                    prop_assert!(at <= known_to);
                    let began = calls.iter().find(|c| c.call == *call).map(|c| c.began);
                    prop_assert!(began.is_some_and(|began| born > began));
                    for t in born..=at {
                        prop_assert_eq!(in_flight(t), vec![call.as_str()]);
                    }
                }
                Attribution::Exact(_) | Attribution::Matched(_) => {
                    prop_assert!(false, "times make nothing exact, and match nothing");
                }
                Attribution::None => {
                    prop_assert!(at <= known_to && in_flight(at).is_empty());
                }
                Attribution::Ambiguous(candidates) => {
                    for call in in_flight(at) {
                        prop_assert!(candidates.iter().any(|c| c == call));
                    }
                    let alive = |call: &String| (born..=at).any(|t| in_flight(t).contains(&call.as_str()));
                    prop_assert!(candidates.iter().all(alive));
                    // It is not merely timid: one lone call and all known would have been sole.
                    let lone = in_flight(at).len() == 1
                        && (born..=at).all(|t| in_flight(t) == in_flight(at))
                        && calls.iter().any(|c| in_flight(at) == vec![c.call.as_str()] && born > c.began);
                    prop_assert!(!lone || at > known_to);
                }
            }
        }

        /// More knowledge of other calls never turns one call into another.
        #[test]
        fn a_call_that_becomes_known_later_never_exchanges_one_answer_for_another(
            calls in spans(), born in 0..90u64, life in 0..40u64,
        ) {
            let moment = Moment { at: born + life, born, line: born, single: true };
            let whole = attribute(moment, &calls, u64::MAX);
            for hidden in 0..calls.len() {
                let mut fewer = calls.clone();
                fewer.remove(hidden);
                if let (Attribution::Sole(a), Attribution::Sole(b)) = (&whole, &attribute(moment, &fewer, u64::MAX)) {
                    prop_assert_eq!(a, b);
                }
            }
        }

        /// The store is asked for those calls only that `from` names.
        #[test]
        fn calls_that_ended_before_all_in_flight_began_change_nothing(
            calls in spans(), born in 0..90u64, life in 0..40u64,
        ) {
            let moment = Moment { at: born + life, born, line: born, single: true };
            let in_flight: Vec<&Span> = calls.iter().filter(|c| c.overlaps(moment.at, moment.at)).collect();
            let since = from(in_flight).unwrap_or(moment.at);
            let fewer: Vec<Span> = calls.iter().filter(|c| c.overlaps(since, moment.at)).cloned().collect();
            prop_assert_eq!(attribute(moment, &fewer, u64::MAX), attribute(moment, &calls, u64::MAX));
        }
    }
}
