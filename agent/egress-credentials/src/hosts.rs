//! The hosts that have a credential: what is done with it, and the value that is put into requests.

use crate::{mask::Mask, refusal::Refusal};
use base64::{Engine as _, engine::general_purpose::STANDARD};
use bytes::Bytes;
use hyper::header::{AUTHORIZATION, HeaderName, HeaderValue, InvalidHeaderValue};
use ringfence_credentials::Secret;
use ringfence_wire::{
    credentials::{CredentialPlace, HostCredential, SHORTEST},
    egress::EgressCause,
};
use std::{cell::RefCell, rc::Rc};
use zeroize::Zeroizing;

/// Why a credential cannot be put in.
#[derive(Debug, thiserror::Error)]
pub enum Unfit {
    /// It would be found everywhere.
    #[error(
        "the credential of {0} has fewer than {SHORTEST} characters, so that it could be guessed from what is kept from coming back: use a token that a service made"
    )]
    Short(String),
    /// It would not be found in each of its spellings, or is cut where lines end.
    #[error(
        "the credential of {0} has a character that is not printable ASCII, so that it cannot be kept from coming back"
    )]
    Unprintable(String),
    /// It would take too much memory to look for all of them.
    #[error(
        "the credentials are too long together to be kept from coming back: give the container fewer, or shorter ones"
    )]
    Together,
    /// No header can have it.
    #[error("the credential of {0} fits in no header")]
    Header(String, #[source] InvalidHeaderValue),
}

/// A host.
pub(crate) struct Host {
    /// What is in force.
    pub(crate) rules: HostCredential,
    /// Where it is put, and what.
    pub(crate) value: (HeaderName, HeaderValue),
}

/// A secret's memory as a header's, without a copy.
struct Shared {
    secret: Secret,
    is_bearer: bool,
}

impl AsRef<[u8]> for Shared {
    fn as_ref(&self) -> &[u8] {
        if self.is_bearer { self.secret.bearer().as_bytes() } else { self.secret.expose().as_bytes() }
    }
}

impl Host {
    /// A host with its credential.
    ///
    /// # Errors
    /// [`Unfit`].
    pub(crate) fn new(rules: HostCredential, secret: &Secret) -> Result<Self, Unfit> {
        if secret.expose().len() < SHORTEST {
            return Err(Unfit::Short(rules.host));
        }
        if secret.expose().bytes().any(|byte| byte != b' ' && !byte.is_ascii_graphic()) {
            return Err(Unfit::Unprintable(rules.host));
        }
        let value = value(&rules.place, secret).map_err(|error| Unfit::Header(rules.host.clone(), error))?;
        Ok(Self { rules, value })
    }
}

fn value(place: &CredentialPlace, secret: &Secret) -> Result<(HeaderName, HeaderValue), InvalidHeaderValue> {
    let (name, secret, is_bearer) = match place {
        CredentialPlace::Bearer => (AUTHORIZATION, secret.clone(), true),
        CredentialPlace::Basic { user } => {
            let whole = Zeroizing::new(format!("{user}:{}", secret.expose()));
            let encoded = Zeroizing::new(STANDARD.encode(whole.as_bytes()));
            let mut value = String::with_capacity(6 + encoded.len());
            value.push_str("Basic ");
            value.push_str(&encoded);
            (AUTHORIZATION, Secret::from(value), false)
        }
        CredentialPlace::Header { name } => {
            // Only names that are header names are made into a place.
            let name = HeaderName::from_bytes(name.as_bytes()).unwrap_or(AUTHORIZATION);
            (name, secret.clone(), false)
        }
    };
    let mut value = HeaderValue::from_maybe_shared(Bytes::from_owner(Shared { secret, is_bearer }))?;
    value.set_sensitive(true);
    Ok((name, value))
}

/// All hosts, under the rules that are in force.
pub(crate) struct Hosts {
    hosts: RefCell<Vec<Rc<Host>>>,
    /// How all credentials are kept from coming back, whichever host answers: one may show what another was sent. What is taken out
    /// of the rules is looked for as well.
    pub(crate) mask: Mask,
}

impl Hosts {
    /// Hosts, each with its credential.
    ///
    /// # Errors
    /// [`Unfit`].
    pub(crate) fn new(hosts: Vec<(HostCredential, Secret)>) -> Result<Self, Unfit> {
        let secrets: Vec<Secret> = hosts.iter().map(|(_, secret)| secret.clone()).collect();
        let hosts = hosts.into_iter().map(|(rules, secret)| Host::new(rules, &secret).map(Rc::new));
        // Each is one that can be looked for: then all of them.
        let hosts = RefCell::new(hosts.collect::<Result<_, _>>()?);
        let mask = Mask::all(&secrets).ok_or(Unfit::Together)?;
        Ok(Self { hosts, mask })
    }

    /// A host at a port.
    ///
    /// # Errors
    /// It has no credential.
    pub(crate) fn find(&self, host: &str, port: u16) -> Result<Rc<Host>, Refusal> {
        let hosts = self.hosts.borrow();
        let found = hosts.iter().find(|known| known.rules.host == host && known.rules.port == port);
        found.cloned().ok_or_else(|| {
            Refusal::new(
                EgressCause::NoCredential,
                "the profile has had a credential for it only since the container was started: start it again",
            )
        })
    }

    /// Other rules. A host that is none of them has no credential any more; one that had none gets none.
    pub(crate) fn replace(&self, rules: &[HostCredential]) {
        let mut hosts = self.hosts.borrow_mut();
        let renewed = rules.iter().filter_map(|rules| {
            let same = |host: &&Rc<Host>| {
                // Where another place is said, the value is another.
                (&host.rules.host, host.rules.port, &host.rules.place)
                    == (&rules.host, rules.port, &rules.place)
            };
            let host = hosts.iter().find(same)?;
            Some(Rc::new(Host { rules: rules.clone(), value: host.value.clone() }))
        });
        let renewed = renewed.collect();
        *hosts = renewed;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ringfence_wire::credentials::Otherwise;

    fn rules(host: &str, place: CredentialPlace) -> HostCredential {
        let allow = vec!["GET /a".parse().unwrap()];
        HostCredential {
            host: host.into(),
            port: 443,
            place,
            allow,
            otherwise: Otherwise::Refuse,
            cookies: false,
        }
    }

    fn header(place: CredentialPlace) -> (String, String) {
        let host =
            Host::new(rules("a.org", place), &Secret::from("secret-token-of-a-service".to_owned())).unwrap();
        assert!(!format!("{:?}", host.value).contains("secret"));
        (host.value.0.to_string(), host.value.1.to_str().unwrap().to_owned())
    }

    #[test]
    fn a_credential_has_the_form_that_its_place_asks_for() {
        let of = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        assert_eq!(header(CredentialPlace::Bearer), of("authorization", "Bearer secret-token-of-a-service"));
        let basic = CredentialPlace::basic("me").unwrap();
        assert_eq!(header(basic), of("authorization", "Basic bWU6c2VjcmV0LXRva2VuLW9mLWEtc2VydmljZQ=="));
        let own = CredentialPlace::header("PRIVATE-TOKEN").unwrap();
        assert_eq!(header(own), of("private-token", "secret-token-of-a-service"));
        let of_length = |length| {
            Host::new(rules("a.org", CredentialPlace::Bearer), &Secret::from("k".repeat(length))).map(drop)
        };
        assert!(matches!(of_length(15), Err(Unfit::Short(_))) && of_length(16).is_ok());
        let basic = CredentialPlace::basic("me").unwrap();
        for text in ["two\nlines of a text", "schl\u{fc}ssel-wort-lang"] {
            let unfit = Host::new(rules("a.org", basic.clone()), &Secret::from(text.to_owned()));
            assert!(matches!(unfit, Err(Unfit::Unprintable(_))), "{text}");
        }
    }

    fn of(name: &str, key: String) -> (HostCredential, Secret) {
        (rules(name, CredentialPlace::Bearer), Secret::from(key))
    }

    #[test]
    fn what_any_host_answers_is_searched_for_the_credentials_of_all() {
        let hosts = Hosts::new(vec![
            of("a.org", "secret-token-of-a".to_owned()),
            of("b.org", "secret-token-of-b".to_owned()),
        ])
        .unwrap();
        // Also for one that is in the rules no more.
        hosts.replace(&[rules("a.org", CredentialPlace::Bearer)]);
        for key in ["secret-token-of-a", "secret-token-of-b"] {
            assert!(hosts.mask.masked(key.as_bytes()).is_some(), "{key}");
        }
        assert!(hosts.mask.masked(b"secret-token-of-c").is_none(), "the control");
    }

    #[test]
    fn more_than_can_be_looked_for_is_refused() {
        let key = |number: usize| format!("{number:05}{}", "k".repeat(2000));
        let several = |count: usize| {
            (0..count).map(|number| of(&format!("{number}.org"), key(number))).collect::<Vec<_>>()
        };
        assert!(Hosts::new(several(8)).is_ok());
        assert!(matches!(Hosts::new(several(12)), Err(Unfit::Together)));
        let same = (0..64).map(|number| of(&format!("{number}.org"), key(1))).collect();
        assert!(Hosts::new(same).is_ok(), "one for many hosts is looked for once");
        assert!(Hosts::new(vec![of("a.org", "k".repeat(16 << 10))]).is_ok(), "the longest");
    }

    #[test]
    fn other_rules_give_no_host_a_credential_that_it_had_not() {
        let secret = || Secret::from("secret-token-of-a-service".to_owned());
        let hosts = Hosts::new(vec![
            (rules("a.org", CredentialPlace::Bearer), secret()),
            (rules("b.org", CredentialPlace::Bearer), secret()),
        ])
        .unwrap();
        assert!(hosts.find("a.org", 443).is_ok() && hosts.find("a.org", 8443).is_err());
        let wider = HostCredential { otherwise: Otherwise::Pass, ..rules("a.org", CredentialPlace::Bearer) };
        let elsewhere = rules("b.org", CredentialPlace::basic("me").unwrap());
        hosts.replace(&[wider, elsewhere, rules("c.org", CredentialPlace::Bearer)]);
        assert_eq!(hosts.find("a.org", 443).unwrap().rules.otherwise, Otherwise::Pass);
        for gone in ["b.org", "c.org"] {
            assert_eq!(hosts.find(gone, 443).err().unwrap().cause, EgressCause::NoCredential, "{gone}");
        }
    }
}
