//! `[llm.*]` and `[mcp.*]`, in a profile or in the registry: each key checked where it stands.

use super::{
    parse::{Parser, Value},
    problem::{At, Wrong},
};
use crate::agents::config::Price;
use ringfence_credentials::{Secret, Source};
use ringfence_redact::misplaced;
use toml::{
    Spanned,
    de::{DeTable, DeValue},
};

/// A value and where it stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Located<T> {
    /// The value.
    pub value: T,
    /// Where.
    pub at: At,
}

/// `[llm.NAME]` of one file.
#[derive(Debug, Clone, Default)]
pub struct LlmSection {
    /// The part of its title after `llm.`.
    pub name: String,
    /// Where it begins.
    pub at: At,
    /// Which protocol is spoken.
    pub provider: Option<Located<String>>,
    /// The provider's name of the model.
    pub model: Option<Located<String>>,
    /// Where the key comes from.
    pub api_key: Option<Located<Source>>,
    /// In place of the provider's own address.
    pub base_url: Option<Located<String>>,
    /// Most tokens of one answer.
    pub max_tokens: Option<Located<u64>>,
    /// What a million tokens cost.
    pub price: Option<Located<Price>>,
    /// Further fields of each request.
    pub options: Option<Located<serde_json::Map<String, serde_json::Value>>>,
    /// Whether the provider is asked to cache the prompt.
    pub prompt_cache: Option<bool>,
    /// Calls of the model within one turn.
    pub max_mcp_rounds: Option<Located<u64>>,
    /// Turns of one message.
    pub max_rounds: Option<Located<u64>>,
    /// Seconds without a byte after which a provider is given up.
    pub timeout: Option<Located<u64>>,
    /// Seconds that the runtime may take between turns.
    pub runtime_timeout: Option<Located<u64>>,
}

/// `[limits]` of one file.
#[derive(Debug, Clone, Default)]
pub struct LimitsSection {
    /// Turns in any sixty seconds.
    pub turns_per_minute: Option<Located<u64>>,
    /// Tokens of a day.
    pub tokens_per_day: Option<Located<u64>>,
    /// Cost of a day.
    pub cost_per_day: Option<Located<f64>>,
}

/// `[mcp.NAME]` of one file.
#[derive(Debug, Clone, Default)]
pub struct McpSection {
    /// The part of its title after `mcp.`.
    pub name: String,
    /// Where it begins.
    pub at: At,
    /// The server.
    pub url: Option<Located<String>>,
    /// Where the bearer token comes from.
    pub auth_token: Option<Located<Source>>,
    /// The tools that may be called; absent: all.
    pub tools: Option<Vec<String>>,
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

impl Parser {
    /// Every `[llm.NAME]`.
    pub(crate) fn llm(&mut self, value: &Value<'_>) -> Vec<LlmSection> {
        self.sections("llm", value, Self::llm_section)
    }

    /// Every `[mcp.NAME]`.
    pub(crate) fn mcp(&mut self, value: &Value<'_>) -> Vec<McpSection> {
        self.sections("mcp", value, Self::mcp_section)
    }

    fn sections<T>(
        &mut self,
        title: &str,
        value: &Value<'_>,
        read: impl Fn(&mut Self, &str, At, &DeTable<'_>) -> T,
    ) -> Vec<T> {
        let Some(all) = value.get_ref().as_table() else {
            self.mistyped(title, value, "a table");
            return Vec::new();
        };
        let mut sections = Vec::new();
        for (name, body) in all {
            let key = format!("{title}.{}", name.get_ref());
            match body.get_ref().as_table() {
                Some(table) => {
                    let at = self.at(name.span().start, &key);
                    sections.push(read(self, name.get_ref(), at, table));
                }
                None => {
                    let title = title.to_owned();
                    self.wrong(name.span().start, &key, Wrong::NoSectionName { title });
                }
            }
        }
        sections
    }

    fn llm_section(&mut self, name: &str, at: At, table: &DeTable<'_>) -> LlmSection {
        let mut section = LlmSection { name: name.to_owned(), at, ..LlmSection::default() };
        for (key, value) in table {
            let path = format!("llm.{name}.{}", key.get_ref());
            match key.get_ref().as_ref() {
                "provider" => section.provider = self.located(&path, value, Self::text),
                "model" => section.model = self.located(&path, value, Self::filled),
                "base_url" => section.base_url = self.located(&path, value, Self::filled),
                "max_tokens" => section.max_tokens = self.located(&path, value, Self::positive),
                "max_rounds" => section.max_rounds = self.located(&path, value, Self::positive),
                "max_mcp_rounds" => section.max_mcp_rounds = self.located(&path, value, Self::positive),
                "timeout" => section.timeout = self.located(&path, value, Self::positive),
                "runtime_timeout" => section.runtime_timeout = self.located(&path, value, Self::positive),
                "price" => section.price = self.located(&path, value, Self::price),
                "options" => section.options = self.located(&path, value, Self::options),
                "prompt_cache" => section.prompt_cache = self.flag(&path, value),
                other if other.starts_with("api_key") => {
                    self.source("api_key", &path, key, value, &mut section.api_key, ("llm.*", name));
                }
                _ => self.unknown_in("llm.*", &format!("llm.{name}"), key),
            }
        }
        section
    }

    /// `[limits]`.
    pub(crate) fn limits(&mut self, value: &Value<'_>) -> Option<LimitsSection> {
        let Some(table) = value.get_ref().as_table() else {
            self.mistyped("limits", value, "a table");
            return None;
        };
        let mut section = LimitsSection::default();
        for (key, value) in table {
            let path = format!("limits.{}", key.get_ref());
            match key.get_ref().as_ref() {
                "turns_per_minute" => section.turns_per_minute = self.located(&path, value, Self::positive),
                "tokens_per_day" => section.tokens_per_day = self.located(&path, value, Self::positive),
                "cost_per_day" => section.cost_per_day = self.located(&path, value, Self::amount),
                _ => self.unknown("limits", key),
            }
        }
        Some(section)
    }

    fn price(&mut self, path: &str, value: &Value<'_>) -> Option<Price> {
        let Some(table) = value.get_ref().as_table() else {
            self.mistyped(path, value, "a table");
            return None;
        };
        let mut price = Price::default();
        for (key, value) in table {
            let to = match key.get_ref().as_ref() {
                "input" => &mut price.input,
                "output" => &mut price.output,
                "cache_read" => &mut price.cache_read,
                "cache_write" => &mut price.cache_write,
                _ => {
                    self.unknown_in("llm.*.price", path, key);
                    continue;
                }
            };
            *to = self.amount(&format!("{path}.{}", key.get_ref()), value)?;
        }
        Some(price)
    }

    fn amount(&mut self, path: &str, value: &Value<'_>) -> Option<f64> {
        let text = match value.get_ref() {
            DeValue::Float(number) => Some(number.as_str()),
            DeValue::Integer(number) if number.radix() == 10 => Some(number.as_str()),
            _ => None,
        };
        let amount = text.and_then(|text| text.replace('_', "").parse::<f64>().ok());
        let amount = amount.filter(|amount| amount.is_finite() && *amount >= 0.0);
        if amount.is_none() {
            self.mistyped(path, value, "an amount, 0 or more,");
        }
        amount
    }

    fn mcp_section(&mut self, name: &str, at: At, table: &DeTable<'_>) -> McpSection {
        let mut section = McpSection { name: name.to_owned(), at, ..McpSection::default() };
        for (key, value) in table {
            let path = format!("mcp.{name}.{}", key.get_ref());
            match key.get_ref().as_ref() {
                "url" => section.url = self.located(&path, value, Self::filled),
                "tools" => section.tools = self.texts(&path, value),
                other if other.starts_with("auth_token") => {
                    self.source("auth_token", &path, key, value, &mut section.auth_token, ("mcp.*", name));
                }
                _ => self.unknown_in("mcp.*", &format!("mcp.{name}"), key),
            }
        }
        section
    }

    pub(crate) fn located<T>(
        &mut self,
        path: &str,
        value: &Value<'_>,
        read: impl Fn(&mut Self, &str, &Value<'_>) -> Option<T>,
    ) -> Option<Located<T>> {
        let at = self.at(value.span().start, path);
        read(self, path, value).map(|value| Located { value, at })
    }

    fn filled(&mut self, path: &str, value: &Value<'_>) -> Option<String> {
        let text = self.text(path, value)?;
        if text.trim().is_empty() {
            self.wrong(value.span().start, path, Wrong::EmptyText);
            return None;
        }
        Some(text)
    }

    fn positive(&mut self, path: &str, value: &Value<'_>) -> Option<u64> {
        let most = u64::from(u32::MAX);
        let number = self.count(path, value)?;
        if !(1..=most).contains(&number) {
            self.wrong(value.span().start, path, Wrong::Range { number, least: 1, most });
            return None;
        }
        Some(number)
    }

    /// A TCP port.
    pub(crate) fn port(&mut self, path: &str, value: &Value<'_>) -> Option<u64> {
        let (number, most) = (self.count(path, value)?, u64::from(u16::MAX));
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

    /// One of a credential's sources; two are a mistake.
    fn source(
        &mut self,
        stem: &'static str,
        path: &str,
        key: &Spanned<toml::de::DeString<'_>>,
        value: &Value<'_>,
        to: &mut Option<Located<Source>>,
        (table, name): (&str, &str),
    ) {
        let source = match key.get_ref().strip_prefix(stem) {
            Some("") => self.filled(path, value).map(|text| Source::Value(Secret::from(text))),
            Some("_env") => self.variable(path, value).map(Source::Env),
            Some("_file") => self.secret_file(path, value),
            Some("_credential") => self.filled(path, value).map(Source::Credential),
            Some("_command") => self.words(path, value).map(Source::Command),
            _ => return self.unknown_in(table, &table.replace('*', name), key),
        };
        let at = self.at(value.span().start, path);
        if let Some(first) = to {
            let first = first.at.key.clone();
            return self.wrong(key.span().start, path, Wrong::TwoSources { first });
        }
        *to = source.map(|value| Located { value, at });
    }

    /// The name of a variable. What is none may be the credential itself, and is not repeated.
    fn variable(&mut self, path: &str, value: &Value<'_>) -> Option<String> {
        let name = self.filled(path, value)?;
        if !misplaced::is_variable(&name) {
            self.wrong(value.span().start, path, Wrong::NotAVariable);
            return None;
        }
        Some(name)
    }

    fn secret_file(&mut self, path: &str, value: &Value<'_>) -> Option<Source> {
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
    fn words(&mut self, path: &str, value: &Value<'_>) -> Option<Vec<String>> {
        if value.get_ref().is_str() {
            let line = self.filled(path, value)?;
            return Some(vec!["/bin/sh".to_owned(), "-c".to_owned(), line]);
        }
        let words = self.texts(path, value)?;
        if words.first().is_none_or(String::is_empty) {
            self.wrong(value.span().start, path, Wrong::EmptyText);
            return None;
        }
        Some(words)
    }

    fn options(
        &mut self,
        path: &str,
        value: &Value<'_>,
    ) -> Option<serde_json::Map<String, serde_json::Value>> {
        let Some(table) = value.get_ref().as_table() else {
            self.mistyped(path, value, "a table");
            return None;
        };
        let mut options = serde_json::Map::new();
        for (key, value) in table {
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
