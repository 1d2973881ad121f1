//! `[kit]`: what `ringfence run` adds to a profile for an agent that knows nothing of Ringfence: its model's endpoint, the
//! credential that stays on the host, and the variables and arguments that lead the agent there.

use super::{
    keys::Keys,
    parse::{Parser, Value},
    problem::{At, Problem, Wrong},
    sections::Located,
};
use crate::agents::{
    config::{ANY_MODEL, ProviderKind},
    registry,
};
use ringfence_credentials::{Login as LoginFile, Renewal, Source, When as LoginWhen};
use ringfence_redact::misplaced;
use schemars::JsonSchema;
use std::{
    collections::BTreeMap,
    path::{Component, Path, PathBuf},
};
use toml::de::DeValue;

/// In a kit's values: the address of the run's endpoint, such as `http://127.0.0.1:41807`.
pub const ENDPOINT: &str = "${ENDPOINT}";
/// In a kit's values: the run's token, which opens that endpoint and nothing else.
pub const TOKEN: &str = "${TOKEN}";
/// In a kit's values: the directory that the agent keeps its own files in.
pub const STATE: &str = "${STATE}";
/// In a kit's values: the name of the socket on which a tool's shell says which call it runs, `@` first; nothing where the run ties none.
pub const TIE: &str = "${TIE}";
/// In a kit's values: the program that says it, as a path; nothing where the run ties none.
pub const RUNTIME: &str = "${RUNTIME}";
/// At the beginning of that directory's path: the home of the user that the agent runs as.
const HOME: &str = "${HOME}/";

/// `[kit]` of one file.
#[derive(Debug, Clone, Default, JsonSchema)]
#[schemars(deny_unknown_fields)]
pub struct KitTable {
    /// Where it is, if there is one.
    #[schemars(skip)]
    pub at: Option<At>,
    /// Which protocol the agent speaks to its model.
    #[schemars(with = "ProviderKind")]
    pub provider: Option<Located<String>>,
    /// The models that it may ask for, the default first; `*` is any. Default: `["*"]`.
    pub models: Option<Vec<String>>,
    /// Where the credential is looked for on the host; the first that is there is used. The container gets a token in its place.
    #[schemars(with = "Option<Vec<Place>>")]
    pub credentials: Option<Located<Vec<Source>>>,
    /// How a person who has none gets one, in a sentence.
    pub login: Option<String>,
    /// The directory in which the agent keeps its settings and sessions: a path below `${HOME}/`. It is made where it is missing;
    /// the profile has to grant it.
    #[schemars(with = "Option<String>")]
    pub state: Option<PathBuf>,
    /// Files in that directory, by name: written anew before each start, whatever the agent made of them. The same words as in
    /// variables are filled in.
    pub files: Option<BTreeMap<String, String>>,
    /// Variables of the container. `${ENDPOINT}` in a value is the endpoint's address, `${TOKEN}` the token for it, `${STATE}` that
    /// directory, `${TIE}` and `${RUNTIME}` the socket and the program that tie tool calls to their processes (nothing where the run
    /// ties none).
    pub environment: Option<BTreeMap<String, String>>,
    /// Arguments that come before the caller's, with the same words in them.
    pub arguments: Option<Vec<String>>,
    /// What is added to these where the run ties tool calls to their processes: its agent's hooks.
    #[schemars(with = "Option<TieTable>")]
    pub tie: TieTable,
    /// Whether the agent's model is told, behind a tool call's result, what the kernel denied the call and what a person could
    /// change. Default: true.
    pub explain_denials: Option<bool>,
    /// Versions of the agent that the kit was tried with.
    pub tried: Option<Vec<String>>,
}

/// `[kit.tie]` of one file.
#[derive(Debug, Clone, Default, JsonSchema)]
#[schemars(deny_unknown_fields)]
pub struct TieTable {
    /// More files, or others in the place of those with the same names.
    pub files: Option<BTreeMap<String, String>>,
    /// More variables, or other values of those with the same names.
    pub environment: Option<BTreeMap<String, String>>,
    /// More arguments, behind the kit's and before the caller's.
    pub arguments: Option<Vec<String>>,
}

impl TieTable {
    fn read(keys: &mut Keys<'_>, parent: Self) -> Self {
        Self {
            files: keys.get("files", Parser::files).or(parent.files),
            environment: keys.get("environment", Parser::variables).or(parent.environment),
            arguments: keys.get("arguments", Parser::texts).or(parent.arguments),
        }
    }
}

/// A place of a credential: one of the two.
#[derive(JsonSchema)]
#[schemars(untagged)]
#[expect(dead_code, reason = "only the schema is used")]
enum Place {
    /// A variable of the caller's environment.
    Variable(Variable),
    /// A file of JSON in which an agent keeps what its user logged in with.
    Login(Box<Login>),
}

#[derive(JsonSchema)]
#[schemars(deny_unknown_fields)]
#[expect(dead_code, reason = "only the schema is used")]
struct Variable {
    /// Its name.
    env: String,
}

#[derive(JsonSchema)]
#[schemars(deny_unknown_fields)]
#[expect(dead_code, reason = "only the schema is used")]
struct Login {
    /// Its path, from `/` or from `~/`. Only its owner may read it.
    file: String,
    /// The credential's place in it, as a JSON pointer (RFC 6901).
    at: String,
    /// The place of the time when it expires, in milliseconds since 1970. Without it, a JSON Web Token is asked itself.
    expires: Option<String>,
    /// The login counts only where the file says so: of a file with several, the one that the agent itself uses.
    when: Option<When>,
    /// The place of the account's id, of a login with ChatGPT (provider `openai`): the model is asked at ChatGPT's address then, in
    /// the place of the API's, and told the account.
    chatgpt_account: Option<String>,
    /// How it is renewed when it is over or refused. The file is written anew then, as the agent itself would.
    renew: Option<Renew>,
}

#[derive(JsonSchema)]
#[schemars(deny_unknown_fields)]
#[expect(dead_code, reason = "only the schema is used")]
struct When {
    /// A place in the file, as a JSON pointer.
    at: String,
    /// The text there. Where the file has none, or null, the login counts, too.
    is: String,
}

#[derive(JsonSchema)]
#[schemars(deny_unknown_fields)]
#[expect(dead_code, reason = "only the schema is used")]
struct Renew {
    /// The token endpoint (RFC 6749, section 6): `https`.
    url: String,
    /// The agent's client id there.
    client: String,
    /// The refresh token's place in the file, as a JSON pointer.
    at: String,
    /// The endpoint takes JSON in place of the form that the RFC has. Default: false.
    json: Option<bool>,
    /// Directories that the agent itself makes for as long as it renews, so that no two do at once: paths from `/` or from `~/`.
    locks: Option<Vec<String>>,
    /// One that it makes for as long as it writes the file.
    write_lock: Option<String>,
}

impl KitTable {
    pub(crate) fn read(keys: &mut Keys<'_>, at: Option<At>, parent: Self) -> Self {
        Self {
            at: at.or(parent.at),
            provider: keys.located("provider", Parser::text).or(parent.provider),
            models: keys.get("models", Parser::names).or(parent.models),
            credentials: keys.located("credentials", Parser::credentials).or(parent.credentials),
            login: keys.get("login", Parser::text).or(parent.login),
            state: keys.get("state", Parser::below_home).or(parent.state),
            files: keys.get("files", Parser::files).or(parent.files),
            environment: keys.get("environment", Parser::variables).or(parent.environment),
            arguments: keys.get("arguments", Parser::texts).or(parent.arguments),
            tie: keys.table("tie", |keys| TieTable::read(keys, parent.tie)),
            explain_denials: keys.get("explain_denials", Parser::flag).or(parent.explain_denials),
            tried: keys.get("tried", Parser::texts).or(parent.tried),
        }
    }

    /// The kit, if the file or one that it extends has one.
    pub(crate) fn finish(self, problems: &mut Vec<Problem>) -> Option<Kit> {
        let Self {
            at,
            provider,
            models,
            credentials,
            login,
            state,
            files,
            environment,
            arguments,
            tie,
            explain_denials,
            tried,
        } = self;
        let at = at?;
        for (key, files) in [("files", &files), ("tie.files", &tie.files)] {
            if state.is_none() && files.as_ref().is_some_and(|files| !files.is_empty()) {
                let key = format!("{}.{key}", at.key);
                problems.push(Problem::new(At { key, ..at.clone() }, Wrong::NoState));
            }
        }
        let Some(Located { value: name, at: place }) = provider else {
            let key = format!("{}.provider", at.key);
            problems.push(Problem::new(At { key, ..at }, Wrong::NoProvider));
            return None;
        };
        let Some(provider) = ProviderKind::ALL.iter().copied().find(|kind| kind.name() == name) else {
            let known = ProviderKind::ALL.iter().map(|kind| kind.name()).collect();
            problems.push(Problem::new(place, Wrong::Value { value: name, known }));
            return None;
        };
        let (credentials, credentials_at) = credentials.map(|found| (found.value, found.at)).unzip();
        let is_chatgpt_s =
            |place: &Source| matches!(place, Source::Login(login) if login.chatgpt_account.is_some());
        if provider != ProviderKind::OpenAi
            && let (Some(places), Some(at)) = (&credentials, &credentials_at)
            && places.iter().any(is_chatgpt_s)
        {
            problems.push(Problem::new(at.clone(), Wrong::NotChatGpt(provider.name())));
        }
        Some(Kit {
            provider,
            models: models.unwrap_or_else(|| vec![ANY_MODEL.to_owned()]),
            credentials: credentials.unwrap_or_default(),
            credentials_at,
            login,
            state,
            files: files.unwrap_or_default(),
            environment: environment.unwrap_or_default(),
            arguments: arguments.unwrap_or_default(),
            tie: Additions {
                files: tie.files.unwrap_or_default(),
                environment: tie.environment.unwrap_or_default(),
                arguments: tie.arguments.unwrap_or_default(),
            },
            explain_denials: explain_denials.unwrap_or(true),
            tried: tried.unwrap_or_default(),
        })
    }
}

/// What `ringfence run` adds for one agent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Kit {
    /// Which protocol the agent speaks.
    pub provider: ProviderKind,
    /// Which models it may ask for; [`ANY_MODEL`] is any.
    pub models: Vec<String>,
    /// Where its credential may be, the best first.
    pub credentials: Vec<Source>,
    /// Where those are written, if any are.
    pub credentials_at: Option<At>,
    /// How to get one.
    pub login: Option<String>,
    /// The agent's own directory, below the home of the user that it runs as.
    pub state: Option<PathBuf>,
    /// Files in that directory, by name, [`ENDPOINT`] and [`TOKEN`] not filled in.
    pub files: BTreeMap<String, String>,
    /// Variables, likewise.
    pub environment: BTreeMap<String, String>,
    /// Arguments, likewise.
    pub arguments: Vec<String>,
    /// What is added where the run ties tool calls to their processes.
    pub tie: Additions,
    /// Whether its model is told what the kernel denied its tool calls.
    pub explain_denials: bool,
    /// Versions that it was tried with.
    pub tried: Vec<String>,
}

/// What leads an agent's own hooks to the run's tie, nothing filled in.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Additions {
    /// Files, each in the place of one of that name.
    pub files: BTreeMap<String, String>,
    /// Variables, likewise.
    pub environment: BTreeMap<String, String>,
    /// Arguments, behind the others.
    pub arguments: Vec<String>,
}

impl Kit {
    /// Whether a login of it is renewed.
    pub fn renews(&self) -> bool {
        self.credentials.iter().any(|place| matches!(place, Source::Login(login) if login.renewal.is_some()))
    }

    /// The kit for a run that ties tool calls to their processes.
    pub fn tying(&self) -> Self {
        let mut kit = self.clone();
        let Additions { files, environment, arguments } = std::mem::take(&mut kit.tie);
        kit.files.extend(files);
        kit.environment.extend(environment);
        kit.arguments.extend(arguments);
        kit
    }
}

/// Whether a text can be a file's name that hides nothing.
fn is_plain(name: &str) -> bool {
    name.len() <= 255 && name.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'/')
}

impl Parser {
    /// A table of texts whose keys are names of variables.
    fn variables(&mut self, path: &str, value: &Value<'_>) -> Option<BTreeMap<String, String>> {
        let mut variables = BTreeMap::new();
        for (name, value) in self.table(path, value)? {
            let key = format!("{path}.{}", name.get_ref());
            if !misplaced::is_variable(name.get_ref()) {
                self.wrong(name.span().start, &key, Wrong::NotAVariable);
            } else if let Some(text) = self.text(&key, value) {
                variables.insert(name.get_ref().to_string(), text);
            }
        }
        Some(variables)
    }

    /// A table of texts whose keys are names of files in one directory.
    fn files(&mut self, path: &str, value: &Value<'_>) -> Option<BTreeMap<String, String>> {
        let mut files = BTreeMap::new();
        for (name, value) in self.table(path, value)? {
            let key = format!("{path}.{}", name.get_ref());
            let parts: Vec<Component<'_>> = Path::new(name.get_ref().as_ref()).components().collect();
            let is_name = matches!(parts.as_slice(), [Component::Normal(_)]) && is_plain(name.get_ref());
            if !is_name {
                self.wrong(name.span().start, &key, Wrong::NotAFileName);
            } else if let Some(text) = self.text(&key, value) {
                files.insert(name.get_ref().to_string(), text);
            }
        }
        Some(files)
    }

    fn credentials(&mut self, path: &str, value: &Value<'_>) -> Option<Vec<Source>> {
        let DeValue::Array(places) = value.get_ref() else {
            self.mistyped(
                path,
                value,
                "a list of { env = \"NAME\" } or { file = \"PATH\", at = \"/POINTER\" }",
            );
            return None;
        };
        Some(places.iter().filter_map(|place| self.keys(path, place, Self::place)?).collect())
    }

    fn place(keys: &mut Keys<'_>) -> Option<Source> {
        let variable = keys.one_of(&[("env", Self::secret_variable), ("file", Self::login_file)])?;
        let at = keys.get("at", Self::pointer);
        let expires = keys.get("expires", Self::pointer);
        let when = keys.get("when", |parser, key, value| parser.whole(key, value, &["at", "is"], Self::when));
        let chatgpt_account = keys.get("chatgpt_account", Self::pointer);
        let renewal = keys.get("renew", |parser, key, value| {
            parser.whole(key, value, &["url", "client", "at"], Self::renewal)
        });
        match variable.value {
            Source::Login(login) => {
                let at = at.unwrap_or_default();
                let renewal = renewal.map(Box::new);
                Some(Source::Login(LoginFile { at, expires, when, chatgpt_account, renewal, ..login }))
            }
            other => Some(other),
        }
    }

    /// A table that has all of these keys.
    fn whole<T>(
        &mut self,
        path: &str,
        value: &Value<'_>,
        wanted: &[&'static str],
        read: impl FnOnce(&mut Keys<'_>) -> Option<T>,
    ) -> Option<T> {
        let table = self.table(path, value)?;
        for key in wanted.iter().filter(|key| table.get(**key).is_none()) {
            self.wrong(value.span().start, path, Wrong::Lacks(key));
        }
        self.keys(path, value, read)?
    }

    fn when(keys: &mut Keys<'_>) -> Option<LoginWhen> {
        let at = keys.get("at", Self::pointer);
        let is = keys.get("is", Self::filled);
        Some(LoginWhen { at: at?, is: is? })
    }

    fn renewal(keys: &mut Keys<'_>) -> Option<Renewal> {
        let url = keys.get("url", Self::token_endpoint);
        let client = keys.get("client", Self::filled);
        let at = keys.get("at", Self::pointer);
        let json = keys.get("json", Self::flag).unwrap_or(false);
        let locks = keys.get("locks", Self::absolute_paths);
        let write_lock = keys.get("write_lock", Self::absolute_path);
        Some(Renewal {
            url: url?,
            client: client?,
            at: at?,
            json,
            locks: locks.unwrap_or_default(),
            write_lock,
            ..Renewal::default()
        })
    }

    fn token_endpoint(&mut self, path: &str, value: &Value<'_>) -> Option<String> {
        let text = self.filled(path, value)?;
        let address = registry::address(&text).and_then(|url| match url.scheme() {
            "https" => Ok(()),
            _ => Err("a refresh token goes over https only"),
        });
        if let Err(why) = address {
            let url = misplaced::as_address(&text);
            self.wrong(value.span().start, path, Wrong::Url { url, why });
            return None;
        }
        Some(text)
    }

    fn absolute_paths(&mut self, path: &str, value: &Value<'_>) -> Option<Vec<PathBuf>> {
        let DeValue::Array(paths) = value.get_ref() else {
            self.mistyped(path, value, "a list of paths");
            return None;
        };
        Some(paths.iter().filter_map(|one| self.absolute_path(path, one)).collect())
    }

    /// A path from `/`, or from `~/`.
    fn absolute_path(&mut self, path: &str, value: &Value<'_>) -> Option<PathBuf> {
        match self.secret_file(path, value)? {
            Source::File(path) => Some(path),
            _ => None,
        }
    }

    fn login_file(&mut self, path: &str, value: &Value<'_>) -> Option<Source> {
        match self.secret_file(path, value)? {
            Source::File(path) => Some(Source::Login(LoginFile { path, ..LoginFile::default() })),
            other => Some(other),
        }
    }

    /// A path below `${HOME}/`; gives what comes behind that.
    fn below_home(&mut self, path: &str, value: &Value<'_>) -> Option<PathBuf> {
        let text = self.filled(path, value)?;
        let is_plain = |below: &&Path| below.components().all(|part| matches!(part, Component::Normal(_)));
        match text.strip_prefix(HOME).map(Path::new).filter(is_plain) {
            Some(below) if below.components().next().is_some() => Some(below.to_owned()),
            _ => {
                self.wrong(value.span().start, path, Wrong::NotBelowHome);
                None
            }
        }
    }

    fn pointer(&mut self, path: &str, value: &Value<'_>) -> Option<String> {
        let text = self.filled(path, value)?;
        if !text.starts_with('/') {
            self.wrong(value.span().start, path, Wrong::NotAPointer);
            return None;
        }
        Some(text)
    }
}
