//! What `ringfence run` and the process that renews a login for it say to each other, over a stream socketpair: one
//! question, that it is sent from now on, one answer. Credentials are in descriptors beside them.

use super::mcp_login::ClientAuth;
use serde::{Deserialize, Serialize};

/// Most bytes of either.
pub const MAX: usize = 16 << 10;

/// Renew a login; beside it the refresh token, and behind that the client's secret, if it has one.
#[derive(Debug, Serialize, Deserialize)]
pub struct Renew {
    /// The token endpoint.
    pub url: String,
    /// The agent's client id there.
    pub client: String,
    /// The endpoint takes JSON, where RFC 6749 has a form.
    pub json: bool,
    /// What the token is to be for (RFC 8707), where that is said.
    pub resource: Option<String>,
    /// How the client shows who it is.
    pub auth: ClientAuth,
    /// Until when it may be sent, in nanoseconds since boot: a machine that was suspended sends nothing stale.
    pub until: u64,
}

/// What came of it.
#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "came", rename_all = "snake_case")]
pub enum Outcome {
    /// Nothing yet: the refresh token is about to be sent. What comes follows.
    Sending,
    /// A credential, beside this; behind it the next refresh token, where there is another.
    Renewed {
        /// In how many seconds the credential expires, where that was said.
        expires_in: Option<u64>,
    },
    /// Nothing, and why, in words of ours.
    Failed {
        /// Why.
        why: String,
        /// The refresh token may have reached the endpoint.
        was_sent: bool,
        /// It was not spent all the same: the endpoint takes none of anybody's at this moment.
        later: bool,
        /// The endpoint refused it: it was neither lost on its way, nor the answer.
        is_refused: bool,
    },
}
