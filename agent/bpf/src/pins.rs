//! What is pinned in bpffs, and therefore survives the core: maps, and one directory of links per load.
//!
//! ```text
//! /sys/fs/bpf/ringfence/maps/NAME      maps; BOOT first, which says who made the rest
//! /sys/fs/bpf/ringfence/links/N/HOOK   links of the N-th load; while they are being made, links/new/HOOK. Beside them in
//!                                      programs/, what is attached later (see `rewriters`)
//! ```
//! bpffs refuses names with a dot.

use std::{
    collections::BTreeSet,
    fs::{self, DirBuilder},
    io,
    os::unix::fs::{DirBuilderExt, MetadataExt},
    path::{Path, PathBuf},
};

use aya::{
    Pod,
    maps::{Array, Map, MapData, MapError},
    pin::PinError,
};
use nix::sys::statfs::{BPF_FS_MAGIC, statfs};
use ringfence_common::{ABI_VERSION, hash::Keys};
use ringfence_files::Dir;

use super::object::Shape;

/// The map that says who made the rest.
const BOOT: &str = "BOOT";
/// Links that are being made.
const NEW: &str = "new";

/// Why the pins cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum PinsError {
    /// Not bpffs.
    #[error("{0} is not on a BPF file system; mount it: mount -t bpf bpf /sys/fs/bpf")]
    NotBpffs(PathBuf),
    /// A directory that others can change.
    #[error(
        "{path} belongs to uid {uid} with mode {mode:o}; it must belong to root and be writable by nobody else"
    )]
    NotOurs { path: PathBuf, uid: u32, mode: u32 },
    /// A file system operation.
    #[error("{path}: cannot {what}")]
    File {
        path: PathBuf,
        what: &'static str,
        #[source]
        source: io::Error,
    },
    /// A map cannot be opened or made.
    #[error("{path}: the map cannot be used")]
    Map {
        path: PathBuf,
        #[source]
        source: MapError,
    },
    /// Something cannot be pinned.
    #[error("{path}: cannot be pinned")]
    Pin {
        path: PathBuf,
        #[source]
        source: PinError,
    },
    /// A pinned map of another layout.
    #[error(
        "{path}: pinned map has {found}; this version needs {wanted}. End the containers, then run `ringfence uninstall` and `ringfence install`"
    )]
    Shape { path: PathBuf, found: Shape, wanted: Shape },
    /// Pins of an incompatible version.
    #[error(
        "{path}: what is pinned was made by a version with ABI {found}, this one has {ABI_VERSION}. End the containers, then run \
         `ringfence uninstall` with the old version"
    )]
    Abi { path: PathBuf, found: u64 },
    /// Pins, but no record of who made them.
    #[error(
        "{0} has pinned objects that nothing here made: remove them with `ringfence uninstall`, or rm -r them"
    )]
    Unknown(PathBuf),
}

/// What is remembered of this boot, beside the maps that depend on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Boot {
    /// Keys of the path hash.
    pub keys: Keys,
    /// [`super::object::Object::hash`] of the programs that are attached; 0: none yet.
    pub object: u64,
}

/// The words of [`Boot`] as pinned: ABI, keys, object, room.
type BootWords = [u64; 8];

/// The pin directory.
#[derive(Debug, Clone)]
pub(crate) struct Pins {
    root: PathBuf,
}

impl Pins {
    /// Opens the directory, making it where it is missing.
    pub(crate) fn open(root: &Path) -> Result<Self, PinsError> {
        let parent = root.parent().unwrap_or(root);
        let on_bpffs = statfs(parent).is_ok_and(|fs| fs.filesystem_type() == BPF_FS_MAGIC);
        if !on_bpffs {
            return Err(PinsError::NotBpffs(parent.into()));
        }
        let pins = Self { root: root.into() };
        for dir in [root.into(), pins.maps(), pins.links()] {
            make_dir(&dir)?;
            let meta = fs::metadata(&dir).map_err(file(&dir, "look at the directory"))?;
            if meta.uid() != 0 || meta.mode() & 0o022 != 0 {
                return Err(PinsError::NotOurs { path: dir, uid: meta.uid(), mode: meta.mode() & 0o7777 });
            }
        }
        Ok(pins)
    }

    fn maps(&self) -> PathBuf {
        self.root.join("maps")
    }

    fn links(&self) -> PathBuf {
        self.root.join("links")
    }

    /// Where a map is pinned.
    pub(crate) fn map_path(&self, name: &str) -> PathBuf {
        self.maps().join(name)
    }

    /// Opens a pinned map, if its shape is what is wanted; `None`: not pinned.
    pub(crate) fn map(&self, name: &str, wanted: &Shape) -> Result<Option<MapData>, PinsError> {
        let path = self.map_path(name);
        if !path.exists() {
            return Ok(None);
        }
        let unusable = |source| PinsError::Map { path: path.clone(), source };
        let map = MapData::from_pin(&path).map_err(unusable)?;
        let found = shape(&map).map_err(unusable)?;
        if found == *wanted { Ok(Some(map)) } else { Err(PinsError::Shape { path, found, wanted: *wanted }) }
    }

    /// Opens a pinned array of our own, or makes and pins it.
    pub(crate) fn own_array<V: Pod>(
        &self,
        name: &str,
        entries: u32,
        flags: u32,
    ) -> Result<MapData, PinsError> {
        let path = self.map_path(name);
        let unusable = |source| PinsError::Map { path: path.clone(), source };
        // BPF_MAP_TYPE_ARRAY
        let wanted = Shape { kind: 2, key: 4, value: size_of::<V>() as u32, entries, flags };
        if self.map(name, &wanted)?.is_none() {
            let array = Array::<MapData, V>::create(entries, flags).map_err(unusable)?;
            array.pin(&path).map_err(|source| PinsError::Pin { path: path.clone(), source })?;
        }
        MapData::from_pin(&path).map_err(unusable)
    }

    /// Reads what is remembered of this boot, or begins it with `fresh` keys.
    pub(crate) fn boot(&self, fresh: Keys) -> Result<Boot, PinsError> {
        let path = self.map_path(BOOT);
        if !path.exists() && (!entries(&self.maps())?.is_empty() || !entries(&self.links())?.is_empty()) {
            return Err(PinsError::Unknown(self.root.clone()));
        }
        let words =
            self.boot_array()?.get(&0, 0).map_err(|source| PinsError::Map { path: path.clone(), source })?;
        let [abi, k0, k1, k2, object, ..] = words;
        if abi == 0 {
            let boot = Boot { keys: fresh, object: 0 };
            self.set_boot(&boot)?;
            return Ok(boot);
        }
        if abi != u64::from(ABI_VERSION) {
            return Err(PinsError::Abi { path, found: abi });
        }
        Ok(Boot { keys: Keys { k0, k1, k2 }, object })
    }

    /// Remembers.
    pub(crate) fn set_boot(&self, boot: &Boot) -> Result<(), PinsError> {
        let Keys { k0, k1, k2 } = boot.keys;
        let words: BootWords = [ABI_VERSION.into(), k0, k1, k2, boot.object, 0, 0, 0];
        let path = self.map_path(BOOT);
        self.boot_array()?.set(0, words, 0).map_err(|source| PinsError::Map { path, source })
    }

    fn boot_array(&self) -> Result<Array<MapData, BootWords>, PinsError> {
        let path = self.map_path(BOOT);
        let map = self.own_array::<BootWords>(BOOT, 1, 0)?;
        Map::from_map_data(map).and_then(Array::try_from).map_err(|source| PinsError::Map { path, source })
    }

    /// The links of the newest complete load.
    pub(crate) fn newest(&self) -> Result<Option<PathBuf>, PinsError> {
        Ok(self.generations()?.last().map(|last| self.links().join(last.to_string())))
    }

    /// Hooks that the newest complete load has links for.
    pub(crate) fn attached(&self) -> Result<BTreeSet<String>, PinsError> {
        self.newest()?.map_or_else(|| Ok(BTreeSet::new()), |newest| entries(&newest))
    }

    /// Where the newest complete load pinned something that is not a hook's; `None`: it did not.
    pub(crate) fn beside_hooks(&self, name: &str) -> Result<Option<PathBuf>, PinsError> {
        let path = self.newest()?.map(|newest| newest.join(name));
        Ok(path.filter(|path| path.exists()))
    }

    /// An empty directory for the links of a load that begins.
    pub(crate) fn begin_load(&self) -> Result<PathBuf, PinsError> {
        let new = self.links().join(NEW);
        remove(&new)?; // of a load that was interrupted; the last complete one is still attached
        make_dir(&new)?;
        Ok(new)
    }

    /// Makes the links of [`Self::begin_load`] the current ones and detaches all earlier ones.
    pub(crate) fn commit_load(&self) -> Result<(), PinsError> {
        let old = self.generations()?;
        let next = old.last().map_or(1, |last| last + 1);
        let links = self.links();
        Dir::open(&links)
            .and_then(|dir| dir.rename(NEW.as_ref(), next.to_string().as_ref()))
            .map_err(file(&links.join(NEW), "rename the directory"))?;
        for number in old {
            remove(&self.links().join(number.to_string()))?;
        }
        Ok(())
    }

    /// Detaches what a failed load attached. If nothing else is attached either, removes everything.
    pub(crate) fn undo_load(&self) -> Result<(), PinsError> {
        remove(&self.links().join(NEW))?;
        if self.generations()?.is_empty() { unpin_all(&self.root).map(drop) } else { Ok(()) }
    }

    /// Detaches the loads before the newest, which an interrupted [`Self::commit_load`] may have left.
    pub(crate) fn clean(&self) -> Result<(), PinsError> {
        remove(&self.links().join(NEW))?;
        let mut old = self.generations()?;
        old.pop_last();
        old.iter().try_for_each(|number| remove(&self.links().join(number.to_string())).map(drop))
    }

    fn generations(&self) -> Result<BTreeSet<u64>, PinsError> {
        Ok(entries(&self.links())?.iter().filter_map(|name| name.parse().ok()).collect())
    }
}

/// Detaches and unpins everything below `root`: links first, so that no program runs without its maps' names. Returns how
/// many objects were removed; 0 where nothing is pinned.
///
/// # Errors
/// The first thing that cannot be removed.
pub fn unpin_all(root: &Path) -> Result<u32, PinsError> {
    let links = remove(&root.join("links"))?;
    Ok(links + remove(root)?)
}

/// A map's shape as the kernel tells it.
pub(crate) fn shape(map: &MapData) -> Result<Shape, MapError> {
    let info = map.info()?;
    Ok(Shape {
        kind: info.map_type()? as u32,
        key: info.key_size(),
        value: info.value_size(),
        entries: info.max_entries(),
        flags: info.map_flags(),
    })
}

fn file<'a>(path: &'a Path, what: &'static str) -> impl FnOnce(io::Error) -> PinsError + 'a {
    move |source| PinsError::File { path: path.into(), what, source }
}

fn make_dir(path: &Path) -> Result<(), PinsError> {
    match DirBuilder::new().mode(0o700).create(path) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        other => other.map_err(file(path, "make the directory")),
    }
}

/// Names in a directory; none if there is no directory.
fn entries(path: &Path) -> Result<BTreeSet<String>, PinsError> {
    let list = match fs::read_dir(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(BTreeSet::new()),
        other => other.map_err(file(path, "list the directory"))?,
    };
    list.map(|entry| entry.map(|entry| entry.file_name().to_string_lossy().into_owned()))
        .collect::<Result<_, _>>()
        .map_err(file(path, "list the directory"))
}

/// Removes a directory and what is below it, counting files; a missing one is fine.
fn remove(path: &Path) -> Result<u32, PinsError> {
    let list = match fs::read_dir(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(0),
        other => other.map_err(file(path, "list the directory"))?,
    };
    let mut removed = 0;
    for entry in list {
        let entry = entry.map_err(file(path, "list the directory"))?;
        let below = entry.path();
        if entry.file_type().map_err(file(&below, "look at the file"))?.is_dir() {
            removed += remove(&below)?;
        } else {
            fs::remove_file(&below).map_err(file(&below, "unpin"))?;
            removed += 1;
        }
    }
    fs::remove_dir(path).map_err(file(path, "remove the directory"))?;
    Ok(removed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_file_system_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        assert!(matches!(Pins::open(&dir.path().join("ringfence")), Err(PinsError::NotBpffs(_))));
    }

    #[test]
    fn unpinning_counts_files_and_leaves_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().join("ringfence");
        assert_eq!(unpin_all(&root).unwrap(), 0);
        for path in ["links/1/a", "links/1/b", "links/new/a", "maps/BOOT"] {
            fs::create_dir_all(root.join(path).parent().unwrap()).unwrap();
            fs::write(root.join(path), "").unwrap();
        }
        assert_eq!(unpin_all(&root).unwrap(), 4);
        assert!(!root.exists());
    }

    #[test]
    fn a_load_replaces_the_one_before_and_an_interrupted_one_is_cleaned() {
        let dir = tempfile::tempdir().unwrap();
        let pins = Pins { root: dir.path().into() };
        make_dir(&pins.links()).unwrap();
        for round in 1..=3 {
            let new = pins.begin_load().unwrap();
            fs::write(new.join(format!("hook{round}")), "").unwrap();
            pins.commit_load().unwrap();
            assert_eq!(pins.attached().unwrap(), BTreeSet::from([format!("hook{round}")]));
            assert_eq!(pins.generations().unwrap(), BTreeSet::from([round]));
        }
        fs::write(pins.begin_load().unwrap().join("half"), "").unwrap();
        make_dir(&pins.links().join("2")).unwrap();
        assert_eq!(pins.attached().unwrap(), BTreeSet::from(["hook3".to_owned()]));
        pins.clean().unwrap();
        assert_eq!(entries(&pins.links()).unwrap(), BTreeSet::from(["3".to_owned()]));
    }
}
