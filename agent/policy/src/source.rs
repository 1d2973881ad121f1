//! A profile's bytes, and who could have written them.

use super::problem::{At, LoadErrors, Problem, Wrong};
use nix::libc;
use ringfence_files::{Others, is_roots, others_write};
use serde::Serialize;
use std::{
    fs::OpenOptions,
    io::{self, Read},
    os::unix::fs::{MetadataExt, OpenOptionsExt},
    path::{Path, PathBuf},
};

/// Most bytes of a profile.
pub(crate) const MAX_BYTES: u64 = 4 << 20;

/// Where a part of a profile came from, taken from the open file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Provenance {
    /// The file.
    pub file: PathBuf,
    /// Its owner.
    pub uid: u32,
    /// Its group.
    pub gid: u32,
    /// Its permission bits.
    pub mode: u32,
    /// How many names (hard links) it has.
    pub names: u64,
    /// Whether the file and all on the way to it belong to root, and nobody else may write it or put another in its place.
    pub root_only: bool,
}

/// Reads a profile's file.
///
/// # Errors
/// Unreadable, not a regular file, writable by everyone, empty, over [`MAX_BYTES`], not UTF-8.
pub(crate) fn read(file: &Path) -> Result<(String, Provenance), LoadErrors> {
    let wrong = |what| LoadErrors::from(Problem::new(At::file(file), what));
    let io = |e: io::Error| wrong(Wrong::Unreadable { reason: e.to_string(), kind: e.kind() });
    // Without O_NONBLOCK the open of a FIFO would wait for its writer.
    let opened = OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY)
        .open(file)
        .map_err(io)?;
    let meta = opened.metadata().map_err(io)?;
    if !meta.is_file() {
        return Err(wrong(Wrong::NotAFile));
    }
    let mode = meta.mode() & 0o7777;
    if mode & 0o002 != 0 {
        return Err(wrong(Wrong::WorldWritable(mode)));
    }
    if meta.len() > MAX_BYTES {
        return Err(wrong(Wrong::TooLarge { size: meta.len(), most: MAX_BYTES }));
    }
    // A user who can write a directory on the way can put another file there under the same name.
    let root_only = meta.uid() == 0
        && others_write(&opened).is_ok_and(|others| !others)
        && is_roots(file, Others::AddNames).unwrap_or(false);
    let mut bytes = Vec::new();
    opened.take(MAX_BYTES + 1).read_to_end(&mut bytes).map_err(io)?;
    if bytes.len() as u64 > MAX_BYTES {
        return Err(wrong(Wrong::TooLarge { size: bytes.len() as u64, most: MAX_BYTES }));
    }
    if bytes.iter().all(u8::is_ascii_whitespace) {
        return Err(wrong(Wrong::Empty));
    }
    let text = String::from_utf8(bytes).map_err(|e| {
        let before = &e.as_bytes()[..e.utf8_error().valid_up_to()];
        let line = u32::try_from(before.iter().filter(|b| **b == b'\n').count() + 1).unwrap_or(u32::MAX);
        LoadErrors::from(Problem::new(At { line, ..At::file(file) }, Wrong::NotUtf8))
    })?;
    Ok((
        text,
        Provenance {
            file: file.to_owned(),
            uid: meta.uid(),
            gid: meta.gid(),
            mode,
            names: meta.nlink(),
            root_only,
        },
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{
        fs,
        os::unix::fs::{PermissionsExt, chown, symlink},
    };

    /// Whether a file is root's alone, as it stands and by way of a link.
    fn root_only(file: &Path) -> bool {
        read(file).unwrap_or_else(|e| panic!("{e}")).1.root_only
    }

    #[test]
    fn a_file_is_roots_only_if_the_whole_way_is() {
        let dir = tempfile::tempdir().unwrap();
        let (file, link) = (dir.path().join("a/p.toml"), dir.path().join("l.toml"));
        fs::create_dir(dir.path().join("a")).unwrap();
        fs::write(&file, "mode = \"enforce\"").unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o644)).unwrap();
        symlink(&file, &link).unwrap();
        if fs::metadata(&file).unwrap().uid() != 0 {
            return assert!(!root_only(&file), "a user's own file");
        }
        assert!(root_only(&file) && root_only(&link), "the control");
        fs::set_permissions(dir.path().join("a"), fs::Permissions::from_mode(0o775)).unwrap();
        assert!(root_only(&file), "root's own group");
        let opened = fs::File::open(dir.path().join("a")).unwrap();
        let all = ringfence_files::Permissions { own: 7, theirs: 7 };
        // Not every file system has ACLs.
        if ringfence_files::share(&opened, Some(65534), all).is_ok() {
            assert!(!root_only(&file), "a directory that an ACL lets somebody write");
            ringfence_files::share(&opened, None, all).unwrap();
            fs::set_permissions(dir.path().join("a"), fs::Permissions::from_mode(0o775)).unwrap();
        }
        chown(dir.path().join("a"), None, Some(65534)).unwrap();
        assert!(!root_only(&file) && !root_only(&link), "a directory that a group may write");
        fs::set_permissions(dir.path().join("a"), fs::Permissions::from_mode(0o755)).unwrap();
        assert!(root_only(&file));
        chown(&file, Some(65534), None).unwrap();
        assert!(!root_only(&file));
    }
}
