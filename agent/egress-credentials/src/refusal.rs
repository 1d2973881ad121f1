//! Why a connection or a request is refused, and how a client learns of it: where TLS is ended, by a sentence.

use crate::body::Sent;
use hyper::{
    Response, StatusCode,
    header::{CACHE_CONTROL, CONNECTION, CONTENT_TYPE, HeaderName, HeaderValue},
};
use ringfence_wire::{
    credentials::TakenRefusal,
    egress::{EgressCause, MAX_SENTENCE},
};

/// Why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Refusal {
    pub(crate) cause: EgressCause,
    pub(crate) reason: String,
}

impl Refusal {
    pub(crate) fn new(cause: EgressCause, reason: &str) -> Self {
        Self { cause, reason: printable(reason) }
    }

    /// For the egress worker's record.
    pub(crate) fn told(&self) -> TakenRefusal {
        TakenRefusal { cause: self.cause, reason: self.reason.clone() }
    }

    fn status(&self) -> StatusCode {
        match self.cause {
            EgressCause::ServerTls | EgressCause::Unreachable | EgressCause::Reflects => {
                StatusCode::BAD_GATEWAY
            }
            EgressCause::OtherName => StatusCode::MISDIRECTED_REQUEST,
            EgressCause::Malformed => StatusCode::BAD_REQUEST,
            _ => StatusCode::FORBIDDEN,
        }
    }

    fn word(&self) -> &'static str {
        match self.cause {
            EgressCause::ServerTls => "server-tls",
            EgressCause::Unreachable => "unreachable",
            EgressCause::Reflects => "reflects",
            EgressCause::OtherName => "other-name",
            EgressCause::Malformed => "malformed",
            EgressCause::NoCredential => "no-credential",
            _ => "no-rule",
        }
    }

    /// The answer to a request.
    pub(crate) fn answer(&self, profile: &str, host: &str, port: u16) -> Response<Sent> {
        let body =
            format!("Ringfence refused a request to {host}:{port} (profile {profile}): {}.\n", self.reason);
        let mut answer = Response::new(Sent::text(body));
        *answer.status_mut() = self.status();
        let headers = answer.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
        headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
        headers.insert(HeaderName::from_static("x-ringfence-error"), HeaderValue::from_static(self.word()));
        if self.status() == StatusCode::BAD_GATEWAY {
            headers.insert(CONNECTION, HeaderValue::from_static("close"));
        }
        answer
    }
}

/// One line of printable ASCII that is no longer than a sentence may be.
pub(crate) fn printable(text: &str) -> String {
    text.chars().map(|c| if c == ' ' || c.is_ascii_graphic() { c } else { '?' }).take(MAX_SENTENCE).collect()
}
