//! A directory that was opened once, and what is done in it: each name is one component, and no symlink is followed.

use crate::{
    acl::{self, Permissions},
    entry::{Entry, Meta, set_mode, set_owner},
    walk::{self, ResolvedPath},
};
use rustix::{
    fd::{AsFd, BorrowedFd, OwnedFd},
    fs::{AtFlags, CWD, Mode, OFlags, fsync, mkdirat, openat, readlinkat, renameat, symlinkat, unlinkat},
    io::Errno,
};
use std::{
    ffi::{OsStr, OsString},
    fs::{DirBuilder, File},
    io::{self, Write},
    os::unix::{ffi::OsStrExt, fs::DirBuilderExt, net::UnixListener},
    path::{Path, PathBuf},
    sync::atomic::{AtomicU64, Ordering},
};

/// Whose a new file is, and who may use it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// Ours, with these permission bits.
    Mode(u32),
    /// Owner, group and permission bits (without set-id bits) of what it replaces.
    Like(Meta),
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

    /// What it is now.
    ///
    /// # Errors
    /// As fstat(2).
    pub fn meta(&self) -> io::Result<Meta> {
        Meta::of(&self.fd)
    }

    /// Sets its permission bits.
    ///
    /// # Errors
    /// As fchmod(2).
    pub fn set_mode(&self, mode: u32) -> io::Result<()> {
        set_mode(self.fd.as_fd(), mode)
    }

    /// Gives it to a user and a group.
    ///
    /// # Errors
    /// As fchownat(2).
    pub fn set_owner(&self, uid: u32, gid: u32) -> io::Result<()> {
        set_owner(self.fd.as_fd(), uid, gid)
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

    /// See [`Entry::share`].
    ///
    /// # Errors
    /// Not the owner, or a file system without ACLs.
    pub fn share(&self, user: Option<u32>, permissions: Permissions) -> io::Result<()> {
        acl::share(self.fd.as_fd(), user, permissions)
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
        self.regular(name, OFlags::RDONLY, 0)
    }

    /// Opens a regular file in it for reading and writing, made with mode 0600 if it is not there.
    ///
    /// # Errors
    /// Something else is there, a symlink included; as open(2).
    pub fn update(&self, name: &OsStr) -> io::Result<File> {
        self.regular(name, OFlags::RDWR | OFlags::CREATE, 0o600)
    }

    /// Opens a regular file in it for reading and appending, made with mode 0600 if it is not there.
    ///
    /// # Errors
    /// Something else is there, a symlink included; as open(2).
    pub fn append(&self, name: &OsStr) -> io::Result<File> {
        self.regular(name, OFlags::RDWR | OFlags::APPEND | OFlags::CREATE, 0o600)
    }

    /// Makes a file that is not there yet.
    ///
    /// # Errors
    /// EEXIST where anything has that name; as open(2).
    pub fn create(&self, name: &OsStr, mode: u32) -> io::Result<File> {
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        Ok(openat(&self.fd, single(name)?, flags, Mode::from_raw_mode(mode))?.into())
    }

    fn regular(&self, name: &OsStr, flags: OFlags, mode: u32) -> io::Result<File> {
        // Without O_NONBLOCK the open of a FIFO would wait for its other end.
        let flags = flags | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        let fd = openat(&self.fd, single(name)?, flags, Mode::from_raw_mode(mode))?;
        if !Meta::of(&fd)?.is_file() {
            let path = self.path.join(name);
            return Err(io::Error::other(format!("{} is not a regular file", path.display())));
        }
        Ok(fd.into())
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
                    file.write_all(text).and_then(|()| give(&file, access))?;
                    return Ok(beside);
                }
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error) => return Err(error),
            }
        }
        Err(Errno::EXIST.into())
    }

    /// A file of ours that nobody else can open, under a name for the moment: `NAME.PROCESS-NUMBER.new`.
    fn fresh(&self, name: &OsStr) -> io::Result<(OsString, File)> {
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

impl AsFd for Dir {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Owner and mode of a file that was opened when it was made, so that it is ours.
fn give(file: &File, access: Access) -> io::Result<()> {
    match access {
        Access::Mode(mode) => set_mode(file.as_fd(), mode),
        Access::Like(meta) => {
            let now = Meta::of(file)?;
            // The mode first: once it is another's, only CAP_FOWNER changes it.
            set_mode(file.as_fd(), meta.mode & 0o777)?;
            if (now.uid, now.gid) == (meta.uid, meta.gid) {
                return Ok(());
            }
            match set_owner(file.as_fd(), meta.uid, meta.gid) {
                // A group that its owner is not in. Ours is not to have its rights.
                Err(error) if error.kind() == io::ErrorKind::PermissionDenied && now.uid == meta.uid => {
                    set_mode(file.as_fd(), meta.mode & 0o707)
                }
                done => done,
            }
        }
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
