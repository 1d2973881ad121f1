//! The tables of a profile: one struct each, for its JSON Schema, for the keys that a file has, and for those that it inherits.
//!
//! To add a key, add its field here; the compiler names the other places. Every field is an `Option`: a missing key is inherited
//! from the file that `extends` names. `kernel` has `[kernel]`, `sections` has the tables of agents.

use super::{
    AxisRules, Mode, Rule,
    credentials::CredentialTable,
    kernel::KernelTable,
    keys::Keys,
    kit::KitTable,
    parse::Parser,
    problem::At,
    rule::{DENY_NET, Listed},
    schema::{
        AxisScope, Calls, Denied, DeniedExecText, DeniedPathText, ExecText, Generations, NetText, PathText,
        SizeText,
    },
    sections::{LimitsSection, LlmSection, Located, McpSection},
};
use ringfence_grant::{CountBound, Scope};
use ringfence_wire::egress::NameOptions;
use schemars::JsonSchema;
use std::collections::{BTreeMap, BTreeSet};

/// A Ringfence profile: what one container may do. See docs/profiles.md.
#[derive(Debug, Default, JsonSchema)]
#[schemars(deny_unknown_fields, title = "Ringfence profile")]
pub(crate) struct ProfileTable {
    /// Another profile, by name (an installed one, else one beside this file) or absolute path. Missing keys are inherited; a
    /// key of this file replaces the inherited one, unless it is a list that adds to it.
    #[schemars(with = "Option<String>")]
    #[expect(dead_code, reason = "it is followed while the file is read")]
    pub extends: Option<Located<String>>,
    /// What the profile is for, in a sentence.
    pub description: Option<String>,
    /// Default: `enforce`.
    pub mode: Option<Mode>,
    /// Which containers the profile is meant for. Reserved for container runtimes: checked, not used by this version.
    #[schemars(rename = "match", with = "Option<MatchTable>")]
    pub matches: MatchTable,
    /// What is granted. A profile that neither has nor inherits it grants nothing but the base.
    #[schemars(with = "Option<GrantTable>")]
    pub grant: GrantTable,
    /// What is denied, at any depth: a deny beats every allow. The paths need not exist.
    #[schemars(with = "Option<DenyTable>")]
    pub deny: DenyTable,
    /// How what `grant.net` has by name is reached.
    #[schemars(with = "Option<NetTable>")]
    pub net: NetTable,
    /// How the kernel enforces it.
    #[schemars(with = "Option<KernelTable>")]
    pub kernel: KernelTable,
    /// The agent's language model: exactly one section, named as in the registry, whose keys it overrides. See
    /// docs/llm.md.
    #[schemars(with = "Option<BTreeMap<String, LlmSection>>")]
    pub llm: Option<Vec<LlmSection>>,
    /// The agent's MCP servers: sections named as in the registry, whose keys they override.
    #[schemars(with = "Option<BTreeMap<String, McpSection>>")]
    pub mcp: Option<Vec<McpSection>>,
    /// What the agent may use of its model.
    pub limits: Option<LimitsSection>,
    /// A user id that may read the agent's conversation log, beside its owner.
    #[schemars(with = "Option<u32>")]
    pub log_reader: Option<Located<u64>>,
    /// The user id of the agent's runtime, if it is neither root's nor the worker's: this user may register. Under the system's
    /// daemon the socket belongs to this user, who may also send, but never from a container.
    #[schemars(with = "Option<u32>")]
    pub socket_owner: Option<Located<u64>>,
    /// Whether the provider's own HTTP API is served to unmodified SDKs, on the socket `http.sock` beside the agent's. See
    /// docs/llm.md.
    pub http: Option<bool>,
    /// With `http = true`: also on this port of loopback, for clients that have the endpoint's token.
    #[schemars(with = "Option<u16>")]
    pub http_port: Option<Located<u64>>,
    /// What `ringfence run` adds for an agent that is started under the profile. See docs/coding-agents.md.
    #[schemars(with = "Option<KitTable>")]
    pub kit: KitTable,
}

impl ProfileTable {
    /// A file's keys over those that it inherits; `inherited` reads the file that `extends` names.
    pub(crate) fn read(keys: &mut Keys<'_>, inherited: impl FnOnce(&Located<String>) -> Self) -> Self {
        let extends = keys.located("extends", Parser::text);
        let parent = extends.as_ref().map(inherited).unwrap_or_default();
        let (grant, kit) = (keys.place("grant"), keys.place("kit"));
        Self {
            extends,
            description: keys.get("description", Parser::text).or(parent.description),
            mode: keys.get("mode", Parser::choice).or(parent.mode),
            matches: keys.table("match", |keys| MatchTable::read(keys, parent.matches)),
            grant: keys.table("grant", |keys| GrantTable::read(keys, grant, parent.grant)),
            deny: keys.table("deny", |keys| DenyTable::read(keys, parent.deny)),
            net: keys.table("net", |keys| NetTable::read(keys, parent.net)),
            kernel: keys.table("kernel", |keys| KernelTable::read(keys, parent.kernel)),
            llm: keys.sections("llm", LlmSection::read).or(parent.llm),
            mcp: keys.sections("mcp", McpSection::read).or(parent.mcp),
            limits: keys.get("limits", |p, key, v| p.keys(key, v, LimitsSection::read)).or(parent.limits),
            log_reader: keys.located("log_reader", Parser::count).or(parent.log_reader),
            socket_owner: keys.located("socket_owner", Parser::count).or(parent.socket_owner),
            http: keys.get("http", Parser::flag).or(parent.http),
            http_port: keys.located("http_port", Parser::port).or(parent.http_port),
            kit: keys.table("kit", |keys| KitTable::read(keys, kit, parent.kit)),
        }
    }
}

#[derive(Debug, Default, JsonSchema)]
#[schemars(deny_unknown_fields)]
pub(crate) struct MatchTable {
    /// Image names.
    pub image: Option<Vec<String>>,
    /// Labels, `key=value`.
    pub label: Option<Vec<String>>,
    /// Container names.
    pub name: Option<Vec<String>>,
}

impl MatchTable {
    fn read(keys: &mut Keys<'_>, parent: Self) -> Self {
        Self {
            image: keys.get("image", Parser::texts).or(parent.image),
            label: keys.get("label", Parser::texts).or(parent.label),
            name: keys.get("name", Parser::texts).or(parent.name),
        }
    }
}

/// The six axes, all of them required.
#[derive(Debug, Default, JsonSchema)]
#[schemars(deny_unknown_fields)]
pub(crate) struct GrantTable {
    /// Where it is, if there is one.
    #[schemars(skip)]
    pub at: Option<At>,
    /// The axes that it names, rightly or not.
    #[schemars(skip)]
    pub named: BTreeSet<String>,
    /// What may be opened for reading. `kernel.base` adds what any program needs.
    #[schemars(with = "AxisScope<PathText>")]
    pub fs_read: Option<Listed<AxisRules>>,
    /// What may be written, created, removed, renamed, or have its attributes changed. Does not include reading.
    #[schemars(with = "AxisScope<PathText>")]
    pub fs_write: Option<Listed<AxisRules>>,
    /// What may be executed, and mapped executable. A bare name is what PATH finds in the container's root.
    #[schemars(with = "AxisScope<ExecText>")]
    pub exec: Option<Listed<AxisRules>>,
    /// What may be connected or sent to, and bound.
    #[schemars(with = "AxisScope<NetText>")]
    pub net: Option<Listed<AxisRules>>,
    /// How many tool calls may be made. The gate of `ringfence tools` enforces it, not the kernel.
    #[schemars(with = "Calls")]
    pub max_calls: Option<CountBound>,
    /// The generations of a session in which the grant is valid. The kernel does not enforce it.
    #[schemars(with = "Generations")]
    pub valid_for_generation: Option<Scope<u64>>,
}

impl GrantTable {
    fn read(keys: &mut Keys<'_>, at: Option<At>, parent: Self) -> Self {
        let fs_read = keys.get("fs_read", |p, _, v| p.axis("grant.fs_read", v, Parser::check_path));
        let fs_write = keys.get("fs_write", |p, _, v| p.axis("grant.fs_write", v, Parser::check_path));
        let exec = keys.get("exec", |p, _, v| p.axis("grant.exec", v, Parser::check_exec));
        let net = keys.get("net", |p, _, v| p.axis("grant.net", v, Parser::check_net_item));
        Self {
            at: at.or(parent.at),
            named: &keys.names() | &parent.named,
            fs_read: Listed::over(fs_read, parent.fs_read),
            fs_write: Listed::over(fs_write, parent.fs_write),
            exec: Listed::over(exec, parent.exec),
            net: Listed::over(net, parent.net),
            max_calls: keys.get("max_calls", Parser::calls).or(parent.max_calls),
            valid_for_generation: keys
                .get("valid_for_generation", Parser::generations)
                .or(parent.valid_for_generation),
        }
    }
}

/// How hosts are reached that are granted by name.
#[derive(Debug, Default, JsonSchema)]
#[schemars(deny_unknown_fields)]
pub(crate) struct NetTable {
    /// Whether a TLS client may encrypt the name that it asks for (Encrypted Client Hello), default: no. Then the name that is
    /// left in the open has to be granted, and what is behind it is not known.
    pub ech: Option<bool>,
    /// Most bytes that the container may send to one name, over all connections: what goes beyond that is ended. A number, or
    /// `"1MB"`. Default: no limit.
    #[schemars(with = "Option<SizeText>")]
    pub max_upload: Option<u64>,
    /// Whether a connection to a host that is neither granted nor denied by name waits for a person, who is asked as for a
    /// tool call (`ringfence approvals`), default: no. It has to be TLS or HTTP/1.1 for that host, and lead to a public address.
    pub ask: Option<bool>,
    /// How long it waits, in seconds, 5 to 600, before it is refused. Default: 60.
    #[schemars(with = "Option<u16>")]
    pub ask_timeout: Option<u16>,
    /// Credentials that are put into requests to these hosts, on the host, so that they never enter the container: tables that are
    /// named `HOST` or `HOST:PORT` (without a port: 443).
    #[schemars(with = "Option<BTreeMap<String, CredentialTable>>")]
    pub credentials: Option<Vec<CredentialTable>>,
}

/// How long a connection waits for a person where the profile does not say, seconds.
const ASK_TIMEOUT: u16 = 60;

impl NetTable {
    fn read(keys: &mut Keys<'_>, parent: Self) -> Self {
        Self {
            ech: keys.get("ech", Parser::flag).or(parent.ech),
            max_upload: keys.get("max_upload", Parser::size).or(parent.max_upload),
            ask: keys.get("ask", Parser::flag).or(parent.ask),
            ask_timeout: keys.get("ask_timeout", Parser::patience).or(parent.ask_timeout),
            credentials: keys.sections("credentials", CredentialTable::read).or(parent.credentials),
        }
    }

    /// What the keys come to.
    pub(crate) fn finish(self) -> (NameOptions, Vec<CredentialTable>) {
        let Self { ech, max_upload, ask, ask_timeout, credentials } = self;
        let ask = ask.unwrap_or_default().then(|| ask_timeout.unwrap_or(ASK_TIMEOUT));
        let options = NameOptions { ech: ech.unwrap_or_default(), max_upload, ask };
        (options, credentials.unwrap_or_default())
    }
}

/// Lists of entries, one for each axis.
#[derive(Debug, Default, JsonSchema)]
#[schemars(deny_unknown_fields)]
pub(crate) struct DenyTable {
    /// What is not read.
    #[schemars(with = "Option<Denied<DeniedPathText>>")]
    pub fs_read: Option<Listed<Vec<Rule>>>,
    /// What is not written or changed.
    #[schemars(with = "Option<Denied<DeniedPathText>>")]
    pub fs_write: Option<Listed<Vec<Rule>>>,
    /// What is neither executed nor mapped executable.
    #[schemars(with = "Option<Denied<DeniedExecText>>")]
    pub exec: Option<Listed<Vec<Rule>>>,
    /// What is neither connected or sent to, nor bound.
    #[schemars(with = "Option<Denied<NetText>>")]
    pub net: Option<Listed<Vec<Rule>>>,
}

impl DenyTable {
    fn read(keys: &mut Keys<'_>, parent: Self) -> Self {
        let fs_read = keys.get("fs_read", |p, _, v| p.denied("deny.fs_read", v, Parser::check_denied_path));
        let fs_write =
            keys.get("fs_write", |p, _, v| p.denied("deny.fs_write", v, Parser::check_denied_path));
        let exec = keys.get("exec", |p, _, v| p.denied("deny.exec", v, Parser::check_denied_exec));
        let net = keys.get("net", |p, _, v| p.denied(DENY_NET, v, Parser::check_net_item));
        Self {
            fs_read: Listed::over(fs_read, parent.fs_read),
            fs_write: Listed::over(fs_write, parent.fs_write),
            exec: Listed::over(exec, parent.exec),
            net: Listed::over(net, parent.net),
        }
    }
}
