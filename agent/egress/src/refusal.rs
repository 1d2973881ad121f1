//! Why a connection is refused, and how its client learns of it: a TLS alert, an HTTP answer, or a reset.

use crate::{
    flow::{Mover, Seen},
    records::sentence,
};
use ringfence_names::{Opening, http, opening, tls};
use ringfence_wire::egress::EgressCause;
use rustix::net::{SendFlags, Shutdown, send, shutdown, sockopt::set_socket_linger};
use std::time::Duration;
use tokio::{
    net::TcpStream,
    time::{Instant, timeout_at},
};

/// How long a client whose first bytes nobody waited for may take to show what it speaks.
const SHOWING: Duration = Duration::from_secs(1);
/// How long a client that was told may take to close.
const CLOSING: Duration = Duration::from_secs(1);

/// Why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Refusal {
    pub(crate) cause: EgressCause,
    /// A sentence for the record and for users.
    pub(crate) reason: String,
    /// The rule that says so.
    pub(crate) rule: Option<u32>,
}

impl Refusal {
    pub(crate) fn new(cause: EgressCause, reason: &str) -> Self {
        Self { cause, reason: sentence(reason), rule: None }
    }

    /// What reading a ClientHello found.
    pub(crate) fn of_tls(refused: &tls::Refused) -> Self {
        let cause = match refused {
            tls::Refused::AnotherName(_) | tls::Refused::Name(_) => EgressCause::OtherName,
            tls::Refused::NotAHandshake(_) | tls::Refused::Sslv2 => EgressCause::NotTls,
            _ => EgressCause::Malformed,
        };
        Self::new(cause, &refused.to_string())
    }

    /// What reading requests found.
    pub(crate) fn of_http(refused: &http::Refused) -> Self {
        let cause = match refused {
            http::Refused::AnotherHost(_)
            | http::Refused::AnotherPort
            | http::Refused::NoHost
            | http::Refused::Host(_) => EgressCause::OtherName,
            http::Refused::NotHttp | http::Refused::Http2 => EgressCause::NotTls,
            _ => EgressCause::Malformed,
        };
        Self::new(cause, &refused.to_string())
    }

    /// Whether the server is at fault, and not the client.
    pub(crate) fn is_failure(&self) -> bool {
        matches!(self.cause, EgressCause::Unresolved | EgressCause::Unreachable | EgressCause::ServerTls)
    }

    /// What a person could change.
    fn advice(&self, name: &str, port: u16) -> String {
        match self.cause {
            EgressCause::NotGranted => {
                format!("To allow it, put \"{name}:{port}\" into `net` of the profile.")
            }
            EgressCause::NotTls => format!(
                "Only TLS and HTTP/1.1 are passed on here; to allow any protocol, put \"tcp:{name}:{port}\" into `net` of the profile."
            ),
            EgressCause::Ech => "Browsers send this with every connection: switch it off in the browser (docs/profiles.md, \"Browsers\"). `ech = true` in [net] of the profile lets it pass, and then any site behind the same front can be reached.".to_owned(),
            EgressCause::NotPublic => {
                "To allow it, put the address into `net` of the profile, beside the name.".to_owned()
            }
            EgressCause::Denied => "A deny of the profile says so.".to_owned(),
            EgressCause::OtherName => {
                "Each name is reached at its own address: resolve the other name.".to_owned()
            }
            EgressCause::TooMuch => {
                "`max_upload` in [net] of the profile says how much may be sent.".to_owned()
            }
            EgressCause::NoCredential => "Start the container again with `ringfence run`.".to_owned(),
            EgressCause::Malformed
            | EgressCause::Unresolved
            | EgressCause::Unreachable
            | EgressCause::Revoked
            | EgressCause::UntrustedCa
            | EgressCause::ServerTls
            | EgressCause::NoRule
            | EgressCause::Reflects
            | EgressCause::Full => "`ringfence events why` has more.".to_owned(),
        }
    }

    /// The alert that a TLS client is told (RFC 8446 section 6).
    fn alert(&self) -> [u8; 7] {
        const FATAL: u8 = 2;
        let description = match self.cause {
            EgressCause::OtherName => 112,
            EgressCause::Malformed => 50,
            EgressCause::Unresolved | EgressCause::Unreachable | EgressCause::Full => 80,
            EgressCause::NotGranted
            | EgressCause::Denied
            | EgressCause::NotTls
            | EgressCause::Ech
            | EgressCause::NotPublic
            | EgressCause::TooMuch
            | EgressCause::UntrustedCa
            | EgressCause::ServerTls
            | EgressCause::NoRule
            | EgressCause::NoCredential
            | EgressCause::Reflects
            | EgressCause::Revoked => 49,
        };
        [21, 3, 3, 0, 2, FATAL, description]
    }

    /// What an HTTP client is told.
    pub(crate) fn answer(&self, profile: &str, name: &str, port: u16) -> String {
        let status = if self.is_failure() { "502 Bad Gateway" } else { "403 Forbidden" };
        let what = if self.is_failure() { "could not connect" } else { "refused a connection" };
        let body = format!(
            "Ringfence {what} to {name}:{port} (profile {profile}): {}. {}\n",
            self.reason,
            self.advice(name, port)
        );
        let cause = match self.cause {
            EgressCause::NotGranted => "not-granted",
            EgressCause::Denied => "denied",
            EgressCause::NotTls => "not-tls",
            EgressCause::OtherName => "other-name",
            EgressCause::Ech => "ech",
            EgressCause::Malformed => "malformed",
            EgressCause::NotPublic => "not-public",
            EgressCause::Unresolved => "unresolved",
            EgressCause::Unreachable => "unreachable",
            EgressCause::TooMuch => "too-much",
            EgressCause::Revoked => "revoked",
            EgressCause::Full => "full",
            EgressCause::UntrustedCa => "untrusted-ca",
            EgressCause::ServerTls => "server-tls",
            EgressCause::NoRule => "no-rule",
            EgressCause::NoCredential => "no-credential",
            EgressCause::Reflects => "reflects",
        };
        format!(
            "HTTP/1.1 {status}\r\nContent-Type: text/plain; charset=utf-8\r\nContent-Length: {}\r\nCache-Control: no-store\r\nConnection: close\r\nx-ringfence-error: {cause}\r\n\r\n{body}",
            body.len()
        )
    }

    /// Tells a client to which nobody has spoken yet, in the protocol that it speaks, and closes the connection. `seen`: what its
    /// first byte begins, where that was taken.
    pub(crate) async fn tell(
        &self,
        mover: &Mover,
        client: TcpStream,
        seen: Option<Opening>,
        (profile, name, port): (&str, &str, u16),
    ) {
        let speaks = match seen {
            Some(seen) => Some(seen),
            None => {
                let first = mover.look(&client, 0, |bytes| bytes.first().map(|byte| opening(*byte)));
                match timeout_at(Instant::now() + SHOWING, first).await {
                    Ok(Ok(Seen::Bytes(speaks))) => speaks,
                    _ => None,
                }
            }
        };
        let said = match speaks {
            Some(Opening::Tls) => self.alert().to_vec(),
            Some(Opening::Http) => self.answer(profile, name, port).into_bytes(),
            Some(Opening::Unknown) | None => Vec::new(),
        };
        say_last(mover, client, &said).await;
    }
}

/// Says this to a client and closes the connection; nothing: so that the client sees an error.
pub(crate) async fn say_last(mover: &Mover, client: TcpStream, said: &[u8]) {
    if said.is_empty() {
        return reset(client);
    }
    // What it sent is taken first: else closing resets the connection, and the client may never see what it is told.
    mover.discard(&client);
    if send(&client, said, SendFlags::NOSIGNAL | SendFlags::DONTWAIT).is_err() {
        return reset(client);
    }
    let _ = shutdown(&client, Shutdown::Write);
    let until = Instant::now() + CLOSING;
    let closes = async {
        // A few times: whoever goes on sending is not listened to for long.
        for _ in 0..64 {
            if !matches!(mover.look(&client, 0, |_| ()).await, Ok(Seen::Bytes(()))) {
                return;
            }
            mover.discard(&client);
        }
    };
    let _ = timeout_at(until, closes).await;
}

/// Closes a connection so that its peer sees an error, and no orderly end.
pub(crate) fn reset(stream: TcpStream) {
    let _ = set_socket_linger(&stream, Some(Duration::ZERO));
    drop(stream);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_http_client_is_told_what_and_why_and_what_to_do() {
        let refusal = Refusal::new(EgressCause::NotGranted, "no rule names it\r\nSet-Cookie: x");
        let answer = refusal.answer("coder", "example.org", 8080);
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        assert!(head.starts_with("HTTP/1.1 403 Forbidden\r\n"), "{head}");
        assert!(head.contains("x-ringfence-error: not-granted"), "{head}");
        assert!(head.contains(&format!("Content-Length: {}\r\n", body.len())), "{head}");
        assert_eq!(
            body,
            "Ringfence refused a connection to example.org:8080 (profile coder): no rule names it??Set-Cookie: x. \
             To allow it, put \"example.org:8080\" into `net` of the profile.\n"
        );
    }

    #[test]
    fn a_tls_client_is_told_by_an_alert() {
        let refusal = Refusal::new(EgressCause::OtherName, "it names another");
        assert_eq!(refusal.alert(), [21, 3, 3, 0, 2, 2, 112]);
    }
}
