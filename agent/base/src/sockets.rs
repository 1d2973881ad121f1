//! Binding an agent's socket: 0600 in a directory of its own, with a link where the seed's clients look.

use ringfence_files::{Dir, Entry, Permissions};
use rustix::{
    io::Errno,
    net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with},
};
use std::{
    ffi::OsStr,
    io,
    os::unix::net::UnixListener,
    path::{Path, PathBuf},
};

/// Longest path of a socket that the kernel takes, without its end.
const LONGEST: usize = 107;

/// Why a socket cannot be bound.
#[derive(Debug, thiserror::Error)]
pub enum Error {
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

/// Makes a directory that only its owner can enter, and opens it.
///
/// # Errors
/// [`Error::Io`]; also where it is somebody else's, or a symlink.
pub fn private_dir(dir: &Path) -> Result<Dir, Error> {
    Dir::make_private(dir).map_err(|e| Error::Io(dir.to_owned(), e))
}

/// Whether the kernel takes a path as a socket's.
///
/// # Errors
/// [`Error::TooLong`].
pub fn fits(socket: &Path) -> Result<(), Error> {
    if socket.as_os_str().len() > LONGEST {
        return Err(Error::TooLong(socket.to_owned()));
    }
    Ok(())
}

/// Binds a socket, 0600, in its private directory.
///
/// # Errors
/// [`Error`]; a socket that somebody serves is never taken over.
pub fn bind(socket: &Path) -> Result<UnixListener, Error> {
    fits(socket)?;
    let (parent, name) = split(socket)?;
    let dir = private_dir(parent)?;
    Ok(bind_in(&dir, name)?.0)
}

/// Binds a socket, 0600, in a directory of ours that nobody else can change, in place of a socket or link that was left there.
///
/// # Errors
/// [`Error`].
pub fn bind_in(dir: &Dir, name: &OsStr) -> Result<(UnixListener, Entry), Error> {
    let socket = dir.path().join(name);
    let io = |e| Error::Io(socket.clone(), e);
    fits(&socket)?;
    clear(dir, name)?;
    let (listener, entry) = dir.bind(name).map_err(io)?;
    entry.set_mode(0o600).map_err(io)?;
    listener.set_nonblocking(true).map_err(io)?;
    Ok((listener, entry))
}

/// Lets a container's user connect to a socket that [`bind`] made, where it is another user than ours.
///
/// # Errors
/// [`Error::Io`]; also where the socket is not there any more.
pub fn share(socket: &Path, user: Option<u32>) -> Result<(), Error> {
    let (parent, name) = split(socket)?;
    let shared = || {
        let dir = Dir::open(parent)?;
        // The container may have put something else there.
        let entry = dir.entry(name)?.ok_or(Errno::NOENT)?;
        if !entry.meta()?.is_socket() {
            return Err(Errno::NOTSOCK.into());
        }
        dir.share(user, Permissions { own: 0o7, theirs: 0o5 })?;
        entry.share(user, Permissions { own: 0o6, theirs: 0o6 })
    };
    shared().map_err(|e| Error::Io(socket.to_owned(), e))
}

/// Makes the link to a socket that [`bind`] made.
///
/// # Errors
/// [`Error`].
pub fn link(link: &Path, socket: &Path) -> Result<(), Error> {
    let (parent, name) = split(link)?;
    let target = socket.strip_prefix(parent).unwrap_or(socket);
    let dir = Dir::open(parent).map_err(|e| Error::Io(link.to_owned(), e))?;
    if dir.target(name).is_ok_and(|there| there.as_deref() == Some(target)) {
        return Ok(());
    }
    if is_served(link) {
        return Err(Error::Taken(link.to_owned()));
    }
    link_in(&dir, name, target)
}

/// Makes a link in a directory, in place of a socket or another link.
///
/// # Errors
/// [`Error`].
pub fn link_in(dir: &Dir, name: &OsStr, target: &Path) -> Result<(), Error> {
    if dir.target(name).is_ok_and(|there| there.as_deref() == Some(target)) {
        return Ok(());
    }
    clear(dir, name)?;
    dir.link(target, name).map_err(|e| Error::Io(dir.path().join(name), e))
}

/// Whether somebody accepts there. Does not wait where that somebody is slow.
fn is_served(path: &Path) -> bool {
    let connected = || {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
        connect(&socket, &SocketAddrUnix::new(path)?)
    };
    matches!(connected(), Ok(()) | Err(Errno::AGAIN))
}

/// Removes what an earlier process left, and does not serve any more.
fn clear(dir: &Dir, name: &OsStr) -> Result<(), Error> {
    let io = |e| Error::Io(dir.path().join(name), e);
    let Some(entry) = dir.entry(name).map_err(io)? else { return Ok(()) };
    let found = entry.meta().map_err(io)?;
    if !found.is_socket() && !found.is_symlink() {
        return Err(Error::InTheWay(dir.path().join(name)));
    }
    if found.is_socket() && is_served(&dir.path().join(name)) {
        return Err(Error::Taken(dir.path().join(name)));
    }
    dir.remove(name).map(drop).map_err(io)
}

fn split(path: &Path) -> Result<(&Path, &OsStr), Error> {
    let parts = path.parent().zip(path.file_name());
    parts.ok_or_else(|| Error::Io(path.to_owned(), Errno::INVAL.into()))
}

/// Removes a socket and its link.
pub fn unbind(link: &Path, socket: &Path) {
    for path in [link, socket] {
        let _ = Dir::of(path).and_then(|(dir, name)| dir.remove(&name));
    }
    let _ = socket.parent().map(|dir| Dir::of(dir).and_then(|(all, name)| all.remove_dir(&name)));
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{
        fs,
        os::unix::{
            fs::{PermissionsExt, symlink},
            net::UnixStream,
        },
    };

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

    #[test]
    fn a_link_in_the_socket_s_place_shares_nothing_that_it_leads_to() {
        let dir = tempfile::tempdir().unwrap();
        let (socket, victim) = (dir.path().join("a/a.sock"), dir.path().join("victim"));
        fs::write(&victim, "precious").unwrap();
        fs::set_permissions(&victim, fs::Permissions::from_mode(0o640)).unwrap();
        let listener = bind(&socket).unwrap();
        share(&socket, None).unwrap();
        drop(listener);
        fs::remove_file(&socket).unwrap();
        symlink(&victim, &socket).unwrap();
        assert!(share(&socket, None).is_err() && share(&socket, Some(1234)).is_err());
        assert_eq!(fs::metadata(&victim).unwrap().permissions().mode() & 0o777, 0o640);
        // A link is no reason not to serve.
        let _listener = bind(&socket).unwrap();
        share(&socket, None).unwrap();
        assert_eq!(fs::read_to_string(&victim).unwrap(), "precious");
        // Nor is a directory that somebody made a link of.
        symlink(dir.path().join("a"), dir.path().join("b")).unwrap();
        assert!(matches!(bind(&dir.path().join("b/b.sock")), Err(Error::Io(..))));
    }

    #[test]
    fn who_does_not_accept_holds_nobody_up() {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("a/a.sock");
        let slow = bind(&socket).unwrap();
        let mut waiting = Vec::new();
        // Until its queue is full.
        while let Ok(stream) = {
            let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
            let stream = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None).unwrap();
            connect(&stream, &SocketAddrUnix::new(&socket).unwrap()).map(|()| stream)
        } {
            waiting.push(stream);
        }
        assert!(!waiting.is_empty() && matches!(bind(&socket), Err(Error::Taken(_))));
        drop(slow);
    }
}
