//! An answer on its way to the client: event by event, without the agent's credentials, read along for the record. Pure.

use super::begins::Begins;
use crate::llm::{
    message::{Block, ToolCall},
    provider::{
        Decoder, Piece, Usage,
        sse::{Event, Events},
        usage,
    },
    redact::Redactor,
    registry::ProviderKind,
};
use serde_json::{Value, value::RawValue};
use std::{borrow::Cow, collections::VecDeque};

/// Most bytes of an event.
const MAX_EVENT: usize = 16 << 20;

/// Most bytes of a stream that belong to no event.
const MAX_PLAIN: usize = 1 << 20;

/// What an answer came to, as far as it was understood.
#[derive(Debug, Default)]
pub(super) struct Outcome {
    pub(super) stop_reason: Option<String>,
    pub(super) content: Vec<Block>,
    pub(super) tool_calls: Vec<ToolCall>,
    pub(super) usage: Option<Usage>,
    /// Bytes of what the model said.
    pub(super) said: usize,
    /// Why it is no whole answer.
    pub(super) error: Option<String>,
    /// Why the client is not to have it.
    pub(super) refused: Option<String>,
}

/// A stream of events.
pub(super) struct Relay {
    kind: ProviderKind,
    hides_usage: bool,
    decoder: Option<Decoder>,
    usage: Option<Usage>,
    said: usize,
    error: Option<String>,
    /// The tool calls that a client may find in it.
    begins: Begins,
    /// What belongs to no event: a whole answer, perhaps, which says of itself that it streams.
    plain: Vec<u8>,
    /// Bytes that are no whole event yet.
    pending: Vec<u8>,
    /// How many of them are known to hold no end of one.
    scanned: usize,
}

impl Relay {
    pub(super) fn new(kind: ProviderKind, hides_usage: bool) -> Self {
        let decoder = Some(Decoder::new(kind));
        Self {
            kind,
            hides_usage,
            decoder,
            usage: None,
            said: 0,
            error: None,
            begins: Begins::default(),
            plain: Vec::new(),
            pending: Vec::new(),
            scanned: 0,
        }
    }

    /// How many tool calls began since this was asked last: a client may run one before the answer is whole.
    pub(super) fn started(&mut self) -> usize {
        self.begins.fresh()
    }

    /// Takes bytes in; gives those of the events that are whole.
    ///
    /// # Errors
    /// An event without end, or that parsers may read differently; too many tool calls.
    pub(super) fn feed(&mut self, bytes: &[u8], redactor: &Redactor) -> Result<Vec<u8>, String> {
        self.pending.extend_from_slice(bytes);
        let (mut out, mut from) = (Vec::new(), 0);
        let pending = std::mem::take(&mut self.pending);
        while let Some(end) = end_of_event(&pending[from..], self.scanned) {
            self.event(&pending[from..from + end], true, redactor, &mut out)?;
            (from, self.scanned) = (from + end, 0);
        }
        self.pending = pending[from..].to_vec();
        // The end may have begun already: it has at most three bytes.
        self.scanned = self.pending.len().saturating_sub(3);
        if self.pending.len() > MAX_EVENT {
            return Err(format!("the provider sent an event of more than {MAX_EVENT} bytes"));
        }
        Ok(out)
    }

    /// What is left, and what the answer came to.
    pub(super) fn finish(mut self, redactor: &Redactor) -> (Vec<u8>, Outcome) {
        let mut out = Vec::new();
        let mut refused = None;
        let rest = std::mem::take(&mut self.pending);
        if !rest.is_empty()
            && let Err(error) = self.event(&rest, false, redactor, &mut out)
        {
            refused = Some(error);
        }
        let mut outcome =
            Outcome { usage: self.usage, said: self.said, error: self.error, refused, ..Outcome::default() };
        outcome.usage = self.decoder.as_ref().and_then(Decoder::told).or(outcome.usage);
        match self.decoder.map(|decoder| (decoder.is_done(), decoder.finish())) {
            Some((true, Ok(answer))) => {
                outcome.stop_reason = Some(answer.stop_reason);
                outcome.content = answer.content;
            }
            Some((true, Err(error))) => outcome.error = outcome.error.or(Some(error.message)),
            Some((false, _)) => {
                let cut = "the provider's stream ended before its final event";
                outcome.error = outcome.error.or_else(|| Some(cut.to_owned()));
            }
            None => {}
        }
        // No piece of it belongs to what came as events.
        let mut plain = Begins::default();
        let read = match serde_json::from_slice(&self.plain) {
            Ok(data) => plain.read(self.kind, &data),
            Err(_) if looks_like_json(&self.plain) => Err(AMBIGUOUS.to_owned()),
            Err(_) => Ok(()),
        };
        let read = read.and_then(|()| plain.complete()).and_then(|()| self.begins.complete());
        outcome.refused = outcome.refused.or(read.err());
        outcome.tool_calls = self.begins.finish();
        outcome.tool_calls.extend(plain.finish());
        (out, outcome)
    }

    /// `ended`: it has its end, so that a client acts on it.
    fn event(
        &mut self,
        bytes: &[u8],
        ended: bool,
        redactor: &Redactor,
        out: &mut Vec<u8>,
    ) -> Result<(), String> {
        let mut events = Vec::new();
        // The parser wants to see the end.
        let whole = [bytes, b"\n\n"].concat();
        if let Err(error) = Events::default().feed(&whole, |event| events.push(event)) {
            let error = format!("the provider sent {error}");
            if ended {
                return Err(error);
            }
            self.error.get_or_insert(error);
        }
        // A comment stands in for nothing, and keeps a connection open.
        if events.is_empty() && !bytes.trim_ascii().starts_with(b":") {
            self.plain.extend_from_slice(bytes);
            if self.plain.len() > MAX_PLAIN {
                return Err(format!(
                    "the provider sent more than {MAX_PLAIN} bytes of a stream that are no event"
                ));
            }
        }
        for event in &events {
            if self.read(event, ended)? {
                return Ok(());
            }
        }
        let text = String::from_utf8_lossy(bytes);
        // An escape could hide a credential from a search of the bytes.
        let cleaned = events
            .iter()
            .any(|event| event.data.contains('\\'))
            .then(|| events.iter().map(|event| cleaned(event, redactor)).collect::<Option<Vec<String>>>());
        match cleaned.flatten() {
            Some(cleaned) => out.extend(cleaned.concat().into_bytes()),
            None => match redactor.text(&text) {
                Cow::Borrowed(_) => out.extend_from_slice(bytes),
                Cow::Owned(clean) => out.extend(clean.into_bytes()),
            },
        }
        Ok(())
    }

    /// Reads an event along. True: the client is not to see it.
    ///
    /// # Errors
    /// It has more tool calls than are relayed, or is no JSON to us where it may be some to a client.
    fn read(&mut self, event: &Event, ended: bool) -> Result<bool, String> {
        if let Some(decoder) = &mut self.decoder
            && !decoder.is_done()
        {
            // What it says piece by piece goes to nobody: the bytes do.
            let mut pieces = VecDeque::new();
            if let Err(error) = decoder.event(event, &mut pieces) {
                self.error.get_or_insert(error.message);
                self.decoder = None;
            }
            self.said += pieces.iter().map(Piece::said).sum::<usize>();
        }
        if event.data.trim() == "[DONE]" {
            return self.begins.over().map(|()| false);
        }
        let data = match serde_json::from_str::<Value>(&event.data) {
            Ok(data) => data,
            Err(_) if ended && looks_like_json(event.data.as_bytes()) => return Err(AMBIGUOUS.to_owned()),
            Err(_) => return Ok(false),
        };
        self.begins.event(self.kind, &event.name, &data)?;
        if self.kind != ProviderKind::OpenAi {
            return Ok(false);
        }
        self.usage = data.get("usage").and_then(|told| usage(self.kind, told)).or(self.usage);
        let is_empty = data.get("choices").and_then(Value::as_array).is_some_and(Vec::is_empty);
        Ok(self.hides_usage && is_empty && data.get("usage").is_some_and(Value::is_object))
    }
}

/// Why what cannot be read is not relayed: a client with another parser would find a tool call in it that is on no record.
const AMBIGUOUS: &str = "the provider sent JSON that parsers read differently (a lone surrogate, a number out of range, NaN, too deep)";

/// Whether a client's parser, which may forgive what ours does not, could find an object in it. `[DONE]` ends a stream.
fn looks_like_json(bytes: &[u8]) -> bool {
    let bytes = bytes.trim_ascii();
    matches!(bytes.first(), Some(b'{' | b'[')) && bytes != b"[DONE]"
}

/// The event anew, if a credential was in it.
fn cleaned(event: &Event, redactor: &Redactor) -> Option<String> {
    let raw = RawValue::from_string(event.data.clone()).ok()?;
    let clean = redactor.json(raw);
    if clean.get() == event.data {
        return None;
    }
    let name = if event.name.is_empty() { String::new() } else { format!("event: {}\n", event.name) };
    Some(format!("{name}data: {}\n\n", clean.get()))
}

/// Where the first event ends: behind its empty line. Looks from `from` on.
fn end_of_event(bytes: &[u8], from: usize) -> Option<usize> {
    let mut at = from;
    while let Some(found) = memchr::memchr(b'\n', bytes.get(at..)?) {
        let line_end = at + found;
        match &bytes[line_end + 1..] {
            [b'\n', ..] => return Some(line_end + 2),
            [b'\r', b'\n', ..] => return Some(line_end + 3),
            _ => at = line_end + 1,
        }
    }
    None
}

/// A whole answer without credentials, and what it came to.
pub(super) fn whole(kind: ProviderKind, body: &[u8], redactor: &Redactor) -> (Vec<u8>, Outcome) {
    let text = String::from_utf8_lossy(body).into_owned();
    let Ok(raw) = RawValue::from_string(text.clone()) else {
        let clean = match redactor.text(&text) {
            Cow::Borrowed(_) => body.to_vec(),
            Cow::Owned(clean) => clean.into_bytes(),
        };
        // A client that asked for a stream reads one, whatever the answer says of itself.
        let mut begins = Begins::default();
        let mut refused = looks_like_json(body).then(|| AMBIGUOUS.to_owned());
        let _ = Events::default().feed(&[body, b"\n\n"].concat(), |event| {
            let read = match serde_json::from_str(&event.data) {
                Ok(data) => begins.event(kind, &event.name, &data),
                Err(_) if event.data.trim() == "[DONE]" => begins.over(),
                Err(_) if looks_like_json(event.data.as_bytes()) => Err(AMBIGUOUS.to_owned()),
                Err(_) => Ok(()),
            };
            if let Err(why) = read {
                refused.get_or_insert(why);
            }
        });
        refused = refused.or(begins.complete().err());
        return (clean, Outcome { tool_calls: begins.finish(), refused, ..Outcome::default() });
    };
    let clean = redactor.json(raw);
    // What is JSON by its form alone.
    let read = serde_json::from_str::<Value>(clean.get());
    let ambiguous = read.is_err().then(|| AMBIGUOUS.to_owned());
    let value = read.unwrap_or_default();
    let said = match kind {
        ProviderKind::Anthropic => value.get("content").cloned(),
        ProviderKind::OpenAi => {
            value.pointer("/choices/0/message").map(|message| Value::Array(vec![message.clone()]))
        }
    };
    let mut begins = Begins::default();
    let refused = begins.read(kind, &value).and_then(|()| begins.complete()).err().or(ambiguous);
    let reason = value.get("stop_reason").or(value.pointer("/choices/0/finish_reason"));
    let blocks = said.as_ref().and_then(Value::as_array).into_iter().flatten();
    let outcome = Outcome {
        stop_reason: reason.and_then(Value::as_str).map(str::to_owned),
        content: blocks.filter_map(|block| block_of(kind, block)).collect(),
        usage: value.get("usage").and_then(|told| usage(kind, told)),
        error: value.pointer("/error/message").and_then(Value::as_str).map(str::to_owned),
        refused,
        tool_calls: begins.finish(),
        said: body.len(),
    };
    (clean.get().as_bytes().to_vec(), outcome)
}

/// Tool calls among them, as the provider wrote them.
fn block_of(kind: ProviderKind, block: &Value) -> Option<Block> {
    let mut block = block.clone();
    if kind == ProviderKind::OpenAi {
        block["type"] = Value::from("message");
    }
    serde_json::from_value(block).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::llm::secret::Secret;
    use proptest::prelude::*;

    const KEY: &str = "sk-secret-0123456789";

    fn redactor() -> Redactor {
        Redactor::new([&Secret::from(KEY.to_owned())])
    }

    fn chunk(json: &str) -> String {
        format!("data: {json}\n\n")
    }

    fn openai() -> String {
        [
            chunk(r#"{"choices":[{"index":0,"delta":{"content":"h\u00e9"}}]}"#),
            ": a comment\n\n".to_owned(),
            chunk(r#"{"choices":[{"index":0,"delta":{},"finish_reason":"stop"}],"usage":null}"#),
            chunk(r#"{"choices":[],"usage":{"prompt_tokens":9,"completion_tokens":2}}"#),
            "data: [DONE]\n\n".to_owned(),
        ]
        .concat()
    }

    fn relayed(text: &str, hides: bool, cuts: &[usize]) -> (String, Outcome) {
        let mut relay = Relay::new(ProviderKind::OpenAi, hides);
        let (mut out, mut from) = (Vec::new(), 0);
        for cut in cuts.iter().copied().filter(|c| *c <= text.len()).chain([text.len()]) {
            if cut >= from {
                out.extend(relay.feed(&text.as_bytes()[from..cut], &redactor()).unwrap());
                from = cut;
            }
        }
        let (rest, outcome) = relay.finish(&redactor());
        out.extend(rest);
        (String::from_utf8(out).unwrap(), outcome)
    }

    #[test]
    fn usage_that_only_we_asked_for_is_read_and_hidden() {
        let (out, outcome) = relayed(&openai(), true, &[]);
        assert_eq!(
            out,
            openai()
                .replace(&chunk(r#"{"choices":[],"usage":{"prompt_tokens":9,"completion_tokens":2}}"#), "")
        );
        assert_eq!(outcome.usage.unwrap().input_tokens, 9);
        assert_eq!((outcome.stop_reason.as_deref(), outcome.error), (Some("end_turn"), None));
        assert_eq!(relayed(&openai(), false, &[]).0, openai());
    }

    #[test]
    fn a_credential_is_taken_out_however_it_is_escaped() {
        for hidden in [KEY.to_owned(), KEY.replace("sk-", r"\u0073k-")] {
            let text = chunk(&format!(r#"{{"choices":[{{"delta":{{"content":"a {hidden} b"}}}}]}}"#));
            let (out, _) = relayed(&text, false, &[20]);
            assert!(
                out.contains("[redacted]") && !out.contains("0123456789") && out.ends_with("\n\n"),
                "{out}"
            );
        }
        let body = format!(r#"{{"usage":{{"prompt_tokens":3}},"choices":[],"x":"{KEY}"}}"#);
        let (out, outcome) = whole(ProviderKind::OpenAi, body.as_bytes(), &redactor());
        assert!(!String::from_utf8(out).unwrap().contains(KEY));
        assert_eq!(outcome.usage.unwrap().input_tokens, 3);
    }

    #[test]
    fn calls_are_found_whatever_an_answer_says_of_its_form() {
        let body = r#"{"choices":[{"message":{"tool_calls":[{"id":"a","function":{"name":"t","arguments":"{}"}}]}}]}"#;
        let names = |outcome: &Outcome| outcome.tool_calls.iter().map(|c| c.name.clone()).collect::<Vec<_>>();
        // A whole answer where a stream is said to be; with empty lines, as people lay out JSON; and with pings between.
        for text in
            [body.to_owned(), body.replace(",\"function", ",\n\n\"function"), format!(": ping\n\n{body}")]
        {
            let (out, outcome) = relayed(&text, false, &[7, 60]);
            assert_eq!((out, names(&outcome)), (text, vec!["t".to_owned()]));
        }
        // A stream where a whole answer is said to be.
        let text = chunk(&body.replace("message", "delta")) + "data: [DONE]\n\n";
        let (out, outcome) = whole(ProviderKind::OpenAi, text.as_bytes(), &redactor());
        assert_eq!((String::from_utf8(out).unwrap(), names(&outcome)), (text, vec!["t".to_owned()]));
        // What does not end is not kept.
        let mut relay = Relay::new(ProviderKind::OpenAi, false);
        let lines = "x\n\n".repeat(100_000);
        assert!((0..20).any(|_| relay.feed(lines.as_bytes(), &redactor()).is_err()));
    }

    #[test]
    fn what_another_parser_would_find_a_call_in_is_not_relayed() {
        let call = r#"{"choices":[{"delta":{"tool_calls":[{"index":0,"id":"a","function":{"name":"t","arguments":""}}]}}],"x":X}"#;
        let deep = format!("{}{}", "[".repeat(300), "]".repeat(300));
        for odd in [r#""\ud800""#, "1e999", "NaN", deep.as_str()] {
            let text = call.replace('X', odd);
            let mut relay = Relay::new(ProviderKind::OpenAi, false);
            let error = relay.feed(chunk(&text).as_bytes(), &redactor()).unwrap_err();
            assert!(error.contains("parsers"), "{odd}: {error}");
            let (_, outcome) = whole(ProviderKind::OpenAi, text.as_bytes(), &redactor());
            assert!(outcome.refused.is_some(), "{odd}, whole");
            let (_, outcome) = whole(ProviderKind::OpenAi, chunk(&text).as_bytes(), &redactor());
            assert!(outcome.refused.is_some(), "{odd}, a stream that is called an answer");
        }
        let mut relay = Relay::new(ProviderKind::OpenAi, false);
        let text = [chunk(&call.replace('X', "1")).as_bytes(), b"data: \xff{}\n\n"].concat();
        assert!(relay.feed(&text, &redactor()).is_err(), "bytes that are no text");
        assert_eq!(relayed(&chunk(&call.replace('X', "1")), false, &[]).1.refused, None, "the control");
    }

    #[test]
    fn nothing_is_relayed_that_clients_find_different_calls_in() {
        let input =
            chunk(r#"{"choices":[{"delta":{"tool_calls":[{"index":0,"function":{"arguments":"{}"}}]}}]}"#);
        let end = "data: [DONE]\n\n";
        let mut relay = Relay::new(ProviderKind::OpenAi, false);
        assert!(relay.feed(input.as_bytes(), &redactor()).is_ok(), "its name may come later");
        let error = relay.feed(end.as_bytes(), &redactor()).unwrap_err();
        assert!(error.contains("without a name"), "{error}");
        assert!(relayed(&input, false, &[]).1.refused.is_some(), "at the end of the stream");
        assert!(
            whole(ProviderKind::OpenAi, (input.clone() + end).as_bytes(), &redactor()).1.refused.is_some()
        );
        // What is no event is no piece of what is one.
        let name = input.replace("\"arguments\":\"{}\"", "\"name\":\"t\"");
        assert!(
            relayed(&(name.clone() + input.trim_start_matches("data: ")), false, &[]).1.refused.is_some()
        );
        assert_eq!(relayed(&(name + &input + end), false, &[]).1.refused, None, "the control");
        let block = r#"{"type":"content_block_start","index":0,"content_block":{"type":"tool_use","id":"a","name":"t"}}"#;
        for (name, goes) in [("content_block_start", true), ("ping", false)] {
            let mut relay = Relay::new(ProviderKind::Anthropic, false);
            let event = format!("event: {name}\n{}", chunk(block));
            assert_eq!(relay.feed(event.as_bytes(), &redactor()).is_ok(), goes, "{name}");
        }
    }

    #[test]
    fn a_broken_stream_goes_through_and_is_on_record_as_broken() {
        let text = chunk(r#"{"choices":[{"index":0,"delta":{"content":"half"}}]}"#) + "data: {\"cho";
        let (out, outcome) = relayed(&text, true, &[]);
        assert_eq!(out, text);
        assert!(outcome.error.is_some());
    }

    #[test]
    fn an_event_without_end_is_refused() {
        let mut relay = Relay::new(ProviderKind::OpenAi, false);
        let piece = vec![b'x'; 1 << 20];
        assert!((0..20).any(|_| relay.feed(&piece, &redactor()).is_err()));
    }

    proptest! {
        #[test]
        fn cuts_change_nothing(mut cuts in proptest::collection::vec(0usize..300, 0..12), crlf: bool) {
            cuts.sort_unstable();
            let text = if crlf { openai().replace('\n', "\r\n") } else { openai() };
            prop_assert_eq!(relayed(&text, true, &cuts).0, relayed(&text, true, &[]).0);
        }

        #[test]
        fn no_bytes_panic(bytes: Vec<u8>) {
            let mut relay = Relay::new(ProviderKind::Anthropic, true);
            let _ = relay.feed(&bytes, &redactor());
            relay.finish(&redactor());
            whole(ProviderKind::Anthropic, &bytes, &redactor());
        }
    }
}
