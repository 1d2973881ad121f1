//! What a container may reach by name, and what its egress worker says about it: to its supervisor, the core, and to the auditor.
//! Where there is no core, `ringfence run` is both, and the worker a proxy ([`ToEgress::Proxy`]).
//!
//! The worker's standard input is a stream socketpair whose other end is the core's. The core says [`ToEgress::Start`], the worker
//! confines itself and says [`FromEgress::Ready`]; from then on it asks whose each connection is ([`FromEgress::WhoIs`]) and is
//! answered by [`ToEgress::Flow`] with the question's number. The end of the stream is the end of the core, and the worker's.
//!
//! What is for the record goes to the auditor over a line of its own ([`ToEgress::Line`]), which the core made and which is about
//! this container alone: frames of [`EgressReports`], and where a person is asked, of [`crate::egress_asks`]. Names that agents chose
//! never reach the core: what the worker sends there are numbers, hosts that the core itself named ([`FromEgress::Uploads`]), and a
//! sentence for the operator ([`FromEgress::Complaint`]).

use crate::credentials::HostCredential;
use ipnet::{IpNet, Ipv4Net};
use serde::{
    Deserialize, Deserializer, Serialize,
    de::{self, SeqAccess, Visitor},
};
use std::{
    fmt,
    marker::PhantomData,
    net::{Ipv4Addr, SocketAddr},
};

/// Most bytes of a message of the core's: the names of a policy are the longest.
pub const MAX_ORDER: usize = 4 << 20;
/// Most bytes of a message of the worker's.
pub const MAX_QUESTION: usize = 16 << 10;
/// Most bytes of a frame of [`EgressReports`].
pub const MAX_REPORTS: usize = 256 << 10;
/// Most [`EgressReport`]s in a frame.
pub const REPORTS_AT_ONCE: usize = 64;
/// Most bytes of a name, as DNS has it: without the dot at its end.
pub const MAX_NAME: usize = 253;
/// Most bytes of [`EgressRecord::Connection`]'s reason and of a [`FromEgress::Complaint`].
pub const MAX_SENTENCE: usize = 500;
/// Most [`Upload`]s in a message of the worker's: so many of the longest fit into [`MAX_QUESTION`].
pub const UPLOADS_AT_ONCE: usize = 32;
/// Most connections of which a worker does not know yet whose they are: it accepts no more until it is told.
pub const MOST_ASKING: usize = 384;
/// Exact names that a container's block has addresses for.
pub const MAX_EXACT_NAMES: usize = 127;

/// What a container may reach by name.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Names {
    /// What is granted.
    pub rules: Vec<NameRule>,
    /// What is denied; a deny is stronger than any rule.
    pub denies: Vec<NameRule>,
    /// Addresses that are granted or denied as such.
    pub addresses: Vec<AddressRule>,
    /// The switches of `[net]`.
    pub options: NameOptions,
    /// The hosts whose connections a container's credentials are put into: TLS alone passes there, and ends on the host.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub credentials: Vec<HostCredential>,
    /// The exact names in the order of their addresses, where an earlier policy of the container gave them: [`Names::keep_places`].
    /// Those that no rule has are nobody's. Empty: in the order of the rules.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub places: Vec<String>,
}

/// One entry of a profile's `net` that is about a name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NameRule {
    /// The host, lower-case ASCII, as in the profile: `example.org`, or `*.example.org` for what is one label or more below it.
    pub host: String,
    /// The port; `None`: any.
    pub port: Option<u16>,
    /// What is said there is not looked at: neither TLS nor HTTP is asked for.
    pub tcp: bool,
    /// Its index in the policy's rules, which is what events call it.
    pub rule: u32,
}

/// One entry of a profile's `net` that is about addresses. A name may lead to what is not public only where one allows it; a deny
/// holds for whatever a name leads to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AddressRule {
    /// The addresses.
    pub net: IpNet,
    /// The port; `None`: any.
    pub port: Option<u16>,
    /// Granted, or denied.
    pub allow: bool,
}

/// The switches of a profile's `[net]`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NameOptions {
    /// A ClientHello with an encrypted inner one passes where its outer name is granted.
    pub ech: bool,
    /// Most bytes that the container may send to what one entry grants, over all connections and all of its workers; `None`: any
    /// number. What a wildcard grants shares it.
    pub max_upload: Option<u64>,
    /// How long a connection to a name that is neither granted nor denied waits for a person, seconds; `None`: it is refused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ask: Option<u16>,
}

/// What the core says.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum ToEgress {
    /// The first message. Beside it the sockets, in this order: the listener of redirected connections; DNS over UDP and DNS over
    /// TCP on 127.0.0.1; and where [`EgressStart::v6`], the same two on ::1.
    Start(EgressStart),
    /// The first message to the worker of a run that no core holds. Beside it the listener of its proxy.
    Proxy(EgressProxy),
    /// What may be reached from now on. Connections to what may not be any more are ended.
    Policy {
        /// All of it.
        names: Names,
        /// Denials are recorded, not enforced.
        audit: bool,
    },
    /// Answers [`FromEgress::WhoIs`].
    Flow {
        /// The question's number.
        id: u64,
        /// `None`: no governed task made this connection. It is closed.
        flow: Option<Flow>,
    },
    /// Beside it a new line to the auditor. The one before, if any, is closed.
    Line,
    /// Beside it a socket to the process that has the container's credentials: connections to their hosts are handed to whoever has
    /// its other end ([`crate::credentials::Take`]).
    Credentials {
        /// The core's number for the pair, higher than any before.
        id: u64,
    },
    /// End soon: connections are ended, what waits for the auditor is sent.
    Stop,
}

/// What a worker is started with.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EgressStart {
    /// Public id of the container.
    pub container: String,
    /// Name of its profile, for what users are told.
    pub profile: String,
    /// The container's own addresses: a /24 of 198.18.0.0/15.
    pub block: Ipv4Net,
    /// What may be reached.
    pub names: Names,
    /// Denials are recorded, not enforced.
    pub audit: bool,
    /// There are DNS sockets on ::1, too.
    pub v6: bool,
    /// The container is in the network namespace of the core and the worker. If it is not, no name leads to the host itself, whatever
    /// the profile grants as an address: the container's loopback is another one.
    pub host_network: bool,
    /// What workers before this one said that they had sent or were about to send, of entries of this policy and of earlier ones.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub uploads: Vec<Upload>,
}

/// How much was sent to what one entry grants.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Upload {
    /// The entry, by its [`NameRule::host`].
    pub host: String,
    /// Bytes since the container's names are served. It never becomes less.
    pub bytes: u64,
}

/// What the worker of a run is started with that no core holds: it is a proxy, by HTTP and SOCKS5, and the command's own clients say
/// where to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EgressProxy {
    /// Name of the profile, for what users are told.
    pub profile: String,
    /// What may be reached.
    pub names: Names,
    /// What a client has to have.
    pub token: ProxyToken,
    /// As [`EgressStart::uploads`], of the run's workers.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub uploads: Vec<Upload>,
}

/// The user's name that goes with a [`ProxyToken`].
pub const PROXY_USER: &str = "ringfence";

/// What shows that a client of a proxy is of its run: hex digits. Never shown.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct ProxyToken(pub String);

impl fmt::Debug for ProxyToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ProxyToken")
    }
}

/// Who made a connection and where to, as the kernel has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Flow {
    /// The address of the container's block that was connected to.
    pub address: Ipv4Addr,
    /// The port that was connected to.
    pub port: u16,
    /// Tag of the tool call; 0: none.
    pub call: u64,
    /// Thread id, in the host's namespace.
    pub pid: u32,
    /// Process id, in the host's namespace.
    pub tgid: u32,
    /// When the process started, ns since boot.
    pub start: u64,
    /// User id, in the host's namespace.
    pub uid: u32,
}

/// What the worker says to the core.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum FromEgress {
    /// It is confined and serves its sockets.
    Ready,
    /// Whose connection is this? Answered by [`ToEgress::Flow`].
    WhoIs {
        /// The worker's own number for the question, never used twice.
        id: u64,
        /// The connection's source port on 127.0.0.1.
        port: u16,
    },
    /// What the operator should know. At most [`MAX_SENTENCE`] bytes; no name that an agent or a server chose is in it.
    Complaint(String),
    /// What that complaint was about is over. The same words.
    Over(String),
    /// What it is doing, for `ringfence status`. Unasked, when it changed, not more than once in a while.
    Counts(EgressCounts),
    /// The line to the auditor is gone: another, please.
    Line,
    /// How much is sent to what entries grant, those that changed, at most [`UPLOADS_AT_ONCE`]. Where `max_upload` bounds it, that is
    /// said before it is sent, and the next worker goes on from there: one that dies gives the container no more to send.
    Uploads(Vec<Upload>),
    /// The link to the process that has the container's credentials is gone, without another in its place: another pair, please.
    LinkEnded {
        /// The pair's number.
        id: u64,
    },
}

/// What a worker is doing, and what it counted since it began.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct EgressCounts {
    /// Connections that are open.
    pub open: u64,
    /// Connections that were accepted.
    pub connections: u64,
    /// Of those, refused, or ended because they were not granted any more.
    pub refused: u64,
    /// Of those, whose name could not be resolved or whose server could not be reached.
    pub failed: u64,
    /// Bytes to servers, of connections that are over.
    pub sent: u64,
    /// Bytes from servers, of connections that are over.
    pub received: u64,
    /// Questions for granted names.
    pub names: u64,
    /// Questions for names that are not granted.
    pub refused_names: u64,
    /// Records that found no room.
    pub lost_records: u64,
}

/// Whose a line to the auditor is: its first message ([`McpRequest::Egress`]), by the core, which hands the connection over to the
/// worker then. All that is said on it is about this container.
///
/// [`McpRequest::Egress`]: crate::mcp::McpRequest::Egress
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EgressLine {
    /// The container's kernel id, as in [`Manifest::container`](crate::audit::Manifest::container).
    pub container: u64,
    /// Its public id: 12 hex digits.
    pub public: String,
    /// Name of its profile.
    pub profile: String,
    /// Who enrolled it, and may see its events.
    pub uid: u32,
    /// When that was: microseconds since 1970, UTC.
    pub created: i64,
    /// Its own addresses: no other stands for a name of its.
    pub block: Ipv4Net,
    /// Public id of the outermost container around it; `None`: there is none around it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub within: Option<String>,
}

impl EgressLine {
    /// The outermost container that it is in: itself, where there is none around it. What is counted of one is counted of all within.
    pub fn outermost(&self) -> &str {
        self.within.as_ref().unwrap_or(&self.public)
    }
}

/// A frame on the line to the auditor.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EgressReports {
    /// At least one, at most [`REPORTS_AT_ONCE`]: the next is not read.
    #[serde(deserialize_with = "at_most::<_, EgressReport, REPORTS_AT_ONCE>")]
    pub reports: Vec<EgressReport>,
}

/// A frame has room for thousands of the shortest reports, which would take many times its bytes.
pub(crate) fn at_most<'de, D: Deserializer<'de>, T: Deserialize<'de>, const MOST: usize>(
    deserializer: D,
) -> Result<Vec<T>, D::Error> {
    struct Few<T, const MOST: usize>(PhantomData<T>);
    impl<'de, T: Deserialize<'de>, const MOST: usize> Visitor<'de> for Few<T, MOST> {
        type Value = Vec<T>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            write!(f, "at most {MOST} of them")
        }

        fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Self::Value, A::Error> {
            let mut few = Vec::new();
            while let Some(one) = list.next_element()? {
                if few.len() == MOST {
                    return Err(de::Error::invalid_length(MOST + 1, &self));
                }
                few.push(one);
            }
            Ok(few)
        }
    }
    deserializer.deserialize_seq(Few::<T, MOST>(PhantomData))
}

/// One thing that happened.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EgressReport {
    /// When it began: microseconds since 1970, UTC.
    pub at: i64,
    /// Whose it was, where the kernel said so. A name's never is: a resolver's socket belongs to whoever made it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub flow: Option<Flow>,
    /// What it was.
    pub record: EgressRecord,
}

/// See [`EgressReport`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum EgressRecord {
    /// A connection that begins to pass, is over, or was refused.
    Connection {
        /// The name that its address stands for, at most [`MAX_NAME`] bytes. Empty: the address stands for none.
        name: String,
        /// The port that was connected to.
        port: u16,
        /// The server's address, where it was dialled.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        dialled: Option<SocketAddr>,
        /// It began with a ClientHello.
        tls: bool,
        /// Bytes to the server.
        sent: u64,
        /// Bytes from the server.
        received: u64,
        /// From the connection to its end, µs.
        duration_us: u64,
        /// What became of it.
        outcome: EgressOutcome,
        /// Why that is not [`EgressOutcome::Passed`]; `None` where it is.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        cause: Option<EgressCause>,
        /// The same in words: a sentence of at most [`MAX_SENTENCE`] bytes. What a client or a server chose
        /// may be in it, in printable ASCII.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        reason: Option<String>,
        /// The rule that granted or denied it, by its index in the policy.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        rule: Option<u32>,
    },
    /// A name was asked for.
    Name {
        /// The name, in lower case, printable ASCII, at most [`MAX_NAME`] bytes.
        name: String,
        /// What of it: `A`, `AAAA`, `TXT`; `TYPE65400` where it has no name.
        kind: String,
        /// What was answered.
        outcome: NameOutcome,
        /// The address of the container's block that stands for the name from now on, where it was answered with one.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        address: Option<Ipv4Addr>,
        /// How often it was asked beyond the first time, within the seconds that this record is about.
        repeats: u64,
    },
    /// Records that found no room. Where there were any, one comes with the next that did.
    Lost {
        /// How many.
        count: u64,
    },
}

/// What became of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EgressOutcome {
    /// It begins to pass. What became of it is another record; there is none where its worker was killed.
    Open,
    /// It was granted, and passed until one of its ends ended it.
    Passed,
    /// It was refused before anything reached a server.
    Refused,
    /// Of audit mode: it passed, and would have been refused.
    WouldDeny,
    /// It was granted, and its server could not be reached: its name leads nowhere, or nobody answered.
    Failed,
    /// It passed, and was ended: it sent more than it may, went on to another host, or is not granted any more.
    Ended,
}

/// Why a connection did not just pass: what can be said about it without reading a sentence.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EgressCause {
    /// No rule names the host and port, or the address stands for no name.
    NotGranted,
    /// A rule of the profile's denies names it.
    Denied,
    /// Neither TLS nor HTTP/1.1 came, and the rule is not a `tcp:` one; nothing came at all is the same.
    NotTls,
    /// The ClientHello or a request's `Host` names another host than the address stands for.
    OtherName,
    /// The ClientHello is encrypted, and the profile does not have `ech = true`.
    Ech,
    /// The ClientHello or the head of a request cannot be read, or is too long.
    Malformed,
    /// The name leads to an address that is not public and that the profile does not grant as one.
    NotPublic,
    /// The name has no address.
    Unresolved,
    /// Nobody answered there.
    Unreachable,
    /// It sent more than `max_upload`.
    TooMuch,
    /// The profile does not grant it any more.
    Revoked,
    /// The worker has no room for it, or had to keep what was said over it for too long.
    Full,
    /// The client does not trust the container's own certificate authority, where TLS is ended for a credential: it pins a certificate,
    /// or has roots of its own.
    UntrustedCa,
    /// The server's certificate is not the host's, where TLS is ended for a credential: it was told nothing.
    ServerTls,
    /// No rule of the host's credential names the request.
    NoRule,
    /// There is no credential for the host, although the profile says so.
    NoCredential,
    /// A credential was in what the server sent, and was masked; or it could have come back unseen.
    Reflects,
}

/// What a question for a name was answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NameOutcome {
    /// An address. Recorded when one begins to stand for the name.
    Answered,
    /// The same of a name that is not granted: a person is asked about connections.
    Asked,
    /// That there is none, or that such questions are not answered.
    Refused,
    /// Of audit mode: an address, although the name is not granted.
    WouldDeny,
    /// That it cannot be answered: the container has no address left.
    NoRoom,
}

#[cfg(test)]
mod tests;
