//! Profiles that are in the binary: of known agents, and the one that they extend. A file of the same name in a profiles'
//! directory wins.

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

fn path(name: &str) -> PathBuf {
    Path::new(DIR).join(format!("{name}.toml"))
}

/// Whether a profile's file is in the binary.
pub fn has(file: &Path) -> bool {
    text(file).is_some()
}

/// The text behind what stands for a file.
pub(crate) fn text(file: &Path) -> Option<&'static str> {
    let name = file.strip_prefix(DIR).ok()?.to_str()?.strip_suffix(".toml")?;
    AGENTS.iter().chain([&BASE]).find(|(known, _)| *known == name).map(|(_, text)| *text)
}
