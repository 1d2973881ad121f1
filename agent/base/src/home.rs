//! The user's home directory, and paths that begin with it.

use std::{env, path::PathBuf};

/// The home directory, where it is known and absolute.
pub fn home() -> Option<PathBuf> {
    env::home_dir().filter(|home| home.is_absolute())
}

/// A path as a configuration has it: a leading `~/` is the home directory. `None`: that is not known.
pub fn expand(path: &str) -> Option<PathBuf> {
    match path.strip_prefix("~/") {
        Some(rest) => Some(home()?.join(rest)),
        None if path == "~" => home(),
        None => Some(PathBuf::from(path)),
    }
}
