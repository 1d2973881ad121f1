//! What one agent's worker is started with.

use ringfence_credentials::Source;
use ringfence_wire::agent::CredentialOwner;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::{path::PathBuf, time::Duration};
use url::Url;

/// In a list of models: whichever the client asks for.
pub const ANY_MODEL: &str = "*";

/// As the most tokens of an answer: as many as the client asks for.
pub const UNLIMITED_TOKENS: u32 = u32::MAX;

/// Everything that one agent's worker is started with. As JSON it goes from its supervisor to a worker: without credentials,
/// which are handed over as descriptors.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct AgentConfig {
    /// The profile's file stem.
    pub name: String,
    /// The profile.
    pub file: PathBuf,
    /// The model.
    pub llm: Llm,
    /// MCP servers, in the profile's order of names.
    pub mcp: Vec<Mcp>,
    /// What it may use.
    pub limits: Limits,
    /// Who may read the log beside its owner.
    pub log_reader: Option<u32>,
    /// Who may use the socket beside its owner; where the daemon serves it, whose it is.
    pub socket_owner: Option<u32>,
    /// Whether and where the provider's own API is served.
    pub http: Option<Http>,
    /// Whether a `[grant]` governs the agent's container.
    pub governed: bool,
    /// Where its client works, if that is known: an absolute path.
    pub workdir: Option<String>,
    /// What the author should know.
    pub notices: Vec<String>,
}

impl AgentConfig {
    /// Where its credentials come from, in the order in which a worker is handed them.
    pub fn credentials(&self) -> Vec<(CredentialOwner, &Source)> {
        let llm = self.llm.api_key.iter().map(|source| (CredentialOwner::Llm, source));
        let of_mcp = |mcp: &'_ Mcp| CredentialOwner::Mcp(mcp.name.clone());
        let mcp =
            self.mcp.iter().filter_map(|mcp| mcp.auth_token.as_ref().map(|source| (of_mcp(mcp), source)));
        llm.chain(mcp).collect()
    }

    /// Whether it has what such a credential is for.
    pub fn has(&self, of: &CredentialOwner) -> bool {
        match of {
            CredentialOwner::Llm => true,
            CredentialOwner::Account => self.llm.service == Service::ChatGpt,
            CredentialOwner::Mcp(name) => self.mcp.iter().any(|mcp| mcp.name == *name),
        }
    }
}

/// Where the provider's own API is served, beside the unix socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Http {
    /// A port of loopback.
    pub port: Option<u16>,
}

/// The one list of providers: what a profile calls each, and its name in the configuration that a worker receives.
macro_rules! providers {
    ($($(#[$doc:meta])* $kind:ident = $name:literal),+ $(,)?) => {
        /// Which protocol a provider speaks.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
        #[schemars(rename = "ProviderKey", rename_all = "lowercase", description = "")]
        pub enum ProviderKind {
            $($(#[$doc])* $kind),+
        }

        impl ProviderKind {
            /// All of them.
            pub const ALL: &[Self] = &[$(Self::$kind),+];

            /// The name in files.
            pub fn name(self) -> &'static str {
                match self {
                    $(Self::$kind => $name),+
                }
            }
        }
    };
}

providers! {
    /// Anthropic's Messages.
    Anthropic = "anthropic",
    /// OpenAI's Chat Completions; at the HTTP endpoint its Responses, too.
    OpenAi = "openai",
    /// Google's Gemini API.
    Gemini = "gemini",
}

/// How the key is sent to a provider that takes it in more than one way.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
#[schemars(rename = "AuthKey", description = "")]
pub enum Auth {
    /// As an API key: `x-api-key`, of Gemini's `x-goog-api-key`.
    ApiKey,
    /// As a token: `Authorization: Bearer`.
    Bearer,
}

impl Auth {
    /// The name in files.
    pub fn name(self) -> &'static str {
        match self {
            Self::ApiKey => "api-key",
            Self::Bearer => "bearer",
        }
    }
}

/// Which of its provider's services a credential is for.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Service {
    /// The API.
    #[default]
    Api,
    /// What OpenAI serves to Codex for a login with ChatGPT.
    #[serde(rename = "chatgpt")]
    ChatGpt,
}

/// An agent's model.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Llm {
    /// The section's name.
    pub name: String,
    /// Which protocol.
    pub provider: ProviderKind,
    /// Which service of the provider's.
    #[serde(default)]
    pub service: Service,
    /// The provider's name of the model.
    pub model: String,
    /// Which a client of the HTTP endpoint may ask for beside `model`; [`ANY_MODEL`] is any; none: it gets `model`, whichever it
    /// asks for.
    pub models: Vec<String>,
    /// Where the key comes from; none: a server that wants none.
    #[serde(skip)]
    pub api_key: Option<Source>,
    /// How the key is sent; none: as its form says.
    pub auth: Option<Auth>,
    /// In place of the provider's own address.
    #[serde(with = "maybe_url")]
    pub base_url: Option<Url>,
    /// Most tokens of an answer, or [`UNLIMITED_TOKENS`].
    pub max_tokens: u32,
    /// What a million tokens cost.
    pub price: Price,
    /// Further fields of each request.
    pub options: serde_json::Map<String, serde_json::Value>,
    /// What the provider may run itself for clients: types of tools and beginnings of them, and names of what else has it
    /// reach out (`mcp`, `url`, `file_id`); `*` is everything.
    pub provider_tools: Vec<String>,
    /// Whether to ask for prompt caching.
    pub prompt_cache: bool,
    /// Calls of the model in a turn.
    pub max_mcp_rounds: u32,
    /// Turns of a message.
    pub max_rounds: u32,
    /// Without a byte for so long, a provider is given up.
    pub timeout: Duration,
    /// Without a turn for so long, a runtime's message is given up.
    pub runtime_timeout: Duration,
}

impl Llm {
    /// The models that a client of the HTTP endpoint may ask for, the default first; without those that [`Self::offers_any`]
    /// means.
    pub fn offered(&self) -> impl Iterator<Item = &str> {
        let others = self.models.iter().filter(|other| **other != self.model);
        std::iter::once(&self.model).chain(others).map(String::as_str).filter(|model| *model != ANY_MODEL)
    }

    /// Whether a client may ask for any model.
    pub fn offers_any(&self) -> bool {
        self.models.iter().any(|model| model == ANY_MODEL)
    }
}

/// An MCP server.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mcp {
    /// The section's name.
    pub name: String,
    /// Its address.
    #[serde(with = "as_text")]
    pub url: Url,
    /// Where the bearer token comes from.
    #[serde(skip)]
    pub auth_token: Option<Source>,
    /// The tools that may be called; none: all.
    pub tools: Option<Vec<String>>,
    /// Without its tools, a turn fails.
    pub required: bool,
}

impl Mcp {
    /// Whether a tool may be listed and called.
    pub fn allows(&self, tool: &str) -> bool {
        self.tools.as_ref().is_none_or(|tools| tools.iter().any(|t| t == tool))
    }
}

/// A URL in JSON.
mod as_text {
    use super::Url;
    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    pub(super) fn serialize<S: Serializer>(url: &Url, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(url.as_str())
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Url, D::Error> {
        Url::parse(&String::deserialize(deserializer)?).map_err(D::Error::custom)
    }
}

/// A URL or none in JSON.
mod maybe_url {
    use super::Url;
    use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error};

    pub(super) fn serialize<S: Serializer>(url: &Option<Url>, serializer: S) -> Result<S::Ok, S::Error> {
        url.as_ref().map(Url::as_str).serialize(serializer)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Url>, D::Error> {
        let text = Option::<String>::deserialize(deserializer)?;
        text.map(|text| Url::parse(&text).map_err(D::Error::custom)).transpose()
    }
}

/// What an agent may use.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Limits {
    /// Turns in any sixty seconds.
    pub turns_per_minute: Option<u32>,
    /// Tokens of a day (UTC), read and written, cached ones included.
    pub tokens_per_day: Option<u64>,
    /// Cost of a day (UTC), in the currency of the prices.
    pub cost_per_day: Option<f64>,
}

/// What a million tokens cost.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[schemars(deny_unknown_fields, default)]
pub struct Price {
    /// Read.
    pub input: f64,
    /// Written by the model.
    pub output: f64,
    /// Read from the provider's cache.
    pub cache_read: f64,
    /// Written to the provider's cache.
    pub cache_write: f64,
}
