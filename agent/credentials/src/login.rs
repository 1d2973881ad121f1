//! The file of JSON in which an agent keeps what its user logged in with.

use super::{Error, Secret, checked, open, shown};
use serde_json::value::RawValue;
use std::{
    borrow::Cow,
    collections::HashMap,
    io::Read as _,
    path::Path,
    time::{SystemTime, UNIX_EPOCH},
};
use zeroize::Zeroizing;

/// Most bytes of such a file.
const MAX_BYTES: u64 = 256 << 10;

/// Reads the credential at a JSON pointer.
pub(crate) fn read(path: &Path, at: &str, expires: Option<&str>) -> Result<Secret, Error> {
    let io = |source| Error::File(path.to_owned(), source);
    // Room for all of it at once: a string that grows leaves copies behind.
    let mut text = Zeroizing::new(String::with_capacity(MAX_BYTES as usize + 2));
    open(path)?.take(MAX_BYTES + 1).read_to_string(&mut text).map_err(io)?;
    if text.len() as u64 > MAX_BYTES {
        return Err(Error::TooLong(shown(&path.display().to_string()).to_string()));
    }
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis();
    if let Some(time) = expires.and_then(|expires| find::<u64>(&text, expires))
        && u128::from(time) <= now
    {
        return Err(Error::Expired(path.to_owned()));
    }
    let none = || Error::NoLogin { path: path.to_owned(), at: at.to_owned() };
    let found: Text<'_> = find(&text, at).ok_or_else(none)?;
    if found.0.is_empty() {
        return Err(none());
    }
    checked(&found.0, &shown(&path.display().to_string()))
}

/// A text, borrowed from the file's unless something in it is escaped; no credential has anything to escape.
#[derive(serde::Deserialize)]
struct Text<'a>(#[serde(borrow)] Cow<'a, str>);

/// What is at a JSON pointer, if it is of that type. Nothing on the way is copied.
fn find<'a, T: serde::Deserialize<'a>>(text: &'a str, pointer: &str) -> Option<T> {
    let mut rest: &'a str = text;
    for key in pointer.strip_prefix('/')?.split('/') {
        let key = key.replace("~1", "/").replace("~0", "~");
        let object: HashMap<Cow<'a, str>, &'a RawValue> = serde_json::from_str(rest).ok()?;
        rest = object.get(key.as_str())?.get();
    }
    serde_json::from_str(rest).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{fs, os::unix::fs::PermissionsExt as _};

    fn login(text: &str, expires: Option<&str>) -> Result<Secret, Error> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("login.json");
        fs::write(&path, text).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        read(&path, "/oauth/access", expires)
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
        fs::write(&path, r#"{"a":"b"}"#).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
        assert!(matches!(read(&path, "/a", None), Err(Error::Exposed { .. })));
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        assert_eq!(read(&path, "/a", None).unwrap().expose(), "b");
    }
}
