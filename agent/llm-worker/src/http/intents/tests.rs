//! Tests of what a client's calls tell the trace.

use super::*;
use crate::{core_client::CoreClient, frame::FrameReader};
use Wire::{ChatCompletions as OpenAi, Messages as Anthropic};
use ringfence_wire::{agent::ToCore, trace::AgentEvent};
use serde_json::{Value, json};
use std::sync::atomic::Ordering;
use tokio_util::sync::CancellationToken;

fn raws(messages: &Value) -> Vec<Box<RawValue>> {
    let messages = messages.as_array().unwrap();
    messages.iter().map(|message| RawValue::from_string(message.to_string()).unwrap()).collect()
}

fn begin(tracker: &IntentTracker, kind: Wire, messages: &Value) -> RequestPart {
    tracker.begin(kind, (&raws(messages), None), &Redactor::new([]))
}

fn call(id: &str) -> ToolCall {
    let input = RawValue::from_string("{}".to_owned()).unwrap();
    ToolCall { id: id.to_owned(), name: "t".to_owned(), input }
}

fn end(tracker: &IntentTracker, part: RequestPart, calls: &[ToolCall], error: Option<&str>) {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    runtime.block_on(answer(tracker, part, calls, error));
}

async fn answer(tracker: &IntentTracker, mut part: RequestPart, calls: &[ToolCall], error: Option<&str>) {
    for call in calls {
        tracker.called(&mut part, (call, 1), &Redactor::new([]), &CancellationToken::new()).await;
    }
    tracker.answered(part, error, &Redactor::new([]));
}

#[test]
fn what_was_asked_is_the_user_s_words_and_not_what_the_client_put_before_them() {
    let reminder = "<system-reminder>\nToday is a day.\n</system-reminder>\n";
    let asked = |messages: Value| {
        let newest = LatestMessages::of(Anthropic, &raws(&messages));
        let said = |block: &Block| serde_json::from_str::<Value>(block.raw().get()).unwrap();
        (newest.asked.iter().map(said).collect::<Vec<_>>(), newest.number)
    };
    let text = |text: &str| json!({ "type": "text", "text": text });
    let plain = asked(json!([{ "role": "user", "content": "Fix it" }]));
    assert_eq!(plain.0, [text("Fix it")]);
    let ways = [
        json!(format!("{reminder}Fix it")),
        json!(format!("{reminder}\n {reminder}Fix it")),
        json!([text(reminder), text("Fix it")]),
        json!([text(&format!("{reminder}{reminder}")), text(&format!(" {reminder}\nFix it"))]),
    ];
    for way in ways {
        assert_eq!(asked(json!([{ "role": "user", "content": way }])), plain, "{way}");
    }
    let context = "<session_context>\nToday is a day.\n</session_context>";
    assert_eq!(asked(json!([{ "role": "user", "content": [text(context), text("Fix it")] }])), plain);
    // One whose reminders changed is the same, and so is one with a message of nothing else behind it.
    let later = json!([
        { "role": "user", "content": "<system-reminder>another</system-reminder>Fix it" },
        { "role": "assistant", "content": "..." },
        { "role": "user", "content": [text(reminder)] },
    ]);
    assert_eq!(asked(later), plain);
    // Words are words wherever they stand, and what is not closed, or stands alone, is shown.
    let kept = [
        "Why <system-reminder>x</system-reminder>?",
        "<system-reminder>x",
        "",
        "<system-reminder></system-reminder>",
    ];
    for words in kept {
        assert_eq!(asked(json!([{ "role": "user", "content": words }])).0, [text(words)], "{words}");
    }
    let image = json!({ "type": "image", "source": { "type": "url", "url": "https://example.org/a.png" } });
    assert_eq!(asked(json!([{ "role": "user", "content": [text(reminder), image] }])).0, [image]);
    // One that says nothing is no reminder: what was asked before is not what is asked now.
    for nothing in [json!(null), json!([])] {
        let said_nothing =
            json!([{ "role": "user", "content": "Fix it" }, { "role": "user", "content": nothing }]);
        assert_eq!(asked(said_nothing).0, Vec::<Value>::new());
    }
}

#[test]
fn results_behind_the_last_answer_are_read_in_both_forms() {
    let anthropic = json!([
        { "role": "user", "content": "go" },
        { "role": "assistant", "content": [{ "type": "tool_use", "id": "old", "name": "t", "input": {} }] },
        { "role": "user", "content": [{ "type": "tool_result", "tool_use_id": "old", "content": "1" }] },
        { "role": "assistant", "content": "..." },
        { "role": "user", "content": [
            { "type": "tool_result", "tool_use_id": "a", "is_error": true, "content": [{ "type": "text", "text": "no" }] },
            { "type": "tool_result", "tool_use_id": "b" },
            { "type": "text", "text": "and then?" },
        ] },
    ]);
    let newest = LatestMessages::of(Anthropic, &raws(&anthropic));
    let seen: Vec<_> =
        newest.results.iter().map(|one| (one.call.as_str(), one.is_error, one.content.len())).collect();
    assert_eq!(seen, [("a", true, 1), ("b", false, 0)]);
    assert_eq!(newest.number, number(0, &[Block::text("go")]));
    let openai = json!([
        { "role": "system", "content": "s" },
        { "role": "user", "content": [{ "type": "text", "text": "go" }] },
        { "role": "assistant", "content": null, "tool_calls": [] },
        { "role": "tool", "tool_call_id": "a", "content": "1" },
        { "role": "tool", "tool_call_id": "b", "content": "2" },
    ]);
    let newest = LatestMessages::of(OpenAi, &raws(&openai));
    assert_eq!(newest.results.iter().map(|one| one.call.as_str()).collect::<Vec<_>>(), ["a", "b"]);
    assert_eq!(newest.number, number(1, &[Block::text("go")]));
}

/// A link whose other end is to be read, and what is reported over it.
fn link() -> (CoreClient, FrameReader<tokio::net::UnixStream>) {
    let (near, far) = tokio::net::UnixStream::pair().unwrap();
    (CoreClient::new(near, CancellationToken::new(), CancellationToken::new()), FrameReader::new(far))
}

async fn said(reader: &mut FrameReader<tokio::net::UnixStream>) -> AgentEvent {
    let frame = reader.next(Some(Duration::from_secs(120))).await.unwrap();
    let ToCore::Report(json) = serde_json::from_slice(&frame).unwrap() else { panic!("a report") };
    serde_json::from_str(json.get()).unwrap()
}

#[tokio::test]
async fn calls_are_on_record_where_nothing_can_be_read_that_was_asked() {
    let (host, mut reader) = link();
    let tracker = IntentTracker::new(Reporter::new(host, Arc::default(), false));
    let mut long = vec![json!({ "role": "user", "content": "go" })];
    long.extend((0..MOST_BACK).map(|_| json!({ "role": "assistant", "content": "..." })));
    let mut odd: Vec<_> = [
        json!([]),
        json!([1, "x", { "role": 7 }]),
        json!([{ "role": "assistant" }]),
        json!([{ "role": "system", "content": "go" }]),
        json!([{ "role": "developer", "content": "go" }]),
        Value::from(long),
    ]
    .iter()
    .map(raws)
    .collect();
    // Other parsers take the last of two.
    odd.push(vec![RawValue::from_string(r#"{"role":"x","role":"user","content":"go"}"#.to_owned()).unwrap()]);
    for (n, messages) in odd.iter().enumerate() {
        let id = format!("call-{n}");
        let part = tracker.begin(OpenAi, (messages, None), &Redactor::new([]));
        answer(&tracker, part, &[call(&id)], None).await;
        let AgentEvent::Intent { id: intent, text, via: Via::Http, uid: None, session: None } =
            said(&mut reader).await
        else {
            panic!("an intent")
        };
        assert_eq!(text, "");
        let called = said(&mut reader).await;
        assert!(
            matches!(&called, AgentEvent::Call { id: of, intent: Some(by), .. } if *of == id && *by == intent),
            "{called:?}"
        );
        // Tried again it is the same, and its result goes on with it.
        assert_eq!(*tracker.begin(OpenAi, (messages, None), &Redactor::new([])).intent.id, *intent);
        let result = raws(&json!([{ "role": "tool", "tool_call_id": id, "content": "1" }]));
        let part = tracker.begin(OpenAi, (&result, None), &Redactor::new([]));
        assert_eq!(*part.intent.id, *intent);
        let ended = said(&mut reader).await;
        assert!(matches!(ended, AgentEvent::CallEnded { .. }), "{ended:?}");
    }
}

#[test]
fn a_call_s_result_goes_on_with_what_it_was_for_and_the_next_question_is_another() {
    let tracker = IntentTracker::new(Reporter::default());
    let ask = json!([{ "role": "user", "content": "go" }]);
    let part = begin(&tracker, Anthropic, &ask);
    let first = Arc::clone(&part.intent.id);
    end(&tracker, part, &[call("a")], None);
    let result = json!({ "role": "user", "content": [{ "type": "tool_result", "tool_use_id": "a" }] });
    // The client may have shortened what was before.
    let part = begin(&tracker, Anthropic, &json!([{ "role": "user", "content": "short" }, result]));
    assert_eq!(part.intent.id, first);
    assert!(tracker.tracked_intents()[0].open.is_empty());
    // It is tried again after an error, with the same results.
    end(&tracker, part, &[], Some("overloaded"));
    let part = begin(&tracker, Anthropic, &json!([{ "role": "user", "content": "go" }, result]));
    assert_eq!(part.intent.id, first);
    end(&tracker, part, &[], None);
    assert!(tracker.tracked_intents().is_empty());
    assert_ne!(begin(&tracker, Anthropic, &ask).intent.id, first, "asked anew");
}

#[test]
fn two_sessions_that_ask_the_same_and_have_the_same_ids_are_two() {
    let tracker = IntentTracker::new(Reporter::default());
    let ask = json!([{ "role": "user", "content": "go" }]);
    let result = json!([{ "role": "user", "content": "go" }, { "role": "tool", "tool_call_id": "call_1", "content": "1" }]);
    let shortened = json!([{ "role": "user", "content": "short" }, result[1]]);
    let of = |session: &str, messages: &Value| {
        let session = ClientSession { id: session.to_owned(), from: "session_id" };
        tracker.begin(OpenAi, (&raws(messages), Some(&session)), &Redactor::new([]))
    };
    let (one, other) = (of("a", &ask), of("b", &ask));
    let [first, second] = [&one, &other].map(|part| Arc::clone(&part.intent.id));
    assert_ne!(first, second);
    assert_eq!(of("a", &ask).intent.id, first, "the control: it is tried again");
    end(&tracker, one, &[call("call_1")], None);
    end(&tracker, other, &[call("call_1")], None);
    let open = || -> Vec<Arc<str>> {
        let tracked = tracker.tracked_intents();
        tracked.iter().filter(|one| !one.open.is_empty()).map(|one| Arc::clone(&one.intent.id)).collect()
    };
    assert_eq!(open().len(), 2);
    assert_eq!(of("b", &shortened).intent.id, second);
    assert_eq!(open(), [Arc::clone(&first)]);
    assert_eq!(of("a", &result).intent.id, first);
    assert!(open().is_empty());
}

#[test]
fn who_asks_twice_at_once_ends_with_the_last_answer() {
    let tracker = IntentTracker::new(Reporter::default());
    let ask = json!([{ "role": "user", "content": "go" }]);
    let (one, two) = (begin(&tracker, OpenAi, &ask), begin(&tracker, OpenAi, &ask));
    assert_eq!(one.intent.id, two.intent.id);
    end(&tracker, one, &[], None);
    end(&tracker, two, &[call("a")], None);
    assert_eq!(tracker.tracked_intents()[0].open.len(), 1);
    // One whose client hung up does not count.
    drop(begin(&tracker, OpenAi, &ask));
    let result = json!({ "role": "tool", "tool_call_id": "a", "content": "1" });
    let part = begin(&tracker, OpenAi, &json!([ask[0], result]));
    end(&tracker, part, &[], None);
    assert!(tracker.tracked_intents().is_empty());
}

#[tokio::test]
async fn a_side_question_ends_no_call_of_what_was_asked_in_the_same_words() {
    for error in [None, Some("overloaded")] {
        let (host, mut reader) = link();
        let tracker = IntentTracker::new(Reporter::new(host, Arc::default(), false));
        let ask = json!([{ "role": "user", "content": "go" }]);
        let (main, title) = (begin(&tracker, OpenAi, &ask), begin(&tracker, OpenAi, &ask));
        answer(&tracker, main, &[call("a")], None).await;
        answer(&tracker, title, &[], error).await;
        assert_eq!(tracker.tracked_intents()[0].open.len(), 1, "{error:?}");
        let result = json!([{ "role": "tool", "tool_call_id": "a", "content": "1" }]);
        let part = begin(&tracker, OpenAi, &result);
        answer(&tracker, part, &[], None).await;
        assert!(tracker.tracked_intents().is_empty());
        assert!(matches!(said(&mut reader).await, AgentEvent::Intent { .. }));
        let AgentEvent::Call { key, .. } = said(&mut reader).await else { panic!("a call") };
        let AgentEvent::CallEnded { key: ended, .. } = said(&mut reader).await else { panic!("its result") };
        assert_eq!(ended, key);
        assert!(matches!(said(&mut reader).await, AgentEvent::IntentEnded { error: None, .. }));
    }
}

#[test]
fn what_begins_drives_out_none_whose_calls_are_open_or_whose_answer_is_to_come() {
    let tracker = IntentTracker::new(Reporter::default());
    let ask = |words: &str| begin(&tracker, OpenAi, &json!([{ "role": "user", "content": words }]));
    let (open, asked) = (ask("open"), ask("asked"));
    let ids = [&open, &asked].map(|part| Arc::clone(&part.intent.id));
    end(&tracker, open, &[call("a")], None);
    // A request whose client hangs up leaves what was asked behind, to be tried again.
    (0..2 * MOST).for_each(|n| drop(ask(&n.to_string())));
    let tracked_intents = tracker.tracked_intents();
    assert_eq!(tracked_intents.len(), MOST);
    assert!(ids.iter().all(|id| tracked_intents.iter().any(|tracked| tracked.intent.id == *id)));
    drop(asked);
}

#[test]
fn what_is_followed_is_bounded_and_silence_ends_it() {
    let tracker = IntentTracker::new(Reporter::default());
    for n in 0..2 * MOST {
        let part = begin(&tracker, OpenAi, &json!([{ "role": "user", "content": n.to_string() }]));
        let calls: Vec<_> = (0..MOST_CALLS + 9).map(|call_of| call(&format!("{n}-{call_of}"))).collect();
        end(&tracker, part, &calls, None);
    }
    assert_eq!(tracker.tracked_intents().len(), MOST);
    assert!(
        tracker
            .tracked_intents()
            .iter()
            .all(|thread| { thread.calls.len() == MOST_CALLS && thread.open.len() == MOST_CALLS })
    );
    tracker.give_up_silent(Duration::from_secs(3600), &Redactor::new([]));
    assert_eq!(tracker.tracked_intents().len(), MOST);
    tracker.give_up_silent(Duration::ZERO, &Redactor::new([]));
    assert!(tracker.tracked_intents().is_empty());
}

#[tokio::test]
async fn calls_are_on_record_before_the_answer_ends_however_much_else_is_reported() {
    let (host, mut reader) = link();
    let tracker = Arc::new(IntentTracker::new(Reporter::new(host.clone(), Arc::default(), false)));
    let part = begin(&tracker, OpenAi, &json!([{ "role": "user", "content": "go" }]));
    // Nobody reads, and there is no room any more.
    let error = Some("x".repeat(2000));
    let flood = AgentEvent::IntentEnded { id: "f".repeat(12), error, moment: 0 };
    while host.counts().lost_reports.load(Ordering::Relaxed) == 0 {
        host.report(&flood);
    }
    let before = host.counts().lost_reports.load(Ordering::Relaxed);
    let answered = tokio::spawn({
        let tracker = Arc::clone(&tracker);
        async move {
            let calls: Vec<_> = (0..MOST_CALLS).map(|n| call(&format!("call-{n}"))).collect();
            answer(&tracker, part, &calls, None).await;
        }
    });
    tokio::task::yield_now().await;
    assert!(!answered.is_finished(), "it waits for room");
    let mut seen = 0;
    while seen < MOST_CALLS {
        let frame = reader.next(Some(Duration::from_secs(120))).await.unwrap();
        seen += usize::from(String::from_utf8_lossy(&frame).contains("call-"));
    }
    answered.await.unwrap();
    assert_eq!(host.counts().lost_reports.load(Ordering::Relaxed), before);
    assert_eq!(tracker.tracked_intents()[0].open.len(), MOST_CALLS);
}

/// A worker that is to stop has no time for a daemon that stands still.
#[tokio::test]
async fn a_cut_ends_the_wait_for_the_daemon() {
    let (host, _nobody_reads) = link();
    let tracker = Arc::new(IntentTracker::new(Reporter::new(host.clone(), Arc::default(), false)));
    let mut part = begin(&tracker, OpenAi, &json!([{ "role": "user", "content": "go" }]));
    let error = Some("x".repeat(2000));
    let flood = AgentEvent::IntentEnded { id: "f".repeat(12), error, moment: 0 };
    // All that fits is on its way, and the queue is full.
    for _ in 0..4096 {
        host.report(&flood);
        tokio::task::yield_now().await;
    }
    let cut = CancellationToken::new();
    let told = tokio::spawn({
        let (tracker, cut) = (Arc::clone(&tracker), cut.clone());
        async move {
            for call in [call("first"), call("second")] {
                tracker.called(&mut part, (&call, 1), &Redactor::new([]), &cut).await;
            }
        }
    });
    tokio::task::yield_now().await;
    assert!(!told.is_finished(), "it waits for room");
    cut.cancel();
    for _ in 0..8 {
        tokio::task::yield_now().await;
    }
    assert!(told.is_finished());
    told.await.unwrap();
    assert_eq!(tracker.tracked_intents()[0].open.len(), 2, "their results are known none the less");
}

#[tokio::test]
async fn a_call_s_result_is_known_before_its_answer_is_over() {
    let (host, mut reader) = link();
    let tracker = IntentTracker::new(Reporter::new(host, Arc::default(), false));
    let mut part = begin(&tracker, OpenAi, &json!([{ "role": "user", "content": "go" }]));
    tracker.called(&mut part, (&call("early"), 7), &Redactor::new([]), &CancellationToken::new()).await;
    let AgentEvent::Intent { id, .. } = said(&mut reader).await else { panic!("an intent") };
    let AgentEvent::Call { key, id: given, intent, moment: 7, .. } = said(&mut reader).await else {
        panic!("a call")
    };
    assert_eq!((given.as_str(), intent), ("early", Some(id.clone())));
    let next = begin(&tracker, OpenAi, &json!([{ "role": "tool", "tool_call_id": "early", "content": "1" }]));
    assert_eq!(*next.intent.id, *id);
    let AgentEvent::CallEnded { key: ended, .. } = said(&mut reader).await else { panic!("its end") };
    assert_eq!(ended, key);
    // The control: an answer that is over with calls is not the end of what was asked.
    tracker.answered(part, Some("cut off"), &Redactor::new([]));
    tracker.answered(next, None, &Redactor::new([]));
    let AgentEvent::IntentEnded { id: over, error: None, .. } = said(&mut reader).await else {
        panic!("the end")
    };
    assert_eq!(over, id);
}

#[test]
fn results_among_items_are_of_the_calls_that_they_follow() {
    let user =
        json!({ "type": "message", "role": "user", "content": [{ "type": "input_text", "text": "go" }] });
    let call = |id: &str| json!({ "type": "function_call", "call_id": id, "name": "t", "arguments": "{}" });
    let result =
        |id: &str, text: &str| json!({ "type": "function_call_output", "call_id": id, "output": text });
    let words = json!({ "type": "message", "role": "assistant", "content": [] });
    let found = |items: Value| {
        let newest = LatestMessages::of(Wire::Responses, &raws(&items));
        assert_eq!(newest.asked.len(), 1);
        newest
            .results
            .into_iter()
            .map(|result| (result.call, json!(result.content)[0]["text"].clone()))
            .collect::<Vec<_>>()
    };
    let of = |id: &str, text: &str| (id.to_owned(), json!(text));
    // Of calls at the same time, in either order.
    let apart = json!([user, call("a"), call("b"), result("a", "1"), result("b", "2")]);
    let mixed = json!([user, call("a"), result("a", "1"), call("b"), result("b", "2")]);
    assert_eq!(
        (found(apart), found(mixed)),
        (vec![of("a", "1"), of("b", "2")], vec![of("a", "1"), of("b", "2")])
    );
    let twice = json!([user, call("a"), call("a"), result("a", "1"), result("a", "2")]);
    assert_eq!(found(twice), [of("a", "1"), of("a", "2")]);
    // One of an id that comes again is the later call's, and what the model's words follow is an earlier one's.
    let again = json!([user, call("a"), result("a", "old"), call("a"), result("a", "new")]);
    assert_eq!(found(again), [of("a", "new")]);
    let earlier = json!([user, call("a"), result("a", "old"), words, call("b"), result("b", "new")]);
    assert_eq!(found(earlier), [of("b", "new")]);
}
