//! The file of JSON in which an agent keeps what its user logged in with.

use super::{Error, Secret, checked, jwt, open, open_of_any_mode, shown};
use serde_json::value::RawValue;
use std::{
    borrow::Cow,
    collections::HashMap,
    fs::File,
    io::Read as _,
    path::PathBuf,
    time::{SystemTime, UNIX_EPOCH},
};
use zeroize::Zeroizing;

/// Most bytes of such a file.
const MAX_BYTES: u64 = 256 << 10;

/// A login of the user's: a credential in a file of JSON, that only its owner can read.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Login {
    /// The file.
    pub path: PathBuf,
    /// The credential's place, as a JSON pointer (RFC 6901).
    pub at: String,
    /// That of the time when it expires, in milliseconds since 1970. Without one, a credential that is a JSON Web Token says so itself.
    pub expires: Option<String>,
    /// How many milliseconds before that time it is taken for over.
    pub margin: u64,
    /// Which of a file's logins the agent itself would use, if it has several.
    pub when: Option<When>,
    /// The place of the account's id, of a login with ChatGPT.
    pub chatgpt_account: Option<String>,
    /// How it is renewed, if it can be.
    pub renewal: Option<Box<Renewal>>,
}

/// What a file says of the login that counts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct When {
    /// Where it says so, as a JSON pointer.
    pub at: String,
    /// What stands there. Where nothing does, or null, the login counts, too.
    pub is: String,
}

/// How a login is renewed: RFC 6749, section 6.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Renewal {
    /// The token endpoint: https, or at loopback.
    pub url: String,
    /// What the agent calls itself there.
    pub client: String,
    /// The client's secret, and whether it goes in a header (Basic) or in the form.
    pub secret: Option<(Secret, bool)>,
    /// What the credential is to be for (RFC 8707), where the endpoint is told.
    pub resource: Option<String>,
    /// The login is kept by Ringfence alone: what the user does where it cannot be renewed, in words. Nobody else has its refresh
    /// token, so one whose answer was lost is tried again: it may be good still, and otherwise nothing more is lost.
    pub own: Option<String>,
    /// The refresh token's place in the login's file, as a JSON pointer.
    pub at: String,
    /// The endpoint takes JSON, where the RFC has a form.
    pub json: bool,
    /// Directories that the agent itself makes for as long as it renews: whoever makes one is alone.
    pub locks: Vec<PathBuf>,
    /// One that it makes for as long as it writes the file.
    pub write_lock: Option<PathBuf>,
}

/// What a token endpoint gave.
#[derive(Debug)]
pub struct Renewed {
    /// The credential.
    pub access: Secret,
    /// The next refresh token, where it is another.
    pub refresh: Option<Secret>,
    /// When the credential expires, in milliseconds since 1970.
    pub expires: u64,
}

/// What a login is renewed with.
#[derive(Debug)]
pub struct Renewable {
    /// The refresh token.
    pub token: Secret,
    /// The whole file, as it was when the token was read.
    pub text: Zeroizing<String>,
}

/// What a login's file becomes.
#[derive(Debug)]
pub struct Change {
    /// The whole file, as it was when this was made.
    pub before: Zeroizing<String>,
    /// The whole file, as it is to be.
    pub after: Zeroizing<String>,
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
            && u128::from(time) <= now + u128::from(self.margin)
        {
            return Err(Error::Expired(self.path.clone()));
        }
        let secret = self.access(&text)?;
        let by_itself = || jwt::expires(secret.expose()).is_some_and(|time| u128::from(time) * 1000 <= now);
        if self.expires.is_none() && by_itself() {
            return Err(Error::Expired(self.path.clone()));
        }
        Ok(secret)
    }

    /// The credential, also one that is over.
    ///
    /// # Errors
    /// [`Error`].
    pub fn credential(&self) -> Result<Secret, Error> {
        self.access(&self.text()?)
    }

    /// The id of the account that this credential is of, if it is a login's with ChatGPT and the file has one.
    ///
    /// # Errors
    /// [`Error`]; [`Error::Changed`]: the file has another credential by now, which may be another account's.
    pub fn account(&self, of: &Secret) -> Result<Option<Secret>, Error> {
        let Some(at) = &self.chatgpt_account else { return Ok(None) };
        let text = self.text()?;
        if self.access(&text)? != *of {
            return Err(Error::Changed(self.path.clone()));
        }
        match self.secret(&text, at) {
            Err(Error::NoLogin { .. }) => Ok(None),
            account => account.map(Some),
        }
    }

    /// What it is renewed with. `None`: nothing says how it is renewed.
    ///
    /// # Errors
    /// [`Error`]; [`Error::NoLogin`]: the file has no texts at the places of its credential and of its refresh token, and what comes
    /// in their place could not be kept.
    pub fn renewable(&self) -> Result<Option<Renewable>, Error> {
        let Some(renewal) = &self.renewal else { return Ok(None) };
        let text = self.text()?;
        self.access(&text)?;
        Ok(Some(Renewable { token: self.secret(&text, &renewal.at)?, text }))
    }

    /// Whether the file has exactly this text, also one that others may read.
    ///
    /// # Errors
    /// [`Error`].
    pub fn has(&self, text: &str) -> Result<bool, Error> {
        Ok(*self.text_of_any_mode()? == *text)
    }

    /// The file with what came for the refresh token `sent`, and all else as it was, byte for byte, also of one that others may
    /// read. `None`: the file has another refresh token by now, and is whoever's who wrote that.
    ///
    /// # Errors
    /// [`Error`]; [`Error::NoLogin`]: the file is none of a login's at this moment. Somebody may be writing it.
    pub fn renewed(&self, sent: &Secret, new: &Renewed) -> Result<Option<Change>, Error> {
        let before = self.text_of_any_mode()?;
        let Some(renewal) = &self.renewal else { return Ok(None) };
        if self.secret(&before, &renewal.at)? != *sent {
            return Ok(None);
        }
        let after = self.changed(&before, new)?;
        Ok(Some(Change { before, after }))
    }

    /// A login's file of this text with what came.
    ///
    /// # Errors
    /// [`Error::NoLogin`]: it has no place for that.
    pub fn changed(&self, before: &str, new: &Renewed) -> Result<Zeroizing<String>, Error> {
        let mut text = Zeroizing::new(before.to_owned());
        let refresh_at = self.renewal.as_ref().map(|renewal| &renewal.at);
        let refresh = refresh_at.zip(new.refresh.as_ref());
        for (at, secret) in [(&self.at, &new.access)].into_iter().chain(refresh) {
            text = replaced(&text, at, &quoted(secret)).ok_or_else(|| self.none(at))?;
        }
        // Only a number gives way: nobody knows what else would mean there.
        let expires = self.expires.as_ref().filter(|at| find::<u64>(&text, at).is_some());
        if let Some(replaced) = expires.and_then(|at| replaced(&text, at, &new.expires.to_string())) {
            text = replaced;
        }
        Ok(text)
    }

    /// What came, by a file of such a text ([`Self::changed`]) that only its owner can read.
    ///
    /// # Errors
    /// [`Error`]; [`Error::NoLogin`]: the file is none of a login's.
    pub fn kept_in(&self, path: PathBuf) -> Result<Renewed, Error> {
        let kept = Self { path, ..self.clone() };
        let text = kept.text()?;
        let refresh_at = self.renewal.as_ref().map(|renewal| &renewal.at);
        Ok(Renewed {
            access: kept.secret(&text, &self.at)?,
            refresh: refresh_at.map(|at| kept.secret(&text, at)).transpose()?,
            expires: self.expires.as_ref().and_then(|at| find(&text, at)).unwrap_or_default(),
        })
    }

    fn text(&self) -> Result<Zeroizing<String>, Error> {
        self.text_of(open(&self.path)?)
    }

    fn text_of_any_mode(&self) -> Result<Zeroizing<String>, Error> {
        self.text_of(open_of_any_mode(&self.path)?.0)
    }

    fn text_of(&self, file: File) -> Result<Zeroizing<String>, Error> {
        let io = |source| Error::File(self.path.clone(), source);
        // Room for all of it at once: a string that grows leaves copies behind.
        let mut text = Zeroizing::new(String::with_capacity(MAX_BYTES as usize + 2));
        file.take(MAX_BYTES + 1).read_to_string(&mut text).map_err(io)?;
        if text.len() as u64 > MAX_BYTES {
            return Err(Error::TooLong(shown(&self.path.display().to_string()).to_string()));
        }
        Ok(text)
    }

    /// The credential, if the file says that it is the one that counts.
    fn access(&self, text: &str) -> Result<Secret, Error> {
        if let Some(When { at, is }) = &self.when
            && part(text, at).is_some_and(|found| found != "null")
            && find::<Text<'_>>(text, at).is_none_or(|found| found.0 != *is)
        {
            return Err(self.none(&self.at));
        }
        self.secret(text, &self.at)
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
            ..Renewal::default()
        };
        let expires = expires.map(str::to_owned);
        Login {
            path,
            at: "/oauth/access".into(),
            expires,
            renewal: Some(Box::new(renewal)),
            ..Login::default()
        }
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
    fn a_token_that_says_when_it_expires_is_not_used_behind_that() {
        let text = |claims: &str| {
            use base64::Engine as _;
            let claims = base64::engine::general_purpose::URL_SAFE_NO_PAD.encode(claims);
            format!(r#"{{"oauth":{{"access":"e30.{claims}.c2ln","expires":1000}}}}"#)
        };
        assert!(matches!(login(&text(r#"{"exp":1000}"#), None), Err(Error::Expired(_))));
        assert!(login(&text(r#"{"exp":4000000000}"#), None).is_ok());
        assert!(login(&text("{}"), None).is_ok(), "it does not say");
        // The file's word is the agent's own.
        let far = text(r#"{"exp":1000}"#).replace(":1000}}", ":4000000000000}}");
        assert!(login(&far, Some("/oauth/expires")).is_ok(), "{far}");
    }

    #[test]
    fn of_several_logins_the_one_counts_that_the_file_names() {
        let file = |mode: &str| {
            format!(r#"{{"mode":{mode},"key":"sk-key","oauth":{{"access":"a","refresh":"r"}}}}"#)
        };
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("login.json");
        let put = |text: &str| {
            fs::write(&path, text).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        };
        let when = |is: &str| Some(When { at: "/mode".into(), is: is.into() });
        let oauth = Login { when: when("chatgpt"), ..of(path.clone(), None) };
        let key = Login { path: path.clone(), at: "/key".into(), when: when("apikey"), ..Login::default() };
        for (text, is_oauth, is_key) in [
            (file(r#""chatgpt""#), true, false),
            (file(r#""apikey""#), false, true),
            (file(r#""of tomorrow""#), false, false),
            (file("7"), false, false),
            (file("{}"), false, false),
            // Nothing is said: the first place that has one counts.
            (file("null"), true, true),
            (file("7").replace(r#""mode":7,"#, ""), true, true),
        ] {
            put(&text);
            assert_eq!((oauth.read().is_ok(), key.read().is_ok()), (is_oauth, is_key), "{text}");
            assert_eq!(
                (oauth.credential().is_ok(), oauth.renewable().is_ok()),
                (is_oauth, is_oauth),
                "{text}"
            );
            for error in [oauth.read(), key.read()].into_iter().filter_map(Result::err) {
                assert!(matches!(error, Error::NoLogin { .. }), "{error}");
            }
        }
    }

    #[test]
    fn an_account_is_that_of_the_credential_beside_it() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("login.json");
        let put = |text: &str| {
            fs::write(&path, text).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        };
        let login = Login { chatgpt_account: Some("/oauth/account".into()), ..of(path.clone(), None) };
        let account = |of: &str| login.account(&Secret::from(of.to_owned()));
        put(r#"{"oauth":{"access":"a","account":"acct-1"}}"#);
        assert_eq!(account("a").unwrap().unwrap().expose(), "acct-1");
        assert!(matches!(account("b"), Err(Error::Changed(_))));
        for none in [r#"{"oauth":{"access":"a"}}"#, r#"{"oauth":{"access":"a","account":null}}"#] {
            put(none);
            assert!(account("a").unwrap().is_none(), "{none}");
        }
        assert!(of(path.clone(), None).account(&Secret::from("a".to_owned())).unwrap().is_none());
        // It goes into a header.
        put(r#"{"oauth":{"access":"a","account":"x\ny"}}"#);
        assert!(matches!(account("a"), Err(Error::Unprintable(_))));
        put(r#"{"oauth":{"acc"#);
        assert!(matches!(account("a"), Err(Error::NoLogin { .. })));
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
        let renewable = login.renewable().unwrap().unwrap();
        assert_eq!((renewable.token.expose(), renewable.text.as_str()), ("old-r", before));
        let secret = |text: &str| Secret::from(text.to_owned());
        let new = |access: &str, refresh: Option<&str>, expires| Renewed {
            access: secret(access),
            refresh: refresh.map(secret),
            expires,
        };
        let far = 4_000_000_000_000;
        let old = secret("old-r");
        let renewed = login.renewed(&old, &new("new \"a\" \\", Some("new-r"), far)).unwrap().unwrap();
        let expected = before
            .replace("old-r", "new-r")
            .replace("old-a", r#"new \"a\" \\"#)
            .replace("1000", "4000000000000");
        assert_eq!((renewed.before.as_str(), &*renewed.after), (before, &expected));
        assert!(login.has(before).unwrap() && !login.has(&expected).unwrap());
        fs::write(&path, &*renewed.after).unwrap();
        assert_eq!(login.read().unwrap().expose(), "new \"a\" \\");
        let kept = login.renewed(&secret("new-r"), &new("newest", None, far + 1)).unwrap().unwrap().after;
        assert!(
            kept.contains("new-r") && kept.contains("4000000000001") && kept.contains("newest"),
            "{}",
            *kept
        );
        // Nor is anything lost of what is kept elsewhere meanwhile.
        let beside = dir.path().join("beside");
        fs::write(&beside, &*renewed.after).unwrap();
        fs::set_permissions(&beside, fs::Permissions::from_mode(0o600)).unwrap();
        let there = login.kept_in(beside.clone()).unwrap();
        assert_eq!(
            (there.access.expose(), there.refresh, there.expires),
            ("new \"a\" \\", Some(secret("new-r")), far)
        );
        for none in ["\0\0", &renewed.after[..renewed.after.len() - 2], r#"{"oauth":{"access":"a"}}"#] {
            fs::write(&beside, none).unwrap();
            assert!(matches!(login.kept_in(beside.clone()), Err(Error::NoLogin { .. })), "{none}");
        }
        // What was sent is not what is there any more: the file is another's.
        assert!(login.renewed(&old, &new("newest", None, far)).unwrap().is_none());
    }

    #[test]
    fn a_file_without_a_place_for_each_token_is_not_renewed() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("login.json");
        let put = |text: &str| {
            fs::write(&path, text).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        };
        let login = of(path.clone(), Some("/oauth/expires"));
        let sent = Secret::from("r".to_owned());
        let new = Renewed { access: "b".to_owned().into(), refresh: Some("c".to_owned().into()), expires: 7 };
        for oauth in [
            r#"{"access":"a"}"#,
            r#"{"refresh":"r"}"#,
            r#"{"access":"a","refresh":7}"#,
            r#"{"access":{},"refresh":"r"}"#,
            r#"{"access":"a","refresh":""}"#,
        ] {
            put(&format!(r#"{{"oauth":{oauth}}}"#));
            assert!(matches!(login.renewable(), Err(Error::NoLogin { .. })), "{oauth}");
        }
        // Nor is one without them somebody else's: it may be written at this moment.
        for torn in [
            "",
            "{",
            "[]",
            "{}",
            r#"{"oauth":{"access":"a"}}"#,
            r#"{"oauth":{"access":"a","refresh":""}}"#,
            r#"{"oauth":{"access":"a","refresh":null}}"#,
            r#"{"oauth":{"access":"a","refresh":"other"}"#,
            r#"{"oauth":{"refresh":"r"}}"#,
        ] {
            put(torn);
            assert!(matches!(login.renewed(&sent, &new), Err(Error::NoLogin { .. })), "{torn}");
        }
        fs::remove_file(&path).unwrap();
        assert!(matches!(login.renewed(&sent, &new), Err(Error::File(..))));
        put(r#"{"oauth":{"access":"a","refresh":"other"}}"#);
        assert!(login.renewed(&sent, &new).unwrap().is_none(), "the control");
        // What came is put also where others can read what is there.
        put(r#"{"oauth":{"access":"a","refresh":"r"}}"#);
        fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
        assert!(matches!(login.renewable(), Err(Error::Exposed { .. })));
        let change = login.renewed(&sent, &new).unwrap().unwrap();
        assert_eq!(*change.after, r#"{"oauth":{"access":"b","refresh":"c"}}"#);
        assert!(login.has(&change.before).unwrap());
        // A time that is no number stays.
        for time in ["\"2030-01-01\"", "null", "1.5"] {
            let text = |a: &str, r: &str| {
                format!(r#"{{"oauth":{{"access":"{a}","refresh":"{r}","expires":{time}}}}}"#)
            };
            put(&text("a", "r"));
            assert!(login.renewable().unwrap().is_some(), "the control");
            assert_eq!(*login.renewed(&sent, &new).unwrap().unwrap().after, text("b", "c"));
        }
    }
}
