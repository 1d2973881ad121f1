//! The log on disk, whatever is in it.

use super::*;
use proptest::prelude::*;

#[tokio::test]
async fn a_call_that_was_cut_off_counts_after_a_restart_and_is_no_message() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a/log");
    let used = |conversation: &Conversation| {
        let limits =
            ringfence_policy::agents::config::Limits { tokens_per_day: Some(1), ..Default::default() };
        let checked = conversation.meter.lock().check(&limits, &Default::default(), Timestamp::now());
        checked.map_or_else(|error| error.message, |()| String::new())
    };
    let (mut conversation, _) = Conversation::open(&path, ProviderKind::Anthropic, None).unwrap();
    conversation.begin(vec![Message {
        role: Role::User,
        content: vec![super::super::message::Block::text("hi")],
        tool_calls: Vec::new(),
        tool_call_id: None,
        tool_name: None,
        is_error: false,
    }]);
    assert_eq!(used(&conversation), "");
    conversation.record_usage(&Usage { input_tokens: 40, output_tokens: 2, ..Usage::default() });
    conversation.commit().await.unwrap();
    let (again, replay) = Conversation::open(&path, ProviderKind::Anthropic, None).unwrap();
    assert_eq!(replay, Replay { messages: 1, torn: 0, skipped: 0 });
    assert!(used(&again).contains("42 are used"), "{}", used(&again));
    assert_eq!((used(&conversation), again.recent.len()), (used(&again), 1));
    // The control: anything else that is no message is said to be left out.
    let mut file = fs::OpenOptions::new().append(true).open(&path).unwrap();
    file.write_all(b"{\"ts\":\"2024-01-01T00:00:00Z\",\"usage\":{},\"role\":\"x\"}\n{\"usage\":{}}\n")
        .unwrap();
    let (_, replay) = Conversation::open(&path, ProviderKind::Anthropic, None).unwrap();
    assert_eq!(replay, Replay { messages: 1, torn: 0, skipped: 2 });
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Whatever is in a log: it opens, opens the same again, and what the provider would be sent is JSON.
    #[test]
    fn any_log_can_be_opened(lines in prop::collection::vec(prop_oneof![
        Just(r#"{"role":"user","content":[{"type":"text","text":"x"}]}"#.to_owned()),
        Just(r#"{"role":"assistant","content":[],"tool_calls":[{"id":"a","name":"t","input":{}},{"id":"b","name":"t","input":{}}]}"#.to_owned()),
        Just(r#"{"role":"tool","tool_call_id":"a","content":[]}"#.to_owned()),
        Just(r#"{"role":"tool","tool_call_id":"b","content":[{"type":"image","data":"A","mimeType":"x"}]}"#.to_owned()),
        "[ -~]{0,30}",
    ], 0..12), rest: Vec<u8>, kind in prop_oneof![Just(ProviderKind::Anthropic), Just(ProviderKind::OpenAi)]) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a/log");
        fs::create_dir(path.parent().unwrap()).unwrap();
        fs::write(&path, [lines.join("\n").into_bytes(), b"\n".to_vec(), rest].concat()).unwrap();
        let (mut first, replay) = Conversation::open(&path, kind, None).unwrap();
        let (second, again) = Conversation::open(&path, kind, None).unwrap();
        prop_assert_eq!((replay.messages, again.torn), (again.messages, 0));
        prop_assert_eq!(first.history.bytes(), second.history.bytes());
        first.begin(vec![Message {
            role: Role::User,
            content: vec![super::super::message::Block::text("next")],
            tool_calls: Vec::new(),
            tool_call_id: None,
            tool_name: None,
            is_error: false,
        }]);
        let mut body = first.body("[".into(), "]".into(), true);
        let mut all = Vec::new();
        while let std::task::Poll::Ready(Some(Ok(frame))) = {
            let mut context = std::task::Context::from_waker(std::task::Waker::noop());
            http_body::Body::poll_frame(std::pin::Pin::new(&mut body), &mut context)
        } {
            all.extend_from_slice(frame.data_ref().unwrap());
        }
        serde_json::from_slice::<serde_json::Value>(&all).unwrap();
    }
}
