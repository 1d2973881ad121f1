//! Logins at remote MCP servers (OAuth): a directory for each, with a file that only their user can read, and with the lock and the
//! record of its renewals, for which no other login waits; `keeper` keeps one of them for a session,
//! `asking` has another process make and revoke them.

mod asking;
mod keeper;

pub use asking::{log_in, revoke};
pub use keeper::keep;

use super::token_endpoint::{LIFE, MIN_LIFE};
use ringfence_base::{
    clock::now_micros,
    error::chain,
    home,
    lock::{Lock, LockError},
};
use ringfence_credentials::{self as secret, Login, Renewal, Secret};
use ringfence_files::{Access, Dir};
use ringfence_wire::mcp_login::{ClientAuth, LoggedIn};
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use std::{
    env,
    ffi::OsStr,
    io::{self, Read as _},
    path::{Path, PathBuf},
    thread,
    time::{Duration, Instant},
};
use zeroize::{Zeroize as _, Zeroizing};

/// The directory, in that of the user's data.
const DIR: &str = "ringfence/mcp-logins";
/// The file of a login, in a directory of its own.
const FILE: &str = "login.json";
/// Most bytes of a file.
const MAX_BYTES: u64 = 256 << 10;
/// How long before its end a token is renewed, in milliseconds: less than the shortest life that is believed.
const MARGIN: u64 = 30_000;
/// How long a renewal that is under way is waited for before a login is replaced or removed.
const PATIENCE: Duration = Duration::from_secs(240);
const AGAIN: Duration = Duration::from_millis(100);

/// Why a login cannot be kept, read or removed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Nothing says where home is.
    #[error("the home directory is not known; set HOME")]
    NoHome,
    /// The directory.
    #[error("cannot make the directory of logins: {0}")]
    Dir(String),
    /// The file.
    #[error("cannot read or write the login in {}", .path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// Not ours.
    #[error("{} is no login that this version of Ringfence can read; log in again with `ringfence mcp login`", .0.display())]
    Unreadable(PathBuf),
    /// A renewal takes too long.
    #[error("a session (pid {0}) renews a login for too long; end it, and try again")]
    Busy(String),
    /// Of the keeper.
    #[error(
        "`ringfence mcp-login-keeper` is started by `ringfence mcp --url`, with its link as standard input"
    )]
    NotFromSession(#[source] io::Error),
}

/// A credential in a file.
#[derive(Serialize, Deserialize)]
#[serde(transparent)]
struct Text(String);

impl Drop for Text {
    fn drop(&mut self) {
        self.0.zeroize();
    }
}

/// A login as its file has it. The keys that [`Login`] looks for and changes are `access`, `refresh` and `expires`.
#[derive(Serialize, Deserialize)]
struct File {
    /// The MCP server's whole address.
    server: String,
    issuer: String,
    resource: String,
    token_endpoint: String,
    revocation_endpoint: Option<String>,
    client: String,
    auth: ClientAuth,
    secret: Option<Text>,
    scopes: Vec<String>,
    /// In milliseconds since 1970.
    expires: Option<u64>,
    access: Text,
    refresh: Option<Text>,
}

/// A login, without its tokens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Kept {
    /// The MCP server's whole address, which may have secrets in it.
    pub server: String,
    /// The authorization server.
    pub issuer: String,
    /// What was granted.
    pub scopes: Vec<String>,
    /// When the access token expires, in milliseconds since 1970, where that is known.
    pub expires: Option<u64>,
    /// It is renewed by itself.
    pub is_renewed: bool,
}

/// What was removed.
#[derive(Debug)]
pub enum Removed {
    /// A login that can be revoked.
    Revocable(Revocable),
    /// One whose authorization server does not say where logins are revoked.
    NoEndpoint,
    /// What could not be read, or was not whole: whether something of it is still good is not known.
    Unreadable,
}

/// What it takes to revoke a login.
#[derive(Debug)]
pub struct Revocable {
    /// The revocation endpoint.
    pub url: String,
    /// The client's id there.
    pub client: String,
    /// How it shows who it is.
    pub auth: ClientAuth,
    /// Its secret.
    pub secret: Option<Secret>,
    /// The refresh token; the access token, where there is none.
    pub token: Secret,
    /// Which of them it is.
    pub is_refresh: bool,
}

/// What came of a login, with its tokens.
#[derive(Debug)]
pub struct Tokens {
    /// The access token.
    pub access: Secret,
    /// The refresh token.
    pub refresh: Option<Secret>,
    /// The client's secret.
    pub secret: Option<Secret>,
}

impl Tokens {
    /// From pipes that hold them, as [`LoggedIn`] says.
    ///
    /// # Errors
    /// In words: there are too few, or what is in them is no credential.
    pub fn taken(logged_in: &LoggedIn, descriptors: Vec<std::os::fd::OwnedFd>) -> Result<Self, String> {
        let mut descriptors = descriptors.into_iter();
        let mut next = || {
            let descriptor = descriptors.next().ok_or("the process that logs in hands over too little")?;
            super::token_endpoint::handed_over(descriptor)
        };
        Ok(Self {
            access: next()?,
            refresh: logged_in.has_refresh.then(&mut next).transpose()?,
            secret: logged_in.has_secret.then(&mut next).transpose()?,
        })
    }
}

/// The logins of this user.
#[derive(Debug)]
pub struct Logins {
    path: PathBuf,
}

impl Logins {
    /// Where they are; makes nothing.
    ///
    /// # Errors
    /// [`Error::NoHome`].
    pub fn locate() -> Result<Self, Error> {
        let data = env::var_os("XDG_DATA_HOME").map(PathBuf::from).filter(|path| path.is_absolute());
        let data = data.or_else(|| Some(home::home()?.join(".local/share"))).ok_or(Error::NoHome)?;
        Ok(Self { path: data.join(DIR) })
    }

    /// The directory of a server's login.
    fn dir(&self, server: &str) -> PathBuf {
        let digits: String = Sha256::digest(server).iter().map(|byte| format!("{byte:02x}")).collect();
        self.path.join(digits)
    }

    /// Whether there is a login for this server.
    pub fn has(&self, server: &str) -> bool {
        self.dir(server).join(FILE).exists()
    }

    /// A server's login.
    ///
    /// # Errors
    /// [`Error`]; none where there is none.
    pub fn of(&self, server: &str) -> Result<Option<Kept>, Error> {
        Ok(read(&self.dir(server))?.map(|file| file.kept()))
    }

    /// All of them, and why others cannot be read.
    ///
    /// # Errors
    /// [`Error`]: not even their names.
    pub fn all(&self) -> Result<(Vec<Kept>, Vec<Error>), Error> {
        let names = match Dir::open(&self.path).and_then(|dir| dir.names()) {
            Ok(names) => names,
            Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
            Err(source) => return Err(Error::File { path: self.path.clone(), source }),
        };
        let (mut found, mut errors) = (Vec::new(), Vec::new());
        for name in names.iter().filter(|name| is_login(name)) {
            match read(&self.path.join(name)) {
                Ok(file) => found.extend(file.map(|file| file.kept())),
                Err(error) => errors.push(error),
            }
        }
        found.sort_by(|one, other| one.server.cmp(&other.server));
        Ok((found, errors))
    }

    /// Keeps a login, in place of the one of before.
    ///
    /// # Errors
    /// [`Error`]; the one of before is there then.
    pub fn put(&self, server: &str, of: &LoggedIn, tokens: &Tokens) -> Result<(), Error> {
        let text = |secret: &Secret| Text(secret.expose().to_owned());
        let now = u64::try_from(now_micros() / 1000).unwrap_or_default();
        let life = of.expires_in.map(|seconds| if seconds < MIN_LIFE { LIFE } else { seconds });
        let file = File {
            server: server.to_owned(),
            issuer: of.issuer.clone(),
            resource: of.resource.clone(),
            token_endpoint: of.token_endpoint.clone(),
            revocation_endpoint: of.revocation_endpoint.clone(),
            client: of.client.clone(),
            auth: of.auth,
            secret: tokens.secret.as_ref().map(text),
            scopes: of.scopes.clone(),
            expires: life.map(|seconds| now.saturating_add(seconds.saturating_mul(1000))),
            access: text(&tokens.access),
            refresh: tokens.refresh.as_ref().map(text),
        };
        let path = self.dir(server);
        let failed = |source| Error::File { path: path.join(FILE), source };
        let dir = make(&path)?;
        let json =
            Zeroizing::new(serde_json::to_vec(&file).map_err(|error| failed(io::Error::other(error)))?);
        let _lock = lock(&dir)?;
        dir.replace(OsStr::new(FILE), &json, Access::Mode(0o600)).map_err(failed)?;
        clear(&dir).map_err(failed)
    }

    /// Removes a server's login, and gives what it takes to revoke it. `None`: there is none.
    ///
    /// # Errors
    /// [`Error`].
    pub fn remove(&self, server: &str) -> Result<Option<Removed>, Error> {
        if !self.has(server) {
            return Ok(None);
        }
        let path = self.dir(server);
        let failed = |source| Error::File { path: path.join(FILE), source };
        let dir = make(&path)?;
        // What a renewal that is under way brings would be there again.
        let _lock = lock(&dir)?;
        // What came and is not in the file is what has to be revoked: that in the file is spent.
        let login = self.login(server, "").ok().flatten();
        let settled = login.as_ref().map(super::renewal::settle_beside);
        let file = read(&path).ok().flatten().filter(|_| matches!(settled, Some(Ok(()))));
        dir.remove(OsStr::new(FILE)).map_err(failed)?;
        // The lock stays: somebody may wait for it.
        clear(&dir).map_err(failed)?;
        Ok(Some(file.map_or(Removed::Unreadable, File::removed)))
    }

    /// A server's login as what renews logins takes it, and whether it can be renewed.
    fn login(&self, server: &str, advice: &str) -> Result<Option<Login>, Error> {
        let dir = self.dir(server);
        let Some(file) = read(&dir)? else { return Ok(None) };
        let secret = file.secret.as_ref().map(|text| Secret::checked(&text.0)).transpose();
        let secret = secret.map_err(|_| Error::Unreadable(dir.join(FILE)))?;
        let renewal = file.refresh.is_some().then(|| {
            Box::new(Renewal {
                url: file.token_endpoint.clone(),
                client: file.client.clone(),
                secret: secret.map(|secret| (secret, file.auth == ClientAuth::Basic)),
                resource: Some(file.resource.clone()),
                at: "/refresh".to_owned(),
                own: Some(advice.to_owned()),
                ..Renewal::default()
            })
        });
        Ok(Some(Login {
            path: dir.join(FILE),
            at: "/access".to_owned(),
            expires: Some("/expires".to_owned()),
            margin: MARGIN,
            renewal,
            ..Login::default()
        }))
    }
}

impl File {
    fn kept(&self) -> Kept {
        Kept {
            server: self.server.clone(),
            issuer: self.issuer.clone(),
            scopes: self.scopes.clone(),
            expires: self.expires,
            is_renewed: self.refresh.is_some(),
        }
    }

    fn removed(self) -> Removed {
        let checked = |text: &Text| Secret::checked(&text.0).ok();
        let is_refresh = self.refresh.is_some();
        let Some(url) = self.revocation_endpoint else { return Removed::NoEndpoint };
        let Some(token) = checked(self.refresh.as_ref().unwrap_or(&self.access)) else {
            return Removed::Unreadable;
        };
        let secret = self.secret.as_ref().and_then(checked);
        Removed::Revocable(Revocable { url, client: self.client, auth: self.auth, secret, token, is_refresh })
    }
}

fn make(path: &Path) -> Result<Dir, Error> {
    super::make(path).map_err(|error| Error::Dir(chain(&error)))
}

/// The lock of a login's renewals, which are beside it.
fn lock(dir: &Dir) -> Result<Lock, Error> {
    let failed = |error: &dyn std::error::Error| Error::Dir(chain(error));
    dir.make_below(OsStr::new(super::renewal::DIR), 0o700).map_err(|error| failed(&error))?;
    let path = dir.path().join(super::renewal::DIR).join("lock");
    let end = Instant::now() + PATIENCE;
    loop {
        match Lock::take(&path) {
            Ok(lock) => return Ok(lock),
            Err(LockError::Held { .. }) if Instant::now() < end => thread::sleep(AGAIN),
            Err(LockError::Held { pid, .. }) => return Err(Error::Busy(pid)),
            Err(error) => return Err(failed(&error)),
        }
    }
}

/// Removes what was kept of the login of before: what came for it and could not be written, and what was tried. Under the lock.
fn clear(dir: &Dir) -> io::Result<()> {
    for name in dir.names()? {
        if name != FILE && name != super::renewal::DIR {
            dir.remove(&name)?;
        }
    }
    dir.below(OsStr::new(super::renewal::DIR))?.remove(OsStr::new(super::attempts::NAME)).map(drop)
}

/// The file in a login's directory.
fn read(dir: &Path) -> Result<Option<File>, Error> {
    let path = dir.join(FILE);
    let failed = |source| Error::File { path: path.clone(), source };
    let file = match Dir::open(dir).and_then(|dir| dir.read(OsStr::new(FILE))) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(source) => return Err(failed(source)),
    };
    let mut text = Zeroizing::new(Vec::with_capacity(MAX_BYTES as usize + 2));
    file.take(MAX_BYTES + 1).read_to_end(&mut text).map_err(failed)?;
    serde_json::from_slice(&text).map(Some).map_err(|_| Error::Unreadable(path))
}

/// Whether a name is one of a login's directory.
fn is_login(name: &OsStr) -> bool {
    let name = name.to_str();
    name.is_some_and(|name| name.len() == 64 && name.bytes().all(|byte| byte.is_ascii_hexdigit()))
}

/// When a login's access token is over, in milliseconds since 1970, if its file says so.
fn expires(logins: &Logins, server: &str) -> Option<u64> {
    logins.of(server).ok().flatten().and_then(|kept| kept.expires)
}

/// Why a login cannot be used, with what to do, without the path that is nobody's to look at.
fn refused(error: &secret::Error, advice: &str) -> String {
    match error {
        secret::Error::Expired(_) => format!("the login is over; {advice}"),
        secret::Error::NotRenewed { why, .. } if why.contains(advice) => {
            format!("the login cannot be renewed: {why}")
        }
        secret::Error::NotRenewed { why, .. } => format!("the login cannot be renewed: {why}; {advice}"),
        error => format!("the login cannot be read: {}", chain(error)),
    }
}

#[cfg(test)]
mod tests;
