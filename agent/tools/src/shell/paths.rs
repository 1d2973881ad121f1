//! Paths of a script: where they lead, and opening what was admitted and nothing else.

use rustix::{
    fs::{CWD, FileType, Mode, OFlags, ResolveFlags, fcntl_setfl, fstat, fstatfs, openat2},
    io::Errno,
};
use std::{
    collections::VecDeque,
    ffi::OsString,
    fs, io,
    os::fd::OwnedFd,
    path::{Component, Path, PathBuf},
};

/// Links that one path may go through; Linux has the same number.
const MAX_LINKS: usize = 40;
/// Components that one path may come to, those of its links included.
const MAX_COMPONENTS: usize = 4096;
/// `f_type` of procfs: PROC_SUPER_MAGIC of linux/magic.h.
const PROCFS: u64 = 0x9fa0;
/// Where what is written is lost, and nothing can be read: open to every script.
pub(super) const NULL: &str = "/dev/null";

/// Why a path leads nowhere.
#[derive(Debug, thiserror::Error)]
pub(super) enum ResolveError {
    /// Under /proc, where `self` would be the server.
    #[error("{} leads into /proc, which Ringfence would open as its own: name a program that reads it", .0.display())]
    Proc(PathBuf),
    /// A system call failed.
    #[error("cannot find {}", .0.display())]
    Find(PathBuf, #[source] io::Error),
}

/// Where a path leads from `dir`, every link followed. What does not exist yet stays as it is.
pub(super) fn resolve(dir: &Path, path: &Path) -> Result<PathBuf, ResolveError> {
    let whole = dir.join(path);
    let mut ahead: VecDeque<OsString> = parts(&whole).collect();
    let mut resolved = PathBuf::from("/");
    let (mut links, mut components) = (0, 0);
    let mut missing = false;
    let failed = |error: io::Error| ResolveError::Find(whole.clone(), error);
    while let Some(part) = ahead.pop_front() {
        components += 1;
        if components > MAX_COMPONENTS {
            return Err(failed(Errno::NAMETOOLONG.into()));
        }
        if part == ".." {
            if missing {
                return Err(failed(io::ErrorKind::NotFound.into()));
            }
            resolved.pop();
            continue;
        }
        resolved.push(&part);
        if resolved == Path::new("/proc") {
            return Err(ResolveError::Proc(whole.clone()));
        }
        if missing {
            continue;
        }
        match fs::read_link(&resolved) {
            Ok(link) => {
                links += 1;
                if links > MAX_LINKS {
                    return Err(failed(Errno::LOOP.into()));
                }
                resolved.pop();
                if link.is_absolute() {
                    resolved = PathBuf::from("/");
                }
                for part in parts(&link).collect::<Vec<_>>().into_iter().rev() {
                    ahead.push_front(part);
                }
            }
            // It exists, and is no link.
            Err(error) if error.raw_os_error() == Some(Errno::INVAL.raw_os_error()) => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => missing = true,
            Err(error) => return Err(failed(error)),
        }
    }
    Ok(resolved)
}

fn parts(path: &Path) -> impl Iterator<Item = OsString> {
    path.components().filter_map(|part| match part {
        Component::Normal(name) => Some(name.to_owned()),
        Component::ParentDir => Some("..".into()),
        Component::RootDir | Component::CurDir | Component::Prefix(_) => None,
    })
}

/// How a redirect opens its file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum OpenMode {
    /// `<`
    Read,
    /// `>`: emptied, or made.
    Write,
    /// `>>`
    Append,
}

/// Opens a file that was admitted: never through a link, wherever in the path one was put since; never waiting for a
/// pipe's other end; regular files and the harmless devices only.
///
/// # Errors
/// As of open(2); `InvalidInput` for something that is not a file.
pub(super) fn open(path: &Path, mode: OpenMode) -> io::Result<OwnedFd> {
    let flags = match mode {
        OpenMode::Read => OFlags::RDONLY,
        OpenMode::Write => OFlags::WRONLY | OFlags::CREATE,
        OpenMode::Append => OFlags::WRONLY | OFlags::CREATE | OFlags::APPEND,
    };
    // 0666, of which the umask takes its part; openat2 refuses a mode where nothing is made.
    let permissions = if mode == OpenMode::Read { Mode::empty() } else { Mode::from_raw_mode(0o666) };
    let careful = OFlags::CLOEXEC | OFlags::NOCTTY | OFlags::NONBLOCK;
    let links = ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    let file = loop {
        match openat2(CWD, path, flags | careful, permissions, links) {
            Err(Errno::INTR) => {}
            opened => break opened?,
        }
    };
    let status = fstat(&file)?;
    let kind = FileType::from_raw_mode(status.st_mode);
    let known = ["/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom"];
    let harmless = kind == FileType::RegularFile
        || (kind == FileType::CharacterDevice && known.iter().any(|device| path == Path::new(device)));
    if !harmless || fstatfs(&file)?.f_type as u64 == PROCFS {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file"));
    }
    // Only now: nothing but a regular file is emptied.
    if mode == OpenMode::Write && kind == FileType::RegularFile {
        rustix::fs::ftruncate(&file, 0)?;
    }
    fcntl_setfl(&file, flags & OFlags::APPEND)?;
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{io::Read, os::unix::fs::symlink};

    #[test]
    fn links_and_dots_are_followed_and_what_is_missing_stays() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path().canonicalize().unwrap();
        fs::create_dir(dir.join("real")).unwrap();
        symlink("real", dir.join("link")).unwrap();
        symlink("/etc", dir.join("out")).unwrap();
        symlink("loop", dir.join("loop")).unwrap();
        symlink("real/later", dir.join("dangling")).unwrap();
        symlink("./".repeat(1000) + "up", dir.join("long")).unwrap();
        let leads = |path: &str| resolve(&dir, Path::new(path));
        assert_eq!(leads("link/a/b").unwrap(), dir.join("real/a/b"));
        assert_eq!(leads("link/../x").unwrap(), dir.join("x"));
        assert_eq!(leads("out/passwd").unwrap(), Path::new("/etc/passwd"));
        assert_eq!(leads("dangling").unwrap(), dir.join("real/later"));
        assert_eq!(leads("../../../../../../../../etc").unwrap(), Path::new("/etc"));
        assert!(matches!(leads("nothing/../x"), Err(ResolveError::Find(..))));
        assert!(matches!(leads("loop"), Err(ResolveError::Find(..))));
        assert_eq!(leads("long").unwrap(), dir.join("up"));
        assert!(matches!(leads(&"real/../".repeat(5000)), Err(ResolveError::Find(..))));
        for own in ["/proc/self/environ", "/dev/stdout", "/dev/fd/1", "/proc", "/../proc/1/mem"] {
            assert!(matches!(leads(own), Err(ResolveError::Proc(_))), "{own}");
        }
    }

    #[test]
    fn a_link_put_there_later_is_not_followed() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path().canonicalize().unwrap();
        fs::write(dir.join("target"), "kept").unwrap();
        symlink(dir.join("target"), dir.join("link")).unwrap();
        symlink(&dir, dir.join("sub")).unwrap();
        for place in ["link", "sub/target"] {
            for how in [OpenMode::Read, OpenMode::Write, OpenMode::Append] {
                let error = open(&dir.join(place), how).unwrap_err();
                assert_eq!(error.raw_os_error(), Some(Errno::LOOP.raw_os_error()), "{place}");
            }
        }
        assert_eq!(fs::read_to_string(dir.join("target")).unwrap(), "kept");
        let mut read = String::new();
        fs::File::from(open(&dir.join("target"), OpenMode::Read).unwrap()).read_to_string(&mut read).unwrap();
        assert_eq!(read, "kept");
    }

    #[test]
    fn only_files_and_harmless_devices() {
        let dir = tempfile::tempdir().unwrap();
        let pipe = dir.path().canonicalize().unwrap().join("pipe");
        rustix::fs::mknodat(CWD, &pipe, FileType::Fifo, Mode::from_raw_mode(0o600), 0).unwrap();
        for how in [OpenMode::Read, OpenMode::Write] {
            assert!(open(&pipe, how).is_err());
            assert!(open(Path::new("/dev/tty"), how).is_err());
            assert!(open(dir.path(), how).is_err());
            open(Path::new(NULL), how).unwrap();
        }
        assert!(open(Path::new("/proc/version"), OpenMode::Read).is_err());
    }
}
