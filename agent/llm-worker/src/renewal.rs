//! Renews a login at its provider's token endpoint (RFC 6749, section 6), for `ringfence run`, which parses nothing that a
//! provider says. A process of its own, confined as a worker is: it has one refresh token, and ends with its answer.

use super::{
    confine,
    upstream::{self, beginning},
};
use nix::sys::signal::SigSet;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use reqwest::{
    Response, StatusCode,
    header::{ACCEPT, CONTENT_TYPE},
};
use ringfence_base::{clock::since_boot, error::root, precedence, signals};
use ringfence_credentials::{self as secret, Secret};
use ringfence_wire::{
    conn::Conn,
    frame::FrameError,
    mcp_login::ClientAuth,
    renewal::{MAX, Outcome, Renew},
};
use serde::Deserialize;
use serde_json::value::RawValue;
use std::{
    collections::HashMap,
    io,
    os::{
        fd::{AsFd, OwnedFd},
        unix::net::UnixStream,
    },
    time::Duration,
};
use zeroize::Zeroizing;

/// How long the token endpoint may take, connection and all: who gives up early loses what comes late.
const PATIENCE: Duration = Duration::from_secs(130);
/// How long the process that asks may take for its question.
const QUESTION: Duration = Duration::from_secs(10);
/// Most bytes of an answer: some tokens, and what else an endpoint says of its user.
const MAX_ANSWER: usize = 256 << 10;
/// Most seconds that an access token is believed to last: ten years. What is longer is no time that an endpoint means.
const MAX_LIFE: f64 = 10.0 * 365.0 * 86_400.0;
/// What a header's secret has escaped. Some endpoints take it as it is: what need not be escaped is not.
const ESCAPED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'*').remove(b'-').remove(b'.').remove(b'_');
/// Most characters of what an endpoint calls its error.
const MAX_CODE: usize = 64;

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Not started by `ringfence run`.
    #[error("`ringfence llm-renewal` is started by `ringfence run`, with its link as standard input")]
    NotFromRun(#[source] io::Error),
    /// The sandbox.
    #[error(transparent)]
    Confine(#[from] confine::Error),
    /// The process that asks.
    #[error("`ringfence run` cannot be understood")]
    Link(#[from] FrameError),
    /// The refresh token.
    #[error("cannot read the refresh token")]
    Secret(#[from] secret::Error),
    /// The event loop.
    #[error("cannot set up the event loop")]
    Io(#[source] io::Error),
}

/// What a token endpoint answers; RFC 6749, section 5.1. Nothing beside the access token is a reason to refuse it: the refresh
/// token that was sent may be worth nothing any more.
struct Answer {
    access: Secret,
    /// The next refresh token, where one came that can be used.
    refresh: Option<Secret>,
    /// In how many seconds it expires, where that was said in a way that can be understood.
    expires_in: Option<u64>,
}

/// Why there is none.
struct Failure {
    why: String,
    /// The refresh token may have reached the endpoint.
    was_sent: bool,
    /// It was not spent all the same.
    later: bool,
    /// The endpoint refused it.
    is_refused: bool,
}

impl Failure {
    /// Before anything was sent.
    fn before(why: String) -> Self {
        Self { why, was_sent: false, later: false, is_refused: false }
    }
}

impl From<String> for Failure {
    fn from(why: String) -> Self {
        Self { why, was_sent: true, later: false, is_refused: false }
    }
}

/// Section 5.2.
#[derive(Deserialize)]
struct Refusal {
    error: String,
}

/// Answers one question over standard input.
///
/// # Errors
/// [`Error`].
pub fn serve() -> Result<(), Error> {
    // The terminal's Ctrl-C, or Ctrl-Z, is for the process that asks: an answer that is on its way may hold the only token that is still good.
    SigSet::from_iter(signals::OF_A_RUN).thread_block().map_err(|error| Error::NotFromRun(error.into()))?;
    precedence::not_core();
    confine::hide()?;
    let stream = io::stdin().as_fd().try_clone_to_owned().map(UnixStream::from).map_err(Error::NotFromRun)?;
    stream.peer_addr().map_err(Error::NotFromRun)?;
    let mut conn = Conn::new(stream, QUESTION, MAX);
    let (question, descriptors) = conn.receive_with_descriptors::<Renew>()?;
    confine::enter(&[])?;
    let none = || Error::NotFromRun(io::ErrorKind::InvalidInput.into());
    let mut descriptors = descriptors.into_iter();
    let token = Secret::from_descriptor(descriptors.next().ok_or_else(none)?)?;
    let secret = descriptors.next().map(Secret::from_descriptor).transpose()?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(Error::Io)?;
    let outcome = runtime.block_on(async {
        let asked =
            tokio::time::timeout(PATIENCE, ask(&question, (&token, secret.as_ref()), &mut conn)).await;
        let late = |_| Err(format!("it does not answer within {} seconds", PATIENCE.as_secs()).into());
        asked.unwrap_or_else(late)
    });
    // Threads that wait for a name end with the process.
    runtime.shutdown_background();
    match outcome.and_then(|answer| Ok(taken(answer)?)) {
        Ok((expires_in, tokens)) => {
            let beside: Vec<_> = tokens.iter().map(AsFd::as_fd).collect();
            conn.send_with_descriptors(&Outcome::Renewed { expires_in }, &beside)?;
        }
        Err(Failure { why, was_sent, later, is_refused }) => {
            conn.send(&Outcome::Failed { why, was_sent, later, is_refused })?;
        }
    }
    Ok(())
}

/// `tokens`: the refresh token, and the client's secret, if it has one.
async fn ask(
    question: &Renew,
    tokens: (&Secret, Option<&Secret>),
    conn: &mut Conn,
) -> Result<Answer, Failure> {
    let client = upstream::client_for(&question.url).map_err(|error| Failure::before(error.to_string()))?;
    let kind = if question.json { "application/json" } else { "application/x-www-form-urlencoded" };
    let mut request = client
        .post(&question.url)
        .header(CONTENT_TYPE, kind)
        .header(ACCEPT, "application/json")
        .body(body(question, tokens));
    if let (ClientAuth::Basic, Some(secret)) = (question.auth, tokens.1) {
        // RFC 6749, section 2.3.1.
        let [client, secret] =
            [&question.client, secret.expose()].map(|text| utf8_percent_encode(text, ESCAPED).to_string());
        request = request.basic_auth(client, Some(secret));
    }
    // Whoever asks may think by now that nothing was sent, or somebody else may have renewed it.
    if since_boot() > question.until {
        return Err(Failure::before(
            "it came too late to be sent: the machine may have been suspended".to_owned(),
        ));
    }
    conn.send(&Outcome::Sending).map_err(|error| Failure::before(error.to_string()))?;
    let response = request.send().await.map_err(|error| {
        let why = format!("it cannot be reached: {}", root(&error));
        // Without a connection nothing was sent.
        Failure { why, was_sent: !error.is_connect(), later: false, is_refused: false }
    })?;
    let status = response.status();
    if !status.is_success() {
        return Err(refused(status, &Zeroizing::new(beginning(response).await)));
    }
    Ok(understood(&whole(response).await?)?)
}

/// All of an answer: half of one is none.
async fn whole(mut response: Response) -> Result<Zeroizing<Vec<u8>>, String> {
    // Room for most of them at once: a vector that grows leaves copies behind.
    let mut body = Zeroizing::new(Vec::with_capacity(64 << 10));
    while let Some(chunk) =
        response.chunk().await.map_err(|error| format!("its answer breaks off: {}", root(&error)))?
    {
        if body.len() + chunk.len() > MAX_ANSWER {
            return Err(format!("its answer has more than {MAX_ANSWER} bytes"));
        }
        body.extend_from_slice(&chunk);
    }
    Ok(body)
}

/// Reads an answer. What it says is not shown: it may hold a token.
fn understood(text: &[u8]) -> Result<Answer, String> {
    let keys: HashMap<String, &RawValue> =
        serde_json::from_slice(text).map_err(|_| "its answer is not that of a token endpoint".to_owned())?;
    let token = |key: &str| {
        let text = serde_json::from_str::<String>(keys.get(key)?.get()).ok().map(Zeroizing::new)?;
        Secret::checked(&text).ok()
    };
    let seconds = keys.get("expires_in").and_then(|value| serde_json::from_str::<f64>(value.get()).ok());
    Ok(Answer {
        access: token("access_token").ok_or("its answer holds no token that can be used")?,
        refresh: token("refresh_token"),
        // In this range the cast cuts the fraction off, and nothing else.
        expires_in: seconds
            .filter(|seconds| (0.0..=MAX_LIFE).contains(seconds))
            .map(|seconds| seconds as u64),
    })
}

/// The request's body.
fn body(question: &Renew, (token, secret): (&Secret, Option<&Secret>)) -> String {
    let Renew { client, json, resource, auth, .. } = question;
    if *json {
        let body = serde_json::json!({"grant_type": "refresh_token", "refresh_token": token.expose(), "client_id": client});
        return body.to_string();
    }
    let mut body = format!(
        "grant_type=refresh_token&refresh_token={}&client_id={}",
        encoded(token.expose()),
        encoded(client)
    );
    if let Some(resource) = resource {
        body += &format!("&resource={}", encoded(resource));
    }
    if let (ClientAuth::Post, Some(secret)) = (auth, secret) {
        body += &format!("&client_secret={}", encoded(secret.expose()));
    }
    body
}

fn encoded(text: &str) -> String {
    utf8_percent_encode(text, NON_ALPHANUMERIC).to_string()
}

/// Why the endpoint refused: its status, and the error's name if it is one of the RFC's kind. What refuses everybody at that
/// moment, or is no token endpoint's word at all, says nothing of the token.
fn refused(status: StatusCode, text: &[u8]) -> Failure {
    let refusal = serde_json::from_slice::<Refusal>(text).ok();
    let later = match status {
        StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE => true,
        StatusCode::FORBIDDEN => refusal.is_none(),
        _ => false,
    };
    let code = refusal.map(|refusal| refusal.error).filter(|code| {
        code.len() <= MAX_CODE && code.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_')
    });
    let code = code.map(|code| format!(" ({code})")).unwrap_or_default();
    let good = if later { ": nothing was spent, and the login is as good as before; try later" } else { "" };
    let why = format!("the token endpoint answers {}{code}{good}", status.as_u16());
    Failure { why, was_sent: true, later, is_refused: true }
}

/// The tokens of an answer, as descriptors.
fn taken(answer: Answer) -> Result<(Option<u64>, Vec<OwnedFd>), String> {
    let Answer { access, refresh, expires_in } = answer;
    let access = access.pipe().map_err(|_| "its answer holds no token that can be used".to_owned())?;
    // One that is too long for a credential is none.
    let refresh = refresh.and_then(|token| token.pipe().ok());
    Ok((expires_in, [Some(access), refresh].into_iter().flatten().collect()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_question_is_the_rfc_s_form_or_json() {
        let question = |json, resource: Option<&str>, auth| Renew {
            url: String::new(),
            client: "a b".into(),
            json,
            resource: resource.map(str::to_owned),
            auth,
            until: 0,
        };
        let (token, secret) = (Secret::from("r/+\"=".to_owned()), Secret::from("s&s".to_owned()));
        let plain = "grant_type=refresh_token&refresh_token=r%2F%2B%22%3D&client_id=a%20b";
        assert_eq!(body(&question(false, None, ClientAuth::None), (&token, None)), plain);
        let resource = Some("https://h/mcp");
        assert_eq!(
            body(&question(false, resource, ClientAuth::Post), (&token, Some(&secret))),
            format!("{plain}&resource=https%3A%2F%2Fh%2Fmcp&client_secret=s%26s")
        );
        let basic = body(&question(false, None, ClientAuth::Basic), (&token, Some(&secret)));
        assert_eq!(basic, plain, "the secret is in a header");
        let json = body(&question(true, None, ClientAuth::None), (&token, None));
        let json: serde_json::Value = serde_json::from_str(&json).unwrap();
        assert_eq!((&json["refresh_token"], &json["client_id"]), (&"r/+\"=".into(), &"a b".into()));
    }

    #[test]
    fn only_an_error_s_name_is_repeated() {
        let of = |text: &str| refused(StatusCode::BAD_REQUEST, text.as_bytes()).why;
        assert_eq!(of(r#"{"error":"invalid_grant"}"#), "the token endpoint answers 400 (invalid_grant)");
        for text in ["", r#"{"error":"sk-ant-oat01-THE-TOKEN"}"#, r#"{"error":{"type":"x"}}"#] {
            assert_eq!(of(text), "the token endpoint answers 400", "{text}");
        }
    }

    #[test]
    fn what_refuses_everybody_is_no_reason_to_log_in_again() {
        let is_later = |status, text: &str| refused(status, text.as_bytes()).later;
        let error = r#"{"error":"invalid_grant"}"#;
        for (status, without, with) in [
            (StatusCode::TOO_MANY_REQUESTS, true, true),
            (StatusCode::SERVICE_UNAVAILABLE, true, true),
            (StatusCode::FORBIDDEN, true, false),
            (StatusCode::BAD_REQUEST, false, false),
            (StatusCode::UNAUTHORIZED, false, false),
        ] {
            assert_eq!((is_later(status, "<html>"), is_later(status, error)), (without, with), "{status}");
        }
    }

    fn of(text: &str) -> Result<(Option<u64>, usize), String> {
        let (expires, tokens) = understood(text.as_bytes()).and_then(taken)?;
        Ok((expires, tokens.len()))
    }

    #[test]
    fn an_answer_without_a_usable_token_brings_none() {
        assert_eq!(
            of(r#"{"access_token":"a","refresh_token":"r","expires_in":60,"x":1}"#),
            Ok((Some(60), 2))
        );
        assert_eq!(of(r#"{"access_token":"a"}"#), Ok((None, 1)));
        let long = format!(r#"{{"access_token":"{}"}}"#, "x".repeat(20 << 10));
        for text in
            [r#"{"access_token":""}"#, r#"{"access_token":"a\nb"}"#, r#"{"access_token":7}"#, "{}", &long]
        {
            assert!(of(text).unwrap_err().contains("no token that can be used"), "{text}");
        }
        for text in ["", "<html>", "[]", r#"{"access_token":"a""#] {
            assert!(of(text).unwrap_err().contains("not that of a token endpoint"), "{text}");
        }
    }

    #[test]
    fn nothing_beside_it_costs_an_access_token() {
        for (seconds, expected) in [
            ("3600", Some(3600)),
            ("3599.9", Some(3599)),
            ("0", Some(0)),
            ("1e3", Some(1000)),
            ("-1", None),
            ("1e300", None),
            ("1e999", None),
            ("99999999999999999999999999", None),
            ("\"3600\"", None),
            ("null", None),
            ("{\"a\":[]}", None),
        ] {
            let text = format!(r#"{{"expires_in":{seconds},"access_token":"a","refresh_token":"r"}}"#);
            assert_eq!(of(&text), Ok((expected, 2)), "{text}");
        }
        let long = format!("\"{}\"", "x".repeat(20 << 10));
        for refresh in ["\"\"", "\" \"", "null", "7", "\"a\\nb\"", "{}", &long] {
            let text = format!(r#"{{"refresh_token":{refresh},"access_token":"a","expires_in":60}}"#);
            assert_eq!(of(&text), Ok((Some(60), 1)), "{text}");
        }
        assert_eq!(
            of(r#"{"access_token":"a","scope":1,"scope":2}"#),
            Ok((None, 1)),
            "a key that is there twice"
        );
    }
}
