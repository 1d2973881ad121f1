//! Whatever ids a provider gives to tool calls: each call that runs is on record, and tied to what it did itself.

use super::*;
use crate::{access::Issued, recorded::Record};
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};

/// A call as a provider makes it.
#[derive(Debug, Clone)]
struct Made {
    id: String,
    /// An MCP server's tool, which the worker runs; else the runtime's.
    is_remote: bool,
    /// A text stands behind it, so that its place in the answer is kept.
    is_followed: bool,
}

/// Calls of one answer; none: the provider only pauses.
type Made1 = Vec<Made>;

fn made() -> impl Strategy<Value = Made> {
    let id = prop_oneof![
        Just(String::new()),
        Just("a".to_owned()),
        Just("b".to_owned()),
        Just("x".repeat(300)),
        Just("y".repeat(256)),
        Just("e\u{1b}[2J\u{7}".to_owned()),
        Just("two words".to_owned()),
        "[a-z]{1,3}",
    ];
    let call = (id, prop::bool::weighted(0.3), any::<bool>());
    call.prop_map(|(id, is_remote, is_followed)| Made { id, is_remote, is_followed })
}

fn tool(made: &Made) -> &'static str {
    if made.is_remote { "search" } else { "bash" }
}

/// An answer in a provider's own events. Each call's arguments have its number, which nobody else's have.
fn spoken(kind: ProviderKind, calls: &[Made], from: usize) -> String {
    let mut events = Vec::new();
    let input = |at: usize| format!("{{\"n\":{}}}", from + at);
    match kind {
        ProviderKind::Anthropic => {
            let mut index = 0;
            let mut start = |block: Value, piece: Option<String>| {
                events.push(json!({ "type": "content_block_start", "index": index, "content_block": block }));
                let piece = piece
                    .map(|piece| json!({ "type": "input_json_delta", "partial_json": piece, "id": "other" }));
                let delta = |delta| json!({ "type": "content_block_delta", "index": index, "delta": delta });
                events.extend(piece.map(delta));
                index += 1;
            };
            for (at, made) in calls.iter().enumerate() {
                let block = json!({ "type": "tool_use", "id": made.id, "name": tool(made), "input": {} });
                start(block, Some(input(at)));
                if made.is_followed {
                    start(json!({ "type": "text", "text": "so much for that" }), None);
                }
            }
            let reason = if calls.is_empty() { "pause_turn" } else { "tool_use" };
            events.push(json!({ "type": "message_delta", "delta": { "stop_reason": reason } }));
            events.push(json!({ "type": "message_stop" }));
        }
        ProviderKind::OpenAi => {
            for (at, made) in calls.iter().enumerate() {
                let function = json!({ "name": tool(made), "arguments": input(at) });
                let call = json!({ "index": at, "id": made.id, "type": "function", "function": function });
                events.push(json!({ "choices": [{ "index": 0, "delta": { "tool_calls": [call] } }] }));
            }
            let reason = if calls.is_empty() { "stop" } else { "tool_calls" };
            let said = json!({ "content": "hm" });
            events.push(json!({ "choices": [{ "index": 0, "delta": said, "finish_reason": reason }] }));
        }
        ProviderKind::Gemini => {
            let part = |at: usize, made: &Made| {
                json!({ "functionCall": { "id": made.id, "name": tool(made),
                "args": { "n": from + at } }, "thoughtSignature": format!("s{}", from + at) })
            };
            for (at, made) in calls.iter().enumerate() {
                events.push(json!({ "candidates": [{ "content": { "parts": [part(at, made)] } }] }));
            }
            let parts = json!([{ "text": "hm" }]);
            events.push(json!({ "candidates": [{ "content": { "parts": parts }, "finishReason": "STOP" }] }));
        }
    }
    let done = if kind == ProviderKind::OpenAi { "data: [DONE]\n\n" } else { "" };
    events.iter().map(|event| format!("data: {event}\n\n")).chain([done.to_owned()]).collect()
}

/// What a core's end of the link hears, until a report has these words.
async fn reports(core: UnixStream, last: &str) -> Vec<String> {
    let mut core = FrameReader::new(core);
    let mut reports = Vec::new();
    loop {
        let frame = core.next(Some(Duration::from_secs(120))).await.unwrap();
        let ToCore::Report(json) = serde_json::from_slice(&frame).unwrap() else { continue };
        if json.get().contains(last) {
            return reports;
        }
        reports.push(json.get().to_owned());
    }
}

/// Every tool call in what a provider is sent, and every result, by id: in their order.
fn sent(asked: &Value) -> (Vec<String>, Vec<(String, String)>) {
    let (mut calls, mut results) = (Vec::new(), Vec::new());
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let messages = asked.get("messages").or(asked.get("contents"));
    for message in messages.and_then(Value::as_array).unwrap() {
        for part in message["parts"].as_array().into_iter().flatten() {
            if let Some(call) = part.get("functionCall") {
                assert_eq!(part["thoughtSignature"], format!("s{}", call["args"]["n"]), "{part}");
                calls.push(text(&call["id"]));
            }
            if let Some(result) = part.get("functionResponse") {
                assert!(["bash", "search"].iter().any(|name| result["name"] == *name), "{part}");
                results.push((text(&result["id"]), result["response"].to_string()));
            }
        }
        for call in message["tool_calls"].as_array().into_iter().flatten() {
            calls.push(text(&call["id"]));
        }
        if message["role"] == "tool" {
            results.push((text(&message["tool_call_id"]), message["content"].to_string()));
        }
        for block in message["content"].as_array().into_iter().flatten() {
            match block["type"].as_str() {
                Some("tool_use") => calls.push(text(&block["id"])),
                Some("tool_result") => {
                    results.push((text(&block["tool_use_id"]), block["content"].to_string()));
                }
                _ => {}
            }
        }
    }
    (calls, results)
}

const TAG: u64 = 1000;
const END: &str = "the end of the test";

/// Runs the conversation: what the runtime ran, as numbers, and what came of the record.
async fn run(kind: ProviderKind, answers: &[Made1]) -> (BTreeSet<usize>, Record, Vec<Value>, String) {
    let mut from = 0;
    let mut spoken: Vec<String> = answers
        .iter()
        .map(|calls| {
            from += calls.len();
            super::calls::spoken(kind, calls, from - calls.len())
        })
        .collect();
    let enough = spoken.len();
    // Rounds of remote calls, and pauses, may end in these.
    let done = match kind {
        ProviderKind::Anthropic => answer(&[]),
        ProviderKind::OpenAi | ProviderKind::Gemini => super::calls::spoken(kind, &[], 0),
    };
    spoken.extend(std::iter::repeat_n(done, enough + 4));
    let mut lab = Lab::of(kind, &[("one", "search")], None, spoken).await;
    let (near, far) = UnixStream::pair().unwrap();
    let host = CoreClient::new(near, CancellationToken::new(), CancellationToken::new());
    let issued = Arc::<Issued>::default();
    lab.turns.reporter = Reporter::new(host.clone(), Arc::clone(&issued), true);
    let redactor = Redactor::new([]);
    let intent = lab.turns.reporter.intent(1, Some(0), &[Block::text("go")], &redactor);

    let core = tokio::spawn(reports(far, END));
    let (mut ran, mut tags, mut all_streamed) = (BTreeSet::new(), Vec::new(), String::new());
    let mut params = json!({ "tools": local(&["bash"]), "messages": [says("go")] });
    while lab.asked.lock().unwrap().len() < enough {
        let mut job = lab.job(params);
        job.intent = Some(intent.clone());
        lab.turns.job(job).await;
        let answer = loop {
            let frame = lab.heard.next(Some(Duration::from_secs(120))).await.unwrap();
            let frame: Value = serde_json::from_slice(&frame).unwrap();
            if frame.get("id").is_some() {
                break frame;
            }
            all_streamed += &frame.to_string();
        };
        assert!(answer["error"].is_null(), "{answer}");
        let calls = answer["result"]["tool_calls"].as_array().cloned().unwrap_or_default();
        // As the runtime does: a process for each, tagged before it runs.
        for call in &calls {
            let n = call["input"]["n"].as_u64().unwrap();
            let key = issued.claim(call["id"].as_str().unwrap()).expect("a process may be tagged for each");
            tags.push((n, key.as_str().to_owned()));
            assert!(ran.insert(n as usize), "{n} ran twice");
            assert!(issued.claim(call["id"].as_str().unwrap()).is_err(), "and for none twice");
        }
        let results: Value = calls
            .iter()
            .rev()
            .map(|call| {
                let text = format!("did {}", call["input"]["n"]);
                json!({ "role": "tool", "tool_call_id": call["id"], "content": [{ "type": "text", "text": text }] })
            })
            .collect();
        params = json!({ "messages": if calls.is_empty() { json!([says("and on")]) } else { results } });
    }
    // So that the last results are told, too.
    if params.to_string().contains("\"tool\"") {
        lab.turn(params).await;
    }
    host.report(&AgentEvent::Refused(ringfence_wire::trace::Refusal {
        what: "tag".into(),
        why: END.into(),
        pid: None,
        uid: None,
        container: None,
    }));
    let mut record = Record::new();
    core.await.unwrap().into_iter().for_each(|text| record.said(text));
    // Later than all calls are on record: a tie may not depend on which was last.
    for (n, key) in tags {
        record.tagged(TAG + n, &format!("/did/{n}"));
        record
            .said(serde_json::to_string(&AgentEvent::Tagged { key, tag: TAG + n, matched: false }).unwrap());
    }
    let asked = lab.asked.lock().unwrap().clone();
    (ran, record, asked, all_streamed)
}

fn check(kind: ProviderKind, answers: &[Made1]) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let (ran, record, asked, streamed) = runtime.block_on(run(kind, answers));
    let all: Vec<&Made> = answers.iter().flatten().collect();
    let expected: BTreeSet<usize> = (0..all.len()).filter(|n| !all[*n].is_remote).collect();
    assert_eq!(ran, expected, "what the model wanted of the runtime ran");

    let recorded = record.calls();
    let numbers: Vec<usize> = recorded
        .iter()
        .map(|call| serde_json::from_str::<Value>(&call.input).unwrap()["n"].as_u64().unwrap() as usize)
        .collect();
    assert_eq!(numbers, (0..all.len()).collect::<Vec<_>>(), "each call is on record, once");
    let (mut ids, mut keys) = (BTreeMap::new(), BTreeSet::new());
    for (n, call) in recorded.iter().enumerate() {
        assert_eq!(call.tool, tool(all[n]));
        assert!(call.id.bytes().all(|byte| byte.is_ascii_graphic()) && call.id.len() <= 256, "{:?}", call.id);
        assert!(keys.insert(call.key.clone()) && ids.insert(call.id.clone(), n).is_none(), "{recorded:?}");
        let output = call.output.as_deref().unwrap_or_default();
        if all[n].is_remote {
            assert!(output.contains(&format!("search {{\"n\":{n}}}")) && call.exact.is_empty(), "{call:?}");
        } else {
            assert_eq!(
                (output, call.exact.as_slice()),
                (format!("did {n}").as_str(), &[format!("/did/{n}")][..])
            );
        }
    }
    // The provider is told of the same names each time, and of each result under its own call's.
    for asked in &asked {
        let (calls, results) = sent(asked);
        assert_eq!(calls.iter().collect::<BTreeSet<_>>().len(), calls.len(), "{calls:?}");
        assert_eq!(calls, results.iter().map(|(id, _)| id.clone()).collect::<Vec<_>>());
        for (id, content) in results {
            let n = ids[&id];
            let own = if all[n].is_remote { format!("\\\"n\\\":{n}}}") } else { format!("did {n}\"") };
            assert!(content.contains(&own), "{n} {content}");
        }
    }
    assert!(!streamed.contains("\\u001b") && !streamed.contains("\\u0007"), "{streamed}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn calls_on_record_are_calls_that_ran_and_no_event_is_another_s(
        answers in prop::collection::vec(prop::collection::vec(made(), 0..5), 1..5),
        kind in prop::sample::select(ProviderKind::ALL),
    ) {
        check(kind, &answers);
    }
}

#[test]
fn two_calls_of_one_id_in_one_answer_and_over_rounds_are_kept_apart() {
    let made = |id: &str, is_remote| Made { id: id.to_owned(), is_remote, is_followed: true };
    let answers = vec![
        vec![made("a", false), made("a", false), made("a", true)],
        vec![made("a", true)],
        Vec::new(),
        vec![made("a", false), made("", false), made(&"x".repeat(300), false)],
    ];
    for &kind in ProviderKind::ALL {
        check(kind, &answers);
    }
}

/// What a worker that is started again finds in its log has been used, too.
#[tokio::test]
async fn an_id_is_used_for_as_long_as_the_log_has_it() {
    let mut lab = Lab::new(&[], None, vec![answer(&[("a", "bash")]), answer(&[])]).await;
    let (first, _) = lab.turn(json!({ "tools": local(&["bash"]), "messages": [says("x")] })).await;
    assert_eq!(first["result"]["tool_calls"][0]["id"], "a", "the control: a new one is kept");
    lab.turn(json!({ "messages": [result("a")] })).await;
    let again = lab.turns.parts.open().unwrap();
    let mut used = again.used.lock().unwrap();
    let redactor = Redactor::new([]);
    assert!(used.begin("a", 1, &redactor).renamed.is_some());
    assert!(used.begin("b", 1, &redactor).renamed.is_none());
}
