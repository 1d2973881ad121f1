//! The tables of an agent, `[llm.*]`, `[mcp.*]` and `[limits]`, in a profile or in the registry: one struct each, for its JSON
//! Schema and for the keys that a file has.

use super::{
    keys::Keys,
    parse::{Parser, Value},
    problem::{At, Wrong},
};
use crate::agents::config::{Auth, Price, ProviderKind};
use ringfence_credentials::{Secret, Source};
use ringfence_redact::misplaced;
use schemars::JsonSchema;
use std::collections::{BTreeMap, BTreeSet};
use toml::de::DeValue;

/// A value and where it stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Located<T> {
    /// The value.
    pub value: T,
    /// Where.
    pub at: At,
}

/// `[llm.NAME]` of one file.
#[derive(Debug, Clone, Default, JsonSchema)]
#[schemars(deny_unknown_fields)]
pub struct LlmSection {
    /// The part of its title after `llm.`.
    #[schemars(skip)]
    pub name: String,
    /// Where it begins.
    #[schemars(skip)]
    pub at: At,
    /// Which protocol is spoken: `anthropic`, `openai` for it and compatible servers, or `gemini`.
    #[schemars(with = "Option<ProviderKind>")]
    pub provider: Option<Located<String>>,
    /// The provider's name of the model.
    #[schemars(with = "Option<String>")]
    pub model: Option<Located<String>>,
    /// The models that a client of the HTTP endpoint may ask for, beside `model`; the first is the default where there is none.
    /// `*` is any. Absent: it gets `model`, whichever it asks for.
    #[schemars(with = "Option<Vec<String>>")]
    pub models: Option<Located<Vec<String>>>,
    /// Where the key comes from.
    #[schemars(flatten, with = "ApiKey")]
    pub api_key: Option<Located<Source>>,
    /// How the key is sent to Anthropic: `api-key` or `bearer`. Default: a token of its OAuth (`sk-ant-oat...`) as a bearer token,
    /// any other as an API key.
    #[schemars(with = "Option<Auth>")]
    pub auth: Option<Located<Auth>>,
    /// In place of the provider's address: for Anthropic what stands before `/v1/messages`, for OpenAI what ends in `/v1`,
    /// for Gemini what stands before `/v1beta`.
    #[schemars(with = "Option<String>")]
    pub base_url: Option<Located<String>>,
    /// Most tokens of one answer. Default: 8192.
    #[schemars(with = "Option<u32>")]
    pub max_tokens: Option<Located<u64>>,
    /// What a million tokens cost, for `limits.cost_per_day`.
    #[schemars(with = "Option<Price>")]
    pub price: Option<Located<Price>>,
    /// Further fields of each request to the provider: `temperature`, `thinking` and the like.
    #[schemars(with = "Option<BTreeMap<String, serde_json::Value>>")]
    pub options: Option<Located<serde_json::Map<String, serde_json::Value>>>,
    /// What the provider may run itself for the agent: tools by their type or its beginning (`web_search`), `mcp`, `url`,
    /// `file_id` and others; `*` is everything. Default: none.
    #[schemars(with = "Option<Vec<String>>")]
    pub provider_tools: Option<Located<Vec<String>>>,
    /// Whether the provider is asked to cache the prompt, where it must be asked. Default: true.
    pub prompt_cache: Option<bool>,
    /// Turns that one message may take. Default: 200.
    #[schemars(with = "Option<u32>")]
    pub max_rounds: Option<Located<u64>>,
    /// Calls of the model that one turn may take, MCP tools being run between them. Default: 50.
    #[schemars(with = "Option<u32>")]
    pub max_mcp_rounds: Option<Located<u64>>,
    /// Seconds without a byte after which the request to the provider is abandoned. Default: 600.
    #[schemars(with = "Option<u32>")]
    pub timeout: Option<Located<u64>>,
    /// Seconds that the runtime may take for its tools before its message is abandoned. Default: 3600.
    #[schemars(with = "Option<u32>")]
    pub runtime_timeout: Option<Located<u64>>,
}

/// The keys that an API key can come from.
#[derive(JsonSchema)]
#[expect(dead_code, reason = "only the schema is used")]
struct ApiKey {
    /// The key itself. One source at most.
    api_key: Option<String>,
    /// A variable of the worker's environment that has the key.
    api_key_env: Option<String>,
    /// A file that has the key, and that only its owner may read.
    api_key_file: Option<String>,
    /// A systemd credential that has the key.
    api_key_credential: Option<String>,
    /// A command that prints the key: its words, or a line for the shell. Never run as root.
    api_key_command: Option<CommandText>,
}

/// `[limits]` of one file.
#[derive(Debug, Clone, Default, JsonSchema)]
#[schemars(deny_unknown_fields)]
pub struct LimitsSection {
    /// Turns in any sixty seconds.
    #[schemars(with = "Option<u32>")]
    pub turns_per_minute: Option<Located<u64>>,
    /// Tokens of a day (UTC), read and written, cached ones included.
    #[schemars(with = "Option<u32>")]
    pub tokens_per_day: Option<Located<u64>>,
    /// Cost of a day (UTC), in the currency of the section's `price`.
    #[schemars(with = "Option<f64>")]
    pub cost_per_day: Option<Located<f64>>,
}

/// `[mcp.NAME]` of one file.
#[derive(Debug, Clone, Default, JsonSchema)]
#[schemars(deny_unknown_fields)]
pub struct McpSection {
    /// The part of its title after `mcp.`.
    #[schemars(skip)]
    pub name: String,
    /// Where it begins.
    #[schemars(skip)]
    pub at: At,
    /// The server's address.
    #[schemars(with = "Option<String>")]
    pub url: Option<Located<String>>,
    /// Where the bearer token comes from.
    #[schemars(flatten, with = "AuthToken")]
    pub auth_token: Option<Located<Source>>,
    /// The tools that may be called. Absent: all; empty: none.
    pub tools: Option<Vec<String>>,
    /// Whether a turn fails where the server's tools cannot be had, instead of going on without them. Default: false.
    pub required: Option<bool>,
}

/// The keys that a bearer token can come from.
#[derive(JsonSchema)]
#[expect(dead_code, reason = "only the schema is used")]
struct AuthToken {
    /// The bearer token itself. One source at most.
    auth_token: Option<String>,
    /// A variable of the worker's environment that has the token.
    auth_token_env: Option<String>,
    /// A file that has the token, and that only its owner may read.
    auth_token_file: Option<String>,
    /// A systemd credential that has the token.
    auth_token_credential: Option<String>,
    /// A command that prints the token. Never run as root.
    auth_token_command: Option<CommandText>,
}

#[derive(JsonSchema)]
#[schemars(untagged)]
#[expect(dead_code, reason = "only the schema is used")]
pub(crate) enum CommandText {
    /// For `/bin/sh -c`.
    Line(String),
    /// A program and its arguments.
    Words(Vec<String>),
}

/// Fields of a request that have keys of their own, or that the conversation fills in.
const RESERVED: &[&str] = &[
    "model",
    "max_tokens",
    "max_completion_tokens",
    "messages",
    "system",
    "tools",
    "stream",
    "stream_options",
];

impl LlmSection {
    pub(crate) fn read(keys: &mut Keys<'_>, name: &str, at: At) -> Self {
        Self {
            name: name.to_owned(),
            at,
            provider: keys.located("provider", Parser::text),
            model: keys.located("model", Parser::filled),
            models: keys.located("models", Parser::names),
            api_key: keys.one_of(&[
                ("api_key", Parser::secret),
                ("api_key_command", Parser::secret_command),
                ("api_key_credential", Parser::secret_credential),
                ("api_key_env", Parser::secret_variable),
                ("api_key_file", Parser::secret_file),
            ]),
            auth: keys.located("auth", Parser::choice),
            base_url: keys.located("base_url", Parser::filled),
            max_tokens: keys.located("max_tokens", Parser::positive),
            price: keys.located("price", |p, key, v| p.keys(key, v, price)),
            options: keys.located("options", Parser::options),
            provider_tools: keys.located("provider_tools", Parser::filled_texts),
            prompt_cache: keys.get("prompt_cache", Parser::flag),
            max_rounds: keys.located("max_rounds", Parser::positive),
            max_mcp_rounds: keys.located("max_mcp_rounds", Parser::positive),
            timeout: keys.located("timeout", Parser::positive),
            runtime_timeout: keys.located("runtime_timeout", Parser::positive),
        }
    }
}

fn price(keys: &mut Keys<'_>) -> Price {
    let mut amount = |name| keys.get(name, Parser::amount).unwrap_or_default();
    Price {
        input: amount("input"),
        output: amount("output"),
        cache_read: amount("cache_read"),
        cache_write: amount("cache_write"),
    }
}

impl LimitsSection {
    pub(crate) fn read(keys: &mut Keys<'_>) -> Self {
        Self {
            turns_per_minute: keys.located("turns_per_minute", Parser::positive),
            tokens_per_day: keys.located("tokens_per_day", Parser::positive),
            cost_per_day: keys.located("cost_per_day", Parser::amount),
        }
    }
}

impl McpSection {
    pub(crate) fn read(keys: &mut Keys<'_>, name: &str, at: At) -> Self {
        Self {
            name: name.to_owned(),
            at,
            url: keys.located("url", Parser::filled),
            auth_token: keys.one_of(&[
                ("auth_token", Parser::secret),
                ("auth_token_command", Parser::secret_command),
                ("auth_token_credential", Parser::secret_credential),
                ("auth_token_env", Parser::secret_variable),
                ("auth_token_file", Parser::secret_file),
            ]),
            tools: keys.get("tools", Parser::texts),
            required: keys.get("required", Parser::flag),
        }
    }
}

/// `1MB` as bytes.
fn bytes(text: &str) -> Option<u64> {
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, unit) = text.split_at_checked(digits)?;
    let times: u64 = match unit.trim_start() {
        "B" => 1,
        "kB" | "KB" => 1000,
        "MB" => 1000 * 1000,
        "GB" => 1000 * 1000 * 1000,
        "TB" => 1000 * 1000 * 1000 * 1000,
        "KiB" => 1 << 10,
        "MiB" => 1 << 20,
        "GiB" => 1 << 30,
        "TiB" => 1 << 40,
        _ => return None,
    };
    number.parse::<u64>().ok()?.checked_mul(times)
}

impl Parser {
    fn amount(&mut self, path: &str, value: &Value<'_>) -> Option<f64> {
        let text = match value.get_ref() {
            DeValue::Float(number) => Some(number.as_str()),
            DeValue::Integer(number) if number.radix() == 10 => Some(number.as_str()),
            _ => None,
        };
        let amount = text.and_then(|text| text.replace('_', "").parse::<f64>().ok());
        let amount = amount.filter(|amount| amount.is_finite() && *amount >= 0.0);
        if amount.is_none() {
            self.mistyped(path, value, "an amount, 0 or more");
        }
        amount
    }

    fn secret(&mut self, path: &str, value: &Value<'_>) -> Option<Source> {
        self.filled(path, value).map(|text| Source::Value(Secret::from(text)))
    }

    pub(crate) fn secret_credential(&mut self, path: &str, value: &Value<'_>) -> Option<Source> {
        self.filled(path, value).map(Source::Credential)
    }

    /// A number of bytes, or a text of a number and a unit.
    pub(crate) fn size(&mut self, path: &str, value: &Value<'_>) -> Option<u64> {
        let bytes = match value.get_ref() {
            DeValue::String(text) => {
                let bytes = bytes(text);
                if bytes.is_none() {
                    self.wrong(value.span().start, path, Wrong::Size(text.to_string()));
                }
                bytes?
            }
            _ => self.count(path, value)?,
        };
        if bytes == 0 {
            self.wrong(value.span().start, path, Wrong::Range { number: 0, least: 1, most: u64::MAX });
            return None;
        }
        Some(bytes)
    }

    pub(crate) fn filled(&mut self, path: &str, value: &Value<'_>) -> Option<String> {
        let text = self.text(path, value)?;
        if text.trim().is_empty() {
            self.wrong(value.span().start, path, Wrong::EmptyText);
            return None;
        }
        Some(text)
    }

    /// Texts, none of them empty.
    fn filled_texts(&mut self, path: &str, value: &Value<'_>) -> Option<Vec<String>> {
        let Some(listed) = value.get_ref().as_array() else {
            self.mistyped(path, value, "a list of strings");
            return None;
        };
        Some(listed.iter().filter_map(|one| self.filled(path, one)).collect())
    }

    /// At least one text, none of them empty.
    pub(crate) fn names(&mut self, path: &str, value: &Value<'_>) -> Option<Vec<String>> {
        let listed = value.get_ref().as_array().filter(|listed| !listed.is_empty());
        let Some(listed) = listed else {
            self.mistyped(path, value, "a list of at least one string");
            return None;
        };
        let mut names: Vec<String> = listed.iter().filter_map(|one| self.filled(path, one)).collect();
        let mut seen = BTreeSet::new();
        names.retain(|name| seen.insert(name.clone()));
        Some(names)
    }

    fn positive(&mut self, path: &str, value: &Value<'_>) -> Option<u64> {
        self.at_least_one(path, value, u32::MAX.into())
    }

    /// A TCP port.
    pub(crate) fn port(&mut self, path: &str, value: &Value<'_>) -> Option<u64> {
        self.at_least_one(path, value, u16::MAX.into())
    }

    /// How long a person may take, in seconds.
    pub(crate) fn patience(&mut self, path: &str, value: &Value<'_>) -> Option<u16> {
        const LEAST: u64 = 5;
        const MOST: u64 = 600;
        let number = self.count(path, value)?;
        if !(LEAST..=MOST).contains(&number) {
            self.wrong(value.span().start, path, Wrong::Range { number, least: LEAST, most: MOST });
            return None;
        }
        u16::try_from(number).ok()
    }

    fn at_least_one(&mut self, path: &str, value: &Value<'_>, most: u64) -> Option<u64> {
        let number = self.count(path, value)?;
        if !(1..=most).contains(&number) {
            self.wrong(value.span().start, path, Wrong::Range { number, least: 1, most });
            return None;
        }
        Some(number)
    }

    pub(crate) fn flag(&mut self, path: &str, value: &Value<'_>) -> Option<bool> {
        let flag = value.get_ref().as_bool();
        if flag.is_none() {
            self.mistyped(path, value, "true or false");
        }
        flag
    }

    /// The name of a variable. The error does not repeat a text that is no name, since it may be the credential itself.
    pub(crate) fn secret_variable(&mut self, path: &str, value: &Value<'_>) -> Option<Source> {
        let name = self.filled(path, value)?;
        if !misplaced::is_variable(&name) {
            self.wrong(value.span().start, path, Wrong::NotAVariable);
            return None;
        }
        Some(Source::Env(name))
    }

    pub(crate) fn secret_file(&mut self, path: &str, value: &Value<'_>) -> Option<Source> {
        let text = self.filled(path, value)?;
        match ringfence_base::home::expand(&text) {
            Some(file) if file.is_absolute() => Some(Source::File(file)),
            _ => {
                self.wrong(value.span().start, path, Wrong::NotAbsolute);
                None
            }
        }
    }

    /// A command: its words, or a line for the shell.
    pub(crate) fn secret_command(&mut self, path: &str, value: &Value<'_>) -> Option<Source> {
        if value.get_ref().is_str() {
            let line = self.filled(path, value)?;
            return Some(Source::Command(vec!["/bin/sh".to_owned(), "-c".to_owned(), line]));
        }
        let words = self.texts(path, value)?;
        if words.first().is_none_or(String::is_empty) {
            self.wrong(value.span().start, path, Wrong::EmptyText);
            return None;
        }
        Some(Source::Command(words))
    }

    fn options(
        &mut self,
        path: &str,
        value: &Value<'_>,
    ) -> Option<serde_json::Map<String, serde_json::Value>> {
        let mut options = serde_json::Map::new();
        for (key, value) in self.table(path, value)? {
            let path = format!("{path}.{}", key.get_ref());
            if RESERVED.contains(&key.get_ref().as_ref()) {
                self.wrong(key.span().start, &path, Wrong::Reserved);
            } else if let Some(json) = self.json(&path, value) {
                options.insert(key.get_ref().to_string(), json);
            }
        }
        Some(options)
    }

    fn json(&mut self, path: &str, value: &Value<'_>) -> Option<serde_json::Value> {
        use serde_json::Value as Json;
        Some(match value.get_ref() {
            DeValue::String(text) => Json::String(text.to_string()),
            DeValue::Boolean(flag) => Json::Bool(*flag),
            DeValue::Integer(number) => {
                let text = number.as_str().replace('_', "");
                let Ok(number) = i64::from_str_radix(&text, number.radix()) else {
                    self.mistyped(path, value, "a whole number of 64 bits");
                    return None;
                };
                Json::from(number)
            }
            DeValue::Float(number) => {
                let number =
                    number.as_str().replace('_', "").parse().ok().and_then(serde_json::Number::from_f64);
                let Some(number) = number else {
                    self.mistyped(path, value, "a finite number");
                    return None;
                };
                Json::Number(number)
            }
            DeValue::Array(items) => Json::Array(items.iter().filter_map(|v| self.json(path, v)).collect()),
            DeValue::Table(table) => {
                let fields =
                    table.iter().filter_map(|(k, v)| Some((k.get_ref().to_string(), self.json(path, v)?)));
                Json::Object(fields.collect())
            }
            DeValue::Datetime(_) => {
                self.mistyped(path, value, "a string, number, list or table");
                return None;
            }
        })
    }
}
