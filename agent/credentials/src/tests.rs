//! Secrets that print as nothing, and the sources that they come from.

use super::*;
use std::os::unix::fs::PermissionsExt;

#[test]
fn a_secret_prints_as_nothing() {
    let secret = Secret::from("sk-very-secret".to_owned());
    let source = Source::Value(secret.clone());
    assert!(!format!("{secret:?} {source:?}").contains("very"));
    assert_eq!(source.read().unwrap().expose(), "sk-very-secret");
}

#[test]
fn clones_and_headers_share_the_memory_of_a_secret() {
    let secret = Secret::from("sk-very-secret".to_owned());
    let (text, clone) = (secret.expose(), secret.clone());
    assert_eq!((text, secret.bearer()), ("sk-very-secret", "Bearer sk-very-secret"));
    assert_eq!(text.as_ptr(), clone.expose().as_ptr());
    assert_eq!(text.as_ptr(), secret.bearer()[SCHEME.len()..].as_ptr());
}

#[test]
fn a_file_is_read_only_if_it_is_closed_to_others() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("key");
    let read = || Source::File(path.clone()).read();
    assert!(matches!(read(), Err(Error::File(..))));
    fs::write(&path, "sk-1234\n").unwrap();
    for mode in [0o644, 0o640, 0o604, 0o620] {
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        assert!(matches!(read(), Err(Error::Exposed { .. })), "{mode:o}");
    }
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
    assert_eq!(read().unwrap().expose(), "sk-1234");
    for (content, what) in [("\n", "empty"), ("two\nlines", "one line"), ("z\u{fc}", "one line")] {
        fs::write(&path, content).unwrap();
        let error = read().unwrap_err().to_string();
        assert!(error.contains(what) && !error.contains("two"), "{error}");
    }
    fs::write(&path, "x".repeat(20_000)).unwrap();
    assert!(matches!(read(), Err(Error::TooLong(_))));
    assert!(matches!(Source::File(dir.path().to_owned()).read(), Err(Error::NotAFile(_))));
    nix::unistd::mkfifo(&dir.path().join("pipe"), nix::sys::stat::Mode::S_IRWXU).unwrap();
    assert!(matches!(Source::File(dir.path().join("pipe")).read(), Err(Error::NotAFile(_))));
}

#[test]
fn a_worker_is_handed_values_and_files_and_nothing_else() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("key");
    fs::write(&path, "sk-file\n").unwrap();
    let hand = |source: &Source| {
        let secret = source.open().and_then(Secret::from_descriptor);
        secret.map(|secret| secret.expose().to_owned())
    };
    assert_eq!(hand(&Source::Value(Secret::from("sk-value".to_owned()))).unwrap(), "sk-value");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
    assert!(matches!(hand(&Source::File(path.clone())), Err(Error::Exposed { .. })));
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
    assert_eq!(hand(&Source::File(path)).unwrap(), "sk-file");
    assert!(matches!(hand(&Source::Env("HOME".into())), Err(Error::NotAllowed)));
    assert!(matches!(hand(&Source::Command(vec!["true".into()])), Err(Error::NotAllowed)));
}

#[test]
fn a_variable_or_credential_that_is_not_there_is_named() {
    let error = Source::Env("RINGFENCE_NO_SUCH".into()).read().unwrap_err();
    assert!(error.to_string().contains("RINGFENCE_NO_SUCH"));
    let error = Source::Credential("key".into()).read().unwrap_err();
    assert!(error.to_string().contains("LoadCredential=key"), "{error}");
}

#[test]
fn a_command_is_never_run_as_root_and_its_failure_is_told() {
    let words = |words: &[&str]| Source::Command(words.iter().map(|w| (*w).to_owned()).collect());
    if nix::unistd::geteuid().is_root() {
        assert!(matches!(words(&["echo", "sk-1"]).read(), Err(Error::Root)));
        return;
    }
    assert_eq!(words(&["echo", "sk-1"]).read().unwrap().expose(), "sk-1");
    assert!(matches!(words(&["false"]).read(), Err(Error::Failed(..))));
    assert!(matches!(words(&["/no/such"]).read(), Err(Error::Command(..))));
}
