//! Root's profiles to what is to run: each agent's configuration, and whom its socket belongs to.

use crate::{
    core::paths::Paths,
    llm::{
        registry::{self, AgentConfig, Registry},
        secret::Source,
    },
    profile::{self, Dirs, Profile},
};
use ringfence_wire::agent::For;
use std::{collections::BTreeMap, path::Path};

/// One agent to run.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Plan {
    /// Everything about it. Its credentials are sources: nothing was read yet.
    pub(crate) config: AgentConfig,
}

impl Plan {
    /// Whom the socket belongs to: who may send, beside root.
    pub(crate) fn owner(&self) -> u32 {
        self.config.socket_owner.unwrap_or(0)
    }

    /// Its credentials, in the order in which a worker is handed them.
    pub(crate) fn credentials(&self) -> Vec<(For, &Source)> {
        let llm = self.config.llm.api_key.iter().map(|source| (For::Llm, source));
        let mcp = self
            .config
            .mcp
            .iter()
            .filter_map(|mcp| mcp.auth_token.as_ref().map(|source| (For::Mcp(mcp.name.clone()), source)));
        llm.chain(mcp).collect()
    }

    /// Whether a container's profile is this agent's own.
    pub(crate) fn is_of(&self, name: &str, file: &Path) -> bool {
        self.config.governed && self.config.name == name && self.config.file == file
    }
}

/// What is wrong with a profile.
#[derive(Debug)]
pub(crate) struct Broken {
    /// In words.
    pub(crate) text: String,
    /// It is an agent's for sure; a profile that cannot be read may be a container's only.
    pub(crate) is_agent: bool,
}

/// Every agent among the profiles, or what is wrong with it.
///
/// # Errors
/// What is wrong with the registry, which all of them need.
pub(crate) fn read(paths: &Paths, dirs: &Dirs) -> Result<BTreeMap<String, Result<Plan, Broken>>, String> {
    let dirs = Dirs { system: dirs.system.clone(), user: None };
    let registry = Registry::load(&paths.registry()).map_err(|errors| errors.to_string())?;
    let mut plans = BTreeMap::new();
    for name in dirs.names() {
        match profile::load(&name, &dirs) {
            Ok(profile) if profile.llm.is_empty() && profile.mcp.is_empty() => {}
            Ok(profile) => {
                let plan = one(&profile, &registry).map_err(|text| Broken { text, is_agent: true });
                plans.insert(name, plan);
            }
            Err(errors) => {
                plans.insert(name, Err(Broken { text: errors.to_string(), is_agent: false }));
            }
        }
    }
    Ok(plans)
}

fn one(profile: &Profile, registry: &Registry) -> Result<Plan, String> {
    if let Some(open) = profile.sources.iter().find(|source| !source.root_only) {
        return Err(format!(
            "{} can be changed by others than root, who could send its credentials elsewhere; chown root and chmod go-w the file and its directory",
            open.file.display()
        ));
    }
    let config = registry::agent(profile, registry).map_err(|errors| errors.to_string())?;
    if config.http.is_some_and(|http| http.port.is_some()) {
        tracing::warn!(
            "agent {}: `http_port` is for `ringfence start`: the daemon serves the API on the unix socket, where the kernel says who calls",
            config.name
        );
    }
    for notice in &config.notices {
        tracing::warn!("agent {}: {notice}", config.name);
    }
    Ok(Plan { config })
}
