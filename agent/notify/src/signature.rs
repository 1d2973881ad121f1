//! The signature of a webhook, as Standard Webhooks has it: HMAC-SHA256 of the message's id, the time and the body. Pure.

use base64::{Engine as _, engine::general_purpose::STANDARD};
use hmac::{Hmac, Mac as _};
use ringfence_credentials::Secret;
use sha2::Sha256;
use zeroize::Zeroizing;

/// What stands before a secret.
const PREFIX: &str = "whsec_";
/// Bytes that a secret has.
const FEWEST: usize = 24;
const MOST: usize = 64;

/// Why a text is no secret of a webhook. Never says what it is.
#[derive(Debug, thiserror::Error)]
#[error(
    "the webhook's secret is malformed: expected `{PREFIX}` followed by {FEWEST} to {MOST} random bytes in base64; `echo {PREFIX}$(head -c 32 /dev/urandom | base64 -w 0)` makes one, which the receiver has to know, too"
)]
pub struct NoKey;

/// What signs.
pub struct SigningKey(Hmac<Sha256>);

impl std::fmt::Debug for SigningKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("[redacted]")
    }
}

impl SigningKey {
    /// The key in a secret: `whsec_` and base64, or the base64 alone.
    ///
    /// # Errors
    /// [`NoKey`].
    pub fn new(secret: &Secret) -> Result<Self, NoKey> {
        let text = secret.expose();
        let bytes = STANDARD.decode(text.strip_prefix(PREFIX).unwrap_or(text)).map_err(|_| NoKey)?;
        let bytes = Zeroizing::new(bytes);
        if !(FEWEST..=MOST).contains(&bytes.len()) {
            return Err(NoKey);
        }
        Hmac::new_from_slice(&bytes).map(Self).map_err(|_| NoKey)
    }

    /// The value of `webhook-signature` for a message of that id, sent at `seconds` since 1970.
    pub(crate) fn sign(&self, id: &str, seconds: i64, body: &[u8]) -> String {
        let mac = self.0.clone().chain_update(format!("{id}.{seconds}.")).chain_update(body);
        format!("v1,{}", STANDARD.encode(mac.finalize().into_bytes()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signature_is_that_of_the_scheme_s_own_example() {
        // Of the specification's reference libraries.
        let secret = Secret::from("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw".to_owned());
        let key = SigningKey::new(&secret).expect("a key");
        let signature = key.sign("msg_p5jXN8AQM9LWM0D4loKWxJek", 1_614_265_330, br#"{"test": 2432232314}"#);
        assert_eq!(signature, "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=");
        let plain = SigningKey::new(&"MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw".to_owned().into()).expect("a key");
        assert_eq!(plain.sign("a", 1, b""), key.sign("a", 1, b""), "with the prefix or without");
        assert_eq!(format!("{key:?}"), "[redacted]");
    }

    #[test]
    fn what_is_too_short_or_no_base64_is_refused_without_being_said() {
        for text in ["whsec_", "whsec_AAAA", "not base64!", &format!("whsec_{}", STANDARD.encode([1; 65]))] {
            let error = SigningKey::new(&text.to_owned().into()).expect_err("refused").to_string();
            assert!(error.contains("base64 -w 0") && !error.contains("AAAA\""), "{error}");
        }
        for bytes in [FEWEST, MOST] {
            assert!(SigningKey::new(&STANDARD.encode(vec![1; bytes]).into()).is_ok());
        }
    }
}
