//! Something in a directory, as a descriptor: what it is, whose, with which mode.

use rustix::{
    fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd},
    fs::{AtFlags, CWD, FileType, Gid, Mode, OFlags, Stat, Uid, chmodat, chownat, fchmod, fstat, openat},
    io::Errno,
};
use std::{fs::File, io, path::Path};

/// What fstat(2) says of something that is open.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Meta {
    /// User id of its owner.
    pub uid: u32,
    /// Its group's id.
    pub gid: u32,
    /// Permission bits with set-id and sticky bits: 0 to 0o7777.
    pub mode: u32,
    /// Inode number.
    pub ino: u64,
    /// The file system it is on.
    pub dev: u64,
    kind: FileType,
}

impl Meta {
    /// Of something that is open.
    ///
    /// # Errors
    /// As fstat(2).
    pub fn of(fd: impl AsFd) -> io::Result<Self> {
        Ok(Self::from(&fstat(fd)?))
    }

    /// A regular file.
    pub fn is_file(&self) -> bool {
        self.kind == FileType::RegularFile
    }

    /// A directory.
    pub fn is_dir(&self) -> bool {
        self.kind == FileType::Directory
    }

    /// A unix socket.
    pub fn is_socket(&self) -> bool {
        self.kind == FileType::Socket
    }

    /// A symlink.
    pub fn is_symlink(&self) -> bool {
        self.kind == FileType::Symlink
    }
}

impl From<&Stat> for Meta {
    fn from(stat: &Stat) -> Self {
        Self {
            uid: stat.st_uid,
            gid: stat.st_gid,
            mode: stat.st_mode & 0o7777,
            ino: stat.st_ino,
            dev: stat.st_dev,
            kind: FileType::from_raw_mode(stat.st_mode),
        }
    }
}

/// Something in a directory: a file, a socket, a symlink itself. It stays what it was when it was opened, whatever its name
/// leads to later.
#[derive(Debug)]
pub struct Entry {
    pub(crate) fd: OwnedFd,
}

impl Entry {
    /// What a path leads to, through symlinks as well.
    ///
    /// # Errors
    /// As open(2).
    pub fn of(path: &Path) -> io::Result<Self> {
        Ok(Self { fd: openat(CWD, path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())? })
    }

    /// Opens it for reading if it is a regular file. Nothing else is opened, not even to be looked at: the open of a FIFO
    /// waits for its other end, and that of a device can do something.
    ///
    /// # Errors
    /// It is something else, a symlink included; as open(2).
    pub fn read(&self) -> io::Result<File> {
        if !self.meta()?.is_file() {
            return Err(io::Error::other("it is not a regular file"));
        }
        // Its name may lead elsewhere by now. Without O_NONBLOCK the open would wait for whoever has a lease on it.
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        Ok(openat(CWD, by_proc(self.fd.as_fd()), flags, Mode::empty())?.into())
    }

    /// Gives it to a user and a group with these permission bits, whoever has it now: it is ours in between, for only an owner
    /// sets a mode without CAP_FOWNER.
    ///
    /// # Errors
    /// As fchownat(2) and fchmod(2).
    pub fn hand_over(&self, mode: u32, uid: u32, gid: u32) -> io::Result<()> {
        self.set_owner(rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw())?;
        self.set_mode(mode)?;
        self.set_owner(uid, gid)
    }
}

/// What is done to a directory and to what is in one alike, by the descriptor.
macro_rules! by_descriptor {
    ($opened:ty) => {
        impl $opened {
            /// What it is now.
            ///
            /// # Errors
            /// As fstat(2).
            pub fn meta(&self) -> std::io::Result<$crate::Meta> {
                $crate::Meta::of(&self.fd)
            }

            /// Sets its permission bits. Not a symlink's.
            ///
            /// # Errors
            /// As fchmod(2): whoever changes it owns it or has CAP_FOWNER.
            pub fn set_mode(&self, mode: u32) -> std::io::Result<()> {
                $crate::entry::set_mode(self.fd.as_fd(), mode)
            }

            /// Gives it to a user and a group.
            ///
            /// # Errors
            /// As fchownat(2).
            pub fn set_owner(&self, uid: u32, gid: u32) -> std::io::Result<()> {
                $crate::entry::set_owner(self.fd.as_fd(), uid, gid)
            }

            /// Lets one user beside its owner use it; `None` takes that away. See [`Permissions`](crate::Permissions).
            ///
            /// # Errors
            /// Not the owner, or a file system without ACLs.
            pub fn share(&self, user: Option<u32>, permissions: $crate::Permissions) -> std::io::Result<()> {
                $crate::acl::share(self.fd.as_fd(), user, permissions)
            }
        }
    };
}
pub(crate) use by_descriptor;

by_descriptor!(Entry);

impl AsFd for Entry {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// The path by which the kernel leads to an open descriptor's inode itself: for calls that take no `O_PATH` descriptor.
pub(crate) fn by_proc(fd: BorrowedFd<'_>) -> String {
    format!("/proc/self/fd/{}", fd.as_raw_fd())
}

pub(crate) fn set_mode(fd: BorrowedFd<'_>, mode: u32) -> io::Result<()> {
    let mode = Mode::from_raw_mode(mode);
    match fchmod(fd, mode) {
        // Opened with O_PATH, as a socket has to be. fchmodat2, which takes those, is as young as Linux 6.6.
        Err(Errno::BADF) => Ok(chmodat(CWD, by_proc(fd), mode, AtFlags::empty())?),
        done => Ok(done?),
    }
}

pub(crate) fn set_owner(fd: BorrowedFd<'_>, uid: u32, gid: u32) -> io::Result<()> {
    Ok(chownat(fd, "", Some(Uid::from_raw(uid)), Some(Gid::from_raw(gid)), AtFlags::EMPTY_PATH)?)
}
