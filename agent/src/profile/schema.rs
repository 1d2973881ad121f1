//! Every key of a profile, documented where it is defined; `ringfence profile schema` prints the JSON Schema of it.
//!
//! The loader (`parse`) reads the keys one by one, to find all mistakes at once; a test keeps the two together.
#![expect(dead_code, reason = "the types describe a file; only their schema is used")]

use schemars::{JsonSchema, Schema, generate::SchemaSettings};
use std::collections::BTreeMap;

/// A Ringfence profile: what one container may do. See docs/profiles.md.
#[derive(JsonSchema)]
#[schemars(deny_unknown_fields, title = "Ringfence profile")]
struct ProfileFile {
    /// Another profile, by name (looked up beside this file) or absolute path. Its keys hold where this file has
    /// none; a key that both have is this file's, whole: lists are not merged.
    extends: Option<String>,
    /// What the profile is for, in a sentence.
    description: Option<String>,
    /// Default: `enforce`.
    mode: Option<ModeKey>,
    /// Which containers the profile is meant for. Reserved for container runtimes: checked, not used by this version.
    r#match: Option<MatchTable>,
    /// What is granted. A file without it (and without one that it extends) grants nothing but the base.
    grant: Option<GrantTable>,
    /// What is denied, at any depth: a deny beats every allow. The paths need not exist.
    deny: Option<DenyTable>,
    /// How the kernel enforces it.
    kernel: Option<KernelTable>,
    /// The agent's language model. Of a later version: kept, not used by this one.
    llm: Option<BTreeMap<String, serde_json::Value>>,
    /// The agent's MCP servers. Of a later version: kept, not used by this one.
    mcp: Option<BTreeMap<String, serde_json::Value>>,
}

#[derive(JsonSchema)]
#[schemars(rename_all = "snake_case")]
enum ModeKey {
    /// What is not granted is denied.
    Enforce,
    /// What is not granted is recorded as `would_deny` and allowed.
    Audit,
}

#[derive(JsonSchema)]
#[schemars(deny_unknown_fields)]
struct MatchTable {
    /// Image names.
    image: Option<Vec<String>>,
    /// Labels, `key=value`.
    label: Option<Vec<String>>,
    /// Container names.
    name: Option<Vec<String>>,
}

/// The six axes, all of them required.
#[derive(JsonSchema)]
#[schemars(deny_unknown_fields)]
struct GrantTable {
    /// What may be opened for reading. `kernel.base` adds what any program needs.
    fs_read: PathScope,
    /// What may be written, created, removed, renamed, or have its attributes changed. Does not include reading.
    fs_write: PathScope,
    /// What may be executed, and mapped executable. A bare name is what PATH finds in the container's root.
    exec: ExecScope,
    /// What may be connected or sent to, and bound.
    net: NetScope,
    /// How many tool calls may be made. Not the kernel's: held by the gate of a later version.
    max_calls: Calls,
    /// The generations of a session that the grant holds for. Not the kernel's.
    valid_for_generation: Generations,
}

#[derive(JsonSchema)]
#[schemars(rename_all = "snake_case")]
enum PathScope {
    /// Everything but protected places.
    All,
    /// These and nothing else.
    #[schemars(untagged)]
    Only(Only<PathText>),
}

#[derive(JsonSchema)]
#[schemars(rename_all = "snake_case")]
enum ExecScope {
    /// Everything.
    All,
    /// These and nothing else.
    #[schemars(untagged)]
    Only(Only<ExecText>),
}

#[derive(JsonSchema)]
#[schemars(rename_all = "snake_case")]
enum NetScope {
    /// Every address and every unix socket but those of protected places and abstract ones.
    All,
    /// These and nothing else.
    #[schemars(untagged)]
    Only(Only<NetText>),
}

#[derive(JsonSchema)]
#[schemars(rename_all = "snake_case")]
enum Generations {
    /// All of them.
    All,
    /// These and nothing else.
    #[schemars(untagged)]
    Only(Only<u64>),
}

#[derive(JsonSchema)]
#[schemars(deny_unknown_fields)]
struct Only<T> {
    /// The entries; an empty list gives nothing.
    only: Vec<T>,
}

#[derive(JsonSchema)]
#[schemars(rename_all = "snake_case")]
enum Calls {
    /// As many as one likes.
    Unlimited,
    /// At most so many.
    #[schemars(untagged)]
    AtMost(AtMost),
}

#[derive(JsonSchema)]
#[schemars(deny_unknown_fields)]
struct AtMost {
    /// How many.
    at_most: u64,
}

/// `/path` (a file, or a directory and all below it), `/dir/*` (its direct children), `/dir/**` (all below it),
/// `**/NAME` (that name at any depth, and all below it), `${WORKDIR}` at the beginning: the working directory.
#[derive(JsonSchema)]
struct PathText(String);

/// As for paths, or a program's bare name.
#[derive(JsonSchema)]
struct ExecText(String);

/// `ip[:port]`, `cidr[:port]`, `[v6]:port`, `unix:/path` (with the globs of paths), `unix:@abstract`.
#[derive(JsonSchema)]
struct NetText(String);

/// Lists of entries, one for each axis.
#[derive(JsonSchema)]
#[schemars(deny_unknown_fields)]
struct DenyTable {
    /// What is not read.
    fs_read: Option<Vec<PathText>>,
    /// What is not written or changed.
    fs_write: Option<Vec<PathText>>,
    /// What is neither executed nor mapped executable.
    exec: Option<Vec<ExecText>>,
    /// What is neither connected or sent to, nor bound.
    net: Option<Vec<NetText>>,
}

#[derive(JsonSchema)]
#[schemars(deny_unknown_fields)]
struct KernelTable {
    /// Which system calls are refused: `default`, `strict`, `off`, or an OCI profile's absolute path.
    seccomp: Option<String>,
    /// When Landlock is set: `fallback` (where eBPF does not hold; the default), `always`, `off`.
    landlock: Option<LandlockKey>,
    /// What is recorded beside denials: nothing (`denied`, the default), executions, network too, everything.
    audit: Option<AuditKey>,
    /// `userland` (the default) adds what any Linux program needs: loader, libraries, `/dev/null` and the like.
    base: Option<BaseKey>,
    /// Axes that may go without an enforcer on a host that has none for them.
    accept_partial: Option<Vec<AxisKey>>,
}

#[derive(JsonSchema)]
#[schemars(rename_all = "snake_case")]
enum LandlockKey {
    Fallback,
    Always,
    Off,
}

#[derive(JsonSchema)]
#[schemars(rename_all = "snake_case")]
enum AuditKey {
    Denied,
    Exec,
    #[schemars(rename = "exec+net")]
    ExecNet,
    All,
}

#[derive(JsonSchema)]
#[schemars(rename_all = "snake_case")]
enum BaseKey {
    Userland,
    None,
}

#[derive(JsonSchema)]
#[schemars(rename_all = "snake_case")]
enum AxisKey {
    FsRead,
    FsWrite,
    Exec,
    Net,
}

/// The JSON Schema of a profile.
pub(crate) fn schema() -> Schema {
    let settings = SchemaSettings::draft2020_12().with(|s| s.inline_subschemas = true);
    settings.into_generator().into_root_schema_for::<ProfileFile>()
}

/// The keys that a table of a profile may have, sorted; `""` is the file itself.
pub(crate) fn known_keys(table: &str) -> Vec<String> {
    let schema = schema();
    let mut at = schema.as_value();
    if !table.is_empty() {
        at = &at["properties"][table];
        // An optional table is `anyOf` itself and null.
        if let Some(table) = at["anyOf"].get(0) {
            at = table;
        }
    }
    let mut keys: Vec<String> =
        at["properties"].as_object().map(|p| p.keys().cloned().collect()).unwrap_or_default();
    keys.sort();
    keys
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_have_their_keys_and_every_key_its_text() {
        assert_eq!(
            known_keys(""),
            ["deny", "description", "extends", "grant", "kernel", "llm", "match", "mcp", "mode"]
        );
        assert_eq!(
            known_keys("grant"),
            ["exec", "fs_read", "fs_write", "max_calls", "net", "valid_for_generation"]
        );
        assert_eq!(known_keys("deny"), ["exec", "fs_read", "fs_write", "net"]);
        assert_eq!(known_keys("kernel"), ["accept_partial", "audit", "base", "landlock", "seccomp"]);
        assert_eq!(known_keys("match"), ["image", "label", "name"]);
        let schema = schema();
        for (key, value) in schema.as_value()["properties"].as_object().unwrap() {
            assert!(value.get("description").is_some(), "{key} has no text");
        }
    }

    #[test]
    fn the_manual_has_every_key() {
        let manual = include_str!("../../../docs/profiles.md");
        for key in known_keys("") {
            assert!(manual.contains(&format!("`{key}")), "{key}");
            for inner in known_keys(&key) {
                assert!(manual.contains(&format!("`{key}.{inner}`")), "{key}.{inner}");
            }
        }
    }
}
