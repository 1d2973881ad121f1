//! What has to be known of a message to carry it from one transport to the other. Pure; the bytes stay what they are.

use ringfence_session::line::{Id, answered_id};
use serde::Deserialize;
use serde_json::value::RawValue;
use std::borrow::Cow;

/// Longest protocol version that is believed to be one, in bytes.
const MAX_VERSION: usize = 64;
/// Longest session id that is taken, in bytes.
pub const MAX_SESSION: usize = 1024;

/// What is read of a message.
#[derive(Debug, Deserialize)]
pub struct Message<'a> {
    #[serde(borrow, default)]
    id: Option<&'a RawValue>,
    /// None: a response.
    #[serde(borrow, default)]
    pub method: Option<Cow<'a, str>>,
    /// As they stand.
    #[serde(borrow, default)]
    pub params: Option<&'a RawValue>,
    #[serde(borrow, default)]
    result: Option<&'a RawValue>,
    #[serde(borrow, default)]
    error: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct Code {
    code: i64,
}

#[derive(Deserialize)]
struct Params<'a> {
    #[serde(rename = "_meta", borrow, default)]
    meta: Option<Meta<'a>>,
    #[serde(rename = "requestId", borrow, default)]
    request: Option<&'a RawValue>,
    #[serde(rename = "progressToken", borrow, default)]
    progress: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct Meta<'a> {
    #[serde(rename = "io.modelcontextprotocol/protocolVersion", borrow, default)]
    version: Option<Cow<'a, str>>,
    #[serde(rename = "io.modelcontextprotocol/subscriptionId", borrow, default)]
    subscription: Option<&'a RawValue>,
    #[serde(rename = "io.modelcontextprotocol/clientInfo", borrow, default)]
    client: Option<&'a RawValue>,
    #[serde(rename = "io.modelcontextprotocol/clientCapabilities", borrow, default)]
    capabilities: Option<&'a RawValue>,
    #[serde(rename = "progressToken", borrow, default)]
    progress: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct Initialized<'a> {
    #[serde(rename = "protocolVersion", borrow)]
    version: Cow<'a, str>,
}

impl<'a> Message<'a> {
    /// The messages of a line: one, or those of a batch; none where it is not JSON.
    pub fn all(line: &'a [u8]) -> Vec<Self> {
        let line = line.trim_ascii();
        if line.starts_with(b"[") {
            return serde_json::from_slice(line).unwrap_or_default();
        }
        serde_json::from_slice(line).into_iter().collect()
    }

    /// The id of a request.
    pub fn request_id(&self) -> Option<Id> {
        self.method.as_ref()?;
        self.id.and_then(|id| Id::parse(id.get())).filter(|id| *id != Id::Null)
    }

    /// Whether it is an answer to a request.
    pub fn is_response(&self) -> bool {
        self.method.is_none()
    }

    fn params(&self) -> Option<Params<'a>> {
        serde_json::from_str(self.params?.get()).ok()
    }

    /// The token under which a request wants to hear how far it is.
    pub fn progress_token(&self) -> Option<Id> {
        Id::parse(self.params()?.meta?.progress?.get())
    }

    /// The token of the request that it tells the progress of.
    pub fn progress(&self) -> Option<Id> {
        let is_progress = self.method.as_deref() == Some("notifications/progress");
        Id::parse(self.params().filter(|_| is_progress)?.progress?.get())
    }

    /// The subscription that it belongs to.
    pub fn subscription(&self) -> Option<Id> {
        Id::parse(self.params()?.meta?.subscription?.get())
    }

    /// Who the client says to be, as it stands: in the protocol without sessions.
    pub fn client(&self) -> Option<&'a RawValue> {
        self.params()?.meta?.client
    }

    /// Whether it says what the client can do, as every request of the protocol without sessions does.
    pub fn has_capabilities(&self) -> bool {
        self.params().and_then(|params| params.meta?.capabilities).is_some()
    }

    /// The protocol version that it says to be of, where it is fit for a header.
    pub fn version(&self) -> Option<String> {
        self.params()?.meta?.version.filter(|version| is_version(version)).map(Cow::into_owned)
    }

    /// The request that it calls off.
    pub fn cancels(&self) -> Option<Id> {
        if self.method.as_deref() != Some("notifications/cancelled") {
            return None;
        }
        Id::parse(self.params()?.request?.get())
    }

    /// Of an answer to `initialize`: the version that both sides speak from now on.
    pub fn agreed_version(&self) -> Option<String> {
        let result: Initialized<'_> = serde_json::from_str(self.result?.get()).ok()?;
        Some(result.version).filter(|version| is_version(version)).map(Cow::into_owned)
    }

    /// Of an answer: its result, as it stands.
    pub fn result(&self) -> Option<&'a RawValue> {
        self.result
    }

    /// Of an answer that is an error: its code.
    pub fn error_code(&self) -> Option<i64> {
        serde_json::from_str::<Code>(self.error?.get()).ok().map(|error| error.code)
    }

    /// Of an answer: what it answers.
    pub fn answers(&self) -> Option<Id> {
        self.id.filter(|_| self.is_response()).and_then(|id| Id::parse(id.get()))
    }
}

/// Which requests a line of the server's answers.
pub fn answered(line: &[u8]) -> Vec<Id> {
    if line.trim_ascii_start().starts_with(b"[") {
        return Message::all(line).iter().filter_map(Message::answers).collect();
    }
    answered_id(line).into_iter().collect()
}

fn is_version(text: &str) -> bool {
    (1..=MAX_VERSION).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_graphic())
}

/// A message as one line, with its end: line breaks between its parts become spaces, since a line has none. `None`: one is within
/// a string, which no JSON has, or what came is nothing at all.
pub fn one_line(mut message: Vec<u8>) -> Option<Vec<u8>> {
    if message.trim_ascii().is_empty() {
        return None;
    }
    // Nearly every message has none.
    if memchr::memchr2(b'\n', b'\r', &message).is_some() {
        let (mut in_string, mut escaped) = (false, false);
        for byte in &mut message {
            match *byte {
                b'\n' | b'\r' if in_string => return None,
                b'\n' | b'\r' => *byte = b' ',
                _ if escaped => escaped = false,
                b'\\' if in_string => escaped = true,
                b'"' => in_string = !in_string,
                _ => {}
            }
        }
    }
    // For one byte, a vector would double.
    message.reserve_exact(1);
    message.push(b'\n');
    Some(message)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn breaks_between_parts_become_spaces_and_nothing_else_changes() {
        let line =
            |text: &str| one_line(text.as_bytes().to_vec()).map(|line| String::from_utf8(line).unwrap());
        assert_eq!(line("{\"a\":1}").unwrap(), "{\"a\":1}\n");
        assert_eq!(line("{\r\n  \"a\\\"\\\\\": \"b\\n\"\n}\n").unwrap(), "{    \"a\\\"\\\\\": \"b\\n\" } \n");
        for none in ["", " \n", "{\"a\n\":1}", "{\"a\":\"\\\n\"}"] {
            assert_eq!(line(none), None, "{none:?}");
        }
    }

    #[test]
    fn what_a_message_is() {
        let line = br#"{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"a","_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28"}}}"#;
        let all = Message::all(line);
        assert_eq!(
            (all.len(), all[0].request_id(), all[0].version().as_deref()),
            (1, Id::parse("7"), Some("2026-07-28"))
        );
        let note = br#"{"method":"notifications/cancelled","params":{"requestId":"a"}}"#;
        assert_eq!(Message::all(note)[0].cancels(), Some(Id::String("a".into())));
        assert_eq!(Message::all(note)[0].request_id(), None);
        let batch = br#" [{"id":1,"method":"a"},{"id":2,"result":{}},{"method":"b"}]"#;
        let all = Message::all(batch);
        assert_eq!(all.iter().filter_map(Message::request_id).count(), 1);
        assert_eq!(answered(batch), [Id::parse("2").unwrap()]);
        assert_eq!(answered(br#"{"id":"x","error":{}}"#), [Id::String("x".into())]);
        assert_eq!(answered(br#"{"id":"x","method":"ping"}"#), []);
        assert!(Message::all(b"nonsense").is_empty());
        let odd = br#"{"id":1,"result":{"protocolVersion":"a\r\nb: c"}}"#;
        assert_eq!(Message::all(odd)[0].agreed_version(), None, "nothing that is no header");
    }

    proptest! {
        #[test]
        fn no_bytes_panic(bytes: Vec<u8>) {
            for message in Message::all(&bytes) {
                let _ = (message.request_id(), message.version(), message.cancels(), message.agreed_version());
            }
            let _ = answered(&bytes);
            if let Some(line) = one_line(bytes) {
                prop_assert_eq!(line.iter().filter(|byte| matches!(byte, b'\n' | b'\r')).count(), 1);
            }
        }
    }
}
