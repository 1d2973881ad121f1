//! Where profiles are looked for by name.

use super::built_in;
use super::problem::{At, LoadErrors, Problem, Wrong};
use std::{
    collections::BTreeSet,
    env,
    path::{Path, PathBuf},
};

/// The directories in which a name is looked up.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Dirs {
    /// The host's: `/etc/ringfence/profiles`. Wins, so that a user's file never stands for one of root's.
    pub system: PathBuf,
    /// The user's: `~/.config/ringfence/agents`.
    pub user: Option<PathBuf>,
}

impl Dirs {
    /// From `RINGFENCE_CONFIG_DIR` (in place of `/etc/ringfence`), `XDG_CONFIG_HOME` and `HOME`.
    pub fn from_env() -> Self {
        let dir = |variable: &str| env::var_os(variable).map(PathBuf::from).filter(|p| p.is_absolute());
        let user = dir("XDG_CONFIG_HOME").or_else(|| dir("HOME").map(|home| home.join(".config")));
        Self { user: user.map(|config| config.join("ringfence/agents")), ..Self::system() }
    }

    /// The host's directory alone: what the core looks in.
    pub fn system() -> Self {
        let config = env::var_os("RINGFENCE_CONFIG_DIR").filter(|v| !v.is_empty());
        let config = config.map_or_else(|| PathBuf::from("/etc/ringfence"), PathBuf::from);
        Self { system: config.join("profiles"), user: None }
    }

    /// The file of a name, or the path itself (a text with a slash, or one that ends in `.toml`). A name that no directory has
    /// may be that of a profile in the binary.
    ///
    /// # Errors
    /// The name is not valid, or no directory has such a profile.
    pub fn find(&self, name_or_path: &str) -> Result<PathBuf, LoadErrors> {
        if name_or_path.contains('/') || name_or_path.ends_with(".toml") {
            let path = PathBuf::from(name_or_path);
            return Ok(std::path::absolute(&path).unwrap_or(path));
        }
        if !is_name(name_or_path) {
            return Err(Problem::new(At::default(), Wrong::Name(name_or_path.to_owned())).into());
        }
        let dirs: Vec<PathBuf> = self.each().map(Path::to_owned).collect();
        let found = dirs
            .iter()
            .map(|dir| dir.join(format!("{name_or_path}.toml")))
            .find(|f| f.symlink_metadata().is_ok());
        found.or_else(|| built_in::file(name_or_path)).ok_or_else(|| {
            let wrong = Wrong::NotFound { name: name_or_path.to_owned(), dirs, known: self.names() };
            Problem::new(At::default(), wrong).into()
        })
    }

    /// The names that there are, sorted.
    pub fn names(&self) -> Vec<String> {
        self.stems().into_iter().filter(|stem| is_name(stem)).collect()
    }

    /// The stems of files that are no profile for their name alone, sorted; hidden files are nobody's mistake.
    pub fn misnamed(&self) -> Vec<String> {
        self.stems().into_iter().filter(|stem| !is_name(stem) && !stem.starts_with('.')).collect()
    }

    fn stems(&self) -> BTreeSet<String> {
        let entries = self.each().filter_map(|dir| dir.read_dir().ok()).flatten().flatten();
        entries.filter_map(|e| Some(e.file_name().to_str()?.strip_suffix(".toml")?.to_owned())).collect()
    }

    fn each(&self) -> impl Iterator<Item = &Path> {
        [Some(self.system.as_path()), self.user.as_deref()].into_iter().flatten()
    }
}

/// Whether a text may be a profile's name.
pub fn is_name(text: &str) -> bool {
    let known = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.');
    (1..=64).contains(&text.len()) && text.bytes().all(known) && !text.starts_with('.')
}
