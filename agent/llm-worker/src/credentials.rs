//! The credentials of one agent. In its worker each is in memory once ([`Secret`]): the headers that carry it and the
//! redactor that looks for it share that memory.

use super::{upstream, worker};
use bytes::Bytes;
use reqwest::header::{HeaderValue, InvalidHeaderValue};
use ringfence_credentials::{self as secret, Secret, Source};
use ringfence_policy::agents::registry::AgentConfig;
use ringfence_wire::agent::CredentialOwner;
use std::os::fd::OwnedFd;

/// The credentials that a configuration wants, each with what it is for.
#[derive(Debug, Default)]
pub(crate) struct Credentials(Vec<(CredentialOwner, Secret)>);

impl Credentials {
    /// Adds one that the supervisor handed over. False: the configuration has nothing that it is for.
    ///
    /// # Errors
    /// It cannot be read.
    pub(crate) fn take(
        &mut self,
        config: &AgentConfig,
        of: CredentialOwner,
        descriptor: OwnedFd,
    ) -> Result<bool, secret::Error> {
        let secret = Secret::from_descriptor(descriptor)?;
        let is_wanted = config.has(&of);
        if is_wanted {
            self.0.push((of, secret));
        }
        Ok(is_wanted)
    }

    /// The one for the model or for an MCP server.
    pub(crate) fn of(&self, of: &CredentialOwner) -> Option<&Secret> {
        self.0.iter().find(|(whose, _)| whose == of).map(|(_, secret)| secret)
    }

    /// All of them.
    pub(crate) fn secrets(&self) -> impl Iterator<Item = &Secret> {
        self.0.iter().map(|(_, secret)| secret)
    }

    /// Reads them from their sources. Blocks: they come from files and commands.
    ///
    /// # Errors
    /// The first that cannot be had.
    pub(crate) fn read(config: &AgentConfig) -> Result<Self, worker::Error> {
        read_each(config, Ok).map(Self)
    }
}

/// Reads the credentials that a configuration wants from their sources, and makes something of each. Blocks.
///
/// # Errors
/// The first that cannot be had.
pub(crate) fn read_each<T>(
    config: &AgentConfig,
    make: impl Fn(Secret) -> Result<T, secret::Error>,
) -> Result<Vec<(CredentialOwner, T)>, worker::Error> {
    let one = |(of, source): (CredentialOwner, &Source)| match source.read().and_then(&make) {
        Ok(made) => Ok((of, made)),
        Err(source) => Err(match of {
            CredentialOwner::Llm | CredentialOwner::Account => worker::Error::Provider {
                name: config.llm.name.clone(),
                source: upstream::Error::Secret(source),
            },
            CredentialOwner::Mcp(name) => worker::Error::Token { name, source },
        }),
    };
    config.credentials().into_iter().map(one).collect()
}

/// How a header carries a credential.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Scheme {
    /// By itself.
    Bare,
    /// Behind `Bearer `.
    Bearer,
}

/// A header's value in a credential's memory. Its clones, one for each request, are no copies.
///
/// # Errors
/// It does not fit into a header.
pub(crate) fn header(secret: &Secret, scheme: Scheme) -> Result<HeaderValue, InvalidHeaderValue> {
    let shared = Shared { secret: secret.clone(), scheme };
    let mut value = HeaderValue::from_maybe_shared(Bytes::from_owner(shared))?;
    value.set_sensitive(true);
    Ok(value)
}

struct Shared {
    secret: Secret,
    scheme: Scheme,
}

impl AsRef<[u8]> for Shared {
    fn as_ref(&self) -> &[u8] {
        let text = match self.scheme {
            Scheme::Bare => self.secret.expose(),
            Scheme::Bearer => self.secret.bearer(),
        };
        text.as_bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_and_its_clones_are_no_copies() {
        let secret = Secret::from("sk-0123456789".to_owned());
        for (scheme, text) in [(Scheme::Bare, secret.expose()), (Scheme::Bearer, secret.bearer())] {
            let value = header(&secret, scheme).unwrap();
            assert!(value.is_sensitive());
            assert_eq!(value.as_bytes(), text.as_bytes());
            for value in [value.clone(), value] {
                assert_eq!(value.as_bytes().as_ptr(), text.as_ptr());
            }
        }
    }
}
