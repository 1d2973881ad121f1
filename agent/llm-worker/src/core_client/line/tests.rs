//! Which goes first, and at which pace.

use super::*;
use ringfence_wire::trace::AgentEvent;

fn question() -> Question {
    Question::told(ToCore::DeniedSoFar { number: 0 })
}

fn call(key: &str) -> AgentEvent {
    AgentEvent::Call {
        key: key.into(),
        id: "i".into(),
        renamed: None,
        intent: None,
        tool: "t".into(),
        server: None,
        input: "{}".into(),
        paths: None,
        moment: 7,
    }
}

fn report(line: &Line, event: &AgentEvent) -> bool {
    let said = report_of(event).map(Question::told).unwrap();
    line.lost.follow(event, || line.reports.try_send(said).is_ok())
}

/// The next that is said; a question is none.
async fn said(waiting: &mut Waiting) -> Option<AgentEvent> {
    match waiting.next().await.unwrap().what {
        ToCore::Report(json) => Some(serde_json::from_str(json.get()).unwrap()),
        _ => None,
    }
}

/// Since when what waits may be, as the core is told next.
async fn behind(waiting: &mut Waiting) -> Option<u64> {
    match waiting.next().await.unwrap().what {
        ToCore::Behind { since } => since,
        other => panic!("{other:?}"),
    }
}

/// Whether nothing is said now.
fn is_silent(waiting: &mut Waiting) -> bool {
    let mut next = std::pin::pin!(waiting.next());
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    next.as_mut().poll(&mut context).is_pending()
}

#[tokio::test]
async fn a_question_passes_reports_that_wait_and_those_whose_turn_is_later() {
    let (line, mut waiting) = Line::new(8);
    assert!(report(&line, &call("a")) && report(&line, &call("b")));
    line.questions.try_send(question()).unwrap();
    assert_eq!(said(&mut waiting).await, None, "it came last");
    assert_eq!(said(&mut waiting).await, Some(call("a")));
    // The next waits here, not in front of a question.
    waiting.reports.pace.full = Instant::now() + Duration::from_secs(3600);
    assert_eq!(behind(&mut waiting).await, Some(7), "it may be lost");
    assert!(is_silent(&mut waiting));
    line.questions.try_send(question()).unwrap();
    assert_eq!(said(&mut waiting).await, None);
    waiting.reports.pace.full = Instant::now();
    assert_eq!(said(&mut waiting).await, Some(call("b")), "it is not lost");
    assert_eq!(behind(&mut waiting).await, None);
    assert!(is_silent(&mut waiting));
}

#[tokio::test]
async fn the_core_hears_since_when_what_waits_may_be() {
    let (line, mut waiting) = Line::new(2);
    let late = |waiting: &mut Waiting| waiting.reports.pace.full = Instant::now() + Duration::from_secs(3600);
    let intent = AgentEvent::IntentEnded { id: "i".into(), error: None, moment: 9 };
    // Nothing waits, and nothing was under way.
    late(&mut waiting);
    assert!(is_silent(&mut waiting), "the control");
    // What is written is none that waits; it is under way.
    waiting.reports.pace.full = Instant::now();
    assert!(report(&line, &call("a")));
    assert_eq!(said(&mut waiting).await, Some(call("a")));
    assert!(is_silent(&mut waiting));
    late(&mut waiting);
    assert!(report(&line, &intent));
    assert_eq!(behind(&mut waiting).await, Some(7), "a may be over");
    waiting.reports.pace.full = Instant::now();
    assert_eq!(said(&mut waiting).await, Some(intent.clone()));
    assert_eq!(behind(&mut waiting).await, None);
    // What is lost and not told.
    late(&mut waiting);
    assert!(!line.lost.follow(&call("b"), || false));
    assert_eq!(behind(&mut waiting).await, Some(7));
    // What came since may be of an earlier time: nothing says when a call of which this is began.
    assert!(report(&line, &AgentEvent::Contested { key: "z".into() }));
    assert_eq!(behind(&mut waiting).await, Some(1));
    assert!(is_silent(&mut waiting), "once");
}

#[tokio::test]
async fn a_tie_that_had_no_room_is_announced_and_the_end_waits_for_it() {
    let (line, mut waiting) = Line::new(1);
    let tied = AgentEvent::Contested { key: "a".into() };
    assert!(report(&line, &call("a")) && report(&line, &tied), "it waits elsewhere");
    assert_eq!(said(&mut waiting).await, Some(call("a")));
    waiting.reports.pace.full = Instant::now() + Duration::from_secs(3600);
    assert_eq!(behind(&mut waiting).await, Some(7));
    let (written, mut is_written) = tokio::sync::oneshot::channel();
    line.lost.close(written);
    assert!(is_silent(&mut waiting) && is_written.try_recv().is_err());
    waiting.reports.pace.full = Instant::now();
    assert_eq!(said(&mut waiting).await, Some(tied));
    assert_eq!(behind(&mut waiting).await, None);
    assert!(is_written.try_recv().is_err(), "not yet written");
    assert!(is_silent(&mut waiting));
    assert_eq!(is_written.try_recv(), Ok(()));
}

#[tokio::test]
async fn questions_without_end_do_not_keep_reports_from_being_said() {
    let (line, mut waiting) = Line::new(2);
    assert!(report(&line, &call("a")));
    for _ in 0..IN_A_ROW {
        line.questions.try_send(question()).unwrap();
        assert_eq!(said(&mut waiting).await, None);
    }
    line.questions.try_send(question()).unwrap();
    assert_eq!(said(&mut waiting).await, Some(call("a")));
    assert_eq!(said(&mut waiting).await, None, "and then the question");
}

#[test]
fn reports_are_written_more_slowly_than_they_are_read() {
    const { assert!(BURST < LINE_BURST && PER_SECOND < LINE_PER_SECOND) }
    let begun = Instant::now();
    let mut pace = Pace { full: begun };
    let mut at_once = |now: Instant| {
        let due = |_: &u32| {
            let is_due = pace.wait(now).is_zero();
            if is_due {
                pace.step(now);
            }
            is_due
        };
        (0..2 * BURST).take_while(due).count() as u32
    };
    assert_eq!(at_once(begun), BURST);
    assert_eq!(at_once(begun + Duration::from_secs(2)), 2 * PER_SECOND);
    assert_eq!(at_once(begun + Duration::from_secs(3600)), BURST, "no more than at first");
    assert_eq!(pace.wait(begun + Duration::from_secs(3600)), Pace::EACH);
}

#[tokio::test]
async fn what_had_no_room_is_said_first_and_ties_last() {
    let (line, mut waiting) = Line::new(2);
    let tied = AgentEvent::Tagged { key: "a".into(), tag: 1, matched: false };
    assert!(report(&line, &call("a")) && report(&line, &call("b")));
    assert!(report(&line, &tied), "it waits elsewhere");
    assert!(!report(&line, &call("c")));
    let lost = AgentEvent::Lost { count: 1, from: 7, to: None };
    for wanted in [lost, call("a"), call("b"), tied] {
        assert_eq!(said(&mut waiting).await, Some(wanted));
    }
    // Nothing waits: what is lost is said at once.
    let mut next = Box::pin(said(&mut waiting));
    let woken = async {
        tokio::task::yield_now().await;
        assert!(!line.lost.follow(&call("d"), || false));
    };
    tokio::select! {
        biased;
        said = &mut next => panic!("{said:?}"),
        () = woken => {}
    }
    assert_eq!(next.await, Some(AgentEvent::Lost { count: 2, from: 7, to: None }));
}

#[tokio::test]
async fn reports_are_said_where_nobody_can_ask_any_more() {
    let (line, mut waiting) = Line::new(4);
    assert!(report(&line, &call("a")));
    drop(line);
    assert_eq!(said(&mut waiting).await, Some(call("a")));
    assert!(waiting.next().await.is_none());
}
