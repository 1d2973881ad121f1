//! The file of JSON in which an agent keeps what its user logged in with.

use super::{Error, Secret, checked, open, shown};
use serde_json::value::RawValue;
use std::{
    borrow::Cow,
    collections::HashMap,
    io::Read as _,
    path::PathBuf,
    time::{SystemTime, UNIX_EPOCH},
};
use zeroize::Zeroizing;

/// Most bytes of such a file.
const MAX_BYTES: u64 = 256 << 10;

/// A login of the user's: a credential in a file of JSON, that only its owner can read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Login {
    /// The file.
    pub path: PathBuf,
    /// The credential's place, as a JSON pointer (RFC 6901).
    pub at: String,
    /// That of the time when it expires, in milliseconds since 1970.
    pub expires: Option<String>,
    /// How it is renewed, if it can be.
    pub renewal: Option<Renewal>,
}

/// How a login is renewed: RFC 6749, section 6, for a client without a secret.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Renewal {
    /// The token endpoint: https, or http on this host.
    pub url: String,
    /// What the agent calls itself there.
    pub client: String,
    /// The refresh token's place in the login's file, as a JSON pointer.
    pub at: String,
    /// The endpoint takes JSON, where the RFC has a form.
    pub json: bool,
}

/// What a token endpoint gave.
#[derive(Debug)]
pub struct Renewed {
    /// The credential.
    pub access: Secret,
    /// The next refresh token, where it is another.
    pub refresh: Option<Secret>,
    /// When the credential expires, in milliseconds since 1970.
    pub expires: Option<u64>,
}

impl Login {
    /// The credential, unless it is over.
    ///
    /// # Errors
    /// [`Error`]; [`Error::Expired`] where it is over.
    pub fn read(&self) -> Result<Secret, Error> {
        let text = self.text()?;
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis();
        if let Some(time) = self.expires.as_ref().and_then(|expires| find::<u64>(&text, expires))
            && u128::from(time) <= now
        {
            return Err(Error::Expired(self.path.clone()));
        }
        self.secret(&text, &self.at)
    }

    /// What renews it. `None`: nothing does.
    ///
    /// # Errors
    /// [`Error`].
    pub fn refresh_token(&self) -> Result<Option<Secret>, Error> {
        let Some(renewal) = &self.renewal else { return Ok(None) };
        self.secret(&self.text()?, &renewal.at).map(Some)
    }

    /// The whole file with what came in its place, and all else as it was, byte for byte.
    ///
    /// # Errors
    /// [`Error`]; [`Error::NoLogin`]: the file has no such places any more.
    pub fn renewed(&self, new: &Renewed) -> Result<Zeroizing<String>, Error> {
        let mut text = self.text()?;
        let refresh = self.renewal.as_ref().map(|renewal| &renewal.at).zip(new.refresh.as_ref());
        let secrets = [(&self.at, &new.access)].into_iter().chain(refresh);
        for (at, secret) in secrets {
            text = replaced(&text, at, &quoted(secret)).ok_or_else(|| self.none(at))?;
        }
        if let Some((at, time)) = self.expires.as_ref().zip(new.expires)
            && let Some(replaced) = replaced(&text, at, &time.to_string())
        {
            text = replaced;
        }
        Ok(text)
    }

    fn text(&self) -> Result<Zeroizing<String>, Error> {
        let io = |source| Error::File(self.path.clone(), source);
        // Room for all of it at once: a string that grows leaves copies behind.
        let mut text = Zeroizing::new(String::with_capacity(MAX_BYTES as usize + 2));
        open(&self.path)?.take(MAX_BYTES + 1).read_to_string(&mut text).map_err(io)?;
        if text.len() as u64 > MAX_BYTES {
            return Err(Error::TooLong(shown(&self.path.display().to_string()).to_string()));
        }
        Ok(text)
    }

    fn secret(&self, text: &str, at: &str) -> Result<Secret, Error> {
        let found: Text<'_> = find(text, at).ok_or_else(|| self.none(at))?;
        if found.0.is_empty() {
            return Err(self.none(at));
        }
        checked(&found.0, &shown(&self.path.display().to_string()))
    }

    fn none(&self, at: &str) -> Error {
        Error::NoLogin { path: self.path.clone(), at: at.to_owned() }
    }
}

/// A text, borrowed from the file's unless something in it is escaped; no credential has anything to escape.
#[derive(serde::Deserialize)]
struct Text<'a>(#[serde(borrow)] Cow<'a, str>);

/// What is at a JSON pointer, if it is of that type. Nothing on the way is copied.
fn find<'a, T: serde::Deserialize<'a>>(text: &'a str, pointer: &str) -> Option<T> {
    serde_json::from_str(part(text, pointer)?).ok()
}

/// The part of a JSON text that a pointer names.
fn part<'a>(text: &'a str, pointer: &str) -> Option<&'a str> {
    let mut rest: &'a str = text;
    for key in pointer.strip_prefix('/')?.split('/') {
        let key = key.replace("~1", "/").replace("~0", "~");
        let object: HashMap<Cow<'a, str>, &'a RawValue> = serde_json::from_str(rest).ok()?;
        rest = object.get(key.as_str())?.get();
    }
    Some(rest)
}

/// The text with `value` in place of what a pointer names.
fn replaced(text: &str, pointer: &str, value: &str) -> Option<Zeroizing<String>> {
    let old = part(text, pointer)?;
    // A part of the very text, so the difference of addresses is its place there.
    let start = (old.as_ptr() as usize).checked_sub(text.as_ptr() as usize)?;
    let (before, after) = (text.get(..start)?, text.get(start + old.len()..)?);
    let mut whole = Zeroizing::new(String::with_capacity(before.len() + value.len() + after.len()));
    for part in [before, value, after] {
        whole.push_str(part);
    }
    Some(whole)
}

/// A credential as JSON: printable ASCII.
fn quoted(secret: &Secret) -> Zeroizing<String> {
    let text = secret.expose();
    let mut quoted = Zeroizing::new(String::with_capacity(2 * text.len() + 2));
    quoted.push('"');
    for character in text.chars() {
        if matches!(character, '"' | '\\') {
            quoted.push('\\');
        }
        quoted.push(character);
    }
    quoted.push('"');
    quoted
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{fs, os::unix::fs::PermissionsExt as _};

    fn of(path: PathBuf, expires: Option<&str>) -> Login {
        let renewal = Renewal {
            url: "https://example.org/token".into(),
            client: "me".into(),
            at: "/oauth/refresh".into(),
            json: false,
        };
        let expires = expires.map(str::to_owned);
        Login { path, at: "/oauth/access".into(), expires, renewal: Some(renewal) }
    }

    fn login(text: &str, expires: Option<&str>) -> Result<Secret, Error> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("login.json");
        fs::write(&path, text).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        of(path, expires).read()
    }

    #[test]
    fn a_login_is_found_by_its_pointer_and_not_used_once_it_is_over() {
        let text = |expires: u64| {
            format!(r#"{{"a":[1],"oauth":{{"expires":{expires},"access":"sk-ant-oat01-x"}}}}"#)
        };
        assert_eq!(login(&text(0), None).unwrap().expose(), "sk-ant-oat01-x");
        let far = 4_000_000_000_000;
        assert_eq!(login(&text(far), Some("/oauth/expires")).unwrap().expose(), "sk-ant-oat01-x");
        assert!(matches!(login(&text(1000), Some("/oauth/expires")), Err(Error::Expired(_))));
        for none in
            ["", "{}", "[]", r#"{"oauth":{"access":""}}"#, r#"{"oauth":{"access":null}}"#, r#"{"oauth":3}"#]
        {
            assert!(matches!(login(none, None), Err(Error::NoLogin { .. })), "{none}");
        }
        assert!(matches!(login(r#"{"oauth":{"access":"a\nb"}}"#, None), Err(Error::Unprintable(_))));
        assert!(matches!(login(&"x".repeat(300 << 10), None), Err(Error::TooLong(_))));
    }

    #[test]
    fn one_that_others_may_read_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("login.json");
        fs::write(&path, r#"{"oauth":{"access":"b"}}"#).unwrap();
        let login = of(path.clone(), None);
        fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
        assert!(matches!(login.read(), Err(Error::Exposed { .. })));
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        assert_eq!(login.read().unwrap().expose(), "b");
    }

    #[test]
    fn a_renewal_changes_what_it_brought_and_nothing_else() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("login.json");
        let before = "{ \"oauth\": {\n\t\"refresh\":\"old-r\", \"expires\": 1000,\n \"access\":\"old-a\", \"scopes\":[\"a\"]}, \"z\":\"\u{fc}\" }\n";
        fs::write(&path, before).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        let login = of(path.clone(), Some("/oauth/expires"));
        assert!(matches!(login.read(), Err(Error::Expired(_))));
        assert_eq!(login.refresh_token().unwrap().unwrap().expose(), "old-r");
        let new = |access: &str, refresh: Option<&str>, expires| Renewed {
            access: access.to_owned().into(),
            refresh: refresh.map(|text| text.to_owned().into()),
            expires,
        };
        let renewed = login.renewed(&new("new \"a\" \\", Some("new-r"), Some(4_000_000_000_000))).unwrap();
        let expected = before
            .replace("old-r", "new-r")
            .replace("old-a", r#"new \"a\" \\"#)
            .replace("1000", "4000000000000");
        assert_eq!(*renewed, expected);
        fs::write(&path, &*renewed).unwrap();
        assert_eq!(login.read().unwrap().expose(), "new \"a\" \\");
        let kept = login.renewed(&new("newest", None, None)).unwrap();
        assert!(
            kept.contains("new-r") && kept.contains("4000000000000") && kept.contains("newest"),
            "{}",
            *kept
        );
        fs::write(&path, r#"{"oauth":{"access":"a"}}"#).unwrap();
        assert!(matches!(login.renewed(&new("b", Some("c"), None)), Err(Error::NoLogin { .. })));
        assert!(matches!(login.refresh_token(), Err(Error::NoLogin { .. })));
    }
}
