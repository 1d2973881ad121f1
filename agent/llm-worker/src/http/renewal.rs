//! A fresh credential where the provider refused the one of before: tokens that a command prints expire.

use super::Shared;
use crate::core_client::CoreClient;
use std::{
    sync::Arc,
    time::{Duration, Instant},
};
use tokio::{
    sync::{Mutex, watch},
    time::timeout,
};

/// How long the service may take to read the credentials: a command may ask somebody else.
const PATIENCE: Duration = Duration::from_secs(30);
/// How often it is asked at most. Clients can have a provider refuse anything as often as they like.
const PAUSE: Duration = Duration::from_secs(10);

/// Asks the service of one user for a fresh credential. The daemon's workers have what they were started with.
pub(crate) struct KeyRenewal {
    host: CoreClient,
    /// When it was asked last. Held while it is: calls that were refused together wait for one answer.
    asked: Mutex<Option<Instant>>,
}

impl KeyRenewal {
    /// One that asks over this link.
    pub(crate) fn new(host: CoreClient) -> Self {
        Self { host, asked: Mutex::default() }
    }

    /// What a call goes out with again whose credential was `refused`; none: there is no other one, or the profile changed
    /// with it, for which the request was not made.
    pub(super) async fn after(&self, refused: &Shared, current: &watch::Receiver<Shared>) -> Option<Shared> {
        if !self.host.has_service() {
            return None;
        }
        let fits = |fresh: &Shared| {
            !fresh.provider.has_key_of(&refused.provider) && fresh.config.llm == refused.config.llm
        };
        let mut current = current.clone();
        let mut asked = self.asked.lock().await;
        let before = current.borrow_and_update().clone();
        if fits(&before) {
            return Some(before);
        }
        if asked.is_some_and(|asked| asked.elapsed() < PAUSE) {
            return None;
        }
        *asked = Some(Instant::now());
        self.host.key_refused();
        let is_other = |fresh: &Shared| !Arc::ptr_eq(&fresh.provider, &before.provider);
        let fresh = timeout(PATIENCE, current.wait_for(is_other)).await;
        // From its end on: those that waited meanwhile do not each wait as long.
        *asked = Some(Instant::now());
        let fresh = fresh.ok()?.ok()?.clone();
        fits(&fresh).then_some(fresh)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{redact::Redactor, samples, upstream::Provider};
    use ringfence_credentials::Secret;

    fn shared(key: &str) -> Shared {
        let config = Arc::new(samples::config());
        let key = Secret::from(key.to_owned());
        let provider = Arc::new(Provider::new(&config.llm, Some(&key), None).unwrap());
        Shared { config, provider, redactor: Arc::new(Redactor::new([&key])) }
    }

    #[tokio::test]
    async fn without_a_service_there_is_no_other_key() {
        let (old, new) = (shared("sk-of-before"), shared("sk-of-today"));
        let (_sender, current) = watch::channel(new);
        assert!(KeyRenewal::new(CoreClient::default()).after(&old, &current).await.is_none());
    }

    #[test]
    fn a_key_is_told_from_another() {
        let of = |key: &str| shared(key).provider;
        assert!(of("sk-of-before").has_key_of(&of("sk-of-before")));
        assert!(!of("sk-of-before").has_key_of(&of("sk-of-today")));
    }
}
