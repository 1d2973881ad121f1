//! Files by descriptor: what is changed is what was opened and checked, never what a path leads to by then.
//!
//! A path is a question that is asked again with every system call, and whoever may write a directory on the way may answer
//! differently each time. So a directory is opened once ([`Dir`]), and everything in it is named by one component, below that
//! descriptor, without following a symlink: the same promise as `openat2` with `RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS`, also
//! under a system call filter that does not know `openat2`. Owner, mode and ACL are set on what was opened ([`Entry`]).
//!
//! | file | what |
//! |---|---|
//! | `dir` | a directory, and what is done in it |
//! | `entry` | something in it: what it is, whose, with which mode |
//! | `walk` | the way to a directory, and who could have changed it |
//! | `acl` | a second user beside the owner |

mod acl;
mod dir;
mod entry;
mod walk;

pub use acl::Permissions;
pub use dir::{Access, Dir, Prepared};
pub use entry::{Entry, Meta};
pub use walk::{Others, ResolvedPath};

use std::{fs::File, io, os::fd::AsFd, path::Path};

/// Opens a file by its path for reading if that leads to a regular one, through symlinks as well. For a path at which an agent
/// may have put something else: the open of a FIFO would wait for its other end.
///
/// # Errors
/// As [`Entry::read`].
pub fn read(path: &Path) -> io::Result<File> {
    Entry::of(path)?.read()
}

/// Whether nobody but root chose what a path leads to: all directories on the way, all symlinks, also those that lead on to
/// others, and what is at its end belong to root, and others may do there no more than `others`. Then what is opened by that
/// path afterwards is still root's.
///
/// # Errors
/// As open(2) and readlink(2).
pub fn is_roots(path: &Path, others: Others) -> io::Result<bool> {
    walk::is_roots(path, others)
}

/// Whether users other than its owner and root can write what is open. Root's group is root; whom an ACL names is not.
///
/// # Errors
/// As fstat(2).
pub fn others_write(opened: impl AsFd) -> io::Result<bool> {
    let meta = Meta::of(&opened)?;
    Ok(walk::others_write(opened, &meta))
}

/// Opens a file by its path for appending, makes it (mode 0600) where it is not there, and follows no symlink at the path's
/// end. For a file whose directory is the caller's own.
///
/// # Errors
/// Something else than a regular file is there, a symlink included; as open(2).
pub fn append(path: &Path) -> io::Result<File> {
    let (dir, name) = Dir::of(path)?;
    dir.append(&name)
}

/// See [`Entry::share`].
///
/// # Errors
/// Not the owner, or a file system without ACLs.
pub fn share(file: &File, user: Option<u32>, permissions: Permissions) -> io::Result<()> {
    acl::share(file.as_fd(), user, permissions)
}

/// Puts a file in place of the one at a path, whole or not at all: mode and owner are `access`.
///
/// # Errors
/// As [`Dir::replace`].
pub fn replace(path: &Path, text: &[u8], access: Access) -> io::Result<()> {
    let (dir, name) = Dir::of(path)?;
    dir.replace(&name, text, access)
}
