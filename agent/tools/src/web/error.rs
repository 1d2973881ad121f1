//! Why a fetch gave no page.

use super::{admit::Refused, page::PageError, target::UrlError};
use ringfence_grant::gate::{Denied, ToolError};
use std::{fmt, io};

/// Most redirects that are followed. RFC 9110 section 15.4 leaves it to the client; the Fetch standard has 20.
pub const MAX_REDIRECTS: usize = 10;

/// What was going on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    /// Looking up the host's addresses.
    Resolve,
    /// Connecting.
    Connect,
    /// Agreeing on TLS.
    Handshake,
    /// Waiting for the answer's head.
    Answer,
    /// Reading the answer's body.
    Body,
    /// Reading text out of HTML.
    Text,
}

impl fmt::Display for Phase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Resolve => "looking up the host",
            Self::Connect => "connecting",
            Self::Handshake => "agreeing on TLS",
            Self::Answer => "waiting for the server's answer",
            Self::Body => "reading the body",
            Self::Text => "reading text out of the page",
        })
    }
}

/// Why a fetch gave no page.
#[derive(Debug, thiserror::Error)]
pub enum WebError {
    /// The URL, or one that it redirects to.
    #[error("this is not fetched")]
    Url(#[source] UrlError),
    /// The gate, or a rule of this tool.
    #[error(transparent)]
    Denied(#[from] Denied),
    /// The host has no address that could be found.
    #[error("the host {host:?} could not be looked up: check its spelling")]
    Resolve {
        /// The name.
        host: String,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// Nobody answered.
    #[error("cannot connect to {host}, port {port}")]
    Connect {
        /// The host.
        host: String,
        /// The port.
        port: u16,
        /// The last address's answer.
        #[source]
        source: io::Error,
    },
    /// TLS cannot be used at all.
    #[error("https cannot be used here: are the system's certificates (ca-certificates) installed?")]
    Tls(#[source] rustls::Error),
    /// TLS with this host.
    #[error("no TLS with {host:?}")]
    Handshake {
        /// The host.
        host: String,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// The server's HTTP.
    #[error("the server broke HTTP while we were {phase}")]
    Http {
        /// When.
        phase: Phase,
        /// How.
        #[source]
        source: hyper::Error,
    },
    /// A redirect that leads nowhere.
    #[error("the server redirects to what is not a URL: its location is not text")]
    Location,
    /// Too many redirects.
    #[error("more than {MAX_REDIRECTS} redirects: the last led to {0}")]
    Redirects(String),
    /// A content coding that was not requested.
    #[error("the server sent the content coding {0:?}: only gzip and none are read")]
    Coding(String),
    /// Compressed data that is none.
    #[error("the body is not the gzip data that the server says it is")]
    Gzip(#[source] io::Error),
    /// Too slow.
    #[error("the time for this fetch was used up while {phase}")]
    Deadline {
        /// When it was.
        phase: Phase,
    },
    /// HTML that could not be read.
    #[error("the page could not be read")]
    Page(#[source] PageError),
}

impl WebError {
    pub(super) fn into_tool_error(self, tool: &str) -> ToolError {
        match self {
            Self::Denied(denied) => denied.into(),
            other => ToolError::failed(tool)(other),
        }
    }
}

/// A URL that breaks a rule is denied; one that cannot be read is an argument that makes no sense.
pub(super) fn of_url(tool: &str, error: &UrlError) -> ToolError {
    match error {
        UrlError::Scheme(_) | UrlError::Userinfo => Denied::Rule(error.to_string()).into(),
        _ => ToolError::Arguments { tool: tool.to_owned(), why: error.to_string() },
    }
}

/// The rule that a refusal is.
pub(super) fn rule(refused: &Refused) -> String {
    refused.to_string()
}
