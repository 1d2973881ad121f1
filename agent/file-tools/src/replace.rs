//! Putting a new content in a file's place, so that a reader sees all of the old or all of the new.

use crate::{
    error::Error,
    workspace::{Workspace, regular},
};
use rustix::fs::{FlockOperation, Gid, Uid, getxattr};
use std::{
    fs::{self, File, Metadata, OpenOptions, Permissions},
    io::{self, Write},
    os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt},
    path::{Path, PathBuf},
    sync::atomic::{AtomicU64, Ordering},
    thread,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

/// How long somebody else's lock is waited for, where the call has no earlier deadline.
const LOCK_WAIT: Duration = Duration::from_secs(10);

/// The attribute that a file with an ACL has: acl(5).
const ACL: &str = "system.posix_acl_access";

/// How the new content was put in place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Replaced {
    /// By a rename.
    Atomically,
    /// Written into the file that was there.
    InPlace,
}

impl Replaced {
    /// What the result adds about it.
    pub(crate) fn remark(self) -> &'static str {
        match self {
            Self::Atomically => "",
            Self::InPlace => " (in place: the file could not be replaced at once)",
        }
    }
}

/// Holds other file tools off a directory. Goes with its value.
#[derive(Debug)]
pub(crate) struct Lock {
    _directory: Option<File>,
}

impl Lock {
    /// Locks the directory that `path` is in. A directory that cannot be opened is not locked.
    pub(crate) fn take(path: &Path, workspace: &Workspace<'_>) -> Result<Self, Error> {
        let parent = path.parent().unwrap_or(path);
        let Ok(directory) = File::open(parent) else { return Ok(Self { _directory: None }) };
        let mine = Instant::now() + LOCK_WAIT;
        let deadline = workspace.deadline.map_or(mine, |theirs| theirs.min(mine));
        loop {
            match rustix::fs::flock(&directory, FlockOperation::NonBlockingLockExclusive) {
                Err(rustix::io::Errno::WOULDBLOCK) if Instant::now() < deadline => {
                    thread::sleep(Duration::from_millis(5));
                }
                Err(rustix::io::Errno::WOULDBLOCK) => {
                    return Err(Error::Locked { path: parent.to_owned() });
                }
                // A file system without locks: then there are none.
                _ => return Ok(Self { _directory: Some(directory) }),
            }
        }
    }
}

/// Puts `bytes` in the place of the file at `path`, which has its links resolved. Mode and owner stay.
pub(crate) fn replace(path: &Path, bytes: &[u8]) -> Result<Replaced, Error> {
    let old = match fs::symlink_metadata(path) {
        Ok(metadata) if metadata.file_type().is_symlink() => {
            return Err(Error::Dangling { path: path.to_owned() });
        }
        Ok(metadata) => {
            regular(path, metadata.file_type())?;
            Some(metadata)
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => None,
        Err(error) => return Err(Error::Io { doing: "look at", path: path.to_owned(), source: error }),
    };
    // A file with more names than one would lose them, and one with an ACL that, by which its group would get the most of any
    // entry; one that may not be written must not be replaced either.
    if let Some(old) = &old {
        let opened = OpenOptions::new().write(true).open(path).map_err(Error::io("write", path))?;
        if old.nlink() > 1 || getxattr(path, ACL, &mut [0_u8; 0]).is_ok() {
            return in_place(path, opened, bytes);
        }
    }
    match beside(path, old.as_ref(), bytes) {
        Ok(()) => Ok(Replaced::Atomically),
        // The directory is not ours to write, or the file is a mount of its own, as /etc/hosts is in a container.
        Err(error) if old.is_some() && cannot_rename(&error) => {
            let opened = OpenOptions::new().write(true).open(path).map_err(Error::io("write", path))?;
            in_place(path, opened, bytes)
        }
        Err(source) => Err(Error::Io { doing: "write", path: path.to_owned(), source }),
    }
}

fn cannot_rename(error: &io::Error) -> bool {
    use io::ErrorKind::{CrossesDevices, PermissionDenied, ReadOnlyFilesystem, ResourceBusy};
    matches!(error.kind(), CrossesDevices | PermissionDenied | ReadOnlyFilesystem | ResourceBusy)
}

fn in_place(path: &Path, mut file: File, bytes: &[u8]) -> Result<Replaced, Error> {
    file.set_len(0).and_then(|()| file.write_all(bytes)).map_err(Error::io("write", path))?;
    Ok(Replaced::InPlace)
}

/// Writes a file beside `path` and renames it there.
fn beside(path: &Path, old: Option<&Metadata>, bytes: &[u8]) -> io::Result<()> {
    let (mut file, name) = new_file(path.parent().unwrap_or(Path::new("/")))?;
    let written = (|| {
        if let Some(old) = old {
            let new = file.metadata()?;
            if (new.uid(), new.gid()) != (old.uid(), old.gid()) {
                rustix::fs::fchown(&file, Some(Uid::from_raw(old.uid())), Some(Gid::from_raw(old.gid())))?;
            }
            file.set_permissions(Permissions::from_mode(old.mode() & 0o7777))?;
        }
        file.write_all(bytes)?;
        fs::rename(&name, path)
    })();
    if written.is_err() {
        let _ = fs::remove_file(&name);
    }
    written
}

/// A new file of a name that nobody uses. Its mode is what the umask leaves.
fn new_file(directory: &Path) -> io::Result<(File, PathBuf)> {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let mut tries = 0;
    loop {
        let nanos = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.subsec_nanos());
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = directory.join(format!(".ringfence-{:x}-{nanos:x}-{count:x}.tmp", std::process::id()));
        match OpenOptions::new().write(true).create_new(true).mode(0o666).open(&name) {
            Ok(file) => return Ok((file, name)),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists && tries < 100 => tries += 1,
            Err(error) => return Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_with_an_acl_keeps_it_and_its_group_gets_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        fs::write(&path, "old").unwrap();
        assert_eq!(replace(&path, b"new").unwrap(), Replaced::Atomically, "the control");
        // Owner, one named user, owning group, mask, others.
        let none = u32::MAX;
        let entries = [(0x01, 6, none), (0x02, 6, 1234), (0x04, 0, none), (0x10, 6, none), (0x20, 0, none)];
        let mut acl = 2u32.to_le_bytes().to_vec();
        for (tag, permissions, id) in entries {
            acl.extend(u16::to_le_bytes(tag));
            acl.extend(u16::to_le_bytes(permissions));
            acl.extend(u32::to_le_bytes(id));
        }
        if rustix::fs::setxattr(&path, ACL, &acl, rustix::fs::XattrFlags::empty()).is_err() {
            // Not every file system has ACLs.
            return;
        }
        assert_eq!(replace(&path, b"newer").unwrap(), Replaced::InPlace);
        assert_eq!(fs::read_to_string(&path).unwrap(), "newer");
        assert!(getxattr(&path, ACL, &mut [0_u8; 0]).is_ok(), "it has it still");
    }
}
