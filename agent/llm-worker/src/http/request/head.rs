//! What of the head of a client's request goes on to the provider. Pure.

use crate::provider::protocol;
use axum::http::{HeaderMap, HeaderName, HeaderValue};
use ringfence_policy::agents::config::Llm;

/// Most header lines that go on.
const MOST: usize = 32;
/// Most bytes of those together.
const LONGEST: usize = 8 << 10;
/// Words in the name of a header that carries a credential: that is the profile's to send.
const CREDENTIALS: [&str; 10] = [
    "key",
    "apikey",
    "token",
    "auth",
    "authorization",
    "secret",
    "cookie",
    "credential",
    "credentials",
    "password",
];
/// Features that a request uses before they are everyone's.
pub(crate) const BETA: &str = "anthropic-beta";
/// The form of requests and answers.
const VERSION: &str = "anthropic-version";

/// What goes on of a client's head.
#[derive(Debug, Default, Clone)]
pub struct PassedHead {
    /// Its headers.
    pub headers: HeaderMap,
    /// Its query.
    pub query: Option<&'static str>,
}

/// Picks what goes on: the headers that are the provider's own by their prefix or name, and the one query that it knows.
///
/// # Errors
/// There are too many, or one hides something: what is left out of what a body is made for makes the provider refuse it.
pub fn passed_on(llm: &Llm, headers: &HeaderMap, query: Option<&str>) -> Result<PassedHead, String> {
    let protocol = protocol(llm.provider);
    let (known, query) = (protocol.client_query(), query.unwrap_or_default());
    let query = known.filter(|known| query.split('&').any(|pair| pair == *known));
    let mut passed = PassedHead { headers: HeaderMap::new(), query };
    let (prefix, names) = (protocol.client_headers(llm), protocol.more_client_headers(llm));
    let has_prefix = |name: &str| {
        prefix.is_some_and(|prefix| name.starts_with(prefix))
            && !name.split(['-', '_']).any(|word| CREDENTIALS.contains(&word))
    };
    let is_theirs = |name: &HeaderName| has_prefix(name.as_str()) || names.contains(&name.as_str());
    let (mut lines, mut bytes) = (0, 0);
    for (name, value) in headers.iter().filter(|(name, _)| is_theirs(name)) {
        (lines, bytes) = (lines + 1, bytes + name.as_str().len() + value.len());
        if lines > MOST || bytes > LONGEST {
            let theirs = prefix.map_or_else(|| "for the provider".to_owned(), |prefix| format!("{prefix}*"));
            return Err(format!("more than {MOST} headers {theirs}, or more than {LONGEST} bytes of them"));
        }
        let is_shown = |byte: u8| byte == b' ' || byte.is_ascii_graphic();
        if !value.as_bytes().iter().all(|byte| is_shown(*byte)) {
            return Err(format!("the header {name} has something else than visible ASCII"));
        }
        // What is none is ours to say.
        if name == VERSION && (!is_version(value) || headers.get_all(VERSION).iter().count() > 1) {
            continue;
        }
        add(&mut passed.headers, name, value);
    }
    Ok(passed)
}

impl PassedHead {
    /// Adds it to our own headers: what it says goes, but where both list features, all of them count.
    pub(crate) fn add_to(self, headers: &mut HeaderMap) {
        for name in self.headers.keys().filter(|name| *name != BETA) {
            headers.remove(name);
        }
        for (name, value) in &self.headers {
            add(headers, name, value);
        }
    }
}

/// Adds a line; lists of features become one.
fn add(headers: &mut HeaderMap, name: &HeaderName, value: &HeaderValue) {
    let before = headers.get(name).filter(|_| name == BETA).and_then(|before| before.to_str().ok());
    let (Some(before), Ok(more)) = (before, value.to_str()) else {
        headers.append(name, value.clone());
        return;
    };
    let mut all: Vec<&str> = Vec::new();
    for one in before.split(',').chain(more.split(',')).map(str::trim) {
        if !one.is_empty() && !all.contains(&one) {
            all.push(one);
        }
    }
    if let Ok(joined) = HeaderValue::from_str(&all.join(",")) {
        headers.insert(name, joined);
    }
}

/// A date, as versions are: `2023-06-01`.
fn is_version(value: &HeaderValue) -> bool {
    let fits = |(at, byte): (usize, &u8)| match at {
        4 | 7 => *byte == b'-',
        _ => byte.is_ascii_digit(),
    };
    value.len() == 10 && value.as_bytes().iter().enumerate().all(fits)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::request::tests::llm;
    use ProviderKind::{Anthropic, OpenAi};
    use proptest::prelude::*;
    use ringfence_policy::agents::config::{ProviderKind, Service};

    fn head(lines: &[(&str, &str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in lines {
            let name = HeaderName::from_bytes(name.as_bytes()).unwrap();
            headers.append(name, HeaderValue::from_bytes(value.as_bytes()).unwrap());
        }
        headers
    }

    fn passed_on(kind: ProviderKind, headers: &HeaderMap, query: Option<&str>) -> Result<PassedHead, String> {
        super::passed_on(&llm(kind), headers, query)
    }

    fn passes(lines: &[(&str, &str)]) -> HeaderMap {
        passed_on(Anthropic, &head(lines), None).unwrap().headers
    }

    #[test]
    fn the_provider_s_headers_pass_and_no_credential_does() {
        let theirs = [("anthropic-beta", "a-1,b-2"), ("anthropic-of-tomorrow", "x y")];
        let others = [
            ("x-api-key", "sk-theirs"),
            ("authorization", "Bearer sk-theirs"),
            ("cookie", "a=b"),
            ("proxy-authorization", "x"),
            ("anthropic-api-key", "x"),
            ("anthropic-auth_token", "x"),
            ("anthropic-cookie", "x"),
            ("x-forwarded-for", "x"),
            ("host", "x"),
            ("openai-organization", "x"),
            ("content-encoding", "gzip"),
        ];
        assert_eq!(passes(&[&theirs[..], &others].concat()), head(&theirs));
        let openai = passed_on(OpenAi, &head(&theirs), Some("beta=true")).unwrap();
        assert_eq!((openai.headers, openai.query), (HeaderMap::new(), None));
    }

    #[test]
    fn chatgpt_hears_which_client_it_is_and_no_account_but_ours() {
        let codex = [
            ("originator", "codex_exec"),
            ("user-agent", "codex_exec/1.0"),
            ("session-id", "s-1"),
            ("x-codex-of-tomorrow", "{}"),
        ];
        let others = [
            ("chatgpt-account-id", "theirs"),
            ("authorization", "Bearer theirs"),
            ("cookie", "a=b"),
            ("host", "x"),
            ("x-codex-token", "x"),
            ("openai-organization", "x"),
        ];
        let sent = head(&[&codex[..], &others].concat());
        let with = |service| super::passed_on(&Llm { service, ..llm(OpenAi) }, &sent, None).unwrap().headers;
        assert_eq!(with(Service::ChatGpt), head(&codex));
        assert_eq!(with(Service::Api), HeaderMap::new());
        let mut headers = head(&[("chatgpt-account-id", "ours"), ("accept", "*/*")]);
        PassedHead { headers: with(Service::ChatGpt), query: None }.add_to(&mut headers);
        assert_eq!((headers.len(), headers.get("chatgpt-account-id").unwrap().as_bytes()), (6, &b"ours"[..]));
        let long = "x".repeat(LONGEST);
        let too_long = head(&[("originator", &long)]);
        let chatgpt = Llm { service: Service::ChatGpt, ..llm(OpenAi) };
        assert!(super::passed_on(&chatgpt, &too_long, None).is_err());
    }

    #[test]
    fn a_version_is_a_date_or_ours() {
        let ours = || head(&[("anthropic-version", "2023-06-01")]);
        for (said, sent) in [
            (&["2024-10-22"][..], "2024-10-22"),
            (&["2024-10-2"], "2023-06-01"),
            (&["../../x-y-z"], "2023-06-01"),
            (&[""], "2023-06-01"),
            (&["2024-10-22", "2025-01-01"], "2023-06-01"),
            (&[], "2023-06-01"),
        ] {
            let lines: Vec<_> = said.iter().map(|version| ("anthropic-version", *version)).collect();
            let mut headers = ours();
            passed_on(Anthropic, &head(&lines), None).unwrap().add_to(&mut headers);
            assert_eq!(headers, head(&[("anthropic-version", sent)]), "{said:?}");
        }
    }

    #[test]
    fn features_are_one_list_with_ours() {
        let mut headers = head(&[("anthropic-beta", "oauth-1"), ("x-api-key", "ours")]);
        let theirs =
            head(&[("anthropic-beta", "a, b,,a"), ("anthropic-beta", "oauth-1"), ("anthropic-x", "1")]);
        passed_on(Anthropic, &theirs, None).unwrap().add_to(&mut headers);
        let wanted = [("x-api-key", "ours"), ("anthropic-beta", "oauth-1,a,b"), ("anthropic-x", "1")];
        assert_eq!(headers, head(&wanted));
    }

    #[test]
    fn what_is_too_much_or_hides_is_refused() {
        let many: Vec<_> = (0..=MOST).map(|_| ("anthropic-x", "1")).collect();
        assert!(passed_on(Anthropic, &head(&many), None).is_err());
        assert_eq!(passes(&many[1..]).len(), MOST);
        let long = "x".repeat(LONGEST);
        for value in [long.as_str(), "a\tb", "\u{e9}"] {
            let why = passed_on(Anthropic, &head(&[("anthropic-x", value)]), None).unwrap_err();
            assert!(why.contains("anthropic-") && why.len() < 200, "{why}");
            assert!(passes(&[("x-other", value)]).is_empty(), "what does not go on is the client's");
        }
    }

    #[test]
    fn the_one_query_passes() {
        let query = |query: &str| passed_on(Anthropic, &HeaderMap::new(), Some(query)).unwrap().query;
        for passing in ["beta=true", "x=1&beta=true", "beta=true&beta=true"] {
            assert_eq!(query(passing), Some("beta=true"), "{passing}");
        }
        for other in ["", "beta=1", "Beta=true", "xbeta=true", "beta=true%26x", "api_key=x"] {
            assert_eq!(query(other), None, "{other}");
        }
    }

    proptest! {
        #[test]
        fn what_goes_on_is_bounded_and_shown(lines in prop::collection::vec(("[a-z-]{1,12}", "[ -~\t\u{e9}]{0,20}"), 0..40)) {
            let lines: Vec<_> = lines.into_iter().map(|(name, value)| (format!("anthropic-{name}"), value)).collect();
            let lines: Vec<_> = lines.iter().map(|(name, value)| (name.as_str(), value.trim())).collect();
            if let Ok(passed) = passed_on(Anthropic, &head(&lines), None) {
                prop_assert!(passed.headers.len() <= MOST);
                for (name, value) in &passed.headers {
                    prop_assert!(name.as_str().starts_with("anthropic-") && value.to_str().is_ok());
                }
            }
        }
    }
}
