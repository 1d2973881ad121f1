//! The way to a directory, one component at a time, and who could have changed it.

use rustix::{
    fd::{AsFd, OwnedFd},
    fs::{CWD, Mode, OFlags, mkdirat, openat, readlinkat},
    io::Errno,
};
use std::{
    ffi::{OsStr, OsString},
    io,
    os::unix::ffi::OsStrExt,
    path::{Component, Path, PathBuf},
};

use crate::{Dir, acl, entry::Meta};

/// As many symlinks as the kernel follows in one path.
const MOST_LINKS: usize = 40;

/// Where a path leads: the directory, the last name in it, and whether somebody else chose the way.
#[derive(Debug)]
pub struct ResolvedPath {
    /// The directory that the file is in.
    pub dir: Dir,
    /// Its name there: no symlink at the moment it was looked at.
    pub name: OsString,
    /// The first user, neither root nor ourselves, whose symlink led here.
    pub redirected_by: Option<u32>,
}

/// What users other than root may do on a way that counts as root's all the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Others {
    /// Write as root's group, and add names in sticky directories, where they change nobody else's.
    AddNames,
    /// Nothing.
    Nothing,
}

/// What a walk looks at.
struct Walk {
    here: OwnedFd,
    /// Without symlinks: for errors, and for what takes paths only.
    path: PathBuf,
    /// What is still to go, last first.
    rest: Vec<OsString>,
    links: usize,
    redirected_by: Option<u32>,
}

impl Walk {
    fn new(path: &Path) -> io::Result<Self> {
        let path = std::path::absolute(path)?;
        let mut walk =
            Self { here: root()?, path: "/".into(), rest: Vec::new(), links: 0, redirected_by: None };
        walk.push(&path);
        Ok(walk)
    }

    fn push(&mut self, path: &Path) {
        let parts = path.components().rev().filter_map(|part| match part {
            Component::Normal(name) => Some(name.to_owned()),
            Component::ParentDir => Some("..".into()),
            Component::RootDir | Component::CurDir | Component::Prefix(_) => None,
        });
        self.rest.extend(parts);
    }

    fn enter(&mut self, name: &OsStr, next: OwnedFd) {
        if name == ".." {
            self.path.pop();
        } else {
            self.path.push(name);
        }
        self.here = next;
    }

    /// Goes where a symlink in `here` leads.
    fn follow(&mut self, name: &OsStr, link: &Meta) -> io::Result<()> {
        self.links += 1;
        if self.links > MOST_LINKS {
            return Err(Errno::LOOP.into());
        }
        if !is_ours(link.uid) {
            self.redirected_by.get_or_insert(link.uid);
        }
        let target = readlinkat(&self.here, name, Vec::new())?;
        let target = Path::new(OsStr::from_bytes(target.to_bytes())).to_owned();
        if target.is_absolute() {
            (self.here, self.path) = (root()?, "/".into());
        }
        self.push(&target);
        Ok(())
    }
}

fn root() -> io::Result<OwnedFd> {
    Ok(openat(CWD, "/", OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?)
}

fn step(here: &OwnedFd, name: &OsStr) -> rustix::io::Result<OwnedFd> {
    openat(here, name, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())
}

/// Root, or who we are.
fn is_ours(uid: u32) -> bool {
    uid == 0 || uid == rustix::process::geteuid().as_raw()
}

/// Whether others than its owner, root and root's group can write what is open.
pub(crate) fn others_write(fd: impl AsFd, meta: &Meta) -> bool {
    // Of a file with an ACL, the group's bits are the most that any user or group in it may do.
    let group_is_roots = || meta.gid == 0 && !acl::is_there(fd.as_fd());
    meta.mode & 0o002 != 0 || meta.mode & 0o020 != 0 && !group_is_roots()
}

/// Whether others than root and ourselves can put something else under a name in this directory. In a sticky one they can
/// only add names.
fn check(here: &OwnedFd, path: &Path) -> io::Result<()> {
    let dir = Meta::of(here)?;
    if !is_ours(dir.uid) || (dir.mode & 0o1000 == 0 && others_write(here, &dir)) {
        return Err(io::Error::new(
            io::ErrorKind::PermissionDenied,
            format!(
                "{} can be changed by others (owner {}, mode {:04o}): give it to root, and take their right to write",
                path.display(),
                dir.uid,
                dir.mode
            ),
        ));
    }
    Ok(())
}

/// Opens a directory by a way that nobody but root and ourselves could have changed; makes what is missing with `mode`, if
/// there is one. Whose the directory itself is, the caller looks at.
pub(crate) fn trusted(path: &Path, mode: Option<u32>) -> io::Result<Dir> {
    let mut walk = Walk::new(path)?;
    while let Some(name) = walk.rest.pop() {
        check(&walk.here, &walk.path)?;
        let next = match (step(&walk.here, &name), mode) {
            (Err(Errno::NOENT), Some(mode)) => {
                match mkdirat(&walk.here, name.as_os_str(), Mode::from_raw_mode(mode)) {
                    Ok(()) | Err(Errno::EXIST) => step(&walk.here, &name)?,
                    Err(error) => return Err(error.into()),
                }
            }
            (next, _) => next?,
        };
        let meta = Meta::of(&next)?;
        if !meta.is_symlink() {
            walk.enter(&name, next);
            continue;
        }
        // In a sticky directory anybody can have made it.
        if !is_ours(meta.uid) {
            return Err(io::Error::new(
                io::ErrorKind::PermissionDenied,
                format!(
                    "{} is a symlink of user {}: name the directory itself",
                    walk.path.join(&name).display(),
                    meta.uid
                ),
            ));
        }
        walk.follow(&name, &meta)?;
    }
    Dir::from_parts(walk.here, walk.path)
}

/// Whether all that a path leads through is root's, each symlink and what is at its end included.
pub(crate) fn is_roots(path: &Path, others: Others) -> io::Result<bool> {
    let closed = |fd: &OwnedFd, meta: &Meta| match others {
        Others::AddNames => meta.is_dir() && meta.mode & 0o1000 != 0 || !others_write(fd, meta),
        Others::Nothing => meta.mode & 0o022 == 0,
    };
    let mut walk = Walk::new(path)?;
    let top = Meta::of(&walk.here)?;
    if top.uid != 0 || !closed(&walk.here, &top) {
        return Ok(false);
    }
    while let Some(name) = walk.rest.pop() {
        let next = step(&walk.here, &name)?;
        let meta = Meta::of(&next)?;
        // A symlink's mode says nothing.
        let is_closed = meta.is_symlink() || closed(&next, &meta);
        if meta.uid != 0 || !is_closed {
            return Ok(false);
        }
        if meta.is_symlink() {
            walk.follow(&name, &meta)?;
        } else {
            walk.enter(&name, next);
        }
    }
    Ok(true)
}

/// Finds the directory and the name that a path leads to through all symlinks, its last component's included.
pub(crate) fn resolve(path: &Path) -> io::Result<ResolvedPath> {
    let mut walk = Walk::new(path)?;
    while let Some(name) = walk.rest.pop() {
        let next = match step(&walk.here, &name) {
            // A name that is still free.
            Err(Errno::NOENT) if walk.rest.is_empty() => {
                let Walk { here, path, redirected_by, .. } = walk;
                return Ok(ResolvedPath { dir: Dir::from_parts(here, path)?, name, redirected_by });
            }
            next => next?,
        };
        let meta = Meta::of(&next)?;
        if meta.is_symlink() {
            walk.follow(&name, &meta)?;
        } else if walk.rest.is_empty() && name != ".." {
            let Walk { here, path, redirected_by, .. } = walk;
            return Ok(ResolvedPath { dir: Dir::from_parts(here, path)?, name, redirected_by });
        } else {
            walk.enter(&name, next);
        }
    }
    Err(Errno::ISDIR.into())
}
