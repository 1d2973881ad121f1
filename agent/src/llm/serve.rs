//! Binding an agent's socket: 0600 in a directory of its own, with a link where the seed's clients look.

use super::acl;
use std::{
    fs::{self, DirBuilder},
    io,
    os::unix::{
        fs::{DirBuilderExt, FileTypeExt, PermissionsExt, symlink},
        net::{UnixListener, UnixStream},
    },
    path::{Path, PathBuf},
};

/// Longest path of a socket that the kernel takes, without its end.
const LONGEST: usize = 107;

/// Why a socket cannot be bound.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    /// Too long for `sockaddr_un`.
    #[error("{} has {} bytes, and a socket's path has at most {LONGEST}: set XDG_CONFIG_HOME to something shorter", .0.display(), .0.as_os_str().len())]
    TooLong(PathBuf),
    /// Somebody serves it.
    #[error("{} is served by another process: stop that one first", .0.display())]
    Taken(PathBuf),
    /// Something else is there.
    #[error("{} is in the way: it is no socket and no link to one", .0.display())]
    InTheWay(PathBuf),
    /// A system call.
    #[error("cannot make {}", .0.display())]
    Io(PathBuf, #[source] io::Error),
}

/// Makes a directory that only its owner can enter.
///
/// # Errors
/// [`Error::Io`].
pub(crate) fn private_dir(dir: &Path) -> Result<(), Error> {
    let io = |e| Error::Io(dir.to_owned(), e);
    DirBuilder::new().recursive(true).mode(0o700).create(dir).map_err(io)?;
    fs::set_permissions(dir, fs::Permissions::from_mode(0o700)).map_err(io)
}

/// Whether the kernel takes a path as a socket's.
///
/// # Errors
/// [`Error::TooLong`].
pub(crate) fn fits(socket: &Path) -> Result<(), Error> {
    if socket.as_os_str().len() > LONGEST {
        return Err(Error::TooLong(socket.to_owned()));
    }
    Ok(())
}

/// Binds a socket in its private directory.
///
/// # Errors
/// [`Error`]; a socket that somebody serves is never taken over.
pub(crate) fn bind(socket: &Path) -> Result<UnixListener, Error> {
    let io = |e| Error::Io(socket.to_owned(), e);
    fits(socket)?;
    socket.parent().map_or(Ok(()), private_dir)?;
    clear(socket)?;
    let listener = UnixListener::bind(socket).map_err(io)?;
    fs::set_permissions(socket, fs::Permissions::from_mode(0o600)).map_err(io)?;
    listener.set_nonblocking(true).map_err(io)?;
    Ok(listener)
}

/// Lets a container's user connect to a socket that [`bind`] made, where it is another user than ours.
///
/// # Errors
/// [`Error::Io`].
pub(crate) fn share(socket: &Path, user: Option<u32>) -> Result<(), Error> {
    let shared = socket.parent().map_or(Ok(()), |dir| acl::share(dir, user, 0o7, 0o5));
    shared.and_then(|()| acl::share(socket, user, 0o6, 0o6)).map_err(|e| Error::Io(socket.to_owned(), e))
}

/// Makes the link to a socket that [`bind`] made.
///
/// # Errors
/// [`Error`].
pub(crate) fn link(link: &Path, socket: &Path) -> Result<(), Error> {
    let io = |e| Error::Io(link.to_owned(), e);
    let target = link.parent().and_then(|dir| socket.strip_prefix(dir).ok()).unwrap_or(socket);
    if fs::read_link(link).is_ok_and(|there| there == target) {
        return Ok(());
    }
    clear(link)?;
    symlink(target, link).map_err(io)
}

/// Removes what an earlier process left.
fn clear(path: &Path) -> Result<(), Error> {
    let Ok(found) = path.symlink_metadata() else { return Ok(()) };
    if UnixStream::connect(path).is_ok() {
        return Err(Error::Taken(path.to_owned()));
    }
    if !found.file_type().is_socket() && !found.is_symlink() {
        return Err(Error::InTheWay(path.to_owned()));
    }
    fs::remove_file(path).map_err(|e| Error::Io(path.to_owned(), e))
}

/// Removes a socket and its link.
pub(crate) fn unbind(link: &Path, socket: &Path) {
    for path in [link, socket] {
        let _ = fs::remove_file(path);
    }
    socket.parent().map(fs::remove_dir);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_socket_is_bound_again_after_a_crash_but_never_stolen() {
        let dir = tempfile::tempdir().unwrap();
        let (socket, short) = (dir.path().join("a/a.sock"), dir.path().join("a.sock"));
        let listener = bind(&socket).unwrap();
        link(&short, &socket).unwrap();
        link(&short, &socket).unwrap();
        assert_eq!(
            fs::read_link(&short).unwrap(),
            Path::new("a/a.sock"),
            "a mount of the whole directory keeps it"
        );
        assert_eq!(fs::metadata(&socket).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(fs::metadata(dir.path().join("a")).unwrap().permissions().mode() & 0o777, 0o700);
        assert!(matches!(bind(&socket), Err(Error::Taken(_))));
        drop(listener);
        let _listener = bind(&socket).unwrap();
        UnixStream::connect(&short).unwrap();
        unbind(&short, &socket);
        assert!(!dir.path().join("a").exists() && short.symlink_metadata().is_err());
    }

    #[test]
    fn what_is_no_socket_is_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.sock");
        fs::write(&path, "precious").unwrap();
        assert!(matches!(bind(&path), Err(Error::InTheWay(_))));
        assert_eq!(fs::read_to_string(&path).unwrap(), "precious");
        assert!(matches!(bind(&dir.path().join("x".repeat(120))), Err(Error::TooLong(_))));
    }
}
