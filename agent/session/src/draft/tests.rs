//! Drafts, against serde's own bytes.

use super::{Action, Draft, Message, Operation, PIECE, PREFIX, Verdict};
use crate::{
    journal::{Direction, Entry, Judged},
    line::Outline,
};
use ringfence_wire::exception::Excepted;
use uuid::Uuid;

/// A message both ways: its line's JSON, and the entry that a reader makes of it.
fn both(raw: &str, tool: &str, refused: Option<&str>, calls: usize) -> (String, Entry) {
    let sha256 = [b'a'; 64];
    let (id, call) = (Uuid::now_v7(), Uuid::new_v4());
    let rules = [tool.to_owned(), "rule".to_owned()];
    let exceptions = [Excepted { name: tool.to_owned(), reasons: vec!["write".to_owned()] }];
    let verdict = |index| Verdict {
        call,
        index,
        tool,
        operation: Operation::Delete,
        score: 100,
        reasons: &["write", "first_use"],
        action: Action::Flag,
        rules: &rules[..index as usize % 3],
        exceptions: &exceptions[..index as usize % 2],
    };
    let verdicts: Vec<Verdict<'_>> = (0..calls as u32).map(verdict).collect();
    let outline = refused.map(|refused| Outline { id: "\"x\"".into(), member: refused.to_owned() });
    let mut draft = Draft::default();
    draft.message(&Message {
        id,
        at: -5,
        boot: u64::MAX,
        direction: Direction::ServerToClient,
        raw,
        bytes: 7,
        sha256: &sha256,
        calls: &verdicts,
        refused,
        outline: outline.as_ref(),
        repaired: calls as u32,
    });
    let repaired = calls as u32;
    let calls = (0..calls as u32).map(|index| Judged {
        call: call.to_string(),
        index,
        tool: tool.to_owned(),
        operation: "delete".into(),
        score: 100,
        reasons: vec!["write".into(), "first_use".into()],
        action: "flag".into(),
        rules: rules[..index as usize % 3].to_vec(),
        exceptions: exceptions[..index as usize % 2].to_vec(),
    });
    let entry = Entry::Message {
        id: id.to_string(),
        at: -5,
        boot: u64::MAX,
        direction: Direction::ServerToClient,
        raw: raw.to_owned(),
        bytes: 7,
        sha256: "a".repeat(64),
        calls: calls.collect(),
        refused: refused.map(str::to_owned),
        outline,
        repaired,
    };
    assert_eq!(draft.len(), 1);
    let line = String::from_utf8(draft.text).expect("text");
    (line[PREFIX..].to_owned(), entry)
}

proptest::proptest! {
    #[test]
    fn a_message_is_written_as_serde_would(raw in ".{0,40}", control in "[\u{0}-\u{20}\"\\\\\u{7f}ä€]{0,20}", refused: Option<String>, calls in 0usize..4) {
        let text = format!("{raw}{control}");
        let (written, entry) = both(&text, &control, refused.as_deref(), calls);
        let expected = serde_json::to_string(&entry).expect("JSON") + "\n";
        proptest::prop_assert_eq!(written, expected);
    }
}

#[test]
fn long_texts_are_escaped_piece_by_piece() {
    for unit in ["\u{1}", "\"", "x", "€", "a\n"] {
        let text = unit.repeat(PIECE + 7);
        let (written, entry) = both(&text, "t", None, 1);
        assert_eq!(written, serde_json::to_string(&entry).expect("JSON") + "\n", "{unit:?}");
    }
}

#[test]
fn a_line_that_is_too_long_is_nothing_and_the_others_stand() {
    let mut draft = Draft::within(4096);
    let note = |text: String| Entry::Note { at: 1, text };
    draft.entry(&note("one".into()));
    draft.entry(&note("\u{1}".repeat(700)));
    draft.entry(&note("three".into()));
    let head = [b'0'; 64];
    assert!(draft.chained(head, 0..3).is_err() && draft.chained(head, 1..2).is_err());
    let (first, head) = draft.chained(head, 0..1).expect("fits").expect("a line");
    assert!(first.starts_with(&head) && first.ends_with(b"\"one\"}\n"));
    let (third, _) = draft.chained(head, 2..3).expect("fits").expect("a line");
    assert!(third.ends_with(b"\"three\"}\n"));
    assert!(draft.chained(head, 3..3).expect("none").is_none());
    draft.clear();
    assert_eq!(draft.len(), 0);
}
