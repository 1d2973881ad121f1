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

fn revocable(removed: Removed) -> Revocable {
    match removed {
        Removed::Revocable(what) => what,
        other => panic!("{other:?}"),
    }
}

/// What a renewal leaves that was killed, or could not write: what came is in a file beside the login's.
fn kept_beside(logins: &Logins) -> std::path::PathBuf {
    let dir = logins.dir(SERVER);
    let beside = dir.join("login.json.1-1.new");
    let text = fs::read_to_string(dir.join(FILE)).unwrap().replace("rt-1", "rt-2");
    fs::write(&beside, text).unwrap();
    fs::set_permissions(&beside, fs::Permissions::from_mode(0o600)).unwrap();
    let login = logins.login(SERVER, "").unwrap().unwrap();
    let own = Dir::open(&dir.join(crate::renewal::DIR)).unwrap();
    let mut attempts = crate::attempts::Attempts::of(&own, OsStr::new(FILE), &login).unwrap();
    attempts.note_spent(&secret("rt-1"), beside.file_name(), "it was begun".into()).unwrap();
    beside
}

#[test]
fn what_came_for_a_login_is_revoked_with_it_and_never_outlives_it() {
    let root = tempfile::tempdir().unwrap();
    let logins = logins(root.path());
    let put = || logins.put(SERVER, &logged_in(Some(3600)), &tokens()).unwrap();
    let attempts = logins.dir(SERVER).join(crate::renewal::DIR).join(crate::attempts::NAME);
    put();
    let beside = kept_beside(&logins);
    assert!(attempts.exists());
    // The one in the file is spent: revoked alone, it would leave the good one behind.
    let gone = revocable(logins.remove(SERVER).unwrap().unwrap());
    assert_eq!(gone.token.expose(), "rt-2");
    assert!(!beside.exists() && !attempts.exists() && !logins.has(SERVER));
    // A new login has nothing of the old one, nor its failures.
    put();
    let beside = kept_beside(&logins);
    put();
    assert!(!beside.exists() && !attempts.exists());
    assert_eq!(revocable(logins.remove(SERVER).unwrap().unwrap()).token.expose(), "rt-1");
    // What cannot be read is said to be that, and not to have no endpoint.
    put();
    fs::write(logins.dir(SERVER).join(FILE), "{}").unwrap();
    assert!(matches!(logins.remove(SERVER).unwrap(), Some(Removed::Unreadable)));
    let none = LoggedIn { revocation_endpoint: None, ..logged_in(None) };
    logins.put(SERVER, &none, &tokens()).unwrap();
    assert!(matches!(logins.remove(SERVER).unwrap(), Some(Removed::NoEndpoint)));
}

#[test]
fn no_login_waits_for_another_s_renewal() {
    let root = tempfile::tempdir().unwrap();
    let logins = logins(root.path());
    logins.put(SERVER, &logged_in(Some(3600)), &tokens()).unwrap();
    let held = lock(&Dir::open(&logins.dir(SERVER)).unwrap()).unwrap();
    // The control: it is what a renewal of that one has.
    let path = logins.dir(SERVER).join(crate::renewal::DIR).join("lock");
    assert!(matches!(Lock::take(&path), Err(LockError::Held { .. })));
    let begun = Instant::now();
    logins.put("https://h.example/other", &logged_in(None), &tokens()).unwrap();
    assert!(logins.remove("https://h.example/other").unwrap().is_some());
    assert!(begun.elapsed() < PATIENCE);
    drop(held);
}

#[test]
fn a_login_is_its_user_s_alone_and_comes_back_as_it_was() {
    let root = tempfile::tempdir().unwrap();
    let logins = logins(root.path());
    assert_eq!(logins.all().unwrap().0, vec![]);
    assert!(!logins.has(SERVER) && logins.of(SERVER).unwrap().is_none());
    logins.put(SERVER, &logged_in(Some(3600)), &tokens()).unwrap();
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o7777;
    let file = logins.dir(SERVER).join(FILE);
    assert_eq!((mode(&logins.path), mode(&logins.dir(SERVER)), mode(&file)), (0o700, 0o700, 0o600));
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
    let torn = logins.path.join("a".repeat(64));
    fs::create_dir(&torn).unwrap();
    assert!(logins.all().unwrap().1.is_empty(), "what is left of one that was removed");
    fs::write(torn.join(FILE), "{}").unwrap();
    let (found, errors) = logins.all().unwrap();
    assert_eq!((found.len(), errors.len()), (2, 1));
    let gone = revocable(logins.remove(SERVER).unwrap().unwrap());
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
