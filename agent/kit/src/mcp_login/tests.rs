//! The file of a login, and what comes of it.

use super::*;
use std::{fs, os::unix::fs::PermissionsExt as _, path::Path};

const SERVER: &str = "https://h.example/mcp";

fn secret(text: &str) -> Secret {
    Secret::from(text.to_owned())
}

fn logins(root: &Path) -> Logins {
    Logins { path: root.join("data").join(DIR) }
}

fn logged_in(expires_in: Option<u64>) -> LoggedIn {
    LoggedIn {
        issuer: "https://as.example".into(),
        resource: SERVER.into(),
        token_endpoint: "https://as.example/token".into(),
        revocation_endpoint: Some("https://as.example/revoke".into()),
        client: "me".into(),
        auth: ClientAuth::Basic,
        scopes: vec!["a".into(), "b".into()],
        expires_in,
        has_refresh: true,
        has_secret: true,
    }
}

fn tokens() -> Tokens {
    Tokens { access: secret("at-\"1"), refresh: Some(secret("rt-1")), secret: Some(secret("cs-1")) }
}

#[test]
fn a_login_is_its_user_s_alone_and_comes_back_as_it_was() {
    let root = tempfile::tempdir().unwrap();
    let logins = logins(root.path());
    assert_eq!(logins.all().unwrap().0, vec![]);
    assert!(!logins.has(SERVER) && logins.of(SERVER).unwrap().is_none());
    logins.put(SERVER, &logged_in(Some(3600)), &tokens()).unwrap();
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o7777;
    let file = logins.path.join(Logins::name(SERVER));
    assert_eq!((mode(&logins.path), mode(&file)), (0o700, 0o600));
    let kept = logins.of(SERVER).unwrap().unwrap();
    assert_eq!((kept.server.as_str(), kept.is_renewed), (SERVER, true));
    assert_eq!(kept.scopes, ["a", "b"]);
    assert!(!format!("{kept:?}{:?}{:?}", logged_in(None), tokens()).contains("-1"), "no token is shown");
    let login = logins.login(SERVER, "log in").unwrap().unwrap();
    assert_eq!(login.read().unwrap().expose(), "at-\"1");
    assert_eq!(login.renewable().unwrap().unwrap().token.expose(), "rt-1");
    let renewal = login.renewal.unwrap();
    assert_eq!(renewal.secret, Some((secret("cs-1"), true)));
    assert_eq!(renewal.resource.as_deref(), Some(SERVER));
    // Another is another file, and what is no login is none.
    logins.put("https://h.example/other", &logged_in(None), &tokens()).unwrap();
    fs::write(logins.path.join("x.json"), "{}").unwrap();
    assert_eq!(logins.all().unwrap().0.len(), 2);
    fs::write(logins.path.join(format!("{}.json", "a".repeat(64))), "{}").unwrap();
    let (found, errors) = logins.all().unwrap();
    assert_eq!((found.len(), errors.len()), (2, 1));
    let gone = logins.remove(SERVER).unwrap().unwrap().unwrap();
    assert_eq!((gone.token.expose(), gone.is_refresh), ("rt-1", true));
    assert!(!logins.has(SERVER) && logins.remove(SERVER).unwrap().is_none());
}

#[test]
fn what_is_nearly_over_is_renewed_before() {
    let root = tempfile::tempdir().unwrap();
    let logins = logins(root.path());
    let read = |expires_in| {
        logins.put(SERVER, &logged_in(expires_in), &tokens()).unwrap();
        let login = logins.login(SERVER, "").unwrap().unwrap();
        (login.read().is_ok(), Login { margin: 4_000_000, ..login }.read().is_ok())
    };
    assert_eq!(read(Some(3600)), (true, false));
    assert_eq!(read(None), (true, true), "nothing is known");
    assert_eq!(read(Some(1)), (true, false), "a life that no endpoint means");
}
