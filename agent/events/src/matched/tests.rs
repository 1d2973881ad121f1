//! Tests of what paths say of a call.

use super::*;
use crate::{attribute::attribute, samples};
use proptest::prelude::*;
use ringfence_common::event::op;

fn asked(call: &str, began: u64, ended: impl Into<Option<u64>>, paths: &[&str]) -> Asked {
    let span = Span { call: call.into(), began, ended: ended.into() };
    Asked { span, tagged: false, paths: Some(paths.iter().map(|path| (*path).to_owned()).collect()) }
}

/// What is said of an event at 50.
fn of(born: u64, touched: &[&str], calls: &[Asked]) -> Attribution {
    judged(Moment { at: 50, born, line: born, single: true }, touched, calls, u64::MAX)
}

fn judged(moment: Moment, touched: &[&str], calls: &[Asked], known_to: u64) -> Attribution {
    let spans: Vec<Span> = calls.iter().map(|call| call.span.clone()).collect();
    by_path(attribute(moment, &spans, known_to), moment, touched, calls, known_to)
}

fn matched(call: &str) -> Attribution {
    Attribution::Matched(call.into())
}

fn ambiguous(calls: &[&str]) -> Attribution {
    Attribution::Ambiguous(calls.iter().map(|call| (*call).to_owned()).collect())
}

#[test]
fn what_one_call_names_is_matched() {
    let calls =
        [asked("read", 10, None, &["/w/a"]), asked("edit", 11, None, &["/w/b"]), asked("sh", 12, None, &[])];
    assert_eq!(of(1, &["/w/a"], &calls), matched("read"));
    assert_eq!(of(1, &["/w/.b.swp", "/w/b"], &calls), matched("edit"), "renamed from another name");
    assert_eq!(of(1, &["/w/c"], &calls), ambiguous(&["read", "edit", "sh"]), "the control");
    assert_eq!(
        of(1, &["/w/a/below"], &calls),
        ambiguous(&["read", "edit", "sh"]),
        "below it is another file"
    );
    assert_eq!(of(1, &[], &calls), ambiguous(&["read", "edit", "sh"]));
    assert_eq!(of(10, &["/w/a"], &calls), matched("read"), "born in the instant in which the call began");
}

#[test]
fn what_two_calls_name_is_ambiguous_with_both() {
    let calls =
        [asked("b", 11, None, &["/w/a"]), asked("a", 10, None, &["/w/./a"]), asked("sh", 12, None, &[])];
    assert_eq!(of(1, &["/w/a"], &calls), ambiguous(&["a", "b"]));
    let two = [asked("a", 10, None, &["/w/a"]), asked("b", 11, None, &["/w/b"])];
    assert_eq!(of(1, &["/w/a", "/w/b"], &two), ambiguous(&["a", "b"]), "from one's to the other's");
    let answered = [asked("a", 10, 49, &["/w/a"]), asked("b", 11, None, &["/w/a"])];
    assert_eq!(of(1, &["/w/a"], &answered), matched("b"));
}

#[test]
fn what_times_say_stands() {
    let alone = [asked("a", 10, None, &["/w/a"])];
    assert_eq!(of(20, &["/w/a"], &alone), Attribution::Sole("a".into()), "stronger");
    assert_eq!(of(20, &["/w/b"], &alone), Attribution::Sole("a".into()), "what it does not name, it may do");
    assert_eq!(of(1, &["/w/a"], &[asked("a", 10, 20, &["/w/a"])]), Attribution::None, "answered before");
    assert_eq!(of(1, &["/w/a"], &[]), Attribution::None);
}

#[test]
fn a_process_that_a_call_in_flight_may_have_started_is_not_matched() {
    let calls = [asked("sh", 10, None, &[]), asked("read", 30, None, &["/w/a"])];
    assert_eq!(of(20, &["/w/a"], &calls), ambiguous(&["sh", "read"]), "`cat` in the shell's call");
    assert_eq!(of(40, &["/w/a"], &calls), ambiguous(&["sh", "read"]));
    assert_eq!(of(5, &["/w/a"], &calls), matched("read"), "the control: the agent's own process");
}

#[test]
fn what_is_not_known_is_not_claimed() {
    let calls = [asked("a", 10, None, &["/w/a"])];
    let moment = Moment { at: 50, born: 1, line: 1, single: true };
    assert_eq!(judged(moment, &["/w/a"], &calls, 50), matched("a"), "the control");
    assert_eq!(judged(moment, &["/w/a"], &calls, 49), ambiguous(&["a"]));
    assert_eq!(judged(Moment { single: false, ..moment }, &["/w/a"], &calls, u64::MAX), ambiguous(&["a"]));
    let unknown = Asked { paths: None, ..asked("b", 11, None, &[]) };
    assert_eq!(of(1, &["/w/a"], &[calls[0].clone(), unknown.clone()]), ambiguous(&["a", "b"]));
    assert_eq!(of(1, &["/w/a"], &[unknown]), ambiguous(&["b"]));
    let tagged = Asked { tagged: true, ..calls[0].clone() };
    assert_eq!(of(1, &["/w/a"], std::slice::from_ref(&tagged)), ambiguous(&["a"]), "its own has the tag");
    let other = asked("b", 11, None, &["/w/a"]);
    assert_eq!(of(1, &["/w/a"], &[tagged, other]), ambiguous(&["a", "b"]));
}

#[test]
fn a_path_from_a_directory_that_is_not_known_claims_nothing_and_leaves_nothing_sure() {
    for relative in ["a", "./a", "../a", "x/../a", "~/a", "~user/a", "w/a", ".", ".."] {
        let calls = [asked("b", 11, None, &[relative])];
        assert_eq!(of(1, &["/w/a"], &calls), ambiguous(&["b"]), "{relative}");
        let calls = [asked("a", 10, None, &["/w/a"]), asked("b", 11, None, &[relative])];
        assert_eq!(of(1, &["/w/a"], &calls), ambiguous(&["a", "b"]), "{relative}");
    }
    for relative in ["aa", "b/a", "~/b", "a/.."] {
        let calls = [asked("a", 10, None, &["/w/a"]), asked("b", 11, None, &[relative])];
        let expected = if relative == "a/.." { ambiguous(&["a", "b"]) } else { matched("a") };
        assert_eq!(of(1, &["/w/a"], &calls), expected, "{relative}");
    }
}

#[test]
fn paths_are_compared_as_events_have_them() {
    for (named, path) in [
        ("/w//a/", "/w/a"),
        ("/w/./b/../a", "/w/a"),
        ("/../w/a", "/w/a"),
        ("/", "/"),
        ("/w/..", "/"),
        ("/w/a\\b", "/w/a\\\\b"),
        ("/w/a\nb", "/w/a\\x0ab"),
        ("/w/\u{fc} x", "/w/\u{fc} x"),
        ("/w/x ", "/w/x\\x20"),
    ] {
        assert_eq!(of(1, &[path], &[asked("a", 10, None, &[named])]), matched("a"), "{named:?}");
    }
}

#[test]
fn only_what_is_done_to_files_is_matched_and_only_a_whole_path() {
    let record =
        Decoded { op: op::OPEN, flags: 0, path: Some("/w/a".into()), path2: None, ..samples::decoded() };
    assert_eq!(touched(&record), ["/w/a"]);
    let renamed = Decoded { op: op::RENAME, path2: Some("/w/b".into()), ..record.clone() };
    assert_eq!(touched(&renamed), ["/w/a", "/w/b"]);
    for op in [op::EXEC, op::MAP_EXEC, op::CONNECT, op::MOUNT, op::IOCTL, 255] {
        assert!(touched(&Decoded { op, ..record.clone() }).is_empty(), "{op}");
    }
    for flags in [FLAG_CUT, FLAG_RACED, FLAG_OUTSIDE, FLAG_UNLINKED] {
        assert!(touched(&Decoded { flags, ..record.clone() }).is_empty(), "{flags}");
    }
    for path in [Some("w/a".to_owned()), Some(".../w/a".to_owned()), None] {
        assert!(touched(&Decoded { path, ..record.clone() }).is_empty());
    }
}

const PATHS: &[&str] = &["/a", "/b", "/./a", "a", "~/b", "."];

/// When it began, how long it took, what it names, whether it has a tag.
type Drawn = (u64, Option<u64>, Option<Vec<&'static str>>, bool);

fn calls() -> impl Strategy<Value = Vec<Asked>> {
    let paths = proptest::option::weighted(0.9, proptest::sample::subsequence(PATHS, 0..3));
    let one = (0..60u64, proptest::option::of(0..30u64), paths, proptest::bool::weighted(0.1));
    proptest::collection::vec(one, 0..6).prop_map(|all| {
        let call = |(n, (began, length, paths, tagged)): (usize, Drawn)| Asked {
            span: Span { call: format!("c{n}"), began, ended: length.map(|length| began + length) },
            tagged,
            paths: paths.map(|paths| paths.into_iter().map(str::to_owned).collect()),
        };
        all.into_iter().enumerate().map(call).collect()
    })
}

/// The call of an answer that has one.
fn call_of(answer: &Attribution) -> Option<&str> {
    match answer {
        Attribution::Exact(call) | Attribution::Sole(call) | Attribution::Matched(call) => Some(call),
        Attribution::Ambiguous(_) | Attribution::None => None,
    }
}

proptest! {
    /// The definition, call by call.
    #[test]
    fn matched_means_that_one_outstanding_call_names_it_and_none_other_may(
        calls in calls(), born in 0..60u64, life in 0..40u64, known_to in 0..140u64, single: bool,
    ) {
        let moment = Moment { at: born + life, born, line: born, single };
        let at = moment.at;
        let spans: Vec<Span> = calls.iter().map(|call| call.span.clone()).collect();
        let by_times = attribute(moment, &spans, known_to);
        let answer = by_path(by_times.clone(), moment, &["/a"], &calls, known_to);
        let outstanding: Vec<&Asked> = calls.iter()
            .filter(|c| c.span.began <= at && c.span.ended.is_none_or(|e| e >= at)).collect();
        let names = |c: &Asked| c.paths.iter().flatten().any(|path| path == "/a" || path == "/./a");
        let may = |c: &Asked| c.paths.as_ref().is_none_or(|paths| paths.iter().any(|path| path == "a" || path == "."));
        let naming: Vec<&Asked> = outstanding.iter().copied().filter(|c| names(c)).collect();
        let is_clear = single && at <= known_to && outstanding.iter().all(|c| born <= c.span.began && (names(c) || !may(c)));
        match (&answer, naming.as_slice()) {
            (Attribution::Matched(call), [one]) => {
                prop_assert!(is_clear && !one.tagged && *call == one.span.call, "{answer:?}");
            }
            (Attribution::Matched(_), _) => prop_assert!(false, "{answer:?} of {naming:?}"),
            // It is not merely timid.
            (_, [one]) => prop_assert!(!is_clear || one.tagged, "{answer:?}"),
            (Attribution::Ambiguous(candidates), [_, _, ..]) if is_clear => {
                prop_assert_eq!(candidates.len(), naming.len());
                prop_assert!(naming.iter().all(|c| candidates.contains(&c.span.call)));
            }
            _ => prop_assert_eq!(&answer, &by_times),
        }
    }

    /// More knowledge of other calls, or of what they name, never turns one call into another.
    #[test]
    fn what_becomes_known_later_never_exchanges_one_answer_for_another(
        calls in calls(), born in 0..60u64, life in 0..40u64,
    ) {
        let moment = Moment { at: born + life, born, line: born, single: true };
        let whole = judged(moment, &["/a"], &calls, u64::MAX);
        for hidden in 0..calls.len() {
            let mut fewer = calls.clone();
            fewer.remove(hidden);
            let mut silent = calls.clone();
            silent[hidden].paths = None;
            for less in [fewer, silent] {
                let known = judged(moment, &["/a"], &less, u64::MAX);
                if let (Some(a), Some(b)) = (call_of(&whole), call_of(&known)) {
                    prop_assert_eq!(a, b);
                }
            }
        }
    }

    /// Whatever an argument is, it is compared, and a path that is written in another way is the same.
    #[test]
    fn any_text_can_be_a_path(path in "(/|~|\\.|\\PC|a|\\x00)*", more in "[a-z./]{0,8}") {
        let (is_whole, text) = normal(&path);
        prop_assert_eq!(is_whole, path.starts_with('/'));
        prop_assert!(!text.contains("//") && (text.is_empty() || text.starts_with('/')));
        let again = normal(&format!("{path}/./{more}/../"));
        if is_whole && !more.contains('/') && !more.is_empty() && more != "." && more != ".." {
            prop_assert_eq!(again, (true, text));
        }
    }
}
