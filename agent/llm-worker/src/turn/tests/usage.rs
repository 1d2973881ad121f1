//! Turns that fail: what they cost is counted, also after a restart, and what the provider said of them has no credential.

use super::*;

const KEY: &str = "sk-secret-token";

fn events(events: &[Value]) -> String {
    events.iter().map(|event| format!("data: {event}\n\n")).collect()
}

/// What the day's account says when it is full.
fn used(conversation: &Conversation) -> String {
    let limits = ringfence_policy::agents::config::Limits { tokens_per_day: Some(1), ..Default::default() };
    let checked = conversation.meter.lock().check(&limits, &Default::default(), Timestamp::now());
    checked.map_or_else(|error| error.message, |()| String::new())
}

#[tokio::test]
async fn a_turn_that_was_cut_off_has_used_what_it_was_sent_and_all_that_was_said_also_after_a_restart() {
    let thinking = "x".repeat(4 << 20);
    let said = |delta: Value| {
        events(&[
            json!({ "type": "content_block_start", "index": 0, "content_block": { "type": "thinking", "thinking": "" } }),
            json!({ "type": "content_block_delta", "index": 0, "delta": delta }),
        ])
    };
    let cut = said(json!({ "type": "thinking_delta", "thinking": thinking }));
    // What the decoder does not understand was said as well.
    let odd = cut.clone() + &events(&[json!({ "type": "content_block_delta", "index": 7, "delta": {} })]);
    let input = said(json!({ "type": "input_json_delta", "partial_json": thinking }));
    for answer in [cut, odd, input] {
        let mut lab = Lab::new(&[], None, vec![answer]).await;
        let (failed, _) = lab.turn(json!({ "messages": [says("x")] })).await;
        assert_eq!(failed["error"]["code"], INTERNAL, "{failed}");
        let told = used(&lab.turns.conversation);
        let tokens: u64 =
            told.split('(').nth(1).and_then(|told| told.split(' ').next()?.parse().ok()).unwrap();
        assert!((1 << 20..(1 << 20) + 1000).contains(&tokens), "{told}");
        assert_eq!(used(&lab.turns.parts.open().unwrap()), told);
    }
    // The control: a whole answer counts once.
    let whole = answer(&[]).replace("\"message_delta\"", "\"message_delta\",\"usage\":{\"output_tokens\":9}");
    let mut lab = Lab::new(&[], None, vec![whole]).await;
    lab.turn(json!({ "messages": [says("x")] })).await;
    assert!(used(&lab.turns.conversation).contains("(9 are used"), "{}", used(&lab.turns.conversation));
    assert_eq!(used(&lab.turns.parts.open().unwrap()), used(&lab.turns.conversation));
}

#[tokio::test]
async fn an_error_and_a_stop_reason_have_no_credential_anywhere() {
    let failed =
        events(&[json!({ "type": "error", "error": { "type": KEY, "message": format!("no {KEY}") } })]);
    let stops = |reason: &str| answer(&[]).replace("end_turn", reason);
    let mut lab = Lab::new(&[], None, vec![failed, stops(KEY), stops("refusal")]).await;
    let (answer, _) = lab.turn(json!({ "messages": [says("x")] })).await;
    let clean = json!({ "code": INTERNAL, "message": "no [redacted]", "data": { "type": "[redacted]" } });
    assert_eq!(answer["error"], clean);
    for reason in ["[redacted]", "refusal"] {
        let (answer, _) = lab.turn(json!({ "messages": [says("x")] })).await;
        assert_eq!(answer["result"]["stop_reason"], reason);
    }
}
