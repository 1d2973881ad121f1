//! Renews a login at its provider's token endpoint (RFC 6749, section 6), for `ringfence run`, which parses nothing that a
//! provider says. A process of its own, confined as a worker is: it has one refresh token, and ends with its answer.

use super::{
    confine,
    upstream::{self, beginning},
};
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use reqwest::{
    StatusCode,
    header::{ACCEPT, CONTENT_TYPE},
};
use ringfence_base::{error::root, precedence};
use ringfence_credentials::{self as secret, Secret};
use ringfence_wire::{
    conn::Conn,
    frame::FrameError,
    renewal::{MAX, Outcome, Renew},
};
use serde::Deserialize;
use std::{
    io,
    os::{
        fd::{AsFd, OwnedFd},
        unix::net::UnixStream,
    },
    time::Duration,
};
use zeroize::Zeroizing;

/// How long the token endpoint may take.
const PATIENCE: Duration = Duration::from_secs(30);
/// How long the process that asks may take for its question.
const QUESTION: Duration = Duration::from_secs(10);
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

/// What a token endpoint answers; RFC 6749, section 5.1.
#[derive(Deserialize)]
struct Answer {
    access_token: Token,
    refresh_token: Option<Token>,
    expires_in: Option<u64>,
}

#[derive(Deserialize)]
#[serde(from = "String")]
struct Token(Zeroizing<String>);

impl From<String> for Token {
    fn from(text: String) -> Self {
        Self(Zeroizing::new(text))
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
    precedence::not_core();
    confine::hide()?;
    let stream = io::stdin().as_fd().try_clone_to_owned().map(UnixStream::from).map_err(Error::NotFromRun)?;
    stream.peer_addr().map_err(Error::NotFromRun)?;
    let mut conn = Conn::new(stream, QUESTION, MAX);
    let (question, mut descriptors) = conn.receive_with_descriptors::<Renew>()?;
    confine::enter(&[])?;
    let none = || Error::NotFromRun(io::ErrorKind::InvalidInput.into());
    let token = Secret::from_descriptor(descriptors.pop().ok_or_else(none)?)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(Error::Io)?;
    let outcome = runtime.block_on(async {
        let asked = tokio::time::timeout(PATIENCE, ask(&question, &token)).await;
        asked.unwrap_or_else(|_| Err(format!("it does not answer within {} seconds", PATIENCE.as_secs())))
    });
    // Threads that wait for a name end with the process.
    runtime.shutdown_background();
    match outcome.and_then(taken) {
        Ok((expires_in, tokens)) => {
            let beside: Vec<_> = tokens.iter().map(AsFd::as_fd).collect();
            conn.send_with_descriptors(&Outcome::Renewed { expires_in }, &beside)?;
        }
        Err(why) => conn.send(&Outcome::Failed { why })?,
    }
    Ok(())
}

async fn ask(question: &Renew, token: &Secret) -> Result<Answer, String> {
    let client = upstream::client().map_err(|error| error.to_string())?;
    let kind = if question.json { "application/json" } else { "application/x-www-form-urlencoded" };
    let request = client
        .post(&question.url)
        .header(CONTENT_TYPE, kind)
        .header(ACCEPT, "application/json")
        .body(body(question, token));
    let response = request.send().await.map_err(|error| format!("it cannot be reached: {}", root(&error)))?;
    let status = response.status();
    let text = Zeroizing::new(beginning(response).await);
    if status != StatusCode::OK {
        return Err(refused(status, &text));
    }
    // What it says is not shown: it may hold a token.
    serde_json::from_slice(&text).map_err(|_| "its answer is not that of a token endpoint".to_owned())
}

/// The request's body.
fn body(Renew { client, json, .. }: &Renew, token: &Secret) -> String {
    if *json {
        let body = serde_json::json!({"grant_type": "refresh_token", "refresh_token": token.expose(), "client_id": client});
        return body.to_string();
    }
    let [token, client] = [token.expose(), client].map(|text| utf8_percent_encode(text, NON_ALPHANUMERIC));
    format!("grant_type=refresh_token&refresh_token={token}&client_id={client}")
}

/// Why the endpoint refused: its status, and the error's name if it is one of the RFC's kind.
fn refused(status: StatusCode, text: &[u8]) -> String {
    let code = serde_json::from_slice::<Refusal>(text).ok().map(|refusal| refusal.error).filter(|code| {
        code.len() <= MAX_CODE && code.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_')
    });
    let code = code.map(|code| format!(" ({code})")).unwrap_or_default();
    format!("the token endpoint answers {}{code}", status.as_u16())
}

/// The tokens of an answer, as descriptors.
fn taken(answer: Answer) -> Result<(Option<u64>, Vec<OwnedFd>), String> {
    let Answer { access_token, refresh_token, expires_in } = answer;
    let tokens = [Some(access_token), refresh_token].into_iter().flatten();
    let pipes = tokens.map(|token| Secret::checked(&token.0).and_then(|secret| secret.pipe()));
    let pipes: Result<Vec<OwnedFd>, secret::Error> = pipes.collect();
    Ok((expires_in, pipes.map_err(|_| "its answer holds no token that can be used".to_owned())?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_question_is_the_rfc_s_form_or_json() {
        let question = |json| Renew { url: String::new(), client: "a b".into(), json };
        let token = Secret::from("r/+\"=".to_owned());
        assert_eq!(
            body(&question(false), &token),
            "grant_type=refresh_token&refresh_token=r%2F%2B%22%3D&client_id=a%20b"
        );
        let json: serde_json::Value = serde_json::from_str(&body(&question(true), &token)).unwrap();
        assert_eq!((&json["refresh_token"], &json["client_id"]), (&"r/+\"=".into(), &"a b".into()));
    }

    #[test]
    fn only_an_error_s_name_is_repeated() {
        let of = |text: &str| refused(StatusCode::BAD_REQUEST, text.as_bytes());
        assert_eq!(of(r#"{"error":"invalid_grant"}"#), "the token endpoint answers 400 (invalid_grant)");
        for text in ["", r#"{"error":"sk-ant-oat01-THE-TOKEN"}"#, r#"{"error":{"type":"x"}}"#] {
            assert_eq!(of(text), "the token endpoint answers 400", "{text}");
        }
    }

    #[test]
    fn an_answer_without_a_usable_token_brings_none() {
        let of = |text: &str| taken(serde_json::from_str::<Answer>(text).unwrap());
        let (expires, tokens) =
            of(r#"{"access_token":"a","refresh_token":"r","expires_in":60,"x":1}"#).unwrap();
        assert_eq!((expires, tokens.len()), (Some(60), 2));
        assert_eq!(of(r#"{"access_token":"a"}"#).unwrap().1.len(), 1);
        for text in [
            r#"{"access_token":""}"#,
            r#"{"access_token":"a\nb"}"#,
            r#"{"access_token":"a","refresh_token":""}"#,
        ] {
            assert!(of(text).is_err(), "{text}");
        }
    }
}
