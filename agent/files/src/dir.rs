//! A directory that was opened once: how it is opened or made, whose it is, and those below it. What else is done in it:
//! `contents`; a file that comes in place of another: `prepared`. Each name is one component, and no symlink is followed.

mod contents;
mod prepared;

pub use prepared::Prepared;

use crate::{
    acl,
    entry::{Meta, by_descriptor},
    walk::{self, ResolvedPath},
};
use rustix::{
    fd::{AsFd, BorrowedFd, OwnedFd},
    fs::{CWD, Mode, OFlags, mkdirat, openat},
    io::Errno,
};
use std::{
    ffi::{OsStr, OsString},
    fs::DirBuilder,
    io,
    os::unix::{ffi::OsStrExt, fs::DirBuilderExt},
    path::{Path, PathBuf},
};

/// Whose a new file is, and who may use it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// Ours, with these permission bits.
    Mode(u32),
    /// Owner, group and permission bits (without set-id bits) of what it replaces.
    Like(Meta),
}

impl Access {
    /// As a file has it that is open. Of one with an ACL, which does not come along, the group gets nothing: its bits are what
    /// any entry may have at most.
    ///
    /// # Errors
    /// As fstat(2).
    pub fn like(file: impl AsFd) -> io::Result<Self> {
        let mut meta = Meta::of(&file)?;
        if acl::is_there(file.as_fd()) {
            meta.mode &= !0o070;
        }
        Ok(Self::Like(meta))
    }
}

/// A directory, open.
#[derive(Debug)]
pub struct Dir {
    fd: OwnedFd,
    path: PathBuf,
}

impl Dir {
    /// Opens a directory; its last component is no symlink.
    ///
    /// # Errors
    /// It is a symlink; as open(2).
    pub fn open(path: &Path) -> io::Result<Self> {
        let fd = open_dir(CWD, path.as_os_str()).map_err(|error| {
            match error.raw_os_error().map(Errno::from_raw_os_error) {
                Some(Errno::NOTDIR | Errno::LOOP) => {
                    io::Error::new(error.kind(), format!("{} is a symlink or no directory", path.display()))
                }
                _ => error,
            }
        })?;
        Ok(Self { fd, path: path.to_owned() })
    }

    /// Opens a directory by a way that nobody but root and ourselves could have changed.
    ///
    /// # Errors
    /// Somebody else could; as open(2).
    pub fn open_trusted(path: &Path) -> io::Result<Self> {
        walk::trusted(path, None)
    }

    /// The same; makes what is missing with `mode`, less the umask.
    ///
    /// # Errors
    /// As [`Self::open_trusted`] and mkdir(2).
    pub fn make_trusted(path: &Path, mode: u32) -> io::Result<Self> {
        walk::trusted(path, Some(mode))
    }

    /// A directory that is ours alone, mode 0700; made if it is not there, with those above it.
    ///
    /// # Errors
    /// It is somebody else's, or a symlink; as mkdir(2).
    pub fn make_private(path: &Path) -> io::Result<Self> {
        let dir = Self::make(path)?;
        if dir.meta()?.mode != 0o700 {
            dir.set_mode(0o700)?;
        }
        Ok(dir)
    }

    /// A directory that is ours; made if it is not there (mode 0700), with those above it. One that is there keeps its mode.
    ///
    /// # Errors
    /// It is somebody else's, or a symlink; as mkdir(2).
    pub fn make(path: &Path) -> io::Result<Self> {
        DirBuilder::new().recursive(true).mode(0o700).create(path)?;
        let dir = Self::open(path)?;
        dir.require_own()?;
        Ok(dir)
    }

    /// Whether it belongs to who we are.
    ///
    /// # Errors
    /// It does not: whose it is.
    pub fn require_own(&self) -> io::Result<()> {
        let (owner, own) = (self.meta()?.uid, rustix::process::geteuid().as_raw());
        if owner != own {
            let text = format!("{} belongs to user {owner}, not to user {own}", self.path.display());
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, text));
        }
        Ok(())
    }

    /// A directory of ours that nobody else can look into or change, as it has to be before secrets or sockets are put
    /// there. Made (mode 0700) if its parent is there and it is not. What is wrong is not repaired: others may have been
    /// there already.
    ///
    /// # Errors
    /// It is a symlink, somebody else's, or its mode lets others in.
    pub fn claim(path: &Path) -> io::Result<Self> {
        match DirBuilder::new().mode(0o700).create(path) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
            _ => {}
        }
        let dir = Self::open(path)?;
        let (meta, own) = (dir.meta()?, rustix::process::geteuid().as_raw());
        if meta.uid != own || meta.mode & 0o077 != 0 {
            return Err(io::Error::new(
                io::ErrorKind::PermissionDenied,
                format!(
                    "{} is not user {own}'s alone (owner {}, mode {:04o}): remove it, or `chmod 700` it if it is yours",
                    path.display(),
                    meta.uid,
                    meta.mode
                ),
            ));
        }
        Ok(dir)
    }

    /// The directory that a path's last component is in, and that component. Symlinks on the way are followed, the last
    /// component is not looked at.
    ///
    /// # Errors
    /// The path ends in no name; as open(2).
    pub fn of(path: &Path) -> io::Result<(Self, OsString)> {
        let name = path.file_name().ok_or(Errno::INVAL)?.to_owned();
        let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
        let parent = parent.unwrap_or(Path::new("."));
        Ok((Self { fd: open_parent(parent)?, path: parent.to_owned() }, name))
    }

    /// Where a path leads through all symlinks, the last component's included.
    ///
    /// # Errors
    /// As open(2); EISDIR where it ends in no name.
    pub fn resolve(path: &Path) -> io::Result<ResolvedPath> {
        walk::resolve(path)
    }

    /// A directory that was opened with `O_PATH`.
    pub(crate) fn from_parts(fd: OwnedFd, path: PathBuf) -> io::Result<Self> {
        if !Meta::of(&fd)?.is_dir() {
            return Err(Errno::NOTDIR.into());
        }
        // Readable if it may be read: changes of mode and syncs take no O_PATH descriptor.
        let fd = open_dir(&fd, OsStr::new(".")).unwrap_or(fd);
        Ok(Self { fd, path })
    }

    /// The path by which it was opened: for messages.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Takes it back from the user it was given to: ours, and nobody else enters it or changes what is in it. The owner goes
    /// first, for only an owner sets a mode without CAP_FOWNER.
    ///
    /// # Errors
    /// As fchownat(2) and fchmod(2).
    pub fn take_back(&self) -> io::Result<()> {
        let (uid, gid) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
        self.set_owner(uid, gid)?;
        self.set_mode(0o700)
    }

    /// A directory in it.
    ///
    /// # Errors
    /// As open(2): ENOTDIR for a symlink.
    pub fn below(&self, name: &OsStr) -> io::Result<Self> {
        Ok(Self { fd: open_dir(&self.fd, single(name)?)?, path: self.path.join(name) })
    }

    /// The same; made with `mode`, less the umask, if it is not there.
    ///
    /// # Errors
    /// As [`Self::below`] and mkdir(2).
    pub fn make_below(&self, name: &OsStr, mode: u32) -> io::Result<Self> {
        match mkdirat(&self.fd, single(name)?, Mode::from_raw_mode(mode)) {
            Ok(()) | Err(Errno::EXIST) => self.below(name),
            Err(error) => Err(error.into()),
        }
    }

    /// The same, which nobody may have made before.
    ///
    /// # Errors
    /// As [`Self::below`] and mkdir(2): `EEXIST` among them.
    pub fn make_new_below(&self, name: &OsStr, mode: u32) -> io::Result<Self> {
        mkdirat(&self.fd, single(name)?, Mode::from_raw_mode(mode))?;
        self.below(name)
    }
}

by_descriptor!(Dir);

impl AsFd for Dir {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// A name that is one component: nothing below, above or beside.
fn single(name: &OsStr) -> io::Result<&OsStr> {
    let bytes = name.as_bytes();
    if bytes.is_empty() || bytes == b"." || bytes == b".." || bytes.contains(&b'/') {
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            format!("{name:?} is not the name of a file in a directory"),
        ));
    }
    Ok(name)
}

fn open_dir(at: impl AsFd, path: &OsStr) -> io::Result<OwnedFd> {
    open_dir_with(at, path, OFlags::NOFOLLOW)
}

fn open_parent(path: &Path) -> io::Result<OwnedFd> {
    open_dir_with(CWD, path.as_os_str(), OFlags::empty())
}

/// Readable if it may be read; else to be entered only.
fn open_dir_with(at: impl AsFd, path: &OsStr, more: OFlags) -> io::Result<OwnedFd> {
    let flags = OFlags::DIRECTORY | OFlags::CLOEXEC | more;
    match openat(&at, path, OFlags::RDONLY | flags, Mode::empty()) {
        Err(Errno::ACCESS) => Ok(openat(&at, path, OFlags::PATH | flags, Mode::empty())?),
        opened => Ok(opened?),
    }
}
