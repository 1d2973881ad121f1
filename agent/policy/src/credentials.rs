//! `[net.credentials."HOST"]`: credentials that are put into requests on the host, so that they never enter the container.

use super::{
    AxisRules,
    keys::Keys,
    parse::{Parser, net_entry},
    problem::{At, Problem, Wrong},
    sections::{CommandText, Located},
};
use ringfence_credentials::Source;
use ringfence_grant::{HostPattern, NetEntry};
use ringfence_wire::{
    credentials::{CredentialPlace, HostCredential, MAX_HOSTS, MAX_RULES, Otherwise},
    egress::NameOptions,
    requests::{NotARule, RequestRule},
};
use schemars::JsonSchema;
use std::collections::BTreeMap;

/// Where a host has no port.
const HTTPS: u16 = 443;

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
                ("token_file", Parser::secret_file),
            ]),
            user: keys
                .located("user", |p, key, v| p.placed(key, v, CredentialPlace::basic, CredentialError::User)),
            header: keys.located("header", |p, key, v| {
                p.placed(key, v, CredentialPlace::header, CredentialError::Header)
            }),
            allow: keys.get("allow", Parser::requests),
            otherwise: keys.get("otherwise", Parser::choice),
        }
    }
}

/// A host's credential: what is done with it, and where it comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ToolCredential {
    /// What is done with it.
    pub rules: HostCredential,
    /// Where it comes from: for who starts the container, and nobody else.
    pub source: Source,
}

/// What is wrong with such a table.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[expect(missing_docs, reason = "each message says what it is about")]
pub enum CredentialError {
    #[error("{0:?} is not one host and a port")]
    Host(String),
    #[error("`grant.net` does not grant {0}:{1}")]
    NotGranted(String, u16),
    #[error("`grant.net` grants {0}:{1} as `tcp:`, where nobody looks at what is said")]
    Tcp(String, u16),
    #[error(
        "net = \"all\" grants every address, so that requests need not pass where a credential is put in"
    )]
    NotHeld,
    #[error("`max_upload` does not count what is sent to hosts with credentials")]
    Upload,
    #[error("{host:?} is the host and port of line {line}, too")]
    Twice { host: String, line: u32 },
    #[error("is one host more than {MAX_HOSTS}, which is the most")]
    TooManyHosts,
    #[error("has more than {MAX_RULES} rules, which is the most")]
    TooManyRules,
    #[error("is not a user that basic auth could have")]
    User,
    #[error("is not a header that a credential may be put into")]
    Header,
    #[error("cannot stand beside `user`: a credential has one place")]
    TwoPlaces,
    #[error("has no source for its credential")]
    NoSource,
    #[error("is empty, so that no request would have the credential")]
    NoRules,
    #[error("{text:?} is not a rule for requests: {error}")]
    Rule { text: String, error: NotARule },
    #[error("credentials are read and checked by this version, and not put into requests yet")]
    NotYet,
}

impl CredentialError {
    /// What to do about it.
    pub fn hint(&self) -> Option<String> {
        Some(match self {
            Self::Host(_) => {
                "write [net.credentials.\"host.example\"] or \"host.example:8443\": no `*`, no address"
                    .to_owned()
            }
            Self::NotGranted(host, port) => format!("add \"{host}:{port}\" to `net` under [grant]"),
            Self::Tcp(..) => "write the entry without `tcp:`".to_owned(),
            Self::NotHeld => "grant what is needed in place of \"all\": `net = { only = [...] }`".to_owned(),
            Self::Upload => "leave out `max_upload`, or the credentials".to_owned(),
            Self::User => "printable ASCII without `:` and spaces".to_owned(),
            Self::Header => {
                "a name of letters, digits and `-`, and not one that says where a request ends or goes"
                    .to_owned()
            }
            Self::NoSource => "give one of token_env, token_file, token_credential, token_command".to_owned(),
            Self::NoRules => {
                "write the requests: `allow = [\"GET /repos/**\"]`; all of them are `* /**`".to_owned()
            }
            Self::Rule { .. } => {
                "write METHOD /path: `GET /repos/**`, `POST /repos/acme/*/issues`, `* /api/**`".to_owned()
            }
            Self::NotYet => "leave the table out".to_owned(),
            Self::Twice { .. } | Self::TooManyHosts | Self::TooManyRules | Self::TwoPlaces => return None,
        })
    }
}

impl Parser {
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
                let rules = HostCredential { host, port, place, allow, otherwise };
                done.push(ToolCredential { rules, source: token.value });
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

/// Why nothing is compiled from these: none of what a profile says is passed over.
pub(crate) fn not_yet(tables: &[CredentialTable]) -> Vec<Problem> {
    let problem =
        |table: &CredentialTable| Problem::new(table.at.clone(), Wrong::Credential(CredentialError::NotYet));
    tables.first().map(problem).into_iter().collect()
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
