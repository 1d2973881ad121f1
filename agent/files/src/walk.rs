//! The way to a directory, one component at a time, and who could have changed it.

use rustix::{
    fd::OwnedFd,
    fs::{CWD, Mode, OFlags, mkdirat, openat, readlinkat},
    io::Errno,
};
use std::{
    ffi::{OsStr, OsString},
    io,
    os::unix::ffi::OsStrExt,
    path::{Component, Path, PathBuf},
};

use crate::{Dir, entry::Meta};

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

/// Whether others than root and ourselves can put something else under a name in this directory. In a sticky one they can
/// only add names.
fn check(dir: &Meta, path: &Path) -> io::Result<()> {
    let others = if dir.gid == 0 { 0o002 } else { 0o022 };
    if !is_ours(dir.uid) || (dir.mode & others != 0 && dir.mode & 0o1000 == 0) {
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
        check(&Meta::of(&walk.here)?, &walk.path)?;
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
