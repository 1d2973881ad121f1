//! Journals as rows.

use super::{Fold, Row};
use crate::journal::{Direction, Entry, Judged};
use ringfence_wire::tool_call::{Named as _, Outcome};

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
            exceptions: vec![],
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
        outline: None,
        repaired: 0,
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
            Row::Cancelled { call, .. } => format!("cancelled {call}"),
            Row::TaskAnswer { call, answer, result, .. } => format!("task {call} {} {result}", answer.name()),
            Row::Decision { call, outcome, .. } => format!("{} {call}", outcome.as_str()),
            Row::Client { info } => format!("client {info}"),
            Row::Session { server_command, .. } => server_command,
            Row::Asked { question, prompt, .. } => format!("asked {question} {}", prompt.unwrap_or_default()),
            Row::Answered { question, .. } => format!("answered {question}"),
            Row::Governed { .. } => "governed".into(),
            Row::Stderr { number, text, dropped, .. } => format!("stderr {number} {text:?} {dropped}"),
            Row::Server { key, info, .. } => {
                format!("server {} {}", key.unwrap_or_default(), info.unwrap_or_default())
            }
            Row::Tools(row) => {
                let tools = row.tools.iter().map(|tool| format!("{} {}", tool.name, tool.flags.len()));
                format!("tools {}", tools.collect::<Vec<_>>().join(", "))
            }
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
    assert!(!rows.iter().any(|row| row.contains("no request that is known")));
    assert!(!rows.iter().any(|row| row.starts_with("answer ")), "either may be meant: {rows:?}");
}

#[test]
fn calls_of_one_id_are_in_flight_until_all_are_answered_and_no_answer_is_taken_for_one_s() {
    let answer = |n: u32| message(SERVER, &format!(r#"{{"id":1,"result":{{"x":{n}}}}}"#), &[]);
    let call = |name: &'static str| message(CLIENT, CALL, &[(name, "pass")]);
    let answers = |rows: &[String]| -> Vec<String> {
        rows.iter().filter_map(|row| row.strip_prefix("answer ").map(str::to_owned)).collect()
    };
    let three = || vec![call("c1"), call("c2"), call("c3"), answer(1), answer(2)];
    assert_eq!(answers(&fold(three())), [""; 0]);
    let rows = fold(three().into_iter().chain([answer(3)]).collect());
    let ended: Vec<String> = answers(&rows).iter().map(|row| row[..2].to_owned()).collect();
    assert_eq!(ended, ["c1", "c2", "c3"]);
    assert!(answers(&rows).iter().all(|row| row.contains("ringfence_unclear") && !row.contains("\"x\"")));
    // One after another they are told apart, and a number is no string.
    let text = message(CLIENT, &CALL.replace("\"id\":1", "\"id\":\"1\""), &[("t1", "pass")]);
    let rows = fold(vec![call("c1"), answer(1), call("c2"), text, answer(2)]);
    assert_eq!(answers(&rows), [r#"c1 {"x":1} "#, r#"c2 {"x":2} "#]);
}

#[test]
fn what_another_version_decided_is_on_record_in_its_own_words() {
    let decided =
        Entry::Decision { call: "c1".into(), at: 2, boot: 7, outcome: "postponed".into(), by: None };
    let text = serde_json::to_string(&[message(CLIENT, CALL, &[("c1", "sandbox")]), decided]).expect("JSON");
    let entries: Vec<Entry> = serde_json::from_str(&text).expect("read as it was written");
    let rows: Vec<Row> = entries.into_iter().flat_map(|entry| Fold::default().next(entry)).collect();
    let [_, Row::Call(call), Row::Decision { outcome, .. }] = rows.as_slice() else { panic!("{rows:?}") };
    assert_eq!((call.judged.action.as_str(), call.blocked, call.began), ("sandbox", false, Some(5)));
    assert_eq!(outcome.as_str(), "postponed");
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
fn a_call_is_cancelled_in_flight_once_and_only_there() {
    let cancel = |id: &str| {
        let text = format!(r#"{{"method":"notifications/cancelled","params":{{"requestId":{id}}}}}"#);
        message(CLIENT, &text, &[])
    };
    let asked = || message(CLIENT, CALL, &[("c1", "pass")]);
    let answer = || message(SERVER, r#"{"id":1,"result":{}}"#, &[]);
    let many = |entries| fold(entries).iter().filter(|row| *row == "cancelled c1").count();
    assert_eq!(many(vec![asked(), cancel("1"), cancel("1.0"), answer()]), 1);
    assert_eq!(many(vec![asked(), cancel("\"1\""), cancel("2"), cancel("[1]")]), 0, "others");
    assert_eq!(many(vec![asked(), answer(), cancel("1")]), 0, "it was answered");
    assert_eq!(many(vec![message(CLIENT, CALL, &[("c1", "pause")]), cancel("1")]), 0, "nobody let it go on");
    assert_eq!(many(vec![asked(), asked(), cancel("1")]), 0, "which of two is not known");
    let task = || message(SERVER, r#"{"id":1,"result":{"task":{"taskId":"t1"}}}"#, &[]);
    let ask = |what: &str| {
        message(CLIENT, &format!(r#"{{"id":2,"method":"tasks/{what}","params":{{"taskId":"t1"}}}}"#), &[])
    };
    let gone = || message(SERVER, r#"{"id":2,"result":{"status":"cancelled"}}"#, &[]);
    for what in ["cancel", "get"] {
        assert_eq!(many(vec![asked(), task(), ask(what), gone()]), 1, "as a task: {what}");
        assert_eq!(
            many(vec![asked(), cancel("1"), task(), ask(what), gone(), ask(what), gone()]),
            1,
            "{what}"
        );
    }
    let Entry::Message { raw, .. } = cancel("1") else { panic!("a message") };
    assert_eq!(many(vec![asked(), message(SERVER, &raw, &[])]), 0, "the server cancels its own requests");
}

#[test]
fn a_task_s_later_result_is_its_call_s() {
    let task = r#"{"id":1,"result":{"task":{"taskId":"t1","status":"working"}}}"#;
    let ask = r#"{"id":2,"method":"tasks/result","params":{"taskId":"t1"}}"#;
    let rows = fold(vec![
        message(CLIENT, CALL, &[("c1", "pass")]),
        message(SERVER, task, &[]),
        message(CLIENT, r#"{"id":5,"method":"tasks/result","params":{"taskId":"t2"}}"#, &[]),
        message(SERVER, r#"{"id":5,"result":{"not":"ours"}}"#, &[]),
        message(CLIENT, ask, &[]),
        message(SERVER, r#"{"id":2,"result":{"content":[]}}"#, &[]),
    ]);
    let later: Vec<&String> = rows.iter().filter(|row| row.starts_with("task ")).collect();
    assert_eq!(later, [r#"task c1 task_answered {"content":[]}"#]);
    let mut fold = Fold::default();
    fold.next(message(CLIENT, CALL, &[("c1", "pass")]));
    let rows = fold.next(message(SERVER, task, &[]));
    assert!(matches!(&rows[1], Row::Answer { answer: Outcome::Task, .. }), "{rows:?}");
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
fn a_call_that_went_on_without_a_judgement_is_a_gap() {
    let deep = |depth: usize| {
        let (open, close) = ("[".repeat(depth), "]".repeat(depth));
        format!(
            r#"{{"id":1,"method":"tools/call","params":{{"name":"t","arguments":{{"a":{open}{close}}}}}}}"#
        )
    };
    for depth in [1, 97, 98, 110, 123, 124, 200] {
        let mut entry = message(CLIENT, &deep(depth), &[]);
        let rows = fold(vec![entry.clone()]);
        assert_eq!(rows.iter().filter(|row| *row == "gap").count(), 1, "{depth}: {rows:?}");
        let Entry::Message { refused, .. } = &mut entry else { panic!("a message") };
        *refused = Some("it is nested too deep".into());
        assert!(!fold(vec![entry]).contains(&"gap".to_owned()), "{depth}: nothing went on");
    }
    let judged = fold(vec![message(CLIENT, &deep(98), &[("c1", "pass")])]);
    assert!(!judged.contains(&"gap".to_owned()), "{judged:?}");
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
fn an_answer_that_cannot_be_read_is_an_answer() {
    let unread = r#"{"ringfence_unread":"this answer cannot be read; the message has what is there of it"}"#;
    for (text, answer) in [
        // A lone surrogate, which real servers send; a key twice; both are one line of JSON to their clients.
        (r#"{"jsonrpc":"2.0","id":1,"result":{"text":"\ud800"}}"#, format!("answer c1 {unread} ")),
        (r#"{"result":{"a":1,"a":2},"id":1.0,"id2":{"id":3}} x"#, format!("answer c1 {unread} ")),
        (r#"{"id":1,"error":{"message":"\ud800"}}"#, format!("answer c1  {unread}")),
    ] {
        let rows = fold(vec![message(CLIENT, CALL, &[("c1", "pass")]), message(SERVER, text, &[])]);
        assert_eq!(rows.last(), Some(&answer), "{text}");
    }
    for text in [r#"{"id":2,"result":"\ud800"}"#, r#"{"id":1,"method":"\ud800"}"#, "no JSON"] {
        let rows = fold(vec![message(CLIENT, CALL, &[("c1", "pass")]), message(SERVER, text, &[])]);
        assert!(!rows.iter().any(|row| row.starts_with("answer")), "{text}");
    }
}

#[test]
fn what_the_journal_has_cut_is_paired_by_its_outline() {
    let cut = |direction, raw: &str, id: &str, member: &str, calls: &[(&str, &str)]| {
        let mut entry = message(direction, raw, calls);
        if let Entry::Message { outline, .. } = &mut entry {
            *outline = Some(crate::line::Outline { id: id.into(), member: member.into() });
        }
        entry
    };
    let result = || cut(SERVER, r#"{"result":{"text":"aaaa [cut"#, "1", "result", &[]);
    let rows = fold(vec![message(CLIENT, CALL, &[("c1", "pass")]), result()]);
    assert!(rows.last().is_some_and(|row| row.starts_with("answer c1 {")), "{rows:?}");
    // The same for a call, whatever was decided about it.
    let call = |action| {
        cut(CLIENT, r#"{"params":{"arguments":{"text":"aaaa [cut"#, "1", "method", &[("c1", action)])
    };
    let answered =
        |entries: Vec<Entry>| fold(entries).last().is_some_and(|row| row.starts_with("answer c1 {"));
    assert!(answered(vec![call("pass"), result()]));
    assert!(!answered(vec![call("block"), result()]));
    assert!(!answered(vec![call("pause"), result()]));
    let approved =
        Entry::Decision { call: "c1".into(), at: 2, boot: 7, outcome: "approved".into(), by: None };
    assert!(answered(vec![call("pause"), approved, result()]));
}

#[test]
fn questions_to_the_clients_model_are_found_in_either_era() {
    let asks = r#""messages":[{"role":"user","content":{"type":"text","text":"tidy"}}]"#;
    let request = format!(r#"{{"id":9,"method":"sampling/createMessage","params":{{{asks}}}}}"#);
    let rows = fold(vec![
        message(SERVER, &request, &[]),
        message(CLIENT, r#"{"id":9,"result":{"role":"assistant"}}"#, &[]),
        // A client does not ask its own model by this.
        message(CLIENT, &request, &[]),
    ]);
    let name = format!("m-{}", request.len());
    assert_eq!(rows[1], format!("asked {name} tidy"));
    assert_eq!(rows[3], format!("answered {name}"));
    assert_eq!(rows.len(), 5);

    let result = format!(
        r#"{{"id":1,"result":{{"resultType":"input_required","inputRequests":{{"k":{{"method":"sampling/createMessage","params":{{{asks}}}}}}}}}}}"#
    );
    let retry =
        r#"{"id":2,"method":"tools/call","params":{"name":"t","inputResponses":{"k":{"role":"assistant"}}}}"#;
    let rows = fold(vec![
        message(CLIENT, CALL, &[("c1", "pass")]),
        message(SERVER, &result, &[]),
        message(CLIENT, retry, &[("c2", "pass")]),
    ]);
    let name = format!("m-{} k", result.len());
    assert!(rows.contains(&format!("asked {name} tidy")), "{rows:?}");
    let answered = rows.iter().position(|row| *row == format!("answered {name}"));
    let again = rows.iter().position(|row| row.starts_with("call c2"));
    assert!(answered.is_some() && answered < again, "the retry comes after the pause: {rows:?}");
}

#[test]
fn a_line_without_end_is_a_line_with_a_gap_and_costs_no_time() {
    let batch = |many: usize, id: &dyn Fn(usize) -> usize| {
        let call = |n| format!(r#"{{"id":{},"method":"tools/call","params":{{"name":"t"}}}}"#, id(n));
        format!("[{}]", (0..many).map(call).collect::<Vec<_>>().join(","))
    };
    let names: Vec<String> = (0..40_000).map(|n| format!("c{n}")).collect();
    let calls: Vec<(&str, &str)> = names.iter().map(|name| (name.as_str(), "pass")).collect();
    let begun = std::time::Instant::now();
    let rows = fold(vec![message(CLIENT, &batch(40_000, &|n| n), &calls)]);
    let of = |what: &str| rows.iter().filter(|row| row.starts_with(what)).count();
    assert_eq!((of("call "), of("gap")), (super::MOST_IN_LINE, 2), "what is left out is said");
    assert!(rows[0].contains("40000 calls"), "{}", rows[0]);
    // Found in the line, and not found there because it cannot be read.
    let unread = fold(vec![message(CLIENT, "[", &calls[..super::MOST_IN_LINE])]);
    assert_eq!(unread.iter().filter(|row| row.starts_with("call ")).count(), super::MOST_IN_LINE);
    assert!(!unread.iter().any(|row| row == "gap"));
    // And so many requests that the oldest of them are forgotten each time.
    let many = |round: usize| {
        let id = move |n| round * super::MOST_IN_LINE + n;
        message(CLIENT, &batch(super::MOST_IN_LINE, &id), &calls[..super::MOST_IN_LINE])
    };
    let mut entries: Vec<Entry> = (0..6).map(many).collect();
    entries.push(message(SERVER, r#"{"id":0,"result":{}}"#, &[]));
    let newest = 6 * super::MOST_IN_LINE - 1;
    entries.push(message(SERVER, &format!(r#"{{"id":{newest},"result":{{}}}}"#), &[]));
    let answers: Vec<_> = fold(entries).into_iter().filter(|row| row.starts_with("answer ")).collect();
    assert!(answers.len() <= 2 && answers.iter().any(|row| row.starts_with("answer c16383 ")), "{answers:?}");
    // Quadratic, it would be minutes.
    assert!(begun.elapsed() < std::time::Duration::from_secs(30), "{:?}", begun.elapsed());
}

#[test]
fn no_text_but_a_payload_is_longer_than_a_few_kib_and_what_is_cut_says_so() {
    let long = "ö".repeat(1 << 20);
    let raw = serde_json::json!({ "id": long, "method": "tools/call", "params": { "name": "t", "_meta": {
        "io.modelcontextprotocol/clientInfo": { "name": "c", "version": long, "icons": [long] } } } });
    let mut asked = message(CLIENT, &raw.to_string(), &[("c1", "pass")]);
    if let Entry::Message { calls, .. } = &mut asked {
        let [judged] = calls.as_mut_slice() else { panic!("one") };
        (judged.tool, judged.operation) = (long.clone(), long.clone().into());
        (judged.reasons, judged.rules) = (vec![long.clone(); 3], vec!["r".to_owned(); 100_000]);
    }
    let other = serde_json::json!({ "id": 7, "method": long }).to_string();
    let entries = [
        Entry::Start {
            session: "s".into(),
            at: 1,
            server_name: long.clone(),
            server_command: vec![long.clone()],
            pid: 1,
            version: long.clone(),
            client: Some(long.clone()),
        },
        Entry::Governed {
            at: 1,
            profile: long.clone(),
            enforcement: long.clone(),
            container: Some(long.clone()),
        },
        asked,
        message(SERVER, &other, &[]),
        Entry::Decision {
            call: "c1".into(),
            at: 2,
            boot: 2,
            outcome: long.clone().into(),
            by: Some(long.clone()),
        },
    ];
    let mut fold = Fold::default();
    let rows: Vec<Row> = entries.into_iter().flat_map(|entry| fold.next(entry)).collect();
    assert_eq!(rows.len(), 7);
    for row in rows {
        let payload = match &row {
            Row::Message(message) => {
                [Some(&message.raw), message.params.as_ref()].into_iter().flatten().map(String::len).sum()
            }
            _ => 0,
        };
        let bytes = row.bytes() - payload;
        assert!(bytes < 48 << 10, "{bytes} bytes");
        let marked = format!("{row:?}").contains("the session's journal has them");
        assert!(marked || matches!(row, Row::Message(_)), "{bytes} bytes");
        if let Row::Call(call) = &row {
            let rules = &call.judged.rules;
            assert!(rules[0] == "r" && rules.len() < 1100 && rules[rules.len() - 1].contains("more"));
        }
        if let Row::Client { info } = &row {
            let info: serde_json::Value = serde_json::from_str(info).expect("JSON");
            assert_eq!(info["name"], "c");
        }
    }
    // What is remembered of it is short, and is it all the same.
    assert!(format!("{:?}", fold.requests.in_flight.keys()).len() < 1000);
    let answer = serde_json::json!({ "id": long, "result": {} }).to_string();
    let answers = fold.next(message(SERVER, &answer, &[]));
    assert!(matches!(&answers[1], Row::Answer { call, .. } if call == "c1"), "{}", answers.len());
}

#[test]
fn a_question_has_a_short_name_whatever_its_server_calls_it() {
    let asks = |key: &str| {
        format!(
            r#"{{"id":1,"result":{{"inputRequests":{{"{key}":{{"method":"sampling/createMessage","params":{{}}}}}}}}}}"#
        )
    };
    let names = |key: &str| -> Vec<String> {
        let mut fold = Fold::default();
        let entries = [message(CLIENT, CALL, &[("c1", "pass")]), message(SERVER, &asks(key), &[])];
        let rows: Vec<Row> = entries.into_iter().flat_map(|entry| fold.next(entry)).collect();
        let asked = rows.into_iter().filter_map(|row| match row {
            Row::Asked { question, .. } => Some(question),
            _ => None,
        });
        asked.collect()
    };
    let [one, other] = ["k", "l"].map(|end| names(&("x".repeat(1 << 20) + end)));
    assert!(one.len() == 1 && one[0].len() < 120, "{} bytes", one[0].len());
    assert_ne!(one[0][one[0].len() - 64..], other[0][other[0].len() - 64..], "each its own");
    assert!(names("k")[0].ends_with(" k"), "the control");
}

#[test]
fn tools_are_noted_of_their_message_and_bounded_whatever_a_journal_says() {
    let message = "01890000-0000-7000-8000-000000000001";
    let tool = |name: &str, held: Option<&str>| crate::journal::ListedTool {
        name: name.into(),
        sha256: Some("x".into()),
        held: held.map(str::to_owned),
        definition: Some("d".repeat(1 << 20)),
        parts: std::collections::BTreeMap::new(),
        flags: Vec::new(),
    };
    let tools =
        vec![tool("a", None), tool("b", Some("changed")), tool(&"n".repeat(9000), None), tool("", None)];
    let listed = Entry::Tools { at: 1, message: message.into(), tools, more: 3, whole: None };
    let mut one = Fold::default();
    let rows = one.next(listed.clone());
    let [Row::Tools(row)] = rows.as_slice() else { panic!("{rows:?}") };
    assert_eq!(row.tools.iter().map(|tool| tool.name.as_str()).collect::<Vec<_>>(), ["a", "b"]);
    assert!(row.tools.iter().all(|tool| tool.sha256.is_none() && tool.definition.is_none()));
    let key = Entry::Server { at: 1, key: Some("no hash".into()), info: Some("i".repeat(9000)) };
    assert!(one.next(key).is_empty());
    let answer = Entry::Message {
        id: message.into(),
        at: 2,
        boot: 2,
        direction: Direction::ServerToClient,
        raw: r#"{"id":1,"result":{}}"#.into(),
        bytes: 9,
        sha256: String::new(),
        calls: Vec::new(),
        refused: None,
        outline: None,
        repaired: 0,
    };
    let rows = fold(vec![listed, answer]);
    assert!(rows[1].contains("the client got it without b; 3 more tools of its list"), "{rows:?}");
}
