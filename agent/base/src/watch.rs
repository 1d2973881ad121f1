//! Notices that profiles changed, by looking at their directories now and then.
//!
//! Not inotify: one watch makes every open and close on its file system, by anybody, about 80 executed instructions
//! dearer each (measured on 6.12), nearly as much as a hook of ours costs a task that is not governed.

use std::{
    collections::{BTreeMap, BTreeSet, hash_map::DefaultHasher},
    fs::{self, DirEntry},
    hash::{Hash, Hasher},
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
};

/// What the directories looked like.
#[derive(Debug, Default)]
pub struct Watch {
    seen: BTreeMap<PathBuf, u64>,
}

impl Watch {
    /// Looks at these directories; true if one of those that were looked at before is not as it was. One that is not
    /// there is as if empty.
    pub fn look(&mut self, dirs: &BTreeSet<PathBuf>) -> bool {
        let now: BTreeMap<PathBuf, u64> = dirs.iter().map(|dir| (dir.clone(), appearance(dir))).collect();
        let changed = now.iter().any(|(dir, looks)| self.seen.get(dir).is_some_and(|before| before != looks));
        self.seen = now;
        changed
    }
}

/// A number that changes with the names, contents' times, modes and owners of the files in a directory; their order,
/// which is the file system's, does not count.
fn appearance(dir: &Path) -> u64 {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    entries.map(|entry| entry_appearance(&entry)).fold(0, u64::wrapping_add)
}

fn entry_appearance(entry: &DirEntry) -> u64 {
    let mut hash = DefaultHasher::new();
    entry.file_name().hash(&mut hash);
    // Through a link: what it leads to is what would be read. Times of change cannot be set back by utimes.
    if let Ok(meta) = fs::metadata(entry.path()) {
        (meta.ino(), meta.size(), meta.ctime(), meta.ctime_nsec()).hash(&mut hash);
    }
    hash.finish()
}

#[cfg(test)]
mod tests {
    use super::Watch;
    use std::{collections::BTreeSet, fs, os::unix::fs::PermissionsExt};

    #[test]
    fn every_kind_of_change_is_seen_once() {
        let dir = tempfile::tempdir().unwrap();
        let dirs = BTreeSet::from([dir.path().to_owned(), dir.path().join("missing")]);
        let mut watch = Watch::default();
        let file = dir.path().join("a.toml");
        fs::write(&file, "1").unwrap();
        assert!(!watch.look(&dirs), "the first look has nothing to compare with");
        assert!(!watch.look(&dirs));
        let mut sees = |what: &str| {
            assert!(watch.look(&dirs), "{what}");
            assert!(!watch.look(&dirs), "{what}, again");
        };
        fs::write(&file, "22").unwrap();
        sees("written");
        fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
        sees("mode");
        fs::write(dir.path().join("new"), "22").unwrap();
        fs::rename(dir.path().join("new"), &file).unwrap();
        sees("replaced");
        fs::remove_file(&file).unwrap();
        sees("removed");
    }

    #[test]
    fn a_directory_more_is_no_change() {
        let (one, two) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        fs::write(two.path().join("b.toml"), "x").unwrap();
        let mut watch = Watch::default();
        watch.look(&BTreeSet::from([one.path().to_owned()]));
        assert!(!watch.look(&BTreeSet::from([one.path().to_owned(), two.path().to_owned()])));
    }
}
