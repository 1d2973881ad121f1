//! What is in the binary: the profiles of known agents, the one that they extend, and sets of hosts. A file of the same name in
//! a profiles' directory wins; one beside the profile that names it does not.

use super::sets;
use std::path::{Path, PathBuf};

/// The directory that such a profile's file is shown in. There is none: nobody can write what is in it.
const DIR: &str = "(built-in)";

/// Profiles of agents: names and texts.
const AGENTS: &[(&str, &str)] = &[
    ("agent", include_str!("../../../profiles/agents/agent.toml")),
    ("claude", include_str!("../../../profiles/agents/claude.toml")),
    ("codex", include_str!("../../../profiles/agents/codex.toml")),
    ("gemini", include_str!("../../../profiles/agents/gemini.toml")),
    ("opencode", include_str!("../../../profiles/agents/opencode.toml")),
];

/// What they extend, where it is not installed.
const BASE: (&str, &str) = ("coder", include_str!("../../../profiles/coder.toml"));

/// Sets of hosts, by name.
const SETS: &[(&str, &str)] = &[
    ("git-hosts", include_str!("../../../profiles/sets/git-hosts.toml")),
    ("registries", include_str!("../../../profiles/sets/registries.toml")),
];

/// The profiles of agents, by name.
pub fn names() -> impl Iterator<Item = &'static str> {
    AGENTS.iter().map(|(name, _)| *name)
}

/// What stands for the file of an agent's profile.
pub fn file(name: &str) -> Option<PathBuf> {
    names().find(|known| *known == name).map(path)
}

/// The same for one that another extends.
pub(crate) fn base(name: &str) -> Option<PathBuf> {
    file(name).or_else(|| (name == BASE.0).then(|| path(name)))
}

/// The sets that there are here, by name.
pub(crate) fn sets() -> impl Iterator<Item = &'static str> {
    SETS.iter().map(|(name, _)| *name)
}

/// What stands for the file of a set.
pub(crate) fn set(name: &str) -> Option<PathBuf> {
    sets()
        .find(|known| *known == name)
        .map(|name| Path::new(DIR).join(sets::DIR).join(format!("{name}.toml")))
}

fn path(name: &str) -> PathBuf {
    Path::new(DIR).join(format!("{name}.toml"))
}

/// Whether a profile's or a set's file is in the binary.
pub fn has(file: &Path) -> bool {
    text(file).is_some()
}

/// The text behind what stands for a file.
pub(crate) fn text(file: &Path) -> Option<&'static str> {
    let name = file.strip_prefix(DIR).ok()?.to_str()?.strip_suffix(".toml")?;
    let of = |name: &str, all: &[(&str, &'static str)]| {
        all.iter().find(|(known, _)| *known == name).map(|(_, text)| *text)
    };
    match name.strip_prefix("sets/") {
        Some(set) => of(set, SETS),
        None => of(name, AGENTS).or_else(|| of(name, &[BASE])),
    }
}
