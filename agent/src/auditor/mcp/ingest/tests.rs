//! Journals as rows.

use super::{Fold, Grouping, Row};
use crate::mcp::journal::{Direction, Entry, Judged};

const CLIENT: Direction = Direction::ClientToServer;
const SERVER: Direction = Direction::ServerToClient;

fn message(direction: Direction, raw: &str, calls: &[(&str, &str)]) -> Entry {
    let calls = calls
        .iter()
        .enumerate()
        .map(|(index, (call, action))| Judged {
            call: (*call).into(),
            index: index as u32,
            tool: "t".into(),
            operation: "read".into(),
            score: 0,
            reasons: vec![],
            action: (*action).into(),
            rules: vec![],
        })
        .collect();
    Entry::Message {
        id: format!("m-{}", raw.len()),
        at: 1_000_000,
        boot: 5,
        direction,
        raw: raw.to_owned(),
        bytes: 0,
        sha256: String::new(),
        calls,
        refused: None,
    }
}

/// The rows of some entries, a line each.
fn fold(entries: Vec<Entry>) -> Vec<String> {
    let mut fold = Fold::default();
    entries
        .into_iter()
        .flat_map(|entry| fold.next(entry))
        .map(|row| match row {
            Row::Message(m) => format!(
                "message {} {} {}",
                m.jsonrpc_id.unwrap_or_default(),
                m.method.unwrap_or_default(),
                m.note.unwrap_or_default()
            ),
            Row::Call(c) => format!("call {} {}", c.judged.call, c.arguments),
            Row::Answer { call, result, error, .. } => {
                format!("answer {call} {} {}", result.unwrap_or_default(), error.unwrap_or_default())
            }
            Row::Decision { call, outcome, .. } => format!("{outcome} {call}"),
            Row::Client { info } => format!("client {info}"),
            Row::Session { server_command, .. } => server_command,
            Row::Governed { .. } => "governed".into(),
            Row::Gap => "gap".into(),
            Row::End { .. } => "end".into(),
        })
        .collect()
}

const CALL: &str = r#"{"id":1,"method":"tools/call","params":{"name":"t","arguments":{"a":1}}}"#;

#[test]
fn a_call_and_its_answer_are_one_row() {
    let rows = fold(vec![
        message(CLIENT, CALL, &[("c1", "pass")]),
        message(SERVER, r#"{"id":"1","result":{}}"#, &[]),
        message(SERVER, r#"{"id":1.0,"result":{"x":2}}"#, &[]),
        message(SERVER, r#"{"id":1,"result":{}}"#, &[]),
    ]);
    assert_eq!(rows[0], "message 1 tools/call ");
    assert_eq!(rows[1], r#"call c1 {"a":1}"#);
    assert_eq!(rows[2], "message \"1\"  answers no request that is known");
    assert_eq!(rows[4], r#"answer c1 {"x":2} "#);
    assert!(rows[5].contains("answers no request"), "answered once");
}

#[test]
fn directions_do_not_mix_and_reused_ids_are_noted() {
    let rows = fold(vec![
        message(SERVER, r#"{"id":1,"method":"sampling/createMessage"}"#, &[]),
        message(CLIENT, CALL, &[("c1", "pass")]),
        message(CLIENT, r#"{"id":1,"result":{}}"#, &[]),
        message(CLIENT, CALL, &[("c2", "pass")]),
        message(SERVER, r#"{"id":1,"error":{"code":1}}"#, &[]),
    ]);
    assert!(rows.iter().any(|row| row.contains("not answered yet")));
    assert_eq!(rows.last().map(String::as_str), Some(r#"answer c2  {"code":1}"#));
    assert!(!rows.iter().any(|row| row.contains("no request that is known")));
}

#[test]
fn paused_calls_are_in_flight_only_once_approved_and_blocked_ones_never() {
    let decision = |outcome: &str| Entry::Decision {
        call: "c1".into(),
        at: 2,
        boot: 7,
        outcome: outcome.into(),
        by: None,
    };
    let answer = || message(SERVER, r#"{"id":1,"result":{}}"#, &[]);
    let rows = fold(vec![message(CLIENT, CALL, &[("c1", "pause")]), answer()]);
    assert!(rows[2].contains("no request that is known"));
    let rows = fold(vec![message(CLIENT, CALL, &[("c1", "pause")]), decision("approved"), answer()]);
    assert_eq!(rows.last().map(String::as_str), Some("answer c1 {} "));
    let rows = fold(vec![message(CLIENT, CALL, &[("c1", "block")]), answer()]);
    assert!(rows[2].contains("no request that is known"));
}

#[test]
fn a_call_whose_text_cannot_be_read_has_its_row() {
    for raw in [r#"{"id":1,"method":"tools/call","params":{"#, r#"{"id":1,"method":"ping"}"#] {
        for action in ["pass", "pause", "block"] {
            let rows = fold(vec![message(CLIENT, raw, &[("c1", action)])]);
            assert!(rows.iter().any(|row| row.starts_with("call c1 {\"ringfence_unread")), "{rows:?}");
            assert!(!rows.contains(&"gap".to_owned()), "{rows:?}");
        }
    }
    let rows = fold(vec![message(CLIENT, "no JSON", &[])]);
    assert!(rows.contains(&"gap".to_owned()), "{rows:?}");
}

#[test]
fn the_client_is_known_from_either_era() {
    let first = r#"{"id":1,"method":"initialize","params":{"clientInfo":{"name":"a"}}}"#;
    let second = r#"{"id":1,"method":"server/discover","params":{"_meta":{"io.modelcontextprotocol/clientInfo":{"name":"b"}}}}"#;
    let third = r#"{"id":1,"method":"tools/call","params":{"name":"t","_meta":{"io.modelcontextprotocol/clientInfo":{"name":"c"}}}}"#;
    let rows = fold(vec![message(CLIENT, third, &[("c1", "pass")])]);
    assert!(rows.contains(&r#"client {"name":"c"}"#.to_owned()), "{rows:?}");
    assert!(fold(vec![message(CLIENT, first, &[])]).contains(&r#"client {"name":"a"}"#.to_owned()));
    assert!(fold(vec![message(CLIENT, second, &[])]).contains(&r#"client {"name":"b"}"#.to_owned()));
}

#[test]
fn a_pause_of_more_than_five_seconds_begins_an_intent() {
    let mut grouping = Grouping::default();
    let places: Vec<(String, i64)> =
        [("a", 0), ("b", 4_000_000), ("c", 9_000_000), ("d", 14_000_001), ("e", 13_000_000)]
            .into_iter()
            .map(|(call, at)| {
                let belongs = grouping.place(call, at);
                (belongs.intent, belongs.order)
            })
            .collect();
    let expected = [("a", 1), ("a", 2), ("a", 3), ("d", 1), ("d", 2)];
    assert_eq!(places, expected.map(|(intent, order)| (intent.to_owned(), order)));
}
