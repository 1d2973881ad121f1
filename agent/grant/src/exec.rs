//! Exec entries: path entries, and bare names that PATH finds where the rule is used.

use crate::{
    path::{PathEntry, PathError, Reach, escape, unescape},
    scope::{Entry, written_as_atoms},
};
use std::{collections::BTreeSet, str::FromStr};

/// Why a text is not an exec entry.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ExecError {
    /// Neither an absolute path nor one bare name.
    #[error("it is neither an absolute path nor a bare program name")]
    Relative,
    /// A path, but not one that an entry may be.
    #[error(transparent)]
    Path(PathError),
}

/// Files that may be executed: those of a path entry that are also what PATH finds for each of some bare names.
///
/// What a bare name finds is not known here, so `git` and `/usr/bin/git` have in common whatever is both.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct ExecEntry {
    paths: PathEntry,
    programs: BTreeSet<String>,
}

impl ExecEntry {
    /// The paths.
    pub fn paths(&self) -> &PathEntry {
        &self.paths
    }

    /// The same names with other paths.
    #[must_use]
    pub fn with_paths(&self, paths: PathEntry) -> Self {
        Self { paths, programs: self.programs.clone() }
    }

    /// The bare names; none for an entry that is a path.
    pub fn programs(&self) -> impl ExactSizeIterator<Item = &str> {
        self.programs.iter().map(String::as_str)
    }

    /// The texts that together describe this entry.
    pub fn atoms(&self) -> Vec<String> {
        let everywhere = self.paths.reach() == Reach::Below && self.paths.anchor() == "/";
        let mut atoms = if everywhere && self.paths.names().len() == 0 && !self.programs.is_empty() {
            vec![]
        } else {
            self.paths.atoms()
        };
        atoms.extend(self.programs.iter().map(|p| escape(p)));
        atoms
    }
}

impl From<PathEntry> for ExecEntry {
    fn from(paths: PathEntry) -> Self {
        Self { paths, programs: BTreeSet::new() }
    }
}

impl FromStr for ExecEntry {
    type Err = ExecError;

    fn from_str(text: &str) -> Result<Self, ExecError> {
        if text.contains('/') || text.is_empty() {
            return match text.parse::<PathEntry>() {
                Ok(paths) => Ok(paths.into()),
                Err(PathError::Relative) => Err(ExecError::Relative),
                Err(error) => Err(ExecError::Path(error)),
            };
        }
        // A bare name is what a path's last component may be: let the path's rules judge it.
        let name = unescape(text).map_err(ExecError::Path)?;
        PathEntry::tree(&format!("/{name}")).map_err(ExecError::Path)?;
        if name == "~" {
            return Err(ExecError::Relative);
        }
        let paths = "/**".parse::<PathEntry>().map_err(ExecError::Path)?;
        Ok(Self { paths, programs: BTreeSet::from([name]) })
    }
}

impl Entry for ExecEntry {
    type Key = String;

    fn meet(&self, other: &Self) -> Option<Self> {
        let mut paths = self.paths.meet(&other.paths)?;
        let programs: BTreeSet<String> = self.programs.union(&other.programs).cloned().collect();
        // A program is never `/` itself.
        if !programs.is_empty() && paths.anchor() == "/" && paths.reach() == Reach::Tree {
            paths = "/**".parse().ok()?;
        }
        Some(Self { paths, programs })
    }

    fn key(&self) -> String {
        self.paths.key()
    }

    fn covering(&self) -> Vec<String> {
        self.paths.covering()
    }
}

written_as_atoms!(ExecEntry);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bare_names_and_paths() {
        let git: ExecEntry = "git".parse().unwrap();
        assert_eq!(git.programs().collect::<Vec<_>>(), ["git"]);
        assert_eq!(git.to_string(), "git");
        let both = git.meet(&"/usr/bin".parse().unwrap()).unwrap();
        assert_eq!(both.to_string(), "/usr/bin and git");
        assert!(both.leq(&git));
        assert_eq!(git.meet(&"/".parse().unwrap()), Some(git.clone()));
        assert_eq!("g++".parse::<ExecEntry>().unwrap().to_string(), "g++");
    }

    #[test]
    fn refuses_with_the_reason() {
        assert_eq!("bin/git".parse::<ExecEntry>(), Err(ExecError::Relative));
        assert_eq!("".parse::<ExecEntry>(), Err(ExecError::Path(PathError::Empty)));
        assert_eq!("..".parse::<ExecEntry>(), Err(ExecError::Path(PathError::Dots)));
        assert_eq!("py*".parse::<ExecEntry>(), Err(ExecError::Path(PathError::Glob)));
    }
}
