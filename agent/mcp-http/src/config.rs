//! Which remote server, and with which credentials. The interceptor hands it over as the first line of standard input: what is in
//! a process's arguments or variables is anybody's to read.

use reqwest::header::HeaderName;
use ringfence_base::{loopback, remote_headers};
use ringfence_credentials::{Secret, Source};
use ringfence_redact::{
    REDACTED,
    misplaced::{self, Name},
};
use serde::{Deserialize, Serialize};
use std::{fmt, path::PathBuf, str::FromStr};
use url::Url;

/// Longest configuration, in bytes.
pub const MAX: usize = 64 << 10;

/// Why a remote server cannot be used as it was described.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Not an address.
    #[error("the address of the remote server is no URL; write https://HOST/PATH")]
    NoUrl,
    /// Not a scheme of MCP's.
    #[error("{0}: use https, or http to this machine")]
    Scheme(String),
    /// In the clear.
    #[error(
        "{0}: http is for loopback only, since anybody on the way could read and change what is sent; use https, or `--insecure-http` where the network is your own"
    )]
    Clear(String),
    /// Two of them would be sent.
    #[error("{0}: it has a user and a password in it, and a token is given, too; leave one of them out")]
    Twice(String),
    /// Not a header.
    #[error("{0:?} is not the name of a header that can be set; the transport writes its own")]
    Header(String),
    /// Too many.
    #[error("more than {} headers are given", remote_headers::MOST)]
    Headers,
    /// The same one again.
    #[error("the header {0} is given twice")]
    Repeated(String),
    /// A credential.
    #[error("cannot read the credential for {of}")]
    Credential {
        /// The header that it is for.
        of: String,
        /// Why.
        #[source]
        source: ringfence_credentials::Error,
    },
}

/// Where a credential comes from: never the credential itself.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum CredentialSource {
    /// A variable of the environment.
    Env(String),
    /// A file that only its owner can read.
    File(PathBuf),
    /// One of systemd's `LoadCredential=`.
    Credential(String),
    /// What a command prints, by its words.
    Command(Vec<String>),
}

impl CredentialSource {
    /// The same, as credentials are read.
    pub fn source(&self) -> Source {
        match self.clone() {
            Self::Env(name) => Source::Env(name),
            Self::File(path) => Source::File(path),
            Self::Credential(name) => Source::Credential(name),
            Self::Command(words) => Source::Command(words),
        }
    }

    /// The credential.
    ///
    /// # Errors
    /// As [`Source::read`].
    pub fn read(&self) -> Result<Secret, ringfence_credentials::Error> {
        self.source().read()
    }
}

/// A header and where its value comes from, as the command line has it: `NAME=env:VARIABLE`, `NAME=file:PATH` or
/// `NAME=credential:NAME`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Header {
    /// Its name.
    pub name: String,
    /// Where its value comes from.
    pub from: CredentialSource,
}

/// Not a header and its source. What was written is not shown: it may be the credential.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "expected NAME=env:VARIABLE, NAME=file:PATH or NAME=credential:NAME: the value itself never goes on the command line, since others can read a process's arguments"
)]
pub struct NotAHeader;

impl FromStr for Header {
    type Err = NotAHeader;

    fn from_str(text: &str) -> Result<Self, NotAHeader> {
        let (name, from) = text.split_once('=').ok_or(NotAHeader)?;
        let (kind, value) = from.split_once(':').filter(|(_, value)| !value.is_empty()).ok_or(NotAHeader)?;
        let from = match kind {
            "env" => CredentialSource::Env(value.to_owned()),
            "file" => CredentialSource::File(value.into()),
            "credential" => CredentialSource::Credential(value.to_owned()),
            _ => return Err(NotAHeader),
        };
        Ok(Self { name: name.to_owned(), from })
    }
}

/// A remote server.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// Its address; user, password and query are secrets.
    pub url: String,
    /// The token that goes to it as `Authorization: Bearer`.
    pub token: Option<CredentialSource>,
    /// Other headers that go to it.
    pub headers: Vec<Header>,
    /// The login that is kept for it is used (`ringfence mcp login`).
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub login: bool,
    /// The whole address is a secret: it came from a file.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_secret: bool,
    /// http is allowed to hosts other than this one.
    pub insecure_http: bool,
    /// Longest message, in bytes.
    pub max_line: usize,
}

impl fmt::Debug for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Config").finish_non_exhaustive()
    }
}

/// The command that logs in to a server by its name among logins, with `more` options, for a message. `is_secret`: its address came
/// from a file. An address that cannot be shown as it is is not: logged in to without what is left out, it would be another's login.
pub fn login_command(server: &str, is_secret: bool, more: &str) -> String {
    match is_shown_whole(server) {
        _ if is_secret => {
            format!("`ringfence mcp login --url-file FILE{more}`, with the file that is configured")
        }
        true => format!("`ringfence mcp login {server}{more}`"),
        false => {
            format!("`ringfence mcp login URL{more}`, with the address that is configured in place of URL")
        }
    }
}

/// Whether a server's name among logins is shown as it is: it has nothing in it that may be a secret.
pub fn is_shown_whole(server: &str) -> bool {
    shown_server(server) == server
}

impl Config {
    /// Checks all that can be checked without the credentials, and gives the address.
    ///
    /// # Errors
    /// [`Error`].
    pub fn checked(&self) -> Result<Url, Error> {
        let mut url = Url::parse(&self.url).map_err(|_| Error::NoUrl)?;
        if !url.has_host() {
            return Err(Error::NoUrl);
        }
        // It stays with whoever asks.
        url.set_fragment(None);
        match url.scheme() {
            "https" => {}
            "http" if url.host_str().is_some_and(loopback::is_name) || self.insecure_http => {}
            "http" => return Err(Error::Clear(address(&url))),
            _ => return Err(Error::Scheme(address(&url))),
        }
        let has_user = !url.username().is_empty() || url.password().is_some();
        let mut seen = Vec::new();
        if self.token.is_some() {
            seen.push("authorization".to_owned());
        }
        if self.headers.len() > remote_headers::MOST {
            return Err(Error::Headers);
        }
        for Header { name, .. } in &self.headers {
            let lower = HeaderName::from_bytes(name.as_bytes()).ok().map(|name| name.as_str().to_owned());
            let free = |name: &String| !remote_headers::is_reserved(name);
            let lower = lower.filter(free).ok_or_else(|| Error::Header(Name(name).to_string()))?;
            if seen.contains(&lower) {
                return Err(Error::Repeated(lower));
            }
            seen.push(lower);
        }
        if has_user && seen.iter().any(|name| name == "authorization") {
            return Err(Error::Twice(address(&url)));
        }
        Ok(url)
    }

    /// Whether nothing that goes to it may be who it is for: then a login may be.
    pub fn has_no_credential(&self) -> bool {
        let user =
            Url::parse(&self.url).is_ok_and(|url| !url.username().is_empty() || url.password().is_some());
        let is_own = |header: &Header| header.name.eq_ignore_ascii_case("authorization");
        self.token.is_none() && !user && !self.headers.iter().any(is_own)
    }

    /// The server's name among logins: its address, written in one way.
    pub fn server_of_login(&self) -> String {
        server_of_login(&self.url).unwrap_or_else(|| self.url.clone())
    }

    /// How a user logs in to it, as [`login_command`].
    pub fn login_command(&self, more: &str) -> String {
        login_command(&self.server_of_login(), self.is_secret, more)
    }

    /// A name for the server where none was given: its host.
    pub fn name(url: &Url) -> String {
        url.host_str().unwrap_or("server").to_owned()
    }

    /// Its address without what may be a secret, for the record. `is_secret`: as a whole, so that only where the server is
    /// stays.
    pub fn shown(url: &Url, is_secret: bool) -> String {
        if is_secret { url.origin().ascii_serialization() } else { address(url) }
    }

    /// Its whole address but for user, password and query. It may be a secret.
    pub fn whole(url: &Url) -> String {
        format!("{}{}", url.origin().ascii_serialization(), url.path())
    }

    /// The headers that go to it in every request, with their credentials read.
    ///
    /// # Errors
    /// [`Error::Credential`].
    pub fn read_headers(&self) -> Result<Vec<(String, Secret)>, Error> {
        let read = |of: &str, from: &CredentialSource| {
            from.read().map_err(|source| Error::Credential { of: of.to_owned(), source })
        };
        let mut all = Vec::new();
        if let Some(from) = &self.token {
            let of = "authorization".to_owned();
            let value = Secret::from(read(&of, from)?.bearer().to_owned());
            all.push((of, value));
        }
        for Header { name, from } in &self.headers {
            let of = name.to_ascii_lowercase();
            let value = read(&of, from)?;
            all.push((of, value));
        }
        Ok(all)
    }
}

/// An address as it may be shown: without a user, a password and a query, and without what may be a secret in its path.
pub(crate) fn address(url: &Url) -> String {
    let clean = |part| if misplaced::may_be_secret(part) { REDACTED } else { part };
    let path: Vec<&str> = url.path().split('/').map(clean).collect();
    let mut shown = url.clone();
    shown.set_path(&path.join("/"));
    misplaced::address(&shown)
}

/// A server's name among logins; `None`: it is no URL.
pub fn server_of_login(url: &str) -> Option<String> {
    let mut url = Url::parse(url).ok().filter(Url::has_host)?;
    url.set_fragment(None);
    Some(url.into())
}

/// A server's name among logins, as messages may show it.
pub fn shown_server(server: &str) -> String {
    Url::parse(server).map_or_else(|_| "URL".to_owned(), |url| address(&url))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(url: &str) -> Config {
        Config {
            url: url.to_owned(),
            token: None,
            headers: Vec::new(),
            login: false,
            is_secret: false,
            insecure_http: false,
            max_line: 1 << 20,
        }
    }

    #[test]
    fn only_what_nobody_can_listen_to_is_spoken_to() {
        for fine in [
            "https://h.example/mcp",
            "http://127.0.0.1:1/mcp",
            "http://localhost/",
            "http://[::1]:8/",
            "http://127.9.9.9/",
        ] {
            assert!(config(fine).checked().is_ok(), "{fine}");
        }
        for clear in [
            "http://h.example/",
            "http://10.0.0.1/",
            "http://127.0.0.1.example/",
            "http://localhost.example/",
        ] {
            let error = config(clear).checked().unwrap_err();
            assert!(matches!(error, Error::Clear(_)), "{clear}: {error}");
            assert!(Config { insecure_http: true, ..config(clear) }.checked().is_ok(), "{clear}");
        }
        for none in ["", "h.example/mcp", "file:///etc/passwd", "ftp://h/", "data:x", "https://"] {
            assert!(Config { insecure_http: true, ..config(none) }.checked().is_err(), "{none}");
        }
    }

    #[test]
    fn a_command_is_for_the_login_that_is_meant_and_shows_no_secret() {
        let of = |url: &str, is_secret| Config { is_secret, ..config(url) }.login_command(" --scope a");
        assert_eq!(
            of("https://h.example/mcp", false),
            "`ringfence mcp login https://h.example/mcp --scope a`"
        );
        for url in
            ["https://h.example/mcp?project=1", "https://h.example/sk-abcdefghijklmnopqrstuvwxyz0123456789"]
        {
            assert!(
                of(url, false).starts_with("`ringfence mcp login URL --scope a`, with the address"),
                "{url}"
            );
        }
        let secret = of("https://h.example/mcp", true);
        assert!(secret.contains("--url-file FILE --scope a`") && !secret.contains("h.example"), "{secret}");
    }

    #[test]
    fn secrets_of_an_address_are_shown_nowhere() {
        let text = "https://me:hunter2@h.example/mcp?api_key=s3cr3t#part";
        let url = config(text).checked().unwrap();
        let refused = config(&text.replace("https", "http")).checked().unwrap_err().to_string();
        let twice = Config { token: Some(CredentialSource::Env("T".into())), ..config(text) }
            .checked()
            .unwrap_err()
            .to_string();
        for shown in
            [Config::shown(&url, false), Config::name(&url), refused, twice, format!("{:?}", config(text))]
        {
            assert!(
                !shown.contains("hunter2") && !shown.contains("s3cr3t") && !shown.contains("me:"),
                "{shown}"
            );
        }
        assert_eq!(Config::name(&url), "h.example");
        assert_eq!(Config::shown(&url, false), "https://h.example/mcp");
        assert_eq!(Config::shown(&url, true), "https://h.example");
        assert_eq!(Config::whole(&url), Config::shown(&url, false));
        let key = "6f9619ff-8b86-d011-b42d-00c04fc964ff";
        let url = config(&format!("https://h.example:8443/s/{key}/mcp/")).checked().unwrap();
        assert_eq!(Config::shown(&url, false), "https://h.example:8443/s/[redacted]/mcp/");
        assert_eq!(Config::shown(&url, true), "https://h.example:8443");
        assert_eq!(Config::whole(&url), format!("https://h.example:8443/s/{key}/mcp/"));
        let refused = config(&format!("http://h.example/{key}")).checked().unwrap_err().to_string();
        assert!(!refused.contains(key) && refused.contains("h.example"), "{refused}");
    }

    #[test]
    fn a_header_is_a_name_and_a_source() {
        let of = |text: &str| text.parse::<Header>();
        assert_eq!(
            of("X-Key=env:KEY").unwrap(),
            Header { name: "X-Key".into(), from: CredentialSource::Env("KEY".into()) }
        );
        assert_eq!(of("A=file:/a=b:c").unwrap().from, CredentialSource::File("/a=b:c".into()));
        for wrong in ["X-Key", "X-Key=abc", "X-Key=", "X-Key=env:", "X-Key=value:abc"] {
            let error = of(wrong).unwrap_err().to_string();
            assert!(!error.contains("abc"), "{error}");
        }
        let with = |names: &[&str]| {
            let header =
                |name: &&str| Header { name: (*name).to_owned(), from: CredentialSource::Env("X".into()) };
            Config { headers: names.iter().map(header).collect(), ..config("https://h/") }.checked()
        };
        assert!(with(&["Authorization", "X-Api-Key"]).is_ok());
        for wrong in [
            &["Host"][..],
            &["Mcp-Session-Id"],
            &["Mcp-Param-X"],
            &["a b"],
            &[""],
            &["X", "x"],
            &["Transfer-Encoding"],
        ] {
            assert!(with(wrong).is_err(), "{wrong:?}");
        }
        assert!(matches!(with(&["X"; remote_headers::MOST + 1]), Err(Error::Headers)));
    }
}
