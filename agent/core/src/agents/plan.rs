//! Root's profiles to what is to run: each agent's configuration, and whom its socket belongs to.

use ringfence_base::paths::Paths;
use ringfence_credentials::Source;
use ringfence_policy::{
    self as profile, Dirs, Profile,
    agents::registry::{self, AgentConfig, Registry},
};
use ringfence_wire::agent::CredentialOwner;
use std::{collections::BTreeMap, os::unix::fs::MetadataExt, path::Path};

/// One agent to run.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Plan {
    /// Everything about it. Its credentials are sources: nothing was read yet.
    pub config: AgentConfig,
    /// The files that they are in, as they are now: another key in the same place is another plan.
    keys: Vec<Option<KeyFile>>,
}

/// What tells one file of a credential from another, without reading it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct KeyFile {
    inode: u64,
    size: u64,
    changed: (i64, i64),
}

impl KeyFile {
    /// None where the credential is in no file, or the file not there.
    fn of(source: &Source) -> Option<Self> {
        let meta = std::fs::metadata(source.file()?).ok()?;
        Some(Self { inode: meta.ino(), size: meta.len(), changed: (meta.ctime(), meta.ctime_nsec()) })
    }
}

impl Plan {
    /// To run what a configuration says.
    pub(super) fn new(config: AgentConfig) -> Self {
        let mut plan = Self { config, keys: Vec::new() };
        plan.keys = plan.credentials().into_iter().map(|(_, source)| KeyFile::of(source)).collect();
        plan
    }

    /// Whom the socket belongs to: who may send, beside root.
    pub(super) fn owner(&self) -> u32 {
        self.config.socket_owner.unwrap_or(0)
    }

    /// The port of loopback on which its API is served. Of an agent that has a container it is that container's alone,
    /// and who made a TCP connection the kernel keeps nowhere.
    pub(super) fn loopback(&self) -> Option<u16> {
        loopback(&self.config)
    }

    /// Its credentials, in the order in which a worker is handed them.
    pub(super) fn credentials(&self) -> Vec<(CredentialOwner, &Source)> {
        self.config.credentials()
    }

    /// Whether a container's profile is this agent's own.
    pub(super) fn is_of(&self, name: &str, file: &Path) -> bool {
        self.config.governed && self.config.name == name && self.config.file == file
    }
}

/// See [`Plan::loopback`].
pub fn loopback(config: &AgentConfig) -> Option<u16> {
    config.http?.port.filter(|_| !config.governed)
}

/// What of a configuration the daemon leaves out, and why.
pub fn left_out(config: &AgentConfig) -> Option<String> {
    let port = config.http?.port.filter(|_| config.governed)?;
    Some(format!(
        "http_port = {port} is left out: with a [grant] the API is for the agent's own container, and who makes a TCP connection the kernel does not keep; `ringfence-runtime bridge` serves http.sock on the container's own loopback"
    ))
}

/// What is wrong with a profile.
#[derive(Debug)]
pub(super) struct Broken {
    /// In words.
    pub text: String,
    /// It is an agent's for sure; a profile that cannot be read may be a container's only.
    pub is_agent: bool,
}

/// Every agent among the profiles, or what is wrong with it.
///
/// # Errors
/// What is wrong with the registry, which all of them need.
pub(super) fn read(paths: &Paths, dirs: &Dirs) -> Result<BTreeMap<String, Result<Plan, Broken>>, String> {
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
    if let Some(why) = left_out(&config) {
        tracing::warn!("agent {}: {why}", config.name);
    }
    for notice in &config.notices {
        tracing::warn!("agent {}: {notice}", config.name);
    }
    Ok(Plan::new(config))
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use serde_json::json;

    /// The configuration of an agent without a key.
    pub(crate) fn config() -> AgentConfig {
        serde_json::from_value(json!({
            "name": "a", "file": "a.toml", "log_reader": null, "socket_owner": null, "http": null, "governed": false,
            "notices": [], "mcp": [],
            "limits": { "turns_per_minute": null, "tokens_per_day": null, "cost_per_day": null },
            "llm": {
                "name": "m", "provider": "OpenAi", "model": "m", "base_url": null, "max_tokens": 1, "options": {},
                "price": { "input": 0.0, "output": 0.0, "cache_read": 0.0, "cache_write": 0.0 },
                "models": [], "auth": null, "provider_tools": [], "prompt_cache": true, "max_mcp_rounds": 1, "max_rounds": 1,
                "timeout": { "secs": 1, "nanos": 0 }, "runtime_timeout": { "secs": 1, "nanos": 0 },
            },
        }))
        .unwrap()
    }

    #[test]
    fn another_key_in_the_same_file_is_another_plan() {
        let dir = tempfile::tempdir().unwrap();
        let key = dir.path().join("key");
        std::fs::write(&key, "sk-first").unwrap();
        let config = config();
        let plan = |source| {
            let mut config = config.clone();
            config.llm.api_key = Some(source);
            Plan::new(config)
        };
        let by_file = || plan(Source::File(key.clone()));
        let first = by_file();
        assert_eq!(first, by_file(), "nothing changed");
        // As an editor writes it, and as `echo >` does.
        std::fs::write(dir.path().join("new"), "sk-other").unwrap();
        std::fs::rename(dir.path().join("new"), &key).unwrap();
        let second = by_file();
        assert_ne!(first, second);
        std::fs::write(&key, "sk-third-and-longer").unwrap();
        assert_ne!(second, by_file());
        std::fs::remove_file(&key).unwrap();
        assert_ne!(second, by_file(), "it is gone");
        let value = || plan(Source::Value("sk-in-the-profile".to_owned().into()));
        assert_eq!(value(), value());
    }
}
