//! What is said about a login at a remote MCP server (OAuth), over stream socketpairs. Credentials are in descriptors beside the
//! messages.
//!
//! Two conversations: `ringfence mcp login` and the confined process that speaks to authorization servers for it
//! ([`Order`], [`Said`]); and the process that speaks to the MCP server and the keeper of its login ([`Wanted`], [`Token`]).

use serde::{Deserialize, Serialize};

/// The variable with the number of the descriptor that is the remote server's speaker's end of the link to the keeper. It says nothing
/// to anybody else.
pub const LINK: &str = "RINGFENCE_LOGIN_LINK";

/// Most bytes of a message.
pub const MAX: usize = 64 << 10;

/// How a client shows at a token endpoint who it is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ClientAuth {
    /// By its id alone.
    #[default]
    None,
    /// By its secret, in the header.
    Basic,
    /// By its secret, in the form.
    Post,
}

/// What the confined process is to do.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Order {
    /// Log in. Beside it the listening socket that the browser is sent back to; behind that the client's secret, if it has one.
    LogIn(LogIn),
    /// Revoke a token. Beside it the token; behind that the client's secret, if it has one.
    Revoke(Revoke),
}

/// A login to be made.
#[derive(Debug, Serialize, Deserialize)]
pub struct LogIn {
    /// The MCP server's address.
    pub server: String,
    /// A client that is registered already, or the address of a client's metadata.
    pub client: Option<String>,
    /// The authorization server that it must be, by its name: the one that the client is registered at.
    pub issuer: Option<String>,
    /// What is to be asked for; nothing: what the server says.
    pub scopes: Vec<String>,
    /// What an earlier login there was granted, and by which authorization server.
    pub before: Option<(String, Vec<String>)>,
}

/// A token to be revoked.
#[derive(Debug, Serialize, Deserialize)]
pub struct Revoke {
    /// The revocation endpoint.
    pub url: String,
    /// The client's id there.
    pub client: String,
    /// How it shows who it is.
    pub auth: ClientAuth,
    /// The token is a refresh token.
    pub is_refresh: bool,
}

/// What the confined process says. Everything here was read from servers.
#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "said", rename_all = "snake_case")]
pub enum Said {
    /// The user is to open this address.
    Open {
        /// It.
        url: String,
        /// The authorization server it leads to.
        issuer: String,
    },
    /// Logged in. Beside it the access token, then the refresh token and the client's secret, where it says that there are any.
    LoggedIn(Box<LoggedIn>),
    /// Revoked.
    Revoked,
    /// Neither, and why, in words of ours.
    Failed {
        /// Why.
        why: String,
    },
}

/// What a login is, but for its tokens.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LoggedIn {
    /// The authorization server.
    pub issuer: String,
    /// What the tokens are for, as the server itself is called there (RFC 8707).
    pub resource: String,
    /// The token endpoint.
    pub token_endpoint: String,
    /// The revocation endpoint.
    pub revocation_endpoint: Option<String>,
    /// The client's id.
    pub client: String,
    /// How it shows who it is.
    pub auth: ClientAuth,
    /// What was granted.
    pub scopes: Vec<String>,
    /// In how many seconds the access token expires, where that was said.
    pub expires_in: Option<u64>,
    /// A refresh token is beside it.
    pub has_refresh: bool,
    /// A secret is beside it, behind that.
    pub has_secret: bool,
}

/// A token is wanted, for this server from the first message on.
#[derive(Debug, Serialize, Deserialize)]
pub struct Wanted {
    /// The server's address, in the first message; what later ones have counts for nothing.
    pub server: String,
    /// That address came from a file, and is not shown; in the first message, too.
    pub is_secret: bool,
    /// The number of one that the server refused, if it did.
    pub refused: Option<u64>,
}

/// The keeper's answer.
#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "token", rename_all = "snake_case")]
pub enum Token {
    /// Beside it.
    Given {
        /// Which that is of those that were given.
        number: u64,
        /// In how many seconds another is to be asked for, where that is known.
        due_in: Option<u64>,
        /// In how many seconds it is over: some time later.
        over_in: Option<u64>,
    },
    /// There is none, and why.
    None {
        /// In words.
        why: String,
    },
}
