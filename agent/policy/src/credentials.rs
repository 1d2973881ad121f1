//! `[net.credentials."HOST"]`: credentials that are put into requests on the host, so that they never enter the container.

mod error;
mod reach;
mod words;

pub use error::CredentialError;

use super::{
    AxisRules, Profile,
    compile::Builder,
    compiled::{Kind, Place},
    keys::Keys,
    parse::{Parser, net_entry},
    problem::{At, Problem, Wrong},
    sections::{CommandText, Located},
};
use ipnet::IpNet;
use ringfence_common::policy::axis::{READ, WRITE};
use ringfence_credentials::Source;
use ringfence_grant::{HostPattern, NetEntry};
use ringfence_wire::{
    credentials::{CredentialPlace, HostCredential, MAX_HOSTS, MAX_RULES, Otherwise},
    egress::NameOptions,
    requests::RequestRule,
};
use schemars::JsonSchema;
use std::{
    collections::BTreeMap,
    ffi::OsString,
    os::unix::ffi::OsStrExt,
    path::{Path, PathBuf},
};

/// Where a host has no port.
const HTTPS: u16 = 443;
/// Where systemd keeps the credentials of units, each in a directory of its own: the host's, and below each user's own directory.
const OF_UNITS: &str = "/run/credentials";
const OF_USERS: &str = "/run/user";

/// A variable of the environment of who starts the container.
pub type Variable<'a> = &'a dyn Fn(&str) -> Option<OsString>;

/// One table of a file.
#[derive(Debug, Clone, Default, JsonSchema)]
#[schemars(deny_unknown_fields)]
pub(crate) struct CredentialTable {
    /// The part of its title after `net.credentials.`: `HOST` or `HOST:PORT`.
    #[schemars(skip)]
    pub host: String,
    /// Where it begins.
    #[schemars(skip)]
    pub at: At,
    /// Where the credential comes from.
    #[schemars(flatten, with = "Token")]
    pub token: Option<Located<Source>>,
    /// Basic auth: this user, with the credential as password. Absent: `Authorization: Bearer`, unless there is a `header`.
    #[schemars(with = "Option<String>")]
    pub user: Option<Located<CredentialPlace>>,
    /// The header that has the credential and nothing else: `PRIVATE-TOKEN`, `Authorization`.
    #[schemars(with = "Option<String>")]
    pub header: Option<Located<CredentialPlace>>,
    /// The requests that it is put into, each a method and a path: `GET /repos/**`, `* /api/v4/projects/7/**`. At least one.
    #[schemars(with = "Option<Vec<String>>")]
    pub allow: Option<Vec<RequestRule>>,
    /// What becomes of other requests to the host: `refuse` (the default), or `pass`, without any credential.
    #[schemars(with = "Option<OtherwiseText>")]
    pub otherwise: Option<Otherwise>,
    /// Whether cookies pass between the container and the host, those included that the host sets because of the credential. Default:
    /// false. Such a cookie is as good as the credential, and no rule holds for it.
    pub cookies: Option<bool>,
}

/// The keys that a credential can come from. Its value is none of them: profiles are shown.
#[derive(JsonSchema)]
#[expect(dead_code, reason = "only the schema is used")]
struct Token {
    /// A variable of the environment of `ringfence run` that has the credential. One source at most.
    token_env: Option<String>,
    /// A file that has the credential, and that only its owner may read.
    token_file: Option<String>,
    /// A systemd credential that has it.
    token_credential: Option<String>,
    /// A command that prints it: its words, or a line for the shell. Never run as root.
    token_command: Option<CommandText>,
}

#[derive(JsonSchema)]
#[schemars(rename_all = "snake_case")]
#[expect(dead_code, reason = "only the schema is used")]
enum OtherwiseText {
    /// They are answered 403.
    Refuse,
    /// They go on without any credential.
    Pass,
}

impl CredentialTable {
    pub(crate) fn read(keys: &mut Keys<'_>, host: &str, at: At) -> Self {
        Self {
            host: host.to_owned(),
            at,
            token: keys.one_of(&[
                ("token_command", Parser::secret_command),
                ("token_credential", Parser::secret_credential),
                ("token_env", Parser::secret_variable),
                ("token_file", Parser::token_file),
            ]),
            user: keys
                .located("user", |p, key, v| p.placed(key, v, CredentialPlace::basic, CredentialError::User)),
            header: keys.located("header", |p, key, v| {
                p.placed(key, v, CredentialPlace::header, CredentialError::Header)
            }),
            allow: keys.get("allow", Parser::requests),
            otherwise: keys.get("otherwise", Parser::choice),
            cookies: keys.get("cookies", Parser::flag),
        }
    }
}

/// A host's credential: what is done with it, and where it comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ToolCredential {
    /// What is done with it.
    pub rules: HostCredential,
    /// Where it comes from, as written: for who starts the container, and nobody else. See [`Self::source_of`].
    pub source: Source,
    /// Where that is said.
    pub at: At,
}

impl ToolCredential {
    /// Where it comes from, for a user with this home. `None`: it is in a home, and there is none.
    pub fn source_of(&self, home: Option<&Path>) -> Option<Source> {
        match &self.source {
            Source::File(path) => match path.strip_prefix("~") {
                Ok(rest) => Some(Source::File(home?.join(rest))),
                Err(_) => Some(self.source.clone()),
            },
            source => Some(source.clone()),
        }
    }

    /// The kind of its source, and its name: nothing of the credential itself.
    pub fn origin(&self) -> String {
        match &self.source {
            Source::Env(name) => format!("the variable {name}"),
            Source::File(path) => format!("the file {}", path.display()),
            Source::Credential(name) => format!("the systemd credential {name}"),
            // What stands behind it may be the credential itself.
            Source::Command(words) => format!("the command {}", ringfence_credentials::program(words)),
            Source::Value(_) | Source::Login(_) => "its value".to_owned(),
        }
    }
}

impl Profile {
    /// The profile for who has this home: a `~` in its `token_file`s is that.
    pub fn with_tokens_of(mut self, home: Option<&Path>) -> Self {
        self.token_home = home.map(Path::to_owned);
        self
    }

    /// The files that have credentials, as far as they are known.
    pub fn token_files(&self) -> impl Iterator<Item = PathBuf> {
        self.credentials.iter().filter_map(|one| match one.source_of(self.token_home.as_deref())? {
            Source::File(path) => Some(path),
            Source::Value(_)
            | Source::Env(_)
            | Source::Credential(_)
            | Source::Command(_)
            | Source::Login(_) => None,
        })
    }
}

impl Builder<'_> {
    /// Closes the files that have the profile's credentials, wherever rules lead. Which directory systemd gave to who starts the
    /// container is not known here: all of them are closed.
    pub(crate) fn deny_credentials(&mut self, profile: &Profile) {
        let of_systemd = profile.credentials.iter().any(|one| matches!(one.source, Source::Credential(_)));
        let mut paths: Vec<PathBuf> = profile.token_files().collect();
        if of_systemd {
            let users = self.resolver.names(OF_USERS.as_bytes());
            paths.push(OF_UNITS.into());
            paths.extend(users.into_iter().map(|user| Path::new(OF_USERS).join(user).join("credentials")));
        }
        for path in paths {
            let text = path.display().to_string();
            let id = self.built_in(format!("net.credentials:{text}"), &text);
            for form in self.every_form(path.as_os_str().as_bytes()) {
                self.put_deny(Place::Path(form), Kind::Tree, READ | WRITE, id);
            }
        }
    }
}

impl Parser {
    /// A file, whose `~` is the home of who starts the container: another process may read this.
    fn token_file(&mut self, key: &str, value: &super::parse::Value<'_>) -> Option<Source> {
        let text = self.filled(key, value)?;
        if !text.starts_with('/') && !text.starts_with("~/") {
            self.wrong(value.span().start, key, Wrong::NotAbsolute);
            return None;
        }
        Some(Source::File(text.into()))
    }

    fn placed(
        &mut self,
        key: &str,
        value: &super::parse::Value<'_>,
        read: fn(&str) -> Option<CredentialPlace>,
        wrong: CredentialError,
    ) -> Option<CredentialPlace> {
        let place = read(&self.text(key, value)?);
        if place.is_none() {
            self.wrong(value.span().start, key, Wrong::Credential(wrong));
        }
        place
    }

    fn requests(&mut self, key: &str, value: &super::parse::Value<'_>) -> Option<Vec<RequestRule>> {
        let Some(listed) = value.get_ref().as_array() else {
            self.mistyped(key, value, "a list of strings");
            return None;
        };
        let wrong = match listed.len() {
            0 => Some(CredentialError::NoRules),
            1..=MAX_RULES => None,
            _ => Some(CredentialError::TooManyRules),
        };
        if let Some(wrong) = wrong {
            self.wrong(value.span().start, key, Wrong::Credential(wrong));
            return None;
        }
        let mut rules = Vec::new();
        for one in listed {
            let Some(text) = self.text(key, one) else { continue };
            match text.parse() {
                Ok(rule) => rules.push(rule),
                Err(error) => {
                    self.wrong(
                        one.span().start,
                        key,
                        Wrong::Credential(CredentialError::Rule { text, error }),
                    );
                }
            }
        }
        Some(rules)
    }
}

/// What the tables come to, beside the hosts that are granted. What is wrong goes to `problems`.
pub(crate) fn finish(
    tables: Vec<CredentialTable>,
    granted: &AxisRules,
    options: NameOptions,
    problems: &mut Vec<Problem>,
) -> Vec<ToolCredential> {
    let mut done = Vec::new();
    let mut seen: BTreeMap<(String, u16), u32> = BTreeMap::new();
    for table in tables {
        let at = table.at.clone();
        let mut wrong = |what| problems.push(Problem::new(at.clone(), Wrong::Credential(what)));
        let Some((host, port)) = host_of(&table.host) else {
            wrong(CredentialError::Host(table.host));
            continue;
        };
        if let Some(line) = seen.insert((host.clone(), port), at.line) {
            wrong(CredentialError::Twice { host: table.host, line });
            continue;
        }
        if seen.len() > MAX_HOSTS {
            wrong(CredentialError::TooManyHosts);
            break;
        }
        if options.max_upload.is_some() {
            wrong(CredentialError::Upload);
        }
        if let Err(why) = is_granted(granted, &host, port) {
            wrong(why);
        }
        if let Some(entry) = address_at(granted, port) {
            wrong(CredentialError::Address { entry, host: host.clone(), port });
        }
        let place = match (table.user, table.header) {
            (Some(_), Some(header)) => {
                problems.push(Problem::new(header.at, Wrong::Credential(CredentialError::TwoPlaces)));
                continue;
            }
            (Some(place), None) | (None, Some(place)) => place.value,
            (None, None) => CredentialPlace::Bearer,
        };
        let mut wrong = |what| problems.push(Problem::new(at.clone(), Wrong::Credential(what)));
        match (table.token, table.allow) {
            (Some(token), Some(allow)) => {
                let otherwise = table.otherwise.unwrap_or_default();
                let cookies = table.cookies.unwrap_or_default();
                let rules = HostCredential { host, port, place, allow, otherwise, cookies };
                done.push(ToolCredential { rules, source: token.value, at: at.clone() });
            }
            (token, allow) => {
                if token.is_none() {
                    wrong(CredentialError::NoSource);
                }
                if allow.is_none() {
                    wrong(CredentialError::NoRules);
                }
            }
        }
    }
    done
}

/// `HOST` or `HOST:PORT`, as an entry of `net` is read.
fn host_of(text: &str) -> Option<(String, u16)> {
    match text.parse().ok()? {
        NetEntry::Host { host: HostPattern::Exact(host), port, tcp: false } => {
            Some((host, port.unwrap_or(HTTPS)))
        }
        _ => None,
    }
}

fn is_granted(granted: &AxisRules, host: &str, port: u16) -> Result<(), CredentialError> {
    let AxisRules::Only(rules) = granted else { return Err(CredentialError::NotHeld) };
    let of_host = rules.iter().filter_map(net_entry).filter_map(|entry| match entry {
        NetEntry::Host { host: of, port: at, tcp } if of.matches(host) && at.is_none_or(|at| at == port) => {
            Some(tcp)
        }
        _ => None,
    });
    let of_host: Vec<bool> = of_host.collect();
    match of_host.iter().any(|tcp| *tcp) {
        true => Err(CredentialError::Tcp(host.to_owned(), port)),
        false if of_host.is_empty() => Err(CredentialError::NotGranted(host.to_owned(), port)),
        false => Ok(()),
    }
}

/// The first entry of addresses that holds at this port, as it is written. Nothing of a host is at loopback.
fn address_at(granted: &AxisRules, port: u16) -> Option<String> {
    let is_loopback = |net: &IpNet| match net {
        IpNet::V4(net) => net.network().is_loopback() && net.prefix_len() >= 8,
        IpNet::V6(net) => net.network().is_loopback() && net.prefix_len() == 128,
    };
    let is_it = |entry: &NetEntry| match entry {
        NetEntry::Inet { net, port: at } => at.is_none_or(|at| at == port) && !is_loopback(net),
        NetEntry::Host { .. } | NetEntry::Unix(_) | NetEntry::Abstract(_) => false,
    };
    granted
        .listed()
        .iter()
        .find(|rule| net_entry(rule).is_some_and(|entry| is_it(&entry)))
        .map(|rule| rule.text.clone())
}
