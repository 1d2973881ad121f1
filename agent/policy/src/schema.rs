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
    /// The agent's language model: exactly one section, named as in the registry, whose keys it overrides. See
    /// docs/llm.md.
    llm: Option<BTreeMap<String, LlmTable>>,
    /// The agent's MCP servers: sections named as in the registry, whose keys they override.
    mcp: Option<BTreeMap<String, McpTable>>,
    /// What the agent may use of its model.
    limits: Option<LimitsTable>,
    /// A user id that may read the agent's conversation log, beside its owner.
    log_reader: Option<u32>,
    /// The user id of the agent's runtime, where that is another than root's and the worker's: it may register. Under the
    /// system's daemon the socket is this user's, who may also send, but never from a container.
    socket_owner: Option<u32>,
    /// Whether the provider's own HTTP API is served to unmodified SDKs, on the socket `http.sock` beside the agent's. See
    /// docs/llm.md.
    http: Option<bool>,
    /// With `http = true`: also on this port of loopback, for whoever has the endpoint's token.
    http_port: Option<u16>,
}

#[derive(JsonSchema)]
#[schemars(deny_unknown_fields)]
struct LlmTable {
    /// Which protocol is spoken: `anthropic`, or `openai` for it and compatible servers.
    provider: Option<ProviderKey>,
    /// The provider's name of the model.
    model: Option<String>,
    /// The key itself. One source at most.
    api_key: Option<String>,
    /// A variable of the worker's environment that has the key.
    api_key_env: Option<String>,
    /// A file that has the key, closed to others than its owner.
    api_key_file: Option<String>,
    /// A systemd credential that has the key.
    api_key_credential: Option<String>,
    /// A command that prints the key: its words, or a line for the shell. Never run as root.
    api_key_command: Option<CommandText>,
    /// In place of the provider's address: for Anthropic what stands before `/v1/messages`, for OpenAI what ends in `/v1`.
    base_url: Option<String>,
    /// Most tokens of one answer. Default: 8192.
    max_tokens: Option<u32>,
    /// What a million tokens cost, for `limits.cost_per_day`.
    price: Option<PriceTable>,
    /// Further fields of each request to the provider: `temperature`, `thinking` and the like.
    options: Option<BTreeMap<String, serde_json::Value>>,
    /// Whether the provider is asked to cache the prompt, where it must be asked. Default: true.
    prompt_cache: Option<bool>,
    /// Turns that one message may take. Default: 200.
    max_rounds: Option<u32>,
    /// Calls of the model that one turn may take, MCP tools being run between them. Default: 50.
    max_mcp_rounds: Option<u32>,
    /// Seconds without a byte after which the provider is given up. Default: 600.
    timeout: Option<u32>,
    /// Seconds that the runtime may take for its tools before its message is given up. Default: 3600.
    runtime_timeout: Option<u32>,
}

#[derive(JsonSchema)]
#[schemars(deny_unknown_fields)]
struct PriceTable {
    /// Read.
    input: Option<f64>,
    /// Written by the model.
    output: Option<f64>,
    /// Read from the provider's cache.
    cache_read: Option<f64>,
    /// Written to the provider's cache.
    cache_write: Option<f64>,
}

#[derive(JsonSchema)]
#[schemars(deny_unknown_fields)]
struct LimitsTable {
    /// Turns in any sixty seconds.
    turns_per_minute: Option<u32>,
    /// Tokens of a day (UTC), read and written, cached ones included.
    tokens_per_day: Option<u32>,
    /// Cost of a day (UTC), in the currency of the section's `price`.
    cost_per_day: Option<f64>,
}

#[derive(JsonSchema)]
#[schemars(rename_all = "lowercase")]
enum ProviderKey {
    /// Anthropic's Messages.
    Anthropic,
    /// OpenAI's Chat Completions.
    OpenAi,
}

#[derive(JsonSchema)]
#[schemars(untagged)]
enum CommandText {
    /// For `/bin/sh -c`.
    Line(String),
    /// A program and its arguments.
    Words(Vec<String>),
}

#[derive(JsonSchema)]
#[schemars(deny_unknown_fields)]
struct McpTable {
    /// The server's address.
    url: Option<String>,
    /// The bearer token itself. One source at most.
    auth_token: Option<String>,
    /// A variable of the worker's environment that has the token.
    auth_token_env: Option<String>,
    /// A file that has the token, closed to others than its owner.
    auth_token_file: Option<String>,
    /// A systemd credential that has the token.
    auth_token_credential: Option<String>,
    /// A command that prints the token. Never run as root.
    auth_token_command: Option<CommandText>,
    /// The tools that may be called. Absent: all; empty: none.
    tools: Option<Vec<String>>,
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
    /// How many tool calls may be made. Held by the gate of `ringfence tools`, not by the kernel.
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
    /// What the profile that this one extends grants, and these.
    #[schemars(untagged)]
    Add(Add<PathText>),
}

#[derive(JsonSchema)]
#[schemars(rename_all = "snake_case")]
enum ExecScope {
    /// Everything.
    All,
    /// These and nothing else.
    #[schemars(untagged)]
    Only(Only<ExecText>),
    /// What the profile that this one extends grants, and these.
    #[schemars(untagged)]
    Add(Add<ExecText>),
}

#[derive(JsonSchema)]
#[schemars(rename_all = "snake_case")]
enum NetScope {
    /// Every address and every unix socket but those of protected places and abstract ones.
    All,
    /// These and nothing else.
    #[schemars(untagged)]
    Only(Only<NetText>),
    /// What the profile that this one extends grants, and these.
    #[schemars(untagged)]
    Add(Add<NetText>),
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
#[schemars(deny_unknown_fields)]
struct Add<T> {
    /// The entries, beside those of the profile that this one extends.
    add: Vec<T>,
}

#[derive(JsonSchema)]
#[schemars(untagged)]
enum Denied<T> {
    /// The entries, in place of those of the profile that this one extends.
    Listed(Vec<T>),
    /// More of them.
    Added(Add<T>),
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
/// `**/NAME` (that name at any depth, and all below it), `${WORKDIR}` at the beginning: the working directory;
/// `${HOME}`: the home of the user that the command runs as.
#[derive(JsonSchema)]
struct PathText(String);

/// As for paths, or a program's bare name.
#[derive(JsonSchema)]
struct ExecText(String);

/// As for granted paths, or a pattern: `**/NAME*` (whatever begins with NAME, at any depth, and all below it), `**/*NAME`
/// (whatever ends with it). NAME has 1 to 31 bytes. A name that the grant's same axis has whole (`**/cacert.pem`) is meant by
/// no pattern.
#[derive(JsonSchema)]
struct DeniedPathText(String);

/// As for denied paths, or a program's bare name.
#[derive(JsonSchema)]
struct DeniedExecText(String);

/// `ip[:port]`, `cidr[:port]`, `[v6]:port`, `unix:/path` (with the globs of paths), `unix:@abstract`.
#[derive(JsonSchema)]
struct NetText(String);

/// Lists of entries, one for each axis.
#[derive(JsonSchema)]
#[schemars(deny_unknown_fields)]
struct DenyTable {
    /// What is not read.
    fs_read: Option<Denied<DeniedPathText>>,
    /// What is not written or changed.
    fs_write: Option<Denied<DeniedPathText>>,
    /// What is neither executed nor mapped executable.
    exec: Option<Denied<DeniedExecText>>,
    /// What is neither connected or sent to, nor bound.
    net: Option<Denied<NetText>>,
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
    /// What may stay open on a host where no enforcer holds it: axes, in part or altogether; `unix`: every unix socket that
    /// file modes allow, where they cannot be told apart; `home`: the home, as a working directory that is it or holds it.
    accept_partial: Option<Vec<PartialKey>>,
    /// The capabilities that processes of the container may use: names, `default` (the set that container engines leave
    /// root, which also holds where nothing is named), `all`.
    capabilities: Option<CapabilityKey>,
    /// Whether files may be given setuid and setgid bits and file capabilities (default: no). Whoever executes such a
    /// file has its owner's rights, outside of the container, too; installing packages in an image build needs it.
    setuid_files: Option<bool>,
    /// Whether the container may make files in `/dev/shm` (POSIX shared memory and semaphores, which Python's multiprocessing
    /// and browsers use), and use those that it made itself, whatever the grant says (default: no). Others' stay closed.
    shared_memory: Option<bool>,
    /// Whether a process of one tool call may trace, read and signal those of another, as a debugger in a call of its own
    /// does (default: no). What the other call does from then on is attributed `ambiguous`.
    debug_between_calls: Option<bool>,
    /// ioctl commands that are allowed beside those that every container may use: the kernel's name of a command or its
    /// number, or a device below `/dev`, for every command to it.
    ioctl: Option<Vec<String>>,
    /// Socket options that setsockopt(2) is allowed beside those that every container may set: the kernel's name of an
    /// option, or its level and number (`1/36`).
    socket_options: Option<Vec<String>>,
}

#[derive(JsonSchema)]
#[schemars(untagged)]
enum CapabilityKey {
    /// One word.
    One(CapabilityText),
    /// Several.
    Several(Vec<CapabilityText>),
}

/// A capability's name, with or without `CAP_`, in any case; `default`; `all`.
#[derive(JsonSchema)]
struct CapabilityText(String);

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
enum PartialKey {
    FsRead,
    FsWrite,
    Exec,
    Net,
    Unix,
    Home,
}

/// The JSON Schema of a profile.
pub fn schema() -> Schema {
    let settings = SchemaSettings::draft2020_12().with(|s| s.inline_subschemas = true);
    settings.into_generator().into_root_schema_for::<ProfileFile>()
}

/// The keys that a table of a profile may have, sorted; `""` is the file itself, `llm.*` any section of `llm`.
pub(crate) fn known_keys(table: &str) -> Vec<String> {
    let schema = schema();
    let mut at = schema.as_value();
    for name in table.split('.').filter(|name| !name.is_empty()) {
        at = if name == "*" { &at["additionalProperties"] } else { &at["properties"][name] };
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
            [
                "deny",
                "description",
                "extends",
                "grant",
                "http",
                "http_port",
                "kernel",
                "limits",
                "llm",
                "log_reader",
                "match",
                "mcp",
                "mode",
                "socket_owner"
            ]
        );
        assert!(known_keys("llm.*").contains(&"api_key_file".to_owned()), "{:?}", known_keys("llm.*"));
        assert!(known_keys("mcp.*").contains(&"tools".to_owned()));
        assert_eq!(
            known_keys("grant"),
            ["exec", "fs_read", "fs_write", "max_calls", "net", "valid_for_generation"]
        );
        assert_eq!(known_keys("deny"), ["exec", "fs_read", "fs_write", "net"]);
        assert_eq!(
            known_keys("kernel"),
            [
                "accept_partial",
                "audit",
                "base",
                "capabilities",
                "debug_between_calls",
                "ioctl",
                "landlock",
                "seccomp",
                "setuid_files",
                "shared_memory",
                "socket_options"
            ]
        );
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
        let manual = include_str!("../../../docs/llm.md");
        for key in known_keys("llm.*").iter().chain(&known_keys("mcp.*")) {
            // What is said of a key's sources holds for a token's.
            let said = key.replace("auth_token_", "api_key_");
            assert!(manual.contains(&format!("`{said}`")), "{key}");
        }
    }
}
