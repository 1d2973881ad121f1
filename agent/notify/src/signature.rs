//! The signature of a webhook, as Standard Webhooks has it: HMAC-SHA256 of the message's id, the time and the body. Pure.

use base64::{Engine as _, engine::general_purpose::STANDARD};
use ringfence_credentials::Secret;
use sha2::{Digest, Sha256};
use zeroize::Zeroizing;

/// What stands before a secret.
const PREFIX: &str = "whsec_";
/// Bytes that a secret has.
const FEWEST: usize = 24;
const MOST: usize = 64;
/// Bytes of a block of SHA-256.
const BLOCK: usize = 64;

/// Why a text is no secret of a webhook. Never says what it is.
#[derive(Debug, thiserror::Error)]
#[error(
    "the webhook's secret is not one: it is {PREFIX} and {FEWEST} to {MOST} random bytes in base64; `echo {PREFIX}$(head -c 32 /dev/urandom | base64 -w 0)` makes one, which the receiver has to know, too"
)]
pub struct NoKey;

/// What signs.
pub struct SigningKey(Zeroizing<[u8; BLOCK]>);

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
        Ok(Self(padded(&bytes)))
    }

    /// The value of `webhook-signature` for a message of that id, sent at `seconds` since 1970.
    pub(crate) fn sign(&self, id: &str, seconds: i64, body: &[u8]) -> String {
        let time = seconds.to_string();
        let mac = hmac(&self.0, &[id.as_bytes(), b".", time.as_bytes(), b".", body]);
        format!("v1,{}", STANDARD.encode(mac))
    }
}

/// A key of one block.
fn padded(key: &[u8]) -> Zeroizing<[u8; BLOCK]> {
    let mut block = Zeroizing::new([0; BLOCK]);
    block.iter_mut().zip(key).for_each(|(to, from)| *to = *from);
    block
}

/// HMAC-SHA256 (RFC 2104).
fn hmac(key: &[u8; BLOCK], parts: &[&[u8]]) -> [u8; 32] {
    let masked = |mask: u8| {
        let mut block = Zeroizing::new(*key);
        block.iter_mut().for_each(|byte| *byte ^= mask);
        block
    };
    let mut inner = Sha256::new().chain_update(masked(0x36).as_slice());
    parts.iter().for_each(|part| inner.update(part));
    Sha256::new().chain_update(masked(0x5c).as_slice()).chain_update(inner.finalize()).finalize().into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    #[test]
    fn it_is_hmac_sha256_by_the_vectors_of_rfc_4231() {
        let of = |key: &[u8], data: &[u8]| hex(&hmac(&padded(key), &[data]));
        assert_eq!(
            of(&[0x0b; 20], b"Hi There"),
            "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7"
        );
        assert_eq!(
            of(b"Jefe", b"what do ya want for nothing?"),
            "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843"
        );
        assert_eq!(
            of(&[0xaa; 20], &[0xdd; 50]),
            "773ea91e36800e46854db8ebd09181a72959098b3ef8c122d9635514ced565fe"
        );
        let parts = hmac(&padded(b"Jefe"), &[b"what do ya ", b"", b"want for nothing?"]);
        assert_eq!(hex(&parts), of(b"Jefe", b"what do ya want for nothing?"), "in pieces");
    }

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
