//! What a JSON Web Token (RFC 7519) says of itself. Nothing is checked: who is sent one does that.

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use serde::Deserialize;
use zeroize::Zeroizing;

/// What is read of its claims.
#[derive(Deserialize)]
struct Claims {
    /// When it expires, in seconds since 1970.
    exp: f64,
}

/// When a credential expires, in seconds since 1970. `None`: it is no such token, or does not say.
pub(super) fn expires(credential: &str) -> Option<u64> {
    let mut parts = credential.split('.');
    let (_, claims, _) = (parts.next()?, parts.next()?, parts.next()?);
    if parts.next().is_some() {
        return None;
    }
    let claims = Zeroizing::new(URL_SAFE_NO_PAD.decode(claims).ok()?);
    let Claims { exp } = serde_json::from_slice(&claims).ok()?;
    // The cast cuts the fraction off, and makes what is negative 0: over for long.
    Some(exp as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn token(claims: &str) -> String {
        format!("eyJhbGciOiJub25lIn0.{}.c2ln", URL_SAFE_NO_PAD.encode(claims))
    }

    #[test]
    fn a_token_says_when_it_expires_and_nothing_else_does() {
        let of = |claims: &str| expires(&token(claims));
        assert_eq!(of(r#"{"sub":"me","exp":1700000000}"#), Some(1_700_000_000));
        assert_eq!((of(r#"{"exp":1700000000.9}"#), of(r#"{"exp":-7}"#)), (Some(1_700_000_000), Some(0)));
        for claims in ["{}", "[]", "", r#"{"exp":"soon"}"#, r#"{"exp":null}"#, r#"{"exp":1e999}"#, "\u{fc}"] {
            assert_eq!(of(claims), None, "{claims}");
        }
        let whole = token(r#"{"exp":7}"#);
        assert_eq!(expires(&whole), Some(7), "the control");
        for other in ["", "sk-ant-oat01-x", "a.b", "a.!.c", "..", &format!("{whole}.more")] {
            assert_eq!(expires(other), None, "{other}");
        }
    }
}
