//! What is done in a directory by name: files read, made and replaced, names removed, symlinks, sockets.

use super::{Access, Dir, single};
use crate::{
    acl,
    entry::{Entry, Meta, set_mode, set_owner},
};
use rustix::{
    fd::AsFd,
    fs::{
        AtFlags, Mode, OFlags, RenameFlags, fsync, openat, readlinkat, renameat, renameat_with, symlinkat,
        unlinkat,
    },
    io::Errno,
};
use std::{
    ffi::{OsStr, OsString},
    fs::File,
    io::{self, Write},
    os::unix::{ffi::OsStrExt, net::UnixListener},
    path::{Path, PathBuf},
    sync::atomic::{AtomicU64, Ordering},
};

impl Dir {
    /// The names in it, in no order.
    ///
    /// # Errors
    /// As getdents(2): it must be readable.
    pub fn names(&self) -> io::Result<Vec<OsString>> {
        let mut names = Vec::new();
        for entry in rustix::fs::Dir::read_from(&self.fd)? {
            let entry = entry?;
            let name = OsStr::from_bytes(entry.file_name().to_bytes());
            if name != "." && name != ".." {
                names.push(name.to_owned());
            }
        }
        Ok(names)
    }

    /// What has this name in it, a symlink itself included; `None`: nothing.
    ///
    /// # Errors
    /// As open(2).
    pub fn entry(&self, name: &OsStr) -> io::Result<Option<Entry>> {
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        match openat(&self.fd, single(name)?, flags, Mode::empty()) {
            Ok(fd) => Ok(Some(Entry { fd })),
            Err(Errno::NOENT) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Opens a regular file in it for reading.
    ///
    /// # Errors
    /// Something else is there, a symlink included; as open(2).
    pub fn read(&self, name: &OsStr) -> io::Result<File> {
        let entry = self.entry(name)?.ok_or(Errno::NOENT)?;
        if !entry.meta()?.is_file() {
            return Err(self.not_regular(name));
        }
        entry.read()
    }

    /// Opens a regular file in it for reading and writing, made with mode 0600 if it is not there.
    ///
    /// # Errors
    /// Something else is there, a symlink included; as open(2).
    pub fn update(&self, name: &OsStr) -> io::Result<File> {
        self.open_or_make(name, OFlags::RDWR)
    }

    /// Opens a regular file in it for reading and appending, made with mode 0600 if it is not there.
    ///
    /// # Errors
    /// Something else is there, a symlink included; as open(2).
    pub fn append(&self, name: &OsStr) -> io::Result<File> {
        self.open_or_make(name, OFlags::RDWR | OFlags::APPEND)
    }

    /// Makes a file that is not there yet.
    ///
    /// # Errors
    /// EEXIST where anything has that name; as open(2).
    pub fn create(&self, name: &OsStr, mode: u32) -> io::Result<File> {
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        Ok(openat(&self.fd, single(name)?, flags, Mode::from_raw_mode(mode))?.into())
    }

    fn open_or_make(&self, name: &OsStr, flags: OFlags) -> io::Result<File> {
        // The open of a device can do something, so that it is looked at before.
        if let Some(there) = self.entry(name)?
            && !there.meta()?.is_file()
        {
            return Err(self.not_regular(name));
        }
        // Another may have its name by now. Without O_NONBLOCK the open of a FIFO would wait for its other end.
        let safe = OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        let fd = openat(&self.fd, single(name)?, flags | OFlags::CREATE | safe, Mode::from_raw_mode(0o600))?;
        if !Meta::of(&fd)?.is_file() {
            return Err(self.not_regular(name));
        }
        Ok(fd.into())
    }

    fn not_regular(&self, name: &OsStr) -> io::Error {
        io::Error::other(format!("{} is not a regular file", self.path.join(name).display()))
    }

    /// Puts a file in place of whatever has this name, whole and on disk, or not at all. Nobody but us can open it before it
    /// has its owner and its mode.
    ///
    /// # Errors
    /// As open(2), write(2), fchown(2) and rename(2); what was there is still there then.
    pub fn replace(&self, name: &OsStr, text: &[u8], access: Access) -> io::Result<()> {
        let (new, mut file) = self.fresh(name)?;
        let written = file
            .write_all(text)
            .and_then(|()| give(&file, access))
            .and_then(|()| file.sync_all())
            .and_then(|()| self.rename(&new, name));
        if written.is_err() {
            let _ = self.remove(&new);
        }
        // Where the file system can: the new name is to survive a crash as the text does.
        let _ = fsync(&self.fd);
        written
    }

    /// Keeps a text beside `name` under a name that nothing has yet: `name` and the first of `endings` that is free.
    ///
    /// # Errors
    /// All are taken (EEXIST); as open(2) and write(2).
    pub fn keep_beside(
        &self,
        name: &OsStr,
        endings: impl IntoIterator<Item = String>,
        text: &[u8],
        access: Access,
    ) -> io::Result<OsString> {
        for ending in endings {
            let mut beside = name.to_owned();
            beside.push(ending);
            match self.create(&beside, 0o600) {
                Ok(mut file) => {
                    let written = file.write_all(text).and_then(|()| give(&file, access));
                    if written.is_err() {
                        let _ = self.remove(&beside);
                    }
                    return written.map(|()| beside);
                }
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error) => return Err(error),
            }
        }
        Err(Errno::EXIST.into())
    }

    /// A file of ours that nobody else can open, under a name for the moment: `NAME.PROCESS-NUMBER.new`.
    pub(super) fn fresh(&self, name: &OsStr) -> io::Result<(OsString, File)> {
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        loop {
            let number = NUMBER.fetch_add(1, Ordering::Relaxed);
            let mut new = single(name)?.to_owned();
            new.push(format!(".{}-{number}.new", std::process::id()));
            match self.create(&new, 0o600) {
                Ok(file) => return Ok((new, file)),
                // A process of this number left it.
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists && number < 1_000 => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Renames within it.
    ///
    /// # Errors
    /// As rename(2).
    pub fn rename(&self, from: &OsStr, to: &OsStr) -> io::Result<()> {
        Ok(renameat(&self.fd, single(from)?, &self.fd, single(to)?)?)
    }

    /// Renames within it, where nothing has the new name.
    ///
    /// # Errors
    /// EEXIST: something has it; EINVAL where the file system cannot do that; as rename(2).
    pub fn rename_new(&self, from: &OsStr, to: &OsStr) -> io::Result<()> {
        Ok(renameat_with(&self.fd, single(from)?, &self.fd, single(to)?, RenameFlags::NOREPLACE)?)
    }

    /// Has two of its names change places, at once.
    ///
    /// # Errors
    /// ENOENT: one is not there; EINVAL where the file system cannot do that; as rename(2).
    pub fn exchange(&self, one: &OsStr, other: &OsStr) -> io::Result<()> {
        renameat_with(&self.fd, single(one)?, &self.fd, single(other)?, RenameFlags::EXCHANGE)?;
        // Where directories cannot be synced, the exchange stands all the same.
        let _ = fsync(&self.fd);
        Ok(())
    }

    /// Removes a name that is no directory's. True: it was there.
    ///
    /// # Errors
    /// As unlink(2), but for ENOENT.
    pub fn remove(&self, name: &OsStr) -> io::Result<bool> {
        self.unlink(name, AtFlags::empty())
    }

    /// Removes an empty directory. True: it was there.
    ///
    /// # Errors
    /// As rmdir(2), but for ENOENT.
    pub fn remove_dir(&self, name: &OsStr) -> io::Result<bool> {
        self.unlink(name, AtFlags::REMOVEDIR)
    }

    fn unlink(&self, name: &OsStr, flags: AtFlags) -> io::Result<bool> {
        match unlinkat(&self.fd, single(name)?, flags) {
            Ok(()) => Ok(true),
            Err(Errno::NOENT) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// Makes a symlink that is not there yet.
    ///
    /// # Errors
    /// EEXIST where anything has that name; as symlink(2).
    pub fn link(&self, target: &Path, name: &OsStr) -> io::Result<()> {
        Ok(symlinkat(target, &self.fd, single(name)?)?)
    }

    /// Where a symlink in it leads; `None`: there is none of that name.
    ///
    /// # Errors
    /// As readlink(2).
    pub fn target(&self, name: &OsStr) -> io::Result<Option<PathBuf>> {
        match readlinkat(&self.fd, single(name)?, Vec::new()) {
            Ok(target) => Ok(Some(OsStr::from_bytes(target.to_bytes()).into())),
            Err(Errno::NOENT | Errno::INVAL) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Binds a listening socket to a name that nothing has yet, and opens its file: mode and owner are for the caller to set
    /// on that. bind(2) knows paths only, and its path is what clients and `ss` see, so it is used; what counts is that the
    /// socket's file turns out to be in this directory. The directory must be ours then, and closed to others.
    ///
    /// # Errors
    /// The directory is not ours alone, its path leads elsewhere by now, or as bind(2).
    pub fn bind(&self, name: &OsStr) -> io::Result<(UnixListener, Entry)> {
        let (meta, own) = (self.meta()?, rustix::process::geteuid().as_raw());
        if meta.uid != own || meta.mode & 0o022 != 0 {
            return Err(io::Error::new(
                io::ErrorKind::PermissionDenied,
                format!(
                    "{} can be changed by others (owner {}, mode {:04o}): no socket is made there",
                    self.path.display(),
                    meta.uid,
                    meta.mode
                ),
            ));
        }
        let listener = UnixListener::bind(self.path.join(single(name)?))?;
        match self.entry(name)? {
            Some(entry) if entry.meta()?.is_socket() => Ok((listener, entry)),
            _ => Err(io::Error::other(format!(
                "{} leads to another directory than a moment ago",
                self.path.display()
            ))),
        }
    }
}

/// Owner and mode of a file that was opened when it was made, so that it is ours.
pub(super) fn give(file: &File, access: Access) -> io::Result<()> {
    // It has its directory's default one: the group's bits would be the rights of all whom the directory's owner named.
    acl::remove(file.as_fd())?;
    match access {
        Access::Mode(mode) => set_mode(file.as_fd(), mode),
        Access::Like(meta) => {
            let now = Meta::of(file)?;
            // Nobody else can open it before it has its group, whose rights would be another one's. The mode before the owner:
            // once it is another's, only CAP_FOWNER changes it.
            let given = if now.gid == meta.gid { Ok(()) } else { set_owner(file.as_fd(), now.uid, meta.gid) };
            let theirs = match given {
                Ok(()) => 0o777,
                // A group that its owner is not in. Ours is not to have its rights.
                Err(error) if error.kind() == io::ErrorKind::PermissionDenied && now.uid == meta.uid => 0o707,
                Err(error) => return Err(error),
            };
            set_mode(file.as_fd(), meta.mode & theirs)?;
            if now.uid == meta.uid { Ok(()) } else { set_owner(file.as_fd(), meta.uid, meta.gid) }
        }
    }
}
