//! One receiver of webhooks: its address, its secret, attempts and the pauses between them. It may be slow, dead or hostile: of its
//! answers only the status is looked at.

use super::{
    notice::Notice,
    queue::{Deliver, Delivered, Queue},
    say,
    signature::SigningKey,
};
use reqwest::{
    Client, StatusCode,
    header::{CONTENT_TYPE, RETRY_AFTER},
    redirect::Policy,
};
use ringfence_base::{clock::now_micros, counted::counted, error::chain};
use std::{error::Error, io, net::IpAddr, sync::Arc, time::Duration};
use tokio::runtime::{Builder, Runtime};
use url::{Host, Url};

/// How long one attempt may take, from the name's resolution to the answer's head.
const ATTEMPT: Duration = Duration::from_secs(10);
/// The first pause between two attempts; each is twice as long as the one before.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(30);
/// Attempts for one notice. Its call's end comes before, as a rule.
const MOST_ATTEMPTS: u32 = 8;

/// Why an address is none for a webhook.
#[derive(Debug, thiserror::Error)]
pub enum BadAddress {
    /// No address.
    #[error("the webhook's address is none: {0}")]
    NoUrl(#[from] url::ParseError),
    /// It goes over the network in the clear.
    #[error(
        "webhooks require https; plain http is allowed only to this machine (127.0.0.1, [::1], localhost)"
    )]
    Clear,
    /// A credential in it.
    #[error(
        "the webhook's address has a user or a password: everybody on this machine can read a command line"
    )]
    Credential,
    /// No client.
    #[error("cannot make the webhook's client")]
    Client(#[source] reqwest::Error),
    /// No thread.
    #[error("cannot begin to deliver webhooks")]
    Thread(#[source] io::Error),
}

/// A receiver.
#[derive(Debug)]
pub struct Webhook {
    url: Url,
    key: SigningKey,
    client: Client,
}

/// What came of an attempt.
enum Attempt {
    Taken,
    /// It may be taken later, and not before that, where the receiver says when.
    Later(String, Option<Duration>),
    Refused(String),
}

impl Webhook {
    /// A receiver at an address, whose messages that key signs.
    ///
    /// # Errors
    /// [`BadAddress`].
    pub fn new(address: &str, key: SigningKey) -> Result<Self, BadAddress> {
        let url = Url::parse(address)?;
        let is_here = match url.host() {
            Some(Host::Domain(name)) => name == "localhost",
            Some(Host::Ipv4(address)) => IpAddr::from(address).is_loopback(),
            Some(Host::Ipv6(address)) => IpAddr::from(address).is_loopback(),
            None => false,
        };
        if !(url.scheme() == "https" && url.has_host() || url.scheme() == "http" && is_here) {
            return Err(BadAddress::Clear);
        }
        if !url.username().is_empty() || url.password().is_some() {
            return Err(BadAddress::Credential);
        }
        // Whoever came first has set it: there is one provider.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let builder = Client::builder()
            .user_agent(concat!("ringfence/", env!("CARGO_PKG_VERSION")))
            .timeout(ATTEMPT)
            // What is signed goes where the user says, and nowhere else.
            .redirect(Policy::none())
            // A connection is for one message: the next may be hours later.
            .pool_max_idle_per_host(0)
            .http1_only();
        // What is for this machine does not leave it by a proxy.
        let builder = if is_here { builder.no_proxy() } else { builder };
        Ok(Self { url, key, client: builder.build().map_err(BadAddress::Client)? })
    }

    /// Its queue.
    pub(crate) fn start(self) -> Result<Arc<Queue>, BadAddress> {
        let runtime = Builder::new_current_thread().enable_all().build().map_err(BadAddress::Thread)?;
        let deliver: Deliver = Box::new(move |notice, attempt| self.deliver(&runtime, notice, attempt));
        Queue::start("webhook", deliver).map_err(BadAddress::Thread)
    }

    /// Tries to deliver one. What failed is tried again, but for so many times, and until its call is over.
    fn deliver(&self, runtime: &Runtime, notice: &Notice, attempt: u32) -> Delivered {
        let (why, wait) = match runtime.block_on(self.attempt(notice, &notice.body())) {
            Attempt::Taken => return Delivered::Over,
            Attempt::Refused(why) => {
                say(&format!("{} was not taken: {why}", notice.id()));
                return Delivered::Over;
            }
            Attempt::Later(why, wait) => (why, wait),
        };
        let pause = FIRST_PAUSE.saturating_mul(1 << (attempt - 1).min(MOST_ATTEMPTS));
        let wait = wait.unwrap_or(pause).clamp(FIRST_PAUSE, LONGEST_PAUSE);
        let left = notice.until().saturating_sub(now_micros());
        let is_over = i64::try_from(wait.as_micros()).is_ok_and(|wait| wait >= left);
        if is_over || attempt >= MOST_ATTEMPTS {
            say(&format!("{} was not taken in {}: {why}", notice.id(), counted(attempt.into(), "attempt")));
            return Delivered::Over;
        }
        Delivered::Later(why, wait)
    }

    async fn attempt(&self, notice: &Notice, body: &[u8]) -> Attempt {
        let (id, seconds) = (notice.id(), now_micros() / 1_000_000);
        let sent = self
            .client
            .post(self.url.clone())
            .header(CONTENT_TYPE, "application/json")
            .header("webhook-id", &id)
            .header("webhook-timestamp", seconds)
            .header("webhook-signature", self.key.sign(&id, seconds, body))
            .body(body.to_vec())
            .send()
            .await;
        match sent {
            // Its body is not read.
            Ok(answer) => judged(answer.status(), || {
                let text = answer.headers().get(RETRY_AFTER)?.to_str().ok()?;
                text.parse().ok().map(Duration::from_secs)
            }),
            // The address may have a secret in it.
            Err(error) => Attempt::Later(chain(&error.without_url() as &dyn Error), None),
        }
    }
}

/// What a status says.
fn judged(status: StatusCode, retry_after: impl FnOnce() -> Option<Duration>) -> Attempt {
    let said = format!("the receiver answered {}", status.as_u16());
    match status {
        status if status.is_success() => Attempt::Taken,
        StatusCode::REQUEST_TIMEOUT | StatusCode::TOO_MANY_REQUESTS => Attempt::Later(said, retry_after()),
        status if status.is_server_error() => Attempt::Later(said, retry_after()),
        status if status.is_redirection() => Attempt::Refused(format!("{said}; a redirect is not followed")),
        _ => Attempt::Refused(said),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key() -> SigningKey {
        SigningKey::new(&"MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw".to_owned().into()).expect("a key")
    }

    #[test]
    fn only_this_machine_is_told_in_the_clear() {
        for fine in [
            "https://example.org/hook?x=1",
            "http://127.0.0.1:8000/",
            "http://[::1]/",
            "http://localhost:9/x",
            "http://127.9.9.9/",
        ] {
            assert!(Webhook::new(fine, key()).is_ok(), "{fine}");
        }
        for refused in [
            "http://example.org/",
            "http://localhost.example.org/",
            "http://127.0.0.1.example.org/",
            "http://10.0.0.1/",
            "http://[::ffff:10.0.0.1]/",
            "ftp://localhost/",
            "file:///etc/passwd",
            "unix:/run/x",
            "https:",
            "x",
            "",
            "https://user:word@example.org/",
            "https://user@example.org/",
        ] {
            assert!(Webhook::new(refused, key()).is_err(), "{refused}");
        }
    }

    #[test]
    fn what_may_pass_is_tried_again_and_nothing_else() {
        let of = |status: u16| match judged(StatusCode::from_u16(status).expect("a status"), || {
            Some(Duration::from_secs(7))
        }) {
            Attempt::Taken => "taken",
            Attempt::Later(_, Some(_)) => "later",
            Attempt::Later(_, None) => "soon",
            Attempt::Refused(_) => "refused",
        };
        assert_eq!([200, 204].map(of), ["taken"; 2]);
        assert_eq!([408, 429, 500, 503].map(of), ["later"; 4]);
        assert_eq!([301, 307, 400, 401, 404, 410].map(of), ["refused"; 6]);
    }
}
