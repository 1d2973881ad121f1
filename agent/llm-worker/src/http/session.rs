//! Which session a client says that its request belongs to: data for the record, and what tells conversations
//! apart that are alike otherwise; nothing is allowed by it. Pure.

use crate::redact::Redactor;
use axum::http::HeaderMap;
use ringfence_policy::agents::registry::ProviderKind;
use ringfence_wire::trace::MAX_SESSION;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use std::borrow::Cow;

/// Headers with the id of a session, those first that say most clearly whose it is.
const HEADERS: [&str; 10] = [
    "x-claude-code-session-id",
    "x-opencode-session",
    "x-gemini-session-id",
    "x-gemini-cli-session-id",
    "x-codex-session-id",
    "session_id",
    "session-id",
    "x-session-id",
    "conversation_id",
    "conversation-id",
];
/// Where Anthropic's clients have it in the body.
const USER: &str = "metadata.user_id";
/// What stands before a session's id in such a user's.
const MARK: &str = "_session_";
/// Most bytes of an id.
const LONGEST: usize = MAX_SESSION;

/// A session, as the client named it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct ClientSession {
    /// Visible ASCII, at most [`LONGEST`] bytes, without credentials.
    pub(super) id: String,
    /// The header or field that it was in.
    pub(super) from: &'static str,
}

/// The first that a request names. An id of another form, or with a credential in it, is none.
pub(super) fn named(
    kind: ProviderKind,
    headers: &HeaderMap,
    metadata: Option<&RawValue>,
    redactor: &Redactor,
) -> Option<ClientSession> {
    let in_headers = HEADERS.iter().filter_map(|from| {
        let id = headers.get(*from)?.to_str().ok()?.to_owned();
        Some(ClientSession { id, from })
    });
    let of_user = || {
        let id = of_user(metadata.filter(|_| kind == ProviderKind::Anthropic)?)?;
        Some(ClientSession { id, from: USER })
    };
    let fits = |session: &ClientSession| {
        let id = &session.id;
        let is_shown = (1..=LONGEST).contains(&id.len()) && id.bytes().all(|byte| byte.is_ascii_graphic());
        is_shown && matches!(redactor.text(id), Cow::Borrowed(_))
    };
    in_headers.chain(std::iter::once_with(of_user).flatten()).find(fits)
}

/// The session's part of a user's id, in the forms that Claude Code has for it: `user_..._session_ID`, or JSON with a
/// `session_id`. The rest says who the user is, and is not recorded.
fn of_user(metadata: &RawValue) -> Option<String> {
    #[derive(Deserialize)]
    struct Metadata {
        user_id: String,
    }
    #[derive(Deserialize)]
    struct User {
        session_id: String,
    }
    let Metadata { user_id } = serde_json::from_str(metadata.get()).ok()?;
    if user_id.starts_with('{') {
        return serde_json::from_str(&user_id).ok().map(|User { session_id }| session_id);
    }
    user_id.rsplit_once(MARK).map(|(_, id)| id.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use ProviderKind::{Anthropic, OpenAi};
    use axum::http::{HeaderName, HeaderValue};
    use proptest::prelude::*;
    use ringfence_credentials::Secret;
    use serde_json::{Value, json, value::to_raw_value};

    const KEY: &str = "sk-secret-0123456789";

    fn of(kind: ProviderKind, lines: &[(&str, &[u8])], user: &Value) -> Option<(String, &'static str)> {
        let line = |(name, value): &(&str, &[u8])| {
            (HeaderName::from_bytes(name.as_bytes()).unwrap(), HeaderValue::from_bytes(value).unwrap())
        };
        let headers: HeaderMap = lines.iter().map(line).collect();
        let metadata = to_raw_value(&json!({ "user_id": user })).unwrap();
        let redactor = Redactor::new([&Secret::from(KEY.to_owned())]);
        named(kind, &headers, Some(&metadata), &redactor).map(|session| (session.id, session.from))
    }

    #[test]
    fn each_client_s_header_names_its_session() {
        for header in HEADERS {
            let got = of(OpenAi, &[(header, b"0199-ab")], &json!(null));
            assert_eq!(got, Some(("0199-ab".to_owned(), header)));
        }
        let both: [(&str, &[u8]); 2] = [("conversation_id", b"c"), ("session_id", b"s")];
        assert_eq!(of(OpenAi, &both, &json!(null)), Some(("s".to_owned(), "session_id")));
        assert_eq!(of(OpenAi, &[("x-request-id", b"r")], &json!(null)), None);
    }

    #[test]
    fn a_user_s_id_gives_its_session_and_nothing_else() {
        let id = "0d3b8f1c-2f6e";
        let json = json!({ "device_id": "d", "account_uuid": "a", "session_id": id }).to_string();
        for user in
            [format!("user_abc_account_def_session_{id}"), format!("user__session_x_session_{id}"), json]
        {
            assert_eq!(of(Anthropic, &[], &json!(user)), Some((id.to_owned(), "metadata.user_id")), "{user}");
            assert_eq!(of(OpenAi, &[], &json!(user)), None);
        }
        let header: [(&str, &[u8]); 1] = [("x-claude-code-session-id", b"h")];
        let got = of(Anthropic, &header, &json!(format!("u_session_{id}")));
        assert_eq!(got, Some(("h".to_owned(), HEADERS[0])));
        for none in
            [json!("user_abc"), json!("{\"session_id\":7}"), json!("{"), json!(7), json!("u_session_")]
        {
            assert_eq!(of(Anthropic, &[], &none), None, "{none}");
        }
    }

    #[test]
    fn an_id_is_short_and_hides_nothing() {
        let long = [b'x'; LONGEST + 1];
        let secret = format!("a-{KEY}");
        for odd in [&b""[..], &long, b"a b", b"a\tb", b"a\xc3\xa9", secret.as_bytes()] {
            assert_eq!(of(OpenAi, &[("session_id", odd)], &json!(null)), None, "{odd:?}");
            let next: [(&str, &[u8]); 2] = [("session_id", odd), ("x-session-id", b"fine")];
            assert_eq!(of(OpenAi, &next, &json!(null)).unwrap().0, "fine");
        }
        assert_eq!(of(OpenAi, &[("session_id", &long[1..])], &json!(null)).unwrap().0.len(), LONGEST);
        for odd in ["a\u{1b}[31m", "\u{202e}x", "x\ny"] {
            assert_eq!(of(Anthropic, &[], &json!(format!("u_session_{odd}"))), None, "{odd:?}");
        }
    }

    proptest! {
        #[test]
        fn whatever_a_user_is_called_an_id_is_bounded(user in "(\\{\"session_id\":\")?.{0,20}(_session_)?.{0,160}(\"\\})?") {
            if let Some((id, _)) = of(Anthropic, &[], &json!(user)) {
                prop_assert!((1..=LONGEST).contains(&id.len()) && id.bytes().all(|byte| byte.is_ascii_graphic()));
            }
        }
    }
}
