//! The JSON Schema of a profile: that of its tables (`tables`), and here how their values are written.
#![expect(dead_code, reason = "the types describe how values are written; only their schema is used")]

use super::tables::ProfileTable;
use schemars::{JsonSchema, Schema, generate::SchemaSettings};

/// The JSON Schema of a profile.
pub fn schema() -> Schema {
    let settings = SchemaSettings::draft2020_12().with(|s| s.inline_subschemas = true);
    settings.into_generator().into_root_schema_for::<ProfileTable>()
}

#[derive(JsonSchema)]
#[schemars(rename_all = "snake_case")]
pub(crate) enum AxisScope<T> {
    /// Everything but protected places; of sockets also without abstract ones.
    All,
    /// These and nothing else.
    #[schemars(untagged)]
    Only(Only<T>),
    /// What the profile that this one extends grants, and these.
    #[schemars(untagged)]
    Add(Add<T>),
}

#[derive(JsonSchema)]
#[schemars(rename_all = "snake_case")]
pub(crate) enum Generations {
    /// All of them.
    All,
    /// These and nothing else.
    #[schemars(untagged)]
    Only(Only<u64>),
}

#[derive(JsonSchema)]
#[schemars(deny_unknown_fields)]
pub(crate) struct Only<T> {
    /// The entries; an empty list gives nothing.
    only: Vec<T>,
}

#[derive(JsonSchema)]
#[schemars(deny_unknown_fields)]
pub(crate) struct Add<T> {
    /// The entries, beside those of the profile that this one extends.
    add: Vec<T>,
}

#[derive(JsonSchema)]
#[schemars(untagged)]
pub(crate) enum Denied<T> {
    /// The entries, in place of those of the profile that this one extends.
    Listed(Vec<T>),
    /// More of them.
    Added(Add<T>),
}

#[derive(JsonSchema)]
#[schemars(rename_all = "snake_case")]
pub(crate) enum Calls {
    /// Any number.
    Unlimited,
    /// At most so many.
    #[schemars(untagged)]
    AtMost(AtMost),
}

#[derive(JsonSchema)]
#[schemars(deny_unknown_fields)]
pub(crate) struct AtMost {
    /// How many.
    at_most: u64,
}

/// `/path` (a file, or a directory and all below it), `/dir/*` (its direct children), `/dir/**` (all below it),
/// `**/NAME` (that name at any depth, and all below it), `${WORKDIR}` at the beginning: the working directory;
/// `${HOME}`: the home of the user that the command runs as.
#[derive(JsonSchema)]
pub(crate) struct PathText(String);

/// As for paths, or a program's bare name.
#[derive(JsonSchema)]
pub(crate) struct ExecText(String);

/// As for granted paths, or a pattern: `**/NAME*` (every name that begins with NAME, at any depth, and all below it), `**/*NAME`
/// (every name that ends with it). NAME has 1 to 31 bytes. A pattern does not deny a name that the grant's same axis has in full
/// (`**/cacert.pem`).
#[derive(JsonSchema)]
pub(crate) struct DeniedPathText(String);

/// As for denied paths, or a program's bare name.
#[derive(JsonSchema)]
pub(crate) struct DeniedExecText(String);

/// `ip[:port]`, `cidr[:port]`, `[v6]:port`; `host[:port]`, `*.host[:port]` (every name below it), where TLS or HTTP has to name
/// the host; `tcp:host:port`, where nothing has to; `set:NAME` (the hosts of a set: `registries`, `git-hosts`); `unix:/path` (with
/// the globs of paths), `unix:@abstract`.
#[derive(JsonSchema)]
pub(crate) struct NetText(String);

#[derive(JsonSchema)]
#[schemars(untagged)]
pub(crate) enum SizeText {
    /// Bytes.
    Bytes(u64),
    /// A number and a unit: `B`, `kB`, `MB`, `GB`, `TB` (powers of 1000), `KiB`, `MiB`, `GiB`, `TiB` (powers of 1024).
    WithUnit(String),
}

#[derive(JsonSchema)]
#[schemars(untagged)]
pub(crate) enum CapabilityNames {
    /// One word.
    One(CapabilityText),
    /// Several.
    Several(Vec<CapabilityText>),
}

/// A capability's name, with or without `CAP_`, in any case; `default`; `all`.
#[derive(JsonSchema)]
pub(crate) struct CapabilityText(String);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{agents::config::ProviderKind, keys::parse, problem::Wrong};
    use std::path::Path;

    /// The keys that a table of a profile may have, sorted; `""` is the file itself, `llm.*` any section of `llm`.
    fn keys(table: &str) -> Vec<String> {
        let schema = schema();
        let mut at = schema.as_value();
        for name in table.split('.').filter(|name| !name.is_empty()) {
            at = if name == "*" { &at["additionalProperties"] } else { &at["properties"][name] };
            // An optional table is `anyOf` itself and null.
            if let Some(table) = at["anyOf"].get(0) {
                at = table;
            }
        }
        let mut keys: Vec<String> = at["properties"].as_object().unwrap().keys().cloned().collect();
        keys.sort();
        keys
    }

    /// The keys that the loader knows in a table.
    fn read(table: &str) -> Vec<String> {
        let title = table.replace('*', "name");
        let header = if title.is_empty() { title } else { format!("[{title}]\n") };
        let file = Path::new("p.toml");
        let parsed = parse(file, &format!("{header}not-a-key = 1\n"), |keys| {
            ProfileTable::read(keys, |_| ProfileTable::default())
        });
        let known = parsed.problems.into_iter().find_map(|problem| match problem.what {
            Wrong::UnknownKey { known, .. } => Some(known),
            _ => None,
        });
        known.unwrap()
    }

    #[test]
    fn the_loader_reads_the_keys_of_the_schema_and_each_has_its_text() {
        for table in [
            "",
            "match",
            "grant",
            "deny",
            "net",
            "net.credentials.*",
            "kernel",
            "limits",
            "llm.*",
            "llm.*.price",
            "mcp.*",
            "kit",
            "kit.tie",
        ] {
            assert_eq!(read(table), keys(table), "{table}");
        }
        assert_eq!(keys("deny"), ["exec", "fs_read", "fs_write", "net"]);
        assert!(keys("llm.*").contains(&"api_key_file".to_owned()), "{:?}", keys("llm.*"));
        let schema = schema();
        for (key, value) in schema.as_value()["properties"].as_object().unwrap() {
            assert!(value.get("description").is_some(), "{key} has no text");
        }
    }

    #[test]
    fn the_manual_has_every_key() {
        let manual = include_str!("../../../docs/profiles.md");
        for key in keys("") {
            assert!(manual.contains(&format!("`{key}")), "{key}");
        }
        for table in ["match", "grant", "deny", "net", "kernel", "limits", "kit", "kit.tie"] {
            for key in keys(table) {
                assert!(manual.contains(&format!("`{table}.{key}`")), "{table}.{key}");
            }
        }
        for key in keys("net.credentials.*") {
            assert!(manual.contains(&format!("`{key}`")), "{key}");
        }
        let manual = include_str!("../../../docs/llm.md");
        for key in keys("llm.*").iter().chain(&keys("mcp.*")) {
            // The manual describes a token's sources with those of a key.
            let described = key.replace("auth_token_", "api_key_");
            assert!(manual.contains(&format!("`{described}`")), "{key}");
        }
    }

    #[test]
    fn the_schema_and_the_manual_have_every_provider() {
        let schema = schemars::schema_for!(ProviderKind).as_value().to_string();
        let manual = include_str!("../../../docs/llm.md");
        for kind in ProviderKind::ALL {
            let name = format!("\"{}\"", kind.name());
            assert!(schema.contains(&name), "{schema} has no {name}, as files have it");
            assert!(manual.contains(&format!("`{name}`")), "docs/llm.md has no {name}");
        }
    }
}
