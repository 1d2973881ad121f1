//! Where on the host an agent's credential is: the first place of its kit that has one.

use ringfence_base::error::chain;
use ringfence_credentials::{Error, Secret, Source};
use std::io::ErrorKind;

/// The first credential that is there, and where; none of those that are there can be used: why, of each. `read` reads one.
///
/// # Errors
/// Those of `read` that are the run's, and no place's.
pub(crate) fn find<E>(
    places: &[Source],
    read: impl Fn(&Source) -> Result<Result<Secret, Error>, E>,
) -> Result<Result<(Source, Secret), Vec<String>>, E> {
    let mut reasons = Vec::new();
    for place in places {
        match read(place)? {
            Ok(secret) => return Ok(Ok((place.clone(), secret))),
            Err(error) if is_absent(&error) => {}
            Err(error) => reasons.push(chain(&error)),
        }
    }
    Ok(Err(reasons))
}

/// Whether there is none at a place, which is no mistake.
fn is_absent(error: &Error) -> bool {
    match error {
        Error::NoVariable(_) | Error::NoLogin { .. } => true,
        Error::File(_, source) => matches!(source.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory),
        // A variable that is set to nothing is how many unset it.
        Error::Empty(_) => true,
        _ => false,
    }
}

/// The place of the credential that would be used, in words; none: there is none.
pub fn describe(places: &[Source]) -> Option<String> {
    let is_renewed = |place: &Source| matches!(place, Source::Login(login) if login.renewal.is_some());
    let usable = places.iter().find(|place| match place.read() {
        Ok(_) => true,
        Err(Error::Expired(_)) => is_renewed(place),
        Err(_) => false,
    })?;
    Some(match usable {
        Source::Env(name) => format!("the variable {name}"),
        Source::Login(login) => format!("the login in {}", login.path.display()),
        Source::Value(_) | Source::File(_) | Source::Credential(_) | Source::Command(_) => "there".to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use ringfence_credentials::Login;
    use std::{fs, os::unix::fs::PermissionsExt as _};

    #[test]
    fn the_first_that_is_there_is_used_and_what_cannot_be_used_is_said() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("login.json");
        let login = |at: &str| {
            let expires = Some("/expires".to_owned());
            Source::Login(Login { path: path.clone(), at: at.to_owned(), expires, ..Login::default() })
        };
        let find = |places: &[Source]| super::find(places, |place| Ok::<_, ()>(place.read())).unwrap();
        let absent = Source::Env("RINGFENCE_TEST_OF_NO_SUCH_VARIABLE".to_owned());
        assert_eq!(find(&[absent.clone(), login("/a")]), Err(vec![]), "neither is there");
        fs::write(&path, r#"{"a":"first","b":"second","expires":1000}"#).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        assert!(find(&[absent.clone(), login("/a")]).unwrap_err()[0].contains("expired"));
        fs::write(&path, r#"{"a":"first","b":"second"}"#).unwrap();
        let found = find(&[absent.clone(), login("/c"), login("/b"), login("/a")]).unwrap();
        assert_eq!((&found.0, found.1.expose()), (&login("/b"), "second"));
        assert!(describe(&[absent.clone(), login("/a")]).unwrap().contains("login.json"));
        assert_eq!(describe(&[absent]), None);
    }
}
