//! What the browser brings back, and what a token endpoint and a registration answer. Pure. Hostile: nothing of it is shown.

use super::challenge::scopes;
use ringfence_credentials::Secret;
use ringfence_wire::mcp_login::ClientAuth;
use serde::Deserialize;
use serde_json::value::RawValue;
use std::collections::HashMap;
use url::form_urlencoded;
use zeroize::Zeroizing;

/// Most bytes of an answer.
pub const MAX: usize = 256 << 10;
/// Longest code, client id or name of an error that is looked at, in bytes.
const MAX_CODE: usize = 4096;
const MAX_ERROR: usize = 64;
/// Most seconds that a token is believed to last: ten years.
const MAX_LIFE: f64 = 10.0 * 365.0 * 86_400.0;

/// Why what came is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// Not for this login.
    #[error(
        "the answer in the browser is not that of this login (its state is another); nothing was taken of it. Follow the address that was printed last"
    )]
    State,
    /// Of another authorization server.
    #[error(
        "the answer in the browser is another authorization server's (its iss is another, or missing); nothing was taken of it"
    )]
    Issuer,
    /// The user or the server said no.
    #[error("the authorization server did not log you in{}", named(.0))]
    Refused(Option<String>),
    /// Neither.
    #[error("the answer in the browser has no code")]
    NoCode,
}

fn named(error: &Option<String>) -> String {
    match error.as_deref() {
        Some("access_denied") => ": access was denied there (access_denied)".to_owned(),
        Some("invalid_scope") => {
            " (invalid_scope): it does not know a scope that was asked for; name others with --scope"
                .to_owned()
        }
        Some(error) => format!(" ({error})"),
        None => String::new(),
    }
}

/// The code of an answer, which came as the query of the address that the browser was sent back to.
///
/// # Errors
/// [`Refusal`].
pub fn code(query: &str, state: &str, issuer: &str, says_issuer: bool) -> Result<Secret, Refusal> {
    let pairs: Vec<(String, Zeroizing<String>)> = form_urlencoded::parse(query.as_bytes())
        .take(32)
        .map(|(name, value)| (name.into_owned(), Zeroizing::new(value.into_owned())))
        .collect();
    let of = |name: &str| {
        let mut values = pairs.iter().filter(|(own, _)| own == name).map(|(_, value)| value.as_str());
        let first = values.next();
        // Two of a name: readers differ in which they take.
        (first, values.next().is_some())
    };
    if of("state") != (Some(state), false) {
        return Err(Refusal::State);
    }
    // RFC 9207, section 2.4, before anything else of it counts: an error is another's, too.
    match of("iss") {
        (None, _) if !says_issuer => {}
        (Some(iss), false) if iss == issuer => {}
        _ => return Err(Refusal::Issuer),
    }
    if let (Some(error), _) = of("error") {
        return Err(Refusal::Refused(error_name(error)));
    }
    match of("code") {
        (Some(code), false) if code.len() <= MAX_CODE => Secret::checked(code).map_err(|_| Refusal::NoCode),
        _ => Err(Refusal::NoCode),
    }
}

/// An error's name, if it is one of the RFC's kind.
pub fn error_name(text: &str) -> Option<String> {
    let is_name = |byte: u8| byte.is_ascii_lowercase() || byte == b'_';
    Some(text)
        .filter(|text| !text.is_empty() && text.len() <= MAX_ERROR && text.bytes().all(is_name))
        .map(str::to_owned)
}

/// The name of the error of a refusal in JSON (RFC 6749, section 5.2; RFC 7591, section 3.2.2).
pub fn refusal(text: &[u8]) -> Option<String> {
    #[derive(Deserialize)]
    struct Refusal {
        error: String,
    }
    error_name(&serde_json::from_slice::<Refusal>(text).ok()?.error)
}

/// What a token endpoint gives (RFC 6749, section 5.1).
#[derive(Debug)]
pub struct Tokens {
    /// The access token.
    pub access: Secret,
    /// The refresh token.
    pub refresh: Option<Secret>,
    /// In how many seconds the access token expires.
    pub expires_in: Option<u64>,
    /// What was granted, where that is not what was asked for.
    pub scopes: Option<Vec<String>>,
}

/// Reads an answer of a token endpoint; `None`: there is no token in it that can be used.
pub fn tokens(text: &[u8]) -> Option<Tokens> {
    let keys: HashMap<String, &RawValue> = serde_json::from_slice(text).ok()?;
    let word = |key: &str| serde_json::from_str::<String>(keys.get(key)?.get()).ok().map(Zeroizing::new);
    let token = |key: &str| Secret::checked(&word(key)?).ok().filter(|secret| secret.pipe().is_ok());
    // Another kind would be sent in another way.
    if word("token_type").is_some_and(|kind| !kind.eq_ignore_ascii_case("bearer")) {
        return None;
    }
    let seconds = keys.get("expires_in").and_then(|value| serde_json::from_str::<f64>(value.get()).ok());
    Some(Tokens {
        access: token("access_token")?,
        refresh: token("refresh_token"),
        expires_in: seconds
            .filter(|seconds| (0.0..=MAX_LIFE).contains(seconds))
            .map(|seconds| seconds as u64),
        scopes: word("scope").map(|list| scopes(&list)),
    })
}

/// A client as an authorization server knows it.
#[derive(Debug, Clone)]
pub struct Client {
    /// Its id.
    pub id: String,
    /// Its secret.
    pub secret: Option<Secret>,
    /// How it shows who it is.
    pub auth: ClientAuth,
}

/// Reads an answer to a registration (RFC 7591, section 3.2.1); `None`: there is no client in it that can be used. `auths`: how the
/// server says that clients may show who they are.
pub fn registered(text: &[u8], auths: Option<&[String]>) -> Option<Client> {
    #[derive(Deserialize)]
    struct Registered {
        client_id: String,
        client_secret: Option<String>,
        token_endpoint_auth_method: Option<String>,
    }
    let Registered { client_id, client_secret, token_endpoint_auth_method } =
        serde_json::from_slice(text).ok()?;
    let secret = match client_secret.map(Zeroizing::new).filter(|secret| !secret.is_empty()) {
        Some(secret) => Some(Secret::checked(&secret).ok().filter(|secret| secret.pipe().is_ok())?),
        None => None,
    };
    let id = Some(client_id).filter(|id| is_client(id))?;
    let auth = auth(token_endpoint_auth_method.as_deref(), secret.is_some(), auths);
    Some(Client { id, secret: secret.filter(|_| auth != ClientAuth::None), auth })
}

/// Whether a text can be a client's id.
pub fn is_client(id: &str) -> bool {
    !id.is_empty() && id.len() <= MAX_CODE && id.bytes().all(|byte| (0x20..=0x7e).contains(&byte))
}

/// How a client shows who it is: as it was told, or by what the server says that it takes.
pub fn auth(told: Option<&str>, has_secret: bool, auths: Option<&[String]>) -> ClientAuth {
    let takes = |name: &str| auths.is_some_and(|auths| auths.iter().any(|auth| auth == name));
    match told {
        _ if !has_secret => ClientAuth::None,
        Some("none") => ClientAuth::None,
        Some("client_secret_post") => ClientAuth::Post,
        Some("client_secret_basic") => ClientAuth::Basic,
        // Without a word of either, RFC 8414 has the header.
        _ if takes("client_secret_post") && !takes("client_secret_basic") => ClientAuth::Post,
        _ => ClientAuth::Basic,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ISSUER: &str = "https://as.example";

    #[test]
    fn a_code_is_taken_of_this_login_s_server_alone() {
        let of = |query: &str, says| code(query, "s1", ISSUER, says).map(|code| code.expose().to_owned());
        let iss = "iss=https%3A%2F%2Fas.example";
        assert_eq!(of("code=c%2F1&state=s1", false), Ok("c/1".into()));
        assert_eq!(of(&format!("code=c&state=s1&{iss}"), true), Ok("c".into()));
        assert_eq!(of(&format!("code=c&state=s1&{iss}"), false), Ok("c".into()));
        for query in
            ["", "code=c", "code=c&state=", "code=c&state=s2", "code=c&state=s1&state=s1", "error=x&state=S1"]
        {
            assert_eq!(of(query, false), Err(Refusal::State), "{query}");
        }
        assert_eq!(of("code=c&state=s1", true), Err(Refusal::Issuer), "it says that it says so");
        for other in ["https://as.example/", "https://AS.example", "https://other.example", ""] {
            for what in ["code=c", "error=access_denied"] {
                assert_eq!(
                    of(&format!("{what}&state=s1&iss={other}"), false),
                    Err(Refusal::Issuer),
                    "{other}"
                );
            }
        }
        assert_eq!(of(&format!("code=c&state=s1&{iss}&{iss}"), true), Err(Refusal::Issuer));
        assert_eq!(
            of("error=access_denied&state=s1", false),
            Err(Refusal::Refused(Some("access_denied".into())))
        );
        assert_eq!(of("error=%1b[31m&state=s1&code=c", false), Err(Refusal::Refused(None)), "not shown");
        for query in ["state=s1", "state=s1&code=", "state=s1&code=a&code=b", "state=s1&code=%0a"] {
            assert_eq!(of(query, false), Err(Refusal::NoCode), "{query}");
        }
    }

    #[test]
    fn only_bearer_tokens_are_some() {
        let found = tokens(br#"{"access_token":"a","token_type":"bearer","expires_in":3600,"refresh_token":"r","scope":"x y","more":[1]}"#);
        let found = found.unwrap();
        assert_eq!((found.access.expose(), found.expires_in), ("a", Some(3600)));
        assert_eq!(
            (found.refresh.unwrap().expose(), found.scopes.unwrap()),
            ("r", vec!["x".into(), "y".into()])
        );
        let bare = tokens(br#"{"access_token":"a","refresh_token":7,"expires_in":-1}"#).unwrap();
        assert!(bare.refresh.is_none() && bare.expires_in.is_none() && bare.scopes.is_none());
        for none in [
            "",
            "[]",
            "{}",
            r#"{"access_token":""}"#,
            r#"{"access_token":"a\nb"}"#,
            r#"{"access_token":"a","token_type":"mac"}"#,
        ] {
            assert!(tokens(none.as_bytes()).is_none(), "{none}");
        }
    }

    #[test]
    fn a_client_shows_who_it_is_as_it_was_told() {
        let takes = |names: &[&str]| Some(names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>());
        let of = |text: &str, auths: Option<Vec<String>>| {
            registered(text.as_bytes(), auths.as_deref()).unwrap().auth
        };
        assert_eq!(of(r#"{"client_id":"a"}"#, None), ClientAuth::None);
        assert_eq!(of(r#"{"client_id":"a","client_secret":""}"#, None), ClientAuth::None);
        assert_eq!(of(r#"{"client_id":"a","client_secret":"s"}"#, None), ClientAuth::Basic);
        assert_eq!(
            of(r#"{"client_id":"a","client_secret":"s"}"#, takes(&["client_secret_post"])),
            ClientAuth::Post
        );
        for (told, auth) in [
            ("none", ClientAuth::None),
            ("client_secret_post", ClientAuth::Post),
            ("client_secret_basic", ClientAuth::Basic),
        ] {
            let text =
                format!(r#"{{"client_id":"a","client_secret":"s","token_endpoint_auth_method":"{told}"}}"#);
            assert_eq!(of(&text, takes(&["private_key_jwt"])), auth);
        }
        for none in [
            "{}",
            r#"{"client_id":""}"#,
            r#"{"client_id":"a\n"}"#,
            r#"{"client_id":"a","client_secret":"\n"}"#,
        ] {
            assert!(registered(none.as_bytes(), None).is_none(), "{none}");
        }
    }

    #[test]
    fn of_a_refusal_only_its_name_is_known() {
        assert_eq!(
            refusal(br#"{"error":"invalid_redirect_uri","error_description":"x"}"#).as_deref(),
            Some("invalid_redirect_uri")
        );
        for none in ["", "{}", r#"{"error":{"a":1}}"#, r#"{"error":"A token: sk-1"}"#] {
            assert_eq!(refusal(none.as_bytes()), None, "{none}");
        }
    }
}
