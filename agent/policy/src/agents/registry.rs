//! The registry and a profile's `[llm.*]` and `[mcp.*]` to one agent's configuration: the profile's keys over the
//! registry's, field by field; every mistake with file, line and key.

pub use super::config::{AgentConfig, Http, Llm, Mcp, ProviderKind};
use super::{
    config::{ANY_MODEL, Auth, Limits, Service, UNLIMITED_TOKENS},
    home::Home,
};
use crate::{
    self as profile, Dirs, LoadErrors, Problem, Profile, Provenance,
    problem::{At, Wrong},
    sections::{LlmSection, Located, McpSection},
};
use ringfence_base::loopback;
use ringfence_credentials::Source;
use ringfence_redact::misplaced;
use std::{
    path::{Path, PathBuf},
    time::Duration,
};
use url::Url;

/// Most tokens of an answer, by default.
const MAX_TOKENS: u32 = 8192;
/// Turns of a message.
const MAX_ROUNDS: u32 = 200;
/// Calls of the model in a turn.
const MAX_MCP_ROUNDS: u32 = 50;
/// Seconds without a byte from a provider.
const TIMEOUT: u64 = 600;
/// Seconds that a runtime may take for its tools.
const RUNTIME_TIMEOUT: u64 = 3600;

/// A user's registry.
#[derive(Debug, Default)]
pub struct Registry {
    file: Option<PathBuf>,
    llm: Vec<LlmSection>,
    mcp: Vec<McpSection>,
    notices: Vec<String>,
}

impl Registry {
    /// Where the key of a section comes from, if it says so.
    pub fn credential(&self, name: &str) -> Option<&Source> {
        self.section(name)?.api_key.as_ref().map(|key| &key.value)
    }

    /// Whether a section names a server of its own.
    pub fn has_address(&self, name: &str) -> bool {
        self.section(name).is_some_and(|section| section.base_url.is_some())
    }

    fn section(&self, name: &str) -> Option<&LlmSection> {
        self.llm.iter().find(|section| section.name == name)
    }

    /// Reads it. One that is not there is empty: agents can say everything themselves.
    ///
    /// # Errors
    /// Everything that is wrong with it.
    pub fn load(file: &Path) -> Result<Self, LoadErrors> {
        if !file.exists() {
            return Ok(Self::default());
        }
        let (llm, mcp, provenance) = profile::registry(file)?;
        let notices = readable(&llm, &mcp, &provenance).into_iter().collect();
        Ok(Self { file: Some(file.to_owned()), llm, mcp, notices })
    }
}

/// One agent's configuration, by its name in the user's `agents` directory.
///
/// # Errors
/// Everything that is wrong with the registry and the profile.
pub fn load(home: &Home, name: &str) -> Result<AgentConfig, LoadErrors> {
    let registry = Registry::load(&home.registry())?;
    let dirs = Dirs { system: home.agents(), user: None };
    agent(&profile::load(name, &dirs)?, &registry)
}

/// The names of the files in the user's `agents` directory.
pub fn names(home: &Home) -> Vec<String> {
    Dirs { system: home.agents(), user: None }.names()
}

/// A profile's part of the configuration over the registry's.
///
/// # Errors
/// Everything that is wrong.
pub fn agent(profile: &Profile, registry: &Registry) -> Result<AgentConfig, LoadErrors> {
    let mut wrong = Vec::new();
    let llm = match profile.llm.as_slice() {
        [one] => llm(one, registry, &mut wrong),
        [] => {
            wrong.push(Problem::new(At::file(&profile.file), Wrong::NoLlm));
            None
        }
        [_, second, ..] => {
            let names = profile.llm.iter().map(|s| format!("llm.{}", s.name)).collect();
            wrong.push(Problem::new(second.at.clone(), Wrong::ManyLlm(names)));
            None
        }
    };
    let mcp: Vec<Mcp> = profile.mcp.iter().filter_map(|section| mcp(section, registry, &mut wrong)).collect();
    let mut uid = |given: &Option<Located<u64>>| {
        let given = given.as_ref()?;
        let uid = u32::try_from(given.value).ok().filter(|uid| *uid < u32::MAX);
        if uid.is_none() {
            wrong.push(Problem::new(given.at.clone(), Wrong::Uid));
        }
        uid
    };
    let (log_reader, socket_owner) = (uid(&profile.log_reader), uid(&profile.socket_owner));
    let limits = limits(profile, registry, &mut wrong);
    let port = profile.http_port.as_ref();
    if let (Some(port), false) = (port, profile.http == Some(true)) {
        wrong.push(Problem::new(port.at.clone(), Wrong::NoHttp));
    }
    let port = port.and_then(|port| u16::try_from(port.value).ok());
    let http = (profile.http == Some(true)).then_some(Http { port });
    let mut notices = profile.notices.clone();
    notices.retain(|notice| !notice.ends_with("nothing is granted but the base"));
    if !profile.has_grant {
        notices.push(format!(
            "{}: no [grant]: nothing governs this agent's container; Ringfence keeps its credentials only",
            profile.file.display()
        ));
    }
    notices.extend(registry.notices.iter().cloned());
    notices.extend(profile.sources.first().and_then(|p| readable(&profile.llm, &profile.mcp, p)));
    match llm {
        Some(llm) if wrong.is_empty() => Ok(AgentConfig {
            name: profile.name.clone(),
            file: profile.file.clone(),
            llm,
            mcp,
            limits,
            log_reader,
            socket_owner,
            http,
            governed: profile.has_grant,
            workdir: None,
            notices,
        }),
        _ => Err(LoadErrors(wrong)),
    }
}

/// What is given with the command that starts an agent.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Given {
    /// In place of the provider's address.
    pub base_url: Option<String>,
    /// Where the credential comes from. None: there is none.
    pub credential: Option<Source>,
}

/// The configuration of a kit's endpoint, for one run: what is given with the command, over the registry's section of the
/// profile's name, over the kit.
///
/// # Errors
/// Everything that is wrong: the profile is no kit's, an address that no credential may be sent to, and what
/// [`agent`] finds in the profile and the registry.
pub fn of_kit(profile: &Profile, registry: &Registry, given: Given) -> Result<AgentConfig, LoadErrors> {
    let at = At::file(&profile.file);
    let Some(kit) = &profile.kit else { return Err(Problem::new(at, Wrong::NoKit).into()) };
    let placed = |value: &str| Some(Located { value: value.to_owned(), at: at.clone() });
    let flag = |value| Located { value, at: At { key: "--base-url".to_owned(), ..At::default() } };
    let base = registry.section(&profile.name);
    let (model, models) = kits_models(&kit.models, base);
    let model = Located { value: model, at: at.clone() };
    let unlimited = || Located { value: UNLIMITED_TOKENS.into(), at: at.clone() };
    let section = LlmSection {
        name: profile.name.clone(),
        at: at.clone(),
        provider: placed(kit.provider.name()),
        model: Some(model),
        models: Some(Located { value: models, at: at.clone() }),
        api_key: given.credential.map(|value| Located { value, at: at.clone() }),
        base_url: given.base_url.map(flag),
        max_tokens: base.and_then(|base| base.max_tokens.clone()).or_else(|| Some(unlimited())),
        ..LlmSection::default()
    };
    let mut wrong = Vec::new();
    let limits = &profile.limits;
    let per_day = limits.tokens_per_day.as_ref().map(|limit| &limit.at);
    if let Some(at) = per_day.or(limits.cost_per_day.as_ref().map(|limit| &limit.at)) {
        wrong.push(Problem::new(at.clone(), Wrong::PerRun));
    }
    if let Some(second) = profile.llm.first() {
        wrong.push(Problem::new(second.at.clone(), Wrong::KitAndLlm));
    }
    let llm = llm(&section, registry, &mut wrong);
    // It would refuse each request.
    let limit = base.and_then(|base| base.max_tokens.as_ref());
    if let (Some(llm), Some(limit)) = (&llm, limit)
        && llm.service == Service::ChatGpt
        && llm.max_tokens != UNLIMITED_TOKENS
    {
        wrong.push(Problem::new(limit.at.clone(), Wrong::NoLimitAtChatGpt));
    }
    let limits = self::limits(profile, registry, &mut wrong);
    match llm {
        Some(llm) if wrong.is_empty() => Ok(AgentConfig {
            name: profile.name.clone(),
            file: profile.file.clone(),
            llm,
            mcp: Vec::new(),
            limits,
            log_reader: None,
            socket_owner: None,
            http: Some(Http { port: None }),
            governed: true,
            workdir: None,
            notices: registry.notices.clone(),
        }),
        _ => Err(LoadErrors(wrong)),
    }
}

/// The default model and the others of a kit, as far as the registry's section has them, too.
fn kits_models(kit: &[String], base: Option<&LlmSection>) -> (String, Vec<String>) {
    let is_any = |models: &[String]| models.iter().any(|model| model == ANY_MODEL);
    let base_models = base.and_then(|base| base.models.as_ref()).map(|models| models.value.as_slice());
    let pinned = base.and_then(|base| base.model.as_ref()).map(|model| model.value.clone());
    let models: Vec<String> = match (base_models, pinned) {
        // One that is pinned is whatever the agent asks for.
        (None, Some(model)) => return (model, Vec::new()),
        (None, None) => kit.to_vec(),
        (Some(theirs), _) if is_any(kit) => theirs.to_vec(),
        (Some(theirs), _) if is_any(theirs) => kit.to_vec(),
        (Some(theirs), _) => kit.iter().filter(|model| theirs.contains(model)).cloned().collect(),
    };
    let first = models.first().or(kit.first()).map_or(ANY_MODEL, String::as_str);
    // Without any, the kit's first is all there is.
    (first.to_owned(), if models.is_empty() { vec![first.to_owned()] } else { models })
}

/// A notice if other users can read a file with credentials. The seed's own example makes such files.
fn readable(llm: &[LlmSection], mcp: &[McpSection], from: &Provenance) -> Option<String> {
    let is_value = |source: &Option<Located<Source>>| {
        source.as_ref().is_some_and(|s| s.at.file == from.file && matches!(s.value, Source::Value(_)))
    };
    let holds = llm.iter().any(|s| is_value(&s.api_key)) || mcp.iter().any(|s| is_value(&s.auth_token));
    (holds && from.mode & 0o044 != 0).then(|| {
        format!(
            "{}: contains credentials, and other users can read it (mode {:04o}): run `chmod 600` on it",
            from.file.display(),
            from.mode
        )
    })
}

fn llm(section: &LlmSection, registry: &Registry, wrong: &mut Vec<Problem>) -> Option<Llm> {
    let empty = LlmSection::default();
    let base = registry.llm.iter().find(|s| s.name == section.name).unwrap_or(&empty);
    let before = wrong.len();
    let near = near(&section.name, registry.llm.iter().map(|s| &s.name));
    let missing = |key| missing(&section.at, key, &section.name, registry, near.clone());
    let provider = match section.provider.as_ref().or(base.provider.as_ref()) {
        None => {
            wrong.push(missing("provider"));
            None
        }
        Some(Located { value, at }) => {
            let provider = ProviderKind::ALL.iter().copied().find(|kind| kind.name() == value);
            if provider.is_none() {
                let known = ProviderKind::ALL.iter().map(|kind| kind.name()).collect();
                wrong.push(Problem::new(at.clone(), Wrong::Value { value: value.clone(), known }));
            }
            provider
        }
    };
    let model = |of: &'_ LlmSection| {
        let first = || of.models.as_ref().and_then(|models| models.value.first().cloned());
        of.model.as_ref().map(|model| model.value.clone()).or_else(first)
    };
    let model = model(section).or_else(|| model(base));
    if model.is_none() {
        wrong.push(missing("model"));
    }
    let base_url = section.base_url.as_ref().or(base.base_url.as_ref());
    let api_key = section.api_key.as_ref().or(base.api_key.as_ref());
    if api_key.is_none() && base_url.is_none() {
        wrong.push(missing("api_key"));
    }
    let auth = section.auth.as_ref().or(base.auth.as_ref());
    if let (Some(ProviderKind::OpenAi), Some(Located { value: Auth::ApiKey, at })) = (provider, auth) {
        let (value, known) = (Auth::ApiKey.name().to_owned(), vec![Auth::Bearer.name()]);
        wrong.push(Problem::new(at.clone(), Wrong::Value { value, known }));
    }
    let base_url = base_url.and_then(|located| url(located, wrong));
    if wrong.len() > before {
        return None;
    }
    let number = |mine: &Option<Located<u64>>, theirs: &Option<Located<u64>>| {
        mine.as_ref().or(theirs.as_ref()).and_then(|n| u32::try_from(n.value).ok())
    };
    let seconds =
        |mine, theirs, default| Duration::from_secs(number(mine, theirs).map_or(default, u64::from));
    Some(Llm {
        name: section.name.clone(),
        provider: provider?,
        service: api_key.map(|key| service(&key.value)).unwrap_or_default(),
        model: model?,
        models: section.models.as_ref().or(base.models.as_ref()).map(|m| m.value.clone()).unwrap_or_default(),
        auth: auth.map(|auth| auth.value),
        api_key: api_key.map(|key| key.value.clone()),
        base_url,
        max_tokens: number(&section.max_tokens, &base.max_tokens).unwrap_or(MAX_TOKENS),
        price: section.price.as_ref().or(base.price.as_ref()).map(|p| p.value).unwrap_or_default(),
        options: section
            .options
            .as_ref()
            .or(base.options.as_ref())
            .map(|o| o.value.clone())
            .unwrap_or_default(),
        provider_tools: section
            .provider_tools
            .as_ref()
            .or(base.provider_tools.as_ref())
            .map(|tools| tools.value.clone())
            .unwrap_or_default(),
        prompt_cache: section.prompt_cache.or(base.prompt_cache).unwrap_or(true),
        max_mcp_rounds: number(&section.max_mcp_rounds, &base.max_mcp_rounds).unwrap_or(MAX_MCP_ROUNDS),
        max_rounds: number(&section.max_rounds, &base.max_rounds).unwrap_or(MAX_ROUNDS),
        timeout: seconds(&section.timeout, &base.timeout, TIMEOUT),
        runtime_timeout: seconds(&section.runtime_timeout, &base.runtime_timeout, RUNTIME_TIMEOUT),
    })
}

/// Which of the provider's services a credential is for.
fn service(source: &Source) -> Service {
    match source {
        Source::Login(login) if login.chatgpt_account.is_some() => Service::ChatGpt,
        _ => Service::Api,
    }
}

fn limits(profile: &Profile, registry: &Registry, wrong: &mut Vec<Problem>) -> Limits {
    let section = &profile.limits;
    if let (Some(cost), [llm]) = (&section.cost_per_day, profile.llm.as_slice()) {
        let base = registry.llm.iter().find(|s| s.name == llm.name);
        if llm.price.as_ref().or(base.and_then(|base| base.price.as_ref())).is_none() {
            let key = "price";
            wrong.push(missing(&cost.at, key, &llm.name, registry, None));
        }
    }
    Limits {
        turns_per_minute: section.turns_per_minute.as_ref().and_then(|n| u32::try_from(n.value).ok()),
        tokens_per_day: section.tokens_per_day.as_ref().map(|n| n.value),
        cost_per_day: section.cost_per_day.as_ref().map(|n| n.value),
    }
}

fn mcp(section: &McpSection, registry: &Registry, wrong: &mut Vec<Problem>) -> Option<Mcp> {
    let empty = McpSection::default();
    let base = registry.mcp.iter().find(|s| s.name == section.name).unwrap_or(&empty);
    let Some(address) = section.url.as_ref().or(base.url.as_ref()) else {
        let near = near(&section.name, registry.mcp.iter().map(|s| &s.name));
        wrong.push(missing(&section.at, "url", &section.name, registry, near));
        return None;
    };
    Some(Mcp {
        name: section.name.clone(),
        url: url(address, wrong)?,
        auth_token: section.auth_token.as_ref().or(base.auth_token.as_ref()).map(|t| t.value.clone()),
        tools: section.tools.as_ref().or(base.tools.as_ref()).cloned(),
        required: section.required.or(base.required).unwrap_or(false),
    })
}

fn missing(at: &At, key: &'static str, name: &str, registry: &Registry, near: Option<String>) -> Problem {
    let what = Wrong::MissingKey { key, name: name.to_owned(), registry: registry.file.clone(), near };
    Problem::new(at.clone(), what)
}

/// The registry's section that somebody may have meant who wrote this name.
fn near<'a>(name: &str, known: impl Iterator<Item = &'a String>) -> Option<String> {
    let distances = known.map(|k| (strsim::damerau_levenshtein(k, name), k));
    let (distance, near) = distances.min()?;
    (1..=1 + near.len() / 4).contains(&distance).then(|| near.clone())
}

/// An address to which a credential may go: encrypted, or this host.
///
/// # Errors
/// Why it may not, in words.
pub(crate) fn address(text: &str) -> Result<Url, &'static str> {
    match Url::parse(text) {
        Err(_) => Err("it is not a URL"),
        Ok(url) if !url.username().is_empty() || url.password().is_some() => {
            Err("a URL must not contain a credential, since logs show URLs")
        }
        Ok(url) if url.query().is_some() || url.fragment().is_some() => Err("it has a query or a fragment"),
        Ok(url) => match url.scheme() {
            "https" => Ok(url),
            "http" if url.host_str().is_some_and(loopback::is_name) => Ok(url),
            "http" => Err(
                "http is for loopback only, since it would send the credential over the network in the clear",
            ),
            _ => Err("only https, and http on loopback, can be used"),
        },
    }
}

fn url(located: &Located<String>, wrong: &mut Vec<Problem>) -> Option<Url> {
    address(&located.value)
        .map_err(|why| {
            let url = misplaced::as_address(&located.value);
            wrong.push(Problem::new(located.at.clone(), Wrong::Url { url, why }));
        })
        .ok()
}
