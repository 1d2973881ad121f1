//! Where profiles are looked for by name.

use super::built_in;
use super::problem::{At, LoadErrors, Problem, Wrong};
use nix::unistd::geteuid;
use ringfence_files::Others;
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

fn real(path: &Path) -> PathBuf {
    path.canonicalize().unwrap_or_else(|_| path.to_owned())
}

/// Whether a path is where an agent works, by its name or by what that leads to.
pub fn is_in_reach(path: &Path, workdir: &Path) -> bool {
    let whole = |path: &Path| std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    real(path).starts_with(real(workdir)) || whole(path).starts_with(whole(workdir))
}

/// Whether a profile's file is in one of these directories, which may have a link to it, and not where an agent works. For root,
/// nobody else can change it.
pub fn is_own(file: &Path, dirs: impl IntoIterator<Item = Option<PathBuf>>, workdir: &Path) -> bool {
    let Some(parent) = file.parent() else { return false };
    let is_known = |dir: &PathBuf| file.starts_with(dir) && real(parent).starts_with(real(dir));
    let is_roots =
        || !geteuid().is_root() || ringfence_files::is_roots(file, Others::AddNames).unwrap_or(false);
    let is_reached = is_in_reach(file, workdir) || is_in_reach(parent, workdir);
    !is_reached && dirs.into_iter().flatten().any(|dir| is_known(&dir)) && is_roots()
}

/// Whether a text may be a profile's name.
pub fn is_name(text: &str) -> bool {
    let known = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.');
    (1..=64).contains(&text.len()) && text.bytes().all(known) && !text.starts_with('.')
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{fs, os::unix::fs::symlink};

    #[test]
    fn a_profile_is_the_user_s_own_unless_the_agent_works_where_it_is() {
        let root = tempfile::tempdir().unwrap();
        let path = |name: &str| root.path().join(name);
        for dir in ["home/agents", "home/src", "dotfiles"] {
            fs::create_dir_all(path(dir)).unwrap();
        }
        for file in ["home/agents/a.toml", "home/src/a.toml", "dotfiles/b.toml"] {
            fs::write(path(file), "").unwrap();
        }
        symlink(path("dotfiles/b.toml"), path("home/agents/b.toml")).unwrap();
        symlink(path("home/agents"), path("home/src/agents")).unwrap();
        let is_own = |file: &str, workdir: &str| {
            is_own(&path(file), [Some(path("nowhere")), Some(path("home/agents"))], &path(workdir))
        };
        assert!(is_own("home/agents/a.toml", "home/src") && is_own("home/agents/b.toml", "home/src"));
        // Not in those directories.
        assert!(!is_own("home/src/a.toml", "home/agents") && !is_own("dotfiles/b.toml", "home/src"));
        assert!(!is_own("home/agents/../src/a.toml", "nowhere"));
        // In the working directory, or below it.
        assert!(!is_own("home/agents/a.toml", "home") && !is_own("home/agents/a.toml", "home/agents"));
        assert!(!is_own("home/agents/b.toml", "dotfiles"));
        // Who works there can lead that name elsewhere.
        assert!(!is_own("home/src/agents/a.toml", "home/src"));
    }
}
