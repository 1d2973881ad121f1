//! Why a connection by name, or a question for a name, came to what it did.
//!
//! What the worker says in words is not repeated here: what a server or an agent chose may be in it, and these sentences are told
//! to agents' models.

use super::{Parts, by_default, by_rule, lines, to_allow, to_deny};
use crate::{
    egress::{Egress, Told},
    manifests::Decider,
    present::Stored,
};
use ringfence_base::escape;
use ringfence_wire::{
    egress::{EgressCause, NameOutcome},
    event::{Connection, Question},
};

/// What is explained of what an egress worker told.
pub(super) fn told(stored: &Stored, egress: &Egress, decider: &Decider) -> Parts {
    match &egress.told {
        Told::Question(question) => asked(stored, &egress.name, question),
        Told::Connection(connection) => connected(stored, egress, connection, decider),
    }
}

/// A host as a profile names it; none where it cannot.
pub(super) fn entry(name: &str, port: Option<u16>) -> Option<String> {
    let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"-_.".contains(&byte);
    let is_host =
        name.contains('.') && !name.starts_with('.') && !name.ends_with('.') && name.bytes().all(plain);
    is_host.then(|| port.map_or_else(|| name.to_owned(), |port| format!("{name}:{port}")))
}

/// Whether a question of this kind is answered for a granted name, with an address or with none: what is refused is the name.
fn is_of_address(kind: &str) -> bool {
    ["A", "AAAA", "HTTPS", "SVCB"].contains(&kind)
}

fn grant(entry: &str) -> String {
    lines("[grant]", &["net"], |key| format!("{key} = {{ only = [{}] }}", escape::toml(entry)))
}

fn asked(stored: &Stored, name: &str, question: &Question) -> Parts {
    let profile = &stored.profile;
    let never = "No line of a profile can allow it.";
    match question.outcome {
        NameOutcome::Answered => {
            let reason = match question.address {
                Some(address) => format!("The name is granted, and {address} stands for it in this container from then on."),
                None => "The name is granted.".to_owned(),
            };
            let line = entry(name, None).map(|entry| format!("[deny]\nnet = [{}]", escape::toml(&entry)));
            (None, reason, format!("To deny it, add this to the profile {profile}."), line)
        }
        NameOutcome::Asked => {
            let reason = match question.address {
                Some(address) => format!(
                    "The name is neither granted nor denied, and the profile has a person asked: {address} stands for it in this \
                     container from then on, and connections there wait for an answer."
                ),
                None => "The name is neither granted nor denied, and the profile has a person asked.".to_owned(),
            };
            let line = entry(name, None).map(|entry| format!("[deny]\nnet = [{}]", escape::toml(&entry)));
            (None, reason, format!("To deny it without a question, add this to the profile {profile}."), line)
        }
        NameOutcome::NoRoom => (
            None,
            "No address of the container's block was left to stand for the name: all those for names below wildcards are in use."
                .to_owned(),
            format!("Grant the hosts that it needs by their whole names in `net` of the profile {profile}: each has an address of its own."),
            None,
        ),
        NameOutcome::Refused | NameOutcome::WouldDeny if !is_of_address(&question.kind) => (
            None,
            format!(
                "Questions of type {} are answered for no name: what goes back and forth in them would be a way out.",
                question.kind
            ),
            format!("{never} Addresses of granted names are answered."),
            None,
        ),
        NameOutcome::Refused | NameOutcome::WouldDeny => {
            let reason = "No rule of `net` grants the name, or one of the profile's denies has it. No question leaves the host for such a name.";
            let Some(entry) = entry(name, Some(443)) else {
                return (None, reason.to_owned(), format!("It is no name of a host. {never}"), None);
            };
            let advice = format!(
                "To allow it, add {} to `net` under `[grant]` in the profile {profile}, with the port that it is for; without one, \
                 all ports are granted.",
                escape::toml(&entry)
            );
            (None, reason.to_owned(), advice, Some(grant(&entry)))
        }
    }
}

fn connected(stored: &Stored, egress: &Egress, connection: &Connection, decider: &Decider) -> Parts {
    let (name, port, profile) = (&egress.name, stored.record.port, &stored.profile);
    let never = "No line of a profile can allow it.";
    let parts = |reason: &str, advice: String, line: Option<String>| (None, reason.to_owned(), advice, line);
    let Some(cause) = egress.cause() else {
        // A connection that was granted has its rule, and no reason.
        let is_approved = matches!(decider, Decider::Unknown) && connection.reason.is_some();
        if !is_approved {
            return decided(stored, decider);
        }
        let deny = entry(name, Some(port)).map(|entry| format!("[deny]\nnet = [{}]", escape::toml(&entry)));
        return parts(
            "No rule of `net` grants it: the profile has a person asked, and it was approved. The event's `reason` says by whom.",
            format!("To deny it without a question, add this to the profile {profile}."),
            deny,
        );
    };
    match cause {
        EgressCause::NotGranted if name.is_empty() => parts(
            "The address stands for no name: nobody in this container was answered with it.",
            "Connect by the name of a host, and grant that.".to_owned(),
            None,
        ),
        EgressCause::NotGranted => by_default(stored),
        EgressCause::Denied => decided(stored, decider),
        EgressCause::NotTls => {
            let entry = entry(name, Some(port)).map(|entry| format!("tcp:{entry}"));
            let advice = match &entry {
                Some(entry) => format!(
                    "To allow it without a look at what is said (SSH, databases), add {} to `net` under `[grant]` in the profile {profile}.",
                    escape::toml(entry)
                ),
                None => never.to_owned(),
            };
            parts(
                "The client began neither with TLS nor with HTTP/1.1, so that nothing said which host it was for; one that waits for \
                 its server to speak first says nothing.",
                advice,
                entry.as_deref().map(grant),
            )
        }
        EgressCause::OtherName => parts(
            "The client named another host than the one that its address stands for: many servers would have led it to the other.",
            "Connect to the other host by its own name, and grant that if nothing does.".to_owned(),
            None,
        ),
        EgressCause::Ech => parts(
            "The ClientHello was encrypted, so that the host it names could not be seen.",
            format!(
                "Browsers send this with every connection: switch it off there. To let it pass where the outer name is granted, set \
                 `ech = true` in `[net]` of the profile {profile}; then any site behind the same front can be reached."
            ),
            Some("[net]\nech = true".to_owned()),
        ),
        EgressCause::Malformed => parts(
            "The ClientHello, or the head of a request, could not be read or was too long.",
            never.to_owned(),
            None,
        ),
        EgressCause::NotPublic => {
            let reason = match connection.dialled {
                Some(dialled) => format!(
                    "The name leads to {}, which is not public, and no rule grants that address.",
                    dialled.ip()
                ),
                None => "The name leads to an address that is not public, and no rule grants that address."
                    .to_owned(),
            };
            let advice = format!(
                "To allow it, grant that very address and port, too, in `net` of the profile {profile}."
            );
            (None, reason, advice, connection.dialled.map(|dialled| grant(&dialled.to_string())))
        }
        EgressCause::Unresolved => parts(
            "It is granted, and the host's resolver has no address for the name.",
            "Look whether the name is right, and whether the host's resolver works (`getent ahosts NAME`)."
                .to_owned(),
            None,
        ),
        EgressCause::Unreachable => parts(
            "It is granted, and none of the name's addresses answered.",
            "Look whether the host reaches it, and whether a firewall is in between.".to_owned(),
            None,
        ),
        EgressCause::TooMuch => parts(
            "The container sent more to this name than `max_upload` allows.",
            format!("To allow more, raise `max_upload` in `[net]` of the profile {profile}."),
            None,
        ),
        EgressCause::Revoked => {
            let (advice, line) = to_allow(stored);
            parts(
                "The profile was changed while the connection was open, and does not grant it any more.",
                advice,
                line,
            )
        }
        EgressCause::Full => parts(
            "The container's egress worker had no room for it, had to keep what was said over it for too long, or could not have a person asked, as too much waits for one already.",
            "Have the container close connections, or open fewer at once; decide what `ringfence approvals` lists.".to_owned(),
            None,
        ),
        EgressCause::UntrustedCa => parts(
            "TLS is ended there to put a credential in, and the client does not trust the container's own certificate authority: it \
             pins the host's certificate, or has roots of its own.",
            format!(
                "Have it read the file that SSL_CERT_FILE names in the container; where it pins a certificate, take the host out of \
                 `[net.credentials]` in the profile {profile}."
            ),
            None,
        ),
        EgressCause::ServerTls => parts(
            "TLS is ended there to put a credential in, and the server's certificate is not one of the host's that this host trusts, \
             so the server was told nothing.",
            "Look who answers at that address, and whether the host has the right certificate authorities.".to_owned(),
            None,
        ),
        EgressCause::NoRule => parts(
            "No rule of the host's `allow` names a request that the client made.",
            format!(
                "To let it have the credential, add its method and path to `allow` in `[net.credentials]` of the profile {profile}; \
                 `otherwise = \"pass\"` lets other requests go on without it."
            ),
            None,
        ),
        EgressCause::NoCredential => parts(
            "The profile has a credential for the host, and the container was started without it, or the daemon was started again \
             since.",
            "Start the container again with `ringfence run`.".to_owned(),
            None,
        ),
        EgressCause::Reflects => parts(
            "The server's answer was encoded, or in another protocol, so that the credential could have come back in it unseen.",
            "Leave the request out of `allow`, and let it go on without a credential (`otherwise = \"pass\"`).".to_owned(),
            None,
        ),
    }
}

/// By the rule that the worker named, if that names the host.
fn decided(stored: &Stored, decider: &Decider) -> Parts {
    if let Decider::Rule(rule) = decider {
        let (reason, advice, line) = by_rule(stored, rule);
        return (Some((**rule).clone()), reason, advice, line);
    }
    let (advice, line) = to_deny(stored);
    let allowed = stored.record.verdict == ringfence_common::event::verdict::ALLOWED;
    match allowed {
        true => (None, "A rule of the profile grants it; which one is not known.".to_owned(), advice, line),
        false => (
            None,
            "One of the profile's denies has it; which one is not known.".to_owned(),
            format!("Look at `deny` in the profile {}.", stored.profile),
            None,
        ),
    }
}
