//! Credentials that are put into requests on the host: what a profile says of them, and what the core, a container's egress worker
//! and the process that has them say to each other.
//!
//! That process, `ringfence egress-credentials`, is the only one that ends TLS. Its standard input is a stream socketpair whose
//! other end is the core's. The core says [`ToCredentials::Start`] and a [`ToCredentials::Secret`] for each host; the process
//! confines itself and says [`FromCredentials::Ready`]. Over a [`ToCredentials::Link`] an egress worker hands over connections
//! ([`Take`]) and hears of them ([`FromLink`]).
//!
//! No message has a credential in it, nor the key of the container's CA: each is read from a descriptor, by the one process that is
//! to have it.

mod certificate;

pub use certificate::{Certificate, NotACertificate};

use crate::{egress::EgressCause, requests::RequestRule};
use serde::{Deserialize, Serialize};
use std::fmt;

/// Most hosts of a container that have a credential.
pub const MAX_HOSTS: usize = 64;
/// Most rules of one of them.
pub const MAX_RULES: usize = 256;
/// Most bytes of a message of the core's.
pub const MAX_ORDER: usize = 4 << 20;
/// Most bytes of [`FromCredentials`].
pub const MAX_ANSWER: usize = 32 << 10;
/// Most bytes of a [`Take`]: what was taken of a client is in it, four thirds as long.
pub const MAX_TAKE: usize = 256 << 10;
/// Most bytes of a [`FromLink`].
pub const MAX_TOLD: usize = 16 << 10;
/// Most bytes of [`FromCredentials::Ready`]'s certificate: names of all hosts are in it.
pub const MAX_CERTIFICATE: usize = 28 << 10;
/// Most bytes of a credential, and so of the descriptor beside a [`ToCredentials::Secret`].
pub const MAX_SECRET: usize = 16 << 10;
/// Most bytes of the key of a container's CA.
pub const MAX_AUTHORITY: usize = 4 << 10;
/// Shorter credentials, in characters, are refused: they occur by chance, and could be guessed. What is found in answers becomes
/// asterisks, so that each byte of a long answer can try another guess: 16 digits take years.
pub const SHORTEST: usize = 16;

/// A host whose requests a credential is put into.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HostCredential {
    /// The host, lower-case ASCII; never a wildcard.
    pub host: String,
    /// The port.
    pub port: u16,
    /// Where in a request it is put.
    pub place: CredentialPlace,
    /// The requests that it goes with.
    pub allow: Vec<RequestRule>,
    /// What becomes of others.
    pub otherwise: Otherwise,
    /// Cookies pass, those of answers to requests with the credential too: a session that has no rules.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub cookies: bool,
}

/// Where in a request a credential is put.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum CredentialPlace {
    /// `Authorization: Bearer TOKEN`.
    Bearer,
    /// `Authorization: Basic`, with this user and the credential as password.
    Basic {
        /// Printable ASCII without a colon.
        user: String,
    },
    /// This header, with nothing but the credential.
    Header {
        /// Its name, in lower case.
        name: String,
    },
}

/// What becomes of requests that no rule names.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Otherwise {
    /// They are answered 403.
    #[default]
    Refuse,
    /// They go on without a credential: neither the host's own, nor one of the client's.
    Pass,
}

/// Headers that no credential is put into: they say where a request ends, or where it goes.
const NO_PLACE: [&str; 22] = [
    "accept-encoding",
    "connection",
    "content-encoding",
    "content-length",
    "cookie",
    "expect",
    "forwarded",
    "host",
    "http2-settings",
    "keep-alive",
    "proxy-authorization",
    "proxy-connection",
    "range",
    "sec-websocket-extensions",
    "sec-websocket-key",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
    "x-http-method",
    "x-http-method-override",
    "x-method-override",
];

impl CredentialPlace {
    /// Basic auth with this user, if one can have that name.
    pub fn basic(user: &str) -> Option<Self> {
        let is_user =
            !user.is_empty() && user.len() <= 256 && user.bytes().all(|b| b.is_ascii_graphic() && b != b':');
        is_user.then(|| Self::Basic { user: user.to_owned() })
    }

    /// A header of this name, if a credential may be put there.
    pub fn header(name: &str) -> Option<Self> {
        let name = name.to_ascii_lowercase();
        let is_name = !name.is_empty()
            && name.len() <= 64
            && name.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-');
        (is_name && !NO_PLACE.contains(&name.as_str())).then_some(Self::Header { name })
    }
}

/// Which credential a descriptor has: whoever reads the sources and whoever has the rules read the profile at different times, so
/// nothing goes by its order.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SecretFor {
    /// The host.
    pub host: String,
    /// The port.
    pub port: u16,
    /// Where in a request it is put.
    pub place: CredentialPlace,
}

impl SecretFor {
    /// Whether it is the credential of these rules.
    pub fn is_of(&self, rules: &HostCredential) -> bool {
        (&self.host, self.port, &self.place) == (&rules.host, rules.port, &rules.place)
    }
}

impl From<&HostCredential> for SecretFor {
    fn from(rules: &HostCredential) -> Self {
        Self { host: rules.host.clone(), port: rules.port, place: rules.place.clone() }
    }
}

impl fmt::Display for SecretFor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { host, port, place } = self;
        match place {
            CredentialPlace::Bearer => write!(f, "{host}:{port} (bearer)"),
            CredentialPlace::Basic { user } => write!(f, "{host}:{port} (user {user})"),
            CredentialPlace::Header { name } => write!(f, "{host}:{port} (header {name})"),
        }
    }
}

/// Credentials that are not those of the rules.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum OtherSecrets {
    /// Rules without.
    #[error("no credential was given for {0}")]
    Missing(SecretFor),
    /// One without rules, or a second one.
    #[error("a credential was given for {0}, which the profile does not have there, or twice")]
    Strange(SecretFor),
}

/// Puts each credential beside its rules, in the rules' order: there has to be one for each of them, and no other.
///
/// # Errors
/// Which there is not, or is too much.
pub fn assigned<T>(
    rules: &[HostCredential],
    given: impl IntoIterator<Item = (SecretFor, T)>,
) -> Result<Vec<T>, OtherSecrets> {
    let mut places: Vec<Option<T>> = rules.iter().map(|_| None).collect();
    for (of, secret) in given {
        let place = rules.iter().zip(&mut places).find(|(rules, place)| of.is_of(rules) && place.is_none());
        match place {
            Some((_, place)) => *place = Some(secret),
            None => return Err(OtherSecrets::Strange(of)),
        }
    }
    let whole = rules.iter().zip(places);
    whole.map(|(rules, place)| place.ok_or_else(|| OtherSecrets::Missing(rules.into()))).collect()
}

/// What the core says.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum ToCredentials {
    /// The first message. Beside it nothing, or the descriptor that an earlier process of the container sent with its
    /// [`FromCredentials::Ready`].
    Start(CredentialsStart),
    /// Beside it the descriptor of a credential. One for each host of the start, in any order.
    Secret(SecretFor),
    /// Beside it a socket to an egress worker of the container, in the place of the one of before.
    Link {
        /// The core's number for the pair, higher than any before.
        id: u64,
    },
    /// The rules from now on. A host that had no credential at the start gets none. Answered by [`FromCredentials::InForce`].
    Rules {
        /// The core's number for them.
        id: u64,
        /// All of them.
        hosts: Vec<HostCredential>,
    },
    /// End: connections are ended.
    Stop,
}

/// What the process is started with.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CredentialsStart {
    /// Public id of the container.
    pub container: String,
    /// Name of its profile, for what users are told.
    pub profile: String,
    /// The hosts, each with one credential.
    pub hosts: Vec<HostCredential>,
}

/// What the process says to the core.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum FromCredentials {
    /// It is confined and has its credentials. Once, before any other message but a complaint; said before the first byte that a
    /// container or a server chose. Beside it the descriptor of a sealed file in memory with the key of the container's CA, at most
    /// [`MAX_AUTHORITY`] bytes: for the next process of the container, and for nobody to read.
    Ready {
        /// The certificate of the container's CA.
        certificate: Certificate,
    },
    /// Answers [`ToCredentials::Rules`]: they hold for every request from now on, and of none that was under way and that they
    /// do not allow has a byte gone on since: its connection is ended, WebSockets included.
    InForce {
        /// The number of those rules.
        id: u64,
    },
    /// The link to an egress worker is gone, without another in its place: another pair, please.
    LinkEnded {
        /// The pair's number.
        id: u64,
    },
    /// What the operator should know. At most [`crate::egress::MAX_SENTENCE`] bytes, no credential and no name that an agent chose.
    Complaint(String),
}

/// An egress worker hands a connection over. Beside it two descriptors: the client's socket and the server's.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Take {
    /// The worker's own number for it, never used twice.
    pub id: u64,
    /// The host: what its address stands for, and its ClientHello names.
    pub host: String,
    /// The port.
    pub port: u16,
    /// What the client said so far, in base64.
    pub said: String,
}

/// What the egress worker hears of its connections.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum FromLink {
    /// It is over. Nothing comes of it any more.
    Over {
        /// Its number.
        id: u64,
        /// Bytes to its server.
        sent: u64,
        /// Bytes from its server.
        received: u64,
        /// Why it did not just pass, if it did not: [`EgressCause::Reflects`] if a credential came back in it, or else the first that
        /// was refused of it.
        refused: Option<TakenRefusal>,
    },
}

/// Why a connection, or a request of it, was refused.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TakenRefusal {
    /// What can be said without a sentence.
    pub cause: EgressCause,
    /// The sentence: at most [`crate::egress::MAX_SENTENCE`] bytes.
    pub reason: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_credential_is_put_where_it_says_nothing_else() {
        assert_eq!(
            CredentialPlace::header("PRIVATE-TOKEN"),
            Some(CredentialPlace::Header { name: "private-token".into() })
        );
        assert!(CredentialPlace::header("Authorization").is_some());
        for name in
            ["", "Host", "content-length", "Transfer-Encoding", "a b", "a:", "x_y", "X-HTTP-Method-Override"]
        {
            assert_eq!(CredentialPlace::header(name), None, "{name}");
        }
        assert!(CredentialPlace::basic("x-access-token").is_some());
        for user in ["", "a:b", "a b", "\u{e4}"] {
            assert_eq!(CredentialPlace::basic(user), None, "{user}");
        }
        assert!(NO_PLACE.is_sorted());
    }

    #[test]
    fn messages_look_as_they_are_documented() {
        let host = HostCredential {
            host: "a.org".into(),
            port: 443,
            place: CredentialPlace::Basic { user: "u".into() },
            allow: vec!["GET /a/**".parse().unwrap()],
            otherwise: Otherwise::Refuse,
            cookies: false,
        };
        let start = CredentialsStart { container: "c".into(), profile: "p".into(), hosts: vec![host] };
        assert_eq!(
            serde_json::to_string(&ToCredentials::Start(start)).unwrap(),
            concat!(
                r#"{"start":{"container":"c","profile":"p","hosts":[{"host":"a.org","port":443,"#,
                r#""place":{"basic":{"user":"u"}},"allow":["GET /a/**"],"otherwise":"refuse"}]}}"#
            )
        );
        let secret = SecretFor { host: "a.org".into(), port: 443, place: CredentialPlace::Bearer };
        assert_eq!(
            serde_json::to_string(&ToCredentials::Secret(secret)).unwrap(),
            r#"{"secret":{"host":"a.org","port":443,"place":"bearer"}}"#
        );
        let strange = r#"{"link_ended":{"id":1,"key":"y"}}"#;
        assert!(serde_json::from_str::<FromCredentials>(strange).is_err());
        assert!(serde_json::from_str::<FromCredentials>(r#"{"link_ended":{"id":1}}"#).is_ok());
        assert!(serde_json::from_str::<FromCredentials>(r#"{"ready":{"certificate":"x"}}"#).is_err());
    }

    #[test]
    fn each_credential_goes_to_its_own_rules_and_to_no_others() {
        let rules = |host: &str, port, place| HostCredential {
            host: host.into(),
            port,
            place,
            allow: Vec::new(),
            otherwise: Otherwise::Refuse,
            cookies: false,
        };
        let of = |host: &str, port| SecretFor { host: host.into(), port, place: CredentialPlace::Bearer };
        let hosts =
            [rules("a.org", 443, CredentialPlace::Bearer), rules("b.org", 443, CredentialPlace::Bearer)];
        let (a, b) = (of("a.org", 443), of("b.org", 443));
        let given = [(b.clone(), "of b"), (a.clone(), "of a")];
        assert_eq!(assigned(&hosts, given.clone()), Ok(vec!["of a", "of b"]), "whatever their order");
        assert_eq!(assigned(&hosts, [(a.clone(), "")]), Err(OtherSecrets::Missing(b.clone())));
        for strange in [a.clone(), of("c.org", 443), of("a.org", 8443)] {
            let more = given.clone().into_iter().chain([(strange.clone(), "")]);
            assert_eq!(assigned(&hosts, more), Err(OtherSecrets::Strange(strange)));
        }
        let elsewhere = [rules("a.org", 443, CredentialPlace::Basic { user: "u".into() })];
        assert_eq!(assigned(&elsewhere, [(a.clone(), "")]), Err(OtherSecrets::Strange(a)));
    }
}
