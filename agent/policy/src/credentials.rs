//! `[net.credentials."HOST"]`: credentials that are put into requests on the host, so that they never enter the container.

use super::{
    AxisRules, Profile, built_in,
    compile::{Builder, CompileContext},
    compiled::{Kind, Place},
    decide::Decider,
    dirs::{Dirs, is_own},
    keys::Keys,
    parse::{Parser, net_entry},
    problem::{At, CompileErrors, LoadErrors, Problem, Wrong},
    resolve::Resolver,
    sections::{CommandText, Located},
};
use ringfence_common::policy::axis::{READ, WRITE};
use ringfence_credentials::Source;
use ringfence_files::Others;
use ringfence_grant::{HostPattern, NetEntry};
use ringfence_wire::{
    credentials::{CredentialPlace, HostCredential, MAX_HOSTS, MAX_RULES, Otherwise},
    egress::NameOptions,
    requests::{NotARule, RequestRule},
};
use schemars::JsonSchema;
use std::{
    collections::BTreeMap,
    os::unix::ffi::OsStrExt,
    path::{Path, PathBuf},
};

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

    /// Refuses credentials of a profile that came with what an agent works on, or that an agent could have written: what they are
    /// read from, and whom they are sent to, is for root or the user to say.
    ///
    /// # Errors
    /// The first of such tables.
    pub fn require_own_credentials(&self, dirs: &Dirs, workdir: &Path) -> Result<(), LoadErrors> {
        // Nobody but root changes what is root's, wherever an agent works: no policy lets the files that it is made of be written,
        // and the directory is a protected place.
        let is_roots = |file: &Path| {
            file.parent() == Some(dirs.system.as_path())
                && ringfence_files::is_roots(file, Others::AddNames).unwrap_or(false)
        };
        let is_known = |file: &Path| {
            built_in::has(file)
                || is_roots(file)
                || is_own(file, [Some(dirs.system.clone()), dirs.user.clone()], workdir)
        };
        match self.credentials.iter().find(|one| !is_known(&one.at.file)) {
            Some(one) => {
                Err(Problem::new(one.at.clone(), Wrong::Credential(CredentialError::Elsewhere)).into())
            }
            None => Ok(()),
        }
    }

    /// Refuses credentials that what runs under the profile could put something else in the place of: whose file, or whose command's
    /// program, it may write, or a directory or link on the way there.
    ///
    /// # Errors
    /// The first of them; the profile cannot be compiled.
    pub fn require_unwritten_credentials(&self, ctx: &CompileContext<'_>) -> Result<(), CompileErrors> {
        let mut places = Vec::new();
        for one in &self.credentials {
            let paths = match one.source_of(self.token_home.as_deref()) {
                Some(Source::File(path)) => vec![path],
                Some(Source::Credential(_)) => {
                    std::env::var_os("CREDENTIALS_DIRECTORY").map(PathBuf::from).into_iter().collect()
                }
                Some(Source::Command(words)) => programs(&words),
                Some(Source::Env(_) | Source::Value(_) | Source::Login(_)) | None => Vec::new(),
            };
            places.extend(paths.into_iter().map(|path| (path, one.at.clone())));
        }
        if places.is_empty() {
            return Ok(());
        }
        // Without what keeps it from them: it is about what an earlier run could have done.
        let bare = Self { credentials: Vec::new(), ..self.clone() };
        let policy = bare.compile(ctx)?;
        let decider = Decider::new(&policy);
        let is_written = |path: &[u8]| {
            let ends =
                path.iter().enumerate().filter(|(at, byte)| **byte == b'/' && *at > 0).map(|(at, _)| at);
            ends.chain([path.len()])
                .any(|end| path.get(..end).is_some_and(|path| decider.path(WRITE, path).allowed()))
        };
        for (path, at) in places {
            let wrong = |what| LoadErrors::from(Problem::new(at.clone(), Wrong::Credential(what)));
            let Ok(mut resolver) = Resolver::new(ctx.root) else { continue };
            let path = std::path::absolute(&path).unwrap_or(path);
            let resolved = resolver.resolve(path.as_os_str().as_bytes());
            let ways = resolved.before.iter().chain(&resolved.links).chain([&resolved.path]);
            if ways.into_iter().any(|way| is_written(way)) {
                return Err(wrong(CredentialError::Written(path)));
            }
        }
        Ok(())
    }
}

/// The files of a command that are said where they are, and its program.
fn programs(words: &[String]) -> Vec<PathBuf> {
    let named = words.iter().filter(|word| word.contains('/')).map(PathBuf::from);
    let found = words.first().filter(|word| !word.contains('/')).into_iter().flat_map(|word| {
        let path = std::env::var_os("PATH").unwrap_or_default();
        let dirs: Vec<PathBuf> = std::env::split_paths(&path).collect();
        dirs.into_iter().map(move |dir| dir.join(word)).filter(|file| file.exists()).take(1)
    });
    named.chain(found).collect()
}

impl Builder<'_> {
    /// Closes the files that have the profile's credentials, wherever rules lead.
    pub(crate) fn deny_credentials(&mut self, profile: &Profile) {
        for path in profile.token_files() {
            let text = path.display().to_string();
            let id = self.built_in(format!("net.credentials:{text}"), &text);
            for form in self.every_form(path.as_os_str().as_bytes()) {
                self.put_deny(Place::Path(form), Kind::Tree, READ | WRITE, id);
            }
        }
    }
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
    #[error(
        "credentials are taken of profiles of the host, of the user's own directory and in the binary alone"
    )]
    Elsewhere,
    #[error("what runs under the profile may write {}, or what is on the way there, so it could say what the credential is", .0.display())]
    Written(PathBuf),
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
            Self::Elsewhere => {
                "move the profile to /etc/ringfence/profiles or ~/.config/ringfence/agents, out of where the agent works".to_owned()
            }
            Self::Written(_) => "keep it where `fs_write` does not reach, as in ~/.config".to_owned(),
            Self::Twice { .. } | Self::TooManyHosts | Self::TooManyRules | Self::TwoPlaces => return None,
        })
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
