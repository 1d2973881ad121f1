//! Which calls were made for one thing: by what the client sends with them, by the server's questions to its model, else by time. Pure.

use serde::Deserialize;
use serde_json::{Value, value::RawValue};
use std::collections::BTreeMap;

/// A gap between requests longer than this begins a new intent, microseconds.
const GAP: i64 = 5_000_000;
/// Longest id that is believed to be one, bytes.
const LONGEST_ID: usize = 256;
/// Longest `_meta` that is read, bytes.
const LONGEST_META: usize = 64 << 10;
/// Longest beginning of what was asked that is kept, characters.
const LONGEST_PROMPT: usize = 4000;
/// Questions to clients' models that are remembered as open for one user.
const MOST_OPEN: usize = 256;
/// The key in `_meta` under which VS Code names its user's request, the same for all calls that come of it.
const TURN: &str = "vscode.requestId";

/// Where the knowledge comes from that calls belong together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Source {
    /// Our own runtime's model asked for the call, and its owner's message is on record.
    Runtime,
    /// The client named the request of its user's that it works on.
    Client,
    /// The client gave one tool-use id to several calls.
    ToolUse,
    /// A server asked the client's model.
    Sampling,
    /// Nothing better than time.
    Time,
}

impl Source {
    /// The name in the store.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Runtime => "runtime",
            Self::Client => "client",
            Self::ToolUse => "tool_use",
            Self::Sampling => "sampling",
            Self::Time => "time",
        }
    }
}

/// Why a call was made, as far as the client tells.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Evidence {
    /// The id under which a model asked for it: of Claude Code `claudecode/toolUseId`, and what others call so.
    pub tool_use: Option<String>,
    /// The client's id of what its user asked for.
    pub turn: Option<String>,
}

impl Evidence {
    /// From a call's `_meta`.
    pub fn of(meta: Option<&str>) -> Self {
        let meta = meta.filter(|meta| meta.len() <= LONGEST_META);
        let Some(Ok(Value::Object(meta))) = meta.map(serde_json::from_str) else {
            return Self::default();
        };
        let id = |value: &Value| {
            let id = value.as_str()?;
            (!id.is_empty() && id.len() <= LONGEST_ID).then(|| id.to_owned())
        };
        Self {
            tool_use: meta.iter().filter(|(key, _)| names_tool_use(key)).find_map(|(_, value)| id(value)),
            turn: meta.get(TURN).and_then(id),
        }
    }
}

/// Whether a key's last part is `toolUseId` or `toolCallId`, however it is spelt.
fn names_tool_use(key: &str) -> bool {
    let last = key.rsplit(['/', '.']).next().unwrap_or(key);
    let plain: String =
        last.chars().filter(char::is_ascii_alphanumeric).map(|c| c.to_ascii_lowercase()).collect();
    matches!(plain.as_str(), "tooluseid" | "toolcallid")
}

/// What a server asks the client's model for: the last thing that stands there as the user's. It is the server's word.
pub fn prompt(params: Option<&str>) -> Option<String> {
    #[derive(Deserialize)]
    struct Params {
        messages: Vec<Message>,
    }
    #[derive(Deserialize)]
    struct Message {
        role: String,
        content: Value,
    }
    let params: Params = serde_json::from_str(params?).ok()?;
    let last = params.messages.into_iter().rev().find(|message| message.role == "user")?;
    let blocks = match last.content {
        Value::Array(blocks) => blocks,
        one => vec![one],
    };
    let texts = blocks.iter().filter_map(|block| block["text"].as_str().or_else(|| block.as_str()));
    let text: String = texts.collect::<Vec<_>>().join("\n").chars().take(LONGEST_PROMPT).collect();
    (!text.trim().is_empty()).then_some(text)
}

/// The questions to the client's model in an answer that asks for input: keys and params, as the protocol of 2026-07-28
/// has them.
pub(crate) fn asked_in_result(result: &str) -> Vec<(String, Option<String>)> {
    #[derive(Deserialize)]
    struct Asking {
        #[serde(rename = "inputRequests")]
        requests: BTreeMap<String, Input>,
    }
    #[derive(Deserialize)]
    struct Input {
        method: String,
        params: Option<Box<RawValue>>,
    }
    // Most results ask for nothing, and are not read for it.
    if memchr::memmem::find(result.as_bytes(), b"inputRequests").is_none() {
        return Vec::new();
    }
    let asking = serde_json::from_str::<Asking>(result).map(|asking| asking.requests);
    let requests = asking.unwrap_or_default().into_iter();
    let params = |input: Input| input.params.map(|params| params.get().to_owned());
    requests.filter(|(_, input)| input.method == SAMPLING).map(|(key, input)| (key, params(input))).collect()
}

/// The method by which a server asks the client's model.
pub(crate) const SAMPLING: &str = "sampling/createMessage";

/// Groups calls of one user into intents by time and by questions to the client's model, across sessions.
#[derive(Debug, Clone, Default)]
pub struct Grouping {
    /// The intent that time makes: its id, when something of it last happened, how many calls it has.
    present: Option<(String, i64, i64)>,
    /// Questions that have no answer yet, the newest last.
    open: Vec<Question>,
}

/// A question to the client's model: calls that come before its answer are for that.
#[derive(Debug, Clone)]
struct Question {
    session: String,
    question: String,
    prompt: Option<String>,
    /// The intent of its calls, and how many there are.
    intent: Option<(String, i64)>,
}

/// The intent that a call belongs to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IntentAttribution {
    /// The intent.
    pub intent: String,
    /// Place in the intent's chain, from 1.
    pub order: i64,
    /// How it is known.
    pub source: Source,
    /// What was asked, where that is known.
    pub prompt: Option<String>,
}

impl Grouping {
    /// Goes on with the last intent of the store that time made.
    pub fn resume(intent: String, last: i64, calls: i64) -> Self {
        Self { present: Some((intent, last, calls)), open: Vec::new() }
    }

    /// A server asks the client's model for something.
    pub fn asked(&mut self, session: &str, question: &str, prompt: Option<String>) {
        if self.open.len() < MOST_OPEN {
            let (session, question) = (session.to_owned(), question.to_owned());
            self.open.push(Question { session, question, prompt, intent: None });
        }
    }

    /// It has its answer. The time that took is no pause of the client's.
    pub fn answered(&mut self, session: &str, question: &str, at: i64) {
        let before = self.open.len();
        self.open.retain(|open| open.session != session || open.question != question);
        if let (true, Some((_, last, _))) = (self.open.len() < before, &mut self.present) {
            *last = at.max(*last);
        }
    }

    /// A session ended: nobody answers its questions any more.
    pub fn ended(&mut self, session: &str) {
        self.open.retain(|open| open.session != session);
    }

    /// The intent of a call asked for at `at` without evidence of why. A new one is named by the call that begins it.
    pub fn attribute(&mut self, call: &str, at: i64) -> IntentAttribution {
        if let Some(question) = self.open.iter_mut().rev().find(|open| open.prompt.is_some()) {
            let (intent, calls) = question.intent.get_or_insert_with(|| (call.to_owned(), 0));
            *calls += 1;
            let (source, prompt) = (Source::Sampling, question.prompt.clone());
            return IntentAttribution { intent: intent.clone(), order: *calls, source, prompt };
        }
        let (intent, order) = match &mut self.present {
            Some((intent, last, calls)) if !self.open.is_empty() || at.saturating_sub(*last) <= GAP => {
                *last = at.max(*last);
                *calls += 1;
                (intent.clone(), *calls)
            }
            present => {
                *present = Some((call.to_owned(), at, 1));
                (call.to_owned(), 1)
            }
        };
        IntentAttribution { intent, order, source: Source::Time, prompt: None }
    }
}

#[cfg(test)]
mod tests {
    use super::{Evidence, GAP, Grouping, IntentAttribution, LONGEST_ID, Source, asked_in_result, prompt};

    const SECOND: i64 = 1_000_000;

    fn place(grouping: &mut Grouping, call: &str, at: i64) -> (String, i64, Source, Option<String>) {
        let IntentAttribution { intent, order, source, prompt } = grouping.attribute(call, at);
        (intent, order, source, prompt)
    }

    #[test]
    fn a_pause_of_more_than_five_seconds_begins_an_intent() {
        let mut grouping = Grouping::default();
        let places: Vec<(String, i64)> =
            [("a", 0), ("b", 4_000_000), ("c", 9_000_000), ("d", 14_000_001), ("e", 13_000_000)]
                .into_iter()
                .map(|(call, at)| {
                    let attribution = grouping.attribute(call, at);
                    assert_eq!((attribution.source, attribution.prompt), (Source::Time, None));
                    (attribution.intent, attribution.order)
                })
                .collect();
        let expected = [("a", 1), ("a", 2), ("a", 3), ("d", 1), ("d", 2)];
        assert_eq!(places, expected.map(|(intent, order)| (intent.to_owned(), order)));
    }

    #[test]
    fn times_that_no_clock_says_are_times_all_the_same() {
        let mut grouping = Grouping::default();
        grouping.attribute("a", i64::MIN);
        assert_eq!(place(&mut grouping, "b", i64::MAX).0, "b");
        assert_eq!(place(&mut grouping, "c", i64::MIN).0, "b");
    }

    #[test]
    fn calls_that_come_before_the_answer_to_a_question_are_its_intent() {
        let mut grouping = Grouping::default();
        grouping.attribute("a", 0);
        grouping.asked("s", "q", Some("tidy up".into()));
        let tidy = |order| ("b".to_owned(), order, Source::Sampling, Some("tidy up".to_owned()));
        // A model may think for long, and so may it between two calls.
        assert_eq!(place(&mut grouping, "b", 60 * SECOND), tidy(1));
        assert_eq!(place(&mut grouping, "c", 120 * SECOND), tidy(2));
        grouping.asked("s", "inner", Some("which?".into()));
        assert_eq!(place(&mut grouping, "inner", 121 * SECOND).0, "inner");
        grouping.answered("s", "inner", 122 * SECOND);
        assert_eq!(place(&mut grouping, "d", 123 * SECOND), tidy(3));
        grouping.answered("s", "q", 180 * SECOND);
        // The client goes on with what it did before.
        assert_eq!(place(&mut grouping, "e", 180 * SECOND + GAP), ("a".to_owned(), 2, Source::Time, None));
        assert_eq!(place(&mut grouping, "f", 200 * SECOND), ("f".to_owned(), 1, Source::Time, None));
    }

    #[test]
    fn a_question_that_no_call_comes_of_changes_nothing_but_the_pause() {
        let mut grouping = Grouping::default();
        grouping.attribute("a", 0);
        grouping.asked("s", "q", None);
        assert_eq!(place(&mut grouping, "b", 30 * SECOND).0, "a", "the client works on it");
        grouping.answered("s", "q", 60 * SECOND);
        assert_eq!(place(&mut grouping, "c", 61 * SECOND).0, "a");
        grouping.asked("s", "r", Some("never mind".into()));
        grouping.answered("s", "r", 63 * SECOND);
        assert_eq!(place(&mut grouping, "d", 90 * SECOND), ("d".to_owned(), 1, Source::Time, None));
        // Nobody answers for a session that is gone.
        grouping.asked("gone", "q", Some("x".into()));
        grouping.ended("gone");
        assert_eq!(place(&mut grouping, "e", 120 * SECOND).0, "e");
        // An answer to no question is ignored.
        grouping.answered("s", "q", 140 * SECOND);
        assert_eq!(place(&mut grouping, "f", 141 * SECOND).0, "f");
    }

    #[test]
    fn open_questions_are_bounded() {
        let mut grouping = Grouping::default();
        for n in 0..10_000 {
            grouping.asked("s", &n.to_string(), None);
        }
        assert_eq!(grouping.open.len(), super::MOST_OPEN);
    }

    #[test]
    fn what_meta_says_is_found_and_bounded() {
        let of = |meta: &str| {
            let Evidence { tool_use, turn } = Evidence::of(Some(meta));
            (tool_use, turn)
        };
        let some = |text: &str| Some(text.to_owned());
        assert_eq!(of(r#"{"claudecode/toolUseId":"toolu_1","progressToken":2}"#), (some("toolu_1"), None));
        for key in ["toolUseId", "tool_use_id", "x.y/tool-call-id", "x.toolCallId"] {
            assert_eq!(of(&format!(r#"{{"{key}":"t"}}"#)).0, some("t"), "{key}");
        }
        assert_eq!(of(r#"{"vscode.conversationId":"c","vscode.requestId":"r"}"#), (None, some("r")));
        let long = "x".repeat(LONGEST_ID + 1);
        for nothing in [
            "[]",
            "3",
            r#"{"toolUseId":1}"#,
            r#"{"toolUseId":""}"#,
            r#"{"toolUseIds":"a"}"#,
            &format!(r#"{{"toolUseId":"{long}"}}"#),
        ] {
            assert_eq!(of(nothing), (None, None), "{nothing}");
        }
        assert_eq!(Evidence::of(None), Evidence::default());
    }

    #[test]
    fn the_last_word_of_the_user_is_what_is_asked() {
        let text = |params: &str| prompt(Some(params));
        let messages = r#"{"messages":[{"role":"user","content":{"type":"text","text":"first"}},
            {"role":"user","content":[{"type":"text","text":"tidy"},{"type":"image","data":"x"},{"type":"text","text":"up"}]},
            {"role":"assistant","content":{"type":"text","text":"yes"}}]}"#;
        assert_eq!(text(messages).as_deref(), Some("tidy\nup"));
        for nothing in
            ["{}", "[]", r#"{"messages":[]}"#, r#"{"messages":[{"role":"user","content":{"type":"image"}}]}"#]
        {
            assert_eq!(text(nothing), None, "{nothing}");
        }
        let long = format!(r#"{{"messages":[{{"role":"user","content":"{}"}}]}}"#, "y".repeat(10_000));
        assert_eq!(text(&long).map(|text| text.len()), Some(super::LONGEST_PROMPT));
    }

    #[test]
    fn an_answer_may_ask_the_clients_model() {
        let result = r#"{"resultType":"input_required","inputRequests":{"a":{"method":"elicitation/create","params":{}},
            "b":{"method":"sampling/createMessage","params":{"messages":[]}}}}"#;
        let asked = asked_in_result(result);
        assert_eq!(
            asked.iter().map(|(key, params)| (key.as_str(), params.is_some())).collect::<Vec<_>>(),
            [("b", true)]
        );
        for nothing in [r#"{"content":[]}"#, r#"{"inputRequests":3}"#, r#"{"text":"inputRequests"}"#] {
            assert!(asked_in_result(nothing).is_empty(), "{nothing}");
        }
    }
}
