//! Why a message has no answer of the server's, in words for whoever sent it.

use crate::{config::address, headers, room::Full, sse};
use reqwest::{Response, StatusCode, header::LOCATION};
use ringfence_base::error::root;
use ringfence_session::line::Id;
use serde_json::json;
use url::Url;

/// Code of the errors that stand in for an answer: JSON-RPC's first for implementations.
const CODE: i32 = -32000;

/// Why a message has no answer.
#[derive(Debug, thiserror::Error)]
pub(super) enum Failure {
    /// No connection, or one that broke before an answer began.
    #[error("the remote server cannot be reached: {0}")]
    Unreachable(String),
    /// The answer, or the stream with it, ended before it was whole.
    #[error("the remote server's answer broke off: {0}; whether it did what it was asked is not known")]
    Cut(String),
    /// HTTP's own refusal.
    #[error("the remote server answered HTTP {0}{hint}", hint = hint(*.0))]
    Status(StatusCode),
    /// Whoever asks is not let in: what to do.
    #[error("the remote server answered HTTP {0}: {1}")]
    Refused(StatusCode, String),
    /// The same, where it is the login, and no other token was to be had.
    #[error("the remote server answered HTTP {0}: {1}")]
    Unrenewed(StatusCode, String),
    /// The login cannot be used.
    #[error("Ringfence did not send this: {0}")]
    Login(String),
    /// To another address, and not followed.
    #[error("the remote server answered HTTP {0}: it redirects to {1}")]
    Redirect(StatusCode, String),
    /// No message and no stream of them.
    #[error("the remote server answered with {0:?}, not with JSON or an event stream")]
    Kind(String),
    /// It took the message and says no more.
    #[error("the remote server took the request and did not answer it")]
    Unanswered,
    /// Not a message.
    #[error("the remote server sent a message that is not one line of JSON")]
    NotAMessage,
    /// Too long.
    #[error("the remote server sent a message of more than {0} bytes (--max-line)")]
    Long(usize),
    /// No stream of events.
    #[error("the remote server's event stream is broken: {0}")]
    Stream(#[from] sse::Error),
    /// Too many at once.
    #[error("the remote server sends too much at once: {0}")]
    Full(#[from] Full),
    /// It cannot be sent.
    #[error("Ringfence did not send this: {0}")]
    Unsendable(#[from] headers::Error),
    /// Too many are under way.
    #[error("Ringfence did not send this: {0} requests to the remote server are open already")]
    TooMany(usize),
    /// Too much is under way.
    #[error(
        "Ringfence did not send this: too many bytes wait to be sent to the remote server; send it again later"
    )]
    Busy,
    /// Not sent by a client that read the protocol.
    #[error("Ringfence did not send this: a request with this id is open already")]
    Again,
    /// The session is over.
    #[error(
        "the remote server does not know this session any more (HTTP 404): it has restarted, or let it expire. This MCP server ends now; reconnect to it for a new session"
    )]
    Lost,
    /// Nobody is left to tell.
    #[error("the interceptor is gone")]
    Gone,
}

/// What to do about a status.
fn hint(status: StatusCode) -> &'static str {
    match status {
        StatusCode::UNAUTHORIZED => {
            ": it wants a credential, or refuses the one it got; give another with --token-env, --token-file or --header, and reconnect; or leave it out, and log in with `ringfence mcp login`, if the server has a login in the browser (OAuth)"
        }
        StatusCode::FORBIDDEN => ": the credential does not allow this",
        StatusCode::NOT_FOUND | StatusCode::METHOD_NOT_ALLOWED => {
            ": at this address is no streamable HTTP server; one of the older transport (HTTP+SSE) cannot be used"
        }
        StatusCode::TOO_MANY_REQUESTS => ": it wants fewer requests",
        _ => "",
    }
}

impl Failure {
    /// Of the HTTP client, before an answer began. Its own text names the address, which may hold a secret.
    pub(super) fn before(error: reqwest::Error) -> Self {
        Self::Unreachable(root(&error.without_url()).to_string())
    }

    /// The same, within an answer.
    pub(super) fn within(error: reqwest::Error) -> Self {
        Self::Cut(root(&error.without_url()).to_string())
    }

    /// Whether trying again to resume a stream may help.
    pub(super) fn passes(&self) -> bool {
        match self {
            // A login that cannot be renewed now can be later, where its server was away for a moment.
            Self::Unreachable(_) | Self::Cut(_) | Self::Login(_) | Self::Unrenewed(..) => true,
            Self::Status(status) => {
                status.is_server_error()
                    || matches!(*status, StatusCode::REQUEST_TIMEOUT | StatusCode::TOO_MANY_REQUESTS)
            }
            _ => false,
        }
    }

    /// Of an answer that sends the client elsewhere; `None` for any other.
    pub(super) fn redirect(response: &Response) -> Option<Self> {
        let status = response.status();
        if !status.is_redirection() {
            return None;
        }
        let to = response.headers().get(LOCATION).and_then(|to| to.to_str().ok());
        let to = to.and_then(|to| response.url().join(to).ok()).filter(Url::has_host);
        Some(Self::Redirect(
            status,
            match to {
                Some(to) if to.origin() == response.url().origin() => {
                    format!("{}; give that address", address(&to))
                }
                Some(to) => {
                    format!(
                        "{}, another origin, where no credential goes; if you trust it, give that address",
                        address(&to)
                    )
                }
                None => "no address".to_owned(),
            },
        ))
    }

    /// As the answer to a request, where `text` is what is said of it. Ends with a newline.
    pub(super) fn answer(text: &str, id: &Id) -> Vec<u8> {
        id.answer("error", &json!({ "code": CODE, "message": text })).into_bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_may_be_over_in_a_moment_is_tried_again() {
        let why = || "it cannot be reached".to_owned();
        let refused = StatusCode::UNAUTHORIZED;
        for passes in [
            Failure::Login(why()),
            Failure::Unrenewed(refused, why()),
            Failure::Status(StatusCode::SERVICE_UNAVAILABLE),
        ] {
            assert!(passes.passes(), "{passes}");
        }
        for stays in [Failure::Refused(refused, why()), Failure::Status(StatusCode::FORBIDDEN), Failure::Lost]
        {
            assert!(!stays.passes(), "{stays}");
        }
    }
}
