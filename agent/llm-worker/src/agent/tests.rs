//! Tests of one agent's order of things.

use super::*;
use proptest::prelude::*;
use std::collections::BTreeMap;

const LIMITS: Limits = Limits { queue: 2, queue_bytes: 100, rounds: 3 };

fn agent() -> Agent<&'static str> {
    let mut agent = Agent::new(LIMITS);
    agent.register(1).unwrap();
    agent
}

fn epoch(actions: &[Action<&'static str>]) -> u64 {
    let started =
        actions.iter().find_map(|a| if let Action::Start { epoch, .. } = a { Some(*epoch) } else { None });
    started.expect("a turn")
}

#[test]
fn a_message_is_delivered_answered_and_ended() {
    let mut agent = agent();
    assert_eq!(agent.send(2, "m", 10), [Action::Deliver { runtime: 1, message: "m" }]);
    assert_eq!(agent.delivered(true), [Action::AnswerDelivered(2)]);
    let actions = agent.turn().unwrap();
    assert_eq!(actions, [Action::Start { epoch: 1, subscriber: Some(2), last: false }]);
    assert!(agent.finished(1, Outcome::ToolUse).is_empty());
    assert!(agent.awaits_runtime());
    let turn = epoch(&agent.turn().unwrap());
    assert_eq!(agent.finished(turn, Outcome::Done), [Action::NotifyEnd(2)]);
    assert!(agent.is_idle());
    agent.send(3, "n", 10);
    agent.delivered(true);
    let turn = epoch(&agent.turn().unwrap());
    assert_eq!(agent.finished(turn, Outcome::Capped), [Action::NotifyCapped(3)]);
    assert!(agent.is_idle());
}

#[test]
fn what_waits_is_bounded_in_bytes_too() {
    let mut agent = agent();
    agent.send(2, "m", 1000);
    agent.delivered(true);
    assert_eq!(agent.send(3, "n", 60), [Action::AnswerQueued(3)]);
    assert!(matches!(agent.send(4, "o", 60)[..], [Action::AnswerError(4, _)]));
    assert_eq!(agent.send(5, "p", 40), [Action::AnswerQueued(5)]);
}

#[test]
fn a_turn_that_overtakes_the_news_of_delivery_delivers() {
    let mut agent = agent();
    agent.send(2, "m", 10);
    let actions = agent.turn().unwrap();
    assert_eq!(actions[0], Action::AnswerDelivered(2));
    assert!(agent.delivered(true).is_empty(), "said once");
}

#[test]
fn a_message_that_cannot_be_written_was_not_delivered() {
    let mut agent = agent();
    agent.send(2, "m", 10);
    agent.send(3, "n", 10);
    let actions = agent.delivered(false);
    let gone = RpcError::new(NO_RUNTIME, "runtime not connected");
    assert_eq!(actions, [Action::AnswerError(2, gone), Action::NotifyError(3, DISCONNECTED.into())]);
    assert_eq!(agent.runtime(), None);
}

#[test]
fn a_queued_message_that_cannot_be_written_was_not_delivered_either() {
    let mut agent = agent();
    agent.send(2, "m", 10);
    agent.delivered(true);
    agent.send(3, "n", 10);
    let turn = epoch(&agent.turn().unwrap());
    let actions = agent.finished(turn, Outcome::Done);
    assert_eq!(actions, [Action::NotifyEnd(2), Action::Deliver { runtime: 1, message: "n" }]);
    assert_eq!(agent.closed(1), [Action::NotifyError(3, DISCONNECTED.into())]);
}

#[test]
fn the_last_round_is_named_and_each_message_has_its_own_rounds() {
    let mut agent = agent();
    for _ in 0..2 {
        agent.send(2, "m", 10);
        agent.delivered(true);
        let mut lasts = Vec::new();
        for round in 1..=3 {
            let actions = agent.turn().unwrap();
            lasts.push(matches!(actions[0], Action::Start { last: true, .. }));
            let outcome = if round < 3 { Outcome::ToolUse } else { Outcome::Done };
            agent.finished(epoch(&actions), outcome);
        }
        assert_eq!(lasts, [false, false, true]);
    }
}

#[test]
fn a_runtime_that_never_comes_back_does_not_block_the_queue() {
    let mut agent = agent();
    agent.send(2, "m", 10);
    agent.delivered(true);
    agent.send(3, "n", 10);
    let turn = epoch(&agent.turn().unwrap());
    assert!(agent.stalled().is_empty(), "a turn runs: the provider is waited for");
    agent.finished(turn, Outcome::ToolUse);
    let actions = agent.stalled();
    assert!(
        matches!(&actions[..], [Action::NotifyError(2, _), Action::Deliver { message: "n", .. }]),
        "{actions:?}"
    );
}

#[test]
fn the_end_of_a_cancelled_turn_is_not_the_next_ones() {
    let mut agent = agent();
    let old = epoch(&agent.turn().unwrap());
    assert_eq!(agent.closed(1), [Action::Cancel]);
    agent.register(4).unwrap();
    let new = epoch(&agent.turn().unwrap());
    assert!(agent.finished(old, Outcome::Failed("cancelled".into())).is_empty());
    assert!(!agent.is_idle());
    agent.finished(new, Outcome::Done);
    assert!(agent.is_idle());
}

#[test]
fn a_second_turn_and_a_second_runtime_are_refused() {
    let mut agent = agent();
    agent.turn().unwrap();
    assert_eq!(agent.turn().unwrap_err().code, INVALID_REQUEST);
    assert_eq!(agent.register(2).unwrap_err().code, INVALID_REQUEST);
    assert!(agent.closed(2).is_empty(), "one that was refused is not the runtime");
    assert_eq!(agent.runtime(), Some(1));
}

#[derive(Debug, Clone, Copy)]
enum Step {
    Register,
    Send,
    Written(bool),
    Turn,
    Finish(u8),
    Stall,
    Die,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        2 => Just(Step::Register),
        4 => Just(Step::Send),
        4 => prop::bool::weighted(0.9).prop_map(Step::Written),
        4 => Just(Step::Turn),
        4 => (0u8..4).prop_map(Step::Finish),
        1 => Just(Step::Stall),
        1 => Just(Step::Die),
    ];
    prop::collection::vec(step, 0..60)
}

proptest! {
    /// Whatever happens: an answer first and once, `delivered` once at most, one end, nothing behind it; and an agent
    /// whose runtime ends is idle.
    #[test]
    fn each_sender_hears_one_truth(steps in steps()) {
        let mut agent: Agent<ConnId> = Agent::new(LIMITS);
        let (mut next, mut running) = (0, 0);
        let mut heard: BTreeMap<ConnId, Vec<&'static str>> = BTreeMap::new();
        let mut all = steps;
        all.push(Step::Die);
        for step in all {
            next += 1;
            let actions = match step {
                Step::Register => {
                    let _ = agent.register(next);
                    Vec::new()
                }
                Step::Send => {
                    heard.insert(next, Vec::new());
                    agent.send(next, next, 10)
                }
                Step::Written(written) => agent.delivered(written),
                // Only a runtime can ask.
                Step::Turn if agent.runtime().is_some() => agent.turn().unwrap_or_default(),
                Step::Turn => Vec::new(),
                Step::Finish(0) => agent.finished(running, Outcome::ToolUse),
                Step::Finish(1) => agent.finished(running, Outcome::Done),
                Step::Finish(2) => agent.finished(running, Outcome::Capped),
                Step::Finish(_) => agent.finished(running, Outcome::Failed("x".into())),
                Step::Stall => agent.stalled(),
                Step::Die => agent.runtime().map(|runtime| agent.closed(runtime)).unwrap_or_default(),
            };
            for action in actions {
                let (conn, what) = match action {
                    Action::Start { epoch, .. } => {
                        running = epoch;
                        continue;
                    }
                    Action::Deliver { .. } | Action::Cancel => continue,
                    Action::AnswerDelivered(conn) => (conn, "delivered"),
                    Action::AnswerQueued(conn) => (conn, "queued"),
                    Action::AnswerError(conn, _) => (conn, "refused"),
                    Action::NotifyDelivered(conn) => (conn, "now delivered"),
                    Action::NotifyEnd(conn) | Action::NotifyCapped(conn) => (conn, "end"),
                    Action::NotifyError(conn, _) => (conn, "error"),
                };
                heard.get_mut(&conn).expect("a sender").push(what);
            }
        }
        prop_assert!(agent.is_idle());
        for story in heard.values() {
            let known = matches!(
                story.as_slice(),
                ["refused"] | ["delivered", "end" | "error"] | ["queued", "error"] | ["queued", "now delivered", "end" | "error"]
            );
            prop_assert!(known, "{story:?}");
        }
    }
}
